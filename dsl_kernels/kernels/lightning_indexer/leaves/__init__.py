"""Texts of the lightning indexer's leaves: the walk over key tiles, and the scores of each architecture."""
