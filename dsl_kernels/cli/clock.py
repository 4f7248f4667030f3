"""The command that predicts: what a call takes on a GPU and what it waits for, by the clock's walk of the text."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..arguments import require_known
from ..errors import NoVariantError
from . import _output as out
from .catalog import complete_dims, target_of

if TYPE_CHECKING:
    from ..clock import Prediction

app = typer.Typer()

# Shares of units, and waits, that are worth a line.
SHOWN = 0.01


@app.command()
def predict(
    op: Annotated[str, typer.Argument(help="Operation.")],
    dim: out.Dims = None,
    form: Annotated[
        str | None, typer.Option(help="Form of the problem (decode, prefill, bf16, fp8).")
    ] = None,
    arch: Annotated[str | None, typer.Option(help="Architecture; by default that of --gpu.")] = None,
    gpu: Annotated[str | None, typer.Option(help="GPU whose SMs and rates count: H200, B200 ...")] = None,
    backend: out.Backend = None,
    variant: Annotated[str | None, typer.Option(help="Only this variant.")] = None,
    as_json: out.Json = False,
) -> None:
    """What a call takes on a GPU, and what its roles wait for: a model, from the text of each variant; no GPU is needed."""
    from .. import clock, problems, programs, registry, variants

    problem = problems.get(op)
    out.narrowed(None, backend, arch)
    require_known("op", op, clock.walked(), "operation that the clock walks")
    sizes = out.dims_of(dim or [])
    chosen = form or problem.form_of(sizes)
    dims, assumed = complete_dims(programs.get(op), chosen, problem.dims_of(chosen, sizes))
    # What a call does not say is 1, but for the length up to which rows are not scored.
    dims |= {name: 0 for name in assumed if name == "skip_below"}
    name, device, sms = target_of(arch, gpu)
    call = registry.Call(op, chosen, name, dims, device, backend, sms)
    known = [variants.get(variant)] if variant else variants.variants(op)
    refused = {v.id: registry.refusal(call, v, named=variant) for v in known}
    found = {v.id: clock.predict(call, v) for v in known if refused[v.id] is None}
    if not found:
        raise NoVariantError(
            f"a variant of {op} for {name}", expected="one that takes the call", got="none", fix="run `python -m dsl_kernels explain`",
        )  # fmt: skip
    ordered = sorted(found.items(), key=lambda item: (item[1].us, item[0]))
    if as_json:
        rows = [{"variant": key, "bound": value.bound, **asdict(value)} for key, value in ordered]
        out.print_json(
            {"op": op, "form": chosen, "gpu": call.row.name, "model": True, "dims": dims, "variants": rows}
        )
        return
    _print(ordered)
    row = call.row
    out.console().print(
        f"A model, not a measurement, for {row.name} with {row.sms} SMs; its rates are {row.rates_from}.",
        markup=False, soft_wrap=True,
    )  # fmt: skip


def _print(ordered: list[tuple[str, Prediction]]) -> None:
    rows = [(name, f"{p.us:.1f}", f"{p.clocks:.0f}", f"{p.mhz:.0f}", p.bound) for name, p in ordered]
    names = ("variant", "model us", "clocks", "MHz", "bound")
    out.show(out.table("predicted", names, rows, right=names[1:4]))
    first, best = ordered[0]
    units = [(unit, f"{share:.0%}") for unit, share in _largest(best.busy, SHOWN)]
    out.show(out.table(f"units of an SM in {first}", ("unit", "busy"), units, right=("busy",)))
    waits: list[tuple[Any, ...]] = [
        (role, what, f"{clocks / best.clocks:.0%}")
        for role, found in best.waits.items()
        for what, clocks in _largest(found, SHOWN * best.clocks)
    ]
    out.show(
        out.table("waits of its roles", ("role", "waits for", "of the time"), waits, right=("of the time",))
    )


def _largest(values: Any, least: float) -> list[tuple[str, float]]:
    return sorted(((k, v) for k, v in values.items() if v >= least), key=lambda item: -item[1])
