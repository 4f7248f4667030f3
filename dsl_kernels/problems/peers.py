"""Operands that every rank of a group has.

A kernel reads a peer's memory at a distance from its own rank's (`dsl_kernels.peers`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .._torch import torch
from ..peers import ALIGNMENT
from .base import OperandSpec, Values

PEER_DISTANCES = "peer_distances"
"""The name of the operand with the distances."""
MOST_PEERS = 8
"""The most ranks, with this one, from which a kernel reads: the GPUs of a host."""


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


def of_one_rank(gathered: OperandSpec, doc: str) -> OperandSpec:
    """One rank's part of an operand whose first axis is the ranks: kernels read it on every rank."""
    return replace(
        gathered, shape=gathered.shape[1:], strides=gathered.strides[1:], peers=PEER_DISTANCES, doc=doc
    )
