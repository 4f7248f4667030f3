"""Hand-written PTX programs for the tests: small, complete, and correct until a test changes a line."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ptx_emulator import Interleaving, Report, TensorMap, launch

HEADER = ".version 8.7\n.target {target}\n.address_size 64\n"


def simple(
    body: str,
    params: str = ".param .u64 p0",
    target: str = "sm_90a",
    head: str = "",
    threads: int | None = None,
) -> str:
    """A kernel named k: a body with enough registers declared."""
    req = f".reqntid {threads}, 1, 1" if threads else ""
    return (
        HEADER.format(target=target) + head + f"\n.visible .entry k({params})\n{req}\n{{\n"
        ".reg .pred %p<16>;\n.reg .b16 %h<16>;\n.reg .b32 %r<64>;\n.reg .f32 %f<80>;\n.reg .b64 %d<32>;\n"
        + body + "\nret;\n}\n"
    )  # fmt: skip


def assembles(ptx: str, folder: Path) -> None:
    """Fail if ptxas refuses the text; skip if there is no ptxas."""
    if not shutil.which("ptxas"):
        pytest.skip("needs ptxas")
    (folder / "k.ptx").write_text(ptx)
    command = ["ptxas", f"-arch={'sm_100a' if 'sm_100a' in ptx else 'sm_90a'}", "-o", str(folder / "k.cubin")]
    done = subprocess.run([*command, str(folder / "k.ptx")], capture_output=True, text=True)
    if done.returncode:
        pytest.fail(done.stderr)


def elementwise(body: str, sources: int = 2, width: int = 32) -> str:
    """Load the sources of every thread into %r/%d 10.., run the body, store register 20."""
    load, store, reg = (
        ("ld.global.b32", "st.global.b32", "%r") if width == 32 else ("ld.global.b64", "st.global.b64", "%d")
    )
    if width == 64:
        loads = "".join(
            f"ld.param.u64 %d1, [p{i}]; add.u64 %d1, %d1, %d0; {load} %d{10 + i}, [%d1];\n"
            for i in range(sources)
        )
    else:
        loads = "".join(
            f"ld.param.u64 %d1, [p{i}]; add.u64 %d1, %d1, %d0; {load} %r{10 + i}, [%d1];\n"
            for i in range(sources)
        )
    params = ", ".join(f".param .u64 p{i}" for i in range(sources + 1))
    return simple(
        f"mov.u32 %r0, %tid.x;\nmul.wide.u32 %d0, %r0, {width // 8};\n{loads}{body}\n"
        f"ld.param.u64 %d1, [p{sources}]; add.u64 %d1, %d1, %d0; {store} [%d1], {reg}20;",
        params,
    )


# Sum of 256 numbers with shared memory and barriers.
REDUCE = simple(
    """
.shared .align 16 .b8 buf[1024];
mov.u32 %r1, %tid.x;
ld.param.u64 %d1, [p0];
mul.wide.u32 %d2, %r1, 4;
add.u64 %d1, %d1, %d2;
ld.global.f32 %f1, [%d1];
mov.u32 %r2, buf;
shl.b32 %r3, %r1, 2;
add.u32 %r4, %r2, %r3;
st.shared.f32 [%r4], %f1;
bar.sync 0;
mov.u32 %r5, 128;
LOOP:
setp.ge.u32 %p1, %r1, %r5;
@%p1 bra SKIP;
shl.b32 %r6, %r5, 2;
add.u32 %r7, %r4, %r6;
ld.shared.f32 %f2, [%r7];
ld.shared.f32 %f3, [%r4];
add.f32 %f3, %f3, %f2;
st.shared.f32 [%r4], %f3;
SKIP:
bar.sync 0;
shr.u32 %r5, %r5, 1;
setp.gt.u32 %p2, %r5, 0;
@%p2 bra LOOP;
setp.ne.u32 %p3, %r1, 0;
@%p3 bra DONE;
ld.shared.f32 %f4, [%r2];
ld.param.u64 %d3, [p1];
st.global.f32 [%d3], %f4;
DONE:
""",
    ".param .u64 p0, .param .u64 p1",
    threads=256,
)


def run_reduce(
    ptx: str, interleaving: Interleaving, check: str = "report", **kw: object
) -> tuple[Report, bool]:
    x = np.arange(256, dtype=np.float32)
    out = np.zeros(1, np.float32)
    r = launch(ptx, 1, 256, [x, out], interleaving=interleaving, check=check, **kw)  # type: ignore[arg-type]
    return r, bool(out[0] == x.sum())


HISTOGRAM = simple(
    """
.shared .align 16 .b8 bins[64];
mov.u32 %r1, %tid.x;
mov.u32 %r2, bins;
setp.gt.u32 %p1, %r1, 15;
shl.b32 %r3, %r1, 2;
add.u32 %r4, %r2, %r3;
mov.u32 %r5, 0;
@!%p1 st.shared.u32 [%r4], %r5;
bar.sync 0;
ld.param.u64 %d1, [p0];
mul.wide.u32 %d2, %r1, 4;
add.u64 %d3, %d1, %d2;
ld.global.u32 %r6, [%d3];
and.b32 %r7, %r6, 15;
shl.b32 %r8, %r7, 2;
add.u32 %r9, %r2, %r8;
atom.shared.add.u32 %r10, [%r9], 1;
bar.sync 0;
@%p1 bra DONE;
ld.shared.u32 %r11, [%r4];
ld.param.u64 %d4, [p1];
add.u64 %d5, %d4, %d2;
st.global.u32 [%d5], %r11;
DONE:
""",
    ".param .u64 p0, .param .u64 p1",
    threads=128,
)


def run_histogram(
    ptx: str, interleaving: Interleaving, check: str = "report", **kw: object
) -> tuple[Report, bool]:
    x = np.random.default_rng(3).integers(0, 1 << 30, 128).astype(np.uint32)
    out = np.zeros(16, np.uint32)
    r = launch(ptx, 1, 128, [x, out], interleaving=interleaving, check=check, **kw)  # type: ignore[arg-type]
    return r, bool((out == np.bincount(x & 15, minlength=16)).all())


# Warp 0 copies 1 KiB tiles through a two-stage pipeline; warps 1 and 2 add them up element by element.
PIPELINE = simple(
    """
.shared .align 128 .b8 tile[2048];
.shared .align 8 .b8 bars[32];
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 5;
mov.u32 %r3, bars;
mov.u32 %r4, tile;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r3], 1;
mbarrier.init.shared::cta.b64 [%r3+8], 1;
mbarrier.init.shared::cta.b64 [%r3+16], 64;
mbarrier.init.shared::cta.b64 [%r3+24], 64;
fence.mbarrier_init.release.cluster;
READY:
bar.sync 0;
mov.u32 %r5, 0;
ld.param.u64 %d1, [p0];
setp.ne.u32 %p2, %r2, 0;
@%p2 bra CONSUMER;
elect.sync %r6|%p3, -1;
@!%p3 bra END;
PRODUCE:
and.b32 %r7, %r5, 1;
shr.u32 %r8, %r5, 1;
and.b32 %r9, %r8, 1;
xor.b32 %r9, %r9, 1;
shl.b32 %r10, %r7, 3;
add.u32 %r11, %r3, %r10;
WAIT_EMPTY:
mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r11+16], %r9;
@!%p4 bra WAIT_EMPTY;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 1024;
shl.b32 %r12, %r7, 10;
add.u32 %r13, %r4, %r12;
mul.wide.u32 %d2, %r5, 1024;
add.u64 %d3, %d1, %d2;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r13], [%d3], 1024, [%r11];
add.u32 %r5, %r5, 1;
setp.lt.u32 %p5, %r5, 6;
@%p5 bra PRODUCE;
bra END;
CONSUMER:
mov.f32 %f1, 0f00000000;
mov.f32 %f2, 0f00000000;
mov.f32 %f3, 0f00000000;
mov.f32 %f4, 0f00000000;
sub.u32 %r14, %r1, 32;
shl.b32 %r15, %r14, 4;
CONSUME:
and.b32 %r7, %r5, 1;
shr.u32 %r8, %r5, 1;
and.b32 %r9, %r8, 1;
shl.b32 %r10, %r7, 3;
add.u32 %r11, %r3, %r10;
WAIT_FULL:
mbarrier.try_wait.parity.shared::cta.b64 %p4, [%r11], %r9;
@!%p4 bra WAIT_FULL;
shl.b32 %r12, %r7, 10;
add.u32 %r13, %r4, %r12;
add.u32 %r16, %r13, %r15;
ld.shared.v4.f32 {%f5, %f6, %f7, %f8}, [%r16];
mbarrier.arrive.shared::cta.b64 _, [%r11+16];
add.f32 %f1, %f1, %f5;
add.f32 %f2, %f2, %f6;
add.f32 %f3, %f3, %f7;
add.f32 %f4, %f4, %f8;
add.u32 %r5, %r5, 1;
setp.lt.u32 %p5, %r5, 6;
@%p5 bra CONSUME;
ld.param.u64 %d4, [p1];
cvt.u64.u32 %d5, %r15;
add.u64 %d6, %d4, %d5;
st.global.v4.f32 [%d6], {%f1, %f2, %f3, %f4};
END:
""",
    ".param .u64 p0, .param .u64 p1",
    threads=96,
)


def run_pipeline(
    ptx: str, interleaving: Interleaving, check: str = "report", **kw: object
) -> tuple[Report, bool]:
    x = np.random.default_rng(1).integers(-8, 8, (6, 256)).astype(np.float32)
    out = np.zeros(256, np.float32)
    r = launch(ptx, 1, 96, [x, out], interleaving=interleaving, check=check, **kw)  # type: ignore[arg-type]
    return r, bool((out == x.sum(0)).all())


# One warp copies rows with cp.async, two groups in flight, sums them, and writes the sums by a bulk store.
CP_ASYNC = simple(
    """
.shared .align 128 .b8 tile[1536];
mov.u32 %r1, %tid.x;
mov.u32 %r2, tile;
shl.b32 %r3, %r1, 4;
add.u32 %r4, %r2, %r3;
ld.param.u64 %d1, [p0];
cvt.u64.u32 %d2, %r3;
add.u64 %d3, %d1, %d2;
cp.async.cg.shared.global [%r4], [%d3], 16;
cp.async.commit_group;
cp.async.cg.shared.global [%r4+512], [%d3+512], 16;
cp.async.commit_group;
cp.async.wait_group 1;
bar.warp.sync 0xffffffff;
xor.b32 %r5, %r3, 16;
add.u32 %r6, %r2, %r5;
ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r6];
cp.async.wait_group 0;
bar.warp.sync 0xffffffff;
ld.shared.v4.u32 {%r14, %r15, %r16, %r17}, [%r6+512];
add.u32 %r10, %r10, %r14;
add.u32 %r11, %r11, %r15;
add.u32 %r12, %r12, %r16;
add.u32 %r13, %r13, %r17;
st.shared.v4.u32 [%r6+1024], {%r10, %r11, %r12, %r13};
fence.proxy.async.shared::cta;
bar.warp.sync 0xffffffff;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra DONE;
ld.param.u64 %d4, [p1];
add.u32 %r7, %r2, 1024;
cp.async.bulk.global.shared::cta.bulk_group [%d4], [%r7], 512;
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
DONE:
""",
    ".param .u64 p0, .param .u64 p1",
    threads=32,
)


def run_cp_async(
    ptx: str, interleaving: Interleaving, check: str = "report", **kw: object
) -> tuple[Report, bool]:
    x = np.arange(256, dtype=np.uint32).reshape(2, 128)
    out = np.zeros(128, np.uint32)
    r = launch(ptx, 1, 32, [x, out], interleaving=interleaving, check=check, **kw)  # type: ignore[arg-type]
    return r, bool((out == x.sum(0)).all())


def bf16(x: np.ndarray) -> np.ndarray:
    """float32 to the bits of bfloat16, round to nearest even."""
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(u: np.ndarray) -> np.ndarray:
    return (u.astype(np.uint32) << 16).view(np.float32)


def desc_constant(sbo: int, layout: int, lbo: int = 16, sm100: bool = True) -> int:
    """The constant part of a shared-memory matrix descriptor."""
    d = (lbo >> 4) << 16 | (sbo >> 4) << 32
    return d | (1 << 46 | layout << 61 if sm100 else layout << 62)


# One warpgroup: C[64, 64] = A[64, 128] B[64, 128]^T in bf16; K in two TMA tiles, C through shared memory and
# a TMA store.
WGMMA = simple(
    """
.shared .align 8 .b8 bars[16];
mov.u32 %r1, %tid.x;
mov.u32 %r3, bars;
mov.u32 %r4, dyn;
mov.b64 %d1, ma; cvta.param.u64 %d1, %d1;
mov.b64 %d2, mb; cvta.param.u64 %d2, %d2;
mov.b64 %d3, mc; cvta.param.u64 %d3, %d3;
setp.ne.u32 %p1, %r1, 0;
mov.u32 %r5, 0;
mov.u32 %r6, 64;
@%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r3], 1;
fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 32768;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r4], [%d1, {%r5, %r5}], \
[%r3];
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r4+8192], [%d1, {%r6, \
%r5}], [%r3];
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r4+16384], [%d2, {%r5, \
%r5}], [%r3];
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r4+24576], [%d2, {%r6, \
%r5}], [%r3];
READY:
bar.sync 0;
WAIT_FULL:
mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
@!%p2 bra WAIT_FULL;
"""
    + "\n".join(f"mov.f32 %f{i}, 0f00000000;" for i in range(32))
    + """
shr.u32 %r7, %r4, 4;
cvt.u64.u32 %d4, %r7;
or.b64 %d5, %d4, @DESC@;
mov.u32 %r8, 0;
wgmma.fence.sync.aligned;
TILE:
"""
    + "\n".join(
        f"add.u64 %d6, %d5, {2 * j};\nadd.u64 %d7, %d6, 1024;\n"
        "{.reg .pred q; setp.ne.u32 q, 1, 0;\n"
        f"wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        f"{{{', '.join(f'%f{i}' for i in range(32))}}}, %d6, %d7, q, 1, 1, 0, 0;}}"
        for j in range(4)
    )
    + """
add.u64 %d5, %d5, 512;
add.u32 %r8, %r8, 1;
setp.lt.u32 %p3, %r8, 2;
@%p3 bra TILE;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
shr.u32 %r10, %r1, 5;
shl.b32 %r11, %r10, 4;
and.b32 %r12, %r1, 31;
shr.u32 %r13, %r12, 2;
add.u32 %r14, %r11, %r13;
and.b32 %r15, %r1, 3;
shl.b32 %r16, %r15, 3;
shl.b32 %r17, %r14, 8;
add.u32 %r18, %r4, 32768;
add.u32 %r18, %r18, %r17;
add.u32 %r18, %r18, %r16;
"""
    + "\n".join(
        f"st.shared.v2.f32 [%r18+{32 * j}], {{%f{4 * j}, %f{4 * j + 1}}};\n"
        f"st.shared.v2.f32 [%r18+{32 * j + 2048}], {{%f{4 * j + 2}, %f{4 * j + 3}}};"
        for j in range(8)
    )
    + """
fence.proxy.async.shared::cta;
bar.sync 0;
@%p1 bra DONE;
add.u32 %r20, %r4, 32768;
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d3, {%r5, %r5}], [%r20];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
DONE:
""",
    ".param .align 64 .b8 ma[128], .param .align 64 .b8 mb[128], .param .align 64 .b8 mc[128]",
    head=".extern .shared .align 1024 .b8 dyn[];\n",
    threads=128,
).replace("@DESC@", str(desc_constant(1024, 1, sm100=False)))


def run_wgmma(
    ptx: str, interleaving: Interleaving, check: str = "report", **kw: object
) -> tuple[Report, bool]:
    rng = np.random.default_rng(5)
    a, b = (rng.integers(-4, 5, (64, 128)).astype(np.float32) for _ in range(2))
    c = np.zeros((64, 64), np.float32)
    maps = [
        TensorMap(bf16(a), (64, 64), "128B", dtype="bf16"),
        TensorMap(bf16(b), (64, 64), "128B", dtype="bf16"),
        TensorMap(c, (64, 64)),
    ]
    how: dict[str, Any] = {"interleaving": interleaving, "check": check, **kw}
    r = launch(ptx, 1, 128, maps, dynamic_smem=49152, **how)
    return r, bool((c == a @ b.T).all())


# Warp 0 loads, warp 1 issues MMAs and owns TMEM, warps 4 to 7 write out: C[128, 64] = A[128, K] B[64, K]^T.
TCGEN = simple(
    """
.shared .align 8 .b8 bars[64];
.shared .align 4 .b8 tm[4];
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 5;
mov.u32 %r3, bars;
mov.u32 %r4, dyn;
mov.b64 %d1, ma; cvta.param.u64 %d1, %d1;
mov.b64 %d2, mb; cvta.param.u64 %d2, %d2;
mov.u32 %r17, 0;
setp.ne.u32 %p1, %r1, 0;
@%p1 bra READY;
mbarrier.init.shared::cta.b64 [%r3], 1;
mbarrier.init.shared::cta.b64 [%r3+8], 1;
mbarrier.init.shared::cta.b64 [%r3+16], 1;
mbarrier.init.shared::cta.b64 [%r3+24], 1;
mbarrier.init.shared::cta.b64 [%r3+32], 1;
fence.mbarrier_init.release.cluster;
READY:
bar.warp.sync -1;
setp.ne.u32 %p2, %r2, 1;
@%p2 bra ALLOCATED;
mov.u32 %r5, tm;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5], 64;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
ALLOCATED:
tcgen05.fence::before_thread_sync;
bar.sync 0;
tcgen05.fence::after_thread_sync;
mov.u32 %r5, tm;
ld.shared.u32 %r6, [%r5];
mov.u32 %r8, 0;
setp.eq.u32 %p3, %r2, 0;
@%p3 bra PRODUCER;
setp.eq.u32 %p3, %r2, 1;
@%p3 bra MMA;
setp.ge.u32 %p3, %r2, 4;
@%p3 bra EPILOGUE;
bra END;
PRODUCER:
elect.sync %r7|%p5, -1;
@!%p5 bra END;
PRODUCE:
and.b32 %r9, %r8, 1;
shr.u32 %r10, %r8, 1;
and.b32 %r11, %r10, 1;
xor.b32 %r11, %r11, 1;
shl.b32 %r12, %r9, 3;
add.u32 %r13, %r3, %r12;
WAIT_EMPTY:
mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r13+16], %r11;
@!%p6 bra WAIT_EMPTY;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r13], 24576;
mul.lo.u32 %r14, %r9, 24576;
add.u32 %r15, %r4, %r14;
shl.b32 %r16, %r8, 6;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r15], [%d1, {%r16, \
%r17}], [%r13];
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r15+16384], [%d2, {%r16, \
%r17}], [%r13];
add.u32 %r8, %r8, 1;
setp.lt.u32 %p7, %r8, 5;
@%p7 bra PRODUCE;
bra END;
MMA:
elect.sync %r7|%p5, -1;
@!%p5 bra END;
MULTIPLY:
and.b32 %r9, %r8, 1;
shr.u32 %r10, %r8, 1;
and.b32 %r11, %r10, 1;
shl.b32 %r12, %r9, 3;
add.u32 %r13, %r3, %r12;
WAIT_FULL:
mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r13], %r11;
@!%p6 bra WAIT_FULL;
tcgen05.fence::after_thread_sync;
mul.lo.u32 %r14, %r9, 24576;
add.u32 %r15, %r4, %r14;
shr.u32 %r18, %r15, 4;
cvt.u64.u32 %d4, %r18;
or.b64 %d5, %d4, @DESC@;
add.u64 %d6, %d5, 1024;
setp.gt.u32 %p8, %r8, 0;
setp.eq.u32 %p9, %r8, %r8;
mov.u32 %r19, @IDESC@;
tcgen05.mma.cta_group::1.kind::f16 [%r6], %d5, %d6, %r19, %p8;
add.u64 %d7, %d5, 2; add.u64 %d8, %d6, 2;
tcgen05.mma.cta_group::1.kind::f16 [%r6], %d7, %d8, %r19, %p9;
add.u64 %d7, %d5, 4; add.u64 %d8, %d6, 4;
tcgen05.mma.cta_group::1.kind::f16 [%r6], %d7, %d8, %r19, %p9;
add.u64 %d7, %d5, 6; add.u64 %d8, %d6, 6;
tcgen05.mma.cta_group::1.kind::f16 [%r6], %d7, %d8, %r19, %p9;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r13+16];
add.u32 %r8, %r8, 1;
setp.lt.u32 %p7, %r8, 5;
@%p7 bra MULTIPLY;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3+32];
bra END;
EPILOGUE:
mbarrier.try_wait.parity.shared::cta.b64 %p6, [%r3+32], 0;
@!%p6 bra EPILOGUE;
tcgen05.fence::after_thread_sync;
sub.u32 %r20, %r1, 128;
and.b32 %r21, %r20, 96;
shl.b32 %r22, %r21, 16;
add.u32 %r23, %r6, %r22;
"""
    + f"tcgen05.ld.sync.aligned.32x32b.x64.b32 {{{', '.join(f'%f{i}' for i in range(64))}}}, [%r23];\n"
    + """tcgen05.wait::ld.sync.aligned;
tcgen05.fence::before_thread_sync;
mul.wide.u32 %d9, %r20, 256;
ld.param.u64 %d10, [p2];
add.u64 %d10, %d10, %d9;
"""
    + "\n".join(
        f"st.global.v4.f32 [%d10+{16 * i}], {{%f{4 * i}, %f{4 * i + 1}, %f{4 * i + 2}, %f{4 * i + 3}}};"
        for i in range(16)
    )
    + """
END:
bar.warp.sync -1;
tcgen05.fence::before_thread_sync;
bar.sync 0;
@%p2 bra DONE;
tcgen05.fence::after_thread_sync;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r6, 64;
DONE:
""",
    ".param .align 64 .b8 ma[128], .param .align 64 .b8 mb[128], .param .u64 p2",
    target="sm_100a",
    head=".extern .shared .align 1024 .b8 dyn[];\n",
    threads=256,
)
TCGEN = TCGEN.replace(
    "@DESC@",
    str(desc_constant(1024, 2) - (1 << 64) if desc_constant(1024, 2) >> 63 else desc_constant(1024, 2)),
)
TCGEN = TCGEN.replace("@IDESC@", str(1 << 4 | 1 << 7 | 1 << 10 | 8 << 17 | 8 << 24))


def run_tcgen(
    ptx: str, interleaving: Interleaving, check: str = "report", **kw: object
) -> tuple[Report, bool]:
    rng = np.random.default_rng(6)
    a, b = (
        rng.integers(-4, 5, (128, 320)).astype(np.float32),
        rng.integers(-4, 5, (64, 320)).astype(np.float32),
    )
    c = np.zeros((128, 64), np.float32)
    args = [
        TensorMap(bf16(a), (64, 128), "128B", dtype="bf16"),
        TensorMap(bf16(b), (64, 64), "128B", dtype="bf16"),
        c,
    ]
    how: dict[str, Any] = {"interleaving": interleaving, "check": check, **kw}
    r = launch(ptx, 1, 256, args, dynamic_smem=49152, **how)
    return r, bool((c == a @ b.T).all())


# Four warps write A (bf16 pairs) to TMEM with tcgen05.st, and B to shared memory; one thread multiplies.
TMEM_A = simple(
    """
.shared .align 8 .b8 bar[8];
.shared .align 4 .b8 tm[4];
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 5;
mov.u32 %r3, bar;
mov.u32 %r4, dyn;
setp.ne.u32 %p1, %r1, 0;
setp.ne.u32 %p2, %r2, 0;
@!%p1 mbarrier.init.shared::cta.b64 [%r3], 1;
bar.warp.sync -1;
mov.u32 %r5, tm;
@%p2 bra ALLOCATED;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5], 32;
ALLOCATED:
ld.param.u64 %d1, [p1];
mul.wide.u32 %d2, %r1, 4;
add.u64 %d1, %d1, %d2;
ld.global.u32 %r30, [%d1];
shl.b32 %r31, %r1, 2;
add.u32 %r32, %r4, %r31;
st.shared.u32 [%r32], %r30;
fence.proxy.async.shared::cta;
tcgen05.fence::before_thread_sync;
bar.sync 0;
tcgen05.fence::after_thread_sync;
ld.shared.u32 %r6, [%r5];
ld.param.u64 %d3, [p0];
mul.wide.u32 %d4, %r1, 32;
add.u64 %d3, %d3, %d4;
ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%d3];
ld.global.v4.u32 {%r14, %r15, %r16, %r17}, [%d3+16];
shl.b32 %r7, %r2, 21;
add.u32 %r8, %r6, %r7;
tcgen05.st.sync.aligned.32x32b.x8.b32 [%r8+16], {%r10, %r11, %r12, %r13, %r14, %r15, %r16, %r17};
tcgen05.wait::st.sync.aligned;
tcgen05.fence::before_thread_sync;
bar.sync 0;
tcgen05.fence::after_thread_sync;
@%p1 bra WAIT;
shr.u32 %r18, %r4, 4;
cvt.u64.u32 %d5, %r18;
or.b64 %d5, %d5, @DESC@;
mov.u32 %r19, @IDESC@;
add.u32 %r20, %r6, 16;
setp.ne.u32 %p4, %r1, %r1;
tcgen05.mma.cta_group::1.kind::f16 [%r6], [%r20], %d5, %r19, %p4;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3];
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r3], 0;
@!%p5 bra WAIT;
tcgen05.fence::after_thread_sync;
tcgen05.ld.sync.aligned.32x32b.x16.b32 {%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7, %f8, %f9, %f10, %f11, %f12, \
%f13, %f14, %f15}, [%r8];
tcgen05.wait::ld.sync.aligned;
ld.param.u64 %d6, [p2];
mul.wide.u32 %d7, %r1, 64;
add.u64 %d6, %d6, %d7;
st.global.v4.f32 [%d6], {%f0, %f1, %f2, %f3};
st.global.v4.f32 [%d6+16], {%f4, %f5, %f6, %f7};
st.global.v4.f32 [%d6+32], {%f8, %f9, %f10, %f11};
st.global.v4.f32 [%d6+48], {%f12, %f13, %f14, %f15};
tcgen05.fence::before_thread_sync;
bar.sync 0;
@%p2 bra DONE;
tcgen05.fence::after_thread_sync;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r6, 32;
DONE:
""",
    ".param .u64 p0, .param .u64 p1, .param .u64 p2",
    target="sm_100a",
    head=".extern .shared .align 1024 .b8 dyn[];\n",
    threads=128,
)
# B without swizzle: 8x8 core matrices of 128 bytes; 128 bytes apart along K (LBO), 256 bytes along N (SBO).
TMEM_A = TMEM_A.replace("@DESC@", str(desc_constant(256, 0, lbo=128))).replace(
    "@IDESC@", str(1 << 4 | 1 << 7 | 1 << 10 | 2 << 17 | 8 << 24)
)


def run_tmem_a(
    ptx: str, interleaving: Interleaving, check: str = "report", **kw: object
) -> tuple[Report, bool]:
    rng = np.random.default_rng(7)
    a, b = rng.integers(-4, 5, (128, 16)).astype(np.float32), rng.integers(-4, 5, (16, 16)).astype(np.float32)
    c = np.zeros((128, 16), np.float32)
    packed = bf16(b).reshape(2, 8, 2, 8).transpose(0, 2, 1, 3).copy()  # n/8, k/8, n%8, k%8
    r = launch(
        ptx, 1, 128, [bf16(a), packed, c], dynamic_smem=2048, interleaving=interleaving, check=check, **kw
    )  # type: ignore[arg-type]
    return r, bool((c == a @ b.T).all())


PROGRAMS = {
    "reduce": (REDUCE, run_reduce),
    "histogram": (HISTOGRAM, run_histogram),
    "pipeline": (PIPELINE, run_pipeline),
    "cp_async": (CP_ASYNC, run_cp_async),
    "wgmma": (WGMMA, run_wgmma),
    "tcgen": (TCGEN, run_tcgen),
    "tmem_a": (TMEM_A, run_tmem_a),
}
