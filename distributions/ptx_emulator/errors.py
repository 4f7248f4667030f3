"""Typed errors of this distribution: what `dsl_kernels.errors` is for the modules that both have."""

from __future__ import annotations

from .typed_error import TypedError
from .typed_error import did_you_mean as did_you_mean


class PtxEmulatorError(TypedError):
    """Base of every error that the emulator raises on purpose."""


BaseError = PtxEmulatorError


class InvalidArgumentError(PtxEmulatorError, ValueError):
    """A value, shape, device or range that a function does not accept."""

    default_code = "INVALID_ARGUMENT"


class ArgumentTypeError(PtxEmulatorError, TypeError):
    """An argument of the wrong Python type."""

    default_code = "ARGUMENT_TYPE"


class UnknownNameError(PtxEmulatorError, LookupError):
    """A name that does not exist; lists the near misses."""

    default_code = "UNKNOWN_NAME"


class UnsupportedArchError(PtxEmulatorError, ValueError):
    """An architecture that the emulator has no row for."""

    default_code = "UNSUPPORTED_ARCH"


class ExecutorUnavailableError(PtxEmulatorError, RuntimeError):
    """What was asked for cannot run here."""

    default_code = "EXECUTOR_UNAVAILABLE"


class ToolchainError(PtxEmulatorError, RuntimeError):
    """A compiler or tool is missing or too old."""

    default_code = "TOOLCHAIN"


class CompileError(PtxEmulatorError, RuntimeError):
    """A DSL's or the vendor's compiler refused a program, ran out of time or was killed."""

    default_code = "COMPILE"


class CacheError(PtxEmulatorError, OSError):
    """A folder that cannot be read or written."""

    default_code = "CACHE"
