"""What probes left in the workspace of a launch, read back: sums by region, and traces of single warps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from dsl_kernels.tile.probes import AHEAD, EMPTY, HEADER, REGIONS, RING, Probed

_TIMES = (2, 3, 6, 7)
_REGION_BITS = REGIONS.bit_length() - 1


@dataclass(frozen=True)
class Spent:
    """What the warps of a role spent, in ticks of the clock.

    Attributes:
        began, ended: the clock at the start of the kernel and after the last region, [CTAs, warps].
        spent: by region, [CTAs, warps, regions].
        sm: the SM of each CTA, [CTAs].
    """

    began: torch.Tensor
    ended: torch.Tensor
    spent: torch.Tensor
    sm: torch.Tensor

    @property
    def elapsed(self) -> torch.Tensor:
        """From the start of the kernel to the end of the last region, [CTAs, warps]."""
        return unsigned(self.ended - self.began)


@dataclass(frozen=True)
class Passage:
    """One passage of a warp through a region, in ticks since the first warp of its CTA began."""

    region: str
    begin: int
    end: int


@dataclass(frozen=True)
class WarpTrace:
    """The trace of one warp.

    Attributes:
        began: its clock when the kernel began.
        times: global timer (ns) and clock, read together, when its role began, and again when it ended.
        full: the ring was full, so its oldest marks may be lost.
        passages: in order; without the first one of a full ring, whose beginning is unknown.
    """

    cta: int
    warp: int
    sm: int
    began: int
    times: tuple[int, int, int, int]
    full: bool
    passages: tuple[Passage, ...]


def unsigned(words: torch.Tensor) -> torch.Tensor:
    """32-bit readings of a clock, or differences of readings, as 64-bit numbers."""
    return words.long() & 0xFFFFFFFF


def _since(zero: int, now: int) -> int:
    """Ticks from one reading of a 32-bit clock to another, which may be a little earlier."""
    return _wrapped(now - zero, 32)


def _age(now: int, mark: int) -> int:
    """Ticks since a mark, modulo the bits of the clock that a mark has."""
    return (now - mark // REGIONS) % (1 << (32 - _REGION_BITS))


def _wrapped(passed: int, bits: int) -> int:
    """The signed difference of two readings of a clock of `bits` bits."""
    half = 1 << (bits - 1)
    return ((passed + half) & (2 * half - 1)) - half


def read(probed: Probed, workspace: torch.Tensor, role: str) -> Spent:
    """The sums that a launch left in its workspace for one role."""
    words = _words(probed, workspace)[:, warps_of(probed, role)]
    header = unsigned(words)
    # Signed, as two readings of the clock may be reordered: a region of a few cycles can come out below 0.
    sums = words[..., HEADER : HEADER + len(probed.regions[role])].long()
    return Spent(header[..., 0], header[..., 1], sums, header[:, 0, 2])


def times(probed: Probed, workspace: torch.Tensor, role: str) -> torch.Tensor:
    """From a trace, [warps, 4]: global timer (ns) and clock when each warp's role began and ended."""
    return unsigned(_words(probed, workspace)[:, warps_of(probed, role)][..., _TIMES]).flatten(0, 1)


def trace(probed: Probed, workspace: torch.Tensor, role: str, ctas: Iterable[int]) -> list[WarpTrace]:
    """The traces of a role's warps in some CTAs."""
    every = _words(probed, workspace)
    traces = []
    names = probed.regions[role]
    for cta, warp in ((cta, warp) for cta in ctas for warp in warps_of(probed, role)):
        zero, words = int(unsigned(every[cta, 0, 0])), every[cta, warp].tolist()
        first, after = words[4:6]
        full = words[first + RING - 1] != EMPTY
        began, sm, *_ = header = unsigned(every[cta, warp, :HEADER]).tolist()
        times = tuple(header[i] for i in _TIMES)
        ring = words[first : first + RING]
        for at, mark in enumerate(words[first + RING :][:AHEAD]):
            # A mark that ran over the end replaces the one at the ring's beginning if it is the later one.
            if mark != EMPTY and _age(times[-1], mark) < _age(times[-1], ring[at]):
                ring[at] = mark
        marks = (ring[after - first :] if full else []) + ring[: after - first]
        # A mark has fewer bits of the clock than the header: times are reconstructed from the end backwards.
        ends = [times[-1]]
        for mark in reversed(marks):
            ends.append(ends[-1] - _wrapped(ends[-1] - (mark // REGIONS), 32 - _REGION_BITS))
        ends = [_since(zero, end) for end in reversed(ends[1:])]
        begins = [_since(zero, began), *ends]
        passages = [
            Passage(names[mark % REGIONS], begin, end)
            for mark, begin, end in zip(marks, begins, ends, strict=False)
        ][1 if full else 0 :]
        traces.append(WarpTrace(cta, warp, sm, began, times, full, tuple(passages)))
    return traces


def _words(probed: Probed, workspace: torch.Tensor) -> torch.Tensor:
    """[CTAs, warps, words]."""
    return workspace.cpu().view(-1, int(probed.schedule.threads) // 32, probed.words)


def warps_of(probed: Probed, role: str) -> list[int]:
    """The warps of a CTA that do the work of a role."""
    declared = probed.schedule.role(role)
    first = int(probed.schedule.first_thread(role)) // 32
    active = declared.active or declared.warps
    return [first + r * declared.warps + i for r in range(declared.replicas) for i in range(active)]
