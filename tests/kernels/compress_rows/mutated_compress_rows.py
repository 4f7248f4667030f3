"""What breaks the texts that compress rows: windows, structures, and why some mutants are no bug."""

from __future__ import annotations

from body_mutants import Only, Structure, workload

from dsl_kernels_lab.oracles import Workload


def _rows(name: str, rows: int, dim: int, ratio: int, parts: int, page_size: int) -> Workload:
    sizes = {"rows": rows, "dim": dim, "ratio": ratio, "width": parts * dim, "page_size": page_size}
    return workload(f"{name}_d{dim}", "default", **sizes)


# No two sizes of a call are equal; windows overlap or do not; the first one begins before the sequence.
def _runs(dim: int) -> tuple[tuple[Workload, dict[str, int]], ...]:
    return (
        (_rows("distinct_overlapping", 7, dim, 3, 2, 5), {}),
        (_rows("distinct_apart", 4, dim, 9, 1, 3), {}),
    )


ATTENTION, INDEXER = "compressed rows of attention", "compressed rows of an indexer"
STRUCTURES = (
    Structure(ATTENTION, "compress_rows__cutedsl_sm90a__d512", _runs(512)),
    Structure(INDEXER, "compress_rows__cutedsl_sm90a__d128", _runs(128)),
)

NO_RINGS = Only(
    "no pipeline has barriers, and nothing waits for their standing", {ATTENTION: (1,), INDEXER: (1,)}
)
# Mutants that may survive, and why their kernel computes the same.
EXPLAINED: dict[str, str | Only] = {
    "start: drop barriersstand": NO_RINGS,
    "start: twice barriersstand": NO_RINGS,
    "drop depend": "without it a launch waits for the whole kernel before it",
}
