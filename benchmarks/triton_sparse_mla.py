"""The project's own baseline for sparse_mla: plain Triton split-K, and a kernel that combines the splits.

Nothing here is specific to Hopper, and no setting is hidden: `SETTINGS` are the tiles tried, and
`best_setting` times all of them on the caller's inputs. Takes bf16 caches and heads in multiples of 8; ids of
-1 are masked, not skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

LATENT = 512
ROPE = 64


@dataclass(frozen=True)
class Setting:
    """Tokens per step, warps, and software-pipeline stages of the attention kernel."""

    tokens: int
    warps: int
    stages: int


SETTINGS = (
    Setting(16, 4, 3),
    Setting(16, 4, 5),
    Setting(32, 4, 2),
    Setting(32, 4, 3),
    Setting(32, 8, 4),
    Setting(64, 8, 2),
)
"""Tiles from the smallest that makes sense to the largest that fits."""


@triton.jit(do_not_specialize=["splits"])
def _attend(
    q_nope, q_pe, ckv, kpe, indices, o_partial, lse_partial, scale, topk, ckv_stride, kpe_stride, splits,
    HEADS: tl.constexpr, BLOCK_H: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    row, block, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    h = block * BLOCK_H + tl.arange(0, BLOCK_H)
    d = tl.arange(0, 512)
    r = tl.arange(0, 64)
    real = h < HEADS
    q = tl.load(q_nope + (row * HEADS + h[:, None]) * 512 + d[None, :], mask=real[:, None], other=0.0)
    qr = tl.load(q_pe + (row * HEADS + h[:, None]) * 64 + r[None, :], mask=real[:, None], other=0.0)
    peak = tl.full([BLOCK_H], -1e30, tl.float32)
    total = tl.zeros([BLOCK_H], tl.float32)
    acc = tl.zeros([BLOCK_H, 512], tl.float32)
    chunk = topk // splits
    for start in range(split * chunk, (split + 1) * chunk, TOKENS):
        token = tl.load(indices + row * topk + start + tl.arange(0, TOKENS))
        valid = token >= 0
        source = tl.where(valid, token, 0).to(tl.int64)
        k = tl.load(ckv + source[:, None] * ckv_stride + d[None, :], mask=valid[:, None], other=0.0)
        kr = tl.load(kpe + source[:, None] * kpe_stride + r[None, :], mask=valid[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k))
        s = tl.dot(qr, tl.trans(kr), s) * scale
        s = tl.where(valid[None, :], s, float("-inf"))
        new = tl.maximum(peak, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        alpha = tl.exp2(peak - new)
        total = total * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), k, acc * alpha[:, None])
        peak = new
    some = total > 0
    acc = acc / tl.where(some, total, 1.0)[:, None]
    slot = (row * splits + split) * HEADS + h
    tl.store(o_partial + slot[:, None] * 512 + d[None, :], acc, mask=real[:, None])
    tl.store(lse_partial + slot, tl.where(some, tl.log2(total) + peak, float("-inf")), mask=real)


@triton.jit
def _combine(o_partial, lse_partial, out, lse, HEADS: tl.constexpr, SPLITS: tl.constexpr, DIMS: tl.constexpr):
    row, head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    d = part * DIMS + tl.arange(0, DIMS)
    slot = (row * SPLITS + tl.arange(0, SPLITS)) * HEADS + head
    lse_s = tl.load(lse_partial + slot)
    peak = tl.max(lse_s, 0)
    safe = tl.where(peak > -float("inf"), peak, 0.0)
    weight = tl.exp2(lse_s - safe)
    total = tl.sum(weight, 0)
    acc = tl.sum(weight[:, None] * tl.load(o_partial + slot[:, None] * 512 + d[None, :]), 0)
    acc = acc / tl.where(total > 0, total, 1.0)
    tl.store(out + (row * HEADS + head) * 512 + d, acc.to(tl.bfloat16))
    if part == 0:
        tl.store(lse + row * HEADS + head, tl.where(total > 0, tl.log2(total) + safe, -float("inf")))


def split_counts(t: int, blocks: int, topk: int, tokens: int, processors: int) -> list[int]:
    """Splits worth trying: those that give each SM one or two CTAs, in whole tiles."""
    wanted = [max(1, turns * processors // (t * blocks)) for turns in (1, 2)]
    powers = {min(1 << (w.bit_length() - 1), topk // tokens) for w in wanted} | {
        min(1 << w.bit_length(), topk // tokens) for w in wanted[:1]
    }
    return sorted(s for s in powers if topk % (s * tokens) == 0)


def workspace(t: int, heads: int, device: Any, splits: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """Partial outputs and their lse for up to `splits` splits."""
    return torch.empty(t * splits * heads * LATENT, device=device), torch.empty(
        t * splits * heads, device=device
    )


def sparse_mla(
    q_nope: torch.Tensor, q_pe: torch.Tensor, ckv: torch.Tensor, kpe: torch.Tensor, indices: torch.Tensor,
    sm_scale: float, out: torch.Tensor, lse: torch.Tensor, scratch: tuple[torch.Tensor, torch.Tensor],
    setting: Setting, splits: int,
) -> None:  # fmt: skip
    """Write out [t, heads, 512] bf16 and lse [t, heads] (base 2) of attention over the rows in `indices`."""
    t, heads, _ = q_nope.shape
    topk = indices.shape[1]
    block_h = 16
    blocks = triton.cdiv(heads, block_h)
    _attend[(t, blocks, splits)](
        q_nope, q_pe, ckv, kpe, indices, *scratch, sm_scale * 1.4426950408889634, topk, ckv.stride(0),
        kpe.stride(0), splits, HEADS=heads, BLOCK_H=block_h, TOKENS=setting.tokens, num_warps=setting.warps,
        num_stages=setting.stages,
    )  # fmt: skip
    parts = 4 if t * heads < 512 else 1
    _combine[(t, heads, parts)](
        *scratch, out, lse, HEADS=heads, SPLITS=splits, DIMS=LATENT // parts, num_warps=4
    )


def best_setting(
    run: Callable[[Setting, int], None],
    time: Callable[[Callable[[], None]], float],
    t: int,
    heads: int,
    topk: int,
) -> tuple[float, Setting, int]:
    """The fastest (time as `time` reports it, tile, splits) of all settings that compile and fit.

    Args:
        run: launches the baseline with a setting and a number of splits.
        time: times a function without arguments.
    """
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    results = []
    for setting in SETTINGS:
        for splits in split_counts(t, triton.cdiv(heads, 16), topk, setting.tokens, processors):
            try:
                results.append((time(lambda s=setting, n=splits: run(s, n)), setting, splits))
            except triton.runtime.errors.OutOfResources:
                continue
    return min(results, key=lambda r: r[0])
