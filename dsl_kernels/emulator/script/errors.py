"""What a checked program may run into besides the emulator's own errors."""

from __future__ import annotations

from ...errors import BaseError


class UnsupportedCall(BaseError, NotImplementedError):
    """A call of the driver, of the runtime or of a DSL that the emulator does not record. It never guesses."""

    default_code = "SCRIPT_UNSUPPORTED"

    def __init__(self, call: str, *, got: str = "a call of it", fix: str) -> None:
        super().__init__(
            call, expected="calls that are recorded (listed in docs/emulator.md)", got=got, fix=fix
        )

    def __reduce__(self):
        return _rebuild, (self.subject, self.got, self.fix)


def _rebuild(call, got, fix):
    return UnsupportedCall(call, got=got, fix=fix)
