"""Timing primitives: medians over CUDA-graph replays, with inputs that rotate past the L2.

A call is captured many times into one graph, so that the host's launch gaps do not count. Each turn of a
rotation uses its own inputs; when all turns together touch `ROTATION_BYTES`, no turn finds its data in the
L2.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from dsl_kernels.arguments import checked, require_range
from dsl_kernels.errors import CacheError, ExecutorUnavailableError, InvalidArgumentError
from dsl_kernels.runtime.toolkit import driver_version, version

from ..arguments import as_json

ROTATION_BYTES = 200 << 20
MAX_TURNS = 64
# The calls are captured repeatedly until a graph takes this long, so that the start of a graph does not
# matter.
GRAPH_US = 1000.0
MAX_COPIES = 64
REPLAYS = 30

Call = Callable[[], Any]


@dataclass(frozen=True)
class Timing:
    """Microseconds of one call: the median over replays, and the 10th and 90th percentile."""

    us: float
    low: float
    high: float
    calls: int
    replays: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def require_gpu() -> str:
    """The name of the current GPU.

    Raises:
        ExecutorUnavailableError: there is no GPU.
    """
    import torch

    if not torch.cuda.is_available():
        raise ExecutorUnavailableError(
            "GPU",
            expected="an NVIDIA GPU: times on a CPU say nothing about the kernels",
            got="none visible to torch",
            fix="run it on a machine with a Hopper or Blackwell GPU; `run` executes a step on a CPU",
        )
    return torch.cuda.get_device_name(torch.cuda.current_device())


@checked
def turns(touched_bytes: float, limit: int = MAX_TURNS) -> int:
    """How many sets of inputs a rotation needs so that together they exceed the L2; at most `limit`."""
    require_range("touched_bytes", touched_bytes, 0, 2**63)
    require_range("limit", limit, 1, 2**31)
    return max(1, min(limit, -(-ROTATION_BYTES // max(1, int(touched_bytes)))))


@checked
def graph_time(calls: Sequence[Call], *, replays: int = REPLAYS) -> Timing:
    """Time one call; `calls` are the turns of a rotation.

    Every call runs once before the capture, so that nothing is compiled, loaded or allocated in it.

    Raises:
        ExecutorUnavailableError: there is no GPU.
        InvalidArgumentError: no calls, or no replays.
    """
    import torch

    if not calls:
        raise InvalidArgumentError(
            "calls", expected="at least one call", got="none", fix="pass the turns of a rotation"
        )
    require_range("replays", replays, 1, 10_000)
    require_gpu()
    stream = _stream(torch.cuda.current_device())
    graph, count = _fitting_graph(calls, stream)
    samples = sorted(total / count for total in _replayed(graph, stream, replays))
    return Timing(
        statistics.median(samples),
        samples[len(samples) // 10],
        samples[-1 - len(samples) // 10],
        count,
        replays,
    )


@dataclass(frozen=True)
class Paired:
    """Two calls timed in alternation: microseconds of each, the ratio b / a, and the noise of that ratio.

    `verdict` is "differs" when the ratio is outside 1 +- noise, else "within noise".
    """

    a_us: float
    b_us: float
    ratio: float
    noise: float
    verdict: str
    rounds: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def paired(a: Sequence[Call], b: Sequence[Call], *, rounds: int = 21) -> Paired:
    """Time two calls against each other; each is given as the turns of a rotation.

    Three graphs alternate within a round: a, b, and a second capture of a. The difference between the two
    captures of a is the noise of capture, placement and clocks; a difference of b within this noise means
    nothing.
    """
    import torch

    if not a or not b:
        raise InvalidArgumentError(
            "calls", expected="at least one call each", got="none", fix="pass the turns of a rotation"
        )
    stream = _stream(torch.cuda.current_device())
    graphs = [_fitting_graph(calls, stream) for calls in (a, b, a)]
    samples: list[list[float]] = [[], [], []]
    for turn in range(rounds):
        for place in range(3):
            which = (place + turn) % 3
            graph, count = graphs[which]
            samples[which].append(_replayed(graph, stream, 1)[0] / count)
    return compared(*samples)


def compared(a: Sequence[float], b: Sequence[float], again: Sequence[float]) -> Paired:
    """Compare times taken in the same rounds; `again` is the second series of a."""
    ratios = sorted(y / x for x, y in zip(a, b, strict=True))
    null = sorted(z / x for x, z in zip(a, again, strict=True))
    ratio = statistics.median(ratios)
    noise = abs(statistics.median(null) - 1) + _half_width(ratios) + _half_width(null)
    verdict = "differs" if abs(ratio - 1) > noise else "within noise"
    return Paired(statistics.median(a), statistics.median(b), ratio, noise, verdict, len(ratios))


ROUNDS, ROUND_REPLAYS = 3, 10


def forget_error() -> None:
    """Take the CUDA runtime's last error, which a failed launch leaves for the next check of this thread.

    The next check may be of another contender: vLLM's DeepSelect has no kernel for Hopper, and the top-k that
    ran after it failed with "no kernel image". torch checks each of its own launches, and so takes the error.
    """
    import torch

    if torch.cuda.is_available():
        with contextlib.suppress(RuntimeError):
            torch.ones(1, device="cuda")


@checked
def in_turns(
    contenders: Mapping[str, Sequence[Call]], *, rounds: int = ROUNDS, failed: dict[str, str] | None = None
) -> dict[str, list[float]]:
    """Time contenders in alternation: the median microseconds of one call in each round, by contender.

    Each round begins with another contender, so that none always runs on the chip that the same one left
    warm.

    Args:
        contenders: Name -> the turns of its rotation.
        rounds: How many rounds.
        failed: Receives the error of each contender that cannot be captured, which is then left out. Without
            it the error is raised.

    Raises:
        InvalidArgumentError: a contender has no calls, or there are no rounds.
        ExecutorUnavailableError: there is no GPU.
    """
    import torch

    require_range("rounds", rounds, 1, 1000)
    if not contenders or not all(contenders.values()):
        raise InvalidArgumentError(
            "contenders", expected="at least one call each", got="none", fix="pass the turns of a rotation"
        )
    require_gpu()
    stream, graphs = _stream(torch.cuda.current_device()), {}
    for name, calls in contenders.items():
        try:
            graphs[name] = _fitting_graph(calls, stream)
        except Exception as error:
            if failed is None:
                raise
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            forget_error()
    names, times = list(graphs), {name: list[float]() for name in graphs}
    for turn in range(rounds):
        for place in range(len(names)):
            name = names[(place + turn) % len(names)]
            graph, count = graphs[name]
            times[name].append(statistics.median(_replayed(graph, stream, ROUND_REPLAYS)) / count)
    return times


def _half_width(ordered: Sequence[float]) -> float:
    """Half the width of the median's 95 % confidence interval, from ranks."""
    count = len(ordered)
    reach = 0.98 * count**0.5
    low, high = max(0, int(count / 2 - reach)), min(count - 1, int(count / 2 + reach))
    return (ordered[high] - ordered[low]) / 2


def _fitting_graph(calls: Sequence[Call], stream: Any) -> tuple[Any, int]:
    """A graph of the calls that is long enough to time, and its number of calls; runs each call first."""
    import torch

    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for call in calls:
            call()
    stream.synchronize()
    copies = max(1, 4 // len(calls))
    graph = _captured(calls, copies, stream)
    once = statistics.median(_replayed(graph, stream, 3))
    if once < GRAPH_US:
        copies = min(MAX_COPIES, max(copies, int(copies * GRAPH_US / max(once, 1.0)) + 1))
        graph = _captured(calls, copies, stream)
    return graph, len(calls) * copies


@lru_cache(maxsize=8)
def _stream(device: int) -> Any:
    """One stream for all timing: ops keep scratch memory for every stream that they see."""
    import torch

    return torch.cuda.Stream(device)


def _captured(calls: Sequence[Call], copies: int, stream: Any) -> Any:
    import torch

    graph = torch.cuda.CUDAGraph()
    # Collecting an earlier graph during the capture would end it. (`torch.cuda.graph` instead collects on
    # entry and frees all unused memory, which takes 0.1 s per capture.)
    gc.disable()
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin()
            try:
                for _ in range(copies):
                    for call in calls:
                        call()
            finally:
                graph.capture_end()
    finally:
        gc.enable()
    return graph


def _replayed(graph: Any, stream: Any, count: int) -> list[float]:
    """Microseconds of each of `count` replays, after one warm-up replay."""
    import torch

    events = [
        (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)
    ]
    with torch.cuda.stream(stream):
        graph.replay()
        for begin, end in events:
            begin.record(stream)
            graph.replay()
            end.record(stream)
    stream.synchronize()
    return [1e3 * begin.elapsed_time(end) for begin, end in events]


SUSTAINED_SECONDS = 1.0


@checked
def sustained(calls: Sequence[Call], *, seconds: float = SUSTAINED_SECONDS) -> dict[str, Any]:
    """Time one call after such calls have run for half of `seconds`; reads clocks and watts then.

    A short run ends before the power limit lowers the clocks; the back-to-back calls of a server do not.
    """
    import torch

    require_range("seconds", seconds, 0.01, 60.0)
    stream = _stream(torch.cuda.current_device())
    graph, count = _fitting_graph(calls, stream)
    half = max(1, math.ceil(seconds * 5e5 / max(_replayed(graph, stream, 1)[0], 1.0)))
    begin, middle, end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    with torch.cuda.stream(stream):
        for event in (begin, middle):
            event.record(stream)
            for _ in range(half):
                graph.replay()
        end.record(stream)
    # All replays are queued in the stream, so the GPU stays busy while the clocks are read.
    middle.synchronize()
    seen = clocks()
    stream.synchronize()
    us, total = 1e3 * middle.elapsed_time(end), begin.elapsed_time(end)
    return {"us": us / (half * count), "seconds": total / 1e3, **(seen or {})}


# Calls whose products take more of the tensor cores' peak than this may reach the power limit.
LIMITED, SETTLED_SECONDS = 1 / 3, 0.5


def settled(calls: Sequence[Call], products_us: float, *, replays: int = REPLAYS) -> float:
    """Microseconds of one call; of one that may reach the power limit, once the clocks have settled.

    The first calls after a rest are faster, of dense attention on an H200 by up to 12 %. Variants that are
    timed one after the other would be ranked by that, and in turns each would run at the others' clocks.

    Args:
        calls: The turns of a rotation.
        products_us: What the call's products take at the peak of the tensor cores.
        replays: Of a call that does not reach the limit.
    """
    us = graph_time(calls, replays=replays).us
    return sustained(calls, seconds=SETTLED_SECONDS)["us"] if products_us > LIMITED * us else us


CLOCKS = ("sm_mhz", "mem_mhz", "watts", "celsius")


def clocks() -> dict[str, float] | None:
    """Clocks (MHz), power (W) and temperature (C) of the current GPU, by `CLOCKS`.

    NVML or nvidia-smi gives them; None where neither answers.
    """
    try:
        import torch

        uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
    except Exception:
        return None
    return _from_nvml(uuid) or _from_smi(uuid)


def _from_nvml(uuid: str) -> dict[str, float] | None:
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        gpu = nvml.nvmlDeviceGetHandleByUUID(uuid)
        figures = (
            nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
            nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM),
            nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
            nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
        )
        return dict(zip(CLOCKS, map(float, figures), strict=True))
    except Exception:
        # NVML is missing, or the driver, container or card does not answer: do not fail a run over clocks.
        return None


def _from_smi(uuid: str) -> dict[str, float] | None:
    query = "--query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu"
    text = _output("nvidia-smi", "-i", uuid, query, "--format=csv,noheader,nounits")
    try:
        return dict(zip(CLOCKS, map(float, (text or "").split(",")), strict=True))
    except ValueError:
        return None


def environment() -> dict[str, Any]:
    """What a measurement depends on: GPU, driver, versions, commit, command and date."""
    import torch

    from dsl_kernels import __version__, backends

    facts: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "command": command(sys.argv),
        "dsl_kernels": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "versions": {name: version(name) for name in ("triton", "cuda-bindings")},
    }
    for _, chain in backends.toolchains():
        facts["versions"] |= chain if isinstance(chain, dict) else {chain.subject: None}
    if torch.cuda.is_available():
        facts |= {"gpu": torch.cuda.get_device_name(), "driver": driver_version()}
    return facts


@checked
def command(argv: list[str]) -> str:
    """The running command as one would type it in a checkout; absolute paths keep only their last part."""
    if not argv:
        raise InvalidArgumentError(
            "argv", expected="a program and its arguments", got="nothing", fix="pass sys.argv"
        )
    program, root = Path(argv[0].replace("\0", "")).absolute(), checkout()
    if program.name == "__main__.py":
        start = f"python -m {program.parent.name}"
    elif root is not None and program.is_relative_to(root):
        start = f"python {program.relative_to(root)}"
    else:
        start = program.name
    return " ".join([start, *(Path(arg).name if arg.startswith("/") else arg for arg in argv[1:])])


def checkout() -> Path | None:
    """The root of the source tree that this package runs from; None when it is installed."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "templates").is_dir() else None


def commit() -> str | None:
    """The source tree's commit, with a + where files outside `results` differ from it; None without git."""
    root = checkout()
    if root is None:
        return None
    git = ("git", "-C", str(root))
    head = _output(*git, "rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    changed = _output(*git, "status", "--porcelain", "--untracked-files=no", "--", ".", ":(exclude)results")
    return f"{head}+" if changed else head


def _output(*command: str) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def append(path: Path, text: str) -> None:
    """Append text to a file in one write, after a newline if a killed run left an unfinished line.

    Raises:
        OSError: the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        size = file.seek(0, 2)
        if size:
            file.seek(size - 1)
            text = text if file.read(1) == b"\n" else f"\n{text}"
        file.write(text.encode())
        file.flush()


def read_records(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; empty without the file. Lines that are no record are skipped.

    Raises:
        CacheError: the file cannot be read.
    """
    try:
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
    except OSError as error:
        raise CacheError(
            str(path), expected="a file that can be read", got=str(error), fix="name another file"
        ) from None
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


class Records:
    """JSON lines: one record per measurement, each with its environment.

    Raises:
        CacheError: the file cannot be written.
    """

    @checked
    def __init__(self, path: Path | None) -> None:
        self.environment = environment()
        self.rows: list[dict[str, Any]] = []
        self._path = path
        if path is not None:
            self._append(path, "")

    @checked
    def add(self, row: dict[str, Any]) -> dict[str, Any]:
        """Add a record, and append it to the file at once: an interrupted run keeps its measurements."""
        text = as_json("row", {**row, "environment": self.environment})
        self.rows.append(row)
        if self._path is not None:
            self._append(self._path, text + "\n")
        return row

    @staticmethod
    def _append(path: Path, text: str) -> None:
        try:
            append(path, text)
        except OSError as error:
            raise CacheError(
                str(path), expected="a file that can be written", got=str(error), fix="name another file"
            ) from None
