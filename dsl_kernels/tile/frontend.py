"""Bodies and leaf texts in plain Python: statements over values of the kernel are recorded, others just run.

`recorded` rewrites a function when it is first called; the function's first parameter is the recorder:

- `if`, `elif`, `else` and `while` over a value of the kernel record a branch or a loop. Over a Python value
they run.
- `for i in range(...)` over values of the kernel records a loop, and so do `unrolled` and `rolled` over any
bounds.
  Other loops run.
- `x = ...` names a value of the kernel `x`. A tuple of targets names nothing, and neither does `inline(...)`;
  `named(...)` gives another name.
- `x: Int32 = ...` declares a variable, which later assignments set. Assignments to a parameter marked `Sets`
or
  `Changes` set the caller's variable.
- `and`, `or`, `not` and `a < b < c` over conditions of the kernel are conditions of the kernel.

Code that looks right but would be recorded wrongly is refused at its line: docs/statements.md has the table.
"""

from __future__ import annotations

import copy
import functools
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn, ParamSpec, Self, TypeVar, cast, get_args, get_type_hints

from ..errors import DeclarationError, did_you_mean
from .channel import Channel
from .rewrite import rewritten
from .text import Expr, Global, Recorder, Value, View

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Kept:
    """Marks the annotation of a kernel variable with its dtype."""

    dtype: str


Int32 = Annotated[Any, Kept("int32")]
Uint32 = Annotated[Any, Kept("uint32")]
Int64 = Annotated[Any, Kept("int64")]
Float32 = Annotated[Any, Kept("float32")]
Boolean = Annotated[Any, Kept("bool")]


@dataclass(frozen=True)
class Turns:
    """The range of a `for` statement that is a loop of the kernel."""

    begin: Value
    end: Value
    step: int
    unrolled: bool = False
    at_once: int = 1

    def __iter__(self) -> Iterator[Any]:
        raise DeclarationError(
            "a loop of the kernel",
            expected="a `for` statement of a recorded function",
            got="another use of its range",
            fix="write `for i in ...:` in a function that is marked @recorded",
        )


def unrolled(*bounds: Value) -> Turns:
    """As `range`, of Python numbers: a loop of the kernel that the compiler unrolls."""
    return _turns(bounds, unrolled=True)


def rolled(*bounds: Value, at_once: int = 1) -> Turns:
    """As `range`: a loop of the kernel that tests its end once every `at_once` iterations."""
    return _turns(bounds, at_once=at_once)


def _turns(bounds: Sequence[Value], **how: Any) -> Turns:
    begin, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    return Turns(begin, end, step, **how)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Inline:
    value: Any


def inline(value: Any) -> Any:
    """`x = inline(...)`: `x` gets no name, and the kernel repeats the expression wherever `x` is used."""
    return _Inline(value)


@dataclass(frozen=True)
class _Named:
    name: str
    value: Any


def named(name: str, value: Any) -> Any:
    """`x = named(name, ...)`: the kernel calls `x` `name`, for a function that is called several times.

    `x = [named(...) for ...]` names each value of a list.

    Raises:
        DeclarationError: the name is no identifier, for example as the index of a loop of the kernel is part
            of it.
    """
    if not name.isidentifier():
        raise DeclarationError(
            "named",
            expected="a name of letters, digits and underscores",
            got=repr(name),
            fix="write numbers of Python into it; "
            "`range` of Python runs a loop whose turns have names of their own",
        )
    return _Named(name, value)


def _range(*bounds: Any) -> Any:
    return _turns(bounds) if any(isinstance(bound, Expr) for bound in bounds) else range(*bounds)


def dtype_of(annotation: Any) -> str | None:
    """The dtype of the variables that an annotation declares."""
    return next((mark.dtype for mark in get_args(annotation)[1:] if isinstance(mark, Kept)), None)


class State:
    """What the functions of a body share: an attribute annotated by a dtype is a variable, any other a value.

    The first assignment declares the variable, or names the value, by the attribute's name; later ones set
    the variable. A class that also derives from the program's `Names` has what the kernel declares as
    attributes, too.
    """

    m: Recorder
    _scope: object

    def __init__(self, m: Recorder, **first: Any) -> None:
        object.__setattr__(self, "m", m)
        object.__setattr__(self, "_scope", m.scope)
        for name, value in first.items():
            setattr(self, name, value)

    def handed(self, m: Recorder) -> Self:
        """A copy for another role, whose body has the recorder `m`."""
        other = copy.copy(self)
        inner = {name: state.handed(m) for name, state in vars(self).items() if isinstance(state, State)}
        vars(other).update(inner, m=m, _scope=m.scope)
        return other

    def __setattr__(self, name: str, value: Any) -> None:
        kinds = _kinds(cast(Any, type(self)))
        if name not in kinds:
            raise DeclarationError(
                f"{type(self).__name__}.{name}", expected="one of " + ", ".join(kinds), got=name,
                fix=f"annotate it in the class, as `{name}: Int32`",
            )  # fmt: skip
        dtype, bound = kinds[name], name in vars(self)
        if dtype is not None and bound:
            self.m.set(vars(self)[name], _plain(value))
        elif bound:
            raise DeclarationError(
                f"{type(self).__name__}.{name}", expected="one assignment", got="another one",
                fix=f"declare a variable: `{name}: Int32`, or another dtype",
            )  # fmt: skip
        else:
            made = _variable(self.m, name, value, dtype) if dtype is not None else _named(self.m, name, value)
            if self.m.scope is not self._scope and not isinstance(made, Expr):
                raise DeclarationError(
                    f"{type(self).__name__}.{name}",
                    expected="a value of Python before what the kernel decides or repeats",
                    got=f"{made!r} in a branch or loop of the kernel, "
                    "which every thread would have from then on",
                    fix=f"assign it before, or declare a variable: `{name}: Int32`, or another dtype",
                )
            object.__setattr__(self, name, made)

    def __getattr__(self, name: str) -> Any:
        declared = _declared(cast(Any, type(self)))
        if name in declared:
            return _of_kernel(self.m, f"{type(self).__name__}.{name}", name, declared[name])
        if name.startswith("__") or name not in _kinds(cast(Any, type(self))):
            raise AttributeError(name, name=name, obj=self)
        raise DeclarationError(
            f"{type(self).__name__}.{name}", expected="a value that has been assigned", got="none so far",
            fix="assign it before it is read, and outside of the branch if both sides need it",
        )  # fmt: skip


@functools.cache
def _kinds(kind: Any) -> dict[str, str | None]:
    others = {"m", "_scope", *_declared(kind)}
    return {name: dtype_of(hint) for name, hint in _hints(kind).items() if name not in others}


def _named(m: Recorder, name: str, value: Any) -> Any:
    """The value, named if it is an expression without a name. Of a variable, its current value is named."""
    if isinstance(value, _Inline):
        return value.value
    if isinstance(value, list) and any(isinstance(part, _Named) for part in value):
        return [_named(m, name, part) if isinstance(part, _Named) else part for part in value]
    if isinstance(value, _Named):
        name, value = value.name, value.value
    if not isinstance(value, Expr):
        return value
    # A value keeps the name that it has, and `x = x` of a variable changes nothing.
    if value.op == "name" and (not m.is_variable(value) or value.args[0] == name):
        return value
    return m.let(name, value)


def _variable(m: Recorder, name: str, value: Any, dtype: str) -> Expr:
    """Declare a variable of this name, or of the one that `named` gives."""
    if isinstance(value, _Named):
        name, value = value.name, value.value
    return m.var(name, _plain(value), dtype)


def _plain(value: Any) -> Any:
    """The value itself, without `inline` or `named`: a variable that is set has its name already."""
    return value.value if isinstance(value, (_Inline, _Named)) else value


class Names:
    """What a kernel declares, by name; each program derives a class that annotates its names.

    `x: View` is a buffer, `x: Channel` a pipeline, `x: Global` an operand, `x: Int32` a runtime size or an
    integer of the call, and `x: Float32` a scalar.
    """

    def __init__(self, owner: Recorder | State) -> None:
        self._recorder = owner if isinstance(owner, Recorder) else owner.m

    def __getattr__(self, name: str) -> Any:
        declared = _declared(cast(Any, type(self)))
        if name not in declared:
            raise AttributeError(name, name=name, obj=self)
        return _of_kernel(self._recorder, f"{type(self).__name__}.{name}", name, declared[name])


@functools.cache
def _declared(kind: Any) -> dict[str, Any]:
    """The annotations of a class and its bases, as far as they derive from `Names`."""
    hints, names = _hints(kind), [base for base in kind.__mro__ if issubclass(base, Names)]
    return {
        name: hints[name]
        for base in names
        if not issubclass(base, State)
        for name in vars(base).get("__annotations__", ())
    }


def _of_kernel(m: Recorder, asked: str, name: str, kind: Any) -> Any:
    """What the kernel declares as `name`, if its kind is that of the annotation; `asked` is for errors."""
    annotated = kind.__name__ if isinstance(kind, type) else (dtype_of(kind) or "").capitalize()
    fitting = m.known_as(name)
    if annotated not in fitting and (fitting or annotated == Global.__name__):
        operands = [spec.name for spec in m.operands if spec.shape]
        raise DeclarationError(
            asked,
            expected=" or ".join(fitting) or "an operand of the kernel",
            got=annotated,
            fix=f"annotate it in the class, `{name}: {fitting[0]}`"
            if fitting
            else did_you_mean(name, operands),
        )
    if kind is View:
        return m.buffer(name)
    # By name, as there are two classes: this one, and the annotation of leaf parameters in tile/kinds.py.
    if annotated == Global.__name__:
        return m.operand(name)
    if kind is Channel:
        return m.channel(name)
    return m.dim(name) if dtype_of(kind) == "int32" else m.scalar(name)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


class Branch:
    """The sides of an `if` that the rewritten function executes: True for the body, False for `else`."""

    def __init__(self, m: Recorder, condition: Any, other: bool) -> None:
        self.m, self.condition, self.other = m, condition, other
        self.recorded = isinstance(condition, Expr)

    def __iter__(self) -> Iterator[bool]:
        if not self.recorded:
            yield bool(self.condition)
            return
        with self.m.when(self.condition):
            yield True
        if self.other:
            with self.m.otherwise():
                yield False


class Turn:
    """The iterations of a `for`; the body of a loop of the kernel is executed once."""

    def __init__(self, m: Recorder, name: str, over: Any, leaves: str = "") -> None:
        self.m, self.name, self.over = m, name, over
        self.recorded = isinstance(over, Turns)
        if self.recorded and leaves:
            _refuse_exit(leaves, "a loop of the kernel")

    def __iter__(self) -> Iterator[Any]:
        if not self.recorded:
            yield from self.over
            return
        if not self.name:
            raise DeclarationError(
                "a loop of the kernel",
                expected="one name for its number",
                got="several",
                fix="write `for i in range(...)`",
            )
        o = self.over
        yield from self.m.loop(
            self.name, o.end, begin=o.begin, step=o.step, unrolled=o.unrolled, at_once=o.at_once
        )


class While:
    """The iterations of a `while`; the body of a loop of the kernel is executed once."""

    def __init__(self, m: Recorder, condition: Callable[[], Any], leaves: str = "") -> None:
        self.m, self.condition = m, condition
        self.first = condition()
        self.recorded = isinstance(self.first, Expr)
        if self.recorded and leaves:
            _refuse_exit(leaves, "a loop of the kernel")

    def __iter__(self) -> Iterator[None]:
        if self.recorded:
            yield from self.m.repeat(self.first)
            return
        going = self.first
        while going:
            yield
            going = self.condition()


def _refuse_exit(leaves: str, what: str) -> NoReturn:
    raise DeclarationError(
        f"{leaves} in {what}",
        expected="a way out that Python knows when the kernel is written",
        got="one that the kernel decides",
        fix="say what goes on in the condition of the loop or under the branch",
    )


class Frame:
    """One call of a recorded function: what its statements do, and the scope in which each name was bound."""

    def __init__(self, owner: Any, function: str, bound: Sequence[str]) -> None:
        m = owner if isinstance(owner, Recorder) else getattr(owner, "m", None)
        if not isinstance(m, Recorder):
            raise DeclarationError(
                f"recorded function {function}",
                expected="a recorder as the first argument, or what has one as `m`",
                got=type(owner).__name__,
                fix=f"call {function}(m, ...)",
            )
        self.m = m
        self._bound: dict[str, Any] = dict.fromkeys(bound, m.scope)

    def bind(self, name: str, value: Any) -> Any:
        """`name = value`.

        Raises:
            DeclarationError: the name would stay bound after a branch or a loop that the kernel may skip.
        """
        before, now = self._bound.get(name), self.m.scope
        if before is not None and before is not now and self.m.within(before):
            raise DeclarationError(
                f"{name} under a branch or in a loop of the kernel",
                expected="a variable, which the kernel sets",
                got=f"{name}, which Python has bound before",
                fix=f"declare it there, `{name}: Int32 = ...` or another dtype, or take another name here",
            )
        self._bound[name] = now
        return _named(self.m, name, value)

    def declare(self, name: str, value: Any, dtype: str) -> Any:
        """`name: dtype = value`."""
        self._bound[name] = self.m.scope
        return _variable(self.m, name, value, dtype)

    def set(self, variable: Any, value: Any) -> Any:
        """`variable = value`."""
        self.m.set(variable, _plain(value))
        return variable

    def branch(self, condition: Any, other: bool) -> Branch:
        return Branch(self.m, condition, other)

    def known(self, condition: Any, leaves: str) -> Any:
        """The condition of an `if` whose body leaves the function or a loop; Python has to know it."""
        if isinstance(condition, Expr):
            _refuse_exit(leaves, "a branch of the kernel")
        return condition

    def turns(self, name: str, over: Any, leaves: str = "") -> Turn:
        return Turn(self.m, name, over, leaves)

    def repeat(self, condition: Callable[[], Any], leaves: str = "") -> While:
        return While(self.m, condition, leaves)

    def joined(self, word: str, *parts: Callable[[], Any]) -> Any:
        """`and` or `or`: Python values short-circuit as ever, and the kernel joins its own conditions."""
        joined: Any = None
        for i, part in enumerate(parts):
            value = part()
            if isinstance(value, Expr):
                condition = _condition(word, value)
                joined = condition if joined is None else _JOINED[word](joined, condition)
            elif bool(value) is (word == "or") or (joined is None and i == len(parts) - 1):
                return value
        return joined

    def opposite(self, value: Any) -> Any:
        return ~_condition("not", value) if isinstance(value, Expr) else not value

    def either(self, condition: Any, then: Callable[[], Any], other: Callable[[], Any]) -> Any:
        """`then if condition else other`, where Python knows the condition."""
        if isinstance(condition, Expr):
            raise DeclarationError(
                "a if condition else b",
                expected="a condition that Python knows when the kernel is written",
                got="one of the kernel",
                fix="say select(condition, a, b), which works out both, "
                "or write an `if` that sets a variable",
            )
        return then() if condition else other()


_JOINED = {"and": operator.and_, "or": operator.or_}


def _condition(word: str, value: Expr) -> Expr:
    if value.dtype == "bool":
        return value
    raise DeclarationError(
        f"{word} of a value of the kernel", expected="a condition", got=f"a number of {value.dtype}",
        fix="compare it: x != 0; bits are joined by & and |",
    )  # fmt: skip


def after_previous_kernel(m: Recorder) -> None:
    """The START of bodies that do everything after the kernel before this one."""
    m.barriers_stand()
    m.depend()


def recorded(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function whose control flow over values of the kernel is recorded.

    Its first argument is the recorder, or has one as `m`. Functions defined inside it are recorded, too. It
    is rewritten when it is first called.

    Raises:
        DeclarationError: at the call: the function says what a kernel cannot do, or its source is not
            available.
    """
    if hasattr(function, "__recorded__"):
        return function
    rewrites: list[Callable[P, R]] = []

    @functools.wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        if not rewrites:
            rewrites.append(rewritten(function, sys.modules[__name__]))
        return rewrites[0](*arguments, **named)

    call.__recorded__ = True  # type: ignore[attr-defined]
    return call
