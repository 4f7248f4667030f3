"""Statements by which a CTA does the work of others that have not begun (cluster launch control, sm_100a on)."""

from __future__ import annotations

from dataclasses import dataclass

from .memory import Slot, View
from .statements import Declares, Statement


@dataclass(frozen=True, eq=False)
class AskNext(Statement):
    """Ask for a CTA of the grid, which then does not begin; the answer of 16 bytes fills a slot, by byte count.

    After an answer that there is none a CTA asks no more. The grid has one axis.
    """

    slot: Slot
    target: View


@dataclass(frozen=True, eq=False)
class ReadNext(Statement):
    """The number of the CTA that an answer gives, or -1 where all have begun."""

    name: Declares
    source: View
