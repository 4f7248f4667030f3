"""The register layout in which a wgmma product (64 rows a warpgroup) leaves its tile.

Element i of a thread is in row 16 * warp + lane // 4 (+ 8 where bit 1 of i is set) and column i // 4 * 8 + 2
* (lane % 4) + i % 2; a tile of more rows repeats this for each block of 64. A value per row (or per column)
is replicated in every thread that holds an element of that row (column).
"""

from __future__ import annotations

from .._torch import torch

WARPGROUP = 128


def warps_and_lanes(count: int = WARPGROUP) -> tuple[torch.Tensor, torch.Tensor]:
    """The warp and the lane of each thread, both [count, 1]."""
    thread = torch.arange(count).view(-1, 1)
    return thread // 32, thread % 32


def accumulators(rows: int, columns: int) -> torch.Tensor:
    """Flat indices into [rows, columns] of each thread's elements, [128, rows * columns / 128]."""
    i = torch.arange(columns // 2).view(1, -1)
    warp, lane = warps_and_lanes()
    row = 16 * warp + lane // 4 + 8 * (i // 2 % 2)
    column = i // 4 * 8 + lane % 4 * 2 + i % 2
    return torch.cat([(block + row) * columns + column for block in range(0, rows, 64)], dim=1)


def own_rows() -> torch.Tensor:
    """The two of 64 rows of which each thread has elements, [128, 2]."""
    warp, lane = warps_and_lanes()
    return 16 * warp + lane // 4 + 8 * torch.arange(2)


def elements_of_registers(shape: tuple[int, ...], each: int, threads: int) -> torch.Tensor | None:
    """The flat index of the tile's element in each of a thread's `each` registers, [threads, each].

    Several warpgroups hold consecutive blocks of rows. None: no product leaves a tile of this shape in these
    registers.
    """
    groups, rest = divmod(threads, WARPGROUP)
    if rest:
        return None
    rows, columns = shape if len(shape) == 2 else (0, 0)
    if rows and rows % 64 == 0 and each * threads == rows * columns:
        own = accumulators(rows // groups, columns)
        return torch.cat([own + group * each * WARPGROUP for group in range(groups)])
    return own_rows() if shape == (64,) and each == 2 and groups == 1 else None
