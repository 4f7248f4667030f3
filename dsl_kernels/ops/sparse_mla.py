"""Torch op of sparse MLA attention over selected tokens."""

from __future__ import annotations

import math
import weakref
from typing import Any

import torch

from ..errors import ArgumentTypeError, InvalidArgumentError
from ..problems.base import require_dense
from ..problems.layouts import FP8_TOKEN_BYTES, LATENT_DIM, ROPE_DIM
from ..programs.sparse_mla import SLICES
from ._base import Workspace, finite, integer, require_workspace, run

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
_splits: dict[tuple[int, int], tuple[_Reference, _Reference, tuple[Any, ...], _Split]] = {}


def _cache_operands(kv: torch.Tensor, kpe: torch.Tensor | None) -> _Split:
    """The form and the cache operands, kept while the caller's tensors live: taking views costs microseconds.

    A tensor that was given other memory, another shape or another dtype (`set_`, `resize_`, `.data = `) is looked at
    again.
    """
    try:
        if kpe is None:
            key = (id(kv), 0)
            layout: tuple[Any, ...] = (kv.data_ptr(), kv.shape, kv.stride(), kv.dtype)
        else:
            key = (id(kv), id(kpe))
            layout = (
                kv.data_ptr(), kv.shape, kv.stride(), kv.dtype, kpe.data_ptr(), kpe.shape, kpe.stride(), kpe.dtype,
            )  # fmt: skip
    except Exception as error:
        _require_caches(kv, kpe)
        raise InvalidArgumentError(
            "kv", expected="a tensor in memory", got=str(error).partition("\n")[0], fix="pass plain torch tensors"
        ) from None  # fmt: skip
    held = _splits.get(key)
    if held is not None and held[0]() is kv and (kpe is None or held[1]() is kpe) and held[2] == layout:
        return held[3]
    _require_caches(kv, kpe)
    form, operands = _split_cache(kv, kpe)
    split = form, {name: _unattached(rows) for name, rows in operands.items()}

    def forget(gone: _Reference) -> None:
        # The place may have been taken over by then, by another thread as well.
        present = _splits.get(key)
        if present is not None and (present[0] is gone or present[1] is gone):
            _splits.pop(key, None)

    other = kv if kpe is None else kpe
    _splits[key] = (weakref.ref(kv, forget), weakref.ref(other, forget), layout, split)
    return split


def _require_caches(kv: torch.Tensor, kpe: torch.Tensor | None) -> None:
    require_dense("kv", kv)
    if kpe is not None:
        require_dense("kpe", kpe)


def _unattached(rows: torch.Tensor) -> torch.Tensor:
    """The same memory without a reference to the caller's tensor, which a view has and which would keep it alive."""
    with torch.inference_mode(False):
        alone = torch.empty(0, dtype=rows.dtype, device=rows.device)
        alone.set_(rows.untyped_storage(), rows.storage_offset(), rows.shape, rows.stride())
    # Whether a gradient is wanted is asked of what the ops are handed.
    return alone.requires_grad_(rows.requires_grad)


def _split_cache(kv: torch.Tensor, kpe: torch.Tensor | None) -> _Split:
    """The form and the cache operands of what the caller passed."""
    width = kv.shape[-1] if kv.dim() > 1 else 0
    if kpe is not None and (kpe.dim() < 2 or kpe.shape[-1] != ROPE_DIM):
        raise InvalidArgumentError(
            "kpe", expected=f"[..., {ROPE_DIM}]", got=str(tuple(kpe.shape)), fix="pass one rope row a token"
        )
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


def _launch(
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    kv: torch.Tensor,
    kpe: torch.Tensor | None,
    indices: torch.Tensor,
    attn_sink: torch.Tensor | None,
    sm_scale: float,
    lse_base: str,
    out: torch.Tensor | None,
    lse: torch.Tensor | None,
    executor: str | None,
    variant: str | None,
    arch: str | None,
    workspace: Workspace | None = None,
    splits: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    lse_scale = LSE_SCALE.get(lse_base) if isinstance(lse_base, str) else None
    if lse_scale is None:
        raise InvalidArgumentError(
            "lse_base",
            expected="'2' or 'e'",
            got=repr(lse_base) if isinstance(lse_base, str) else type(lse_base).__name__,
            fix="name the base of lse",
        )
    form, cache = _cache_operands(kv, kpe)
    operands: dict[str, Any] = {
        "q_nope": q_nope, "q_pe": q_pe, **cache, "indices": indices, "attn_sink": attn_sink, "out": out, "lse": lse,
        "sm_scale": sm_scale, "lse_scale": lse_scale,
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
    return operands["out"], operands["lse"]


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
    return _launch(
        q_nope, q_pe, kv, kpe, indices, attn_sink, sm_scale, lse_base, None, None, executor, variant, arch
    )


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
        indices: [t, topk] int32 global token ids, topk a multiple of 64; -1 anywhere is padding, and so is any other id
            that names no token; repeats count.
        sm_scale: factor of the logits, finite.
        attn_sink: [heads] float32 natural-log logit that joins the denominator of `out`, not of `lse`.
        lse_base: "2" or "e".
        out, lse: [t, heads, 512] bfloat16 and [t, heads] float32 to write into; must not overlap an input.
        splits: CTAs that share a query's head block; chosen by default. At most one per 64 ids, times the slices of a
            variant whose CTAs share out the dims.
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        (out, lse). A query without tokens gives out = 0 and lse = -inf.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device that does not fit.
        NoVariantError: no generated variant accepts these sizes.
    """
    if type(sm_scale) is not float or not math.isfinite(sm_scale):
        sm_scale = finite("sm_scale", sm_scale)
    if splits is not None:
        require_dense("indices", indices)
        topk = indices.shape[-1] if indices.dim() else 0
        splits = integer("splits", splits, 1, max(SLICES) * max(1, topk // 64))
    if workspace is not None:
        require_workspace(workspace)
    if torch.compiler.is_compiling():
        if out is None or lse is None:
            return torch.ops.dsl_kernels.sparse_mla(
                q_nope, q_pe, kv, kpe, indices, attn_sink, sm_scale, lse_base, executor, variant, arch
            )
        torch.ops.dsl_kernels.sparse_mla_out(
            q_nope, q_pe, kv, kpe, indices, attn_sink, sm_scale, out, lse, lse_base, executor, variant, arch
        )
        return out, lse
    return _launch(
        q_nope, q_pe, kv, kpe, indices, attn_sink, sm_scale, lse_base, out, lse, executor, variant, arch, workspace,
        splits,
    )  # fmt: skip
