"""Leaf maths of the FP8 lightning indexer, by name: what each leaf means, in torch.

Registers that the threads of a role hold in their own layouts are whole tiles here; a value that every lane has for
itself is a tensor over the lanes.
"""

from __future__ import annotations

from typing import Any

import torch

from ...problems.topk_selector import first_digits
from ...tile.text import Changes, Sets, Writes, leaf

WARP = 32


def _lanes() -> torch.Tensor:
    return torch.arange(WARP, device="cpu")


def ceildiv(count: int, size: int) -> int:
    return -(-count // size)


def share_begin(total: int, part: int, parts: int) -> int:
    """First unit of share `part` when `total` units are dealt to `parts` shares, sizes within one."""
    return part * (total // parts) + min(part, total % parts)


def share_size(total: int, part: int, parts: int) -> int:
    """Units in share `part`."""
    return total // parts + int(part < total % parts)


def _need(seq_lens: Any, b: int, next_n: int, skip_below: int, sequence: int) -> int:
    """Longest prefix of a sequence that one of its queries has to score; 0 past the batch."""
    if sequence >= b:
        return 0
    return max([0, *(length for length in seq_lens[sequence, :next_n].tolist() if length > skip_below)])


def _even(b: int, cta: int, ctas: int) -> tuple[int, int, int]:
    group = max(ctas // b, 1) if b > 1 else ctas
    return cta // group, cta % group, group


@leaf
def place_when_even(seq: Sets, tile: Sets, step: Sets, b: int, cta: int, ctas: int) -> Any:
    """Where a CTA starts when tiles are dealt evenly: a sequence has `step` CTAs, and they take its tiles in turn."""
    return _even(b, cta, ctas)


@leaf
def read_lengths(length: Sets, seq_lens: Any, b: int, lane: Any) -> Any:
    """The lengths of the first 32 sequences, one a lane; the last one past the batch."""
    return seq_lens[_lanes().clamp(max=b - 1), 0]


@leaf
def lengths_to_score(need: Sets, length: Any, b: int, skip_below: int, lane: Any) -> Any:
    """What the lanes' sequences have to score, from their lengths."""
    lanes = _lanes()
    return torch.where((lanes < b) & (length > skip_below), length, 0)


@leaf
def keys_to_score(need: Sets, seq_lens: Any, b: int, next_n: int, skip_below: int, sequence: Any) -> Any:
    """Longest prefix that one query of a sequence has to score, for the sequence of each lane; 0 past the batch."""
    needs = [_need(seq_lens, b, next_n, skip_below, lane) for lane in range(WARP)]
    return torch.tensor(needs, dtype=torch.int32, device=seq_lens.device)


@leaf
def find_share(
    seq: Changes,
    tile: Changes,
    need: Changes,
    turns: Sets,
    step: Changes,
    seq_lens: Any,
    b: int,
    next_n: int,
    skip_below: int,
    keys: int,
    cta: int,
    ctas: int,
    lane: Any,
) -> Any:
    """Which key tiles a CTA scores: `turns` tiles from `tile` of sequence `seq` on, `step` apart.

    Given are place_when_even and keys_to_score of the first 32 sequences, one a lane; what comes back is that of `seq`.
    Dealt evenly where that leaves no CTA with more tiles than contiguous equal shares of all tiles, end to end, would;
    otherwise in such shares.
    """
    needs = [_need(seq_lens, b, next_n, skip_below, sequence) for sequence in range(b)]
    tiles = [ceildiv(length, keys) for length in needs]
    if b == 1:
        return seq, tile, needs[0], share_size(tiles[0], cta, ctas), step
    if b <= ctas and max(tiles) <= ceildiv(sum(tiles), ctas) * step:
        length = needs[seq] if seq < b else 0
        return seq, tile, length, max(0, ceildiv(ceildiv(length, keys) - tile, step)), step
    place, turns = share_begin(sum(tiles), cta, ctas), share_size(sum(tiles), cta, ctas)
    seq = 0
    while turns and place >= tiles[seq]:
        place -= tiles[seq]
        seq += 1
    return seq, place, needs[seq], turns, 1


@leaf
def next_tile(
    fresh: Sets,
    it: int,
    seq: Changes,
    tile: Changes,
    need: Changes,
    seq_lens: Any,
    b: int,
    next_n: int,
    skip_below: int,
    keys: int,
) -> Any:
    """Before the `it`-th tile of a share: past the end of `seq`, move on to the next sequence with keys to score.

    `fresh` tells whether this tile is the share's first one of its sequence.
    """
    fresh = it == 0 or tile * keys >= need
    while tile * keys >= need:
        seq, tile = seq + 1, 0
        need = _need(seq_lens, b, next_n, skip_below, seq)
    return fresh, seq, tile, need


@leaf
def table_entries(
    entry: Sets,
    block_table: Any,
    max_pages: int,
    row: int,
    tile: int,
    step: int,
    pages: int,
    last: int,
    lane: Any,
) -> Any:
    """The lanes' entries of row `row` of the block table: those of 32 / pages tiles from `tile` on, `step` apart.

    Entries past `last` are not read; lanes that want one get that of `last`.
    """
    lanes = _lanes()
    places = (tile + lanes // pages * step) * pages + lanes % pages
    return block_table.reshape(-1)[row * max_pages + places.clamp(max=last)]


@leaf
def entry_of(page: Sets, entry: Any, place: int) -> Any:
    """The entry that lane `place` holds."""
    return int(entry[place])


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
def clear_counts(hist: Any, thread: Any) -> None:
    """Begin with zeros."""
    hist.zero_()


@leaf
def count_logits(hist: Any, logit: Any, scale: Any, length: Any, key: int, thread: Any) -> None:
    """Count what store_logits writes of one query, by the first digit that selection looks at."""
    count = max(0, min(len(scale), int(length[0]) - key))
    hist.index_add_(0, first_digits(logit[:count, 0] * scale[:count]), hist.new_ones(count))


@leaf
def add_counts(counts: Writes, row: int, hist: Any, thread: Any) -> None:
    """Add the counts of this CTA to those of a row, and leave zeros."""
    counts[row] += hist
    hist.zero_()


@leaf
def find_tiles(
    first: Sets,
    turns: Sets,
    k_start: Any,
    k_end: Any,
    row: int,
    rows: int,
    s: int,
    skv: int,
    skip_below: int,
    keys: int,
    split: int,
    splits: int,
) -> Any:
    """First key tile and tile count of a split over the union of the windows of a block of rows."""
    windows = [_window(k_start, k_end, row + i, s, skv, skip_below) for i in range(rows)]
    live = [window for window in windows if window[1] > window[0]]
    if not live:
        return share_begin(0, split, splits), share_size(0, split, splits)
    low = min(begin for begin, _ in live) // keys
    tiles = ceildiv(max(end for _, end in live), keys) - low
    return low + share_begin(tiles, split, splits), share_size(tiles, split, splits)


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
def weigh_one(logit: Any, dots: Any, query: int, weight: Any, thread: Any) -> None:
    """logit[key] = sum_h weight[h] * max(dots[key, query, h], 0), for one query of a product."""
    heads = weight.numel()
    logit.copy_((torch.relu(dots[:, query * heads : (query + 1) * heads]) * weight).sum(dim=1))


@leaf
def store_query(
    logits: Writes,
    logit: Any,
    scale: Any,
    length: Any,
    seq: int,
    query: int,
    next_n: int,
    stride: int,
    key: int,
    thread: Any,
) -> None:
    """Logits of one query and the keys from `key` on, times their scales: as many as the query has keys."""
    if query < next_n:
        _store(logits[seq, query], logit * scale, key, 0, int(length[query]))


@leaf
def store_row(
    logits: Writes,
    logit: Any,
    scale: Any,
    begin: Any,
    size: Any,
    j: int,
    row: int,
    stride: int,
    key: int,
    thread: Any,
) -> None:
    """Logits of row `row`, number `j` of the group, and the keys from `key` on: those in its window."""
    if size[j]:
        _store(logits[row], logit * scale, key, int(begin[j]), int(begin[j] + size[j]))
