"""Cases of the leaves that sort ranks' entries."""

from __future__ import annotations

from leaf_probes import Probe, case

from dsl_kernels import problems
from dsl_kernels.kernels.merge_entries import leaves as leaf
from dsl_kernels.verification import trial

THREADS = 64


@case(leaf.place_entry, workload=("tiny", "tiny_positions"), first=(0, 2 * THREADS))
def place_entry(p: Probe, workload: str, first: int) -> None:
    """A row's first entries; entries at the boundary of two ranks; entries past the last one."""
    p.threads = THREADS
    drawn = trial.draw("merge_entries", problems.get("merge_entries").workload(workload), 0)
    ranks, planes, rows, k = drawn["rank_entries"].shape
    ordered = [
        p.operand(name, p.integers(0, 9, rows, ranks * k), out=True)
        for name in ("ordered_scores", "ordered_ids")
    ]
    sizes = {"row": 0, "first": first, "ranks": ranks, "planes": planes, "rows": rows, "k": k}
    sizes |= {name: drawn[name] for name in ("interleave", "rank_stride")}
    p.call(
        *ordered,
        p.operand("rank_entries", drawn["rank_entries"]),
        *(p.dim(*size) for size in sizes.items()),
        THREADS,
    )
