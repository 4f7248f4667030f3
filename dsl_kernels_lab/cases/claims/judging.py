"""How a claim is judged: figures in, a verdict out.

A claim names figures: numbers of its statement, of the problems, or of a recorded run. Its judge is a
function of these figures alone, so a test can change one and see the verdict change. A verdict without
figures is called an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsl_kernels.arguments import is_path, shown
from dsl_kernels.errors import InvalidArgumentError, UnknownNameError, did_you_mean

from .. import base, names
from ..base import Record

FAILS, PARTLY, HOLDS, ARGUED, UNTESTED = "fails", "holds in part", "holds", "by argument", "not testable here"
# In the order of the table, losses first.
VERDICTS = (FAILS, PARTLY, HOLDS, ARGUED, UNTESTED)
SOURCES = {
    "000": "a Triton split-K sparse attention on a B200 that a profiler called occupancy limited",
    "001": "cycles inside a warp-specialised grouped-query attention forward kernel on an H200",
    "002": "a sparse-attention pipeline for DeepSeek V3.2 on a B200",
    "003": "nine kernels under a timeline and a counter profiler on an L4",
    "004": "a trajectory resampling kernel on an H100 and a roadmap for it",
}
# Bytes of a latent token: 512 + 64 values of bf16.
ROW = 1152

Records = Mapping[str, Record]
Figures = Mapping[str, Any]
# Whether a claim holds: None if its figures cannot tell, by condition if it depends on conditions.
Holds = bool | None | Mapping[str, bool]
Judge = Callable[..., tuple[Holds, str]]


@dataclass(frozen=True)
class Claim:
    """A statement of a source, and how it is judged.

    Attributes:
        name: names the claim in commands.
        source: key of SOURCES.
        case: the case whose record decides; "" for a claim that is counted, or that cannot be tested here.
        figures: reads the deciding figures from records by case; raises LookupError if a record lacks one.
        judge: takes the figures by name; returns whether the statement holds, and the figures in words.
    """

    name: str
    source: str
    statement: str
    case: str
    figures: Callable[[Records], Figures]
    judge: Judge

    @property
    def command(self) -> str:
        """The command that measures it."""
        if self.case:
            return f"python -m dsl_kernels case run {self.case}"
        return f"python -m dsl_kernels case claims --only {self.name}"

    def verdict(self, figures: Figures) -> tuple[str, str]:
        """One of VERDICTS for these figures, and the figures in words."""
        holds, words = self.judge(**figures)
        if holds is None:
            return UNTESTED, words
        if not figures:
            return ARGUED, words
        each = set(holds.values()) if isinstance(holds, Mapping) else {holds}
        return (PARTLY if len(each) > 1 else HOLDS if True in each else FAILS), words


CLAIMS: list[Claim] = []


def claim(
    source: str,
    name: str,
    statement: str,
    figures: Figures | Callable[[Records], Figures],
    case: str = "",
) -> Callable[[Judge], Judge]:
    """Register the decorated judge as a claim about `figures`, or about those that it reads from records."""
    read = figures if callable(figures) else lambda _: figures

    def add(judge: Judge) -> Judge:
        CLAIMS.append(Claim(name, source, statement, case, read, judge))
        return judge

    return add


def untested(source: str, name: str, statement: str, why: str) -> None:
    """Register a claim that nothing here can decide."""
    claim(source, name, statement, {})(lambda: (None, why))


def by_name(name: str) -> Claim:
    """The claim of that name.

    Raises:
        UnknownNameError: there is none.
    """
    for one in CLAIMS:
        if one.name == name:
            return one
    known = [one.name for one in CLAIMS]
    raise UnknownNameError("claim", expected="a known claim", got=repr(name), fix=did_you_mean(name, known))


def records_in(folder: Path) -> dict[str, Record]:
    """The records of cases in a folder.

    Raises:
        InvalidArgumentError: a path that no file system can have.
    """
    if not is_path(str(folder / f"{max(names(), key=len)}.json")):
        raise InvalidArgumentError(
            "records", expected="a folder", got=shown(str(folder)), fix="pass the folder of case records"
        )
    paths = {name: folder / f"{name}.json" for name in names()}
    return {name: base.read(path) for name, path in paths.items() if path.exists()}


def judged(one: Claim, records: Records) -> dict[str, Any]:
    """A claim and its verdict as plain data."""
    try:
        verdict, measured = one.verdict(one.figures(records))
    except LookupError as error:
        verdict, measured = UNTESTED, f"no record shows it ({str(error).strip(chr(39))})"
    where = records.get(one.case, {}).get("environment", {}) if one.case else {}
    return {
        "claim": one.name,
        "source": one.source,
        "statement": one.statement,
        "verdict": verdict,
        "measured": measured,
        "command": one.command,
        "on": where.get("gpu", "counted") if verdict != UNTESTED else "",
        "date": where.get("date", ""),
        "commit": where.get("commit", ""),
    }


def table(records: Records, only: str | None = None) -> list[dict[str, Any]]:
    """Every claim, or only one, with its verdict."""
    return [judged(one, records) for one in ([by_name(only)] if only else CLAIMS)]


# What figures are read from


def row(records: Records, case: str, name: str) -> dict[str, Any]:
    """A measured row of a record; LookupError if it is missing or failed."""
    for one_row in records[case]["rows"]:
        if one_row["name"] == name:
            if "error" in one_row and not ("us" in one_row or "a_us" in one_row):
                raise LookupError(f"{name}: {one_row['error'][:120]}")
            return dict(one_row)
    raise LookupError(f"no row {name} in {case}")


def figure_of(records: Records, case: str, name: str, figure: str) -> float:
    """A figure of a measured row; LookupError if the record lacks it."""
    value = row(records, case, name).get(figure)
    if value is None:
        raise LookupError(f"no {figure} of {name} in {case}")
    return float(value)


def rows(records: Records, case: str, kind: str, figure: str) -> list[dict[str, Any]]:
    """Rows of a kind that have a figure; LookupError if there are none."""
    measured = [r for r in base.rows_of(records[case], kind) if r.get(figure) is not None]
    if not measured:
        raise LookupError(f"no {kind} rows in {case}")
    return measured


def counter(records: Records, case: str, launch: str, metric: str) -> float:
    """A counter of a launch; LookupError if it was not read."""
    return float(records[case]["counters"][launch]["metrics"][metric])


def stalls(records: Records, case: str, launch: str) -> dict[str, float]:
    """Shares of a launch's warp time by stall reason, greatest first; LookupError if none was read."""
    shares = base.stall_shares(records[case]["counters"][launch]["metrics"])
    if not shares:
        raise LookupError(f"no stalls of {launch} in {case}")
    return shares


def share(value: float) -> str:
    return f"{100 * value:.1f} %"
