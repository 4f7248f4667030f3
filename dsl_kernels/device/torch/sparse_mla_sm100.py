"""Leaf maths of sparse MLA on tcgen05 where it is not Hopper's, by name: what each leaf means, in torch.

Scores S^T lie in tensor memory as tokens by heads, and so they are read; O^T as four accumulators of 128 latent dims by
heads, side by side. Heads are padded to what one product takes; the padded ones have zero queries and are not written.
Partials of splits keep the order of the output.
"""

from __future__ import annotations

from typing import Any

import torch

from ...tile.text import leaf
from .sparse_mla import THREADS, TILE, WARP

UNIT = 128


@leaf
def read_rows(
    rows: Any, indices: Any, topk: int, row: int, turn: int, turns: int, split: int, splits: int, lane: Any
) -> None:
    """The ids of the tile at `turn`, for the lanes that copy; unchanged past the last turn."""
    if turn < turns:
        first = (split + turn * splits) * 2 * WARP
        rows.copy_(indices[row, first : first + 2 * WARP])


@leaf
def read_scores(scores: Any, accumulators: Any, thread: Any) -> None:
    """A tile's scores from tensor memory. Not yet waited for."""
    thread, i = torch.arange(THREADS).view(-1, 1), torch.arange(4)
    token, head = thread // WARP * 16 + thread % WARP // 4 + i // 2 * 8, thread % 4 * 2 + i % 2
    scores.copy_(accumulators.view(TILE, -1, 8)[token, :, head].transpose(1, 2).reshape(scores.shape))


@leaf
def load_columns(held: Any, acc: Any, column: int, thread: Any) -> None:
    """This thread's lane of columns `column` on of tensor memory, once they are here."""
    held.copy_(acc[:, column : column + held.shape[1]])


@leaf
def store_columns(held: Any, acc: Any, column: int, thread: Any) -> None:
    """The reverse of `load_columns`; not waited for."""
    acc[:, column : column + held.shape[1]] = held
