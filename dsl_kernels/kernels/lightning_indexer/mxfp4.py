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
from ...problems.mxfp4 import MXFP4_GROUP, mxfp4_of, pack_mxfp4_index_keys, quantise_mxfp4
from .blocks import MOST_HEADS, PAGE, changed, drawn_table, wrong_units

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


def _normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float32, device=generator.device)


def _spread(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Blocks of 32 that are a power of two greater or smaller than others."""
    blocks = (*shape[:-1], shape[-1] // MXFP4_GROUP)
    powers = torch.randint(-3, 4, blocks, generator=generator, device=generator.device)
    return _normal(generator, *shape) * torch.exp2(powers.float()).repeat_interleave(MXFP4_GROUP, -1)


def rows_and_keys(p: Mapping[str, Any], generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Queries, keys and weights of a prompt."""
    q, q_scales = quantise_mxfp4(_spread(generator, p["s"], p["index_heads"], INDEX_DIM))
    k, k_scales = quantise_mxfp4(_spread(generator, p["skv"], INDEX_DIM))
    return {
        "q": q, "q_scales": q_scales[..., 0], "k": k, "k_scales": k_scales[..., 0],
        "weights": _normal(generator, p["s"], p["index_heads"]),
    }  # fmt: skip


def unscaled(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a prompt with the values of queries and keys, whose scales are then 1."""
    q, k = (mxfp4_of(inputs[name], inputs[f"{name}_scales"]) for name in "qk")
    return {**inputs, "q": q, "k": k, "k_scales": torch.ones_like(inputs["k_scales"])}


def make(p: Mapping[str, Any], lens: list[list[int]], generator: torch.Generator) -> dict[str, Any]:
    """Inputs: quantised normal queries and keys, of scales that differ from block to block."""
    device, sharing = generator.device, p.get("sharing", 1)
    lengths = torch.tensor(lens, dtype=torch.int32, device=device)
    b, next_n = lengths.shape
    q, q_scales = quantise_mxfp4(_spread(generator, b, next_n, p["index_heads"], INDEX_DIM))
    weights = _normal(generator, b, next_n, p["index_heads"])
    pages = max(p["pages"], -(-int(lengths.max()) // PAGE))
    cache = pack_mxfp4_index_keys(_spread(generator, pages, PAGE, INDEX_DIM)).view(pages, -1)
    table = drawn_table(lengths, PAGE, pages, p, generator)
    return {
        "q": q, "q_scales": q_scales.view(b * next_n, -1), "k_cache": cache, "weights": weights,
        "seq_lens": lengths, "block_table": table, "skip_below": p.get("skip_below", 0), "sharing": sharing,
    }  # fmt: skip


def logits_of(inputs: Mapping[str, Any]) -> torch.Tensor:
    """Float64 scores of rows, NaN where nothing is written."""
    lens, pages = inputs["seq_lens"].flatten(), inputs["k_cache"].shape[0]
    cache = inputs["k_cache"].reshape(pages, PAGE_BYTES)
    split = PAGE * KEY_BYTES
    words = cache[:, split:].contiguous().view(torch.int32).view(pages, PAGE)
    keys = mxfp4_of(cache[:, :split].reshape(pages, PAGE, KEY_BYTES), words)
    q = mxfp4_of(inputs["q"].flatten(0, 1), inputs["q_scales"])
    weights = inputs["weights"].flatten(0, 1).double()
    logits = torch.full(
        (len(lens), max(1, int(lens.max()))), torch.nan, dtype=torch.float64, device=lens.device
    )
    for row, length in enumerate(lens.tolist()):
        if length > max(0, inputs.get("skip_below", 0)):
            sequence = row // inputs["seq_lens"].shape[1]
            ids = inputs["block_table"][sequence // inputs["sharing"], : -(-length // PAGE)].long()
            dots = q[row].double() @ keys[ids].reshape(-1, INDEX_DIM)[:length].double().T
            logits[row, :length] = (weights[row][:, None] * dots.clamp(min=0)).sum(dim=0)
    return logits.view(*inputs["seq_lens"].shape, -1)
