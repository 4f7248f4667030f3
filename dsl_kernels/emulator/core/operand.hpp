// Matrix operands in shared memory, as wgmma and tcgen05.mma describe them.
#pragma once
#include "machine.hpp"

namespace emu {

// A decoded shared-memory matrix descriptor. span is the swizzle span in bytes: 0, 32, 64, 128; atom32 marks the
// 128-byte swizzle with 32-byte atoms.
struct SmemDesc {
  u64 start, lbo, sbo;
  u64 span;
  bool atom32;
};

// Decode; a field that the emulator does not model is an error that names it.
SmemDesc smem_desc(Machine& m, Warp& w, int pc, u64 d, bool sm100);

// Address of the 16-byte unit k16 of row r of a K-major operand, swizzled, relative to the CTA's shared memory.
u64 k_major_unit(const SmemDesc& d, u64 r, u64 k16);

// A matrix operand as floats: row-major, v[row * depth + k], or by_k, v[k * rows + row]. bad[row] is set when part of a
// row was never written (only with allow_uninit_mma, otherwise that is a finding).
struct Tile {
  int rows, depth;
  bool by_k;
  std::vector<float> v;
  std::vector<u8> bad;
  Tile(int rows_, int depth_, bool by_k_ = false) : rows(rows_), depth(depth_), by_k(by_k_), v(size_t(rows_) * size_t(depth_)), bad(size_t(rows_)) {}
};

// Fill rows of a tile, from its row `first` on, with what a descriptor says of rows from row0 on; checked like any other
// read of the asynchronous proxy. Elements of less than a byte come either packed, or (wide) sixteen of them packed at the
// start of every 16 bytes, as tensor copies of kinds b4x16_p64 and b6x16_p32 place them.
void load_smem_tile(Machine& m, Warp& w, int pc, const SmemDesc& d, int rank, int row0, Tile& t, int first, int rows, int ty, bool mn_major,
                    const Access& acc, const char* what, bool wide = false);

// The same reads with their checks: the bytes, 16 at a time along the rows of memory, and which rows were never written.
void read_smem_tile(Machine& m, Warp& w, int pc, const SmemDesc& d, int rank, int row0, std::vector<u8>& raw, std::vector<u8>& bad, int first,
                    int rows, int depth, int ty, bool mn_major, const Access& acc, const char* what, bool wide = false);

// The numbers that such bytes are.
void convert_smem_tile(const u8* raw, Tile& t, int first, int rows, int ty, bool mn_major, bool wide = false);

// The elements of 16 bytes as floats, `per` of them.
void convert_unit(const u8* from, float* to, int ty, int per);

// How Hopper's tensor cores add: every product and the accumulator are cut off `bits` below the largest exponent among
// them (of the factors, not of the product), the sum of what is left is exact, and its fraction is cut to `keep` bits.
// With keep 0 the sum is rounded to f16. Found to be what an H200 does, bit for bit, by wgmma and mma.sync.
struct Summation {
  int bits, keep;
};
inline Summation hopper_sums(int ty, bool f16) {
  bool fp8 = ty == TY_e4m3 || ty == TY_e5m2;
  return {fp8 ? 13 : 25, f16 ? 0 : fp8 ? 13 : 23};
}

constexpr int MAX_N = 256, MAX_K = 32;

// A K x N matrix B as its numbers, and as mantissas and exponents; columns with a NaN or an infinity; the least and the
// largest exponent.
struct Factors {
  const float* v;
  float m[MAX_K * MAX_N];
  int e[MAX_K * MAX_N], odd[MAX_N];
  int least, most;
};
void split_factors(const float* b, int tb, int N, int K, Factors& into);

// c[m][n] = c[m][n] + sum over k of a[m][k] * b[k][n], for M x K and K x N matrices of numbers of types ta and
// tb. M is at most 16; N and M * K are multiples of 8.
void hopper_multiply(const float* a, int ta, const Factors& b, float* c, int M, int N, int K, Summation how);

// B of a wgmma, which the four warps of a warpgroup read one after the other: its numbers are made once of the same bytes.
struct HeldOperand {
  u64 descriptor;
  int rank, type, rows, depth;
  bool mn_major, negated;
  std::vector<u8> raw;
  Tile tile;
  Factors factors;
};
const HeldOperand& held_operand(Machine& m, u64 descriptor, int rank, int type, int rows, int depth, bool mn_major, bool negated,
                                const std::vector<u8>& raw);

// acc[m][n] += sum over k of a[m][k] * b[k][n], in the order of k, in fp32, for a row-major A and a B by_k.
void multiply(const Tile& a, const Tile& b, std::vector<float>& acc);

}  // namespace emu
