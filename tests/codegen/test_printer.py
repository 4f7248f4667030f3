"""The printed Python means what the text says."""

from __future__ import annotations

import math
import random
import re

import pytest

from codegen.printer import Printer, _endings
from codegen.render import environment
from codegen.sweep import backends
from dsl_kernels.errors import DeclarationError
from dsl_kernels.tile.kinds import Int32, Sets
from dsl_kernels.tile.lang import LOG2_E, Buffer, Role, Schedule, Size, Space, named, spell
from dsl_kernels.tile.leaf import leaf
from dsl_kernels.tile.text import COMPARISONS, Call, Comment, Expr, Loop, Variable, View, evaluate, name

NAMES = ("a", "b", "c")


def expression(rng: random.Random, depth: int, truth: bool) -> Expr | int:
    """A random expression that is a number, or a truth value if `truth`."""
    if truth:
        if depth > 1 and rng.random() < 0.6:
            return Expr(rng.choice("|&"), tuple(expression(rng, depth - 1, True) for _ in range(2)), "bool")
        return Expr(
            rng.choice(COMPARISONS), tuple(expression(rng, depth - 1, False) for _ in range(2)), "bool"
        )
    if depth <= 0 or rng.random() < 0.2:
        return name(rng.choice(NAMES)) if rng.random() < 0.7 else rng.randint(0, 4)
    return Expr(rng.choice("+-*"), tuple(expression(rng, depth - 1, False) for _ in range(2)))


@pytest.mark.parametrize("seed", range(200))
def test_parentheses_stand_where_python_needs_them(seed: int) -> None:
    rng = random.Random(seed)
    written = expression(rng, 4, truth=True)
    printed = Printer(None, None, None, None).value(written)
    for _ in range(8):
        scope = {text: rng.randint(-3, 3) for text in NAMES}
        assert bool(eval(printed, {}, scope)) == bool(evaluate(written, scope)), printed


def test_an_alternative_of_a_comparison_is_not_compared() -> None:
    last = name("live", "bool") | (name("turn") == name("turns"))
    assert Printer(None, None, None, None).value(last) == "live | (turn == turns)"


@pytest.mark.parametrize("seed", range(100))
def test_a_size_is_what_its_spelling_says(seed: int) -> None:
    rng = random.Random(seed)
    names = {text: rng.randint(0, 9) for text in ("TILE", "STAGES", "HEADS")}

    def number(depth: int) -> int:
        if depth == 0:
            return rng.choice(
                [Size(value, text) for text, value in names.items()] + [0, 1, rng.randint(2, 9)]
            )
        a, b = number(depth - 1), number(depth - 1)
        return (a + b, a - b, a * b, a // b if b else a)[rng.randrange(4)]

    for _ in range(20):
        size = number(3)
        assert eval(f"3 * {spell(size, 6)}", {}, names) == 3 * int(size)
        if isinstance(size, Size):
            assert set(size.names.items()) <= set(names.items())


def test_sizes_are_named_after_knobs_and_vanish_where_nothing_is_left() -> None:
    knobs = named({"tile": 64, "mode": "decode", "dense": True})
    assert (spell(knobs["tile"] * 2), knobs["mode"], knobs["dense"]) == ("TILE * 2", "decode", True)
    tile = knobs["tile"]
    assert [spell(n) for n in (1 * tile, tile + 0, tile // 1)] == ["TILE"] * 3
    assert [type(n) for n in (tile - tile, tile // tile, 0 * tile)] == [int] * 3


def test_a_name_stands_for_one_size_in_a_kernel() -> None:
    printer = Printer(None, None, None, None)
    assert printer.spelled(Size(128, "COLUMNS") * 2) == "COLUMNS * 2"
    with pytest.raises(DeclarationError, match="COLUMNS.*got 128 and 256"):
        printer.spelled(Size(256, "COLUMNS"))


def test_the_interpreter_counts_in_plain_numbers() -> None:
    """Otherwise the spelling of a variable that grows by a size would grow with every iteration."""
    step = Expr("+", (name("column"), Size(64, "TILE")))
    assert type(evaluate(step, {"column": 3})) is int and evaluate(Size(7, "HEADS"), {}) == 7


@pytest.mark.parametrize("dsl", backends())
@pytest.mark.parametrize("unrolled", (False, True))
def test_a_loop_keeps_its_step(dsl: str, unrolled: bool) -> None:
    spelling = environment().get_template(f"{dsl}/_spelling.j2").module
    loop = Loop("i", 0, 8, 2, unrolled, [Comment("body")])
    head = Printer(None, None, spelling, None).lines([loop])[0]
    bounds = re.search(r"\((.*?)\):", head)
    assert bounds is not None and bounds[1].split(", ")[:3] == ["0", "8", "2"], head


def test_what_is_a_multiple_of_a_size_is_divided_in_numbers() -> None:
    tile = Size(64, "TILE")
    quotients = (
        tile * 4 // 4,
        tile * 4 // 2,
        tile * 2 // 8,
        tile * 2 * 3,
        (tile + 1) * 4 // 4,
        tile * 3 // 2,
    )
    assert [spell(n) for n in quotients] == [
        "TILE",
        "TILE * 2",
        "TILE // 4",
        "TILE * 6",
        "TILE + 1",
        "TILE * 3 // 2",
    ]
    assert [int(n) for n in quotients] == [64, 128, 16, 384, 65, 96]


def test_a_constant_is_printed_by_its_name_and_defined() -> None:
    printer = Printer(None, None, None, None)
    assert printer.value(name("scale", "float32") * LOG2_E) == "scale * LOG2_E"
    assert printer.sizes == {"LOG2_E": math.log2(math.e)} and printer.value(LOG2_E * 2.0) == repr(
        LOG2_E * 2.0
    )


@pytest.mark.parametrize(
    ("passed", "endings"),
    [
        # A condition is preferred to a name, and a name to a number.
        (({"unseen": True, "tile": 1}, {"unseen": False, "tile": 2}), ["_unseen", ""]),
        (({"split": None}, {"split": ...}), ["", "_split"]),
        (({"q": "q_nope", "columns": 512}, {"q": "q_pe", "columns": 64}), ["_nope", "_pe"]),
        (({"count": 8, "words": "hist"}, {"count": 4096, "words": "hist"}), ["_count_8", "_count_4096"]),
        (({"first": 0}, {"first": ...}), ["_first_0", ""]),
        # Nothing distinguishes these calls.
        (({"first": ...}, {"first": ...}), ["", "_2"]),
        (({"first": 1},), [""]),
    ],
)
def test_functions_of_one_leaf_are_called_by_what_tells_them_apart(passed, endings) -> None:
    assert _endings([[call] for call in passed]) == endings


@pytest.mark.parametrize("dsl", backends())
def test_a_variable_that_a_call_returns_has_no_first_value_before_it(dsl: str) -> None:
    spelling = environment().get_template(f"{dsl}/_spelling.j2").module

    def sets(found: Sets[Int32], given: Int32) -> None: ...

    def printed(given) -> list[str]:
        call = Call(leaf(sets), (name("found"), given))
        statements = [Variable("found", "int32", 0), Variable("other", "int32", 1), call]
        return Printer(None, None, spelling, lambda name: "module", lambda name: "module").lines(statements)

    # If the call reads the variable, its initial value stays.
    both, read = printed(3), printed(name("found"))
    assert len(read) == len(both) + bool(getattr(spelling, "returns_results", False))
    assert any(line.startswith("other = ") for line in both)


@pytest.mark.parametrize("part", ({"first": 4}, {"column": 8}, {"first": name("row")}))
def test_no_leaf_gets_a_whole_buffer_for_a_part_of_it(part: dict[str, int | Expr]) -> None:
    """TileLang passes buffers by name and slot, CuTe DSL by address."""
    buffers = (Buffer("tile", Space.SHARED, (16, 32), "float32"),)
    schedule = Schedule(
        roles=(Role("all", 4),), buffers=buffers, pipelines=(), mmas=(), grid=(1,), axes=("x",)
    )
    spelling = {dsl: environment().get_template(f"{dsl}/_spelling.j2").module for dsl in backends()}
    view = View("tile", None, None, **part)
    assert "tile" in Printer(schedule, None, spelling["cutedsl"], None)._argument(view)
    with pytest.raises(DeclarationError, match="part of tile: expected a whole slot"):
        Printer(schedule, None, spelling["tilelang"], None)._argument(view)
    assert Printer(schedule, None, spelling["tilelang"], None)._argument(View("tile", None, None)) == "tile"
