"""CuTe DSL takes part in merge_outputs. Every leaf has a text."""
