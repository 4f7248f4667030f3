"""tcgen05.mma.sp: products of the dense matrix that A and its metadata in tensor memory stand for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ptx_emulator import EmulatorError, Interleaving, UnsupportedInstruction, launch

from .kernels import assembles
from .probes import canonical
from .test_sparse import ENCODE, sparse
from .test_tensor_core import ints, sm100_desc, tcgen_kernel

COLUMN = 200
"""The column of tensor memory at which metadata begins."""


def cells(bits: np.ndarray, size: int) -> np.ndarray:
    """Metadata of 128 rows by lane and column, after the shapes and strides of CUTLASS's tmem_e_frg.

    Its element (m, k) of A has 4 bits per chunk: one bit per element of 8 or 16 bits, two per element of
    tf32.
    """
    share = 2 if size == 4 else 1
    stored = np.zeros((128, 64), np.uint64)
    for m in range(128):
        for k in range(64 // size):
            chunk, part = divmod(k, 4 // share)
            value = int(bits[m, chunk]) >> part * share & ((1 << share) - 1)
            if size == 1:  # (128, 64) : (1, 128)
                lane, at = m, k
            elif size == 2:  # ((8, 2, 8), (16, 2)) : ((1, 2048, 16), (128, 8))
                at, lane = divmod(m % 8 + m // 8 % 2 * 2048 + m // 16 * 16 + k % 16 * 128 + k // 16 * 8, 128)
            else:  # ((8, 2, 8), (8, 2)) : ((1, 1024, 16), (128, 8))
                at, lane = divmod(m % 8 + m // 8 % 2 * 1024 + m // 16 * 16 + k % 8 * 128 + k // 8 * 8, 128)
            for i in range(share):
                stored[lane, at * share + i] = value >> i & 1
    words = stored.reshape(128, 2, 32) << np.arange(32, dtype=np.uint64)
    return words.sum(-1).astype(np.uint32)[:, : 2 if size == 1 else 1]


def kernel(fmt: str, n: int, operands, idesc: int, count: int, a_columns: int = 0) -> str:
    """One product; `count` columns of metadata from p3; A in tensor memory if it has columns there."""
    (abytes, adesc), (bbytes, bdesc) = operands
    kind = {"bf16": "f16", "f16": "f16", "tf32": "tf32"}.get(fmt, "f8f6f4")
    text = tcgen_kernel(abytes, bbytes, adesc, bdesc, idesc, kind, "", n)
    put = (
        "ld.param.u64 %d12, [p3]; mul.wide.u32 %d13, %r1, 4; add.u64 %d12, %d12, %d13; "
        "add.u32 %r34, %r10, %r21;\n"
    )
    for i in range(count):
        put += f"ld.global.b32 %r32, [%d12+{512 * i}]; add.u32 %r33, %r34, {COLUMN + i};\n"
        put += "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r33], {%r32};\n"
    if a_columns:
        put += "ld.param.u64 %d12, [p0]; add.u64 %d12, %d12, %d13;\n"
    for i in range(a_columns):
        put += f"ld.global.b32 %r32, [%d12+{512 * i}]; add.u32 %r33, %r34, {COLUMN + 16 + i};\n"
        put += "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r33], {%r32};\n"
    text = text.replace("tcgen05.wait::st.sync.aligned;", put + "tcgen05.wait::st.sync.aligned;")
    text = text.replace(".param .u64 p2", ".param .u64 p2, .param .u64 p3")
    a = "[%r36]" if a_columns else "%d2"
    product = f"add.u32 %r35, %r10, {COLUMN}; add.u32 %r36, %r10, {COLUMN + 16};\ntcgen05.mma.sp.cta_group::1"
    text = text.replace("tcgen05.mma.cta_group::1", product)
    return text.replace("[%r10], %d2, %d3, %r7, %p4;", f"[%r10], {a}, %d3, [%r35], %r7, %p4;")


def prepared(
    fmt: str,
    n: int,
    span: int,
    mn=(0, 0),
    selector: int = 0,
    in_memory: bool = False,
    change=lambda bits: bits,
):
    """The kernel, its arguments, its shared memory and the expected result."""
    size, encode = ENCODE[fmt]
    k = 64 // size
    dense, stored, bits = sparse(128, k, size, 8, True)
    b, encoded = ints((n, k), 9), encode(stored)
    abytes, albo, asbo = canonical(encoded, span, mn[0], size)
    bbytes, blbo, bsbo = canonical(encode(b), span, mn[1], size)
    operands = [(abytes, sm100_desc(asbo, span, albo)), (bbytes, sm100_desc(bsbo, span, blbo))]
    code = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1}[fmt]
    idesc = (
        selector | 4 | 1 << 4 | code << 7 | code << 10 | mn[0] << 15 | mn[1] << 16 | n >> 3 << 17 | 8 << 24
    )
    meta = np.ascontiguousarray(cells(change(bits), size).T)
    if size > 1:
        junk = np.zeros_like(meta)  # the column that the selector does not name
        meta = np.concatenate([junk, meta] if selector else [meta, junk])
    if in_memory:  # the kernel stages as many bytes as the operand takes in shared memory
        registers = np.ascontiguousarray(encoded).view(np.uint32).T.tobytes()
        abytes = np.frombuffer(registers.ljust(len(abytes), b"\0"), np.uint8).copy()
    text = kernel(fmt, n, operands, idesc, len(meta), 8 if in_memory else 0)
    out = np.zeros((128, n), np.float32)
    return text, [abytes, bbytes, out, meta], len(abytes) + len(bbytes), dense @ b.T


CASES = [
    ("f16", 8, 128, (0, 0), 0), ("f16", 64, 64, (0, 0), 1), ("bf16", 128, 128, (1, 1), 1),
    ("bf16", 16, 0, (0, 0), 0),
    ("tf32", 8, 128, (0, 0), 1), ("tf32", 128, 64, (0, 0), 0), ("e4m3", 64, 128, (0, 0), 0),
    ("e5m2", 16, 0, (0, 0), 0),
    ("e4m3", 128, 64, (0, 0), 0),
]  # fmt: skip


@pytest.mark.parametrize("in_memory", [False, True], ids=["shared", "tensor-memory"])
@pytest.mark.parametrize(("fmt", "n", "span", "mn", "selector"), CASES)
def test_the_product_is_by_the_dense_matrix(
    fmt: str, n: int, span: int, mn, selector: int, in_memory: bool
) -> None:
    if in_memory and mn[0]:
        pytest.skip("an A in tensor memory has no major dimension")
    text, args, shared, expect = prepared(fmt, n, span, mn, selector, in_memory)
    launch(text, 1, 128, args, dynamic_smem=shared, interleaving=Interleaving.random(n))
    assert (args[2] == expect).all()


def two_ctas(fmt: str, n: int, span: int) -> tuple[str, list[np.ndarray], int, np.ndarray]:
    """256 rows of A on two CTAs: each has its rows, their metadata and half of B; the first one issues."""
    size, encode = ENCODE[fmt]
    dense, stored, bits = sparse(256, 64 // size, size, 11, True)
    b = ints((n, 64 // size), 12)
    parts = [canonical(encode(stored[128 * r : 128 * r + 128]), span, 0, size) for r in range(2)]
    shares = [canonical(encode(b[n // 2 * r : n // 2 * (r + 1)]), span, 0, size) for r in range(2)]
    operands = [(x[0][0], sm100_desc(x[0][2], span, x[0][1])) for x in (parts, shares)]
    meta = [np.ascontiguousarray(cells(bits[128 * r : 128 * r + 128], size).T) for r in range(2)]
    idesc = 4 | 1 << 4 | (1 << 7 | 1 << 10 if fmt == "bf16" else 0) | n >> 3 << 17 | 16 << 24
    text = kernel(fmt, n, operands, idesc, len(meta[0])).replace("cta_group::1", "cta_group::2")
    sizes = {"p0": len(parts[0][0]), "p1": len(shares[0][0]), "p2": 512 * n, "p3": meta[0].nbytes}
    for name, width in sizes.items():
        for register in ("%d20", "%d9", "%d12"):
            text = text.replace(
                f"ld.param.u64 {register}, [{name}];",
                f"ld.param.u64 {register}, [{name}]; mad.wide.u32 {register}, %r45, {width}, {register};",
            )
    met = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
    head, tail = text.split("mov.u32 %r1, %tid.x;", 1)
    text = (
        head
        + "mov.u32 %r45, %cluster_ctarank; setp.ne.u32 %p6, %r45, 0; mov.b16 %h1, 3;\nmov.u32 %r1, %tid.x;"
        + tail
    )
    text = text.replace("@%p2 bra ALLOCATED;", "fence.mbarrier_init.release.cluster;\n@%p2 bra ALLOCATED;")
    text = text.replace(
        "bar.sync 0;\ntcgen05.fence::after_thread_sync;\n@%p1 bra WAIT;",
        f"{met}\ntcgen05.fence::after_thread_sync;\n@%p1 bra WAIT; @%p6 bra WAIT;",
    )
    text = text.replace(".shared::cluster.b64 [%r3];", ".shared::cluster.multicast::cluster.b64 [%r3], %h1;")
    text = text.replace("bar.sync 0;\n@%p2 bra DONE;", f"{met}\n@%p2 bra DONE;")
    out = np.zeros((256, n), np.float32)
    args = [*(np.concatenate([x[0] for x in both]) for both in (parts, shares)), out, np.concatenate(meta)]
    return text, args, sizes["p0"] + sizes["p1"], dense @ b.T


@pytest.mark.parametrize(("fmt", "n"), [("bf16", 64), ("e4m3", 128)])
def test_a_pair_of_ctas_multiplies_rows_by_their_own_metadata(fmt: str, n: int) -> None:
    text, args, shared, expect = two_ctas(fmt, n, 128)
    launch(text, 2, 128, args, dynamic_smem=shared, cluster=2, interleaving=Interleaving.random(n))
    assert (args[2] == expect).all()


def test_the_assembler_takes_the_kernel(tmp_path: Path) -> None:
    for in_memory in (False, True):
        assembles(prepared("f16", 8, 128, in_memory=in_memory)[0], tmp_path)
    assembles(two_ctas("bf16", 64, 128)[0], tmp_path)


def chunk(row: int, at: int, value: int):
    def change(bits: np.ndarray) -> np.ndarray:
        bits = bits.copy()
        bits[row, at] = value
        return bits

    return change


def codes(text: str, args, shared: int) -> list[str]:
    return [f.code for f in launch(text, 1, 128, args, dynamic_smem=shared, check="report").errors]


@pytest.mark.parametrize(
    ("fmt", "value", "found"),
    [
        ("f16", 0b0000, True), ("f16", 0b1111, True), ("f16", 0b0001, True), ("f16", 0b0110, False),
        ("e4m3", 0b1010, True),
        ("e4m3", 0b1011, True), ("tf32", 0b1100, True), ("tf32", 0b0000, True),
    ],
)  # fmt: skip
def test_metadata_that_means_nothing_is_found(fmt: str, value: int, found: bool) -> None:
    """PTX ISA lists 0b0110 among the meaningful values of this instruction."""
    text, args, shared, _ = prepared(fmt, 8, 128, change=chunk(77, 3, value))
    assert codes(text, args, shared) == (["sparse-metadata"] if found else [])


def test_slips_are_found() -> None:
    text, args, shared, expect = prepared("f16", 8, 128, selector=0)
    other = text.replace(f"add.u32 %r35, %r10, {COLUMN};", f"add.u32 %r35, %r10, {COLUMN + 2};")
    assert "uninit-memory" in codes(other, args, shared)
    idesc = int(text.split("mov.u32 %r7, ")[1].split(";")[0])
    for change, message in (
        (idesc ^ 4, "bit 2 says that A is dense"),
        (idesc | 2, "sparsity selector 2"),
        (idesc ^ (8 ^ 4) << 24, "tcgen05.mma.sp with 64 rows"),
    ):
        with pytest.raises((EmulatorError, UnsupportedInstruction), match=message):
            launch(
                text.replace(f"mov.u32 %r7, {idesc};", f"mov.u32 %r7, {change};"),
                1,
                128,
                args,
                dynamic_smem=shared,
            )
    wrong = text.replace(
        f"mov.u32 %r7, {idesc};", f"mov.u32 %r7, {idesc | 1};"
    )  # the selector of the column of zeros
    assert codes(wrong, args, shared) == ["sparse-metadata"] and not (args[2] == expect).all()
    dense = text.replace("mma.sp.", "mma.").replace("[%r35], ", "")
    with pytest.raises(EmulatorError, match="bit 2 asks for sparsity"):
        launch(dense, 1, 128, args, dynamic_smem=shared)


def test_metadata_is_used_after_its_store_alone() -> None:
    """Without the barrier before the product, another warp's metadata may not have arrived."""
    text, args, shared, _ = prepared("f16", 8, 128)
    barrier = (
        "tcgen05.fence::before_thread_sync;\nbar.sync 0;\ntcgen05.fence::after_thread_sync;\n@%p1 bra WAIT;"
    )
    assert barrier in text
    reported = set()
    for seed in range(8):
        report = launch(
            text.replace(barrier, "@%p1 bra WAIT;"),
            1,
            128,
            args,
            dynamic_smem=shared,
            check="report",
            interleaving=Interleaving.random(seed),
        )
        reported |= {f.code for f in report.errors if "metadata" in f.message}
    assert reported & {"race", "uninit-memory"}


def test_a_swizzle_of_32_bytes_cannot_hold_a_row_of_b() -> None:
    text, args, shared, _ = prepared("f16", 8, 32)
    with pytest.raises(UnsupportedInstruction, match="K-major B in a swizzle of 32 bytes"):
        launch(text, 1, 128, args, dynamic_smem=shared)
