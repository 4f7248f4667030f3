"""What the pictures of the cases share; matplotlib is only imported to draw one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dsl_kernels.errors import ToolchainError

from .base import Record, stall_shares

COLOURS = (
    "#1b6ca8",
    "#d1495b",
    "#66a182",
    "#edae49",
    "#5c5470",
    "#8d99ae",
    "#2e4057",
    "#a26769",
    "#b5c99a",
    "#7d4f9c",
)


def panels(count: int, title: str, record: Record, width: float = 5.2) -> tuple[Any, Any]:
    """A figure of `count` axes side by side, under the title, the GPU and the date.

    Raises:
        ToolchainError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ToolchainError(
            "matplotlib",
            expected="the package that draws figures",
            got=str(error),
            fix="`pip install matplotlib`",
        ) from None
    drawn = Figure(figsize=(width * count, 4.0), layout="constrained", dpi=110)
    where = record.get("environment", {})
    drawn.suptitle(f"{title} ({where.get('gpu', 'no GPU')}, {where.get('date', 'no date')})", fontsize=10)
    axes = [drawn.add_subplot(1, count, place + 1) for place in range(count)]
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#dddddd", linewidth=0.6)
        axis.set_axisbelow(True)
    return drawn, axes


def bars(axis: Any, names: Sequence[str], values: Sequence[float], label: str, log: bool = False) -> None:
    """One bar for each name, labelled with its value."""
    shown = axis.bar(range(len(names)), values, color=[COLOURS[i % len(COLOURS)] for i in range(len(names))])
    axis.bar_label(shown, fmt="%.3g", fontsize=8)
    axis.set_xticks(range(len(names)), names, fontsize=8, rotation=25 if len(names) > 5 else 0)
    axis.set_ylabel(label)
    if log:
        axis.set_yscale("log")


def lines(
    axis: Any,
    curves: Mapping[str, Iterable[tuple[float, float]]],
    x: str,
    y: str,
    *,
    logx: bool = True,
    logy: bool = True,
) -> None:
    """One curve for each name, through its points in order of x."""
    for place, (name, points) in enumerate(curves.items()):
        ordered = sorted(points)
        if ordered:
            across, up = zip(*ordered, strict=True)
            axis.plot(across, up, marker="o", markersize=3.5, label=name, color=COLOURS[place % len(COLOURS)])
    ticks = sorted({at for points in curves.values() for at, _ in points})
    if logx:
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [count(at) for at in ticks], fontsize=8)
        axis.minorticks_off()
    if logy:
        axis.set_yscale("log")
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    if any(curves.values()):
        axis.legend(fontsize=7, frameon=False)


def count(value: float) -> str:
    """A number in units of 1024: 1024 as 1K."""
    return f"{value / 1024:g}K" if value >= 1024 else f"{value:g}"


def stalls(axis: Any, record: Record, few: int = 5) -> None:
    """Shares of the warps' time by stall reason, one stacked bar for each profiled launch."""
    counters = record.get("counters", {})
    shares = {name: stall_shares(each.get("metrics", {})) for name, each in counters.items()}
    shares = {name: each for name, each in shares.items() if each}
    axis.set_title("where the warps wait", fontsize=9)
    if not shares:
        axis.text(0.5, 0.5, "no counters were read", ha="center", va="center", transform=axis.transAxes)
        axis.set_axis_off()
        return
    weight: dict[str, float] = {}
    for each in shares.values():
        for reason, share in each.items():
            weight[reason] = max(weight.get(reason, 0.0), share)
    reasons = sorted(weight, key=lambda reason: -weight[reason])[: few + 2]
    base = [0.0] * len(shares)
    for place, reason in enumerate([*reasons, "other"]):
        up = [
            each.get(reason, 0.0) if reason != "other" else 1 - sum(each.get(r, 0.0) for r in reasons)
            for each in shares.values()
        ]
        colour = COLOURS[place % len(COLOURS)] if reason != "other" else "#cccccc"
        axis.bar(range(len(shares)), up, bottom=base, label=reason, color=colour)
        base = [low + more for low, more in zip(base, up, strict=True)]
    axis.set_xticks(range(len(shares)), list(shares), fontsize=7, rotation=20)
    axis.set_ylabel("share of warp time")
    axis.set_ylim(0, 1)
    axis.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
