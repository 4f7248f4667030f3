"""What this machine has and can run, found without torch if possible."""

from __future__ import annotations

import sys
from typing import Any

from ..errors import UnsupportedArchError


def gpus() -> list[dict[str, Any]]:
    """Name, compute capability, SMs and architecture of each visible GPU; empty without a driver."""
    try:
        from cuda.bindings import driver

        if driver.cuInit(0)[0]:
            return []
        visible = []
        for index in range(driver.cuDeviceGetCount()[1]):
            device = driver.cuDeviceGet(index)[1]
            kinds = driver.CUdevice_attribute
            major, minor, sms = (
                int(driver.cuDeviceGetAttribute(kind, device)[1])
                for kind in (
                    kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                    kinds.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                    kinds.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                )
            )
            name = driver.cuDeviceGetName(128, device)[1].split(b"\0")[0].decode()
            visible.append(
                {"name": name, "capability": f"{major}.{minor}", "sms": sms, "arch": _arch(major, minor)}
            )
        return visible
    except (ImportError, RuntimeError, OSError):
        return []


def _arch(major: int, minor: int) -> str | None:
    from ..arch import arch_for_capability

    try:
        return arch_for_capability(major, minor).name
    except UnsupportedArchError:
        return None


def interactive() -> bool:
    """Whether a person can answer a question."""
    return sys.stdin.isatty() and sys.stdout.isatty()
