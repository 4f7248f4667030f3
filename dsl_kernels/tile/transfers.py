"""The kinds of transfer: how slots of a pipeline are filled and read, a class each.

A class owns what its kind asks of a schedule, its part of the barrier plan, its meaning in the interpreter and its names.
For each pipeline the producer goes acquire -> fill -> commit and each reader wait -> read -> release:

| fill     | full barrier                                                                      |
|----------|-----------------------------------------------------------------------------------|
| bulk     | one arrival that announces the bytes; the copy engine completes them               |
| peers    | one arrival that announces the bytes; the stores of the other CTAs complete them   |
| grid     | none: the reader looks at the words themselves, then its threads meet              |
| cp_async | one arrival a producer thread, made by the hardware when that thread's copies land |
| threads  | one arrival a thread or warp, after a proxy fence if an async engine reads         |
| tcgen05  | one arrival, by the commit of the MMAs that wrote the buffer                       |
| tmem     | one arrival a thread or warp, after tcgen05.wait::st and the before-fence          |

A reader that is itself asynchronous lets a slot go only when its operation has finished: wgmma after its wait,
tcgen05 through a commit, never by an arrive that merely follows the issue.

`Multicast` and `Pair` wrap a kind where the CTAs of a cluster share its slots.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from enum import Enum
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from ..dtypes import DTYPES
from ..errors import DeclarationError
from .lang import Engine, Pipeline, Reader, Role, Schedule, Space

if TYPE_CHECKING:
    from .cta import Cta
    from .executor import Executor

Fault = tuple[str, str, str]
"""What is at fault, what was expected, what came."""
Excess = tuple[str, str, str, str]
"""What an architecture or a launch does not have: code, figure, limit and fix."""
Waits = Generator[Any, None, None]


class Action(str, Enum):
    """One synchronisation action, in the order in which a role performs it: its macro, and its name in words."""

    words: str

    def __new__(cls, macro: str, words: str) -> Action:
        found = str.__new__(cls, macro)
        found._value_, found.words = macro, words
        return found

    WAIT_EMPTY = "wait_empty", "wait empty"
    EXPECT_TX = "arrive_expect_tx", "arrive + expect bytes"
    NOINC_ARRIVE_FULL = "cp_async_arrive_noinc", "hardware arrives per thread"
    ARRIVE_FULL = "arrive_full", "arrive full"
    COMMIT_FULL = "commit_full", "commit -> full"
    WAIT_FULL = "wait_full", "wait full"
    WAIT_WORDS = "wait_words", "look for words, leave zeros, meet"
    ARRIVE_EMPTY = "arrive_empty", "arrive empty"
    COMMIT_EMPTY = "commit_empty", "commit -> empty"
    ARRIVE_EMPTY_CLUSTER = "arrive_empty_cluster", "arrive empty in every CTA"
    COMMIT_EMPTY_CLUSTER = "commit_empty_cluster", "commit -> empty in every CTA"
    EXPECT_TX_WARP = "arrive_expect_tx_warp", "arrive + expect a part of the bytes of other CTAs"
    EXPECT_TX_PAIR = "arrive_expect_tx_pair", "the first CTA arrives + expects the bytes of both"
    ARRIVE_FULL_PAIR = "arrive_full_pair", "arrive full in the first CTA"
    COMMIT_FULL_PAIR = "commit_full_pair", "commit -> full in both CTAs"
    COMMIT_EMPTY_PAIR = "commit_empty_pair", "commit -> empty in both CTAs"
    ARRIVE_EMPTY_PAIR = "arrive_empty_pair", "arrive empty in the first CTA"
    FENCE_PROXY = "fence_proxy_async", "fence.proxy.async"
    FENCE_BEFORE = "tcgen05_fence_before", "fence before"
    FENCE_AFTER = "tcgen05_fence_after", "fence after"
    WAIT_TMEM_LOAD = "tmem_wait_load", "wait::ld"
    WAIT_TMEM_STORE = "tmem_wait_store", "wait::st"
    WAIT_WGMMA = "wgmma_wait", "wgmma wait"
    ELECT = "one_lane_a_warp", "one lane a warp"


Actions = tuple[Action, ...]


def arrivals(role: Role, per: str) -> int:
    """Arrivals of a phase: every replica of a role works on every slot, the warps that only lend registers on none."""
    warps = role.replicas * (role.active or role.warps)
    return {"thread": 32 * warps, "warp": warps, "role": role.replicas}[per]


class Transfer:
    """How the slots of one pipeline are filled, of the kind that this class is; as a reader's kind, how they are read."""

    engine: ClassVar[Engine]
    ASYNC_PROXY = False
    """Whether it reaches shared memory through the asynchronous proxy."""
    TENSOR = False
    """Whether it reads or writes by tcgen05, whose accesses by other threads are ordered by fences."""
    PRODUCTS = False
    """Whether it is of tensor-core products, which go on after their issue."""
    COMMITS = False
    """Whether a commit tells by itself when all products issued before it are done, with one arrival."""
    LETS_GO: ClassVar[Actions] = ()
    """What a reader of this kind does before it arrives to give a slot back."""
    LAST_READ: ClassVar[Actions] = ()
    """What one does after its reads where nothing is given back."""
    COPIES = False
    """Whether it copies from global memory ahead of use, in pieces of 16 bytes."""
    ANNOUNCES = False
    """Whether the producer announces how many bytes it copies."""
    WORDS = False
    """Whether what is sent lies in an operand, as words that are not zero."""
    GIVEN_BACK = True
    """Whether readers give slots back, through an empty barrier or another pipeline."""
    EARLY = False
    """Whether other CTAs may fill a slot before this one is ready."""
    USED_AT: ClassVar[tuple[str, ...]] = ("acquire",)
    """The operations at which a use is counted."""
    ACROSS = "within the role"
    """Where it goes on if its producer is its reader."""
    MULTICAST_BY: ClassVar[str | None] = None
    """Who arrives where it fills multicast slots; None: it cannot."""
    PAIRED_WITH: ClassVar[Engine | None] = None
    """The kind of the readers where two CTAs share out products; None: it cannot."""

    def __init__(self, pipe: Pipeline) -> None:
        self.pipe = pipe

    def kind(self, reader: Reader) -> type[Transfer]:
        """How a reader reads."""
        return KINDS[reader.engine]

    # ------------------------------------------------------------------ what it asks for

    def faults(self, schedule: Schedule) -> Iterator[Fault]:
        """What of a schedule does not fit it."""
        return iter(())

    def exceeds(self, schedule: Schedule) -> Iterator[Excess]:
        """What it needs and no launch of the schedule has."""
        return iter(())

    def operations(self) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
        """The operations of the pipeline, with their roles, that bodies have to say, and those that they may say."""
        wanted = {(kind, self.pipe.producer) for kind in ("acquire", "commit")} | self._by_readers("wait")
        # Of a slot that is filled once, a release waits for loads from tensor memory.
        releases = self._by_readers("release")
        wanted |= releases if self.pipe.rounds == "loop" else set()
        drain = {("drain", self.pipe.producer)}
        return wanted | (drain if self._outlives() else set()), wanted | releases | drain

    def _outlives(self) -> bool:
        """Whether a reader's arrival may come after all of its threads have ended.

        A commit arrives by itself, in other CTAs too: their shared memory must still be there.
        """
        shared = self.pipe.multicast or self.pipe.pair
        return self.pipe.rounds == "loop" and shared and any(self.kind(r).COMMITS for r in self.pipe.readers)

    def _by_readers(self, kind: str) -> set[tuple[str, str]]:
        return {(kind, reader.role) for reader in self.pipe.readers}

    # ------------------------------------------------------------------ the barrier plan

    def slot_bytes(self, schedule: Schedule) -> int:
        """Bytes of a slot."""
        return sum(schedule.buffer(name).stage_bytes for name in self.pipe.buffers)

    def commit(self, schedule: Schedule) -> tuple[Actions, int]:
        """What the producer does when it has filled a slot, and the arrivals at its full barrier; none: it has none."""
        raise NotImplementedError

    def announced(self, schedule: Schedule) -> int:
        """Bytes that a phase of the full barrier waits for beside its arrivals."""
        return 0

    def acquire(self) -> Actions:
        """What the producer does before it fills a slot that readers have given back."""
        # The slot was last read through tcgen05 by other threads: order their reads before our writes.
        return (Action.WAIT_EMPTY, *[Action.FENCE_AFTER] * self.TENSOR)

    def wait(self, reader: Reader) -> Actions:
        """What a reader does before it reads a slot."""
        return (Action.WAIT_FULL, *[Action.FENCE_AFTER] * (self.TENSOR or self.kind(reader).TENSOR))

    def release(self, reader: Reader) -> Actions:
        """What a reader does when it gives a slot back."""
        by = self.kind(reader)
        if by.COMMITS:
            return (Action.COMMIT_EMPTY,)
        return (*by.LETS_GO, *[Action.ELECT] * (reader.arrive == "warp"), Action.ARRIVE_EMPTY)

    def last_read(self, reader: Reader) -> Actions:
        """What a reader does where it gives no slot back: what was read has arrived all the same."""
        # Where a commit of another pipeline gives the slot back, that one waits for accumulators, which it follows.
        by_itself = self.pipe.rounds == "once" or not self.pipe.accumulates
        return self.kind(reader).LAST_READ if by_itself else ()

    def given_back(self, schedule: Schedule) -> int:
        """Arrivals at the empty barrier."""
        return sum(
            1 if self.kind(reader).COMMITS else arrivals(schedule.role(reader.role), reader.arrive)
            for reader in self.pipe.readers
        )

    def _returns(self, schedule: Schedule) -> bool:
        """Whether a commit also gives back tensor memory that the same threads have read and rescaled."""
        return any(other.returned_by == self.pipe.name for other in schedule.pipelines)

    def _arrives(self, schedule: Schedule, *before: Action) -> tuple[Actions, int]:
        """An arrival of the producer's threads after other actions."""
        elect = [Action.ELECT] * (self.pipe.fill_arrive == "warp")
        count = arrivals(schedule.role(self.pipe.producer), self.pipe.fill_arrive)
        return (*before, *elect, Action.ARRIVE_FULL), count

    # ------------------------------------------------------------------ the meaning in the interpreter

    def counted_in(self, at: Executor, by: type[Transfer]) -> list[Cta]:
        """The CTAs in which an operation by a kind counts."""
        return [at.cta]

    def freed_in(self, at: Executor) -> list[Cta]:
        """The CTAs whose readers have to give a slot back before it is filled again."""
        return [at.cta]

    def cleared_in(self, at: Executor) -> list[Cta]:
        """The CTAs in which a slot holds nothing any more when the producer has it."""
        return [at.cta]

    def filled_in(self, at: Executor) -> list[Cta]:
        """The CTAs that have to fill their slots before a reader has its own."""
        return [at.cta]

    def acquired(self, at: Executor, use: int, announced: Any) -> Waits:
        """Wait for a free slot."""
        pipe, ring = self.pipe, at.cta.rings[self.pipe.name]
        ring.acquired += 1
        if use - ring.committed >= pipe.stages:
            at.fail(
                f"acquires use {use} of {pipe.name} with {use - ring.committed} uses uncommitted",
                "commit a slot before acquiring past the ring",
            )
        yield from self.drained(at, use)
        if not pipe.accumulates and not (self.EARLY and ring.received[use]):
            for cta, buffer in product(self.cleared_in(at), pipe.buffers):
                cta.clear(buffer, use)
        if self.ANNOUNCES:
            ring.announced[use] = self.slot_bytes(at.schedule) if announced is None else announced

    def drained(self, at: Executor, use: int) -> Waits:
        """Wait until readers have given back what use `use` would take."""
        pipe = self.pipe
        readers, rings = at.readers(pipe), [cta.rings[pipe.name] for cta in self.freed_in(at)]
        yield at.until(
            f"a free slot of {pipe.name} (use {use})",
            lambda: all(each.released[key] > use - pipe.stages for each in rings for key in readers),
        )

    def committed(self, at: Executor, use: int) -> None:
        """Hold what a producer has filled to what it has said."""

    def waited(self, at: Executor, use: int, of: Any, by: type[Transfer]) -> Waits:
        """Wait for a filled slot; `of` numbers the CTA whose words are asked for."""
        name = self.pipe.name
        for cta in self.counted_in(at, by):
            cta.rings[name].waited[at.key] += 1
        sources = self.filled_in(at)
        yield at.until(
            f"slot {use} of {name} to be filled by {self.pipe.producer}",
            lambda: all(cta.rings[name].committed > use for cta in sources),
        )

    def _arrived(self, at: Executor, use: int, bytes: int, ready: Callable[[], bool]) -> Waits:
        """Wait for bytes that the CTAs of the cluster send."""
        ring = at.cta.rings[self.pipe.name]
        ring.waited[at.key] += 1
        yield at.until(
            f"use {use} of {self.pipe.name} from the other CTAs",
            lambda: ring.received[use] >= bytes and ready(),
        )


class Bulk(Transfer):
    """Copies by the copy engine."""

    engine = Engine.BULK
    ASYNC_PROXY = COPIES = ANNOUNCES = True
    MULTICAST_BY, PAIRED_WITH = "thread", Engine.TCGEN05

    def commit(self, schedule: Schedule) -> tuple[Actions, int]:
        return (Action.EXPECT_TX,), 1

    def announced(self, schedule: Schedule) -> int:
        return self.slot_bytes(schedule)

    def committed(self, at: Executor, use: int) -> None:
        """A bulk fill copies what it announces."""
        ring = at.cta.rings[self.pipe.name]
        if ring.announced.get(use, 0) != ring.received[use]:
            at.fail(
                f"copies {ring.received[use]} bytes into use {use} of {self.pipe.name}, which announces {ring.announced[use]}",
                "copy what is announced: a barrier waits for just so many bytes",
            )


class CpAsync(Transfer):
    """Copies of 16 bytes by the producer's threads."""

    engine = Engine.CP_ASYNC
    COPIES = True

    def commit(self, schedule: Schedule) -> tuple[Actions, int]:
        return (Action.NOINC_ARRIVE_FULL,), arrivals(schedule.role(self.pipe.producer), "thread")

    def wait(self, reader: Reader) -> Actions:
        # cp.async writes through the generic proxy and its arrival is made by hardware, so the writer has no
        # point at which to fence; the reader fences after it has observed the barrier.
        first, *rest = super().wait(reader)
        return (first, *[Action.FENCE_PROXY] * self.kind(reader).ASYNC_PROXY, *rest)


class Threads(Transfer):
    """Loads and stores of a role's threads."""

    engine = Engine.THREADS
    MULTICAST_BY, PAIRED_WITH = "warp", Engine.TCGEN05

    def commit(self, schedule: Schedule) -> tuple[Actions, int]:
        tensor = any(schedule.buffer(name).space is Space.TENSOR for name in self.pipe.buffers)
        fenced = any(self.kind(reader).ASYNC_PROXY for reader in self.pipe.readers) and not tensor
        returned = (Action.WAIT_TMEM_LOAD, Action.WAIT_TMEM_STORE, Action.FENCE_BEFORE)
        return self._arrives(
            schedule, *[Action.FENCE_PROXY] * fenced, *(returned if self._returns(schedule) else ())
        )


class Wgmma(Transfer):
    """Hopper's products, which read shared memory and accumulate in registers."""

    engine = Engine.WGMMA
    ASYNC_PROXY = PRODUCTS = True
    LETS_GO = (Action.WAIT_WGMMA,)

    def commit(self, schedule: Schedule) -> tuple[Actions, int]:
        raise DeclarationError(
            f"pipeline {self.pipe.name}",
            expected="a fill engine that writes shared or tensor memory",
            got=self.engine.value,
            fix="wgmma accumulates in registers: hand its result over with fill=Engine.THREADS",
        )


class Tcgen05(Transfer):
    """Blackwell's products, which accumulate in tensor memory."""

    engine = Engine.TCGEN05
    ASYNC_PROXY = PRODUCTS = COMMITS = TENSOR = True
    PAIRED_WITH = Engine.TMEM

    def commit(self, schedule: Schedule) -> tuple[Actions, int]:
        return (Action.COMMIT_FULL,), 1


class TensorMemory(Transfer):
    """Loads from and stores to tensor memory by a role's threads."""

    engine = Engine.TMEM
    TENSOR = True
    PAIRED_WITH = Engine.TCGEN05
    LETS_GO = (Action.WAIT_TMEM_LOAD, Action.FENCE_BEFORE)
    LAST_READ = (Action.WAIT_TMEM_LOAD,)

    def commit(self, schedule: Schedule) -> tuple[Actions, int]:
        returned = [Action.WAIT_TMEM_LOAD] * self._returns(schedule)
        return self._arrives(schedule, *returned, Action.WAIT_TMEM_STORE, Action.FENCE_BEFORE)


class Peers(Transfer):
    """Stores by the same role of other CTAs of the cluster."""

    engine = Engine.PEERS
    GIVEN_BACK = False
    USED_AT = ("acquire", "commit")
    ACROSS = "between CTAs"

    def exceeds(self, schedule: Schedule) -> Iterator[Excess]:
        name = self.pipe.name
        if schedule.cluster_ctas == 1:
            yield "PEERS", f"{name} is filled by other CTAs", "a cluster", "declare the cluster's size"
        if self.pipe.rounds == "loop" and self.pipe.stages < 2:
            yield (
                "PEER_STAGES", f"{name} has {self.pipe.stages} slot",
                "at least 2: a peer may send the next use while this CTA still reads", "give the pipeline two stages",
            )  # fmt: skip

    def operations(self) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
        wanted = {("commit", self.pipe.producer)} | self._by_readers("wait")
        return wanted, wanted | {("acquire", self.pipe.producer)} | self._by_readers("release")

    def commit(self, schedule: Schedule) -> tuple[Actions, int]:
        return (Action.EXPECT_TX,), 1

    def announced(self, schedule: Schedule) -> int:
        return self.slot_bytes(schedule)

    def waited(self, at: Executor, use: int, of: Any, by: type[Transfer]) -> Waits:
        return self._arrived(at, use, self.slot_bytes(at.schedule), lambda: True)


class Grid(Transfer):
    """Stores by the same role of other CTAs of the grid, as words of an operand."""

    engine = Engine.GRID
    WORDS = True
    ACROSS = "between CTAs"

    def faults(self, schedule: Schedule) -> Iterator[Fault]:
        pipe = self.pipe
        if (
            len(pipe.buffers) != 1
            or [(r.role, r.engine) for r in pipe.readers] != [(pipe.producer, Engine.THREADS)]
            or (pipe.rounds, schedule.named_barriers.get(pipe.meets)) != ("once", (pipe.producer,))
            or not pipe.through
        ):
            yield (
                f"pipeline {pipe.name}",
                "one buffer, filled once through an operand and read by its producer's threads, who meet at a barrier of theirs",
                f"{', '.join(pipe.buffers)}, rounds {pipe.rounds!r}, through {pipe.through!r}, meets {pipe.meets!r}",
            )

    def exceeds(self, schedule: Schedule) -> Iterator[Excess]:
        name = self.pipe.name
        if not schedule.may_wait:
            yield (
                "GRID_RESIDENCY", f"{name} filled by other CTAs of the grid", "a grid that runs at once",
                "say in `resident` when CTAs wait for others: the launch then takes all of them, or none",
            )  # fmt: skip
        for buffer in map(schedule.buffer, self.pipe.buffers[:1]):
            if buffer.stage_elements % 4 or DTYPES[buffer.dtype].bytes != 4:
                yield (
                    "GRID_WORDS", f"{name} carries {buffer.stage_elements} of {buffer.dtype}", "32-bit words in fours",
                    "pad the buffer, or pack its values into words",
                )  # fmt: skip

    def operations(self) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
        wanted = self._by_readers("wait")
        return wanted, wanted | self._by_readers("release")

    def commit(self, schedule: Schedule) -> tuple[Actions, int]:
        return (), 0

    def wait(self, reader: Reader) -> Actions:
        return (Action.WAIT_WORDS,)

    def waited(self, at: Executor, use: int, of: Any, by: type[Transfer]) -> Waits:
        ring = at.cta.rings[self.pipe.name]
        ring.committed += 1
        ring.waited[at.key] += 1
        words = at.words(self.pipe, of)
        yield at.until(f"the words of {self.pipe.name} from other CTAs", lambda: bool(words.all()))
        at.cta.take(self.pipe.buffers[0], words)
        yield from at.meet(self.pipe.meets)


class Multicast(Transfer):
    """Wraps a kind where every CTA of the cluster fills the slots of all.

    The empty barrier of each CTA counts the readers of all of them, and every reader arrives at all of those barriers.
    Threads that write a share of each slot announce, as they arrive, the bytes that the other CTAs send of theirs.
    """

    EARLY = True
    INSTEAD: ClassVar[Mapping[Action, Action | None]] = {
        Action.ARRIVE_FULL: Action.EXPECT_TX_WARP,
        # What threads share they have fenced to send it.
        Action.FENCE_PROXY: None,
        Action.ARRIVE_EMPTY: Action.ARRIVE_EMPTY_CLUSTER,
        Action.COMMIT_EMPTY: Action.COMMIT_EMPTY_CLUSTER,
    }

    def faults(self, schedule: Schedule) -> Iterator[Fault]:
        yield from super().faults(schedule)
        # A warp that arrives announces what the other CTAs send in its place.
        alone = schedule.cluster_ctas == 1 or not schedule.group
        if self.pipe.fill_arrive != self.MULTICAST_BY or alone:
            yield (
                f"pipeline {self.pipe.name}",
                "multicast with bulk copies, or by threads of which a warp arrives, in a cluster whose grid axes are the group",
                f"fill {self.engine.value} by {self.pipe.fill_arrive}, cluster {schedule.cluster}, group {schedule.group}",
            )

    def commit(self, schedule: Schedule) -> tuple[Actions, int]:
        actions, count = super().commit(schedule)
        return _instead(Multicast.INSTEAD, actions), count

    def announced(self, schedule: Schedule) -> int:
        return super().announced(schedule) or self._sent(schedule)

    def release(self, reader: Reader) -> Actions:
        return _instead(Multicast.INSTEAD, super().release(reader))

    def given_back(self, schedule: Schedule) -> int:
        return super().given_back(schedule) * schedule.cluster_ctas

    def _sent(self, schedule: Schedule) -> int:
        """Bytes of a slot that are sent: all that are copied, but not the share of this CTA's own threads."""
        whole = self.slot_bytes(schedule)
        return whole if self.COPIES else whole - whole // schedule.cluster_ctas

    def freed_in(self, at: Executor) -> list[Cta]:
        return at.members

    def committed(self, at: Executor, use: int) -> None:
        """What a CTA announces, those of the cluster fill together."""

    def waited(self, at: Executor, use: int, of: Any, by: type[Transfer]) -> Waits:
        ring = at.cta.rings[self.pipe.name]
        return self._arrived(at, use, self._sent(at.schedule), lambda: ring.committed > use)


class Pair(Transfer):
    """Wraps a kind where two CTAs share out products.

    The full barrier of the first announces the bytes of both or counts the threads of both, commits arrive in both, and
    readers of an accumulator arrive at the first CTA's empty barrier, which counts those of both.
    """

    INSTEAD: ClassVar[Mapping[Action, Action | None]] = {
        Action.EXPECT_TX: Action.EXPECT_TX_PAIR,
        Action.ARRIVE_FULL: Action.ARRIVE_FULL_PAIR,
        Action.COMMIT_FULL: Action.COMMIT_FULL_PAIR,
        Action.ARRIVE_EMPTY: Action.ARRIVE_EMPTY_PAIR,
        Action.COMMIT_EMPTY: Action.COMMIT_EMPTY_PAIR,
    }

    def faults(self, schedule: Schedule) -> Iterator[Fault]:
        yield from super().faults(schedule)
        engines = {reader.engine for reader in self.pipe.readers}
        if engines != {self.PAIRED_WITH}:
            yield (
                f"pipeline {self.pipe.name}",
                "pair between bulk copies or threads and tcgen05, or tcgen05 and readers of tensor memory",
                f"{self.engine.value} to {', '.join(sorted(engine.value for engine in engines))}",
            )

    def commit(self, schedule: Schedule) -> tuple[Actions, int]:
        actions, count = super().commit(schedule)
        each = schedule.cluster_ctas if Action.ARRIVE_FULL in actions else 1
        return _instead(Pair.INSTEAD, actions), count * each

    def announced(self, schedule: Schedule) -> int:
        return 2 * super().announced(schedule)

    def release(self, reader: Reader) -> Actions:
        return _instead(Pair.INSTEAD, super().release(reader))

    def given_back(self, schedule: Schedule) -> int:
        return super().given_back(schedule) * (schedule.cluster_ctas if self.COMMITS else 1)

    def counted_in(self, at: Executor, by: type[Transfer]) -> list[Cta]:
        # What the products of a pair fill or read is full, or free, in both CTAs.
        return at.members if by.COMMITS else super().counted_in(at, by)

    def freed_in(self, at: Executor) -> list[Cta]:
        return at.members if self.COMMITS else super().freed_in(at)

    def cleared_in(self, at: Executor) -> list[Cta]:
        return self.freed_in(at)

    def filled_in(self, at: Executor) -> list[Cta]:
        return super().filled_in(at) if self.COMMITS else at.members


def _instead(table: Mapping[Action, Action | None], actions: Actions) -> Actions:
    return tuple(found for action in actions if (found := table.get(action, action)) is not None)


KINDS: dict[Engine, type[Transfer]] = {
    kind.engine: kind for kind in (Bulk, CpAsync, Threads, Wgmma, Tcgen05, TensorMemory, Peers, Grid)
}


@cache
def transfer_of(pipe: Pipeline) -> Transfer:
    """How a pipeline's slots are filled, wrapped where CTAs share them."""
    kind = KINDS[pipe.fill]
    wrappers = [*[Multicast] * pipe.multicast, *[Pair] * pipe.pair]
    return type(kind.__name__, (*wrappers, kind), {})(pipe) if wrappers else kind(pipe)
