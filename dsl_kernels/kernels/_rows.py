"""The common part of policies of operations over rows of scores."""

from __future__ import annotations

from collections.abc import Mapping


def resized(dims: Mapping[str, int], sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes with `sizes` applied. The stride of rows is at least their length."""
    resulting = {**dims, **sizes}
    if "max_len" in sizes and "stride" in dims:
        resulting["stride"] = max(dims["stride"], sizes["max_len"])
    return resulting
