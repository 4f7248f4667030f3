"""Leaf maths of the indexer on tcgen05: a thread has one key's accumulators for itself."""

import tilelang.language as T

SOURCE = "#include <tl_templates/cuda/copy_sm100.h>\n"


@T.macro
def read_scores(dots, scores, slot, first, heads, thread):
    """Accumulators of this thread's key from column `first` on."""
    T.call_extern(
        "handle",
        f"tl::tcgen05_ld_32dp32bNx<{dots.shape[0]}, false>",
        scores[slot, 32 * (thread // 32), 0],
        first,
        T.address_of(dots[0]),
    )
