"""Schedules that are tested and in no committed set: made from committed variants, each by another knob or two."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.sweep import Instance, instance_of
from dsl_kernels import variants

CHANGED = (
    # Scoring that counts, and selection from counts: of rows that a CTA holds, that it lists, that it reads twice. They lose.
    ("lightning_indexer__cutedsl_sm90a__decode_h64_q1_t64_st3_c4_e1", {"mode": "counted"}),
    ("lightning_indexer__cutedsl_sm90a__decode_h32_q1_t64_st3_c4_e1", {"mode": "counted"}),
    ("topk_selector__cutedsl_sm90a__g1_t512_r8_c1", {"counts": "counted"}),
    ("topk_selector__cutedsl_sm90a__g1_t1024_r16_c1_s16", {"counts": "counted"}),
    ("topk_selector__cutedsl_sm90a__g1_t1024_r16_c1_s16", {"counts": "counted", "sample": 0}),
    # A sampled row that several CTAs read. In the sweep, and not measured.
    ("topk_selector__cutedsl_sm90a__g1_t1024_r16_c1_s16", {"group": 2}),
    ("topk_selector__cutedsl_sm90a__g1_t1024_r16_c1_s16", {"group": 8}),
)


def instances(op: str, *, counted: bool | None = None) -> Iterator[Instance]:
    """Those of an operation; those that take the form `counted`, or the others."""
    for name, changed in CHANGED:
        if name.startswith(f"{op}__") and counted in (None, "counted" in changed.values()):
            yield instance_of(variants.get(name), **changed)
