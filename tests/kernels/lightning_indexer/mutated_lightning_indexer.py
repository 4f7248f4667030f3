"""What breaks scoring's texts: sizes, structures, and why some mutants are no bug."""

from __future__ import annotations

from collections.abc import Mapping

from body_mutants import Only, Structure, workload

from dsl_kernels_lab.oracles import Workload

# Few CTAs, so that each takes more than one share of the work.
FEW = {"ctas": 3}
# No two sizes are equal, so that swapped arguments show.
DECODE = workload(
    "distinct_decode",
    "decode",
    lens=[
        [5, 640, 7, 30, 9],
        [300, 1, 520, 8, 70],
        [0, 1, 2, 0, 1],
        [77, 2, 3, 4, 150],
        [1000, 64, 128, 6, 65],
        [4400, 4390, 4350, 90, 4300],
    ],
    heads=64,
    pages=120,
    spare_pages=2,
    skip_below=2,
)
# One sequence, distributed tile by tile, unlike the first workload; three fetches of the block table per CTA.
ALONE = workload("alone_decode", "decode", lens=[[13500, 13000, 9]], heads=64, pages=220, spare_pages=2)


def _many(form: str, heads: int) -> tuple[tuple[Workload, Mapping[str, int]], ...]:
    """More sequences than a warp has lanes, and the last ones are longest in their last query.

    There are fewer queries of a sequence than CTAs, and fewer CTAs than sequences.
    """
    lens = [*([40 + i, 3, 0] for i in range(32)), [5, 9, 300], [130, 1, 64], [77, 4, 200]]
    own = {"heads" if form == "decode" else "index_heads": heads}
    rows = workload(f"many_{form}_h{heads}", form, lens=lens, **own, pages=50, skip_below=2)
    return ((rows, {"ctas": 4}),)


# Lists of blocks that two rows share, one-byte scales and maxima; then pages, distributed tile by tile.
BLOCKS = workload(
    "distinct_blocks",
    "decode_blocks",
    lens=[[333], [0], [640], [77], [1777], [1], [1290]],
    index_heads=40,
    index_dim=96,
    page_size=64,
    block_size=8,
    pages=40,
    spare_pages=3,
    sharing=2,
    mx=1,
    maxima=1,
    skip_below=2,
)
ALONE_BLOCKS = workload(
    "alone_blocks",
    "decode_blocks",
    lens=[[5013]],
    index_heads=64,
    index_dim=128,
    page_size=64,
    pages=90,
    spare_pages=2,
    maxima=1,
)
# More rows than a warp has lanes, in lists of blocks or pages: the lanes read lengths again.
_MANY_ROWS = {"lens": [*([40 + i] for i in range(32)), [300], [130], [77]], "pages": 60, "skip_below": 2}
MANY_BLOCKS = workload(
    "many_blocks", "decode_blocks", index_heads=40, index_dim=96, page_size=64, block_size=8, mx=1, maxima=1,
    **_MANY_ROWS,
)  # fmt: skip
MANY_FOUR_BITS = workload("many_four_bits", "decode_mxfp4", index_heads=48, **_MANY_ROWS)
# Keys of 4 bits: lists of pages that two rows share; then one row, distributed tile by tile.
FOUR_BITS = workload(
    "distinct_four_bits",
    "decode_mxfp4",
    lens=[[333], [0], [1290], [77], [4400], [1], [640]],
    index_heads=48,
    pages=80,
    spare_pages=3,
    sharing=2,
    skip_below=2,
)
ALONE_FOUR_BITS = workload(
    "alone_four_bits", "decode_mxfp4", lens=[[13500]], index_heads=64, pages=220, spare_pages=2
)


def _steps_of_four_bits(heads: int, queries: int, odd: int) -> tuple[tuple[Workload, Mapping[str, int]], ...]:
    """Several queries of a sequence, whose longest prefix is neither the first one's nor the last one's.

    `queries` need all products of a key tile, and the last product has a row to spare. Shares are contiguous,
    and of one sequence a CTA has more tiles than one fetch of the block table names.

    `odd` queries need an odd number of products, so a product goes to either accumulator. Three CTAs take the
    tiles of one sequence in turn, with three fetches of the block table each.
    """

    def lens(count: int, *longest: int) -> list[list[int]]:
        return [[max(0, n - 23 * abs(i - 6)) for i in range(count)] for n in longest]

    return (
        (
            workload(
                f"distinct_steps_of_four_bits_h{heads}", "decode_mxfp4",
                lens=lens(queries, 333, 1, 640, 150, 4400, 77), index_heads=heads - 8, pages=80,
                spare_pages=3, sharing=4, skip_below=2,
            ),
            {"ctas": 2},
        ),
        (
            workload(
                f"alone_steps_of_four_bits_h{heads}", "decode_mxfp4", lens=lens(odd, 13500),
                index_heads=heads, pages=220, spare_pages=2,
            ),
            FEW,
        ),
        *_many("decode_mxfp4", heads),
    )  # fmt: skip


PROMPT_OF_FOUR_BITS = workload(
    "distinct_prompt_of_four_bits", "prefill_mxfp4", s=13, skv=390, index_heads=48, windows="ragged",
    compressed=1, skip_below=2,
)  # fmt: skip
PREFILL = workload("distinct_prefill", "prefill", s=13, skv=390, heads=64, windows="ragged", skip_below=2)

STRUCTURES = (
    Structure("scoring decode, Hopper", "lightning_indexer__cutedsl_sm90a__decode_h64_q8_t256_st4_c1_e0",
              ((DECODE, FEW), (ALONE, FEW), *_many("decode", 64))),
    Structure("scoring prefill, Hopper", "lightning_indexer__cutedsl_sm90a__prefill_h64_q8_t128_st4_c1_e0",
              ((PREFILL, {"splits": 2}),)),
    Structure("scoring decode, Blackwell", "lightning_indexer__cutedsl_sm100a__decode_h64_q8_t128_st6_c1_e0",
              ((DECODE, FEW), (ALONE, FEW), *_many("decode", 64))),
    Structure("scoring of blocks, Hopper",
              "lightning_indexer__cutedsl_sm90a__decode_h64_q1_t64_st3_c4_e0_blocks",
              ((BLOCKS, FEW), (ALONE_BLOCKS, FEW), (MANY_BLOCKS, {"ctas": 4}))),
    Structure("scoring of blocks, Blackwell",
              "lightning_indexer__cutedsl_sm100a__decode_h64_q1_t128_st8_c1_e0_blocks",
              ((BLOCKS, FEW), (ALONE_BLOCKS, FEW), (MANY_BLOCKS, {"ctas": 4}))),
    Structure("scoring of 4 bits, Blackwell",
              "lightning_indexer__cutedsl_sm100a__decode_h64_q1_t128_st8_c1_e0_mxfp4",
              ((FOUR_BITS, FEW), (ALONE_FOUR_BITS, FEW), (MANY_FOUR_BITS, {"ctas": 4}))),
    Structure("scoring of 4 bits, steps",
              "lightning_indexer__cutedsl_sm100a__decode_h64_q16_t128_st8_c1_e0_mxfp4",
              _steps_of_four_bits(64, 15, 13)),
    Structure("scoring of 4 bits, steps of 32 heads",
              "lightning_indexer__tilelang_sm100a__decode_h32_q16_t128_st8_c1_e0_mxfp4",
              _steps_of_four_bits(32, 15, 11)),
    Structure("scoring of 4 bits, prompts",
              "lightning_indexer__cutedsl_sm100a__prefill_h64_q4_t128_st6_c1_e0_mxfp4",
              ((PROMPT_OF_FOUR_BITS, {"splits": 2}),)),
    Structure("scoring prefill, Blackwell",
              "lightning_indexer__cutedsl_sm100a__prefill_h64_q4_t128_st6_c1_e0",
              ((PREFILL, {"splits": 2}),)),
)  # fmt: skip

HELD_LONGER = "the scores are in registers by then: accumulators are only held longer"
# The last of 8 (of 32 heads, of 4) products of a tile is issued only if a tile has them all, so after an odd
# number of products in all.
UNUSED = "a tile's last possible product always goes to the second accumulator"
# Mutants that may survive, and why their kernel computes the same.
EXPLAINED: dict[str, str | Only] = {
    "mma: one more of i": "each product of a round is guarded",
    "release scores behind load_weights": "the weights do not come from what the release waits for",
    "release scores_0 behind weigh_one": HELD_LONGER,
    "release scores_1 behind weigh_one": HELD_LONGER,
    "seq and query of store_logits": Only(
        "rows of one query lie alike along both axes of dense scores, which all workloads have",
        {"scoring of blocks, Hopper": (1,)},
    ),
    "mma: drop release query_factors": Only(
        "the scales of a prompt's queries fill each of the two slots once",
        {"scoring of 4 bits, prompts": (1, 2)},
    ),
    **{
        f"mma: {slip}": Only(
            UNUSED, {"scoring of 4 bits, steps": (wide,), "scoring of 4 bits, steps of 32 heads": (narrow,)}
        )
        for slip, wide, narrow in (
            ("drop acquire scores_0", 8, 4),
            ("twice acquire scores_0", 8, 4),
            ("acquire scores_0 behind multiply", 8, 4),
            ("accumulate", 15, 7),
            ("drop commit scores_0", 8, 4),
            ("twice commit scores_0", 8, 4),
            ("commit scores_0 before multiply", 8, 4),
        )
    },
    "drop depend": "without it a launch waits for the whole kernel before it",
}
