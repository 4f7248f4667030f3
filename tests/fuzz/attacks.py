"""The attacks by name: what each calls, how often in full, and how often in a run of the test suite."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from . import Counts


@dataclass(frozen=True)
class Attack:
    """One fuzz: `module.function(count, seed)`.

    Attributes:
        runs: runs of a whole attack.
        sample: runs in the test suite.
        chunk: runs between two checks of the time.
    """

    module: str
    function: str
    runs: int
    sample: int
    chunk: int
    about: str

    def run(self, count: int, seed: int) -> Counts:
        """The counts of `count` runs."""
        function = getattr(importlib.import_module(f".{self.module}", __package__), self.function)
        counts: Counts = function(count, seed)
        return counts


ATTACKS: dict[str, Attack] = {
    "calls": Attack("calls", "fuzz_calls", 20_000, 500, 5_000, "calls of the ops"),
    "helpers": Attack("helpers", "fuzz_helpers", 20_000, 1_500, 5_000, "calls of helpers"),
    "cli": Attack("cli", "fuzz_cli", 5_000, 80, 1_000, "commands"),
    "workloads": Attack("workloads", "fuzz_workloads", 5_000, 500, 2_500, "workload files"),
    "ptx": Attack("ptx", "fuzz_ptx", 500, 50, 50, "mutants of PTX"),
    "cache": Attack("storage", "fuzz_cache_corruption", 3_000, 300, 250, "damaged artifacts in the cache"),
    "bundles": Attack("storage", "fuzz_bundle_corruption", 480, 300, 60, "damaged bundles"),
    "kills": Attack("storage", "fuzz_kills", 20, 18, 2, "killed compiles"),
}
