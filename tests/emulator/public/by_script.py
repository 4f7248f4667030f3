"""Public programs, each with its own main or a reference of torch, executed by `emulate --script` under 20 interleavings.

The projects are installed by their names, and TileLang's examples come from a checkout; nothing of theirs is kept here.
README.md says how to get them. `python -m tests.emulator.public.by_script` runs what is there and prints the table of
docs/emulator.md; `tests/emulator/test_public.py` holds it to the verdicts below.
"""

# ruff: noqa: T201 - a command-line script prints
from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "programs"
#: The variable that names the folder `examples` of a checkout of TileLang.
EXAMPLES = "TILELANG_EXAMPLES"
INTERLEAVINGS = 20

#: Errors that are what PTX calls one, in programs whose results they do not change by more than a rounding.
REPLICATED = (
    "Triton gives a tensor smaller than the CTA to several warps: all load it, one of them stores in place, and nothing "
    "orders the loads of the others before that store; what they loaded is used by nobody"
)
CONTRACTED = (
    "LLVM contracts x*x + shfl(x*x) to an fma, so the lanes of a group hold sums that differ in the last bit, and all "
    "store theirs to one word: which stays is undefined"
)
LATE_SUM = "the second warpgroup divides by sum_exp_shared, which the first writes after its last arrival: nothing orders the two"
EARLY_REFILL = "one warp of a warpgroup waits for its own wgmma and refills the tile that those of the other three may still read"


@dataclass(frozen=True)
class Project:
    """A public project: the file of `programs` that drives it, and the packages that it needs."""

    title: str
    driver: str
    packages: tuple[str, ...]

    def missing(self) -> str:
        """What has to be installed or named first; empty when nothing."""
        for package in self.packages:
            try:
                importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                return f"pip install --no-deps {package}"
        if self.driver == "tilelang_examples" and not Path(os.environ.get(EXAMPLES, "/nowhere")).is_dir():
            return f"set {EXAMPLES} to the examples of a checkout of TileLang"
        return ""


PROJECTS = {
    "tilelang": Project("TileLang's examples", "tilelang_examples", ("tilelang", "einops")),
    "liger": Project("Liger-Kernel (Triton)", "liger", ("liger-kernel", "triton")),
    "fla": Project("flash-linear-attention (Triton)", "linear_attention", ("fla-core", "triton", "einops")),
    "tile_kernels": Project("TileKernels (TileLang)", "tile_kernels_library", ("tile-kernels",)),
    "cce": Project(
        "Cut Cross-Entropy (Triton)", "cut_cross_entropy_library", ("cut-cross-entropy", "triton")
    ),
}


@dataclass(frozen=True)
class Program:
    """One program; ``explained`` gives for the code of an error that it has the clause that it breaks.

    A ``defective`` one is wrong, or reads what was not written, under some interleavings because of that.
    """

    project: str
    name: str
    arch: str
    explained: dict[str, str] = field(default_factory=dict)
    defective: bool = False

    def __str__(self) -> str:
        return f"{self.project}-{self.name}-{self.arch}"


def programs(
    project: str, arch: str, names: str, *, defective: bool = False, **explained: str
) -> Iterator[Program]:
    codes = {code.replace("_", "-"): clause for code, clause in explained.items()}
    return (Program(project, name, arch, codes, defective) for name in names.split())


PROGRAMS = [
    *programs(
        "tilelang",
        "sm_90a",
        "elementwise rms_norm gemm_intrinsics gemm_persistent gemm_fp8 gemm_fp8_promoted",
    ),
    *programs("tilelang", "sm_90a", "cast_per_token cast_grouped gemm_warp_specialised_copy_first"),
    *programs("tilelang", "sm_90a", "gemm_warp_specialised_copy_last gemm_warp_specialised_barriers"),
    *programs(
        "tilelang",
        "sm_90a",
        "gemm_warp_specialised_soft mla_decode sparse_mla topk_selector sparse_attention_v4",
    ),
    *programs("tilelang", "sm_90a", "mha mha_causal gqa gqa_decode linear_attention attention_sink"),
    *programs("tilelang", "sm_90a", "dequantised_fp4 mhc_pre mhc_post"),
    *programs(
        "tilelang",
        "sm_90a",
        "mla_decode_warp_specialised",
        defective=True,
        race=LATE_SUM,
        uninit_memory=LATE_SUM,
    ),
    *programs("tilelang", "sm_90a", "flash_mla_warp_specialised", defective=True, race=EARLY_REFILL),
    *programs("tilelang", "sm_100a", "tcgen05_gemm tcgen05_gemm_two_ctas"),
    *programs(
        "liger", "sm_90a", "rms_norm layer_norm swiglu geglu softmax kl_div total_variation dynamic_tanh"
    ),
    *programs("liger", "sm_90a", "relu_squared fused_add_rms_norm sparsemax"),
    *programs("liger", "sm_90a", "cross_entropy fused_linear_cross_entropy rope", race=REPLICATED),
    *programs("liger", "sm_90a", "group_norm", race=CONTRACTED, lane_conflict=CONTRACTED),
    *programs("liger", "sm_100a", "rms_norm layer_norm swiglu"),
    *programs("fla", "sm_90a", "cumulative_sum fused_recurrent_delta_rule fused_recurrent_gated_delta_rule"),
    *programs("fla", "sm_90a", "chunk_gated_delta_rule chunk_linear_attention retention layer_norm rotary"),
    *programs("fla", "sm_90a", "chunk_delta_rule", lane_conflict=CONTRACTED),
    *programs(
        "tile_kernels", "sm_90a", "per_token_cast per_block_cast cast_back transpose topk_gate group_count"
    ),
    *programs("tile_kernels", "sm_90a", "normalize_weight mask_indices sinkhorn"),
    *programs("cce", "sm_90a", "loss loss_and_gradients"),
    *programs("cce", "sm_100a", "loss loss_and_gradients"),
]


@dataclass
class Outcome:
    """What came of one program."""

    program: Program
    right: bool
    failure: str
    launches: int = 0
    instructions: int = 0
    executed: float = 0.0  # share of the instructions of its kernels
    errors: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    results: int = 1  # different contents of the memory after one launch

    @property
    def unexplained(self) -> list[str]:
        return sorted(set(self.errors) - set(self.program.explained))

    @property
    def ok(self) -> bool:
        return (self.right or self.program.defective) and not self.unexplained

    @property
    def verdict(self) -> str:
        if self.unexplained:
            return "open: " + ", ".join(self.unexplained)
        if self.program.defective:
            return "defective"
        if not self.right:
            return "wrong"
        return "right; finding true" if self.errors else "right"

    def row(self) -> str:
        found = ", ".join([f"**{code}**" for code in sorted(self.errors)] + sorted(self.warnings)) or "none"
        return (
            f"| {self.program.name} | {self.program.arch} | {self.launches} | {self.instructions:,} | "
            f"{100 * self.executed:.0f} % | {found} | {self.verdict} |"
        )


def run(program: Program, interleavings: int = INTERLEAVINGS, timeout: int = 1800) -> Outcome:
    """Execute a program in a process of its own."""
    driver = FOLDER / f"{PROJECTS[program.project].driver}.py"
    command = [
        sys.executable, "-W", "ignore", "-m", "dsl_kernels", "emulate", "--json", "--coverage", "--arch", program.arch,
        "--interleavings", str(interleavings), "--script", str(driver), program.name,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    try:
        data: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        return Outcome(program, False, done.stderr[-2000:])
    rows, reached = data["launches"], data["coverage"]
    outcome = Outcome(
        program,
        right=not data["failure"] and bool(rows),
        failure=data["failure"] or next((r["failure"] for r in rows if r["failure"]), ""),
        launches=len(rows),
        instructions=sum(r["instructions"] for r in rows),
        executed=sum(r["executed"] for r in reached) / max(sum(r["instructions"] for r in reached), 1),
        results=max((r["results"] for r in rows), default=0),
    )
    for r in rows:
        outcome.errors.update(r["errors"])
        outcome.warnings.update(r["warnings"])
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--interleavings", type=int, default=INTERLEAVINGS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--only", default="", help="run the programs whose name contains this")
    options = parser.parse_args()
    failed = 0
    for name, project in PROJECTS.items():
        chosen = [p for p in PROGRAMS if p.project == name and options.only in str(p)]
        missing = project.missing()
        if missing or not chosen:
            print(f"{project.title}: {missing or 'nothing chosen'}", flush=True)
            continue
        versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in project.packages)
        print(f"\n{project.title}; {versions}\n", flush=True)
        with ThreadPoolExecutor(options.jobs) as pool:
            for outcome in pool.map(lambda p: run(p, options.interleavings), chosen):
                failed += not outcome.ok
                print(outcome.row(), flush=True)
                if not outcome.ok:
                    print(outcome.failure[-1500:], flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
