"""Scoring that counts selection's first digits, beside the two kernels that share nothing, on this GPU.

    python benchmarks/fused_counts.py [--batches 1,16,64] [--contexts 4096,32768,131072] [--out counts.jsonl]

Prints a Markdown table of times under a CUDA graph: scoring alone and scoring with selection behind it, as they are
selected and with counts, each schedule of selection that takes these. Both select the same ids, and counts are left zero.
The schedules with counts are in no committed set and no sweep: they are rendered here, and compiled.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from codegen.emit import emit
from codegen.sweep import instance_of
from dsl_kernels import executors, ops, registry, variants
from dsl_kernels.dsa.steps import StepSize, draw
from dsl_kernels.errors import DslKernelError, WrongResultError
from dsl_kernels.ops.workspace import stream_of
from dsl_kernels.problems.base import Workload
from dsl_kernels.problems.lightning_indexer import PAGE
from dsl_kernels.problems.topk_selector import DIGITS
from dsl_kernels.timing import bench, measure
from dsl_kernels.verification import trial

TOPK = 2048
EXECUTOR = "cuda"
# Committed variants, and what makes them count or take counts.
COUNTED = {
    "lightning_indexer__cutedsl_sm90a__decode_h64_q1_t64_st3_c4_e1": {"mode": "counted"},
    "topk_selector__cutedsl_sm90a__g1_t512_r8_c1": {"counts": "counted"},
    "topk_selector__cutedsl_sm90a__g1_t1024_r16_c1_s16": {"counts": "counted"},
}
FORM = Workload("counted", "real", "counted", {})
COLUMNS = (
    "B",
    "context",
    "scoring us",
    "scoring + selection us",
    "scoring that counts us",
    "with selection from counts us",
    "difference us",
)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def rendered(folder: Path) -> dict[str, list[variants.Variant]]:
    """The schedules with counts, by operation."""
    emit([instance_of(variants.get(name), **changed) for name, changed in COUNTED.items()], folder)
    found: dict[str, list[variants.Variant]] = {}
    for variant in variants.in_folder(folder):
        found.setdefault(variant.op, []).append(variant)
    return found


def launched(
    variant: variants.Variant, inputs: dict[str, Any], shared: dict[str, torch.Tensor]
) -> Callable[[], None]:
    """A launch that no registry stands before, on `shared` outputs and counts."""
    operands, dims = trial.allocate(variant, FORM, inputs)
    operands.update(shared)
    launcher = executors.get(EXECUTOR).prepare(variant)
    device = shared["digit_counts"].device

    def call() -> None:
        launcher(operands, dims, stream_of(device))

    return call


def measure_point(batch: int, context: int, made: dict[str, list[variants.Variant]]) -> dict[str, Any]:
    """One row.

    Raises:
        WrongResultError: the two ways select other ids, or counts are left.
    """
    size = StepSize(batch=batch, context=context, heads=8, topk=64)
    turns = min(16, bench.turns(batch * context * 132.0))
    kept = {"kv": torch.empty(1, PAGE, 576, dtype=torch.bfloat16, device=measure.DEVICE)}
    sets = draw(measure.pool(size, turns), device=measure.DEVICE, sets=turns, given=kept)
    counts = torch.zeros(batch, DIGITS, dtype=torch.int32, device=measure.DEVICE)
    score, select, ids, fused = [], [], [], []
    for t in (s.tensors for s in sets):
        cache = t["k_index_cache"].view(torch.uint8).view(t["k_index_cache"].shape[0], -1)
        logits = torch.empty(batch, 1, t["block_table"].shape[1] * PAGE, device=measure.DEVICE)
        out = torch.empty(batch, TOPK, dtype=torch.int32, device=measure.DEVICE)
        lens, rows = t["seq_lens"].view(batch), logits.view(batch, -1)
        index = (t["q_index"], t["k_index_cache"], t["weights"], t["seq_lens"], t["block_table"])
        score.append(partial(ops.lightning_indexer, *index, out=logits, skip_below=TOPK))
        pages = {"block_table": t["block_table"], "page_size": PAGE, "next_n": 1}
        select.append(partial(ops.topk_selector, rows, lens, TOPK, out=out, **pages))
        ids.append(out)
        scored = {
            "q": t["q_index"], "k_cache": cache, "weights": t["weights"], "seq_lens": t["seq_lens"],
            "block_table": t["block_table"], "skip_below": TOPK,
        }  # fmt: skip
        chosen = {
            "logits": rows,
            "row_starts": torch.zeros_like(lens),
            "row_ends": lens,
            **pages,
            "absolute": 0,
            "k": TOPK,
        }
        fused.append(
            (
                scored,
                chosen,
                {"logits": logits, "digit_counts": counts},
                {"indices": out, "digit_counts": counts},
            )
        )
    calls = [call for pair in zip(score, select, strict=True) for call in pair]
    for call in calls:
        call()
    wanted = [out.clone() for out in ids]
    counting = [launched(made["lightning_indexer"][0], scored, shared) for scored, _, shared, _ in fused]
    pairs = {}
    for variant in made["topk_selector"]:
        workload_call = trial.call_of(variant, FORM, {**fused[0][1], "digit_counts": counts})
        if registry.refusal(workload_call, variant, named=variant.id) is not None:
            continue
        taking = [launched(variant, chosen, shared) for _, chosen, _, shared in fused]
        behind = [call for pair in zip(counting, taking, strict=True) for call in pair]
        for call, out in zip(behind, (out for out in ids for _ in range(2)), strict=True):
            out.fill_(-7)
            call()
        if counts.any() or not all(torch.equal(a, b) for a, b in zip(ids, wanted, strict=True)):
            raise WrongResultError(
                variant.id,
                expected="the ids of separate kernels, and counts left zero",
                got="others",
                fix="report it",
            )
        pairs[variant.id] = 2 * bench.graph_time(behind).us
    best = min(pairs, key=lambda name: pairs[name])
    figures = {
        "scoring": bench.graph_time(score).us,
        "separate": 2 * bench.graph_time(calls).us,
        "counting": bench.graph_time(counting).us,
        "fused": pairs[best],
    }
    return {"batch": batch, "context": context, **figures, "variant": best, "all": pairs}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=numbers, default=[1, 16, 64])
    parser.add_argument("--contexts", type=numbers, default=[4096, 32768, 131072])
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    try:
        print(f"{bench.require_gpu()}, torch {torch.__version__}, 64 index heads, top-k {TOPK}\n")
    except DslKernelError as error:
        print(error, file=sys.stderr)
        return 2
    records = bench.Records(options.out)
    print("| " + " | ".join(COLUMNS) + " |\n" + "|" + "---|" * len(COLUMNS))
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        made = rendered(Path(folder))
        for context, batch in product(options.contexts, options.batches):
            row = records.add(measure_point(batch, context, made))
            times = [f"{row[name]:.2f}" for name in ("scoring", "separate", "counting", "fused")]
            print(
                f"| {batch} | {context} | {' | '.join(times)} | {row['fused'] - row['separate']:+.2f} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
