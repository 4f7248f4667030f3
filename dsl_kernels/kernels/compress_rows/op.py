"""The call that compresses rows. It writes into an existing cache, so it is no torch op with a result."""

from __future__ import annotations

from typing import Any

import torch

from ...arguments import INT32_MAX, finite, integer, require, require_dense
from ...errors import ArgumentTypeError
from ...ops._base import run
from ...ops.workspace import Workspace
from ...problems.layouts import INDEX_DIM, LATENT_DIM, V4_TOKEN_BYTES

ROW_BYTES = {LATENT_DIM: V4_TOKEN_BYTES, INDEX_DIM: INDEX_DIM + 4}


def compress_rows(
    kv: torch.Tensor,
    scores: torch.Tensor,
    ape: torch.Tensor,
    weight: torch.Tensor,
    windows: torch.Tensor,
    positions: torch.Tensor,
    cos_sin: torch.Tensor,
    row_slots: torch.Tensor,
    cache: torch.Tensor,
    *,
    eps: float = 1e-6,
    page_size: int | None = None,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
) -> None:
    """Write compressed rows into DeepSeek-V4's paged caches, in one launch that a CUDA graph can capture.

    `dsa.v4.compress` defines a row, and `dsa.compressor.store` its bytes. The window of a row is a list of
    tokens, so the tokens may be in one prompt or in an engine's state of the last tokens. `torch.compile`
    does not trace the call.

    Args:
        kv, scores: [tokens, parts * dim] float32. The stride of rows is a multiple of 4, so both may be
            halves of one tensor. dim is that of `weight`, 512 or 128. parts is 1, or 2 where windows overlap.
        ape: [ratio, parts * dim] float32, added to the scores by place in the ratio.
        weight: [dim] float32, the weight of the norm.
        windows: [rows, parts * ratio] int32, the tokens of each row's window in order, as rows of kv. A
            negative token is left out, and a row needs at least one other token. Token number j takes part j
            // ratio.
        positions: [rows] int32, the line of cos_sin of each row: the position of the first token that the row
            stands for.
        cos_sin: [positions, 64] float32: cosines of the 32 pairs of the last dims, then their sines.
        row_slots: [rows] int32, page * page_size + place in the page. A row with a negative slot is not
            written.
        cache: [pages, page_size, 1, 584] bytes for rows of 512, [pages, page_size, 1, 132] for rows of 128,
            block-planar. The stride of pages is a multiple of 4 bytes. Slots that no row names stay as they
            are.
        eps: epsilon of the norm, 0 to 1.
        page_size: rows per page, where the shape of `cache` does not say it.
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device, or a number out of
            range.
        NoVariantError: no generated variant accepts these sizes.
    """
    for name, tensor in (("weight", weight), ("cache", cache)):
        require_dense(name, tensor)
    dim = weight.shape[0] if weight.dim() == 1 else 0
    require(
        "weight", dim in ROW_BYTES, f"[{LATENT_DIM}] or [{INDEX_DIM}]", str(tuple(weight.shape)),
        "pass the norm's weight",
    )  # fmt: skip
    size = integer(
        "page_size", cache.shape[1] if page_size is None and cache.dim() > 1 else page_size, 1, INT32_MAX
    )
    operands: dict[str, Any] = {
        "kv": kv, "scores": scores, "ape": ape, "weight": weight, "windows": windows, "positions": positions,
        "cos_sin": cos_sin, "row_slots": row_slots, "eps": finite("eps", eps, 0.0, 1.0), "page_size": size,
        "cache": _words(cache, size, dim),
    }  # fmt: skip
    run("compress_rows", "default", operands, executor, variant, arch, workspace, {"page_size": size})


def _words(cache: torch.Tensor, size: int, dim: int) -> torch.Tensor:
    """View the cache as pages of words of four bytes.

    Raises:
        ArgumentTypeError, InvalidArgumentError: another dtype or shape, or pages that begin within a word.
    """
    each = ROW_BYTES[dim]
    if cache.element_size() != 1:
        raise ArgumentTypeError(
            "cache", expected="a dtype of one byte", got=str(cache.dtype), fix="view it as uint8"
        )
    require(
        "cache", cache.dim() == 4 and tuple(cache.shape[1:]) == (size, 1, each) and cache[:1].is_contiguous(),
        f"[pages, {size}, 1, {each}], each page contiguous",
        f"{tuple(cache.shape)}, strides {cache.stride()}",
        "pass the cache of this kind of rows, and its page_size",
    )  # fmt: skip
    stride = cache.stride(0) if len(cache) > 1 else size * each
    require(
        "cache", stride % 4 == 0 and cache.storage_offset() % 4 == 0,
        "pages that begin at multiples of 4 bytes",
        f"a stride of {stride} bytes, the first page at byte {cache.storage_offset()}", "pad the pages",
    )  # fmt: skip
    return cache.view(torch.uint8).as_strided((len(cache), size * each), (stride, 1)).view(torch.int32)
