"""The command that compares variants with the reference: verify."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsl_kernels import variants
from dsl_kernels.arguments import require_known
from dsl_kernels.cli import _output as out
from dsl_kernels.errors import DslKernelError, InvalidArgumentError

from ._machine import compile_missing, device_name, executor_of, tile_threads

if TYPE_CHECKING:
    from dsl_kernels.problems.base import Comparison

    from ..oracles import Workload

app = typer.Typer()

TIERS = ("tiny", "edge", "real")


@dataclass
class Result:
    """One variant on one workload."""

    variant: str
    workload: str
    comparison: Comparison
    counted: dict[str, Any] = field(default_factory=dict)


@app.command()
def verify(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[VARIANT]...", help="Variant ids; by default all of the architecture."),
    ] = None,
    executor: Annotated[
        str | None, typer.Option(help="cuda, interpreter or emulator; by default cuda if there is a GPU.")
    ] = None,
    tier: Annotated[
        str, typer.Option(help="Workloads: tiny, edge, real, or several with commas.")
    ] = "tiny,edge",
    op: out.Op = None,
    backend: out.Backend = None,
    arch: out.Arch = None,
    repeats: Annotated[
        int, typer.Option(min=1, max=10_000, help="Runs of each workload, which must give the same bits.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
    record: Annotated[
        bool,
        typer.Option(
            "--record", help="Record in dsl_kernels_lab/verification/runs.json where each variant matched."
        ),
    ] = False,
    as_json: out.Json = False,
) -> None:
    """Run variants on their problem's workloads and compare with the reference; status 1 if any differs."""
    tiers = [part.strip() for part in tier.split(",")]
    for part in tiers:
        require_known("--tier", part, TIERS, "tier")
    filters = out.narrowed(op, backend, arch)
    from ..verification import runs

    name, device, _ = executor_of(executor)
    chosen = [out.variant(item) for item in names] if names else list(variants.variants(**filters))
    if device == "cuda":
        chosen = _of_this_gpu(chosen)
    where = device_name(device) if device == "cuda" else "CPU"
    results: list[Result] = []
    errors: dict[str, str] = {}
    with out.progress(as_json) as bar, tile_threads(device):
        if name != "interpreter":
            errors = compile_missing(chosen, name, bar)
        task = bar.add_task("verify", total=len(chosen) - len(errors))
        for variant in [variant for variant in chosen if variant.id not in errors]:
            bar.update(task, description=f"verify {variant.id}")
            try:
                mine = _verify(variant, name, device, tiers, repeats, seed)
            except DslKernelError as error:
                errors[variant.id], mine = str(error), []
            except Exception as error:
                # One broken variant must not hide the state of the others.
                errors[variant.id], mine = f"{type(error).__name__}: {error}", []
            results += mine
            if record and mine and all(result.comparison.ok for result in mine):
                date = time.strftime("%Y-%m-%d", time.gmtime())
                runs.record(variant, name, where, date, len(mine), counted=mine[0].counted)
            bar.update(task, advance=1)
    rows = [
        _row(variant, [r for r in results if r.variant == variant.id], errors.get(variant.id))
        for variant in chosen
    ]
    if as_json:
        out.print_json(
            {
                "executor": name,
                "where": where,
                "tiers": tiers,
                "variants": rows,
                "ok": all(row["ok"] for row in rows),
            }
        )
    else:
        cells = [(r["variant"], r["workloads"], r["worst"], r["figure"], _verdict(r)) for r in rows]
        columns = ("variant", "workloads", "closest to its limit", "of limit", "result")
        title = f"{name} on {where}, workloads {tier}{f', {repeats} repeats' if repeats > 1 else ''}"
        out.show(out.table(title, columns, cells, right=("workloads", "of limit")))
        for row in rows:
            for failure in row["failures"]:
                out.say(f"{row['variant']}: {failure}", "bold red", error=True)
    if not all(row["ok"] for row in rows):
        raise typer.Exit(1)


def _verdict(row: dict[str, Any]) -> str:
    return "FAILED" if not row["ok"] else "ok" if row["workloads"] else "nothing ran"


def _of_this_gpu(chosen: list[variants.Variant]) -> list[variants.Variant]:
    import torch

    from dsl_kernels.executors import gpu_at_hand

    gpu = gpu_at_hand(torch.cuda.current_device())
    mine = [variant for variant in chosen if variant.arch == gpu.arch.name]
    if not mine:
        raise InvalidArgumentError(
            "variants",
            expected=f"some for {gpu.arch.name}, which {gpu.device} runs",
            got="none",
            fix="drop --arch, or name others",
        )
    return mine


def _verify(
    variant: variants.Variant, executor: str, device: str, tiers: list[str], repeats: int, seed: int
) -> list[Result]:
    """Compare every workload that the variant takes; repeats must give the same bits each time."""
    from dsl_kernels import executors

    from ..verification import trial

    runner: Any = executors.get(executor)
    launcher = runner.prepare(variant)
    prepared: Any = SimpleNamespace(name=executor, prepare=lambda *_: launcher)
    results = []
    for workload in trial.workloads(variant, *tiers):
        example = (
            trial.make_example(variant.op, workload, seed)
            if seed
            else trial.cached_example(variant.op, workload)
        )
        first = trial.run(variant, workload, prepared, device=device, example=example)
        for _ in range(repeats - 1):
            again = trial.run(variant, workload, prepared, device=device, example=example)
            if not _same_bits(variant.op, workload, first.operands, again.operands):
                first.comparison.demand("repeats give the same bits", False)
                break
        report = getattr(runner, "report", None)
        results.append(Result(variant.id, workload.name, first.comparison, _counted(workload.name, report)))
    return results


def _counted(workload: str, report: Any) -> dict[str, Any]:
    """What the emulator counted in one launch; empty for the other executors."""
    if report is None:
        return {}
    figures = {**report.pipes, **report.stats}
    return {
        "workload": workload,
        "instructions": report.instructions,
        **{k: v for k, v in figures.items() if v},
    }


def _same_bits(op: str, workload: Workload, a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    import torch

    from .. import oracles

    outputs = [spec.name for spec in oracles.get(op).operands(workload.form) if spec.kind == "out"]
    return all(torch.equal(a[name].view(torch.uint8), b[name].view(torch.uint8)) for name in outputs)


def _row(variant: variants.Variant, results: list[Result], error: str | None) -> dict[str, Any]:
    """A variant's result: the figure that came closest to its limit, and every failure."""
    failures = [error] if error else []
    worst, share = None, -1.0
    for result in results:
        comparison = result.comparison
        failures += [f"{result.workload}: {failure}" for failure in comparison.failures]
        for name, limit in comparison.limits.items():
            if limit > 0 and comparison.figures[name] / limit > share:
                worst, share = f"{name} in {result.workload}", comparison.figures[name] / limit
    return {
        "variant": variant.id,
        "workloads": len(results),
        "worst": worst,
        "figure": share if worst else None,
        "failures": failures,
        "ok": not failures,
    }
