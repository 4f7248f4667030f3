"""Typed errors of the emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


class LaunchError(EmulatorError):
    """Launch arguments do not fit the kernel: count, type, shape, grid, cluster or shared memory."""


class BuildError(EmulatorError):
    """The compiled core of the emulator could not be built on this machine."""
