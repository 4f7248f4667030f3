"""Expressions: numbers that the kernel computes, built by Python's operators, and their evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import DeclarationError
from ..expr import evaluate as evaluate_text
from .lang import Size

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


def _operator(op: str) -> tuple[Callable[[Expr, Value], Expr], Callable[[Expr, Value], Expr]]:
    """The methods of an operator, for the expression on its left and on its right."""
    return lambda left, right: _binary(op, left, right), lambda right, left: _binary(op, left, right)


@dataclass(frozen=True, eq=False)
class Expr:
    """A number that the kernel computes: a name, or an operator over numbers and expressions."""

    op: str
    args: tuple[Any, ...]
    dtype: str = "int32"

    __add__, __radd__ = _operator("+")
    __sub__, __rsub__ = _operator("-")
    __mul__, __rmul__ = _operator("*")
    __floordiv__, __rfloordiv__ = _operator("//")
    __mod__, __and__, __or__, __xor__ = (_operator(op)[0] for op in "%&|^")
    __lt__, __le__, __gt__, __ge__ = (_operator(op)[0] for op in COMPARISONS[:4])

    def __truediv__(self, other: Value) -> Expr:
        raise DeclarationError(
            "/ on a value of the kernel",
            expected="// of integers, or a function of floats in the text of a leaf",
            got=f"a quotient of {self.dtype}",
            fix="say divide(a, b) of device/torch/floats.py, or a * rcp_approx(b) of device/torch/warps.py",
        )

    __rtruediv__ = __truediv__

    def __lshift__(self, other: Value) -> Expr:
        return Expr("<<", (self, other), self.dtype)

    def __rshift__(self, other: Value) -> Expr:
        return Expr(">>", (self, other), self.dtype)

    def __rlshift__(self, other: Value) -> Expr:
        return Expr("<<", (other, self), self.dtype)

    def __neg__(self) -> Expr:
        return _binary("-", 0, self)

    def __invert__(self) -> Expr:
        """The complement of every bit, or the opposite of a condition."""
        return self == False if self.dtype == "bool" else Expr("~", (self,), self.dtype)  # noqa: E712

    def to(self, dtype: str) -> Expr:
        """The value as another dtype: 32-bit integers keep their bits, and uint32 widens to 64 with zeros."""
        return Expr("to", (self,), dtype)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        """A comparison that the kernel makes. Use `is` to ask whether two expressions are one object."""
        return _comparison("==", self, other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return _comparison("!=", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise DeclarationError(
            "a condition of a body",
            expected="a Python value, known when the kernel is written",
            got=f"an expression of the kernel ({self.op})",
            fix="mark the function @recorded, whose `if` and `while` a kernel can decide",
        )

    def __index__(self) -> int:
        raise DeclarationError(
            "a number that Python counts with",
            expected="one that is known when the kernel is written",
            got=f"an expression of the kernel ({self.op})",
            fix="go through it by `for i in range(...)` in a function that is marked @recorded",
        )

    __iter__ = None


Value = int | float | bool | Expr
STORED = ("bfloat16", "float16")
"""Dtypes that only memory has; arithmetic widens them."""


def _binary(op: str, a: Value, b: Value) -> Expr:
    if not isinstance(a, (int, float, Expr)) or not isinstance(b, (int, float, Expr)):
        return NotImplemented
    for operand in (a, b):
        if op in ("&", "|", "^") and isinstance(operand, bool):
            kernel_condition(f"{op} of a condition of the kernel", operand)
    dtypes = {x.dtype for x in (a, b) if isinstance(x, Expr)}
    result = "bool" if op in COMPARISONS else "float32" if "float32" in dtypes else min(dtypes)
    if result in STORED and op in ("+", "-", "*"):
        raise DeclarationError(
            f"{op} on values of {result}", expected="float32",
            got=f"numbers that are rounded to {result} at each step",
            fix='widen one first: `x: Float32 = array[i]`, or array[i].to("float32")',
        )  # fmt: skip
    return Expr(op, (a, b), result)


def _comparison(op: str, a: Expr, b: Any) -> Expr:
    if (comparison := _binary(op, a, b)) is NotImplemented:
        # Python would fall back to identity, and a branch on the result would silently disappear.
        raise DeclarationError(
            f"{op} on a value of the kernel ({a.op})",
            expected="a number or another value of the kernel",
            got=type(b).__name__,
            fix="compare with the number that is meant; `is` tells whether two are one object",
        )
    return comparison


def kernel_condition(what: str, condition: Any) -> Expr:
    """The condition, if it is one that the kernel tests.

    Raises:
        DeclarationError: Python knows the condition when the kernel is written.
    """
    if isinstance(condition, Expr):
        return condition
    raise DeclarationError(
        what,
        expected="a comparison of values of the kernel",
        got=f"{condition!r}, which Python knows when the kernel is written",
        fix="branch with a Python `if`, or compare a value of the kernel: m.dim(...), m.thread, "
        "an element of a buffer",
    )


def name(text: str, dtype: str = "int32") -> Expr:
    """A value by its name in the kernel."""
    return Expr("name", (text,), dtype)


def dim(text: str) -> Expr:
    """A runtime dim or integer of a launch, for a schedule's grid, `resident` and tensor maps."""
    return Expr("name", (text,))


Extent = int | str | Expr
"""A size of a launch: a number, an expression over the launch's dims, or such an expression spelled out."""
_TIGHT = {"+": 4, "-": 4, "*": 5, "//": 5, "%": 5}


def text_of(extent: Extent) -> str:
    """A size of a launch as artifacts spell it (`dsl_kernels.expr`)."""
    return extent if isinstance(extent, str) else _text(fold(extent, {}), 0)


def _text(value: Value, outer: int) -> str:
    if not isinstance(value, Expr):
        return str(int(value))
    if value.op == "name":
        return str(value.args[0])
    if value.op in ("min", "max", "ceildiv"):
        return f"{value.op}({', '.join(_text(arg, 0) for arg in value.args)})"
    tight = _TIGHT.get(value.op)
    if tight is None:
        raise DeclarationError(
            "a size of a launch",
            expected=f"{', '.join(_TIGHT)}, minimum, maximum and ceildiv of dims and numbers",
            got=value.op, fix="say it by these",
        )  # fmt: skip
    a, b = _text(value.args[0], tight), _text(value.args[1], tight + 1)
    return f"({a} {value.op} {b})" if tight < outer else f"{a} {value.op} {b}"


def size_at(extent: Extent, dims: Mapping[str, Any]) -> int:
    """The value of a size of a launch at these dims.

    Raises:
        DeclarationError: a dim has no value.
    """
    if isinstance(extent, Expr):
        try:
            return int(evaluate(extent, dims))
        except (KeyError, ArithmeticError):
            return evaluate_text(text_of(extent), dims)
    return evaluate_text(extent, dims) if isinstance(extent, str) else int(extent)


def minimum(a: Value, b: Value) -> Any:
    """The smaller of two numbers."""
    return min(a, b) if _known(a, b) else Expr("min", (a, b), _dtype(a, b))


def maximum(a: Value, b: Value) -> Any:
    """The larger of two numbers."""
    return max(a, b) if _known(a, b) else Expr("max", (a, b), _dtype(a, b))


def select(condition: Expr, a: Value, b: Value) -> Expr:
    """`a` where a condition holds, else `b`; the kernel computes both."""
    return Expr("select", (kernel_condition("condition of select", condition), a, b), _dtype(a, b))


def _dtype(*values: Value) -> str:
    return next((value.dtype for value in values if isinstance(value, Expr)), "int32")


def ceildiv(a: Value, b: Value) -> Any:
    """a / b rounded up; neither is negative."""
    if isinstance(a, Expr) or isinstance(b, Expr):
        return Expr("ceildiv", (a, b))
    return -(-a // b)


def _known(*values: Value) -> bool:
    return not any(isinstance(value, Expr) for value in values)


def fold(value: Value, known: Mapping[str, int]) -> Value:
    """The same value with the names in `known` replaced by their numbers, and simplified."""
    if not isinstance(value, Expr) or value.op in ("in_role", "word"):
        return value
    if value.op == "name":
        return known.get(value.args[0], value)
    parts = tuple([fold(arg, known) if isinstance(arg, Expr) else arg for arg in value.args])
    if value.op in OF_THREADS:
        return Expr(value.op, parts, value.dtype)
    a, b = parts
    if not isinstance(a, Expr) and not isinstance(b, Expr):
        result: Value = EVALUATE[value.op](a, b)
        return result
    if value.op == "*" and (_is(a, 0) or _is(b, 0)):
        return 0
    if (value.op in ("+", "-", "^", "<<", ">>") and _is(b, 0)) or (value.op in ("*", "//") and _is(b, 1)):
        return a
    if (value.op == "+" and _is(a, 0)) or (value.op == "*" and _is(a, 1)):
        return b
    return Expr(value.op, (a, b), value.dtype)


def _is(value: Value, number: int) -> bool:
    return not isinstance(value, Expr) and value is not True and value is not False and value == number


OF_THREADS = ("~", "to", "select", "element", "group", "apply")
"""Operators that only leaf texts have; `tile.threads` evaluates them, for all threads at once."""

READ = "[]"
"""The key, in the scope of `evaluate`, of the function that reads a word of memory."""


def _extreme(of: Callable[[Any, Any], Any], limit: str) -> Callable[[Any, Any], Any]:
    def extreme(a: Any, b: Any) -> Any:
        # A value that differs from warp to warp is a tensor.
        tensor, other = (a, b) if hasattr(a, "clamp") else (b, a)
        return tensor.clamp(**{limit: other}) if hasattr(tensor, "clamp") else of(a, b)

    return extreme


EVALUATE: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "min": _extreme(min, "max"),
    "max": _extreme(max, "min"),
    "ceildiv": lambda a, b: -(-a // b),
}


def evaluate(value: Value, scope: Mapping[str, Any]) -> Any:
    """The number that an expression evaluates to when its names have the values in `scope`."""
    if not isinstance(value, Expr):
        return int(value) if isinstance(value, Size) else value
    if value.op == "name":
        return scope[value.args[0]]
    if value.op == "in_role":
        return scope["role"] == value.args[0]
    if value.op == "word":
        memory, index = value.args
        word = scope[READ](memory, evaluate(index, scope))
        return word & 0xFFFFFFFF if value.dtype == "uint32" else word
    if value.op == "apply":
        function, *args = value.args
        if function.joint:
            raise DeclarationError(
                f"{function.name} in a body", expected="a function of each thread's own values",
                got="one of a warp's threads together", fix="call it in the text of a leaf",
            )  # fmt: skip
        return function.torch(*(evaluate(arg, scope) for arg in args))
    return EVALUATE[value.op](*(evaluate(arg, scope) for arg in value.args))


def without_anew(value: Expr) -> Value:
    """The value inside a call of `anew`, which recomputes it instead of keeping it in a register."""
    return value.args[1] if value.op == "apply" and value.args[0].name == "anew" else value


def alike(a: Value | None, b: Value) -> bool:
    """Whether two values are the same number or structurally equal expressions."""
    if not isinstance(a, Expr) or not isinstance(b, Expr):
        return not isinstance(a, Expr) and not isinstance(b, Expr) and bool(a == b)
    if a.op != b.op or a.dtype != b.dtype or len(a.args) != len(b.args):
        return False
    return all(map(alike, a.args, b.args))


def names_of(values: Iterable[Any]) -> set[str]:
    """The names among `values`."""
    return {value.args[0] for value in values if type(value) is Expr and value.op == "name"}
