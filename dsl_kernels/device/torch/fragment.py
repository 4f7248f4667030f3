"""Leaves that every operation may use: conversions, reductions, element-wise and atomic ones on fragments.

A fragment is a tile in the registers of a role (of one replica), laid out as a product leaves or takes it. A
value per row, such as its maximum, is a fragment of one dimension.
"""

from __future__ import annotations

from typing import Any

from ..._torch import torch
from ...tile.arithmetic import number
from ...tile.fragments import accumulators
from ...tile.kinds import Int32
from ...tile.leaf import RegisterTile, SharedTile, TensorTile
from ...tile.leaf_text import Function
from ...tile.text import Writes, leaf
from ...tile.threads import Threads


def _of_row(registers: torch.Tensor, r: int | None = None) -> torch.Tensor:
    return registers if r is None else registers.view(len(registers), -1, 2, 2)[:, :, r].flatten(1)


def _quads(threads: Threads, value: torch.Tensor) -> torch.Tensor:
    return threads.spread(value).view(-1, 4)


row_most = Function("row_most", "float32", lambda registers, *r: _of_row(registers, *r).amax(dim=1))
"""The maximum of a thread's registers of its row `r` (0 or 1); without `r`, of all its registers."""

row_most_bits = Function(
    "row_most_bits",
    "int32",
    lambda registers, *r: _of_row(registers, *r).contiguous().view(torch.int32).amax(dim=1).long(),
)
"""`row_most` of the bit patterns as integers."""

row_sum = Function("row_sum", "float32", lambda registers, *r: _of_row(registers, *r).sum(dim=1))
"""The sum of a thread's registers of its row `r`, or of all of them."""


def _scale_pair(threads: Threads, registers: torch.Tensor, first: int, factor: Any, less: Any) -> None:
    by, of = (threads.spread(number(x))[threads.active, None] for x in (factor, less))
    registers[threads.active, first : first + 2] = registers[threads.active, first : first + 2] * by - of


scale_pair = Function("scale_pair", "float32", _scale_pair, joint=True)
"""Multiply registers `first` and the next one by a factor, then subtract; one instruction on Blackwell."""

quad_most = Function(
    "quad_most", "float32", lambda t, value: _quads(t, value).amax(dim=1).repeat_interleave(4), joint=True
)
"""The maximum over the four lanes that share a row."""

quad_sum = Function(
    "quad_sum", "float32", lambda t, value: _quads(t, value).sum(dim=1).repeat_interleave(4), joint=True
)
"""The sum over the four lanes that share a row."""


def _load_columns(
    threads: Threads, registers: torch.Tensor, source: torch.Tensor, column: Any, thread: Any
) -> None:
    registers[threads.active] = source[threads.active, column : column + registers.shape[1]]


def _store_columns(
    threads: Threads, registers: torch.Tensor, target: torch.Tensor, column: Any, thread: Any
) -> None:
    target[threads.active, column : column + registers.shape[1]] = registers[threads.active]


load_columns = Function("load_columns", "float32", _load_columns, joint=True)
"""Load columns of each thread's row of tensor memory into all given registers, and wait for them.

`column` is a multiple of the number of registers. The last argument is `m.thread`.
"""

store_columns = Function("store_columns", "float32", _store_columns, joint=True)
"""The reverse of `load_columns`; cutedsl does not wait for it."""


@leaf
def round_to(target: RegisterTile, source: RegisterTile) -> None:
    """Every element in the dtype of the target, which the next product may take as its A."""
    target.copy_(source)


@leaf
def pack_to(target: RegisterTile, source: RegisterTile) -> None:
    """`round_to` bfloat16 at this very place: no compiler moves it behind the fence before the product."""
    target.copy_(source)


@leaf
def row_maxima(rows: Any, source: Any, thread: Any) -> None:
    """The maximum of each row."""
    rows.copy_(source.amax(dim=1))


@leaf
def row_sums(rows: Any, source: Any, thread: Any) -> None:
    """The sum of each row."""
    rows.copy_(source.sum(dim=1))


@leaf
def exp2_below(source: Any, rows: Any, thread: Any) -> None:
    """exp2(element - its row's value) in place."""
    source.copy_(torch.exp2(source - rows[:, None]))


@leaf
def scale_rows(source: Any, rows: Any, thread: Any) -> None:
    """Each row times its value, in place."""
    source.mul_(rows[:, None])


@leaf
def divide_rows(source: Any, rows: Any, thread: Any) -> None:
    """Each row divided by its value, in place."""
    source.div_(rows[:, None])


@leaf
def read_tensor(target: RegisterTile, source: TensorTile, thread: Int32) -> None:
    """A fragment, a row a thread, from tensor memory; its arrival is waited for at the release."""
    target.copy_(source)


@leaf
def read_sums(target: RegisterTile, source: TensorTile, thread: Int32) -> None:
    """Sums of 16 bits that have a column each, a row a thread, two a register; their arrival is waited for at
    the release.
    """
    target.copy_(source)


@leaf
def write_tensor(target: TensorTile, source: RegisterTile, thread: Int32) -> None:
    """A 16-bit fragment, a row a thread, into tensor memory; its arrival is waited for at the commit."""
    target.copy_(source)


@leaf
def read_accumulator(target: RegisterTile, source: TensorTile, thread: Int32) -> None:
    """What a thread has of an accumulator of 64 rows, as wgmma leaves it, from tensor memory; waited for at
    the release.
    """
    target.copy_(source.reshape(-1)[accumulators(*source.shape)])


@leaf
def stage_rows(
    target: SharedTile, row: Int32, rows: SharedTile | int, source: RegisterTile, thread: Int32
) -> None:
    """A 16-bit fragment into rows `row` on of a shared tile of `rows` rows with the 128-byte swizzle."""
    target[row : row + source.shape[0]] = source


@leaf
def read_rows(target: Any, x: Any, pitch: int, row: Any, column: Any, thread: Any) -> None:
    """A float32 fragment from a matrix in global or shared memory whose rows are `pitch` elements long."""
    target.copy_(x[row : row + target.shape[0], column : column + target.shape[1]])


@leaf
def write_rows(out: Writes, pitch: int, row: Any, column: Any, source: Any, thread: Any) -> None:
    """A float32 fragment into a matrix in global or shared memory whose rows are `pitch` elements long."""
    out[row : row + source.shape[0], column : column + source.shape[1]] = source


@leaf
def add_rows(out: Writes, pitch: int, row: Any, column: Any, source: Any, thread: Any) -> None:
    """A float32 fragment added to a matrix in global memory, element by element and atomically."""
    out[row : row + source.shape[0], column : column + source.shape[1]] += source
