"""What a case is, and how it runs: kernels are checked before they are timed, all figures go into a record.

A record is plain JSON: the environment, a row for each measurement, the counters of the profiled kernels, and
the expectations with what was read. Pictures, pages and claims are made from records, without a GPU.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsl_kernels.errors import ArtifactError, UnknownNameError, did_you_mean
from dsl_kernels.problems.base import Comparison
from dsl_kernels.runtime.storage import write_atomically

from ..timing import bench

if TYPE_CHECKING:
    import torch

    from ..timing import calibrate

SCHEMA = 1
# Seconds for a case's rows and counters, and the same with every size.
BUDGET_SECONDS, FULL_SECONDS = 60.0, 600.0

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Launch:
    """One kernel for a profiler to look at.

    Attributes:
        prepare: draws the inputs and returns a function that launches the kernel once.
        kernel: regular expression that matches its device function's name, and no other name in the same
            call.
    """

    prepare: Callable[[], Callable[[], Any]]
    kernel: str


@dataclass(frozen=True)
class Expectation:
    """What a launch's counters should say.

    Attributes:
        launch: name of the launch.
        metric: a metric of Nsight Compute, or "dominant_stall".
        relation: "<", ">=" or "in".
        wanted: a number in the metric's unit, or names.
        why: what it means if the expectation holds.
    """

    launch: str
    metric: str
    relation: str
    wanted: float | tuple[str, ...]
    why: str

    def holds(self, value: float | str) -> bool:
        """Whether a reading is as expected."""
        if isinstance(self.wanted, tuple):
            return value in self.wanted
        return float(value) < self.wanted if self.relation == "<" else float(value) >= self.wanted


@dataclass(frozen=True)
class Case:
    """One question and how it is answered.

    Attributes:
        name: its module's name.
        question: one sentence.
        source: number of the founding document that asks it.
        measure: fills the case's rows; needs a GPU.
        draw: makes a matplotlib figure from a record.
        launches: kernels that a profiler may look at, by name.
        expected: what their counters should say.
    """

    name: str
    question: str
    source: str
    measure: Callable[[CaseRows], None]
    draw: Callable[[Record], Any]
    launches: Mapping[str, Launch]
    expected: tuple[Expectation, ...] = ()

    def launch(self, name: str) -> Launch:
        """The launch of that name.

        Raises:
            UnknownNameError: there is none.
        """
        if name not in self.launches:
            known = list(self.launches)
            raise UnknownNameError(
                f"launch of the case {self.name}",
                expected="a known launch",
                got=repr(name),
                fix=did_you_mean(name, known) if known else "this case has no kernel to profile",
            )
        return self.launches[name]


class CaseRows:
    """Rows of a case. A row that raises is kept with its error, and the next one is measured.

    Attributes:
        full: sizes besides those that the question needs are wanted too.
    """

    def __init__(self, budget: float = BUDGET_SECONDS, full: bool = False) -> None:
        self.full = full
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self._end = time.monotonic() + budget

    @property
    def spent(self) -> bool:
        """Whether the case's time is up."""
        return time.monotonic() > self._end

    def row(
        self,
        name: str,
        timing: Callable[[], Mapping[str, Any]],
        check: Callable[[], Comparison] | None = None,
        *,
        measurement_only: bool = False,
        **facts: Any,
    ) -> dict[str, Any]:
        """Check a kernel, then time it. A wrong result is not timed, unless the row is for measurement only.

        Args:
            timing: measures the row's figures.
            check: compares the result; None if no result can be wrong (a clock, a property).
            measurement_only: the kernel leaves out work on purpose, so its result is wrong.
        """
        row: dict[str, Any] = {"name": name, **facts}
        self.rows.append(row)
        if self.spent:
            row["error"] = "not measured: the time of the case was over"
            return row
        try:
            if check is not None:
                comparison = check()
                # A wrong result may be off by infinity or NaN, which JSON cannot express.
                row["checks"] = {
                    name: value if math.isfinite(value) else None
                    for name, value in comparison.figures.items()
                }
                row["ok"] = comparison.ok
                if comparison.failures:
                    row["failures"] = comparison.failures
                if not comparison.ok and not measurement_only:
                    return row
            row |= timing()
        except Exception as error:
            row["error"] = _brief(error)
        return row


def _brief(error: Exception) -> str:
    text = str(error) or repr(error)
    shown = text if len(text) <= 800 else f"{text[:300]} ... {text[-500:]}"
    return f"{type(error).__name__}: {shown}"


def run(case: Case, budget: float | None = None, full: bool = False) -> dict[str, Any]:
    """Measure a case on the GPU of this machine and return its record.

    Args:
        budget: seconds after which no further row starts; by default BUDGET_SECONDS, or FULL_SECONDS with
            `full`.
        full: measure every size, not only those that the question needs.

    Raises:
        ExecutorUnavailableError: there is no GPU.
    """
    import torch

    bench.require_gpu()
    measured = CaseRows(budget_of(budget, full), full)
    begin = time.monotonic()
    with torch.inference_mode():
        try:
            case.measure(measured)
        except Exception as error:
            measured.notes.append(f"the case ended early: {_brief(error)}")
    torch.cuda.empty_cache()
    return {
        "schema": SCHEMA,
        "case": case.name,
        "question": case.question,
        "environment": {
            **bench.environment(),
            "command": f"python -m dsl_kernels case run {case.name}{' --full' if full else ''}",
        },
        "seconds": round(time.monotonic() - begin, 1),
        "rows": measured.rows,
        "counters": {},
        "expected": judged(case, {}),
        "notes": measured.notes,
    }


def budget_of(budget: float | None, full: bool) -> float:
    """The seconds that a case may take: as asked, or the default."""
    return budget if budget is not None else FULL_SECONDS if full else BUDGET_SECONDS


def judged(case: Case, counters: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every expectation with what the counters say; `holds` is None if nothing was read."""
    judgements = []
    for expectation in case.expected:
        metrics = counters.get(expectation.launch, {}).get("metrics", {})
        value = (
            dominant_stall(metrics)
            if expectation.metric == "dominant_stall"
            else metrics.get(expectation.metric)
        )
        holds = None if value is None else expectation.holds(value)
        judgements.append({**asdict(expectation), "got": value, "holds": holds})
    return judgements


def stall_cycles(metrics: Mapping[str, float]) -> dict[str, float]:
    """Cycles of a warp per instruction that it issues, by stall reason; "selected" is the issue itself."""
    before, after = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
    return {
        name.removeprefix(before).removesuffix(after): value
        for name, value in metrics.items()
        if name.startswith(before) and name.endswith(after)
    }


def stall_shares(metrics: Mapping[str, float]) -> dict[str, float]:
    """Share of the warps' time by stall reason, greatest first."""
    cycles = stall_cycles(metrics)
    total = sum(cycles.values())
    if not total:
        return {}
    return {name: cycles[name] / total for name in sorted(cycles, key=lambda n: -cycles[n])}


def dominant_stall(metrics: Mapping[str, float]) -> str | None:
    """The reason for which warps waited longest."""
    return next((name for name in stall_shares(metrics) if name != "selected"), None)


def times(calls: Sequence[bench.Call], moved: float = 0.0, flops: float = 0.0) -> dict[str, Any]:
    """Time of one call as a row's figures, with GB/s and TFLOP/s if the work is known."""
    timing = bench.graph_time(calls)
    figures: dict[str, Any] = {"us": timing.us, "low": timing.low, "high": timing.high}
    if moved:
        figures["gbps"] = moved / timing.us / 1e3
    if flops:
        figures["tflops"] = flops / timing.us / 1e6
    return figures


def read_times(buffers: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Figures of reading buffers of one size in turn, in the fastest of the known ways."""
    from ..timing import calibrate

    def reads(setting: calibrate.Setting) -> list[bench.Call]:
        return [partial(calibrate.read, buffer, setting) for buffer in buffers]

    _, setting = calibrate.fastest(reads)
    return times(reads(setting), float(buffers[0].numel() * buffers[0].element_size()))


def rows_of(record: Record, kind: str) -> list[dict[str, Any]]:
    """The measured rows of one kind."""
    return [row for row in record["rows"] if row.get("kind") == kind and "error" not in row]


def write(record: Record, path: Path) -> None:
    """Write a record; an existing file is replaced atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(record, indent=1, allow_nan=False, default=float) + "\n"
    write_atomically(path, text.encode())


def read(path: Path) -> dict[str, Any]:
    """A record that `write` made.

    Raises:
        ArtifactError: there is none, or it has another schema.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        if record.get("schema") != SCHEMA:
            raise ValueError(f"schema {record.get('schema')}")
    except (OSError, ValueError) as error:
        raise ArtifactError(
            path.name,
            expected=f"the record of a case, schema {SCHEMA}",
            got=str(error),
            fix="measure it again with `python -m dsl_kernels case run NAME --out FILE`",
        ) from None
    return record
