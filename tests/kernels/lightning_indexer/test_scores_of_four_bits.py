"""Scoring over keys and queries of 4 bits through the op, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from dsl_kernels import ops
from dsl_kernels.errors import ArgumentTypeError, InvalidArgumentError, NoVariantError
from dsl_kernels.kernels.lightning_indexer import op
from dsl_kernels.ops import _base
from dsl_kernels.problems.mxfp4 import pack_mxfp4_index_keys, quantise_mxfp4
from dsl_kernels_lab import oracles
from dsl_kernels_lab.layouts import mxfp4_of
from dsl_kernels_lab.oracles import Workload

CPU = {"executor": "interpreter", "arch": "sm_100a"}
PROBLEM = oracles.get("lightning_indexer")
REPEATED = ("q", "q_scales", "weights", "seq_lens")


def drawn(heads: int = 64, next_n: int = 3) -> dict[str, Any]:
    """Arguments of the op: two sequences of `next_n` queries, whose keys lie in pages of 64."""
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    q, q_scales = quantise_mxfp4(normal(2, next_n, heads, 128) * 3)
    return {
        "q": q, "q_scales": q_scales.squeeze(-1), "k_cache": pack_mxfp4_index_keys(normal(12, 64, 128)),
        "weights": normal(2, next_n, heads), "scale_format": "mxfp4",
        "seq_lens": torch.tensor([[98, 99, 100], [190, 0, 7]], dtype=torch.int32)[:, :next_n].contiguous(),
        "block_table": torch.tensor([[3, 11, 0], [7, 2, 9]], dtype=torch.int32),
    }  # fmt: skip


def scores_of(given: dict[str, Any]) -> torch.Tensor:
    """Scores in float64, written anew: -inf where there is no key."""
    cache = given["k_cache"].view(12, -1)
    keys = mxfp4_of(cache[:, :4096].reshape(12, 64, 64), cache[:, 4096:].contiguous().view(torch.int32))
    q = mxfp4_of(given["q"], given["q_scales"].reshape(given["q"].shape[:3])).double()
    out = torch.full((*q.shape[:2], 192), -torch.inf, dtype=torch.float64)
    for row in range(q.shape[0]):
        own = keys[given["block_table"][row].long()].reshape(-1, 128).double()
        for n in range(q.shape[1]):
            length = int(given["seq_lens"][row, n])
            dots = (own[:length] @ q[row, n].T).clamp(min=0)
            out[row, n, :length] = dots @ given["weights"].reshape(q.shape[:3])[row, n].double()
    return out


@pytest.mark.parametrize(
    ("heads", "next_n", "built"),
    [(64, 3, 16), (32, 3, 16), (64, 1, 1), (8, 3, 16), (16, 1, 1), (24, 3, 16), (40, 1, 1)],
)
def test_scores_of_every_query_of_a_sequence(heads: int, next_n: int, built: int) -> None:
    given = drawn(heads, next_n)
    expected, out = scores_of(given), torch.full((2, next_n, 192), -torch.inf)
    scores = ops.lightning_indexer(**given, out=out, **CPU)
    chosen = _base.selections()[-1].variant.knobs
    assert scores is out and (chosen["kind"], chosen["queries"]) == ("mxfp4", built)
    assert chosen["heads"] == (64 if heads > 32 else 32)
    close_to(out, expected)


def close_to(scores: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare scores with those in float64, and what was not written with -inf."""
    there = expected.isfinite()
    assert torch.equal(there, scores.isfinite())
    error = (scores[there].double() - expected[there]).norm() / expected[there].norm()
    assert error < (3e-3 if scores.dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize(("heads", "next_n"), [(64, 3), (32, 1), (8, 3), (48, 1), (24, 3)])
def test_scores_follow_the_dtype_of_out(heads: int, next_n: int) -> None:
    given, out = drawn(heads, next_n), torch.full((2, next_n, 192), -torch.inf, dtype=torch.bfloat16)
    assert ops.lightning_indexer(**given, out=out, **CPU) is out
    assert _base.selections()[-1].variant.knobs["kind"] == "mxfp4_bf16"
    close_to(out, scores_of(given))


@pytest.mark.parametrize("heads", [8, 24, 40])
def test_heads_that_are_not_there_add_nothing_to_extreme_scales(heads: int) -> None:
    """Keys times 2^125 and 2^-127, against queries times 2^-117; the bytes after a row of heads are NaN."""
    given = drawn(heads)
    given["k_cache"].view(12, -1)[:, 4096:] = torch.tensor([252, 252, 0, 252], dtype=torch.uint8).repeat(64)
    given["q_scales"] = torch.full((2, 3, heads), 0x0A0A0A0A, dtype=torch.int32)
    for name in ("q_scales", "weights"):
        wide = torch.full((2, 3, heads + 4), -1, dtype=torch.int32).view(given[name].dtype)
        wide[..., :heads] = given[name]
        given[name] = wide[..., :heads]
    out = torch.full((2, 3, 192), -torch.inf)
    close_to(ops.lightning_indexer(**given, out=out, **CPU), scores_of(given))


def test_rows_of_weights_and_scales_may_be_flat() -> None:
    given = drawn()
    expected = ops.lightning_indexer(**given, **CPU)
    flat = {name: given[name].flatten(0, 1) for name in ("weights", "q_scales")}
    scores = ops.lightning_indexer(**{**given, **flat}, **CPU)
    there = torch.arange(192) < given["seq_lens"][..., None]
    assert scores.shape == (2, 3, 192) and torch.equal(scores[there], expected[there])


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Of each launch: sequences, queries of each, and sequences that share a line of the table."""
    found, run = [], op.run

    def noted(name: str, form: str, operands: dict[str, Any], *others: Any) -> None:
        found.append((*operands["q"].shape[:2], operands["sharing"]))
        run(name, form, operands, *others)

    monkeypatch.setattr(op, "run", noted)
    return found


def test_more_queries_than_kernels_take_are_groups(groups: list[tuple[int, int, int]]) -> None:
    """Six queries, then two groups of nine, then three of fifteen."""
    given = drawn(32)
    expected = ops.lightning_indexer(**given, **CPU)
    for times, each in ((2, 6), (6, 9), (15, 15)):
        many = {n: x.repeat(1, times, *[1] * (x.dim() - 2)) if n in REPEATED else x for n, x in given.items()}
        scores = ops.lightning_indexer(**many, **CPU)
        assert scores.shape == (2, 3 * times, 192)
        assert groups[-1] == (6 * times // each, each, 3 * times // each)
        there = torch.arange(192) < given["seq_lens"][..., None]
        for part in scores.split(3, dim=1):
            torch.testing.assert_close(part[there], expected[there], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("tokens", "each", "dtype"), [(48, 16, torch.float32), (48, 16, torch.bfloat16), (17, 1, torch.float32)]
)
def test_a_prompt_over_pages_reads_keys_once_for_a_group(
    tokens: int, each: int, dtype: torch.dtype, groups: list[tuple[int, int, int]]
) -> None:
    """The last tokens of two sequences, each of which sees the tokens before it."""
    given = drawn(24, tokens)
    after = torch.arange(tokens, dtype=torch.int32)
    given["seq_lens"] = torch.stack([after + 100, (after - 5).clamp(min=0)])
    out = torch.full((2, tokens, 192), -torch.inf, dtype=dtype)
    assert ops.lightning_indexer(**given, out=out, **CPU) is out
    assert groups == [(2 * tokens // each, each, tokens // each)]
    close_to(out, scores_of(given))


def test_queries_of_a_prompt_that_lie_unevenly_are_refused() -> None:
    given = drawn(8, 34)
    given["q"] = given["q"][:, 1:]
    given |= {name: given[name][:, 1:].contiguous() for name in ("q_scales", "weights")}
    given["seq_lens"] = torch.ones(2, 33, dtype=torch.int32)
    with pytest.raises(InvalidArgumentError, match=r"q.*first two axes can be viewed as one"):
        ops.lightning_indexer(**given, **CPU)


def prompt(heads: int = 64) -> dict[str, Any]:
    """Arguments of scoring of seven rows of a prompt over 200 keys."""
    generator = torch.Generator().manual_seed(6)
    q, q_scales = quantise_mxfp4(torch.randn(7, heads, 128, generator=generator) * 3)
    k, k_scales = quantise_mxfp4(torch.randn(200, 128, generator=generator))
    return {
        "q": q, "q_scales": q_scales.squeeze(-1), "k": k, "k_scales": k_scales.squeeze(-1),
        "weights": torch.randn(7, heads, generator=generator),
        "k_start": torch.tensor([0, 0, 5, 130, 190, 64, 10], dtype=torch.int32),
        "k_end": torch.tensor([1, 0, 140, 195, 200, 128, 138], dtype=torch.int32),
    }  # fmt: skip


@pytest.mark.parametrize(("kind", "dtype"), [("mxfp4", torch.float32), ("mxfp4_bf16", torch.bfloat16)])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("heads", [64, 32, 8, 16, 24, 40])
def test_scores_of_a_prompt(heads: int, compressed: bool, kind: str, dtype: torch.dtype) -> None:
    given, out = prompt(heads), torch.full((7, 200), -torch.inf, dtype=dtype)
    scores = ops.lightning_indexer_prefill(**given, compressed=compressed, out=out, **CPU)
    assert scores is out and _base.selections()[-1].variant.knobs["kind"] == kind
    q, k = (mxfp4_of(given[name], given[f"{name}_scales"]).double() for name in "qk")
    dots = torch.einsum("shd,kd->shk", q, k).clamp(min=0)
    every = (dots * given["weights"].double()[..., None]).sum(dim=1)
    expected = torch.full((7, 200), -torch.inf, dtype=torch.float64)
    for row, (start, end) in enumerate(zip(given["k_start"].tolist(), given["k_end"].tolist(), strict=True)):
        first = 0 if compressed else start
        expected[row, first : first + end - start] = every[row, start:end]
    close_to(out, expected)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"q": lambda q: q.float()}, ArgumentTypeError, "q: expected pairs of e2m1"),
        ({"k": lambda k: k.float()}, ArgumentTypeError, "k: expected pairs of e2m1"),
        (
            {"q": lambda q: q.repeat(1, 2, 1)},
            InvalidArgumentError,
            r"q: expected \[s, heads, 64\] bytes, of 1 to 64",
        ),
        ({"q": lambda q: q[:, :16]}, InvalidArgumentError, "heads|q_scales"),
        ({"q_scales": lambda x: x[:, :8]}, InvalidArgumentError, "heads|q_scales"),
        ({"q_scales": lambda x: x.float()}, ArgumentTypeError, "q_scales: .*int32"),
        ({"k_scales": lambda x: x[:8]}, InvalidArgumentError, "skv|k_scales"),
        ({"out": lambda _: torch.zeros(7, 200, dtype=torch.float16)}, ArgumentTypeError, "out: .*float32"),
    ],
)
def test_what_does_not_fit_of_a_prompt_is_refused(
    change: dict[str, Any], error: type[Exception], words: str
) -> None:
    given = prompt()
    for name, make in change.items():
        given[name] = make(given.get(name))
    with pytest.raises(error, match=f"(?s){words}"):
        ops.lightning_indexer_prefill(**given, **CPU)


def test_a_scale_that_is_no_number_spoils_its_key_alone() -> None:
    given = drawn()
    given["k_cache"].view(12, -1)[3, 4096 + 4 * 5 + 2] = 255
    scores = ops.lightning_indexer(**given, **CPU)[0, 0, :98]
    assert scores[5].isnan() and not scores[6:].isnan().any() and not scores[:5].isnan().any()


def test_a_scale_is_the_least_power_of_two_that_fits() -> None:
    values = torch.zeros(3, 128)
    values[0, 0], values[1, 32], values[2, 127] = 6.0, 6.1, -3.0
    pairs, scales = quantise_mxfp4(values)
    assert scales.dtype is torch.int32 and scales.shape == (3, 1) and pairs.shape == (3, 64)
    found = scales.view(torch.uint8).view(3, 4).int()
    assert found[0, 0] == 127 and found[1, 1] == 128 and found[2, 3] == 126
    assert mxfp4_of(pairs, scales).abs().amax(dim=1).tolist() == [6.0, 6.0, 3.0]


def test_a_token_has_68_bytes_in_its_page() -> None:
    keys = torch.zeros(2, 64, 128)
    keys[1, 5, 2], keys[1, 5, 3] = 1.0, -6.0
    cache = pack_mxfp4_index_keys(keys)
    assert cache.shape == (2, 64, 1, 68) and cache.dtype is torch.uint8
    flat = cache.view(2, -1)
    assert flat[1, 5 * 64 + 1] == 0xF2 and flat[1, 4096 + 5 * 4] == 127


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"q_scales": None}, ArgumentTypeError, "q_scales.*int32"),
        ({"scale_format": "mx"}, InvalidArgumentError, "q_scales.*None with"),
        ({"scale_format": "mxfp5"}, InvalidArgumentError, "q_scales"),
        ({"block_size": 8}, InvalidArgumentError, "block_size.*0 with"),
        ({"page_size": 128}, InvalidArgumentError, "page_size.*64 with"),
        ({"maxima": torch.zeros(2, 3, 24)}, InvalidArgumentError, "maxima.*None with"),
        ({"q": lambda q: q.float()}, ArgumentTypeError, "q.*pairs of e2m1"),
        ({"q": lambda q: q[..., :32]}, InvalidArgumentError, "q.*heads, 64"),
        ({"q": lambda q: q[:, :, :0]}, InvalidArgumentError, "q.*1 to 64 heads"),
        ({"q": lambda q: q.repeat(1, 1, 2, 1)}, InvalidArgumentError, "q.*1 to 64 heads"),
        ({"q": lambda q: q[:, :, :16]}, InvalidArgumentError, "q_scales.*the heads of q"),
        ({"q_scales": lambda x: x[:, :2]}, InvalidArgumentError, "q_scales"),
        ({"q_scales": lambda x: x.float()}, ArgumentTypeError, "q_scales"),
        ({"weights": lambda x: x.flatten(0, 1)[:5]}, InvalidArgumentError, "weights"),
        ({"k_cache": lambda x: x[..., :66]}, InvalidArgumentError, "k_cache.*68"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], error: type[Exception], words: str) -> None:
    given = drawn()
    for name, value in change.items():
        given[name] = value(given[name]) if isinstance(value, Callable) else value
    with pytest.raises(error, match=f"(?s){words}"):
        ops.lightning_indexer(**given, **CPU)


def test_hopper_has_no_kernel_for_it() -> None:
    with pytest.raises(NoVariantError, match="sm_100a"):
        ops.lightning_indexer(**drawn(), executor="interpreter", arch="sm_90a")
    with pytest.raises(NoVariantError, match="sm_100a"):
        ops.lightning_indexer_prefill(**prompt(), executor="interpreter", arch="sm_90a")


def test_the_bytes_of_a_key() -> None:
    dims = {"b": 4, "next_n": 1, "index_heads": 64, "max_len": 1000}
    less = oracles.get("lightning_indexer").bytes("decode_mxfp4", dims)
    assert less == 4 * 1000 * 68 + 4 * 1000 * 4 + 4 * 64 * 68
    assert PROBLEM.flops("decode_mxfp4", dims)["float4_e2m1x2"] == 2 * 64 * 128 * 4 * 1000
    dims = {"s": 10, "skv": 1000, "index_heads": 64}
    less = PROBLEM.bytes("prefill_mxfp4", dims)
    assert less == 1000 * 68 + 10 * 64 * 68 + 10 * (1000 - 10 / 2) * 4
    assert PROBLEM.flops("prefill_mxfp4", dims)["float4_e2m1x2"] == 2 * 64 * 128 * 10 * (1000 - 10 / 2)


def test_entries_past_a_table_are_found() -> None:
    workload = Workload(
        "four_bits", "tiny", "decode_mxfp4", {"lens": [[70], [7]], "index_heads": 64, "pages": 4}
    )
    inputs = PROBLEM.make(workload, torch.Generator().manual_seed(1))
    rules = {spec.name: spec.values for spec in PROBLEM.operands("decode_mxfp4")}
    dims = {"max_pages": inputs["block_table"].shape[1], "pages": 4, "sharing": 1, "stride": 192}
    (pages,) = rules["block_table"]
    assert not pages.wrong(inputs, dims).any()
    inputs["block_table"][0, 1] = 4
    assert pages.wrong(inputs, dims).nonzero().tolist() == [[0, 1]]
