// Conversions between number formats, comparisons, and arithmetic on pairs of bf16.
#include "machine.hpp"

namespace emu {

namespace {

template <class T>
bool compare(int cmp, T a, T b, bool nan) {
  switch (cmp) {
    case 0: return !nan && a == b;
    case 1: return !nan && a != b;
    case 2: case 6: return !nan && a < b;
    case 3: case 7: return !nan && a <= b;
    case 4: case 8: return !nan && a > b;
    case 5: case 9: return !nan && a >= b;
    case 10: return nan || a == b;
    case 11: return nan || a != b;
    case 12: return nan || a < b;
    case 13: return nan || a <= b;
    case 14: return nan || a > b;
    case 15: return nan || a >= b;
    case 16: return !nan;
    default: return nan;
  }
}

// The f16 value of every number of an 8-bit format.
struct Halves {
  u16 of[256];
  explicit Halves(const Format& f) {
    for (u32 i = 0; i < 256; i++) of[i] = u16(encode(decode(i, f), F16));
  }
};

// f16 to f32 without branches: a shift moves the fields into place, and a factor corrects the exponent.
u32 half_to_float(u32 h) {
  u32 magnitude = h & 0x7FFF, sign = (h & 0x8000) << 16;
  u32 number = u32(bits(as_f32(magnitude << 13) * 0x1p112f)) | sign;
  return magnitude < 0x7C00 ? number : magnitude == 0x7C00 ? sign | 0x7F800000 : 0x7FFFFFFF;
}

}  // namespace

// A fast path for the conversions that attention kernels use most, with the results of cvt(). False: not one
// of them.
bool Exec::usual_conversion(const Val* v, int values, u64* d) {
  int dt = int(in.ty), st = int(in.ty2), rnd = int(in.m[0]);
  if (in.m[1] || in.m[2] || in.m[3] || in.m[4] || in.m[7]) return false;
  const u64 *x = v[0].v, *y = v[1].v;
  if (values == 1 && st == TY_f16 && dt == TY_f32 && rnd < RNI) {
    each_lane(mask, [&](u32 l) { d[l] = half_to_float(u32(x[l])); });
  } else if (values == 2 && dt == TY_bf16x2 && rnd == RN) {
    each_lane(mask, [&](u32 l) { d[l] = f32_bf16(as_f32(x[l])) << 16 | f32_bf16(as_f32(y[l])); });
  } else if (values == 1 && st == TY_f32 && dt == TY_bf16 && rnd == RN) {
    each_lane(mask, [&](u32 l) { d[l] = f32_bf16(as_f32(x[l])); });
  } else if (values == 1 && dt == TY_f16x2 && (st == TY_e4m3x2 || st == TY_e5m2x2)) {
    static const Halves e4m3(E4M3), e5m2(E5M2);
    const u16* of = (st == TY_e4m3x2 ? e4m3 : e5m2).of;
    each_lane(mask, [&](u32 l) { d[l] = u32(of[x[l] >> 8 & 255]) << 16 | of[x[l] & 255]; });
  } else {
    return false;
  }
  return true;
}

// A fast path for arithmetic on pairs of bf16, with the results of packed(). False: not one of them.
bool Exec::usual_pairs(const Val* a, u64* d) {
  if (in.ty != TY_bf16x2 || in.m[0] != RN || in.m[1] || in.m[2] || in.m[3]) return false;
  auto each = [&](auto fn) {
    const u64 *x = a[0].v, *y = a[1].v, *z = a[in.count - 2].v;
    auto half = [&](u32 l, int by) {
      float p = bf16_f32(u32(x[l] >> by)), q = bf16_f32(u32(y[l] >> by)), s = bf16_f32(u32(z[l] >> by));
      return u64(f32_bf16(fn(p, q, s)));
    };
    each_lane(mask, [&](u32 l) { d[l] = half(l, 16) << 16 | half(l, 0); });
    return true;
  };
  // packed() computes in double and rounds to f32 first. One operation in f32 gives that f32 too.
  switch (in.op) {
    case OP_add: return each([](float p, float q, float) { return p + q; });
    case OP_sub: return each([](float p, float q, float) { return p - q; });
    case OP_mul: return each([](float p, float q, float) { return p * q; });
    case OP_fma: return each([](float p, float q, float s) { return float_to_odd(fma_to_odd(p, q, s)); });
  }
  return false;
}

// Written bits of a conversion's result.
u64 Exec::known_conversion(u32 l, const Val* v, int values, const Val& random) const {
  int dt = int(in.ty), st = int(in.ty2), sn = TYPE_BITS[st], dn = TYPE_BITS[dt];
  const Val& a = v[0];
  u64 all = ~u64(0), k = known(a, l);
  auto whole = [&](u64 bits) { return !~(bits | ~low(all, sn)); };
  if (values > 1) {
    u64 out = ~low(all, dn);
    if (in.m[7] && !whole(known(random, l))) return out;
    for (int i = 0, w = dn / values; i < values; i++)
      if (whole(known(v[i], l))) out |= low(all, w) << (w * (values - 1 - i));
    return out;
  }
  if (is_packed(dt)) return halves_known(l, &a, 1, sn / 2, dn / 2);
  if (is_float(dt) || is_float(st) || in.m[2]) return whole(k) ? all : 0;
  u64 out = is_signed(st) ? u64(sign_extend(k, sn)) : k | ~low(all, sn);
  return is_signed(dt) ? u64(sign_extend(out, dn)) : out | ~low(all, dn);
}

void Exec::cvt() {
  int dt = int(in.ty), st = int(in.ty2), rnd = int(in.m[0]);
  bool ftz = in.m[1], sat = in.m[2], relu = in.m[3], satfinite = in.m[4];
  // Several values go into one register, the first one into its upper bits; random bits are the operand after
  // them.
  int values = int(in.m[6]);
  Val source[4], random;
  const Val& a = source[0];
  u32 valid = ~0u;
  for (int i = 0; i < values; i++) get(1 + i, source[i]), valid &= source[i].valid;
  if (in.m[7]) get(1 + values, random), valid &= random.valid;
  int sn = TYPE_BITS[st], dn = TYPE_BITS[dt], fr = rnd < 0 ? RN : rnd;
  u64 bits_known[32];
  if (mask & ~valid)
    LANES(mask, l) bits_known[l] = valid >> l & 1 ? ~u64(0) : known_conversion(l, source, values, random);
  u64* d = dst(0, valid);
  if (!d) return;
  if (mask & ~valid) mark(0, bits_known);
  if (usual_conversion(source, values, d)) return;
  auto prep = [&](float x) {
    if (ftz) x = flush(x);
    if (relu) x = x > 0 ? x : std::isnan(x) ? x : 0.0f;
    return x;
  };
  auto small = [&](float x, u32 drawn = 0) -> u32 {
    if (dt == TY_ue8m0x2) {  // a power of two, rounded up or truncated; NaN is 255
      if (std::isnan(x)) return 255;
      u32 u = u32(bits(std::fabs(x))), e = u >> 23, m = u & 0x7FFFFF;
      if (rnd == RP && m && !(e == 0 && m <= 0x400000)) e++;
      return std::min(e, 254u);
    }
    if (dt == TY_bf16x2 && fr == RN && !satfinite) return f32_bf16(prep(x));
    bool fs = satfinite || dt == TY_e4m3x2 || dt == TY_e5m2x2;
    return encode(prep(x), format_of(dt), fs, fr, drawn);
  };
  // PTX ISA, cvt: the random bits that round value i, left-aligned in 16 bits.
  auto drawn = [&](u32 bits, int i) -> u32 {
    u32 upper = bits >> 16, lower = bits & 0xFFFF;
    if (dt == TY_f16x2) return ((i ? lower : upper) & 0x1FFF) << 3;
    if (dt == TY_e2m1x4) return i < 2 ? (upper & 0xFF00) | lower >> 8 : (upper & 0xFF) << 8 | (lower & 0xFF);
    return i < values / 2 ? upper : lower;
  };
  LANES(mask, l) {
    u64 v = a[l], r = 0;
    if (is_packed(dt)) {
      int half = dn / 2;
      if (values > 1) {
        for (int i = 0, w = dn / values; i < values; i++)
          r |= u64(small(as_f32(source[i][l]), in.m[7] ? drawn(u32(random[l]), i) : 0))
               << (w * (values - 1 - i));
      } else {
        int sh = sn / 2;
        for (int h = 0; h < 2; h++) {
          u32 part = u32(low(v >> (h * sh), sh));
          float x = st == TY_ue8m0x2  ? ue8m0(part)
                    : st == TY_bf16x2 ? bf16_f32(part)
                                      : decode(part, format_of(st));
          r |= u64(small(x)) << (h * half);
        }
      }
    } else if (is_float(st) && is_float(dt)) {
      if (st == TY_bf16 && dt == TY_f32 && !ftz && !sat) {  // keeps the bits, even of a NaN
        d[l] = low(v, 16) << 16;
        continue;
      }
      double x = st == TY_f64 ? as_f64(v) : to_f32(v, st);
      if (ftz && st == TY_f32) x = flush(float(x));
      // A NaN is truncated, and satfinite subtracts one unit as it does from infinities.
      if (dt == TY_tf32 && rnd == RNA && std::isnan(x)) {
        d[l] = low((v & ~u64(0x1FFF)) - (satfinite ? 0x2000 : 0), 32);
        continue;
      }
      if (rnd >= RNI) {  // round to an integral value of the same type
        x = rnd == RNI   ? std::nearbyint(x)
            : rnd == RZI ? std::trunc(x)
            : rnd == RMI ? std::floor(x)
                         : std::ceil(x);
      }
      if (dt == TY_f64) r = bits(x);
      else {
        float y = float(x);
        if (st == TY_f64 && rnd != RN && rnd >= 0 && rnd < RNA && double(y) != x) {
          bool down = rnd == RM || (rnd == RZ && x > 0);
          if (down && double(y) > x) y = std::nextafter(y, -INFINITY);
          if (!down && double(y) < x) y = std::nextafter(y, INFINITY);
        }
        y = prep(y);
        if (sat) y = clamp01(y);
        r = dt == TY_f32 ? bits(canonical(y)) : dt == TY_tf32 ? [&] {
          u32 e = encode(y, TF32, satfinite, rnd == RNA ? RNA : fr);
          return u64(e & 0x3FFFF) << 13 | u64(e >> 18) << 31;
        }() : encode(y, format_of(dt), satfinite, fr);
      }
    } else if (is_float(st)) {  // to integer, saturating
      double x = st == TY_f64 ? as_f64(v) : to_f32(v, st);
      if (ftz) x = flush(float(x));
      x = rnd == RNI   ? std::nearbyint(x)
          : rnd == RMI ? std::floor(x)
          : rnd == RPI ? std::ceil(x)
                       : std::trunc(x);
      bool sg = is_signed(dt);
      double lo = sg ? -std::ldexp(1.0, dn - 1) : 0, hi = std::ldexp(1.0, sg ? dn - 1 : dn);
      if (std::isnan(x)) r = dn == 64 ? u64(1) << 63 : 0;
      else if (x < lo) r = sg ? low(u64(1) << (dn - 1), dn) : 0;
      else if (x >= hi) r = sg ? low(~u64(0), dn - 1) : low(~u64(0), dn);
      else r = low(sg ? u64(s64(x)) : u64(x), dn);
    } else if (is_float(dt)) {  // from integer
      bool sg = is_signed(st);
      s64 sv = sign_extend(v, sn);
      u64 uv = low(v, sn);
      if (dt == TY_f64) r = bits(with_rounding<double>(fr, [&] { return sg ? double(sv) : double(uv); }));
      else {
        float y = with_rounding<float>(fr, [&] { return sg ? float(sv) : float(uv); });
        r = dt == TY_f32 ? bits(y) : encode(y, format_of(dt), false, fr);
      }
    } else {  // integer to integer
      s64 sv = is_signed(st) ? sign_extend(v, sn) : s64(low(v, sn));
      if (sat) {
        bool big_unsigned = !is_signed(st) && sn == 64 && sv < 0;
        if (is_signed(dt)) {
          s64 hi = s64(low(~u64(0), dn - 1)), lo = -hi - 1;
          sv = big_unsigned || sv > hi ? hi : sv < lo ? lo : sv;
        } else if (is_signed(st) && sv < 0) {
          sv = 0;
        } else if (dn < 64 && (big_unsigned || u64(sv) > low(~u64(0), dn))) {
          sv = s64(low(~u64(0), dn));
        }
      }
      r = low(u64(sv), dn);
    }
    if (is_signed(dt)) r = low(u64(sign_extend(r, dn)), std::max(int(in.m[5]), dn));
    d[l] = r;
  }
}

void Exec::setp() {
  int ty = int(in.ty), n = TYPE_BITS[ty];
  Val a, b, e;
  get(2, a);
  get(3, b);
  u32 valid = known_low(a, n) & known_low(b, n);
  if (in.m[1]) get(4, e), valid &= e.valid;
  bool p[32], q[32];
  const bool whole = !is_float(ty) && !in.m[1];
  if (whole) {
    // Signed numbers compare like unsigned ones with the sign bit inverted.
    const u64 all = low(~u64(0), n), upper = is_signed(ty) ? u64(1) << (n - 1) : 0;
    auto each = [&](auto fn) {
      each_lane(mask, [&](u32 l) { p[l] = fn((a[l] ^ upper) & all, (b[l] ^ upper) & all), q[l] = !p[l]; });
    };
    switch (in.m[0]) {
      case 0: case 10: each([](u64 x, u64 y) { return x == y; }); break;
      case 1: case 11: each([](u64 x, u64 y) { return x != y; }); break;
      case 2: case 6: case 12: each([](u64 x, u64 y) { return x < y; }); break;
      case 3: case 7: case 13: each([](u64 x, u64 y) { return x <= y; }); break;
      case 4: case 8: case 14: each([](u64 x, u64 y) { return x > y; }); break;
      default: each([](u64 x, u64 y) { return x >= y; }); break;
    }
  }
  LANES(whole ? 0 : mask, l) {
    bool r;
    if (is_float(ty)) {
      double x = ty == TY_f64 ? as_f64(a[l]) : to_f32(a[l], ty),
             y = ty == TY_f64 ? as_f64(b[l]) : to_f32(b[l], ty);
      if (in.m[2]) x = flush(float(x)), y = flush(float(y));
      r = compare(int(in.m[0]), x, y, std::isnan(x) || std::isnan(y));
    } else if (is_signed(ty)) {
      r = compare(int(in.m[0]), sign_extend(a[l], n), sign_extend(b[l], n), false);
    } else {
      r = compare(int(in.m[0]), low(a[l], n), low(b[l], n), false);
    }
    p[l] = r, q[l] = !r;
    if (in.m[1]) {
      bool k = e[l] & 1;
      auto mix = [&](bool x) { return in.m[1] == 1 ? x && k : in.m[1] == 2 ? x || k : x != k; };
      p[l] = mix(p[l]), q[l] = mix(q[l]);
    }
  }
  u64 one = in.op == OP_setp ? 1 : in.ty2 == TY_f32 ? bits(1.0f) : 0xFFFFFFFF;
  if (u64* d = dst(0, valid)) LANES(mask, l) d[l] = p[l] ? one : 0;
  if (u64* d = dst(1, valid)) LANES(mask, l) d[l] = q[l] ? one : 0;
}

}  // namespace emu
