"""Compile many variants in parallel worker processes, within the machine's cores and memory.

Each worker is a fresh interpreter (`python -m dsl_kernels.runtime.worker`) that takes the jobs of one
backend, one after another, so it imports one DSL, once. A crash, a kill or a timeout costs one variant, never
the whole run. When a backend runs out of jobs, its workers are replaced by workers of other backends. Jobs
whose last compile took longest go first, so that no long job runs alone at the end.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from base64 import b64decode
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from dsl_kernels import env
from dsl_kernels.arguments import available_memory, checked, require_range
from dsl_kernels.errors import CompileError, DslKernelError

from . import cache, toolkit
from .artifact import Artifact, read

# Seconds assumed for a job that was never built here, where the backends' remaining work is compared.
UNKNOWN_SECONDS = 10.0
# Peak resident memory of one worker: the DSL with torch, and the vendor's compiler on a large kernel.
WORKER_BYTES = 2 << 30
MOST_JOBS = 1024
TIMEOUT = "COMPILE_TIMEOUT"
_TAIL = 2000


@dataclass(frozen=True)
class Outcome:
    """What became of one variant."""

    variant: str
    seconds: float
    cached: bool
    folder: Path | None = None
    artifact: Artifact | None = None
    error: DslKernelError | None = None


@checked
def compile_all(
    modules: Iterable[cache.Module],
    *,
    jobs: int | None = None,
    timeout: float | None = None,
    retry: bool = False,
    started: Callable[[str], None] | None = None,
) -> Iterator[Outcome]:
    """Compile every module that the cache lacks, and yield each outcome as soon as it is known.

    Args:
        modules: What to compile; cached ones are reported first, without a worker.
        jobs: Workers; by default DSL_KERNELS_JOBS, or as many as cores and memory allow.
        timeout: Seconds for one variant; by default DSL_KERNELS_COMPILE_TIMEOUT.
        retry: Compile again what is recorded as failed.
        started: Called with the variant's id when a worker takes it, for a progress display.

    Raises:
        InvalidArgumentError: `jobs` is out of range, or `timeout` is negative or not a number.
    """
    if jobs is not None:
        require_range("jobs", jobs, 1, MOST_JOBS)
    seconds = timeout if timeout is not None else env.COMPILE_TIMEOUT.get()
    require_range("timeout", seconds, 0, 2**31)
    missing: deque[cache.Module] = deque()
    for module in modules:
        begin = time.perf_counter()
        try:
            folder = cache.lookup(module)
            if folder is None and env.DISABLE_JIT.get():
                cache.artifact_for(module, build=False)
        except DslKernelError as error:
            yield Outcome(module.id, time.perf_counter() - begin, cached=False, error=error)
            continue
        if folder is None:
            missing.append(module)
        else:
            artifact = read(folder, verify=False)
            yield Outcome(
                module.id, time.perf_counter() - begin, cached=True, folder=folder, artifact=artifact
            )
    if missing:
        with contextlib.closing(_Pool(missing, jobs or default_jobs(), seconds, retry, started)) as pool:
            yield from pool.outcomes()


def default_jobs() -> int:
    """Workers that the usable cores and the available memory allow, at least one."""
    configured = env.JOBS.get()
    return configured or max(1, min(usable_cores(), available_memory() // WORKER_BYTES))


def usable_cores() -> int:
    """Cores that this process may use, by its affinity and its control group's quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


class _Worker:
    """One worker process and its current job."""

    def __init__(self, module: cache.Module) -> None:
        self.backend = module.backend
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed by kill)
        package_root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join([package_root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            # Without the current folder, whose modules would hide others.
            [sys.executable, "-P", "-m", "dsl_kernels.runtime.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        self.requests = cast(IO[bytes], self.process.stdin)
        self.replies = cast(IO[bytes], self.process.stdout)
        self.module = module
        self.begin = 0.0

    def give(self, module: cache.Module, retry: bool) -> None:
        self.module, self.begin = module, time.perf_counter()
        job = {
            "id": module.id,
            "backend": module.backend,
            "arch": module.arch,
            "path": str(module.path),
            "retry": retry,
        }
        self.requests.write(json.dumps(job).encode() + b"\n")
        self.requests.flush()

    def kill(self) -> None:
        """End the worker and the compilers that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.requests, self.replies, self.log):
            with contextlib.suppress(OSError):
                stream.close()

    def last_words(self) -> str:
        self.log.seek(0)
        return self.log.read().decode(errors="replace").strip()[-_TAIL:]


class _Pool:
    """Hands jobs to workers and collects what comes back, one at a time."""

    def __init__(
        self,
        jobs: deque[cache.Module],
        workers: int,
        timeout: float,
        retry: bool,
        started: Callable[[str], None] | None,
    ) -> None:
        self._timeout, self._retry, self._started = timeout, retry, started
        self._size = min(workers, len(jobs))
        self._expected = {module.id: cache.seconds_before(module) for module in jobs}
        self._jobs: dict[str, deque[cache.Module]] = {}
        for module in sorted(jobs, key=lambda m: -(self._expected[m.id] or math.inf)):
            self._jobs.setdefault(module.backend, deque()).append(module)
        self._workers: list[_Worker] = []
        self._selector = selectors.DefaultSelector()

    def outcomes(self) -> Iterator[Outcome]:
        for _ in range(self._size):
            self._start()
        while self._workers:
            deadline = min(w.begin for w in self._workers) + self._timeout
            events = self._selector.select(max(0.0, deadline - time.perf_counter()))
            for event, _ in events:
                yield self._collect(event.data)
            now = time.perf_counter()
            for worker in [w for w in self._workers if now - w.begin >= self._timeout]:
                yield self._give_up(worker)

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        self._workers.clear()
        self._selector.close()

    def _start(self) -> None:
        """Start a worker for the backend with the most remaining work for each of its workers."""
        active = Counter(worker.backend for worker in self._workers)

        def waiting(backend: str) -> float:
            left = sum(self._expected[m.id] or UNKNOWN_SECONDS for m in self._jobs[backend])
            return left / (active[backend] + 1)

        worker = _Worker(self._jobs[max(self._jobs, key=waiting)][0])
        self._workers.append(worker)
        self._selector.register(worker.replies, selectors.EVENT_READ, worker)
        self._next_job(worker)

    def _next_job(self, worker: _Worker) -> None:
        own = self._jobs.get(worker.backend)
        if not own:
            self._replace(worker)
            return
        module = own.popleft()
        if not own:
            del self._jobs[worker.backend]
        if self._started is not None:
            self._started(module.id)
        # If the worker has died, its closed output pipe tells `outcomes`.
        with contextlib.suppress(BrokenPipeError):
            worker.give(module, self._retry)

    def _retire(self, worker: _Worker) -> None:
        self._selector.unregister(worker.replies)
        self._workers.remove(worker)
        worker.kill()

    def _collect(self, worker: _Worker) -> Outcome:
        module, seconds = worker.module, time.perf_counter() - worker.begin
        line = worker.replies.readline()
        if not line.endswith(b"\n"):
            status = worker.process.wait()
            words = worker.last_words()
            cause = f"signal {-status}" if status < 0 else f"exit status {status}"
            error = CompileError(
                module.id,
                expected="the compile worker to finish",
                got=f"{cause}; last output: {words or 'none'}",
                fix="free memory or lower DSL_KERNELS_JOBS, and compile it again",
                code=toolkit.KILLED,
            )
            self._replace(worker)
            return Outcome(module.id, seconds, cached=False, error=error)
        reply: dict[str, Any] = json.loads(line)
        self._next_job(worker)
        if "error" in reply:
            return Outcome(module.id, seconds, cached=False, error=pickle.loads(b64decode(reply["error"])))
        folder = Path(reply["folder"])
        return Outcome(module.id, seconds, cached=False, folder=folder, artifact=read(folder, verify=False))

    def _give_up(self, worker: _Worker) -> Outcome:
        module, seconds = worker.module, time.perf_counter() - worker.begin
        self._replace(worker)
        error = CompileError(
            module.id,
            expected=f"a compile within {self._timeout:g} s",
            got=f"none after {seconds:.0f} s",
            fix="raise DSL_KERNELS_COMPILE_TIMEOUT or lower DSL_KERNELS_JOBS",
            code=TIMEOUT,
        )
        return Outcome(module.id, seconds, cached=False, error=error)

    def _replace(self, worker: _Worker) -> None:
        self._retire(worker)
        if self._jobs:
            self._start()
