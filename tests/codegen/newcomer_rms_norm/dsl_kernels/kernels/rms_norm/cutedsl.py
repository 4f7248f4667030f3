"""That CuTe DSL takes part in rms_norm, whose leaves all have a text."""
