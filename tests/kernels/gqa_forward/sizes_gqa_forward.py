"""Sizes of grouped-query attention, for tests of selection, of the cost model and of the clock."""

from __future__ import annotations

from itertools import product

from dsl_kernels import registry
from dsl_kernels.arch import ARCHS


def gqa(
    b=4, sq=4096, skv=4096, heads=64, kv_heads=8, dim=128, causal=0, form="fp16", arch="sm_90a", **kwargs
) -> registry.Call:
    dims = {"b": b, "sq": sq, "skv": skv, "heads": heads, "kv_heads": kv_heads, "dim": dim, "causal": causal}
    return registry.Call("gqa_forward", form, arch, dims, **kwargs)


COUNTED = [
    gqa(b, sq, skv, 8, 4, dim, causal, form, a)
    for (b, sq, skv), dim, causal, form,
    a in product(((1, 1, 129), (2, 700, 700), (40, 300, 513)), (128, 64), (0, 1), ("fp16", "bf16"), ARCHS)
]  # fmt: skip

WALKED = {
    form: {"b": 1, "sq": 1024, "skv": 1024, "heads": 16, "kv_heads": 4, "causal": 0}
    for form in ("fp16", "bf16")
}

AGREED = ("tiny_causal_fp16",)
CHEAP = {"sm_90a": "bf16_d64"}


def of_point(form: str, sizes: dict[str, int]) -> registry.Call:
    return gqa(form=form, **sizes)
