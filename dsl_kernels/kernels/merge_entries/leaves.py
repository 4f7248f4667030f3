"""Texts of the leaves of merging entries: a thread places an entry.

Threads search gathered lists in global memory. In the memory of other ranks each step of a search would wait
for the link. So the threads of a cluster read every entry once, with all loads in flight together, and give
its token to all CTAs.
"""

from __future__ import annotations

from ...device.torch.warps import clz, store_peer
from ...tile.counting import moves
from ...tile.frontend import recorded, rolled, unrolled
from ...tile.kinds import Global, Int32, Int64, LeafRecorder, Peers, Registers, Shared, Writes
from ...tile.leaf_text import by_text
from .problem import ID, SCORE


@recorded
def _tokens_before(m, tokens, count, token):
    """How many of `count` ascending tokens are less than `token`.

    The -1 at the end of a list counts as greater.
    """
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
    """Copy entry number `first` + thread, of the entries of all ranks in turn, to its place.

    Let token t of rank r be in run number n of its rank. Before this token another rank has its first n runs,
    and one run more if that rank comes before r.
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


@moves(loaded=lambda planes, tokens: planes * tokens)
@by_text
def read_peers(
    m: LeafRecorder, tokens: Registers[Int32], scores: Registers[Int32], names: Registers[Int32],
    entries: Global[Int32], peer_distances: Global[Int64], row: Int32, first: Int32, step: int, ranks: Int32,
    planes: Int32, rows: Int32, k: Int32,
) -> None:  # fmt: skip
    """Read a thread's entries from the memory of ranks: number `first` + thread, and every `step` further.

    All loads are in flight together. Where there is no entry, the token is -1.
    """
    distances = m.local("distances", tokens.size, "int64")
    for i in unrolled(tokens.size):
        distances[i] = 0
        if first + m.thread + i * step < ranks * k:
            distances[i] = peer_distances[(first + m.thread + i * step) // k]
    for i in unrolled(tokens.size):
        number = first + m.thread + i * step
        tokens[i] = -1
        scores[i] = 0
        names[i] = 0
        if number < ranks * k:
            theirs = entries.of_peer("theirs", distances[i])
            at = number % k
            tokens[i] = theirs.row("own_tokens", (planes - 1, row), (rows, k))[at]
            scores[i] = theirs.row("own_scores", (SCORE, row), (rows, k))[at]
            if planes > 2:
                names[i] = theirs.row("own_names", (ID, row), (rows, k))[at]


@by_text
def share_tokens(
    m: LeafRecorder, lists: Peers[Int32], tokens: Registers[Int32], first: Int32, step: int, count: Int32,
    group: int,
) -> None:  # fmt: skip
    """Give a thread's tokens to every CTA of the cluster.

    `count` tokens have the order of the ranks' lists.
    """
    for i in unrolled(tokens.size):
        if first + m.thread + i * step < count:
            for cta in unrolled(group):
                m.do(store_peer(lists.at(first + m.thread + i * step), cta, tokens[i]))


@moves(stored=lambda tokens: 2 * tokens)
@by_text
def place_read(
    m: LeafRecorder, ordered_scores: Writes[Global[Int32]], ordered_ids: Writes[Global[Int32]],
    lists: Shared[Int32], tokens: Registers[Int32], scores: Registers[Int32], names: Registers[Int32],
    row: Int32, first: Int32, step: int, ranks: Int32, planes: Int32, k: Int32, interleave: Int32,
    rank_stride: Int32,
) -> None:  # fmt: skip
    """Write a thread's entries to their places, like `place_entry`, by the tokens of all ranks in `lists`."""
    for i in unrolled(tokens.size):
        if tokens[i] >= 0:
            number = first + m.thread + i * step
            rank = number // k
            run = tokens[i] // interleave
            place: Int32 = number - rank * k
            for other in rolled(0, ranks):
                if other != rank:
                    runs: Int32 = run
                    if other < rank:
                        runs += 1
                    place += _tokens_before(m, lists.part("listed", other * k), k, runs * interleave)
            named: Int32 = run * (ranks - 1) * interleave + rank * interleave + tokens[i]
            if planes > 2:
                named = names[i] + rank * rank_stride
            ordered_scores.row("to_scores", row, ranks * k)[place] = scores[i]
            ordered_ids.row("to_ids", row, ranks * k)[place] = named
