"""Sizes of a window's ids, for tests of the cost model."""

from __future__ import annotations

from itertools import product

from dsl_kernels import registry
from dsl_kernels.arch import ARCHS


def window(b: int, next_n: int, width: int, arch: str) -> registry.Call:
    dims = {"b": b, "next_n": next_n, "rows": b * next_n, "max_pages": 4, "page_size": 64, "window": width}
    return registry.Call("window_ids", "default", arch, dims)


COUNTED = [window(b, n, w, a) for b, n, w, a in product((1, 40), (1, 3), (1, 128, 300), ARCHS)]
