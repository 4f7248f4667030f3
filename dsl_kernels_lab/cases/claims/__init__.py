"""Claims of the founding documents about GPU kernels, each with what was measured and the command for it.

A claim is judged by counting, which any CPU can do, or from the record of a case. What nothing here can
decide is "not testable here", with the reason. A module for each document registers its claims, in the order
of the table.
"""

from __future__ import annotations

# The order of these imports is the order of the claims.
from . import occupancy as occupancy  # isort: skip
from . import attention as attention  # isort: skip
from . import pipeline as pipeline  # isort: skip
from . import counters as counters  # isort: skip
from . import resampling as resampling  # isort: skip
from .judging import (
    ARGUED,
    CLAIMS,
    FAILS,
    HOLDS,
    PARTLY,
    SOURCES,
    UNTESTED,
    VERDICTS,
    Claim,
    by_name,
    claim,
    judged,
    records_in,
    table,
)
from .pipeline import wrong_rows

__all__ = [
    "ARGUED",
    "CLAIMS",
    "FAILS",
    "HOLDS",
    "PARTLY",
    "SOURCES",
    "UNTESTED",
    "VERDICTS",
    "Claim",
    "by_name",
    "claim",
    "judged",
    "records_in",
    "table",
    "wrong_rows",
]
