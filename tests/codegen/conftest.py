"""Keeps the files of the example kernels and of the test DSL from being collected:
test_newcomer.py copies them."""

collect_ignore = ["newcomer", "newcomer_rms_norm", "toydsl"]
