"""Arithmetic, conversions, comparisons, control flow and warp-wide operations."""

from __future__ import annotations

from ..ptx import Clock, Pair, Reg, Sink, Sym, Vec
from .base import BITS, SPACES, Ctx, decoder

ROUND = {"rn": 0, "rz": 1, "rm": 2, "rp": 3, "rna": 4, "rni": 5, "rzi": 6, "rmi": 7, "rpi": 8, "rs": 9}
INTS = "u16 s16 b16 u32 s32 b32 u64 s64 b64"
FLOATS = "f32 f64 f16 bf16 f16x2 bf16x2 f32x2"
CONVERTED = (
    "u8 s8 u16 s16 u32 s32 u64 s64 f16 bf16 f32 f64 tf32 f16x2 bf16x2 e4m3x2 e5m2x2 ue8m0x2 "
    "e2m1x2 e2m3x2 e3m2x2 e2m1x4 e4m3x4 e5m2x4 e2m3x4 e3m2x4"
)
COMPARE = (
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "lo",
    "ls",
    "hi",
    "hs",
    "equ",
    "neu",
    "ltu",
    "leu",
    "gtu",
    "geu",
    "num",
    "nan",
)


def _float_mods(c: Ctx) -> list[int]:
    """m0 rounding, m1 ftz, m2 saturate, m3 relu."""
    rnd = c.choose({k: v for k, v in ROUND.items() if k in ("rn", "rz", "rm", "rp")}, 0, "rounding mode")
    return [rnd, int(c.take("ftz")), int(c.take("sat")), int(c.take("relu"))]


@decoder("mov")
def _mov(c: Ctx) -> None:
    t = c.type()
    c.done()
    c.count(2)
    d, s = c.ops
    if t == "b128":
        c.emit("move_pair", "b64", ops=[*c.halves(d, "destination"), *c.halves(s, "source")])
        return
    parts = next((len(x.items) for x in (d, s) if isinstance(x, Vec)), 0)
    if parts and (parts not in (2, 4) or BITS[t] // parts < 8):
        raise c.fail(f".{t} is not made of {parts} parts")
    if isinstance(s, Clock):
        c.emit("clock", t, ops=[d])
    elif isinstance(d, Vec):
        c.emit("unpack", t, m=[parts], ops=[*d.items, s], writes=range(parts))
    elif isinstance(s, Vec):
        c.emit("pack", t, m=[parts], ops=[d, *s.items])
    else:
        c.emit("mov", t, ops=[d, s])


@decoder("add", "sub")
def _add(c: Ctx) -> None:
    if "cc" in c.tokens:
        _carry(c)
        return
    if _mixed(c):
        return
    t = c.type(INTS + " u16x2 s16x2 " + FLOATS)
    m = _float_mods(c)
    c.done()
    c.count(3)
    c.emit_all(c.base, t, m=m)


def _mixed(c: Ctx) -> bool:
    """Mixed precision: the result and the last source are f32, the other sources have the 16-bit type ty2.

    Gives False for an opcode of one type.
    """
    if c.tokens[-2:] not in (["f32", "f16"], ["f32", "bf16"]):
        return False
    narrow, wide = c.type(), c.type()
    m = [
        c.choose({k: ROUND[k] for k in ("rn", "rz", "rm", "rp")}, 0, "rounding mode"),
        0,
        int(c.take("sat")),
        0,
    ]
    c.done()
    c.count(4 if c.base == "fma" else 3)
    c.emit_all(c.base, wide, narrow, m=m)
    return True


@decoder("addc", "subc", "madc")
def _carry(c: Ctx) -> None:
    """m0 operation (0 add, 1 sub, 2 mad.lo, 3 mad.hi), m1 carry in, m2 carry out; last operand: the carry."""
    t = c.type("u32 s32 u64 s64")
    carry_in, out = c.base.endswith("c"), c.take("cc")
    kind = {"a": 0, "s": 1}.get(c.base[0], -1)
    if kind < 0:
        kind = c.choose({"lo": 2, "hi": 3}, what="half")
    c.done()
    c.count(4 if kind > 1 else 3)
    c.emit("carry", t, m=[kind, int(carry_in), int(out)], ops=[*c.ops, c.build.carry()])


@decoder("mul", "mad")
def _mul(c: Ctx) -> None:
    if "cc" in c.tokens:
        _carry(c)
        return
    t = c.type(INTS + " " + FLOATS)
    c.count(3 if c.base == "mul" else 4)
    if t[0] == "f" or t.startswith("bf"):
        m = _float_mods(c)
        c.done()
        c.emit_all("mul" if c.base == "mul" else "fma", t, m=m)
        return
    part = c.choose({"lo": 0, "hi": 1, "wide": 2}, what="half")
    c.done()
    if part == 2 and BITS[t] > 32:
        raise c.fail("the wide product of 64-bit numbers has no register")
    c.emit_all(c.base + ("", "_hi", "_wide")[part], t, m=[0, 0, 0, 0])


@decoder("mul24", "mad24")
def _mul24(c: Ctx) -> None:
    raise c.fail("24-bit multiplication is not supported")


@decoder("fma")
def _fma(c: Ctx) -> None:
    if _mixed(c):
        return
    t = c.type(FLOATS)
    m = _float_mods(c)
    c.done()
    c.count(4)
    c.emit_all("fma", t, m=m)


@decoder("div", "rem")
def _div(c: Ctx) -> None:
    t = c.type("u16 s16 u32 s32 u64 s64 f32 f64")
    c.drop("approx", "full")
    m = _float_mods(c)
    c.done()
    c.count(3)
    c.emit_all(c.base, t, m=m)


@decoder("abs", "neg")
def _abs(c: Ctx) -> None:
    t = c.type("s16 s32 s64 " + FLOATS)
    m = [0, int(c.take("ftz")), 0, 0]
    c.done()
    c.count(2)
    c.emit_all(c.base, t, m=m)


@decoder("min", "max")
def _min(c: Ctx) -> None:
    t = c.type("u16 s16 u32 s32 u64 s64 u16x2 s16x2 " + FLOATS)
    if c.take("xorsign", "abs"):
        raise c.fail(".xorsign.abs is not supported")
    m = [int(c.take("NaN")), int(c.take("ftz")), 0, int(c.take("relu")), int(c.take("abs"))]
    c.done()
    c.count(3, 4)
    c.emit_all(c.base, t, m=[*m, len(c.ops) - 1])


@decoder("and", "or", "xor", "not")
def _logic(c: Ctx) -> None:
    t = c.type("pred b16 b32 b64")
    c.done()
    c.count(2 if c.base == "not" else 3)
    c.emit_all("b" + c.base, t)


@decoder("cnot", "brev", "popc", "clz")
def _bits(c: Ctx) -> None:
    t = c.type("b16 b32 b64")
    c.done()
    c.count(2)
    c.emit_all(c.base, t)


@decoder("lop3")
def _lop3(c: Ctx) -> None:
    t = c.type("b32")
    c.done()
    c.count(5)
    c.emit_all("lop3", t)


@decoder("shl", "shr")
def _shift(c: Ctx) -> None:
    t = c.type(INTS)
    c.done()
    c.count(3)
    c.emit_all(c.base, t)


@decoder("shf")
def _shf(c: Ctx) -> None:
    t = c.type("b32")
    right = c.choose({"l": 0, "r": 1}, what="direction")
    wrap = c.choose({"clamp": 0, "wrap": 1}, what="mode")
    c.done()
    c.count(4)
    c.emit_all("shf", t, m=[right, wrap])


@decoder("bfe", "bfi", "bfind", "sad")
def _fields(c: Ctx) -> None:
    t = c.type("u32 s32 b32 u64 s64 b64")
    m = [int(c.take("shiftamt"))]
    c.done()
    c.count({"bfe": 4, "bfi": 5, "bfind": 2, "sad": 4}[c.base])
    c.emit_all(c.base, t, m=m)


@decoder("prmt")
def _prmt(c: Ctx) -> None:
    t = c.type("b32", anywhere=True)
    mode = c.choose({"f4e": 1, "b4e": 2, "rc8": 3, "ecl": 4, "ecr": 5, "rc16": 6}, 0)
    c.done()
    c.count(4)
    c.emit_all("prmt", t, m=[mode])


@decoder("dp4a")
def _dp4a(c: Ctx) -> None:
    tb, ta = c.type("u32 s32"), c.type("u32 s32")
    c.done()
    c.count(4)
    c.emit_all("dp4a", ta, tb)


@decoder("setp", "set")
def _setp(c: Ctx) -> None:
    t = c.type(INTS + " f32 f64 f16 bf16")
    dst = c.type("u32 s32 f32") if c.base == "set" else "pred"
    boolean = c.choose({"and": 1, "or": 2, "xor": 3}, 0, "boolean operation")
    cmp = c.choose(COMPARE, what="comparison")
    ftz = int(c.take("ftz"))
    c.done()
    c.count(3, 4)
    if (len(c.ops) == 4) != bool(boolean):
        raise c.fail("a third source goes with a boolean operation")
    d = c.ops[0]
    first, second = (d.first, d.second) if isinstance(d, Pair) else (d, Sink())
    c.emit(c.base, t, dst, m=[cmp, boolean, ftz], ops=[first, second, *c.ops[1:]])


@decoder("selp")
def _selp(c: Ctx) -> None:
    t = c.type()
    c.done()
    c.count(4)
    c.emit_all("selp", t)


#: packed format -> values per register
PACKED = {t: int(t[-1]) for t in CONVERTED.split() if t[-2:] in ("x2", "x4")}
#: Conversions from one packed register to another: (to, from)
REPACKED = {
    *((t, "f16x2") for t in ("e4m3x2", "e5m2x2")),
    *(("f16x2", t) for t in ("e4m3x2", "e5m2x2", "e2m1x2", "e2m3x2", "e3m2x2")),
    ("bf16x2", "ue8m0x2"),
    ("ue8m0x2", "bf16x2"),
}


@decoder("cvt")
def _cvt(c: Ctx) -> None:
    """Decode a conversion; the last operand may be random bits.

    m0 rounding, m1 ftz, m2 saturate (0 to 1 or integer range), m3 relu, m4 satfinite, m5 bits of the
    destination register, m6 source values, m7 whether there are random bits.

    A signed result is sign-extended to a wider register.
    """
    src, dst = c.type(CONVERTED), c.type(CONVERTED)
    rounding = c.choose(ROUND, -1, "rounding mode")
    m = [rounding, int(c.take("ftz")), int(c.take("sat")), int(c.take("relu")), int(c.take("satfinite"))]
    if "scaled" in " ".join(c.tokens):
        raise c.fail("scaled conversions are not supported")
    c.done()
    random = rounding == ROUND["rs"]
    values = PACKED.get(dst, 1) if src == "f32" else 1
    if random and (src != "f32" or dst not in ("f16x2", "bf16x2", *(t for t in PACKED if t.endswith("x4")))):
        raise c.fail("random bits round pairs of f16 and bf16, and fours of the formats below 16 bits")
    if values == 4 and not random:
        raise c.fail("four values are converted with .rs alone")
    if values == 1 and (dst in PACKED or src in PACKED) and (dst, src) not in REPACKED:
        raise c.fail(f"conversion from .{src} to .{dst} is not supported")
    if dst == "ue8m0x2" and rounding not in (ROUND["rz"], ROUND["rp"]):
        raise c.fail("ue8m0x2 is rounded by .rz or .rp")
    if dst[:4] in ("e2m1", "e2m3", "e3m2") and not m[4]:
        raise c.fail(f"a conversion to .{dst} has .satfinite")
    if values == 4:
        c.count(3)
        c.vector(c.ops[1], 4, "source")
    else:
        c.count(1 + values + int(random))
    to = c.ops[0]
    width = BITS.get(to.type, 0) if isinstance(to, Reg) else 0
    c.emit_all("cvt", dst, src, m=[*m, width, values, int(random)])


@decoder("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
def _sfu(c: Ctx) -> None:
    t = c.type("f32 f64 f16 bf16 f16x2 bf16x2")
    c.drop("approx")
    m = _float_mods(c)
    c.done()
    c.count(2)
    c.emit_all(c.base, t, m=m)


@decoder("copysign")
def _copysign(c: Ctx) -> None:
    t = c.type("f32 f64")
    c.done()
    c.count(3)
    c.emit_all("copysign", t)


@decoder("testp")
def _testp(c: Ctx) -> None:
    t = c.type("f32 f64")
    what = c.choose(("finite", "infinite", "number", "notanumber", "normal", "subnormal"), what="test")
    c.done()
    c.count(2)
    c.emit_all("testp", t, m=[what])


@decoder("cvta")
def _cvta(c: Ctx) -> None:
    t = c.type("u32 u64")
    to = int(c.take("to"))
    spaces = {
        "global": 1,
        "shared": 2,
        "shared::cta": 2,
        "shared::cluster": 2,
        "param": 3,
        "local": 4,
        "const": 1,
    }
    space = c.choose(spaces, what="space")
    c.done()
    c.count(2)
    c.emit_all("cvta", t, m=[space, to])


@decoder("isspacep")
def _isspacep(c: Ctx) -> None:
    space = c.choose({**SPACES, "shared::cta": 2, "shared::cluster": 5}, what="space")
    c.done()
    c.count(2)
    c.emit_all("isspacep", m=[space])


@decoder("mapa", "getctarank")
def _mapa(c: Ctx) -> None:
    t = c.type("u32 u64")
    shared = int(c.take("shared::cluster"))
    c.done()
    c.count(3 if c.base == "mapa" else 2)
    c.emit_all(c.base, t, m=[shared])


# ---------------------------------------------------------------------------------------- control flow
@decoder("bra")
def _bra(c: Ctx) -> None:
    c.drop("uni")
    c.done()
    c.count(1)
    c.emit("bra", m=[c.build.label(c, c.ops[0])])


@decoder("brx")
def _brx(c: Ctx) -> None:
    c.drop("uni")
    if not c.take("idx"):
        raise c.fail("expected brx.idx")
    c.done()
    c.count(2)
    names = c.build.entry.branch_targets.get(getattr(c.ops[1], "name", ""))
    if not names:
        raise c.fail("the list of branch targets is missing")
    start = len(c.build.targets)
    c.build.targets += [c.build.label(c, Sym(n)) for n in names]
    c.emit("brx", m=[start, len(names)], ops=[c.ops[0]])


@decoder("ret", "exit")
def _exit(c: Ctx) -> None:
    c.drop("uni")
    c.done()
    c.count(0)
    c.emit("exit")


@decoder("trap", "brkpt")
def _trap(c: Ctx) -> None:
    c.emit("trap")


@decoder("call")
def _call(c: Ctx) -> None:
    """Only a call of a function without a body (an assertion, say) comes here: executing it is an error."""
    c.emit("call")


@decoder("pmevent")
def _nop(c: Ctx) -> None:
    c.emit("nop")


@decoder("nanosleep")
def _nanosleep(c: Ctx) -> None:
    c.type("u32")
    c.emit("nanosleep")


@decoder("setmaxnreg")
def _setmaxnreg(c: Ctx) -> None:
    c.type("u32")
    inc = c.choose({"dec": 0, "inc": 1}, what="direction")
    c.drop("sync", "aligned")
    c.done()
    c.count(1)
    c.emit_all("setmaxnreg", m=[inc])


# ------------------------------------------------------------------------------------------- warp-wide
def _split(o: object) -> tuple[object, object]:
    return (o.first, o.second) if isinstance(o, Pair) else (o, Sink())


@decoder("shfl")
def _shfl(c: Ctx) -> None:
    c.type("b32")
    if not c.take("sync"):
        raise c.fail("only shfl.sync is supported")
    mode = c.choose(("up", "down", "bfly", "idx"), what="mode")
    c.done()
    c.count(5)
    d, p = _split(c.ops[0])
    c.emit("shfl", "b32", m=[mode], ops=[d, p, *c.ops[1:]])


@decoder("vote")
def _vote(c: Ctx) -> None:
    c.type("pred b32")
    if not c.take("sync"):
        raise c.fail("only vote.sync is supported")
    mode = c.choose(("all", "any", "uni", "ballot"), what="mode")
    c.done()
    c.count(3)
    c.emit_all("vote", m=[mode])


@decoder("match")
def _match(c: Ctx) -> None:
    t = c.type("b32 b64")
    c.drop("sync")
    mode = c.choose({"any": 0, "all": 1}, what="mode")
    c.done()
    c.count(3)
    d, p = _split(c.ops[0])
    c.emit("match", t, m=[mode], ops=[d, p, *c.ops[1:]])


@decoder("redux")
def _redux(c: Ctx) -> None:
    t = c.type("u32 s32 b32 f32")
    c.drop("sync")
    op = c.choose({"add": 0, "min": 1, "max": 2, "and": 3, "or": 4, "xor": 5}, what="operation")
    m = [op, int(c.take("abs")), int(c.take("NaN"))]
    c.done()
    c.count(3)
    c.emit_all("redux", t, m=m)


@decoder("elect")
def _elect(c: Ctx) -> None:
    c.drop("sync")
    c.done()
    c.count(2)
    d, p = _split(c.ops[0])
    c.emit("elect", ops=[d, p, c.ops[1]])


@decoder("activemask")
def _activemask(c: Ctx) -> None:
    c.type("b32")
    c.done()
    c.emit_all("activemask")


@decoder("movmatrix")
def _movmatrix(c: Ctx) -> None:
    c.type("b16")
    c.drop("sync", "aligned", "m8n8")
    if not c.take("trans"):
        raise c.fail("expected .trans")
    c.done()
    c.count(2)
    c.emit_all("movmatrix")
