// Loads, stores, atomics, cp.async, ldmatrix and stmatrix.
#include <algorithm>

#include "machine.hpp"

namespace emu {

namespace {
u64 read_le(const u8* p, int n) {
  u64 v = 0;
  std::memcpy(&v, p, n);
  return v;
}
}  // namespace

// The numbers of the words or sectors that a warp's access touches, sorted and without duplicates. Most
// accesses are sorted already.
struct Touched {
  u64 at[32 * 64];
  int count = 0;
  Touched(const u64* addr, u32 mask, int bytes, int shift) {
    bool sorted = true;
    LANES(mask, l)
    for (u64 x = addr[l] >> shift; x <= (addr[l] + u64(bytes) - 1) >> shift && count < int(std::size(at));
         x++) {
      if (count && at[count - 1] == x) continue;
      sorted &= !count || at[count - 1] < x;
      at[count++] = x;
    }
    if (sorted) return;
    std::sort(at, at + count);
    count = int(std::unique(at, at + count) - at);
  }
};

// Passes over the shared-memory banks that a warp's access needs beyond the minimum.
static u64 bank_conflicts(const u64* addr, u32 mask, int bytes) {
  Touched words(addr, mask, bytes, 2);
  int per_bank[32] = {}, worst = 0;
  for (int i = 0; i < words.count; i++) worst = std::max(worst, ++per_bank[words.at[i] & 31]);
  int least = (words.count + 31) / 32;
  return worst > least ? u64(worst - least) : 0;
}

static u64 sectors(const u64* addr, u32 mask, int bytes) { return u64(Touched(addr, mask, bytes, 5).count); }

static bool local_access(int space, u64& addr) {
  if (space == 4) return true;
  if ((space == 0 || space == 3) && addr >= WIN_LOCAL && addr < WIN_LOCAL + WIN_SIZE) {
    addr -= WIN_LOCAL;
    return true;
  }
  return false;
}

u8* Exec::local_at(u32 lane, u64 addr, u64 size) {
  u64 each = u64(M.cfg.local_bytes);
  if (!within(addr, size, each))
    M.fatal(
        "out-of-bounds-local", &w, pc,
        "local address " + hex(addr) + " and " + std::to_string(size) + " bytes, of " + std::to_string(each));
  if (addr & (size - 1))
    M.fatal("misaligned", &w, pc, "local address " + hex(addr) + " needs alignment " + std::to_string(size));
  if (w.local.empty()) w.local.assign(size_t(each) * 32, 0xCD);
  return w.local.data() + lane * each + addr;
}

// Call each(number), where the number has this many bytes.
template <class Each>
static void of_width(int bytes, Each each) {
  switch (bytes) {
    case 1: return each(u8());
    case 2: return each(u16());
    case 4: return each(u32());
    default: return each(u64());
  }
}

// Fill the executing lanes of a register from memory; at(lane) is the place of a lane's value.
template <class At>
static void fill_lanes(u64* to, u32 mask, int bytes, At at) {
  of_width(bytes, [&](auto number) {
    LANES(mask, l) std::memcpy(&number, at(l), sizeof number), to[l] = number;
  });
}

// Store the executing lanes of a register; at(lane) is the place of a lane's value.
template <class At>
static void store_lanes(const u64* from, u32 mask, int bytes, At at) {
  of_width(bytes, [&](auto number) {
    LANES(mask, l) number = decltype(number)(from[l]), std::memcpy(at(l), &number, sizeof number);
  });
}

void Exec::load() {
  int n = int(in.m[1]), bits1 = TYPE_BITS[in.ty], bytes = bits1 / 8, total = n * bytes;
  int space = int(in.m[0]);
  Val a;
  get(n, a, true, "address");
  u64 addr[32], apart = 0;
  std::copy(a.v, a.v + 32, addr);
  LANES(mask, l) apart |= addr[l] ^ addr[first()];
  Access acc;
  u64* d[8] = {};
  for (int i = 0; i < n; i++) d[i] = dst(i, ~0u);
  bool shared = false, global = false;
  const u8* from[32];
  auto reach = [&](u32 l, u32 lanes) {  // the lanes read at the address of lane l
    u64 x = addr[l];
    if (local_access(space, x)) {
      LANES(lanes, k) from[k] = local_at(k, x, u64(total));
      return;
    }
    Loc loc = M.resolve(w, pc, x, u64(total), space, u32(total), "load");
    if (!acc.event && (loc.region || loc.shadow)) acc = M.access(w, pc, in.m[2] ? EV_ATOMIC : 0);
    M.note_read(loc, u64(total), acc, w, pc, "load");
    if (loc.shadow && !in.m[2]) note_lanes_read(loc, u64(total), lanes, "load");
    shared |= loc.shadow != nullptr, global |= loc.region != nullptr;
    if (in.m[2] && (loc.region || loc.shadow))
      M.sync_acquire(Machine::sync_key(w, loc), w, in.m[2] == 2);
    LANES(lanes, k) from[k] = loc.p;
  };
  if (apart) LANES(mask, l) reach(l, 1u << l);
  else reach(u32(first()), mask);
  u64 hash = 0;  // of the values read, to recognise polling
  for (int i = 0; i < n; i++)
    if (d[i]) {
      fill_lanes(d[i], mask, bytes, [&](u32 l) { return from[l] + i * bytes; });
      if (in.m[2]) LANES(mask, l) hash = (hash ^ d[i][l] ^ addr[l]) * 0x9E3779B97F4A7C15ull;
      if (TYPE_CLASS[in.ty] == 's')
        LANES(mask, l) d[i][l] = low(u64(sign_extend(d[i][l], bits1)), std::max(int(in.m[5]), bits1));
    }
  if (in.m[2]) lanes_met(mask);
  u32 distinct = apart ? mask : mask & -mask;  // lanes that read where no lane before them does
  if (shared) {
    M.stats.shared_read += u64(total) * __builtin_popcount(mask);
    M.stats.shared_accesses++;
    M.stats.bank_conflicts += bank_conflicts(addr, distinct, total);
  }
  if (global) {
    M.stats.global_read += u64(total) * __builtin_popcount(mask);
    M.stats.global_sectors += sectors(addr, distinct, total);
    if (in.m[2]) {
      auto [last, first] = w.looked.insert({pc, hash});
      if (first || last->second != hash) w.polled = false;
      else LANES(distinct, l) M.poll(w, addr[l]);
      last->second = hash;
    }
  }
}

// Lanes of one weak store may write to the same address only the same value: which value stays is undefined.
// Accesses are aligned to their size, so two of them overlap completely or not at all.
void Exec::lanes_agree(const u64* addr, const Val* v, int n, int space) {
  int order[32], count = 0, bits = TYPE_BITS[in.ty];
  u64 kept = bits >= 64 ? ~0ull : (1ull << bits) - 1;
  bool ascending = true;
  LANES(mask, l) {
    u64 at = addr[l];
    if (local_access(space, at)) continue;
    ascending &= count == 0 || addr[order[count - 1]] < addr[l];
    order[count++] = l;
  }
  if (ascending) return;
  std::sort(order, order + count,
            [&](int a, int b) { return addr[a] != addr[b] ? addr[a] < addr[b] : a < b; });
  for (int i = 1; i < count; i++) {
    int a = order[i - 1], b = order[i];
    if (addr[a] != addr[b]) continue;
    for (int k = 0; k < n; k++)
      if ((v[k].v[a] ^ v[k].v[b]) & kept) {
        M.find("lane-conflict", true, &w, pc,
               "lanes " + std::to_string(a) + " and " + std::to_string(b) +
                   " store different values to one address");
        return;
      }
  }
}

// A store of all executing lanes at once, where they fill a range of global memory in their order and nothing
// is to be found. False: nothing was done.
bool Exec::store_range(const u64* addr, const u8 (*values)[64], int total, Access acc) {
  u64 begin = addr[first()], next = begin, n = u64(total) * u64(__builtin_popcount(mask));
  bool in_order = begin % u64(total) == 0 && n > u64(total);
  LANES(mask, l) in_order &= addr[l] == next, next += u64(total);
  if (!in_order || begin >= WIN_SHARED) return false;
  GlobalRegion* r = M.region_of(begin);
  if (!r || !r->r.writable || n > u64(r->r.base + r->r.size) - begin) return false;
  Loc loc = M.global_at(w, pc, begin, n, "store", true);
  if (!M.follows_all(loc, n, acc)) return false;
  M.note_write(loc, n, acc, w, pc, "store");
  u8 all[32 * 64], *to = all;
  LANES(mask, l) std::memcpy(to, values[l], size_t(total)), to += total;
  if (std::memcmp(loc.p, all, n)) M.progress();
  std::memcpy(loc.p, all, n);
  return true;
}

void Exec::store() {
  bool remote_async = in.op == OP_st_async;
  int n = int(in.m[1]), bits1 = TYPE_BITS[in.ty], bytes = bits1 / 8, total = n * bytes, space = int(in.m[0]);
  Val a;
  get(0, a, true, "address");
  u64 addr[32];
  std::copy(a.v, a.v + 32, addr);
  Val v[8];
  u32 valid = ~0u;
  for (int i = 0; i < n; i++) get(1 + i, v[i]), valid &= v[i].valid;
  Val bar;
  if (remote_async) get(1 + n, bar, true, "mbarrier address");
  Access acc = M.access(w, pc, in.m[2] ? EV_ATOMIC : 0);
  bool shared = false, global = false;
  u8 values[32][64];
  for (int i = 0; i < n; i++) store_lanes(v[i].v, mask, bytes, [&](u32 l) { return values[l] + i * bytes; });
  bool weak = !in.m[2] && !remote_async;
  if (weak) lanes_agree(addr, v, n, space);
  u32 left = mask;
  if (weak && !(mask & ~valid) && space < 2 && store_range(addr, values, total, acc)) global = true, left = 0;
  LANES(left, l) {
    const u8* raw = values[l];
    u64 x = addr[l];
    if (local_access(space, x)) {
      std::memcpy(local_at(l, x, u64(total)), raw, size_t(total));
      continue;
    }
    Loc loc = M.resolve(w, pc, x, u64(total), space, u32(total), "store");
    u64 unknown = 0;  // bytes of the value that are not completely written
    if (!(valid >> l & 1))
      for (int i = 0; i < total; i++)
        if (u8(~known(v[size_t(i / bytes)], l) >> (8 * (i % bytes)))) unknown |= u64(1) << i;
    if (loc.region) {
      global = true;
      if (!loc.region->r.writable)
        M.fatal("write-to-read-only", &w, pc, "store to '" + loc.region->name + "', which is read-only");
      if (unknown)
        M.find("uninit-register", true, &w, pc,
               "lane " + std::to_string(l) +
                   " stores a value that depends on an uninitialised register to '" + loc.region->name + "'");
    }
    shared |= loc.shadow != nullptr;
    if (!loc.shadow && !loc.region) M.fatal("write-to-param", &w, pc, "store to a kernel parameter");
    acc.value = remote_async ? nullptr : raw, acc.held = loc.p;
    if (loc.shadow && weak) note_lane(loc, u64(total), l, raw, "store");
    M.note_write(loc, u64(total), acc, w, pc, "store");
    // Storing an uninitialised value leaves the memory uninitialised.
    if (loc.shadow)
      for (int i = 0; i < total; i++)
        if (unknown >> i & 1) loc.shadow[i].w = 0;
    if (std::memcmp(loc.p, raw, total)) M.progress();
    std::memcpy(loc.p, raw, total);
    if (in.m[2] && !remote_async) {
      if (in.m[2] >= 3) M.sync_release(Machine::sync_key(w, loc), w, w.clock);
      else if (!w.fenced.empty()) M.sync_release(Machine::sync_key(w, loc), w, w.fenced);
    }
    if (remote_async) {
      MBar& b = M.use_mbar(w, pc, bar[l], "st.async");
      M.mbar_tx(b, -s64(total), &w.clock);
    }
  }
  if (in.m[2] >= 3) released(mask);
  if (in.m[2] >= 3 || remote_async) M.tick(w);
  if (in.m[2]) lanes_met(mask);
  if (shared) {
    M.stats.shared_written += u64(total) * __builtin_popcount(mask);
    M.stats.shared_accesses++;
    M.stats.bank_conflicts += bank_conflicts(addr, mask, total);
  }
  if (global) M.stats.global_written += u64(total) * __builtin_popcount(mask);
}

static u64 atom_value(int op, int ty, u64 old, u64 x, u64 y) {
  int n = TYPE_BITS[ty];
  if (TYPE_CLASS[ty] == 'p') {
    u64 r = 0;
    int et = ty == TY_f16x2 ? TY_f16 : TY_bf16;
    for (int h = 0; h < 2; h++)
      r |= atom_value(op, et, low(old >> 16 * h, 16), low(x >> 16 * h, 16), 0) << 16 * h;
    return r;
  }
  if (TYPE_CLASS[ty] == 'f' && op <= 2) {
    if (ty == TY_f64) {
      double a = as_f64(old), b = as_f64(x);
      return bits(op == 0 ? a + b : op == 1 ? std::fmin(a, b) : std::fmax(a, b));
    }
    float a = ty == TY_f32 ? as_f32(old) : decode(u32(old), format_of(ty)),
          b = ty == TY_f32 ? as_f32(x) : decode(u32(x), format_of(ty));
    float r = op == 0 ? a + b : op == 1 ? std::fmin(a, b) : std::fmax(a, b);
    return ty == TY_f32 ? bits(canonical(r)) : encode(r, format_of(ty));
  }
  bool sgn = TYPE_CLASS[ty] == 's';
  u64 o = low(old, n);
  x = low(x, n);
  switch (op) {
    case 0: return low(o + x, n);
    case 1: return sgn ? (sign_extend(x, n) < sign_extend(o, n) ? x : o) : std::min(o, x);
    case 2: return sgn ? (sign_extend(x, n) > sign_extend(o, n) ? x : o) : std::max(o, x);
    case 3: return o & x;
    case 4: return o | x;
    case 5: return o ^ x;
    case 6: return x;
    case 7: return o == x ? low(y, n) : o;
    case 8: return o >= x ? 0 : o + 1;
    default: return o == 0 || o > x ? x : o - 1;
  }
}

u64 reduce_value(int op, int ty, u64 old, u64 x) { return atom_value(op, ty, old, x, 0); }

void Exec::atomic() {
  int n = int(in.m[4]), bytes = TYPE_BITS[in.ty] / 8, op = int(in.m[1]), sem = int(in.m[2]);
  Val a, y;
  get(n, a, true, "address");
  u64 addr[32];
  std::copy(a.v, a.v + 32, addr);
  std::vector<Val> v(n);
  for (int i = 0; i < n; i++) get(n + 1 + i, v[i], true, "atomic operand");
  if (op == 7) get(n + 1 + n, y, true, "atomic operand");
  std::vector<u64> out(32 * n);
  Access acc = M.access(w, pc, EV_ATOMIC);
  bool shared = false;
  LANES(mask, l) {
    Loc loc = M.resolve(w, pc, addr[l], u64(bytes * n), int(in.m[0]), u32(bytes * n), "atomic");
    if (!loc.shadow && !loc.region) M.fatal("write-to-param", &w, pc, "atomic on a kernel parameter");
    if (loc.region && !loc.region->r.writable)
      M.fatal("write-to-read-only", &w, pc, "atomic on '" + loc.region->name + "', which is read-only");
    shared |= loc.shadow != nullptr;
    M.note_read(loc, u64(bytes * n), acc, w, pc, "atomic");
    M.note_write(loc, u64(bytes * n), acc, w, pc, "atomic");
    u64 key = Machine::sync_key(w, loc);
    M.sync_acquire(key, w, sem == 2 || sem == 4);
    if (sem >= 3) M.sync_release(key, w, w.clock);
    else if (!w.fenced.empty()) M.sync_release(key, w, w.fenced);
    for (int i = 0; i < n; i++) {
      u64 old = read_le(loc.p + i * bytes, bytes);
      out[i * 32 + l] = old;
      u64 r;
      // An f32 add to global memory flushes subnormal numbers; adds to shared memory and bulk reductions do
      // not.
      if (loc.region && in.ty == TY_f32 && op == 0)
        r = bits(flush(canonical(flush(as_f32(old)) + flush(as_f32(v[i][l])))));
      else r = atom_value(op, int(in.ty), old, v[i][l], op == 7 ? y[l] : 0);
      if (r != old) M.progress();
      std::memcpy(loc.p + i * bytes, &r, bytes);
    }
  }
  if (sem >= 3) released(mask), M.tick(w);
  lanes_met(mask);
  for (int i = 0; i < n; i++)
    if (u64* d = dst(i, ~0u)) LANES(mask, l) d[l] = out[i * 32 + l];
  u64& bytes_of = shared ? M.stats.shared_written : M.stats.global_written;
  bytes_of += u64(bytes * n) * __builtin_popcount(mask);
}

void Exec::cp_async() {
  if (in.op == OP_cp_async_commit) {
    w.cp_open++;
    w.cp_ended.push_back(w.cp_clk++);
    return;
  }
  u32 actor = w.actor + P_CPASYNC, clk = w.cp_clk;
  if (in.op == OP_cp_async_mbar) {
    Val a;
    get(0, a, true, "mbarrier address");
    std::vector<u64> bars;
    LANES(mask, l) bars.push_back(a[l]);
    bool noinc = in.m[0];
    for (size_t i = 0; i < bars.size(); i++) {
      bool again = i && bars[i] == bars[0];
      MBar& b = again ? M.mbar(w, pc, bars[i], "cp.async.mbarrier.arrive")
                      : M.use_mbar(w, pc, bars[i], "cp.async.mbarrier.arrive");
      if (!noinc) b.pending++;
    }
    auto at = M.fork(w);
    Machine* m = &M;
    Warp* wp = &w;
    int p = pc;
    M.launch_async(w.cp_queue, std::make_shared<AsyncOp>(AsyncOp{"cp.async.mbarrier.arrive", &w, pc, at, [=] {
      Clock k = *at;
      k.hb[actor] = std::max(k.hb[actor], clk);
      for (u64 x : bars) m->mbar_arrive(m->mbar(*wp, p, x, "cp.async.mbarrier.arrive"), *wp, p, 1, &k);
      return true;
    }, w.cp_open}));
    w.cp_clk++;  // the arrival does not cover later copies
    M.tick(w);
    return;
  }
  Val d, s, src_size;
  get(0, d, true, "destination");
  get(1, s, true, "source");
  u64 n = uniform(2, "copy size");
  if (n != 4 && n != 8 && n != 16)
    M.fatal("cp-async-size", &w, pc, "cp.async of " + std::to_string(n) + " bytes");
  if (in.m[0]) get(3, src_size, true, "source size");
  struct One { Loc dst, src; u64 take; };
  std::vector<One> all;
  LANES(mask, l) {
    u64 take = in.m[0] == 1 ? low(src_size[l], 32) : in.m[0] == 2 ? (src_size[l] & 1 ? 0 : n) : n;
    if (take > n)
      M.fatal("cp-async-size", &w, pc, "source size " + std::to_string(take) + " exceeds the copy size");
    One x;
    x.take = take;
    x.dst = M.shared_at(w, pc, d[l], n, u32(n), "cp.async");
    if (take) x.src = M.resolve(w, pc, s[l], take, 1, u32(n), "cp.async");
    all.push_back(x);
  }
  M.stats.async_read += n * all.size();
  auto at = M.fork(w);
  Machine* m = &M;
  Warp* wp = &w;
  int p = pc;
  M.launch_async(w.cp_queue, std::make_shared<AsyncOp>(AsyncOp{"cp.async", &w, pc, at, [=] {
    // cp.async works through the generic proxy; its pipe is an actor of its own.
    Access acc = m->async_access(*wp, actor, clk, p, *at, EV_CPASYNC);
    for (auto& x : all) {
      u8 raw[16] = {};
      if (x.take) {
        m->note_read(x.src, x.take, acc, *wp, p, "cp.async read");
        std::memcpy(raw, x.src.p, x.take);
      }
      m->note_write(x.dst, n, acc, *wp, p, "cp.async write");
      std::memcpy(x.dst.p, raw, n);
    }
    return true;
  }, w.cp_open}));
}

// ldmatrix and stmatrix: lane 8i+j holds the address of row j of matrix i; lane t owns elements 2(t%4) and
// 2(t%4)+1 of row t/4 of the matrix, or with .trans of the transposed matrix.
void Exec::matrix() {
  aligned();
  if (in.m[2]) return matrix8();
  bool load = in.op == OP_ldmatrix, trans = in.m[1];
  int n = int(in.m[0]);
  Val a;
  get(load ? n : 0, a, true, "row address");
  Access acc = M.access(w, pc);
  u64 addr[32];
  std::copy(a.v, a.v + 32, addr);
  u16 mat[4][8][8];
  const char* what = load ? "ldmatrix" : "stmatrix";
  if (!load) {
    for (int i = 0; i < n; i++) {
      Val v;
      get(1 + i, v, true, "matrix fragment");
      for (int t = 0; t < 32; t++)
        for (int h = 0; h < 2; h++) {
          int r = t / 4, k = 2 * (t % 4) + h;
          (trans ? mat[i][k][r] : mat[i][r][k]) = u16(v[t] >> (16 * h));
        }
    }
  }
  for (int i = 0; i < n; i++)
    for (int j = 0; j < 8; j++) {
      Loc l = M.shared_at(w, pc, addr[8 * i + j], 16, 16, what);
      if (load) {
        M.note_read(l, 16, acc, w, pc, what);
        note_lane(l, 16, 32, nullptr, what);
        std::memcpy(mat[i][j], l.p, 16);
      } else {
        M.note_write(l, 16, acc, w, pc, what);
        note_lane(l, 16, 32, reinterpret_cast<u8*>(mat[i][j]), what);
        std::memcpy(l.p, mat[i][j], 16);
        M.progress();
      }
    }
  for (int i = 0; i < n; i++) {
    int per_bank[8] = {}, worst = 0;
    for (int j = 0; j < 8; j++) worst = std::max(worst, ++per_bank[addr[8 * i + j] >> 4 & 7]);
    M.stats.bank_conflicts += u64(worst - 1);
    M.stats.shared_accesses++;
  }
  (load ? M.stats.shared_read : M.stats.shared_written) += u64(128 * n);
  if (load)
    for (int i = 0; i < n; i++)
      if (u64* d = dst(i, ~0u))
        for (int t = 0; t < 32; t++) {
          u64 v = 0;
          for (int h = 0; h < 2; h++) {
            int r = t / 4, k = 2 * (t % 4) + h;
            v |= u64(trans ? mat[i][k][r] : mat[i][r][k]) << (16 * h);
          }
          d[t] = v;
        }
}

// Matrices of bytes, always transposed. With g = lane / 4 and q = lane % 4:
// A load has 16 rows of 16 bytes; the first register holds rows 4q to 4q+3 of column g, the second of column
// g+8. A store has 8 rows of 16 bytes; the register holds rows 2q and 2q+1 of column g, then of column g+8.
void Exec::matrix8() {
  bool load = in.op == OP_ldmatrix;
  int n = int(in.m[0]) * (load ? 2 : 1), rows = 8 * n;
  Val a;
  get(load ? n : 0, a, true, "row address");
  Access acc = M.access(w, pc);
  u64 addr[32];
  std::copy(a.v, a.v + 32, addr);
  u8 mat[32][16];
  const char* what = load ? "ldmatrix" : "stmatrix";
  auto move = [&](bool to_memory) {
    for (int r = 0; r < rows; r++) {
      Loc l = M.shared_at(w, pc, addr[r], 16, 16, what);
      if (to_memory) {
        M.note_write(l, 16, acc, w, pc, what);
        note_lane(l, 16, 32, mat[r], what);
        std::memcpy(l.p, mat[r], 16);
        M.progress();
      } else {
        M.note_read(l, 16, acc, w, pc, what);
        note_lane(l, 16, 32, nullptr, what);
        std::memcpy(mat[r], l.p, 16);
      }
    }
  };
  if (load) move(false);
  for (int i = 0; i < n; i++) {
    Val v;
    u64* d = nullptr;
    if (load) d = dst(i, ~0u);
    else get(1 + i, v, true, "matrix fragment");
    for (int t = 0; t < 32; t++) {
      u64 out = 0;
      for (int b = 0; b < 4; b++) {
        u8& cell = load ? mat[16 * (i / 2) + 4 * (t % 4) + b][t / 4 + 8 * (i % 2)]
                        : mat[8 * i + 2 * (t % 4) + b % 2][t / 4 + 8 * (b / 2)];
        if (load) out |= u64(cell) << 8 * b;
        else cell = u8(v[t] >> 8 * b);
      }
      if (d) d[t] = out;
    }
  }
  if (!load) move(true);
  M.stats.shared_accesses += u64(n);
  (load ? M.stats.shared_read : M.stats.shared_written) += u64(16 * rows);
}

}  // namespace emu
