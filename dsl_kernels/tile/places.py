"""Source lines in bodies and leaves: which line recorded a statement, and which line raised a refusal."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, TracebackType

from ..errors import DslKernelError

Place = tuple[CodeType, int]
"""The code of a recorded function, and the offset of an instruction in it."""

_ROOT = Path(__file__).parents[2]
_CODES: dict[int, CodeType] = {}


def note(code: CodeType) -> None:
    """Register a code object, and those nested in it, as one whose lines errors should name."""
    _CODES[id(code)] = code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            note(inner)


def note_function(function: Callable[..., object]) -> None:
    """Register the code of a function, or of the function inside a `partial`."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType) and not hasattr(function, "__wrapped__"):
        note(code)


def current(frame: FrameType | None) -> Place | None:
    """The place of the innermost registered function on the stack, from `frame` outwards."""
    while frame is not None:
        if id(frame.f_code) in _CODES:
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None


def spelled(place: Place) -> str:
    """`file:line: source of the expression`, the file relative to the checkout."""
    code, instruction = place
    line, end, column, last = list(code.co_positions())[instruction // 2]
    return spelled_at(code.co_filename, line or code.co_firstlineno, end, column, last)


def spelled_at(
    filename: str, line: int, end: int | None = None, column: int | None = None, last: int | None = None
) -> str:
    """`file:line: source`, of the part of the line between two columns (in bytes), or of the whole line."""
    file = Path(filename)
    title = file.relative_to(_ROOT) if file.is_relative_to(_ROOT) else file
    whole = linecache.getline(filename, line)
    text = whole.encode()[column or 0 : last if end == line else None].decode().strip()
    return f"{title}:{line}: {text or whole.strip()}"


def located(error: DslKernelError, traceback: TracebackType | None) -> DslKernelError:
    """The same error, with the line of the innermost registered function that it came through."""
    innermost: Place | None = None
    while traceback is not None:
        if id(traceback.tb_frame.f_code) in _CODES:
            innermost = traceback.tb_frame.f_code, traceback.tb_lasti
        traceback = traceback.tb_next
    return error if innermost is None or error.where else error.at(spelled(innermost))
