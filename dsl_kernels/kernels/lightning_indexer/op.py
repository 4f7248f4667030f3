"""Torch ops of the FP8 lightning indexer: paged decode and flat prefill scoring."""

from __future__ import annotations

from typing import Any

import torch

from ...arguments import INT32_MAX, integer, require_dense, shown
from ...errors import ArgumentTypeError, InvalidArgumentError
from ...ops._base import run
from ...ops._library import torch_op
from ...ops.workspace import Workspace
from ...problems.layouts import INDEX_DIM
from ._mxfp4_op import kind_of, of_four_bits, of_prompts
from .problem import BLOCK, FEW_HEADS, GRAIN, PAGE, form_of, pages_of

# The kernels of the form "plain" (pages of 64, 128 dims, scores in fp32) are built for these numbers of
# heads. For each, the most queries per sequence.
QUERIES_OF_HEADS = {64: 16, 32: 16, **dict.fromkeys(FEW_HEADS, 8)}


@torch_op("lightning_indexer", "decode_blocks")
def lightning_indexer(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    weights: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    page_size: int = PAGE,
    block_size: int = 0,
    scale_format: str = "float32",
    q_scales: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    maxima: torch.Tensor | None = None,
    skip_below: int = 0,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """Score every cached key of each sequence: scale * sum_h w_h * relu(q_h . k).

    Specialised kernels serve 8, 16, 24, 32 and 64 heads of 128 dims, pages of 64 tokens whose stride is a
    multiple of 128 bytes, scores in float32, and next_n up to 8 (up to 16 with 32 or 64 heads). General
    kernels serve the other sizes. The kernels for `block_size`, `scale_format="mx"` and `maxima` read the
    keys of a sequence once for each of its queries.

    Args:
        q: [b, next_n, heads, dim] float8_e4m3fn, 1 to 64 heads, dim a multiple of 16 up to 128, next_n 1 to
            16. Strides are multiples of 16 elements.
        k_cache: [pages, page_size, 1, dim + 4] bytes, block-planar (see `problems.layouts.pack_index_keys`).
            The stride of pages is a multiple of 16 bytes.
        weights: [b, next_n, heads] or [b * next_n, heads] float32, of any sign. Strides are multiples of 4
            elements. General kernels also need one stride for all queries of the batch.
        seq_lens: [b, next_n] int32 with rows at any stride, or [b] with one query per sequence. The keys that
            each query sees, 0 for padded rows; at most max_pages * page_size and at most the stride of `out`.
            Kernels do not check this: a greater length reads past the table and writes past the row.
        block_table: [b, max_pages] int32 with rows at any stride, ids of pages of `k_cache`. Kernels do not
            follow entries past ceil(len / page_size). They do not check ids: any other id reads memory
            outside the cache.
        page_size: tokens per page, a multiple of 16; of 8 for `block_size`, `scale_format="mx"` and `maxima`.
        block_size: 0, or a multiple of 8 that divides page_size. Then `block_table` names blocks of
            block_size tokens in place of pages. Block n is tokens n * block_size to (n + 1) * block_size - 1
            of all pages. The table is [b, max_blocks], or [b * next_n, max_blocks] with a list for each
            query. Column j of a query is token j of its blocks, and the length of a query counts these
            tokens. `topk_selector` makes such a list from `maxima`, with pages of page_size / 8. Given the
            list as a block table with pages of 8, `topk_selector` names tokens of the cache.
        scale_format: "float32", or "mx": the four bytes of a key's scale are four copies of one UE8M0 byte,
            2^(byte - 127), as in vLLM's cache for Blackwell. Kernels read one of the four. With "mxfp4"
            (sm_100a only) keys and queries have 4 bits: `q` is [b, next_n, heads, 64] bytes, pairs of e2m1;
            `k_cache` is [pages, 64, 1, 68], 64 bytes per token, then 4 UE8M0 bytes per token
            (`problems.mxfp4.pack_mxfp4_index_keys`). The stride of pages is a multiple of 64 bytes. Any
            next_n is served, so a prompt can be scored over its pages, with the keys that each token sees as
            `seq_lens`. The keys of a sequence are read once for up to 16 queries. More queries form groups of
            the greatest divisor of next_n up to 16, and the keys are read once for each group.
        q_scales: with "mxfp4" [b, next_n, heads] or [b * next_n, heads] int32, rows at a stride of a multiple
            of 16 bytes. A number holds the four UE8M0 bytes of a head, each for 32 dims, the first ones
            lowest (`problems.mxfp4.quantise_mxfp4`).
        out: [b, next_n, stride] float32 or bfloat16 to write into, at any strides. The default is float32 and
            a stride of max_pages * page_size, or max_blocks * block_size. Must not overlap an input. Only
            float32 for `block_size`, `scale_format="mx"` and `maxima`.
        maxima: [b, next_n, at least ceil(stride / 8)] float32. Kernels write the greatest score of each 8
            keys here; NaN does not count. Columns past a row's last key are not written.
        skip_below: rows with at most this many keys are not scored (selection takes all of them).
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        logits [b, next_n, stride] of `out`'s dtype; columns at and beyond a row's length are not written.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device that does not fit.
        NoVariantError: no generated variant accepts these sizes.
    """
    if isinstance(seq_lens, torch.Tensor) and seq_lens.dim() == 1:
        require_dense("seq_lens", seq_lens)
        seq_lens = seq_lens.unsqueeze(1)
    if type(page_size) is not int or not 1 <= page_size <= INT32_MAX:
        page_size = integer("page_size", page_size, 1, INT32_MAX)
    if scale_format == "mxfp4":
        operands = of_four_bits(
            {
                "q": q, "q_scales": q_scales, "k_cache": k_cache, "weights": weights, "seq_lens": seq_lens,
                "block_table": block_table, "out": out, "skip_below": skip_below, "page_size": page_size,
                "block_size": block_size, "maxima": maxima,
            },
            _by_row,
        )  # fmt: skip
        form, of_rows = form_of("decode", kind_of(out)), {"sharing": operands["sharing"]}
        run("lightning_indexer", form, operands, executor, variant, arch, workspace, of_rows)
        logits: torch.Tensor = operands["logits"]
        return logits.view(*q.shape[:2], -1) if out is None else out
    if q_scales is not None:
        raise InvalidArgumentError(
            "q_scales", expected=f"None with scale_format={shown(scale_format)}", got=type(q_scales).__name__,
            fix="fold scales of a query into weights, "
            'or pass keys and queries of 4 bits with scale_format="mxfp4"',
        )  # fmt: skip
    if block_size != 0 or scale_format != "float32" or maxima is not None:
        return _by_blocks(
            q, k_cache, weights, seq_lens, block_table, page_size, block_size, scale_format, out, maxima,
            skip_below, executor, variant, arch, workspace,
        )  # fmt: skip
    kind, dim, step = _kind(q, out, 4), INDEX_DIM, INDEX_DIM
    static: dict[str, int] | None = None
    if kind == "plain" and (page_size != PAGE or _apart(k_cache)):
        kind = "any"
    if kind != "plain":
        static, dim, step, weights = {"page_size": page_size}, q.shape[-1], GRAIN, _by_query(weights, q)
    elif isinstance(weights, torch.Tensor) and weights.dim() == 2:
        weights = _by_sequence(weights, q)
    operands = {
        "q": q, "k_cache": pages_of(k_cache, page_size, dim, step), "weights": weights, "seq_lens": seq_lens,
        "block_table": block_table, "logits": out, "skip_below": skip_below,
    }  # fmt: skip
    if static is not None:
        operands |= static
    run("lightning_indexer", form_of("decode", kind), operands, executor, variant, arch, workspace, static)
    scores: torch.Tensor = operands["logits"]
    return scores


SCALE_FORMATS = ("float32", "mx", "mxfp4")


def _by_blocks(
    q: torch.Tensor, k_cache: torch.Tensor, weights: torch.Tensor, seq_lens: torch.Tensor,
    block_table: torch.Tensor, page_size: int, block_size: int, scale_format: str, out: torch.Tensor | None,
    maxima: torch.Tensor | None, skip_below: int, executor: str | None, variant: str | None, arch: str | None,
    workspace: Workspace | None,
) -> torch.Tensor:  # fmt: skip
    """Run `lightning_indexer` in the form whose rows have one query each."""
    if not isinstance(scale_format, str) or scale_format not in SCALE_FORMATS:
        raise InvalidArgumentError(
            "scale_format", expected=" or ".join(map(repr, SCALE_FORMATS)), got=shown(scale_format),
            fix="name the format of the cache's scales",
        )  # fmt: skip
    if type(block_size) is not int or not 0 <= block_size <= INT32_MAX:
        block_size = integer("block_size", block_size, 0, INT32_MAX)
    given = {"q": q, "seq_lens": seq_lens, "block_table": block_table}
    given |= {name: tensor for name, tensor in (("out", out), ("maxima", maxima)) if tensor is not None}
    for name, tensor in given.items():
        require_dense(name, tensor)
    if q.dim() != 4:
        raise InvalidArgumentError(
            "q", expected="[b, next_n, heads, dim]", got=f"shape {tuple(q.shape)}", fix="pass four axes"
        )
    b, next_n = q.shape[:2]
    # The table has a line for each query, or a line for each sequence.
    sharing = 1 if block_size and len(block_table) == b * next_n else max(1, next_n)
    unit = block_size or page_size
    _require_unit(page_size, unit)
    rows = {name: _by_row(name, tensor, b, next_n) for name, tensor in given.items() if name != "block_table"}
    most = rows.get("maxima")
    sizes = {
        "page_size": page_size, "block_size": unit, "sharing": sharing, "mx": int(scale_format == "mx"),
        "has_maxima": int(maxima is not None),
    }  # fmt: skip
    operands: dict[str, Any] = {
        "q": rows["q"], "k_cache": pages_of(k_cache, page_size, q.shape[-1], GRAIN),
        "weights": _by_query(weights, q), "seq_lens": rows["seq_lens"], "block_table": block_table,
        "logits": rows.get("out"), "skip_below": skip_below, "maxima": None if most is None else most[:, 0],
        **sizes,
    }  # fmt: skip
    run("lightning_indexer", form_of("decode", "blocks"), operands, executor, variant, arch, workspace, sizes)
    scores: torch.Tensor = operands["logits"]
    return scores.view(b, next_n, -1) if out is None else out


def _require_unit(page_size: int, unit: int) -> None:
    """Raise unless entries of a table name whole blocks of a page."""
    if page_size % unit or unit % BLOCK:
        name = "page_size" if page_size == unit else "block_size"
        raise InvalidArgumentError(
            name,
            expected=f"a multiple of {BLOCK} that divides page_size = {page_size}"
            if name == "block_size"
            else f"a multiple of {BLOCK}",
            got=str(unit),
            fix=f"give blocks of a multiple of {BLOCK} tokens",
        )


def _by_row(name: str, tensor: torch.Tensor, b: int, next_n: int, each: int = 1) -> torch.Tensor:
    """View [b, next_n, ...] as [b * next_n / each, each, ...]."""
    if tensor.dim() > 1 and tensor.shape[:2] == (b, next_n):
        try:
            return tensor if next_n == each else tensor.view(b * next_n // each, each, *tensor.shape[2:])
        except RuntimeError:
            pass
    raise InvalidArgumentError(
        name,
        expected="the queries of q on its first two axes, [b, next_n, ...], at one stride",
        got=f"shape {tuple(tensor.shape)}, strides {tensor.stride()}",
        fix="pass a tensor whose first two axes can be viewed as one: call .contiguous()",
    )


def _kind(q: torch.Tensor, out: torch.Tensor | None, rank: int) -> str:
    """The kind of form that takes queries and scores of these sizes and dtypes, or "plain"."""
    if not isinstance(q, torch.Tensor) or q.dim() != rank:
        return "plain"
    if isinstance(out, torch.Tensor) and out.dtype == torch.bfloat16:
        return "any_bf16"
    *_, heads, dim = q.shape
    most = QUERIES_OF_HEADS.get(heads, 0)
    return "plain" if dim == INDEX_DIM and most and (rank < 4 or q.shape[1] <= most) else "any"


def _apart(k_cache: torch.Tensor) -> bool:
    """Whether the stride of pages is one that kernels for pages of 64 refuse."""
    return isinstance(k_cache, torch.Tensor) and k_cache.dim() == 4 and k_cache.stride(0) % INDEX_DIM != 0


def _by_query(weights: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Weights as one row per query."""
    if not isinstance(weights, torch.Tensor) or weights.dim() != 3:
        return weights
    if weights.shape[:2] == q.shape[:2]:
        try:
            return weights.view(-1, weights.shape[2])
        except RuntimeError:
            pass
    raise InvalidArgumentError(
        "weights",
        expected="[b, next_n, heads] with the queries of q, at one stride",
        got=f"shape {tuple(weights.shape)}, strides {weights.stride()}, with q {tuple(q.shape)}",
        fix="pass weights whose first two axes can be viewed as one: call .contiguous()",
    )


def _by_sequence(weights: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Weights with one row per query, as [b, next_n, heads]."""
    require_dense("weights", weights)
    require_dense("q", q)
    rows = q.shape[:2] if q.dim() == 4 else (0, 0)
    if weights.shape[0] != rows[0] * rows[1]:
        raise InvalidArgumentError(
            "weights",
            expected="[b, next_n, heads], or [b * next_n, heads], with the queries of q",
            got=f"shape {tuple(weights.shape)} with q {tuple(q.shape)}",
            fix="pass weights for the queries of q",
        )
    return weights.unflatten(0, rows)


@torch_op("lightning_indexer", "prefill_any")
def lightning_indexer_prefill(
    q: torch.Tensor,
    k: torch.Tensor,
    k_scales: torch.Tensor,
    weights: torch.Tensor,
    k_start: torch.Tensor,
    k_end: torch.Tensor,
    *,
    q_scales: torch.Tensor | None = None,
    compressed: bool = False,
    out: torch.Tensor | None = None,
    skip_below: int = 0,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
) -> torch.Tensor:
    """Score flat keys, with a window of keys for each query row.

    Args:
        q: [s, heads, dim] float8_e4m3fn, heads and dim as for `lightning_indexer`. Strides are multiples of
            16 elements.
        k, k_scales: [skv, dim] float8_e4m3fn with a stride of rows that is a multiple of 16 bytes, and [skv]
            float32.
        weights: [s, heads] float32. The stride of rows is a multiple of 16 bytes.
        q_scales: None, or [s, heads] int32, rows at a stride of a multiple of 16 bytes. Then queries and keys
            have 4 bits (MXFP4, sm_100a only): `q` is [s, heads, 64] bytes, `k` [skv, 64] bytes, and
            `k_scales` [skv] int32. A number holds four UE8M0 bytes, each for 32 dims, the first ones lowest
            (`problems.mxfp4.quantise_mxfp4`).
        k_start, k_end: [s] int32, half-open window of each row. Keys before 0 and past skv do not count. A
            window that ends before it starts is empty.
        compressed: a row's scores begin with the first key of its window: column j is key max(k_start, 0) +
            j. Kernels do not check whether a window is wider than `out`: they write past the row.
        out: [s, stride] float32 or bfloat16 to write into, rows at any stride. `stride` is at least skv, or
            with `compressed` at least the widest window. The default is float32, and skv rounded up to a
            multiple of 4. Must not overlap an input.
        skip_below, executor, variant, arch, workspace: as for `lightning_indexer`.

    Returns:
        logits [s, stride] of `out`'s dtype. Column j is key j, or with `compressed` key max(k_start, 0) + j.
        Columns outside a row's window are not written.

    Raises:
        The errors of `lightning_indexer`.
    """
    operands: dict[str, Any] = {
        "q": q, "k": k, "k_scales": k_scales, "weights": weights, "k_start": k_start, "k_end": k_end,
        "logits": out, "skip_below": skip_below,
    }  # fmt: skip
    if type(compressed) not in (bool, int) or compressed not in (0, 1):
        raise ArgumentTypeError(
            "compressed", expected="True or False", got=shown(compressed), fix="pass one of these"
        )
    static: dict[str, int] | None = None
    if q_scales is None:
        kind = _kind(q, out, 3)
    else:
        kind = kind_of(out)
        operands |= of_prompts(q, q_scales, k, k_scales)
    if compressed or kind != "plain":
        kind = "any" if kind == "plain" else kind
        static = {"compressed": int(compressed)}
        operands |= static
    run("lightning_indexer", form_of("prefill", kind), operands, executor, variant, arch, workspace, static)
    scores: torch.Tensor = operands["logits"]
    return scores
