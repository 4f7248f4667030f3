// Matrix operands in shared memory, as wgmma and tcgen05.mma describe them.
#pragma once
#include "machine.hpp"

namespace emu {

// A decoded shared-memory matrix descriptor. span: the swizzle span in bytes (0, 32, 64 or 128); atom32: the
// 128-byte swizzle has 32-byte atoms.
struct SmemDesc {
  u64 start, lbo, sbo;
  u64 span;
  bool atom32;
};

// Decode a descriptor; a field that the emulator does not model is an error that names the field.
SmemDesc smem_desc(Machine& m, Warp& w, int pc, u64 d, bool sm100);

// Address of the 16-byte unit k16 of row r of a K-major operand, swizzled, relative to the CTA's shared
// memory.
u64 k_major_unit(const SmemDesc& d, u64 r, u64 k16);

// A matrix operand as floats: v[row * depth + k], or v[k * rows + row] with by_k. bad[row] is set when part
// of the row was never written (only with allow_uninit_mma; otherwise that is a finding).
struct Tile {
  int rows, depth;
  bool by_k;
  std::vector<float> v;
  std::vector<u8> bad;
  Tile(int rows_, int depth_, bool by_k_ = false)
      : rows(rows_), depth(depth_), by_k(by_k_), v(size_t(rows_) * size_t(depth_)), bad(size_t(rows_)) {}
};

// Read an operand's rows from row0 on into the rows of a tile from `first` on, with the checks of any read
// through the asynchronous proxy. Elements smaller than a byte are packed, or with `wide` sixteen of them are
// packed at the start of every 16 bytes, as tensor copies of the types b4x16_p64 and b6x16_p32 store them.
void load_smem_tile(Machine& m, Warp& w, int pc, const SmemDesc& d, int rank, int row0, Tile& t, int first,
                    int rows, int ty, bool mn_major, const Access& acc, const char* what, bool wide = false);

// The same reads and checks; gives the raw bytes, in units of 16 along the rows of memory, and sets bad[row]
// as above.
void read_smem_tile(Machine& m, Warp& w, int pc, const SmemDesc& d, int rank, int row0, std::vector<u8>& raw,
                    std::vector<u8>& bad, int first, int rows, int depth, int ty, bool mn_major,
                    const Access& acc, const char* what, bool wide = false);

// Convert those bytes to the tile's floats.
void convert_smem_tile(const u8* raw, Tile& t, int first, int rows, int ty, bool mn_major, bool wide = false);

// Convert the `per` elements in 16 bytes to floats.
void convert_unit(const u8* from, float* to, int ty, int per);

// How Hopper's tensor cores add. Every product and the accumulator are truncated `bits` below the largest
// exponent among them (a product's exponent is the sum of its factors' exponents). The sum of the truncated
// terms is exact, and its fraction is truncated to `keep` bits; with keep 0 the sum is rounded to f16. This
// agrees bit for bit with wgmma and mma.sync on an H200.
struct Summation {
  int bits, keep;
};
inline Summation hopper_sums(int ty, bool f16) {
  bool fp8 = ty == TY_e4m3 || ty == TY_e5m2;
  return {fp8 ? 13 : 25, f16 ? 0 : fp8 ? 13 : 23};
}

constexpr int MAX_N = 256, MAX_K = 32;

// A K x N matrix B: its values v, their mantissas m and exponents e; odd[n]: column n has a NaN or an
// infinity; least and most: the range of the exponents.
struct Factors {
  const float* v;
  float m[MAX_K * MAX_N];
  int e[MAX_K * MAX_N], odd[MAX_N];
  int least, most;
};
void split_factors(const float* b, int tb, int N, int K, Factors& into);

// c[m][n] += sum over k of a[m][k] * b[k][n], for an M x K matrix a of type ta and a K x N matrix b. M is at
// most 16; N and M * K are multiples of 8.
void hopper_multiply(const float* a, int ta, const Factors& b, float* c, int M, int N, int K, Summation how);

// The converted B of a wgmma. The four warps of a warpgroup read the same B in turn: it is converted once,
// and again only if its bytes changed.
struct HeldOperand {
  u64 descriptor;
  int rank, type, rows, depth;
  bool mn_major, negated;
  std::vector<u8> raw;
  Tile tile;
  Factors factors;
};
const HeldOperand& held_operand(Machine& m, u64 descriptor, int rank, int type, int rows, int depth,
                                bool mn_major, bool negated, const std::vector<u8>& raw);

// acc[m][n] += sum over k of a[m][k] * b[k][n] in fp32, in the order of k; a is row-major, b is by_k.
void multiply(const Tile& a, const Tile& b, std::vector<float>& acc);

}  // namespace emu
