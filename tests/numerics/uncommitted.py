"""Schedules of the sweep that are tested and in no committed set: made from committed variants, each by another knob."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.sweep import Instance, instance_of
from dsl_kernels import variants

CHANGED = (
    # A sampled row that several CTAs read: not timed.
    ("topk_selector__cutedsl_sm90a__g1_t512_r8_c1_s16", {"group": 2}),
    ("topk_selector__cutedsl_sm90a__g1_t1024_r16_c1_s16", {"group": 8}),
)


def instances(op: str) -> Iterator[Instance]:
    """Those of an operation."""
    for name, changed in CHANGED:
        if name.startswith(f"{op}__"):
            yield instance_of(variants.get(name), **changed)
