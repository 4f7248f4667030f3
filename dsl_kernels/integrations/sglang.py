"""SGLang's plugin: hooks on the kernels of DeepSeek Sparse Attention (SGLang 0.5.23).

`register` is the entry point of the group `sglang.srt.plugins`. SGLang loads every installed plugin, so this
one only hooks anything if `SGLANG_PLUGINS` names it (`dsl_kernels`). Each hook falls back to SGLang's own
function for what our ops refuse.
"""

from __future__ import annotations

import logging
import os
import pkgutil
from collections.abc import Callable
from typing import Any

import torch

from ..arguments import require
from ..compat import deep_gemm, sgl_topk
from ..ops import sparse_mla, topk_selector
from ..problems.layouts import FP8_TOKEN_BYTES, LATENT_DIM
from ._seams import Seam, Taken, mismatch

# The plugin's name in `SGLANG_PLUGINS`.
NAME = "dsl_kernels"

log = logging.getLogger("dsl_kernels.integrations.sglang")

_BACKEND = "sglang.srt.layers.attention.dsa_backend.DeepseekSparseAttnBackend"
_TOPK = "sglang.srt.layers.attention.dsa.dsa_topk_backend"
_UTILS = "sglang.srt.layers.attention.dsa.utils"

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
    """`_forward_flashmla_sparse`: bf16 rows, unpadded heads; ids of -1 are padding, lengths are not read."""
    _require_values(v_head_dim)
    return sparse_mla(q_all, None, kv_cache, page_table_1, sm_scale=sm_scale, attn_sink=attn_sink)[0]


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


def _returned(what: str, ours: Callable[..., Any]) -> Callable[..., Any]:
    """A hook on an SGLang function that returns the function to call."""
    taken = Taken(what, ours, log)
    return lambda theirs: taken.instead_of(theirs())


def _taken(what: str, ours: Callable[..., Any]) -> Callable[..., Any]:
    return Taken(what, ours, log)


# The functions of SGLang to hook, each with our function, which gets SGLang's as its first argument.
HOOKS: tuple[tuple[Seam, Callable[..., Any]], ...] = (
    (
        Seam(
            f"{_BACKEND}._forward_flashmla_sparse",
            "q_all kv_cache v_head_dim page_table_1 sm_scale topk_length attn_sink",
        ),
        _taken("attention over bf16 rows", attend_rows),
    ),
    (
        Seam(
            f"{_BACKEND}._forward_flashmla_kv",
            "q_all kv_cache v_head_dim sm_scale layer metadata page_table_1",
        ),
        _taken("attention over fp8 rows", attend_pages),
    ),
    (
        Seam(f"{_TOPK}._topk_transform_v2_paged", "logits lengths topk attn_metadata"),
        _taken("selection through a page table", select_pages),
    ),
    (
        Seam(f"{_TOPK}._topk_transform_v2_ragged", "logits lengths topk topk_indices_offset row_starts"),
        _taken("selection of a prompt", select_ragged),
    ),
    (
        Seam("sgl_kernel.fast_topk_v2", "score lengths topk row_starts"),
        _taken("selection", sgl_topk.fast_topk_v2),
    ),
    (
        Seam(
            "sgl_kernel.fast_topk_transform_fused",
            "score lengths page_table_size_1 cu_seqlens_q topk row_starts",
        ),
        _taken("selection through a table of tokens", sgl_topk.fast_topk_transform_fused),
    ),
    (
        Seam(
            "sgl_kernel.fast_topk_transform_ragged_fused", "score lengths topk_indices_offset topk row_starts"
        ),
        _taken("selection with offsets", sgl_topk.fast_topk_transform_ragged_fused),
    ),
    (
        Seam(f"{_UTILS}.resolve_fp8_paged_mqa_logits_fn", ""),
        _returned("scoring of a decode step", deep_gemm.fp8_paged_mqa_logits),
    ),
    (
        Seam(f"{_UTILS}.resolve_fp8_mqa_logits_fn", ""),
        _returned("scoring of a prompt", deep_gemm.fp8_mqa_logits),
    ),
)


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
