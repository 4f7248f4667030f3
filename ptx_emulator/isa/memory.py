"""Loads, stores, atomics, cp.async, bulk and tensor copies, matrix loads and stores."""

from __future__ import annotations

from ..ptx import Addr, Imm, Reg, Sink, Vec
from .base import BITS, SPACES, Ctx, decoder

ALL_SPACES = {**SPACES, "shared::cta": 2, "shared::cluster": 5, "param::entry": 3, "param::func": 3}
#: Ordering of a memory operation, numbered as in the core.
SEM = {"weak": 0, "volatile": 1, "relaxed": 1, "acquire": 2, "release": 3, "acq_rel": 4, "mmio": 1}
ATOM_OPS = {
    "add": 0,
    "min": 1,
    "max": 2,
    "and": 3,
    "or": 4,
    "xor": 5,
    "exch": 6,
    "cas": 7,
    "inc": 8,
    "dec": 9,
}
#: Types of loads and stores
MOVED = "b128 b8 u8 s8 b16 u16 s16 f16 bf16 b32 u32 s32 f32 b64 u64 s64 f64"
#: Types of bulk reductions
REDUCED = "f16 bf16 b32 u32 s32 f32 b64 u64 s64 f64"


def _scope(c: Ctx) -> int:
    return c.choose({"cta": 0, "cluster": 1, "gpu": 2, "sys": 3}, 3, "scope")


def _pair(c: Ctx, o: object, n: int, what: str) -> Vec:
    """A 128-bit register as a vector of its two 64-bit halves."""
    if n != 1 or not isinstance(o, Reg):
        raise c.fail(f"the {what} of 128 bits is one register")
    return Vec(tuple(c.halves(o, what)))


@decoder("ld", "ldu")
def _ld(c: Ctx) -> None:
    """m0 space, m1 vector length, m2 ordering, m3 scope, m4 read-only path, m5 destination register's bits.

    A signed value is sign-extended to a wider register. A cache-policy operand has no effect.
    """
    t = c.type(MOVED)
    policy = "L2::cache_hint" in c.tokens
    nc = int("nc" in c.tokens)
    c.memory_tokens()
    c.drop("unified")
    space = c.choose(ALL_SPACES, 0, "space")
    n = c.choose({"v2": 2, "v4": 4, "v8": 8}, 1, "vector")
    sem = c.choose(SEM, 0, "ordering")
    scope = _scope(c)
    c.done()
    c.count(3 if policy else 2)
    if policy:
        c.ops.pop()
    if t == "b128":
        c.ops[0], t, n = _pair(c, c.ops[0], n, "destination"), "b64", 2
    dst = c.vector(c.ops[0], n, "destination")[0]
    width = BITS.get(dst.type, 0) if isinstance(dst, Reg) else 0
    c.emit_all("ld", t, m=[space, n, sem, scope, nc, width], writes=range(n))


@decoder("st")
def _st(c: Ctx) -> None:
    t = c.type(MOVED)
    if "async" in c.tokens:
        _st_async(c, t)
        return
    policy = "L2::cache_hint" in c.tokens
    c.memory_tokens()
    if c.take("bulk"):
        raise c.fail("st.bulk is not supported")
    space = c.choose(ALL_SPACES, 0, "space")
    n = c.choose({"v2": 2, "v4": 4, "v8": 8}, 1, "vector")
    sem = c.choose(SEM, 0, "ordering")
    scope = _scope(c)
    c.done()
    c.count(3 if policy else 2)
    if policy:
        c.ops.pop()
    if t == "b128":
        c.ops[1], t, n = _pair(c, c.ops[1], n, "source"), "b64", 2
    c.vector(c.ops[1], n, "source")
    c.emit_all("st", t, m=[space, n, sem, scope])


def _st_async(c: Ctx, t: str) -> None:
    if t == "b128":
        raise c.fail("st.async moves no 128-bit register")
    c.drop("async", "weak")
    n = c.choose({"v2": 2, "v4": 4}, 1, "vector")
    c.take("shared::cluster")
    if not c.take("mbarrier::complete_tx::bytes"):
        raise c.fail("expected .mbarrier::complete_tx::bytes")
    c.done()
    c.count(3)
    c.vector(c.ops[1], n, "source")
    c.emit_all("st_async", t, m=[5, n])


@decoder("atom", "red")
def _atom(c: Ctx) -> None:
    """m0 space, m1 operation, m2 ordering, m3 scope, m4 vector length; operands: result, address, values."""
    t = c.type("u32 s32 b32 u64 s64 b64 f32 f64 f16 bf16 f16x2 bf16x2 b16 b128", anywhere=True)
    if t == "b128" or c.take("async"):
        raise c.fail("this atomic form is not supported")
    policy = "L2::cache_hint" in c.tokens
    c.memory_tokens()
    c.drop("noftz")
    space = c.choose(ALL_SPACES, 0, "space")
    op = c.choose(ATOM_OPS, what="atomic operation")
    n = c.choose({"v2": 2, "v4": 4, "v8": 8}, 1, "vector")
    sem = c.choose(SEM, 1, "ordering")
    scope = c.choose({"cta": 0, "cluster": 1, "gpu": 2, "sys": 3}, 2, "scope")
    c.done()
    if policy and c.ops:
        c.ops.pop()
    c.ops = c.ops if c.base == "atom" else [Vec((Sink(),) * n), *c.ops]
    c.count(4 if op == 7 else 3)
    if n * BITS[t] > 128 or (n > 1 and op == 7):
        raise c.fail("this atomic form is not supported")
    for o, what in ((c.ops[0], "destination"), *((o, "source") for o in c.ops[2:])):
        if not isinstance(o, Sink):
            c.vector(o, n, what)
    if n > 1 and isinstance(c.ops[0], Sink):
        c.ops[0] = Vec((Sink(),) * n)
    c.emit_all("atom", t, m=[space, op, sem, scope, n], writes=range(n))


@decoder("prefetch", "prefetchu", "applypriority", "discard", "createpolicy")
def _prefetch(c: Ctx) -> None:
    """Hints have no effect; createpolicy sets its destination to an opaque 0."""
    if c.base == "createpolicy":
        if not c.ops:
            raise c.fail("the destination is missing")
        c.emit("mov", "b64", ops=[c.ops[0], 0])
    elif c.base == "discard":
        raise c.fail("discard is not supported")
    else:
        c.emit("prefetch")


# ------------------------------------------------------------------------------------------- cp.async
@decoder("cp")
def _cp(c: Ctx) -> None:
    if c.take("reduce"):
        _bulk(c, reduce=True)
    elif "bulk" in c.tokens:
        _bulk(c, reduce=False)
    elif c.take("async"):
        _cp_async(c)
    else:
        raise c.fail("unknown form of cp")


def _cp_async(c: Ctx) -> None:
    if c.take("commit_group"):
        c.done()
        c.emit("cp_async_commit")
    elif c.take("wait_group"):
        c.done()
        c.emit_all("cp_async_wait", m=[0])
    elif c.take("wait_all"):
        c.done()
        c.emit("cp_async_wait", m=[1])
    elif c.take("mbarrier", "arrive"):
        noinc = int(c.take("noinc"))
        c.drop("shared", "shared::cta", "b64")
        c.done()
        c.count(1)
        c.emit_all("cp_async_mbar", m=[noinc])
    else:
        hint = "L2::cache_hint" in c.tokens
        bypass = "cg" in c.tokens
        c.memory_tokens()
        if not (c.take("global") and (c.take("shared") or c.take("shared::cta"))):
            raise c.fail("expected .shared.global")
        c.done()
        if hint and c.ops:
            c.ops.pop()
        c.count(3, 4)
        if len(c.ops) == 4 and getattr(c.ops[3], "type", "") == "pred":
            c.emit_all("cp_async", m=[2, int(bypass)])  # ignore-src predicate
        else:
            c.emit_all("cp_async", m=[len(c.ops) - 3, int(bypass)])


RED = {"add": 0, "min": 1, "max": 2, "and": 3, "or": 4, "xor": 5, "inc": 8, "dec": 9}


def _bulk(c: Ctx, reduce: bool) -> None:
    if not c.take("async", "bulk"):
        raise c.fail("expected .async.bulk")
    if c.take("commit_group"):
        c.done()
        c.emit("bulk_commit")
        return
    if c.take("wait_group"):
        read = int(c.take("read"))
        c.done()
        c.emit_all("bulk_wait", m=[read])
        return
    if c.take("L2::cache_hint") and c.ops:
        c.ops.pop()
    tensor = c.take("tensor")
    if c.take("prefetch"):
        c.emit("prefetch")
        return
    if tensor:
        _tensor_copy(c, reduce)
        return
    multicast = c.take("multicast::cluster")
    red = c.choose(RED, what="reduction") if reduce else -1
    c.drop("noftz")
    ty = c.type(REDUCED) if reduce else "none"
    if c.take("mbarrier::complete_tx::bytes"):
        if "global" in c.tokens:
            c.drop("global", "shared::cluster", "shared::cta")
            c.done()
            c.count(5 if multicast else 4)
            c.emit_all("bulk_load", m=[int(multicast)])
        elif c.take("shared::cluster", "shared::cta"):
            c.done()
            c.count(4)
            c.emit_all("bulk_dsmem", ty, m=[red])
        else:
            raise c.fail("unknown direction of a bulk copy")
    elif c.take("bulk_group", "global", "shared::cta"):
        if c.take("cp_mask"):
            raise c.fail(".cp_mask is not supported")
        c.done()
        c.count(3)
        c.emit_all("bulk_store", ty, m=[red])
    else:
        raise c.fail("unknown form of a bulk copy")


def _tensor_copy(c: Ctx, reduce: bool) -> None:
    """m0 dimensions, m1 mode (0 tile, 1 gather4/scatter4, 2 im2col), m2 multicast or reduction, m3 cta_group.

    The im2col offsets of a load follow its coordinates.
    """
    dims = c.choose({f"{i}d": i for i in range(1, 6)}, what="dimension")
    mode = 1 if c.take("tile::gather4") or c.take("tile::scatter4") else 0
    if any(t.startswith("im2col::") for t in c.tokens):
        raise c.fail("of the im2col modes .im2col and .im2col_no_offs are supported, im2col::w is not")
    loads = "mbarrier::complete_tx::bytes" in c.tokens
    if c.take("im2col" if loads else "im2col_no_offs"):
        if mode or dims < 3:
            raise c.fail(".im2col takes tensors of 3 to 5 dimensions, and no other mode")
        mode = 2
    c.drop("tile")
    group = c.choose({"cta_group::1": 1, "cta_group::2": 2}, 0)
    if c.take("mbarrier::complete_tx::bytes"):
        multicast = int(c.take("multicast::cluster"))
        if not ((c.take("shared::cluster") or c.take("shared::cta")) and c.take("global")):
            raise c.fail("unknown direction of a tensor copy")
        c.done()
        c.count(3 + (mode == 2) + multicast)
        dst, src, bar, *rest = c.ops
        tensor_map, coords = _map(c, src, 5 if mode == 1 else dims)
        offsets = c.vector(rest.pop(0), dims - 2, "im2col offsets") if mode == 2 else []
        c.emit(
            "tma_load", m=[dims, mode, multicast, group], ops=[dst, bar, tensor_map, *coords, *offsets, *rest]
        )
    elif c.take("bulk_group"):
        red = c.choose(RED, what="reduction") if reduce else -1
        if not (c.take("global") and c.take("shared::cta")):
            raise c.fail("unknown direction of a tensor copy")
        c.done()
        c.count(2)
        tensor_map, coords = _map(c, c.ops[0], 5 if mode == 1 else dims)
        c.emit("tma_store", m=[dims, mode, red], ops=[c.ops[1], tensor_map, *coords])
    else:
        raise c.fail("unknown completion of a tensor copy")


def _map(c: Ctx, o: object, coords: int) -> tuple[object, tuple[object, ...]]:
    if not (isinstance(o, Addr) and len(o.extra) == 1 and isinstance(o.extra[0], Vec)):
        raise c.fail("expected [tensor map, {coordinates}]")
    items = o.extra[0].items
    if len(items) != coords:
        raise c.fail(f"{len(items)} coordinates, expected {coords}")
    return Addr(o.base, o.offset), items


#: Fields of a tensor map, numbered as in the core; fields 2 to 5 have one value per dimension.
MAP_FIELDS = {
    name: i
    for i, name in enumerate(
        ("global_address", "rank", "box_dim", "global_dim", "global_stride", "element_stride", "elemtype",
         "interleave_layout", "swizzle_mode", "swizzle_atomicity", "fill_mode")
    )
}  # fmt: skip


@decoder("tensormap")
def _tensormap(c: Ctx) -> None:
    """replace: m0 field, m1 space; operands: address, dimension (if the field has one value for each), value.

    cp_fenceproxy: m0 -1; operands: destination, source.
    """
    if c.take("cp_fenceproxy"):
        if not c.take("global", "shared::cta", "tensormap::generic", "release", "sync", "aligned"):
            raise c.fail("unknown form of tensormap.cp_fenceproxy")
        _scope(c)
        c.done()
        c.count(3)
        if not isinstance(c.ops[2], Imm) or c.ops[2].value != 128:
            raise c.fail("a tensor map has 128 bytes")
        c.emit("tm_replace", m=[-1], ops=c.ops[:2])
        return
    if not c.take("replace", "tile", "b1024"):
        raise c.fail("unknown form of tensormap")
    t = c.type("b32 b64")
    field = c.choose(MAP_FIELDS, what="field")
    space = c.choose({"global": 1, "shared::cta": 2}, 0, "space")
    c.done()
    if (t == "b64") != (field in (MAP_FIELDS["global_address"], MAP_FIELDS["global_stride"])):
        raise c.fail("addresses and strides are .b64, other fields .b32")
    c.count(3 if 2 <= field <= 5 else 2)
    if field >= 2 and not isinstance(c.ops[1], Imm):
        raise c.fail("ordinals, and values of types and modes, are immediates")
    c.emit_all("tm_replace", t, m=[field, space])


# ------------------------------------------------------------------------------------ matrix movement
@decoder("ldmatrix", "stmatrix")
def _ldmatrix(c: Ctx) -> None:
    """m0 matrices, m1 transposed, m2 8-bit elements (16x16 loads, 16x8 stores, always transposed)."""
    t = c.type("b16 b8")
    byte = t == "b8"
    c.drop("sync", "aligned", "shared", "shared::cta")
    if not c.take(("m16n16" if c.base == "ldmatrix" else "m16n8") if byte else "m8n8"):
        raise c.fail("this shape of ldmatrix or stmatrix is not supported")
    n = c.choose(
        {"x1": 1, "x2": 2} if byte and c.base == "ldmatrix" else {"x1": 1, "x2": 2, "x4": 4}, what="count"
    )
    trans = int(c.take("trans"))
    if byte and not trans:
        raise c.fail("matrices of bytes are moved with .trans")
    c.done()
    c.count(2)
    load = c.base == "ldmatrix"
    registers = c.vector(c.ops[0 if load else 1], n * (2 if byte and load else 1), "matrix fragment")
    c.emit_all(c.base, m=[n, trans, int(byte)], writes=range(len(registers) if load else 0))
