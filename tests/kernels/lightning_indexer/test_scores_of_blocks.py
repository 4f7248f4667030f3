"""Scoring by blocks through the op: lists, maxima of 8 keys, one-byte scales, two levels of selection."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dsl_kernels import ops
from dsl_kernels.dsa import v4
from dsl_kernels.errors import ArgumentTypeError, InvalidArgumentError, NoVariantError
from dsl_kernels.ops import _base
from dsl_kernels_lab import oracles
from dsl_kernels_lab.layouts import power_of
from dsl_kernels_lab.oracles import Workload

CPU = {"executor": "interpreter"}
PROBLEM = oracles.get("lightning_indexer")
LENS = [[98, 99, 100], [190, 64, 7]]


def drawn(form: str, **sizes: Any) -> dict[str, Any]:
    workload = Workload("test", "tiny", form, {"pages": 12, **sizes})
    return PROBLEM.make(workload, torch.Generator().manual_seed(5))


def valid(inputs: dict[str, Any], scores: torch.Tensor) -> torch.Tensor:
    return torch.arange(scores.shape[-1]) < inputs["seq_lens"][..., None]


def kind_that_served() -> str:
    return str(_base.selections()[-1].variant.knobs["kind"])


def test_maxima_come_beside_the_scores_that_other_kernels_write() -> None:
    inputs = drawn("decode", lens=LENS, heads=64)
    plain = ops.lightning_indexer(**inputs, **CPU)
    _base.clear()
    maxima = torch.full((2, 3, 40), 7.0)
    scores = ops.lightning_indexer(**inputs, maxima=maxima, **CPU)
    assert kind_that_served() == "blocks" and scores.shape == plain.shape
    there = valid(inputs, plain)
    assert torch.equal(scores[there], plain[there])
    masked = torch.where(there, plain, -torch.inf)
    most = torch.nn.functional.pad(masked, (0, 64), value=-torch.inf).view(2, 3, -1, 8).amax(dim=-1)
    assert torch.equal(maxima, torch.where(most == -torch.inf, 7.0, most))


@pytest.mark.parametrize("heads", [32, 64])
def test_four_equal_bytes_are_a_power_of_two(heads: int) -> None:
    inputs = drawn("decode", lens=LENS, heads=heads)
    pages = inputs["k_cache"].view(12, -1).clone()
    exponents = torch.randint(100, 140, (12, 64, 1), generator=torch.Generator().manual_seed(3))
    powers = torch.exp2(exponents.float() - 127)
    pages[:, 64 * 128 :] = powers.squeeze(-1).contiguous().view(torch.uint8)
    expected = ops.lightning_indexer(**{**inputs, "k_cache": pages}, **CPU)
    pages[:, 64 * 128 :] = exponents.to(torch.uint8).expand(-1, -1, 4).reshape(12, -1)
    scores = ops.lightning_indexer(**{**inputs, "k_cache": pages}, scale_format="mx", **CPU)
    there = valid(inputs, scores)
    assert torch.equal(scores[there], expected[there])


@pytest.mark.parametrize("byte", [0, 1, 254, 255])
def test_the_ends_of_the_range_of_scales(byte: int) -> None:
    """2^-127 is below float32's normal numbers, and 255 encodes no number."""
    inputs = drawn("decode_any", lens=[[9]], index_heads=4, index_dim=32, page_size=16)
    inputs["k_cache"].view(12, -1)[:, 16 * 32 :] = byte
    tame = drawn("decode_any", lens=[[9]], index_heads=4, index_dim=32, page_size=16)
    tame["k_cache"].view(12, -1)[:, 16 * 32 :] = torch.ones(16).view(torch.uint8)
    ones = ops.lightning_indexer(**tame, **CPU)[..., :9]
    scores = ops.lightning_indexer(**inputs, scale_format="mx", **CPU)[..., :9]
    assert torch.equal(scores.nan_to_num(), (ones * power_of(torch.tensor(byte))).nan_to_num())
    assert bool(scores.isnan().any()) == (byte == 255) and bool(ones.count_nonzero())


@pytest.mark.parametrize("shared", [False, True])
def test_a_list_names_blocks_of_the_cache(shared: bool) -> None:
    """A list of a page table's blocks in order gives the table's scores; per query or per sequence."""
    inputs = drawn("decode", lens=LENS, heads=64)
    expected = ops.lightning_indexer(**inputs, **CPU)
    lists = (inputs["block_table"][..., None] * 4 + torch.arange(4, dtype=torch.int32)).flatten(1)
    if not shared:
        lists = lists.repeat_interleave(3, dim=0)
    scores = ops.lightning_indexer(**{**inputs, "block_table": lists}, block_size=16, **CPU)
    there = valid(inputs, scores)
    assert torch.equal(scores[there], expected[there])


def test_two_levels_choose_among_the_keys_of_the_best_blocks() -> None:
    """As in DeepSeek-V4.1's index layers: one publishes its best blocks, another selects their keys."""
    page, best, k = 64, 5, 21
    inputs = drawn("decode", lens=LENS, heads=32)
    lens, table = inputs["seq_lens"].flatten(), inputs["block_table"]
    maxima = torch.empty(2, 3, table.shape[1] * page // 8)
    ops.lightning_indexer(**inputs, maxima=maxima, **CPU)
    numbers = torch.empty(6, best, dtype=torch.int32)
    blocks = ops.topk_selector(
        maxima.flatten(0, 1), (lens + 7) // 8, best, block_table=table, page_size=page // 8, next_n=3,
        positions=numbers, **CPU
    )  # fmt: skip
    later = drawn("decode", lens=LENS, heads=32)
    later["q"] = torch.randn(2, 3, 32, 128, generator=torch.Generator().manual_seed(9)).to(
        torch.float8_e4m3fn
    )
    keys = v4.keys_in_blocks(numbers, lens)
    scores = ops.lightning_indexer(
        **{**later, "block_table": blocks, "seq_lens": keys.view(2, 3)}, block_size=8, **CPU
    )
    ids = ops.topk_selector(scores.flatten(0, 1), keys, k, block_table=blocks, page_size=8, **CPU)

    first, second = (PROBLEM.reference("decode", i)["logits"] for i in (inputs, later))
    for row, length in enumerate(lens.tolist()):
        own, other = first.flatten(0, 1)[row, :length], second.flatten(0, 1)[row, :length]
        of_blocks = torch.nn.functional.pad(own, (0, -length % 8), value=-torch.inf).view(-1, 8).amax(dim=1)
        chosen = of_blocks.topk(min(best, len(of_blocks))).indices.sort().values
        among = torch.zeros(length, dtype=torch.bool)
        for block in chosen.tolist():
            among[block * 8 : block * 8 + 8] = True
        positions = other.masked_fill(~among, -torch.inf).topk(min(k, int(among.sum()))).indices.sort().values
        wanted = table[row // 3, positions // page] * page + positions % page
        assert ids[row, : len(wanted)].tolist() == wanted.tolist()
        assert bool((ids[row, len(wanted) :] == -1).all()) and int(keys[row]) == int(among.sum())


def test_keys_in_blocks_counts_what_a_row_has() -> None:
    blocks = torch.tensor([[0, 2, 3], [1, 2, -1], [-1, -1, -1], [0, 1, 4]], dtype=torch.int32)
    lens = torch.tensor([27, 40, 0, 33], dtype=torch.int32)
    assert v4.keys_in_blocks(blocks, lens).tolist() == [19, 16, 0, 17]
    assert v4.keys_in_blocks(blocks, lens * 2, block_size=16).tolist() == [38, 32, 0, 34]
    with pytest.raises(InvalidArgumentError, match="seq_lens"):
        v4.keys_in_blocks(blocks, lens.view(2, 2))
    with pytest.raises(InvalidArgumentError, match="blocks"):
        v4.keys_in_blocks(blocks[:2], lens)


@pytest.mark.parametrize(
    "changed,names",
    [
        ({"scale_format": "fp8"}, "scale_format"),
        ({"scale_format": 1}, "scale_format"),
        ({"block_size": 12}, "block_size"),
        ({"block_size": 128}, "block_size"),
        ({"block_size": -8}, "block_size"),
        ({"page_size": 20, "scale_format": "mx"}, "page_size"),
        ({"maxima": torch.empty(2, 3, 7)}, "maxima"),
        ({"maxima": torch.empty(6, 40)}, "maxima"),
        ({"maxima": torch.empty(2, 3, 40, dtype=torch.bfloat16)}, "maxima"),
        ({"scale_format": "mx", "out": torch.empty(2, 3, 256, dtype=torch.bfloat16)}, "out"),
        ({"scale_format": "mx", "out": torch.empty(3, 2, 256).transpose(0, 1)}, "out"),
        ({"scale_format": "mx", "q": torch.zeros(2, 3, 128)}, "q"),
        ({"block_size": 8, "block_table": torch.zeros(4, 40, dtype=torch.int32)}, "block_table"),
        ({"block_size": 8, "block_table": torch.full((6, 40), 96, dtype=torch.int32)}, "block_table"),
    ],
)
def test_what_the_form_does_not_take_is_refused_by_name(changed: dict[str, Any], names: str) -> None:
    inputs = drawn("decode", lens=LENS, heads=64)
    with pytest.raises((ArgumentTypeError, InvalidArgumentError), match=names):
        ops.lightning_indexer(**{**inputs, **changed}, **CPU)


def test_more_queries_than_one_are_rows_of_their_own() -> None:
    """One call takes any number of queries."""
    inputs = drawn("decode_any", lens=[[*range(30, 50)]], index_heads=8, index_dim=64, page_size=32)
    with pytest.raises(NoVariantError):
        ops.lightning_indexer(**inputs, **CPU)
    maxima = torch.empty(1, 20, 12)
    scores = ops.lightning_indexer(**inputs, maxima=maxima, **CPU)
    expected = PROBLEM.reference("decode_any", inputs)["logits"]
    there = valid(inputs, expected)
    torch.testing.assert_close(
        scores[..., : there.shape[-1]][there].double(), expected[there], rtol=1e-3, atol=1e-3
    )
