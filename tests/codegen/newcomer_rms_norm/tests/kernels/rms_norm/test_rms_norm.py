"""Tests specific to RMSNorm; the shared tests run every workload on every variant."""

from __future__ import annotations

import torch

from dsl_kernels import programs
from dsl_kernels.arch import ARCHS
from dsl_kernels.tile.counting import counts_of
from dsl_kernels_lab import oracles
from dsl_kernels_lab.verification import trial

ORACLE = oracles.get("rms_norm")


def test_the_reference_is_torch_s_rms_norm() -> None:
    inputs = trial.draw("rms_norm", ORACLE.workload("tiny"), seed=0)
    wide = {name: v.double() if isinstance(v, torch.Tensor) else v for name, v in inputs.items()}
    wanted = torch.nn.functional.rms_norm(wide["x"], (1024,), wide["weight"], wide["eps"])
    assert torch.allclose(ORACLE.reference("default", inputs)["y"], wanted, rtol=1e-12, atol=0)


def test_a_cta_moves_its_rows_and_the_weight_once() -> None:
    """The bytes that leaves declare and that the copy engine loads: bf16, two bytes per element."""
    count = counts_of(programs.get("rms_norm"), {"dim": 1024, "stages": 2}, ARCHS["sm_90a"])
    found = count({"rows": 9, "dim": 1024, "ctas": 3})
    assert (found.loaded, found.stored) == (2 * 1024 * (3 + 1), 2 * 1024 * 3)
