"""The times of one commit on one kind of GPU, beside its peers: `results/<gpu>.json` of `bench --record`.

Each row comes from one run, in which ours and the peers took turns over the same inputs. A row stores a
fingerprint of each kernel that it timed, so that `changed` can tell rows of kernels that have changed since.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from dsl_kernels import variants
from dsl_kernels.arguments import checked
from dsl_kernels.errors import ArtifactError, CacheError, InvalidArgumentError, ToolchainError
from dsl_kernels.measured import slug
from dsl_kernels.runtime.storage import write_atomically

from ..verification import runs

SCHEMA: Literal[1] = 1
FOLDER = "results"
SECTIONS = {
    "attention": "Sparse attention",
    "scoring": "Scoring",
    "selection": "Selection",
    "step": "The decode step",
    "prompt": "Scoring and selection of a prompt",
    "dense": "Grouped-query attention",
    "resampling": "Resampling",
}
"""The sections of a page, in order, with their titles."""


@dataclass(frozen=True)
class PeerTime:
    """A peer's times at a point.

    Attributes:
        us: microseconds, the median of the rounds.
        rounds: microseconds of each round.
        apart: relative difference of its result from ours.
        sustained_us: microseconds while it ran back to back.
    """

    name: str
    version: str
    us: float
    rounds: tuple[float, ...]
    apart: float | None = None
    sustained_us: float | None = None


@dataclass(frozen=True)
class Row:
    """A point: our time, the least time to fetch its data, and the peers' times.

    Attributes:
        kernels: id of each variant that was timed -> its fingerprint.
        us: microseconds, the median of the rounds.
        ceiling_us: the time in which the card fetches the same bytes by the fastest way found; None where
            unknown.
        parts: microseconds of the parts of a step or a prompt.
        clocks: `bench.clocks` after the timing, or in the middle of back-to-back calls.
        sustained_us: microseconds while ours ran back to back.
        run: index of its run in `Results.runs`.
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
        """The fastest peer, or None."""
        return min(self.peers, key=lambda peer: peer.us, default=None)

    @property
    def ratio(self) -> float | None:
        """Our time divided by the fastest peer's."""
        return self.us / self.fastest.us if self.fastest else None

    @property
    def sustained_ratio(self) -> float | None:
        """The same for back-to-back calls, where both were timed so."""
        sustained = [peer.sustained_us for peer in self.peers if peer.sustained_us]
        return self.sustained_us / min(sustained) if self.sustained_us and sustained else None


@dataclass(frozen=True)
class Run:
    """One run of the command: its date, command and driver, and a mark that identifies the card."""

    date: str
    command: str
    driver: str | None
    card: str


@dataclass(frozen=True)
class Results:
    """The rows of one commit on one kind of GPU.

    Attributes:
        versions: versions of the software below the kernels, by name.
        absent: peer -> why it is missing, in at least one run.
        ended: key of a row -> how often a run died there.
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
        """These results with a row added, which replaces the row of the same key."""
        kept = [other for other in self.rows if other.key != row.key]
        ended = {key: count for key, count in self.ended.items() if key != row.key}
        return replace(self, rows=(*kept, row), ended=ended)


@checked
def path_of(gpu: str, folder: Path) -> Path:
    """The path of a GPU's results in a checkout."""
    return folder / FOLDER / f"{slug(gpu)}.json"


@checked
def read(path: Path) -> Results | None:
    """The results in a file; None without the file.

    Raises:
        ArtifactError: the file is damaged or has another schema; the error names the field.
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
            fix="`pip install 'dsl-kernels-lab[profile]'`",
        ) from None
    fix = "restore it, or delete it and record it again with `bench --record`"
    try:
        results: Results = TypeAdapter(Results).validate_json(path.read_bytes())
        return results
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
    """Write results atomically: a reader sees either the old file or the new one.

    Raises:
        CacheError: the file cannot be written.
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
def begin(earlier: Results | None, fresh: Results, path: Path) -> Results:
    """The results that a run continues: those of the file with this run added, or new ones.

    Raises:
        InvalidArgumentError: the file is of another commit or kind of GPU, or its rows are of kernels that
            changed.
    """
    if earlier is None:
        return fresh
    for name in ("gpu", "commit", "dsl_kernels"):
        was, now = getattr(earlier, name), getattr(fresh, name)
        if was != now:
            raise _mixed(path, f"{name} {was}, as its rows", f"{name} {now}")
    gone = sorted({kernel for row in earlier.rows for kernel in changed(row)})
    if gone:
        raise _mixed(path, "the kernels of its rows", f"others now: {', '.join(gone[:3])}")
    other = {name for name, value in earlier.versions.items() if fresh.versions.get(name) != value}
    if other:
        got = ", ".join(f"{name} {fresh.versions.get(name)}" for name in sorted(other))
        wanted = ", ".join(f"{name} {earlier.versions[name]}" for name in sorted(other))
        raise _mixed(path, wanted, got)
    return replace(earlier, runs=(*earlier.runs, *fresh.runs))


def _mixed(path: Path, expected: str, got: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        str(path),
        expected=expected,
        got=got,
        fix="pass --again to begin it anew, or --out with another file: "
        "one file is of one commit and one kind of GPU",
    )


@checked
def fingerprint(variant: str) -> str:
    """A hash of a generated module and the helpers that it imports, without comments and docstrings."""
    return runs.program_of(variants.get(variant))[:16]


@checked
def changed(row: Row) -> list[str]:
    """The variants of a row that have changed since they were timed, or no longer exist."""
    known = {variant.id for variant in variants.variants()}
    return [name for name, was in row.kernels.items() if name not in known or fingerprint(name) != was]


def card_mark(uuid: str) -> str:
    """A mark that tells cards apart without identifying them."""
    return hashlib.sha256(uuid.encode()).hexdigest()[:8]


@checked
def short_name(gpu: str) -> str:
    """The name of a GPU's page: `h200` for an NVIDIA H200, `h100` for an NVIDIA H100 80GB HBM3."""
    match = re.search(r"[a-z]+\d+\w*?(?=_|$)", slug(gpu))
    return match[0] if match else slug(gpu)


# The page's paragraph on how the rows were measured.
METHOD = (
    "Ours and the peers took turns in one run at each point, over the same inputs, which rotate past the L2; "
    "the median of the rounds under CUDA-graph replay counts. Every result is compared with the reference or "
    "with ours before it is timed. The ratio is ours over the fastest peer of that run; this project's own "
    "Triton kernel is one. The ceiling is the time in which the same card fetches the same bytes by the "
    "fastest way found, as a share of ours. *On end* is the ratio while each runs for a while, at the clocks "
    "of the power limit. ✗ marks a row whose kernel changed since."
)


@checked
def page(results: Results) -> str:
    """The page of results, in Markdown: first the rows that are slower than a peer, the worst one first."""
    stale = {row.key for row in results.rows if changed(row)}
    behind = sorted((row for row in results.rows if (row.ratio or 0) > 1), key=lambda row: -(row.ratio or 0))
    compared = [row for row in results.rows if row.ratio]
    cards, dates = {run.card for run in results.runs}, sorted({run.date for run in results.runs})
    drivers = ", ".join(sorted({run.driver or "not known" for run in results.runs}))
    versions = ", ".join(f"{name} {value}" for name, value in sorted(results.versions.items()) if value)
    commands = " and ".join(dict.fromkeys(f"`{run.command}`" for run in results.runs))
    span = " and ".join(dates[:: max(1, len(dates) - 1)])
    level = len(compared) - len(behind)
    changes = " (+: with changed files)" if results.commit.endswith("+") else ""
    parts = [
        f"# {results.gpu}: ours and the peers",
        f"{commands}, commit {results.commit}{changes}, {span}, driver {drivers}, {versions}; "
        f"runs: {len(results.runs)}, cards: {len(cards)}. Peers: {_peers(results)}.",
        METHOD,
        f"Of {len(results.rows)} rows {len(compared)} have a peer, {level} are ahead of it or level; "
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
    versions = {peer.name: peer.version for row in results.rows for peer in row.peers}
    return ", ".join(f"{name} {version}".strip() for name, version in sorted(versions.items())) or "none"


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


def _variant(row: Row) -> str:
    """The id of the row's one variant, without the operation and the architecture."""
    if len(row.kernels) != 1:
        return "-"
    _, backend, knobs = next(iter(row.kernels)).split("__", 2)
    return f"{backend.rpartition('_')[0]} `{knobs}`"


def _table(rows: Sequence[Row], stale: set[str], section: bool = False) -> str:
    cells = [
        [
            *([row.op] if section else []),
            _mark(row, stale),
            _number(row.us),
            row.fastest.name if row.fastest else "-",
            _number(row.fastest.us if row.fastest else None),
            _ratio(row.ratio),
            _ratio(row.sustained_ratio),
            _ratio(row.ceiling_us / row.us if row.ceiling_us else None),
            *_clocks(row),
            _variant(row),
        ]
        for row in rows
    ]
    own = ["op"] if section else []
    figures = ("ours, µs", "fastest peer", "its µs", "ratio", "on end", "of ceiling", "MHz", "W", "variant")
    return _markdown([*own, "point", *figures], cells)


def peers_added(row: Row, results: Results) -> float | None:
    """The sum of the fastest peers' times of a step's or a prompt's parts; None where a part has no peer."""
    sizes = dict(word.split("=") for word in row.point.split()[1:])
    if row.section == "step":
        b, length, heads = sizes["batch"], sizes["context"], sizes["heads"]
        wanted: tuple[str, ...] = (
            f"scoring decode b={b} len={length} heads=64 next_n=1",
            f"selection default rows={b} len={length} k=2048",
            f"attention bf16 t={b} heads={heads} pages=4096",
        )
    else:
        s, length = sizes["rows"], sizes["context"]
        wanted = (
            f"scoring prefill s={s} skv={length} heads=64",
            f"selection default rows={s} len={length} k=2048",
        )
    fastest = {f"{each.section} {each.point}": each.fastest for each in results.rows}
    peers = [fastest.get(name) for name in wanted]
    return sum(peer.us for peer in peers if peer) if all(peers) else None


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
