"""Makes TileLang take part in row_softmax, whose leaves all have a text."""

# Registers belong to each thread, as the texts name them, those of products included: there are no fragments.
OWN_REGISTERS = True

# All barriers are declared: TileLang must not add any.
PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
}
