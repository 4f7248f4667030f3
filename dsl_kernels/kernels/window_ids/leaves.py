"""The text of the leaf of window ids: a thread writes one id."""

from __future__ import annotations

from ...tile.counting import moves
from ...tile.frontend import named
from ...tile.kinds import Global, Int32, LeafRecorder, Writes
from ...tile.leaf_text import by_text
from ...tile.text import maximum, minimum


@moves(loaded=lambda threads: 8 * threads, stored=lambda threads: 4 * threads)
@by_text
def place_id(
    m: LeafRecorder, indices: Writes[Global[Int32]], seq_lens: Global[Int32], window_table: Global[Int32],
    row: Int32, first: Int32, next_n: Int32, max_pages: Int32, page_size: Int32, window: Int32, threads: int,
) -> None:  # fmt: skip
    """Write id number `first` + thread of a query's window; -1 past the window's tokens."""
    number = first + m.thread
    if number < window:
        sequence = named("sequence", row // next_n)
        length = seq_lens.row("lengths", sequence, next_n)[row - sequence * next_n]
        end = named("end", minimum(maximum(length, 0), max_pages * page_size))
        at = named("at", maximum(end - window, 0) + number)
        found: Int32 = -1
        if at < end:
            column = at // page_size
            found = window_table.row("pages", sequence)[column] * page_size + (at - column * page_size)
        indices.row("of_query", row)[number] = found
