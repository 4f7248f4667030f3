"""Leaf maths of sparse attention for tcgen05: tokens on M, heads on N, accumulators in tensor memory.

A key tile is 64 tokens, cut into units of 128 columns. An M=64 accumulator sits in lanes 0-15 of each warp's 32 lanes,
and is read as 16x256b: which values a thread then has is in dsl_kernels/device/text/sparse_mla_sm100.py.
"""

from __future__ import annotations

import tilelang.language as T

from .sparse_mla import FP8_SOURCE
from .tcgen05 import move_columns

PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_shared_memory_reuse": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
    "tl.enable_fast_math": True,
}

TOKEN_WORDS = 44
"""32-bit words that a thread holds of an fp8 token: 16 bytes of each 64-dim panel, two pieces of rope, four scales."""

SOURCE = (
    FP8_SOURCE
    + r"""
#include <tl_templates/cuda/copy_sm100.h>
namespace dk {
__device__ __forceinline__ void load16(unsigned* words, const unsigned char* bytes, bool valid) {
  const uint4 zero = make_uint4(0, 0, 0, 0);
  *reinterpret_cast<uint4*>(words) = valid ? __ldg(reinterpret_cast<const uint4*>(bytes)) : zero;
}
}  // namespace dk
"""
)


@T.macro
def read_rows(rows, indices, topk, row, turn, turns, split, splits, lane):
    """rows[j] = the id of token 4 * (lane % 16) + j of the tile at `turn`; unchanged past the last turn."""
    if turn < turns:
        for j in T.vectorized(4):
            rows[j] = indices[row, (split + turn * splits) * 64 + lane % 16 * 4 + j]


@T.macro
def gather_columns(target, slot, cache, first, columns, rows, thread):
    """16-byte cp.async of 64 rows x 128 columns, 16 a row, or of 64 columns by the lower eight threads of every sixteen."""
    if thread % 16 < columns // 8:
        for r in T.unroll(8):
            T.ptx_cp_async(
                T.access_ptr(target[slot, 8 * r + thread // 16, thread % (columns // 8) * 8], "w", 8),
                T.access_ptr(
                    cache[T.cast(T.max(rows[r], 0), "int64"), first + thread % (columns // 8) * 8], "r", 8
                ),
                8,
                rows[r] >= 0,
            )


@T.macro
def load_pieces(words, at, cache, rows, offset, pieces, thread):
    """Read `pieces` times 16 bytes, 64 apart, of this thread's two tokens; zeros for a row of -1."""
    for i in T.unroll(2):
        for piece in T.unroll(pieces):
            T.call_extern(
                "handle",
                "dk::load16",
                T.address_of(words[i * TOKEN_WORDS + at + 4 * piece]),
                T.address_of(
                    cache[T.cast(T.max(rows[i], 0), "int64"), offset + piece * 64 + thread % 4 * 16]
                ),
                rows[i] >= 0,
            )


@T.macro
def load_unit(words, unit, kv_cache, rows, thread):
    """Read this thread's part of a unit of two tokens."""
    load_pieces(words, unit * 8, kv_cache, rows, unit * 128, 2, thread)


@T.macro
def load_rest(words, kv_cache, rows, thread):
    """Read this thread's rope columns of two tokens, and their scales."""
    load_pieces(words, 32, kv_cache, rows, 528, 2, thread)
    for i in T.unroll(2):
        T.call_extern(
            "handle",
            "dk::load16",
            T.address_of(words[i * TOKEN_WORDS + 40]),
            T.address_of(kv_cache[T.cast(T.max(rows[i], 0), "int64"), 512]),
            rows[i] >= 0,
        )


@T.macro
def dequantise_unit(target, slot, words, unit, thread):
    """Write this thread's part of a 128-column unit of two tokens as bf16."""
    for i in T.unroll(2):
        for piece in T.unroll(2):
            T.call_extern(
                "handle",
                "dk::dequantise16",
                T.address_of(target[slot, 32 * i + thread // 4, piece * 64 + thread % 4 * 16]),
                T.address_of(target[slot, 32 * i + thread // 4, piece * 64 + thread % 4 * 16 + 8]),
                T.address_of(words[i * TOKEN_WORDS + 8 * unit + 4 * piece]),
                T.address_of(words[i * TOKEN_WORDS + 40 + unit]),
            )


@T.macro
def store_rope(target, slot, words, thread):
    """Write this thread's rope columns of two tokens."""
    for i in T.unroll(2):
        for piece in T.unroll(2):
            T.call_extern(
                "handle",
                "dk::store16",
                T.address_of(target[slot, 32 * i + thread // 4, piece * 32 + thread % 4 * 8]),
                T.address_of(words[i * TOKEN_WORDS + 32 + 4 * piece]),
            )


@T.macro
def read_scores(scores, accumulators, slot, thread):
    """This thread's scores from tensor memory; their arrival is waited for later."""
    T.call_extern(
        "handle",
        f"tl::tcgen05_ld_16dp256bNx<{scores.shape[0] // 4}, false>",
        accumulators[32 * (thread // 32), slot * (scores.shape[0] * 2)],
        0,
        T.address_of(scores[0]),
    )


@T.macro
def load_columns(held, acc, slot, column, thread):
    """This thread's lane of columns `column` on of tensor memory, once they are here."""
    move_columns("ld", held, acc, slot, column, thread)


@T.macro
def store_columns(held, acc, slot, column, thread):
    """The reverse of `load_columns`, and it waits."""
    move_columns("st", held, acc, slot, column, thread)
