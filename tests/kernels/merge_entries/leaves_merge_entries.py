"""Cases of the leaves that sort ranks' entries."""

from __future__ import annotations

from dataclasses import replace

import torch
from leaf_probes import Probe, case

from dsl_kernels.kernels.merge_entries import leaves as leaf
from dsl_kernels_lab import oracles
from dsl_kernels_lab.verification import trial

THREADS = 64


@case(leaf.place_entry, workload=("tiny", "tiny_positions"), first=(0, 2 * THREADS))
def place_entry(p: Probe, workload: str, first: int) -> None:
    """A row's first entries; entries at the boundary of two ranks; entries past the last one."""
    p.threads = THREADS
    drawn = trial.draw("merge_entries", oracles.get("merge_entries").workload(workload), 0)
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


EACH, STEP = 3, THREADS
HELD = ("tokens", "scores", "names")


@case(leaf.read_peers, workload=("tiny", "tiny_positions"), first=(0, 2 * THREADS))
def read_peers(p: Probe, workload: str, first: int) -> None:
    """Entries of each rank, with ids and without, and past the last one."""
    p.threads = THREADS
    wanted = replace(oracles.get("merge_entries").workload(workload), form="peers")
    drawn = trial.draw("merge_entries", wanted, 0)
    planes, rows, k = drawn["rank_entries"].shape
    held = [p.own(name, EACH, dtype="int32") for name in HELD]
    # Contiguous as it is, it lies in the allocation of all ranks.
    entries = p.operand("rank_entries", drawn["rank_entries"], peers="peer_distances")
    distances = p.operand("peer_distances", drawn["peer_distances"])
    sizes = {"ranks": len(drawn["peer_distances"]), "planes": planes, "rows": rows, "k": k}
    p.call(
        *held, entries, distances, p.dim("row", 0), p.dim("first", first), STEP,
        *(p.dim(*size) for size in sizes.items()),
    )  # fmt: skip


@case(leaf.share_tokens, count=(EACH * THREADS, 70))
def share_tokens(p: Probe, count: int) -> None:
    """To both CTAs of a cluster, of which each has half of the tokens; not past the last one."""
    p.threads, p.cluster = THREADS, 2
    tokens = [p.integers(-1, 999, THREADS, EACH) for _ in range(2)]
    lists = torch.full((2 * EACH * THREADS,), 7, dtype=torch.int32)
    shared = p.shared("lists", lists.shape, [lists, lists], out=True, cluster=True)
    held = p.own("tokens", EACH, tokens, dtype="int32", out=False)
    p.call(shared, held, lambda m: m.block(1) * THREADS, 2 * THREADS, p.dim("count", 2 * count), 2)


@case(leaf.place_read, workload=("tiny", "tiny_positions"))
def place_read(p: Probe, workload: str) -> None:
    """A row's entries; a thread without one writes nothing."""
    p.threads = THREADS
    drawn = trial.draw("merge_entries", oracles.get("merge_entries").workload(workload), 0)
    entries = drawn["rank_entries"]
    ranks, planes, _, k = entries.shape
    every = torch.full((3, EACH * THREADS), -1, dtype=torch.int32)
    for plane, each in zip((-1, 0, 1), every, strict=True):
        each[: ranks * k] = entries[:, plane, 0].flatten()[: EACH * THREADS]
    held = [
        p.own(name, EACH, each.view(EACH, THREADS).T.contiguous(), dtype="int32", out=False)
        for name, each in zip(HELD, every, strict=True)
    ]
    ordered = [
        p.operand(name, p.integers(0, 9, 1, ranks * k), out=True)
        for name in ("ordered_scores", "ordered_ids")
    ]
    lists = p.shared("lists", (ranks * k,), entries[:, -1, 0].flatten().contiguous())
    sizes = {"ranks": ranks, "planes": planes, "k": k}
    sizes |= {name: drawn[name] for name in ("interleave", "rank_stride")}
    p.call(
        *ordered,
        lists,
        *held,
        p.dim("row", 0),
        p.dim("first", 0),
        STEP,
        *(p.dim(*size) for size in sizes.items()),
    )
