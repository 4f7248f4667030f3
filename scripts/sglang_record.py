"""The table of docs/sglang.md: what scripts/sglang_layer.py saw in SGLang's DSA backend."""

from __future__ import annotations

import json
from pathlib import Path

from case_pages import table

RECORD = Path(__file__).parent.parent / "docs" / "sglang_layer.json"


def layer() -> str:
    """The time and the error of SGLang's layer with our kernels and with its own, slowest ratio first."""
    record = json.loads(RECORD.read_text())
    rows = []
    for row in sorted(
        record["rows"], key=lambda row: -row["ours"]["us"]["layer"] / row["theirs"]["us"]["layer"]
    ):
        ours, theirs = row["ours"], row["theirs"]
        us, other = ours["us"]["layer"], theirs["us"]["layer"]
        rows.append(
            (
                row["mode"],
                row["requests"],
                row["queries"],
                row["heads"],
                f"{row['cache']}, `{row['backend']}`{'' if row['topk_v2'] else ', first top-k'}",
                f"{us:.4g}",
                f"{other:.4g}",
                f"{us / other:.2f}",
                f"{ours['us']['indexer']:.3g}",
                f"{ours['error']:.4f}",
                f"{theirs['error']:.4f}",
                f"{ours['wrong_rows']}, {theirs['wrong_rows']}",
            )
        )
    columns = (
        "step", "requests", "queries", "heads", "cache, back end", "ours, µs", "SGLang's, µs", "share",
        "our indexer, µs", "error, ours", "error, SGLang's", "queries with wrong ids",
    )  # fmt: skip
    where = f"{record['gpu']}, {record['date']}, SGLang {record['sglang']}, torch {record['torch']}."
    return f"{where}\n\n{table(columns, rows)}"
