"""Measures that make a compile worker faster without changing its output, so no artifact's key covers them.

Each one avoids work that a process would repeat. A measure that does not fit this interpreter, C library or
DSL is skipped, and the worker is merely slower.
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
# Calls whose place is remembered at once; no kernel has more.
_PLACES = 1 << 16


def keep_memory() -> None:
    """Keep freed memory in the process: provers and passes allocate and free megabytes thousands of times."""
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, size in ((_TRIM_THRESHOLD, _NEVER), (_TOP_PAD, _STEP), (_MMAP_THRESHOLD, _LARGEST)):
            mallopt(option, size)


@lru_cache(maxsize=8)
def prepare(backend: str) -> None:
    """Import the backend's DSL before its first job, and spare the collector what that import created."""
    # If the DSL is missing, the job itself reports it.
    with contextlib.suppress(DslKernelError):
        backends.get(backend).load()
    if backend == "cutedsl":
        remember_places()
    gc.collect()
    gc.freeze()
    gc.disable()


def remember_places() -> None:
    """Make CuTe DSL compute the source position of a call only once.

    It asks for the position of each operation it builds, and each time walks a table from the function's
    start.
    """
    try:
        op = importlib.import_module("cutlass._mlir_helpers.op")
    except ImportError:
        return
    if _takes(op, "_fast_frameinfo", "frame"):
        op._fast_frameinfo = _by_place(op._fast_frameinfo)  # type: ignore[attr-defined]
    if _takes(op, "_is_framework_module", "module_name"):
        cached = lru_cache(maxsize=1024)(op._is_framework_module)
        op._is_framework_module = cached  # type: ignore[attr-defined]


def _takes(module: Any, name: str, parameter: str) -> bool:
    """Whether a module still has a function with exactly this one parameter."""
    function = getattr(module, name, None)
    return inspect.isfunction(function) and list(inspect.signature(function).parameters) == [parameter]


def _by_place(frame_info: Callable[[FrameType], Any]) -> Callable[[FrameType], Any]:
    """`frame_info`, called once for each instruction of each code object."""
    # Keeps the code object alive, because another one could get its address and so its id.
    known: dict[tuple[int, int], tuple[CodeType, Any]] = {}

    def remembered(frame: FrameType) -> Any:
        place = (id(frame.f_code), frame.f_lasti)
        if place not in known:
            if len(known) >= _PLACES:
                known.clear()
            known[place] = frame.f_code, frame_info(frame)
        return known[place][1]

    return remembered
