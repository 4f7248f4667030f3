"""Cases of the leaves of RMSNorm."""

from __future__ import annotations

import torch
from leaf_probes import Probe, case

from dsl_kernels.kernels.rms_norm import leaves as leaf

DIM = 1024
EACH = DIM // leaf.THREADS
SHAPE = (leaf.THREADS, EACH)


@case(leaf.read_weight)
def read_weight(p: Probe) -> None:
    p.threads = leaf.THREADS
    p.call(p.own("factors", EACH), p.operand("weight", p.normal(DIM).bfloat16()))


@case(leaf.read_row)
def read_row(p: Probe) -> None:
    p.threads = leaf.THREADS
    p.call(p.own("held", EACH), p.shared("row", (DIM,), p.normal(DIM).bfloat16(), slot=True))


@case(leaf.sum_squares)
def sum_squares(p: Probe) -> None:
    p.threads, p.relative = leaf.THREADS, 1e-6
    p.call(p.shared("sums", (leaf.WARPS,), out=True), p.own("held", EACH, p.normal(*SHAPE), out=False))


@case(leaf.write_row)
def write_row(p: Probe) -> None:
    p.threads, p.relative = leaf.THREADS, 2**-7
    held, factors = (p.own(title, EACH, p.normal(*SHAPE), out=False) for title in ("held", "factors"))
    y, row = p.operand("y", torch.zeros(3, DIM).bfloat16(), out=True), p.dim("row", 1)
    p.call(
        y, row, held, factors, p.shared("sums", (leaf.WARPS,), p.uniform(leaf.WARPS)), p.scalar("eps", 1e-5)
    )
