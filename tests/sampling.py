"""How much of the suite a run covers: samples drawn by a seed, or everything with TEST_ALL=1.

The seed is TEST_SEED, 0 by default, so that a new failure comes from a change and not from another draw. The
report's header prints it.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

ALL = os.environ.get("TEST_ALL") == "1"
SEED = os.environ.get("TEST_SEED", "0")


def sample(items: Sequence[T], most: int, of: str) -> list[T]:
    """At most `most` of the items, in their order,
    drawn by the run's seed and the name of what is sampled."""
    if ALL or len(items) <= most:
        return list(items)
    chosen = sorted(random.Random(f"{SEED} {of}").sample(range(len(items)), most))
    return [items[i] for i in chosen]
