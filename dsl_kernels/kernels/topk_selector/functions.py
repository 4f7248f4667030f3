"""What the text of selection's leaves asks of a DSL beside what any operation does."""

from __future__ import annotations

from ...tile.leaf_text import Function

past16 = Function(
    "past16",
    "int32",
    lambda place: (
        (place.memory.data_ptr() // place.memory.element_size() + place.index)
        % (16 // place.memory.element_size())
    ),
)
"""How many elements before a place 16 bytes begin."""
