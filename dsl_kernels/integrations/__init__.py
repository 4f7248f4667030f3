"""Plugins for serving engines, `vllm` and `sglang`, which the engines find by their entry points.

A plugin that does not match its engine says so in the engine's log and changes nothing. A function that a
plugin replaces falls back to the engine's own for operands that our ops refuse.
"""
