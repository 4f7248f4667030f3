"""Typed errors. Every message names the subject, what was expected, what came and how to fix it.

A caller can catch one class per kind of failure, or `DslKernelError` for all of them. Each error
carries a stable `code` (its class by default, the violated rule for constraint errors) so that tests
and tools never match on prose.
"""

from __future__ import annotations

from typing import Self


class DslKernelError(Exception):
    """Base of every error the library raises on purpose.

    Args:
        subject: The argument, variant or file that is at fault.
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
        """The same error, with the line of the declaration."""
        return _rebuild(type(self), self.subject, self.expected, self.got, self.fix, self.code, where)

    def __reduce__(self):
        """Pickle with the keyword-only arguments, so that errors survive the way from a compile worker."""
        return _rebuild, (type(self), self.subject, self.expected, self.got, self.fix, self.code, self.where)


def _rebuild(cls, subject, expected, got, fix, code, where):
    return cls(subject, expected=expected, got=got, fix=fix, code=code, where=where)


def did_you_mean(name: str, known: list[str]) -> str:
    """A short hint: the closest of the known names, or the first twenty if none is close."""
    import difflib

    close = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    if close:
        return "did you mean " + ", ".join(close) + "?"
    return "known: " + ", ".join(sorted(known)[:20])


class InvalidArgumentError(DslKernelError, ValueError):
    """A value, shape, stride, device or range that the operation does not accept."""

    default_code = "INVALID_ARGUMENT"


class ArgumentTypeError(DslKernelError, TypeError):
    """An argument of the wrong Python type or tensor dtype."""

    default_code = "ARGUMENT_TYPE"


class DeclarationError(DslKernelError, ValueError):
    """A tile program that contradicts itself (an author's mistake, not a caller's)."""

    default_code = "DECLARATION"


class ConstraintError(DslKernelError, ValueError):
    """A variant that its architecture cannot hold; `code` is the violated rule."""

    default_code = "CONSTRAINT"


class TemplateError(DslKernelError, RuntimeError):
    """A template that does not spell what the declaration says, or uses an undefined name."""

    default_code = "TEMPLATE"


class ScheduleError(DslKernelError, RuntimeError):
    """A tile program that deadlocks or misuses a pipeline when it is interpreted."""

    default_code = "SCHEDULE"


class UnsupportedArchError(DslKernelError, ValueError):
    """An architecture that the project has no row for."""

    default_code = "UNSUPPORTED_ARCH"


class NoVariantError(DslKernelError, LookupError):
    """No variant accepts the call; the message groups the refusals by reason, the nearest first."""

    default_code = "NO_VARIANT"


class UnknownNameError(DslKernelError, LookupError):
    """A variant, operation, workload or executor that does not exist; lists the near misses."""

    default_code = "UNKNOWN_NAME"


class ExecutorUnavailableError(DslKernelError, RuntimeError):
    """The executor asked for cannot run here (no GPU, wrong architecture, missing package)."""

    default_code = "EXECUTOR_UNAVAILABLE"


class ToolchainError(DslKernelError, RuntimeError):
    """A compiler or tool is missing or too old."""

    default_code = "TOOLCHAIN"


class CompileError(DslKernelError, RuntimeError):
    """The DSL or the vendor's compiler refused a variant, ran out of time or was killed."""

    default_code = "COMPILE"


class CacheError(DslKernelError, OSError):
    """The artifact cache cannot be read or written (full disk, read-only folder)."""

    default_code = "CACHE"


class ArtifactError(DslKernelError, RuntimeError):
    """A compiled artifact that is corrupt, incomplete or of another version."""

    default_code = "ARTIFACT"


class BundleError(ArtifactError):
    """A bundle that is missing, damaged, for another architecture, or from other sources than the library."""

    default_code = "BUNDLE"


class MissingArtifactError(DslKernelError, RuntimeError):
    """A variant is not compiled and compiling at run time is switched off."""

    default_code = "MISSING_ARTIFACT"


class LaunchError(DslKernelError, RuntimeError):
    """The driver refused a launch, or the operands do not fit the kernel's parameters."""

    default_code = "LAUNCH"


class ResidencyError(LaunchError):
    """A launch of more CTAs than run at once on the device, though they wait for one another."""

    default_code = "LAUNCH_RESIDENCY"


class ExchangeError(DslKernelError, RuntimeError):
    """A rank of a process group did not join an exchange of the others, or the connection broke."""

    default_code = "EXCHANGE"


class WrongResultError(DslKernelError, RuntimeError):
    """A variant whose outputs differ from the reference by more than the problem's tolerances."""

    default_code = "WRONG_RESULT"
