// Products with a structured sparse A: half of the elements of every chunk of a row are stored; metadata says
// which.
#pragma once
#include "operand.hpp"

namespace emu {

// The modifier of an instruction: bit 0: A is sparse; bit 1: its metadata is in increasing order; from bit 2
// on: the sparsity selector.
struct Sparsity {
  bool sparse, ordered;
  int selector;
  explicit Sparsity(s64 m) : sparse(m & 1), ordered(m >> 1 & 1), selector(int(m >> 2)) {}
};

// PTX ISA, sparse matrix storage, and the metadata layouts of mma.sp and wgmma.mma_async.sp: the column
// (index of K) of every stored element of a warp's 16 rows of A, K / 2 per row. `meta` has one register per
// lane and `valid` the lanes that wrote theirs; lanes that contribute no metadata are ignored.
std::vector<int> sparse_columns(Machine& m, Warp& w, int pc, const u64* meta, u32 valid, int ty, int K,
                                Sparsity how);

// Report metadata with a 4-bit value that PTX leaves undefined: the least value of the set `wrong`, if there
// is one.
void report_metadata(Machine& m, Warp& w, int pc, u32 wrong, int width, bool ordered);

// Copy the rows of a K x N matrix that the metadata of one row of A names, one for each stored element.
void gather_rows(const float* b, const int* columns, int stored, int N, float* into);

// c[m][n] += sum over j of a[m][j] * b[columns[m][j]][n], for 16 rows of K / 2 stored elements, added like a
// dense product of depth K / 2.
void sparse_multiply(const float* a, int ta, const int* columns, const float* b, int tb, float* c, int N,
                     int K, Summation how);

}  // namespace emu
