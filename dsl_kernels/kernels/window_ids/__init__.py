"""The cache slots of the last tokens that each query sees."""
