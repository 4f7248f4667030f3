"""The whole DeepSeek Sparse Attention step: score, select, attend, with one workspace.

Every launch is a kernel of the registry; nothing is computed on the host from device data, so a step can be captured
in a CUDA graph and replayed with padded rows (length 0) and other lengths.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from ..arguments import finite, integer, require_dense
from ..errors import ArgumentTypeError, InvalidArgumentError
from ..kernels.lightning_indexer.problem import PAGE
from ..ops import Workspace, lightning_indexer, lightning_indexer_prefill, sparse_mla, topk_selector
from ..ops._dispatch import dispatched, watched
from ..ops.workspace import no_memory, own_workspace, require_workspace
from ..problems.layouts import LATENT_DIM


@dataclass
class StepOutput:
    """out [rows, heads, 512] bfloat16, lse [rows, heads] float32, indices [rows, topk] int32 (global token ids)."""

    out: torch.Tensor
    lse: torch.Tensor
    indices: torch.Tensor


MAX_TOPK = 2048
LOGITS_BYTES = 256 << 20
"""Logits of a prefill at a time, unless the caller says how many rows a chunk has."""
LANES = 2
"""Chunks of a prefill at a time on a GPU, each on a stream: one is selected from while the other is scored."""
# Rows of a chunk come in blocks of so many, as scoring takes them.
BLOCK = 8


def decode(
    q_index: torch.Tensor,
    k_index_cache: torch.Tensor,
    weights: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    kv: torch.Tensor,
    *,
    sm_scale: float,
    topk: int = 2048,
    kpe: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    lse_base: str = "2",
    output: StepOutput | None = None,
    workspace: Workspace | None = None,
    executor: str | None = None,
    arch: str | None = None,
) -> StepOutput:
    """One decode step of b sequences with next_n queries each.

    Args:
        q_index: [b, next_n, index_heads, 128] float8_e4m3fn.
        k_index_cache: [pages, 64, 1, 132] bytes, block-planar index keys.
        weights: [b, next_n, index_heads] float32.
        seq_lens: [b, next_n] int32, tokens each query sees; 0 for padded rows, at most max_pages * 64.
        block_table: [b, max_pages] int32, page ids of both caches; entries past ceil(len / 64) are not followed.
        q_nope, q_pe: [b * next_n, heads, 512] and [b * next_n, heads, 64] bfloat16.
        kv, kpe, attn_sink, lse_base, sm_scale: as `dsl_kernels.ops.sparse_mla`; the cache has the index cache's pages.
        topk: tokens to select, 1 to 2048.
        output: tensors to write into.
        workspace: scratch for the step, with its logits (those of a traced graph are the graph's); by default the ops'
            own of the thread and stream.
        executor, arch: as in `dsl_kernels.ops`.

    Returns:
        The attention output, its lse and the selected ids.

    Raises:
        As the ops. Attention looks at its arguments behind scoring and selection, which have written `output.indices` by
            then. What the kernels do with lengths and page ids out of range, the ops say.
    """
    topk = _topk(topk)
    _require_step(workspace, output)
    _require_decode(q_index, seq_lens, block_table)
    b, next_n = seq_lens.shape
    rows, width = b * next_n, block_table.shape[1] * PAGE
    scratch, held, kept = _scratch(workspace, q_index)
    with held:
        logits = _logits(kept, (b, next_n, width), q_index)
        lightning_indexer(
            q_index, k_index_cache, weights, seq_lens, block_table, out=logits, skip_below=topk, executor=executor,
            arch=arch, workspace=scratch,
        )  # fmt: skip
        ids = topk_selector(
            logits.view(rows, width), seq_lens.view(rows), topk, block_table=block_table, page_size=PAGE, next_n=next_n,
            out=None if output is None else output.indices, executor=executor, arch=arch, workspace=scratch,
        )  # fmt: skip
        out, lse = sparse_mla(
            q_nope, q_pe, kv, ids, sm_scale=sm_scale, kpe=kpe, attn_sink=attn_sink, lse_base=lse_base,
            out=None if output is None else output.out, lse=None if output is None else output.lse, executor=executor,
            arch=arch, workspace=scratch,
        )  # fmt: skip
    return output if output is not None else StepOutput(out, lse, ids)


def prefill(
    q_index: torch.Tensor,
    k_index: torch.Tensor,
    k_index_scales: torch.Tensor,
    weights: torch.Tensor,
    k_start: torch.Tensor,
    k_end: torch.Tensor,
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    kv: torch.Tensor,
    *,
    sm_scale: float,
    topk: int = 2048,
    kpe: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    lse_base: str = "2",
    rows_per_chunk: int | None = None,
    output: StepOutput | None = None,
    workspace: Workspace | None = None,
    executor: str | None = None,
    arch: str | None = None,
) -> StepOutput:
    """Prefill of s query rows over one flat cache of skv tokens.

    Logits are made and consumed a chunk of rows at a time. On a GPU two chunks are under way at once, the second on a
    stream of the workspace's own, which waits for the present one and is waited for; so the workspace holds logits of two
    chunks. By default these are 256 MB.

    Args:
        q_index: [s, index_heads, 128] float8_e4m3fn.
        k_index, k_index_scales: [skv, 128] float8_e4m3fn and [skv] float32.
        weights: [s, index_heads] float32.
        k_start, k_end: [s] int32 window of keys of each row.
        q_nope, q_pe: [s, heads, 512] and [s, heads, 64] bfloat16.
        kv: cache of at least skv tokens; token j of it belongs to key j. Other arguments as `decode`.
        rows_per_chunk: rows whose logits are made at once.

    Returns:
        The attention output, its lse and the selected key positions, counted from key 0.

    Raises:
        As the ops; attention's arguments as in `decode`.
    """
    topk = _topk(topk)
    if rows_per_chunk is not None:
        rows_per_chunk = integer("rows_per_chunk", rows_per_chunk, 1)
    sm_scale = finite("sm_scale", sm_scale)
    _require_step(workspace, output)
    _require_prefill(q_index, k_index, weights, k_start, k_end, q_nope, q_pe)
    scratch, held, kept = _scratch(workspace, q_index)
    result = output if output is not None else _allocate(q_nope, topk)
    index = (q_index, k_index, k_index_scales, weights, k_start, k_end)
    with held:
        _select(*index, result.indices, rows_per_chunk, scratch, kept, executor=executor, arch=arch)
        sparse_mla(
            q_nope, q_pe, kv, result.indices, sm_scale=sm_scale, kpe=kpe, attn_sink=attn_sink, lse_base=lse_base,
            out=result.out, lse=result.lse, executor=executor, arch=arch, workspace=scratch,
        )  # fmt: skip
    return result


def _select(
    q_index: torch.Tensor,
    k_index: torch.Tensor,
    k_index_scales: torch.Tensor,
    weights: torch.Tensor,
    k_start: torch.Tensor,
    k_end: torch.Tensor,
    indices: torch.Tensor,
    rows_per_chunk: int | None,
    scratch: Workspace | None,
    kept: Workspace | None,
    **options: Any,
) -> None:
    """Keys of each row of a prefill into `indices`, by scoring and selection of a chunk at a time."""
    topk = indices.shape[1]
    concurrent = kept is not None and q_index.device.type == "cuda"
    parts, lanes, shape = _chunks(q_index.shape[0], k_index.shape[0], rows_per_chunk, concurrent)
    logits = _logits(kept, shape, q_index)
    # Selection ends a window with the row of logits, which may be longer than there are keys.
    ends = k_end if shape[2] == k_index.shape[0] else k_end.clamp(max=k_index.shape[0])
    with _streams(scratch, q_index.device, lanes) as streams:
        for i, chunk in enumerate(parts):
            scored = logits[i % lanes, : chunk.stop - chunk.start]
            with streams[i % lanes]:
                lightning_indexer_prefill(
                    q_index[chunk], k_index, k_index_scales, weights[chunk], k_start[chunk], k_end[chunk], out=scored,
                    skip_below=topk, workspace=scratch if lanes == 1 else None, **options,
                )  # fmt: skip
                topk_selector(
                    scored, ends[chunk], topk, row_starts=k_start[chunk], absolute=True, out=indices[chunk],
                    workspace=scratch if lanes == 1 else None, **options,
                )  # fmt: skip


def _chunks(
    rows: int, keys: int, rows_per_chunk: int | None, concurrent: bool
) -> tuple[list[slice], int, tuple[int, int, int]]:
    """The chunks of a prefill, how many are under way at once, and the shape of their logits: [lanes, rows, stride]."""
    stride = -(-keys // 4) * 4
    if rows_per_chunk is not None:
        bounds = [*range(0, rows, rows_per_chunk), rows]
    else:
        blocks = -(-rows // BLOCK)
        count = -(-blocks // max(1, LOGITS_BYTES // LANES // (4 * max(stride, 1) * BLOCK)))
        bounds = [min(rows, blocks * i // max(count, 1) * BLOCK) for i in range(count + 1)]
    parts = [slice(first, end) for first, end in pairwise(bounds)]
    lanes = min(LANES, max(1, len(parts))) if concurrent else 1
    return parts, lanes, (lanes, max([0, *(part.stop - part.start for part in parts)]), stride)


@contextlib.contextmanager
def _streams(
    scratch: Workspace | None, device: torch.device, lanes: int
) -> Iterator[list[contextlib.AbstractContextManager[Any]]]:
    """What enters each lane: the present stream, and beside it one that begins behind it and that it then waits for."""
    if scratch is None or lanes == 1:
        yield [contextlib.nullcontext()]
        return
    here, beside = torch.cuda.current_stream(device), scratch.beside(device)
    beside.wait_stream(here)
    try:
        yield [contextlib.nullcontext(), torch.cuda.stream(beside)]
    finally:
        here.wait_stream(beside)


def _scratch(
    workspace: Workspace | None, q_index: torch.Tensor
) -> tuple[Workspace | None, contextlib.AbstractContextManager[Any], Workspace | None]:
    """The workspace for the ops of a step, what keeps other threads out of it, and the one that logits are kept in.

    Where torch has to see the calls, the caller's workspace is handed on to the ops, each of which keeps others out for
    as long as it needs to, and the logits, which outlive an op, are tensors of the caller's kind.
    """
    if watched() or dispatched(q_index):
        return workspace, contextlib.nullcontext(), None
    found = workspace if workspace is not None else own_workspace(q_index.device)
    return found, found.held(), found


def _logits(kept: Workspace | None, shape: tuple[int, ...], q_index: torch.Tensor) -> torch.Tensor:
    if kept is None:
        return q_index.new_empty(shape, dtype=torch.float32)
    return kept.get("logits", shape, torch.float32, q_index.device, zeroed=False)


def _allocate(q_nope: torch.Tensor, topk: int) -> StepOutput:
    rows, heads, _ = q_nope.shape
    try:
        return StepOutput(
            torch.empty_like(q_nope),
            q_nope.new_empty(rows, heads, dtype=torch.float32),
            q_nope.new_empty(rows, topk, dtype=torch.int32),
        )
    except RuntimeError as error:
        raise no_memory("output", (rows, heads, LATENT_DIM), q_nope.dtype, error) from None


def _topk(topk: int) -> int:
    return integer("topk", topk, 1, MAX_TOPK)


def _require_step(workspace: Workspace | None, output: StepOutput | None) -> None:
    require_workspace(workspace)
    if output is None:
        return
    if not isinstance(output, StepOutput):
        raise ArgumentTypeError(
            "output",
            expected="a dsl_kernels.dsa.StepOutput or None",
            got=type(output).__name__,
            fix="pass StepOutput(out, lse, indices)",
        )
    for name, tensor, rank in (
        ("out", output.out, 3),
        ("lse", output.lse, 2),
        ("indices", output.indices, 2),
    ):
        _require(f"output.{name}", tensor, rank)


def _require_decode(q_index: torch.Tensor, seq_lens: torch.Tensor, block_table: torch.Tensor) -> None:
    _require("q_index", q_index, 4)
    _require("seq_lens", seq_lens, 2)
    _require("block_table", block_table, 2)
    if q_index.shape[:2] != seq_lens.shape or block_table.shape[0] != seq_lens.shape[0]:
        raise InvalidArgumentError(
            "seq_lens",
            expected=f"[b, next_n] = {list(q_index.shape[:2])} of q_index, and b rows of block_table",
            got=f"shape {tuple(seq_lens.shape)} with block_table {tuple(block_table.shape)}",
            fix="make the operands agree",
        )


def _require_prefill(
    q_index: torch.Tensor,
    k_index: torch.Tensor,
    weights: torch.Tensor,
    k_start: torch.Tensor,
    k_end: torch.Tensor,
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
) -> None:
    per_row = {
        "q_index": (q_index, 3), "weights": (weights, 2), "k_start": (k_start, 1), "k_end": (k_end, 1),
        "q_nope": (q_nope, 3), "q_pe": (q_pe, 3),
    }  # fmt: skip
    _require("k_index", k_index, 2)
    for name, (tensor, rank) in per_row.items():
        _require(name, tensor, rank)
        if tensor.shape[0] != q_index.shape[0]:
            raise InvalidArgumentError(
                name,
                expected=f"{q_index.shape[0]} rows, as q_index",
                got=f"shape {tuple(tensor.shape)}",
                fix="pass one row a query",
            )


def _require(name: str, tensor: torch.Tensor, rank: int) -> None:
    """A contiguous tensor of that many dimensions: memory as large as its shape says, before more is allocated."""
    if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided or tensor.is_nested:
        require_dense(name, tensor)
    if tensor.dim() != rank:
        raise InvalidArgumentError(
            name,
            expected=f"{rank} dimensions",
            got=f"shape {tuple(tensor.shape)}",
            fix="reshape it with .view(...)",
        )
    if not tensor.is_contiguous():
        raise InvalidArgumentError(
            name, expected="a contiguous tensor", got=f"strides {tensor.stride()}", fix="call .contiguous()"
        )
