"""What TileLang is told of the exact top-k selection, whose leaves all have a text."""

from ...device.tilelang.scalars import ceildiv

__all__ = ["ceildiv"]

PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
}

# Not the pass over a sampled row: a batch of it is 16 registers of which one is picked by a number known at run time, and
# TileLang's kernels spilled 76 to 192 words.
UNSPELLED = ("list_row",)
