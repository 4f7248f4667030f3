"""The cache slots of the last tokens that each query sees.

DeepSeek-V4's layers attend to these tokens as well as to compressed tokens. A query that sees n tokens has
positions max(0, n - window) to n - 1 in its window. Position p is in slot window_table[sequence, p //
page_size] * page_size + p % page_size. Ids ascend by position, then -1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..._torch import torch
from ...arguments import INT32_MAX
from ...problems.base import OperandSpec, Problem, Values


def _past_table(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    return (o["seq_lens"] < 0) | (o["seq_lens"] > dims["max_pages"] * dims["page_size"])


def _wrong_pages(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    """Entries within a query's window that are no page ids."""
    table, page = o["window_table"], dims["page_size"]
    ends = o["seq_lens"].long().clamp(0, dims["max_pages"] * page)[..., None]
    first, last = (ends - dims["window"]).clamp(min=0) // page, (ends - 1) // page
    columns = torch.arange(dims["max_pages"], device=table.device)
    used = ((ends > 0) & (columns >= first) & (columns <= last)).any(dim=1)
    return used & ((table < 0) | (table > (1 << 31) // page - 1))


OPERANDS = (
    OperandSpec(
        "seq_lens",
        ("b", "next_n"),
        "int32",
        align=4,
        doc="tokens that each query sees, with its own",
        values=(Values("0 to max_pages * page_size", _past_table, "the nearest of these"),),
    ),
    OperandSpec(
        "window_table",
        ("b", "max_pages"),
        "int32",
        row_stride="window_table_stride",
        align=4,
        doc="page ids by position",
        values=(
            Values(
                "page ids from 0 to 2^31 / page_size - 1 where a query's window is",
                _wrong_pages,
                "ids of other slots, or of none",
            ),
        ),
    ),
    OperandSpec("page_size", (), "int32", "scalar", limits=(1, INT32_MAX), doc="tokens per page"),
    OperandSpec(
        "indices",
        ("rows", "window"),
        "int32",
        "out",
        row_stride="indices_stride",
        align=4,
        argument="out",
        sizes={"rows": "b * next_n"},
        requires=("rows == b * next_n", "max_pages * page_size <= 2147483647"),
        doc="ids by ascending position, then -1",
    ),
)


def queries_of(dims: Mapping[str, int]) -> int:
    """Queries of a call, or of a point, which gives only sequences and queries per sequence."""
    return dims["rows"] if "rows" in dims else dims["b"] * dims["next_n"]


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Each id once out; the length of each query and the pages of its window once in."""
    pages = -(-dims["window"] // dims["page_size"]) + 1
    return 4.0 * queries_of(dims) * (dims["window"] + pages + 1)


def points(grid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A step of one token, and one with drafts, on every grid."""
    for b, next_n, max_pages in ((64, 1, 512), (16, 6, 4096)):
        sizes = {"b": b, "next_n": next_n, "max_pages": max_pages, "page_size": 256, "window": 128}
        yield "default", sizes


PROBLEM = Problem(
    op="window_ids",
    doc=__doc__,
    forms={"default": OPERANDS},
    bytes=moved_bytes,
    points=points,
)
