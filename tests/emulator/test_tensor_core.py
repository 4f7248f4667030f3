"""Layouts of mma.sync, ldmatrix, wgmma, tcgen05.mma and tensor memory: integers make any slip visible."""

import numpy as np
import pytest
import torch

from ptx_emulator import EmulatorError, Interleaving, launch

from .kernels import bf16, desc_constant, simple
from .probes import canonical

HEAD = ".extern .shared .align 1024 .b8 dyn[];\n"
FORMATS = {
    "bf16": (2, lambda x: bf16(x)),
    "f16": (2, lambda x: x.astype(np.float16).view(np.uint16)),
    "tf32": (4, lambda x: x.astype(np.float32).view(np.uint32)),
    "e4m3": (1, lambda x: torch.from_numpy(x.copy()).to(torch.float8_e4m3fn).view(torch.uint8).numpy()),
    "e5m2": (1, lambda x: torch.from_numpy(x.copy()).to(torch.float8_e5m2).view(torch.uint8).numpy()),
}


def ints(shape, seed):
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize(
    ("fmt", "k"),
    [
        ("bf16", 16),
        ("bf16", 8),
        ("f16", 16),
        ("f16", 8),
        ("tf32", 8),
        ("tf32", 4),
        ("e4m3", 32),
        ("e5m2", 32),
        ("e4m3", 16),
    ],
)
def test_mma_sync(fmt, k):
    size, enc = FORMATS[fmt]
    e = 4 // size
    a, b, c = ints((16, k), 1), ints((8, k), 2), ints((16, 8), 3)
    na, nb = (4, 2) if k * size == 32 else (2, 1)
    t = np.arange(32)
    g, q = t // 4, t % 4
    fa, fb = enc(a), enc(b)
    ra = np.stack(
        [
            np.stack([fa[g + 8 * (r & 1), e * q + i + 4 * e * (r >> 1)] for i in range(e)], -1)
            for r in range(na)
        ]
    )
    rb = np.stack([np.stack([fb[g, e * q + i + 4 * e * r] for i in range(e)], -1) for r in range(nb)])
    ra, rb = (np.ascontiguousarray(x).view(np.uint32).reshape(-1, 32) for x in (ra, rb))
    rc = np.stack([c[g + 8 * (i >> 1), 2 * q + (i & 1)] for i in range(4)]).astype(np.float32)
    d = np.zeros((4, 32), np.float32)
    load = "".join(f"ld.global.b32 %r{10 + i}, [%d2+{128 * i}];" for i in range(na))
    load += "".join(f"ld.global.b32 %r{20 + i}, [%d3+{128 * i}];" for i in range(nb))
    load += "".join(f"ld.global.f32 %f{i}, [%d4+{128 * i}];" for i in range(4))
    ra_text, rb_text = (", ".join(f"%r{base + i}" for i in range(n)) for base, n in ((10, na), (20, nb)))
    ptx = simple(
        "mov.u32 %r1, %tid.x; mul.wide.u32 %d1, %r1, 4;\n"
        + "".join(f"ld.param.u64 %d{2 + i}, [p{i}]; add.u64 %d{2 + i}, %d{2 + i}, %d1;\n" for i in range(4))
        + load
        + f"\nmma.sync.aligned.m16n8k{k}.row.col.f32.{fmt}.{fmt}.f32 {{%f4, %f5, %f6, %f7}}, {{{ra_text}}}, "
        f"{{{rb_text}}}, {{%f0, %f1, %f2, %f3}};\n"
        + "".join(f"st.global.f32 [%d5+{128 * i}], %f{4 + i};" for i in range(4)),
        ", ".join(f".param .u64 p{i}" for i in range(4)),
    )
    launch(ptx, 1, 32, [ra, rb, rc, d])
    expect = a @ b.T + c
    assert (d == np.stack([expect[g + 8 * (i >> 1), 2 * q + (i & 1)] for i in range(4)])).all()


@pytest.mark.parametrize("trans", [False, True])
def test_ldmatrix_and_stmatrix(trans):
    mats = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    out = np.zeros((4, 8, 8), np.uint16)
    t = ".trans" if trans else ""
    ptx = simple(
        f"""
mov.u32 %r1, %tid.x; mov.u32 %r2, dyn; shl.b32 %r3, %r1, 4; add.u32 %r4, %r2, %r3;
cvt.u64.u32 %d1, %r3; ld.param.u64 %d2, [p0]; add.u64 %d2, %d2, %d1;
ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%d2];
st.shared.v4.u32 [%r4], {{%r10, %r11, %r12, %r13}};
bar.warp.sync -1;
ldmatrix.sync.aligned.m8n8.x4{t}.shared.b16 {{%r20, %r21, %r22, %r23}}, [%r4];
add.u32 %r5, %r4, 512;
stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r5], {{%r20, %r21, %r22, %r23}};
bar.warp.sync -1;
ld.shared.v4.u32 {{%r10, %r11, %r12, %r13}}, [%r5];
ld.param.u64 %d3, [p1]; add.u64 %d3, %d3, %d1;
st.global.v4.u32 [%d3], {{%r10, %r11, %r12, %r13}};
""",
        ".param .u64 p0, .param .u64 p1",
        head=HEAD,
    )
    launch(ptx, 1, 32, [mats, out], dynamic_smem=1024)
    assert (out == (mats.transpose(0, 2, 1) if trans else mats)).all()


@pytest.mark.parametrize("count", [1, 2])
def test_matrices_of_bytes(count):
    """ldmatrix gives a lane four rows of one column, stmatrix takes two rows of two columns from it."""
    n = 2 * count
    mats = np.arange(256 * count, dtype=np.uint32).astype(np.uint8).reshape(count, 16, 16)
    if count == 2:
        mats[1] ^= 0xA5
    v = ", ".join(f"%r{20 + i}" for i in range(n))
    out, back = np.zeros((n, 32), np.uint32), np.zeros((n, 8, 16), np.uint8)
    ptx = simple(
        f"""
mov.u32 %r1, %tid.x; mov.u32 %r2, dyn; shl.b32 %r3, %r1, 4; add.u32 %r4, %r2, %r3; cvt.u64.u32 %d1, %r3;
setp.ge.u32 %p1, %r1, {16 * count}; ld.param.u64 %d2, [p0]; add.u64 %d2, %d2, %d1;
@!%p1 ld.global.v4.u32 {{%r10, %r11, %r12, %r13}}, [%d2];
@!%p1 st.shared.v4.u32 [%r4], {{%r10, %r11, %r12, %r13}};
bar.warp.sync -1;
ldmatrix.sync.aligned.m16n16.x{count}.trans.shared.b8 {{{v}}}, [%r4];
ld.param.u64 %d3, [p1]; mul.wide.u32 %d4, %r1, 4; add.u64 %d3, %d3, %d4;
"""
        + "".join(f"st.global.u32 [%d3+{128 * i}], %r{20 + i};" for i in range(n))
        + f"""
add.u32 %r5, %r4, 512;
stmatrix.sync.aligned.m16n8.x{n}.trans.shared.b8 [%r5], {{{v}}};
bar.warp.sync -1;
setp.ge.u32 %p2, %r1, {8 * n};
@%p2 bra DONE;
ld.shared.v4.u32 {{%r10, %r11, %r12, %r13}}, [%r5]; ld.param.u64 %d5, [p2]; add.u64 %d5, %d5, %d1;
st.global.v4.u32 [%d5], {{%r10, %r11, %r12, %r13}};
DONE:
""",
        ".param .u64 p0, .param .u64 p1, .param .u64 p2",
        target="sm_100a",
        head=HEAD,
    )
    launch(ptx, 1, 32, [mats, out, back], dynamic_smem=1024)
    g, q = np.divmod(np.arange(32), 4)
    row, col = np.mgrid[:8, :16]
    for i in range(n):
        matrix, column = mats[i // 2], 8 * (i % 2)
        parts = [matrix[4 * q + byte, g + column] for byte in range(4)]
        assert (out[i].view(np.uint8).reshape(32, 4) == np.stack(parts, -1)).all()
        assert (back[i] == matrix[4 * (row // 2) + 2 * (col // 8) + row % 2, col % 8 + column]).all()


def stage(name, reg, nbytes, offset):
    """Copy bytes from a parameter into shared memory, 4 per thread and step."""
    return f"""
ld.param.u64 %d20, [{name}];
mov.u32 %r40, %tid.x; shl.b32 %r41, %r40, 2;
L{name}: cvt.u64.u32 %d21, %r41; add.u64 %d22, %d20, %d21; ld.global.u32 %r42, [%d22];
add.u32 %r43, {reg}, %r41; st.shared.u32 [%r43+{offset}], %r42;
add.u32 %r41, %r41, 512; setp.lt.u32 %p10, %r41, {nbytes}; @%p10 bra L{name};
"""


LAYOUTS_90 = {0: 0, 128: 1, 64: 2, 32: 3}
LAYOUTS_100 = {0: 0, 128: 2, 64: 4, 32: 6}


@pytest.mark.parametrize("n", [8, 64, 256])
@pytest.mark.parametrize("span", [0, 32, 64, 128])
@pytest.mark.parametrize(
    ("fmt", "mn"),
    [
        ("bf16", (0, 0)),
        ("bf16", (1, 0)),
        ("bf16", (0, 1)),
        ("f16", (1, 1)),
        ("tf32", (0, 0)),
        ("e4m3", (0, 0)),
        ("e5m2", (0, 0)),
    ],
)
def test_wgmma_operands(fmt, mn, span, n):
    size, enc = FORMATS[fmt]
    k = 32 // size
    if mn[1] and span and n * size < span:
        pytest.skip("a swizzle row is wider than the operand")
    a, b = ints((64, k), 4), ints((n, k), 5)
    abytes, albo, asbo = canonical(enc(a), span, mn[0], size)
    bbytes, blbo, bsbo = canonical(enc(b), span, mn[1], size)
    d = ", ".join(f"%f{i}" for i in range(n // 2))
    extra = f", {mn[0]}, {mn[1]}" if size == 2 else ""
    store = "".join(
        f"st.global.v2.f32 [%d9+{32 * j}], {{%f{4 * j}, %f{4 * j + 1}}}; "
        f"st.global.v2.f32 [%d9+{32 * j + 32 * n}], {{%f{4 * j + 2}, %f{4 * j + 3}}};\n"
        for j in range(n // 8)
    )
    ptx = simple(
        f"""
.reg .f32 %g<1>;
mov.u32 %r1, %tid.x; mov.u32 %r2, dyn;
{stage("p0", "%r2", len(abytes), 0)}{stage("p1", "%r2", len(bbytes), len(abytes))}
fence.proxy.async.shared::cta;
bar.sync 0;
shr.u32 %r3, %r2, 4; cvt.u64.u32 %d1, %r3;
add.u64 %d2, %d1, {desc_constant(asbo, LAYOUTS_90[span], albo, sm100=False)};
add.u64 %d3, %d1, {desc_constant(bsbo, LAYOUTS_90[span], blbo, sm100=False) + len(abytes) // 16};
setp.ne.u32 %p1, %r1, %r1;
wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n{n}k{k}.f32.{fmt}.{fmt} {{{d}}}, %d2, %d3, %p1, 1, 1{extra};
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
shr.u32 %r4, %r1, 5; shl.b32 %r4, %r4, 4; and.b32 %r5, %r1, 31; shr.u32 %r6, %r5, 2; add.u32 %r4, %r4, %r6;
and.b32 %r7, %r1, 3; shl.b32 %r7, %r7, 3; mul.lo.u32 %r8, %r4, {4 * n}; add.u32 %r8, %r8, %r7; \
cvt.u64.u32 %d8, %r8;
ld.param.u64 %d9, [p2]; add.u64 %d9, %d9, %d8;
{store}""",
        ".param .u64 p0, .param .u64 p1, .param .u64 p2",
        head=HEAD,
    ).replace("%f<80>", "%f<130>")  # fmt: skip
    out = np.zeros((64, n), np.float32)
    launch(ptx, 1, 128, [abytes, bbytes, out], dynamic_smem=len(abytes) + len(bbytes))
    assert (out == a @ b.T).all()


def tcgen_kernel(abytes, bbytes, adesc, bdesc, idesc, kind, ws, n):
    """One MMA from shared memory; dump all 128 lanes x n columns."""
    load = "".join(
        f"add.u32 %r30, %r10, {c};\ntcgen05.ld.sync.aligned.32x32b.x8.b32 "
        f"{{{', '.join(f'%r{50 + i}' for i in range(8))}}}, [%r30];\n"
        "tcgen05.wait::ld.sync.aligned;\n"
        + "".join(f"st.global.b32 [%d9+{4 * (c + i)}], %r{50 + i};" for i in range(8))
        + "\n"
        for c in range(0, n, 8)
    )
    return simple(
        f"""
.shared .align 8 .b8 bar[8];
.shared .align 4 .b8 tm[4];
mov.u32 %r1, %tid.x; mov.u32 %r2, dyn; mov.u32 %r3, bar; mov.u32 %r4, tm;
setp.ne.u32 %p1, %r1, 0; shr.u32 %r5, %r1, 5; setp.ne.u32 %p2, %r5, 0;
@!%p1 mbarrier.init.shared::cta.b64 [%r3], 1;
@%p2 bra ALLOCATED;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 256;
ALLOCATED:
{stage("p0", "%r2", len(abytes), 0)}{stage("p1", "%r2", len(bbytes), len(abytes))}
fence.proxy.async.shared::cta;
bar.sync 0;
ld.shared.u32 %r10, [%r4];
mov.u32 %r20, 0; shl.b32 %r21, %r5, 21; add.u32 %r22, %r10, %r21;
CLEAR:
tcgen05.st.sync.aligned.32x32b.x1.b32 [%r22], {{%r20}};
add.u32 %r22, %r22, 1; add.u32 %r20, %r20, 1; setp.lt.u32 %p3, %r20, {n}; mov.u32 %r23, 0;
@%p3 bra CLEAR;
tcgen05.wait::st.sync.aligned;
tcgen05.fence::before_thread_sync;
bar.sync 0;
tcgen05.fence::after_thread_sync;
@%p1 bra WAIT;
shr.u32 %r6, %r2, 4; cvt.u64.u32 %d1, %r6;
add.u64 %d2, %d1, {adesc};
add.u64 %d3, %d1, {bdesc + len(abytes) // 16};
mov.u32 %r7, {idesc};
setp.ne.u32 %p4, %r1, %r1;
tcgen05.mma{ws}.cta_group::1.kind::{kind} [%r10], %d2, %d3, %r7, %p4;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3];
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r3], 0;
@!%p5 bra WAIT;
tcgen05.fence::after_thread_sync;
mul.wide.u32 %d8, %r1, {4 * n}; ld.param.u64 %d9, [p2]; add.u64 %d9, %d9, %d8;
{load}
tcgen05.fence::before_thread_sync;
bar.sync 0;
@%p2 bra DONE;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 256;
DONE:
""",
        ".param .u64 p0, .param .u64 p1, .param .u64 p2",
        target="sm_100a",
        head=HEAD,
    )


def sm100_desc(sbo, span, lbo):
    d = desc_constant(sbo, LAYOUTS_100[span], lbo)
    return d - (1 << 64) if d >> 63 else d


@pytest.mark.parametrize(
    ("m", "n", "ws"),
    [
        (128, 8, ""),
        (128, 16, ""),
        (128, 256, ""),
        (64, 8, ""),
        (64, 128, ""),
        (128, 64, ".ws"),
        (64, 64, ".ws"),
        (32, 128, ".ws"),
    ],
)
@pytest.mark.parametrize("span", [0, 32, 64, 128])
@pytest.mark.parametrize(
    ("fmt", "mn"),
    [
        ("bf16", (0, 0)),
        ("bf16", (1, 1)),
        ("f16", (0, 1)),
        ("tf32", (0, 0)),
        ("e4m3", (0, 0)),
        ("e5m2", (0, 0)),
    ],
)
def test_tcgen05_mma(fmt, mn, span, m, n, ws):
    size, enc = FORMATS[fmt]
    k = 32 // size
    if span and ((mn[0] and m * size < span) or (mn[1] and n * size < span)):
        pytest.skip("a swizzle row is wider than the operand")
    a, b = ints((m, k), 6), ints((n, k), 7)
    abytes, albo, asbo = canonical(enc(a), span, mn[0], size)
    bbytes, blbo, bsbo = canonical(enc(b), span, mn[1], size)
    kind = {"bf16": "f16", "f16": "f16", "tf32": "tf32"}.get(fmt, "f8f6f4")
    code = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1}[fmt]
    idesc = 1 << 4 | code << 7 | code << 10 | mn[0] << 15 | mn[1] << 16 | (n >> 3) << 17 | (m >> 4) << 24
    out = np.zeros((128, n), np.float32)
    ptx = tcgen_kernel(
        abytes, bbytes, sm100_desc(asbo, span, albo), sm100_desc(bsbo, span, blbo), idesc, kind, ws, n
    )
    launch(
        ptx,
        1,
        128,
        [abytes, bbytes, out],
        dynamic_smem=len(abytes) + len(bbytes),
        interleaving=Interleaving.random(n),
    )
    d = np.zeros((128, n), np.float32)
    cleared = np.broadcast_to(np.arange(n, dtype=np.uint32), (128, n)).copy().view(np.float32)
    d[:] = cleared
    ref = a @ b.T
    for i in range(m):  # the architecture's place of row i: see tmem_frg in CUTLASS
        if m == 128:
            d[i] = ref[i]
        elif m == 64 and not ws:
            d[i % 16 + 32 * (i // 16)] = ref[i]
        elif m == 64:
            d[i, : n // 2], d[i + 64, : n // 2] = ref[i, : n // 2], ref[i, n // 2 :]
        else:
            for quarter in range(4):
                d[i + 32 * quarter, : n // 4] = ref[i, quarter * (n // 4) : (quarter + 1) * (n // 4)]
    np.testing.assert_array_equal(out.view(np.uint32), d.view(np.uint32))


@pytest.mark.parametrize(
    ("shape", "repeat"),
    [("32x32b", 4), ("16x64b", 2), ("16x128b", 2), ("16x256b", 1), ("16x256b", 2), ("16x32bx2", 2)],
)
def test_tmem_load_shapes(shape, repeat):
    """Every lane stores its coordinates with 32x32b; the shape under test reads them back."""
    regs = repeat * {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}[shape]
    split = ", 8" if shape == "16x32bx2" else ""
    names = ", ".join(f"%r{30 + i}" for i in range(regs))
    ptx = simple(
        f"""
.shared .align 4 .b8 tm[4];
mov.u32 %r1, %tid.x; mov.u32 %r4, tm; shr.u32 %r5, %r1, 5; setp.ne.u32 %p2, %r5, 0;
@%p2 bra ALLOCATED;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 32;
ALLOCATED:
bar.sync 0;
ld.shared.u32 %r10, [%r4];
shl.b32 %r21, %r5, 21; add.u32 %r22, %r10, %r21; mov.u32 %r23, %r22; shl.b32 %r20, %r1, 8; mov.u32 %r24, 0;
FILL:
tcgen05.st.sync.aligned.32x32b.x1.b32 [%r22], {{%r20}};
add.u32 %r22, %r22, 1; add.u32 %r20, %r20, 1; add.u32 %r24, %r24, 1; setp.lt.u32 %p3, %r24, 32;
@%p3 bra FILL;
tcgen05.wait::st.sync.aligned;
tcgen05.ld.sync.aligned.{shape}.x{repeat}.b32 {{{names}}}, [%r23]{split};
tcgen05.wait::ld.sync.aligned;
mul.wide.u32 %d8, %r1, {4 * regs}; ld.param.u64 %d9, [p0]; add.u64 %d9, %d9, %d8;
"""
        + "".join(f"st.global.b32 [%d9+{4 * i}], %r{30 + i};" for i in range(regs))
        + """
tcgen05.fence::before_thread_sync;
bar.sync 0;
@%p2 bra DONE;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 32;
DONE:
""",
        target="sm_100a",
    )
    out = np.zeros((128, regs), np.uint32)
    launch(ptx, 1, 128, [out])
    for w in range(4):
        for lane in range(32):
            for r in range(regs):
                row, col = {
                    "32x32b": (lane, r),
                    "16x64b": (lane // 4 + 8 * (lane % 2), lane // 2 % 2 + 2 * r),
                    "16x128b": (lane // 4 + 8 * (r % 2), lane % 4 + 4 * (r // 2)),
                    "16x256b": (lane // 4 + 8 * (r // 2 % 2), r % 2 + 2 * (lane % 4) + 8 * (r // 4)),
                    "16x32bx2": (lane % 16, r + 8 * (lane // 16)),
                }[shape]
                assert out[32 * w + lane, r] == (32 * w + row) << 8 | col


@pytest.mark.parametrize(
    ("m", "n", "ws"), [(128, 64, ".ws"), (64, 64, ".ws"), (64, 128, ".ws"), (32, 128, ".ws"), (64, 64, "")]
)
@pytest.mark.parametrize("copies", [True, False])
def test_a_of_tensor_memory_is_read_in_the_lanes_of_its_sums(m, n, ws, copies):
    """If rows have several copies, each share of the columns is computed from its own lanes' copy."""
    parts = 128 // m if ws else 1
    a, b = ints((parts, m, 16), 6), ints((n, 16), 7)
    if copies:
        a[:] = a[0]
    bbytes, blbo, bsbo = canonical(bf16(b), 128, 0, 2)
    idesc = 1 << 4 | 1 << 7 | 1 << 10 | (n >> 3) << 17 | (m >> 4) << 24
    lanes = (
        [[i % 16 + 32 * (i // 16) for i in range(m)]]
        if m == 64 and not ws
        else [range(m * part, m * part + m) for part in range(parts)]
    )
    held = np.zeros((128, 16), np.float32)
    for part, where in enumerate(lanes):
        held[list(where)] = a[part]
    words = np.ascontiguousarray(bf16(held)).view(np.uint8).reshape(-1)
    shared = tcgen_kernel(words, bbytes, 0, sm100_desc(bsbo, 128, blbo), idesc, "f16", ws, n)
    eight = ", ".join(f"%r{50 + i}" for i in range(8))
    fill = (
        "mul.wide.u32 %d7, %r1, 32; ld.param.u64 %d6, [p0]; add.u64 %d6, %d6, %d7;\n"
        + "".join(f"ld.global.b32 %r{50 + i}, [%d6+{4 * i}];" for i in range(8))
        + f"\nadd.u32 %r31, %r22, 16;\ntcgen05.st.sync.aligned.32x32b.x8.b32 [%r31], {{{eight}}};\n"
    )
    ptx = shared.replace("tcgen05.wait::st", fill + "tcgen05.wait::st")
    ptx = ptx.replace("[%r10], %d2, %d3", "[%r10], [%r32], %d3").replace(
        "setp.ne.u32 %p4", f"add.u32 %r32, %r10, {n + 16};\nsetp.ne.u32 %p4"
    )
    out = np.zeros((128, n), np.float32)
    launch(ptx, 1, 128, [words, bbytes, out], dynamic_smem=len(words) + len(bbytes))
    share = n // parts
    for part, where in enumerate(lanes):
        columns = slice(part * share, part * share + share)
        np.testing.assert_array_equal(out[list(where), :share], a[part] @ b[columns].T)


def test_padding_rows_may_be_uninitialised_on_request():
    """Only 16 of 64 rows of A are written: refused by default; if allowed, dependent rows stay poisoned."""
    a, b = ints((64, 16), 8), ints((16, 16), 9)
    abytes, albo, asbo = canonical(bf16(a), 0, 0, 2)
    bbytes, blbo, bsbo = canonical(bf16(b), 0, 0, 2)
    idesc = 1 << 4 | 1 << 7 | 1 << 10 | 2 << 17 | 4 << 24
    full = tcgen_kernel(
        abytes, bbytes, sm100_desc(asbo, 0, albo), sm100_desc(bsbo, 0, blbo), idesc, "f16", "", 16
    )
    part = full.replace(
        f"setp.lt.u32 %p10, %r41, {len(abytes)}; @%p10 bra Lp0;",
        "setp.lt.u32 %p10, %r41, 512; @%p10 bra Lp0;",
    )
    assert part != full
    args = [abytes, bbytes, np.zeros((128, 16), np.float32)]
    smem = len(abytes) + len(bbytes)
    with pytest.raises(EmulatorError, match="uninit-memory"):
        launch(part, 1, 128, args, dynamic_smem=smem)
    report = launch(part, 1, 128, args, dynamic_smem=smem, allow_uninit_mma=True, check="report")
    assert {f.code for f in report.errors} <= {"uninit-memory"}
    assert (args[2][:16] == (a @ b.T)[:16]).all()


@pytest.mark.parametrize("span", [0, 32, 128])
@pytest.mark.parametrize(
    ("shape", "rows", "words"),
    [
        ("128x256b", 128, 8),
        ("4x256b", 4, 8),
        ("128x128b", 128, 4),
        ("64x128b.warpx2::02_13", 64, 4),
        ("64x128b.warpx2::01_23", 64, 4),
        ("32x128b.warpx4", 32, 4),
    ],
)
def test_tmem_copy(shape, rows, words, span):
    x = np.arange(rows * words, dtype=np.uint32).reshape(rows, words) + 1000
    raw, lbo, sbo = canonical(x, span, 0, 4)
    names = ", ".join(f"%r{50 + i}" for i in range(8))
    zeros = ", ".join(["%r20"] * 8)
    ptx = simple(
        f"""
.shared .align 8 .b8 bar[8];
.shared .align 4 .b8 tm[4];
mov.u32 %r1, %tid.x; mov.u32 %r2, dyn; mov.u32 %r3, bar; mov.u32 %r4, tm; mov.u32 %r20, 0;
setp.ne.u32 %p1, %r1, 0; shr.u32 %r5, %r1, 5; setp.ne.u32 %p2, %r5, 0;
@!%p1 mbarrier.init.shared::cta.b64 [%r3], 1;
@%p2 bra ALLOCATED;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r4], 32;
ALLOCATED:
{stage("p0", "%r2", len(raw), 0)}
fence.proxy.async.shared::cta;
bar.sync 0;
ld.shared.u32 %r10, [%r4];
tcgen05.st.sync.aligned.32x32b.x8.b32 [%r10], {{{zeros}}};
tcgen05.wait::st.sync.aligned;
tcgen05.fence::before_thread_sync;
bar.sync 0;
tcgen05.fence::after_thread_sync;
@%p1 bra WAIT;
shr.u32 %r6, %r2, 4; cvt.u64.u32 %d1, %r6; add.u64 %d2, %d1, {sm100_desc(sbo, span, lbo)};
tcgen05.cp.cta_group::1.{shape} [%r10], %d2;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r3];
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p5, [%r3], 0;
@!%p5 bra WAIT;
tcgen05.fence::after_thread_sync;
tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{names}}}, [%r10];
tcgen05.wait::ld.sync.aligned;
mul.wide.u32 %d8, %r1, 32; ld.param.u64 %d9, [p1]; add.u64 %d9, %d9, %d8;
st.global.v4.u32 [%d9], {{%r50, %r51, %r52, %r53}}; st.global.v4.u32 [%d9+16], {{%r54, %r55, %r56, %r57}};
tcgen05.fence::before_thread_sync;
bar.sync 0;
@%p2 bra DONE;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r10, 32;
DONE:
""",
        ".param .u64 p0, .param .u64 p1",
        target="sm_100a",
        head=HEAD,
    )
    out = np.zeros((128, 8), np.uint32)
    launch(ptx, 1, 128, [raw, out], dynamic_smem=len(raw), interleaving=Interleaving.random(rows))
    expect = np.zeros((128, 8), np.uint32)
    for r in range(rows):
        for lane in {
            "4x256b": [32 * r],
            "64x128b.warpx2::02_13": [r, r + 64],
            "64x128b.warpx2::01_23": [64 * (r // 32) + r % 32, 64 * (r // 32) + r % 32 + 32],
            "32x128b.warpx4": [r, r + 32, r + 64, r + 96],
        }.get(shape, [r]):
            expect[lane, :words] = x[r]
    assert (out == expect).all()
