"""Every variant's declaration, interpreted, equals the reference on every workload it accepts, under any order."""

from __future__ import annotations

import pytest

from codegen.sweep import backends, combinations
from dsl_kernels import problems, programs, trial
from dsl_kernels.arch import ARCHS
from dsl_kernels.errors import ScheduleError
from dsl_kernels.executors import Interpreter
from dsl_kernels.tile import machine
from dsl_kernels.variants import Variant

# Each declaration once, whichever DSLs lower it: the interpreter runs none of them.
DECLARED: dict[str, Variant] = {}
for op in programs.names():
    for arch in ARCHS.values():
        for backend in backends():
            for knobs in combinations(programs.get(op), arch, 0, backend):
                name = programs.get(op).variant_id("declared", arch, knobs)
                DECLARED[name] = Variant(name, op, "declared", arch.name, knobs, path=None)
CASES = list(DECLARED.values())


PAIRS = [
    pytest.param(variant, workload, id=f"{variant.id}-{workload.name}")
    for variant in CASES
    for workload in trial.workloads(variant, "tiny", "edge", fit=False)
]


@pytest.mark.parametrize("variant,workload", PAIRS)
def test_matches_the_reference(variant: Variant, workload) -> None:
    result = trial.run(variant, workload, Interpreter(seed=5), case=trial.cached_case(variant.op, workload))
    assert result.comparison.ok, result.comparison.failures


@pytest.mark.parametrize("splits", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["tiny_h16", "ids_mixed", "ids_holes", "sink"])
def test_any_number_of_splits_merges_to_the_same_attention(name: str, splits: int) -> None:
    for variant in CASES:
        workload = problems.get("sparse_mla").workload(name)
        if variant.op != "sparse_mla":
            continue
        drawn = trial.draw(variant.op, workload, seed=0)
        if trial.accepts(variant, workload, drawn, {"splits": splits}) is not None:
            continue
        result = trial.run(variant, workload, Interpreter(seed=splits), launch={"splits": splits})
        assert result.comparison.ok, (variant.id, result.comparison.failures)


def _sparse_mla(arch: str) -> Variant:
    lone = {"heads": 16, "kv": "bf16", "cluster": 1}
    return next(
        v for v in CASES if v.op == "sparse_mla" and v.arch == arch and lone.items() <= v.knobs.items()
    )


@pytest.mark.parametrize(
    "method,message",
    [("release", "gather at block .* waits for a free slot of kv"), ("commit", "2 slots uncommitted")],
)
def test_a_forgotten_hand_over_is_reported_with_the_role(monkeypatch, method: str, message: str) -> None:
    original = getattr(machine.Machine, method)

    def forget(self, slot):
        if slot.pipeline.name != "kv":
            original(self, slot)

    monkeypatch.setattr(machine.Machine, method, forget)
    workload = problems.get("sparse_mla").workload("tiny_h16")
    with pytest.raises(ScheduleError, match=message):
        trial.run(_sparse_mla("sm_90a"), workload, Interpreter(), launch={"splits": 1})


def test_reading_a_slot_before_it_is_filled_gives_poison(monkeypatch) -> None:
    """A gather that never happens must show: slots are poisoned when they are acquired."""
    monkeypatch.setattr(machine.Machine, "gather", lambda self, target, source, rows: None)
    monkeypatch.setattr(
        "dsl_kernels.programs.sparse_mla._rows", lambda m, ids: (m.full((64, 512), float("nan")), 0.0)
    )
    workload = problems.get("sparse_mla").workload("tiny_h16")
    result = trial.run(_sparse_mla("sm_90a"), workload, Interpreter())
    assert not result.comparison.ok
