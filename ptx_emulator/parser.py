"""Parse PTX text into statements, with registers and labels resolved per ``{ }`` block and ``.loc`` kept.

The parser knows the grammar and not the meaning of instructions; :mod:`ptx_emulator.isa` decodes
opcodes. Text that the parser does not know raises :class:`PtxSyntaxError` with its line.
"""

from __future__ import annotations

import bisect
import re
import struct
from dataclasses import dataclass
from typing import Any

from . import functions
from .errors import PtxSyntaxError
from .ptx import (
    CLOCKS,
    SPECIALS,
    Addr,
    Clock,
    Entry,
    Imm,
    Module,
    Pair,
    Param,
    Reg,
    Sink,
    Statement,
    Sym,
    Variable,
    Vec,
)

_IDENT = r"[A-Za-z_$%][\w$]*"
_LABEL = re.compile(rf"\s*({_IDENT})\s*:(?!:)")
_BRACE_OR_LABEL = re.compile(rf"[{{}}]|(?<![\w$%.])({_IDENT})\s*:(?!:)")
_LOC = re.compile(
    r"\.loc\s+(\d{1,9})\s+(\d{1,9})(?:\s+(\d{1,9}))?"
    r"(?:[^\n]*\binlined_at\s+(\d{1,9})\s+(\d{1,9})\s+(\d{1,9}))?[^\n]*"
)
_FILE = re.compile(r"\.file\b")
_BLANKS = re.compile(r"\s*")
_BRACKET = re.compile(r"[\[{(]")
_GUARDED = re.compile(rf"(?:@(!?)\s*({_IDENT})\s+)?(.*)$")
_OPCODE = re.compile(r"([A-Za-z_][\w]*(?:(?:\.|::)\w+)*)\s*(.*)$")
_BLANK_IN_OPCODE = re.compile(r"\s+(?=[.:]{1,2}[A-Za-z])")
_INTEGER = re.compile(r"(-?)(?:0[xX]([0-9a-fA-F]{1,32})|0[bB]([01]{1,64})|0([0-7]{1,32})|(\d{1,32}))U?")
#: Limits of ptxas, or limits that keep malformed text from exhausting memory.
MAX_REGISTERS = 1 << 17
MAX_PARAMETER_BYTES = 32764
MAX_VARIABLE_BYTES = 1 << 40
MAX_ALIGN = 1 << 20
_TYPE_SIZE = {"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "b32": 4, "u32": 4, "s32": 4,
              "f32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16, "pred": 1}  # fmt: skip


def split_commas(text: str) -> list[str]:
    """Split at commas outside brackets and braces."""
    if not _BRACKET.search(text):
        items = [x.strip() for x in text.split(",")]
        return items if items[-1] else items[:-1]
    out, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "{[(":
            depth += 1
        elif c in "}])":
            depth -= 1
        elif c == "," and not depth:
            out.append(text[start:i].strip())
            start = i + 1
    tail = text[start:].strip()
    if tail:
        out.append(tail)
    return out


def parse_int(text: str) -> int | None:
    """An integer literal of PTX that 64 bits hold, or None."""
    s = text.strip()
    if s == "WARP_SZ":
        return 32
    m = _INTEGER.fullmatch(s)
    if not m:
        return None
    digits, base = next((m[i], base) for i, base in ((2, 16), (3, 2), (4, 8), (5, 10)) if m[i])
    value = int(digits, base) * (-1 if m[1] else 1)
    return value if -(1 << 63) <= value < 1 << 64 else None


def _slots(type_: str) -> int:
    """How many 64-bit slots a register of this type takes."""
    return 2 if type_ == "b128" else 1


def _strip_comments(text: str) -> str:
    """Remove comments but keep their newlines, so that line numbers stay the same."""

    def newlines(m: re.Match[str]) -> str:
        return "\n" * m.group(0).count("\n")

    return re.sub(r"/\*.*?(?:\*/|\Z)|//[^\n]*", newlines, text, flags=re.S)


def _blank(m: re.Match[str]) -> str:
    """Spaces of the match's length."""
    return " " * len(m.group(0))


class _OperandError(Exception):
    """An operand that cannot be parsed; the caller adds the line of its statement."""


@dataclass
class _Registers:
    """The registers of a declaration ``%p`` or ``%r<8>``: ``count`` of them, from slot ``first`` on.

    ``hidden`` is the next declaration of the same name in an outer block that has a larger count: numbers
    beyond this declaration's count still mean that one.
    """

    first: int
    count: int
    type: str
    depth: int
    hidden: _Registers | None = None


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = _strip_comments(text)
        self.pos = 0
        if not self.text.isascii() and (
            strange := re.search(r"[^\x00-\x7f]", re.sub(r'"[^"\n]*"', _blank, self.text))
        ):
            line = self.text.count("\n", 0, strange.start()) + 1
            raise PtxSyntaxError(f"PTX line {line}: {strange[0]!r} is not a character of PTX")
        self.line_ends = [m.start() for m in re.finditer("\n", self.text)]
        self.module = Module({}, {}, {}, "", "")
        # The current meaning of each name, and per open block the meanings to restore at its end. So a
        # look-up takes the same time at any depth of nesting.
        self.singles: dict[str, _Registers] = {}
        self.ranges: dict[str, _Registers] = {}
        self.labels: dict[str, str] = {}
        self.read: dict[str, object] = {}  # operands by their text, while no name changes its meaning
        self.blocks: list[list[tuple[dict[str, Any], str, Any]]] = []
        self.read_around: list[dict[str, object]] = []  # `read` as it was where each open block began
        self.block_labels: dict[int, list[str]] = {}
        self.opened = 0
        self.loc = self.outer = (0, 0)
        # (file, line, column) of an inlined call -> (file, line) of the outermost call around it
        self.inlined: dict[tuple[int, ...], tuple[int, int]] = {}
        self.entry: Entry | None = None
        self.functions: dict[str, functions.Function] = {}
        self.calls: list[str] = []  # the functions that are being inlined, outermost first
        self.ends: list[str] = []  # the label that each of them returns to

    # Text

    def error(self, message: str) -> PtxSyntaxError:
        return PtxSyntaxError(f"PTX line {self.here()}: {message}")

    def here(self) -> int:
        return bisect.bisect_left(self.line_ends, self.pos) + 1

    def skip(self) -> bool:
        m = _BLANKS.match(self.text, self.pos)
        self.pos = m.end() if m else self.pos
        return self.pos < len(self.text)

    def until(self, stop: str) -> str:
        end = self.text.find(stop, self.pos)
        if end < 0:
            raise self.error(f"expected {stop!r} before the end of the text")
        out = self.text[self.pos : end]
        self.pos = end + len(stop)
        return out

    def matching_brace(self, start: int) -> int:
        depth = 0
        for m in re.compile(r"[{}]").finditer(self.text, start):
            depth += 1 if m.group(0) == "{" else -1
            if depth == 0:
                return m.start()
        raise self.error("unbalanced braces")

    # Module

    def parse(self) -> Module:
        self.functions = functions.find(self)
        while self.skip():
            rest = self.text[self.pos : self.pos + 200]
            if m := re.match(r"\.(version|target|address_size)\s+([^\n]*)", rest):
                if m.group(1) == "version":
                    self.module.version = m.group(2).strip()
                elif m.group(1) == "target":
                    self.module.target = m.group(2).split(",")[0].strip()
                self.pos += m.end()
            elif re.match(r"\.file\b", rest):
                self.file(self.until("\n"))
            elif re.match(r"\.section\b", rest):
                self.until("{")
                self.pos = self.matching_brace(self.pos - 1) + 1
            elif re.match(r"(\.visible|\.weak|\.extern|\.common)?\s*\.entry\b", rest):
                self.kernel()
            elif re.match(r"(\.visible|\.weak|\.extern)?\s*\.func\b", rest):
                self.function()
            elif re.match(r"(\.visible|\.weak|\.extern|\.common)?\s*\.(global|const|shared)\b", rest):
                self.declare(self.module.variables, self.statement())
            elif re.match(r"\.(pragma|loc|alias)\b", rest):
                self.until("\n")
            else:
                raise self.error(f"unexpected text {rest.split(chr(10))[0].strip()!r}")
        if not self.module.entries:
            raise self.error("no .entry in the module")
        if not re.fullmatch(r"sm_\d+[af]?", self.module.target):
            raise self.error(f"the target {self.module.target!r} is not a GPU's")
        return self.module

    def file(self, text: str) -> None:
        if m := re.match(r'\.file\s+(\d{1,9})\s+"([^"]*)"', text.strip()):
            self.module.files[int(m.group(1))] = m.group(2)

    def function(self) -> None:
        """Skip a device function: each call parses its body, and a call of one without a body fails later."""
        end = re.compile(r"[;{]").search(self.text, self.pos)
        if end is None or end[0] == ";":
            self.until(";")
        else:
            self.pos = self.matching_brace(end.start()) + 1

    def statement(self) -> str:
        """The text up to the next semicolon, including an initialiser in braces."""
        return self.until(";")

    def declare(self, variables: dict[str, Variable], text: str) -> None:
        v = self.variable(text)
        if v.name in variables:
            raise self.error(f"{v.name} is declared twice")
        variables[v.name] = v

    def alignment(self, text: str | None, default: int) -> int:
        align = default if text is None else parse_int(text)
        if not align or align & (align - 1) or align > MAX_ALIGN:
            raise self.error(f"the alignment {text} is not a power of two")
        return align

    def variable(self, text: str) -> Variable:
        s = " ".join(text.split())
        m = re.match(
            r"(?P<ext>\.extern |\.visible |\.weak |\.common )?\.(?P<space>global|const|shared|local) ?"
            r"(?:\.attribute\([^)]*\) )?(?:\.align (?P<align>\d+) )?\.(?P<type>\w+) "
            rf"(?P<name>{_IDENT})(?P<dims>(?:\[\d*\])*)(?: ?= ?(?P<init>.*))?$",
            s,
        )
        if not m:
            raise self.error(f"cannot parse the declaration {s!r}")
        item = _TYPE_SIZE.get(m["type"])
        if item is None:
            raise self.error(f"type .{m['type']} of {m['name']} is not known")
        size, extern = item, False
        for d in re.findall(r"\[(\d*)\]", m["dims"]):
            if d == "":
                extern = True
            else:
                size *= parse_int(d) or 0
        if size > MAX_VARIABLE_BYTES:
            raise self.error(f"{m['name']} has {size} bytes")
        init = None
        if m["init"]:
            words = [w.strip() for w in m["init"].strip("{} ").split(",") if w.strip()]
            if m["type"][0] == "f":
                hexed = [re.fullmatch(r"0[fFdD]([0-9a-fA-F]{1,16})", w) for w in words]
                values = [int(h[1], 16) if h else None for h in hexed]
            else:
                values = [parse_int(w) for w in words]
            if any(v is None for v in values):
                raise self.error(f"initialiser of {m['name']} is not a list of numbers")
            init = b"".join(((v or 0) & ((1 << 8 * item) - 1)).to_bytes(item, "little") for v in values)
            if len(init) > size:
                raise self.error(f"initialiser of {m['name']} is longer than its {size} bytes")
            init = init.ljust(size, b"\0") if size <= 1 << 28 else init
        return Variable(m["name"], m["space"], self.alignment(m["align"], item), -1 if extern else size, init)

    # Kernels

    def kernel(self) -> None:
        line = self.here()
        m = re.compile(rf"(?:\.\w+\s*)*?\.entry\s+({_IDENT})\s*(\(?)").match(self.text, self.pos)
        if not m:
            raise self.error("an .entry without a name")
        if m.group(1) in self.module.entries:
            raise self.error(f"the entry {m.group(1)} is there twice")
        self.pos = m.end()
        params: list[Param] = []
        if m.group(2):
            offset = 0
            for text in split_commas(self.until(")")):
                p = self.parameter(" ".join(text.split()))
                p.offset = offset = (offset + p.align - 1) // p.align * p.align
                offset += p.size
                params.append(p)
            if offset > MAX_PARAMETER_BYTES:
                raise self.error(f"{offset} bytes of parameters, at most {MAX_PARAMETER_BYTES} are possible")
        self.entry = e = Entry(m.group(1), params, line=line)
        directives = self.until("{")
        self.pos -= 1
        for d, values in re.findall(r"\.(\w+)\s*([\d,\s]*)", directives):
            numbers = tuple(parse_int(v) or 0 for v in values.replace(",", " ").split())
            if d in ("reqntid", "maxntid", "maxnreg", "reqnctapercluster") and not 1 <= len(numbers) <= 3:
                raise self.error(f".{d} takes one to three numbers")
            if d == "reqntid":
                e.reqntid = numbers
            elif d == "maxntid":
                e.maxntid = numbers
            elif d == "maxnreg":
                e.maxnreg = numbers[0]
            elif d == "reqnctapercluster":
                e.reqcluster = numbers
            elif d not in ("minnctapersm", "maxnctapersm", "explicitcluster", "maxclusterrank", "pragma",
                           "blocksareclusters", "noreturn"):  # fmt: skip
                raise self.error(f"kernel directive .{d} is not known")
        self.loc = self.outer = (0, 0)
        self.find_labels()
        self.body(e)
        self.module.entries[e.name] = e

    def parameter(self, s: str) -> Param:
        m = re.match(
            r"\.param (?:\.align (\d+) )?\.(\w+) (?:\.ptr (?:\.\w+ )?(?:\.align \d+ )?)?"
            rf"({_IDENT})(?:\[(\d+)\])?$",
            s,
        )
        if not m:
            raise self.error(f"cannot parse the parameter {s!r}")
        item = _TYPE_SIZE.get(m.group(2))
        count = parse_int(m.group(4)) if m.group(4) else 1
        if item is None or count is None:
            raise self.error(f"cannot parse the parameter {s!r}")
        return Param(
            m.group(3),
            m.group(2),
            item * count,
            self.alignment(m.group(1), item),
            is_array=bool(m.group(4)),
        )

    def body(self, e: Entry, depth: int = 0) -> None:
        """Parse a block up to its end; ``depth`` blocks are open around it."""
        while True:
            if not self.skip():
                raise self.error("the kernel body does not end")
            c = self.text[self.pos]
            if c == "{":
                self.open_block()
            elif c == "}":
                self.pos += 1
                for names, name, before in reversed(self.blocks.pop()):
                    if before is None:
                        del names[name]
                    else:
                        names[name] = before
                self.read = self.read_around.pop()
                if len(self.blocks) == depth:
                    return
            elif c == ";":
                self.pos += 1
            elif c == "." and (m := _LOC.match(self.text, self.pos)):
                self.loc = (int(m.group(1)), int(m.group(2)))
                if self.loc[1]:  # line 0: the instruction belongs to the line before
                    self.outer = self.loc
                if m.group(4):
                    around = tuple(int(x) for x in m.group(4, 5, 6))
                    self.outer = self.inlined.get(around, (around[0], around[1]))
                    self.inlined[(*self.loc, int(m.group(3) or 0))] = self.outer
                self.pos = m.end()
            elif c == "." and _FILE.match(self.text, self.pos):
                self.file(self.until("\n"))
            elif m := _LABEL.match(self.text, self.pos):
                self.pos = m.end()
                name = self.label(m.group(1))
                if name in e.labels:
                    raise self.error(f"the label {m.group(1)} is there twice")
                e.labels[name] = len(e.body)
                self.branch_list(e, name)
            else:
                line = self.here()
                self.one(e, self.statement(), line)

    def find_labels(self) -> None:
        """Record the labels of each block of the body that begins here, by the position of the block."""
        self.block_labels, around = {}, []
        for m in _BRACE_OR_LABEL.finditer(self.text, self.pos):
            if m[0] == "{":
                around.append(m.start())
            elif m[0] == "}":
                around.pop()
                if not around:
                    return
            elif around:
                self.block_labels.setdefault(around[-1], []).append(m[1])
        raise self.error("unbalanced braces")

    def open_block(self) -> None:
        """Enter a block. Its labels get unique names, so that inline asm with labels can be repeated."""
        self.opened += 1
        self.blocks.append([])
        self.read_around.append(self.read)
        if len(self.blocks) > 1 or self.calls:
            for name in self.block_labels.get(self.pos, ()):
                self.bind(self.labels, name, f"{name}@{self.opened}")
        self.pos += 1

    def bind(self, names: dict[str, Any], name: str, meaning: Any) -> None:
        """Bind a name until the current block ends."""
        self.blocks[-1].append((names, name, names.get(name)))
        names[name] = meaning
        self.read = {}

    def label(self, name: str) -> str:
        return self.labels.get(name, name)

    def branch_list(self, e: Entry, name: str) -> None:
        if m := re.compile(r"\s*\.branchtargets\s+([^;]*);").match(self.text, self.pos):
            e.branch_targets[name] = [self.label(x.strip()) for x in m.group(1).split(",")]
            self.pos = m.end()

    def one(self, e: Entry, text: str, line: int) -> None:
        s = " ".join(text.split())
        if s.startswith("."):
            if s.startswith(".reg"):
                self.registers(e, s)
            elif re.match(r"\.(shared|local|global|const|param)\b", s):
                functions.variable(self, e, s)
            elif not s.startswith((".pragma", ".callprototype", ".calltargets")):
                raise PtxSyntaxError(f"PTX line {line}: directive {s!r} inside a kernel is not known")
            return
        m = _GUARDED.match(s)
        if not m:
            raise PtxSyntaxError(f"PTX line {line}: cannot parse {s!r}")
        negate, guard_name, rest = m.groups()
        rest = _BLANK_IN_OPCODE.sub("", rest)  # inline asm may put blanks inside an opcode
        m = _OPCODE.match(rest)
        if not m:
            raise PtxSyntaxError(f"PTX line {line}: no opcode in {s!r}")
        guard = None
        if guard_name:
            r = self.register(guard_name)
            if r is None:
                raise PtxSyntaxError(f"PTX line {line}: the guard {guard_name} is not a register")
            if r.type != "pred":
                raise PtxSyntaxError(
                    f"PTX line {line}: the guard {guard_name} is a .{r.type} register, no predicate"
                )
            guard = Reg(r.slot, r.type, r.name, negate == "!")
        try:
            call = m.group(1) in ("call", "call.uni")
            if call and functions.expand(self, e, split_commas(m.group(2)), guard, line, s):
                return
            if self.ends and m.group(1) in ("ret", "ret.uni"):
                e.body.append(Statement("bra", [Sym(self.ends[-1])], guard, line, self.loc, s, self.outer))
                return
            # A call of a function without a body in this module fails when it is executed.
            operands = [] if call else [self.operand(x) for x in split_commas(m.group(2))]
        except _OperandError as err:
            raise PtxSyntaxError(f"PTX line {line}: {err} in {s!r}") from None
        e.body.append(Statement(m.group(1), operands, guard, line, self.loc, s, self.outer))

    def registers(self, e: Entry, s: str) -> None:
        m = re.match(r"\.reg (?:\.v[24] )?\.(\w+) (.*)$", s)
        if not m:
            raise self.error(f"cannot parse {s!r}")
        if m.group(1) not in _TYPE_SIZE and m.group(1) not in ("f16x2", "bf16", "bf16x2"):
            raise self.error(f"registers of the unknown type .{m.group(1)}")
        for name in m.group(2).split(","):
            r = re.match(rf"\s*({_IDENT})(?:<(\d{{1,9}})>)?\s*$", name)
            if not r:
                raise self.error(f"cannot parse the register {name!r}")
            count = int(r.group(2)) if r.group(2) else 1
            names = self.ranges if r.group(2) else self.singles
            hidden = names.get(r.group(1))
            while hidden and hidden.count <= count:
                hidden = hidden.hidden
            new = _Registers(e.registers, count, m.group(1), len(self.blocks), hidden)
            self.bind(names, r.group(1), new)
            e.registers += count * _slots(m.group(1))
            if e.registers > MAX_REGISTERS:
                raise self.error(f"more than {MAX_REGISTERS} registers")

    def register(self, name: str) -> Reg | None:
        """The register of that name that the innermost block declares, or None."""
        declared, index = self.singles.get(name), 0
        # A prefix may itself end in digits: of the prefixes that one block declares, the shortest counts.
        digits = len(name) - len(name.rstrip("0123456789"))
        for cut in range(len(name) - min(digits, 9), len(name)):
            if not (numbered := self.ranges.get(name[:cut])):
                continue
            number = int(name[cut:])
            while numbered and number >= numbered.count:
                numbered = numbered.hidden
            if numbered and (not declared or numbered.depth > declared.depth):
                declared, index = numbered, number
        if declared:
            return Reg(declared.first + index * _slots(declared.type), declared.type, name)
        if name in SPECIALS:
            return Reg(SPECIALS[name], "b32", name)
        return None

    def operand(self, x: str) -> object:
        known = self.read.get(x)
        if known is None:
            known = self.read[x] = self.read_operand(x.strip())
        return known

    def read_operand(self, x: str) -> object:
        if x.startswith("{"):
            return Vec(tuple(self.scalar(y) for y in self.inside(x, "}")))
        if x.startswith("["):
            first, *rest = self.inside(x, "]") or [""]
            base = self.address(first)
            extra = (
                Vec(tuple(map(self.scalar, self.inside(y, "}")))) if y[0] == "{" else self.scalar(y)
                for y in rest
            )
            return Addr(base.base, base.offset, tuple(extra))
        if "|" in x:
            a, _, b = x.partition("|")
            return Pair(self.scalar(a), self.scalar(b))
        return self.scalar(x)

    @staticmethod
    def inside(x: str, close: str) -> list[str]:
        """The items between brackets."""
        items = split_commas(x[1:-1])
        if not x.endswith(close) or not all(items):
            raise _OperandError(f"cannot parse the operand {x!r}")
        return items

    def scalar(self, x: str) -> object:
        """A register, an immediate, a variable's address or the sink."""
        x = x.strip()
        if x == "_":
            return Sink()
        if x.startswith("!"):
            r = self.register(x[1:].strip())
            if r is None:
                raise _OperandError(f"unknown predicate {x!r}")
            if r.type != "pred":
                raise _OperandError(f"{x!r} negates a .{r.type} register, no predicate,")
            return Reg(r.slot, r.type, r.name, True)
        if x.startswith("%"):  # most operands
            if x in CLOCKS:
                return Clock(x)
            if (r := self.register(x)) is None:
                raise _OperandError(f"unknown register {x!r}")
            return r
        if m := re.fullmatch(r"(-?)0[fF]([0-9a-fA-F]{8})", x):
            return Imm(int(m.group(2), 16) ^ (0x80000000 if m.group(1) else 0), True)
        if m := re.fullmatch(r"(-?)0[dD]([0-9a-fA-F]{16})", x):
            return Imm(int(m.group(2), 16) ^ ((1 << 63) if m.group(1) else 0), True)
        if re.fullmatch(r"-?\d+\.\d*([eE][-+]?\d+)?", x):
            return Imm(struct.unpack("<Q", struct.pack("<d", float(x)))[0], True)
        if (v := parse_int(x)) is not None:
            return Imm(v)
        if (r := self.register(x)) is not None:
            return r
        if m := re.fullmatch(rf"({_IDENT})(?:\s*([+-])\s*(\w+))?", x):
            return Sym(self.label(m.group(1)), self.offset(m.group(2), m.group(3), x))
        raise _OperandError(f"cannot parse the operand {x!r}")

    def address(self, x: str) -> Addr:
        """The text between square brackets: a base, and perhaps a constant offset."""
        if (value := parse_int(x)) is not None:
            return Addr(Imm(value))
        m = re.fullmatch(r"\s*(.*?)\s*([+-])\s*(-?\w+)\s*", x)
        base = self.scalar(m.group(1) if m else x)
        if not isinstance(base, Reg | Imm | Sym) or (isinstance(base, Reg) and base.negated):
            raise _OperandError(f"cannot parse the address {x!r}")
        return Addr(base, self.offset(m.group(2), m.group(3), x) if m else 0)

    @staticmethod
    def offset(sign: str | None, digits: str | None, x: str) -> int:
        value = parse_int(digits) if digits else 0
        if value is None or abs(value) >= 1 << 62:
            raise _OperandError(f"cannot parse the offset in {x!r}")
        return -value if sign == "-" else value


def parse(text: str) -> Module:
    """Parse a PTX module.

    Raises:
        PtxSyntaxError: the text is not PTX; the message names the line.
        UnsupportedInstruction: a call cannot be inlined.
    """
    return _Parser(text).parse()
