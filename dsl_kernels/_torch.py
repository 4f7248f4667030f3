"""torch for what reading declarations and records loads too: imported at its first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._discover import later

if TYPE_CHECKING:
    import torch
else:
    torch = later("torch", globals())
