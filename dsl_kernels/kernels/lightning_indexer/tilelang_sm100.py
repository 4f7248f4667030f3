"""TileLang's functions for the indexer's leaves on tcgen05: a thread has all accumulators of one key."""

import tilelang.language as T

from ...device.tilelang.tcgen05 import move_columns

SOURCE = "#include <tl_templates/cuda/copy_sm100.h>\n"


@T.macro
def read_scores(dots, scores, slot, first, heads, thread):
    """Read the accumulators of this thread's key from column `first` on."""
    move_columns("ld", dots, scores, slot, first, thread)


@T.macro
def weigh_one(logit, dots, query, weight, fresh):
    """logit = sum_h weight[h] * max(dots[query, h], 0), for one query of a product.

    The sum is added to the logit, or replaces it where the logit is `fresh`.
    """
    heads = weight.shape[0]
    if fresh:
        logit[0] = 0.0
    for h in T.unroll(heads):
        logit[0] = logit[0] + T.max(dots[query * heads + h], 0.0) * weight[h]
