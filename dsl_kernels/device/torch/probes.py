"""Leaves of probes, which read the clock and record it. In torch no time passes, and they write nothing.

`probe` has `words` words for each of the `warps` of a CTA: a header (see `tile.probes.HEADER`), then sums or
a ring of marks.
"""

from __future__ import annotations

from typing import Any

from ...tile.text import Changes, Sets, Writes, leaf


@leaf
def read_clock(now: Sets) -> Any:
    """The low word of this SM's clock."""
    return 0


@leaf
def mark_region(spent: Changes, then: Changes, lane: Any, region: Any) -> Any:
    """Count the cycles since the mark before to `region`, whose sum lane `region % 32` keeps."""
    return spent, then


@leaf
def note_region(place: Any, ahead: Any, regions: Any, region: Any) -> None:
    """Note that `region` ends now, `ahead` words from `place`, the address of a word: the clock times
    `regions`, and the region.
    """


@leaf
def pass_marks(place: Changes, ring: Any, marks: Any) -> Any:
    """The place behind so many marks in a ring of `ring` words, which lies at a multiple of its size."""
    return place


@leaf
def enter_ring(
    probe: Writes,
    warps: Any,
    words: Any,
    first: Any,
    ring: Any,
    empty: Any,
    place: Sets,
    then: Any,
    lane: Any,
) -> Any:
    """Note when this warp's kernel began, where, and the global timer and the clock; the place of a ring.

    The ring of `ring` words begins at a multiple of its size after the `first` words. Its last word and the
    31 words after it start as `empty`.
    """
    return 0


@leaf
def leave_ring(probe: Writes, warps: Any, words: Any, ring: Any, place: Any, lane: Any) -> None:
    """Note where this warp's ring begins, and its next word, in words from the first of the warp's; the
    global timer and the clock.
    """


@leaf
def begin_sums(spent: Changes, then: Any, lane: Any) -> Any:
    """Keep in the last lane when this warp's kernel began."""
    return spent


@leaf
def keep_sums(probe: Writes, warps: Any, words: Any, first: Any, spent: Any, lane: Any) -> None:
    """Store the sums that all of this warp's lanes hold."""


@leaf
def end_sums(
    probe: Writes,
    warps: Any,
    words: Any,
    first: Any,
    count: Any,
    spent: Any,
    then: Any,
    lane: Any,
) -> None:
    """Store the sums of the first `count` lanes; when this warp's kernel began, which its last one keeps;
    when it ended, and where.
    """
