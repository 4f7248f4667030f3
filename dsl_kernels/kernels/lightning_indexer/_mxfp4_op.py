"""The arguments of scoring over keys and queries of 4 bits, as the forms "mxfp4" take them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...arguments import require_dense
from ...errors import ArgumentTypeError, InvalidArgumentError
from .forms import MOST_HEADS, PAGE
from .mxfp4 import KEY_BYTES
from .problem import pages_of

# A sequence with more queries is scored as groups of queries that share a line of the table.
MOST_QUERIES = 16
# Pairs of numbers of 4 bits come as bytes, or as torch's own dtype of them.
PAIRS = ("torch.uint8", "torch.int8", "torch.float4_e2m1fn_x2")


def kind_of(out: torch.Tensor | None) -> str:
    """The kind of form whose scores have the dtype of `out`."""
    return "mxfp4_bf16" if isinstance(out, torch.Tensor) and out.dtype == torch.bfloat16 else "mxfp4"


def of_four_bits(given: dict[str, Any], by_row: Callable[..., torch.Tensor]) -> dict[str, Any]:
    """The operands of the decode forms "mxfp4" for the op's arguments by name.

    `by_row` views [b, next_n, ...] as rows of some queries each, by default of one.

    Raises:
        ArgumentTypeError, InvalidArgumentError: an argument that the form does not take, or one of another
            shape or dtype.
    """
    q, scales = given["q"], given["q_scales"]
    _require_alone(given)
    if not isinstance(scales, torch.Tensor):
        raise ArgumentTypeError(
            "q_scales", expected='int32 [b, next_n, heads] with scale_format="mxfp4"',
            got=type(scales).__name__,
            fix="pass the scales of q: see problems.mxfp4.quantise_mxfp4",
        )  # fmt: skip
    given_out = ("out",) if given["out"] is not None else ()
    for name in ("q", "weights", "seq_lens", "block_table", *given_out):
        require_dense(name, given[name])
    _require_pairs("q", q)
    _require_queries(q, ("b", "next_n"))
    b, next_n, heads = q.shape[:3]
    if scales.shape not in ((b, next_n, heads), (b * next_n, heads)):
        raise InvalidArgumentError(
            "q_scales", expected=f"[{b}, {next_n}, {heads}] or [{b * next_n}, {heads}], the heads of q",
            got=f"shape {tuple(scales.shape)}", fix="pass four UE8M0 bytes a head as an int32",
        )  # fmt: skip
    flat = {name: given[name] for name in ("weights", "q_scales")}
    flat = {
        name: x.unflatten(0, (b, next_n)) if x.dim() == 2 else x
        for name, x in flat.items()
        if _rows(name, x, b * next_n)
    }
    scales = by_row("q_scales", flat.get("q_scales", scales), b, next_n)
    rows = {name: flat.get(name, given[name]) for name in ("q", "weights", "seq_lens", *given_out)}
    each = next_n
    if next_n > MOST_QUERIES:
        each = max(n for n in range(1, MOST_QUERIES + 1) if next_n % n == 0)
        rows = {name: by_row(name, x, b, next_n, each) for name, x in rows.items()}
    return {
        "q": rows["q"].view(torch.uint8),
        "q_scales": scales.flatten(0, 1) if next_n == 1 else scales[:, 0],
        "k_cache": pages_of(given["k_cache"], PAGE, KEY_BYTES, KEY_BYTES), "weights": rows["weights"],
        "seq_lens": rows["seq_lens"], "block_table": given["block_table"], "logits": rows.get("out"),
        "skip_below": given["skip_below"], "sharing": max(1, next_n // max(1, each)),
    }  # fmt: skip


def of_prompts(
    q: torch.Tensor, q_scales: torch.Tensor, k: torch.Tensor, k_scales: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Queries, keys and their scales as the prefill forms "mxfp4" take them.

    Raises:
        ArgumentTypeError, InvalidArgumentError: one of another shape or dtype.
    """
    given = {"q": q, "q_scales": q_scales, "k": k, "k_scales": k_scales}
    for name, x in given.items():
        require_dense(name, x)
    for name in ("q", "k"):
        _require_pairs(name, given[name])
    _require_queries(q, ("s",))
    return {**given, "q": q.view(torch.uint8), "k": k.view(torch.uint8)}


def _require_pairs(name: str, x: torch.Tensor) -> None:
    if str(x.dtype) not in PAIRS:
        raise ArgumentTypeError(
            name, expected="pairs of e2m1 as uint8", got=str(x.dtype),
            fix="quantise it: problems.mxfp4.quantise_mxfp4",
        )  # fmt: skip


def _require_queries(q: torch.Tensor, rows: tuple[str, ...]) -> None:
    if q.dim() != len(rows) + 2 or q.shape[-1] != KEY_BYTES or not 1 <= q.shape[-2] <= MOST_HEADS:
        raise InvalidArgumentError(
            "q", got=f"shape {tuple(q.shape)}",
            expected=f"[{', '.join(rows)}, heads, {KEY_BYTES}] bytes, of 1 to {MOST_HEADS} heads",
            fix="pass 128 dims a head, two in a byte, and at most so many heads",
        )  # fmt: skip


def _rows(name: str, x: torch.Tensor, rows: int) -> bool:
    if x.dim() == 2 and x.shape[0] != rows:
        raise InvalidArgumentError(
            name, expected=f"[b, next_n, heads], or [{rows}, heads], with the queries of q",
            got=f"shape {tuple(x.shape)}", fix="make the operands agree",
        )  # fmt: skip
    return True


def _require_alone(given: dict[str, Any]) -> None:
    """Keys of 4 bits lie in pages of 64 tokens and come without blocks and maxima."""
    wanted = {"page_size": PAGE, "block_size": 0, "maxima": None}
    for name, value in wanted.items():
        if given[name] is not value and (given[name] is None or value is None or given[name] != value):
            got = given[name] if isinstance(given[name], int) else type(given[name]).__name__
            raise InvalidArgumentError(
                name, expected=f'{value} with scale_format="mxfp4"', got=str(got),
                fix="leave it out: keys of 4 bits have pages of 64 tokens, no lists of blocks and no maxima",
            )  # fmt: skip
