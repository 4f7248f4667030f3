"""Rules as data, and the diagnosis they give."""

from __future__ import annotations

from .ceilings import Ceilings
from .model import Diagnosis, Fingerprint


def diagnose(found: Fingerprint, ceilings: Ceilings | None = None) -> Diagnosis:
    """Findings in the order to act on them; `ceilings` are those recorded for this GPU, where there are any."""
    raise NotImplementedError
