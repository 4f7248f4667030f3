"""Compute-side changes of a Triton split-K sparse attention, each timed in turns with the unchanged kernel.

64 queries of 16 heads attend to 2048 random tokens of a cache of 302 MB. A change that leaves out work (no
exponential, no rope part) is wrong and fails the comparison; its time bounds what that work costs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dsl_kernels._discover import later
from dsl_kernels.problems.base import Comparison
from dsl_kernels.problems.layouts import LATENT_DIM, ROPE_DIM

from .. import oracles
from ..timing import bench
from . import _figures
from .base import Case, CaseRows, Expectation, Launch, Record, rows_of, times

if TYPE_CHECKING:
    import torch
else:
    torch = later("torch", globals())

DEVICE = "cuda"
T, HEADS, TOPK, TOKENS = 64, 16, 2048, 4096 * 64
TILES = ((16, 4, 3), (16, 4, 5), (32, 4, 2), (32, 4, 3), (32, 8, 4), (64, 4, 2), (64, 8, 2))
# Name of each change, whether to time it even if its result is wrong, and the changed settings.
CHANGES: tuple[tuple[str, bool, dict[str, Any]], ...] = (
    ("exp in place of exp2", False, {"exponential": "exp"}),
    ("cubic polynomial in place of exp2", True, {"exponential": "polynomial"}),
    ("no exponential", True, {"exponential": "none"}),
    ("no rope part", True, {"kpe": False}),
)
ROW = 2 * (LATENT_DIM + ROPE_DIM)


def draw(sets: int, t: int = T) -> list[Any]:
    """Calls on one cache, each with its own queries and ids."""
    from ..oracles.sparse_mla import DATASET_SM_SCALE
    from . import _triton_mla as mla

    generator = torch.Generator(DEVICE).manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=DEVICE, dtype=torch.bfloat16)

    ckv, kpe = normal(TOKENS, LATENT_DIM), normal(TOKENS, ROPE_DIM)
    calls = []
    for _ in range(sets):
        ids = torch.randint(TOKENS, (t, TOPK), generator=generator, device=DEVICE, dtype=torch.int32)
        q_nope, q_pe = normal(t, HEADS, LATENT_DIM), normal(t, HEADS, ROPE_DIM)
        out, lse = torch.empty_like(q_nope), torch.empty(t, HEADS, device=DEVICE)
        calls.append(mla.Problem(q_nope, q_pe, ckv, kpe, ids, TOPK, DATASET_SM_SCALE, out, lse))
    return calls


def checked(call: Callable[[], Any], given: Any) -> Comparison:
    """Compare four queries, as the sparse_mla problem does."""
    call()
    few = torch.linspace(0, given.q_nope.shape[0] - 1, 4, device=DEVICE).long()
    inputs = {
        "q_nope": given.q_nope[few],
        "q_pe": given.q_pe[few],
        "ckv": given.ckv,
        "kpe": given.kpe,
        "indices": given.rows[few],
        "attn_sink": torch.full((HEADS,), -math.inf, device=DEVICE),
        "sm_scale": given.sm_scale,
        "lse_scale": 1.0,
    }
    oracle = oracles.get("sparse_mla")
    expected = oracle.reference("bf16", inputs)
    return oracle.compare("bf16", inputs, {"out": given.out[few], "lse": given.lse[few]}, expected)


def measure(to: CaseRows) -> None:
    from . import _triton_mla as mla

    given = draw(2)
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    fastest: tuple[float, Any, int] = (math.inf, mla.Setting(*TILES[0]), 2)
    for tile in TILES:
        setting = mla.Setting(*tile)
        for splits in mla.split_counts(T, TOPK, setting.tokens, processors):
            calls, kept = _calls(mla, given, setting, splits)
            row = to.row(
                f"{setting.label}, {splits} splits",
                partial(times, calls, T * TOPK * float(ROW)),
                partial(checked, calls[0], given[0]),
                kind="tile",
                tokens=setting.tokens,
                warps=setting.warps,
                stages=setting.stages,
                splits=splits,
            )
            if "compiled" in kept:
                row |= mla.resources(kept["compiled"])
            if row.get("us", math.inf) < fastest[0]:
                fastest = row["us"], setting, splits
    _, base, splits = fastest
    plain, _ = _calls(mla, given, base, splits)
    to.row(
        "unchanged, against itself",
        partial(_paired, plain, plain),
        partial(checked, plain[0], given[0]),
        kind="change",
        setting=base.label,
        splits=splits,
    )
    for name, wrong, change in CHANGES:
        changed, _ = _calls(mla, given, replace(base, **change), splits)
        to.row(
            name,
            partial(_paired, plain, changed),
            partial(checked, changed[0], given[0]),
            measurement_only=wrong,
            kind="change",
            setting=base.label,
            splits=splits,
        )
    narrow, _ = _calls(mla, given, replace(base, bf16_scores=True), splits)
    to.row(
        "scores accumulated in bf16",
        partial(_paired, plain, narrow),
        partial(checked, narrow[0], given[0]),
        measurement_only=True,
        kind="change",
        setting=base.label,
        splits=splits,
    )


def _paired(a: list[bench.Call], b: list[bench.Call]) -> dict[str, Any]:
    return bench.paired(a, b).to_dict()


def _calls(mla: Any, given: list[Any], setting: Any, splits: int) -> tuple[list[bench.Call], dict[str, Any]]:
    kept: dict[str, Any] = {}
    scratch = given[0].scratch(splits)

    def call(one: Any) -> None:
        kept["compiled"] = mla.attend(one, setting, splits, scratch)

    return [partial(call, one) for one in given], kept


def target(**change: Any) -> Launch:
    def prepare() -> Callable[[], Any]:
        from . import _triton_mla as mla

        one = draw(1)[0]
        return _calls(mla, [one], mla.Setting(32, 4, 3, **change), 2)[0][0]

    return Launch(prepare, "_attend")


def figure(record: Record) -> Any:
    """Ratio of each change to the unchanged kernel, with its noise band, and time by tile."""
    drawn, (left, right) = _figures.panels(
        2, "Split-K attention in Triton, 64 queries of 16 heads", record, 6.0
    )
    changes = [row for row in rows_of(record, "change") if "ratio" in row]
    for place, row in enumerate(changes):
        colour = _figures.COLOURS[1] if row["verdict"] == "differs" else _figures.COLOURS[0]
        left.errorbar(row["ratio"], place, xerr=row["noise"], fmt="o", color=colour, capsize=4)
    left.axvline(1.0, color="#888888", linewidth=0.8)
    names = [row["name"] + (" (wrong)" if row.get("ok") is False else "") for row in changes]
    left.set_yticks(range(len(changes)), names, fontsize=8)
    left.invert_yaxis()
    left.set_xlabel("time over the unchanged kernel's, with noise band")
    tiles = [row for row in rows_of(record, "tile") if "us" in row]
    shown = right.barh(range(len(tiles)), [row["us"] for row in tiles], color=_figures.COLOURS[0])
    right.bar_label(shown, fmt="%.3g", fontsize=7)
    right.set_yticks(range(len(tiles)), [row["name"] for row in tiles], fontsize=7)
    right.invert_yaxis()
    right.grid(axis="y", visible=False)
    right.set_xlabel("µs")
    return drawn


CASE = Case(
    name="split_k",
    question="Which changes to the arithmetic of a sparse attention change its time at all?",
    source="000",
    measure=measure,
    draw=figure,
    launches={"exp2": target(), "no_exponential": target(exponential="none")},
    expected=(
        Expectation(
            "exp2", "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active", "<", 40.0, "no SFU bound"
        ),
        Expectation(
            "exp2", "sm__warps_active.avg.pct_of_peak_sustained_active", "<", 30.0, "few warps resident"
        ),
    ),
)
