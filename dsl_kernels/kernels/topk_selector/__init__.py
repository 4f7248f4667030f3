"""Exact top-k selection of each row's scores, by histograms of digits."""
