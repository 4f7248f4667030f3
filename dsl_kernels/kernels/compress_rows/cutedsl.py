"""CuTe DSL takes part in compress_rows. Every leaf has a text."""
