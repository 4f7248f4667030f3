"""Grouped-query attention, forward: out = softmax(sm_scale * q k^T) v over dense keys, and its log-sum-exp.

Query head h reads key and value head h * kv_heads // heads. A causal query sees the keys up to its own place,
where both
sequences end together: query i of sq sees keys 0 to i + skv - sq.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from ...problems.base import OperandSpec, Problem, axis_strides

DTYPES = {"fp16": "float16", "bf16": "bfloat16"}


def _operands(dtype: str) -> tuple[OperandSpec, ...]:
    def strided(name: str, sequence: str, heads: str, doc: str, *requires: str) -> OperandSpec:
        return OperandSpec(
            name,
            ("b", sequence, heads, "dim"),
            dtype,
            strides=axis_strides(name, "bsh"),
            doc=doc,
            requires=requires,
        )

    return (
        strided("q", "sq", "heads", "queries"),
        strided(
            "k", "skv", "kv_heads", "keys", "skv >= 1", "heads % kv_heads == 0", "causal == 0 or skv >= sq"
        ),
        strided("v", "skv", "kv_heads", "values"),
        OperandSpec("out", ("b", "sq", "heads", "dim"), dtype, "out"),
        OperandSpec(
            "lse",
            ("b", "heads", "sq"),
            "float32",
            "out",
            doc="log(sum exp) of each row's scaled scores, base e",
            align=4,
        ),
        OperandSpec("sm_scale", (), "float32", "scalar"),
        OperandSpec("causal", (), "int32", "scalar", doc="1: a query sees the keys up to its own place"),
    )  # fmt: skip


FORMS = {form: _operands(dtype) for form, dtype in DTYPES.items()}


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Queries, keys and values once, out and lse once."""
    rows, keys = dims["b"] * dims["sq"] * dims["heads"], dims["b"] * dims["skv"] * dims["kv_heads"]
    return 2.0 * dims["dim"] * (2 * rows + 2 * keys) + 4.0 * rows


def points(grid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Sequences of 4096 in both dtypes.

    The grid "serving" adds other lengths with as many tokens, and small heads. The grid "wide" has other
    heads.
    """
    if grid == "wide":
        lengths = ((16, 1024), (4, 4096), (1, 16384), (3, 2000))
        for (b, n), heads, dim, causal in product(lengths, (16, 64, 128), (128, 64), (0, 1)):
            yield (
                "bf16",
                {"b": b, "sq": n, "skv": n, "heads": heads, "kv_heads": 8, "dim": dim, "causal": causal},
            )
        return
    forms, length = (("fp16",), 512) if grid == "smoke" else (tuple(FORMS), 4096)
    sizes = [(form, length, 128) for form in forms]
    if grid == "serving":
        sizes += [("bf16", length, dim) for dim in (128, 64) for length in (1024, 16384)]
        sizes.append(("fp16", 4096, 64))
    for form, length, dim in sizes:
        sequences = {"b": 16384 // length if grid != "smoke" else 1, "sq": length, "skv": length}
        for causal in (0, 1):
            yield form, {**sequences, "heads": 64, "kv_heads": 8, "dim": dim, "causal": causal}


PROBLEM = Problem(
    op="gqa_forward",
    doc=__doc__,
    forms=FORMS,
    bytes=moved_bytes,
    points=points,
)
