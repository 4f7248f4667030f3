"""Makes CuTe DSL take part in rms_norm, whose leaves all have a text."""
