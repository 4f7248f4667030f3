"""TileLang's settings for the exact top-k selection, whose leaves all have a text."""

from ...device.tilelang.scalars import ceildiv

__all__ = ["ceildiv"]

PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
}

# TileLang has no pass over a sampled row. That pass picks one of 16 registers by a number that is known at
# run time only, and TileLang's kernels spilled 76 to 192 words.
UNSPELLED = ("list_row",)
