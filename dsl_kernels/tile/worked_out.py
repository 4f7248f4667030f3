"""Compiles the expressions of a leaf's text to Python functions; a call of a leaf evaluates hundreds."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from .._torch import torch
from .arithmetic import IN_RANGE, OPERATORS, signed
from .expressions import EVALUATE, Expr
from .leaf_text import Array, Function

Meaning = Callable[[Any], Any]
WORDS = ("int32", "uint32")
# Operators whose low 32 bits depend only on the low 32 bits of their operands, and from the widths of the
# operands the width that a result may have.
LOW_BITS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: max(a, b) + 1,
    "-": lambda a, b: max(a, b) + 1,
    "*": lambda a, b: a + b,
    "&": max,
    "|": max,
    "^": max,
}
# The widest result that an int64 tensor holds safely, its sign included.
MOST_BITS = 62
INLINE = frozenset(EVALUATE) - {"min", "max", "ceildiv", "//", "%"}


def _int32(result: Any) -> Any:
    """Bring a result into the range of int32; conditions stay as they are."""
    return result if getattr(result, "dtype", None) is torch.bool else signed(result)


def _uint32(result: Any) -> Any:
    return result if getattr(result, "dtype", None) is torch.bool else result & 0xFFFFFFFF


def _bfloat16(result: Any) -> Any:
    return result if getattr(result, "dtype", None) is torch.bool else IN_RANGE["bfloat16"](result)


class Spelling:
    """Spells expressions as Python source, and keeps the objects that the source refers to.

    Args:
        memory: gives the function that reads an element of an array, or a group of them, for all threads.
    """

    def __init__(self, memory: Callable[[Expr], Meaning]) -> None:
        self._memory, self._constants = memory, list[Any]()

    def function(self, text: str) -> Meaning:
        """The function of the threads `at` that evaluates the source `text`."""
        made: Meaning = _factory(text, len(self._constants))(*self._constants)
        return made

    def _hold(self, value: Any) -> str:
        self._constants.append(value)
        return f"c{len(self._constants) - 1}"

    def spell(self, value: Any) -> str:
        """The source of a value, as an operand, in the range of its dtype."""
        if isinstance(value, Array):
            return f"at.scope[{value.name!r}]"
        if not isinstance(value, Expr):
            whole = isinstance(value, int) and not isinstance(value, bool)
            return f"({int(value)})" if whole else self._hold(value)
        if value.op == "name":
            return f"at.scope[{value.args[0]!r}]"
        if value.op in ("element", "group"):
            return f"{self._hold(self._memory(value))}(at)"
        if value.op == "apply":
            function, *args = value.args
            spelled = [self.spell(arg) for arg in args if not isinstance(arg, Function)]
            return f"{self._hold(function.torch)}({', '.join(['at'] * function.joint + spelled)})"
        if value.op == "select":
            return f"torch.where({', '.join(f'at.spread({self.spell(arg)})' for arg in value.args)})"
        result = self._operator(value)
        return f"_{value.dtype}({result})" if value.dtype in IN_RANGE else result

    def _operator(self, value: Expr) -> str:
        """The source of an operator's result, not yet brought into the range of its dtype."""
        if value.op == "~":
            return f"(~torch.as_tensor({self.spell(value.args[0])}))"
        if value.op == "to":
            operand = self.spell(value.args[0])
            return f"({operand} & 0xFFFFFFFF)" if value.args[0].dtype == "uint32" else operand
        # As the final result is brought into range, the intermediate ones need not be.
        late = value.dtype in WORDS and _bits(value) <= MOST_BITS
        a, b = (self._operator(arg) if late and _low(arg) else self.spell(arg) for arg in value.args)
        by_number = value.op in ("//", "%") and isinstance(value.args[1], int)
        if value.op in INLINE or by_number:
            return f"({a} {value.op} {b})"
        return f"{self._hold(OPERATORS.get(value.op) or EVALUATE[value.op])}({a}, {b})"


def _low(value: Any) -> bool:
    return isinstance(value, Expr) and value.op in LOW_BITS and value.dtype in WORDS


def _bits(value: Any) -> int:
    """Bits of a result if no intermediate one is brought into range; above MOST_BITS for other operators."""
    if not _low(value):
        return MOST_BITS + 1
    a, b = (_bits(arg) if _low(arg) else 32 for arg in value.args)
    return LOW_BITS[value.op](a, b)


@lru_cache(maxsize=8192)
def _factory(text: str, objects: int) -> Callable[..., Meaning]:
    names = ", ".join(f"c{i}" for i in range(objects))
    made: Callable[..., Meaning] = eval(f"lambda {names}: lambda at: {text}", globals())
    return made
