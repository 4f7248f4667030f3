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
from ...tile.text import Sets, Writes, leaf
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


def from_threads(values: torch.Tensor) -> torch.Tensor:
    """The inverse of `by_thread`."""
    return values.reshape(4, 8, 4, 2, 2).permute(0, 3, 1, 2, 4).reshape(TILE, 8)


def quads_of(acc: torch.Tensor) -> torch.Tensor:
    """O^T [dims, heads] as its [64 dims, 8 heads] quads, heads fastest: [quads, 64, 8]."""
    dims, heads = acc.shape
    return acc.view(dims // 64, 64, heads // 8, 8).permute(0, 2, 1, 3).reshape(-1, 64, 8)


def join(values: torch.Tensor, lses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Join normalised parts [parts, rows, dims, heads] by their lse [parts, rows, heads]; an empty part has weight 0."""
    lse = torch.logsumexp(lses.double() * math.log(2), dim=0).float() * LOG2E
    share = torch.where(lses > -math.inf, torch.exp2(lses - lse), 0.0)[:, :, None]
    return torch.where(share > 0, share * values, 0.0).sum(dim=0), lse


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
def read_ids(
    low: Sets,
    high: Sets,
    indices: Any,
    topk: int,
    row: int,
    turn: int,
    turns: int,
    split: int,
    splits: int,
    lane: Any,
) -> Any:
    """Ids `lane` and `lane` + 32 of the tile at `turn`; none past the last turn."""
    if turn >= turns:
        none = torch.full((WARP,), -1, dtype=torch.int32, device=indices.device)
        return none, none
    first = (split + turn * splits) * TILE
    return indices[row, first : first + WARP], indices[row, first + WARP : first + TILE]


@leaf
def vote(in_low: Sets, in_high: Sets, live: Sets, low: Any, high: Any, n: int) -> Any:
    """The valid ids of a tile as two words of bits, and whether there is one; the same in every warp of every role."""
    in_low, in_high = (low >= 0) & (low < n), (high >= 0) & (high < n)
    return in_low, in_high, bool(in_low.any() | in_high.any())


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
def load_sinks(sinks: Any, attn_sink: Any, head0: int, thread: Any) -> None:
    """The sink logits of the heads, read long before they are wanted."""
    sinks.copy_(attn_sink[head0 : head0 + sinks.numel()])


@leaf
def copy_rows(
    target: Any, cache: Any, first: int, columns: int, low: Any, high: Any, n: int, thread: Any
) -> None:
    """Start the copies of columns `first` on of a tile's rows; zeros where an id names no row."""
    target.copy_(rows_of_cache(cache, torch.cat([low, high]), n)[:, first : first + columns])


@leaf
def load_tokens(
    words: Any, kv_cache: Any, which: int, dims: int, low: Any, high: Any, n: int, thread: Any
) -> None:
    """Read latent dims which * dims on of a tile's 656-byte tokens into registers, in bf16 once unpacked."""
    latent, _ = unpack_fp8_tokens(rows_of_cache(kv_cache, torch.cat([low, high]), n))
    words.view(torch.bfloat16).copy_(latent[:, which * dims : (which + 1) * dims])


@leaf
def renew_tokens(
    words: Any, target: Any, kv_cache: Any, which: int, dims: int, low: Any, high: Any, n: int, thread: Any
) -> None:
    """Write what the words hold as bf16 rows and, as room is made, read other tokens as `load_tokens` does."""
    target.copy_(words.view(torch.bfloat16))
    load_tokens.torch(words, kv_cache, which, dims, low, high, n, thread)


@leaf
def copy_rope(
    target: Any, kv_cache: Any, first: int, columns: int, low: Any, high: Any, n: int, thread: Any
) -> None:
    """Start the copies of rope dims `first` on of a tile's 656-byte tokens; zeros where an id names no row."""
    _, rope = unpack_fp8_tokens(rows_of_cache(kv_cache, torch.cat([low, high]), n))
    target.copy_(rope[:, first : first + columns])


@leaf
def send_scores(scores: Any, send: Any, rank: int, slices: int, thread: Any) -> None:
    """Send the partial scores to every other CTA of the slice group: slot d - 1 receives from rank XOR d."""
    mine = torch.stack([by_thread(scores[:, g : g + 8]) for g in range(0, scores.shape[1], 8)])
    for d in range(1, slices):
        send(rank ^ d, (d - 1,), mine)


@leaf
def add_scores(scores: Any, received: Any, slices: int, thread: Any) -> None:
    """Add what the other CTAs sent. Pairs first, so that all of the group round alike: (0 + 1) + (2 + 3)."""
    got = [torch.cat([from_threads(piece) for piece in received[d]], dim=1) for d in range(slices - 1)]
    scores += got[0]
    if slices == 4:
        scores += got[1] + got[2]


@leaf
def mask_scores(scores: Any, low: Any, high: Any, sm_scale: float, thread: Any) -> None:
    """Scale the logits to base 2 and put -inf where the token has no valid id."""
    inside = torch.cat([low, high])
    scores.copy_(torch.where(inside[:, None], scores * (sm_scale * LOG2E), -math.inf))


@leaf
def column_maxima(risen: Any, scores: Any, thread: Any) -> None:
    """Maxima over the 16 tokens of each warp."""
    risen.copy_(scores.view(4, 16, -1).amax(dim=1))


@leaf
def share_columns(red: Any, values: Any, thread: Any) -> None:
    """Leave one value a column and warp for the other warps."""
    red.copy_(values)


@leaf
def join_maxima(top: Any, red: Any, thread: Any) -> None:
    """The maxima of the columns over the four warps."""
    top.copy_(red.amax(dim=0))


@leaf
def online_softmax(scores: Any, sums: Any, acc: Any, peak: Any, top: Any) -> None:
    """P = exp2(S - maximum) in place of S; rescale the running sums and O to the new maximum.

    The sums stay per thread until the end: one addition an element and no exchange between threads.
    """
    risen = torch.maximum(top, peak)
    decay = torch.exp2(peak - risen)
    peak.copy_(risen)
    scores.copy_(torch.exp2(scores - risen))
    sums.copy_(sums * decay + scores.view(len(sums), -1, scores.shape[1]).sum(dim=1))
    acc *= decay


@leaf
def store_weights(target: Any, weights: Any, heads: int, thread: Any) -> None:
    """Write P as bf16; eight heads lie along the rows."""
    target.copy_(weights if heads > 8 else weights.T)


@leaf
def column_sums(risen: Any, sums: Any, thread: Any) -> None:
    """Sums over the tokens of each warp."""
    risen.copy_(sums.view(4, -1, sums.shape[1]).sum(dim=1))


@leaf
def join_sums(top: Any, red: Any, thread: Any) -> None:
    """The sums of the columns over the four warps."""
    top.copy_((red[0] + red[1]) + (red[2] + red[3]))


@leaf
def normalise(acc: Any, top: Any, peak: Any) -> None:
    """O / sum in place, and the base-2 lse in place of the sums; an empty column gives 0 and -inf."""
    total = top.clone()
    acc.copy_(torch.where(total > 0, acc / torch.where(total > 0, total, 1.0), 0.0))
    top.copy_(torch.where(total > 0, torch.log2(total) + peak, -math.inf))


def _rows_of_parts(acc: torch.Tensor, lses: torch.Tensor) -> torch.Tensor:
    """O^T as it crosses CTAs: rows of 16 dims by 8 heads, in the order of `by_thread` but dims before heads, and all lses."""
    threads = torch.stack([by_thread(quad) for quad in quads_of(acc)]).view(-1, 8, 4, 4)
    heads = lses.view(-1, 4, 2).transpose(0, 1).reshape(1, -1)
    values = threads.transpose(1, 2).reshape(len(threads), -1)
    return torch.cat([values, heads.expand(len(threads), -1)], dim=1)


@leaf
def send_parts(
    acc: Any, lses: Any, send: Any, first: int, slices: int, part: int, parts: int, thread: Any
) -> None:
    """Send each CTA that holds this slice its share of O, this one included.

    A row is 16 dims by 8 heads, and the lses of all heads behind them. A CTA's share are the rows of its number, one part
    behind the other; CTA `first` merges the first share, and every `slices`-th from there the next.
    """
    rows = _rows_of_parts(acc, lses)
    each = len(rows) // parts
    for n, values in enumerate(rows):
        send(first + n // each * slices, (part * each + n % each,), values)


@leaf
def keep_parts(target: Any, acc: Any, lses: Any, thread: Any) -> None:
    """Leave all of O in shared memory as `send_parts` would send it, where no other CTA has a part of it."""
    target.copy_(_rows_of_parts(acc, lses))


@leaf
def merge_parts(
    out: Writes, lse: Writes, received: Any, sinks: Any, row: int, head0: int, heads: int, part: int, parts: int, which: int, dims: int,
    block: int, lse_scale: float, thread: Any,
) -> None:  # fmt: skip
    """Join the parts of this CTA's share of O, scale each head by what tokens keep beside its sink, and store it; and the lse."""
    got = received.view(parts, len(received) // parts, -1)
    values = (
        got[..., :128]
        .view(*got.shape[:2], 4, 8, 2, 2)
        .permute(0, 1, 4, 3, 2, 5)
        .reshape(*got.shape[:2], 16, 8)
    )
    lses = got[..., 128:].view(*got.shape[:2], 4, -1, 2).transpose(2, 3).reshape(*got.shape[:2], block)
    for c in range(got.shape[1]):
        quad, sixteen = divmod(part * got.shape[1] + c, 4)
        columns = slice(quad % (block // 8) * 8, quad % (block // 8) * 8 + 8)
        merged, joined = join(values[:, c : c + 1], lses[:, c : c + 1, columns])
        first = which * dims + quad // (block // 8) * 64 + sixteen * 16
        rows = slice(head0 + columns.start, head0 + columns.stop)
        result = merged[0] * share_of(joined[0], sinks[columns])
        out[row, rows, first : first + 16] = result.T.to(out.dtype)
        if which == sixteen == 0 and quad < block // 8:
            lse[row, rows] = joined[0] * lse_scale


# A whole row a CTA: splits meet in scratch memory, as [heads / 8, 512 dims, 8 heads].


@leaf
def load_half(
    words: Any, at: int, kv_cache: Any, batch: int, low: Any, high: Any, n: int, thread: Any
) -> None:
    """Read tokens batch * 32 .. + 31 of the tile into the registers of place `at`."""
    latent, rope = unpack_fp8_tokens(rows_of_cache(kv_cache, high if batch else low, n))
    words[at] = torch.cat([latent.bfloat16(), rope], dim=1).contiguous().view(torch.int32)


@leaf
def store_half(words: Any, at: int, ckv: Any, kpe: Any, batch: int, thread: Any) -> None:
    """Write what `load_half` read as bf16 rows of the tile."""
    rows = slice(batch * WARP, (batch + 1) * WARP)
    _store_half(words[at], ckv[rows], kpe[rows])


def _store_half(words: torch.Tensor, ckv: torch.Tensor, kpe: torch.Tensor) -> None:
    # 32-bit words are 64-bit integers in torch, which has no complete arithmetic on unsigned ones.
    held = words.int().contiguous().view(torch.bfloat16)
    ckv.copy_(held[:, :LATENT_DIM])
    kpe.copy_(held[:, LATENT_DIM:])


@leaf
def write_outputs(
    acc: Any, top: Any, attn_sink: Any, out: Writes, lse: Writes, row: int, head0: int, heads: int, lse_scale: float, thread: Any
) -> None:  # fmt: skip
    """The result of a row that one CTA holds whole."""
    block = slice(head0, head0 + acc.shape[1])
    out[row, block] = (acc * share_of(top, attn_sink[block])).T.to(out.dtype)
    lse[row, block] = top * lse_scale


@leaf
def write_partial(
    acc: Any, top: Any, o_partial: Writes, lse_partial: Writes, row: int, splits: int, split: int, head0: int, heads: int, thread: Any
) -> None:  # fmt: skip
    """The normalised output and the lse of one split, for `merge_splits`."""
    block = slice(head0, head0 + acc.shape[1])
    by_head = acc.view(LATENT_DIM, -1, 8).permute(1, 0, 2)
    o_partial[row, split, block] = by_head.reshape(acc.shape[1], LATENT_DIM)
    lse_partial[row, split, block] = top


@leaf
def merge_splits(
    o_partial: Any, lse_partial: Any, attn_sink: Any, out: Writes, lse: Writes, row: int, head0: int, block: int, heads: int, splits: int,
    lse_scale: float, first: int, count: int, thread: Any, threads: int,
) -> None:  # fmt: skip
    """The weighted sum of the splits for `count` quads from `first` on: a quad is four heads of one latent dim."""
    rows = slice(head0, head0 + block)
    parts = o_partial[row, :splits, rows].reshape(splits, block // 8, LATENT_DIM, 8).transpose(1, 2)
    lses = lse_partial[row, :splits, rows]
    total = torch.logsumexp(lses.double() * math.log(2), dim=0).float() * LOG2E
    weight = torch.where(lses > -math.inf, torch.exp2(lses - total), 0.0)[:, None]
    merged = torch.where(weight > 0, weight * parts.reshape(splits, LATENT_DIM, block), 0.0).sum(dim=0)
    result = merged * share_of(total, attn_sink[rows])
    for quad in range(first, first + count):
        head, dim = quad // 1024 * 8 + quad % 2 * 4, quad % 1024 // 2
        out[row, head0 + head : head0 + head + 4, dim] = result[dim, head : head + 4].to(out.dtype)
        if dim == 0:
            lse[row, head0 + head : head0 + head + 4] = total[head : head + 4] * lse_scale


# Heads on M: each of two warpgroups (sides) scores half of the tokens of a tile and has half of the dims of O.


@leaf
def fetch_half(kv_cache: Any, ids: Any, n: int, thread: Any) -> None:
    """Have the L2 fetch the tokens of half a tile, if the device can."""


@leaf
def renew_half(words: Any, ckv: Any, kpe: Any, kv_cache: Any, ids: Any, n: int, thread: Any) -> None:
    """Write the half tile in place 0 as bf16 rows and, as room is made, read the tokens of these ids."""
    _store_half(words[0], ckv, kpe)
    load_half.torch(words, 0, kv_cache, 0, ids, ids, n, thread)


@leaf
def fetch_share(kv_cache: Any, rank: int, ids: Any, n: int, thread: Any) -> None:
    """Have the L2 fetch this CTA's share of the tokens of half a tile, if the device can."""


@leaf
def load_share(words: Any, kv_cache: Any, rank: int, ids: Any, n: int, thread: Any) -> None:
    """Read this CTA's share of half a tile into the registers: half of the latent dims, and rope of four tokens in eight."""
    latent, rope = unpack_fp8_tokens(rows_of_cache(kv_cache, ids, n))
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
def mask_columns(scores: Any, low: Any, high: Any, sm_scale: float, thread: Any) -> None:
    """Scale the logits to base 2 and put -inf where the token, of the first 32 or of the next, has no valid id."""
    inside = torch.cat([low, high])[None, : scores.shape[1]]
    scores.copy_(torch.where(inside, scores * (sm_scale * LOG2E), -math.inf))


@leaf
def pack_rows(weights: Any, scores: Any) -> None:
    """P in 16 bits, as the next product takes it."""
    weights.copy_(scores)


@leaf
def store_rows(target: Any, weights: Any, thread: Any) -> None:
    """Write P as bf16, heads by tokens."""
    target.copy_(weights)


@leaf
def softmax_rows(scores: Any, sums: Any, peak: Any, factor: Any, rise: int, thread: Any) -> None:
    """P = exp2(S - maximum) in place of S. A maximum rises, by `factor`, when a score of its warp's rows exceeds one by `rise`.

    On a device the sum is each thread's own, of its columns.
    """
    grown = (scores > peak[:, None] + rise).view(4, -1).any(dim=1).repeat_interleave(len(peak) // 4)
    risen = torch.where(grown, torch.maximum(peak, scores.amax(dim=1)), peak)
    factor.copy_(_raise(peak, sums, risen))
    # No token of this half may be valid, nor one before it.
    base = torch.where(peak == -math.inf, 0.0, peak)
    scores.copy_(torch.exp2(scores - base[:, None]))
    sums.add_(scores.sum(dim=1))


def _raise(peak: Any, sums: Any, risen: Any) -> torch.Tensor:
    """The factor by which what was summed up shrinks."""
    factor = torch.where(risen == peak, 1.0, torch.exp2(peak - risen))
    sums.mul_(factor)
    peak.copy_(risen)
    return factor


@leaf
def share_peak(target: Any, peak: Any, thread: Any) -> None:
    """Leave the maxima that P is below for the other side."""
    target.copy_(peak)


@leaf
def follow_peak(peak: Any, sums: Any, acc: Any, other: Any, thread: Any) -> None:
    """Raise the maxima to those that the other side's P is below, which are no lower."""
    acc.mul_(_raise(peak, sums, other)[:, None])


@leaf
def share_sums(sums: Any, red: Any, side: int, thread: Any) -> None:
    """Complete this side's sums and leave them for the other."""
    red[side] = sums


@leaf
def total_rows(sums: Any, peak: Any, factor: Any, red: Any, side: int, thread: Any) -> None:
    """`factor`: 1 / sum of both sides, and the base-2 lse in place of the sums; an empty row gives 0 and -inf."""
    total = sums + red[1 - side]
    factor.copy_(torch.where(total > 0, 1 / total, 0.0))
    sums.copy_(torch.where(total > 0, torch.log2(total) + peak, -math.inf))


def _rows_by_thread(acc: torch.Tensor) -> torch.Tensor:
    """Half of O [64 heads, 256] as the threads of a warpgroup hold it: [32 pieces of 8 dims, 128, 4]."""
    return torch.stack([by_thread(piece) for piece in acc.split(8, dim=1)])


def _rows_from_threads(values: torch.Tensor) -> torch.Tensor:
    return torch.cat([from_threads(piece) for piece in values.view(-1, THREADS, 4)], dim=1)


def _room(partial: torch.Tensor, head0: int, acc: torch.Tensor, side: int) -> torch.Tensor:
    """Where a side leaves its half of a split's O."""
    return partial.reshape(-1)[head0 * LATENT_DIM :][side * acc.numel() :][: acc.numel()]


@leaf
def leave_rows(
    acc: Any, factor: Any, lses: Any, o_partial: Writes, lse_partial: Writes, row: int, splits: int, split: int, head0: int, heads: int, side: int, thread: Any
) -> None:  # fmt: skip
    """Write half of O times `factor`, in the order of the threads, and its lses, for `merge_rows`."""
    values = _rows_by_thread(acc * factor[:, None])
    _room(o_partial[row, split], head0, acc, side).copy_(values.reshape(-1))
    if side == 0:
        lse_partial[row, split, head0 : head0 + len(acc)] = lses


@leaf
def merge_rows(
    acc: Any, factor: Any, lses: Any, o_partial: Any, lse_partial: Any, row: int, splits: int, parts: int, head0: int, heads: int, side: int, thread: Any
) -> None:  # fmt: skip
    """Replace half of O, as a sum that `factor` normalises, and its lses by those of the first `parts` splits."""
    values = torch.stack(
        [_rows_from_threads(_room(o_partial[row, s], head0, acc, side)) for s in range(parts)]
    )
    found = lse_partial[row, :parts, head0 : head0 + len(acc)]
    top = found.amax(dim=0)
    shares = torch.where(found == -math.inf, 0.0, torch.exp2(found - top))
    total = shares.sum(dim=0)
    acc.copy_((values * shares[:, :, None]).sum(dim=0))
    factor.copy_(torch.where(total > 0, 1 / total, 0.0))
    lses.copy_(torch.where(total > 0, torch.log2(total) + top, -math.inf))


@leaf
def store_result_rows(
    out: Writes, lse: Writes, acc: Any, factor: Any, lses: Any, sinks: Any, row: int, head0: int, heads: int, scratch: Any, width: int, lse_scale: float, side: int, thread: Any
) -> None:  # fmt: skip
    """Store half of O times `factor` as bf16, each head scaled by the share that tokens keep beside its sink; and the lse.

    The rows pass through `scratch`, `width` dims of each at a time.
    """
    block, dims = slice(head0, head0 + len(acc)), acc.shape[1]
    out[row, block, side * dims : (side + 1) * dims] = (acc * (factor * share_of(lses, sinks))[:, None]).to(
        out.dtype
    )
    if side == 0:
        lse[row, block] = lses * lse_scale


@leaf
def load_row_sinks(sinks: Any, attn_sink: Any, head0: int, thread: Any) -> None:
    """The sink logits of the heads, read long before they are wanted."""
    sinks.copy_(attn_sink[head0 : head0 + sinks.numel()])


@leaf
def copy_query_rows(target: Any, q: Any, row: int, head0: int, heads: int, columns: int, thread: Any) -> None:
    """Start the copies of a block of 64 heads of one query."""
    target.copy_(q[row, head0 : head0 + len(target)])
