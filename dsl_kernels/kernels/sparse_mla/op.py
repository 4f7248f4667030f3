"""Torch op of sparse MLA attention over selected tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from ...arguments import finite, integer, named_as, require_dense, shown
from ...errors import InvalidArgumentError
from ...ops._base import run
from ...ops._library import torch_op
from ...ops._views import kept_views
from ...ops.workspace import Workspace
from ...problems.binding import require_outputs_apart
from ...problems.layouts import LATENT_DIM, V4_TOKEN_BYTES
from .forms import EXTRA, FORMS, PAGED_BYTES, ROPELESS, SLICES, split_cache, split_pages, split_queries

_SPLIT = {
    (name, row_format): partial(split_pages, name, row_format)
    for name in ("kv", "extra_kv")
    for row_format in PAGED_BYTES
}
FORMATS = (*FORMS, *(name for name in PAGED_BYTES if name not in FORMS))
"""Names of the formats of a cache's rows."""
LSE_SCALE = {"2": 1.0, "e": math.log(2)}
SHARPNESS = 2.0**64
"""The factor of scores in a pass whose lse is to be their maximum."""
MOST_SCALE = 2.0**32


@torch_op("sparse_mla", "bf16", also=("max_logits",))
def sparse_mla(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor | None,
    kv: torch.Tensor,
    indices: torch.Tensor,
    *,
    sm_scale: float,
    kpe: torch.Tensor | None = None,
    topk_length: torch.Tensor | None = None,
    extra_kv: torch.Tensor | None = None,
    extra_indices: torch.Tensor | None = None,
    extra_topk_length: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    lse_base: str = "2",
    empty_lse: float | None = None,
    row_format: str | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    max_logits: torch.Tensor | None = None,
    splits: int | None = None,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each query over its own selected tokens. The latent row is key and value.

    Args:
        q_nope, q_pe: [t, heads, 512] and [t, heads, 64] bfloat16, or [t, heads, 576] and None. For rows of
            512 dims, 584-byte tokens and 528-byte tokens: [t, heads, 512] and None. Strides of tokens and of
            heads are any multiples of 8 elements. `heads` is any number; 8, 16, 32, 64 and 128 have kernels
            of their own.
        kv: the cache, in one of these formats.

            - bfloat16 [..., 512] with `kpe` [..., 64], or bfloat16 [..., 576] alone.
            - bfloat16 [..., 512] alone: all dims are key and value (NoPE, or DeepSeek-V4's rows as bf16).
            - bytes [..., 656]: 512 e4m3, four fp32 scales, 64 bf16 rope.
            - bytes [..., 528] with `row_format="nope8"`: the same without the rope (V32_NO_ROPE).
            - pages of DeepSeek-V4: bytes [pages, page_size, 584] or [pages, page_size, 1, 584], block-planar
              (`problems.layouts.pack_v4_pages`). Key and value are the same 512 dims.
            - pages of DeepSeek-V4.1 with `row_format`: bytes [pages, page_size, 528] or
              [pages, page_size, 1, 528] (`problems.layouts.pack_v41_pages`).

            Caches of the first four formats are paged or flat. Their tokens have any constant stride of whole
            16 bytes. Pages, the first axis, are a whole number of tokens apart, and ids do not count what is
            between pages. Pages of DeepSeek-V4 and V4.1 are any multiple of 16 bytes apart. Dequantised
            values are rounded to bf16, which is exact for scales that are powers of two.
        indices: [t, topk] int32 global token ids; rows at any stride. -1 is padding at any place, and so is
            any other id that names no token. A repeated id counts each time.
        topk_length: [t] int32: how many of each query's first ids count; by default all.
        extra_kv, extra_indices, extra_topk_length: for tokens of DeepSeek-V4 or V4.1, a second cache of the
            same format: the compressed cache beside the window. It has its own page size, ids [t, extra_topk]
            and lengths. Its tokens join the same softmax.
        sm_scale: factor of the logits, finite.
        kpe: the rope dims of `kv`'s rows, bfloat16 [..., 64], if they are separate.
        attn_sink: [heads] float32 natural-log logit that joins the denominator of `out`, not of `lse`.
        lse_base: "2" or "e".
        empty_lse: lse of a query without tokens: -inf by default, the identity of a merge; or inf, as
            FlashMLA has it.
        row_format: the format that the rows of `kv` must have: "bf16" (512 and 64 dims), "nope" (512 dims),
            "fp8" (656 bytes), "nope8" (528 bytes: four fp32 scales), "v4" (584 bytes), "v41" or "v41_planar"
            (528 bytes: 16 UE8M0 scales, after each token's values or after the values of all tokens of a
            page). Rows of another format are refused. By default dtype and width give the format. 528 bytes
            may be three formats, so they need a name.
        out, lse: [t, heads, 512] bfloat16 and [t, heads] float32 to write into. `out` may be strided as
            queries are, and rows of `lse` have any stride. Neither may overlap an input.
        max_logits: [t, heads] float32 to write the largest score of each query's tokens into (`sm_scale`
            times the product, base e), or -inf for a query without tokens; rows at any stride. It takes a
            second pass over all tokens, so the call takes about twice as long; None costs nothing. Scores
            must be below 2^63, and `sm_scale` at most 2^32.
        splits: CTAs that share a query's block of heads; chosen by default. At most one per 64 ids, times the
            slices of a variant whose CTAs share out the dims.
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        (out, lse). A query without tokens gives out = 0 and lse = `empty_lse`.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device that does not fit.
        NoVariantError: no generated variant accepts these sizes.
    """
    if splits is not None:
        splits = integer("splits", splits, 1, max(SLICES) * max(1, _tiles(indices, extra_indices)))
    lse_scale = LSE_SCALE.get(lse_base) if isinstance(lse_base, str) else None
    if lse_scale is None:
        raise InvalidArgumentError(
            "lse_base",
            expected="'2' or 'e'",
            got=repr(lse_base) if isinstance(lse_base, str) else type(lse_base).__name__,
            fix="name the base of lse",
        )
    if empty_lse is None:
        empty_lse = -math.inf
    elif not isinstance(empty_lse, float) or not math.isinf(empty_lse):
        raise InvalidArgumentError(
            "empty_lse",
            expected="-inf or inf",
            got=shown(empty_lse),
            fix="pass float('-inf') or float('inf')",
        )
    operands: dict[str, Any] = {
        "indices": indices, "topk_length": topk_length, "attn_sink": attn_sink,
        "out": out, "lse": lse, "sm_scale": sm_scale, "lse_scale": lse_scale, "empty_lse": empty_lse,
        "has_lengths": int(topk_length is not None),
    }  # fmt: skip
    if paged := _paged_format(kv, kpe, row_format):
        form, two_scopes = _operands_of_scopes(
            paged, q_nope, q_pe, kv, extra_kv, indices, extra_indices, extra_topk_length
        )
        operands |= two_scopes
    else:
        given = {"extra_kv": extra_kv, "extra_indices": extra_indices, "extra_topk_length": extra_topk_length}
        if extra := [name for name, value in given.items() if value is not None]:
            raise InvalidArgumentError(
                extra[0],
                expected=f"None, where kv has no {V4_TOKEN_BYTES}-byte tokens and row_format is not 'v41'",
                got="a tensor",
                fix="attend to one cache, or merge two results by their lse",
            )  # fmt: skip
        form, cache = kept_views("kv", split_cache, kv, kpe)
        operands |= cache
        if form in ROPELESS:
            operands["q_rows"] = _queries_without_rope(q_nope, q_pe, "rows of 512 dims alone")
        elif q_pe is None:
            operands |= kept_views("q_nope", split_queries, q_nope, None)[1]
        else:
            operands |= {"q_nope": q_nope, "q_pe": q_pe}
    if row_format is not None:
        _require_format(row_format, paged or form)
    elif form == "nope8":
        raise InvalidArgumentError(
            "row_format",
            expected="'nope8', 'v41' or 'v41_planar' with 528-byte tokens, whose size does not say what "
            "their scales are",
            got="None",
            fix="name the format: 512 e4m3 values and four fp32 scales (V32_NO_ROPE), or 16 UE8M0 scales "
            "(DeepSeek-V4.1)",
        )  # fmt: skip
    launch = None if splits is None else {"splits": splits}
    launched = partial(
        run,
        "sparse_mla",
        form,
        executor=executor,
        variant=variant,
        arch=arch,
        workspace=workspace,
        launch=launch,
    )
    if max_logits is not None:
        operands["out"] = _write_maxima(launched, form, operands, max_logits)
    launched(operands)
    return operands["out"], operands["lse"]


def _write_maxima(
    launched: Callable[[dict[str, Any]], object], form: str, operands: Mapping[str, Any], maxima: torch.Tensor
) -> torch.Tensor:
    """Write the largest score of each query, by a pass whose softmax is so sharp that its lse is that score.

    A power of two scales every score exactly. The sum of the weights adds the log2 of at most 2^32. That is
    below half a unit in the last place of a maximum above 2^-34, and moves no maximum by more than 2^-58. The
    kernels need not keep the true maximum for this: the maximum that their softmax is relative to may be
    smaller, as it rises by 8 powers of two at a time.

    Returns:
        `out`, which holds that pass's result until the next pass has written its own.
    """
    scale = finite("sm_scale", operands["sm_scale"], -MOST_SCALE, MOST_SCALE)
    given = {"out": operands["out"], "lse": operands["lse"], "max_logits": maxima}
    for name, tensor in given.items():
        if tensor is not None:
            require_dense(name, tensor)
    require_outputs_apart(given)
    sharp = {
        **operands, "lse": maxima, "sm_scale": scale * SHARPNESS, "lse_scale": LSE_SCALE["e"] / SHARPNESS,
        "empty_lse": -math.inf,
    }  # fmt: skip
    with named_as(lse="max_logits"):
        launched(sharp)
    out: torch.Tensor = sharp["out"]
    return out


def _require_format(asked: str, own: str) -> None:
    """Require that rows have the format that the caller names."""
    if not isinstance(asked, str) or asked not in FORMATS:
        raise InvalidArgumentError(
            "row_format", expected=" or ".join(map(repr, FORMATS)), got=shown(asked),
            fix="name the format of kv's rows",
        )  # fmt: skip
    if asked != own:
        raise InvalidArgumentError(
            "row_format", expected=f"{own!r}, which kv is by its dtype and width", got=repr(asked),
            fix="pass a cache in that format, or name the format that this one has",
        )  # fmt: skip


def _tiles(indices: torch.Tensor, extra_indices: torch.Tensor | None) -> int:
    """Tiles of a query's ids in both scopes. Each scope begins a tile of its own."""
    scopes = {"indices": indices, "extra_indices": extra_indices}
    tiles = 0
    for name, ids in scopes.items():
        if ids is not None:
            require_dense(name, ids)
            tiles += -(-(ids.shape[-1] if ids.dim() else 0) // 64)
    return tiles


def _queries_without_rope(query: torch.Tensor, q_pe: torch.Tensor | None, rows: str) -> torch.Tensor:
    """The queries of a cache whose rows have no separate rope dims."""
    if q_pe is not None:
        raise InvalidArgumentError(
            "q_pe", expected=f"None: queries of {rows} are [t, heads, {LATENT_DIM}]", got="a tensor",
            fix=f"pass joined queries of {LATENT_DIM} dims, or the cache's kpe",
        )  # fmt: skip
    return query


def _paged_format(kv: torch.Tensor, kpe: torch.Tensor | None, row_format: str | None) -> str | None:
    """The format of a cache of pages, which may have two scopes; None for any other cache."""
    if isinstance(row_format, str) and row_format != "v4" and row_format in PAGED_BYTES:
        if kpe is not None:
            raise InvalidArgumentError(
                "kpe", expected=f"None with row_format={row_format!r}, whose rows have all dims",
                got="a tensor", fix="leave it out, or name the format that kv has",
            )  # fmt: skip
        return row_format
    paged = kpe is None and isinstance(kv, torch.Tensor) and kv.dim() > 2 and kv.shape[-1] == V4_TOKEN_BYTES
    return "v4" if paged else None


def _operands_of_scopes(
    row_format: str,
    query: torch.Tensor,
    q_pe: torch.Tensor | None,
    kv: torch.Tensor,
    extra_kv: torch.Tensor | None,
    indices: torch.Tensor,
    extra_indices: torch.Tensor | None,
    extra_topk_length: torch.Tensor | None,
) -> tuple[str, dict[str, Any]]:
    """The form, the queries and both scopes of DeepSeek-V4 or V4.1.

    Without a second cache, the second scope has no ids.
    """
    query = _queries_without_rope(query, q_pe, f"{PAGED_BYTES[row_format]}-byte tokens")
    if (extra_kv is None) != (extra_indices is None):
        raise InvalidArgumentError(
            "extra_indices", expected="given with extra_kv, and only with it",
            got="None" if extra_indices is None else "ids without a cache", fix="pass both or neither",
        )  # fmt: skip
    if extra_indices is None:
        if extra_topk_length is not None:
            raise InvalidArgumentError(
                "extra_topk_length", expected="None without extra_kv", got="a tensor", fix="leave it out"
            )
        require_dense("indices", indices)
        # An empty view: no kernel reads its memory.
        extra_indices = indices[:, :0]
    form, cache = kept_views("kv", _SPLIT["kv", row_format], kv, None)
    extra = cache
    if extra_kv is not None:
        extra = kept_views("extra_kv", _SPLIT["extra_kv", row_format], extra_kv, None)[1]
    return form, {
        "q_rows": query,
        **cache,
        **{f"{EXTRA}{name}": value for name, value in extra.items()},
        "extra_indices": extra_indices,
        "extra_topk_length": extra_topk_length,
        "has_extra_lengths": int(extra_topk_length is not None),
    }
