"""Rows several times as long as a group of CTAs holds in registers.

With most scores in one bin of the first digit, every round takes more than one pass per batch, and state must
survive between passes. A sampled row must give the same result whatever its sample is, with or without a list
of what reaches its threshold.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from dsl_kernels import variants
from dsl_kernels.executors import Emulator, Interpreter
from dsl_kernels.kernels.topk_selector.leaves import lists as leaf
from dsl_kernels.variants import Variant
from dsl_kernels_lab import oracles
from dsl_kernels_lab.oracles import Workload
from dsl_kernels_lab.verification import trial
from ptx_emulator import Interleaving

pytestmark = [pytest.mark.emulator, pytest.mark.compile]

LONGEST = 100_000


def cases() -> list[tuple[Variant, int]]:
    pairs = []
    for variant in variants.variants("topk_selector", arch="sm_90a"):
        knobs = variant.knobs
        capacity = knobs["group"] * knobs["threads"] * knobs["keep"]
        pairs += [(variant, length) for length in (capacity + 77, 3 * capacity + 77) if length <= LONGEST]
    return pairs


@pytest.mark.parametrize("variant, length", cases(), ids=lambda value: getattr(value, "id", value))
def test_rows_of_several_batches_match_the_reference(variant: Variant, length: int) -> None:
    workload = Workload("batches", "edge", "default", {"lens": [length], "k": 2048, "scores": "tight"})
    result = trial.run(variant, trial.fitted(variant, workload), Emulator(Interleaving.lockstep()))
    assert result.comparison.ok, result.comparison.failures


SAMPLED = [v for v in variants.variants("topk_selector") if v.knobs["sample"]]
KINDS = (
    "normal", "tight", "ties", "equal", "outlier", "negative", "zeros", "bucket", "steps", "levels",
    "specials", "ascending", "descending",
    "blocks", "masked",
)  # fmt: skip


def long_row(variant: Variant) -> int:
    """Columns of a row of which a variant takes a sample: the last of its CTAs has few of them, or none."""
    capacity = int(variant.knobs["group"] * variant.knobs["threads"] * variant.knobs["keep"])
    return 21011 if capacity < 21011 else capacity + 4627


def sampled_rows(kind: str, variant: Variant) -> Workload:
    """Rows with a sample: long, shorter than what it stands for, than a batch; and a row without one."""
    params = {
        "lens": [long_row(variant), 17003, 2310, 40],
        "starts": [5, 0, 331, 7],
        "k": 1500,
        "page_size": 64,
        "pages": 4096,
    }
    return Workload(f"sampled_{kind}_{long_row(variant)}", "edge", "default", {**params, "scores": kind})


@pytest.mark.sample(10)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("variant", SAMPLED, ids=lambda v: v.id)
def test_whatever_the_sample_the_ids_are_those_of_a_stable_sort(variant: Variant, kind: str) -> None:
    rows = trial.fitted(variant, sampled_rows(kind, variant))
    example = trial.cached_example(variant.op, rows)
    for executor in (
        Interpreter(seed=3),
        Emulator(Interleaving.lockstep()),
        Emulator(Interleaving.random(11)),
    ):
        result = trial.run(variant, rows, executor, example=example)
        assert result.comparison.ok, result.comparison.failures


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Counts the batches of a row that are marked from the histogram."""
    calls, meaning = [], leaf.collect.text

    def counted(*arguments: object) -> object:
        calls.append(1)
        return meaning(*arguments)

    object.__setattr__(leaf.collect, "text", counted)
    yield calls
    object.__setattr__(leaf.collect, "text", meaning)


@pytest.mark.sample(60)
@pytest.mark.parametrize("variant", [v for v in SAMPLED if v.backend == "cutedsl"], ids=lambda v: v.id)
@pytest.mark.parametrize("kind", ["normal", "tight", "ties", "equal", "steps", "zeros", "masked"])
def test_a_row_needs_no_histogram_whatever_its_scores(variant: Variant, kind: str, passes: list[int]) -> None:
    length = long_row(variant) + 9990
    row = Workload(f"lone_{kind}", "edge", "default", {"lens": [length], "k": 2048, "scores": kind})
    assert trial.run(variant, trial.fitted(variant, row), Interpreter()).comparison.ok
    assert not passes


@pytest.mark.sample(18)
@pytest.mark.parametrize("others", [1.0, 3.0])
@pytest.mark.parametrize("variant", [v for v in SAMPLED if v.backend == "cutedsl"], ids=lambda v: v.id)
def test_a_row_that_its_sample_misleads_goes_through_the_histogram(
    variant: Variant, others: float, passes: list[int]
) -> None:
    """The sample is all twos; the rest is larger and overflows the list, or smaller, with too few twos."""
    length = long_row(variant) // 1000 * 1000 + 10000
    params = {"lens": [length], "k": 2600, "scores": "normal", "tail": 0}
    row = trial.fitted(variant, Workload("misled", "edge", "default", params))
    inputs = dict(trial.draw(variant.op, row, 0))
    words, every, warps = length // 32, variant.knobs["sample"], variant.knobs["threads"] // 32
    run = torch.arange(words) // every
    sampled = torch.arange(words) % every == (run % warps + 5 * (run // warps)) % every
    logits = torch.full((1, length), others)
    logits[0, : 32 * words] = torch.where(sampled, 2.0, others).repeat_interleave(32)
    inputs["logits"] = logits.to(inputs["logits"].dtype)
    example = trial.Example(inputs, oracles.get(variant.op).reference(row.form, inputs))
    assert trial.run(variant, row, Interpreter(), example=example).comparison.ok
    assert passes
