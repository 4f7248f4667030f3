"""Statements by which CTAs of a launch, and kernels that follow one another, wait for each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .expressions import Value
from .statements import Assigns, Counter, Meets, Statement, Touches


@dataclass(frozen=True, eq=False)
class ClusterArrive(Statement):
    """Every thread of every CTA of the cluster arrives. A relaxed arrival orders no memory accesses."""

    relaxed: bool

    def counts(self) -> tuple[str, str] | None:
        return None if self.relaxed else ("syncs", "")

    def region(self) -> str | None:
        return "arrive cluster"


@dataclass(frozen=True, eq=False)
class ClusterWait(Statement):
    """Wait until every thread of the cluster has arrived."""

    def region(self) -> str | None:
        return "wait cluster"


@dataclass(frozen=True, eq=False)
class TakeTicket(Statement):
    """Count this CTA at `counter[index]`, after its writes, and set `last` if it is the last of `total`.

    The last CTA resets the counter. Each role of barrier `name` says this: the first role counts, all their
    threads meet there, and they learn the result through `buffer`.
    """

    last: Assigns
    buffer: Touches
    counter: Counter
    index: Value
    total: Value
    name: Meets

    def sets(self) -> Mapping[str, Value | None]:
        return {self.last: True}


@dataclass(frozen=True, eq=False)
class CountIn(Statement):
    """Count this CTA in at `counter[index]`, after its writes.

    The roles of barrier `name` meet there before the first of them counts.
    """

    counter: Counter
    index: Value
    name: Meets


@dataclass(frozen=True, eq=False)
class AwaitCount(Statement):
    """Wait until `total` CTAs, this one included, have counted in at `counter[index]`, and see their writes.

    Threads of the roles of barrier `name` meet there. All CTAs must run at once.
    """

    counter: Counter
    index: Value
    total: Value
    name: Meets

    def region(self) -> str | None:
        return "wait count"


@dataclass(frozen=True, eq=False)
class CountOut(Statement):
    """Count this CTA out at `counter[index]`, where it waits no more; the last of `total` resets it."""

    counter: Counter
    index: Value
    total: Value
    name: str


@dataclass(frozen=True, eq=False)
class Depend(Statement):
    """Wait for the writes of the preceding kernel. With `launch` the following kernel may start."""

    launch: bool = True


@dataclass(frozen=True, eq=False)
class LaunchDependents(Statement):
    """The following kernel may start."""
