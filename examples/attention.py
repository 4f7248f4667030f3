"""4. Warp specialisation: attention of 128 queries over any number of keys, forward.

One warp loads keys and values into two rings. Two warpgroups multiply, take the softmax and multiply again;
they release each slot as soon as the product has read it. Scores never leave registers: rounded, they are an
operand of the second product.

    python -m codegen try examples/attention.py --on emulator
"""

from __future__ import annotations

import math

from codegen.sketch import Sketch
from dsl_kernels.language import (
    WARP,
    Box,
    Buffer,
    Channel,
    Engine,
    Float32,
    Global,
    Int32,
    LeafRecorder,
    Mma,
    Names,
    OperandSpec,
    Pipeline,
    Reader,
    Recorder,
    Registers,
    Role,
    Schedule,
    Space,
    TensorMap,
    View,
    Writes,
    by_text,
    divide,
    exp2,
    inline,
    maximum,
    named,
    quad_most,
    quad_sum,
    recorded,
    round_to,
    row_most,
    row_sum,
    unrolled,
)

DIM, TILE, QUERIES, STAGES = 64, 64, 128, 2
SCALE = DIM**-0.5 * math.log2(math.e)
"""Converts scores to exponents of 2."""


def declare(k, arch):
    reader = (Reader("attend", Engine.WGMMA),)

    def a_row(name: str, doc: str) -> Buffer:
        return Buffer(name, Space.REGISTER, (64,), "float32", role="attend", per_thread=2, doc=doc)

    return Schedule(
        roles=(
            Role("attend", 4, doc="both products and the softmax of 64 queries", replicas=2),
            Role("load", 1, doc="queries, then keys and values"),
        ),
        buffers=(
            Buffer("q_s", Space.SHARED, (QUERIES, DIM), "bfloat16", swizzle=128),
            Buffer("k_s", Space.SHARED, (TILE, DIM), "bfloat16", STAGES, swizzle=128),
            Buffer("v_s", Space.SHARED, (TILE, DIM), "bfloat16", STAGES, swizzle=128),
            Buffer("scores", Space.REGISTER, (64, TILE), "float32", role="attend"),
            Buffer("weights", Space.REGISTER, (64, TILE), "bfloat16", role="attend"),
            Buffer("acc", Space.REGISTER, (64, DIM), "float32", role="attend"),
            a_row("top", "running maximum of a query's scores"),
            a_row("total", "running sum of its weights"),
            a_row("factor", "what earlier weights shrink by"),
        ),
        pipelines=(
            Pipeline("q", ("q_s",), "load", Engine.BULK, reader, rounds="once"),
            Pipeline("k", ("k_s",), "load", Engine.BULK, reader, STAGES),
            Pipeline("v", ("v_s",), "load", Engine.BULK, reader, STAGES),
        ),
        mmas=(
            Mma(
                "qk", "wgmma", "attend", 64, TILE, DIM, "bfloat16",
                a="q_s", b="k_s", acc="scores", doc="S = Q K^T",
            ),
            Mma(
                "pv", "wgmma", "attend", 64, DIM, TILE, "bfloat16", b_major="mn", a_space=Space.REGISTER,
                a="weights", b="v_s", acc="acc", doc="O += P V",
            ),
        ),
        grid=(f"queries // {QUERIES}",),
        axes=("block",),
        maps=(
            TensorMap.of_matrix("q", "bfloat16", "queries", DIM, QUERIES),
            TensorMap.of_matrix("k", "bfloat16", "keys", DIM, TILE),
            TensorMap.of_matrix("v", "bfloat16", "keys", DIM, TILE),
        ),
    )  # fmt: skip


@by_text
def online_softmax(
    m: LeafRecorder,
    scores: Registers[Float32],
    top: Registers[Float32],
    total: Registers[Float32],
    factor: Registers[Float32],
) -> None:
    """Turn scores into weights below the running maximum. A thread holds two rows; four lanes share a row."""
    for r in range(2):
        peak = named(f"peak_{r}", maximum(top[r], quad_most(row_most(scores, r))))
        factor[r] = exp2((top[r] - peak) * SCALE)
        top[r] = peak
        for j in unrolled(scores.size // 4):
            for e in range(2):
                i = inline(4 * j + 2 * r + e)
                scores[i] = exp2((scores[i] - peak) * SCALE)
        total[r] = total[r] * factor[r] + quad_sum(row_sum(scores, r))


@by_text
def rescale(m: LeafRecorder, acc: Registers[Float32], factor: Registers[Float32]) -> None:
    """Scale earlier tiles' sums down with their weights. Two of every four registers are of each row."""
    for i in unrolled(acc.size):
        acc[i] = acc[i] * factor[i // 2 % 2]


@by_text
def write_result(
    m: LeafRecorder,
    out: Writes[Global[Float32]],
    first: Int32,
    acc: Registers[Float32],
    total: Registers[Float32],
) -> None:
    """Write the rows from `first` on, divided by the sum of their weights."""
    for r in range(2):
        inverse = named(f"inverse_{r}", divide(1.0, total[r]))
        line = out.row(f"line_{r}", first + m.thread // WARP * 16 + m.thread % WARP // 4 + 8 * r, DIM)
        for j in unrolled(acc.size // 4):
            for e in range(2):
                line[8 * j + m.thread % 4 * 2 + e] = acc[4 * j + 2 * r + e] * inverse


class Kernel(Names):
    q: Channel
    k: Channel
    v: Channel
    out: Global
    keys: Int32
    scores: View
    weights: View
    acc: View
    top: View
    total: View
    factor: View


@recorded
def load(m: Recorder) -> None:
    s = Kernel(m)
    queries = s.q.producer.acquire(0)
    m.bulk(queries.q_s, Box("q_map", (m.block(0) * QUERIES, 0)), queries)
    queries.commit()
    for i in range(s.keys // TILE):
        keys = s.k.producer.acquire(i)
        m.bulk(keys.k_s, Box("k_map", (i * TILE, 0)), keys)
        keys.commit()
        values = s.v.producer.acquire(i)
        m.bulk(values.v_s, Box("v_map", (i * TILE, 0)), values)
        values.commit()


@recorded
def attend(m: Recorder) -> None:
    s = Kernel(m)
    own = inline(m.replica * 64)
    m.fill(s.acc, 0.0)
    m.fill(s.top, -math.inf)
    m.fill(s.total, 0.0)
    queries = s.q.reader.wait(0)
    for i in range(s.keys // TILE):
        keys = s.k.reader.wait(i)
        m.multiply("qk", s.scores, queries.q_s.part(own, 64), keys.k_s)
        keys.release()
        online_softmax(m, s.scores, s.top, s.total, s.factor)
        round_to(m, s.weights, s.scores)
        rescale(m, s.acc, s.factor)
        values = s.v.reader.wait(i)
        m.multiply("pv", s.acc, s.weights, values.v_s, accumulate=True)
        values.release()
    write_result(m, s.out, m.block(0) * QUERIES + own, s.acc, s.total)


def reference(inputs):
    q, k, v = (inputs[name].double() for name in "qkv")
    return {"out": (q @ k.T * DIM**-0.5).softmax(dim=1) @ v}


ATTENTION = Sketch(
    "example_attention",
    (
        OperandSpec("q", ("queries", DIM), "bfloat16"),
        OperandSpec("k", ("keys", DIM), "bfloat16"),
        OperandSpec("v", ("keys", DIM), "bfloat16"),
        OperandSpec("out", ("queries", DIM), "float32", "out"),
    ),
    declare,
    {"attend": attend, "load": load},
    reference,
    {"queries": 256, "keys": 320},
    limit=4e-3,
)
