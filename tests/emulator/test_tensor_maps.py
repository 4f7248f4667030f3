"""Tensor maps that a kernel changes: copied from its parameter, pointed at another tensor, and used."""

import struct

import numpy as np
import pytest

from ptx_emulator import (
    Descriptor,
    RawArguments,
    Region,
    TensorMap,
    UnsupportedInstruction,
    interleavings,
    launch,
)

from .kernels import assembles, simple

# One warp copies the map, points it at the tensor p1 (dimensions p3 x p4, rows p5 bytes apart), loads the box
# at its end and stores what it loaded to p2.
KERNEL = simple(
    """
.shared .align 128 .b8 map[128];
.shared .align 128 .b8 box[512];
.shared .align 8 .b8 bar[8];
mov.u32 %r1, %tid.x; mov.u32 %r2, map; mov.u32 %r3, box; mov.u32 %r4, bar; shl.b32 %r5, %r1, 2; \
cvt.u64.u32 %d9, %r5;
ld.param.u64 %d1, [p1]; ld.param.u64 %d2, [p2]; ld.param.u64 %d3, [ws];
ld.param.u32 %r10, [p3]; ld.param.u32 %r11, [p4]; ld.param.u64 %d4, [p5];
mov.b64 %d5, p0; cvta.param.u64 %d5, %d5; add.u64 %d6, %d5, %d9; ld.u32 %r6, [%d6];
add.u32 %r7, %r2, %r5; st.shared.u32 [%r7], %r6;
setp.ne.u32 %p1, %r1, 0;
@!%p1 mbarrier.init.shared.b64 [%r4], 1;
bar.warp.sync -1;
@%p1 bra CHANGED;
tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r2], %d1;
tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r2], 0, %r10;
tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r2], 1, %r11;
tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r2], 0, %d4;
@ MORE
CHANGED:
bar.warp.sync -1;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d3], [%r2], 128;
fence.proxy.tensormap::generic.acquire.gpu [%d3], 128;
fence.proxy.async;
@%p1 bra WAIT;
mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 512;
sub.u32 %r12, %r10, 8; sub.u32 %r13, %r11, 8;
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r3], [%d3, {%r12, %r13}], \
[%r4];
WAIT: mbarrier.try_wait.parity.shared.b64 %p2, [%r4], 0; @!%p2 bra WAIT;
shl.b32 %r14, %r1, 4; add.u32 %r15, %r3, %r14; ld.shared.v4.u32 {%r20, %r21, %r22, %r23}, [%r15];
cvt.u64.u32 %d7, %r14; add.u64 %d8, %d2, %d7; st.global.v4.u32 [%d8], {%r20, %r21, %r22, %r23};
""",
    ".param .align 64 .b8 p0[128], .param .u64 p1, .param .u64 p2, .param .u32 p3, .param .u32 p4, .param "
    ".u64 p5, .param .u64 ws",
    threads=32,
)


def run(text, rows=20, columns=24, **kw):
    """The report, and whether the last four columns and rows, followed by zeros, arrived."""
    first, second = (np.arange(rows * columns, dtype=np.uint32).reshape(rows, columns) + x for x in (0, 5000))
    out = np.zeros((8, 16), np.uint32)
    # The map is of the first tensor; the kernel's box ends four columns and four rows outside the second.
    work = np.zeros(128, np.uint8)
    args = [TensorMap(first[:16, :16], box=(16, 8)), second, out, columns - 4, rows - 4, columns * 4, work]
    report = launch(text, 1, 32, args, check="report", **kw)
    expect = np.zeros((8, 16), np.uint32)
    part = second[rows - 12 : rows - 4, columns - 12 : columns - 4]
    expect[: part.shape[0], : part.shape[1]] = part
    return report, (out == expect).all()


def codes(text):
    return {f.code for f in run(text)[0].errors}


RIGHT = KERNEL.replace("@ MORE", "")


def test_a_map_is_given_another_tensor():
    for s in interleavings(12):
        report, right = run(RIGHT, interleaving=s, strict_races=True)
        assert report.ok and right, f"{report} under {s}"


def test_the_first_half_of_a_map_is_enough():
    """CuTe DSL's kernels copy 64 of its 128 bytes."""
    whole = "st.shared.u32 [%r7], %r6;"
    assert whole in RIGHT
    half = RIGHT.replace(whole, f"setp.gt.u32 %p5, %r1, 15; @!%p5 {whole}")
    report, right = run(half, strict_races=True)
    assert report.ok and right, report
    assert "uninit-memory" in codes(half.replace("%r1, 15;", "%r1, 13;"))


def test_a_map_that_the_parameters_bytes_hold_is_copied_too():
    """Passed as by host code: the kernel gets a map that it may change and use, but not its encoding."""
    first, second = (np.arange(480, dtype=np.uint32).reshape(20, 24) + x for x in (0, 5000))
    out, work = np.zeros((8, 16), np.uint32), np.zeros(256, np.uint8)
    work = work[-work.ctypes.data % 128 :]
    encoded = Descriptor(first.ctypes.data, 2, (16, 16), (96,), (16, 8)).encode()
    numbers = [struct.pack("<i", n) for n in (20, 16)]
    pointers = [
        struct.pack("<Q", n) for n in (second.ctypes.data, out.ctypes.data, 80 + 16, work.ctypes.data)
    ]
    params = [encoded, *pointers[:2], *numbers, *pointers[2:]]
    report = launch(RIGHT, 1, 32, RawArguments(params, [Region(x) for x in (first, second, out, work)]))
    assert report.ok and (out[:, :8] == second[8:16, 12:20]).all() and not out[:, 8:].any(), out


OTHER = """
tensormap.replace.tile.rank.shared::cta.b1024.b32 [%r2], 2;
tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%r2], 7;
tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r2], 0, 4;
tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%r2], 1, 2;
tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [%r2], 1;
tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%r2], 3;
tensormap.replace.tile.swizzle_atomicity.shared::cta.b1024.b32 [%r2], 1;
tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%r2], 1;
"""
SAME = """
tensormap.replace.tile.rank.shared::cta.b1024.b32 [%r2], 1;
tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%r2], 2;
tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [%r2], 0, 16;
tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [%r2], 1, 1;
tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [%r2], 0;
tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%r2], 0;
tensormap.replace.tile.swizzle_atomicity.shared::cta.b1024.b32 [%r2], 0;
tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [%r2], 0;
"""


def test_every_field_is_replaced():
    """Type, box, rank and modes change and change back; then others stay, and show."""
    report, right = run(KERNEL.replace("@ MORE", OTHER + SAME))
    assert report.ok and right, report
    for i, line in enumerate(SAME.strip().splitlines()):
        text = KERNEL.replace("@ MORE", OTHER + SAME.replace(line, ""))
        report, right = run(text)
        # A NaN fill, or another type of the same size, is legal; other changes are refused or give other
        # numbers.
        legal = "elemtype" in line or "atomicity" in line
        assert (report.ok and right) == legal, (i, line, report)


def test_a_map_is_changed_in_global_memory():
    """Without shared memory: the warp stores the map, one thread changes it, then release and acquire."""
    text = RIGHT.replace(
        "add.u32 %r7, %r2, %r5; st.shared.u32 [%r7], %r6;",
        "add.u64 %d10, %d3, %d9; st.global.u32 [%d10], %r6;",
    )
    text = text.replace(".shared::cta.b1024.b64 [%r2]", ".global.b1024.b64 [%d3]").replace(
        ".shared::cta.b1024.b32 [%r2]", ".b1024.b32 [%d3]"
    )
    copied = (
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d3], "
        "[%r2], 128;"
    )
    assert copied in text
    report, right = run(text.replace(copied, "fence.proxy.tensormap::generic.release.gpu;"))
    assert report.ok and right, report


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("fence.proxy.tensormap::generic.acquire.gpu [%d3], 128;", "", "missing-tensormap-fence"),
        ("fence.proxy.tensormap::generic.acquire.gpu [%d3], 128;",
         "add.u64 %d11, %d3, 64; fence.proxy.tensormap::generic.acquire.gpu [%d11], 128;",
         "missing-tensormap-fence"),
        ("bar.warp.sync -1;\n@%p1 bra CHANGED;",
         "bar.warp.sync -1;\n@%p1 bra CHANGED; st.shared.u32 [%r2+8], %r1;", "tensor-map"),
        ("mov.b64 %d5, p0; cvta.param.u64 %d5, %d5;", "mov.u64 %d5, %d1;", "tensor-map"),
        ("[%r2], 0, %d4;", "[%r2], 0, 24;", "tensor-map"),
        ("[%r2], 0, %d4;", "[%r2], 4, %d4;", "tensor-map"),
        ("[%d3], [%r2], 128;", "[%d5], [%r2], 128;", "out-of-bounds-global"),
        ("[%r2], %d1;", "[%r2+64], %d1;", "misaligned"),
        ("[%d3, {%r12", "[%d1, {%r12", "tensor-map"),
    ],
)  # fmt: skip
def test_slips_are_found(old, new, code):
    assert old in RIGHT
    assert code in codes(RIGHT.replace(old, new))


def test_a_map_that_another_warp_has_not_finished_is_a_race():
    text = RIGHT.replace(".reqntid 32", ".reqntid 64").replace(
        "@%p1 bra WAIT;", "setp.ne.u32 %p3, %r1, 32; @%p3 bra WAIT;"
    )
    early = text.replace(
        "bar.warp.sync -1;\n@%p1 bra CHANGED;",
        "shr.u32 %r30, %r1, 5; setp.eq.u32 %p4, %r30, 1; @%p4 bra ACQUIRE;\n@%p1 bra CHANGED;",
    )
    early = early.replace("fence.proxy.tensormap", "ACQUIRE: fence.proxy.tensormap").replace(
        "st.shared.u32 [%r7], %r6;", "setp.gt.u32 %p5, %r1, 31; @!%p5 st.shared.u32 [%r7], %r6; bar.sync 0;"
    )
    early = early.replace(
        "ld.u32 %r6, [%d6];", "setp.gt.u32 %p5, %r1, 31; mov.u32 %r6, 0; @!%p5 ld.u32 %r6, [%d6];"
    )
    first = np.zeros((16, 16), np.uint32)
    reported = set()
    for s in interleavings(6):
        args = [
            TensorMap(first, box=(16, 8)),
            first.copy(),
            np.zeros((8, 16), np.uint32),
            16,
            16,
            64,
            np.zeros(128, np.uint8),
        ]
        reported |= {f.code for f in launch(early, 1, 64, args, check="report", interleaving=s).errors}
    assert reported & {"race", "missing-tensormap-fence", "tensor-map"}


@pytest.mark.parametrize(
    "line",
    [
        "tensormap.replace.tile.global_address.shared::cta.b1024.b32 [%r2], %r1;",
        "tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [%r2], %r1;",
        "tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r2], %r1;",
        "tensormap.replace.im2col.rank.shared::cta.b1024.b32 [%r2], %r1;",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d3], "
        "[%r2], 64;",
        "fence.proxy.tensormap::generic.acquire.gpu [%d3], 64;",
        "fence.proxy.tensormap::generic.acquire.gpu;",
    ],
)
def test_other_forms_are_refused(line):
    with pytest.raises(UnsupportedInstruction):
        launch(KERNEL.replace("@ MORE", line), 1, 32, [None] * 7)


def test_ptxas_accepts(tmp_path):
    assembles(RIGHT, tmp_path)
    assembles(KERNEL.replace("@ MORE", OTHER).replace("sm_90a", "sm_100a"), tmp_path)
