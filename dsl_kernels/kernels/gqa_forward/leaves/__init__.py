"""Leaves of grouped-query attention, by their text: those of every schedule, and Blackwell's."""
