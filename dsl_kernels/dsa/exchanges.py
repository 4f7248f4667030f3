"""Which way an exchange between ranks goes: a rule from counted bytes and a model of each way's time.

An exchange has every rank give as many bytes. By `collectives` the group gathers them; by `copy` a rank passes a barrier of
symmetric memory and copies its peers' buffers beside its own; by `direct` the kernel that merges reads the peers' buffers
itself behind the barrier, which saves a launch, and the bytes that it does not use.

The figures are a model. What collectives and the copy take is fitted to steps of two and four H200 of one host (2026-11-28,
docs/parallel.md); what the direct way takes follows from the copy's; docs/parallel.md has its measured steps. Of a kernel's own work only
what it reads from peers counts: the merging kernels do the same either way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..problems.peers import MOST_PEERS

COLLECTIVES, COPY, DIRECT = WAYS = ("collectives", "copy", "direct")

# An all-gather takes GATHER_US up to GATHER_FREE bytes received, then the less of two lines: one of GATHER_RATE from there
# on, and one of LARGE_GATHER_RATE from LARGE_GATHER_US on. Rates are bytes a microsecond.
GATHER_US, GATHER_FREE, GATHER_RATE = 8.0, 512 << 10, 50e3
LARGE_GATHER_US, LARGE_GATHER_RATE = 20.0, 230e3
# A barrier of symmetric memory, and the copy after it with its launch.
BARRIER_US, COPY_US = 3.0, 3.0
# What the first bytes from a peer take longer than from this GPU's memory.
LATENCY_US = 1.5
# What kernels read from peers: so many bytes of an exchange, and the rest of a large one.
READ_RATE, LARGE, LARGE_READ_RATE = 300e3, 8 << 20, 154e3


@dataclass(frozen=True)
class Exchange:
    """What travels.

    Attributes:
        given: bytes that each rank gives.
        read: bytes that the kernel which merges reads of each peer's; None where none reads there.
    """

    given: int
    read: int | None = None


def predicted(way: str, exchange: Exchange, ranks: int) -> float:
    """Microseconds of an exchange between so many ranks, by a model; infinite where it cannot go that way."""
    received = (ranks - 1) * exchange.given
    if way == COLLECTIVES:
        further = max(0, received - GATHER_FREE)
        return min(GATHER_US + further / GATHER_RATE, LARGE_GATHER_US + received / LARGE_GATHER_RATE)
    if way == COPY:
        return BARRIER_US + COPY_US + _read(received)
    if exchange.read is None or ranks > MOST_PEERS:
        return float("inf")
    return BARRIER_US + LATENCY_US + _read((ranks - 1) * exchange.read)


def _read(received: int) -> float:
    return min(received, LARGE) / READ_RATE + max(0, received - LARGE) / LARGE_READ_RATE


def fastest(exchange: Exchange, ranks: int, ways: Iterable[str] = WAYS) -> str:
    """The way of these with the least predicted time, the first where several have it.

    Where none of them can, a copy. Every rank gets the same answer, as it follows from sizes alone.
    """
    best = min(ways, key=lambda way: predicted(way, exchange, ranks))
    return COPY if predicted(best, exchange, ranks) == float("inf") else best
