// Shared-memory matrix descriptors: canonical layouts, swizzles, checked reads.
#include "operand.hpp"

namespace emu {

SmemDesc smem_desc(Machine& m, Warp& w, int pc, u64 d, bool sm100) {
  SmemDesc s{(d & 0x3FFF) << 4, (d >> 16 & 0x3FFF) << 4, (d >> 32 & 0x3FFF) << 4, 0, false};
  u64 base = d >> 49 & 7;
  if (base)
    m.fatal("unsupported", &w, pc,
            "matrix descriptor " + hex(d) + " has base offset " + std::to_string(base));
  if (sm100) {
    u64 version = d >> 46 & 3, layout = d >> 61;
    if (version != 1)
      m.fatal("descriptor", &w, pc,
              "matrix descriptor " + hex(d) + " has version " + std::to_string(version) + ", sm_100 needs 1");
    if (d >> 52 & 1)
      m.fatal("unsupported", &w, pc, "matrix descriptor " + hex(d) + " uses an absolute leading dimension");
    switch (layout) {
      case 0: break;
      case 1: s.span = 128, s.atom32 = true; break;
      case 2: s.span = 128; break;
      case 4: s.span = 64; break;
      case 6: s.span = 32; break;
      default:
        m.fatal("descriptor", &w, pc,
                "matrix descriptor " + hex(d) + " has the undefined layout type " + std::to_string(layout));
    }
  } else {
    u64 layout = d >> 62;
    if (d >> 46 & 3)
      m.fatal("descriptor", &w, pc,
              "matrix descriptor " + hex(d) + " has reserved bits set (an sm_100 descriptor?)");
    s.span = layout == 1 ? 128 : layout == 2 ? 64 : layout == 3 ? 32 : 0;
  }
  if (s.start < SMEM_RESERVED)
    m.fatal("descriptor", &w, pc,
            "matrix descriptor " + hex(d) + " starts at shared offset " + std::to_string(s.start) +
                ", in the system's part");
  return s;
}

static u64 swizzled(const SmemDesc& d, u64 a) {
  if (d.atom32) return a ^ (a >> 2 & 0x60);
  return d.span == 128  ? a ^ (a >> 3 & 0x70)
         : d.span == 64 ? a ^ (a >> 3 & 0x30)
         : d.span == 32 ? a ^ (a >> 3 & 0x10)
                        : a;
}

u64 k_major_unit(const SmemDesc& d, u64 r, u64 k16) {
  u64 linear =
      d.span ? (r % 8) * d.span + r / 8 * d.sbo + k16 * 16 : (r % 8) * 16 + r / 8 * d.sbo + k16 * d.lbo;
  return swizzled(d, d.start + linear);
}

// How many elements 16 contiguous bytes hold.
static int unit_of(int ty, bool wide) {
  int width = TYPE_BITS[ty], es = width / 8;
  return width >= 8 || wide ? 16 / std::max(es, 1) : 128 / width;
}

void read_smem_tile(Machine& m, Warp& w, int pc, const SmemDesc& d, int rank, int row0, std::vector<u8>& raw,
                    std::vector<u8>& bad, int first, int rows, int depth, int ty, bool mn_major,
                    const Access& acc, const char* what, bool wide) {
  int per = unit_of(ty, wide);
  if (mn_major && TYPE_BITS[ty] / 8 != 2)
    if (!(ty == TY_tf32 || TYPE_BITS[ty] == 8))
      m.fatal("descriptor", &w, pc, "this element type cannot be MN-major");
  // Walk 16-byte units: along K for K-major operands, along rows for MN-major ones.
  int outer = mn_major ? depth : rows, units = (mn_major ? rows : depth) / per;
  raw.resize(size_t(outer) * size_t(units) * 16);
  auto address = [&](int o, int u) {
    if (!mn_major) return k_major_unit(d, u64(row0 + o), u64(u));
    u64 k = u64(o), i16 = u64(row0 / per + u), linear;
    if (d.span)
      linear = i16 % (d.span / 16) * 16 + i16 / (d.span / 16) * d.lbo + (k % 8) * d.span + k / 8 * d.sbo;
    else linear = i16 * d.sbo + (k % 8) * 16 + k / 8 * d.lbo;
    return swizzled(d, d.start + linear);
  };
  const int agreed = int(d.span + (d.atom32 ? 1 : 0));
  u64 at[64];
  for (int o = 0; o < outer; o++)
    for (int u = 0; u < units;) {
      // Units that together fill an aligned block, in whatever order the swizzle puts them, are one read.
      int most = m.cfg.allow_uninit_mma ? 1 : std::min(units - u, int(d.span / 16)), n = 1;
      at[0] = address(o, u);
      if (most > 1) {
        u64 low = at[0];
        for (int i = 1; i < most; i++) at[i] = address(o, u + i), low = std::min(low, at[i]);
        u32 seen = 0;
        bool inside = !(most & (most - 1)) && low % u64(16 * most) == 0 &&
                      within(low & 0xFFFFFF, u64(16 * most), u64(m.cfg.smem_end));
        for (int i = 0; i < most && inside; i++)
          inside = at[i] - low < u64(16 * most), seen |= 1u << ((at[i] - low) / 16 % 32);
        if (inside && seen == (1u << most) - 1) n = most;
      }
      u64 begin = at[0];
      for (int i = 1; i < n; i++) begin = std::min(begin, at[i]);
      Loc l = m.shared_at(w, pc, begin | u64(rank) << RANK_SHIFT, u64(16 * n), 16, what);
      bool uninit = false;
      for (int i = 0; i < 16 && m.cfg.allow_uninit_mma; i++) uninit |= !l.shadow[i].w;
      if (uninit) {
        for (int e = 0; e < per; e++) bad[size_t(first + (mn_major ? u * per + e : o))] = 1;
      } else {
        // The swizzle of the tensor copy that wrote the data must agree with the descriptor's.
        auto disagrees = [&](const Shadow& s) {
          const Event& wr = m.shadows.events[s.w];
          return wr.swizzle >= 0 && wr.swizzle != agreed;
        };
        bool bare = n == 1;
        for (int i = 0; i < n && !bare; i++) bare = disagrees(l.shadow[16 * i]);
        size_t where;
        u32 other;
        bare = bare || m.shadows.read(l.shadow, size_t(16 * n), acc, where, other) != Conflict::none;
        // Something is wrong: check unit by unit, so that findings come in order.
        for (int i = 0; i < n && bare; i++) {
          Loc unit = l;
          unit.offset += u32(at[i] - begin), unit.p += at[i] - begin, unit.shadow += at[i] - begin;
          const Event& wr = m.shadows.events[unit.shadow->w];
          if (disagrees(*unit.shadow))
            m.find("swizzle-mismatch", true, &w, pc,
                   std::string(what) + " reads with a swizzle of " + std::to_string(d.span) +
                       " bytes what a tensor copy wrote with " + std::to_string(wr.swizzle),
                   &wr);
          m.note_read(unit, 16, acc, w, pc, what);
        }
      }
      u8* to = raw.data() + (size_t(o) * size_t(units) + size_t(u)) * 16;
      for (int i = 0; i < n; i++) std::memcpy(to + 16 * i, l.p + (at[i] - begin), 16);
      u += n;
    }
}

void convert_smem_tile(const u8* raw, Tile& t, int first, int rows, int ty, bool mn_major, bool wide) {
  int depth = t.depth, per = unit_of(ty, wide), outer = mn_major ? depth : rows,
      units = (mn_major ? rows : depth) / per;
  // The elements of a unit go side by side in the tile, or one per row.
  bool together = mn_major == t.by_k;
  size_t along = size_t(t.by_k ? t.rows : depth);
  float elements[32];
  for (int o = 0; o < outer; o++)
    for (int u = 0; u < units; u++, raw += 16) {
      int r = first + (mn_major ? u * per : o), k = mn_major ? o : u * per;
      float* to = t.v.data() + (t.by_k ? size_t(k) * along + size_t(r) : size_t(r) * along + size_t(k));
      convert_unit(raw, together ? to : elements, ty, per);
      if (!together)
        for (int e = 0; e < per; e++) to[size_t(e) * along] = elements[e];
    }
}

void load_smem_tile(Machine& m, Warp& w, int pc, const SmemDesc& d, int rank, int row0, Tile& t, int first,
                    int rows, int ty, bool mn_major, const Access& acc, const char* what, bool wide) {
  std::vector<u8> raw;
  read_smem_tile(m, w, pc, d, rank, row0, raw, t.bad, first, rows, t.depth, ty, mn_major, acc, what, wide);
  convert_smem_tile(raw.data(), t, first, rows, ty, mn_major, wide);
}

static const size_t HELD = 64;  // at least as many products as kernels commit in one wgmma group

const HeldOperand& held_operand(Machine& m, u64 descriptor, int rank, int type, int rows, int depth,
                                bool mn_major, bool negated, const std::vector<u8>& raw) {
  HeldOperand* held = nullptr;
  for (auto& x : m.held_operands)
    if (x->descriptor == descriptor && x->rank == rank && x->type == type && x->rows == rows &&
        x->depth == depth && x->mn_major == mn_major && x->negated == negated) {
      if (x->raw == raw) return *x;
      held = x.get();
      break;
    }
  if (!held) {
    auto made = std::make_shared<HeldOperand>(
        HeldOperand{descriptor, rank, type, rows, depth, mn_major, negated, {}, Tile(rows, depth, true), {}});
    held = made.get();
    if (m.held_operands.size() < HELD) m.held_operands.push_back(std::move(made));
    else m.held_operands[m.next_held++ % HELD] = std::move(made);
  }
  held->raw = raw;
  convert_smem_tile(raw.data(), held->tile, 0, rows, type, mn_major);
  if (negated) for (float& x : held->tile.v) x = -x;
  split_factors(held->tile.v.data(), type, rows, depth, held->factors);
  return *held;
}

}  // namespace emu
