"""How the threads of a warpgroup hold a tile in registers, as a product of 64 rows leaves it.

Element i of a thread lies in row 16 * warp + lane // 4 (+ 8 where bit 1 of i is set) and column
i // 4 * 8 + 2 * (lane % 4) + i % 2; 64 rows after the other. Of what a tile has once a row or a column a thread holds the
values of its own rows or columns, alike in all threads that share them.
"""

from __future__ import annotations

import torch

WARPGROUP = 128


def warps_and_lanes(count: int = WARPGROUP) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each thread, [count, 1]."""
    thread = torch.arange(count).view(-1, 1)
    return thread // 32, thread % 32


def accumulators(rows: int, columns: int) -> torch.Tensor:
    """The elements of [rows, columns] that each thread holds, [128, rows * columns / 128]."""
    i = torch.arange(columns // 2).view(1, -1)
    warp, lane = warps_and_lanes()
    row = 16 * warp + lane // 4 + 8 * (i // 2 % 2)
    column = i // 4 * 8 + lane % 4 * 2 + i % 2
    return torch.cat([(block + row) * columns + column for block in range(0, rows, 64)], dim=1)


def own_rows() -> torch.Tensor:
    """The two of 64 rows of which a thread has elements."""
    warp, lane = warps_and_lanes()
    return 16 * warp + lane // 4 + 8 * torch.arange(2)


def own_columns(columns: int) -> torch.Tensor:
    """The columns of which a thread has elements."""
    _, lane = warps_and_lanes()
    c = torch.arange(columns // 4).view(1, -1)
    return c // 2 * 8 + lane % 4 * 2 + c % 2


def by_warp(columns: int) -> torch.Tensor:
    """A value a warp and column, [4, columns]."""
    return warps_and_lanes()[0] * columns + own_columns(columns)


def held(shape: tuple[int, ...], each: int, threads: int) -> torch.Tensor | None:
    """Which element of a tile each of a thread's `each` registers holds, [threads, each]; None where no product leaves it so."""
    groups, rest = divmod(threads, WARPGROUP)
    if rest:
        return None
    if len(shape) == 2 and shape[0] % (64 * groups) == 0 and each * threads == shape[0] * shape[1]:
        own = accumulators(shape[0] // groups, shape[1])
        return torch.cat([own + group * each * WARPGROUP for group in range(groups)])
    if groups > 1:
        return None
    if shape == (64,) and each == 2:
        return own_rows()
    if len(shape) == 1 and each * 4 == shape[0]:
        return own_columns(shape[0])
    return by_warp(shape[1]) if len(shape) == 2 and (shape[0], 4 * each) == (4, shape[1]) else None
