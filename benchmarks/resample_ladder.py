"""The ladder of resample_trajectories on this GPU: variants checked, then timed beside torch and a copy.

    python benchmarks/resample_ladder.py [--out ladder.json] [--batches 64,512] [--no-compile]
    python benchmarks/resample_ladder.py --rows 1024 --targets 8192 --batches 16,128   # dense targets

By default, 4096 rows of 32 bf16 values are sampled at 1024 sorted times. Every variant of this GPU's
architecture runs twice on the problem's small workloads and at the sizes that are timed, into poisoned
outputs: the two outputs must agree bit for bit. Times are those of one call under a CUDA graph whose turns
rotate past L2. "of copy" is the time of a plain copy that moves the same bytes, half of them read and half
written, divided by the variant's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsl_kernels import executors, ops, variants
from dsl_kernels.errors import DslKernelError
from dsl_kernels.variants import Variant
from dsl_kernels_lab import oracles
from dsl_kernels_lab.cases.resample import DEVICE, OP, SIZES, by_torch, draw
from dsl_kernels_lab.timing import bench
from dsl_kernels_lab.verification import trial

RUNGS = (
    "global_n128_v1",
    "staged_n128_v1",
    "staged_n128_v8",
    "staged_n512_v8",
    "warp_n128_v8",
    "window_n128_v8",
    "window_n512_v8",
    "merge_n128_v8",
)
COLUMNS = ("version", "DSL", "b", "us", "10 to 90 %", "GB/s", "of copy", "million trajectories/s")

Set = dict[str, Any]


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def launch(inputs: Set, variant: str) -> torch.Tensor:
    return ops.resample_trajectories(
        inputs["data"], inputs["src_times"], inputs["tgt_times"], out=inputs["out"], variant=variant
    )


def failures(variant: Variant, batches: list[int], sizes: dict[str, int]) -> list[str]:
    """What is wrong with a variant, against the reference and in a repeat."""
    problem, texts = oracles.get(OP), []
    for workload in trial.workloads(variant, "tiny", "edge"):
        example = trial.cached_example(OP, workload)
        runs = [
            trial.run(variant, workload, executors.get("cuda"), device=DEVICE, example=example)
            for _ in range(2)
        ]
        first, again = (run.operands["out"] for run in runs)
        texts += [f"{workload.name}: {text}" for text in runs[0].comparison.failures]
        if not torch.equal(first.view(torch.int16), again.view(torch.int16)):
            texts.append(f"{workload.name}: a repeat differs")
    for b in batches:
        inputs = draw(b, 1000 + b, sizes)
        first = launch(inputs, variant.id).clone()
        again = launch({**inputs, "out": inputs["out"].fill_(float("nan"))}, variant.id)
        if not torch.equal(first.view(torch.int16), again.view(torch.int16)):
            texts.append(f"b={b}: a repeat differs")
        comparison = problem.compare("default", inputs, {"out": first}, problem.reference("default", inputs))
        texts += [f"b={b}: {text}" for text in comparison.failures]
    return texts


def time_torch(function: Callable[..., torch.Tensor], sets: list[Set]) -> bench.Timing:
    names = ("data", "src_times", "tgt_times")
    return bench.graph_time([partial(function, *(each[name] for name in names)) for each in sets])


def time_copy(size: float, count: int) -> bench.Timing:
    """A plain copy that moves `size` bytes, in `count` turns."""
    pairs = [torch.zeros(2, int(size) // 2, dtype=torch.uint8, device=DEVICE) for _ in range(count)]
    return bench.graph_time([partial(to.copy_, source) for source, to in pairs])


def row(version: str, dsl: str, b: int, timing: bench.Timing, size: float, copy_us: float) -> dict[str, Any]:
    return {
        "version": version, "dsl": dsl, "b": b, **timing.to_dict(), "gbps": size / timing.us / 1e3,
        "of_copy": copy_us / timing.us, "trajectories_per_s": b / timing.us * 1e6,
    }  # fmt: skip


def ladder(
    b: int, sizes: dict[str, int], listed: list[Variant], compile_torch: bool, notes: list[str]
) -> list[dict[str, Any]]:
    dims = {**sizes, "b": b}
    size = oracles.get(OP).bytes("default", dims)
    sets = [draw(b, seed, sizes) for seed in range(bench.turns(size))]
    copy = time_copy(size, len(sets))
    rows = [row("copy", "torch", b, copy, size, copy.us)]
    contenders: dict[str, Callable[[], bench.Timing]] = {"eager": partial(time_torch, by_torch, sets)}
    if compile_torch:
        contenders["compiled"] = partial(time_torch, torch.compile(by_torch, dynamic=False), sets)
    for title, contender in contenders.items():
        try:
            rows.append(row(title, "torch", b, contender(), size, copy.us))
        except Exception as error:  # without a C compiler torch.compile fails; the ladder continues
            notes.append(f"torch {title}, b={b}: {type(error).__name__}: {str(error).splitlines()[0][:200]}")
    for rung in RUNGS:
        for variant in (v for v in listed if v.id.endswith(f"__{rung}")):
            timing = bench.graph_time([partial(launch, each, variant.id) for each in sets])
            rows.append(row(rung, variant.backend, b, timing, size, copy.us))
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    for r in rows:
        cells = (
            r["version"], r["dsl"], r["b"], f"{r['us']:.2f}", f"{r['low']:.2f} to {r['high']:.2f}",
            f"{r['gbps']:.0f}",
            f"{r['of_copy']:.2f}", f"{r['trajectories_per_s'] / 1e6:.2f}",
        )  # fmt: skip
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the rows as JSON")
    parser.add_argument("--batches", type=numbers, default=[64, 512])
    parser.add_argument("--rows", type=int, default=SIZES["n"], help="rows of a trajectory")
    parser.add_argument("--targets", type=int, default=SIZES["m"], help="targets of a trajectory")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="skip torch.compile")
    options = parser.parse_args()
    try:
        bench.require_gpu()
        gpu = executors.gpu_at_hand(torch.cuda.current_device())
        listed = variants.variants(OP, arch=gpu.arch.name)
        sizes = {**SIZES, "n": options.rows, "m": options.targets}
        wrong = {v.id: texts for v in listed if (texts := failures(v, options.batches, sizes))}
        for variant, texts in wrong.items():
            print(f"WRONG {variant}: {'; '.join(texts)}", file=sys.stderr)
        right = len(listed) - len(wrong)
        print(f"{right} of {len(listed)} variants match the reference and repeat bit for bit\n")
        notes: list[str] = []
        rows = [r for b in options.batches for r in ladder(b, sizes, listed, options.compile, notes)]
    except DslKernelError as error:
        print(error, file=sys.stderr)
        return 1
    print(table(rows))
    for note in notes:
        print(f"\n{note}")
    if options.out:
        record = {
            "environment": bench.environment(),
            "sizes": sizes,
            "wrong": wrong,
            "rows": rows,
            "notes": notes,
        }
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
