"""That CuTe DSL takes part in compress_rows, whose leaves all have a text (dsl_kernels/device/text)."""
