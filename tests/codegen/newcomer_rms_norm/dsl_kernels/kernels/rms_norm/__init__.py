"""Rms norm, a kernel in a folder of its own."""
