// Tensor memory: the layout of accumulators, and checked accesses.
#pragma once
#include "operand.hpp"

namespace emu {

inline Tmem& tmem_of(Cta& c) {
  if (!c.tmem) {
    if (!c.memory->tmem) c.memory->tmem = std::make_unique<Tmem>();
    c.tmem = c.memory->tmem.get();
  }
  return *c.tmem;
}

struct Cell {
  int lane, col;
};

// The cell of accumulator element (m, n) of one CTA's part. rows: M of this CTA; n_total: columns of D.
inline Cell accumulator(int rows, int n_total, int m, int n, bool ws, int group) {
  if (rows == 128) return {m, n};
  if (ws || group == 2) {
    if (rows == 64) return {m + 64 * (n >= n_total / 2), n % (n_total / 2)};
    return {m + 32 * (n / (n_total / 4)), n % (n_total / 4)};
  }
  return {m % 16 + 32 * (m / 16), n};  // M = 64: 16 lanes of each warp's quarter
}

// How many groups of lanes hold the rows of one CTA's part of D, each group with a share of the columns.
inline int lane_parts(int rows, bool ws, int group) {
  return rows < 128 && (ws || group == 2) ? 128 / rows : 1;
}

// Accumulator elements (m, n) to (m, n + count - 1): adjacent cells of one lane, from `cell` on.
struct Run {
  int m, n, count;
  size_t cell;
};

// All elements of one CTA's part of D, which starts at a lane and a column: one run per lane, in order of the
// lanes.
inline std::vector<Run> accumulator_runs(int rows, int n_total, bool ws, int group, int lane, int col) {
  int parts = lane_parts(rows, ws, group), count = n_total / parts;
  std::vector<Run> runs;
  for (int part = 0; part < parts; part++)
    for (int m = 0; m < rows; m++) {
      Cell k = accumulator(rows, n_total, m, part * count, ws, group);
      runs.push_back({m, part * count, count, size_t((k.lane + lane) * TMEM_COLS + col + k.col)});
    }
  return runs;
}

inline void check_columns(Machine& m, Warp& w, int pc, Cta& c, int col, int count, const char* what) {
  if (col < 0 || col + count > TMEM_COLS)
    m.fatal("tmem-out-of-bounds", &w, pc,
            std::string(what) + " reaches TMEM columns " + std::to_string(col) + " to " +
                std::to_string(col + count - 1) + " of 512");
  Tmem& t = tmem_of(c);
  for (int i = col; i < col + count; i++)
    if (t.owner[i] < 0) {
      // Execution continues with the cells' content, so that a report shows every such access.
      m.find(t.freed[i] ? "tmem-use-after-dealloc" : "tmem-unallocated", true, &w, pc,
             std::string(what) + " touches TMEM column " + std::to_string(i) + ", which is " +
                 (t.freed[i] ? "already deallocated" : "not allocated"));
      return;
    }
}

inline void note_tmem(Machine& m, Warp& w, int pc, Cta& c, int lane, int col, int count, const Access& a,
                      bool write, const char* what, bool check_init = true, bool keep = true) {
  Tmem& t = tmem_of(c);
  t.touched[lane] = true;
  Shadow* s = t.shadow.data() + lane * TMEM_COLS + col;
  size_t at = 0;
  u32 other = 0;
  Conflict k = write ? m.shadows.write(s, size_t(count), a, at, other)
                     : m.shadows.read(s, size_t(count), a, at, other, check_init, keep);
  if (k != Conflict::none)
    m.conflict(k, w, pc,
               std::string(what) + " of TMEM lane " + std::to_string(lane) + " column " +
                   std::to_string(col + int(at)),
               other, write);
}

// Scale factors of an operand's rows: v[row * factors + f]; bad[row] as in Tile.
struct Scales {
  int factors = 0;
  std::vector<float> v;
  std::vector<u8> bad;
};
Scales load_scales(Machine& m, Warp& w, int pc, Cta& cta, int col, int id, int rows, int factors, bool e8m0,
                   bool halves, const Access& acc, const char* what);

// acc[m][n] += sum over blocks of fa[m][block] * fb[n][block] * (sum over k in the block of a[m][k] *
// b[n][k]).
void multiply_scaled(const Tile& a, const Tile& b, const Scales& fa, const Scales& fb, int block,
                     std::vector<float>& acc);

}  // namespace emu
