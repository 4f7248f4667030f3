"""The hand-written programs are right, and raise no alarm, under every interleaving; ptxas accepts them."""

import shutil
import subprocess

import pytest

from dsl_kernels.emulator import Interleaving, interleavings

from .kernels import PROGRAMS


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


@pytest.mark.skipif(not shutil.which("ptxas"), reason="needs ptxas")
@pytest.mark.parametrize("name", PROGRAMS)
def test_ptxas_accepts(name, tmp_path):
    ptx, _ = PROGRAMS[name]
    arch = "sm_100a" if "sm_100a" in ptx else "sm_90a"
    (tmp_path / "k.ptx").write_text(ptx)
    done = subprocess.run(
        ["ptxas", f"-arch={arch}", "-o", str(tmp_path / "k.cubin"), str(tmp_path / "k.ptx")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
