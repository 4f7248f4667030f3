"""Plugins of serving engines: `vllm` and `sglang`, which the engines find by their entry points.

A plugin that does not fit the engine it meets says so in the engine's log and leaves the engine as it is. What a plugin takes
over falls back to the engine's own function for operands that our ops refuse.
"""
