"""What TileLang is told of sparse attention on Hopper, whose leaves all have a text."""

# TileLang has no store that completes on another CTA's barrier, which slices need. Heads on M on Hopper lack
# the functions on rows of a tile.
UNSPELLED = ("send_scores", "copy_query_rows")

# On Hopper threads hold tiles of registers by themselves, as products leave them.
OWN_REGISTERS = True

# Barriers are the declared ones: TileLang adds none of its own.
PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
    "tl.enable_fast_math": True,
}
