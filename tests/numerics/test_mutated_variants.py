"""Bugs seeded into the PTX of our variants: the emulator's checks or the comparison must catch each.

`each` breaks one site at a time, all of which must be caught; `all` breaks every site at once, for operations
that are redundant at some sites (a second fence after a first).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from dsl_kernels import variants
from dsl_kernels.emulator import EmulatorError, interleavings
from dsl_kernels.executors import Emulator
from dsl_kernels.problems.base import Workload
from dsl_kernels_lab.verification import trial

pytestmark = [pytest.mark.emulator, pytest.mark.compile]

INTERLEAVINGS = 20


@dataclass(frozen=True)
class Mutation:
    """A textual change of PTX: its pattern, its replacement ("" drops the match), and its sites."""

    name: str
    pattern: str
    becomes: str | Callable[[re.Match[str]], str] = ""
    sites: str = "each"

    def edits(self, ptx: str) -> Iterator[str]:
        found = list(re.finditer(self.pattern, ptx))
        if self.sites == "all":
            if found:
                yield re.sub(self.pattern, self.becomes, ptx)
            return
        for match in found:
            new = self.becomes(match) if callable(self.becomes) else match.expand(self.becomes)
            yield ptx[: match.start()] + new + ptx[match.end() :]


def plus(number: int) -> Callable[[re.Match[str]], str]:
    """Increase the number in the second group."""
    return lambda match: f"{match[1]}{int(match[2]) + number}"


# Both DSLs' spellings: with and without ::cta and a count, expecting bytes with or without an arrival.
ARRIVE = Mutation("dropped arrive", r"mbarrier\.arrive\.shared(::cta)?\.b64 [^,]*, \[[^;]*;")
NOINC = Mutation("dropped arrival of asynchronous copies", r"cp\.async\.mbarrier\.arrive\.noinc[^;]*;")
COMMIT = Mutation("dropped commit", r"tcgen05\.commit[^;]*;")
WAIT = Mutation("waits that do not wait", r"mbarrier\.try_wait\.parity[^;]*;", "setp.eq.u32 P1, 0, 0;", "all")
PROXY = Mutation("dropped proxy fences", r"fence\.proxy\.async\.shared::cta;", "", "all")
LOADED = Mutation("dropped waits for tensor memory", r"tcgen05\.wait::ld[^;]*;", "", "all")
STORED = Mutation("dropped waits for stores to tensor memory", r"tcgen05\.wait::st[^;]*;", "", "all")
FENCED = Mutation(
    "dropped fences of tensor memory", r"tcgen05\.fence::(before|after)_thread_sync;", "", "all"
)
# CuTe DSL adds a descriptor's constant fields to its address at compile time; 2 << 61 is the 128-byte
# swizzle.
DESCRIPTOR = r"((?:or|add)\.[bs]64\s+%rd\d+, %rd\d+, )(4611\d{15})(?=;)"
SWIZZLE = Mutation("descriptors of another swizzle", DESCRIPTOR, plus(2 << 61))
COLUMN = Mutation("descriptors that start 32 bytes late", DESCRIPTOR, plus(2))
SHAPE = Mutation("products of more columns", r"(mov\.b32\s+%r\d+, )(67372176|134579344)(?=;)", plus(1 << 17))
FREED = Mutation("tensor memory that is not freed", r"tcgen05\.dealloc[^;]*;")
MEET = Mutation("dropped CTA barriers", r"bar\.sync[^;]*;", "", "all")
WGMMA = Mutation("dropped waits for wgmma", r"wgmma\.wait_group[^;]*;", "", "all")
BYTES = Mutation(
    "a barrier that expects other bytes",
    r"(mbarrier\.(?:arrive\.)?expect_tx[^\[]*\[[^\]]*\]), [^;]*;",
    r"\1, 48;",
)
CLUSTER = Mutation("dropped cluster barriers", r"barrier\.cluster\.(arrive|wait)[^;]*;", "", "all")
INIT = Mutation("mbarriers that are not published to the cluster", r"fence\.mbarrier_init[^;]*;")
ALL_BYTES = replace(BYTES, sites="all")
LOOK = Mutation(
    "words taken for there",
    r"(@p ld\.relaxed[^{]*\{(%r\d+), (%r\d+), (%r\d+), (%r\d+)\}[^;]*;)",
    r"\1 or.b32 \2, \2, 1; or.b32 \3, \3, 1; or.b32 \4, \4, 1; or.b32 \5, \5, 1;",
    "all",
)
SENT = Mutation("words that are not sent", r"st\.relaxed\.gpu\.global\.v\d\.f32 [^;]*;", "", "all")
ZEROS = Mutation("words that are left behind", r"st\.relaxed\.gpu\.global\.v4\.b32 [^;]*;", "", "all")
RANK = Mutation(
    "peers that read their own counts",
    r"mapa(\.shared::cluster)?\.u32 (%r\d+), (%r\d+), (%r\d+);",
    r"mov.u32 \2, \3;",
    "all",
)
DISTANCE = Mutation(
    "peers at no distance", r"(ld\.global(?:\.nc)?\.[bsu]64\s+)(%rd\d+), [^;]*;", r"mov.u64 \2, 0;", "all"
)
RECEIVED = Mutation("copies and commits that one CTA of two receives", r"(mov\.b16\s+%rs\d+), 3;", r"\1, 1;")

# The indexer's own small workloads give a CTA too few tiles to reuse a slot, so a lost release is no bug
# there.
LONG = {
    "prefill_long": Workload("prefill_long", "edge", "prefill", {"s": 4, "skv": 1100, "heads": 64}),
    "dealt": Workload("dealt", "edge", "bf16", {"t": 3, "heads": 64, "topk": 192, "n": 700}),
    "dealt_16": Workload("dealt_16", "edge", "bf16", {"t": 3, "heads": 16, "topk": 192, "n": 700}),
    "dealt_fp8":
        Workload("dealt_fp8", "edge", "fp8", {"t": 3, "heads": 16, "topk": 192, "n": 700, "sm_scale": 0.3}),
    "shared":
        Workload("shared", "edge", "fp16",
                 {"b": 1, "sq": 130, "skv": 300, "heads": 4, "kv_heads": 2, "dim": 128, "causal": 1}),
}  # fmt: skip
LAUNCHES = {
    # Three queries on one CTA, each of which reuses the slot of the queries.
    "dealt": {"splits": 1, "ctas": 1},
    "dealt_16": {"splits": 1, "ctas": 1},
    "dealt_fp8": {"splits": 1, "ctas": 1},
    # Two items on one cluster, with more tiles than the ring has slots.
    "shared": {"ctas": 1, "abreast": 1},
}

CASES = (
    ("sparse_mla__tilelang_sm100a__h16_bf16_bt64_cl1_cp_async", "dealt_16", 1,
     (ARRIVE, NOINC, COMMIT, WAIT, PROXY, LOADED, MEET)),
    ("sparse_mla__tilelang_sm100a__h16_bf16_bt64_cl1_gather4", "tiny", 1,
     (ARRIVE, COMMIT, WAIT, BYTES, MEET)),
    ("sparse_mla__cutedsl_sm100a__h16_bf16_bt64_cl1_cp_async", "dealt_16", 1,
     (ARRIVE, NOINC, COMMIT, WAIT, PROXY, LOADED, MEET, SWIZZLE, COLUMN, SHAPE)),
    ("sparse_mla__cutedsl_sm100a__h16_bf16_bt64_cl1_gather4", "tiny", 1, (ARRIVE, COMMIT, WAIT, BYTES, MEET)),
    ("sparse_mla__cutedsl_sm100a__h16_fp8_bt64_cl1_cp_async", "dealt_fp8", 1,
     (ARRIVE, COMMIT, WAIT, PROXY, LOADED, STORED, FENCED, FREED)),
    ("sparse_mla__tilelang_sm90a__h16_bf16_bt64_st2_cl1", "tiny", 1,
     (ARRIVE, NOINC, WAIT, PROXY, WGMMA, MEET)),
    ("sparse_mla__cutedsl_sm90a__h16_bf16_bt64_st2_cl2_sl2", "tiny", 2,
     (ARRIVE, NOINC, WAIT, PROXY, WGMMA, MEET, BYTES, RANK, CLUSTER, INIT)),
    ("sparse_mla__cutedsl_sm90a__h16_fp8_bt64_st2_cl2_sl2", "tiny", 4,
     (WAIT, BYTES, RANK, CLUSTER, INIT, LOOK, SENT, ZEROS)),
    ("sparse_mla__cutedsl_sm90a__h64_bf16_bt64_st2_cl1_hb64", "dealt", 1,
     (ARRIVE, NOINC, WAIT, PROXY, WGMMA, MEET)),
    ("lightning_indexer__tilelang_sm100a__decode_h64_q1_t128_st8_c1_e0", "decode_ragged", 0, (WAIT, BYTES)),
    ("lightning_indexer__cutedsl_sm100a__decode_h64_q1_t128_st8_c1_e0", "decode_ragged", 0,
     (WAIT, BYTES, LOADED, MEET)),
    ("lightning_indexer__cutedsl_sm100a__prefill_h64_q4_t128_st6_c1_e0", "prefill_long", 1,
     (ARRIVE, COMMIT, WAIT, BYTES, LOADED, FENCED, MEET, FREED)),
    ("lightning_indexer__tilelang_sm90a__prefill_h64_q8_t128_st4_c1_e0", "prefill_ragged", 0,
     (WAIT, ALL_BYTES)),
    ("lightning_indexer__cutedsl_sm90a__decode_h64_q8_t256_st4_c1_e0", "decode_ragged", 0,
     (WAIT, ALL_BYTES, WGMMA)),
    ("gqa_forward__cutedsl_sm100a__fp16_d128_n64_st3_c2_z2", "shared", 0, (COMMIT, RECEIVED, WAIT, CLUSTER)),
    ("gqa_forward__tilelang_sm100a__fp16_d128_n64_st3_c2_z2", "shared", 0, (COMMIT, WAIT, CLUSTER)),
    ("topk_selector__tilelang_sm90a__g8_t512_r8_c1", "starts", 0, (CLUSTER, RANK, MEET)),
    ("topk_selector__cutedsl_sm90a__g8_t512_r8_c1", "starts", 0, (CLUSTER, RANK, MEET)),
    ("merge_entries__tilelang_sm90a__n512_peers", "tiny", 0, (CLUSTER, DISTANCE)),
    ("merge_entries__tilelang_sm90a__n512_peers", "peers_many_entries", 0, (RANK,)),
    ("merge_entries__cutedsl_sm90a__n512_peers", "tiny", 0, (CLUSTER, DISTANCE)),
    ("merge_outputs__tilelang_sm90a__w4_peers", "tiny", 0, (DISTANCE,)),
    ("merge_outputs__cutedsl_sm90a__w4_peers", "tiny", 0, (DISTANCE,)),
)  # fmt: skip


def params():
    return [
        pytest.param(variant, workload, splits, mutation, id=f"{variant.split('__', 1)[1]}-{mutation.name}")
        for variant, workload, splits, mutations in CASES
        for mutation in mutations
    ]


def launch_of(workload: str, splits: int) -> dict[str, int]:
    return LAUNCHES.get(workload, {"splits": splits} if splits else {})


def small(variant: variants.Variant, name: str) -> Workload:
    """The workload of that name: one of LONG, or the problem's as fitted to the variant."""
    found = LONG.get(name)
    return found or next(w for w in trial.workloads(variant, "tiny", "edge") if w.name.startswith(name))


def original(variant: variants.Variant) -> str:
    from dsl_kernels.runtime import cache

    return (cache.artifact_for(variant) / "kernel.ptx").read_text()


def caught(variant: variants.Variant, workload, launch: dict[str, int], ptx: str) -> str | None:
    """How a broken kernel was caught, or None."""
    example = trial.cached_example(variant.op, workload)
    for interleaving in interleavings(INTERLEAVINGS):
        try:
            result = trial.run(
                variant,
                workload,
                Emulator(interleaving, edit=lambda _: ptx, strict=True),
                example=example,
                launch=launch,
            )
        except EmulatorError as error:
            return str(error)
        if not result.comparison.ok:
            return "; ".join(result.comparison.failures)
    return None


@pytest.mark.sample(40)
@pytest.mark.parametrize("name,workload,splits,mutation", params())
def test_a_seeded_bug_is_caught(name: str, workload: str, splits: int, mutation: Mutation) -> None:
    variant = variants.get(name)
    chosen = small(variant, workload)
    edits = list(mutation.edits(original(variant)))
    assert edits, f"the PTX has no site of: {mutation.name}"
    launch = launch_of(workload, splits)
    missed = [number for number, ptx in enumerate(edits) if caught(variant, chosen, launch, ptx) is None]
    assert not missed, f"{mutation.name}: {len(missed)} of {len(edits)} sites went unnoticed: {missed}"


@pytest.mark.sample(8)
@pytest.mark.parametrize("name,workload,splits,mutations", CASES, ids=[case[0] for case in CASES])
def test_the_unbroken_kernel_raises_nothing(name: str, workload: str, splits: int, mutations) -> None:
    variant = variants.get(name)
    chosen = small(variant, workload)
    launch = launch_of(workload, splits)
    assert caught(variant, chosen, launch, original(variant)) is None
