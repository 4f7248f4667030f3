"""A row per architecture: what a CTA may use, and which MMA shapes are legal. A row per GPU: how fast it is.

Generated code depends on the architecture only. The GPU decides grids, splits and predictions at a call.
`rates_from` says where a GPU's rates come from: those of the H200 were measured on one card; the others are
published figures that were not checked.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

from .arguments import checked, shown
from .errors import UnsupportedArchError, did_you_mean

RESERVED_SMEM = 1024
"""Bytes of shared memory that the driver reserves in every CTA; a cubin's static memory includes them."""


@dataclass(frozen=True)
class MmaRule:
    """Legal shapes of one tensor-core instruction family.

    `m` lists the legal M of one instruction; a tile's M must be a multiple of one of them. `n_step` and
    `n_max` bound N per M. `k_bytes` is K times the element size. `mn_major` lists operand dtypes that may be
    read transposed from shared memory.
    """

    unit: str
    m: tuple[int, ...]
    n_step: dict[int, int]
    n_max: int
    k_bytes: int
    dtypes: tuple[str, ...]
    mn_major: tuple[str, ...]
    warps: int


@dataclass(frozen=True)
class ArchSpec:
    """Limits of one architecture.

    `gpu` is the reference product: the row of `GPUS` that is used where there is no GPU. `max_cluster` is the
    limit with the non-portable attribute set; 8 CTAs are portable.
    """

    name: str
    gpu: str
    compute_capability: tuple[int, int]
    smem_per_cta: int
    smem_per_sm: int
    registers_per_sm: int
    registers_per_thread: int
    threads_per_cta: int
    named_barriers: int
    tmem_columns: int
    max_cluster: int
    mma: tuple[MmaRule, ...]

    @property
    def tag(self) -> str:
        """The spelling used in variant ids: `sm90a`."""
        return self.name.replace("_", "")

    @cached_property
    def mma_units(self) -> dict[str, MmaRule]:
        return {rule.unit: rule for rule in self.mma}


# Dtypes whose rates are compared to find the GPU most like another.
COMPARED = ("bfloat16", "float8_e4m3")
# Share of an H200's SMs that clusters of a size can occupy at once. A cluster must fit into one GPC, so with
# one CTA per SM some SMs of each GPC are left over (128 CTAs in clusters of 4, 8 or 16 were measured to take
# two waves).
CLUSTERED = {1: 1.0, 2: 1.0, 4: 0.9, 8: 0.84, 16: 0.72}


@dataclass(frozen=True)
class GpuSpec:
    """One product. Bandwidths are in GB/s, rates in TFLOP/s without sparsity, times in microseconds.

    Attributes:
        device: the driver's name of it, by which its tuned table is found.
        clock_mhz: highest clock of the SMs.
        launch_us: time of an empty kernel in a graph.
        tile_latency_us: time from the load of a tile to its first use.
        note: what a user should know before trusting the row, or "".
    """

    name: str
    arch: ArchSpec
    device: str
    sms: int
    clock_mhz: int
    l2_bytes: int
    hbm_gbps: float
    l2_gbps: float
    tensor_tflops: dict[str, float]
    rates_from: str
    launch_us: float = 0.69
    tile_latency_us: float = 1.6
    note: str = ""

    def slots_in_clusters(self, size: int, ctas_per_sm: int = 1) -> int:
        """How many CTAs in clusters of `size` run at once."""
        share = min(share for least, share in CLUSTERED.items() if least <= size)
        return max(1, int(self.sms * ctas_per_sm * share))

    def with_sms(self, sms: int) -> GpuSpec:
        """This GPU with another number of SMs, and rates in proportion."""
        share = sms / self.sms
        rates = {dtype: rate * share for dtype, rate in self.tensor_tflops.items()}
        return replace(self, sms=sms, l2_gbps=self.l2_gbps * share, tensor_tflops=rates)

    @property
    def octaves(self) -> list[float]:
        """log2 of SMs, clock, L2 size, bandwidths and rates, which tell how similar two GPUs are."""
        sizes = (self.sms, self.clock_mhz, self.l2_bytes, self.hbm_gbps, self.l2_gbps)
        return [math.log2(size) for size in (*sizes, *(self.tensor_tflops[name] for name in COMPARED))]


_FP8 = ("float8_e4m3", "float8_e5m2")
_MMA_SYNC = MmaRule(
    "mma.sync", (16,), {16: 8}, 256, 32, ("bfloat16", "float16", *_FP8), ("bfloat16", "float16"), 1
)
_WGMMA = MmaRule("wgmma", (64,), {64: 8}, 256, 32, ("bfloat16", "float16", *_FP8), ("bfloat16", "float16"), 4)
_TCGEN05 = MmaRule(
    "tcgen05",
    (64, 128),
    {64: 8, 128: 16},
    256,
    32,
    ("bfloat16", "float16", *_FP8, "float4_e2m1x2"),
    ("bfloat16", "float16", *_FP8),
    1,
)

_SM_90A = ArchSpec(
    name="sm_90a",
    gpu="H200",
    compute_capability=(9, 0),
    smem_per_cta=232_448,
    smem_per_sm=233_472,
    registers_per_sm=65_536,
    registers_per_thread=255,
    threads_per_cta=1024,
    named_barriers=16,
    tmem_columns=0,
    max_cluster=16,
    mma=(_MMA_SYNC, _WGMMA),
)
_SM_100A = replace(
    _SM_90A,
    name="sm_100a",
    gpu="B200",
    compute_capability=(10, 0),
    tmem_columns=512,
    mma=(_MMA_SYNC, _TCGEN05),
)
ARCHS: dict[str, ArchSpec] = {spec.name: spec for spec in (_SM_90A, _SM_100A)}


def _dense(bf16: float, fp8: float, fp4: float | None = None) -> dict[str, float]:
    rates = {"bfloat16": bf16, "float16": bf16, "float8_e4m3": fp8}
    return rates if fp4 is None else {**rates, "float4_e2m1x2": fp4}


_PUBLISHED = "published figures, not measured: a model only"
# NVIDIA publishes no L2 bandwidth. Hopper's is that of the H200 per SM, Blackwell's was measured by TileSight
# (arXiv 2607.22432).
GPUS: dict[str, GpuSpec] = {
    spec.name: spec
    for spec in (
        GpuSpec(
            name="H200",
            arch=_SM_90A,
            device="NVIDIA H200",
            sms=132,
            clock_mhz=1980,
            l2_bytes=60 << 20,
            hbm_gbps=4667.0,
            l2_gbps=8900.0,
            tensor_tflops={"bfloat16": 814.0, "float16": 782.0, "float8_e4m3": 1357.0},
            rates_from="measured on one H200 (docs/log)",
        ),
        GpuSpec(
            name="H100",
            arch=_SM_90A,
            device="NVIDIA H100 80GB HBM3",
            sms=132,
            clock_mhz=1980,
            l2_bytes=50 << 20,
            hbm_gbps=3350.0,
            l2_gbps=8900.0,
            tensor_tflops=_dense(989.4, 1978.9),
            rates_from=f"{_PUBLISHED} (data sheet of the H100 SXM; clock as the driver reports it)",
        ),
        GpuSpec(
            name="H20",
            arch=_SM_90A,
            device="NVIDIA H20",
            sms=78,
            clock_mhz=1980,
            l2_bytes=60 << 20,
            hbm_gbps=4000.0,
            l2_gbps=5260.0,
            tensor_tflops=_dense(148.0, 296.0),
            rates_from=f"{_PUBLISHED} (specification of the H20 with 96 GB, as the press printed it; "
            "SMs and clock as the driver reports them)",
        ),
        GpuSpec(
            name="B200",
            arch=_SM_100A,
            device="NVIDIA B200",
            sms=148,
            clock_mhz=1965,
            l2_bytes=126 << 20,
            hbm_gbps=8000.0,
            l2_gbps=20500.0,
            tensor_tflops=_dense(2250.0, 4500.0, 9000.0),
            rates_from=f"{_PUBLISHED} (data sheet of the HGX B200; SMs and clock as the driver reports them)",
        ),
        GpuSpec(
            name="B300",
            arch=_SM_100A,
            device="NVIDIA B300 SXM6 AC",
            sms=148,
            clock_mhz=2032,
            l2_bytes=126 << 20,
            hbm_gbps=8000.0,
            l2_gbps=20500.0,
            tensor_tflops=_dense(2250.0, 4500.0, 13500.0),
            rates_from=f"{_PUBLISHED} (data sheet of the HGX B300; SMs and clock as the driver reports them)",
            note="its compute capability is 10.3, where code for sm_100a does not load: for predictions only",
        ),
    )
}


@checked
def get_arch(name: str) -> ArchSpec:
    """The row of `sm_90a` or `sm_100a` (the tag spelling `sm90a` is accepted too).

    Raises:
        UnsupportedArchError: no such row.
    """
    for spec in ARCHS.values():
        if name in (spec.name, spec.tag):
            return spec
    raise UnsupportedArchError(
        "arch",
        expected=" or ".join(ARCHS),
        got=shown(name),
        fix=did_you_mean(name, list(ARCHS)) + " To add one, see docs/extending.md",
    )


@checked
def arch_for_capability(major: int, minor: int) -> ArchSpec:
    """The architecture whose kernels run on a GPU of this compute capability.

    Raises:
        UnsupportedArchError: the project generates nothing for that GPU.
    """
    for spec in ARCHS.values():
        if spec.compute_capability == (major, minor):
            return spec
    known = ", ".join(
        f"{s.name} (compute capability {s.compute_capability[0]}.{s.compute_capability[1]})"
        for s in ARCHS.values()
    )
    raise UnsupportedArchError(
        "device",
        expected=known,
        got=f"compute capability {shown(major)}.{shown(minor)}",
        fix="run on a supported GPU, or use executor='interpreter'",
    )


@checked
def gpu_row(arch: str, device: str = "", sms: int = 0) -> GpuSpec:
    """The row of a GPU, for grids, splits and predictions.

    Args:
        device: its name in the driver or in `GPUS`; "" means the architecture's reference.
        sms: how many SMs the driver reports; 0 means those of the row.

    Returns:
        The row of that name. A product without a row, or a device whose number of SMs is not its row's (part
        of a GPU, another board), gets the reference's row with its own name and SMs, and a note that says so.

    Raises:
        UnsupportedArchError: no such architecture.
    """
    spec = get_arch(arch)
    reference = GPUS[spec.gpu]
    if not device:
        return reference.with_sms(sms) if sms else reference
    row = next((g for g in GPUS.values() if g.arch.name == spec.name and device in (g.name, g.device)), None)
    if row is not None and sms in (0, row.sms):
        return row
    lacking = f"with {sms} SMs" if row is not None else f"on {spec.name}"
    return replace(
        reference.with_sms(sms) if sms else reference,
        name=device,
        device=device,
        rates_from=f"those of the {reference.name}, {reference.rates_from}",
        note=f"no row for {device} {lacking}: the rates of the {reference.name}"
        + (f", for {sms} SMs" if sms else ""),
    )


@checked
def siblings(gpu: GpuSpec) -> list[GpuSpec]:
    """The other rows of a GPU's architecture, the most similar first; their tuned tables may stand in.

    The row of a device whose number of SMs is not its product's differs from the product's row, which is then
    among them.
    """
    others = [row for row in GPUS.values() if row.arch.name == gpu.arch.name and row != gpu]
    return sorted(others, key=lambda row: math.dist(row.octaves, gpu.octaves))
