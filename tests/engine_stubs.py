"""Stubs of vLLM and SGLang for the plugins; `scripts/engine_stubs.py` compares them with the sources."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypeVar

import torch

MODULES: dict[str, dict[str, Any]] = {}
"""For each module of an engine, its stubs by name."""

OBJECTS: dict[str, dict[str, Callable[[], Any]]] = {}
"""For each module of an engine, objects that are neither functions nor classes, by name."""

STATE = SimpleNamespace()
"""State that tests set and read.

`config` is vLLM's current one; `backends`, `layers` and `hooks` are filled by plugins; `calls` lists calls of
the engine's own functions."""


def clear() -> None:
    STATE.config, STATE.backends, STATE.layers, STATE.hooks, STATE.calls = None, {}, {}, {}, []


clear()


def of(module: str) -> Any:
    """Put a function or a class into a module of an engine."""

    def put(thing: Any) -> Any:
        MODULES.setdefault(module, {})[thing.__name__] = thing
        return thing

    return put


def modules(engine: str) -> dict[str, ModuleType]:
    """New modules of an engine, with their parent packages."""
    stubs: dict[str, ModuleType] = {}
    for name in (n for n in MODULES if n.split(".")[0] == engine):
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            path = ".".join(parts[:i])
            if path not in stubs:
                stubs[path] = ModuleType(path)
                stubs[path].__path__ = []
                if i > 1:
                    setattr(stubs[".".join(parts[: i - 1])], parts[i - 1], stubs[path])
        vars(stubs[name]).update(MODULES[name])
        vars(stubs[name]).update({key: make() for key, make in OBJECTS.get(name, {}).items()})
    return stubs


def install(monkeypatch: Any, engine: str) -> None:
    """Put an engine's stub modules in place of installed ones, and unload our plugins that import them."""
    clear()
    for name, module in modules(engine).items():
        monkeypatch.setitem(sys.modules, name, module)
    for name in [n for n in sys.modules if n.startswith("dsl_kernels.integrations.vllm.")]:
        monkeypatch.delitem(sys.modules, name)


T = TypeVar("T")


@of("vllm.config")
def get_current_vllm_config_or_none() -> Any:
    return STATE.config


@of("vllm.v1.attention.backends.registry")
class AttentionBackendEnum(Enum):
    CUSTOM = None


@of("vllm.v1.attention.backends.registry")
def register_backend(backend: Any, class_path: str | None = None, is_mamba: bool = False) -> Any:
    STATE.backends[backend] = class_path


@of("vllm.v1.attention.backend")
class AttentionBackend:
    @classmethod
    def supports_combination(
        cls, head_size, dtype, kv_cache_dtype, block_size, use_mla, has_sink, use_sparse, use_mm_prefix,
        device_capability
    ):  # fmt: skip
        return None

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None):
        return []

    @staticmethod
    def get_name(): ...

    @staticmethod
    def get_impl_cls(): ...

    @staticmethod
    def get_builder_cls(): ...

    @classmethod
    def get_supported_head_sizes(cls): ...

    @classmethod
    def customize_spec(cls, spec): ...

    @classmethod
    def is_mla(cls): ...

    @classmethod
    def is_sparse(cls): ...

    @classmethod
    def supports_sink(cls): ...

    @classmethod
    def supports_compute_capability(cls, capability): ...


@of("vllm.v1.attention.backend")
class AttentionCGSupport(Enum):
    ALWAYS = 3
    UNIFORM_BATCH = 2


@of("vllm.v1.attention.backend")
class MultipleOf:
    base: int

    def __init__(self, base: int):
        self.base = base


_SPARSE = "vllm.model_executor.layers.attention.sparse_mla_attention"


@of(_SPARSE)
@dataclass(kw_only=True)
class SparseMLACommonMetadata:
    block_table: Any
    req_id_per_token: Any


@of(_SPARSE)
class SparseMLACommonMetadataBuilder(Generic[T]):
    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        self.vllm_config = vllm_config

    def _init_reorder_batch_threshold(
        self, reorder_batch_threshold=1, supports_spec_as_decode=False, supports_dcp_with_varlen=False
    ):
        self.reorder_batch_threshold = reorder_batch_threshold


@of(_SPARSE)
class SparseMLACommonImpl(Generic[T]):
    def __init__(
        self, num_heads, head_size, scale, num_kv_heads, alibi_slopes, sliding_window, kv_cache_dtype,
        logits_soft_cap,
        attn_type, kv_sharing_target_layer_name, q_lora_rank=None, kv_lora_rank=512, qk_nope_head_dim=128,
        qk_rope_head_dim=64, qk_head_dim=192, v_head_dim=128, kv_b_proj=None, indexer=None,
        topk_indices_buffer=None,
        index_group_builder=None, q_pad_num_heads=None,
    ):  # fmt: skip
        self.scale, self.kv_lora_rank = scale, kv_lora_rank
        self.dcp_world_size = STATE.config.parallel_config.decode_context_parallel_size
        self.need_to_return_lse_for_decode = self.dcp_world_size > 1 and self.can_return_lse_for_decode

    def _forward_mqa_kernel(
        self, q, kv_cache, topk_indices, valid_counts, *, layer, block_size, is_decode
    ): ...


@of("vllm.v1.attention.backends.mla.sparse_utils")
def align_blocks_to_rows(spec, rows=1):
    return ("aligned", spec)


@of("vllm.v1.attention.backends.mla.sparse_utils")
def flat_kv_row_view(kv_cache, block_size):
    blocks, _, width = kv_cache.shape
    apart = kv_cache.stride(0) // width
    return kv_cache.as_strided(((blocks - 1) * apart + block_size, width), (width, 1)), apart


@of("vllm.model_executor.custom_op")
class CustomOp(torch.nn.Module):
    @classmethod
    def register_oot(cls, _decorated_op_cls=None, name=None):
        return lambda layer: STATE.layers.setdefault(name, layer)


_LAYER = "vllm.model_executor.layers.sparse_attn_indexer"


@of(_LAYER)
def get_current_vllm_config() -> Any:
    return STATE.config


@of(_LAYER)
def mqa_logits_use_mx_scales() -> bool:
    return False


@of(_LAYER)
def fp8_fp4_paged_mqa_logits(
    q, kv_cache, weights, context_lens, block_tables, schedule_metadata, max_model_len, indices=None
):
    STATE.calls.append("scores")


@of(_LAYER)
def get_indexer_topk(backend):
    return lambda *args: STATE.calls.append(f"selection {backend}")


@of(_LAYER)
class SparseAttnIndexer(CustomOp):
    def __init__(
        self, k_cache, quant_block_size, scale_fmt, topk_tokens, head_dim, max_model_len, max_total_seq_len,
        topk_indices_buffer, skip_k_cache_insert=False, use_fp4_cache=False, compress_ratio=1,
        candidate_blocks=None,
        candidate_block_size=0, candidate_write=False,
    ):  # fmt: skip
        super().__init__()
        self.topk_tokens, self.head_dim, self.use_fp4_cache = topk_tokens, head_dim, use_fp4_cache
        self.candidate_blocks, self.topk_backend = candidate_blocks, "auto"
        self.dcp_world_size, self.use_pcp = STATE.config.parallel_config.decode_context_parallel_size, False


@of("vllm.model_executor.layers.indexer_topk")
class SparseIndexerTopk:
    def forward(self, logits, seq_lens, next_n, topk_indices, topk_tokens, max_seq_len): ...


@of("vllm._custom_ops")
def top_k_per_row_prefill(
    logits, cu_seqlen_ks, cu_seqlen_ke, raw_topk_indices, num_rows, stride0, stride1, topk_tokens
):
    STATE.calls.append("selection of a prompt")


_REGISTRY = "vllm.model_executor.models.registry"


@of(_REGISTRY)
class _BaseRegisteredModel:
    def inspect_model_cls(self):
        return "inspected"

    def load_model_cls(self):
        return _BaseRegisteredModel


OBJECTS[_REGISTRY] = {
    "ModelRegistry": lambda: SimpleNamespace(models={"DeepseekV4ForCausalLM": _BaseRegisteredModel()})
}
_V4 = "vllm.models.deepseek_v4.nvidia"


@of(f"{_V4}.flashmla")
class DeepseekV4FlashMLAAttention:
    @classmethod
    def get_padded_num_q_heads(cls, num_heads):
        if num_heads > 128:
            raise ValueError(f"{num_heads} heads")
        return 64 if num_heads <= 64 else 128

    def _forward_decode(self, q, kv_cache, swa_metadata, attn_metadata, swa_only, output):
        sys.modules[f"{_V4}.flashmla"].flash_mla_with_kvcache(
            q=q.unsqueeze(1),
            k_cache=self.window,
            block_table=None,
            head_dim_v=512,
            tile_scheduler_metadata=None,
            cache_seqlens=None,
            is_fp8_kvcache=True,
            indices=swa_metadata.decode_swa_indices,
            topk_length=swa_metadata.decode_swa_lens,
            softmax_scale=self.scale,
            attn_sink=self.attn_sink,
            extra_k_cache=None if swa_only else kv_cache,
            extra_indices_in_kvcache=None if swa_only else attn_metadata.indices,
            extra_topk_length=None if swa_only else attn_metadata.lens,
            out=output.unsqueeze(1),
        )


@of(f"{_V4}.flashmla")
def flash_mla_with_kvcache(
    q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None,
    softmax_scale=None, causal=False, is_fp8_kvcache=False, indices=None, attn_sink=None, extra_k_cache=None,
    extra_indices_in_kvcache=None, topk_length=None, extra_topk_length=None, out=None,
    enable_batch_invariant=False,
):  # fmt: skip
    STATE.calls.append("decode")


@of(f"{_V4}.flashmla")
def flash_mla_sparse_fwd(q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, out=None):
    STATE.calls.append("prefill")


@of(f"{_V4}.model")
def _select_dsv4_attn_cls(vllm_config):
    return DeepseekV4FlashMLAAttention


@of("sglang.srt.plugins.hook_registry")
class HookType(Enum):
    AROUND = "around"


@of("sglang.srt.plugins.hook_registry")
class HookRegistry:
    @classmethod
    def register(cls, target, hook, hook_type=None, *, source=None):
        STATE.hooks[target] = hook


@of("sglang.srt.layers.attention.dsa_backend")
class DeepseekSparseAttnBackend:
    def _forward_flashmla_sparse(
        self, q_all, kv_cache, v_head_dim, page_table_1, sm_scale, topk_length=None, attn_sink=None
    ): ...

    def _forward_flashmla_kv(self, q_all, kv_cache, v_head_dim, sm_scale, layer, metadata, page_table_1): ...


@of("sglang.srt.layers.attention.dsa.dsa_topk_backend")
def _topk_transform_v2_paged(logits, lengths, topk, attn_metadata): ...


@of("sglang.srt.layers.attention.dsa.dsa_topk_backend")
def _topk_transform_v2_ragged(logits, lengths, topk, topk_indices_offset, row_starts): ...


_FLASH_MLA = "sglang.kernels.ops.attention.flash_mla_interface"


@of(_FLASH_MLA)
def flash_mla_with_kvcache(  # noqa: F811
    q, k_cache, block_table, cache_seqlens, head_dim_v, tile_scheduler_metadata, num_splits=None,
    softmax_scale=None, causal=False, descale_q=None, descale_k=None, is_fp8_kvcache=False, indices=None,
    attn_sink=None, extra_k_cache=None, extra_indices_in_kvcache=None, topk_length=None,
    extra_topk_length=None, kv_format=None, *, use_legacy=True,
): ...  # fmt: skip


@of(_FLASH_MLA)
def flash_mla_sparse_fwd(  # noqa: F811
    q, kv, indices, sm_scale, d_v=512, attn_sink=None, topk_length=None, *, use_legacy=True
): ...


@of("sglang.srt.layers.attention.dsa.utils")
def resolve_fp8_paged_mqa_logits_fn(): ...


@of("sglang.srt.layers.attention.dsa.utils")
def resolve_fp8_mqa_logits_fn(): ...


@of("sgl_kernel")
def fast_topk_v2(score, lengths, topk, row_starts=None): ...


@of("sgl_kernel")
def fast_topk_transform_fused(score, lengths, page_table_size_1, cu_seqlens_q, topk, row_starts=None): ...


@of("sgl_kernel")
def fast_topk_transform_ragged_fused(score, lengths, topk_indices_offset, topk, row_starts=None): ...
