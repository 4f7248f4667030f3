"""Cache layouts unpacked in torch: what `dsl_kernels.problems.layouts` and `problems.mxfp4` pack."""

from __future__ import annotations

import torch

from dsl_kernels.arguments import checked, require_range
from dsl_kernels.dtypes import e2m1_of
from dsl_kernels.problems.layouts import (
    FP8_TOKEN_BYTES,
    INDEX_DIM,
    LATENT_DIM,
    NOPE8_TOKEN_BYTES,
    V4_FP8_DIMS,
    V4_GROUP,
    V4_ROW_BYTES,
    V4_SCALE_BYTES,
    V4_TOKEN_BYTES,
    V41_GROUP,
    V41_SCALE_BYTES,
    V41_TOKEN_BYTES,
    require_layout,
    v41_parts,
)
from dsl_kernels.problems.mxfp4 import MXFP4_GROUP

# Caches are bytes, in any dtype of one byte.
BYTE_DTYPES = ("uint8", "int8", "float8_e4m3fn")


def power_of(scale: torch.Tensor) -> torch.Tensor:
    """UE8M0 bytes as float32: powers of two, and NaN for 255."""
    powers = torch.exp2(scale.double() - 127)
    return torch.where(scale == 255, torch.nan, powers).float()


@checked
def unpack_index_keys(
    cache: torch.Tensor, page_size: int = 64, dim: int = INDEX_DIM
) -> tuple[torch.Tensor, torch.Tensor]:
    """Split a paged cache of index keys into values and scales.

    Args:
        cache: bytes, [pages, page_size, 1, dim + 4] or [pages, page_size * (dim + 4)].
        page_size: tokens of a page, at most 2^20.
        dim: dims of a key, at most 1024.

    Returns:
        float8_e4m3fn values [pages, page_size, dim] and float32 scales [pages, page_size].

    Raises:
        ArgumentTypeError, InvalidArgumentError: `cache` has another dtype or shape, or a size is out of
            range.
    """
    require_range("page_size", page_size, 1, 1 << 20)
    require_range("dim", dim, 1, 1 << 10)
    width = page_size * (dim + 4)
    if cache.dim() == 4:
        require_layout("cache", cache, ("pages", page_size, 1, dim + 4), BYTE_DTYPES)
    else:
        require_layout("cache", cache, ("pages", width), BYTE_DTYPES)
    pages, split = cache.shape[0], page_size * dim
    flat = cache.view(torch.uint8).reshape(pages, width)
    values = flat[:, :split].contiguous().view(torch.float8_e4m3fn)
    scales = flat[:, split:].contiguous().view(torch.float32)
    return values.view(pages, page_size, dim), scales.view(pages, page_size)


@checked
def unpack_fp8_tokens(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Dequantise 656-byte tokens.

    Args:
        tokens: [n, 656] bytes.

    Returns:
        The latent [n, 512] float32, fp8 value times scale, and the rope values [n, 64] bfloat16.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `tokens` has another dtype or shape, or is an expanded
            tensor.
    """
    require_layout("tokens", tokens, ("n", FP8_TOKEN_BYTES), BYTE_DTYPES)
    tokens = tokens.view(torch.uint8)
    rope = tokens[:, NOPE8_TOKEN_BYTES:].contiguous().view(torch.bfloat16)
    return unpack_nope8_tokens(tokens[:, :NOPE8_TOKEN_BYTES]), rope


@checked
def unpack_nope8_tokens(tokens: torch.Tensor) -> torch.Tensor:
    """Dequantise 528-byte tokens without rope.

    Args:
        tokens: [n, 528] bytes.

    Returns:
        The latent [n, 512] float32, fp8 value times scale.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `tokens` has another dtype or shape, or is an expanded
            tensor.
    """
    require_layout("tokens", tokens, ("n", NOPE8_TOKEN_BYTES), BYTE_DTYPES)
    n, tokens = tokens.shape[0], tokens.view(torch.uint8)
    values = tokens[:, :LATENT_DIM].contiguous().view(torch.float8_e4m3fn).float().view(n, 4, 128)
    scale = tokens[:, LATENT_DIM:].contiguous().view(torch.float32)
    return (values * scale[..., None]).view(n, LATENT_DIM)


@checked
def unpack_v4_pages(cache: torch.Tensor) -> torch.Tensor:
    """Dequantise a paged cache of DeepSeek-V4.

    Args:
        cache: [pages, page_size, 1, 584] bytes.

    Returns:
        The rows [pages, page_size, 512] float32; a scale byte of 255 gives NaN.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `cache` has another dtype or shape.
    """
    require_layout("cache", cache, ("pages", "page_size", 1, V4_TOKEN_BYTES), BYTE_DTYPES)
    pages, size = cache.shape[:2]
    flat = cache.view(torch.uint8).reshape(pages, size * V4_TOKEN_BYTES)
    data = flat[:, : size * V4_ROW_BYTES].reshape(pages, size, V4_ROW_BYTES)
    scales = flat[:, size * V4_ROW_BYTES :].reshape(pages, size, V4_SCALE_BYTES)[..., :-1]
    values = data[..., :V4_FP8_DIMS].contiguous().view(torch.float8_e4m3fn).float()
    rows = torch.empty(pages, size, LATENT_DIM, dtype=torch.float32, device=cache.device)
    values = values.view(pages, size, -1, V4_GROUP) * power_of(scales)[..., None]
    rows[..., :V4_FP8_DIMS] = values.flatten(2)
    rows[..., V4_FP8_DIMS:] = data[..., V4_FP8_DIMS:].contiguous().view(torch.bfloat16).float()
    return rows


@checked
def unpack_v41_pages(cache: torch.Tensor, *, planar: bool = False) -> torch.Tensor:
    """Dequantise a paged cache of DeepSeek-V4.1.

    Args:
        cache: [pages, page_size, 1, 528] bytes.
        planar: as in `pack_v41_pages`.

    Returns:
        The rows [pages, page_size, 512] float32; a scale byte of 255 gives NaN.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `cache` has another dtype or shape.
    """
    require_layout("cache", cache, ("pages", "page_size", 1, V41_TOKEN_BYTES), BYTE_DTYPES)
    pages, size = cache.shape[:2]
    flat = cache.view(torch.uint8).reshape(pages, size * V41_TOKEN_BYTES)
    data, scales = v41_parts(flat, size, planar=planar)
    values = data.contiguous().view(torch.float8_e4m3fn).float()
    return (values.unflatten(2, (V41_SCALE_BYTES, V41_GROUP)) * power_of(scales)[..., None]).flatten(2)


@checked
def mxfp4_of(pairs: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The float32 values [..., dim] of what `quantise_mxfp4` gives; NaN where a scale's byte is 255.

    Args:
        pairs: [..., dim / 2] uint8.
        scales: [..., dim / 128] int32, or [...] where a row has 128 dims.
    """
    factors = power_of(scales.contiguous().view(torch.uint8).view(*pairs.shape[:-1], -1)).double()
    return (e2m1_of(pairs).double() * factors.repeat_interleave(MXFP4_GROUP, -1)).float()
