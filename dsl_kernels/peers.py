"""Memory that every rank of a group holds, of which a process may read its peers' at a distance from its own.

A kernel gets its rank's tensor and the `distances` of all ranks: [ranks] int64, how many bytes from that
tensor each rank's tensor is, 0 for its own. Ranks of one host get such memory from torch, where a buffer of
rank r is `buffer_ptrs[r] - buffer_ptrs[rank]` bytes away.
"""

from __future__ import annotations

import ctypes

from ._torch import torch
from .errors import InvalidArgumentError

ALIGNMENT = 16
"""Bytes that every distance is a multiple of: vector loads fit peers' tensors where they fit this rank's."""


def views(tensor: torch.Tensor, distances: torch.Tensor) -> list[torch.Tensor]:
    """Each rank's tensor, of the shape and strides of this rank's.

    On the CPU, as on a GPU, no address is checked: a distance that leads to no memory ends the process.

    Raises:
        InvalidArgumentError: on a GPU, a tensor of another allocation, which torch makes no view of.
    """
    return [_view(tensor, int(distance)) for distance in distances.tolist()]


def _view(tensor: torch.Tensor, distance: int) -> torch.Tensor:
    size = tensor.element_size()
    reach = sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    if not distance or not tensor.numel():
        return tensor
    first = tensor.storage_offset() + distance // size
    if distance % size == 0 and 0 <= first <= tensor.untyped_storage().nbytes() // size - reach:
        return tensor.as_strided(tensor.shape, tensor.stride(), first)
    if tensor.device.type != "cpu":
        raise InvalidArgumentError(
            "distances",
            expected=f"memory of the same allocation on {tensor.device}",
            got=f"{distance} bytes away",
            fix="look at the peers' memory on their own ranks",
        )
    raw = (ctypes.c_char * (reach * size)).from_address(tensor.data_ptr() + distance)
    flat = torch.frombuffer(raw, dtype=torch.uint8).view(tensor.dtype)
    return flat.as_strided(tensor.shape, tensor.stride())
