"""Recorded walks: they cover the committed variants, agree with the clock, and never make a call fail."""

from __future__ import annotations

import json
import logging

import pytest

from codegen import walks
from dsl_kernels import clock, measured, models, registry, variants
from dsl_kernels.arch import GPUS
from dsl_kernels.clock import cached

AGAIN = "run `python -m codegen walks`"
ATTENTION = {"t": 51, "heads": 16, "topk": 2048, "n": 65536, "ckv_stride": 512, "kpe_stride": 64}
SCORING = {
    "b": 11,
    "next_n": 1,
    "heads": 64,
    "pages": 22528,
    "max_pages": 700,
    "stride": 44800,
    "skip_below": 0,
}
GQA = {"b": 3, "sq": 3000, "skv": 3000, "heads": 32, "kv_heads": 8, "dim": 128, "causal": 1}
BETWEEN = {
    "gqa_forward": ("bf16", GQA), "lightning_indexer": ("decode", SCORING), "sparse_mla": ("bf16", ATTENTION),
}  # fmt: skip


@pytest.fixture(autouse=True)
def nothing_measured(monkeypatch):
    """No table has a point, and nothing was ranked before."""
    monkeypatch.setattr(measured, "points", lambda *args, **kwargs: ([], None))
    monkeypatch.setattr(models, "_warned", set())
    registry.clear()
    cached.read.cache_clear()
    yield
    registry.clear()
    cached.read.cache_clear()


def call_of(op: str, gpu: str) -> registry.Call:
    return registry.Call.on(GPUS[gpu], op, *BETWEEN[op])


def open_to(call: registry.Call) -> list[variants.Variant]:
    return [v for v in variants.variants(call.op) if registry.refusal(call, v) is None]


@pytest.mark.parametrize("arch", cached.RANKED)
def test_every_variant_that_the_clock_ranks_was_walked_as_it_is(arch):
    of = [v for op in cached.RANKED[arch] for v in variants.variants(op, arch=arch)]
    assert of and cached.known(of), AGAIN
    record = cached.read(arch)
    assert record.keys() == {v.id for v in of}, AGAIN
    assert [name for name, rows in record.items() if not rows] == [], (
        "give a grid a point of its form and sizes"
    )
    assert json.loads(cached.path_of(arch).read_text())["clock"] == walks.digest(), (
        f"the clock changed: {AGAIN}"
    )


@pytest.mark.parametrize("gpu", ["H100", "B200"])
@pytest.mark.parametrize("op", BETWEEN)
def test_a_launch_between_walks_takes_about_as_long_as_the_clock_says(op, gpu):
    call = call_of(op, gpu)
    if op not in cached.RANKED[call.arch]:
        pytest.skip(f"the cost model ranks {op}")
    explanation = registry.explain(call)
    assert explanation.model == models.CLOCK and explanation.selection.rule.startswith(models.CLOCK)
    walked = {
        row.variant.id: clock.predict(call, row.variant).us
        for row in explanation.candidates
        if not row.refusal
    }
    for row in explanation.candidates:
        if not row.refusal:
            assert row.predicted_us == pytest.approx(walked[row.variant.id], rel=0.3), row.variant.id
    assert walked[explanation.selection.variant.id] < 1.05 * min(walked.values())


def test_what_was_walked_stands_at_its_place():
    call = call_of("lightning_indexer", "B200")
    name = open_to(call)[0].id
    record = cached.read(call.arch)[name].walks
    at = clock.sm_of(call, variants.get(name)).share
    walk = cached.Walked(cached.place(at), 12345.0, 0.5, 0.8, "memory")
    between = cached.between([*record, walk], at)
    assert between[1:4] == pytest.approx((12345, 0.5, 0.8), rel=1e-6)
    with pytest.raises(ValueError, match="no walk"):
        cached.between([], at)


def test_the_clock_ranks_all_candidates_or_none():
    """A newer variant has no walks: times of the cost model must not be compared with those of the clock."""
    call = call_of("lightning_indexer", "B200")
    of = open_to(call)
    dims = registry.assumed(call, registry.deciding(call))
    known = models.predict(call, of, dims)
    made = type(of[0])(**{**vars(of[0]), "sha256": "0" * 64})
    other = models.predict(call, [made, *of[1:]], dims)
    assert (known[0], other[0]) == (models.CLOCK, models.COST_MODEL)
    assert other[1] == [models.prediction(call, variant, dims, models.COST_MODEL) for variant in of]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"schema": 99}', '{"schema": 2, "variants": {"a": {"sha256": "", "walks": [[]]}}}'],
)
def test_a_damaged_file_leaves_the_ranking_to_the_cost_model(content, tmp_path, monkeypatch, caplog):
    (tmp_path / "walks.json").write_text(content)
    monkeypatch.setattr(cached, "path_of", lambda arch: tmp_path / "walks.json")
    with caplog.at_level(logging.WARNING):
        selections = [registry.select(call_of(op, "B200")) for op in BETWEEN]
    assert all(selection.rule.startswith(models.COST_MODEL) for selection in selections)
    assert len(caplog.records) == 1 and "python -m codegen walks" in caplog.text


@pytest.mark.parametrize(
    "broken",
    [lambda *args: 1 / 0, lambda *args: (float("nan"), "memory"), lambda *args: (float("inf"), "memory")],
    ids=["raises", "nan", "inf"],
)
def test_a_broken_clock_leaves_the_ranking_to_the_cost_model(broken, monkeypatch, caplog):
    monkeypatch.setattr(cached, "took", broken)
    with caplog.at_level(logging.WARNING):
        selection = registry.select(call_of("lightning_indexer", "B200"))
        registry.select(call_of("lightning_indexer", "H200"))
    assert selection.rule.startswith(models.COST_MODEL)
    assert len(caplog.records) == 1 and "the cost model ranks" in caplog.text
