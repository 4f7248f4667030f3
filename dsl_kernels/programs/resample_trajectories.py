"""Resampling as a tile program: a CTA takes a tile of one trajectory's targets, a thread a target.

Each thread finds its target among the times, then all threads together blend the rows, neighbouring threads
neighbouring pieces. How a target is found is a knob, from the plain search to the one that serves trajectories of any
length: the tile's least and largest target bound a window of times, which is staged if it fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from .. import problems
from ..arch import ArchSpec, GpuSpec
from ..device.torch import resample_trajectories as leaf
from ..tile.lang import START, Body, Buffer, Counts, Guard, Knob, Role, Schedule, Size, Space, TileProgram
from ..tile.text import Recorder, Value, name

STAGED = Size(8192, "STAGED")
"""Times that a CTA stages: 32 KiB, so that several CTAs share an SM."""

TILES = 65535
"""CTAs along the second axis of a grid."""

KNOBS = (
    Knob(
        "search",
        "",
        (("staged", "global", "warp", "window"),),
        "where targets are found: staged times, times in global memory, staged times by whole warps, a staged window",
    ),
    Knob("targets", "n", ((128, 512), (64, 256)), "targets a CTA, one a thread"),
    Knob("vector", "v", ((8, 1),), "elements of a row that a thread moves at once"),
)
# (search, targets, vector) of the committed set: a ladder from the plain kernel on, then what the tables use.
COMMITTED = (
    ("global", 128, 1),
    ("staged", 128, 1),
    ("staged", 128, 8),
    ("staged", 512, 8),
    ("warp", 128, 8),
    ("window", 128, 8),
    ("window", 512, 8),
    ("window", 128, 1),
)


def _resident(k: SimpleNamespace, arch: ArchSpec) -> int:
    """CTAs of an SM: 64 registers a thread or more, and room for the times of each."""
    return int(min(1024 // k.targets, arch.smem_per_sm // (4 * STAGED + 4096)))


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    def shared(buffer: str, count: int, dtype: str, doc: str) -> Buffer:
        return Buffer(buffer, Space.SHARED, (count,), dtype, doc=doc)

    warps = k.targets // 32
    return Schedule(
        roles=(Role("sample", warps, doc="a target a thread, then pieces of rows"),),
        buffers=(
            *((shared("times", STAGED, "float32", "of the rows that may enclose a target"),) if k.search != "global" else ()),
            *((shared("bounds", 2 * warps, "float32", "least and largest target of each warp"),) if k.search == "window" else ()),
            shared("place", k.targets, "int32", "the upper row of each target"),
            shared("weight", k.targets, "float32", "and its share"),
        ),
        pipelines=(),
        mmas=(),
        grid=("b", f"ceildiv(m, {k.targets})"),
        axes=("row", "tile"),
        constants={"warps": warps},
        ctas_per_sm=_resident(k, arch),
        min_ctas_per_sm=_resident(k, arch),
    )  # fmt: skip


def _start(m: Recorder) -> None:
    m.barriers_stand()


def _place(m: Recorder, first: Value, count: Value) -> None:
    """Stage `count` times from row `first` on and find every thread's target among them."""
    row, n, times = m.block(0), m.dim("n"), m.buffer("times")
    found, t = (m.buffer("place"), m.buffer("weight")), name("t", "float32")
    leaf.stage_times(m, times, m.operand("src_times"), row, n, first, count, m.thread, m.k.targets)
    m.meet()
    if m.k.search == "warp":
        leaf.place_by_warp(m, *found, times, count, t, m.thread, m.lane)
    else:
        leaf.place_staged(m, *found, times, first, count, t, m.thread)


def _place_in_global(m: Recorder) -> None:
    leaf.place_in_global(
        m, m.buffer("place"), m.buffer("weight"), m.operand("src_times"), m.block(0), m.dim("n"), name("t", "float32"), m.thread,
    )  # fmt: skip


def _place_in_window(m: Recorder) -> None:
    """Only the times between the tile's least and largest target decide; a window that is too long stays where it is."""
    bounds, t, n = m.buffer("bounds"), name("t", "float32"), m.dim("n")
    leaf.bound_warps(m, bounds, t, m.warp, m.c.warps, m.lane)
    m.meet()
    first, count = m.var("window"), m.var("count")
    leaf.find_window(m, first, count, bounds, m.c.warps, m.operand("src_times"), m.block(0), n, m.lane)
    with m.when(count <= STAGED):
        _place(m, first, count)
    with m.otherwise():
        _place_in_global(m)


def _sample(m: Recorder) -> None:
    row, sizes = m.block(0), (m.dim("n"), m.dim("m"), m.dim("d"))
    first = m.let("first", m.block(1) * m.k.targets)
    t = m.var("t", 0.0, "float32")
    leaf.read_target(m, t, m.operand("tgt_times"), row, m.dim("m"), first, m.thread, m.k.targets)
    if m.k.search == "global":
        _place_in_global(m)
    elif m.k.search == "window":
        _place_in_window(m)
    else:
        _place(m, 0, m.dim("n"))
    m.meet()
    leaf.blend(
        m, m.operand("out"), m.operand("data"), row, *sizes, first, m.buffer("place"), m.buffer("weight"), m.k.targets, m.k.vector,
        m.thread, m.k.targets,
    )  # fmt: skip


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    return {START: _start, "sample": _sample}


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """All sizes decide."""
    return {name: dims[name] for name in ("b", "n", "m", "d")}


def _times(k: SimpleNamespace, dims: Mapping[str, int]) -> int:
    """Times that a CTA's searches read, of targets that are sorted."""
    if k.search == "global":
        return min(k.targets, dims["m"]) * dims["n"].bit_length()
    return (
        dims["n"] if k.search != "window" else min(dims["n"], dims["n"] * k.targets // max(dims["m"], 1) + 2)
    )


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """A target's time, the times that its search reads, two rows in and one out."""
    targets, row = min(k.targets, dims["m"]), 2 * dims["d"]
    return Counts(loaded=4 * targets + 4 * _times(k, dims) + 2 * row * targets, stored=row * targets)


def _staged(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    if knobs["search"] not in ("staged", "warp") or call["n"] <= STAGED:
        return None
    return f"n = {call['n']} exceeds the {STAGED} times that are staged"


def _vector(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    if call["d"] % knobs["vector"] == 0:
        return None
    return f"d = {call['d']} is no multiple of {knobs['vector']} (16-byte pieces of a row)"


def _tiles(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    if call["m"] <= TILES * knobs["targets"]:
        return None
    return f"m = {call['m']} exceeds {TILES} tiles of {knobs['targets']} targets"


def overhead(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> float:
    """Microseconds of a wave that the bytes do not show: what waits for memory, or for the slowest thread of a CTA."""
    rounds, ctas = dims["n"].bit_length(), dims["b"] * -(-dims["m"] // k.targets)
    beside = min(_resident(k, gpu.arch), -(-ctas // gpu.sms))
    staging = 4 * _times(k, dims) * beside / (gpu.l2_gbps * 1e3 / gpu.sms)
    found = {
        "global": 0.25 * rounds,
        "staged": staging + 0.4,
        "warp": staging + 4.0,
        "window": staging + 1.8,
    }[k.search]
    turns = -(-dims["d"] // (leaf.PIECES * k.vector))
    return found + 0.6 * turns + 0.0004 * k.targets


def useful(k: SimpleNamespace, arch: ArchSpec, level: int) -> bool:
    return level > 0 or (k.search, k.targets, k.vector) in COMMITTED


PROGRAM = TileProgram(
    op="resample_trajectories",
    problem=problems.get("resample_trajectories"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    bucket=bucket,
    counts=counts,
    guards=(Guard("n", _staged), Guard("d", _vector), Guard("m", _tiles)),
    overhead=overhead,
    useful=useful,
)
