"""Rows of DeepSeek-V4's compressed caches, from a model's values and scores for each token.

For each channel, a row is the mean of a window of tokens, weighted by a softmax. Then come RMSNorm, and rope
of the last 64 dims. The row is written into a slot of a paged cache, in the bytes that attention reads (512
dims: 584 bytes per row) or the indexer reads (128 dims: 132 bytes). A token's values and scores are `parts`
adjacent rows of `dim`: token number j of a window takes part j // ratio.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from ..._torch import torch
from ...arguments import INT32_MAX
from ...problems.base import WIDE, OperandSpec, Problem, Values
from ...problems.layouts import (
    INDEX_DIM,
    LATENT_DIM,
    ROPE_DIM,
    V4_TOKEN_BYTES,
)

DIMS = (LATENT_DIM, INDEX_DIM)
"""Channels per row: of attention's cache, and of the indexer's cache."""
WORDS = {LATENT_DIM: V4_TOKEN_BYTES // 4, INDEX_DIM: (INDEX_DIM + 4) // 4}
"""Words of four bytes per row of a page."""


def _wrong_tokens(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    return o["windows"] >= dims["tokens"]


def _wrong_positions(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    stored = o["row_slots"] >= 0
    return stored & ((o["positions"] < 0) | (o["positions"] >= dims["angles"]))


def _wrong_slots(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    return o["row_slots"] >= dims["pages"] * dims["page_size"]


OPERANDS = (
    OperandSpec(
        "kv", ("tokens", "width"), "float32", row_stride="kv_stride", align=16,
        requires=("width % dim == 0",), doc="values of each token, parts of dim channels",
    ),
    OperandSpec(
        "scores", ("tokens", "width"), "float32", row_stride="scores_stride", align=16,
        doc="scores that weigh a token's values, channel by channel",
    ),
    OperandSpec(
        "ape", ("ratio", "width"), "float32", row_stride="ape_stride", align=16,
        doc="added to the scores, by place in the ratio",
    ),
    OperandSpec("weight", ("dim",), "float32", align=16, doc="weight of the norm"),
    OperandSpec(
        "windows", ("rows", "span"), "int32", row_stride="windows_stride", align=4,
        requires=("span * dim == ratio * width",),
        doc="tokens of each row's window in order; negative tokens are left out",
        values=(Values("below the tokens", _wrong_tokens, "memory that is no token's is read"),),
    ),
    OperandSpec(
        "positions", ("rows",), "int32", align=4, doc="line of cos_sin of each row",
        values=(
            Values(
                "lines of cos_sin, where a row has a slot", _wrong_positions,
                "memory that is no angle is read"
            ),
        ),
    ),
    OperandSpec(
        "cos_sin", ("angles", "turned"), "float32", requires=(f"turned == {ROPE_DIM}",), align=16,
        doc="cosines of each pair's angle, then its sines",
    ),
    OperandSpec(
        "row_slots", ("rows",), "int32", align=4,
        doc="slot of each row; a row with a negative slot is not written",
        values=(Values("slots of the cache", _wrong_slots, "memory that is not the cache's is written"),),
    ),
    OperandSpec("eps", (), "float32", "scalar", doc="added to the mean square"),
    OperandSpec("page_size", (), "int32", "scalar", limits=(1, INT32_MAX), doc="rows per page"),
    OperandSpec(
        "cache", ("pages", "page_words"), "int32", "out", row_stride="cache_stride", align=4,
        requires=(
            f"page_words == page_size * ({WORDS[LATENT_DIM]} if dim == {LATENT_DIM} else {WORDS[INDEX_DIM]})",
        ),
        doc="pages in words of four bytes, block-planar; slots that no row names stay as they were",
    ),
)  # fmt: skip


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Values and scores of `ratio` tokens per row, as windows may overlap; the row's window and bytes."""
    span = dims["ratio"] * dims["width"] // dims["dim"]
    return dims["rows"] * (8.0 * dims["ratio"] * dims["width"] + 4.0 * span + 4.0 * WORDS[dims["dim"]])


# Dim, ratio, parts and rows per page in DeepSeek-V4: attention's two ratios, and the indexer of the smaller
# ratio.
KINDS = ((LATENT_DIM, 4, 2, 64), (LATENT_DIM, 128, 1, 2), (INDEX_DIM, 4, 2, 64))


def points(grid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows of a decode step, and rows of a prompt's tokens.

    No row begins a sequence, so windows are whole.
    """
    rows, tokens = {
        "core": ((1, 64), (32768,)),
        "serving": ((1, 16, 64, 256), (4096, 32768)),
        "contest": ((64,), ()),
        "smoke": ((1, 16), ()),
        "wide": (WIDE, (1024, 4096, 8192, 32768)),
    }[grid]
    prompts = ((n // kind[1], kind) for n, kind in product(tokens, KINDS))
    for n, (dim, ratio, parts, page) in dict.fromkeys((*product(rows, KINDS), *prompts)):
        sizes = {"rows": n, "dim": dim, "ratio": ratio, "width": parts * dim, "page_size": page}
        yield "default", {**sizes, "sequence": "inside"}


PROBLEM = Problem(
    op="compress_rows",
    doc=__doc__,
    forms={"default": OPERANDS},
    bytes=moved_bytes,
    points=points,
)
