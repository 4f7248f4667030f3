"""vLLM's sparse indexer with our decode scoring and our selection, if our attention backend is chosen.

The layer is a subclass of vLLM's, put in place through vLLM's registry of replaced layers; writing the cache,
gathering and merging stay vLLM's. It marks its selection as ours and replaces three functions that vLLM's op
calls. Each falls back to vLLM's for what our ops refuse. A prompt is still scored by DeepGEMM, because vLLM
wants its scores compressed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from vllm.model_executor.custom_op import CustomOp
from vllm.model_executor.layers import sparse_attn_indexer as layers

from ...compat import deep_gemm, vllm_topk
from ...kernels.topk_selector.op import MAX_K
from ...problems.layouts import INDEX_DIM
from .._seams import Taken
from . import BACKEND, PROMPTS, SCORES, SELECTION, log

# The layer's `topk_backend`.
SELECTS = "dsl_kernels"


class DslKernelsSparseAttnIndexer(layers.SparseAttnIndexer):
    """The layer, which takes over at its creation if the backend was chosen and its sizes are served."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        chosen = layers.get_current_vllm_config().attention_config.backend
        if chosen is None or chosen.name != BACKEND:
            return
        reason = not_served(self)
        if reason is not None:
            log.warning("dsl_kernels leaves the indexer to vLLM: %s", reason)
            return
        take_over()
        self.topk_backend = SELECTS


def not_served(layer: Any) -> str | None:
    """Why a layer stays vLLM's, or None."""
    if layers.mqa_logits_use_mx_scales():
        return "its cache has MX scales on this GPU"
    if layer.use_fp4_cache:
        return "its cache is fp4"
    if layer.candidate_blocks is not None:
        return "it selects blocks before tokens"
    if layer.dcp_world_size > 1 or layer.use_pcp:
        return "a context is spread over ranks"
    if layer.head_dim != INDEX_DIM:
        return f"its keys have {layer.head_dim} dims, not {INDEX_DIM}"
    if not 1 <= layer.topk_tokens <= MAX_K:
        return f"it selects {layer.topk_tokens} tokens, not 1 to {MAX_K}"
    return None


def scores(
    q: Any,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_tables: torch.Tensor,
    schedule_metadata: torch.Tensor,
    max_model_len: int,
    indices: torch.Tensor | None = None,
) -> torch.Tensor:
    """Scores of a decode step, as vLLM's `fp8_fp4_paged_mqa_logits`."""
    return deep_gemm.fp8_fp4_paged_mqa_logits(
        q, kv_cache, weights, context_lens, block_tables, schedule_metadata, max_model_len, indices=indices
    )


def select(
    logits: torch.Tensor,
    seq_lens: torch.Tensor,
    next_n: int,
    topk_indices: torch.Tensor,
    topk_tokens: int,
    max_seq_len: int,
) -> None:
    """The selection of a decode step, as vLLM's `SparseIndexerTopk`."""
    rows, (apart, dense) = logits.shape[0], logits.stride()
    # vLLM passes a length for every row as 2-D, and one for the last row of each sequence as 1-D.
    lengths = seq_lens if seq_lens.dim() == 2 and seq_lens.numel() == rows else seq_lens.reshape(-1)
    vllm_topk.top_k_per_row_decode(logits, next_n, lengths, topk_indices, rows, apart, dense, topk_tokens)


def select_prompt(
    logits: torch.Tensor,
    cu_seqlen_ks: torch.Tensor,
    cu_seqlen_ke: torch.Tensor,
    raw_topk_indices: torch.Tensor,
    num_rows: int,
    stride0: int,
    stride1: int,
    topk_tokens: int,
) -> None:
    """The selection of a prompt, as `vllm._custom_ops.top_k_per_row_prefill`."""
    vllm_topk.top_k_per_row_prefill(
        logits, cu_seqlen_ks, cu_seqlen_ke, raw_topk_indices, num_rows, stride0, stride1, topk_tokens
    )


def selection(theirs: Callable[[str], Any]) -> Callable[[str], Any]:
    """vLLM's look-up of a selection by name, extended by ours."""
    ours = Taken("selection of a decode step", select, log)
    return lambda backend: ours.instead_of(theirs("auto")) if backend == SELECTS else theirs(backend)


# The functions of vLLM to replace, by path, each with what makes our replacement from vLLM's function.
SEAMS: dict[str, Callable[[Any], Any]] = {
    SCORES: Taken("scoring of a decode step", scores, log).instead_of,
    SELECTION: selection,
    PROMPTS: Taken("selection of a prompt", select_prompt, log).instead_of,
}

_taken: set[str] = set()


def take_over() -> None:
    """Replace vLLM's functions with ours, once per process."""
    if _taken:
        return
    for path, make in SEAMS.items():
        module, name = path.rsplit(".", 1)
        holder = importlib.import_module(module)
        setattr(holder, name, make(getattr(holder, name)))
        _taken.add(path)
    log.info("dsl_kernels scores and selects for the indexer: %s", ", ".join(sorted(_taken)))


def register() -> None:
    """Replace the layer in vLLM's registry."""
    CustomOp.register_oot(name="SparseAttnIndexer")(DslKernelsSparseAttnIndexer)
