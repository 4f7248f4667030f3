"""Sixteen kernels that are slow for one known reason each: our diagnosis beside Nsight Compute's own rules.

    python benchmarks/planted_causes.py [--out FOLDER]   # on a GPU with ncu: collect, diagnose, time twins
    python benchmarks/planted_causes.py --launch         # only launch the kernels, for a profiler
    python benchmarks/planted_causes.py --read FOLDER    # diagnose collected counters; needs no GPU

If a kernel has a twin that does the same work without the cause, the twin's speed-up is listed beside the
bound of the diagnosis.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import json
import lzma
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsl_kernels import measured, variants
from dsl_kernels.errors import DslKernelError
from dsl_kernels_lab import profile
from dsl_kernels_lab.profile import collect

SOURCE = Path(__file__).with_suffix(".cu")
RAW, DETAILS, TWINS = "planted_raw.csv", "planted_details.csv", "planted_twins.json"
GIB = 1 << 30
ROWS = 4 * GIB
GPU = "NVIDIA H200"
KEPT = Path(__file__).resolve().parent.parent / "tests" / "unit" / "data"


@dataclass
class Launch:
    """A kernel with its grid, block and dynamic shared memory, and a function that makes its arguments."""

    kernel: str
    grid: int
    block: int
    arguments: Callable[[Any], list[Any]]
    shared: int = 0


@dataclass
class Planted:
    """A cause, a launch that has it, the same work without it, and the workload of the kernel."""

    cause: str
    slow: Launch | Callable[[Any], Callable[[], Any]]
    fixed: Launch | Callable[[Any], Callable[[], Any]] | None = None
    workload: profile.Workload = field(default_factory=profile.Workload)


def wide(value: int) -> ctypes.c_longlong:
    return ctypes.c_longlong(value)


def planted(sms: int) -> list[Planted]:
    """The sixteen kernels, sized for a card of `sms` SMs."""
    full = 2 * sms
    words = 32 << 20
    elements = 1 << 20
    random_rows = 256 << 10
    return [
        Planted(
            "spills",
            Launch("spills", 8 * full, 1024, lambda d: [d.noise, d.out, 24]),
            Launch("spills_fixed", 32 * full, 256, lambda d: [d.noise, d.out, 24]),
        ),
        Planted(
            "bank_conflicts",
            Launch("bank_conflicts", 4 * full, 1024, lambda d: [d.out, 256]),
            Launch("bank_conflicts_fixed", 4 * full, 1024, lambda d: [d.out, 256]),
        ),
        Planted(
            "wasted_sectors",
            Launch("wasted_sectors", full, 1024, lambda d: [d.large, d.out, wide(words)]),
            Launch("wasted_sectors_fixed", full, 1024, lambda d: [d.large, d.out, wide(words)]),
            profile.Workload(read_bytes=4.0 * words, unique_bytes=4.0 * words),
        ),
        Planted(
            "atomics",
            Launch("atomics", full, 1024, lambda d: [d.noise, d.out, elements]),
            Launch("atomics_fixed", full, 1024, lambda d: [d.noise, d.out, elements]),
        ),
        Planted(
            "divergence",
            Launch("divergence", 4 * full, 1024, lambda d: [d.out, 64]),
            Launch("divergence_fixed", 4 * full, 1024, lambda d: [d.out, 64]),
        ),
        Planted(
            "small_grid",
            Launch("sum_array", 16, 1024, lambda d: [d.large, d.out, wide((64 << 20) // 16)]),
            Launch("sum_array", full, 1024, lambda d: [d.large, d.out, wide((64 << 20) // 16)]),
        ),
        Planted(
            "tail",
            Launch("mixed_arithmetic", sms + 4, 1024, lambda d: [d.ints, 8000], shared=150 << 10),
            Launch(
                "mixed_arithmetic", sms, 1024, lambda d: [d.ints, 8000 * (sms + 4) // sms], shared=150 << 10
            ),
        ),
        Planted(
            "barrier",
            Launch("barrier", full, 1024, lambda d: [d.out, 200]),
            Launch("barrier_fixed", full, 1024, lambda d: [d.out, 200]),
        ),
        Planted(
            "dependency_chain",
            Launch("dependency_chain", 4 * sms, 128, lambda d: [d.out, 64 << 10], shared=150 << 10),
            Launch("dependency_chain_fixed", 4 * sms, 128, lambda d: [d.out, 64 << 10], shared=150 << 10),
        ),
        Planted(
            "dram_bound",
            Launch("sum_array", 2 * full, 1024, lambda d: [d.large, d.out, wide(GIB // 16)]),
            workload=profile.Workload(read_bytes=float(GIB), unique_bytes=float(GIB)),
        ),
        Planted("l2_bound", Launch("l2_bound", full, 1024, lambda d: [d.large, d.out, (16 << 20) // 16, 32])),
        Planted(
            "gather_at_ceiling",
            lambda d: fastest_gather(d, 64, 2 << 20),
            workload=profile.Workload(
                read_bytes=64.0 * (2 << 20), row_bytes=64, footprint_bytes=float(ROWS), order="random"
            ),
        ),
        Planted(
            "gather_below_ceiling",
            Launch(
                "gather_below_ceiling",
                sms,
                256,
                lambda d: [d.large, d.ids(1152, random_rows), d.out, random_rows, 72],
            ),
            lambda d: fastest_gather(d, 1152, random_rows),
            workload=profile.Workload(
                read_bytes=1152.0 * random_rows, row_bytes=1152, footprint_bytes=float(ROWS), order="random"
            ),
        ),
        Planted("tensor_bound", tensor_bound),
        Planted("issue_bound", Launch("mixed_arithmetic", full, 1024, lambda d: [d.ints, 8000])),
        Planted("sfu_bound", Launch("sfu_bound", full, 1024, lambda d: [d.out, 2000])),
    ]


class Data:
    """Inputs on the GPU, made once."""

    def __init__(self) -> None:
        import torch

        self.noise = torch.rand(1 << 20, device="cuda")
        self.large = torch.ones(GIB, device="cuda")
        self.out = torch.zeros(64 << 20, device="cuda")
        self.ints = torch.zeros(1 << 22, dtype=torch.int32, device="cuda")
        self._ids: dict[tuple[int, int], Any] = {}

    def ids(self, width: int, count: int) -> Any:
        """Indices of random rows of `width` bytes out of 4 GiB."""
        import torch

        key = (width, count)
        if key not in self._ids:
            self._ids[key] = torch.randint(ROWS // width, (count,), dtype=torch.int32, device="cuda")
        return self._ids[key]


def fastest_gather(data: Data, width: int, count: int) -> Callable[[], Any]:
    """Gather random rows of `width` bytes by the method that is fastest on this card."""
    import torch

    from dsl_kernels_lab.timing import calibrate

    total = ROWS // width
    rows, ids = data.large.view(torch.uint8)[: total * width].view(total, width), data.ids(width, count)
    timed = [
        (_us(lambda s=s: calibrate.gather({"rows": rows}, ids, s)), i)
        for i, s in enumerate(calibrate.SETTINGS)
    ]
    best = calibrate.SETTINGS[min(timed)[1]]
    return lambda: calibrate.gather({"rows": rows}, ids, best)


def tensor_bound(data: Data) -> Callable[[], Any]:
    """torch's product of two bf16 matrices."""
    import torch

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return lambda: a @ b


def _us(call: Callable[[], Any], launches: int = 5) -> float:
    """Microseconds of a call: the best of `launches`."""
    import torch

    call()
    torch.cuda.synchronize()
    best = float("inf")
    for _ in range(launches):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        best = min(best, 1e3 * begin.elapsed_time(end))
    return best


def callables() -> list[tuple[Planted, Callable[[], Any], Callable[[], Any] | None]]:
    """Each cause with the call that has it, and the call that does not."""
    from dsl_kernels_lab.timing.cuda import Module

    module, data = Module(SOURCE), Data()

    def of(what: Launch | Callable[[Any], Callable[[], Any]]) -> Callable[[], Any]:
        if not isinstance(what, Launch):
            return what(data)
        arguments = what.arguments(data)
        return lambda: module.launch(what.kernel, what.grid, what.block, arguments, what.shared)

    return [(item, of(item.slow), of(item.fixed) if item.fixed else None) for item in planted(module.sms)]


def launch() -> None:
    """Launch each kernel once, in a range named for its cause, between the profiler's start and stop."""
    from dsl_kernels_lab.profile.targets import Target, look

    look(Target(item.cause, call, item.workload, call) for item, call, _ in callables())


def twins() -> dict[str, Any]:
    """Microseconds of each kernel and of its twin."""
    return {
        item.cause: {"us": _us(call), "fixed_us": _us(twin) if twin else None}
        for item, call, twin in callables()
    }


def collected(folder: Path) -> None:
    """Collect all sixteen into `folder`: raw counters, Nsight Compute's rules, and the twins' times."""
    folder.mkdir(parents=True, exist_ok=True)
    ncu = str(collect.find_ncu())
    report = Path("/tmp") / "planted.ncu-rep"
    program = [sys.executable, str(Path(__file__).resolve()), "--launch"]
    report.unlink(missing_ok=True)
    try:
        collect.run(collect.command(program, report, full=True, ncu=ncu), timeout=400)
    except DslKernelError as error:
        if not report.exists():
            raise
        print(error, file=sys.stderr)
    (folder / RAW).write_text(collect.raw_csv(report, ncu))
    if report.stat().st_size < 6 << 20:
        (folder / report.name).write_bytes(report.read_bytes())
    (folder / DETAILS).write_text(collect.details_csv(report, ncu))
    (folder / TWINS).write_text(json.dumps(twins(), indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--launch", action="store_true", help="only launch the kernels, for a profiler")
    parser.add_argument("--times", action="store_true", help="only time the kernels and their twins")
    parser.add_argument("--read", type=Path, help="diagnose what was collected in this folder")
    parser.add_argument("--out", type=Path, default=Path("planted"), help="collect into this folder")
    options = parser.parse_args()
    if options.launch:
        launch()
        return
    if options.times:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / TWINS).write_text(json.dumps(twins(), indent=1) + "\n")
        return
    if options.read is None:
        collected(options.out)
    show(options.read or options.out)


def rules_of(details: Path) -> list[list[profile.NcuRule]]:
    """The names of Nsight Compute's rules that advise each launch, sorted by their estimated speed-up."""
    by_launch: dict[tuple[str, str], list[profile.NcuRule]] = {}
    with details.open(newline="") as file:
        for row in csv.DictReader(line for line in file if line.startswith('"')):
            rules = by_launch.setdefault((row["Process ID"], row["ID"]), [])
            if row.get("Rule Type") == "OPT":
                estimate = float(row.get("Estimated Speedup") or 0.0) / 100
                whole = row.get("Estimated Speedup Type") == "global"
                rules.append(profile.NcuRule(row["Rule Name"], "", "OPT", estimate if whole else None))
    return [sorted(rules, key=lambda rule: -(rule.estimate or 0.0)) for rules in by_launch.values()]


# The rules of Nsight Compute that name the cause, for causes that it has rules for.
THEIRS = {
    "spills": {"MemoryCacheAccessPattern"},
    "bank_conflicts": {"SharedMemoryConflicts", "UncoalescedSharedAccess"},
    "wasted_sectors": {"UncoalescedGlobalAccess", "MemoryCacheAccessPattern"},
    "divergence": {"ThreadDivergence"},
    "small_grid": {"LaunchConfiguration"},
    "tail": {"LaunchConfiguration", "WorkloadImbalance"},
    "barrier": {"CPIStall"},
    "dependency_chain": {"CPIStall"},
    "issue_bound": {"IssueSlotUtilization"},
}


def reports(folder: Path) -> list[profile.KernelReport]:
    """The sixteen launches, with the rules of Nsight Compute that have advice for them."""
    launches, theirs = profile.read(folder / RAW), rules_of(folder / DETAILS)
    return [replace(report, rules=tuple(rules)) for report, rules in zip(launches, theirs, strict=True)]


Row = tuple[str, str, float | None, float | None, str]


def rows(
    seen: list[profile.KernelReport], times: dict[str, Any], ceilings: profile.Ceilings | None
) -> list[Row]:
    """For each launch: cause, our first finding, its bound, the twin's speed-up, Nsight's first rule."""
    works = {item.cause: item.workload for item in planted(132)}
    table = []
    for report in seen:
        top = profile.diagnose(profile.fingerprint(report, works[report.label]), ceilings).top
        twin = times.get(report.label, {})
        gain = twin["us"] / twin["fixed_us"] if twin.get("fixed_us") else None
        first = report.rules[0].name if report.rules else "none"
        table.append((report.label, top.cause if top else "nothing", top.bound if top else None, gain, first))
    return table


def show(folder: Path) -> None:
    """Print the table, and how often each side names the cause first."""
    seen = reports(folder)
    ceilings = profile.read_ceilings(seen[0].device, folder) or profile.read_ceilings(seen[0].device)
    table = rows(seen, json.loads((folder / TWINS).read_text()), ceilings)
    print("| planted | found | bound | measured | Nsight Compute's first rule |\n|---|---|---|---|---|")
    for cause, ours, bound, gain, first in table:
        figures = (f"{value:.2f}" if value else "-" for value in (bound, gain))
        print("| " + " | ".join([cause, ours, *figures, first]) + " |")
    right = sum(cause == ours for cause, ours, *_ in table)
    theirs = sum(first in THEIRS.get(cause, ()) for cause, *_, first in table)
    print(f"{right} of {len(table)}; Nsight Compute's first rule {theirs}")


def kept(name: str) -> Any:
    """A recorded session: `planted_h200` or `kernels_h200`."""
    return json.loads(lzma.decompress((KEPT / f"{name}.json.xz").read_bytes()))


def looked_at() -> dict[str, profile.Diagnosis]:
    """The diagnoses of the kernels that a session profiled, by label."""
    ceilings = profile.read_ceilings(GPU)
    diagnoses = {}
    for item in kept("kernels_h200"):
        report = profile.load(profile.KernelReport, item["report"])
        work = profile.load(profile.Workload, item["workload"])
        diagnoses[report.label] = profile.diagnose(profile.fingerprint(report, work), ceilings)
    return diagnoses


FORMER = {
    "sparse_mla__tilelang_sm90a__h16_bf16_bt64_st2_cl1": {
        "sparse_mla__tilelang_sm90a__h16_bf16_bt64_st2_cl1": 13.413,
        "sparse_mla__tilelang_sm90a__h16_bf16_bt64_st2_cl2": 11.14,
    }
}
"""The tuned table's microseconds, at commit 5f153503, of profiled kernels that have changed since."""


def tuned_entry(work: profile.Workload) -> Mapping[str, Any] | None:
    """The entry of the tuned table with the sizes of a workload."""
    sizes = {"max_len": work.dims.get("len"), **work.dims}
    for entry in measured.tuned_table(GPU):
        same = all(sizes.get(name) == value for name, value in entry["bucket"].items())
        if same and (entry["op"], entry["form"]) == (work.op, work.form):
            return entry
    return None


def turned(diagnosis: profile.Diagnosis) -> tuple[str, float] | None:
    """The fastest variant of the same DSL with another value of a knob that the first finding names, and its
    gain.

    Times are those of the tuned table, or `FORMER`. None if the finding names no knob, or no such variant was
    timed.
    """
    work, top = diagnosis.fingerprint.workload, diagnosis.top
    entry = tuned_entry(work)
    # A table may contain times of variants that are no longer generated.
    known = {variant.id: variant for variant in variants.variants(work.op)}
    if entry is None or top is None or work.variant not in entry["us"] or work.variant not in known:
        return None
    mine, times = known[work.variant], FORMER.get(work.variant, entry["us"])
    others = [
        (us, name)
        for name, us in times.items()
        if (other := known.get(name))
        and other.backend == mine.backend
        and any(mine.knobs[knob] != other.knobs.get(knob) for knob in top.knobs)
    ]
    return (min(others)[1], times[work.variant] / min(others)[0]) if others else None


if __name__ == "__main__":
    main()
