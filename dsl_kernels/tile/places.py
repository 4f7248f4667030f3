"""Lines of bodies and texts of leaves: where a statement was said, and where a refusal was raised."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, TracebackType

from ..errors import DslKernelError

Place = tuple[CodeType, int]
"""The code of a function whose statements are recorded, and the offset of an instruction in it."""

_ROOT = Path(__file__).parents[2]
_CODES: dict[int, CodeType] = {}


def note(code: CodeType) -> None:
    """A code, and those within it, of which lines are wanted."""
    _CODES[id(code)] = code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            note(inner)


def note_function(function: Callable[..., object]) -> None:
    """The code of a function, or of the one that a partial application calls."""
    while isinstance(function, partial):
        function = function.func
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType) and not hasattr(function, "__wrapped__"):
        note(code)


def current(frame: FrameType | None) -> Place | None:
    """Where the innermost function that is recorded stands, seen from a frame."""
    while frame is not None:
        if id(frame.f_code) in _CODES:
            return frame.f_code, frame.f_lasti
        frame = frame.f_back
    return None


def spelled(place: Place) -> str:
    """`file:line: text of the expression`, the file as the checkout has it."""
    code, instruction = place
    line, end, column, last = list(code.co_positions())[instruction // 2]
    return spelled_at(code.co_filename, line or code.co_firstlineno, end, column, last)


def spelled_at(
    filename: str, line: int, end: int | None = None, column: int | None = None, last: int | None = None
) -> str:
    """The same of a line, and of what is on it between two columns in bytes."""
    file = Path(filename)
    title = file.relative_to(_ROOT) if file.is_relative_to(_ROOT) else file
    whole = linecache.getline(filename, line)
    text = whole.encode()[column or 0 : last if end == line else None].decode().strip()
    return f"{title}:{line}: {text or whole.strip()}"


def located(error: DslKernelError, traceback: TracebackType | None) -> DslKernelError:
    """The same error with the innermost line that is known of the functions that it came through."""
    found: Place | None = None
    while traceback is not None:
        if id(traceback.tb_frame.f_code) in _CODES:
            found = traceback.tb_frame.f_code, traceback.tb_lasti
        traceback = traceback.tb_next
    return error if found is None or error.where else error.at(spelled(found))
