"""The decode step on this GPU: T in {1, 4, 16, 64} at 32K and 128K context, checked and timed.

    python benchmarks/decode_step.py [--out step.jsonl] [--no-check] [--queries 1,4] [--contexts 32768]
    python benchmarks/decode_step.py --queries "" --prompts 4096     # scoring and selection of a prompt

Prints a Markdown table of times under a CUDA graph: the whole step, its three ops alone, what attention adds
to the step (the step with it minus the step without it), the Triton attention, and the times that the same
card needs to gather the selected rows and to read the index pages. Inputs rotate past L2; T is the number of
sequences. --prompts adds scoring and selection of a prompt of that many rows, as `dsa.prefill` makes them,
beside the two kernels run one after the other.
"""

from __future__ import annotations

import argparse
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsl_kernels import ops
from dsl_kernels.errors import DslKernelError
from dsl_kernels_lab import steps
from dsl_kernels_lab.steps import check
from dsl_kernels_lab.timing import bench, measure

COLUMNS = (
    "T",
    "context",
    "step us",
    "indexer us",
    "top-k us",
    "attention us",
    "adds to the step us",
    "Triton attention us",
    "attention / Triton",
    "gather us",
    "attention / gather",
    "page read us",
    "indexer / read",
    "check",
)

PROMPT = (
    "queries",
    "context",
    "scoring us",
    "selection us",
    "one after the other us",
    "scoring + selection us",
    "of the two",
    "noise",
    "check",
)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def measure_point(queries: int, context: int, options: argparse.Namespace) -> dict[str, Any]:
    """Check a step and time it, as one row of the table."""
    size = steps.StepSize(batch=queries, context=context, heads=options.heads, kv=options.kv)
    sets = measure.step_sets(size)
    row: dict[str, Any] = {"t": queries, "context": context, "heads": options.heads, "kv": options.kv}
    if options.check:
        row |= checks(sets[0])
    row["time"] = measure.time_step(sets, baseline=options.baseline)
    row["used"] = {item.variant.op: item.variant.id for item in steps.used()}
    return row


def measure_prompt(rows: int, context: int, options: argparse.Namespace) -> dict[str, Any]:
    """Check a prompt's step, and time its scoring and selection, as one row of the table."""
    size = steps.StepSize("prefill", rows=rows, context=context, heads=options.heads, kv=options.kv)
    (inputs,) = measure.step_sets(size)
    row: dict[str, Any] = {"rows": rows, "context": context, "kind": "prefill"}
    if options.check:
        row |= checks(inputs)
    row["time"] = {**measure.time_prompt(inputs), "notes": []}
    row["used"] = {item.variant.op: item.variant.id for item in steps.used()}
    return row


def checks(inputs: steps.StepInputs) -> dict[str, Any]:
    """Compare a step with the references."""
    ops.clear()
    _, comparisons = check.run_checked(inputs)
    return {
        "ok": all(comparison.ok for comparison in comparisons.values()),
        "checks": {op: comparison.figures for op, comparison in comparisons.items()},
        "failures": [
            f"{op}: {text}" for op, comparison in comparisons.items() for text in comparison.failures
        ],
    }


def prompt_cells(row: dict[str, Any]) -> list[str]:
    time = row["time"]
    figures = (f"{time[name]:.0f}" for name in ("scoring", "selection", "apart", "together"))
    return [
        str(row["rows"]),
        str(row["context"]),
        *figures,
        f"{time['ratio']:.3f}",
        f"{time['noise']:.3f}",
        verdict(row),
    ]


def verdict(row: dict[str, Any]) -> str:
    return {True: "ok", False: "WRONG", None: "-"}[row.get("ok")]


def cells(row: dict[str, Any]) -> list[str]:
    time, parts, limits = row["time"], row["time"]["ops"], row["time"]["ceilings"]
    triton = (time.get("baseline") or {}).get("us")
    attention, indexer = parts["sparse_mla"], parts["lightning_indexer"]
    figures = (
        time["step"]["us"],
        indexer,
        parts["topk_selector"],
        attention,
        time["marginal"],
        triton,
        _ratio(attention, triton),
        limits["gather"],
        _ratio(attention, limits["gather"]),
        limits["read"],
        _ratio(indexer, limits["read"]),
    )
    return [
        str(row["t"]),
        str(row["context"]),
        *("-" if f is None else f"{f:.2f}" for f in figures),
        verdict(row),
    ]


def _ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a and b else None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queries", type=numbers, default=[1, 4, 16, 64])
    parser.add_argument("--prompts", type=numbers, default=[], help="rows of prompts to time as well")
    parser.add_argument("--contexts", type=numbers, default=[32768, 131072])
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv", default="bf16", choices=steps.CACHES)
    parser.add_argument("--no-check", dest="check", action="store_false")
    parser.add_argument("--no-baseline", dest="baseline", action="store_false")
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    try:
        gpu = bench.require_gpu()
    except DslKernelError as error:
        print(error, file=sys.stderr)
        return 2
    records = bench.Records(options.out)
    print(f"{gpu}, torch {torch.__version__}, heads {options.heads}, topk 2048, kv {options.kv}\n")
    right = True
    with torch.inference_mode():
        for columns, counts, timed, spelled in (
            (COLUMNS, options.queries, measure_point, cells),
            (PROMPT, options.prompts, measure_prompt, prompt_cells),
        ):
            if counts:
                print("| " + " | ".join(columns) + " |")
                print("|" + "---|" * len(columns))
            for context, count in product(options.contexts, counts):
                try:
                    row = records.add(timed(count, context, options))
                except (DslKernelError, RuntimeError) as error:
                    print(f"| {count} | {context} | {error} |", flush=True)
                    right = False
                    continue
                right = right and row.get("ok") is not False
                print("| " + " | ".join(spelled(row)) + " |", flush=True)
                for line in (*row.get("failures", ()), *row["time"]["notes"]):
                    print(f"{count} x {context}: {line}", file=sys.stderr)
                torch.cuda.empty_cache()
    for op, variants in used_variants(records.rows).items():
        print(f"\n{op}: {', '.join(variants)}")
    return 0 if right else 1


def used_variants(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The variants that served the rows, by op."""
    by_op: dict[str, list[str]] = {}
    for row in rows:
        for op, variant in row["used"].items():
            if variant not in by_op.setdefault(op, []):
                by_op[op].append(variant)
    return by_op


if __name__ == "__main__":
    sys.exit(main())
