"""How launches deal out work, and tables of committed variants."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dsl_kernels.arch import GPUS
from dsl_kernels.tile.dealing import Spread, UnitCosts, even_splits, parts_at_once, share_units
from dsl_kernels.tile.lang import has_values

GPU = GPUS["H200"]
COSTS = UnitCosts(row=3.5, next_row=2.0, merge=2.1)


def test_parts_that_wait_for_one_another_are_a_power_of_two() -> None:
    assert [parts_at_once(most) for most in (0, 1, 3, 4, 15)] == [1, 1, 2, 4, 8]


@pytest.mark.parametrize(("rows", "splits"), ((1, 16), (37, 3), (200, 1)))
def test_even_splits_are_the_fewest_with_the_shortest_longest_part(rows: int, splits: int) -> None:
    assert even_splits(32, 1, rows, 16, GPU) == splits


def test_splits_that_the_caller_fixed_are_kept() -> None:
    assert share_units(3, 1, 32, 5, GPU, COSTS, walk=False) == (15, 5)


def test_a_row_that_fills_no_gpu_is_split_and_many_rows_are_not() -> None:
    assert share_units(1, 1, 32, None, GPU, COSTS, walk=True)[1] > 1
    assert share_units(100 * GPU.sms, 1, 32, None, GPU, COSTS, walk=True) == (GPU.sms, 1)


def test_few_ctas_of_many_units_gain_by_a_spread() -> None:
    spread = Spread(8, 0.95)
    helped = [spread.helps(ctas, 8 * ctas, GPU) for ctas in (GPU.sms // 2, GPU.sms * 3 // 4, GPU.sms)]
    assert helped == [False, True, False]
    assert not spread.helps(GPU.sms * 3 // 4, GPU.sms, GPU)


def test_a_row_of_a_table_gives_one_value_or_several() -> None:
    k = SimpleNamespace(heads=16, kv="bf16")
    assert has_values(k, ("heads", "kv"), ((8, 16), "bf16"))
    assert not has_values(k, ("heads", "kv"), ((8, 16), "fp8"))
