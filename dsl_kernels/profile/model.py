"""What crosses the border: reports, fingerprints and diagnoses, as plain records with a JSON schema.

Shares are fractions of one, never percent. A figure that no collector could read is None, and the record's `missing`
names it. Writing needs nothing; `load` and `schema` check against the types with pydantic (extra `profile`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from ..errors import ArtifactError, ToolchainError

SCHEMA = 1
T = TypeVar("T")


@dataclass(frozen=True)
class NcuRule:
    """What Nsight Compute's own rule said of a launch: its estimate is a share of the time, or None."""

    name: str
    message: str
    kind: str = ""
    estimate: float | None = None


@dataclass(frozen=True)
class KernelReport:
    """One launch as a collector read it.

    Attributes:
        source: collector or file format ("ncu", "csv", "log", "activity", "static", "emulator", "figures").
        arch: compute architecture, as "sm_90"; "" where the source does not say.
        metrics: Nsight Compute's names -> values in base units (ns, bytes, percent for `.pct`, plain counts).
        label: name of the range the launch ran in, where there was one.
        missing: what this collector could not read, in words.
        workload: what the launch had to do, where the source says it.
    """

    kernel: str
    source: str
    arch: str = ""
    device: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    label: str = ""
    rules: tuple[NcuRule, ...] = ()
    missing: tuple[str, ...] = ()
    workload: Workload | None = None


@dataclass(frozen=True)
class Workload:
    """What the kernel had to do, from its own arithmetic rather than from counters.

    Attributes:
        read_bytes: bytes the result needs from memory, each counted as often as a CTA must fetch it.
        unique_bytes: the same with each byte counted once: what a perfect cache would leave for the DRAM.
        row_bytes: contiguous bytes of one gathered row; None where nothing is gathered.
        footprint_bytes: size of what the rows are drawn from.
        order: "random", "sorted" or "sequential".
    """

    op: str = ""
    form: str = ""
    variant: str = ""
    dims: Mapping[str, int] = field(default_factory=dict)
    read_bytes: float | None = None
    unique_bytes: float | None = None
    row_bytes: int | None = None
    footprint_bytes: float | None = None
    order: str = "sequential"


@dataclass(frozen=True)
class Stall:
    """A reason warps waited for: its share of all warp cycles, and cycles per issued instruction where measured."""

    share: float
    cycles: float | None = None


@dataclass(frozen=True)
class Traffic:
    """Bytes read through one level; `ratio` is used over moved, above one where a level below the caches saw less."""

    moved: float
    used: float | None = None
    ratio: float | None = None


@dataclass(frozen=True)
class Issue:
    """Per scheduler and active cycle: instructions issued, warps eligible, warps resident; threads active a warp instruction."""

    issued: float | None = None
    eligible: float | None = None
    active: float | None = None
    threads: float | None = None


@dataclass(frozen=True)
class Occupancy:
    """Resident warps as shares of the most an SM holds, what limits them, and the size of the launch."""

    achieved: float | None = None
    theoretical: float | None = None
    limiter: str | None = None
    waves: float | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    ctas_per_sm: int | None = None


@dataclass(frozen=True)
class Spills:
    """Register spills: instructions on local memory, and their share of the sectors that the L1 served."""

    instructions: float = 0.0
    sectors: float = 0.0
    share: float = 0.0


@dataclass(frozen=True)
class Fingerprint:
    """One launch of one kernel, in numbers that can be compared.

    Attributes:
        sol: share of the peak rate that each unit reached: sm, memory, l1, l2, dram.
        pipes: share of cycles that each pipe was busy: tensor, fma, alu, xu (the special-function unit), lsu, tma.
        stalls: reason -> Stall; reasons differ between architectures, so compare by name only within one.
        traffic: bytes read at l1, l2 and dram, asynchronous copies included.
        rates: other figures of the rules: l1_hit, l2_hit, bank_conflicts (share of shared-memory wavefronts), atomics
            (share of L2 sectors), sectors_per_request, sector_use (bytes a load uses of its sectors), async_copies
            (share of the loaded bytes), sm_active (of the time), balance (cycles of the busiest SM over the mean).
    """

    kernel: str
    source: str
    arch: str = ""
    device: str = ""
    label: str = ""
    us: float | None = None
    cycles: float | None = None
    sol: Mapping[str, float] = field(default_factory=dict)
    pipes: Mapping[str, float] = field(default_factory=dict)
    stalls: Mapping[str, Stall] = field(default_factory=dict)
    traffic: Mapping[str, Traffic] = field(default_factory=dict)
    issue: Issue = Issue()
    occupancy: Occupancy = Occupancy()
    spills: Spills = Spills()
    rates: Mapping[str, float] = field(default_factory=dict)
    workload: Workload = Workload()
    rules: tuple[NcuRule, ...] = ()
    missing: tuple[str, ...] = ()
    schema: int = SCHEMA

    @property
    def dominant_stall(self) -> str | None:
        """The reason with the greatest share; a warp that issues, or could and is not picked, does not wait."""
        idle = ("selected", "not_selected")
        waiting = {name: stall.share for name, stall in self.stalls.items() if name not in idle}
        return max(waiting, key=lambda name: waiting[name]) if waiting else None


@dataclass(frozen=True)
class Evidence:
    """One reading that a rule asked for: quantity, its value, and what it had to be ("> 0.8")."""

    quantity: str
    value: float
    wanted: str = ""


@dataclass(frozen=True)
class Finding:
    """One cause, with what shows it, what to change, and the most that could gain.

    Attributes:
        cause: the rule's name, e.g. "gather_below_ceiling".
        bound: how many times faster at most if it were fixed and nothing else; None where nothing limits it.
        healthy: the kernel is at a limit of the GPU, so only less work makes it faster.
        knobs: this project's knobs that change it, knob -> what to do with it.
    """

    cause: str
    headline: str
    evidence: tuple[Evidence, ...]
    lever: str
    bound: float | None = None
    healthy: bool = False
    knobs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Diagnosis:
    """Findings, the first the one to act on, and explanations that the numbers rule out (cause -> why)."""

    fingerprint: Fingerprint
    findings: tuple[Finding, ...]
    refuted: Mapping[str, str] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    ceiling_us: float | None = None
    schema: int = SCHEMA

    @property
    def top(self) -> Finding | None:
        """The finding to act on."""
        return self.findings[0] if self.findings else None


@dataclass(frozen=True)
class DiffRow:
    """One figure of both kernels; `ratio` is b over a."""

    figure: str
    a: float | None
    b: float | None
    ratio: float | None = None


@dataclass(frozen=True)
class Diff:
    """Two fingerprints side by side."""

    a: str
    b: str
    rows: tuple[DiffRow, ...]
    notes: tuple[str, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True)
class Ticks:
    """What several CTAs or warps spent, in ticks of a clock."""

    median: float
    least: int
    most: int


@dataclass(frozen=True)
class RegionTime:
    """A region of a role, over its CTAs and warps.

    Attributes:
        share: of all that the warps of the role spent.
        of: the roles that a wait is for.
    """

    region: str
    ticks: Ticks
    share: float
    of: str = ""


@dataclass(frozen=True)
class RoleTime:
    """A role from the start of the kernel to the end of its last region, and its regions, the longest first.

    Attributes:
        lost: the share of that time which is in no region.
        waits: the share of it in waits for others.
    """

    role: str
    warps: int
    ticks: Ticks
    lost: float
    waits: float
    regions: tuple[RegionTime, ...]


@dataclass(frozen=True)
class Regions:
    """Where the time of one launch went, as probes in the kernel counted it.

    Attributes:
        clock: what a tick is.
        cta: a CTA, from the start of its first warp to the end of its last one's.
        sm: an SM, from the start of its first CTA to the end of its last one.
        pace: which role waits least, and what it does: nothing is faster before that is.
    """

    variant: str
    workload: str
    executor: str
    clock: str
    dims: Mapping[str, int]
    ctas: int
    cta: Ticks
    sm: Ticks
    roles: tuple[RoleTime, ...]
    pace: str
    schema: int = SCHEMA


def plain(record: Any) -> Any:
    """The record as JSON types; a number that JSON cannot spell becomes None."""
    return _finite(asdict(record))


def dump(record: Any) -> str:
    """Canonical JSON text of a record or a list of records."""
    data = [plain(item) for item in record] if isinstance(record, list | tuple) else plain(record)
    return json.dumps(data, indent=1, sort_keys=True) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def load(kind: type[T], data: str | Mapping[str, Any], where: str = "JSON") -> T:
    """A record from its JSON text or the object in it.

    Raises:
        ArtifactError: it does not fit the schema; names the field.
        ToolchainError: pydantic is not installed.
    """
    adapter = _adapter(kind)
    from pydantic import ValidationError

    try:
        loaded: T = adapter.validate_json(data) if isinstance(data, str) else adapter.validate_python(data)
        return loaded
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise ArtifactError(
            where,
            expected=f"a {kind.__name__} of schema {SCHEMA}",
            got=f"{place}: {first['msg']}",
            fix="write it again with this version's `profile read --extract`",
        ) from None


def schema(kind: type) -> dict[str, Any]:
    """The JSON schema of a record type."""
    found: dict[str, Any] = _adapter(kind).json_schema()
    return found


def _adapter(kind: type) -> Any:
    try:
        from pydantic import TypeAdapter
    except ImportError as error:
        raise ToolchainError(
            "pydantic",
            expected="the package that checks records",
            got=str(error),
            fix="`pip install 'dsl-kernels[profile]'`",
        ) from None
    return TypeAdapter(kind)
