"""`ptx-emulator`, the command of the emulator's own distribution: checks a kernel or a program."""

from __future__ import annotations

import argparse
import json
import logging
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .arguments import TensorMap
from .checks import shown
from .coverage import Coverage
from .errors import LaunchError, PtxEmulatorError
from .interleaving import interleavings
from .launch import launch_each

PURPOSE = (
    "Executes PTX written for NVIDIA GPUs (sm_90a, sm_100a) on this CPU under many interleavings and checks "
    "every access. It verifies kernels before they run on a GPU: it is no platform to run them on, and "
    "nothing is translated."
)
ARGUMENT = (
    "a number; `none` for a null pointer; an array, as the path of an .npy file or zeros:float32:64x128; "
    "map:BOX:SWIZZLE:ARRAY for a tensor map, as in map:64x32:128B:x.npy (the box innermost first)"
)
MOST_BYTES = 1 << 32


def _run_parser() -> argparse.ArgumentParser:
    run = argparse.ArgumentParser(
        "ptx-emulator run", description=f"Execute one kernel of a PTX file. {PURPOSE}"
    )
    run.add_argument("ptx", type=Path, help="the file of PTX")
    run.add_argument(
        "arguments", nargs="*", metavar="ARGUMENT", help=f"in the order of the parameters: {ARGUMENT}"
    )
    run.add_argument("--entry", help="the kernel, where the file has several")
    run.add_argument("--grid", type=_sizes, default=[1], metavar="X[,Y[,Z]]", help="CTAs (default: 1)")
    run.add_argument("--block", type=_sizes, metavar="X[,Y[,Z]]", help="threads of a CTA (default: .reqntid)")
    run.add_argument("--cluster", type=_sizes, metavar="X[,Y[,Z]]", help="CTAs of a cluster")
    run.add_argument("--dynamic-smem", type=int, default=0, metavar="BYTES", help="dynamic shared memory")
    run.add_argument("--jobs", type=int, help="interleavings that run at once (default: one per core)")
    run.add_argument("--strict", action="store_true", help="turn every warning into an error")
    run.add_argument(
        "--out", type=Path, metavar="FOLDER", help="write the arrays here, as argument_0.npy and so on"
    )
    return _shared(run, 8)


def _script_parser() -> argparse.ArgumentParser:
    script = argparse.ArgumentParser(
        "ptx-emulator script", description=f"Run a program and check its launches. {PURPOSE}"
    )
    script.add_argument(
        "program", type=Path, help="a Python file that uses CuTe DSL, TileLang, Triton or the driver"
    )
    script.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="the program's own arguments")
    script.add_argument(
        "--arch", default="sm_90a", help="architecture to compile the program for (default: sm_90a)"
    )
    script.add_argument("--sms", type=int, default=4, help="SMs that the program sees (default: 4)")
    script.add_argument(
        "--explain", type=Path, metavar="FOLDER", help="write pages here that explain the findings"
    )
    return _shared(script, 5)


def _shared(parser: argparse.ArgumentParser, count: int) -> argparse.ArgumentParser:
    parser.add_argument(
        "--interleavings", type=int, default=count, help=f"how many to try (default: {count})"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random interleavings (default: 0)")
    parser.add_argument("--coverage", action="store_true", help="print what none of the runs reached")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def _sizes(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def argument(text: str) -> Any:
    """A kernel's argument as the command line spells it.

    Raises:
        LaunchError: the text has none of the forms, or the file holds no array.
    """
    try:
        if text == "none":
            return None
        if text.startswith("map:"):
            box, swizzle, array = text.removeprefix("map:").split(":", 2)
            return TensorMap(_array(array), [int(n) for n in box.split("x")], swizzle)
        if text.endswith(".npy") or text.startswith("zeros:"):
            return _array(text)
        try:
            return int(text, 0)
        except ValueError:
            return float(text)
    except (ValueError, TypeError, OverflowError, EOFError, OSError) as error:
        raise LaunchError(f"argument {shown(text)}: {error}", fix=f"give {ARGUMENT}") from error


def _array(text: str) -> np.ndarray:
    if not text.startswith("zeros:"):
        return np.load(text, allow_pickle=False)
    _, kind, shape = text.split(":")
    sizes = [int(n) for n in shape.split("x")]
    if min(sizes) < 0 or math.prod(sizes) * np.dtype(kind).itemsize > MOST_BYTES:
        raise ValueError(f"sizes are not negative and an array has at most {MOST_BYTES >> 30} GiB")
    return np.zeros(sizes, kind)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


def _run(chosen: argparse.Namespace) -> bool:
    try:
        ptx = chosen.ptx.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"{chosen.ptx}: {error}", fix="give the path of a file of PTX") from error
    if chosen.interleavings < 1:
        raise LaunchError(f"--interleavings {chosen.interleavings} must be at least 1")
    arguments = [argument(text) for text in chosen.arguments]
    plain = {i: a.array if isinstance(a, TensorMap) else a for i, a in enumerate(arguments)}
    arrays = {i: array for i, array in plain.items() if isinstance(array, np.ndarray)}
    strict = dict.fromkeys(("strict_fences", "strict_lapping", "strict_exits", "strict_races"), chosen.strict)
    reached, rows, results = Coverage(), [], set()
    for report in launch_each(
        ptx, chosen.grid, chosen.block, arguments,
        interleavings=interleavings(chosen.interleavings, chosen.seed), jobs=chosen.jobs,
        cluster=chosen.cluster, dynamic_smem=chosen.dynamic_smem, entry=chosen.entry, check="report",
        **strict,
    ):  # fmt: skip
        reached = reached.merged(report.coverage)
        results.add(tuple(array.tobytes() for array in arrays.values()))
        rows.append(
            {
                "interleaving": str(report.interleaving),
                "ok": report.ok,
                "instructions": report.instructions,
                "seconds": round(report.seconds, 3),
                "errors": report.error_count,
                "warnings": report.warning_count,
                "findings": [{"code": f.code, "error": f.error, "text": str(f)} for f in report.findings],
            }
        )
        if not chosen.json:
            _say(str(report))
    if chosen.out is not None:
        chosen.out.mkdir(parents=True, exist_ok=True)
        for i, array in arrays.items():
            np.save(chosen.out / f"argument_{i}.npy", array)
    ok = all(row["ok"] for row in rows)
    if chosen.json:
        record = {"ptx": str(chosen.ptx), "purpose": PURPOSE, "runs": rows, "results": len(results), "ok": ok}
        _say(json.dumps({**record, "coverage": reached.as_dict()} if chosen.coverage else record, indent=1))
        return ok
    if len(results) > 1:
        _say(f"the arrays differ between interleavings: {len(results)} different results")
    if chosen.coverage:
        _say(f"What {len(rows)} runs reached together: {reached.describe()}")
    return ok


def _script(chosen: argparse.Namespace) -> bool:
    from .script import summary
    from .script.program import check_program

    if not chosen.program.is_file():
        raise LaunchError(f"{chosen.program} is no file", fix="give the path of the program")
    outcome = check_program(
        chosen.program, chosen.rest, arch=chosen.arch, interleavings=chosen.interleavings, seed=chosen.seed,
        sms=chosen.sms, explain=chosen.explain, quiet=chosen.json,
    )  # fmt: skip
    if chosen.json:
        _say(json.dumps(outcome.as_dict(chosen.coverage), indent=1))
        return outcome.ok
    _say(summary(outcome.session))
    if chosen.coverage:
        for kernel, reached in outcome.session.coverage().items():
            _say(f"What all launches of {kernel.entry} reached together: {reached}")
    if outcome.failure:
        sys.stderr.write(f"the program failed: {outcome.failure}\n")
    return outcome.ok


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point: 0 when everything passed, 1 when a check or the program failed, 2 for bad arguments."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    given = list(sys.argv[1:] if arguments is None else arguments)
    first = argparse.ArgumentParser("ptx-emulator", description=PURPOSE)
    first.add_argument(
        "command", choices=("run", "script"), help="one kernel of a PTX file, or a program's launches"
    )
    first.add_argument(
        "rest", nargs=argparse.REMAINDER, metavar="...", help="`ptx-emulator run -h` lists them"
    )
    command = first.parse_args(given[:1]).command
    try:
        if command == "script":
            return 0 if _script(_script_parser().parse_args(given[1:])) else 1
        # Arguments of the kernel may stand between options.
        return 0 if _run(_run_parser().parse_intermixed_args(given[1:])) else 1
    except PtxEmulatorError as error:
        sys.stderr.write(f"{error}\n")
        return 2
