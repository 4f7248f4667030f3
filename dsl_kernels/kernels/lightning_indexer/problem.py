"""FP8 lightning indexer scoring: logits[r, j] = scale[j] * sum_h w[r, h] * max(0, q[r, h] . k[j]).

Decode reads the paged cache, block-planar with 132 bytes per key, through a block table. Prefill reads flat
keys, with a window of keys for each row. Columns outside a row's valid range are not written. The forms "any"
take pages of a multiple of 16 tokens, keys of 16 to 128 dims and 1 to 64 heads. Their prefill can write a
row's scores from column 0 on. Their scores are fp32 or bf16. The form "decode_blocks" reads pages or lists of
blocks of 8 tokens, with scales in fp32 or UE8M0 bytes. It can write the greatest score of each 8 keys:
DeepSeek-V4.1 selects on these two levels. The forms "mxfp4" take keys and queries of 4 bits and 1 to 64
heads, with scores in fp32 or bf16.
Source: DeepSeek-V3.2 and the flashinfer-bench definition dsa_topk_indexer_fp8_h64_d128_topk2048_ps64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import product
from typing import Any

from ..._torch import torch
from ...arguments import require_dense
from ...dtypes import DTYPES
from ...errors import ArgumentTypeError, InvalidArgumentError
from ...problems.base import ROW_GRIDS, WIDE_SCORES, PointName, Problem
from ...problems.layouts import INDEX_DIM
from . import blocks, mxfp4
from .forms import FORMS, FOUR_BITS, GRAIN, PAGE, SCORES, form_of, parts_of

__all__ = [
    "BLOCK",
    "FEW_HEADS",
    "FORMS",
    "FOUR_BITS",
    "GRAIN",
    "PAGE",
    "PROBLEM",
    "SCORES",
    "form_of",
    "of_a_row",
    "pages_of",
    "parts_of",
]

BLOCK = blocks.BLOCK
# With so few index heads, one product holds several queries.
FEW_HEADS = (8, 16, 24)


def pages_of(
    k_cache: torch.Tensor, page_size: int = PAGE, dim: int = INDEX_DIM, step: int = INDEX_DIM
) -> torch.Tensor:
    """View the cache as [pages, bytes of a page].

    Args:
        k_cache: [pages, page_size, 1, dim + 4], [pages, page_size, dim + 4] or already flat, of a dtype of
            one byte.
        page_size: tokens per page.
        dim: dims of a key.
        step: bytes of which the stride of pages has to be a multiple.

    Raises:
        ArgumentTypeError, InvalidArgumentError: another dtype or shape, or a stride that is no multiple of
            `step` bytes.
    """
    each = page_size * (dim + 4)
    try:
        shape = k_cache.shape
        if k_cache.element_size() == 1 and len(shape) > 1 and shape[1:].numel() == each:
            flat = k_cache if len(shape) == 2 else k_cache.view(shape[0], each)
            apart = flat.stride(0)
            if apart % step == 0 or shape[0] < 2:
                return flat if flat.dtype == torch.uint8 else flat.view(torch.uint8)
    except Exception:
        require_dense("k_cache", k_cache)
        raise InvalidArgumentError(
            "k_cache",
            expected="pages of contiguous bytes",
            got=f"shape {tuple(k_cache.shape)}, strides {k_cache.stride()}",
            fix="call .contiguous()",
        ) from None
    require_dense("k_cache", k_cache)
    if k_cache.element_size() == 1 and len(shape) > 1 and shape[1:].numel() == each:
        raise InvalidArgumentError(
            "k_cache",
            expected=f"a stride of pages that is a multiple of {step} bytes",
            got=f"a stride of {apart} bytes",
            fix=f"pad the pages of the cache to a multiple of {step} bytes",
        )
    if k_cache.element_size() != 1:
        raise ArgumentTypeError(
            "k_cache", expected="a dtype of one byte", got=str(k_cache.dtype), fix="view it as uint8"
        )
    raise InvalidArgumentError(
        "k_cache", expected=f"[pages, {page_size}, 1, {dim + 4}] (pages of {page_size} tokens)",
        got=str(tuple(shape)), fix="pass the block-planar index cache, and its page_size",
    )  # fmt: skip


def of_a_row(form: str, dims: Mapping[str, int]) -> tuple[int, float, float]:
    """Heads of a call, bytes of a key with its scale, and bytes of a score."""
    kind = parts_of(form)[1]
    key = mxfp4.TOKEN_BYTES if kind in FOUR_BITS else dims.get("index_dim", INDEX_DIM) + 4.0
    return dims["heads" if kind == "plain" else "index_heads"], key, float(DTYPES[SCORES[kind]].bytes)


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Keys and scales once per sequence, logits once per query, queries and weights once."""
    heads, key, score = of_a_row(form, dims)
    if parts_of(form)[0] == "prefill":
        rows, keys = dims["s"], dims["skv"]
        return keys * key + rows * heads * key + rows * (keys - rows / 2) * score
    length = dims["max_len"]
    rows = dims["b"] * dims["next_n"]
    return dims["b"] * length * key + rows * length * score + rows * heads * key


def points(grid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Batches over lengths.

    The grid "serving" adds 32 heads, several queries per sequence, and prompts. The grid "wide" has more of
    all these, and fewer heads.
    """
    batches, lengths = ROW_GRIDS[grid]
    if grid == "wide":
        spread = [(b, n) for b, n in product(batches, lengths) if b * n <= WIDE_SCORES]
        yield from (("decode", {"b": b, "len": n, "heads": h}) for h in (64, 32) for b, n in spread)
        more = product((1, 16, 48), (32768, 131072), range(2, 9))
        yield from (("decode", {"b": b, "len": n, "heads": 64, "next_n": q}) for b, n, q in more)
        prompts = product((1024, 2048, 4096, 8192), (32768, 131072), (64, 32))
        yield from (("prefill", {"s": s, "skv": n, "heads": h}) for s, n, h in prompts)
        many = product((1, 16), (12, 16), (64, 32))
        yield from (("decode", {"b": b, "len": 32768, "heads": h, "next_n": q}) for b, q, h in many)
        few = product((1, 16, 64), (4096, 32768, 131072), FEW_HEADS)
        yield from (("decode", {"b": b, "len": n, "heads": h}) for b, n, h in few)
        more = product((1, 16), (2, 4, 8), FEW_HEADS)
        yield from (("decode", {"b": b, "len": 32768, "heads": h, "next_n": q}) for b, q, h in more)
        prompts = product((1024, 4096), (32768, 131072), FEW_HEADS)
        yield from (("prefill", {"s": s, "skv": n, "heads": h}) for s, n, h in prompts)
        yield from _points_of_any()
        return
    yield from (("decode", {"b": b, "len": n, "heads": 64}) for b, n in product(batches, lengths))
    if grid == "serving":
        yield from (("decode", {"b": 16, "len": n, "heads": 32}) for n in lengths)
        yield from (("decode", {"b": 16, "len": 32768, "heads": 64, "next_n": n}) for n in (2, 4, 3, 8))
        yield from (("prefill", {"s": 4096, "skv": n, "heads": 64}) for n in (32768, 131072))


def _points_of_any() -> Iterator[tuple[str, dict[str, Any]]]:
    """Points of the forms "any": fewer dims, and scores in bf16.

    With float32 scores, pages of 64 and 128 dims, a call is of the form "decode" or "prefill".
    """
    for kind, dims in (("any", (96, 64)), ("any_bf16", (INDEX_DIM, 64))):
        for heads, dim in product((64, 32), dims):
            step = {"b": 16, "len": 32768, "index_heads": heads, "index_dim": dim, "page_size": PAGE}
            yield form_of("decode", kind), step
        for heads, dim in product((64, 32), dims):
            yield form_of("prefill", kind), {"s": 1024, "skv": 32768, "index_heads": heads, "index_dim": dim}
    yield from _points_of_blocks()
    for b, heads in product((1, 16, 64), (64, 32)):
        yield form_of("decode", "mxfp4"), {"b": b, "len": 32768, "index_heads": heads}
    for b, next_n, heads in product((1, 16), (2, 8), (64, 32)):
        yield form_of("decode", "mxfp4"), {"b": b, "len": 32768, "index_heads": heads, "next_n": next_n}
    for s, heads in product((1024, 4096), (64, 32)):
        yield form_of("prefill", "mxfp4"), {"s": s, "skv": 32768, "index_heads": heads}
    for heads in (64, 32):
        yield form_of("decode", "mxfp4_bf16"), {"b": 16, "len": 32768, "index_heads": heads}
        yield form_of("prefill", "mxfp4_bf16"), {"s": 1024, "skv": 32768, "index_heads": heads}


def _points_of_blocks() -> Iterator[tuple[str, dict[str, Any]]]:
    """Both levels of a selection by blocks.

    The first level scores every page and writes the greatest score of each 8 keys. The second level scores
    2048 blocks of 8 keys.
    """
    for b, heads, block in product((16, 1, 64), (64, 32), (0, blocks.BLOCK)):
        length, level = (16384, {}) if block else (32768, {"has_maxima": 1})
        step = {"b": b, "len": length, "index_heads": heads, "index_dim": INDEX_DIM, "page_size": PAGE}
        yield form_of("decode", "blocks"), {**step, "block_size": block, **level}


PROBLEM = Problem(
    op="lightning_indexer",
    doc=__doc__,
    forms=FORMS,
    bytes=moved_bytes,
    points=points,
    names={
        # Table entries of the form "decode_blocks" may name blocks.
        form: (
            PointName("len", "stride"),
            PointName("len", "max_pages", Fraction(1, blocks.BLOCK if form.endswith("_blocks") else PAGE)),
        )
        for form in FORMS
        if parts_of(form)[0] == "decode"
    },
)
