"""Cold start: from the start of a process to the first result of a decode step, served from a bundle.

    python -m dsl_kernels bundle write build/aot --arch sm_90a
    python benchmarks/cold_start.py build/aot [--json] [--runs 7] [--context 32768] [--queries 1]

Each run is a fresh process without a DSL or a CUDA compiler, with an empty cache and
DSL_KERNELS_DISABLE_JIT=1, so that everything it launches comes from the bundle. It reports where its time
went; the last run also checks the step against the references. `ours` is everything except Python's start,
torch's import, the creation of the CUDA context and the upload of the inputs.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COMPILERS = ("tilelang", "tvm", "cutlass", "jinja2", "codegen")
BUDGET_MS = 300.0
OURS = ("import dsl_kernels", "first step on the host", "first step on the device")
PARTS = ("select", "bundle: open", "bundle: read and verify", "load onto the GPU", "launch")


class Hidden(importlib.abc.MetaPathFinder):
    """Hides the DSLs and the generator from import."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname.split(".")[0] in COMPILERS:
            raise ModuleNotFoundError(f"{fullname} is hidden by this benchmark", name=fullname)


def child(inputs: str, context: int, check: bool) -> dict[str, Any]:
    """One cold start. Heavy imports are inside it, because they are part of what is measured."""
    stamps = [("start of Python", time.monotonic_ns())]
    sys.meta_path.insert(0, Hidden())
    sys.path.insert(0, str(ROOT))

    def stamp(name: str) -> None:
        stamps.append((name, time.monotonic_ns()))

    import torch

    stamp("import torch")
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    stamp("CUDA context")
    from safetensors.torch import load_file

    tensors = load_file(inputs, device="cuda")
    torch.cuda.synchronize()
    stamp("inputs to the GPU")
    import dsl_kernels.dsa
    from dsl_kernels import ops, registry
    from dsl_kernels.runtime import bundle, launch, store

    stamp("import dsl_kernels")
    parts = dict.fromkeys(PARTS, 0.0)
    for name, owner, attribute in (
        ("select", registry, "select"),
        ("bundle: open", bundle, "active"),
        ("bundle: read and verify", store, "load"),
        ("load onto the GPU", launch.LoadedKernel, "prepare"),
        ("launch", launch.LoadedKernel, "launch"),
    ):
        setattr(owner, attribute, timed(getattr(owner, attribute), parts, name))
    workspace = ops.Workspace()
    stamp("(timers)")

    def step() -> Any:
        return dsl_kernels.dsa.decode(**tensors, sm_scale=0.135, workspace=workspace)

    output = step()
    stamp("first step on the host")
    torch.cuda.synchronize()
    stamp("first step on the device")
    first = dict(parts)
    step()
    torch.cuda.synchronize()
    stamp("second step")
    first["bundle: read and verify"] -= first["bundle: open"]
    result: dict[str, Any] = {
        "stamps": stamps,
        "parts": {name: seconds * 1e3 for name, seconds in first.items()},
        "variants": [pick.variant.id for pick in ops.selections()],
        "rules": [pick.rule for pick in ops.selections()],
        "compilers": sorted({name.split(".")[0] for name in sys.modules} & set(COMPILERS)),
        "nvcc": nvcc(),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    if check:
        from dsl_kernels_lab import steps
        from dsl_kernels_lab.steps import check as step_check

        inputs_of_step = steps.StepInputs("decode", tensors, topk=2048, sm_scale=0.135)
        comparisons = step_check.check(inputs_of_step, output, workspace)
        result["checks"] = {
            op: {"ok": comparison.ok, "figures": comparison.figures, "failures": comparison.failures}
            for op, comparison in comparisons.items()
        }
    return result


def timed(function: Any, seconds: dict[str, float], name: str) -> Any:
    def call(*args: Any, **options: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            seconds[name] += time.perf_counter() - begin

    return call


def nvcc() -> str:
    """The path of a CUDA compiler, or why there is none."""
    from dsl_kernels.errors import ToolchainError
    from dsl_kernels.runtime import toolkit

    try:
        return str(toolkit.nvcc().path)
    except ToolchainError as error:
        return f"none: {error.got}"


def environment(bundle: Path, cache: str) -> dict[str, str]:
    """The environment of a run: no compiler on PATH, an empty cache, no compiling."""
    path = [
        entry
        for entry in os.environ.get("PATH", "").split(os.pathsep)
        if entry and shutil.which("nvcc", path=entry) is None
    ]
    dropped = (
        "CUDA_HOME",
        "CUDA_PATH",
        "PYTHONDONTWRITEBYTECODE",
        "DSL_KERNELS_EXECUTOR",
    )
    return {
        **{name: value for name, value in os.environ.items() if name not in dropped},
        "PATH": os.pathsep.join(path),
        "DSL_KERNELS_BUNDLE_DIR": str(bundle),
        "DSL_KERNELS_CACHE_DIR": cache,
        "DSL_KERNELS_DISABLE_JIT": "1",
    }


def run(bundle: Path, inputs: Path, options: argparse.Namespace, check: bool) -> dict[str, Any]:
    """Start one child; returns its report, with times from its start."""
    with tempfile.TemporaryDirectory() as cache:
        command = [
            sys.executable,
            __file__,
            str(bundle),
            "--child",
            str(inputs),
            *(["--check"] if check else []),
        ]
        begin = time.monotonic_ns()
        done = subprocess.run(
            command, env=environment(bundle, cache), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(done.stderr)
        report = json.loads(done.stdout.splitlines()[-1])
        report["cached"] = sum(1 for path in Path(cache).rglob("*") if path.is_file())
    before = begin
    report["ms"] = {}
    for name, at in report.pop("stamps"):
        report["ms"][name] = (at - before) / 1e6
        before = at
    return report


def summary(reports: list[dict[str, Any]], bundle: Path) -> dict[str, Any]:
    """Medians over the runs, and the observations and checks of the last run."""
    last = reports[-1]
    ms = {name: statistics.median(r["ms"][name] for r in reports) for name in last["ms"]}
    steps = [name for name in ms if name not in ("second step", "(timers)")]
    return {
        "gpu": last["gpu"],
        "torch": last["torch"],
        "python": sys.version.split()[0],
        "bundle": {
            "variants": len(json.loads((bundle / "bundle.json").read_text())["variants"]),
            "bytes": sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file()),
        },
        "present before hiding": [name for name in COMPILERS if importlib.util.find_spec(name) is not None],
        "compilers imported": last["compilers"],
        "nvcc": last["nvcc"],
        "files written to the cache": last["cached"],
        "variants": dict(zip(last["variants"], last["rules"], strict=True)),
        "checks": last.get("checks"),
        "ok": all(checked["ok"] for checked in last["checks"].values()),
        "runs": len(reports),
        "ms": {name: ms[name] for name in ms if name != "(timers)"},
        "ms of the first step": {
            name: statistics.median(r["parts"][name] for r in reports) for name in last["parts"]
        },
        "total ms": statistics.median(sum(r["ms"][name] for name in steps) for r in reports),
        "total without torch, context and inputs, ms": statistics.median(
            r["ms"]["start of Python"] + sum(r["ms"][name] for name in OURS) for r in reports
        ),
        "ours ms": statistics.median(sum(r["ms"][name] for name in OURS) for r in reports),
        "budget ms": BUDGET_MS,
    }


def write_inputs(path: Path, options: argparse.Namespace) -> None:
    """Draw inputs of a decode step in a process of its own, so that this one allocates no GPU memory."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from dsl_kernels_lab import steps\n"
        f"size = steps.StepSize(batch={options.queries}, context={options.context}, heads={options.heads})\n"
        f"steps.save(steps.draw(size, device='cuda')[0], {str(path)!r})\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--queries", type=int, default=1)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--child", metavar="INPUTS", help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child, options.context, options.check)))
        return 0
    bundle = options.bundle.absolute()
    with tempfile.TemporaryDirectory() as folder:
        inputs = Path(folder) / "step.safetensors"
        write_inputs(inputs, options)
        run(bundle, inputs, options, check=False)  # fills Python's bytecode and the page cache
        reports = [run(bundle, inputs, options, check=i == options.runs - 1) for i in range(options.runs)]
    result = summary(reports, bundle)
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        print(f"{result['gpu']}, torch {result['torch']}, bundle of {result['bundle']['variants']} variants")
        for name, value in result["ms"].items():
            print(f"{name:<48}{value:9.1f} ms")
        for name, value in result["ms of the first step"].items():
            print(f"  first step: {name:<34}{value:9.1f} ms")
        for name in ("total ms", "total without torch, context and inputs, ms", "ours ms", "budget ms"):
            print(f"{name:<48}{result[name]:9.1f}")
        print("matches the references" if result["ok"] else f"WRONG: {result['checks']}")
    clean = (
        not result["compilers imported"]
        and result["nvcc"].startswith("none")
        and not result["files written to the cache"]
    )
    return 0 if result["ok"] and clean else 1


if __name__ == "__main__":
    sys.exit(main())
