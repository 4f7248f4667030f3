"""Chooses how ranks exchange bytes, from the bytes and a model of each way's time.

Every rank gives as many bytes to an exchange. There are three ways:

- `collectives`: the group gathers the bytes.
- `copy`: a rank passes a barrier of symmetric memory, and copies its peers' buffers.
- `direct`: after the barrier the merging kernel itself reads the peers' buffers. That saves a launch, and the
  bytes that the kernel does not use.

The times are a model. Those of collectives and the copy are fitted to steps of two and four H200 of one host
(2026-11-28, docs/parallel.md). The time of the direct way follows from that of the copy; docs/parallel.md has
measured steps. Of a kernel's work only its reads from peers count, as the rest is the same in all ways.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..problems.peers import MOST_PEERS

COLLECTIVES, COPY, DIRECT = WAYS = ("collectives", "copy", "direct")

# An all-gather takes GATHER_US up to GATHER_FREE received bytes. More bytes take the lesser of two times:
# GATHER_US and the further bytes at GATHER_RATE, or LARGE_GATHER_US and all bytes at LARGE_GATHER_RATE. Rates
# are bytes a microsecond.
GATHER_US, GATHER_FREE, GATHER_RATE = 8.0, 512 << 10, 50e3
LARGE_GATHER_US, LARGE_GATHER_RATE = 20.0, 230e3
# Microseconds of a barrier of symmetric memory, and of launching the copy after it.
BARRIER_US, COPY_US = 3.0, 3.0
# Microseconds that the first bytes from a peer take longer than from this GPU's memory.
LATENCY_US = 1.5
# Rates of reads from peers: for the first LARGE bytes of an exchange, and for the rest.
READ_RATE, LARGE, LARGE_READ_RATE = 300e3, 8 << 20, 154e3


@dataclass(frozen=True)
class Exchange:
    """The bytes of an exchange.

    Attributes:
        given: bytes that each rank gives.
        read: bytes that the merging kernel reads from each peer; None if no kernel can read peers' memory.
    """

    given: int
    read: int | None = None


def predicted(way: str, exchange: Exchange, ranks: int) -> float:
    """Microseconds of an exchange between `ranks` ranks by a model; infinite if this way is not possible."""
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
    """The way with the least predicted time, the first of equals; `copy` if none of `ways` is possible.

    Every rank gets the same answer, as it follows from sizes alone.
    """
    best = min(ways, key=lambda way: predicted(way, exchange, ranks))
    return COPY if predicted(best, exchange, ranks) == float("inf") else best
