"""Attention with 64 heads on M on this GPU, by splits per query, beside the launch rule's choice.

    python benchmarks/attention_parts.py [--queries 8,16,37] [--out parts.jsonl]
    python benchmarks/attention_parts.py --rule-only        # in each of two trees, in turns, to compare them

Each time follows a check of some rows, and is taken under a CUDA graph whose turns rotate past L2; top-k is
2048. "on" distributes pairs of tiles over CTAs regardless of queries. The variants are CuTe DSL's for Hopper;
`DSL_KERNELS_BUNDLE_DIR` may provide them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsl_kernels import ops
from dsl_kernels.errors import DslKernelError
from dsl_kernels.kernels.sparse_mla import policy as sparse_mla
from dsl_kernels_lab.timing import bench, grids

VARIANTS = {
    ("bf16", 64): "h64_bf16_bt64_st2_cl1_hb64",
    ("bf16", 128): "h128_bf16_bt64_st2_cl1_hb64",
    ("fp8", 64): "h64_fp8_bt64_st2_cl1_hb64",
    ("fp8", 128): "h128_fp8_bt64_st2_cl1_hb64_ex2",
}
MOST = 16


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def on_and_on(
    t: int, blocks: int, units: int, splits: int | None, gpu: Any, costs: Any, *, walk: bool
) -> tuple[int, int]:
    """CTAs, and the parts of a query, if units are distributed over CTAs regardless of queries."""
    share = -(-t * units // max(1, gpu.sms // blocks))
    ctas = -(-t * units // share)
    share = -(-t * units // ctas)
    parts = 1 if share % units == 0 else (units - 2) // share + 2
    return ctas, parts


def timed(point: grids.Point, fixture: grids.Fixture, variant: str, launch: dict[str, int]) -> float | str:
    """Microseconds of a launch, or why it was refused."""
    ops.clear()
    try:
        grids.check_variant(point, fixture, variant, launch)
        return min(bench.graph_time(fixture.calls(variant, launch), replays=15).us for _ in range(2))
    except DslKernelError as error:
        return str(error)


def rows(t: int, rule_only: bool) -> Iterator[dict[str, Any]]:
    for (form, heads), knobs in VARIANTS.items():
        point = grids.Point("sparse_mla", form, {"t": t, "heads": heads, "pages": 4096, "topk": 2048})
        variant, fixture = f"sparse_mla__cutedsl_sm90a__{knobs}", grids.prepare(point)
        times = {"rule": timed(point, fixture, variant, {})}
        if not rule_only:
            each = {str(n): timed(point, fixture, variant, {"splits": n}) for n in range(1, MOST + 1)}
            times |= {parts: us for parts, us in each.items() if isinstance(us, float)}
            with mock.patch.object(sparse_mla, "share_units", on_and_on):
                times["on"] = timed(point, fixture, variant, {})
        yield {"form": form, "heads": heads, "t": t, "us": times}
        del fixture
        torch.cuda.empty_cache()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    queries = [4, 8, 12, 16, 20, 24, 32, 37, 48, 64, 72, 96, 128, 200]
    parser.add_argument("--queries", type=numbers, default=queries)
    parser.add_argument("--rule-only", action="store_true", help="time only the launch rule's choice")
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    try:
        bench.require_gpu()
    except DslKernelError as error:
        print(error, file=sys.stderr)
        return 1
    for t in options.queries:
        with torch.inference_mode():
            for row in rows(t, options.rule_only):
                cells = (
                    f"{parts}: {us:.2f}" if isinstance(us, float) else f"{parts}: {us}"
                    for parts, us in row["us"].items()
                )
                print(row["form"], f"{row['heads']} heads, T={t}:", ", ".join(cells), flush=True)
                if options.out:
                    with options.out.open("a") as file:
                        file.write(json.dumps({**row, "environment": bench.environment()}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
