"""Our ops under the definitions' names of flashinfer-bench and FlashInfer: what Solutions call.

`dsl_kernels_lab.solutions` writes the Solutions. Definitions and the names of inputs and outputs are those of
flashinfer-bench (`docs/op-types/dsa-paged.mdx`) and of `flashinfer.top_k_varlen` in FlashInfer 0.7.
"""

from __future__ import annotations

import torch

from ..ops import lightning_indexer, topk_selector
from ..ops import sparse_mla as attend


def sparse_attention(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    ckv_cache: torch.Tensor,
    kpe_cache: torch.Tensor,
    sparse_indices: torch.Tensor,
    sm_scale: float,
    output: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    """`dsa_sparse_attention_*`: attention over selected tokens, into `output` and the base-2 `lse`.

    Args:
        q_nope, q_pe: [num_tokens, heads, 512] and [num_tokens, heads, 64] bfloat16.
        ckv_cache, kpe_cache: [num_pages, page_size, 512] and [num_pages, page_size, 64] bfloat16.
        sparse_indices: [num_tokens, topk] int32; -1 is padding.
        sm_scale: factor of the logits.
        output, lse: [num_tokens, heads, 512] bfloat16 and [num_tokens, heads] float32, written.

    Raises:
        DslKernelError: what `ops.sparse_mla` refuses.
    """
    attend(
        q_nope, q_pe, ckv_cache, sparse_indices, kpe=kpe_cache, sm_scale=float(sm_scale), out=output, lse=lse
    )


def topk_indexer(
    q_index_fp8: torch.Tensor,
    k_index_cache_fp8: torch.Tensor,
    weights: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    topk_indices: torch.Tensor,
) -> None:
    """`dsa_topk_indexer_*`: score a decode step, and write the best tokens into `topk_indices`.

    Args:
        q_index_fp8: [batch_size, heads, 128] float8_e4m3fn.
        k_index_cache_fp8: [num_pages, 64, 1, 132] bytes, values of a page before its scales.
        weights: [batch_size, heads] float32.
        seq_lens: [batch_size] int32.
        block_table: [batch_size, max_num_pages] int32.
        topk_indices: [batch_size, topk] int32, written: page * 64 + slot, by ascending position, then -1.

    Raises:
        DslKernelError: what `ops.lightning_indexer` or `ops.topk_selector` refuses.
    """
    k, page_size = topk_indices.shape[1], k_index_cache_fp8.shape[1]
    cache = k_index_cache_fp8.view(torch.uint8)
    scores = lightning_indexer(
        q_index_fp8.unsqueeze(1), cache, weights.unsqueeze(1), seq_lens, block_table, skip_below=k
    )
    topk_selector(
        scores.view(scores.shape[0], -1),
        seq_lens,
        k,
        block_table=block_table,
        page_size=page_size,
        out=topk_indices,
    )


def top_k_varlen(
    logits: torch.Tensor, seq_lens: torch.Tensor, top_k: int, pre_idx: torch.Tensor | None = None
) -> torch.Tensor:
    """`top_k_varlen_*`: positions of the largest scores of each row.

    Args:
        logits: [batch_size, max_seq_len] float32, float16 or bfloat16.
        seq_lens: [batch_size] int32.
        top_k: how many, at most 4096.
        pre_idx: a hint; not read.

    Returns:
        [batch_size, top_k] int32 in ascending order, then -1; of equal scores the lower positions win.

    Raises:
        DslKernelError: what `ops.topk_selector` refuses.
    """
    return topk_selector(logits, seq_lens, top_k)
