"""Cache layouts: the 132-byte paged index keys and the 656-byte fp8 tokens, packed and unpacked in torch.

An index page is block-planar: the fp8 bytes of all its tokens first, then their fp32 scales. A 656-byte token is
interleaved: 512 fp8 bytes, four fp32 scales (one per 128 dims), 64 bf16 rope values.
"""

from __future__ import annotations

import torch

from ..errors import InvalidArgumentError

INDEX_DIM = 128
LATENT_DIM = 512
ROPE_DIM = 64
FP8_TOKEN_BYTES = LATENT_DIM + 4 * 4 + 2 * ROPE_DIM
E4M3_MAX = 448.0


def pack_index_keys(keys: torch.Tensor) -> torch.Tensor:
    """Quantise index keys into the paged cache.

    Args:
        keys: [pages, page_size, 128] floating point.

    Returns:
        [pages, page_size, 1, 132] uint8, block-planar: scale = max(|k|, 1e-4) / 448 per token.
    """
    if keys.dim() != 3 or keys.shape[2] != INDEX_DIM:
        raise InvalidArgumentError(
            "keys",
            expected="shape [pages, page_size, 128]",
            got=str(tuple(keys.shape)),
            fix="reshape the keys to pages",
        )
    pages, page_size, _ = keys.shape
    scale = keys.float().abs().amax(dim=2).clamp(min=1e-4) / E4M3_MAX
    quantised = (keys.float() * (1.0 / scale)[..., None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    cache = torch.empty(pages, page_size * (INDEX_DIM + 4), dtype=torch.uint8, device=keys.device)
    cache[:, : page_size * INDEX_DIM] = quantised.view(torch.uint8).view(pages, -1)
    cache[:, page_size * INDEX_DIM :] = scale.contiguous().view(torch.uint8).view(pages, -1)
    return cache.view(pages, page_size, 1, INDEX_DIM + 4)


def unpack_index_keys(cache: torch.Tensor, page_size: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    """The fp8 values [pages, page_size, 128] and the fp32 scales [pages, page_size] of a paged cache."""
    flat = cache.reshape(cache.shape[0], page_size * (INDEX_DIM + 4))
    split = page_size * INDEX_DIM
    values = flat[:, :split].contiguous().view(torch.float8_e4m3fn).view(-1, page_size, INDEX_DIM)
    scales = flat[:, split:].contiguous().view(torch.float32).view(-1, page_size)
    return values, scales


def pack_fp8_tokens(latent: torch.Tensor, rope: torch.Tensor, *, raw_scales: bool = False) -> torch.Tensor:
    """Quantise a latent cache [n, 512] and rope [n, 64] into [n, 656] uint8 tokens.

    The scale of each 128 dims is rounded up to a power of two, as FlashMLA's reference quantiser does, so that
    dequantising to bf16 is exact. With `raw_scales` it is max(|x|, 1e-4) / 448 as it comes, which vLLM's cache holds.
    """
    groups = latent.float().view(-1, 4, 128)
    scale = groups.abs().amax(dim=2).clamp(min=1e-4) / E4M3_MAX
    if not raw_scales:
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    token = torch.empty(latent.shape[0], FP8_TOKEN_BYTES, dtype=torch.uint8, device=latent.device)
    values = (groups / scale[..., None]).clamp(-E4M3_MAX, E4M3_MAX)
    token[:, :512] = values.to(torch.float8_e4m3fn).view(torch.uint8).view(-1, 512)
    token[:, 512:528] = scale.contiguous().view(torch.uint8)
    token[:, 528:] = rope.to(torch.bfloat16).contiguous().view(torch.uint8)
    return token


def unpack_fp8_tokens(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The latent [n, 512] in float32 (fp8 value times scale) and the rope [n, 64] in bf16 of 656-byte tokens."""
    values = tokens[:, :512].contiguous().view(torch.float8_e4m3fn).float().view(-1, 4, 128)
    scale = tokens[:, 512:528].contiguous().view(torch.float32)
    return (values * scale[..., None]).view(-1, 512), tokens[:, 528:].contiguous().view(torch.bfloat16)
