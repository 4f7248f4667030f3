"""Seeded fuzzing of every interface of the library: outcomes of random input, counted.

Each module of this package attacks one interface with functions `fuzz_<what>(count, seed, ...) -> Counts`. An
input may be accepted, or refused with a typed error. Anything else is a defect: an error of another class, a
call that takes too long, a wrong answer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from dsl_kernels.errors import DslKernelError
from ptx_emulator import PtxEmulatorError

OURS = r"/(?:dsl_kernels|ptx_emulator)/"
TYPED = (DslKernelError, PtxEmulatorError)
"""The classes of a refusal. The emulator is independent of the library, and has its own base class."""

KEPT = 20
"""Defects kept as text; further ones are only counted."""

WAITED = 10.0
"""A call is slow by its own CPU time, as the machine may be shared, or by this many limits of wall time."""


@dataclass
class Counts:
    """The outcomes of a number of calls.

    Attributes:
        runs: calls in all.
        typed: calls refused with a typed error.
        untyped: calls that ended in any other exception.
        slow: calls that took longer than their limit.
        mismatches: calls with a wrong answer.
        examples: the first defects as text, one per line: kind, label, what came.
    """

    runs: int = 0
    typed: int = 0
    untyped: int = 0
    slow: int = 0
    mismatches: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def defects(self) -> int:
        """Calls with an outcome that none may have."""
        return self.untyped + self.slow + self.mismatches

    def call(
        self,
        label: str,
        function: Callable[..., Any],
        *args: Any,
        expect: Callable[[Any], bool | None] | None = None,
        limit_s: float = 1.0,
        **kwargs: Any,
    ) -> Any:
        """Call a function and add the outcome.

        Args:
            label: names the call in an example, precisely enough to repeat it with the seed.
            function: called with the remaining arguments.
            expect: judges the answer: False or an AssertionError is a mismatch.
            limit_s: CPU seconds that the call may take; `float("inf")` for no limit.

        Returns:
            The function's result, or None if it raised.
        """
        self.runs += 1
        result, raised = None, None
        wall, own = time.perf_counter(), time.process_time()
        try:
            result = function(*args, **kwargs)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raised = error
        wall, own = time.perf_counter() - wall, time.process_time() - own
        if min(wall, own) > limit_s or wall > WAITED * limit_s:
            self.slow += 1
            self.note("slow", label, f"{wall:.1f} s, {own:.1f} s of them its own")
        if isinstance(raised, TYPED):
            self.typed += 1
        elif raised is not None:
            self.untyped += 1
            self.note("untyped", label, f"{type(raised).__name__}: {raised}{_site(raised)}")
        elif expect is not None:
            self.judge(label, expect, result)
        return result

    def judge(self, label: str, expect: Callable[[Any], bool | None], result: Any) -> None:
        """Count a mismatch when `expect(result)` is False or raises AssertionError."""
        try:
            wrong, what = expect(result) is False, "another answer than expected"
        except AssertionError as error:
            wrong, what = True, str(error) or "another answer than expected"
        if wrong:
            self.mismatches += 1
            self.note("mismatch", label, what)

    def note(self, kind: str, label: str, what: str) -> None:
        """Keep one defect as text, if few were kept so far."""
        if len(self.examples) < KEPT:
            self.examples.append(" ".join(f"{kind}: {label}: {what}".split())[:400])

    def add(self, other: Counts) -> Counts:
        """Add the counts of another run, and return the sum."""
        for name in ("runs", "typed", "untyped", "slow", "mismatches"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.examples = (self.examples + other.examples)[:KEPT]
        return self

    def numbers(self) -> dict[str, int]:
        """The counts without the examples, as they are recorded."""
        return {name: value for name, value in asdict(self).items() if name != "examples"}


def _site(error: BaseException) -> str:
    """Where an exception came from: the last frame in the library or its emulator, or else the last one."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if re.search(OURS, frame.filename)] or frames
    return f" at {re.split(OURS, ours[-1].filename)[-1]}:{ours[-1].lineno}" if ours else ""
