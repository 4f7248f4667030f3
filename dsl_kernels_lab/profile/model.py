"""The records of profiling, as plain dataclasses with a JSON schema: reports, fingerprints, diagnoses.

Shares are fractions of one, never percent. A figure that no collector could read is None, and the record's
`missing` names it. Writing needs no package; `load` and `schema` check against the types with pydantic (extra
`profile`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

from dsl_kernels.errors import ArtifactError, ToolchainError

SCHEMA = 1
T = TypeVar("T")


@dataclass(frozen=True)
class NcuRule:
    """What a rule of Nsight Compute said about a launch; `estimate` is a share of the time, or None."""

    name: str
    message: str
    kind: str = ""
    estimate: float | None = None


@dataclass(frozen=True)
class KernelReport:
    """One launch as a collector read it.

    Attributes:
        source: collector or file format ("ncu", "csv", "log", "activity", "static", "emulator", "figures").
        arch: compute architecture, such as "sm_90"; "" if the source does not say.
        metrics: values by Nsight Compute's names, in base units (ns, bytes, percent for `.pct`, plain
            counts).
        label: name of the range that the launch ran in, if any.
        missing: what this collector could not read, in words.
        workload: what the launch had to do, if the source says.
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
    """What the kernel had to do, from its arithmetic rather than from counters.

    Attributes:
        read_bytes: bytes that the result needs from memory, each counted as often as a CTA must fetch it.
        unique_bytes: the same with each byte counted once: what remains for the DRAM behind a perfect cache.
        row_bytes: contiguous bytes of one gathered row; None if nothing is gathered.
        footprint_bytes: size of the memory that rows are gathered from.
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
    """A reason for warps to wait: its share of all warp cycles, and its cycles per issued instruction."""

    share: float
    cycles: float | None = None


@dataclass(frozen=True)
class Traffic:
    """Bytes read through one level; `ratio` is used over moved, above one if caches saved it reads."""

    moved: float
    used: float | None = None
    ratio: float | None = None


@dataclass(frozen=True)
class Issue:
    """Per scheduler and cycle: instructions issued, warps eligible and active; threads per instruction."""

    issued: float | None = None
    eligible: float | None = None
    active: float | None = None
    threads: float | None = None


@dataclass(frozen=True)
class Occupancy:
    """Resident warps as shares of the most an SM can hold, what limits them, and the size of the launch."""

    achieved: float | None = None
    theoretical: float | None = None
    limiter: str | None = None
    waves: float | None = None
    registers: int | None = None
    shared_bytes: int | None = None
    ctas_per_sm: int | None = None


@dataclass(frozen=True)
class Spills:
    """Register spills: instructions on local memory, and its share of the sectors that the L1 served."""

    instructions: float = 0.0
    sectors: float = 0.0
    share: float = 0.0


@dataclass(frozen=True)
class Fingerprint:
    """One launch of one kernel, in comparable numbers.

    Attributes:
        sol: share of the peak rate that each unit reached: sm, memory, l1, l2, dram.
        pipes: share of the cycles in which each pipe was busy: tensor, fma, alu, xu (special functions), lsu,
            tma.
        stalls: stalls by reason. Reasons differ between architectures: compare them only within one.
        traffic: bytes read at l1, l2 and dram, asynchronous copies included.
        rates: other figures of the rules: l1_hit, l2_hit, bank_conflicts (share of shared-memory wavefronts),
            atomics (share of L2 sectors), sectors_per_request, sector_use (share of its sectors' bytes that a
            load uses), async_copies (share of the loaded bytes), sm_active (share of the time), balance
            (cycles of the busiest SM over the mean).
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
        """The reason with the greatest share, not counting warps that issue or were ready but not picked."""
        idle = ("selected", "not_selected")
        waiting = {name: stall.share for name, stall in self.stalls.items() if name not in idle}
        return max(waiting, key=lambda name: waiting[name]) if waiting else None


@dataclass(frozen=True)
class Evidence:
    """One reading that a rule asked for: the quantity, its value, and the condition on it ("> 0.8")."""

    quantity: str
    value: float
    wanted: str = ""


@dataclass(frozen=True)
class Finding:
    """One cause, its evidence, what to change, and the most that this could gain.

    Attributes:
        cause: the rule's name, e.g. "gather_below_ceiling".
        bound: the largest speed-up if this alone were fixed; None if nothing limits it.
        healthy: the kernel is at a limit of the GPU, so only less work makes it faster.
        knobs: this project's knobs that affect it, and what to do with each.
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
    """Findings in the order to act on them, and explanations that the numbers rule out, with the reason."""

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
    """Times of several CTAs or warps, in ticks of a clock."""

    median: float
    least: int
    most: int


@dataclass(frozen=True)
class RegionTime:
    """The time in one region of a role, over its CTAs and warps.

    Attributes:
        share: of all the time that the role's warps spent.
        of: the roles that a wait is for.
    """

    region: str
    ticks: Ticks
    share: float
    of: str = ""


@dataclass(frozen=True)
class RoleTime:
    """A role from the start of the kernel to the end of its last region, and its regions, longest first.

    Attributes:
        lost: the share of that time that is in no region.
        waits: the share of it spent waiting for other roles.
    """

    role: str
    warps: int
    ticks: Ticks
    lost: float
    waits: float
    regions: tuple[RegionTime, ...]


@dataclass(frozen=True)
class Regions:
    """Where the time of one launch went, by the probes in the kernel.

    Attributes:
        clock: what a tick is.
        cta: a CTA's time, from the start of its first warp to the end of its last.
        sm: an SM's time, from the start of its first CTA to the end of its last.
        pace: the role that waits least, and what it does; it sets the pace of the kernel.
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
    """The record as JSON types; a number that JSON cannot express becomes None."""
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
    """A record from its JSON text, or from the object in it.

    Raises:
        ArtifactError: it does not match the schema; the error names the field.
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
    result: dict[str, Any] = _adapter(kind).json_schema()
    return result


def _adapter(kind: type) -> Any:
    try:
        from pydantic import TypeAdapter
    except ImportError as error:
        raise ToolchainError(
            "pydantic",
            expected="the package that checks records",
            got=str(error),
            fix="`pip install 'dsl-kernels-lab[profile]'`",
        ) from None
    return TypeAdapter(kind)
