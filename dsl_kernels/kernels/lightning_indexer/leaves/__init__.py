"""Leaves of the lightning indexer, by their text: the walk over key tiles, and the scores of each architecture."""
