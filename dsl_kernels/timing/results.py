"""What one commit takes on one kind of GPU beside its peers: `results/<gpu>.json`, written by `bench --record`.

Every row is of one run: ours and each peer took turns over the same inputs. A row keeps a fingerprint of each kernel that it
timed, so that `changed` can say which rows are of kernels that are no more.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from .. import variants
from ..arguments import checked
from ..errors import ArtifactError, CacheError, InvalidArgumentError, ToolchainError
from ..measured import slug
from ..runtime.storage import write_atomically
from ..verification import runs

SCHEMA: Literal[1] = 1
FOLDER = "results"
SECTIONS = {
    "attention": "Sparse attention", "scoring": "Scoring", "selection": "Selection", "step": "The decode step",
    "prompt": "Scoring and selection of a prompt", "dense": "Grouped-query attention", "resampling": "Resampling",
}  # fmt: skip
"""Sections in their order on a page, with their titles."""


@dataclass(frozen=True)
class PeerTime:
    """A peer at a point: the median of the rounds in µs, each round, µs while it ran on end, how far it lies from ours."""

    name: str
    version: str
    us: float
    rounds: tuple[float, ...]
    apart: float | None = None
    sustained_us: float | None = None


@dataclass(frozen=True)
class Row:
    """A point: what ours takes, what fetching its data takes at least, what the peers take.

    Attributes:
        kernels: fingerprints of the variants that were timed, by id.
        us: median of the rounds.
        ceiling_us: the time in which the card fetches the same bytes by the fastest way found; None where none is known.
        parts: µs of what a step or a prompt consists of.
        clocks: MHz, watts and degrees after the timing, or in the middle of a run on end.
        run: number of the run that it is of, in `Results.runs`.
    """

    section: str
    op: str
    form: str
    point: str
    kernels: Mapping[str, str]
    us: float
    rounds: tuple[float, ...]
    peers: tuple[PeerTime, ...] = ()
    ceiling_us: float | None = None
    parts: Mapping[str, float | None] = field(default_factory=dict)
    clocks: Mapping[str, float] | None = None
    sustained_us: float | None = None
    run: int = 0
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.section} {self.op} {self.point}"

    @property
    def fastest(self) -> PeerTime | None:
        """The fastest peer."""
        return min(self.peers, key=lambda peer: peer.us, default=None)

    @property
    def ratio(self) -> float | None:
        """Ours over the fastest peer."""
        return self.us / self.fastest.us if self.fastest else None

    @property
    def sustained_ratio(self) -> float | None:
        """The same while each runs on end, where both did."""
        held = [peer.sustained_us for peer in self.peers if peer.sustained_us]
        return self.sustained_us / min(held) if self.sustained_us and held else None


@dataclass(frozen=True)
class Run:
    """One run of the command: when, by which command and driver, and a mark of the card, alike for runs on the same one."""

    date: str
    command: str
    driver: str | None
    card: str


@dataclass(frozen=True)
class Results:
    """The rows of one commit on one kind of GPU.

    Attributes:
        versions: of what stands below the kernels, by name.
        absent: why a peer is not in the rows, or not in those of a run, by its name.
        ended: points at which a run ended without a row, and how often.
    """

    gpu: str
    commit: str
    dsl_kernels: str
    versions: Mapping[str, str | None]
    runs: tuple[Run, ...] = ()
    rows: tuple[Row, ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    ended: Mapping[str, int] = field(default_factory=dict)
    schema: Literal[1] = SCHEMA

    def with_row(self, row: Row) -> Results:
        """These with a row, in the place of the one of its point."""
        kept = [held for held in self.rows if held.key != row.key]
        ended = {key: count for key, count in self.ended.items() if key != row.key}
        return replace(self, rows=(*kept, row), ended=ended)


@checked
def path_of(gpu: str, folder: Path) -> Path:
    """Where the results of a GPU are kept in a checkout."""
    return folder / FOLDER / f"{slug(gpu)}.json"


@checked
def read(path: Path) -> Results | None:
    """The results of a file; None without one.

    Raises:
        ArtifactError: it is damaged or of another schema; names the field.
        ToolchainError: pydantic is not installed.
    """
    if not path.exists():
        return None
    try:
        from pydantic import TypeAdapter, ValidationError
    except ImportError as error:
        raise ToolchainError(
            "pydantic",
            expected="the package that checks results",
            got=str(error),
            fix="`pip install 'dsl-kernels[profile]'`",
        ) from None
    fix = "restore it, or delete it and record it again with `bench --record`"
    try:
        found: Results = TypeAdapter(Results).validate_json(path.read_bytes())
        return found
    except OSError as error:
        raise ArtifactError(str(path), expected="a file that can be read", got=str(error), fix=fix) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise ArtifactError(
            str(path), expected=f"results of schema {SCHEMA}", got=f"{place}: {first['msg']}", fix=fix
        ) from None


@checked
def write(path: Path, results: Results) -> None:
    """Write results, so that who reads the file meanwhile sees the old or the new ones.

    Raises:
        CacheError: it cannot be written.
    """
    text = json.dumps(asdict(results), indent=1, sort_keys=True) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text.encode())
    except OSError as error:
        raise CacheError(
            str(path), expected="a file that can be written", got=str(error), fix="name another file"
        ) from None


@checked
def begin(held: Results | None, fresh: Results, path: Path) -> Results:
    """The results that a run goes on from: those of the file with this run added, or new ones.

    Raises:
        InvalidArgumentError: the file is of another commit or another kind of GPU, or its rows are of kernels that changed.
    """
    if held is None:
        return fresh
    for name in ("gpu", "commit", "dsl_kernels"):
        was, now = getattr(held, name), getattr(fresh, name)
        if was != now:
            raise _mixed(path, f"{name} {was}, as its rows", f"{name} {now}")
    gone = sorted({kernel for row in held.rows for kernel in changed(row)})
    if gone:
        raise _mixed(path, "the kernels of its rows", f"others now: {', '.join(gone[:3])}")
    other = {name for name, value in held.versions.items() if fresh.versions.get(name) != value}
    if other:
        said = ", ".join(f"{name} {fresh.versions.get(name)}" for name in sorted(other))
        wanted = ", ".join(f"{name} {held.versions[name]}" for name in sorted(other))
        raise _mixed(path, wanted, said)
    return replace(held, runs=(*held.runs, *fresh.runs))


def _mixed(path: Path, expected: str, got: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        str(path), expected=expected, got=got,
        fix="pass --again to begin it anew, or --out with another file: one file is of one commit and one kind of GPU",
    )  # fmt: skip


@checked
def fingerprint(variant: str) -> str:
    """What a generated module and the helpers that it imports do, as a hash; comments and docstrings are no part of it."""
    return runs.program_of(variants.get(variant))[:16]


@checked
def changed(row: Row) -> list[str]:
    """The variants of a row that are no more what was timed."""
    known = {variant.id for variant in variants.variants()}
    return [
        name for name, was in row.kernels.items() if name not in known or fingerprint(name) != was
    ]  # fmt: skip


def card_mark(uuid: str) -> str:
    """A mark that tells cards apart and names none."""
    return hashlib.sha256(uuid.encode()).hexdigest()[:8]


@checked
def short_name(gpu: str) -> str:
    """What the page of a GPU is called by: `h200` of an NVIDIA H200, `h100` of an NVIDIA H100 80GB HBM3."""
    found = re.search(r"[a-z]+\d+\w*?(?=_|$)", slug(gpu))
    return found[0] if found else slug(gpu)


# What the page says of how the rows were taken.
METHOD = (
    "Ours and the peers took turns in one run at each point, over the same inputs, which rotate past the L2; the median of the "
    "rounds under CUDA-graph replay counts. Every result is compared with the reference or with ours before it is timed. "
    "The ratio is ours over the fastest peer of that run; this project's own Triton kernel is one. The ceiling is the "
    "time in which the same card fetches the same bytes by the fastest way found, as a share of ours. *On end* is the ratio "
    "while each runs for a while, at the clocks of the power limit. ✗ marks a row whose kernel changed since."
)


@checked
def page(results: Results) -> str:
    """The page of results, in Markdown: what is behind a peer first, the worst first of all."""
    stale = {row.key for row in results.rows if changed(row)}
    behind = sorted((row for row in results.rows if (row.ratio or 0) > 1), key=lambda row: -(row.ratio or 0))
    compared = [row for row in results.rows if row.ratio]
    cards, dates = {run.card for run in results.runs}, sorted({run.date for run in results.runs})
    drivers = ", ".join(sorted({run.driver or "not known" for run in results.runs}))
    versions = ", ".join(f"{name} {value}" for name, value in sorted(results.versions.items()) if value)
    commands = " and ".join(dict.fromkeys(f"`{run.command}`" for run in results.runs))
    parts = [
        f"# {results.gpu}: ours and the peers",
        f"{commands}, commit {results.commit}, {' and '.join(dates[:: max(1, len(dates) - 1)])}, driver {drivers}, {versions}; "
        f"runs: {len(results.runs)}, cards: {len(cards)}. Peers: {_peers(results)}.",
        METHOD,
        f"Of {len(results.rows)} rows {len(compared)} have a peer, {len(compared) - len(behind)} are ahead of it or level; "
        f"{len(stale)} are of kernels that changed since.",
    ]
    parts += [f"Not installed, in one run at least: {_absent(results)}."] if results.absent else []
    parts.append("## Behind a peer")
    parts.append(_table(behind, stale, section=True) if behind else "None.")
    for section, title in SECTIONS.items():
        rest = [row for row in results.rows if row.section == section and row not in behind]
        if rest:
            table = _parts_table(rest, stale, results) if rest[0].parts else _table(rest, stale)
            parts += [f"## {title}", table]
    return "\n\n".join(parts) + "\n"


def _peers(results: Results) -> str:
    found = {peer.name: peer.version for row in results.rows for peer in row.peers}
    return ", ".join(f"{name} {version}".strip() for name, version in sorted(found.items())) or "none"


def _absent(results: Results) -> str:
    return "; ".join(f"{name} ({reason})" for name, reason in sorted(results.absent.items()))


def _mark(row: Row, stale: set[str]) -> str:
    return f"{row.point}{' ✗' if row.key in stale else ''}"


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _clocks(row: Row) -> tuple[str, str]:
    seen = row.clocks or {}
    return _number(seen.get("sm_mhz"), 4), _number(seen.get("watts"))


def _table(rows: Sequence[Row], stale: set[str], section: bool = False) -> str:
    cells = [
        [
            *([row.op] if section else []), _mark(row, stale), _number(row.us), row.fastest.name if row.fastest else "-",
            _number(row.fastest.us if row.fastest else None), _ratio(row.ratio), _ratio(row.sustained_ratio),
            _ratio(row.ceiling_us / row.us if row.ceiling_us else None), *_clocks(row),
        ]
        for row in rows
    ]  # fmt: skip
    columns = [
        *(["op"] if section else []), "point", "ours, µs", "fastest peer", "its µs", "ratio", "on end", "of ceiling", "MHz", "W",
    ]  # fmt: skip
    return _markdown(columns, cells)


def peers_added(row: Row, results: Results) -> float | None:
    """The fastest peers' times of what a step or a prompt consists of, added up; None where one has no row with a peer."""
    sizes = dict(word.split("=") for word in row.point.split()[1:])
    if row.section == "step":
        b, length, heads = sizes["batch"], sizes["context"], sizes["heads"]
        wanted: tuple[str, ...] = (
            f"scoring decode b={b} len={length} heads=64 next_n=1", f"selection default rows={b} len={length} k=2048",
            f"attention bf16 t={b} heads={heads} pages=4096",
        )  # fmt: skip
    else:
        s, length = sizes["rows"], sizes["context"]
        wanted = (
            f"scoring prefill s={s} skv={length} heads=64", f"selection default rows={s} len={length} k=2048",
        )  # fmt: skip
    held = {f"{each.section} {each.point}": each.fastest for each in results.rows}
    found = [held.get(name) for name in wanted]
    return sum(peer.us for peer in found if peer) if all(found) else None


def _parts_table(rows: Sequence[Row], stale: set[str], results: Results) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row.parts))
    cells = [
        [
            _mark(row, stale), _number(row.us), *(_number(row.parts.get(name)) for name in names),
            _number(peers_added(row, results)), *_clocks(row),
        ]
        for row in rows
    ]  # fmt: skip
    return _markdown(["point", "ours, µs", *names, "fastest peers of its parts, added", "MHz", "W"], cells)


def _markdown(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = [
        list(columns),
        ["---"] * len(columns),
        *([str(cell).replace("|", "\\|") for cell in row] for row in rows),
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
