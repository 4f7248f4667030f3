"""vLLM's plugin: the attention backend `DSLKERNELS_MLA_SPARSE` and, with it, the sparse indexer (vLLM 0.33).

Layers of DeepSeek-V4 and V4.1 have no backend in vLLM's registry; the backend's name chooses ours there, too.

`register` is the entry point of the group `vllm.general_plugins`. It changes nothing in an engine that does
not choose the backend (`--attention-backend DSLKERNELS_MLA_SPARSE`).
"""

from __future__ import annotations

import importlib
import logging

from .._seams import Seam, mismatch

BACKEND = "DSLKERNELS_MLA_SPARSE"

_SPARSE = "vllm.model_executor.layers.attention.sparse_mla_attention"
_UTILS = "vllm.v1.attention.backends.mla.sparse_utils"

# What the backend is made of.
ATTENTION = (
    Seam("vllm.v1.attention.backends.registry.AttentionBackendEnum"),
    Seam("vllm.v1.attention.backends.registry.register_backend", "backend class_path is_mamba"),
    Seam("vllm.v1.attention.backend.AttentionBackend"),
    Seam("vllm.v1.attention.backend.AttentionCGSupport"),
    Seam("vllm.v1.attention.backend.MultipleOf"),
    Seam("vllm.config.get_current_vllm_config_or_none", ""),
    Seam(f"{_SPARSE}.SparseMLACommonMetadata"),
    Seam(f"{_SPARSE}.SparseMLACommonMetadataBuilder", "kv_cache_spec layer_names vllm_config device"),
    Seam(
        f"{_SPARSE}.SparseMLACommonImpl._forward_mqa_kernel",
        "q kv_cache topk_indices valid_counts layer block_size is_decode",
    ),
    Seam(f"{_UTILS}.align_blocks_to_rows", "spec rows"),
    Seam(f"{_UTILS}.flat_kv_row_view", "kv_cache block_size"),
)

_LAYER = "vllm.model_executor.layers.sparse_attn_indexer"
SCORES, SELECTION = f"{_LAYER}.fp8_fp4_paged_mqa_logits", f"{_LAYER}.get_indexer_topk"
PROMPTS = "vllm._custom_ops.top_k_per_row_prefill"

# What the indexer's layer is made of.
INDEXER = (
    Seam("vllm.model_executor.custom_op.CustomOp.register_oot"),
    Seam(f"{_LAYER}.SparseAttnIndexer"),
    Seam(f"{_LAYER}.get_current_vllm_config", ""),
    Seam(f"{_LAYER}.mqa_logits_use_mx_scales", ""),
    Seam(SCORES, "q kv_cache weights context_lens block_tables schedule_metadata max_model_len indices"),
    Seam(SELECTION, "backend"),
    Seam(
        "vllm.model_executor.layers.indexer_topk.SparseIndexerTopk.forward",
        "logits seq_lens next_n topk_indices topk_tokens max_seq_len",
    ),
    Seam(PROMPTS, "logits cu_seqlen_ks cu_seqlen_ke raw_topk_indices num_rows stride0 stride1 topk_tokens"),
)

# How attention of DeepSeek-V4 gets its turn; what its layer is made of is looked up when a model needs it.
_REGISTRY = "vllm.model_executor.models.registry"
DEEPSEEK_V4 = (
    Seam(f"{_REGISTRY}.ModelRegistry"),
    Seam(f"{_REGISTRY}._BaseRegisteredModel.inspect_model_cls", ""),
    Seam(f"{_REGISTRY}._BaseRegisteredModel.load_model_cls", ""),
)

# A child of vLLM's logger, which configures where it writes.
log = logging.getLogger("vllm.dsl_kernels")


def register() -> None:
    """Register the backend and the layers with vLLM; on a mismatch, log why and change nothing."""
    for what, seams, module in (
        ("the attention backend", ATTENTION, "attention"),
        ("the indexer", INDEXER, "indexer"),
        ("attention of DeepSeek-V4", DEEPSEEK_V4, "deepseek_v4"),
    ):
        try:
            reason = mismatch(seams)
            if reason is None:
                importlib.import_module(f"{__name__}.{module}").register()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
        if reason is not None:
            log.warning("dsl_kernels does not offer %s to this vLLM: %s", what, reason)
