"""Sparse MLA attention: each query over the rows of a latent cache that its ids name."""
