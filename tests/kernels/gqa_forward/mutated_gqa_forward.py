"""What breaks the texts of grouped-query attention: sequences, structures, and mutants that are no bug."""

from __future__ import annotations

from body_mutants import Only, Structure, workload

SIZES = {"b": 1, "heads": 1, "kv_heads": 1, "dim": 128}
# Heads that share keys; rows and keys that no tile divides; a tile that only the second warpgroup's rows see,
# so the first one acquires and releases it unused; scores whose maxima rise; more keys than queries.
SEQUENCES = (
    workload("ragged", "bf16", **{**SIZES, "b": 2, "heads": 3}, sq=70, skv=497),
    workload("apart_causal", "bf16", **{**SIZES, "heads": 2}, sq=130, skv=190, causal=1),
    workload("rising", "bf16", **SIZES, sq=40, skv=657, q_scale=40.0),
    workload("rising_causal", "bf16", **{**SIZES, "heads": 2, "kv_heads": 2}, sq=130, skv=380, q_scale=40.0,
             causal=1),
)  # fmt: skip

# On Blackwell a CTA has 256 rows. One CTA takes every item here, so that its rings wrap; half of the last
# items' rows do not exist, maxima rise, and the first side skips tiles that only rows of the second one see.
ONE_CTA = {"ctas": 1, "abreast": 1}
BLACKWELL_SEQUENCES = (
    workload("ragged_256", "bf16", **{**SIZES, "b": 2, "heads": 3}, sq=170, skv=330),
    workload("rising_256", "bf16", **SIZES, sq=200, skv=460, q_scale=40.0),
    workload("apart_causal_256", "bf16", **{**SIZES, "heads": 2}, sq=330, skv=390, causal=1),
    workload("rising_causal_256", "bf16", **{**SIZES, "heads": 2, "kv_heads": 2}, sq=200, skv=450,
             q_scale=40.0, causal=1),
)  # fmt: skip

HOPPER, BLACKWELL = "grouped-query attention, Hopper", "grouped-query attention, Blackwell"
STRUCTURES = (
    Structure(HOPPER, "gqa_forward__cutedsl_sm90a__bf16_d128_n160_st2_o1_c1_z2",
              tuple((each, {}) for each in SEQUENCES)),
    Structure(BLACKWELL, "gqa_forward__cutedsl_sm100a__bf16_d128_n64_st3_c1_z2",
              tuple((each, ONE_CTA) for each in BLACKWELL_SEQUENCES)),
)  # fmt: skip
MASKED = Only(
    "the mask of a first tile is arithmetic alone, and CuTe DSL's compiler moves it behind the wait that "
    "the release begins "
    "with: the PTX uses no score before it",
    {BLACKWELL: (1,)},
)
# Mutants that may survive, and why their kernel computes the same.
EXPLAINED: dict[str, str | Only] = {
    # `rise` is then 1 or 0, as True and False are numbers, and `unseen` is 8, which is true.
    "rise and unseen of online_softmax_lazily": (
        "a maximum that rises sooner than it must gives the same weights but for rounding, and a row that "
        "has seen a key has "
        "a finite one, whether that is asked or not"
    ),
    "unseen and bits of online_softmax_lazily": (
        "as floats, scores reach a limit where their bits do, and one that is not above zero always; and by "
        "then each row has "
        "seen a key, so that its maximum is finite"
    ),
    "attend: accumulate": Only(
        "the product of an item's first tile, which adds to zeros: 64 rows see at most two tiles of 64 or "
        "more keys in part, so "
        "that this loop goes round once at most",
        {HOPPER: (4,)},
    ),
    "release s_0 behind hide_keys": MASKED,
    "release s_1 behind hide_keys": MASKED,
}
