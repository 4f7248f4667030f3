"""What policies of operations over rows of scores share."""

from __future__ import annotations

from collections.abc import Mapping


def resized(dims: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """Rows lie at least as far apart as they are long."""
    found = {**dims, **sizes}
    if "max_len" in sizes and "stride" in dims:
        found["stride"] = max(dims["stride"], sizes["max_len"])
    return found
