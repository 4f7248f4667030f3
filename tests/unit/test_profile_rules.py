"""Rules, bounds, ceilings and pages: what a diagnosis guarantees."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dsl_kernels import measured, variants
from dsl_kernels.cli import app
from dsl_kernels.errors import ArtifactError
from dsl_kernels_lab import profile
from dsl_kernels_lab.profile import (
    Fingerprint,
    Issue,
    NcuRule,
    Occupancy,
    Stall,
    Traffic,
    Workload,
    recorded,
    rules,
)
from dsl_kernels_lab.timing.ceilings import Ceilings, Point, path_of, read_ceilings

GATHER = Workload(
    "sparse_mla", "bf16", read_bytes=151e6, row_bytes=1152, footprint_bytes=302e6, order="random"
)
CEILINGS = Ceilings(
    "NVIDIA H200", 4600.0, 7000.0,
    (Point(512, 1 << 28, "random", 3000.0, "cp_async", 131072),
     Point(2048, 1 << 28, "random", 4200.0, "cp_async", 131072)),
)  # fmt: skip


def gathering(us: float, **more) -> Fingerprint:
    return Fingerprint(
        "gather", "csv", "sm_90", us=us, workload=GATHER, stalls={"long_scoreboard": Stall(0.8)}, **more
    )


def test_a_ceiling_lies_between_its_neighbours() -> None:
    between = CEILINGS.gather_gbps(1024, 1 << 28)
    assert between == pytest.approx(3600.0)
    assert CEILINGS.gather_gbps(16, 1 << 20) == 3000.0 and CEILINGS.gather_gbps(9000, 1e12) == 4200.0
    assert replace(CEILINGS, points=()).gather_gbps(64, 1.0) is None


def test_the_same_gather_is_healthy_at_its_ceiling_and_not_below_it() -> None:
    rate = CEILINGS.gather_gbps(1152, 302e6)
    at = profile.diagnose(gathering(151e6 / (0.95 * rate) / 1e3), CEILINGS)
    below = profile.diagnose(gathering(151e6 / (0.5 * rate) / 1e3), CEILINGS)
    assert (at.top.cause, at.top.healthy) == ("gather_at_ceiling", True)
    assert at.top.bound == pytest.approx(1 / 0.95)
    assert (below.top.cause, below.top.healthy) == ("gather_below_ceiling", False)
    assert below.top.bound == pytest.approx(2.0)


def test_occupancy_is_ruled_out_where_the_profiler_suggests_it() -> None:
    warned = gathering(
        70.0, occupancy=Occupancy(0.12), rules=(NcuRule("Occupancy", "limited by shared memory", "OPT", 0.6),)
    )
    assert "bytes in flight" in profile.diagnose(warned, CEILINGS).refuted["occupancy"]


def test_levers_are_knobs_that_the_variant_has_with_the_values_that_are_built() -> None:
    variant = next(
        v for v in variants.variants("sparse_mla") if v.arch == "sm_90a" and v.backend == "tilelang"
    )
    work = replace(GATHER, variant=variant.id)
    top = profile.diagnose(replace(gathering(70.0), workload=work), CEILINGS).top
    assert top.knobs and set(top.knobs) <= set(variant.knobs)
    assert f"now {variant.knobs['cluster']}" in top.knobs["cluster"]
    by_name = replace(gathering(70.0), kernel=f"{variant.id}_kernel", workload=replace(GATHER, op=""))
    assert profile.diagnose(by_name, CEILINGS).top.knobs == top.knobs
    for op, other in (("", ""), ("sparse_mla", "triton")):
        foreign = replace(gathering(70.0), workload=replace(GATHER, op=op, variant=other))
        assert not profile.diagnose(foreign, CEILINGS).top.knobs


@pytest.mark.parametrize(
    ("found", "cause", "bound"),
    [
        # Half of the shared memory's time is conflicts; the other half remains.
        (Fingerprint("k", "csv", pipes={"shared": 0.9, "alu": 0.3}, rates={"bank_conflicts": 0.5}),
         "bank_conflicts", 1 / 0.45),
        # A quarter of the lanes is active: the instructions could shrink to a quarter, the work of L2 could
        # not.
        (Fingerprint("k", "csv", issue=Issue(issued=0.9, threads=8.0), sol={"l2": 0.4}), "divergence", 2.5),
        # A barrier costs three quarters, but the tensor cores are busy half of the time.
        (Fingerprint("k", "csv", issue=Issue(issued=0.1), pipes={"tensor": 0.5},
                     stalls={"barrier": Stall(0.75)}), "barrier", 2.0),
        (Fingerprint("k", "csv", sol={"dram": 0.9}), "dram_bound", 1 / 0.9),
        (Fingerprint("k", "csv", occupancy=Occupancy(waves=0.25), sol={"dram": 0.1}), "small_grid", 4.0),
    ],
)  # fmt: skip
def test_no_bound_promises_more_than_the_busiest_unit_leaves(found, cause, bound) -> None:
    top = profile.diagnose(found).top
    assert top.cause == cause
    assert top.bound == pytest.approx(bound)


def test_waste_that_nothing_waits_for_is_no_cause() -> None:
    busy = Fingerprint(
        "k",
        "csv",
        issue=Issue(issued=0.95, threads=32.0),
        sol={"dram": 0.01},
        stalls={"not_selected": Stall(0.7)},
    )
    wasteful = replace(busy, rates={"atomics": 0.9, "l2_hit": 0.95}, spills=profile.Spills(10, 10, 0.9))
    assert profile.diagnose(wasteful).top.cause == "issue_bound"
    waiting = replace(wasteful, stalls={"lg_throttle": Stall(0.6)}, issue=Issue(issued=0.05))
    assert {finding.cause for finding in profile.diagnose(waiting).findings} >= {"spills", "atomics"}


def test_a_unit_at_its_limit_comes_before_what_waits_for_it() -> None:
    fingerprint = Fingerprint(
        "k", "csv", sol={"dram": 0.92}, stalls={"long_scoreboard": Stall(0.85)}, issue=Issue(issued=0.1)
    )
    assert [finding.cause for finding in profile.diagnose(fingerprint).findings] == ["dram_bound"]


def test_every_rule_can_be_told_and_names_knobs_that_some_op_has() -> None:
    known = {name for variant in variants.variants() for name in variant.knobs}
    assert len({rule.cause for rule in rules.RULES}) == len(rules.RULES) >= 16
    for rule in rules.RULES:
        assert rule.kind in rules.KINDS
        assert set(rule.knobs) <= known, rule.cause
        assert rule.headline.format_map(rules._Known({})) and rule.lever.format_map(rules._Known({}))


def test_a_page_has_at_most_sixty_lines_and_says_what_was_not_read() -> None:
    everything = gathering(
        70.0,
        sol=dict.fromkeys(("sm", "memory", "l1", "l2", "dram"), 0.3),
        pipes=dict.fromkeys(rules.UNITS, 0.3),
        traffic={level: Traffic(1e8, 9e7, 0.9) for level in ("l1", "l2", "dram")},
        occupancy=Occupancy(0.1, 0.1, "shared memory", 0.3, 168, 1 << 17, 1),
        missing=tuple(f"counter {i}" for i in range(90)),
    )
    diagnosis = profile.diagnose(
        replace(
            everything, stalls={name: Stall(0.4, 3.0) for name in ("barrier", "wait", "long_scoreboard")}
        ),
        CEILINGS,
    )
    page = profile.markdown(diagnosis)
    assert len(page.splitlines()) <= 60
    assert "Not read: counter 0" in page and "86 more" in page
    assert profile.text(diagnosis).count("**") == 0


def test_records_keep_what_they_were(tmp_path: Path) -> None:
    pytest.importorskip("pydantic")
    diagnosis = profile.diagnose(gathering(70.0), CEILINGS)
    assert profile.load(profile.Diagnosis, profile.dump(diagnosis)) == diagnosis
    assert profile.schema(profile.Diagnosis)["title"] == "Diagnosis"
    with pytest.raises(ArtifactError, match="us"):
        profile.load(profile.Fingerprint, {"kernel": "k", "source": "csv", "us": "soon"})
    path_of("NVIDIA H200", tmp_path).write_text(CEILINGS.to_json())
    assert read_ceilings("NVIDIA H200", tmp_path) == CEILINGS
    assert read_ceilings("NVIDIA B200", tmp_path) is None
    path_of("NVIDIA H200", tmp_path).write_text('{"schema": 1}')
    with pytest.raises(ArtifactError):
        read_ceilings("NVIDIA H200", tmp_path)


def test_a_diff_names_both_and_keeps_what_one_of_them_lacks() -> None:
    a, b = gathering(70.0, sol={"dram": 0.4}), replace(gathering(35.0), arch="sm_100", label="ours")
    difference = profile.diff(a, b)
    rows = {row.figure: row for row in difference.rows}
    assert rows["time (us)"].ratio == 0.5
    assert (rows["dram of peak"].a, rows["dram of peak"].b) == (0.4, None)
    assert difference.b == "ours" and "not the same set" in difference.notes[0]


def test_explain_shows_what_the_tuned_winner_looked_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = next(
        e for e in measured.tuned_table("NVIDIA H200") if e["op"] == "sparse_mla" and e["form"] == "bf16"
    )
    seen = recorded.summary(profile.diagnose(gathering(70.0, sol={"dram": 0.41}), CEILINGS))
    kept = {**{name: entry[name] for name in ("op", "form", "bucket", "variant")}, **seen}
    recorded.write("NVIDIA H200", [kept], {}, tmp_path)
    monkeypatch.setattr(recorded, "RECORDS", tmp_path)
    sizes = ",".join(f"{name}={value}" for name, value in entry["bucket"].items())
    words = ["explain", "sparse_mla", "--gpu", "NVIDIA H200", "--dim", f"{sizes},n=262144"]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "200"})
    assert "profiled: 70.00 us" in done.stdout and "DRAM 41%" in done.stdout, done.output
    report = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert report["fingerprint"]["stall"] == "long_scoreboard"
