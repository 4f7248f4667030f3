"""DeepSeek Sparse Attention, exact, over a context that ranks share, with two exchanges a step.

Each rank scores its own keys and selects its topk of them. The best of all keys are among the best of each
rank, so the ranks exchange these once, as entries of score and position. Every rank then selects among all
entries in the same way, by score and global position. Each rank attends to the selected tokens that it has,
and the ranks exchange their partial outputs once and merge them in the order of the ranks. The host reads
nothing back, so a CUDA graph can capture a step with its exchanges.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import replace
from typing import Any

import torch

from .. import env
from ..arguments import INT32_MAX, finite, integer, require_dense, shown
from ..errors import ArgumentTypeError, InvalidArgumentError
from ..kernels.lightning_indexer.problem import PAGE
from ..kernels.merge_entries.problem import ID, MOST_LISTED, SCORE, TOKEN
from ..kernels.sparse_mla.op import LSE_SCALE
from ..ops import (
    Workspace,
    lightning_indexer,
    lightning_indexer_prefill,
    merge_entries,
    merge_outputs,
    merge_peer_entries,
    merge_peer_outputs,
    sparse_mla,
    topk_selector,
)
from ..problems.layouts import LATENT_DIM, ROPE_DIM
from . import (
    BLOCK,
    LOGITS_BYTES,
    StepOutput,
    _allocate,
    _logits,
    _require_decode,
    _require_prefill,
    _require_step,
    _scratch,
    _topk,
)
from .exchanges import DIRECT, Exchange
from .sharding import ENTRIES, PARTIALS, QUERIES, Lengths, Sharding

__all__ = ["Lengths", "Sharding", "decode", "prefill"]


@torch.no_grad()
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
    sharding: Sharding,
    sm_scale: float,
    topk: int = 2048,
    kpe: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    lse_base: str = "2",
    split_heads: bool = False,
    lengths: Lengths | None = None,
    output: StepOutput | None = None,
    workspace: Workspace | None = None,
    executor: str | None = None,
    arch: str | None = None,
) -> StepOutput:
    """One decode step of b sequences with next_n queries each; every rank of a sharding calls it.

    Args:
        q_index, weights, q_nope, q_pe, attn_sink, sm_scale, topk, lse_base: as in `dsa.decode`, the same on
            every rank.
        seq_lens: [b, next_n] int32, tokens of the whole context that each query sees, the same on every rank.
        k_index_cache, kv, kpe: this rank's caches, with the same number of pages on every rank.
        block_table: [b, max_pages] int32, this rank's pages in the order of its tokens; tables may differ.
        sharding: the ranks, and the positions that each of them has.
        split_heads: each rank passes its own heads of q_nope, q_pe and attn_sink, the same number on every
            rank (tensor parallelism over the same ranks), and gets its heads of out and lse. The ranks
            exchange the queries first, so that each rank attends for all heads.
        lengths: `sharding.lengths(seq_lens.view(-1), topk)`, which the layers of a model can share; computed
            by default.
        output, workspace, executor, arch: as in `dsa.decode`.

    Returns:
        The step's output. It is equal bit for bit on all ranks, except that ranks with split heads have their
        own heads. Ids number the tokens of all caches in the order of the ranks: rank * pages * 64 + the
        rank's own id. They ascend by position in the sequence, as they would on one GPU.

    Raises:
        ArgumentTypeError, InvalidArgumentError, NoVariantError: as in `dsa.decode`; with
            DSL_KERNELS_CHECK_VALUES also if the ranks differ in shapes or options.
        ExchangeError: a rank did not come to an exchange. A call that fails does not write its outputs.
    """
    _require_kind("sharding", sharding, Sharding)
    with sharding.step("decode"):
        topk, sm_scale = _topk(topk), finite("sm_scale", sm_scale)
        _require_decode(q_index, seq_lens, block_table)
        _require_merge(q_nope, attn_sink, lse_base, topk, output, workspace)
        _require_some("block_table", block_table, 1, "column")
        require_dense("k_index_cache", k_index_cache)
        if lengths is not None:
            _require_kind("lengths", lengths, Lengths)
            if lengths.entries.numel() != seq_lens.numel():
                got = f"{lengths.entries.numel()} rows"
                raise InvalidArgumentError(
                    "lengths", expected=f"{seq_lens.numel()} rows", got=got, fix="make them of these seq_lens"
                )
        base = _first_id(sharding, k_index_cache, kv)
        _agree(
            sharding, {"seq_lens": seq_lens}, topk=topk, sm_scale=sm_scale, lse_base=lse_base,
            executor=executor, arch=arch, q_index=q_index, weights=weights, q_nope=q_nope, q_pe=q_pe,
            attn_sink=attn_sink, k_index_cache=k_index_cache, kv=kv, kpe=kpe, split_heads=split_heads,
        )  # fmt: skip
        (b, next_n), width = seq_lens.shape, block_table.shape[1] * PAGE
        rows = b * next_n
        lengths = lengths or sharding.lengths(seq_lens.reshape(rows), topk)
        scratch, lock, kept = _own_scratch(workspace, q_index)
        options: dict[str, Any] = {"executor": executor, "arch": arch, "workspace": scratch}
        with lock:
            logits = _logits(kept, (b, next_n, width), q_index)
            lightning_indexer(
                q_index,
                k_index_cache,
                weights,
                lengths.ends.view(b, next_n),
                block_table,
                out=logits,
                **options,
            )
            logits = logits.view(rows, width)
            given, entries = _entries(sharding, 3, rows, topk, q_index.device, ENTRIES[0], kept)
            topk_selector(
                logits, lengths.ends, topk, block_table=block_table, page_size=PAGE, next_n=next_n,
                out=entries[ID], values=entries[SCORE].view(torch.float32), positions=entries[TOKEN],
                **options,
            )  # fmt: skip
            tokens = k_index_cache.shape[0] * PAGE
            ids = _selected(sharding, given, entries, lengths.entries, tokens, ENTRIES[0], kept, options)
            own = ids - base
            if env.CHECK_VALUES.get():
                # Attention reads ids outside of its cache as padding, but refuses them if values are checked.
                own.masked_fill_((own < 0) | (own >= k_index_cache.shape[0] * PAGE), -1)
            return _attend(
                sharding, q_nope, q_pe, kv, own, ids, kept, output, sm_scale=sm_scale, kpe=kpe,
                attn_sink=attn_sink, lse_base=lse_base, split_heads=split_heads, options=options,
            )  # fmt: skip


@torch.no_grad()
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
    sharding: Sharding,
    sm_scale: float,
    topk: int = 2048,
    kpe: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    lse_base: str = "2",
    split_heads: bool = False,
    rows_per_chunk: int | None = None,
    output: StepOutput | None = None,
    workspace: Workspace | None = None,
    executor: str | None = None,
    arch: str | None = None,
) -> StepOutput:
    """Prefill of s query rows over a flat cache that the ranks share; every rank of a sharding calls it.

    A chunk of rows is scored, selected and exchanged at a time. The ranks exchange the partial outputs of all
    rows at the end.

    Args:
        q_index, weights, q_nope, q_pe, attn_sink, sm_scale, topk, lse_base: as in `dsa.prefill`, the same on
            every rank.
        k_start, k_end: [s] int32, each row's window in positions of the whole context.
        k_index, k_index_scales, kv, kpe: this rank's keys in the order of their positions, the same number on
            every rank. A rank with fewer keys pads them at the end, where no window reaches.
        sharding, split_heads: as in `decode`.
        rows_per_chunk, output, workspace, executor, arch: as in `dsa.prefill`.

    Returns:
        The step's output, equal bit for bit on all ranks, except for split heads; ids are positions in the
        whole context.

    Raises:
        ArgumentTypeError, InvalidArgumentError, NoVariantError, ExchangeError: as in `decode`.
    """
    _require_kind("sharding", sharding, Sharding)
    with sharding.step("prefill"):
        topk, sm_scale = _topk(topk), finite("sm_scale", sm_scale)
        _require_prefill(q_index, k_index, weights, k_start, k_end, q_nope, q_pe)
        _require_merge(q_nope, attn_sink, lse_base, topk, output, workspace)
        _require_some("k_index", k_index, 0, "key")
        if rows_per_chunk is not None:
            rows_per_chunk = integer("rows_per_chunk", rows_per_chunk, 1)
        _agree(
            sharding, {"k_start": k_start, "k_end": k_end}, topk=topk, sm_scale=sm_scale, lse_base=lse_base,
            executor=executor, arch=arch, rows_per_chunk=rows_per_chunk, q_index=q_index, weights=weights,
            q_nope=q_nope, q_pe=q_pe, attn_sink=attn_sink, k_index=k_index, kv=kv, kpe=kpe,
            split_heads=split_heads,
        )  # fmt: skip
        rows, keys = q_index.shape[0], k_index.shape[0]
        stride = -(-keys // 4) * 4
        lengths = sharding.lengths(k_end, topk, k_start)
        ends = lengths.ends.clamp(max=keys)
        chunk = rows_per_chunk or _rows_at_once(sharding, stride, topk)
        scratch, lock, kept = _own_scratch(workspace, q_index)
        options: dict[str, Any] = {"executor": executor, "arch": arch, "workspace": scratch}
        ids = q_nope.new_empty(rows, topk, dtype=torch.int32)
        with lock:
            for turn, first in enumerate(range(0, rows, chunk)):
                part, slot = slice(first, min(rows, first + chunk)), ENTRIES[turn % 2]
                starts = lengths.starts[part]
                logits = _logits(kept, (part.stop - first, stride), q_index)
                lightning_indexer_prefill(
                    q_index[part],
                    k_index,
                    k_index_scales,
                    weights[part],
                    starts,
                    ends[part],
                    out=logits,
                    **options,
                )
                given, entries = _entries(sharding, 2, part.stop - first, topk, q_index.device, slot, kept)
                topk_selector(
                    logits, ends[part], topk, row_starts=starts, absolute=True, out=entries[TOKEN],
                    values=entries[SCORE].view(torch.float32), **options,
                )  # fmt: skip
                ids[part] = _selected(sharding, given, entries, lengths.entries[part], 0, slot, kept, options)
            return _attend(
                sharding, q_nope, q_pe, kv, sharding.tokens(ids), ids, kept, output, sm_scale=sm_scale,
                kpe=kpe, attn_sink=attn_sink, lse_base=lse_base, split_heads=split_heads, options=options,
            )  # fmt: skip


def _entries(
    sharding: Sharding, planes: int, rows: int, topk: int, device: torch.device, slot: int, kept: Workspace
) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for the entries that a rank gives: the bytes, and a view [planes, rows, topk] int32 of them."""
    given = sharding.buffer(slot, 4 * planes * rows * topk, device, kept)
    return given, given.view(torch.int32).view(planes, rows, topk)


def _selected(
    sharding: Sharding,
    given: torch.Tensor,
    entries: torch.Tensor,
    counts: torch.Tensor,
    tokens: int,
    slot: int,
    kept: Workspace,
    options: dict[str, Any],
) -> torch.Tensor:
    """Ids of the topk best among the entries of all ranks, [rows, topk] int32, by ascending position.

    Entries are in the order of their positions, so ties are selected as on one GPU. Ids number the tokens of
    all ranks' caches, of `tokens` tokens each; entries without ids give positions.
    """
    what, named = "entries", {"interleave": sharding.interleave, "rank_stride": tokens, **options}
    taken = sharding.ranks * entries.shape[2] <= MOST_LISTED
    way = sharding.way(Exchange(len(given), len(given) if taken else None))
    if way == DIRECT:
        scores, ids = merge_peer_entries(entries, sharding.peers(what, slot), **named)
    else:
        received = sharding.gather(what, slot, given, way, kept)
        every = received.view(torch.int32).view(sharding.ranks, *entries.shape)
        scores, ids = merge_entries(every, **named)
    return topk_selector(
        scores.view(torch.float32), counts, entries.shape[2], block_table=ids, page_size=1, **options
    )


def _attend(
    sharding: Sharding,
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    kv: torch.Tensor,
    own: torch.Tensor,
    ids: torch.Tensor,
    kept: Workspace,
    output: StepOutput | None,
    *,
    sm_scale: float,
    kpe: torch.Tensor | None,
    attn_sink: torch.Tensor | None,
    lse_base: str,
    split_heads: bool,
    options: dict[str, Any],
) -> StepOutput:
    """Attention over this rank's own selected tokens, merged with the other ranks'."""
    result = output if output is not None else replace(_allocate(q_nope, 0), indices=ids)
    mine = slice(None)
    if split_heads:
        mine = slice(sharding.rank * q_nope.shape[1], (sharding.rank + 1) * q_nope.shape[1])
        q_nope, q_pe = _every_head(sharding, q_nope, q_pe, kept)
    rows, heads, _ = q_nope.shape
    size = rows * heads * LATENT_DIM * 2
    # Each rank's part is padded to a multiple of 16 bytes.
    given = sharding.buffer(PARTIALS, size + -(-rows * heads // 4) * 16, q_nope.device, kept)
    outs, lses = _partials(given[None], rows, heads)
    sparse_mla(
        q_nope, q_pe, kv, own, sm_scale=sm_scale, kpe=kpe, lse_base="2", out=outs[0], lse=lses[0], **options
    )
    wanted: dict[str, Any] = {
        "lse_scale": LSE_SCALE[lse_base], "out": result.out, "lse": result.lse, **options,
    }  # fmt: skip
    what = "partial outputs"
    # With split heads a kernel only reads its rank's heads.
    own_heads = heads // sharding.ranks if split_heads else heads
    way = sharding.way(Exchange(len(given), rows * own_heads * (2 * LATENT_DIM + 4)))
    if way == DIRECT:
        distances = sharding.peers(what, PARTIALS)
        merge_peer_outputs(outs[0, :, mine], lses[0, :, mine], distances, attn_sink, **wanted)
    else:
        outs, lses = _partials(sharding.gather(what, PARTIALS, given, way, kept), rows, heads)
        merge_outputs(outs[:, :, mine], lses[:, :, mine], attn_sink, **wanted)
    if output is not None:
        output.indices.copy_(ids)
    return result


def _every_head(
    sharding: Sharding, q_nope: torch.Tensor, q_pe: torch.Tensor, kept: Workspace
) -> tuple[torch.Tensor, torch.Tensor]:
    """The queries of all ranks' heads, [rows, ranks * heads, ...]."""
    rows, heads, _ = q_nope.shape
    require_dense("q_pe", q_pe)
    if (
        q_pe.shape != (rows, heads, ROPE_DIM)
        or q_pe.dtype != torch.bfloat16
        or q_nope.dtype != torch.bfloat16
    ):
        raise InvalidArgumentError(
            "q_pe", expected=f"shape {(rows, heads, ROPE_DIM)} of bfloat16, as q_nope",
            got=f"{tuple(q_pe.shape)} of {q_pe.dtype}", fix="make the operands agree",
        )  # fmt: skip
    width = LATENT_DIM + ROPE_DIM
    given = sharding.buffer(QUERIES, rows * heads * width * 2, q_nope.device, kept)
    joined = given.view(torch.bfloat16).view(rows, heads, width)
    joined[..., :LATENT_DIM].copy_(q_nope)
    joined[..., LATENT_DIM:].copy_(q_pe)
    received = sharding.gather("queries", QUERIES, given, sharding.way(Exchange(len(given))), kept)
    every = received.view(torch.bfloat16).view(sharding.ranks, rows, heads, width).transpose(0, 1)
    parts = every.split((LATENT_DIM, ROPE_DIM), dim=-1)
    nope, rope = (part.reshape(rows, sharding.ranks * heads, part.shape[-1]) for part in parts)
    return nope, rope


def _partials(given: torch.Tensor, rows: int, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Views of outputs [ranks, rows, heads, 512] and lse [ranks, rows, heads] in bytes [ranks, size]."""
    size = rows * heads * LATENT_DIM * 2
    outs = given[:, :size].view(torch.bfloat16).view(len(given), rows, heads, LATENT_DIM)
    lses = given[:, size : size + 4 * rows * heads].view(torch.float32).view(len(given), rows, heads)
    return outs, lses


def _rows_at_once(sharding: Sharding, stride: int, topk: int) -> int:
    """The most rows whose logits, and whose entries of all ranks with a copy, each fit `LOGITS_BYTES`."""
    entries = 8 * (2 * sharding.ranks + 1) * topk
    blocks = LOGITS_BYTES // (BLOCK * max(4 * stride, entries))
    return max(1, blocks) * BLOCK


def _own_scratch(workspace: Workspace | None, q_index: torch.Tensor) -> tuple[Workspace, Any, Workspace]:
    scratch, lock, kept = _scratch(workspace, q_index)
    if kept is None or scratch is None:
        raise InvalidArgumentError(
            "the call", expected="plain tensors outside of torch.compile and of modes",
            got="a call within one of them", fix="call the step outside of them; a CUDA graph can capture it",
        )  # fmt: skip
    return scratch, lock, kept


def _first_id(sharding: Sharding, k_index_cache: torch.Tensor, kv: torch.Tensor) -> int:
    """The id of this rank's first token among the tokens of all ranks."""
    require_dense("kv", kv)
    pages = k_index_cache.shape[0] if k_index_cache.dim() else 0
    tokens = math.prod(kv.shape[:-1])
    if tokens != pages * PAGE:
        raise InvalidArgumentError(
            "kv", expected=f"the {pages * PAGE} tokens of the index cache's {pages} pages",
            got=f"{tokens} tokens", fix="pass caches of the same pages",
        )  # fmt: skip
    if sharding.ranks * pages * PAGE > INT32_MAX:
        raise InvalidArgumentError(
            "k_index_cache", expected=f"at most {INT32_MAX} tokens on all ranks",
            got=f"{sharding.ranks} times {tokens}", fix="use smaller caches: ids are int32",
        )  # fmt: skip
    return sharding.rank * pages * PAGE


def _require_kind(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise ArgumentTypeError(
            name, expected=f"a dsa.parallel.{kind.__name__}", got=shown(value), fix="pass one"
        )


def _require_some(name: str, tensor: torch.Tensor, axis: int, what: str) -> None:
    if tensor.shape[axis] == 0:
        raise InvalidArgumentError(
            name, expected=f"at least one {what}", got=f"shape {tuple(tensor.shape)}",
            fix="pad it: nothing reads the padding"
        )  # fmt: skip


def _require_merge(
    q_nope: torch.Tensor,
    attn_sink: torch.Tensor | None,
    lse_base: str,
    topk: int,
    output: StepOutput | None,
    workspace: Workspace | None,
) -> None:
    """Check what attention would only check after other launches, or not at all."""
    _require_step(workspace, output)
    require_dense("q_nope", q_nope)
    if q_nope.dim() != 3 or q_nope.shape[2] != LATENT_DIM:
        raise InvalidArgumentError(
            "q_nope", expected=f"[rows, heads, {LATENT_DIM}]", got=f"shape {tuple(q_nope.shape)}",
            fix="reshape it with .view(...)"
        )  # fmt: skip
    if not isinstance(lse_base, str) or lse_base not in LSE_SCALE:
        raise InvalidArgumentError(
            "lse_base", expected="'2' or 'e'", got=repr(lse_base), fix="name the base of lse"
        )
    rows, heads, _ = q_nope.shape
    wanted: dict[str, tuple[torch.Tensor, tuple[int, ...], torch.dtype]] = {}
    if attn_sink is not None:
        wanted["attn_sink"] = attn_sink, (heads,), torch.float32
    if output is not None:
        wanted |= {
            "output.out": (output.out, (rows, heads, LATENT_DIM), torch.bfloat16),
            "output.lse": (output.lse, (rows, heads), torch.float32),
            "output.indices": (output.indices, (rows, topk), torch.int32),
        }
    for name, (tensor, shape, dtype) in wanted.items():
        require_dense(name, tensor)
        if tensor.dtype != dtype:
            raise ArgumentTypeError(
                name, expected=f"dtype {dtype}", got=str(tensor.dtype), fix="convert it with .to(...)"
            )
        if tuple(tensor.shape) != shape or tensor.device != q_nope.device:
            raise InvalidArgumentError(
                name, expected=f"shape {shape} on {q_nope.device}",
                got=f"shape {tuple(tensor.shape)} on {tensor.device}", fix="make the operands agree",
            )  # fmt: skip


def _agree(sharding: Sharding, limits: dict[str, torch.Tensor], **arguments: object) -> None:
    """If values are checked, require the other ranks' shapes, options, and lengths or windows."""
    if sharding.ranks == 1 or not env.CHECK_VALUES.get():
        return
    facts = {
        name: f"{value.dtype} {list(value.shape)}" if isinstance(value, torch.Tensor) else value
        for name, value in arguments.items()
    }
    for name, values in limits.items():
        checksum = zlib.crc32(repr(values.flatten().tolist()).encode())
        facts[name] = f"{list(values.shape)} with checksum {checksum:08x}"
    sharding.agree({**facts, "interleave": sharding.interleave, "transport": sharding.transport})
