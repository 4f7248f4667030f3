"""A CTA's share of the indexer's key tiles: many tiles, several sequences, rings that wrap.

A launch has as many CTAs as the GPU at hand can hold, so on a small workload none gets more than one tile.
Here the committed variants run as they would on a GPU with two SMs.
"""

from __future__ import annotations

from unittest import mock

import pytest

from dsl_kernels import variants
from dsl_kernels.arch import GPUS
from dsl_kernels.executors import Emulator
from dsl_kernels.variants import Variant
from dsl_kernels_lab.oracles import Workload
from dsl_kernels_lab.verification import trial
from ptx_emulator import Interleaving

pytestmark = [pytest.mark.emulator, pytest.mark.compile]

OP = "lightning_indexer"
SMS = 2
ONE_QUERY = [[1500], [0], [3000], [64], [129], [800]]
EVEN_ONE = [[17000]]
EVEN_THREE = [[4998, 4999, 5000]]
THREE_QUERIES = [[1500, 3, 900], [0, 0, 0], [2000, 2001, 2002], [64, 1, 65]]
INTERLEAVINGS = (
    Interleaving.lockstep(),
    Interleaving.random(1),
    Interleaving.adversarial(2),
    Interleaving.adversarial(3, 8, "early"),
)


def decode_variants() -> list[Variant]:
    return [
        v
        for v in variants.variants()
        if v.op == OP and v.knobs["mode"] == "decode" and v.knobs["heads"] == 64
    ]


@pytest.mark.sample(52)
@pytest.mark.parametrize("variant", decode_variants(), ids=lambda variant: variant.id)
@pytest.mark.parametrize("interleaving", INTERLEAVINGS, ids=["lockstep", "random", "late", "early"])
@pytest.mark.parametrize("even", [False, True], ids=["ragged", "even"])
def test_a_share_of_many_tiles(variant: Variant, interleaving: Interleaving, even: bool) -> None:
    one = variant.knobs["queries"] == 1
    lens = (EVEN_ONE if one else EVEN_THREE) if even else (ONE_QUERY if one else THREE_QUERIES)
    name, sizes = f"shares_{even}_q{len(lens[0])}", {"lens": lens, "pages": 280}
    if variant.knobs["kind"] == "blocks":
        blocks = {"index_heads": 64, "index_dim": 128, "page_size": 64, "block_size": 8, "maxima": 1}
        workload = Workload(f"{name}_blocks", "edge", "decode_blocks", sizes | blocks)
    elif variant.knobs["kind"].startswith("mxfp4"):
        four_bits = Workload(f"{name}_mxfp4", "edge", "decode_mxfp4", {**sizes, "index_heads": 64})
        workload = trial.fitted(variant, four_bits)
    else:
        workload = trial.fitted(variant, Workload(name, "edge", "decode", {**sizes, "heads": 64}))
    with mock.patch.dict(GPUS, {name: gpu.with_sms(SMS) for name, gpu in GPUS.items()}):
        result = trial.run(
            variant, workload, Emulator(interleaving), example=trial.cached_example(OP, workload)
        )
    assert result.dims["ctas"] == SMS * variant.knobs["resident"]
    assert result.comparison.ok, result.comparison.failures
