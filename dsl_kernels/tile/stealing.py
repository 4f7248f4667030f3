"""Statements that take over the work of CTAs not yet started (cluster launch control, from sm_100a on)."""

from __future__ import annotations

from dataclasses import dataclass

from .memory import Slot, View
from .statements import Declares, Statement


@dataclass(frozen=True, eq=False)
class AskNext(Statement):
    """Ask for a CTA that has not started, and then never will; the 16-byte answer fills a slot.

    The slot's barrier counts the answer's bytes. A CTA must not ask again after the answer "none left". The
    grid has one axis.
    """

    slot: Slot
    target: View


@dataclass(frozen=True, eq=False)
class ReadNext(Statement):
    """The number of the CTA in an answer, or -1 if none was left."""

    name: Declares
    source: View
