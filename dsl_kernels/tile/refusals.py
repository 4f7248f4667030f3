"""Turns exceptions of Python, raised in a body or the text of a leaf, into declaration errors with a line."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

from ..errors import DeclarationError, DslKernelError, did_you_mean
from . import places
from .expressions import Expr
from .memory import Slot

FAILURES = (
    ArithmeticError, AttributeError, LookupError, NameError, NotImplementedError, TypeError, ValueError,
)  # fmt: skip
"""The exceptions by which Python refuses a mistake in a body or in the text of a leaf."""


def refusal(who: str, error: Exception) -> DeclarationError:
    """The declaration error, with its line, for an exception raised by Python in a body or a leaf's text."""
    refused: DslKernelError
    if isinstance(error, AttributeError) and not isinstance(getattr(error, "obj", None), Expr):
        refused = unknown_attribute(who, error)
    elif isinstance(error, NameError):
        refused = DeclarationError(
            who, expected=f"{error.name or 'a name'} to have a value here", got=str(error),
            fix="a name that a branch or a loop of the kernel binds ends with it: "
            "declare a variable before it, `x: Int32 = 0`",
        )  # fmt: skip
    elif isinstance(error, NotImplementedError):
        refused = DeclarationError(who, expected="what each thread does", got=str(error), fix="write it")
    else:
        refused = DeclarationError(
            who, expected="numbers where Python counts as the text is written, values where threads do",
            got=str(error), fix="compare the line, or the call of the leaf, with what it is given",
        )  # fmt: skip
    located = places.located(refused, error.__traceback__)
    located.__cause__ = error
    return located  # type: ignore[return-value]


def unknown_attribute(who: str, error: AttributeError) -> DeclarationError:
    """The error for an attribute that does not exist, with the names that do (leaves, buffers, knobs)."""
    owner, asked = getattr(error, "obj", None), str(getattr(error, "name", None) or "")
    known = [text for text in dir(owner) if not text.startswith("_")]
    kind = type(owner).__name__
    if isinstance(owner, ModuleType):
        kind = f"leaf or name of {owner.__name__}"
        known = [text for text, value in vars(owner).items() if not text.startswith("_") and callable(value)]
    elif isinstance(owner, Slot):
        kind, known = f"buffer of pipeline {owner.pipeline.name}", list(owner.pipeline.buffers)
    elif isinstance(owner, SimpleNamespace):
        kind, known = "knob or constant", list(vars(owner))
    else:
        bases = type(owner).__mro__
        if annotated := [name for base in bases for name in vars(base).get("__annotations__", ())]:
            kind, known = f"name that {type(owner).__name__} declares", annotated
    return DeclarationError(
        who, expected=f"a {kind}" if asked else "what is there", got=asked or str(error),
        fix=did_you_mean(asked, known),
    )  # fmt: skip
