"""Cases of the leaves that merge ranks' partial outputs."""

from __future__ import annotations

from dataclasses import replace

import torch
from leaf_probes import Probe, case

from dsl_kernels.kernels.merge_outputs import leaves as leaf
from dsl_kernels_lab import oracles
from dsl_kernels_lab.verification import trial

WARPS = 2


@case(leaf.merge_head, first=(0, 6))
def merge_head(p: Probe, first: int) -> None:
    """Heads with and without keys; at the end, a warp without a head."""
    p.threads, p.relative = 32 * WARPS, 2**-7
    drawn = trial.draw("merge_outputs", oracles.get("merge_outputs").workload("tiny"), 0)
    ranks, rows, heads, _ = drawn["outs"].shape
    out = p.operand("out", torch.zeros(rows, heads, 512).bfloat16(), out=True)
    lse = p.operand("lse", torch.zeros(rows, heads), out=True)
    outs, lses = (p.operand(name, drawn[name], strided=True) for name in ("outs", "lses"))
    sizes = {"first": first, "ranks": ranks, "rows": rows, "heads": heads}
    p.call(
        out, lse, outs, lses, p.operand("attn_sink", drawn["attn_sink"]),
        *(p.dim(*size) for size in sizes.items()),
        p.scalar("lse_scale", 1.0), WARPS,
    )  # fmt: skip


@case(leaf.merge_peers_head, workload=("tiny", "peers_of_a_host"), first=(0, 4))
def merge_peers_head(p: Probe, workload: str, first: int) -> None:
    """Two ranks and as many as there may be; at the end, a warp without a head."""
    p.threads, p.relative = 32 * WARPS, 2**-7
    wanted = replace(oracles.get("merge_outputs").workload(workload), form="peers")
    drawn = trial.draw("merge_outputs", wanted, 0)
    rows, heads, _ = drawn["outs"].shape
    out = p.operand("out", torch.zeros(rows, heads, 512).bfloat16(), out=True)
    lse = p.operand("lse", torch.zeros(rows, heads), out=True)
    outs, lses = (p.operand(n, drawn[n], strided=True, peers="peer_distances") for n in ("outs", "lses"))
    sizes = {"first": first, "ranks": len(drawn["peer_distances"]), "rows": rows, "heads": heads}
    p.call(
        out, lse, outs, lses, p.operand("peer_distances", drawn["peer_distances"]),
        p.operand("attn_sink", drawn["attn_sink"]),
        *(p.dim(*size) for size in sizes.items()), p.scalar("lse_scale", 1.0), WARPS,
    )  # fmt: skip
