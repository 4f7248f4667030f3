"""Sizes of resampling, for tests of selection and of the cost model."""

from __future__ import annotations

from itertools import product

from dsl_kernels import registry
from dsl_kernels.arch import ARCHS


def resample(b=64, n=4096, m=1024, d=32, arch="sm_90a", **kwargs) -> registry.Call:
    return registry.Call("resample_trajectories", "default", arch, {"b": b, "n": n, "m": m, "d": d}, **kwargs)


GRID = [
    resample(b, n, m, d, a) for b, n, m, d,
    a in product((1, 64, 512), (2, 4096, 1 << 20), (1, 1024, 8192), (5, 32, 64), ARCHS)
]  # fmt: skip

COUNTED = [
    resample(b, n, m, d, a)
    for (b, n, m, d), a in product(((1, 2, 5, 8), (2, 300, 131, 5), (3, 20000, 70, 16)), ARCHS)
]

CHEAP = {"sm_90a": "global", "sm_100a": "global"}


def of_point(form: str, sizes: dict[str, int]) -> registry.Call:
    return resample(**sizes)
