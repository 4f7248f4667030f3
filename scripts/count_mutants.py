"""Try every broken body of tests/numerics/test_mutated_texts.py, and record in tests/numerics/mutants.json
what caught them; scripts/update_docs.py lists it.

    python scripts/count_mutants.py results.jsonl --jobs 8 --structure "attention bf16, Hopper"

Each outcome is a line of the results, so that a run that was cut short goes on where it ended. Structures
whose mutants have all been tried are recorded. A mutant that nothing catches and nothing explains is printed,
and the run fails.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "numerics")]

from dsl_kernels import variants  # noqa: E402

PATH = ROOT / "tests" / "numerics" / "mutants.json"
CATCHERS = ("plan", "interpreter", "emulator", "nobody")
# Mutants of one structure that a process tries before it may be given another's.
RUN = 4


def load() -> dict[str, dict[str, Any]]:
    """The record: structure -> its variant, the digest of the variant's module, and mutants by catcher."""
    return json.loads(PATH.read_text()) if PATH.exists() else {}


def changed(record: dict[str, Any]) -> bool:
    """Whether the variant prints another module than when its mutants were tried."""
    return record["sha256"] != variants.get(record["variant"]).sha256


@lru_cache(maxsize=2)
def _original(name: str) -> Any:
    import test_mutated_texts as broken
    import torch

    torch.set_num_threads(1)
    return broken.original(next(s for s in broken.STRUCTURES if s.name == name))


def _tried(name: str, numbers: list[int]) -> list[dict[str, Any]]:
    import test_mutated_texts as broken

    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for number in numbers:
            outcome = broken.outcome(_original(name), number, Path(folder))
            lines.append({"number": number, "mutant": outcome.mutant, "by": outcome.by, "how": outcome.how})
    return lines


def _missing(name: str, done: list[dict[str, Any]], count: int) -> Iterator[list[int]]:
    numbers = sorted(set(range(count)) - {line["number"] for line in done})
    yield from (numbers[i : i + RUN] for i in range(0, len(numbers), RUN))


def main(results: Path, names: list[str], jobs: int) -> int:
    """Try what the results lack; returns how many mutants nothing catches and nothing explains."""
    import test_mutated_texts as broken

    structures = {s.name: s for s in broken.STRUCTURES if not names or s.name in names}
    counts = {name: sum(1 for _ in broken.mutants_of(s)) for name, s in structures.items()}
    digests = {name: variants.get(s.variant).sha256 for name, s in structures.items()}
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    done = {
        name: [x for x in lines if (x["structure"], x["sha256"]) == (name, digests[name])]
        for name in structures
    }
    tasks = [(name, run) for name in structures for run in _missing(name, done[name], counts[name])]
    context = multiprocessing.get_context("spawn")
    with results.open("a") as file, ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {pool.submit(_tried, *task): task[0] for task in tasks}
        for future in as_completed(futures):
            name = futures[future]
            for line in future.result():
                done[name].append({"structure": name, "sha256": digests[name], **line})
                file.write(json.dumps(done[name][-1]) + "\n")
            file.flush()
    record = load()
    for name, structure in structures.items():
        if len(done[name]) == counts[name]:
            by = Counter(line["by"] for line in done[name])
            caught = {catcher: by[catcher] for catcher in CATCHERS}
            record[name] = {"variant": structure.variant, "sha256": digests[name], **caught}
    order = [s.name for s in broken.STRUCTURES]
    rows = (f"{json.dumps(name)}: {json.dumps(record[name])}" for name in order if name in record)
    PATH.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    missed = [x for name in done for x in done[name] if x["how"] == broken.UNEXPLAINED]
    for line in missed:
        print(f"{line['structure']}: {line['mutant']} (number {line['number']}): nothing catches it")
    return len(missed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, help="a file of outcomes, which is continued")
    parser.add_argument("--structure", action="append", default=[], help="only this one; may be repeated")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    given = parser.parse_args()
    sys.exit(1 if main(given.results, given.structure, given.jobs) else 0)
