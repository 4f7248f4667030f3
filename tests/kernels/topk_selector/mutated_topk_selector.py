"""What breaks selection's texts: scores, structures, and why some mutants are no bug."""

from __future__ import annotations

from dataclasses import replace

from body_mutants import Only, Structure, workload

# Rows taken whole, rows that fit in registers and rows that do not; ties, and more undecided keys than can be
# listed.
TIES = workload(
    "ties_paged",
    "default",
    lens=[6101, 40, 300],
    k=70,
    scores="ties",
    starts=[3, 0, 17],
    page_size=64,
    pages=400,
)
BUCKET = workload(
    "bucket_rows", "default", lens=[5003, 2100, 900], k=129, scores="bucket", starts=[1, 250, 6]
)
# Equal keys that are listed, and more of them than are ranked against each other.
TIED = workload("tied_row", "default", lens=[2900], k=520, scores="ties")
EQUAL = workload("equal_row", "default", lens=[4500], k=300, scores="outlier")
# A row that the registers of a cluster cannot hold.
LONG = workload(
    "long_row", "default", lens=[33001], k=260, scores="bucket", starts=[5], page_size=64, pages=600
)
# Such a row with scores close together; nothing precedes its first column, as garbage there would widen the
# range.
LONG_NEAR = workload("long_row_of_close_scores", "default", lens=[50003], k=300, scores="tight")
# Equal negative keys, few and many, and a row taken whole whose positions count from column 0.
TIED_MANY = workload("many_ties_below_zero", "default", lens=[1500], k=1000, scores="outlier")
TIED_LOW = workload("tied_row_below_zero", "default", lens=[2900], k=2300, scores="ties")
# Short lists, and rounds over them that leave no key undecided.
DECIDED = workload("decided_rows", "default", lens=[400, 370, 340, 310], k=20, scores="tight")
# Undecided keys far below zero, in a range whose `end` and `span` are nearly equal: taken for each other,
# they name only some of these keys.
FAR_BELOW = workload("row_far_below_zero", "default", lens=[1500], k=500, scores="far_below")
COLUMNS = workload("columns_of_a_short_row", "default", lens=[40], k=70, starts=[17], absolute=1)
SELECTION = tuple((each, {}) for each in (TIES, BUCKET, TIED, TIED_LOW, TIED_MANY, EQUAL, COLUMNS, DECIDED))
# With options: outputs beside ids or instead of them, for rows taken whole and others; ties that are resolved
# to the higher position, which are marked, ranked, or more than can be listed.
BESIDE = workload(
    "values_and_positions_beside_ids", "options", lens=[2900, 40], k=520, scores="ties", starts=[7, 3],
    page_size=64,
    pages=400, mapped=[0, 2], values=1, positions=1, ties_higher=1,
)  # fmt: skip
OFFSET = workload(
    "offset_positions", "options", lens=[1500, 40], k=70, scores="ties", starts=[17, 5], absolute=1,
    offsets=[700, 9000],
    values=1, ties_higher=1,
)  # fmt: skip
EQUAL_HIGHER = workload(
    "equal_row_from_its_end", "options", lens=[4500], k=300, scores="outlier", ties_higher=1
)
WITH_OPTIONS = (
    *((replace(each, name=f"{each.name}_options", form="options"), launch) for each, launch in SELECTION),
    *((each, {}) for each in (BESIDE, OFFSET, EQUAL_HIGHER)),
    (replace(FAR_BELOW, name=f"{FAR_BELOW.name}_options", form="options"), {}),
)
# A row for which the list from a sample suffices, and rows that overflow it.
SAMPLED = workload(
    "sampled_row", "default", lens=[20001, 4700], k=700, starts=[7, 2], page_size=64, pages=600
)
OVERFLOW = workload(
    "overflowing_rows",
    "default",
    lens=[14011, 12203],
    k=1300,
    scores="levels",
    starts=[5, 41],
    page_size=64,
    pages=600,
)
# Rows whose sample is larger than everything else, so that its list fails: everything else is more than can
# be listed; the sample's ties are too few, or suffice together with what is listed; a row that fits in
# registers is not listed at all.
MISLED = workload("misled_rows", "default", lens=[14011, 9203], k=1300, scores="sampled_ties", starts=[5, 3])
MISLED_FEW = workload("misled_row_of_few", "default", lens=[5003], k=130, scores="sampled_ties")
MISLED_HELD = workload("misled_row_that_is_held", "default", lens=[3900], k=130, scores="sampled_ties")
# Ties that are searched for: over several batches, below larger keys; at zero, like what is not read; among
# columns before the row with the same score.
SHELF = workload("ties_of_several_batches", "default", lens=[13007], k=2048, scores="shelf", starts=[9])
STEPS = workload("ties_at_zero", "default", lens=[3400], k=2048, scores="steps", tail=1000)
AMONG = workload(
    "equal_row_among_equals", "default", lens=[4500], k=100, scores="equal", starts=[17], garbage=False
)
LISTED = tuple(
    (each, {}) for each in (SAMPLED, OVERFLOW, MISLED, MISLED_FEW, MISLED_HELD, SHELF, STEPS, AMONG)
)
# The same for a cluster, which samples rows that its registers cannot hold: no shorter row reaches its lists.
LONG_SAMPLED = workload(
    "long_sampled_rows", "default", lens=[36001, 33500], k=700, starts=[7, 2], page_size=64, pages=600
)
LONG_OVERFLOW = workload(
    "long_overflowing_rows", "default", lens=[34011, 33203], k=1300, scores="levels", starts=[5, 41],
    page_size=64, pages=600
)  # fmt: skip
LONG_MISLED = workload(
    "long_misled_rows", "default", lens=[34011, 33203], k=1300, scores="thinly_sampled_ties", starts=[5, 3]
)
LONG_MISLED_FEW = workload(
    "long_misled_row_of_few", "default", lens=[33003], k=130, scores="thinly_sampled_ties"
)
# The sample's largest keys are equal and few: with the keys outside it they are fewer than k, and are counted
# twice more.
LONG_FEW = workload("long_row_of_few_equal", "default", lens=[33003], k=130, scores="thinly_sampled_few")
LONG_SHELF = workload("long_shelf", "default", lens=[33007], k=2048, scores="shelf", starts=[9])
# Three batches per warp.
LONGER_SHELF = workload("longer_shelf", "default", lens=[67007], k=2048, scores="shelf", starts=[9])
LONG_STEPS = workload("long_ties_at_zero", "default", lens=[33400], k=2048, scores="steps", tail=1000)
# Numbers of columns, times the length of the row, do not fit into 32 bits.
LONGEST = workload("row_of_150000", "default", lens=[150000], k=700)
LONG_AMONG = workload(
    "long_row_among_equals", "default", lens=[34500], k=100, scores="equal", starts=[17], garbage=False
)
LISTED_TOGETHER = tuple(
    (each, {})
    for each in (
        LONG_SAMPLED, LONG_OVERFLOW, LONG_MISLED, LONG_MISLED_FEW, LONG_SHELF, LONG_STEPS, LONG_AMONG,
        LONG_FEW, LONGER_SHELF, LONGEST,
    )
)  # fmt: skip

STRUCTURES = (
    Structure("selection, one CTA a row", "topk_selector__cutedsl_sm90a__g1_t512_r8_c1",
              (*SELECTION, (FAR_BELOW, {}))),
    Structure("selection, a sample of a row", "topk_selector__cutedsl_sm90a__g1_t512_r8_c1_s16",
              (*SELECTION, *LISTED)),
    Structure("selection, a sample of a row in a cluster",
              "topk_selector__cutedsl_sm90a__g2_t1024_r16_c1_s64", (*SELECTION, *LISTED_TOGETHER)),
    Structure("selection, a cluster a row", "topk_selector__cutedsl_sm90a__g8_t512_r8_c1",
              (*SELECTION, (LONG, {}), (LONG_NEAR, {}), (FAR_BELOW, {}))),
    Structure("selection with options, one CTA a row", "topk_selector__cutedsl_sm90a__g1_t512_r8_c1_opt1",
              WITH_OPTIONS),
)  # fmt: skip

ONE, CLUSTER = "selection, one CTA a row", "selection, a cluster a row"
SAMPLED_ROW, TOGETHER = "selection, a sample of a row", "selection, a sample of a row in a cluster"
ONE_WITH_OPTIONS = "selection with options, one CTA a row"
ANY_SAMPLE = "whatever the sample was like: a list that will not do sends the row through the histogram"
ABOVE = "every key of that list lies above the range, and none is looked at further"
NARROWER = "the range of what the list holds saves rounds, and no result depends on it"
# Mutants that may survive, and why their kernel computes the same.
EXPLAINED: dict[str, str | Only] = {
    "select: first and rank of take_all": Only(
        "positions are written beside ids of pages: the first one is nought, as the rank of a lone CTA is",
        {ONE_WITH_OPTIONS: (2,)},
    ),
    "select: not (!= ties_higher 0)": Only(
        "a lone CTA skips no ties of other CTAs, whichever end they are taken from",
        {ONE_WITH_OPTIONS: (1, 2)},
    ),
    "select: before and take of take_last_ties": "it subtracts both",
    "end and span of pick_bin": Only(
        "the first round reads neither",
        {ONE: (1,), ONE_WITH_OPTIONS: (1,), SAMPLED_ROW: (1, 3), TOGETHER: (1,)},
    ),
    "end and span of pick_bin_of_group": Only(
        "the first round reads neither", {TOGETHER: (1,), CLUSTER: (1,)}
    ),
    "half and near of pick_bin_of_group": Only(
        "both are nought in every round but the first", {TOGETHER: (2,), CLUSTER: (2,)}
    ),
    "lower and end of pick_bin_of_group": Only(
        "without a sample before it, the first round has nought in both", {CLUSTER: (1,)}
    ),
    "select: meet before clear": "what is cleared is used a round later, behind further barriers",
    "start and last of load_sample": ANY_SAMPLE,
    "last and every of load_sample": Only(
        f"{ANY_SAMPLE}; a lone CTA samples rows so short that no column overflows", {SAMPLED_ROW: (1,)}
    ),
    "every and cta_warps of load_sample": Only(ANY_SAMPLE, {TOGETHER: (1,)}),
    "column and lo of make_keys": Only(ANY_SAMPLE, {SAMPLED_ROW: (1,), TOGETHER: (1,)}),
    "column and lo of count_first": Only(ANY_SAMPLE, {TOGETHER: (1,)}),
    "lo and hi of make_keys": Only(
        f"{ANY_SAMPLE}; and where no tie is found, too", {SAMPLED_ROW: (1, 2), TOGETHER: (1, 2)}
    ),
    "select: drop meet": Only(
        "before what a row without a list clears: all threads have met at the cluster's barrier behind "
        "their last read",
        {TOGETHER: (13,)},
    ),
    "select: not (> inside 384)": NARROWER,
    "target and end of sift": Only(ABOVE, {SAMPLED_ROW: (1,), TOGETHER: (1,)}),
    "span and inside of sift": Only(ABOVE, {SAMPLED_ROW: (1,), TOGETHER: (1,)}),
    "inside and ranked of sift": Only(ABOVE, {SAMPLED_ROW: (1,), TOGETHER: (1,)}),
    "cta_warps and words of sift": Only(
        "positions of a sampled row lie in one run of words", {SAMPLED_ROW: (1,)}
    ),
    "drop depend": "without it a launch waits for the whole kernel before it",
}
