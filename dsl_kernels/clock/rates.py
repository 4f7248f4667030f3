"""What the units of an SM do in a clock, and what their latencies are.

Every number has a source and, where it was not measured on the GPU that it is for, an interval: `bounds` are a GPU at
either end of all of them. `benchmarks/clock_rates.py` measures the GPU at hand. Nothing here is fitted to measured kernels.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from ..arch import GpuSpec


class Rate(NamedTuple):
    """A number, where it comes from, between what it lies, and which item of `benchmarks/clock_rates.py` measures it."""

    value: float
    source: str
    best: float | None = None
    worst: float | None = None
    item: str = ""


@dataclass(frozen=True)
class Rates:
    """Rates a clock and SM, and latencies in clocks.

    Attributes:
        clock_mhz: the highest clock.
        loaded_mhz: the clock that power leaves where the tensor cores are busy all the time.
        tensor: operations of the tensor cores, a multiply-add being two, by dtype.
        tensor_least: clocks of an instruction of the tensor cores at least.
        tensor_half: the part of the tensor cores that a product of 64 rows of a CTA has, on Blackwell.
        tensor_latency: from the last instruction of a group to where its result is seen.
        tensor_issue: instructions that a warp issues for one of the tensor cores.
        mufu: exponentials and their like, in lanes.
        alu: whole numbers, comparisons, choices and conversions, in lanes.
        shared_bytes: the port of shared memory.
        tensor_columns: 32-bit columns between a warp's registers and tensor memory, a scheduler.
        sm_bytes: what an SM takes from the L2 at most.
        hbm_bytes, l2_bytes: what memory and the L2 give to all SMs.
        hbm_latency, l2_latency: of a load; a bulk copy takes `bulk_latency` more, a cp.async `copy_latency`.
        hand_over: from an arrival at an mbarrier to the warp that waits for it.
        meet: a named barrier.
        message: to another CTA of the cluster, from its stores to who waits for them.
        cluster, cluster_relaxed: a barrier of a cluster that orders memory, and one that does not.
        grid: a message to another CTA of the grid.
        stall, dense_stall: clocks of a warp an instruction, where it is alone: of any, and of those on floats in registers.
        bulk_issue, bulk_slots: clocks of the copy engine a copy, and instructions of the warp that asks for it.
        launch_us: an empty kernel.
        begin_us: from the launch of a CTA to its first instruction.
    """

    clock_mhz: float
    loaded_mhz: float
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
    tensor_columns: float
    sm_bytes: float
    hbm_latency: float
    l2_latency: float
    bulk_latency: float
    copy_latency: float
    hand_over: float
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

    def mhz(self, busy: float) -> float:
        """The clock where the tensor cores are busy for a share of the time."""
        return self.clock_mhz - busy * (self.clock_mhz - self.loaded_mhz)


_SASS = "benchmarks/clock_instructions.py: stall fields of the SASS of the committed variants"
_RECORD = Path(__file__).parent.parent / "tuned" / "nvidia_h100_rates.json"
_GUIDE = "CUDA's programming guide"


@functools.cache
def hopper() -> dict[str, Rate]:
    """Hopper's rates: those that `benchmarks/clock_rates.py` measured on an H100, and what else is known."""
    record = json.loads(_RECORD.read_text())
    source = f"{record['command']} on one {record['gpu']}, {record['date']}"

    def seen(name: str, less: str = "", loaded: float = 1.0) -> Rate:
        """A measured figure, or the difference of two; under load it may be `loaded` times that."""
        value = record["rates"][name]["value"] - (record["rates"][less]["value"] if less else 0.0)
        said = f"{name}{f' less {less}' if less else ''}: {source}"
        items = [f"^{figure.removesuffix('_mhz')}$" for figure in (name, less) if figure]
        return Rate(value, said, value, value * loaded, "|".join(items))

    return {
        "loaded_mhz": seen("load_bf16_mhz"),
        "tensor_least": seen("wgmma_bf16_n8_registers"),
        "tensor_half": Rate(1, "wgmma is of 64 rows"),
        "tensor_latency": seen("wgmma_bf16_n64_lone", "wgmma_bf16_n64_shared"),
        "tensor_issue": Rate(2, "SASS of the committed variants"),
        "mufu": Rate(16, f"{_GUIDE}, throughput of native arithmetic; unit_mufu_ex2_16warps: {source}"),
        "alu": Rate(64, f"{_GUIDE}, the same; unit_lop3_16warps: {source}"),
        "shared_bytes": Rate(128, f"{_GUIDE}: 32 banks of 4 bytes; unit_lds_128_16warps: {source}"),
        "tensor_columns": Rate(1, "Hopper has no tensor memory"),
        "sm_bytes": seen("stream_cp_async_64k_l2"),
        "hbm_latency": seen("fetch_ld_global_hbm", loaded=1.5),
        "l2_latency": seen("fetch_ld_global_l2", loaded=1.5),
        "bulk_latency": seen("fetch_bulk_1k_l2", "fetch_ld_global_l2", loaded=2.0),
        "copy_latency": seen("fetch_cp_async_l2", "fetch_ld_global_l2", loaded=2.0),
        "hand_over": seen("hand_mbarrier"),
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
    """Blackwell's rates: published ones, and Hopper's where none is."""
    found = {
        **hopper(),
        "loaded_mhz": Rate(1845, "contest notes: 1845 MHz under load on a rented B200", 1965, 1500),
        # A chain of dependent instructions takes 54 clocks each at N = 64 and 128; whether others may go between is not known.
        "tensor_least": Rate(
            20, f"{_NOTES}; initiation of 11 clocks by SemiAnalysis, 2026-03-31", 11, 54,
            "^tcgen05_bf16_m128_n(16|64)_(shared|two)$",
        ),
        # 0.84 of it was measured by .ws, whose products of 64 rows take all lanes of tensor memory.
        "tensor_half": Rate(
            0.5, "common knowledge: half a tile of 128 rows; 76 clocks an m64n256k16 by .ws", 0.84, 0.5,
            "^tcgen05_bf16_m(64|128)_n128_(shared|ws)$",
        ),
        "tensor_latency": Rate(
            100, f"{_NOTES}: commit + 30 clocks, chain of 54 to 138", 60, 170, "^tcgen05_bf16_m128_n64_(lone|shared)$"
        ),
        "tensor_issue": Rate(6.5, f"{_SASS}: 6 of attention and GQA, 24 of scoring in CuTe DSL, 5 in TileLang", 5, 24),
        "tensor_columns": Rate(
            57 / 128, "public catalogue of the B300: 57 bytes a clock and scheduler", 1.0, 0.4, "^tcgen05_ld_\\d+warps$"
        ),
        "bulk_slots": Rate(11, f"{_SASS}: a box of a tensor map, 29 clocks; `sm.COPIES` has the rest", 6, 20),
        "hand_over": Rate(44, f"{_NOTES}: 88 clocks both ways", 30, 90),
        "l2_latency": Rate(360, f"{_NOTES}: gather4 from the L2 in 197 ns", 280, 460),
        "hbm_latency": Rate(800, f"{_NOTES}: gather4 from memory in 540 ns", 650, 1000),
    }  # fmt: skip
    # What measures Hopper's measures these too, but for what wgmma takes.
    return {
        name: rate if rate.item or name.startswith("tensor") else rate._replace(item=hopper()[name].item)
        for name, rate in found.items()
    }


# What memory and the L2 of a GPU give, where more is known than its row in `arch.GPUS` says, in GB/s.
BANDWIDTHS: dict[str, dict[str, Rate]] = {
    "B200": {
        "hbm_bytes": Rate(
            7000, "TileSight, arXiv 2607.22432, measured; 7480 in arXiv 2512.02189", 7480, 6600, "^all_hbm$"
        ),
        "l2_bytes": Rate(20500, "TileSight, arXiv 2607.22432", 22000, 15000, "^all_l2$"),
    },
}
# Operations of Hopper's tensor cores in a clock; Blackwell's do twice as many.
TENSOR = {"bfloat16": 4096.0, "float16": 4096.0, "float8_e4m3": 8192.0}


def sources(gpu: GpuSpec) -> dict[str, Rate]:
    """Every rate of a GPU that is no number of its row in `arch.GPUS`, with its source."""
    return {**(blackwell() if gpu.arch.tmem_columns else hopper()), **BANDWIDTHS.get(gpu.name, {})}


def rates_of(gpu: GpuSpec) -> Rates:
    """The rates of a GPU, each in the middle of its interval."""
    return _rates(gpu, "value")


def bounds(gpu: GpuSpec) -> tuple[Rates, Rates]:
    """A GPU all of whose rates are at the best, and at the worst, ends of their intervals."""
    return _rates(gpu, "best"), _rates(gpu, "worst")


def with_one(gpu: GpuSpec, name: str, end: str) -> Rates:
    """The rates of a GPU in the middle of their intervals, but for one at an end ("best" or "worst") of its own."""
    return replace(rates_of(gpu), **{name: getattr(_rates(gpu, end), name)})


def _rates(gpu: GpuSpec, end: str) -> Rates:
    clock, each = float(gpu.clock_mhz), 2 if gpu.arch.tmem_columns else 1
    # Some products have a half or a quarter of the tensor cores (H20): what is published of them says which.
    published = gpu.tensor_tflops["bfloat16"] * 1e6 / (gpu.sms * clock)
    part = 2.0 ** min(0, round(math.log2(published / (each * TENSOR["bfloat16"]))))
    tensor = {dtype: rate * each * part for dtype, rate in TENSOR.items()}
    found: dict[str, Any] = {"hbm_bytes": gpu.hbm_gbps, "l2_bytes": gpu.l2_gbps}
    for name, rate in sources(gpu).items():
        at = getattr(rate, end)
        found[name] = rate.value if at is None else at
    for name in ("hbm_bytes", "l2_bytes"):
        found[name] *= 1e3 / clock
    return Rates(clock_mhz=clock, tensor=tensor, launch_us=gpu.launch_us, **found)
