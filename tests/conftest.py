"""Markers that say what a test needs, and skips that say what is missing."""

from __future__ import annotations

from functools import lru_cache

import pytest


@lru_cache(maxsize=1)
def _capability() -> tuple[int, int] | None:
    import torch

    return torch.cuda.get_device_capability() if torch.cuda.is_available() else None


def pytest_configure() -> None:
    """Small tensors on several threads wait for one another more than they compute, above all under xdist."""
    import torch

    torch.set_num_threads(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("sm90") and _capability() != (9, 0):
            item.add_marker(
                pytest.mark.skip(
                    reason=f"needs a Hopper GPU (compute capability 9.0), found {_capability() or 'no GPU'}"
                )
            )
        if item.get_closest_marker("sm100") and _capability() != (10, 0):
            item.add_marker(
                pytest.mark.skip(
                    reason=f"needs a Blackwell GPU (compute capability 10.0), found {_capability() or 'no GPU'}"
                )
            )
