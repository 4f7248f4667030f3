"""Rules as data, and the diagnosis that they give.

A rule names a cause by joint evidence: every condition of `when` must hold for quantities that were read.
There are three kinds, to act on in this order: "waste" (work that need not be done), "limit" (a unit does all
it can: healthy), and "schedule" (units wait). Each gives a bound, the most that fixing it alone could gain:

- waste: the time over what the busiest unit still takes without the wasted work;
- limit: the rate that the unit was measured to reach, over the rate it reached here;
- schedule: the cost of waiting, but no more than the busiest unit allows; for a gather, its measured ceiling.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dsl_kernels import variants
from dsl_kernels.arch import GPUS
from dsl_kernels.errors import DslKernelError

from ..timing.ceilings import Ceilings
from .model import Diagnosis, Evidence, Finding, Fingerprint

Quantities = Mapping[str, float]
Bound = Callable[[Quantities], float | None]
COMPARE: dict[str, Callable[[float, float], bool]] = {">": operator.gt, "<": operator.lt}
# Units with a peak that no schedule can exceed.
UNITS = ("issued", "tensor", "fma", "alu", "xu", "lsu", "tma", "shared", "l1", "l2", "dram")
MEMORY = ("l1", "l2", "dram", "shared", "lsu")
INSTRUCTIONS = ("issued", "tensor", "fma", "alu", "xu")
BUSY = 0.8
LARGEST_L2 = max(gpu.l2_bytes for gpu in GPUS.values())
WASTE, LIMIT, SCHEDULE = "waste", "limit", "schedule"
KINDS = (WASTE, LIMIT, SCHEDULE)


@dataclass(frozen=True)
class When:
    """A condition on a quantity; an `optional` one holds if the quantity was not read."""

    quantity: str
    compare: str
    limit: float
    optional: bool = False

    def holds(self, q: Quantities) -> bool:
        value = q.get(self.quantity)
        return self.optional if value is None else COMPARE[self.compare](value, self.limit)

    def __str__(self) -> str:
        return f"{self.compare} {self.limit:g}"


@dataclass(frozen=True)
class Rule:
    """A cause. `headline` and `lever` may name quantities in braces; `order` sorts within a kind.

    `any_of`: besides `when`, one of these groups of conditions must hold. `knobs`: this project's knobs, and
    what to do with each.
    """

    cause: str
    kind: str
    when: tuple[When, ...]
    headline: str
    lever: str
    bound: Bound
    any_of: tuple[tuple[When, ...], ...] = ()
    knobs: Mapping[str, str] = field(default_factory=dict)
    order: int = 5

    def holds(self, q: Quantities) -> bool:
        return all(c.holds(q) for c in self.when) and (
            not self.any_of or any(all(c.holds(q) for c in group) for group in self.any_of)
        )

    def evidence(self, q: Quantities) -> tuple[Evidence, ...]:
        conditions = [
            *self.when,
            *(c for group in self.any_of if all(w.holds(q) for w in group) for c in group),
        ]
        readings = {
            c.quantity: Evidence(c.quantity, q[c.quantity], str(c)) for c in conditions if c.quantity in q
        }
        return tuple(readings.values())


def floor(q: Quantities, spared: Mapping[str, float] | None = None) -> float:
    """Share of the time that the busiest unit needs, after the `spared` shares of units' work are removed."""
    return max((q[unit] * (1.0 - (spared or {}).get(unit, 0.0)) for unit in UNITS if unit in q), default=0.0)


def _over(share: float) -> float | None:
    return 1.0 / share if share > 0 else None


def without(**wasted: Callable[[Quantities], float]) -> Bound:
    """Bound of sparing shares of the work of the memory units, of the instructions, or of single units."""
    groups = {"memory": MEMORY, "instructions": INSTRUCTIONS}

    def bound(q: Quantities) -> float | None:
        spared: dict[str, float] = {}
        for name, share in wasted.items():
            spared |= dict.fromkeys(groups.get(name, (name,)), min(1.0, max(0.0, share(q))))
        return _over(floor(q, spared))

    return bound


def reached(quantity: str) -> Bound:
    """Bound of a unit that does all it can: one over the share that it reached."""
    return lambda q: max(1.0, 1.0 / q[quantity])


def at_most(gain: Callable[[Quantities], float | None]) -> Bound:
    """Bound of a schedule: the gain, but no more than the busiest unit allows."""

    def bound(q: Quantities) -> float | None:
        limits = [value for value in (gain(q), _over(floor(q))) if value is not None]
        return max(1.0, min(limits)) if limits else None

    return bound


def stalled(*reasons: str) -> Bound:
    """Bound of removing stalls, which leaves a warp's other cycles."""

    def gain(q: Quantities) -> float | None:
        share = sum(q.get(f"stall_{reason}", 0.0) for reason in reasons)
        return _over(1.0 - share)

    return at_most(gain)


def _no_more_than_the_gather(q: Quantities) -> float | None:
    """The gain from not waiting for memory, but no more than the measured rate of such a gather allows."""
    waits = stalled("long_scoreboard", "lg_throttle")(q)
    return waits if waits is None or "gather" not in q else max(1.0, min(waits, 1.0 / q["gather"]))


def _sector_waste(q: Quantities) -> float:
    """Share of the bytes that a full use of every sector would spare."""
    return 1.0 - min(q.get(name, 1.0) for name in ("l1_used", "l2_used", "dram_used", "sector_use"))


def _atomic_share(q: Quantities) -> float:
    return q.get("atomics", 0.95)


NOT_BUSY = (When("issued", "<", BUSY, optional=True), When("busiest_memory", "<", BUSY, optional=True))

RULES: tuple[Rule, ...] = (
    Rule(
        "spills",
        WASTE,
        (When("spill_sectors", ">", 0.25),),
        "Registers spill: {spill_sectors:.0%} of the L1's sectors are local memory",
        "fewer live values a thread: a smaller tile, more threads a row, "
        "or more registers (fewer CTAs an SM)",
        without(memory=lambda q: q["spill_sectors"], instructions=lambda q: q.get("local_instructions", 0.0)),
        any_of=((When("memory_waits", ">", 0.2, optional=True),), (When("local_instructions", ">", 0.1),)),
        knobs={"tile": "smaller", "keep": "fewer", "resident": "fewer", "threads": "more",
               "block": "smaller"},
        order=1,
    ),
    Rule(
        "atomics",
        WASTE,
        (When("dram", "<", 0.3),),
        "Atomic additions onto few addresses are served one after another by the L2; "
        "the DRAM is idle ({dram:.1%})",
        "add up in registers, then in a warp, then in a CTA, and let one thread a CTA reach global memory",
        without(l1=_atomic_share, l2=_atomic_share, lsu=_atomic_share),
        any_of=(
            (When("atomics", ">", 0.25), When("memory_waits", ">", 0.3)),
            (When("stall_lg_throttle", ">", 0.25), When("l2_hit", ">", 0.8),
             When("atomics", ">", 0.25, optional=True), When("spill_sectors", "<", 0.05, optional=True)),
        ),
        order=2,
    ),
    Rule(
        "wasted_sectors",
        WASTE,
        (),
        "Loads fetch whole sectors and use {sector_waste_used:.0%} of their bytes",
        "let neighbouring lanes read neighbouring words: 16 bytes a lane, whole rows a warp; "
        "or stage rows in shared memory",
        without(memory=_sector_waste),
        any_of=(
            (When("sector_use", "<", 0.6), When("load_sectors", ">", 0.3, optional=True),
             When("l1_used", "<", 0.7, optional=True), When("memory_waits", ">", 0.3)),
            (When("l1_used", "<", 0.6), When("sector_use", "<", 0.6, optional=True),
             When("memory_waits", ">", 0.3)),
        ),
        order=3,
    ),
    Rule(
        "bank_conflicts",
        WASTE,
        (When("bank_conflicts", ">", 0.3), When("shared", ">", 0.5)),
        "{bank_conflicts:.0%} of the passes through shared memory are there because lanes meet in a bank",
        "pad or swizzle the tile, so that the lanes of a warp fall into different banks",
        without(**dict.fromkeys(("shared", "l1", "lsu"), lambda q: q["bank_conflicts"])),
        order=4,
    ),
    Rule(
        "divergence",
        WASTE,
        (When("threads", "<", 20.0), When("issued", ">", 0.4)),
        "{threads:.1f} of 32 lanes work in a warp's instruction",
        "let the lanes of a warp do the same: search together, sort work by length, or give a warp one item",
        without(instructions=lambda q: 1.0 - q["threads"] / 32.0),
        order=5,
    ),
    Rule(
        "tensor_bound",
        LIMIT,
        (),
        "The tensor cores are busy {tensor:.0%} of the time: the products are the work",
        "fewer products (no padding, a lower precision); nothing in the schedule is left to gain",
        reached("tensor"),
        any_of=((When("tensor", ">", 0.75),),
                (When("tensor", ">", 0.65), When("stall_math_pipe_throttle", ">", 0.25))),
        order=1,
    ),
    Rule(
        "gather_at_ceiling",
        LIMIT,
        (When("gather", ">", 0.85),),
        "Rows arrive at {gather:.0%} of the fastest gather of such rows that this GPU was measured to do",
        "fewer bytes or another order: smaller rows (fp8), rows that lie together, fewer rows. "
        "Not warps: they would wait too",
        reached("gather"),
        knobs={"kv": "fp8: 656 bytes a row in place of 1152"},
        order=2,
    ),
    Rule(
        "dram_bound",
        LIMIT,
        (When("dram", ">", BUSY),),
        "The DRAM delivers {dram:.0%} of what it was measured to: the bytes are the work",
        "fewer bytes: a smaller type, no second read, reuse in the L2",
        reached("dram"),
        knobs={"kv": "fp8: fewer bytes a row", "evict": "1: what is read once leaves the L2 first"},
        order=3,
    ),
    Rule(
        "sfu_bound",
        LIMIT,
        (When("xu", ">", BUSY),),
        "The special-function units are busy {xu:.0%} of the time",
        "fewer exponentials, or a part of them as polynomials on the FMA pipe",
        reached("xu"),
        order=4,
    ),
    Rule(
        "l2_bound",
        LIMIT,
        (When("l2", ">", 0.75), When("dram", "<", 0.6)),
        "The L2 delivers {l2:.0%} of what it can: every byte is there, and is read again and again",
        "keep what is read again in shared memory or registers; multicast a tile to a cluster",
        reached("l2"),
        knobs={"cluster": "larger: CTAs share what they read",
               "queries": "more a CTA: keys are read once for them"},
        order=5,
    ),
    Rule(
        "shared_bound",
        LIMIT,
        (When("shared", ">", BUSY),),
        "Shared memory is busy {shared:.0%} of the time",
        "wider accesses, operands kept in registers, fewer passes",
        reached("shared"),
        order=6,
    ),
    Rule(
        "issue_bound",
        LIMIT,
        (),
        "The schedulers issue {issued:.2f} instructions a cycle, and warps are ready to issue more: "
        "instructions are the work",
        "fewer instructions: packed arithmetic, wider loads, less address arithmetic",
        reached("issued"),
        any_of=((When("issued", ">", BUSY),),
                (When("issued", ">", 0.6), When("stall_not_selected", ">", 0.3))),
        knobs={"keep": "more keys in registers are read once"},
        order=7,
    ),
    Rule(
        "small_grid",
        SCHEDULE,
        (When("waves", "<", 0.5), When("sm_active", "<", 0.7, optional=True), *NOT_BUSY),
        "The launch fills {waves:.2f} of the card",
        "more CTAs: split the work finer (splits of a row, smaller tiles) before anything inside the kernel",
        at_most(lambda q: 1.0 / q["waves"]),
        knobs={"group": "more CTAs a row", "cluster": "more splits of a row", "tile": "smaller",
               "slices": "more CTAs a row"},
        order=1,
    ),
    Rule(
        "tail",
        SCHEDULE,
        (When("balance", ">", 1.25), When("waves", ">", 0.9, optional=True), *NOT_BUSY),
        "The busiest SM works {balance:.2f} times as long as the mean: the last wave is nearly empty, "
        "or CTAs differ in length",
        "CTAs that divide evenly among the SMs, the longest first: another tile, "
        "or as many CTAs as fit that take turns",
        at_most(lambda q: q["balance"]),
        knobs={"tile": "another size", "cluster": "smaller", "resident": "so that waves come out whole"},
        order=2,
    ),
    Rule(
        "tensor_exposed",
        SCHEDULE,
        (When("tensor", ">", 0.5), When("tensor_over_others", ">", 0.0)),
        "The tensor cores are the busiest unit and idle {tensor_idle:.0%} of the time, "
        "waiting for the code between products",
        "overlap what stands between two products with the next: two warpgroups in turn, or one tile ahead",
        at_most(lambda q: 1.0 / q["tensor"]),
        knobs={"stages": "more", "block": "heads on M: fewer exchanges"},
        order=3,
    ),
    Rule(
        "gather_below_ceiling",
        SCHEDULE,
        (When("gather", "<", 0.85), When("memory_waits", ">", 0.15, optional=True),
         When("issued", "<", BUSY, optional=True)),
        "Rows arrive at {gather:.0%} of what this GPU was measured to do for such rows: "
        "too few bytes are in flight",
        "more bytes in flight: another stage, asynchronous copies, more rows a turn; "
        "warps help only as far as they add bytes",
        reached("gather"),
        knobs={"stages": "more", "resident": "more CTAs an SM", "cluster": "another",
               "slices": "2: two CTAs an SM"},
        order=4,
    ),
    Rule(
        "barrier",
        SCHEDULE,
        (When("stall_barrier", ">", 0.3), *NOT_BUSY),
        "Warps spend {stall_barrier:.0%} of their cycles at barriers, waiting for others of their CTA",
        "fewer or smaller barriers: shuffles inside a warp, named barriers of fewer warps, one row a thread",
        stalled("barrier"),
        knobs={"threads": "fewer", "group": "another"},
    ),
    Rule(
        "dependency_chain",
        SCHEDULE,
        (When("stall_dependency", ">", 0.3), *NOT_BUSY),
        "Warps spend {stall_dependency:.0%} of their cycles waiting for the result of the instruction before",
        "independent work between dependent instructions: several accumulators, unrolling, another stage",
        stalled("wait", "short_scoreboard", "math_pipe_throttle"),
        knobs={"stages": "more", "resident": "more CTAs an SM"},
    ),
    Rule(
        "latency_exposed",
        SCHEDULE,
        (When("memory_waits", ">", 0.3), *NOT_BUSY),
        "Warps spend {memory_waits:.0%} of their cycles waiting for memory that is not busy",
        "more loads in flight: stages, unrolled or asynchronous loads, then more warps; "
        "fewer loads that wait for a load",
        _no_more_than_the_gather,
        knobs={"stages": "more", "resident": "more CTAs an SM", "keep": "more"},
    ),
    Rule(
        "warpgroup_wait",
        SCHEDULE,
        (When("stall_gmma", ">", 0.3), *NOT_BUSY),
        "Warps spend {stall_gmma:.0%} of their cycles waiting for products of their warpgroup to be taken",
        "fewer fences and smaller waits around products; operands from shared memory in place of registers",
        stalled("gmma"),
    ),
    Rule(
        "shared_queue",
        SCHEDULE,
        (When("stall_mio_throttle", ">", 0.3), *NOT_BUSY),
        "Warps spend {stall_mio_throttle:.0%} of their cycles before the queue of shared memory and "
        "special functions",
        "wider shared accesses (ldmatrix, 16 bytes a lane), fewer shuffles",
        stalled("mio_throttle"),
    ),
    Rule(
        "instruction_cache",
        SCHEDULE,
        (When("stall_no_instruction", ">", 0.3), *NOT_BUSY),
        "Warps spend {stall_no_instruction:.0%} of their cycles without an instruction to decode",
        "less code: unroll less, or longer loops in a kernel that ends soon",
        stalled("no_instruction"),
    ),
    Rule(
        "idle_roles",
        SCHEDULE,
        (When("stall_sleeping", ">", 0.3), *NOT_BUSY),
        "Warps sleep {stall_sleeping:.0%} of their cycles: a role waits for another",
        "shift work between producer and consumer; see which role waits with probes",
        stalled("sleeping"),
    ),
)  # fmt: skip

# Reported if no rule holds: no unit is busy, and no single wait stands out.
MIXED = Rule(
    "mixed_waits",
    SCHEDULE,
    (),
    "No unit is busy for {busiest:.0%} of the time or more, and no wait stands out: "
    "the kernel has phases that wait for different things",
    "time its phases apart (probes, or one phase at a time); overlap a phase of one CTA with another's",
    at_most(lambda q: None),
    knobs={"resident": "more CTAs an SM, whose phases overlap"},
)


def quantities(launch: Fingerprint, ceilings: Ceilings | None = None) -> dict[str, float]:
    """The figures that rules ask for, by name; a figure that was not read is absent.

    With `ceilings`, memory rates are relative to what this GPU was measured to do instead of its peak.
    """
    q: dict[str, float] = {**launch.sol, **launch.pipes, **launch.rates}
    q |= {f"stall_{name}": stall.share for name, stall in launch.stalls.items()}
    q |= {
        f"{level}_used": traffic.ratio
        for level, traffic in launch.traffic.items()
        if traffic.ratio is not None
    }
    for name, value in (
        *vars(launch.issue).items(),
        ("waves", launch.occupancy.waves),
        ("achieved", launch.occupancy.achieved),
    ):
        if value is not None:
            q[name] = float(value)
    if "issued" in q:
        # Relative to the whole launch, as the other units are, not to the cycles in which an SM has work.
        q["issued"] *= q.get("sm_active", 1.0)
    if launch.source in ("csv", "ncu") or launch.spills.sectors:
        q["spill_sectors"] = launch.spills.share
    if ceilings is not None and "dram_read_gbps" in q:
        q["dram"] = (q["dram_read_gbps"] + q.get("dram_write_gbps", 0.0)) / ceilings.dram_gbps
    if ceilings is not None and launch.us and "l2" in launch.traffic:
        q["l2"] = max(q.get("l2", 0.0), launch.traffic["l2"].moved / launch.us / 1e3 / ceilings.l2_gbps)
    if (share := gather_share(launch, ceilings)) is not None:
        q["gather"] = share
    memory = [q[unit] for unit in (*MEMORY, "memory", "shared") if unit in q]
    if memory:
        q["busiest_memory"] = max(memory)
    q["busiest"] = floor(q)
    if launch.stalls:
        q["memory_waits"] = q.get("stall_long_scoreboard", 0.0) + q.get("stall_lg_throttle", 0.0)
        q["stall_dependency"] = q.get("stall_wait", 0.0) + q.get("stall_short_scoreboard", 0.0)
    if "tensor" in q:
        others = [q[unit] for unit in UNITS if unit in q and unit != "tensor"]
        q["tensor_idle"] = 1.0 - q["tensor"]
        q["tensor_over_others"] = q["tensor"] - max(others, default=0.0)
    if "sector_use" in q or "l1_used" in q:
        q["sector_waste_used"] = 1.0 - _sector_waste(q)
    return q


def gather_share(launch: Fingerprint, ceilings: Ceilings | None) -> float | None:
    """Rate of a launch's gather over the ceiling for such rows; None without a gather or a known ceiling.

    Without recorded ceilings, rows that cannot all be in the L2 are compared with the DRAM's sequential peak.
    """
    work = launch.workload
    if work.row_bytes is None:
        return None
    if ceilings is None:
        resident = work.footprint_bytes is not None and work.footprint_bytes < 2 * LARGEST_L2
        return None if resident else launch.sol.get("dram", launch.sol.get("memory"))
    if work.read_bytes is None or not launch.us:
        return None
    near = ceilings.gather_gbps(work.row_bytes, work.footprint_bytes or math.inf, work.order)
    far = ceilings.gather_gbps(work.row_bytes, math.inf, work.order)
    if near is None or far is None:
        return None
    # Curves over small footprints were measured with rows in the L2, but first reads come from the DRAM.
    return max(work.read_bytes / near, (work.unique_bytes or 0.0) / far) / launch.us / 1e3


def diagnose(launch: Fingerprint, ceilings: Ceilings | None = None) -> Diagnosis:
    """Findings in the order to act on them, and explanations that the numbers rule out.

    Args:
        ceilings: those recorded for this GPU (`read_ceilings`), if any.
    """
    q = quantities(launch, ceilings)
    holding = sorted((rule for rule in RULES if rule.holds(q)), key=lambda rule: _order(rule, q))
    if not holding and launch.stalls:
        holding = [MIXED]
    findings = tuple(_finding(rule, q, launch) for rule in holding)
    missing = list(launch.missing)
    if launch.workload.row_bytes and ceilings is None:
        missing.append(
            "a ceiling for such rows (`profile calibrate` records it): the sequential peak stands for it"
        )
    busiest = floor(q)
    return Diagnosis(
        launch,
        findings,
        refuted(launch, q, findings),
        tuple(missing),
        launch.us * busiest if launch.us and busiest else None,
    )


def _order(rule: Rule, q: Quantities) -> tuple[int, float, int]:
    """Sort key: by kind; waste and limits by order; schedules by possible gain, an unfilled card first."""
    if rule.kind != SCHEDULE or rule.cause == "small_grid":
        return KINDS.index(rule.kind), -math.inf, rule.order
    return KINDS.index(rule.kind), -(rule.bound(q) or 1.0), rule.order


def _finding(rule: Rule, q: Quantities, launch: Fingerprint) -> Finding:
    return Finding(
        rule.cause,
        rule.headline.format_map(_Known(q)),
        rule.evidence(q),
        rule.lever.format_map(_Known(q)),
        rule.bound(q),
        rule.kind == LIMIT,
        _knobs(rule, launch),
    )


class _Known(dict[str, float]):
    """Values for a headline; a quantity that was not read prints as "not read"."""

    def __missing__(self, name: str) -> _Unread:
        return _Unread()


class _Unread:
    def __format__(self, spec: str) -> str:
        return "not read"


def _knobs(rule: Rule, launch: Fingerprint) -> dict[str, str]:
    """The rule's knobs that the op has, each with the values built besides the variant's own."""
    # Kernels of this project carry their variant's id in their name.
    op = launch.workload.op or launch.kernel.split("__")[0]
    if not rule.knobs or not op:
        return {}
    try:
        built = variants.variants(op)
    except DslKernelError:
        return {}
    named = [v for v in built if v.id == launch.workload.variant or launch.kernel.startswith(v.id)]
    mine = max(named, key=lambda v: len(v.id), default=None)
    if mine is None and (launch.workload.variant or not launch.workload.op):
        return {}
    arch = mine.arch if mine else f"{launch.arch}a"
    known: dict[str, set[object]] = {}
    for variant in built:
        if variant.arch == arch and (mine is None or variant.backend == mine.backend):
            for name, value in variant.knobs.items():
                known.setdefault(name, set()).add(value)
    told = {}
    for name, what in rule.knobs.items():
        if len(known.get(name, ())) > 1:
            values = ", ".join(map(str, sorted(known[name], key=str)))
            now = f"; now {mine.knobs[name]}" if mine and name in mine.knobs else ""
            told[name] = f"{what} (built: {values}{now})"
    return told


def refuted(launch: Fingerprint, q: Quantities, findings: tuple[Finding, ...]) -> dict[str, str]:
    """Popular explanations that these numbers rule out, each with the reason."""
    top = findings[0] if findings else None
    if top is None:
        return {}
    out = {}
    achieved = (
        launch.occupancy.achieved if launch.occupancy.achieved is not None else launch.occupancy.theoretical
    )
    warned = any("ccupancy" in rule.name + rule.message for rule in launch.rules)
    if (achieved is not None and achieved < 0.5) or warned:
        reasons = {
            "gather_at_ceiling": "the rows arrive as fast as this GPU can fetch them: "
            "more warps would wait for the same bytes",
            "gather_below_ceiling": "a gather wants bytes in flight, and asynchronous copies put them "
            "there without warps",
            "small_grid": "the card is not filled: SMs without a CTA have no use for more warps on the "
            "others",
        }
        reason = reasons.get(top.cause) or (
            f"{top.cause.replace('_', ' ')}: a unit is at its limit" if top.healthy else ""
        )
        if reason:
            out["occupancy"] = reason
    if launch.occupancy.achieved is not None and launch.occupancy.achieved > 0.8 and not top.healthy:
        out["occupancy"] = f"{launch.occupancy.achieved:.0%} of the warps are there, and wait"
    dram = q.get("dram")
    if dram is not None and dram < 0.2:
        work = launch.workload
        fits = work.footprint_bytes or work.unique_bytes
        where = f"; the {fits / 1e6:.1f} MB that it needs live in the L2" if fits and fits < 40e6 else ""
        out["dram bandwidth"] = f"{dram:.1%} of the DRAM's rate is used: it is not waited for{where}"
    return out
