// mma.sync and wgmma.
#include "operand.hpp"

namespace emu {

void Exec::mma() {
  aligned();
  int M_ = int(in.m[0]), N = int(in.m[1]), K = int(in.m[2]), acc = int(in.m[3]);
  int nd = int(in.m[4]), na = int(in.m[5]), nb = int(in.m[6]), ta = int(in.ty), tb = int(in.ty2);
  int width = TYPE_BITS[ta], E = 32 / width;
  std::vector<Val> a(na), b(nb), cc(nd);
  for (int i = 0; i < na; i++) get(nd + i, a[i], true, "A fragment");
  for (int i = 0; i < nb; i++) get(nd + na + i, b[i], true, "B fragment");
  for (int i = 0; i < nd; i++) get(nd + na + nb + i, cc[i], true, "C fragment");
  float A[16][64], B[64][8], C[16][8];
  s64 CI[16][8];
  for (int t = 0; t < 32; t++) {
    int g4 = t / 4, q = t % 4;
    for (int r = 0; r < na; r++)
      for (int e = 0; e < E; e++) A[g4 + 8 * (r & 1)][E * q + e + 4 * E * (r >> 1)] = element(u32(low(a[r][t] >> (width * e), width)), ta);
    for (int r = 0; r < nb; r++)
      for (int e = 0; e < E; e++) B[E * q + e + 4 * E * r][g4] = element(u32(low(b[r][t] >> (width * e), width)), tb);
    for (int i = 0; i < 4; i++) {
      int row = g4 + 8 * (i >> 1), col = 2 * q + (i & 1);
      if (acc == 0) C[row][col] = as_f32(cc[i][t]);
      else if (acc == 1) C[row][col] = f16_f32(u32(cc[i >> 1][t] >> (16 * (i & 1))));
      else CI[row][col] = sign_extend(cc[i][t], 32);
    }
  }
  for (int m = 0; m < M_; m++)
    for (int n = 0; n < N; n++) {
      if (acc == 2) {
        for (int k = 0; k < K; k++) CI[m][n] += s64(A[m][k]) * s64(B[k][n]);
      } else {
        float s = C[m][n];
        for (int k = 0; k < K; k++) s += A[m][k] * B[k][n];
        C[m][n] = s;
      }
    }
  M.stats.mma_flops += u64(2) * M_ * N * K;
  for (int i = 0; i < nd; i++) {
    u64* d = dst(i, ~0u);
    if (!d) continue;
    for (int t = 0; t < 32; t++) {
      int g4 = t / 4, q = t % 4;
      if (acc == 1) d[t] = u64(encode(C[g4 + 8 * i][2 * q], F16)) | u64(encode(C[g4 + 8 * i][2 * q + 1], F16)) << 16;
      else if (acc == 0) d[t] = bits(C[g4 + 8 * (i >> 1)][2 * q + (i & 1)]);
      else d[t] = low(u64(CI[g4 + 8 * (i >> 1)][2 * q + (i & 1)]), 32);
    }
  }
}

}  // namespace emu
