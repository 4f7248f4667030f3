"""Leaves of putting ranks' entries in order, by their text: a thread places one entry."""

from __future__ import annotations

from ...device.torch.warps import clz
from ...tile.counting import moves
from ...tile.frontend import recorded, rolled
from ...tile.kinds import Global, Int32, LeafRecorder, Writes
from ...tile.leaf_text import by_text
from .problem import ID, SCORE


@recorded
def _tokens_before(m, tokens, count, token):
    """How many of `count` ascending tokens are less than `token`; -1, which ends a list, is not."""
    found: Int32 = 0
    step: Int32 = 1 << (31 - clz(count))
    while step > 0:
        if found + step <= count:  # noqa: SIM102 (read only then)
            if tokens[found + step - 1].to("uint32") < token.to("uint32"):
                found += step
        step = step >> 1
    return found


@moves(loaded=lambda planes, threads: 4 * planes * threads, stored=lambda threads: 8 * threads)
@by_text
def place_entry(
    m: LeafRecorder, scores: Writes[Global[Int32]], ids: Writes[Global[Int32]], entries: Global[Int32],
    row: Int32, first: Int32, ranks: Int32, planes: Int32, rows: Int32, k: Int32, interleave: Int32,
    rank_stride: Int32, threads: int,
) -> None:  # fmt: skip
    """Copy the entry of number `first` + thread, of those of all ranks in turn, to its place among them.

    Before an entry of rank r, token t, another rank has the tokens of as many whole runs as rank r, and one run more if it
    is dealt to before r.
    """
    number = first + m.thread
    rank = number // k
    at = number - rank * k
    if rank < ranks:
        token = entries.row("own_tokens", (rank, planes - 1, row), (planes, rows, k))[at]
        if token >= 0:
            run = token // interleave
            place: Int32 = at
            for other in rolled(0, ranks):
                if other != rank:
                    tokens = entries.row("tokens", (other, planes - 1, row), (planes, rows, k))
                    runs: Int32 = run
                    if other < rank:
                        runs += 1
                    place += _tokens_before(m, tokens, k, runs * interleave)
            named: Int32 = run * (ranks - 1) * interleave + rank * interleave + token
            if planes > 2:
                named = entries.row("names", (rank, ID, row), (planes, rows, k))[at] + rank * rank_stride
            scores.row("ordered", row, ranks * k)[place] = entries.row(
                "own_scores", (rank, SCORE, row), (planes, rows, k)
            )[at]
            ids.row("ordered_ids", row, ranks * k)[place] = named
