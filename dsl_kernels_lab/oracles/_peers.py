"""Examples of operands that every rank of a group has, in one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dsl_kernels.peers import ALIGNMENT, views
from dsl_kernels.problems.peers import PEER_DISTANCES

_GAPS = 1 << 12


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
