"""Texts of the leaves of merging outputs: a warp merges one head of one row.

Parts are gathered in one tensor, or each is in the memory of its rank. From there a load takes longer than
all else together. So a lane has the loads from all ranks in flight before it uses one, in registers for a
host of `MOST_PEERS` GPUs.
"""

from __future__ import annotations

import math

from ...device.torch.floats import divide
from ...device.torch.scalars import half_of, load_piece, pair_of, store_piece
from ...device.torch.warps import exp2, log2
from ...problems.layouts import LATENT_DIM
from ...problems.peers import MOST_PEERS
from ...tile.counting import moves
from ...tile.frontend import inline, rolled, unrolled
from ...tile.kinds import BFloat16, Float32, Global, Int32, Int64, LeafRecorder, Writes
from ...tile.leaf_text import WARP, by_text
from ...tile.text import maximum, select

VECTOR = 8
PIECES = LATENT_DIM // (VECTOR * WARP)
WORDS = VECTOR // 2
LOG2_E = 1 / math.log(2)
# Less than any score. It is the peak of a row without keys, so that nothing computes -inf minus -inf.
LOWEST = -3.0e38


@moves(
    loaded=lambda ranks, warps: ranks * warps * (2 * LATENT_DIM + 4),
    stored=lambda warps: warps * (2 * LATENT_DIM + 4),
)
@by_text
def merge_head(
    m: LeafRecorder, out: Writes[Global[BFloat16]], lse: Writes[Global[Float32]], outs: Global[BFloat16],
    lses: Global[Float32], attn_sink: Global[Float32], first: Int32, ranks: Int32, rows: Int32, heads: Int32,
    lse_scale: Float32, warps: int,
) -> None:  # fmt: skip
    """Merge head `first` + warp of all rows. Sums have the order of ranks, so all ranks round alike.

    A sink may be infinite or far above all scores. Its share then overflows to infinity, and out is 0.
    """
    number = first + m.warp
    if number < rows * heads:
        row = number // heads
        head = number - row * heads
        peak: Float32 = LOWEST
        for rank in rolled(0, ranks):
            peak = maximum(peak, lses.row("of_row", (rank, row))[head])
        total: Float32 = 0.0
        for rank in rolled(0, ranks):
            total += exp2(lses.row("of_rank", (rank, row))[head] - peak)
        weighed = total + exp2(attn_sink[head] * LOG2_E - peak)
        factor: Float32 = select(weighed > 0.0, divide(1.0, weighed), 0.0)
        if m.lane == 0:
            lse.row("to_lse", row, heads)[head] = (peak + log2(total)) * lse_scale
        sums = m.local("sums", PIECES * VECTOR, "float32")
        words = m.local("words", PIECES * WORDS, "uint32")
        for i in unrolled(PIECES * VECTOR):
            sums[i] = 0.0
        for r in rolled(0, ranks):
            share = exp2(lses.row("again", (r, row))[head] - peak) * factor
            part = outs.row("part", (r, row, head))
            for piece in unrolled(PIECES):
                m.do(load_piece(words, piece * WORDS, VECTOR, part.at((piece * WARP + m.lane) * VECTOR)))
            for i in unrolled(PIECES * WORDS):
                sums[2 * i] += half_of(words[i], False) * share
                sums[2 * i + 1] += half_of(words[i], True) * share
        to = out.row("to", (row, head), (heads, LATENT_DIM))
        for i in unrolled(PIECES * WORDS):
            words[i] = pair_of(sums[2 * i], sums[2 * i + 1])
        for piece in unrolled(PIECES):
            m.do(store_piece(words, piece * WORDS, VECTOR, to.at((piece * WARP + m.lane) * VECTOR)))


@moves(
    loaded=lambda ranks, warps: ranks * warps * (2 * LATENT_DIM + 4),
    stored=lambda warps: warps * (2 * LATENT_DIM + 4),
)
@by_text
def merge_peers_head(
    m: LeafRecorder, out: Writes[Global[BFloat16]], lse: Writes[Global[Float32]], outs: Global[BFloat16],
    lses: Global[Float32], peer_distances: Global[Int64], attn_sink: Global[Float32], first: Int32,
    ranks: Int32, rows: Int32, heads: Int32, lse_scale: Float32, warps: int,
) -> None:  # fmt: skip
    """Merge head `first` + warp of the heads of all rows from the memory of the ranks, with the same sums.

    The loads from all ranks are in flight together.
    """
    number = first + m.warp
    if number < rows * heads:
        row = number // heads
        head = number - row * heads
        distances = m.local("distances", MOST_PEERS, "int64")
        scores = m.local("scores", MOST_PEERS, "float32")
        words = m.local("words", MOST_PEERS * PIECES * WORDS, "uint32")
        for i in unrolled(MOST_PEERS):
            if i < ranks:
                distances[i] = peer_distances[i]
        for r in unrolled(MOST_PEERS):
            scores[r] = -math.inf
            if r < ranks:
                scores[r] = lses.of_peer("peer_lses", distances[r]).row("of_row", row)[head]
                part = outs.of_peer("peer_outs", distances[r]).row("part", (row, head))
                for piece in unrolled(PIECES):
                    word = inline((r * PIECES + piece) * WORDS)
                    m.do(load_piece(words, word, VECTOR, part.at((piece * WARP + m.lane) * VECTOR)))
        peak: Float32 = LOWEST
        for r in unrolled(MOST_PEERS):
            peak = maximum(peak, scores[r])
        total: Float32 = 0.0
        for r in unrolled(MOST_PEERS):
            total += exp2(scores[r] - peak)
        weighed = total + exp2(attn_sink[head] * LOG2_E - peak)
        factor: Float32 = select(weighed > 0.0, divide(1.0, weighed), 0.0)
        if m.lane == 0:
            lse.row("to_lse", row, heads)[head] = (peak + log2(total)) * lse_scale
        sums = m.local("sums", PIECES * VECTOR, "float32")
        for i in unrolled(PIECES * VECTOR):
            sums[i] = 0.0
        for r in unrolled(MOST_PEERS):
            if r < ranks:
                share = exp2(scores[r] - peak) * factor
                for i in unrolled(PIECES * WORDS):
                    sums[2 * i] += half_of(words[r * PIECES * WORDS + i], False) * share
                    sums[2 * i + 1] += half_of(words[r * PIECES * WORDS + i], True) * share
        to = out.row("to", (row, head), (heads, LATENT_DIM))
        for i in unrolled(PIECES * WORDS):
            words[i] = pair_of(sums[2 * i], sums[2 * i + 1])
        for piece in unrolled(PIECES):
            m.do(store_piece(words, piece * WORDS, VECTOR, to.at((piece * WARP + m.lane) * VECTOR)))
