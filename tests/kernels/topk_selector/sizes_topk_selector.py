"""Sizes of selection's rows, for tests of the choice of variants and of the cost model."""

from __future__ import annotations

from itertools import product

from dsl_kernels import registry
from dsl_kernels.arch import ARCHS


def topk(rows=4, stride=32768, k=2048, form="default", arch="sm_90a", **kwargs) -> registry.Call:
    dims = {
        "rows": rows,
        "stride": stride,
        "b": rows,
        "max_pages": stride // 64,
        "k": k,
        "next_n": 1,
        "page_size": 64,
    }
    return registry.Call("topk_selector", form, arch, dims, **kwargs)


GRID = [
    topk(r, s, k, arch=a) for r, s, k,
    a in product((1, 3, 16, 64, 4096), (2048, 4096, 32768, 131072, 1 << 20), (512, 2048), ARCHS)
]  # fmt: skip

COUNTED = [
    topk(r, s, k, arch=a) for (r, s, k),
    a in product(((1, 320, 64), (4, 2048, 2048), (3, 4096, 512), (2, 40000, 2048), (1, 131072, 2048)), ARCHS)
]  # fmt: skip

EMULATED = ("tiny_paged", "starts", "offsets_columns", "mapped_paged", "values_paged", "higher_ties")
AGREED = ("tiny_paged", "starts", "scores_ties")
CHEAP = {"sm_90a": "g1_t512_r8", "sm_100a": "g1_t512_r8"}
SLOW = {("tilelang", "sm_90a")}


def of_point(form: str, sizes: dict[str, int]) -> registry.Call:
    return topk(sizes["rows"], sizes["max_len"], sizes["k"], form)
