"""Split-K multi-head latent attention in Triton, with compile-time switches for the cases.

One kernel attends to the tokens that `rows` names or, if dense, to every token of the pages that `rows`
names. The switches choose the exponential, whether the rope part is read, and the type in which scores
accumulate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

LATENT, ROPE, PAGE = 512, 64, 64
LOG2_E = 1.4426950408889634
# The exponential: base 2 with a folded scale, base e, a cubic polynomial on the FMA pipe, or none.
EXPONENTIALS = ("exp2", "exp", "polynomial", "none")


@dataclass(frozen=True)
class Setting:
    """Tokens per tile, warps and stages of the software pipeline, and the switches."""

    tokens: int
    warps: int
    stages: int
    exponential: str = "exp2"
    kpe: bool = True
    dense: bool = False
    bf16_scores: bool = False

    @property
    def label(self) -> str:
        return f"{self.tokens} tokens, {self.warps} warps, {self.stages} stages"


@triton.jit
def _power(x, EXP: tl.constexpr):
    if EXP == 0:
        return tl.exp2(x)
    elif EXP == 1:
        return tl.exp(x)
    elif EXP == 2:
        x = tl.maximum(x, -126.0)
        whole = tl.floor(x)
        part = x - whole
        cubic = ((0.07706 * part + 0.22764) * part + 0.69514) * part + 1.0
        bits = cubic.to(tl.int32, bitcast=True) + (whole.to(tl.int32) << 23)
        return bits.to(tl.float32, bitcast=True)
    else:
        return x * 0.001 + 1.0


@triton.jit(do_not_specialize=["splits"])
def _attend(
    q_nope, q_pe, ckv, kpe, rows, o_partial, lse_partial, scale, count, row_width, ckv_stride, kpe_stride,
    splits, HEADS: tl.constexpr, TOKENS: tl.constexpr, EXP: tl.constexpr, KPE: tl.constexpr,
    DENSE: tl.constexpr, BF16_SCORES: tl.constexpr,
):  # fmt: skip
    row, split = tl.program_id(0), tl.program_id(1)
    h = tl.arange(0, HEADS)
    d = tl.arange(0, 512)
    r = tl.arange(0, 64)
    q = tl.load(q_nope + (row * HEADS + h[:, None]) * 512 + d[None, :])
    qr = tl.load(q_pe + (row * HEADS + h[:, None]) * 64 + r[None, :])
    peak = tl.full([HEADS], -1e30, tl.float32)
    total = tl.zeros([HEADS], tl.float32)
    acc = tl.zeros([HEADS, 512], tl.float32)
    chunk = count // splits
    for start in range(split * chunk, (split + 1) * chunk, TOKENS):
        if DENSE:
            page = tl.load(rows + row * row_width + start // 64).to(tl.int64)
            source = page * 64 + start % 64 + tl.arange(0, TOKENS)
        else:
            source = tl.load(rows + row * row_width + start + tl.arange(0, TOKENS)).to(tl.int64)
        k = tl.load(ckv + source[:, None] * ckv_stride + d[None, :])
        if BF16_SCORES:
            s = tl.dot(q, tl.trans(k), out_dtype=tl.bfloat16).to(tl.float32)
        else:
            s = tl.dot(q, tl.trans(k))
        if KPE:
            kr = tl.load(kpe + source[:, None] * kpe_stride + r[None, :])
            s = tl.dot(qr, tl.trans(kr), s)
        s = s * scale
        new = tl.maximum(peak, tl.max(s, 1))
        p = _power(s - new[:, None], EXP)
        alpha = _power(peak - new, EXP)
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), k, acc * alpha[:, None])
        peak = new
    acc = acc / total[:, None]
    slot = (row * splits + split) * HEADS + h
    tl.store(o_partial + slot[:, None] * 512 + d[None, :], acc)
    lse = tl.log2(total) + peak
    if EXP == 1:
        lse = (tl.log(total) + peak) * 1.4426950408889634
    tl.store(lse_partial + slot, lse)


@triton.jit
def _combine(o_partial, lse_partial, out, lse, HEADS: tl.constexpr, SPLITS: tl.constexpr, DIMS: tl.constexpr):
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    d = part * DIMS + tl.arange(0, DIMS)
    slot = (row * SPLITS + tl.arange(0, SPLITS)) * HEADS + head
    lse_s = tl.load(lse_partial + slot)
    peak = tl.max(lse_s, 0)
    weight = tl.exp2(lse_s - peak)
    total = tl.sum(weight, 0)
    acc = tl.sum(weight[:, None] * tl.load(o_partial + slot[:, None] * 512 + d[None, :]), 0) / total
    tl.store(out + (row * HEADS + head) * 512 + d, acc.to(tl.bfloat16))
    if part == 0:
        tl.store(lse + row * HEADS + head, tl.log2(total) + peak)


@dataclass
class Problem:
    """Operands of one call; `rows` is [t, count] token ids or, for a dense setting, [t, pages] page ids."""

    q_nope: torch.Tensor
    q_pe: torch.Tensor
    ckv: torch.Tensor
    kpe: torch.Tensor
    rows: torch.Tensor
    count: int
    sm_scale: float
    out: torch.Tensor
    lse: torch.Tensor

    def scratch(self, splits: int) -> tuple[torch.Tensor, torch.Tensor]:
        t, heads, _ = self.q_nope.shape
        device = self.out.device
        return (
            torch.empty(t * splits * heads * LATENT, device=device),
            torch.empty(t * splits * heads, device=device),
        )


def split_counts(t: int, count: int, tokens: int, processors: int) -> list[int]:
    """Powers of two that fill the processors about once and about twice with whole tiles."""
    wanted = [max(1, turns * processors // t) for turns in (1, 2)]
    powers = {1 << (w.bit_length() - 1) for w in wanted}
    return sorted(s for s in powers if s <= 128 and count % (s * tokens) == 0) or [1]


def attend(
    problem: Problem, setting: Setting, splits: int, scratch: tuple[torch.Tensor, torch.Tensor]
) -> Any:
    """out [t, heads, 512] and lse [t, heads] in base 2; returns the compiled attention kernel."""
    p = problem
    t, heads, _ = p.q_nope.shape
    folded = 1.0 if setting.exponential == "exp" else LOG2_E
    compiled = _attend[(t, splits)](
        p.q_nope, p.q_pe, p.ckv, p.kpe, p.rows, *scratch, p.sm_scale * folded, p.count, p.rows.stride(0),
        p.ckv.stride(0), p.kpe.stride(0), splits, HEADS=heads, TOKENS=setting.tokens,
        EXP=EXPONENTIALS.index(setting.exponential), KPE=setting.kpe, DENSE=setting.dense,
        BF16_SCORES=setting.bf16_scores, num_warps=setting.warps, num_stages=setting.stages,
    )  # fmt: skip
    parts = 4 if t * heads < 512 else 1
    _combine[(t, heads, parts)](
        *scratch, p.out, p.lse, HEADS=heads, SPLITS=splits, DIMS=LATENT // parts, num_warps=4
    )
    return compiled


def resources(compiled: Any) -> dict[str, Any]:
    """Registers, spills and shared bytes that Triton reports for a compiled kernel."""
    metadata = getattr(compiled, "metadata", None)
    return {
        "registers": getattr(compiled, "n_regs", None),
        "spills": getattr(compiled, "n_spills", None),
        "shared_bytes": getattr(metadata, "shared", None),
    }
