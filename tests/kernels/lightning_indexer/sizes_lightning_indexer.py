"""Sizes of scoring, for tests of selection, of the cost model and of the clock."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from dsl_kernels import registry
from dsl_kernels.arch import ARCHS


def decode(b=4, next_n=1, max_pages=512, heads=64, arch="sm_90a", **kwargs) -> registry.Call:
    dims = {
        "b": b, "next_n": next_n, "heads": heads, "pages": 4096, "max_pages": max_pages,
        "stride": max_pages * 64, "skip_below": 2048,
    }  # fmt: skip
    return registry.Call("lightning_indexer", "decode", arch, dims, **kwargs)


def decode_blocks(b=4, next_n=1, max_len=4096, heads=64, dim=128, arch="sm_90a") -> registry.Call:
    dims = {
        "b": b, "next_n": next_n, "index_heads": heads, "index_dim": dim, "pages": 4096, "page_bytes": 8448,
        "page_size": 64,
        "block_size": 8, "sharing": 1, "mx": 0, "has_maxima": 0, "max_pages": max_len // 8, "lines": b,
        "rows": b * next_n,
        "stride": max_len, "skip_below": 0, "maxima_rows": 1, "maxima_columns": 1,
    }  # fmt: skip
    return registry.Call("lightning_indexer", "decode_blocks", arch, dims)


def prefill(s=128, skv=4096, heads=64, arch="sm_90a") -> registry.Call:
    return registry.Call(
        "lightning_indexer",
        "prefill",
        arch,
        {"s": s, "skv": skv, "heads": heads, "stride": skv, "skip_below": 0},
    )


def scored(call: registry.Call) -> registry.Call:
    """The call without rows that selection takes whole."""
    return replace(call, dims={**call.dims, "skip_below": 0})


GRID = [
    *(decode(b, n, p, h, a) for b, n, p, h,
      a in product((1, 16, 128), (1, 2, 3, 8), (32, 512, 2048), (32, 64), ARCHS)),
    *(prefill(s, skv, h, a) for s, skv, h, a in product((1, 7, 4096), (128, 32768), (32, 64), ARCHS)),
]  # fmt: skip

# Rows that selection takes whole, too.
COUNTED = [
    *(decode(b, n, p, h, a) for (b, n, p), h,
      a in product(((1, 1, 64), (512, 1, 5), (3, 8, 700)), (32, 64), ARCHS)),
    *(scored(decode(b, n, p, h, a)) for (b, n, p), h,
      a in product(((512, 1, 5), (300, 3, 6), (2000, 2, 3)), (32, 64), ARCHS)),
    *(prefill(s, skv, h, a) for (s, skv), h,
      a in product(((1, 60), (130, 1000), (1203, 1000)), (32, 64), ARCHS)),
]  # fmt: skip

WALKED = {
    "decode": {"b": 4, "next_n": 1, "heads": 0, "pages": 64, "max_pages": 64, "stride": 4096,
               "skip_below": 0},
    "prefill": {"s": 256, "skv": 4096, "heads": 0, "stride": 4096, "skip_below": 0},
    "decode_any": {"b": 4, "next_n": 1, "index_heads": 0, "index_dim": 128, "pages": 64, "page_bytes": 8448,
                   "page_size": 64, "max_pages": 64, "rows": 4, "stride": 4096, "skip_below": 0},
    "decode_blocks": {"b": 4, "next_n": 1, "index_heads": 0, "index_dim": 128, "pages": 64,
                      "page_bytes": 8448, "page_size": 64, "block_size": 8, "sharing": 1, "mx": 0,
                      "has_maxima": 0, "max_pages": 512, "lines": 4, "rows": 4, "stride": 4096,
                      "skip_below": 0, "maxima_rows": 1, "maxima_columns": 1},
    "decode_mxfp4": {"b": 4, "next_n": 1, "index_heads": 0, "pages": 64, "rows": 4, "max_pages": 64,
                     "lines": 4, "sharing": 1, "stride": 4096, "skip_below": 0},
    "prefill_mxfp4": {"s": 256, "skv": 4096, "index_heads": 0, "stride": 4096, "skip_below": 0,
                      "compressed": 0},
    "prefill_any": {"s": 256, "skv": 4096, "index_heads": 0, "index_dim": 128, "stride": 4096,
                    "skip_below": 0, "compressed": 0},
}  # fmt: skip

# Keys of 4 bits, which only Blackwell scores: fewer heads than kernels are built for, and scores in bf16.
RECORDED = [
    *(registry.Call("lightning_indexer", f"decode_{kind}", "sm_100a",
                    {**WALKED["decode_mxfp4"], "index_heads": heads, "b": b, "next_n": n, "rows": b * n,
                     "lines": b})
      for kind, heads, b, n in product(("mxfp4", "mxfp4_bf16"), (8, 24, 32, 40, 64), (1, 16), (1, 3))),
    *(registry.Call("lightning_indexer", f"prefill_{kind}", "sm_100a",
                    {**WALKED["prefill_mxfp4"], "index_heads": heads})
      for kind, heads in product(("mxfp4", "mxfp4_bf16"), (16, 32, 48))),
]  # fmt: skip

EMULATED = ("decode_tiny", "decode_ragged", "decode_mtp3", "prefill_tiny", "prefill_ragged")
AGREED = ("decode_ragged", "prefill_ragged")
CHEAP = {"sm_90a": "decode_h32_q1_", "sm_100a": "decode_h32_q1_"}
SLOW = {("tilelang", "sm_90a")}
# Tensor memory.
TRACED = {("cutedsl", "sm_100a")}


def of_point(form: str, sizes: dict[str, int]) -> registry.Call:
    if form == "decode":
        return decode(sizes["b"], sizes["next_n"], sizes["max_len"] // 64, sizes["heads"])
    if form == "decode_blocks":
        return decode_blocks(
            sizes["b"], sizes["next_n"], sizes["max_len"], sizes["index_heads"], sizes["index_dim"]
        )
    if form == "prefill":
        return prefill(sizes["s"], sizes["skv"], sizes["heads"])
    dims = {**WALKED[form.removesuffix("_bf16")], **sizes}
    if "max_len" in sizes:
        length = dims.pop("max_len")
        dims |= {"max_pages": length // 64, "stride": length, "rows": sizes["b"] * sizes["next_n"]}
    return registry.Call("lightning_indexer", form, "sm_90a", dims)
