"""SGLang's plugin: hooks on the kernels of DeepSeek Sparse Attention (SGLang 0.5.23).

`register` is the entry point of the group `sglang.srt.plugins`. SGLang loads every installed plugin, so this
one only hooks anything if `SGLANG_PLUGINS` names it (`dsl_kernels`). Each hook falls back to SGLang's own
function for what our ops refuse.
"""

from __future__ import annotations

import logging
import math
import os
import pkgutil
from collections.abc import Callable
from typing import Any

import torch

from ..arguments import require
from ..compat import deep_gemm, flash_mla, sgl_topk
from ..ops import sparse_mla, topk_selector
from ..problems.layouts import FP8_TOKEN_BYTES, LATENT_DIM, V4_TOKEN_BYTES, V41_TOKEN_BYTES
from ._seams import Seam, Taken, mismatch

# The plugin's name in `SGLANG_PLUGINS`.
NAME = "dsl_kernels"

log = logging.getLogger("dsl_kernels.integrations.sglang")

_BACKEND = "sglang.srt.layers.attention.dsa_backend.DeepseekSparseAttnBackend"
_TOPK = "sglang.srt.layers.attention.dsa.dsa_topk_backend"
_UTILS = "sglang.srt.layers.attention.dsa.utils"
_FLASH_MLA = "sglang.kernels.ops.attention.flash_mla_interface"

ENGINE = (
    Seam("sglang.srt.plugins.hook_registry.HookRegistry.register", "target hook hook_type source"),
    Seam("sglang.srt.plugins.hook_registry.HookType"),
)


def attend_rows(
    backend: Any,
    q_all: torch.Tensor,
    kv_cache: torch.Tensor,
    v_head_dim: int,
    page_table_1: torch.Tensor,
    sm_scale: float,
    topk_length: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
) -> torch.Tensor:
    """`_forward_flashmla_sparse`: bf16 rows, unpadded heads.

    As in SGLang, lengths are read only if each query has one. Ids of -1 are padding as well.
    """
    _require_values(v_head_dim)
    fits = topk_length is not None and len(topk_length) == len(q_all)
    return sparse_mla(
        q_all, None, kv_cache, page_table_1, sm_scale=sm_scale, attn_sink=attn_sink,
        topk_length=topk_length if fits else None,
    )[0]  # fmt: skip


def attend_pages(
    backend: Any,
    q_all: torch.Tensor,
    kv_cache: torch.Tensor,
    v_head_dim: int,
    sm_scale: float,
    layer: Any,
    metadata: Any,
    page_table_1: torch.Tensor,
) -> torch.Tensor:
    """`_forward_flashmla_kv`: 656-byte rows, unpadded heads."""
    _require_values(v_head_dim)
    fits = backend.dsa_kv_cache_store_fp8 and backend.kv_cache_dim == FP8_TOKEN_BYTES
    require("kv_cache", fits, f"fp8 rows of {FP8_TOKEN_BYTES} bytes", f"{backend.kv_cache_dim}", "none")
    q = q_all.view(-1, layer.tp_q_head_num, layer.head_dim)
    rows = kv_cache.view(-1, backend.kv_cache_dim)
    return sparse_mla(q, None, rows, page_table_1, sm_scale=sm_scale)[0].unsqueeze(1)


def attend_v4(
    q: torch.Tensor, k_cache: torch.Tensor, *args: Any, use_legacy: bool = True, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """`flash_mla_with_kvcache` of DeepSeek-V4 and V4.1; legacy pages of V4.1 have their scales together."""
    width = k_cache.shape[-1]
    served = width == V4_TOKEN_BYTES or (width == V41_TOKEN_BYTES and not use_legacy)
    others = [kwargs.pop(name, None) for name in ("kv_format", "descale_q", "descale_k")]
    # By position, SGLang's arguments after `causal` are others than FlashMLA's.
    fits = served and not args and all(other is None for other in others)
    require("k_cache", fits, "bytes of DeepSeek-V4, or of V4.1 token by token", f"{width} bytes", "none")
    return flash_mla.flash_mla_with_kvcache(q, k_cache, **kwargs)


def attend_v4_prompt(
    q: torch.Tensor, kv: torch.Tensor, indices: torch.Tensor, sm_scale: float, d_v: int = LATENT_DIM,
    attn_sink: torch.Tensor | None = None, topk_length: torch.Tensor | None = None, *,
    use_legacy: bool = True,
) -> tuple[torch.Tensor, None, torch.Tensor]:  # fmt: skip
    """`flash_mla_sparse_fwd`: flat bf16 rows; SGLang drops the largest logits, which are None here."""
    _require_values(d_v)
    out, lse = sparse_mla(
        q, None, kv, indices[:, 0], sm_scale=sm_scale, topk_length=topk_length, attn_sink=attn_sink,
        lse_base="2" if use_legacy else "e", empty_lse=math.inf,
    )  # fmt: skip
    return out, None, lse


def select_pages(logits: torch.Tensor, lengths: torch.Tensor, topk: int, attn_metadata: Any) -> torch.Tensor:
    """`_topk_transform_v2_paged`: ids of tokens through the page table; the metadata's plan is not read."""
    return topk_selector(
        logits, lengths, topk, block_table=attn_metadata.real_page_table, page_size=attn_metadata.page_size
    )


def select_ragged(
    logits: torch.Tensor,
    lengths: torch.Tensor,
    topk: int,
    topk_indices_offset: torch.Tensor,
    row_starts: torch.Tensor | None,
) -> torch.Tensor:
    """`_topk_transform_v2_ragged`; does not modify the scores."""
    return sgl_topk.fast_topk_transform_ragged_fused(logits, lengths, topk_indices_offset, topk, row_starts)


def _require_values(v_head_dim: int) -> None:
    require("v_head_dim", v_head_dim == LATENT_DIM, str(LATENT_DIM), str(v_head_dim), "none")


def _hook(path: str, parameters: str, what: str, ours: Callable[..., Any]) -> tuple[Seam, Taken]:
    return Seam(path, parameters), Taken(what, ours, log)


def _resolver(name: str, what: str, ours: Callable[..., Any]) -> tuple[Seam, Callable[..., Any]]:
    """A hook on an SGLang function that returns the function to call."""
    taken = Taken(what, ours, log)
    return Seam(f"{_UTILS}.{name}", ""), lambda theirs: taken.instead_of(theirs())


# The functions of SGLang to hook, each with our function, which gets SGLang's as its first argument.
HOOKS: tuple[tuple[Seam, Callable[..., Any]], ...] = (
    _hook(
        f"{_BACKEND}._forward_flashmla_sparse",
        "q_all kv_cache v_head_dim page_table_1 sm_scale topk_length attn_sink",
        "attention over bf16 rows", attend_rows,
    ),
    _hook(
        f"{_BACKEND}._forward_flashmla_kv",
        "q_all kv_cache v_head_dim sm_scale layer metadata page_table_1",
        "attention over fp8 rows", attend_pages,
    ),
    _hook(
        f"{_FLASH_MLA}.flash_mla_with_kvcache",
        "q k_cache block_table cache_seqlens head_dim_v tile_scheduler_metadata num_splits softmax_scale "
        "causal descale_q descale_k is_fp8_kvcache indices attn_sink extra_k_cache "
        "extra_indices_in_kvcache topk_length extra_topk_length kv_format use_legacy",
        "attention of DeepSeek-V4", attend_v4,
    ),
    _hook(
        f"{_FLASH_MLA}.flash_mla_sparse_fwd",
        "q kv indices sm_scale d_v attn_sink topk_length use_legacy",
        "attention of a prompt over flat rows", attend_v4_prompt,
    ),
    _hook(
        f"{_TOPK}._topk_transform_v2_paged", "logits lengths topk attn_metadata",
        "selection through a page table", select_pages,
    ),
    _hook(
        f"{_TOPK}._topk_transform_v2_ragged", "logits lengths topk topk_indices_offset row_starts",
        "selection of a prompt", select_ragged,
    ),
    _hook(
        "sgl_kernel.fast_topk_v2", "score lengths topk row_starts", "selection", sgl_topk.fast_topk_v2
    ),
    _hook(
        "sgl_kernel.fast_topk_transform_fused",
        "score lengths page_table_size_1 cu_seqlens_q topk row_starts",
        "selection through a table of tokens", sgl_topk.fast_topk_transform_fused,
    ),
    _hook(
        "sgl_kernel.fast_topk_transform_ragged_fused", "score lengths topk_indices_offset topk row_starts",
        "selection with offsets", sgl_topk.fast_topk_transform_ragged_fused,
    ),
    _resolver("resolve_fp8_paged_mqa_logits_fn", "scoring of a decode step", deep_gemm.fp8_paged_mqa_logits),
    _resolver("resolve_fp8_mqa_logits_fn", "scoring of a prompt", deep_gemm.fp8_mqa_logits),
)  # fmt: skip


def register() -> None:
    """If `SGLANG_PLUGINS` names the plugin, hook what matches this SGLang, and log what does not and why."""
    named = [name.strip() for name in os.environ.get("SGLANG_PLUGINS", "").split(",")]
    if NAME not in named:
        log.info("dsl_kernels takes over nothing: SGLANG_PLUGINS does not name %s", NAME)
        return
    reason = mismatch(ENGINE)
    if reason is not None:
        log.warning("dsl_kernels takes over nothing of this SGLang: %s", reason)
        return
    registry, kind = (pkgutil.resolve_name(seam.path) for seam in ENGINE)
    for seam, hook in HOOKS:
        reason = seam.mismatch()
        if reason is not None:
            log.warning("dsl_kernels leaves out a hook: %s", reason)
            continue
        registry(seam.path, hook, kind.AROUND)
        log.info("dsl_kernels takes over %s", seam.path)
