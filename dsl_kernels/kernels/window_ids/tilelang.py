"""What TileLang is told of window_ids, whose leaves all have a text (dsl_kernels/device/text)."""

PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
}
