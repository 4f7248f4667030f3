"""Operands that every rank of a group has: their declaration, and examples of them in one process.

A kernel reads a peer's memory at a distance from its own rank's (`dsl_kernels.peers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._torch import torch
from ..peers import ALIGNMENT, views
from .base import OperandSpec, Values

PEER_DISTANCES = "peer_distances"
"""The name of the operand with the distances."""
MOST_PEERS = 8
"""The most ranks, with this one, from which a kernel reads: the GPUs of a host."""
_GAPS = 1 << 12


def _no_distances(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    """A mask of distances that are no multiples of 16 bytes; all of them if none is 0, this rank's own."""
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
    """Place each rank's bytes at random addresses of one allocation, so that a copy keeps the distances.

    Args:
        every: [ranks, bytes] uint8, the memory of each rank.
        own: the rank whose memory is returned.
        generator: draws the gaps and the order; gaps are 0xFF bytes, NaN as floating point.

    Returns:
        The memory of rank `own`, [bytes] uint8, and the distances, [ranks] int64 in bytes.
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
    """An operand of all ranks, [ranks, ...]; calls pass that, or this rank's operand with the distances."""
    operand: torch.Tensor = inputs[name]
    return torch.stack(views(operand, inputs[PEER_DISTANCES])) if PEER_DISTANCES in inputs else operand
