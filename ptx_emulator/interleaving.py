"""Interleavings: the order in which warps and asynchronous operations run. Each replays from its fields."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from operator import index

from .checks import checked, shown
from .errors import LaunchError

KINDS = ("lockstep", "random", "adversarial", "replay")
POLICIES = ("random", "early", "late")


def _integer(name: str, value: int, low: int, high: int) -> None:
    try:
        inside = low <= index(value) <= high
    except TypeError:
        inside = False
    if not inside:
        raise LaunchError(f"{name} {shown(value)} of an interleaving is not an integer from {low} to {high}")


@checked
@dataclass(frozen=True)
class Interleaving:
    """How a launch is interleaved.

    ``lockstep`` takes the warps in turn; ``random`` draws warps, the lengths of their turns and asynchronous
    completions from the seed; ``adversarial`` starves one warp and completes asynchronous work as early or as
    late as allowed; ``replay`` follows a list of choices (see :func:`ptx_emulator.explore`).
    ``resident`` clusters run interleaved from the start. When all of them wait, more start, up to
    ``max_resident``, so that grid-wide barriers work.
    """

    kind: str = "lockstep"
    seed: int = 0
    async_policy: str = "random"
    slow_warp: int | None = None
    resident: int = 1
    max_resident: int = 256
    choices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, value, known in (("kind", self.kind, KINDS), ("async policy", self.async_policy, POLICIES)):
            if value not in known:
                raise LaunchError(
                    f"{name} {shown(value)} of an interleaving is not one of {', '.join(known)}"
                )
        _integer("seed", self.seed, -(1 << 63), (1 << 63) - 1)
        _integer("max_resident", self.max_resident, 1, 1 << 20)
        _integer("resident", self.resident, 1, self.max_resident)
        if self.slow_warp is not None:
            _integer("slow_warp", self.slow_warp, 0, 31)
        for choice in self.choices:
            _integer("choices", choice, 0, (1 << 63) - 1)

    @staticmethod
    def lockstep() -> Interleaving:
        return Interleaving()

    @staticmethod
    def random(seed: int, resident: int = 1) -> Interleaving:
        return Interleaving("random", seed, resident=resident)

    @staticmethod
    def adversarial(
        seed: int, slow_warp: int | None = None, async_policy: str = "late", resident: int = 1
    ) -> Interleaving:
        return Interleaving("adversarial", seed, async_policy, slow_warp, resident)

    def __str__(self) -> str:
        parts = [f"{self.kind!r}"]
        if self.kind in ("random", "adversarial"):
            parts.append(f"seed={self.seed}")
        if self.async_policy != "random":
            parts.append(f"async_policy={self.async_policy!r}")
        if self.slow_warp is not None:
            parts.append(f"slow_warp={self.slow_warp}")
        if self.resident != 1:
            parts.append(f"resident={self.resident}")
        if self.choices:
            parts.append(f"choices={self.choices}")
        return f"Interleaving({', '.join(parts)})"


@checked
def interleavings(count: int, seed: int = 0, warps: int = 4) -> Iterator[Interleaving]:
    """The first ``count`` interleavings worth trying.

    Lock-step comes first, then a random one, late and early completion, each warp in turn as the slow one,
    and then random ones without end.
    """
    for name, value in (("count", count), ("warps", warps)):
        _integer(name, value, 0, (1 << 63) - 1)
    _integer("seed", seed, -(1 << 63), (1 << 63) - 1)

    def endless() -> Iterator[Interleaving]:
        yield Interleaving.lockstep()
        yield Interleaving.random(seed)
        yield Interleaving.adversarial(seed, None, "late")
        yield Interleaving.adversarial(seed, None, "early")
        for k in range(warps):
            yield Interleaving.adversarial(seed + k, k, POLICIES[k % 3])
        for k in itertools.count(1):
            yield Interleaving.random(seed + k, resident=1 + k % 3)

    return itertools.islice(endless(), count)
