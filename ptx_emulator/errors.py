"""Typed errors of the emulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from .report import Finding, Report


class PtxEmulatorError(Exception):
    """Base of every error that the emulator raises on purpose.

    Args:
        subject: The argument, kernel or file that is at fault.
        expected: What would have been accepted.
        got: What came instead.
        fix: What the caller can do about it.
        code: Stable identifier; defaults to the class's `default_code`.
        where: The line of a kernel's declaration that is at fault, as `file:line: text`.
    """

    default_code = "ERROR"

    def __init__(
        self, subject: str, *, expected: str, got: str, fix: str, code: str | None = None, where: str = ""
    ) -> None:
        self.subject, self.expected, self.got, self.fix, self.where = subject, expected, got, fix, where
        self.code = code or self.default_code
        place = f"{where}: " if where else ""
        super().__init__(f"{place}error[{self.code}] {subject}: expected {expected}; got {got}. Fix: {fix}")

    def at(self, where: str) -> Self:
        """The same error, at a line of a declaration."""
        return _again(type(self), self.subject, self.expected, self.got, self.fix, self.code, where)

    def __reduce__(self):
        """Pickle with the keyword-only arguments."""
        return _again, (type(self), self.subject, self.expected, self.got, self.fix, self.code, self.where)


def _again(cls, subject, expected, got, fix, code, where):
    return cls(subject, expected=expected, got=got, fix=fix, code=code, where=where)


class UnsupportedArchError(PtxEmulatorError, ValueError):
    """An architecture that the emulator does not execute."""

    default_code = "UNSUPPORTED_ARCH"


class CompileError(PtxEmulatorError, RuntimeError):
    """The vendor's compiler refused what a program's DSL wrote, or is missing."""

    default_code = "COMPILE"


class CacheError(PtxEmulatorError, OSError):
    """A folder of the compiled core that cannot be used, or that others may write to."""

    default_code = "CACHE"


class EmulatorError(PtxEmulatorError, RuntimeError):
    """A kernel failed a check while the emulator executed it.

    ``finding`` is the first error; ``report`` holds everything known when execution stopped.
    """

    default_code = "EMULATOR"
    default_subject = "the emulated kernel"
    default_expected = "a kernel that passes every check"
    default_fix = "correct the kernel where the message points; check='report' collects all findings"

    def __init__(
        self,
        message: str,
        finding: Finding | None = None,
        report: Report | None = None,
        *,
        fix: str | None = None,
        where: str = "",
    ) -> None:
        super().__init__(
            self.default_subject,
            expected=self.default_expected,
            got=message,
            fix=fix or self.default_fix,
            where=where,
        )
        self.finding = finding
        self.report = report

    def at(self, where: str) -> Self:
        """The same error, with its finding and its report, at a line of a declaration."""
        return _rebuild(type(self), self.got, self.finding, self.report, self.fix, where)

    def __reduce__(self):
        return _rebuild, (type(self), self.got, self.finding, self.report, self.fix, self.where)


def _rebuild(cls, message, finding, report, fix, where):
    return cls(message, finding, report, fix=fix, where=where)


class PtxSyntaxError(EmulatorError):
    """The PTX text could not be parsed; the message names the line."""

    default_code = "PTX_SYNTAX"
    default_subject = "the PTX text"
    default_expected = "PTX as ptxas accepts it"
    default_fix = "correct the line, or compile the kernel again"


class UnsupportedInstruction(EmulatorError):
    """The emulator does not execute an instruction, or this form of it. It never guesses."""

    default_code = "PTX_UNSUPPORTED"
    default_expected = "instructions that the emulator executes (listed in docs/emulator_limits.md)"
    default_fix = "write it with a supported form, or run the kernel on a GPU"


class LaunchError(EmulatorError, ValueError):
    """The launch does not fit the kernel: arguments, grid, block, cluster or shared memory."""

    default_code = "EMULATOR_LAUNCH"
    default_subject = "the emulated launch"
    default_expected = "arguments that fit the kernel and the GPU's limits"
    default_fix = "correct the argument that the message names"


class BuildError(EmulatorError):
    """The compiled core of the emulator could not be built or loaded on this machine."""

    default_code = "EMULATOR_BUILD"
    default_subject = "the emulator's compiled core"
    default_expected = "a core that this machine's C++17 compiler builds"
    default_fix = "install g++, or set CXX to a C++17 compiler"


class InternalError(EmulatorError):
    """The emulator itself failed; the kernel may be right."""

    default_code = "EMULATOR_INTERNAL"
    default_subject = "the emulator"
    default_expected = "a finding or a result"
    default_fix = "report the PTX and the launch as a bug of the emulator"
