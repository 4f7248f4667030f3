"""How fast the emulator is: parsing, one CTA of attention, and many interleavings of the committed variants.

    python benchmarks/emulator_speed.py [parse] [cta] [set] [--rounds N] [--interleavings N] [--jobs N]
        [--arch A] [--json]

`cta` runs one query token over 2,048 selected ones, with one split, of variants with 16 and with 128 heads.
It prints the best CPU seconds of the process over the rounds, with a digest of all tensors, counts and
findings: two builds of the core compute the same if their digests agree. `set` runs the tiny workloads of
each committed variant of an architecture under --interleavings interleavings, in --jobs threads, and prints
wall and CPU seconds. CPU seconds depend on other load only through caches; wall seconds do fully.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from dsl_kernels import variants  # noqa: E402
from dsl_kernels.executors import Emulator  # noqa: E402
from dsl_kernels_lab.oracles import Workload  # noqa: E402
from dsl_kernels_lab.verification import trial  # noqa: E402
from ptx_emulator import interleavings  # noqa: E402
from ptx_emulator.parser import parse  # noqa: E402

TOPK = 2048
CTA = (
    "sparse_mla__cutedsl_sm100a__h16_bf16_bt64_cl1_cp_async",
    "sparse_mla__cutedsl_sm100a__h16_bf16_bt64_cl1_gather4",
    "sparse_mla__cutedsl_sm100a__h16_fp8_bt64_cl1_cp_async",
    "sparse_mla__tilelang_sm100a__h16_bf16_bt64_cl1_cp_async",
    "sparse_mla__cutedsl_sm100a__h128_bf16_bt64_cl1_cp_async",
    "sparse_mla__cutedsl_sm100a__h128_bf16_bt64_cl1_gather4",
    "sparse_mla__tilelang_sm100a__h128_bf16_bt64_cl1_cp_async",
    "sparse_mla__cutedsl_sm90a__h16_bf16_bt64_st2_cl1",
    "sparse_mla__tilelang_sm90a__h16_bf16_bt64_st2_cl1",
    "sparse_mla__cutedsl_sm90a__h128_bf16_bt64_st2_cl1_hb64",
)
HEADER = (
    ".version 8.7\n.target sm_100a\n.address_size 64\n.visible .entry k()\n{\n.reg .b32 %r<9>;\n.reg .b64 "
    "%rd<9>;\n"
)


def parsing() -> list[dict[str, Any]]:
    """CPU seconds to parse a text, and one twice as long."""
    rows = []
    for name, text in (("nested braces", "{{}}"), ("statements", "add.u32 %r1, %r2, %r3;\n")):
        half = len(text) // 2 if name == "nested braces" else len(text)
        for count in (5_000, 10_000):
            body = text[:half] * count + (text[half:] * count)
            begin = time.process_time()
            parse(f"{HEADER}{body}ret;\n}}\n")
            rows.append({"what": f"{count} {name}", "seconds": time.process_time() - begin})
    return rows


def _digest(operands: dict[str, Any], report: Any) -> str:
    digest = hashlib.sha256()
    for name, value in sorted(operands.items()):
        if isinstance(value, torch.Tensor):
            digest.update(name.encode() + value.contiguous().view(torch.uint8).numpy().tobytes())
    digest.update(
        repr((report.instructions, report.pipes, report.stats, list(map(str, report.findings)))).encode()
    )
    return digest.hexdigest()[:16]


def one_cta(rounds: int, chosen: tuple[str, ...]) -> list[dict[str, Any]]:
    """Run one CTA over 2,048 selected tokens; the best of the rounds."""
    rows = []
    for name in chosen:
        variant = variants.get(name)
        params = {"t": 1, "heads": variant.knobs["heads"], "topk": TOPK, "n": 2 * TOPK, "ids": "random"}
        workload = Workload(f"one_query_{name}", "edge", variant.knobs["kv"], params)
        inputs = trial.draw("sparse_mla", workload, 0)
        launcher = (executor := Emulator()).prepare(variant)
        best, seconds, digests = float("inf"), float("inf"), set()
        for _ in range(rounds):
            operands, dims = trial.allocate(variant, workload, inputs, {"splits": 1})
            begin = time.process_time()
            launcher(operands, dims)
            best = min(best, time.process_time() - begin)
            seconds = min(seconds, executor.report.seconds)
            digests.add(_digest(operands, executor.report))
        if len(digests) != 1:
            raise SystemExit(f"{name}: results differ from run to run")
        report = executor.report
        rows.append(
            {
                "what": name,
                "cpu": best,
                "core_wall": seconds,
                "instructions": report.instructions,
                "gflop": report.stats["mma_flops"] / 1e9,
                "digest": digests.pop(),
            }
        )
    return rows


def whole_set(arch: str, count: int, jobs: int, only: str) -> list[dict[str, Any]]:
    """Run the tiny workloads of an architecture's committed variants under `count` interleavings each."""
    every = [
        (variant, workload)
        for variant in variants.variants(arch=arch)
        if only in variant.id
        for workload in trial.workloads(variant, "tiny")
    ]
    digests: dict[str, Any] = {}
    torch.set_num_threads(1)  # the jobs share the cores: threads of torch would only wait on them
    gc.freeze()  # what the imports made is not walked over again

    def run(variant: Any, workload: Any) -> list[tuple[str, str, float, int]]:
        executor, rows = Emulator(), []
        example = trial.cached_example(variant.op, workload)
        for interleaving in interleavings(count):
            executor.interleaving = interleaving
            at = f"{variant.id} {workload.name} {interleaving}"
            result = trial.run(variant, workload, executor, example=example)
            if not result.comparison.ok:
                raise SystemExit(f"{at}: {result.comparison.failures}")
            report = executor.report
            rows.append((at, _digest(result.operands, report), report.seconds, report.instructions))
        return rows

    begin, cpu = time.perf_counter(), time.process_time()
    core, instructions = 0.0, 0
    with ThreadPoolExecutor(jobs) as pool:
        for rows in pool.map(lambda item: run(*item), every):
            for at, digest, seconds, executed in rows:
                digests[at] = digest
                core += seconds
                instructions += executed
    return [
        {
            "what": f"{len(every)} workloads of {arch}, {count} interleavings, {jobs} jobs",
            "wall": time.perf_counter() - begin,
            "cpu": time.process_time() - cpu,
            "core_wall": core,
            "instructions": instructions,
            "digest": hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()[:16],
        }
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", nargs="*", default=["parse", "cta", "set"], help="parse, cta, set; all of them"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--interleavings", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--arch", default="sm_100a")
    parser.add_argument("--only", default="", help="part of the ids of the variants that cta and set run")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    if "parse" in options.what:
        rows += parsing()
    if "cta" in options.what:
        rows += one_cta(options.rounds, tuple(name for name in CTA if options.only in name))
    if "set" in options.what:
        rows += whole_set(options.arch, options.interleavings, options.jobs, options.only)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        print(
            "  ".join(
                f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" if k != "what" else f"{v:58}"
                for k, v in row.items()
            )
        )


if __name__ == "__main__":
    main()
