"""Public programs, each with its own main or a torch reference, executed by `emulate --script` under 20
interleavings.

The projects are installed by name, and some examples come from checkouts; none of their code is kept here.
README.md says how to get them. `python -m tests.emulator.public.by_script` runs what is there and prints the
table of docs/emulator_public.md; `tests/emulator/test_public.py` compares with the verdicts below.
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
INTERLEAVINGS = 20

#: Reasons of errors by the rules of PTX that change the programs' results by no more than a rounding.
REPLICATED = (
    "Triton gives a tensor smaller than the CTA to several warps: all load it, one of them stores in place, "
    "and nothing "
    "orders the loads of the others before that store; what they loaded is used by nobody"
)
CONTRACTED = (
    "LLVM contracts x*x + shfl(x*x) to an fma, so the lanes of a group hold sums that differ in the last "
    "bit, and all "
    "store theirs to one word: which stays is undefined"
)
LATE_SUM = (
    "the second warpgroup divides by sum_exp_shared, which the first writes after its last arrival: nothing "
    "orders the two"
)
EARLY_REFILL = (
    "one warp of a warpgroup waits for its own wgmma and refills the tile that those of the other three may "
    "still read"
)


OWN_GROUPS = (
    "one warp stores O over Q when its own wgmma are done; "
    "wgmma.wait_group waits for the groups of the executing warp alone, and "
    "those of the other three may still read Q"
)
PAST_THE_END = "the scheduler reads the rows of the group behind the last one when the tiles are at their end"
DEALLOCATED = (
    "tensor memory is deallocated while other warps load it, or before the last product into it was awaited"
)
LATE_COMMIT = "a commit arrives at a barrier of the peer, which nothing keeps from having ended"
ENDED = "a CTA may end while its peer still reads its shared memory: no barrier of the cluster lies between"
ZEROED = (
    "O is zeroed by tcgen05.st, and nothing waits for these stores before the product accumulates onto it"
)
STAGED = (
    "the slot that follows is filled while other warps may still read it: no barrier lies behind their loads"
)
TOTAL = "a warp stores its sum where the others may not have read the maximum yet: no barrier lies between"
OWN_COPY = "tcgen05.cp is awaited by wait::st, which is of tcgen05.st; a commit and its barrier order it"
RELAXED = (
    "barrier.cluster.arrive.relaxed orders no memory: what one CTA or warp wrote before is not ordered "
    "before reads behind it"
)
PEERS_BARRIER = (
    "tcgen05.cp of the pair reads the peer's shared memory, whose copy is awaited by nobody but the peer"
)
PEERS_STORES = (
    "st.async is performed in the generic proxy, and no fence.proxy.async lies between the mbarrier that it "
    "completes and the wgmma that reads what it stored"
)
OWN_RELEASE = (
    "one thread of a warpgroup gives the tile back when its own warp's wgmma are done, and those of the "
    f"other three may still read it; {RELAXED}"
)
MAP_OF_FOUR = (
    "four warps change the tensor map of the stores, each when its own bulk stores are done, and one warp "
    "alone issues those: nothing orders another warp's change after stores that use the map, or before others"
)
EVERY_WARP = "every warp initialises the same mbarriers; mbarrier.init of one that stands is undefined"


@dataclass(frozen=True)
class Project:
    """A public project: its file in `programs`, the packages it needs, and variables that name checkouts."""

    title: str
    driver: str
    packages: tuple[str, ...]
    folders: tuple[str, ...] = ()

    def missing(self) -> str:
        """What must be installed or set first; empty if nothing is missing."""
        for package in self.packages:
            try:
                importlib.metadata.version(package)
            except importlib.metadata.PackageNotFoundError:
                return f"pip install --no-deps {package}"
        for variable in self.folders:
            if not Path(os.environ.get(variable, "/nowhere")).is_dir():
                return f"set {variable} as README.md says"
        return ""


PROJECTS = {
    "cutlass": Project(
        "CUTLASS's examples (CuTe DSL)", "cutlass_examples", ("nvidia-cutlass-dsl",), ("CUTLASS_EXAMPLES",)
    ),
    "deep_gemm": Project(
        "DeepGEMM (CUDA C++)", "deep_gemm_kernels", ("cuda-bindings",), ("DEEP_GEMM", "CUTLASS_EXAMPLES")
    ),
    "flash_mla": Project(
        "FlashMLA (CUDA C++)", "flash_mla_kernels", ("cuda-bindings",), ("FLASH_MLA", "CUTLASS_EXAMPLES")
    ),
    "tilelang": Project(
        "TileLang's examples", "tilelang_examples", ("tilelang", "einops"), ("TILELANG_EXAMPLES",)
    ),
    "liger": Project("Liger-Kernel (Triton)", "liger", ("liger-kernel", "triton")),
    "fla": Project("flash-linear-attention (Triton)", "linear_attention", ("fla-core", "triton", "einops")),
    "tile_kernels": Project("TileKernels (TileLang)", "tile_kernels_library", ("tile-kernels",)),
    "cce": Project(
        "Cut Cross-Entropy (Triton)", "cut_cross_entropy_library", ("cut-cross-entropy", "triton")
    ),
}


@dataclass(frozen=True)
class Program:
    """One program; ``explained`` maps the codes of its errors to the clauses that it breaks.

    A ``defective`` program gives wrong results, or reads unwritten memory, under some interleavings because
    of them.
    """

    project: str
    name: str
    arch: str
    explained: dict[str, str] = field(default_factory=dict)
    defective: bool = False

    def __str__(self) -> str:
        return f"{self.project}-{self.name}-{self.arch}"


def programs(
    project: str, arch: str, names: str, *, defective: bool = False, prefix: str = "", **explained: str
) -> Iterator[Program]:
    codes = {code.replace("_", "-"): clause for code, clause in explained.items()}
    return (Program(project, prefix + name, arch, codes, defective) for name in names.split())


PROGRAMS = [
    *programs(
        "cutlass",
        "sm_90a",
        "ampere_elementwise_add ampere_elementwise_apply ampere_sgemm ampere_tensorop_gemm "
        "ampere_flash_attention "
        "ampere_flash_attention_causal ampere_hstu_attention hopper_dense_gemm hopper_dense_gemm_multicast "
        "hopper_dense_gemm_fp8 "
        "hopper_dense_gemm_persistent hopper_dense_gemm_persistent_multicast hopper_dense_gemm_fp8_2xacc "
        "hopper_dense_gemm_fp8_gelu "
        "hopper_grouped_gemm hopper_grouped_gemm_gmem hopper_fmha_causal hopper_cta_norm_layer "
        "hopper_cta_norm_rms",
    ),
    *programs("cutlass", "sm_90a", "hopper_fmha", defective=True, race=OWN_GROUPS),
    *programs(
        "cutlass",
        "sm_100a",
        "dense_gemm dense_gemm_two_ctas dense_gemm_persistent dense_gemm_persistent_two_ctas "
        "dense_gemm_persistent_prefetch "
        "dense_gemm_persistent_dynamic dense_gemm_software_pipeline dense_gemm_alpha_beta "
        "blockscaled_gemm_nvfp4 "
        "blockscaled_gemm_mxfp8 blockscaled_gemm_two_ctas blockscaled_gemm_amax blockscaled_gemm_prefetch "
        "blockscaled_grouped_gemm "
        "blockwise_gemm blockwise_gemm_contiguous_groups grouped_gemm grouped_gemm_gmem mixed_input_gemm "
        "grouped_mixed_input_gemm "
        "grouped_mixed_input_gemm_acc_scale moe_grouped_mm fmha fmha_causal mla_decode_fp16 mamba2_ssd "
        "rmsnorm efc_custom "
        "efc_activation efc_synthetic extended_memcpy extended_dense_gemm extended_dense_gemm_two_ctas "
        "extended_dense_gemm_pipeline extended_block_scaled_gemm tutorial_gemm_0 tutorial_gemm_1 "
        "tutorial_gemm_2 tutorial_gemm_3 tutorial_gemm_3_1 tutorial_gemm_4 tutorial_gemm_5 tutorial_gemm_6 "
        "tutorial_nvfp4_gemm_0 tutorial_nvfp4_gemm_1 tutorial_tma_0 tutorial_tma_1 tutorial_tma_2",
    ),
    *programs(
        "cutlass",
        "sm_100a",
        "blockwise_gemm_masked_groups",
        defective=True,
        out_of_bounds_global=PAST_THE_END,
    ),
    *programs(
        "cutlass",
        "sm_100a",
        "fmha_bwd mixed_input_fmha_prefill_d256",
        tmem_dealloc_in_use=DEALLOCATED,
        tmem_use_after_dealloc=DEALLOCATED,
        race=DEALLOCATED,
    ),
    *programs(
        "cutlass",
        "sm_100a",
        "extended_dense_gemm_ptr_array",
        race=MAP_OF_FOUR,
        missing_tensormap_fence=MAP_OF_FOUR,
    ),
    *programs("cutlass", "sm_100a", "mla_decode_fp8", dsmem_after_exit=LATE_COMMIT),
    *programs("cutlass", "sm_100a", "mixed_input_fmha_decode", race=ZEROED, uninit_memory=ZEROED),
    *programs(
        "cutlass",
        "sm_100a",
        "async_pipeline bar_warp_sync barrier_cta_red barrier_cta_sync basic_types cp_async_bulk "
        "cp_async_bulk_prefetch "
        "cp_async_mbarrier_arrive_cluster cp_async_mbarrier_arrive_cta cp_async_shared_global "
        "cp_async_shared_global_swizzled elect_sync ldmatrix_stmatrix mbarrier mbarrier_lifecycle "
        "pipeline_software_fill red redux_sync shfl_sync vote_sync warp_named_barrier block_smem_reduce "
        "cluster_smem_reduce thread_vector_reduce warp_vector_reduce 1cta_mma_a_from_tmem 1cta_mma_basic "
        "1cta_mma_mn_major 1cta_mma_pipeline 2cta_mma_basic 2cta_mma_tma_store clusterMxN_2cta_mma "
        "slicek_m32n8k128 "
        "tmem_ld_st tmem_ld_to_stmatrix_transpose tma_1cta_mbarrier tma_load_store tma_load_to_ldmatrix "
        "tma_pipeline_count2 tma_pipeline_pingpong tma_pipeline_warpspec tma_store tma_swizzle_modes "
        "tma_tensormap_replace",
        prefix="primitive_",
    ),
    *programs("cutlass", "sm_100a", "primitive_mapa", defective=True, dsmem_after_exit=ENDED),
    *programs(
        "cutlass",
        "sm_100a",
        "primitive_cluster_tmem_reduce",
        defective=True,
        race=f"{RELAXED}; {OWN_COPY}",
        uninit_memory=OWN_COPY,
        tmem_dealloc_in_use=OWN_COPY,
        tmem_use_after_dealloc=OWN_COPY,
    ),
    *programs("cutlass", "sm_100a", "primitive_2cta_mma_blockscale_m128", race=PEERS_BARRIER),
    *programs(
        "cutlass",
        "sm_100a",
        "primitive_mcast_clusterMxN_1cta_mma primitive_mcast_clusterMxN_2cta_mma",
        defective=True,
        dsmem_after_exit=LATE_COMMIT,
    ),
    *programs("cutlass", "sm_100a", "primitive_tma_multicast", race=RELAXED),
    *programs("cutlass", "sm_100a", "primitive_tma_pipeline_single_warp", defective=True, race=STAGED),
    *programs("cutlass", "sm_100a", "primitive_06_softmax", defective=True, race=TOTAL),
    *programs(
        "cutlass",
        "sm_100a",
        "primitive_10_minimal_tensor_mma_fp8",
        mbarrier_reinit=EVERY_WARP,
        race=EVERY_WARP,
    ),
    *programs(
        "cutlass",
        "sm_100a",
        "primitive_gemm_M128_N128_Kany_TN_warpspec_multistage",
        mbarrier_reinit=EVERY_WARP,
        race=EVERY_WARP,
        uninit_memory=EVERY_WARP,
    ),
    *programs(
        "deep_gemm",
        "sm_90a",
        "hopper_bf16 hopper_bf16_multicast hopper_bf16_masked_groups hopper_bf16_contiguous_groups "
        "hopper_fp8_scaled",
    ),
    *programs("deep_gemm", "sm_100a", "blackwell_bf16"),
    *programs("deep_gemm", "sm_100a", "blackwell_bf16_two_ctas", race=RELAXED, tmem_dealloc_in_use=RELAXED),
    *programs("flash_mla", "sm_90a", "hopper_sparse_prefill hopper_sparse_prefill_lengths"),
    *programs(
        "flash_mla",
        "sm_90a",
        "hopper_sparse_decode",
        defective=True,
        race=OWN_RELEASE,
        missing_proxy_fence=PEERS_STORES,
    ),
    *programs("flash_mla", "sm_100a", "blackwell_sparse_prefill blackwell_sparse_prefill_two_ctas"),
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
    """The outcome of one program."""

    program: Program
    right: bool
    failure: str
    launches: int = 0
    instructions: int = 0
    executed: float = 0.0  # share of the instructions of its kernels
    errors: Counter[str] = field(default_factory=Counter)
    warnings: Counter[str] = field(default_factory=Counter)
    results: int = 1  # distinct contents of the memory after one launch

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
        sys.executable, "-W", "ignore", "-m", "dsl_kernels", "emulate", "--json", "--coverage", "--arch",
        program.arch,
        "--interleavings", str(interleavings), "--script", str(driver), program.name,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    return outcome_of(program, done.stdout, done.stderr)


def outcome_of(program: Program, printed: str, errors: str = "") -> Outcome:
    """The outcome that the command printed for a program."""
    try:
        data: dict[str, Any] = json.loads(printed)
    except ValueError:
        return Outcome(program, False, errors[-2000:])
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
