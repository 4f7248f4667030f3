"""The synchronisation actions of a pipeline's two sides, as the barrier plan lists them."""

from __future__ import annotations

from enum import Enum


class Action(str, Enum):
    """One synchronisation action: the name of its macro, and its description in words."""

    words: str

    def __new__(cls, macro: str, words: str) -> Action:
        action = str.__new__(cls, macro)
        action._value_, action.words = macro, words
        return action

    WAIT_EMPTY = "wait_empty", "wait empty"
    EXPECT_TX = "arrive_expect_tx", "arrive + expect bytes"
    NOINC_ARRIVE_FULL = "cp_async_arrive_noinc", "hardware arrives per thread"
    ARRIVE_FULL = "arrive_full", "arrive full"
    COMMIT_FULL = "commit_full", "commit -> full"
    WAIT_FULL = "wait_full", "wait full"
    WAIT_WORDS = "wait_words", "look for words, leave zeros, meet"
    ARRIVE_EMPTY = "arrive_empty", "arrive empty"
    COMMIT_EMPTY = "commit_empty", "commit -> empty"
    ARRIVE_EMPTY_CLUSTER = "arrive_empty_cluster", "arrive empty in every CTA"
    COMMIT_EMPTY_CLUSTER = "commit_empty_cluster", "commit -> empty in every CTA"
    EXPECT_TX_WARP = "arrive_expect_tx_warp", "arrive + expect a part of the bytes of other CTAs"
    EXPECT_TX_PAIR = "arrive_expect_tx_pair", "the first CTA arrives + expects the bytes of both"
    ARRIVE_FULL_PAIR = "arrive_full_pair", "arrive full in the first CTA"
    COMMIT_FULL_PAIR = "commit_full_pair", "commit -> full in both CTAs"
    COMMIT_EMPTY_PAIR = "commit_empty_pair", "commit -> empty in both CTAs"
    ARRIVE_EMPTY_PAIR = "arrive_empty_pair", "arrive empty in the first CTA"
    FENCE_PROXY = "fence_proxy_async", "fence.proxy.async"
    FENCE_BEFORE = "tcgen05_fence_before", "fence before"
    FENCE_AFTER = "tcgen05_fence_after", "fence after"
    WAIT_TMEM_LOAD = "tmem_wait_load", "wait::ld"
    WAIT_TMEM_STORE = "tmem_wait_store", "wait::st"
    WAIT_WGMMA = "wgmma_wait", "wgmma wait"
    ELECT = "one_lane_a_warp", "one lane a warp"


Actions = tuple[Action, ...]
