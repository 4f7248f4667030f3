// mma.sync.
#include "sparse.hpp"

namespace emu {

namespace {

// Hopper multiplies 8-bit floats as f16: first elements 0 and 1 of every four along K, then elements 2 and 3;
// C is added last.
void multiply_fp8(const float* a, const float* b, float* c, int M, int N, int K, bool f16) {
  Factors factors;
  float sum[16 * 8] = {}, half_a[16 * 16], half_b[16 * 8];
  for (int part = 0; part < 2; part++) {
    for (int k = 0; k < K / 2; k++) {
      int from = k / 2 * 4 + k % 2 + 2 * part;
      for (int m = 0; m < M; m++) half_a[m * (K / 2) + k] = a[m * K + from];
      for (int n = 0; n < N; n++) half_b[k * N + n] = b[from * N + n];
    }
    split_factors(half_b, TY_f16, N, K / 2, factors);
    hopper_multiply(half_a, TY_f16, factors, sum, M, N, K / 2, hopper_sums(TY_f16, f16));
  }
  for (int i = 0; i < M * N; i++) {
    float x = canonical(sum[i] + c[i]);
    c[i] = f16 ? f16_f32(encode(x, F16)) : x;
  }
}

}  // namespace

void Exec::mma() {
  aligned();
  int M_ = int(in.m[0]), N = int(in.m[1]), K = int(in.m[2]), acc = int(in.m[3]);
  int nd = int(in.m[4]), na = int(in.m[5]), nb = int(in.m[6]), ta = int(in.ty), tb = int(in.ty2);
  int width = TYPE_BITS[ta], E = 32 / width;
  const bool saturate = in.m[7] & 1;
  const Sparsity sparsity(in.m[7] >> 1);
  const int stored = sparsity.sparse ? K / 2 : K;  // elements per row of A
  if (M_ != 16 || N != 8 || stored * width > 256 || na != stored * width / 64 || nb != K * width / 128 ||
      nd != (acc == 1 ? 2 : 4))
    unsupported("mma with fragments of " + std::to_string(nd) + ", " + std::to_string(na) + " and " +
                std::to_string(nb) + " registers");
  std::vector<Val> a(na), b(nb), cc(nd);
  for (int i = 0; i < na; i++) get(nd + i, a[i], true, "A fragment");
  for (int i = 0; i < nb; i++) get(nd + na + i, b[i], true, "B fragment");
  for (int i = 0; i < nd; i++) get(nd + na + nb + i, cc[i], true, "C fragment");
  std::vector<int> columns;
  if (sparsity.sparse) {
    Val meta;
    get(2 * nd + na + nb, meta, false, "metadata");
    columns = sparse_columns(M, w, pc, meta.v, meta.valid, ta, K, sparsity);
  }
  float A[16 * 32], B[64 * 8], C[16 * 8];
  s64 CI[16 * 8];
  for (int t = 0; t < 32; t++) {
    int g4 = t / 4, q = t % 4;
    for (int r = 0; r < na; r++)
      for (int e = 0; e < E; e++)
        A[(g4 + 8 * (r & 1)) * stored + E * q + e + 4 * E * (r >> 1)] =
            element(u32(low(a[r][t] >> (width * e), width)), ta);
    for (int r = 0; r < nb; r++)
      for (int e = 0; e < E; e++)
        B[(E * q + e + 4 * E * r) * 8 + g4] = element(u32(low(b[r][t] >> (width * e), width)), tb);
    for (int i = 0; i < 4; i++) {
      int row = g4 + 8 * (i >> 1), col = 2 * q + (i & 1);
      if (acc == 0) C[row * 8 + col] = as_f32(cc[i][t]);
      else if (acc == 1) C[row * 8 + col] = f16_f32(u32(cc[i >> 1][t] >> (16 * (i & 1))));
      else CI[row * 8 + col] = sign_extend(cc[i][t], 32);
    }
  }
  bool fp8 = ta == TY_e4m3 || ta == TY_e5m2;
  if (acc == 2) {
    for (int m = 0; m < M_; m++)
      for (int n = 0; n < N; n++) {
        s64& sum = CI[m * 8 + n];
        for (int k = 0; k < stored; k++)
          sum += s64(A[m * stored + k]) *
                 s64(B[(sparsity.sparse ? columns[size_t(m * stored + k)] : k) * N + n]);
        if (saturate) sum = std::clamp<s64>(sum, INT32_MIN, INT32_MAX);
      }
  } else if (fp8 && sparsity.sparse) {
    float rows[32 * 8];
    for (int m = 0; m < M_; m++) {
      gather_rows(B, columns.data() + m * stored, stored, N, rows);
      multiply_fp8(A + m * stored, rows, C + m * N, 1, N, stored, acc == 1);
    }
  } else if (fp8) {
    multiply_fp8(A, B, C, M_, N, K, acc == 1);
  } else if (sparsity.sparse) {
    sparse_multiply(A, ta, columns.data(), B, tb, C, N, K, hopper_sums(ta, acc == 1));
  } else {
    Factors factors;
    split_factors(B, tb, N, K, factors);
    hopper_multiply(A, ta, factors, C, M_, N, K, hopper_sums(ta, acc == 1));
  }
  M.stats.mma_flops += u64(2) * M_ * N * stored;
  for (int i = 0; i < nd; i++) {
    u64* d = dst(i, ~0u);
    if (!d) continue;
    for (int t = 0; t < 32; t++) {
      int g4 = t / 4, q = t % 4;
      if (acc == 1)
        d[t] = u64(encode(C[(g4 + 8 * i) * 8 + 2 * q], F16)) |
               u64(encode(C[(g4 + 8 * i) * 8 + 2 * q + 1], F16)) << 16;
      else if (acc == 0) d[t] = bits(C[(g4 + 8 * (i >> 1)) * 8 + 2 * q + (i & 1)]);
      else d[t] = low(u64(CI[(g4 + 8 * (i >> 1)) * 8 + 2 * q + (i & 1)]), 32);
    }
  }
}

}  // namespace emu
