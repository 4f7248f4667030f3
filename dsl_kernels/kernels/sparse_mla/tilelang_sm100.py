"""TileLang's settings for sparse MLA on Blackwell. Each leaf has a text or belongs to all operations."""

PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_shared_memory_reuse": True,
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
    "tl.enable_fast_math": True,
}

SOURCE = "#include <tl_templates/cuda/copy_sm100.h>\n"
