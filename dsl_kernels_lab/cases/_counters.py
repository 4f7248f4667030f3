"""Hardware counters of a case's launches, read by Nsight Compute in one process for each case.

A marker kernel runs before every launch, so that order alone tells which rows of the report belong to which
launch.
"""

from __future__ import annotations

import glob
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dsl_kernels.errors import ToolchainError

from ..profile import KernelReport, readers
from ..profile.collect import complete
from ..profile.metrics import CHIPS, DURATION, STALL, stalls
from ._cuda import Source
from .base import Case, judged

WARM_UPS = 3
# The least time for a process that imports torch, draws inputs and launches them under the profiler.
LEAST_SECONDS = 10.0
MARKER = Source('extern "C" __global__ void case_marker() {}', "marker")
METRICS = (
    "gpu__time_duration.sum",
    "sm__cycles_elapsed.max",
    "sm__cycles_active.avg",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
    "l1tex__throughput.avg.pct_of_peak_sustained_active",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "lts__t_sector_hit_rate.pct",
    "lts__t_sectors_op_read.sum",
    "lts__t_sectors_op_red.sum",
    "lts__t_sectors_op_atom.sum",
    "l1tex__m_xbar2l1tex_read_bytes.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__issue_active.avg.per_cycle_active",
    "smsp__warps_eligible.avg.per_cycle_active",
    "smsp__average_warp_latency_per_inst_issued.ratio",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "launch__registers_per_thread",
    "launch__shared_mem_per_block_dynamic",
    "launch__occupancy_limit_registers",
    "launch__occupancy_limit_shared_mem",
    "launch__occupancy_limit_warps",
    "launch__waves_per_multiprocessor",
)


def metrics() -> list[str]:
    """Metrics to ask for on this GPU."""
    import torch

    major, minor = torch.cuda.get_device_capability() if torch.cuda.is_available() else (0, 0)
    reasons = sorted(stalls(CHIPS.get(f"sm_{major}{minor}", "")))
    return [*METRICS, *map(STALL.format, reasons)]


def ncu() -> str:
    """Nsight Compute's command.

    Raises:
        ToolchainError: it is not installed.
    """
    path = shutil.which("ncu") or next(
        iter(sorted(glob.glob("/opt/nvidia/nsight-compute/*/ncu") + glob.glob("/usr/local/cuda*/bin/ncu"))),
        None,
    )
    if path is None:
        raise ToolchainError(
            "ncu",
            expected="Nsight Compute on the PATH",
            got="none",
            fix="install Nsight Compute; without it a case has times but no counters",
        )
    return path


def command(case: Case, launches: Sequence[str], log: str) -> list[str]:
    """The command that profiles the launches and writes a CSV of raw metrics to `log`."""
    wanted = "|".join(dict.fromkeys(case.launch(name).kernel for name in launches))
    return [
        ncu(), "--csv", "--page", "raw", "--print-units", "base", "--log-file", log,
        "--clock-control", "none", "--cache-control", "none", "--profile-from-start", "off",
        "--kernel-name", f"regex:case_marker|{wanted}", "--metrics", ",".join(metrics()),
        sys.executable, "-m", "dsl_kernels", "case", "run", case.name, "--launch", ",".join(launches),
    ]  # fmt: skip


def launch(case: Case, names: Sequence[str]) -> None:
    """Run launches as `command` expects: warm-ups, then a marker and one call inside the profiled range."""
    import torch

    for name in names:
        with torch.inference_mode():
            call: Callable[[], Any] = case.launch(name).prepare()
            for _ in range(WARM_UPS):
                call()
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            MARKER.launch("case_marker", 1, 32)
            call()
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
        del call
        torch.cuda.empty_cache()


def collect(
    case: Case, launches: Sequence[str] | None = None, *, timeout: float = 120.0
) -> dict[str, dict[str, Any]]:
    """Counters by launch: the kernel's name, and its metrics in base units.

    Raises:
        ToolchainError: no ncu, or it read nothing (counters not permitted, no matching kernel).
    """
    names = list(launches or case.launches)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        try:
            done = complete(command(case, names, str(log)), timeout)
            output = "\n".join(part[-800:] for part in (done.stdout, done.stderr) if part)
        except subprocess.TimeoutExpired:
            output = f"no end after {timeout:.0f} s"
        text = log.read_text() if log.exists() else ""
    counters = dict(by_launch(text, names))
    if not counters:
        raise ToolchainError(
            "ncu",
            expected="counters of " + ", ".join(names),
            got=(refusal(text) or output.strip() or "no kernel")[:1200],
            fix="run as root, or let the driver open the counters (NVreg_RestrictProfilingToAdminUsers=0)",
        )
    return counters


def add(record: dict[str, Any], case: Case, timeout: float = 120.0) -> None:
    """Add the counters of a case's launches to its record, or a note that says why there are none.

    Args:
        timeout: seconds for them; with less than LEAST_SECONDS none are read.
    """
    if not case.launches:
        return
    try:
        if timeout < LEAST_SECONDS:
            raise ToolchainError(
                "counters",
                expected=f"{LEAST_SECONDS:.0f} s for them",
                got=f"{max(timeout, 0):.0f} s that the case left",
                fix="give it longer: --budget, or --full",
            )
        record["counters"] = collect(case, timeout=timeout)
        missing = [name for name in case.launches if name not in record["counters"]]
        record["notes"] += [f"no counters of {', '.join(missing)}"] if missing else []
    except ToolchainError as error:
        record["notes"].append(f"no counters: {error}")
    record["expected"] = judged(case, record["counters"])


def refusal(text: str) -> str:
    """The errors in ncu's output."""
    return "\n".join(line for line in text.splitlines() if line.startswith("==ERROR==") or "ERR_NV" in line)


def by_launch(text: str, names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The longest kernel after each marker, in order of the launches."""
    groups: list[list[KernelReport]] = []
    for report in readers.reports(text, "ncu.csv") if readers.is_csv(text) else ():
        if report.kernel.startswith("case_marker"):
            groups.append([])
        elif groups:
            groups[-1].append(report)
    for name, group in zip(names, groups, strict=False):
        if group:
            report = max(group, key=lambda one: one.metrics.get(DURATION, 0.0))
            kernel = re.split(r"[(<]", report.kernel)[0].strip()[:200]
            yield name, {"kernel": kernel, "metrics": dict(report.metrics)}
