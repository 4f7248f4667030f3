"""Typed errors of the emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import arguments

if TYPE_CHECKING:
    from .report import Finding, Report


class EmulatorError(Exception):
    """A kernel failed a check while it was executed.

    ``finding`` is the first error found, ``report`` everything known when execution stopped.
    """

    def __init__(self, message: str, finding: Finding | None = None, report: Report | None = None) -> None:
        super().__init__(message)
        self.finding = finding
        self.report = report


class PtxSyntaxError(EmulatorError):
    """The PTX text could not be parsed; the message names the line."""


class UnsupportedInstruction(EmulatorError):
    """An instruction, or a form of one, that the emulator does not execute. It never guesses."""


class LaunchError(EmulatorError, ValueError):
    """Launch arguments do not fit the kernel: count, type, shape, grid, cluster or shared memory."""


class BuildError(EmulatorError):
    """The compiled core of the emulator could not be built on this machine."""


def _refused(name: str, expected: str, got: str, fix: str) -> LaunchError:
    return LaunchError(f"{name}: expected {expected}, got {got}; {fix}")


checked = arguments.checked(error=_refused)
"""Refuse arguments of other types than a function's annotations name, with a :class:`LaunchError`."""


def require_64_bits(name: str, value: int | tuple[int, ...] | None) -> None:
    """The compiled core takes integers of 64 bits."""
    for item in value if isinstance(value, tuple) else (value or 0,):
        if not -(1 << 63) <= item < 1 << 63:
            raise LaunchError(f"{name}: {arguments.shown(item)} does not fit 64 bits")
