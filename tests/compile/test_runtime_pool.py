"""Parallel compilation in real worker processes: order of arrival, crashes, timeouts and cleaning up."""

import os
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import pytest

from dsl_kernels.errors import CompileError, MissingArtifactError
from dsl_kernels.runtime import cache, pool

pytestmark = pytest.mark.compile


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def children():
    """Child processes of this one that have not ended."""
    listed = Path("/proc/self/task").glob("*/children")
    return [int(pid) for tasks in listed for pid in tasks.read_text().split()]


def test_every_outcome_arrives_and_one_crash_costs_one_variant(make_module, tmp_path):
    cached = make_module("cached__tilelang_sm90a__t")
    cache.artifact_for(cached)
    modules = [
        make_module(
            "killed__tilelang_sm90a__t",
            prelude="os.write(2, b'last words')\nos.kill(os.getpid(), signal.SIGKILL)",
        ),
        make_module("broken__tilelang_sm90a__t", prelude="raise RuntimeError('no such tile')"),
        make_module("noisy__tilelang_sm90a__t", prelude="print('chatter that is no reply')"),
        cached,
        make_module("good__tilelang_sm100a__t", arch="sm_100a"),
    ]
    begun = []
    outcomes = list(pool.compile_all(modules, jobs=2, started=begun.append))
    assert outcomes[0].variant == cached.id and outcomes[0].cached and outcomes[0].artifact is not None
    by_name = {outcome.variant.split("__")[0]: outcome for outcome in outcomes}
    assert len(outcomes) == len(by_name) == 5 and sorted(begun) == sorted(
        m.id for m in modules if m is not cached
    )

    killed, broken = by_name["killed"].error, by_name["broken"].error
    assert isinstance(killed, CompileError) and killed.code == "COMPILE_KILLED"
    assert "signal 9" in killed.got and "last words" in killed.got and killed.subject == modules[0].id
    assert isinstance(broken, CompileError) and "no such tile" in broken.got
    for name in ("noisy", "good"):
        outcome = by_name[name]
        assert outcome.error is None and not outcome.cached and outcome.seconds > 0
        assert outcome.folder.is_dir() and outcome.artifact.variant == outcome.variant
    assert by_name["good"].artifact.arch == "sm_100a"

    again = {o.variant: o for o in pool.compile_all(modules[1:4], jobs=1)}
    assert again[modules[2].id].cached and "earlier compile" in again[modules[1].id].error.got


def test_a_timeout_ends_the_worker_and_its_children(make_module, tmp_path):
    pids = tmp_path / "pids"
    prelude = f"""
import subprocess
child = subprocess.Popen(["sleep", "100"])
pathlib.Path({str(pids)!r}).write_text(f"{{os.getpid()}} {{child.pid}}")
time.sleep(100)
"""
    module = make_module("slow__tilelang_sm90a__t", prelude=prelude)
    (outcome,) = pool.compile_all([module], jobs=1, timeout=8)
    assert outcome.error.code == "COMPILE_TIMEOUT" and "DSL_KERNELS_COMPILE_TIMEOUT" in outcome.error.fix
    if not pids.exists():
        pytest.skip("the worker was still importing the DSL when its time was up")
    worker, child = map(int, pids.read_text().split())
    assert not alive(worker)
    deadline = time.monotonic() + 5
    while alive(child) and time.monotonic() < deadline:
        with open(f"/proc/{child}/stat") as stat:
            if stat.read().split()[2] == "Z":
                break
        time.sleep(0.05)
    else:
        assert not alive(child)
    assert not list(cache.cache_root().glob("*/*/*.failed.json")), "a timeout says nothing about the module"


def test_leaving_early_ends_the_workers(make_module):
    modules = [
        make_module(f"v{i}__tilelang_sm90a__t", prelude="time.sleep(0)" if i == 0 else "time.sleep(100)")
        for i in range(3)
    ]
    others = children()
    outcomes = pool.compile_all(modules, jobs=2)
    first = next(outcomes)
    assert first.variant == modules[0].id and first.error is None
    workers = set(children()) - set(others)
    assert workers
    outcomes.close()
    assert not any(map(alive, workers))


def test_without_jit_each_missing_variant_is_its_own_error(make_module, monkeypatch):
    monkeypatch.setenv("DSL_KERNELS_DISABLE_JIT", "1")
    modules = [make_module(f"v{i}__tilelang_sm90a__t") for i in range(2)]
    outcomes = list(pool.compile_all(modules))
    assert [type(outcome.error) for outcome in outcomes] == [MissingArtifactError] * 2


def test_nothing_to_do_starts_nothing():
    assert list(pool.compile_all([])) == []


@pytest.mark.parametrize(
    ("cores", "memory", "jobs"), [(8, 64 << 30, 8), (8, 5 << 30, 2), (2, 1 << 30, 1), (1, 0, 1)]
)
def test_workers_stay_within_cores_and_memory(monkeypatch, cores, memory, jobs):
    monkeypatch.delenv("DSL_KERNELS_JOBS", raising=False)
    monkeypatch.setattr(pool, "usable_cores", lambda: cores)
    monkeypatch.setattr(pool, "available_memory", lambda: memory)
    assert pool.default_jobs() == jobs
    monkeypatch.setenv("DSL_KERNELS_JOBS", "5")
    assert pool.default_jobs() == 5


def test_this_machine_has_cores_and_memory():
    assert pool.usable_cores() >= 1 and pool.available_memory() > 1 << 28


def test_a_worker_takes_jobs_of_one_backend_and_long_ones_go_first(make_module, monkeypatch):
    seconds = {"a": 1.0, "b": 7.0, "c": 3.0, "d": None, "e": 2.0, "f": 4.0}
    modules = [make_module(f"{name}__tilelang_sm90a__t") for name in seconds]
    modules[3:] = [replace(module, backend="cutedsl") for module in modules[3:]]
    monkeypatch.setattr(cache, "seconds_before", lambda module: seconds[module.id[0]])
    given: list[tuple[str, str]] = []
    monkeypatch.setattr(pool, "_Worker", lambda module: Recorded(module, given))
    workers = pool._Pool(deque(modules), 2, 100.0, False, None)
    try:
        for _ in range(2):
            workers._start()
        while workers._workers:
            workers._next_job(workers._workers[-1])
    finally:
        workers._selector.close()
    assert "".join(name for backend, name in given if backend == "tilelang") == "bca"
    assert "".join(name for backend, name in given if backend == "cutedsl") == "dfe"
    assert [backend for backend, _ in given[:2]] == ["cutedsl", "tilelang"], "the longer queue starts first"


class Recorded:
    """A worker that records what it is given."""

    def __init__(self, module, given):
        self.backend, self._given = module.backend, given
        self.replies, self._other = os.pipe()

    def give(self, module, retry):
        assert module.backend == self.backend, "a worker imports one DSL"
        self._given.append((self.backend, module.id[0]))

    def kill(self):
        os.close(self.replies)
        os.close(self._other)


def test_the_last_build_of_any_sources_says_how_long_a_variant_takes(make_module):
    module = make_module()
    assert cache.seconds_before(module) is None
    folder = cache.artifact_for(module)
    taken = cache.seconds_before(module)
    assert taken is not None and taken > 0
    module.path.write_text(module.path.read_text() + "\n# changed\n")
    assert cache.lookup(module) is None and cache.seconds_before(module) == taken
    (folder / "build.json").write_text("damaged")
    assert cache.seconds_before(module) is None
