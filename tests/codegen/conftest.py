"""The files of the example kernels and of the test DSL belong into a tree of their own, where test_newcomer.py puts them."""

collect_ignore = ["newcomer", "newcomer_rms_norm", "toydsl"]
