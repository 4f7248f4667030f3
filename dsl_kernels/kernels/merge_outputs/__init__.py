"""Partial outputs of the ranks of a sharded context, merged by their lse."""
