"""Seeded bugs: each must be caught, by the check that names it, within 20 interleavings.

A bug is one textual change of a hand-written program of kernels.py. ``codes`` are the checks that may report
it; "wrong result" is for bugs that are legal programs with another result, which only the comparison sees.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from ptx_emulator import interleavings

from .kernels import PROGRAMS, desc_constant

WRONG = "wrong result"


@dataclass(frozen=True)
class Bug:
    name: str
    program: str
    old: str
    new: str
    codes: tuple[str, ...]
    occurrence: int = 0  # which of the matches is changed

    def apply(self) -> str:
        ptx, _ = PROGRAMS[self.program]
        parts = ptx.split(self.old)
        assert len(parts) > self.occurrence + 1, f"{self.old!r} is not in the program"
        k = self.occurrence + 1
        return self.old.join(parts[:k]) + self.new + self.old.join(parts[k:])


def bug(name: str, program: str, old: str, new: str, *codes: str, at: int = 0) -> Bug:
    return Bug(name, program, old, new, codes, at)


BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r13], [%d3], 1024, [%r11];"
COMMIT_EMPTY = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r13+16];"
COMMIT_DONE = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3+32];"
TMA_A = (
    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r15], [%d1, {%r16, "
    "%r17}], [%r13];"
)
DEADLOCK = "deadlock"
SW128_90, SW128_100 = desc_constant(1024, 1, sm100=False), desc_constant(1024, 2)

BUGS = [
    # barriers of a CTA
    bug("dropped-barrier-before-reduction", "reduce", "st.shared.f32 [%r4], %f1;\nbar.sync 0;",
        "st.shared.f32 [%r4], %f1;", "race", "uninit-memory"),
    bug("dropped-barrier-in-loop", "reduce", "SKIP:\nbar.sync 0;", "SKIP:", "race"),
    bug("barrier-count-too-large", "reduce", "bar.sync 0;", "bar.sync 0, 288;", DEADLOCK),
    bug("barrier-count-too-small", "reduce", "SKIP:\nbar.sync 0;", "SKIP:\nbar.sync 0, 128;", "race",
        "barrier-count", DEADLOCK),
    bug("barrier-in-divergent-code", "reduce", "@%p1 bra SKIP;\nshl", "@%p1 bra SKIP;\nbar.sync 0;\nshl",
        DEADLOCK, "barrier-count"),
    bug("off-by-one-index", "reduce", "add.u32 %r7, %r4, %r6;",
        "add.u32 %r7, %r4, %r6;\nadd.u32 %r7, %r7, 4;", "race", "out-of-bounds-shared", WRONG),
    bug("shared-array-too-small", "reduce", "buf[1024]", "buf[1020]", "out-of-bounds-shared"),
    bug("misaligned-access", "reduce", "add.u32 %r4, %r2, %r3;",
        "add.u32 %r4, %r2, %r3;\nadd.u32 %r4, %r4, 2;", "misaligned"),
    bug("global-out-of-bounds", "reduce", "mul.wide.u32 %d2, %r1, 4;", "mul.wide.u32 %d2, %r1, 8;",
        "out-of-bounds-global"),
    bug("uninitialised-register", "reduce", "ld.global.f32 %f1, [%d1];", "", "uninit-memory",
        "uninit-register"),
    bug("histogram-without-atomics", "histogram", "atom.shared.add.u32 %r10, [%r9], 1;",
        "ld.shared.u32 %r10, [%r9];\nadd.u32 %r10, %r10, 1;\nst.shared.u32 [%r9], %r10;", "race"),
    bug("histogram-not-cleared", "histogram", "@!%p1 st.shared.u32 [%r4], %r5;", "", "uninit-memory"),
    bug("histogram-read-early", "histogram", "atom.shared.add.u32 %r10, [%r9], 1;\nbar.sync 0;",
        "atom.shared.add.u32 %r10, [%r9], 1;", "race"),
    bug("histogram-clear-unordered", "histogram", "@!%p1 st.shared.u32 [%r4], %r5;\nbar.sync 0;",
        "@!%p1 st.shared.u32 [%r4], %r5;", "race", "uninit-memory"),
    # mbarrier pipeline
    bug("dropped-consumer-arrive", "pipeline", "mbarrier.arrive.shared::cta.b64 _, [%r11+16];", "", DEADLOCK),
    bug("empty-count-too-large", "pipeline", "[%r3+16], 64", "[%r3+16], 65", DEADLOCK),
    bug("empty-count-too-small", "pipeline", "[%r3+16], 64", "[%r3+16], 32", "race", "mbarrier-over-arrival",
        "mbarrier-lapped"),
    bug("full-count-too-large", "pipeline", "mbarrier.init.shared::cta.b64 [%r3], 1;",
        "mbarrier.init.shared::cta.b64 [%r3], 2;", DEADLOCK),
    bug("expect-too-many-bytes", "pipeline", "_, [%r11], 1024", "_, [%r11], 1040", DEADLOCK),
    bug("expect-too-few-bytes", "pipeline", "_, [%r11], 1024", "_, [%r11], 1008", DEADLOCK, "race",
        "uninit-memory"),
    bug("producer-wrong-first-phase", "pipeline", "xor.b32 %r9, %r9, 1;", "", DEADLOCK),
    bug("consumer-wrong-phase", "pipeline", "and.b32 %r9, %r8, 1;\nshl",
        "and.b32 %r9, %r8, 1;\nxor.b32 %r9, %r9, 1;\nshl", "uninit-memory", "race", DEADLOCK),
    bug("phase-never-flips", "pipeline", "and.b32 %r9, %r8, 1;\nshl", "mov.u32 %r9, 0;\nshl", "race",
        DEADLOCK, "mbarrier-over-arrival"),
    bug("early-release", "pipeline",
        "ld.shared.v4.f32 {%f5, %f6, %f7, %f8}, [%r16];\nmbarrier.arrive.shared::cta.b64 _, [%r11+16];",
        "mbarrier.arrive.shared::cta.b64 _, [%r11+16];\nld.shared.v4.f32 {%f5, %f6, %f7, %f8}, [%r16];",
        "race"),
    bug("missing-full-wait", "pipeline", "@!%p4 bra WAIT_FULL;", "", "uninit-memory", "race"),
    bug("missing-empty-wait", "pipeline", "@!%p4 bra WAIT_EMPTY;", "", "race", "mbarrier-over-arrival",
        DEADLOCK),
    bug("wrong-stage", "pipeline", "shl.b32 %r12, %r7, 10;\nadd.u32 %r13, %r4, %r12;\nmul",
        "shl.b32 %r12, %r5, 10;\nadd.u32 %r13, %r4, %r12;\nmul",
        "out-of-bounds-shared", "race", "mbarrier-overwritten", "uninit-memory"),
    bug("copy-twice", "pipeline", BULK, BULK + "\n" + BULK, "race", DEADLOCK),
    bug("barrier-not-initialised", "pipeline", "mbarrier.init.shared::cta.b64 [%r3+8], 1;", "",
        "mbarrier-uninitialised"),
    bug("init-not-published", "pipeline", "READY:\nbar.sync 0;", "READY:", "mbarrier-uninitialised", "race"),
    bug("all-lanes-produce", "pipeline", "@!%p3 bra END;", "", "mbarrier-over-arrival", "race", DEADLOCK),
    bug("copy-size-not-16", "pipeline", "[%d3], 1024, [%r11]", "[%d3], 1020, [%r11]", "bulk-size"),
    # cp.async and bulk stores
    bug("wait-one-group-short", "cp_async", "cp.async.wait_group 0;", "cp.async.wait_group 1;", "race",
        "uninit-memory"),
    bug("wait-missing", "cp_async", "cp.async.wait_group 1;", "", "race", "uninit-memory"),
    bug("commit-missing", "cp_async", "cp.async.commit_group;\ncp.async.wait_group 1;",
        "cp.async.wait_group 1;", "race", "uninit-memory"),
    bug("missing-proxy-fence-before-bulk-store", "cp_async", "fence.proxy.async.shared::cta;", "",
        "missing-proxy-fence"),
    bug("missing-bulk-wait", "cp_async", "cp.async.bulk.wait_group 0;", "", "exit-before-bulk-read"),
    bug("missing-bulk-commit", "cp_async", "cp.async.bulk.commit_group;\n", "", "exit-before-bulk-read"),
    bug("bulk-wait-one-group-short", "cp_async", "cp.async.bulk.wait_group 0;", "cp.async.bulk.wait_group 1;",
        "exit-before-bulk-read"),
    # wgmma
    bug("missing-wgmma-fence", "wgmma", "wgmma.fence.sync.aligned;", "", "missing-wgmma-fence"),
    bug("missing-wgmma-wait", "wgmma", "wgmma.wait_group.sync.aligned 0;", "", "wgmma-register-in-flight"),
    bug("wgmma-wait-one-short", "wgmma", "wgmma.wait_group.sync.aligned 0;",
        "wgmma.wait_group.sync.aligned 1;", "wgmma-register-in-flight"),
    bug("missing-proxy-fence-before-tma-store", "wgmma", "fence.proxy.async.shared::cta;", "",
        "missing-proxy-fence"),
    bug("store-before-all-wrote", "wgmma", "fence.proxy.async.shared::cta;\nbar.sync 0;",
        "fence.proxy.async.shared::cta;", "race", "uninit-memory"),
    bug("wgmma-reads-early", "wgmma", "@!%p2 bra WAIT_FULL;", "", "race", "uninit-memory"),
    bug("wrong-swizzle-in-descriptor", "wgmma", f"or.b64 %d5, %d4, {SW128_90};",
        f"or.b64 %d5, %d4, {desc_constant(1024, 2, sm100=False)};",
        "swizzle-mismatch"),
    bug("wrong-k-step", "wgmma", "add.u64 %d6, %d5, 2;", "add.u64 %d6, %d5, 4;", WRONG),
    bug("wrong-stride-in-descriptor", "wgmma", f"or.b64 %d5, %d4, {SW128_90};",
        f"or.b64 %d5, %d4, {desc_constant(512, 1, sm100=False)};", WRONG, "uninit-memory",
        "out-of-bounds-shared"),
    # tcgen05
    bug("dropped-empty-commit", "tcgen", COMMIT_EMPTY, "", DEADLOCK),
    bug("dropped-done-commit", "tcgen", COMMIT_DONE, "", DEADLOCK),
    bug("early-slot-release", "tcgen",
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r13+16];",
        "mbarrier.arrive.shared::cta.b64 _, [%r13+16];", "race", "swizzle-mismatch"),
    bug("commit-on-wrong-barrier", "tcgen", COMMIT_DONE, COMMIT_DONE.replace("+32", "+16"), DEADLOCK,
        "mbarrier-over-arrival"),
    bug("mma-skips-full-wait", "tcgen", "@!%p6 bra WAIT_FULL;", "", "uninit-memory", "race"),
    bug("producer-skips-empty-wait", "tcgen", "@!%p6 bra WAIT_EMPTY;", "", "race", DEADLOCK,
        "mbarrier-over-arrival"),
    bug("epilogue-skips-wait", "tcgen", "@!%p6 bra EPILOGUE;", "", "uninit-memory", "race"),
    bug("accumulates-on-garbage", "tcgen", "[%r6], %d5, %d6, %r19, %p8", "[%r6], %d5, %d6, %r19, %p9",
        "uninit-memory"),
    bug("never-accumulates", "tcgen", "[%r6], %d7, %d8, %r19, %p9", "[%r6], %d7, %d8, %r19, %p8", WRONG),
    bug("missing-load-wait", "tcgen", "tcgen05.wait::ld.sync.aligned;", "", "tmem-load-not-waited"),
    bug("missing-fence-after-sync", "tcgen", "@!%p6 bra EPILOGUE;\ntcgen05.fence::after_thread_sync;",
        "@!%p6 bra EPILOGUE;", "missing-tcgen05-fence"),
    bug("early-dealloc", "tcgen", "bar.sync 0;\n@%p2 bra DONE;", "@%p2 bra DONE;", "tmem-dealloc-in-use",
        "tmem-use-after-dealloc"),
    bug("leaked-tmem", "tcgen", "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r6, 64;", "", "tmem-leak"),
    bug("dealloc-wrong-size", "tcgen", "sync.aligned.b32 %r6, 64;", "sync.aligned.b32 %r6, 32;",
        "tmem-dealloc"),
    bug("alloc-too-few-columns", "tcgen", "[%r5], 64;", "[%r5], 32;", "tmem-unallocated", "tmem-dealloc"),
    bug("alloc-not-a-power-of-two", "tcgen", "[%r5], 64;", "[%r5], 48;", "tmem-alloc"),
    bug("address-of-tmem-read-early", "tcgen",
        "tcgen05.fence::before_thread_sync;\nbar.sync 0;\ntcgen05.fence::after_thread_sync;\nmov.u32 "
        "%r5, tm;",
        "mov.u32 %r5, tm;", "uninit-memory", "race", "mbarrier-uninitialised"),
    bug("wrong-lane-quarter", "tcgen", "and.b32 %r21, %r20, 96;",
        "and.b32 %r21, %r20, 96;\nxor.b32 %r21, %r21, 32;", "tmem-lane"),
    bug("descriptor-without-version", "tcgen", f"or.b64 %d5, %d4, {SW128_100};",
        f"or.b64 %d5, %d4, {SW128_90};", "descriptor"),
    bug("wrong-swizzle-tcgen", "tcgen", f"or.b64 %d5, %d4, {SW128_100};",
        f"or.b64 %d5, %d4, {desc_constant(1024, 4) - (1 << 64)};", "swizzle-mismatch"),
    bug("wrong-instruction-descriptor-n", "tcgen", "mov.u32 %r19, 135267472;", "mov.u32 %r19, 136316048;",
        "tmem-unallocated", "tmem-out-of-bounds", "race", "uninit-memory", "swizzle-mismatch"),
    bug("illegal-shape", "tcgen", "mov.u32 %r19, 135267472;", "mov.u32 %r19, 101713040;",
        "instruction-descriptor"),
    bug("off-by-one-coordinate", "tcgen", "shl.b32 %r16, %r8, 6;",
        "shl.b32 %r16, %r8, 6;\nadd.u32 %r16, %r16, 1;", "tensor-coordinate"),
    bug("off-by-one-row", "tcgen", "mov.u32 %r17, 0;", "mov.u32 %r17, 1;", WRONG),
    bug("wrong-bytes-expected", "tcgen", "_, [%r13], 24576;", "_, [%r13], 16384;", DEADLOCK, "race",
        "uninit-memory"),
    bug("one-copy-missing", "tcgen", TMA_A, "", DEADLOCK),
    bug("mma-from-every-lane", "tcgen", "MMA:\nelect.sync %r7|%p5, -1;\n@!%p5 bra END;", "MMA:",
        "mma-many-threads", "mbarrier-over-arrival"),
    bug("missing-st-wait", "tmem_a", "tcgen05.wait::st.sync.aligned;", "", "race"),
    bug("missing-barrier-before-ts-mma", "tmem_a",
        "tcgen05.fence::before_thread_sync;\nbar.sync 0;\ntcgen05.fence::after_thread_sync;\n@%p1 bra WAIT;",
        "@%p1 bra WAIT;", "race", "uninit-memory"),
    bug("missing-proxy-fence-before-mma", "tmem_a", "fence.proxy.async.shared::cta;", "",
        "missing-proxy-fence"),
    bug("missing-fence-before-sync", "tmem_a",
        "tcgen05.wait::st.sync.aligned;\ntcgen05.fence::before_thread_sync;",
        "tcgen05.wait::st.sync.aligned;", "missing-tcgen05-fence"),
    bug("a-columns-outside-allocation", "tmem_a", "add.u32 %r20, %r6, 16;", "add.u32 %r20, %r6, 32;",
        "tmem-unallocated"),
    bug("lbo-and-sbo-swapped", "tmem_a", f"or.b64 %d5, %d5, {desc_constant(256, 0, lbo=128)};",
        f"or.b64 %d5, %d5, {desc_constant(128, 0, lbo=256)};", WRONG, "uninit-memory"),
]  # fmt: skip


@pytest.mark.parametrize("b", BUGS, ids=[f"{b.program}-{b.name}" for b in BUGS])
def test_bug_is_caught(b):
    ptx = b.apply()
    _, run = PROGRAMS[b.program]
    seen = set()
    for s in interleavings(20):
        report, right = run(ptx, s, strict_fences=True)
        seen |= {f.code for f in report.findings}
        if not right and report.ok:
            seen.add(WRONG)
        if seen & set(b.codes):
            return
    raise AssertionError(
        f"not caught by {b.codes} within 20 interleavings; seen: {sorted(seen) or 'nothing'}"
    )


def test_there_are_enough_bugs():
    assert len(BUGS) >= 40
    assert len({b.name for b in BUGS}) == len(BUGS)
