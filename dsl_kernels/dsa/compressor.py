"""The compressor of DeepSeek-V4 in torch: rows of its compressed caches from a model's values of tokens.

A row stands for `ratio` tokens: a softmax over a window of tokens for each channel, then RMSNorm and rope.
`store` writes the bytes that attention (584 a row) or the indexer (132 a row) reads. The kernel
`dsa.v4.compress_rows` writes the same bytes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ..arguments import INT32_MAX, finite, integer, require, require_dense
from ..problems.layouts import (
    INDEX_DIM,
    LATENT_DIM,
    ROPE_DIM,
    V4_ROW_BYTES,
    V4_SCALE_BYTES,
    pack_index_keys,
    pack_v4_pages,
)

THETA = 160000.0
"""The base of a compressed row's rope."""


class Compressed(NamedTuple):
    """Compressed rows of a sequence.

    Attributes:
        rows: [m, dim], of the dtype that `compress` calculates in.
        first: the number of the first row in its sequence. Row i stands for the tokens i * ratio to
            (i + 1) * ratio - 1.
    """

    rows: torch.Tensor
    first: int


def compress(
    kv: torch.Tensor,
    scores: torch.Tensor,
    ape: torch.Tensor,
    weight: torch.Tensor,
    *,
    ratio: int,
    first: int = 0,
    eps: float = 1e-6,
    theta: float = THETA,
    rope_dim: int = ROPE_DIM,
    dtype: torch.dtype = torch.float64,
) -> Compressed:
    """The compressed rows of consecutive tokens of one sequence.

    A row's window has `parts` * ratio tokens and ends with the last token that the row stands for; tokens
    before the sequence are left out. Token j of a window uses part j // ratio of its channels, so windows of
    two parts overlap.

    Args:
        kv: [n, parts * dim] float32, values of the tokens from `first` on. `parts` is 1, or 2 if windows
            overlap (ratio 4 in DeepSeek-V4).
        scores: [n, parts * dim] float32, their scores before the softmax.
        ape: [ratio, parts * dim] float32, added to the scores by position modulo ratio.
        weight: [dim], the weight of the norm.
        ratio: tokens that a row stands for: 4 or 128 in DeepSeek-V4.
        first: the position of the first token in `kv`. Only rows whose whole window is in `kv` are returned.
        eps: added to the mean of squares in the norm, 0 to 1.
        theta: the base of the rope, 1 to 1e12.
        rope_dim: how many of the last dims are rotated, in pairs of neighbours, by the position of the row's
            first token.
        dtype: the dtype of the calculation, float64 or float32.

    Returns:
        The complete rows, in order.

    Raises:
        ArgumentTypeError, InvalidArgumentError: shapes do not fit each other, or a number is out of range.
    """
    for name, tensor in (("kv", kv), ("scores", scores), ("ape", ape), ("weight", weight)):
        require_dense(name, tensor)
    require(
        "weight",
        weight.dim() == 1 and len(weight) > 0,
        "[dim]",
        str(tuple(weight.shape)),
        "pass the norm's weight",
    )
    ratio, first = integer("ratio", ratio, 1, INT32_MAX), integer("first", first, 0, INT32_MAX)
    eps, theta = finite("eps", eps, 0.0, 1.0), finite("theta", theta, 1.0, 1e12)
    dim = len(weight)
    rope_dim = integer("rope_dim", rope_dim, 0, dim)
    require("rope_dim", rope_dim % 2 == 0, "an even number", str(rope_dim), "pass an even number of dims")
    width = kv.shape[1] if kv.dim() == 2 else 0
    require(
        "kv",
        width > 0 and width % dim == 0,
        f"[n, parts * {dim}]",
        str(tuple(kv.shape)),
        "pass rows of one or more parts, each as long as weight",
    )
    for name, tensor, shape in (("scores", scores, tuple(kv.shape)), ("ape", ape, (ratio, width))):
        require(
            name,
            tuple(tensor.shape) == shape,
            str(shape),
            str(tuple(tensor.shape)),
            "make the operands agree",
        )
    floats = dtype in (torch.float64, torch.float32)
    require("dtype", floats, "torch.float64 or torch.float32", str(dtype), "pass one of these")

    parts, n = width // dim, len(kv)
    positions = torch.arange(first, first + n, device=kv.device)
    values = kv.to(dtype)
    weights = scores.to(dtype) + ape.to(dtype)[positions % ratio]
    # A window begins with the tokens of the preceding `parts - 1` rows, or with the sequence.
    begin = -(-first // ratio) + parts - 1 if first else 0
    made = []
    for number in range(begin, (first + n) // ratio):
        end = (number + 1) * ratio - first
        gathered, scored = [], []
        for part in range(parts):
            high = end - (parts - 1 - part) * ratio
            rows, channels = slice(max(0, high - ratio), max(0, high)), slice(part * dim, (part + 1) * dim)
            gathered.append(values[rows, channels])
            scored.append(weights[rows, channels])
        share = torch.softmax(torch.cat(scored), dim=0)
        made.append((share * torch.cat(gathered)).sum(dim=0))
    rows_made = torch.stack(made) if made else values.new_empty(0, dim)
    normed = rows_made * torch.rsqrt(rows_made.square().mean(dim=1, keepdim=True) + eps) * weight.to(dtype)
    at = (torch.arange(len(made), device=kv.device) + begin) * ratio
    return Compressed(_rotated(normed, at, theta, rope_dim), begin)


def _rotated(rows: torch.Tensor, positions: torch.Tensor, theta: float, rope_dim: int) -> torch.Tensor:
    """The rows with their last dims rotated, in pairs of neighbours."""
    kept = rows.shape[1] - rope_dim
    exponents = torch.arange(0, rope_dim, 2, dtype=torch.float64, device=rows.device) / max(1, rope_dim)
    angles = positions.double()[:, None] * torch.exp(-math.log(theta) * exponents)
    cos, sin = angles.cos().to(rows.dtype), angles.sin().to(rows.dtype)
    even, odd = rows[:, kept::2], rows[:, kept + 1 :: 2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=2).flatten(1)
    return torch.cat((rows[:, :kept], turned), dim=1)


def store(
    compressed: Compressed, cache: torch.Tensor, block_table: torch.Tensor, *, page_size: int | None = None
) -> None:
    """Quantise compressed rows and write them into a paged cache.

    Rows of 512 dims take 584 bytes each, rows of 128 dims 132 bytes.

    Args:
        compressed: rows of one sequence.
        cache: [pages, page_size, 1, 584] or [pages, page_size, 1, 132] uint8, block-planar; there may be gaps
            between pages.
        block_table: [max_pages] int32, the sequence's pages in `cache`.
        page_size: rows of a page; by default the second extent of `cache`.

    Raises:
        ArgumentTypeError, InvalidArgumentError: rows or a cache of another width, or too few pages in the
            table.
    """
    rows, first = compressed
    for name, tensor in (("rows", rows), ("cache", cache), ("block_table", block_table)):
        require_dense(name, tensor)
    by_dim = {LATENT_DIM: (V4_ROW_BYTES, V4_SCALE_BYTES), INDEX_DIM: (INDEX_DIM, 4)}
    require(
        "rows",
        rows.shape[1] in by_dim,
        f"{LATENT_DIM} or {INDEX_DIM} dims",
        str(rows.shape[1]),
        "pass all dims of the rows",
    )
    row_bytes, tail = by_dim[rows.shape[1]]
    size = page_size if page_size is not None else cache.shape[1]
    fits = cache.dim() == 4 and tuple(cache.shape[1:]) == (size, 1, row_bytes + tail)
    require(
        "cache", fits, f"[pages, {size}, 1, {row_bytes + tail}] bytes", str(tuple(cache.shape)),
        "pass the cache for rows of these dims",
    )  # fmt: skip
    require(
        "cache",
        cache.dtype == torch.uint8,
        "dtype torch.uint8",
        str(cache.dtype),
        "call .view(torch.uint8)",
    )
    reach = block_table.dim() == 1 and -(-(first + len(rows)) // size) <= len(block_table)
    require(
        "block_table", reach, f"the pages of {first + len(rows)} rows", str(tuple(block_table.shape)),
        "pass all pages of the sequence",
    )  # fmt: skip
    pack = pack_v4_pages if rows.shape[1] == LATENT_DIM else pack_index_keys
    # The model quantises bf16 rows. A page of one row has its values first and then its scales.
    packed = pack(rows.to(torch.bfloat16)[:, None]).reshape(len(rows), row_bytes + tail)
    number = torch.arange(first, first + len(rows), device=rows.device)
    page, place = block_table[number // size].long(), number % size
    flat = cache.as_strided((len(cache), size * (row_bytes + tail)), (cache.stride(0), 1))
    for begin, width, piece in (
        (0, row_bytes, packed[:, :row_bytes]),
        (size * row_bytes, tail, packed[:, row_bytes:]),
    ):
        columns = begin + place[:, None] * width + torch.arange(width, device=rows.device)
        flat[page[:, None], columns] = piece
