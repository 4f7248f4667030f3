"""Exact top-k of scores in fp32, bf16 or fp16: ascending positions of the k largest scores of each row.

Ties go to the lower position. Forms with options can also write the scores, write the positions beside the
ids, add an offset to the positions of a row, take any row of the block table, or give ties to the higher
position.

Rows are ragged ([row_starts, row_ends)). A row with at most k scores is taken whole, and its scores are not
read. Positions count from row_starts, or with `absolute` from column 0. With page_size > 0 they become global
token ids through the block table. NaN counts as larger than +inf, and -0.0 equals +0.0, as in torch.topk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any

from ..._torch import torch
from ...arguments import INT32_MAX
from ...dtypes import DTYPES
from ...problems.base import (
    ROW_GRIDS,
    WIDE_SCORES,
    OperandSpec,
    PointName,
    Problem,
    Values,
)


def _lengths(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    """Columns of each row. Starts and ends outside the row move into it, as in the kernels."""
    return o["row_ends"].long().clamp(max=dims["stride"]) - o["row_starts"].long().clamp(min=0)


def lines_of(o: Mapping[str, Any], rows: int) -> torch.Tensor:
    """The row of the block table that each row of scores uses."""
    if o.get("has_sequences"):
        lines: torch.Tensor = o["row_to_sequence"].long()
        return lines
    return torch.arange(rows, device=o["logits"].device) // int(o["next_n"])


def _no_sequence(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    wrong: torch.Tensor = (o["row_to_sequence"] < 0) | (o["row_to_sequence"] >= dims["b"])
    return wrong & (dims["has_sequences"] == 1)


def _offset_too_far(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    wrong: torch.Tensor = o["offsets"].long() + dims["stride"] > INT32_MAX
    return wrong & (dims["has_offsets"] == 1)


def _outside_row(name: str) -> Callable[[Mapping[str, Any], Mapping[str, int]], torch.Tensor]:
    return lambda o, dims: (o[name] < 0) | (o[name] > dims["stride"])


def _past_table(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    page = dims["page_size"]
    return (_lengths(o, dims) > dims["max_pages"] * page) & (page > 0)


def _wrong_pages(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    table, page = o["block_table"], dims["page_size"]
    if page == 0:
        return torch.zeros_like(table, dtype=torch.bool)
    pages = -(-_lengths(o, dims).clamp(min=0) // page)
    lines = lines_of(o, dims["rows"]).clamp(0, dims["b"] - 1)
    used = pages.new_zeros(dims["b"]).scatter_reduce(0, lines, pages, "amax")
    live = torch.arange(dims["max_pages"], device=table.device) < used[:, None]
    return live & ((table < 0) | (table > (1 << 31) // page - 1))


SCORES = {"default": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""Dtype of the scores, by form without options."""
OPTIONS = {"default": "options", "bf16": "bf16_options", "fp16": "fp16_options"}
"""The form with options, by the form of the same scores without options."""
FORMS = {**SCORES, **{OPTIONS[form]: SCORES[form] for form in OPTIONS}}
"""Dtype of the scores, by form."""


def _scores(form: str) -> OperandSpec:
    return OperandSpec(
        "logits",
        ("rows", "stride"),
        FORMS[form],
        row_stride="logits_stride",
        align=4 if FORMS[form] == "float32" else 2,
        doc="scores; columns outside a row's range are garbage",
    )


OPERANDS = (
    OperandSpec(
        "row_starts",
        ("rows",),
        "int32",
        align=4,
        default=0,
        values=(Values("0 to stride", _outside_row("row_starts"), "the nearest column"),),
    ),
    OperandSpec(
        "row_ends",
        ("rows",),
        "int32",
        align=4,
        values=(
            Values("0 to stride", _outside_row("row_ends"), "the nearest column"),
            Values("at least row_starts", lambda o, dims: o["row_ends"] < o["row_starts"], "an empty row"),
            Values("at most max_pages * page_size past row_starts", _past_table),
        ),
    ),
    OperandSpec(
        "block_table",
        ("b", "max_pages"),
        "int32",
        doc="row r uses table row r // next_n; ignored when page_size is 0",
        row_stride="block_table_stride",
        align=4,
        default=0,
        sizes={"b": "1", "max_pages": "1"},
        requires=("b * next_n >= rows or page_size == 0",),
        values=(Values("page ids from 0 to 2^31 / page_size - 1 where a row's columns lie", _wrong_pages),),
    ),
    OperandSpec("next_n", (), "int32", "scalar"),
    OperandSpec("page_size", (), "int32", "scalar", doc="tokens per page; 0: positions"),
    OperandSpec(
        "absolute",
        (),
        "int32",
        "scalar",
        doc="1: positions count from column 0, without pages; 0: from row_starts",
    ),
    OperandSpec(
        "indices",
        ("rows", "k"),
        "int32",
        "out",
        doc="min(k, length) ids in ascending position, then -1",
        row_stride="indices_stride",
        align=4,
        argument="out",
        of_nothing=-1,
    ),
)


def _flag(name: str, doc: str) -> OperandSpec:
    return OperandSpec(name, (), "int32", "scalar", doc=f"1: {doc}")


def _of_rows(name: str, flag: str, rows: str, doc: str, values: tuple[Values, ...] = ()) -> OperandSpec:
    """An operand with an integer per row, which kernels read where `flag` is 1."""
    return OperandSpec(
        name, (rows,), "int32", align=4, default=0, sizes={rows: "1"},
        requires=(f"{rows} == rows or {flag} == 0",), doc=doc, values=values,
    )  # fmt: skip


def _beside(name: str, one: str, dtype: str, empty: float, doc: str) -> OperandSpec:
    """An output in the order of the ids, which kernels write where the caller passes it."""
    rows, columns = f"{one}_rows", f"{one}_columns"
    return OperandSpec(
        name, (rows, columns), dtype, "out", doc=doc, row_stride=f"{name}_stride", align=DTYPES[dtype].bytes,
        default=empty, sizes={rows: "1", columns: "1"},
        requires=(f"{rows} == rows and {columns} == k or has_{name} == 0",), of_nothing=empty,
    )  # fmt: skip


def _operands(form: str) -> tuple[OperandSpec, ...]:
    """The operands of a form. Options come after the operands of the form without options."""
    if form not in OPTIONS.values():
        return (_scores(form), *OPERANDS)
    return (
        _scores(form),
        *OPERANDS,
        _of_rows(
            "row_to_sequence", "has_sequences", "mapped_rows",
            "the row of the block table that each row uses, in place of r // next_n",
            (Values("rows of the block table", _no_sequence),),
        ),
        _of_rows(
            "offsets", "has_offsets", "offset_rows", "added to the positions of each row, without pages",
            (Values("at most 2^31 - 1 - stride", _offset_too_far),),
        ),
        _flag("ties_higher", "of equal scores the higher position goes first; 0: the lower position"),
        _flag("has_sequences", "row_to_sequence is read"),
        _flag("has_offsets", "offsets are read"),
        _flag("has_values", "values are written"),
        _flag("has_positions", "positions are written"),
        _beside("values", "value", FORMS[form], -math.inf, "the scores of the ids, then -inf"),
        _beside(
            "positions", "position", "int32", -1, "the positions that the block table maps to ids, then -1"
        ),
    )  # fmt: skip


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Every score once, every index once."""
    return dims["rows"] * (float(DTYPES[FORMS[form]].bytes) * dims["max_len"] + 4.0 * dims["k"])


def points(grid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows over lengths.

    The grid "serving" adds other distributions of scores, and prompts. The grid "wide" has more of all these,
    and smaller k.
    """
    batches, lengths = ROW_GRIDS[grid]
    if grid == "wide":
        fitting = [(b, n) for b, n in product(batches, lengths) if b * n <= WIDE_SCORES]
        yield from (("default", {"rows": b, "len": n, "k": 2048}) for b, n in fitting)
        hard = product((1, 16, 37, 128), (4096, 32768, 131072, 1 << 20), ("tight", "ties"))
        hard_ones = ((b, n, s) for b, n, s in hard if b * n <= WIDE_SCORES)
        yield from (("default", {"rows": b, "len": n, "k": 2048, "scores": s}) for b, n, s in hard_ones)
        fewer = product((1, 16, 64), (32768, 131072), (512, 1024))
        yield from (("default", {"rows": b, "len": n, "k": k}) for b, n, k in fewer)
        prompts = product((1024, 2048, 4096, 8192), (32768, 131072))
        yield from (("default", {"rows": s, "len": n, "k": 2048}) for s, n in prompts)
        others = product(("bf16", "fp16", *OPTIONS.values()), (1, 16, 64, 128), (32768, 131072))
        yield from ((form, {"rows": b, "len": n, "k": 2048}) for form, b, n in others)
        return
    yield from (("default", {"rows": b, "len": n, "k": 2048}) for b, n in product(batches, lengths))
    if grid == "serving":
        spread = product((4, 64), (32768, 131072), ("tight", "ties"))
        yield from (("default", {"rows": b, "len": n, "k": 2048, "scores": s}) for b, n, s in spread)
        yield from (("default", {"rows": 4096, "len": n, "k": 2048}) for n in (32768, 131072))


PROBLEM = Problem(
    op="topk_selector",
    doc=__doc__,
    forms={form: _operands(form) for form in FORMS},
    bytes=moved_bytes,
    points=points,
    names={form: (PointName("len", "stride"),) for form in FORMS},
)
