"""vLLM's layers of DeepSeek-V4 and V4.1 with our attention: 8 to 128 heads without padding to 64, no plan.

These models have no backend of the registry: a function of the model's module chooses the layer's class. The
entries of these models in vLLM's registry load vLLM's model and then replace the choice. Nothing of the
models is imported before.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

from vllm.model_executor.models.registry import ModelRegistry, _BaseRegisteredModel

from ...compat import flash_mla
from .._seams import Seam, hopper_or_no_gpu, mismatch
from . import BACKEND, log

# Packages of vLLM by the names under which it registers their models.
MODELS = {
    "DeepseekV4ForCausalLM": "vllm.models.deepseek_v4",
    "DeepseekV4ForConditionalGeneration": "vllm.models.deepseek_v4",
    "DeepseekV41ForCausalLM": "vllm.models.deepseek_v41",
}
CHOICE = "_select_dsv4_attn_cls"
# vLLM's kernel that norms and rotates queries writes these numbers of heads, the last ones as zeros.
HEADS = (8, 16, 32, 64, 128)
CACHES = ("auto", "fp8", "fp8_ds_mla")  # of bytes: 584 or 528 a token


def seams(package: str) -> tuple[Seam, ...]:
    """What the layer is made of."""
    flashmla = f"{package}.nvidia.flashmla"
    layer = f"{flashmla}.DeepseekV4FlashMLAAttention"
    return (
        Seam(f"{layer}.get_padded_num_q_heads", "num_heads"),
        Seam(f"{layer}._forward_decode", "q kv_cache swa_metadata attn_metadata swa_only output"),
        Seam(f"{flashmla}.flash_mla_with_kvcache"),
        Seam(f"{flashmla}.flash_mla_sparse_fwd"),
    )


def not_served(config: Any) -> str | None:
    """Why layers of a configuration stay vLLM's, or None."""
    if not hopper_or_no_gpu():
        return "the GPU is no Hopper"
    if config.cache_config.cache_dtype not in CACHES:
        return f"the cache is {config.cache_config.cache_dtype}"
    if config.parallel_config.prefill_context_parallel_size > 1:
        return "prompts are spread over ranks"
    return None


@lru_cache
def layer_of(flashmla: ModuleType) -> type:
    """vLLM's layer over FlashMLA with few heads, too; the module's functions of FlashMLA become ours."""
    theirs: Any = flashmla.DeepseekV4FlashMLAAttention

    class DslKernelsV4Attention(theirs):
        """vLLM's layer, whose calls of FlashMLA are calls of `ops.sparse_mla`."""

        @classmethod
        def get_padded_num_q_heads(cls, num_heads: int) -> int:
            most: int = super().get_padded_num_q_heads(num_heads)
            return next(heads for heads in HEADS if num_heads <= heads <= most)

    prefill = partial(flash_mla.flash_mla_sparse_fwd, max_logits=False)
    vars(flashmla).update(
        flash_mla_with_kvcache=flash_mla.flash_mla_with_kvcache, flash_mla_sparse_fwd=prefill
    )
    log.info("dsl_kernels attends in the layers of %s", flashmla.__name__.rsplit(".", 2)[0])
    return DslKernelsV4Attention


def choice(package: str, theirs: Callable[[Any], type]) -> Callable[[Any], type]:
    """vLLM's choice of the layer's class, extended by ours."""

    def chosen(vllm_config: Any) -> type:
        backend = vllm_config.attention_config.backend
        if backend is None or backend.name != BACKEND:
            return theirs(vllm_config)
        reason = mismatch(seams(package)) or not_served(vllm_config)
        if reason is not None:
            log.warning("dsl_kernels leaves attention of %s to vLLM: %s", package, reason)
            return theirs(vllm_config)
        return layer_of(importlib.import_module(f"{package}.nvidia.flashmla"))

    return chosen


@lru_cache
def take_over(package: str) -> None:
    """Replace the choice of a model's module."""
    reason = Seam(f"{package}.nvidia.model.{CHOICE}", "vllm_config").mismatch()
    if reason is not None:
        log.warning("dsl_kernels leaves attention of %s to vLLM: %s", package, reason)
        return
    model = importlib.import_module(f"{package}.nvidia.model")
    setattr(model, CHOICE, choice(package, getattr(model, CHOICE)))


@dataclass(frozen=True)
class Model(_BaseRegisteredModel):
    """An entry of vLLM's registry, which loads vLLM's model and replaces the choice in its module."""

    theirs: Any
    package: str

    def inspect_model_cls(self) -> Any:
        return self.theirs.inspect_model_cls()

    def load_model_cls(self) -> type:
        model: type = self.theirs.load_model_cls()
        take_over(self.package)
        return model


def register() -> None:
    """Replace the entries of the models that this vLLM has."""
    for name, package in MODELS.items():
        theirs = ModelRegistry.models.get(name)
        if theirs is not None and not isinstance(theirs, Model):
            ModelRegistry.models[name] = Model(theirs, package)
