"""Cache layouts, packed in torch: index keys of 132 bytes, fp8 tokens of 656, 528 and 584 bytes.

- 132 bytes, index keys: a page is block-planar, first the 128 fp8 bytes of each of its tokens, then their
fp32
  scales.
- 656 bytes: a token is interleaved, 512 fp8 bytes, four fp32 scales (one for 128 dims), 64 bf16 rope values.
A
  528-byte token without rope ends before the rope values.
- 584 bytes, DeepSeek-V4: a page is block-planar, first rows of 448 fp8 bytes and 64 bf16 rope values, then 8
  bytes a token, seven of which are UE8M0 scales (one for 64 dims).
- 528 bytes, DeepSeek-V4.1: 512 fp8 bytes and 16 UE8M0 scales (one for 32 dims), interleaved or block-planar.
"""

from __future__ import annotations

from .._torch import torch
from ..arguments import checked
from ..errors import ArgumentTypeError, InvalidArgumentError

INDEX_DIM = 128
LATENT_DIM = 512
ROPE_DIM = 64
NOPE8_TOKEN_BYTES = LATENT_DIM + 4 * 4
FP8_TOKEN_BYTES = NOPE8_TOKEN_BYTES + 2 * ROPE_DIM
# DeepSeek-V4: bytes of a token's fp8 and bf16 values, bytes of its scales, fp8 dims, and dims of a scale.
V4_ROW_BYTES, V4_SCALE_BYTES, V4_FP8_DIMS, V4_GROUP = 576, 8, LATENT_DIM - ROPE_DIM, 64
V4_TOKEN_BYTES = V4_ROW_BYTES + V4_SCALE_BYTES
# DeepSeek-V4.1: the dims that share a scale, and bytes of a token's scales.
V41_GROUP = 32
V41_SCALE_BYTES = LATENT_DIM // V41_GROUP
V41_TOKEN_BYTES = LATENT_DIM + V41_SCALE_BYTES
E4M3_MAX = 448.0

_FLOATS = ("float32", "bfloat16", "float16", "float64")


@checked
def pack_index_keys(keys: torch.Tensor) -> torch.Tensor:
    """Quantise index keys into the paged cache.

    Args:
        keys: [pages, page_size, dim] floating point; DeepSeek's dim is 128.

    Returns:
        [pages, page_size, 1, dim + 4] uint8, block-planar. The scale of a token is max(|k|, 1e-4) / 448.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `keys` has another dtype or rank, or is an expanded tensor.
    """
    require_layout("keys", keys, ("pages", "page_size", "dim"), _FLOATS)
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
def pack_fp8_tokens(latent: torch.Tensor, rope: torch.Tensor, *, raw_scales: bool = False) -> torch.Tensor:
    """Quantise a latent cache and rope values into 656-byte tokens.

    Args:
        latent: [n, 512] floating point.
        rope: [n, 64] floating point, on the same device; stored as bfloat16.
        raw_scales: keep each scale as max(|x|, 1e-4) / 448 over its 128 dims, as in vLLM's cache. By default
            the scale is rounded up to a power of two, as FlashMLA's reference quantiser does, so that
            dequantising to bf16 is exact.

    Returns:
        [n, 656] uint8.

    Raises:
        ArgumentTypeError, InvalidArgumentError: a tensor has another dtype, shape or device, or is expanded.
    """
    require_layout("latent", latent, ("n", LATENT_DIM), _FLOATS)
    require_layout("rope", rope, (latent.shape[0], ROPE_DIM), _FLOATS)
    if rope.device != latent.device:
        raise InvalidArgumentError(
            "rope",
            expected=f"device {latent.device} like latent",
            got=str(rope.device),
            fix="move it with .to(...)",
        )
    token = latent.new_empty((latent.shape[0], FP8_TOKEN_BYTES), dtype=torch.uint8)
    token[:, :NOPE8_TOKEN_BYTES] = pack_nope8_tokens(latent, raw_scales=raw_scales)
    token[:, NOPE8_TOKEN_BYTES:] = rope.to(torch.bfloat16).contiguous().view(torch.uint8)
    return token


@checked
def pack_nope8_tokens(latent: torch.Tensor, *, raw_scales: bool = False) -> torch.Tensor:
    """Quantise a latent cache without rope into 528-byte tokens: V32_NO_ROPE of FlashMLA and SGLang.

    Tokens of DeepSeek-V4.1 have 528 bytes too, but other scales: see `pack_v41_pages`.

    Args:
        latent: [n, 512] floating point.
        raw_scales: as in `pack_fp8_tokens`.

    Returns:
        [n, 528] uint8.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `latent` has another dtype or shape, or is an expanded
            tensor.
    """
    require_layout("latent", latent, ("n", LATENT_DIM), _FLOATS)
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
def pack_v4_pages(rows: torch.Tensor) -> torch.Tensor:
    """Quantise rows of DeepSeek-V4 into its paged cache, as FlashMLA's MODEL1 quantiser does.

    Args:
        rows: [pages, page_size, 512] floating point; the last 64 dims are stored as bfloat16.

    Returns:
        [pages, page_size, 1, 584] uint8, block-planar; the stride of pages is a multiple of 576 bytes. The
        shape is nominal: token t of a page does not start at byte 584 t.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `rows` has another dtype or shape, or is an expanded tensor.
    """
    require_layout("rows", rows, ("pages", "page_size", LATENT_DIM), _FLOATS)
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
def pack_v41_pages(rows: torch.Tensor, *, planar: bool = False) -> torch.Tensor:
    """Quantise rows into the paged cache of DeepSeek-V4.1.

    Args:
        rows: [pages, page_size, 512] floating point.
        planar: a page has the values of all its tokens first and then their scales, and the stride of pages
            is a multiple of 512 bytes. Otherwise each token's scales follow its values, as in FlashMLA since
            2026-09-30.

    Returns:
        [pages, page_size, 1, 528] uint8. The shape of planar pages is nominal: token t of a page does not
        start at byte 528 t.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `rows` has another dtype or shape, or is an expanded tensor.
    """
    require_layout("rows", rows, ("pages", "page_size", LATENT_DIM), _FLOATS)
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
    """Views of values [pages, size, 512] and scales [pages, size, 16] in bytes [pages, size * 528]."""
    if planar:
        split = size * LATENT_DIM
        return pages[:, :split].unflatten(1, (size, LATENT_DIM)), pages[:, split:].unflatten(
            1, (size, V41_SCALE_BYTES)
        )
    tokens = pages.unflatten(1, (size, V41_TOKEN_BYTES))
    return tokens[..., :LATENT_DIM], tokens[..., LATENT_DIM:]


def require_layout(
    name: str, tensor: torch.Tensor, shape: tuple[str | int, ...], dtypes: tuple[str, ...]
) -> None:
    """Require one of these dtypes, this shape (a string is any extent) and memory for each element."""
    if str(tensor.dtype).removeprefix("torch.") not in dtypes:
        raise ArgumentTypeError(
            name,
            expected="dtype " + " or ".join(dtypes),
            got=str(tensor.dtype),
            fix="convert it with .to(...), or reinterpret its bits with .view(...)",
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
            expected="memory for each element",
            got=f"an expanded tensor of shape {tuple(tensor.shape)}",
            fix="call .contiguous()",
        )
