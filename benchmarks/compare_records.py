"""Compare two trees: the ratio of their times at every point that `bench --out` wrote for both.

    python -m dsl_kernels bench --grid core --no-baseline --out before.jsonl     # in one tree, on one GPU
    python -m dsl_kernels bench --grid core --no-baseline --out after.jsonl      # in the other, in turns
    python benchmarks/compare_records.py before.jsonl after.jsonl

A file may contain several runs of a point; the fastest counts. The table is Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

# The fields of a record that identify a point.
SIZES = (
    "b", "t", "rows", "s", "sq", "len", "skv", "n", "m", "d", "heads", "kv_heads", "dim", "causal", "next_n",
    "k",
    "topk", "pages", "ids", "scores", "targets",
)  # fmt: skip


def fastest(path: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """The fastest record of each point of a file."""
    records: dict[tuple[Any, ...], dict[str, Any]] = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        sizes = " ".join(f"{name}={record[name]}" for name in SIZES if record.get(name) is not None)
        point = (record["op"], record["form"], sizes)
        if point not in records or record["us"] < records[point]["us"]:
            records[point] = record
    return records


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    given = parser.parse_args()
    before, after = fastest(given.before), fastest(given.after)
    ratios = defaultdict(list)
    print("| op | point | before, us | after, us | ratio |\n| --- | --- | --- | --- | --- |")
    shared = [(after[point]["us"] / before[point]["us"], point) for point in after if point in before]
    for ratio, point in sorted(shared, reverse=True):
        ratios[point[0]].append(ratio)
        times = f"{before[point]['us']:.2f} | {after[point]['us']:.2f}"
        print(f"| {point[0]} | {point[1]} {point[2]} | {times} | {ratio:.3f} |")
    print("\n| op | points | geometric mean | slowest | fastest |\n| --- | --- | --- | --- | --- |")
    for op, values in sorted(ratios.items()):
        mean = math.exp(sum(map(math.log, values)) / len(values))
        print(f"| {op} | {len(values)} | {mean:.3f} | {max(values):.3f} | {min(values):.3f} |")


if __name__ == "__main__":
    main()
