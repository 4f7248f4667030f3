// Integer, float and packed arithmetic.
#include "machine.hpp"

namespace emu {

namespace {

u64 from_f32(float x, int ty, int rnd = RN) {
  if (ty == TY_f32) return bits(x);
  return ty == TY_bf16 && rnd == RN ? f32_bf16(x) : encode(x, format_of(ty), false, rnd);
}

u64 mul_high(u64 a, u64 b, int n, bool sgn) {
  if (n < 64) {
    if (sgn) return low(u64((sign_extend(a, n) * sign_extend(b, n)) >> n), n);
    return low((low(a, n) * low(b, n)) >> n, n);
  }
  if (sgn) return u64((__int128(s64(a)) * s64(b)) >> 64);
  return u64((static_cast<unsigned __int128>(a) * b) >> 64);
}

// One float operation on decoded values; x holds up to three sources.
template <class T>
T apply(int op, const T* x, const s64* m, int sources) {
  int rnd = int(m[0]);
  switch (op) {
    case OP_add: return with_rounding<T>(rnd, [&] { return x[0] + x[1]; });
    case OP_sub: return with_rounding<T>(rnd, [&] { return x[0] - x[1]; });
    case OP_mul: return with_rounding<T>(rnd, [&] { return x[0] * x[1]; });
    case OP_fma: return with_rounding<T>(rnd, [&] { return std::fma(x[0], x[1], x[2]); });
    case OP_div: return with_rounding<T>(rnd, [&] { return x[0] / x[1]; });
    case OP_abs: return std::fabs(x[0]);
    case OP_neg: return -x[0];
    case OP_rcp: return with_rounding<T>(rnd, [&] { return T(1) / x[0]; });
    case OP_sqrt: return with_rounding<T>(rnd, [&] { volatile T y = x[0]; return std::sqrt(T(y)); });
    case OP_rsqrt: return T(1) / std::sqrt(x[0]);
    case OP_ex2: return std::exp2(x[0]);
    case OP_lg2: return std::log2(x[0]);
    case OP_sin: return std::sin(x[0]);
    case OP_cos: return std::cos(x[0]);
    case OP_tanh: return std::tanh(x[0]);
    case OP_copysign: return std::copysign(x[1], x[0]);
    case OP_min: case OP_max: {
      T r = m[4] ? std::fabs(x[0]) : x[0];
      for (int i = 1; i < sources; i++) {
        T y = m[4] ? std::fabs(x[i]) : x[i];
        if (std::isnan(r) || std::isnan(y)) {
          if (m[0]) r = std::numeric_limits<T>::quiet_NaN();
          else r = std::isnan(r) ? y : r;
        } else if (r == y && r == T(0)) {
          r = (op == OP_min) == std::signbit(r) ? r : y;
        } else {
          r = op == OP_min ? std::min(r, y) : std::max(r, y);
        }
      }
      return r;
    }
  }
  return std::numeric_limits<T>::quiet_NaN();
}

// One operation of a 16-bit format: computed in double, rounded once.
u64 small_op(int op, const double* x, const s64* m, int sources, int ty, bool ftz, bool sat, bool relu) {
  double y = op == OP_fma ? fma_to_odd(x[0], x[1], x[2]) : apply<double>(op, x, m, sources);
  if (sat) y = clamp01(y);
  if (relu) y = y > 0 ? y : std::isnan(y) ? y : 0.0;
  if (op == OP_fma) return encode_double(y, format_of(ty));
  float f = float(y);
  return from_f32(ftz ? flush_f16(f) : f, ty);
}

}  // namespace

void Exec::alu() {
  int ty = int(in.ty);
  switch (in.op) {
    case OP_setp: case OP_set: return setp();
    case OP_cvt: return cvt();
    case OP_add: case OP_sub: case OP_mul: case OP_fma: case OP_div: case OP_abs: case OP_neg: case OP_min:
    case OP_max: case OP_rcp: case OP_sqrt: case OP_rsqrt: case OP_ex2: case OP_lg2: case OP_sin:
    case OP_cos: case OP_tanh: case OP_copysign:
      if (is_packed(ty)) return packed();
      if (is_float(ty)) return floats();
  }
  ints();
}

void Exec::floats() {
  int n = int(in.count) - 1, ty = int(in.ty);
  Val a[3];
  u32 valid = ~0u;
  for (int i = 0; i < n; i++) get(i + 1, a[i]), valid &= a[i].valid;
  if (mask & ~valid) {
    valid = ~0u;
    for (int i = 0; i < n; i++)
      valid &= known_low(a[i], TYPE_BITS[in.ty2 != TY_none && i < n - 1 ? in.ty2 : in.ty]);
  }
  u64* d = dst(0, valid);
  if (!d) return;
  bool minmax = in.op == OP_min || in.op == OP_max, sat = !minmax && in.m[2], ftz = in.m[1], relu = in.m[3];
  // A fast path for the most frequent operations, without a decision per lane.
  if (ty == TY_f32 && in.ty2 == TY_none && in.m[0] == RN && !relu && n > 1 && !minmax && in.op != OP_div &&
      in.op != OP_copysign) {
    const u64 *x = a[0].v, *y = a[1].v, *z = a[n - 1].v;
    auto each = [&](auto fn) {
      each_lane(mask, [&](u32 l) {
        float p = as_f32(x[l]), q = as_f32(y[l]), s = as_f32(z[l]);
        float r = canonical(ftz ? flush(fn(flush(p), flush(q), flush(s))) : fn(p, q, s));
        d[l] = bits(sat ? clamp01(r) : r);
      });
    };
    if (in.op == OP_add) each([](float p, float q, float) { return p + q; });
    else if (in.op == OP_sub) each([](float p, float q, float) { return p - q; });
    else if (in.op == OP_mul) each([](float p, float q, float) { return p * q; });
    else each([](float p, float q, float s) { return std::fma(p, q, s); });
    return;
  }
  LANES(mask, l) {
    if (ty == TY_f64) {
      double x[3] = {};
      for (int i = 0; i < n; i++) x[i] = as_f64(a[i][l]);
      double r = apply<double>(int(in.op), x, in.m, n);
      d[l] = bits(sat ? clamp01(r) : r);
      continue;
    }
    if (ty != TY_f32) {
      double y[3] = {};
      for (int i = 0; i < n; i++) y[i] = ftz ? flush_f16(to_f32(a[i][l], ty)) : to_f32(a[i][l], ty);
      s64 m[8] = {minmax ? in.m[0] : 0, in.m[1], in.m[2], in.m[3], in.m[4], in.m[5], 0, 0};
      d[l] = small_op(int(in.op), y, m, n, ty, ftz, sat, relu);
      continue;
    }
    float x[3] = {};
    for (int i = 0; i < n; i++) {
      // Mixed precision: every source but the last is of a 16-bit type.
      x[i] = in.ty2 != TY_none && i < n - 1 ? to_f32(a[i][l], int(in.ty2)) : as_f32(a[i][l]);
      if (ftz) x[i] = flush(x[i]);
    }
    float r = apply<float>(int(in.op), x, in.m, n);
    if (in.op != OP_copysign) r = canonical(r);  // copysign keeps the bits of a NaN
    if (ftz) r = flush(r);
    if (sat) r = clamp01(r);
    if (relu) r = r > 0 ? r : std::isnan(r) ? r : 0.0f;
    d[l] = bits(r);
  }
}

// Written bits of a packed result: a half counts as written if that half of every source was written.
u64 Exec::halves_known(u32 l, const Val* v, int n, int from, int to) const {
  u64 out = ~low(~u64(0), 2 * to), whole = low(~u64(0), from);
  for (int h = 0; h < 2; h++) {
    u64 k = whole;
    for (int i = 0; i < n; i++) k &= known(v[i], l) >> (h * from);
    if (k == whole) out |= low(~u64(0), to) << (h * to);
  }
  return out;
}

// The bits of an integer result that depend only on written bits of the sources.
u64 Exec::known_result(u32 l, const Val* const* v, int sources) const {
  int n = TYPE_BITS[in.ty];
  u64 k[4] = {}, x[4] = {}, all = ~u64(0), above = ~low(~u64(0), n);
  for (int i = 0; i < sources && i < 4; i++) k[i] = known(*v[i], l), x[i] = (*v[i])[int(l)];
  auto whole = [&](int i, int bits) { return !~(k[i] | ~low(~u64(0), bits)); };
  switch (in.op) {
    case OP_mov: return k[0] | above;
    case OP_selp: return whole(2, 1) ? k[x[2] & 1 ? 0 : 1] | above : 0;
    case OP_band: case OP_bor: case OP_bxor: case OP_bnot: case OP_lop3: {
      // A bit of the result is known where every choice of the unwritten bits gives the same.
      u64 ones = 0, zeros = 0, lut = x[3];
      if (in.op != OP_lop3)
        lut = in.op == OP_band ? 0xC0 : in.op == OP_bor ? 0xFC : in.op == OP_bxor ? 0x3C : 0x0F;
      for (int c = 0; c < 8; c++) {
        u64 possible = all;
        for (int i = 0; i < (in.op == OP_lop3 ? 3 : sources); i++)
          possible &= ~k[i] | (c & (4 >> i) ? x[i] : ~x[i]);
        (lut >> c & 1 ? ones : zeros) |= possible;
      }
      return ones ^ zeros | above;
    }
    case OP_add: case OP_sub: case OP_mul: case OP_mad: {
      // Carries only go up: the bits below the lowest unknown bit are known.
      u64 both = k[0] & k[1] & (in.op == OP_mad ? k[2] : all);
      return (both & ~(both + 1)) | above;
    }
    case OP_shl:
      if (!whole(1, 32)) return 0;
      return low(x[1], 32) >= u64(n) ? all : k[0] << low(x[1], 32) | low(all, int(x[1])) | above;
    case OP_shr: {
      if (!whole(1, 32)) return 0;
      u64 s = std::min<u64>(low(x[1], 32), u64(n));
      if (is_signed(in.ty)) return u64(sign_extend(k[0], n) >> std::min<u64>(s, 63)) | above;
      return s >= u64(n) ? all : low(k[0], n) >> s | ~(low(all, n) >> s);
    }
    case OP_shf: {
      if (!whole(2, 32)) return 0;
      u64 s = in.m[1] ? x[2] & 31 : std::min<u64>(low(x[2], 32), 32);
      u64 both = low(k[1], 32) << 32 | low(k[0], 32);
      return (in.m[0] ? both >> s : both << s >> 32) | above;
    }
    case OP_bfe: {
      if (!whole(1, 8) || !whole(2, 8)) return 0;
      u64 pos = x[1] & 255, len = x[2] & 255, top = u64(n) - 1;
      u64 there = pos > top ? 0 : std::min(len, u64(n) - pos);
      u64 sign = is_signed(in.ty) && len ? k[0] >> std::min(pos + len - 1, top) & 1 : 1;
      return (there ? low(k[0] >> pos, int(there)) : 0) | (sign ? ~low(all, int(there)) : 0) | above;
    }
    case OP_bfi: {
      if (!whole(2, 8) || !whole(3, 8)) return 0;
      u64 pos = x[2] & 255, len = x[3] & 255;
      u64 m = !len || pos >= u64(n) ? 0 : low(all, int(std::min<u64>(len, 64))) << pos;
      return (k[1] & ~m) | (m ? k[0] << pos & m : 0) | above;
    }
    case OP_prmt: {
      if (in.m[0] || !whole(2, 16)) break;
      u64 both = low(k[1], 32) << 32 | low(k[0], 32), out = above;
      for (int i = 0; i < 4; i++) {
        u64 s = x[2] >> (4 * i) & 15, byte = both >> (8 * (s & 7)) & 255;
        out |= (s & 8 ? (byte >> 7) * 255 : byte) << (8 * i);
      }
      return out;
    }
  }
  for (int i = 0; i < sources && i < 4; i++)
    if (!whole(i, n)) return 0;
  return all;
}

void Exec::packed() {
  int n = int(in.count) - 1, ty = int(in.ty);
  Val a[3];
  u32 valid = ~0u;
  for (int i = 0; i < n; i++) get(i + 1, a[i]), valid &= a[i].valid;
  int half = TYPE_BITS[ty] / 2;
  u64 bits_known[32];
  LANES(mask & ~valid, l) bits_known[l] = halves_known(l, a, n, half, half);
  u64* d = dst(0, valid);
  if (!d) return;
  LANES(mask & valid, l) bits_known[l] = ~u64(0);
  if (mask & ~valid) mark(0, bits_known);
  if (usual_pairs(a, d)) return;
  bool minmax = in.op == OP_min || in.op == OP_max;
  LANES(mask, l) {
    u64 out = 0;
    for (int h = 0; h < 2; h++) {
      u64 v[3] = {};
      for (int i = 0; i < n; i++) v[i] = low(a[i][l] >> (h * half), half);
      u64 r;
      if (ty == TY_u16x2 || ty == TY_s16x2) {
        s64 x = ty == TY_s16x2 ? sign_extend(v[0], 16) : s64(v[0]);
        s64 y = ty == TY_s16x2 ? sign_extend(v[1], 16) : s64(v[1]);
        s64 z = minmax ? in.op == OP_min ? std::min(x, y) : std::max(x, y) : in.op == OP_add ? x + y : x - y;
        r = low(u64(minmax && in.m[3] ? std::max(z, s64(0)) : z), 16);
      } else {
        int et = ty == TY_f32x2 ? TY_f32 : ty == TY_bf16x2 ? TY_bf16 : TY_f16;
        bool ftz = in.m[1], sat = !minmax && in.m[2], relu = in.m[3];
        if (et == TY_f32) {
          float x[3] = {};
          for (int i = 0; i < n; i++) x[i] = ftz ? flush(as_f32(v[i])) : as_f32(v[i]);
          float y = canonical(apply<float>(int(in.op), x, in.m, n));
          if (ftz) y = flush(y);
          if (sat) y = clamp01(y);
          r = bits(y);
        } else {
          double x[3] = {};
          for (int i = 0; i < n; i++) x[i] = ftz ? flush_f16(to_f32(v[i], et)) : to_f32(v[i], et);
          s64 m[8] = {minmax ? in.m[0] : 0, 0, 0, 0, in.m[4], 0, 0, 0};
          r = small_op(int(in.op), x, m, n, et, ftz, sat, relu);
        }
      }
      out |= r << (h * half);
    }
    d[l] = out;
  }
}

void Exec::ints() {
  int ty = int(in.ty), n = TYPE_BITS[ty];
  bool sgn = is_signed(ty);
  Val a, b, e, f;
  u32 valid = ~0u;
  // All sources are read in the same way; unused ones stay empty.
  int first_src = in.op == OP_unpack ? int(in.m[0]) : in.op == OP_move_pair ? 2 : 1;
  int sources = int(in.count) - first_src;
  if (in.op == OP_pack) sources = 0;
  if (in.op == OP_carry) return carry();
  copying = in.op == OP_mov || in.op == OP_pack || in.op == OP_unpack || in.op == OP_move_pair;
  Val* vals[4] = {&a, &b, &e, &f};
  for (int i = 0; i < sources && i < 4; i++) get(first_src + i, *vals[i]), valid &= vals[i]->valid;
  u64 bits_known[32];
  bool parts_known = false;
  auto each = [&](auto fn) {
    u64* d = dst(0, valid);
    if (d) each_lane(mask, [&](u32 l) { d[l] = fn(l); });
    if (d && parts_known) mark(0, bits_known);
  };
  if ((mask & ~valid) && in.op != OP_unpack && in.op != OP_move_pair) {
    parts_known = true;
    LANES(mask, l) bits_known[l] = valid >> l & 1 ? ~u64(0) : known_result(l, vals, sources);
  }
  auto sx = [&](u64 v) { return sign_extend(v, n); };
  const u64 all = ty == TY_pred && in.op == OP_mov ? 1 : low(~u64(0), n);  // bits of a value
  switch (in.op) {
    case OP_mov:
      each([&](u32 l) { return a[l] & all; });
      // Compilers move constants and copies past wgmma.fence: a copy is as old as its source, a constant
      // older.
      if (o[0].kind == K_REG && (o[1].kind == K_REG || o[1].kind == K_IMM))
        w.written[o[0].a] = o[1].kind == K_REG ? w.written[o[1].a] : 0;
      return;
    case OP_move_pair: {  // a 128-bit move: two 64-bit registers
      u64 copy[2][32];
      for (int h = 0; h < 2; h++) std::copy((h ? b : a).v, (h ? b : a).v + 32, copy[h]);
      u64 halves[2][32];
      for (int h = 0; h < 2; h++) LANES(mask, l) halves[h][l] = known(h ? b : a, l);
      for (int h = 0; h < 2; h++)
        if (u64* d = dst(h, (h ? b : a).valid)) {
          LANES(mask, l) d[l] = copy[h][l];
          if (mask & ~(h ? b : a).valid) mark(h, halves[h]);
        }
      return;
    }
    case OP_pack: {
      int parts = int(in.m[0]), w1 = n / parts;
      Val v[4];
      for (int i = 0; i < parts; i++) get(1 + i, v[i]), valid &= v[i].valid;
      parts_known = (mask & ~valid) != 0;
      LANES(mask & (parts_known ? ~0u : 0u), l) {
        bits_known[l] = ~low(~u64(0), n);
        for (int i = 0; i < parts && i * w1 < 64; i++) bits_known[l] |= low(known(v[i], l), w1) << (i * w1);
      }
      each([&](u32 l) {
        u64 r = 0;
        for (int i = 0; i < parts && i * w1 < 64; i++) r |= low(v[i][l], w1) << (i * w1);
        return r;
      });
      return;
    }
    case OP_unpack: {
      int parts = int(in.m[0]), w1 = n / parts;
      u64 copy[32], held[32];
      std::copy(a.v, a.v + 32, copy);
      LANES(mask, l) held[l] = known(a, l);
      for (int i = 0; i < parts; i++)
        if (u64* d = dst(i, valid)) {
          LANES(mask, l) d[l] = i * w1 < 64 ? low(copy[l] >> (i * w1), w1) : 0;
          LANES(mask, l) bits_known[l] = ~low(~(i * w1 < 64 ? held[l] >> (i * w1) : held[l]), w1);
          if (mask & ~valid) mark(i, bits_known);
        }
      return;
    }
    case OP_clock: each([&](u32) { return low(M.clock_now() * 4, n); }); return;
    case OP_add: each([&](u32 l) { return (a[l] + b[l]) & all; }); return;
    case OP_sub: each([&](u32 l) { return (a[l] - b[l]) & all; }); return;
    case OP_mul: each([&](u32 l) { return (a[l] * b[l]) & all; }); return;
    case OP_mad: each([&](u32 l) { return (a[l] * b[l] + e[l]) & all; }); return;
    case OP_mul_hi: each([&](u32 l) { return mul_high(a[l], b[l], n, sgn); }); return;
    case OP_mad_hi: each([&](u32 l) { return low(mul_high(a[l], b[l], n, sgn) + e[l], n); }); return;
    case OP_mul_wide: case OP_mad_wide:
      each([&](u32 l) {
        u64 p = sgn ? u64(sx(a[l]) * sx(b[l])) : low(a[l], n) * low(b[l], n);
        return low(in.op == OP_mad_wide ? p + e[l] : p, 2 * n);
      });
      return;
    case OP_div: case OP_rem:
      // PTX leaves the result unspecified, and compilers divide before they test: the result counts as
      // unwritten.
      LANES(mask, l) if ((valid >> l & 1) && !low(b[l], n)) {
        valid &= ~(1u << l), bits_known[l] = 0;
        M.find("division-by-zero", false, &w, pc, "integer division by zero: the result is unspecified");
      }
      each([&](u32 l) {
        if (!low(b[l], n)) return in.op == OP_div ? low(~u64(0), n) : low(a[l], n);
        if (sgn) {
          s64 x = sx(a[l]), y = sx(b[l]);
          if (y == -1) return in.op == OP_div ? low(u64(0) - u64(x), n) : u64(0);
          return low(u64(in.op == OP_div ? x / y : x % y), n);
        }
        u64 x = low(a[l], n), y = low(b[l], n);
        return in.op == OP_div ? x / y : x % y;
      });
      return;
    case OP_abs:
      each([&](u32 l) { return low(sx(a[l]) < 0 ? u64(0) - u64(sx(a[l])) : u64(sx(a[l])), n); });
      return;
    case OP_neg: each([&](u32 l) { return low(u64(0) - a[l], n); }); return;
    case OP_min: case OP_max:
      each([&](u32 l) {
        u64 r = low(a[l], n);
        for (int i = 1; i < sources; i++) {
          u64 y = low((*vals[i])[l], n);
          bool less = sgn ? sx(y) < sx(r) : y < r;
          if (less == (in.op == OP_min)) r = y;
        }
        return in.m[3] && sx(r) < 0 ? u64(0) : r;
      });
      return;
    case OP_band: each([&](u32 l) { return a[l] & b[l] & all; }); return;
    case OP_bor: each([&](u32 l) { return (a[l] | b[l]) & all; }); return;
    case OP_bxor: each([&](u32 l) { return (a[l] ^ b[l]) & all; }); return;
    case OP_bnot: each([&](u32 l) { return ~a[l] & all; }); return;
    case OP_cnot: each([&](u32 l) { return u64(low(a[l], n) == 0); }); return;
    case OP_lop3: {
      Val t;
      get(4, t);
      u64 lut = t[0];
      u64 take[8];  // per combination of three bits: all ones where the result is 1
      for (int k = 0; k < 8; k++) take[k] = lut >> k & 1 ? 0xFFFFFFFF : 0;
      each([&](u32 l) {
        u64 r = 0;
        for (int k = 0; k < 8; k++)
          r |= (k & 4 ? a[l] : ~a[l]) & (k & 2 ? b[l] : ~b[l]) & (k & 1 ? e[l] : ~e[l]) & take[k];
        return r;
      });
      return;
    }
    case OP_shl:
      each([&](u32 l) {
        u64 s = low(b[l], 32);
        return s >= u64(n) ? 0 : low(a[l] << s, n);
      });
      return;
    case OP_shr:
      each([&](u32 l) {
        u64 s = std::min<u64>(low(b[l], 32), u64(n));
        if (sgn) return low(u64(sx(a[l]) >> std::min<u64>(s, 63)), n);
        return s >= u64(n) ? 0 : low(a[l], n) >> s;
      });
      return;
    case OP_shf:
      each([&](u32 l) {
        u64 s = in.m[1] ? e[l] & 31 : std::min<u64>(low(e[l], 32), 32);
        u64 x = low(b[l], 32) << 32 | low(a[l], 32);
        return in.m[0] ? low(x >> s, 32) : low((x << s) >> 32, 32);
      });
      return;
    case OP_bfe:
      each([&](u32 l) {
        u64 pos = b[l] & 255, len = e[l] & 255, x = low(a[l], n), top = u64(n) - 1;
        bool sbit = sgn && len && (x >> std::min(pos + len - 1, top) & 1);
        u64 there = pos > top ? 0 : std::min(len, u64(n) - pos);  // bits of the field inside the register
        u64 r = there ? low(x >> pos, int(there)) : 0;
        return low(sbit && there < 64 ? r | ~u64(0) << there : r, n);
      });
      return;
    case OP_bfi:
      each([&](u32 l) {
        u64 pos = e[l] & 255, len = f[l] & 255;
        if (!len || pos >= u64(n)) return low(b[l], n);
        u64 m = (len >= 64 ? ~u64(0) : (u64(1) << len) - 1) << pos;
        return low((b[l] & ~m) | ((a[l] << pos) & m), n);
      });
      return;
    case OP_bfind:
      each([&](u32 l) {
        u64 x = low(a[l], n);
        if (sgn && x >> (n - 1)) x = low(~x, n);
        if (!x) return u64(0xFFFFFFFF);
        int msb = 63 - __builtin_clzll(x);
        return u64(in.m[0] ? n - 1 - msb : msb);
      });
      return;
    case OP_brev:
      each([&](u32 l) {
        u64 r = 0;
        for (int i = 0; i < n; i++) r |= (a[l] >> i & 1) << (n - 1 - i);
        return r;
      });
      return;
    case OP_popc: each([&](u32 l) { return u64(__builtin_popcountll(low(a[l], n))); }); return;
    case OP_clz:
      each([&](u32 l) {
        u64 x = low(a[l], n);
        return x ? u64(__builtin_clzll(x) - (64 - n)) : u64(n);
      });
      return;
    case OP_prmt:
      each([&](u32 l) {
        u64 x = low(b[l], 32) << 32 | low(a[l], 32), r = 0;
        for (int i = 0; i < 4; i++) {
          u64 s;
          int k = int(e[l] & 3);
          switch (in.m[0]) {
            case 0: s = e[l] >> (4 * i) & 15; break;
            case 1: s = u64(k + i) & 7; break;                       // f4e
            case 2: s = u64(k - i) & 7; break;                       // b4e
            case 3: s = u64(k); break;                               // rc8
            case 4: s = u64(i < k ? k : i); break;                   // ecl
            case 5: s = u64(i > k ? k : i); break;                   // ecr
            default: s = u64((k & 1) * 2 + (i & 1)); break;          // rc16
          }
          u64 byte = x >> (8 * (s & 7)) & 255;
          if (in.m[0] == 0 && (s & 8)) byte = byte & 128 ? 255 : 0;
          r |= byte << (8 * i);
        }
        return r;
      });
      return;
    case OP_dp4a:
      each([&](u32 l) {
        s64 r = s64(e[l]);
        for (int i = 0; i < 4; i++) {
          u64 x = a[l] >> (8 * i) & 255, y = b[l] >> (8 * i) & 255;
          r += (sgn ? sign_extend(x, 8) : s64(x)) * (is_signed(in.ty2) ? sign_extend(y, 8) : s64(y));
        }
        return low(u64(r), 32);
      });
      return;
    case OP_sad:
      each([&](u32 l) {
        u64 x = low(a[l], n), y = low(b[l], n);
        bool more = sgn ? sx(x) > sx(y) : x > y;
        return low((more ? x - y : y - x) + e[l], n);
      });
      return;
    case OP_selp: {
      each([&](u32 l) { return low(e[l] & 1 ? a[l] : b[l], n); });
      return;
    }
    case OP_testp:
      each([&](u32 l) {
        double x = ty == TY_f64 ? as_f64(a[l]) : double(as_f32(a[l]));
        int k = ty == TY_f64 ? std::fpclassify(x) : std::fpclassify(as_f32(a[l]));
        switch (in.m[0]) {
          case 0: return u64(std::isfinite(x));
          case 1: return u64(std::isinf(x));
          case 2: return u64(!std::isnan(x));
          case 3: return u64(std::isnan(x));
          case 4: return u64(k == FP_NORMAL || k == FP_ZERO);
          default: return u64(k == FP_SUBNORMAL);
        }
      });
      return;
    case OP_cvta: {
      u64 base = in.m[0] == 2 ? WIN_SHARED : in.m[0] == 4 ? WIN_LOCAL : in.m[0] == 3 ? WIN_PARAM : 0;
      each([&](u32 l) { return in.m[1] ? a[l] - base : a[l] + base; });
      return;
    }
    case OP_isspacep:
      each([&](u32 l) {
        u64 x = a[l];
        auto inside = [&](u64 b0) { return x >= b0 && x < b0 + WIN_SIZE; };
        switch (in.m[0]) {
          case 2: return u64(inside(WIN_SHARED) && ((x >> RANK_SHIFT) & 0xFF) == u64(c.rank));
          case 5: return u64(inside(WIN_SHARED));
          case 4: return u64(inside(WIN_LOCAL));
          case 3: return u64(inside(WIN_PARAM));
          default: return u64(x < WIN_SHARED);
        }
      });
      return;
    case OP_mapa:
      each([&](u32 l) {
        // A rank outside the cluster gives an address that is refused only when it is used: programs compute
        // an address for every lane and use those of the lanes below the cluster's size.
        u64 keep = a[l] & ~(u64(0xFF) << RANK_SHIFT);
        return keep | std::min<u64>(low(b[l], 32), 0xFF) << RANK_SHIFT;
      });
      return;
    case OP_getctarank: each([&](u32 l) { return a[l] >> RANK_SHIFT & 0xFF; }); return;
  }
  unsupported("operation without an executor");
}

// Operands: d, a, b, c (mad only), carry. The carry of a subtraction is its borrow.
void Exec::carry() {
  int n = TYPE_BITS[in.ty], kind = int(in.m[0]), last = int(in.count) - 1;
  Val a, b, e, cf;
  get(1, a), get(2, b);
  u32 valid = a.valid & b.valid;
  if (kind > 1) get(3, e), valid &= e.valid;
  if (in.m[1]) get(last, cf), valid &= cf.valid;
  u64 out[32], carries[32];
  LANES(mask, l) {
    unsigned __int128 x = low(a[l], n), y = low(b[l], n), k = in.m[1] ? cf[l] & 1 : 0, r;
    if (kind == 1) {
      r = x - y - k;
      carries[l] = x < y + k;
    } else {
      if (kind > 1) {
        x = kind == 2 ? low(u64(x) * u64(y), n) : mul_high(u64(x), u64(y), n, is_signed(in.ty));
        y = low(e[l], n);
      }
      r = x + y + k;
      carries[l] = u64(r >> n) & 1;
    }
    out[l] = low(u64(r), n);
  }
  if (u64* d = dst(0, valid)) LANES(mask, l) d[l] = out[l];
  if (in.m[2])
    if (u64* d = dst(last, valid)) LANES(mask, l) d[l] = carries[l];
}

}  // namespace emu
