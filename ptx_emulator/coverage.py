"""Coverage of a launch: the instructions, branch directions, barrier phases and ring slots it reached."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import LaunchError

if TYPE_CHECKING:
    from .isa import Program

#: The most instructions between a wait on an mbarrier and the branch that retries it.
TRIED = 4
NEVER, ALWAYS = "never taken", "always taken"


@dataclass(frozen=True)
class Location:
    """A place in the program: PTX line and text, and the source line where the PTX has ``.loc``.

    In an inlined function, ``source`` is the line inside the function and ``around`` the line of its
    outermost call.
    """

    ptx_line: int
    text: str
    source: str | None = None
    around: str | None = None

    def __str__(self) -> str:
        short = self.text if len(self.text) <= 90 else self.text[:87] + "..."
        return f"PTX line {self.ptx_line}{f' ({self.source})' if self.source else ''}: {short}"

    @property
    def line(self) -> str:
        """The line of the kernel's own module, or the PTX line where the PTX names no source."""
        return self.around or self.source or f"PTX line {self.ptx_line}"


def place(program: Program, pc: int) -> Location:
    """The location of an instruction."""

    def source(loc: tuple[int, int]) -> str | None:
        file = program.module.files.get(loc[0])
        return f"{Path(file).name}:{loc[1]}" if file and loc[1] else None

    st = program.entry.body[pc]
    return Location(st.line, st.text, source(st.loc), source(st.outer) if st.outer != st.loc else None)


@dataclass(frozen=True)
class Barrier:
    """A barrier, and how far it came in the CTA where it came furthest.

    ``phases`` counts completed phases; ``awaited`` is the last of them whose end a thread waited for. A test
    of a fresh mbarrier for the phase before its first (a producer's test of an empty ring) is no wait.
    """

    kind: str  # "mbarrier" or "bar"
    offset: int  # shared-memory offset of an mbarrier; number of a bar
    where: Location  # of the initialisation, or of an instruction that uses it
    expected: int  # arrivals per phase; 0: all threads of the CTA
    phases: int
    awaited: int

    def __str__(self) -> str:
        name = (
            f"mbarrier at shared byte {self.offset}" if self.kind == "mbarrier" else f"barrier {self.offset}"
        )
        plural = "" if self.phases == 1 else "s"
        return f"{name} of {self.where.line}: {self.phases} phase{plural}, {self.awaited} awaited"


@dataclass
class Coverage:
    """What one launch reached, or several of one kernel together (``merged``).

    An instruction counts as executed when a lane executed it (the lane's guard was true). A conditional
    branch counts when a lane reached it. An unconditional branch always counts: it computes nothing, and it
    says little when a compiler leaves one after code that never falls through.
    """

    program: Program | None = None
    visits: list[int] = field(default_factory=list)  # of each instruction
    ways: list[int] = field(default_factory=list)  # of each branch: 1 taken by a lane, 2 not taken by one
    barriers: list[Barrier] = field(default_factory=list)

    def __getstate__(self) -> dict[str, object]:
        """Without the program where it travels: a report in an error is to stay small."""
        return {"program": None, "visits": [], "ways": [], "barriers": self.barriers}

    # Lines

    @property
    def executed(self) -> list[bool]:
        """Of each instruction, whether it was."""
        body = self.program.entry.body if self.program is not None else []
        return [
            bool(visits or (st.opcode.startswith("bra") and (ways or not st.guard)))
            for visits, ways, st in zip(self.visits, self.ways, body, strict=False)
        ]

    @property
    def unexecuted(self) -> list[Location]:
        """Instructions that no lane executed."""
        if self.program is None:
            return []
        return [place(self.program, i) for i, ran in enumerate(self.executed) if not ran]

    @property
    def one_way(self) -> list[tuple[Location, str]]:
        """Conditional branches that always went the same way, with that way.

        The branches that retry an mbarrier are left out: their direction depends on the interleaving.
        """
        if self.program is None:
            return []
        body = self.program.entry.body

        def retries(i: int) -> bool:
            return any("mbarrier" in st.opcode and "wait" in st.opcode for st in body[max(i - TRIED, 0) : i])

        branches = [
            i
            for i, st in enumerate(body)
            if st.guard and st.opcode.startswith("bra") and self.ways[i] in (1, 2) and not retries(i)
        ]
        return [(place(self.program, i), ALWAYS if self.ways[i] == 1 else NEVER) for i in branches]

    @property
    def lines(self) -> dict[str, tuple[int, int]]:
        """Line of the source (or of the PTX) -> (its instructions, how many of them were executed).

        Unconditional branches do not count: a loop's jump back often carries the line of the loop's last
        statement.
        """
        out: dict[str, tuple[int, int]] = {}
        if self.program is None:
            return out
        for i, (ran, st) in enumerate(zip(self.executed, self.program.entry.body, strict=False)):
            if st.opcode.startswith("bra") and not st.guard:
                continue
            line = place(self.program, i).line
            total, run = out.get(line, (0, 0))
            out[line] = total + 1, run + ran
        return out

    @property
    def unexecuted_lines(self) -> list[str]:
        """Lines of the source (or of the PTX) of which no instruction was executed."""
        return [line for line, (_, run) in self.lines.items() if not run]

    @property
    def share(self) -> float:
        """The fraction of the instructions that was executed."""
        return sum(self.executed) / max(len(self.visits), 1)

    # Barriers

    @property
    def short_barriers(self) -> list[Barrier]:
        """Barriers with fewer than two phases: the run says nothing about their parity."""
        return [b for b in self.barriers if b.phases < 2]

    @property
    def unawaited_barriers(self) -> list[Barrier]:
        """Barriers for which no thread waited: the run cannot show a wrong arrival count."""
        return [b for b in self.barriers if not b.awaited]

    @property
    def rings(self) -> dict[str, list[Barrier]]:
        """Source line -> its mbarriers, where the line sets up two or more: the slots of a ring."""
        rings: dict[str, list[Barrier]] = {}
        for b in self.barriers:
            if b.kind == "mbarrier":
                rings.setdefault(b.where.line, []).append(b)
        return {line: slots for line, slots in rings.items() if len(slots) > 1}

    @property
    def unwrapped_rings(self) -> list[str]:
        """Rings of which every slot was used at most once."""
        return [line for line, slots in self.rings.items() if all(b.phases < 2 for b in slots)]

    @property
    def unawaited_rings(self) -> list[str]:
        """Rings for which no thread waited: usually the empty side of a pipeline that never filled up."""
        return [line for line, slots in self.rings.items() if all(not b.awaited for b in slots)]

    # Several launches

    def merged(self, other: Coverage) -> Coverage:
        """What two launches of one kernel reached together.

        Raises:
            LaunchError: the launches are of different kernels.
        """
        if not self.visits:
            return other
        if not other.visits:
            return self
        if self._text() != other._text():
            raise LaunchError("coverage of different kernels cannot be merged")
        barriers = {(b.kind, b.offset, b.where): b for b in self.barriers}
        for b in other.barriers:
            key = (b.kind, b.offset, b.where)
            a = barriers.get(key, b)
            phases, awaited = max(a.phases, b.phases), max(a.awaited, b.awaited)
            barriers[key] = Barrier(b.kind, b.offset, b.where, b.expected, phases, awaited)
        return Coverage(
            self.program,
            [a + b for a, b in zip(self.visits, other.visits, strict=True)],
            [a | b for a, b in zip(self.ways, other.ways, strict=True)],
            list(barriers.values()),
        )

    def _text(self) -> list[str]:
        return [st.text for st in self.program.entry.body] if self.program else []

    # Text

    def as_dict(self) -> dict[str, object]:
        """The coverage as plain data."""
        return {
            "instructions": len(self.visits),
            "executed": sum(self.executed),
            "unexecuted_lines": self.unexecuted_lines,
            "one_way": [{"line": x.line, "ptx_line": x.ptx_line, "way": way} for x, way in self.one_way],
            "barriers": [
                {
                    "kind": b.kind,
                    "offset": b.offset,
                    "line": b.where.line,
                    "expected": b.expected,
                    "phases": b.phases,
                    "awaited": b.awaited,
                }
                for b in self.barriers
            ],
            "unwrapped_rings": self.unwrapped_rings,
            "unawaited_rings": self.unawaited_rings,
        }

    def describe(self, sources: Callable[[str], str | None] | None = None) -> str:
        """What the launch did not reach, by line; ``sources`` gives the text of a source line, or None."""

        def quoted(line: str) -> str:
            text = sources(line) if sources else None
            return f"  {line}{f': {text.strip()}' if text and text.strip() else ''}"

        lines = self.lines
        partly = [f"{quoted(x)} [{run} of {n}]" for x, (n, run) in lines.items() if 0 < run < n]
        sections = {
            "lines never executed": [quoted(x) for x, (_, run) in lines.items() if not run],
            "lines of which some instructions were not executed": partly,
            "branches taken one way": [
                f"{quoted(where.line)} [PTX line {where.ptx_line}, {way}]" for where, way in self.one_way
            ],
            "barriers with fewer than two phases": [f"  {b}" for b in self.short_barriers],
            "rings that never wrapped": [quoted(x) for x in self.unwrapped_rings],
            "barriers that nobody waited for": [f"  {b}" for b in self.unawaited_barriers],
            "rings of barriers that nobody waited for": [quoted(x) for x in self.unawaited_rings],
        }
        out = [f"{sum(self.executed)} of {len(self.visits)} instructions executed ({100 * self.share:.1f} %)"]
        for title, items in sections.items():
            if items:
                out += [f"{title} ({len(items)}):", *items]
        return "\n".join(out)

    def __str__(self) -> str:
        return self.describe()


def covered(program: Program, visits: list[int], ways: list[int], barriers: list[list[int]]) -> Coverage:
    """Coverage from the core's counts."""
    named = [
        Barrier("bar" if kind else "mbarrier", offset, place(program, pc), expected, phases, awaited)
        for kind, pc, offset, expected, phases, awaited in barriers
    ]
    return Coverage(program, visits, ways, named)
