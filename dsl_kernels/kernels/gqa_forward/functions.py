"""The function that the texts of attention's leaves ask of a DSL, beyond those of all operations."""

from ...tile.leaf_text import Function

keep_order = Function("keep_order", "int32", lambda threads: None, joint=True)
"""Keep what is above, arithmetic too, ahead of a wait for products that is below."""
