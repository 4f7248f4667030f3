// Operand access and dispatch of one instruction.
#include "machine.hpp"

namespace emu {

void Exec::unsupported(const std::string& why) { M.fatal("unsupported", &w, pc, why); }

void Exec::get(int i, Val& out, bool must, const char* what) {
  const Operand& x = o[i];
  out.valid = ~0u;
  out.slot = -1;
  out.v = out.buf;
  auto fill = [&](u64 v) { std::fill(out.buf, out.buf + 32, v); };
  switch (x.kind) {
    case K_REG:
      if (w.busy[x.a] == 1 && copying) pending = true;
      else if (w.busy[x.a] == 1) {
        // PTX requires the wait. On hardware the register dependency suffices, and public kernels rely on
        // that.
        M.find("tmem-load-not-waited", M.cfg.strict_fences != 0, &w, pc,
               "a register is read before tcgen05.wait::ld has completed the load that fills it");
        complete_loads();
      } else if (w.busy[x.a] == 2) {  // not 3: instructions may read the A of a wgmma in flight
        M.find("wgmma-register-in-flight", true, &w, pc,
               "a register that a wgmma in flight owns is read before wgmma.wait_group");
      }
      out.v = w.read(x.a);
      out.valid = w.init[x.a];
      out.slot = x.a;
      break;
    case K_NOTPRED: {
      const u64* r = w.read(x.a);
      for (int l = 0; l < 32; l++) out.buf[l] = !r[l];
      out.valid = w.init[x.a];
      break;
    }
    case K_IMM: fill(u64(x.b)); break;
    case K_SMEM: fill(u64(x.b) | u64(c.rank) << RANK_SHIFT); break;
    case K_PARAM: fill(u64(x.b)); break;
    case K_ADDR32: {
      const u64* r = w.read(x.a);
      for (int l = 0; l < 32; l++) out.buf[l] = (r[l] + u64(x.b)) & 0xFFFFFFFF;
      out.valid = w.init[x.a];
      break;
    }
    case K_ADDR64: {
      const u64* r = w.read(x.a);
      for (int l = 0; l < 32; l++) out.buf[l] = r[l] + u64(x.b);
      out.valid = w.init[x.a];
      break;
    }
    default: unsupported("a source operand is missing");
  }
  if (must) need(out.valid, what, i);
}

// All earlier tcgen05.ld of the warp are complete.
void Exec::complete_loads() {
  w.clock.hb[w.actor + P_TLD] = w.tld_clk;
  w.ta[w.actor + P_TLD] = w.tld_clk;
  w.tld_clk++;
  for (int r : w.tld_regs) w.busy[size_t(r)] = 0;
  w.tld_regs.clear();
  w.snapshot.reset();
}

void Exec::need(u32 valid, const char* what, int) {
  if (mask & ~valid)
    M.find("uninit-register", true, &w, pc,
           std::string("the ") + what + " depends on a register that lane " +
               std::to_string(__builtin_ctz(mask & ~valid)) + " never wrote");
}

u64 Exec::lead(int i, const char* what) {
  Val v;
  get(i, v, true, what);
  return v[first()];
}

u64 Exec::uniform(int i, const char* what) {
  Val v;
  get(i, v, true, what);
  u64 r = v[first()];
  LANES(mask, l)
    if (v[l] != r) {
      M.find("not-uniform", true, &w, pc,
             std::string("the lanes disagree about the ") + what + ": the first one's is taken here");
      break;
    }
  return r;
}

u64* Exec::dst(int i, u32 valid) {
  const Operand& x = o[i];
  if (x.kind == K_NONE) return nullptr;
  if (x.kind != K_REG) unsupported("a destination is not a register");
  if (w.busy[x.a])
    M.find(w.busy[x.a] == 1 ? "tmem-load-not-waited" : "wgmma-register-in-flight", true, &w, pc,
           "a register that an asynchronous operation in flight owns is overwritten");
  u64* to = w.write(x.a, mask);
  w.init[x.a] = (w.init[x.a] & ~mask) | (valid & mask);
  if (!w.partial.empty())
    if (auto it = w.partial.find(x.a); it != w.partial.end()) LANES(mask, l) it->second[l] = 0;
  w.written[x.a] = w.icount;
  // Compilers copy the result of tcgen05.ld before the wait: the copy is pending too.
  if (pending) w.busy[x.a] = 1, w.tld_regs.push_back(int(x.a));
  return to;
}

u64 Exec::known(const Val& v, u32 l) const {
  if (v.valid >> l & 1) return ~u64(0);
  auto it = v.slot < 0 ? w.partial.end() : w.partial.find(v.slot);
  return it == w.partial.end() ? 0 : it->second[l];
}

u32 Exec::known_low(const Val& v, int n) const {
  u32 out = v.valid;
  if (v.slot >= 0 && !w.partial.empty())
    LANES(mask & ~v.valid, l) if (!~(known(v, l) | ~low(~u64(0), n))) out |= 1u << l;
  return out;
}

void Exec::mark(int i, const u64* known) {
  if (o[i].kind != K_REG) return;
  LANES(mask, l) {
    if (!~known[l]) w.init[o[i].a] |= 1u << l;
    else if (known[l]) w.partial[o[i].a][l] = known[l];
  }
}

void Exec::aligned() {
  if (mask != (w.present & ~w.exited))
    M.fatal("divergent-aligned", &w, pc,
            "an .aligned instruction is executed by lanes " + hex(mask) + " while lanes " +
                hex(w.present & ~w.exited) + " of the warp are alive");
}

Flow Exec::run() {
  switch (in.op) {
    case OP_bra: case OP_brx: case OP_exit: case OP_trap: case OP_call: case OP_nop: case OP_nanosleep:
    case OP_warpsync: case OP_setmaxnreg:
      return control();
    case OP_shfl: case OP_vote: case OP_match: case OP_redux: case OP_elect: case OP_activemask:
    case OP_movmatrix:
      return warp_op();
    case OP_ld: load(); return Flow::next;
    case OP_st: case OP_st_async: store(); return Flow::next;
    case OP_atom: atomic(); return Flow::next;
    case OP_prefetch: return Flow::next;
    case OP_cp_async: case OP_cp_async_commit: case OP_cp_async_mbar: cp_async(); return Flow::next;
    case OP_ldmatrix: case OP_stmatrix: matrix(); return Flow::next;
    case OP_bar: case OP_cluster_arrive: case OP_cluster_wait: return barrier();
    case OP_mbar_init: case OP_mbar_inval: case OP_mbar_arrive: case OP_mbar_tx: case OP_mbar_wait:
      return mbarrier();
    case OP_fence: case OP_fence_proxy: case OP_griddep: fences(); return Flow::next;
    case OP_clc_try: case OP_clc_query: launch_control(); return Flow::next;
    case OP_mma: mma(); return Flow::next;
    case OP_wgmma_fence: case OP_wgmma: case OP_wgmma_commit: case OP_wgmma_wait: return wgmma();
    case OP_bulk_load: case OP_bulk_store: case OP_bulk_dsmem: case OP_bulk_commit: case OP_bulk_wait:
    case OP_cp_async_wait:
      return bulk();
    case OP_tm_replace: tensormap(); return Flow::next;
    case OP_tm_acquire: acquire_map(); return Flow::next;
    case OP_tma_load: case OP_tma_store: tma(); return Flow::next;
    case OP_tc_alloc: case OP_tc_dealloc: case OP_tc_relinquish: case OP_tc_mma: case OP_tc_cp:
    case OP_tc_commit: case OP_tc_ld: case OP_tc_st: case OP_tc_wait: case OP_tc_fence:
      return tcgen();
    default: alu(); return Flow::next;
  }
}

Flow Exec::control() {
  switch (in.op) {
    case OP_bra: {
      u32 stay = g.mask & ~mask;
      if (!stay) {
        g.pc = int(in.m[0]);
        return Flow::jumped;
      }
      // The group splits: g keeps the lanes that fall through. push_back may move g, so it comes last.
      Group taken{int(in.m[0]), mask, {}};
      g.mask = stay;
      g.pc = pc + 1;
      w.groups.push_back(taken);
      return Flow::jumped;
    }
    case OP_brx: {
      Val v;
      get(0, v, true, "branch index");
      std::map<int, u32> to;
      LANES(mask, l) {
        if (v[l] >= u64(in.m[1]))
          M.fatal("branch-index", &w, pc, "brx.idx index " + std::to_string(v[l]) + " is outside the list");
        to[int(M.prog.targets[in.m[0] + s64(v[l])])] |= 1u << l;
      }
      u32 stay = g.mask & ~mask;
      std::vector<Group> extra;
      for (auto& [t, lanes] : to) extra.push_back({t, lanes, {}});
      if (stay) {
        g.mask = stay;
        g.pc = pc + 1;
      } else {
        g = extra.back();
        extra.pop_back();
      }
      for (auto& e : extra) w.groups.push_back(e);
      return Flow::jumped;
    }
    case OP_exit:
      c.live -= u32(__builtin_popcount(mask & ~w.exited));
      w.exited |= mask;
      g.mask &= ~mask;
      if (g.mask) g.pc = pc + 1;
      M.wake();
      return Flow::jumped;
    case OP_trap: M.fatal("trap", &w, pc, "the kernel executed trap");
    case OP_call:
      M.fatal("call", &w, pc,
              "a function is called that this module has no body of (an assertion or printf, say)");
    case OP_setmaxnreg: {
      aligned();
      int want = int(lead(0, "register count"));
      bool inc = in.m[0];
      if (want % 8 || want < 24 || want > 256)
        M.find("setmaxnreg-value", true, &w, pc,
               "setmaxnreg " + std::to_string(want) + " is not a multiple of 8 in 24 to 256");
      // maxnreg 0: the launch did not state the registers per thread, so the pool is unknown.
      if (w.maxnreg && ((inc && want < w.maxnreg) || (!inc && want > w.maxnreg)))
        M.find("setmaxnreg-direction", true, &w, pc,
               std::string(inc ? "inc" : "dec") + " to " + std::to_string(want) + " from " +
                   std::to_string(w.maxnreg));
      // The CTA's pool is what it got at launch; inc waits until other warps have given back enough.
      if (w.maxnreg) {
        s64 more = s64(want - w.maxnreg) * 32;
        if (more > c.register_pool) {
          g.wait = {WaitKind::registers, u64(more)};
          return Flow::wait;
        }
        g.wait = {};
        c.register_pool -= more;
        w.maxnreg = want;
        M.wake();
      }
      return Flow::next;
    }
    case OP_warpsync: {
      u32 members = u32(lead(0, "member mask")), want = members & w.present & ~w.exited;
      if (mask & ~members)
        M.fatal("member-mask", &w, pc,
                "lanes " + hex(mask & ~members) +
                    " execute with a member mask that leaves them out: " + hex(members));
      if ((mask & want) != want) return g.wait = {WaitKind::converge, want}, Flow::wait;
      if (want == (w.present & ~w.exited)) return lanes_met(want), Flow::next;
      // Each lane of the mask is now ordered after what the others did, and after what they were ordered
      // after.
      u32 joined[32] = {};
      LANES(want, l) {
        for (u32 k = 0; k < 32; k++) joined[k] = std::max(joined[k], w.met[l][k]);
      }
      if (want & ~w.lagging) w.lagging &= ~want;
      LANES(want, l) joined[l] = w.icount;
      LANES(want, l) std::copy(joined, joined + 32, w.met[l]);
      return Flow::next;
    }
  }
  return Flow::next;
}

}  // namespace emu
