"""mma.sync, wgmma and tcgen05."""

from __future__ import annotations

import re

from ..ptx import Addr, Imm, Reg, Vec
from .base import Ctx, decoder

INPUTS = "bf16 f16 tf32 e4m3 e5m2 s8 u8"
SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")
#: Kinds of tcgen05.mma, numbered as in the core; those from mxf8f6f4 on have block scaling.
MMA_KINDS = {
    "kind::f16": 0,
    "kind::tf32": 1,
    "kind::f8f6f4": 2,
    "kind::mxf8f6f4": 3,
    "kind::mxf4": 4,
    "kind::mxf4nvf4": 5,
}
#: kind -> its default block (None: a token is required), and token -> block (PTX ISA, tcgen05.mma)
MMA_BLOCKS: dict[int, tuple[int | None, dict[str, int]]] = {
    3: (32, {"scale_vec::1X": 32, "block32": 32}),
    4: (32, {"scale_vec::2X": 32, "block32": 32}),
    5: (None, {"scale_vec::2X": 32, "scale_vec::4X": 16, "block32": 32, "block16": 16}),
}
LDST_SHAPES = {"32x32b": 0, "16x64b": 1, "16x128b": 2, "16x256b": 3, "16x32bx2": 4}


def _shape(c: Ctx) -> tuple[int, int, int]:
    for t in c.tokens:
        if m := SHAPE.match(t):
            c.tokens.remove(t)
            return int(m[1]), int(m[2]), int(m[3])
    raise c.fail("expected a shape")


def _sparsity(c: Ctx, k: int, bits: int, operand: object) -> int:
    """The selector of the lanes that contribute metadata, checked against PTX ISA's range for the shape.

    A metadata register covers two rows of 16-bit elements or one row of 8-bit elements. So one, two or all
    lanes of a group of four contribute, and the selector chooses among them.
    """
    most = {256: 3 if bits > 8 else 1, 512: 1 if bits > 8 else 0}[k * bits]
    if not isinstance(operand, Imm) or not 0 <= operand.value <= most:
        allowed = f"an immediate from 0 to {most}" if most else "0"
        raise c.fail(f"the sparsity selector of this shape is {allowed}")
    return operand.value


@decoder("mma")
def _mma(c: Ctx) -> None:
    """m: M, N, K, accumulator (0 f32, 1 f16, 2 s32), registers of d, a and b, flags. B's type is ty2.

    Operands: d, a, b and c flattened, then the metadata of a sparse A. Flags: bit 0 is .satfinite; the bits
        from 1 on
    are the core's Sparsity.
    """
    if not c.take("sync", "aligned"):
        raise c.fail("expected .sync.aligned")
    tc, tb, ta = c.type("f32 f16 s32"), c.type(INPUTS), c.type(INPUTS)
    td = c.type("f32 f16 s32")
    if td != tc:
        raise c.fail("accumulator types differ")
    ordered = c.take("sp::ordered_metadata")
    sparse = c.take("sp") or ordered
    c.drop("kind::f8f6f4")
    saturate = c.take("satfinite")
    m, n, k = _shape(c)
    if not c.take("row", "col"):
        raise c.fail("only .row.col is supported")
    c.done()
    bits = {"bf16": 16, "f16": 16, "tf32": 32}.get(ta, 8)
    stored = k // 2 if sparse else k
    if (m, n) != (16, 8) or stored * bits not in (128, 256) or (ta != tb and bits != 8):
        form, of_k = (".sp", "256 or 512") if sparse else ("", "128 or 256")
        raise c.fail(f"this shape or type of mma{form} is not supported (m16n8 with {of_k} bits of K is)")
    if sparse and ta in ("e4m3", "e5m2") and k != 64:
        raise c.fail("mma.sp of 8-bit floats is supported with K = 64 alone")
    if (td == "s32") != (ta in ("s8", "u8")) or (td == "s32") != (tb in ("s8", "u8")):
        raise c.fail("integers are summed in s32, and only they")
    c.count(6 if sparse else 4)
    flags = int(saturate)
    if sparse:
        flags |= 2 | int(ordered) << 2 | _sparsity(c, k, bits, c.ops.pop()) << 3
        c.vector(c.ops[4], 1, "metadata")
    accumulators = 2 if td == "f16" else 4
    sizes = [accumulators, stored * bits // 64, k * bits // 128, accumulators]
    for o, size in zip(c.ops, sizes, strict=False):
        c.vector(o, size, "matrix fragment")
    kind = {"f32": 0, "f16": 1, "s32": 2}[td]
    c.emit_all("mma", ta, tb, m=[m, n, k, kind, *sizes[:3], flags], writes=range(accumulators))


@decoder("wgmma")
def _wgmma(c: Ctx) -> None:
    """m: N, K, f16 accumulator, A in registers, transpositions, negations, registers of D, sparsity.

    Operands: D, A, B, scale-d, then the metadata of a sparse A.
    """
    if c.take("fence"):
        c.drop("sync", "aligned")
        c.done()
        c.emit("wgmma_fence")
    elif c.take("commit_group"):
        c.drop("sync", "aligned")
        c.done()
        c.emit("wgmma_commit")
    elif c.take("wait_group"):
        c.drop("sync", "aligned")
        c.done()
        c.emit_all("wgmma_wait")
    elif c.take("mma_async"):
        sparse = c.take("sp")
        if not c.take("sync", "aligned"):
            raise c.fail("expected .sync.aligned")
        tb, ta = c.type("bf16 f16 tf32 e4m3 e5m2"), c.type("bf16 f16 tf32 e4m3 e5m2")
        td = c.type("f32 f16")
        m, n, k = _shape(c)
        c.done()
        bits = {"bf16": 16, "f16": 16, "tf32": 32}.get(ta, 8)
        if m != 64 or n % 8 or not 8 <= n <= 256 or k * bits != (512 if sparse else 256):
            raise c.fail(f"this shape of wgmma{'.sp' if sparse else ''} is not supported")
        c.count(6 + 2 * sparse, 8 + 2 * sparse)
        metadata, sparsity = [], 0
        if sparse:
            metadata = c.vector(c.ops.pop(3), 1, "metadata")
            sparsity = 1 | _sparsity(c, k, bits, c.ops.pop(3)) << 2
        d, a, b, scale, *signs = c.ops
        in_regs = isinstance(a, Vec)
        if not isinstance(d, Vec):
            raise c.fail("expected a vector of accumulators")
        c.vector(d, n // (4 if td == "f16" else 2), "accumulator")
        c.vector(a, 4 if in_regs else 1, "A operand")
        fragments = [*d.items, *(a.items if isinstance(a, Vec) else ())]
        if not all(isinstance(x, Reg) for x in fragments):
            raise c.fail("the accumulator and an A of several items are registers")
        values = []
        for s in signs:
            if not isinstance(s, Imm):
                raise c.fail("scale and transpose operands must be immediates")
            values.append(s.value)
        expect = (2 + (1 if in_regs else 2)) if bits == 16 else 2
        if len(values) != expect:
            raise c.fail(f"{len(values)} immediate operands, expected {expect}")
        trans_a = values[2] if bits == 16 and not in_regs else 0
        trans_b = values[-1] if bits == 16 else 0
        neg = (1 if values[0] < 0 else 0) | (2 if values[1] < 0 else 0)
        registers = len(d.items)
        c.emit(
            "wgmma",
            ta,
            tb,
            m=[n, k, int(td == "f16"), int(in_regs), trans_a | trans_b << 1, neg, registers, sparsity],
            ops=[*c.flat([d, a, b, scale]), *metadata],
            writes=range(registers),
        )
    else:
        raise c.fail("unknown form of wgmma")


@decoder("tcgen05")
def _tcgen05(c: Ctx) -> None:
    group = c.choose({"cta_group::1": 1, "cta_group::2": 2}, 0)
    if not c.tokens:
        raise c.fail("unknown form of tcgen05")
    head = c.tokens.pop(0)
    if not group and head in ("alloc", "dealloc", "relinquish_alloc_permit", "commit", "mma", "cp"):
        raise c.fail("expected .cta_group::1 or .cta_group::2")
    match head:
        case "alloc" | "dealloc":
            c.drop("sync", "aligned", "shared::cta", "b32")
            c.done()
            c.count(2)
            c.emit_all("tc_" + head, m=[group])
        case "relinquish_alloc_permit":
            c.drop("sync", "aligned")
            c.done()
            c.emit("tc_relinquish", m=[group])
        case "fence::before_thread_sync" | "fence::after_thread_sync":
            c.done()
            c.emit("tc_fence", m=[int("after" in head)])
        case "wait::ld" | "wait::st":
            c.drop("sync", "aligned")
            c.done()
            c.emit("tc_wait", m=[int(head == "wait::st")])
        case "ld" | "st":
            _ldst(c, head)
        case "commit":
            c.take("mbarrier::arrive::one")
            c.drop("shared::cluster", "shared::cta", "b64")
            multicast = int(c.take("multicast::cluster"))
            c.done()
            c.count(1 + multicast)
            c.emit_all("tc_commit", m=[group, multicast])
        case "mma":
            _tc_mma(c, group)
        case "cp":
            _tc_cp(c, group)
        case _:
            raise c.fail("unknown form of tcgen05")


def _ldst(c: Ctx, head: str) -> None:
    """m0 shape, m1 repeat, m2 packed 16-bit, m3 number of registers, m4 split offset of 16x32bx2."""
    c.drop("sync", "aligned", "b32")
    if c.take("red"):
        raise c.fail("tcgen05.ld.red is not supported")
    shape = c.choose(LDST_SHAPES, what="shape")
    repeat = c.choose({f"x{1 << i}": 1 << i for i in range(8)}, what="repeat count")
    packed = int(c.take("pack::16b") or c.take("unpack::16b"))
    c.done()
    c.count(3 if shape == 4 else 2)
    addr, regs = (c.ops[1], c.ops[0]) if head == "ld" else (c.ops[0], c.ops[-1])
    split = 0
    if shape == 4:
        imm = c.ops[2] if head == "ld" else c.ops[1]
        if not isinstance(imm, Imm):
            raise c.fail("the half split offset must be an immediate")
        split = imm.value
        if not -512 <= split <= 512:
            raise c.fail(f"the half split offset {split} is outside tensor memory")
    items = c.flat([regs])
    per = {0: 1, 1: 1, 2: 2, 3: 4, 4: 1}[shape]
    if len(items) != repeat * per:
        raise c.fail(f"{len(items)} registers, expected {repeat * per}")
    c.emit(
        "tc_" + head,
        m=[shape, repeat, packed, len(items), split],
        ops=[addr, *items],
        writes=range(1, 1 + len(items)) if head == "ld" else range(0),
    )


def _tc_mma(c: Ctx, group: int) -> None:
    """Decode a product on tensor memory.

    m0 group, m1 kind, m2 A in tensor memory, m3 .ws, m4 length of the disable-output-lane vector, m5 elements
    per scale factor, m6 sparse A.

    The last operand of a sparse product is the address of the metadata.
    """
    ws = int(c.take("ws"))
    sparse = int(c.take("sp"))
    if sparse and (ws or "block_scale" in c.tokens):
        raise c.fail("tcgen05.mma.sp is supported without .ws and .block_scale alone")
    kind = c.choose(MMA_KINDS, what="kind")
    c.tokens = [t for t in c.tokens if not t.startswith("collector::")]
    if kind >= MMA_KINDS["kind::mxf8f6f4"]:
        _tc_mma_scaled(c, group, kind, ws)
        return
    if c.take("ashift"):
        raise c.fail(".ashift is not supported")
    c.done()
    c.count(5 + sparse, 7 + sparse)
    metadata = [c.ops.pop(3)] if sparse else []
    if not all(isinstance(o, Addr) for o in metadata):
        raise c.fail("the metadata is an address of tensor memory")
    d, a, b, idesc, *rest = c.ops
    mask = [x for r in rest if isinstance(r, Vec) for x in r.items]
    rest = [r for r in rest if not isinstance(r, Vec)]
    if not rest:
        raise c.fail("the enable-input predicate is missing")
    if len(rest) > 1 and not (isinstance(rest[1], Imm) and rest[1].value == 0):
        raise c.fail("scale-input-d and zero-column masks are not supported")
    # The core refuses a disable-output-lane vector that is not all zero.
    c.emit(
        "tc_mma",
        m=[group, kind, int(isinstance(a, Addr)), ws, len(mask), 0, sparse],
        ops=[d, a, b, idesc, rest[0], *mask, *metadata],
    )


def _tc_mma_scaled(c: Ctx, group: int, kind: int, ws: int) -> None:
    """Block scaling: a factor of A's row and one of B's column, in tensor memory, scale each block of K."""
    if not c.take("block_scale") or ws:
        raise c.fail("this kind goes with .block_scale, and without .ws")
    default, allowed = MMA_BLOCKS[kind]
    block = c.choose(allowed, default, "size of a block")
    c.done()
    c.count(7)
    d, a, b, idesc, scale_a, scale_b, accumulate = c.ops
    if not (isinstance(d, Addr) and isinstance(scale_a, Addr) and isinstance(scale_b, Addr)):
        raise c.fail("the accumulator and the scale factors are addresses of tensor memory")
    c.emit(
        "tc_mma",
        m=[group, kind, int(isinstance(a, Addr)), 0, 0, block],
        ops=[d, a, b, idesc, accumulate, scale_a, scale_b],
    )


#: shape of tcgen05.cp -> its number in the core, rows, 16-byte units per row
CP_SHAPES = {
    "128x256b": (0, 128, 2),
    "4x256b": (1, 4, 2),
    "128x128b": (2, 128, 1),
    "64x128b.warpx2::02_13": (3, 64, 1),
    "64x128b.warpx2::01_23": (4, 64, 1),
    "32x128b.warpx4": (5, 32, 1),
}


def _tc_cp(c: Ctx, group: int) -> None:
    """m0 group, m1 shape, m2 rows, m3 16-byte units per row. Copies that decompress are not supported."""
    name = ".".join(c.tokens)
    if name not in CP_SHAPES:
        raise c.fail(f"this form of tcgen05.cp is not supported (supported: {', '.join(CP_SHAPES)})")
    c.count(2)
    c.emit_all("tc_cp", m=[group, *CP_SHAPES[name]])
