"""Sparse-attention kernels, declared once and lowered to several DSLs and architectures."""

__version__ = "0.1.0"
