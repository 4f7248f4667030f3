"""Tests specific to row softmax; the shared tests run every workload on every variant."""

from __future__ import annotations

import torch

from dsl_kernels_lab import oracles
from dsl_kernels_lab.oracles import Workload
from dsl_kernels_lab.verification import trial

ORACLE = oracles.get("row_softmax")


def test_the_reference_is_torch_s_softmax_by_another_way() -> None:
    x = trial.draw("row_softmax", ORACLE.workload("tiny"), seed=0)["x"].double()
    found = ORACLE.reference("default", {"x": x})["y"]
    wanted = x.exp() / x.exp().sum(dim=1, keepdim=True)
    assert torch.allclose(found, wanted, rtol=1e-12, atol=0)


def test_no_row_is_no_launch() -> None:
    empty = Workload("empty", "edge", "default", {"rows": 0, "columns": 1024})
    assert trial.draw("row_softmax", empty, seed=0)["x"].shape == (0, 1024)
