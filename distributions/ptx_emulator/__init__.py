"""Execute PTX written for NVIDIA GPUs (sm_90a, sm_100a) on a CPU, with checks, to verify kernels.

This package has the names of ``dsl_kernels.emulator``. Every error is a ``PtxEmulatorError``. The parts are
modules of ``ptx_emulator.emulator``: ``ptx_emulator.emulator.script`` checks whole programs, and
``ptx_emulator.emulator.pytest_plugin`` is for tests. The command is ``ptx-emulator``, or
``python -m ptx_emulator``.
"""

from .emulator import *  # noqa: F403
from .emulator import __all__ as _names
from .errors import PtxEmulatorError as PtxEmulatorError

__all__ = [*_names, "PtxEmulatorError"]
