"""Sizes of sparse attention, for tests of selection, of the cost model and of the clock."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from dsl_kernels import registry
from dsl_kernels.arch import ARCHS
from dsl_kernels.kernels.sparse_mla.forms import PAGED

STRIDES = {"ckv_stride": 512, "kpe_stride": 64}


def mla(t=4, heads=16, topk=2048, form="bf16", arch="sm_90a", **kwargs) -> registry.Call:
    """Attention over `topk` ids; for DeepSeek-V4 and V4.1, 128 of them are the window's."""
    dims = {"t": t, "heads": heads, "topk": topk, "n": 8192, **STRIDES}
    if form in PAGED:
        width = {"v4": 584, "v41": 528}[form]
        pages = {"pages": 128, "page_bytes": 64 * width, "kv_pages_stride": 65 * 576}
        dims = {"t": t, "heads": heads, "topk": 128, "extra_topk": topk - 128}
        dims |= {f"{scope}{name}": value for scope in ("", "extra_") for name, value in pages.items()}
    return registry.Call("sparse_mla", form, arch, dims, **kwargs)


GRID = [
    mla(t, h, topk=k, form=f, arch=a) for t, h, k, f,
    a in product((1, 3, 16, 64, 500), (8, 16, 32, 64, 128), (512, 2048), ("bf16", "fp8"), ARCHS)
]  # fmt: skip

RECORDED = [
    *(mla(t, h, k, f) for t, h, k, f
      in product((2, 24, 72, 200, 1024), (16, 64, 128), (1024, 2048), ("bf16", "fp8"))),
    *(replace(call, dims={**call.dims, "splits": splits})
      for call, splits in product((mla(4, 16), mla(4, 128, form="fp8")), (2, 4, 8))),
]  # fmt: skip

# More splits than one cluster holds are among them.
COUNTED = [
    mla(t, h, topk=k, form=f, arch=a) for (t, k), h, f,
    a in product(((1, 2048), (40, 192), (500, 128)), (8, 16, 32, 64, 128), ("bf16", "fp8"), ARCHS)
]  # fmt: skip

WALKED = {
    "bf16": {"t": 16, "heads": 0, "topk": 1024, "n": 4096, "max_pages": 0, **STRIDES},
    "nope": {"t": 16, "heads": 0, "topk": 1024, "n": 4096, "max_pages": 0, "ckv_stride": 512},
    "fp8": {"t": 16, "heads": 0, "topk": 1024, "n": 4096, "max_pages": 0},
    "nope8": {"t": 16, "heads": 0, "topk": 1024, "n": 4096, "max_pages": 0},
    "v4": {"t": 16, "heads": 0, "topk": 128, "pages": 512, "extra_topk": 512, "extra_pages": 512,
           "page_bytes": 37376, "extra_page_bytes": 37376},
    "v41": {"t": 16, "heads": 0, "topk": 128, "pages": 512, "extra_topk": 512, "extra_pages": 512,
            "page_bytes": 33792, "extra_page_bytes": 33792},
}  # fmt: skip

EMULATED = ("ids_mixed", "ids_holes", "fp8_raw")
AGREED = ("tiny_h16", "ids_mixed")
CHEAP = {"sm_90a": "h8_bf16", "sm_100a": "h8_bf16"}
SLOW = {("tilelang", "sm_90a"), ("tilelang", "sm_100a")}
# Products in flight by wgmma.
TRACED = {("cutedsl", "sm_90a")}


def of_point(form: str, sizes: dict[str, int]) -> registry.Call:
    return mla(sizes["t"], sizes["heads"], sizes["topk"], form)
