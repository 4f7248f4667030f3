"""MXFP4 in torch: numbers of 4 bits (e2m1), two in a byte, and a power of two (UE8M0) for each 32 of them.

An index key of 128 dims has 68 bytes. A page of the cache is block-planar: the pairs of all its tokens first,
then their scales.
"""

from __future__ import annotations

from .._torch import torch
from ..arguments import checked
from ..dtypes import e2m1_pairs
from ..errors import InvalidArgumentError
from .layouts import _FLOATS, INDEX_DIM, require_layout

E2M1_MAX = 6.0
MXFP4_GROUP = 32
"""Dims that share a scale."""


@checked
def quantise_mxfp4(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise rows into MXFP4: pairs of e2m1, and a power of two for each 32 dims.

    Args:
        values: [..., dim] floating point, dim a multiple of 128.

    Returns:
        [..., dim / 2] uint8, the even dim in a byte's lower half, and [..., dim / 128] int32, of which each
        holds the UE8M0 bytes of 128 dims, the first ones lowest. A scale is the least power of two from
        max(|x|, 1e-4) / 6 on, as DeepGEMM and vLLM choose it.
    """
    require_layout("values", values, (*(f"n{axis}" for axis in range(values.dim() - 1)), "dim"), _FLOATS)
    if values.shape[-1] % INDEX_DIM:
        raise InvalidArgumentError(
            "values", expected=f"a multiple of {INDEX_DIM} dims", got=f"shape {tuple(values.shape)}",
            fix="pad them with zeros",
        )  # fmt: skip
    blocks = values.float().unflatten(-1, (-1, MXFP4_GROUP))
    least = blocks.abs().amax(dim=-1).clamp(min=1e-4) / E2M1_MAX
    mantissa, exponent = torch.frexp(least)
    # frexp's mantissas are 0.5 and above: 0.5 is a power of two itself.
    power = (exponent - (mantissa == 0.5).int()).clamp(-127, 127)
    pairs = e2m1_pairs((blocks.double() * torch.exp2(-power.double())[..., None]).flatten(-2))
    scales = (power + 127).to(torch.uint8).contiguous().view(torch.int32)
    return pairs, scales


@checked
def pack_mxfp4_index_keys(keys: torch.Tensor) -> torch.Tensor:
    """Quantise index keys into the paged cache of MXFP4.

    Args:
        keys: [pages, page_size, 128] floating point.

    Returns:
        [pages, page_size, 1, 68] uint8, block-planar: 64 bytes of pairs a token, then four scales a token.
    """
    require_layout("keys", keys, ("pages", "page_size", INDEX_DIM), _FLOATS)
    pages, page_size, dim = keys.shape
    pairs, scales = quantise_mxfp4(keys)
    parts = (pairs.reshape(pages, -1), scales.contiguous().view(torch.uint8).reshape(pages, -1))
    return torch.cat(parts, dim=1).view(pages, page_size, 1, dim // 2 + dim // MXFP4_GROUP)
