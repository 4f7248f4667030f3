"""What the emulator reports if a warp overwrites operands that the other warps' wgmma may still read."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import ptx_emulator as emulator
from ptx_emulator import Interleaving, Report, interleavings

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import probe_wgmma_order as probe

from .kernels import assembles

pytestmark = pytest.mark.emulator

LATE = Interleaving.adversarial(0, 3, "late")
"""Warp 3 comes last."""


def launched(variant: probe.Variant, interleaving: Interleaving) -> tuple[Report, list[dict[str, int]]]:
    """The report of one CTA, and the counts of its warps."""
    words = np.zeros(4 * probe.WORDS, np.int32)
    text = ".version 8.3\n.target sm_90a\n.address_size 64\n" + probe.kernel(variant)
    report = emulator.launch(text, 1, 128, [words, 100], interleaving=interleaving, check="report")
    return report, probe.summary(variant, 0, words.tolist())["warps"]


UNORDERED = [v for v in probe.variants() if not v.barrier and v.target != "none"]


@pytest.mark.parametrize("variant", UNORDERED, ids=lambda v: v.name)
def test_a_store_without_a_barrier_is_a_race_with_the_products_of_other_warps(variant: probe.Variant) -> None:
    for interleaving in (Interleaving.lockstep(), LATE):
        report, _ = launched(variant, interleaving)
        assert {f.code for f in report.findings} == {"race"}
        lines = {str(f) for f in report.findings}
        assert all("wgmma.mma_async" in line and "st.shared" in line for line in lines)


ORDERED = [v for v in probe.variants() if v.barrier or v.target == "none"]


@pytest.mark.parametrize("variant", ORDERED, ids=lambda v: v.name)
def test_a_barrier_of_the_warpgroup_orders_it(variant: probe.Variant) -> None:
    for interleaving in (Interleaving.lockstep(), LATE):
        report, warps = launched(variant, interleaving)
        assert report.ok and not report.findings, str(report)
        assert warps == [{"old": 1, "new": 0, "mixed": 0}] * 4


def test_some_interleaving_lets_a_warp_multiply_by_what_another_wrote() -> None:
    """The emulator lets warps drift as far apart as PTX allows."""
    variant = probe.Variant("fence", "a")
    counts = [launched(variant, each)[1] for each in interleavings(12)]
    assert all(warps[w]["old"] == 1 for warps in counts for w in range(3))
    assert any(warps[3]["new"] == 1 for warps in counts)


def test_counts_of_a_gpu_are_read() -> None:
    """Two runs: warp 3's rows are old in one; in the other, new, and its sleep ends after warp 0's store."""
    old, new = [probe.VALUES, 0, 0, 0, 5, 6, 0, 0], [0, probe.VALUES, 0, 50, 60, 60, 0, 0]
    summary = probe.summary(probe.Variant("fence", "a"), 7, old * 4 + old * 3 + new)
    assert summary["warps"] == [{"old": 2, "new": 0, "mixed": 0}] * 3 + [{"old": 1, "new": 1, "mixed": 0}]
    assert (summary["runs"], summary["apart"], summary["microseconds"]) == (2, 1, 7)
    assert "1/   1/   0" in probe.line(summary)


def test_the_assembler_takes_the_probe(tmp_path: Path) -> None:
    assembles(probe.ptx(), tmp_path)
