"""`emulate --script`: arguments after the script's path belong to the script."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
import typer.core

from dsl_kernels.cli import _output as out
from dsl_kernels.errors import InvalidArgumentError

if TYPE_CHECKING:
    from dsl_kernels.variants import Variant

    from ..oracles import Workload

OPTION = "--script"


class ScriptCommand(typer.core.TyperCommand):
    """A command whose arguments end at the script: the rest are the script's, options included."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta["script_args"] = []
        for i, arg in enumerate(args):
            if arg == "--":
                break
            if arg == OPTION or arg.startswith(OPTION + "="):
                end = i + 2 if arg == OPTION else i + 1
                ctx.meta["script_args"] = args[end:]
                args = args[:end]
                break
        return super().parse_args(ctx, args)


def run(
    ctx: Any,
    script: Path,
    *,
    arch: str,
    interleavings: int,
    seed: int,
    sms: int,
    explain: Path | None,
    coverage: bool,
    as_json: bool,
) -> None:
    """Run a program with every launch checked; exit status 1 if a check or the program fails."""
    from ptx_emulator.script import summary
    from ptx_emulator.script.program import check_program

    if not script.is_file():
        raise InvalidArgumentError(
            OPTION, expected="a Python file", got=str(script), fix="give the path of the program"
        )
    # With --json, standard output carries the JSON alone.
    outcome = check_program(
        script,
        ctx.meta["script_args"],
        arch=arch,
        interleavings=interleavings,
        seed=seed,
        sms=sms,
        explain=explain,
        quiet=as_json,
    )
    if as_json:
        out.print_json(outcome.as_dict(coverage))
    else:
        out.console().print(summary(outcome.session), markup=False, highlight=False, soft_wrap=True)
        if coverage:
            for kernel, reached in outcome.session.coverage().items():
                typer.echo(f"What all launches of {kernel.entry} reached together: {reached}")
        if outcome.failure:
            out.error_console().print(
                f"the program failed: {outcome.failure}",
                style="red",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
    if not outcome.ok:
        raise typer.Exit(1)


def explain_variant(
    variant: Variant,
    workloads: list[tuple[Workload, dict[str, int]]],
    failed: list[dict[str, Any]],
    folder: Path,
) -> None:
    """Write a page that explains the first finding of each workload on which the variant fails."""
    from dsl_kernels.executors import Emulator
    from dsl_kernels.runtime import bundle, store
    from ptx_emulator import Interleaving, Report, explain
    from ptx_emulator.explain_page import html

    from ..verification import trial

    artifact, code = store.fetch(variant, bundle.PTX)
    for workload, launch in workloads:
        run = workload.name, launch
        row = next((r for r in failed if (r["workload"], r["launch"]) == run and r.get("report")), None)
        if row is None:
            continue
        example = trial.cached_example(variant.op, workload)

        def again(
            interleaving: Interleaving,
            *,
            check: str,
            trace: int,
            w: Workload = workload,
            dims: dict[str, int] = launch,
            e: Any = example,
        ) -> Report:
            executor = Emulator(interleaving, check, trace=trace)
            trial.run(variant, w, executor, example=e, launch=dims)
            return executor.report

        explanation = explain(again, row["report"], code.decode(), artifact.entry, tries=8)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{variant.id}_{workload.name}.html"
        path.write_text(html(explanation, f"{variant.id} on {workload.name}"), encoding="utf-8")
        out.say(f"{workload.name}: explained in {path}")
