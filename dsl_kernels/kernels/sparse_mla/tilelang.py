"""What TileLang is told of sparse attention on Hopper, whose leaves all have a text."""

# TileLang has no store that completes on another CTA's barrier, which slices need, and on Hopper heads on M lack the functions on
# rows of a tile. On Blackwell heads on M print, compile and are right in the emulator; but what a thread takes of a query, 64 dims
# a panel, comes in loads of 16 bits, as the address depends on a stride: nvcc holds each half of a word in a register and spills.
UNSPELLED = ("send_scores", "copy_query_rows", "take_last_queries", "take_more_queries")

# On Hopper threads hold tiles of registers by themselves, as products leave them.
OWN_REGISTERS = True

# Barriers are the declared ones: TileLang adds none of its own.
PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
    "tl.enable_fast_math": True,
}
