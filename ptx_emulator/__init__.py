"""Execute PTX written for NVIDIA GPUs (sm_90a, sm_100a) on a CPU, with checks, to verify kernels.

>>> import numpy as np
>>> from ptx_emulator import launch, Interleaving
>>> x = np.arange(64, dtype=np.float32); y = np.zeros_like(x)
>>> report = launch(ptx, grid=1, block=64, args=[x, y])               # doctest: +SKIP
>>> report = launch(ptx, 1, 64, [x, y], interleaving=Interleaving.random(7))  # doctest: +SKIP
>>> print(report)                                                     # doctest: +SKIP

``args`` follow the order of the PTX parameters: numpy arrays or torch CPU tensors (written in place),
integers, floats, and a :class:`TensorMap` where the kernel takes the 128-byte descriptor of a tensor copy::

    launch(ptx, grid=(2, 2), block=384, dynamic_smem=98304, args=[
        TensorMap(a, box=(64, 128), swizzle="128B"), TensorMap(b, box=(64, 128), swizzle="128B"), c])

A failed check raises :class:`EmulatorError`, which names the warp, the PTX line and the source line; with
``check="report"`` the report holds the findings instead. An instruction that the emulator does not execute
raises :class:`UnsupportedInstruction`. The emulator is a verification tool:
docs/emulator_checks.md says what it checks, docs/emulator_limits.md what it cannot promise.
"""

from .arguments import Struct, TensorMap
from .coverage import Coverage, Location
from .descriptors import Descriptor
from .errors import (
    BuildError,
    EmulatorError,
    InternalError,
    LaunchError,
    PtxEmulatorError,
    PtxSyntaxError,
    UnsupportedInstruction,
)
from .explain import Explanation, explain
from .im2col import Im2col
from .interleaving import Interleaving, interleavings
from .launch import explore, launch, launch_each
from .raw import RawArguments, Region
from .report import Event, Finding, Report

__all__ = [
    "BuildError",
    "Coverage",
    "Descriptor",
    "EmulatorError",
    "Event",
    "Explanation",
    "Finding",
    "Im2col",
    "Interleaving",
    "InternalError",
    "LaunchError",
    "Location",
    "PtxEmulatorError",
    "PtxSyntaxError",
    "RawArguments",
    "Region",
    "Report",
    "Struct",
    "TensorMap",
    "UnsupportedInstruction",
    "explain",
    "explore",
    "interleavings",
    "launch",
    "launch_each",
]
