"""Why a check failed: both accesses, the edge missing between them, and the shortest run that shows it.

>>> explanation = explain(run, report, ptx)                                    # doctest: +SKIP
>>> print(explanation)                                                         # doctest: +SKIP

``run(interleaving, **options)`` launches the kernel again from the same memory and passes the options to
:func:`ptx_emulator.launch`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .coverage import Location
from .errors import EmulatorError, LaunchError
from .interleaving import Interleaving, interleavings
from .launch import _decode
from .report import Event, Finding, Report

TRACE = 100_000  # the most events that are examined
TRIES = 40  # interleavings to try for a shorter run

_ARRIVES = re.compile(
    r"\b(mbarrier\.arrive|mbarrier\.complete_tx|bar(rier)?(\.cta)?\.(sync|arrive|red)|"
    r"barrier\.cluster\.arrive|bar\.warp|tcgen05\.commit|tcgen05\.fence|wgmma\.(commit_group|fence)|"
    r"cp\.async\.(bulk\.)?commit_group|cp\.async\.mbarrier|fence|membar|(st|red|atom)\.\S*(release|acq_rel)|"
    r"griddepcontrol\.launch_dependents)"
)
_WAITS = re.compile(
    r"\b(mbarrier\.(try|test)_wait|bar(rier)?(\.cta)?\.(sync|red)|barrier\.cluster\.wait|bar\.warp|fence|"
    r"membar|tcgen05\.(wait|fence)|wgmma\.(wait_group|fence)|cp\.async\.(bulk\.)?wait_(group|all)|"
    r"(ld|atom)\.\S*(acquire|acq_rel)|griddepcontrol\.wait)"
)

_ORDER = "nothing orders {earlier} before {later}"
#: finding's code -> the ordering edge that is missing
_EDGES = {
    "race": _ORDER + ": {first} must release after its access (an arrival, a barrier, a commit), "
    "and {second} must acquire that before its own",
    "same-value-race": _ORDER + ": a barrier between the two stores, or one warp alone that stores",
    "missing-proxy-fence": "{first} writes by ordinary stores and {second} has the asynchronous proxy "
    "access it: `fence.proxy.async` of the writer after {earlier}, before it arrives where {second} waits",
    "missing-proxy-fence-cp-async": "the data of `cp.async` is read through the asynchronous proxy: "
    "`fence.proxy.async` after the wait for it",
    "missing-tcgen05-fence": "`tcgen05.fence::before_thread_sync` after {earlier} "
    "and `tcgen05.fence::after_thread_sync` before {later}",
    "missing-wgmma-fence": "`wgmma.fence.sync.aligned` between {earlier} and {later}",
    "wgmma-register-in-flight": "`wgmma.wait_group` between {earlier} and {later}",
    "tmem-load-not-waited": "`tcgen05.wait::ld` between {earlier} and {later}",
    "lane-race": "`bar.warp.sync` between {earlier} and {later}",
    "uninit-memory": "no write comes before {later}: either its writer is not waited for, "
    "or nothing writes there",
    "uninit-register": "no instruction on this path writes the register that {later} uses",
    "deadlock": "an arrival that the barrier above still lacks: some warp takes another path, "
    "or the count is too high",
    "exit-before-bulk-read": "`cp.async.bulk.wait_group.read` of the issuing thread between {earlier} "
    "and the end of the CTA",
}
# A race whose earlier access belongs to an asynchronous operation: the later side must wait for its end.
_IN_FLIGHT = (
    "what {earlier} started may still be in flight at {later}: {second} must wait for its end "
    "(the phase of its mbarrier, its commit or wait group) before"
)
# A race whose later access belongs to an asynchronous operation that started before the earlier access.
_STILL_IN_FLIGHT = (
    "what {later} started is still in flight at {earlier}: {first} must wait for its end "
    "(the phase of its mbarrier, its commit or wait group) before"
)
_DEFAULT = "a rule about the instruction itself, and not about the order of two"


@dataclass(frozen=True)
class Place:
    """An access: the warp or copy that made it, its PTX line, and its source line where the PTX names one."""

    who: str
    where: Location
    file: str | None = None
    line: int = 0
    source: str | None = None

    def __str__(self) -> str:
        out = f"{self.who}: PTX line {self.where.ptx_line}: {self.where.text}"
        if self.file:
            out += f"\n    from {Path(self.file).name}:{self.line}"
            out += f": {self.source}" if self.source else ""
        return out


@dataclass(frozen=True)
class Explanation:
    """The result of :func:`explain`.

    ``accesses`` holds the earlier and the later access, or only one where a finding has only one.
    ``released`` lists what the earlier side did after its access that others could wait for; ``acquired``
    lists what the later side waited for before its own access. The missing edge is between these two.
    ``events`` are the events of the two warps up to the finding, under ``interleaving``.
    """

    finding: Finding
    interleaving: Interleaving
    instructions: int
    tried: int
    shown_by: int
    accesses: tuple[Place, ...]
    edge: str
    released: tuple[Place, ...]
    acquired: tuple[Place, ...]
    events: tuple[Event, ...]
    earlier_event: int  # index into events; -1: not among them
    later_event: int  # the same

    def __str__(self) -> str:
        lines = [str(self.finding), ""]
        for label, place in zip(_labels(len(self.accesses)), self.accesses, strict=True):
            lines.append(f"{label} {place}")
        lines += ["", f"missing edge: {self.edge}"]
        for label, places in (
            ("after its access the earlier side released by", self.released),
            ("before its access the later side waited for", self.acquired),
        ):
            if len(self.accesses) == 2:
                lines.append(f"{label}: {'nothing' if not places else ''}")
                lines += [f"  {place}" for place in places]
        lines += [
            "",
            f"shortest run: {self.instructions} warp instructions under {self.interleaving}",
            f"  ({self.shown_by} of {self.tried} interleavings show it; "
            f"launch(..., interleaving={self.interleaving}) replays it)",
        ]
        return "\n".join(lines)


def _labels(count: int) -> Sequence[str]:
    return ("earlier access by", "later access by") if count == 2 else ("access by",)


def _stopped(run: Callable[..., Report], interleaving: Interleaving) -> Report | None:
    """The run up to its first error, with its events; None for a run without an error."""
    try:
        report = run(interleaving, check="raise", trace=TRACE)
    except EmulatorError as error:
        if error.report is None:
            raise
        return error.report
    return report if report.errors else None


def _same(a: Finding, b: Finding) -> bool:
    def lines(f: Finding) -> tuple[int | None, ...]:
        return tuple(where.ptx_line if where else None for where in (f.where, f.other))

    return a.code == b.code and lines(a) == lines(b)


def explain(
    run: Callable[..., Report],
    report: Report,
    ptx: str,
    entry: str | None = None,
    *,
    tries: int = TRIES,
    seed: int = 0,
) -> Explanation:
    """Explain the first error of a report.

    Args:
        run: Launches the kernel again from the same memory: ``run(interleaving, **options)``.
        report: The report of a launch that found an error.
        ptx: The kernel's module.
        entry: The kernel, where the module has several.
        tries: Interleavings to try for a shorter run.
        seed: Seed of the random interleavings.

    Raises:
        LaunchError: the report has no error, or no run shows the error again.
    """
    if not report.errors:
        raise LaunchError("the report to explain has no error")
    wanted = report.errors[0]
    warps = max(wanted.warp, wanted.other_warp, 0) + 1
    candidates = [report.interleaving, *interleavings(tries, seed, min(warps, 8))]
    shown: list[Report] = []
    for candidate in candidates:
        again = _stopped(run, candidate)
        if again is not None and _same(again.errors[0], wanted):
            shown.append(again)
    if not shown:
        raise LaunchError(
            f"the run to explain does not show [{wanted.code}] again under {report.interleaving}: "
            "start it from the same memory"
        )
    best = min(shown, key=lambda r: r.instructions)
    return _explained(best, ptx, entry, len(candidates), len(shown))


def _explained(report: Report, ptx: str, entry: str | None, tried: int, shown: int) -> Explanation:
    finding = report.errors[0]
    other_cta = finding.other_cta if finding.other_cta >= 0 else finding.cta
    first = (other_cta, finding.other_warp)
    second = (finding.cta, finding.warp)
    sources = _Sources(ptx, entry)
    events = report.trace
    later = _last(events, second, finding.where, len(events))
    earlier = -1
    if finding.other is not None:
        earlier = _last(events, first, finding.other, later if later >= 0 else len(events))
        if earlier < 0:  # part of an asynchronous operation: look for its line, whichever warp issued it
            earlier = _last(events, None, finding.other, later if later >= 0 else len(events))
        if earlier >= 0 and finding.other_warp < 0:
            first = (events[earlier].cta, events[earlier].warp)
    names = [_who(*first), _who(*second)]
    accesses = []
    if finding.other is not None:
        accesses.append(sources.place(names[0], finding.other))
    if finding.where is not None:
        accesses.append(sources.place(names[1], finding.where))
    # Order of issue is not order of access: a copy may touch memory long after the instruction that started
    # it.
    late = 0 <= _issue(events, later) < _issue(events, earlier)
    if finding.code == "race" and late:
        text = _STILL_IN_FLIGHT
    elif finding.code == "race" and finding.other_warp < 0 and finding.other is not None:
        text = _IN_FLIGHT
    else:
        text = _EDGES.get(finding.code, _DEFAULT)
    edge = text.format(
        first=names[0], second=names[1], earlier=_line(finding.other), later=_line(finding.where)
    )
    two = {first, second} if finding.other is not None else {second}
    kept = [i for i, e in enumerate(events) if (e.cta, e.warp) in two]
    index = {i: k for k, i in enumerate(kept)}
    end = later if later >= 0 else len(events)
    released = [
        sources.place(names[0], e.where)
        for e in events[earlier + 1 : end]
        if earlier >= 0 and (e.cta, e.warp) == first and not e.asynchronous and _matches(_ARRIVES, e)
    ]
    acquired = [
        sources.place(names[1], e.where)
        for e in events[max(earlier, 0) : end]
        if (e.cta, e.warp) == second and not e.asynchronous and _matches(_WAITS, e)
    ]
    return Explanation(
        finding, report.interleaving, report.instructions, tried, shown, tuple(accesses), edge,
        tuple(released[:5]), tuple(acquired[-5:]), tuple(events[i] for i in kept),
        index.get(earlier, -1), index.get(later, -1),
    )  # fmt: skip


def _matches(pattern: re.Pattern[str], event: Event) -> bool:
    return event.where is not None and pattern.search(event.where.text) is not None


def _last(events: Sequence[Event], who: tuple[int, int] | None, where: Location | None, end: int) -> int:
    if where is None:
        return -1
    for i in range(end - 1, -1, -1):
        e = events[i]
        if e.where is not None and e.where.ptx_line == where.ptx_line and who in (None, (e.cta, e.warp)):
            return i
    return -1


def _issue(events: Sequence[Event], i: int) -> int:
    """Index of the instruction that issued event ``i``: ``i`` itself unless the event is asynchronous."""
    if i < 0 or not events[i].asynchronous:
        return i
    part = events[i]
    for k in range(i - 1, -1, -1):
        e = events[k]
        if not e.asynchronous and (e.cta, e.warp, e.where) == (part.cta, part.warp, part.where):
            return k
    return i


def _who(cta: int, warp: int) -> str:
    return "the launch" if cta < 0 else f"warp {warp} of CTA {cta}" if warp >= 0 else f"a copy of CTA {cta}"


def _line(where: Location | None) -> str:
    return f"PTX line {where.ptx_line}" if where else "the other access"


class _Sources:
    """Source lines that the PTX's line information names, where their files can be read."""

    def __init__(self, ptx: str, entry: str | None) -> None:
        program = _decode(ptx, entry)
        self._lines = {st.line: st.loc for st in program.entry.body}
        self._files = program.module.files
        self._texts: dict[str, list[str]] = {}

    def place(self, who: str, where: Location | None) -> Place:
        where = where or Location(0, "?")
        number, line = self._lines.get(where.ptx_line, (0, 0))
        file = self._files.get(number) if line else None
        return Place(who, where, file, line, self._text(file, line) if file else None)

    def _text(self, file: str, line: int) -> str | None:
        if file not in self._texts:
            try:
                self._texts[file] = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
            except OSError:
                self._texts[file] = []
        lines = self._texts[file]
        return lines[line - 1].strip() if 0 < line <= len(lines) else None
