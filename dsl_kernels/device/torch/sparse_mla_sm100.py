"""Leaf maths of sparse MLA on tcgen05 where it is not Hopper's, by name: what each leaf means, in torch.

Scores S^T lie in tensor memory as tokens by heads, and so they are read; O^T as four accumulators of 128 latent dims by
heads, side by side. Heads are padded to what one product takes; the padded ones have zero queries and are not written.
Partials of splits keep the order of the output.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from ...problems.layouts import FP8_TOKEN_BYTES, LATENT_DIM, unpack_fp8_tokens
from ...tile.text import Sets, Writes, leaf
from .sparse_mla import LOG2E, WARP, inside, of_lanes, rows_of_cache, share_of

UNIT = 128


def _latent_by_head(acc: torch.Tensor, heads: int) -> torch.Tensor:
    """O [heads, 512] of the four accumulators [128, 4 * padded heads]."""
    return acc.view(UNIT, LATENT_DIM // UNIT, -1).permute(2, 1, 0).reshape(-1, LATENT_DIM)[:heads]


@leaf
def load_block(
    target: Any, q: Any, row: int, head0: int, heads: int, block: int, rows: int, columns: int, thread: Any
) -> None:
    """A block of heads of one query; the rows behind them, up to `rows`, become zero."""
    target.zero_()
    target[:block] = q[row, head0 : head0 + block]


@leaf
def spread_ids(rows: Any, low: Any, high: Any, in_low: Any, in_high: Any, thread: Any) -> None:
    """The rows that a thread copies pieces of, eight tokens; -1 where an id names none."""
    rows.copy_(torch.where(inside(in_low, in_high), of_lanes(low, high), -1))


@leaf
def spread_pairs(rows: Any, low: Any, high: Any, in_low: Any, in_high: Any, thread: Any) -> None:
    """As `spread_ids` where four threads share a token: two tokens a thread."""
    rows.copy_(torch.where(inside(in_low, in_high), of_lanes(low, high), -1))


@leaf
def read_rows(
    rows: Any, indices: Any, topk: int, row: int, turn: int, turns: int, split: int, splits: int, lane: Any
) -> None:
    """The ids of the tile at `turn`, for the lanes that copy; unchanged past the last turn."""
    if turn < turns:
        first = (split + turn * splits) * 2 * WARP
        rows.copy_(indices[row, first : first + 2 * WARP])


@leaf
def gather_columns(target: Any, cache: Any, first: int, columns: int, rows: Any, thread: Any) -> None:
    """Start the copies of columns `first` on of a tile's rows; a row of -1 is not read and becomes zero."""
    target.copy_(rows_of_cache(cache, rows, len(cache))[:, first : first + columns])


def _token_bytes(words: torch.Tensor) -> torch.Tensor:
    return words.view(torch.uint8)[:, :FP8_TOKEN_BYTES]


def _load_bytes(words: torch.Tensor, cache: torch.Tensor, rows: torch.Tensor, first: int, end: int) -> None:
    _token_bytes(words)[:, first:end] = rows_of_cache(cache, rows, len(cache))[:, first:end]


@leaf
def load_unit(words: Any, unit: int, kv_cache: Any, rows: Any, thread: Any) -> None:
    """Read the fp8 values of one unit of a tile's tokens into registers; zeros for a row of -1."""
    _load_bytes(words, kv_cache, rows, unit * UNIT, (unit + 1) * UNIT)


@leaf
def load_rest(words: Any, kv_cache: Any, rows: Any, thread: Any) -> None:
    """Read the scales and the rope columns of a tile's tokens into registers; zeros for a row of -1."""
    _load_bytes(words, kv_cache, rows, LATENT_DIM, FP8_TOKEN_BYTES)


@leaf
def dequantise_unit(target: Any, words: Any, unit: int, thread: Any) -> None:
    """Write a unit as bf16, rounded once from e4m3 times scale."""
    latent, _ = unpack_fp8_tokens(_token_bytes(words).contiguous())
    target.copy_(latent[:, unit * UNIT : (unit + 1) * UNIT])


@leaf
def store_rope(target: Any, words: Any, thread: Any) -> None:
    """Write the rope columns."""
    _, rope = unpack_fp8_tokens(_token_bytes(words).contiguous())
    target.copy_(rope)


@leaf
def read_scores(scores: Any, accumulators: Any, thread: Any) -> None:
    """A tile's scores from tensor memory. Not yet waited for."""
    scores.copy_(accumulators)


@leaf
def outgrown(grown: Sets, top: Any, peak: Any, limit: int) -> Any:
    """Whether the maximum of some head rose more than `limit` powers of two above its reference; alike in every warp."""
    return bool((top > peak + limit).any())


@leaf
def raise_reference(peak: Any, top: Any, sums: Any, stat: Any, thread: Any) -> None:
    """Move the reference up to the maximum: rescale the running sums, and leave each head's factor for O."""
    risen = torch.maximum(top, peak)
    stat.copy_(torch.exp2(peak - risen))
    sums *= stat
    peak.copy_(risen)


@leaf
def rescale_output(acc: Any, held: Any, stat: Any, heads: int, thread: Any) -> None:
    """O^T times each head's factor, in tensor memory, some columns at a time."""
    acc *= stat.repeat(acc.shape[1] // heads)


@leaf
def weigh_tokens(scores: Any, sums: Any, peak: Any) -> None:
    """P = exp2(S - reference) in place of S, and the running sums of this thread's own weights."""
    scores.copy_(torch.exp2(scores - peak))
    sums += scores.view(len(sums), -1, scores.shape[1]).sum(dim=1)


@leaf
def finish_columns(
    total: Any, peak: Any, stat: Any, attn_sink: Any, lse: Writes, lse_partial: Writes, row: int, head0: int, heads: int, block: int,
    splits: int, split: int, alone: bool, lse_scale: float, thread: Any,
) -> None:  # fmt: skip
    """From sums and reference: the factor that normalises O^T, and the lse of a lone split or of a partial."""
    at = slice(head0, head0 + block)
    some, result = (total > 0)[:block], (torch.log2(total) + peak)[:block]
    result = torch.where(some, result, -math.inf)
    stat[:block] = torch.where(some, 1.0 / total[:block], 0.0)
    if alone:
        stat[:block] *= share_of(result, attn_sink[at])
        lse[row, at] = result * lse_scale
    else:
        lse_partial[row, split, at] = result


@leaf
def write_output(
    acc: Any, held: Any, stat: Any, out: Writes, o_partial: Writes, row: int, head0: int, heads: int, block: int, splits: int, split: int,
    alone: bool, some: bool, thread: Any,
) -> None:  # fmt: skip
    """O^T times each head's factor to the output (a lone split) or to this split's partial.

    Without `some` live tile there is no O: a lone split writes zeros, and a partial of one is never read.
    """
    at = slice(head0, head0 + block)
    result = _latent_by_head(acc, block) * stat[:block, None] if some else torch.zeros(block, LATENT_DIM)
    if alone:
        out[row, at] = result.to(out.dtype)
    elif some:
        o_partial[row, split, at] = result


@leaf
def merge_columns(
    o_partial: Any, lse_partial: Any, attn_sink: Any, out: Writes, lse: Writes, row: int, head0: int, heads: int, block: int, splits: int,
    lse_scale: float, first: int, columns: int, thread: Any, threads: int,
) -> None:  # fmt: skip
    """The weighted sum of the splits for `columns` latent dims from `first` on; the first dims bring the lse.

    A split of weight 0 is not looked at; a row without ids gives 0 and -inf.
    """
    at, dims = slice(head0, head0 + block), slice(first, first + columns)
    lses = lse_partial[row, :splits, at]
    total = torch.logsumexp(lses.double() * math.log(2), dim=0).float() * LOG2E
    weight = torch.where(lses > -math.inf, torch.exp2(lses - total), 0.0)[..., None]
    merged = torch.where(weight > 0, weight * o_partial[row, :splits, at, dims], 0.0).sum(dim=0)
    out[row, at, dims] = (merged * share_of(total, attn_sink[at])[:, None]).to(out.dtype)
    if first == 0:
        lse[row, at] = total * lse_scale
