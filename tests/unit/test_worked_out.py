"""Expressions of a leaf's text as single Python functions give each operator's numbers, all in range."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dsl_kernels.device.torch.floats import sum_of_lanes
from dsl_kernels.device.torch.scalars import anew
from dsl_kernels.errors import DeclarationError
from dsl_kernels.tile.arithmetic import IN_RANGE, OPERATORS, unsigned
from dsl_kernels.tile.expressions import EVALUATE, Expr, evaluate, name
from dsl_kernels.tile.worked_out import Spelling

OPERATIONS = ("+", "-", "*", "&", "|", "^", "<<", ">>", "//", "%", "min", "max", "~", "to")
NAMES = {
    "a": torch.tensor([0, 1, -1, 2**31 - 1, -(2**31), 12345]),
    "b": torch.tensor([5, -7, 2**31 - 1, 2**31 - 2, -(2**31), 99]),
    "c": 2**31 - 1,
    "d": -(2**31),
}


def one_by_one(value: Any) -> Any:
    """The value of an expression, with each operator's result wrapped to its dtype."""
    if not isinstance(value, Expr):
        return value
    if value.op == "name":
        return NAMES[value.args[0]]
    given = [one_by_one(arg) for arg in value.args]
    if value.op == "~":
        result = ~torch.as_tensor(given[0])
    elif value.op == "to":
        result = unsigned(given[0]) if value.args[0].dtype == "uint32" else given[0]
    else:
        result = (OPERATORS.get(value.op) or EVALUATE[value.op])(*given)
    condition = getattr(result, "dtype", None) is torch.bool
    return result if condition or value.dtype not in IN_RANGE else IN_RANGE[value.dtype](result)


def drawn(draw: random.Random, depth: int) -> Any:
    if depth == 0 or draw.random() < 0.1:
        return draw.choice(
            [*(name(title, draw.choice(["int32", "uint32"])) for title in NAMES), 3, 2**31 - 1]
        )
    op, dtype = draw.choice(OPERATIONS), draw.choice(["int32", "uint32"])
    if op in ("~", "to"):
        return Expr(op, (name(draw.choice(list(NAMES)), dtype),), dtype)
    # Operands of a division are not negative, and shifts are below 32.
    if op in ("<<", ">>"):
        return Expr(op, (drawn(draw, depth - 1), draw.randrange(1, 9)), dtype)
    if op in ("//", "%"):
        return Expr(op, (Expr("&", (drawn(draw, depth - 1), 0xFFFF), "int32"), draw.randrange(1, 9)), dtype)
    return Expr(op, (drawn(draw, depth - 1), drawn(draw, depth - 1)), dtype)


@pytest.mark.parametrize("seed", range(20))
def test_late_range_gives_the_number_of_each_operator_in_range(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(60):
        value = drawn(draw, draw.randrange(1, 7))
        spelling = Spelling(lambda _: pytest.fail("no memory here"))
        text = spelling.spell(value)
        numbers = spelling.function(text)(SimpleNamespace(scope=NAMES))
        wanted = one_by_one(value)
        assert torch.equal(torch.as_tensor(numbers), torch.as_tensor(wanted)), (text, numbers, wanted)


def test_a_product_of_products_is_brought_into_range_before_it_leaves_64_bits() -> None:
    product: Any = name("c")
    for _ in range(6):
        product = Expr("*", (product, name("c")), "int32")
    value = Expr("+", (product, name("a")), "int32")
    spelling = Spelling(lambda _: pytest.fail("no memory here"))
    numbers = spelling.function(spelling.spell(value))(SimpleNamespace(scope=NAMES))
    assert torch.equal(numbers, one_by_one(value))


def test_a_body_may_call_a_function_of_each_thread_s_own_values() -> None:
    of_x = anew(name("x", "int32") - 1)
    assert evaluate(of_x, {"x": 4}) == 3
    with pytest.raises(DeclarationError, match="sum_of_lanes in a body.*call it in the text of a leaf"):
        evaluate(sum_of_lanes(of_x), {"x": 4})
