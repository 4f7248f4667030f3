"""Files of a profiler, read into `KernelReport`s.

Four kinds are told apart by their content: Nsight Compute's binary report (.ncu-rep, through the package ncu-report), its
raw page as CSV, its details page as CSV or as the text that it prints (a log), and this package's own JSON.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..errors import ArtifactError, ToolchainError
from . import metrics
from .model import KernelReport, NcuRule, load

# What the details page prints, by (label, whether the value is a percentage); None: either.
LABELS: dict[tuple[str, bool | None], str] = {
    ("Duration", None): metrics.DURATION,
    ("Elapsed Cycles", None): metrics.CYCLES,
    ("Compute (SM) Throughput", None): metrics.SOL["sm"],
    ("SM [%]", None): metrics.SOL["sm"],
    ("Memory Throughput", True): metrics.SOL["memory"],
    ("L1/TEX Cache Throughput", None): metrics.SOL_OTHER["l1"][0],
    ("L2 Cache Throughput", None): metrics.SOL["l2"],
    ("DRAM Throughput", None): metrics.SOL["dram"],
    ("L1/TEX Hit Rate", None): metrics.L1_HIT,
    ("L2 Hit Rate", None): metrics.L2_HIT,
    ("Achieved Occupancy", None): metrics.ACHIEVED,
    ("Theoretical Occupancy", None): metrics.THEORETICAL,
    ("Waves Per SM", None): metrics.WAVES,
    ("Registers Per Thread", None): metrics.REGISTERS,
    ("Dynamic Shared Memory Per Block", None): metrics.SHARED[0],
    ("Static Shared Memory Per Block", None): metrics.SHARED[1],
    ("Block Limit Registers", None): metrics.LIMITS["registers"],
    ("Block Limit Shared Mem", None): metrics.LIMITS["shared memory"],
    ("Block Limit Warps", None): metrics.LIMITS["warps"],
    ("Block Limit SM", None): metrics.LIMITS["blocks"],
    ("Issued Warp Per Scheduler", None): metrics.ISSUE["issued"],
    ("Eligible Warps Per Scheduler", None): metrics.ISSUE["eligible"],
    ("Active Warps Per Scheduler", None): metrics.ISSUE["active"],
    ("Avg. Active Threads Per Warp", None): metrics.ISSUE["threads"],
    ("Warp Cycles Per Issued Instruction", None): metrics.LATENCY,
}
PREFIXES = {"": 1.0, "n": 1e-9, "u": 1e-6, "m": 1e-3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_TIME = re.compile(r"^([num]?)(?:s|second)$")
_AMOUNT = re.compile(r"^([KMGT]?)(byte|sector|inst|cycle|request|warp|thread|Hz|hz)\b")
_HEADER = re.compile(r"^  (\S.*?) \((\d+), (\d+), (\d+)\)x\((\d+), (\d+), (\d+)\),.*?CC (\d+\.\d+)")
# A row of a printed table: a label, a unit or none, and a number, apart by two blanks at least.
_ROW = re.compile(r"^    (\S.*?)\s{2,}(?:(\S.*?)\s+)?(-?[\d,]*\.?\d+(?:e[+-]?\d+)?)\s*$")
_RULE = re.compile(r"^    (OPT|INF|WRN)\s+(.*)$")
_ESTIMATE = re.compile(r"Est\. (?:Local )?Speedup: ([\d.]+)%")
_IDENTITY = ("ID", "Kernel Name", "Block Size", "Grid Size", "CC")


def read(path: str | Path) -> list[KernelReport]:
    """The launches in a file, in their order.

    Raises:
        ArtifactError: the file is missing, or of none of the kinds; says what it looks like.
        ToolchainError: a binary report without the package ncu-report, or of a newer Nsight Compute than it.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactError(
            str(path), expected="a profile", got=str(error.strerror), fix="check the path"
        ) from None
    if data[:3] == b"NVR" or path.suffix == ".ncu-rep":
        return _binary(path)
    text = data.decode(errors="replace")
    if text.lstrip()[:1] in ("{", "["):
        return _json(text, path)
    rows = _csv_rows(text)
    if rows and "Metric Name" in rows[0]:
        found = _details(rows)
    elif rows and "Kernel Name" in rows[0]:
        found = _raw(rows, path)
    else:
        found = list(_log(text))
    if not found:
        raise ArtifactError(
            str(path),
            expected="a report, raw CSV or log of Nsight Compute, or JSON of `profile read --extract`",
            got=(text.strip().splitlines() or ["an empty file"])[0][:80],
            fix="write it with `profile collect`, or `ncu --import REPORT --page raw --csv`",
        )
    return found


def number(text: str, unit: str = "") -> float | None:
    """A printed figure in base units (ns, bytes, percent); None where it is none ("n/a", a name)."""
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    if found := _TIME.match(unit):
        return value * PREFIXES[found[1]] * 1e9
    if found := _AMOUNT.match(unit):
        return value * PREFIXES[found[1]]
    return value


def _csv_rows(text: str) -> list[list[str]]:
    """The rows of the CSV in a text that may begin with messages; empty where there is none."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        return []
    return [row for row in csv.reader(lines[start:]) if len(row) > 5]


def _triple(text: str) -> tuple[int, int, int] | None:
    found = [int(part) for part in re.findall(r"\d+", text)]
    return (found[0], found[1], found[2]) if len(found) == 3 else None


def _arch(capability: str) -> str:
    return "sm_" + capability.replace(".", "") if re.fullmatch(r"\d+\.\d+", capability) else ""


def _raw(rows: list[list[str]], path: Path) -> list[KernelReport]:
    """The raw page: a column a metric; the second row is units."""
    header, units = rows[0], rows[1] if len(rows) > 1 else []
    if not units or units[header.index("ID")].strip():
        raise ArtifactError(
            str(path),
            expected="units in the second row, as Nsight Compute writes them",
            got="a launch" if units else "nothing",
            fix="write it with `ncu --import REPORT --page raw --csv`",
        )
    found = []
    for row in rows[2:]:
        cells = dict(zip(header, row, strict=False))
        values = {}
        for name, unit, cell in zip(header, units, row, strict=False):
            if "__" in name and (value := number(cell, unit)) is not None:
                values[name] = value
        label = next((cell for name, cell in cells.items() if "Push/Pop" in name and cell), "")
        found.append(
            KernelReport(
                cells["Kernel Name"],
                "csv",
                arch=_arch(cells.get("CC", "")),
                device=cells.get("device__attribute_display_name", ""),
                metrics=values,
                grid=_triple(cells.get("Grid Size", "")),
                block=_triple(cells.get("Block Size", "")),
                label=_range(label),
                missing=_missing(values, _arch(cells.get("CC", ""))),
            )
        )
    return found


def _range(text: str) -> str:
    """The innermost range of the program's own: "domain:name:" and six fields of payload, colour and message, quoted."""
    own = [
        part.split(":") for part in re.split(r'"\s+"', text.strip().strip('"')) if "<default domain>" in part
    ]
    return ":".join(own[-1][1:-6]) if own else text.strip()


def _missing(values: Iterable[str], arch: str) -> tuple[str, ...]:
    """The counters of this chip that a report lacks; all or none are named, since a partial report is meant."""
    held = set(values)
    chip = metrics.CHIPS.get(arch)
    lacking = [name for name in metrics.counters(chip) if name not in held] if chip else []
    return (
        tuple(lacking) if len(lacking) < 20 else ("most counters: it was collected with a list of its own",)
    )


def _details(rows: list[list[str]]) -> list[KernelReport]:
    """The details page as CSV: a row a figure or a rule, under the labels that people see."""
    header = rows[0]
    launches: dict[str, dict[str, Any]] = {}
    for row in rows[1:]:
        cells = dict(zip(header, row, strict=False))
        held = launches.setdefault(cells["ID"], {"cells": cells, "metrics": {}, "rules": []})
        _take(
            held["metrics"],
            cells.get("Metric Name", ""),
            cells.get("Metric Unit", ""),
            cells.get("Metric Value", ""),
        )
        if cells.get("Rule Name"):
            estimate = number(cells.get("Estimated Speedup", ""))
            held["rules"].append(
                NcuRule(
                    cells["Rule Name"],
                    cells.get("Rule Description", ""),
                    cells.get("Rule Type", ""),
                    estimate / 100 if estimate is not None else None,
                )
            )
    return [
        KernelReport(
            held["cells"]["Kernel Name"],
            "csv",
            arch=_arch(held["cells"].get("CC", "")),
            metrics=held["metrics"],
            grid=_triple(held["cells"].get("Grid Size", "")),
            block=_triple(held["cells"].get("Block Size", "")),
            rules=tuple(held["rules"]),
            missing=("counters that the details page does not print",),
        )
        for held in launches.values()
    ]


def _take(values: dict[str, float], label: str, unit: str, text: str) -> None:
    """Keep a printed figure under the metric that it is."""
    name = label if "__" in label else LABELS.get((label, None)) or LABELS.get((label, unit == "%"))
    value = number(text, unit)
    if name and value is not None:
        values.setdefault(name, value)


def _log(text: str) -> Iterator[KernelReport]:
    """The details page as printed: a heading a launch, then tables and rules."""
    heading: re.Match[str] | None = None
    values: dict[str, float] = {}
    rules: list[NcuRule] = []

    def done() -> Iterator[KernelReport]:
        if heading is not None:
            size = [int(part) for part in heading.groups()[1:7]]
            yield KernelReport(
                heading[1],
                "log",
                arch=_arch(heading[8]),
                metrics=dict(values),
                grid=(size[0], size[1], size[2]),
                block=(size[3], size[4], size[5]),
                rules=tuple(rules),
                missing=("counters that the log does not print",),
            )

    for line in text.splitlines():
        if begins := _HEADER.match(line):
            yield from done()
            heading = begins
            values, rules = {}, []
        elif heading is not None and (rule := _RULE.match(line)):
            estimate = _ESTIMATE.search(rule[2])
            rules.append(NcuRule("", rule[2], rule[1], float(estimate[1]) / 100 if estimate else None))
        elif heading is not None and (row := _ROW.match(line)):
            _take(values, row[1], row[2] or "", row[3])
    yield from done()


def _json(text: str, path: Path) -> list[KernelReport]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ArtifactError(
            str(path), expected="JSON", got=str(error), fix="write it again with `profile read --extract`"
        ) from None
    items = data if isinstance(data, list) else [data]
    return [load(KernelReport, item, str(path)) for item in items]


def _binary(path: Path) -> list[KernelReport]:
    """A report through NVIDIA's package, which must be as new as the Nsight Compute that wrote it."""
    fix = "`pip install 'dsl-kernels[profile]'`, or read its CSV: `ncu --import REPORT --page raw --csv`"
    try:
        import ncu_report
    except ImportError as error:
        raise ToolchainError(
            str(path), expected="the package ncu-report for a binary report", got=str(error), fix=fix
        ) from None
    try:
        held = ncu_report.load_report(str(path))
    except Exception as error:
        raise ArtifactError(
            str(path),
            expected="a report that this ncu-report reads",
            got=str(error) or type(error).__name__,
            fix="install an ncu-report of the version of the ncu that wrote it, or newer",
        ) from None
    return [
        _action(held.range_by_idx(i).action_by_idx(k))
        for i in range(held.num_ranges())
        for k in range(held.range_by_idx(i).num_actions())
    ]


def _action(action: Any) -> KernelReport:
    values: dict[str, float] = {}
    facts: dict[str, str] = {}
    for name in action.metric_names():
        value = action.metric_by_name(name).value()
        if isinstance(value, bool | int | float):
            values[name] = float(value)
        elif isinstance(value, str):
            facts[name] = value

    def triple(stem: str) -> tuple[int, int, int] | None:
        found = [values.get(f"launch__{stem}_dim_{axis}") for axis in "xyz"]
        return None if None in found else (int(found[0] or 0), int(found[1] or 0), int(found[2] or 0))

    major, minor = (values.get(f"device__attribute_compute_capability_{part}") for part in ("major", "minor"))
    arch = "" if major is None or minor is None else f"sm_{int(major)}{int(minor)}"
    return KernelReport(
        action.name(),
        "ncu",
        arch=arch,
        device=facts.get("device__attribute_display_name", ""),
        metrics=values,
        grid=triple("grid"),
        block=triple("block"),
        label=_nvtx(action),
        rules=tuple(_rules(action)),
        missing=_missing(values, arch),
    )


def _nvtx(action: Any) -> str:
    """Name of the innermost push/pop range the launch ran in."""
    state = action.nvtx_state()
    for domain in state.domains() if state is not None else ():
        ranges = state.domain_by_id(domain).push_pop_ranges()
        if ranges:
            return str(ranges[-1])
    return ""


def _rules(action: Any) -> Iterator[NcuRule]:
    for result in action.rule_results_as_dicts():
        message = result.get("rule_message") or {}
        speedup = result.get("speedup_estimation") or {}
        estimate = speedup.get("speedup")
        yield NcuRule(
            result.get("name") or result.get("rule_identifier", ""),
            message.get("message", ""),
            str(message.get("type", "")),
            float(estimate) / 100 if estimate is not None else None,
        )
