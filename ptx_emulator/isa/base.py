"""Frame of the decoders: numbers of operations and types, encoding of operands, the table of decoders."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import LaunchError, PtxSyntaxError, UnsupportedInstruction
from ..ptx import SMEM_RESERVED, Addr, Clock, Entry, Imm, Module, Pair, Reg, Sink, Statement, Sym, Vec

CORE = Path(__file__).parent.parent / "core"
_OP_ROWS = re.findall(r"^OP\((\w+), \w+, (-?\d+), (\d+), (\d+)\)", (CORE / "ptx_opcodes.h").read_text(), re.M)
OPS = {name: i for i, (name, *_) in enumerate(_OP_ROWS)}
#: operation -> leading operands that it writes (-1: the decoder names them), fewest and most operands
SHAPES = {name: (int(writes), int(least), int(most)) for name, writes, least, most in _OP_ROWS}
_TYPE_ROWS = re.findall(r"^TY\((\w+), (\d+), (\w)\)", (CORE / "ptx_types.h").read_text(), re.M)
TYPES = {name: i for i, (name, _, _) in enumerate(_TYPE_ROWS)}
BITS = {name: int(bits) for name, bits, _ in _TYPE_ROWS}

# Operand kinds, numbered as in core/program.hpp.
NONE, REG, IMM, SMEM, ADDR32, ADDR64, NOTPRED, PARAM = range(8)
MODS = 8  # modifier columns of an instruction; each operation gives them its own meaning
SPACES = {"generic": 0, "global": 1, "shared": 2, "param": 3, "local": 4, "const": 1}
GENERIC_SHARED = 0x7000_0000_0000  # windows of the generic address space, as in core/memory.hpp
GENERIC_LOCAL = 0x7100_0000_0000
GENERIC_PARAM = 0x7200_0000_0000


@dataclass
class Program:
    """A decoded kernel: rows of integers for the core, and the statements for reports."""

    entry: Entry
    module: Module
    instructions: np.ndarray
    operands: np.ndarray
    static_smem: int  # end of the static shared memory, counted from the system's part on
    dynamic_align: int
    local_bytes: int
    globals: dict[str, int] = field(default_factory=dict)  # module variable -> emulated address
    targets: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))

    def describe(self, pc: int) -> str:
        return self.entry.body[pc].text if 0 <= pc < len(self.entry.body) else "?"


_HINT = re.compile(
    r"L1::|L2::(64B|128B|256B|evict|cache_hint)|level::|evict_|ca$|cg$|cs$|lu$|cv$|wb$|wt$|nc$|no_allocate"
)


class Ctx:
    """One statement while it is being decoded: ``tokens`` are those not consumed yet."""

    def __init__(self, build: _Builder, st: Statement) -> None:
        self.build, self.st = build, st
        self.base, *self.tokens = st.opcode.split(".")
        self.ops = list(st.operands)

    def fail(self, why: str) -> UnsupportedInstruction:
        return UnsupportedInstruction(f"PTX line {self.st.line}: {self.st.text!r}: {why}")

    def take(self, *tokens: str) -> bool:
        """Consume the tokens if all are present; says whether they were."""
        if all(t in self.tokens for t in tokens):
            for t in tokens:
                self.tokens.remove(t)
            return True
        return False

    def drop(self, *tokens: str) -> None:
        """Consume tokens without an effect on what the emulator models (cache hints, alignment promises)."""
        self.tokens = [t for t in self.tokens if t not in tokens]

    def choose(
        self, table: dict[str, int] | Iterable[str], default: int | None = None, what: str = "modifier"
    ) -> int:
        """Consume the one token that is in the table; gives its value or, in a list, its position."""
        values = table if isinstance(table, dict) else {t: i for i, t in enumerate(table)}
        hits = [t for t in self.tokens if t in values]
        if len(hits) > 1:
            raise self.fail(f"more than one {what}: {', '.join(hits)}")
        if not hits:
            if default is None:
                raise self.fail(f"expected a {what} among {', '.join(values)}")
            return default
        self.tokens.remove(hits[0])
        return values[hits[0]]

    def type(self, allowed: str = "", anywhere: bool = False) -> str:
        """Consume the last token, which must be a type; ``anywhere``: the only type, in any position."""
        at = [i for i, t in enumerate(self.tokens) if t in TYPES and t != "none"]
        if not at or (at != [at[-1]] if anywhere else at[-1] != len(self.tokens) - 1):
            raise self.fail(
                "expected a type in the opcode" if anywhere else "expected a type at the end of the opcode"
            )
        t = self.tokens.pop(at[-1])
        if allowed and t not in allowed.split():
            raise self.fail(f"type .{t} is not supported here (supported: {allowed})")
        return t

    def memory_tokens(self) -> None:
        """Consume cache and eviction hints of loads and stores."""
        self.tokens = [t for t in self.tokens if not _HINT.match(t)]

    def done(self) -> None:
        if self.tokens:
            raise self.fail(f"unsupported modifier .{'.'.join(self.tokens)}")

    def count(self, low: int, high: int | None = None) -> None:
        if not low <= len(self.ops) <= (low if high is None else high):
            raise self.fail(
                f"{len(self.ops)} operands, expected {low}{'' if high is None else f' to {high}'}"
            )

    def emit(
        self,
        op: str,
        ty: str = "none",
        ty2: str = "none",
        m: Iterable[int] = (),
        ops: Iterable[object] = (),
        writes: range | None = None,
    ) -> None:
        """Add one operation of the core; ``writes``: its destinations, if ptx_opcodes.h leaves them open."""
        self.build.emit(self, op, ty, ty2, list(m), list(ops), writes)

    def emit_all(
        self,
        op: str,
        ty: str = "none",
        ty2: str = "none",
        m: Iterable[int] = (),
        writes: range | None = None,
    ) -> None:
        """Add one operation with the statement's operands in order, vectors and pairs flattened."""
        self.emit(op, ty, ty2, m, self.flat(self.ops), writes)

    def vector(self, o: object, count: int, what: str = "operand") -> list[object]:
        """The ``count`` items of a vector operand; a single item needs no braces."""
        items = self.flat([o])
        if len(items) != count or (isinstance(o, Vec) and not items):
            raise self.fail(f"the {what} has {len(items)} items, expected {count}")
        return items

    def halves(self, o: object, what: str) -> list[object]:
        """The two 64-bit registers of a 128-bit register, or of a vector of two."""
        if isinstance(o, Reg) and o.type == "b128":
            return [Reg(o.slot, "b64", o.name), Reg(o.slot + 1, "b64", o.name)]
        if isinstance(o, Vec):
            return self.vector(o, 2, what)
        raise self.fail(f"the {what} is no 128-bit register and no pair of 64-bit ones")

    def flat(self, ops: Iterable[object]) -> list[object]:
        out: list[object] = []
        for o in ops:
            if isinstance(o, Vec):
                out += self.flat(o.items)
            elif isinstance(o, Pair):
                out += [o.first, o.second]
            else:
                out.append(o)
        return out


DECODERS: dict[str, Callable[[Ctx], None]] = {}


def decoder(*names: str) -> Callable[[Callable[[Ctx], None]], Callable[[Ctx], None]]:
    """Register a decoder for opcodes whose first token is one of the names."""

    def register(f: Callable[[Ctx], None]) -> Callable[[Ctx], None]:
        for n in names:
            DECODERS[n] = f
        return f

    return register


def supported_opcodes() -> list[str]:
    """First tokens of the opcodes with a decoder."""
    return sorted(DECODERS)


class _Builder:
    def __init__(self, module: Module, entry: Entry, global_base: int) -> None:
        self.module, self.entry = module, entry
        self.rows: list[list[int]] = []
        self.flat_ops: list[tuple[int, int, int]] = []
        self.targets: list[int] = []
        self.carry_slot: int | None = None
        self.place_variables(global_base)

    def place_variables(self, global_base: int) -> None:
        self.smem: dict[str, int] = {}
        self.local: dict[str, int] = {}
        self.globals: dict[str, int] = {}
        offset, local, dynamic_align = SMEM_RESERVED, 0, 16
        dynamic = []
        variables = {**self.module.variables, **self.entry.variables}
        for v in variables.values():
            if v.space == "shared" and v.size < 0:
                dynamic.append(v.name)
                dynamic_align = max(dynamic_align, v.align)
            elif v.space == "shared":
                # Unused module-level arrays take space too: ptxas lays them out as well.
                offset = (offset + v.align - 1) // v.align * v.align
                self.smem[v.name] = offset
                offset += v.size
            elif v.size < 0 and v.space in ("local", "param"):
                raise PtxSyntaxError(f"the local variable {v.name} has no size")
            elif v.space in ("local", "param"):
                local = (local + v.align - 1) // v.align * v.align
                # Parameters of calls are in local memory; their address says so.
                self.local[v.name] = local + (GENERIC_LOCAL if v.space == "param" else 0)
                local += v.size
            else:
                global_base = (global_base + 255) // 256 * 256
                self.globals[v.name] = global_base
                global_base += max(v.size, 0) + 256
        self.static_smem, self.local_bytes, self.dynamic_align = offset, local, dynamic_align
        start = (offset + dynamic_align - 1) // dynamic_align * dynamic_align
        for name in dynamic:
            self.smem[name] = start

    def carry(self) -> Reg:
        """The carry flag of extended-precision arithmetic, as a predicate register."""
        if self.carry_slot is None:
            self.carry_slot = self.entry.registers
            self.entry.registers += 1
        return Reg(self.carry_slot, "pred", "CC.CF")

    def symbol(self, c: Ctx, name: str, offset: int) -> tuple[int, int, int]:
        if name in self.smem:
            return SMEM, 0, self.smem[name] + offset
        if name in self.globals:
            return IMM, 0, self.globals[name] + offset
        if name in self.local:
            return IMM, 0, self.local[name] + offset
        for p in self.entry.params:
            if p.name == name:
                return PARAM, 0, p.offset + offset
        raise c.fail(f"{name} is not a variable of this module")

    def operand(self, c: Ctx, o: object) -> tuple[int, int, int]:
        match o:
            case None | Sink():
                return NONE, 0, 0
            case Reg():
                return (NOTPRED if o.negated else REG), o.slot, 0
            case bool() | int():
                return IMM, 0, int(o)
            case Imm():
                return IMM, 0, o.value
            case Sym():
                return self.symbol(c, o.name, o.offset)
            case Addr(Reg() as r, offset, ()):
                wide = r.type in ("b64", "u64", "s64")
                return (ADDR64 if wide else ADDR32), r.slot, offset
            case Addr(Imm() as i, offset, ()):
                return IMM, 0, i.value + offset
            case Addr(Sym() as s, offset, ()):
                return self.symbol(c, s.name, s.offset + offset)
            case Clock():
                raise c.fail("a clock register can only be read by mov")
        raise c.fail(f"operand {o} has an unexpected form")

    def emit(
        self, c: Ctx, op: str, ty: str, ty2: str, m: list[int], ops: list[object], writes: range | None
    ) -> None:
        leading, least, most = SHAPES[op]
        if not least <= len(ops) <= most:
            expected = f"{least}" if least == most else f"{least} to {most}"
            raise c.fail(f"{len(ops)} operands, expected {expected}, vectors taken apart")
        written = range(leading) if writes is None else writes
        start = len(self.flat_ops)
        for i, o in enumerate(ops):
            if i in written:
                if o.negated if isinstance(o, Reg) else not isinstance(o, Sink):
                    raise c.fail(f"operand {i + 1} is written, and is not a register")
            elif isinstance(o, Sink):
                raise c.fail(f"operand {i + 1} is read, and is a sink")
            if isinstance(o, Reg) and o.type == "b128" and op != "clc_query":
                raise c.fail(f"operand {i + 1} is a 128-bit register, which only ld, st and mov take")
            kind, a, b = self.operand(c, o)
            if kind == IMM and isinstance(o, Imm) and o.is_float:
                b = self.float_bits(o, ty)
            b &= (1 << 64) - 1
            self.flat_ops.append((kind, a, b - (1 << 64) if b >> 63 else b))
        if len(m) > MODS:
            raise c.fail("internal: too many modifiers")
        g = c.st.guard
        guard = (g.slot, int(g.negated)) if g else (-1, 0)
        padding = [0] * (MODS - len(m))
        place = (c.st.line, c.st.loc[0], c.st.loc[1])
        self.rows.append([OPS[op], TYPES[ty], TYPES[ty2], *m, *padding, *guard, *place, start, len(ops)])

    @staticmethod
    def float_bits(o: Imm, ty: str) -> int:
        """The literal's bits in the instruction's type: ``0d`` in f32, and ``0f`` in f64, are converted."""
        if ty == "f64" and o.value < (1 << 32):
            return int(np.float64(np.uint32(o.value).view(np.float32)).view(np.uint64))
        if ty in ("f32", "tf32") and o.value >= (1 << 32):
            return int(np.float32(np.uint64(o.value).view(np.float64)).view(np.uint32))
        return o.value

    def label(self, c: Ctx, o: object) -> int:
        if not isinstance(o, Sym) or o.name not in self.entry.labels:
            raise c.fail("branch to an unknown label")
        return self.entry.labels[o.name]


def decode(module: Module, entry: str | None, global_base: int) -> Program:
    """Decode one entry of a module.

    Raises:
        LaunchError: the module has no such entry, or several and none is named.
        UnsupportedInstruction: the emulator does not execute an instruction of the entry.
        PtxSyntaxError: the entry is empty, or a variable of it has no size.
    """
    if entry is None:
        if len(module.entries) != 1:
            raise LaunchError(
                f"the module has {len(module.entries)} entries ({', '.join(module.entries)}): name one"
            )
        entry = next(iter(module.entries))
    if entry not in module.entries:
        raise LaunchError(f"no entry {entry!r} in the module (it has {', '.join(module.entries)})")
    e = module.entries[entry]
    b = _Builder(module, e, global_base)
    for st in e.body:
        c = Ctx(b, st)
        f = DECODERS.get(c.base)
        if f is None:
            raise UnsupportedInstruction(
                f"PTX line {st.line}: opcode {st.opcode!r} is not supported; "
                f"supported are {', '.join(supported_opcodes())}"
            )
        before = len(b.rows)
        f(c)
        if len(b.rows) != before + 1:
            raise PtxSyntaxError(f"internal: {st.opcode} decoded into {len(b.rows) - before} operations")
    if not e.body:
        raise PtxSyntaxError(f"entry {entry} has no instructions")
    ops = np.array(b.flat_ops or [(0, 0, 0)], np.int64)
    rows, targets = np.array(b.rows, np.int64), np.array(b.targets or [0], np.int64)
    return Program(e, module, rows, ops, b.static_smem, b.dynamic_align, b.local_bytes, b.globals, targets)
