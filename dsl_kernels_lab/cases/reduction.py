"""Sum of fp32 elements into one accumulator, four ways: what makes atomics slow, and which counter shows it.

v1 adds every element atomically; v2 reduces a block in a tree through shared memory; v3 uses shuffles for the
last warp; v4 uses shuffles throughout. All walk the input in a grid-stride loop.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from dsl_kernels._discover import later
from dsl_kernels.problems.base import Comparison

from ..timing import bench
from . import _figures
from ._cuda import Source
from .base import Case, CaseRows, Expectation, Launch, Record, rows_of, times

if TYPE_CHECKING:
    import torch
else:
    torch = later("torch", globals())

BLOCK = 256
BLOCKS_PER_SM = 8
VERSIONS = ("v1", "v2", "v3", "v4")
# 16 MiB fit in the L2 of an H200, 256 MiB do not.
SIZES = {"4Mi": 4 << 20, "64Mi": 64 << 20}
DEVICE = "cuda"

SOURCE = Source(
    r"""
#define EACH(i) for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; \
                     i += (long long)gridDim.x * blockDim.x)

__device__ __forceinline__ float own_sum(const float* data, long long n) {
  float sum = 0;
  EACH(i) sum += data[i];
  return sum;
}

__device__ __forceinline__ float warp_sum(float sum) {
  for (int step = 16; step > 0; step >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, step);
  return sum;
}

extern "C" __global__ void reduce_v1(const float* data, float* total, long long n) {
  EACH(i) atomicAdd(total, data[i]);
}

extern "C" __global__ void reduce_v2(const float* data, float* total, long long n) {
  __shared__ float part[BLOCK];
  part[threadIdx.x] = own_sum(data, n);
  __syncthreads();
  for (int step = BLOCK / 2; step > 0; step >>= 1) {
    if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) atomicAdd(total, part[0]);
}

extern "C" __global__ void reduce_v3(const float* data, float* total, long long n) {
  __shared__ float part[BLOCK];
  part[threadIdx.x] = own_sum(data, n);
  __syncthreads();
  for (int step = BLOCK / 2; step > 16; step >>= 1) {
    if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x < 32) {
    const float sum = warp_sum(part[threadIdx.x]);
    if (threadIdx.x == 0) atomicAdd(total, sum);
  }
}

extern "C" __global__ void reduce_v4(const float* data, float* total, long long n) {
  __shared__ float part[BLOCK / 32];
  float sum = warp_sum(own_sum(data, n));
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    sum = warp_sum(threadIdx.x < BLOCK / 32 ? part[threadIdx.x] : 0);
    if (threadIdx.x == 0) atomicAdd(total, sum);
  }
}
""",
    "reduction",
    {"BLOCK": BLOCK},
)


def draw(n: int, seed: int = 0) -> torch.Tensor:
    """Zeros and ones, with at most 2^24 ones expected, so that fp32 sums are exact in every order."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return (torch.rand(n, generator=generator, device=DEVICE) < min(0.5, (4 << 20) / n)).float()


def reduce(version: str, data: torch.Tensor, total: torch.Tensor) -> None:
    """Add the sum of `data` to `total`."""
    sms = torch.cuda.get_device_properties(data.device).multi_processor_count
    SOURCE.launch(f"reduce_{version}", BLOCKS_PER_SM * sms, BLOCK, data, total, data.numel())


def checked(call: Callable[[], Any], total: torch.Tensor, expected: float) -> Comparison:
    """Require exact equality: nothing rounds."""
    comparison = Comparison()
    total.zero_()
    call()
    comparison.require("absolute error", abs(float(total) - expected), 0.0)
    return comparison


def measure(to: CaseRows) -> None:
    for label, n in SIZES.items():
        sets = [draw(n, seed) for seed in range(min(12, bench.turns(4.0 * n)))]
        total = torch.zeros(1, device=DEVICE)
        expected = float(sets[0].double().sum())
        for version in VERSIONS:
            if version == "v1" and n > SIZES["4Mi"]:
                to.notes.append(
                    "v1 is timed at 4Mi elements only: at 64Mi one call takes a tenth of a second"
                )
                continue
            calls = [partial(reduce, version, data, total) for data in sets]
            to.row(
                f"{version}_{label}",
                partial(times, calls, 4.0 * n),
                partial(checked, calls[0], total, expected),
                kind="sum",
                version=version,
                elements=n,
            )
        out = torch.zeros((), device=DEVICE)
        sums = [partial(torch.sum, data, dim=0, out=out) for data in sets]
        to.row(
            f"torch_{label}",
            partial(times, sums, 4.0 * n),
            partial(checked, sums[0], out, expected),
            kind="sum",
            version="torch.sum",
            elements=n,
        )


def target(version: str, label: str) -> Launch:
    def prepare() -> Callable[[], None]:
        return partial(reduce, version, draw(SIZES[label]), torch.zeros(1, device=DEVICE))

    return Launch(prepare, f"reduce_{version}")


def figure(record: Record) -> Any:
    """Time by version, and where the warps of v1 and v4 wait."""
    rows = rows_of(record, "sum")
    drawn, (left, right) = _figures.panels(2, "Sum of fp32 elements", record)
    small = [row for row in rows if row["elements"] == SIZES["4Mi"]]
    _figures.bars(
        left, [row["version"] for row in small], [row["us"] for row in small], "µs, 4Mi elements", log=True
    )
    _figures.stalls(right, record)
    return drawn


DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
CASE = Case(
    name="reduction",
    question="Where does the cost of one atomic an element show, if occupancy does not show it?",
    source="003",
    measure=measure,
    draw=figure,
    launches={
        "v1_4Mi": target("v1", "4Mi"),
        "v2_64Mi": target("v2", "64Mi"),
        "v4_4Mi": target("v4", "4Mi"),
        "v4_64Mi": target("v4", "64Mi"),
    },
    expected=(
        Expectation("v1_4Mi", DRAM, "<", 5.0, "the DRAM idles while the atomics queue"),
        Expectation("v1_4Mi", "lts__t_sector_hit_rate.pct", ">=", 80.0, "one hot line, not locality"),
        Expectation(
            "v1_4Mi",
            "lts__t_sectors_op_red.sum",
            ">=",
            100_000.0,
            "an atomic sector for every warp's elements",
        ),
        Expectation(
            "v1_4Mi",
            "dominant_stall",
            "in",
            ("lg_throttle", "long_scoreboard", "drain"),
            "behind the atomics",
        ),
        Expectation(
            "v1_4Mi",
            "sm__warps_active.avg.pct_of_peak_sustained_active",
            ">=",
            80.0,
            "occupancy hides the cause",
        ),
        Expectation("v4_64Mi", DRAM, ">=", 80.0, "bound by memory, past the L2"),
        Expectation("v4_64Mi", "dominant_stall", "in", ("long_scoreboard",), "waits for loads"),
        Expectation("v4_64Mi", "lts__t_sector_hit_rate.pct", "<", 20.0, "every line is read once"),
        Expectation(
            "v4_64Mi", "sm__warps_active.avg.pct_of_peak_sustained_active", ">=", 80.0, "as occupied as v1"
        ),
    ),
)
