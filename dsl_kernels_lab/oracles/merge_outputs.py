"""How outputs of `merge_outputs` are judged: drawn inputs, the reference, tolerances, workloads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from dsl_kernels.kernels.merge_outputs.problem import PROBLEM
from dsl_kernels.problems.base import Comparison
from dsl_kernels.problems.layouts import LATENT_DIM
from dsl_kernels.problems.peers import PEER_DISTANCES

from . import Oracle, Workload, real
from ._peers import dealt, gathered

# Half a unit in the last place of bf16, with room for the approximate exponentials of the weights.
ROUNDING = 2.0**-8 * 1.01
# The error of weights and sums in fp32 where parts cancel, relative to the largest element of a row on any
# rank.
ARITHMETIC = 2.0**-20
LSE_ERROR = 1e-5


def make(workload: Workload, generator: torch.Generator) -> dict[str, Any]:
    """Draw normal outputs, with infinite sinks and sinks far above all scores.

    A head of the first row has keys on no rank. Other heads have keys on some ranks.
    """
    p, device = workload.params, generator.device
    ranks, rows, heads = p["ranks"], p["rows"], p["heads"]
    # One buffer of bytes per rank, as after an exchange: outputs, then lse.
    size = rows * heads * LATENT_DIM
    buffers = torch.zeros(ranks, size + -(-2 * rows * heads // 8) * 8, dtype=torch.bfloat16, device=device)
    outs = buffers[:, :size].view(ranks, rows, heads, LATENT_DIM)
    lses = buffers[:, size : size + 2 * rows * heads].view(torch.float32).view(ranks, rows, heads)
    drawn = torch.randn(
        ranks, rows, heads, LATENT_DIM, generator=generator, dtype=torch.float32, device=device
    )
    lses.copy_(torch.randn(ranks, rows, heads, generator=generator, dtype=torch.float32, device=device) * 8)
    coin = torch.rand(ranks, rows, heads, generator=generator, dtype=torch.float32, device=device)
    lses[coin < 0.3] = -math.inf
    lses[:, 0, 0] = -math.inf
    outs.copy_(torch.where(lses.isinf()[..., None], 0.0, drawn))
    sink = torch.randn(heads, generator=generator, dtype=torch.float32, device=device)
    sink[1::4], sink[2::4], sink[3::4] = math.inf, -math.inf, 300.0
    split = p.get("split", 1)
    mine = slice(0, heads // split)
    given: dict[str, Any] = {"outs": outs[:, :, mine], "lses": lses[:, :, mine]}
    if workload.form == "peers":
        own, distances = dealt(buffers.view(torch.uint8), ranks // 2, generator)
        own = own.view(torch.bfloat16)
        given = {
            "outs": own[:size].view(rows, heads, LATENT_DIM)[:, mine],
            "lses": own[size : size + 2 * rows * heads].view(torch.float32).view(rows, heads)[:, mine],
            PEER_DISTANCES: distances,
        }
    return {
        **given,
        "attn_sink": sink[mine].contiguous(),
        "lse_scale": p.get("lse_scale", 1.0),
    }


def reference(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The merged outputs, with shares of ranks in float64."""
    outs, lses = (gathered(inputs, name).double() for name in ("outs", "lses"))
    lses = lses * math.log(2)
    total = lses.logsumexp(dim=0)
    below = torch.logaddexp(total, inputs["attn_sink"].double())
    shares = (lses - below).exp().nan_to_num(0.0)
    out = (outs * shares[..., None]).sum(dim=0)
    return {"out": out, "lse": total / math.log(2) * inputs["lse_scale"]}


def compare(
    form: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], expected: Mapping[str, Any]
) -> Comparison:
    """Require each element within one rounding to bf16 of the reference, and lse within 1e-5."""
    result = Comparison()
    out, lse = outputs["out"].double(), outputs["lse"].double()
    largest = gathered(inputs, "outs").double().abs().amax(dim=(0, 3))[..., None]
    bound = expected["out"].abs() * ROUNDING + largest * ARITHMETIC + 1e-38
    excess = (out - expected["out"]).abs() / bound
    result.require("error of out over its bound", float(excess.max()) if excess.numel() else 0.0, 1.0)
    empty = expected["lse"].isinf()
    result.demand("lse is -inf where no rank has keys", torch.equal(lse.isinf(), empty))
    wrong = ((lse - expected["lse"]).abs() / expected["lse"].abs().clamp_min(1.0))[~empty]
    result.require("lse error", float(wrong.max()) if wrong.numel() else 0.0, LSE_ERROR)
    return result


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """A product and a sum per element of each part."""
    return {"float32": 2.0 * dims["ranks"] * dims["rows"] * dims["heads"] * LATENT_DIM}


def _case(name: str, tier: str, ranks: int, rows: int, heads: int, **extra: Any) -> Workload:
    form = "peers" if name.startswith("peers") else "default"
    return Workload(name, tier, form, {"ranks": ranks, "rows": rows, "heads": heads, **extra})


ORACLE = Oracle(
    **vars(PROBLEM),
    workloads=(
        _case("tiny", "tiny", 2, 2, 4),
        _case("one_rank", "edge", 1, 3, 5),
        _case("base_e", "edge", 3, 3, 8, lse_scale=math.log(2)),
        _case("part_of_the_heads", "edge", 4, 5, 8, split=4),
        _case("many_ranks", "edge", 9, 2, 3),
        _case("peers_of_a_host", "edge", 8, 2, 3),
        *real(PROBLEM, "real_one", "real_many", "real_ranks", "real_prompt", "peers_one", "peers_ranks"),
    ),
    make=make,
    reference=reference,
    compare=compare,
    flops=flops,
    units=lambda form, dims: ("rows", dims["rows"]),
    forms_share_workloads=lambda form, other: True,
)
