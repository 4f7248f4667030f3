"""Cases of the leaves of sparse attention on Blackwell with 64 heads on M in one CTA."""

from __future__ import annotations

import torch
from leaf_probes import Probe, case
from leaves_sparse_mla_pair import _bf16, _one, _place
from leaves_sparse_mla_sm100 import BF16, _operand_of

from dsl_kernels.kernels.sparse_mla.leaves import pair as text


@case(text.mask_half)
def mask_half(p: Probe) -> None:
    p.threads, p.relative = 128, 1e-6
    ids = [p.var(name, word) for name, word in (("low", 0x12345678), ("high", -0x7654321))]
    p.call(p.own("scores", 32, p.normal(128, 32)), *ids, p.scalar("sm_scale", 0.3))


@case(text.store_half)
def store_half(p: Probe) -> None:
    p.threads = 128
    target = p.shared("target", (64, 64), dtype="bfloat16", swizzle=128, out=True, slot=True)
    p.call(target, _bf16(p, "weights", 32, p.normal(128, 32).bfloat16(), out=False))


@case(text.write_units, split=(None, 2), some=(False, True))
def write_units(p: Probe, split: int | None, some: bool) -> None:
    p.threads, p.relative = 128, BF16 / 2 if split is None else 0.0
    p.call(
        _operand_of(p, "to", split, 128, 512, dtype=torch.bfloat16 if split is None else torch.float32),
        p.tensor("o_t", (128, 256), p.normal(128, 256)),
        *_place(p),
        split if split is None else p.dim("split", split),
        p.var("some", some, dtype="bool"),
        p.own("held", 32, None, dtype="float32", out=False),
        _bf16(p, "rounded", 32, None, out=False),
        _one(p, "factor", p.uniform(128, 1), out=False),
        128,
        p.dim("splits", 3),
    )
