"""Probes: a text that also measures where the time of each warp goes, by region.

A region is a pipeline operation, a barrier, a group of products, a wait for products, a copy or a call of a
leaf, and has its name (`wait kv`, `multiply qk`, `online_softmax`). `m.region(name)` makes one region of all
that is recorded inside. All regions of one name in a role count as one. `probed` inserts a mark after each
region, which adds the cycles since the previous mark to that region, so every cycle of a warp is counted
once. Statements without a region of their own count to the region before them, and the head of a loop to the
first region inside.

A warp keeps its sums in registers, lane i that of region i, and in the last lane the clock when the kernel
began. It stores them once, when its role ends.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..device.torch import probes as leaf
from ..errors import DeclarationError
from ..problems.base import OperandSpec
from . import text as t
from .lang import COARSE, SUMS, TRACE, Role, Schedule, Size

WORKSPACE = OperandSpec(
    "probe", ("probe_words",), "int32", "workspace", doc="what probes count, for each warp", align=8
)
HEADER = 8
"""Words of a warp before its sums: the clock when the kernel began and when the last region ended, its SM.

Before a trace's ring: the clock when the kernel began, the SM, global timer and clock when the role began,
where the ring begins, the place of the next mark, and global timer and clock when the role ended.
"""
RING = 512
"""Marks, of a word each, in a warp's trace: a power of two. The ring is aligned to its size."""
AHEAD = 31
"""Marks written at increasing offsets before the place moves on; they may run over the end of the ring."""
REGIONS = 64
"""A mark is the clock times this plus the region's number, so it has the low 26 bits of the clock."""
EMPTY = -1
"""The last word of a ring that was never full, and every unused word after the ring."""
BEGIN = "start"
"""The region of what every thread does first."""
WAITS = ("wait ", "acquire ", "drain ", "meet ", "take ")
"""Beginnings of the names of regions that wait for another role."""
WORK = "work"
"""With coarse probes, the one region of everything else."""
TRACE_WORDS = Size(HEADER + 2 * RING + AHEAD, "PROBE_WORDS")
LANES = 32
_THEN, _SPENT, _PLACE = "probe_then", "probe_spent", "probe_place"


@dataclass(frozen=True)
class Probed:
    """A text with marks.

    Attributes:
        regions: the regions of each role, in the order of their numbers.
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
        """The extent of the workspace, [CTAs, warps, words] flattened, in a launch of these `dims`."""
        (extent,) = WORKSPACE.shape
        return {str(extent): self.ctas(dims) * (int(self.schedule.threads) // 32) * self.words}


def words_of(regions: Mapping[str, tuple[str, ...]], mode: int) -> Size:
    """Words of a warp in the workspace."""
    return TRACE_WORDS if mode == TRACE else Size(HEADER + max(map(len, regions.values())), "PROBE_WORDS")


def probed(text: t.Text, schedule: Schedule, mode: int) -> Probed:
    """The text with a mark after each region.

    Raises:
        DeclarationError: there is no such mode, or a trace has too many regions.
    """
    if mode not in (SUMS, TRACE, COARSE):
        raise DeclarationError(
            "knob probe",
            expected=f"0, {SUMS} (sums), {TRACE} (trace) or {COARSE} (sums of waits)",
            got=repr(mode),
            fix="choose one of them",
        )
    markers = {role.name: _Marker(role, int(schedule.threads) // 32, mode) for role in schedule.roles}
    bodies = {name: tuple(marker.block(text.roles[name])) for name, marker in markers.items()}
    regions = {name: tuple(marker.numbers) for name, marker in markers.items()}
    if mode == TRACE and (many := [role for role, names in regions.items() if len(names) >= REGIONS]):
        raise DeclarationError(
            f"regions of {many[0]}",
            expected=f"fewer than {REGIONS} for a trace",
            got=str(len(regions[many[0]])),
            fix="make one of several with m.region",
        )
    words = words_of(regions, mode)
    sums = [] if mode == TRACE else [_spent(i) for i in range(_registers(regions.values()))]
    start: list[t.Statement] = [t.Variable(name, "int32", 0) for name in (_THEN, *sums)]
    if mode == TRACE:
        start.append(t.Variable(_PLACE, "int64", 0))
    start.append(t.Call(leaf.read_clock, (t.name(_THEN),)))
    roles = {
        name: (*marker.head(words), *bodies[name], *marker.tail(words)) for name, marker in markers.items()
    }
    return Probed(t.Text((*start, *text.start), roles, text.end), schedule, regions, mode)


def _spent(register: int) -> str:
    return f"{_SPENT}_{register}" if register else _SPENT


def _registers(regions: Iterable[tuple[str, ...]]) -> int:
    """Registers of a thread for the sums; one lane of one of them has the clock when the kernel began."""
    return max(-(-(len(names) + 1) // LANES) for names in regions)


class _Marker:
    """Inserts the marks of one role."""

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
        """The register whose last lane has the clock when the kernel began, in place of a sum."""
        return _spent(_registers([tuple(self.numbers)]) - 1)

    def block(self, statements: Iterable[t.Statement]) -> list[t.Statement]:
        """The statements with a mark where each region ends.

        No region is open at either end of a block, so that all paths into and out of it agree.
        """
        marked: list[t.Statement] = []
        region: str | None = None
        for s in statements:
            inside = _branches(s) and any(inner.region() for inner in t.walk([s]))
            name = None if inside else s.region()
            if name is not None and self._mode == COARSE and not name.startswith(WAITS):
                name = WORK
            if region is not None and (inside or name not in (None, region)):
                marked.append(self._mark(region))
                region = None
            if inside:
                blocks: dict[str, Any] = {field: self.block(inner) for field, inner in s.blocks.items()}
                s = replace(s, **blocks)
            region = name or region
            marked.append(s)
        if region is not None:
            marked.append(self._mark(region))
        return self._placed(marked) if self._mode == TRACE else marked

    def _placed(self, statements: Iterable[t.Statement]) -> list[t.Statement]:
        """Give marks increasing offsets from the ring's place; at branches the place moves past them."""
        placed: list[t.Statement] = []
        ahead = 0
        for s in statements:
            if ahead == AHEAD or (ahead and _branches(s)):
                placed.append(t.Call(leaf.pass_marks, (t.name(_PLACE), RING, ahead)))
                ahead = 0
            if isinstance(s, t.Call) and s.leaf is leaf.note_region:
                s = replace(s, arguments=(s.arguments[0], ahead, *s.arguments[2:]))
                ahead += 1
            placed.append(s)
        if ahead:
            placed.append(t.Call(leaf.pass_marks, (t.name(_PLACE), RING, ahead)))
        return placed

    def _mark(self, region: str) -> t.Statement:
        number = self.numbers.setdefault(region, len(self.numbers))
        spelled = Size(number, f"{self._role}_{region}".upper().translate(_IN_NAMES))
        if self._mode == TRACE:
            return t.Call(leaf.note_region, (t.name(_PLACE), 0, REGIONS, spelled))
        register = t.name(_spent(number // LANES))
        return t.Call(leaf.mark_region, (register, t.name(_THEN), self._lane, spelled))


_IN_NAMES = str.maketrans(dict.fromkeys(" ,.-+", "_"))


def _branches(s: t.Statement) -> bool:
    """Whether control flow may go elsewhere than straight to the statement after this one."""
    return s.APART and bool(s.blocks)
