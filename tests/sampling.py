"""How much of the suite a run takes: samples that a seed draws, or everything with TEST_ALL=1.

The seed is TEST_SEED, or the commit's hash: one commit tries the same cases everywhere, the next one others. The
report's head prints the seed, so that a failure can be drawn again.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def _of_the_commit() -> str:
    """Short hash of the checkout's commit; of an unpacked archive, which has none, a constant."""
    try:
        asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
        return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "0"


ALL = os.environ.get("TEST_ALL") == "1"
SEED = os.environ.get("TEST_SEED") or _of_the_commit()


def sample(items: Sequence[T], most: int, of: str) -> list[T]:
    """At most `most` of the items in their order, drawn by the run's seed and the name of what they are of."""
    if ALL or len(items) <= most:
        return list(items)
    chosen = sorted(random.Random(f"{SEED} {of}").sample(range(len(items)), most))
    return [items[i] for i in chosen]
