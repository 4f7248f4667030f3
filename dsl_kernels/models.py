"""Predicted times of variants, by the clock's cached walks (`clock.cached`) or by the cost model.

A model that fails must not fail a call: it gives None, and warns once.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from . import policies, programs
from .arch import get_arch, gpu_row
from .tile.cost import predict as predict_cost
from .tile.counting import Counted, counts_of
from .tile.lang import Schedule
from .variants import Variant

if TYPE_CHECKING:
    from .calls import Call

log = logging.getLogger(__name__)
CLOCK, COST_MODEL = "clock", "cost model"

# Microseconds (None if the model fails), and the term that bounds them.
Predicted = tuple[float | None, str]


def predict(call: Call, variants: Sequence[Variant], dims: Mapping[str, int]) -> tuple[str, list[Predicted]]:
    """The model that ranks these variants (the clock if it knows all of them), and its predictions."""
    if _walked(variants):
        predictions = [prediction(call, variant, dims, CLOCK) for variant in variants]
        if all(us is not None for us, _ in predictions):
            return CLOCK, predictions
    return COST_MODEL, [prediction(call, variant, dims, COST_MODEL) for variant in variants]


def prediction(call: Call, variant: Variant, dims: Mapping[str, int], model: str) -> Predicted:
    """A model's prediction of a variant for a call of these dims."""
    on = (call.arch, call.gpu, call.sms)
    of = (call.op, on, tuple(sorted(variant.knobs.items())), call.form, tuple(sorted(dims.items())))
    return _by_clock(variant.id, *of) if model == CLOCK else _by_cost(*of)


def clear() -> None:
    """Forget predictions, schedules and counts."""
    _by_cost.cache_clear()
    _by_clock.cache_clear()
    _read.cache_clear()


def _walked(variants: Sequence[Variant]) -> bool:
    """Whether there are walks of all of the variants, and of their modules."""
    from .clock import cached

    try:
        return bool(variants) and cached.known(variants)
    except Exception as error:
        _warn("walks", f"the clock's walks cannot be used, the cost model ranks: {error}")
        return False


@lru_cache(maxsize=4096)
def _by_cost(
    op: str,
    on: tuple[str, str, int],
    knobs: tuple[tuple[str, Any], ...],
    form: str,
    dims: tuple[tuple[str, int], ...],
) -> tuple[float | None, str]:
    """Predicted microseconds and what bounds them; twins of several backends share one prediction.

    `on` is the architecture, name and SMs of a call.
    A model that fails must not fail the call: None, with a warning once an operation.
    """
    program, policy, gpu, sizes = programs.get(op), policies.get(op), gpu_row(*on), dict(dims)
    try:
        sizes.update(policy.launch(SimpleNamespace(**dict(knobs)), sizes, gpu).dims)
        schedule, counted = _read(op, gpu.arch.name, knobs)
        cost = predict_cost(program, policy, dict(knobs), schedule, gpu, form, sizes, counted)
        if not math.isfinite(cost.us):
            raise ArithmeticError(f"predicted {cost.us} us")
        return cost.us, cost.bound
    except Exception as error:
        _warn(
            op,
            f"the cost model of {op} failed for {form} {sizes} ({type(error).__name__}: {error}); "
            "variants without a prediction rank last, by name",
        )
        return None, ""


@lru_cache(maxsize=4096)
def _by_clock(
    variant: str,
    op: str,
    on: tuple[str, str, int],
    knobs: tuple[tuple[str, Any], ...],
    form: str,
    dims: tuple[tuple[str, int], ...],
) -> tuple[float | None, str]:
    """The prediction by the clock's cached walks of a variant; None, with a warning, if it fails."""
    from .clock import cached, rates_of, share_of

    gpu, sizes, values = gpu_row(*on), dict(dims), dict(knobs)
    try:
        schedule, counted = _read(op, gpu.arch.name, knobs)
        if counted is None:
            raise LookupError(f"the policy of {op} counts for its text")
        rates = rates_of(gpu)
        _, share = share_of(op, form, gpu, values, sizes, schedule, counted, rates)
        us, bound = cached.took(gpu.arch.name, variant, share, rates)
        if not math.isfinite(us):
            raise ArithmeticError(f"predicted {us} us")
        return us, bound
    except Exception as error:
        _warn(
            f"clock of {op}",
            f"the clock failed for {variant} {sizes} ({type(error).__name__}: {error}); the cost model ranks",
        )
        return None, ""


def _warn(of: str, text: str) -> None:
    """Warn once about each subject."""
    if of not in _warned:
        _warned.add(of)
        log.warning("%s", text)


_warned: set[str] = set()


@lru_cache(maxsize=1024)
def _read(op: str, arch_name: str, knobs: tuple[tuple[str, Any], ...]) -> tuple[Schedule, Counted | None]:
    """A variant's declared schedule, checked when it was generated, and its text's counts, if used."""
    program, values, arch = programs.get(op), dict(knobs), get_arch(arch_name)
    schedule = program.declare(SimpleNamespace(**values), arch)
    return schedule, None if policies.get(op).counts else counts_of(program, values, arch)
