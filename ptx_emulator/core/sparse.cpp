// Sparse A: its metadata and its products.
#include "sparse.hpp"

namespace emu {

std::vector<int> sparse_columns(Machine& m, Warp& w, int pc, const u64* meta, u32 valid, int ty, int K,
                                Sparsity how) {
  int width = TYPE_BITS[ty], chunk = width == 32 ? 2 : 4, kept = chunk / 2, chunks = K / chunk;
  bool unwritten = false;
  std::vector<int> columns;
  columns.reserve(size_t(16 * K / 2));
  u32 wrong = 0;
  for (int row = 0; row < 16; row++)
    for (int i = 0; i < chunks; i++) {
      int lane = 4 * (row % 8), bit;
      if (width == 8) {
        // A register describes 32 columns of one row. Adjacent lanes have rows 8 apart; the next two lanes
        // have the columns from 32 on.
        lane += row / 8 + (chunks > 8 ? 2 * (i / 8) : 2 * how.selector), bit = 4 * (i % 8);
      } else {
        // A register describes four chunks of two rows that are 8 apart; two adjacent lanes share a row of 8
        // chunks.
        lane += chunks > 4 ? 2 * how.selector + i / 4 : how.selector, bit = 16 * (row / 8) + 4 * (i % 4);
      }
      unwritten |= !(valid >> lane & 1);
      u32 held = u32(meta[lane] >> bit & 15), first = held & 3, second = held >> 2;
      if (width == 32) {
        if (held != 0b0100 && held != 0b1110) wrong |= 1u << held;
        columns.push_back(chunk * i + (held == 0b1110));
        continue;
      }
      if (first == second || (how.ordered && first > second)) wrong |= 1u << held;
      for (int j = 0; j < kept; j++) columns.push_back(chunk * i + int(j ? second : first));
    }
  if (unwritten)
    m.find("uninit-register", true, &w, pc,
           "the metadata of a sparse A was never written in a lane that the sparsity selector names");
  report_metadata(m, w, pc, wrong, width, how.ordered);
  return columns;
}

void report_metadata(Machine& m, Warp& w, int pc, u32 wrong, int width, bool ordered) {
  if (!wrong) return;
  std::string bits;
  for (int b = 3; b >= 0; b--) bits += __builtin_ctz(wrong) >> b & 1 ? '1' : '0';
  m.find("sparse-metadata", true, &w, pc,
         "the metadata of a sparse A holds 0b" + bits + ", which says " +
             (width == 32 ? "neither the first (0b0100) nor the second (0b1110) of two elements"
              : ordered   ? "no two elements of four in increasing order"
                          : "one element of four twice"));
}

void gather_rows(const float* b, const int* columns, int stored, int N, float* into) {
  for (int j = 0; j < stored; j++) std::copy(b + columns[j] * N, b + (columns[j] + 1) * N, into + j * N);
}

void sparse_multiply(const float* a, int ta, const int* columns, const float* b, int tb, float* c, int N,
                     int K, Summation how) {
  // hopper_multiply takes A in multiples of 8 elements.
  int stored = K / 2, depth = std::max(stored, 8);
  auto factors = std::make_unique<Factors>();
  std::vector<float> rows(size_t(depth * N)), own(static_cast<size_t>(depth));
  for (int row = 0; row < 16; row++) {
    gather_rows(b, columns + row * stored, stored, N, rows.data());
    std::copy(a + row * stored, a + (row + 1) * stored, own.begin());
    split_factors(rows.data(), tb, N, depth, *factors);
    hopper_multiply(own.data(), ta, *factors, c + row * N, 1, N, depth, how);
  }
}

}  // namespace emu
