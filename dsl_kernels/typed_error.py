"""The common part of typed errors: the library and the emulator's distribution derive a base each."""

from __future__ import annotations

from typing import Self


class TypedError(Exception):
    """An error that names the subject, what was expected, what came and how to fix it.

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
