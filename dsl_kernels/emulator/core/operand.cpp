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

void load_smem_tile(Machine& m, Warp& w, int pc, const SmemDesc& d, int rank, int row0, Tile& t, int first, int rows, int ty, bool mn_major,
                    const Access& acc, const char* what, bool wide) {
  int depth = t.depth, width = TYPE_BITS[ty], es = width / 8, per = width >= 8 || wide ? 16 / std::max(es, 1) : 128 / width;  // elements in 16 contiguous bytes
  // Where the elements of a unit go: side by side, or a row of the tile apart.
  bool together = mn_major == t.by_k;
  size_t along = size_t(t.by_k ? t.rows : depth);
  float elements[32];
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
        for (int e = 0; e < per; e++) t.bad[size_t(first + (mn_major ? u * per + e : o))] = 1;
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
      int r = first + (mn_major ? u * per : o), k = mn_major ? o : u * per;
      float* to = t.v.data() + (t.by_k ? size_t(k) * along + size_t(r) : size_t(r) * along + size_t(k));
      convert_unit(l.p, together ? to : elements, ty, per);
      if (!together)
        for (int e = 0; e < per; e++) to[size_t(e) * along] = elements[e];
    }
}

}  // namespace emu
