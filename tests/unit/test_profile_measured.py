"""Profiles read on an H200, of planted causes and real kernels, diagnosed again from their counters."""

from __future__ import annotations

import importlib.util
import sys
from functools import lru_cache
from pathlib import Path
from types import ModuleType

import pytest

from dsl_kernels_lab import profile
from dsl_kernels_lab.profile import rules

pytest.importorskip("pydantic")

ROOT = Path(__file__).resolve().parents[2]
GPU = "NVIDIA H200"


def _benchmark(name: str) -> ModuleType:
    """A script of benchmarks/, which is not a package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


causes = _benchmark("planted_causes")
KEPT = causes.kept("planted_h200")
TWINS = KEPT["twins"]
SLOWEST = [
    name for name in (item["report"]["label"] for item in causes.kept("kernels_h200")) if "slowest" in name
]
looks = lru_cache(causes.looked_at)


@lru_cache
def planted() -> dict[str, profile.Diagnosis]:
    """The diagnoses of the kernels with planted causes, by cause."""
    works = {item.cause: item.workload for item in causes.planted(132)}
    ceilings = profile.read_ceilings(GPU)
    diagnoses = {}
    for item in KEPT["reports"]:
        report = profile.load(profile.KernelReport, item)
        diagnoses[report.label] = profile.diagnose(profile.fingerprint(report, works[report.label]), ceilings)
    assert set(diagnoses) == set(works) and len(diagnoses) == 16
    return diagnoses


@pytest.mark.parametrize("cause", [item.cause for item in causes.planted(132)])
def test_the_planted_cause_is_the_first_finding(cause: str) -> None:
    assert planted()[cause].top.cause == cause


def test_more_are_named_than_by_the_first_rule_of_the_profiler() -> None:
    accepted = causes.THEIRS
    theirs = [name for name, d in planted().items() if d.fingerprint.rules[0].name in accepted.get(name, ())]
    assert len(theirs) == 7


@pytest.mark.parametrize("cause", sorted(name for name, t in TWINS.items() if t["fixed_us"]))
def test_a_twin_without_the_cause_gains_no_more_than_the_bound(cause: str) -> None:
    times = TWINS[cause]
    assert 1.2 < times["us"] / times["fixed_us"] <= planted()[cause].top.bound


def test_the_profiler_advises_occupancy_where_the_gather_is_at_its_ceiling() -> None:
    found = planted()["gather_at_ceiling"]
    assert "TheoreticalOccupancy" in {rule.name for rule in found.fingerprint.rules}
    assert "occupancy" in found.refuted and found.top.healthy


@pytest.mark.parametrize("label", SLOWEST)
def test_turning_the_knobs_that_are_named_gains_and_no_more_than_the_bound(label: str) -> None:
    found = looks()[label]
    turned = causes.turned(found)
    if turned is None:
        pytest.skip(f"{found.fingerprint.kernel} or its neighbour left the committed set: record it again")
    assert found.top.knobs
    _, gain = turned
    assert 1.0 < gain <= found.top.bound


def test_every_look_has_a_fingerprint_and_a_diagnosis() -> None:
    assert len(looks()) >= 20
    for label, found in looks().items():
        f = found.fingerprint
        assert f.us and f.arch == "sm_90" and f.device == GPU, label
        assert set(f.sol) == {"sm", "memory", "l1", "l2", "dram"} and "tensor" in f.pipes
        # Stall reasons are counted in several passes, and a short launch differs between passes.
        assert sum(stall.share for stall in f.stalls.values()) == pytest.approx(1.0, abs=0.08), label
        assert f.missing == () and f.occupancy.waves
        assert found.top is not None and found.top.bound >= 1.0
        assert len(profile.markdown(found).splitlines()) <= 60


def test_asynchronous_copies_are_in_the_bytes_and_not_twice() -> None:
    for label in ("sparse_mla t=64 heads=16 cutedsl fastest", "sparse_mla t=64 heads=16 tilelang fastest"):
        f = looks()[label].fingerprint
        assert f.rates["async_copies"] > 0.85
        assert 0.85 < f.traffic["l1"].ratio <= 1.0 and 0.9 < f.traffic["l2"].ratio <= 1.0
    copied = looks()["lightning_indexer b=16 len=32768 cutedsl fastest"].fingerprint
    assert copied.rates["async_copies"] > 0.98 and copied.traffic["l1"].ratio > 0.9


def test_what_is_memory_bound_by_its_time_is_by_its_diagnosis() -> None:
    assert looks()["lightning_indexer b=64 len=131072 cutedsl fastest"].top.healthy
    assert looks()["sparse_mla t=1 heads=16 slowest"].top.cause == "small_grid"
    triton, ours = (looks()[f"sparse_mla t=64 heads=16 {name}"] for name in ("triton", "cutedsl fastest"))
    assert triton.top.cause == ours.top.cause == "gather_below_ceiling"
    assert triton.top.bound > 1.4 * ours.top.bound
    rows = {row.figure: row for row in profile.diff(triton.fingerprint, ours.fingerprint).rows}
    assert rows["time (us)"].ratio < 0.75


def test_the_ceilings_of_the_card_are_minima_over_methods() -> None:
    ceilings = profile.read_ceilings(GPU)
    assert {p.order for p in ceilings.points} == {"random", "sorted"} and len(
        {p.row_bytes for p in ceilings.points}
    ) >= 10
    for point in ceilings.points:
        assert point.gbps == max(point.by_method.values()) == point.by_method[point.method]
    assert 4400 < ceilings.dram_gbps < 4814
    assert rules.gather_share(looks()["sparse_mla t=64 heads=16 cutedsl fastest"].fingerprint, ceilings) < 1.0
