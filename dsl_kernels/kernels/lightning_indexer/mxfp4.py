"""Scoring over keys and queries of 4 bits (MXFP4): two e2m1 per byte, a UE8M0 for each 32 dims.

A paged key has 68 bytes, as vLLM and DeepGEMM keep them on Blackwell. A query's head has 64 bytes, and an
int32 of four scales beside them. So has a flat key.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from ..._torch import torch
from ...dtypes import DTYPES
from ...problems.base import OperandSpec, Values, axis_strides
from ...problems.layouts import INDEX_DIM
from ...problems.mxfp4 import MXFP4_GROUP
from .blocks import MOST_HEADS, PAGE, changed, wrong_units

KEY_BYTES, SCALE_BYTES = INDEX_DIM // 2, INDEX_DIM // MXFP4_GROUP
TOKEN_BYTES = KEY_BYTES + SCALE_BYTES
PAGE_BYTES = PAGE * TOKEN_BYTES
HEADS_THAT_FIT = f"index_heads <= {MOST_HEADS}"


def _wrong_scales(name: str, o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    words: torch.Tensor = o[name]
    wrong = torch.zeros_like(words, dtype=torch.bool)
    for shift in range(0, 32, 8):
        wrong |= (words >> shift & 0xFF) == 0xFF
    return wrong


def operands(of_bytes: tuple[OperandSpec, ...], scores: str) -> tuple[OperandSpec, ...]:
    """The operands of a decode whose scores have the dtype `scores`, from those for keys of 8 bits."""
    query, *others = changed(
        of_bytes,
        q={
            "shape": ("b", "next_n", "index_heads", KEY_BYTES),
            "dtype": "float4_e2m1x2",
            "requires": (HEADS_THAT_FIT,),
            "doc": "queries: pairs of e2m1; any other scale is folded into weights",
        },
        k_cache={
            "shape": ("pages", PAGE_BYTES),
            "requires": (f"k_cache_stride % {KEY_BYTES} == 0",),
            "doc": "paged keys: 64 x 64 bytes of pairs, then 64 x 4 UE8M0 bytes",
        },
        weights={
            "shape": ("b", "next_n", "index_heads"),
            "doc": "per-head weights of each row, may be negative",
        },
        seq_lens={"doc": "keys visible to each row; 0 for a padded row"},
        logits={"dtype": scores, "align": DTYPES[scores].bytes},
        block_table={
            "shape": ("lines", "max_pages"),
            "requires": ("lines == ceildiv(b, sharing)",),
            "doc": "page ids; sequence i has line i // sharing",
            "values": (
                Values("page ids from 0 to pages - 1 in the entries that a length reaches", wrong_units),
            ),
        },
    ).values()
    sharing = OperandSpec("sharing", (), "int32", "scalar", doc="sequences that share a line of the table")
    return query, _query_scales("rows", "rows == b * next_n"), *others, sharing


def operands_of_prompts(of_any: tuple[OperandSpec, ...]) -> tuple[OperandSpec, ...]:
    """The operands of prompts; `of_any` has those that are alike for keys of 8 bits."""
    alike = {spec.name: spec for spec in of_any}
    own = (
        OperandSpec(
            "q", ("s", "index_heads", KEY_BYTES), "float4_e2m1x2", strides=axis_strides("q", "sh"),
            requires=(HEADS_THAT_FIT,),
        ),
        _query_scales("s"),
        OperandSpec("k", ("skv", KEY_BYTES), "float4_e2m1x2", row_stride="k_stride"),
        OperandSpec(
            "k_scales", ("skv",), "int32", doc="four UE8M0 bytes of each key",
            values=_scales("k_scales", "a byte of 255 is NaN, and so are the key's scores"),
        ),
    )  # fmt: skip
    return (
        *own,
        *(alike[name] for name in ("weights", "k_start", "k_end", "logits", "skip_below", "compressed")),
    )


def _query_scales(rows: str, *requires: str) -> OperandSpec:
    return OperandSpec(
        "q_scales", (rows, "index_heads"), "int32", row_stride="q_scales_stride", requires=requires,
        doc="four UE8M0 bytes of each head, of 32 dims each, the first dims lowest",
        values=_scales("q_scales", "a byte of 255 is NaN, and so are the row's scores"),
    )  # fmt: skip


def _scales(name: str, otherwise: str) -> tuple[Values, ...]:
    return (Values("four bytes of 0 to 254", partial(_wrong_scales, name), otherwise),)
