"""What is special about RMSNorm; the shared tests run every workload on every variant."""

from __future__ import annotations

import torch

from dsl_kernels import problems
from dsl_kernels.verification import trial

PROBLEM = problems.get("rms_norm")


def test_the_reference_is_torch_s_rms_norm() -> None:
    inputs = trial.draw("rms_norm", PROBLEM.workload("tiny"), seed=0)
    wide = {name: v.double() if isinstance(v, torch.Tensor) else v for name, v in inputs.items()}
    wanted = torch.nn.functional.rms_norm(wide["x"], (1024,), wide["weight"], wide["eps"])
    assert torch.allclose(PROBLEM.reference("default", inputs)["y"], wanted, rtol=1e-12, atol=0)
