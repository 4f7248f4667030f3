"""A decode step of the attention layers of DeepSeek-V4 and V4.1, over a window and over compressed tokens.

A layer attends to the last tokens of a sequence, its window. It may also attend to all compressed tokens (one
for 128), or to those that an indexer scores highest (one for 4). A CUDA graph can capture a step.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from ..arguments import integer, require, require_axes, require_dense
from ..kernels.compress_rows.op import compress_rows as compress_rows
from ..kernels.lightning_indexer.problem import PAGE
from ..kernels.sparse_mla.forms import PAGED_BYTES
from ..kernels.topk_selector.op import MAX_K
from ..ops import Workspace, lightning_indexer, sparse_mla, topk_selector, window_ids
from . import _logits, _scratch
from .compressor import Compressed as Compressed
from .compressor import compress as compress


class Output(NamedTuple):
    """The outputs of a step.

    Attributes:
        out: [rows, heads, 512] bfloat16, the attention output.
        lse: [rows, heads] float32, the log-sum-exp of each row's scores.
        indices: [rows, window] int32, ids of the window's tokens by ascending position, -1 after the last
            one.
        extra_indices: [rows, topk] int32, the same for compressed tokens; None if the layer has none.
    """

    out: torch.Tensor
    lse: torch.Tensor
    indices: torch.Tensor
    extra_indices: torch.Tensor | None


class Index(NamedTuple):
    """The indexer's operands for scoring compressed tokens, as in `ops.lightning_indexer`.

    Attributes:
        q: [b, next_n, index_heads, 128] float8_e4m3fn.
        k_cache: [pages, 64, 1, 132] bytes, index keys of the compressed tokens.
        weights: [b, next_n, index_heads] float32.
    """

    q: torch.Tensor
    k_cache: torch.Tensor
    weights: torch.Tensor


def keys_in_blocks(blocks: torch.Tensor, seq_lens: torch.Tensor, block_size: int = 8) -> torch.Tensor:
    """Count the keys in selected blocks: lengths for `ops.lightning_indexer` with `block_size`.

    Args:
        blocks: [rows, n] int32, numbers of a row's blocks in ascending order, -1 after the last one, as
            `ops.topk_selector` writes them into `positions`.
        seq_lens: [rows] int32, all keys of each row; its last block may be shorter.
        block_size: keys of a block.

    Returns:
        [rows] int32.

    Raises:
        ArgumentTypeError, InvalidArgumentError: a tensor has another dtype or shape, or `block_size` is below
            1.
    """
    for name, tensor, rank in (("blocks", blocks, 2), ("seq_lens", seq_lens, 1)):
        require_dense(name, tensor)
        require(
            name, tensor.dim() == rank and tensor.dtype == torch.int32, f"int32 with {rank} axes",
            f"{tensor.dtype}, shape {tuple(tensor.shape)}",
            "pass the selection's positions, and a length for each row",
        )  # fmt: skip
    rows = blocks.shape[0] == seq_lens.shape[0] and blocks.shape[1] > 0
    require(
        "blocks",
        rows,
        f"[{len(seq_lens)}, n]",
        str(tuple(blocks.shape)),
        "pass a list for each row of seq_lens",
    )
    size = integer("block_size", block_size, 1)
    past = ((blocks.amax(dim=1) + 1) * size - seq_lens).clamp(min=0)
    keys: torch.Tensor = ((blocks >= 0).sum(dim=1, dtype=torch.int32) * size - past).clamp(min=0)
    return keys


def decode(
    q: torch.Tensor,
    kv: torch.Tensor,
    seq_lens: torch.Tensor,
    window_table: torch.Tensor,
    *,
    sm_scale: float,
    window: int = 128,
    extra_kv: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    ratio: int = 4,
    topk: int = 512,
    index: Index | None = None,
    attn_sink: torch.Tensor | None = None,
    lse_base: str = "2",
    row_format: str = "v4",
    workspace: Workspace | None = None,
    executor: str | None = None,
    arch: str | None = None,
) -> Output:
    """One decode step of b sequences with next_n queries each.

    Args:
        q: [b * next_n, heads, 512] bfloat16.
        kv: [pages, page_size, 1, 584] bytes, the window's cache, as in `ops.sparse_mla`; other row formats
            have 528 bytes a token.
        seq_lens: [b, next_n] int32, tokens that each query sees, itself among them; 0 for padded rows.
        window_table: [b, max_pages] int32, page ids of `kv` by position; entries outside of a query's window
            are not read.
        sm_scale, attn_sink, lse_base: as in `ops.sparse_mla`.
        window: tokens at the end of a sequence to attend to, 1 to 4096.
        extra_kv: the compressed cache, bytes like `kv`, with a page size of its own; None for a layer without
            one.
        block_table: [b, max_pages] int32, page ids of `extra_kv` by compressed position; needed with it.
        ratio: tokens that a compressed token stands for: a query sees seq_lens // ratio compressed tokens.
        topk: compressed tokens to attend to, 1 to 4096. Without `index` the layer attends to all of them, and
            `topk` is at least their number.
        index: scores compressed tokens; their pages must then have 64 tokens.
        row_format: the format of both caches, "v4", or DeepSeek-V4.1's "v41" or "v41_planar", as in
            `ops.sparse_mla`.
        workspace, executor, arch: as in `dsl_kernels.dsa.decode`.

    Returns:
        The attention output, its lse and the ids of the tokens of both caches.

    Raises:
        ArgumentTypeError, InvalidArgumentError: as the ops; or there is a compressed cache without its table,
            an index without the cache, or, without an index, more compressed tokens than `topk`.
        NoVariantError: no variant accepts these sizes.
    """
    given = {"q": q, "kv": kv, "seq_lens": seq_lens, "window_table": window_table}
    optional = {"extra_kv": extra_kv, "block_table": block_table}
    for name, tensor in (given | {n: t for n, t in optional.items() if t is not None}).items():
        require_dense(name, tensor)
    require_axes("seq_lens", seq_lens, "[b, next_n]")
    require(
        "row_format", isinstance(row_format, str) and row_format in PAGED_BYTES,
        "'v4', 'v41' or 'v41_planar'", repr(row_format), "name the format of both caches",
    )  # fmt: skip
    for name, cache in (("kv", kv), ("extra_kv", extra_kv)):
        pages = cache is None or (cache.dim() in (3, 4) and 0 not in cache.shape)
        require(
            name,
            pages,
            f"[pages, page_size, 1, {PAGED_BYTES[row_format]}]",
            str(None if cache is None else tuple(cache.shape)),
            "pass the paged cache",
        )
    tables = window_table.dim() == 2 and window_table.shape[0] == len(seq_lens) and window_table.shape[1] > 0
    require(
        "window_table", tables, f"[{len(seq_lens)}, max_pages], at least one page",
        str(tuple(window_table.shape)), "pass a row for each sequence",
    )  # fmt: skip
    require(
        "block_table", (extra_kv is None) == (block_table is None), "a table if extra_kv is given, else None",
        "None" if block_table is None else "a tensor", "pass both or neither",
    )  # fmt: skip
    if block_table is not None:
        require_axes("block_table", block_table, "[b, max_pages]")
    require(
        "index",
        index is None or extra_kv is not None,
        "None without extra_kv",
        "an index",
        "pass the compressed cache",
    )
    window, ratio, topk = (
        integer("window", window, 1, MAX_K),
        integer("ratio", ratio, 1),
        integer("topk", topk, 1, MAX_K),
    )
    next_n, rows = seq_lens.shape[1], seq_lens.numel()
    options: dict[str, Any] = {"executor": executor, "arch": arch}
    scratch, lock, kept = _scratch(workspace, q)
    options["workspace"] = scratch

    with lock:
        ids = window_ids(seq_lens, window_table, window, page_size=kv.shape[1], **options)
        extra: torch.Tensor | None = None
        if extra_kv is not None and block_table is not None:
            compressed = torch.div(seq_lens, ratio, rounding_mode="floor")
            page = extra_kv.shape[1]
            if index is None:
                most = block_table.shape[1] * page
                require(
                    "topk",
                    most <= topk,
                    f"at least {most}, the tokens of all pages in block_table",
                    str(topk),
                    "pass an index, or a narrower table",
                )
                # All tokens are selected, so nothing reads these scores: their dtype is the smallest.
                shape = rows, -(-most // 8) * 8
                if kept is None:
                    scores = q.new_empty(shape, dtype=torch.bfloat16)
                else:
                    scores = kept.get("unread scores", shape, torch.bfloat16, q.device, zeroed=False)
                extra = topk_selector(
                    scores, compressed.view(rows), topk, block_table=block_table, page_size=page,
                    next_n=next_n, **options
                )  # fmt: skip
            else:
                require(
                    "extra_kv",
                    page == PAGE,
                    f"pages of {PAGE} tokens with an index",
                    str(page),
                    f"use pages of {PAGE} tokens in both caches",
                )
                logits = _logits(kept, (*seq_lens.shape, block_table.shape[1] * PAGE), q)
                lightning_indexer(
                    index.q, index.k_cache, index.weights, compressed, block_table, out=logits,
                    skip_below=topk, **options
                )  # fmt: skip
                extra = topk_selector(
                    logits.view(rows, -1), compressed.view(rows), topk, block_table=block_table,
                    page_size=PAGE, next_n=next_n, **options,
                )  # fmt: skip
        out, lse = sparse_mla(
            q, None, kv, ids, sm_scale=sm_scale, extra_kv=extra_kv, extra_indices=extra, attn_sink=attn_sink,
            lse_base=lse_base, row_format=row_format, **options,
        )  # fmt: skip
    return Output(out, lse, ids, extra)
