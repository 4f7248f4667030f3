"""What the printer writes means in Python what the text says."""

from __future__ import annotations

import random

import pytest

from codegen.printer import Printer
from dsl_kernels.tile.text import COMPARISONS, Expr, evaluate, name

NAMES = ("a", "b", "c")


def expression(rng: random.Random, depth: int, truth: bool) -> Expr | int:
    """A random expression: a number, or a truth value."""
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
    last = name("live", "bool") | name("turn").equals(name("turns"))
    assert Printer(None, None, None, None).value(last) == "live | (turn == turns)"
