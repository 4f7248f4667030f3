"""What makes a compile worker faster and changes nothing of what it compiles, so that no artifact's key covers it.

Each measure leaves out work that a process repeats. One that does not fit the interpreter, the C library or the DSL
that is here is left out, and the worker is slower by that much.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import inspect
from collections.abc import Callable
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from .. import backends
from ..errors import DslKernelError

# Options of mallopt in malloc.h, and sizes in bytes.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_NEVER, _STEP, _LARGEST = (1 << 31) - 1, 64 << 20, 32 << 20
# Calls whose place is remembered at once: more than the largest kernel has.
_PLACES = 1 << 16


def keep_memory() -> None:
    """Keep freed memory in the process: provers and passes take and free the same megabytes thousands of times."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, size in ((_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _STEP), (_MMAP_THRESHOLD, _LARGEST)):
            mallopt(option, size)


@lru_cache(maxsize=8)
def prepare(backend: str) -> None:
    """Import the DSL of a backend before its first job, and have each job collect its own garbage alone."""
    # The job itself tells of a DSL that is missing.
    with contextlib.suppress(DslKernelError):
        backends.get(backend).load()
    if backend == "cutedsl":
        remember_places()
    gc.collect()
    gc.freeze()
    gc.disable()


def remember_places() -> None:
    """Let CuTe DSL look up once where a call stands in the source.

    It asks for every operation that it builds, and walks a table from the function's start to the call each time.
    """
    try:
        op = importlib.import_module("cutlass._mlir_helpers.op")
    except ImportError:
        return
    if _takes(op, "_fast_frameinfo", "frame"):
        op._fast_frameinfo = _by_place(op._fast_frameinfo)  # type: ignore[attr-defined]
    if _takes(op, "_is_framework_module", "module_name"):
        op._is_framework_module = lru_cache(maxsize=1024)(op._is_framework_module)  # type: ignore[attr-defined]


def _takes(module: Any, name: str, parameter: str) -> bool:
    """Whether a module still has a function that takes this one argument."""
    function = getattr(module, name, None)
    return inspect.isfunction(function) and list(inspect.signature(function).parameters) == [parameter]


def _by_place(found: Callable[[FrameType], Any]) -> Callable[[FrameType], Any]:
    """`found`, asked once for each instruction of each code object."""
    # With the code object, as another would get its address if it went away.
    held: dict[tuple[int, int], tuple[CodeType, Any]] = {}

    def remembered(frame: FrameType) -> Any:
        place = (id(frame.f_code), frame.f_lasti)
        if place not in held:
            if len(held) >= _PLACES:
                held.clear()
            held[place] = frame.f_code, found(frame)
        return held[place][1]

    return remembered
