"""Leaves by their text: what all threads of a role do in lockstep, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dsl_kernels.device.torch.warps import (
    ballot,
    exchange,
    exp2,
    fetch_add,
    log2,
    popc,
    rcp_approx,
    scan,
    shuffle,
)
from dsl_kernels.errors import DeclarationError, ScheduleError
from dsl_kernels.tile import text as t
from dsl_kernels.tile import threads
from dsl_kernels.tile.frontend import Int32, rolled, unrolled
from dsl_kernels.tile.lang import Buffer, Role, Schedule, Space
from dsl_kernels.tile.leaf_text import by_text
from dsl_kernels.tile.text import select

COUNT = 64
SCHEDULE = Schedule(
    roles=(Role("work", COUNT // 32, doc="all threads"),),
    buffers=(
        Buffer("words", Space.SHARED, (COUNT,), "int32"),
        Buffer("table", Space.SHARED, (COUNT, 4), "float32", 2),
        Buffer("held", Space.REGISTER, (COUNT, 4), "uint32", role="work", private=True, per_thread=4),
    ),
    pipelines=(),
    mmas=(),
    grid=("1",),
    axes=("cta",),
)
OUT = t.name("out")
# The ambient arguments that a recorder adds to a call: thread, warp, lane, threads.
AMBIENT = (t.name("worker"), t.name("warp"), t.name("lane"), COUNT)
TABLE = t.View("table", None, 1)
WORDS, HELD = t.View("words", None, None), t.View("held", None, None)


def run(leaf: t.Leaf, *arguments: Any, **memory: torch.Tensor) -> dict[str, Any]:
    scope = {"warp": torch.arange(COUNT // 32), "out": 0}
    return threads.run(leaf, (*arguments, *AMBIENT), SCHEDULE, COUNT, scope, lambda view: memory[view.buffer])


@by_text
def count_down(m, out: t.Sets):
    """Each thread loops as often as its number says, in steps of three; odd ones do not."""
    turns: Int32 = 0
    if (m.thread & 1) == 0:
        for i in range(0, m.thread, 3):
            turns += i
    else:
        left: Int32 = m.thread
        while left > 40:
            left -= 1
            turns -= 1
    out = turns


def test_each_thread_loops_and_branches_by_itself() -> None:
    expected = [sum(range(0, i, 3)) if i % 2 == 0 else min(0, 40 - i) for i in range(COUNT)]
    assert run(count_down, OUT)["out"].tolist() == expected


@by_text
def of_warps(m, out: t.Sets, words, held):
    """Warp-wide operations in which only some of the warp's threads take part in some steps."""
    held[1] = m.thread.to("uint32") - 5
    if held[1] > 40 and m.lane < 8:
        words[m.thread] = scan(m.lane)
    taken: Int32 = 0
    if m.lane == 3:
        taken = fetch_add(words.at(0), 10)
    out = shuffle(taken, 3) * 100 + popc(ballot(m.lane > 20))


def test_warps_words_and_unsigned_numbers() -> None:
    words, held = torch.zeros(COUNT, dtype=torch.int32), torch.zeros(COUNT, 4, dtype=torch.int64)
    out = run(of_warps, OUT, WORDS, HELD, words=words, held=held)["out"]
    assert held[:, 1].tolist() == [(i - 5) & 0xFFFFFFFF for i in range(COUNT)]
    # Below five the difference wraps around, so it is not a small number.
    expected = [i * (i + 1) // 2 if i < 5 else 0 for i in range(COUNT)]
    assert words.tolist()[1:] == expected[1:] and int(words[0]) == 20
    assert out.tolist() == [11, 1011]


@by_text
def outside(m, words, behind):
    words[m.thread + behind] = 1


@by_text
def at_number(m, held, number):
    held[number] = 1


def test_what_lies_outside_is_refused_unless_no_thread_touches_it() -> None:
    words = torch.zeros(COUNT, dtype=torch.int32)
    run(outside, WORDS, 0, words=words)
    with pytest.raises(ScheduleError, match="words.*below 64.*1 to 64"):
        run(outside, WORDS, 1, words=words)


def test_registers_have_no_address() -> None:
    with pytest.raises(DeclarationError, match="registers held.*unrolled"):
        run(at_number, HELD, t.name("worker"), held=torch.zeros(COUNT, 4, dtype=torch.int64))


def test_private_registers_are_a_row_a_thread() -> None:
    """A tile would have no owner: the error names the shape that the schedule must declare instead."""
    with pytest.raises(
        DeclarationError, match=r"registers held of leaf at_number.*\(64, 4\).*got shape \(256,\)"
    ):
        run(at_number, HELD, 0, held=torch.zeros(COUNT * 4, dtype=torch.int64))
    run(at_number, HELD, 0, held=torch.zeros(COUNT, 4, dtype=torch.int64))


@by_text
def waits(m, words):
    m.cluster_arrive()
    words[m.thread] = 1


def test_what_a_body_says_is_refused_in_the_text_of_a_leaf() -> None:
    """It would be printed, but the interpreter would ignore it."""
    with pytest.raises(DeclarationError, match="ClusterArrive in the text of a leaf"):
        run(waits, WORDS, words=torch.zeros(COUNT, dtype=torch.int32))


def test_the_text_is_the_only_meaning() -> None:
    with pytest.raises(DeclarationError, match="tile.threads.run"):
        outside.torch(None, 1, 2)


@by_text
def in_floats(m, words, table):
    """Every other lane takes the logarithm of each row of a shared table, by groups of registers."""
    four, half = m.local("four", 4, "float32"), m.local("half", 2, "bfloat16")
    table.read(four, (m.thread, 0))
    half[0] = (exp2(four[1]) + exchange(four[0], 1)).to("bfloat16")
    four[2] = half[0] * rcp_approx(four[0])
    if (m.thread & 1) == 0:
        four[3] = log2(four[0])
    table.write(four.group(2, 2), (m.thread, 2))
    table[m.thread, 0] = -1.0


def test_matrices_floats_and_groups_of_registers() -> None:
    table = torch.rand(COUNT, 4) + 1
    before = table.clone()
    run(in_floats, WORDS, TABLE, words=torch.zeros(COUNT), table=table)
    other = before[torch.arange(COUNT) ^ 1, 0]
    rounded = (torch.exp2(before[:, 1]) + other).bfloat16().float()
    torch.testing.assert_close(table[:, 2], rounded * (1 / before[:, 0]))
    torch.testing.assert_close(table[::2, 3], torch.log2(before[::2, 0]))
    assert torch.equal(table[1::2, 3], before[1::2, 3]) and torch.equal(table[:, 1], before[:, 1])
    assert bool((table[:, 0] == -1).all())


@by_text
def of_operand(m, out, row):
    """A thread's element of a row of a three-dimensional operand."""
    out.row("line", (row, m.thread // 8), (8, 4), 1)[m.thread % 3] = m.thread


def test_rows_of_an_operand_with_more_dimensions() -> None:
    out = torch.zeros(3, 8, 4, dtype=torch.int32)
    text = threads.run(
        of_operand, (t.Global("out"), 2, *AMBIENT), SCHEDULE, COUNT, {"warp": 0}, lambda _: out
    )
    expected = torch.zeros(3, 8, 4, dtype=torch.int32)
    for i in range(COUNT):
        expected[2, i // 8, 1 + i % 3] = i
    assert text == {} and torch.equal(out, expected)


def test_extents_other_than_the_operands_are_refused() -> None:
    """The interpreter indexes by memory's own shape: unchecked, swapped extents would change nothing."""
    swapped = torch.zeros(3, 4, 8, dtype=torch.int32)
    with pytest.raises(ScheduleError, match=r"row line of out.*\[4, 8\]; got \[8, 4\]"):
        threads.run(
            of_operand, (t.Global("out"), 2, *AMBIENT), SCHEDULE, COUNT, {"warp": 0}, lambda _: swapped
        )


@t.leaf
def doubled(table: Any, row: int) -> None:
    """A leaf that a DSL spells."""
    table[row] *= 2


@by_text
def calls(m, table, alone):
    if m.thread < alone:
        for row in rolled(2):
            doubled(m, table, row)


def test_a_text_calls_a_leaf_that_has_none_by_all_threads_at_once() -> None:
    table = torch.ones(COUNT, 4)
    run(calls, TABLE, COUNT, table=table)
    assert table[:3, 0].tolist() == [2, 2, 1]
    with pytest.raises(DeclarationError, match="leaf doubled.*by all threads.*8 of 64"):
        run(calls, TABLE, 8, table=table)


TILE = Schedule(
    roles=(Role("work", 4, doc="a warpgroup"),),
    buffers=(
        Buffer("acc", Space.REGISTER, (64, 16), "float32", role="work"),
        Buffer("rows", Space.REGISTER, (64,), "float32", role="work", per_thread=2),
    ),
    pipelines=(),
    mmas=(),
    grid=("1",),
    axes=("cta",),
)


@by_text
def scale_rows(m, acc, rows, wrong):
    for r in range(2):
        for j in unrolled(acc.size // 4):
            for e in range(2):
                acc[j * 4 + (2 * r + e)] *= rows[r]
        rows[r] = select(m.thread % 4 == wrong, 0.5, exp2(rows[r]))


def test_registers_are_the_share_of_a_tile_that_a_product_leaves_a_thread() -> None:
    acc, rows = torch.randn(64, 16), torch.randn(64)
    expected = acc * rows[:, None], torch.exp2(rows)
    tiles = {"acc": acc, "rows": rows}
    arguments = (t.View("acc", None, None), t.View("rows", None, None))
    threads.run(
        scale_rows, (*arguments, 4, *AMBIENT), TILE, 128, {"warp": 0}, lambda view: tiles[view.buffer]
    )
    assert torch.equal(acc, expected[0]) and torch.equal(rows, expected[1])
    with pytest.raises(ScheduleError, match="registers rows of leaf scale_rows.*several"):
        threads.run(
            scale_rows, (*arguments, 3, *AMBIENT), TILE, 128, {"warp": 0}, lambda view: tiles[view.buffer]
        )
