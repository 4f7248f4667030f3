"""The pytest fixture, exhaustive exploration and the API's own errors."""

import numpy as np
import pytest

from ptx_emulator import (
    EmulatorError,
    Interleaving,
    LaunchError,
    PtxSyntaxError,
    UnsupportedInstruction,
    explore,
    interleavings,
    launch,
    launch_each,
)

from .kernels import REDUCE, elementwise, run_pipeline, simple

pytest_plugins = ["pytester"]

SCALE = simple(
    "mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; ld.param.u64 %d2, [p0]; add.u64 %d2, %d2, %d1;\n"
    "ld.global.f32 %f1, [%d2]; add.f32 %f1, %f1, %f1; st.global.f32 [%d2], %f1;"
)


def test_fixture_restores_inputs_and_names_the_schedule(pytester):
    pytester.makeconftest('pytest_plugins = ["ptx_emulator.pytest_plugin"]')
    pytester.makepyfile(
        f"""
import numpy as np
PTX = {SCALE!r}
def test_right(emulate):
    x = np.arange(32, dtype=np.float32)
    reports = emulate(PTX, 1, 32, [x], verify=lambda: np.testing.assert_array_equal(x, 2 * np.arange(32)))
    assert len(reports) == 5
def test_wrong(emulate):
    x = np.arange(32, dtype=np.float32)
    emulate(PTX, 1, 32, [x], verify=lambda: np.testing.assert_array_equal(x, np.arange(32)))
"""
    )
    result = pytester.runpytest("-p", "no:cacheprovider", "--emulator-interleavings", "5")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*under Interleaving('lockstep')*"])


# Two warps add to one word without an atomic: some interleaving loses an update.
LOST_UPDATE = simple(
    """
mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 31; setp.ne.u32 %p1, %r2, 0; @%p1 bra DONE;
ld.param.u64 %d1, [p0];
ld.relaxed.gpu.global.u32 %r3, [%d1];
add.u32 %r3, %r3, 1;
st.relaxed.gpu.global.u32 [%d1], %r3;
DONE:
"""
)


# The first thread of every warp stores to one word: the order decides which value stays.
LAST = simple(
    """
mov.u32 %r1, %tid.x; and.b32 %r2, %r1, 31; setp.ne.u32 %p1, %r2, 0; @%p1 bra DONE;
ld.param.u64 %d1, [p0];
st.relaxed.gpu.global.u32 [%d1], %r1;
DONE:
"""
)


def told(report):
    return str(report.interleaving), report.instructions, report.pipes, list(map(str, report.findings))


@pytest.mark.parametrize("jobs", [1, 3, None])
def test_interleavings_at_once_give_what_they_give_one_after_the_other(jobs):
    chosen = list(interleavings(24))
    alone, together = [], []
    for each in chosen:
        x = np.zeros(1, np.uint32)
        report = launch(LAST, 1, 128, [x], check="report", interleaving=each)
        alone.append((told(report), int(x[0])))
    x = np.zeros(1, np.uint32)
    for report in launch_each(LAST, 1, 128, [x], interleavings=iter(chosen), jobs=jobs, check="report"):
        together.append((told(report), int(x[0])))
    assert together == alone
    assert len({value for _, value in alone}) > 1


def test_of_interleavings_at_once_the_first_in_order_that_fails_is_raised():
    kernel = simple("ld.param.u64 %d1, [p0]; ld.global.u32 %r1, [%d1]; st.global.u32 [%d1+4], %r1;")
    x = np.array([7, 0], np.uint32)
    seen = []
    chosen = [Interleaving.random(k) for k in range(3)]
    with pytest.raises(EmulatorError, match=r"out-of-bounds-global") as error:
        for report in launch_each(kernel, 1, 1, [x[:1]], interleavings=chosen, jobs=3):
            seen.append(report)
    assert not seen and error.value.report.interleaving == chosen[0]
    assert list(x) == [7, 0]
    reports = launch_each(kernel, 1, 1, [x], interleavings=chosen, jobs=2)
    assert next(reports).interleaving == chosen[0] and list(x) == [7, 7]
    reports.close()


@pytest.mark.parametrize("jobs", [0, -1, 1.5])
def test_jobs_that_are_no_count_are_refused(jobs):
    with pytest.raises(LaunchError, match="jobs"):
        launch_each(LOST_UPDATE, 1, 32, [np.zeros(1, np.uint32)], interleavings=[], jobs=jobs)


def test_exploration_finds_every_outcome():
    outcomes = []

    def run(interleaving):
        x = np.zeros(1, np.uint32)
        report = launch(LOST_UPDATE, 1, 64, [x], interleaving=interleaving)
        outcomes.append(int(x[0]))
        return report

    count = sum(1 for _ in explore(run, limit=500))
    assert set(outcomes) == {1, 2}
    assert count < 500, "the exploration must end by itself"
    atomic = LOST_UPDATE.replace("ld.relaxed.gpu.global.u32 %r3, [%d1];\nadd.u32 %r3, %r3, "
                                 "1;\nst.relaxed.gpu.global.u32 [%d1], %r3;",
                                 "red.relaxed.gpu.global.add.u32 [%d1], 1;")  # fmt: skip
    outcomes.clear()

    def run_atomic(interleaving):
        x = np.zeros(1, np.uint32)
        report = launch(atomic, 1, 64, [x], interleaving=interleaving)
        outcomes.append(int(x[0]))
        return report

    assert len(list(explore(run_atomic, limit=500))) < 500
    assert set(outcomes) == {2}


def test_a_plain_update_is_a_race():
    plain = LOST_UPDATE.replace("ld.relaxed.gpu", "ld").replace("st.relaxed.gpu", "st")
    with pytest.raises(EmulatorError, match="race") as e:
        launch(plain, 1, 64, [np.zeros(1, np.uint32)])
    assert e.value.finding.code == "race" and e.value.finding.other is not None


def test_a_found_schedule_replays_from_its_choices():
    report = next(
        iter(explore(lambda s: launch(LOST_UPDATE, 1, 64, [np.zeros(1, np.uint32)], interleaving=s), limit=1))
    )
    again = launch(
        LOST_UPDATE,
        1,
        64,
        [np.zeros(1, np.uint32)],
        interleaving=Interleaving("replay", choices=tuple(c for c, _ in report.choices)),
    )
    assert again.choices == report.choices


def test_unknown_instructions_are_named():
    with pytest.raises(
        UnsupportedInstruction, match=r"line \d+: opcode 'frobnicate.b32' is not supported; supported are"
    ):
        launch(elementwise("frobnicate.b32 %r20, %r10;", 1), 1, 32, [np.zeros(32, np.uint32)] * 2)
    with pytest.raises(UnsupportedInstruction, match="unsupported modifier .wow"):
        launch(elementwise("add.wow.u32 %r20, %r10, %r10;", 1), 1, 32, [np.zeros(32, np.uint32)] * 2)
    with pytest.raises(PtxSyntaxError, match="unknown register '%q1'"):
        launch(elementwise("add.u32 %r20, %r10, %q1;", 1), 1, 32, [np.zeros(32, np.uint32)] * 2)


def test_launch_arguments_are_checked():
    x, out = np.zeros(256, np.float32), np.zeros(1, np.float32)
    for change, why in [
        ({"args": [x]}, "2 parameters"),
        ({"block": 128}, "reqntid"),
        ({"block": 2048}, "1024"),
        ({"grid": 0}, "positive"),
        ({"cluster": 2}, "multiple of the cluster"),
        ({"dynamic_smem": 300000}, "shared memory"),
        ({"args": [x, "nothing"]}, "cannot be passed"),
        ({"entry": "other"}, "no entry"),
    ]:
        kw = {"grid": 1, "block": 256, "args": [x, out], **change}
        with pytest.raises(LaunchError, match=why):
            launch(REDUCE, kw.pop("grid"), kw.pop("block"), kw.pop("args"), **kw)
    with pytest.raises(ValueError, match="kind"):
        Interleaving("sometimes")


def test_read_only_arrays_stay_untouched():
    x = np.arange(32, dtype=np.float32)
    x.flags.writeable = False
    with pytest.raises(EmulatorError, match="write-to-read-only"):
        launch(SCALE, 1, 32, [x])


def test_roles_and_names_appear_in_messages():
    with pytest.raises(EmulatorError, match=r"warp 1 \(all\).*'x'"):
        launch(
            SCALE,
            1,
            64,
            [np.zeros(32, np.float32)],
            roles={"all": [0, 1]},
            names=["x"],
            interleaving=Interleaving.adversarial(0, slow_warp=0),
        )


def test_deadlock_report_names_barrier_phase_and_who_is_missing():
    from .kernels import PIPELINE

    broken = PIPELINE.replace(
        "mbarrier.arrive.shared::cta.b64 _, [%r11+16];", "@%p15 mbarrier.arrive.shared::cta.b64 _, [%r11+16];"
    )
    broken = broken.replace(
        "mov.u32 %r5, 0;\nld.param", "mov.u32 %r5, 0;\nsetp.lt.u32 %p15, %r1, 64;\nld.param"
    )
    report, _ = run_pipeline(broken, Interleaving.lockstep(), "report")
    (f,) = report.errors
    assert f.code == "deadlock"
    for part in (
        "waits for the mbarrier at shared offset",
        "parity",
        "pending 32 of 64",
        "arrived so far: warp 1 at PTX line",
    ):
        assert part in f.message, f.message


def test_counters():
    x, out = np.arange(256, dtype=np.float32), np.zeros(1, np.float32)
    r = launch(REDUCE, 1, 256, [x, out])
    assert r.stats["global_read"] == 1024 and r.stats["global_written"] == 4
    assert r.stats["shared_written"] == 1024 + 4 * 255
    assert r.warps[0].ops["bar"] == 9 and sum(w.barrier_waits for w in r.warps) > 0
    assert r.pipes["lsu"] > 0 and r.instructions == sum(w.instructions for w in r.warps)


def test_bank_conflicts_are_counted():
    def conflicts(stride):
        ptx = simple(
            f".shared .align 16 .b8 b[8192];\nmov.u32 %r1, %tid.x; mov.u32 %r2, b; mad.lo.u32 %r3, %r1, "
            f"{stride}, %r2; st.shared.u32 [%r3], %r1;",
            "",
        )
        return launch(ptx, 1, 32).stats["bank_conflicts"]

    assert [conflicts(s) for s in (4, 8, 16, 128)] == [0, 1, 3, 31]


def test_schedules_are_distinct_and_reproducible():
    first = [str(s) for s in interleavings(20)]
    assert len(set(first)) == 20 and first == [str(s) for s in interleavings(20)]


def test_local_memory():
    ptx = simple(
        ".local .align 8 .b8 depot[64];\nmov.u32 %r1, %tid.x; mov.u64 %d1, depot; cvta.local.u64 %d2, %d1;\n"
        "mul.wide.u32 %d3, %r1, 4; and.b64 %d4, %d3, 60; add.u64 %d5, %d2, %d4; st.u32 [%d5], %r1; ld.u32 "
        "%r2, [%d5];\n"
        "ld.param.u64 %d6, [p0]; add.u64 %d6, %d6, %d3; st.global.u32 [%d6], %r2;"
    )
    out = np.zeros(32, np.uint32)
    launch(ptx, 1, 32, [out])
    assert (out == np.arange(32)).all()


def test_module_constants():
    ptx = simple(
        "mov.u32 %r1, %tid.x; and.b32 %r1, %r1, 3; mul.wide.u32 %d1, %r1, 4; mov.u64 %d2, table; add.u64 "
        "%d2, %d2, %d1; ld.const.u32 %r2, [%d2];\n"
        "mov.u32 %r3, %tid.x; mul.wide.u32 %d3, %r3, 4; ld.param.u64 %d4, [p0]; add.u64 %d4, %d4, %d3; "
        "st.global.u32 [%d4], %r2;",
        head=".const .align 4 .b32 table[4] = {10, 20, 30, 40};\n",
    )
    out = np.zeros(8, np.uint32)
    launch(ptx, 1, 8, [out])
    assert (out == [10, 20, 30, 40] * 2).all()


def test_signed_loads_fill_wider_registers():
    ptx = simple(
        "mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4; ld.param.u64 %d2, [p0]; add.u64 %d2, %d2, %d1;\n"
        "ld.global.s32 %d3, [%d2]; ld.global.u32 %d4, [%d2]; ld.global.s8 %r2, [%d2]; cvt.s64.s32 %d5, %r2;\n"
        "mul.wide.u32 %d6, %r1, 24; ld.param.u64 %d7, [p1]; add.u64 %d7, %d7, %d6;\n"
        "st.global.u64 [%d7], %d3; st.global.u64 [%d7+8], %d4; st.global.u64 [%d7+16], %d5;",
        ".param .u64 p0, .param .u64 p1",
    )
    x = np.array([-1, 5, -(1 << 31), 0x7FFFFF80], np.int32)
    out = np.zeros((4, 3), np.int64)
    launch(ptx, 1, 4, [x, out])
    assert (
        (out[:, 0] == x).all()
        and (out[:, 1] == x.view(np.uint32)).all()
        and (out[:, 2] == x.astype(np.int8)).all()
    )


REGISTERS = simple(
    "mov.u32 %r1, %tid.x; setp.ge.u32 %p1, %r1, 128; @%p1 bra GIVE; setmaxnreg.inc.sync.aligned.u32 @UP@; "
    "bra OUT;\n"
    "GIVE: setmaxnreg.dec.sync.aligned.u32 40;\nOUT:",
    "",
    threads=256,
)


def test_setmaxnreg_waits_for_the_pool():
    for s in interleavings(6):
        launch(REGISTERS.replace("@UP@", "152"), 1, 256, registers_per_thread=96, interleaving=s)
        with pytest.raises(EmulatorError, match=r"(?s)deadlock.*setmaxnreg.inc for 2048 registers"):
            launch(REGISTERS.replace("@UP@", "160"), 1, 256, registers_per_thread=96, interleaving=s)
    launch(REGISTERS.replace("@UP@", "240"), 1, 256)  # without the launch's figure there is no pool to check
    with pytest.raises(EmulatorError, match="setmaxnreg-direction"):
        launch(REGISTERS.replace("@UP@", "48"), 1, 256, registers_per_thread=96)


# A persistent CTA takes over the rest of the grid, one CTA at a time.
TAKE_OVER = simple(
    """
.reg .b128 %q;
.shared .align 16 .b8 answer[16];
.shared .align 8 .b8 bar[8];
mov.u32 %r1, %ctaid.x; mov.u32 %r2, answer; mov.u32 %r3, bar; mov.u32 %r4, 0; mov.u32 %r9, %ctaid.x;
mbarrier.init.shared::cta.b64 [%r3], 1;
fence.mbarrier_init.release.cluster;
AGAIN:
mul.wide.u32 %d1, %r1, 4; ld.param.u64 %d2, [p0]; add.u64 %d2, %d2, %d1; add.u32 %r10, %r9, 1; \
st.global.u32 [%d2], %r10;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 16;
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r2], [%r3];
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r3], %r4;
@!%p1 bra WAIT;
xor.b32 %r4, %r4, 1;
ld.shared.v2.b64 {%d3, %d4}, [%r2];
fence.proxy.async.shared::cta;
mov.b128 %q, {%d3, %d4};
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %q;
@!%p2 bra DONE;
clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1, %r5, %r6, %r7}, %q;
bra AGAIN;
DONE:
""",
    target="sm_100a",
    threads=1,
)


def test_cluster_launch_control_runs_every_cta_once():
    for s in [*interleavings(6), Interleaving.random(9, resident=3)]:
        out = np.zeros(12, np.uint32)
        launch(TAKE_OVER, 12, 1, [out], interleaving=s)
        assert (out > 0).all()
        assert len(set(out.tolist())) <= s.resident + 1
