// Products with a structured sparse A: of every chunk of a row half of the elements are stored, and metadata says which.
#pragma once
#include "operand.hpp"

namespace emu {

// The modifiers of an instruction that multiplies a sparse A: bit 0 set, bit 1 for metadata in increasing order, the
// selector from bit 2 on.
struct Sparsity {
  bool sparse, ordered;
  int selector;
  explicit Sparsity(s64 m) : sparse(m & 1), ordered(m >> 1 & 1), selector(int(m >> 2)) {}
};

// PTX ISA, sparse matrix storage and the metadata layouts of mma.sp and wgmma.mma_async.sp: the column of A, of K, of every
// stored element of the sixteen rows of a warp, K / 2 to a row. `meta` has one register a lane, `valid` the lanes that wrote
// theirs; lanes that contribute none are not looked at.
std::vector<int> sparse_columns(Machine& m, Warp& w, int pc, const u64* meta, u32 valid, int ty, int K, Sparsity how);

// Say that metadata holds a value of four bits that PTX leaves undefined, the first of the set `wrong`.
void report_metadata(Machine& m, Warp& w, int pc, u32 wrong, int width, bool ordered);

// For each row of A, of K / 2 stored elements, what the tensor core multiplies it with: the rows of a K x N matrix that its
// metadata names.
void gather_rows(const float* b, const int* columns, int stored, int N, float* into);

// c[m][n] += sum over j of a[m][j] * b[columns[m][j]][n], for sixteen rows of K / 2 stored elements, summed as a product of
// K / 2 is.
void sparse_multiply(const float* a, int ta, const int* columns, const float* b, int tb, float* c, int N, int K, Summation how);

}  // namespace emu
