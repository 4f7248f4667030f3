"""A profiler's files, read into `KernelReport`s.

The content decides between four kinds: Nsight Compute's binary report (.ncu-rep, read through the package
ncu-report), its raw page as CSV, its details page as CSV or as printed text (a log), and this package's own
JSON. Texts may be in UTF-8 or UTF-16 and packed with xz, may contain several runs, and may use a decimal
comma.
"""

from __future__ import annotations

import codecs
import csv
import json
import lzma
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dsl_kernels.errors import ArtifactError, ToolchainError

from . import metrics
from .model import KernelReport, NcuRule, Workload, load

# What the details page prints, by label and by whether the unit is percent; None matches either.
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
NANOSECONDS = {"": 1e9, "m": 1e6, "u": 1e3, "n": 1.0}
PREFIXES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_TIME = re.compile(r"^([num]?)(?:s|second)$")
_AMOUNT = re.compile(r"^([KMGT]?)(byte|sector|inst|cycle|request|warp|thread|Hz|hz)\b")
_HEADER = re.compile(r"^  (\S.*?) \((\d+), (\d+), (\d+)\)x\((\d+), (\d+), (\d+)\),.*?CC (\d+\.\d+)")
# A row of a printed table: a label, an optional unit, and a number, separated by at least two blanks.
_ROW = re.compile(
    r"^    (\S.*?) {2,}(?:([^\s\d].*?) +)?([+-]?\d[\d.,'’\u00a0\u202f ]*(?:e[+-]?\d+)?)\s*$", re.I
)
_RULE = re.compile(r"^    (OPT|INF|WRN)\s+(.*)$")
_ESTIMATE = re.compile(r"Est\. (?:Local )?Speedup: ([\d.,]+)%")
# How a number is written with each decimal mark; the other mark, a blank or an apostrophe may group digits.
_FIGURES = {
    mark: re.compile(
        rf"(?=\D{{0,2}}\d)[+-]?(?:\d+|[1-9]\d{{0,2}}(?:{groups}\d{{2,3}})*{groups}\d{{3}})?"
        rf"(?:{re.escape(mark)}\d*)?(?:e[+-]?\d+)?",
        re.I,
    )
    for mark, groups in ((".", "[,'’ \u00a0\u202f]"), (",", "[.'’ \u00a0\u202f]"))
}
# Units of metrics that cannot be fractions if they add up or pick one counter.
_WHOLE_UNITS = (
    "", "ns", "nsecond", "byte", "sector", "inst", "cycle", "request", "warp", "thread", "register/thread"
)  # fmt: skip
_WHOLE = (".sum", ".max", ".min", metrics.REGISTERS)
# Passes over a kernel differ slightly, so a share of a peak may appear to reach this many percent.
_MOST_SHARE = 101.0
# Pages of Nsight Compute without single launches or without their counters, by a column that only they have.
_OTHER_PAGES = {
    "Invocations": "figures over all launches of a kernel (`--print-summary`)",
    "Function Name": "the summary page (`--page summary`)",
    "Estimated Speedup [%]": "the summary page (`--page summary`)",
    "Source": "the source page (`--page source`)",
}
_HEAD = {"Kernel Name", *_OTHER_PAGES}
_LAUNCHES = "the raw or the details page, which say something of each launch"
_RAW_FIX = "write it with `ncu --import REPORT --page raw --csv`"


@dataclass
class _Launch:
    """A launch as printed: its report, and the figures to convert once the file's decimal mark is known.

    Attributes:
        cells: metric, unit and text of each figure; the first cell of a metric counts.
        rules: Nsight Compute's rules, each with its estimate as printed.
    """

    report: KernelReport
    cells: list[tuple[str, str, str]] = field(default_factory=list)
    rules: list[tuple[NcuRule, str]] = field(default_factory=list)


def read(path: str | Path) -> list[KernelReport]:
    """The launches in a file, in order.

    Raises:
        ArtifactError: the file is missing or of none of the kinds; the error says what it looks like.
        ToolchainError: a binary report, and the package ncu-report is missing.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactError(
            str(path), expected="a profile", got=str(error.strerror), fix="check the path"
        ) from None
    if data[:3] == b"NVR" or path.suffix == ".ncu-rep":
        launches = _binary(path)
    else:
        launches = reports(_text(data, str(path)), str(path))
    for report in launches:
        _require_possible(report, str(path))
    return launches


def reports(text: str, where: str) -> list[KernelReport]:
    """The launches in a text: JSON, CSV or a log; `where` names the text in errors.

    Raises:
        ArtifactError: the text is none of these, or a figure in it can be read in two ways.
    """
    # A log may begin with "[812] python@host", which is not a JSON list.
    if re.match(r"\s*(\{|\[(?!\d+\] ))", text):
        return _json(text, where)
    launches = [launch for run in _runs(text) for launch in _csv(run, where)] or list(_log(text, where))
    if not launches:
        raise ArtifactError(
            where,
            expected="a report, raw CSV or log of Nsight Compute, or JSON of `profile read --extract`",
            got=(text.strip().splitlines() or ["an empty file"])[0][:80],
            fix="write it with `profile collect`, or `ncu --import REPORT --page raw --csv`",
        )
    mark = _decimal_mark(launches, where)
    return [_counted(launch, mark) for launch in launches]


def is_csv(text: str) -> bool:
    """Whether a text contains a table of Nsight Compute as CSV, even one without launches."""
    return any(map(_delimiter, text.splitlines()))


def number(text: str, unit: str = "", mark: str = ".") -> float | None:
    """A printed figure in base units (ns, bytes, percent); None if it is not a number ("n/a", a name).

    Args:
        mark: the decimal mark that it was written with, "." or ",".
    """
    text = text.strip()
    if not _FIGURES[mark].fullmatch(text):
        return None
    plain = text.replace("." if mark == "," else ",", "").replace(mark, ".")
    value = float(re.sub(r"[^\d.e+-]", "", plain, flags=re.I))
    if time := _TIME.match(unit):
        return value * NANOSECONDS[time[1]]
    if amount := _AMOUNT.match(unit):
        return value * PREFIXES[amount[1]]
    return value


def _decimal_mark(launches: Sequence[_Launch], where: str) -> str:
    """The decimal mark of a file, from the figures that only one of the two marks explains.

    A figure such as "86,400" is valid with either. If there are no others, it may still decide: a count
    cannot be a fraction, and a share of a peak cannot exceed it.

    Raises:
        ArtifactError: figures with both marks, or only figures that either mark explains; the error names
            them.
    """
    certain: dict[str, str] = {}
    likely: dict[str, str] = {}
    open_cell = ""
    for launch in launches:
        estimates = [(f"estimate of {rule.name or rule.kind}", "%", text) for rule, text in launch.rules]
        for name, unit, text in (*launch.cells, *estimates):
            read_as = {mark: value for mark in _FIGURES if (value := number(text, unit, mark)) is not None}
            cell = f"{text!r} ({name} of {launch.report.kernel})"
            if len(read_as) == 1:
                certain.setdefault(next(iter(read_as)), cell)
            elif len(set(read_as.values())) == 2:
                sound = [mark for mark, value in read_as.items() if _sound(name, unit, value)]
                if len(sound) == 1:
                    likely.setdefault(sound[0], cell)
                else:
                    open_cell = open_cell or cell
    evidence = certain or likely
    if len(evidence) == 2 or (open_cell and not evidence):
        got = f"{open_cell}, which may be read either way, and no figure that settles it"
        if evidence:
            got = f"both marks: {evidence['.']} and {evidence[',']}"
        raise ArtifactError(
            where,
            expected="figures with one decimal mark",
            got=got,
            fix="write it again under LC_ALL=C; read runs of different settings apart",
        )
    return next(iter(evidence), ".")


def _sound(name: str, unit: str, value: float) -> bool:
    """Whether a metric can have this value: counts are whole, and shares of a peak do not exceed it."""
    if _bounded(name):
        return value <= _MOST_SHARE
    return unit not in _WHOLE_UNITS or not name.endswith(_WHOLE) or value == int(value)


def _bounded(name: str) -> bool:
    """Whether a metric in percent cannot exceed 100; hit rates over several passes can."""
    return "pct_of_peak" in name or name == metrics.THEORETICAL


def _require_possible(report: KernelReport, where: str) -> None:
    """Refuse a share of a peak that exceeds it."""
    for name, value in report.metrics.items():
        if _bounded(name) and value > _MOST_SHARE:
            raise ArtifactError(
                where,
                expected="shares of a peak up to 100 %",
                got=f"{value:g} % ({name} of {report.kernel})",
                fix="write the file again under LC_ALL=C; if it says so still, leave that metric out",
            )


def _counted(launch: _Launch, mark: str) -> KernelReport:
    """The report of a launch, with its figures read by the file's decimal mark."""
    values: dict[str, float] = {}
    for name, unit, text in launch.cells:
        if (value := number(text, unit, mark)) is not None:
            values.setdefault(name, value)
    rules = []
    for rule, text in launch.rules:
        estimate = number(text, "%", mark)
        rules.append(replace(rule, estimate=None if estimate is None else estimate / 100))
    missing = launch.report.missing or _missing(values, launch.report.arch)
    return replace(launch.report, metrics=values, rules=tuple(rules), missing=missing)


def _text(data: bytes, where: str) -> str:
    """A file's text, unpacked and decoded, without the byte order marks that joined files have inside."""
    if data.startswith(b"\xfd7zXZ\0"):
        try:
            data = lzma.decompress(data)
        except lzma.LZMAError as error:
            raise ArtifactError(
                where, expected="a whole xz file", got=str(error), fix="copy it again"
            ) from None
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif b"\0" in data[:64]:
        encoding = "utf-16-be" if data[0] == 0 else "utf-16-le"
    else:
        encoding = "utf-8"
    return data.decode(encoding, errors="replace").replace("\ufeff", "")


def _runs(text: str) -> Iterator[list[list[str]]]:
    """The tables of a text that may also contain messages: for each run its header, then its rows."""
    lines = text.splitlines(keepends=True)
    heads = [(place, delimiter) for place, line in enumerate(lines) if (delimiter := _delimiter(line))]
    ends = [*(place for place, _ in heads[1:]), len(lines)]
    for (start, delimiter), end in zip(heads, ends, strict=False):
        rows = csv.reader(lines[start:end], delimiter=delimiter, skipinitialspace=True)
        yield [[cell.strip() for cell in row] for row in rows]


def _delimiter(line: str) -> str:
    """The delimiter of an Nsight Compute header line; "" for any other line."""
    if not any(name in line for name in _HEAD):
        return ""
    for delimiter in ",;\t":
        cells = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))
        if len(cells) > 3 and _HEAD & {cell.strip() for cell in cells}:
            return delimiter
    return ""


def _csv(rows: list[list[str]], where: str) -> list[_Launch]:
    """The launches in one run's table.

    Raises:
        ArtifactError: a page without single launches, or a row that has lost or gained cells.
    """
    header = rows[0]
    if other := next((page for name, page in _OTHER_PAGES.items() if name in header), None):
        raise ArtifactError(where, expected=_LAUNCHES, got=other, fix=_RAW_FIX)
    if "ID" not in header:
        raise ArtifactError(where, expected="a column ID", got=", ".join(header)[:80], fix=_RAW_FIX)
    place, kept = header.index("ID"), list[list[str]]()
    for row in rows[1:]:
        # Skip messages, and empty rows except a first one, as the units may all be empty.
        blank = kept and not any(row)
        if blank or len(row) < 4 or not re.fullmatch(r"\d*", row[min(place, len(row) - 1)]):
            continue
        if len(row) != len(header):
            raise ArtifactError(
                where,
                expected=f"{len(header)} cells in a row, as in the header",
                got=f"{len(row)}, from {', '.join(row)[:80]!r} on",
                fix="keep the quotes around cells that hold the delimiter, or " + _RAW_FIX,
            )
        kept.append(row)
    return _details(header, kept) if "Metric Name" in header else _raw(header, kept, where)


def _triple(text: str) -> tuple[int, int, int] | None:
    numbers = [int(part) for part in re.findall(r"\d+", text)]
    return (numbers[0], numbers[1], numbers[2]) if len(numbers) == 3 else None


def _arch(capability: str) -> str:
    return "sm_" + re.sub(r"\D", "", capability) if re.fullmatch(r"\d+[.,]\d+", capability) else ""


def _raw(header: list[str], rows: list[list[str]], where: str) -> list[_Launch]:
    """Launches of the raw page: a column for each metric; the first row, without an ID, has the units."""
    place, units, launches = header.index("ID"), list[str](), list[_Launch]()
    for row in rows:
        if not row[place]:
            units = row
            continue
        if not units:
            break
        cells = dict(zip(header, row, strict=True))
        label = next((cell for name, cell in cells.items() if "Push/Pop" in name and cell), "")
        report = KernelReport(
            cells["Kernel Name"],
            "csv",
            arch=_arch(cells.get("CC", "")),
            device=cells.get("device__attribute_display_name", ""),
            grid=_triple(cells.get("Grid Size", "")),
            block=_triple(cells.get("Block Size", "")),
            label=_range(label),
        )
        figures = [(n, u, c) for n, u, c in zip(header, units, row, strict=True) if "__" in n]
        launches.append(_Launch(report, figures))
    if not units:
        raise ArtifactError(
            where,
            expected="units in the second row, as Nsight Compute writes them",
            got="a launch" if rows else "nothing",
            fix=_RAW_FIX,
        )
    return launches


def _range(text: str) -> str:
    """The program's own innermost range.

    Each range is quoted: "domain:name:" and six fields of payload, colour and message.
    """
    own = [
        part.split(":") for part in re.split(r'"\s+"', text.strip().strip('"')) if "<default domain>" in part
    ]
    return ":".join(own[-1][1:-6]) if own else text.strip()


def _missing(values: Iterable[str], arch: str) -> tuple[str, ...]:
    """The counters of this chip that a report lacks, or one phrase if it was collected with its own list."""
    read = set(values)
    chip = metrics.CHIPS.get(arch)
    lacking = [name for name in metrics.counters(chip) if name not in read] if chip else []
    return (
        tuple(lacking) if len(lacking) < 20 else ("most counters: it was collected with a list of its own",)
    )


def _details(header: list[str], rows: list[list[str]]) -> list[_Launch]:
    """Launches of the details page as CSV, which has a row for each figure or rule, under printed labels."""
    launches: dict[tuple[str, ...], _Launch] = {}
    for cells in (dict(zip(header, row, strict=True)) for row in rows if any(row)):
        key = tuple(cells.get(name, "") for name in ("Host Name", "Process ID", "ID", "Kernel Name"))
        report = KernelReport(
            cells["Kernel Name"],
            "csv",
            arch=_arch(cells.get("CC", "")),
            grid=_triple(cells.get("Grid Size", "")),
            block=_triple(cells.get("Block Size", "")),
            missing=("counters that the details page does not print",),
        )
        launch = launches.setdefault(key, _Launch(report))
        unit = cells.get("Metric Unit", "")
        if name := _metric(cells["Metric Name"], unit):
            launch.cells.append((name, unit, cells.get("Metric Value", "")))
        if cells.get("Rule Name"):
            rule = NcuRule(cells["Rule Name"], cells.get("Rule Description", ""), cells.get("Rule Type", ""))
            launch.rules.append((rule, cells.get("Estimated Speedup", "")))
    return list(launches.values())


def _metric(label: str, unit: str) -> str | None:
    """The metric for a printed label; None if no fingerprint uses it."""
    return label if "__" in label else LABELS.get((label, None)) or LABELS.get((label, unit == "%"))


def _log(text: str, where: str) -> Iterator[_Launch]:
    """Launches of the details page as printed: a heading for each launch, then tables and rules."""
    launch: _Launch | None = None
    for line in text.splitlines():
        if begins := _HEADER.match(line):
            if launch is not None:
                yield launch
            if ", Invocations " in line:
                raise ArtifactError(where, expected=_LAUNCHES, got=_OTHER_PAGES["Invocations"], fix=_RAW_FIX)
            size = [int(part) for part in begins.groups()[1:7]]
            report = KernelReport(
                begins[1],
                "log",
                arch=_arch(begins[8]),
                grid=(size[0], size[1], size[2]),
                block=(size[3], size[4], size[5]),
                missing=("counters that the log does not print",),
            )
            launch = _Launch(report)
        elif launch is not None and (rule := _RULE.match(line)):
            estimate = _ESTIMATE.search(rule[2])
            launch.rules.append((NcuRule("", rule[2], rule[1]), estimate[1] if estimate else ""))
        elif launch is not None and (row := _ROW.match(line)) and (name := _metric(row[1], row[2] or "")):
            launch.cells.append((name, row[2] or "", row[3]))
    if launch is not None:
        yield launch


def _json(text: str, where: str) -> list[KernelReport]:
    """Reports in JSON: one, a list, or an object with a list; each may come with its workload."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ArtifactError(
            where, expected="JSON", got=str(error), fix="write it again with `profile read --extract`"
        ) from None
    if isinstance(data, dict) and isinstance(data.get("reports"), list):
        data = data["reports"]
    loaded = []
    for item in data if isinstance(data, list) else [data]:
        if isinstance(item, dict) and "report" in item:
            work = load(Workload, item["workload"], where) if item.get("workload") else None
            loaded.append(replace(load(KernelReport, item["report"], where), workload=work))
        else:
            loaded.append(load(KernelReport, item, where))
    return loaded


def _binary(path: Path) -> list[KernelReport]:
    """A report through NVIDIA's package, which must not be older than the Nsight Compute that wrote it."""
    fix = "`pip install 'dsl-kernels-lab[profile]'`, or read its CSV: `ncu --import REPORT --page raw --csv`"
    try:
        import ncu_report
    except ImportError as error:
        raise ToolchainError(
            str(path), expected="the package ncu-report for a binary report", got=str(error), fix=fix
        ) from None
    try:
        report = ncu_report.load_report(str(path))
    except Exception as error:
        raise ArtifactError(
            str(path),
            expected="a report that this ncu-report reads",
            got=str(error) or type(error).__name__,
            fix="install an ncu-report of the version of the ncu that wrote it, or newer",
        ) from None
    return [
        _action(report.range_by_idx(i).action_by_idx(k))
        for i in range(report.num_ranges())
        for k in range(report.range_by_idx(i).num_actions())
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
        sizes = [values.get(f"launch__{stem}_dim_{axis}") for axis in "xyz"]
        return None if None in sizes else (int(sizes[0] or 0), int(sizes[1] or 0), int(sizes[2] or 0))

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
    """Name of the innermost push/pop range that the launch ran in."""
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
