"""Layouts and comparison rules of the problems, on their own."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from dsl_kernels import problems
from dsl_kernels.errors import ArgumentTypeError, DeclarationError, InvalidArgumentError, UnknownNameError
from dsl_kernels.kernels.sparse_mla import forms
from dsl_kernels.ops import _operands
from dsl_kernels.problems.base import OperandSpec
from dsl_kernels.problems.binding import bind
from dsl_kernels.problems.layouts import pack_fp8_tokens
from dsl_kernels_lab import oracles
from dsl_kernels_lab.layouts import unpack_fp8_tokens
from dsl_kernels_lab.oracles import sparse_mla as mla
from dsl_kernels_lab.profile import regions
from dsl_kernels_lab.verification import trial

# Half a unit in the last place of bf16, which has eight significant bits, relative to the value.
BF16_ROUNDING = 2.0**-9


def test_every_problem_has_an_oracle_that_says_the_same_of_it() -> None:
    assert oracles.names() == problems.names()
    for op in problems.names():
        problem, oracle = problems.get(op), oracles.get(op)
        assert {name: getattr(oracle, name) for name in vars(problem)} == vars(problem)


def drawn(name: str) -> dict:
    problem = oracles.get("sparse_mla")
    return trial.draw("sparse_mla", problem.workload(name), seed=5)


@pytest.mark.parametrize("raw", [False, True])
def test_fp8_tokens_keep_their_values_to_the_precision_of_fp8(raw: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    latent = torch.randn(50, 512, generator=generator) * torch.logspace(-6, 6, 50)[:, None]
    latent[7] = 0
    rope = torch.randn(50, 64, generator=generator).bfloat16()
    values, kept = unpack_fp8_tokens(pack_fp8_tokens(latent, rope, raw_scales=raw))
    assert torch.equal(kept, rope)
    # e4m3 has four significant bits; below its normal range, steps are 2^-9 of the scale.
    peak = latent.abs().view(-1, 4, 128).amax(dim=2).clamp(min=1e-4).repeat_interleave(128, dim=1)
    assert bool(((values - latent).abs() <= latent.abs() * 2**-4 + peak * 2**-16).all())
    assert torch.equal(values.bfloat16().float(), values) is not raw


def test_tokens_with_scales_of_powers_of_two_get_no_allowance() -> None:
    inputs = drawn("fp8_holes")
    expected = mla.reference("fp8", inputs)
    comparison = mla.compare("fp8", inputs, expected, expected)
    assert comparison.limits["out relative error"] == mla.OUT_LIMIT == 3e-3
    assert comparison.limits["lse absolute error"] == mla.LSE_LIMIT == 1e-4
    assert not any("in bf16" in name for name in comparison.limits)


def test_the_allowance_for_other_scales_is_what_rounding_the_tokens_to_bf16_can_do() -> None:
    """A key component moves by at most 2^-9 of itself, so a logit by at most D = sm_scale * 2^-9 * sum |q|
    |k|.

    The lse moves no further than the largest logit. A weight changes by a factor between exp(-2 D) and exp(2
    D), so out moves by at most (exp(2 D) - 1 + 2^-9 * exp(2 D)) * sum p |v|.
    """
    inputs = drawn("fp8_raw_scales")
    exact = mla.reference("fp8", inputs)
    comparison = mla.compare("fp8", inputs, exact, exact)
    moved_out = comparison.limits["out relative error"] - mla.OUT_LIMIT
    moved_lse = comparison.limits["lse absolute error"] - mla.LSE_LIMIT
    latent, rope = unpack_fp8_tokens(inputs["kv_cache"])
    bound_out, bound_lse = 0.0, 0.0
    for row, ids in enumerate(inputs["indices"]):
        keys, pe = latent[ids[ids >= 0].long()].double(), rope[ids[ids >= 0].long()].double()
        q, q_pe = inputs["q_nope"][row].double(), inputs["q_pe"][row].double()
        reach = inputs["sm_scale"] * BF16_ROUNDING * (q.abs() @ keys.abs().T).amax(dim=1)
        weights = torch.softmax(inputs["sm_scale"] * (q @ keys.T + q_pe @ pe.T), dim=1)
        factor = torch.exp(2 * reach) - 1 + BF16_ROUNDING * torch.exp(2 * reach)
        bound_out += float((factor[:, None] * (weights @ keys.abs())).square().sum())
        bound_lse = max(bound_lse, float(reach.max()) / math.log(2))
    assert 0 < moved_out <= math.sqrt(bound_out) / float(exact["out"].norm())
    assert 0 < moved_lse <= bound_lse


def test_the_rule_for_other_scales_still_refuses_what_is_wrong() -> None:
    inputs = drawn("fp8_raw_scales")
    exact = mla.reference("fp8", inputs)
    rounded = mla._over_rounded_tokens("fp8", inputs)
    assert rounded is not None and mla.compare("fp8", inputs, rounded, exact).ok
    # An error of 4e-3 is below the sum of both limits, but exceeds the one relative to rounded tokens.
    noise = torch.randn(rounded["out"].shape, generator=torch.Generator().manual_seed(2)).double()
    off = rounded["out"] + noise * (4e-3 * rounded["out"].norm() / noise.norm())
    failures = mla.compare("fp8", inputs, {"out": off, "lse": rounded["lse"]}, exact).failures
    assert len(failures) == 1 and "over tokens in bf16" in failures[0]
    shifted = mla.compare(
        "fp8", inputs, {"out": rounded["out"], "lse": rounded["lse"] + 2e-4}, exact
    ).failures
    assert any("lse absolute error over tokens in bf16" in failure for failure in shifted)


SCALARS = (
    OperandSpec("x", (4,), "float32", "out"),
    OperandSpec("dropout", (), "float32", "scalar", argument="p", limits=(0.0, 1.0)),
    OperandSpec("steps", (), "int32", "scalar", limits=(1, 8)),
    OperandSpec("scale", (), "float32", "scalar", limits=(-math.inf, math.inf)),
)
RIGHT = {"dropout": 0.25, "steps": 3, "scale": -2.0}


def _by_the_op(monkeypatch: pytest.MonkeyPatch, values: dict) -> None:
    """Bind these operands as an op's call does."""
    problem = SimpleNamespace(operands=lambda form: SCALARS)
    monkeypatch.setattr(_operands.problems, "get", lambda op: problem)
    _operands.identity.__wrapped__("toy", "default")({"x": torch.ones(4), **values})


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("dropout", -1.0, r"p: expected 0.0 to 1.0; got -1.0"),
        ("dropout", 1.5, r"p: expected 0.0 to 1.0"),
        ("dropout", 2, r"p: expected 0.0 to 1.0; got 2.0"),
        ("dropout", math.nan, r"p: expected a finite number; got nan"),
        ("dropout", math.inf, r"p: expected a finite number; got inf"),
        ("dropout", "0.5", r"p: expected a number; got str"),
        ("steps", 0, r"steps: expected 1 to 8; got 0"),
        ("steps", 2.0, r"steps: expected an integer"),
        ("scale", math.nan, r"scale: expected a finite number"),
        ("scale", -math.inf, r"scale: expected a finite number"),
    ],
)
def test_a_scalar_is_held_to_its_limits(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object, error: str
) -> None:
    """At the call of an op, and wherever operands are bound to a declaration without an op."""
    for values in (RIGHT, RIGHT | {"dropout": 1.0, "steps": 8}, RIGHT | {"dropout": 0, "scale": 1e300}):
        _by_the_op(monkeypatch, dict(values))
        assert bind(SCALARS, {"x": torch.ones(4), **values}).dims == {}
    for check in (
        lambda values: _by_the_op(monkeypatch, values),
        lambda values: bind(SCALARS, {"x": torch.ones(4), **values}),
    ):
        with pytest.raises((ArgumentTypeError, InvalidArgumentError), match=error):
            check({**RIGHT, name: value})


@pytest.mark.parametrize(
    "spec",
    [
        {"limits": (1.0, 0.0)},
        {"limits": (0.0, math.nan)},
        {"dtype": "int32", "limits": (0, math.inf)},
        {"kind": "in", "shape": (4,), "limits": (0.0, 1.0)},
    ],
)
def test_limits_that_no_scalar_can_be_held_to_are_refused(spec: dict) -> None:
    with pytest.raises(DeclarationError, match="limits of operand p"):
        OperandSpec(**{"name": "p", "shape": (), "dtype": "float32", "kind": "scalar"} | spec)


BOTH_NAMES = [
    ("topk_selector", "default", {"rows": 200, "len": 8192, "k": 2048},
     {"rows": 200, "stride": 8192, "k": 2048}),
    ("lightning_indexer", "decode", {"b": 4, "len": 4000}, {"b": 4, "stride": 4000, "max_pages": 63}),
    ("sparse_mla", "bf16", {"t": 4, "pages": 3}, {"t": 4, "n": 192}),
    ("resample_trajectories", "default", {"b": 4, "n": 8}, {"b": 4, "n": 8}),
]  # fmt: skip


@pytest.mark.parametrize(("op", "form", "point", "dims"), BOTH_NAMES)
def test_sizes_go_by_the_names_of_operands_and_of_points(op, form, point, dims):
    problem = oracles.get(op)
    for given in (point, dims, {**point, **dims}):
        assert problem.point_of(form, given) == point
        assert problem.dims_of(form, given) == dims
        assert problem.form_of(given) == form


def test_every_name_of_a_point_is_one_of_the_vocabulary():
    for op in oracles.names():
        problem = oracles.get(op)
        for form in problem.forms:
            dims = set(problem.dims(form))
            assert all(alias.dim in dims for alias in problem.names.get(form, ()))
            for name, value in problem.point_sizes(form).items():
                known = problem.dims_of(form, {name: value})
                assert known or isinstance(value, str), f"{op} {form}: {name} gives no dim"


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"lens": 4}, UnknownNameError, "did you mean.*len"),
        ({"rows": "many"}, InvalidArgumentError, "name=integer"),
        ({"scores": 3}, InvalidArgumentError, "name=word"),
        ({"len": 64, "stride": 65}, InvalidArgumentError, "stride=64, as len=64"),
    ],
)
def test_sizes_that_a_form_does_not_have_are_refused(given, error, message):
    problem = oracles.get("topk_selector")
    for taken in (problem.dims_of, problem.point_of):
        with pytest.raises(error, match=message):
            taken("default", given)


@pytest.mark.parametrize(
    ("op", "form", "given", "wanted"),
    [
        ("topk_selector", "default", {"rows": 2, "len": 100}, {"rows": 2, "k": 64}),
        ("topk_selector", "default", {"rows": 2, "stride": 100}, {"rows": 2, "k": 64}),
        (
            "lightning_indexer",
            "decode",
            {"b": 2, "next_n": 3, "len": 1000},
            {"b": 2, "next_n": 3, "pages": 16},
        ),
        ("sparse_mla", "bf16", {"pages": 3}, {"n": 192}),
        ("sparse_mla", "bf16", {"n": 100}, {"n": 100}),
    ],
)
def test_a_workload_is_drawn_at_sizes_by_either_name(op, form, given, wanted):
    workload = regions.workload_of(op, given, form=form)
    dims = trial.dims_of(op, workload, trial.draw(op, workload, 0))
    assert {name: dims[name] for name in wanted} == wanted
    with pytest.raises(UnknownNameError, match="nothing"):
        regions.workload_of(op, {"nothing": 1}, form=form)


def test_a_point_takes_no_dim_that_its_inputs_do_not_follow():
    with pytest.raises(UnknownNameError, match="next_n"):
        oracles.get("topk_selector").point_of("default", {"next_n": 2})


@pytest.mark.parametrize("size", [1, 2, 3, 7, 53, 61, 64, 69, 255, 256, 257, 576, 99_999, (1 << 29) + 1])
def test_kernels_divide_ids_by_the_size_of_a_page(size) -> None:
    most = forms.MOST_PAGED
    pages = torch.cat([torch.arange(200), torch.randint(0, most // size + 1, (2000,))])
    ids = torch.cat([pages * size, pages * size + size - 1, torch.tensor([most - 1])])
    ids = ids[ids < most]
    scalars = forms.pages_of(most, size, 3)
    assert all(0 <= value < 2**31 for value in scalars.values())
    assert torch.equal(forms.page_of(ids, scalars), ids // size)
