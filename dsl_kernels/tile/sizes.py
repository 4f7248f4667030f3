"""Numbers that keep their names: what a schedule computes of its sizes, a generated module spells by them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any


class Size(int):
    """A number with the name that a generated module calls it by; an int like any other everywhere else.

    Sums, differences, products and whole quotients of sizes are sizes, spelled in their names: a tile of `TILE` keys
    by `LATENT_DIM` has `TILE * LATENT_DIM` elements.

    Attributes:
        spelled: the Python expression over names.
        tightness: how tightly its outermost operator binds: 4 as a sum, 5 as a product, 9 as a name.
        names: every name in it with its value.
        multiple: of a multiple of a size by a plain number, the two.
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
        found = super().__new__(cls, value)
        found.spelled, found.tightness = spelled, tightness
        found.names = {spelled: int(value)} if names is None else names
        found.multiple = (found, 1) if multiple is None else multiple
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return Size, (int(self), self.spelled), vars(self)

    def __add__(self, other: Any) -> Any:
        return _sized("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return _sized("+", other, self)

    def __sub__(self, other: Any) -> Any:
        return _sized("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _sized("-", other, self)

    def __mul__(self, other: Any) -> Any:
        return _sized("*", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _sized("*", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return _sized("//", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _sized("//", other, self)


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
    # What an operation leaves as it was keeps its spelling.
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
    """A number that is no whole one, with the name that a generated module calls it by; results of arithmetic have none."""

    names: Mapping[str, float]

    def __new__(cls, value: float, name: str) -> Constant:
        found = super().__new__(cls, value)
        found.names = {name: float(value)}
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        return Constant, (float(self), *self.names)


LOG2_E = Constant(math.log2(math.e), "LOG2_E")
"""The binary logarithm of e: exp(x) is exp2(x * LOG2_E)."""

LN_2 = Constant(math.log(2), "LN_2")
"""The natural logarithm of 2."""


def spell(value: Any, outer: float = 0) -> str:
    """A number as a generated module writes it; `outer` is how tightly what stands around it binds."""
    if isinstance(value, Constant):
        return next(iter(value.names))
    if not isinstance(value, Size):
        return repr(value)
    return f"({value.spelled})" if value.tightness < outer else value.spelled


def named(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same values, whole numbers under their names: `tile` is called TILE."""
    return {
        name: Size(value, name.upper()) if isinstance(value, int) and not isinstance(value, bool) else value
        for name, value in values.items()
    }
