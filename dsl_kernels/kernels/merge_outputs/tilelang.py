"""TileLang's settings for merge_outputs, whose leaves all have a text."""

PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
}
