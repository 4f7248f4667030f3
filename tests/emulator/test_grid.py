"""Several CTAs: grid barriers, last-arriver merges, clusters with distributed shared memory."""

import numpy as np
import pytest

from ptx_emulator import EmulatorError, Interleaving, interleavings, launch

from .kernels import simple

# Every CTA writes its number + 1; the last one to arrive adds them up.
LAST_ARRIVER = simple(
    """
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %nctaid.x;
ld.param.u64 %d1, [p0];
ld.param.u64 %d2, [p1];
ld.param.u64 %d3, [p2];
mul.wide.u32 %d4, %r1, 4;
add.u64 %d5, %d1, %d4;
add.u32 %r3, %r1, 1;
st.global.u32 [%d5], %r3;
fence.acq_rel.gpu;
atom.global.add.u32 %r4, [%d2], 1;
fence.acq_rel.gpu;
sub.u32 %r5, %r2, 1;
setp.ne.u32 %p1, %r4, %r5;
@%p1 bra DONE;
mov.u32 %r6, 0;
mov.u32 %r7, 0;
SUM:
ld.global.u32 %r8, [%d1];
add.u64 %d1, %d1, 4;
add.u32 %r6, %r6, %r8;
add.u32 %r7, %r7, 1;
setp.lt.u32 %p2, %r7, %r2;
@%p2 bra SUM;
st.global.u32 [%d3], %r6;
DONE:
""",
    ".param .u64 p0, .param .u64 p1, .param .u64 p2",
)

ATOMIC_ACQ_REL = LAST_ARRIVER.replace("fence.acq_rel.gpu;\n", "").replace(
    "atom.global.add", "atom.acq_rel.gpu.global.add"
)

# A grid-wide barrier: no CTA continues before all have arrived.
GRID_BARRIER = simple(
    """
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %nctaid.x;
ld.param.u64 %d1, [p0];
ld.param.u64 %d2, [p1];
ld.param.u64 %d3, [p2];
mul.wide.u32 %d4, %r1, 4;
add.u64 %d5, %d1, %d4;
add.u32 %r3, %r1, 5;
st.global.u32 [%d5], %r3;
red.release.gpu.global.add.u32 [%d2], 1;
SPIN:
ld.acquire.gpu.global.u32 %r4, [%d2];
setp.lt.u32 %p1, %r4, %r2;
@%p1 bra SPIN;
add.u32 %r5, %r1, 1;
rem.u32 %r6, %r5, %r2;
mul.wide.u32 %d6, %r6, 4;
add.u64 %d7, %d1, %d6;
ld.global.u32 %r7, [%d7];
add.u64 %d8, %d3, %d4;
st.global.u32 [%d8], %r7;
""",
    ".param .u64 p0, .param .u64 p1, .param .u64 p2",
)


def run_merge(ptx, interleaving, check="raise", ctas=6, **options):
    parts, count, out = np.zeros(ctas, np.uint32), np.zeros(1, np.uint32), np.zeros(1, np.uint32)
    report = launch(ptx, ctas, 1, [parts, count, out], interleaving=interleaving, check=check, **options)
    return report, out[0]


@pytest.mark.parametrize("ptx", [LAST_ARRIVER, ATOMIC_ACQ_REL], ids=["fences", "acq_rel"])
def test_last_arriver_merge(ptx):
    for s in [*interleavings(12), Interleaving.random(5, resident=6)]:
        _, total = run_merge(ptx, s)
        assert total == 21


def test_merge_without_release_is_a_race():
    broken = LAST_ARRIVER.replace("fence.acq_rel.gpu;\natom", "atom")
    codes = {f.code for s in interleavings(6) for f in run_merge(broken, s, "report")[0].errors}
    assert codes == {"race"}


def test_merge_without_acquire_is_a_race():
    broken = LAST_ARRIVER.replace("fence.acq_rel.gpu;\nsub", "sub")
    codes = {f.code for s in interleavings(6) for f in run_merge(broken, s, "report")[0].errors}
    assert codes == {"race"}


def test_grid_barrier_starts_the_ctas_it_needs():
    for s in [Interleaving.lockstep(), Interleaving.random(1), Interleaving.random(2, resident=3)]:
        x, count, out = np.zeros(8, np.uint32), np.zeros(1, np.uint32), np.zeros(8, np.uint32)
        launch(GRID_BARRIER, 8, 1, [x, count, out], interleaving=s)
        assert (out == np.roll(np.arange(8) + 5, -1)).all()


# CTA 0 counts to a thousand and then sets a flag that every other CTA polls.
FLAG = simple(
    """
mov.u32 %r1, %ctaid.x;
ld.param.u64 %d1, [p0];
ld.param.u64 %d2, [p1];
setp.ne.u32 %p1, %r1, 0;
@%p1 bra SPIN;
mov.u32 %r2, 0;
COUNT:
add.u32 %r2, %r2, 1;
setp.lt.u32 %p2, %r2, 1000;
@%p2 bra COUNT;
st.release.gpu.global.u32 [%d1], %r2;
bra DONE;
SPIN:
ld.acquire.gpu.global.u32 %r3, [%d1];
setp.eq.u32 %p3, %r3, 0;
@%p3 bra SPIN;
mul.wide.u32 %d3, %r1, 4;
add.u64 %d4, %d2, %d3;
st.global.u32 [%d4], %r3;
DONE:
""",
    ".param .u64 p0, .param .u64 p1",
)


@pytest.mark.parametrize("interleaving", [*interleavings(12), Interleaving.random(5, resident=8)], ids=str)
def test_who_polls_rests_until_somebody_writes(interleaving):
    """Otherwise polling CTAs would run as often as the one that works, and many of them would stall it."""
    flag, out = np.zeros(1, np.uint32), np.zeros(8, np.uint32)
    report = launch(FLAG, 8, 1, [flag, out], interleaving=interleaving)
    assert (out[1:] == 1000).all()
    # The count itself takes 3000; before a CTA rests, its turn may last a few hundred.
    assert report.instructions < 3100 + 7 * 600


# Lane 0 of CTA 0 polls a flag of CTA 1; CTA 1 polls, by an atomic, one that lane 1 sets after a count.
BESIDE_A_POLLER = simple(
    """
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %tid.x;
ld.param.u64 %d1, [p0];
setp.ne.u32 %p1, %r1, 0;
@%p1 bra OTHER;
setp.ne.u32 %p2, %r2, 0;
@%p2 bra COUNT;
SPIN:
ld.acquire.gpu.global.u32 %r3, [%d1];
setp.eq.u32 %p3, %r3, 0;
@%p3 bra SPIN;
bra DONE;
COUNT:
mov.u32 %r4, 0;
MORE:
add.u32 %r4, %r4, 1;
setp.lt.u32 %p4, %r4, 20;
@%p4 bra MORE;
st.release.gpu.global.u32 [%d1+1024], %r4;
bra DONE;
OTHER:
setp.ne.u32 %p5, %r2, 0;
@%p5 bra DONE;
LOOK:
atom.acquire.gpu.global.or.b32 %r5, [%d1+1024], 0;
setp.eq.u32 %p6, %r5, 0;
@%p6 bra LOOK;
st.release.gpu.global.u32 [%d1], %r5;
DONE:
""",
    ".param .u64 p0",
)


def test_a_lane_beside_one_that_polls_is_not_starved():
    for each in (Interleaving.lockstep(), *(Interleaving.random(seed, resident=2) for seed in range(4))):
        flags = np.zeros(512, np.uint32)
        launch(BESIDE_A_POLLER, 2, 2, [flags], interleaving=each)
        assert flags[0] == flags[256] == 20


def test_grid_barrier_beyond_the_resident_limit_is_reported():
    x, count, out = np.zeros(8, np.uint32), np.zeros(1, np.uint32), np.zeros(8, np.uint32)
    with pytest.raises(EmulatorError, match="deadlock"):
        launch(GRID_BARRIER, 8, 1, [x, count, out], interleaving=Interleaving("random", 1, max_resident=4))


# CTA 0 fills a register and shared memory. CTA 1 writes the register in lane 0 alone, and reads both.
LEFT_BEHIND = simple(
    """
mov.u32 %r1, %ctaid.x;
mov.u32 %r2, %laneid;
mov.u32 %r3, buffer;
setp.ne.u32 %p1, %r1, 0;
setp.eq.u32 %p2, %r2, 0;
@%p1 bra SECOND;
mov.u32 %r4, 77;
st.shared.u32 [%r3], %r4;
ret;
SECOND:
@%p2 mov.u32 %r4, 5;
ld.shared.u32 %r5, [%r3];
ld.param.u64 %d1, [p0];
mul.wide.u32 %d2, %r2, 8;
add.u64 %d1, %d1, %d2;
st.global.u32 [%d1], %r4;
st.global.u32 [%d1+4], %r5;
""",
    head=".shared .align 16 .b8 buffer[16];",
)


def test_a_cta_finds_nothing_of_the_one_before_it():
    out = np.zeros((32, 2), np.uint32)
    report = launch(LEFT_BEHIND, 2, 32, [out], check="report")
    assert {finding.code for finding in report.errors} == {"uninit-register", "uninit-memory"}
    assert out[:, 0].tolist() == [5] + [0] * 31 and (out[:, 1] == 0xCDCDCDCD).all()


# Every CTA of a cluster of four writes into its right neighbour's shared memory and signals its mbarrier.
RING = simple(
    """
.shared .align 16 .b8 slot[128];
.shared .align 8 .b8 bar[8];
mov.u32 %r1, %tid.x;
mov.u32 %r2, %cluster_ctarank;
mov.u32 %r3, %cluster_nctarank;
mov.u32 %r4, slot;
mov.u32 %r5, bar;
setp.ne.u32 %p1, %r1, 0;
@!%p1 mbarrier.init.shared::cta.b64 [%r5], 32;
fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
add.u32 %r6, %r2, 1;
rem.u32 %r6, %r6, %r3;
mapa.shared::cluster.u32 %r7, %r4, %r6;
mapa.shared::cluster.u32 %r8, %r5, %r6;
shl.b32 %r9, %r1, 2;
add.u32 %r10, %r7, %r9;
mad.lo.u32 %r11, %r2, 100, %r1;
st.shared::cluster.u32 [%r10], %r11;
mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8];
WAIT:
mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r5], 0;
@!%p2 bra WAIT;
add.u32 %r12, %r4, %r9;
ld.shared.u32 %r13, [%r12];
mov.u32 %r14, %ctaid.x;
shl.b32 %r15, %r14, 5;
add.u32 %r15, %r15, %r1;
mul.wide.u32 %d1, %r15, 4;
ld.param.u64 %d2, [p0];
add.u64 %d2, %d2, %d1;
st.global.u32 [%d2], %r13;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
""",
    threads=32,
)


def run_ring(ptx, interleaving, check="raise", **options):
    out = np.zeros((8, 32), np.uint32)
    report = launch(ptx, 8, 32, [out], cluster=4, interleaving=interleaving, check=check, **options)
    return report, out


def test_cluster_ring():
    left = np.array([3, 0, 1, 2, 3, 0, 1, 2])
    for s in interleavings(20):
        _, out = run_ring(RING, s)
        assert (out == left[:, None] * 100 + np.arange(32)).all(), str(s)


@pytest.mark.parametrize(
    ("old", "new", "codes"),
    [
        ("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\nadd", "add",
         {"mbarrier-uninitialised", "race"}),
        (".shared::cluster.b64 _, [%r8]", ".shared::cluster.b64 _, [%r5]", {"race", "uninit-memory"}),
        ("[%r5], 32;", "[%r5], 33;", {"deadlock"}),
        ("@!%p2 bra WAIT;", "", {"race", "uninit-memory", "dsmem-after-exit"}),
        ("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\nadd",
         "barrier.cluster.arrive.aligned;\nadd",
         {"mbarrier-uninitialised", "race", "cluster-barrier-twice"}),
    ],
    ids=["no-barrier", "wrong-barrier", "wrong-count", "no-mbarrier-wait", "no-cluster-wait"],
)  # fmt: skip
def test_cluster_bugs_are_caught(old, new, codes):
    assert old in RING
    seen = {
        f.code for s in interleavings(20) for f in run_ring(RING.replace(old, new), s, "report")[0].errors
    }
    assert seen & codes, seen


# The same with asynchronous stores, and a start barrier that only orders what fence.mbarrier_init released.
ASYNC_RING = (
    RING.replace("[%r5], 32;", "[%r5], 1;")
    .replace("barrier.cluster.arrive.aligned;", "barrier.cluster.arrive.relaxed.aligned;", 1)
    .replace(
        "st.shared::cluster.u32 [%r10], %r11;\nmbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r8];",
        "@!%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], 128;\n"
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r10], %r11, [%r8];",
    )
)
START = "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;\n"


@pytest.mark.parametrize("drop", ["", "fence.mbarrier_init.release.cluster;\n", START])
def test_the_initialisation_of_an_mbarrier_is_ordered_before_its_use(drop):
    """Under no interleaving may a store through another CTA's mbarrier precede its initialisation."""
    assert drop in ASYNC_RING and "st.async" in ASYNC_RING
    for s in interleavings(20):
        report, _ = run_ring(ASYNC_RING.replace(drop, ""), s, "report")
        codes = {f.code for f in report.errors}
        if drop:
            assert codes and codes <= {"race", "mbarrier-uninitialised", "dsmem-after-exit"}, f"{s}: {codes}"
        else:
            assert report.ok, str(report)


def read_then_written(first, second):
    """CTA 0 loads with one instruction; CTA 1 stores with the other, later, but unordered."""
    return simple(
        f"""
mov.u32 %r1, %ctaid.x; setp.ne.u32 %p1, %r1, 0; ld.param.u64 %d1, [p0]; mov.u16 %h1, 7; mov.u32 %r2, 7;
@%p1 bra WRITE;
{first};
bra DONE;
WRITE:
{second};
DONE:
"""
    )


@pytest.mark.parametrize(
    ("first", "second", "race"),
    [
        ("ld.global.u32 %r3, [%d1]", "st.global.u32 [%d1], %r2", True),
        ("ld.global.u32 %r3, [%d1]", "st.global.u16 [%d1+2], %h1", True),
        ("ld.global.u16 %h2, [%d1]", "st.global.u16 [%d1+2], %h1", False),
        ("ld.global.v4.u32 {%r3, %r4, %r5, %r6}, [%d1+16]", "st.global.u32 [%d1+28], %r2", True),
        ("atom.global.add.u32 %r3, [%d1], 0", "atom.global.add.u32 %r4, [%d1], 1", False),
    ],
)
def test_a_global_write_after_an_unordered_read_is_a_race(first, second, race):
    report = launch(read_then_written(first, second), 2, 1, [np.zeros(64, np.uint32)], check="report")
    assert [f.code for f in report.errors] == (["race"] if race else [])


# Lanes 2 i and 2 i + 1 store to the same place, in descending order.
PAIRS = """
mov.u32 %r1, %tid.x;
ld.param.u64 %d1, [p0];
shr.u32 %r2, %r1, 1;
sub.u32 %r3, 15, %r2;
mul.wide.u32 %d2, %r3, 8;
add.u64 %d3, %d1, %d2;
st.global.v2.u32 [%d3], {%r2, VALUE};
"""


@pytest.mark.parametrize(("value", "found"), [("%r3", []), ("%r1", ["lane-conflict"])])
def test_lanes_of_one_store_must_agree_where_they_meet(value: str, found: list[str]) -> None:
    out = np.zeros(32, dtype=np.uint32)
    report = launch(simple(PAIRS.replace("VALUE", value)), 1, 32, [out], check="report")
    assert [finding.code for finding in report.errors] == found
