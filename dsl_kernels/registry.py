"""Which variant serves a call, and why.

In this order: an explicit argument; the environment's override; the point of this GPU's tuned tables (the
user's, then the shipped one) that has the call's sizes; the nearest points together with a model; the model
alone; else an error that lists the refusals with their reasons. If this GPU has no point of an operation,
those of its most similar sibling stand in, with scaled times. The model is the clock if it has cached walks
of every candidate (`clock.cached`), else the cost model. A ranking never fails a call: with equal
predictions, or if the cost model fails, the variants' names decide. Nothing ever falls back to another dtype
or to the reference.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import takewhile
from types import SimpleNamespace
from typing import Any

from . import env, measured, models, policies, programs, variants
from .arch import GpuSpec
from .arguments import checked, require_known
from .calls import Call as Call
from .calls import assumed as assumed
from .calls import bucket as bucket
from .calls import deciding as deciding
from .errors import DslKernelError, NoVariantError, UnknownNameError
from .measured import Near
from .tile.lang import PROBE
from .variants import Variant

# Predicted times closer than this share are a tie: walks of one kernel differ by as much from launch to
# launch.
TIES = {models.CLOCK: 0.01, models.COST_MODEL: 1e-9}
# An error spells out this many groups of refusals, and in each this many characters of differing reasons.
REFUSALS_SHOWN = 8
REASONS_SHOWN = 100


@dataclass(frozen=True)
class Selection:
    """The chosen variant, the launch dims that it runs with, and the rule that chose it."""

    variant: Variant
    launch: dict[str, int]
    rule: str


@dataclass
class Candidate:
    """One row of `explain`: a variant, and why it was refused or how it ranks.

    `tuned_us` was measured at the call's own sizes. `estimated_us` is derived from measured points near them,
    or from points of a sibling.
    """

    variant: Variant
    refusal: str | None = None
    predicted_us: float | None = None
    bound: str = ""
    tuned_us: float | None = None
    estimated_us: float | None = None
    chosen: bool = False


@dataclass(frozen=True)
class Refusals:
    """Variants (their ids) that refuse a call on the same conditions, and why."""

    reason: str
    variants: tuple[str, ...]


@dataclass
class Explanation:
    """The whole decision: every candidate, the bucket, what was measured, and the result or the error.

    Attributes:
        tuned: the entry of the call's own sizes, measured on this GPU.
        near: if there is none, the measured points that are used for the call, the nearest first.
        sibling: the GPU on which `near` was measured; None if it is the call's own.
        model: what made the predictions: the clock, or the cost model.
        notes: what else a person should know.
    """

    call: Call
    bucket: dict[str, int]
    candidates: list[Candidate]
    tuned: Mapping[str, Any] | None = None
    selection: Selection | None = None
    error: Exception | None = field(default=None, repr=False)
    near: list[Near] = field(default_factory=list)
    sibling: GpuSpec | None = None
    model: str = models.COST_MODEL
    notes: list[str] = field(default_factory=list)

    @property
    def table_of(self) -> GpuSpec | None:
        """The GPU whose measured points are used for the call, if any are."""
        return self.sibling or (self.call.row if self.tuned or self.near else None)

    def refusals(self) -> list[Refusals]:
        """The refusals of this call, grouped, the nearest first."""
        return refusals(self.call, [c.variant for c in self.candidates])

    def best_by_backend(self) -> dict[str, tuple[str, float, float]]:
        """DSL -> (its fastest measured variant, microseconds, ratio to the best), fastest DSL first."""
        measured = sorted(
            (c.tuned_us, c.variant.id, c.variant.backend)
            for c in self.candidates
            if c.tuned_us is not None and c.refusal is None
        )
        best: dict[str, tuple[str, float, float]] = {}
        for us, variant, backend in measured:
            best.setdefault(backend, (variant, us, us / measured[0][0]))
        return best


_selected: dict[tuple[Any, ...], Selection] = {}
# A bound for calls whose lengths never repeat.
SELECTED_LIMIT = 4096


@checked
def select(call: Call, variant: str | None = None) -> Selection:
    """The variant for a call.

    Args:
        variant: an id to use regardless of rank; it must still accept the call.

    Raises:
        NoVariantError: nothing applies, or the variant asked for refuses the call; groups the refusals by
            reason.
        UnknownNameError: the operation has no variant of the name asked for; lists the near misses.
    """
    forced = variant or env.FORCE.get().get(call.op)
    key = (*call.key, forced)
    # If another thread calls `clear` meanwhile, the selection goes into the old dictionary, which nobody
    # reads.
    selected = _selected
    selection = selected.get(key)
    if selection is None:
        explanation = explain(call, forced, "argument" if variant else "DSL_KERNELS_FORCE", predict=False)
        if explanation.error is not None:
            raise explanation.error
        selection = explanation.selection
        if selection is None:
            raise NoVariantError(
                call.op, expected="a selection", got="none", fix="report this call: explain() found neither"
            )
        if len(selected) >= SELECTED_LIMIT:
            selected.clear()
        selected[key] = selection
    return selection


def clear() -> None:
    """Forget cached selections and tuned tables (after the generated set or a tuned file changed)."""
    global _selected
    _selected = {}
    measured.entries_of.cache_clear()
    models.clear()


@checked
def explain(
    call: Call, variant: str | None = None, forced_by: str = "argument", *, predict: bool = True
) -> Explanation:
    """Every candidate with its refusal or its predicted and tuned time, and the decision.

    Args:
        variant: the override to apply; `forced_by` says where it came from.
        predict: run the model even if a tuned entry decides; `select` does not.
    """
    sizes = bucket(call)
    user = measured.user_table(call.row.device) if call.gpu and call.own else measured.UserTable()
    rows = [Candidate(v, refusal(call, v, named=variant)) for v in variants.variants(call.op)]
    result = Explanation(call, sizes, rows)
    for added in user.added(call.op):
        rows.append(
            Candidate(added, refusal(call, added, named=variant) or _unavailable(added, result.notes))
        )
    guest = variants.lent(variant) if variant and all(row.variant.id != variant for row in rows) else None
    if guest is not None and guest.op == call.op:
        rows.append(Candidate(guest, refusal(call, guest, named=variant)))
    open_rows = [row for row in rows if row.refusal is None]
    if call.gpu:
        _look_up(result, open_rows)
    decided = variant is not None or result.tuned is not None
    if predict or not decided:
        _model(result, open_rows, assumed(call, deciding(call)))
        _estimate(result, open_rows)
        open_rows.sort(key=_rank)
    try:
        chosen, rule, launch = _decide(result, open_rows, variant, forced_by)
    except (NoVariantError, UnknownNameError) as error:
        result.error = error
        return result
    chosen.chosen = True
    # What the call fixes wins: sizes of its operands, and the splits that a caller asks for.
    launch = {name: value for name, value in launch.items() if name not in call.dims}
    dims = {**call.dims, **launch}
    if launch and (unfit := refusal(replace(call, dims=dims), chosen.variant, named=variant)) is not None:
        measured.warn_once(f"ignoring {launch} of the {rule} for {chosen.variant.id}: {unfit}")
        dims, launch = dict(call.dims), {}
    deal = policies.get(call.op).launch
    computed = deal(SimpleNamespace(**chosen.variant.knobs), dims, call.row)
    result.selection = Selection(chosen.variant, {**computed.dims, **launch}, rule)
    return result


def _decide(
    result: Explanation, open_rows: list[Candidate], variant: str | None, forced_by: str
) -> tuple[Candidate, str, dict[str, int]]:
    call, rows, tuned = result.call, result.candidates, result.tuned
    if variant is not None:
        named = {row.variant.id: row for row in rows}
        origin = "variant" if forced_by == "argument" else forced_by
        require_known(origin, variant, named, f"variant of {call.op}")
        row = named[variant]
        if row.refusal is not None:
            raise NoVariantError(
                variant,
                expected="a call that it accepts",
                got=row.refusal,
                fix=f"drop the {forced_by} override",
            )
        return row, forced_by, {}
    if not open_rows:
        raise NoVariantError(
            f"{call.op} {call.form} on {call.arch} with {dict(call.dims)}",
            expected="one applicable variant",
            got=_listed(refusals(call, [row.variant for row in rows])),
            fix="call with sizes a variant was built for, or widen its knobs and run `make generate`; "
            "`python -m dsl_kernels explain --json` lists each refusal",
        )
    if tuned is not None:
        # The winner or, if it cannot serve the call, the fastest of those that were timed with it.
        timed = [r for r in open_rows if r.tuned_us is not None]
        row = min(timed, key=lambda r: (r.variant.id != tuned["variant"], r.tuned_us, r.variant.id))
        won = row.variant.id == tuned["variant"]
        return row, measured.table_of(tuned), dict(tuned.get("launch", {})) if won else {}
    best = open_rows[0]
    if best.estimated_us is not None:
        return best, *_rule_of_points(result, best.variant)
    if len(open_rows) == 1:
        return best, "only applicable variant", {}
    if best.predicted_us is None:
        return best, "first by name, the cost model failed", {}
    most = best.predicted_us * (1 + TIES[result.model])
    tied = [r for r in open_rows if r.predicted_us is not None and r.predicted_us <= most]
    if len(tied) == 1:
        return best, result.model, {}
    return (
        min(tied, key=lambda row: row.variant.id),
        f"{result.model}, first by name of equal predictions",
        {},
    )


def _rule_of_points(result: Explanation, chosen: Variant) -> tuple[str, dict[str, int]]:
    """The rule by which near points, or a sibling's, decide, and the launch dims that the nearest records."""
    nearest, sibling = result.near[0], result.sibling
    whose = f" of the {sibling.name}" if sibling is not None else ""
    if nearest.distance > 0 or sibling is None:
        return f"between tuned points{whose}", {}
    # Launch dims that were tuned for another number of SMs do not apply: the launch rule computes them.
    alike = sibling.sms == result.call.row.sms and nearest.entry["variant"] == chosen.id
    return measured.table_of(nearest.entry) + whose, dict(nearest.entry.get("launch", {})) if alike else {}


def _rank(row: Candidate) -> tuple[float, float, str]:
    """Estimated times first, then predicted ones, then variants with neither."""
    estimated, predicted = (math.inf if us is None else us for us in (row.estimated_us, row.predicted_us))
    return estimated, predicted, row.variant.id


def _look_up(result: Explanation, open_rows: list[Candidate]) -> None:
    """Find the measured points for a call: this GPU's own of its sizes, or the near ones."""
    call = result.call
    table, sibling = measured.points(call.row, call.op, call.form, own=call.own)
    known = (row.variant.id for row in open_rows)
    result.near = measured.near(table, call.op, call.form, deciding(call), known)
    if result.near and sibling is not None:
        result.sibling = sibling
    elif result.near and result.near[0].distance == 0:
        result.tuned = result.near.pop().entry
        for row in result.candidates:
            row.tuned_us = result.tuned["us"].get(row.variant.id)


def _model(result: Explanation, rows: list[Candidate], dims: Mapping[str, int]) -> None:
    """Fill in predictions, all by one model: times of different models are not comparable."""
    result.model, predictions = models.predict(result.call, [row.variant for row in rows], dims)
    for row, (us, bound) in zip(rows, predictions, strict=True):
        row.predicted_us, row.bound = us, bound


def _scaled(result: Explanation, point: Near, of: Mapping[str, Candidate]) -> Near:
    """A sibling's point with its times scaled to the call's GPU by the ratio of the model's predictions.

    With as many SMs every launch is distributed alike, so one factor (that of the fastest variant) keeps the
    measured order: rates of one row may be measured and those of the other published, and a factor per
    variant would rank by that difference. With another number of SMs, waves and splits differ, and each
    variant has its own factor.
    """
    call, sibling = result.call, result.sibling or result.call.row
    us = {name: time for name, time in point.entry["us"].items() if name in of}
    dims, there = assumed(call, point.entry["bucket"]), replace(call, gpu=sibling.device, sms=sibling.sms)
    alike = sibling.sms == call.row.sms
    factors: dict[str, float] = {}
    for name in [min(us, key=us.__getitem__)] if alike else us:
        here, was = (models.prediction(on, of[name].variant, dims, result.model)[0] for on in (call, there))
        if not here or not was:
            return point
        factors[name] = here / was
    common = next(iter(factors.values()))
    scaled = {name: time * factors.get(name, common) for name, time in us.items()}
    return replace(point, entry={**point.entry, "us": scaled})


def _estimate(result: Explanation, rows: list[Candidate]) -> None:
    """Fill in estimates: the predictions, corrected by the points near the call."""
    call, near = result.call, result.near
    by_id = {row.variant.id: row for row in rows}
    if result.sibling is not None:
        near = [_scaled(result, point, by_id) for point in near]

    def at_point(name: str, entry: Mapping[str, Any]) -> float | None:
        dims = assumed(call, entry["bucket"])
        return models.prediction(call, by_id[name].variant, dims, result.model)[0]

    if near:
        predicted = {name: row.predicted_us for name, row in by_id.items()}
        for name, us in measured.between(near, predicted, at_point).items():
            by_id[name].estimated_us = us


def _unavailable(variant: Variant, notes: list[str]) -> str | None:
    """Why a variant of the user's table cannot be loaded; None if it is compiled, or can be."""
    from .runtime import store

    try:
        if store.lookup(variant) is not None:
            return None
        reason = "not compiled, and compiling is switched off" if env.DISABLE_JIT.get() else None
        if reason is None and (missing := store.toolchain_missing(variant)) is not None:
            reason = f"not compiled, and {missing.subject} is missing"
    except (DslKernelError, OSError) as error:
        reason = str(error)
    if reason is not None:
        notes.append(
            f"skipped {variant.id} of the user's tuned table: {reason}; "
            f"run `python -m dsl_kernels compile {variant.id}` where compiling is allowed"
        )
    return reason


@checked
def predicted_us(call: Call, variant: Variant) -> float | None:
    """The cost model's time of a variant for a call at its exact sizes; None if the model fails."""
    return models.prediction(call, variant, assumed(call, deciding(call)), models.COST_MODEL)[0]


@checked
def refusal(call: Call, variant: Variant, *, named: str | None = None) -> str | None:
    """Why a variant cannot serve a call; None if it can.

    Args:
        named: the variant that was asked for; a variant with probes only serves calls that ask for it.
    """
    if variant.arch != call.arch:
        return f"built for {variant.arch}, the call runs on {call.arch}"
    if call.backend is not None and variant.backend != call.backend:
        return f"backend {variant.backend}, asked for {call.backend}"
    if changed := sorted(_declared(call.op, call.arch) ^ (variant.knobs.keys() - {PROBE.name})):
        return f"generated by another version of the declaration (knob {changed[0]}): run `make generate`"
    facts = {**call.dims, "form": call.form, "sms": call.row.sms}
    for guard in programs.get(call.op).guards:
        reason = guard.refuse(variant.knobs, facts)
        if reason is not None:
            return reason
    if variant.knobs.get(PROBE.name) and variant.id != named:
        return "has probes, which take time: name it to run it"
    return None


@lru_cache(maxsize=64)
def _declared(op: str, arch: str) -> frozenset[str]:
    """The knobs of an operation on an architecture."""
    return frozenset(knob.name for knob in programs.get(op).knobs if not knob.archs or arch in knob.archs)


def refusals(call: Call, of: Iterable[Variant]) -> list[Refusals]:
    """The variants that refuse a call, grouped by the conditions that they fail, the nearest group first.

    Nearest are the variants of the call's architecture that fail the fewest conditions. All variants that
    fail the conditions of a nearer group and further ones form one last group.
    """
    groups: dict[frozenset[str], tuple[list[str], dict[str, dict[str, None]]]] = {}
    for variant in of:
        failed = _failed(call, variant)
        if failed:
            ids, reasons = groups.setdefault(frozenset(failed), ([], {name: {} for name in failed}))
            ids.append(variant.id)
            for name, reason in failed.items():
                reasons[name][reason] = None
    order = sorted(groups, key=lambda names: ("arch" in names, len(names), -len(groups[names][0])))
    grouped, farther = [], []
    for names in order:
        if any(nearer < names for nearer in groups):
            farther += groups[names][0]
        else:
            reason = "; ".join(_joined(list(each)) for each in groups[names][1].values())
            grouped.append(Refusals(reason, tuple(groups[names][0])))
    if farther:
        place = sum("arch" not in names for names in order if not any(nearer < names for nearer in groups))
        grouped.insert(place, Refusals("these and further conditions", tuple(farther)))
    return grouped


def _failed(call: Call, variant: Variant) -> dict[str, str]:
    """Every condition that a variant fails, by name, with the reason."""
    first = refusal(call, variant)
    if first is None:
        return {}
    if variant.arch != call.arch:
        return {"arch": first}
    if variant.knobs.keys() != _declared(call.op, call.arch):
        return {"declaration": first}
    failed = {}
    if call.backend is not None and variant.backend != call.backend:
        failed["backend"] = first
    facts = {**call.dims, "form": call.form, "sms": call.row.sms}
    for guard in programs.get(call.op).guards:
        try:
            reason = guard.refuse(variant.knobs, facts)
        except KeyError:
            # A guard may rely on earlier ones: a variant of another form needs sizes that this call does not
            # have.
            continue
        if reason is not None:
            failed[guard.name] = reason
    return failed


def _joined(reasons: list[str]) -> str:
    """Reasons of one condition as one sentence: common beginning, differing parts, common end."""
    if len(reasons) == 1:
        return reasons[0]
    head = _common(reasons)
    head = head[: head.rfind(" ") + 1]
    tail = _common([reason[len(head) :][::-1] for reason in reasons])[::-1]
    # The common end begins at a whole word, or at the comma before it.
    cut = re.search("[ ,]", tail)
    tail = tail[cut.start() :] if cut else ""
    parts = sorted(
        (reason[len(head) : len(reason) - len(tail)] for reason in reasons), key=lambda p: (len(p), p)
    )
    shown = [
        part for i, part in enumerate(parts) if i == 0 or len(", ".join(parts[: i + 1])) <= REASONS_SHOWN
    ]
    last = parts[-1] if len(shown) == len(parts) else f"{len(parts) - len(shown)} others"
    return head + ", ".join(shown[: len(parts) - 1]) + f" or {last}" + tail


def _common(texts: list[str]) -> str:
    """The longest common prefix of the texts."""
    return "".join(at[0] for at in takewhile(lambda at: len(set(at)) == 1, zip(*texts, strict=False)))


def _listed(groups: list[Refusals]) -> str:
    """Groups of refusals as an error lists them, one on a line."""
    if not groups:
        return "no generated variant"
    shown, rest = groups[:REFUSALS_SHOWN], groups[REFUSALS_SHOWN:]
    lines = [f"{len(group.variants)}: {group.reason} (such as {group.variants[0]})" for group in shown]
    if rest:
        lines.append(f"{sum(len(group.variants) for group in rest)}: other reasons")
    count = sum(len(group.variants) for group in groups)
    return f"{count} refusals:" + "".join(f"\n  {line}" for line in lines)
