"""FlashMLA's sparse attention by `ops.sparse_mla`, on Hopper and Blackwell (deepseek-ai/FlashMLA, 9241ae3).

| FlashMLA | here |
| --- | --- |
| `get_mla_metadata(...)` | an empty record: nothing is planned |
| `flash_mla_with_kvcache`, sparse, 656-byte rows, `head_dim` 576 | served, any number of heads, no padding |
| the same, DeepSeek-V4's 584-byte rows, `head_dim` 512, with or without `extra_k_cache` | served |
| the same, DeepSeek-V4.1's 528-byte rows, each token's scales after its values (since 2026-09-30) | served |
| pages of any size, a whole number of rows apart | served in place |
| `topk_length`, `attn_sink`, empty rows (out 0, lse +inf), lse in base e | as in FlashMLA |
| `out` | written in place, with any strides of tokens and heads |
| queries or ids whose first two axes cannot be merged in place | copied |
| ids of 584- and 528-byte rows past the cache | padding; FlashMLA reads that memory |
| dense attention, `causal`, `extra_k_cache` with 656-byte rows | refused |
| `extra_k_cache` of fp4 tokens, `enable_batch_invariant` | refused |
| `flash_mla_sparse_fwd`, `d_qk` 576 and 512 | served |
| its `max_logits` | a second pass, about as long; `compat.patch(max_logits=False)` gives None instead |
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ..arguments import named_as, require, require_dense
from ..errors import InvalidArgumentError
from ..ops import sparse_mla
from ..problems.layouts import LATENT_DIM, ROPE_DIM, V4_TOKEN_BYTES, V41_TOKEN_BYTES

__all__ = ["FlashMLASchedMeta", "flash_mla_sparse_fwd", "flash_mla_with_kvcache", "get_mla_metadata"]

HEAD_DIM = LATENT_DIM + ROPE_DIM
# Formats whose queries have 512 dims, by the bytes of a token.
ROW_FORMATS = {V4_TOKEN_BYTES: "v4", V41_TOKEN_BYTES: "v41"}


@dataclass
class FlashMLASchedMeta:
    """The record that a caller passes between calls; it is empty."""


def get_mla_metadata(*_: Any, **__: Any) -> tuple[FlashMLASchedMeta, None]:
    """A record to pass to `flash_mla_with_kvcache`, and None, as FlashMLA returns them."""
    return FlashMLASchedMeta(), None


def flash_mla_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    block_table: torch.Tensor | None,
    cache_seqlens: torch.Tensor | None,
    head_dim_v: int,
    tile_scheduler_metadata: FlashMLASchedMeta,
    num_splits: None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    is_fp8_kvcache: bool = False,
    indices: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    extra_k_cache: torch.Tensor | None = None,
    extra_indices_in_kvcache: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    enable_batch_invariant: bool = False,
    *,
    executor: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sparse decode attention over a paged cache of 656-byte rows, or one or two of 584- or 528-byte rows.

    Args:
        q: [b, s_q, heads, 576] bfloat16, or [b, s_q, heads, 512] with 584- and 528-byte rows.
        k_cache: [pages, page, 1, 656], [pages, page, 1, 584] or [pages, page, 1, 528] bytes.
        block_table, cache_seqlens, tile_scheduler_metadata: not read.
        head_dim_v: 512.
        softmax_scale: by default q's last dimension to the power of -0.5.
        indices: [b, s_q, topk] int32, page * page size + offset; -1 is padding.
        attn_sink: [heads] float32.
        topk_length: [b] int32.
        extra_k_cache, extra_indices_in_kvcache, extra_topk_length: the same for a second cache of the same
            rows of 584 or 528 bytes, whose page size may differ.
        out: [b, s_q, heads, 512] bfloat16, the result's memory; by default it is allocated.
        enable_batch_invariant: False; how many CTAs share a query depends on the batch.
        executor: as in `ops.sparse_mla`.

    Returns:
        out [b, s_q, heads, 512] bfloat16 and lse [b, heads, s_q] float32, base e, +inf for a query without
            tokens.

    Raises:
        InvalidArgumentError: what the table above refuses; names the argument.
        As in `ops.sparse_mla`.
    """
    require("num_splits", num_splits is None, "None", "a value", "leave it out: nothing is planned")
    if indices is None:
        raise InvalidArgumentError(
            "indices", expected="[b, s_q, topk] int32", got="None", fix="call FlashMLA for dense attention"
        )
    require("causal", not causal, "False with indices", "True", "leave it out: ids say what a query sees")
    require(
        "is_fp8_kvcache", is_fp8_kvcache, "True with indices", "False", "call flash_mla_sparse_fwd for bf16"
    )
    require(
        "enable_batch_invariant", not enable_batch_invariant, "False", "True",
        "leave it out: how many CTAs share a query depends on the number of queries",
    )  # fmt: skip
    row_format = ROW_FORMATS.get(k_cache.shape[-1] if k_cache.dim() else 0)
    width = HEAD_DIM if row_format is None else LATENT_DIM
    _require_dims(q, f"[b, s_q, heads, {width}]", width, "head_dim_v", head_dim_v)
    if row_format is None:
        for name, given in (
            ("extra_k_cache", extra_k_cache),
            ("extra_indices_in_kvcache", extra_indices_in_kvcache),
            ("extra_topk_length", extra_topk_length),
        ):
            require(
                name, given is None, "None beside 656-byte rows", "a value", "merge two results by their lse"
            )
    b, s_q, heads, _ = q.shape
    written = out
    if out is not None:
        fits = out.shape == (b, s_q, heads, LATENT_DIM) and (
            s_q == 1 or b == 1 or out.stride(0) == s_q * out.stride(1)
        )
        require(
            "out", fits, f"{(b, s_q, heads, LATENT_DIM)}, its first two axes mergeable",
            f"{tuple(out.shape)} with strides {out.stride()}", "pass contiguous memory of that shape",
        )  # fmt: skip
        written = out[0] if b == 1 else out[:, 0] if s_q == 1 else out.flatten(0, 1)

    def rows(ids: torch.Tensor | None) -> torch.Tensor | None:
        return None if ids is None else ids.reshape(b * s_q, ids.shape[-1])

    def lengths(given: torch.Tensor | None) -> torch.Tensor | None:
        return given if given is None or s_q == 1 else given.repeat_interleave(s_q)

    with named_as(
        q_nope="q",
        q_pe="q",
        kv="k_cache",
        kv_cache="k_cache",
        kv_pages="k_cache",
        extra_kv="extra_k_cache",
        extra_indices="extra_indices_in_kvcache",
        sm_scale="softmax_scale",
    ):
        written, lse = sparse_mla(
            q.reshape(b * s_q, heads, width),
            None,
            k_cache,
            indices.reshape(b * s_q, indices.shape[-1]),
            sm_scale=width**-0.5 if softmax_scale is None else softmax_scale,
            topk_length=lengths(topk_length),
            extra_kv=extra_k_cache,
            extra_indices=rows(extra_indices_in_kvcache),
            extra_topk_length=lengths(extra_topk_length),
            attn_sink=attn_sink,
            lse_base="e",
            empty_lse=math.inf,
            row_format=row_format,
            out=written,
            executor=executor,
        )
    lse = lse.view(b, s_q, heads).transpose(1, 2)
    return written.view(b, s_q, heads, LATENT_DIM) if out is None else out, lse


def flash_mla_sparse_fwd(
    q: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    sm_scale: float,
    d_v: int = LATENT_DIM,
    attn_sink: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    *,
    max_logits: bool = True,
    executor: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Sparse prefill attention over flat bf16 rows.

    Args:
        q: [s_q, heads, 576] or [s_q, heads, 512] bfloat16.
        kv: [s_kv, 1, 576] or [s_kv, 1, 512] bfloat16, as wide as q.
        indices: [s_q, 1, topk] int32; ids outside the rows are padding.
        sm_scale: factor of the logits.
        d_v: 512.
        attn_sink: [heads] float32.
        topk_length: [s_q] int32.
        out: [s_q, heads, 512] bfloat16 with any strides of tokens and heads, the result's memory; by default
            it is allocated.
        max_logits: False skips the largest logits, which take a second pass.
        executor: as in `ops.sparse_mla`.

    Returns:
        out [s_q, heads, 512] bfloat16; the largest logit [s_q, heads] float32, base e, -inf for a query
            without tokens,
        or None without `max_logits`; and lse [s_q, heads] float32, base e, +inf for a query without tokens.

    Raises:
        InvalidArgumentError: another `d_qk` or `d_v`, or ids of several key heads.
        As in `ops.sparse_mla`.
    """
    require_dense("kv", kv)
    width = LATENT_DIM if kv.dim() and kv.shape[-1] == LATENT_DIM else HEAD_DIM
    _require_dims(q, f"[s_q, heads, {width}]", width, "d_v", d_v)
    require(
        "indices",
        indices.dim() == 3 and indices.shape[1] == 1,
        "[s_q, 1, topk]",
        str(tuple(indices.shape)),
        "pass ids of one key head",
    )
    most = q.new_empty(q.shape[:2], dtype=torch.float32) if max_logits else None
    with named_as(q_nope="q", q_pe="q", q_rows="q", ckv="kv", kpe="kv"):
        out, lse = sparse_mla(
            q,
            None,
            kv,
            indices[:, 0],
            sm_scale=sm_scale,
            topk_length=topk_length,
            attn_sink=attn_sink,
            lse_base="e",
            empty_lse=math.inf,
            out=out,
            max_logits=most,
            executor=executor,
        )
    return out, most, lse


def _require_dims(q: torch.Tensor, shape: str, width: int, name: str, d_v: int) -> None:
    require_dense("q", q)
    fits = q.dim() == shape.count(",") + 1 and q.shape[-1] == width
    require("q", fits, shape, str(tuple(q.shape)), "pass queries as wide as the cache's keys")
    require(name, d_v == LATENT_DIM, str(LATENT_DIM), str(d_v), f"pass {LATENT_DIM}")
