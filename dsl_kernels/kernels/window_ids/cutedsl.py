"""CuTe DSL takes part in window_ids. Every leaf has a text."""
