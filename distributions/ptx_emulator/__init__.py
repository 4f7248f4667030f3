"""Execute PTX written for NVIDIA GPUs (sm_90a, sm_100a) on a CPU, with checks, to verify kernels.

What is here is what ``dsl_kernels.emulator`` has, under the same names. Its parts are modules of ``ptx_emulator.emulator``:
``ptx_emulator.emulator.script`` checks whole programs, ``ptx_emulator.emulator.pytest_plugin`` is for tests.
"""

from .emulator import *  # noqa: F403
from .emulator import __all__ as __all__
