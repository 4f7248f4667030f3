"""Cases of the leaves of row softmax."""

from __future__ import annotations

import torch
from leaf_probes import Probe, case

from dsl_kernels.kernels.row_softmax import leaves as leaf

COLUMNS = 1024
EACH = COLUMNS // leaf.THREADS
SHAPE = (leaf.THREADS, EACH)


@case(leaf.read_row)
def read_row(p: Probe) -> None:
    p.threads = leaf.THREADS
    p.call(p.own("held", EACH), p.shared("row", (COLUMNS,), p.normal(COLUMNS), slot=True))


@case(leaf.share_maximum)
def share_maximum(p: Probe) -> None:
    p.threads = leaf.THREADS
    p.call(p.shared("peaks", (leaf.WARPS,), out=True), p.own("held", EACH, p.normal(*SHAPE), out=False))


@case(leaf.exponentials)
def exponentials(p: Probe) -> None:
    p.threads, p.relative = leaf.THREADS, 1e-6
    held, peaks = (
        p.own("held", EACH, p.normal(*SHAPE)),
        p.shared("peaks", (leaf.WARPS,), p.normal(leaf.WARPS)),
    )
    p.call(held, p.shared("sums", (leaf.WARPS,), out=True), peaks)


@case(leaf.write_row)
def write_row(p: Probe) -> None:
    p.threads, p.relative = leaf.THREADS, 1e-6
    held = p.own("held", EACH, p.uniform(*SHAPE), out=False)
    sums = p.shared("sums", (leaf.WARPS,), p.uniform(leaf.WARPS))
    p.call(p.operand("y", torch.zeros(3, COLUMNS), out=True), p.dim("row", 1), held, sums)
