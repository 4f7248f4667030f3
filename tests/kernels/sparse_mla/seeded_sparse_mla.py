"""Seeded bugs of PTX of sparse attention: a variant, a workload, splits (0: as planned), what is broken."""

from __future__ import annotations

from seeded_bugs import (
    ARRIVE,
    BYTES,
    CLUSTER,
    COLUMN,
    COMMIT,
    FENCED,
    FREED,
    INIT,
    LOADED,
    LOOK,
    MEET,
    NOINC,
    PROXY,
    RANK,
    SENT,
    SHAPE,
    STORED,
    SWIZZLE,
    WAIT,
    WGMMA,
    ZEROS,
)

from dsl_kernels_lab.oracles import Workload

LONG = {
    "dealt": Workload("dealt", "edge", "bf16", {"t": 3, "heads": 64, "topk": 192, "n": 700}),
    "dealt_16": Workload("dealt_16", "edge", "bf16", {"t": 3, "heads": 16, "topk": 192, "n": 700}),
    "dealt_fp8":
        Workload("dealt_fp8", "edge", "fp8", {"t": 3, "heads": 16, "topk": 192, "n": 700, "sm_scale": 0.3}),
}  # fmt: skip
# Three queries on one CTA, each of which reuses the slot of the queries.
LAUNCHES = {name: {"splits": 1, "ctas": 1} for name in LONG}

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
)  # fmt: skip
