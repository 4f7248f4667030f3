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
from ...problems.layouts import INDEX_DIM, pack_index_keys, unpack_index_keys

PAGE = 64
# The greatest number of heads of the forms that take any number.
MOST_HEADS = 64
BLOCK = 8
"""Tokens of one maximum. The tokens of a unit of the cache are a multiple of this."""

UNIT = "(block_size if block_size > 0 else page_size)"
"""Tokens of a table entry's unit, as an expression over the sizes of a call.

Kernels get the size of a block or a page.
"""
SPARE_BYTE = 255


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


def drawn_table(
    lens: torch.Tensor, unit: int, units: int, p: Mapping[str, Any], generator: torch.Generator
) -> torch.Tensor:
    """A table for lengths [b, next_n]: ids of `units` units in the entries that are read, others random."""
    sharing, device = p.get("sharing", 1), lens.device
    lines, width = -(-len(lens) // sharing), max(1, -(-int(lens.max()) // unit)) + p.get("spare_pages", 1)
    table = torch.randint(
        -(2**31), 2**31 - 1, (lines, width), generator=generator, dtype=torch.int64, device=device
    ).to(torch.int32)
    for line in range(lines):
        used = -(-int(lens[line * sharing : (line + 1) * sharing].max()) // unit)
        table[line, :used] = torch.randperm(units, generator=generator, device=device)[:used].to(torch.int32)
    return table


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


def make(p: Mapping[str, Any], draw: Any, generator: torch.Generator) -> dict[str, Any]:
    """The inputs of a workload; `draw` gives queries and weights for rows, heads and dims."""
    device, dim, page = generator.device, p.get("index_dim", INDEX_DIM), p["page_size"]
    unit, sharing = p.get("block_size") or page, p.get("sharing", 1)
    lens = torch.tensor(p["lens"], dtype=torch.int32, device=device)
    b, next_n = lens.shape
    q, weights = draw((b, next_n), p["index_heads"], generator, dim)
    pages = max(p["pages"], -(-int(lens.max()) // page))
    keys = torch.randn(pages, page, dim, generator=generator, dtype=torch.float32, device=device)
    cache = pack_index_keys(keys).view(pages, -1)
    if p.get("mx"):
        scales = cache[:, page * dim :].view(pages, page, 4)
        spread = torch.randint(117, 125, (pages, page, 1), generator=generator, device=device)
        scales.copy_(spread.to(torch.uint8).expand(-1, -1, 4))
    table = drawn_table(lens, unit, pages * page // unit, p, generator)
    has = int(bool(p.get("maxima") or p.get("has_maxima")))
    return {
        "q": q, "k_cache": cache, "weights": weights.flatten(0, 1), "seq_lens": lens, "block_table": table,
        "skip_below": p.get("skip_below", 0), "page_size": page, "block_size": unit, "sharing": sharing,
        "mx": int(bool(p.get("mx"))), "has_maxima": has,
        "maxima_rows": b * next_n if has else 1,
        "maxima_columns": -(-table.shape[1] * unit // BLOCK) if has else 1,
    }  # fmt: skip


def keys_of(inputs: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The fp8 values [tokens, dim] and the float32 scales [tokens] of a cache, token by token."""
    page, dim = inputs["page_size"], inputs["q"].shape[-1]
    values, scales = unpack_index_keys(inputs["k_cache"], page, dim)
    if inputs["mx"]:
        scales = power_of(scales.contiguous().view(torch.uint8)[..., ::4])
    return values.reshape(-1, dim), scales.reshape(-1)


def power_of(scale: torch.Tensor) -> torch.Tensor:
    """UE8M0 bytes as float32: powers of two, and NaN for 255."""
    powers = torch.exp2(scale.double() - 127)
    return torch.where(scale == SPARE_BYTE, torch.nan, powers).float()


def tokens_of(inputs: Mapping[str, Any], row: int, length: int) -> torch.Tensor:
    """The places of the first `length` keys of a row among all tokens of the cache."""
    unit = inputs["block_size"]
    entries = inputs["block_table"][row // inputs["sharing"], : -(-length // unit)].long()
    places: torch.Tensor = entries[:, None] * unit + torch.arange(unit, device=entries.device)
    return places.flatten()[:length]


def maxima_of(logits: torch.Tensor) -> torch.Tensor:
    """The greatest score of each `BLOCK` columns, NaN where no column is written."""
    rows = logits.flatten(0, -2)
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK), value=torch.nan)
    written: torch.Tensor = padded.nan_to_num(nan=-math.inf).view(len(rows), -1, BLOCK).amax(dim=2)
    return torch.where(written == -math.inf, torch.nan, written)
