"""What each warp of a kernel did when: the trace of a launch as Chrome's events, which Perfetto loads, and as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InvalidArgumentError, ToolchainError
from ..tile.lang import Schedule
from ..tile.probes import WAITS, WarpTrace
from ..tile.transfers import transfer_of
from .regions import CLOCKS, Run, cycles_per_ns

TENSOR_CORE = "tensor core (derived)"
"""Products are asynchronous, and no clock sees them: from the issue of one until a warp knows that it is done."""
COLOURS = ("#1b6ca8", "#d1495b", "#66a182", "#edae49", "#5c5470", "#2e4057", "#a26769", "#b5c99a", "#7d4f9c", "#4bb3c3")  # fmt: skip
OTHER_COLOUR, WAIT_COLOUR = "#8d99ae", "#e4e4e4"


@dataclass(frozen=True)
class Row:
    """One line of a timeline: a warp of a role, or the tensor core of a CTA.

    Attributes:
        spans: region, begin and end in microseconds since the first of the launch.
        full: marks before the first span may be lost: the ring had no room for more.
    """

    cta: int
    sm: int
    name: str
    spans: tuple[tuple[str, float, float], ...]
    full: bool = False


@dataclass(frozen=True)
class Timeline:
    """A launch over time. `clock` says what a microsecond is."""

    variant: str
    workload: str
    clock: str
    rows: tuple[Row, ...]


def timeline(found: Run, ctas: int = 8) -> Timeline:
    """The first CTAs of a launch that kept a trace.

    CTAs of an SM share its clock; SMs are set beside each other by the global timer, which ticks in steps.

    Raises:
        InvalidArgumentError: fewer than one CTA.
    """
    probes = found.probes
    if ctas < 1:
        raise InvalidArgumentError(
            "--ctas", expected="at least 1", got=str(ctas), fix="name a number of CTAs"
        )
    shown = range(min(ctas, probes.ctas(found.dims)))
    warps = {role: probes.trace(found.workspace, role, shown) for role in probes.regions}
    emulated = found.executor != "cuda"
    rate = 1.0 if emulated else cycles_per_ns(found)
    every = [warp for traces in warps.values() for warp in traces]
    # One pair of clocks an SM: that of the first warp seen there.
    pairs = {warp.sm: warp.times[:2] for warp in reversed(every)}
    zeros = {warp.cta: warp.began for warp in every if warp.warp == 0}
    origin = min(timer for timer, _ in pairs.values())

    def at(warp: WarpTrace, ticks: int) -> float:
        timer, clock = pairs[warp.sm]
        # Passages count from when warp 0 of the CTA began.
        passed = ((zeros.get(warp.cta, warp.began) - clock + (1 << 31)) & 0xFFFFFFFF) - (1 << 31) + ticks
        return ((timer - origin) + passed / rate) / 1e3

    rows = []
    for cta in shown:
        mine = {role: [warp for warp in traces if warp.cta == cta] for role, traces in warps.items()}
        for role, traces in mine.items():
            for warp in traces:
                spans = tuple((p.region, at(warp, p.begin), at(warp, p.end)) for p in warp.passages)
                rows.append(Row(cta, warp.sm, f"{role}, warp {warp.warp}", spans, warp.full))
        busy = [(begin, end) for role in mine for begin, end in _products(found, role, mine, at)]
        if busy:
            sm = next(iter(mine.values()))[0].sm
            rows.append(Row(cta, sm, TENSOR_CORE, tuple(("products", *span) for span in _joined(busy))))
    first = min((begin for row in rows for _, begin, _ in row.spans), default=0.0)
    moved = tuple(
        Row(r.cta, r.sm, r.name, tuple((n, b - first, e - first) for n, b, e in r.spans), r.full)
        for r in rows
    )
    return Timeline(found.variant.id, found.workload.name, CLOCKS[found.executor], moved)


def _products(
    found: Run, role: str, warps: dict[str, list[WarpTrace]], at: Any
) -> Iterable[tuple[float, float]]:
    """From the issue of each group of products of a role until somebody knows that it is done."""
    schedule = found.probes.schedule
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
    """Regions behind which these products are done: a wait for them all, or the release of what one of them reads."""
    read = {operand for mma in schedule.mmas if mma.name in products for operand in (mma.a, mma.b)}
    return {"await products", *(f"release {pipe.name}" for pipe in schedule.pipelines if read & set(pipe.buffers))}  # fmt: skip


def _joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Their union, in order."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


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
    """Chrome's trace format: a process a CTA, a thread a row."""
    events: list[dict[str, Any]] = []
    numbers: dict[int, int] = {}
    for row in line.rows:
        number = numbers[row.cta] = numbers.get(row.cta, -1) + 1
        place = {"pid": row.cta, "tid": number}
        if number == 0:
            events.append({"ph": "M", "name": "process_name", "pid": row.cta, "args": {"name": f"CTA {row.cta} on SM {row.sm}"}})  # fmt: skip
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
    """A picture of one CTA: a row a role (a replica of it), and one for the tensor core.

    Raises:
        ToolchainError: matplotlib is not installed.
        InvalidArgumentError: the timeline has no such CTA.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ToolchainError(
            "matplotlib", expected="the package that draws", got=str(error), fix="`pip install 'dsl-kernels[profile]'`"
        ) from None  # fmt: skip
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
    """What rows spend in each region, in the unit of their spans."""
    totals: dict[str, float] = {}
    for region, begin, end in (span for row in rows for span in row.spans):
        totals[region] = totals.get(region, 0.0) + end - begin
    return totals


def colours_by_region(totals: Mapping[str, float]) -> dict[str, str]:
    """A colour of its own for each of the regions that take most, one for the others, and one for every wait."""
    found = dict.fromkeys(totals, OTHER_COLOUR)
    found |= {region: WAIT_COLOUR for region in totals if kind(region) == "wait"}
    work = sorted((r for r in totals if kind(r) != "wait"), key=lambda r: -totals[r])
    return found | dict(zip(work, COLOURS, strict=False))


def legend(axis: Any, colours: Mapping[str, str], below: float) -> None:
    """The colours of regions by their names, below matplotlib's axes."""
    from matplotlib.patches import Patch

    shared = {OTHER_COLOUR: "other work", WAIT_COLOUR: "waits for others"}
    named = {colour: region for region, colour in colours.items() if colour not in shared}
    present = {colour: label for colour, label in shared.items() if colour in colours.values()}
    patches = [Patch(color=colour, label=label) for colour, label in (named | present).items()]
    axis.legend(
        handles=patches, fontsize=7, ncols=6, loc="upper center", bbox_to_anchor=(0.5, below), frameon=False
    )


def draw_rows(axis: Any, rows: Sequence[Row], colours: Mapping[str, str] | None = None) -> None:
    """Rows below each other, a colour a region, on matplotlib's axes.

    Args:
        colours: of every region, where other axes have the same; by default those of the rows alone.
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
    """The rows of a CTA that a picture shows: one warp for every four of a role, and the tensor core."""
    return _first_of_each(row for row in line.rows if row.cta == cta)


def _first_of_each(rows: Iterable[Row]) -> Sequence[Row]:
    """One warp for every four of a role: the first of a warpgroup, or of a lone warp."""
    found: list[Row] = []
    seen: dict[str, int] = {}
    for row in rows:
        role = row.name.partition(",")[0]
        seen[role] = seen.get(role, -1) + 1
        if seen[role] % 4 == 0:
            found.append(row)
    return found
