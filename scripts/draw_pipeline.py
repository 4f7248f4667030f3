"""Draw docs/images as SVG: from a problem to an op, pipelines with derived barriers, times beside peers.

    python scripts/draw_pipeline.py                    write the committed pictures
    python scripts/draw_pipeline.py <variant id> FILE  draw any generated variant

Pictures are plain text that depends only on a schedule, its barrier plan or recorded figures, so a test can
redraw and compare them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import pairwise, permutations
from pathlib import Path
from textwrap import wrap
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

import ladder  # noqa: E402
import walkthrough  # noqa: E402

from dsl_kernels import programs, variants  # noqa: E402
from dsl_kernels.arch import ArchSpec, get_arch  # noqa: E402
from dsl_kernels.tile.describe import in_words  # noqa: E402
from dsl_kernels.tile.lang import Engine, Schedule, Space  # noqa: E402
from dsl_kernels.tile.plan import PipelinePlan, barrier_plan  # noqa: E402
from dsl_kernels.tile.transfers import Action, transfer_of  # noqa: E402
from dsl_kernels_lab.timing import report, results  # noqa: E402

IMAGES = ROOT / "docs" / "images"
# The variant of sparse attention whose pipelines docs/barriers.md shows.
EXAMPLE = ("sparse_mla", "sm_100a", {"heads": 16, "kv": "bf16", "gather": "cp_async"})

INK, SOFT, LINE, PAPER, PANEL = "#1f2328", "#59636e", "#b6bec8", "#ffffff", "#f4f6f8"
COLOURS = {
    Engine.BULK: "#0a69da",
    Engine.CP_ASYNC: "#0a69da",
    Engine.PEERS: "#0a69da",
    Engine.GRID: "#0a69da",
    Engine.THREADS: "#b35900",
    Engine.WGMMA: "#7a3fc4",
    Engine.TCGEN05: "#7a3fc4",
    Engine.TMEM: "#1a7f37",
}
MEANINGS = {
    "#0a69da": "copies from global memory",
    "#b35900": "threads' loads and stores",
    "#7a3fc4": "tensor cores",
    "#1a7f37": "tensor-memory loads and stores",
}
LANE, MARGIN, ROW, HEADER = 376, 165, 104, 92


class Drawing:
    """SVG elements in the order they are drawn."""

    def __init__(self) -> None:
        self.items: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 12,
        fill: str = INK,
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.items.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{fill}" text-anchor="{anchor}"{weight}>'
            f"{escape(text)}</text>"
        )

    def box(
        self,
        x: float,
        y: float,
        w: float,
        h: float,
        *,
        fill: str = PANEL,
        stroke: str = LINE,
        radius: float = 6,
    ) -> None:
        self.items.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="{radius:g}" fill="{fill}" '
            f'stroke="{stroke}"/>'
        )

    def line(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        *,
        stroke: str = LINE,
        dashes: str = "",
        width: float = 1,
    ) -> None:
        style = f' stroke-dasharray="{dashes}"' if dashes else ""
        self.items.append(
            f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{stroke}" '
            f'stroke-width="{width:g}"{style}/>'
        )

    def arrow(
        self,
        x1: float,
        y1: float,
        x2: float,
        y2: float,
        *,
        stroke: str = SOFT,
        dashes: str = "",
        width: float = 1.5,
    ) -> None:
        """A horizontal or vertical line with a head at its end."""
        along = 1 if (x2 - x1) + (y2 - y1) > 0 else -1
        if y1 == y2:
            head, end = [(x2, y2), (x2 - 8 * along, y2 - 4), (x2 - 8 * along, y2 + 4)], (x2 - 7 * along, y2)
        else:
            head, end = [(x2, y2), (x2 - 4, y2 - 8 * along), (x2 + 4, y2 - 8 * along)], (x2, y2 - 7 * along)
        self.line(x1, y1, *end, stroke=stroke, dashes=dashes, width=width)
        self.items.append(f'<polygon points="{" ".join(f"{x:g},{y:g}" for x, y in head)}" fill="{stroke}"/>')

    def svg(self, width: float, height: float, title: str) -> str:
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
                f'viewBox="0 0 {width:g} {height:g}"'
                f' font-family="DejaVu Sans, Verdana, Helvetica, Arial, sans-serif" role="img" '
                f'aria-label="{escape(title)}">',
                f'<rect width="{width:g}" height="{height:g}" rx="8" fill="{PAPER}"/>',
                *self.items,
                "</svg>\n",
            ]
        )


PATH = (
    ("problem", "<op>/problem.py", "operands, least bytes, sizes that are timed"),
    ("tile program", "<op>/program.py", "buffers, roles, pipelines, one text, knobs"),
    ("check", "codegen/check.py", "does it fit the architecture?"),
    ("frame, spelling", "templates/<dsl>/", "how one DSL writes each statement"),
    ("generated", "generated/<arch>/", "readable, named sizes"),
    ("artifact", "runtime/", "PTX, cubin, launch description"),
    ("registry", "registry.py", "which variant, and why"),
    ("op", "ops/, dsa.py", "torch ops, whole DSA steps"),
)
DERIVED = (
    ("barrier plan", "tile/plan.py"),
    ("interpreter", "tile/interpreter.py"),
    ("cost model", "tile/cost.py"),
    ("describe", "tile/describe.py"),
)
EXECUTORS = (
    ("cuda", "the cubin on a GPU"),
    ("emulator", "its PTX on a CPU, checked"),
    ("interpreter", "the tile program on a CPU"),
)


def path_picture() -> str:
    """The steps from a problem to an op, what else a tile program determines, and the three executors."""
    d, box, gap, top = Drawing(), 136, 20, 34
    width = 2 * 20 + len(PATH) * box + (len(PATH) - 1) * gap
    left = [20 + i * (box + gap) for i in range(len(PATH))]
    for x, (name, place, says) in zip(left, PATH, strict=True):
        d.box(x, top, box, 98, fill="#eaf2ff" if name == "tile program" else PANEL)
        d.text(x + box / 2, top + 21, name, size=14, bold=True)
        d.text(x + box / 2, top + 38, place, size=10.5, fill=SOFT)
        for i, line in enumerate(wrap(says, 22)):
            d.text(x + box / 2, top + 56 + 14 * i, line, size=11)
    for a, b in pairwise(left):
        d.arrow(a + box, top + 49, b, top + 49)

    def group(index: int, title: str, rows: tuple[tuple[str, str], ...], columns: int, wide: float) -> None:
        high = top + 98 + 58
        count = -(-len(rows) // columns)
        w, h = columns * wide + 10, count * 44 + 34
        x = min(max(20, left[index] + box / 2 - w / 2), width - 20 - w)
        d.arrow(left[index] + box / 2, top + 98, left[index] + box / 2, high)
        d.box(x, high, w, h, fill=PAPER)
        d.text(x + w / 2, high + 19, title, size=11.5, fill=SOFT)
        for i, (name, says) in enumerate(rows):
            cx, cy = x + 10 + i % columns * wide, high + 30 + i // columns * 44
            d.box(cx, cy, wide - 10, 36)
            d.text(cx + (wide - 10) / 2, cy + 15, name, size=12, bold=True)
            d.text(cx + (wide - 10) / 2, cy + 29, says, size=10, fill=SOFT)

    group(1, "all derived from the one declaration", DERIVED, 4, 132)
    group(6, "three executors run the same variant behind one interface", EXECUTORS, 3, 186)
    return d.svg(width, top + 98 + 58 + 78 + 20, "The path from a problem to an op")


def lanes(schedule: Schedule) -> list[str]:
    """Role names from left to right, in the order that keeps arrows short, copying roles first."""
    names = [role.name for role in schedule.roles]
    pairs = [(pipe.producer, reader.role) for pipe in schedule.pipelines for reader in pipe.readers]
    copiers = {pipe.producer for pipe in schedule.pipelines if transfer_of(pipe).COPIES}

    def cost(order: tuple[str, ...]) -> tuple[int, int]:
        return sum(abs(order.index(a) - order.index(b)) for a, b in pairs), sum(
            order.index(name) for name in copiers
        )

    return list(min(permutations(names), key=cost)) if len(names) <= 6 else names


def pipeline_picture(schedule: Schedule, arch: ArchSpec, title: str) -> str:
    """A column per role; a row per pipeline with its ring, both barriers and each side's steps."""
    d, plan, order = Drawing(), barrier_plan(schedule), lanes(schedule)
    x_of = {name: MARGIN + LANE * i for i, name in enumerate(order)}
    width = 2 * MARGIN + LANE * (len(order) - 1)
    top = 58
    height = top + HEADER + 22 + ROW * len(plan.pipelines) + 46
    d.text(20, 28, title, size=15, anchor="start", bold=True)
    total = schedule.smem_bytes() + plan.smem_bytes
    tmem = (
        f", {schedule.tmem_columns()} of {arch.tmem_columns} tensor-memory columns"
        if schedule.tmem_columns()
        else ""
    )
    d.text(
        20, 46, f"{schedule.threads} threads, {total} of {arch.smem_per_cta} bytes of shared memory{tmem}",
        size=11.5,
        fill=SOFT, anchor="start",
    )  # fmt: skip
    for name, x in x_of.items():
        role = schedule.role(name)
        first = schedule.first_thread(name)
        d.line(x, top + HEADER, x, height - 40)
        d.box(x - 145, top, 290, HEADER)
        d.text(x, top + 21, name, size=14, bold=True)
        budget = f", {role.registers} registers" if role.registers else ""
        d.text(x, top + 38, f"threads {first} to {first + role.threads - 1}{budget}", size=11, fill=SOFT)
        units = ", ".join(f"{m.name} {m.m}x{m.n}x{m.k}" for m in schedule.mmas if m.role == name)
        for i, line in enumerate([*wrap(role.doc, 42), *wrap(units, 48)][:3]):
            d.text(x, top + 54 + 14 * i, line, size=10)
    y = top + HEADER + 22
    for item in plan.pipelines.values():
        _row(d, schedule, item, x_of, y)
        y += ROW
    _legend(d, plan.pipelines.values(), 20, height - 18)
    return d.svg(width, height, title)


def _row(d: Drawing, schedule: Schedule, item: PipelinePlan, x_of: dict[str, float], y: float) -> None:
    pipe, start = item.pipeline, x_of[item.pipeline.producer]
    colour = COLOURS[pipe.fill]
    ends = {reader.role: x_of[reader.role] for reader in pipe.readers}
    near = min(ends.values(), key=lambda x: abs(x - start))
    toward = 1 if near > start else -1
    middle = start + toward * LANE / 2
    buffers = "; ".join(_buffer(schedule, name) for name in pipe.buffers) or "no buffer"
    d.text(middle, y + 10, f"{pipe.name}: {buffers}", size=11.5, bold=True)
    _ring(d, middle, y + 17, pipe.stages, colour)
    if item.full is not None:
        tx = f", {item.full.tx_bytes} bytes" if item.full.tx_bytes else ""
        d.text(
            middle, y + 44, f"full x{item.full.count}{tx}: {in_words(item.commit)}", size=10.5, fill=colour
        )
    for reader in pipe.readers:
        end = ends[reader.role]
        side = 1 if end > start else -1
        d.arrow(start, y + 50, end, y + 50, stroke=colour, width=2)
        if end == near or (end > start) != (near > start):
            d.text(
                end - side * 10,
                y + 64,
                in_words(item.wait[reader.role]),
                size=10,
                fill=SOFT,
                anchor="end" if side > 0 else "start",
            )
        if item.empty is not None:
            d.arrow(end, y + 86, start, y + 86, stroke=SOFT, dashes="4 3")
    if item.empty is not None:
        back = " + ".join(
            dict.fromkeys(
                in_words(tuple(a for a in item.release[r.role] if a is not Action.WAIT_FULL))
                for r in pipe.readers
            )
        )
        d.text(middle, y + 81, f"empty x{item.empty.count}: {back}", size=10.5, fill=SOFT)
    else:
        says = (
            f"comes back with {pipe.returned_by}'s full barrier" if pipe.returned_by else "handed over once"
        )
        d.text(middle, y + 81, says, size=10.5, fill=SOFT)
    d.items.append(f'<circle cx="{start:g}" cy="{y + 50:g}" r="4" fill="{colour}"/>')


def _buffer(schedule: Schedule, name: str) -> str:
    buffer = schedule.buffer(name)
    where = " tmem" if buffer.space is Space.TENSOR else ""
    return f"{name} {'x'.join(map(str, buffer.shape))} {buffer.dtype}{where}"


def _ring(d: Drawing, middle: float, y: float, stages: int, colour: str) -> None:
    cell = 13
    left = middle - stages * cell / 2
    for i in range(stages):
        d.box(left + i * cell, y, cell - 2, 10, fill=colour if i == 0 else PAPER, stroke=colour, radius=2)


def _legend(d: Drawing, plans: object, x: float, y: float) -> None:
    used = dict.fromkeys(COLOURS[item.pipeline.fill] for item in plans)  # type: ignore[attr-defined]
    for colour in used:
        d.box(x, y - 9, 11, 10, fill=colour, stroke=colour, radius=2)
        d.text(x + 17, y, f"filled by {MEANINGS[colour]}", size=11, fill=SOFT, anchor="start")
        x += 100 + 6.2 * len(MEANINGS[colour])
    d.text(x, y, "squares: slots of the ring; dashed: the slot goes back", size=11, fill=SOFT, anchor="start")


def example(backend: str = "tilelang") -> variants.Variant:
    """The generated variant of `EXAMPLE` in one DSL."""
    op, arch, wanted = EXAMPLE
    candidates = variants.variants(op, backend=backend, arch=arch)
    return next(v for v in candidates if wanted.items() <= dict(v.knobs).items())


def draw(variant: variants.Variant) -> str:
    """The pipeline picture of one variant."""
    arch = get_arch(variant.arch)
    return pipeline_picture(programs.get(variant.op).schedule(variant.knobs, arch), arch, variant.id)


RESULTS_GPU = "NVIDIA H200"
# Titles of the groups of points, by op and form.
GROUPS = {
    ("lightning_indexer", "decode"): "scoring, decode",
    ("lightning_indexer", "prefill"): "prompt",
    ("topk_selector", "default"): "selection",
    ("sparse_mla", "bf16"): "attention, bf16",
    ("sparse_mla", "fp8"): "attention, fp8",
    ("sparse_mla", "v4"): "attention, v4",
    ("sparse_mla", "nope"): "nope",
    ("gqa_forward", "fp16"): "GQA",
    ("gqa_forward", "bf16"): "GQA",
    ("resample_trajectories", "default"): "resampling",
}


@dataclass(frozen=True)
class Beside:
    """Points by group, each with its time over the fastest peer's; the peers, and how times were taken."""

    groups: dict[str, list[tuple[float, str]]]
    peers: list[str]
    taken: str

    @property
    def slower(self) -> list[tuple[float, str]]:
        """The points slower than a peer, the slowest first, with their groups."""
        points = [
            (r, f"{title}, {sizes}") for title, points in self.groups.items() for r, sizes in points if r > 1
        ]
        return sorted(points, key=lambda point: -point[0])


def beside_peers(folder: Path = ROOT) -> Beside:
    """The comparison within one `bench --record` run, or else between recorded tuned times and peer times."""
    run = results.read(results.path_of(RESULTS_GPU, folder))
    return _recorded() if run is None else _of_one_run(run)


def _of_one_run(run: results.Results) -> Beside:
    by_title: dict[str, list[tuple[float, str]]] = {title: [] for title in GROUPS.values()}
    for row in run.rows:
        if row.ratio is not None and (title := GROUPS.get((row.op, row.form))):
            sizes = ", ".join(row.point.split()[1:])
            by_title[title].append(
                (row.ratio, sizes + (" (kernel changed since)" if results.changed(row) else ""))
            )
    names = sorted({peer.name for row in run.rows for peer in row.peers})
    groups = {title: sorted(points) for title, points in by_title.items() if points}
    return Beside(groups, names, f"in turns on one card, at commit {run.commit}")


def _recorded() -> Beside:
    peers = report.peers_of(RESULTS_GPU)
    by_title: dict[str, list[tuple[float, str]]] = {title: [] for title in GROUPS.values()}
    named = set()
    for row in report.read([]):
        peer, title = peers.of(row), GROUPS.get((row["op"], row["form"]))
        if row["environment"]["gpu"] == RESULTS_GPU and peer is not None and title is not None:
            sizes = {
                name: row[name] for name in ("heads", "t", "b", "rows", "s", "len", "skv") if name in row
            }
            by_title[title].append((row["us"] / peer.us, ", ".join(f"{k}={v}" for k, v in sizes.items())))
            named.add(peer.peer)
    groups = {title: sorted(points) for title, points in by_title.items() if points}
    return Beside(groups, sorted(named), "peers as recorded, ours as tuned: not one run")


def results_picture(folder: Path = ROOT) -> str:
    """A bar per point, as high as its time over the fastest peer's; points slower than the peer are named."""
    drawing, beside = Drawing(), beside_peers(folder)
    groups = beside.groups
    most = max(1.1, *(ratio for points in groups.values() for ratio, _ in points))
    step, gap, left, top, height = 11, 26, 52, 62, 200
    count = sum(map(len, groups.values()))
    width = left + count * step + gap * len(groups) + 12

    def at(ratio: float) -> float:
        return top + height * (1 - ratio / most)

    slower = sum(ratio > 1 for points in groups.values() for ratio, _ in points)
    drawing.text(
        left,
        24,
        f"Time over the fastest peer's at {count} sizes, {RESULTS_GPU}",
        size=14,
        anchor="start",
        bold=True,
    )
    drawing.text(
        left, 44, f"{count - slower} faster, {slower} slower; {beside.taken}", size=11, fill=SOFT,
        anchor="start"
    )  # fmt: skip
    for tick in (0.25, 0.5, 0.75, 1.0):
        drawing.line(
            left - 4,
            at(tick),
            width - 12,
            at(tick),
            stroke=INK if tick == 1 else LINE,
            dashes="" if tick == 1 else "3 3",
        )
        drawing.text(left - 8, at(tick) + 4, f"{tick:g}", size=11, fill=SOFT, anchor="end")
    x, named = float(left + gap / 2), []
    for title, points in groups.items():
        drawing.text(x + len(points) * step / 2, top + height + 18, title, size=11)
        for ratio, sizes in points:
            colour = "#b35900" if ratio > 1 else "#0a69da"
            drawing.line(x + step / 2, at(0), x + step / 2, at(ratio), stroke=colour, width=6)
            named += [f"{title}, {sizes}: {ratio:.2f}"] if ratio > 1 else []
            x += step
        x += gap
    for i, text in enumerate(named):
        drawing.text(left, top + height + 44 + 16 * i, text, size=11, fill="#b35900", anchor="start")
    return drawing.svg(
        width, top + height + 44 + 16 * len(named), f"time over the fastest peer's at {count} sizes"
    )


STAGES = (
    ("score", "own keys"),
    ("select", "topk of own"),
    ("entries", "score, position, id"),
    ("select", "topk of all entries"),
    ("attend", "own selected tokens"),
    ("partial outputs", "out, lse"),
    ("merge", "in rank order"),
)


def exchanges_picture() -> str:
    """A step on two ranks: what each rank does alone, and the two exchanges between them."""
    d, box, high, gap, left, top = Drawing(), 134, 52, 20, 92, 40
    lanes = [top + lane * (high + 40) for lane in range(2)]
    at = [left + i * (box + gap) for i in range(len(STAGES))]
    for lane, y in enumerate(lanes):
        d.text(20, y + high / 2 + 4, f"rank {lane}", size=13, anchor="start", bold=True)
        for a, b in pairwise(at):
            d.arrow(a + box, y + high / 2, b, y + high / 2)
    for x, (name, says) in zip(at, STAGES, strict=True):
        exchanged = name in ("entries", "partial outputs")
        for y in lanes[:1] if exchanged else lanes:
            tall = lanes[1] - lanes[0] + high if exchanged else high
            d.box(x, y, box, tall, fill="#eaf2ff" if exchanged else PANEL)
            d.text(x + box / 2, y + tall / 2 - 3, name, size=13, bold=True)
            d.text(x + box / 2, y + tall / 2 + 14, says, size=10.5, fill=SOFT)
        if exchanged:
            d.text(x + box / 2, top - 14, "all to all ranks", size=10.5, fill=SOFT)
        elif x == at[3]:
            d.text(x + box / 2, top - 14, "alike on all ranks", size=10.5, fill=SOFT)
    width = at[-1] + box + 20
    return d.svg(width, lanes[1] + high + 24, "A step on two ranks and its two exchanges")


def rung_picture(rung: str) -> str:
    """The picture of an example's pipelines."""
    sketch = ladder.sketch(rung)
    return pipeline_picture(sketch.schedule, get_arch(sketch.arch), f"examples/{rung}.py")


def pictures() -> dict[Path, str]:
    """Every committed picture by its path."""
    return {
        IMAGES / "path.svg": path_picture(),
        IMAGES / "pipeline.svg": draw(example()),
        IMAGES / "issuing_warp.svg": draw(walkthrough.variant()),
        IMAGES / "results.svg": results_picture(),
        IMAGES / "exchanges.svg": exchanges_picture(),
        **{
            IMAGES / f"ladder_{rung}.svg": rung_picture(rung)
            for rung in ladder.RUNGS
            if ladder.sketch(rung).schedule.pipelines
        },
    }


def main(arguments: list[str]) -> int:
    if len(arguments) == 2:
        Path(arguments[1]).write_text(draw(variants.get(arguments[0])))
        return 0
    if arguments:
        print(__doc__, file=sys.stderr)
        return 2
    IMAGES.mkdir(parents=True, exist_ok=True)
    for path, text in pictures().items():
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
