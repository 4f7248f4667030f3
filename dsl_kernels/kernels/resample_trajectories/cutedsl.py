"""Leaves of trajectory resampling in CuTe DSL: each has a text (dsl_kernels/device/text), and this file says that the DSL takes part."""
