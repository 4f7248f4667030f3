// Named barriers, mbarriers, cluster barriers and fences.
#include "machine.hpp"

namespace emu {

bool named_complete(const Cta& c, const Named& b) {
  return b.arrived && b.arrived >= (b.expected ? b.expected : c.live);
}

void named_release(Named& b) {
  std::swap(b.last, b.cur);
  b.cur.clear();
  b.generation++;
  b.arrived = 0;
  b.out_count = b.red_count, b.out_and = b.red_and, b.out_or = b.red_or;
  b.red_count = 0, b.red_and = 1, b.red_or = 0;
  b.who.clear();
}

// The clock of a relaxed arrival: only what an earlier release fence or tcgen05.fence::before_thread_sync
// released.
Clock relaxed(const Warp& w) {
  Clock k = w.fenced.empty() ? Clock(w.clock.hb.size()) : w.fenced;
  join(k.tc, w.clock.tc);
  return k;
}

bool cluster_complete(const Cluster& cl) {
  u32 n = 0;
  for (auto& x : cl.ctas) n += x->live;
  return cl.arrived && cl.arrived >= n;
}

Flow Exec::barrier() {
  if (in.op == OP_cluster_arrive) {
    Cluster& cl = *c.cluster;
    if (w.cluster_arrived & mask)
      M.find("cluster-barrier-twice", true, &w, pc, "barrier.cluster.arrive twice with no wait between");
    w.cluster_arrived |= mask;
    w.cluster_gen = cl.generation;
    if (!in.m[0]) released(mask);
    cl.cur.join(in.m[0] ? relaxed(w) : w.clock);
    M.tick(w);
    cl.arrived += u32(__builtin_popcount(mask));
    M.progress();
    if (cluster_complete(cl)) cl.last = cl.cur, cl.cur = Clock(), cl.arrived = 0, cl.generation++, M.wake();
    return Flow::next;
  }
  if (in.op == OP_cluster_wait) {
    Cluster& cl = *c.cluster;
    if (mask & ~w.cluster_arrived)
      M.fatal("cluster-barrier-order", &w, pc, "barrier.cluster.wait without an arrive before it");
    if (cl.generation == w.cluster_gen) {
      g.wait = {WaitKind::cluster, cl.generation};
      return Flow::wait;
    }
    g.wait = {};
    w.cluster_arrived &= ~mask;
    lanes_met(mask);
    M.acquire(w, cl.last);
    return Flow::next;
  }
  u64 id = uniform(0, "barrier number");
  if (id > 15) M.fatal("barrier-number", &w, pc, "barrier " + std::to_string(id) + " does not exist");
  Named& b = c.bars[id];
  auto finish = [&] {
    g.wait = {};
    lanes_met(mask);
    M.acquire(w, b.last);
    if (in.m[0] == 2)
      if (u64* d = dst(2, ~0u))
        LANES(mask, l) d[l] = in.m[1] == 0 ? b.out_count : in.m[1] == 1 ? b.out_and : b.out_or;
  };
  if (g.wait.kind == WaitKind::bar) {
    finish();
    return Flow::next;
  }
  u32 want = has(1) ? u32(uniform(1, "barrier thread count")) : 0;
  if (has(1) && (!want || want % 32))
    M.fatal("barrier-count", &w, pc, "thread count " + std::to_string(want) + " is not a multiple of 32");
  if (b.arrived && b.expected != want)
    M.find("barrier-count", true, &w, pc,
           "barrier " + std::to_string(id) + " is used with " + std::to_string(want) +
               " threads while warp " + std::to_string(b.who.back().first) + " waits on it with " +
               std::to_string(b.expected) + " (0 means all)");
  b.expected = want;
  b.first_pc = b.first_pc < 0 ? pc : std::min(b.first_pc, pc);
  if (in.m[0] == 2) {
    Val p;
    get(3, p, true, "reduction predicate");
    LANES(mask, l) b.red_count += p[l] & 1, b.red_and &= u32(p[l] & 1), b.red_or |= u32(p[l] & 1);
  }
  b.cur.join(w.clock);
  released(mask);
  M.tick(w);
  b.arrived += u32(__builtin_popcount(mask));
  b.who.push_back({w.index, pc});
  M.progress();
  if (want && b.arrived > want)
    M.find("barrier-count", true, &w, pc,
           "more threads arrive at barrier " + std::to_string(id) + " than the " + std::to_string(want) +
               " it expects");
  bool full = named_complete(c, b);
  if (full) named_release(b), M.wake();
  if (in.m[0] == 1) return Flow::next;  // arrive does not wait
  if (full) {
    finish();
    return Flow::next;
  }
  w.count.barrier_waits++;
  g.wait = {WaitKind::bar, id, b.generation};
  return Flow::wait;
}

// ------------------------------------------------------------------------------------------ mbarrier
MBar& Machine::mbar(Warp& w, int pc, u64 addr, const char* what, u32* offset, Cta** owner) {
  if (addr >= WIN_SHARED) addr -= WIN_SHARED;
  Loc l = shared_at(w, pc, addr, 8, 8, what);
  auto it = l.cta->mbars.find(l.offset);
  if (it == l.cta->mbars.end() || !it->second.live)
    fatal("mbarrier-uninitialised", &w, pc,
          std::string(what) + " on shared offset " + std::to_string(l.offset) +
              ", where no mbarrier is initialised");
  if (offset) *offset = l.offset;
  if (owner) *owner = l.cta;
  return it->second;
}

// The mbarrier, for an operation that a thread issues on it. The operation counts as a read: the
// initialisation must be ordered before it, and another initialisation after it.
MBar& Machine::use_mbar(Warp& w, int pc, u64 addr, const char* what, u32* offset, Cta** owner) {
  u32 at;
  Cta* cta;
  MBar& b = mbar(w, pc, addr, what, &at, &cta);
  if (offset) *offset = at;
  if (owner) *owner = cta;
  size_t where = 0;
  u32 other = 0;
  Conflict k = shadows.read(cta->memory->shadow.data() + at, 8, access(w, pc, EV_ATOMIC), where, other);
  if (k == Conflict::race)
    conflict(k, w, pc, std::string(what) + " of the mbarrier at shared offset " + std::to_string(at), other,
             false);
  return b;
}

void Machine::mbar_settle(MBar& b) {
  if (b.pending || b.tx) return;
  b.phase++;
  b.pending = b.expected;
  b.done.join(b.cur);
  b.cur.clear();
  b.arrived_last.swap(b.arrived);
  b.arrived.clear();
  wake();
}

void Machine::mbar_arrive(MBar& b, Warp& w, int pc, u32 n, const Clock* k, PhaseCheck check) {
  if (n > b.pending)
    fatal("mbarrier-over-arrival", &w, pc,
          std::to_string(n) + " arrivals where " + std::to_string(b.pending) + " of " +
              std::to_string(b.expected) + " are pending in phase " + std::to_string(b.phase) +
              " (transaction bytes outstanding: " + std::to_string(b.tx) + ")");
  // An arrival counts for the current phase, and which phase that is must not depend on the interleaving.
  bool after = check == PhaseCheck::done || b.done.empty();
  if (!after && (check == PhaseCheck::clock || check == PhaseCheck::program)) {
    // A relaxed arrival carries less than its warp knows; the order of the arrival itself is that of the
    // warp.
    const VC& mine = k && check == PhaseCheck::clock ? k->hb : w.clock.hb;
    after = true;
    for (size_t i = 0; i < mine.size() && after; i++) after = mine[i] >= b.done.hb[i];
  }
  if (!after)
    find("mbarrier-unordered-arrival", cfg.strict_lapping != 0, &w, pc,
         "an arrival in phase " + std::to_string(b.phase) + " of an mbarrier (initialised @pc" +
             std::to_string(b.init_pc) + "@, " + std::to_string(b.expected) +
             " arrivals a phase) is not ordered after the end of the phase before, and may count for that");
  if (k) b.cur.join(*k);
  b.pending -= n;
  b.arrived.insert({w.cta->rank * 1000 + w.index, pc});
  progress();
  mbar_settle(b);
}

void Machine::mbar_tx(MBar& b, s64 delta, const Clock* k) {
  if (k) b.cur.join(*k);
  b.tx += delta;
  progress();
  mbar_settle(b);
}

// The phase that the warp has to wait for next: after the last one it saw complete, or, in its first wait,
// the phase that the parity means for a fresh barrier.
static s64 next_phase(const Warp& w, u64 key, u64 parity) {
  auto it = w.seen_phase.find(key);
  return it == w.seen_phase.end() ? (parity ? -1 : 0) : it->second + 1;
}

Flow Exec::mbarrier() {
  switch (in.op) {
    case OP_mbar_init: {
      Val a, n;
      get(0, a, true, "mbarrier address");
      get(1, n, true, "mbarrier count");
      LANES(mask, l) {
        u64 addr = a[l] >= WIN_SHARED ? a[l] - WIN_SHARED : a[l];
        Loc loc = M.shared_at(w, pc, addr, 8, 8, "mbarrier.init");
        u64 count = low(n[l], 32);
        if (!count || count > 1048575)
          M.fatal("mbarrier-count", &w, pc, "mbarrier.init with count " + std::to_string(count));
        MBar& b = loc.cta->mbars[loc.offset];
        loc.cta->mbars_from = std::min(loc.cta->mbars_from, loc.offset);
        loc.cta->mbars_to = std::max(loc.cta->mbars_to, loc.offset + 8);
        if (b.init_pc >= 0) M.note_mbar(loc.offset, b);
        // PTX: undefined behaviour at a location that holds a valid mbarrier, even one that is not in use.
        if (b.live)
          M.find("mbarrier-reinit", true, &w, pc,
                 "mbarrier.init of a barrier that stands: no mbarrier.inval of it lies between");
        b = MBar();
        M.note_write(loc, 8, M.access(w, pc), w, pc, "mbarrier.init");
        b.live = true;
        b.expected = b.pending = u32(count);
        b.init_pc = pc, b.init_warp = w.index;
        std::memset(loc.p, 0, 8);
      }
      M.wake();
      return Flow::next;
    }
    case OP_mbar_inval: {
      Val a;
      get(0, a, true, "mbarrier address");
      LANES(mask, l) {
        u32 off;
        Cta* owner;
        MBar& b = M.mbar(w, pc, a[l], "mbarrier.inval", &off, &owner);
        b.live = false;
        M.wake();
        owner->memory->shadow[off].w = 0;
      }
      return Flow::next;
    }
    case OP_mbar_arrive: {
      Val a, n;
      get(1, a, true, "mbarrier address");
      if (has(2)) get(2, n, true, "mbarrier operand");
      bool drop = in.m[0], expect = in.m[1];
      std::vector<u64> state(32);
      LANES(mask, l) {
        bool again = l != u32(first()) && a[l] == a[first()];  // lanes that share a barrier: one read of it
        MBar& b = again ? M.mbar(w, pc, a[l], "mbarrier.arrive") : M.use_mbar(w, pc, a[l], "mbarrier.arrive");
        state[l] = b.phase;
        u32 count = has(2) && !expect ? u32(n[l]) : 1;
        if (expect) b.tx += s64(low(n[l], 32));
        if (drop) b.expected -= count;
        // The lanes of one instruction are not ordered among each other.
        PhaseCheck check = !again                       ? (in.m[2] ? PhaseCheck::program : PhaseCheck::clock)
                           : state[l] == state[first()] ? PhaseCheck::done
                                                        : PhaseCheck::apart;
        Clock carried = in.m[2] ? relaxed(w) : Clock();
        M.mbar_arrive(b, w, pc, count, in.m[2] ? &carried : &w.clock, check);
      }
      if (!in.m[2]) released(mask);
      M.tick(w);
      if (u64* d = dst(0, ~0u)) LANES(mask, l) d[l] = state[l];
      return Flow::next;
    }
    case OP_mbar_tx: {
      Val a, n;
      get(0, a, true, "mbarrier address");
      get(1, n, true, "transaction bytes");
      LANES(mask, l) {
        MBar& b = M.use_mbar(w, pc, a[l], "mbarrier.expect_tx");
        s64 bytes = s64(low(n[l], 32));
        // expect_tx is no arrival: it never completes a phase.
        if (in.m[0] == 0) b.tx += bytes;
        else M.mbar_tx(b, -bytes, nullptr);
      }
      return Flow::next;
    }
    case OP_mbar_wait: {
      Val a, s;
      get(1, a, true, "mbarrier address");
      get(2, s, true, "mbarrier phase");
      bool try_wait = in.m[0], parity = in.m[1];
      u32 done = 0;
      int blocker = -1;
      u64 last_addr = ~u64(0), last_phase = 0;
      bool last_ok = false, lapped = false;
      LANES(mask, l) {
        u32 off;
        Cta* owner;
        MBar& b = M.mbar(w, pc, a[l], "mbarrier wait", &off, &owner);
        if (parity && s[l] > 1)
          M.fatal("mbarrier-parity", &w, pc, "phase parity " + std::to_string(s[l]) + " is neither 0 nor 1");
        bool ok = parity ? (b.phase & 1) != (s[l] & 1) : b.phase != s[l];
        u64 key = u64(owner->rank) << 32 | off;
        if (a[l] == last_addr && s[l] == last_phase) {
          ok = last_ok;  // the same question gets the same answer
        } else if (!ok && parity) {
          // Assume that the warp waits for every phase. With one bit of parity, a warp that comes a full
          // phase late waits for ever; the scheduler releases it when nothing else can run.
          s64 next = next_phase(w, key, s[l] & 1);
          lapped |= (next & 1) == s64(s[l] & 1) && s64(b.phase) >= next + 2;
          if (lapped && g.overtaken) {
            M.find("mbarrier-lapped", M.cfg.strict_lapping != 0, &w, pc,
                   "the mbarrier at shared offset " + std::to_string(off) + " has completed phase " +
                       std::to_string(next + 1) + " before this warp waited for phase " +
                       std::to_string(next) +
                       ": nothing in the program holds the barrier back for it, and by parity alone it would "
                       "wait for ever");
            ok = true;
          }
        }
        if (ok && parity) {
          s64 next = next_phase(w, key, s[l] & 1);
          if ((next & 1) == s64(s[l] & 1)) w.seen_phase[key] = next;
        }
        last_addr = a[l], last_phase = s[l], last_ok = ok;
        if (ok) done |= 1u << l;
        else if (blocker < 0) blocker = int(l);
      }
      // try_wait may give up at any time. Answering false at random catches programs that ignore the answer.
      bool gives_up = blocker >= 0 && try_wait && g.wait.kind != WaitKind::mbar &&
                      (M.cfg.sched == SCHED_RANDOM || M.cfg.sched == SCHED_ADVERSARIAL) && M.rng() % 4 == 0;
      if (blocker >= 0 && try_wait && !g.timed_out && !gives_up) {
        u32 off;
        Cta* owner;
        MBar& b = M.mbar(w, pc, a[blocker], "mbarrier wait", &off, &owner);
        if (g.wait.kind != WaitKind::mbar) w.count.barrier_waits++;
        g.wait = {WaitKind::mbar, u64(owner->rank) << 32 | off, b.phase, s[blocker]};
        g.lapped = lapped;
        return Flow::wait;
      }
      g.wait = {};
      g.timed_out = g.lapped = g.overtaken = false;
      if (blocker >= 0) w.count.spins++;
      lanes_met(done);
      last_addr = ~u64(0);
      bool acquired = false;
      LANES(done, l) {
        if (a[l] == last_addr) continue;
        last_addr = a[l];
        u32 off;
        Cta* owner;
        MBar& b = M.use_mbar(w, pc, a[l], "mbarrier wait", &off, &owner);
        // A fresh barrier's answer to the parity of the phase before its first is no wait.
        if (b.phase) b.awaited = std::max(b.awaited, parity ? b.phase : std::min(b.phase, s[l] + 1));
        if (!in.m[2]) {
          if (!acquired && b.phase) acquires(done), acquired = true;
          M.acquire(w, b.done);
        } else {
          w.pending_acquire[{u64(1) << 62 | u64(owner->rank) << 32 | off, c.cluster->index}].join(b.done);
          if (!b.done.empty()) join(w.clock.tc, b.done.tc);  // for a later tcgen05.fence::after_thread_sync
          w.snapshot.reset();
        }
      }
      if (u64* d = dst(0, ~0u)) LANES(mask, l) d[l] = done >> l & 1;
      return Flow::next;
    }
  }
  return Flow::next;
}

void Exec::fences() {
  if (in.op == OP_fence_proxy) {
    if (in.m[0] == 2) return;
    join(w.clock.px, w.clock.hb);
    if (in.m[0] == 1) w.fenced = w.clock;  // mbarrier initialisations become visible to the cluster
    M.tick(w);
    return;
  }
  if (in.op == OP_griddep) return;
  int sem = int(in.m[0]);
  if (sem == 2 || sem == 4) {
    for (auto& [key, k] : w.pending_acquire) M.acquire_from(w, key.second, k);
    w.pending_acquire.clear();
  }
  if (sem == 3 || sem == 4) {
    w.fenced = w.clock;
    M.tick(w);
  }
}

}  // namespace emu
