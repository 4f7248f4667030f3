"""The whole step of DeepSeek Sparse Attention: score, select, attend, with one workspace.

Every launch is a kernel of the registry, and the host reads nothing back from the device. So a CUDA graph can
capture a step, and replay it with other lengths and with padded rows of length 0.
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
    """The outputs of a step.

    Attributes:
        out: [rows, heads, 512] bfloat16, the attention output.
        lse: [rows, heads] float32, the log-sum-exp of each row's scores.
        indices: [rows, topk] int32, ids of the selected tokens, -1 after the last one.
    """

    out: torch.Tensor
    lse: torch.Tensor
    indices: torch.Tensor


MAX_TOPK = 2048
LOGITS_BYTES = 256 << 20
"""Bytes of a prefill's logits at a time, unless the caller gives the rows of a chunk."""
LANES = 2
"""Chunks of a prefill in flight on a GPU, each on a stream: selection overlaps scoring of the other."""
# A chunk has a multiple of so many rows, as scoring takes blocks of them.
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
        seq_lens: [b, next_n] int32, tokens that each query sees: 0 for padded rows, at most max_pages * 64.
        block_table: [b, max_pages] int32, page ids of both caches; entries after ceil(len / 64) are not read.
        q_nope: [b * next_n, heads, 512] bfloat16.
        q_pe: [b * next_n, heads, 64] bfloat16.
        kv: the attention cache, as in `dsl_kernels.ops.sparse_mla`, with the same pages as the index cache.
        sm_scale, kpe, attn_sink, lse_base: as in `dsl_kernels.ops.sparse_mla`.
        topk: tokens to select, 1 to 2048.
        output: tensors to write into; by default new ones.
        workspace: scratch memory for the step and its logits; by default the ops' own of the thread and
            stream. A traced graph has logits of its own.
        executor, arch: as in `dsl_kernels.ops`.

    Returns:
        The attention output, its lse and the ids of the selected tokens.

    Raises:
        ArgumentTypeError, InvalidArgumentError: as the ops, which also say how kernels read lengths and page
            ids out of range. Attention checks its arguments after scoring and selection, which have written
            `output.indices` by then.
        NoVariantError: no variant accepts these sizes.
    """
    topk = _topk(topk)
    _require_step(workspace, output)
    _require_decode(q_index, seq_lens, block_table)
    b, next_n = seq_lens.shape
    rows, width = b * next_n, block_table.shape[1] * PAGE
    scratch, lock, kept = _scratch(workspace, q_index)
    with lock:
        logits = _logits(kept, (b, next_n, width), q_index)
        lightning_indexer(
            q_index, k_index_cache, weights, seq_lens, block_table, out=logits, skip_below=topk,
            executor=executor, arch=arch, workspace=scratch,
        )  # fmt: skip
        ids = topk_selector(
            logits.view(rows, width), seq_lens.view(rows), topk, block_table=block_table, page_size=PAGE,
            next_n=next_n, out=None if output is None else output.indices, executor=executor, arch=arch,
            workspace=scratch,
        )  # fmt: skip
        out, lse = sparse_mla(
            q_nope, q_pe, kv, ids, sm_scale=sm_scale, kpe=kpe, attn_sink=attn_sink, lse_base=lse_base,
            out=None if output is None else output.out, lse=None if output is None else output.lse,
            executor=executor, arch=arch, workspace=scratch,
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

    A chunk of rows is scored and selected at a time. On a GPU two chunks are in flight, the second on a
    stream of the workspace, which synchronises with the current stream. The workspace has the logits of both
    chunks, by default 256 MiB.

    Args:
        q_index: [s, index_heads, 128] float8_e4m3fn.
        k_index: [skv, 128] float8_e4m3fn.
        k_index_scales: [skv] float32.
        weights: [s, index_heads] float32.
        k_start, k_end: [s] int32, the first key of each row's window and the key after its last.
        q_nope: [s, heads, 512] bfloat16.
        q_pe: [s, heads, 64] bfloat16.
        kv: the attention cache, of at least skv tokens; its token j belongs to key j.
        rows_per_chunk: rows that are scored at once; by default as many as fit the bytes above.
        sm_scale, topk, kpe, attn_sink, lse_base, output, workspace, executor, arch: as in `decode`.

    Returns:
        The attention output, its lse and the positions of the selected keys, counted from key 0.

    Raises:
        ArgumentTypeError, InvalidArgumentError, NoVariantError: as in `decode`.
    """
    topk = _topk(topk)
    if rows_per_chunk is not None:
        rows_per_chunk = integer("rows_per_chunk", rows_per_chunk, 1)
    sm_scale = finite("sm_scale", sm_scale)
    _require_step(workspace, output)
    _require_prefill(q_index, k_index, weights, k_start, k_end, q_nope, q_pe)
    scratch, lock, kept = _scratch(workspace, q_index)
    result = output if output is not None else _allocate(q_nope, topk)
    index = (q_index, k_index, k_index_scales, weights, k_start, k_end)
    with lock:
        _select(*index, result.indices, rows_per_chunk, scratch, kept, executor=executor, arch=arch)
        sparse_mla(
            q_nope, q_pe, kv, result.indices, sm_scale=sm_scale, kpe=kpe, attn_sink=attn_sink,
            lse_base=lse_base, out=result.out, lse=result.lse, executor=executor, arch=arch,
            workspace=scratch,
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
    """Write the selected keys of a prefill's rows into `indices`, a chunk of rows at a time."""
    topk = indices.shape[1]
    concurrent = kept is not None and q_index.device.type == "cuda"
    parts, lanes, shape = _chunks(q_index.shape[0], k_index.shape[0], rows_per_chunk, concurrent)
    logits = _logits(kept, shape, q_index)
    # A row of logits may be longer than there are keys, and selection only clamps windows to the row.
    ends = k_end if shape[2] == k_index.shape[0] else k_end.clamp(max=k_index.shape[0])
    with _streams(scratch, q_index.device, lanes) as streams:
        for i, chunk in enumerate(parts):
            scored = logits[i % lanes, : chunk.stop - chunk.start]
            with streams[i % lanes]:
                lightning_indexer_prefill(
                    q_index[chunk], k_index, k_index_scales, weights[chunk], k_start[chunk], k_end[chunk],
                    out=scored, skip_below=topk, workspace=scratch if lanes == 1 else None, **options,
                )  # fmt: skip
                topk_selector(
                    scored, ends[chunk], topk, row_starts=k_start[chunk], absolute=True, out=indices[chunk],
                    workspace=scratch if lanes == 1 else None, **options,
                )  # fmt: skip


def _chunks(
    rows: int, keys: int, rows_per_chunk: int | None, concurrent: bool
) -> tuple[list[slice], int, tuple[int, int, int]]:
    """A prefill's chunks, how many are in flight, and the shape of their logits: [lanes, rows, stride]."""
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
    """Contexts of the lanes: the current stream, and one that starts after it and that it waits for."""
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
    """The workspace for a step's ops, the lock of it for the step, and the workspace for logits.

    If torch has to see the calls, the ops get the caller's workspace, and each op locks it. There is no
    workspace for logits then: they outlive an op, so they are tensors of the caller's kind.
    """
    if watched() or dispatched(q_index):
        return workspace, contextlib.nullcontext(), None
    scratch = workspace if workspace is not None else own_workspace(q_index.device)
    return scratch, scratch.held(), scratch


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
                fix="pass one row for each query",
            )


def _require(name: str, tensor: torch.Tensor, rank: int) -> None:
    """Require a contiguous tensor of `rank` dimensions, before the step allocates memory by its shape."""
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
