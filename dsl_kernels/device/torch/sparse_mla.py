"""Leaf maths of sparse MLA on Hopper, by name: what each leaf means, in torch.

Registers of a role are whole tiles here: scores S^T are tokens by heads and O^T is latent dims by heads, or both the
other way round where the heads lie on M. A value that every lane has for itself is a tensor over the lanes. What
crosses CTAs or goes to scratch memory keeps the order in which the threads of a warpgroup hold an accumulator.
All exponents are base 2: logits carry log2(e), and an lse is the log2 of a sum.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ...problems.layouts import LATENT_DIM, unpack_fp8_tokens
from ...tile.lang import Size
from ...tile.leaf_text import Function
from ...tile.text import Sets, Writes, leaf
from ...tile.threads import Threads, signed
from .gqa_forward import rescale_rows as rescale_rows

LOG2E = math.log2(math.e)
TILE, WARP = 64, 32
THREADS = 128
HALF_DIMS = LATENT_DIM // 2


def by_thread(tile: torch.Tensor) -> torch.Tensor:
    """A [64, 8] piece of an accumulator as the threads of a warpgroup hold it: [128, 4].

    Thread 32 w + 4 i + q has rows 16 w + i and 8 further down, and columns 2 q and 2 q + 1.
    """
    return tile.reshape(4, 2, 8, 4, 2).permute(0, 2, 3, 1, 4).reshape(THREADS, 4)


def of_rows(values: torch.Tensor) -> torch.Tensor:
    """What each thread has of its two rows, alike in the four lanes that share them: [128, 2] to [64]."""
    return values.view(4, 8, 4, 2)[:, :, 0].transpose(1, 2).reshape(-1)


def of_lanes(*values: Any) -> torch.Tensor:
    """What the lanes have of some values, one behind the other; a number is alike in all lanes."""
    return torch.cat([torch.as_tensor(value).expand(WARP) for value in values])


def rows_of_cache(cache: Any, ids: torch.Tensor, n: int) -> torch.Tensor:
    """The rows that ids name, zeros for an id that names none."""
    inside = (ids >= 0) & (ids < n)
    picked = cache[torch.where(inside, ids, 0).long()]
    raw = torch.where(inside[:, None], picked.contiguous().view(torch.uint8), 0)
    return raw.view(picked.dtype)


def share_of(lse: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """What the tokens keep of a head beside its sink; 0 for a head without tokens."""
    return torch.where(lse > -math.inf, 1.0 / (1.0 + torch.exp2(sink * LOG2E - lse)), 0.0)


@leaf
def vote(in_low: Sets, in_high: Sets, live: Sets, low: Any, high: Any, n: int) -> Any:
    """The valid ids of a tile as two words of bits, and whether there is one; the same in every warp of every role."""
    in_low, in_high = (
        signed(int((((ids >= 0) & (ids < n)).long() << torch.arange(WARP)).sum()))
        for ids in map(of_lanes, (low, high))
    )
    return in_low, in_high, (in_low | in_high) != 0


@leaf
def load_queries(
    target: Any,
    q: Any,
    row: int,
    head0: int,
    heads: int,
    block: int,
    width: int,
    first: int,
    columns: int,
    thread: Any,
) -> None:
    """Columns `first` on of a block of heads of one query, whose rows are `width` long."""
    target.copy_(q[row, head0 : head0 + block, first : first + columns])


@leaf
def copy_rows(
    target: Any, cache: Any, first: int, columns: int, low: Any, high: Any, n: int, thread: Any
) -> None:
    """Start the copies of columns `first` on of a tile's rows; zeros where an id names no row."""
    target.copy_(rows_of_cache(cache, of_lanes(low, high), n)[:, first : first + columns])


@leaf
def send_scores(scores: Any, send: Any, rank: int, slices: int, thread: Any) -> None:
    """Send the partial scores to every other CTA of the slice group: slot d - 1 receives from rank XOR d."""
    mine = torch.stack([by_thread(scores[:, g : g + 8]) for g in range(0, scores.shape[1], 8)])
    for d in range(1, slices):
        send(rank ^ d, (d - 1,), mine)


# Heads on M: each of two warpgroups (sides) scores half of the tokens of a tile and has half of the dims of O.


@leaf
def fetch_half(kv_cache: Any, ids: Any, n: int, thread: Any) -> None:
    """Have the L2 fetch the tokens of half a tile, if the device can."""


@leaf
def fetch_share(kv_cache: Any, rank: int, ids: Any, n: int, thread: Any) -> None:
    """Have the L2 fetch this CTA's share of the tokens of half a tile, if the device can."""


@leaf
def load_share(words: Any, kv_cache: Any, rank: int, ids: Any, n: int, thread: Any) -> None:
    """Read this CTA's share of half a tile into the registers: half of the latent dims, and rope of four tokens in eight."""
    latent, rope = unpack_fp8_tokens(rows_of_cache(kv_cache, of_lanes(ids), n))
    columns = latent.bfloat16()[:, rank * HALF_DIMS : (rank + 1) * HALF_DIMS]
    share = torch.cat([columns.reshape(-1), rope[_rope_rows(rank)].reshape(-1)])
    words[0] = share.view(torch.int32).view(words[0].shape)


def _rope_rows(rank: int) -> torch.Tensor:
    """Of each eight tokens, which a warp unpacks, the first or the last four."""
    return torch.arange(WARP).view(-1, 2, 4)[:, rank].reshape(-1)


@leaf
def renew_share(
    words: Any, ckv: Any, kpe: Any, to_ckv: Any, to_kpe: Any, kv_cache: Any, rank: int, ids: Any, n: int, thread: Any
) -> None:  # fmt: skip
    """Write this CTA's share of the half tile, send it to the other CTA and, as room is made, read the share of these ids."""
    held = words[0].int().contiguous().view(torch.bfloat16).view(-1)
    latent, rope = held[: WARP * HALF_DIMS].view(WARP, -1), held[WARP * HALF_DIMS :].view(WARP // 2, -1)
    columns, rows = slice(rank * HALF_DIMS, (rank + 1) * HALF_DIMS), _rope_rows(rank)
    ckv[:, columns], kpe[rows] = latent, rope
    to_ckv(1 - rank, (slice(None), columns), latent)
    to_kpe(1 - rank, (rows,), rope)
    load_share.torch(words, kv_cache, rank, ids, n, thread)


@leaf
def pack_rows(weights: Any, scores: Any) -> None:
    """P in 16 bits, as the next product takes it."""
    weights.copy_(scores)


@leaf
def store_rows(target: Any, weights: Any, thread: Any) -> None:
    """Write P as bf16, heads by tokens."""
    target.copy_(weights)


HALF_ROWS, HEADS = Size(8, "HALF_ROWS"), Size(64, "HEADS_OF_SIDE")
"""How far apart a thread's two heads are; heads of a side."""

row_most = Function("row_most", "float32", lambda registers, r: _of_row(registers, r).amax(dim=1))
"""The greatest of a thread's registers of its row `r`, the first or the second."""

row_sum = Function("row_sum", "float32", lambda registers, r: _of_row(registers, r).sum(dim=1))
"""The sum of a thread's registers of its row `r`."""

quad_most = Function(
    "quad_most", "float32", lambda t, value: _quads(t, value).amax(dim=1).repeat_interleave(4), joint=True
)
"""The greatest value in the four lanes that share a row."""

quad_sum = Function(
    "quad_sum", "float32", lambda t, value: _quads(t, value).sum(dim=1).repeat_interleave(4), joint=True
)
"""The sum over the four lanes that share a row."""


def _of_row(registers: torch.Tensor, r: int) -> torch.Tensor:
    return registers.view(len(registers), -1, 2, 2)[:, :, r].flatten(1)


def _quads(threads: Threads, value: torch.Tensor) -> torch.Tensor:
    return threads.spread(value).view(-1, 4)


@leaf
def store_result_rows(
    out: Writes, lse: Writes, acc: Any, factor: Any, lses: Any, sinks: Any, row: int, head0: int, heads: int, scratch: Any, width: int, lse_scale: float, side: int, thread: Any
) -> None:  # fmt: skip
    """Store half of O times `factor` as bf16, each head scaled by the share that tokens keep beside its sink; and the lse.

    The rows pass through `scratch`, `width` dims of each at a time.
    """
    block, dims, lses = slice(head0, head0 + len(acc)), acc.shape[1], of_rows(lses)
    out[row, block, side * dims : (side + 1) * dims] = (acc * (factor * share_of(lses, sinks))[:, None]).to(
        out.dtype
    )
    if side == 0:
        lse[row, block] = lses * lse_scale


@leaf
def copy_query_rows(target: Any, q: Any, row: int, head0: int, heads: int, columns: int, thread: Any) -> None:
    """Start the copies of a block of 64 heads of one query."""
    target.copy_(q[row, head0 : head0 + len(target)])
