"""Texts of the FP8 lightning indexer's leaves for tcgen05: a tile of 128 keys, one key per thread."""

from __future__ import annotations

from ....device.torch import scalars
from ....device.torch.warps import exchange, shuffle
from ....tile.counting import moves
from ....tile.frontend import unrolled
from ....tile.kinds import Float32, Global, Int32, LeafRecorder, Registers, Shared, Uint32, Writes
from ....tile.leaf_text import WARP, by_text
from ....tile.text import maximum
from .walk import BLOCK, GRAIN, LOWEST, Scores, window_of


@by_text
def load_weights(
    m: LeafRecorder, weight: Registers[Float32], head_weights: Shared[Float32], first: Int32,
) -> None:  # fmt: skip
    """Read the weights of one query's heads, four at a time, from `first` of the slot on."""
    for quad in unrolled(weight.size // 4):
        head_weights.read(weight.group(4 * quad, 4), first // 4 + quad)


@by_text
def load_scale(
    m: LeafRecorder, scale: Registers[Float32], key_scales: Shared[Float32], apart: int | None,
) -> None:  # fmt: skip
    """Read the scale of this thread's key."""
    # Scales of copies of `GRAIN` keys are `apart` floats apart.
    scale[0] = key_scales[m.thread if apart is None else m.thread // GRAIN * apart + m.thread % GRAIN]


@by_text
def load_block_scale(
    m: LeafRecorder, scale: Registers[Float32], key_scales: Shared[Float32], apart: int,
) -> None:  # fmt: skip
    """Read the scale of this thread's key, where copies of 8 keys are `apart` floats apart."""
    scale[0] = key_scales[m.thread // BLOCK * apart + m.thread % BLOCK]


@by_text
def load_lengths(
    m: LeafRecorder, length: Registers[Int32], seq_lens: Global[Int32], seq: Int32, next_n: Int32,
    skip_below: Int32,
) -> None:  # fmt: skip
    """Lane i reads the keys to score of query i: 0 past next_n and for a row that selection takes whole."""
    query = m.thread % WARP
    length[0] = 0
    if query < next_n:
        found = seq_lens.row("lengths", seq, wide=False)[query]
        if found > skip_below:
            length[0] = found


@by_text
def load_windows(
    m: LeafRecorder, begin: Registers[Int32], size: Registers[Int32], k_start: Global[Int32],
    k_end: Global[Int32], row: Int32, s: Int32, skv: Int32, skip_below: Int32,
) -> None:  # fmt: skip
    """Read the first keys and sizes of the windows of the rows from `row` on."""
    for i in unrolled(begin.size):
        low, high = window_of(m, k_start, k_end, row + i, s, skv, skip_below)
        begin[i] = low
        size[i] = maximum(high - low, 0)


@moves(stored=lambda logit, query, next_n: logit if query < next_n else 0)
@by_text
def store_query(
    m: LeafRecorder, logits: Writes[Scores], logit: Registers[Float32], scale: Registers[Float32],
    length: Registers[Int32], seq: Int32, query: Int32, next_n: Int32, key: Int32,
) -> None:  # fmt: skip
    """Store the logit of this thread's key and a query, times the key's scale, if the query has the key."""
    at = key + m.thread
    if at < shuffle(length[0], query):
        logits.row("row_of_query", (seq, query))[at] = logit[0] * scale[0]


@by_text
def store_maxima(
    m: LeafRecorder, maxima: Writes[Global[Float32]], logit: Registers[Float32], scale: Registers[Float32],
    length: Registers[Int32], row: Int32, key: Int32,
) -> None:  # fmt: skip
    """Store the greatest score of each 8 keys. Only keys that the row has count, and NaN does not."""
    at = key + m.thread
    own: Int32 = shuffle(length[0], 0)
    nothing: Uint32 = LOWEST
    most: Float32 = scalars.float_of(nothing)
    if at < own:
        most = logit[0] * scale[0]
    for bits in (1, 2, 4):
        most = maximum(most, exchange(most, bits))
    if m.thread % BLOCK == 0 and at < own:
        maxima.row("most_of_row", row)[at // BLOCK] = most


@moves(stored=lambda logit: logit)
@by_text
def store_row(
    m: LeafRecorder, logits: Writes[Scores], logit: Registers[Float32], scale: Registers[Float32],
    begin: Registers[Int32], size: Registers[Int32], j: int, row: Int32, key: Int32, compressed: Int32 | None,
) -> None:  # fmt: skip
    """Store the logit of this thread's key and row `row`, times the key's scale, if the row has the key.

    `j` is the number of the row in its group.
    """
    at = key + m.thread
    m.comment("One comparison is enough: unsigned, a key before the window is also far past its end.")
    if (at - begin[j]).to("uint32") < size[j].to("uint32"):
        column = at if compressed is None else at - begin[j] * compressed
        logits.row("row_of_key", row)[column] = logit[0] * scale[0]
