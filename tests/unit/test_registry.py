"""Selection: its order, its refusals, its errors, and one answer to every call of a wide grid."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product

import kernel_folders
import pytest
from sizes_lightning_indexer import decode, prefill
from sizes_sparse_mla import mla
from sizes_topk_selector import topk

from dsl_kernels import measured, models, policies, problems, programs, registry, variants
from dsl_kernels.errors import ArtifactError, NoVariantError, UnknownNameError

ARCHS = ("sm_90a", "sm_100a")


@pytest.fixture(autouse=True)
def fresh():
    registry.clear()
    yield
    registry.clear()


GRID = [call for module in kernel_folders.of_each("sizes").values() for call in getattr(module, "GRID", ())]


def test_every_call_of_the_grid_has_exactly_one_answer() -> None:
    for call in GRID:
        selection = registry.select(call)
        assert selection.variant.arch == call.arch, call
        assert registry.refusal(call, selection.variant) is None


def test_explain_lists_every_variant_once_with_a_reason_or_a_prediction() -> None:
    explanation = registry.explain(mla())
    assert {c.variant.id for c in explanation.candidates} == {v.id for v in variants.variants("sparse_mla")}
    for candidate in explanation.candidates:
        assert (candidate.refusal is None) != (candidate.predicted_us is None)
    assert sum(c.chosen for c in explanation.candidates) == 1
    reasons = " ".join(c.refusal or "" for c in explanation.candidates)
    assert "built for sm_100a" in reasons and "heads = 16, built for 128" in reasons


@pytest.mark.parametrize("form", problems.get("topk_selector").forms)
@pytest.mark.parametrize("arch", ARCHS)
def test_only_a_call_with_options_gets_variants_of_them(form: str, arch: str) -> None:
    for rows, stride in product((1, 16, 500), (128, 4096, 131072, 1 << 20)):
        call = topk(rows, stride, k=2048, form=form, arch=arch)
        served = [c for c in registry.explain(call).candidates if c.refusal is None]
        assert served and {c.variant.knobs["options"] for c in served} == {int("options" in form)}
        plain = {spec.name for spec in problems.get(call.op).operands("default")}
        for candidate in served:
            own = programs.get(call.op).declared_operands(candidate.variant.knobs)
            assert ({spec.name for spec in own} == plain) == ("options" not in form)


def test_no_match_groups_the_refusals_nearest_first() -> None:
    with pytest.raises(NoVariantError) as caught:
        registry.select(replace(mla(heads=24), dims={**mla(heads=24).dims, "splits": 999}))
    first, *lines = str(caught.value).splitlines()
    assert (
        first.endswith(f"got {len(variants.variants('sparse_mla'))} refusals:")
        and len(lines) == 3
        and len(str(caught.value)) < 1000
    )
    assert "splits = 999 exceeds 32, one a tile and slice or is no multiple" in lines[0]
    assert "these and further conditions" in lines[1] and "built for sm_100a" in lines[2]
    total = sum(int(line.split(":")[0]) for line in lines)
    assert total == len(variants.variants("sparse_mla"))


@pytest.mark.parametrize(
    "call, nearest",
    [
        (mla(backend="nothing"), "backend cutedsl or tilelang, asked for nothing"),
        (topk(k=5000), "k = 5000 exceeds "),
        (prefill(heads=48), "heads = 48, built for 8, 16, 24, 32 or 64"),
        (decode(next_n=17), "next_n = 17, built for at most "),
    ],
)
def test_the_nearest_refusal_is_one_condition_alone(call, nearest) -> None:
    groups = registry.refusals(call, variants.variants(call.op))
    assert groups[0].reason.startswith(nearest) and ";" not in groups[0].reason
    assert all("sm100a" in id_ for id_ in groups[-1].variants)
    with pytest.raises(NoVariantError) as caught:
        registry.select(call)
    lines = str(caught.value).splitlines()
    assert len(lines) <= 12 and lines[1].split(": ", 1)[1].startswith(nearest)


def test_many_reasons_are_cut_short(monkeypatch) -> None:
    """Refusals of 125 variants, all for different reasons, still make a short message."""
    one = next(v for v in variants.variants("sparse_mla") if v.arch == "sm_90a")
    many = tuple(
        replace(one, id=f"{one.id}_{i}", backend=f"dsl{i}",
                knobs={**one.knobs, "heads": 200 + i, "kv": "fp8" if i % 3 else "bf16"})
        for i in range(125)
    )  # fmt: skip
    monkeypatch.setattr(variants, "variants", lambda op: many)
    with pytest.raises(NoVariantError) as caught:
        registry.select(mla())
    assert len(str(caught.value).splitlines()) <= 12 and len(str(caught.value)) < 1500
    assert "125 refusals" in str(caught.value) and " others" in str(caught.value)


def test_nothing_generated_says_so(monkeypatch) -> None:
    monkeypatch.setattr(variants, "variants", lambda op: ())
    with pytest.raises(NoVariantError, match="no generated variant"):
        registry.select(mla())


def test_more_queries_than_any_variant_takes() -> None:
    with pytest.raises(NoVariantError, match="next_n = 17, built for at most 1, 8 or 16 queries a sequence"):
        registry.select(decode(next_n=17))


def test_equal_predictions_go_to_the_first_name_and_say_so(monkeypatch) -> None:
    monkeypatch.setattr(models, "_by_cost", lambda *args: (5.0, "hbm"))
    monkeypatch.setattr(registry, "_selected", {})
    selection = registry.select(topk())
    assert selection.rule == "cost model, first by name of equal predictions"
    assert selection.variant.id == min(v.id for v in variants.variants("topk_selector", arch="sm_90a"))


def test_lowerings_of_one_declaration_share_a_prediction(monkeypatch) -> None:
    """Variants of two DSLs with equal knobs predict alike: the first by name wins, as the rule says."""
    one = registry.select(topk()).variant
    twin = replace(one, id=one.id.replace(f"__{one.backend}_", "__another_"), backend="another")
    monkeypatch.setattr(variants, "variants", lambda op: (one, twin))
    monkeypatch.setattr(registry, "_selected", {})
    selection = registry.select(topk())
    assert selection.variant == twin and "first by name" in selection.rule
    assert registry.select(topk(), one.id).variant == one


def test_argument_beats_environment_beats_cost(monkeypatch) -> None:
    ranked = sorted(
        (c for c in registry.explain(topk()).candidates if c.refusal is None), key=lambda c: c.predicted_us
    )
    best, second, third = (c.variant.id for c in ranked[:3])
    assert registry.select(topk()).variant.id == best
    assert registry.select(topk()).rule.startswith("cost model")
    monkeypatch.setenv("DSL_KERNELS_FORCE", f"topk_selector={second}")
    assert registry.select(topk()).variant.id == second
    assert registry.select(topk()).rule == "DSL_KERNELS_FORCE"
    assert registry.select(topk(), third).variant.id == third
    assert registry.select(mla()).rule != "DSL_KERNELS_FORCE"


def test_an_override_that_refuses_is_an_error_not_a_fallback(monkeypatch) -> None:
    other = next(v.id for v in variants.variants("sparse_mla", arch="sm_100a"))
    with pytest.raises(NoVariantError, match="built for sm_100a"):
        registry.select(mla(), other)
    monkeypatch.setenv("DSL_KERNELS_FORCE", "sparse_mla=missing")
    with pytest.raises(UnknownNameError, match="DSL_KERNELS_FORCE: expected a known variant of sparse_mla"):
        registry.select(mla())


def write_table(monkeypatch, tmp_path, entries, schema=measured.TUNED_SCHEMA) -> None:
    monkeypatch.setattr(measured, "TUNED", tmp_path)
    content = {"schema": schema, "gpu": "Test GPU", "metadata": {}, "entries": entries}
    (tmp_path / "test_gpu.json").write_text(json.dumps(content))


def tuned_entry(call: registry.Call, us: dict[str, float], **extra) -> dict:
    winner = min(us, key=us.__getitem__)
    bucket = registry.deciding(call)
    return {
        "op": call.op,
        "form": call.form,
        "bucket": bucket,
        "variant": winner,
        "launch": {},
        "us": us,
        **extra,
    }


def test_the_tuned_entry_of_the_sizes_decides_and_sets_launch_dims(monkeypatch, tmp_path) -> None:
    call = mla(t=5, gpu="Test GPU")
    chosen = registry.select(mla(t=5)).variant.id
    other_id = next(
        c.variant.id for c in registry.explain(mla(t=5)).candidates if c.refusal is None and not c.chosen
    )
    us = {chosen: 7.5, other_id: 8.5}
    write_table(monkeypatch, tmp_path, [tuned_entry(call, us, launch={"splits": 4})])
    selection = registry.select(call)
    assert selection.rule == "tuned table" and selection.launch["splits"] == 4
    explanation = registry.explain(call)
    assert [c.tuned_us for c in explanation.candidates if c.chosen] == [7.5]
    other = registry.select(mla(t=6, gpu="Test GPU"))
    assert other.rule == "between tuned points"
    assert other.launch == registry.select(mla(t=6), other.variant.id).launch


def test_a_winner_that_cannot_serve_leaves_the_fastest_that_can(monkeypatch, tmp_path) -> None:
    """A call for one DSL takes that DSL's fastest, without launch dims of another variant."""
    known = variants.variants("topk_selector", arch="sm_90a")
    names = [v.id for v in known if programs.get(v.op).form(v.knobs) == "default"]
    other, slow, fast = (
        *(n for n in names if "cutedsl" in n and n.endswith("g1_t512_r8_c1")),
        *[n for n in names if "tilelang" in n][:2],
    )
    call = topk(gpu="Test GPU")
    write_table(
        monkeypatch, tmp_path, [tuned_entry(call, {other: 1.0, slow: 9.0, fast: 2.0}, launch={"x": 1})]
    )
    assert registry.select(call).variant.id == other
    selection = registry.select(replace(call, backend="tilelang"))
    assert (selection.variant.id, selection.rule, selection.launch) == (fast, "tuned table", {})


def test_a_broken_tuned_table_is_reported(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(measured, "TUNED", tmp_path)
    (tmp_path / "test_gpu.json").write_text("{")
    with pytest.raises(ArtifactError, match="tuned table"):
        registry.select(mla(gpu="Test GPU"))


def test_a_missing_manifest_says_how_to_make_one(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("DSL_KERNELS_GENERATED_DIR", str(tmp_path))
    with pytest.raises(ArtifactError, match="make generate"):
        variants.variants()


def test_splits_follow_the_number_of_queries() -> None:
    few, many = registry.select(mla(t=1)).launch["splits"], registry.select(mla(t=500)).launch["splits"]
    assert few > many == 1


def test_every_program_has_a_policy_and_a_stranger_one_that_knows_nothing() -> None:
    assert policies.names() == programs.names()
    stranger = policies.get("no_such_op")
    assert stranger.counts is None and stranger.launch(None, {}, None).dims == {}
