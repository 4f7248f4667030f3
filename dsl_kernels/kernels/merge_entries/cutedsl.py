"""CuTe DSL takes part in merge_entries. Every leaf has a text."""
