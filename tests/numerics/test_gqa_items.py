"""Grouped-query attention with several work items a CTA, in rounds that go to and fro, on the interpreter and the emulator."""

from __future__ import annotations

import pytest

from dsl_kernels import variants
from dsl_kernels.executors import Emulator, Interpreter
from dsl_kernels.problems.base import Workload
from dsl_kernels.verification import trial

VARIANTS = [v for v in variants.variants("gqa_forward") if v.knobs["dtype"] == "fp16"]


def _case(variant: variants.Variant, causal: int) -> Workload:
    sizes = {"b": 2, "sq": 257, "skv": 300, "heads": 4, "kv_heads": 2, "dim": variant.knobs["dim"]}
    return Workload(f"items_{causal}_{variant.knobs['dim']}", "edge", "fp16", {**sizes, "causal": causal})


@pytest.mark.parametrize("causal", (0, 1))
@pytest.mark.parametrize(
    "launch", ({"ctas": 1, "abreast": 3}, {"ctas": 3, "abreast": 2}, {"ctas": 5, "abreast": 1}), ids=str
)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.id)
def test_every_item_is_done_once(variant, launch, causal) -> None:
    found = trial.run(variant, _case(variant, causal), Interpreter(), launch=launch)
    assert found.comparison.ok, found.comparison.failures


@pytest.mark.emulator
@pytest.mark.compile
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.id)
def test_the_compiled_kernels_agree(variant) -> None:
    found = trial.run(variant, _case(variant, 1), Emulator(strict=True), launch={"ctas": 3, "abreast": 2})
    assert found.comparison.ok, found.comparison.failures
