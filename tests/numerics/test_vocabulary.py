"""Everything that a text can say, each in a program small enough to read.

Every program runs in the interpreter, is printed and compiled in both DSLs, runs in the emulator under
several interleavings, and is compared with torch. One change per program breaks it, and must be caught.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from codegen.render import render
from codegen.sweep import Instance, frame, leaf_modules
from dsl_kernels import backends, programs
from dsl_kernels.arch import ArchSpec, get_arch
from dsl_kernels.device.torch import fragment
from dsl_kernels.errors import DslKernelError
from dsl_kernels.executors import Emulator, Interpreter
from dsl_kernels.kernels.sparse_mla.leaves import results as sparse_mla
from dsl_kernels.problems.base import OperandSpec
from dsl_kernels.problems.binding import bind
from dsl_kernels.runtime import store
from dsl_kernels.runtime.artifact import TensorMap
from dsl_kernels.tile import text as t
from dsl_kernels.tile.frontend import Int32, inline, recorded, rolled, unrolled
from dsl_kernels.tile.kinds import Shared
from dsl_kernels.tile.lang import (
    START,
    Body,
    Buffer,
    Engine,
    Mma,
    Pipeline,
    Reader,
    Role,
    Schedule,
    Space,
    Turn,
)
from dsl_kernels.tile.leaf_text import by_text
from dsl_kernels.tile.plan import barrier_plan, named_barriers, turn_plans
from dsl_kernels.tile.program import TileProgram
from dsl_kernels.tile.text import Box, Recorder
from dsl_kernels.tile.transfers import Action
from dsl_kernels.variants import Variant
from ptx_emulator import EmulatorError, interleavings

pytestmark = [pytest.mark.emulator, pytest.mark.compile]
SHARED, REGISTER, TENSOR = Space.SHARED, Space.REGISTER, Space.TENSOR
DSLS = ("cutedsl", "tilelang")
INTERLEAVINGS = 6


def rows_map(operand: str, columns: int, rows: int, box: int, dtype: str = "FLOAT16") -> TensorMap:
    """Boxes of `box` rows of a row-major 16-bit matrix, 64 columns each."""
    return TensorMap(
        f"{operand}_map", operand, dtype, (str(columns), str(rows)), (str(2 * columns),), (64, box), (1, 1),
        swizzle="128B"
    )  # fmt: skip


@recorded
def started(m: Recorder) -> None:
    """What every thread of these kernels does first."""
    m.barriers_stand()


# Replicas with an index, float16, and counts of groups in flight: C = A B^T, two warpgroups with 64 rows
# each. The next product is issued before the slot of the previous one is released.

TILES = 5


def replicas(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("multiply", 4, doc="64 rows each", replicas=2), Role("load", 1, doc="tiles of A and B")),
        buffers=(
            Buffer("a_s", SHARED, (128, 64), "float16", 3, swizzle=128),
            Buffer("b_s", SHARED, (32, 64), "float16", 3, swizzle=128),
            Buffer("acc", REGISTER, (64, 32), "float32", role="multiply"),
        ),
        pipelines=(
            Pipeline("ab", ("a_s", "b_s"), "load", Engine.BULK, (Reader("multiply", Engine.WGMMA),), 3),
        ),
        mmas=(Mma("product", "wgmma", "multiply", 64, 32, 64, "float16", a="a_s", b="b_s", acc="acc",
                  doc="C += A B^T"),),
        grid=("1",),
        axes=("cta",),
        maps=(rows_map("a", 64 * TILES, 128, 128), rows_map("b", 64 * TILES, 32, 32)),
    )  # fmt: skip


@recorded
def load_both(m: Recorder) -> None:
    for i in rolled(TILES):
        ab = m.acquire("ab", i)
        m.bulk(ab.a_s, Box("a_map", (0, i * 64)), ab)
        m.bulk(ab.b_s, Box("b_map", (0, i * 64)), ab)
        m.commit(ab)


@recorded
def multiply_rows(m: Recorder) -> None:
    acc = m.buffer("acc")

    def issue(i: t.Value, first: bool) -> None:
        ab = m.wait("ab", i)
        m.multiply("product", acc, ab.a_s.part(m.replica * 64, 64), ab.b_s, accumulate=not first)

    issue(0, True)
    for i in rolled(1, TILES):
        issue(i, False)
        m.release(m.slot("ab", i - 1), pending=1)
    m.release(m.slot("ab", TILES - 1))
    fragment.write_rows(m, m.operand("c"), 32, m.replica * 64, 0, acc, m.thread)


# Reductions, element-wise operations and A from registers: O = softmax2(Q K^T) V of 64 queries and 64 keys.
# The accumulators of the first product are rounded into the operand of the second.


def registers(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("attend", 4, doc="both products and the softmax"), Role("load", 1, doc="Q, K and V")),
        buffers=(
            *(Buffer(name, SHARED, (64, 64), "bfloat16", swizzle=128) for name in ("q_s", "k_s", "v_s")),
            *(Buffer(name, REGISTER, (64, 64), "float32", role="attend") for name in ("scores", "acc")),
            Buffer("weights", REGISTER, (64, 64), "bfloat16", role="attend"),
            *(Buffer(name, REGISTER, (64,), "float32", role="attend", per_thread=2) for name in ("top",
                "total")),
        ),
        pipelines=(
            Pipeline("qkv", ("q_s", "k_s", "v_s"), "load", Engine.BULK, (Reader("attend", Engine.WGMMA),),
                     rounds="once"),
        ),
        mmas=(
            Mma("qk", "wgmma", "attend", 64, 64, 64, "bfloat16", a="q_s", b="k_s", acc="scores",
                doc="S = Q K^T"),
            Mma(
                "pv", "wgmma", "attend", 64, 64, 64, "bfloat16", b_major="mn", a_space=REGISTER, a="weights",
                b="v_s", acc="acc",
                doc="O = P V",
            ),
        ),
        grid=("1",),
        axes=("cta",),
        maps=tuple(rows_map(name, 64, 64, 64, "BFLOAT16") for name in "qkv"),
    )  # fmt: skip


@recorded
def load_qkv(m: Recorder) -> None:
    qkv = m.acquire("qkv", 0)
    for name in "qkv":
        m.bulk(getattr(qkv, f"{name}_s"), Box(f"{name}_map", (0, 0)), qkv)
    m.commit(qkv)


@recorded
def attend(m: Recorder) -> None:
    scores, weights, acc, top, total = (m.buffer(x) for x in ("scores", "weights", "acc", "top", "total"))
    qkv = m.wait("qkv", 0)
    m.multiply("qk", scores, qkv.q_s, qkv.k_s)
    m.await_products()
    fragment.row_maxima(m, top, scores, m.thread)
    fragment.exp2_below(m, scores, top, m.thread)
    fragment.row_sums(m, total, scores, m.thread)
    fragment.round_to(m, weights, scores)
    m.multiply("pv", acc, weights, qkv.v_s)
    m.await_products()
    fragment.divide_rows(m, acc, total, m.thread)
    fragment.write_rows(m, m.operand("o"), 64, 0, 0, acc, m.thread)


def softmax_of(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    q, k, v = (inputs[name].double() for name in "qkv")
    return {"o": torch.softmax(q @ k.T * math.log(2), dim=1) @ v}


# Atomic operations: two CTAs add up their halves of A B^T.


def atomics(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    maps = (rows_map("a", 256, 128, 128), rows_map("b", 256, 32, 32))
    return dataclasses.replace(replicas(k, arch), grid=("2",), maps=maps)


@recorded
def load_half(m: Recorder) -> None:
    for i in rolled(2):
        ab = m.acquire("ab", i)
        at = (m.block(0) * 2 + i) * 64
        m.bulk(ab.a_s, Box("a_map", (0, at)), ab)
        m.bulk(ab.b_s, Box("b_map", (0, at)), ab)
        m.commit(ab)


@recorded
def add_half(m: Recorder) -> None:
    acc = m.buffer("acc")
    for i in rolled(2):
        ab = m.wait("ab", i)
        m.multiply("product", acc, ab.a_s.part(m.replica * 64, 64), ab.b_s, accumulate=i > 0)
        m.release(ab)
    fragment.add_rows(m, m.operand("c"), 32, m.replica * 64, 0, acc, m.thread)


# An ordered hand-over between two replicas: each in turn computes S = S / 2 + A_r B^T, so that the result
# shows the order.


def turns(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return dataclasses.replace(
        replicas(k, arch),
        buffers=(
            *replicas(k, arch).buffers,
            Buffer("state", SHARED, (64, 32), "float32"),
            Buffer("half", REGISTER, (64,), "float32", role="multiply", per_thread=2),
        ),
        maps=(rows_map("a", 128, 128, 128), rows_map("b", 128, 32, 32)),
        turns=(Turn("order", ("multiply",)),),
    )


@recorded
def load_two(m: Recorder) -> None:
    for i in rolled(2):
        ab = m.acquire("ab", i)
        m.bulk(ab.a_s, Box("a_map", (0, i * 64)), ab)
        m.bulk(ab.b_s, Box("b_map", (0, i * 64)), ab)
        m.commit(ab)


@recorded
def add_in_turn(m: Recorder) -> None:
    acc, half, state = m.buffer("acc"), m.buffer("half"), m.buffer("state")
    m.fill(half, 0.5)
    for i in rolled(2):
        ab = m.wait("ab", i)
        m.take_turn("order")
        m.fill(acc, 0.0)
        if i + m.replica > 0:
            fragment.read_rows(m, acc, state, 32, 0, 0, m.thread)
        fragment.scale_rows(m, acc, half, m.thread)
        m.multiply("product", acc, ab.a_s.part(m.replica * 64, 64), ab.b_s, accumulate=True)
        m.release(ab)
        fragment.write_rows(m, state, 32, 0, 0, acc, m.thread)
        m.pass_turn("order")
    fragment.write_rows(m, m.operand("c"), 32, m.replica * 64, 0, acc, m.thread)


def in_turn(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    state, c = torch.zeros(64, 32, dtype=torch.float64), torch.zeros(128, 32, dtype=torch.float64)
    for i, replica in itertools.product(range(2), range(2)):
        columns = slice(64 * i, 64 * i + 64)
        own = slice(64 * replica, 64 * replica + 64)
        state = state / 2 + inputs["a"][own, columns].double() @ inputs["b"][:, columns].double().T
        c[own] = state
    return {"c": c}


# Stores by the copy engine: C = A B^T in float16, two tiles of C in sequence through one tile of shared
# memory.


def stores(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("multiply", 4, doc="64 rows each", replicas=2), Role("load", 1, doc="tiles of A and B")),
        buffers=(
            Buffer("a_s", SHARED, (128, 64), "float16", 2, swizzle=128),
            Buffer("b_s", SHARED, (64, 64), "float16", 2, swizzle=128),
            Buffer("c_s", SHARED, (128, 64), "float16", swizzle=128),
            Buffer("acc", REGISTER, (64, 64), "float32", role="multiply"),
            Buffer("half", REGISTER, (64, 64), "float16", role="multiply"),
        ),
        pipelines=(
            Pipeline("ab", ("a_s", "b_s"), "load", Engine.BULK, (Reader("multiply", Engine.WGMMA),), 2),
        ),
        mmas=(Mma("product", "wgmma", "multiply", 64, 64, 64, "float16", a="a_s", b="b_s", acc="acc",
                  doc="C = A B^T"),),
        grid=("1",),
        axes=("cta",),
        named_barriers={"staged": ("multiply",)},
        apart=("staged",),
        maps=(rows_map("a", 64, 128, 128), rows_map("b", 64, 128, 64), rows_map("c", 128, 128, 64)),
    )  # fmt: skip


@recorded
def load_columns(m: Recorder) -> None:
    for i in rolled(2):
        ab = m.acquire("ab", i)
        m.bulk(ab.a_s, Box("a_map", (0, 0)), ab)
        m.bulk(ab.b_s, Box("b_map", (i * 64, 0)), ab)
        m.commit(ab)


@recorded
def store_tiles(m: Recorder) -> None:
    acc, half, c_s = m.buffer("acc"), m.buffer("half"), m.buffer("c_s")
    own = inline(m.replica * 64)
    for i in rolled(2):
        ab = m.wait("ab", i)
        m.multiply("product", acc, ab.a_s.part(own, 64), ab.b_s)
        m.release(ab)
        fragment.round_to(m, half, acc)
        m.await_stores(barrier="staged")
        fragment.stage_rows(m, c_s, own, 128, half, m.thread)
        m.store("staged", (Box("c_map", (own, i * 64)), c_s.part(own, 64)))
    m.await_stores()


# Multicast: two CTAs of a cluster with 64 rows of A each; each loads half of every tile of B for both.


def multicast(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("multiply", 4, doc="64 rows a CTA"),
               Role("load", 1, doc="its rows of A, half of B for both CTAs")),
        buffers=(
            Buffer("a_s", SHARED, (64, 64), "float16", 2, swizzle=128),
            Buffer("b_s", SHARED, (64, 64), "float16", 2, swizzle=128),
            Buffer("acc", REGISTER, (64, 64), "float32", role="multiply"),
        ),
        pipelines=(
            Pipeline("ab", ("a_s", "b_s"), "load", Engine.BULK, (Reader("multiply", Engine.WGMMA, "warp"),),
                     2, multicast=True),
        ),
        mmas=(Mma("product", "wgmma", "multiply", 64, 64, 64, "float16", a="a_s", b="b_s", acc="acc",
                  doc="C += A B^T"),),
        grid=("2",),
        axes=("rank",),
        cluster=(2, 1, 1),
        group=(0,),
        maps=(rows_map("a", 64 * TILES, 128, 64), rows_map("b", 64 * TILES, 64, 32)),
    )  # fmt: skip


@recorded
def load_for_both(m: Recorder) -> None:
    rank = m.block(0)
    for i in rolled(TILES):
        ab = m.acquire("ab", i)
        m.bulk(ab.a_s, Box("a_map", (rank * 64, i * 64)), ab)
        m.bulk(ab.b_s.part(rank * 32, 32), Box("b_map", (rank * 32, i * 64)), ab, multicast=True)
        m.commit(ab)


@recorded
def multiply_tiles(m: Recorder) -> None:
    acc = m.buffer("acc")
    for i in rolled(TILES):
        ab = m.wait("ab", i)
        m.multiply("product", acc, ab.a_s, ab.b_s, accumulate=i > 0)
        m.release(ab)
    fragment.write_rows(m, m.operand("c"), 64, m.block(0) * 64, 0, acc, m.thread)


# Batch, sequence and head axes in any memory order: C[b, s, h] = A[b, s, h] W^T, boxes of 64 steps of one
# sequence and head, cut off at the end of the sequence.

SEQUENCES = {"b": 2, "s": 80, "h": 3}


def strided_map(operand: str) -> TensorMap:
    """Boxes of 64 steps; axes with more than one element come first."""
    strides = tuple(f"{operand}_{axis} * 2" for axis in ("step", "head", "batch"))
    return TensorMap(
        f"{operand}_map",
        operand,
        "FLOAT16",
        ("64", "s", "h", "b"),
        strides,
        (64, 64, 1, 1),
        (1,) * 4,
        swizzle="128B",
    )


def strided(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("multiply", 4, doc="64 steps of a sequence"), Role("load", 1, doc="A and W")),
        buffers=(
            *(Buffer(name, SHARED, (64, 64), "float16", swizzle=128) for name in ("a_s", "w_s", "c_s")),
            Buffer("acc", REGISTER, (64, 64), "float32", role="multiply"),
            Buffer("half", REGISTER, (64, 64), "float16", role="multiply"),
        ),
        pipelines=(
            Pipeline("aw", ("a_s", "w_s"), "load", Engine.BULK, (Reader("multiply", Engine.WGMMA),),
                     rounds="once"),
        ),
        mmas=(Mma("product", "wgmma", "multiply", 64, 64, 64, "float16", a="a_s", b="w_s", acc="acc",
                  doc="C = A W^T"),),
        grid=("ceildiv(s, 64)", "h", "b"),
        axes=("tile", "head", "batch"),
        named_barriers={"staged": ("multiply",)},
        maps=(strided_map("a"), rows_map("w", 64, 64, 64), strided_map("c")),
    )  # fmt: skip


@recorded
def steps_of(m: Recorder) -> tuple[t.Value, ...]:
    return m.block(2), m.block(1), m.block(0) * 64, 0


@recorded
def load_steps(m: Recorder) -> None:
    aw = m.acquire("aw", 0)
    m.bulk(aw.a_s, Box("a_map", steps_of(m)), aw)
    m.bulk(aw.w_s, Box("w_map", (0, 0)), aw)
    m.commit(aw)


@recorded
def store_steps(m: Recorder) -> None:
    acc, half, c_s = m.buffer("acc"), m.buffer("half"), m.buffer("c_s")
    aw = m.wait("aw", 0)
    m.multiply("product", acc, aw.a_s, aw.w_s)
    m.await_products()
    fragment.round_to(m, half, acc)
    fragment.stage_rows(m, c_s, 0, 64, half, m.thread)
    m.store("staged", (Box("c_map", steps_of(m)), c_s))
    m.await_stores()


def every_step(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"c": inputs["a"].double() @ inputs["w"].double().T}


# Weights that replace their scores: O = sum of half(A_i B_i^T) V_i over tiles, with 64 columns of tensor
# memory for both.


def in_place(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    mma, epilogue = Reader("mma", Engine.TCGEN05), Reader("epilogue", Engine.TMEM, "warp")
    return Schedule(
        roles=(
            Role("epilogue", 4, doc="rounds the weights, writes O"),
            Role("load", 1, doc="tiles of A, B and V"),
            Role("mma", 1, doc="both products"),
        ),
        buffers=(
            Buffer("a_s", SHARED, (128, 64), "float16", 2, swizzle=128),
            *(Buffer(name, SHARED, (64, 64), "float16", 2, swizzle=128) for name in ("b_s", "v_s")),
            *(Buffer(name, TENSOR, (128, 64), "float32") for name in ("s_t", "o_t")),
            Buffer("p_t", TENSOR, (128, 64), "float16", alias="s_t"),
            Buffer("scores", REGISTER, (128, 64), "float32", role="epilogue"),
            Buffer("weights", REGISTER, (128, 64), "float16", role="epilogue"),
        ),
        pipelines=(
            Pipeline("abv", ("a_s", "b_s", "v_s"), "load", Engine.BULK, (mma,), 2),
            Pipeline("s", ("s_t",), "mma", Engine.TCGEN05, (epilogue,), returned_by="p"),
            Pipeline("p", ("p_t",), "epilogue", Engine.TMEM, (mma,), fill_arrive="warp", returned_by="s"),
            Pipeline("o", ("o_t",), "mma", Engine.TCGEN05, (epilogue,), rounds="once"),
        ),
        mmas=(
            Mma("qk", "tcgen05", "mma", 128, 64, 64, "float16", a="a_s", b="b_s", acc="s_t", doc="S = A B^T"),
            Mma(
                "pv", "tcgen05", "mma", 128, 64, 64, "float16", b_major="mn", a_space=TENSOR, a="p_t",
                b="v_s", acc="o_t",
                doc="O += P V",
            ),
        ),
        grid=("1",),
        axes=("cta",),
        maps=(rows_map("a", 64 * TILES, 128, 128), rows_map("b", 64 * TILES, 64, 64),
              rows_map("v", 64, 64 * TILES, 64)),
    )  # fmt: skip


@recorded
def load_three(m: Recorder) -> None:
    for i in rolled(TILES):
        abv = m.acquire("abv", i)
        m.bulk(abv.a_s, Box("a_map", (0, i * 64)), abv)
        m.bulk(abv.b_s, Box("b_map", (0, i * 64)), abv)
        m.bulk(abv.v_s, Box("v_map", (i * 64, 0)), abv)
        m.commit(abv)


@recorded
def issue_in_turn(m: Recorder) -> None:
    o = m.acquire("o", 0)
    for i in rolled(TILES):
        abv, s = m.wait("abv", i), m.acquire("s", i)
        m.multiply("qk", s.view(), abv.a_s, abv.b_s)
        m.commit(s)
        p = m.wait("p", i)
        m.multiply("pv", o.view(), p.view(), abv.v_s, accumulate=i > 0)
        m.release(p)
        m.release(abv)
    m.commit(o)


@recorded
def round_in_place(m: Recorder) -> None:
    scores, weights = m.buffer("scores"), m.buffer("weights")
    for i in rolled(TILES):
        s = m.wait("s", i)
        fragment.read_tensor(m, scores, s.view(), m.thread)
        m.release(s)
        fragment.round_to(m, weights, scores)
        p = m.acquire("p", i)
        fragment.write_tensor(m, p.view(), weights, m.thread)
        m.commit(p)
    o = m.wait("o", 0)
    fragment.read_tensor(m, scores, o.view(), m.thread)
    m.release(o)
    fragment.write_rows(m, m.operand("c"), 64, 0, 0, scores, m.thread)


def weighted(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    a, b, v = (inputs[name].double() for name in "abv")
    parts = (slice(64 * i, 64 * i + 64) for i in range(TILES))
    return {"c": sum((a[:, i] @ b[:, i].T).half().double() @ v[i] for i in parts).float()}


# A from tensor memory: O = softmax2(Q K^T) V of 128 queries; the rounded weights are written back as the
# second operand.


def tensor_operand(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    mma, epilogue = Reader("mma", Engine.TCGEN05), Reader("epilogue", Engine.TMEM)
    return Schedule(
        roles=(
            Role("epilogue", 4, doc="softmax between the products, stores O"),
            Role("load", 1, doc="Q, K and V"),
            Role("mma", 1, doc="both products"),
        ),
        buffers=(
            Buffer("q_s", SHARED, (128, 64), "float16", swizzle=128),
            *(Buffer(name, SHARED, (64, 64), "float16", swizzle=128) for name in ("k_s", "v_s")),
            *(Buffer(name, TENSOR, (128, 64), "float32") for name in ("s_t", "o_t")),
            Buffer("p_t", TENSOR, (128, 64), "float16"),
            Buffer("scores", REGISTER, (128, 64), "float32", role="epilogue"),
            Buffer("weights", REGISTER, (128, 64), "float16", role="epilogue"),
            *(Buffer(name, REGISTER, (128,), "float32", role="epilogue") for name in ("top", "total")),
            Buffer("o_s", SHARED, (128, 64), "float16", swizzle=128),
        ),
        pipelines=(
            Pipeline("qkv", ("q_s", "k_s", "v_s"), "load", Engine.BULK, (mma,), rounds="once"),
            Pipeline("s", ("s_t",), "mma", Engine.TCGEN05, (epilogue,), rounds="once"),
            Pipeline("p", ("p_t",), "epilogue", Engine.TMEM, (mma,), rounds="once"),
            Pipeline("o", ("o_t",), "mma", Engine.TCGEN05, (epilogue,), rounds="once"),
        ),
        mmas=(
            Mma("qk", "tcgen05", "mma", 128, 64, 64, "float16", a="q_s", b="k_s", acc="s_t", doc="S = Q K^T"),
            Mma(
                "pv", "tcgen05", "mma", 128, 64, 64, "float16", b_major="mn", a_space=TENSOR, a="p_t",
                b="v_s", acc="o_t",
                doc="O = P V",
            ),
        ),
        grid=("1",),
        axes=("cta",),
        named_barriers={"staged": ("epilogue",)},
        maps=(*(rows_map(x, 64, 128, 128) for x in "qo"), *(rows_map(x, 64, 64, 64) for x in "kv")),
    )  # fmt: skip


@recorded
def issue_both(m: Recorder) -> None:
    qkv, s = m.wait("qkv", 0), m.acquire("s", 0)
    m.multiply("qk", s.view(), qkv.q_s, qkv.k_s)
    m.commit(s)
    p, o = m.wait("p", 0), m.acquire("o", 0)
    m.multiply("pv", o.view(), p.view(), qkv.v_s)
    m.commit(o)


@recorded
def weigh_and_store(m: Recorder) -> None:
    scores, weights, top, total = (m.buffer(x) for x in ("scores", "weights", "top", "total"))
    s = m.wait("s", 0)
    fragment.read_tensor(m, scores, s.view(), m.thread)
    m.release(s)
    fragment.row_maxima(m, top, scores, m.thread)
    fragment.exp2_below(m, scores, top, m.thread)
    fragment.row_sums(m, total, scores, m.thread)
    fragment.round_to(m, weights, scores)
    p = m.acquire("p", 0)
    fragment.write_tensor(m, p.view(), weights, m.thread)
    m.commit(p)
    o = m.wait("o", 0)
    fragment.read_tensor(m, scores, o.view(), m.thread)
    m.release(o)
    fragment.divide_rows(m, scores, total, m.thread)
    fragment.round_to(m, weights, scores)
    fragment.stage_rows(m, m.buffer("o_s"), 0, 128, weights, m.thread)
    m.store("staged", (Box("o_map", (0, 0)), m.buffer("o_s")))
    m.await_stores()


# 16-bit accumulators: C = A B^T in float16, one column of tensor memory per sum, two sums per register.


def half_sums(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("epilogue", 4, doc="128 rows of C"), Role("load", 1, doc="A and B"),
               Role("mma", 1, doc="the products")),
        buffers=(
            Buffer("a_s", SHARED, (128, 64), "float16", 2, swizzle=128),
            Buffer("b_s", SHARED, (64, 64), "float16", 2, swizzle=128),
            Buffer("c_t", TENSOR, (128, 64), "float16", unpacked=True),
            Buffer.own("sums", "epilogue", 64, "float16"),
        ),
        pipelines=(
            Pipeline("ab", ("a_s", "b_s"), "load", Engine.BULK, (Reader("mma", Engine.TCGEN05),), 2),
            Pipeline("c", ("c_t",), "mma", Engine.TCGEN05, (Reader("epilogue", Engine.TMEM),), rounds="once"),
        ),
        mmas=(Mma("product", "tcgen05", "mma", 128, 64, 64, "float16", a="a_s", b="b_s", acc="c_t",
                  doc="C += A B^T"),),
        grid=("1",),
        axes=("cta",),
        maps=(rows_map("a", 64 * TILES, 128, 128), rows_map("b", 64 * TILES, 64, 64)),
    )  # fmt: skip


@recorded
def load_in_steps(m: Recorder) -> None:
    for i in rolled(TILES):
        ab = m.acquire("ab", i)
        m.bulk(ab.a_s, Box("a_map", (0, i * 64)), ab)
        m.bulk(ab.b_s, Box("b_map", (0, i * 64)), ab)
        m.commit(ab)


@recorded
def issue_sums(m: Recorder) -> None:
    c = m.acquire("c", 0)
    for i in rolled(TILES):
        ab = m.wait("ab", i)
        m.multiply("product", c.view(), ab.a_s, ab.b_s, accumulate=i > 0)
        m.release(ab)
    m.commit(c)


@by_text
def write_sums(m, c: t.Writes, sums):
    """Write a row per thread."""
    for i in range(64):
        c.row("sums_row", m.thread, 64)[i] = sums[i]


@recorded
def store_sums(m: Recorder) -> None:
    sums, c = m.buffer("sums"), m.wait("c", 0)
    fragment.read_sums(m, sums, c.view(), m.thread)
    m.release(c)
    write_sums(m, m.operand("c"), sums)


# All lanes of tensor memory for 32 or 64 rows (`.ws`): the columns of C in four or two parts, one below the
# other.


def folded(k: SimpleNamespace, arch: ArchSpec, rows: int = 64) -> Schedule:
    columns = 64 * rows // 128
    return Schedule(
        roles=(Role("epilogue", 4, doc="C"), Role("load", 1, doc="A and B"),
               Role("mma", 1, doc="the products")),
        buffers=(
            Buffer("a_s", SHARED, (rows, 64), "bfloat16", 2, swizzle=128),
            Buffer("b_s", SHARED, (64, 64), "bfloat16", 2, swizzle=128),
            Buffer("c_t", TENSOR, (128, columns), "float32"),
            Buffer.own("sums", "epilogue", columns),
        ),
        pipelines=(
            Pipeline("ab", ("a_s", "b_s"), "load", Engine.BULK, (Reader("mma", Engine.TCGEN05),), 2),
            Pipeline("c", ("c_t",), "mma", Engine.TCGEN05, (Reader("epilogue", Engine.TMEM),), rounds="once"),
        ),
        mmas=(Mma("product", "tcgen05", "mma", rows, 64, 64, "bfloat16", a="a_s", b="b_s", acc="c_t", ws=True,
                  doc="C += A B^T"),),
        grid=("1",),
        axes=("cta",),
        maps=(rows_map("a", 64 * TILES, rows, rows, "BFLOAT16"),
              rows_map("b", 64 * TILES, 64, 64, "BFLOAT16")),
    )  # fmt: skip


def narrow(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return folded(k, arch, 32)


@by_text
def write_folded(m, c: t.Writes, sums):
    """A thread has as many columns of row `thread % rows` as it has sums."""
    columns = sums.size
    rows = 128 * columns // 64
    for i in range(columns):
        c.row("c_row", m.thread % rows, 64)[m.thread // rows * columns + i] = sums[i]


@recorded
def store_folded(m: Recorder) -> None:
    sums, c = m.buffer("sums"), m.wait("c", 0)
    fragment.read_tensor(m, sums, c.view(), m.thread)
    m.release(c)
    write_folded(m, m.operand("c"), sums)


# Copies by the tensor cores (tcgen05.cp): A moves on into tensor memory, in order with the products that read
# it there.


def copied(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("epilogue", 4, doc="128 rows of C"), Role("load", 1, doc="A and B"),
               Role("mma", 1, doc="copies and products")),
        buffers=(
            Buffer("a_s", SHARED, (128, 64), "float16", 2, swizzle=128),
            Buffer("b_s", SHARED, (64, 64), "float16", 2, swizzle=128),
            Buffer("a_t", TENSOR, (128, 64), "float16"),
            Buffer("c_t", TENSOR, (128, 64), "float32"),
            Buffer("sums", REGISTER, (128, 64), "float32", role="epilogue"),
        ),
        pipelines=(
            Pipeline("ab", ("a_s", "b_s"), "load", Engine.BULK, (Reader("mma", Engine.TCGEN05),), 2),
            Pipeline("c", ("c_t",), "mma", Engine.TCGEN05, (Reader("epilogue", Engine.TMEM),), rounds="once"),
        ),
        mmas=(Mma("product", "tcgen05", "mma", 128, 64, 64, "float16", a_space=TENSOR, a="a_t", b="b_s",
                  acc="c_t", doc="C += A B^T"),),
        grid=("1",),
        axes=("cta",),
        maps=(rows_map("a", 64 * TILES, 128, 128), rows_map("b", 64 * TILES, 64, 64)),
    )  # fmt: skip


@recorded
def copy_and_issue(m: Recorder) -> None:
    c = m.acquire("c", 0)
    for i in rolled(TILES):
        ab = m.wait("ab", i)
        m.copy_columns(m.buffer("a_t"), ab.a_s)
        m.multiply("product", c.view(), m.buffer("a_t"), ab.b_s, accumulate=i > 0)
        m.release(ab)
    m.commit(c)


@recorded
def write_tile(m: Recorder) -> None:
    sums, c = m.buffer("sums"), m.wait("c", 0)
    fragment.read_tensor(m, sums, c.view(), m.thread)
    m.release(c)
    fragment.write_rows(m, m.operand("c"), 64, 0, 0, sums, m.thread)


# `.ws` with A in tensor memory: each half of the lanes multiplies its own 64 rows by its own half of the
# columns, two products in one, C = [A_0 B_0^T | A_1 B_1^T], A_1 below A_0, B_1 below B_0.


def two_in_one(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("epilogue", 4, doc="C"), Role("load", 1, doc="A and B"),
               Role("mma", 1, doc="copies and products")),
        buffers=(
            Buffer("a_s", SHARED, (128, 64), "float16", 2, swizzle=128),
            Buffer("b_s", SHARED, (64, 64), "float16", 2, swizzle=128),
            Buffer("a_t", TENSOR, (128, 64), "float16", doc="64 rows, and 64 others below"),
            Buffer("c_t", TENSOR, (128, 32), "float32"),
            Buffer.own("sums", "epilogue", 32),
        ),
        pipelines=(
            Pipeline("ab", ("a_s", "b_s"), "load", Engine.BULK, (Reader("mma", Engine.TCGEN05),), 2),
            Pipeline("c", ("c_t",), "mma", Engine.TCGEN05, (Reader("epilogue", Engine.TMEM),), rounds="once"),
        ),
        mmas=(
            Mma(
                "product", "tcgen05", "mma", 64, 64, 64, "float16", a_space=TENSOR, a="a_t", b="b_s",
                acc="c_t", ws=True,
                doc="C += A B^T, by halves",
            ),
        ),
        grid=("1",),
        axes=("cta",),
        maps=(rows_map("a", 64 * TILES, 128, 128), rows_map("b", 64 * TILES, 64, 64)),
    )  # fmt: skip


def products_of_halves(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    a, b = inputs["a"].double(), inputs["b"].double()
    return {"c": torch.cat([a[:64] @ b[:32].T, a[64:] @ b[32:].T], dim=1).float()}


# Scales in tensor memory: C = (A x 2^a) (B x 2^b)^T, e4m3 with an exponent per row and 32 of K (mxf8f6f4).


def bytes_map(
    operand: str, columns: int, rows: int, box: int, each: int = 128, swizzle: str = "128B"
) -> TensorMap:
    """Boxes of `box` rows of a row-major matrix of bytes, `each` columns each."""
    return TensorMap(
        f"{operand}_map",
        operand,
        "UINT8",
        (str(columns), str(rows)),
        (str(columns),),
        (each, box),
        (1, 1),
        swizzle=swizzle,
    )


def scaled(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("epilogue", 4, doc="128 rows of C"), Role("load", 1, doc="A, B and factors"),
               Role("mma", 1, doc="the products")),
        buffers=(
            Buffer("a_s", SHARED, (128, 128), "float8_e4m3", 2, swizzle=128),
            Buffer("b_s", SHARED, (64, 128), "float8_e4m3", 2, swizzle=128),
            *(Buffer(name, SHARED, (32, 16), "uint8", 2) for name in ("fa_s", "fb_s")),
            *(Buffer(name, TENSOR, (128, 16), "uint8") for name in ("fa_t", "fb_t")),
            Buffer("c_t", TENSOR, (128, 64), "float32"),
            Buffer.own("sums", "epilogue", 64),
        ),
        pipelines=(
            Pipeline("ab", ("a_s", "b_s", "fa_s", "fb_s"), "load", Engine.BULK,
                     (Reader("mma", Engine.TCGEN05),), 2),
            Pipeline("c", ("c_t",), "mma", Engine.TCGEN05, (Reader("epilogue", Engine.TMEM),), rounds="once"),
        ),
        mmas=(
            Mma(
                "product", "tcgen05", "mma", 128, 64, 128, "float8_e4m3", a="a_s", b="b_s", acc="c_t",
                scales=("fa_t", "fb_t"),
                doc="C += A B^T, by blocks",
            ),
        ),
        grid=("1",),
        axes=("cta",),
        maps=(
            bytes_map("a", 128 * TILES, 128, 128), bytes_map("b", 128 * TILES, 64, 64),
            *(bytes_map(name, 16, 32 * TILES, 32, 16, "NONE") for name in ("fa", "fb")),
        ),
    )  # fmt: skip


@recorded
def load_with_factors(m: Recorder) -> None:
    for i in rolled(TILES):
        ab = m.acquire("ab", i)
        m.bulk(ab.a_s, Box("a_map", (0, i * 128)), ab)
        m.bulk(ab.b_s, Box("b_map", (0, i * 128)), ab)
        m.bulk(ab.fa_s, Box("fa_map", (i * 32, 0)), ab)
        m.bulk(ab.fb_s, Box("fb_map", (i * 32, 0)), ab)
        m.commit(ab)


@recorded
def issue_scaled(m: Recorder) -> None:
    c = m.acquire("c", 0)
    for i in rolled(TILES):
        ab = m.wait("ab", i)
        m.copy_columns(m.buffer("fa_t"), ab.fa_s)
        m.copy_columns(m.buffer("fb_t"), ab.fb_s)
        m.multiply("product", c.view(), ab.a_s, ab.b_s, accumulate=i > 0)
        m.release(ab)
    m.commit(c)


def scaled_product(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    whole = []
    for name, rows in (("a", 128), ("b", 64)):
        exponents = (
            inputs[f"f{name}"].view(TILES, 32, 4, 4).permute(2, 1, 0, 3).reshape(128, TILES * 4)[:rows]
        )
        whole.append(inputs[name].double() * torch.exp2(exponents.double() - 127).repeat_interleave(32, 1))
    return {"c": (whole[0] @ whole[1].T).float()}


# The same of numbers of 4 bits, two in a byte (mxf4): rows of 64 bytes, two steps of 64 of K.


def pairs(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    schedule = scaled(k, arch)
    narrow_rows = {"a_s": (128, 64), "b_s": (64, 64)}
    return dataclasses.replace(
        schedule,
        buffers=tuple(
            dataclasses.replace(b, shape=narrow_rows[b.name], dtype="float4_e2m1x2", swizzle=64)
            if b.name in narrow_rows else b
            for b in schedule.buffers
        ),
        mmas=(dataclasses.replace(schedule.mmas[0], dtype="float4_e2m1x2"),),
        maps=(
            bytes_map("a", 64 * TILES, 128, 128, each=64, swizzle="64B"),
            bytes_map("b", 64 * TILES, 64, 64, each=64, swizzle="64B"),
            *schedule.maps[2:],
        ),
    )  # fmt: skip


@recorded
def load_pairs(m: Recorder) -> None:
    for i in rolled(TILES):
        ab = m.acquire("ab", i)
        m.bulk(ab.a_s, Box("a_map", (0, i * 64)), ab)
        m.bulk(ab.b_s, Box("b_map", (0, i * 64)), ab)
        m.bulk(ab.fa_s, Box("fa_map", (i * 32, 0)), ab)
        m.bulk(ab.fb_s, Box("fb_map", (i * 32, 0)), ab)
        m.commit(ab)


def product_of_pairs(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    numbers = {name: inputs[name].long()[..., None] >> torch.tensor([0, 4]) & 15 for name in "ab"}
    sizes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    signed = {name: (sizes[codes & 7] * (1 - 2 * (codes >> 3))).flatten(1) for name, codes in numbers.items()}
    return scaled_product({**inputs, **signed})


# Operands of 8 bits along M and N, as cached values are: C = A^T B, rows of K in shared memory.


def along_rows(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("epilogue", 4, doc="128 rows of C"), Role("load", 1, doc="A and B"),
               Role("mma", 1, doc="the products")),
        buffers=(
            Buffer("a_s", SHARED, (64, 128), "float8_e4m3", 2, swizzle=128),
            Buffer("b_s", SHARED, (64, 64), "float8_e4m3", 2, swizzle=64),
            Buffer("c_t", TENSOR, (128, 64), "float32"),
            Buffer.own("sums", "epilogue", 64),
        ),
        pipelines=(
            Pipeline("ab", ("a_s", "b_s"), "load", Engine.BULK, (Reader("mma", Engine.TCGEN05),), 2),
            Pipeline("c", ("c_t",), "mma", Engine.TCGEN05, (Reader("epilogue", Engine.TMEM),), rounds="once"),
        ),
        mmas=(Mma("product", "tcgen05", "mma", 128, 64, 64, "float8_e4m3", a_major="mn", b_major="mn",
                  a="a_s", b="b_s", acc="c_t", doc="C += A^T B"),),
        grid=("1",),
        axes=("cta",),
        maps=(bytes_map("a", 128, 64 * TILES, 64),
              bytes_map("b", 64, 64 * TILES, 64, each=64, swizzle="64B")),
    )  # fmt: skip


@recorded
def load_along_rows(m: Recorder) -> None:
    for i in rolled(TILES):
        ab = m.acquire("ab", i)
        m.bulk(ab.a_s, Box("a_map", (i * 64, 0)), ab)
        m.bulk(ab.b_s, Box("b_map", (i * 64, 0)), ab)
        m.commit(ab)


# Cluster launch control: a CTA that is done takes the place of one that has not begun, until all have.

TAKEN = 7


def stealing(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("write", 4, doc="the words of a CTA"), Role("ask", 1, doc="whose words come next")),
        buffers=(Buffer("answer", SHARED, (4,), "int32", 2),),
        pipelines=(
            Pipeline("next", ("answer",), "ask", Engine.BULK,
                     (Reader("write", Engine.THREADS), Reader("ask", Engine.THREADS)), 2),
        ),
        mmas=(),
        grid=(str(TAKEN),),
        axes=("cta",),
    )  # fmt: skip


@by_text
def double_words(m, out: t.Writes, x, cta):
    """Double a thread's word of the CTA whose turn it is."""
    out.row("words", cta, 128)[m.thread] = x.row("given", cta, 128)[m.thread] * 2


@recorded
def write_in_turn(m: Recorder) -> None:
    cta: Int32 = m.block(0)
    use: Int32 = 0
    while cta >= 0:
        double_words(m, m.operand("out"), m.operand("x"), cta)
        slot = m.wait("next", use)
        m.say(t.ReadNext("taken", slot.answer))
        m.release(slot)
        cta = t.name("taken", "int32")
        use += 1


@recorded
def ask_in_turn(m: Recorder) -> None:
    cta: Int32 = m.block(0)
    use: Int32 = 0
    while cta >= 0:
        slot = m.acquire("next", use)
        m.say(t.AskNext(slot, slot.answer))
        m.commit(slot)
        slot = m.wait("next", use)
        m.say(t.ReadNext("taken", slot.answer))
        m.release(slot)
        cta = t.name("taken", "int32")
        use += 1


# Leaves on rows without a product: C += X / 2, on the architecture where a thread holds a row.


def rows(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("add", 4, doc="128 rows"),),
        buffers=(
            Buffer("x_r", REGISTER, (128, 32), "float32", role="add"),
            Buffer("half", REGISTER, (128,), "float32", role="add"),
        ),
        pipelines=(),
        mmas=(),
        grid=("2",),
        axes=("cta",),
    )


@recorded
def add_rows(m: Recorder) -> None:
    x, half = m.buffer("x_r"), m.buffer("half")
    first = inline(m.block(0) * 128)
    m.fill(half, 0.5)
    fragment.read_rows(m, x, m.operand("x"), 32, first, 0, m.thread)
    fragment.scale_rows(m, x, half, m.thread)
    fragment.add_rows(m, m.operand("c"), 32, first, 0, x, m.thread)


# Products of two CTAs (cta_group::2): C = A B^T with 128 rows of A and half the rows of B in each CTA.


def pair(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(
            Role("epilogue", 4, doc="128 rows of C a CTA"),
            Role("load", 1, doc="this CTA's rows of A and B"),
            Role("mma", 1, doc="the products of both CTAs"),
        ),
        buffers=(
            Buffer("a_s", SHARED, (128, 64), "bfloat16", 2, swizzle=128),
            Buffer("b_s", SHARED, (32, 64), "bfloat16", 2, swizzle=128),
            Buffer("c_t", TENSOR, (128, 64), "float32"),
            Buffer("sums", REGISTER, (128, 64), "float32", role="epilogue"),
        ),
        pipelines=(
            Pipeline("ab", ("a_s", "b_s"), "load", Engine.BULK, (Reader("mma", Engine.TCGEN05),), 2,
                     pair=True),
            Pipeline("c", ("c_t",), "mma", Engine.TCGEN05, (Reader("epilogue", Engine.TMEM, "warp"),),
                     rounds="once", pair=True),
        ),
        mmas=(
            Mma("product", "tcgen05", "mma", 256, 64, 64, "bfloat16", a="a_s", b="b_s", acc="c_t",
                cta_group=2, doc="C += A B^T"),
        ),
        grid=("2",),
        axes=("rank",),
        cluster=(2, 1, 1),
        group=(0,),
        maps=(rows_map("a", 64 * TILES, 256, 128, "BFLOAT16"), rows_map("b", 64 * TILES, 64, 32, "BFLOAT16")),
    )  # fmt: skip


@recorded
def load_and_end(m: Recorder) -> None:
    for i in rolled(TILES):
        ab = m.acquire("ab", i)
        m.bulk(ab.a_s, Box("a_map", (m.block(0) * 128, i * 64)), ab)
        m.bulk(ab.b_s, Box("b_map", (m.block(0) * 32, i * 64)), ab)
        m.commit(ab)


@recorded
def load_own(m: Recorder) -> None:
    load_and_end(m)
    m.drain("ab", TILES)


@recorded
def issue_for_both(m: Recorder) -> None:
    if m.block(0) == 0:
        c = m.acquire("c", 0)
        for i in rolled(TILES):
            ab = m.wait("ab", i)
            m.multiply("product", c.view(), ab.a_s, ab.b_s, accumulate=i > 0)
            m.release(ab)
        m.commit(c)


@recorded
def write_own(m: Recorder) -> None:
    sums = m.buffer("sums")
    c = m.wait("c", 0)
    fragment.read_tensor(m, sums, c.view(), m.thread)
    m.release(c)
    fragment.write_rows(m, m.operand("c"), 64, m.block(0) * 128, 0, sums, m.thread)


# Threads of both CTAs fill what products of the pair read: C = round(A B^T) V, 64 rows of A per CTA, from
# tensor memory.


def filled_pair(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    by_product, by_rows = (Reader("mma", Engine.TCGEN05),), (Reader("rows", Engine.TMEM, "warp"),)
    return Schedule(
        roles=(
            Role("rows", 4, doc="64 rows of A, of P and of C a CTA, the half of the columns a thread"),
            Role("load", 1, doc="half of the rows of B, and of the columns of V"),
            Role("mma", 1, doc="the products of both CTAs"),
        ),
        buffers=(
            Buffer("b_s", SHARED, (64, 64), "bfloat16", 2, swizzle=128),
            Buffer("v_s", SHARED, (128, 64), "bfloat16", 2, swizzle=128),
            Buffer("p_s", SHARED, (64, 128), "bfloat16", swizzle=128),
            Buffer("a_t", TENSOR, (128, 64), "bfloat16", doc="64 rows, twice"),
            Buffer("s_t", TENSOR, (128, 64), "float32"),
            Buffer("c_t", TENSOR, (128, 64), "float32"),
            Buffer.own("sums", "rows", 64),
            Buffer.own("rounded", "rows", 64, "bfloat16"),
        ),
        pipelines=(
            Pipeline("a", ("a_t",), "rows", Engine.TMEM, by_product, rounds="once", fill_arrive="warp",
                     pair=True),
            Pipeline("bv", ("b_s", "v_s"), "load", Engine.BULK, by_product, 2, pair=True),
            Pipeline("s", ("s_t",), "mma", Engine.TCGEN05, by_rows, pair=True),
            Pipeline("p", ("p_s",), "rows", Engine.THREADS, by_product, fill_arrive="warp", pair=True,
                     doc="also returns c"),
            Pipeline("c", ("c_t",), "mma", Engine.TCGEN05, by_rows, returned_by="p", accumulates=True,
                     pair=True),
        ),
        mmas=(
            Mma("qk", "tcgen05", "mma", 128, 128, 64, "bfloat16", a_space=TENSOR, a="a_t", b="b_s", acc="s_t",
                cta_group=2, doc="S = A B^T"),
            Mma("pv", "tcgen05", "mma", 128, 128, 128, "bfloat16", b_major="mn", a="p_s", b="v_s", acc="c_t",
                cta_group=2, doc="C += P V"),
        ),
        grid=("2",),
        axes=("rank",),
        cluster=(2, 1, 1),
        group=(0,),
        maps=(rows_map("b", 64, 128 * TILES, 64, "BFLOAT16"),
              rows_map("v", 128, 128 * TILES, 128, "BFLOAT16")),
    )  # fmt: skip


@by_text
def take_row(m, held, a, first):
    """Read a row of A in each half of the lanes."""
    row = a.row("a_row", first + m.thread % 64, 64)
    for i in unrolled(held.size // 8):
        row.read(held.group(i * 8, 8), i)


@by_text
def leave_row(m, target: Shared, held):
    """Leave half of a row of P per thread."""
    for i in unrolled(held.size // 8):
        target.write(held.group(i * 8, 8), (m.thread % 64, m.thread // 64 * 64 + i * 8))


@by_text
def write_half(m, c: t.Writes, sums, acc, first):
    """Write half of a row of C per thread."""
    m.do(fragment.load_columns(sums, acc, 0, m.thread))
    row = c.row("c_row", first + m.thread % 64, 128, m.thread // 64 * 64)
    for i in range(sums.size):
        row[i] = sums[i]


@recorded
def load_halves(m: Recorder) -> None:
    for i in rolled(TILES):
        bv = m.acquire("bv", i)
        m.bulk(bv.b_s, Box("b_map", (i * 128 + m.block(0) * 64, 0)), bv)
        m.bulk(bv.v_s, Box("v_map", (i * 128, m.block(0) * 64)), bv)
        m.commit(bv)
    m.drain("bv", TILES)


@recorded
def issue_both_of_pair(m: Recorder) -> None:
    if m.block(0) == 0:
        a = m.wait("a", 0)
        for i in rolled(TILES):
            bv, s = m.wait("bv", i), m.acquire("s", i)
            m.multiply("qk", s.view(), a.view(), bv.b_s)
            m.commit(s)
            p, c = m.wait("p", i), m.acquire("c", i)
            m.multiply("pv", c.view(), p.view(), bv.v_s, accumulate=i > 0)
            m.release(p)
            m.release(bv)
            m.commit(c)


@recorded
def fill_for_both(m: Recorder) -> None:
    sums, rounded = m.buffer("sums"), m.buffer("rounded")
    a = m.acquire("a", 0)
    take_row(m, rounded, m.operand("a"), m.block(0) * 64)
    fragment.write_tensor(m, a.view(), rounded, m.thread)
    m.commit(a)
    for i in rolled(TILES):
        s = m.wait("s", i)
        fragment.read_tensor(m, sums, s.view(), m.thread)
        m.release(s)
        fragment.round_to(m, rounded, sums)
        p = m.acquire("p", i)
        leave_row(m, p.view(), rounded)
        if i > 0:
            m.release(m.wait("c", i - 1))
        m.commit(p)
    last = m.wait("c", TILES - 1)
    write_half(m, m.operand("c"), sums, last.view(), m.block(0) * 64)
    m.release(last)
    m.drain("p", TILES)


def rounded_product(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    weights = (inputs["a"].float() @ inputs["b"].float().T).bfloat16()
    return {"c": (weights.double() @ inputs["v"].double()).float()}


# Words through global memory: each CTA sends every other one its share of a tile, and joins the parts of its
# own share.

CTAS = 4


def grid_parts(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("trade", 4, doc="sends shares, joins the parts of its own"),),
        buffers=(
            Buffer("parts_s", SHARED, (4, 136), "float32", doc="16 rows by 8 columns and 8 lses a part"),
            Buffer("acc", REGISTER, (64, 8), "float32", role="trade"),
            Buffer("lses", REGISTER, (128, 2), "float32", role="trade", per_thread=2, private=True),
            Buffer("sinks", REGISTER, (128, 1), "float32", role="trade", per_thread=1, private=True),
        ),
        pipelines=(
            Pipeline(
                "parts", ("parts_s",), "trade", Engine.GRID, (Reader("trade", Engine.THREADS),),
                rounds="once", through="words", meets="trade"
            ),
        ),
        mmas=(),
        grid=(str(CTAS),),
        axes=("cta",),
        named_barriers={"trade": ("trade",)},
        resident="1",
    )  # fmt: skip


def counted(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    """CTAs that count in after they have written, and read what the next one wrote."""
    return Schedule(
        roles=(Role("pass_on", 4, doc="leaves its rows and takes the next CTA's"),),
        buffers=(Buffer("x_r", REGISTER, (128, 32), "float32", role="pass_on"),),
        pipelines=(),
        mmas=(),
        grid=(str(CTAS),),
        axes=("cta",),
        named_barriers={"all": ("pass_on",)},
        resident="1",
    )


@recorded
def pass_on(m: Recorder) -> None:
    x, cta, left = m.buffer("x_r"), m.block(0), m.operand("left")
    fragment.read_rows(m, x, m.operand("x"), 32, cta * 128, 0, m.thread)
    fragment.write_rows(m, left, 32, cta * 128, 0, x, m.thread)
    m.count_in("counter", 1, "all")
    m.await_count("counter", 1, CTAS, "all")
    fragment.read_rows(m, x, left, 32, (cta + 1) % CTAS * 128, 0, m.thread)
    m.count_out("counter", 1, CTAS, "all")
    fragment.write_rows(m, m.operand("c"), 32, cta * 128, 0, x, m.thread)


@recorded
def trade(m: Recorder) -> None:
    acc, lses, sinks = (m.buffer(text) for text in ("acc", "lses", "sinks"))
    cta, parts = m.block(0), m.slot("parts", 0)
    ctas: Int32 = CTAS
    m.fill(lses, 1.0)
    m.fill(sinks, -math.inf)
    fragment.read_rows(m, acc, m.operand("x"), 8, cta * 64, 0, m.thread)
    words = m.schedule.buffer("parts_s").stage_elements
    sparse_mla.send_parts(m, acc, lses, m.sender(parts.parts_s, parts), words, 0, 1, cta, ctas)
    m.wait("parts", 0, at=cta)
    sparse_mla.merge_rows(
        m, m.operand("out"), m.operand("lse"), m.buffer("parts_s"), sinks, 0, 0, cta, ctas, 0, 64, 8, 1.0,
        -math.inf, None,
    )  # fmt: skip


def mean_of_parts(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    out = torch.zeros(1, 8, 512)
    out[0, :, :64] = inputs["x"].view(CTAS, 64, 8).mean(dim=0).T
    return {"out": out, "lse": torch.full((1, 8), 1 + math.log2(CTAS))}


def matrices(*shapes: tuple[int, ...], dtype: str = "float16") -> tuple[OperandSpec, ...]:
    return tuple(OperandSpec(name, shape, dtype) for name, shape in zip("ab", shapes, strict=False))


# Numbers that a body reads from memory: out[cta, i] = x[cta, i] + the sum of x[cta, :limit]. Every thread
# reads what the others left in shared memory; `limit` is in global memory.

WORDS = 64


def words(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("add", WORDS // 32, doc="a word a thread"),),
        buffers=(Buffer("shared_words", SHARED, (WORDS,), "int32"),),
        pipelines=(),
        mmas=(),
        grid=(str(CTAS),),
        axes=("cta",),
    )


@by_text
def leave_word(m, shared_words, x, cta):
    """Leave a thread's word of x in shared memory."""
    shared_words[m.thread] = x.row("words", cta, WORDS)[m.thread]


@by_text
def add_word(m, out: t.Writes, shared_words, total, cta):
    """Write a thread's word of the output."""
    out.row("words", cta, WORDS)[m.thread] = shared_words[m.thread] + total


@recorded
def add_words(m: Recorder) -> None:
    limit = t.maximum(m.word(m.operand("limits"), m.block(0)), 7)
    total: Int32 = 0
    words = m.buffer("shared_words")
    leave_word(m, words, m.operand("x"), m.block(0))
    m.meet()
    for i in range(limit):
        total += m.word(words, i)
    add_word(m, m.operand("out"), words, total, m.block(0))


def sums_of_words(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    x, limits = inputs["x"], inputs["limits"].clamp(min=7)
    inside = torch.arange(WORDS) < limits[:, None]
    return {"out": x + (x * inside).sum(dim=1, keepdim=True, dtype=torch.int32)}


# The machinery: a program with its operands, its expected outputs, and one change that breaks it.


Slip = Callable[[list[t.Statement], int], list[t.Statement] | None]


@dataclass(frozen=True)
class Case:
    """A program of this file.

    Attributes:
        expected: inputs -> outputs by name.
        broken: (a block of `role`, position) -> the block after a slip there; None leaves it.
        caught: who catches the slip, and with which words.
        op: the operation whose leaves it calls beside the common ones.
        dsls: the DSLs that spell it.
    """

    name: str
    declare: Callable[[SimpleNamespace, ArchSpec], Schedule]
    bodies: Mapping[str, Body]
    operands: tuple[OperandSpec, ...]
    expected: Callable[[Mapping[str, torch.Tensor]], Mapping[str, torch.Tensor]]
    role: str
    broken: Slip
    caught: str
    arch: str = "sm_90a"
    limit: float = 1e-3
    op: str = ""
    dsls: tuple[str, ...] = DSLS
    dims: Mapping[str, int] = field(default_factory=dict)


def of(kind: type, /, **fields: Any) -> Callable[[t.Statement], bool]:
    """Statements of a kind with these values."""
    return lambda s: isinstance(s, kind) and all(getattr(s, f) == v for f, v in fields.items())


def without(which: Callable[[t.Statement], bool]) -> Slip:
    return lambda block, i: [*block[:i], *block[i + 1 :]] if which(block[i]) else None


def twice(which: Callable[[t.Statement], bool]) -> Slip:
    return lambda block, i: [*block[: i + 1], *block[i:]] if which(block[i]) else None


def too_early(which: Callable[[t.Statement], bool]) -> Slip:
    """Move the statement before the one ahead of it."""
    return lambda block, i: (
        [*block[: i - 1], block[i], block[i - 1], *block[i + 1 :]] if which(block[i]) else None
    )


def with_fields(which: Callable[[t.Statement], bool], **fields: Any) -> Slip:
    return lambda block, i: (
        [*block[:i], dataclasses.replace(block[i], **fields), *block[i + 1 :]] if which(block[i]) else None
    )


def summing_from_the_start(block: list[t.Statement], i: int) -> list[t.Statement] | None:
    """Products that accumulate onto what was there before the first of them."""
    if not isinstance(block[i], t.Multiply):
        return None
    products = tuple(dataclasses.replace(p, accumulate=True) for p in block[i].products)
    return [*block[:i], dataclasses.replace(block[i], products=products), *block[i + 1 :]]


def product_of(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"c": (inputs["a"].double() @ inputs["b"].double().T).float()}


QKV = (OperandSpec("q", (128, 64), "float16"), *(OperandSpec(name, (64, 64), "float16") for name in "kv"))
CASES = (
    Case(
        "replicas",
        replicas,
        {"multiply": multiply_rows, "load": load_both},
        (*matrices((128, 64 * TILES), (32, 64 * TILES)), OperandSpec("c", (128, 32), "float32", "out")),
        product_of,
        "multiply",
        with_fields(of(t.PipelineOp, kind="release", pending=1), pending=2),
        "interpreter: releases use 0 of ab under a product that reads it",
    ),
    Case(
        "registers",
        registers,
        {"attend": attend, "load": load_qkv},
        (
            *(OperandSpec(name, (64, 64), "bfloat16") for name in "qkv"),
            OperandSpec("o", (64, 64), "float32", "out"),
        ),
        softmax_of,
        "attend",
        without(of(t.AwaitProducts)),
        "interpreter: o is off",
        limit=4e-3,
    ),
    Case(
        "atomics",
        atomics,
        {"multiply": add_half, "load": load_half},
        (*matrices((128, 256), (32, 256)), OperandSpec("c", (128, 32), "float32", "workspace", zeroed=True)),
        product_of,
        "multiply",
        twice(of(t.Call)),
        "interpreter: c is off",
    ),
    Case(
        "turns",
        turns,
        {"multiply": add_in_turn, "load": load_two},
        (*matrices((128, 128), (32, 128)), OperandSpec("c", (128, 32), "float32", "out")),
        in_turn,
        "multiply",
        too_early(of(t.PassTurn)),
        "emulator: ",
    ),
    Case(
        "stores",
        stores,
        {"multiply": store_tiles, "load": load_columns},
        (*matrices((128, 64), (128, 64)), OperandSpec("c", (128, 128), "float16", "out")),
        product_of,
        "multiply",
        without(of(t.AwaitStores)),
        "interpreter: c is off",
    ),
    Case(
        "multicast",
        multicast,
        {"multiply": multiply_tiles, "load": load_for_both},
        (*matrices((128, 64 * TILES), (64, 64 * TILES)), OperandSpec("c", (128, 64), "float32", "out")),
        product_of,
        "load",
        with_fields(of(t.Bulk, multicast=True), multicast=False),
        "interpreter: error[SCHEDULE]",
    ),
    Case(
        "strided",
        strided,
        {"multiply": store_steps, "load": load_steps},
        (
            OperandSpec("a", ("b", "s", "h", 64), "float16", strides=("a_batch", "a_step", "a_head", 1)),
            OperandSpec("w", (64, 64), "float16"),
            OperandSpec(
                "c", ("b", "s", "h", 64), "float16", "out", strides=("c_batch", "c_step", "c_head", 1)
            ),
        ),
        every_step,
        "multiply",
        without(of(t.AwaitStores)),
        "interpreter: error[SCHEDULE]",
        # A by heads, then batches; C by steps, with a gap after each.
        dims={
            **SEQUENCES,
            "a_head": 2 * 80 * 64,
            "a_batch": 80 * 64,
            "a_step": 64,
            "c_batch": 80 * 200,
            "c_step": 200,
            "c_head": 64,
        },
    ),
    Case(
        "in_place",
        in_place,
        {"epilogue": round_in_place, "load": load_three, "mma": issue_in_turn},
        (
            *matrices((128, 64 * TILES), (64, 64 * TILES)),
            OperandSpec("v", (64 * TILES, 64), "float16"),
            OperandSpec("c", (128, 64), "float32", "out"),
        ),
        weighted,
        "epilogue",
        too_early(of(t.PipelineOp, kind="release")),
        "interpreter: error[SCHEDULE]",
        arch="sm_100a",
        limit=2e-3,
    ),
    Case(
        "tensor_operand",
        tensor_operand,
        {"epilogue": weigh_and_store, "load": load_qkv, "mma": issue_both},
        (*QKV, OperandSpec("o", (128, 64), "float16", "out")),
        softmax_of,
        "epilogue",
        too_early(of(t.PipelineOp, kind="commit")),
        "interpreter: touches p_t of use 0 of p, which it does not hold",
        arch="sm_100a",
        limit=2e-3,
    ),
    Case(
        "half_sums",
        half_sums,
        {"epilogue": store_sums, "load": load_in_steps, "mma": issue_sums},
        (*matrices((128, 64 * TILES), (64, 64 * TILES)), OperandSpec("c", (128, 64), "float16", "out")),
        product_of,
        "mma",
        summing_from_the_start,
        "interpreter: c is off",
        arch="sm_100a",
        limit=2e-3,
    ),
    *(
        Case(
            name,
            declare,
            {"epilogue": store_folded, "load": load_in_steps, "mma": issue_sums},
            (
                *matrices((rows, 64 * TILES), (64, 64 * TILES), dtype="bfloat16"),
                OperandSpec("c", (rows, 64), "float32", "out"),
            ),
            product_of,
            "mma",
            summing_from_the_start,
            "interpreter: c is off",
            arch="sm_100a",
        )
        for name, declare, rows in (("folded", folded, 64), ("narrow", narrow, 32))
    ),
    Case(
        "copied",
        copied,
        {"epilogue": write_tile, "load": load_in_steps, "mma": copy_and_issue},
        (*matrices((128, 64 * TILES), (64, 64 * TILES)), OperandSpec("c", (128, 64), "float32", "out")),
        product_of,
        "mma",
        too_early(of(t.Multiply)),
        "interpreter: c is off",
        arch="sm_100a",
    ),
    Case(
        "two_in_one",
        two_in_one,
        {"epilogue": store_folded, "load": load_in_steps, "mma": copy_and_issue},
        (*matrices((128, 64 * TILES), (64, 64 * TILES)), OperandSpec("c", (64, 64), "float32", "out")),
        products_of_halves,
        "mma",
        too_early(of(t.Multiply)),
        "interpreter: c is off",
        arch="sm_100a",
    ),
    Case(
        "scaled",
        scaled,
        {"epilogue": store_folded, "load": load_with_factors, "mma": issue_scaled},
        (
            *matrices((128, 128 * TILES), (64, 128 * TILES), dtype="float8_e4m3"),
            *(OperandSpec(name, (32 * TILES, 16), "uint8") for name in ("fa", "fb")),
            OperandSpec("c", (128, 64), "float32", "out"),
        ),
        scaled_product,
        "mma",
        too_early(of(t.Multiply)),
        "interpreter: c is off",
        arch="sm_100a",
    ),
    Case(
        "pairs",
        pairs,
        {"epilogue": store_folded, "load": load_pairs, "mma": issue_scaled},
        (
            *matrices((128, 64 * TILES), (64, 64 * TILES), dtype="float4_e2m1x2"),
            *(OperandSpec(name, (32 * TILES, 16), "uint8") for name in ("fa", "fb")),
            OperandSpec("c", (128, 64), "float32", "out"),
        ),
        product_of_pairs,
        "mma",
        too_early(of(t.Multiply)),
        "interpreter: c is off",
        arch="sm_100a",
    ),
    Case(
        "along_rows",
        along_rows,
        {"epilogue": store_folded, "load": load_along_rows, "mma": issue_sums},
        (
            *matrices((64 * TILES, 128), (64 * TILES, 64), dtype="float8_e4m3"),
            OperandSpec("c", (128, 64), "float32", "out"),
        ),
        lambda inputs: {"c": (inputs["a"].double().T @ inputs["b"].double()).float()},
        "mma",
        summing_from_the_start,
        "interpreter: c is off",
        arch="sm_100a",
    ),
    Case(
        "stealing",
        stealing,
        {"write": write_in_turn, "ask": ask_in_turn},
        (OperandSpec("x", (TAKEN, 128), "int32"), OperandSpec("out", (TAKEN, 128), "int32", "out")),
        lambda inputs: {"out": inputs["x"] * 2},
        "write",
        too_early(of(t.PipelineOp, kind="release")),
        "interpreter: touches answer of use 0 of next, which it does not hold",
        arch="sm_100a",
        limit=0.0,
    ),
    Case(
        "pair",
        pair,
        {"epilogue": write_own, "load": load_own, "mma": issue_for_both},
        (
            *matrices((256, 64 * TILES), (64, 64 * TILES), dtype="bfloat16"),
            OperandSpec("c", (256, 64), "float32", "out"),
        ),
        product_of,
        "mma",
        too_early(of(t.PipelineOp, kind="release")),
        "interpreter: touches a_s of use 0 of ab, which it does not hold",
        arch="sm_100a",
    ),
    Case(
        "filled_pair",
        filled_pair,
        {"rows": fill_for_both, "load": load_halves, "mma": issue_both_of_pair},
        (
            *matrices((128, 64), (128 * TILES, 64), dtype="bfloat16"),
            OperandSpec("v", (128 * TILES, 128), "bfloat16"),
            OperandSpec("c", (128, 128), "float32", "out"),
        ),
        rounded_product,
        "rows",
        too_early(lambda s: of(t.PipelineOp, kind="commit")(s) and s.slot.pipeline.name == "p"),
        "interpreter: acquires use 1 of c, of which it knows 0 to be given back",
        arch="sm_100a",
        limit=2e-3,
    ),
    Case(
        "rows",
        rows,
        {"add": add_rows},
        (
            OperandSpec("x", (256, 32), "float32"),
            OperandSpec("c", (256, 32), "float32", "workspace", zeroed=True),
        ),
        lambda inputs: {"c": inputs["x"] / 2},
        "add",
        without(of(t.Fill)),
        "interpreter: c is off",
        arch="sm_100a",
    ),
    Case(
        "counted",
        counted,
        {"pass_on": pass_on},
        (
            OperandSpec("x", (CTAS * 128, 32), "float32"),
            OperandSpec("left", (CTAS * 128, 32), "float32", "workspace"),
            OperandSpec("counter", (2,), "int32", "workspace", zeroed=True),
            OperandSpec("c", (CTAS * 128, 32), "float32", "out"),
        ),
        lambda inputs: {"c": inputs["x"].roll(-128, 0)},
        "pass_on",
        without(of(t.AwaitCount)),
        "interpreter: c is off",
        arch="sm_100a",
    ),
    Case(
        "grid_parts",
        grid_parts,
        {"trade": trade},
        (
            OperandSpec("x", (CTAS * 64, 8), "float32"),
            OperandSpec(
                "out",
                (1, 8, 512),
                "bfloat16",
                "workspace",
                zeroed=True,
                strides=(8 * 512, 512, 1),
            ),
            OperandSpec("lse", (1, 8), "float32", "out", strides=(8, 1)),
            OperandSpec("words", (CTAS * 4 * 136,), "int32", "workspace", zeroed=True),
        ),
        mean_of_parts,
        "trade",
        with_fields(of(t.PipelineOp, kind="wait"), at=0),
        "interpreter: error[SCHEDULE]",
        limit=4e-3,
        op="sparse_mla",
        dsls=("cutedsl",),
    ),
    Case(
        "words",
        words,
        {"add": add_words},
        (
            OperandSpec("x", (CTAS, WORDS), "int32"),
            OperandSpec("limits", (CTAS,), "int32"),
            OperandSpec("out", (CTAS, WORDS), "int32", "out"),
        ),
        sums_of_words,
        "add",
        without(of(t.Meet)),
        "emulator: is not ordered after the write of it",
        limit=0.0,
    ),
)
BY_NAME = {case.name: case for case in CASES}


class Written(TileProgram):
    """A program whose text may be given."""

    given: t.Text | None = None

    def text(self, knobs: Mapping[str, Any], arch: ArchSpec) -> t.Text:
        return self.given or super().text(knobs, arch)


def program_of(case: Case, text: t.Text | None = None) -> TileProgram:
    problem = SimpleNamespace(forms={"default": case.operands}, operands=lambda form: case.operands)
    program = Written(
        op=case.op or f"vocabulary_{case.name}", problem=problem, knobs=(), declare=case.declare,
        bodies=lambda k, arch: {START: started, **case.bodies},
    )  # type: ignore[arg-type]  # fmt: skip
    object.__setattr__(program, "given", text)
    return program


def drawn(case: Case) -> dict[str, torch.Tensor]:
    generator, operands = torch.Generator().manual_seed(1), {}
    for spec in case.operands:
        shape = tuple(case.dims[extent] if isinstance(extent, str) else extent for extent in spec.shape)
        value = (torch.randn(shape, generator=generator) * (9 if spec.dtype == "int32" else 1)).to(
            spec.torch_dtype
        )
        if spec.torch_dtype == torch.uint8:  # exponents near 127, or pairs of any numbers
            ends = (124, 131) if spec.dtype == "uint8" else (0, 256)
            value = torch.randint(*ends, shape, generator=generator, dtype=torch.uint8)
        if spec.kind != "in":
            poison = float("nan") if spec.torch_dtype.is_floating_point else -1
            value = torch.full(shape, 0 if spec.zeroed else poison, dtype=spec.torch_dtype)
        if spec.strides:
            strides = tuple(case.dims[s] if isinstance(s, str) else s for s in spec.strides)
            value = torch.empty_strided(shape, strides, dtype=spec.torch_dtype).copy_(value)
        operands[spec.name] = value
    assert bind(case.operands, operands).dims == case.dims
    return operands


def variant_of(case: Case, program: TileProgram, dsl: str, path: Path) -> Variant:
    arch = get_arch(case.arch)
    return Variant(program.variant_id(dsl, arch, {}), program.op, dsl, case.arch, {}, path)


def source_of(case: Case, program: TileProgram, dsl: str) -> str:
    return render(Instance(program, dsl, get_arch(case.arch), {}, frame(dsl)))


def launch(case: Case, executor: Any, variant: Variant) -> str | None:
    """What is wrong with the outputs, or None."""
    inputs = drawn(case)
    executor.prepare(variant)(inputs, case.dims)
    expected = case.expected(drawn(case))
    for name, want in expected.items():
        error = (inputs[name].double() - want.double()).norm() / want.double().norm()
        if not error <= case.limit:
            return f"{name} is off by {error:.2g}"
    for spec in case.operands:
        if spec.zeroed and spec.name not in expected and inputs[spec.name].any():
            return f"{spec.name} is not left zero"
    return None


@lru_cache(maxsize=64)
def compiled(name: str, dsl: str, folder: Path) -> tuple[Any, bytes]:
    """(launch description, PTX) of a program in a DSL."""
    case = BY_NAME[name]
    program = program_of(case)
    return compiled_text(case, source_of(case, program, dsl), dsl, folder)


def compiled_text(case: Case, source: str, dsl: str, folder: Path) -> tuple[Any, bytes]:
    variant = variant_of(case, program_of(case), dsl, folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{variant.id}.py"
    path.write_text(source)
    artifact = backends.get(dsl).compile_module(path, case.arch, folder)
    return artifact, (folder / "kernel.ptx").read_bytes()


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Make executors find a program and its code."""
    original = programs.get

    def use(program: TileProgram, code: tuple[Any, bytes] | None = None) -> None:
        monkeypatch.setattr(programs, "get", lambda op: program if op == program.op else original(op))
        if code is not None:
            monkeypatch.setattr(store, "fetch", lambda variant, file: code)

    return use


def each_case() -> Any:
    return pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@each_case()
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_interpreter_computes_it(case: Case, seed: int | None, known: Callable[..., None]) -> None:
    program = program_of(case)
    known(program)
    assert launch(case, Interpreter(seed=seed), variant_of(case, program, "cutedsl", Path())) is None


@each_case()
@pytest.mark.parametrize("dsl", DSLS)
def test_the_emulator_computes_it(
    case: Case, dsl: str, known: Callable[..., None], tmp_path_factory: pytest.TempPathFactory
) -> None:
    if dsl not in case.dsls:
        pytest.skip(f"{dsl} does not spell it")
    program = program_of(case)
    code = compiled(case.name, dsl, tmp_path_factory.getbasetemp() / "vocabulary" / dsl / case.name)
    known(program, code)
    for interleaving in interleavings(INTERLEAVINGS):
        executor = Emulator(interleaving, strict=True)
        assert launch(case, executor, variant_of(case, program, dsl, Path())) is None, interleaving


def changed(statements: Any, slip: Slip) -> list[t.Statement] | None:
    """The statements after the first slip that applies; None if none does."""
    block = list(statements)
    for i, s in enumerate(block):
        new = slip(block, i)
        if new is None and isinstance(s, (t.Loop, t.Repeat, t.If)):
            inner = changed(s.body, slip)
            new = (
                [*block[:i], dataclasses.replace(s, body=inner), *block[i + 1 :]]
                if inner is not None
                else None
            )
        if new is not None:
            return new
    return None


def catcher(case: Case, text: t.Text, known: Callable[..., None], folder: Path) -> str:
    """Who catches a broken text, and the words."""
    program = program_of(case, text)
    try:
        source = source_of(case, program, "cutedsl")
    except DslKernelError as error:
        return f"plan: {error}"
    known(program)
    try:
        wrong = launch(case, Interpreter(), variant_of(case, program, "cutedsl", Path()))
    except (DslKernelError, RuntimeError) as error:
        return f"interpreter: {error}"
    if wrong is not None:
        return f"interpreter: {wrong}"
    known(program, compiled_text(case, source, "cutedsl", folder))
    for interleaving in interleavings(INTERLEAVINGS):
        try:
            wrong = launch(
                case, Emulator(interleaving, strict=True), variant_of(case, program, "cutedsl", Path())
            )
        except EmulatorError as error:
            return f"emulator: {error}"
        if wrong is not None:
            return f"emulator: {wrong}"
    return "nothing"


@each_case()
def test_a_slip_is_caught(case: Case, known: Callable[..., None], tmp_path: Path) -> None:
    text = program_of(case).text({}, get_arch(case.arch))
    role = changed(text.roles[case.role], case.broken)
    assert role is not None
    by = catcher(case, t.Text(text.start, {**text.roles, case.role: tuple(role)}), known, tmp_path)
    where, _, words = case.caught.partition(": ")
    assert by.startswith(where) and words in by, by


@pytest.mark.parametrize("dsl", DSLS)
def test_every_shared_leaf_is_spelled(dsl: str) -> None:
    leaves = {name for name, value in vars(fragment).items() if isinstance(value, t.Leaf)}
    tensor = {"read_tensor", "read_sums", "write_tensor", "read_accumulator", "load_columns", "store_columns"}
    for tag, wanted in (("sm90", leaves - tensor), ("sm100", leaves)):
        spelled = frozenset().union(*(names for _, _, names in leaf_modules(dsl, "no_operation", tag)))
        assert wanted <= spelled, tag


def test_an_empty_barrier_counts_the_readers_of_every_cta() -> None:
    arch = get_arch("sm_90a")
    plan = barrier_plan(multicast(SimpleNamespace(), arch)).pipelines["ab"]
    assert plan.empty is not None
    # Four warps in each of two CTAs arrive on each CTA's barrier.
    assert plan.empty.count == 2 * 4
    assert plan.release["multiply"][-1] is Action.ARRIVE_EMPTY_CLUSTER


def test_each_warp_that_shares_a_slot_announces_its_part_of_the_other_share() -> None:
    program = programs.get("sparse_mla")
    knobs = {"heads": 128, "kv": "fp8", "tile": 64, "stages": 2, "cluster": 1, "slices": 1, "block": 64}
    arch = get_arch("sm_90a")
    alone, shared = (
        barrier_plan(program.schedule({**knobs, "exchange": ctas}, arch)).pipelines["kv_left"] for ctas in (1,
            2)
    )  # fmt: skip
    assert alone.full is not None and alone.empty is not None
    assert shared.full is not None and shared.empty is not None
    assert (alone.full.count, alone.full.tx_bytes, alone.empty.count) == (128, 0, 8)
    # Half of 32 rows comes from the other CTA; eight warps in each CTA read them.
    assert (shared.full.count, shared.full.tx_bytes, shared.empty.count) == (4, 32 * 576 * 2 // 2, 16)
    assert shared.commit == (Action.ELECT, Action.EXPECT_TX_WARP)
    assert shared.release["left"][-1] is Action.ARRIVE_EMPTY_CLUSTER


def test_a_pair_announces_the_bytes_of_both_ctas() -> None:
    plan = barrier_plan(pair(SimpleNamespace(), get_arch("sm_100a"))).pipelines["ab"]
    assert plan.empty is not None
    assert (plan.full.count, plan.full.tx_bytes, plan.empty.count) == (1, 2 * (128 + 32) * 64 * 2, 1)


def test_threads_of_both_ctas_arrive_at_the_first_one() -> None:
    plan = barrier_plan(filled_pair(SimpleNamespace(), get_arch("sm_100a"))).pipelines
    assert plan["a"].empty is None
    assert plan["a"].commit == (
        Action.WAIT_TMEM_STORE,
        Action.FENCE_BEFORE,
        Action.ELECT,
        Action.ARRIVE_FULL_PAIR,
    )
    assert (plan["a"].full.count, plan["p"].full.count, plan["p"].empty.count) == (2 * 4, 2 * 4, 1)
    assert plan["p"].release["mma"] == (Action.COMMIT_EMPTY_PAIR,)


def test_members_of_a_turn_have_barriers_behind_the_named_ones() -> None:
    schedule = turns(SimpleNamespace(), get_arch("sm_90a"))
    schedule = dataclasses.replace(schedule, named_barriers={"own": ("multiply",)}, apart=("own",))
    (order,) = turn_plans(schedule).values()
    assert (order.first, order.members, order.threads) == (3, (("multiply", 0), ("multiply", 1)), 256)
    assert named_barriers(schedule) == 5


def altered(case: str, **fields: Any) -> Callable[[SimpleNamespace, ArchSpec], Schedule]:
    return lambda k, arch: dataclasses.replace(BY_NAME[case].declare(k, arch), **fields)


def one_field(
    case: str, records: str, name: str, **fields: Any
) -> Callable[[SimpleNamespace, ArchSpec], Schedule]:
    """The declaration with fields of one record changed."""

    def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
        schedule = BY_NAME[case].declare(k, arch)
        new = tuple(
            dataclasses.replace(r, **fields) if r.name == name else r for r in getattr(schedule, records)
        )
        return dataclasses.replace(schedule, **{records: new})

    return declare


def with_product_of_one_cta(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    """The declaration of a pair with a product of one CTA beside its own."""
    schedule = pair(k, arch)
    own = dataclasses.replace(schedule.mmas[0], name="own", cta_group=1)
    return dataclasses.replace(schedule, mmas=(*schedule.mmas, own))


REFUSED = (
    ("two buffers in one place that nobody hands over", "in_place",
     one_field("in_place", "pipelines", "p", returned_by=None), "give each other's slots back"),
    ("a shared buffer in tensor memory", "in_place", one_field("in_place", "buffers", "v_s", alias="s_t"),
     "shared in tensor"),
    ("more columns than the place has", "in_place",
     one_field("in_place", "buffers", "p_t", dtype="float32", shape=(128, 128)), "at most as many bytes"),
    ("multicast without a cluster", "multicast", altered("multicast", cluster=(1, 1, 1)), "in a cluster"),
    ("multicast by threads that arrive each", "multicast",
     one_field("multicast", "pipelines", "ab", fill=Engine.THREADS), "of which a warp arrives"),
    ("a copy to others into a plain pipeline", "multicast",
     one_field("multicast", "pipelines", "ab", multicast=False), "declare the pipeline multicast"),
    ("a turn of one", "turns", one_field("turns", "roles", "multiply", replicas=1), "two or more members"),
    ("a turn nobody declared", "turns", altered("turns", turns=()), "turn order"),
    ("a barrier apart of two roles", "stores",
     altered("stores", named_barriers={"staged": ("multiply", "load")}), "named barrier of one role"),
    ("A in another memory than declared", "registers", one_field("registers", "mmas", "pv", a_space=SHARED),
     "A in shared memory"),
    ("A from registers along M", "registers", one_field("registers", "mmas", "pv", a_major="mn"),
     "K-major A"),
    ("a box across an axis of one", "strided", one_field("strided", "maps", "a_map", box=(64, 1, 64, 1)),
     "outer ones"),
    ("a pair whose operands are of one CTA", "pair", one_field("pair", "pipelines", "ab", pair=False),
     "pair=True"),
    ("a pair of copies by threads", "filled_pair",
     one_field("filled_pair", "pipelines", "p", fill=Engine.CP_ASYNC), "bulk copies or threads and tcgen05"),
    ("64 rows a CTA in as many columns", "filled_pair",
     one_field("filled_pair", "buffers", "c_t", shape=(128, 32)), "an acc of 128 lanes by 64 columns"),
    ("64 rows a CTA on 64 lanes", "filled_pair", one_field("filled_pair", "buffers", "a_t", shape=(64, 64)),
     "A on all 128 lanes"),
    ("words that nobody meets about", "grid_parts", one_field("grid_parts", "pipelines", "parts", meets=""),
     "barrier of theirs"),
    ("words through nothing", "grid_parts", one_field("grid_parts", "pipelines", "parts", through=""),
     "barrier of theirs"),
    ("sums of 16 bits two in a column", "half_sums", one_field("half_sums", "buffers", "c_t", unpacked=False),
     "float16 in an unpacked buffer"),
    ("sums of 16 bits of bfloat16", "half_sums", one_field("half_sums", "mmas", "product", dtype="bfloat16"),
     "operands of float16 or float8"),
    ("a column each in shared memory", "half_sums", one_field("half_sums", "buffers", "a_s", unpacked=True),
     "in tensor memory where it is unpacked"),
    ("all lanes for a result that is not folded", "folded",
     one_field("folded", "buffers", "c_t", shape=(64, 64)), "an acc of"),
    ("all lanes of an odd shape", "folded", one_field("folded", "mmas", "product", n=32),
     "n of 64, 128 or 256"),
    ("all lanes of operands along M", "folded", one_field("folded", "mmas", "product", a_major="mn"),
     "a K-major A"),
    ("a copy of rows that are not swizzled", "copied", one_field("copied", "buffers", "a_s", swizzle=0),
     "rows of shared memory with swizzle 128"),
    ("a copy into another shape", "copied", one_field("copied", "buffers", "a_t", shape=(128, 32)),
     "128 rows of as many 16-bit elements"),
    ("factors of half a tile", "scaled", one_field("scaled", "mmas", "product", m=64), "m=128, k=128"),
    ("factors in other columns", "scaled", one_field("scaled", "buffers", "fb_t", shape=(128, 32)),
     "buffers of .128, 16. uint8"),
    ("factors of bfloat16", "scaled", one_field("scaled", "mmas", "product", dtype="bfloat16"),
     "K-major float8_e4m3"),
    ("numbers of 4 bits without factors", "pairs", one_field("pairs", "mmas", "product", scales=None),
     "scales, which a product of float4_e2m1x2 has"),
    ("numbers of 4 bits one a byte", "pairs", one_field("pairs", "buffers", "a_s", shape=(128, 128)),
     "A and B with 64 columns"),
    ("numbers of 4 bits from e4m3", "pairs", one_field("pairs", "buffers", "b_s", dtype="float8_e4m3"),
     "A and B with 64 columns of float4_e2m1x2"),
    ("numbers of 4 bits of another swizzle", "pairs", one_field("pairs", "buffers", "a_s", swizzle=128),
     "a 64-byte swizzle"),
    (
        "products of one CTA and of a pair", "pair", with_product_of_one_cta,
        "the same for all, as the PTX ISA",
    ),
    ("a CTA asked for in two axes", "stealing", altered("stealing", grid=("7", "1"), axes=("cta", "other")),
     "a grid of one axis"),
    ("an answer of 32 bytes", "stealing", one_field("stealing", "buffers", "answer", shape=(8,)),
     "a slot of 16 bytes"),
    ("a pair without a cluster", "pair", altered("pair", cluster=(1, 1, 1)), "clusters of two"),
)  # fmt: skip


@pytest.mark.parametrize(
    ("case", "declare", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_a_declaration_that_cannot_work_is_refused(case: str, declare: Any, words: str) -> None:
    with pytest.raises(DslKernelError, match=words):
        program_of(dataclasses.replace(BY_NAME[case], declare=declare)).text({}, get_arch(BY_NAME[case].arch))


def test_a_ring_that_a_commit_gives_back_in_two_ctas_is_drained() -> None:
    case = BY_NAME["pair"]
    bodies = {**case.bodies, "load": load_and_end}
    with pytest.raises(DslKernelError, match="load to drain it"):
        program_of(dataclasses.replace(case, bodies=bodies)).text({}, get_arch(case.arch))


@recorded
def issue_ahead(m: Recorder) -> None:
    o = m.acquire("o", 0)
    for i in rolled(TILES + 1):
        if i < TILES:
            abv, s = m.wait("abv", i), m.acquire("s", i)
            m.multiply("qk", s.view(), abv.a_s, abv.b_s)
            m.commit(s)
        if i > 0:
            p = m.wait("p", i - 1)
            m.multiply("pv", o.view(), p.view(), m.slot("abv", i - 1).v_s, accumulate=i > 1)
            m.release(p)
            m.release(m.slot("abv", i - 1))
    m.commit(o)


def test_scores_do_not_come_before_the_weights_in_their_place_are_read(known: Callable[..., None]) -> None:
    case = BY_NAME["in_place"]
    case = dataclasses.replace(case, bodies={**case.bodies, "mma": issue_ahead})
    program = program_of(case)
    known(program)
    with pytest.raises(DslKernelError, match="acquires use 1 of s, of which it knows 0 to be given back"):
        launch(case, Interpreter(), variant_of(case, program, "cutedsl", Path()))


def test_a_word_outside_of_memory_is_refused(known: Callable[..., None]) -> None:
    case = dataclasses.replace(
        BY_NAME["words"], declare=lambda k, arch: dataclasses.replace(words(k, arch), grid=("9",))
    )
    program = program_of(case)
    known(program)
    with pytest.raises(DslKernelError, match=f"reads limits at {CTAS}, of {CTAS} elements"):
        launch(case, Interpreter(), variant_of(case, program, "cutedsl", Path()))


@pytest.mark.parametrize(("case", "at"), [("grid_parts", None), ("replicas", 0)])
def test_a_wait_names_a_cta_where_the_grid_fills_the_slot(case: str, at: int | None) -> None:
    pipe = BY_NAME[case].declare(SimpleNamespace(), get_arch("sm_90a")).pipelines[0]

    @recorded
    def body(m: Recorder) -> None:
        m.wait(pipe.name, 0, at=at)

    with pytest.raises(DslKernelError, match="where CTAs of the grid fill the slot"):
        program_of(
            dataclasses.replace(BY_NAME[case], bodies={**BY_NAME[case].bodies, pipe.readers[0].role: body})
        ).text({}, get_arch("sm_90a"))


def test_pending_groups_are_for_readers_through_wgmma() -> None:
    @recorded
    def release(m: Recorder) -> None:
        m.release(m.slot("ab", 0), pending=1)

    case = BY_NAME["pair"]
    with pytest.raises(DslKernelError, match="no pending groups"):
        program_of(dataclasses.replace(case, bodies={**case.bodies, "mma": release})).text(
            {}, get_arch(case.arch)
        )


def test_a_product_that_is_awaited_in_the_next_turn_is_fenced_there() -> None:
    @recorded
    def late(m: Recorder) -> None:
        for i in rolled(TILES):
            if i > 0:
                m.release(m.slot("ab", i - 1))
            ab = m.wait("ab", i)
            m.multiply("product", m.buffer("acc"), ab.a_s.part(m.replica * 64, 64), ab.b_s, accumulate=i > 0)
        m.release(m.slot("ab", TILES - 1))
        fragment.write_rows(m, m.operand("c"), 32, m.replica * 64, 0, m.buffer("acc"), m.thread)

    case = BY_NAME["replicas"]
    program = program_of(dataclasses.replace(case, bodies={**case.bodies, "multiply": late}))
    lines = source_of(case, program, "tilelang").split("\n")
    first = next(i for i, line in enumerate(lines) if "if i > 0" in line)
    assert "wait_wgmma(0)" in lines[first + 1]
    assert "warpgroup_fence_operand(acc" in lines[first + 2]


def test_a_map_for_two_ways_of_copying_is_refused() -> None:
    @recorded
    def load_result(m: Recorder) -> None:
        load_columns(m)
        ab = m.acquire("ab", 1)
        m.bulk(ab.a_s, Box("c_map", (0, 0)), ab)

    case = BY_NAME["stores"]
    program = program_of(dataclasses.replace(case, bodies={**case.bodies, "load": load_result}))
    with pytest.raises(DslKernelError, match="map c_map: expected one way"):
        source_of(case, program, "cutedsl")


def test_a_dim_named_as_a_buffer_is_refused() -> None:
    case = BY_NAME["strided"]
    operands = (OperandSpec("a", ("b", "s", "h", "c_s"), "float16"), *case.operands[1:])
    with pytest.raises(DslKernelError, match="buffer c_s: .*the name of a size of a"):
        source_of(case, program_of(dataclasses.replace(case, operands=operands)), "cutedsl")


@pytest.mark.parametrize(
    ("strides", "words"),
    [((80 * 192, 192, 64, 2), "a stride of 1"), ((80 * 196, 196, 64, 1), "multiples of 16 bytes")],
)
def test_axes_that_no_tensor_map_takes_are_refused(strides: tuple[int, ...], words: str) -> None:
    operand = BY_NAME["strided"].operands[0]
    value = torch.empty_strided((2, 80, 3, 64), strides, dtype=torch.float16)
    with pytest.raises(DslKernelError, match=words):
        bind((operand,), {"a": value})
