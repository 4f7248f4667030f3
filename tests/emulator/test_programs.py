"""The hand-written programs are right, without findings, under every interleaving; ptxas accepts them."""

import pytest

from ptx_emulator import Interleaving, interleavings

from .kernels import PROGRAMS, assembles


@pytest.mark.parametrize("name", PROGRAMS)
def test_right_and_silent_under_many_schedules(name):
    ptx, run = PROGRAMS[name]
    for s in interleavings(200):
        report, right = run(ptx, s, strict_fences=True, strict_lapping=True, strict_exits=True)
        assert report.ok, f"{report}"
        assert right, f"wrong result under {s}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_schedule_replays_exactly(name):
    ptx, run = PROGRAMS[name]
    first, _ = run(ptx, Interleaving.random(11))
    again, _ = run(ptx, Interleaving.random(11))
    other, _ = run(ptx, Interleaving.random(12))
    assert (first.instructions, first.stats) == (again.instructions, again.stats)
    assert [w.spins for w in first.warps] == [w.spins for w in again.warps]
    assert other.ok


@pytest.mark.parametrize("name", PROGRAMS)
def test_ptxas_accepts(name, tmp_path):
    assembles(PROGRAMS[name][0], tmp_path)
