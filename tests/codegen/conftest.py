"""Keeps the files of the example kernels and of the test DSL from being collected where they are."""

collect_ignore = ["newcomer", "newcomer_rms_norm", "toydsl"]
