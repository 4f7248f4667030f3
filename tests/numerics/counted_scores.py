"""Scoring that counts the first digits of its scores, and selection that begins with these counts: schedules to measure only."""

from __future__ import annotations

from collections.abc import Iterator

from codegen.sweep import Instance, instance_of
from dsl_kernels import variants

# Committed variants, and what makes them count or take counts: rows that a CTA holds, that it lists, that it reads twice.
CHANGED = (
    ("lightning_indexer__cutedsl_sm90a__decode_h64_q1_t64_st3_c4_e1", {"mode": "counted"}),
    ("lightning_indexer__cutedsl_sm90a__decode_h32_q1_t64_st3_c4_e1", {"mode": "counted"}),
    ("topk_selector__cutedsl_sm90a__g1_t512_r8_c1", {"counts": "counted"}),
    ("topk_selector__cutedsl_sm90a__g1_t1024_r16_c1_s16", {"counts": "counted"}),
    ("topk_selector__cutedsl_sm90a__g1_t1024_r16_c1_s16", {"counts": "counted", "sample": 0}),
)


def instances(op: str) -> Iterator[Instance]:
    """Instances of an operation that take the form `counted`."""
    for name, changed in CHANGED:
        if name.startswith(f"{op}__"):
            yield instance_of(variants.get(name), **changed)
