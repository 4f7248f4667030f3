"""3. Tensor cores: C = A B^T of 128 x 128 tiles on Hopper.

An `Mma` declares a product: its unit, its tile, and the buffers of its operands and its accumulator. Tiles
are loaded as boxes of a tensor map, in the swizzle that tensor cores read. Each of the two warpgroups of
`multiply` computes 64 rows.

    python -m codegen try examples/wgmma.py --on emulator
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
    inline,
    recorded,
    write_rows,
)

TILE, DEPTH, STAGES, N = 128, 64, 4, 256


def declare(k, arch):
    return Schedule(
        roles=(Role("multiply", 4, doc="64 rows each", replicas=2), Role("load", 1, doc="tiles of A and B")),
        buffers=(
            Buffer("a_s", Space.SHARED, (TILE, DEPTH), "float16", STAGES, swizzle=128),
            Buffer("b_s", Space.SHARED, (TILE, DEPTH), "float16", STAGES, swizzle=128),
            Buffer("acc", Space.REGISTER, (64, TILE), "float32", role="multiply"),
        ),
        pipelines=(
            Pipeline("ab", ("a_s", "b_s"), "load", Engine.BULK, (Reader("multiply", Engine.WGMMA),), STAGES),
        ),
        mmas=(
            Mma(
                "product", "wgmma", "multiply", 64, TILE, DEPTH, "float16",
                a="a_s", b="b_s", acc="acc", doc="C += A B^T",
            ),
        ),
        grid=(f"{N // TILE}", f"m // {TILE}"),
        axes=("column", "row"),
        maps=(
            TensorMap.of_matrix("a", "float16", "m", "depth", TILE),
            TensorMap.of_matrix("b", "float16", N, "depth", TILE),
        ),
    )  # fmt: skip


class Kernel(Names):
    ab: Channel
    c: Global
    depth: Int32
    acc: View


@recorded
def load(m: Recorder) -> None:
    s = Kernel(m)
    for i in range(s.depth // DEPTH):
        slot = s.ab.producer.acquire(i)
        m.bulk(slot.a_s, Box("a_map", (m.block(1) * TILE, i * DEPTH)), slot)
        m.bulk(slot.b_s, Box("b_map", (m.block(0) * TILE, i * DEPTH)), slot)
        slot.commit()


@recorded
def multiply(m: Recorder) -> None:
    s = Kernel(m)
    own = inline(m.replica * 64)
    for i in range(s.depth // DEPTH):
        slot = s.ab.reader.wait(i)
        m.multiply("product", s.acc, slot.a_s.part(own, 64), slot.b_s, accumulate=i > 0)
        slot.release()
    write_rows(m, s.c, N, m.block(1) * TILE + own, m.block(0) * TILE, s.acc, m.thread)


MATMUL = Sketch(
    "example_wgmma",
    (
        OperandSpec("a", ("m", "depth"), "float16"),
        OperandSpec("b", (N, "depth"), "float16"),
        OperandSpec("c", ("m", N), "float32", "out"),
    ),
    declare,
    {"multiply": multiply, "load": load},
    lambda inputs: {"c": inputs["a"].double() @ inputs["b"].double().T},
    {"m": 256, "depth": 448},
)
