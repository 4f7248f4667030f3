"""Lowerings of one declaration through different DSLs give the same answers to the same inputs.

Selections must agree bit for bit; scores and attention within the problem's tolerance.
"""

from __future__ import annotations

import itertools

import kernel_folders
import pytest
import torch

from dsl_kernels import variants
from dsl_kernels.arch import ARCHS
from dsl_kernels.executors import Cuda, Emulator
from dsl_kernels_lab import oracles
from dsl_kernels_lab.verification import trial

WORKLOADS = {
    op: module.AGREED for op, module in kernel_folders.of_each("sizes").items() if hasattr(module, "AGREED")
}


def cases():
    """For each pair of DSLs, architecture and workload, the first variant of each that takes it."""
    for op, arch in itertools.product(WORKLOADS, ARCHS):
        by_backend: dict[str, list[variants.Variant]] = {}
        for variant in variants.variants(op, arch=arch):
            by_backend.setdefault(variant.backend, []).append(variant)
        for one, other in itertools.combinations(sorted(by_backend), 2):
            for workload in oracles.get(op).workloads:
                if not workload.name.startswith(WORKLOADS[op]):
                    continue
                inputs = trial.cached_example(op, workload).inputs
                pair = [
                    next((v for v in by_backend[b] if trial.accepts(v, workload, inputs) is None), None)
                    for b in (one, other)
                ]
                if None not in pair:
                    mark = getattr(pytest.mark, arch.replace("_", "").rstrip("a"))
                    yield pytest.param(
                        *pair, workload, marks=mark, id=f"{arch}-{op}-{one}-{other}-{workload.name}"
                    )


def agree(one, other, workload, executor, device) -> None:
    example = trial.cached_example(one.op, workload)
    results = [
        trial.run(v, workload, executor, example=example, device=device).operands for v in (one, other)
    ]
    outputs = [
        {name: value.cpu() for name, value in result.items() if isinstance(value, torch.Tensor)}
        for result in results
    ]
    problem = oracles.get(one.op)
    names = [o.name for o in problem.operands(workload.form) if o.kind == "out"]
    if one.op == "topk_selector":
        assert torch.equal(outputs[0]["indices"], outputs[1]["indices"])
    comparison = problem.compare(
        workload.form, example.inputs, outputs[0], {name: outputs[1][name].double() for name in names}
    )
    assert comparison.ok, comparison.failures


EMULATED = [pytest.param(*case.values, id=case.id) for case in cases()]


@pytest.mark.sample(16)
@pytest.mark.emulator
@pytest.mark.compile
@pytest.mark.parametrize("one,other,workload", EMULATED)
def test_dsls_agree_in_the_emulator(one, other, workload) -> None:
    agree(one, other, workload, Emulator(), "cpu")


@pytest.mark.parametrize("one,other,workload", list(cases()))
def test_dsls_agree_on_the_gpu(one, other, workload) -> None:
    agree(one, other, workload, Cuda(), "cuda:0")
