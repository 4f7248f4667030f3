"""Seeded bugs of PTX of grouped-query attention: variant, workload, splits (0: as planned), what breaks."""

from __future__ import annotations

from seeded_bugs import CLUSTER, COMMIT, RECEIVED, WAIT

from dsl_kernels_lab.oracles import Workload

LONG = {
    "shared":
        Workload("shared", "edge", "fp16",
                 {"b": 1, "sq": 130, "skv": 300, "heads": 4, "kv_heads": 2, "dim": 128, "causal": 1}),
}  # fmt: skip
# Two items on one cluster, with more tiles than the ring has slots.
LAUNCHES = {"shared": {"ctas": 1, "abreast": 1}}

CASES = (
    ("gqa_forward__cutedsl_sm100a__fp16_d128_n64_st3_c2_z2", "shared", 0, (COMMIT, RECEIVED, WAIT, CLUSTER)),
    ("gqa_forward__tilelang_sm100a__fp16_d128_n64_st3_c2_z2", "shared", 0, (COMMIT, WAIT, CLUSTER)),
)  # fmt: skip
