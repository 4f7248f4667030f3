"""Torch op of sparse MLA attention over selected tokens."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch

from ..errors import ArgumentTypeError, InvalidArgumentError
from ..problems.layouts import FP8_TOKEN_BYTES, LATENT_DIM, ROPE_DIM
from ..programs.sparse_mla import SLICES
from ._base import Workspace, kept, require_tensors, run

LSE_SCALE = {"2": 1.0, "e": math.log(2)}


def _rows(name: str, cache: torch.Tensor, width: int) -> torch.Tensor:
    """A cache [..., width] as strided rows [n, width], without copying."""
    if cache.dim() == 2:
        return cache
    try:
        return cache.view(-1, width)
    except RuntimeError:
        raise InvalidArgumentError(
            name, expected="tokens at one constant stride", got=f"shape {tuple(cache.shape)}, strides {cache.stride()}",
            fix="pass a cache whose pages follow one another without gaps",
        ) from None  # fmt: skip


_Split = tuple[str, dict[str, torch.Tensor]]
_Reference = weakref.ref[torch.Tensor]
_splits: dict[tuple[int, int], tuple[_Reference, _Reference, tuple[int, int], _Split]] = {}


def _cache_operands(kv: torch.Tensor, kpe: torch.Tensor | None) -> _Split:
    """The form and the cache operands, kept while the caller's tensors live: taking views costs microseconds.

    A tensor that was given other memory (`set_`, `.data = `) has another address and is looked at again.
    """
    other = kv if kpe is None else kpe
    key, places = (id(kv), id(other)), (kv.data_ptr(), other.data_ptr())
    held = _splits.get(key)
    if held is not None and held[0]() is kv and held[1]() is other and held[2] == places:
        return held[3]
    form, operands = _split_cache(kv, kpe)
    split = form, {name: _unattached(rows) for name, rows in operands.items()}

    def forget(gone: _Reference) -> None:
        # The place may have been taken over by then.
        present = _splits.get(key)
        if present is not None and (present[0] is gone or present[1] is gone):
            del _splits[key]

    _splits[key] = (weakref.ref(kv, forget), weakref.ref(other, forget), places, split)
    return split


def _unattached(rows: torch.Tensor) -> torch.Tensor:
    """The same memory without a reference to the caller's tensor, which a view has and which would keep it alive."""
    alone = torch.empty(0, dtype=rows.dtype, device=rows.device)
    return alone.set_(rows.untyped_storage(), rows.storage_offset(), rows.shape, rows.stride())


def _split_cache(kv: torch.Tensor, kpe: torch.Tensor | None) -> _Split:
    """The form and the cache operands of what the caller passed."""
    width = kv.shape[-1]
    if kv.dtype == torch.bfloat16 and kpe is not None and width == LATENT_DIM:
        return "bf16", {"ckv": _rows("kv", kv, LATENT_DIM), "kpe": _rows("kpe", kpe, ROPE_DIM)}
    if kv.dtype == torch.bfloat16 and kpe is None and width == LATENT_DIM + ROPE_DIM:
        rows = _rows("kv", kv, width)
        return "bf16", {"ckv": rows[:, :LATENT_DIM], "kpe": rows[:, LATENT_DIM:]}
    if kv.element_size() == 1 and kpe is None and width == FP8_TOKEN_BYTES:
        return "fp8", {"kv_cache": _rows("kv", kv.view(torch.uint8), width)}
    if kv.dtype != torch.bfloat16 and kv.element_size() != 1:
        raise ArgumentTypeError(
            "kv", expected="bfloat16 rows or 656-byte tokens", got=str(kv.dtype), fix="convert the cache"
        )
    raise InvalidArgumentError(
        "kv", expected="bfloat16 [..., 512] with kpe, bfloat16 [..., 576] without, or bytes [..., 656] without",
        got=f"{kv.dtype} {tuple(kv.shape)} {'with' if kpe is not None else 'without'} kpe", fix="pass one of these caches",
    )  # fmt: skip


_no_sink: dict[tuple[int, torch.device], torch.Tensor] = {}


def _sink(heads: int, device: torch.device) -> torch.Tensor:
    held = _no_sink.get((heads, device))
    if held is not None:
        return held
    return kept(
        _no_sink,
        (heads, device),
        device,
        lambda: torch.full((heads,), -math.inf, dtype=torch.float32, device=device),
    )


def _launch(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    kv: torch.Tensor,
    kpe: torch.Tensor | None,
    indices: torch.Tensor,
    attn_sink: torch.Tensor | None,
    sm_scale: float,
    lse_base: str,
    out: torch.Tensor,
    lse: torch.Tensor,
    executor: str | None,
    variant: str | None,
    arch: str | None,
    workspace: Workspace | None = None,
    splits: int | None = None,
) -> None:
    if lse_base not in LSE_SCALE:
        raise InvalidArgumentError(
            "lse_base", expected="'2' or 'e'", got=repr(lse_base), fix="name the base of lse"
        )
    form, cache = _cache_operands(kv, kpe)
    sink = attn_sink if attn_sink is not None else _sink(q_nope.size(1), q_nope.device)
    operands: dict[str, Any] = {
        "q_nope": q_nope, "q_pe": q_pe, **cache, "indices": indices, "attn_sink": sink, "out": out, "lse": lse,
        "sm_scale": sm_scale, "lse_scale": LSE_SCALE[lse_base],
    }  # fmt: skip
    launch = None if splits is None else {"splits": splits}
    run(
        "sparse_mla",
        form,
        operands,
        static={},
        executor=executor,
        variant=variant,
        arch=arch,
        workspace=workspace,
        launch=launch,
    )


@torch.library.custom_op("dsl_kernels::sparse_mla", mutates_args=())
def _op(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    kv: torch.Tensor,
    kpe: torch.Tensor | None,
    indices: torch.Tensor,
    attn_sink: torch.Tensor | None,
    sm_scale: float,
    lse_base: str = "2",
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    out = torch.empty_like(q_nope)
    lse = torch.empty(q_nope.shape[:2], dtype=torch.float32, device=q_nope.device)
    _launch(q_nope, q_pe, kv, kpe, indices, attn_sink, sm_scale, lse_base, out, lse, executor, variant, arch)
    return out, lse


@_op.register_fake
def _(
    q_nope, q_pe, kv, kpe, indices, attn_sink, sm_scale, lse_base="2", executor=None, variant=None, arch=None
):
    return torch.empty_like(q_nope), q_nope.new_empty(q_nope.shape[:2], dtype=torch.float32)


@torch.library.custom_op("dsl_kernels::sparse_mla_out", mutates_args=("out", "lse"))
def _out_op(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    kv: torch.Tensor,
    kpe: torch.Tensor | None,
    indices: torch.Tensor,
    attn_sink: torch.Tensor | None,
    sm_scale: float,
    out: torch.Tensor,
    lse: torch.Tensor,
    lse_base: str = "2",
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
) -> None:
    _launch(q_nope, q_pe, kv, kpe, indices, attn_sink, sm_scale, lse_base, out, lse, executor, variant, arch)


@_out_op.register_fake
def _(
    q_nope,
    q_pe,
    kv,
    kpe,
    indices,
    attn_sink,
    sm_scale,
    out,
    lse,
    lse_base="2",
    executor=None,
    variant=None,
    arch=None,
):
    return None


def sparse_mla(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    kv: torch.Tensor,
    indices: torch.Tensor,
    *,
    sm_scale: float,
    kpe: torch.Tensor | None = None,
    attn_sink: torch.Tensor | None = None,
    lse_base: str = "2",
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    splits: int | None = None,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of each query over its own selected tokens; the latent row is key and value.

    Args:
        q_nope, q_pe: [t, heads, 512] and [t, heads, 64] bfloat16; heads 8, 16, 32, 64 or 128.
        kv: the cache, paged or flat: bfloat16 [..., 512] with `kpe` [..., 64]; bfloat16 [..., 576] alone; or bytes
            [..., 656] (512 e4m3, four fp32 scales, 64 bf16 rope). Dequantised values are rounded to bf16, which is
            exact for scales that are powers of two.
        indices: [t, topk] int32 global token ids, topk a multiple of 64; -1 anywhere is padding, repeats count.
        sm_scale: factor of the logits.
        attn_sink: [heads] float32 natural-log logit that joins the denominator of `out`, not of `lse`.
        lse_base: "2" or "e".
        out, lse: [t, heads, 512] bfloat16 and [t, heads] float32 to write into.
        splits: CTAs that share a query's head block; chosen by default. At most one per 64 ids, times the slices of a
            variant whose CTAs share out the dims.
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        (out, lse). A query without tokens gives out = 0 and lse = -inf.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device that does not fit.
        NoVariantError: no generated variant accepts these sizes.
    """
    require_tensors(
        "q_nope q_pe kv kpe indices attn_sink out lse", q_nope, q_pe, kv, kpe, indices, attn_sink, out, lse
    )
    most = max(SLICES) * max(1, indices.shape[-1] // 64)
    if splits is not None and not 1 <= splits <= most:
        raise InvalidArgumentError(
            "splits",
            expected=f"1 to {most}",
            got=str(splits),
            fix="use at most one split per 64 ids, times the CTAs that share out a row's dims",
        )
    if torch.compiler.is_compiling():
        if out is None or lse is None:
            return torch.ops.dsl_kernels.sparse_mla(
                q_nope, q_pe, kv, kpe, indices, attn_sink, sm_scale, lse_base, executor, variant, arch
            )
        torch.ops.dsl_kernels.sparse_mla_out(
            q_nope, q_pe, kv, kpe, indices, attn_sink, sm_scale, out, lse, lse_base, executor, variant, arch
        )
        return out, lse
    if out is None:
        out = torch.empty_like(q_nope)
    if lse is None:
        lse = torch.empty(q_nope.shape[:2], dtype=torch.float32, device=q_nope.device)
    _launch(
        q_nope,
        q_pe,
        kv,
        kpe,
        indices,
        attn_sink,
        sm_scale,
        lse_base,
        out,
        lse,
        executor,
        variant,
        arch,
        workspace,
        splits,
    )
    return out, lse
