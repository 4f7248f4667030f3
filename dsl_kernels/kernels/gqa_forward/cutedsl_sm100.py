"""Leaves of grouped-query attention on Blackwell in CuTe DSL: each has a text (dsl_kernels/device/text)."""
