"""2. A ring: one warp loads rows while four warps add up the earlier ones.

A pipeline is a ring of slots, with one role that fills them and others that read them. Here the copy engine
fills a slot with one row. Barriers, their counts and parities, and who arrives follow from the declaration:
no body mentions those of a pipeline.

    python -m codegen try examples/ring.py
"""

from __future__ import annotations

import torch

from codegen.sketch import Sketch
from dsl_kernels.language import (
    WARP,
    Buffer,
    Channel,
    Engine,
    Float32,
    Global,
    Int32,
    LeafRecorder,
    Names,
    OperandSpec,
    Pipeline,
    Reader,
    Recorder,
    Registers,
    Role,
    Schedule,
    Shared,
    Size,
    Space,
    View,
    Writes,
    by_text,
    minimum,
    recorded,
    unrolled,
)

COLUMNS, ROWS, STAGES = Size(1024, "COLUMNS"), Size(16, "ROWS"), Size(3, "STAGES")
"""Sizes that printed modules refer to by these names."""
WARPS = 4
THREADS = WARPS * WARP


def declare(k, arch):
    return Schedule(
        roles=(Role("add", WARPS, doc="sums of columns"), Role("load", 1, doc="rows into the ring")),
        buffers=(
            Buffer("row_s", Space.SHARED, (COLUMNS,), "float32", STAGES),
            Buffer.own("sums", "add", COLUMNS // THREADS, doc="a thread's columns"),
        ),
        pipelines=(
            Pipeline("ring", ("row_s",), "load", Engine.BULK, (Reader("add", Engine.THREADS),), STAGES),
        ),
        mmas=(),
        grid=(f"ceildiv(rows, {ROWS})",),
        axes=("block",),
    )


@by_text
def add_row(m: LeafRecorder, sums: Registers[Float32], row: Shared[Float32]) -> None:
    """Add a thread's columns of a row to its sums."""
    for i in unrolled(sums.size):
        sums[i] += row[i * THREADS + m.thread]


@by_text
def write_sums(m: LeafRecorder, y: Writes[Global[Float32]], block: Int32, sums: Registers[Float32]) -> None:
    """Write the sums of a block."""
    line = y.row("line", block, COLUMNS)
    for i in unrolled(sums.size):
        line[i * THREADS + m.thread] = sums[i]


class Kernel(Names):
    ring: Channel
    x: Global
    y: Global
    rows: Int32
    sums: View


@recorded
def load(m: Recorder) -> None:
    s = Kernel(m)
    first = m.block(0) * ROWS
    for i in range(minimum(s.rows - first, ROWS)):
        slot = s.ring.producer.acquire(i)
        m.bulk(slot.row_s, s.x.span(first + i, COLUMNS), slot)
        slot.commit()


@recorded
def add(m: Recorder) -> None:
    s = Kernel(m)
    m.fill(s.sums, 0.0)
    for i in range(minimum(s.rows - m.block(0) * ROWS, ROWS)):
        slot = s.ring.reader.wait(i)
        add_row(m, s.sums, slot.row_s)
        slot.release()
    write_sums(m, s.y, m.block(0), s.sums)


def sums_of_blocks(inputs):
    return {"y": torch.stack([block.sum(0) for block in inputs["x"].double().split(ROWS)])}


RING = Sketch(
    "example_ring",
    (OperandSpec("x", ("rows", COLUMNS), "float32"), OperandSpec("y", ("blocks", COLUMNS), "float32", "out")),
    declare,
    {"add": add, "load": load},
    sums_of_blocks,
    {"rows": 37, "blocks": 3},
    limit=1e-6,
)
