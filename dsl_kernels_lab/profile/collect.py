"""Collectors: Nsight Compute as a command, and what is known without it. Each says what it could not read.

Nsight Compute runs once, without fixing the clocks, and reads only the counters that a fingerprint needs.
Reports contain the kernels' code, so they stay where they were written; only extracted JSON is kept
elsewhere.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dsl_kernels.errors import InvalidArgumentError, ToolchainError

from . import metrics
from .model import KernelReport

INSTALL = "install Nsight Compute 2025.3 or newer (it comes with the CUDA toolkit) and put `ncu` on PATH"
COUNTERS = (
    "let the driver serve counters to this user (NVreg_RestrictProfilingToAdminUsers=0), or run as root; "
    "`profile target`, static data and the emulator need none"
)
PLACES = (
    "/usr/local/cuda/bin/ncu",
    "/usr/local/cuda/nsight-compute-*/ncu",
    "/opt/nvidia/nsight-compute/*/ncu",
)
CACHES = {"cold": "all", "warm": "none"}
# An empty kernel in PTX, so that probing the counters needs no compiler.
PROBE = """
from cuda.bindings import driver as d
def ok(r):
    if r[0]: raise SystemExit(str(r[0]))
    return r[1] if len(r) == 2 else None
ok(d.cuInit(0)); device = ok(d.cuDeviceGet(0))
ok(d.cuCtxSetCurrent(ok(d.cuDevicePrimaryCtxRetain(device))))
ptx = b'.version 7.8\\n.target sm_90\\n.address_size 64\\n.visible .entry probe() { ret; }\\n\\0'
module = ok(d.cuModuleLoadData(ptx))
ok(d.cuLaunchKernel(ok(d.cuModuleGetFunction(module, b'probe')), 1, 1, 1, 32, 1, 1, 0, 0, 0, 0))
ok(d.cuCtxSynchronize())
"""


def find_ncu() -> Path:
    """Path of Nsight Compute's command line.

    Raises:
        ToolchainError: code NCU_MISSING.
    """
    if on_path := shutil.which("ncu"):
        return Path(on_path)
    for pattern in PLACES:
        if installed := sorted(Path("/").glob(pattern.lstrip("/"))):
            return installed[-1]
    raise ToolchainError(
        "ncu", expected="Nsight Compute's command line", got="none found", fix=INSTALL, code="NCU_MISSING"
    )


def version(ncu: Path) -> str:
    """The version, e.g. "2025.3.1.0"; "" if ncu does not print one."""
    try:
        text = subprocess.run(
            [str(ncu), "--version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    match = re.search(r"Version (\d+(?:\.\d+)+)", text.stdout)
    return match[1] if match else ""


def command(
    program: Sequence[str],
    report: Path,
    *,
    chip: str = "GH100",
    kernel: str | None = None,
    cache: str = "cold",
    full: bool = False,
    from_start: bool = False,
    ncu: str = "ncu",
) -> list[str]:
    """The command that profiles the kernels that `program` launches into `report` (.ncu-rep).

    Args:
        chip: "GH100" or "GB100", whose counters have different names.
        kernel: regular expression of the kernels to look at; all by default.
        cache: "cold" flushes the caches before every pass, as inputs that rotate past the L2 do; "warm" does
            not.
        full: also collect every section of Nsight Compute, for its own rules; some forty passes.
        from_start: profile from the program's first kernel on, not from its profiler start.
    """
    asked = ["--set", "full"] if full else ["--section", "LaunchStats", "--section", "Occupancy"]
    return [
        ncu, "--profile-from-start", "on" if from_start else "off", "--target-processes", "all",
        "--clock-control", "none", "--cache-control", CACHES[cache], "--nvtx", *asked,
        "--metrics", ",".join(metrics.counters(chip)),
        *(["--kernel-name", f"regex:{kernel}"] if kernel else []),
        "--force-overwrite", "--export", str(report), *program,
    ]  # fmt: skip


def complete(argv: Sequence[str], timeout: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run a profiler and its program in their own session, and kill the whole session at a timeout.

    If only the profiler were killed, the program would survive it and keep the GPU's counters.

    Raises:
        subprocess.TimeoutExpired: it did not end in time.
    """
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
    return subprocess.CompletedProcess(argv, process.returncode, out, err)


def run(argv: Sequence[str], *, timeout: float | None = None) -> str:
    """Run Nsight Compute; returns what it and the program printed.

    Raises:
        ToolchainError: NCU_MISSING, NCU_COUNTERS (not available), NCU_NO_KERNEL (none matched), NCU_FAILED.
    """
    try:
        done = complete(argv, timeout)
    except FileNotFoundError:
        raise ToolchainError(
            argv[0],
            expected="Nsight Compute's command line",
            got="none found",
            fix=INSTALL,
            code="NCU_MISSING",
        ) from None
    except subprocess.TimeoutExpired:
        raise ToolchainError(
            "ncu",
            expected=f"an end within {timeout:.0f} s",
            got="none",
            fix="look at fewer kernels, or give it longer",
            code="NCU_FAILED",
        ) from None
    text = done.stdout + done.stderr
    refuse(text, done.returncode)
    return text


def refuse(text: str, status: int = 0) -> None:
    """Raise the typed error for ncu's output, if it reports one."""
    if (
        "ERR_NVGPUCTRPERM" in text
        or "LibraryNotLoaded" in text
        or "Failed to initialize the profiler" in text
    ):
        line = next(
            line for line in text.splitlines() if "==ERROR==" in line or "ERR_NV" in line or "Failed" in line
        )
        raise ToolchainError(
            "performance counters",
            expected="an answer",
            got=line.strip("= "),
            fix=COUNTERS,
            code="NCU_COUNTERS",
        )
    if "No kernels were profiled" in text:
        raise ToolchainError(
            "ncu",
            expected="a kernel to look at",
            got="none that matched was launched",
            fix="correct --kernel, or list what runs with `profile kernels`",
            code="NCU_NO_KERNEL",
        )
    errors = [line.strip("= ") for line in text.splitlines() if line.startswith("==ERROR==")]
    if errors or status:
        last = errors[:3] or text.strip().splitlines()[-3:] or ["no output"]
        raise ToolchainError(
            "ncu",
            expected="a report",
            got=" | ".join(last)[:1000],
            fix="run the program without ncu first; then the printed command by hand",
            code="NCU_FAILED",
        )


def raw_csv(report: Path, ncu: str = "ncu") -> str:
    """The raw page of a report as CSV in base units, a format that `read` takes."""
    argv = [ncu, "--import", str(report), "--page", "raw", "--csv", "--print-units", "base"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def details_csv(report: Path, ncu: str = "ncu") -> str:
    """The details page of a report as CSV, which contains Nsight Compute's own rules."""
    argv = [ncu, "--import", str(report), "--page", "details", "--csv"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def counters_answer(ncu: Path) -> str | None:
    """Why counters cannot be read; None if an empty kernel could be counted."""
    argv = [
        str(ncu), "--clock-control", "none", "--metrics", metrics.CYCLES, sys.executable, "-c", PROBE,
    ]  # fmt: skip
    try:
        run(argv, timeout=120)
    except ToolchainError as error:
        return f"{error.code}: {error.got}"
    return None


def doctor(gpu: bool) -> Iterator[dict[str, str]]:
    """Rows about the profiler, in the form that `doctor` prints: check, status, found, fix.

    Args:
        gpu: whether there is a GPU; without one the counters are not tried.
    """
    try:
        ncu = find_ncu()
    except ToolchainError as error:
        yield {
            "check": "ncu",
            "status": "note",
            "found": "not installed (for `profile collect`)",
            "fix": error.fix,
        }
        return
    yield {"check": "ncu", "status": "ok", "found": f"{version(ncu) or 'version unknown'} {ncu}", "fix": ""}
    if gpu:
        why = counters_answer(ncu)
        yield {
            "check": "counters",
            "status": "ok" if why is None else "note",
            "found": "answer" if why is None else why,
            "fix": "" if why is None else COUNTERS,
        }


def static(variant: Any) -> KernelReport:
    """A compiled variant's registers, spills, shared memory and opcode counts; needs no GPU.

    Raises:
        DslKernelError: the variant is not compiled and cannot be.
    """
    from dsl_kernels.runtime import bundle, store

    artifact, _ = store.fetch(variant, bundle.CUBIN)
    r = artifact.resources
    figures: dict[str, float] = {
        metrics.REGISTERS: r.registers,
        metrics.SHARED[0]: r.dynamic_smem,
        metrics.SHARED[1]: r.static_smem,
        "static__spill_stores": r.spill_stores,
        "static__spill_loads": r.spill_loads,
        **{f"sass__{name}": count for name, count in artifact.evidence.items()},
    }
    x, y, z = artifact.block
    return KernelReport(
        variant.id,
        "static",
        arch=variant.arch.rstrip("a"),
        metrics=figures,
        block=(x, y, z),
        missing=("time", "stalls", "bytes moved", "units"),
    )


def emulated(variant: Any) -> KernelReport:
    """`static`, plus the emulator's counts on the first tiny workload: instructions, bytes, sectors.

    Raises:
        DslKernelError: the variant cannot be compiled, or takes none of the tiny workloads.
    """
    from dsl_kernels.executors import Emulator

    from ..verification import trial

    known = static(variant)
    chosen = trial.workloads(variant, "tiny")
    if not chosen:
        raise InvalidArgumentError(
            variant.id, expected="a tiny workload that it takes", got="none", fix="leave --emulate out"
        )
    executor = Emulator()
    trial.run(variant, chosen[0], executor, example=trial.cached_example(variant.op, chosen[0]))
    report = executor.report
    figures = {metrics.INSTRUCTIONS: report.instructions, **known.metrics}
    figures |= {f"emulator__{name}": float(count) for name, count in {**report.stats, **report.pipes}.items()}
    return replace(
        known,
        source="emulator",
        metrics=figures,
        label=chosen[0].name,
        missing=("time", "stalls", "caches", "units"),
    )
