"""Causal multi-head attention forward in Triton, as tutorials write it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl


@dataclass(frozen=True)
class Setting:
    """Query rows and key rows of a tile, warps, and stages of the software pipeline."""

    rows: int
    keys: int
    warps: int
    stages: int

    @property
    def label(self) -> str:
        return f"{self.rows}x{self.keys}, {self.warps} warps, {self.stages} stages"


@triton.jit
def _tiles(
    tile, k, v, base, i, low, high, scale, peak, total, acc,
    KEYS: tl.constexpr, DIM: tl.constexpr, MASK: tl.constexpr,
):  # fmt: skip
    j = tl.arange(0, KEYS)
    d = tl.arange(0, DIM)
    for start in range(low, high, KEYS):
        at = start + j
        keys = tl.load(k + base + at[:, None] * DIM + d[None, :])
        s = tl.dot(tile, tl.trans(keys)) * scale
        if MASK:
            s = tl.where(i[:, None] >= at[None, :], s, -1e30)
        new = tl.maximum(peak, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        alpha = tl.exp2(peak - new)
        total = total * alpha + tl.sum(p, 1)
        values = tl.load(v + base + at[:, None] * DIM + d[None, :])
        acc = tl.dot(p.to(tl.float16), values, acc * alpha[:, None])
        peak = new
    return peak, total, acc


@triton.jit
def _forward(q, k, v, out, scale, n, ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr):
    # The blocks with the most key tiles start first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    base = tl.program_id(1).to(tl.int64) * n * DIM
    i = block * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, DIM)
    tile = tl.load(q + base + i[:, None] * DIM + d[None, :])
    peak = tl.full([ROWS], -1e30, tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    whole = block * ROWS // KEYS * KEYS
    peak, total, acc = _tiles(tile, k, v, base, i, 0, whole, scale, peak, total, acc, KEYS, DIM, False)
    peak, total, acc = _tiles(
        tile, k, v, base, i, whole, (block + 1) * ROWS, scale, peak, total, acc, KEYS, DIM, True
    )
    tl.store(out + base + i[:, None] * DIM + d[None, :], (acc / total[:, None]).to(tl.float16))


def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, setting: Setting) -> Any:
    """out = causal softmax(q k^T / sqrt(d)) v over [batch, heads, n, d] fp16; returns the compiled kernel."""
    batch, heads, n, dim = q.shape
    return _forward[(n // setting.rows, batch * heads)](
        q,
        k,
        v,
        out,
        dim**-0.5 * 1.4426950408889634,
        n,
        ROWS=setting.rows,
        KEYS=setting.keys,
        DIM=dim,
        num_warps=setting.warps,
        num_stages=setting.stages,
    )
