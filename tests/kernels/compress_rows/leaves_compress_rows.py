"""Cases of the leaves that compress rows: windows, the norm and rope, and the bytes of either cache."""

from __future__ import annotations

import torch
from leaf_probes import Probe, case, spread

from dsl_kernels.kernels.compress_rows import leaves as leaf

THREADS = {512: 128, 128: 32}
TOKENS, ROWS, PAGES = 11, 3, 4


def own(p: Probe, dim: int, out: bool = True, spread_of: float = 1.0) -> object:
    p.threads = THREADS[dim]
    return p.own("held", leaf.EACH, spread_of * p.normal(p.threads, leaf.EACH), out=out)


@case(leaf.weigh_window, shape=((512, 4, 2), (128, 5, 1)), row=(0, 2))
def weigh_window(p: Probe, shape: tuple[int, int, int], row: int) -> None:
    """A complete window in two parts, and one of five tokens of which some are left out."""
    dim, ratio, parts = shape
    p.threads, p.relative, p.absolute = THREADS[dim], 1e-5, 1e-6
    windows = p.integers(0, TOKENS, ROWS, ratio * parts).int()
    windows[2, :2] = torch.tensor([-1, -5])
    width = parts * dim
    p.call(
        p.own("held", leaf.EACH),
        spread(p, "kv", p.normal(TOKENS, width), gap=4),
        spread(p, "scores", 3 * p.normal(TOKENS, width), gap=8),
        spread(p, "ape", p.normal(ratio, width), gap=4),
        spread(p, "windows", windows, gap=3),
        p.dim("row", row), p.dim("ratio", ratio), p.dim("span", ratio * parts), dim,
    )  # fmt: skip


@case(leaf.sum_squares)
def sum_squares(p: Probe) -> None:
    p.relative = 1e-6
    held = own(p, 512, out=False)
    p.call(p.shared("sums", (4,), out=True), held)


@case(leaf.norm_and_turn, dim=(512, 128))
def norm_and_turn(p: Probe, dim: int) -> None:
    p.relative, p.absolute = 1e-5, 1e-6
    held = own(p, dim)
    p.call(
        held, p.shared("sums", (THREADS[dim] // 32,), p.uniform(THREADS[dim] // 32)),
        p.operand("weight", p.normal(dim)),
        p.operand("cos_sin", p.normal(5, 64)), p.operand("positions", torch.tensor([4, -3, 2]).int()),
        p.dim("row", 2),
        p.scalar("eps", 1e-6), dim,
    )  # fmt: skip


def cache(p: Probe, words: int) -> object:
    return spread(p, "cache", p.integers(0, 9, PAGES, words).int(), gap=3, out=True)


@case(leaf.write_row, slot=(-1, 0, 11), size=(1e-9, 1.0, 1e6))
def write_row(p: Probe, slot: int, size: float) -> None:
    """Groups below the least magnitude, ordinary and large ones;
    a row without a slot writes only its powers."""
    held = own(p, 512, spread_of=size)
    p.exact = ("held", "cache")
    p.call(
        cache(p, 3 * 146), p.shared("powers", (8,), torch.zeros(8).int(), out=True), held,
        p.operand("slots", torch.tensor([5, slot]).int()), p.dim("row", 1), p.dim("page_size", 3), 128,
    )  # fmt: skip


@case(leaf.write_powers, slot=(-1, 7))
def write_powers(p: Probe, slot: int) -> None:
    p.threads = 128
    p.call(
        cache(p, 3 * 146), p.shared("powers", (8,), p.integers(0, 256, 8).int()),
        p.operand("slots", torch.tensor([5, slot]).int()), p.dim("row", 1), p.dim("page_size", 3),
    )  # fmt: skip


@case(leaf.write_index_row, slot=(-1, 7), size=(1e-9, 1.0))
def write_index_row(p: Probe, slot: int, size: float) -> None:
    held = own(p, 128, spread_of=size)
    p.call(
        cache(p, 3 * 33), held, p.operand("slots", torch.tensor([5, slot]).int()), p.dim("row", 1),
        p.dim("page_size", 3),
        32,
    )  # fmt: skip
