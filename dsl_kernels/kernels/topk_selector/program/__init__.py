"""Exact top-k as a tile program: a radix select over ordered 32-bit keys, one cluster of CTAs per row.

The undecided keys are always the keys at most `span` below `end`. A round counts the next digit of these keys
in shared memory, in 2048 bins, and bin 0 holds the largest keys. The CTAs of a row read each other's counts
and agree on the bin that holds the k-th largest key. The first digit is the score rounded to fp16, which
splits scores of ordinary size better than the leading bits of the key. After at most three more digits the
key is exact to its last bit, whatever the distribution. In a cluster, where a round costs several barriers, a
glance at 32 scores of the row comes first. If these are close together, the first digit is the distance from
a key above them.

As soon as few keys are undecided, one pass over the row marks the columns above the range in a bitmap and
lists the undecided keys for all CTAs. The remaining rounds count digits over the list, and the last few
entries are ranked against each other. Ties go to the lower position. Then every CTA writes its own share in
ascending position, at an offset that follows from the counts of lower ranks. There are no atomics on the
output, and every run gives the same bits.

Where a CTA has a long row, `sample` replaces the histogram of the row. The histogram of a sample gives a
threshold that a few more than k keys are expected to reach. One pass over the row lists every key that
reaches it. If the list holds at least k keys and did not overflow, the k largest keys of the row are in the
list, whatever the sample was, and the rounds over the list do the rest. If the keys of the sample are equal,
the pass lists the larger keys, and then takes the first columns that equal the sample's key until there are
k. Otherwise the row goes through the histogram after all.

With a sample several CTAs may share a long row too. All of them take the same sample, so the threshold needs
no round of the cluster. Each CTA lists its own columns, gives its list to the others, and goes on with all
lists.

A plain variant has no operand, register or branch of what `options` adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from .... import problems
from ....tile.lang import Guard
from ....tile.program import TileProgram
from ....tile.text import ceildiv
from .schedule import KNOBS, MAX_K, declare, form_of, sizes
from .select import bodies


def _small_k(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    """Refuse a k without room for its positions, or whose list would often overflow: lists hold 2 k keys."""
    space = SimpleNamespace(**knobs)
    most = min(MAX_K, sizes(space)["listed"] // 2) if space.sample else MAX_K
    return None if call["k"] <= most else f"k = {call['k']} exceeds {most}"


def _bitmaps_hold_row(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    """Refuse rows with more columns than a CTA's bitmaps hold, in whole batches of every warp."""
    stride, batch = call["stride"], knobs["threads"] * knobs["keep"]
    columns = ceildiv(stride, knobs["group"] * batch) * batch
    reach = sizes(SimpleNamespace(**knobs))["reach"]
    return None if columns <= reach else f"stride = {stride} gives a CTA {columns} columns; it marks {reach}"


PROGRAM = TileProgram(
    op="topk_selector",
    problem=problems.get("topk_selector"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    form_of=form_of,
    guards=(Guard("k", _small_k), Guard("span", _bitmaps_hold_row)),
)
