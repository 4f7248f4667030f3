"""What a walk was held up by: the critical path through its tasks and units, from its end back to its begin."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

from .machine import Cause, Span, Task
from .sm import Sm


class Step(NamedTuple):
    """A stretch of the path: a role that issues, or a unit that works for it."""

    role: str
    unit: str


def critical(sm: Sm) -> dict[Step, float]:
    """Shares of the time of a walk that was kept, by what the end waited for then, the largest first.

    Where a role went on when something came, the path goes on with the role that had asked for it, from then on.
    """
    found: dict[Step, float] = defaultdict(float)
    task: Task | None = max(sm.tasks, key=lambda each: each.now)
    at = whole = task.now if task else 0.0
    while task is not None and at > 0:
        span = _before(task, at)
        if span is None:
            cause, unit = task.after, "next CTA"
        else:
            cause, unit = span.cause, span.unit
        if cause is None:
            since = span.begin if span else 0.0
            found[Step(task.name, unit)] += at - since
            at = since
            continue
        task, since = _asked(cause, at)
        found[Step(task.name, cause.unit)] += at - since
        at = since
    return dict(sorted(((step, clocks / whole) for step, clocks in found.items()), key=lambda item: -item[1]))


def _before(task: Task, at: float) -> Span | None:
    """The last part of a task's time that begins before then."""
    place = bisect_left(task.spans, at, key=lambda span: span.begin)
    return task.spans[place - 1] if place else None


def _asked(cause: Cause, at: float) -> tuple[Task, float]:
    """The role that asked for what came, and when: no later than it came."""
    return cause.task, min(cause.since, at)
