"""Peers of dense attention: torch with cuDNN and with its flash kernels, FlashAttention 3, flash-attn-4."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from ..grids import Fixture, Point
from . import Contender, Offer, apart, own_or_of_vllm, version

Attend = Callable[[], torch.Tensor]


def _sdpa(backend: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Attend:
    """torch's attention with a backend; keys are repeated where the backend does not take grouped heads."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kind = getattr(SDPBackend, backend)
    repeat = q.shape[2] // k.shape[2]
    shared = [x.transpose(1, 2) for x in (q, k, v)]

    def call(operands: list[torch.Tensor], grouped: bool) -> torch.Tensor:
        with sdpa_kernel(kind):
            query, keys, values = operands
            out = torch.nn.functional.scaled_dot_product_attention(
                query, keys, values, is_causal=causal, enable_gqa=grouped
            )
        return out.transpose(1, 2)

    try:
        call(shared, True)
        return partial(call, shared, True)
    except RuntimeError:
        repeated = [shared[0], *(x.repeat_interleave(repeat, 2).transpose(1, 2) for x in (k, v))]
        call(repeated, False)
        return partial(call, repeated, False)


def _flash3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Attend:
    flash, _ = _package3()
    if hasattr(flash, "flash_attn_func"):
        return partial(_first, partial(flash.flash_attn_func, q, k, v, causal=causal))
    # vLLM's build has only the function for sequences of varying lengths.
    starts = [_starts(x.shape[0], x.shape[1], x.device) for x in (q, k)]
    call = partial(
        flash.flash_attn_varlen_func,
        *(x.flatten(0, 1) for x in (q, k, v)),
        max_seqlen_q=q.shape[1],
        cu_seqlens_q=starts[0],
        max_seqlen_k=k.shape[1],
        cu_seqlens_k=starts[1],
        causal=causal,
        fa_version=3,
    )
    return lambda: _first(call).view(q.shape)


def _package3() -> tuple[Any, str]:
    return own_or_of_vllm("flash_attn_interface", "vllm.vllm_flash_attn", "flash_attn_3", "flash-attn-3")


def _starts(batch: int, length: int, device: torch.device) -> torch.Tensor:
    return torch.arange(batch + 1, dtype=torch.int32, device=device) * length


def _flash4(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Attend:
    from flash_attn.cute import flash_attn_func

    return partial(_first, partial(flash_attn_func, q, k, v, causal=causal))


def _first(call: Callable[[], Any]) -> torch.Tensor:
    result: Any = call()
    out: torch.Tensor = result[0] if isinstance(result, tuple) else result
    return out


BUILDERS: dict[str, tuple[Callable[..., Attend], Callable[[], str]]] = {
    "torch cuDNN": (partial(_sdpa, "CUDNN_ATTENTION"), partial(version, "torch")),
    "torch flash": (partial(_sdpa, "FLASH_ATTENTION"), partial(version, "torch")),
    "FlashAttention 3": (_flash3, lambda: _package3()[1]),
    "flash-attn-4": (_flash4, partial(version, "flash-attn-4", "flash_attn")),
}
"""Peer -> a function from (q, k, v, causal) to its call, and one that gives its version."""


def _peer(name: str, point: Point, fixture: Fixture, ours: Sequence[Any]) -> Contender:
    build, version_of = BUILDERS[name]
    causal, sets = bool(point.params["causal"]), [call.args[0] for call in ours]
    calls = [build(*(each[x] for x in "qkv"), causal) for each in sets]
    return Contender(version_of(), calls, lambda: apart(calls[0](), sets[0]["out"]))


PEERS: dict[str, Offer] = {name: partial(_peer, name) for name in BUILDERS}
