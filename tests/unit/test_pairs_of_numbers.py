"""Numbers of 4 bits, two in a byte: their values, rounding, and where a product of them may stand."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from codegen.check import RULES, Violation
from dsl_kernels.arch import GPUS, get_arch
from dsl_kernels.dtypes import DTYPES, e2m1_of, e2m1_pairs
from dsl_kernels.errors import DeclarationError
from dsl_kernels.tile.executor import factors
from dsl_kernels.tile.lang import Buffer, Engine, Mma, Pipeline, Reader, Role, Schedule, Space
from dsl_kernels.tile.validate import validate

PAIRS = "float4_e2m1x2"


def test_the_first_of_two_is_the_lower_half_of_the_byte() -> None:
    assert e2m1_of(torch.tensor([[0x21, 0xF8]], dtype=torch.uint8)).tolist() == [[0.5, 1.0, -0.0, -6.0]]


def test_every_byte_comes_back() -> None:
    every = torch.arange(256).to(torch.uint8).view(16, 16)
    assert torch.equal(e2m1_pairs(e2m1_of(every)), every)


@pytest.mark.parametrize(
    ("given", "rounded"),
    [(0.25, 0.0), (0.26, 0.5), (0.75, 1.0), (1.25, 1.0), (1.75, 2.0), (2.5, 2.0), (3.5, 4.0), (5.0, 4.0),
     (5.1, 6.0), (1e9, 6.0), (float("inf"), 6.0), (float("nan"), 6.0)],
)  # fmt: skip
def test_halfway_goes_to_the_even_code(given: float, rounded: float) -> None:
    assert e2m1_of(e2m1_pairs(torch.tensor([given, -given]))).abs().tolist() == [rounded, rounded]


def test_callers_hold_bytes() -> None:
    assert DTYPES[PAIRS].torch is torch.uint8 and DTYPES[PAIRS].packed == 2


def test_the_greatest_exponent_is_no_number() -> None:
    exponents = torch.full((128, 16), 127, dtype=torch.uint8)
    exponents[5, 1] = 255
    found = factors(exponents)
    assert found[5, 32:64].isnan().all() and int(found.isnan().sum()) == 32


def _schedule(k: int = 128, **pipe: bool) -> Schedule:
    """One product of numbers of 4 bits."""
    rows = (Buffer(name, Space.SHARED, (n, k // 2), PAIRS, swizzle=64) for name, n in (("a", 128), ("b", 64)))
    return Schedule(
        roles=(Role("load", 1), Role("mma", 1)),
        buffers=(
            *rows, Buffer("acc", Space.TENSOR, (128, 64), "float32"),
            *(Buffer(name, Space.TENSOR, (128, 16), "uint8") for name in ("fa", "fb")),
        ),
        pipelines=(
            Pipeline("ab", ("a", "b"), "load", Engine.BULK, (Reader("mma", Engine.TCGEN05),), **pipe),
        ),
        mmas=(
            Mma("product", "tcgen05", "mma", 128, 64, k, PAIRS, a="a", b="b", acc="acc",
                scales=("fa", "fb")),
        ),
        grid=("1",),
        axes=("cta",),
        cluster=(2, 1, 1) if pipe else (1, 1, 1),
        group=(0,) if pipe else (),
    )  # fmt: skip


def _against(arch: str, schedule: Schedule) -> dict[str, Violation]:
    return {v.code: v for rule in RULES for v in rule(schedule, get_arch(arch))}


def test_a_product_of_them_fits_blackwell_alone() -> None:
    schedule = _schedule()
    validate("pairs", schedule)
    assert not _against("sm_100a", schedule)
    assert "MMA_UNIT" in _against("sm_90a", schedule)
    on_hopper = dataclasses.replace(schedule.mmas[0], unit="wgmma")
    assert "MMA_DTYPE" in _against("sm_90a", dataclasses.replace(schedule, mmas=(on_hopper,)))


def test_k_counts_numbers() -> None:
    half_a_step = dataclasses.replace(_schedule().mmas[0], k=96)
    found = _against("sm_100a", dataclasses.replace(_schedule(), mmas=(half_a_step,)))
    assert found["MMA_K"].limit == "K a multiple of 64"


def test_copies_for_other_ctas_are_refused() -> None:
    with pytest.raises(DeclarationError, match="own CTA"):
        validate("pairs", _schedule(multicast=True))


def test_the_costs_know_their_rate() -> None:
    assert GPUS["B200"].tensor_tflops[PAIRS] == 2 * GPUS["B200"].tensor_tflops["float8_e4m3"]
    assert PAIRS not in GPUS["H200"].tensor_tflops
