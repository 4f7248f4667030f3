"""The accuracy that docs/clock.md states for attention over fp8 tokens with e4m3 operands as stored."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

import fp8_terms

from dsl_kernels.kernels.sparse_mla.problem import LSE_LIMIT, OUT_LIMIT


@pytest.mark.parametrize("name", ["normal", "scales of max / 448"])
def test_two_terms_meet_the_rule_and_are_no_worse_than_bf16(name: str) -> None:
    ((_, bf16, lazy, each),) = fp8_terms.rows_of(3, [name])
    for out, lse in (lazy, each):
        assert out <= OUT_LIMIT and lse <= LSE_LIMIT
        assert out < bf16[0]


def test_a_long_tail_needs_a_maximum_that_every_tile_moves() -> None:
    ((_, bf16, lazy, each),) = fp8_terms.rows_of(3, ["one token and a long tail"])
    assert bf16[0] <= OUT_LIMIT and each[0] <= OUT_LIMIT
    assert lazy[0] > 5 * OUT_LIMIT


def test_two_terms_hold_bf16_exactly_as_far_as_their_exponents_reach() -> None:
    values = torch.randn(4096, generator=torch.Generator().manual_seed(0)).bfloat16().double() * 32
    near = values.abs() > 2.0**-6
    assert bool((fp8_terms.two_terms(values)[near] == values[near]).all())
