"""Texts of selection's leaves: keys of a row, rounds that narrow the undecided keys, and lists."""
