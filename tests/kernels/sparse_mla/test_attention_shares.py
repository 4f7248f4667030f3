"""Attention whose CTAs take tiles of several queries, on the interpreter and the emulator."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dsl_kernels import ops, registry, variants
from dsl_kernels.arch import GPUS, get_arch
from dsl_kernels.executors import Emulator, Interpreter
from dsl_kernels.kernels.sparse_mla.forms import PAGED
from dsl_kernels.kernels.sparse_mla.policy import launch
from dsl_kernels.kernels.sparse_mla.program.common import shares_out
from dsl_kernels_lab.oracles import Workload
from dsl_kernels_lab.verification import trial
from dsl_kernels_lab.verification.reach import attended_heads

VARIANTS = [v for v in variants.variants("sparse_mla") if shares_out(SimpleNamespace(**v.knobs))]
# Ids of V4's second scope. Tiles per query, and CTAs per block of heads: parts of queries, whole queries,
# more than needed.
EXTRA = 130
DEALS = ((5, 2), (5, 4), (3, 1), (2, 4), (9, 3), (2, 5))
ROUND = {"splits": 1, "ctas": 2}


def _workload(variant: variants.Variant, tiles: int, ids: str) -> Workload:
    sizes = {
        "t": 3,
        "heads": attended_heads(variant.knobs),
        "topk": 64 * tiles,
        "n": 700,
        "ids": ids,
        "v4_extra_topk": EXTRA,
    }
    return Workload(f"shares_{tiles}_{ids}", "edge", variant.knobs["kv"], sizes)


def _units(knobs: Mapping[str, Any], tiles: int) -> int:
    """A query's units: pairs of tiles for bf16 on Hopper and pairs of CTAs; V4 and V4.1 have two scopes."""
    tiles += -(-EXTRA // 64) if knobs["kv"] in PAGED else 0
    return -(-tiles // 2) if knobs["tile"] == 128 or (knobs["kv"] == "bf16" and "stages" in knobs) else tiles


def _deal(variant: variants.Variant, tiles: int, ctas: int) -> dict[str, int]:
    units = _units(variant.knobs, tiles)
    share = -(-3 * units // ctas)
    parts = 1 if share % units == 0 else (units - 2) // share + 2
    return {"splits": parts, "ctas": ctas}


@pytest.mark.sample(16)
@pytest.mark.parametrize("ids", ("random", "holes", "islands", "tail"))
@pytest.mark.parametrize("deal", DEALS, ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.id)
def test_every_tile_is_attended_to_once(variant: variants.Variant, deal: tuple[int, int], ids: str) -> None:
    result = trial.run(
        variant, _workload(variant, deal[0], ids), Interpreter(seed=3), launch=_deal(variant, *deal)
    )
    assert result.comparison.ok, result.comparison.failures


@pytest.mark.sample(16)
@pytest.mark.parametrize("ids", ("random", "prompt"))
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.id)
def test_whole_queries_go_round_the_ctas(variant: variants.Variant, ids: str) -> None:
    """The first CTA has the first query and the third, and the second CTA the one between them."""
    result = trial.run(variant, _workload(variant, 5, ids), Interpreter(seed=3), launch=ROUND)
    assert result.comparison.ok, result.comparison.failures


@pytest.mark.sample(18)
@pytest.mark.emulator
@pytest.mark.compile
@pytest.mark.parametrize("whole", (False, True), ids=("parts", "whole"))
@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.id)
def test_the_compiled_kernels_agree(variant: variants.Variant, whole: bool) -> None:
    launch = ROUND if whole else _deal(variant, 5, 2)
    result = trial.run(variant, _workload(variant, 5, "holes"), Emulator(strict=True), launch=launch)
    assert result.comparison.ok, result.comparison.failures


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.id)
def test_queries_without_ids_go_to_kernels_that_write_their_rows(variant: variants.Variant) -> None:
    """No CTA gets a tile of such a query, so none would write its result."""
    kv, heads = variant.knobs["kv"], attended_heads(variant.knobs)
    without = {"t": 2, "heads": heads, "topk": 0, "n": 9}
    assert "topk = 0" in (
        registry.refusal(registry.Call("sparse_mla", kv, variant.arch, without), variant) or ""
    )
    q, q_pe = torch.randn(2, heads, 512).bfloat16(), torch.randn(2, heads, 64).bfloat16()
    rows, kpe = torch.randn(9, 512).bfloat16(), torch.randn(9, 64).bfloat16()
    cache: dict[str, Any] = {
        "bf16": {"q_pe": q_pe, "kv": rows, "kpe": kpe},
        "nope": {"q_pe": None, "kv": rows},
        "fp8": {"q_pe": q_pe, "kv": torch.zeros(9, 656, dtype=torch.uint8)},
        "v4": {"q_pe": None, "kv": torch.zeros(2, 8, 584, dtype=torch.uint8)},
        "v41": {"q_pe": None, "kv": torch.zeros(2, 8, 528, dtype=torch.uint8), "row_format": "v41"},
    }[kv]
    out, lse = torch.full_like(q, 7.0), torch.full((2, heads), 7.0)
    ids = torch.empty(2, 0, dtype=torch.int32)
    ops.sparse_mla(
        q, indices=ids, **cache, sm_scale=0.05, out=out, lse=lse, executor="interpreter", arch=variant.arch
    )
    assert (out == 0).all() and (lse == -torch.inf).all()


@pytest.mark.parametrize("t", (1, 3, 16, 37, 64, 96, 128, 200, 1024))
@pytest.mark.parametrize("heads", (64, 128))
@pytest.mark.parametrize("kv", ("bf16", "fp8"))
def test_a_deal_covers_all_tiles_within_its_scratch(kv: str, heads: int, t: int) -> None:
    for gpu in (*GPUS.values(), GPUS["H200"].with_sms(3)):
        if gpu.arch is not get_arch("sm_90a"):
            continue
        knobs = SimpleNamespace(heads=heads, kv=kv, tile=64, stages=2, cluster=1, slices=1, block=64)
        for topk in (64, 192, 2048):
            plan, blocks = launch(knobs, {"t": t, "topk": topk}, gpu), heads // 64
            units = _units(vars(knobs), topk // 64)
            share, span, splits = plan.share, plan.span, plan.splits
            taken: list[list[int]] = [[] for _ in range(t)]
            for cta in range(plan.ctas):
                unit, end = cta * share, cta * share + plan.reach
                while unit < end:
                    row = unit // span
                    if row < t:
                        taken[row] += range(unit - row * span, min(end - row * span, units))
                    unit = (row + plan.row_step) * span
            assert plan.counters == t * blocks and all(sorted(each) == list(range(units)) for each in taken)
            parts = [(row * span + units - 1) // share - row * span // share + 1 for row in range(t)]
            assert max(parts) <= splits


@pytest.mark.parametrize(
    "heads, t, ctas",
    ((64, 37, 111), (64, 66, 132), (64, 67, 67), (64, 72, 72), (64, 80, 80), (64, 96, 96), (64, 215, 108),
     (128, 37, 66))
)  # fmt: skip
def test_pairs_go_on_into_the_next_query_where_that_was_measured_faster(
    heads: int, t: int, ctas: int
) -> None:
    knobs = SimpleNamespace(heads=heads, kv="bf16", tile=64, stages=2, cluster=1, slices=1, block=64)
    plan = launch(knobs, {"t": t, "topk": 2048}, GPUS["H200"])
    assert plan.ctas == ctas


@pytest.mark.parametrize("block", (0, 64))
def test_ctas_that_leave_sms_idle_are_spread_over_pairs_of_sms(block: int) -> None:
    """Such launches wait for the kernel before; with full SMs, few tiles or a fp8 cache they do not."""
    most = 112 if block else 125

    def begins_behind(gpu: str = "H200", **changed: Any) -> bool:
        knobs = {
            "heads": 64 if block else 16,
            "kv": "bf16",
            "tile": 64,
            "stages": 2,
            "cluster": 1,
            "slices": 1,
            "block": block,
        }
        sizes = {"t": 96, "topk": 2048, **{k: v for k, v in changed.items() if k not in knobs}}
        k = SimpleNamespace(**knobs | {key: value for key, value in changed.items() if key in knobs})
        plan = launch(k, sizes, GPUS[gpu])
        assert plan.dims.get("early", 0) == 0, "a launch begins early unless it is told not to"
        return not plan.early

    assert [t for t in range(67, 133) if begins_behind(t=t)] == list(range(67, most + 1))
    assert begins_behind(t=48) and not begins_behind(t=64) and not begins_behind(t=16)
    assert not begins_behind(kv="fp8") and not begins_behind(topk=256) and not begins_behind(heads=128)
    assert begins_behind("H20", t=57) and not begins_behind("H20", t=96)
