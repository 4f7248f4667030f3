"""Restricted integer expressions: values, names, and refusal of everything else."""

import pytest

from dsl_kernels.errors import DeclarationError
from dsl_kernels.expr import compile_expressions, evaluate, names_in


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
