"""Every variant's declaration, interpreted in any order, equals the reference on every workload."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import pytest

from codegen.sweep import combinations
from dsl_kernels import programs
from dsl_kernels.arch import ARCHS
from dsl_kernels.errors import ScheduleError
from dsl_kernels.executors import Interpreter
from dsl_kernels.kernels.sparse_mla.leaves import gather
from dsl_kernels.tile import program
from dsl_kernels.tile.text import Recorder
from dsl_kernels.variants import Variant
from dsl_kernels_lab import oracles
from dsl_kernels_lab.verification import trial


def declared(op: str) -> list[Variant]:
    """Each declaration of an operation once, as the interpreter does not depend on a DSL."""
    program, by_name = programs.get(op), {}
    for arch in ARCHS.values():
        for knobs in combinations(program, arch, 0):
            name = program.variant_id("declared", arch, knobs)
            by_name[name] = Variant(name, op, "declared", arch.name, knobs, path=None)
    return list(by_name.values())


def pairs(op: str) -> list:
    return [
        pytest.param(variant, workload, id=f"{variant.id}-{workload.name}")
        for variant in declared(op)
        for workload in trial.workloads(variant, "tiny", "edge", fit=False)
    ]


def all_pairs() -> list:
    """All but those of an unfinished operation, which has a test of its own below."""
    parameters = []
    for op in programs.names():
        with suppress(Exception):
            parameters += pairs(op)
    return parameters


@pytest.mark.parametrize("op", programs.names())
def test_an_operation_has_variants_and_small_workloads(op: str) -> None:
    assert pairs(op)


@pytest.mark.sample(100)
@pytest.mark.parametrize("variant,workload", all_pairs())
def test_matches_the_reference(variant: Variant, workload) -> None:
    result = trial.run(
        variant, workload, Interpreter(seed=5), example=trial.cached_example(variant.op, workload)
    )
    assert result.comparison.ok, result.comparison.failures


@pytest.mark.sample(6)
@pytest.mark.parametrize("splits", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["tiny_h16", "ids_mixed", "ids_holes", "sink"])
def test_any_number_of_splits_merges_to_the_same_attention(name: str, splits: int) -> None:
    for variant in declared("sparse_mla"):
        workload = oracles.get("sparse_mla").workload(name)
        drawn = trial.draw(variant.op, workload, seed=0)
        if trial.accepts(variant, workload, drawn, {"splits": splits}) is not None:
            continue
        result = trial.run(variant, workload, Interpreter(seed=splits), launch={"splits": splits})
        assert result.comparison.ok, (variant.id, result.comparison.failures)


def _sparse_mla(arch: str) -> Variant:
    lone = {"heads": 16, "kv": "bf16", "cluster": 1}
    return next(v for v in declared("sparse_mla") if v.arch == arch and lone.items() <= v.knobs.items())


@pytest.fixture
def unchecked(monkeypatch) -> None:
    """Skip the check of texts against their schedule, so that the interpreter meets their faults."""
    monkeypatch.setattr(program, "check_uses", lambda *arguments: None)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "method,message",
    [("release", "{filler} at block .* waits for a free slot of kv"), ("commit", "uses uncommitted")],
)
@pytest.mark.parametrize("arch,filler", [("sm_90a", "gather"), ("sm_100a", "producer")])
def test_a_forgotten_hand_over_is_reported_with_the_role(
    monkeypatch, arch: str, filler: str, method: str, message: str
) -> None:
    original = getattr(Recorder, method)

    def forget(self, slot, *arguments):
        if slot.pipeline.name != "kv":
            original(self, slot, *arguments)

    monkeypatch.setattr(Recorder, method, forget)
    workload = oracles.get("sparse_mla").workload("tiny_h16")
    with pytest.raises(ScheduleError, match=message.format(filler=filler)):
        trial.run(_sparse_mla(arch), workload, Interpreter(), launch={"splits": 1})


@pytest.mark.parametrize("arch", ("sm_90a", "sm_100a"))
def test_reading_a_slot_before_it_is_filled_gives_poison(monkeypatch, arch: str) -> None:
    """A missing gather must show: slots are poisoned when they are acquired."""
    nothing = replace(gather.copy_rows, text=lambda *arguments: None)
    monkeypatch.setattr(gather, "copy_rows", nothing)
    workload = oracles.get("sparse_mla").workload("tiny_h16")
    result = trial.run(_sparse_mla(arch), workload, Interpreter())
    assert not result.comparison.ok


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "method,message",
    [("wait", "touches .* of use 0 of kv, which it does not hold"), ("acquire", "touches .* of use 0 of kv")],
)
def test_a_slot_is_touched_by_those_who_hold_it(monkeypatch, method: str, message: str) -> None:
    original = getattr(Recorder, method)

    def forget(self, pipeline, use, *arguments):
        return self.slot(pipeline, use) if pipeline == "kv" else original(self, pipeline, use, *arguments)

    monkeypatch.setattr(Recorder, method, forget)
    workload = oracles.get("sparse_mla").workload("tiny_h16")
    with pytest.raises(ScheduleError, match=message):
        trial.run(_sparse_mla("sm_90a"), workload, Interpreter(), launch={"splits": 1})


def test_a_slot_is_released_after_the_wait_for_it(monkeypatch) -> None:
    wait = Recorder.wait

    def hasty(self, pipeline, use, *arguments):
        if pipeline == "kv":
            self.release(self.slot(pipeline, use))
        return wait(self, pipeline, use, *arguments)

    monkeypatch.setattr(Recorder, "wait", hasty)
    workload = oracles.get("sparse_mla").workload("tiny_h16")
    with pytest.raises(ScheduleError, match="releases use 0 of kv before it has it"):
        trial.run(_sparse_mla("sm_90a"), workload, Interpreter(), launch={"splits": 1})


def test_a_use_that_nobody_reads_is_reported(monkeypatch) -> None:
    """The reader reads one tile less than the producer fills."""
    loop = Recorder.loop

    def short(self, index, end, **options):
        return loop(self, index, end - 1 if self.role == "score" and index == "it" else end, **options)

    monkeypatch.setattr(Recorder, "loop", short)
    variant = next(
        v for v in declared("lightning_indexer") if v.knobs.get("mode") == "prefill" and v.arch == "sm_90a"
    )
    workload = trial.workloads(variant, "tiny")[0]
    with pytest.raises(ScheduleError, match="filled . uses of keys, of which score.* waited for"):
        trial.run(variant, workload, Interpreter())


@pytest.mark.parametrize("extra", [-4, 4])
def test_copies_bring_the_bytes_that_were_announced(monkeypatch, extra: int) -> None:
    acquire = Recorder.acquire

    def wrong(self, pipeline, use, bytes=None):
        return acquire(self, pipeline, use, bytes + extra if bytes is not None else None)

    monkeypatch.setattr(Recorder, "acquire", wrong)
    variant = next(
        v for v in declared("lightning_indexer") if v.knobs.get("mode") == "decode" and v.arch == "sm_90a"
    )
    with pytest.raises(ScheduleError, match="bytes into use 0 of queries, which announces"):
        trial.run(variant, trial.workloads(variant, "tiny")[0], Interpreter())


@pytest.mark.parametrize(
    "method,times,message",
    [
        ("cluster_arrive", 2, "barrier twice"),
        ("cluster_arrive", 0, "without an arrival"),
        ("cluster_wait", 2, "without an arrival"),
        ("cluster_wait", 0, "barrier twice|without a wait"),
    ],
)
def test_a_role_waits_for_its_cluster_once_an_arrival(
    monkeypatch, method: str, times: int, message: str
) -> None:
    original = getattr(Recorder, method)

    def said(self, **options):
        for _ in range(times):
            original(self, **options)

    monkeypatch.setattr(Recorder, method, said)
    variant = next(v for v in declared("topk_selector") if v.knobs["group"] > 1)
    with pytest.raises(ScheduleError, match=message):
        trial.run(variant, oracles.get("topk_selector").workload("tiny"), Interpreter())
