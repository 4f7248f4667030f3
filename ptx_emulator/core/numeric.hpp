// Number formats: encoding and decoding of small floats, directed rounding.
#pragma once
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>

#include "program.hpp"

namespace emu {

inline float as_f32(u64 v) {
  u32 b = u32(v);
  float f;
  std::memcpy(&f, &b, 4);
  return f;
}
inline u64 bits(float f) {
  u32 b;
  std::memcpy(&b, &f, 4);
  return b;
}
inline double as_f64(u64 v) {
  double f;
  std::memcpy(&f, &v, 8);
  return f;
}
inline u64 bits(double f) {
  u64 b;
  std::memcpy(&b, &f, 8);
  return b;
}

// Rounding modes of isa/alu.py.
enum Round : int { RN, RZ, RM, RP, RNA, RNI, RZI, RMI, RPI, RS };

struct Format {
  int ebits, mbits;
  bool inf;         // false (as in e4m3): an all-ones exponent holds numbers too, and only all ones is NaN
  bool nan = true;  // false (types of 4 and 6 bits): there is no NaN; encoding one gives the largest number
};
inline constexpr Format F16{5, 10, true}, BF16{8, 7, true}, TF32{8, 10, true}, E4M3{4, 3, false},
    E5M2{5, 2, true};
inline constexpr Format E2M1{2, 1, false, false}, E2M3{2, 3, false, false}, E3M2{3, 2, false, false};

// Encode a float, rounding once. Overflow gives infinity (NaN in e4m3) or, with satfinite, the largest
// number. Under RS the 16 random bits are added to the first 16 of the discarded bits, and a carry rounds up.
inline u32 encode(float x, const Format& f, bool satfinite = false, int rnd = RN, u32 random = 0) {
  u32 b = u32(bits(x)), sign = b >> 31, biased = b >> 23 & 255, frac = b & 0x7FFFFF;
  int width = 1 + f.ebits + f.mbits, bias = (1 << (f.ebits - 1)) - 1;
  u32 out_sign = sign << (width - 1);
  u32 max_exp = (1u << f.ebits) - 1;
  u32 nan = f.inf ? (max_exp << f.mbits | ((1u << f.mbits) - 1)) : (1u << (width - 1)) - 1;
  u32 largest = f.inf ? (((max_exp - 1) << f.mbits) | ((1u << f.mbits) - 1)) : f.nan ? nan - 1 : nan;
  u32 inf = f.inf ? max_exp << f.mbits : nan;
  if (biased == 255 && frac) return nan;  // the canonical NaN has a clear sign
  if (biased == 255) return satfinite ? out_sign | largest : out_sign | inf;
  if (!biased && !frac) return out_sign;
  u64 mant = frac | (biased ? 1u << 23 : 0);
  int e = biased ? int(biased) - 127 : -126;
  int shift = 23 - f.mbits, emin = 1 - bias;
  if (e < emin) shift += emin - e;
  if (shift > 40) shift = 40;
  u64 kept = mant >> shift, rest = mant & ((u64(1) << shift) - 1), half = shift ? u64(1) << (shift - 1) : 0;
  bool up = false;
  if (rest) {
    if (rnd == RN) up = rest > half || (rest == half && (kept & 1));
    else if (rnd == RNA) up = rest >= half;
    else if (rnd == RP) up = !sign;
    else if (rnd == RM) up = sign;
    else if (rnd == RS) up = ((shift >= 16 ? rest >> (shift - 16) : rest << (16 - shift)) + random) >> 16;
  }
  kept += up;
  // kept has its hidden bit at position mbits when normal; adding it to the exponent field carries correctly.
  u32 field = e < emin ? u32(kept) : u32(((u64(e + bias) - 1) << f.mbits) + kept);
  if (field > largest) {
    bool stays = satfinite || rnd == RZ || (rnd == RP && sign) || (rnd == RM && !sign);
    return out_sign | (stays ? largest : inf);
  }
  return out_sign | field;
}

// The nearest float, or where it is not exact, the one of the two neighbours whose last bit is set.
inline float float_to_odd(double x) {
  float y = float(x);
  if (!std::isfinite(y) || double(y) == x) return y;
  u32 b = u32(bits(y));
  return as_f32((std::fabs(double(y)) > std::fabs(x) ? b - 1 : b) | 1);
}

// Encode a double that is exact or rounded to odd, rounding to nearest even.
inline u32 encode_double(double x, const Format& f) { return encode(float_to_odd(x), f); }

inline float decode(u32 v, const Format& f) {
  int width = 1 + f.ebits + f.mbits, bias = (1 << (f.ebits - 1)) - 1;
  u32 sign = v >> (width - 1) & 1, e = v >> f.mbits & ((1u << f.ebits) - 1), m = v & ((1u << f.mbits) - 1);
  float r;
  if (f.inf && e == (1u << f.ebits) - 1)
    r = m ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
  else if (!f.inf && f.nan && (v & ((1u << (width - 1)) - 1)) == (1u << (width - 1)) - 1)
    r = std::numeric_limits<float>::quiet_NaN();
  else if (!e)
    r = std::ldexp(float(m), 1 - bias - f.mbits);
  else
    r = as_f32(u64(int(e) - bias + 127) << 23 | u64(m) << (23 - f.mbits));
  return sign ? -r : r;
}

inline float bf16_f32(u32 v) { return as_f32(u64(v & 0xFFFF) << 16); }
inline float f16_f32(u32 v) { return decode(v & 0xFFFF, F16); }
inline u32 f32_bf16(float x) {
  u32 b = u32(bits(x));
  if ((b & 0x7FFFFFFF) > 0x7F800000) return 0x7FFF;
  return (b + 0x7FFF + (b >> 16 & 1)) >> 16;
}

inline const Format& format_of(int ty) {
  static const Format none{0, 0, false};
  switch (ty) {
    case TY_f16: case TY_f16x2: return F16;
    case TY_bf16: case TY_bf16x2: return BF16;
    case TY_tf32: return TF32;
    case TY_e4m3: case TY_e4m3x2: case TY_e4m3x4: return E4M3;
    case TY_e5m2: case TY_e5m2x2: case TY_e5m2x4: return E5M2;
    case TY_e2m1: case TY_e2m1x2: case TY_e2m1x4: return E2M1;
    case TY_e2m3: case TY_e2m3x2: case TY_e2m3x4: return E2M3;
    case TY_e3m2: case TY_e3m2x2: case TY_e3m2x4: return E3M2;
  }
  return none;
}

// An element of a matrix operand as a float; integers stay exact.
inline float element(u32 v, int ty) {
  switch (ty) {
    case TY_bf16: return bf16_f32(v);
    case TY_f16: return f16_f32(v);
    case TY_tf32: return as_f32(v & 0xFFFFE000u);  // the tensor core ignores the low bits
    case TY_e4m3: {
      static const auto table = [] {
        struct { float v[256]; } t;
        for (u32 i = 0; i < 256; i++) t.v[i] = decode(i, E4M3);
        return t;
      }();
      return table.v[v & 255];
    }
    case TY_e5m2: return decode(v & 255, E5M2);
    case TY_e2m1: return decode(v & 15, E2M1);
    case TY_e2m3: return decode(v & 63, E2M3);
    case TY_e3m2: return decode(v & 63, E3M2);
    case TY_s8: return float(int8_t(v));
    case TY_u8: return float(v & 255);
  }
  return std::numeric_limits<float>::quiet_NaN();
}

// A power of two, as a biased 8-bit exponent.
inline float ue8m0(u32 v) {
  return v == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, int(v) - 127);
}

inline bool is_float(s64 ty) { return TYPE_CLASS[ty] == 'f'; }
inline bool is_packed(s64 ty) { return TYPE_CLASS[ty] == 'p'; }
inline bool is_signed(s64 ty) { return TYPE_CLASS[ty] == 's'; }
inline float to_f32(u64 v, int ty) {
  return ty == TY_f32 ? as_f32(v) : ty == TY_bf16 ? bf16_f32(u32(v)) : f16_f32(u32(v));
}

template <class T>
T clamp01(T x) { return x > T(0) ? (x > T(1) ? T(1) : x) : T(0); }  // NaN and -0 become +0

// f32 arithmetic gives one canonical NaN, whatever its operands were.
inline float canonical(float x) { return std::isnan(x) ? as_f32(0x7FFFFFFF) : x; }
inline double canonical(double x) { return x; }

inline float flush(float x) { return bits(x) & 0x7F800000 ? x : as_f32(bits(x) & 0x80000000); }

// Flush numbers that are subnormal in f16.
inline float flush_f16(float x) { return std::fabs(x) < 0x1p-14f ? std::copysign(0.0f, x) : x; }

// a * b + c rounded to odd (an inexact result has its last bit set), for operands of up to 24 bits: rounding
// the result to a small format is then a single rounding.
inline double fma_to_odd(double a, double b, double c) {
  double p = a * b, s = p + c, t = s - p, e = (p - (s - t)) + (c - t);
  if (e == 0 || !std::isfinite(s)) return s;
  u64 u = bits(s);
  if (!(u & 1)) u = (e > 0) == (s > 0) ? u + 1 : u - 1;
  return as_f64(u);
}

// Evaluate under a rounding mode. volatile keeps the compiler from moving the arithmetic out.
template <class T, class F>
T with_rounding(int rnd, F f) {
  if (rnd == RN) return f();
  int old = std::fegetround();
  std::fesetround(rnd == RZ ? FE_TOWARDZERO : rnd == RM ? FE_DOWNWARD : FE_UPWARD);
  volatile T r = f();
  std::fesetround(old);
  return r;
}

inline s64 sign_extend(u64 v, int n) { return n >= 64 ? s64(v) : s64(v << (64 - n)) >> (64 - n); }
// Loop over the lanes of a mask. each_lane() runs a full mask as a plain loop, which the compiler can
// vectorise.
#define LANES(mask, l) for (u32 m_ = (mask), l = 0; m_ && (l = u32(__builtin_ctz(m_)), true); m_ &= m_ - 1)
template <class F>
void each_lane(u32 mask, F f) {
  if (mask == ~0u)
    for (u32 l = 0; l < 32; l++) f(l);
  else
    LANES(mask, l) f(l);
}

inline u64 low(u64 v, int n) { return n >= 64 ? v : v & ((u64(1) << n) - 1); }

}  // namespace emu
