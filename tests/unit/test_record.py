"""`bench --record` without a GPU: what a run measures, resumes and refuses to mix; the page of results."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import zipfile
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_measure import on_cpu as on_cpu
from typer.testing import CliRunner

from dsl_kernels import problems, variants
from dsl_kernels.cli import app
from dsl_kernels.errors import ArtifactError, InvalidArgumentError, ToolchainError, WrongResultError
from dsl_kernels_lab.timing import bench, grids, peers, recording, results
from dsl_kernels_lab.timing.recording import Item
from dsl_kernels_lab.timing.results import PeerTime, Results, Row, Run

GPU = "NVIDIA H200"
KERNEL = variants.variants("sparse_mla", arch="sm_90a")[0].id
SMALL = Item("attention", "sparse_mla", "bf16", {"t": 2, "heads": 16, "pages": 4, "topk": 128})


def row(point: str, us: float, *sides: tuple[str, float], section: str = "attention", **given) -> Row:
    times = tuple(PeerTime(name, "1", peer, (peer,)) for name, peer in sides)
    kernels = {KERNEL: results.fingerprint(KERNEL)}
    return Row(section, "sparse_mla", "bf16", point, kernels, us, (us,), times, **given)


def made(*rows: Row, **given) -> Results:
    run = Run("2026-12-01", "python -m dsl_kernels bench --record", "580", "ab")
    fresh = Results(GPU, "abc", "0.1.0", {"torch": "2", "triton": None}, (run,), rows)
    return replace(fresh, **given)


@pytest.fixture
def stub(monkeypatch):
    """A fake card with a row per item; records what was measured and how the next item ends."""
    state = SimpleNamespace(asked=[], peers=[], fails={}, fresh=made(), absent={})

    def measured(item, session, run):
        state.asked.append(item.key)
        state.peers.append(session.with_peers)
        session.absent |= state.absent
        if item.key in state.fails:
            raise state.fails[item.key]
        return replace(row(item.point, 10.0), section=item.section, op=item.op, run=run)

    monkeypatch.setattr(recording, "measured", measured)
    monkeypatch.setattr(recording, "_fresh", lambda: state.fresh)
    monkeypatch.setattr(bench, "require_gpu", lambda: GPU)
    return state


CHOSEN = recording.items("topk_selector")[:3]


def test_a_second_run_goes_on_where_the_first_one_ended(tmp_path, stub, monkeypatch) -> None:
    path = tmp_path / "results" / "gpu.json"
    clock = iter([0.0, 0.0, 5.0, 100.0])
    monkeypatch.setattr(recording, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    first = recording.record(path, CHOSEN, limit=60.0)
    assert first.left == 1 and stub.asked == [item.key for item in CHOSEN[:2]]
    monkeypatch.setattr(recording, "time", SimpleNamespace(monotonic=lambda: 0.0))
    assert recording.record(path, CHOSEN, limit=60.0).left == 0 and len(stub.asked) == 3


def test_what_a_file_holds_is_not_measured_again(tmp_path, stub) -> None:
    path = tmp_path / "gpu.json"
    recording.record(path, CHOSEN[:2])
    recorded = recording.record(path, CHOSEN)
    assert stub.asked == [item.key for item in CHOSEN] and recorded.left == 0
    content = results.read(path)
    assert content == recorded.results and len(content.runs) == 2
    assert [(r.key, r.run) for r in content.rows] == [
        (item.key, int(n == 2)) for n, item in enumerate(CHOSEN)
    ]
    recording.record(path, CHOSEN, again=True)
    assert stub.asked[3:] == [item.key for item in CHOSEN] and len(results.read(path).runs) == 1


def test_one_file_is_of_one_commit_one_kind_of_gpu_and_one_set_of_kernels(
    tmp_path, stub, monkeypatch
) -> None:
    path = tmp_path / "gpu.json"
    recording.record(path, CHOSEN[:1])
    before, begun = path.read_text(), stub.fresh
    for name, value, said in (
        ("commit", "def", "commit abc"), ("gpu", "NVIDIA H20", "gpu NVIDIA H200"),
        ("versions", {"torch": "3"}, "torch 2"),
    ):  # fmt: skip
        stub.fresh = replace(begun, **{name: value})
        with pytest.raises(InvalidArgumentError, match=said) as error:
            recording.record(path, CHOSEN)
        assert "--again" in str(error.value) and path.read_text() == before
    stub.fresh = begun
    monkeypatch.setattr(results, "fingerprint", lambda variant: "another")
    with pytest.raises(InvalidArgumentError, match="the kernels of its rows"):
        recording.record(path, CHOSEN)
    assert stub.asked == [CHOSEN[0].key]


def test_a_point_that_ends_the_process_twice_is_timed_without_peers(tmp_path, stub) -> None:
    path, bad = tmp_path / "gpu.json", CHOSEN[1].key
    stub.fails[bad] = KeyboardInterrupt()
    for count in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            recording.record(path, CHOSEN)
        assert results.read(path).ended == {bad: count}
    stub.fails.clear()
    recorded = recording.record(path, CHOSEN)
    assert stub.peers == [True, True, True, False, True] and recorded.results.ended == {}
    assert len(recorded.results.rows) == 3


def test_a_point_that_fails_is_named_and_the_others_are_measured(tmp_path, stub) -> None:
    stub.fails[CHOSEN[0].key] = WrongResultError("ours", expected="a", got="b", fix="c")
    recorded = recording.record(tmp_path / "gpu.json", CHOSEN)
    assert len(recorded.results.rows) == 2 and recorded.left == 1 and CHOSEN[0].key in recorded.failed[0]
    assert recorded.results.ended == {}


def test_the_command_prints_what_it_recorded_and_refuses_other_questions(tmp_path, stub) -> None:
    path, runner = tmp_path / "gpu.json", CliRunner()
    done = runner.invoke(
        app, ["bench", "topk_selector", "--record", "--point", "rows=1 ", "--out", str(path)]
    )
    assert done.exit_code == 0, done.output
    assert "3 rows" in done.output and len(results.read(path).rows) == 3
    for extra in (["--tune"], ["--grid", "core"], ["lightning_indexer"]):
        refused = runner.invoke(app, ["bench", "topk_selector", "--record", *extra])
        assert refused.exit_code == 2 and "error[INVALID_ARGUMENT] --record" in refused.stderr, extra
    assert runner.invoke(app, ["bench", "--record", "--point", "nothing"]).exit_code != 0


def test_the_items_are_points_of_their_problems_and_fit_on_a_page() -> None:
    chosen = recording.items()
    assert len({item.key for item in chosen}) == len(chosen) > 80
    assert {item.section for item in chosen} == set(results.SECTIONS)
    for item in chosen:
        if item.op in problems.names():
            problems.get(item.op).dims_of(item.form, dict(item.params))
    rows = [row(item.point, 2.0, ("peer", 1.0), section=item.section) for item in chosen]
    absent = {"FlashMLA": "No module named 'flash_mla'"}
    for ratio in (1.0, 4.0):
        text = results.page(made(*[replace(r, us=r.us / ratio) for r in rows], absent=absent))
        assert text.count("\n") <= 150


def test_the_page_begins_with_what_is_behind_a_peer_and_marks_kernels_that_changed() -> None:
    stale = {
        **asdict(row("t=4", 12.0, ("FlashMLA", 20.0), ("Triton split-K", 10.0))),
        "kernels": {KERNEL: "old"},
    }
    gone = replace(row("t=5", 10.0, ("FlashMLA", 20.0)), kernels={"sparse_mla__cutedsl_sm90a__gone": "x"})
    record = made(
        row("t=1", 10.0, ("FlashMLA", 20.0), ceiling_us=5.0, clocks={"sm_mhz": 1980.0, "watts": 300.0}),
        row("t=2", 15.0, ("FlashMLA", 10.0)),
        Row(**{**stale, "peers": tuple(PeerTime(**peer) for peer in stale["peers"])}),
        gone,
        row("bf16 batch=1 context=4096 heads=16", 3.0, section="step", parts={"scoring": 1.0}),
        absent={"DeepGEMM": "No module named 'deep_gemm'"},
    )
    text = results.page(record)
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    # The worst first; our own Triton kernel counts as a peer, and is the faster one here.
    assert [line.split(" | ")[1] for line in lines[2:4]] == ["t=2", "t=4 ✗"]
    assert "| Triton split-K | 10 | 1.20 |" in lines[3] and "| 1.50 |" in lines[2]
    variant = "cutedsl `" + KERNEL.split("__")[2] + "`"
    assert f"| t=1 | 10 | FlashMLA | 20 | 0.50 | - | 0.50 | 1980 | 300 | {variant} |" in lines
    assert "| t=5 ✗ |" in text and "| cutedsl `gone` |" in text
    assert "Of 5 rows 4 have a peer, 2 are ahead of it or level; 2 are of kernels that changed since." in text
    assert "DeepGEMM (No module" in text and "heads=16 | 3 | 1 | - |" in text
    assert text.count("t=2") == 1 and "commit abc" in text and "FlashMLA 1" in text


def test_a_step_stands_beside_the_fastest_peers_of_its_parts_added_up() -> None:
    step = row("bf16 batch=16 context=4096 heads=16", 9.0, section="step", parts={"scoring": 4.0})
    parts = [
        row("decode b=16 len=4096 heads=64 next_n=1", 4.0, ("DeepGEMM", 5.0), section="scoring"),
        row("default rows=16 len=4096 k=2048", 3.0, ("a", 4.0), ("b", 3.5), section="selection"),
        row("bf16 t=16 heads=16 pages=4096", 2.0, ("FlashMLA", 6.0)),
    ]
    assert results.peers_added(step, made(step, *parts)) == 14.5
    assert results.peers_added(step, made(step, *parts[:2])) is None
    assert "| 9 | 4 | 14.5 |" in results.page(made(step, *parts))
    prompt = row("bf16 rows=4096 context=32768", 9.0, section="prompt", parts={"scoring": 4.0})
    halves = [
        row("prefill s=4096 skv=32768 heads=64", 1.0, ("DeepGEMM", 5.0), section="scoring"),
        row("default rows=4096 len=32768 k=2048", 1.0, ("a", 4.0), section="selection"),
    ]
    assert results.peers_added(prompt, made(prompt, *halves)) == 9.0


def test_the_parts_of_steps_are_points_of_the_record() -> None:
    rows = [
        row(
            item.point,
            2.0,
            ("peer", 1.0),
            section=item.section,
            parts={"scoring": 1.0} if item.section in ("step", "prompt") else {},
        )
        for item in recording.items()
    ]
    record = made(*rows)
    assert [r.point for r in rows if r.parts and results.peers_added(r, record) is None] == []


def test_times_on_end_are_compared_where_both_have_them() -> None:
    one = row("t=1", 400.0, ("FlashMLA", 500.0), sustained_us=600.0)
    assert one.ratio == 0.8 and one.sustained_ratio is None
    both = replace(one, peers=(replace(one.peers[0], sustained_us=500.0),))
    assert both.sustained_ratio == 1.2 and "| 0.80 | 1.20 |" in results.page(made(both))


def test_a_damaged_file_is_refused_by_the_name_of_its_field(tmp_path) -> None:
    path = tmp_path / "gpu.json"
    results.write(path, made(row("t=1", 1.0)))
    content = json.loads(path.read_text())
    for broken, message in (
        ({**content, "schema": 2}, "schema"),
        ({**content, "rows": [{**content["rows"][0], "us": "fast"}]}, "rows.0.us"),
    ):  # fmt: skip
        path.write_text(json.dumps(broken))
        with pytest.raises(ArtifactError, match=message):
            results.read(path)
    path.write_text("no json")
    with pytest.raises(ArtifactError, match="the whole"):
        results.read(path)
    assert results.read(tmp_path / "none.json") is None


@pytest.mark.parametrize(
    ("gpu", "short"), [("NVIDIA H200", "h200"), ("NVIDIA H100 80GB HBM3", "h100"), ("NVIDIA B200", "b200")]
)
def test_a_page_is_named_after_the_product(gpu: str, short: str) -> None:
    assert results.short_name(gpu) == short


@pytest.fixture
def timed(on_cpu, monkeypatch):
    """`bench` with a fake clock: a contender's time in µs is its position."""

    def in_turns(contenders, *, rounds=bench.ROUNDS, failed=None):
        for name, calls in contenders.items():
            try:
                for call in calls:
                    call()
            except RuntimeError as error:
                failed[name] = str(error)
        return {
            name: [float(place + 1)] * rounds for place, name in enumerate(contenders) if name not in failed
        }

    monkeypatch.setattr(bench, "turns", lambda touched, limit=bench.MAX_TURNS: 1)
    monkeypatch.setattr(bench, "in_turns", in_turns)
    monkeypatch.setattr(
        bench, "sustained", lambda calls, seconds: {"us": 2.0, "sm_mhz": 1500.0, "watts": 690.0}
    )
    monkeypatch.setattr(bench, "clocks", lambda: {"sm_mhz": 1980.0, "watts": 300.0})
    monkeypatch.setattr(bench, "require_gpu", lambda: GPU)
    return on_cpu


def contender(calls, far: float = 0.0) -> peers.Contender:
    return peers.Contender("1.0", calls, lambda: far)


def raises(error: Exception):
    def offer(*_):
        raise error

    return offer


def test_a_row_has_the_peers_that_are_installed_right_and_captured(timed, monkeypatch) -> None:
    def broken():
        raise RuntimeError("cannot be captured")

    offered = {
        "right": lambda point, fixture, ours: contender(ours, 1e-3),
        "wrong": lambda point, fixture, ours: contender(ours, 0.5),
        "nan": lambda point, fixture, ours: contender(ours, float("nan")),
        "absent": raises(ImportError("No module named 'absent'")),
        "raises": raises(ValueError("no such head")),
        "uncaptured": lambda point, fixture, ours: contender([broken]),
        "other sizes": lambda *_: None,
    }
    monkeypatch.setattr(peers, "offers", lambda op: offered)
    monkeypatch.setattr(recording, "SUSTAINED_FROM_US", 1.0)
    session = recording.Session()
    measured_row = recording.measured(SMALL, session, 3)
    assert [(peer.name, peer.us, peer.apart) for peer in measured_row.peers] == [("right", 2.0, 1e-3)]
    assert (measured_row.us, measured_row.ratio, measured_row.run, measured_row.ceiling_us is not None) == (
        1.0,
        0.5,
        3,
        True,
    )
    assert measured_row.peers[0].sustained_us == 2.0 and measured_row.clocks == {
        "sm_mhz": 1500.0,
        "watts": 690.0,
    }
    assert session.absent == {"absent": "No module named 'absent'"}
    notes = " ".join(measured_row.notes)
    assert "wrong: 5.0e-01" in notes and "nan:" in notes and "raises: ValueError: no such head" in notes
    assert "uncaptured: cannot be captured" in notes and list(measured_row.kernels) == [
        next(iter(measured_row.kernels))
    ]
    session.with_peers = False
    assert recording.measured(SMALL, session).peers == ()


def test_steps_and_prompts_have_parts(timed, monkeypatch) -> None:
    monkeypatch.setattr(recording, "STEP_HEADS", 16)
    step = recording.measured(
        Item("step", "decode", "bf16", {"batch": 1, "context": 200, "heads": 16}), recording.Session()
    )
    assert {"scoring", "selection", "attention", "page read"} <= set(step.parts) and len(step.kernels) == 3


def flash_mla(few: tuple[int, ...] = ()) -> SimpleNamespace:
    """Our functions in place of FlashMLA's, for its numbers of heads; `few`: those of newer bf16 kernels."""
    ours = importlib.import_module("dsl_kernels.compat.flash_mla")
    asked = []

    def of_its_heads(name: str, heads: tuple[int, ...]):
        def call(q, *args, **options):
            if q.shape[-2] not in heads:
                raise RuntimeError(f"Unsupported h_q: {q.shape[-2]}")
            asked.append(q.shape[-2])
            return getattr(ours, name)(q, *args, **options)

        return call

    return SimpleNamespace(
        get_mla_metadata=ours.get_mla_metadata,
        flash_mla_sparse_fwd=of_its_heads("flash_mla_sparse_fwd", (*few, 64, 128)),
        flash_mla_with_kvcache=of_its_heads("flash_mla_with_kvcache", (64, 128)),
        asked=asked,
    )


def newer_deep_gemm() -> SimpleNamespace:
    """The same for DeepGEMM's fp8 and fp4 queries; a prompt's logits begin with each window."""
    ours = importlib.import_module("dsl_kernels.compat.deep_gemm")

    def prompt(q, kv, weights, start, end, most):
        assert q[1] is None and most == int((end - start).max())
        found = ours.fp8_mqa_logits(q[0], kv, weights, start, end, clean_logits=False)
        windows = zip(found, start.tolist(), end.tolist(), strict=True)
        return torch.stack(
            [torch.nn.functional.pad(row[at:to], (0, most - to + at)) for row, at, to in windows]
        )

    def paged(q, *operands):
        assert q[1] is None
        return ours.fp8_paged_mqa_logits(q[0], *operands, clean_logits=False)

    return SimpleNamespace(
        fp8_fp4_mqa_logits=prompt,
        fp8_fp4_paged_mqa_logits=paged,
        get_paged_mqa_logits_metadata=ours.get_paged_mqa_logits_metadata,
        get_num_sms=lambda: 132,
    )


def flash3(q, k, v, *, max_seqlen_q, cu_seqlens_q, max_seqlen_k, cu_seqlens_k, causal, fa_version):
    """torch's attention in place of vLLM's FlashAttention 3 for sequences of any lengths."""
    assert fa_version == 3 and cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    assert cu_seqlens_q.diff().max() == max_seqlen_q and cu_seqlens_k.diff().max() == max_seqlen_k
    parts = []
    for i in range(len(cu_seqlens_q) - 1):
        at, to = (starts[i : i + 2].tolist() for starts in (cu_seqlens_q, cu_seqlens_k))
        mine = [x[slice(*of)].transpose(0, 1)[None] for x, of in ((q, at), (k, to), (v, to))]
        result = torch.nn.functional.scaled_dot_product_attention(*mine, is_causal=causal, enable_gqa=True)
        parts.append(result[0].transpose(0, 1))
    return torch.cat(parts)


@pytest.mark.parametrize(
    ("op", "form", "params", "name"),
    [
        ("sparse_mla", "bf16", {"t": 2, "heads": 16, "pages": 4, "topk": 128}, "FlashMLA"),
        ("sparse_mla", "fp8", {"t": 2, "heads": 64, "pages": 4, "topk": 128}, "FlashMLA"),
        ("sparse_mla", "nope", {"t": 2, "heads": 16, "pages": 4, "topk": 128}, "FlashMLA"),
        ("sparse_mla", "v4", {"t": 2, "heads": 16, "pages": 4, "topk": 64, "extra_topk": 64}, "FlashMLA"),
        (
            "gqa_forward",
            "bf16",
            {"b": 1, "sq": 64, "skv": 64, "heads": 8, "kv_heads": 4, "dim": 64, "causal": 1},
            "torch flash",
        ),
        ("lightning_indexer", "decode", {"b": 2, "len": 300, "heads": 64}, "DeepGEMM"),
        ("lightning_indexer", "prefill", {"s": 5, "skv": 200, "heads": 64}, "DeepGEMM"),
        ("topk_selector", "default", {"rows": 3, "len": 300, "k": 64}, "torch.topk"),
        ("resample_trajectories", "default", {"b": 2, "n": 100, "m": 40, "d": 32}, "torch, eager"),
    ],
)
def test_peers_are_called_as_their_libraries_say(timed, monkeypatch, op, form, params, name) -> None:
    """Our own functions under the libraries' names accept what those accept and refuse the rest."""
    monkeypatch.setitem(sys.modules, "flash_mla", flash_mla())
    theirs = importlib.import_module("dsl_kernels.compat.deep_gemm")
    monkeypatch.setattr(theirs, "get_num_sms", lambda: 132, raising=False)
    monkeypatch.setitem(sys.modules, "deep_gemm", theirs)
    point = grids.Point(op, form, params)
    fixture = grids.prepare(point)
    ours = fixture.calls(None, None)
    for call in ours:
        call()
    offer = peers.offers(op)[name]
    made_ = offer(point, fixture, ours)
    assert len(made_.calls) == len(ours) and made_.apart() <= peers.MOST_APART
    monkeypatch.setattr(peers, "offers", lambda op: {name: offer})
    notes: list[str] = []
    assert [found for found, _, _ in peers.standing(point, fixture, ours, {}, notes)] == [name], notes


def test_the_error_of_one_peer_is_not_the_next_ones(timed, monkeypatch) -> None:
    """A failed launch leaves its error in the CUDA runtime, where the next check in this thread finds it."""
    point = grids.Point("topk_selector", "default", {"rows": 3, "len": 300, "k": 64})
    fixture = grids.prepare(point)
    ours, left = fixture.calls(None, None), []

    def fails(*given: object) -> None:
        left.append("no kernel image")
        raise RuntimeError(left[0])

    def checks(*given: object) -> peers.Contender:
        if left:
            raise RuntimeError(left[0])
        return peers.Contender("1", ours, lambda: 0.0)

    monkeypatch.setattr(peers, "offers", lambda op: {"first": fails, "second": checks})
    monkeypatch.setattr(bench, "forget_error", left.clear)
    notes: list[str] = []
    assert [name for name, _, _ in peers.standing(point, fixture, ours, {}, notes)] == ["second"]
    assert notes == ["first: RuntimeError: no kernel image"]


IN_VLLM = {
    "flash_mla": "vllm.third_party.flashmla.flash_mla_interface",
    "deep_gemm": "vllm.third_party.deep_gemm",
    "flash_attn_interface": "vllm.vllm_flash_attn",
}


@pytest.mark.parametrize(
    ("op", "form", "params", "name", "asked"),
    [
        ("sparse_mla", "bf16", {"t": 2, "heads": 16, "pages": 4, "topk": 128}, "FlashMLA", 16),
        ("sparse_mla", "nope", {"t": 2, "heads": 20, "pages": 4, "topk": 128}, "FlashMLA", 64),
        ("sparse_mla", "fp8", {"t": 2, "heads": 16, "pages": 4, "topk": 128}, "FlashMLA", 64),
        ("lightning_indexer", "decode", {"b": 2, "len": 300, "heads": 64}, "DeepGEMM", None),
        ("lightning_indexer", "prefill", {"s": 5, "skv": 200, "heads": 64}, "DeepGEMM", None),
        (
            "gqa_forward",
            "bf16",
            {"b": 2, "sq": 64, "skv": 64, "heads": 8, "kv_heads": 4, "dim": 64, "causal": 1},
            "FlashAttention 3",
            None,
        ),
    ],
)
def test_the_builds_of_vllm_stand_in_for_peers(timed, monkeypatch, op, form, params, name, asked) -> None:
    builds = {
        "flash_mla": flash_mla(few=(8, 16, 32)),
        "deep_gemm": newer_deep_gemm(),
        "flash_attn_interface": SimpleNamespace(flash_attn_varlen_func=flash3),
    }
    for own, within in IN_VLLM.items():
        monkeypatch.setitem(sys.modules, own, None)
        monkeypatch.setitem(sys.modules, within, builds[own])
    monkeypatch.setattr(bench, "version", {"vllm": "0.33.0"}.get)
    point = grids.Point(op, form, params)
    fixture = grids.prepare(point)
    ours = fixture.calls(None, None)
    for call in ours:
        call()
    made_ = peers.offers(op)[name](point, fixture, ours)
    assert made_.version == "vLLM 0.33.0" and made_.apart() <= peers.MOST_APART
    if asked is not None:
        assert set(builds["flash_mla"].asked) == {asked}


def test_a_peer_that_neither_it_nor_vllm_has_is_named_with_both(monkeypatch) -> None:
    for name in ("deep_gemm", IN_VLLM["deep_gemm"]):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"deep_gemm.*, nor vllm\.third_party\.deep_gemm"):
        peers.own_or_of_vllm("deep_gemm", IN_VLLM["deep_gemm"])


INDEXER = (
    "from vllm.platforms import current_platform\nfrom vllm.config import get_current_vllm_config\n"
    "HERE = True\n"
)


def test_a_small_vllm_is_unpacked_from_a_wheel(tmp_path) -> None:
    wheel, folder = tmp_path / "vllm-1.2-py3-none-any.whl", tmp_path / "lean"
    command = [sys.executable, str(Path("scripts/lean_vllm.py").resolve()), str(wheel), str(folder)]
    files = {
        "vllm/_C_stable_libtorch.abi3.so": "", "vllm/__init__.py": "import everything",
        "vllm/engine/core.py": "",
        "vllm/model_executor/layers/indexer_topk.py": INDEXER,
        "vllm-1.2.dist-info/METADATA": "Name: vllm\nVersion: 1.2\n",
    }  # fmt: skip
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "3 files" in done.stdout, done.stderr
    assert not (folder / "vllm/engine").exists()
    said = (
        "import importlib.metadata as m, vllm.model_executor.layers.indexer_topk as x; "
        "print(x.HERE, m.version('vllm'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", said], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "1.2"]
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
    for damaged in (None, b"no wheel"):
        if damaged:
            wheel.write_bytes(damaged)
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        assert refused.returncode == 2 and str(wheel)[-10:] in refused.stderr.replace("\n", "")


def test_a_result_that_is_not_ours_is_far_from_it() -> None:
    scores = torch.randn(4, 50)
    right = scores.topk(8, dim=1).indices
    wrong = importlib.import_module("dsl_kernels_lab.timing.peers.topk_selector")._wrong
    assert wrong(right, scores, 8) == 0.0
    assert wrong(right.roll(1, 0), scores, 8) == 1.0 and wrong(right - 60, scores, 8) == 1.0
    assert (
        peers.apart(torch.ones(4), torch.ones(4)) == 0.0 and peers.apart(torch.zeros(4), torch.ones(4)) == 1.0
    )


def test_contenders_take_turns_and_one_that_cannot_be_captured_is_left_out(monkeypatch) -> None:
    order = []

    def fit(calls, stream):
        if calls[0]() == "bad":
            raise RuntimeError("capture ended\nin many lines")
        return calls[0](), 2

    def replay(graph, stream, count):
        order.append(graph)
        return [{"a": 10.0, "b": 20.0}[graph]] * count

    for name, value in (
        ("_fitting_graph", fit),
        ("_replayed", replay),
        ("_stream", lambda device: None),
        ("require_gpu", lambda: GPU),
    ):
        monkeypatch.setattr(bench, name, value)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    failed: dict[str, str] = {}
    times = bench.in_turns(
        {"a": [lambda: "a"], "x": [lambda: "bad"], "b": [lambda: "b"]}, rounds=3, failed=failed
    )
    assert times == {"a": [5.0] * 3, "b": [10.0] * 3} and order == ["a", "b", "b", "a", "a", "b"]
    assert failed == {"x": "RuntimeError: capture ended"}
    with pytest.raises(RuntimeError):
        bench.in_turns({"x": [lambda: "bad"]})
    with pytest.raises(InvalidArgumentError, match="at least one call"):
        bench.in_turns({"a": []})


def test_results_need_pydantic_to_be_read(tmp_path, monkeypatch) -> None:
    path = tmp_path / "gpu.json"
    results.write(path, made())
    monkeypatch.setitem(sys.modules, "pydantic", None)
    with pytest.raises(ToolchainError, match="pydantic"):
        results.read(path)


def test_why_a_peer_is_missing_is_kept_from_run_to_run(tmp_path, stub) -> None:
    path = tmp_path / "gpu.json"
    stub.absent = {"FlashMLA": "No module named 'flash_mla'"}
    recording.record(path, CHOSEN[:1])
    stub.absent = {"DeepGEMM": "No module named 'deep_gemm'"}
    assert set(recording.record(path, CHOSEN).results.absent) == {"FlashMLA", "DeepGEMM"}


def test_what_a_run_writes_does_not_change_its_commit(tmp_path, monkeypatch) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    (tmp_path / "results").mkdir()
    kept, source = tmp_path / "results" / "gpu.json", tmp_path / "kernel.py"
    for path in (kept, source):
        path.write_text("one")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    monkeypatch.setattr(bench, "checkout", lambda: tmp_path)
    clean = bench.commit()
    kept.write_text("two")
    assert clean and not clean.endswith("+") and bench.commit() == clean
    source.write_text("two")
    assert bench.commit() == f"{clean}+"
