"""Explanations: both accesses with their lines, the missing edge, a run that replays, and the page."""

import html.parser
import re

import numpy as np
import pytest

from ptx_emulator import EmulatorError, Interleaving, LaunchError, explain, interleavings, launch
from ptx_emulator.explain_page import html as page

from .kernels import simple
from .programs import RACE
from .test_script import emulate

FENCE = simple(
    ".shared .align 128 .b8 s[256];\nmov.u32 %r1, %tid.x; shl.b32 %r2, %r1, 2; mov.u32 %r3, s; "
    "add.u32 %r4, %r3, %r2; st.shared.u32 [%r4], %r1;\n"
    "bar.sync 0; setp.ne.u32 %p1, %r1, 0; @%p1 bra DONE;\nld.param.u64 %d1, [p0]; "
    "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r3], 256;\n"
    "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\nDONE:"
)
STUCK = simple(
    "setp.lt.u32 %p1, %tid.x, 32; @%p1 bra DONE;\nbar.sync 1, 64;\nDONE:".replace(
        "setp.lt.u32 %p1, %tid.x", "mov.u32 %r1, %tid.x; setp.lt.u32 %p1, %r1"
    )
)


def runner(ptx, threads=64, words=64):
    def run(interleaving, **options):
        x = np.zeros(words, np.uint32)
        return launch(ptx, 1, threads, [x], interleaving=interleaving, **{"check": "report", **options})

    return run


def line_of(ptx, text):
    return next(i for i, line in enumerate(ptx.splitlines(), 1) if text in line)


def test_a_race_names_both_accesses_and_what_each_side_did():
    run = runner(RACE)
    x = explain(run, run(Interleaving.random(3)), RACE)
    assert x.finding.code == "race" and len(x.accesses) == 2
    first, second = x.accesses
    assert {first.where.ptx_line, second.where.ptx_line} == {
        line_of(RACE, "ld.shared.u32"),
        line_of(RACE, "@!%p1 st.shared.u32 [%r5]"),
    }
    assert first.who != second.who and first.who in x.edge and second.who in x.edge
    assert not x.released
    assert [p.where.text for p in x.acquired] in ([], ["bar.sync 0"])
    text = str(x)
    for part in ("missing edge", "released by: nothing", str(x.interleaving), "shortest run"):
        assert part in text


def test_the_run_is_the_shortest_that_was_tried_and_replays():
    run = runner(RACE)
    long = max(
        (r for s in interleavings(30) if (r := _stopped(run, s)) is not None), key=lambda r: r.instructions
    )
    x = explain(run, run(long.interleaving), RACE)
    assert x.instructions <= long.instructions
    again = _stopped(run, x.interleaving)
    assert again.instructions == x.instructions and str(again.errors[0]) == str(x.finding)


def _stopped(run, interleaving):
    try:
        run(interleaving, check="raise")
    except EmulatorError as error:
        return error.report
    return None


def test_the_events_of_the_two_warps_end_with_the_finding():
    run = runner(RACE)
    x = explain(run, run(Interleaving.lockstep()), RACE)
    assert 0 <= x.earlier_event < x.later_event == len(x.events) - 1
    assert x.events[x.earlier_event].where.ptx_line == x.finding.other.ptx_line
    assert x.events[x.later_event].where.ptx_line == x.finding.where.ptx_line
    assert {e.warp for e in x.events} == {0, 1}


@pytest.mark.parametrize(
    ("ptx", "code", "edge"),
    [(FENCE, "missing-proxy-fence", "fence.proxy.async"), (STUCK, "deadlock", "an arrival that the barrier")],
)
def test_the_edge_is_that_of_the_check(ptx, code, edge):
    run = runner(ptx)
    report = run(Interleaving.lockstep())
    assert report.errors[0].code == code
    assert edge in explain(run, report, ptx).edge


def test_a_copy_in_flight_is_waited_for():
    ptx = FENCE.replace("bar.sync 0;", "fence.proxy.async.shared::cta; bar.sync 0;").replace(
        "cp.async.bulk.wait_group 0;", "st.shared.u32 [%r3], %r1;"
    )
    run = runner(ptx)
    late = explain(run, run(Interleaving.adversarial(0)), ptx, tries=0)
    assert late.finding.code == "race" and "is still in flight at" in late.edge
    early = explain(run, run(Interleaving.adversarial(0, None, "early")), ptx, tries=0)
    assert early.finding.code == "race" and "may still be in flight at" in early.edge


def test_a_report_without_an_error_is_refused():
    run = runner(simple("mov.u32 %r1, %tid.x;"))
    with pytest.raises(LaunchError, match="no error"):
        explain(run, run(Interleaving.lockstep()), simple(""))
    broken = runner(RACE)
    with pytest.raises(LaunchError, match="start it from the same memory"):
        explain(run, broken(Interleaving.lockstep()), RACE)


def test_events_are_kept_up_to_the_number_asked_for():
    run = runner(simple("mov.u32 %r1, %tid.x; add.u32 %r1, %r1, 1; add.u32 %r1, %r1, 2;"))
    assert run(Interleaving.lockstep()).trace == []
    every = run(Interleaving.lockstep(), trace=1000).trace
    assert len(every) == run(Interleaving.lockstep()).instructions
    assert run(Interleaving.lockstep(), trace=3).trace == every[-3:]
    with pytest.raises(LaunchError, match="trace"):
        run(Interleaving.lockstep(), trace=-1)


class _Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.cells = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag != "meta" and tag != "br":
            self.open.append(tag)
        if tag == "td":
            self.cells.append(dict(attrs).get("class", ""))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_shows_two_time_lines_with_the_accesses():
    run = runner(RACE)
    x = explain(run, run(Interleaving.lockstep()), RACE)
    text = page(x, "a <title>")
    parsed = _Page(text)
    assert not parsed.open and "script" not in parsed.tags and "a &lt;title&gt;" in text
    assert parsed.cells.count("earlier") == parsed.cells.count("later") == 1
    assert (
        "warp 0 of CTA 0" in text
        and "warp 1 of CTA 0" in text
        and str(x.interleaving).replace("'", "&#x27;") in text
    )


@pytest.mark.compile
def test_the_command_writes_pages_with_the_lines_of_the_dsls_source(tmp_path):
    from .programs import CUTE_TMA

    wait = "    cute.arch.mbarrier_wait(barrier, 0)\n"
    (tmp_path / "q.py").write_text(CUTE_TMA.replace(wait, ""))
    done = emulate("--interleavings", "3", "--explain", "pages", "--script", "q.py", cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    text = (tmp_path / "pages" / "launch_0_race.txt").read_text()
    assert "cute.copy(load, ga, sa, tma_bar_ptr=barrier)" in text and "cute.copy(store, sb, gb)" in text
    assert (
        "may still be in flight" in text
        and "<table>" in (tmp_path / "pages" / "launch_0_race.html").read_text()
    )
    assert "explained in" in done.stdout


@pytest.mark.compile
def test_a_variants_finding_is_explained(tmp_path, monkeypatch):
    """A variant without its first CTA barrier: what `emulate VARIANT --explain` writes about it."""
    import dsl_kernels.executors as executors
    from dsl_kernels import variants
    from dsl_kernels_lab.cli import _script
    from dsl_kernels_lab.cli import emulate as command
    from dsl_kernels_lab.verification import trial

    class Broken(executors.Emulator):
        def __init__(self, *args, **kwargs):
            super().__init__(
                *args,
                **kwargs,
                edit=lambda ptx: re.sub(r"\n\s*(bar|barrier)\.sync[^;]*;", "\n;", ptx, count=1),
            )

    monkeypatch.setattr(executors, "Emulator", Broken)
    variant = next(v for v in variants.variants() if v.op == "topk_selector" and v.backend == "cutedsl")
    (workload, *_) = trial.workloads(variant, "tiny")
    row, _ = command._attempt(
        variant, workload, {}, Interleaving.lockstep(), trial.cached_example(variant.op, workload)
    )
    assert not row["ok"] and row["report"] is not None
    _script.explain_variant(variant, [(workload, {})], [row], tmp_path)
    (made,) = tmp_path.glob("*.html")
    assert "missing edge" in made.read_text() and str(row["report"].errors[0].code) in made.read_text()
