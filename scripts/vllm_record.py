"""The tables of docs/vllm.md: what scripts/vllm_engine.py saw in vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from case_pages import table

RECORD = Path(__file__).parent.parent / "docs" / "vllm_engine.json"
WHO = ("ours", "theirs")


def _part(name: str) -> tuple[str, list[dict[str, Any]]]:
    """Where a part was run, in words, and its rows."""
    part = json.loads(RECORD.read_text())[name]
    where = f"{part['gpu']}, {part['date']}, vLLM {part['vllm']}, torch {part['torch']}"
    return f"{where}, commit {part['commit']} (+: with changed files).", part["rows"]


def checked() -> str:
    """Both backends' tokens and log probabilities in the engine."""
    where, found = _part("checked")
    rows = [
        (
            row["cache"],
            row["heads"],
            f"{row['same']} of {row['tokens']}",
            *(f"{row['error'][who]['mean']:.3f}, {row['error'][who]['most']:.2f}" for who in WHO),
            f"{row['apart']['mean']:.3f}, {row['apart']['most']:.2f}",
            *(f"{row['same_again'][who]} of {row['tokens']}" for who in WHO),
        )
        for row in found
    ]
    columns = (
        "cache",
        "heads",
        "same tokens",
        "error, ours",
        "error, FlashMLA's",
        "between the two",
        "the same again, ours",
        "the same again, FlashMLA's",
    )
    return f"{where}\n\n{table(columns, rows)}"


def timed() -> str:
    """The time of an engine's decode step with either backend, slowest ratio first."""
    where, found = _part("timed")
    rows = []
    for row in sorted(found, key=lambda row: -median(row["ours"]) / median(row["theirs"])):
        ours, theirs = (median(row[who]) for who in WHO)
        spread = (f"{min(row[who]):.1f} to {max(row[who]):.1f}" for who in WHO)
        rows.append(
            (
                row["cache"],
                row["batch"],
                *(f"{ms:.2f} ({s})" for ms, s in zip((ours, theirs), spread, strict=True)),
                f"{ours / theirs:.2f}",
            )
        )
    columns = ("cache", "sequences", "ours, ms", "FlashMLA's, ms", "ours to FlashMLA's")
    return f"{where}\n\n{table(columns, rows)}"


def layer(part: str) -> str:
    """What a model's layer gave and took with either one's functions, slowest ratio first."""
    where, found = _part(part)
    rows = [
        (
            row["step"],
            row["queries"],
            row["heads"],
            *(f"{row['error'][who]:.4f}" for who in WHO),
            *(f"{row['us'][who]:.1f}" for who in WHO),
            f"{row['us']['ours'] / row['us']['theirs']:.2f}",
        )
        for row in sorted(found, key=lambda row: -row["us"]["ours"] / row["us"]["theirs"])
    ]
    columns = (
        "step",
        "queries",
        "heads",
        "error, ours",
        "error, FlashMLA's",
        "ours, us",
        "FlashMLA's, us",
        "ours to FlashMLA's",
    )
    return f"{where}\n\n{table(columns, rows)}"
