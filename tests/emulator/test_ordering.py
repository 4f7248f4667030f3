"""What counts as ordered and as written: correct programs that looked wrong, and wrong ones that looked
correct.

Each false alarm has a true finding of the same kind beside it, which must stay.
"""

import numpy as np
import pytest

from ptx_emulator import EmulatorError, Interleaving, UnsupportedInstruction, interleavings, launch

from .kernels import PROGRAMS, simple

SHARED = ".shared .align 128 .b8 buf[1024];\n.shared .align 8 .b8 bar[16];\n"
BEGIN = SHARED + "mov.u32 %r1, %tid.x; mov.u32 %r2, buf; mov.u32 %r3, bar; ld.param.u64 %d1, [p0];\n"


def codes(body, grid=1, block=1, args=None, n=1, target="sm_90a", **kw):
    """The errors and the warnings of a body, over n interleavings."""
    errors, warnings = set(), set()
    for s in interleavings(n):
        given = [np.zeros(64, np.uint32)] if args is None else args()
        report = launch(
            simple(BEGIN + body, target=target), grid, block, given, interleaving=s, check="report", **kw
        )
        errors |= {f.code for f in report.errors}
        warnings |= {f.code for f in report.findings if not f.error}
    return errors, warnings


LOW = "mov.u16 %h1, 7; mov.b32 %r10, {%h1, %h2};\n"  # the upper half is never written


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (LOW + "st.global.u8 [%d1], %r10;", 7),
        (LOW + "st.global.u16 [%d1], %r10;", 7),
        (LOW + "and.b32 %r11, %r10, 255; st.global.u32 [%d1], %r11;", 7),
        (LOW + "or.b32 %r11, %r10, 0xFFFF0000; st.global.u32 [%d1], %r11;", 0xFFFF0007),
        (LOW + "lop3.b32 %r11, %r10, 255, 0, 0xC0; st.global.u32 [%d1], %r11;", 7),
        (LOW + "shl.b32 %r11, %r10, 16; st.global.u32 [%d1], %r11;", 7 << 16),
        (LOW + "shl.b32 %r11, %r10, 16; shr.u32 %r12, %r11, 16; st.global.u32 [%d1], %r12;", 7),
        (LOW + "shl.b32 %r11, %r10, 16; shr.s32 %r12, %r11, 16; st.global.u32 [%d1], %r12;", 7),
        (LOW + "shf.l.wrap.b32 %r11, %r1, %r10, 16; st.global.u32 [%d1], %r11;", 7 << 16),
        (LOW + "bfe.u32 %r11, %r10, 0, 16; st.global.u32 [%d1], %r11;", 7),
        (LOW + "bfe.s32 %r11, %r10, 0, 3; st.global.u32 [%d1], %r11;", 0xFFFFFFFF),
        (LOW + "bfi.b32 %r11, 1, %r10, 16, 16; st.global.u32 [%d1], %r11;", 0x10007),
        (LOW + "prmt.b32 %r11, %r10, 0, 0x4410; st.global.u32 [%d1], %r11;", 7),
        (LOW + "add.u32 %r11, %r10, 1; st.global.u16 [%d1], %r11;", 8),
        (LOW + "mov.b32 {%h3, %h4}, %r10; st.global.u16 [%d1], %h3;", 7),
        (LOW + "mov.b32 %r11, %r10; mov.b64 %d2, {%r11, %r11}; st.global.u8 [%d1], %d2;", 7),
        (LOW + "cvt.u32.u16 %r11, %r10; st.global.u32 [%d1], %r11;", 7),
        (LOW + "cvt.u32.u8 %r11, %r10; st.global.u32 [%d1], %r11;", 7),
        (LOW + "setp.eq.u32 %p1, 0, 0; selp.b32 %r11, %r10, %r12, %p1; st.global.u8 [%d1], %r11;", 7),
        (LOW + "shfl.sync.idx.b32 %r11, %r10, 0, 31, 1; st.global.u8 [%d1], %r11;", 7),
        (LOW + "st.shared.u32 [%r2], %r10; ld.shared.u16 %r11, [%r2]; st.global.u32 [%d1], %r11;", 7),
        # CUTLASS's conversion of one f32 to e4m3: the other half of the pair, then of the word, is not
        # written.
        ("mov.f32 %f1, 0f3F800000; cvt.rn.satfinite.e4m3x2.f32 %h1, %f2, %f1; mov.b32 %r10, {%h1, %h2};\n"
         "cvt.u8.u32 %r11, %r10; st.global.u8 [%d1], %r11;", 0x38),
        ("mov.u16 %h1, 0x3C00; mov.b32 %r10, {%h1, %h2}; add.f16x2 %r11, %r10, %r10; "
         "mov.b32 {%h3, %h4}, %r11;\n"
         "st.global.u16 [%d1], %h3;", 0x4000),
    ],
)  # fmt: skip
def test_a_value_is_written_as_far_as_its_bits_are(body, value):
    out = np.zeros(64, np.uint32)
    assert codes(body, args=lambda: [out]) == (set(), set()) and out[0] == value


@pytest.mark.parametrize(
    "body",
    [
        LOW + "st.global.u32 [%d1], %r10;",
        LOW + "and.b32 %r11, %r10, 0x1FFFF; st.global.u32 [%d1], %r11;",
        LOW + "or.b32 %r11, %r10, 0x7FFF0000; st.global.u32 [%d1], %r11;",
        LOW + "lop3.b32 %r11, %r10, 255, 0, 0x3C; st.global.u32 [%d1], %r11;",
        LOW + "shr.u32 %r11, %r10, 1; st.global.u16 [%d1], %r11;",
        LOW + "shr.s32 %r11, %r10, 31; st.global.u8 [%d1], %r11;",
        LOW + "shl.b32 %r11, %r10, %r12; st.global.u8 [%d1], %r11;",
        LOW + "shf.l.wrap.b32 %r11, %r10, %r10, 16; st.global.u16 [%d1], %r11;",
        LOW + "bfe.s32 %r11, %r10, 8, 12; st.global.u16 [%d1], %r11;",
        LOW + "bfi.b32 %r11, 1, %r10, 0, 16; st.global.u32 [%d1], %r11;",
        LOW + "prmt.b32 %r12, %r10, 0, 0x4442; st.global.u16 [%d1], %r12;",
        LOW + "add.u32 %r11, %r10, 1; st.global.u32 [%d1], %r11;",
        LOW + "mul.hi.u32 %r11, %r10, 1; st.global.u8 [%d1], %r11;",
        LOW + "mov.b32 {%h3, %h4}, %r10; st.global.u16 [%d1], %h4;",
        LOW + "cvt.rn.f32.u32 %f1, %r10; st.global.f32 [%d1], %f1;",
        LOW + "mov.u16 %h1, %h2; mov.b32 %r10, {%h1, %h2}; st.global.u8 [%d1], %r10;",
        LOW + "setp.eq.u32 %p1, %r10, 0; @%p1 st.global.u8 [%d1], 1;",
        LOW + "shfl.sync.idx.b32 %r11, %r10, 0, 31, 1; st.global.u32 [%d1], %r11;",
        LOW + "st.shared.u32 [%r2], %r10; ld.shared.u32 %r11, [%r2];",
        "mov.f32 %f1, 0f3F800000; cvt.rn.satfinite.e4m3x2.f32 %h1, %f2, %f1; st.global.u16 [%d1], %h1;",
        "mov.u16 %h1, 0x3C00; mov.b32 %r10, {%h1, %h2}; add.f16x2 %r11, %r10, %r10; "
        "mov.b32 {%h3, %h4}, %r11; st.global.u16 [%d1], %h4;",
    ],
)  # fmt: skip
def test_a_bit_that_was_not_written_is_found_where_it_matters(body):
    errors, _ = codes(body)
    assert errors & {"uninit-register", "uninit-memory"}


@pytest.mark.parametrize("where", ["st.shared.u32 [%r2], %r10;", "st.global.u32 [%d1], %r10;"])
def test_a_race_of_one_value_is_a_warning(where):
    """PTX ISA, memory consistency model: it is a data race, but either store leaves the same value."""
    one = "mov.u32 %r10, 16777730;\n"
    assert codes(one + where, block=128, n=6) == (set(), {"same-value-race"})
    assert codes(one + where, block=128, n=6, strict_races=True)[0] == {"same-value-race"}
    assert codes("mov.u32 %r10, %tid.x; shr.u32 %r10, %r10, 5;\n" + where, block=128)[0] == {"race"}
    # Only a part of a wider store is the same.
    wide = where.replace(".u32", ".v2.u32").replace("%r10;", "{%r10, %r11};")
    assert codes(one + "shr.u32 %r11, %r1, 5;\n" + wide, block=128)[0] == {"race"}


def test_a_reader_of_a_value_that_is_stored_again_races():
    body = "mov.u32 %r10, 5; setp.gt.u32 %p1, %r1, 31; @!%p1 st.shared.u32 [%r2], %r10;\n"
    read = "@%p1 ld.shared.u32 %r11, [%r2];"
    assert codes(body + "bar.sync 0;" + read, block=64) == (set(), set())
    assert codes(body + read, block=64, n=4)[0] & {"race", "uninit-memory"}


REDUCE = (
    "mov.u32 %r10, 3; st.shared.u32 [%r2], %r10; st.shared.u32 [%r2+4], %r10; st.shared.u32 [%r2+8], %r10; "
    "st.shared.u32 [%r2+12], %r10;\n@fence.proxy.async;\n"
)
ADD = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r2], 16;\n"
STORE = "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r2], 16;\n"
WAIT = "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\n"


def test_reductions_of_several_ctas_are_atomic():
    """PTX ISA, cp.reduce.async.bulk: each reduction operation has individually .relaxed.gpu semantics."""
    out = np.zeros(64, np.uint32)
    fenced = REDUCE.replace("@", "")
    assert codes(fenced + ADD + WAIT, grid=4, args=lambda: [out]) == (set(), set()) and out[0] == 12
    for s in range(3):
        # Stores of one value are harmless in any order; stores of different values race.
        assert codes(fenced + STORE + WAIT, grid=4, n=s + 1) == (set(), {"same-value-race"})
        own = fenced.replace("mov.u32 %r10, 3;", "mov.u32 %r10, %ctaid.x;")
        assert "race" in codes(own + STORE + WAIT, grid=4, n=s + 1)[0]
        # A reduction races with a plain store or read of the same place, and with an atomic of the other
        # proxy.
        assert "race" in codes(fenced + ADD + "st.global.u32 [%d1], %r10;" + WAIT, grid=2, n=s + 1)[0]
        assert "race" in codes(fenced + ADD + "red.global.add.u32 [%d1], 1;" + WAIT, grid=2, n=s + 1)[0]
    # Its source is an ordinary read.
    assert "missing-proxy-fence" in codes(REDUCE.replace("@fence.proxy.async;", "") + ADD + WAIT)[0]
    assert "race" in codes(fenced + ADD + "atom.shared.add.u32 %r11, [%r2], 1;" + WAIT, n=6)[0]


ALLOC = """
setp.ne.u32 %p1, %r1, 0; @!%p1 mbarrier.init.shared.b64 [%r3], 1; fence.mbarrier_init.release.cluster;
<allocation>
ld.shared.u32 %r5, [%r2]; bar.sync 0;
setp.ne.u32 %p1, %r1, 0; @%p1 bra DONE;
mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 16;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1], 16, [%r3];
WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra WAIT;
DONE: bar.warp.sync -1;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r5, 32;
"""


def test_the_word_of_an_allocation_may_be_the_target_of_a_copy():
    alloc = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], 32; bar.sync 0;\n"
    body = ALLOC.replace("<allocation>", alloc)
    kw = {"block": 32, "target": "sm_100a", "n": 4}
    assert codes(body, **kw) == (set(), {"missing-proxy-fence-alloc"})
    assert codes(body, strict_fences=True, **kw)[0] == {"missing-proxy-fence-alloc"}
    assert codes(body.replace("ld.shared.u32 %r5", "fence.proxy.async; ld.shared.u32 %r5"), **kw)[1] == set()
    # A store to that place needs the fence.
    stored = body.replace("setp.ne", "st.shared.u32 [%r2], %r5; setp.ne")
    assert "missing-proxy-fence" in codes(stored, **kw)[0]


RELAXED = """
setp.ne.u32 %p1, %r1, 0; @!%p1 mbarrier.init.shared.b64 [%r3], 1;
setp.gt.u32 %p2, %r1, 31; @!%p2 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], 32; bar.sync 0;
ld.shared.u32 %r5, [%r2]; mov.u32 %r7, 9; @!%p2 bra FREE;
add.u32 %r6, %r5, 0x200000; tcgen05.st.sync.aligned.32x32b.x1.b32 [%r6], {%r7}; tcgen05.wait::st.sync.aligned;
setp.ne.u32 %p3, %r1, 32;
tcgen05.fence::before_thread_sync;
@!%p3 mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [%r3];
bra DONE;
FREE: mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 %p4, [%r3], 0; @!%p4 bra FREE;
tcgen05.fence::after_thread_sync;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r5, 32;
DONE:
"""


def test_fences_of_tensor_memory_order_across_relaxed_arrivals_and_waits():
    """PTX ISA, tcgen05: relaxed mbarrier.arrive and try_wait between the fences are a canonical pattern."""
    kw = {"block": 64, "target": "sm_100a", "n": 6}
    assert codes(RELAXED, **kw) == (set(), set())
    for fence in ("before", "after"):
        assert codes(RELAXED.replace(f"tcgen05.fence::{fence}_thread_sync;", ""), **kw)[0] == {
            "tmem-dealloc-in-use"
        }
    # A relaxed pair orders no other memory.
    stored = RELAXED.replace("setp.ne.u32 %p3", "st.shared.u32 [%r2+64], %r7; setp.ne.u32 %p3")
    stored = stored.replace("tcgen05.dealloc", "ld.shared.u32 %r8, [%r2+64];\ntcgen05.dealloc")
    assert codes(stored, **kw)[0] == {"race"}
    with_memory = stored.replace(".relaxed.cluster", ".release.cluster", 1).replace(
        ".relaxed.cluster", ".acquire.cluster"
    )
    assert codes(with_memory, **kw) == (set(), set())


def test_an_address_that_lanes_disagree_about_is_the_first_ones():
    """PTX ISA, tcgen05.ld: undefined. The run continues with the first lane's, to check the rest too."""
    body = """
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], 32; bar.sync 0; ld.shared.u32 %r5, [%r2]; \
mov.u32 %r7, 9;
    mov.u32 %r6, %r5;
    tcgen05.st.sync.aligned.32x32b.x1.b32 [%r6], {%r7}; tcgen05.wait::st.sync.aligned;
    tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r8}, [%r5]; tcgen05.wait::ld.sync.aligned;
    shl.b32 %r9, %r1, 2; cvt.u64.u32 %d2, %r9; add.u64 %d1, %d1, %d2; st.global.u32 [%d1], %r8;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r5, 32;
    """
    own = body.replace("mov.u32 %r6, %r5;", "shl.b32 %r6, %r1, 16; add.u32 %r6, %r6, %r5;")
    for text, expected in ((body, set()), (own, {"not-uniform"})):
        out = np.zeros(64, np.uint32)
        assert codes(text, block=32, target="sm_100a", args=lambda out=out: [out])[0] == expected
        assert (out[:32] == 9).all()


PAIR = """
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], 32; bar.sync 0; ld.shared.u32 %r5, [%r2];
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r5, 32; exit;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2+8];
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
"""


@pytest.mark.parametrize("at", range(4))
def test_all_tcgen05_instructions_of_a_kernel_have_one_cta_group(at):
    """PTX ISA: all tcgen05 of a kernel must have the same .cta_group, even those that no warp reaches."""
    kw = {"block": 32, "target": "sm_100a"}
    assert codes(PAIR, **kw) == (set(), set())
    parts = PAIR.split("cta_group::1")
    mixed = "cta_group::1".join(parts[: at + 1]) + "cta_group::2" + "cta_group::1".join(parts[at + 1 :])
    assert "mixed-cta-groups" in codes(mixed, **kw)[0]
    with pytest.raises(EmulatorError, match=r"\[mixed-cta-groups\].*in a kernel whose first tcgen05"):
        launch(simple(BEGIN + mixed, target="sm_100a"), 1, 32, [np.zeros(64, np.uint32)])


@pytest.mark.parametrize("early", [False, True], ids=["late", "early"])
@pytest.mark.parametrize(
    ("end", "ordered"),
    [
        (WAIT, True),
        (WAIT.replace("wait_group", "wait_group.read"), True),
        ("", False),
        ("cp.async.bulk.commit_group;", False),
        ("cp.async.bulk.wait_group 0;", False),  # of no group
        (WAIT.replace("wait_group 0", "wait_group 1"), False),
        (WAIT.replace("wait_group 0", "wait_group.read 1"), False),
    ],
)
def test_the_end_of_a_cta_is_ordered_after_its_stores_by_a_wait(end, ordered, early):
    """Whether the copy happens to have completed by then is irrelevant."""
    policy = Interleaving("random", seed=1, async_policy="early" if early else "late")
    ptx = simple(BEGIN + REDUCE.replace("@", "") + STORE + end)
    report = launch(
        ptx, 1, 1, [np.zeros(64, np.uint32)], interleaving=policy, check="report", strict_exits=True
    )
    assert {f.code for f in report.findings} == (set() if ordered else {"exit-before-bulk-read"})
    if not ordered:
        assert "cp.async.bulk.global" in str(report.errors[0]), "the store is named"


ARRIVE = """
setp.ne.u32 %p1, %r1, 0; @%p1 bra GO;
mbarrier.init.shared.b64 [%r3], COUNT;
GO: bar.sync 0;
mbarrier.arrive.shared.b64 _, [%r3];
WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0; @!%p2 bra WAIT;
"""


@pytest.mark.parametrize("threads", [32, 128])
def test_an_arrival_too_many_is_seen_though_nobody_waits_for_the_next_phase(threads):
    """The phase for which an arrival counts must not depend on who arrives first."""
    right = ARRIVE.replace("COUNT", str(threads))
    again = right + right[right.index("mbarrier.arrive") :].replace("], 0", "], 1").replace("WAIT", "AGAIN")
    for body in (right, again):
        assert codes(body, block=threads, n=8) == (set(), set())
    short = ARRIVE.replace("COUNT", str(threads - 1))
    for s in interleavings(8):
        ptx = simple(BEGIN + short)
        report = launch(ptx, 1, threads, [None], interleaving=s, check="report")
        assert report.ok and "mbarrier-unordered-arrival" in {f.code for f in report.findings}, s
    assert "mbarrier-unordered-arrival" in codes(short, block=threads, strict_lapping=True)[0]


STEP = "shl.b32 %r4, %r1, 2; add.u32 %r5, %r2, %r4; xor.b32 %r6, %r4, 4; add.u32 %r6, %r2, %r6;\n"
SWAP = STEP + "st.shared.u32 [%r5], %r1; @\nld.shared.u32 %r7, [%r6];\n"


@pytest.mark.parametrize(
    "between",
    [
        "bar.warp.sync -1;",
        "bar.warp.sync 0xFFFF; bar.warp.sync 0xFFFF0000;",
        "bar.sync 0;",
        "fence.acq_rel.cta; atom.shared.add.u32 %r9, [%r2+512], 1; fence.acq_rel.cta;",
    ],
)
def test_lanes_that_synchronise_do_not_race(between):
    if "0xFFFF;" in between:  # each half of the warp on its own
        between = (
            "setp.gt.u32 %p1, %r1, 15; @%p1 bra UPPER; bar.warp.sync 0xFFFF; bra BOTH; "
            "UPPER: bar.warp.sync 0xFFFF0000; BOTH:"
        )
    zero = "@ st.shared.u32 [%r2+512], 0; bar.sync 0;".replace("@", "setp.ne.u32 %p3, %r1, 0; @!%p3")
    body = SWAP.replace("@", between)
    assert codes(zero + body, block=32, strict_races=True) == (set(), set())


@pytest.mark.parametrize(
    "between",
    [
        "",
        "shfl.sync.idx.b32 %r8, %r1, 0, 31, -1;",  # converges the lanes, but orders no memory
        "setp.gt.u32 %p1, %r1, 0; @%p1 bra REST; bar.warp.sync 1; bra BOTH; "
        "REST: bar.warp.sync 0xFFFFFFFE; BOTH:",
    ],
    ids=["removed", "shfl", "mask"],
)
def test_lanes_that_do_not_synchronise_race(between):
    body = SWAP.replace("@", between)
    assert codes(body, block=32) == (set(), {"lane-race"})
    assert codes(body, block=32, strict_races=True)[0] == {"lane-race"}


@pytest.mark.parametrize("later", ["ld.global.u32 %r7, [%d2];", "st.global.u32 [%d2], %r1;"])
def test_a_store_of_a_whole_warp_is_ordered_by_synchronisation_alone(later):
    body = (
        "and.b32 %r4, %r1, 31; mul.wide.u32 %d2, %r4, 4; add.u64 %d2, %d1, %d2; setp.gt.u32 %p3, %r1, 31; "
        f"@!%p3 st.global.u32 [%d2], 7; MET @%p3 {later}"
    )
    assert codes(body.replace("MET", "bar.sync 0;"), block=64, n=4, strict_races=True) == (set(), set())
    assert codes(body.replace("MET", ""), block=64, n=4)[0] == {"race"}


@pytest.mark.parametrize("offset", [-4, 0, 4, 8])
def test_a_store_over_an_mbarrier_destroys_it(offset):
    body = (
        "mbarrier.init.shared.b64 [%r2+8], 1; mbarrier.init.shared.b64 [%r2+24], 1; "
        f"st.shared.u32 [%r2+{24 + offset}], 7;"
    )
    assert codes(body)[0] == ({"mbarrier-overwritten"} if 0 <= offset < 8 else set())


@pytest.mark.parametrize("readers", ["", "@%p3 "], ids=["all", "some"])
def test_a_lane_races_with_the_lanes_that_read_one_word(readers):
    body = (
        "setp.ne.u32 %p3, %r1, 0; @!%p3 st.shared.u32 [%r2], 5; bar.warp.sync -1; "
        f"{readers}ld.shared.u32 %r7, [%r2]; MET @!%p3 st.shared.u32 [%r2], 6;"
    )
    assert codes(body.replace("MET", "bar.warp.sync -1;"), block=32, strict_races=True) == (set(), set())
    assert codes(body.replace("MET", ""), block=32) == (set(), {"lane-race"})


def test_lanes_race_with_what_they_overwrite():
    swapped = SWAP.replace("@", "bar.warp.sync -1;")
    assert (
        codes(swapped + "bar.warp.sync -1; st.shared.u32 [%r5], %r7;", block=32, strict_races=True)[0]
        == set()
    )
    assert codes(swapped + "st.shared.u32 [%r5], %r7;", block=32)[1] == {"lane-race"}
    matrix = (
        STEP + "st.shared.u32 [%r5], %r1; @ shl.b32 %r4, %r1, 4; and.b32 %r4, %r4, 127; "
        "add.u32 %r4, %r2, %r4;\nldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r7}, [%r4];"
    )
    assert codes(matrix.replace("@", "bar.warp.sync -1;"), block=32, strict_races=True)[0] == set()
    assert codes(matrix.replace("@", ""), block=32)[1] == {"lane-race"}


# Warp 0 hands a word to warp 1: all lanes of warp 0 store and one arrives; one lane of warp 1 waits and all
# load.
HANDED = """
setp.ne.u32 %p1, %r1, 0; @%p1 bra SET; mbarrier.init.shared.b64 [%r3], 1; \
mbarrier.init.shared.b64 [%r3+8], 1; SET: bar.sync 0;
and.b32 %r4, %r1, 31; setp.ne.u32 %p3, %r4, 0; shl.b32 %r5, %r4, 2; add.u32 %r5, %r2, %r5;
setp.gt.u32 %p2, %r1, 31; @%p2 bra TAKE;
st.shared.u32 [%r5], %r1;
GIVEN
@!%p3 mbarrier.arrive.shared.b64 _, [%r3];
bar.warp.sync -1;
BACK: mbarrier.try_wait.parity.shared.b64 %p4, [%r3+8], 0; @!%p4 bra BACK;
st.shared.u32 [%r5], %r3;
bra DONE;
TAKE: @%p3 bra TAKEN;
AGAIN: mbarrier.try_wait.parity.shared.b64 %p4, [%r3], 0; @!%p4 bra AGAIN;
TAKEN: WAITED
ld.shared.u32 %r7, [%r5];
READ
@!%p3 mbarrier.arrive.shared.b64 _, [%r3+8];
DONE:
"""
SYNC = "bar.warp.sync -1;"
ORDERED = {"GIVEN": SYNC, "WAITED": SYNC, "READ": SYNC}


def handed(**changed: str) -> str:
    body = HANDED
    for place, text in {**ORDERED, **changed}.items():
        body = body.replace(place, text, 1)
    return body


def test_a_lane_that_arrives_or_waits_for_its_warp_has_met_the_others():
    assert codes(handed(), block=64, n=8, strict_races=True) == (set(), set())
    # The arriving lane hands over what it stored itself.
    own = handed(GIVEN="").replace("st.shared.u32 [%r5], %r1;", "@!%p3 st.shared.u32 [%r2], %r1;")
    own = own.replace("ld.shared.u32 %r7, [%r5]", "ld.shared.u32 %r7, [%r2]")
    assert codes(own, block=64, n=8, strict_races=True) == (set(), set())


@pytest.mark.parametrize(
    "place, message",
    [
        ("GIVEN", "store by lane 1 of warp 0: another lane of that warp arrived for it"),
        ("WAITED", "other lanes of the warp waited for it"),
        ("READ", "load by lane 1 of warp 1: another lane of that warp arrived for it"),
    ],
)
def test_a_lane_that_arrives_or_waits_for_its_warp_needs_a_barrier_of_the_warp(place, message):
    body = handed(
        **{place: "shfl.sync.idx.b32 %r8, %r1, 0, 31, -1;"}
    )  # converges the lanes, but orders no memory
    assert codes(body, block=64, n=4) == (set(), {"lane-race"})
    for s in interleavings(8):
        report = launch(
            simple(BEGIN + body), 1, 64, [None], interleaving=s, check="report", strict_races=True
        )
        assert {f.code for f in report.errors} == {"lane-race"} and message in str(report.errors[0]), (
            s,
            report,
        )


def test_a_warp_barrier_has_its_own_lanes_in_its_mask():
    """PTX ISA, bar.warp.sync: undefined if the executing thread is not in the mask."""
    assert codes("bar.warp.sync 0xFFFFFFFE;", block=32)[0] == {"member-mask"}


BULK = """
shl.b32 %r4, %r1, 2; add.u32 %r5, %r2, %r4; setp.ne.u32 %p3, %r1, 0; @%p3 bra SET; \
mbarrier.init.shared.b64 [%r3], 1; SET: bar.warp.sync -1;
FIRST fence.proxy.async.shared::cta; MET
@%p3 bra JOIN;
COPY
JOIN: bar.warp.sync -1;
"""
COPIES = {
    "store":
        ("st.shared.u32 [%r5], %r1;",
         "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r2], 128; cp.async.bulk.commit_group; "
         "cp.async.bulk.wait_group 0;"),
    "load": ("st.shared.u32 [%r5], %r1; bar.warp.sync -1; ld.shared.u32 %r7, [%r5];", """
        mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 128;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1], 128, [%r3];
        AGAIN: mbarrier.try_wait.parity.shared.b64 %p4, [%r3], 0; @!%p4 bra AGAIN;"""),
}  # fmt: skip


@pytest.mark.parametrize("copy", COPIES)
def test_a_lane_that_issues_a_copy_for_its_warp_has_met_the_others(copy):
    first, issued = COPIES[copy]
    body = BULK.replace("FIRST", first).replace("COPY", issued)
    ordered, missing = body.replace("MET", "bar.warp.sync -1;"), body.replace("MET", "")
    assert codes(ordered, block=32, n=6, strict_races=True, strict_exits=True) == (set(), set())
    assert "lane-race" in codes(missing, block=32, n=6)[1]
    # A later copy of the same lane is just as unordered, even after waiting for its own copies.
    assert codes(missing, block=32, strict_races=True)[0] == {"lane-race"}


REFILL = """
shl.b32 %r4, %r1, 2; and.b32 %r4, %r4, 127; add.u32 %r5, %r2, %r4; setp.ne.u32 %p1, %r1, 0; @%p1 bra SET;
mbarrier.init.shared.b64 [%r3], 1; mbarrier.init.shared.b64 [%r3+8], 1; SET: bar.sync 0;
and.b32 %r6, %r1, 31; setp.ne.u32 %p3, %r6, 0; setp.gt.u32 %p2, %r1, 31; @%p2 bra TAKE;
@%p3 bra DONE;
mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 128;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1], 128, [%r3];
BACK: mbarrier.try_wait.parity.shared.b64 %p4, [%r3+8], 0; @!%p4 bra BACK;
mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 128;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d1], 128, [%r3];
AGAIN: mbarrier.try_wait.parity.shared.b64 %p4, [%r3], 1; @!%p4 bra AGAIN;
bra DONE;
TAKE: mbarrier.try_wait.parity.shared.b64 %p4, [%r3], 0; @!%p4 bra TAKE;
ld.shared.u32 %r7, [%r5];
READ
@!%p3 mbarrier.arrive.shared.b64 _, [%r3+8];
DONE:
"""


def test_a_copy_into_what_lanes_have_read_needs_the_barrier_before_one_arrives_for_them():
    assert codes(REFILL.replace("READ", SYNC), block=64, n=8, strict_races=True) == (set(), set())
    missing = REFILL.replace("READ", "shfl.sync.idx.b32 %r8, %r1, 0, 31, -1;")
    assert codes(missing, block=64, n=4) == (set(), {"lane-race"})
    with pytest.raises(
        EmulatorError, match=r"bulk copy write .* earlier load by lane 1 of warp 1: another lane"
    ):
        launch(simple(BEGIN + missing), 1, 64, [np.zeros(64, np.uint32)], strict_races=True)


STAGES = """
setp.ne.u32 %p1, %r1, 0; @%p1 bra SET; mbarrier.init.shared.b64 [%r3], 32; \
mbarrier.init.shared.b64 [%r3+8], 32; SET: bar.sync 0;
setp.gt.u32 %p2, %r1, 31; and.b32 %r4, %r1, 31; shl.b32 %r4, %r4, 2; add.u32 %r5, %r2, %r4; \
cvt.u64.u32 %d2, %r4; add.u64 %d2, %d1, %d2;
@%p2 bra TAKE;
cp.async.ca.shared.global [%r5], [%d2], 4; cp.async.mbarrier.arrive.noinc.shared.b64 [%r3];
cp.async.ca.shared.global [%r5+128], [%d2], 4; cp.async.mbarrier.arrive.noinc.shared.b64 [%r3+8];
bra DONE;
TAKE: mbarrier.try_wait.parity.shared.b64 %p4, [%r3], 0; @!%p4 bra TAKE;
AGAIN: mbarrier.try_wait.parity.shared.b64 %p4, [%r3+WHICH], 0; @!%p4 bra AGAIN;
ld.shared.u32 %r7, [%r5]; ld.shared.u32 %r8, [%r5+128];
DONE:
"""


def test_an_arrival_of_cp_async_says_nothing_of_later_copies():
    """Even if no group is committed between them, and the copies have completed by then."""
    assert codes(STAGES.replace("WHICH", "8"), block=64, n=6) == (set(), set())
    for s in interleavings(6):
        ptx = simple(BEGIN + STAGES.replace("WHICH", "0"))
        report = launch(ptx, 1, 64, [np.zeros(64, np.uint32)], interleaving=s, check="report")
        assert {f.code for f in report.errors} & {"race", "uninit-memory"}, s


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_have_no_warning_of_these_kinds(name):
    ptx, run = PROGRAMS[name]
    for s in interleavings(12):
        report, right = run(ptx, s, strict_races=True, strict_exits=True, strict_lapping=True)
        assert report.ok and right, f"{report}"


@pytest.mark.parametrize(
    "body",
    [
        "atom.shared.exch.b128 %q1, [%r2], %q2;",
        "ld.shared.v2.b128 {%q1, %q2}, [%r2];",
        "add.b128 %q1, %q1, %q2;",
        "mbarrier.pending_count.b64 %r10, %d2;",
    ],
)
def test_what_is_not_executed_is_refused_before_the_launch(body):
    with pytest.raises(UnsupportedInstruction):
        launch(simple(".reg .b128 %q<4>;\n" + BEGIN + "bra END;\n" + body + "\nEND:"), 1, 1, [None])


def test_an_mbarrier_is_not_set_up_twice():
    """PTX ISA, mbarrier.init: undefined for a place that holds an mbarrier, whether or not it is in use."""
    once = "setp.eq.u32 %p1, %r1, 0;\n@%p1 mbarrier.init.shared.b64 [%r3], 1;\n"
    assert codes(once, block=32)[0] == set()
    assert codes("mbarrier.init.shared.b64 [%r3], 1;", block=32)[0] == {"mbarrier-reinit"}
    assert codes(once + "@%p1 mbarrier.init.shared.b64 [%r3], 1;", block=32)[0] == {"mbarrier-reinit"}
    again = once + "@%p1 mbarrier.inval.shared.b64 [%r3];\n@%p1 mbarrier.init.shared.b64 [%r3], 1;"
    assert codes(again, block=32)[0] == set()
