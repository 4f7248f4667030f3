"""Probes: a text that counts where the time of each warp goes, by region, beside what it computes.

A region is an operation of a pipeline, a barrier, a group of products, a wait for them, a copy or a call of a leaf, under the
name of what it is (`wait kv`, `multiply qk`, `online_softmax`); `m.region(name)` makes one of all that is said in it.
Neighbours of one name are one region, and so is what a role says of that name anywhere. `probed` writes a mark behind
each: it counts the cycles since the mark before to that region, so every cycle of a warp is counted once. What lies
between two regions, and has no mark of its own, belongs to the one before; the head of a loop to the first in it.

A warp keeps its sums in its lanes' registers, lane i those of region i, and the clock when the kernel began in the last
lane. It stores them once, when its role ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .._discover import later
from ..device.torch import probes as leaf
from ..errors import DeclarationError
from ..problems.base import OperandSpec
from . import text as t
from .lang import COARSE, SUMS, TRACE, Role, Schedule, Size

if TYPE_CHECKING:
    import torch
else:
    torch = later("torch", globals())

WORKSPACE = OperandSpec(
    "probe", ("probe_words",), "int32", "workspace", doc="what probes count, for each warp", align=8
)
HEADER = 8
"""Words of a warp before its sums: its clock when the kernel began and when its last region ended, its SM. Before a trace's
ring: its clock when the kernel began, its SM, the global timer and the clock at one time when the role began; where the ring
begins, the place of the next mark, and the global timer and the clock when the role ended."""
RING = 512
"""Marks that a warp's trace holds, a power of two: a word each. The ring lies at a multiple of its size, somewhere in twice that."""
AHEAD = 31
"""Marks that are noted at one place, one behind the other: at the end of the ring they lie behind it."""
REGIONS = 64
"""A mark is the clock times this, and the region's number: it holds the low 26 bits of the clock."""
EMPTY = -1
"""The last word of a ring that never was full, and what lies behind it."""
BEGIN = "start"
"""The region of what every thread does first."""
WAITS = ("wait ", "acquire ", "drain ", "meet ", "take ")
"""What the name of a region begins with that waits for another role."""
WORK = "work"
"""The region of all that does not, where probes are coarse."""
TRACE_WORDS = Size(HEADER + 2 * RING + AHEAD, "PROBE_WORDS")
LANES = 32
_TIMES = (2, 3, 6, 7)
_REGION_BITS = REGIONS.bit_length() - 1
_THEN, _SPENT, _PLACE = "probe_then", "probe_spent", "probe_place"


@dataclass(frozen=True)
class Probed:
    """A text with its marks.

    Attributes:
        regions: of each role, in the order of their numbers.
        mode: SUMS, TRACE or COARSE.
    """

    text: t.Text
    schedule: Schedule
    regions: Mapping[str, tuple[str, ...]]
    mode: int

    @property
    def words(self) -> int:
        """Words of a warp in the workspace."""
        return words_of(self.regions, self.mode)

    def ctas(self, dims: Mapping[str, int]) -> int:
        """CTAs of a launch."""
        return math.prod(t.size_at(extent, dims) for extent in self.schedule.grid)

    def dims(self, dims: Mapping[str, int]) -> dict[str, int]:
        """The extent of the workspace in a launch of these `dims`: [CTAs, warps, words] lie one behind the other."""
        (extent,) = WORKSPACE.shape
        return {str(extent): self.ctas(dims) * (int(self.schedule.threads) // 32) * self.words}

    def read(self, workspace: torch.Tensor, role: str) -> Spent:
        """The sums that a launch left in its workspace for one role."""
        words = self._words(workspace)[:, self.warps(role)]
        held = unsigned(words)
        # Two readings of a clock may change places: a region of a few cycles can come out below 0.
        sums = words[..., HEADER : HEADER + len(self.regions[role])].long()
        return Spent(held[..., 0], held[..., 1], sums, held[:, 0, 2])

    def times(self, workspace: torch.Tensor, role: str) -> torch.Tensor:
        """The global timer in ns and the clock when each warp's role began, and when it ended: of a trace, [warps, 4]."""
        return unsigned(self._words(workspace)[:, self.warps(role)][..., _TIMES]).flatten(0, 1)

    def trace(self, workspace: torch.Tensor, role: str, ctas: Iterable[int]) -> list[WarpTrace]:
        """What the rings of a role's warps hold, for some CTAs."""
        every = self._words(workspace)
        found = []
        names = self.regions[role]
        for cta, warp in ((cta, warp) for cta in ctas for warp in self.warps(role)):
            zero, words = int(unsigned(every[cta, 0, 0])), every[cta, warp].tolist()
            first, after = words[4:6]
            full = words[first + RING - 1] != EMPTY
            began, sm, *_ = header = unsigned(every[cta, warp, :HEADER]).tolist()
            times = tuple(header[i] for i in _TIMES)
            ring = words[first : first + RING]
            for at, mark in enumerate(words[first + RING :][:AHEAD]):
                # Of two marks of one place, the later one.
                if mark != EMPTY and _age(times[-1], mark) < _age(times[-1], ring[at]):
                    ring[at] = mark
            marks = (ring[after - first :] if full else []) + ring[: after - first]
            # A mark's clock wraps more often than that of the end of the role: from there backwards.
            ends = [times[-1]]
            for mark in reversed(marks):
                ends.append(ends[-1] - _wrapped(ends[-1] - (mark // REGIONS), 32 - _REGION_BITS))
            ends = [_since(zero, end) for end in reversed(ends[1:])]
            begins = [_since(zero, began), *ends]
            passages = [
                Passage(names[mark % REGIONS], begin, end)
                for mark, begin, end in zip(marks, begins, ends, strict=False)
            ][1 if full else 0 :]
            found.append(WarpTrace(cta, warp, sm, began, times, full, tuple(passages)))
        return found

    def _words(self, workspace: torch.Tensor) -> torch.Tensor:
        """[CTAs, warps, words]."""
        return workspace.cpu().view(-1, int(self.schedule.threads) // 32, self.words)

    def warps(self, role: str) -> list[int]:
        """The warps of a CTA that do the work of a role."""
        found = self.schedule.role(role)
        first = int(self.schedule.first_thread(role)) // 32
        active = found.active or found.warps
        return [first + r * found.warps + i for r in range(found.replicas) for i in range(active)]


@dataclass(frozen=True)
class Spent:
    """What the warps of a role spent, in ticks of the clock.

    Attributes:
        began, ended: the clock at the start of the kernel and behind the last region, [CTAs, warps].
        spent: by region, [CTAs, warps, regions].
        sm: where it was, [CTAs].
    """

    began: torch.Tensor
    ended: torch.Tensor
    spent: torch.Tensor
    sm: torch.Tensor

    @property
    def elapsed(self) -> torch.Tensor:
        """From the start of the kernel to the end of the last region, [CTAs, warps]."""
        return unsigned(self.ended - self.began)


@dataclass(frozen=True)
class Passage:
    """One passage of a warp through a region, in ticks since the first warp of its CTA began."""

    region: str
    begin: int
    end: int


@dataclass(frozen=True)
class WarpTrace:
    """What one warp's ring holds.

    Attributes:
        began: its clock when the kernel began.
        times: the global timer, in ns, and the clock at one time when its role began, and when it ended.
        full: the ring had no room for more marks, and maybe lost some, the oldest ones.
        passages: in order; the first one of a full ring is lost, as nothing says when it began.
    """

    cta: int
    warp: int
    sm: int
    began: int
    times: tuple[int, int, int, int]
    full: bool
    passages: tuple[Passage, ...]


def unsigned(words: torch.Tensor) -> torch.Tensor:
    """Differences and readings of a clock that wraps, as numbers of 64 bits."""
    return words.long() & 0xFFFFFFFF


def _since(zero: int, now: int) -> int:
    """Ticks from one reading of a clock that wraps to another, which may be a little earlier."""
    return _wrapped(now - zero, 32)


def _age(now: int, mark: int) -> int:
    """Ticks since a mark, as far as it holds the clock."""
    return (now - mark // REGIONS) % (1 << (32 - _REGION_BITS))


def _wrapped(passed: int, bits: int) -> int:
    """A difference of two readings of so many bits, of either sign."""
    half = 1 << (bits - 1)
    return ((passed + half) & (2 * half - 1)) - half


def words_of(regions: Mapping[str, tuple[str, ...]], mode: int) -> Size:
    """Words of a warp."""
    return TRACE_WORDS if mode == TRACE else Size(HEADER + max(map(len, regions.values())), "PROBE_WORDS")


def probed(text: t.Text, schedule: Schedule, mode: int) -> Probed:
    """The text with marks behind its regions.

    Raises:
        DeclarationError: there is no such mode.
    """
    if mode not in (SUMS, TRACE, COARSE):
        raise DeclarationError(
            "knob probe", expected=f"0, {SUMS} (sums), {TRACE} (trace) or {COARSE} (sums of waits)", got=repr(mode), fix="choose one of them"
        )  # fmt: skip
    markers = {role.name: _Marker(role, int(schedule.threads) // 32, mode) for role in schedule.roles}
    bodies = {name: tuple(marker.block(text.roles[name])) for name, marker in markers.items()}
    regions = {name: tuple(marker.numbers) for name, marker in markers.items()}
    if mode == TRACE and (many := [role for role, names in regions.items() if len(names) >= REGIONS]):
        raise DeclarationError(
            f"regions of {many[0]}", expected=f"fewer than {REGIONS} for a trace", got=str(len(regions[many[0]])),
            fix="make one of several with m.region",
        )  # fmt: skip
    words = words_of(regions, mode)
    kept = [] if mode == TRACE else [_spent(i) for i in range(_registers(regions.values()))]
    start: list[t.Statement] = [t.Variable(name, "int32", 0) for name in (_THEN, *kept)]
    if mode == TRACE:
        start.append(t.Variable(_PLACE, "int64", 0))
    start.append(t.Call(leaf.read_clock, (t.name(_THEN),)))
    roles = {name: (*marker.head(words), *bodies[name], *marker.tail(words)) for name, marker in markers.items()}  # fmt: skip
    return Probed(t.Text((*start, *text.start), roles, text.end), schedule, regions, mode)


def _spent(register: int) -> str:
    return f"{_SPENT}_{register}" if register else _SPENT


def _registers(regions: Iterable[tuple[str, ...]]) -> int:
    """Registers of a thread that hold the sums, and in one lane the clock when the kernel began."""
    return max(-(-(len(names) + 1) // LANES) for names in regions)


class _Marker:
    """Marks of one role."""

    def __init__(self, role: Role, warps: int, mode: int) -> None:
        self._role, self._mode = role.name, mode
        self._place, self._lane = (t.Global(WORKSPACE.name), warps), t.name("lane")
        self.numbers: dict[str, int] = {BEGIN: 0}

    def head(self, words: int) -> Iterator[t.Statement]:
        if self._mode == TRACE:
            ring = (*self._place, words, HEADER, RING, EMPTY, t.name(_PLACE))
            yield t.Call(leaf.enter_ring, (*ring, t.name(_THEN), self._lane))
        else:
            yield t.Call(leaf.begin_sums, (t.name(self._last), t.name(_THEN), self._lane))
        yield from self._placed([self._mark(BEGIN)]) if self._mode == TRACE else [self._mark(BEGIN)]

    def tail(self, words: int) -> Iterator[t.Statement]:
        if self._mode == TRACE:
            yield t.Call(leaf.leave_ring, (*self._place, words, RING, t.name(_PLACE), self._lane))
            return
        *full, last = range(_registers([tuple(self.numbers)]))
        for register in full:
            place = (*self._place, words, HEADER + register * LANES)
            yield t.Call(leaf.keep_sums, (*place, t.name(_spent(register)), self._lane))
        place, left = (*self._place, words, HEADER + last * LANES), len(self.numbers) - last * LANES
        yield t.Call(leaf.end_sums, (*place, left, t.name(self._last), t.name(_THEN), self._lane))

    @property
    def _last(self) -> str:
        """The register whose last lane keeps the clock when the kernel began, in place of a sum."""
        return _spent(_registers([tuple(self.numbers)]) - 1)

    def block(self, statements: Iterable[t.Statement]) -> list[t.Statement]:
        """Statements with a mark where a region ends; none is open at either end, so that all ways into a block agree."""
        found: list[t.Statement] = []
        region: str | None = None
        for s in statements:
            inside = _branches(s) and any(inner.region() for inner in t.walk([s]))
            name = None if inside else s.region()
            if name is not None and self._mode == COARSE and not name.startswith(WAITS):
                name = WORK
            if region is not None and (inside or name not in (None, region)):
                found.append(self._mark(region))
                region = None
            if inside:
                blocks: dict[str, Any] = {field: self.block(inner) for field, inner in s.blocks.items()}
                s = replace(s, **blocks)
            region = name or region
            found.append(s)
        if region is not None:
            found.append(self._mark(region))
        return self._placed(found) if self._mode == TRACE else found

    def _placed(self, statements: Iterable[t.Statement]) -> list[t.Statement]:
        """Marks one behind the other at one place, which moves behind them where the text branches."""
        found: list[t.Statement] = []
        ahead = 0
        for s in statements:
            if ahead == AHEAD or (ahead and _branches(s)):
                found.append(t.Call(leaf.pass_marks, (t.name(_PLACE), RING, ahead)))
                ahead = 0
            if isinstance(s, t.Call) and s.leaf is leaf.note_region:
                s = replace(s, arguments=(s.arguments[0], ahead, *s.arguments[2:]))
                ahead += 1
            found.append(s)
        if ahead:
            found.append(t.Call(leaf.pass_marks, (t.name(_PLACE), RING, ahead)))
        return found

    def _mark(self, region: str) -> t.Statement:
        number = self.numbers.setdefault(region, len(self.numbers))
        spelled = Size(number, f"{self._role}_{region}".upper().translate(_IN_NAMES))
        if self._mode == TRACE:
            return t.Call(leaf.note_region, (t.name(_PLACE), 0, REGIONS, spelled))
        register = t.name(_spent(number // LANES))
        return t.Call(leaf.mark_region, (register, t.name(_THEN), self._lane, spelled))


_IN_NAMES = str.maketrans(dict.fromkeys(" ,.-+", "_"))


def _branches(s: t.Statement) -> bool:
    """Whether the text goes another way from here than to the statement behind this one."""
    return s.APART and bool(s.blocks)
