"""Measure the constants of a model of one SM: instructions, hand-overs, fetches, launches, loads.

    python benchmarks/clock_rates.py --record PATH      # on a Hopper GPU or a B200, with nvcc 12.8 or newer
    python benchmarks/clock_rates.py --quick            # measure each once
    python benchmarks/clock_rates.py --only REGEX       # measure some of the items
    python benchmarks/clock_rates.py --names            # print what each figure is; needs no GPU

Builds clock_rates.cu for the GPU at hand and runs it. Products are wgmma on Hopper and tcgen05 on Blackwell,
whose items have run in the emulator only. A figure is the median of seven launches after a warm-up. An item
that fails, takes longer than `PATIENCE_S`, or would begin after `LIMIT_S` in all, is reported as missing with
its error; the others are still measured. PATH gets `gpu`, `driver`, `commit`, `command`, `date`, `rates`
(name -> value and unit) and `missing` (item -> error).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dsl_kernels.arguments import require_known  # noqa: E402
from dsl_kernels.cli import _machine  # noqa: E402
from dsl_kernels.errors import (  # noqa: E402
    CompileError,
    DslKernelError,
    ExecutorUnavailableError,
    InvalidArgumentError,
)
from dsl_kernels.runtime import toolkit  # noqa: E402
from dsl_kernels_lab.timing import bench  # noqa: E402

SOURCE = Path(__file__).with_suffix(".cu")
# nvcc's options for each architecture.
TARGETS = {
    "sm_90a": ("-gencode=arch=compute_90a,code=sm_90a",),
    "sm_100a": ("-gencode=arch=compute_100a,code=sm_100a", "-DBLACKWELL"),
}
# Longer than any item takes, including the first one, which clears 4 GiB.
PATIENCE_S = 20.0
# The time of all items together; what is left then is missing.
LIMIT_S = 170.0

# Pattern of names -> what the figure is. "clk" is in clocks of the SM.
PRODUCTS = "(bf16|e4m3)(_half|_third|_n64|_registers)?"
UNITS = "ffma|lop3|mufu_ex2|lds_128"
NAMES = {
    r"wgmma_(bf16|e4m3)_n\d+_(shared|registers)": (
        "clocks an m64nNk16 (bf16) or m64nNk32 (e4m3) product: 1024 of them on one accumulator by one "
        "warpgroup, "
        "16 a group and a second group in flight; A from shared memory or from registers"
    ),
    r"wgmma_(bf16|e4m3)_n\d+_(shared|registers)_two": (
        "the same by two warpgroups with an accumulator each: the SM's clocks divided by all their products"
    ),
    r"wgmma_(bf16|e4m3)_n\d+_lone": (
        "clocks of a turn that fences, issues one product with A from shared memory, commits it and waits "
        "for it "
        "(wait_group 0)"
    ),
    r"tcgen05_(bf16|e4m3)_m(64|128)_n\d+_(shared|tensor)": (
        "clocks a product of 32 bytes of K: 1024 of them on one accumulator by one thread, over the four "
        "steps of a tile "
        "of 128 bytes; A from shared memory or from tensor memory. Fewer clocks in `_two` say that a "
        "product waits "
        "for the one before on its accumulator"
    ),
    r"tcgen05_(bf16|e4m3)_m(64|128)_n\d+_two": "the same on two accumulators in turn, A from shared memory",
    r"tcgen05_(bf16|e4m3)_m(32|64|128)_n\d+_ws": "the same by tcgen05.mma.ws on one accumulator, A from "
    "shared memory",
    r"tcgen05_(bf16|e4m3)_m128_n\d+_lone": (
        "clocks of a turn that issues one product with A from shared memory, commits it and waits on the "
        "mbarrier"
    ),
    r"tcgen05_(ld|st)_\d+warps": (
        "columns of 32 lanes, 128 bytes, a clock and scheduler that so many warps read from tensor memory "
        "(or write to "
        "it): 32 columns an instruction, two instructions before a wait"
    ),
    r"tcgen05_ld_latency": "clocks of a load of one column and its wait, of one warp on each scheduler",
    r"unit_\w+_(1|4|16)warps": (
        "warp-instructions a clock of an SM with so many warps, each with 16 independent chains (8 where an "
        "instruction has four registers). 128 of them in a turn with three instructions of a loop. "
        "mufu_rcp: each "
        "with an FADD, or ptxas would drop them. vote: each with an ISETP. redux: each with the move out "
        "of its "
        "uniform register. weight: an FFMA, an exponential and an FADD, as for a weight of a softmax. "
        "hfma2: every second one is HFMA2.MMA. lds_32, lds_128, atoms_add, sts_128: a "
        "lane's own "
        "word or 16 bytes beside its neighbours'; ldmatrix_x4, stmatrix_x4: 32 rows of 16 bytes side "
        "by side. "
        "atoms_add: with its result"
    ),
    r"unit_\w+_latency": (
        "clocks from one such instruction to the next that takes its result, by one warp; with the second "
        "instruction "
        "where the rate has one"
    ),
    r"hand_mbarrier": "clocks from an arrival on an mbarrier by one warp to its waiting warp's own arrival: "
    "half a round trip",
    r"hand_passed": "clocks of a wait for an mbarrier whose phase is complete, by one thread",
    r"hand_bar_sync_\d+warps": "clocks of a bar.sync of so many warps that do nothing else",
    r"hand_cluster_barrier_\d+ctas(_relaxed)?": (
        "clocks of barrier.cluster.arrive (release, or relaxed) and .wait of so many CTAs of 4 warps"
    ),
    r"hand_st_async": (
        "clocks from st.async to the other CTA of a cluster until that CTA, having waited on its mbarrier "
        "and armed "
        "it again, sends: half a round trip"
    ),
    r"hand_global_flag": (
        "clocks from st.release.gpu to the loop of ld.acquire.gpu on another SM that sees it: half a "
        "round trip"
    ),
    r"fetch_ld_global_(l2|hbm)": "clocks of a load of 8 bytes whose address needs the one before; one "
    "thread, scattered lines of 64 MB",
    r"fetch_cp_async_(l2|hbm)": "clocks of a cp.async of 16 bytes from issue to wait_group 0, likewise",
    r"fetch_bulk_\d+k_(l2|hbm)": (
        "clocks of a cp.async.bulk of so many KB from arrive.expect_tx to the end of the mbarrier's wait"
    ),
    r"fetch_tma_box_64x128_(l2|hbm)": (
        "the same of a box of 64 rows of 128 bytes by a tensor map, rows 1 KB apart, 128-byte swizzle"
    ),
    r"stream_cp_async_\d+k_(l2|hbm)": (
        "bytes a clock of one SM with the others idle: cp.async by 128 threads, groups of 2 KB, so many KB "
        "in flight"
    ),
    r"stream_bulk_8k_x\d_(l2|hbm)": "the same by cp.async.bulk of 8 KB by one thread, so many in flight",
    r"stream_ld_v4_\d+k_(l2|hbm)": "the same by 16-byte loads of 1024 threads, so many KB in flight",
    r"all_(l2|hbm)_(gbs|clk)": (
        "16-byte loads by all SMs of 16 MB again and again (l2) or of 4 GiB (hbm): GB/s by CUDA events, and "
        "bytes a "
        "clock of the SM"
    ),
    r"graph_empty_(one_cta|all_sms)(_dependent)?": (
        "microseconds a kernel in a CUDA graph of 100 empty ones of 128 threads, ten replays in a row; "
        "_dependent: "
        "programmatic dependent launches that let the next begin at once and wait for the one before"
    ),
    rf"load_(idle|spin|hbm|l2|{PRODUCTS}|{UNITS})_(nvml_mhz|watts)": (
        "SM clock and power as NVML tells them in the second half of 3 s: idle with a context, one warp "
        "that waits, all SMs reading HBM or 16 MB in the L2, all SMs (or half or a third) in products "
        "on normal values: on Hopper m64n256 of two warpgroups (or m64n64; or with A from registers), on "
        "Blackwell m128n240 on two accumulators; or 16 warps of each SM in the unit's instructions"
    ),
    rf"load_(spin|hbm|l2|{PRODUCTS}|{UNITS})_mhz": (
        "the SM's clock over the last launch of that load: its clocks by its nanoseconds"
    ),
    r"load_(hbm|l2)_gbs|load_(bf16|e4m3)(_half|_third)?_tflops": (
        "GB/s and TFLOP/s in the second half of those 3 s"
    ),
}


def meaning(name: str) -> str | None:
    """What the figure of that name is; None if the name is unknown."""
    return next((text for pattern, text in NAMES.items() if re.fullmatch(pattern, name)), None)


def build(folder: Path, arch: str) -> Path:
    """Compile the program for an architecture, in `folder`; returns its path.

    Raises:
        UnknownNameError: no products are written for that architecture.
        ToolchainError: nvcc is missing or too old.
        CompileError: nvcc refuses the source; quotes its output.
    """
    require_known("arch", arch, TARGETS, "architecture")
    program = folder / "clock_rates"
    target = ("-std=c++17", *TARGETS[arch])
    command = [str(toolkit.nvcc().path), "-O3", *target, "--split-compile=0", "-o", str(program), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CompileError(
            SOURCE.name,
            expected=f"nvcc to compile it for {arch}",
            got=(done.stderr + done.stdout).strip(),
            fix="use nvcc 12.8 or newer with a host compiler that it supports",
        )
    return program


def items(program: Path, only: str = "") -> list[str]:
    """The items that the program can measure and in whose names `only` is found, in the program's order."""
    listed = subprocess.run([str(program), "--list"], capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.split() if re.search(only, name)]
    if not names:
        raise InvalidArgumentError(
            "only", expected="a pattern that an item has", got=only, fix="see `clock_rates --list`"
        )
    return names


def measure(
    command: list[str],
    wanted: list[str],
    patience: float = PATIENCE_S,
    limit: float = LIMIT_S,
    note: Callable[
        [list[str], dict[str, dict[str, Any]], dict[str, str]], None
    ] = lambda left, rates, missing: None,
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Rates and missing items. If an item crashes or hangs the program, it is restarted with the items after
    it.

    Args:
        note: called with the items left, the rates and the missing items, whenever an item is done.
    """
    rates: dict[str, dict[str, Any]] = {}
    missing: dict[str, str] = {}
    left, deadline = list(wanted), time.monotonic() + limit
    while left and time.monotonic() < deadline:
        error = _run([*command, *left], left, rates, patience, deadline, lambda: note(left, rates, missing))
        if left and time.monotonic() < deadline:
            missing[left.pop(0)] = error
        note(left, rates, missing)
    missing |= dict.fromkeys(left, f"not measured: the {limit:g} s of all items were over")
    return rates, missing


def _run(
    command: list[str], left: list[str], rates: dict[str, dict[str, Any]], patience: float, deadline: float,
    note: Callable[[], None],
) -> str:  # fmt: skip
    """Run the program once; removes finished items from `left`, and returns the error that ended it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        error, heard, hung = "", time.monotonic(), threading.Event()

        def watch() -> None:
            while process.poll() is None:
                if time.monotonic() > min(heard + patience, deadline):
                    hung.set()
                    process.kill()
                time.sleep(0.1)

        threading.Thread(target=watch, daemon=True).start()
        for line in process.stdout or ():
            heard = time.monotonic()
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                error = line.strip()
            elif "name" in message:
                rates[message.pop("name")] = message
            elif "done" in message:
                left.remove(message["done"])
                note()
            else:
                error = message["error"]
    if hung.is_set():
        return f"no answer in {time.monotonic() - heard:.0f} s"
    return error or f"the program ended with exit status {process.returncode}"


def arch_at_hand() -> str:
    """Architecture of the first GPU.

    Raises:
        ExecutorUnavailableError: there is no GPU, or its architecture is not in `TARGETS`.
    """
    archs = [gpu["arch"] for gpu in _machine.gpus()]
    if not archs or archs[0] not in TARGETS:
        raise ExecutorUnavailableError(
            "GPU",
            expected=f"one of {', '.join(TARGETS)}",
            got=str(archs[0]) if archs else "none",
            fix="run it on a Hopper GPU or a B200; --names says what is measured",
        )
    return archs[0]


def gpu_name() -> str | None:
    """Name of the GPU, by nvidia-smi; None if that fails."""
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def record(path: Path, rates: dict[str, dict[str, Any]], missing: dict[str, str]) -> None:
    """Write the figures with their GPU, driver, commit, command and date."""
    content = {
        "gpu": gpu_name(),
        "driver": bench.driver_version(),
        "commit": bench.commit(),
        "command": bench.command(sys.argv),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "rates": rates,
        "missing": missing,
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def table(rates: dict[str, dict[str, Any]], missing: dict[str, str]) -> str:
    """The figures, one per line, each kind after a line that says what it is."""
    lines, last = [], None
    for name, rate in rates.items():
        if (text := meaning(name)) != last:
            last = text
            lines.append(f"\n# {text}")
        lines.append(f"{name:<36} {rate['value']:>12.4g} {rate['unit']}")
    return "\n".join([*lines, *(f"{name:<36} {'missing':>12} {error}" for name, error in missing.items())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, help="the JSON file to write")
    parser.add_argument("--quick", action="store_true", help="measure each once")
    parser.add_argument("--only", default="", help="measure items in which this pattern is found")
    parser.add_argument("--names", action="store_true", help="print what each figure is")
    options = parser.parse_args()
    if options.names:
        print("\n".join(f"{pattern}\n    {text}" for pattern, text in NAMES.items()))
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            program = build(Path(folder), arch_at_hand())
            wanted = items(program, options.only)
        except DslKernelError as error:
            sys.exit(str(error))
        rates, missing = measure([str(program), *(["--quick"] if options.quick else [])], wanted)
    if options.record:
        record(options.record, rates, missing)
    print(table(rates, missing))


if __name__ == "__main__":
    main()
