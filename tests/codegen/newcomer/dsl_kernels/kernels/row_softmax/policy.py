"""How variants of the row softmax rank."""

from __future__ import annotations

from collections.abc import Mapping

from ...tile.lang import Policy


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """The sizes that decide which variant is best."""
    return {"rows": dims["rows"], "columns": dims["columns"]}


POLICY = Policy(bucket=bucket)
