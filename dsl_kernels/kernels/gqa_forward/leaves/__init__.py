"""Texts of the leaves of grouped-query attention: for all schedules, and for Blackwell's."""
