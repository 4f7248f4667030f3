"""5. A cluster: two CTAs share the tiles of B of a matrix product on Hopper.

Each CTA has 128 rows of A of its own; both need the same columns of B. Each loads half of a tile of B, and
the copy engine writes it into the shared memory of both, so B is read from L2 once. A slot is free when the
readers of both CTAs have released it: the barrier plan counts their arrivals.

    python -m codegen try examples/cluster.py --on emulator
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

TILE, DEPTH, STAGES, N, CTAS = 128, 64, 3, 256, 2
HALF = TILE // CTAS


def declare(k, arch):
    reader = (Reader("multiply", Engine.WGMMA, "warp"),)
    return Schedule(
        roles=(
            Role("multiply", 4, doc="64 rows each", replicas=2),
            Role("load", 1, doc="tiles of A, half of those of B for both CTAs"),
        ),
        buffers=(
            Buffer("a_s", Space.SHARED, (TILE, DEPTH), "float16", STAGES, swizzle=128),
            Buffer("b_s", Space.SHARED, (TILE, DEPTH), "float16", STAGES, swizzle=128),
            Buffer("acc", Space.REGISTER, (64, TILE), "float32", role="multiply"),
        ),
        pipelines=(Pipeline("ab", ("a_s", "b_s"), "load", Engine.BULK, reader, STAGES, multicast=True),),
        mmas=(
            Mma(
                "product", "wgmma", "multiply", 64, TILE, DEPTH, "float16",
                a="a_s", b="b_s", acc="acc", doc="C += A B^T",
            ),
        ),
        grid=(f"m // {TILE}", f"{N // TILE}"),
        axes=("row", "column"),
        cluster=(CTAS, 1, 1),
        group=(0,),
        maps=(
            TensorMap.of_matrix("a", "float16", "m", "depth", TILE),
            TensorMap.of_matrix("b", "float16", N, "depth", HALF),
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
    part = inline(m.block(0) % CTAS * HALF)
    for i in range(s.depth // DEPTH):
        slot = s.ab.producer.acquire(i)
        m.bulk(slot.a_s, Box("a_map", (m.block(0) * TILE, i * DEPTH)), slot)
        m.bulk(
            slot.b_s.part(part, HALF),
            Box("b_map", (m.block(1) * TILE + part, i * DEPTH)),
            slot,
            multicast=True,
        )
        slot.commit()


@recorded
def multiply(m: Recorder) -> None:
    s = Kernel(m)
    own = inline(m.replica * 64)
    for i in range(s.depth // DEPTH):
        slot = s.ab.reader.wait(i)
        m.multiply("product", s.acc, slot.a_s.part(own, 64), slot.b_s, accumulate=i > 0)
        slot.release()
    write_rows(m, s.c, N, m.block(0) * TILE + own, m.block(1) * TILE, s.acc, m.thread)


MATMUL = Sketch(
    "example_cluster",
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
