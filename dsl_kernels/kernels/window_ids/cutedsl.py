"""That CuTe DSL takes part in window_ids, whose leaves all have a text (dsl_kernels/device/text)."""
