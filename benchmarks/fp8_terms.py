"""The accuracy of attention over fp8 tokens whose products take e4m3 operands as stored. Needs no GPU.

    python benchmarks/fp8_terms.py
    python benchmarks/fp8_terms.py --write docs/clock.md  # replace the table on that page

`kind::f8f6f4` takes both operands in 8 bits. In a product with stored keys or values, the other operand is
split into two e4m3 terms, the second being 16 times the residual of the first. Q has a scale per head and 128
dims. P is multiplied by the scale of its token's values for 128 dims, and has a scale for the tokens so far.
Keys' scales are applied to four partial scores; rope dims stay in bf16. Sums are exact here, as in the
reference; those of a tensor core are float32.

Beside it is what the other kernels do: keys and values dequantised to bf16, P rounded to bf16. Both are
compared with float64 over the stored tokens. P is at most 2^`rise`, as the softmax lets the maximum rise by
that before it rescales. Last comes the program itself (kernels/sparse_mla/program/terms.py), which lets it
rise by 2, as the interpreter carries its text out.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Collection
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from dsl_kernels.ops import sparse_mla
from dsl_kernels.problems.layouts import pack_fp8_tokens
from dsl_kernels_lab.layouts import unpack_fp8_tokens
from dsl_kernels_lab.oracles.sparse_mla import LSE_LIMIT, OUT_LIMIT

HEADS, TOKENS, LATENT, ROPE, GROUP, TILE = 16, 2048, 512, 64, 128, 64
GROUPS = LATENT // GROUP
FLOAT8 = torch.float8_e4m3fn
SCALE = (LATENT + ROPE) ** -0.5
VARIANT = "sparse_mla__cutedsl_sm100a__h16_fp8_bt64_cl1_cp_async_terms2"
LARGEST = 256.0
"""The greatest power of two that e4m3 holds."""

MARKS = "<!-- printed by benchmarks/fp8_terms.py -->\n", "<!-- end of the errors -->\n"
"""The lines of a page between which the table is."""

Drawn = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries [heads, 576], latent rows [tokens, 512], rope [tokens, 64]."""


def _draw(
    seed: int, change: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Generator], None]
) -> Drawn:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(HEADS, LATENT + ROPE, generator=generator)
    latent, rope = (
        torch.randn(TOKENS, LATENT, generator=generator),
        torch.randn(TOKENS, ROPE, generator=generator),
    )
    change(q, latent, rope, generator)
    return q.bfloat16().double(), latent.bfloat16().float(), rope.bfloat16()


def _heavy(x: torch.Tensor, generator: torch.Generator) -> None:
    """Divide by draws that turn a normal into Student's t with three degrees of freedom."""
    x /= (torch.randn(3, *x.shape, generator=generator).square().sum(dim=0) / 3).sqrt()


def _tail(q: torch.Tensor, latent: torch.Tensor) -> None:
    """One token has most of the weight. In 64 dims, which no query uses, all other tokens are 1: their
    weights, 2^-15 each, add up to a twentieth there."""
    q.copy_(q[:1].expand_as(q).clone())
    q[:, LATENT - 64 : LATENT] = 0
    latent *= 0.2
    latent[7] = q[0, :LATENT] * (15.4 * math.log(2) / SCALE / q[0, :LATENT].square().sum())
    latent[:, LATENT - 64 :] = 1
    latent[7, LATENT - 64 :] = 0


DISTRIBUTIONS: dict[str, tuple[Callable[..., None], bool]] = {
    "normal": (lambda q, k, r, g: None, False),
    "scales of max / 448": (lambda q, k, r, g: None, True),
    "heavy tails": (lambda q, k, r, g: (_heavy(q, g), _heavy(k, g)), False),
    "uniform": (lambda q, k, r, g: (q.uniform_(-1, 1, generator=g), k.uniform_(-1, 1, generator=g)), False),
    "four dims 30 times as large": (lambda q, k, r, g: k[:, 5::128].mul_(30), False),
    "queries with such dims": (lambda q, k, r, g: q[:, 5::128].mul_(30), False),
    "tokens of sizes over 2^12": (
        lambda q, k, r, g: k.mul_(2 ** torch.empty(TOKENS, 1).uniform_(-8, 4, generator=g)), False,
    ),
    "dims of sizes over 2^16": (
        lambda q, k, r, g: q.mul_(2 ** torch.empty(1, 576).uniform_(-16, 0, generator=g)), False,
    ),
    "flat weights": (lambda q, k, r, g: q.mul_(0.01), False),
    "sharp weights": (lambda q, k, r, g: q.mul_(12), False),
    "one token and a long tail": (lambda q, k, r, g: _tail(q, k), False),
    "values that cancel": (lambda q, k, r, g: (q.mul_(0.05), k[1::2].copy_(-k[::2] + 0.02 * k[1::2])), False),
    "all values of a sign": (lambda q, k, r, g: k.abs_(), False),
}  # fmt: skip


def e4m3(x: torch.Tensor) -> torch.Tensor:
    return x.float().clamp(-448, 448).to(FLOAT8).double()


def two_terms(x: torch.Tensor) -> torch.Tensor:
    """The sum of the two e4m3 terms of numbers below 448."""
    first = e4m3(x)
    return first + e4m3((x - first) * 16) / 16


def power_above(x: torch.Tensor) -> torch.Tensor:
    """The least power of two that is not smaller; 1 for zero."""
    return torch.where(x > 0, torch.exp2(torch.log2(x.clamp(min=1e-300)).ceil()), torch.ones_like(x))


def reference(q: torch.Tensor, rows: torch.Tensor, rope: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse in base 2) in float64."""
    logits = (q[:, :LATENT] @ rows.T + q[:, LATENT:] @ rope.T) * SCALE / torch.log(torch.tensor(2.0)).double()
    lse = (
        torch.logsumexp(logits * torch.log(torch.tensor(2.0)).double(), dim=1)
        / torch.log(torch.tensor(2.0)).double()
    )
    return torch.exp2(logits - lse[:, None]) @ rows, lse


def attended(
    logits: torch.Tensor, rise: int, weigh: Callable[[torch.Tensor, int], torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of base-2 logits by tiles; the maximum may lag by `rise`. `weigh` gives P V of a tile."""
    peak = torch.full((HEADS,), -torch.inf, dtype=torch.float64)
    total, out = torch.zeros(HEADS).double(), torch.zeros(HEADS, LATENT).double()
    for tile in range(TOKENS // TILE):
        own = logits[:, tile * TILE : tile * TILE + TILE]
        highest = own.max(dim=1).values
        raised = torch.where(highest > peak + rise, torch.maximum(highest, peak), peak)
        factor = torch.exp2(peak - raised)
        peak, total, out = raised, total * factor, out * factor[:, None]
        weights = torch.exp2(own - peak[:, None]).float().double()
        total += weights.sum(dim=1)
        out += weigh(weights, tile)
    return out / total[:, None], peak + torch.log2(total)


def by_terms(
    q: torch.Tensor, tokens: torch.Tensor, scales: torch.Tensor, rope: torch.Tensor, rise: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scheme of two terms, over e4m3 values [tokens, 512] and their scales [tokens, 4]."""
    logits = q[:, LATENT:] @ rope.T
    for g in range(GROUPS):
        dims = slice(g * GROUP, g * GROUP + GROUP)
        own = power_above(q[:, dims].abs().max(dim=1, keepdim=True).values) / LARGEST
        logits += (two_terms(q[:, dims] / own) @ tokens[:, dims].T) * own * scales[:, g]
    logits = (logits * SCALE / torch.log(torch.tensor(2.0)).double()).float().double()

    def weigh(weights: torch.Tensor, tile: int) -> torch.Tensor:
        some = slice(tile * TILE, tile * TILE + TILE)
        parts = []
        for g in range(GROUPS):
            own = power_above(scales[: some.stop, g].max()) * 2.0**rise / LARGEST
            parts.append(
                two_terms(weights * scales[some, g] / own) @ tokens[some, g * GROUP : g * GROUP + GROUP] * own
            )
        return torch.cat(parts, dim=1)

    return attended(logits, rise, weigh)


def by_bf16(q: torch.Tensor, rows: torch.Tensor, rope: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernels compute, over dequantised rows."""
    values = rows.bfloat16().double()
    logits = (
        (q[:, :LATENT] @ values.T + q[:, LATENT:] @ rope.T) * SCALE / torch.log(torch.tensor(2.0)).double()
    )
    return attended(
        logits.float().double(),
        8,
        lambda weights, tile: weights.bfloat16().double() @ values[tile * TILE : tile * TILE + TILE],
    )


def by_program(
    q: torch.Tensor, packed: torch.Tensor, variant: str = VARIANT
) -> tuple[torch.Tensor, torch.Tensor]:
    """What the text of a variant gives, in the interpreter."""
    split = q.bfloat16().split([LATENT, ROPE], dim=1)
    ids = torch.arange(len(packed), dtype=torch.int32)[None]
    out, lse = sparse_mla(
        *(part.contiguous()[None] for part in split), packed, ids, sm_scale=SCALE, splits=1,
        executor="interpreter", variant=variant, arch="sm_100a",
    )  # fmt: skip
    return out[0].double(), lse[0].double()


def errors(
    got: tuple[torch.Tensor, torch.Tensor], wanted: tuple[torch.Tensor, torch.Tensor]
) -> tuple[float, float]:
    """The errors that attention's tolerance is for: relative of out, rounded to bf16; absolute of lse."""
    out = float((got[0].bfloat16().double() - wanted[0]).norm() / wanted[0].norm())
    return out, float((got[1] - wanted[1]).abs().max())


Errors = tuple[float, float]


def rows_of(
    seed: int, names: Collection[str] = tuple(DISTRIBUTIONS), *, program: bool = True
) -> list[tuple[str, list[Errors]]]:
    """For each distribution, the errors of bf16, of two terms (a rise of 8, of 2), and of the program."""
    rows = []
    for name in names:
        change, raw = DISTRIBUTIONS[name]
        q, latent, rope16 = _draw(seed, change)
        packed = pack_fp8_tokens(latent, rope16, raw_scales=raw)
        dequantised, rope = unpack_fp8_tokens(packed)
        tokens = packed[:, :LATENT].view(FLOAT8).double()
        scales = packed[:, LATENT : LATENT + 4 * GROUPS].contiguous().view(torch.float32).double()
        stored = (tokens.view(TOKENS, GROUPS, GROUP) * scales[:, :, None]).view(TOKENS, LATENT)
        wanted = reference(q, stored, rope.double())
        found = [
            by_bf16(q, dequantised.double(), rope.double()),
            *(by_terms(q, tokens, scales, rope.double(), rise) for rise in (8, 2)),
            *([by_program(q, packed)] if program else []),
        ]
        rows.append((name, [errors(each, wanted) for each in found]))
    return rows


def table(rows: list[tuple[str, list[Errors]]]) -> str:
    """The errors as a Markdown table; those beyond the tolerance are bold."""

    def cell(errors: Errors) -> str:
        out, lse = errors
        return " | ".join(
            f"**{x:.1e}**" if x > limit else f"{x:.1e}" for x, limit in ((out, OUT_LIMIT), (lse, LSE_LIMIT))
        )

    kinds = ("bf16", "two terms, rise 8", "two terms, rise 2", "the program")
    head = f"| distribution | {' | '.join(f'{kind}: out | lse' for kind in kinds)} |\n"
    head += f"| --- |{' --- |' * (2 * len(kinds))}\n"
    return head + "".join(f"| {name} | {' | '.join(map(cell, each))} |\n" for name, each in rows)


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--write", type=Path, help="the page whose table to replace")
    given = arguments.parse_args()
    text = table(rows_of(given.seed))
    print(text)
    if given.write is not None:
        before, rest = given.write.read_text().split(MARKS[0])
        after = rest.split(MARKS[1], 1)[1]
        given.write.write_text(before + MARKS[0] + text + MARKS[1] + after)


if __name__ == "__main__":
    main()
