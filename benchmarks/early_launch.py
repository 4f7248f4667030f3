"""Attention of whole queries on this GPU, launched as the kernel before it ends or after it; and why.

    python benchmarks/early_launch.py [--queries 48,72,96] [--heads 16,64] [--form bf16 fp8] [--steps 64,96]
        [--out FILE]

CTAs of an early launch take SMs as these fall free. The second table is of a kernel that only gathers rows,
the same bytes per CTA whatever the number of CTAs: how many pairs of SMs (TPCs) ran two CTAs, and how long it
took. Times are those of a CUDA graph; for the bare gather, those between two events around consecutive
launches.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsl_kernels import ops
from dsl_kernels.errors import DslKernelError
from dsl_kernels.kernels.sparse_mla import policy as sparse_mla
from dsl_kernels_lab.steps import StepSize
from dsl_kernels_lab.timing import bench, cuda, grids, measure

VARIANTS = {
    "bf16": {8: "st2_cl1", 16: "st2_cl1", 32: "st2_cl1", 64: "st2_cl1_hb64", 128: "st2_cl1_hb64"},
    "fp8": {8: "st2_cl1", 16: "st2_cl1", 32: "st2_cl1", 64: "st2_cl1_hb64", 128: "st2_cl1_hb64_ex2"},
}
CACHE_ROWS, ROW_BYTES, ROWS_EACH = 1 << 18, 1152, 2048
# Enough shared memory to keep a second CTA off an SM.
SHARED = 160 << 10
TURNS = 24
GATHER = """
extern "C" __global__ void __launch_bounds__(512)
gather(const int4* rows, const int* ids, int* sm_of, int* sink, int each, int first, int cached) {
    asm volatile("griddepcontrol.launch_dependents; griddepcontrol.wait;" ::: "memory");
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, sum = 0;
    for (int i = warp * 8; i < each; i += 16 * 8) {
        int4 held[8][2];
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const int4* row = rows + (long long)ids[(first + blockIdx.x * each + i + j) % cached] * 72 + lane;
            held[j][0] = row[0];
            held[j][1] = row[32];
        }
#pragma unroll
        for (int j = 0; j < 8; ++j) sum ^= held[j][0].x ^ held[j][1].y;
    }
    if (sum == 1) sink[0] = sum;
    unsigned sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    if (threadIdx.x == 0) sm_of[blockIdx.x] = sm;
}
"""


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def told(early: int | None) -> AbstractContextManager[Any]:
    """Make attention's launches early (1) or late (0), or leave it to the launch rule (None)."""
    ops.clear()
    if early is None:
        return nullcontext()
    return mock.patch.object(sparse_mla, "_start_of", lambda *_: {"early": early})


def attention(form: str, t: int, heads: int, rounds: int = 3) -> dict[str, Any]:
    """Microseconds of a call launched early, late, as the rule decides, and with one split."""
    point = grids.Point("sparse_mla", form, {"t": t, "heads": heads, "pages": 4096, "topk": 2048})
    variant = f"sparse_mla__cutedsl_sm90a__h{heads}_{form}_bt64_{VARIANTS[form][heads]}"
    fixture = grids.prepare(point)
    asked = {"early": (1, {}), "behind": (0, {}), "rule": (None, {}), "one part, behind": (0, {"splits": 1})}
    results: dict[str, float | str] = {}
    for name, (early, launch) in asked.items():
        with told(early):
            try:
                grids.check_variant(point, fixture, variant, launch)
                calls = fixture.calls(variant, launch)
                results[name] = min(bench.graph_time(calls, replays=15).us for _ in range(rounds))
            except DslKernelError as error:
                results[name] = str(error)
    return {"form": form, "t": t, "heads": heads, "us": results}


def step(t: int, heads: int) -> dict[str, Any]:
    """Microseconds of a decode step whose attention launches early, and of one where it does not."""
    sets = measure.step_sets(StepSize(batch=t, context=32768, heads=heads, topk=2048, kv="bf16"))
    times: dict[str, float] = {}
    for name, early in {"early": 1, "behind": 0}.items():
        with told(early):
            times[name] = measure.time_marginal(sets)["step"]
    return {"step": True, "form": "bf16", "t": t, "heads": heads, "us": times}


def gathers(ctas: list[int]) -> Iterator[dict[str, Any]]:
    """The bare gather: microseconds, and how many TPCs ran two CTAs in the median launch."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "gather.cu"
        source.write_text(GATHER)
        module = cuda.Module(source)
    rows = torch.zeros(CACHE_ROWS * ROW_BYTES // 4, dtype=torch.int32, device="cuda")
    ids = torch.randperm(CACHE_ROWS, device="cuda", dtype=torch.int32)
    sink = torch.zeros(1, dtype=torch.int32, device="cuda")
    for count in ctas:
        for early in (False, True):
            places = [torch.zeros(count, dtype=torch.int32, device="cuda") for _ in range(TURNS)]

            def turns(early: bool = early, places: list[torch.Tensor] = places, count: int = count) -> None:
                for turn, place in enumerate(places):
                    first = turn * count * ROWS_EACH % CACHE_ROWS
                    arguments = [rows, ids, place, sink, ROWS_EACH, first, CACHE_ROWS]
                    module.launch("gather", count, 512, arguments, SHARED, dependent=early)

            turns()
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            turns()
            end.record()
            torch.cuda.synchronize()
            full = sorted(sum(n == 2 for n in Counter((place // 2).tolist()).values()) for place in places)
            us = begin.elapsed_time(end) * 1e3 / TURNS
            yield {"ctas": count, "early": early, "us": us, "pairs_with_two": full[TURNS // 2]}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--queries", type=numbers, default=[37, 48, 56, 72, 80, 96, 112, 120, 128])
    parser.add_argument("--heads", type=numbers, default=list(VARIANTS["bf16"]))
    parser.add_argument("--form", nargs="+", choices=list(VARIANTS), default=["bf16"])
    parser.add_argument(
        "--steps", type=numbers, default=[], help="decode steps of this many sequences, with 64 heads"
    )
    parser.add_argument("--ctas", type=numbers, default=[66, 72, 96, 112, 128])
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    try:
        bench.require_gpu()
    except DslKernelError as error:
        print(error, file=sys.stderr)
        return 1
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for row in gathers(options.ctas):
            start = "early" if row["early"] else "behind"
            figures = f"{row['us']:.1f} us, {row['pairs_with_two']} TPCs with two"
            print(f"gather by {row['ctas']} CTAs, {start}: {figures}", flush=True)
            rows.append(row)
        calls = [partial(step, t, 64) for t in options.steps]
        calls += [partial(attention, *each) for each in product(options.form, options.queries, options.heads)]
        for call in calls:
            row = call()
            what = "step" if "step" in row else "attention"
            cells = (
                f"{name} {us:.2f}" if isinstance(us, float) else f"{name}: {us}"
                for name, us in row["us"].items()
            )
            print(what, row["form"], f"{row['heads']} heads, T={row['t']}:", ", ".join(cells), flush=True)
            rows.append(row)
            torch.cuda.empty_cache()
    if options.out:
        environment = bench.environment()
        with options.out.open("a") as file:
            file.writelines(json.dumps({**row, "environment": environment}) + "\n" for row in rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
