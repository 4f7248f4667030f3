"""Copies between host and GPU, from pinned and from pageable memory: what the direction and the memory cost.

Two fp32 vectors of 16Mi elements go to the GPU, are added there, and the sum comes back: 134 MB in, 67 MB
out. The timeline comes from CUPTI's activity records, read through torch.profiler.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsl_kernels._discover import later
from dsl_kernels.problems.base import Comparison

from . import _figures
from .base import Case, CaseRows, Record, rows_of

if TYPE_CHECKING:
    import torch
else:
    torch = later("torch", globals())

DEVICE = "cuda"
ELEMENTS = 16 << 20
BYTES = 4 * ELEMENTS
ITERATIONS = 5
# GB/s of one lane in one direction by PCIe generation, after the line code.
LANE_GBPS = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
KINDS = ("pageable", "pageable, fresh target", "pinned")


class Vectors:
    """Host vectors in one kind of memory, and the device's.

    With a fresh target, every copy back goes to memory that the process has never touched.
    """

    def __init__(self, kind: str) -> None:
        self.kind, pinned = kind, kind == "pinned"
        generator = torch.Generator().manual_seed(0)
        self.a, self.b = (torch.rand(ELEMENTS, generator=generator) for _ in range(2))
        if pinned:
            self.a, self.b = self.a.pin_memory(), self.b.pin_memory()
        self.out = torch.zeros(ELEMENTS, pin_memory=pinned)
        self.device = [torch.empty(ELEMENTS, device=DEVICE) for _ in range(3)]

    def send(self) -> None:
        self.device[0].copy_(self.a, non_blocking=True)
        self.device[1].copy_(self.b, non_blocking=True)

    def add(self) -> None:
        torch.add(self.device[0], self.device[1], out=self.device[2])

    def fetch(self) -> None:
        if self.kind == "pageable, fresh target":
            self.out = torch.empty(ELEMENTS)
        self.out.copy_(self.device[2], non_blocking=True)

    def once(self) -> None:
        self.send()
        self.add()
        self.fetch()
        torch.cuda.synchronize()

    def check(self) -> Comparison:
        """Require exact equality: both sides round once."""
        comparison = Comparison()
        self.out.zero_()
        self.once()
        comparison.require("largest difference", float((self.out - (self.a + self.b)).abs().max()), 0.0)
        return comparison


def _wall(step: Callable[[], None]) -> float:
    """Median microseconds of the step on the host's clock."""
    taken = []
    for _ in range(ITERATIONS + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step()
        torch.cuda.synchronize()
        taken.append(1e6 * (time.perf_counter() - begin))
    return statistics.median(taken[1:])


def timed(vectors: Vectors) -> dict[str, Any]:
    """Host times of both directions; device times and a timeline from the activity records."""
    send, fetch = _wall(vectors.send), _wall(vectors.fetch)
    times = {
        "h2d_us": send,
        "d2h_us": fetch,
        "h2d_gbps": 2 * BYTES / send / 1e3,
        "d2h_gbps": BYTES / fetch / 1e3,
    }
    try:
        events = activity(vectors)
    except Exception as error:
        return {**times, "notes": [f"no activity records: {error!r}"]}
    kernels = [e["us"] for e in events if e["what"] == "kernel"]
    last = [e for e in events if e["turn"] == ITERATIONS - 1]
    start = min((e["at"] for e in last), default=0.0)
    return {
        **times,
        "kernel_us": statistics.median(kernels) if kernels else None,
        "timeline": [{**e, "at": e["at"] - start} for e in last],
    }


def activity(vectors: Vectors) -> list[dict[str, Any]]:
    """Copies, kernels and host calls of every iteration: kind, name, start and length in microseconds."""
    from torch.profiler import ProfilerActivity, profile

    vectors.once()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        for turn in range(ITERATIONS):
            with torch.profiler.record_function(f"turn {turn}"):
                vectors.once()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())["traceEvents"]
    return read_trace(trace)


# Categories of the trace, by the timeline's names for them.
CATEGORIES = {
    "gpu_memcpy": "copy",
    "kernel": "kernel",
    "cuda_runtime": "host call",
    "cuda_driver": "host call",
}
CALLS = ("memcpy", "Synchronize", "LaunchKernel")


def read_trace(trace: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The relevant events of a Chrome trace, each with its iteration."""
    spans = [
        (e["ts"], e["ts"] + e["dur"], int(e["name"].split()[1]))
        for e in trace
        if e.get("cat") == "user_annotation" and e["name"].startswith("turn ")
    ]
    kept_events = []
    for event in trace:
        what = CATEGORIES.get(event.get("cat", ""))
        if what is None or "dur" not in event:
            continue
        if what == "host call" and not any(part.lower() in event["name"].lower() for part in CALLS):
            continue
        turn = next((turn for low, high, turn in spans if low <= event["ts"] <= high), -1)
        kept = {"what": what, "name": event["name"], "at": event["ts"], "us": event["dur"], "turn": turn}
        if "bytes" in event.get("args", {}):
            kept["bytes"] = event["args"]["bytes"]
        kept_events.append(kept)
    return sorted(kept_events, key=lambda event: event["at"])


def link() -> dict[str, Any]:
    """Generation and width of the PCIe link by the driver, and its rate in one direction in GB/s."""
    query = "pcie.link.gen.current,pcie.link.width.current,pcie.link.gen.max,pcie.link.width.max"
    done = subprocess.run(
        ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    )
    now, width, most, widest = (part.strip() for part in done.stdout.splitlines()[0].split(","))
    facts: dict[str, Any] = {"generation": now, "width": width, "generation_max": most, "width_max": widest}
    if most.isdigit() and widest.isdigit():
        facts["gbps"] = LANE_GBPS.get(int(most), 0.0) * int(widest)
    return facts


def measure(to: CaseRows) -> None:
    for kind in KINDS:
        vectors = Vectors(kind)
        to.row(kind, partial(timed, vectors), vectors.check, kind="transfer", memory=kind)
        del vectors
    to.row("link", link, kind="link")


def figure(record: Record) -> Any:
    """GB/s by direction, and one iteration over time for each kind of memory."""
    rows = rows_of(record, "transfer")
    drawn, (left, right) = _figures.panels(2, "Copies between host and GPU", record, width=6.0)
    names = [row["memory"] for row in rows]
    for place, (label, key) in enumerate((("to the GPU", "h2d_gbps"), ("back", "d2h_gbps"))):
        at = [i + 0.4 * place - 0.2 for i in range(len(rows))]
        shown = left.bar(
            at, [row[key] for row in rows], width=0.38, label=label, color=_figures.COLOURS[place]
        )
        left.bar_label(shown, fmt="%.3g", fontsize=8)
    left.set_xticks(range(len(rows)), [name.replace(", ", ",\n") for name in names], fontsize=8)
    left.set_ylabel("GB/s")
    left.legend(fontsize=8, frameon=False)
    lanes = [(row, what) for row in rows for what in ("host call", "copy", "kernel")]
    colours = {"host call": "#cccccc", "copy": _figures.COLOURS[0], "kernel": _figures.COLOURS[1]}
    for height, (row, what) in enumerate(lanes):
        spans = [
            (e["at"] / 1e3, max(e["us"] / 1e3, 0.05)) for e in row.get("timeline", ()) if e["what"] == what
        ]
        right.broken_barh(spans, (height - 0.4, 0.8), color=colours[what])
    right.set_yticks(range(len(lanes)), [f"{row['memory']}: {what}" for row, what in lanes], fontsize=7)
    right.invert_yaxis()
    right.grid(axis="y", visible=False)
    right.set_xlabel("ms of one iteration")
    return drawn


CASE = Case(
    name="transfers",
    question="What does pinning host memory change, in which direction, and what does it leave alone?",
    source="003",
    measure=measure,
    draw=figure,
    launches={},
)
