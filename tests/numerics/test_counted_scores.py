"""Scoring that counts for selection, on the interpreter and the emulator: exact on hostile rows, and selected by nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import uncommitted

from codegen.emit import emit
from codegen.sweep import combinations
from dsl_kernels import problems, programs, registry, variants
from dsl_kernels.arch import ARCHS
from dsl_kernels.emulator import interleavings
from dsl_kernels.executors import Emulator, Interpreter
from dsl_kernels.problems.base import Workload
from dsl_kernels.problems.topk_selector import digit_counts, first_digits
from dsl_kernels.verification import trial

OPS = ("lightning_indexer", "topk_selector")
HOSTILE = ("normal", "equal", "specials", "levels", "zeros", "masked", "ascending", "blocks", "negative")
# Rows that no CTA holds, one that is taken whole, and windows.
LONG = [
    Workload(f"long_{kind}", "edge", "counted", {"lens": [20001, 40, 3000], "starts": [5, 0, 17], "k": 512, "scores": kind})
    for kind in HOSTILE
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[variants.Variant]]:
    folder = tmp_path_factory.mktemp("counted")
    emit([instance for op in OPS for instance in uncommitted.instances(op, counted=True)], folder)
    found = variants.in_folder(folder)
    return {op: [v for v in found if v.op == op] for op in OPS}


def scored(variant: variants.Variant) -> list[Workload]:
    """Small decodes of one query a sequence, with the heads of the variant."""
    return [
        replace(w, form="counted", name=f"{w.name}_counted")
        for w in problems.get("lightning_indexer").workloads
        if w.form == "decode" and w.tier != "real" and len(w.params["lens"][0]) == 1
        if w.params["heads"] == variant.knobs["heads"]
    ]


@pytest.mark.parametrize("ctas", (1, 3, 8))
def test_every_score_is_counted_once(made, ctas) -> None:
    for variant in made["lightning_indexer"]:
        for workload in scored(variant):
            result = trial.run(variant, workload, Interpreter(), launch={"ctas": ctas})
            assert result.comparison.ok, (variant.id, workload.name, result.comparison.failures)


def test_selection_from_counts_is_exact_and_leaves_zeros(made) -> None:
    for variant in made["topk_selector"]:
        for workload in (*trial.workloads(variant, "tiny", "edge"), *LONG):
            result = trial.run(variant, workload, Interpreter())
            assert result.comparison.ok, (variant.id, workload.name, result.comparison.failures)


@pytest.mark.emulator
@pytest.mark.compile
def test_the_compiled_kernels_agree(made) -> None:
    for variant in made["lightning_indexer"]:
        for interleaving in interleavings(3):
            for workload in scored(variant):
                result = trial.run(variant, workload, Emulator(interleaving, strict=True), launch={"ctas": 3})
                assert result.comparison.ok, (variant.id, workload.name, result.comparison.failures)
    for variant in made["topk_selector"]:
        small = [
            w
            for w in trial.workloads(variant, "edge")
            if w.name.startswith(("ragged", "starts", "mtp3", "scores_spec"))
        ]
        for interleaving, workload in zip(
            (*interleavings(3), *interleavings(5)), (*small, *LONG[:4]), strict=True
        ):
            result = trial.run(variant, workload, Emulator(interleaving, strict=True))
            assert result.comparison.ok, (variant.id, workload.name, result.comparison.failures)


def test_what_scoring_counts_is_what_selection_needs(made) -> None:
    """The two in a row, by one array of counts, over logits that hold garbage behind each length."""
    scoring = made["lightning_indexer"][0]
    workload = Workload(
        "chain",
        "edge",
        "counted",
        {"lens": [[3000], [70], [0], [1111]], "heads": 64, "pages": 60, "skip_below": 100},
    )
    first = trial.run(scoring, workload, Interpreter(), launch={"ctas": 5})
    inputs = trial.cached_example("lightning_indexer", workload).inputs
    logits, counts = (
        first.operands["logits"][:, 0].nan_to_num(nan=float("inf")),
        first.operands["digit_counts"],
    )
    stride = -(-logits.shape[1] // 4) * 4
    rows = torch.full((4, stride), float("inf"))
    rows[:, : logits.shape[1]] = logits
    given = {
        "logits": rows, "row_starts": torch.zeros(4, dtype=torch.int32), "row_ends": inputs["seq_lens"][:, 0].contiguous(),
        "block_table": torch.zeros(1, 1, dtype=torch.int32), "next_n": 1, "page_size": 0, "absolute": 0, "k": 100, "digit_counts": counts,
    }  # fmt: skip
    problem = problems.get("topk_selector")
    for variant in made["topk_selector"]:
        operands, dims = trial.allocate(variant, Workload("chain", "edge", "counted", {}), given)
        Interpreter().prepare(variant)(operands, dims, 0)
        assert problem.compare("counted", given, operands, problem.reference("counted", given)).ok
        assert not operands["digit_counts"].any()


def test_first_digits_are_in_the_order_of_scores() -> None:
    values = torch.tensor(
        [float("nan"), float("inf"), 1e38, 70000.0, 1.0, 0.97, 1e-9, 0.0, -0.0, -1e-9, -1.0, -float("inf")]
    )
    digits = first_digits(values)
    assert (
        (digits.diff() >= 0).all()
        and digits[7] == digits[8]
        and digits[4] < digits[5]
        and digits[0] < digits[1]
    )
    counts = digit_counts(values[None], torch.tensor([2]), torch.tensor([11]))
    assert counts.sum() == 9 and counts[0, digits[7]] == 3


def test_nothing_selects_or_sweeps_them(made) -> None:
    plain = {"lightning_indexer": "decode", "topk_selector": "default"}
    for op, found in made.items():
        problem = problems.get(op)
        workload = next(w for w in problem.workloads if w.form == plain[op] and w.tier == "tiny")
        for variant in found:
            call = trial.call_of(variant, workload, trial.draw(op, workload, 0))
            assert "counted" in (registry.refusal(call, variant, named=variant.id) or "")
        for arch in ARCHS.values():
            for level in range(3):
                assert all(
                    "counted" not in knobs.values() for knobs in combinations(programs.get(op), arch, level)
                )
