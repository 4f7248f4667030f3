"""Sizes of merged entries, for tests of the cost model."""

from __future__ import annotations

from itertools import product

from dsl_kernels import registry
from dsl_kernels.arch import ARCHS


def merge(form: str, ranks: int, planes: int, rows: int, k: int, arch: str) -> registry.Call:
    dims = {"ranks": ranks, "planes": planes, "rows": rows, "k": k, "columns": ranks * k}
    return registry.Call("merge_entries", form, arch, dims)


COUNTED = [
    merge(form, r, p, n, k, a)
    for form, ranks in (("default", (1, 2, 5)), ("peers", (1, 5)))
    for r, p, (n, k), a in product(ranks, (2, 3), ((1, 64), (3, 300)), ARCHS)
]
