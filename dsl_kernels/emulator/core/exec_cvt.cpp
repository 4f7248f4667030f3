// Conversions between number formats.
#include "machine.hpp"

namespace emu {

// Bits of a conversion's result.
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
  // Several values go into one register, the first into its upper end; random bits come after them.
  int values = int(in.m[6]);
  Val source[4], random;
  const Val& a = source[0];
  u32 valid = ~0u;
  for (int i = 0; i < values; i++) get(1 + i, source[i]), valid &= source[i].valid;
  if (in.m[7]) get(1 + values, random), valid &= random.valid;
  int sn = TYPE_BITS[st], dn = TYPE_BITS[dt], fr = rnd < 0 ? RN : rnd;
  u64 bits_known[32];
  if (mask & ~valid) LANES(mask, l) bits_known[l] = valid >> l & 1 ? ~u64(0) : known_conversion(l, source, values, random);
  u64* d = dst(0, valid);
  if (!d) return;
  if (mask & ~valid) mark(0, bits_known);
  auto prep = [&](float x) {
    if (ftz) x = flush(x);
    if (relu) x = x > 0 ? x : std::isnan(x) ? x : 0.0f;
    return x;
  };
  auto small = [&](float x, u32 drawn = 0) -> u32 {
    if (dt == TY_ue8m0x2) {  // a power of two, rounded up or towards zero, NaN is 255
      if (std::isnan(x)) return 255;
      u32 u = u32(bits(std::fabs(x))), e = u >> 23, m = u & 0x7FFFFF;
      if (rnd == RP && m && !(e == 0 && m <= 0x400000)) e++;
      return std::min(e, 254u);
    }
    if (dt == TY_bf16x2 && fr == RN && !satfinite) return f32_bf16(prep(x));
    bool fs = satfinite || dt == TY_e4m3x2 || dt == TY_e5m2x2;
    return encode(prep(x), format_of(dt), fs, fr, drawn);
  };
  // PTX ISA, cvt: which of the random bits round value i. They stand at the upper end of 16.
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
          r |= u64(small(as_f32(source[i][l]), in.m[7] ? drawn(u32(random[l]), i) : 0)) << (w * (values - 1 - i));
      } else {
        int sh = sn / 2;
        for (int h = 0; h < 2; h++) {
          u32 part = u32(low(v >> (h * sh), sh));
          float x = st == TY_ue8m0x2 ? ue8m0(part) : st == TY_bf16x2 ? bf16_f32(part) : decode(part, format_of(st));
          r |= u64(small(x)) << (h * half);
        }
      }
    } else if (is_float(st) && is_float(dt)) {
      if (st == TY_bf16 && dt == TY_f32 && !ftz && !sat) {  // the bits, a NaN's included
        d[l] = low(v, 16) << 16;
        continue;
      }
      double x = st == TY_f64 ? as_f64(v) : to_f32(v, st);
      if (ftz && st == TY_f32) x = flush(float(x));
      if (dt == TY_tf32 && rnd == RNA && std::isnan(x)) {  // only cut off; satfinite takes one unit off as for infinities
        d[l] = low((v & ~u64(0x1FFF)) - (satfinite ? 0x2000 : 0), 32);
        continue;
      }
      if (rnd >= RNI) {  // round to an integral value of the same type
        x = rnd == RNI ? std::nearbyint(x) : rnd == RZI ? std::trunc(x) : rnd == RMI ? std::floor(x) : std::ceil(x);
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
      x = rnd == RNI ? std::nearbyint(x) : rnd == RMI ? std::floor(x) : rnd == RPI ? std::ceil(x) : std::trunc(x);
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

}  // namespace emu
