"""Solutions for flashinfer-bench and for FlashInfer's `trace_apply`: our ops under their definitions' names.

Both take the same JSON: a Solution names the definition that it implements and contains one source file,
which calls a function of this module. Definitions and the names of inputs and outputs are those of
flashinfer-bench (`docs/op-types/dsa-paged.mdx`) and of `flashinfer.top_k_varlen` in FlashInfer 0.7.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..errors import UnknownNameError
from ..ops import lightning_indexer, topk_selector
from ..ops import sparse_mla as attend

# Definitions of flashinfer-bench that our ops implement.
PUBLISHED = (
    "dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64",
    "dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps1",
    "dsa_topk_indexer_fp8_h64_d128_topk2048_ps64",
)


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


# Pattern of definitions' names, the function that implements them, and whether outputs are arguments.
_FAMILIES: tuple[tuple[str, Callable[..., Any], bool], ...] = (
    (r"dsa_sparse_attention_h(8|16|32|64|128)_ckv512_kpe64_topk\d+_ps\d+", sparse_attention, True),
    (r"dsa_topk_indexer_fp8_h(32|64)_d128_topk\d+_ps64", topk_indexer, True),
    (r"top_k_varlen_n\d+_k\d+", top_k_varlen, False),
)


def solution(definition: str) -> dict[str, Any]:
    """The Solution of a definition, in the JSON of flashinfer-bench and FlashInfer.

    Args:
        definition: such as `dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64`.

    Raises:
        UnknownNameError: no op of ours implements it.
    """
    family = next((family for family in _FAMILIES if re.fullmatch(family[0], definition)), None)
    if family is None:
        raise UnknownNameError(
            "definition",
            expected=" or ".join(pattern for pattern, _, _ in _FAMILIES),
            got=definition,
            fix="name a definition of one of these families",
        )
    _, function, into = family
    summary = (function.__doc__ or "").splitlines()[0]
    return {
        "name": f"dsl_kernels_{definition}",
        "definition": definition,
        "author": "dsl_kernels",
        "description": f"{summary} Exact and deterministic; dsl_kernels {__version__}.",
        "spec": {
            "language": "python",
            "target_hardware": ["NVIDIA_H100", "NVIDIA_H200", "NVIDIA_B200"],
            "entry_point": "main.py::run",
            "dependencies": ["dsl-kernels"],
            "destination_passing_style": into,
        },
        "sources": [{"path": "main.py", "content": f"from {__name__} import {function.__name__} as run\n"}],
    }


def write_solutions(folder: Path, definitions: tuple[str, ...] = PUBLISHED) -> list[Path]:
    """Write Solutions to `folder/solutions/<definition>.json`, the layout of `FLASHINFER_TRACE_APPLY_PATH`.

    Returns:
        The written files.

    Raises:
        UnknownNameError: no op of ours implements a definition; then nothing is written.
        OSError: the folder cannot be written.
    """
    made = {definition: json.dumps(solution(definition), indent=2) + "\n" for definition in definitions}
    target = folder / "solutions"
    target.mkdir(parents=True, exist_ok=True)
    files = [target / f"{definition}.json" for definition in made]
    for file, text in zip(files, made.values(), strict=True):
        file.write_text(text)
    return files
