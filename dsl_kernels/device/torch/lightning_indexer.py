"""Leaf maths of the FP8 lightning indexer, by name: what each leaf means, in torch.

Registers that the threads of a role hold in their own layouts are whole tiles here; a value that every lane has for
itself is a tensor over the lanes.
"""

from __future__ import annotations

from typing import Any

import torch

from ...tile.leaf_text import Function
from ...tile.text import Writes, leaf

WARP = 32


quotient = Function("quotient", "int32", lambda count, size: count // size)
"""How often a size goes into a count below 2**21."""

shuffle_length = Function("shuffle_length", "int32", lambda length, lane: length)
"""A lane's own value, behind whatever stands before it: a compiler moves no shuffle."""

share_begin = Function(
    "share_begin", "int32", lambda total, part, parts: part * (total // parts) + _least(part, total % parts)
)
"""First unit of share `part` when `total` units are dealt to `parts` shares, sizes within one."""

share_size = Function(
    "share_size",
    "int32",
    lambda total, part, parts: total // parts + (torch.as_tensor(part) < total % parts).long(),
)
"""Units in share `part`."""


def _least(a: Any, b: Any) -> torch.Tensor:
    return torch.minimum(torch.as_tensor(a), torch.as_tensor(b))


@leaf
def read_weights(weight: Any, head_weights: Any, first: int, queries: int, thread: Any) -> None:
    """Weights of the heads of one product, from the `first` of its slot on."""
    weight.copy_(head_weights[first : first + weight.numel()].view(weight.shape))


@leaf
def read_scales(scale: Any, key_scales: Any, first: int, queries: int, thread: Any) -> None:
    """Scales of the keys of one product, from key `first` of the tile on."""
    scale.copy_(key_scales[first : first + scale.numel()])


@leaf
def weigh(logit: Any, dots: Any, weight: Any, queries: int, thread: Any) -> None:
    """logit[key, query] = sum_h weight[query, h] * max(dots[key, query, h], 0)."""
    logit.copy_((torch.relu(dots.view(len(dots), queries, -1)) * weight).sum(dim=2))


@leaf
def read_query_lengths(
    length: Any, seq_lens: Any, seq: int, query: int, queries: int, next_n: int, skip_below: int, thread: Any
) -> None:
    """Keys to score of the queries from `query` on; 0 past next_n and for a row that selection takes whole."""
    length.zero_()
    for i, value in enumerate(seq_lens[seq, query : min(next_n, query + length.numel())].tolist()):
        length[i] = value if value > skip_below else 0


@leaf
def one_length(length: Any, need: int) -> None:
    """The length of the only query of a sequence."""
    length.fill_(need)


def _store(row: Any, values: Any, key: int, begin: int, end: int) -> None:
    """The values of the keys from `key` on that lie in [begin, end)."""
    start, stop = max(begin, key), min(end, key + len(values))
    if start < stop:
        row[start:stop] = values[start - key : stop - key]


@leaf
def store_logits(
    logits: Writes,
    logit: Any,
    scale: Any,
    length: Any,
    seq: int,
    query: int,
    queries: int,
    next_n: int,
    stride: int,
    key: int,
    thread: Any,
) -> None:
    """Logits of the keys from `key` on, times their scales, of the queries from `query` on: as many as each has keys."""
    for i, upto in enumerate(length.tolist()):
        if query + i < next_n:
            _store(logits[seq, query + i], logit[:, i] * scale, key, 0, upto)


def _window(k_start: Any, k_end: Any, row: int, s: int, skv: int, skip_below: int) -> tuple[int, int]:
    """[begin, end) of a row; an empty one past the last row and for a row that selection takes whole."""
    last = min(row, s - 1)
    begin, end = max(0, int(k_start[last])), min(skv, int(k_end[last]))
    return (begin, end) if row < s and end - begin > skip_below else (begin, 0)


@leaf
def read_windows(
    begin: Any,
    size: Any,
    k_start: Any,
    k_end: Any,
    row: int,
    queries: int,
    s: int,
    skv: int,
    skip_below: int,
    thread: Any,
) -> None:
    """First keys and sizes of the windows of the rows from `row` on."""
    for i in range(begin.numel()):
        low, high = _window(k_start, k_end, row + i, s, skv, skip_below)
        begin[i], size[i] = low, max(0, high - low)


@leaf
def store_window(
    logits: Writes,
    logit: Any,
    scale: Any,
    begin: Any,
    size: Any,
    row: int,
    queries: int,
    stride: int,
    key: int,
    thread: Any,
) -> None:
    """Logits of the keys from `key` on, times their scales, of the rows from `row` on: those in each row's window."""
    for i, (low, count) in enumerate(zip(begin.tolist(), size.tolist(), strict=True)):
        if count:
            _store(logits[row + i], logit[:, i] * scale, key, low, low + count)


@leaf
def read_scores(dots: Any, scores: Any, first: int, heads: int, thread: Any) -> None:
    """Accumulators of a product in tensor memory, from column `first` on."""
    dots.copy_(scores[:, first : first + dots.shape[1]])


@leaf
def weigh_one(logit: Any, dots: Any, query: int, weight: Any) -> None:
    """logit = sum_h weight[h] * max(dots[query, h], 0), of each thread's key and one query of a product."""
    heads = weight.shape[1]
    logit[:, 0] = (torch.relu(dots[:, query * heads : (query + 1) * heads]) * weight).sum(dim=1)
