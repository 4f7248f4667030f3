"""The accuracy that docs/clock.md states for attention over fp8 tokens with e4m3 operands as stored."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

import fp8_terms

from dsl_kernels_lab.oracles.sparse_mla import LSE_LIMIT, OUT_LIMIT


@pytest.mark.parametrize("name", ["scales of max / 448", "one token and a long tail"])
def test_the_program_meets_the_rule_and_is_no_worse_than_bf16(name: str) -> None:
    ((_, (bf16, _, model, program)),) = fp8_terms.rows_of(3, [name])
    for out, lse in (model, program):
        assert out <= min(OUT_LIMIT, bf16[0] * 1.01) and lse <= LSE_LIMIT
    assert program[0] == pytest.approx(model[0], rel=0.02)


def test_a_long_tail_needs_a_maximum_that_does_not_lag_far() -> None:
    ((_, (bf16, lazy, model)),) = fp8_terms.rows_of(3, ["one token and a long tail"], program=False)
    assert bf16[0] <= OUT_LIMIT and model[0] <= OUT_LIMIT
    assert lazy[0] > 5 * OUT_LIMIT


def test_two_terms_hold_bf16_exactly_as_far_as_their_exponents_reach() -> None:
    values = torch.randn(4096, generator=torch.Generator().manual_seed(0)).bfloat16().double() * 32
    near = values.abs() > 2.0**-6
    assert bool((fp8_terms.two_terms(values)[near] == values[near]).all())
