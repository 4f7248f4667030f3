"""Rows of a compressed cache: a softmax over a window of tokens for each channel, RMSNorm, rope, and the bytes of the cache."""
