"""What a launch reports as not reached: lines, directions of branches, phases, rings and waits."""

import pickle

import numpy as np
import pytest

from ptx_emulator import Coverage, EmulatorError, LaunchError, interleavings, launch

from .kernels import PROGRAMS, simple

# A ring of SLOTS slots with full and empty barriers: one thread fills N slots, the other warp's first thread
# reads them.
SLOTS = 3
RING = (
    simple(
        """
.shared .align 8 .b8 full[24];
.shared .align 8 .b8 empty[24];
.shared .align 4 .b8 slot[12];
mov.u32 %r1, %tid.x; mov.u32 %r2, full; mov.u32 %r3, empty; mov.u32 %r4, slot; ld.param.u64 %d1, [p0]; \
ld.param.u32 %r5, [n];
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
.loc 1 10 0
mbarrier.init.shared.b64 [%r2], 1; mbarrier.init.shared.b64 [%r2+8], 1; mbarrier.init.shared.b64 [%r2+16], 1;
.loc 1 11 0
mbarrier.init.shared.b64 [%r3], 1; mbarrier.init.shared.b64 [%r3+8], 1; mbarrier.init.shared.b64 [%r3+16], 1;
READY:
bar.sync 0;
mov.u32 %r6, 0; mov.u32 %r20, 0;
setp.eq.u32 %p2, %r1, 32;
@%p2 bra READ;
@%p1 bra DONE;
FILL:
.loc 1 20 0
setp.ge.u32 %p3, %r6, %r5;
@%p3 bra DONE;
.loc 1 21 0
rem.u32 %r7, %r6, 3; div.u32 %r8, %r6, 3; and.b32 %r9, %r8, 1; xor.b32 %r9, %r9, 1;
mad.lo.u32 %r10, %r7, 8, %r3; mad.lo.u32 %r11, %r7, 8, %r2; mad.lo.u32 %r12, %r7, 4, %r4;
EMPTY:
.loc 1 22 0
mbarrier.try_wait.parity.shared.b64 %p4, [%r10], %r9;
@!%p4 bra EMPTY;
st.shared.u32 [%r12], %r6;
.loc 2 5 3, function_name $L__info_string0, inlined_at 1 23 7
mbarrier.arrive.shared.b64 _, [%r11];
.loc 1 24 0
setp.lt.u32 %p6, %r6, 1000;
@%p6 bra NEXT;
.loc 1 25 0
add.u32 %r6, %r6, 1000;
NEXT:
.loc 1 26 0
add.u32 %r6, %r6, 1;
bra FILL;
READ:
.loc 1 30 0
setp.ge.u32 %p3, %r6, %r5;
@%p3 bra STORE;
rem.u32 %r7, %r6, 3; div.u32 %r8, %r6, 3; and.b32 %r9, %r8, 1;
mad.lo.u32 %r10, %r7, 8, %r3; mad.lo.u32 %r11, %r7, 8, %r2; mad.lo.u32 %r12, %r7, 4, %r4;
FULL:
.loc 1 31 0
mbarrier.try_wait.parity.shared.b64 %p4, [%r11], %r9;
@!%p4 bra FULL;
ld.shared.u32 %r13, [%r12]; add.u32 %r20, %r20, %r13;
mbarrier.arrive.shared.b64 _, [%r10];
add.u32 %r6, %r6, 1;
bra READ;
STORE:
.loc 1 40 0
st.global.u32 [%d1], %r20;
DONE:
""",
        ".param .u64 p0, .param .u32 n",
    )
    + '.file 1 "ring.py"\n.file 2 "helper.py"\n'
)


def reach(n: int, text: str = RING, **kw) -> Coverage:
    out = np.zeros(1, np.uint32)
    report = launch(text, 1, 64, [out, n], **kw)
    assert out[0] == n * (n - 1) // 2
    return report.coverage


def test_lines_that_nobody_executed_and_branches_that_went_one_way():
    for s in interleavings(6):
        coverage = reach(2, interleaving=s)
        assert coverage.unexecuted_lines == ["ring.py:25"]
        assert [x.text for x in coverage.unexecuted] == ["add.u32 %r6, %r6, 1000"]
        assert [(x.line, way) for x, way in coverage.one_way] == [("ring.py:24", "always taken")]
        assert coverage.share == 1 - 1 / len(coverage.visits)
    none = reach(0)
    assert {"ring.py:21", "ring.py:22", "ring.py:31"} <= set(none.unexecuted_lines)
    # With no fill at all, both loops are left at once.
    assert {("ring.py:20", "always taken"), ("ring.py:30", "always taken")} <= {
        (x.line, way) for x, way in none.one_way
    }


def test_what_was_inlined_belongs_to_the_line_around_it():
    coverage = reach(0)
    assert "ring.py:23" in coverage.unexecuted_lines and "helper.py:5" not in coverage.lines
    assert {(x.source, x.around) for x in coverage.unexecuted if x.line == "ring.py:23"} == {
        ("helper.py:5", "ring.py:23")
    }


@pytest.mark.parametrize(
    ("n", "phases", "empty_awaited"),
    [(0, (0, 0, 0), False), (2, (1, 1, 0), False), (3, (1, 1, 1), False), (4, (2, 1, 1), True),
     (6, (2, 2, 2), True)]
)  # fmt: skip
def test_rings(n, phases, empty_awaited):
    """A ring of three wraps with the fourth fill, the first that can block on the empty side."""
    for s in interleavings(8):
        coverage = reach(n, interleaving=s)
        full, empty = coverage.rings["ring.py:10"], coverage.rings["ring.py:11"]
        assert tuple(b.phases for b in full) == tuple(b.phases for b in empty) == phases
        assert ("ring.py:10" in coverage.unwrapped_rings) == (max(phases) < 2)
        assert ("ring.py:11" in coverage.unawaited_rings) == (not empty_awaited)
        assert len([b for b in coverage.short_barriers if b.kind == "mbarrier"]) == 2 * sum(
            p < 2 for p in phases
        )
        assert [b.awaited for b in full] == list(phases)


def test_an_arrival_count_that_no_wait_depends_on_is_in_the_list():
    """Three fills, 900 arrivals too many on the empty side: no wait depends on it, and coverage says so."""
    wrong = (
        RING.replace("[%r3], 1;", "[%r3], 901;")
        .replace("[%r3+8], 1;", "[%r3+8], 901;")
        .replace("[%r3+16], 1;", "[%r3+16], 901;")
    )
    coverage = reach(3, wrong)
    assert "ring.py:11" in coverage.unawaited_rings and all(
        not b.phases for b in coverage.rings["ring.py:11"]
    )
    with pytest.raises(EmulatorError, match="deadlock"):
        reach(4, wrong)


def test_launches_are_taken_together():
    both = reach(0).merged(reach(4))
    assert both.unexecuted_lines == ["ring.py:25"] and [b.phases for b in both.rings["ring.py:10"]] == [
        2,
        1,
        1,
    ]
    assert Coverage().merged(both) is both and both.merged(Coverage()) is both
    assert [(x.line, way) for x, way in both.one_way] == [("ring.py:24", "always taken")]
    ptx, run = PROGRAMS["reduce"]
    with pytest.raises(LaunchError, match="different kernels"):
        both.merged(run(ptx, next(interleavings(1)))[0].coverage)


def test_the_text_quotes_the_source():
    text = reach(2).describe(lambda line: f"text of {line}")
    for part in (
        "lines never executed (1):\n  ring.py:25: text of ring.py:25",
        "rings that never wrapped (2)",
        "rings of barriers that nobody waited for (1)",
        "branches taken one way (1)",
    ):
        assert part in text, text
    assert "1 phase, 1 awaited" in str(reach(2))
    plain = reach(2).as_dict()
    assert plain["executed"] == plain["instructions"] - 1 and plain["unawaited_rings"] == ["ring.py:11"]


def test_a_failed_launch_says_how_far_it_came():
    broken = RING.replace("add.u32 %r20, %r20, %r13;", "ld.shared.u32 %r13, [%r12+4096];")
    with pytest.raises(EmulatorError) as raised:
        reach(2, broken)
    coverage = raised.value.report.coverage
    assert 0 < coverage.share < 1 and "ring.py:31" not in coverage.unexecuted_lines
    assert pickle.loads(pickle.dumps(raised.value)).report.coverage.barriers == coverage.barriers


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_hand_written_programs_run_all_of_their_lines(name):
    """Their mutants are only meaningful on lines that run."""
    ptx, run = PROGRAMS[name]
    coverage = Coverage()
    for s in interleavings(4):
        coverage = coverage.merged(run(ptx, s)[0].coverage)
    assert not [x.text for x in coverage.unexecuted]
