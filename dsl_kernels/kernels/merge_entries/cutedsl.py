"""That CuTe DSL takes part in merge_entries, whose leaves all have a text (dsl_kernels/device/text)."""
