"""Scoring of any page size, dim, number of heads and dtype through the ops: kernels, results, refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dsl_kernels import ops
from dsl_kernels.errors import ArgumentTypeError, InvalidArgumentError, NoVariantError
from dsl_kernels.ops import _base
from dsl_kernels_lab import oracles
from dsl_kernels_lab.oracles import Workload
from dsl_kernels_lab.timing import bench, grids, measure

CPU = {"executor": "interpreter"}
PROBLEM = oracles.get("lightning_indexer")


def drawn(form: str, **sizes: Any) -> dict[str, Any]:
    workload = Workload("test", "tiny", form, {"pages": 12, **sizes})
    return PROBLEM.make(workload, torch.Generator().manual_seed(5))


def decode(form: str, inputs: dict[str, Any], **changed: Any) -> torch.Tensor:
    """The scores of a decode, after a comparison with the reference."""
    scores = ops.lightning_indexer(**{**inputs, **changed}, **CPU)
    result = PROBLEM.compare(form, inputs, {"logits": scores}, PROBLEM.reference(form, inputs))
    assert result.ok, result.failures
    return scores


def kind_that_served() -> str:
    return str(_base.selections()[-1].variant.knobs["kind"])


@pytest.mark.parametrize(
    "page,dim,heads", [(16, 32, 4), (32, 64, 64), (64, 128, 12), (128, 128, 32), (256, 48, 24)]
)
def test_pages_dims_and_heads_of_any_size(page: int, dim: int, heads: int) -> None:
    _base.clear()
    sizes = {"lens": [[70, 33], [0, 1]], "index_heads": heads, "index_dim": dim, "page_size": page}
    scores = decode("decode_any", drawn("decode_any", **sizes))
    assert scores.dtype == torch.float32 and scores.shape[-1] % page == 0 and kind_that_served() == "any"


@pytest.mark.parametrize(
    "heads,queries,kind", [(8, 8, "plain"), (8, 9, "any"), (24, 16, "any"), (64, 16, "plain")]
)
def test_kernels_for_one_number_of_heads_serve_as_many_queries_as_they_hold(
    heads: int, queries: int, kind: str
) -> None:
    _base.clear()
    inputs = drawn("decode", lens=[[*range(60, 60 + queries)]], heads=heads)
    decode("decode", inputs)
    assert kind_that_served() == kind


def test_scores_follow_the_dtype_of_out() -> None:
    _base.clear()
    inputs = drawn("decode", lens=[[70, 33]], heads=64)
    out = torch.full((1, 2, 256), 7.0, dtype=torch.bfloat16)
    assert decode("decode_any_bf16", {**inputs, "page_size": 64}, out=out) is out
    assert kind_that_served() == "any_bf16" and bool((out[0, 1, 33:] == 7).all())


def test_pages_may_lie_sixteen_bytes_apart_and_weights_come_by_sequence() -> None:
    _base.clear()
    inputs = drawn("decode", lens=[[70, 33], [128, 64]], heads=32)
    cache = inputs["k_cache"]
    wide = torch.full((len(cache), cache.shape[1] + 16), 0x7F, dtype=torch.uint8)
    wide[:, : cache.shape[1]] = cache
    apart = wide.as_strided((len(cache), 64, 1, 132), (wide.shape[1], 132, 132, 1))
    decode("decode", inputs, k_cache=apart)
    assert kind_that_served() == "any"


def test_scores_of_a_prompt_begin_where_the_caller_says() -> None:
    inputs = drawn("prefill", s=9, skv=200, heads=32, windows="ragged")
    names = ("q", "k", "k_scales", "weights", "k_start", "k_end")
    given = [inputs[name] for name in names]
    whole = ops.lightning_indexer_prefill(*given, **CPU)
    widest = int((inputs["k_end"] - inputs["k_start"]).max())
    out = torch.full((9, widest), -7.0)
    compressed = ops.lightning_indexer_prefill(*given, compressed=True, out=out, **CPU)
    for row, (start, end) in enumerate(
        zip(inputs["k_start"].tolist(), inputs["k_end"].tolist(), strict=True)
    ):
        assert torch.equal(compressed[row, : end - start], whole[row, start:end])
        assert bool((compressed[row, end - start :] == -7).all())


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"page_size": 0}, InvalidArgumentError, "page_size"),
        ({"page_size": 64}, InvalidArgumentError, r"k_cache.*\[pages, 64, 1, 68\]"),
        ({"page_size": "32"}, ArgumentTypeError, "page_size"),
        ({"out": torch.empty(1, 2, 96, dtype=torch.float16)}, ArgumentTypeError, "out.*float32"),
        (
            {"weights": torch.zeros(1, 2, 32)[..., ::2]},
            InvalidArgumentError,
            "weights.*dense|weights.*stride",
        ),
        ({"weights": torch.zeros(3, 16)}, InvalidArgumentError, r"weights.*rows == b \* next_n"),
        (
            {"q": torch.zeros(1, 2, 16, 72).to(torch.float8_e4m3fn)},
            InvalidArgumentError,
            r"k_cache|index_dim % 16",
        ),
    ],
)
def test_what_no_kernel_takes_is_refused_by_name(changed: dict[str, Any], error: type, message: str) -> None:
    inputs = drawn("decode_any", lens=[[70, 33]], index_heads=16, index_dim=64, page_size=32)
    with pytest.raises(error, match=message):
        ops.lightning_indexer(**{**inputs, **changed}, **CPU)


def test_weights_of_queries_that_lie_unevenly_are_refused() -> None:
    inputs = drawn("decode_any", lens=[[70, 33], [5, 6]], index_heads=16, index_dim=64, page_size=32)
    weights = torch.zeros(2, 3, 16)[:, :2]
    with pytest.raises(InvalidArgumentError, match=r"weights.*first two axes can be viewed as one"):
        ops.lightning_indexer(**{**inputs, "weights": weights}, **CPU)


def test_more_queries_than_kernels_hold_are_refused() -> None:
    inputs = drawn("decode", lens=[[*range(60, 77)]], heads=8)
    with pytest.raises(NoVariantError, match="next_n = 17"):
        ops.lightning_indexer(**inputs, **CPU)


@pytest.mark.parametrize("compressed", [2, "yes"])
def test_compressed_is_true_or_false(compressed: Any) -> None:
    inputs = drawn("prefill", s=3, skv=130, heads=64)
    names = ("q", "k", "k_scales", "weights", "k_start", "k_end")
    with pytest.raises(ArgumentTypeError, match="compressed.*True or False"):
        ops.lightning_indexer_prefill(*(inputs[n] for n in names), compressed=compressed, **CPU)


def _points_of_any() -> list[grids.Point]:
    """The points of the wide grid and the usual points whose form is "any"; tuning asks for its variants."""
    usual = [grids.usual("lightning_indexer", form) for form in ("decode_any", "prefill_any")]
    return [p for p in (*grids.points("lightning_indexer", "wide"), *usual) if p.form.endswith("_any")]


@pytest.mark.parametrize("point", _points_of_any(), ids=lambda point: point.label)
def test_a_point_of_a_grid_is_a_call_of_its_form(point: grids.Point, monkeypatch: pytest.MonkeyPatch) -> None:
    _base.clear()
    monkeypatch.setattr(measure, "DEVICE", "cpu")
    monkeypatch.setattr(bench, "turns", lambda touched: 1)
    monkeypatch.setenv("DSL_KERNELS_EXECUTOR", "interpreter")
    few = {"len": 70, "skv": 70, "s": 3, "b": 2}
    sizes = {name: few.get(name, value) for name, value in point.params.items()}
    grids.prepare(grids.Point(point.op, point.form, sizes)).calls(None, None)[0]()
    assert kind_that_served() == "any"
