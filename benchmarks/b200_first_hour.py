"""The first hour on a card that the library has not run on, as one script: correctness, rates, tuning.

    python benchmarks/b200_first_hour.py OUT                 # on the card; run it again with OUT to continue
    python benchmarks/b200_first_hour.py --plan              # the steps and limits for a B200; needs no GPU
    python benchmarks/b200_first_hour.py --plan --arch sm_90a
    python benchmarks/b200_first_hour.py OUT --arch sm_90a   # rehearse on a Hopper card

Steps, each in processes of its own that are killed at its limit:

    compile  every variant of the card's architecture, in worker processes
    correct  each variant on its tiny, edge and real workloads, outputs poisoned, against the reference
    rates    the micro-benchmarks of clock_rates.py: those that decide a choice, uncertain ones, the rest
    tune     every variant timed at each point of the core grid, then of the serving grid
    compare  the clock beside that table (clock_acceptance.py)

A kernel that hangs, or leaves the card unusable, costs only its own item: the process is killed and restarted
with the items that are left. What is in OUT is not repeated, failures included (--again NAME forgets those of
a step). OUT gets

    session.json       commit, GPU, driver, versions, command; seconds of each step
    correct.json ...   a file per step: the result of each item, and the errors of those that failed
    runs.json          where each variant matched, in the format of dsl_kernels_lab/verification/runs.json
    rates_record.json  as clock_rates.py --record writes it
    tuned/GPU.json     the tuned table
    records.jsonl      a record per timed point, as `bench --out` writes it
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import clock_doubts
import clock_rates

from dsl_kernels import problems, variants
from dsl_kernels.arch import GPUS, GpuSpec, get_arch, gpu_row
from dsl_kernels.clock.rates import Rate, sources
from dsl_kernels.errors import DslKernelError, InvalidArgumentError
from dsl_kernels.variants import Variant
from dsl_kernels_lab.timing import bench

HOUR = 3600.0
TIERS = "tiny,edge,real"
UNTRIED = "not measured"
# First argument of a worker process, which does the items of a step.
WORKS = "--work"


@dataclass(frozen=True)
class Step:
    """A step of the hour.

    Attributes:
        name: the step, and its file in the folder of results.
        finds: what the step finds out.
        limit: seconds that it may take, plus what earlier steps left of theirs.
        patience: seconds without output after which an item counts as hung.
    """

    name: str
    finds: str
    limit: float
    patience: float


STEPS = (
    Step("compile", "every variant of the architecture compiles", 480, 480),
    Step("correct", f"each variant matches the reference on {TIERS} workloads, outputs poisoned", 1080, 150),
    Step("rates", "the rates of the clock, those first on which a choice hangs", 240, clock_rates.PATIENCE_S),
    Step("tune", "every variant timed at the points of the core and serving grids", 1560, 180),
    Step("compare", "the clock beside these times", 240, 240),
)


class Folder:
    """The results: a JSON file per step, with results of its `items` and errors of the `missing` ones."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)

    def read(self, step: str) -> dict[str, Any]:
        """The results of a step so far."""
        path = self.path / f"{step}.json"
        content: dict[str, Any] = (
            json.loads(path.read_text()) if path.exists() else {"items": {}, "missing": {}}
        )
        return content

    def write(self, step: str, content: dict[str, Any]) -> None:
        """Replace the file of a step atomically, so that an interrupted run leaves a readable one."""
        path = self.path / f"{step}.json"
        new = path.with_suffix(".new")
        new.write_text(json.dumps(content, indent=1) + "\n")
        new.replace(path)

    def left(self, step: str, wanted: Sequence[str]) -> list[str]:
        """The items of a step that were never tried."""
        content = self.read(step)
        tried = {
            *content.get("done", ()),
            *(n for n, error in content["missing"].items() if not error.startswith(UNTRIED)),
        }
        return [item for item in wanted if item not in tried]

    def forget(self, step: str) -> None:
        """Delete the results of a step, so that it is repeated."""
        (self.path / f"{step}.json").unlink(missing_ok=True)


def chosen(arch: str) -> list[Variant]:
    """An architecture's variants, interleaved by operation: an interrupted step has seen some of each."""
    of = [list(variants.variants(op, arch=arch)) for op in problems.names()]
    return [variant for turn in itertools.zip_longest(*of) for variant in turn if variant is not None]


def points() -> dict[str, Any]:
    """The points to tune, by name: the core grids of all operations, interleaved, then the serving grids."""
    from dsl_kernels_lab.timing import grids

    named = {}
    for grid in ("core", "serving"):
        of = [grids.spread(grids.points(op, grid)) for op in problems.names()]
        for turn in itertools.zip_longest(*of):
            named |= {f"{at.op} {at.name}": at for at in turn if at is not None}
    return named


def unsure(gpu: GpuSpec) -> dict[str, Rate]:
    """The uncertain rates that an item can measure; those that decide a choice on the core grid first."""
    wide = {
        name: rate
        for name, rate in sources(gpu).items()
        if rate.item and None not in (rate.best, rate.worst) and rate.best != rate.worst
    }
    hangs = [doubt.rate for choice in clock_doubts.choices(gpu.name, ["core"]) for doubt in choice.doubts]
    # Rates of the tensor cores come next: on Blackwell they are all published by others, none is measured.
    return dict(sorted(wide.items(), key=lambda one: (one[0] not in hangs, not one[0].startswith("tensor"))))


def ordered(names: Sequence[str], rates: dict[str, Rate]) -> list[str]:
    """The items of `clock_rates`, those that measure `rates` first, in their order."""
    patterns = [rate.item for rate in rates.values()]

    def place(name: str) -> int:
        return next((at for at, item in enumerate(patterns) if re.search(item, name)), len(patterns))

    return sorted(names, key=place)


def plan(gpu: GpuSpec) -> str:
    """The steps with their limits and numbers of items, and the rates that are measured first."""
    known = {"compile": 1, "correct": len(chosen(gpu.arch.name)), "tune": len(points()), "compare": 1}
    lines = [f"{gpu.name} ({gpu.arch.name}): {sum(step.limit for step in STEPS) / 60:.0f} minutes at most"]
    lines += [
        f"{at}. {step.name:<8} {step.limit / 60:>3.0f} min  {known.get(step.name, 'all')} items, "
        f"{step.patience:.0f} s each: {step.finds}"
        for at, step in enumerate(STEPS, 1)
    ]
    lines.append("rates that lie in an interval, in the order in which they are measured:")
    lines += [
        f"   {name} {rate.value:.4g} ({rate.best:.4g} to {rate.worst:.4g}): clock_rates.py --only "
        f"'{rate.item}'"
        for name, rate in unsure(gpu).items()
    ]
    return "\n".join(lines)


# The steps' work on one item, in a worker process, which prints each result as a line of JSON.


def say(**result: Any) -> None:
    sys.__stdout__.write(json.dumps(result) + "\n")
    sys.__stdout__.flush()


def compiled(folder: Folder, arch: str, executor: str) -> None:
    """Compile the variants of an architecture; failures are reported and do not end the step."""
    from dsl_kernels.cli import _output
    from dsl_kernels_lab.cli import _machine

    of = chosen(arch)
    with _output.progress(True) as bar:
        errors = _machine.compile_missing(of, executor, bar)
    say(name=arch, variants=len(of), errors=errors)


def correct(folder: Folder, name: str, executor: str) -> None:
    """Verify a variant; a match is recorded in runs.json."""
    import typer

    from dsl_kernels_lab.cli._machine import device_name
    from dsl_kernels_lab.cli.verify import verify
    from dsl_kernels_lab.verification import runs

    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(typer.Exit):
        # Without a GPU, workloads of real sizes would take minutes each.
        verify([name], executor=executor, tier=TIERS if executor == "cuda" else "tiny", as_json=True)
    (row,) = json.loads(text.getvalue())["variants"]
    say(name=name, **{key: value for key, value in row.items() if key != "variant"})
    if row["ok"] and row["workloads"]:
        where = device_name("cuda" if executor == "cuda" else "cpu")
        date = time.strftime("%Y-%m-%d", time.gmtime())
        runs.record(variants.get(name), executor, where, date, row["workloads"], folder.path / "runs.json")


def tune(folder: Folder, name: str, executor: str) -> None:
    """Time the variants at a point, except those that `correct` found wrong, and tabulate the fastest."""
    import torch

    from dsl_kernels_lab.timing import grids

    at, failed = points()[name], []
    wrong = {n for n, row in folder.read("correct")["items"].items() if not row["ok"]} | {
        *folder.read("correct")["missing"]
    }
    with torch.inference_mode():
        fixture = grids.prepare(at)
        of = [variant for variant in grids.runnable(at, fixture) if variant.id not in wrong]
        entry = grids.entry_of(at, fixture, grids.time_all(at, fixture, of, failed))
        if entry is not None:
            kept = bench.Records(folder.path / "records.jsonl")
            kept.add(grids.time_point(at, fixture, baseline=False, tuned=entry))
            grids.write_tuned(bench.require_gpu(), [entry], kept.environment, folder.path / "tuned")
    best = {"variant": entry["variant"], "us": entry["us"][entry["variant"]]} if entry else {}
    say(name=name, **best, left_out=sorted(wrong & {v.id for v in variants.variants(at.op)}), failed=failed)
    torch.cuda.empty_cache()


def compare(folder: Folder, name: str, executor: str) -> None:
    """Run `clock_acceptance` on the tuned table."""
    import clock_acceptance

    text = io.StringIO()
    tables = sorted((folder.path / "tuned").glob("*.json"))
    if not tables:
        raise InvalidArgumentError(
            "tuned", expected="a tuned table", got="none", fix="let the step tune time a point"
        )
    sys.argv = ["clock_acceptance", "--table", str(tables[0]), "--gpu", name]
    with contextlib.redirect_stdout(text):
        clock_acceptance.main()
    say(name=name, table=text.getvalue())


WORK: dict[str, Callable[[Folder, str, str], None]] = {
    "compile": compiled, "correct": correct, "tune": tune, "compare": compare,
}  # fmt: skip


def work(step: str, folder: Folder, executor: str, items: Sequence[str]) -> int:
    """Do the items of a step in order; stops at an error, which may have left the card unusable."""
    for item in items:
        try:
            WORK[step](folder, item, executor)
            if executor == "cuda":
                _still_works()
        except Exception as error:
            say(failed=item, error=f"{type(error).__name__}: {error}")
            return 1
        say(done=item)
    return 0


def _still_works() -> None:
    """Raise if an earlier launch left a fault, because then no later item could be trusted."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def run(step: Step, folder: Folder, gpu: GpuSpec, executor: str, until: float) -> dict[str, Any]:
    """Do what is left of a step until `until` on the monotonic clock; returns its results."""
    command = [sys.executable, __file__, WORKS, step.name, str(folder.path), executor]
    with tempfile.TemporaryDirectory() as made:
        if step.name == "rates":
            program = clock_rates.build(Path(made), gpu.arch.name)
            wanted, command = ordered(clock_rates.items(program), unsure(gpu)), [str(program)]
        else:
            wanted = {
                "compile": lambda: [gpu.arch.name],
                "correct": lambda: [variant.id for variant in chosen(gpu.arch.name)],
                "tune": lambda: list(points()),
                "compare": lambda: [gpu.name] if gpu.name in GPUS else [],
            }[step.name]()
        before = folder.read(step.name)
        left = folder.left(step.name, wanted)

        def keep(undone: Sequence[str], results: dict[str, Any], missing: dict[str, str]) -> None:
            items = {**before["items"], **results}
            failed = {n: error for n, error in {**before["missing"], **missing}.items() if n not in undone}
            done = [item for item in wanted if item not in undone and item not in failed]
            folder.write(step.name, {"items": items, "missing": failed, "done": done})

        seconds = max(0.0, until - time.monotonic())
        results, missing = clock_rates.measure(command, left, step.patience, seconds, keep)
        undone = [item for item, error in missing.items() if error.startswith(UNTRIED)]
        keep(undone, results, missing)
    content = folder.read(step.name)
    if step.name == "rates":
        clock_rates.record(folder.path / "rates_record.json", content["items"], content["missing"])
    return {"left": len(undone), **content}


def verdict(step: str, results: dict[str, Any]) -> str:
    """One line about the results of a step."""
    items, missing, left = results["items"], results["missing"], results["left"]
    if step == "compile":
        summary = "; ".join(
            f"{row['variants'] - len(row['errors'])} of {row['variants']} compile" for row in items.values()
        )
    elif step == "correct":
        summary = f"{sum(row['ok'] for row in items.values())} of {len(items)} right"
    elif step == "tune":
        summary = f"{sum('us' in row for row in items.values())} points"
    elif step == "compare":
        summary = "\n".join(row["table"] for row in items.values())
    else:
        summary = f"{len(items)} figures"
    return f"{step}: {summary}; {len(missing)} failed, {left} left"


def hour(folder: Folder, gpu: GpuSpec, executor: str, only: Sequence[str]) -> int:
    """Run the steps one after the other; returns 1 if anything failed or is left."""
    begin, until, whole = time.monotonic(), 0.0, True
    session = {
        "gpu": gpu.device,
        "arch": gpu.arch.name,
        "executor": executor,
        "environment": bench.environment(),
        "seconds": {},
    }
    for step in STEPS:
        until += step.limit
        if step.name not in only:
            continue
        at = time.monotonic()
        try:
            results = run(step, folder, gpu, executor, begin + until)
            line = verdict(step.name, results)
            whole &= not results["missing"] and not results["left"]
        except DslKernelError as error:
            line, whole = f"{step.name}: {error}", False
        session["seconds"][step.name] = round(time.monotonic() - at, 1)
        folder.write("session", session)
        print(line, flush=True)
    print(
        f"{time.monotonic() - begin:.0f} s. Run the same command to go on where something is left; "
        f"send the folder {folder.path.name}."
    )
    return 0 if whole else 1


def card(arch: str | None, executor: str) -> GpuSpec:
    """The GPU at hand, or the reference GPU of an architecture for another executor.

    Raises:
        ExecutorUnavailableError: there is no GPU.
        InvalidArgumentError: the GPU is of another architecture than `arch`.
    """
    if executor != "cuda":
        return gpu_row(arch or "sm_100a")
    import torch

    from dsl_kernels.executors import gpu_at_hand

    bench.require_gpu()
    gpu = gpu_at_hand(torch.cuda.current_device())
    if arch is not None and get_arch(arch).name != gpu.arch.name:
        raise InvalidArgumentError(
            "--arch",
            expected=f"{gpu.arch.name}, which {gpu.device} runs",
            got=arch,
            fix="drop --arch, or use another card",
        )
    return gpu


def main(arguments: Sequence[str]) -> int:
    if arguments[:1] == [WORKS]:
        _, step, path, executor, *items = arguments
        return work(step, Folder(Path(path)), executor, items)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, nargs="?", help="folder of the results")
    parser.add_argument("--plan", action="store_true", help="print the steps; needs no GPU")
    parser.add_argument("--arch", help="the expected architecture; for --plan sm_100a by default")
    names = [step.name for step in STEPS]
    parser.add_argument("--only", action="append", choices=names, help="run only this step; may be repeated")
    parser.add_argument("--again", action="append", choices=names, default=[], help="repeat a finished step")
    parser.add_argument(
        "--executor",
        default="cuda",
        choices=("cuda", "interpreter", "emulator"),
        help="executor of the step correct; without a GPU only compile and correct can be tried",
    )
    given = parser.parse_args(arguments)
    try:
        if given.plan:
            print(plan(gpu_row(given.arch or "sm_100a")))
            return 0
        if given.out is None:
            raise InvalidArgumentError(
                "OUT", expected="a folder, or --plan", got="none", fix="name where results go"
            )
        folder = Folder(given.out.absolute())
        gpu = card(given.arch, given.executor)
        for step in given.again:
            folder.forget(step)
        only = given.only or (names if given.executor == "cuda" else ["compile", "correct"])
        return hour(folder, gpu, given.executor, only)
    except DslKernelError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
