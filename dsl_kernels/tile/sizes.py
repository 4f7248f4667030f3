"""Numbers that keep their names, so that a generated module spells `STAGES * TILE` and not the product."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any


def _operator(op: str) -> tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]:
    """The methods of an operator, for the size on its left and on its right."""
    return lambda left, right: _sized(op, left, right), lambda right, left: _sized(op, left, right)


class Size(int):
    """An int with the name, or the expression over names, by which a generated module spells it.

    Sums, differences, products and whole quotients of sizes are sizes, spelled in their names: a tile of
    `TILE` keys by `LATENT_DIM` has `TILE * LATENT_DIM` elements.

    Attributes:
        spelled: the Python expression over names.
        tightness: how tightly its outermost operator binds: 4 for a sum, 5 for a product, 9 for a name.
        names: every name in the expression, with its value.
        multiple: (base, times) where the number is a base times a plain number; otherwise (the number itself,
            1).
    """

    spelled: str
    tightness: int
    names: Mapping[str, int]
    multiple: tuple[Any, int]

    def __new__(
        cls,
        value: int,
        spelled: str,
        tightness: int = 9,
        names: Mapping[str, int] | None = None,
        multiple: tuple[Any, int] | None = None,
    ) -> Size:
        size = super().__new__(cls, value)
        size.spelled, size.tightness = spelled, tightness
        size.names = {spelled: int(value)} if names is None else names
        size.multiple = (size, 1) if multiple is None else multiple
        return size

    def __reduce__(self) -> tuple[Any, ...]:
        return Size, (int(self), self.spelled), vars(self)

    __add__, __radd__ = _operator("+")
    __sub__, __rsub__ = _operator("-")
    __mul__, __rmul__ = _operator("*")
    __floordiv__, __rfloordiv__ = _operator("//")


_SIZED: dict[str, tuple[Callable[[int, int], Any], int]] = {
    "+": (int.__add__, 4),
    "-": (int.__sub__, 4),
    "*": (int.__mul__, 5),
    "//": (int.__floordiv__, 5),
}


def _sized(op: str, a: Any, b: Any) -> Any:
    operate, tightness = _SIZED[op]
    result = operate(a, b) if isinstance(a, int) and isinstance(b, int) else NotImplemented
    if result is NotImplemented or isinstance(a, bool) or isinstance(b, bool):
        return result
    # Adding 0 or multiplying by 1 keeps the operand's spelling.
    if b == (0 if op in "+-" else 1):
        return a
    if (op, a) in (("+", 0), ("*", 1)):
        return b
    if result == 0 or (op == "//" and result == 1):
        return result
    multiple = None
    if isinstance(a, Size) and not isinstance(b, Size) and b > 0:
        base, times = a.multiple
        if op == "*":
            multiple = base, times * b
        elif op == "//" and times > 1 and (times % b == 0 or b % times == 0):
            return base * (times // b) if times >= b else base // (b // times)
        if multiple and times > 1:
            a, b = base, times * b
    text = f"{spell(a, tightness)} {op} {spell(b, tightness + 1)}"
    return Size(result, text, tightness, {**getattr(a, "names", {}), **getattr(b, "names", {})}, multiple)


class Constant(float):
    """A float with the name by which a generated module spells it; arithmetic with it loses the name."""

    names: Mapping[str, float]

    def __new__(cls, value: float, name: str) -> Constant:
        constant = super().__new__(cls, value)
        constant.names = {name: float(value)}
        return constant

    def __reduce__(self) -> tuple[Any, ...]:
        return Constant, (float(self), *self.names)


LOG2_E = Constant(math.log2(math.e), "LOG2_E")
"""log2(e): exp(x) = exp2(x * LOG2_E)."""

LN_2 = Constant(math.log(2), "LN_2")
"""ln(2)."""


def spell(value: Any, outer: float = 0) -> str:
    """A number as a generated module writes it, in parentheses where the operator around it binds tighter.

    `outer` is how tightly that operator binds.
    """
    if isinstance(value, Constant):
        return next(iter(value.names))
    if not isinstance(value, Size):
        return repr(value)
    return f"({value.spelled})" if value.tightness < outer else value.spelled


def named(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values, with each int made a `Size` of its upper-case name: `tile` becomes TILE."""
    return {
        name: Size(value, name.upper()) if isinstance(value, int) and not isinstance(value, bool) else value
        for name, value in values.items()
    }
