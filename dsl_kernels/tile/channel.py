"""The two ends of a pipeline as a role sees them: a slot's data and its barriers travel as one object.

`kernel.kv.producer.acquire(use)` waits for a free slot and `slot.commit()` hands it to the readers.
`kernel.kv.reader.wait(use)` waits until the slot is full and `slot.release()` gives it back. `use` counts the
uses of the pipeline from 0; slot and parity follow from it.
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
class _RoleSlot(Slot):
    recorder: Recorder = field(repr=False)


class Filling(_RoleSlot):
    """A slot that its producer fills."""

    def commit(self) -> None:
        """Hand the slot to the readers: it is full, or will be once the copies issued into it have landed."""
        self.recorder.commit(self)


class Reading(_RoleSlot):
    """A slot that a reader reads."""

    def release(self, pending: int = 0) -> None:
        """Give the slot back, with at most `pending` groups of products in flight, none of which reads it."""
        self.recorder.release(self, pending)


@dataclass(frozen=True)
class Producer:
    """The end of a pipeline that fills its slots."""

    recorder: Recorder
    pipeline: str

    def acquire(self, use: Value, bytes: Value | None = None) -> Filling:
        """Wait until the slot of use `use` is free.

        A bulk fill announces `bytes` bytes to the slot's barrier, by default the size of the slot.
        """
        return Filling(**vars(self.recorder.acquire(self.pipeline, use, bytes)), recorder=self.recorder)

    def drain(self, uses: Value) -> None:
        """Wait, after the last of `uses` uses, until the readers have given back every slot."""
        self.recorder.drain(self.pipeline, uses)

    def slot(self, use: Value) -> Filling:
        """The slot of use `use`, which this role has acquired before."""
        return Filling(**vars(self.recorder.slot(self.pipeline, use)), recorder=self.recorder)


@dataclass(frozen=True)
class Reader:
    """The end of a pipeline that reads its slots."""

    recorder: Recorder
    pipeline: str

    def wait(self, use: Value, at: Value | None = None) -> Reading:
        """Wait until the slot of use `use` is full.

        Where CTAs of the grid fill it, `at` is this CTA's number among them.
        """
        return Reading(**vars(self.recorder.wait(self.pipeline, use, at)), recorder=self.recorder)

    def slot(self, use: Value) -> Reading:
        """The slot of use `use`, which this role has waited for before."""
        return Reading(**vars(self.recorder.slot(self.pipeline, use)), recorder=self.recorder)


@dataclass(frozen=True)
class Channel:
    """A pipeline as the body of a role sees it; only the end that the schedule gives to the role is there.

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
