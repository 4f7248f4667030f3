// The order of execution: which warp or asynchronous operation runs next, and what happens when nothing can.
#include "machine.hpp"

namespace emu {

Machine::Machine(const Config& cfg_, const Program& prog_, std::vector<u8> params_,
                 std::vector<Region> regions_, std::vector<TensorMapRow> maps_, std::vector<s64> choices_)
    : cfg(cfg_), prog(prog_), params(std::move(params_)), rng(u64(cfg_.seed)), choices(std::move(choices_)) {
  for (auto& r : regions_) {
    regions.push_back(std::make_unique<GlobalRegion>());
    regions.back()->r = r;
    regions.back()->name = "@region" + std::to_string(regions.size() - 1) + "@";  // Python inserts the name
  }
  for (auto& t : maps_) maps[u64(t.address)] = t;
  total_clusters = 1;
  for (int i = 0; i < 3; i++) total_clusters *= cfg.grid[i] / cfg.cluster[i];
  reached.visits.resize(size_t(prog.size)), reached.ways.resize(size_t(prog.size));
  warp_totals.resize(size_t((cfg.block[0] * cfg.block[1] * cfg.block[2] + 31) / 32));
}

u64 Machine::choose(u64 n) {
  if (n <= 1) return 0;
  if (cfg.sched != SCHED_REPLAY) return rng() % n;
  size_t k = choice_log.size() / 2;
  u64 pick = k < choices.size() ? u64(choices[k]) % n : 0;
  choice_log.push_back(s64(pick));
  choice_log.push_back(s64(n));
  return pick;
}

void Machine::cluster_origin(s64 index, s64* id) const {
  s64 x = cfg.grid[0] / cfg.cluster[0], y = cfg.grid[1] / cfg.cluster[1];
  id[0] = index % x, id[1] = index / x % y, id[2] = index / (x * y);
}

s64 Machine::cancel_cluster() { return next_cluster < total_clusters ? next_cluster++ : -1; }

void Machine::start_cluster() {
  auto cl = std::make_unique<Cluster>();
  cl->index = next_cluster++;
  s64 per[3], id[3];
  for (int i = 0; i < 3; i++) per[i] = cfg.grid[i] / cfg.cluster[i];
  cluster_origin(cl->index, id);
  s64 threads = cfg.block[0] * cfg.block[1] * cfg.block[2], warps = (threads + 31) / 32;
  s64 size = cfg.cluster[0] * cfg.cluster[1] * cfg.cluster[2];
  constexpr u32 SLOTS_PER_CTA = 32;
  cl->slots_first = u32(size * warps * P_COUNT);
  cl->slot_clk.assign(size_t(size) * SLOTS_PER_CTA, 0);
  cl->actors = cl->slots_first + cl->slot_clk.size();
  for (s64 r = 0; r < size; r++) {
    auto c = std::make_unique<Cta>();
    c->cluster = cl.get();
    c->rank = int(r);
    s64 local[3] = {r % cfg.cluster[0], r / cfg.cluster[0] % cfg.cluster[1],
                    r / (cfg.cluster[0] * cfg.cluster[1])};
    for (int i = 0; i < 3; i++) c->id[i] = u32(id[i] * cfg.cluster[i] + local[i]);
    c->linear = int(c->id[0] + cfg.grid[0] * (c->id[1] + cfg.grid[1] * c->id[2]));
    c->live = u32(threads);
    size_t per_warp = size_t(cfg.registers) * 32;
    if (spare.empty()) {
      c->memory = std::make_unique<CtaMemory>(per_warp * size_t(warps), size_t(cfg.smem_end));
    } else {
      c->memory = std::move(spare.back());
      spare.pop_back();
      c->memory->clear();
    }
    c->warps.resize(size_t(warps));
    for (s64 k = 0; k < warps; k++) {
      Warp& w = c->warps[size_t(k)];
      w.cta = c.get();
      w.index = int(k);
      w.actor = u32((r * warps + k) * P_COUNT);
      w.regs = c->memory->registers.get() + per_warp * size_t(k);
      w.init.assign(size_t(cfg.registers), 0);
      w.busy.assign(size_t(cfg.registers), 0);
      w.written.assign(size_t(cfg.registers), 0);
      w.clock = Clock(cl->actors);
      w.clock.hb[w.actor] = 1;
      w.ta.assign(cl->actors, 0);
      w.maxnreg = int(cfg.regs_per_thread);
      s64 left = threads - k * 32;
      w.present = left >= 32 ? ~0u : (1u << left) - 1;
      w.groups.push_back({0, w.present, {}});
      auto put = [&](int sr, auto f) {
        w.init[sr] = ~0u;
        for (int l = 0; l < 32; l++) w.regs[sr * 32 + l] = u64(f(l)) & 0xFFFFFFFF;
      };
      auto same = [&](int sr, s64 v) { put(sr, [&](int) { return v; }); };
      put(SR_TID_X, [&](int l) { return (k * 32 + l) % cfg.block[0]; });
      put(SR_TID_Y, [&](int l) { return (k * 32 + l) / cfg.block[0] % cfg.block[1]; });
      put(SR_TID_Z, [&](int l) { return (k * 32 + l) / (cfg.block[0] * cfg.block[1]); });
      put(SR_LANEID, [&](int l) { return l; });
      put(SR_LM_EQ, [&](int l) { return s64(1) << l; });
      put(SR_LM_LT, [&](int l) { return (s64(1) << l) - 1; });
      put(SR_LM_LE, [&](int l) { return (s64(2) << l) - 1; });
      put(SR_LM_GT, [&](int l) { return ~((s64(2) << l) - 1); });
      put(SR_LM_GE, [&](int l) { return ~((s64(1) << l) - 1); });
      for (int i = 0; i < 3; i++) {
        same(SR_NTID_X + i, cfg.block[i]);
        same(SR_CTAID_X + i, c->id[i]);
        same(SR_NCTAID_X + i, cfg.grid[i]);
        same(SR_CLUSTERID_X + i, id[i]);
        same(SR_NCLUSTERID_X + i, per[i]);
        same(SR_CCTAID_X + i, local[i]);
        same(SR_CNCTAID_X + i, cfg.cluster[i]);
      }
      same(SR_WARPID, k);
      same(SR_NWARPID, 64);
      same(SR_SMID, c->linear);
      same(SR_NSMID, 148);
      same(SR_GRIDID, 1);
      same(SR_CCTARANK, r);
      same(SR_CNCTARANK, size);
      same(SR_EXPLICIT_CLUSTER, size > 1);
      same(SR_DYN_SMEM, cfg.dynamic_bytes);
      same(SR_TOTAL_SMEM, cfg.smem_end);
      same(SR_AGGR_SMEM, cfg.smem_end);
      same(SR_RSV_BEGIN, 0);
      same(SR_RSV_END, SMEM_RESERVED);
      same(SR_RSV_CAP, SMEM_RESERVED);
    }
    cl->ctas.push_back(std::move(c));
  }
  active.push_back(std::move(cl));
  progress();
}

void Machine::note_mbar(u32 offset, const MBar& b) {
  Reached::Barrier& r = reached.barriers[{0, b.init_pc, int(offset)}];
  r.expected = b.expected, r.phases = std::max(r.phases, b.phase), r.awaited = std::max(r.awaited, b.awaited);
}

void Machine::note_barriers(Cluster& cl) {
  for (auto& c : cl.ctas) {
    for (auto& [offset, b] : c->mbars)
      if (b.init_pc >= 0) note_mbar(offset, b);
    for (int i = 0; i < 16; i++) {
      const Named& b = c->bars[i];
      if (b.first_pc < 0) continue;
      Reached::Barrier& r = reached.barriers[{1, b.first_pc, i}];
      r.expected = b.expected, r.phases = r.awaited = std::max<u64>(r.phases, b.generation);
    }
  }
}

void Machine::finish_cluster(Cluster& cl) {
  note_barriers(cl);
  // All polling warps look again: `watched` must not keep pointers to warps of this cluster.
  for (auto& each : active) {
    each->touched = true;
    for (auto& c : each->ctas)
      for (auto& w : c->warps) w.polled = false;
  }
  watched.clear();
  for (auto& c : cl.ctas) {
    for (auto& w : c->warps) {
      Counters& t = warp_totals[size_t(w.index)];
      t.instructions += w.count.instructions, t.barrier_waits += w.count.barrier_waits,
          t.spins += w.count.spins;
      for (int i = 0; i < OP_COUNT; i++) t.by_op[i] += w.count.by_op[i];
      for (auto& b : w.bulk)
        if (!b->awaited) {
          Event store{w.actor, b->clk, b->pc, EV_ASYNC, cl.index, -1};
          find("exit-before-bulk-read", cfg.strict_exits != 0, &w, w.last_pc,
               "the CTA exits while a bulk store may still read its shared memory: the thread that issued it "
               "waits for no group that it belongs to",
               &store);
        }
    }
    if (c->tmem)
      for (auto& [id, block] : c->tmem->blocks)
        find("tmem-leak", true, &c->warps[0], c->tmem->alloc_pc[id],
             std::to_string(block.second) + " TMEM columns from " + std::to_string(block.first) +
                 " were never deallocated");
  }
}

// When no cluster runs, only the last writers of global memory matter; drop all other events of a large grid.
void Machine::compact() {
  if (shadows.events.size() < (1u << 20)) return;
  std::vector<u32> renamed(shadows.events.size(), 0);
  std::vector<Event> kept{shadows.events[0]};
  for (auto& r : regions) r->readers.clear();
  for (auto& r : regions)
    for (auto& page : r->pages) {
      if (!page) continue;
      for (Shadow& x : page->s) {
        if (!x.w) continue;
        u32& to = renamed[x.w];
        if (!to) {
          to = u32(kept.size());
          kept.push_back(shadows.events[x.w]);
        }
        x = {to, 0};
      }
    }
  shadows.events.swap(kept);
  shadows.forget_sets();
}

bool Machine::ready(Warp& w, Group& g) {
  switch (g.wait.kind) {
    case WaitKind::none: return true;
    case WaitKind::converge: return (g.wait.a & w.present & ~w.exited & ~g.mask) == 0;
    case WaitKind::bar: {
      Named& b = w.cta->bars[g.wait.a];
      // An exit of other threads may have completed the barrier.
      if (b.generation == g.wait.b && named_complete(*w.cta, b)) named_release(b);
      return b.generation != g.wait.b;
    }
    case WaitKind::mbar: {
      if (g.timed_out || g.overtaken) return true;
      auto& c = w.cta->cluster->ctas[g.wait.a >> 32];
      auto it = c->mbars.find(u32(g.wait.a));
      return it == c->mbars.end() || !it->second.live || it->second.phase != g.wait.b;
    }
    case WaitKind::cp_async: return !pending_group(w.cp_queue, g.wait.a);
    case WaitKind::wgmma: return !pending_group(w.wgmma_queue, g.wait.a);
    case WaitKind::bulk:
      for (auto& b : w.bulk)
        if (b->group <= g.wait.a && !(g.wait.b ? b->read_done : b->done)) return false;
      return true;
    case WaitKind::alloc: return w.cta->tmem && w.cta->tmem->next != int(g.wait.a);
    case WaitKind::registers: return s64(g.wait.a) <= w.cta->register_pool;
    case WaitKind::pair:
      return w.cta->cluster->meetings[{int(g.wait.a >> 1), int(g.wait.a & 1)}].generation != g.wait.b;
    case WaitKind::cluster: {
      Cluster& cl = *w.cta->cluster;
      if (cl.generation == g.wait.a && cluster_complete(cl))
        cl.last = cl.cur, cl.cur = Clock(), cl.arrived = 0, cl.generation++;
      return cl.generation != g.wait.a;
    }
  }
  return true;
}

int Machine::pick_group(Warp& w) {
  auto& gs = w.groups;
  if (gs.size() > 1) {
    for (size_t i = 0; i < gs.size(); i++)
      for (size_t j = i + 1; j < gs.size();) {
        auto mergeable = [](const Group& x) {
          return x.wait.kind == WaitKind::none || x.wait.kind == WaitKind::converge;
        };
        if (gs[i].pc == gs[j].pc && mergeable(gs[i]) && mergeable(gs[j])) {
          gs[i].mask |= gs[j].mask;
          gs[i].wait = {};
          gs.erase(gs.begin() + long(j));
        } else {
          j++;
        }
      }
  }
  int best = -1;
  bool rotate = w.streak > 512;  // a spinning loop must not starve the warp's other lanes
  for (size_t i = 0; i < gs.size(); i++) {
    if (gs[i].wait.kind != WaitKind::none && !ready(w, gs[i])) continue;
    if (best < 0) best = int(i);
    else if (rotate ? gs[i].pc > gs[size_t(best)].pc : gs[i].pc < gs[size_t(best)].pc) best = int(i);
  }
  if (rotate) w.streak = 0;
  return best;
}

bool Machine::runnable(Warp& w) {
  for (auto& g : w.groups)
    if (g.wait.kind == WaitKind::none || ready(w, g)) return true;
  // Groups that wait to converge may be able to merge.
  return w.groups.size() > 1 && pick_group(w) >= 0;
}

static bool aligned_op(const Instr& in) {
  switch (in.op) {
    case OP_ldmatrix: case OP_stmatrix: case OP_movmatrix: case OP_mma: case OP_setmaxnreg: case OP_wgmma:
    case OP_wgmma_fence: case OP_wgmma_commit: case OP_wgmma_wait: case OP_tc_alloc: case OP_tc_dealloc:
    case OP_tc_relinquish: case OP_tc_ld: case OP_tc_st: case OP_tc_wait:
      return true;
    case OP_cluster_arrive: case OP_cluster_wait: return in.m[1];
    case OP_bar: return in.m[2];
  }
  return false;
}

void Machine::note_event(const Warp& w, int pc, bool async) {
  trace.push_back({w.cta->linear, w.index, pc, int(async)});
  if (s64(trace.size()) > cfg.trace) trace.pop_front();
}

bool Machine::step(Warp& w) {
  w.cta->cluster->touched = w.moved = true;
  int k = pick_group(w);
  if (k < 0) return false;
  Group& g = w.groups[size_t(k)];
  int pc = g.pc;
  if (pc >= prog.size)
    fatal("ran-off-the-end", &w, int(prog.size) - 1, "execution ran past the last instruction");
  const Instr& in = prog.code[pc];
  // The next instruction, whose row is longer than a cache line.
  __builtin_prefetch(&in + 1), __builtin_prefetch(&(&in + 1)->guard);
  __builtin_prefetch(prog.ops(in) + in.count);
  u32 mask = g.mask;
  if (in.guard >= 0) {
    const u64* p = w.read(in.guard);
    u32 valid = w.init[size_t(in.guard)];
    if (mask & ~valid) find("uninit-register", true, &w, pc, "the guard predicate was never written");
    u32 on = 0;
    for (int l = 0; l < 32; l++) on |= u32(p[l] & 1) << l;
    mask &= in.negated ? ~on : on;
  }
  executed++;
  w.icount++;
  w.last_pc = pc;
  if (w.groups.size() > 1) w.streak++;
  if (!mask) {  // the guard is false in every lane
    w.count.instructions++;
    w.count.by_op[in.op]++;
    reached.ways[size_t(pc)] |= 2;
    g.pc++;
    return true;
  }
  if (in.op == OP_bra || in.op == OP_brx) reached.ways[size_t(pc)] |= g.mask & ~mask ? 3 : 1;
  u32 alive = w.present & ~w.exited;
  if (g.mask != alive && aligned_op(in)) {  // wait for the lanes that a branch took elsewhere
    retries++, w.icount--;
    g.wait = {WaitKind::converge, alive};
    return pick_group(w) >= 0;
  }
  w.count.instructions++;
  w.count.by_op[in.op]++;
  if (cfg.trace) note_event(w, pc, false);
  reached.visits[size_t(pc)]++;
  Exec x{*this, *w.cta, w, g, in, prog.ops(in), pc, mask};
  switch (x.run()) {
    case Flow::next: w.groups[size_t(k)].pc = pc + 1; break;
    case Flow::jumped:
      w.groups.erase(std::remove_if(w.groups.begin(), w.groups.end(), [](const Group& y) { return !y.mask; }),
                     w.groups.end());
      break;
    case Flow::wait:
      retries++, w.icount--, w.count.instructions--, w.count.by_op[in.op]--;
      if (!trace.empty() && !trace.back().async) trace.pop_back();  // the retry will be traced
      reached.visits[size_t(pc)]--;
      return ready(w, w.groups[size_t(k)]);
  }
  return !w.groups.empty();
}

// ------------------------------------------------------------------------------------------ async
void Machine::launch_async(std::deque<AsyncRef>& q, AsyncRef op) {
  stats.async_ops++;
  op->warp->queued++;
  q.push_back(std::move(op));
  if (cfg.async_policy == ASYNC_EARLY)
    while (run_one_async(q)) {}
}

void Machine::launch_pool(Cluster& c, AsyncRef op) {
  stats.async_ops++;
  c.pool.push_back(std::move(op));
  if (cfg.async_policy == ASYNC_EARLY)
    while (!c.pool.empty()) run_pool(c, c.pool.size() - 1);
}

bool Machine::run_one_async(std::deque<AsyncRef>& q) {
  if (q.empty()) return false;
  AsyncRef op = q.front();
  op->warp->cta->cluster->touched = op->warp->moved = true;
  if (cfg.trace) note_event(*op->warp, op->pc, true);
  if (op->step()) q.pop_front(), op->warp->queued--;
  progress();
  return true;
}

bool Machine::run_pool(Cluster& c, size_t i) {
  AsyncRef op = c.pool[i];
  c.touched = op->warp->moved = true;
  if (cfg.trace) note_event(*op->warp, op->pc, true);
  if (op->step()) c.pool.erase(std::find(c.pool.begin(), c.pool.end(), op));
  progress();
  return true;
}

void Machine::collect_async() {
  async_queues.clear(), async_pool.clear();
  for (auto& cl : active) {
    for (size_t i = 0; i < cl->pool.size(); i++) async_pool.push_back({cl.get(), i});
    async_queues.insert(async_queues.end(), cl->queues.begin(), cl->queues.end());
  }
}

// Run the next part of asynchronous operation k of those that were collected.
void Machine::run_async(size_t k) {
  if (k < async_queues.size()) {
    run_one_async(*async_queues[k]);
    return;
  }
  auto [cluster, i] = async_pool[k - async_queues.size()];
  run_pool(*cluster, i);
}

// Find what can run in a cluster; this depends only on the cluster's own warps and asynchronous operations.
void Machine::look(Cluster& cl) {
  if (!cl.touched) return;
  cl.touched = false;
  cl.runnable.clear(), cl.polling.clear(), cl.queues.clear();
  for (auto& c : cl.ctas)
    for (auto& w : c->warps) {
      if (w.moved || w.seen_wakes != wakes) {
        w.moved = false, w.seen_wakes = wakes;
        w.can_run = !w.done() && runnable(w);
      }
      if (w.can_run) (w.polled ? cl.polling : cl.runnable).push_back(&w);
      if (!w.queued) continue;
      if (!w.cp_queue.empty()) cl.queues.push_back(&w.cp_queue);
      if (!w.wgmma_queue.empty()) cl.queues.push_back(&w.wgmma_queue);
      for (auto& q : w.tc_queue)
        if (!q.empty()) cl.queues.push_back(&q);
    }
}

static bool visible(s64 op) {
  return op >= OP_ld || op == OP_exit || (op >= OP_shfl && op <= OP_elect);
}

static const u64 STALLED = 4096;  // after so many instructions without progress, polling warps run too

void Machine::loop() {
  size_t turn = 0, next_warp = 0;
  std::vector<Warp*> can, polling, fast;
  while (true) {
    for (size_t i = 0; i < active.size();) {
      Cluster& cl = *active[i];
      if (!cl.touched) {
        i++;
        continue;
      }
      bool all = true;
      for (auto& c : cl.ctas) {
        c->finished = !c->live;
        all &= c->finished;
      }
      if (all) {
        // Asynchronous work that nobody waits for still completes.
        bool busy = !cl.pool.empty();
        for (auto& c : cl.ctas)
          for (auto& w : c->warps)
            busy |= !w.cp_queue.empty() || !w.wgmma_queue.empty() || !w.tc_queue[1].empty() ||
                    !w.tc_queue[2].empty();
        if (busy) {
          finish_cluster(cl);  // now, so that it reports reads of shared memory that outlive the CTA
          for (auto& c : cl.ctas)
            for (auto& w : c->warps) w.bulk.clear(), w.count = Counters();
          while (!cl.pool.empty()) run_pool(cl, 0);
          for (auto& c : cl.ctas)
            for (auto& w : c->warps) {
              while (run_one_async(w.cp_queue)) {}
              while (run_one_async(w.wgmma_queue)) {}
              while (run_one_async(w.tc_queue[1]) || run_one_async(w.tc_queue[2])) {}
              if (c->tmem) c->tmem->blocks.clear();
            }
        } else {
          finish_cluster(cl);
        }
        for (auto& c : cl.ctas) spare.push_back(std::move(c->memory));
        active.erase(active.begin() + long(i));
        last_end = executed;
        progress();
      } else {
        i++;
      }
    }
    if (active.empty()) compact();
    while (active.size() < size_t(cfg.resident) && next_cluster < total_clusters) start_cluster();
    if (active.empty()) return;

    can.clear(), polling.clear();
    for (auto& cl : active) {
      look(*cl);
      can.insert(can.end(), cl->runnable.begin(), cl->runnable.end());
      polling.insert(polling.end(), cl->polling.begin(), cl->polling.end());
    }
    collect_async();
    size_t asyncs = async_queues.size() + async_pool.size();

    bool may_start = next_cluster < total_clusters && active.size() < size_t(cfg.max_resident);
    // CTAs that wait for others need those others to start: at once if all warps poll, else long before the
    // CTAs count as stuck.
    bool all_poll = can.empty() && !asyncs && !polling.empty();
    if (may_start && (all_poll || executed - last_progress > u64(cfg.stall_limit) / 16)) {
      start_cluster();
      continue;
    }
    // A warp may spin without being seen to poll, while it waits for a warp that polls.
    if (all_poll || executed - last_progress > STALLED) can.insert(can.end(), polling.begin(), polling.end());
    if (executed - last_progress > u64(cfg.stall_limit) * 16) deadlock();
    u64 ctas = active.size() * active[0]->ctas.size();
    bool endless = cfg.cta_limit && (executed - last_end) / ctas > u64(cfg.cta_limit);
    if (endless || (cfg.instruction_limit && executed > u64(cfg.instruction_limit)))
      fatal("instruction-limit", can.empty() ? nullptr : can[0], can.empty() ? -1 : can[0]->last_pc,
            "more than " +
                (endless ? std::to_string(cfg.cta_limit) + " warp instructions for each of the CTAs that run"
                         : std::to_string(cfg.instruction_limit) + " warp instructions") +
                " were executed: an endless loop, or give a higher instruction_limit");
    if (can.empty() && !asyncs) {
      if (may_start) {
        start_cluster();
        continue;
      }
      bool spin = false;
      for (auto& cl : active) cl->touched = true;
      wakes++;
      for (auto& cl : active)
        for (auto& c : cl->ctas)
          for (auto& w : c->warps)
            for (auto& g : w.groups)
              if (g.wait.kind == WaitKind::mbar && !g.timed_out) g.timed_out = true, spin = true;
      if (idle_progress != last_progress) idle_rounds = 0, idle_progress = last_progress;
      if (!spin || ++idle_rounds > 16) {
        bool freed = false;
        for (auto& cl : active)
          for (auto& c : cl->ctas)
            for (auto& w : c->warps)
              for (auto& g : w.groups)
                if (g.wait.kind == WaitKind::mbar && g.lapped) g.overtaken = freed = true;
        if (!freed) deadlock();
        progress();
      }
      continue;
    }

    Warp* w = nullptr;
    size_t quantum = 1;
    switch (cfg.sched) {
      case SCHED_LOCKSTEP:
        turn++;
        if (asyncs && (can.empty() || turn % 3 == 0)) break;
        w = can[next_warp++ % can.size()];
        quantum = 16;
        break;
      case SCHED_RANDOM: {
        static const size_t sizes[] = {1, 4, 20, 100, 500};
        if (asyncs && (can.empty() || (cfg.async_policy != ASYNC_LATE && rng() % 10 < 3))) break;
        w = can[rng() % can.size()];
        quantum = sizes[rng() % 5];
        break;
      }
      case SCHED_ADVERSARIAL: {
        bool stalled = executed - last_progress > STALLED;
        if (asyncs && (can.empty() || stalled || (cfg.async_policy == ASYNC_RANDOM && rng() % 10 < 3))) break;
        fast.clear();
        for (Warp* x : can)
          if (cfg.slow_warp < 0 || x->index != cfg.slow_warp) fast.push_back(x);
        // The slow warp runs when nothing else can, or when the others only spin.
        auto& from = fast.empty() || (stalled && rng() % 2) ? can : fast;
        w = from[rng() % from.size()];
        quantum = w->index == cfg.slow_warp ? 2 : 200;
        break;
      }
      default: {
        size_t k = size_t(choose(can.size() + asyncs));
        if (k >= can.size()) {
          run_async(k - can.size());
          continue;
        }
        w = can[k];
        // Run up to and including one instruction that others can observe.
        for (int i = 0; i < 4096; i++) {
          int g = pick_group(*w);
          if (g < 0) break;
          int pc = w->groups[size_t(g)].pc;
          bool last = pc < prog.size && visible(prog.code[pc].op);
          if (!step(*w) || last) break;
        }
        continue;
      }
    }
    if (!w) {
      run_async(cfg.sched == SCHED_LOCKSTEP ? 0 : size_t(choose(asyncs)));
      continue;
    }
    for (size_t i = 0; i < quantum; i++)
      if (!step(*w)) break;
  }
}

}  // namespace emu
