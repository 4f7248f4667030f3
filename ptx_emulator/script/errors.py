"""Errors of checked programs, besides the emulator's own."""

from __future__ import annotations

from typing import Self

from ..errors import PtxEmulatorError


class UnsupportedCall(PtxEmulatorError, NotImplementedError):
    """The emulator does not record a call of the driver, of the runtime or of a DSL. It never guesses."""

    default_code = "SCRIPT_UNSUPPORTED"

    def __init__(self, call: str, *, got: str = "a call of it", fix: str, where: str = "") -> None:
        super().__init__(
            call,
            expected="calls that are recorded (listed in docs/emulator_runs.md)",
            got=got,
            fix=fix,
            where=where,
        )

    def at(self, where: str) -> Self:
        """The same error at a line of a declaration."""
        return type(self)(self.subject, got=self.got, fix=self.fix, where=where)

    def __reduce__(self):
        return _rebuild, (self.subject, self.got, self.fix, self.where)


def _rebuild(call, got, fix, where):
    return UnsupportedCall(call, got=got, fix=fix, where=where)
