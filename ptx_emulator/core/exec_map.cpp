// Tensor maps in memory: copied by programs, changed by tensormap.replace, and read by tensor copies.
//
// The 128 bytes of a tensor map are opaque to programs, but programs of CuTe DSL write the hardware's bits,
// on the host and in kernels. Every map that a launch passes has an image of the known ones (descriptors.py),
// so that a program can copy the map to shared memory, replace fields and copy it back to global memory.
#include <algorithm>

#include "machine.hpp"

namespace emu {

namespace {

// The first half of the 128 bytes holds everything: CuTe DSL's kernels copy only that half.
struct Image {
  u64 base;
  u32 flags;
  u32 strides[4];  // units of 16 bytes; the upper four bits of each are in `upper`
  u32 upper;
  u32 dims[5];  // minus one
  u16 steps;    // element strides minus one, three bits each
  u8 unused;
  u8 box[5];  // minus one
  u32 zero;

  u32 field(int at, int bits) const { return flags >> at & ((1u << bits) - 1); }
  void set(int at, int bits, u64 v) { flags = (flags & ~(((1u << bits) - 1) << at)) | u32(v) << at; }
  s64 stride(int i) const { return (s64(strides[i]) | s64(upper >> (4 * i) & 15) << 32) << 4; }
  void set_stride(int i, u64 v) {
    strides[i] = u32(v >> 4);
    upper = (upper & ~(15u << (4 * i))) | u32(v >> 36 & 15) << (4 * i);
  }
  void set_step(int i, u64 v) { steps = u16((steps & ~(7u << (3 * i))) | u32(v - 1) << (3 * i)); }
  bool is_im2col() const { return field(0, 4) == 15; }  // the emulator's own mark (arguments.py)
  bool is_map() const { return field(0, 4) == 2 && field(RANK, 3) < 5 && field(18, 1); }
  // Positions of fields in `flags`; ATOM is the emulator's own.
  enum Bits : int { RANK = 4, TYPE = 7, INTERLEAVE = 11, SWIZZLE = 13, FILL = 15, ATOM = 31 };
};
static_assert(sizeof(Image) == 64);

// Types by their number in the image; the last number is the emulator's own.
constexpr int HELD[] = {TY_u8,  TY_u16, TY_u32,  TY_s32,  TY_u64,  TY_s64,  TY_f16,  TY_f32,
                        TY_f32, TY_f64, TY_bf16, TY_e2m1, TY_none, TY_none, TY_none, TY_tf32};
// PTX ISA, tensormap.replace: value of elemtype -> number in the image, for the types that tensor copies
// know.
constexpr int ELEMENTS[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 15, 11};

enum Field : int {
  F_ADDRESS, F_RANK, F_BOX, F_DIM, F_STRIDE, F_STEP, F_TYPE, F_INTERLEAVE, F_SWIZZLE, F_ATOM, F_FILL
};

// Two 4-bit elements make a byte: treat their map as one of bytes, with half the innermost sizes.
TensorMapRow in_bytes(TensorMapRow t) {
  if (t.type == TY_e2m1) t.dims[0] /= 2, t.box[0] /= 2;
  return t;
}

// Why the hardware or the emulator would refuse the map; empty if neither does.
std::string wrong(const TensorMapRow& t) {
  if (t.type == TY_none) return "the emulator has no such type of elements";
  if (t.base % 16) return "its base address " + hex(u64(t.base)) + " is no multiple of 16";
  if (t.interleave) return "it interleaves, which tensor copies of the emulator do not";
  s64 inner = t.box[0] * t.elem_bytes, span = t.swizzle ? std::min<s64>(16 << t.swizzle, 128) : 0;
  if (inner % 16)
    return "its innermost box extent of " + std::to_string(inner) + " bytes is no multiple of 16";
  if (span && inner > span)
    return "its innermost box extent of " + std::to_string(inner) + " bytes exceeds the swizzle's span of " +
           std::to_string(span);
  for (int i = 0; i < t.rank; i++) {
    if (t.elem_strides[i] != 1)
      return "element stride " + std::to_string(t.elem_strides[i]) + ", where the emulator knows 1 alone";
  }
  return "";
}

TensorMapRow row_of(const Image& m, u64 address) {
  TensorMapRow t{};
  t.address = s64(address), t.base = s64(m.base & 0x01FFFFFFFFFFFFFF), t.rank = m.field(m.RANK, 3) + 1,
  t.type = HELD[m.field(m.TYPE, 4)];
  t.elem_bytes = std::max(1, TYPE_BITS[t.type] / 8);
  for (int i = 0; i < 5; i++) {
    t.dims[i] = s64(m.dims[i]) + 1, t.box[i] = s64(m.box[i]) + 1,
    t.elem_strides[i] = (m.steps >> (3 * i) & 7) + 1;
    t.strides[i] = i ? m.stride(i - 1) : t.elem_bytes;
  }
  u32 swizzle = m.field(m.SWIZZLE, 2);
  t.swizzle = swizzle == 3 && m.field(m.ATOM, 1) ? 4 : swizzle;
  t.nan_fill = m.field(m.FILL, 1), t.interleave = m.field(m.INTERLEAVE, 2);
  return t;
}

}  // namespace

// tensormap.replace: m0 field, m1 space; operands: address, dimension (for some fields), value.
// tensormap.cp_fenceproxy: m0 -1; operands: destination in global memory, source in shared memory.
void Exec::tensormap() {
  Access acc = M.access(w, pc);
  if (in.m[0] < 0) {
    aligned();
    u64 to = uniform(0, "destination"), from = uniform(1, "source");
    Loc s = M.resolve(w, pc, from, 128, 2, 128, "tensormap.cp_fenceproxy"),
        d = M.resolve(w, pc, to, 128, 1, 128, "tensormap.cp_fenceproxy");
    if (d.region && !d.region->r.writable)
      M.fatal("write-to-read-only", &w, pc,
              "tensormap.cp_fenceproxy writes to '" + d.region->name + "', which is read-only");
    M.note_read(s, sizeof(Image), acc, w, pc, "tensormap.cp_fenceproxy");
    note_lane(s, sizeof(Image), 32, nullptr, "tensormap.cp_fenceproxy");
    M.note_write(d, 128, acc, w, pc, "tensormap.cp_fenceproxy");
    if (std::memcmp(d.p, s.p, 128)) M.progress();
    std::memcpy(d.p, s.p, 128);
    w.fenced = w.clock;
    M.tick(w);
    return;
  }
  int field = int(in.m[0]);
  bool many = field >= F_BOX && field <= F_STEP;
  Val a, ordinal, value;
  get(0, a, true, "address");
  if (many) get(1, ordinal, true, "ordinal");
  get(many ? 2 : 1, value, true, "new value");
  LANES(mask, l) {
    Loc at = M.resolve(w, pc, a[l], 128, int(in.m[1]), 128, "tensormap.replace");
    if (!at.shadow && !at.region)
      M.fatal("write-to-param", &w, pc, "tensormap.replace on a kernel parameter");
    if (at.region && !at.region->r.writable)
      M.fatal("write-to-read-only", &w, pc,
              "tensormap.replace on '" + at.region->name + "', which is read-only");
    M.note_read(at, sizeof(Image), acc, w, pc, "tensormap.replace");
    Image m;
    std::memcpy(&m, at.p, sizeof(Image));
    if (m.is_im2col()) unsupported("tensormap.replace on an im2col map");
    if (!m.is_map()) M.fatal("tensor-map", &w, pc, "tensormap.replace on 128 bytes that are no tensor map");
    u64 v = value[l], k = many ? ordinal[l] : 0;
    if (k > (field == F_STRIDE ? 3u : 4u))
      M.fatal("tensor-map", &w, pc, "tensormap.replace of ordinal " + std::to_string(k));
    if (field == F_STRIDE && (v % 16 || v >> 40))
      M.fatal("tensor-map", &w, pc,
              "tensormap.replace by stride " + std::to_string(v) + ", which is no multiple of 16 below 2^40");
    if (field != F_ADDRESS && field != F_STRIDE) v = low(v, 32);
    u64 most = field == F_BOX ? 256 : field == F_STEP ? 8 : field == F_DIM ? 0xFFFFFFFF : 0;
    if (most && (!v || v > most))
      M.fatal("tensor-map", &w, pc,
              "tensormap.replace by " + std::to_string(v) + ", outside 1 to " + std::to_string(most));
    switch (field) {
      case F_ADDRESS: m.base = v; break;
      case F_RANK: m.set(m.RANK, 3, std::min<u64>(v, 7)); break;
      case F_BOX: m.box[k] = u8(v - 1); break;
      case F_DIM: m.dims[k] = u32(v - 1); break;
      case F_STRIDE: m.set_stride(int(k), v); break;
      case F_STEP: m.set_step(int(k), v); break;
      case F_TYPE:
        if (v >= std::size(ELEMENTS))
          unsupported("tensor maps of elements of 4 and 6 bits that shared memory holds unpacked");
        m.set(m.TYPE, 4, u64(ELEMENTS[v]));
        break;
      case F_INTERLEAVE: m.set(m.INTERLEAVE, 2, std::min<u64>(v, 3)); break;
      case F_SWIZZLE:
        if (v > 3) unsupported("this swizzle of a tensor map");
        m.set(m.SWIZZLE, 2, v);
        break;
      case F_ATOM:
        if (v > 1) unsupported("this swizzle of a tensor map");
        m.set(m.ATOM, 1, v);
        break;
      case F_FILL: m.set(m.FILL, 1, v != 0); break;
    }
    M.note_write(at, sizeof(Image), acc, w, pc, "tensormap.replace");
    if (at.shadow) note_lane(at, sizeof(Image), l, reinterpret_cast<u8*>(&m), "tensormap.replace");
    std::memcpy(at.p, &m, sizeof(Image));
    M.progress();
  }
}

// fence.proxy.tensormap::generic.acquire: later tensor copies of the warp see the map at the address as it is
// now.
void Exec::acquire_map() {
  Val a;
  get(0, a, true, "address");
  LANES(mask, l) w.maps_seen[a[l]] = w.clock;
  M.tick(w);
}

// The map at the address that a tensor copy names.
TensorMapRow Machine::map_at(Warp& w, int pc, u64 address) {
  if (auto it = maps.find(address); it != maps.end()) {
    const TensorMapRow& t = it->second;
    for (int i = 1; i < t.rank && !t.pixels; i++)
      if (t.elem_strides[i] != 1)
        fatal("tensor-map", &w, pc,
              "the tensor map at " + hex(address) + " cannot be used: element stride " +
                  std::to_string(t.elem_strides[i]) + ", where the emulator knows 1 alone");
    return in_bytes(t);
  }
  if (maps.count(address + WIN_PARAM))
    fatal("tensor-map", &w, pc,
          "the tensor map's address is one of the parameter space: convert it with cvta.param");
  GlobalRegion* r = region_of(address);
  Image m{};
  if (r && within(address, 128, u64(r->r.base + r->r.size)))
    std::memcpy(&m, reinterpret_cast<u8*>(r->r.host) + (address - u64(r->r.base)), sizeof(Image));
  if (m.is_im2col())
    fatal("tensor-map", &w, pc,
          "the tensor map at " + hex(address) +
              " is a copy of an im2col map, of which the emulator knows no bits: use it where it was passed");
  if (!m.is_map()) fatal("tensor-map", &w, pc, "no tensor map was passed at address " + hex(address));
  if (address % 64)
    fatal("tensor-map", &w, pc, "the tensor map at " + hex(address) + " is not aligned to 64 bytes");
  Loc at = global_at(w, pc, address, 128, "tensor copy", false);
  note_read(at, 128, access(w, pc), w, pc, "tensor copy, its tensor map");
  // PTX ISA, membar and fence: the tensormap proxy sees generic writes only after an acquire fence on the
  // map.
  auto seen = w.maps_seen.find(address);
  u32 last = 0;
  for (u64 o = at.region_offset; o < at.region_offset + 128; o++) {
    Page* page = r->page(o >> 12, false);
    u32 e = page ? page->s[o & 4095].w : 0;
    if (!e || e == last) continue;
    last = e;
    const Event& ev = shadows.events[e];
    bool covered = seen != w.maps_seen.end() &&
                   (ev.cluster == w.cta->cluster->index ? seen->second.hb[ev.actor] >= ev.clk
                                                        : seen->second.knows(ev.cluster, ev.actor, ev.clk));
    if (!covered) {
      find("missing-tensormap-fence", true, &w, pc,
           "a tensor copy reads a tensor map that was written, with no "
           "fence.proxy.tensormap::generic.acquire on it after that",
           &ev);
      break;
    }
  }
  TensorMapRow t = in_bytes(row_of(m, address));
  if (std::string why = wrong(t); !why.empty())
    fatal("tensor-map", &w, pc, "the tensor map at " + hex(address) + " cannot be used: " + why);
  return t;
}

}  // namespace emu
