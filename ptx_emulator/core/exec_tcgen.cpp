// tcgen05, except for mma: tensor memory, its allocation, loads, stores and copies; fences and commit.
#include "tmem.hpp"

namespace emu {

// A collective of the two CTAs of a pair: true once both have arrived, and at once for cta_group::1.
static bool rendezvous(Machine& M, Group& g, Cta& c, int group, int what) {
  if (group != 2) return true;
  if (g.wait.kind == WaitKind::alloc) return true;  // both had arrived; the group waited for columns
  PairMeeting& m = c.cluster->meetings[{c.rank / 2, what}];
  if (g.wait.kind == WaitKind::pair) return m.generation != g.wait.b;
  if (++m.arrived == 2) {
    m.arrived = 0;
    m.generation++;
    M.wake();
    return true;
  }
  g.wait = {WaitKind::pair, u64(c.rank / 2) << 1 | u64(what), m.generation};
  return false;
}

Flow Exec::tcgen() {
  switch (in.op) {
    case OP_tc_alloc: {
      aligned();
      u64 addr = uniform(0, "address"), n = low(uniform(1, "column count"), 32);
      if (n < 32 || n > 512 || (n & (n - 1)))
        M.fatal("tmem-alloc", &w, pc,
                "allocation of " + std::to_string(n) + " columns: a power of two from 32 to 512 is needed");
      Tmem& t = tmem_of(c);
      if (t.relinquished) M.fatal("tmem-alloc", &w, pc, "tcgen05.alloc after the CTA gave up its permit");
      if (addr >= WIN_SHARED) addr -= WIN_SHARED;
      Loc l = M.shared_at(w, pc, addr, 4, 4, "tcgen05.alloc");
      // With cta_group::2 both CTAs of the pair take part: the second one to arrive allocates in both.
      int group = int(in.m[0]);
      std::vector<Cta*> pair{&c};
      if (group == 2) {
        if (c.cluster->ctas.size() % 2)
          M.fatal("cta-pair", &w, pc, "cta_group::2 in a cluster with an odd number of CTAs");
        pair.push_back(c.cluster->ctas[size_t(c.rank ^ 1)].get());
      }
      if (!rendezvous(M, g, c, group, 0)) return Flow::wait;
      int start = -1;
      if (t.granted >= 0) {
        start = t.granted;  // the other CTA of the pair arrived second and allocated
        t.granted = -1;
      } else {
        for (int s = 0; s + int(n) <= TMEM_COLS && start < 0; s += int(n)) {
          bool free = true;
          for (Cta* x : pair)
            for (int i = s; i < s + int(n); i++) free &= tmem_of(*x).owner[i] < 0;
          if (free) start = s;
        }
        if (start < 0) {
          g.wait = {WaitKind::alloc, u64(t.next)};
          return Flow::wait;
        }
        for (Cta* x : pair) {
          Tmem& y = tmem_of(*x);
          int id = y.next++;
          y.blocks[id] = {start, int(n)};
          y.alloc_pc[id] = pc;
          std::fill(y.owner + start, y.owner + start + int(n), id);
          // The content is undefined.
          for (int lane = 0; lane < TMEM_LANES; lane++)
            for (int i = start; i < start + int(n) && y.touched[lane]; i++)
              y.shadow[size_t(lane * TMEM_COLS + i)].w = 0;
          if (x != &c) y.granted = start;
        }
      }
      g.wait = {};
      M.note_write(l, 4, M.access(w, pc, EV_ALLOC), w, pc, "tcgen05.alloc");
      u32 v = u32(start);
      std::memcpy(l.p, &v, 4);
      M.wake();
      return Flow::next;
    }
    case OP_tc_dealloc: {
      aligned();
      u64 addr = uniform(0, "TMEM address"), n = low(uniform(1, "column count"), 32);
      Tmem& t = tmem_of(c);
      int col = int(addr & 0xFFFF), id = -1;
      for (auto& [k, b] : t.blocks)
        if (b.first == col && b.second == int(n)) id = k;
      if (id < 0 || addr >> 16)
        M.fatal(
            "tmem-dealloc", &w, pc,
            "tcgen05.dealloc of " + std::to_string(n) + " columns at " + hex(addr) + ": no such allocation");
      if (!rendezvous(M, g, c, int(in.m[0]), 1)) return Flow::wait;
      g.wait = {};
      // Freeing counts as a write: every access of the columns must be ordered before it.
      Access a = M.access(w, pc, EV_ASYNC);
      a.ta = &w.ta, a.either = true;
      for (int lane = 0; lane < TMEM_LANES; lane++) {
        if (!t.touched[lane]) continue;
        size_t at = 0;
        u32 other = 0;
        Conflict k = M.shadows.write(t.shadow.data() + lane * TMEM_COLS + col, n, a, at, other);
        if (k == Conflict::race)
          M.find("tmem-dealloc-in-use", true, &w, pc,
                 "tcgen05.dealloc of column " + std::to_string(col + int(at)) +
                     " is not ordered after an access of it: another CTA may get it while it is used",
                 &M.shadows.events[other]);
      }
      for (int i = col; i < col + int(n); i++) t.owner[i] = -1, t.freed[i] = true;
      t.blocks.erase(id);
      t.next++;
      M.wake();
      return Flow::next;
    }
    case OP_tc_relinquish:
      aligned();
      tmem_of(c).relinquished = true;
      return Flow::next;
    case OP_tc_fence:
      if (in.m[0]) {
        join(w.ta, w.clock.tc);
        w.snapshot.reset();
      } else {
        join(w.clock.tc, w.clock.hb);
        M.tick(w);
      }
      return Flow::next;
    case OP_tc_wait: {
      aligned();
      if (!in.m[0]) {
        complete_loads();
        return Flow::next;
      }
      w.clock.hb[w.actor + P_TST] = w.tst_clk;
      w.ta[w.actor + P_TST] = w.tst_clk;
      w.tst_clk++;
      w.snapshot.reset();
      return Flow::next;
    }
    case OP_tc_ld: case OP_tc_st: tc_ldst(); return Flow::next;
    case OP_tc_mma: tc_mma(); return Flow::next;
    case OP_tc_commit: tc_commit(); return Flow::next;
    case OP_tc_cp: tc_copy(); return Flow::next;
  }
  unsupported("this form of tcgen05");
}

void Exec::tc_ldst() {
  aligned();
  bool load = in.op == OP_tc_ld, packed = in.m[2];
  int shape = int(in.m[0]), repeat = int(in.m[1]), n = int(in.m[3]),
      split = int(std::clamp<s64>(in.m[4], -TMEM_COLS, TMEM_COLS));
  const char* what = load ? "tcgen05.ld" : "tcgen05.st";
  u64 addr = uniform(0, "TMEM address");
  int quarter = 32 * (w.index % 4), lane = int(addr >> 16 & 0xFFFF), col = int(addr & 0xFFFF);
  // A warp reaches only the quarter of the lanes that its number selects; lane 0 in the address means that
  // quarter.
  if (lane >= 32 && lane / 32 * 32 != quarter)
    M.fatal("tmem-lane", &w, pc,
            std::string(what) + " at lane " + std::to_string(lane) + ", but warp " + std::to_string(w.index) +
                " only reaches lanes " + std::to_string(quarter) + " to " + std::to_string(quarter + 31));
  lane = quarter + lane % 32;
  int height = shape == 0 ? 32 : 16;
  if (lane % 32 + height > 32 || (lane % 16))
    M.fatal("tmem-lane", &w, pc,
            std::string(what) + " at lane " + std::to_string(lane) + " does not fit its shape");
  int per_row = shape == 0   ? repeat
                : shape == 1 ? 2 * repeat
                : shape == 2 ? 4 * repeat
                : shape == 3 ? 8 * repeat
                             : repeat;
  int cols = per_row * (packed ? 2 : 1);
  check_columns(M, w, pc, c, col, cols, what);
  if (shape == 4) check_columns(M, w, pc, c, col + split, cols, what);
  Tmem& t = tmem_of(c);
  Access a;
  a.clock = &w.clock;
  a.ta = &w.ta;
  a.event = M.shadows.event(c.cluster->index, w.actor + (load ? P_TLD : P_TST), load ? w.tld_clk : w.tst_clk,
                            pc, EV_ASYNC | EV_TCGEN);
  for (int r = 0; r < height; r++) {
    note_tmem(M, w, pc, c, lane + r, col, cols, a, !load, what);
    if (shape == 4) note_tmem(M, w, pc, c, lane + r, col + split, cols, a, !load, what);
  }
  auto cell = [&](int l, int r) -> Cell {
    switch (shape) {
      case 0: return {l, r};
      case 1: return {l / 4 + 8 * (l % 2), l / 2 % 2 + 2 * r};
      case 2: return {l / 4 + 8 * (r % 2), l % 4 + 4 * (r / 2)};
      case 3: return {l / 4 + 8 * (r / 2 % 2), r % 2 + 2 * (l % 4) + 8 * (r / 4)};
      default: return {l % 16, r + l / 16 * split};
    }
  };
  for (int r = 0; r < n; r++) {
    Val v;
    u64* d = nullptr;
    if (load) {
      d = dst(1 + r, ~0u);
      if (d) w.busy[size_t(o[1 + r].a)] = 1, w.tld_regs.push_back(int(o[1 + r].a));
    } else {
      get(1 + r, v);
    }
    for (int l = 0; l < 32; l++) {
      Cell k = cell(l, r);
      if (packed && shape == 4) unsupported("packed 16x32bx2");
      size_t at = size_t((lane + k.lane) * TMEM_COLS + col + (packed ? 2 * k.col : k.col));
      if (load) {
        u64 x = packed ? u64(t.data[at] & 0xFFFF) | u64(t.data[at + 1] & 0xFFFF) << 16 : u64(t.data[at]);
        if (d) d[l] = x;
      } else if (packed) {
        t.data[at] = u32(v[l] & 0xFFFF), t.data[at + 1] = u32(v[l] >> 16 & 0xFFFF);
      } else {
        t.data[at] = u32(v[l]);
      }
      if (!load && !(v.valid >> l & 1)) t.shadow[at].w = 0;  // the cell stays uninitialised
    }
  }
  if (!load) M.progress();
  (load ? M.stats.tmem_read : M.stats.tmem_written) += u64(n) * 128;
}

void Exec::tc_commit() {
  int group = int(in.m[0]);
  Val a, cast;
  get(0, a, true, "mbarrier address");
  if (in.m[1]) get(1, cast, true, "multicast mask");
  Machine* m = &M;
  Warp* wp = &w;
  int p = pc;
  u32 clk = w.tc_clk++, actor = w.actor + P_TC;
  auto at = M.fork(w);
  LANES(mask, l) {
    std::vector<u64> to;
    u64 addr = a[l] >= WIN_SHARED ? a[l] - WIN_SHARED : a[l];
    if (in.m[1]) {
      for (u64 r = 0; r < 16; r++)
        if (cast[l] >> r & 1) to.push_back((addr & 0xFFFFFF) | r << RANK_SHIFT);
      if (to.empty()) M.fatal("multicast-mask", &w, pc, "the multicast mask is empty");
    } else {
      to.push_back(addr);
    }
    for (u64 x : to) M.use_mbar(w, pc, x, "tcgen05.commit");
    M.launch_async(w.tc_queue[group], std::make_shared<AsyncOp>(AsyncOp{"tcgen05.commit", &w, pc, at, [=] {
      Clock k = *at;
      k.hb[actor] = std::max(k.hb[actor], clk);
      k.tc = k.hb;  // commit implies tcgen05.fence::before_thread_sync
      for (u64 x : to) m->mbar_arrive(m->mbar(*wp, p, x, "tcgen05.commit"), *wp, p, 1, &k);
      return true;
    }}));
  }
  M.tick(w);
}

// tcgen05.cp: copies rows of shared memory, laid out like a K-major operand, to lanes of tensor memory; some
// shapes replicate the rows.
void Exec::tc_copy() {
  if (mask & (mask - 1))
    M.find("mma-many-threads", true, &w, pc,
           std::to_string(__builtin_popcount(mask)) +
               " threads issue the same tcgen05.cp; one elected thread must");
  int group = int(in.m[0]), shape = int(in.m[1]), rows = int(in.m[2]), units = int(in.m[3]);
  u64 taddr = lead(0, "TMEM address"), sdesc = lead(1, "shared-memory descriptor");
  int col = int(taddr & 0xFFFF), first_rank = group == 2 ? c.rank & ~1 : c.rank;
  if (taddr >> 16) M.fatal("tmem-lane", &w, pc, "tcgen05.cp to lane " + std::to_string(taddr >> 16));
  if (group == 2 && c.cluster->ctas.size() % 2)
    M.fatal("cta-pair", &w, pc, "cta_group::2 in a cluster with an odd number of CTAs");
  // The lanes that receive row r.
  auto lanes = [shape](int r) -> std::vector<int> {
    switch (shape) {
      case 1: return {32 * r};                                              // 4x256b
      case 3: return {r, r + 64};                                           // 64x128b.warpx2::02_13
      case 4: return {64 * (r / 32) + r % 32, 64 * (r / 32) + r % 32 + 32}; // 64x128b.warpx2::01_23
      case 5: return {r, r + 32, r + 64, r + 96};                           // 32x128b.warpx4
      default: return {r};                                                  // 128x256b, 128x128b
    }
  };
  auto at = M.fork(w);
  auto ta_at = std::make_shared<VC>(w.ta);
  Machine* m = &M;
  Warp* wp = &w;
  Cta* cp = &c;
  int p = pc;
  u32 clk = w.tc_clk, actor = w.actor + P_TC;
  M.launch_async(w.tc_queue[group], std::make_shared<AsyncOp>(AsyncOp{"tcgen05.cp", &w, pc, at, [=] {
    Access smem = m->async_access(*wp, actor, clk, p, *at);
    Access tm = m->async_access(*wp, actor, clk, p, *at, EV_ASYNC | EV_TCGEN);
    tm.async = false, tm.ta = ta_at.get();
    SmemDesc d = smem_desc(*m, *wp, p, sdesc, true);
    for (int k = 0; k < group; k++) {
      Cta& cta = *cp->cluster->ctas[size_t(first_rank + k)];
      check_columns(*m, *wp, p, cta, col, 4 * units, "tcgen05.cp");
      Tmem& t = tmem_of(cta);
      for (int r = 0; r < rows; r++)
        for (int u = 0; u < units; u++) {
          Loc l = m->shared_at(*wp, p, k_major_unit(d, u64(r), u64(u)) | u64(first_rank + k) << RANK_SHIFT,
                               16, 16, "tcgen05.cp");
          m->note_read(l, 16, smem, *wp, p, "tcgen05.cp");
          for (int lane : lanes(r)) {
            note_tmem(*m, *wp, p, cta, lane, col + 4 * u, 4, tm, true, "tcgen05.cp");
            std::memcpy(&t.data[size_t(lane * TMEM_COLS + col + 4 * u)], l.p, 16);
          }
        }
    }
    return true;
  }}));
}

}  // namespace emu
