"""Torch op of grouped-query attention over dense keys, forward."""

from __future__ import annotations

from typing import Any

import torch

from ..errors import ArgumentTypeError, InvalidArgumentError
from ..problems.base import require_dense
from ..problems.gqa_forward import FORMS
from ._base import Workspace, finite, require_workspace, run

_FORM_OF = {operands[0].torch_dtype: form for form, operands in FORMS.items()}


def _launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    sm_scale: float | None,
    out: torch.Tensor | None,
    lse: torch.Tensor | None,
    executor: str | None,
    variant: str | None,
    arch: str | None,
    workspace: Workspace | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    form = _FORM_OF.get(getattr(q, "dtype", None))
    if form is None:
        require_dense("q", q)
        raise ArgumentTypeError(
            "q", expected=" or ".join(map(str, _FORM_OF)), got=str(q.dtype), fix="convert q, k and v"
        )
    if sm_scale is None:
        sm_scale = q.shape[-1] ** -0.5 if q.dim() and q.shape[-1] else 1.0
    operands: dict[str, Any] = {
        "q": q, "k": k, "v": v, "out": out, "lse": lse, "sm_scale": sm_scale, "causal": int(causal),
    }  # fmt: skip
    run(
        "gqa_forward", form, operands, static={"causal": int(causal)}, executor=executor, variant=variant, arch=arch,
        workspace=workspace,
    )  # fmt: skip
    return operands["out"], operands["lse"]


@torch.library.custom_op("dsl_kernels::gqa_forward", mutates_args=())
def _op(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    sm_scale: float | None,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _launch(q, k, v, causal, sm_scale, None, None, executor, variant, arch)


@_op.register_fake
def _(q, k, v, causal, sm_scale, executor=None, variant=None, arch=None):
    b, sq, heads, dim = q.shape
    return q.new_empty(b, sq, heads, dim), q.new_empty(b, heads, sq, dtype=torch.float32)


@torch.library.custom_op("dsl_kernels::gqa_forward_out", mutates_args=("out", "lse"))
def _out_op(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    sm_scale: float | None,
    out: torch.Tensor,
    lse: torch.Tensor,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
) -> None:
    _launch(q, k, v, causal, sm_scale, out, lse, executor, variant, arch)


@_out_op.register_fake
def _(q, k, v, causal, sm_scale, out, lse, executor=None, variant=None, arch=None):
    return None


def gqa_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    sm_scale: float | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    executor: str | None = None,
    variant: str | None = None,
    arch: str | None = None,
    workspace: Workspace | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of every query over all keys, or over those up to its own place; heads share keys and values.

    Args:
        q: [b, sq, heads, dim] float16 or bfloat16, dim 64 or 128. Its axes but the last may lie anyhow, their strides
            multiples of 16 bytes.
        k, v: [b, skv, kv_heads, dim] of q's dtype, strided as q may be; heads is a multiple of kv_heads, and query head
            h reads head h * kv_heads // heads.
        causal: query i sees keys 0 to i + skv - sq, so that both sequences end together; skv is at least sq.
        sm_scale: factor of the scores, positive and finite; 1 / sqrt(dim) by default.
        out, lse: [b, sq, heads, dim] of q's dtype and [b, heads, sq] float32 to write into; must not overlap an input.
        executor, variant, arch, workspace: see `dsl_kernels.ops`.

    Returns:
        (out, lse), lse in base e.

    Raises:
        ArgumentTypeError, InvalidArgumentError: dtype, rank, shape, stride or device that does not fit.
        NoVariantError: no generated variant accepts these sizes.
    """
    if type(causal) is not bool:
        raise ArgumentTypeError(
            "causal", expected="True or False", got=type(causal).__name__, fix="convert it with bool(...)"
        )
    if sm_scale is not None:
        sm_scale = finite("sm_scale", sm_scale)
        if sm_scale <= 0:
            raise InvalidArgumentError(
                "sm_scale", expected="a positive factor", got=str(sm_scale), fix="negate q instead"
            )
    if workspace is not None:
        require_workspace(workspace)
    if torch.compiler.is_compiling():
        if out is None or lse is None:
            return torch.ops.dsl_kernels.gqa_forward(q, k, v, causal, sm_scale, executor, variant, arch)
        torch.ops.dsl_kernels.gqa_forward_out(q, k, v, causal, sm_scale, out, lse, executor, variant, arch)
        return out, lse
    return _launch(q, k, v, causal, sm_scale, out, lse, executor, variant, arch, workspace)
