"""The emulator's workloads make every ring wrap, so that a wrong count on any barrier is noticed."""

from __future__ import annotations

import re
import shutil

import pytest

from dsl_kernels import variants
from dsl_kernels.executors import Emulator
from dsl_kernels_lab.verification import reach, trial
from ptx_emulator import Coverage, EmulatorError, Interleaving

pytestmark = [
    pytest.mark.emulator,
    pytest.mark.compile,
    pytest.mark.skipif(
        shutil.which("c++") is None and shutil.which("g++") is None, reason="needs a C++ compiler"
    ),
]

# Barriers that no workload can bring to a second phase, by the line that initialises them, with the reason.
ONCE = {
    r"\bq(ueries|t|s)?_full\b": "a CTA of this kernel loads its queries once",
}
# The same in kernels of prompts; nobody waits for the empty side of what is filled once.
PROMPT_ONCE = {
    r"\bquery_factors_(full|empty)\b": "each product's scales of a block of queries have a slot of their own",
}


def representatives():
    """One variant of each structure with rings: op, arch, DSL, mode, kind, block of heads, cluster;
    for attention also tile."""
    by_structure = {}
    for variant in variants.variants():
        if variant.op in ("gqa_forward", "sparse_mla", "lightning_indexer"):
            key = (
                variant.op,
                variant.arch,
                variant.backend,
                *(variant.knobs.get(k) for k in ("mode", "kind", "block", "cluster")),
            )
            key += (variant.op == "sparse_mla" and variant.knobs["tile"],)
            by_structure.setdefault(key, variant)
    return [pytest.param(v, id=v.id) for v in by_structure.values()]


def reached(variant: variants.Variant) -> Coverage:
    """The lines that all workloads reach together; each result is right, without strict findings."""
    total = Coverage()
    for workload, launch in reach.workloads(variant):
        executor = Emulator(Interleaving.lockstep(), strict=True)
        example = trial.cached_example(variant.op, workload)
        result = trial.run(variant, workload, executor, example=example, launch=launch)
        assert result.comparison.ok, (workload.name, result.comparison.failures)
        total = total.merged(executor.report.coverage)
    return total


@pytest.mark.sample(12)
@pytest.mark.parametrize("variant", representatives())
def test_every_barrier_has_a_second_phase_that_somebody_waits_for(variant) -> None:
    coverage = reached(variant)
    text = reach.source_text(variant, coverage)
    barriers = [b for b in coverage.barriers if b.kind == "mbarrier"]
    assert barriers
    once = [*ONCE, *(PROMPT_ONCE if variant.knobs.get("mode") == "prefill" else ())]

    def is_filled_once(barrier) -> bool:
        line = text(barrier.where.line) or ""
        return any(re.search(each, line) for each in once) and bool(barrier.awaited or "_empty" in line)

    left = [
        f"{b} {text(b.where.line) or ''}"
        for b in barriers
        if (b.phases < 2 or not b.awaited) and not is_filled_once(b)
    ]
    assert not left, "\n".join(left)
    if variant.backend == "cutedsl" and (
        variant.op == "gqa_forward" or variant.knobs.get("mode") == "prefill"
    ):
        assert not coverage.unexecuted, coverage.describe(text)


MORE = r"(mbarrier\.init\.shared(?:::cta)?\.b64\s+\[[^\]]*\]), ([^;]*);"


@pytest.mark.parametrize(
    "name",
    [
        "gqa_forward__cutedsl_sm100a__bf16_d128_n64_st3_c2_z2",
        "sparse_mla__cutedsl_sm90a__h16_bf16_bt64_st2_cl2_sl2",
        "lightning_indexer__cutedsl_sm90a__decode_h64_q8_t256_st4_c1_e0",
    ],
)
def test_900_arrivals_too_many_are_seen_at_every_barrier(name) -> None:
    """The tiny workloads alone miss most of these: a ring that never wraps awaits no empty slot."""
    variant = variants.get(name)
    runs = [pair for pair in reach.workloads(variant) if pair[0].name.startswith("round")]

    def caught(number: int) -> bool:
        def edit(ptx: str) -> str:
            site = list(re.finditer(MORE, ptx))[number]
            more = f"{{ .reg .b32 %more; add.u32 %more, {site[2]}, 900; {site[1]}, %more; }}"
            return ptx[: site.start()] + more + ptx[site.end() :]

        for workload, launch in runs:
            executor = Emulator(Interleaving.lockstep(), edit=edit)
            try:
                trial.run(
                    variant,
                    workload,
                    executor,
                    example=trial.cached_example(variant.op, workload),
                    launch=launch,
                )
            except EmulatorError as error:
                return error.finding.code == "deadlock"
        return False

    from dsl_kernels.runtime import bundle, store

    sites = len(re.findall(MORE, store.fetch(variant, bundle.PTX)[1].decode()))
    assert sites and not [number for number in range(sites) if not caught(number)]
