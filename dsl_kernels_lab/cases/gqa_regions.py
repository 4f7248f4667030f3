"""Where a tile's time goes inside a warp-specialised attention forward, and what paces its loop.

Probes in `gqa_forward` count each warp's cycles by region. Schedules for measurement only leave out the
softmax, await each product before the softmax, or run one warpgroup per CTA; they are rendered for this case,
and the registry never selects them. Cycles are per tile of keys that a warp goes through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from dsl_kernels import programs, variants
from dsl_kernels._discover import later
from dsl_kernels.arch import get_arch
from dsl_kernels.problems.base import Comparison
from dsl_kernels.tile.lang import PROBE, SUMS, TRACE
from dsl_kernels.tile.probes import WAITS
from dsl_kernels.variants import Variant

from .. import oracles
from ..oracles import Workload
from ..timing import bench
from . import _figures
from .base import Case, CaseRows, Expectation, Launch, Record, rows_of

if TYPE_CHECKING:
    import torch

    from dsl_kernels import executors

    from ..profile import readings, regions, timeline
    from ..verification import trial
else:
    torch = later("torch", globals())
    executors = later("dsl_kernels.executors", globals())
    readings = later("dsl_kernels_lab.profile.readings", globals())
    regions = later("dsl_kernels_lab.profile.regions", globals())
    timeline = later("dsl_kernels_lab.profile.timeline", globals())
    trial = later("dsl_kernels_lab.verification.trial", globals())

OP, DEVICE = "gqa_forward", "cuda"
WORKLOAD = Workload(
    "case",
    "real",
    "fp16",
    {"b": 4, "sq": 4096, "skv": 4096, "heads": 64, "kv_heads": 8, "dim": 128, "causal": 0},
)
# Dense float16 FLOP of an SM's tensor cores per clock.
FLOPS_PER_CLOCK = 4096
# Regions besides waits that are not a role's own work: issuing products and waiting for them.
PRODUCTS = ("multiply ", "release k", "release v", "release q", "await products")
# Microseconds of the timeline that a record keeps.
TRACED = 12.0


# Cycles per tile by role and region; "all" is a role's whole time.
Spent = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class ChangedVariant:
    """A committed variant with some knobs changed.

    Attributes:
        wrong: the change makes the result wrong, on purpose.
    """

    base: str
    changed: Mapping[str, Any] = field(default_factory=dict)
    wrong: bool = False

    @property
    def committed(self) -> Variant:
        """The committed variant that is changed."""
        return variants.get(f"{OP}__cutedsl_sm90a__{self.base}")

    @property
    def knobs(self) -> dict[str, Any]:
        return {**self.committed.knobs, **self.changed}

    def variant(self, probe: int = 0) -> Variant:
        """The changed variant, rendered if the generated set lacks it."""
        return regions.rendered(self.committed, **self.changed, **({PROBE.name: probe} if probe else {}))


SQUARE, WIDE = "fp16_d128_n128_st2_o0_c1_z2", "fp16_d128_n80_st2_o0_c2_w3_z2"
NO_SOFTMAX, NO_OVERLAP, ALONE = {"ablation": "nosoftmax"}, {"ablation": "nooverlap"}, {"groups": 1}
# By query rows and keys of a tile; with two warpgroups, or three for 192 rows.
SCHEDULES = {
    "128x128": ChangedVariant(SQUARE),
    "128x128 in turns": ChangedVariant(SQUARE, {"order": 1}),
    "128x128 no overlap": ChangedVariant(SQUARE, NO_OVERLAP),
    "128x128 no softmax": ChangedVariant(SQUARE, NO_SOFTMAX, wrong=True),
    "one warpgroup": ChangedVariant(SQUARE, ALONE),
    "one warpgroup no overlap": ChangedVariant(SQUARE, {**ALONE, **NO_OVERLAP}),
    "one warpgroup no softmax": ChangedVariant(SQUARE, {**ALONE, **NO_SOFTMAX}, wrong=True),
    "192x80": ChangedVariant(WIDE),
    "192x80 no softmax": ChangedVariant(WIDE, NO_SOFTMAX, wrong=True),
}
SHOWN = ("128x128", "128x128 in turns", "192x80")


def every() -> list[tuple[ChangedVariant, int]]:
    """What the case launches: schedules, each with its probe mode."""
    launches = [(schedule, mode) for schedule in SCHEDULES.values() for mode in (0, SUMS)]
    return [*launches, (SCHEDULES["128x128"], TRACE)]


@dataclass(frozen=True)
class Prepared:
    """A variant with its operands, ready to launch."""

    variant: Variant
    operands: dict[str, Any]
    dims: Mapping[str, int]
    launcher: Any

    def __call__(self) -> None:
        self.launcher(self.operands, self.dims, torch.cuda.current_stream().cuda_stream)


def draw() -> dict[str, Any]:
    return oracles.get(OP).make(WORKLOAD, torch.Generator(DEVICE).manual_seed(0))


def prepare(variant: Variant, inputs: Mapping[str, Any]) -> Prepared:
    """A variant on these inputs, its outputs poisoned; bypasses the registry, which refuses ablations."""
    operands, dims = trial.allocate(variant, WORKLOAD, inputs)
    return Prepared(variant, operands, dims, executors.get("cuda").prepare(variant))


def _checked(call: Prepared, inputs: Mapping[str, Any], expected: Mapping[str, Any]) -> Comparison:
    for name in ("out", "lse"):
        call.operands[name].fill_(math.nan)
    call()
    torch.cuda.synchronize()
    return oracles.get(OP).compare(WORKLOAD.form, inputs, call.operands, expected)


def tiles(knobs: Mapping[str, Any], dims: Mapping[str, int]) -> float:
    """Mean number of key tiles that a warp of a launch goes through."""
    rows = 64 * knobs["groups"]
    items = -(-dims["sq"] // rows) * dims["b"] * dims["heads"]
    return items * -(-dims["skv"] // knobs["tile"]) / (dims["ctas"] * knobs["cluster"])


def floor(knobs: Mapping[str, Any]) -> float:
    """Tensor-core cycles for both products of a tile, over all warpgroups of a CTA."""
    return 4.0 * 64 * knobs["groups"] * knobs["tile"] * knobs["dim"] / FLOPS_PER_CLOCK


def cycles(call: Prepared) -> Spent:
    """Cycles per tile that a launch spent, as the mean over warps, after warm-ups."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    layout = programs.get(OP).probes(call.variant.knobs, get_arch(call.variant.arch))
    count = tiles(call.variant.knobs, call.dims)
    spent_by_role: dict[str, dict[str, float]] = {}
    for role, names in layout.regions.items():
        spent = readings.read(layout, call.operands["probe"], role)
        each = spent.spent.double().mean((0, 1)) / count
        spent_by_role[role] = dict(zip(names, each.tolist(), strict=True))
        spent_by_role[role]["all"] = float(spent.elapsed.double().mean()) / count
    return spent_by_role


def measure(to: CaseRows) -> None:
    inputs = draw()
    expected = oracles.get(OP).reference(WORKLOAD.form, inputs)
    flops = sum(oracles.get(OP).flops(WORKLOAD.form, WORKLOAD.params).values())
    counted: dict[str, Spent] = {}

    def timed(name: str, schedule: ChangedVariant) -> dict[str, Any]:
        plain, call = (prepare(each.variant(), inputs) for each in (SCHEDULES["128x128"], schedule))
        paired = bench.paired([plain], [call], rounds=7).to_dict()
        counted[name] = cycles(prepare(schedule.variant(SUMS), inputs))
        tflops = flops / paired["b_us"] / 1e6
        return {
            **paired,
            "tflops": tflops,
            "cycles": counted[name]["attend"]["all"],
            "regions": counted[name],
        }

    def checked(schedule: ChangedVariant) -> Comparison:
        return _checked(prepare(schedule.variant(), inputs), inputs, expected)

    for name, schedule in SCHEDULES.items():
        to.row(
            name,
            partial(timed, name, schedule),
            partial(checked, schedule),
            measurement_only=schedule.wrong,
            kind="schedule",
        )
    to.rows += derived(counted)
    to.notes += notes(counted)
    to.row("128x128", partial(_traced, inputs), kind="timeline")


def _traced(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A few microseconds of a CTA in the middle of its work, by row."""
    call = prepare(SCHEDULES["128x128"].variant(TRACE), inputs)
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    layout = programs.get(OP).probes(call.variant.knobs, get_arch(call.variant.arch))
    run = regions.Run(call.variant, WORKLOAD, call.dims, "cuda", layout, call.operands["probe"].cpu())
    shown = timeline.of_cta(timeline.timeline(run, 1), 0)
    end = max(span[2] for row in shown for span in row.spans) - 3 * TRACED
    kept = []
    for row in shown:
        if row.name != timeline.TENSOR_CORE:
            spans = [_cut(span, end) for span in row.spans if span[1] < end + TRACED and span[2] > end]
            kept.append({"name": row.name, "spans": spans})
    return {"lines": kept, "cycles_per_ns": regions.cycles_per_ns(run)}


def busy(row: Mapping[str, Any]) -> timeline.Row:
    """When the tensor cores multiply, derived from a recorded timeline: in the order of issue, at full rate.

    A product of 64x128x128 begins at its issue, or at the end of the product before it.
    """
    takes = floor(SCHEDULES[row["name"]].knobs) / SCHEDULES[row["name"]].knobs["groups"] / 2
    issues = sorted(
        (begin, region)
        for line in row["lines"]
        for region, begin, _ in line["spans"]
        if region.startswith("multiply ")
    )
    spans, end = [], 0.0
    for begin, region in issues:
        begin = max(begin, end)
        end = begin + takes / row["cycles_per_ns"] / 1e3
        spans.append((region.replace("multiply", "product"), begin, end))
    return timeline.Row(0, 0, timeline.TENSOR_CORE, tuple(spans))


def _cut(span: tuple[str, float, float], begin: float) -> tuple[str, float, float]:
    name, first, last = span
    return name, round(max(first - begin, 0.0), 4), round(min(last - begin, TRACED), 4)


def spent_of(record: Record) -> dict[str, Spent]:
    """Cycles that a record's schedules spent."""
    return {row["name"]: row["regions"] for row in rows_of(record, "schedule") if "regions" in row}


def derived(counted: Mapping[str, Spent]) -> list[dict[str, Any]]:
    """The rows that follow from the cycles of each schedule."""
    return [*region_rows(counted), *product_rows(counted)]


def notes(counted: Mapping[str, Spent]) -> list[str]:
    """What paces each schedule that was also measured without its softmax."""
    return [pace(counted, name) for name in SHOWN if {name, f"{name} no softmax"} <= counted.keys()]


def region_rows(counted: Mapping[str, Spent]) -> Iterable[dict[str, Any]]:
    """A row for each region of at least 2 % of its role, in the schedules with right results."""
    for name in SHOWN:
        for role, spent in counted.get(name, {}).items():
            shares = {region: ticks / spent["all"] for region, ticks in spent.items()}
            for region in sorted(spent, key=lambda region: -spent[region]):
                if shares[region] >= 0.02:
                    yield {
                        "name": f"{name}, {role}: {region}",
                        "kind": "region",
                        "cycles": spent[region],
                        "share": shares[region],
                        "source": "measured",
                    }


def product_rows(counted: Mapping[str, Spent]) -> Iterable[dict[str, Any]]:
    """What the tensor cores do in a tile, and what products and softmax cost in the pipeline."""

    def row(name: str, source: str, ticks: float, of: float | None = None) -> dict[str, Any]:
        share = {} if of is None else {"share": ticks / of}
        return {"name": name, "kind": "product", "cycles": ticks, **share, "source": source}

    yield row("one product of 64x128x128", "derived", floor({"groups": 1, "tile": 128, "dim": 128}) / 2)
    for name, roles in counted.items():
        spent, least = roles["attend"], floor(SCHEDULES[name].knobs)
        yield row(f"{name}: tensor cores busy", "derived", least, spent["all"])
        if SCHEDULES[name].changed.get("ablation") == "nooverlap":
            first = sum(spent[region] for region in ("multiply qk", "wait v", "multiply pv", "release k"))
            yield row(f"{name}: Q K^T, from its issue until it is done", "measured", first, spent["all"])
            yield row(
                f"{name}: P V, from then until it is done", "measured", spent["release v"], spent["all"]
            )
        without = counted.get(f"{name} no softmax")
        if without:
            adds = spent["all"] - without["attend"]["all"]
            yield row(f"{name}: what the softmax adds", "measured", adds, spent["all"])
            yield row(f"{name}: a warpgroup's own arithmetic", "measured", own_work(roles), spent["all"])


def own_work(roles: Spent) -> float:
    """Cycles per tile of a warpgroup's own arithmetic."""
    return sum(
        ticks
        for region, ticks in roles["attend"].items()
        if region != "all" and not region.startswith((*WAITS, *PRODUCTS, "pass "))
    )


def parts(counted: Mapping[str, Spent], name: str) -> dict[str, float]:
    """Cycles per tile of each part of the loop alone: without softmax, and a warpgroup's own arithmetic."""
    return {
        "the products": counted[f"{name} no softmax"]["attend"]["all"],
        "the softmax": own_work(counted[name]),
    }


def pace(counted: Mapping[str, Spent], name: str) -> str:
    """The part that paces the loop: the one that takes longest alone."""
    whole, alone = counted[name]["attend"]["all"], parts(counted, name)
    longest = max(alone, key=lambda part: alone[part])
    each_alone = ", ".join(f"{ticks:.0f} for {part} alone" for part, ticks in alone.items())
    hidden = whole - alone[longest]
    return (
        f"{name} is paced by {longest}: {whole:.0f} cycles a tile, {each_alone}; {hidden:.0f} are not hidden"
    )


def _target(schedule: ChangedVariant) -> Launch:
    def ready() -> Callable[[], Any]:
        return prepare(schedule.variant(), draw())

    return Launch(ready, OP)


def figure(record: Record) -> Any:
    """The timeline of a CTA, and cycles per tile by region."""
    drawn, (left, right) = _figures.panels(2, "Attention, 4 x 4096, 64 heads on 8", record, 9.0)
    schedules = {
        row["name"]: {region: t for region, t in row["regions"]["attend"].items() if region != "all"}
        for row in rows_of(record, "schedule")
        if "regions" in row
    }
    lines = [_drawn_rows(row) for row in rows_of(record, "timeline")]
    # A region has the same colour in both panels.
    colours = timeline.colours_by_region(
        _shares([*schedules.values(), *(timeline.time_by_region(rows) for rows in lines)])
    )
    for rows in lines:
        timeline.draw_rows(left, rows, colours)
        left.grid(visible=False)
        left.set_xlabel("µs")
    most = _shares(schedules.values())
    order = sorted(most, key=lambda region: (*_last(colours[region]), -most[region]))
    for place, spent in enumerate(schedules.values()):
        base = 0.0
        for region in (region for region in order if region in spent):
            right.barh(place, spent[region], left=base, color=colours[region])
            base += spent[region]
    right.set_yticks(range(len(schedules)), list(schedules), fontsize=8)
    right.invert_yaxis()
    right.set_xlabel("cycles a tile of a warp that attends")
    if schedules:
        timeline.legend(right, {region: colours[region] for region in order}, -0.25)
    return drawn


def _drawn_rows(row: Mapping[str, Any]) -> list[timeline.Row]:
    """The rows of a recorded timeline, and a row of the tensor cores."""
    warps = [timeline.Row(0, 0, line["name"], tuple(line["spans"])) for line in row["lines"]]
    return [*warps, busy(row)]


def _last(colour: str) -> tuple[bool, bool]:
    """Sort key that puts regions without their own colour at the end of a bar."""
    return colour == timeline.WAIT_COLOUR, colour == timeline.OTHER_COLOUR


def _shares(spent: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The greatest share that each region has in any of these."""
    most: dict[str, float] = {}
    for each in spent:
        whole = sum(each.values()) or 1.0
        for region, taken in each.items():
            most[region] = max(most.get(region, 0.0), taken / whole)
    return most


TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
CASE = Case(
    name="gqa_regions",
    question="Where does a tile's time go inside a warp-specialised attention forward, "
    "and which region paces the loop?",
    source="001",
    measure=measure,
    draw=figure,
    launches={
        "square": _target(SCHEDULES["128x128"]),
        # The same tile, but each copied by two CTAs: compared with `square` it shows the effect of multicast.
        "square_cluster": _target(ChangedVariant(SQUARE, {"cluster": 2})),
        "no_softmax": _target(SCHEDULES["128x128 no softmax"]),
        "wide": _target(SCHEDULES["192x80"]),
    },
    expected=(
        Expectation("square", TENSOR, ">=", 55.0, "the tensor cores are busy most of the time"),
        Expectation("no_softmax", TENSOR, ">=", 75.0, "without a softmax they are what the loop waits for"),
        Expectation("wide", TENSOR, ">=", 60.0, "the fastest schedule keeps them busier"),
        Expectation(
            "square", "dram__throughput.avg.pct_of_peak_sustained_elapsed", "<", 20.0, "memory is idle"
        ),
    ),
)
