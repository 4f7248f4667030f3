"""The kinds of transfer: a class for each way in which the slots of a pipeline are filled and read.

A class contains what its kind requires of a schedule, its part of the barrier plan, its meaning in the
interpreter and its names. In each pipeline the producer goes acquire -> fill -> commit, and each reader wait
-> read -> release:

| fill     | full barrier                                                                      |
|----------|-----------------------------------------------------------------------------------|
| bulk     | one arrival that announces the bytes; the copy engine completes them               |
| peers    | one arrival that announces the bytes; the stores of the other CTAs complete them   |
| grid     | none: the reader polls the words themselves, then its threads meet                 |
| cp_async | one arrival a producer thread, made by the hardware when that thread's copies land |
| threads  | one arrival a thread or warp, after a proxy fence if an async engine reads         |
| tcgen05  | one arrival, by the commit of the MMAs that wrote the buffer                       |
| tmem     | one arrival a thread or warp, after tcgen05.wait::st and the before-fence          |

An asynchronous reader releases a slot only when its operation has finished: wgmma after its wait, tcgen05
through a commit; an arrival right after the issue would be too early.

`Multicast` and `Pair` wrap a kind where the CTAs of a cluster share its slots.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from functools import cache
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from ..dtypes import DTYPES
from ..errors import DeclarationError
from .actions import Action, Actions
from .lang import Engine, Pipeline, Reader, Role, Schedule, Space

if TYPE_CHECKING:
    from .cta import Cta
    from .executor import Executor

Fault = tuple[str, str, str]
"""A fault of a schedule: the subject, what was expected, and what came."""
Excess = tuple[str, str, str, str]
"""A demand that no architecture or launch meets: code, figure, limit and fix."""
Waits = Generator[Any, None, None]


def arrivals(role: Role, per: str) -> int:
    """Arrivals of a role in a phase: of every replica, but not of warps that only donate registers."""
    warps = role.replicas * (role.active or role.warps)
    return {"thread": 32 * warps, "warp": warps, "role": role.replicas}[per]


class Transfer:
    """How slots are filled, as the kind of a pipeline's fill, or read, as the kind of a reader."""

    engine: ClassVar[Engine]
    ASYNC_PROXY = False
    """Whether it accesses shared memory through the asynchronous proxy."""
    TENSOR = False
    """Whether it is tcgen05, whose accesses are ordered with those of other threads only by its fences."""
    PRODUCTS = False
    """Whether it is tensor-core products, which run on after their issue."""
    COMMITS = False
    """Whether a commit arrives by itself, once, when all products issued before it have finished."""
    LETS_GO: ClassVar[Actions] = ()
    """What a reader of this kind does before the arrival that gives a slot back."""
    LAST_READ: ClassVar[Actions] = ()
    """What a reader does after its reads where nothing is given back."""
    COPIES = False
    """Whether it copies from global memory ahead of use, in pieces of 16 bytes."""
    ANNOUNCES = False
    """Whether the producer announces how many bytes it copies."""
    WORDS = False
    """Whether data travel through an operand, as words that are not zero."""
    GIVEN_BACK = True
    """Whether readers give slots back, through an empty barrier or another pipeline."""
    EARLY = False
    """Whether other CTAs may fill a slot before this one has acquired it."""
    USED_AT: ClassVar[tuple[str, ...]] = ("acquire",)
    """The operations at which the cost model counts a use."""
    ACROSS = "within the role"
    """How a drawing calls a pipeline whose producer is its reader."""
    MULTICAST_BY: ClassVar[str | None] = None
    """Who arrives when it fills multicast slots; None: it cannot."""
    PAIRED_WITH: ClassVar[Engine | None] = None
    """The engine of the readers when two CTAs compute products together; None: it cannot."""

    def __init__(self, pipe: Pipeline) -> None:
        self.pipe = pipe

    def kind(self, reader: Reader) -> type[Transfer]:
        """The kind of a reader."""
        return KINDS[reader.engine]

    # ------------------------------------------------------------------ requirements

    def faults(self, schedule: Schedule) -> Iterator[Fault]:
        """What in a schedule does not fit this kind."""
        return iter(())

    def exceeds(self, schedule: Schedule) -> Iterator[Excess]:
        """What this kind needs and no launch of the schedule has."""
        return iter(())

    def operations(self) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
        """The (operation, role) pairs that bodies must say, and those that they may say."""
        wanted = {(kind, self.pipe.producer) for kind in ("acquire", "commit")} | self._by_readers("wait")
        # A slot that is filled once need not be released; if it is, the release waits for loads from tensor
        # memory.
        releases = self._by_readers("release")
        wanted |= releases if self.pipe.rounds == "loop" else set()
        drain = {("drain", self.pipe.producer)}
        return wanted | (drain if self._outlives() else set()), wanted | releases | drain

    def _outlives(self) -> bool:
        """Whether a reader's arrival may come after all threads of its CTA have ended.

        A commit arrives by itself, in other CTAs too, whose shared memory must still exist.
        """
        shared = self.pipe.multicast or self.pipe.pair
        return self.pipe.rounds == "loop" and shared and any(self.kind(r).COMMITS for r in self.pipe.readers)

    def _by_readers(self, kind: str) -> set[tuple[str, str]]:
        return {(kind, reader.role) for reader in self.pipe.readers}

    # ------------------------------------------------------------------ the barrier plan

    def slot_bytes(self, schedule: Schedule) -> int:
        """Size of a slot in bytes."""
        return sum(schedule.buffer(name).stage_bytes for name in self.pipe.buffers)

    def commit(self, schedule: Schedule) -> tuple[Actions, int]:
        """What the producer does after filling a slot, and the full barrier's arrivals (0: there is none)."""
        raise NotImplementedError

    def announced(self, schedule: Schedule) -> int:
        """Bytes for which a phase of the full barrier waits, in addition to its arrivals."""
        return 0

    def acquire(self) -> Actions:
        """What the producer does before it fills a slot that readers have given back."""
        # Other threads read the slot last, through tcgen05: order their reads before our writes.
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
        """What a reader does after its reads where it gives no slot back: its loads must still complete."""
        # Where a commit of another pipeline gives back an accumulator, that commit waits for the loads.
        by_itself = self.pipe.rounds == "once" or not self.pipe.accumulates
        return self.kind(reader).LAST_READ if by_itself else ()

    def given_back(self, schedule: Schedule) -> int:
        """Arrivals at the empty barrier."""
        return sum(
            1 if self.kind(reader).COMMITS else arrivals(schedule.role(reader.role), reader.arrive)
            for reader in self.pipe.readers
        )

    def _returns(self, schedule: Schedule) -> bool:
        """Whether a commit also gives back tensor memory, which the same threads have read or rescaled."""
        return any(other.returned_by == self.pipe.name for other in schedule.pipelines)

    def _arrives(self, schedule: Schedule, *before: Action) -> tuple[Actions, int]:
        """The actions `before`, then an arrival of the producer's threads; and how many arrivals that is."""
        elect = [Action.ELECT] * (self.pipe.fill_arrive == "warp")
        count = arrivals(schedule.role(self.pipe.producer), self.pipe.fill_arrive)
        return (*before, *elect, Action.ARRIVE_FULL), count

    # ------------------------------------------------------------------ the meaning in the interpreter

    def counted_in(self, at: Executor, by: type[Transfer]) -> list[Cta]:
        """The CTAs in which an operation by an engine of kind `by` counts."""
        return [at.cta]

    def freed_in(self, at: Executor) -> list[Cta]:
        """The CTAs whose readers must give a slot back before it is filled again."""
        return [at.cta]

    def cleared_in(self, at: Executor) -> list[Cta]:
        """The CTAs in which a slot's contents are gone once the producer has acquired it."""
        return [at.cta]

    def filled_in(self, at: Executor) -> list[Cta]:
        """The CTAs that must fill their slots before a reader of this CTA may go on."""
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
        """Wait until readers have given back the slot that use `use` would take."""
        pipe = self.pipe
        readers, rings = at.readers(pipe), [cta.rings[pipe.name] for cta in self.freed_in(at)]
        yield at.until(
            f"a free slot of {pipe.name} (use {use})",
            lambda: all(each.released[key] > use - pipe.stages for each in rings for key in readers),
        )

    def committed(self, at: Executor, use: int) -> None:
        """Check what the producer has filled against what it has announced."""

    def waited(self, at: Executor, use: int, of: Any, by: type[Transfer]) -> Waits:
        """Wait for a full slot; `of` is the number of the CTA whose words are awaited."""
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
        """Check that a bulk fill has copied as many bytes as it has announced."""
        ring = at.cta.rings[self.pipe.name]
        if ring.announced.get(use, 0) != ring.received[use]:
            at.fail(
                f"copies {ring.received[use]} bytes into use {use} of {self.pipe.name}, "
                f"which announces {ring.announced[use]}",
                "copy what is announced: a barrier waits for just so many bytes",
            )


class CpAsync(Transfer):
    """16-byte copies by the producer's threads."""

    engine = Engine.CP_ASYNC
    COPIES = True

    def commit(self, schedule: Schedule) -> tuple[Actions, int]:
        return (Action.NOINC_ARRIVE_FULL,), arrivals(schedule.role(self.pipe.producer), "thread")

    def wait(self, reader: Reader) -> Actions:
        # cp.async writes through the generic proxy, and the hardware arrives, so the writer has no point at
        # which it could fence: the reader fences after its wait.
        first, *rest = super().wait(reader)
        return (first, *[Action.FENCE_PROXY] * self.kind(reader).ASYNC_PROXY, *rest)


class Threads(Transfer):
    """Ordinary loads and stores of a role's threads."""

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
                "at least 2: a peer may send the next use while this CTA still reads",
                "give the pipeline two stages",
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
    """Stores by the same role of other CTAs of the grid, through words of an operand."""

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
                "one buffer, filled once through an operand and read by its producer's threads, "
                "who meet at a barrier of theirs",
                f"{', '.join(pipe.buffers)}, rounds {pipe.rounds!r}, "
                f"through {pipe.through!r}, meets {pipe.meets!r}",
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
                    "GRID_WORDS", f"{name} carries {buffer.stage_elements} of {buffer.dtype}",
                    "32-bit words in fours", "pad the buffer, or pack its values into words",
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
    """Wraps a kind where every CTA of the cluster fills the slots of all CTAs.

    The empty barrier of each CTA counts the readers of all CTAs, and every reader arrives at all those
    barriers. Where the threads of each CTA write a share of a slot, they announce as they arrive the bytes of
    the other CTAs' shares.
    """

    EARLY = True
    INSTEAD: ClassVar[Mapping[Action, Action | None]] = {
        Action.ARRIVE_FULL: Action.EXPECT_TX_WARP,
        # The threads have fenced before they sent their share.
        Action.FENCE_PROXY: None,
        Action.ARRIVE_EMPTY: Action.ARRIVE_EMPTY_CLUSTER,
        Action.COMMIT_EMPTY: Action.COMMIT_EMPTY_CLUSTER,
    }

    def faults(self, schedule: Schedule) -> Iterator[Fault]:
        yield from super().faults(schedule)
        alone = schedule.cluster_ctas == 1 or not schedule.group
        if self.pipe.fill_arrive != self.MULTICAST_BY or alone:
            yield (
                f"pipeline {self.pipe.name}",
                "multicast with bulk copies, or by threads of which a warp arrives, "
                "in a cluster whose grid axes are the group",
                f"fill {self.engine.value} by {self.pipe.fill_arrive}, cluster {schedule.cluster}, "
                f"group {schedule.group}",
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
        """Nothing to check: the CTAs of the cluster fill together what each announces."""

    def waited(self, at: Executor, use: int, of: Any, by: type[Transfer]) -> Waits:
        ring = at.cta.rings[self.pipe.name]
        return self._arrived(at, use, self._sent(at.schedule), lambda: ring.committed > use)


class Pair(Transfer):
    """Wraps a kind where two CTAs compute products together.

    The first CTA's full barrier awaits the bytes, or the arrivals, of both CTAs. Commits arrive in both CTAs.
    Readers of an accumulator arrive at the first CTA's empty barrier, which counts the readers of both.
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
        # Slots that products of two CTAs fill or read are full, or free, in both CTAs.
        return at.members if by.COMMITS else super().counted_in(at, by)

    def freed_in(self, at: Executor) -> list[Cta]:
        return at.members if self.COMMITS else super().freed_in(at)

    def cleared_in(self, at: Executor) -> list[Cta]:
        return self.freed_in(at)

    def filled_in(self, at: Executor) -> list[Cta]:
        return super().filled_in(at) if self.COMMITS else at.members


def _instead(table: Mapping[Action, Action | None], actions: Actions) -> Actions:
    return tuple(new for action in actions if (new := table.get(action, action)) is not None)


KINDS: dict[Engine, type[Transfer]] = {
    kind.engine: kind for kind in (Bulk, CpAsync, Threads, Wgmma, Tcgen05, TensorMemory, Peers, Grid)
}


@cache
def transfer_of(pipe: Pipeline) -> Transfer:
    """The transfer that fills a pipeline's slots, wrapped where CTAs share them."""
    kind = KINDS[pipe.fill]
    wrappers = [*[Multicast] * pipe.multicast, *[Pair] * pipe.pair]
    return type(kind.__name__, (*wrappers, kind), {})(pipe) if wrappers else kind(pipe)
