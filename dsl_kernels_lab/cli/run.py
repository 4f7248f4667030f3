"""The command that executes a step: run (one real DSA step, checked, and timed on a GPU)."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsl_kernels.arch import get_arch
from dsl_kernels.arguments import require_known
from dsl_kernels.cli import _output as out
from dsl_kernels.errors import InvalidArgumentError

from ._machine import device_name, executor_of, tile_threads

if TYPE_CHECKING:
    from dsl_kernels.problems.base import Comparison

    from ..steps import StepInputs, StepSize

app = typer.Typer()


@app.command()
def run(
    kind: Annotated[str, typer.Argument(help="decode or prefill.")],
    size: Annotated[
        str | None, typer.Option(help="A named size: demo, tiny, mtp, contest, serving, long.")
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", "-b", help="Sequences (decode).")] = None,
    rows: Annotated[int | None, typer.Option("--rows", "-s", help="Query rows (prefill).")] = None,
    context: Annotated[
        int | None, typer.Option("--context", "-l", help="Tokens per sequence, or keys of a prefill.")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Attention heads: 1 to 128.")] = None,
    index_heads: Annotated[
        int | None, typer.Option(help="Indexer heads: 8, 16, 24, 32 or 64. The op takes 1 to 64.")
    ] = None,
    topk: Annotated[int | None, typer.Option(help="Tokens to select, 1 to 2048.")] = None,
    kv: Annotated[
        str | None,
        typer.Option(help="Cache: bf16 (two tensors), joined (one 576-wide row) or fp8 (656-byte tokens)."),
    ] = None,
    next_n: Annotated[int | None, typer.Option(help="Queries for each sequence, 1 to 8.")] = None,
    pages: Annotated[
        int | None, typer.Option(help="Pages of the cache; by default what the sequences need.")
    ] = None,
    ragged: Annotated[
        bool | None, typer.Option("--ragged/--full", help="Lengths that halve, with a padded row at the end.")
    ] = None,
    workload: Annotated[
        Path | None, typer.Option(help="A safetensors file with tensors of the step.")
    ] = None,
    executor: Annotated[
        str | None, typer.Option(help="cuda, interpreter or emulator; by default cuda if there is a GPU.")
    ] = None,
    arch: Annotated[str | None, typer.Option(help="Architecture without a GPU; by default sm_90a.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Compare with the references.")] = True,
    sample: Annotated[int, typer.Option(min=1, help="Sequences or rows that the check compares.")] = 4,
    timing: Annotated[
        bool, typer.Option("--time/--no-time", help="On a GPU: time it under a CUDA graph.")
    ] = True,
    as_json: out.Json = False,
) -> None:
    """One real DSA step (score, select, attend) through the registry, checked, and timed on a GPU.

    Without a GPU the step runs in the interpreter, which executes the tile programs in torch on the CPU.
    """
    import torch

    from dsl_kernels import executors, ops

    from .. import steps
    from ..steps.check import run_checked

    wanted = _size(
        kind,
        size,
        {
            "batch": batch,
            "rows": rows,
            "context": context,
            "heads": heads,
            "index_heads": index_heads,
            "topk": topk,
            "kv": kv,
            "next_n": next_n,
            "pages": pages,
            "ragged": ragged,
        },
        workload,
    )
    name, device, why = executor_of(executor)
    target = get_arch(arch).name if arch else None
    if device == "cuda" and target not in (
        None,
        executors.gpu_at_hand(torch.cuda.current_device()).arch.name,
    ):
        raise InvalidArgumentError(
            "--arch",
            expected="the GPU's own architecture, or none",
            got=repr(arch),
            fix="drop it, or pass --executor interpreter",
        )
    ops.clear()
    with torch.inference_mode(), tile_threads(device):
        inputs = (
            steps.load(workload, wanted, device=device, seed=seed)
            if workload
            else steps.draw(wanted, device=device, seed=seed)[0]
        )
        options = {"executor": None if name == "cuda" else name, "arch": target}
        begin = time.perf_counter()
        if check:
            _, comparisons = run_checked(inputs, sample=sample, **options)
        else:
            inputs.run(**options)
            comparisons = {}
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - begin
        used = steps.used()
        figures = _timed(inputs, wanted, seed, workload is not None) if timing and device == "cuda" else None
    ok = all(comparison.ok for comparison in comparisons.values())
    report = {
        "kind": kind,
        "size": vars(inputs.size()),
        "executor": name,
        "why": why,
        "device": device_name(device),
        "arch": used[0].variant.arch,
        "sampled": min(sample, _count(inputs)),
        "of": _count(inputs),
        "seconds": seconds,
        "used": [
            {"op": u.variant.op, "variant": u.variant.id, "rule": u.rule, "launch": u.launch} for u in used
        ],
        "checks": {
            op: {"ok": c.ok, "figures": c.figures, "limits": c.limits, "failures": c.failures}
            for op, c in comparisons.items()
        },
        "ok": ok if check else None,
        "time": figures,
    }
    if as_json:
        out.print_json(report)
    else:
        _print_report(report, inputs.size().describe(), comparisons)
    if not ok:
        raise typer.Exit(1)


def _count(inputs: StepInputs) -> int:
    """Sequences of a decode step, or rows of a prefill: what the check samples from."""
    return inputs.tensors["seq_lens" if inputs.kind == "decode" else "k_start"].shape[0]


def _size(kind: str, name: str | None, fields: dict[str, Any], workload: Path | None) -> StepSize:
    """The named size, or the defaults, with the given options on top."""
    from .. import steps

    require_known("kind", kind, steps.KINDS, "kind of step")
    given = {field: value for field, value in fields.items() if value is not None}
    if name is None and "context" not in given and workload is None:
        raise InvalidArgumentError(
            f"sizes of the {kind} step",
            expected="--size NAME, or -l/--context with others, or --workload FILE",
            got="none",
            fix=f"for example `python -m dsl_kernels run {kind} --size demo`",
        )
    base = steps.named_size(kind, name) if name else steps.StepSize(kind=kind)
    if name and ({"batch", "context"} & set(given)) and "pages" not in given:
        base = replace(base, pages=0)
    return replace(base, **given).validate()


def _timed(inputs: StepInputs, size: StepSize, seed: int, from_file: bool) -> dict[str, Any]:
    """Times under a CUDA graph, over inputs that rotate past the L2 or those of the workload file."""
    from ..timing import measure

    sets = [inputs] if from_file else measure.step_sets(size, seed)
    return measure.time_step(sets)


def _print_report(report: dict[str, Any], sizes: str, comparisons: dict[str, Comparison]) -> None:
    console = out.console()
    out.say(f"{report['kind']} step: {sizes}", "bold", wrap=True)
    out.say(f"executor {report['executor']} on {report['device']} ({report['why']})", wrap=True)
    launches = [(u["op"], u["variant"], u["rule"], u["launch"]) for u in report["used"]]
    out.show(out.table("", ("op", "variant", "chosen by", "launch"), launches))
    if comparisons:
        rows = []
        for op, comparison in comparisons.items():
            for name, value in comparison.figures.items():
                limit = comparison.limits.get(name)
                holds = "-" if limit is None else "ok" if value <= limit else "FAILED"
                rows.append((op, name, value, limit, holds))
        unit = "sequences" if report["kind"] == "decode" else "rows"
        title = f"against the reference, {report['sampled']} of {report['of']} {unit}"
        out.show(
            out.table(title, ("op", "figure", "value", "limit", "holds"), rows, right=("value", "limit"))
        )
        for op, comparison in comparisons.items():
            for failure in comparison.failures:
                out.say(f"{op}: {failure}", "bold red", error=True)
    if report["time"]:
        _print_times(console, report["time"])
    verdict = (
        ""
        if report["ok"] is None
        else "matches the reference, "
        if report["ok"]
        else "DIFFERS FROM THE REFERENCE, "
    )
    out.say(f"{verdict}{report['seconds']:.2f} s with first use", "bold", wrap=True)


def _print_times(console: Any, figures: dict[str, Any]) -> None:
    baseline, limits, parts = figures.get("baseline"), figures.get("ceilings", {}), figures.get("ops", {})
    rows: list[tuple[Any, ...]] = [("whole step", figures["step"]["us"], None, None, None)]
    against = {
        "lightning_indexer": ("read of its pages", limits.get("read")),
        "sparse_mla": ("gather of its rows", limits.get("gather")),
    }
    for op, us in parts.items():
        name, limit = against.get(op, (None, None))
        rows.append((op, us, name, limit, us / limit if limit else None))
    if "marginal" in figures:
        rows.append(("the step with attention minus without", figures["marginal"], None, None, None))
    if baseline:
        rows.append(("Triton sparse_mla", baseline["us"], "gather of its rows", limits.get("gather"), None))
    turns = figures["turns"]
    inputs = f"{turns} input sets rotated past the L2" if turns > 1 else "one input set"
    title = f"microseconds under a CUDA graph, {inputs}"
    out.show(
        out.table(
            title, ("what", "us", "ceiling", "ceiling us", "ratio"), rows, right=("us", "ceiling us", "ratio")
        )
    )
    for note in figures["notes"]:
        out.say(note, "yellow", error=True)
