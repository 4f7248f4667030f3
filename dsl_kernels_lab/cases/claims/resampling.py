"""Claims of document 004: a trajectory resampling kernel and a roadmap for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .. import base
from .judging import Figures, Holds, Records, claim, counter, share, stalls

# Trajectories, times of a trajectory, targets, elements of a row.
SIZES = {"b": 64, "n": 4096, "m": 1024, "d": 32}
# Microseconds of the document's kernel.
US = 110
# DRAM rate of the document's H100.
HBM_TBPS = 3.35


def resample_bytes(b: int, n: int, m: int, d: int) -> dict[str, float]:
    """Bytes that resampling must move: fp32 times, distinct bf16 rows read, and a row written per target."""
    from dsl_kernels.kernels.resample_trajectories.problem import rows_read

    return {"times": 4.0 * b * (n + m), "rows": 2.0 * d * b * rows_read(n, m), "out": 2.0 * d * b * m}


def _least_us(b: int, n: int, m: int, d: int, tbps: float) -> float:
    return sum(resample_bytes(b, n, m, d).values()) / tbps / 1e6


@claim(
    "004",
    "throughput",
    "110 µs for 64 trajectories are 583 thousand a second.",
    {"trajectories": 64, "us": US, "said": 583},
)
def _throughput(trajectories: int, us: float, said: float) -> tuple[Holds, str]:
    rate = trajectories / us * 1e3
    return abs(rate / said - 1) < 0.01, f"{rate:.0f} thousand a second"


@claim(
    "004",
    "gap-768",
    "The kernel is 768 times below what the memory allows.",
    {**SIZES, "us": US, "tbps": HBM_TBPS, "said": 768},
)
def _gap(b: int, n: int, m: int, d: int, us: float, tbps: float, said: float) -> tuple[Holds, str]:
    moved, least = sum(resample_bytes(b, n, m, d).values()), _least_us(b, n, m, d, tbps)
    words = (
        f"{moved / 1e6:.1f} MB must move, {least:.1f} µs at {tbps} TB/s: at most {us / least:.0f} times, "
        "and the data fits the L2"
    )
    return us / least >= 0.9 * said, words


@claim(
    "004",
    "hbm-latency",
    "0.13 % of the DRAM's rate shows waiting for DRAM.",
    {**SIZES, "us": US, "gbps": 4.36},
)
def _hbm(b: int, n: int, m: int, d: int, us: float, gbps: float) -> tuple[Holds, str]:
    read, moved = gbps * us * 1e3, sum(resample_bytes(b, n, m, d).values())
    words = (
        f"{gbps} GB/s over {us} µs are {read / 1e6:.2f} MB of {moved / 1e6:.1f}: nearly all came from the L2"
    )
    return read >= 0.5 * moved, words


@claim(
    "004",
    "overhead-2.37",
    "39.8 MB of sectors over 16.8 MB of data are an overhead of 2.37.",
    {**SIZES, "sectors": 39.8e6, "said": 2.37},
)
def _overhead(b: int, n: int, m: int, d: int, sectors: float, said: float) -> tuple[Holds, str]:
    needed = resample_bytes(b, n, m, d)
    loads = needed["times"] + needed["rows"]
    words = (
        f"{needed['rows'] / (2 * d * b):.0f} of {n} source rows are read: loads need {loads / 1e6:.1f} MB, "
        f"so the overhead is {sectors / loads:.1f}"
    )
    return abs(sectors / loads / said - 1) < 0.1, words


@claim(
    "004",
    "shared-4-kb",
    "The source times fit 4 KB of shared memory.",
    {"times": SIZES["n"], "width": 4, "said_kb": 4},
)
def _shared(times: int, width: int, said_kb: int) -> tuple[Holds, str]:
    taken = times * width
    return taken <= said_kb << 10, f"{times} times of {width} bytes are {taken >> 10} KB"


@claim(
    "004",
    "one-load-a-thread",
    "`if (threadIdx.x < source_length)` loads all source times.",
    {"times": SIZES["n"], "threads": 1024},
)
def _one_load(times: int, threads: int) -> tuple[Holds, str]:
    words = f"a block has {threads} threads at most: {min(threads, times)} of {times} times are loaded"
    return threads >= times, words


# fp32 TFLOP/s of an H100 outside its tensor cores.
VECTOR_TFLOPS = 60.0


def _without_arithmetic(b: int, n: int, m: int, d: int, tflops: float, tbps: float) -> tuple[float, float]:
    """Microseconds of the interpolation's arithmetic outside the tensor cores, and of its bytes."""
    return 3.0 * b * m * d / tflops / 1e6, _least_us(b, n, m, d, tbps)


@claim(
    "004",
    "tensor-cores",
    "Tensor cores make the interpolation 2 to 3 times faster.",
    {**SIZES, "tflops": VECTOR_TFLOPS, "tbps": HBM_TBPS, "said": 2},
)
def _tensor_cores(
    b: int, n: int, m: int, d: int, tflops: float, tbps: float, said: float
) -> tuple[Holds, str]:
    arithmetic, memory = _without_arithmetic(b, n, m, d, tflops, tbps)
    gain = (arithmetic + memory) / memory
    words = (
        f"3 FLOP an element are {arithmetic:.2f} µs without tensor cores, the bytes {memory:.1f} µs: "
        f"arithmetic that takes no time gains {share(gain - 1)}"
    )
    return gain >= said, words


@claim(
    "004",
    "phases-multiply",
    "The four phases make it 5 times faster: 110 to 20 µs.",
    {
        **SIZES,
        "low": (1.2, 1.15, 1.1),
        "high": (1.3, 1.25, 1.15),
        "tflops": VECTOR_TFLOPS,
        "tbps": HBM_TBPS,
        "said": 5,
    },
)
def _phases(
    b: int,
    n: int,
    m: int,
    d: int,
    low: tuple[float, ...],
    high: tuple[float, ...],
    tflops: float,
    tbps: float,
    said: float,
) -> tuple[Holds, str]:
    arithmetic, memory = _without_arithmetic(b, n, m, d, tflops, tbps)
    least, most = 1.0, (arithmetic + memory) / memory
    for some, more in zip(low, high, strict=True):
        least, most = least * some, most * more
    words = (
        f"by their own figures phases 1 to 3 give {least:.2f} at least, "
        f"and {most:.2f} at most with the fourth, that of the tensor cores, which saves the arithmetic"
    )
    return most >= 0.9 * said, words


@claim(
    "004",
    "pytorch-target",
    "20 µs would be 5 times faster than PyTorch, which takes 0.9 of 110 µs.",
    {"part": 0.9, "us": US, "target": 20, "said": 5},
)
def _pytorch(part: float, us: float, target: float, said: float) -> tuple[Holds, str]:
    gain = part * us / target
    return abs(gain - said) < 0.1, f"{part} x {us} / {target} = {gain:.2f}"


def _phase_figures(before: str, after: str) -> Callable[[Records], Figures]:
    """A function that reads the times of two phases' kernels."""

    def read(records: Records) -> Figures:
        us = {row["phase"]: row["us"] for row in base.rows_of(records["resample"], "phase")}
        return {"before": us[before], "after": us[after]}

    return read


def _gain(before: float, after: float, low: float, high: float) -> tuple[Holds, str]:
    """Whether a phase makes the kernel faster by a share between `low` and `high`."""
    gain = before / after - 1
    return low <= gain <= high, f"{before:.1f} to {after:.1f} µs in this project's kernels: {gain:+.0%}"


@claim(
    "004",
    "phase-shared",
    "Times in shared memory gain 20 to 30 %.",
    _phase_figures("global", "shared"),
    "resample",
)
def _phase_shared(before: float, after: float) -> tuple[Holds, str]:
    return _gain(before, after, 0.2, 0.3)


@claim(
    "004",
    "phase-vector",
    "Vector loads gain 15 to 25 %.",
    _phase_figures("shared", "vector"),
    "resample",
)
def _phase_vector(before: float, after: float) -> tuple[Holds, str]:
    return _gain(before, after, 0.15, 0.25)


@claim(
    "004",
    "phase-warp-search",
    "A search by whole warps gains 10 to 15 %.",
    _phase_figures("vector", "warp"),
    "resample",
)
def _phase_warp(before: float, after: float) -> tuple[Holds, str]:
    return _gain(before, after, 0.1, 0.15)


def _least_and_eager(records: Records) -> Figures:
    us = {row["name"]: row["us"] for row in records["resample"]["rows"]}
    return {"eager": us["eager"], "ours": us["global"], "said": 0.9}


@claim(
    "004",
    "pytorch-faster",
    "PyTorch takes 0.9 of the time of a kernel whose threads search by themselves.",
    _least_and_eager,
    "resample",
)
def _pytorch_faster(eager: float, ours: float, said: float) -> tuple[Holds, str]:
    words = f"torch, eager, takes {eager:.1f} µs, such a kernel {ours:.1f}: {eager / ours:.1f} times as long"
    return eager / ours <= said + 0.1, words


SM, DRAM, MEMORY = (
    f"{unit}.avg.pct_of_peak_sustained_elapsed"
    for unit in ("sm__throughput", "dram__throughput", "gpu__compute_memory_throughput")
)


def _busy(records: Records) -> Figures:
    metrics = {"sm": SM, "memory": MEMORY}
    throughput = {name: counter(records, "resample", "global", metric) for name, metric in metrics.items()}
    waits = stalls(records, "resample", "global")
    return {**throughput, "long_scoreboard": waits.get("long_scoreboard", 0.0), "most": next(iter(waits))}


@claim(
    "004",
    "sm-37-memory-bound",
    "SM throughput of 37 % shows a workload that memory bounds.",
    _busy,
    "resample",
)
def _memory_bound(sm: float, memory: float, long_scoreboard: float, most: str) -> tuple[Holds, str]:
    words = (
        f"such a kernel here has the SM at {sm:.1f} % and memory at {memory:.1f} %; "
        f"warps wait most by {most}, {share(long_scoreboard)} of their time for memory: latency, not rate"
    )
    return memory > sm, words


@claim(
    "004",
    "phase-sm-50",
    "A search by whole warps brings the SM to 50 %.",
    lambda records: {
        "before": counter(records, "resample", "vector", SM),
        "after": counter(records, "resample", "warp", SM),
        "said": 50,
    },
    "resample",
)
def _phase_sm(before: float, after: float, said: float) -> tuple[Holds, str]:
    return after >= said, f"{before:.1f} to {after:.1f} % in this project's kernels"


@claim(
    "004",
    "phase-dram",
    "The phases bring the DRAM's rate from 0.13 % to 0.25, 0.5 and 0.7 %.",
    lambda records: {
        "reached": {
            phase: counter(records, "resample", phase, DRAM)
            for phase in ("global", "shared", "vector", "warp")
        }
    },
    "resample",
)
def _phase_dram(reached: Mapping[str, float]) -> tuple[Holds, str]:
    words = ", ".join(f"{phase} {percent:.1f} %" for phase, percent in reached.items())
    order = list(reached.values())
    return order == sorted(order) and order[-1] < 1, f"{words} in this project's kernels"


def _dense_rate(_: Records) -> Figures:
    from dsl_kernels.arch import GPUS

    return {"said": 1979, "dense": GPUS["H100"].tensor_tflops["float16"]}


@claim("004", "h100-1979", "Tensor cores of an H100 have 1979 TFLOP/s of fp16.", _dense_rate)
def _rate(said: float, dense: float) -> tuple[Holds, str]:
    words = f"dense products {dense:.0f}; twice that is published for matrices with half of the values zero"
    return said <= 1.05 * dense, words
