"""The clock beside measurements: every point of a GPU's tuned table, and the cost model on the same points.

    python benchmarks/clock_acceptance.py                                    # the H200's table
    python benchmarks/clock_acceptance.py --gpu H100 --step 3 --predict FILE # predict before measuring
    python benchmarks/clock_acceptance.py --gpu H100 --table tuned.json --predicted FILE

For each operation and form: the rank correlation (Spearman) of predicted and measured times among the
variants of a point, for points with at least three variants, where times within 3 % count as ties; the time
of the predicted best relative to the best; and the error of all times. The table is Markdown.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dsl_kernels
from dsl_kernels import clock, models, problems, programs, registry, variants
from dsl_kernels.arch import GPUS
from dsl_kernels.cli.catalog import complete_dims
from dsl_kernels.kernels.lightning_indexer import blocks
from dsl_kernels.kernels.sparse_mla.forms import PAGED
from dsl_kernels_lab.timing import bench

TIE = 1.03
SHIPPED = Path(dsl_kernels.__file__).parent / "tuned" / "nvidia_h200.json"


@dataclass
class Seen:
    """The figures of one model over the points of a form."""

    correlations: list[float] = field(default_factory=list)
    choices: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    worst: list[tuple[float, str]] = field(default_factory=list)

    def note(self, title: str, measured: Sequence[float], predicted: Sequence[float]) -> None:
        self.ratios += [p / m for p, m in zip(predicted, measured, strict=True)]
        chosen = measured[min(range(len(predicted)), key=predicted.__getitem__)] / min(measured)
        self.choices.append(chosen)
        self.worst.append((chosen, title))
        if len(measured) >= 3 and (correlation := spearman(measured, predicted)) is not None:
            self.correlations.append(correlation)

    def cells(self) -> Iterator[str]:
        yield str(len(self.choices))
        known = self.correlations
        yield f"{statistics.median(known):.2f}, {statistics.mean(known):.2f}" if known else "-"
        yield f"{statistics.mean(self.choices):.3f}, {max(self.choices):.2f}"
        yield f"{100 * statistics.mean(abs(ratio - 1) for ratio in self.ratios):.0f} %"
        yield f"{statistics.median(self.ratios):.2f}"


def ranks(values: Sequence[float], tie: float) -> list[float]:
    """The rank of each value; those within a factor `tie` of the least of their group share its mean."""
    order, ranking = sorted(range(len(values)), key=values.__getitem__), [0.0] * len(values)
    first = 0
    while first < len(order):
        last = first
        while last + 1 < len(order) and values[order[last + 1]] <= values[order[first]] * tie:
            last += 1
        for place in order[first : last + 1]:
            ranking[place] = (first + last) / 2
        first = last + 1
    return ranking


def spearman(measured: Sequence[float], predicted: Sequence[float]) -> float | None:
    """The rank correlation; None if all measurements tie."""
    x, y = ranks(measured, TIE), ranks(predicted, 1 + 1e-6)
    if len(set(x)) == 1:
        return None
    return statistics.correlation(x, y) if len(set(y)) > 1 else 0.0


def call_of(entry: dict[str, Any], gpu: str) -> registry.Call:
    """The call of a point of a table."""
    problem, sizes = problems.get(entry["op"]), dict(entry["bucket"])
    if "max_len" in sizes:
        sizes["len"] = sizes.pop("max_len")
    if entry["form"] in PAGED:
        # A bucket counts the ids of both scopes; here all belong to the first.
        sizes["extra_topk"] = 0
    if entry["form"] == "decode_blocks":
        # A bucket counts keys, whatever the entries name; here all entries name blocks.
        sizes |= {"page_size": 64, "block_size": blocks.BLOCK}
    if entry["form"].startswith("decode_any"):
        # A bucket counts keys, whatever the size of pages.
        sizes["page_size"] = 64
    dims, _ = complete_dims(programs.get(entry["op"]), entry["form"], problem.dims_of(entry["form"], sizes))
    dims |= {name: 0 for name in ("skip_below",) if name in dims}
    return registry.Call(entry["op"], entry["form"], GPUS[gpu].arch.name, dims, GPUS[gpu].device)


def walked(call: registry.Call, of: list[variants.Variant]) -> list[float] | None:
    """Predictions of cached walks, if they are what the registry ranks unmeasured variants by; else None."""
    sizes = registry.assumed(call, registry.deciding(call))
    model, predictions = models.predict(call, of, sizes)
    return [us or math.inf for us, _ in predictions] if model == models.CLOCK else None


def write_predictions(path: Path, gpu: str, entries: list[dict[str, Any]]) -> None:
    """Record predictions for every committed variant that takes the call of a point."""
    points = []
    for entry in entries:
        call = call_of(entry, gpu)
        takes = [v for v in variants.variants(entry["op"]) if registry.refusal(call, v) is None]
        us = {variant.id: round(clock.predict(call, variant).us, 2) for variant in takes}
        points.append({"op": entry["op"], "form": entry["form"], "bucket": entry["bucket"], "us": us})
    record = {
        "gpu": GPUS[gpu].device,
        "commit": bench.commit(),
        "command": "python " + " ".join(sys.argv),
        "model": True,
        "points": points,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


def predictions_of(path: Path) -> dict[tuple[str, str, str], dict[str, float]]:
    """Recorded predictions, by operation, form and sizes."""
    points = json.loads(path.read_text())["points"]
    return {(p["op"], p["form"], json.dumps(p["bucket"], sort_keys=True)): p["us"] for p in points}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--table", type=Path, default=SHIPPED)
    parser.add_argument("--gpu", choices=sorted(GPUS), default="H200")
    parser.add_argument("--op", action="append", choices=clock.walked())
    parser.add_argument("--step", type=int, default=1, help="take every STEP-th point")
    parser.add_argument(
        "--predict", type=Path, metavar="FILE", help="write predictions to FILE, and compare nothing"
    )
    parser.add_argument(
        "--predicted", type=Path, metavar="FILE", help="compare the predictions recorded in FILE"
    )
    parser.add_argument("--worst", type=int, default=0, help="list this many points whose choice loses most")
    given = parser.parse_args()
    entries = [
        entry
        for entry in json.loads(given.table.read_text())["entries"]
        if entry["op"] in (given.op or clock.walked())
    ][:: given.step]
    if given.predict:
        write_predictions(given.predict, given.gpu, entries)
        return
    known = {variant.id: variant for variant in variants.variants()}
    written = predictions_of(given.predicted) if given.predicted else None
    seen: dict[tuple[str, str, str], Seen] = defaultdict(Seen)
    for entry in entries:
        key = entry["op"], entry["form"], json.dumps(entry["bucket"], sort_keys=True)
        if written is not None and key not in written:
            continue
        call = call_of(entry, given.gpu)
        names = [name for name in entry["us"] if name in (known if written is None else written[key])]
        measured = [entry["us"][name] for name in names]
        by_model = {
            "clock": [
                written[key][name] if written else clock.predict(call, known[name]).us for name in names
            ],
            "cached walks": walked(call, [known[name] for name in names]),
            "cost model": [registry.predicted_us(call, known[name]) or math.inf for name in names],
        }
        for title, predicted in by_model.items():
            if predicted is None:
                continue
            seen[entry["op"], entry["form"], title].note(str(entry["bucket"]), measured, predicted)
    print(
        "| op, form | model | points | Spearman, median and mean | chosen to best, mean and worst | "
        "mean error "
        "| predicted to measured, median |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    timings = sum(len(figures.ratios) for (_, _, title), figures in seen.items() if title == "clock")
    for (op, form, title), figures in seen.items():
        print(f"| {op} {form} | {title} | {' | '.join(figures.cells())} |")
        for chosen, point in sorted(figures.worst, reverse=True)[: given.worst if title == "clock" else 0]:
            print(f"| | | {point} | | {chosen:.2f} | | |")
    print(f"\n{timings:,} timings of {given.gpu}'s table.")


if __name__ == "__main__":
    main()
