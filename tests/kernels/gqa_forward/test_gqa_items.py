"""Grouped-query attention with several work items per CTA, in alternating order, on the interpreter and the
emulator.

Also its schedules for measurement only, which must never be selected.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from codegen.emit import emit
from codegen.sweep import combinations, instance_of
from dsl_kernels import programs, registry, variants
from dsl_kernels.arch import ARCHS
from dsl_kernels.errors import InvalidArgumentError, UnknownNameError
from dsl_kernels.executors import Emulator, Interpreter
from dsl_kernels_lab.oracles import Workload
from dsl_kernels_lab.verification import trial

VARIANTS = [v for v in variants.variants("gqa_forward") if v.knobs["dtype"] == "fp16"]


def _case(variant: variants.Variant, causal: int) -> Workload:
    sizes = {"b": 2, "sq": 257, "skv": 300, "heads": 4, "kv_heads": 2, "dim": variant.knobs["dim"]}
    return Workload(f"items_{causal}_{variant.knobs['dim']}", "edge", "fp16", {**sizes, "causal": causal})


@pytest.mark.sample(24)
@pytest.mark.parametrize("causal", (0, 1))
@pytest.mark.parametrize(
    "launch", ({"ctas": 1, "abreast": 3}, {"ctas": 3, "abreast": 2}, {"ctas": 5, "abreast": 1}), ids=str
)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.id)
def test_every_item_is_done_once(variant, launch, causal) -> None:
    result = trial.run(variant, _case(variant, causal), Interpreter(), launch=launch)
    assert result.comparison.ok, result.comparison.failures


@pytest.mark.emulator
@pytest.mark.compile
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.id)
def test_the_compiled_kernels_agree(variant) -> None:
    result = trial.run(variant, _case(variant, 1), Emulator(strict=True), launch={"ctas": 3, "abreast": 2})
    assert result.comparison.ok, result.comparison.failures


# Changes of a committed variant for measurement only, and whether their result is right.
MEASURED = (
    ({"ablation": "nosoftmax"}, False),
    ({"ablation": "nooverlap"}, True),
    ({"groups": 1, "order": 0}, True),
    ({"groups": 1, "order": 0, "ablation": "nosoftmax"}, False),
)


_D64 = Workload(
    "measured",
    "edge",
    "fp16",
    {"b": 1, "sq": 257, "skv": 300, "heads": 2, "kv_heads": 1, "dim": 64, "causal": 0},
)


def _base() -> variants.Variant:
    return next(
        v
        for v in VARIANTS
        if (v.backend, v.arch) == ("cutedsl", "sm_90a") and v.knobs["dim"] == _D64.params["dim"]
    )


def _measuring(changed: dict[str, object], folder: Path) -> variants.Variant:
    emit([instance_of(_base(), **changed)], folder)
    (variant,) = variants.in_folder(folder)
    return variant


@pytest.mark.parametrize(("changed", "right"), MEASURED, ids=str)
def test_a_schedule_that_only_measures_is_wrong_where_it_leaves_work_out(changed, right, tmp_path) -> None:
    result = trial.run(_measuring(changed, tmp_path), _D64, Interpreter())
    assert result.comparison.ok == right, result.comparison.failures


@pytest.mark.emulator
@pytest.mark.compile
@pytest.mark.parametrize(("changed", "right"), MEASURED[:3], ids=str)
def test_a_schedule_that_only_measures_is_in_step(changed, right, tmp_path) -> None:
    result = trial.run(_measuring(changed, tmp_path), _D64, Emulator(strict=True))
    assert result.comparison.ok == right, result.comparison.failures


@pytest.mark.parametrize(("changed", "right"), MEASURED, ids=str)
def test_nothing_selects_or_sweeps_a_schedule_that_only_measures(changed, right, tmp_path) -> None:
    variant = _measuring(changed, tmp_path)
    workload = _case(variant, 0)
    call = trial.call_of(variant, workload, trial.draw(variant.op, workload, 0))
    assert "measure" in (registry.refusal(call, variant, named=variant.id) or "")
    assert not trial.workloads(variant, "tiny")
    program, arch = programs.get(variant.op), ARCHS[variant.arch]
    for level in range(3):
        for knobs in combinations(program, arch, level):
            assert knobs["ablation"] == "none" and knobs["groups"] > 1


def test_a_knob_is_changed_to_a_value_that_it_has() -> None:
    with pytest.raises(UnknownNameError, match="ablation"):
        instance_of(_base(), ablatoin="nosoftmax")
    with pytest.raises(InvalidArgumentError, match="none or nosoftmax or nooverlap"):
        instance_of(_base(), ablation="half")
