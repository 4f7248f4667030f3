"""The two ends of a pipeline, as a role holds them: data and the barriers that guard it travel as one.

`kernel.kv.producer.acquire(use)` waits for a free slot, `slot.commit()` hands it on; `kernel.kv.reader.wait(use)` waits until
it is filled, `slot.release()` gives it back. `use` is the running number of the use, from which slot and parity follow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn

from ..errors import DeclarationError
from .expressions import Value
from .memory import Slot

if TYPE_CHECKING:
    from .lang import Pipeline
    from .recorder import Recorder


@dataclass(frozen=True, eq=False)
class _Held(Slot):
    recorder: Recorder = field(repr=False)


class Filling(_Held):
    """A slot that its producer fills."""

    def commit(self) -> None:
        """The slot is filled, or will be when the copies issued into it are done."""
        self.recorder.commit(self)


class Reading(_Held):
    """A slot that a reader reads."""

    def release(self, pending: int = 0) -> None:
        """Done with the slot, while at most `pending` groups of products that do not read it are in flight."""
        self.recorder.release(self, pending)


@dataclass(frozen=True)
class Producer:
    """The end of a pipeline that fills its slots."""

    recorder: Recorder
    pipeline: str

    def acquire(self, use: Value, bytes: Value | None = None) -> Filling:
        """Wait until the slot of use `use` is free. A bulk fill announces `bytes`, by default the whole slot."""
        return Filling(**vars(self.recorder.acquire(self.pipeline, use, bytes)), recorder=self.recorder)

    def drain(self, uses: Value) -> None:
        """Wait, after the last of `uses` uses, until readers have given all slots back."""
        self.recorder.drain(self.pipeline, uses)

    def slot(self, use: Value) -> Filling:
        """A slot that this role has acquired, by the number of its use."""
        return Filling(**vars(self.recorder.slot(self.pipeline, use)), recorder=self.recorder)


@dataclass(frozen=True)
class Reader:
    """The end of a pipeline that reads its slots."""

    recorder: Recorder
    pipeline: str

    def wait(self, use: Value, at: Value | None = None) -> Reading:
        """Wait until use `use` is filled; where CTAs of the grid fill it, `at` is the number by which they know this one."""
        return Reading(**vars(self.recorder.wait(self.pipeline, use, at)), recorder=self.recorder)

    def slot(self, use: Value) -> Reading:
        """A slot that this role has waited for, by the number of its use."""
        return Reading(**vars(self.recorder.slot(self.pipeline, use)), recorder=self.recorder)


@dataclass(frozen=True)
class Channel:
    """A pipeline as the body of a role sees it: it has the end that the schedule gives the role.

    Raises:
        DeclarationError: the role asks for the other end.
    """

    recorder: Recorder
    pipeline: Pipeline

    @property
    def producer(self) -> Producer:
        if self.recorder.role != self.pipeline.producer:
            self._refuse(f"its producer, {self.pipeline.producer}")
        return Producer(self.recorder, self.pipeline.name)

    @property
    def reader(self) -> Reader:
        readers = [reader.role for reader in self.pipeline.readers]
        if self.recorder.role not in readers:
            self._refuse(f"a reader, {' or '.join(readers)}")
        return Reader(self.recorder, self.pipeline.name)

    def _refuse(self, expected: str) -> NoReturn:
        raise DeclarationError(
            f"pipeline {self.pipeline.name}", expected=expected, got=self.recorder.role or "the start",
            fix="take the other end of the pipeline, or correct the declaration",
        )  # fmt: skip
