// Bulk and tensor copies (the asynchronous proxy), the waits for their groups and for cp.async groups,
// cluster launch control.
#include "machine.hpp"

namespace emu {

namespace {

// The swizzle of an absolute shared-memory address.
u64 swizzle(u64 a, s64 mode) {
  switch (mode) {
    case 1: return a ^ (a >> 3 & 0x10);
    case 2: return a ^ (a >> 3 & 0x30);
    case 3: return a ^ (a >> 3 & 0x70);
    case 4: return a ^ (a >> 2 & 0x60);  // 128B with 32-byte atoms
    default: return a;
  }
}

// One row of a box: bytes of global memory, perhaps partly outside the tensor, and their offset in the box.
struct Row {
  u64 global = 0, inside_from = 0, inside_to = 0;  // address; bytes [from, to) of the row are in the tensor
  u64 offset = 0;
};

// Bytes from one row of a box to the next in shared memory. A swizzle pads rows to its span.
s64 pitch_of(const TensorMapRow& t) {
  static const s64 spans[] = {0, 32, 64, 128, 128};
  return std::max(t.box[0] * t.elem_bytes, spans[t.swizzle]);
}

std::vector<Row> rows_of(const TensorMapRow& t, int dims, const s64* coord, bool gather, s64& row_bytes) {
  std::vector<Row> out;
  s64 es = t.elem_bytes;
  row_bytes = t.box[0] * es;
  s64 from = std::clamp<s64>(-coord[0], 0, t.box[0]),
      to = std::clamp<s64>(t.dims[0] - coord[0], from, t.box[0]);
  s64 n[5] = {1, 1, 1, 1, 1};
  for (int d = 1; d < dims; d++) n[d] = t.box[d];
  if (gather) n[1] = 4;
  u64 off = 0;
  for (s64 i4 = 0; i4 < n[4]; i4++)
    for (s64 i3 = 0; i3 < n[3]; i3++)
      for (s64 i2 = 0; i2 < n[2]; i2++)
        for (s64 i1 = 0; i1 < n[1]; i1++) {
          Row r;
          r.offset = off;
          off += u64(pitch_of(t));
          s64 idx[5] = {0, i1, i2, i3, i4};
          bool in = to > from;
          u64 g = u64(t.base) + u64(coord[0] * es);
          for (int d = 1; d < dims; d++) {
            s64 k = gather ? coord[1 + i1] : coord[d] + idx[d];
            in &= k >= 0 && k < t.dims[d];
            g += u64(k) * u64(t.strides[d]);
          }
          r.global = g;
          if (in) r.inside_from = u64(from * es), r.inside_to = u64(to * es);
          out.push_back(r);
        }
  return out;
}

// PTX ISA, im2col mode: the pixels of a column. They start at the coordinates, go in steps through the
// bounding box, and continue in the box of the next image. The offsets shift every pixel; a pixel shifted out
// of the image is outside.
std::vector<Row> column_of(const TensorMapRow& t, int dims, const s64* coord, const s64* offsets,
                           s64& row_bytes) {
  std::vector<Row> out;
  s64 es = t.elem_bytes, at[5];
  s64 from = std::clamp<s64>(-coord[0], 0, t.box[0]),
      to = std::clamp<s64>(t.dims[0] - coord[0], from, t.box[0]);
  row_bytes = t.box[0] * es;
  std::copy(coord, coord + dims, at);
  for (s64 pixel = 0; pixel < t.pixels; pixel++) {
    Row r;
    r.offset = u64(pixel * pitch_of(t)), r.global = u64(t.base) + u64(coord[0] * es);
    bool in = to > from;
    for (int d = 1; d < dims; d++) {
      s64 k = at[d] + (d < dims - 1 ? offsets[d - 1] : 0);
      in &= k >= 0 && k < t.dims[d];
      r.global += u64(k) * u64(t.strides[d]);
    }
    if (in) r.inside_from = u64(from * es), r.inside_to = u64(to * es);
    out.push_back(r);
    int d = 1;
    for (; d < dims - 1; d++) {
      at[d] += t.elem_strides[d];
      if (at[d] <= t.dims[d] - 1 + t.upper[d - 1]) break;
      at[d] = t.lower[d - 1];
    }
    if (d == dims - 1) at[d]++;
  }
  return out;
}

// A tf32 map rounds the elements that it loads.
void round_tf32(u8* p, u64 n) {
  for (u64 i = 0; i + 4 <= n; i += 4) {
    u32 x;
    std::memcpy(&x, p + i, 4);
    x = encode(as_f32(x), TF32, false, RN);
    x = (x & 0x3FFFF) << 13 | x >> 18 << 31;
    std::memcpy(p + i, &x, 4);
  }
}

void fill_outside(u8* row, const Row& r, u64 n, const TensorMapRow& t) {
  if (!t.nan_fill) return;
  // The hardware fills with the same 16-bit NaN for every type.
  for (u64 i = 0; i < n; i += 2)
    if (i < r.inside_from || i >= r.inside_to) row[i] = 0xF7, row[i + 1] = 0x7F;
}

}  // namespace

// PTX ISA, cp.reduce.async.bulk and its tensor form: each reduction is relaxed, at GPU scope.
static constexpr u8 REDUCTION = EV_ASYNC | EV_ATOMIC;

u32 Machine::take_slot(Cluster& c, u32& clk) {
  u32 slot = c.slots_next;
  c.slots_next = (slot + 1) % u32(c.slot_clk.size());
  clk = ++c.slot_clk[slot];
  return c.slots_first + slot;
}

Flow Exec::bulk() {
  if (in.op == OP_bulk_commit) {
    w.bulk_open++;
    return Flow::next;
  }
  if (in.op == OP_cp_async_wait) {
    u64 n = in.m[0] ? 0 : uniform(0, "group count");
    u64 target = in.m[0] ? w.cp_open : w.cp_open - 1 >= n ? w.cp_open - 1 - n : 0;
    if (pending_group(w.cp_queue, target)) {
      g.wait = {WaitKind::cp_async, target};
      return Flow::wait;
    }
    g.wait = {};
    u32& seen = w.clock.hb[w.actor + P_CPASYNC];
    if (in.m[0]) w.cp_open++, w.cp_ended.push_back(w.cp_clk++);
    if (target) seen = std::max(seen, w.cp_ended[target - 1]);
    w.snapshot.reset();
    return Flow::next;
  }
  if (in.op == OP_bulk_wait) {
    u64 n = uniform(0, "group count"), target = w.bulk_open - 1 >= n ? w.bulk_open - 1 - n : 0;
    for (auto& b : w.bulk)
      if (b->group <= target && !(in.m[0] ? b->read_done : b->done)) {
        g.wait = {WaitKind::bulk, target, u64(in.m[0])};
        return Flow::wait;
      }
    g.wait = {};
    std::vector<std::shared_ptr<BulkOp>> left;
    acquires(mask);
    for (auto& b : w.bulk) {
      if (b->group <= target) w.clock.hb[b->slot] = std::max(w.clock.hb[b->slot], b->clk), b->awaited = true;
      if (b->group > target || !b->done) left.push_back(b);
    }
    w.bulk.swap(left);
    w.snapshot.reset();
    return Flow::next;
  }
  // bulk_load: dst, src, size, mbarrier [, mask]; bulk_store: dst, src, size; bulk_dsmem: dst, src, size,
  // mbarrier.
  Val d, s, size, bar, cast;
  get(0, d, true, "destination");
  get(1, s, true, "source");
  get(2, size, true, "size");
  bool load = in.op == OP_bulk_load, dsmem = in.op == OP_bulk_dsmem;
  if (load || dsmem) get(3, bar, true, "mbarrier address");
  if (load && in.m[0]) get(4, cast, true, "multicast mask");
  int red = load ? -1 : int(in.m[0]), ty = int(in.ty), p = pc;
  Machine* m = &M;
  Warp* wp = &w;
  auto at = M.fork(w);
  LANES(mask, l) {
    u64 n = low(size[l], 32);
    if (!n || n % 16)
      M.fatal("bulk-size", &w, pc,
              "bulk copy of " + std::to_string(n) + " bytes: not a positive multiple of 16");
    auto generic_shared = [](u64 x) { return x >= WIN_SHARED ? x - WIN_SHARED : x; };
    u32 clk, slot = M.take_slot(*c.cluster, clk);
    if (load || dsmem) {
      std::vector<std::pair<Loc, u64>> to;  // destination, address of its mbarrier
      u64 dst_addr = generic_shared(d[l]), bar_addr = generic_shared(bar[l]);
      if (load && in.m[0]) {
        for (u64 r = 0; r < 16; r++)
          if (cast[l] >> r & 1)
            to.push_back({M.shared_at(w, pc, (dst_addr & 0xFFFFFF) | r << RANK_SHIFT, n, 16, "bulk copy"),
                          (bar_addr & 0xFFFFFF) | r << RANK_SHIFT});
      } else {
        to.push_back({M.shared_at(w, pc, dst_addr, n, 16, "bulk copy"), bar_addr});
      }
      for (auto& x : to) M.use_mbar(w, pc, x.second, "bulk copy");
      Loc src = load ? M.resolve(w, pc, s[l], n, 1, 16, "bulk copy")
                     : M.shared_at(w, pc, generic_shared(s[l]), n, 16, "bulk copy");
      if (!load) check_issue(src, n, l, true, "bulk copy read");
      for (auto& x : to) check_issue(x.first, n, l, false, "bulk copy write");
      const char* kind = "bulk copy to shared memory";
      M.launch_pool(*c.cluster, std::make_shared<AsyncOp>(AsyncOp{kind, &w, pc, at, [=] {
        Access acc = m->async_access(*wp, slot, clk, p, *at);
        m->note_read(src, n, acc, *wp, p, "bulk copy read");
        std::vector<u8> data(src.p, src.p + n);
        Clock k = *at;
        k.hb[slot] = std::max(k.hb[slot], clk);
        Access put = red < 0 ? acc : m->async_access(*wp, slot, clk, p, *at, REDUCTION);
        for (auto& x : to) {
          m->note_write(x.first, n, put, *wp, p, "bulk copy write");
          if (red < 0) std::memcpy(x.first.p, data.data(), n);
          else {
            int es = TYPE_BITS[ty] / 8;
            for (u64 i = 0; i < n; i += es) {
              u64 a = 0, b = 0;
              std::memcpy(&a, x.first.p + i, es), std::memcpy(&b, data.data() + i, es);
              a = reduce_value(red, ty, a, b);
              std::memcpy(x.first.p + i, &a, es);
            }
          }
          m->mbar_tx(m->mbar(*wp, p, x.second, "bulk copy"), -s64(n), &k);
        }
        m->stats.async_read += n, m->stats.async_written += n * to.size();
        return true;
      }}));
    } else {
      Loc src = M.shared_at(w, pc, generic_shared(s[l]), n, 16, "bulk store"),
          dst = M.resolve(w, pc, d[l], n, 1, 16, "bulk store");
      if (!dst.region->r.writable)
        M.fatal("write-to-read-only", &w, pc, "bulk store to '" + dst.region->name + "', which is read-only");
      check_issue(src, n, l, true, "bulk store read");
      auto op = std::make_shared<BulkOp>(BulkOp{w.bulk_open, false, false, slot, clk, pc});
      w.bulk.push_back(op);
      auto data = std::make_shared<std::vector<u8>>();
      M.launch_pool(*c.cluster, std::make_shared<AsyncOp>(AsyncOp{"bulk store", &w, pc, at, [=] {
        Access acc = m->async_access(*wp, slot, clk, p, *at);
        if (!op->read_done) {
          m->note_read(src, n, acc, *wp, p, "bulk store read");
          data->assign(src.p, src.p + n);
          op->read_done = true;
          m->progress();
          return false;
        }
        Access put = red < 0 ? acc : m->async_access(*wp, slot, clk, p, *at, REDUCTION);
        if (red < 0) put.value = data->data(), put.held = dst.p;
        m->note_write(dst, n, put, *wp, p, "bulk store write");
        if (red < 0) std::memcpy(dst.p, data->data(), n);
        else {
          int es = TYPE_BITS[ty] / 8;
          for (u64 i = 0; i < n; i += es) {
            u64 a = 0, b = 0;
            std::memcpy(&a, dst.p + i, es), std::memcpy(&b, data->data() + i, es);
            a = reduce_value(red, ty, a, b);
            std::memcpy(dst.p + i, &a, es);
          }
        }
        op->done = true;
        m->stats.async_read += n, m->stats.async_written += n;
        return true;
      }}));
    }
  }
  M.tick(w);
  return Flow::next;
}

void Exec::tma() {
  bool load = in.op == OP_tma_load, gather = in.m[1] == 1, im2col = in.m[1] == 2;
  int dims = int(in.m[0]), nc = gather ? 5 : dims, red = load ? -1 : int(in.m[2]);
  if (gather && dims != 2) unsupported("gather4 and scatter4 take a 2-dimensional map");
  Val a, bar, map, cast;
  get(0, a, true, "shared address");
  int k = 1;
  if (load) get(k++, bar, true, "mbarrier address");
  get(k++, map, true, "tensor map address");
  std::vector<Val> cv(nc);
  for (int i = 0; i < nc; i++) get(k++, cv[i], true, "coordinate");
  std::vector<Val> ov(load && im2col ? size_t(dims - 2) : 0);
  for (Val& v : ov) get(k++, v, true, "im2col offset");
  bool multicast = load && in.m[2];
  if (multicast) get(k++, cast, true, "multicast mask");
  Machine* m = &M;
  Warp* wp = &w;
  int p = pc;
  auto at = M.fork(w);
  u32 issuing = mask;
  if (!load) {
    // Public kernels let a whole warp store the same box: for memory that is one store.
    auto same = [&](u32 x, u32 y) {
      bool eq = a[int(x)] == a[int(y)] && map[int(x)] == map[int(y)];
      for (int i = 0; i < nc; i++) eq &= cv[size_t(i)][int(x)] == cv[size_t(i)][int(y)];
      return eq;
    };
    u32 leader = u32(first());
    LANES(mask, l) if (l != leader && same(leader, l)) issuing &= ~(1u << l);
    if (issuing != mask && red >= 0)
      M.find(
          "reduction-by-many-threads", true, &w, pc,
          "the same tensor reduction is issued by " + std::to_string(__builtin_popcount(mask)) + " threads");
    else if (issuing != mask)
      M.find("store-by-many-threads", false, &w, pc,
             "the same tensor store is issued by " + std::to_string(__builtin_popcount(mask)) + " threads");
  }
  LANES(issuing, l) {
    u64 ma = map[l];
    auto t = std::make_shared<const TensorMapRow>(M.map_at(w, pc, ma));
    if (t->rank != dims)
      M.fatal("tensor-map", &w, pc,
              "a " + std::to_string(dims) + "-D copy with a map of rank " + std::to_string(t->rank));
    if (im2col != (t->pixels > 0))
      M.fatal("tensor-map", &w, pc,
              im2col ? "an im2col copy with a tiled map" : "a tiled copy with an im2col map");
    if (gather && t->box[1] != 1)
      M.fatal("tensor-map", &w, pc,
              "gather4 and scatter4 need a box of one row, the map has " + std::to_string(t->box[1]));
    s64 coord[5];
    for (int i = 0; i < nc; i++) coord[i] = sign_extend(cv[i][l], 32);
    // An H200 raises an illegal instruction for this, and for a store at a negative coordinate (below).
    int per = t->type == TY_e2m1 ? 2 : 1;
    if (coord[0] * t->elem_bytes % (16 * per))
      M.fatal("tensor-coordinate", &w, pc,
              "the innermost coordinate " + std::to_string(coord[0]) +
                  " is no multiple of 16 bytes for elements of " +
                  (per > 1 ? "4 bits" : std::to_string(t->elem_bytes)));
    coord[0] /= per;
    s64 offsets[3] = {};
    for (size_t i = 0; i < ov.size(); i++) {
      offsets[i] = s64(low(ov[i][l], 16));
      s64 most = dims == 3 ? 0xFFFF : dims == 4 ? 0xFF : 0x1F;
      if (offsets[i] > most)
        M.fatal("tensor-coordinate", &w, pc,
                "the im2col offset " + std::to_string(offsets[i]) + " exceeds " + std::to_string(most) +
                    ", the most of a " + std::to_string(dims) + "-D copy");
    }
    for (int i = 1; i < nc - 1 && im2col; i++) {
      s64 first = t->lower[i - 1], last = t->dims[i] - 1 + t->upper[i - 1];
      if (coord[i] < first || coord[i] > last)
        M.fatal("tensor-coordinate", &w, pc,
                "the filter's base " + std::to_string(coord[i]) + " in dimension " + std::to_string(i) +
                    " is outside of the bounding box, from " + std::to_string(first) + " to " +
                    std::to_string(last));
    }
    for (int i = 0; i < nc && !load && !gather && !im2col; i++)
      if (coord[i] < 0)
        M.fatal("tensor-coordinate", &w, pc,
                "a tensor store starts at the negative coordinate " + std::to_string(coord[i]));
    u64 box = gather ? 4 : im2col ? u64(t->pixels) : 1;
    for (int i = 1; i < dims && !gather && !im2col; i++) box *= u64(t->box[i]);
    if (box * u64(pitch_of(*t)) > u64(M.cfg.smem_end)) {
      M.fatal("out-of-bounds-shared", &w, pc,
              "the box of the tensor map has " + std::to_string(box) + " rows of " +
                  std::to_string(pitch_of(*t)) + " bytes, more than the CTA's shared memory");
    }
    s64 row_bytes;
    auto rows = std::make_shared<std::vector<Row>>(im2col ? column_of(*t, dims, coord, offsets, row_bytes)
                                                          : rows_of(*t, dims, coord, gather, row_bytes));
    u64 n = u64(row_bytes), total = n * rows->size(), extent = rows->back().offset + n;
    u64 sa = a[l] >= WIN_SHARED ? a[l] - WIN_SHARED : a[l];
    u32 clk, slot = M.take_slot(*c.cluster, clk);
    if (load) {
      std::vector<std::pair<u64, u64>> to;  // base address of the box, address of its mbarrier
      u64 ba = bar[l] >= WIN_SHARED ? bar[l] - WIN_SHARED : bar[l];
      if (multicast) {
        for (u64 r = 0; r < 16; r++)
          if (cast[l] >> r & 1) {
            // With cta_group::2 the mbarrier may be in either CTA of the pair.
            u64 br = in.m[3] == 2 ? (r & ~u64(1)) | (ba >> RANK_SHIFT & 1) : r;
            to.push_back({(sa & 0xFFFFFF) | r << RANK_SHIFT, (ba & 0xFFFFFF) | br << RANK_SHIFT});
          }
        if (to.empty()) M.fatal("multicast-mask", &w, pc, "the multicast mask is empty");
      } else {
        to.push_back({sa, ba});
      }
      for (auto& x : to) {
        Loc put = M.shared_at(w, pc, x.first, extent, 128, "tensor copy");
        check_issue(put, extent, l, false, "tensor copy write");
        M.use_mbar(w, pc, x.second, "tensor copy");
      }
      const char* kind = "tensor copy to shared memory";
      M.launch_pool(*c.cluster, std::make_shared<AsyncOp>(AsyncOp{kind, &w, pc, at, [=] {
        Access acc = m->async_access(*wp, slot, clk, p, *at);
        static const int16_t spans[] = {0, 32, 64, 128, 129};
        m->shadows.events[acc.event].swizzle = spans[t->swizzle];
        std::vector<u8> row(n);
        Clock done = *at;
        done.hb[slot] = std::max(done.hb[slot], clk);
        for (const Row& r : *rows) {
          std::fill(row.begin(), row.end(), 0);
          if (r.inside_to > r.inside_from) {
            Loc s = m->global_at(*wp, p, r.global + r.inside_from, r.inside_to - r.inside_from, "tensor copy",
                                 false);
            m->note_read(s, r.inside_to - r.inside_from, acc, *wp, p, "tensor copy read");
            std::memcpy(row.data() + r.inside_from, s.p, r.inside_to - r.inside_from);
            if (t->type == TY_tf32) round_tf32(row.data() + r.inside_from, r.inside_to - r.inside_from);
          }
          fill_outside(row.data(), r, n, *t);
          for (auto& x : to)
            for (u64 i = 0; i < n; i += 16) {
              u64 part = std::min<u64>(16, n - i);
              Loc d =
                  m->shared_at(*wp, p, swizzle(x.first + r.offset + i, t->swizzle), part, 1, "tensor copy");
              m->note_write(d, part, acc, *wp, p, "tensor copy write");
              std::memcpy(d.p, row.data() + i, part);
            }
        }
        for (auto& x : to) m->mbar_tx(m->mbar(*wp, p, x.second, "tensor copy"), -s64(total), &done);
        m->stats.async_read += total, m->stats.async_written += total * to.size();
        return true;
      }}));
    } else {
      Loc from = M.shared_at(w, pc, sa, extent, 128, "tensor store");
      check_issue(from, extent, l, true, "tensor store read");
      auto op = std::make_shared<BulkOp>(BulkOp{w.bulk_open, false, false, slot, clk, pc});
      w.bulk.push_back(op);
      auto data = std::make_shared<std::vector<u8>>(extent);
      M.launch_pool(*c.cluster, std::make_shared<AsyncOp>(AsyncOp{"tensor store", &w, pc, at, [=] {
        Access acc = m->async_access(*wp, slot, clk, p, *at);
        if (!op->read_done) {
          for (const Row& r : *rows)
            for (u64 j = 0; j < n; j += 16) {
              u64 part = std::min<u64>(16, n - j);
              Loc s = m->shared_at(*wp, p, swizzle(sa + r.offset + j, t->swizzle), part, 1, "tensor store");
              // Parts of the box outside the tensor do not count as read.
              if (j < r.inside_to && j + part > r.inside_from)
                m->note_read(s, part, acc, *wp, p, "tensor store read");
              std::memcpy(data->data() + r.offset + j, s.p, part);
            }
          op->read_done = true;
          m->progress();
          return false;
        }
        Access put = red < 0 ? acc : m->async_access(*wp, slot, clk, p, *at, REDUCTION);
        for (const Row& r : *rows) {
          if (r.inside_to <= r.inside_from) continue;
          u64 len = r.inside_to - r.inside_from;
          Loc d = m->global_at(*wp, p, r.global + r.inside_from, len, "tensor store", true);
          const u8* src = data->data() + r.offset + r.inside_from;
          if (red < 0) put.value = src, put.held = d.p;
          m->note_write(d, len, put, *wp, p, "tensor store write");
          if (red < 0) std::memcpy(d.p, src, len);
          else
            for (u64 i = 0; i < len; i += u64(t->elem_bytes)) {
              u64 x = 0, y = 0;
              std::memcpy(&x, d.p + i, size_t(t->elem_bytes)),
                  std::memcpy(&y, src + i, size_t(t->elem_bytes));
              x = reduce_value(red, int(t->type), x, y);
              std::memcpy(d.p + i, &x, size_t(t->elem_bytes));
            }
        }
        op->done = true;
        m->stats.async_read += total, m->stats.async_written += total;
        return true;
      }}));
    }
  }
  M.tick(w);
}

// Cluster launch control: cancel a cluster of the grid that has not started, to do its work here. The 16-byte
// answer is opaque to programs; its low word here holds a valid bit and the coordinates of the cluster's
// first CTA.
void Exec::launch_control() {
  if (in.op == OP_clc_query) {
    Val q;
    int n = int(in.count) - 1;
    get(n, q, true, "answer of try_cancel");
    auto field = [&](u64 v, int k) {
      return k == 0 ? v & 0x7FFFFFFF : k == 1 ? v >> 31 & 0xFFFF : v >> 47 & 0xFFFF;
    };
    u64 answer[32];
    std::copy(q.v, q.v + 32, answer);
    // Without a cancelled cluster the coordinates are undefined: they count as unwritten.
    u32 valid = 0;
    LANES(mask, l) if (in.m[0] == 0 || answer[l] >> 63) valid |= 1u << l;
    for (int i = 0; i < n; i++)
      if (u64* d = dst(i, valid & q.valid))
        LANES(mask, l)
        d[l] = in.m[0] == 0   ? answer[l] >> 63
               : in.m[0] == 4 ? (i < 3 ? field(answer[l], i) : 0)
                              : field(answer[l], int(in.m[0]) - 1);
    return;
  }
  Val a, bar;
  get(0, a, true, "address");
  get(1, bar, true, "mbarrier address");
  Machine* m = &M;
  Warp* wp = &w;
  int p = pc;
  auto at = M.fork(w);
  LANES(mask, l) {
    std::vector<std::pair<u64, u64>> to;
    auto shared = [](u64 x) { return x >= WIN_SHARED ? x - WIN_SHARED : x; };
    if (in.m[0])
      for (u64 r = 0; r < c.cluster->ctas.size(); r++)
        to.push_back(
            {(shared(a[l]) & 0xFFFFFF) | r << RANK_SHIFT, (shared(bar[l]) & 0xFFFFFF) | r << RANK_SHIFT});
    else to.push_back({shared(a[l]), shared(bar[l])});
    u32 clk, slot = M.take_slot(*c.cluster, clk);
    for (auto& x : to)
      M.shared_at(w, pc, x.first, 16, 16, "try_cancel"), M.use_mbar(w, pc, x.second, "try_cancel");
    M.launch_pool(*c.cluster, std::make_shared<AsyncOp>(AsyncOp{"try_cancel", &w, pc, at, [=] {
      s64 index = m->cancel_cluster(), id[3] = {};
      u64 answer[2] = {};
      if (index >= 0) {
        m->cluster_origin(index, id);
        for (int i = 0; i < 3; i++) id[i] *= m->cfg.cluster[i];
        answer[0] = u64(1) << 63 | u64(id[0]) | u64(id[1]) << 31 | u64(id[2]) << 47;
      }
      Access acc = m->async_access(*wp, slot, clk, p, *at);
      Clock k = *at;
      k.hb[slot] = std::max(k.hb[slot], clk);
      for (auto& x : to) {
        Loc d = m->shared_at(*wp, p, x.first, 16, 16, "try_cancel");
        m->note_write(d, 16, acc, *wp, p, "try_cancel");
        std::memcpy(d.p, answer, 16);
        m->mbar_tx(m->mbar(*wp, p, x.second, "try_cancel"), -16, &k);
      }
      return true;
    }}));
  }
  M.tick(w);
}

}  // namespace emu
