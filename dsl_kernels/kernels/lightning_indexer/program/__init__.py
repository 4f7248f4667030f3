"""The lightning indexer as a tile program: keys on M, query heads on N, the head sum in the epilogue.

    S[keys, heads] = K Q^T (fp8, fp32 accumulators);   logit[key] = scale[key] * sum_h w_h * relu(S[key, h])

Where the lengths of a batch are similar, decode gives each sequence the same number of CTAs, and these take
its key tiles in turn. So a CTA knows its sequence before any length. Where lengths are ragged, decode lays
the tiles of all sequences end to end and gives each CTA an equal contiguous share. Every CTA finds out from
seq_lens which case holds and where it starts. The host plans nothing, and no result depends on the CTA that
scores a tile. Prefill gives a CTA a block of query rows and re-uses each key tile for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from .... import problems
from ....arch import ArchSpec
from ....problems.base import OperandSpec
from ....tile.lang import Body, Guard, Knob, Schedule, built_for
from ....tile.program import TileProgram
from .. import problem
from . import decode, mxfp4, mxfp4_rows, prefill
from .common import of_four_bits

KNOBS = (
    Knob("mode", "", (("decode", "prefill"),), "decode: paged keys; prefill: flat keys, a window per row"),
    Knob("heads", "h", ((64, 32, 24, 16, 8),), "index heads"),
    Knob(
        "queries",
        "q",
        ((1, 4, 8, 16), (2,)),
        "decode: most queries per sequence; prefill: query rows per CTA",
    ),
    Knob("tile", "t", ((64, 128, 256),), "keys per tile"),
    Knob("stages", "st", ((2, 3, 4, 5, 6, 8), (11,)), "key tiles in flight"),
    Knob("resident", "c", ((1, 2, 4), (3,)), "CTAs per SM"),
    Knob("evict", "e", ((0, 1),), "1: the L2 evicts keys first"),
    Knob(
        "kind",
        "",
        ((*problem.SCORES,),),
        "any: pages of any size, fewer dims and heads, scores in fp32 or bf16; "
        "blocks: also lists of blocks of tokens; mxfp4: 4 bits, fewer heads, scores in fp32 or bf16; "
        "plain: pages of 64, 128 dims, all heads",
        plain="plain",
    ),
)


# Kernels for more queries per sequence refuse calls with up to so many: their query slots make the key ring
# shorter.
USUAL_QUERIES = 8
# Kernels that also take fewer heads are built for these numbers.
ANY_HEADS = (32, 64)


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    if of_four_bits(k) and arch.tmem_columns:
        return (mxfp4 if k.queries == 1 else mxfp4_rows).blackwell(k)
    mode = prefill if k.mode == "prefill" else decode
    return (mode.blackwell if arch.tmem_columns else mode.hopper)(k)


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    if of_four_bits(k) and arch.tmem_columns:
        return (mxfp4 if k.queries == 1 else mxfp4_rows).bodies(k)
    return (prefill if k.mode == "prefill" else decode).bodies(k, arch)


def form_of(knobs: SimpleNamespace) -> str:
    """The problem's form that a variant takes."""
    return problem.form_of(knobs.mode, knobs.kind)


def _index_heads(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    """Why a kernel that takes fewer heads refuses a call: one for fewer heads wastes less."""
    heads, most = call.get("index_heads"), knobs["heads"]
    least = most // 2 + 1 if most > min(ANY_HEADS) else 1
    if heads is None or knobs["kind"] == "plain" or least <= heads <= most:
        return None
    return f"index_heads = {heads}, built for {least} to {most}"


def _queries(knobs: Mapping[str, Any], call: Mapping[str, Any]) -> str | None:
    if knobs["mode"] == "prefill":
        return None
    if knobs["kind"] == "plain" and knobs["queries"] > USUAL_QUERIES >= call["next_n"]:
        return f"next_n = {call['next_n']}, built for more than {USUAL_QUERIES} queries a sequence"
    if call["next_n"] <= knobs["queries"]:
        return None
    return f"next_n = {call['next_n']}, built for at most {knobs['queries']} queries a sequence"


def _launched(k: SimpleNamespace) -> tuple[OperandSpec, ...]:
    """The integer argument of a launch."""
    if k.mode == "prefill":
        return (
            OperandSpec("splits", (), "int32", "scalar", doc="CTAs that share the keys of a block of rows"),
        )
    return (OperandSpec("ctas", (), "int32", "scalar", doc="CTAs that share the key tiles"),)


PROGRAM = TileProgram(
    op="lightning_indexer",
    problem=problems.get("lightning_indexer"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    scratch=_launched,
    form_of=form_of,
    guards=(
        built_for("heads"),
        Guard("index_heads", _index_heads),
        Guard("next_n", _queries),
    ),
)
