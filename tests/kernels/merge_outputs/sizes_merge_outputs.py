"""Sizes of merged outputs, for tests of the cost model."""

from __future__ import annotations

from itertools import product

from dsl_kernels import registry
from dsl_kernels.arch import ARCHS

COUNTED = [
    registry.Call("merge_outputs", form, a, {"ranks": r, "rows": n, "heads": h})
    for form, ranks, sizes in (
        ("peers", (1, 5), ((2, 8), (3, 1))),
        ("default", (1, 2, 5), ((1, 5), (2, 8), (3, 1), (4, 128))),
    )
    for r, (n, h), a in product(ranks, sizes, ARCHS)
]
