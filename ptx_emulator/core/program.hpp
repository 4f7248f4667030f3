// The decoded program and the launch configuration, as Python passes them (rows of 64-bit integers).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace emu {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s64 = int64_t;

enum Op : int {
#define OP(name, ...) OP_##name,
#include "ptx_opcodes.h"
#undef OP
  OP_COUNT
};

enum Ty : int {
#define TY(name, bits, cls) TY_##name,
#include "ptx_types.h"
#undef TY
  TY_COUNT
};

inline constexpr int TYPE_BITS[] = {
#define TY(name, bits, cls) bits,
#include "ptx_types.h"
#undef TY
};
inline constexpr char TYPE_CLASS[] = {
#define TY(name, bits, cls) #cls[0],
#include "ptx_types.h"
#undef TY
};

// Operand kinds, numbered as in isa/base.py.
enum Kind : int { K_NONE, K_REG, K_IMM, K_SMEM, K_ADDR32, K_ADDR64, K_NOTPRED, K_PARAM };

struct Operand {
  s64 kind, a, b;
};

struct Instr {
  s64 op, ty, ty2, m[8], guard, negated, line, file, fline, first, count;
};
static_assert(sizeof(Instr) == 18 * 8, "a row of isa/base.py");

// Slots of special registers, in the order of ptx.py.
enum Special : int {
  SR_TID_X, SR_TID_Y, SR_TID_Z, SR_NTID_X, SR_NTID_Y, SR_NTID_Z, SR_CTAID_X, SR_CTAID_Y, SR_CTAID_Z,
  SR_NCTAID_X, SR_NCTAID_Y, SR_NCTAID_Z, SR_LANEID, SR_WARPID, SR_NWARPID, SR_SMID, SR_NSMID, SR_GRIDID,
  SR_CLUSTERID_X, SR_CLUSTERID_Y, SR_CLUSTERID_Z, SR_NCLUSTERID_X, SR_NCLUSTERID_Y, SR_NCLUSTERID_Z,
  SR_CCTAID_X, SR_CCTAID_Y, SR_CCTAID_Z, SR_CNCTAID_X, SR_CNCTAID_Y, SR_CNCTAID_Z, SR_CCTARANK, SR_CNCTARANK,
  SR_EXPLICIT_CLUSTER, SR_LM_EQ, SR_LM_LE, SR_LM_LT, SR_LM_GE, SR_LM_GT, SR_DYN_SMEM, SR_TOTAL_SMEM,
  SR_AGGR_SMEM, SR_RSV_BEGIN, SR_RSV_END, SR_RSV_CAP, SR_COUNT
};

enum SchedKind : int { SCHED_LOCKSTEP, SCHED_RANDOM, SCHED_ADVERSARIAL, SCHED_REPLAY };
enum AsyncPolicy : int { ASYNC_RANDOM, ASYNC_EARLY, ASYNC_LATE };

// Launch configuration; the fields are in the order in which launch.py fills them.
struct Config {
  s64 registers, block[3], grid[3], cluster[3], smem_end, dynamic_bytes, local_bytes;
  s64 sched, seed, async_policy, slow_warp, resident, max_resident, stop_first, instruction_limit,
      stall_limit;
  s64 allow_uninit_mma, max_findings, sm100, regs_per_thread, strict_fences, strict_lapping, strict_exits;
  s64 strict_races, cta_limit;
  s64 trace;  // how many of the last events are kept
};

struct Region {
  s64 base, size, host, writable;
};

struct TensorMapRow {
  s64 address;  // generic address of the 128-byte descriptor
  s64 base;     // emulated global address of the tensor
  s64 rank, elem_bytes, dims[5], strides[5], box[5], elem_strides[5], swizzle, nan_fill, type, interleave;
  s64 pixels, lower[3], upper[3];  // im2col: pixels per column (0: a tiled map), corners of the bounding box
};

struct Program {
  const Instr* code;
  s64 size;
  const Operand* operands;
  const s64* targets;
  const Operand* ops(const Instr& i) const { return operands + i.first; }
};

}  // namespace emu
