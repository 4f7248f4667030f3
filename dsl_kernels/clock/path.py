"""The critical path of a walk, through its tasks and units, from its end back to its beginning."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from typing import NamedTuple

from .machine import Cause, Span, Task
from .sm import Sm


class Step(NamedTuple):
    """A part of the path: a role, and the unit that served it (or its own issue)."""

    role: str
    unit: str


def critical(sm: Sm) -> dict[Step, float]:
    """The fractions of a kept walk's time on its critical path, by step, the largest first.

    Where a role waited for an event, the path continues with the role that had asked for it, at the time of
    its request.
    """
    clocks_of: dict[Step, float] = defaultdict(float)
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
            clocks_of[Step(task.name, unit)] += at - since
            at = since
            continue
        task, since = _asked(cause, at)
        clocks_of[Step(task.name, cause.unit)] += at - since
        at = since
    shares = ((step, clocks / whole) for step, clocks in clocks_of.items())
    return dict(sorted(shares, key=lambda item: -item[1]))


def _before(task: Task, at: float) -> Span | None:
    """The last span of a task that begins before `at`."""
    place = bisect_left(task.spans, at, key=lambda span: span.begin)
    return task.spans[place - 1] if place else None


def _asked(cause: Cause, at: float) -> tuple[Task, float]:
    """The task that asked for the event, and when: no later than the event."""
    return cause.task, min(cause.since, at)
