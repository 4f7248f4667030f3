"""Leaves of grouped-query attention on Blackwell in TileLang: each has a text (dsl_kernels/device/text)."""
