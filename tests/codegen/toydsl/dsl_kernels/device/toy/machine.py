"""The test DSL's substitute for hardware: shared storage, mbarriers, and a scheduler of roles."""

import torch

ROUNDS = 10_000
"""Turns after which the roles are considered deadlocked."""


def storage(stages, shape):
    return torch.full((stages, *shape), float("nan"))


class Barrier:
    """An mbarrier: its phase ends when `count` threads have arrived and every expected byte has landed."""

    def __init__(self, count):
        self.count, self.arrived, self.bytes, self.phase = count, 0, 0, 0

    def arrive(self, threads=1, announced=0):
        self.arrived += threads
        self.land(-announced)

    def land(self, count):
        self.bytes -= count
        if self.arrived > self.count:
            raise RuntimeError(f"{self.arrived} arrivals at a barrier of {self.count}")
        if self.arrived == self.count and self.bytes == 0:
            self.arrived, self.phase = 0, self.phase ^ 1

    def wait(self, parity):
        while self.phase == parity:
            yield


def copy(source, target, barrier):
    target.copy_(source)
    barrier.land(source.numel() * source.element_size())


def meet(meetings, number, total, threads):
    barrier = meetings.setdefault(number, Barrier(total))
    phase = barrier.phase
    barrier.arrive(threads)
    yield from barrier.wait(phase)


def run(roles):
    """Run every role of a CTA to its end, switching between roles at waits."""
    left = list(roles)
    for _ in range(ROUNDS):
        left = [role for role in left if next(role, "done") != "done"]
        if not left:
            return
    raise RuntimeError("the roles wait for one another")
