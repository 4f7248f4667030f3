"""Seeded bugs of PTX of scoring: a variant, a workload, splits (0: as planned), what is broken."""

from __future__ import annotations

from seeded_bugs import ALL_BYTES, ARRIVE, BYTES, COMMIT, FENCED, FREED, LOADED, MEET, WAIT, WGMMA

from dsl_kernels_lab.oracles import Workload

# The indexer's own small workloads give a CTA too few tiles to reuse a slot, so a lost release is no bug
# there.
LONG = {
    "prefill_long": Workload("prefill_long", "edge", "prefill", {"s": 4, "skv": 1100, "heads": 64}),
}

CASES = (
    ("lightning_indexer__tilelang_sm100a__decode_h64_q1_t128_st8_c1_e0", "decode_ragged", 0, (WAIT, BYTES)),
    ("lightning_indexer__cutedsl_sm100a__decode_h64_q1_t128_st8_c1_e0", "decode_ragged", 0,
     (WAIT, BYTES, LOADED, MEET)),
    ("lightning_indexer__cutedsl_sm100a__prefill_h64_q4_t128_st6_c1_e0", "prefill_long", 1,
     (ARRIVE, COMMIT, WAIT, BYTES, LOADED, FENCED, MEET, FREED)),
    ("lightning_indexer__tilelang_sm90a__prefill_h64_q8_t128_st4_c1_e0", "prefill_ragged", 0,
     (WAIT, ALL_BYTES)),
    ("lightning_indexer__cutedsl_sm90a__decode_h64_q8_t256_st4_c1_e0", "decode_ragged", 0,
     (WAIT, ALL_BYTES, WGMMA)),
)  # fmt: skip
