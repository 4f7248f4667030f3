"""mma.sp and wgmma.mma_async.sp: products of the dense matrix that A stands for; meaningless metadata."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ptx_emulator import Interleaving, Report, UnsupportedInstruction, launch

from .kernels import assembles, desc_constant, simple
from .probes import canonical
from .test_tensor_core import FORMATS, HEAD, LAYOUTS_90, ints, stage

S8 = {"s8": (1, lambda x: x.astype(np.int8).view(np.uint8)), "u8": (1, lambda x: x.astype(np.uint8))}
ENCODE = {**FORMATS, **S8}

# Metadata of a chunk: the places of its stored elements, the first in the lower bits.
PAIRS = [(i, j) for i in range(4) for j in range(4) if i != j]
ASCENDING = [(i, j) for i, j in PAIRS if i < j]


def sparse(
    rows: int, k: int, size: int, seed: int, ordered: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A dense matrix, its stored elements [rows, k / 2], and four metadata bits per chunk."""
    generator = np.random.default_rng(seed)
    chunk = 2 if size == 4 else 4
    dense, stored = (
        np.zeros((rows, k), np.float32),
        generator.integers(1, 5, (rows, k // 2)).astype(np.float32),
    )
    bits = np.zeros((rows, k // chunk), np.uint32)
    choices = ASCENDING if ordered else PAIRS
    for r in range(rows):
        for c in range(k // chunk):
            if chunk == 2:
                at = generator.integers(2)
                bits[r, c] = (0b0100, 0b1110)[at]
                dense[r, 2 * c + at] = stored[r, c]
            else:
                pair = choices[generator.integers(len(choices))]
                bits[r, c] = pair[0] | pair[1] << 2
                dense[r, [4 * c + i for i in pair]] = stored[r, 2 * c : 2 * c + 2]
    return dense, stored, bits


def metadata(bits: np.ndarray, size: int, selector: int, junk: int = 0) -> np.ndarray:
    """The registers of a warp for 16 rows, by CUTLASS's layouts of metadata (lane and value to row and
    column).

    Lanes that contribute nothing hold `junk`.
    """
    out = np.full(32, junk, np.uint32)
    chunks = bits.shape[1]
    for g in range(8):
        if (
            size == 1 and chunks == 16
        ):  # ELayout_64x64: a row's columns 0 to 31, the row 8 below, then columns 32 to 63
            parts = [(4 * g, g, 0), (4 * g + 1, g + 8, 0), (4 * g + 2, g, 8), (4 * g + 3, g + 8, 8)]
        elif size == 1:
            parts = [(4 * g + 2 * selector, g, 0), (4 * g + 2 * selector + 1, g + 8, 0)]
        elif chunks == 8:  # ELayout_64x32 and ELayout_64x16: half of two rows
            parts = [(4 * g + 2 * selector + half, g, 4 * half) for half in range(2)]
        else:
            parts = [(4 * g + selector, g, 0)]
        for lane, row, first in parts:
            values = [*bits[row, first : first + (8 if size == 1 else 4)]]
            values += [] if size == 1 else [*bits[row + 8, first : first + 4]]
            out[lane] = sum(int(v) << 4 * i for i, v in enumerate(values))
    return out


def fragments(a: np.ndarray, b: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Registers of A [16, stored] and B [8, k] by lane, as in the dense instruction of k = stored."""
    e, g, q = 4 // size, np.arange(32) // 4, np.arange(32) % 4
    na, nb = a.shape[1] * size // 8, b.shape[1] * size // 16
    ra = [
        np.stack([a[g + 8 * (r & 1), e * q + i + 4 * e * (r >> 1)] for i in range(e)], -1) for r in range(na)
    ]
    rb = [np.stack([b[g, e * q + i + 4 * e * r] for i in range(e)], -1) for r in range(nb)]
    a_words, b_words = (np.ascontiguousarray(x).view(np.uint32).reshape(-1, 32) for x in (ra, rb))
    return a_words, b_words


def mma_kernel(
    fmt: str, k: int, na: int, nb: int, selector: int, spelling: str, tc: str, written: str = ""
) -> str:
    """d = a b + c; `written` guards the load of the metadata."""
    count = 2 if tc == "f16" else 4

    def registers(first: int, n: int) -> str:
        return "{" + ", ".join(f"%r{first + i}" for i in range(n)) + "}"

    loads = "".join(
        f"ld.param.u64 %d1, [p{p}]; add.u64 %d1, %d1, %d0;"
        + "".join(f"ld.global.b32 %r{first + i}, [%d1+{128 * i}];" for i in range(n))
        for p, first, n in ((0, 10, na), (1, 20, nb), (2, 30, count))
    )
    other = {"s8": "u8", "e4m3": "e5m2"}.get(fmt, fmt)
    suffix = ".satfinite" if fmt == "s8" else ""
    return simple(
        f"""
mov.u32 %r1, %tid.x; mul.wide.u32 %d0, %r1, 4; and.b32 %r2, %r1, 3; setp.eq.u32 %p1, %r2, 0; {loads}
ld.param.u64 %d1, [p3]; add.u64 %d1, %d1, %d0; {written} ld.global.b32 %r9, [%d1];
mma.{spelling}.sync.aligned.m16n8k{k}.row.col{suffix}.{tc}.{fmt}.{other}.{tc} {registers(40, count)}, \
{registers(10, na)}, {registers(20, nb)}, {registers(30, count)}, %r9, {selector};
ld.param.u64 %d1, [p4]; add.u64 %d1, %d1, %d0;
"""
        + "".join(f"st.global.b32 [%d1+{128 * i}], %r{40 + i};" for i in range(count)),
        ", ".join(f".param .u64 p{i}" for i in range(5)),
    )


MMA = [
    ("f16", 16, "f32", 4), ("f16", 32, "f32", 2), ("f16", 16, "f16", 4), ("f16", 32, "f16", 2),
    ("bf16", 16, "f32", 4),
    ("bf16", 32, "f32", 2), ("tf32", 8, "f32", 4), ("tf32", 16, "f32", 2), ("e4m3", 64, "f32", 1),
    ("s8", 32, "s32", 2),
    ("s8", 64, "s32", 1),
]  # fmt: skip


def run_mma(
    fmt: str,
    k: int,
    tc: str,
    selector: int,
    spelling: str = "sp",
    change=lambda bits: bits,
    check="report",
    **kernel,
) -> tuple[Report, np.ndarray, np.ndarray]:
    """The report, D, and the expected D."""
    size, encode = ENCODE[fmt]
    other = ENCODE[{"s8": "u8", "e4m3": "e5m2"}.get(fmt, fmt)][1]
    dense, stored, bits = sparse(16, k, size, 1, spelling != "sp")
    b, c = np.abs(ints((8, k), 2)), ints((16, 8), 3)
    ra, rb = fragments(encode(stored), other(b), size)
    meta = metadata(change(bits), size, selector, junk=kernel.pop("junk", 0))
    g, q = np.arange(32) // 4, np.arange(32) % 4
    rc = np.stack([c[g + 8 * (i >> 1), 2 * q + (i & 1)] for i in range(4)])
    if tc == "f16":
        rc = np.stack([rc[[0, 1]], rc[[2, 3]]]).transpose(0, 2, 1).astype(np.float16)
    rc = (
        np.ascontiguousarray(
            rc.astype(np.int32) if tc == "s32" else rc.astype(np.float16 if tc == "f16" else np.float32)
        )
        .view(np.uint32)
        .reshape(-1, 32)
    )
    d = np.zeros_like(rc)
    text = mma_kernel(fmt, k, len(ra), len(rb), selector, spelling, tc, **kernel)
    report = launch(text, 1, 32, [ra, rb, rc, meta, d], check=check)
    found = np.zeros((16, 8), np.float32)
    typed = d.view({"f32": np.float32, "f16": np.float16, "s32": np.int32}[tc]).astype(np.float32)
    for i in range(4):
        values = typed.reshape(2, 32, 2)[i >> 1, :, i & 1] if tc == "f16" else typed[i]
        found[g + 8 * (i >> 1), 2 * q + (i & 1)] = values
    return report, found, dense @ b.T + c


@pytest.mark.parametrize("spelling", ["sp", "sp::ordered_metadata"])
@pytest.mark.parametrize(
    ("fmt", "k", "tc", "selector"), [(f, k, tc, s) for f, k, tc, most in MMA for s in range(most)]
)
def test_mma_multiplies_by_the_dense_matrix(fmt: str, k: int, tc: str, selector: int, spelling: str) -> None:
    """Other lanes hold meaningless metadata, which is not read."""
    _, found, expect = run_mma(fmt, k, tc, selector, spelling, check="raise")
    assert (found == expect).all()


def test_the_assembler_takes_what_is_multiplied(tmp_path: Path) -> None:
    for fmt, k, tc, most in MMA:
        size = ENCODE[fmt][0]
        text = mma_kernel(fmt, k, k * size // 16, k * size // 16, most - 1, "sp::ordered_metadata", tc)
        assembles(text, tmp_path)
    for case in WGMMA:
        for registers in (False, True):
            assembles(prepared(*case, registers, True)[0], tmp_path)


def test_sums_of_integers_saturate_where_it_is_asked_for() -> None:
    """And wrap around otherwise; the dense instruction does too."""
    for spelling in ("sp", "sp::ordered_metadata", ""):
        text = mma_kernel("s8", 32, 2 if spelling else 4, 2, 0, spelling or "sp", "s32")
        if not spelling:
            text = text.replace("mma.sp.", "mma.").replace(", %r9, 0;", ";")
        ones = np.full((4, 32), 0x01010101, np.uint32)
        c = np.full((4, 32), 2**31 - 3, np.uint32)
        meta, d = np.full(32, 0x44444444, np.uint32), np.zeros((4, 32), np.uint32)
        products = 16 if spelling else 32
        for how, expect in (
            (text, 2**31 - 1),
            (text.replace(".satfinite", ""), 2**31 - 3 + products),
        ):
            launch(how, 1, 32, [ones, ones, c, meta, d])
            assert (d == expect).all(), spelling


@pytest.mark.parametrize("fmt", ["f16", "e4m3"])
def test_rows_of_b_that_no_element_meets_are_not_read(fmt: str) -> None:
    """An infinity in them does not affect the sums."""
    k, size = (32, 2) if fmt == "f16" else (64, 1)
    infinity = np.uint16(0x7C00) if fmt == "f16" else np.uint8(0x7C)
    a, b = np.ones((16, k // 2), np.float32), np.ones((8, k), np.float32)
    encoded = ENCODE["f16" if fmt == "f16" else "e5m2"][1](b)
    encoded[:, 2::4], encoded[:, 3::4] = infinity, infinity
    ra, rb = fragments(ENCODE[fmt][1](a), encoded, size)
    meta, c, d = (
        np.full(32, 0x44444444, np.uint32),
        np.zeros((4, 32), np.float32),
        np.zeros((4, 32), np.float32),
    )
    launch(mma_kernel(fmt, k, len(ra), len(rb), 0, "sp", "f32"), 1, 32, [ra, rb, c, meta, d])
    assert (d == k // 2).all()


def chunk(row: int, at: int, value: int):
    def change(bits: np.ndarray) -> np.ndarray:
        bits = bits.copy()
        bits[row, at] = value
        return bits

    return change


@pytest.mark.parametrize("value", [0b0000, 0b0101, 0b1010, 0b1111])
@pytest.mark.parametrize(("fmt", "k", "tc"), [("f16", 16, "f32"), ("bf16", 32, "f32"), ("s8", 64, "s32")])
def test_one_element_twice_is_found(fmt: str, k: int, tc: str, value: int) -> None:
    report, _, _ = run_mma(fmt, k, tc, 0, change=chunk(11, 2, value))
    assert [f.code for f in report.errors] == ["sparse-metadata"]
    assert f"0b{value:04b}" in report.errors[0].message


def test_descending_elements_are_found_where_order_is_asked_for() -> None:
    for value in (0b0001, 0b0110, 0b1011):
        for spelling, codes in (("sp", []), ("sp::ordered_metadata", ["sparse-metadata"])):
            report, _, _ = run_mma("f16", 32, "f32", 1, spelling, chunk(3, 7, value))
            assert [f.code for f in report.errors] == codes


@pytest.mark.parametrize("value", [0b0000, 0b0001, 0b1100, 0b1111])
def test_what_stands_for_neither_of_two_is_found(value: int) -> None:
    report, _, _ = run_mma("tf32", 16, "f32", 1, change=chunk(9, 0, value))
    assert [f.code for f in report.errors] == ["sparse-metadata"]


def test_a_wrong_selector_is_found() -> None:
    """The lanes that it names hold no metadata: being unwritten, their values or the result show it."""
    meta_of, asked = 0, 1
    fmt, k = "f16", 32
    size, encode = ENCODE[fmt]
    dense, stored, bits = sparse(16, k, size, 1, True)
    b = ints((8, k), 2)
    ra, rb = fragments(encode(stored), encode(b), size)
    c, d = np.zeros((4, 32), np.float32), np.zeros((4, 32), np.float32)
    for junk, guard, code in (
        (0, "", {"sparse-metadata"}),
        (0x44444444, "", set()),
        (0, "setp.lt.u32 %p1, %r2, 2; @%p1", {"uninit-register"}),
    ):
        meta = metadata(bits, size, meta_of, junk)
        text = mma_kernel(fmt, k, len(ra), len(rb), asked, "sp::ordered_metadata", "f32", guard)
        report = launch(text, 1, 32, [ra, rb, c, meta, d], check="report")
        assert code <= {f.code for f in report.errors} and report.ok == (not code)
        g, q = np.arange(32) // 4, np.arange(32) % 4
        right = (dense @ b.T)[g, 2 * q]
        assert not (d[0] == right).all()


def wgmma_kernel(
    fmt: str, n: int, k: int, operands, selector: int, registers: bool, mn: tuple[int, int]
) -> str:
    """One product of a warpgroup; A from shared memory, or from p0 by registers."""
    size = ENCODE[fmt][0]
    (abytes, alayout), (bbytes, blayout) = operands
    d = ", ".join(f"%f{i}" for i in range(n // 2))
    a = "{%r50, %r51, %r52, %r53}" if registers else "%d2"
    majors = (f", {mn[1]}" if registers else f", {mn[0]}, {mn[1]}") if size == 2 else ""
    other = {"e4m3": "e5m2"}.get(fmt, fmt)
    own = "mul.wide.u32 %d10, %r1, 4; ld.param.u64 %d11, [p0]; add.u64 %d11, %d11, %d10;"
    own += "".join(f"ld.global.b32 %r{50 + i}, [%d11+{512 * i}];" for i in range(4))
    store = "".join(
        f"st.global.v2.f32 [%d9+{32 * j}], {{%f{4 * j}, %f{4 * j + 1}}}; "
        f"st.global.v2.f32 [%d9+{32 * j + 32 * n}], {{%f{4 * j + 2}, %f{4 * j + 3}}};\n"
        for j in range(n // 8)
    )
    return simple(
        f"""
mov.u32 %r1, %tid.x; mov.u32 %r2, dyn;
{"" if registers else stage("p0", "%r2", abytes, 0)}{stage("p1", "%r2", bbytes, abytes)}
mul.wide.u32 %d10, %r1, 4; ld.param.u64 %d11, [p2]; add.u64 %d11, %d11, %d10; ld.global.b32 %r9, [%d11];
{own if registers else ""}
fence.proxy.async.shared::cta;
bar.sync 0;
shr.u32 %r3, %r2, 4; cvt.u64.u32 %d1, %r3;
add.u64 %d2, %d1, {alayout};
add.u64 %d3, %d1, {blayout + abytes // 16};
setp.ne.u32 %p1, %r1, %r1;
wgmma.fence.sync.aligned;
wgmma.mma_async.sp.sync.aligned.m64n{n}k{k}.f32.{fmt}.{other} {{{d}}}, {a}, %d3, %r9, {selector}, %p1, 1, \
-1{majors};
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
shr.u32 %r4, %r1, 5; shl.b32 %r4, %r4, 4; and.b32 %r5, %r1, 31; shr.u32 %r6, %r5, 2; add.u32 %r4, %r4, %r6;
and.b32 %r7, %r1, 3; shl.b32 %r7, %r7, 3; mul.lo.u32 %r8, %r4, {4 * n}; add.u32 %r8, %r8, %r7; \
cvt.u64.u32 %d8, %r8;
ld.param.u64 %d9, [p3]; add.u64 %d9, %d9, %d8;
{store}""",
        ".param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3",
        head=HEAD,
    ).replace("%f<80>", "%f<130>")  # fmt: skip


WGMMA = [
    ("f16", 8, 128, (0, 0), 0), ("f16", 64, 64, (0, 0), 1), ("bf16", 256, 128, (0, 0), 1),
    ("bf16", 64, 128, (1, 1), 0),
    ("f16", 64, 0, (0, 0), 1), ("tf32", 16, 128, (0, 0), 1), ("tf32", 256, 64, (0, 0), 0),
    ("e4m3", 64, 128, (0, 0), 0),
    ("e4m3", 256, 64, (0, 0), 0), ("e4m3", 8, 0, (0, 0), 0),
]  # fmt: skip


def prepared(fmt: str, n: int, span: int, mn, selector: int, registers: bool, ordered: bool):
    """The kernel, its arguments, and the expected result, with B negated by the instruction."""
    size, encode = ENCODE[fmt]
    k = 64 // size
    dense, stored, bits = sparse(64, k, size, 4, ordered)
    b = ints((n, k), 5)
    encoded = encode(stored)
    abytes, albo, asbo = canonical(encoded, span, mn[0], size)
    bbytes, blbo, bsbo = canonical(ENCODE[{"e4m3": "e5m2"}.get(fmt, fmt)][1](b), span, mn[1], size)
    if registers:
        parts = [
            fragments(encoded[16 * w : 16 * w + 16], encoded[:8].repeat(2, 1), size)[0] for w in range(4)
        ]
        abytes = np.ascontiguousarray(np.concatenate(parts, axis=1))
    layouts = [
        (abytes.nbytes, desc_constant(asbo, LAYOUTS_90[span], albo, sm100=False)),
        (len(bbytes), desc_constant(bsbo, LAYOUTS_90[span], blbo, sm100=False)),
    ]
    meta = np.concatenate([metadata(bits[16 * w : 16 * w + 16], size, selector) for w in range(4)])
    text = wgmma_kernel(fmt, n, k, layouts, selector, registers, mn)
    return text, [abytes, bbytes, meta, np.zeros((64, n), np.float32)], -dense @ b.T


@pytest.mark.parametrize("ordered", [True, False], ids=["ascending", "any-order"])
@pytest.mark.parametrize("registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize(("fmt", "n", "span", "mn", "selector"), WGMMA)
def test_wgmma_multiplies_by_the_dense_matrix(
    fmt: str, n: int, span: int, mn, selector: int, registers: bool, ordered: bool
) -> None:
    text, args, expect = prepared(fmt, n, span, mn, selector, registers, ordered)
    shared = args[0].nbytes + args[1].nbytes
    launch(text, 1, 128, args, dynamic_smem=shared, interleaving=Interleaving.random(3))
    assert (args[3] == expect).all()


def test_illegal_metadata_of_a_warpgroup_is_found() -> None:
    operands = [(4096, desc_constant(1024, 1, sm100=False))] * 2
    text = wgmma_kernel("f16", 8, 32, operands, 0, False, (0, 0))
    args = [
        np.zeros(4096, np.uint8),
        np.zeros(4096, np.uint8),
        np.full(128, 0x44444444, np.uint32),
        np.zeros((64, 8), np.float32),
    ]
    args[2][40] = 0x44454444  # the first of the lanes of group 2 of warp 1
    report = launch(text, 1, 128, args, dynamic_smem=8192, check="report")
    assert [f.code for f in report.errors] == ["sparse-metadata"] and "warp 1" in str(report.errors[0])
    args[2][40], args[2][42] = 0x44444444, 0  # lanes 2 and 3 of a group contribute nothing
    assert launch(text, 1, 128, args, dynamic_smem=8192, check="report").ok


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (", %r9, 0;", ", %r9, 2;", "selector of this shape is an immediate from 0 to 1"),
        (", %r9, 0;", ", %r9, %r1;", "selector of this shape is an immediate"),
        (", %r9, 0;", ";", "4 operands, expected 6"),
        ("m16n8k32", "m16n8k64", "mma.sp is not supported"),
        ("sp.sync", "sp::unordered.sync", "unsupported modifier .sp::unordered"),
    ],
)
def test_other_forms_of_mma_are_refused(old: str, new: str, message: str) -> None:
    text = mma_kernel("f16", 32, 4, 4, 0, "sp", "f32")
    assert old in text
    with pytest.raises(UnsupportedInstruction, match=message):
        launch(text.replace(old, new), 1, 32, [None] * 5)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("mma.sp.sync.aligned.m16n8k64.row.col.f32.e4m3.e4m3.f32 {%f1,%f2,%f3,%f4}, {%r1,%r1,%r1,%r1}, "
         "{%r1,%r1,%r1,%r1}, {%f1,%f2,%f3,%f4}, %r1, 1;", "selector of this shape is 0"),
        ("mma.sp.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%f1,%f2,%f3,%f4}, {%r1,%r1}, {%r1,%r1}, "
         "{%f1,%f2,%f3,%f4}, %r1, 0;", "K = 64 alone"),
        ("mma.sp.sync.aligned.m16n8k64.row.col.s32.s4.s4.s32 {%r1,%r1,%r1,%r1}, {%r1,%r1}, {%r1,%r1}, "
         "{%r1,%r1,%r1,%r1}, %r1, 0;", "mma.sp"),
        ("wgmma.mma_async.sp.sync.aligned.m64n8k16.f32.f16.f16 {%f1,%f2,%f3,%f4}, %d1, %d2, %r1, 0, %p1, 1, "
         "1, 0, 0;", "this shape of wgmma.sp"),
        ("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%f1,%f2,%f3,%f4}, %d1, %d2, %r1, 2, %p1, 1, "
         "1, 0, 0;", "from 0 to 1"),
        ("wgmma.mma_async.sp.sync.aligned.m64n8k64.s32.s8.s8 {%r1,%r2,%r3,%r4}, %d1, %d2, %r1, 0, %p1;",
         "wgmma.mma_async.sp"),
        ("tcgen05.mma.ws.sp.cta_group::1.kind::f16 [%r1], %d1, %d2, [%r2], %r3, %p1;",
         "without .ws and .block_scale alone"),
    ],
)  # fmt: skip
def test_other_instructions_are_refused(line: str, message: str) -> None:
    target = "sm_100a" if "tcgen05" in line else "sm_90a"
    with pytest.raises(UnsupportedInstruction, match=message):
        launch(simple(line, target=target), 1, 128, [None])


def test_a_swizzle_of_32_bytes_cannot_hold_a_row_of_b() -> None:
    operands = [(4096, desc_constant(1024, 1, sm100=False)), (4096, desc_constant(256, 3, sm100=False))]
    args = [
        np.zeros(4096, np.uint8),
        np.zeros(4096, np.uint8),
        np.full(128, 0x44444444, np.uint32),
        np.zeros((64, 8), np.float32),
    ]
    with pytest.raises(UnsupportedInstruction, match="K-major B in a swizzle of 32 bytes"):
        launch(wgmma_kernel("f16", 8, 32, operands, 0, False, (0, 0)), 1, 128, args, dynamic_smem=8192)
