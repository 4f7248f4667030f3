"""The FP8 lightning indexer: a score for each key a query may attend to, over a paged cache."""
