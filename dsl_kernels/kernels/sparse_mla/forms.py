"""The operands of sparse MLA attention by form, and how callers' tensors become them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from ..._torch import torch
from ...arguments import INT32_MAX, require_dense
from ...errors import ArgumentTypeError, InvalidArgumentError
from ...problems.base import OperandSpec, Values, axis_strides
from ...problems.layouts import (
    FP8_TOKEN_BYTES,
    LATENT_DIM,
    NOPE8_TOKEN_BYTES,
    ROPE_DIM,
    V4_TOKEN_BYTES,
    V41_SCALE_BYTES,
    V41_TOKEN_BYTES,
)

SLICES = (1, 2, 4)
"""CTAs that may share out the dims of a query, in a variant with slices."""
_QUERIES = (
    OperandSpec("q_nope", ("t", "heads", LATENT_DIM), "bfloat16", strides=axis_strides("q_nope", "th")),
    OperandSpec("q_pe", ("t", "heads", ROPE_DIM), "bfloat16", strides=axis_strides("q_pe", "th")),
)


def _wrong_ids(scope: str, o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    return (o[f"{scope}indices"] < -1) | (o[f"{scope}indices"] >= o[f"{scope}cached"])


def _wrong_lengths(scope: str, o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    wrong = (o[f"{scope}topk_length"] < 0) | (o[f"{scope}topk_length"] > dims[f"{scope}topk"])
    return wrong & bool(o[f"has_{scope}lengths"])


def _ids(scope: str = "", *, may_be_empty: bool = False) -> tuple[OperandSpec, OperandSpec]:
    """The ids of a scope and how many of them count. A scope is a cache to which queries attend."""
    topk = f"{scope}topk"
    return (
        OperandSpec(
            f"{scope}indices",
            ("t", topk),
            "int32",
            row_stride=f"{scope}indices_stride",
            doc="global token ids; -1 at any place is padding",
            align=4,
            may_be_empty=may_be_empty,
            values=(
                Values("token ids below the number of tokens, or -1", partial(_wrong_ids, scope), "padding"),
            ),
        ),
        OperandSpec(
            f"{scope}topk_length",
            ("t",),
            "int32",
            doc=f"how many of each query's first ids count; read if has_{scope}lengths is 1",
            align=4,
            default=INT32_MAX,
            longest=topk,
            values=(Values(f"0 to {topk}", partial(_wrong_lengths, scope), "the nearest of these"),),
        ),
    )


def _pages(scope: str = "") -> tuple[OperandSpec, ...]:
    """The scalars of a scope that say whether lengths count and where its tokens are."""
    scalar = partial(OperandSpec, shape=(), dtype="int32", kind="scalar")
    return (
        scalar(f"has_{scope}lengths", doc=f"1: {scope}topk_length is read"),
        scalar(f"{scope}cached", doc="tokens of the cache; ids from this number on name no token"),
        scalar(f"{scope}page_inverse", doc="2^(30 + page_shift) / tokens of a page, rounded up"),
        scalar(f"{scope}page_shift", doc="log2 of the tokens of a page, rounded up"),
    )


def _v4_pages(scope: str = "") -> OperandSpec:
    return OperandSpec(
        f"{scope}kv_pages",
        (f"{scope}pages", f"{scope}page_bytes"),
        "uint8",
        row_stride=f"{scope}kv_pages_stride",
        doc="pages of 584-byte tokens",
        argument=f"{scope}kv",
    )


_SINK = OperandSpec(
    "attn_sink",
    ("heads",),
    "float32",
    doc="natural-log logit that joins the denominator of out; -inf: no sink",
    default=-math.inf,
)
_RESULTS = (
    OperandSpec(
        "out",
        ("t", "heads", LATENT_DIM),
        "bfloat16",
        "out",
        strides=axis_strides("out", "th"),
        of_nothing=0,
    ),
    OperandSpec(
        "lse", ("t", "heads"), "float32", "out", row_stride="lse_stride", align=4, of_nothing="empty_lse"
    ),
    OperandSpec("sm_scale", (), "float32", "scalar", limits=(-math.inf, math.inf)),
    OperandSpec("lse_scale", (), "float32", "scalar", doc="1 gives lse in base 2, ln 2 in base e"),
    OperandSpec("empty_lse", (), "float32", "scalar", doc="lse of a query without tokens"),
)
_REST = (
    *_ids(),
    _SINK,
    *_RESULTS,
    *_pages(),
    OperandSpec("page_gap", (), "int32", "scalar", doc="cache rows between two pages"),
)
EXTRA = "extra_"
"""How names of the second scope begin."""
_QUERY_ROWS = OperandSpec(
    "q_rows",
    ("t", "heads", LATENT_DIM),
    "bfloat16",
    strides=axis_strides("q_rows", "th"),
    argument="q_nope",
)
_LATENT_ROWS = OperandSpec(
    "ckv",
    ("n", LATENT_DIM),
    "bfloat16",
    row_stride="ckv_stride",
    doc="latent rows, with the rows between pages; may be a slice of 576-wide rows",
    argument="kv",
)
# Where tokens are in a page of DeepSeek-V4.1. Such a page is interleaved or block-planar.
_PLACES = (
    ("token_bytes", "bytes from a token's values to the next one's"),
    ("scales_at", "the byte of a page where its scales begin"),
    ("scale_bytes", "bytes from a token's scales to the next one's"),
)


def _of_two_scopes(*places: tuple[str, str]) -> tuple[OperandSpec, ...]:
    """The operands of a form of two scopes. `places` are further scalars of each scope."""
    numbers = (("page_size", "tokens of a page"), *places)
    return (
        _QUERY_ROWS,
        _v4_pages(),
        *_ids(may_be_empty=True),
        _v4_pages(EXTRA),
        *_ids(EXTRA, may_be_empty=True),
        _SINK,
        *_RESULTS,
        *(
            spec
            for scope in ("", EXTRA)
            for spec in (
                *_pages(scope),
                *(OperandSpec(f"{scope}{name}", (), "int32", "scalar", doc=doc) for name, doc in numbers),
            )
        ),
    )


ROPELESS = ("nope", "nope8", "v4", "v41")
"""Forms whose rows and queries are 512 dims, all of them values."""
FORMS = {
    "bf16": (
        *_QUERIES,
        _LATENT_ROWS,
        OperandSpec("kpe", ("n", ROPE_DIM), "bfloat16", row_stride="kpe_stride", doc="rope rows"),
        *_REST,
    ),
    "nope": (_QUERY_ROWS, _LATENT_ROWS, *_REST),
    "fp8": (
        *_QUERIES,
        OperandSpec(
            "kv_cache",
            ("n", FP8_TOKEN_BYTES),
            "uint8",
            row_stride="kv_cache_stride",
            doc="656-byte tokens",
            argument="kv",
        ),
        *_REST,
    ),
    "nope8": (
        _QUERY_ROWS,
        OperandSpec(
            "kv_cache",
            ("n", NOPE8_TOKEN_BYTES),
            "uint8",
            row_stride="kv_cache_stride",
            doc="528-byte tokens",
            argument="kv",
        ),
        *_REST,
    ),
    "v4": _of_two_scopes(),
    "v41": _of_two_scopes(*_PLACES),
}
PAGED = ("v4", "v41")
"""Forms of two scopes, whose caches are pages of bytes."""


def split_queries(q: torch.Tensor, _: torch.Tensor | None = None) -> tuple[str, dict[str, Any]]:
    """Queries [t, heads, 576] as views of their latent part and their rope part.

    Raises:
        ArgumentTypeError, InvalidArgumentError: not a dense tensor, or of another width.
    """
    require_dense("q_nope", q)
    if q.dim() != 3 or q.shape[2] != LATENT_DIM + ROPE_DIM:
        raise InvalidArgumentError(
            "q_nope", expected=f"[t, heads, {LATENT_DIM + ROPE_DIM}] where q_pe is None",
            got=str(tuple(q.shape)),
            fix=f"pass joined queries, or [t, heads, {LATENT_DIM}] and q_pe [t, heads, {ROPE_DIM}]",
        )  # fmt: skip
    return "", {"q_nope": q[..., :LATENT_DIM], "q_pe": q[..., LATENT_DIM:]}


_BYTE_FORMS = {FP8_TOKEN_BYTES: "fp8", NOPE8_TOKEN_BYTES: "nope8"}


def split_cache(kv: torch.Tensor, kpe: torch.Tensor | None) -> tuple[str, dict[str, Any]]:
    """The form of a caller's cache, paged or flat, and views of its rows as operands of that form.

    Args:
        kv, kpe: bfloat16 [..., 512] and [..., 64]; or one tensor of bfloat16 [..., 576] or [..., 512], or of
            bytes [..., 656] or [..., 528].

    Raises:
        ArgumentTypeError, InvalidArgumentError: another dtype or width, or pages that are not a whole number
            of tokens apart.
    """
    require_dense("kv", kv)
    if kpe is not None:
        require_dense("kpe", kpe)
    width = kv.shape[-1] if kv.dim() > 1 else 0
    if kpe is not None and (kpe.dim() < 2 or kpe.shape[-1] != ROPE_DIM):
        raise InvalidArgumentError(
            "kpe", expected=f"[..., {ROPE_DIM}]", got=str(tuple(kpe.shape)), fix="pass one rope row a token"
        )
    if kv.dtype == torch.bfloat16 and kpe is not None and width == LATENT_DIM:
        rows, pages = _rows("kv", kv, LATENT_DIM)
        rope, rope_pages = _rows("kpe", kpe, ROPE_DIM)
        if pages != rope_pages:
            raise InvalidArgumentError(
                "kpe", expected=f"pages like kv's: shape {tuple(kv.shape)}, strides {kv.stride()}",
                got=f"shape {tuple(kpe.shape)}, strides {kpe.stride()}", fix="lay both caches out alike",
            )  # fmt: skip
        return "bf16", {"ckv": rows, "kpe": rope, **pages}
    if kv.dtype == torch.bfloat16 and kpe is None and width == LATENT_DIM + ROPE_DIM:
        rows, pages = _rows("kv", kv, width)
        return "bf16", {"ckv": rows[:, :LATENT_DIM], "kpe": rows[:, LATENT_DIM:], **pages}
    if kv.dtype == torch.bfloat16 and kpe is None and width == LATENT_DIM:
        rows, pages = _rows("kv", kv, width)
        return "nope", {"ckv": rows, **pages}
    if kv.element_size() == 1 and kpe is None and width in _BYTE_FORMS:
        rows, pages = _rows("kv", kv.view(torch.uint8), width)
        return _BYTE_FORMS[width], {"kv_cache": rows, **pages}
    if kv.dtype != torch.bfloat16 and kv.element_size() != 1:
        raise ArgumentTypeError(
            "kv",
            expected="bfloat16 rows or 656-byte, 584-byte or 528-byte tokens",
            got=str(kv.dtype),
            fix="convert the cache",
        )
    raise InvalidArgumentError(
        "kv",
        expected="bfloat16 [..., 512] with or without kpe, bfloat16 [..., 576] without, or bytes [..., 656] "
        "or [..., 528] without",
        got=f"{kv.dtype} {tuple(kv.shape)} {'with' if kpe is not None else 'without'} kpe",
        fix="pass one of these caches",
    )  # fmt: skip


PAGED_BYTES = {"v4": V4_TOKEN_BYTES, "v41": V41_TOKEN_BYTES, "v41_planar": V41_TOKEN_BYTES}
"""Bytes of a token by the format of a paged cache."""


def split_pages(
    name: str, row_format: str, kv: torch.Tensor, _: torch.Tensor | None = None
) -> tuple[str, dict[str, Any]]:
    """A view of pages as bytes, and the scalars that say where tokens are.

    Args:
        kv: [pages, page_size, width] or [pages, page_size, 1, width].
        row_format: one of `PAGED_BYTES`, which gives the width.

    Raises:
        ArgumentTypeError, InvalidArgumentError: another dtype or shape, or a page whose tokens are not
            consecutive.
    """
    width = PAGED_BYTES[row_format]
    require_dense(name, kv)
    if kv.element_size() != 1:
        raise ArgumentTypeError(
            name, expected=f"{width}-byte tokens", got=str(kv.dtype), fix="pass the cache's bytes"
        )
    shape = tuple(kv.shape)
    plain = len(shape) in (3, 4) and shape[-1] == width and (len(shape) == 3 or shape[2] == 1)
    if not plain or not all(shape):
        raise InvalidArgumentError(
            name, expected=f"[pages, page_size, {width}] or [pages, page_size, 1, {width}], no extent 0",
            got=str(shape), fix="pass the paged cache as its allocator shaped it",
        )  # fmt: skip
    pages, size = shape[:2]
    if kv.stride(-1) != 1 or (size > 1 and kv.stride(1) != width):
        raise InvalidArgumentError(
            name, expected=f"the bytes of a page one after the other: strides (any, {width}, ..., 1)",
            got=str(kv.stride()), fix="pass whole pages",
        )  # fmt: skip
    if pages * size > MOST_PAGED:
        raise InvalidArgumentError(
            name, expected=f"at most {MOST_PAGED} tokens", got=str(pages * size),
            fix="pass the part that is in use",
        )  # fmt: skip
    rows = kv.view(torch.uint8).as_strided((pages, size * width), (kv.stride(0), 1))
    places = v4_pages_of("", pages * size, size)
    if row_format != "v4":
        places |= v41_places_of("", size, planar=row_format == "v41_planar")
    return row_format.removesuffix("_planar"), {"kv_pages": rows, **places}


def _rows(name: str, cache: torch.Tensor, width: int) -> tuple[torch.Tensor, dict[str, int]]:
    """A view of a cache [..., width] as strided rows, and the scalars that say which rows are tokens.

    Pages are the first axis, and the tokens of a page are the others. Rows between pages are no tokens.
    """
    tokens = cache.numel() // width
    try:
        flat = cache.view(-1, width)
        return flat, pages_of(tokens, 1, 0)
    except RuntimeError:
        pass
    try:
        page = cache[0].view(-1, width)
    except RuntimeError:
        page = None
    row, between = (page.stride(0) if page is not None else 0), cache.stride(0)
    if page is None or row <= 0 or between % row or between < row * len(page):
        raise InvalidArgumentError(
            name, expected="tokens of a page at one stride, and pages a whole number of these apart",
            got=f"shape {tuple(cache.shape)}, strides {cache.stride()}",
            fix="pass a cache [pages, tokens, ...] of such pages",
        )  # fmt: skip
    rows = (len(cache) - 1) * (between // row) + len(page)
    if tokens > MOST_PAGED:
        raise InvalidArgumentError(
            name, expected=f"at most {MOST_PAGED} tokens in pages with rows between them", got=str(tokens),
            fix="pass the part of the cache that is in use",
        )  # fmt: skip
    return cache.as_strided((rows, width), (row, 1)), pages_of(tokens, len(page), between // row - len(page))


MOST_PAGED = 1 << 30
"""`page_of` is exact for ids below this number."""


def pages_of(cached: int, page_size: int, page_gap: int) -> dict[str, int]:
    """Scalars that say where `cached` tokens are: in pages of `page_size`, with `page_gap` rows between."""
    shift = (page_size - 1).bit_length()
    inverse = -(-(1 << 30 + shift) // page_size)
    return {"cached": cached, "page_inverse": inverse, "page_shift": shift, "page_gap": page_gap}


def page_of(ids: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
    """The page of each id, int64.

    Kernels divide by the same multiplication (Granlund and Montgomery, PLDI 1994).
    """
    return ids.long() * inputs["page_inverse"] >> 30 + inputs["page_shift"]


def v4_pages_of(scope: str, cached: int, page_size: int) -> dict[str, int]:
    """Scalars of a scope that say where the tokens of DeepSeek-V4's pages are."""
    scalars = pages_of(cached, page_size, 0)
    del scalars["page_gap"]
    return {f"{scope}{name}": value for name, value in {**scalars, "page_size": page_size}.items()}


def v41_places_of(scope: str, page_size: int, *, planar: bool) -> dict[str, int]:
    """Scalars of a scope that say where in a page of DeepSeek-V4.1 a token's values and scales are."""
    if planar:
        token, begin, each = LATENT_DIM, page_size * LATENT_DIM, V41_SCALE_BYTES
    else:
        token, begin, each = V41_TOKEN_BYTES, LATENT_DIM, V41_TOKEN_BYTES
    return {f"{scope}token_bytes": token, f"{scope}scales_at": begin, f"{scope}scale_bytes": each}


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """Sizes by which calls are grouped: queries, heads, and selected tokens of all scopes."""
    return {"t": dims["t"], "heads": dims["heads"], "topk": dims["topk"] + dims.get("extra_topk", 0)}


def resized(dims: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """A call's sizes with some replaced.

    `topk` of `sizes` counts the selected tokens of all scopes. The second scope keeps as many as the call
    has, if `topk` allows.
    """
    resulting = {**dims, **sizes}
    if "topk" in sizes and "extra_topk" in dims:
        resulting["extra_topk"] = min(dims["extra_topk"], sizes["topk"])
        resulting["topk"] = sizes["topk"] - resulting["extra_topk"]
    return resulting
