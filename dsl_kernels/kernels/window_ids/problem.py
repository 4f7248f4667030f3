"""The cache slots of the last tokens that each query sees.

DeepSeek-V4's layers attend to these tokens as well as to compressed tokens. A query that sees n tokens has
positions max(0, n - window) to n - 1 in its window. Position p is in slot window_table[sequence, p //
page_size] * page_size + p % page_size. Ids ascend by position, then -1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..._torch import torch
from ...arguments import INT32_MAX
from ...problems.base import Comparison, OperandSpec, Problem, Values, Workload


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


def make(workload: Workload, generator: torch.Generator) -> dict[str, Any]:
    """Draw sequences of any length, the first empty and the second full. Each query sees one token more."""
    p, device = workload.params, generator.device
    b, next_n, pages, page = p["b"], p["next_n"], p["max_pages"], p["page_size"]
    ends = torch.randint(0, pages * page - next_n + 2, (b,), generator=generator, device=device)
    ends[:2] = torch.tensor([0, pages * page - next_n + 1], device=device)[:b]
    lens = ends[:, None] + torch.arange(next_n, device=device)
    lens[:1] = torch.where(ends[:1, None] == 0, 0, lens[:1])
    # Entries outside all windows may hold anything.
    table = torch.full((b, pages + 3), -(2**31), dtype=torch.int32, device=device)[:, :pages]
    for sequence in range(b):
        order = torch.randperm(2 * pages, generator=generator, device=device)[:pages].int()
        first = max(0, int(lens[sequence].min()) - p["window"]) // page
        table[sequence, first:] = order[first:]
    return {
        "seq_lens": lens.int(),
        "window_table": table,
        "page_size": page,
        "window": p["window"],
    }


def reference(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The ids, one query at a time."""
    lens, table = inputs["seq_lens"], inputs["window_table"]
    page, window = int(inputs["page_size"]), int(inputs["window"])
    b, next_n = lens.shape
    out = torch.full((b * next_n, window), -1, dtype=torch.int32, device=lens.device)
    for row in range(b * next_n):
        end = min(max(int(lens[row // next_n, row % next_n]), 0), table.shape[1] * page)
        at = torch.arange(max(0, end - window), end, device=lens.device)
        pages = table[row // next_n].long()[at // page]
        out[row, : len(at)] = (pages * page + at % page).int()
    return {"indices": out}


def compare(
    form: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], expected: Mapping[str, Any]
) -> Comparison:
    """Require equality with the reference at every id, without a tolerance."""
    result = Comparison()
    wrong = int((outputs["indices"] != expected["indices"]).sum())
    result.demand("indices equal the reference", wrong == 0, f"{wrong} differ")
    return result


def _queries(dims: Mapping[str, int]) -> int:
    """Queries of a call, or of a point, which gives only sequences and queries per sequence."""
    return dims["rows"] if "rows" in dims else dims["b"] * dims["next_n"]


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Each id once out; the length of each query and the pages of its window once in."""
    pages = -(-dims["window"] // dims["page_size"]) + 1
    return 4.0 * _queries(dims) * (dims["window"] + pages + 1)


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """A division, a product and a sum per id."""
    return {"int32": 3.0 * _queries(dims) * dims["window"]}


def _case(
    name: str, tier: str, b: int, next_n: int, max_pages: int, page_size: int, window: int = 128
) -> Workload:
    sizes = {"b": b, "next_n": next_n, "max_pages": max_pages, "page_size": page_size, "window": window}
    return Workload(name, tier, "default", sizes)


PROBLEM = Problem(
    op="window_ids",
    doc=__doc__,
    forms={"default": OPERANDS},
    workloads=(
        _case("tiny", "tiny", 3, 2, 4, 64),
        _case("one_token", "edge", 2, 1, 3, 1, window=1),
        _case("odd_pages", "edge", 5, 3, 7, 53, window=130),
        _case("wide_window", "edge", 3, 1, 3, 16, window=300),
        _case("real_decode", "real", 64, 1, 512, 256),
        _case("real_drafts", "real", 16, 6, 4096, 256),
    ),
    make=make,
    reference=reference,
    compare=compare,
    bytes=moved_bytes,
    flops=flops,
    units=lambda form, dims: ("queries", _queries(dims)),
)
