"""Addresses that the threads of a text have, in this rank's memory and in that of its peers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .._torch import torch
from ..errors import ScheduleError


@dataclass(frozen=True)
class Place:
    """The address of an element for each thread: a tensor, or one per CTA of the group, and the indices."""

    memory: Any
    index: torch.Tensor
    name: str = ""

    def of(self, taken: torch.Tensor | None, count: int = 1) -> torch.Tensor:
        """The indices of the threads `taken` (None: all), and 0 in the others.

        `count` consecutive elements are accessed at each index.

        Raises:
            ScheduleError: an element is outside of the memory.
        """
        size = self.memory.numel() - (count - 1)
        index = self.index if taken is None else torch.where(taken, self.index, 0)
        least, most = torch.aminmax(index)
        if int(least) < 0 or int(most) >= size:
            raise ScheduleError(
                f"memory {self.name} of a leaf",
                expected=f"an index below {size}",
                got=f"{int(least)} to {int(most)}",
                fix="access only elements that exist",
            )
        return index


class Peered:
    """An operand that every rank holds: an index past this rank's elements reaches another rank's elements.

    Args:
        own: this rank's.
        each: every rank's, of the same shape and strides.
        distances: how many bytes each rank's tensor is from this rank's.
    """

    def __init__(self, own: torch.Tensor, each: list[torch.Tensor], distances: list[int]) -> None:
        self.shape, self.stride, self.dim = own.shape, own.stride, own.dim
        self.memory = torch.cat([elements(tensor) for tensor in each])
        self.size = elements(own).numel()
        self.firsts = [distance // own.element_size() for distance in distances]


@dataclass(frozen=True)
class PeerPlace(Place):
    """The address of an element on any rank."""

    peered: Any = None

    def of(self, taken: torch.Tensor | None, count: int = 1) -> torch.Tensor:
        peered: Peered = self.peered
        places = torch.full_like(self.index, -1)
        for rank, first in enumerate(peered.firsts):
            inside = (self.index >= first) & (self.index + count <= first + peered.size)
            places = torch.where(inside, self.index - first + rank * peered.size, places)
        if taken is not None:
            places = torch.where(taken, places, 0)
        if bool((places < 0).any()):
            raise ScheduleError(
                f"memory {self.name} of a leaf",
                expected=f"an index of {len(peered.firsts)} ranks' {peered.size} elements",
                got=f"{int(self.index[places < 0][0])} elements from this rank's first",
                fix="go by the distances of the ranks, and access only elements that exist",
            )
        return places


def elements(memory: torch.Tensor) -> torch.Tensor:
    """Memory as a flat tensor, with the gaps between rows that are not contiguous."""
    if memory.is_contiguous():
        return memory.view(-1)
    reach = sum((extent - 1) * step for extent, step in zip(memory.shape, memory.stride(), strict=True))
    return memory.as_strided((reach + 1,), (1,))
