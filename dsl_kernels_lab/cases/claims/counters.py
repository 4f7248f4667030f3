"""Claims of document 003: kernels under a timeline and a counter profiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .judging import Figures, Holds, Records, claim, counter, figure_of, row, rows, share, stalls, untested

# Rows of the record with pageable memory that copies back go to, by what the process did with it before.
USED, FRESH = "used before", "never touched"
TARGETS = {USED: "pageable", FRESH: "pageable, fresh target"}


def _rate(records: Records, memory: str, way: str) -> float:
    return figure_of(records, "transfers", memory, f"{way}_gbps")


@claim(
    "003",
    "h2d-pinned",
    "Pinning makes copies to the GPU 2.6 times faster.",
    lambda records: {name: _rate(records, name, "h2d") for name in ("pinned", "pageable")},
    "transfers",
)
def _h2d(pinned: float, pageable: float) -> tuple[Holds, str]:
    words = f"{pageable:.1f} and {pinned:.1f} GB/s, {pinned / pageable:.1f} times"
    return 2.0 <= pinned / pageable <= 3.4, words


def _back(records: Records) -> dict[str, float]:
    return {name: _rate(records, memory, "d2h") for name, memory in TARGETS.items()}


@claim(
    "003",
    "d2h-pinned",
    "Pinning makes copies back 10 times faster.",
    lambda records: {"pinned": _rate(records, "pinned", "d2h"), "pageable": _back(records)},
    "transfers",
)
def _d2h(pinned: float, pageable: Mapping[str, float]) -> tuple[Holds, str]:
    text = "; ".join(
        f"into memory {name} {pinned / rate:.1f} times ({rate:.1f} and {pinned:.1f} GB/s)"
        for name, rate in pageable.items()
    )
    return {name: 7.0 <= pinned / rate <= 13.0 for name, rate in pageable.items()}, text


@claim(
    "003",
    "pageable-asymmetry",
    "Pageable copies back are 3.6 times slower than pageable copies to the GPU.",
    lambda records: {"to": _rate(records, "pageable", "h2d"), "back": _back(records)},
    "transfers",
)
def _asymmetry(to: float, back: Mapping[str, float]) -> tuple[Holds, str]:
    text = "; ".join(
        f"into memory {name} {to / rate:.1f} times ({to:.1f} and {rate:.1f} GB/s)"
        for name, rate in back.items()
    )
    return {name: to / rate >= 2.5 for name, rate in back.items()}, text


@claim(
    "003",
    "pinned-symmetry",
    "Pinned copies are equally fast in both directions.",
    lambda records: {"to": _rate(records, "pinned", "h2d"), "back": _rate(records, "pinned", "d2h")},
    "transfers",
)
def _symmetry(to: float, back: float) -> tuple[Holds, str]:
    return 0.9 <= to / back <= 1.1, f"{to:.1f} and {back:.1f} GB/s"


def _link_figures(records: Records) -> Figures:
    link = row(records, "transfers", "link")
    return {
        "reached": _rate(records, "pinned", "h2d"),
        "gbps": link["gbps"],
        "generation": link["generation_max"],
        "lanes": link["width_max"],
    }


@claim("003", "half-the-link", "Pinned copies reach half of the link's rate.", _link_figures, "transfers")
def _link(reached: float, gbps: float, generation: int, lanes: int) -> tuple[Holds, str]:
    words = (
        f"{reached:.1f} of {gbps:.0f} GB/s (generation {generation}, {lanes} lanes): {share(reached / gbps)}"
    )
    return 0.4 <= reached / gbps <= 0.6, words


@claim(
    "003",
    "kernel-unmoved",
    "Pinning does not change the kernel's time.",
    lambda records: {
        name: figure_of(records, "transfers", name, "kernel_us") for name in ("pinned", "pageable")
    },
    "transfers",
)
def _unmoved(pinned: float, pageable: float) -> tuple[Holds, str]:
    apart = abs(pinned / pageable - 1)
    return apart < 0.01, f"{pageable:.1f} and {pinned:.1f} µs, {share(apart)} apart"


@claim(
    "003",
    "atomics-218",
    "One atomic an element is 218 times slower than shuffles at 4M elements.",
    lambda records: {
        name: figure_of(records, "reduction", launch, "us")
        for name, launch in (("slow", "v1_4Mi"), ("fast", "v4_4Mi"))
    },
    "reduction",
)
def _atomics(slow: float, fast: float) -> tuple[Holds, str]:
    return 109 <= slow / fast <= 436, f"{slow:.0f} and {fast:.2f} µs, {slow / fast:.0f} times"


OCCUPIED = "sm__warps_active.avg.pct_of_peak_sustained_active"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"


def _counted(metric: str, **launches: str) -> Callable[[Records], Figures]:
    """A function that reads a counter of launches of the reduction; figures are named after the arguments."""
    return lambda records: {
        name: counter(records, "reduction", launch, metric) for name, launch in launches.items()
    }


@claim(
    "003",
    "atomics-occupancy",
    "The atomic version is as occupied as the fast one.",
    _counted(OCCUPIED, slow="v1_4Mi", fast="v4_64Mi"),
    "reduction",
)
def _atomics_occupancy(slow: float, fast: float) -> tuple[Holds, str]:
    return abs(slow - fast) < 10, f"{slow:.1f} and {fast:.1f} % of the warps"


@claim(
    "003",
    "atomics-dram",
    "While atomics queue the DRAM idles, below 1 %.",
    _counted(DRAM, percent="v1_4Mi"),
    "reduction",
)
def _atomics_dram(percent: float) -> tuple[Holds, str]:
    return percent < 1, f"{percent:.2f} % of the DRAM's rate"


@claim(
    "003",
    "atomics-l2",
    "The L2 hit rate of the atomic version is near 89 %, and means one hot line.",
    _counted("lts__t_sector_hit_rate.pct", percent="v1_4Mi"),
    "reduction",
)
def _atomics_l2(percent: float) -> tuple[Holds, str]:
    return percent > 80, f"{percent:.1f} % of the sectors hit"


def _first_wait(waits: Mapping[str, float]) -> str:
    return next(name for name in sorted(waits, key=lambda name: -waits[name]) if name != "selected")


@claim(
    "003",
    "atomics-stall",
    "Atomics show as lg_throttle.",
    lambda records: {"waits": stalls(records, "reduction", "v1_4Mi")},
    "reduction",
)
def _atomics_stall(waits: Mapping[str, float]) -> tuple[Holds, str]:
    text = ", ".join(f"{name} {share(value)}" for name, value in list(waits.items())[:3])
    return _first_wait(waits) == "lg_throttle", text


def _shuffle_figures(records: Records) -> Figures:
    launches = {"4Mi": "v4_4Mi", "64Mi": "v4_64Mi"}
    return {
        "dram": {size: counter(records, "reduction", name, DRAM) for size, name in launches.items()},
        "waits": {size: stalls(records, "reduction", name) for size, name in launches.items()},
    }


@claim(
    "003",
    "shuffles-dram",
    "The shuffle version is bound by memory: 88 % of the DRAM's rate, long_scoreboard.",
    _shuffle_figures,
    "reduction",
)
def _shuffles(dram: Mapping[str, float], waits: Mapping[str, Mapping[str, float]]) -> tuple[Holds, str]:
    first = {size: _first_wait(reason) for size, reason in waits.items()}
    text = "; ".join(
        f"{value:.1f} % at {size} elements, most time in {first[size]}" for size, value in dram.items()
    )
    holds = {size: value > 80 and first[size] == "long_scoreboard" for size, value in dram.items()}
    return holds, f"{text} (the document's size is 4Mi, which the L2 of an H200 holds)"


@claim(
    "003",
    "sdpa-backend",
    "torch's attention runs FlashAttention 2, not cuDNN.",
    lambda records: {
        "kernel": (row(records, "triton_attention", "SDPA default").get("kernels") or ["unknown"])[0]
    },
    "triton_attention",
)
def _backend(kernel: str) -> tuple[Holds, str]:
    return "flash_fwd" in kernel and "cudnn" not in kernel, f"kernel {kernel[:90]}"


def _triton(records: Records, size: int | None = None) -> dict[str, Any]:
    """The fastest of the Triton attentions, or of those with this many query rows in a tile."""
    kernels = rows(records, "triton_attention", "triton", "us")
    return min((r for r in kernels if size in (None, r["rows"])), key=lambda r: float(r["us"]))


@claim(
    "003",
    "triton-share",
    "A Triton attention reaches 78 to 90 % of torch's.",
    lambda records: {
        "ours": _triton(records)["us"],
        "name": _triton(records)["name"],
        "torchs": figure_of(records, "triton_attention", "SDPA default", "us"),
    },
    "triton_attention",
)
def _triton_share(ours: float, name: str, torchs: float) -> tuple[Holds, str]:
    words = f"{ours:.1f} µs against {torchs:.1f}: {share(torchs / ours)} ({name})"
    return 0.78 <= torchs / ours <= 0.9, words


@claim(
    "003",
    "bigger-tile",
    "A bigger tile is not faster: 64 query rows beat 128.",
    lambda records: {
        "us": {size: _triton(records, size)["us"] for size in (64, 128)},
        "registers": {size: _triton(records, size).get("registers") for size in (64, 128)},
    },
    "triton_attention",
)
def _bigger_tile(us: Mapping[int, float], registers: Mapping[int, int]) -> tuple[Holds, str]:
    text = ", ".join(f"{size} rows {time:.1f} µs ({registers[size]} registers)" for size, time in us.items())
    return us[64] <= us[128], f"best of each: {text}"


@claim(
    "003",
    "registers-halve-occupancy",
    "255 registers a thread halve the occupancy, to 8.3 %.",
    {"registers": 256, "file": 65536, "most_warps": 48, "said": 0.083},
)
def _registers(registers: int, file: int, most_warps: int, said: float) -> tuple[Holds, str]:
    warps = int(file // (registers * 32))
    words = (
        f"255 registers allow {warps} of an L4's {most_warps} warps, {share(warps / most_warps)}: "
        f"something else, not registers, leaves {said * most_warps:.0f}"
    )
    return abs(warps / most_warps - said) < 0.01, words


@claim(
    "003",
    "two-clocks",
    "78 % of the speed by time and 1.89 times the cycles describe the same two kernels.",
    {"by_time": 0.78, "cycles": 1.89},
)
def _two_clocks(by_time: float, cycles: float) -> tuple[Holds, str]:
    words = f"{cycles} times the cycles are {share(1 / cycles)} of the speed, not {100 * by_time:.0f} %"
    return abs(1 / cycles - by_time) < 0.05, words


untested(
    "003",
    "profiler-overhead",
    "A counter profiler makes a run 10 to 30 times longer, a timeline profiler 1 to 5 %.",
    "no record times a process with and without either",
)
