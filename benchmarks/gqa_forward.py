"""Grouped-query attention on this GPU: every variant checked and timed, beside torch, FlashAttention 3 and 4.

    python benchmarks/gqa_forward.py [--out gqa.jsonl] [--dtypes fp16,bf16] [--dims 128] [--filter REGEX]
        [--rounds 2] [--launches rule|best|all]

B=4, S=4096, 64 query heads, 8 key heads; full and causal. A check poisons the outputs, compares sampled heads
with float64, and compares a second run bit for bit. Times are medians under CUDA graphs, the least of the
rounds, in which all kernels take turns; the inputs are larger than L2. SM clock and power are sampled while a
kernel runs. Prints a Markdown table. With DSL_KERNELS_BUNDLE_DIR and DSL_KERNELS_DISABLE_JIT=1 only
flash-attn-4 compiles anything.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsl_kernels import executors, variants
from dsl_kernels.arch import arch_for_capability
from dsl_kernels.errors import DslKernelError
from dsl_kernels_lab import oracles
from dsl_kernels_lab.oracles import Workload
from dsl_kernels_lab.timing import bench
from dsl_kernels_lab.timing.peers.gqa_forward import BUILDERS
from dsl_kernels_lab.verification import trial

OP = "gqa_forward"
PROBLEM = oracles.get(OP)
SIZES = {"b": 4, "sq": 4096, "skv": 4096, "heads": 64, "kv_heads": 8}
CLOCKS = ("nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits")
CLOCK_SECONDS = 0.4


def words(text: str) -> list[str]:
    return text.split(",")


def workload(form: str, dim: int, causal: int) -> Workload:
    params = {**SIZES, "dim": dim, "causal": causal}
    return Workload(f"{form}_d{dim}{'_causal' if causal else ''}", "real", form, params)


def launches(variant: Any, case: Workload, inputs: dict[str, Any], everything: bool) -> list[dict[str, int]]:
    """The launch rule's choice; with `everything` all ways to distribute the items over CTAs."""
    _, dims = trial.allocate(variant, case, inputs)
    if not everything:
        return [{}]
    cluster = variant.knobs["cluster"]
    items = -(-dims["sq"] // (64 * variant.knobs["groups"])) * dims["b"] * dims["heads"] // cluster
    resident = torch.cuda.get_device_properties(0).multi_processor_count // cluster
    bundles = dims["b"] * dims["heads"] // cluster
    options: list[dict[str, int]] = []
    for ctas in (items, resident):
        for abreast in sorted({dims["abreast"], bundles} if dims["causal"] else {dims["abreast"]}):
            options.append({"ctas": ctas, "abreast": abreast})
    return options


def ours(
    case: Workload, inputs: dict[str, Any], pattern: str, everything: bool
) -> Iterator[tuple[str, Any, Any]]:
    """(name, call, function that computes its outputs) of every variant, at each launch."""
    arch = arch_for_capability(*torch.cuda.get_device_capability())
    for variant in variants.variants(OP, arch=arch.name):
        if not re.search(pattern, variant.id) or trial.accepts(variant, case, inputs) is not None:
            continue
        launcher = executors.get("cuda").prepare(variant)
        for launch in launches(variant, case, inputs, everything):
            operands, dims = trial.allocate(variant, case, inputs, launch)

            def call(
                launcher: Any = launcher, operands: dict[str, Any] = operands, dims: dict[str, int] = dims
            ) -> dict[str, Any]:
                launcher(operands, dims, torch.cuda.current_stream().cuda_stream)
                return operands

            name = variant.id.removeprefix(f"{OP}__") + "".join(f" {k}={v}" for k, v in launch.items())
            yield name, call, call


def peers(case: Workload, inputs: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """torch's attention by backend, FlashAttention 3 and 4, if they are installed and take the call."""
    for name, (build, _) in BUILDERS.items():
        try:
            call = build(*(inputs[x] for x in "qkv"), bool(inputs["causal"]))
            call()
        except Exception as error:
            print(f"{name} is left out: {type(error).__name__}: {error}", file=sys.stderr)
            continue
        yield name, call, lambda c=call: {"out": c()}


def poison(outputs: dict[str, Any]) -> None:
    for name in ("out", "lse"):
        if name in outputs:
            outputs[name].fill_(float("nan"))


def checked(
    case: Workload, inputs: dict[str, Any], expected: dict[str, Any], compute: Any, own: bool
) -> dict[str, Any]:
    """Errors against float64 on sampled heads; a variant must also give the same bits in a second run."""
    first = {name: value.clone() for name, value in _outputs(compute()).items()}
    torch.cuda.synchronize()
    if not own:
        first["lse"] = expected["lse"].nan_to_num(0.0)
    comparison = PROBLEM.compare(case.form, inputs, first, expected)
    row = {"errors": comparison.figures, "failures": comparison.failures}
    if own:
        poison(compute())
        again = _outputs(compute())
        row["repeats"] = all(torch.equal(first[name], again[name]) for name in first)
    return row


def _outputs(results: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: results[name] for name in ("out", "lse") if name in results}


def clock(call: Callable[[], Any], us: float) -> tuple[float, float] | None:
    """SM clock in MHz and power in W while the call runs repeatedly; None if nvidia-smi fails."""
    for _ in range(int(CLOCK_SECONDS * 1e6 / us) + 1):
        call()
    try:
        done = subprocess.run(CLOCKS, capture_output=True, text=True, check=True, timeout=10)
        mhz, watts = (float(part) for part in done.stdout.splitlines()[0].split(","))
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    finally:
        torch.cuda.synchronize()
    return mhz, watts


def measure(case: Workload, options: argparse.Namespace, records: bench.Records) -> bool:
    """Check and time everything on one workload, and print its rows; False if a variant is wrong."""
    generator = torch.Generator("cuda").manual_seed(options.seed)
    inputs = PROBLEM.make(case, generator)
    expected = PROBLEM.reference(case.form, inputs)
    flops = sum(PROBLEM.flops(case.form, case.params).values())
    right, fastest = True, ("", float("inf"))

    def time(calls: list[tuple[str, Any, Any]], own: bool) -> None:
        nonlocal right, fastest
        rows = [
            (name, call, {"own": own, **checked(case, inputs, expected, compute, own)})
            for name, call, compute in calls
        ]
        times: dict[str, list[float]] = {name: [] for name, _, _ in rows}
        for _ in range(options.rounds):
            for name, call, _ in rows:
                times[name].append(bench.graph_time([call], replays=options.replays).us)
        for name, call, row in rows:
            us = min(times[name])
            row |= {
                "name": name,
                "workload": case.name,
                "us": us,
                "rounds": times[name],
                "tflops": flops / us / 1e6,
            }
            row["clock"] = clock(call, us) if options.clocks else None
            records.add(row)
            wrong = bool(row["failures"]) or not row.get("repeats", True)
            right &= not (wrong and own)
            if own and not wrong:
                fastest = min(fastest, (name, us), key=lambda pair: pair[1])
            show(case, name, row)

    time(list(ours(case, inputs, options.filter, options.launches == "all")), True)
    if options.launches == "best" and fastest[0]:
        time(list(ours(case, inputs, f"__{re.escape(fastest[0])}$", True)), True)
    if options.peers:
        time(list(peers(case, inputs)), False)
    return right


def show(case: Workload, name: str, row: dict[str, Any]) -> None:
    """Print one line of the table."""
    verdict = "WRONG: " + "; ".join(row["failures"]) if row["failures"] else "ok"
    if not row.get("repeats", True):
        verdict = "repeats differ; " + verdict
    mhz, watts = row["clock"] or (float("nan"), float("nan"))
    error = row["errors"]["out relative error"]
    print(
        f"| {case.name} | {name} | {row['us']:.1f} | {max(row['rounds']):.1f} | {row['tflops']:.0f} "
        f"| {mhz:.0f} | {watts:.0f} | {error:.2e} | {verdict} |",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtypes", type=words, default=["fp16", "bf16"])
    parser.add_argument("--dims", type=words, default=["128"])
    parser.add_argument("--causal", type=words, default=["0", "1"])
    parser.add_argument("--filter", default="", help="regular expression searched in the variant id")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--replays", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--launches", choices=("rule", "best", "all"), default="best",
        help="variants for which every way to distribute the items is timed: none, the fastest, or all",
    )  # fmt: skip
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    parser.add_argument("--no-clocks", dest="clocks", action="store_false")
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    try:
        gpu = bench.require_gpu()
    except DslKernelError as error:
        print(error, file=sys.stderr)
        return 2
    records = bench.Records(options.out)
    print(f"{gpu}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}, {SIZES}\n")
    print("| workload | kernel | us | slowest round | TFLOP/s | MHz | W | error | check |")
    print("|---|---|---|---|---|---|---|---|---|")
    right = True
    with torch.inference_mode():
        for form in options.dtypes:
            for dim in map(int, options.dims):
                for causal in map(int, options.causal):
                    right &= measure(workload(form, dim, causal), options, records)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
