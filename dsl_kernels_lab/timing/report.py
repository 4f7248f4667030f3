"""A page of the records of `bench --out`, beside peers and ceilings, with pictures, in HTML or Markdown.

Points where a published figure of a peer is faster come first. These figures are in
`dsl_kernels_lab/records/<gpu>_peers.json`, which names the run that they come from.
"""

from __future__ import annotations

import base64
import html
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsl_kernels import measured as tables
from dsl_kernels.arguments import checked
from dsl_kernels.errors import ArtifactError, CacheError, InvalidArgumentError, ToolchainError
from dsl_kernels.measured import slug
from dsl_kernels.runtime.storage import write_atomically

from .. import RECORDS
from . import bench, grids

Record = Mapping[str, Any]

SCHEMA = 1
# The sizes of a point that does not state them.
USUAL = {"pages": 4096, "k": 2048, "topk": 2048, "next_n": 1, "scores": "normal", "ids": "random"}
# Size of a tuned point -> its name in a grid's point.
RENAMED = {"max_len": "len"}
SUFFIXES = (".html", ".md")
# The most curves of a picture, and the most pictures of an operation's form.
MOST_CURVES = 10
MOST_SIZES = 2
# The least number of values that makes a size an axis.
FEWEST_VALUES = 3


@dataclass(frozen=True)
class Peer:
    """A published figure: microseconds of a peer at a point, and of ours in the same run."""

    op: str
    form: str
    sizes: Mapping[str, Any]
    peer: str
    us: float
    ours_us: float | None = None


@dataclass(frozen=True)
class Peers:
    """Published figures of one GPU, and their source."""

    source: str = ""
    method: str = ""
    ours: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    figures: Sequence[Peer] = ()

    def of(self, record: Record) -> Peer | None:
        """The figure for a record's point, or None."""
        wanted = _completed(grids.sizes_of(record))
        return next(
            (
                peer
                for peer in self.figures
                if (peer.op, peer.form) == (record["op"], record["form"]) and _completed(peer.sizes) == wanted
            ),
            None,
        )


def _completed(sizes: Mapping[str, Any]) -> dict[str, Any]:
    return {**USUAL, **sizes}


@checked
def peers_of(gpu: str, folder: Path | None = None) -> Peers:
    """The published figures of a GPU; empty where none were collected.

    Raises:
        ArtifactError: the file is damaged or has another schema.
    """
    path = (folder or RECORDS) / f"{slug(gpu)}_peers.json"
    if not path.exists():
        return Peers()
    try:
        content = json.loads(path.read_text())
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}")
        figures = tuple(Peer(**figure) for figure in content["figures"])
        source, method, ours = (str(content[name]) for name in ("source", "method", "ours"))
        return Peers(source, method, ours, dict(content["versions"]), tuple(content["notes"]), figures)
    except (ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            str(path),
            expected=f"peers of schema {SCHEMA}",
            got=f"{type(error).__name__}: {error}",
            fix="restore it",
        ) from None


@checked
def read(files: Sequence[Path]) -> list[dict[str, Any]]:
    """The records of files; without files, the winners of the shipped tuned tables as records.

    Raises:
        InvalidArgumentError: a file does not exist, or holds no record.
    """
    records: list[dict[str, Any]] = []
    for path in files:
        mine = [row for row in bench.read_records(path) if _is_record(row)]
        if not mine:
            raise InvalidArgumentError(
                str(path),
                expected="records of `bench --out` or of benchmarks/decode_step.py",
                got="none" if path.exists() else "no such file",
                fix="name a file that one of them wrote",
            )
        records += mine
    return records if files else _of_tuned_tables()


def _is_record(row: Mapping[str, Any]) -> bool:
    timed = (
        isinstance(row.get("op"), str)
        and isinstance(row.get("form"), str)
        and isinstance(row.get("us"), int | float)
    )
    return timed or isinstance(row.get("time"), dict)


def _of_tuned_tables() -> list[dict[str, Any]]:
    records = []
    for path in sorted(tables.TUNED.glob("*.json")):
        content = json.loads(path.read_text())
        for entry in content.get("entries", ()):
            if "us" in entry and isinstance(entry["us"], dict):
                sizes = {RENAMED.get(name, name): value for name, value in entry["bucket"].items()}
                records.append(
                    {
                        "op": entry["op"],
                        "form": entry["form"],
                        **sizes,
                        "variant": entry["variant"],
                        "us": entry["us"][entry["variant"]],
                        "environment": content["metadata"],
                    }
                )
    return records


@dataclass(frozen=True)
class Table:
    """Rows under their columns; numbers are not formatted yet."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Picture:
    """A picture and its title."""

    title: str
    png: bytes


@dataclass
class Page:
    """A page as blocks: ("title" | "heading" | "text", str), Table or Picture."""

    blocks: list[Any] = field(default_factory=list)

    def add(self, *blocks: Any) -> None:
        self.blocks += blocks

    def markdown(self, pictures: Mapping[int, str] | None = None) -> str:
        """The page in Markdown; `pictures`: place in `blocks` -> file; others are left out."""
        parts = []
        for place, block in enumerate(self.blocks):
            if isinstance(block, Table):
                parts.append(_markdown_table(block))
            elif isinstance(block, Picture):
                parts += [f"![{block.title}]({pictures[place]})"] if pictures and place in pictures else []
            else:
                kind, text = block
                parts.append({"title": "# ", "heading": "## "}.get(kind, "") + text)
        return "\n\n".join(parts) + "\n"

    def html(self) -> str:
        """The page in HTML, with its pictures embedded."""
        parts = []
        for block in self.blocks:
            if isinstance(block, Table):
                parts.append(_html_table(block))
            elif isinstance(block, Picture):
                encoded = base64.b64encode(block.png).decode()
                parts.append(f'<img alt="{html.escape(block.title)}" src="data:image/png;base64,{encoded}">')
            else:
                kind, text = block
                tag = {"title": "h1", "heading": "h2"}.get(kind, "p")
                parts.append(f"<{tag}>{html.escape(text)}</{tag}>")
        title = next(
            (text for kind, text in (b for b in self.blocks if isinstance(b, tuple)) if kind == "title"), ""
        )
        head = f'<meta charset="utf-8"><title>{html.escape(title)}</title>\n<style>{_STYLE}</style>'
        body = "\n".join(parts)
        return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{body}\n</body></html>\n'

    def write(self, path: Path) -> list[Path]:
        """Write the page (in Markdown with its pictures in files beside it); gives the files written.

        Raises:
            InvalidArgumentError: the name ends in neither .html nor .md.
            CacheError: a file cannot be written.
        """
        if path.suffix not in SUFFIXES:
            raise InvalidArgumentError(
                "--out", expected="a page.html or page.md", got=repr(path.name), fix="name it so"
            )
        files: dict[Path, bytes] = {}
        names: dict[int, str] = {}
        if path.suffix == ".md":
            for place, block in enumerate(self.blocks):
                if isinstance(block, Picture):
                    names[place] = f"{path.stem}_{len(names) + 1}.png"
                    files[path.with_name(names[place])] = block.png
        text = self.markdown(names) if path.suffix == ".md" else self.html()
        files[path] = text.encode()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for file, content in files.items():
                write_atomically(file, content)
        except OSError as error:
            raise CacheError(
                str(path), expected="a file that can be written", got=str(error), fix="name another file"
            ) from None
        return list(files)


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72em;margin:2em auto;padding:0 1em;color:#222}"
    "table{border-collapse:collapse;margin:1em 0;font-size:13px}"
    "th,td{padding:.2em .7em;border-bottom:1px solid #ddd;text-align:left}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}"
    "img{max-width:100%;display:block;margin:1em 0}"
)


def _spelled(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:#.3g}" if 0 < abs(value) < 100 else f"{value:.0f}"
    return str(value)


def _markdown_table(table: Table) -> str:
    lines = [list(table.columns), ["---"] * len(table.columns)]
    lines += [[_spelled(cell).replace("|", "\\|") for cell in row] for row in table.rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in table.columns)
    rows = []
    for row in table.rows:
        kinds = [' class="n"' if isinstance(cell, int | float) else "" for cell in row]
        cells = (
            f"<td{kind}>{html.escape(_spelled(cell))}</td>" for kind, cell in zip(kinds, row, strict=True)
        )
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>"


@checked
def page(records: Sequence[Mapping[str, Any]], folder: Path | None = None) -> Page:
    """The page of records.

    Args:
        records: Records of `bench --out`, or of the tuned tables.
        folder: The folder of the peers' figures; by default the library's.
    """
    made = Page()
    made.add(("title", "Measured times"))
    by_gpu: dict[str, list[Record]] = {}
    for record in records:
        by_gpu.setdefault(record.get("environment", {}).get("gpu") or "a GPU without a name", []).append(
            record
        )
    for gpu, mine in by_gpu.items():
        _add_gpu(made, gpu, mine, peers_of(gpu, folder))
    return made


def _add_gpu(made: Page, gpu: str, records: Sequence[Record], peers: Peers) -> None:
    timed = _fastest(r for r in records if "us" in r and not r.get("regret"))
    compared = [(record, peer) for record in timed if (peer := peers.of(record)) is not None]
    slower = sorted(
        ((r, p) for r, p in compared if p.us < r["us"]), key=lambda pair: pair[1].us / pair[0]["us"]
    )
    made.add(("text", f"{gpu}. {_conditions(records)}"))
    if peers.figures:
        made.add(("heading", f"Where a peer is faster ({gpu})"))
        if slower:
            made.add(("text", f"{len(slower)} of {len(compared)} points that a published figure exists for:"))
            made.add(_peer_table(slower))
        else:
            made.add(("text", f"At none of the {len(compared)} points that a published figure exists for."))
    for (op, form), mine in _groups(timed).items():
        made.add(("heading", f"{op} {form}"), _own_table(mine))
        made.add(*_pictures(op, form, mine))
    steps = [record for record in records if isinstance(record.get("time"), dict)]
    if steps:
        made.add(("heading", "The decode step"), _step_table(steps))
    for own, where in grids.JUDGED.items():
        lost = [r for r in records if r.get("regret") and r.get("own", True) is own]
        if lost:
            made.add(("heading", f"What selection loses {where}"), *_regret_blocks(lost))
    if compared:
        made.add(("heading", "All published figures"), _peer_table(compared))
    if peers.figures:
        versions = ", ".join(f"{name} {version}" for name, version in peers.versions.items())
        source = f"{peers.source}. {peers.method}. Ours of that run: {peers.ours}"
        made.add(
            (
                "text",
                f"Published figures: {source}. {versions}.",
            ),
            *(("text", note) for note in peers.notes),
        )


def _conditions(records: Sequence[Record]) -> str:
    facts = [record.get("environment", {}) for record in records]

    def all_of(name: str) -> str:
        return ", ".join(sorted({str(fact[name]) for fact in facts if fact.get(name)})) or "not recorded"

    return (
        f"{len(records)} records; date {all_of('date')}, driver {all_of('driver')}, torch {all_of('torch')}, "
        f"commit {all_of('commit')}. A ceiling is the time in which the same card fetches the same bytes by "
        "the fastest way found."
    )


def _fastest(records: Iterable[Record]) -> list[Record]:
    """The fastest record of each point."""
    best: dict[str, Record] = {}
    for record in records:
        key = json.dumps([record["op"], record["form"], grids.sizes_of(record)], sort_keys=True)
        if key not in best or record["us"] < best[key]["us"]:
            best[key] = record
    return list(best.values())


def _groups(records: Sequence[Record]) -> dict[tuple[str, str], list[Record]]:
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record["op"], record["form"]), []).append(record)
    return groups


def _point(record: Record) -> str:
    return " ".join(f"{name}={value}" for name, value in grids.sizes_of(record).items())


def _peer_table(pairs: Sequence[tuple[Record, Peer]]) -> Table:
    rows = [
        (r["op"], f"{r['form']} {_point(r)}", float(r["us"]), p.us, r["us"] / p.us, p.peer, p.ours_us,
         p.ours_us / p.us if p.ours_us else None)
        for r, p in pairs
    ]  # fmt: skip
    columns = (
        "op",
        "point",
        "ours us",
        "peer us",
        "ours / peer",
        "peer",
        "ours us in the peers' run",
        "ours / peer there",
    )
    return Table(columns, rows)


def _own_table(records: Sequence[Record]) -> Table:
    def cells(r: Record) -> dict[str, Any]:
        sustained = r.get("sustained") or {}
        clocks = sustained or (r.get("clocks") or {}).get("after") or {}
        rates = [rate for unit, rate in r.get("tflops", {}).items() if "float" in unit]
        step = r.get("step") or {}
        return {
            "point": _point(r),
            "us": float(r["us"]),
            "GB/s": r.get("gbps"),
            "TFLOP/s": max(rates, default=None),
            "ceiling us": r.get("ceiling_us"),
            "% of attainable": 100 / r["ratio"] if r.get("ratio") else None,
            "Triton us": r.get("triton_us"),
            "adds to a step us": step.get("marginal"),
            "sustained us": sustained.get("us"),
            "MHz": clocks.get("sm_mhz"),
            "W": clocks.get("watts"),
            "variant": r.get("variant", "").split("__", 1)[-1],
        }

    cells_of = [cells(record) for record in records]
    columns = list(cells_of[0]) if cells_of else []
    rows = [list(each.values()) for each in cells_of]
    shown = [at for at in range(len(columns)) if any(row[at] is not None for row in rows)]
    return Table([columns[at] for at in shown], [[row[at] for at in shown] for row in rows])


def _step_table(records: Sequence[Record]) -> Table:
    rows = []
    for r in records:
        time, parts = r["time"], r["time"].get("ops", {})
        rows.append(
            (r.get("t"), r.get("context"), time["step"]["us"], parts.get("lightning_indexer"),
             parts.get("topk_selector"), parts.get("sparse_mla"), time.get("marginal"))
        )  # fmt: skip
    return Table(
        ("T", "context", "step us", "scoring us", "selection us", "attention us", "attention adds us"), rows
    )


@checked
def regrets(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What selection loses, by operation: its points, the mean and the worst loss, and the worst point."""
    summary = []
    for op in dict.fromkeys(record["op"] for record in records if record.get("regret")):
        mine = [record for record in records if record["op"] == op and record.get("regret")]
        worst = max(mine, key=lambda record: record["regret"]["lost"])
        mean = sum(record["regret"]["lost"] for record in mine) / len(mine)
        summary.append(
            {
                "op": op,
                "points": len(mine),
                "mean": mean,
                "worst": worst["regret"]["lost"],
                "where": worst["point"],
            }
        )
    return summary


def _regret_blocks(records: Sequence[Record]) -> list[Any]:
    summary = regrets(list(records))
    rows = [(s["op"], s["points"], 100 * s["mean"], 100 * s["worst"], s["where"]) for s in summary]
    worst = sorted(records, key=lambda record: -record["regret"]["lost"])[:10]
    detail = [
        (r["op"], f"{r['form']} {_point(r)}", float(r["us"]), r["regret"]["us"], 100 * r["regret"]["lost"],
         r["variant"].split("__", 1)[-1], r["regret"]["best"].split("__", 1)[-1])
        for r in worst
    ]  # fmt: skip
    return [
        Table(("op", "points", "mean %", "worst %", "worst at"), rows),
        Table(("op", "point", "selected us", "best us", "lost %", "selected", "best"), detail),
    ]


def _pictures(op: str, form: str, records: Sequence[Record]) -> list[Any]:
    """Pictures of the time over each size with several values, and of the fraction of the attainable rate.

    A note without matplotlib.
    """
    axes = _axes(records)
    if not axes:
        return []
    try:
        from ..cases import _figures

        measured = [record for record in records if record.get("ratio")]
        figure, panels = _figures.panels(len(axes) + bool(measured), f"{op} {form}", dict(records[0]))
    except (ToolchainError, ImportError):
        return [("text", "No pictures: they need matplotlib (`pip install 'dsl-kernels-lab[profile]'`).")]
    for axis, size in zip(panels, axes, strict=False):
        _figures.lines(axis, _curves(records, size, lambda r: float(r["us"])), size, "us")
    if measured:
        share = _curves(measured, axes[0], lambda r: 1 / r["ratio"])
        _figures.lines(panels[-1], share, axes[0], "achieved / attainable bandwidth", logy=False)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return [Picture(f"{op} {form}: us against {' and '.join(axes)}", png.getvalue())]


def _axes(records: Sequence[Record]) -> list[str]:
    """The sizes to use as axes: those along which the most points are on curves."""
    names = dict.fromkeys(name for record in records for name in grids.sizes_of(record))
    points = {}
    for name in names:
        curves = _curves(records, name, lambda record: 0.0).values()
        if len({x for curve in curves for x, _ in curve}) >= FEWEST_VALUES:
            points[name] = sum(map(len, curves))
    return sorted(points, key=lambda name: -points[name])[:MOST_SIZES]


def _curves(records: Sequence[Record], size: str, figure: Any) -> dict[str, list[tuple[float, float]]]:
    """Curves of points that differ only in one size, the longest ones, labelled by their other sizes."""
    curves: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for record in records:
        sizes = grids.sizes_of(record)
        if isinstance(sizes.get(size), int) and sizes[size] > 0:
            rest = tuple((name, value) for name, value in sizes.items() if name != size)
            curves.setdefault(rest, []).append((sizes[size], figure(record)))
    several = (rest for rest in curves if len(curves[rest]) > 1)
    kept = sorted(several, key=lambda rest: -len(curves[rest]))[:MOST_CURVES]
    same = set.intersection(*map(set, kept)) if len(kept) > 1 else set()
    return {
        " ".join(f"{name}={value}" for name, value in rest if (name, value) not in same) or "all": curves[
            rest
        ]
        for rest in sorted(kept, key=lambda rest: [(isinstance(value, str), value) for _, value in rest])
    }
