// tcgen05.mma: matrix products into tensor memory, with and without block scaling.
#include "sparse.hpp"
#include "tmem.hpp"

namespace emu {

// The first kind with block scaling, numbered as in isa/tensor.py.
static constexpr int KIND_MXF8F6F4 = 3;

// Decode and check the block-scaling fields of the instruction descriptor (PTX ISA, instruction descriptor).
Exec::Scaling Exec::scaling(u32 idesc) {
  int kind = int(in.m[1]), block = int(in.m[5]), factors = (kind == KIND_MXF8F6F4 ? 32 : 64) / block;
  Scaling s{block, int(idesc >> 29 & 3), int(idesc >> 4 & 3), (idesc >> 23 & 1) != 0};
  auto bad = [&](const std::string& why) {
    M.fatal("instruction-descriptor", &w, pc, "instruction descriptor " + hex(idesc) + ": " + why);
  };
  if (idesc >> 31)
    M.fatal("unsupported", &w, pc, "instruction descriptor " + hex(idesc) + " asks for K = 96");
  if (idesc >> 3 & 1 || idesc >> 6 & 1) bad("a reserved bit is set");
  for (int id : {s.id_a, s.id_b})
    if (id % factors)
      bad("scale factor id " + std::to_string(id) + ", where an instruction takes " +
          std::to_string(factors) + " bytes of four");
  if (!s.e8m0 && block == 32) bad("blocks of 32 are scaled by ue8m0");
  return s;
}

// Load the scale factors of an operand's rows. The factors of row r are bytes of one cell of tensor memory,
// in lane r % 32 of column r / 32, and replicated in all four quarters of the lanes. With `halves`, two
// quarters hold the first half of the rows and the other two the second half.
Scales load_scales(Machine& m, Warp& w, int pc, Cta& cta, int col, int id, int rows, int factors, bool e8m0,
                   bool halves, const Access& acc, const char* what) {
  Tmem& t = tmem_of(cta);
  int held = halves ? rows / 2 : rows, columns = (held + 31) / 32;
  check_columns(m, w, pc, cta, col, columns, what);
  Scales s;
  s.factors = factors;
  s.v.resize(size_t(rows * factors));
  s.bad.assign(size_t(rows), 0);
  for (int quarter = 0; quarter < 4; quarter++)
    for (int lane = 0; lane < 32; lane++) {
      int used = held / 32 + (lane < held % 32);
      if (used)
        note_tmem(m, w, pc, cta, 32 * quarter + lane, col, used, acc, false, what, !m.cfg.allow_uninit_mma);
    }
  bool told = false;
  for (int r = 0; r < rows; r++) {
    int first = halves && r >= held ? 2 : 0, k = r % held, last = halves ? first + 1 : 3;
    size_t at = size_t((32 * first + k % 32) * TMEM_COLS + col + k / 32);
    for (int q = first; q <= last; q++)
      s.bad[size_t(r)] |= !t.shadow[at + size_t(32 * (q - first) * TMEM_COLS)].w;
    for (int f = 0; f < factors; f++) {
      u32 v = t.data[at] >> (8 * (id + f)) & 255;
      for (int q = first + 1; q <= last && !told; q++)
        if ((t.data[at + size_t(32 * (q - first) * TMEM_COLS)] >> (8 * (id + f)) & 255) != v) {
          told = true;
          m.find("scale-factor-copies", true, &w, pc,
                 std::string(what) + ", row " + std::to_string(r) + ": lanes " +
                     std::to_string(32 * first + k % 32) + " and " + std::to_string(32 * q + k % 32) +
                     " of column " + std::to_string(col + k / 32) +
                     " hold different factors; every quarter of the lanes needs its copy");
        }
      s.v[size_t(r * factors + f)] = e8m0 ? ue8m0(v) : element(v & 127, TY_e4m3);
    }
  }
  return s;
}

void multiply_scaled(const Tile& a, const Tile& b, const Scales& fa, const Scales& fb, int block,
                     std::vector<float>& acc) {
  int depth = a.depth, n_rows = b.rows;
  for (int m = 0; m < a.rows; m++)
    for (int n = 0; n < n_rows; n++) {
      float& out = acc[size_t(m * n_rows + n)];
      for (int f = 0; f < depth / block; f++) {
        float sum = 0;
        for (int k = f * block; k < (f + 1) * block; k++)
          sum += a.v[size_t(m * depth + k)] * b.v[size_t(k * n_rows + n)];
        // In double: the product of the factors alone may exceed the range of f32.
        out += float(double(sum) * double(fa.v[size_t(m * fa.factors + f)]) *
                     double(fb.v[size_t(n * fb.factors + f)]));
      }
    }
}

// The column (index of K) of every stored element of 128 rows of A, from metadata in tensor memory (CUTLASS's
// tmem_e_frg). 8-bit elements: the row's lane holds four bits per chunk, in two columns. Wider elements: a
// cell has half of a row and, in its upper 16 bits, half of the row 8 below; the two halves of a row are in
// lanes 8 apart.
static std::vector<int> tmem_columns(Machine& m, Warp& w, int pc, Cta& cta, int col, int width, int K,
                                     const Access& acc) {
  const char* what = "tcgen05.mma.sp metadata";
  int chunk = width == 32 ? 2 : 4, chunks = K / chunk, cells = chunks / 8;
  check_columns(m, w, pc, cta, col, cells, what);
  Tmem& t = tmem_of(cta);
  for (int lane = 0; lane < 128; lane++) note_tmem(m, w, pc, cta, lane, col, cells, acc, false, what);
  std::vector<int> columns;
  u32 wrong = 0;
  for (int row = 0; row < 128; row++)
    for (int i = 0; i < chunks; i++) {
      int lane = width == 8 ? row : row % 8 + 8 * (i / 4) + row / 16 * 16, column = width == 8 ? i / 8 : 0;
      int bit = width == 8 ? 4 * (i % 8) : 4 * (i % 4) + 16 * (row / 8 % 2);
      u32 held = t.data[size_t(lane * TMEM_COLS + col + column)] >> bit & 15, first = held & 3,
          second = held >> 2;
      if (width == 32) {
        if (held != 0b0100 && held != 0b1110) wrong |= 1u << held;
        columns.push_back(chunk * i + (held == 0b1110));
        continue;
      }
      // The PTX ISA lists 0b0110 among the defined values, but only for tcgen05.mma.sp.
      if (first >= second && held != 0b0110) wrong |= 1u << held;
      columns.push_back(chunk * i + int(first)), columns.push_back(chunk * i + int(second));
    }
  report_metadata(m, w, pc, wrong, width, true);
  return columns;
}

// acc[m][n] += sum over j of a[m][j] * b[columns[m][j]][n] in fp32, in the order of j.
static void multiply_sparse(const Tile& a, const std::vector<int>& columns, const Tile& b,
                            std::vector<float>& acc) {
  for (int m = 0; m < a.rows; m++)
    for (int j = 0; j < a.depth; j++) {
      float x = a.v[size_t(m * a.depth + j)];
      const float* from = &b.v[size_t(columns[size_t(m * a.depth + j)] * b.rows)];
      float* to = &acc[size_t(m * b.rows)];
      for (int n = 0; n < b.rows; n++) to[n] += x * from[n];
    }
}

void Exec::tc_mma() {
  int group = int(in.m[0]), kind = int(in.m[1]);
  bool a_tmem = in.m[2], ws = in.m[3], sparse = in.m[6];
  if (mask & (mask - 1))
    M.find("mma-many-threads", true, &w, pc,
           std::to_string(__builtin_popcount(mask)) +
               " threads issue the same tcgen05.mma; one elected thread must");
  u64 daddr = lead(0, "TMEM address of D"), adesc = lead(1, "A operand"), bdesc = lead(2, "B descriptor");
  u32 idesc = u32(lead(3, "instruction descriptor"));
  bool accumulate = lead(4, "enable-input predicate") & 1;
  for (int i = 0; i < int(in.m[4]); i++)
    if (lead(5 + i, "disable-output-lane mask")) unsupported("tcgen05.mma with disabled output lanes");
  // Block scaling gives some bits of the instruction descriptor another meaning.
  Scaling sc;
  if (kind >= KIND_MXF8F6F4) sc = scaling(idesc);
  bool scaled = sc.block != 0;
  // In the 4-bit kinds B's format has two bits; the third belongs to sparsity.
  int cf = scaled ? 1 : idesc >> 4 & 3, af = idesc >> 7 & 7,
      bf = idesc >> 10 & (kind > KIND_MXF8F6F4 ? 3 : 7);
  int N = int(idesc >> 17 & 63) << 3, Mt = int(idesc >> 24 & 31) << 4;
  bool neg_a = idesc >> 13 & 1, neg_b = idesc >> 14 & 1, mn_a = idesc >> 15 & 1, mn_b = idesc >> 16 & 1;
  auto bad = [&](const std::string& why) {
    M.fatal("instruction-descriptor", &w, pc, "instruction descriptor " + hex(idesc) + ": " + why);
  };
  if (!scaled && idesc >> 30)
    M.fatal("unsupported", &w, pc, "instruction descriptor " + hex(idesc) + " asks for a shift");
  if (sparse != (idesc >> 2 & 1))
    bad(sparse ? "tcgen05.mma.sp, and bit 2 says that A is dense"
               : "bit 2 asks for sparsity, which is tcgen05.mma.sp's");
  const int selector = int(idesc & 3);
  auto type = [&](int f) -> int {
    if (kind == 0 && f <= 1) return f ? TY_bf16 : TY_f16;
    if (kind == 1 && f == 2) return TY_tf32;
    static const int small[] = {TY_e4m3, TY_e5m2, TY_none, TY_e2m3, TY_e3m2, TY_e2m1};
    if ((kind == 2 || kind == KIND_MXF8F6F4) && f <= 5 && f != 2) return small[f];
    if (kind > KIND_MXF8F6F4 && f == 1) return TY_e2m1;
    bad("operand format " + std::to_string(f) + " does not belong to this kind");
    return TY_none;
  };
  int ta = type(af), tb = type(bf);
  int stored = kind <= 1 ? 256 / TYPE_BITS[ta] : kind <= KIND_MXF8F6F4 ? 32 : 64;  // elements per row of A
  int K = sparse ? 2 * stored : stored;
  if (selector > (sparse && kind <= 1))
    bad("sparsity selector " + std::to_string(selector) +
        (sparse ? ", which this kind does not have" : " of a dense A"));
  if (cf > 1) bad("accumulator format " + std::to_string(cf));
  if (cf == 0 && kind == 1) bad("tf32 accumulates in f32 only");
  bool wide = kind <= KIND_MXF8F6F4;  // elements smaller than a byte are not packed densely
  if ((mn_a && TYPE_BITS[ta] < 8) || (mn_b && TYPE_BITS[tb] < 8)) bad("operands of 4 and 6 bits are K-major");
  if (scaled && group == 1 && Mt == 64) bad("M = 64 has no block scaling with cta_group::1");
  bool shape_ok = ws ? group == 1 && (Mt == 32 || Mt == 64 || Mt == 128) && (N == 64 || N == 128 || N == 256)
                     : group == 1 ? (Mt == 64 || Mt == 128) && N >= 8 && N <= 256
                                  : (Mt == 128 || Mt == 256) && N >= 16 && N <= 256 && N % 16 == 0;
  if (!shape_ok)
    bad("M = " + std::to_string(Mt) + ", N = " + std::to_string(N) + " is not a shape of " +
        (ws ? ".ws" : "cta_group::" + std::to_string(group)));
  int rows = group == 2 ? Mt / 2 : Mt, brows = group == 2 ? N / 2 : N,
      first_rank = group == 2 ? c.rank & ~1 : c.rank;
  if (group == 2 && c.cluster->ctas.size() % 2)
    M.fatal("cta-pair", &w, pc, "cta_group::2 in a cluster with an odd number of CTAs");
  if (group == 2 && c.rank & 1)
    M.find("cta-pair", true, &w, pc,
           "tcgen05.mma.cta_group::2 is issued by the odd CTA of the pair; its descriptors are relative to "
           "the issuing CTA");
  int dcols = rows == 128 ? N : ws || group == 2 ? (rows == 64 ? N / 2 : N / 4) : N;
  int dcol = int(daddr & 0xFFFF), dlane = int(daddr >> 16);
  if (dlane && !(rows == 64 && !ws && group == 1 && dlane == 16))
    M.fatal("tmem-lane", &w, pc, "D of tcgen05.mma at lane " + std::to_string(dlane));
  if (a_tmem && adesc >> 16 && (adesc >> 16 != 16 || rows == 128 || ws || group == 2))
    M.fatal("tmem-lane", &w, pc, "A of tcgen05.mma at lane " + std::to_string(adesc >> 16));
  if (a_tmem && wide && TYPE_BITS[ta] < 8) unsupported("an A of 4 or 6 bits in tensor memory");
  int meta_col = 0;
  if (sparse) {
    u64 meta = lead(5 + int(in.m[4]), "TMEM address of the metadata");
    if (rows != 128) unsupported("tcgen05.mma.sp with " + std::to_string(rows) + " rows in a CTA");
    if (!mn_b && bdesc >> 61 == 6) unsupported("tcgen05.mma.sp with a K-major B in a swizzle of 32 bytes");
    if (meta >> 16)
      M.fatal("tmem-lane", &w, pc, "metadata of tcgen05.mma.sp at lane " + std::to_string(meta >> 16));
    if (meta & 1 && kind <= 1) unsupported("metadata of tcgen05.mma.sp at an odd column");
    meta_col = int(meta & 0xFFFF) + selector;
  }
  u64 sfa = 0, sfb = 0;
  if (scaled) {
    sfa = lead(5, "TMEM address of A's scale factors") & 0x3FFFFFFF,
    sfb = lead(6, "TMEM address of B's scale factors") & 0x3FFFFFFF;
    if (sfa >> 16 || sfb >> 16)
      M.fatal("tmem-lane", &w, pc,
              "scale factors of tcgen05.mma at lane " + std::to_string(std::max(sfa, sfb) >> 16));
  }
  auto at = M.fork(w);
  auto ta_at = std::make_shared<VC>(w.ta);
  Machine* m = &M;
  Warp* wp = &w;
  Cta* cp = &c;
  int p = pc;
  u32 clk = w.tc_clk, actor = w.actor + P_TC;
  M.stats.mma_flops += u64(2) * u64(Mt) * u64(N) * u64(stored);
  M.launch_async(w.tc_queue[group], std::make_shared<AsyncOp>(AsyncOp{"tcgen05.mma", &w, pc, at, [=] {
    Access smem = m->async_access(*wp, actor, clk, p, *at);
    Access tm = m->async_access(*wp, actor, clk, p, *at, EV_ASYNC | EV_TCGEN);
    tm.async = false, tm.ta = ta_at.get();
    Cluster& cl = *cp->cluster;
    Tile b(N, K, true);
    SmemDesc bd = smem_desc(*m, *wp, p, bdesc, true);
    for (int r = 0; r < group; r++)
      load_smem_tile(*m, *wp, p, bd, first_rank + r, 0, b, r * brows, brows, tb, mn_b, smem,
                     "tcgen05.mma B operand", wide);
    if (neg_b) for (float& x : b.v) x = -x;
    for (int r = 0; r < group; r++) {
      Cta& cta = *cl.ctas[size_t(first_rank + r)];
      check_columns(*m, *wp, p, cta, dcol, dcols, "tcgen05.mma accumulator");
      Tmem& t = tmem_of(cta);
      // An A in tensor memory is read from the lanes that hold its sums. Where several groups of lanes hold
      // the rows of D, each with a share of the columns, each group has its own copy of A, and the copies may
      // differ.
      int parts = a_tmem ? lane_parts(rows, ws, group) : 1, share = N / parts;
      std::vector<Tile> as(size_t(parts), Tile(rows, stored));
      if (a_tmem) {
        int acol = int(adesc & 0xFFFF), es = TYPE_BITS[ta], cells = stored * es / 32, per = 128 / es;
        check_columns(*m, *wp, p, cta, acol, cells, "tcgen05.mma A operand");
        for (int part = 0; part < parts; part++) {
          Tile& a = as[size_t(part)];
          for (int i = 0; i < rows; i++) {
            int lane = accumulator(rows, N, i, part * share, ws, group).lane + int(adesc >> 16);
            size_t at_cell = size_t(lane * TMEM_COLS + acol);
            for (int q = 0; q < cells; q++)
              if (m->cfg.allow_uninit_mma && !t.shadow[at_cell + size_t(q)].w) a.bad[size_t(i)] = 1;
            note_tmem(*m, *wp, p, cta, lane, acol, cells, tm, false, "tcgen05.mma A operand",
                      !m->cfg.allow_uninit_mma);
            for (int k = 0; k < stored; k += per)
              convert_unit(reinterpret_cast<const u8*>(&t.data[at_cell + size_t(k * es / 32)]),
                           &a.v[size_t(i * stored + k)], ta, per);
          }
        }
      } else {
        load_smem_tile(*m, *wp, p, smem_desc(*m, *wp, p, adesc, true), first_rank + r, 0, as[0], 0, rows, ta,
                       mn_a, smem, "tcgen05.mma A operand", wide);
      }
      if (neg_a)
        for (Tile& a : as)
          for (float& x : a.v) x = -x;
      std::vector<float> acc(size_t(rows * N), 0.0f);
      std::vector<u8> bad_d(size_t(rows * N), 0), scale_bad(size_t(N), 0);
      std::vector<Run> runs = accumulator_runs(rows, N, ws, group, dlane, dcol);
      if (accumulate)
        for (const Run& run : runs) {
          const u32* from = &t.data[run.cell];
          float* to = &acc[size_t(run.m * N + run.n)];
          if (cf == 1) std::memcpy(to, from, 4 * size_t(run.count));
          else
            for (int n = 0; n < run.count; n++) to[n] = f16_f32(from[n]);
          for (int n = 0; n < run.count && m->cfg.allow_uninit_mma; n++)
            bad_d[size_t(run.m * N + run.n + n)] = !t.shadow[run.cell + size_t(n)].w;
        }
      for (const Run& run : runs) {
        int lane = int(run.cell) / TMEM_COLS, col = int(run.cell) % TMEM_COLS;
        if (accumulate)
          note_tmem(*m, *wp, p, cta, lane, col, run.count, tm, false, "tcgen05.mma accumulator (read)",
                    !m->cfg.allow_uninit_mma, false);
        note_tmem(*m, *wp, p, cta, lane, col, run.count, tm, true, "tcgen05.mma accumulator (write)");
      }
      Scales fa, fb;
      if (scaled) {
        // PTX ISA, scale factors: with 64 rows per CTA of a pair, lanes are split between the two halves of
        // N.
        bool halves = group == 2 && rows == 64;
        fa = load_scales(*m, *wp, p, cta, int(sfa), sc.id_a, rows, K / sc.block, sc.e8m0, false, tm,
                         "scale factor of A");
        fb = load_scales(*m, *wp, p, cta, int(sfb), sc.id_b, N, K / sc.block, sc.e8m0, halves, tm,
                         "scale factor of B");
        for (Tile& a : as)
          for (int i = 0; i < rows; i++) a.bad[size_t(i)] |= fa.bad[size_t(i)];
        for (int n = 0; n < N; n++) scale_bad[size_t(n)] = fb.bad[size_t(n)];
      }
      auto add = [&](const Tile& a, std::vector<float>& sums) {
        scaled ? multiply_scaled(a, b, fa, fb, sc.block, sums) : multiply(a, b, sums);
      };
      std::vector<float> before;
      if (parts > 1) before = acc;
      if (sparse)
        multiply_sparse(as[0],
                        tmem_columns(*m, *wp, p, cta, meta_col, TYPE_BITS[ta] < 8 ? 8 : TYPE_BITS[ta], K, tm),
                        b, acc);
      else add(as[0], acc);
      for (int part = 1; part < parts; part++) {
        const Tile& a = as[size_t(part)];
        if (!std::memcmp(a.v.data(), as[0].v.data(), 4 * a.v.size())) continue;
        std::vector<float> own = before;
        add(a, own);
        for (int i = 0; i < rows; i++) {
          auto from = own.begin() + i * N + part * share;
          std::copy(from, from + share, acc.begin() + i * N + part * share);
        }
      }
      for (const Run& run : runs) {
        const float* from = &acc[size_t(run.m * N + run.n)];
        u32* to = &t.data[run.cell];
        if (cf == 1) std::memcpy(to, from, 4 * size_t(run.count));
        else
          for (int n = 0; n < run.count; n++) to[n] = encode(from[n], F16);
        for (int n = 0; n < run.count; n++)
          if (bad_d[size_t(run.m * N + run.n + n)] | as[size_t(run.n / share)].bad[size_t(run.m)] |
              b.bad[size_t(run.n + n)] | scale_bad[size_t(run.n + n)])
            t.shadow[run.cell + size_t(n)].w = 0;
      }
    }
    return true;
  }}));
}

}  // namespace emu
