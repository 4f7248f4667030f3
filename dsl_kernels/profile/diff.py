"""Two fingerprints side by side."""

from __future__ import annotations

from .model import Diff, Fingerprint


def diff(a: Fingerprint, b: Fingerprint) -> Diff:
    """Every figure that both or one of them has."""
    raise NotImplementedError
