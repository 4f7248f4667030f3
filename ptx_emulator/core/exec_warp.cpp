// Warp-wide operations: shuffles, votes, match, redux, elect.
#include "machine.hpp"

namespace emu {

Flow Exec::warp_op() {
  u32 live = w.present & ~w.exited;
  if (in.op == OP_activemask) {
    if (u64* d = dst(0, ~0u)) LANES(mask, l) d[l] = mask;
    return Flow::next;
  }
  if (in.op == OP_movmatrix) {
    aligned();
    Val a;
    get(1, a, true, "matrix fragment");
    u16 m[8][8];
    for (int t = 0; t < 32; t++)
      for (int h = 0; h < 2; h++) m[t / 4][2 * (t % 4) + h] = u16(a[t] >> (16 * h));
    if (u64* d = dst(0, ~0u))
      for (int t = 0; t < 32; t++) d[t] = u64(m[2 * (t % 4)][t / 4]) | u64(m[2 * (t % 4) + 1][t / 4]) << 16;
    return Flow::next;
  }
  int mask_at = int(in.count) - 1;
  Val mm;
  get(mask_at, mm, true, "member mask");
  u32 want = u32(mm[first()]);
  LANES(mask, l)
  if (u32(mm[l]) != want) M.fatal("member-mask", &w, pc, "the lanes disagree about the member mask");
  if (mask & ~want)
    M.fatal("member-mask", &w, pc,
            "lanes " + hex(mask & ~want) + " execute with a member mask that leaves them out: " + hex(want));
  want &= live;
  if ((mask & want) != want) {
    // On hardware the warp waits for lanes that are elsewhere; a lane whose guard is false would never come.
    if ((g.mask & want) == want)
      M.fatal("member-mask", &w, pc,
              "lanes " + hex(want & ~mask) + " are in the member mask but their guard is false");
    g.wait = {WaitKind::converge, want};
    return Flow::wait;
  }
  switch (in.op) {
    case OP_elect: {
      u32 leader = u32(__builtin_ctz(want));
      if (u64* d = dst(0, ~0u)) LANES(mask, l) d[l] = leader;
      if (u64* d = dst(1, ~0u)) LANES(mask, l) d[l] = l == leader;
      break;
    }
    case OP_shfl: {
      Val a, b, k;
      get(2, a);
      get(3, b, true, "shuffle lane");
      get(4, k, true, "shuffle clamp");
      u64 src[32];
      std::copy(a.v, a.v + 32, src);
      u64 out[32];
      u32 valid = 0, ok = 0;
      u64 bits_known[32];
      LANES(mask, l) {
        int bval = int(b[l] & 31), cval = int(k[l] & 31), seg = int(k[l] >> 8 & 31);
        int max_lane = (int(l) & seg) | (cval & ~seg), min_lane = int(l) & seg, j;
        bool p;
        switch (in.m[0]) {
          case 0: j = int(l) - bval, p = j >= max_lane; break;
          case 1: j = int(l) + bval, p = j <= max_lane; break;
          case 2: j = int(l) ^ bval, p = j <= max_lane; break;
          default: j = min_lane | (bval & ~seg), p = j <= max_lane; break;
        }
        if (!p) j = int(l);
        if (!(mask >> j & 1))
          M.find("shuffle-source", true, &w, pc,
                 "lane " + std::to_string(l) + " reads lane " + std::to_string(j) +
                     ", which does not take part");
        out[l] = low(src[j], 32);
        bits_known[l] = known(a, u32(j));
        if (a.valid >> j & 1) valid |= 1u << l;
        if (p) ok |= 1u << l;
      }
      if (u64* d = dst(0, valid)) {
        LANES(mask, l) d[l] = out[l];
        if (mask & ~valid) mark(0, bits_known);
      }
      if (u64* d = dst(1, ~0u)) LANES(mask, l) d[l] = ok >> l & 1;
      break;
    }
    case OP_vote: {
      Val p;
      get(1, p, true, "vote predicate");
      u32 yes = 0;
      LANES(mask, l) if (p[l] & 1) yes |= 1u << l;
      u64 r = in.m[0] == 0   ? yes == mask
              : in.m[0] == 1 ? yes != 0
              : in.m[0] == 2 ? yes == 0 || yes == mask
                             : yes;
      if (u64* d = dst(0, ~0u)) LANES(mask, l) d[l] = r;
      break;
    }
    case OP_match: {
      Val a;
      get(2, a, true, "match value");
      u32 out[32], first_lane = u32(first());
      bool all = true;
      LANES(mask, l) {
        out[l] = 0;
        for (u32 j = 0; j < 32; j++)
          if ((mask >> j & 1) && a[j] == a[l]) out[l] |= 1u << j;
        all &= a[l] == a[first_lane];
      }
      if (u64* d = dst(0, ~0u)) LANES(mask, l) d[l] = in.m[0] ? (all ? mask : 0) : out[l];
      if (u64* d = dst(1, ~0u)) LANES(mask, l) d[l] = all;
      break;
    }
    case OP_redux: {
      Val a;
      get(1, a, true, "redux value");
      u64 r = 0;
      if (in.ty == TY_f32) {
        float best = 0;
        bool nan = false, any = false;
        LANES(mask, l) {
          float x = as_f32(a[l]);
          if (in.m[1]) x = std::fabs(x);
          if (std::isnan(x)) { nan = true; continue; }
          best = !any ? x : in.m[0] == 1 ? std::fmin(best, x) : std::fmax(best, x);
          any = true;
        }
        r = (nan && in.m[2]) || !any ? 0x7FFFFFFF : bits(best);
      } else {
        bool start = true, sgn = in.ty == TY_s32;
        LANES(mask, l) {
          u64 x = low(a[l], 32);
          if (start) r = x;
          else switch (in.m[0]) {
            case 0: r = low(r + x, 32); break;
            case 1: r = sgn ? (sign_extend(x, 32) < sign_extend(r, 32) ? x : r) : std::min(r, x); break;
            case 2: r = sgn ? (sign_extend(x, 32) > sign_extend(r, 32) ? x : r) : std::max(r, x); break;
            case 3: r &= x; break;
            case 4: r |= x; break;
            case 5: r ^= x; break;
          }
          start = false;
        }
      }
      if (u64* d = dst(0, ~0u)) LANES(mask, l) d[l] = r;
      break;
    }
  }
  return Flow::next;
}

}  // namespace emu
