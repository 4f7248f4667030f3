"""CuTe DSL takes part in grouped-query attention on Blackwell. Every leaf has a text."""
