"""What docs/cases and docs/claims.md show of the records: figures, counters, stalls and verdicts."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dsl_kernels import variants
from dsl_kernels_lab.cases import base as case_records
from dsl_kernels_lab.cases import claims as case_claims

CASES = Path(__file__).resolve().parent.parent / "docs" / "cases"


def table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    names = list(columns)
    lines = [names, ["---"] * len(names), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


# Columns of a case's figures, in their order, with their heads.
FIGURES = {
    "us": "µs", "a_us": "unchanged µs", "b_us": "changed µs", "ratio": "ratio", "noise": "noise band",
    "verdict": "verdict", "gbps": "GB/s", "per_second": "trajectories a second",
    "of_eager": "of torch's time",
    "tflops": "TFLOP/s", "h2d_gbps": "to the GPU GB/s", "d2h_gbps": "back GB/s", "kernel_us": "kernel µs",
    "without_us": "normal µs", "with_us": "persisting µs", "lightning_indexer": "scoring µs",
    "topk_selector": "selection µs", "sparse_mla": "attention µs", "engine": "engine", "warps": "warps",
    "depth": "rows a warp", "registers": "registers", "spills": "spills", "setting": "setting",
    "cycles": "cycles a tile", "share": "share", "source": "source", "error": "error",
}  # fmt: skip
# Too many rows for a page: the picture shows them.
DRAWN_ONLY = ("sweep", "link", "read", "timeline")
COUNTERS = {
    "gpu__time_duration.sum": "ns",
    "sm__cycles_elapsed.max": "cycles",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM %",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": "memory %",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM %",
    "lts__t_sector_hit_rate.pct": "L2 hit %",
    "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy %",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed": "tensor pipe %",
    "launch__registers_per_thread": "registers",
}


VARIANT_ID = re.compile(r"\b[a-z_]+__(?:tilelang|cutedsl)_sm\d+a__\w+")


def figure(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return "-" if value is None else str(value).splitlines()[0][:90]


def tables(name: str) -> str:
    """A case's figures and counters, and whether the counters met its expectations, as Markdown."""
    record = case_records.read(CASES / f"{name}.json")
    where = record["environment"]
    parts = [
        f"{where.get('gpu')}, driver {where.get('driver')}, torch {where.get('torch')}, {where.get('date')}, "
        f"{record['seconds']:.0f} s: `{where['command']}`",
        recorded_at(record),
    ]
    for kind in dict.fromkeys(row.get("kind") for row in record["rows"]):
        rows = [
            {**row, **row.get("ops", {}), **rates(row, record)}
            for row in record["rows"]
            if row.get("kind") == kind
        ]
        columns = [key for key in FIGURES if any(row.get(key) is not None for row in rows)]
        if kind in DRAWN_ONLY or not columns:
            continue
        checks = [{True: "yes", False: "no", None: "-"}[row.get("ok")] for row in rows]
        cells = [
            [row["name"], check, *(figure(row.get(key)) for key in columns)]
            for row, check in zip(rows, checks, strict=True)
        ]
        parts.append(
            table([kind.replace("_", " "), "result right", *(FIGURES[key] for key in columns)], cells)
        )
    if record["counters"]:
        rows = [
            [launch, *(figure(counted["metrics"].get(key)) for key in COUNTERS), stalls(counted["metrics"])]
            for launch, counted in record["counters"].items()
        ]
        parts.append(table(["launch", *COUNTERS.values(), "most time in"], rows))
        parts += stall_table(record["counters"])
    if record["expected"]:
        rows = [
            [
                e["launch"],
                f"`{e['metric']}`",
                f"{e['relation']} {', '.join(e['wanted']) if isinstance(e['wanted'], list) else e['wanted']}",
                figure(e["got"]),
                {True: "yes", False: "**no**", None: "not read"}[e["holds"]],
                e["why"],
            ]
            for e in record["expected"]
        ]
        parts.append(table(["launch", "counter", "expected", "read", "as expected", "it means"], rows))
    parts += [f"Note: {note.splitlines()[0][:200]}" for note in record["notes"]]
    return "\n\n".join(parts)


def rates(row: dict[str, Any], record: dict[str, Any]) -> dict[str, object]:
    """Trajectories per second of a row, and its time relative to torch's own operations."""
    if not row.get("trajectories") or not row.get("us"):
        return {}
    eager = [r["us"] for r in record["rows"] if r["name"] == "eager"]
    columns: dict[str, object] = {"per_second": f"{row['trajectories'] / row['us']:.2f}M"}
    return {**columns, "of_eager": row["us"] / eager[0]} if eager else columns


def recorded_at(record: dict[str, Any]) -> str:
    """The commit of a record, and the kernels of it that no longer exist."""
    commit = record["environment"]["commit"]
    dirty = ", with changes that were not committed" if commit.endswith("+") else ""
    sentence = (
        f"Recorded at commit {commit.rstrip('+')}{dirty}. Kernels that changed since may take other times"
    )
    known = {v.id for v in variants.variants()}
    text = json.dumps(record)
    # A kernel is named for its variant, with a suffix of the DSL.
    named = {re.sub(r"_(kernel|0)$", "", name) for name in VARIANT_ID.findall(text)}
    gone = ", ".join(f"`{name}`" for name in sorted(named - known))
    return f"{sentence}; the committed set no longer holds {gone}." if gone else f"{sentence}."


def stalls(metrics: dict[str, float]) -> str:
    shares = list(case_records.stall_shares(metrics).items())[:3]
    return ", ".join(f"{name} {100 * share:.0f} %" for name, share in shares) or "-"


# A page omits stall reasons below this many cycles per issue in every launch.
LEAST_CYCLES = 0.05


def stall_table(counters: dict[str, Any]) -> list[str]:
    """Cycles that a warp waits per issued instruction, and their share, by reason; empty without counters."""
    cycles = {launch: case_records.stall_cycles(c["metrics"]) for launch, c in counters.items()}
    reasons = {name for each in cycles.values() for name, value in each.items() if value >= LEAST_CYCLES}
    if not reasons:
        return []
    most = {name: max(each.get(name, 0.0) for each in cycles.values()) for name in reasons}
    rows = []
    for name in sorted(reasons, key=lambda name: (-most[name], name)):
        of = ((each.get(name), sum(each.values())) for each in cycles.values())
        rows.append([name, *("-" if c is None else f"{c:.2f} ({100 * c / whole:.0f} %)" for c, whole in of)])
    rows.append(["all", *(f"{sum(each.values()):.2f}" for each in cycles.values())])
    return [
        "Cycles of a warp for each instruction it issues, by what it waits for:",
        table(["stall", *cycles], rows),
    ]


def claims() -> str:
    """Every claim, one table per source."""
    judged = case_claims.table(case_claims.records_in(CASES))
    counts = {verdict: sum(row["verdict"] == verdict for row in judged) for verdict in case_claims.VERDICTS}
    parts = [
        f"{len(judged)} claims: " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items()) + "."
    ]
    commits = {row["command"].split()[-1]: row["commit"] for row in judged if row["commit"]}
    by_commit = defaultdict(list)
    for case, commit in sorted(commits.items()):
        by_commit[commit.replace("+", " with changes that were not committed")].append(case)
    parts.append(
        "Records by commit, since when kernels may have changed: "
        + "; ".join(f"{commit}: {', '.join(names)}" for commit, names in by_commit.items())
        + "."
    )
    for source, title in case_claims.SOURCES.items():
        rows = [
            [
                row["statement"],
                f"**{row['verdict']}**",
                row["measured"],
                f"`{row['command'].removeprefix('python -m dsl_kernels ')}`",
            ]
            for row in sorted(judged, key=lambda row: case_claims.VERDICTS.index(row["verdict"]))
            if row["source"] == source
        ]
        parts += [f"## {source}: {title}", table(["claim", "verdict", "measured", "command"], rows)]
    return "\n\n".join(parts)
