"""The functions that the texts of selection's leaves ask of a DSL, beyond those of all operations."""

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
"""Elements from the last multiple of 16 bytes to a place."""
