"""The clock: it walks all committed variants, sees what slows a kernel, predicts GPUs with other rates."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys

import kernel_folders
import pytest
from typer.testing import CliRunner

from dsl_kernels import clock, programs, registry, variants
from dsl_kernels.arch import GPUS, get_arch
from dsl_kernels.cli import app
from dsl_kernels.clock import interval, rates, sm
from dsl_kernels.clock.machine import Port
from dsl_kernels.clock.path import critical
from dsl_kernels.clock.work import work_of
from dsl_kernels.errors import InvalidArgumentError, ScheduleError
from dsl_kernels.kernels.lightning_indexer.program import decode
from dsl_kernels.tile import text as t
from dsl_kernels_lab.verification.reach import attended_heads

H128 = "sparse_mla__cutedsl_sm100a__h128_bf16_bt64_cl1_cp_async"
H16 = H128.replace("h128", "h16")
PAIR = "sparse_mla__cutedsl_sm100a__h128_bf16_bt128_cl1_gather4"
DECODE = "lightning_indexer__cutedsl_sm90a__decode_h64_q1_t64_st3_c4_e1"


def call_of(variant: variants.Variant, gpu: str = "", **sizes: int) -> registry.Call:
    knobs = variant.knobs
    form = programs.get(variant.op).form(knobs)
    walked = kernel_folders.of_each("sizes")[variant.op].WALKED
    given = walked[form if form in walked else form.removesuffix("_bf16")]
    fixed = {name: knobs[name] for name in ("heads", "dim") if name in knobs}
    if fixed.get("heads") == "any":
        fixed |= {"heads": attended_heads(knobs)}
    if "index_heads" in given:
        fixed = {"index_heads": knobs["heads"]}
    row = GPUS[gpu or get_arch(variant.arch).gpu]
    return registry.Call(variant.op, form, variant.arch, {**given, **fixed, **sizes}, row.device)


def sm_of(
    variant: variants.Variant, call: registry.Call, change=lambda kernel: kernel, given=None
) -> sm.Prediction:
    """The prediction for a kernel after a change."""
    kernel, counted = clock._read(call.op, call.arch, tuple(sorted(variant.knobs.items())), variant.backend)
    dims = {
        **registry.assumed(call, registry.deciding(call)),
        "ctas": 128,
        "splits": 1,
        "counters": 1,
        "inbox_words": 1,
    }
    dims |= {"all_resident": 0, "abreast": 1, "padded_heads": 64}
    changed = change(dataclasses.replace(kernel, works={}))
    given = given or rates.rates_of(call.row)
    share = sm.Share.of(changed.schedule, call.row, given, dims, counted(dims), 1e6)
    return sm.Sm(changed, given, dims, share).walk()


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("op", clock.walked())
def test_every_variant_is_walked_to_its_end(op, arch):
    for variant in variants.variants(op):
        if variant.arch == arch:
            call = call_of(variant)
            prediction = clock.predict(call, variant)
            assert prediction.us > call.row.launch_us and prediction.clocks > 1000, variant.id
            assert all(0 <= share < 1.1 for share in prediction.busy.values()), (variant.id, prediction.busy)
            assert set(prediction.waits) == {
                role.name if role.replicas == 1 else f"{role.name}[{i}]"
                for role in clock._read(op, arch, tuple(sorted(variant.knobs.items())), variant.backend)[
                    0
                ].schedule.roles
                for i in range(role.replicas)
            }


def test_a_walk_repeats():
    variant = variants.get(H128)
    assert clock.predict(call_of(variant), variant) == clock.predict(call_of(variant), variant)


def test_operations_whose_data_decide_are_refused():
    variant = variants.variants("topk_selector")[0]
    call = registry.Call("topk_selector", "default", variant.arch, {"rows": 1, "stride": 64, "k": 8})
    with pytest.raises(InvalidArgumentError, match="op: expected gqa_forward.*topk_selector"):
        clock.predict(call, variant)


def stages(kernel: sm.Kernel, pipeline: str, count: int) -> sm.Kernel:
    pipes = [
        dataclasses.replace(p, stages=count) if p.name == pipeline else p for p in kernel.schedule.pipelines
    ]
    return dataclasses.replace(kernel, schedule=dataclasses.replace(kernel.schedule, pipelines=tuple(pipes)))


def test_a_ring_without_room_for_what_is_on_its_way_shows():
    """Eight units are the two tiles that products read: the producer stalls until one of them is released."""
    variant = variants.get(H128)
    call = call_of(variant, t=64, topk=2048)
    short = sm_of(variant, call, lambda kernel: stages(kernel, "kv", 8))
    long = sm_of(variant, call, lambda kernel: stages(kernel, "kv", 12))
    assert long.clocks < 0.95 * short.clocks
    assert long.waits["producer"].get("acquire kv", 0) < short.waits["producer"]["acquire kv"]


def test_an_election_for_each_gathered_row_shows():
    variant = variants.get(H128.replace("cp_async", "gather4"))
    call = call_of(variant, t=64, topk=2048)
    lean = dataclasses.replace(rates.rates_of(call.row), bulk_slots=8.0)
    elect = dataclasses.replace(lean, bulk_slots=60.0)
    assert sm_of(variant, call, given=elect).clocks > 1.1 * sm_of(variant, call, given=lean).clocks


def test_rows_by_number_come_four_of_a_panel_at_a_time():
    """64 rows of 576 bf16 take 144 copies: nine panels of 128 bytes, four rows each."""
    variant = variants.get("sparse_mla__cutedsl_sm100a__h16_bf16_bt64_cl1_gather4")
    walked = clock.sm_of(call_of(variant, t=64, topk=256), variant)
    walked.walk()
    tiles = walked.share.wanted * 256 // (variant.knobs["tile"] * walked.dims["splits"])
    copies = walked.machine.unit("copy engine").busy / walked.rates.bulk_issue
    assert copies == 144 * tiles


def test_a_copy_takes_what_its_dsl_makes_of_it(monkeypatch):
    """Except on Hopper, where both DSLs have the same figures."""
    gather = variants.get("sparse_mla__cutedsl_sm100a__h16_bf16_bt64_cl1_gather4")
    known = clock.predict(call_of(gather, t=64, topk=2048), gather)
    monkeypatch.setitem(sm.COPIES, "cutedsl", {"Rows": 3.0})
    assert clock.predict(call_of(gather, t=64, topk=2048), gather).clocks > 1.5 * known.clocks
    hopper = variants.get("lightning_indexer__cutedsl_sm90a__decode_h64_q1_t64_st3_c4_e1")
    monkeypatch.setitem(sm.COPIES, "cutedsl", {"Box": 10.0})
    slow = clock.predict(call_of(hopper, max_pages=512), hopper)
    monkeypatch.undo()
    assert slow == clock.predict(call_of(hopper, max_pages=512), hopper)


def test_operands_pass_the_port_before_requests():
    port = Port("port")
    port.reads(0, 100, 50)
    # Half of the port is left until 100, all of it after.
    assert port.requested(0, 40) == 80 and port.requested(80, 20) == 110
    port.reads(200, 300, 50)
    assert port.requested(200, 10, most=0.25) == 240
    whole = Port("port", least=0.03)
    whole.reads(0, 100, 100)
    assert whole.requested(0, 5) == pytest.approx(105 - 100 * 0.03)
    # A product delays what came before it and is not served yet.
    late = Port("port")
    assert late.requested(0, 60) == 60
    late.reads(20, 60, 20)
    assert late.free == 80


def test_stores_hold_the_warps_that_write_a_part_of_the_output():
    variant = variants.get("sparse_mla__cutedsl_sm90a__h64_bf16_bt64_st2_cl1_hb64")
    call = call_of(variant, t=8, topk=2048)
    fast = dataclasses.replace(rates.rates_of(call.row), store_bytes=1e9)
    assert clock.predict(call, variant, fast).clocks < 0.9 * clock.predict(call, variant).clocks


def test_a_single_buffer_of_keys_shows():
    variant = variants.get("gqa_forward__cutedsl_sm100a__bf16_d128_n64_st3_c1_z2")
    call = call_of(variant, sq=4096, skv=4096)
    single = sm_of(variant, call, lambda kernel: stages(stages(kernel, "k", 1), "v", 1))
    assert single.clocks > 1.2 * sm_of(variant, call).clocks


def test_one_scoring_group_against_four_shows(monkeypatch):
    """With eight queries, weighing the scores of a tile takes longer than loading its keys."""
    variant = variants.get("lightning_indexer__cutedsl_sm100a__decode_h64_q8_t128_st6_c1_e0")
    call = call_of(variant, b=64, next_n=8, max_pages=512, stride=32768, pages=64 * 512)
    committed, dealt = clock.predict(call, variant), decode.blackwell_groups
    clock._read.cache_clear()
    monkeypatch.setattr(decode, "blackwell_groups", lambda k: (1, 1, dealt(k)[2]))
    single = clock.predict(call, variant)
    clock._read.cache_clear()
    assert {"score_0", "score_3"} <= set(committed.waits) and "score_1" not in single.waits
    assert single.clocks > 1.4 * committed.clocks


def test_a_single_accumulator_of_scores_shows():
    variant = variants.get("lightning_indexer__cutedsl_sm100a__prefill_h64_q4_t128_st6_c1_e0")
    call = call_of(variant, s=4096, skv=32768)
    single = sm_of(variant, call, lambda kernel: stages(kernel, "scores", 1))
    assert single.clocks > 1.3 * sm_of(variant, call).clocks


def test_a_single_p_shows_where_hand_overs_are_slow():
    """At 44 clocks a hand-over a second P in sparse attention hides nothing; at 300 and fast rows it does."""
    variant = variants.get("sparse_mla__cutedsl_sm100a__h16_bf16_bt64_cl1_gather4")
    call = call_of(variant, t=256, topk=2048)
    known = rates.rates_of(call.row)
    quick = dataclasses.replace(known, stall=1.0, l2_bytes=1e9, sm_bytes=1e4, bulk_slots=0.1, bulk_issue=0.1)
    slow = dataclasses.replace(quick, hand_over=300.0)

    def worth(given: rates.Rates) -> float:
        single, double = (
            sm_of(variant, call, lambda kernel, n=n: stages(kernel, "p", n), given).clocks for n in (1, 2)
        )
        return single / double

    assert worth(slow) > 1.04 > 1.01 > worth(quick)


def test_what_a_cta_does_after_its_last_tile_is_in_its_time(monkeypatch):
    """The walk simulates all 128 units, as no other CTA hides the epilogue of one without a successor."""
    variant = variants.get(H128)
    call = call_of(variant, t=4096, topk=2048, n=32768)
    whole = clock.predict(call, variant)
    monkeypatch.setattr(sm, "WHOLE", sm.MOST_USES)
    assert whole.clocks > 1.1 * clock.predict(call, variant).clocks


def test_a_cta_that_goes_on_is_paced_by_whole_queries():
    """Work between queries counts once per query, though a query has twice the uses walked elsewhere."""
    variant = variants.get(H16)
    prediction = clock.sm_of(call_of(variant, t=4096, topk=2048, n=32768), variant)
    taken, acquired = prediction.walk().clocks, prediction._first.acquired
    assert prediction.uses > 20 * 128 and len(acquired["q"]) == sm.QUERIES
    begin, end = acquired["q"][-2:]
    assert taken == pytest.approx(4096 / 148 * (end - begin), rel=0.05)
    uses = [at for at in acquired["kv"] if begin <= at < end]
    assert prediction.pace[1] > 1.01 * (uses[-8] - uses[32]) / (len(uses) - 40)


def test_what_never_comes_is_reported():
    def without_commit(kernel: sm.Kernel) -> sm.Kernel:
        def kept(statements):
            for s in statements:
                if isinstance(s, t.PipelineOp) and s.kind == "commit" and s.slot.pipeline.name == "kv":
                    continue
                inner = {
                    name: list(kept(getattr(s, name))) for name in ("body", "orelse") if hasattr(s, name)
                }
                yield dataclasses.replace(s, **inner) if inner else s

        roles = {name: tuple(kept(body)) for name, body in kernel.text.roles.items()}
        return dataclasses.replace(kernel, text=dataclasses.replace(kernel.text, roles=roles))

    variant = variants.get(H128)
    with pytest.raises(ScheduleError, match="mma waits"):
        sm_of(variant, call_of(variant), without_commit)


def test_what_the_units_draw_sets_the_clock():
    """Products of all SMs reach the power limit; what else draws power lowers the clock further."""
    h200 = rates.rates_of(GPUS["H200"])
    products = h200.drawn["tensor cores"] + h200.drawn["shared memory"] * 5 / 8
    assert products == pytest.approx(1)
    assert h200.mhz(1, products, 1) == pytest.approx(h200.loaded_mhz)
    assert h200.mhz(1, products + h200.drawn["issue"] / 2, 1) < 0.98 * h200.loaded_mhz
    # A launch that ends before the limit acts, and one that draws little, keep their clock.
    assert h200.mhz(1, products, 0) == h200.mhz(1, products / 3, 1) == h200.clock_mhz * h200.droop
    assert h200.mhz(0, h200.drawn["issue"], 1) == h200.clock_mhz


def test_an_import_reads_no_record():
    """A damaged record may cost a ranking by the clock, but no import."""
    read = (
        "from dsl_kernels.clock import rates\n"
        "print(*(each.cache_info().currsize for each in (rates._loads, rates.hopper)))"
    )
    done = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0"]


def test_traffic_between_the_l2_and_the_sms_takes_power():
    """A cluster that loads keys for two CTAs at once leaves GQA a higher clock."""
    alone, shared = (
        variants.get(f"gqa_forward__cutedsl_sm90a__bf16_d128_n160_st2_o1_{cluster}_z2")
        for cluster in ("c1", "c2")
    )
    call = call_of(alone, b=1, heads=128, kv_heads=8, sq=16384, skv=16384, causal=0)
    assert clock.predict(call, shared).mhz > 1.01 * clock.predict(call, alone).mhz


def test_less_bandwidth_takes_longer_where_memory_paces():
    variant = variants.get(DECODE)
    call = call_of(variant, b=64, max_pages=512, stride=32768, pages=64 * 512)
    whole = rates.rates_of(call.row)
    half = dataclasses.replace(whole, hbm_bytes=whole.hbm_bytes / 2)
    fast, slow = clock.predict(call, variant), clock.predict(call, variant, half)
    assert fast.bound == slow.bound == "memory"
    assert slow.clocks == pytest.approx(2 * fast.clocks, rel=0.1)


def test_rows_that_the_l2_holds_come_from_memory_once():
    """1024 queries over 32,768 rows fetch each row 64 times: an H100 took 383 us, DRAM would take 700."""
    variant = variants.get("sparse_mla__cutedsl_sm90a__h16_bf16_bt64_st2_cl1")

    def us(rows: int) -> float:
        return clock.predict(call_of(variant, "H100", t=1024, topk=2048, n=rows), variant).us

    few, many, unsaid = us(32768), us(1 << 18), us(1)
    assert 350 < few < 450 < many < unsaid
    # The rows of a single query are not shared.
    call = call_of(variant, "H100", t=1, topk=2048, n=1 << 18)
    apart = dataclasses.replace(call, dims={**call.dims, "n": 1})
    assert clock.predict(call, variant).us == clock.predict(apart, variant).us


@pytest.mark.parametrize("name", ["H100", "B200"])
def test_every_rate_has_a_source_and_an_interval_around_it(name):
    for title, rate in rates.sources(GPUS[name]).items():
        ends = [end for end in (rate.best, rate.worst) if end is not None]
        assert rate.source, title
        assert not ends or min(ends) <= rate.value <= max(ends), title


def test_the_bounds_enclose_a_prediction():
    variant = variants.get(H128)
    call = call_of(variant, t=64)
    best, worst = (clock.predict(call, variant, end).us for end in rates.bounds(call.row))
    assert best < clock.predict(call, variant).us < worst


def test_a_leaf_is_counted_as_its_first_thread_goes_through_it():
    """With 80 keys a thread has 20 scores of each of two rows: 40 exponentials, one factor per row."""
    variant = variants.get("gqa_forward__cutedsl_sm90a__bf16_d128_n80_st2_o0_c2_w3_z2")
    kernel, _ = clock._read(variant.op, variant.arch, tuple(sorted(variant.knobs.items())), variant.backend)
    calls = [s for body in kernel.text.roles.values() for s in t.walk(body) if isinstance(s, t.Call)]
    softmax = next(s for s in calls if s.leaf.name == "online_softmax_lazily")
    work, _ = work_of(softmax, kernel.schedule, {}, {})
    assert work.mufu == 40
    assert 40 * 3 < work.slots < 40 * 6


def test_the_command_says_what_roles_wait_for():
    given = ["predict", "sparse_mla", "--gpu", "B200", "--dim", "t=64,heads=16,topk=2048"]
    printed = CliRunner().invoke(app, given)
    assert printed.exit_code == 0, printed.output
    assert "acquire kv" in printed.output and "A model, not a measurement, for B200" in printed.output
    report = json.loads(CliRunner().invoke(app, [*given, "--json"]).output)
    times = [row["us"] for row in report["variants"]]
    assert (
        report["model"] and times == sorted(times) and {row["variant"] for row in report["variants"]} >= {H16}
    )


def kept(variant: variants.Variant, call: registry.Call) -> sm.Sm:
    prediction = clock.sm_of(call, variant, kept=True)
    assert prediction.walk() == clock.predict(call, variant)
    return prediction


def test_the_critical_path_goes_from_the_end_to_the_begin():
    """If memory is the bottleneck, nearly all of the path is in copies that the loading role has issued."""
    variant = variants.get(DECODE)
    path = critical(kept(variant, call_of(variant, b=64, max_pages=512, stride=32768, pages=64 * 512)))
    assert sum(path.values()) == pytest.approx(1) and min(path.values()) >= 0
    assert next(iter(path)) == ("load", "copies") and path["load", "copies"] > 0.8
    # Attention of many queries by many keys is limited by products, whichever consumer issues them.
    variant = variants.get("gqa_forward__cutedsl_sm90a__bf16_d128_n80_st2_o0_c2_w3_z2")
    path = critical(kept(variant, call_of(variant, "H100", sq=4096, skv=4096)))
    assert sum(share for step, share in path.items() if step.unit == "tensor cores") > 0.5


def test_a_ring_of_two_uses_has_a_pace():
    variant = variants.get("sparse_mla__cutedsl_sm90a__h64_bf16_bt64_st2_cl2_sl2_hb16")
    found = kept(variant, call_of(variant, "H200", t=2, topk=2048))
    assert found.uses == 2 and found.pace is not None and found.pace[1] > 0


def test_later_ctas_are_on_the_path_of_a_launch_of_several_rounds():
    variant = variants.get(H128)
    found = kept(variant, call_of(variant, t=512))
    assert max(task.cta for task in found.tasks) == 2
    path = critical(found)
    assert sum(path.values()) == pytest.approx(1) and any(step.unit == "next CTA" for step in path)


def test_a_rate_that_turns_a_choice_is_named_with_what_measures_it(monkeypatch):
    """The pair of CTAs wins, unless the copy engine's latency is far longer: then copies by threads do."""
    plain, pair = variants.get(H128), variants.get(PAIR)
    call = call_of(plain, t=64, topk=2048)
    assert interval.doubts(call, [plain, pair]) == []
    known = {
        name: rate._replace(best=rate.value, worst=rate.value) for name, rate in rates.blackwell().items()
    }
    unsure = rates.Rate(known["bulk_latency"].value, "somebody said so", 20.0, 10000.0, "^fetch_bulk_1k_l2$")
    monkeypatch.setattr(rates, "blackwell", lambda: {**known, "bulk_latency": unsure})
    (doubt,) = interval.doubts(call, [plain, pair])
    assert (doubt.rate, doubt.end, doubt.chosen) == ("bulk_latency", 10000.0, plain.id)
    assert (doubt.item, doubt.source) == (unsure.item, unsure.source) and doubt.faster > 1.5
    printed = CliRunner().invoke(
        app, ["explain", "sparse_mla", "--gpu", "B200", "--dim", "t=64,heads=128,topk=2048"]
    )
    text = " ".join(printed.output.split())
    assert "The choice depends on bulk_latency" in text and "--only '^fetch_bulk_1k_l2$'" in text


def test_the_interval_of_a_prediction_encloses_it():
    variant = variants.get(H128)
    bounds = interval.interval(call_of(variant, t=64), variant)
    assert bounds.best < bounds.us < bounds.worst


def test_what_decides_on_blackwell_has_an_item():
    """All rates of tcgen05 are published by others; each that may change a choice needs a micro-benchmark."""
    for title, rate in rates.sources(GPUS["B200"]).items():
        wide = None not in (rate.best, rate.worst) and rate.best != rate.worst
        assert (
            rate.item
            or not wide
            or title in ("stall", "dense_stall", "tensor_issue", "bulk_issue", "bulk_slots")
        ), title


def test_a_product_of_64_rows_takes_what_the_rate_says():
    """The products of attention with 64 heads have 64 rows, those of GQA 128."""
    for name, sizes, felt in (
        ("sparse_mla__cutedsl_sm100a__h64_bf16_bt64_cl1_cp_async", {"t": 64, "topk": 2048}, True),
        (
            "gqa_forward__cutedsl_sm100a__bf16_d128_n64_st3_c2_z2",
            {"b": 1, "sq": 1024, "skv": 1024, "heads": 8, "kv_heads": 1, "dim": 128, "causal": 0},
            False,
        ),
    ):
        variant = variants.get(name)
        call = call_of(variant, **sizes)
        slow, fast = (
            dataclasses.replace(rates.rates_of(call.row), tensor_half=half, tensor_least=1.0)
            for half in (0.1, 1.0)
        )
        assert (clock.predict(call, variant, slow).us > clock.predict(call, variant, fast).us) == felt


def test_the_command_writes_what_each_role_and_unit_did_when(tmp_path):
    path = tmp_path / "trace.json"
    given = ["predict", "sparse_mla", "--gpu", "B200", "--dim", "t=64,heads=16,topk=2048", "--json"]
    printed = CliRunner().invoke(app, [*given, "--timeline", str(path)])
    assert printed.exit_code == 0, printed.output
    first = json.loads(printed.stdout)["variants"][0]
    low, high = first["interval"]
    assert low < first["us"] < high and first["pace"]["ring"] == "kv"
    assert sum(step["share"] for step in first["path"]) == pytest.approx(1)
    trace = json.loads(path.read_text())
    names = {e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M" and "name" in e["args"]}
    assert {"producer", "mma", "softmax", "tensor cores (unit)", "memory (unit)"} <= names
    spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert {"wait kv", "acquire kv"} <= {e["name"] for e in spans}
    assert max(e["ts"] + e["dur"] for e in spans) < 1.2 * first["clocks"] / 1965
    assert trace["otherData"]["clock"].startswith("a model's")


def test_explain_says_what_the_clock_makes_of_a_choice_that_nothing_measured_decides():
    given = ["explain", "sparse_mla", "--gpu", "B200", "--dim", "t=64,heads=128,topk=2048"]
    printed = CliRunner().invoke(app, given)
    assert "a model, not a measurement" in printed.output and "intervals" in printed.output
    report = json.loads(CliRunner().invoke(app, [*given, "--json"]).stdout)["clock"]
    assert report["ranks"] and all(us["best"] <= us["us"] <= us["worst"] for us in report["us"].values())
    measured = ["explain", "sparse_mla", "--gpu", "H200", "--dim", "t=64,heads=128,topk=2048", "--json"]
    assert json.loads(CliRunner().invoke(app, measured).stdout)["clock"] is None


def test_what_loads_fill_is_waited_for_where_it_is_read() -> None:
    """Registers are tracked one by one: a unit has eight of a token's 44 words; the last four are scales."""
    variant = variants.get("sparse_mla__cutedsl_sm100a__h16_fp8_bt64_cl1_cp_async")
    kernel, _ = clock._read(variant.op, variant.arch, tuple(sorted(variant.knobs.items())), variant.backend)
    calls: dict[str, t.Call] = {}
    for s in t.walk(kernel.text.roles["producer"]):
        if isinstance(s, t.Call):
            calls.setdefault(s.leaf.name, s)

    def of(name: str, **values: int):
        call = calls[name]
        position = {parameter.name: i for i, parameter in enumerate(call.leaf.parameters)}
        return work_of(call, kernel.schedule, {position[n]: value for n, value in values.items()}, {})[0]

    def words(*numbers: int) -> set[tuple[str, int]]:
        return {("words", 44 * half + number) for half in range(2) for number in numbers}

    load, write, scales = of("load_words", at=8), of("write_unit", unit=1), of("load_scales")
    assert (load.comes, load.reads, load.fetches) == (words(*range(8, 16)), set(), 0)
    assert (write.comes, write.reads) == (set(), words(*range(8, 16), 41))
    assert scales.comes == {("scales", number) for number in range(8)} and scales.fetches == 0
    assert of("take_scales").reads == scales.comes
