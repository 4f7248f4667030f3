"""Throughputs and latencies of the units of an SM.

Every number has a source and, where it was not measured on its own GPU, an interval: `bounds` gives a GPU's
rates at either end of all intervals. `benchmarks/clock_rates.py` measures the GPU at hand. Nothing here is
fitted to measured kernels.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..arch import GPUS, GpuSpec


class Rate(NamedTuple):
    """A number, its source, its interval, and the item of `benchmarks/clock_rates.py` that measures it."""

    value: float
    source: str
    best: float | None = None
    worst: float | None = None
    item: str = ""


@dataclass(frozen=True)
class Rates:
    """Rates per SM and clock, and latencies in clocks, unless the unit says otherwise.

    Attributes:
        clock_mhz: the highest clock.
        loaded_mhz: the clock under the power limit, with the tensor cores of all SMs always busy.
        drawn: unit -> what it draws when it is always busy, as a share of what that load draws at the same
        clock. "memory" is of a byte a clock that an SM gets from the L2, "hbm" what HBM adds to it.
        drawn_exponent: what a load draws grows with this power of the clock.
        droop: the clock with the tensor cores always busy where the power limit is not reached, as a share of
        the highest.
        tensor: operations of the tensor cores by dtype; a multiply-add counts as two.
        tensor_least: the least clocks per tensor-core instruction.
        tensor_half: Blackwell: the fraction of the tensor cores' rate for a product with 64 rows in a CTA.
        tensor_latency: from the last instruction of a group until its result is visible.
        tensor_issue: instructions that a warp issues per tensor-core instruction.
        mufu: lanes of the unit for exponentials and similar functions.
        alu: lanes for integer arithmetic, comparisons, selections and conversions.
        shared_bytes: bytes through the port of shared memory. shared_beside, shared_least: of the port, the
        most that accesses have beside products of wgmma, and what requests have where operands take it whole.
        line_clocks: of the load-store unit, clocks for a line of global memory that goes to registers.
        store_bytes: bytes that threads store to global memory.
        tensor_columns: 32-bit columns between a warp's registers and tensor memory, per scheduler.
        sm_bytes: the most bytes that one SM gets from the L2.
        hbm_bytes, l2_bytes: bytes that HBM and the L2 deliver to all SMs.
        hbm_latency, l2_latency: of a load; a bulk copy takes `bulk_latency` more, a cp.async `copy_latency`
        more. hand_over: from an arrival at an mbarrier until the waiting warp runs. passed: of a wait for an
        mbarrier whose phase is complete. meet: a named barrier.
        message: to another CTA of the cluster, from the stores until the waiting warp runs. cluster,
        cluster_relaxed: a cluster barrier that orders memory, and one that does not. grid: a message to
        another CTA of the grid. stall, dense_stall: clocks per instruction of a warp that runs alone: of any
        instruction, and of instructions
            on floats in registers.
        bulk_issue, bulk_slots: per bulk copy, clocks of the copy engine, and instructions of the issuing
        warp. launch_us: microseconds of an empty kernel. begin_us: microseconds from the launch of a CTA to
        its first instruction.
    """

    clock_mhz: float
    loaded_mhz: float
    drawn: Mapping[str, float]
    drawn_exponent: float
    droop: float
    tensor: Mapping[str, float]
    hbm_bytes: float
    l2_bytes: float
    launch_us: float
    tensor_least: float
    tensor_half: float
    tensor_latency: float
    tensor_issue: float
    mufu: float
    alu: float
    shared_bytes: float
    shared_beside: float
    shared_least: float
    line_clocks: float
    store_bytes: float
    tensor_columns: float
    sm_bytes: float
    hbm_latency: float
    l2_latency: float
    bulk_latency: float
    copy_latency: float
    hand_over: float
    passed: float
    meet: float
    message: float
    cluster: float
    cluster_relaxed: float
    grid: float
    stall: float
    dense_stall: float
    bulk_issue: float
    bulk_slots: float
    begin_us: float

    def mhz(self, tensor: float, drawn: float, limited: float) -> float:
        """The clock of a launch.

        Args:
            tensor: The fraction of the time in which the tensor cores are busy.
            drawn: What the units of all SMs draw, as a share of what products alone draw at that clock.
            limited: The fraction of the launch in which the power limit acts.
        """
        free = self.clock_mhz * (1 - tensor * (1 - self.droop))
        within = self.loaded_mhz * max(drawn, 1e-3) ** (-1 / self.drawn_exponent)
        return free - limited * max(0.0, free - within)


_SASS = "benchmarks/clock_instructions.py: stall fields of the SASS of the committed variants"
_TUNED = Path(__file__).parent.parent / "tuned"
_GUIDE = "CUDA's programming guide"
_SHARED = "docs/log/clock_shared.md, one H200"


class Loads(NamedTuple):
    """What loads of an H200 draw, and the clock that they leave; the fields are those of `Rates`."""

    drawn: Mapping[str, float]
    exponent: float
    droop: float
    loaded_mhz: float
    source: str


@functools.cache
def _loads() -> Loads:
    """From the loads of `benchmarks/clock_rates.py`, each of one unit of every SM for 3 s."""
    record = json.loads((_TUNED / "nvidia_h200_rates.json").read_text())
    seen = {name: figure["value"] for name, figure in record["rates"].items()}

    def watts(load: str) -> float:
        return seen[f"load_{load}_watts"] - seen["load_spin_watts"]

    def clocks(load: str) -> float:
        return seen[f"load_{load}_mhz"]

    # Half of the SMs do not reach the limit, so twice what they draw is what all would draw at their clock.
    exponent = math.log(2 * watts("bf16_half") / watts("bf16")) / math.log(
        clocks("bf16_half") / clocks("bf16")
    )
    highest, sms = clocks("spin"), GPUS["H200"].sms
    products = watts("bf16") * (highest / clocks("bf16")) ** exponent
    # An instruction a clock and scheduler; the others issue less.
    issue = watts("ffma")
    shared = watts("lds_128") - issue / 16
    bytes_l2, bytes_hbm = (seen[f"load_{load}_gbs"] * 1e3 / sms / highest for load in ("l2", "hbm"))
    memory = watts("l2") / bytes_l2
    # Operands of m64n256k16 take the port of shared memory for 5/8 of the time.
    drawn = {
        "tensor cores": products - shared * 5 / 8,
        "shared memory": shared,
        "issue": issue,
        "memory": memory,
        "hbm": watts("hbm") / bytes_hbm - memory,
    }
    shares = {unit: value / products for unit, value in drawn.items()}
    source = f"{record['command']} on one {record['gpu']}, {record['date']}"
    return Loads(shares, exponent, clocks("bf16_half") / highest, clocks("bf16"), source)


@functools.cache
def hopper() -> dict[str, Rate]:
    """Hopper's rates: those that `benchmarks/clock_rates.py` measured on an H100, and published ones."""
    record = json.loads((_TUNED / "nvidia_h100_rates.json").read_text())
    source = f"{record['command']} on one {record['gpu']}, {record['date']}"

    def seen(name: str, less: str = "", loaded: float = 1.0) -> Rate:
        """A measured figure, or the difference of two; under load it may be up to `loaded` times as large."""
        value = record["rates"][name]["value"] - (record["rates"][less]["value"] if less else 0.0)
        origin = f"{name}{f' less {less}' if less else ''}: {source}"
        items = [f"^{figure.removesuffix('_mhz')}$" for figure in (name, less) if figure]
        return Rate(value, origin, value, value * loaded, "|".join(items))

    return {
        "loaded_mhz": seen("load_bf16_mhz"),
        "drawn_exponent": Rate(_loads().exponent, _loads().source),
        "droop": Rate(_loads().droop, _loads().source),
        "tensor_least": seen("wgmma_bf16_n8_registers"),
        "tensor_half": Rate(1, "wgmma is of 64 rows"),
        "tensor_latency": seen("wgmma_bf16_n64_lone", "wgmma_bf16_n64_shared"),
        "tensor_issue": Rate(2, "SASS of the committed variants"),
        "mufu": Rate(16, f"{_GUIDE}, throughput of native arithmetic; unit_mufu_ex2_16warps: {source}"),
        "alu": Rate(64, f"{_GUIDE}, the same; unit_lop3_16warps: {source}"),
        "shared_bytes": Rate(128, f"{_GUIDE}: 32 banks of 4 bytes; unit_lds_128_16warps: {source}"),
        "shared_beside": Rate(0.4, f"{_SHARED}: 0.43 of stores, 0.25 of loads, at half of the port"),
        "shared_least": Rate(0.03, f"{_SHARED}: n64, both operands in shared memory"),
        "line_clocks": Rate(2.2, "docs/log/clock_port.md: 2.4 of whole lines, 2.0 of 64 bytes"),
        "store_bytes": Rate(32, f"{_SHARED}: 36 by one warpgroup, 26 by two; 16 of results"),
        "tensor_columns": Rate(1, "Hopper has no tensor memory"),
        "sm_bytes": seen("stream_cp_async_64k_l2"),
        "hbm_latency": seen("fetch_ld_global_hbm", loaded=1.5),
        "l2_latency": seen("fetch_ld_global_l2", loaded=1.5),
        "bulk_latency": seen("fetch_bulk_1k_l2", "fetch_ld_global_l2", loaded=2.0),
        "copy_latency": seen("fetch_cp_async_l2", "fetch_ld_global_l2", loaded=2.0),
        "hand_over": seen("hand_mbarrier"),
        "passed": Rate(43, "hand_passed on one H200, 2026-12-01", item="^hand_passed$"),
        "meet": seen("hand_bar_sync_4warps", loaded=2.0),
        "message": seen("hand_st_async"),
        "cluster": seen("hand_cluster_barrier_2ctas"),
        "cluster_relaxed": seen("hand_cluster_barrier_2ctas_relaxed"),
        "grid": seen("hand_global_flag", loaded=1.5),
        "stall": Rate(2.6, _SASS, 2.0, 3.3),
        "dense_stall": Rate(1.15, _SASS, 1.0, 1.5),
        "bulk_issue": Rate(4, "a guess", 2, 16),
        "bulk_slots": Rate(12, "SASS of the committed variants", 8, 20),
        "begin_us": seen("graph_empty_all_sms", "graph_empty_one_cta", loaded=2.0),
    }


_NOTES = "public notes on the B200, 2026-03-17"


@functools.cache
def blackwell() -> dict[str, Rate]:
    """Blackwell's rates: published ones, and Hopper's where none is published."""
    rates = {
        **hopper(),
        "droop": Rate(1, "a guess", 1, _loads().droop, "^load_bf16_(half|third)$"),
        "loaded_mhz": Rate(1845, "contest notes: 1845 MHz under load on a rented B200", 1965, 1500),
        # Dependent instructions take 54 clocks each at N = 64 and 128; whether independent ones overlap is
        # unknown.
        "tensor_least": Rate(
            20, f"{_NOTES}; initiation of 11 clocks by SemiAnalysis, 2026-03-31", 11, 54,
            "^tcgen05_bf16_m128_n(16|64)_(shared|two)$",
        ),
        # 0.84 was measured with .ws, whose products of 64 rows use all lanes of tensor memory.
        "tensor_half": Rate(
            0.5, "common knowledge: half a tile of 128 rows; 76 clocks an m64n256k16 by .ws", 0.84, 0.5,
            "^tcgen05_bf16_m(64|128)_n128_(shared|ws)$",
        ),
        "tensor_latency": Rate(
            100, f"{_NOTES}: commit + 30 clocks, chain of 54 to 138", 60, 170,
            "^tcgen05_bf16_m128_n64_(lone|shared)$",
        ),
        "tensor_issue": Rate(
            6.5, f"{_SASS}: 6 of attention and GQA, 24 of scoring in CuTe DSL, 5 in TileLang", 5, 24
        ),
        "tensor_columns": Rate(
            57 / 128, "public catalogue of the B300: 57 bytes a clock and scheduler", 1.0, 0.4,
            "^tcgen05_ld_\\d+warps$",
        ),
        "bulk_slots": Rate(11, f"{_SASS}: a box of a tensor map, 29 clocks; `sm.COPIES` has the rest", 6, 20),
        "hand_over": Rate(44, f"{_NOTES}: 88 clocks both ways", 30, 90),
        "l2_latency": Rate(360, f"{_NOTES}: gather4 from the L2 in 197 ns", 280, 460),
        "hbm_latency": Rate(800, f"{_NOTES}: gather4 from memory in 540 ns", 650, 1000),
    }  # fmt: skip
    # The items that measure Hopper's rates measure these too, except for those of wgmma.
    return {
        name: rate if rate.item or name.startswith("tensor") else rate._replace(item=hopper()[name].item)
        for name, rate in rates.items()
    }


# Bandwidths of a GPU in GB/s, where more is known than its row in `arch.GPUS` says.
BANDWIDTHS: dict[str, dict[str, Rate]] = {
    "B200": {
        "hbm_bytes": Rate(
            7000, "TileSight, arXiv 2607.22432, measured; 7480 in arXiv 2512.02189", 7480, 6600, "^all_hbm$"
        ),
        "l2_bytes": Rate(20500, "TileSight, arXiv 2607.22432", 22000, 15000, "^all_l2$"),
    },
}
# Operations per clock of an SM's tensor cores on Hopper; Blackwell's do twice as many, and alone know 4 bits.
TENSOR = {"bfloat16": 4096.0, "float16": 4096.0, "float8_e4m3": 8192.0, "float4_e2m1x2": 16384.0}


def sources(gpu: GpuSpec) -> dict[str, Rate]:
    """Every rate of a GPU that does not come from its row in `arch.GPUS`, with its source."""
    rates = {**(blackwell() if gpu.arch.tmem_columns else hopper()), **BANDWIDTHS.get(gpu.name, {})}
    # Read on demand: a damaged record must cost no import.
    return rates | ({"loaded_mhz": Rate(_loads().loaded_mhz, _loads().source)} if gpu.name == "H200" else {})


def rates_of(gpu: GpuSpec) -> Rates:
    """The rates of a GPU, each in the middle of its interval."""
    return _rates(gpu, "value")


def bounds(gpu: GpuSpec) -> tuple[Rates, Rates]:
    """The rates of a GPU, all at the best ends of their intervals, and all at the worst ends."""
    return _rates(gpu, "best"), _rates(gpu, "worst")


def with_one(gpu: GpuSpec, name: str, end: str) -> Rates:
    """The rates of a GPU in the middle of their intervals, except for one at its "best" or "worst" end."""
    return replace(rates_of(gpu), **{name: getattr(_rates(gpu, end), name)})


def _rates(gpu: GpuSpec, end: str) -> Rates:
    clock, each = float(gpu.clock_mhz), 2 if gpu.arch.tmem_columns else 1
    # Some products have half or a quarter of the tensor-core rate (H20): derive it from the published
    # TFLOP/s.
    published = gpu.tensor_tflops["bfloat16"] * 1e6 / (gpu.sms * clock)
    part = 2.0 ** min(0, round(math.log2(published / (each * TENSOR["bfloat16"]))))
    tensor = {dtype: rate * each * part for dtype, rate in TENSOR.items()}
    values: dict[str, Any] = {"hbm_bytes": gpu.hbm_gbps, "l2_bytes": gpu.l2_gbps}
    for name, rate in sources(gpu).items():
        at = getattr(rate, end)
        values[name] = rate.value if at is None else at
    for name in ("hbm_bytes", "l2_bytes"):
        values[name] *= 1e3 / clock  # GB/s to bytes per clock
    return Rates(clock_mhz=clock, tensor=tensor, drawn=_loads().drawn, launch_us=gpu.launch_us, **values)
