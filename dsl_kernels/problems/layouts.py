"""Cache layouts: the 132-byte paged index keys, and the 656-byte and 584-byte fp8 tokens, packed and unpacked in torch.

An index page is block-planar: the fp8 bytes of all its tokens first, then their fp32 scales. A 656-byte token is
interleaved: 512 fp8 bytes, four fp32 scales (one per 128 dims), 64 bf16 rope values; one of 528 bytes ends before the
rope values. Of 584-byte tokens (DeepSeek-V4) a page is block-planar again: rows of 448 fp8 bytes and 64 bf16 rope values,
then 8 bytes a token, of which seven are UE8M0 scales. DeepSeek-V4.1's tokens have 528 bytes too: 512 fp8 bytes and 16
UE8M0 scales, one per 32 dims, interleaved or block-planar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._discover import later
from ..arguments import checked, require_range
from ..errors import ArgumentTypeError, InvalidArgumentError

if TYPE_CHECKING:
    import torch
else:
    torch = later("torch", globals())

INDEX_DIM = 128
LATENT_DIM = 512
ROPE_DIM = 64
NOPE8_TOKEN_BYTES = LATENT_DIM + 4 * 4
FP8_TOKEN_BYTES = NOPE8_TOKEN_BYTES + 2 * ROPE_DIM
# DeepSeek-V4: a row of fp8 and of bf16 values, and what scales take.
V4_ROW_BYTES, V4_SCALE_BYTES, V4_FP8_DIMS, V4_GROUP = 576, 8, LATENT_DIM - ROPE_DIM, 64
V4_TOKEN_BYTES = V4_ROW_BYTES + V4_SCALE_BYTES
# DeepSeek-V4.1: the dims that share a scale, and what the scales of a token take.
V41_GROUP = 32
V41_SCALE_BYTES = LATENT_DIM // V41_GROUP
V41_TOKEN_BYTES = LATENT_DIM + V41_SCALE_BYTES
E4M3_MAX = 448.0

_FLOATS = ("float32", "bfloat16", "float16", "float64")
# Tokens and keys are bytes; caches come as any type of one byte.
BYTE_DTYPES = ("uint8", "int8", "float8_e4m3fn")


@checked
def pack_index_keys(keys: torch.Tensor) -> torch.Tensor:
    """Quantise index keys into the paged cache.

    Args:
        keys: [pages, page_size, dim] floating point, dim 128 or another one.

    Returns:
        [pages, page_size, 1, dim + 4] uint8, block-planar: scale = max(|k|, 1e-4) / 448 per token.
    """
    _require("keys", keys, ("pages", "page_size", "dim"), _FLOATS)
    pages, page_size, dim = keys.shape
    keys = keys.contiguous()
    scale = keys.float().abs().amax(dim=2).clamp(min=1e-4) / E4M3_MAX
    quantised = (keys.float() * (1.0 / scale)[..., None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    cache = torch.empty(pages, page_size * (dim + 4), dtype=torch.uint8, device=keys.device)
    split = page_size * dim
    cache[:, :split] = quantised.view(torch.uint8).view(pages, split)
    cache[:, split:] = scale.contiguous().view(torch.uint8).view(pages, page_size * 4)
    return cache.view(pages, page_size, 1, dim + 4)


@checked
def unpack_index_keys(
    cache: torch.Tensor, page_size: int = 64, dim: int = INDEX_DIM
) -> tuple[torch.Tensor, torch.Tensor]:
    """The fp8 values [pages, page_size, dim] and the fp32 scales [pages, page_size] of a paged cache.

    Args:
        cache: bytes, [pages, page_size, 1, dim + 4] or [pages, page_size * (dim + 4)].
    """
    require_range("page_size", page_size, 1, 1 << 20)
    require_range("dim", dim, 1, 1 << 10)
    width = page_size * (dim + 4)
    if cache.dim() == 4:
        _require("cache", cache, ("pages", page_size, 1, dim + 4), BYTE_DTYPES)
    else:
        _require("cache", cache, ("pages", width), BYTE_DTYPES)
    pages, split = cache.shape[0], page_size * dim
    flat = cache.view(torch.uint8).reshape(pages, width)
    values = flat[:, :split].contiguous().view(torch.float8_e4m3fn)
    scales = flat[:, split:].contiguous().view(torch.float32)
    return values.view(pages, page_size, dim), scales.view(pages, page_size)


@checked
def pack_fp8_tokens(latent: torch.Tensor, rope: torch.Tensor, *, raw_scales: bool = False) -> torch.Tensor:
    """Quantise a latent cache [n, 512] and rope [n, 64] into [n, 656] uint8 tokens.

    The scale of each 128 dims is rounded up to a power of two, as FlashMLA's reference quantiser does, so that
    dequantising to bf16 is exact. With `raw_scales` it is max(|x|, 1e-4) / 448 as it comes, which vLLM's cache holds.
    """
    _require("latent", latent, ("n", LATENT_DIM), _FLOATS)
    _require("rope", rope, (latent.shape[0], ROPE_DIM), _FLOATS)
    if rope.device != latent.device:
        raise InvalidArgumentError(
            "rope", expected=f"device {latent.device} like latent", got=str(rope.device), fix="move it"
        )
    token = latent.new_empty((latent.shape[0], FP8_TOKEN_BYTES), dtype=torch.uint8)
    token[:, :NOPE8_TOKEN_BYTES] = pack_nope8_tokens(latent, raw_scales=raw_scales)
    token[:, NOPE8_TOKEN_BYTES:] = rope.to(torch.bfloat16).contiguous().view(torch.uint8)
    return token


@checked
def pack_nope8_tokens(latent: torch.Tensor, *, raw_scales: bool = False) -> torch.Tensor:
    """Quantise a latent cache [n, 512] without rope into [n, 528] uint8 tokens, with scales as `pack_fp8_tokens` makes them.

    This is FlashMLA's and SGLang's V32_NO_ROPE. Rows of DeepSeek-V4.1 have as many bytes, and other scales.
    """
    _require("latent", latent, ("n", LATENT_DIM), _FLOATS)
    n = latent.shape[0]
    groups = latent.float().reshape(n, 4, 128)
    scale = groups.abs().amax(dim=2).clamp(min=1e-4) / E4M3_MAX
    if not raw_scales:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    token = torch.empty(n, NOPE8_TOKEN_BYTES, dtype=torch.uint8, device=latent.device)
    values = (groups / scale[..., None]).clamp(-E4M3_MAX, E4M3_MAX)
    token[:, :LATENT_DIM] = values.to(torch.float8_e4m3fn).view(torch.uint8).view(n, LATENT_DIM)
    token[:, LATENT_DIM:] = scale.contiguous().view(torch.uint8)
    return token


@checked
def unpack_fp8_tokens(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The latent [n, 512] in float32 (fp8 value times scale) and the rope [n, 64] in bf16 of 656-byte tokens."""
    _require("tokens", tokens, ("n", FP8_TOKEN_BYTES), BYTE_DTYPES)
    tokens = tokens.view(torch.uint8)
    rope = tokens[:, NOPE8_TOKEN_BYTES:].contiguous().view(torch.bfloat16)
    return unpack_nope8_tokens(tokens[:, :NOPE8_TOKEN_BYTES]), rope


@checked
def unpack_nope8_tokens(tokens: torch.Tensor) -> torch.Tensor:
    """The latent [n, 512] in float32 (fp8 value times scale) of 528-byte tokens without rope."""
    _require("tokens", tokens, ("n", NOPE8_TOKEN_BYTES), BYTE_DTYPES)
    n, tokens = tokens.shape[0], tokens.view(torch.uint8)
    values = tokens[:, :LATENT_DIM].contiguous().view(torch.float8_e4m3fn).float().view(n, 4, 128)
    scale = tokens[:, LATENT_DIM:].contiguous().view(torch.float32)
    return (values * scale[..., None]).view(n, LATENT_DIM)


@checked
def pack_v4_pages(rows: torch.Tensor) -> torch.Tensor:
    """Quantise rows of DeepSeek-V4 into its paged cache, as FlashMLA's MODEL1 quantiser does.

    Args:
        rows: [pages, page_size, 512] floating point, of which the last 64 dims stay bf16.

    Returns:
        [pages, page_size, 1, 584] uint8, block-planar, pages a multiple of 576 bytes apart. The shape is nominal: byte 584 t
        of a page is not the first one of token t.
    """
    _require("rows", rows, ("pages", "page_size", LATENT_DIM), _FLOATS)
    pages, size, _ = rows.shape
    groups = rows[..., :V4_FP8_DIMS].float().reshape(pages, size, -1, V4_GROUP)
    exponents = torch.ceil(torch.log2(groups.abs().amax(dim=3).clamp(min=1e-4) / E4M3_MAX))
    values = (groups / torch.exp2(exponents)[..., None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    stride = -(-size * V4_TOKEN_BYTES // V4_ROW_BYTES) * V4_ROW_BYTES
    flat = torch.zeros(pages, stride, dtype=torch.uint8, device=rows.device)
    data = flat[:, : size * V4_ROW_BYTES].view(pages, size, V4_ROW_BYTES)
    data[..., :V4_FP8_DIMS] = values.view(torch.uint8).view(pages, size, V4_FP8_DIMS)
    data[..., V4_FP8_DIMS:] = rows[..., V4_FP8_DIMS:].to(torch.bfloat16).contiguous().view(torch.uint8)
    scales = flat[:, size * V4_ROW_BYTES : size * V4_TOKEN_BYTES].view(pages, size, V4_SCALE_BYTES)
    scales[..., : exponents.shape[2]] = (exponents + 127).to(torch.uint8)
    return flat.as_strided((pages, size, 1, V4_TOKEN_BYTES), (stride, V4_TOKEN_BYTES, V4_TOKEN_BYTES, 1))


@checked
def unpack_v4_pages(cache: torch.Tensor) -> torch.Tensor:
    """The rows [pages, page_size, 512] in float32 of a paged cache [pages, page_size, 1, 584] of DeepSeek-V4."""
    _require("cache", cache, ("pages", "page_size", 1, V4_TOKEN_BYTES), BYTE_DTYPES)
    pages, size = cache.shape[:2]
    flat = cache.view(torch.uint8).reshape(pages, size * V4_TOKEN_BYTES)
    data = flat[:, : size * V4_ROW_BYTES].reshape(pages, size, V4_ROW_BYTES)
    scales = flat[:, size * V4_ROW_BYTES :].reshape(pages, size, V4_SCALE_BYTES)[..., :-1].float()
    factors = torch.where(scales == 255, torch.nan, torch.exp2(scales - 127))
    values = data[..., :V4_FP8_DIMS].contiguous().view(torch.float8_e4m3fn).float()
    found = torch.empty(pages, size, LATENT_DIM, dtype=torch.float32, device=cache.device)
    found[..., :V4_FP8_DIMS] = (values.view(pages, size, -1, V4_GROUP) * factors[..., None]).flatten(2)
    found[..., V4_FP8_DIMS:] = data[..., V4_FP8_DIMS:].contiguous().view(torch.bfloat16).float()
    return found


@checked
def pack_v41_pages(rows: torch.Tensor, *, planar: bool = False) -> torch.Tensor:
    """Quantise rows into the paged cache of DeepSeek-V4.1.

    Args:
        rows: [pages, page_size, 512] floating point.
        planar: the values of all tokens of a page first and their scales after those, in pages a multiple of 512 bytes
            apart; otherwise each token's scales follow its values, which is FlashMLA's arrangement since 2026-09-30.

    Returns:
        [pages, page_size, 1, 528] uint8. In planar pages the shape is nominal: byte 528 t of a page is not the first one of
        token t.
    """
    _require("rows", rows, ("pages", "page_size", LATENT_DIM), _FLOATS)
    pages, size, _ = rows.shape
    groups = rows.float().reshape(pages, size, V41_SCALE_BYTES, V41_GROUP)
    exponents = torch.ceil(torch.log2(groups.abs().amax(dim=3).clamp(min=1e-4) / E4M3_MAX))
    values = (groups / torch.exp2(exponents)[..., None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    used = size * V41_TOKEN_BYTES
    stride = -(-used // LATENT_DIM) * LATENT_DIM if planar else used
    flat = torch.zeros(pages, stride, dtype=torch.uint8, device=rows.device)
    data, scales = v41_parts(flat[:, :used], size, planar=planar)
    data.copy_(values.view(torch.uint8).view(pages, size, LATENT_DIM))
    scales.copy_((exponents + 127).to(torch.uint8))
    return flat.as_strided((pages, size, 1, V41_TOKEN_BYTES), (stride, V41_TOKEN_BYTES, V41_TOKEN_BYTES, 1))


def v41_parts(pages: torch.Tensor, size: int, *, planar: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of the values [pages, size, 512] and of the scales [pages, size, 16] in pages [pages, size * 528] of bytes."""
    if planar:
        split = size * LATENT_DIM
        return pages[:, :split].unflatten(1, (size, LATENT_DIM)), pages[:, split:].unflatten(
            1, (size, V41_SCALE_BYTES)
        )
    tokens = pages.unflatten(1, (size, V41_TOKEN_BYTES))
    return tokens[..., :LATENT_DIM], tokens[..., LATENT_DIM:]


@checked
def unpack_v41_pages(cache: torch.Tensor, *, planar: bool = False) -> torch.Tensor:
    """The rows [pages, page_size, 512] in float32 of a paged cache [pages, page_size, 1, 528] of DeepSeek-V4.1."""
    _require("cache", cache, ("pages", "page_size", 1, V41_TOKEN_BYTES), BYTE_DTYPES)
    pages, size = cache.shape[:2]
    flat = cache.view(torch.uint8).reshape(pages, size * V41_TOKEN_BYTES)
    data, scales = v41_parts(flat, size, planar=planar)
    exponents = scales.float()
    factors = torch.where(exponents == 255, torch.nan, torch.exp2(exponents - 127))
    values = data.contiguous().view(torch.float8_e4m3fn).float()
    return (values.unflatten(2, (V41_SCALE_BYTES, V41_GROUP)) * factors[..., None]).flatten(2)


def _require(name: str, tensor: torch.Tensor, shape: tuple[str | int, ...], dtypes: tuple[str, ...]) -> None:
    """The tensor has one of these types, this shape (a string is any extent) and an element of memory for each."""
    if str(tensor.dtype).removeprefix("torch.") not in dtypes:
        raise ArgumentTypeError(
            name,
            expected="dtype " + " or ".join(dtypes),
            got=str(tensor.dtype),
            fix="convert it with .to(...), or .view(...) where the bits are meant",
        )
    fits = all(isinstance(e, str) or e == a for e, a in zip(shape, tensor.shape, strict=False))
    if tensor.dim() != len(shape) or not fits:
        raise InvalidArgumentError(
            name,
            expected=f"shape [{', '.join(map(str, shape))}]",
            got=f"shape {tuple(tensor.shape)}",
            fix="reshape it with .view(...)",
        )
    if any(stride == 0 and extent > 1 for stride, extent in zip(tensor.stride(), tensor.shape, strict=True)):
        raise InvalidArgumentError(
            name,
            expected="an element of memory for each",
            got=f"an expanded tensor of shape {tuple(tensor.shape)}",
            fix="call .contiguous()",
        )
