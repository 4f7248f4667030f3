"""Cases of the leaves of row softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from leaf_probes import Probe, case, straight

from dsl_kernels.device.text import row_softmax as leaf

COLUMNS = 1024
# A thread has a row of registers, as the schedule declares.
SHAPE = (leaf.THREADS, COLUMNS // leaf.THREADS)


def _held(p: Probe, values: torch.Tensor | None = None, *, out: bool = True) -> Callable[..., Any]:
    p.threads = leaf.THREADS
    return p.registers("held", SHAPE, values, places=straight(*SHAPE), private=True, out=out)


@case(leaf.read_row)
def read_row(p: Probe) -> None:
    p.call(_held(p), p.shared("row", (COLUMNS,), p.normal(COLUMNS), slot=True))


@case(leaf.share_maximum)
def share_maximum(p: Probe) -> None:
    held = _held(p, p.normal(*SHAPE), out=False)
    p.call(p.shared("peaks", (leaf.WARPS,), out=True), held)


@case(leaf.exponentials)
def exponentials(p: Probe) -> None:
    p.relative = 1e-6
    held, peaks = _held(p, p.normal(*SHAPE)), p.shared("peaks", (leaf.WARPS,), p.normal(leaf.WARPS))
    p.call(held, p.shared("sums", (leaf.WARPS,), out=True), peaks)


@case(leaf.write_row)
def write_row(p: Probe) -> None:
    p.relative = 1e-6
    held, sums = (
        _held(p, p.uniform(*SHAPE), out=False),
        p.shared("sums", (leaf.WARPS,), p.uniform(leaf.WARPS)),
    )
    p.call(p.operand("y", torch.zeros(3, COLUMNS), out=True), p.dim("row", 1), held, sums)
