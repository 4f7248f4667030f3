"""A sparse decode step beside dense attention over the same cache, by context length and number of queries.

The step scores every token, selects 2048 and attends to them. Dense attention reads every latent row: in a
Triton split-K kernel over whole pages, and in this library's attention given every token's id. The memory's
floor stands beside them: the bytes of the cache over the rate of a sequential read in the same run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from dsl_kernels._discover import later
from dsl_kernels.kernels.lightning_indexer.problem import PAGE
from dsl_kernels.problems.base import Comparison
from dsl_kernels.problems.layouts import LATENT_DIM, ROPE_DIM

from .. import oracles
from ..timing import bench
from . import _figures
from .base import Case, CaseRows, Launch, Record, read_times, rows_of, times

if TYPE_CHECKING:
    import torch

    from dsl_kernels import ops
    from dsl_kernels_lab import steps
    from dsl_kernels_lab.steps import check

    from ..timing import calibrate, measure
else:
    torch = later("torch", globals())
    ops = later("dsl_kernels.ops", globals())
    check = later("dsl_kernels_lab.steps.check", globals())
    steps = later("dsl_kernels_lab.steps", globals())
    calibrate = later("dsl_kernels_lab.timing.calibrate", globals())
    measure = later("dsl_kernels_lab.timing.measure", globals())

DEVICE = "cuda"
ROW = 2 * (LATENT_DIM + ROPE_DIM)
QUERIES = (1, 16, 64)
# The points that the question needs: where the step loses to dense attention, and its largest lead. Each
# point loads its own kernels, which a machine without them must first compile.
POINTS = ((1, 131072), (64, 131072), (1, 4096), (64, 4096))
FULL = (
    *POINTS,
    *((t, n) for n in (131072, 32768, 4096, 65536, 16384) for t in QUERIES if (t, n) not in POINTS),
)
DENSE_TILES = ((32, 4, 3), (64, 8, 2))


def measure_point(to: CaseRows, t: int, length: int) -> None:
    size = steps.StepSize(batch=t, context=length)
    sets = measure.step_sets(size)

    def sparse() -> dict[str, Any]:
        step = measure.time_step(sets, baseline=False)
        return {
            "us": step["step"]["us"],
            "low": step["step"]["low"],
            "high": step["step"]["high"],
            "ops": step["ops"],
            "ceilings": step["ceilings"],
            "turns": step["turns"],
            "used": {item.variant.op: item.variant.id for item in steps.used()},
        }

    def check_sparse() -> Comparison:
        ops.clear()
        _, comparisons = check.run_checked(sets[0], sample=2)
        return merged(comparisons)

    to.row(f"step T={t} L={length}", sparse, check_sparse, kind="step", t=t, context=length)
    if to.spent:
        return
    moved = float(t) * length * ROW
    few = sets[: bench.turns(moved, limit=len(sets))]
    each = [Dense(inputs) for inputs in few]
    to.row(
        f"dense, every id, T={t} L={length}",
        partial(times, [one.every_id for one in each], moved),
        partial(each[0].check, each[0].every_id),
        kind="dense",
        how="sparse_mla over every id",
        t=t,
        context=length,
    )
    _dense_triton(to, each, t, length, moved)


def merged(comparisons: dict[str, Comparison]) -> Comparison:
    """One comparison of all ops and the chain."""
    whole = Comparison()
    for op, comparison in comparisons.items():
        whole.figures |= {f"{op}: {name}": value for name, value in comparison.figures.items()}
        whole.limits |= {f"{op}: {name}": value for name, value in comparison.limits.items()}
        whole.failures += [f"{op}: {text}" for text in comparison.failures]
    return whole


class Dense:
    """Attention of a step's queries over every token of their sequences."""

    def __init__(self, inputs: steps.StepInputs) -> None:
        self.inputs = inputs
        t = inputs.tensors
        self.table = t["block_table"]
        offsets = torch.arange(PAGE, dtype=torch.int32, device=self.table.device)
        self.ids = (self.table[:, :, None] * PAGE + offsets).flatten(1).contiguous()
        self.out = torch.empty_like(t["q_nope"])
        self.lse = torch.empty(t["q_nope"].shape[:2], device=self.table.device)

    def every_id(self) -> None:
        t = self.inputs.tensors
        ops.sparse_mla(
            t["q_nope"],
            t["q_pe"],
            t["kv"],
            self.ids,
            kpe=t["kpe"],
            sm_scale=self.inputs.sm_scale,
            out=self.out,
            lse=self.lse,
        )

    def triton(self, mla: Any, setting: Any, splits: int, scratch: Any) -> Any:
        t, rows = self.inputs.tensors, self.inputs.cache_rows()
        problem = mla.Problem(
            t["q_nope"],
            t["q_pe"],
            rows["ckv"],
            rows["kpe"],
            self.table,
            self.ids.shape[1],
            self.inputs.sm_scale,
            self.out,
            self.lse,
        )
        return mla.attend(problem, setting, splits, scratch)

    def check(self, call: Callable[[], Any]) -> Comparison:
        """Compare the first and last query with float64 over every token, as the sparse_mla problem does."""
        self.out.fill_(float("nan"))
        call()
        t, rows = self.inputs.tensors, self.inputs.cache_rows()
        few = torch.tensor(sorted({0, self.ids.shape[0] - 1}), device=self.ids.device)
        heads = self.out.shape[1]
        inputs = {
            "q_nope": t["q_nope"][few],
            "q_pe": t["q_pe"][few],
            **rows,
            "indices": self.ids[few],
            "attn_sink": torch.full((heads,), -math.inf, device=self.ids.device),
            "sm_scale": self.inputs.sm_scale,
            "lse_scale": 1.0,
        }
        oracle = oracles.get("sparse_mla")
        expected = oracle.reference("bf16", inputs)
        return oracle.compare("bf16", inputs, {"out": self.out[few], "lse": self.lse[few]}, expected)


def _dense_triton(to: CaseRows, dense: list[Dense], t: int, length: int, moved: float) -> None:
    """The fastest of a few tiles and splits."""
    facts: dict[str, Any] = {"kind": "dense", "how": "Triton split-K over pages", "t": t, "context": length}
    try:
        from . import _triton_mla as mla
    except ImportError as error:
        to.notes.append(f"no dense Triton attention: {error}")
        return
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    tried: list[tuple[float, Any, int]] = []

    def calls(setting: Any, splits: int) -> list[bench.Call]:
        scratch = (
            torch.empty(t * splits * 16 * LATENT_DIM, device=DEVICE),
            torch.empty(t * splits * 16, device=DEVICE),
        )
        return [partial(one.triton, mla, setting, splits, scratch) for one in dense]

    for tile in DENSE_TILES:
        setting = mla.Setting(*tile, dense=True)
        for splits in mla.split_counts(t, length, setting.tokens, processors):
            if to.spent:
                break
            try:
                tried.append((bench.graph_time(calls(setting, splits), replays=5).us, setting, splits))
            except Exception as error:
                to.notes.append(f"dense Triton {setting.label}: {type(error).__name__}")
    if not tried:
        return
    _, setting, splits = min(tried, key=lambda one: one[0])
    chosen = calls(setting, splits)
    to.row(
        f"dense, Triton, T={t} L={length}",
        partial(times, chosen, moved),
        partial(dense[0].check, chosen[0]),
        setting=setting.label,
        splits=splits,
        **facts,
    )


def measure_all(to: CaseRows) -> None:
    buffer = torch.empty(2, 1 << 30, dtype=torch.uint8, device=DEVICE)
    to.row("read 1 GiB", partial(read_times, list(buffer)), kind="read")
    del buffer
    for t, length in FULL if to.full else POINTS:
        if to.spent:
            to.row(f"step T={t} L={length}", dict, kind="step", t=t, context=length)
            continue
        try:
            measure_point(to, t, length)
        except Exception as error:
            to.notes.append(f"T={t} L={length}: {type(error).__name__}: {str(error)[:300]}")
        torch.cuda.empty_cache()


def dense_us(record: Record, t: int, context: int) -> float | None:
    """The time of the faster dense kernel at a point."""
    measured = [
        row["us"]
        for row in rows_of(record, "dense")
        if row["t"] == t and row["context"] == context and "us" in row
    ]
    return min(measured, default=None)


def floor_us(record: Record, t: int, context: int) -> float | None:
    """Time of reading every latent row once, at the rate of the sequential read in the same run."""
    read = [row["gbps"] for row in rows_of(record, "read")]
    return t * context * ROW / read[0] / 1e3 if read else None


def figure(record: Record) -> Any:
    """Time of the step, its parts and dense attention against context; a panel for each T."""
    points = [row for row in rows_of(record, "step") if "us" in row]
    counts = sorted({row["t"] for row in points}) or [1]
    drawn, axes = _figures.panels(len(counts), "Decode step and dense attention, 16 heads", record, 4.4)
    for axis, t in zip(axes, counts, strict=True):
        mine = [row for row in points if row["t"] == t]
        curves = {
            "scoring": [(row["context"], row["ops"]["lightning_indexer"]) for row in mine],
            "selection": [(row["context"], row["ops"]["topk_selector"]) for row in mine],
            "sparse attention": [(row["context"], row["ops"]["sparse_mla"]) for row in mine],
            "whole step": [(row["context"], row["us"]) for row in mine],
        }
        dense = [(row["context"], dense_us(record, t, row["context"])) for row in mine]
        curves["dense attention"] = [(at, us) for at, us in dense if us is not None]
        floor = [(row["context"], floor_us(record, t, row["context"])) for row in mine]
        curves["dense, bytes only"] = [(at, us) for at, us in floor if us is not None]
        _figures.lines(axis, curves, f"context, T={t}", "µs")
    return drawn


def _every_id() -> Callable[[], None]:
    return Dense(measure.step_sets(steps.StepSize(batch=1, context=131072))[0]).every_id


CASE = Case(
    name="dense_sparse",
    question="From which context length on, and by how much, "
    "is a sparse decode step faster than dense attention?",
    source="002",
    measure=measure_all,
    draw=figure,
    launches={"dense_t1_128k": Launch(_every_id, "sparse_mla")},
)
