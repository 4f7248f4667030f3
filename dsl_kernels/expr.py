"""Integer expressions over runtime dims, as text: grids, shapes and tensor-map extents.

The grammar is Python's, restricted to what can only compute a number, so that text from a file is safe to
compile.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from numbers import Integral
from typing import Any

from .arguments import checked, shown
from .errors import DeclarationError

FUNCTIONS: dict[str, Callable[..., int]] = {"min": min, "max": max, "ceildiv": lambda a, b: -(-a // b)}
SCOPE = {"__builtins__": {}, **FUNCTIONS}
# A shift by a runtime value could create a number of any length.
LONGEST_SHIFT = 64

_ALLOWED = (
    ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Call, ast.IfExp, ast.Compare, ast.BoolOp, ast.And,
    ast.Or, ast.UnaryOp, ast.USub, ast.Not, ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod,
    ast.LShift, ast.RShift, ast.BitAnd, ast.BitOr, ast.BitXor, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt,
    ast.GtE,
)  # fmt: skip


@checked
@lru_cache(maxsize=4096)
def names_in(text: str) -> frozenset[str]:
    """The dims and scalars that an expression uses.

    Raises:
        DeclarationError: not an expression of integers, names, arithmetic, comparisons, min, max and ceildiv.
    """
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _bad(
            text, f"a syntax error ({getattr(error, 'msg', None) or 'too deep, or no text'})"
        ) from None
    functions = set()
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise _bad(text, type(node).__name__)
        if isinstance(node, ast.Call):
            if node.keywords or not (isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS):
                raise _bad(text, "a call of an unknown function")
            functions.add(node.func)
        if isinstance(node, ast.Constant) and type(node.value) is not int:
            raise _bad(text, shown(node.value))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.LShift | ast.RShift):
            by = node.right.value if isinstance(node.right, ast.Constant) else None
            if not isinstance(by, int) or by >= LONGEST_SHIFT:
                raise _bad(text, f"a shift by other than a number below {LONGEST_SHIFT}")
    return frozenset(
        node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in functions
    )


@checked
def names_in_all(texts: Iterable[str]) -> frozenset[str]:
    """The names that any of the expressions uses."""
    return frozenset().union(*map(names_in, texts))


@checked
def tuple_text(texts: Iterable[str]) -> str:
    """Source text of a tuple of expressions."""
    return "(" + "".join(f"{text}, " for text in texts) + ")"


@lru_cache(maxsize=4096)
def _compiled(texts: tuple[str, ...], arguments: tuple[str, ...]) -> Callable[..., tuple[int, ...]]:
    if unknown := sorted(names_in_all(texts) - set(arguments)):
        raise _bad(unknown[0], f"no value for it; known: {', '.join(arguments) or 'none'}")
    for name in arguments:
        if not name.isidentifier() or keyword.iskeyword(name) or arguments.count(name) > 1:
            raise _bad(name, "no name of an argument, or one that occurs twice")
    function: Callable[..., tuple[int, ...]] = eval(
        f"lambda {', '.join(arguments)}: {tuple_text(texts)}", SCOPE
    )
    return function


@checked
def compile_expressions(texts: Sequence[str], arguments: Sequence[str]) -> Callable[..., tuple[int, ...]]:
    """One function of `arguments`, by position, that returns the value of every expression.

    Raises:
        DeclarationError: a malformed expression, a name that is no argument, or an argument that is no name.
    """
    return _compiled(tuple(texts), tuple(arguments))


@checked
def evaluate(text: str, names: Mapping[str, Any]) -> int:
    """The value of one expression; `names` gives the dims and integer scalars.

    Raises:
        DeclarationError: a name without an integer value, a malformed expression, or a division by zero.
    """
    used = sorted(names_in(text))
    if missing := [name for name in used if name not in names]:
        raise _bad(text, f"no value for {missing[0]}; known: {', '.join(sorted(names)) or 'none'}")
    if wrong := [name for name in used if not isinstance(names[name], Integral)]:
        raise _bad(text, f"{wrong[0]} = {shown(names[wrong[0]])}")
    try:
        return int(compile_expressions((text,), used)(*(names[name] for name in used))[0])
    except ArithmeticError as error:
        raise _bad(text, str(error)) from None


def _bad(text: str, got: str) -> DeclarationError:
    return DeclarationError(
        f"expression {shown(text)}",
        expected="integers, dims, arithmetic, comparisons, min, max, ceildiv",
        got=got,
        fix="rewrite the expression in the declaration, or compile the artifact again",
    )
