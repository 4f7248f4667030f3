// Matrix operands in shared memory, as wgmma and tcgen05.mma describe them.
#pragma once
#include "machine.hpp"

namespace emu {

// A decoded shared-memory matrix descriptor.
struct SmemDesc {
  u64 start, lbo, sbo;
  int span;      // swizzle span in bytes: 0, 32, 64, 128; 129 stands for 128B with 32-byte atoms
  int base;      // base offset
};

SmemDesc smem_desc(u64 d, bool sm100);
// Byte address of element (row, k) relative to the CTA's shared memory, before bounds checks.
u64 smem_element(const SmemDesc& d, int elem_bytes, bool mn_major, u64 row, u64 k);

}  // namespace emu
