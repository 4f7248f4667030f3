"""Cases of the leaf that computes the ids of a window."""

from __future__ import annotations

from leaf_probes import Probe, case, spread

from dsl_kernels.kernels.window_ids import leaves as leaf
from dsl_kernels_lab import oracles
from dsl_kernels_lab.verification import trial

THREADS = 64


@case(leaf.place_id, workload=("tiny", "odd_pages"), row=(0, 2, 5), first=(0, 2 * THREADS))
def place_id(p: Probe, workload: str, row: int, first: int) -> None:
    """A query without tokens, with few and with many; the first ids, and those at the end of the window."""
    p.threads = THREADS
    drawn = trial.draw("window_ids", oracles.get("window_ids").workload(workload), 0)
    (b, next_n), window = drawn["seq_lens"].shape, drawn["window"]
    sizes = {"row": row, "first": first, "next_n": next_n, "max_pages": drawn["window_table"].shape[1]}
    sizes |= {"page_size": drawn["page_size"], "window": window}
    p.call(
        spread(p, "indices", p.integers(0, 9, b * next_n, window), out=True),
        p.operand("seq_lens", drawn["seq_lens"]),
        spread(p, "window_table", drawn["window_table"].contiguous(), gap=3),
        *(p.dim(*size) for size in sizes.items()),
        THREADS,
    )
