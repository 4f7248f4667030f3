"""Leaves of selection, by their text: a row's keys, the rounds that narrow them, and the lists that are left."""
