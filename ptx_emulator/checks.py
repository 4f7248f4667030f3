"""Checks of the types of users' arguments, from signatures; and values as errors show them."""

from __future__ import annotations

import functools
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, TypeVar

from .errors import LaunchError

Checked = TypeVar("Checked", bound=Callable[..., Any])
_SHOWN = 60


def checked(target: Checked) -> Checked:
    """Refuse arguments whose type is not that of a function's, or a dataclass's, annotation.

    An `int` is any integer but a bool, and a `float` any real number. Elements of sequences and mappings are
    checked, those of an iterator are not.

    Raises:
        LaunchError: when called, for the first argument of another type.
    """
    if isinstance(target, type):
        made: Any = target
        made.__init__ = _guarded(made.__init__)
        return target
    return _guarded(target)


def _guarded(function: Callable[..., Any]) -> Any:
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = repeat(next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), ""))
    rules: dict[str, _Rule] = {}

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        if not rules:
            # Made at the first call, as the modules that annotations name may import each other.
            hints = typing.get_type_hints(inspect.unwrap(function))
            rules.update({"return": _ANYTHING, **{name: _rule(hint) for name, hint in hints.items()}})
        for name, value in chain(zip(chain(names, rest), args, strict=False), kwargs.items()):
            rule = rules.get(name)
            if rule is not None and not rule.holds(value):
                fix = rule.fix or f"pass {rule.expected}"
                raise LaunchError(f"{name}: expected {rule.expected}, got {shown(value)}", fix=fix)
        return function(*args, **kwargs)

    return guarded


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
        held = (f"a {type(v).__name__}" if isinstance(v, list | tuple) else shown(v) for v in value)
        return f"a {kind} of {', '.join(held)}"
    if hasattr(value, "is_nested") and getattr(value, "layout", None) is not None:
        how = "nested" if value.is_nested else "lazily negated" if value.is_neg() else str(value.layout)
        return f"a {value.dtype} tensor ({how})"
    return f"{'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"


def is_plain_tensor(value: object) -> bool:
    """Whether a value is a tensor that is what its memory says: not sparse, nested, quantised, negated."""
    import torch

    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and not value.is_nested
        and not value.is_quantized
        and not value.is_neg()
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
    object: _ANYTHING,
    Any: _ANYTHING,
}


def _rule(hint: Any) -> _Rule:
    """The rule of an annotation."""
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        either = list(map(_rule, arguments))
        return _Rule(" or ".join(r.expected for r in either), lambda v: any(r.holds(v) for r in either))
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
        return _Rule(f"a tuple of {len(each)}", lambda v: _is_row(v, each))
    return _elements(origin, _rule(arguments[0])) if issubclass(origin, Iterable) else _instance(origin)


def _is_row(value: Any, rules: Sequence[_Rule]) -> bool:
    fits = isinstance(value, tuple) and len(value) == len(rules)
    return fits and all(rule.holds(item) for rule, item in zip(rules, value, strict=True))


def _elements(origin: type, item: _Rule) -> _Rule:
    spelled: dict[Any, str] = {list: "a list", tuple: "a tuple", Sequence: "a sequence"}

    def holds(value: Any) -> bool:
        # Tensors and arrays count as iterables, of tensors and of numbers.
        if isinstance(value, str | bytes) or not isinstance(value, origin) or hasattr(value, "dtype"):
            return False
        return not isinstance(value, Sequence | AbstractSet) or all(map(item.holds, value))

    return _Rule(f"{spelled.get(origin, 'an iterable')} of {_plural(item)}", holds)


def _instance(hint: Any) -> _Rule:
    if hint is Callable:
        return _Rule("a function", callable)
    if not isinstance(hint, type):
        return _ANYTHING
    article = "an" if hint.__name__[0] in "AEIOUaeiou" else "a"
    return _Rule(f"{article} {hint.__name__}", lambda value: isinstance(value, hint))


def _plural(rule: _Rule) -> str:
    words = rule.expected.split()
    return f"{words[1]}s" if len(words) == 2 and words[0] in ("a", "an") else rule.expected
