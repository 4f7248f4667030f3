"""The forms of scoring: their operands, and the values that operands may have."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..._torch import torch
from ...arguments import INT32_MAX
from ...dtypes import DTYPES
from ...problems.base import OperandSpec, Values, axis_strides
from ...problems.layouts import INDEX_DIM
from . import blocks, mxfp4
from .blocks import MOST_HEADS as MOST_HEADS
from .blocks import PAGE as PAGE
from .blocks import wrong_lengths, wrong_units

PAGE_BYTES = PAGE * (INDEX_DIM + 4)
# The forms "any" take pages of a multiple of GRAIN tokens, and keys of a multiple of GRAIN dims.
GRAIN = 16
SCORES = {
    "plain": "float32",
    "any": "float32",
    "any_bf16": "bfloat16",
    "blocks": "float32",
    "mxfp4": "float32",
    "mxfp4_bf16": "bfloat16",
}
"""Dtype of the scores by kind of form. A "plain" form has the name of its mode. Prefill has no "blocks"."""
FOUR_BITS = ("mxfp4", "mxfp4_bf16")
"""The kinds of form whose keys and queries have 4 bits."""


def form_of(mode: str, kind: str) -> str:
    """The name of the form of a mode ("decode" or "prefill") and a kind."""
    return mode if kind == "plain" else f"{mode}_{kind}"


def parts_of(form: str) -> tuple[str, str]:
    """Mode and kind of a form."""
    mode, _, kind = form.partition("_")
    return mode, kind or "plain"


def _outside_keys(name: str) -> Callable[[Mapping[str, Any], Mapping[str, int]], torch.Tensor]:
    return lambda o, dims: (o[name] < 0) | (o[name] > dims["skv"])


_SKIP = OperandSpec(
    "skip_below", (), "int32", "scalar", doc="rows with at most this many keys are not scored",
    limits=(0, INT32_MAX),
)  # fmt: skip

_DECODE_SIZES = (
    OperandSpec(
        "seq_lens", ("b", "next_n"), "int32", doc="keys visible to each query; 0 for a padded row",
        row_stride="seq_lens_stride", align=4,
        values=(Values("0 to min(64 * max_pages, stride)", wrong_lengths),), longest="max_len",
    ),
    OperandSpec(
        "block_table", ("b", "max_pages"), "int32",
        doc="page ids; kernels do not follow entries past ceil(len / 64)", row_stride="block_table_stride",
        align=4,
        values=(Values("page ids from 0 to pages - 1 in the first ceil(len / 64) entries", wrong_units),),
    ),
)  # fmt: skip


def _scores_of_steps(dtype: str, page: str) -> OperandSpec:
    """Scores of a decode over a table of pages of `page` tokens."""
    return OperandSpec(
        "logits", ("b", "next_n", "stride"), dtype, "out",
        doc="scores; columns at and beyond the length stay as they were",
        strides=axis_strides("logits", "bn"), align=DTYPES[dtype].bytes, argument="out",
        sizes={"stride": f"max_pages * {page}"}, of_nothing=-math.inf,
    )  # fmt: skip


DECODE = (
    OperandSpec(
        "q", ("b", "next_n", "heads", INDEX_DIM), "float8_e4m3", strides=axis_strides("q", "bnh"),
        doc="queries; any q scale is folded into weights",
    ),
    OperandSpec(
        "k_cache", ("pages", PAGE_BYTES), "uint8", row_stride="k_cache_stride",
        requires=(f"k_cache_stride % {INDEX_DIM} == 0",),
        doc="paged keys: 64 x 128 e4m3, then 64 fp32 scales",
    ),
    OperandSpec(
        "weights", ("b", "next_n", "heads"), "float32", strides=axis_strides("weights", "bn"),
        doc="per-head weights, may be negative",
    ),
    *_DECODE_SIZES, _scores_of_steps("float32", str(PAGE)), _SKIP,
)  # fmt: skip


def _of_any_page(spec: OperandSpec) -> OperandSpec:
    """The operand for pages of 64, reworded for pages of `page_size` tokens."""
    words = {"64 * max_pages": "page_size * max_pages", "len / 64": "len / page_size"}
    values = tuple(replace(rule, allowed=_reworded(rule.allowed, words)) for rule in spec.values)
    return replace(spec, doc=_reworded(spec.doc, words), values=values)


def _reworded(text: str, words: Mapping[str, str]) -> str:
    for old, new in words.items():
        text = text.replace(old, new)
    return text


_ANY_HEADS = (
    f"index_heads <= {MOST_HEADS}",
    f"index_dim <= {INDEX_DIM}",
    f"index_dim % {GRAIN} == 0",
)


def _decode_any(dtype: str) -> tuple[OperandSpec, ...]:
    """Operands of a decode over pages of any size, with keys of any dims and any number of heads."""
    return (
        OperandSpec(
            "q", ("b", "next_n", "index_heads", "index_dim"), "float8_e4m3", strides=axis_strides("q", "bnh"),
            requires=_ANY_HEADS, doc="queries; any q scale is folded into weights",
        ),
        OperandSpec(
            "k_cache", ("pages", "page_bytes"), "uint8", row_stride="k_cache_stride",
            requires=(
                f"page_size >= {GRAIN}", f"page_size % {GRAIN} == 0",
                "page_bytes == page_size * (index_dim + 4)",
            ),
            doc="paged keys: page_size x index_dim e4m3, then page_size fp32 scales",
        ),
        OperandSpec(
            "weights", ("rows", "index_heads"), "float32", row_stride="weights_stride",
            requires=("rows == b * next_n",), doc="per-head weights of each query, may be negative",
        ),
        *map(_of_any_page, _DECODE_SIZES),
        _scores_of_steps(dtype, "page_size"),
        _SKIP,
        OperandSpec("page_size", (), "int32", "scalar", doc="tokens per page"),
    )  # fmt: skip


def _windows(wide: tuple[Values, ...] = ()) -> tuple[OperandSpec, ...]:
    return (
        OperandSpec(
            "k_start", ("s",), "int32", doc="first key of each row", align=4,
            values=(Values("0 to skv", _outside_keys("k_start"), "the nearest key"),),
        ),
        OperandSpec(
            "k_end", ("s",), "int32", doc="one past the last key of each row", align=4,
            values=(
                Values("0 to skv", _outside_keys("k_end"), "the nearest key"),
                Values("at least k_start", lambda o, dims: o["k_end"] < o["k_start"], "an empty window"),
                *wide,
            ),
            longest="skv",
        ),
    )  # fmt: skip


def _scores_of_rows(dtype: str, doc: str, fits: str) -> OperandSpec:
    """Scores of a prefill; `fits` is the rule for the width of rows."""
    return OperandSpec(
        "logits", ("s", "stride"), dtype, "out", doc=doc, row_stride="logits_stride",
        align=DTYPES[dtype].bytes, argument="out", sizes={"stride": "ceildiv(skv, 4) * 4"},
        requires=(fits,), of_nothing=-math.inf,
    )  # fmt: skip


PREFILL = (
    OperandSpec("q", ("s", "heads", INDEX_DIM), "float8_e4m3", strides=axis_strides("q", "sh")),
    OperandSpec("k", ("skv", INDEX_DIM), "float8_e4m3", row_stride="k_stride"),
    OperandSpec("k_scales", ("skv",), "float32"),
    OperandSpec("weights", ("s", "heads"), "float32", row_stride="weights_stride"),
    *_windows(),
    _scores_of_rows(
        "float32", "column j is key j; columns outside the window stay as they were", "stride >= skv"
    ),
    _SKIP,
)


def _wide_windows(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    """The rows whose window is wider than a row of scores, where scores begin with the window's first key."""
    ends, starts = o["k_end"].long().clamp(max=dims["skv"]), o["k_start"].long().clamp(min=0)
    wide: torch.Tensor = (ends - starts > dims["stride"]) & (ends - starts > int(o.get("skip_below", 0)))
    return wide & (dims["compressed"] == 1)


def _prefill_any(dtype: str) -> tuple[OperandSpec, ...]:
    """Operands of a prefill with keys of any dims and any number of heads.

    A row's scores may begin with its first key.
    """
    return (
        OperandSpec(
            "q", ("s", "index_heads", "index_dim"), "float8_e4m3", strides=axis_strides("q", "sh"),
            requires=_ANY_HEADS,
        ),
        OperandSpec("k", ("skv", "index_dim"), "float8_e4m3", row_stride="k_stride"),
        OperandSpec("k_scales", ("skv",), "float32"),
        OperandSpec("weights", ("s", "index_heads"), "float32", row_stride="weights_stride"),
        *_windows((Values("at most stride past k_start where compressed is 1", _wide_windows),)),
        _scores_of_rows(
            dtype,
            "column j is key j, or where compressed is 1 key k_start + j; other columns stay as they were",
            "stride >= skv or compressed == 1",
        ),
        _SKIP,
        OperandSpec("compressed", (), "int32", "scalar", doc="1: a row's scores begin with its first key"),
    )  # fmt: skip


FORMS = {
    "decode": DECODE,
    "prefill": PREFILL,
    **{
        form_of(mode, kind): of(SCORES[kind])
        for kind in SCORES
        if kind not in ("plain", "blocks", *FOUR_BITS)
        for mode, of in (("decode", _decode_any), ("prefill", _prefill_any))
    },
    form_of("decode", "blocks"): blocks.operands(_decode_any("float32")),
    **{form_of("decode", kind): mxfp4.operands(DECODE, SCORES[kind]) for kind in FOUR_BITS},
    **{form_of("prefill", kind): mxfp4.operands_of_prompts(_prefill_any(SCORES[kind])) for kind in FOUR_BITS},
}
