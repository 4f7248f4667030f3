// Shared-memory matrix descriptors: canonical layouts, swizzles, checked reads.
#include "operand.hpp"

namespace emu {

SmemDesc smem_desc(Machine& m, Warp& w, int pc, u64 d, bool sm100) {
  SmemDesc s{(d & 0x3FFF) << 4, (d >> 16 & 0x3FFF) << 4, (d >> 32 & 0x3FFF) << 4, 0, false};
  u64 base = d >> 49 & 7;
  if (base) m.fatal("unsupported", &w, pc, "matrix descriptor " + hex(d) + " has base offset " + std::to_string(base));
  if (sm100) {
    u64 version = d >> 46 & 3, layout = d >> 61;
    if (version != 1) m.fatal("descriptor", &w, pc, "matrix descriptor " + hex(d) + " has version " + std::to_string(version) + ", sm_100 needs 1");
    if (d >> 52 & 1) m.fatal("unsupported", &w, pc, "matrix descriptor " + hex(d) + " uses an absolute leading dimension");
    switch (layout) {
      case 0: break;
      case 1: s.span = 128, s.atom32 = true; break;
      case 2: s.span = 128; break;
      case 4: s.span = 64; break;
      case 6: s.span = 32; break;
      default: m.fatal("descriptor", &w, pc, "matrix descriptor " + hex(d) + " has the undefined layout type " + std::to_string(layout));
    }
  } else {
    u64 layout = d >> 62;
    if (d >> 46 & 3) m.fatal("descriptor", &w, pc, "matrix descriptor " + hex(d) + " has reserved bits set (an sm_100 descriptor?)");
    s.span = layout == 1 ? 128 : layout == 2 ? 64 : layout == 3 ? 32 : 0;
  }
  if (s.start < SMEM_RESERVED)
    m.fatal("descriptor", &w, pc, "matrix descriptor " + hex(d) + " starts at shared offset " + std::to_string(s.start) + ", in the system's part");
  return s;
}

static u64 swizzled(const SmemDesc& d, u64 a) {
  if (d.atom32) return a ^ (a >> 2 & 0x60);
  return d.span == 128 ? a ^ (a >> 3 & 0x70) : d.span == 64 ? a ^ (a >> 3 & 0x30) : d.span == 32 ? a ^ (a >> 3 & 0x10) : a;
}

u64 k_major_unit(const SmemDesc& d, u64 r, u64 k16) {
  u64 linear = d.span ? (r % 8) * d.span + r / 8 * d.sbo + k16 * 16 : (r % 8) * 16 + r / 8 * d.sbo + k16 * d.lbo;
  return swizzled(d, d.start + linear);
}

Tile load_smem_tile(Machine& m, Warp& w, int pc, const SmemDesc& d, int rank, int row0, int rows, int depth, int ty, bool mn_major,
                    const Access& acc, const char* what, bool wide) {
  Tile t;
  t.rows = rows, t.depth = depth;
  t.v.resize(size_t(rows) * size_t(depth));
  t.bad.assign(size_t(rows), 0);
  int width = TYPE_BITS[ty], es = width / 8, per = width >= 8 || wide ? 16 / std::max(es, 1) : 128 / width;  // elements in 16 contiguous bytes
  if (mn_major && es != 2)
    if (!(ty == TY_tf32 || TYPE_BITS[ty] == 8)) m.fatal("descriptor", &w, pc, "this element type cannot be MN-major");
  // Walk 16-byte units: along K for K-major operands, along rows for MN-major ones.
  int outer = mn_major ? depth : rows, units = (mn_major ? rows : depth) / per;
  for (int o = 0; o < outer; o++)
    for (int u = 0; u < units; u++) {
      u64 addr;
      if (!mn_major) {
        addr = k_major_unit(d, u64(row0 + o), u64(u));
      } else {
        u64 k = u64(o), i16 = u64(row0 / per + u), linear;
        if (d.span) linear = i16 % (d.span / 16) * 16 + i16 / (d.span / 16) * d.lbo + (k % 8) * d.span + k / 8 * d.sbo;
        else linear = i16 * d.sbo + (k % 8) * 16 + k / 8 * d.lbo;
        addr = swizzled(d, d.start + linear);
      }
      Loc l = m.shared_at(w, pc, addr | u64(rank) << RANK_SHIFT, 16, 16, what);
      bool uninit = false;
      for (int i = 0; i < 16 && m.cfg.allow_uninit_mma; i++) uninit |= !l.shadow[i].w;
      if (uninit) {
        for (int e = 0; e < per; e++) t.bad[size_t(mn_major ? u * per + e : o)] = 1;
      } else {
        // The writer's swizzle and the descriptor's must agree.
        const Event& wr = m.shadows.events[l.shadow->w];
        if (wr.swizzle >= 0 && wr.swizzle != int(d.span + (d.atom32 ? 1 : 0)))
          m.find("swizzle-mismatch", true, &w, pc,
                 std::string(what) + " reads with a swizzle of " + std::to_string(d.span) + " bytes what a tensor copy wrote with " +
                     std::to_string(wr.swizzle),
                 &wr);
        m.note_read(l, 16, acc, w, pc, what);
      }
      for (int e = 0; e < per; e++) {
        u32 raw = 0;
        if (width >= 8) {
          std::memcpy(&raw, l.p + e * es, size_t(es));
        } else {
          u16 two = 0;  // an element may lie across two bytes
          std::memcpy(&two, l.p + e * width / 8, e * width / 8 < 15 ? 2 : 1);
          raw = u32(low(two >> (e * width % 8), width));
        }
        int r = mn_major ? u * per + e : o, k = mn_major ? o : u * per + e;
        t.v[size_t(r * depth + k)] = element(raw, ty);
      }
    }
  return t;
}

void multiply(const Tile& a, const Tile& b, std::vector<float>& acc) {
  size_t M = size_t(a.rows), N = size_t(b.rows), K = size_t(a.depth);
  std::vector<float> bt(K * N);
  for (size_t n = 0; n < N; n++)
    for (size_t k = 0; k < K; k++) bt[k * N + n] = b.v[n * K + k];
  for (size_t m = 0; m < M; m++) {
    float* out = acc.data() + m * N;
    for (size_t k = 0; k < K; k++) {
      float x = a.v[m * K + k];
      const float* row = bt.data() + k * N;
      for (size_t n = 0; n < N; n++) out[n] += x * row[n];
    }
  }
}

namespace {

constexpr int NOTHING = -10000;  // exponent of zero

int least_exponent(int ty) { return ty == TY_f16 || ty == TY_e5m2 ? -14 : ty == TY_e4m3 ? -6 : -126; }

// A number as mantissa times two to the exponent that its format writes down: subnormal numbers keep the least one.
void split(float x, int least, float& m, int& e) {
  u32 u = u32(bits(x));
  int stored = int(u >> 23 & 255) - 127;
  if (x == 0) m = 0, e = NOTHING;
  else if (stored >= least && stored > -127) m = as_f32((u & 0x807FFFFF) | 127u << 23), e = stored;
  else m = std::ldexp(x, -least), e = least;
}

}  // namespace

void hopper_multiply(const float* a, int ta, const float* b, int tb, float* c, int M, int N, int K, Summation how) {
  constexpr int MAX_N = 256, MAX_K = 32;
  static thread_local float bm[MAX_K * MAX_N];
  static thread_local int be[MAX_K * MAX_N];
  bool odd_b[MAX_N] = {};  // columns with a NaN or an infinity
  for (int k = 0; k < K; k++)
    for (int n = 0; n < N; n++) {
      float x = b[k * N + n];
      if (!std::isfinite(x)) odd_b[n] = true;
      split(std::isfinite(x) ? x : 0, least_exponent(tb), bm[k * N + n], be[k * N + n]);
    }
  int top[MAX_N];
  s64 sum[MAX_N];
  for (int m = 0; m < M; m++) {
    float am[MAX_K], *out = c + m * N;
    int ae[MAX_K];
    bool odd_a = false;
    for (int k = 0; k < K; k++) {
      float x = a[m * K + k];
      if (!std::isfinite(x)) odd_a = true;
      split(std::isfinite(x) ? x : 0, least_exponent(ta), am[k], ae[k]);
    }
    for (int n = 0; n < N; n++) {
      float cm;
      split(std::isfinite(out[n]) ? out[n] : 0, -126, cm, top[n]);
    }
    for (int k = 0; k < K; k++)
      for (int n = 0; n < N; n++) top[n] = std::max(top[n], ae[k] + be[k * N + n]);
    for (int n = 0; n < N; n++) sum[n] = std::isfinite(out[n]) ? s64(std::ldexp(double(out[n]), std::max(-2000, how.bits - top[n]))) : 0;
    for (int k = 0; k < K; k++) {
      if (am[k] == 0) continue;
      for (int n = 0; n < N; n++) {
        // The product of two mantissas fits a float, and so does what is left of it.
        int e = std::max(-100, ae[k] + be[k * N + n] - top[n] + how.bits);
        sum[n] += int(am[k] * bm[k * N + n] * as_f32(u32(e + 127) << 23));
      }
    }
    for (int n = 0; n < N; n++) {
      if (odd_a || odd_b[n] || !std::isfinite(out[n])) {
        double s = out[n];  // products of floats are finite in double: only infinities give one
        for (int k = 0; k < K; k++) s += double(a[m * K + k]) * double(b[k * N + n]);
        out[n] = canonical(float(s));
        continue;
      }
      u64 u = u64(sum[n] < 0 ? -sum[n] : sum[n]);
      if (!u) {
        out[n] = 0;
        continue;
      }
      int length = 64 - __builtin_clzll(u);
      if (how.keep && length > how.keep + 1) u &= ~u64(0) << (length - how.keep - 1);
      double x = std::ldexp(double(u), top[n] - how.bits);
      if (how.keep && x < 0x1p-126) x = std::trunc(x * 0x1p149) * 0x1p-149;
      if (sum[n] < 0 && x != 0) x = -x;
      out[n] = how.keep ? float(x) : f16_f32(encode_double(x, F16));
    }
  }
}

}  // namespace emu
