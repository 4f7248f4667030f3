"""vLLM's sparse MLA attention by `ops.sparse_mla`: bf16 and fp8_ds_mla caches, no padding of heads, no plan.

vLLM's base classes build the metadata, turn ids within requests into rows of the cache, and merge over ranks;
one call remains for this module. The rows' numbers include gaps between blocks, so the cache is one tensor of
rows. A model without rope dims (GLM-5.3) has bf16 rows of 512 dims; its 656-byte rows have zeros there.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers.attention.sparse_mla_attention import (
    SparseMLACommonImpl,
    SparseMLACommonMetadata,
    SparseMLACommonMetadataBuilder,
)
from vllm.v1.attention.backend import AttentionBackend, AttentionCGSupport, MultipleOf
from vllm.v1.attention.backends.mla.sparse_utils import align_blocks_to_rows, flat_kv_row_view
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

from ...ops import sparse_mla
from ...problems.layouts import LATENT_DIM, ROPE_DIM
from . import BACKEND

MOST_HEADS = 128
# Requests of at most this many queries attend by ids, as a decode step does; longer ones may go to dense MHA.
QUERIES_AS_DECODE = 128


@dataclass(kw_only=True)
class DslKernelsMetadata(SparseMLACommonMetadata):
    """The metadata of vLLM's base class; nothing is planned."""


class DslKernelsMetadataBuilder(SparseMLACommonMetadataBuilder[DslKernelsMetadata]):
    """The builder of vLLM's base class."""

    metadata_cls = DslKernelsMetadata
    _cudagraph_support: ClassVar[AttentionCGSupport] = AttentionCGSupport.UNIFORM_BATCH

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._init_reorder_batch_threshold(QUERIES_AS_DECODE, supports_spec_as_decode=True)


class DslKernelsImpl(SparseMLACommonImpl[DslKernelsMetadata]):
    """One call of `ops.sparse_mla` per layer. An empty row gives (0, -inf), the identity of a merge."""

    can_return_lse_for_decode: bool = True
    supports_dcp: bool = True
    supports_pcp: bool = False
    supports_mtp_with_cp_non_trivial_interleave_size: bool = True
    lse_base_on_e: bool = True

    def __init__(self, *args: Any, sinks: torch.Tensor | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        given = inspect.signature(super().__init__).bind(*args, **kwargs).arguments
        if any(given.get(name) for name in ("alibi_slopes", "sliding_window", "logits_soft_cap")):
            raise NotImplementedError(f"{BACKEND} has no alibi slopes, sliding window or soft cap of logits")
        if sinks is not None and self.dcp_world_size > 1:
            # Every rank would add the sink.
            raise NotImplementedError(f"{BACKEND} has no attention sinks with decode context parallelism")
        self.sinks = sinks
        # The cache has 64 rope dims that the model has not: both sides are zero.
        self.pads_rope = given["kv_cache_dtype"] == "fp8_ds_mla" and given.get("qk_rope_head_dim") == 0
        # vLLM's dense MHA has no sinks, and no memory for rows wider than the model's.
        self.supports_dense_mha_prefill = sinks is None and not self.pads_rope
        self.supports_quant_query_input = False

    def _forward_mqa_kernel(
        self, q: torch.Tensor | tuple[torch.Tensor, torch.Tensor], kv_cache: torch.Tensor,
        topk_indices: torch.Tensor, valid_counts: torch.Tensor, *, layer: Any, block_size: int,
        is_decode: bool,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
        q_nope, q_pe = q if isinstance(q, tuple) else (q, None)
        if self.pads_rope:
            q_pe = q_nope.new_zeros(*q_nope.shape[:2], ROPE_DIM)
        elif q_pe is not None and q_pe.shape[-1] == 0:
            q_pe = None
        rows, _ = flat_kv_row_view(kv_cache, block_size)
        # An id of -1 is padding at any position, so the counts are not needed.
        out, lse = sparse_mla(
            q_nope, q_pe, rows, topk_indices, sm_scale=self.scale, attn_sink=self.sinks, lse_base="e"
        )
        return out, lse if self.need_to_return_lse_for_decode else None


class DslKernelsBackend(AttentionBackend):
    """What vLLM asks a backend before choosing it."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "bfloat16", "fp8_ds_mla"]

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[Any]:
        return [MultipleOf(64)]

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        return align_blocks_to_rows(spec)

    @staticmethod
    def get_name() -> str:
        return BACKEND

    @staticmethod
    def get_builder_cls() -> type[DslKernelsMetadataBuilder]:
        return DslKernelsMetadataBuilder

    @staticmethod
    def get_impl_cls() -> type[DslKernelsImpl]:
        return DslKernelsImpl

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return [LATENT_DIM + ROPE_DIM, LATENT_DIM]

    @classmethod
    def is_mla(cls) -> bool:
        return True

    @classmethod
    def is_sparse(cls) -> bool:
        return True

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        return bool(capability.major == 9)

    @classmethod
    def supports_combination(
        cls, head_size: int, dtype: torch.dtype, kv_cache_dtype: Any, block_size: int | None, use_mla: bool,
        has_sink: bool, use_sparse: bool, use_mm_prefix: bool, device_capability: Any,
    ) -> str | None:  # fmt: skip
        config = get_current_vllm_config_or_none()
        if config is None or config.model_config is None:
            return None
        model, ranks = config.model_config, config.parallel_config.decode_context_parallel_size
        dims = tuple(
            getattr(model.hf_text_config, name, None) for name in ("kv_lora_rank", "qk_rope_head_dim")
        )
        if dims not in ((LATENT_DIM, ROPE_DIM), (LATENT_DIM, 0)):
            return (
                f"{BACKEND} takes kv_lora_rank {LATENT_DIM} and qk_rope_head_dim {ROPE_DIM} or 0, not {dims}"
            )
        # With context parallelism, each rank attends with the heads of all ranks.
        heads = model.get_num_attention_heads(config.parallel_config) * ranks
        if heads > MOST_HEADS:
            return f"{BACKEND} takes at most {MOST_HEADS} heads a rank, not {heads}"
        if has_sink and ranks > 1:
            return f"{BACKEND} has no attention sinks with decode context parallelism"
        return None


def register() -> None:
    """Register the backend for `--attention-backend`."""
    if BACKEND not in AttentionBackendEnum.__members__:
        register_backend(BACKEND, f"{__name__}.{DslKernelsBackend.__qualname__}")
