"""1. Row softmax: threads, registers and a named barrier.

A kernel is a schedule (its roles and their memory), a body for each role, and the leaves that a body calls.
This kernel has a single role of four warps. A CTA computes one row; each thread holds every 128th column of
it.

    python -m codegen try examples/row_softmax.py
"""

from __future__ import annotations

import math

from codegen.sketch import Sketch
from dsl_kernels.language import (
    WARP,
    Buffer,
    Float32,
    Global,
    Int32,
    LeafRecorder,
    Names,
    OperandSpec,
    Recorder,
    Registers,
    Role,
    Schedule,
    Shared,
    Space,
    View,
    Writes,
    by_text,
    divide,
    exp2,
    max_of_lanes,
    maximum,
    recorded,
    sum_of_lanes,
    unrolled,
)

COLUMNS, WARPS = 1024, 4
THREADS = WARPS * WARP
LOG2E = math.log2(math.e)


def declare(k, arch):
    return Schedule(
        roles=(Role("weigh", WARPS, doc="maximum, exponentials, sum, result"),),
        buffers=(
            Buffer.own("held", "weigh", COLUMNS // THREADS, doc="a thread's columns"),
            Buffer("peaks", Space.SHARED, (WARPS,), "float32", doc="maximum of each warp"),
            Buffer("sums", Space.SHARED, (WARPS,), "float32", doc="sum of each warp"),
        ),
        pipelines=(),
        mmas=(),
        grid=("rows",),
        axes=("row",),
        named_barriers={"all": ("weigh",)},
    )


@by_text
def read_row(m: LeafRecorder, held: Registers[Float32], x: Global[Float32], row: Int32) -> None:
    """Read a thread's columns of a row."""
    line = x.row("line", row, COLUMNS)
    for i in unrolled(held.size):
        held[i] = line[i * THREADS + m.thread]


@by_text
def share_maximum(m: LeafRecorder, peaks: Shared[Float32], held: Registers[Float32]) -> None:
    """Publish the maximum of each warp's columns."""
    peak: Float32 = held[0]
    for i in unrolled(1, held.size):
        peak = maximum(peak, held[i])
    peak = max_of_lanes(peak)
    if m.thread % WARP == 0:
        peaks[m.thread // WARP] = peak


@by_text
def exponentials(
    m: LeafRecorder, held: Registers[Float32], sums: Shared[Float32], peaks: Shared[Float32]
) -> None:
    """Replace x by exp(x - the row's maximum), and publish the sum of each warp's columns."""
    peak = maximum(maximum(peaks[0], peaks[1]), maximum(peaks[2], peaks[3]))
    total: Float32 = 0.0
    for i in unrolled(held.size):
        held[i] = exp2((held[i] - peak) * LOG2E)
        total += held[i]
    total = sum_of_lanes(total)
    if m.thread % WARP == 0:
        sums[m.thread // WARP] = total


@by_text
def write_row(
    m: LeafRecorder, y: Writes[Global[Float32]], row: Int32, held: Registers[Float32], sums: Shared[Float32]
) -> None:
    """Write the exponentials divided by the sum of the row."""
    line = y.row("line", row, COLUMNS)
    scale = divide(1.0, (sums[0] + sums[1]) + (sums[2] + sums[3]))
    for i in unrolled(held.size):
        line[i * THREADS + m.thread] = held[i] * scale


class Kernel(Names):
    """The schedule's buffers and the operands, by the names that bodies use."""

    x: Global
    y: Global
    held: View
    peaks: View
    sums: View


@recorded
def weigh(m: Recorder) -> None:
    """The warps meet twice: once all maxima are in shared memory, and once all sums are."""
    s = Kernel(m)
    read_row(m, s.held, s.x, m.block(0))
    share_maximum(m, s.peaks, s.held)
    m.meet("all")
    exponentials(m, s.held, s.sums, s.peaks)
    m.meet("all")
    write_row(m, s.y, m.block(0), s.held, s.sums)


SOFTMAX = Sketch(
    "example_row_softmax",
    (OperandSpec("x", ("rows", COLUMNS), "float32"), OperandSpec("y", ("rows", COLUMNS), "float32", "out")),
    declare,
    {"weigh": weigh},
    lambda inputs: {"y": inputs["x"].double().softmax(dim=1)},
    {"rows": 5},
    limit=1e-6,
)
