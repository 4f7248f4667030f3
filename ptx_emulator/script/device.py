"""The GPU that a checked program sees."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..checks import shown
from ..errors import UnsupportedArchError
from ..ptx import SMEM_RESERVED

SMS = 4  # SMs of the device that a program sees: few, so that persistent kernels launch few CTAs


@dataclass(frozen=True)
class Arch:
    """What a program may ask of an architecture; `gpu` is its product."""

    name: str
    gpu: str
    compute_capability: tuple[int, int]
    smem_per_cta: int
    smem_per_sm: int
    registers_per_sm: int


_SM_90A = Arch(
    name="sm_90a",
    gpu="H200",
    compute_capability=(9, 0),
    smem_per_cta=232_448,
    smem_per_sm=233_472,
    registers_per_sm=65_536,
)
_SM_100A = replace(_SM_90A, name="sm_100a", gpu="B200", compute_capability=(10, 0))
ARCHS = {arch.name: arch for arch in (_SM_90A, _SM_100A)}


def get_arch(name: str) -> Arch:
    """The row of `sm_90a` or `sm_100a`; `sm90a` is accepted too.

    Raises:
        UnsupportedArchError: no such row.
    """
    for arch in ARCHS.values():
        if name in (arch.name, arch.name.replace("_", "")):
            return arch
    known = " or ".join(ARCHS)
    raise UnsupportedArchError("arch", expected=known, got=shown(name), fix=f"name {known}")


@dataclass(frozen=True)
class Device:
    """The GPU that a program sees."""

    arch: Arch
    sms: int = SMS
    memory_bytes: int = 64 << 30
    l2_bytes: int = 50 << 20
    warp: int = 32

    @property
    def capability(self) -> tuple[int, int]:
        return self.arch.compute_capability

    @property
    def name(self) -> str:
        return f"emulated NVIDIA {self.arch.gpu}"

    @property
    def static_smem(self) -> int:
        return 48 << 10

    @property
    def reserved_smem(self) -> int:
        return SMEM_RESERVED
