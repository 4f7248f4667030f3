"""Cases of the leaves of sparse attention on Blackwell as a pair of CTAs."""

from __future__ import annotations

from typing import Any

import torch
from leaf_probes import Probe, case, spread
from leaves_sparse_mla import APPROXIMATE, INF, lse_scalars
from leaves_sparse_mla_sm100 import BF16, _operand_of

from dsl_kernels.kernels.sparse_mla.leaves import pair as text


def _bf16(p: Probe, title: str, each: int, value: torch.Tensor | None = None, *, out: bool = True) -> Any:
    return p.own(title, each, value, dtype="bfloat16", out=out)


def _queries(p: Probe, title: str, dims: int) -> Any:
    return spread(p, title, p.normal(2, 128, dims).bfloat16())


def _place(p: Probe) -> tuple[Any, Any]:
    return p.dim("row", 1), p.dim("head0", 64)


def _one(p: Probe, title: str, value: torch.Tensor | None = None, *, out: bool = True) -> Any:
    return p.own(title, 1, value, dtype="float32", out=out)


@case(text.take_panel)
def take_panel(p: Probe) -> None:
    p.threads = 128
    p.call(_bf16(p, "panel", 64), _queries(p, "q", 512), *_place(p), 192)


@case(text.take_last_queries)
def take_last_queries(p: Probe) -> None:
    p.threads = 128
    held = _bf16(p, "latent", 64), _bf16(p, "rope", 32)
    p.call(*held, _queries(p, "q_nope", 512), _queries(p, "q_pe", 64), *_place(p), 384)


@case(text.leave_queries)
def leave_queries(p: Probe) -> None:
    p.threads = 128
    target = p.shared("target", (64, 192), dtype="bfloat16", swizzle=128, out=True, slot=True)
    latent, rope = p.normal(128, 64).bfloat16(), p.normal(128, 32).bfloat16()
    p.call(target, _bf16(p, "latent", 64, latent, out=False), _bf16(p, "rope", 32, rope, out=False))


@case(text.mask_rows)
def mask_rows(p: Probe) -> None:
    p.threads, p.relative = 128, 1e-6
    # By the leaf's names: TileLang called an operand by the name of the macro's parameter.
    words = {"left_low": 0x12345678, "left_high": -1, "right_low": 0, "right_high": -0x7654321}
    ids = [p.dim(name, word) for name, word in words.items()]
    p.call(p.own("scores", 64, p.normal(128, 64)), *ids, p.scalar("sm_scale", 0.3))


@case(text.leave_maximum)
def leave_maximum(p: Probe) -> None:
    p.threads = 128
    p.call(p.shared("red", (128,), out=True, slot=True), p.own("scores", 64, p.normal(128, 64), out=False))


@case(text.take_maximum, rise=(8.0, 8.5))
def take_maximum(p: Probe, rise: float) -> None:
    p.threads, p.relative = 128, APPROXIMATE
    red, peak = p.normal(128), torch.zeros(128, 1)
    red[70] = rise
    peak[32:64], peak[96:] = -INF, -INF
    held = _one(p, "peak", peak), _one(p, "sums", p.uniform(128, 1)), _one(p, "factor")
    p.call(*held, p.shared("red", (128,), red, slot=True), 8)


@case(text.weigh_row)
def weigh_row(p: Probe) -> None:
    p.threads, p.relative, p.absolute = 128, APPROXIMATE, 1e-6
    scores = p.normal(128, 64)
    scores[:, ::7] = -INF
    p.call(
        p.own("scores", 64, scores),
        _one(p, "sums", p.uniform(128, 1)),
        _one(p, "peak", p.normal(128, 1), out=False),
    )


@case(text.store_row)
def store_row(p: Probe) -> None:
    p.threads = 128
    target = p.shared("target", (64, 128), dtype="bfloat16", swizzle=128, out=True, slot=True)
    p.call(target, _bf16(p, "weights", 64, p.normal(128, 64).bfloat16(), out=False))


@case(text.rescale_row, some=(False, True))
def rescale_row(p: Probe, some: bool) -> None:
    p.threads = 128
    factor = torch.ones(128, 1)
    factor[40:90] = 0.3 if some else 1.0
    acc = p.tensor("o_t", (128, 256), p.normal(128, 256), out=True)
    p.call(acc, p.own("held", 64, None, dtype="float32", out=False), _one(p, "factor", factor, out=False))


@case(text.leave_sum)
def leave_sum(p: Probe) -> None:
    p.threads = 128
    p.call(p.shared("red", (128,), out=True, slot=True), _one(p, "sums", p.uniform(128, 1), out=False))


@case(text.finish_row, split=(None, 2))
def finish_row(p: Probe, split: int | None) -> None:
    p.threads, p.relative, p.absolute = 128, 1e-5, 1e-6
    red, sums = p.uniform(128), p.uniform(128, 1)
    red[5], red[69], sums[5], sums[69] = 0, 0, 0, 0
    p.call(
        p.shared("red", (128,), red, slot=True),
        _operand_of(p, "lses", split, 128),
        *_place(p),
        split if split is None else p.dim("split", split),
        _one(p, "sums", sums, out=False),
        _one(p, "peak", p.normal(128, 1), out=False),
        _one(p, "factor"),
        p.operand("attn_sink", p.normal(128)),
        128,
        p.dim("splits", 3),
        *lse_scalars(p),
    )


@case(text.write_row, split=(None, 2), some=(False, True))
def write_row(p: Probe, split: int | None, some: bool) -> None:
    p.threads, p.relative = 128, BF16 / 2 if split is None else 0.0
    p.call(
        _operand_of(p, "to", split, 128, 512, dtype=torch.bfloat16 if split is None else torch.float32),
        p.tensor("o_t", (128, 256), p.normal(128, 256)),
        *_place(p),
        split if split is None else p.dim("split", split),
        p.var("some", some, dtype="bool"),
        p.own("held", 64, None, dtype="float32", out=False),
        _bf16(p, "rounded", 64, None, out=False),
        _one(p, "factor", p.uniform(128, 1), out=False),
        128,
        p.dim("splits", 3),
    )
