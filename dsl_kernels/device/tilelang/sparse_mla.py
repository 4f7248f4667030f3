"""Leaf pieces of sparse attention on Hopper: row gathers, fp8 tokens, merging of splits.

All exponents are base 2: logits carry log2(e), and an lse is the log2 of a sum. A macro's parameter renames the runtime size
that it is given, so sizes keep the names that the kernel gives them.
"""

from __future__ import annotations

import tilelang.language as T

# TileLang has no store that completes on another CTA's barrier, which slices need; heads on M lack the leaves that move rows.
UNSPELLED = ("send_scores", "copy_query_rows")

# On Hopper threads hold tiles of registers by themselves, as products leave them.
OWN_REGISTERS = True

# Barriers are the declared ones: TileLang adds none of its own.
PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
    "tl.enable_fast_math": True,
}

SOURCE = r"""
namespace dk {
// Start the copy of the 16 bytes that lie `at` elements behind `rows` in row `token`; zeros where it names none of `n`
// rows. TileLang's own copy takes three times the instructions to find the address, and all rows' come before the first
// copy of a tile. What a thread's copies of a row differ by comes last, so that it goes into the instruction.
__device__ __forceinline__ void copy16(void* to, const void* rows, int stride, int token, int at, int n) {
  bool inside = static_cast<unsigned>(token) < static_cast<unsigned>(n);
  unsigned row = inside ? token : 0, row_bytes = 2 * stride;
  const char* from = static_cast<const char*>(rows) + static_cast<unsigned long long>(row) * row_bytes + 2 * at;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
      ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
}  // namespace dk
"""


def valid(token, n):
    """Whether an id names a row of the cache; -1 is padding."""
    return (token >= 0) & (token < n)


def word(bits):
    """The lanes of a warp that voted yes, as 32 bits."""
    return T.Cast("int32", T.ballot_sync(bits))


@T.macro
def vote(in_low: T.Ref, in_high: T.Ref, live: T.Ref, low, high, n):
    """The valid tokens of a tile as two words of bits, and whether there is one; the same in every warp of every role."""
    in_low = word(valid(low, n))
    in_high = word(valid(high, n))
    live = (in_low | in_high) != 0  # noqa: F841


@T.macro
def load_queries(target, q, row, head0, heads, block, width, first, columns, thread):
    """Columns `first` on of a block of heads of one query, whose rows are `width` long."""
    T.copy(q[row, head0 : head0 + block, first : first + columns], target)


@T.macro
def copy_rows(target, slot, cache, first, columns, low, high, n, thread):
    """Start the 16-byte copies of a tile's rows, eight threads a row; a masked row becomes zeros and is not read."""
    for r in T.unroll(4):
        j = r * 16 + thread // 8
        token = T.shfl_sync(low if r < 2 else high, j % 32)
        for c in T.unroll(columns // 64):
            T.call_extern(
                "handle",
                "dk::copy16",
                T.address_of(target[slot, j, c * 64 + thread % 8 * 8]),
                T.address_of(cache[0, first + thread % 8 * 8]),
                cache.strides[0],
                token,
                c * 64,
                n,
            )
