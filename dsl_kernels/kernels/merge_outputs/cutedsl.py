"""That CuTe DSL takes part in merge_outputs, whose leaves all have a text (dsl_kernels/device/text)."""
