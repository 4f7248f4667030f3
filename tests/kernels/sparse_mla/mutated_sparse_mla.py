"""What breaks attention's texts: ids, structures, and why some mutants are no bug."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

from body_mutants import Only, Structure, workload

from dsl_kernels_lab.oracles import Workload


def _attention(
    form: str, heads: int, *splits: int, topk: int = 448, lengths: bool = True
) -> tuple[tuple[Workload, Mapping[str, int]], ...]:
    """A tail leaves the last tiles without a valid id, holes the first. An unsplit call ends differently.

    The cheapest run is first, as it catches most.

    Rows between pages of the first form belong to none.

    Three splits have unequal shares of 16 or 64 heads to merge.

    One of the lengths is past the row of ids, one is negative, and one is between.
    """

    def ids(pattern: str, t: int) -> Workload:
        pages = {"page_size": 53} if pattern == "holes" else {}
        # Examples are drawn and kept by name, so two sizes must not share one.
        size = "" if topk == 448 else f"_k{topk}"
        return workload(
            f"{pattern}_{form}_h{heads}{size}", form, t=t, heads=heads, topk=topk, n=700, sink=True,
            lse_scale=0.7, ids=pattern, **pages
        )  # fmt: skip

    cut = workload(f"cut_{form}_h{heads}", form, t=3, heads=heads, topk=182, n=200, ids="holes", lengths=True)
    return (
        (ids("tail", 1), {"splits": splits[0]}),
        *((ids("holes", 3), {"splits": each}) for each in splits),
        *(((cut, {"splits": splits[-1]}),) if lengths else ()),
    )


def _v4(
    heads: int, *splits: int, form: str = "v4", topk: int = 330
) -> tuple[tuple[Workload, Mapping[str, int]], ...]:
    """Two scopes with different pages; lengths of both, at most `topk` ids; one query has no ids in either.

    Where the first scope has fewer tiles than there are splits, some begin in the second one.
    """
    sizes = {"heads": heads, "topk": topk, "n": 700, "sink": True, "lse_scale": 0.7, "v4_extra_topk": 250}
    if form == "v41":
        sizes["planar"] = True  # scales of a page together: where they begin depends on the page's size
    return (
        *_attention(form, heads, *splits, lengths=False),
        (
            workload(
                f"lengths_{form}_h{heads}", form, t=4, ids="holes", lengths=True, empty_lse=math.inf,
                page_size=53, **sizes
            ),
            {"splits": splits[0]},
        ),
    )  # fmt: skip


# Two CTAs for the pairs of tiles of three queries, in which one tile or none has a valid id: distributed
# regardless of queries, and by whole queries.
def _dealt(form: str, heads: int) -> tuple[tuple[Workload, Mapping[str, int]], ...]:
    islands = workload(
        f"islands_{form}_h{heads}", form, t=3, heads=heads, topk=448, n=700, sink=True, lse_scale=0.7,
        ids="islands"
    )  # fmt: skip
    return tuple((islands, {"splits": splits, "ctas": 2}) for splits in (3, 1))


# The first query has no valid id, and its CTA alone writes it.
def _one_empty(form: str, heads: int) -> tuple[tuple[Workload, Mapping[str, int]], ...]:
    row = workload(f"mixed_{form}_h{heads}", form, t=2, heads=heads, topk=130, n=200, ids="mixed")
    return ((row, {"splits": 1}),)


# All valid ids of a tile are in its upper half, and one tile of a pair or none has any.
def _upper_half(form: str, heads: int) -> tuple[tuple[Workload, Mapping[str, int]], ...]:
    upper = workload(f"upper_{form}_h{heads}", form, t=3, heads=heads, topk=448, n=700, ids="upper")
    return ((upper, {"splits": 1}),)


# Padding past all tokens: what takes such an id for a token, even for a fetch, leaves the cache.
def _past(form: str, heads: int, **sizes: int) -> tuple[tuple[Workload, Mapping[str, int]], ...]:
    past = workload(f"past_{form}_h{heads}", form, t=2, heads=heads, topk=300, n=400, ids="past", **sizes)
    return ((past, {"splits": 1}),)


STRUCTURES = (
    Structure("attention bf16, Hopper", "sparse_mla__cutedsl_sm90a__h8_bf16_bt64_st2_cl2_sl2",
              _attention("bf16", 8, 8, 2, topk=640)),
    Structure("attention of whole rows fp8, Hopper", "sparse_mla__tilelang_sm90a__h16_fp8_bt64_st2_cl2",
              _attention("fp8", 16, 4, 2)),
    Structure("attention of whole rows bf16, Hopper", "sparse_mla__tilelang_sm90a__h8_bf16_bt64_st2_cl1",
              _attention("bf16", 8, 2, 1)),
    Structure("attention wide, Hopper", "sparse_mla__cutedsl_sm90a__h64_bf16_bt64_st2_cl1_hb64",
              (*_attention("bf16", 64, 2, 1), *_dealt("bf16", 64), *_upper_half("bf16", 64))),
    Structure("attention of DeepSeek-V4, Hopper", "sparse_mla__cutedsl_sm90a__h16_v4_bt64_st2_cl2",
              _v4(16, 4, 2)),
    Structure("attention of slices of DeepSeek-V4, Hopper",
              "sparse_mla__cutedsl_sm90a__h8_v4_bt64_st2_cl2_sl2", _v4(8, 8, 2, topk=100)),
    Structure("attention exchanged of DeepSeek-V4, Hopper",
              "sparse_mla__cutedsl_sm90a__h128_v4_bt64_st2_cl1_hb64_ex2",
              (*_v4(128, 3, 1), *_dealt("v4", 128), *_past("v4", 128, v4_extra_topk=250, page_size=50))),
    Structure("attention exchanged, Hopper", "sparse_mla__cutedsl_sm90a__h128_fp8_bt64_st2_cl1_hb64_ex2",
              (*_attention("fp8", 128, 2, 1), *_dealt("fp8", 128), *_upper_half("fp8", 128),
               *_past("fp8", 128))),
    Structure("attention bf16, Blackwell", "sparse_mla__cutedsl_sm100a__h16_bf16_bt64_cl1_cp_async",
              (*_attention("bf16", 16, 2, 3, 1), *_dealt("bf16", 16))),
    Structure("attention with heads on M, Blackwell",
              "sparse_mla__cutedsl_sm100a__h64_bf16_bt64_cl1_hb64_gather4",
              (*_attention("bf16", 64, 2, 3, 1), *_dealt("bf16", 64))),
    Structure("attention of a pair of CTAs, Blackwell",
              "sparse_mla__cutedsl_sm100a__h128_bf16_bt128_cl1_gather4",
              (*_attention("bf16", 128, 2, 1), *_dealt("bf16", 128), *_upper_half("bf16", 128))),
    Structure("attention of DeepSeek-V4, Blackwell", "sparse_mla__cutedsl_sm100a__h16_v4_bt64_cl1_cp_async",
              (*_v4(16, 3, 1), *_dealt("v4", 16))),
    Structure("attention of 528-byte tokens, Hopper",
              "sparse_mla__tilelang_sm90a__any_nope8_bt64_st2_cl1_hb16", _attention("nope8", 20, 2, 1)),
    Structure("attention of DeepSeek-V4.1, Hopper", "sparse_mla__cutedsl_sm90a__any_v41_bt64_st2_cl1_hb16",
              _v4(20, 2, 1, form="v41")),
    Structure("attention fp8, Blackwell", "sparse_mla__cutedsl_sm100a__h16_fp8_bt64_cl1_cp_async",
              (*_attention("fp8", 16, 3, 1), *_dealt("fp8", 16))),
    Structure("attention fp8 as stored, Blackwell",
              "sparse_mla__cutedsl_sm100a__h16_fp8_bt64_cl1_cp_async_terms2",
              (*_attention("fp8", 16, 3, 1), *_dealt("fp8", 16), *_one_empty("fp8", 16))),
)  # fmt: skip

FETCHED = "no bit depends on what the L2 holds, and what is fetched is in the cache"
SUMS_LATER = "the sums are committed after the last product of keys and values, and awaited before a CTA ends"
OTHER_TILE = "of the other side's tile it asks only whether there is a valid id"
MASKED = (
    "the mask is arithmetic alone, and CuTe DSL's compiler moves it after the wait that the release begins "
    "with"
)
# Mutants that may survive, and why their kernel computes the same.
EXPLAINED: dict[str, str | Only] = {
    "one more of turn": "a turn behind the last one finds no valid id, and a tile without one is skipped",
    "mma: low and high of vote": "it asks only whether there is a valid id in either half",
    "softmax: drop meet softmax": Only(
        "the scores come after the terms of all warps: the product waits for each",
        {"attention fp8 as stored, Blackwell": (2,)},
    ),
    "gather: low and high of vote": "a gather asks only whether there is a valid id in either half",
    "producer: low and high of vote": "a gather asks only whether there is a valid id in either half",
    "unpack: low and high of vote": "who unpacks asks only whether there is a valid id in either half",
    "gather_left: low and high of vote": "a gather asks only whether there is a valid id in either half",
    "gather_right: low and high of vote": "a gather asks only whether there is a valid id in either half",
    "front: low and high of vote": "a gather asks only whether there is a valid id in either half",
    "back: low and high of vote": "a gather asks only whether there is a valid id in either half",
    **{
        f"{first} and {second} of fetch_v4_half": FETCHED
        for first, second in itertools.pairwise(("page_inverse", "page_shift", "page_size"))
    },
    **{
        f"gather_{side}: not of_extra": Only(FETCHED, {"attention exchanged of DeepSeek-V4, Hopper": (3,)})
        for side in ("left", "right")
    },
    "left: low and high of vote": Only(OTHER_TILE, {"attention wide, Hopper": (2, 4)}),
    "right: low and high of vote": Only(OTHER_TILE, {"attention wide, Hopper": (1, 3)}),
    "left: release kv_right behind rescale_rows": "P, which is let go before, has waited for the product",
    "right: release kv_left behind rescale_rows": "P, which is let go before, has waited for the product",
    "left: accumulate": Only(
        "the first product of a query adds to zeros",
        {"attention exchanged of DeepSeek-V4, Hopper": (2,), "attention exchanged, Hopper": (2,)},
    ),
    "release q behind share_sums": "the queries' memory goes back a little later",
    "softmax: release s behind mask_half": MASKED,
    "softmax: release s behind mask_rows": MASKED,
    "right: release far_left behind rescale_rows": "P, which is let go before, has waited for the product",
    "twice drain k": "the second time all slots are free already",
    "twice drain v": "the second time all slots are free already",
    "values: not (!= rank 0)": "values are gathered from the rows of both sides",
    "keys: low and high of vote": "a gather asks only whether there is a valid id",
    "values: low and high of vote": "a gather asks only whether there is a valid id",
    "keys: drop drain k": SUMS_LATER,
    "values: drop drain v": SUMS_LATER,
    "twice drain p": "the second time all slots are free already",
    "twice drain qs": "the second time all slots are free already",
    "twice drain qt": "the second time all slots are free already",
    "right: lse_scale and empty_lse of merge_parts": "the left side stores the lse",
    "drop depend": "without it a launch waits for the whole kernel before it",
}
