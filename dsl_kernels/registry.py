"""Which variant serves a call, and why.

The order is: an explicit argument, the environment's override, the tuned table of this GPU for the call's shape
bucket, the cost model among applicable variants, otherwise an error that lists every refusal. Nothing ever falls
back to another dtype or to the reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from . import env, programs, variants
from .arch import get_arch
from .errors import AmbiguousSelectionError, ArtifactError, InvalidArgumentError, NoVariantError
from .variants import Variant

TUNED = Path(__file__).resolve().parent / "tuned"
TUNED_SCHEMA = 1
# Predicted times closer than this are a tie, not a ranking.
TIE = 1e-9


@dataclass(frozen=True)
class Call:
    """What selection looks at: the operation, its form, the architecture, the GPU and the runtime dims.

    Attributes:
        form: variant of the problem ("decode", "prefill", "bf16", "fp8", "default").
        dims: runtime dims by name, as `problems.base.bind_dims` returns them.
        gpu: name that finds the tuned table, e.g. "NVIDIA H200"; "" skips it.
    """

    op: str
    form: str
    arch: str
    dims: Mapping[str, int]
    gpu: str = ""
    backend: str | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        return (self.op, self.form, self.arch, self.gpu, self.backend, tuple(self.dims.items()))


@dataclass(frozen=True)
class Selection:
    """The chosen variant, the launch dims it is to run with, and the rule that chose it."""

    variant: Variant
    launch: dict[str, int]
    rule: str


@dataclass
class Candidate:
    """One row of `explain`: a variant, why it was refused or how it ranks."""

    variant: Variant
    refusal: str | None = None
    predicted_us: float | None = None
    bound: str = ""
    tuned_us: float | None = None
    chosen: bool = False


@dataclass
class Explanation:
    """The whole decision: every candidate, the bucket, the tuned entry if one decided, and the result or the error."""

    call: Call
    bucket: dict[str, int]
    candidates: list[Candidate]
    tuned: Mapping[str, Any] | None = None
    selection: Selection | None = None
    error: Exception | None = field(default=None, repr=False)

    def best_by_backend(self) -> dict[str, tuple[str, float, float]]:
        """DSL -> (its fastest measured variant, microseconds, times the fastest of all), the fastest DSL first."""
        measured = sorted(
            (c.tuned_us, c.variant.id, c.variant.backend)
            for c in self.candidates
            if c.tuned_us is not None and c.refusal is None
        )
        found: dict[str, tuple[str, float, float]] = {}
        for us, variant, backend in measured:
            found.setdefault(backend, (variant, us, us / measured[0][0]))
        return found


_selected: dict[tuple[Any, ...], Selection] = {}
# Calls whose selection is remembered; calls of every length would otherwise add up.
SELECTED_LIMIT = 4096


def select(call: Call, variant: str | None = None) -> Selection:
    """The variant for a call.

    Args:
        variant: an id to use regardless of rank; it must still accept the call.

    Raises:
        NoVariantError: nothing applies, or the variant asked for refuses; lists every refusal.
        AmbiguousSelectionError: two variants rank equal.
    """
    forced = variant or env.FORCE.get().get(call.op)
    key = (*call.key, forced)
    found = _selected.get(key)
    if found is None:
        explanation = explain(call, forced, "argument" if variant else "DSL_KERNELS_FORCE", predict=False)
        if explanation.error is not None:
            raise explanation.error
        found = explanation.selection
        if found is None:
            raise NoVariantError(
                call.op, expected="a selection", got="none", fix="report this call: explain() found neither"
            )
        if len(_selected) >= SELECTED_LIMIT:
            _selected.clear()
        _selected[key] = found
    return found


def clear() -> None:
    """Forget cached selections and tuned tables (after the generated set or a tuned file changed)."""
    _selected.clear()
    _table.cache_clear()
    _predict.cache_clear()


def explain(
    call: Call, variant: str | None = None, forced_by: str = "argument", *, predict: bool = True
) -> Explanation:
    """Every candidate with its refusal or its predicted and tuned time, and the decision.

    Args:
        variant: the override to apply, and `forced_by` what it came from.
        predict: run the cost model also where a tuned entry decides; selection itself does not wait for it.
    """
    program = programs.get(call.op)
    sizes = bucket(call)
    rows = [Candidate(v, refusal(call, v)) for v in variants.variants(call.op)]
    result = Explanation(call, sizes, rows)
    table = tuned_table(call.gpu) if call.gpu else []
    for entry in table:
        if _applies(entry, call, sizes):
            for row in rows:
                row.tuned_us = entry.get("us", {}).get(row.variant.id, row.tuned_us)
            result.tuned = entry
    open_rows = [row for row in rows if row.refusal is None]
    named = variant or (result.tuned or {}).get("variant")
    if predict or all(row.variant.id != named for row in open_rows):
        for row in open_rows:
            row.predicted_us, row.bound = _predict(
                call.op, call.arch, _frozen(row.variant.knobs), call.form, _frozen(_assumed(call, sizes))
            )
        open_rows.sort(key=lambda row: (row.predicted_us or 0.0, row.variant.id))
    try:
        chosen, rule, launch = _decide(call, rows, open_rows, result.tuned, variant, forced_by)
    except (NoVariantError, AmbiguousSelectionError) as error:
        result.error = error
        return result
    chosen.chosen = True
    dims = dict(call.dims)
    computed = (
        program.launch(SimpleNamespace(**chosen.variant.knobs), dims, get_arch(call.arch))
        if program.launch
        else {}
    )
    result.selection = Selection(chosen.variant, {**computed, **launch}, rule)
    return result


def _decide(
    call: Call,
    rows: list[Candidate],
    open_rows: list[Candidate],
    tuned: Mapping[str, Any] | None,
    variant: str | None,
    forced_by: str,
) -> tuple[Candidate, str, dict[str, int]]:
    if variant is not None:
        row = next((r for r in rows if r.variant.id == variant), None)
        if row is None:
            raise NoVariantError(
                call.op,
                expected="a generated variant",
                got=repr(variant),
                fix="list them with `python -m dsl_kernels list`",
            )
        if row.refusal is not None:
            raise NoVariantError(
                variant,
                expected="a call that it accepts",
                got=row.refusal,
                fix=f"drop the {forced_by} override",
            )
        return row, forced_by, {}
    if not open_rows:
        listed = "; ".join(f"{row.variant.id}: {row.refusal}" for row in rows) or "no variant was generated"
        raise NoVariantError(
            f"{call.op} {call.form} on {call.arch} with {dict(call.dims)}",
            expected="one applicable variant",
            got=f"refusals: {listed}",
            fix="call with sizes a variant was built for, or widen its knobs and run `make generate`",
        )
    if tuned is not None:
        row = next((r for r in open_rows if r.variant.id == tuned["variant"]), None)
        if row is not None:
            return row, "tuned table", dict(tuned.get("launch", {}))
    first = open_rows[0]
    if len(open_rows) > 1 and abs((open_rows[1].predicted_us or 0.0) - (first.predicted_us or 0.0)) < TIE:
        tied = [r for r in open_rows if abs((r.predicted_us or 0.0) - (first.predicted_us or 0.0)) < TIE]
        if len({r.variant.backend for r in tied}) == len(tied):
            # One of each DSL: the model sees no DSL, so any is right, and the choice only has to be fixed.
            return first, "cost model, first DSL by name", {}
        raise AmbiguousSelectionError(
            f"{call.op} with {dict(call.dims)}",
            expected="one best variant",
            got="equal predictions for " + ", ".join(r.variant.id for r in tied),
            fix="name one with variant=, record a tuned entry, or make the programs' costs differ",
        )
    return first, "cost model" if len(open_rows) > 1 else "only applicable variant", {}


def refusal(call: Call, variant: Variant) -> str | None:
    """Why a variant cannot serve a call; None where it can."""
    if variant.arch != call.arch:
        return f"built for {variant.arch}, the call runs on {call.arch}"
    if call.backend is not None and variant.backend != call.backend:
        return f"backend {variant.backend}, asked for {call.backend}"
    declared = {
        knob.name for knob in programs.get(call.op).knobs if not knob.archs or call.arch in knob.archs
    }
    if changed := sorted(declared ^ set(variant.knobs)):
        return f"generated by another version of the declaration (knob {changed[0]}): run `make generate`"
    facts = {**call.dims, "form": call.form}
    for guard in programs.get(call.op).guards:
        reason = guard.refuse(variant.knobs, facts)
        if reason is not None:
            return reason
    return None


def bucket(call: Call) -> dict[str, int]:
    """The sizes that decide, rounded up to powers of two."""
    sizes = programs.get(call.op).bucket(call.form, call.dims)
    return {name: 1 << max(0, value - 1).bit_length() for name, value in sizes.items()}


def _assumed(call: Call, sizes: Mapping[str, int]) -> dict[str, int]:
    """Dims for the cost model: the bucket's sizes over the call's own, with derived ones that follow them."""
    dims = {**call.dims, **sizes}
    if "max_len" in sizes and "stride" in dims:
        dims["stride"] = max(dims["stride"], sizes["max_len"])
    return dims


def _frozen(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(values.items()))


@lru_cache(maxsize=4096)
def _predict(
    op: str, arch_name: str, knobs: tuple[tuple[str, Any], ...], form: str, dims: tuple[tuple[str, int], ...]
) -> tuple[float, str]:
    """Predicted microseconds and what bounds them; twins of several backends share one prediction."""
    from .tile.cost import predict

    program, arch, values, sizes = programs.get(op), get_arch(arch_name), dict(knobs), dict(dims)
    if program.launch:
        sizes.update(program.launch(SimpleNamespace(**values), sizes, arch))
    cost = predict(program, values, arch, form, sizes)
    return cost.us, cost.bound


def slug(gpu: str) -> str:
    """File stem of a GPU's tuned table."""
    return re.sub(r"[^a-z0-9]+", "_", gpu.lower()).strip("_")


@lru_cache(maxsize=32)
def _table(path: Path) -> tuple[Mapping[str, Any], ...]:
    try:
        content = json.loads(path.read_text())
        if content["schema"] != TUNED_SCHEMA:
            raise InvalidArgumentError(
                str(path),
                expected=f"schema {TUNED_SCHEMA}",
                got=str(content["schema"]),
                fix="record it again with `bench --tune`",
            )
        return tuple(content["entries"])
    except (ValueError, KeyError) as error:
        raise ArtifactError(
            str(path),
            expected="a tuned table",
            got=f"{type(error).__name__}: {error}",
            fix="restore it or record it again",
        ) from error


def tuned_table(gpu: str) -> tuple[Mapping[str, Any], ...]:
    """Entries recorded on this GPU; empty when none were."""
    path = TUNED / f"{slug(gpu)}.json"
    return _table(path) if path.exists() else ()


def _applies(entry: Mapping[str, Any], call: Call, sizes: Mapping[str, int]) -> bool:
    return (
        entry["op"] == call.op
        and entry["form"] == call.form
        and entry["bucket"] == dict(sizes)
        and (call.backend is None or call.backend == variants.get(entry["variant"]).backend)
    )
