"""Texts of leaves of scoring over keys of 4 bits: scales laid out for the tensor cores, unscaled logits."""

from __future__ import annotations

from ....device.torch.warps import shuffle
from ....tile.counting import moves
from ....tile.frontend import unrolled
from ....tile.kinds import Float32, Int32, LeafRecorder, Registers, Shared, Writes
from ....tile.leaf_text import WARP, by_text
from .walk import Scores


@by_text
def place_factors(m: LeafRecorder, factors: Shared[Int32], scales: Shared[Int32]) -> None:
    """Scales of rows r, r + 32, ... side by side in row r, as copies to tensor memory read them.

    Of fewer than 128 rows the scales come again: products do not look at them.
    """
    for column in unrolled(4):
        factors[m.lane, column] = scales[column * WARP % scales.size + m.lane]


@by_text
def place_factors_from(
    m: LeafRecorder, factors: Shared[Int32], scales: Shared[Int32], first: Int32,
) -> None:  # fmt: skip
    """Like `place_factors`, of the 128 rows from `first` on."""
    for column in unrolled(4):
        factors[m.lane, column] = scales[first + column * WARP + m.lane]


@moves(stored=lambda logit: logit)
@by_text
def store_scores(
    m: LeafRecorder, logits: Writes[Scores], logit: Registers[Float32],
    length: Registers[Int32], seq: Int32,
    key: Int32,
) -> None:  # fmt: skip
    """The logit of this thread's key, if the row has that key."""
    at = key + m.thread
    if at < shuffle(length[0], 0):
        logits.row("row_of_query", (seq, 0))[at] = logit[0]


@moves(stored=lambda logit, query, next_n: logit if query < next_n else 0)
@by_text
def store_query(
    m: LeafRecorder, logits: Writes[Scores], logit: Registers[Float32],
    length: Registers[Int32], seq: Int32, query: Int32, next_n: Int32, key: Int32,
) -> None:  # fmt: skip
    """Store the logit of this thread's key and a query, if the query has the key."""
    at = key + m.thread
    if at < shuffle(length[0], query):
        logits.row("row_of_query", (seq, query))[at] = logit[0]


@moves(stored=lambda logit: logit)
@by_text
def store_row(
    m: LeafRecorder, logits: Writes[Scores], logit: Registers[Float32],
    begin: Registers[Int32], size: Registers[Int32], j: int, row: Int32, key: Int32, compressed: Int32,
) -> None:  # fmt: skip
    """Store the logit of this thread's key and row `row`, the `j`-th of its group, if the row has the key."""
    place = key + m.thread - begin[j]
    m.comment("One comparison is enough: unsigned, a key before the window is also far past its end.")
    if place.to("uint32") < size[j].to("uint32"):
        logits.row("row_of_key", row)[place + begin[j] * (1 - compressed)] = logit[0]
