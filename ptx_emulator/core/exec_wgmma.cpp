// wgmma: each warp of the warpgroup computes its 16 rows; groups complete asynchronously and in order.
#include "sparse.hpp"

namespace emu {

Flow Exec::wgmma() {
  aligned();
  switch (in.op) {
    case OP_wgmma_fence: w.wgmma_fence_at = w.icount; return Flow::next;
    case OP_wgmma_commit: w.wgmma_open++; return Flow::next;
    case OP_wgmma_wait: {
      u64 n = uniform(0, "group count"), target = w.wgmma_open - 1 >= n ? w.wgmma_open - 1 - n : 0;
      if (pending_group(w.wgmma_queue, target)) {
        g.wait = {WaitKind::wgmma, target};
        return Flow::wait;
      }
      g.wait = {};
      std::vector<std::pair<u64, int>> left;
      std::set<int> keep;
      for (auto& [group, reg] : w.wgmma_regs)
        if (group > target) left.push_back({group, reg}), keep.insert(reg);
      for (auto& [group, reg] : w.wgmma_regs)
        if (group <= target && !keep.count(reg)) w.busy[size_t(reg)] = 0;
      w.wgmma_regs.swap(left);
      u32& seen = w.clock.hb[w.actor + P_WGMMA];
      seen = std::max(seen, u32(target));
      w.snapshot.reset();
      return Flow::next;
    }
  }
  int N = int(in.m[0]), K = int(in.m[1]), nd = int(in.m[6]), ta = int(in.ty), tb = int(in.ty2);
  bool half = in.m[2], a_regs = in.m[3], trans_a = in.m[4] & 1, trans_b = in.m[4] & 2, neg_a = in.m[5] & 1,
       neg_b = in.m[5] & 2;
  const Sparsity sparsity(in.m[7]);
  const int stored = sparsity.sparse ? K / 2 : K;  // elements per row of A
  if (nd != (half ? N / 4 : N / 2))
    unsupported("wgmma with " + std::to_string(nd) + " accumulator registers for N = " + std::to_string(N));
  int at_b = nd + (a_regs ? 4 : 1);
  std::vector<int> d(nd), areg(4, -1);
  for (int i = 0; i < nd; i++) d[size_t(i)] = int(o[i].a);
  u64 adesc = 0, bdesc = uniform(at_b, "B descriptor");
  if (!a_regs) adesc = uniform(nd, "A descriptor");
  bool accumulate = uniform(at_b + 1, "scale-d") & 1;
  // Registers that other instructions accessed need a wgmma.fence before wgmma accesses them.
  if (!w.wgmma_fence_at)
    M.find("missing-wgmma-fence", true, &w, pc, "the warp's first wgmma comes before any wgmma.fence");
  // An accumulator that wgmma only overwrites needs no fence: compilers write copies to it.
  for (int r : d)
    if (accumulate && !w.busy[size_t(r)] && w.written[size_t(r)] > w.wgmma_fence_at)
      M.find("missing-wgmma-fence", true, &w, pc,
             "an accumulator register was written after the last wgmma.fence");
  u64 avals[4][32] = {};
  if (a_regs)
    for (int i = 0; i < 4; i++) {
      Val v;
      get(nd + i, v, true, "A fragment");
      areg[size_t(i)] = int(o[nd + i].a);
      if (!w.busy[size_t(areg[size_t(i)])] && w.written[size_t(areg[size_t(i)])] > w.wgmma_fence_at)
        M.find("missing-wgmma-fence", true, &w, pc, "a register of A was written after the last wgmma.fence");
      std::copy(v.v, v.v + 32, avals[i]);
    }
  if (accumulate)
    for (int r : d)
      if (w.init[size_t(r)] != ~0u && !w.busy[size_t(r)])
        M.find("uninit-register", true, &w, pc, "wgmma accumulates onto a register that was never written");
  std::vector<int> columns;
  if (sparsity.sparse) {
    // A row of B has 64 bytes then, and no document says where its second half is.
    if (!trans_b && bdesc >> 62 == 3)
      unsupported("wgmma.mma_async.sp with a K-major B in a swizzle of 32 bytes");
    Val meta;
    get(at_b + 2, meta, false, "metadata");
    columns = sparse_columns(M, w, pc, meta.v, meta.valid, ta, K, sparsity);
  }
  u64 group = w.wgmma_open;
  for (int r : d) w.busy[size_t(r)] = 2, w.wgmma_regs.push_back({group, r});
  for (int r : areg)
    if (r >= 0 && !w.busy[size_t(r)]) w.busy[size_t(r)] = 3, w.wgmma_regs.push_back({group, r});
  // wgmma reads shared memory through the asynchronous proxy.
  auto at = M.fork(w);
  Machine* m = &M;
  Warp* wp = &w;
  int p = pc;
  u32 actor = w.actor + P_WGMMA;
  std::vector<u64> a_copy;
  for (auto& row : avals) a_copy.insert(a_copy.end(), row, row + 32);
  M.launch_async(w.wgmma_queue, std::make_shared<AsyncOp>(AsyncOp{"wgmma", &w, pc, at, [=] {
    Access acc = m->async_access(*wp, actor, u32(group), p, *at);
    int row0 = 16 * (wp->index % 4), width = TYPE_BITS[ta], E = 32 / width;
    Tile a(16, stored);
    if (a_regs) {
      for (int t = 0; t < 32; t++)
        for (int r = 0; r < 4; r++)
          for (int e = 0; e < E; e++)
            a.v[size_t((t / 4 + 8 * (r & 1)) * stored + E * (t % 4) + e + 4 * E * (r >> 1))] =
                element(u32(low(a_copy[size_t(r * 32 + t)] >> (width * e), width)), ta);
    } else {
      load_smem_tile(*m, *wp, p, smem_desc(*m, *wp, p, adesc, false), wp->cta->rank, row0, a, 0, 16, ta,
                     trans_a, acc, "wgmma A operand");
    }
    std::vector<u8> raw_b, bad_b(static_cast<size_t>(N));
    read_smem_tile(*m, *wp, p, smem_desc(*m, *wp, p, bdesc, false), wp->cta->rank, 0, raw_b, bad_b, 0, N, K,
                   tb, trans_b, acc, "wgmma B operand");
    const HeldOperand* b =
        sparsity.sparse ? nullptr : &held_operand(*m, bdesc, wp->cta->rank, tb, N, K, trans_b, neg_b, raw_b);
    if (neg_a) for (float& x : a.v) x = -x;
    std::vector<float> c(size_t(16 * N), 0.0f);
    // Value i of thread t = 4g + q is in row g + 8 (i / 2 % 2) and column 2q + i % 2 + 8 (i / 4) of C. An f16
    // register holds two values, of adjacent columns.
    int values = half ? 2 : 1;
    auto each = [&](auto f) {
      for (int i = 0; i < nd * values; i++) {
        u64* reg = wp->regs + size_t(d[size_t(i / values)]) * 32;
        size_t at = size_t(8 * (i >> 1 & 1) * N + (i & 1) + 8 * (i >> 2));
        for (int g = 0; g < 8; g++)
          for (int q = 0; q < 4; q++) f(i, reg[4 * g + q], c[at + size_t(g * N + 2 * q)]);
      }
    };
    if (accumulate && half) each([](int i, u64& reg, float& x) { x = f16_f32(u32(reg >> (16 * (i & 1)))); });
    else if (accumulate) each([](int, u64& reg, float& x) { x = as_f32(reg); });
    if (b) {
      hopper_multiply(a.v.data(), ta, b->factors, c.data(), 16, N, K, hopper_sums(ta, half));
    } else {
      Tile whole(N, K, true);
      convert_smem_tile(raw_b.data(), whole, 0, N, tb, trans_b);
      if (neg_b) for (float& x : whole.v) x = -x;
      sparse_multiply(a.v.data(), ta, columns.data(), whole.v.data(), tb, c.data(), N, K,
                      hopper_sums(ta, half));
    }
    if (half)
      each([](int i, u64& reg, float& x) { reg = i & 1 ? reg | u64(encode(x, F16)) << 16 : encode(x, F16); });
    else each([](int, u64& reg, float& x) { reg = bits(x); });
    for (int i = 0; i < nd; i++) {
      u32 valid = ~0u;
      for (int t = 0; t < 32 && m->cfg.allow_uninit_mma; t++)
        for (int v = i * values; v < (i + 1) * values; v++)
          if (a.bad[size_t(t / 4 + 8 * (v >> 1 & 1))] || bad_b[size_t(2 * (t % 4) + (v & 1) + 8 * (v >> 2))])
            valid &= ~(1u << t);
      u32& init = wp->init[size_t(d[size_t(i)])];
      init = accumulate ? init & valid : valid;
    }
    m->stats.mma_flops += u64(2) * 16 * u64(N) * u64(stored);
    return true;
  }, group}));
  return Flow::next;
}

}  // namespace emu
