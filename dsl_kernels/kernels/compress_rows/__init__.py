"""Rows of a compressed cache: softmax over a window of tokens per channel, RMSNorm, rope, cache bytes."""
