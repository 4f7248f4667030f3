"""What TileLang is told of grouped-query attention, whose leaves all have a text."""

import tilelang.language as T

# On Hopper threads hold tiles of registers by themselves, as products leave them.
OWN_REGISTERS = True

# Barriers are the declared ones: TileLang adds none of its own.
PASS_CONFIGS = {
    "tl.disable_thread_storage_sync": True,
    "tl.disable_warp_specialized": True,
    "tl.disable_loop_unswitching": True,
    "tl.enable_fast_math": True,
}


def ceildiv(count, size):
    """Both positive or zero; unsigned, which costs no sign fix-up."""
    return T.cast((T.cast(count, "uint32") + (size - 1)) // T.cast(size, "uint32"), "int32")
