"""A diagnosis as text: a table for a terminal, Markdown of at most 60 lines for a person or a language model."""

from __future__ import annotations

from .model import Diagnosis


def markdown(diagnosis: Diagnosis) -> str:
    """One page: headline, phases, floor, bottleneck, lever, ceiling if fixed."""
    raise NotImplementedError


def text(diagnosis: Diagnosis) -> str:
    """The same for a terminal without markup."""
    raise NotImplementedError
