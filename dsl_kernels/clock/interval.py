"""How sure the clock is: a prediction at both ends of its rates' intervals, and the rates on which a choice hangs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..calls import Call
from ..variants import Variant
from . import predict
from .rates import Rates, bounds, sources, with_one

# Choices that lose less are none: the registry takes times so close as a tie.
TIE = 1.01


@dataclass(frozen=True)
class Interval:
    """Microseconds of a launch, with every rate in the middle, at the best, and at the worst end of its interval."""

    us: float
    best: float
    worst: float


@dataclass(frozen=True)
class Doubt:
    """A rate on which a choice hangs.

    Attributes:
        rate: its name, "" where no rate alone turns the choice, but all of them together do.
        end: its value at the end of its interval where the choice turns.
        chosen: the variant there, which is `faster` times as fast as the one chosen in the middle.
        source: where the rate comes from.
        item: what `benchmarks/clock_rates.py --only` measures it by; "" where nothing does yet.
    """

    rate: str
    value: float
    end: float
    chosen: str
    faster: float
    source: str
    item: str


def interval(call: Call, variant: Variant) -> Interval:
    """A prediction with its interval."""
    best, worst = bounds(call.row)
    us = [predict(call, variant, rates).us for rates in (None, best, worst)]
    return Interval(us[0], min(us), max(us))


def doubts(call: Call, variants: Sequence[Variant]) -> list[Doubt]:
    """The rates that alone turn the choice among variants, the one that turns it most first.

    Empty where the choice holds at both ends of all intervals.
    """
    gpu, known = call.row, sources(call.row)
    chosen = _order(call, variants, None)[0][1]
    ends = {
        end: _turned(call, variants, chosen, rates)
        for end, rates in zip(("best", "worst"), bounds(gpu), strict=True)
    }
    if not any(ends.values()):
        return []
    found = []
    for name, rate in known.items():
        for end in ("best", "worst"):
            value = getattr(rate, end)
            if value is None or value == rate.value:
                continue
            if turned := _turned(call, variants, chosen, with_one(gpu, name, end)):
                found.append(Doubt(name, rate.value, value, *turned, rate.source, rate.item))
    together = [Doubt("", 0.0, 0.0, *turned, "", "") for turned in ends.values() if turned]
    return sorted(found or together[:1], key=lambda doubt: -doubt.faster)


def _order(call: Call, variants: Sequence[Variant], rates: Rates | None) -> list[tuple[float, str]]:
    return sorted((predict(call, variant, rates).us, variant.id) for variant in variants)


def _turned(call: Call, variants: Sequence[Variant], chosen: str, rates: Rates) -> tuple[str, float] | None:
    """Another variant that is the fastest by these rates, and how many times as fast as the chosen one."""
    order = _order(call, variants, rates)
    us = next(us for us, name in order if name == chosen)
    return (order[0][1], us / order[0][0]) if us > TIE * order[0][0] else None
