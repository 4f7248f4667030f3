"""Restricted integer expressions: values, names, and refusal of everything else."""

import pytest

from dsl_kernels.errors import DeclarationError
from dsl_kernels.expr import compile_expressions, evaluate, names_in
from dsl_kernels.tile.expressions import ceildiv, dim, maximum, minimum, size_at, text_of
from dsl_kernels.tile.lang import Size


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(n + 127) // 128", 8),
        ("ceildiv(n, 3) * min(m, 2) - max(m, 7)", 661),
        ("n if m > 5 else m", 5),
        ("(n >> 3) & 15 | 16 ^ 1", 29),
        ("n % 7 + -m", 1),
        ("1 if m == 5 and not n < 3 else 0", 1),
    ],
)
def test_values(text, value):
    assert evaluate(text, {"n": 1000, "m": 5}) == value


def test_several_at_once():
    run = compile_expressions(("n * 2", "7", "min(n, m)"), ("n", "m"))
    assert run(3, 2) == (6, 7, 2)
    assert names_in("ceildiv(n, m) + min(k, 2)") == {"n", "m", "k"}


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "n.real",
        "n[0]",
        "open(n)",
        "lambda: 1",
        "2.5",
        "'a'",
        "n +",
        "n / 2",
        "2 ** n",
        "min(n, key=m)",
        "True",
    ],
)
def test_anything_else_is_refused(text):
    with pytest.raises(DeclarationError):
        names_in(text)


def test_a_name_without_a_value_is_named():
    with pytest.raises(DeclarationError, match="missing"):
        evaluate("n + missing", {"n": 1})
    with pytest.raises(DeclarationError, match="missing"):
        compile_expressions(("missing",), ("n",))


def test_sizes_of_a_launch_are_written_as_they_are_worked_out() -> None:
    t, splits = dim("t"), dim("splits")
    sizes = {
        "t": t * 1,
        "t * 4": t * 4,
        "(t + splits) * 4": (t + splits) * 4,
        "t - (splits - 1)": t - (splits - 1),
        "t // (splits * 2)": t // (splits * Size(2, "TWO")),
        "t // splits * 2": t // splits * 2,
        "ceildiv(t, 8) * min(splits, t)": ceildiv(t, 8) * minimum(splits, t),
        "max(t - 1, 0) % 3": maximum(t - 1, 0) % 3,
        "12": Size(12, "TWELVE"),
    }
    for text, size in sizes.items():
        assert text_of(size) == text_of(text) == text
        for given in ({"t": 7, "splits": 3}, {"t": 64, "splits": 5}):
            assert size_at(size, given) == size_at(text, given) == evaluate(text, given)


def test_what_no_launch_can_work_out_is_refused() -> None:
    with pytest.raises(DeclarationError, match="a size of a launch.*got <"):
        text_of(dim("t") < 3)
    with pytest.raises(DeclarationError, match="no value for splits"):
        size_at(dim("t") // dim("splits"), {"t": 3})
