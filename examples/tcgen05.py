"""6. Blackwell: accumulators in tensor memory, and one warp that issues every product.

The tensor cores of an SM serve the CTA, not a warpgroup: one thread issues the products, operands are in
shared memory, accumulators in tensor memory. A commit signals when everything issued before it has completed;
only that may release a slot. Two accumulators alternate, so four warps write one tile out while the next one
is computed.

    python -m codegen try examples/tcgen05.py --on emulator
"""

from __future__ import annotations

from codegen.sketch import Sketch
from dsl_kernels.language import (
    Box,
    Buffer,
    Channel,
    Engine,
    Global,
    Int32,
    Mma,
    Names,
    OperandSpec,
    Pipeline,
    Reader,
    Recorder,
    Role,
    Schedule,
    Space,
    TensorMap,
    View,
    read_tensor,
    recorded,
    write_rows,
)

TILE, DEPTH, STAGES, N = 128, 64, 4, 256


def declare(k, arch):
    return Schedule(
        roles=(
            Role("write", 4, doc="a row of C a thread, out of tensor memory"),
            Role("load", 1, doc="tiles of A and B"),
            Role("multiply", 1, doc="issues every product and commit"),
        ),
        buffers=(
            Buffer("a_s", Space.SHARED, (TILE, DEPTH), "float16", STAGES, swizzle=128),
            Buffer("b_s", Space.SHARED, (TILE, DEPTH), "float16", STAGES, swizzle=128),
            Buffer("c_t", Space.TENSOR, (TILE, TILE), "float32", 2),
            Buffer("row", Space.REGISTER, (TILE, TILE), "float32", role="write"),
        ),
        pipelines=(
            Pipeline(
                "ab", ("a_s", "b_s"), "load", Engine.BULK, (Reader("multiply", Engine.TCGEN05),), STAGES
            ),
            Pipeline("c", ("c_t",), "multiply", Engine.TCGEN05, (Reader("write", Engine.TMEM, "warp"),), 2),
        ),
        mmas=(
            Mma(
                "product", "tcgen05", "multiply", TILE, TILE, DEPTH, "float16",
                a="a_s", b="b_s", acc="c_t", doc="C += A B^T",
            ),
        ),
        grid=(f"m // {TILE}",),
        axes=("block",),
        maps=(
            TensorMap.of_matrix("a", "float16", "m", "depth", TILE),
            TensorMap.of_matrix("b", "float16", N, "depth", TILE),
        ),
    )  # fmt: skip


class Kernel(Names):
    ab: Channel
    c: Channel
    out: Global
    depth: Int32
    row: View


@recorded
def load(m: Recorder) -> None:
    s = Kernel(m)
    steps = s.depth // DEPTH
    for tile in range(N // TILE):
        for i in range(steps):
            slot = s.ab.producer.acquire(tile * steps + i)
            m.bulk(slot.a_s, Box("a_map", (m.block(0) * TILE, i * DEPTH)), slot)
            m.bulk(slot.b_s, Box("b_map", (tile * TILE, i * DEPTH)), slot)
            slot.commit()


@recorded
def multiply(m: Recorder) -> None:
    s = Kernel(m)
    steps = s.depth // DEPTH
    for tile in range(N // TILE):
        sums = s.c.producer.acquire(tile)
        for i in range(steps):
            slot = s.ab.reader.wait(tile * steps + i)
            m.multiply("product", sums.view(), slot.a_s, slot.b_s, accumulate=i > 0)
            slot.release()
        sums.commit()


@recorded
def write(m: Recorder) -> None:
    s = Kernel(m)
    for tile in range(N // TILE):
        sums = s.c.reader.wait(tile)
        read_tensor(m, s.row, sums.view(), m.thread)
        sums.release()
        write_rows(m, s.out, N, m.block(0) * TILE, tile * TILE, s.row, m.thread)


MATMUL = Sketch(
    "example_tcgen05",
    (
        OperandSpec("a", ("m", "depth"), "float16"),
        OperandSpec("b", (N, "depth"), "float16"),
        OperandSpec("out", ("m", N), "float32", "out"),
    ),
    declare,
    {"write": write, "load": load, "multiply": multiply},
    lambda inputs: {"out": inputs["a"].double() @ inputs["b"].double().T},
    {"m": 256, "depth": 448},
    arch="sm_100a",
)
