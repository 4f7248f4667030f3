"""The clock's uncertainty: predictions over its rates' intervals, and the rates that decide a choice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..calls import Call
from ..variants import Variant
from . import predict
from .rates import Rates, bounds, sources, with_one

# Variants whose times differ by less tie, as in the registry.
TIE = 1.01


@dataclass(frozen=True)
class Interval:
    """Microseconds of a launch: every rate in the middle, at the best, and at the worst of its interval."""

    us: float
    best: float
    worst: float


@dataclass(frozen=True)
class Doubt:
    """A rate whose value decides a choice among variants.

    Attributes:
        rate: its name; "" where no single rate changes the choice, but all of them together do.
        value: its value in the middle of its interval.
        end: its value at the end of the interval where the choice changes.
        chosen: the fastest variant there.
        faster: how many times as fast it is there as the variant chosen in the middle.
        source: where the rate comes from.
        item: the item of `benchmarks/clock_rates.py --only` that measures it; "" where there is none yet.
    """

    rate: str
    value: float
    end: float
    chosen: str
    faster: float
    source: str
    item: str


def interval(call: Call, variant: Variant) -> Interval:
    """A prediction at the middle and at both ends of the rates' intervals."""
    best, worst = bounds(call.row)
    us = [predict(call, variant, rates).us for rates in (None, best, worst)]
    return Interval(us[0], min(us), max(us))


def doubts(call: Call, variants: Sequence[Variant]) -> list[Doubt]:
    """The rates that can change the choice among variants, the most important one first.

    Empty where the choice is the same at both ends of all intervals.
    """
    gpu, known = call.row, sources(call.row)
    chosen = _order(call, variants, None)[0][1]
    ends = {
        end: _turned(call, variants, chosen, rates)
        for end, rates in zip(("best", "worst"), bounds(gpu), strict=True)
    }
    if not any(ends.values()):
        return []
    single = []
    for name, rate in known.items():
        for end in ("best", "worst"):
            value = getattr(rate, end)
            if value is None or value == rate.value:
                continue
            if turned := _turned(call, variants, chosen, with_one(gpu, name, end)):
                single.append(Doubt(name, rate.value, value, *turned, rate.source, rate.item))
    together = [Doubt("", 0.0, 0.0, *turned, "", "") for turned in ends.values() if turned]
    return sorted(single or together[:1], key=lambda doubt: -doubt.faster)


def _order(call: Call, variants: Sequence[Variant], rates: Rates | None) -> list[tuple[float, str]]:
    return sorted((predict(call, variant, rates).us, variant.id) for variant in variants)


def _turned(call: Call, variants: Sequence[Variant], chosen: str, rates: Rates) -> tuple[str, float] | None:
    """The variant that these rates make faster than the chosen one, and how many times as fast; or None."""
    order = _order(call, variants, rates)
    us = next(us for us, name in order if name == chosen)
    return (order[0][1], us / order[0][0]) if us > TIE * order[0][0] else None
