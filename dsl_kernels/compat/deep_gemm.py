"""DeepGEMM's scores of the lightning indexer by `ops.lightning_indexer` (deepseek-ai/DeepGEMM, 54e2261).

| DeepGEMM | here |
| --- | --- |
| `get_paged_mqa_logits_metadata(...)` | zeros of its shape: nothing is planned |
| `fp8_paged_mqa_logits`, `fp8_fp4_paged_mqa_logits` with `q` fp8 | what `ops.lightning_indexer` takes |
| their heads, dims and pages | 1 to 64 heads; dims and tokens of a page in multiples of 16 |
| their `context_lens` | as in DeepGEMM |
| `indices` (several rows of one sequence) | not read: each row has its own length and row of `block_table` |
| `schedule_meta` | not read |
| `clean_logits` of paged scores | served, though DeepGEMM refuses it; filled before the kernel |
| `fp8_mqa_logits`, `fp8_fp4_mqa_logits` with `q` fp8 | `ops.lightning_indexer_prefill`, same heads and dims |
| `clean_logits` | -inf outside a row's keys, filled before the kernel |
| `max_seqlen_k` other than 0 (compressed scores) | served, also with `clean_logits`, unlike DeepGEMM |
| `fp8_fp4_paged_mqa_logits` with `q` fp4 | on sm_100a: 1 to 64 heads, 128 dims, pages of 64 |
| `fp8_fp4_mqa_logits` with `q` fp4 | on sm_100a: 1 to 64 heads, 128 dims |
| fp4 with 64 dims or pages of 32 | refused |
| `q` fp8 with scales (MXFP8, of later versions) | refused |
| `logits_dtype` | float32 or bfloat16 |
| `weights` in bfloat16 | served; torch converts them to float32 before the kernel |

Rows of scores are a multiple of 1,024 bytes apart, as in DeepGEMM. Columns that are not scored are
uninitialised.
"""

from __future__ import annotations

import math

import torch

from ..arguments import integer, named_as, require, require_axes, require_dense
from ..ops import lightning_indexer, lightning_indexer_prefill

__all__ = [
    "fp8_fp4_mqa_logits",
    "fp8_fp4_paged_mqa_logits",
    "fp8_mqa_logits",
    "fp8_paged_mqa_logits",
    "get_paged_mqa_logits_metadata",
]

ROW_BYTES = 1024
FP8 = "fp8 queries, whose scales are folded into weights"
# DeepGEMM's dtype of two numbers of 4 bits, and others that name the same bytes.
PAIRS = ("torch.int8", "torch.uint8", "torch.float4_e2m1fn_x2")

Scaled = tuple[torch.Tensor, torch.Tensor | None]


def get_paged_mqa_logits_metadata(
    context_lens: torch.Tensor, block_kv: int, num_sms: int, indices: torch.Tensor | None = None
) -> torch.Tensor:
    """Int32 zeros of shape [num_sms + 1, 2], for callers that keep a buffer of that shape.

    Args:
        context_lens: its device is that of the result.
        block_kv, indices: not read.
        num_sms: at least 1.

    Raises:
        ArgumentTypeError, InvalidArgumentError: `num_sms` is not such a number, or `context_lens` not a
            tensor.
    """
    require_dense("context_lens", context_lens)
    return context_lens.new_zeros((integer("num_sms", num_sms, 1, 1 << 20) + 1, 2), dtype=torch.int32)


def fp8_paged_mqa_logits(
    q: torch.Tensor,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    schedule_meta: torch.Tensor | None,
    max_context_len: int,
    clean_logits: bool = False,
    indices: torch.Tensor | None = None,
    *,
    executor: str | None = None,
) -> torch.Tensor:
    """As `fp8_fp4_paged_mqa_logits` of (q, None), with scores in float32."""
    return fp8_fp4_paged_mqa_logits(
        (q, None),
        kv_cache,
        weights,
        context_lens,
        block_table,
        schedule_meta,
        max_context_len,
        clean_logits,
        indices=indices,
        executor=executor,
    )


def fp8_fp4_paged_mqa_logits(
    q: Scaled,
    kv_cache: torch.Tensor,
    weights: torch.Tensor,
    context_lens: torch.Tensor,
    block_table: torch.Tensor,
    schedule_meta: torch.Tensor | None,
    max_context_len: int,
    clean_logits: bool = False,
    logits_dtype: torch.dtype = torch.float32,
    indices: torch.Tensor | None = None,
    *,
    executor: str | None = None,
) -> torch.Tensor:
    """Scores of a decode step over a paged cache of index keys.

    Args:
        q: ([b, next_n, heads, dim] float8_e4m3fn, None), or of 4 bits ([b, next_n, heads, dim / 2] int8,
            [b, next_n, heads] int32 of four UE8M0 bytes).
        kv_cache: [pages, page_size, 1, dim + 4] bytes, or of 4 bits [pages, page_size, 1, dim / 2 + 4].
        weights: [b * next_n, heads] float32 or bfloat16.
        context_lens: [b, next_n] int32, at most `max_context_len` and what `block_table` reaches.
        block_table: [b, max_pages] int32.
        schedule_meta, indices: not read.
        max_context_len: columns of the result.
        clean_logits: whether columns past a row's length are -inf.
        logits_dtype: dtype of the result.
        executor: as in `ops.lightning_indexer`.

    Returns:
        [b * next_n, max_context_len] of `logits_dtype`, rows a multiple of 1,024 bytes apart.

    Raises:
        InvalidArgumentError: what the table above refuses; names the argument.
        As in `ops.lightning_indexer`.
    """
    values, scales = _paired(q)
    require_axes("q", values, "[b, next_n, heads, dim]")
    b, next_n, heads, _ = values.shape
    columns = integer("max_context_len", max_context_len, 1)
    fits = weights.dim() == 2 and weights.shape == (b * next_n, heads)
    require(
        "weights",
        fits,
        f"[b * next_n, heads] = [{b * next_n}, {heads}]",
        str(tuple(weights.shape)),
        "pass one weight a row and head",
    )
    require_axes("kv_cache", kv_cache, "[pages, page_size, 1, dim + 4]")
    logits = _rows((b, next_n), columns, values, logits_dtype, clean_logits)
    with named_as(
        k_cache="kv_cache", seq_lens="context_lens", out="logits_dtype", page_size="kv_cache", q_scales="q"
    ):
        lightning_indexer(
            values,
            kv_cache,
            _weights(weights),
            context_lens,
            block_table,
            page_size=kv_cache.shape[1],
            scale_format="float32" if scales is None else "mxfp4",
            q_scales=scales,
            out=logits,
            executor=executor,
        )
    return logits.flatten(0, 1)[:, :columns]


def fp8_mqa_logits(
    q: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor],
    weights: torch.Tensor,
    cu_seq_len_k_start: torch.Tensor,
    cu_seq_len_k_end: torch.Tensor,
    clean_logits: bool = True,
    max_seqlen_k: int = 0,
    *,
    executor: str | None = None,
) -> torch.Tensor:
    """As `fp8_fp4_mqa_logits` of (q, None), with scores in float32."""
    return fp8_fp4_mqa_logits(
        (q, None),
        kv,
        weights,
        cu_seq_len_k_start,
        cu_seq_len_k_end,
        clean_logits,
        max_seqlen_k,
        executor=executor,
    )


def fp8_fp4_mqa_logits(
    q: Scaled,
    kv: tuple[torch.Tensor, torch.Tensor],
    weights: torch.Tensor,
    cu_seq_len_k_start: torch.Tensor,
    cu_seq_len_k_end: torch.Tensor,
    clean_logits: bool = True,
    max_seqlen_k: int = 0,
    logits_dtype: torch.dtype = torch.float32,
    *,
    executor: str | None = None,
) -> torch.Tensor:
    """Scores of a prompt over flat index keys, each row over a window of them.

    Args:
        q: ([s, heads, dim] float8_e4m3fn, None), or of 4 bits ([s, heads, dim / 2] int8, [s, heads] int32).
        kv: ([skv, dim] float8_e4m3fn, [skv] float32 scales), or of 4 bits ([skv, dim / 2] int8, [skv] int32).
        weights: [s, heads] float32 or bfloat16.
        cu_seq_len_k_start, cu_seq_len_k_end: [s] int32, the half-open window of each row.
        clean_logits: whether columns outside a row's window are -inf.
        max_seqlen_k: with 0, column j is key j. Otherwise the result's columns, at least the keys of the
            widest window; then column j of a row is the j-th key of its window.
        logits_dtype: dtype of the result.
        executor: as in `ops.lightning_indexer_prefill`.

    Returns:
        [s, skv] of `logits_dtype`, or [s, max_seqlen_k], rows a multiple of 1,024 bytes apart.

    Raises:
        InvalidArgumentError: what the table above refuses; names the argument.
        As in `ops.lightning_indexer_prefill`.
    """
    values, q_scales = _paired(q)
    compressed = integer("max_seqlen_k", max_seqlen_k, 0) > 0
    require_axes("q", values, "[s, heads, dim]")
    keys, scales = kv
    require_axes("kv", keys, "[skv, dim]")
    columns = max_seqlen_k if compressed else keys.shape[0]
    logits = _rows((values.shape[0],), columns, values, logits_dtype, clean_logits)[:, :columns]
    require_dense("weights", weights)
    with named_as(
        k="kv", k_scales="kv", k_start="cu_seq_len_k_start", k_end="cu_seq_len_k_end", out="logits_dtype",
        q_scales="q",
    ):  # fmt: skip
        lightning_indexer_prefill(
            values,
            keys,
            scales,
            _weights(weights),
            cu_seq_len_k_start,
            cu_seq_len_k_end,
            q_scales=q_scales,
            compressed=compressed,
            out=logits,
            executor=executor,
        )
    return logits


def _weights(weights: torch.Tensor) -> torch.Tensor:
    """Weights in a dtype that the ops take."""
    return weights.float() if weights.dtype == torch.bfloat16 else weights


def _paired(q: Scaled) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The queries of the pair, and their scales where the queries have 4 bits."""
    paired = isinstance(q, tuple) and len(q) == 2
    require("q", paired, f"a pair of {FP8}, and None", type(q).__name__, "pass (q, None)")
    values, scales = q
    require_dense("q", values)
    if scales is not None:
        require(
            "q", str(values.dtype) in PAIRS, f"{FP8}, and None, or pairs of 4 bits as int8 with their scales",
            f"{values.dtype} with scales (MXFP8)", "call DeepGEMM, or quantise with one scale a head",
        )  # fmt: skip
        require_dense("q", scales)
    return values, scales


def _rows(
    rows: tuple[int, ...], columns: int, like: torch.Tensor, dtype: torch.dtype, clean: bool
) -> torch.Tensor:
    """Memory for scores, with a multiple of 1,024 bytes per row; `clean` fills it with -inf."""
    each = ROW_BYTES // dtype.itemsize
    stride = -(-columns // each) * each
    if clean:
        return like.new_full((*rows, stride), -math.inf, dtype=dtype)
    return like.new_empty((*rows, stride), dtype=dtype)
