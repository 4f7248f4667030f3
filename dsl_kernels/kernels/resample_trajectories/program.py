"""Resampling as a tile program: a CTA takes a tile of one trajectory's targets, a thread takes a target.

Each thread finds its target among the times. Then all threads together blend the rows: neighbouring threads
have neighbouring pieces. The knob `search` says how a target is found. The plain search reads global memory.
The search for trajectories of any length bounds a window of times by the tile's least and largest target, and
stages the window if it fits. A tile whose targets ascend can be merged with its window: stretches of times
and rows go through shared memory, each row once.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ... import problems
from ...arch import ArchSpec
from ...tile.frontend import Boolean, Float32, Int32, Names, State, inline, recorded
from ...tile.lang import START, Body, Buffer, Guard, Knob, Role, Schedule, Size, Space
from ...tile.program import TileProgram
from ...tile.text import Changes, Global, Recorder, Value, View, ceildiv, dim, minimum
from . import leaves as leaf

STAGED = Size(8192, "STAGED")
"""Times that a CTA stages: 32 KiB, so several CTAs share an SM."""

STRETCH = Size(1024, "STRETCH")
STRETCH_ELEMENTS = Size(16384, "STRETCH_ELEMENTS")
"""A stretch that is merged: at most STRETCH rows and STRETCH_ELEMENTS elements, 32 KiB."""

TILES = 65535
"""CTAs along the second axis of a grid."""

KNOBS = (
    Knob(
        "search",
        "",
        (("staged", "global", "warp", "window", "merge"),),
        "where targets are found; staged: staged times; global: times in global memory; "
        "warp: staged times, by whole warps; window: a staged window; "
        "merge: staged stretches, merged with ascending targets",
    ),
    Knob("targets", "n", ((128, 512), (64, 256)), "targets per CTA, one per thread"),
    Knob("vector", "v", ((8, 1),), "elements of a row that a thread moves at once"),
)


class Kernel(Names):
    """Operands, sizes, scalars and buffers of resampling. The schedule decides which buffers exist."""

    data: Global
    out: Global
    src_times: Global
    tgt_times: Global
    d: Int32
    m: Int32
    n: Int32
    bounds: View
    marks: View
    place: View
    rows: View
    times: View
    weight: View


def resident_ctas(k: SimpleNamespace, arch: ArchSpec) -> int:
    """CTAs per SM: a thread has 64 registers or more, 128 to merge, and a CTA has room for its times."""
    if k.search == "merge":
        return int(512 // k.targets)
    return int(min(1024 // k.targets, arch.smem_per_sm // (4 * STAGED + 4096)))


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    def shared(buffer: str, count: int, dtype: str, doc: str) -> Buffer:
        return Buffer(buffer, Space.SHARED, (count,), dtype, doc=doc)

    warps = k.targets // 32
    times = {"global": 0, "merge": STRETCH}.get(k.search, STAGED)
    merged = (
        shared("marks", k.targets, "float32", "the targets"),
        shared("rows", STRETCH_ELEMENTS, "bfloat16", "rows of a stretch of the trajectory"),
    )
    return Schedule(
        roles=(Role("sample", warps, doc="a target per thread, then pieces of rows"),),
        buffers=(
            *((shared("times", times, "float32", "times of the rows around targets"),) if times else ()),
            *(
                (shared("bounds", 2 * warps, "float32", "least and largest target of each warp"),)
                if k.search in ("window", "merge") else ()
            ),
            *(merged if k.search == "merge" else ()),
            shared("place", k.targets, "int32", "the upper row of each target"),
            shared("weight", k.targets, "float32", "the share of that row"),
        ),
        pipelines=(),
        mmas=(),
        grid=(dim("b"), ceildiv(dim("m"), k.targets)),
        axes=("row", "tile"),
        constants={"warps": warps},
        ctas_per_sm=resident_ctas(k, arch),
        min_ctas_per_sm=resident_ctas(k, arch),
    )  # fmt: skip


class Tile(State, Kernel):
    """The tile of a CTA: of the row's `targets` those from `first` on, with `left` up to the last."""

    targets: Value
    first: Value
    left: Value
    # The thread's target, NaN past the last one.
    t: Float32
    # The rows whose times decide the tile's targets.
    window: Int32
    count: Int32


@recorded
def _start(m: Recorder) -> None:
    m.barriers_stand()


@recorded
def _place(m: Recorder, s: Tile, first: Value, count: Value) -> None:
    """Stage `count` times from row `first` on, and find every thread's target among these times."""
    row, n, times = m.block(0), s.n, s.times
    placed = s.place, s.weight
    leaf.stage_times(m, times, s.src_times, row, n, first, count, m.k.targets)
    m.meet()
    if m.k.search == "warp":
        leaf.place_by_warp(m, *placed, times, count, s.t)
    else:
        leaf.place_staged(m, *placed, times, first, count, s.t)


@recorded
def _place_in_global(m: Recorder, s: Tile) -> None:
    leaf.place_in_global(m, s.place, s.weight, s.src_times, m.block(0), s.n, s.t)


@recorded
def _find_window(m: Recorder, s: Tile) -> None:
    """Find the rows whose times decide the tile's targets: between the least and the largest target."""
    s.window = 0
    s.count = 0
    times = s.src_times
    leaf.find_window(m, s.window, s.count, s.bounds, m.c.warps, times, m.block(0), s.n)


@recorded
def _place_in_window(m: Recorder, s: Tile) -> None:
    """Find targets in the window between the tile's least and largest target.

    A window that is too long is not staged.
    """
    leaf.bound_warps(m, s.bounds, s.t, m.c.warps)
    m.meet()
    _find_window(m, s)
    if s.count <= STAGED:
        _place(m, s, s.window, s.count)
    else:
        _place_in_global(m, s)


@recorded
def _blend(m: Recorder, s: Tile) -> None:
    m.meet()
    leaf.blend(
        m, s.out, s.data, m.block(0), s.n, s.targets, s.d, s.first, s.left, s.place,
        s.weight, m.k.targets, m.k.vector, m.k.targets,
    )  # fmt: skip


@recorded
def _merge(m: Recorder, s: Tile) -> None:
    """Merge ascending targets with the rows of their window.

    Targets in another order are searched one by one.
    """
    leaf.bound_warps(m, s.bounds, s.t, m.c.warps)
    leaf.keep_targets(m, s.marks, s.t)
    m.meet()
    ascend: Boolean = False
    leaf.see_order(m, ascend, s.marks, s.left, m.k.targets)
    if ascend:
        _find_window(m, s)
        # The last row of a stretch is the first row of the next.
        steps = minimum(STRETCH, STRETCH_ELEMENTS // s.d) - 1
        done: Int32 = 0
        upto: Int32 = 0
        for stretch in range((s.count - 2 + steps) // steps):
            begin = s.window + stretch * steps
            held = minimum(steps + 1, s.count - stretch * steps)
            _merge_stretch(m, s, begin, held, done, upto)
            done = upto
    else:
        _place_in_global(m, s)
        _blend(m, s)


@recorded
def _merge_stretch(m: Recorder, s: Tile, begin: Value, rows: Value, done: Value, upto: Changes) -> None:
    """Stage `rows` rows from `begin` on, and write the targets from `done` up to `upto`.

    `upto` becomes the number of targets before the time of the last staged row.
    """
    threads = m.k.targets
    row, n, d, times, staged = m.block(0), s.n, s.d, s.times, s.rows
    placed = s.place, s.weight
    last = inline(begin + rows == s.window + s.count)
    m.meet()
    leaf.stage_times(m, times, s.src_times, row, n, begin, rows, threads)
    leaf.stage_stretch(m, staged, s.data, row, n, d, begin, rows, m.k.vector, threads)
    m.meet()
    leaf.pass_targets(m, upto, s.marks, s.left, times, rows, last, threads)
    leaf.place_staged(m, *placed, times, 0, rows, s.t)
    m.meet()
    leaf.blend_staged(m, s.out, staged, row, s.targets, d, s.first, done, upto, *placed, m.k.vector, threads)


@recorded
def _sample(m: Recorder) -> None:
    s = Tile(m)
    s.targets = Kernel(m).m
    s.first = m.block(1) * m.k.targets
    s.left = s.targets - s.first
    s.t = 0.0
    leaf.read_target(m, s.t, s.tgt_times, m.block(0), s.targets, s.first, s.left)
    if m.k.search == "merge":
        _merge(m, s)
        return
    if m.k.search == "global":
        _place_in_global(m, s)
    elif m.k.search == "window":
        _place_in_window(m, s)
    else:
        # A variable of its own: TileLang would give the size the name of a leaf's parameter.
        s.count = s.n
        _place(m, s, 0, s.count)
    _blend(m, s)


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    return {START: _start, "sample": _sample}


def _staged(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    if knobs["search"] not in ("staged", "warp") or call["n"] <= STAGED:
        return None
    return f"n = {call['n']} exceeds the {STAGED} times that are staged"


def _stretch(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    if knobs["search"] != "merge" or 2 * call["d"] <= STRETCH_ELEMENTS:
        return None
    return f"two rows of d = {call['d']} exceed the {STRETCH_ELEMENTS} elements that are staged"


def _vector(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    if call["d"] % knobs["vector"] == 0:
        return None
    return f"d = {call['d']} is no multiple of {knobs['vector']} (16-byte pieces of a row)"


def _tiles(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    if call["m"] <= TILES * knobs["targets"]:
        return None
    return f"m = {call['m']} exceeds {TILES} tiles of {knobs['targets']} targets"


PROGRAM = TileProgram(
    op="resample_trajectories",
    problem=problems.get("resample_trajectories"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    guards=(Guard("n", _staged), Guard("d", _vector), Guard("d", _stretch), Guard("m", _tiles)),
)
