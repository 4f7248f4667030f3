"""Operands that every rank of a group holds: what problems state of them, and how examples are drawn in one process.

A kernel reads the peers' memory at a distance from its own rank's (`dsl_kernels.peers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._discover import later
from ..peers import ALIGNMENT, views
from .base import OperandSpec, Values

if TYPE_CHECKING:
    import torch
else:
    torch = later("torch", globals())

PEER_DISTANCES = "peer_distances"
"""The operand of distances."""
MOST_PEERS = 8
"""Ranks, this one among them, from which a kernel reads: the GPUs of a host."""
_GAPS = 1 << 12


def _no_distances(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    """Distances that are no multiple of 16 bytes; all of them where none is this rank's own."""
    distances = o[PEER_DISTANCES]
    wrong: torch.Tensor = distances % ALIGNMENT != 0
    return wrong | ~(distances == 0).any()


DISTANCES = OperandSpec(
    PEER_DISTANCES,
    ("ranks",),
    "int64",
    align=8,
    doc="bytes from this rank's memory to each rank's, 0 for its own",
    values=(Values("multiples of 16, one of them 0 for this rank's own", _no_distances),),
)


def dealt(every: torch.Tensor, own: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """What each rank holds, `every` [ranks, bytes] uint8, at unrelated places: that of rank `own`, and the distances.

    All lie in one allocation, so that a copy of it to another device keeps the distances. Between them every number is NaN.
    """
    ranks, size = every.shape
    room = -(-size // ALIGNMENT) * ALIGNMENT
    gaps = (
        torch.randint(1, _GAPS // ALIGNMENT, (ranks,), generator=generator, device=every.device) * ALIGNMENT
    )
    places = (gaps + room).cumsum(0) - room
    places = places[torch.randperm(ranks, generator=generator, device=every.device)]
    memory = torch.full(
        (int(gaps.sum()) + ranks * room + _GAPS,), 255, dtype=torch.uint8, device=every.device
    )
    for place, bytes in zip(places.tolist(), every, strict=True):
        memory[place : place + size] = bytes
    first = int(places[own])
    return memory[first : first + size], places - first


def gathered(inputs: Mapping[str, Any], name: str) -> torch.Tensor:
    """An operand of all ranks side by side, [ranks, ...], however a call gave it."""
    found: torch.Tensor = inputs[name]
    return torch.stack(views(found, inputs[PEER_DISTANCES])) if PEER_DISTANCES in inputs else found
