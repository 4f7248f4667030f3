"""Decode scoring by blocks of tokens.

The table may list blocks in place of pages, scales may be UE8M0 bytes, and the kernel can write the greatest
score of each 8 keys. A row's entries name units of the cache: pages, or blocks of a few tokens that an
earlier selection has chosen. The row's scores are the scores of the tokens of these units, one unit after the
other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..._torch import torch
from ...problems.base import OperandSpec, Values

PAGE = 64
# The greatest number of heads of the forms that take any number.
MOST_HEADS = 64
BLOCK = 8
"""Tokens of one maximum. The tokens of a unit of the cache are a multiple of this."""

UNIT = "(block_size if block_size > 0 else page_size)"
"""Tokens of a table entry's unit, as an expression over the sizes of a call.

Kernels get the size of a block or a page.
"""


def _unit(dims: Mapping[str, int]) -> int:
    """Tokens of a table entry's unit."""
    return dims.get("block_size", dims.get("page_size", PAGE))


def wrong_lengths(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    """The lengths beyond the table or the scores, and negative ones."""
    return (o["seq_lens"] < 0) | (o["seq_lens"] > min(dims["max_pages"] * _unit(dims), dims["stride"]))


def wrong_units(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    """The entries of the table that name no unit of the cache, among those that a length reaches."""
    lens, table, unit = o["seq_lens"], o["block_table"], _unit(dims)
    used = torch.zeros(len(table), dims.get("sharing", 1), dtype=lens.dtype, device=lens.device)
    if lens.numel():
        scored = torch.where(lens > int(o.get("skip_below", 0)), lens, 0)
        used.view(-1)[: len(lens)] = -(-scored.amax(dim=1) // unit)
    live = torch.arange(dims["max_pages"], device=table.device) < used.amax(dim=1)[:, None]
    return live & ((table < 0) | (table >= dims["pages"] * dims.get("page_size", PAGE) // unit))


def _flag(name: str, doc: str) -> OperandSpec:
    return OperandSpec(name, (), "int32", "scalar", doc=doc, limits=(0, 1))


def changed(specs: tuple[OperandSpec, ...], **changes: Mapping[str, Any]) -> Mapping[str, OperandSpec]:
    """Operands by name, those that are named with other fields."""
    return {spec.name: replace(spec, **changes.get(spec.name, {})) for spec in specs}


def operands(of_any: tuple[OperandSpec, ...]) -> tuple[OperandSpec, ...]:
    """The operands of the form, from those of pages of any size."""
    alike = changed(
        of_any,
        q={"doc": "queries, one a row; any q scale is folded into weights"},
        k_cache={
            "requires": (
                f"page_size >= {BLOCK}", f"page_size % {BLOCK} == 0",
                "page_bytes == page_size * (index_dim + 4)",
            ),
            "doc": "paged keys: page_size x index_dim e4m3, then page_size scales of four bytes",
        },
        weights={"doc": "per-head weights of each row, may be negative"},
        seq_lens={
            "doc": "keys of each row, in the units that its table line names; 0 for a padded row",
            "values": (Values("0 to min(max_pages units, stride)", wrong_lengths),),
        },
        block_table={
            "shape": ("lines", "max_pages"),
            "requires": ("lines == ceildiv(b, sharing)",),
            "doc": "ids of units: pages, or blocks numbered across pages; row r has line r // sharing",
            "values": (Values("units of the cache in the entries that a length reaches", wrong_units),),
        },
        logits={"sizes": {"stride": f"max_pages * {UNIT}"}},
    )  # fmt: skip
    return (
        *alike.values(),
        OperandSpec(
            "block_size", (), "int32", "scalar", doc="tokens of a block that the table names, or of a page",
            requires=("block_size > 0", "page_size % block_size == 0", f"block_size % {BLOCK} == 0"),
        ),
        OperandSpec("sharing", (), "int32", "scalar", doc="rows that share a line of the table"),
        _flag("mx", "1: a scale is a power of two as four equal bytes (UE8M0); 0: a float32"),
        _flag("has_maxima", "1: maxima are written"),
        OperandSpec(
            "maxima", ("maxima_rows", "maxima_columns"), "float32", "out", row_stride="maxima_stride",
            align=4, default=-math.inf, sizes={"maxima_rows": "1", "maxima_columns": "1"},
            of_nothing=-math.inf,
            requires=(
                "maxima_rows == b * next_n or has_maxima == 0",
                f"maxima_columns * {BLOCK} >= max_pages * block_size or maxima_columns * {BLOCK} >= stride"
                " or has_maxima == 0",
            ),
            doc=f"the greatest score of each {BLOCK} keys; columns past the last key's stay as they were",
        ),
    )  # fmt: skip
