"""Run a program with its own main and reference, without a GPU or a driver, and check every launch.

>>> from ptx_emulator.script import emulated
>>> with emulated("sm_90a", interleavings=20) as session:              # doctest: +SKIP
...     y = my_kernel(torch.ones(64, device="cuda"))
>>> print(summary(session))                                            # doctest: +SKIP

This verifies kernels written for NVIDIA GPUs before they run there: it is no platform to run them on, and
nothing is translated. The emulator records launches of CuTe DSL, TileLang, Triton, Gluon and of the driver's
calls from Python, and executes them in the order of issue. No library is replaced: CuTe DSL's launches are
read from the host function that the DSL prints, the others at each DSL's Python interface.
docs/emulator_runs.md lists what is recorded; every other call raises :class:`UnsupportedCall`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ..checks import shown
from ..errors import LaunchError
from . import hooks
from .device import SMS
from .errors import UnsupportedCall
from .session import LaunchRecord, Session, Settings
from .text import summary

__all__ = ["LaunchRecord", "Session", "UnsupportedCall", "emulated", "summary"]

_ACTIVE: list[Session] = []


@contextmanager
def emulated(
    arch: str = "sm_90a",
    *,
    interleavings: int = 5,
    seed: int = 0,
    check: str = "raise",
    sms: int = SMS,
    explain: str | Path | None = None,
    **options: Any,
) -> Iterator[Session]:
    """Record, execute and check every launch within the block.

    Args:
        arch: The architecture to compile for: `sm_90a` or `sm_100a`.
        interleavings: How many interleavings execute each launch; the memory is restored between them.
        seed: Seed of the random interleavings.
        check: "raise" ends the program at the first error; "report" collects findings.
        sms: SMs of the device that the program sees; persistent kernels launch that many CTAs.
        explain: A folder for pages that explain the first error of each launch.
        options: Options of :func:`ptx_emulator.launch`, such as ``strict_fences=True``.

    Raises:
        UnsupportedCall: the program makes a call that is not recorded.
        EmulatorError: a check failed (with ``check="raise"``).
        UnsupportedInstruction: the emulator does not execute an instruction of a kernel.
        UnsupportedArchError: no such architecture.
    """
    if check not in ("raise", "report"):
        raise LaunchError(f"check {shown(check)} is neither 'raise' nor 'report'")
    if _ACTIVE:
        raise LaunchError("a program is being checked already: emulated() cannot be nested")
    page = None
    if explain is not None:
        from .pages import writer

        page = writer(Path(explain))
    session = Session(arch, Settings(interleavings, seed, check, options, page), sms)
    with tempfile.TemporaryDirectory(prefix="ptx_emulator_script_") as folder, ExitStack() as stack:
        _ACTIVE.append(session)
        stack.callback(_ACTIVE.remove, session)
        stack.enter_context(_installed(session, Path(folder)))
        yield session


@contextmanager
def _installed(session: Session, folder: Path) -> Iterator[None]:
    from . import cuda_python, cutedsl, driver_ctypes, tilelang, torch_cuda, triton
    from .driver import Driver

    driver = Driver(session)

    def bindings(name: str, table: Any, prefix: str) -> Any:
        import importlib

        return lambda: cuda_python.install(driver, importlib.import_module(name), table, prefix)

    installers = {
        "torch": lambda: torch_cuda.install(session),
        "cuda.bindings.driver": bindings("cuda.bindings.driver", cuda_python.DRIVER, "cu"),
        "cuda.bindings.runtime": bindings("cuda.bindings.runtime", cuda_python.RUNTIME, "cuda"),
        "cutlass": lambda: cutedsl.install(session),
        "cutlass.testing": lambda: cutedsl.install_benchmark(session, "cutlass.testing"),
        "cutlass.cute.testing": lambda: cutedsl.install_benchmark(session, "cutlass.cute.testing"),
        "tilelang": lambda: tilelang.install(session, folder),
        "triton": lambda: triton.install(session),
    }
    variables = {
        # torch.compile would generate kernels for the CPU; without Dynamo the function itself runs.
        "TORCHDYNAMO_DISABLE": "1",
        **cutedsl.variables(session, folder),
        **tilelang.variables(session),
        **triton.variables(session, folder),
    }
    with hooks.environment(variables), driver_ctypes.install(driver), hooks.when_imported(installers):
        yield
