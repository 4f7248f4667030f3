"""What a text must do with its schedule: refused if a declaration is unused, or another role's."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from dsl_kernels.arch import ARCHS, ArchSpec
from dsl_kernels.errors import DeclarationError
from dsl_kernels.problems.base import OperandSpec, Problem
from dsl_kernels.runtime.artifact import TensorMap
from dsl_kernels.tile import text as t
from dsl_kernels.tile.frontend import Int32, recorded
from dsl_kernels.tile.kinds import BFloat16, Float32, Global, LeafRecorder, Registers, Shared
from dsl_kernels.tile.lang import START, Buffer, Engine, Knob, Mma, Pipeline, Reader, Role, Schedule, Space
from dsl_kernels.tile.leaf_text import by_text, text_of
from dsl_kernels.tile.program import TileProgram
from dsl_kernels.tile.text import Box, Call, Expr, If, Recorder, Span, Writes, leaf, select

SHARED, REGISTER = Space.SHARED, Space.REGISTER
ARCH = ARCHS["sm_90a"]
# The ambient arguments that a recorder adds to the call of a text leaf: thread, warp, lane, threads.
AMBIENT = (t.name("worker"), t.name("warp"), t.name("lane"), 128)
SCHEDULE = Schedule(
    roles=(Role("work", 4, doc="all of it"), Role("load", 1, doc="rows into the ring")),
    buffers=(
        Buffer("ring_s", SHARED, (64, 64), "bfloat16", 2),
        Buffer("b_s", SHARED, (64, 64), "bfloat16"),
        Buffer("acc", REGISTER, (64, 64), "float32", role="work"),
        Buffer("red_s", SHARED, (64, 64), "bfloat16"),
    ),
    pipelines=(Pipeline("ring", ("ring_s",), "load", Engine.BULK, (Reader("work", Engine.WGMMA),), 2),),
    mmas=(Mma("score", "wgmma", "work", 64, 64, 64, "bfloat16", a="ring_s", b="b_s", acc="acc"),),
    grid=("rows",),
    axes=("row",),
    named_barriers={"work": ("work",)},
    maps=(TensorMap("x_map", "x", "BFLOAT16", ("64", "rows"), ("128",), (64, 64), (1, 1)),),
)
OPERANDS = (
    OperandSpec("x", ("rows", 64), "bfloat16"),
    OperandSpec("w", ("rows", 64), "bfloat16"),
    OperandSpec("y", ("rows", 64), "float32", "out"),
    OperandSpec("scale", (), "float32", "scalar"),
)


@leaf
def read(target: Any, w: Any) -> None:
    """Read a tile of w."""


@leaf
def write(y: Writes, source: Any, scratch: Any, scale: float) -> None:
    """Write a tile of y."""


def start(m: Recorder) -> None:
    m.barriers_stand()
    m.depend()


def load(m: Recorder) -> None:
    ring = m.acquire("ring", 0)
    m.bulk(ring.ring_s, Box("x_map", (m.block(0), 0)), ring)
    m.commit(ring)


def work(m: Recorder) -> None:
    read(m, m.buffer("b_s"), m.operand("w"))
    m.publish("work", "b_s")
    ring = m.wait("ring", 0)
    m.multiply("score", m.buffer("acc"), ring.ring_s, m.buffer("b_s"))
    m.release(ring)
    write(m, m.operand("y"), m.buffer("acc"), m.buffer("red_s"), m.scalar("scale"))


# The leaves as a module that a program imports.
LEAVES = ModuleType("leaves")
LEAVES.read_tiles = read  # type: ignore[attr-defined]

BODIES = {START: start, "work": work, "load": load}


def program(schedule: Schedule, bodies: dict[str, Any], operands: tuple[OperandSpec, ...]) -> TileProgram:
    none: Any = lambda *_: {}  # noqa: E731
    problem = Problem("toy", "", {"default": operands}, none, none)
    return TileProgram(
        "toy",
        problem,
        (Knob("threads", "t", ((128,),), "threads a CTA"),),
        lambda k, arch: schedule,
        lambda k, arch: bodies,
    )


def text(
    schedule: Schedule = SCHEDULE,
    operands: tuple[OperandSpec, ...] = OPERANDS,
    arch: ArchSpec = ARCH,
    **bodies: Any,
) -> Any:
    return program(schedule, BODIES | bodies, operands).text({"threads": 128}, arch)


def changed(**fields: Any) -> Schedule:
    return dataclasses.replace(SCHEDULE, **fields)


def without(body: Callable[[Recorder], None], *statements: str) -> Callable[[Recorder], None]:
    """The body without its calls of these recorder methods."""

    def silent(m: Recorder) -> None:
        for name in statements:
            setattr(m, name, lambda *args, **kwargs: m.slot("ring", 0))
        body(m)

    return silent


def test_the_toy_itself_is_whole() -> None:
    assert set(text().roles) == {"work", "load"}


def refused(what: str, got: str, **changes: Any) -> None:
    with pytest.raises(DeclarationError) as error:
        text(**changes)
    message = str(error.value)
    assert re.search(what, message) and re.search(got, message), message
    assert "program toy" in message and "Fix: " in message, message


def test_a_buffer_that_no_body_touches() -> None:
    spare = Buffer("spare_s", SHARED, (64,), "float32")
    refused("threads=128, buffer spare_s", "none", schedule=changed(buffers=(*SCHEDULE.buffers, spare)))
    held = Buffer("held", REGISTER, (64,), "float32", role="work")
    refused("buffer held", "none", schedule=changed(buffers=(*SCHEDULE.buffers, held)))
    tensor = Buffer("acc_t", Space.TENSOR, (128, 64), "float32")
    refused("buffer acc_t", "none", schedule=changed(buffers=(*SCHEDULE.buffers, tensor)))


def test_a_buffer_with_the_name_of_something_else() -> None:
    for name, whose in (("w", "the name of an operand"), ("rows", "the name of a size of x")):
        taken = (*SCHEDULE.buffers, Buffer(name, SHARED, (64,), "float32"))
        refused(f"buffer {name}", whose, schedule=changed(buffers=taken))


def test_a_buffer_of_a_ticket_is_touched_by_it() -> None:
    flag = Buffer("last_s", SHARED, (1,), "int32")

    def takes(m: Recorder) -> None:
        work(m)
        m.take_ticket(m.var("last", False, "bool"), "last_s", "arrivals", 0, 1, "work")

    assert text(schedule=changed(buffers=(*SCHEDULE.buffers, flag)), work=takes)


def test_counts_are_awaited_by_a_grid_that_runs_at_once() -> None:
    steps = {
        "CountIn": lambda m: m.count_in("arrivals", 0, "work"),
        "AwaitCount": lambda m: m.await_count("arrivals", 0, 2, "work"),
        "CountOut": lambda m: m.count_out("arrivals", 0, 2, "work"),
    }

    def counts(left_out: str, m: Recorder) -> None:
        work(m)
        for name, step in steps.items():
            if name != left_out:
                step(m)

    together = changed(resident="1")
    assert text(schedule=together, work=partial(counts, ""))
    refused("CTAs that await", "no `resident`", work=partial(counts, ""))
    for name in steps:
        refused("counts of work", f"no {name}", schedule=together, work=partial(counts, name))


def test_registers_of_another_role() -> None:
    def pries(m: Recorder) -> None:
        load(m)
        m.fill(m.buffer("acc"), 0.0)

    refused("buffer acc", "load", load=pries)


def test_a_role_without_a_body() -> None:
    roles = (*SCHEDULE.roles, Role("idle", 1))
    refused("idle", "none", schedule=changed(roles=roles))
    refused("role idle", "an empty one", schedule=changed(roles=roles), idle=lambda m: None)


def test_a_body_without_a_role() -> None:
    refused("body lode", "did you mean load", lode=load)


def test_a_step_that_no_body_takes() -> None:
    refused("pipeline ring", "no commit", load=without(load, "commit"))
    refused("pipeline ring", "no acquire", load=without(load, "acquire"))
    refused("pipeline ring", "no wait", work=without(work, "wait"))
    refused("pipeline ring", "no release", work=without(work, "release"))


def test_a_single_hand_over_is_acquired_too() -> None:
    """A bulk copy expects its bytes there, and a reader of the body finds every ring filled the same way."""
    buffers = (dataclasses.replace(SCHEDULE.buffers[0], stages=1), *SCHEDULE.buffers[1:])
    once = dataclasses.replace(SCHEDULE.pipelines[0], stages=1, rounds="once")
    schedule = changed(buffers=buffers, pipelines=(once,))
    given = without(work, "release")
    assert text(schedule=schedule, work=given)
    refused("pipeline ring", "no acquire", schedule=schedule, work=given, load=without(load, "acquire"))
    # In tensor memory a release waits for the reader's loads, so it may be said of any ring.
    assert text(schedule=schedule)


def test_a_step_of_the_wrong_role() -> None:
    def greedy(m: Recorder) -> None:
        load(m)
        m.wait("ring", 0)

    refused("work to wait", "load", load=greedy)


def test_a_named_barrier_that_a_role_never_comes_to() -> None:
    both = {"work": ("work", "load")}
    refused("named barrier work", "load, which never comes", schedule=changed(named_barriers=both))
    refused(
        "named barrier rest",
        "load, which never comes",
        schedule=changed(named_barriers={**SCHEDULE.named_barriers, "rest": ("load",)}),
    )


def test_a_named_barrier_of_others() -> None:
    def meets(m: Recorder) -> None:
        load(m)
        m.meet("work")

    refused("named barrier work", "load, which is not declared", load=meets)


def test_a_product_that_nobody_issues() -> None:
    mma = dataclasses.replace(SCHEDULE.mmas[0], name="value")
    refused("product value", "nobody", schedule=changed(mmas=(*SCHEDULE.mmas, mma)))


def test_a_tensor_map_that_nothing_is_copied_from() -> None:
    other = dataclasses.replace(SCHEDULE.maps[0], name="w_map", operand="w")
    refused("tensor map w_map", "none", schedule=changed(maps=(*SCHEDULE.maps, other)))


def test_an_operand_that_is_not_used() -> None:
    refused("input z", "none", operands=(*OPERANDS, OperandSpec("z", ("rows",), "float32")))
    refused("output z", "none", operands=(*OPERANDS, OperandSpec("z", ("rows",), "float32", "out")))
    refused("scalar z", "none", operands=(*OPERANDS, OperandSpec("z", (), "float32", "scalar")))


def test_an_output_that_is_only_read() -> None:
    operands = tuple(dataclasses.replace(o, kind="out") if o.name == "w" else o for o in OPERANDS)
    refused("output w", "none", operands=operands)


def test_an_input_that_is_written() -> None:
    operands = tuple(dataclasses.replace(o, kind="in") if o.name == "y" else o for o in OPERANDS)
    refused("input y", "one that writes it", operands=operands)


def test_barriers_stand_once() -> None:
    refused("the start", "0 of them", **{START: lambda m: m.depend()})
    refused("the start", "2 of them", **{START: lambda m: (m.barriers_stand(), start(m))})


def test_nothing_is_read_before_the_kernel_in_front_has_written_it() -> None:
    def hasty(m: Recorder) -> None:
        read(m, m.buffer("b_s"), m.operand("w"))
        start(m)

    refused("the start", "an access before it", **{START: hasty})


def test_the_kernel_behind_is_let_go_once_behind_the_wait() -> None:
    def early(m: Recorder) -> None:
        m.barriers_stand()
        m.launch_dependents()
        m.depend(launch=False)

    def twice(m: Recorder) -> None:
        start(m)
        m.launch_dependents()

    def lonely(m: Recorder) -> None:
        m.barriers_stand()
        m.launch_dependents()

    def whole(m: Recorder) -> None:
        m.barriers_stand()
        m.depend(launch=False)
        m.launch_dependents()

    def conditional(m: Recorder) -> None:
        m.barriers_stand()
        m.depend(launch=False)
        with m.when(m.block(0) > 0):
            m.launch_dependents()

    text(**{START: whole})
    for broken in (early, twice, lonely, conditional, lambda m: (whole(m), m.launch_dependents())):
        refused("the start", "launch_dependents once", **{START: broken})


def test_the_body_of_a_lone_role_depends_as_the_start_does() -> None:
    schedule = Schedule(
        roles=(Role("work", 4, doc="all of it"),),
        buffers=(Buffer("b_s", SHARED, (64, 64), "bfloat16"),),
        pipelines=(), mmas=(), grid=("rows",), axes=("row",),
    )  # fmt: skip
    operands = tuple(o for o in OPERANDS if o.name in ("w", "y"))

    def alone(m: Recorder, early: bool = False) -> None:
        if not early:
            m.depend()
        read(m, m.buffer("b_s"), m.operand("w"))
        if early:
            m.depend()
        m.meet()
        write(m, m.operand("y"), m.buffer("b_s"), m.buffer("b_s"), 1.0)

    only: dict[str, Any] = {START: lambda m: None, "work": alone}
    program(schedule, only, operands).text({"threads": 128}, ARCH)
    only["work"] = lambda m: alone(m, early=True)
    with pytest.raises(DeclarationError, match="an access before it"):
        program(schedule, only, operands).text({"threads": 128}, ARCH)


def aliased(body: Callable[[Recorder], None]) -> dict[str, Any]:
    """Changes that put red_s into the storage of b_s; the body is that of the role that uses both."""
    buffers = tuple(dataclasses.replace(b, alias="b_s") if b.name == "red_s" else b for b in SCHEDULE.buffers)
    return {"schedule": changed(buffers=buffers), "work": body}


def work_then(*between: str, loop: bool = False) -> Callable[[Recorder], None]:
    def body(m: Recorder) -> None:
        read(m, m.buffer("b_s"), m.operand("w"))
        m.publish("work", "b_s")
        ring = m.wait("ring", 0)

        def rest() -> None:
            m.multiply("score", m.buffer("acc"), ring.ring_s, m.buffer("b_s"))
            for say in between:
                if say == "meet":
                    m.meet("work")
                elif say == "perhaps":
                    with m.when(m.block(0) > 0):
                        m.meet("work")
            write(m, m.operand("y"), m.buffer("acc"), m.buffer("red_s"), m.scalar("scale"))

        if loop:
            for _ in m.loop("i", 2):
                rest()
        else:
            rest()
        if "again" in between:
            m.fill(m.buffer("b_s"), 0.0)
        m.release(ring)

    return body


def test_an_alias_behind_a_barrier_stands() -> None:
    assert text(**aliased(work_then("meet")))


@pytest.mark.parametrize(
    ("body", "got"),
    [
        (work_then(), "got none"),
        (work_then("perhaps"), "got none"),
        (work_then("meet", "again"), "uses in turn"),
        (work_then("meet", loop=True), "comes back to the first"),
    ],
)
def test_an_alias_that_overlaps_a_live_range(body: Callable[[Recorder], None], got: str) -> None:
    refused("buffer red_s in the storage of b_s", got, **aliased(body))


def test_an_alias_across_roles() -> None:
    def reads(m: Recorder) -> None:
        load(m)
        read(m, m.buffer("red_s"), m.operand("w"))

    refused("buffer red_s in the storage of b_s", "load, work", **aliased(work_then("meet")), load=reads)


def test_an_alias_of_slots_that_another_role_fills() -> None:
    def work(m: Recorder, *, meets: bool = True) -> None:
        work_then("meet" if meets else "")(m)

    def ring(body: Callable[[Recorder], None], **more: Any) -> dict[str, Any]:
        buffers = tuple(
            dataclasses.replace(b, alias="ring_s") if b.name == "red_s" else b for b in SCHEDULE.buffers
        )
        return {"schedule": changed(buffers=buffers), "work": body, **more}

    def writes(m: Recorder) -> None:
        load(m)
        read(m, m.buffer("red_s"), m.operand("w"))

    assert text(**ring(work))
    refused("buffer red_s in the storage of ring_s", "got none", **ring(lambda m: work(m, meets=False)))
    refused("buffer red_s in the storage of ring_s", "load, work", **ring(work, load=writes))


def test_an_alias_has_no_more_bytes_than_its_owner() -> None:
    other = Buffer("other_s", SHARED, (1 << 16,), "uint8", alias="red_s")
    with pytest.raises(DeclarationError, match="at most as many bytes as red_s"):
        text(schedule=changed(buffers=(*SCHEDULE.buffers, other)))


def spans(*source: Any, part: int = 1) -> dict[str, Any]:
    """The toy program with a span of another operand beside the box that fills its ring."""

    def body(m: Recorder) -> None:
        ring = m.acquire("ring", 0)
        m.bulk(ring.ring_s, Box("x_map", (m.block(0), 0)), ring)
        m.bulk(ring.ring_s.part(0, part), Span(*source), ring)
        m.commit(ring)

    more = (OperandSpec("z", ("rows", 64), "bfloat16"), OperandSpec("packed", ("rows", 2, 64), "uint8"))
    return {"operands": (*OPERANDS, *(spec for spec in more if spec.name == source[0])), "load": body}


@pytest.mark.parametrize("source", [("z", "bfloat16", 0, 64, 0, 64), ("packed", "bfloat16", 1, 64, 0, 64)])
def test_span_counts_as_a_read(source: tuple[Any, ...]) -> None:
    """Of an operand in its own dtype, or of bytes in any."""
    assert text(**spans(*source))


@pytest.mark.parametrize(
    ("source", "got"),
    [
        (("zz", "bfloat16", 0, 64, 0, 64), "a tensor of the problem; got zz. Fix: "),
        (("scale", "float32", 0, 64, 0, 64), "a tensor of the problem; got scale"),
        (("z", "bf16", 0, 64, 0, 64), "expected a dtype; got bf16. Fix: did you mean"),
        (("z", "float32", 0, 64, 0, 64), "the operand's dtype, bfloat16; got float32"),
        (("packed", "float32", 0, 32, 0, 32), "the buffer's dtype, bfloat16; got float32"),
        (("z", "bfloat16", 0, 32, 0, 32), r"rows of 64 elements.*got a pitch of 32"),
        (("packed", "bfloat16", 0, 128, 0, 64), r"rows of 32 or 64 elements.*got a pitch of 128"),
        (("z", "bfloat16", 0, 64, 32, 64), r"columns within a row of 64; got 32 to 96"),
        (("z", "bfloat16", 0, 64, 0, 32), r"64 elements, as many as are filled; got 32"),
    ],
)
def test_a_span_that_is_not_what_the_operand_is(source: tuple[Any, ...], got: str) -> None:
    refused(f"span of {source[0]} copy into ring_s", got, **spans(*source))


@pytest.mark.parametrize(
    ("box", "got"),
    [
        (Box("x_mop", (0, 0)), "a declared tensor map; got x_mop. Fix: did you mean x_map?"),
        (Box("x_map", (0,)), "2 coordinates, outermost first; got 1"),
    ],
)
def test_a_copy_by_a_map_that_is_not_there_or_has_other_axes(box: Box, got: str) -> None:
    def body(m: Recorder) -> None:
        ring = m.acquire("ring", 0)
        m.bulk(ring.ring_s, box, ring)
        m.commit(ring)

    refused("copy into ring_s", got, load=body)


@pytest.mark.parametrize(
    ("say", "got"),
    [
        (lambda m: LEAVES.read_tile(m),
         "a leaf or name of leaves; got read_tile. Fix: did you mean read_tiles?"),
        (lambda m: m.aquire("ring", 0), "a Recorder; got aquire. Fix: did you mean acquire"),
        (lambda m: m.slot("ring", 0).rows_s,
         "a buffer of pipeline ring; got rows_s. Fix: did you mean ring_s?"),
        (lambda m: m.k.thread, "a knob or constant; got thread. Fix: did you mean threads?"),
    ],
)  # fmt: skip
def test_what_a_body_asks_for_and_nobody_has(say: Callable[[Recorder], Any], got: str) -> None:
    with pytest.raises(DeclarationError) as error:
        text(work=say)
    assert "program toy, body work" in str(error.value) and got in str(error.value)


@by_text
def asks(m, w):
    """A leaf whose text calls one that does not exist."""
    LEAVES.read_tile(m, w)


def test_what_the_text_of_a_leaf_asks_for_and_nobody_has() -> None:
    with pytest.raises(
        DeclarationError, match=r"text of leaf asks.*got read_tile. Fix: did you mean read_tiles"
    ):
        text_of(asks, (t.Global("w"), *AMBIENT))


@by_text
def unwritten(m, w):
    """A leaf as the scaffold leaves it."""
    raise NotImplementedError("write the leaves of asks")


def test_a_text_that_is_not_written_yet() -> None:
    with pytest.raises(DeclarationError, match="text of leaf unwritten.*got write the leaves of asks"):
        text_of(unwritten, (t.Global("w"), *AMBIENT))


def _called(say: Callable[[Recorder], None]) -> list[tuple[Any, ...]]:
    """The arguments of each call of a leaf in a body, values as text."""
    m = Recorder(SimpleNamespace(threads=128), SCHEDULE, ARCH, "work", OPERANDS)
    say(m)
    return [tuple(map(repr, s.arguments)) for s in m.statements if isinstance(s, Call)]


def test_a_call_binds_its_arguments_as_python_does() -> None:
    full = _called(lambda m: write(m, m.operand("y"), m.buffer("acc"), m.buffer("red_s"), m.scalar("scale")))
    named = {"scale": lambda m: m.scalar("scale"), "scratch": lambda m: m.buffer("red_s")}
    assert full == _called(
        lambda m: write(m, m.operand("y"), m.buffer("acc"), **{k: v(m) for k, v in named.items()})
    )


@pytest.mark.parametrize(
    ("say", "got"),
    [
        (lambda m: write(m, m.operand("y"), m.buffer("acc")),
         "one argument a parameter: y, source, scratch, scale; got nothing for scratch, scale"),
        (lambda m: write(m, *[m.buffer("acc")] * 4, rows=2), "got no parameter rows"),
        (lambda m: write(m, *[m.buffer("acc")] * 4, y=m.operand("y")), "got y twice"),
        (lambda m: write(m, *[m.buffer("acc")] * 5), "got 5 arguments"),
    ],
)  # fmt: skip
def test_a_call_that_does_not_fit_its_leaf_is_refused(say: Callable[[Recorder], None], got: str) -> None:
    with pytest.raises(DeclarationError) as error:
        _called(say)
    assert got in str(error.value) and "leaf write in work" in str(error.value)


@by_text
def takes(
    m: LeafRecorder,
    tile: Shared[BFloat16],
    held: Registers[Float32] | int,
    row: Int32,
    count: int,
    y: Writes[Global[Any]],
) -> None:
    """Takes an argument of each kind."""


def _takes(m: Recorder, **other: Any) -> None:
    right = {
        "tile": m.buffer("red_s"),
        "held": m.buffer("acc"),
        "row": m.thread,
        "count": 3,
        "y": m.operand("y"),
    }
    takes(m, **right | other)


@pytest.mark.parametrize(
    "other",
    [{}, {"held": lambda m: 0}, {"row": lambda m: 5}, {"row": lambda m: m.dim("rows")},
     {"y": lambda m: m.operand("w")}],
    ids=("all", "a number for registers", "a number for a value", "a size", "another operand"),
)  # fmt: skip
def test_arguments_of_the_annotated_kinds_are_taken(other: dict[str, Any]) -> None:
    assert _called(lambda m: _takes(m, **{k: v(m) for k, v in other.items()}))


@pytest.mark.parametrize(
    ("parameter", "argument", "got"),
    [
        ("tile", lambda m: m.buffer("acc"),
         "expected shared memory of bfloat16; got registers of float32: acc"),
        ("tile", lambda m: m.thread, "expected shared memory of bfloat16; got a value of int32: "),
        ("held", lambda m: m.buffer("red_s"),
         "expected registers of float32 or a number of Python; got shared memory of bfloat16: red_s"),
        ("held", lambda m: m.thread,
         "expected registers of float32 or a number of Python; got a value of int32"),
        ("row", lambda m: m.operand("y"), "expected a value of int32; got an operand of "),
        ("row", lambda m: m.scalar("scale"), "expected a value of int32; got a value of float32"),
        ("row", lambda m: m.thread < 3, "expected a value of int32; got a value of bool"),
        ("count", lambda m: m.thread, "expected a number of Python; got a value of int32"),
        ("y", lambda m: m.buffer("red_s"), "expected an operand; got shared memory of bfloat16: red_s"),
    ],
)  # fmt: skip
def test_an_argument_of_another_kind_or_dtype_is_refused(parameter: str, argument: Any, got: str) -> None:
    with pytest.raises(DeclarationError) as error:
        _called(lambda m: _takes(m, **{parameter: argument(m)}))
    assert f"argument {parameter} of leaf takes in work" in str(error.value) and got in str(error.value)


@recorded
def exchanges(m: Recorder) -> None:
    work(m)
    takes(m, m.buffer("red_s"), m.thread, m.buffer("acc"), 3, m.operand("y"))


def test_exchanged_arguments_are_refused_at_their_line() -> None:
    with pytest.raises(DeclarationError, match="argument held of leaf takes") as error:
        text(work=exchanges)
    assert error.value.where.endswith(
        'takes(m, m.buffer("red_s"), m.thread, m.buffer("acc"), 3, m.operand("y"))'
    )


def test_an_end_of_a_pipeline_does_what_the_recorder_does() -> None:
    def ends(m: Recorder) -> Any:
        reader = m.channel("ring").reader
        reader.wait(3).release(pending=1)
        reader.slot(4).release()
        return m.statements

    def recorder(m: Recorder) -> Any:
        m.release(m.wait("ring", 3), pending=1)
        m.release(m.slot("ring", 4))
        return m.statements

    assert list(map(repr, _said(ends))) == list(map(repr, _said(recorder)))


@recorded
def fills_what_it_reads(m: Recorder) -> None:
    work(m)
    m.channel("ring").producer.acquire(0).commit()


def test_the_end_of_another_role_is_refused_at_its_line() -> None:
    with pytest.raises(
        DeclarationError, match="pipeline ring.*expected its producer, load; got work"
    ) as error:
        text(work=fills_what_it_reads)
    assert error.value.where.endswith('m.channel("ring").producer')


def _said(say: Callable[[Recorder], Any]) -> Any:
    return say(Recorder(SimpleNamespace(threads=128), SCHEDULE, ARCH, "work", OPERANDS))


@pytest.mark.parametrize(
    ("compare", "op", "right"),
    [
        (lambda x, y: x == 3, "==", 3),
        (lambda x, y: 3 == x, "==", 3),  # noqa: SIM300
        (lambda x, y: x != y, "!=", t.name("y")),
        (lambda x, y: ~(x < 3), "==", False),
    ],
)
def test_equality_of_values_is_a_comparison_of_the_kernel(compare: Any, op: str, right: Any) -> None:
    comparison = compare(t.name("x"), t.name("y"))
    assert isinstance(comparison, Expr) and (comparison.op, comparison.dtype) == (op, "bool")
    assert repr(comparison.args[1]) == repr(right)
    branch = _said(lambda m: (m.when(comparison).__enter__(), m.statements)[1])[0]
    assert isinstance(branch, If) and branch.condition is comparison


@pytest.mark.parametrize(
    ("say", "got"),
    [
        (lambda m: m.when(m.k.threads == 128).__enter__(),
         "condition of m.when.*got True, which Python knows"),
        (lambda m: m.when(1).__enter__(), "condition of m.when.*got 1"),
        (lambda m: next(m.repeat(False)), "condition of m.repeat.*got False"),
        (lambda m: select(m.k.threads < 64, m.thread, 0), "condition of select.*got False"),
        (lambda m: (m.thread < 3) & (m.k.threads == 128), "& of a condition.*got True"),
        (lambda m: (m.thread < 3) | False, "| of a condition.*got False"),
        (lambda m: m.thread == None, "== on a value of the kernel .name.*got NoneType"),  # noqa: E711
        (lambda m: m.dim("rows") != "rows", "!= on a value of the kernel .name.*got str"),
        (lambda m: m.thread == m.buffer("acc"), "== on a value of the kernel .name.*got View"),
        (lambda m: m.buffer("acc") == 0, "== or != on a View.*m.word"),
        (lambda m: m.operand("w") != m.thread, "== or != on a Global"),
        (lambda m: m.wait("ring", 0) == 0, "== or != on a Slot"),
        (lambda m: m.scalar("scale") / 2, "/ on a value.*divide"),
        (lambda m: 1.0 / m.scalar("scale"), "/ on a value.*divide"),
        (lambda m: m.thread in (1, 2), "a Python value, known when the kernel is written"),
    ],
)  # fmt: skip
def test_what_python_would_decide_or_the_kernel_lacks_is_refused(
    say: Callable[[Recorder], Any], got: str
) -> None:
    with pytest.raises(DeclarationError, match=got) as error:
        _said(say)
    assert "Fix: " in str(error.value)


def test_values_are_told_apart_by_what_they_are_where_python_asks() -> None:
    """In sets and as keys an expression is compared by identity, whatever it would equal in the kernel."""
    x, same = t.name("x"), t.name("x")
    assert len({x, same}) == 2 and {x: 1}[x] == 1
    view = _said(lambda m: m.buffer("acc"))
    assert view in [view] and view not in [_said(lambda m: m.buffer("acc"))]


@recorded
def works_beside(m: Recorder) -> None:
    if m.thread < 32:
        m.fill(m.buffer("acc"), 0.0)


@recorded
def uses_another_s_name(m: Recorder) -> None:
    work(m)
    if m.thread < 32:
        own: Int32 = 1
        own = own + 1
    m.let("sum", t.name("own") + 1)


@pytest.mark.parametrize(
    ("body", "what", "line"),
    [
        (works_beside, "buffer acc", 'm.fill(m.buffer("acc"), 0.0)'),
        (uses_another_s_name, "value own", 'm.let("sum", t.name("own") + 1)'),
    ],
)
def test_a_refusal_names_the_line_that_does_it(body: Any, what: str, line: str) -> None:
    role = "load" if body is works_beside else "work"
    with pytest.raises(DeclarationError, match=what) as error:
        text(**{role: lambda m: (load(m), body(m)) if role == "load" else body(m)})
    file, number, statement = error.value.where.split(":", 2)
    assert (file, statement.strip()) == ("tests/unit/test_uses.py", line)
    assert line in Path(__file__).read_text().splitlines()[int(number) - 1]


def test_what_python_raises_of_a_text_is_a_refusal_of_the_declaration() -> None:
    @by_text
    def unpacks(m: Any, w: Any) -> None:
        """Unpacks three into two."""
        first, second = (m.thread, m.thread, m.thread)
        w[0] = first + second

    with pytest.raises(DeclarationError, match="too many values to unpack") as error:
        text_of(unpacks, (t.Global("w"), *AMBIENT))
    assert error.value.where.endswith(": first, second")
