"""The vocabulary of a tile program: buffers, roles, pipelines, tensor-core operations, knobs and guards.

A program is a function from knobs and an architecture to a `Schedule` (plain frozen data), plus one body per
role, recorded by `dsl_kernels.tile.text.Recorder`. Nothing here knows a DSL or touches a device. The checks,
the barrier plan, the printer, the interpreter and the cost model read these records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
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
    """What moves or reads a buffer's bytes; each engine's consequences are in a class of `transfers.py`."""

    BULK = "bulk"
    """The copy engine (cp.async.bulk, TMA tile or gather4): completes on an mbarrier by byte count."""
    CP_ASYNC = "cp_async"
    """16-byte cp.async by each producer thread: arrives on the mbarrier when that thread's copies land."""
    PEERS = "peers"
    """Asynchronous stores (st.async) by the same role of other CTAs of the cluster: complete on
    the receiver's mbarrier by byte count. A CTA sends a use only after it has read the previous one, so two
    slots need no empty barrier."""
    GRID = "grid"
    """Stores by the same role of other CTAs of the grid, through an operand that is zero between launches: a
    word has arrived when it is not zero. The reader polls until all have, moves them into shared memory and
    zeroes the operand again. All CTAs must run at once."""
    THREADS = "threads"
    """Ordinary loads and stores of the role's threads (ldmatrix, stmatrix and mma.sync included)."""
    WGMMA = "wgmma"
    """Hopper's warpgroup MMA reading shared memory asynchronously."""
    TCGEN05 = "tcgen05"
    """Blackwell's MMA, issued by one thread: reads shared or tensor memory, writes tensor memory."""
    TMEM = "tmem"
    """tcgen05.ld and tcgen05.st by the role's threads."""


@dataclass(frozen=True)
class Buffer:
    """On-chip storage of one CTA.

    Attributes:
        shape: one stage. A tensor-memory buffer has shape (lanes, elements of a lane).
        role: the role that holds a register buffer.
        alias: a buffer whose storage this one reuses from its first byte on; their live ranges must not
            overlap.
        per_thread: how many elements of a register buffer a thread holds, where that is not an equal share.
        private: every thread has registers of its own, which it alone indexes; they need not form one tile.
        unpacked: 16-bit elements take a tensor-memory column each; by default two share one.
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
        """A private register buffer: `each` elements for each of a role's threads."""
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
        """Tensor-memory columns (of 32 bits a lane) of one stage."""
        return self.shape[1] if self.unpacked else self.shape[1] * DTYPES[self.dtype].bytes // 4


@dataclass(frozen=True)
class Role:
    """Consecutive warps of a CTA that do one job.

    `registers` is the budget of a thread (setmaxnreg), or None. `replicas` groups of `warps` warps run the
    same body, each with its number. `active` warps of each group do the work, by default all; the remaining
    ones only donate their registers.
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
    """One consumer of a pipeline: which role, through which engine, and who arrives when it releases a slot.

    `arrive` is "thread" (each thread of the role), "warp" (one lane of each warp) or "role" (one thread for
    all).
    """

    role: str
    engine: Engine
    arrive: str = "thread"


@dataclass(frozen=True)
class Pipeline:
    """A ring of `stages` slots over `buffers`, filled by one role and read by others.

    Attributes:
        fill_arrive: who arrives for THREADS and TMEM fills, as in `Reader.arrive`.
        rounds: "loop" for a ring used once an iteration, "once" for a single hand-over (no empty barrier).
        returned_by: a pipeline in the other direction whose full barrier also gives back this one's slots.
            Its producer, the reader here, commits it only after releasing this one, so this one needs no
            empty barrier.
        accumulates: a slot keeps its contents from use to use (an accumulator in tensor memory).
        multicast: each CTA of the cluster copies part of a slot, and every CTA receives it. A slot is full
            when all its bytes have arrived, from whichever CTA, and free when the readers of every CTA have
            released it. Filled by threads, those of each CTA write an equal share of a slot and send it to
            the other CTAs.
        pair: the slots of products by two CTAs. Each CTA fills its own slot, by copies or threads; the first
            CTA waits for both slots and releases both. A slot that such products fill is full in both CTAs at
            once, and free when the readers of both have released it.
        through: the operand of 32-bit words through which CTAs of the grid send; each CTA has an image of the
            slot.
        meets: the named barrier at which the reader's threads learn that everything has arrived `through` it.
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
    """One tensor-core operation of a body: an m x n x k tile, its dtype and majors.

    Of a dtype that packs two numbers in a byte (`float4_e2m1x2`), k counts the numbers, and a row of an
    operand has k / 2 columns. Several warpgroups of a role divide its rows among them. Sums are float32, or
    float16 where `acc` is an unpacked float16 buffer (tcgen05).

    Attributes:
        a, b, acc: the buffers of the operands and of the result.
        a_space: where A is: shared memory, registers (wgmma) or tensor memory (tcgen05). Outside of shared
            memory it has 16-bit elements, laid out as an accumulator.
        cta_group: with 2 (tcgen05) each of a cluster's two CTAs holds half of the rows of A, of B and of the
            result, and the first CTA issues the product. Of m = 128 each CTA has 64 rows, which take all 128
            lanes: the second half of the result's columns is in the lower 64 lanes, and A in tensor memory
            has its rows twice.
        ws: 32 or 64 rows take all 128 lanes (tcgen05): the result's columns are split into four or two parts,
            one below the other.
        scales: tensor-memory buffers of (128, 16) exponents, one for 32 elements of K of a row of A, and of B
            (mxf8f6f4; of numbers of 4 bits mxf4, which has no product without scales). Lane r has those of
            rows r, r + 32, r + 64 and r + 96; all four quarters of the lanes repeat the same.
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
    """An ordered hand-over: roles of equally many threads, or the replicas of one role, take turns.

    The first role named, or replica 0, goes first; the last one passes the turn on to it again. Every member
    takes and passes on the turn equally often.
    """

    name: str
    roles: tuple[str, ...]


# From this many consecutive buffers of one size on, an offset spells their columns as a product.
MANY = 3


@dataclass(frozen=True)
class Schedule:
    """A tile program at fixed knobs on one architecture.

    Attributes:
        grid: numbers, and expressions over the runtime dims and integers of a launch
            (`tile.expressions.dim`).
        group: the grid axes whose CTAs synchronise with one another; all of them must be resident at once.
        named_barriers: each name's roles, whose threads meet there.
        constants: numbers that the bodies name, beside the sizes of buffers.
        maps: tensor maps of the copy engine, for DSLs that do not report theirs.
        axes: names of the grid's coordinates.
        min_ctas_per_sm: CTAs for which the compiler must leave registers, and whose registers it then spends;
            0 leaves the number to the compiler where one CTA is enough.
        max_ctas_per_sm: the most CTAs that may share an SM; if they need less shared memory than that, the
            kernel requests more. A launch that fills the SMs then spreads evenly, even if it starts while
            another kernel drains. 0: no limit.
        apart: named barriers of which each replica of their one role has its own.
        resident: where it is not zero, all CTAs of the grid run at once, or the launch is refused.
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
        """Whether in some launches all CTAs run at once, so that they may wait for one another."""
        return not isinstance(self.resident, int) or self.resident != 0

    @property
    def cluster_ctas(self) -> int:
        """CTAs of a cluster."""
        return math.prod(self.cluster)

    @property
    def multicasts(self) -> bool:
        """Whether CTAs of a cluster fill each other's slots.

        No CTA may then start to send before all run, or end before what others send it has arrived.
        """
        return any(pipe.multicast or pipe.pair for pipe in self.pipelines)

    @property
    def pairs(self) -> bool:
        """Whether two CTAs compute products together."""
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
        """First column of a tensor-memory buffer; buffers are side by side in the order declared."""
        before = []
        for buffer in self.buffers:
            if buffer.name == name:
                if buffer.alias is not None:
                    return self.tensor_offset(buffer.alias)
                break
            if buffer.space is Space.TENSOR and buffer.alias is None:
                before.append(buffer.columns * buffer.stages)
        offset = 0
        for _, alike in groupby(before, key=lambda columns: (int(columns), getattr(columns, "spelled", ""))):
            run = list(alike)
            for columns in [run[0] * len(run)] if len(run) >= MANY else run:
                offset += columns
        return offset

    def tmem_allocation(self) -> int:
        """Columns that a CTA allocates: a power of two, at least 32."""
        columns = self.tmem_columns()
        return max(32, 1 << (columns - 1).bit_length()) if columns else 0

    def tmem_columns(self) -> int:
        """Tensor-memory columns of all buffers that own their storage, not rounded up to an allocation."""
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
    """What the busiest CTA of a launch does, if every row is as long as the call allows.

    Attributes:
        loaded, stored: bytes between the CTA and global memory, or the shared memory of its group.
        flops: tensor-core operations by dtype.
        uses: uses of its busiest pipeline.
        group_syncs: how often it meets its group.
        elements: keys that go through a histogram or a compaction.
        cta: its place along the first axis of the grid.
    """

    loaded: float = 0.0
    stored: float = 0.0
    flops: Mapping[str, float] = field(default_factory=dict)
    uses: float = 1.0
    group_syncs: float = 0.0
    elements: float = 0.0
    cta: int = 0


@dataclass(frozen=True)
class LaunchPlan:
    """How a call is distributed over a GPU; None: the kernel does not use the field.

    All fields but `early` are runtime dims of the launch: extents of a kernel's scratch, or integers passed
    to it.

    Attributes:
        ctas: CTAs among which the work is divided; the extent of the first axis, if the grid has more.
        splits: parts into which the work of one row is divided.
        share, reach, span, row_step: how CTAs share out units of rows, as `dealing.share_out` says.
        abreast: heads that run side by side.
        padded_heads: heads of a row, rounded up to whole blocks.
        counters: counters by which CTAs learn how many others have arrived.
        inbox_words: 32-bit words through which CTAs of the grid send results to one another.
        all_resident: whether all CTAs run at once, so that they may wait for one another.
        early: whether the launch may begin before the preceding kernel has ended.
    """

    ctas: int | None = None
    splits: int | None = None
    share: int | None = None
    reach: int | None = None
    span: int | None = None
    row_step: int | None = None
    abreast: int | None = None
    padded_heads: int | None = None
    counters: int | None = None
    inbox_words: int | None = None
    all_resident: bool | None = None
    early: bool = True

    @property
    def dims(self) -> dict[str, int]:
        """The values by name; `early` is among them, as 0, only if the launch must wait."""
        fields = {name: value for name, value in vars(self).items() if name != "early"}
        dims = {name: int(value) for name, value in fields.items() if value is not None}
        return dims if self.early else {**dims, "early": 0}


@dataclass(frozen=True)
class Knob:
    """One axis of the sweep.

    `levels[i]` are the values that sweep level i adds to those of the lower levels (level 0 is the committed
    set). `key` is the knob's short name in variant ids; a value that is a word appears there without it. Ids
    leave out the value `plain`, so that a knob added later renames no variant.
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


def has_values(k: SimpleNamespace, names: Iterable[str], row: Iterable[Any]) -> bool:
    """Whether the knobs `names` have the values of a row: for each knob one value, or a tuple of them."""
    return all(
        getattr(k, name) in (values if isinstance(values, tuple) else (values,))
        for name, values in zip(names, row, strict=True)
    )


SUMS, TRACE, COARSE = 1, 2, 3
PROBE = Knob(
    "probe", "probe", (),
    "1: cycles of each warp by region; 2: the last regions of each warp, with their times; "
    "3: cycles by wait for others, and of the rest",
    plain=0,
)  # fmt: skip
"""A knob that every program has and no sweep changes: what a variant measures of itself (`tile.probes`)."""


@dataclass(frozen=True)
class Guard:
    """A condition that a variant sets to calls; `refuse` returns the reason of a refusal, or None."""

    name: str
    refuse: Callable[[Mapping[str, Any], Mapping[str, Any]], str | None]


def built_for(knob: str, dim: str = "") -> Guard:
    """A guard that refuses a call whose dim `dim` (by default named as the knob) is not the knob's value."""
    dim = dim or knob

    def refuse(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
        built, asked = knobs.get(knob), call.get(dim)
        return None if asked is None or built in (None, asked) else f"{dim} = {asked}, built for {built}"

    return Guard(dim, refuse)


def bucket_of(*names: str) -> Callable[[str, Mapping[str, int]], dict[str, int]]:
    """The `bucket` of a policy where the call's dims of these names decide which variant is best."""
    return lambda form, dims: {name: dims[name] for name in names}


@dataclass(frozen=True)
class Policy:
    """How a program is used: which of its variants are generated, how they rank, and how a launch is planned.

    Attributes:
        bucket: (form, call dims) -> the sizes that decide which variant is best. They name tuned entries;
            rounded up to powers of two they are the dims that the cost model assumes.
        resized: (call dims, sizes of a bucket) -> the dims of a similar call of these sizes, derived dims
            included.
        counts: (knobs, schedule, dims) -> what the first CTA moves and computes, for operations where the
            data decide or the leaves do not say it. By default it is counted from the text (`tile.counting`).
        overhead: (knobs, dims, GPU) -> microseconds that a CTA spends beside what its body's counts show.
        launch: (knobs, call dims, GPU) -> the launch plan. If the call fixes `splits`, they are among its
            dims.
        useful: (knobs, arch, sweep level) -> bool; False drops a combination from the sweep without calling
            it a violation.
        unfit: DSL -> knobs with which its kernels spill; it goes without those that have them.
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
    unfit: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)


# A body is called with a recorder; a role's body also with the State that the start returns.
Body = Callable[..., Any]
# The name, among those of the roles, of the body that every thread runs first.
START = "start"
