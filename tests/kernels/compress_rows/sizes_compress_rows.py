"""Sizes of compressed rows, for tests of selection and of the cost model."""

from __future__ import annotations

from itertools import product

from dsl_kernels import registry
from dsl_kernels.arch import ARCHS


def compress(rows=4, dim=512, ratio=4, width=1024, arch="sm_90a") -> registry.Call:
    """Rows of complete windows, each of `width // dim` times `ratio` tokens."""
    span, page_words = ratio * width // dim, 2 * (146 if dim == 512 else 33)
    dims = {
        "rows": rows, "dim": dim, "ratio": ratio, "width": width, "span": span, "tokens": rows * ratio,
        "angles": rows * ratio,
        "turned": 64, "page_size": 2, "pages": rows, "page_words": page_words,
    }  # fmt: skip
    return registry.Call("compress_rows", "default", arch, dims)


COUNTED = [
    compress(n, d, r, p * d, a) for n, (d, r, p),
    a in product((1, 3, 40), ((512, 4, 2), (128, 4, 2), (512, 128, 1), (128, 1, 1)), ARCHS)
]  # fmt: skip


def of_point(form: str, sizes: dict[str, int]) -> registry.Call:
    return compress(**sizes)
