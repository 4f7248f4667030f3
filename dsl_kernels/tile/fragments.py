"""How the threads of a warpgroup hold a tile in registers, as a product of 64 rows leaves it.

Element i of a thread lies in row 16 * warp + lane // 4 (+ 8 where bit 1 of i is set) and column
i // 4 * 8 + 2 * (lane % 4) + i % 2; 64 rows after the other. Of what a tile has once a row or a column a thread holds the
values of its own rows or columns, alike in all threads that share them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._discover import later

if TYPE_CHECKING:
    import torch
else:
    torch = later("torch", globals())


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


def held(shape: tuple[int, ...], each: int, threads: int) -> torch.Tensor | None:
    """Which element of a tile each of a thread's `each` registers holds, [threads, each]; None where no product leaves it so.

    Several warpgroups have consecutive rows of the tile each.
    """
    groups, rest = divmod(threads, WARPGROUP)
    if rest:
        return None
    rows, columns = shape if len(shape) == 2 else (0, 0)
    if rows and rows % 64 == 0 and each * threads == rows * columns:
        own = accumulators(rows // groups, columns)
        return torch.cat([own + group * each * WARPGROUP for group in range(groups)])
    return own_rows() if shape == (64,) and each == 2 and groups == 1 else None
