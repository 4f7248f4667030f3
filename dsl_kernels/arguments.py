"""Checks of users' arguments: types (from signatures), ranges and names; a mistake is a typed error.

`@checked` marks what a user calls. The function's annotations say what it takes, and whatever reaches its
body is of these types.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import numbers
import operator
import os
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any, TypeVar, overload

from .errors import (
    ArgumentTypeError,
    InvalidArgumentError,
    UnknownNameError,
    did_you_mean,
)

F = TypeVar("F", bound=Callable[..., Any])
Refusal = Callable[[str, str, str, str], Exception]

INT32_MAX = 2**31 - 1

_SHOWN = 60


@overload
def checked(target: F) -> F: ...


@overload
def checked(*, error: Refusal) -> Callable[[F], F]: ...


def checked(target: Any = None, *, error: Refusal | None = None) -> Any:
    """Refuse arguments whose type is not that of a function's, or a dataclass's, annotation.

    An `int` is any integer but a bool, a `float` any real number, a `torch.Tensor` a strided one with memory
    of its own (not sparse, nested or quantised), and a path one that a file system can store. Elements of
    sequences and mappings are checked, those of an iterator are not.

    Args:
        error: makes the error of (argument, expected, got, fix); by default an `ArgumentTypeError`.

    Raises:
        ArgumentTypeError: when called, for the first argument of another type.
    """
    if target is None:
        return functools.partial(checked, error=error)
    if isinstance(target, type):
        made: Any = target
        made.__init__ = _guarded(made.__init__, error or _type_error)
        return target
    return _guarded(target, error or _type_error)


def _guarded(function: Callable[..., Any], error: Refusal) -> Callable[..., Any]:
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = repeat(next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), ""))
    rules: dict[str, _Rule] = {}

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not rules:
            # Made at the first call, as the modules that annotations name may import each other.
            rules.update({name: _rule(hint) for name, hint in _hints(function).items()})
        for name, value in chain(zip(chain(names, rest), args, strict=False), kwargs.items()):
            rule = rules.get(name)
            if rule is not None and not rule.holds(value):
                raise error(name, rule.expected, shown(value), rule.fix or f"pass {rule.expected}")
        return function(*args, **kwargs)

    return guarded


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return {"return": None, **typing.get_type_hints(inspect.unwrap(function))}


def _type_error(name: str, expected: str, got: str, fix: str) -> Exception:
    return ArgumentTypeError(name, expected=expected, got=got, fix=fix)


def shown(value: Any) -> str:
    """A value as an error shows it: as it was typed, but cut short, or the type of anything larger."""
    kind = type(value).__name__
    if value is None or type(value) is bool:
        return str(value)
    if type(value) is int and value.bit_length() > 256:
        # Python refuses to print the longest integers.
        return f"an integer of {value.bit_length()} bits"
    if type(value) in (str, bytes, int, float, complex):
        text = repr(value)
        return f"{text if len(text) <= _SHOWN else text[:_SHOWN] + '...'} ({kind})"
    if type(value) in (list, tuple) and 0 < len(value) <= 3:
        # Not recursively, as a list may contain itself.
        items = (f"a {type(v).__name__}" if isinstance(v, list | tuple) else shown(v) for v in value)
        return f"a {kind} of {', '.join(items)}"
    layout = getattr(value, "layout", None)
    if layout is not None and hasattr(value, "is_nested"):
        how = "nested" if value.is_nested else "lazily negated" if value.is_neg() else str(layout)
        return f"a {value.dtype} tensor ({how})"
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


def require_range(name: str, value: int | float, low: int | float, high: int | float, fix: str = "") -> None:
    """Require `low <= value <= high`, which excludes NaN.

    Raises:
        InvalidArgumentError: the value is out of range.
    """
    if not low <= value <= high:
        raise InvalidArgumentError(
            name, expected=f"{low} to {high}", got=shown(value), fix=fix or "choose a value in that range"
        )


def integer(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """An integer argument as a Python int.

    Raises:
        ArgumentTypeError: not an integer.
        InvalidArgumentError: outside low to high.
    """
    if type(value) is not int:
        try:
            value = int(operator.index(value))
        except Exception:
            raise ArgumentTypeError(
                name, expected="an integer", got=f"{type(value).__name__}", fix="convert it with int()"
            ) from None
    if (low is not None and value < low) or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"{low} to {high}"
        # Python refuses to print integers of thousands of digits.
        got = str(value) if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
        raise InvalidArgumentError(name, expected=limits, got=got, fix=f"pass {limits}")
    return int(value)


def finite(name: str, value: Any, low: float = -math.inf, high: float = math.inf) -> float:
    """A real argument as a Python float.

    Raises:
        ArgumentTypeError: not a real number.
        InvalidArgumentError: infinite, not a number, or outside low to high.
    """
    if not isinstance(value, numbers.Real):
        raise ArgumentTypeError(
            name, expected="a number", got=type(value).__name__, fix="convert it with float()"
        )
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise InvalidArgumentError(name, expected="a finite number", got=str(number), fix="correct it")
    require_range(name, number, low, high)
    return number


def require_dense(name: str, tensor: Any) -> None:
    """Refuse a tensor that no kernel can read by address and strides.

    Raises:
        ArgumentTypeError: not a tensor, or sparse, nested, quantised or lazily negated.
    """
    if not is_plain_tensor(tensor):
        raise ArgumentTypeError(
            name,
            expected="a dense torch.Tensor",
            got=shown(tensor),
            fix="convert it, or make a dense copy of it",
        )


def require_axes(name: str, tensor: Any, shape: str) -> None:
    """Refuse what is no dense tensor with as many axes as a shape like "[b, topk]" has.

    Raises:
        ArgumentTypeError: as `require_dense`.
        InvalidArgumentError: another number of axes.
    """
    require_dense(name, tensor)
    axes = shape.count(",") + 1
    require(name, tensor.dim() == axes, shape, str(tuple(tensor.shape)), f"pass a tensor with {axes} axes")


def available_memory() -> int:
    """Bytes that can be used without swapping, by the kernel's estimate and the control group's limit."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        free = int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError):
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        free = min(free, limit - int((group / "memory.current").read_text()))
    return max(free, 0)


def require_known(subject: str, name: str, known: Iterable[str], kind: str = "name") -> None:
    """Require a known name.

    Args:
        kind: what the name names, such as "executor".

    Raises:
        ArgumentTypeError: not a string.
        UnknownNameError: lists the near misses.
    """
    if not isinstance(name, str):
        raise _type_error(subject, f"the name of a {kind}", shown(name), "pass a string")
    names = list(known)
    if name not in names:
        # If there are many names, only the near ones are listed.
        expected = f"a known {kind}" if len(names) > 6 else f"{kind} {' or '.join(names)}"
        raise UnknownNameError(
            subject, expected=expected, got=shown(name), fix=did_you_mean(name[:200], names)
        )


@dataclass(frozen=True)
class _Rule:
    """What a parameter takes: a test, and its description."""

    expected: str
    holds: Callable[[Any], bool]
    fix: str = ""


_ANYTHING = _Rule("anything", lambda value: True)
_SIMPLE: dict[Any, _Rule] = {
    type(None): _Rule("None", lambda value: value is None),
    bool: _Rule("True or False", lambda value: isinstance(value, bool)),
    int: _Rule(
        "an integer",
        lambda value: isinstance(value, numbers.Integral) and not isinstance(value, bool),
        "convert it with int(...)",
    ),
    float: _Rule(
        "a number",
        lambda value: isinstance(value, numbers.Real) and not isinstance(value, bool),
        "convert it with float(...)",
    ),
    str: _Rule("a string", lambda value: isinstance(value, str)),
    Path: _Rule("a path", lambda value: isinstance(value, Path) and is_path(str(value))),
    object: _ANYTHING,
    Any: _ANYTHING,
}


def _rule(hint: Any) -> _Rule:
    """The rule of an annotation."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if isinstance(hint, TypeVar | str):
        return _ANYTHING
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _one_of([_rule(argument) for argument in arguments], arguments)
    if origin is None or not arguments:
        return _instance(origin or hint)
    if origin is Callable or not isinstance(origin, type):
        return _instance(Callable)
    if issubclass(origin, Mapping):
        key, item = map(_rule, arguments)
        return _Rule(
            f"a mapping from {_plural(key)} to {_plural(item)}",
            lambda v: isinstance(v, origin) and all(map(key.holds, v)) and all(map(item.holds, v.values())),
        )
    if issubclass(origin, tuple) and Ellipsis not in arguments:
        each = list(map(_rule, arguments))
        return _Rule(
            f"a tuple of {len(each)}",
            lambda v: (
                isinstance(v, tuple)
                and len(v) == len(each)
                and all(r.holds(x) for r, x in zip(each, v, strict=True))
            ),
        )
    if issubclass(origin, Iterable):
        return _elements(origin, _rule(arguments[0]))
    return _instance(origin)


def _elements(origin: type, item: _Rule) -> _Rule:
    spelled: dict[Any, str] = {list: "a list", tuple: "a tuple", Sequence: "a sequence"}
    name = spelled.get(origin, "an iterable")

    def holds(value: Any) -> bool:
        # Tensors and arrays count as iterables, of tensors and of numbers.
        if isinstance(value, str | bytes) or not isinstance(value, origin) or hasattr(value, "dtype"):
            return False
        return not isinstance(value, Sequence | AbstractSet) or all(map(item.holds, value))

    return _Rule(f"{name} of {_plural(item)}", holds)


def _one_of(rules: Sequence[_Rule], hints: Sequence[Any]) -> _Rule:
    if Path in hints and str in hints:
        # A string that is used as a path must be a valid one.
        return _one_of(
            [_PATH, *(r for r, h in zip(rules, hints, strict=True) if h not in (Path, str))], (_PATH,)
        )
    return _Rule(" or ".join(r.expected for r in rules), lambda value: any(r.holds(value) for r in rules))


_PATH = _Rule("a path", lambda value: isinstance(value, str | Path) and is_path(str(value)))


def _instance(hint: Any) -> _Rule:
    if hint is Callable:
        return _Rule("a function", callable)
    if not isinstance(hint, type):
        return _ANYTHING
    if (hint.__module__, hint.__name__) == ("torch", "Tensor"):
        return _Rule(
            "a torch.Tensor",
            is_plain_tensor,
            "pass a dense torch.Tensor: torch.as_tensor(...), .to_dense(), .dequantize()",
        )
    if getattr(hint, "_is_protocol", False):
        members = {name for name in (*vars(hint), *inspect.get_annotations(hint)) if not name.startswith("_")}
        return _Rule(
            hint.__name__,
            lambda value: not isinstance(value, type) and all(hasattr(value, m) for m in members),
        )
    article = "an" if hint.__name__[0] in "AEIOUaeiou" else "a"
    return _Rule(f"{article} {hint.__name__}", lambda value: isinstance(value, hint))


def is_path(text: str) -> bool:
    """Whether a file system can store a path: no NUL, nothing unencodable, no part above 255 bytes."""
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return b"\0" not in encoded and len(encoded) < 4096 and max(map(len, encoded.split(b"/"))) < 256


def is_plain_tensor(value: object) -> bool:
    """Whether a value is a tensor that is what its memory says: not sparse, nested, quantised, negated."""
    import torch

    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and not value.is_nested
        and not value.is_quantized
        and (torch.compiler.is_compiling() or not value.is_neg())
    )


def _plural(rule: _Rule) -> str:
    words = rule.expected.split()
    return f"{words[1]}s" if len(words) == 2 and words[0] in ("a", "an") else rule.expected


def require(name: str, holds: bool, expected: str, got: str, fix: str) -> None:
    """Refuse an argument unless a condition holds.

    Raises:
        InvalidArgumentError: it does not hold.
    """
    if not holds:
        raise InvalidArgumentError(name, expected=expected, got=got, fix=fix)


@contextlib.contextmanager
def named_as(**names: str) -> Iterator[None]:
    """In this context refusals name the arguments of the caller's own signature.

    Args:
        names: the caller's names by those of what is called.
    """
    try:
        yield
    except (ArgumentTypeError, InvalidArgumentError) as error:
        if error.subject not in names:
            raise
        raise type(error)(
            names[error.subject], expected=error.expected, got=error.got, fix=error.fix, code=error.code
        ) from None
