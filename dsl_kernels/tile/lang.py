"""The vocabulary of a tile program: buffers, roles, pipelines, tensor-core operations, knobs and guards.

A program is a function from knobs and an architecture to a `Schedule` (plain frozen data), plus one body a role
written against `dsl_kernels.tile.text.Recorder`. Nothing here knows a DSL or touches a device; everything that
the checks, the barrier plan, the templates, the interpreter and the cost model need is read from these records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..abi import TensorMap
from ..dtypes import DTYPES
from ..errors import UnknownNameError, did_you_mean
from .sizes import LN_2 as LN_2
from .sizes import LOG2_E as LOG2_E
from .sizes import Constant as Constant
from .sizes import Size as Size
from .sizes import named as named
from .sizes import spell as spell

if TYPE_CHECKING:
    from ..arch import ArchSpec, GpuSpec
    from .expressions import Extent


class Space(str, Enum):
    """Where a buffer lives."""

    SHARED = "shared"
    TENSOR = "tensor"
    REGISTER = "register"


class Engine(str, Enum):
    """What moves or reads a buffer's bytes; a class each says what follows from it (`transfers.py`)."""

    BULK = "bulk"
    """Copy engine (cp.async.bulk, TMA tile or gather4): completes on an mbarrier by byte count."""
    CP_ASYNC = "cp_async"
    """16-byte cp.async issued by each producer thread: arrives on the mbarrier when that thread's copies land."""
    PEERS = "peers"
    """Asynchronous stores (st.async) by the same role of other CTAs of the cluster: complete on the receiver's mbarrier
    by byte count. A CTA sends a use only after it has read the previous one, so two slots need no empty barrier."""
    GRID = "grid"
    """Stores by the same role of other CTAs of the grid, through an operand that is zero between launches: a word has come
    when it is not zero. The reader looks until all have, takes them into shared memory and leaves zeros behind. The CTAs
    must all run at once."""
    THREADS = "threads"
    """Ordinary loads and stores of the role's threads (ldmatrix, stmatrix and mma.sync included)."""
    WGMMA = "wgmma"
    """Hopper's warpgroup MMA reading shared memory asynchronously."""
    TCGEN05 = "tcgen05"
    """Blackwell's MMA, issued by one thread, reading shared or tensor memory and writing tensor memory."""
    TMEM = "tmem"
    """tcgen05.ld and tcgen05.st by the role's threads."""


@dataclass(frozen=True)
class Buffer:
    """On-chip storage of one CTA.

    `shape` is one stage. A tensor-memory buffer has shape (lanes, elements of a lane); 16-bit ones lie two a column, `unpacked` one.
    `alias` names a buffer whose storage this one re-uses from its first byte on (their live ranges must not overlap). Register buffers name the role that
    holds them, and with `per_thread` how many of its elements a thread holds where that is not an equal share; of a `private` one every
    thread has and addresses its own, be it a part of the whole or a copy, and no two need be alike.
    """

    name: str
    space: Space
    shape: tuple[int, ...]
    dtype: str
    stages: int = 1
    swizzle: int = 0
    role: str | None = None
    alias: str | None = None
    doc: str = ""
    per_thread: int | None = None
    private: bool = False
    unpacked: bool = False

    @classmethod
    def own(
        cls, name: str, role: str, each: int, dtype: str = "float32", threads: int = 128, doc: str = ""
    ) -> Buffer:
        """Registers that each thread of a role has for itself."""
        return cls(
            name, Space.REGISTER, (threads, each), dtype, role=role, doc=doc, per_thread=each, private=True
        )

    @property
    def stage_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def stage_bytes(self) -> int:
        return self.stage_elements * DTYPES[self.dtype].bytes

    @property
    def bytes(self) -> int:
        return self.stage_bytes * self.stages

    @property
    def columns(self) -> int:
        """32-bit columns of one stage in tensor memory."""
        return self.shape[1] if self.unpacked else self.shape[1] * DTYPES[self.dtype].bytes // 4


@dataclass(frozen=True)
class Role:
    """Consecutive warps of a CTA that do one job. `registers` is the budget a thread (setmaxnreg) or None.

    `replicas` such groups of warps run the same body, each with its number. `active` warps of each do the work, all by
    default: the others are there for the registers that they hand over.
    """

    name: str
    warps: int
    registers: int | None = None
    doc: str = ""
    replicas: int = 1
    active: int | None = None

    @property
    def threads(self) -> Size:
        return Size(32 * self.warps * self.replicas, f"{self.name.upper()}_THREADS")


@dataclass(frozen=True)
class Reader:
    """One consumer of a pipeline: which role, through which engine, and who arrives when it lets a slot go.

    `arrive` is "thread" (each thread of the role), "warp" (one lane a warp) or "role" (one thread for all).
    """

    role: str
    engine: Engine
    arrive: str = "thread"


@dataclass(frozen=True)
class Pipeline:
    """A ring of `stages` slots over `buffers`, filled by one role and read by others.

    `rounds` is "loop" for a ring used once an iteration and "once" for a single hand-over (no empty barrier).
    `returned_by` names a pipeline in the other direction whose full barrier also gives this one's slot back: the
    reader commits that one only after it has released this one, so no empty barrier of its own is needed.
    `accumulates` keeps a slot's contents from use to use (an accumulator in tensor memory).
    `fill_arrive` says who arrives for THREADS and TMEM fills, as in `Reader.arrive`.
    Into the slots of a `multicast` one every CTA of the cluster copies, with a copy that all of them receive: a slot is
    full when all bytes have come, from whichever CTA, and free when the readers of every CTA have let it go. Filled by
    threads, those of each CTA write an equal share of a slot and send it to the other CTAs.
    A `pair` one is of products by two CTAs: each fills its own slot, by copies or by threads, the first CTA waits for both and gives both back; what
    such products fill is full in both, and free when the readers of both have let it go.
    What CTAs of the grid send goes `through` an operand of 32-bit words, an image of the slot for each CTA; the threads of
    the reader learn at named barrier `meets` that all of it has come.
    """

    name: str
    buffers: tuple[str, ...]
    producer: str
    fill: Engine
    readers: tuple[Reader, ...]
    stages: int = 1
    rounds: str = "loop"
    fill_arrive: str = "thread"
    returned_by: str | None = None
    accumulates: bool = False
    doc: str = ""
    multicast: bool = False
    pair: bool = False
    through: str = ""
    meets: str = ""


@dataclass(frozen=True)
class Mma:
    """One tensor-core operation of the body: tile shape, operand types and majors.

    `a`, `b` and `acc` name the buffers of its operands and of its result. Several warpgroups of a role share out its
    rows. A may come from registers (wgmma) or tensor memory (tcgen05) instead of shared memory:
    16-bit elements in the order of an accumulator. With `cta_group` 2 (tcgen05) the two CTAs of a cluster hold half of the
    rows of A, of B and of the result each, and the first of them issues the product. Of 128 rows each has 64, which take all
    lanes: the second half of the result's columns is below the first, and A in tensor memory has its rows twice. Sums are float32, or float16 where
    `acc` is an unpacked buffer of float16 (tcgen05). With `ws` (tcgen05) 32 or 64 rows take all 128 lanes: the columns of the
    result in four or two parts, below one another. `scales` name tensor-memory buffers of (128, 16) exponents, one for each 32 of
    K of a row of A and of B (mxf8f6f4): in lane r those of rows r, r + 32, r + 64 and r + 96, in each quarter of the lanes the same.
    """

    name: str
    unit: str
    role: str
    m: int
    n: int
    k: int
    dtype: str
    a_major: str = "k"
    b_major: str = "k"
    a_space: Space = Space.SHARED
    doc: str = ""
    a: str = ""
    b: str = ""
    acc: str = ""
    cta_group: int = 1
    ws: bool = False
    scales: tuple[str, str] | None = None

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k


@dataclass(frozen=True)
class Turn:
    """An ordered hand-over: its members, roles of as many threads each or the replicas of one, go one after the other.

    The first named goes first, or replica 0; the last hands over to it again. Each takes the turn and passes it on equally
    often.
    """

    name: str
    roles: tuple[str, ...]


# Buffers of one size in a row from which on their columns are spelled as a product.
MANY = 3


@dataclass(frozen=True)
class Schedule:
    """A tile program at fixed knobs on one architecture.

    `grid` holds numbers and expressions over the runtime dims and integers of a launch (`tile.expressions.dim`). `group` names the grid axes whose CTAs
    synchronise with one another (all of them must be resident at once). `named_barriers` maps a name to the roles
    whose threads meet at it. `constants` are literal numbers the template needs beside the buffers. `maps` are
    the tensor maps of the copy engine, for DSLs that do not report theirs. Of a named barrier in `apart` each replica of
    its one role has its own. `axes` names the coordinates of the grid. `min_ctas_per_sm` is what the compiler must leave
    registers for, and then it spends them; 0 leaves the number to the compiler where one CTA will do. `max_ctas_per_sm`
    is what shared memory has room for, if need be by asking for more of it: as many CTAs as the SMs hold then spread
    evenly, also where they take their places while another kernel leaves them; 0 sets no limit. Where
    `resident` is not zero, all CTAs of the grid run at once, or the launch is refused.
    """

    roles: tuple[Role, ...]
    buffers: tuple[Buffer, ...]
    pipelines: tuple[Pipeline, ...]
    mmas: tuple[Mma, ...]
    grid: tuple[Extent, ...]
    cluster: tuple[int, int, int] = (1, 1, 1)
    group: tuple[int, ...] = ()
    named_barriers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    ctas_per_sm: int = 1
    maps: tuple[TensorMap, ...] = ()
    axes: tuple[str, ...] = ()
    min_ctas_per_sm: int = 0
    max_ctas_per_sm: int = 0
    turns: tuple[Turn, ...] = ()
    apart: tuple[str, ...] = ()
    resident: Extent = 0

    @property
    def threads(self) -> int:
        return sum(role.threads for role in self.roles)

    @property
    def may_wait(self) -> bool:
        """Whether there are launches all CTAs of which run at once."""
        return not isinstance(self.resident, int) or self.resident != 0

    @property
    def cluster_ctas(self) -> int:
        """CTAs of a cluster."""
        return math.prod(self.cluster)

    @property
    def multicasts(self) -> bool:
        """Whether CTAs of a cluster fill each other's slots: none may start before, or end behind, what others send."""
        return any(pipe.multicast or pipe.pair for pipe in self.pipelines)

    @property
    def pairs(self) -> bool:
        """Whether two CTAs share out every product."""
        return any(mma.cta_group == 2 for mma in self.mmas)

    def role(self, name: str) -> Role:
        return _pick(self.roles, name, "role")

    def buffer(self, name: str) -> Buffer:
        return _pick(self.buffers, name, "buffer")

    def pipeline(self, name: str) -> Pipeline:
        return _pick(self.pipelines, name, "pipeline")

    def turn(self, name: str) -> Turn:
        return _pick(self.turns, name, "turn")

    def mma(self, name: str) -> Mma:
        return _pick(self.mmas, name, "mma")

    def first_thread(self, name: str) -> int:
        """The first thread of a role; roles occupy consecutive warps in the order they are declared."""
        first = 0
        for role in self.roles:
            if role.name == name:
                return first
            first += role.threads
        raise UnknownNameError(
            f"role {name}",
            expected="a declared role",
            got=name,
            fix=did_you_mean(name, [r.name for r in self.roles]),
        )

    def smem_bytes(self) -> int:
        """Shared memory of all buffers that own their storage."""
        return sum(b.bytes for b in self.buffers if b.space is Space.SHARED and b.alias is None)

    def tensor_offset(self, name: str) -> int:
        """First column of a tensor-memory buffer; they lie side by side in the order declared."""
        before = []
        for buffer in self.buffers:
            if buffer.name == name:
                if buffer.alias is not None:
                    return self.tensor_offset(buffer.alias)
                break
            if buffer.space is Space.TENSOR and buffer.alias is None:
                before.append(buffer.columns * buffer.stages)
        found = 0
        for _, alike in groupby(before, key=lambda columns: (int(columns), getattr(columns, "spelled", ""))):
            run = list(alike)
            # Many of a kind read better as a product.
            for columns in [run[0] * len(run)] if len(run) >= MANY else run:
                found += columns
        return found

    def tmem_allocation(self) -> int:
        """Columns that a CTA allocates: a power of two, at least 32."""
        columns = self.tmem_columns()
        return max(32, 1 << (columns - 1).bit_length()) if columns else 0

    def tmem_columns(self) -> int:
        """Tensor-memory columns of all buffers that own their storage, before rounding to an allocation."""
        return sum(b.columns * b.stages for b in self.buffers if b.space is Space.TENSOR and b.alias is None)


def _pick(records: tuple[Any, ...], name: str, kind: str) -> Any:
    for record in records:
        if record.name == name:
            return record
    names = [record.name for record in records]
    raise UnknownNameError(
        f"{kind} {name}", expected=f"a declared {kind}", got=name, fix=did_you_mean(name, names)
    )


@dataclass(frozen=True)
class Counts:
    """What the first CTA of a launch does, where every row is as long as the call allows.

    Attributes:
        loaded, stored: bytes between the CTA and global memory, or the shared memory of its group.
        flops: tensor-core operations by dtype.
        uses: uses of its busiest pipeline.
        group_syncs: barriers of its group.
        elements: keys that go through a histogram or a compaction.
    """

    loaded: float = 0.0
    stored: float = 0.0
    flops: Mapping[str, float] = field(default_factory=dict)
    uses: float = 1.0
    group_syncs: float = 0.0
    elements: float = 0.0


@dataclass(frozen=True)
class LaunchPlan:
    """How a call is dealt out over a GPU. What is None the kernel has no use for.

    The fields but `early` are runtime dims of the launch: extents of a kernel's scratch, or integers that it takes.

    Attributes:
        ctas: CTAs that the work is dealt to; of a grid that has further axes the extent of the first.
        splits: parts that the work of one row is cut into.
        abreast: heads that are worked on side by side.
        padded_heads: heads that the blocks of a row have room for, where the last one may have fewer.
        counters: counters by which CTAs learn who has come.
        inbox_words: 32-bit words through which CTAs of the grid send one another results.
        all_resident: whether all CTAs run at once, so that they may wait for one another.
        early: whether the launch may begin before the kernel in front of it has ended.
    """

    ctas: int | None = None
    splits: int | None = None
    abreast: int | None = None
    padded_heads: int | None = None
    counters: int | None = None
    inbox_words: int | None = None
    all_resident: bool | None = None
    early: bool = True

    @property
    def dims(self) -> dict[str, int]:
        """The values by their names, `early` = 0 only where the launch has to wait."""
        found = {
            name: int(value) for name, value in vars(self).items() if value is not None and name != "early"
        }
        return found if self.early else {**found, "early": 0}


@dataclass(frozen=True)
class Knob:
    """One axis of the sweep.

    `levels[i]` are the values at sweep level i (0 is the committed set; a higher level contains the lower ones).
    `key` is its short spelling in variant ids; values that are words stand there alone. `plain` is the value that ids
    leave out, so that a knob which came later renames nothing.
    """

    name: str
    key: str
    levels: tuple[tuple[Any, ...], ...]
    doc: str
    archs: tuple[str, ...] = ()
    plain: Any = None

    def values(self, level: int) -> tuple[Any, ...]:
        seen: dict[Any, None] = {}
        for row in self.levels[: level + 1]:
            seen.update(dict.fromkeys(row))
        return tuple(seen)

    def spell(self, value: Any) -> str:
        return f"{self.key}{value}" if not isinstance(value, str) else value


SUMS, TRACE, COARSE = 1, 2, 3
PROBE = Knob(
    "probe", "probe", (),
    "1: cycles of each warp by region; 2: the last regions of each warp, with their times; 3: cycles by wait for others, and of the rest",
    plain=0,
)  # fmt: skip
"""A knob of every program, which no sweep turns: what a variant measures of itself (`tile.probes`)."""


@dataclass(frozen=True)
class Guard:
    """A condition on a call that a variant needs; `refuse` returns the reason, or None where it accepts."""

    name: str
    refuse: Callable[[Mapping[str, Any], Mapping[str, Any]], str | None]


def built_for(knob: str, dim: str = "") -> Guard:
    """A guard that refuses calls whose size is not the value of a knob; the size has the knob's name, or another one."""
    dim = dim or knob

    def refuse(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
        built, asked = knobs.get(knob), call.get(dim)
        return None if asked is None or built in (None, asked) else f"{dim} = {asked}, built for {built}"

    return Guard(dim, refuse)


@dataclass(frozen=True)
class Policy:
    """How a program is used: which of its variants are generated, how a launch is dealt out, and how they rank.

    Attributes:
        bucket: (form, call dims) -> the sizes that decide which variant is best; they name tuned entries, and rounded up to
            powers of two are the dims that the cost model assumes.
        resized: (call dims, sizes of a bucket) -> the dims of a like call of these sizes, derived ones with them.
        counts: (knobs, schedule, dims) -> what the first CTA moves and computes, for operations whose data decide that or
            whose leaves do not say what they move; by default it is counted from the text (`tile.counting`).
        overhead: (knobs, dims, GPU) -> microseconds a CTA spends that the counts of its body do not show.
        launch: (knobs, call dims, GPU) -> the launch plan. Splits that the call fixes are among its dims.
        useful: (knobs, arch, sweep level) -> bool; False drops a combination from the sweep without calling it
            a violation.
    """

    bucket: Callable[[str, Mapping[str, int]], dict[str, int]] = lambda form, dims: dict(dims)
    resized: Callable[[Mapping[str, int], Mapping[str, int]], dict[str, int]] = lambda dims, sizes: {
        **dims,
        **sizes,
    }
    counts: Callable[[SimpleNamespace, Schedule, Mapping[str, int]], Counts] | None = None
    overhead: Callable[[SimpleNamespace, Mapping[str, int], GpuSpec], float] = lambda k, dims, gpu: 0.0
    launch: Callable[[SimpleNamespace, Mapping[str, int], GpuSpec], LaunchPlan] = lambda k, dims, gpu: (
        LaunchPlan()
    )
    useful: Callable[[SimpleNamespace, ArchSpec, int], bool] = lambda k, arch, level: True


# Called with a recorder, and that of a role also with the State that the start returns.
Body = Callable[..., Any]
# The body, among those of the roles, of what every thread does first.
START = "start"
