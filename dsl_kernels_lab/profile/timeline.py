"""What each warp of a kernel did when: a launch's trace as Chrome's events (for Perfetto) or a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsl_kernels.errors import InvalidArgumentError, ToolchainError
from dsl_kernels.tile.lang import Schedule
from dsl_kernels.tile.probes import WAITS
from dsl_kernels.tile.transfers import transfer_of

from . import readings
from .readings import WarpTrace
from .regions import CLOCKS, Run, cycles_per_ns

# No clock reads asynchronous products: each is shown from its issue until a warp knows that it is done.
TENSOR_CORE = "tensor core (derived)"
COLOURS = (
    "#1b6ca8", "#d1495b", "#66a182", "#edae49", "#5c5470",
    "#2e4057", "#a26769", "#b5c99a", "#7d4f9c", "#4bb3c3",
)  # fmt: skip
OTHER_COLOUR, WAIT_COLOUR = "#8d99ae", "#e4e4e4"


@dataclass(frozen=True)
class Row:
    """One line of a timeline: a warp of a role, or the tensor core of a CTA.

    Attributes:
        spans: region, begin and end, in microseconds since the launch's first span.
        full: the warp's ring was full, so marks before the first span may be lost.
    """

    cta: int
    sm: int
    name: str
    spans: tuple[tuple[str, float, float], ...]
    full: bool = False


@dataclass(frozen=True)
class Timeline:
    """A launch over time; `clock` says what a microsecond is."""

    variant: str
    workload: str
    clock: str
    rows: tuple[Row, ...]


def timeline(launch: Run, ctas: int = 8) -> Timeline:
    """The first CTAs of a launch that kept a trace.

    CTAs on one SM share its clock. The global timer, which ticks in steps, aligns the SMs with one another.

    Raises:
        InvalidArgumentError: fewer than one CTA.
    """
    probes = launch.probes
    if ctas < 1:
        raise InvalidArgumentError(
            "--ctas", expected="at least 1", got=str(ctas), fix="name a number of CTAs"
        )
    shown = range(min(ctas, probes.ctas(launch.dims)))
    warps = {role: readings.trace(probes, launch.workspace, role, shown) for role in probes.regions}
    emulated = launch.executor != "cuda"
    rate = 1.0 if emulated else cycles_per_ns(launch)
    every = [warp for traces in warps.values() for warp in traces]
    # One pair of clocks for each SM: that of the first warp seen there.
    pairs = {warp.sm: warp.times[:2] for warp in reversed(every)}
    zeros = {warp.cta: warp.began for warp in every if warp.warp == 0}
    origin = min(timer for timer, _ in pairs.values())

    def at(warp: WarpTrace, ticks: int) -> float:
        timer, clock = pairs[warp.sm]
        # Passages count from the start of the CTA's warp 0.
        passed = ((zeros.get(warp.cta, warp.began) - clock + (1 << 31)) & 0xFFFFFFFF) - (1 << 31) + ticks
        return ((timer - origin) + passed / rate) / 1e3

    rows = []
    for cta in shown:
        mine = {role: [warp for warp in traces if warp.cta == cta] for role, traces in warps.items()}
        for role, traces in mine.items():
            for warp in traces:
                spans = tuple((p.region, at(warp, p.begin), at(warp, p.end)) for p in warp.passages)
                rows.append(Row(cta, warp.sm, f"{role}, warp {warp.warp}", spans, warp.full))
        busy = [(begin, end) for role in mine for begin, end in _products(launch, role, mine, at)]
        if busy:
            sm = next(iter(mine.values()))[0].sm
            rows.append(Row(cta, sm, TENSOR_CORE, tuple(("products", *span) for span in _joined(busy))))
    first = min((begin for row in rows for _, begin, _ in row.spans), default=0.0)
    moved = tuple(
        Row(r.cta, r.sm, r.name, tuple((n, b - first, e - first) for n, b, e in r.spans), r.full)
        for r in rows
    )
    return Timeline(launch.variant.id, launch.workload.name, CLOCKS[launch.executor], moved)


def _products(
    launch: Run, role: str, warps: dict[str, list[WarpTrace]], at: Any
) -> Iterable[tuple[float, float]]:
    """Spans from the issue of each group of a role's products until some warp knows that it is done."""
    schedule = launch.probes.schedule
    units = {mma.unit for mma in schedule.mmas if mma.role == role}
    if not units:
        return
    filled = {pipe.name: pipe for pipe in schedule.pipelines if transfer_of(pipe).PRODUCTS}
    known = sorted(
        (p.end, warp)
        for reader, traces in warps.items()
        for warp_trace in traces[:1]
        for warp, p in ((reader, p) for p in warp_trace.passages)
        if p.region in {f"wait {name}" for name in filled}
    )
    each = schedule.role(role).warps
    for warp in warps[role][:: min(each, 4)]:
        for place, p in enumerate(warp.passages):
            if not p.region.startswith("multiply "):
                continue
            if "tcgen05" in units:
                done = next((end for end, _ in known if end > p.begin), p.end)
            else:
                known_by = _known_by(schedule, p.region.split()[1:])
                later = (q.end for q in warp.passages[place + 1 :] if q.region in known_by)
                done = p.end if units == {"mma.sync"} else next(later, p.end)
            yield at(warp, p.begin), at(warp, done)


def _known_by(schedule: Schedule, products: Sequence[str]) -> set[str]:
    """Regions whose end means that these products are done: a wait for all, or the release of an operand."""
    read = {operand for mma in schedule.mmas if mma.name in products for operand in (mma.a, mma.b)}
    releases = (f"release {pipe.name}" for pipe in schedule.pipelines if read & set(pipe.buffers))
    return {"await products", *releases}


def _joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The union of the spans, in order."""
    union: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if union and begin <= union[-1][1]:
            union[-1] = (union[-1][0], max(union[-1][1], end))
        else:
            union.append((begin, end))
    return union


def kind(region: str) -> str:
    """What a region is: "wait" for others, "product", or "work"."""
    return (
        "wait"
        if region.startswith(WAITS)
        else "product"
        if region.startswith(("multiply ", "await products", "products"))
        else "work"
    )


def chrome(line: Timeline) -> dict[str, Any]:
    """Chrome's trace format: a process for each CTA, a thread for each row."""
    events: list[dict[str, Any]] = []
    numbers: dict[int, int] = {}
    for row in line.rows:
        number = numbers[row.cta] = numbers.get(row.cta, -1) + 1
        place = {"pid": row.cta, "tid": number}
        if number == 0:
            name = f"CTA {row.cta} on SM {row.sm}"
            events.append({"ph": "M", "name": "process_name", "pid": row.cta, "args": {"name": name}})
        events.append({"ph": "M", "name": "thread_name", **place, "args": {"name": row.name}})
        events.append({"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": number}})
        events += [
            {
                "ph": "X",
                "name": region,
                "cat": kind(region),
                **place,
                "ts": round(begin, 4),
                "dur": round(end - begin, 4),
            }
            for region, begin, end in row.spans
        ]
    facts = {"variant": line.variant, "workload": line.workload, "clock": line.clock}
    return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": facts}


def draw(line: Timeline, path: Path, cta: int = 0) -> None:
    """A picture of one CTA: a row for each role (one of its warps), and one for the tensor core.

    Raises:
        ToolchainError: matplotlib is not installed.
        InvalidArgumentError: the timeline has no such CTA.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ToolchainError(
            "matplotlib",
            expected="the package that draws",
            got=str(error),
            fix="`pip install 'dsl-kernels-lab[profile]'`",
        ) from None
    rows = of_cta(line, cta)
    if not rows:
        raise InvalidArgumentError(
            "--cta", expected="one that the timeline holds", got=str(cta), fix="raise --ctas"
        )
    drawn = Figure(figsize=(12.0, 1.4 + 0.55 * len(rows)), layout="constrained", dpi=120)
    axis = drawn.add_subplot()
    draw_rows(axis, rows)
    axis.set_xlabel("µs" if line.clock == CLOCKS["cuda"] else "thousands of ticks of the emulator")
    axis.set_title(f"{line.variant}, CTA {cta}", fontsize=9, loc="left")
    drawn.savefig(path)


def time_by_region(rows: Iterable[Row]) -> dict[str, float]:
    """Time that rows spend in each region, in the unit of their spans."""
    totals: dict[str, float] = {}
    for region, begin, end in (span for row in rows for span in row.spans):
        totals[region] = totals.get(region, 0.0) + end - begin
    return totals


def colours_by_region(totals: Mapping[str, float]) -> dict[str, str]:
    """A colour for each of the regions that take most time, one for the other work, and one for all waits."""
    colours = dict.fromkeys(totals, OTHER_COLOUR)
    colours |= {region: WAIT_COLOUR for region in totals if kind(region) == "wait"}
    work = sorted((r for r in totals if kind(r) != "wait"), key=lambda r: -totals[r])
    return colours | dict(zip(work, COLOURS, strict=False))


def legend(axis: Any, colours: Mapping[str, str], below: float) -> None:
    """Draw a legend of the regions' colours below matplotlib's axes."""
    from matplotlib.patches import Patch

    shared = {OTHER_COLOUR: "other work", WAIT_COLOUR: "waits for others"}
    named = {colour: region for region, colour in colours.items() if colour not in shared}
    present = {colour: label for colour, label in shared.items() if colour in colours.values()}
    patches = [Patch(color=colour, label=label) for colour, label in (named | present).items()]
    axis.legend(
        handles=patches, fontsize=7, ncols=6, loc="upper center", bbox_to_anchor=(0.5, below), frameon=False
    )


def draw_rows(axis: Any, rows: Sequence[Row], colours: Mapping[str, str] | None = None) -> None:
    """Draw rows below each other on matplotlib's axes, with a colour for each region.

    Args:
        colours: those of all regions, if several axes share them; by default chosen for these rows.
    """
    totals = time_by_region(rows)
    colours = colours_by_region(totals) if colours is None else colours
    for place, row in enumerate(rows):
        shade = [colours[region] for region, _, _ in row.spans]
        bars = [(begin, end - begin) for _, begin, end in row.spans]
        axis.broken_barh(bars, (len(rows) - 1 - place - 0.35, 0.7), facecolors=shade, linewidth=0)
    axis.set_yticks(range(len(rows)), [row.name for row in reversed(rows)], fontsize=8)
    axis.spines[["top", "right", "left"]].set_visible(False)
    legend(axis, {region: colours[region] for region in sorted(totals, key=lambda r: -totals[r])}, -0.25)


def of_cta(line: Timeline, cta: int) -> Sequence[Row]:
    """The rows of a CTA in a picture: one warp for every four of a role, and the tensor core."""
    return _first_of_each(row for row in line.rows if row.cta == cta)


def _first_of_each(rows: Iterable[Row]) -> Sequence[Row]:
    """One warp for every four of a role: the first of each warpgroup, or a lone warp."""
    kept: list[Row] = []
    seen: dict[str, int] = {}
    for row in rows:
        role = row.name.partition(",")[0]
        seen[role] = seen.get(role, -1) + 1
        if seen[role] % 4 == 0:
            kept.append(row)
    return kept
