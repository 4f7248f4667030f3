"""Leaf maths of sparse attention for tcgen05: tokens on M, heads on N, accumulators in tensor memory.

A key tile is 64 tokens, cut into units of 128 columns. An M=64 accumulator sits in lanes 0-15 of each warp's 32 lanes,
and is read as 16x256b: which values a thread then has is in dsl_kernels/device/text/sparse_mla_sm100.py.
"""

from __future__ import annotations

import tilelang.language as T

from .tcgen05 import move_columns

PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_shared_memory_reuse": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
    "tl.enable_fast_math": True,
}

SOURCE = "#include <tl_templates/cuda/copy_sm100.h>\n"


@T.macro
def read_rows(rows, indices, topk, row, turn, turns, split, splits, lane):
    """rows[j] = the id of token 4 * (lane % 16) + j of the tile at `turn`; unchanged past the last turn."""
    if turn < turns:
        for j in T.vectorized(4):
            rows[j] = indices[row, (split + turn * splits) * 64 + lane % 16 * 4 + j]


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
