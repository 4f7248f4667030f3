"""One row an architecture: what a CTA may use there, which MMA shapes are legal, how fast the units are.

The rates rank variants when nothing was measured. `rates_from` says where they come from: the H200's were
measured on one card, the B200's are published figures that nobody here has checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .arguments import checked, shown
from .errors import UnsupportedArchError, did_you_mean


@dataclass(frozen=True)
class MmaRule:
    """Legal shapes of one tensor-core instruction family.

    `m` lists the legal M of one instruction; a tile's M must be a multiple of one of them. `n_step` and `n_max`
    bound N per M. `k_bytes` is K times the element size. `mn_major` lists operand dtypes that may be read
    transposed from shared memory.
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
    """Limits and rates of one architecture. Bandwidths in GB/s, rates in TFLOP/s, times in microseconds.

    `max_cluster` counts CTAs with the non-portable attribute set; 8 are portable.
    """

    name: str
    gpu: str
    compute_capability: tuple[int, int]
    sms: int
    smem_per_cta: int
    smem_per_sm: int
    registers_per_sm: int
    registers_per_thread: int
    threads_per_cta: int
    named_barriers: int
    tmem_columns: int
    max_cluster: int
    l2_bytes: int
    hbm_gbps: float
    l2_gbps: float
    tensor_tflops: dict[str, float]
    fp32_tflops: float
    launch_us: float
    tile_latency_us: float
    mma: tuple[MmaRule, ...]
    rates_from: str

    @property
    def tag(self) -> str:
        """The spelling used in variant ids: `sm90a`."""
        return self.name.replace("_", "")

    @cached_property
    def mma_units(self) -> dict[str, MmaRule]:
        return {rule.unit: rule for rule in self.mma}


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
    ("bfloat16", "float16", *_FP8),
    ("bfloat16", "float16", *_FP8),
    1,
)

ARCHS: dict[str, ArchSpec] = {
    spec.name: spec
    for spec in (
        ArchSpec(
            name="sm_90a",
            gpu="H200",
            compute_capability=(9, 0),
            sms=132,
            smem_per_cta=232_448,
            smem_per_sm=233_472,
            registers_per_sm=65_536,
            registers_per_thread=255,
            threads_per_cta=1024,
            named_barriers=16,
            tmem_columns=0,
            max_cluster=16,
            l2_bytes=60 << 20,
            hbm_gbps=4667.0,
            l2_gbps=8900.0,
            tensor_tflops={"bfloat16": 814.0, "float16": 782.0, "float8_e4m3": 1357.0},
            fp32_tflops=60.0,
            launch_us=0.69,
            tile_latency_us=1.6,
            mma=(_MMA_SYNC, _WGMMA),
            rates_from="measured on one H200 (docs/performance.md)",
        ),
        ArchSpec(
            name="sm_100a",
            gpu="B200",
            compute_capability=(10, 0),
            sms=148,
            smem_per_cta=232_448,
            smem_per_sm=233_472,
            registers_per_sm=65_536,
            registers_per_thread=255,
            threads_per_cta=1024,
            named_barriers=16,
            tmem_columns=512,
            max_cluster=16,
            l2_bytes=126 << 20,
            hbm_gbps=8000.0,
            l2_gbps=15000.0,
            tensor_tflops={"bfloat16": 2250.0, "float16": 2250.0, "float8_e4m3": 4500.0},
            fp32_tflops=75.0,
            launch_us=0.69,
            tile_latency_us=1.6,
            mma=(_MMA_SYNC, _TCGEN05),
            rates_from="published figures, not measured: a model only",
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
