"""Measured points: the user's table and its faults, and what points imply for the calls between them."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import shutil
from dataclasses import replace
from typing import Any

import pytest

import dsl_kernels
from dsl_kernels import env, measured, models, prepare, programs, registry, variants
from dsl_kernels.arch import GPUS, gpu_row
from dsl_kernels.cli import _output
from dsl_kernels.cli.catalog import complete_dims
from dsl_kernels.kernels.sparse_mla.forms import PAGED
from dsl_kernels.runtime import store

GPU = "NVIDIA H200"


@pytest.fixture(autouse=True)
def own(tmp_path, monkeypatch):
    """The user's folder, empty. Only the H200's table is shipped, so an H100 is a card without one."""
    folder, shipped = tmp_path / "own", tmp_path / "shipped"
    folder.mkdir()
    shipped.mkdir()
    shutil.copy(measured.TUNED / "nvidia_h200.json", shipped)
    monkeypatch.setattr(measured, "TUNED", shipped)
    monkeypatch.setenv("DSL_KERNELS_TUNED_DIR", str(folder))
    clear()
    yield folder
    clear()


def clear() -> None:
    registry.clear()
    measured._read.cache_clear()
    measured.warn_once.cache_clear()


def topk(rows: int = 4, length: int = 32768, **kwargs: Any) -> registry.Call:
    dims = {
        "rows": rows, "stride": length, "b": rows, "max_pages": length // 64, "k": 2048, "next_n": 1,
        "page_size": 64,
    }  # fmt: skip
    return registry.Call("topk_selector", "default", "sm_90a", dims, **{"gpu": GPU, **kwargs})


def of_arch() -> list[variants.Variant]:
    return [
        v for v in variants.variants("topk_selector", arch="sm_90a") if registry.refusal(topk(), v) is None
    ]


def entry(call: registry.Call, us: dict[str, float], **extra: Any) -> dict[str, Any]:
    return {
        "op": call.op, "form": call.form, "bucket": registry.deciding(call),
        "variant": min(us, key=us.__getitem__),
        "launch": {}, "us": us, "declaration": measured.declaration(call.op), **extra,
    }  # fmt: skip


def write(folder, entries, gpu: str = GPU, file: str = GPU, **metadata: Any) -> None:
    made = {"dsl_kernels": dsl_kernels.__version__, "gpu": gpu, **metadata}
    content = {"schema": measured.SCHEMA, "metadata": made, "entries": entries}
    (folder / f"{measured.slug(file)}.json").write_text(json.dumps(content))
    clear()


def test_the_users_table_is_read_before_the_shipped_one(own) -> None:
    shipped = registry.select(topk())
    assert shipped.rule == "tuned table"
    other = next(v.id for v in of_arch() if v.id != shipped.variant.id)
    write(own, [entry(topk(), {other: 1.0, shipped.variant.id: 2.0})])
    assert registry.select(topk()).variant.id == other
    assert registry.select(topk()).rule == "user's tuned table"
    # Points that the user did not tune come from the shipped table.
    assert registry.explain(topk(16)).tuned["us"] != registry.explain(topk()).tuned["us"]
    assert registry.select(replace(topk(), gpu="")).rule.startswith("cost model")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path, whole: path.write_text("{"), "JSONDecodeError"),
        (lambda path, whole: path.write_text("[]"), "TypeError"),
        (lambda path, whole: path.write_bytes(b"\xff\xfe"), "UnicodeDecodeError"),
        (lambda path, whole: write(path.parent, whole, dsl_kernels="0.0.1"), "written by version 0.0.1"),
        (lambda path, whole: write(path.parent, whole, gpu="NVIDIA B200"), "measured on 'NVIDIA B200'"),
        (lambda path, whole: write(path.parent, [{**whole[0], "us": {"x": -1}}]),
         "an entry without its fields"),
        (lambda path, whole: write(path.parent, [{**whole[0], "bucket": [1]}]),
         "an entry without its fields"),
        (lambda path, whole: write(path.parent, [{**whole[0], "variant": "gone", "us": {"gone": 1.0}}]),
         "1 of 1 entries"),
        (lambda path, whole: write(path.parent, [{**whole[0], "declaration": "older"}]), "1 of 1 entries"),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_used_costs_one_warning_and_no_call(own, caplog, damage, message) -> None:
    shipped = registry.select(topk())
    other = next(v.id for v in of_arch() if v.id != shipped.variant.id)
    path = own / "nvidia_h200.json"
    whole = [entry(topk(), {other: 1.0})]
    damage(path, whole)
    clear()
    with caplog.at_level(logging.WARNING, "dsl_kernels"):
        assert registry.select(topk()) == shipped
        registry.clear()
        assert registry.select(topk()) == shipped
    assert len(caplog.records) == 1
    text = caplog.text
    assert message in text and str(path) in text and "python -m dsl_kernels tune" in text


def attention(t: int = 8, **dims: int) -> registry.Call:
    """A call whose point of the shipped table names launch dims: 16 splits."""
    sizes, _ = complete_dims(programs.get("sparse_mla"), "bf16", {"t": t, "heads": 64, "topk": 2048})
    return registry.Call.on(GPUS["H200"], "sparse_mla", "bf16", {**sizes, **dims})


@pytest.mark.parametrize(
    "change",
    [
        {"us": 10**400}, {"us": float("nan")}, {"us": 5e-324}, {"bucket": -8}, {"bucket": 10**400},
        {"launch": {"splits": 0}}, {"launch": {"splits": -3}}, {"launch": {"splits": 2**31}},
        {"launch": {"t": 1}}, {"launch": {"ctas": 4}}, {"launch": {"nonsense": 7}}, {"launch": None},
        {"op": "nope", "launch": {"splits": 4}},
    ],
)  # fmt: skip
def test_a_value_that_no_call_may_take_costs_one_warning_and_no_call(own, caplog, change) -> None:
    shipped = registry.select(attention())
    made = entry(attention(), {shipped.variant.id: 1.0}, launch={"splits": 16})
    if "us" in change:
        change = {"us": {shipped.variant.id: change["us"]}}
    if "bucket" in change:
        change = {"bucket": {**made["bucket"], "t": change["bucket"]}}
    write(own, [{**made, **change}])
    with caplog.at_level(logging.WARNING, "dsl_kernels"):
        assert registry.select(attention()) == shipped
    assert len(caplog.records) == 1 and "ignoring the tuned table" in caplog.text


def test_no_launch_dim_of_a_table_is_the_size_of_an_operand(own) -> None:
    """One row of four would be computed, and nothing would say so."""
    shipped = registry.select(topk())
    write(own, [entry(topk(), {shipped.variant.id: 1.0}, launch={"rows": 1})])
    assert registry.select(topk()) == shipped


def test_tuned_splits_hold_only_where_they_fit(own, caplog) -> None:
    """They are of one launch with all that follows from them; those of the caller win."""
    plain = replace(attention(), gpu="")
    chosen = registry.select(attention())
    assert chosen.launch["splits"] == 16
    alone = registry.select(replace(plain, dims=attention(splits=4).dims), chosen.variant.id).launch
    assert registry.select(attention(splits=4)).launch == alone and alone["splits"] == 4
    write(own, [entry(attention(), {chosen.variant.id: 1.0}, launch={"splits": 10**6})])
    with caplog.at_level(logging.WARNING, "dsl_kernels"):
        selection = registry.select(attention())
    assert selection.rule == "user's tuned table"
    assert selection.launch == registry.select(plain, chosen.variant.id).launch
    assert "splits = 1000000 exceeds 32" in caplog.text


def added(folder, monkeypatch) -> variants.Variant:
    """A variant in the user's folder that the generated set lacks."""
    model = of_arch()[0]
    text = "# stands for a generated module\n"
    record = {
        "id": f"{model.id}_mine", "op": model.op, "backend": model.backend, "arch": model.arch,
        "knobs": dict(model.knobs),
        "declared": {}, "sha256": hashlib.sha256(text.encode()).hexdigest(),
        "file": f"{model.arch}/{model.op}/mine.py",
    }  # fmt: skip
    root = folder / measured.MODULES
    (root / model.arch / model.op).mkdir(parents=True)
    (root / record["file"]).write_text(text)
    (root / variants.MANIFEST).write_text(json.dumps({"schema": variants.SCHEMA, "variants": [record]}))
    write(folder, [entry(topk(), {record["id"]: 1.0, model.id: 2.0})])
    return variants.in_folder(root)[0]


def test_a_winner_outside_the_generated_set_is_selected(own, monkeypatch) -> None:
    mine = added(own, monkeypatch)
    monkeypatch.setattr(store, "lookup", lambda variant: own)
    assert registry.select(topk()).variant == mine
    assert registry.select(topk(), mine.id).rule == "argument"
    assert registry.explain(topk()).notes == []
    assert _output.variant(mine.id) == mine
    # It is no candidate for a call on a GPU that it was not tuned on.
    assert mine.id not in {c.variant.id for c in registry.explain(replace(topk(), gpu="")).candidates}


def test_a_server_warms_the_users_variants_too(own, monkeypatch) -> None:
    mine = added(own, monkeypatch)
    asked: list[str] = []

    def compile_all(modules: Any, jobs: Any = None) -> Any:
        asked.extend(module.id for module in modules)
        return iter(())

    monkeypatch.setattr("dsl_kernels.runtime.pool.compile_all", compile_all)
    prepare.warmup("topk_selector", arch="sm_90a", strict=False)
    assert mine.id in asked and len(asked) == len(set(asked)) > 1


def test_without_compiling_it_is_skipped_with_a_note(own, monkeypatch) -> None:
    mine = added(own, monkeypatch)
    monkeypatch.setenv("DSL_KERNELS_DISABLE_JIT", "1")
    explanation = registry.explain(topk())
    assert explanation.selection.variant.id == of_arch()[0].id
    assert (
        mine.id in explanation.notes[0] and f"python -m dsl_kernels compile {mine.id}" in explanation.notes[0]
    )


def test_an_altered_module_of_the_user_is_not_run(own, monkeypatch, caplog) -> None:
    mine = added(own, monkeypatch)
    mine.path.write_text("raise SystemExit\n")
    clear()
    with caplog.at_level(logging.WARNING, "dsl_kernels"):
        assert registry.select(topk()).variant.id != mine.id
    assert "is not what its manifest lists" in caplog.text


def test_modules_that_others_may_write_are_not_run(own, monkeypatch, caplog) -> None:
    mine = added(own, monkeypatch)
    mine.path.chmod(0o666)
    clear()
    with caplog.at_level(logging.WARNING, "dsl_kernels"):
        assert registry.select(topk()).variant.id != mine.id
    assert "others may write to it" in caplog.text


def test_a_lent_variant_serves_the_call_that_names_it_alone(monkeypatch) -> None:
    guest = replace(of_arch()[0], id="topk_selector__lent")
    monkeypatch.setattr(variants, "_lent", {})
    variants.lend(guest)
    assert registry.select(topk(), guest.id).variant == guest
    assert guest.id not in {c.variant.id for c in registry.explain(topk()).candidates}


def test_points_apart_in_a_size_that_is_absent_say_nothing_of_each_other() -> None:
    assert measured.octaves({"a": 8, "b": 2}, {"a": 1, "b": 32}) == {"a": 3.0, "b": -4.0}
    assert measured.octaves({"a": 0}, {"a": 1}) is None and measured.octaves({"a": 0}, {"a": 0}) == {"a": 0.0}
    assert measured.octaves({"a": 1}, {"b": 1}) is None


def near(distance: float, **us: float) -> measured.Near:
    return measured.Near({"size": distance}, {"us": us})


def test_neighbours_are_the_points_with_none_between_them_and_the_call() -> None:
    grid = [
        {"op": "x", "form": "f", "bucket": {"b": b, "len": n}, "us": {"v": 1.0, "w": 2.0}}
        for b in (1, 4, 16, 64)
        for n in (4096, 32768, 131072)
    ]

    def around(b: int, n: int) -> list[tuple[int, int]]:
        points = measured.near(grid, "x", "f", {"b": b, "len": n}, {"v", "w"})
        return sorted((p.entry["bucket"]["b"], p.entry["bucket"]["len"]) for p in points)

    assert around(5, 40000) == [(4, 32768), (4, 131072), (16, 32768), (16, 131072)]
    assert around(16, 32768) == [(16, 32768)]
    assert around(8, 4096) == [(4, 4096), (16, 4096)]
    assert around(512, 1 << 20) == [(64, 131072)]
    assert measured.near(grid, "x", "f", {"b": 1, "len": 4096}, {"other"}) == []
    assert measured.near(grid, "x", "f", {"b": 2, "len": 4096}, {"v"}) == []


def test_enclosed_by_points_a_variant_keeps_its_place_whatever_the_model_says() -> None:
    """a is slower on both sides: a model that prefers it in the middle must not reverse that."""
    at = {-1.0: {"a": 40.0, "b": 10.0}, 1.0: {"a": 40.0, "b": 10.0}}
    points = [near(-1.0, a=12.0, b=10.0), near(1.0, a=13.0, b=10.0)]
    for place, point in enumerate(points):
        point.entry["place"] = [-1.0, 1.0][place]
    middle = {"a": 10.0, "b": 10.0}
    estimates = measured.between(points, middle, lambda name, entry: at[entry["place"]][name])
    assert 1.19 < estimates["a"] / estimates["b"] < 1.31
    # With points on one side only, the model extrapolates.
    estimates = measured.between(points[:1], middle, lambda name, entry: at[entry["place"]][name])
    assert estimates["a"] < estimates["b"]


def test_enclosed_by_points_a_variant_that_one_of_them_lacks_may_fall_behind_but_not_pull_ahead() -> None:
    points = [near(-1.0, a=10.0, b=10.0, mine=9.8), near(1.0, a=10.0, b=10.0)]
    for mine, least, most in ((30.0, 20.0, math.inf), (3.0, 9.0, 10.5)):
        model = {"a": 10.0, "b": 10.0, "mine": mine}
        estimates = measured.between(points, model, lambda name, entry: 10.0)
        assert least < estimates["mine"] < most


def test_a_misjudged_variant_is_corrected_near_a_point_and_less_far_from_it() -> None:
    model = {"a": 10.0, "b": 11.0}

    def ratio(distance: float) -> float:
        estimates = measured.between([near(distance, a=20.0, b=10.0)], model, lambda name, entry: model[name])
        return estimates["a"] / estimates["b"]

    assert ratio(1e-3) == pytest.approx(2.0, rel=1e-3)
    assert 10 / 11 < ratio(20.0) < ratio(4.0) < ratio(1.0) < 2.0
    assert ratio(100.0) == pytest.approx(10 / 11, rel=1e-2)


def test_between_two_points_the_nearer_one_counts_more_and_sessions_do_not_mix() -> None:
    flat = {"a": 1.0, "b": 1.0}
    # The second session ran twice as slowly; only the order within each session counts.
    points = [near(0.5, a=10.0, b=12.0), near(1.5, a=44.0, b=20.0)]
    estimates = measured.between(points, flat, lambda name, entry: 1.0)
    assert estimates["a"] < estimates["b"]
    swapped = [replace(points[0], offsets={"size": 1.5}), replace(points[1], offsets={"size": 0.5})]
    estimates = measured.between(swapped, flat, lambda name, entry: 1.0)
    assert estimates["b"] < estimates["a"]


def test_a_variant_that_one_point_lacks_is_compared_by_those_that_all_have() -> None:
    """A sweep with many slow variants must not make its winner look faster than the same lead elsewhere."""
    flat = dict.fromkeys(("a", "b", "mine", "slow1", "slow2"), 1.0)
    points = [near(1.0, a=10.0, b=11.0), near(1.0, a=10.0, b=11.0, mine=9.9, slow1=90.0, slow2=90.0)]
    estimates = measured.between(points, flat, lambda name, entry: 1.0)
    assert 0.98 < estimates["mine"] / estimates["a"] < 1.03


def test_points_decide_alone_where_the_model_fails() -> None:
    estimates = measured.between(
        [near(1.0, a=3.0, b=2.0)], {"a": None, "b": 5.0, "c": 1.0}, lambda name, entry: None
    )
    assert estimates["b"] < estimates["a"] and "c" not in estimates


def test_leaving_a_point_out_the_rest_nearly_finds_its_winner() -> None:
    """The shipped table against itself: each point is chosen from the others, and the loss is measured. Needs
    no GPU.

    If a form of selection has fewer than nine points, leaving one out leaves none beyond it at some corner:
    the loss there, up to 25 % at one row of the forms with eight points, is not judged.
    """
    known = {v.id: v for v in variants.variants()}
    lost: dict[str, list[float]] = {}
    blind: dict[str, list[float]] = {}
    table = measured.tuned_table(GPU)
    for tuned in table:
        us = {name: time for name, time in tuned["us"].items() if name in known}
        few = sum((e["op"], e["form"]) == ("topk_selector", tuned["form"]) for e in table) in range(1, 9)
        if len(us) < 2 or few:
            continue
        call = call_of(tuned)
        sizes = registry.assumed(call, tuned["bucket"])
        ranked, predictions = models.predict(call, [known[name] for name in us], sizes)
        model = {name: time for name, (time, _) in zip(us, predictions, strict=True)}
        points = measured.near(
            [e for e in table if e is not tuned], tuned["op"], tuned["form"], tuned["bucket"], us
        )

        def at(name: str, other: Any, call: registry.Call = call, ranked: str = ranked) -> float | None:
            dims = registry.assumed(call, other["bucket"])
            return models.prediction(call, known[name], dims, ranked)[0]

        predictions = measured.between(points, model, at) if points else model
        best = min(us.values())
        lost.setdefault(tuned["op"], []).append(us[min(predictions, key=predictions.__getitem__)] / best - 1)
        blind.setdefault(tuned["op"], []).append(us[min(model, key=model.__getitem__)] / best - 1)
    mean = {op: sum(each) / len(each) for op, each in lost.items()}
    assert mean["lightning_indexer"] < 0.01 and mean["topk_selector"] < 0.01 and mean["sparse_mla"] < 0.04
    # For scoring the clock alone is exact at its points, so other points can only mislead.
    assert all(mean[op] <= max(0.01, sum(blind[op]) / len(blind[op])) for op in mean), (mean, blind)


def call_of(tuned: dict[str, Any]) -> registry.Call:
    """A call at a point of the table."""
    dims = dict(tuned["bucket"])
    length = dims.get("max_len") or dims.get("skv") or 1
    dims |= {
        "stride": length,
        "max_pages": length // 64,
        "pages": 1 << 17,
        "skip_below": 0,
        "n": dims.get("n", 1 << 18),
    }
    if tuned["form"] in PAGED:
        dims |= {"topk": 128, "extra_topk": dims["topk"] - 128, "extra_pages": 1 << 17}
    if tuned["form"] == "decode_blocks":
        dims |= {"max_pages": length // 8, "block_size": 8, "page_size": 64}
    if tuned["op"] == "topk_selector":
        dims |= {"b": dims["rows"], "next_n": 1, "page_size": 64}
    return registry.Call(tuned["op"], tuned["form"], "sm_90a", dims, GPU)


H100 = "NVIDIA H100 80GB HBM3"
H20 = "NVIDIA H20"


def held_at(op: str, form: str, **sizes: int) -> dict[str, Any]:
    """The H200's entry for these sizes."""
    return next(
        e for e in measured.tuned_table(GPU)
        if (e["op"], e["form"]) == (op, form) and sizes.items() <= e["bucket"].items()
    )  # fmt: skip


def test_a_card_without_a_table_takes_what_its_siblings_points_say() -> None:
    """At every point of the H200 an H100 takes its winner and launch dims, and names the table."""
    for tuned in measured.tuned_table(GPU):
        call = call_of(tuned)
        own, other = registry.select(call), registry.select(replace(call, gpu=H100))
        assert other.variant == own.variant and tuned["launch"].items() <= other.launch.items(), tuned[
            "bucket"
        ]
        assert (own.rule, other.rule) == ("tuned table", "tuned table of the H200")


@pytest.mark.parametrize(
    ("op", "form", "point", "sizes"),
    [
        ("topk_selector", "default", {"rows": 128, "max_len": 8192, "k": 2048}, {"rows": 200}),
        ("sparse_mla", "bf16", {"t": 16, "heads": 16, "topk": 512}, {"t": 16}),
        ("lightning_indexer", "decode", {"next_n": 1, "heads": 32}, {"b": 96, "max_len": 4096}),
    ],
)
def test_where_the_model_alone_lost_most_an_h100_takes_what_an_h200_does(op, form, point, sizes) -> None:
    """Measured on an H100: 200 rows of 8192, 16 queries of attention, 96 sequences of 4096."""
    tuned = held_at(op, form, **point)
    call = call_of({**tuned, "bucket": {**tuned["bucket"], **sizes}})
    own, other = registry.select(call), registry.select(replace(call, gpu=H100))
    assert (other.variant, other.launch) == (own.variant, own.launch)
    # Scoring is predicted by the clock, which needs no points for this.
    alone = registry.select(replace(call, gpu=""))
    assert (alone.variant == own.variant) is alone.rule.startswith(
        models.CLOCK
    ) and "of the H200" in other.rule


def test_launch_dims_that_other_sms_were_tuned_for_are_worked_out_anew() -> None:
    tuned = next(e for e in measured.tuned_table(GPU) if e["launch"].get("splits") == 4)
    call = call_of(tuned)
    assert registry.select(replace(call, gpu=H100)).launch["splits"] == 4
    # Only the winner's time, as scaled times of others may be better.
    only = {**tuned, "us": {tuned["variant"]: tuned["us"][tuned["variant"]]}}
    for gpu, sms in ((H20, 0), (H20, 78), (GPU, 78)):
        there = replace(call, gpu=gpu, sms=sms)
        explanation = registry.Explanation(
            there, {}, [], near=[measured.Near({"t": 0.0}, only)], sibling=GPUS["H200"]
        )
        rule = registry._rule_of_points(explanation, variants.get(tuned["variant"]))
        assert rule == ("tuned table of the H200", {})
        picked = registry.select(there)
        assert picked.rule == "tuned table of the H200"
        assert picked.launch == registry.explain(there, picked.variant.id).selection.launch
        assert picked.launch["splits"] * call.dims["t"] <= 2 * 78
    decode = call_of(held_at("lightning_indexer", "decode", next_n=1))
    there = registry.select(replace(decode, gpu=H20))
    assert there.launch["ctas"] == 78 * there.variant.knobs["resident"]


def test_with_other_sms_each_variants_time_is_scaled_and_with_as_many_the_order_stays() -> None:
    tuned = held_at("sparse_mla", "bf16", t=64, heads=128, topk=1024)
    for gpu, one in ((H100, True), ("NVIDIA GH200 480GB", True), (H20, False)):
        call = replace(call_of(tuned), gpu=gpu)
        estimates = {c.variant.id: c.estimated_us for c in registry.explain(call).candidates}
        ratios = {round(estimates[name] / us, 6) for name, us in tuned["us"].items() if estimates.get(name)}
        assert (len(ratios) == 1) is one and min(ratios) >= 1.0
        # A product without a row has the rates of the reference GPU, whose table it is.
        assert (ratios == {1.0}) is gpu.startswith("NVIDIA GH200")


def test_a_model_that_fails_leaves_the_siblings_times_as_they_are(monkeypatch, caplog) -> None:
    def fails(*args: Any) -> Any:
        raise ZeroDivisionError("no such rate")

    call = call_of(held_at("topk_selector", "default", rows=128, max_len=8192, k=2048))
    chosen = registry.select(replace(call, gpu=H100)).variant
    registry.clear()
    monkeypatch.setattr(models, "predict_cost", fails)
    monkeypatch.setattr(models, "_warned", set())
    with caplog.at_level(logging.WARNING, "dsl_kernels"):
        for gpu in (H100, H20):
            assert registry.select(replace(call, gpu=gpu)).variant == chosen
        between = replace(call, gpu=H20, dims={**call.dims, "rows": 150})
        assert registry.select(between).rule == "between tuned points of the H200"
    assert len(caplog.records) == 1 and "the cost model of topk_selector failed" in caplog.text


def test_points_of_a_cards_own_leave_its_sibling_out(own) -> None:
    call = topk(gpu=H100)
    theirs = registry.select(call)
    other = next(v.id for v in of_arch() if v.id != theirs.variant.id)
    write(own, [entry(call, {other: 1.0, theirs.variant.id: 2.0})], gpu=H100, file=H100)
    assert (registry.select(call).variant.id, registry.select(call).rule) == (other, "user's tuned table")
    assert registry.select(topk(16, gpu=H100)).rule == "between tuned points"
    # A sibling's table serves operations that the card's own table lacks, and all of them if its own is
    # ignored.
    mla = call_of(held_at("sparse_mla", "bf16", t=16))
    assert registry.select(replace(mla, gpu=H100)).rule == "tuned table of the H200"
    assert registry.select(replace(call, own=False)) == theirs
    # The user's points for a sibling count like the shipped ones.
    write(own, [entry(topk(), {other: 1.0, theirs.variant.id: 2.0})])
    (own / f"{measured.slug(H100)}.json").unlink()
    clear()
    selection = registry.select(call)
    assert (selection.variant.id, selection.rule) == (other, "user's tuned table of the H200")


def test_a_shipped_table_is_its_products_own_and_of_all_its_sms() -> None:
    for gpu in ("NVIDIA H200", "H200"):
        assert registry.select(topk(gpu=gpu)).rule == "tuned table"
    assert registry.select(topk(gpu=GPU, sms=60)).rule == "tuned table of the H200"
    assert measured.points(gpu_row("sm_100a", GPU), "topk_selector", "default") == ([], None)


def test_no_table_of_another_architecture_speaks() -> None:
    for gpu in ("NVIDIA B200", "NVIDIA B300 SXM6 AC", "NVIDIA GB200"):
        call = replace(topk(gpu=gpu), arch="sm_100a")
        explanation = registry.explain(call)
        assert (explanation.near, explanation.tuned, explanation.sibling, explanation.table_of) == (
            [],
            None,
            None,
            None,
        )
        assert registry.select(call).rule == registry.select(replace(call, gpu="")).rule


def test_a_damaged_table_of_a_sibling_costs_a_warning(tmp_path, monkeypatch, caplog) -> None:
    monkeypatch.setattr(measured, "TUNED", tmp_path)
    (tmp_path / "nvidia_h200.json").write_text("{")
    clear()
    with caplog.at_level(logging.WARNING, "dsl_kernels"):
        assert registry.select(topk(gpu=H100)).rule.startswith("cost model")
        assert registry.select(topk(8, gpu=H100)).rule.startswith("cost model")
    assert len(caplog.records) == 1 and "tuned table of the H200" in caplog.text


def test_without_a_home_there_is_no_table_of_the_user(monkeypatch) -> None:
    monkeypatch.delenv("DSL_KERNELS_TUNED_DIR")
    monkeypatch.setattr(env, "_platform_folder", lambda kind: None)
    assert (
        env.tuned_root() is None
        and measured.user_table(GPU).entries == ()
        and measured.added_variants() == {}
    )
