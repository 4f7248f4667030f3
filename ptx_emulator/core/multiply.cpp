// Matrix products in the arithmetic of the tensor cores, and the conversion of their operands. The order of
// each element's sum is fixed; several elements are computed side by side.
#include "operand.hpp"

// The loops below are compiled with and without AVX2, and the CPU selects at run time. The results are the
// same: the compiler fuses and reassociates nothing.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

namespace emu {

namespace {

using Eight = float __attribute__((vector_size(32), aligned(4), may_alias));

const Eight& eight(const float* p) { return *reinterpret_cast<const Eight*>(p); }
Eight& eight(float* p) { return *reinterpret_cast<Eight*>(p); }

// f16 to float like decode(), without a branch; every NaN becomes the quiet one.
inline u32 f16_bits(u32 h) {
  u32 magnitude = h & 0x7FFF, sign = (h & 0x8000) << 16;
  u32 finite = u32(bits(as_f32(u64(magnitude) << 13) * 0x1p112f));
  u32 special = magnitude == 0x7C00 ? 0x7F800000 : 0x7FC00000;
  return sign | (magnitude < 0x7C00 ? finite : special);
}

struct Table {
  float v[256];
  explicit Table(int ty) {
    for (u32 i = 0; i < 256; i++) v[i] = element(i, ty);
  }
};

}  // namespace

void convert_unit(const u8* from, float* to, int ty, int per) {
  int width = TYPE_BITS[ty];
  if (width == 16) {
    u16 raw[8];
    std::memcpy(raw, from, 16);
    u32 out[8];
    if (ty == TY_bf16)
      for (int e = 0; e < 8; e++) out[e] = u32(raw[e]) << 16;
    else
      for (int e = 0; e < 8; e++) out[e] = f16_bits(raw[e]);
    std::memcpy(to, out, 32);
    return;
  }
  static const Table e4m3(TY_e4m3), e5m2(TY_e5m2);
  if (ty == TY_e4m3 || ty == TY_e5m2) {
    const Table& table = ty == TY_e4m3 ? e4m3 : e5m2;
    for (int e = 0; e < 16; e++) to[e] = table.v[from[e]];
    return;
  }
  for (int e = 0; e < per; e++) {
    u32 raw = 0;
    if (width >= 8) {
      std::memcpy(&raw, from + e * (width / 8), size_t(width / 8));
    } else {
      u16 two = 0;  // an element may cross a byte boundary
      std::memcpy(&two, from + e * width / 8, e * width / 8 < 15 ? 2 : 1);
      raw = u32(low(two >> (e * width % 8), width));
    }
    to[e] = element(raw, ty);
  }
}

// c[m][n] += a[m][k] * b[k][n] in the order of k, in blocks of 4 rows and 16 columns.
WIDE void multiply(const float* a, const float* b, float* c, size_t M, size_t N, size_t K) {
  size_t m = 0, wide = N / 16 * 16;
  for (; m + 4 <= M; m += 4) {
    const float* a0 = a + m * K;
    for (size_t n = 0; n < wide; n += 16) {
      float* c0 = c + m * N + n;
      Eight s00 = eight(c0), s01 = eight(c0 + 8), s10 = eight(c0 + N), s11 = eight(c0 + N + 8);
      Eight s20 = eight(c0 + 2 * N), s21 = eight(c0 + 2 * N + 8), s30 = eight(c0 + 3 * N),
            s31 = eight(c0 + 3 * N + 8);
      const float* row = b + n;
      for (size_t k = 0; k < K; k++, row += N) {
        Eight b0 = eight(row), b1 = eight(row + 8);
        float x0 = a0[k], x1 = a0[K + k], x2 = a0[2 * K + k], x3 = a0[3 * K + k];
        s00 += x0 * b0, s01 += x0 * b1;
        s10 += x1 * b0, s11 += x1 * b1;
        s20 += x2 * b0, s21 += x2 * b1;
        s30 += x3 * b0, s31 += x3 * b1;
      }
      eight(c0) = s00, eight(c0 + 8) = s01, eight(c0 + N) = s10, eight(c0 + N + 8) = s11;
      eight(c0 + 2 * N) = s20, eight(c0 + 2 * N + 8) = s21, eight(c0 + 3 * N) = s30,
                     eight(c0 + 3 * N + 8) = s31;
    }
    for (size_t i = 0; i < 4; i++)
      for (size_t k = 0; k < K; k++)
        for (size_t n = wide; n < N; n++) c[(m + i) * N + n] += a0[i * K + k] * b[k * N + n];
  }
  for (; m < M; m++)
    for (size_t k = 0; k < K; k++)
      for (size_t n = 0; n < N; n++) c[m * N + n] += a[m * K + k] * b[k * N + n];
}

void multiply(const Tile& a, const Tile& b, std::vector<float>& acc) {
  multiply(a.v.data(), b.v.data(), acc.data(), size_t(a.rows), size_t(b.rows), size_t(a.depth));
}

namespace {

constexpr int NOTHING = -10000;  // the exponent of zero
constexpr int MAX_M = 16;

int least_exponent(int ty) { return ty == TY_f16 || ty == TY_e5m2 ? -14 : ty == TY_e4m3 ? -6 : -126; }

using Ints = int __attribute__((vector_size(32), aligned(4), may_alias));
using FourInts = int __attribute__((vector_size(16), aligned(4), may_alias));
using FourLongs = s64 __attribute__((vector_size(32), may_alias));
using FourDoubles = double __attribute__((vector_size(32), may_alias));
using FourFloats = float __attribute__((vector_size(16), aligned(4), may_alias));

Ints& ints(int* p) { return *reinterpret_cast<Ints*>(p); }
const Ints& ints(const int* p) { return *reinterpret_cast<const Ints*>(p); }
Ints as_ints(Eight x) { return reinterpret_cast<Ints&>(x); }
Eight as_floats(Ints x) { return reinterpret_cast<Eight&>(x); }

inline bool any(Ints x) {
  u64 word[4];
  std::memcpy(word, &x, 32);
  return word[0] | word[1] | word[2] | word[3];
}

inline Ints not_finite(Eight x) { return (as_ints(x) & 0x7F800000) == 0x7F800000; }

// Split numbers into mantissa and exponent as their format stores them: subnormal numbers have the least
// exponent. Numbers that are not finite count as zero.
inline void split(Eight x, int least, Eight& m, Ints& e) {
  Ints u = as_ints(x), magnitude = u & 0x7FFFFFFF, stored = (magnitude >> 23) - 127;
  Ints nothing = (magnitude == 0) | (stored == 128), normal = (stored >= least) & (stored > -127);
  Eight small = x * as_f32(u64(127 - least) << 23);
  Ints mantissa = normal ? (u & int(0x807FFFFF)) | 0x3F800000 : as_ints(small);
  m = as_floats(nothing ? Ints{} : mantissa);
  e = nothing ? Ints{} + NOTHING : normal ? stored : Ints{} + least;
}

// Eight products of mantissas, shifted by e and truncated to integers.
inline Ints kept(Eight product, Ints e) {
  Ints bottom = Ints{} - 100, scale = ((e > bottom ? e : bottom) + 127) << 23;
  return __builtin_convertvector(product * as_floats(scale), Ints);
}

// The range of exponents; numbers that are zero or not finite do not count.
struct Range {
  Ints low = Ints{} + 1000, high = Ints{} - 1000;
  void add(Ints e) {
    Ints counted = e == NOTHING ? Ints{} + 1000 : e;
    low = counted < low ? counted : low, high = e > high ? e : high;
  }
  int least() const {
    int x = low[0];
    for (int i = 1; i < 8; i++) x = std::min(x, low[i]);
    return x;
  }
  int most() const {
    int x = high[0];
    for (int i = 1; i < 8; i++) x = std::max(x, high[i]);
    return x;
  }
};

// The exact sums of four products and accumulators, with the fraction truncated, scaled by two to the
// exponent.
inline FourDoubles sums(const int* products, const int* added, const int* exponents, s64 fraction) {
  auto four = [](const int* p) { return *reinterpret_cast<const FourInts*>(p); };
  FourDoubles exact = __builtin_convertvector(four(products), FourDoubles) +
                      __builtin_convertvector(four(added), FourDoubles);
  FourLongs cut = reinterpret_cast<FourLongs&>(exact) & fraction;
  FourLongs scale = (__builtin_convertvector(four(exponents), FourLongs) + 1023) << 52;
  return reinterpret_cast<FourDoubles&>(cut) * reinterpret_cast<FourDoubles&>(scale);
}

}  // namespace

WIDE void split_factors(const float* b, int tb, int N, int K, Factors& into) {
  Range range;
  for (int n = 0; n < N; n++) into.odd[n] = 0;
  for (int k = 0; k < K; k++)
    for (int n = 0; n < N; n += 8) {
      const int at = k * N + n;
      split(eight(b + at), least_exponent(tb), eight(into.m + at), ints(into.e + at));
      range.add(ints(into.e + at));
      ints(into.odd + n) |= not_finite(eight(b + at));
    }
  into.v = b, into.least = range.least(), into.most = range.most();
}

WIDE void hopper_multiply(const float* a, int ta, const Factors& of_b, float* c, int M, int N, int K,
                          Summation how) {
  float am[MAX_M * MAX_K];
  int ae[MAX_M * MAX_K];
  const float *b = of_b.v, *bm = of_b.m;
  const int *be = of_b.e, *odd_b = of_b.odd;
  Range of_a;
  for (int i = 0; i < M * K; i += 8) {
    split(eight(a + i), least_exponent(ta), eight(am + i), ints(ae + i));
    of_a.add(ints(ae + i));
  }
  // Is every product of two numbers zero or normal?
  const bool plain = of_a.least() + of_b.least >= -126 && of_a.most() + of_b.most <= 125;
  const s64 fraction = how.keep ? s64(~u64(0) << (52 - how.keep)) : -1;
  for (int m = 0; m < M; m++) {
    const float* factor = am + m * K;
    const int* exponent = ae + m * K;
    bool odd_a = false;
    for (int k = 0; k < K; k++) odd_a |= !std::isfinite(a[m * K + k]);
    for (int n = 0; n < N; n += 8) {
      float* out = c + m * N + n;
      Eight mantissa;
      Ints own, sum = {};
      split(eight(out), -126, mantissa, own);
      Ints most = own;
      for (int k = 0; k < K; k++) {
        Ints e = ints(be + k * N + n) + exponent[k];
        most = e > most ? e : most;
      }
      // The product of two mantissas fits into a float, before and after truncation, and the sum fits into 32
      // bits. If all products and the scale are normal numbers, multiply the numbers themselves, with one
      // scale for all.
      const Ints power = how.bits - most;
      if (plain && !any((power < -126) | (power > 127))) {
        const Eight scaled = as_floats((power + 127) << 23);
        for (int k = 0; k < K; k++)
          sum += __builtin_convertvector(a[m * K + k] * eight(b + k * N + n) * scaled, Ints);
      } else
        for (int k = 0; k < K; k++)
          sum +=
              kept(factor[k] * eight(bm + k * N + n), ints(be + k * N + n) + (exponent[k] + how.bits) - most);
      own = kept(mantissa, own + how.bits - most);
      Ints scale = most - how.bits;
      scale = scale > -1000 ? scale : Ints{} - 1000;
      int products[8], added[8], scales[8];
      ints(products) = sum, ints(added) = own, ints(scales) = scale;
      FourDoubles x[2];
      for (int h = 0; h < 2; h++) x[h] = sums(products + 4 * h, added + 4 * h, scales + 4 * h, fraction);
      if (how.keep && !odd_a && !any(ints(odd_b + n) | not_finite(eight(out)) | (scale < -126))) {
        for (int h = 0; h < 2; h++)
          *reinterpret_cast<FourFloats*>(out + 4 * h) = __builtin_convertvector(x[h], FourFloats);
        continue;
      }
      for (int i = 0; i < 8; i++) {
        double s = x[i / 4][i % 4];
        if (odd_a || odd_b[n + i] || !std::isfinite(out[i])) {
          s = out[i];  // a product of finite floats is finite in double: infinities come from infinities only
          for (int k = 0; k < K; k++) s += double(a[m * K + k]) * double(b[k * N + n + i]);
          out[i] = canonical(float(s));
        } else if (!how.keep) {
          out[i] = f16_f32(encode_double(s, F16));
        } else {
          if (std::fabs(s) < 0x1p-126) s = std::trunc(s * 0x1p149) * 0x1p-149;
          out[i] = s == 0 ? 0.0f : float(s);  // never -0
        }
      }
    }
  }
}

}  // namespace emu
