"""One checked program: its launches, executed under several interleavings, and their findings."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..checks import shown
from ..coverage import Coverage
from ..errors import EmulatorError, LaunchError, UnsupportedInstruction
from ..interleaving import Interleaving, interleavings
from ..launch import _parse, launch, launch_each
from ..raw import RawArguments
from ..report import Finding, Report
from .device import SMS, Device, get_arch
from .errors import UnsupportedCall
from .memory import Memory, Snapshot

Data = bytes | Sequence[bytes]
Params = Data | Callable[[Sequence[int]], Data]


@dataclass(frozen=True)
class Kernel:
    """An entry of a PTX module."""

    ptx: str
    entry: str

    def param_sizes(self) -> list[int]:
        return [p.size for p in _parse(self.ptx).entries[self.entry].params]


@dataclass
class LaunchRecord:
    """One launch of the program, with a report for each interleaving."""

    number: int
    kernel: Kernel
    source: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] | None
    dynamic_smem: int
    stream: int
    attributes: tuple[str, ...]
    reports: list[Report] = field(default_factory=list)
    results: int = 0  # distinct contents of the memory afterwards
    seconds: float = 0.0
    failure: str = ""
    page: str = ""  # path of the page that explains the first error

    @property
    def instructions(self) -> int:
        return self.reports[0].instructions if self.reports else 0

    @property
    def ok(self) -> bool:
        return not self.failure and bool(self.reports) and all(r.ok for r in self.reports)

    def codes(self, errors: bool) -> Counter[str]:
        """Code of a finding -> the number of interleavings that show it; errors, or else warnings."""
        return Counter(
            code for r in self.reports for code in {f.code for f in r.findings if f.error == errors}
        )

    def first(self) -> tuple[Finding, Report] | None:
        """The first error, with its report."""
        return next(((r.errors[0], r) for r in self.reports if r.errors), None)

    def __str__(self) -> str:
        return (
            f"launch {self.number}: {self.kernel.entry} ({self.source}), grid {self.grid}, block {self.block}"
        )


@dataclass(frozen=True)
class Settings:
    """How launches are checked: see :func:`ptx_emulator.script.emulated`."""

    interleavings: int = 5
    seed: int = 0
    check: str = "raise"
    options: dict[str, Any] = field(default_factory=dict)
    explain: Callable[[LaunchRecord, Callable[..., Report]], None] | None = None


class Graph:
    """The work that a capture recorded; each launch of the graph executes it."""

    def __init__(self) -> None:
        self.nodes: list[Callable[[], None]] = []
        self.complete = False

    def run(self) -> None:
        for node in self.nodes:
            node()


class Session:
    """The state of one checked program. Work is executed in the order in which the program issues it."""

    def __init__(self, arch: str, settings: Settings, sms: int = SMS) -> None:
        self.device = Device(get_arch(arch), sms)
        self.settings = settings
        self.memory = Memory()
        self.launches: list[LaunchRecord] = []
        self.notes: Counter[str] = Counter()
        self._captures: dict[int, Graph] = {}

    @property
    def ok(self) -> bool:
        """Whether every launch passed every check."""
        return all(record.ok for record in self.launches)

    def coverage(self) -> dict[Kernel, Coverage]:
        """What the launches of each kernel reached together, under all their interleavings."""
        out: dict[Kernel, Coverage] = {}
        for record in self.launches:
            for report in record.reports:
                out[record.kernel] = out.get(record.kernel, Coverage()).merged(report.coverage)
        return out

    def note(self, text: str) -> None:
        """Count a request of the program that was answered without being carried out."""
        self.notes[text] += 1

    # Streams and graphs

    def capturing(self, stream: int) -> Graph | None:
        return self._captures.get(stream)

    def begin_capture(self, stream: int) -> Graph:
        return self._captures.setdefault(stream, Graph())

    def join_capture(self, stream: int, graph: Graph) -> None:
        """Capture a stream too, because it waits for an event of a captured stream."""
        if not graph.complete:
            self._captures[stream] = graph

    def end_capture(self, stream: int) -> Graph | None:
        graph = self._captures.get(stream)
        if graph is not None:
            graph.complete = True
            self._captures = {s: g for s, g in self._captures.items() if g is not graph}
        return graph

    def enqueue(self, stream: int, action: Callable[[], None]) -> None:
        """Do something now or, while the stream is being captured, at each launch of the graph."""
        graph = self._captures.get(stream)
        if graph is None:
            action()
        else:
            graph.nodes.append(action)

    # Launches

    def launch(
        self,
        kernel: Kernel,
        grid: Sequence[int],
        block: Sequence[int],
        params: Params,
        *,
        source: str,
        cluster: Sequence[int] | None = None,
        dynamic_smem: int = 0,
        stream: int = 0,
        attributes: Sequence[str] = (),
        keep: Any = None,
    ) -> None:
        """Record a launch and execute it, or add it to the graph that its stream is captured into.

        ``params`` is the bytes of each parameter, or a function from the parameters' sizes to them, which is
        called at once. ``keep`` stays alive as long as a graph may execute the launch again.

        Raises:
            EmulatorError: a check failed, and ``check`` is "raise".
            UnsupportedInstruction: the emulator does not execute an instruction of the kernel.
        """
        data = params(kernel.param_sizes()) if callable(params) else params
        grid3, block3 = three(grid, "grid"), three(block, "block")
        cluster3 = None if cluster is None else three(cluster, "cluster")

        def execute(_keep: Any = keep) -> None:
            record = LaunchRecord(
                len(self.launches), kernel, source, grid3, block3, cluster3, dynamic_smem, stream,
                tuple(attributes),
            )  # fmt: skip
            self.launches.append(record)
            self._execute(record, data)

        self.enqueue(stream, execute)

    def _execute(self, record: LaunchRecord, params: Data) -> None:
        settings = self.settings
        regions = self.memory.regions()
        arguments = RawArguments(params, regions)
        before = Snapshot(regions)
        results = set()
        warps = -(-record.block[0] * record.block[1] * record.block[2] // 32)
        started = time.perf_counter()

        options: dict[str, Any] = {
            "cluster": record.cluster,
            "dynamic_smem": record.dynamic_smem,
            "entry": record.kernel.entry,
            "check": "report",
            **settings.options,
        }
        chosen = interleavings(settings.interleavings, settings.seed, min(warps, 4))
        try:
            for report in launch_each(
                record.kernel.ptx, record.grid, record.block, arguments, interleavings=chosen, **options
            ):
                record.reports.append(report)
                self._supported(record)
                results.add(before.digest())
        except EmulatorError as error:
            record.failure = str(error)
            raise
        finally:
            record.results = len(results)
            record.seconds = time.perf_counter() - started
        first = record.first()
        if first is None:
            return
        if settings.explain is not None:
            after = Snapshot(regions)

            def again(interleaving: Interleaving, **more: Any) -> Report:
                before.restore()
                merged = {**options, **more}
                kernel, grid, block = record.kernel, record.grid, record.block
                return launch(kernel.ptx, grid, block, arguments, interleaving=interleaving, **merged)

            settings.explain(record, again)
            after.restore()
        if settings.check == "raise":
            finding, report = first
            raise EmulatorError(f"{record}: {finding}\n  under {report.interleaving}", finding, report)

    def _supported(self, record: LaunchRecord) -> None:
        """Raise for an unsupported instruction: everything after it would be wrong."""
        for finding in record.reports[-1].errors:
            if finding.code == "unsupported":
                raise UnsupportedInstruction(f"{record}: {finding}", finding, record.reports[-1])


def three(value: Any, name: str) -> tuple[int, int, int]:
    """One to three sizes, padded with 1 to three."""
    try:
        sizes = tuple(int(n) for n in (value if isinstance(value, Iterable) else (value,)))
    except (TypeError, ValueError):
        raise LaunchError(f"{name} {shown(value)} must be one to three integers") from None
    return (*sizes, 1, 1, 1)[:3]  # type: ignore[return-value]


def ptx_text(image: bytes) -> str:
    """The PTX of an image that a program loads as a module.

    Raises:
        UnsupportedCall: the image is machine code, which the emulator does not read.
    """
    data = image.split(b"\0", 1)[0] if not image.startswith(b"\x7fELF") else b""
    if b".entry" not in data and b".func" not in data and b".version" not in data:
        raise UnsupportedCall(
            "loading a module",
            got="machine code (a cubin or a fat binary)",
            fix="load the kernel's PTX: nvcc -ptx, or NVRTC with a virtual architecture such as compute_90a",
        )
    return data.decode("utf-8", "replace")
