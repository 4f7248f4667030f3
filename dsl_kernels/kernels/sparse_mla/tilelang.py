"""TileLang's settings for sparse MLA on Hopper. All leaves have a text."""

# `send_scores`: TileLang has no store that completes on another CTA's barrier, and slices need one.
# `copy_query_rows`: on Hopper, heads on M need functions on rows of a tile that TileLang lacks.
UNSPELLED = ("send_scores", "copy_query_rows")

# On Hopper each thread holds its own registers of a tile, as the products leave them.
OWN_REGISTERS = True

# TileLang must add no barriers to the declared ones.
PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
    "tl.enable_fast_math": True,
}
