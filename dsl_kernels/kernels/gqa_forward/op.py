"""Torch op of grouped-query attention over dense keys, forward."""

from __future__ import annotations

from typing import Any

import torch

from ...arguments import finite, require_dense
from ...errors import ArgumentTypeError, InvalidArgumentError
from ...ops._base import run
from ...ops._library import torch_op
from ...ops.workspace import Workspace
from .problem import FORMS

_FORM_OF: dict[Any, str] = {operands[0].torch_dtype: form for form, operands in FORMS.items()}


@torch_op("gqa_forward", "fp16")
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
    """Attention of every query over all keys, or over the keys up to its place. Heads share keys and values.

    Args:
        q: [b, sq, heads, dim] float16 or bfloat16, dim 64 or 128. The last axis is dense. The strides of the
            other axes are multiples of 16 bytes.
        k, v: [b, skv, kv_heads, dim] of q's dtype, with strides like those of q. heads is a multiple of
            kv_heads, and query head h reads head h * kv_heads // heads. A value row that `causal` hides from
            a query has weight zero in its output, so NaN or infinity in that row can still reach the output.
        causal: query i sees keys 0 to i + skv - sq, so both sequences end together. skv is at least sq.
        sm_scale: factor of the scores, positive and finite; 1 / sqrt(dim) by default.
        out, lse: [b, sq, heads, dim] of q's dtype and [b, heads, sq] float32 to write into; must not overlap
            an input.
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
    form = _FORM_OF.get(getattr(q, "dtype", None))
    if form is None:
        require_dense("q", q)
        raise ArgumentTypeError(
            "q", expected=" or ".join(map(str, _FORM_OF)), got=str(q.dtype), fix="convert q, k and v"
        )
    if sm_scale is None:
        sm_scale = q.shape[-1] ** -0.5 if q.dim() and q.shape[-1] else 1.0
    else:
        sm_scale = finite("sm_scale", sm_scale)
        if sm_scale <= 0:
            raise InvalidArgumentError(
                "sm_scale", expected="a positive factor", got=str(sm_scale), fix="negate q instead"
            )
    operands: dict[str, Any] = {
        "q": q, "k": k, "v": v, "out": out, "lse": lse, "sm_scale": sm_scale, "causal": int(causal),
    }  # fmt: skip
    run("gqa_forward", form, operands, executor, variant, arch, workspace, static={"causal": int(causal)})
    return operands["out"], operands["lse"]
