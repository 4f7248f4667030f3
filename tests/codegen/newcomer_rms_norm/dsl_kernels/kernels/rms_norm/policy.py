"""How RMSNorm is launched, and how its variants rank."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ...arch import GpuSpec
from ...tile.lang import LaunchPlan, Policy

CTAS_PER_SM = 4


def launch(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> LaunchPlan:
    """Four CTAs per SM take rows in turn."""
    return LaunchPlan(ctas=max(1, min(dims["rows"], gpu.sms * CTAS_PER_SM)))


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """The sizes that decide which variant is best."""
    return {"rows": dims["rows"], "dim": dims["dim"]}


POLICY = Policy(bucket=bucket, launch=launch)
