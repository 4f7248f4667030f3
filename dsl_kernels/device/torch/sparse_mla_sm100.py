"""Leaf maths of sparse MLA on tcgen05 where it is not Hopper's, by name: what each leaf means, in torch.

Scores S^T lie in tensor memory as tokens by heads, and so they are read; O^T as four accumulators of 128 latent dims by
heads, side by side. Heads are padded to what one product takes; the padded ones have zero queries and are not written.
Partials of splits keep the order of the output.
"""

from __future__ import annotations

from typing import Any

import torch

from ...problems.layouts import FP8_TOKEN_BYTES, LATENT_DIM, unpack_fp8_tokens
from ...tile.text import leaf
from .sparse_mla import THREADS, TILE, WARP, rows_of_cache

UNIT = 128


@leaf
def read_rows(
    rows: Any, indices: Any, topk: int, row: int, turn: int, turns: int, split: int, splits: int, lane: Any
) -> None:
    """The ids of the tile at `turn`, for the lanes that copy; unchanged past the last turn."""
    if turn < turns:
        first = (split + turn * splits) * 2 * WARP
        rows.copy_(indices[row, first : first + 2 * WARP])


def _named(cache: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The cache rows of a tile's tokens, of the ids that each thread has: those of every `64 / count`-th token."""
    each = rows.shape[1]
    return rows_of_cache(cache, rows[:: THREADS * each // TILE].T.reshape(-1), len(cache))


@leaf
def gather_columns(target: Any, cache: Any, first: int, columns: int, rows: Any, thread: Any) -> None:
    """Start the copies of columns `first` on of a tile's rows; a row of -1 is not read and becomes zero."""
    target.copy_(_named(cache, rows)[:, first : first + columns])


def _token_bytes(words: torch.Tensor) -> torch.Tensor:
    return words.view(torch.uint8)[:, :FP8_TOKEN_BYTES]


def _load_bytes(words: torch.Tensor, cache: torch.Tensor, rows: torch.Tensor, first: int, end: int) -> None:
    _token_bytes(words)[:, first:end] = _named(cache, rows)[:, first:end]


@leaf
def load_unit(words: Any, unit: int, kv_cache: Any, rows: Any, thread: Any) -> None:
    """Read the fp8 values of one unit of a tile's tokens into registers; zeros for a row of -1."""
    _load_bytes(words, kv_cache, rows, unit * UNIT, (unit + 1) * UNIT)


@leaf
def load_rest(words: Any, kv_cache: Any, rows: Any, thread: Any) -> None:
    """Read the scales and the rope columns of a tile's tokens into registers; zeros for a row of -1."""
    _load_bytes(words, kv_cache, rows, LATENT_DIM, FP8_TOKEN_BYTES)


@leaf
def dequantise_unit(target: Any, words: Any, unit: int, thread: Any) -> None:
    """Write a unit as bf16, rounded once from e4m3 times scale."""
    latent, _ = unpack_fp8_tokens(_token_bytes(words).contiguous())
    target.copy_(latent[:, unit * UNIT : (unit + 1) * UNIT])


@leaf
def store_rope(target: Any, words: Any, thread: Any) -> None:
    """Write the rope columns."""
    _, rope = unpack_fp8_tokens(_token_bytes(words).contiguous())
    target.copy_(rope)


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
