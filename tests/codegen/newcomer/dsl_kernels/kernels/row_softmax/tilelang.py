"""What TileLang is told of row_softmax, whose leaves all have a text."""

# Registers are of each thread, as the texts name them, those of products too: no fragments.
OWN_REGISTERS = True

# Barriers are the declared ones: TileLang adds none of its own.
PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
}
