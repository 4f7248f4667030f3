"""PTX text to a list of statements: registers and labels resolved per ``{ }`` block, ``.loc`` kept.

The parser knows the grammar, not the meaning of instructions; :mod:`dsl_kernels.emulator.isa` decodes
opcodes. Anything it cannot place raises :class:`PtxSyntaxError` with the line.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field

from .errors import PtxSyntaxError

_IDENT = r"[A-Za-z_$%][\w$]*"
_LABEL = re.compile(rf"\s*({_IDENT})\s*:(?!:)")
_SPECIAL_NAMES = [
    "%tid.x",
    "%tid.y",
    "%tid.z",
    "%ntid.x",
    "%ntid.y",
    "%ntid.z",
    "%ctaid.x",
    "%ctaid.y",
    "%ctaid.z",
    "%nctaid.x",
    "%nctaid.y",
    "%nctaid.z",
    "%laneid",
    "%warpid",
    "%nwarpid",
    "%smid",
    "%nsmid",
    "%gridid",
    "%clusterid.x",
    "%clusterid.y",
    "%clusterid.z",
    "%nclusterid.x",
    "%nclusterid.y",
    "%nclusterid.z",
    "%cluster_ctaid.x",
    "%cluster_ctaid.y",
    "%cluster_ctaid.z",
    "%cluster_nctaid.x",
    "%cluster_nctaid.y",
    "%cluster_nctaid.z",
    "%cluster_ctarank",
    "%cluster_nctarank",
    "%is_explicit_cluster",
    "%lanemask_eq",
    "%lanemask_le",
    "%lanemask_lt",
    "%lanemask_ge",
    "%lanemask_gt",
    "%dynamic_smem_size",
    "%total_smem_size",
    "%aggr_smem_size",
    "%reserved_smem_offset_begin",
    "%reserved_smem_offset_end",
    "%reserved_smem_offset_cap",
]
#: Special registers are ordinary register slots that the core fills when a warp starts.
SPECIALS = {name: slot for slot, name in enumerate(_SPECIAL_NAMES)}
SPECIALS["%tid"], SPECIALS["%ctaid"] = SPECIALS["%tid.x"], SPECIALS["%ctaid.x"]
#: Clocks are read at execution time; they have no slot.
CLOCKS = {"%clock", "%clock64", "%clock_hi", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"}
SMEM_RESERVED = 1024  # the system's part of shared memory: the first byte a kernel owns has this offset


# ------------------------------------------------------------------------------------------ operands
@dataclass(frozen=True)
class Reg:
    """A register slot; ``type`` is the declared PTX type, ``negated`` only occurs on predicates."""

    slot: int
    type: str
    name: str
    negated: bool = False


@dataclass(frozen=True)
class Imm:
    value: int
    is_float: bool = False  # value holds the bits then: 32 for 0f, 64 for 0d


@dataclass(frozen=True)
class Sym:
    """The address of a variable, or a label."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Addr:
    """``[base + offset]``; ``extra`` holds what follows a comma inside the brackets (tensor coordinates)."""

    base: Reg | Imm | Sym
    offset: int = 0
    extra: tuple[object, ...] = ()


@dataclass(frozen=True)
class Vec:
    items: tuple[object, ...]


@dataclass(frozen=True)
class Pair:
    """``a|b``: two destinations."""

    first: object
    second: object


@dataclass(frozen=True)
class Clock:
    name: str


@dataclass(frozen=True)
class Sink:
    """``_``: a destination that is thrown away."""


# ---------------------------------------------------------------------------------------- statements
@dataclass
class Statement:
    """One instruction: guard, opcode split at dots, operands, PTX line, ``.loc`` (file, line)."""

    opcode: str
    operands: list[object]
    guard: Reg | None
    line: int
    loc: tuple[int, int]
    text: str


@dataclass
class Variable:
    """A ``.shared``, ``.global``, ``.const`` or ``.local`` array."""

    name: str
    space: str
    align: int
    size: int  # -1: extern, sized at launch
    init: bytes | None = None


@dataclass
class Param:
    name: str
    type: str
    size: int
    align: int
    offset: int = 0
    is_array: bool = False


@dataclass
class Entry:
    """One kernel of the module."""

    name: str
    params: list[Param]
    body: list[Statement] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    branch_targets: dict[str, list[str]] = field(default_factory=dict)
    registers: int = len(SPECIALS)
    reqntid: tuple[int, ...] | None = None
    maxntid: tuple[int, ...] | None = None
    maxnreg: int | None = None
    reqcluster: tuple[int, ...] | None = None
    line: int = 0


@dataclass
class Module:
    entries: dict[str, Entry]
    variables: dict[str, Variable]
    files: dict[int, str]
    target: str
    version: str


_TYPE_SIZE = {"b8": 1, "u8": 1, "s8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "b32": 4, "u32": 4, "s32": 4,
              "f32": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8, "b128": 16, "pred": 1}  # fmt: skip


def split_commas(text: str) -> list[str]:
    """Split at commas outside brackets and braces."""
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
    """An integer literal of PTX, or None."""
    s = text.strip().rstrip("U")
    if s == "WARP_SZ":
        return 32
    try:
        if re.fullmatch(r"-?0[0-7]+", s):
            return int(s, 8)
        return int(s, 0)
    except ValueError:
        return None


def _strip_comments(text: str) -> str:
    """Blank out comments, keeping newlines so that lines stay true."""

    def blank(m: re.Match[str]) -> str:
        return "\n" * m.group(0).count("\n") if m.group(0).startswith("/*") else ""

    return re.sub(r"/\*.*?\*/|//[^\n]*", blank, text, flags=re.S)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = _strip_comments(text)
        self.pos = 0
        self.line_at = 0  # position up to which newlines were counted
        self.line = 1
        self.module = Module({}, {}, {}, "", "")
        self.scopes: list[dict[str, tuple[str, int, int, str]]] = []
        self.label_scopes: list[tuple[int, dict[str, str]]] = []
        self.blocks = 0
        self.loc = (0, 0)
        self.entry: Entry | None = None

    # ---- low level
    def error(self, message: str) -> PtxSyntaxError:
        return PtxSyntaxError(f"PTX line {self.here()}: {message}")

    def here(self) -> int:
        self.line += self.text.count("\n", self.line_at, self.pos)
        self.line_at = self.pos
        return self.line

    def skip(self) -> bool:
        m = re.compile(r"\s*").match(self.text, self.pos)
        self.pos = m.end() if m else self.pos
        return self.pos < len(self.text)

    def until(self, stop: str) -> str:
        end = self.text.find(stop, self.pos)
        if end < 0:
            raise self.error(f"expected {stop!r} before the end of the text")
        out = self.text[self.pos : end]
        self.here()
        self.pos = end + len(stop)
        return out

    def matching_brace(self, start: int) -> int:
        depth = 0
        for m in re.compile(r"[{}]").finditer(self.text, start):
            depth += 1 if m.group(0) == "{" else -1
            if depth == 0:
                return m.start()
        raise self.error("unbalanced braces")

    # ---- module
    def parse(self) -> Module:
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
                self.pos = self.matching_brace(self.text.index("{", self.pos)) + 1
            elif re.match(r"(\.visible|\.weak|\.extern|\.common)?\s*\.entry\b", rest):
                self.kernel()
            elif re.match(r"(\.visible|\.weak|\.extern)?\s*\.func\b", rest):
                self.function()
            elif re.match(r"(\.visible|\.weak|\.extern|\.common)?\s*\.(global|const|shared)\b", rest):
                v = self.variable(self.statement())
                self.module.variables[v.name] = v
            elif re.match(r"\.(pragma|loc|alias)\b", rest):
                self.until("\n")
            else:
                raise self.error(f"unexpected text {rest.split(chr(10))[0].strip()!r}")
        if not self.module.entries:
            raise self.error("no .entry in the module")
        return self.module

    def file(self, text: str) -> None:
        if m := re.match(r'\.file\s+(\d+)\s+"([^"]*)"', text.strip()):
            self.module.files[int(m.group(1))] = m.group(2)

    def function(self) -> None:
        """Device functions are skipped: a call is refused where it is executed, by its name."""
        semi, brace = self.text.find(";", self.pos), self.text.find("{", self.pos)
        if brace < 0 or 0 <= semi < brace:
            self.until(";")
        else:
            self.here()
            self.pos = self.matching_brace(brace) + 1

    def statement(self) -> str:
        """Text up to the semicolon that ends it (initialisers in braces included)."""
        return self.until(";")

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
                size *= int(d)
        init = None
        if m["init"]:
            values = [parse_int(v) for v in m["init"].strip("{} ").split(",") if v.strip()]
            if m["type"][0] == "f":
                parts = [int(v.strip()[2:], 16) for v in m["init"].strip("{} ").split(",")]
            elif any(v is None for v in values):
                raise self.error(f"initialiser of {m['name']} is not a list of integers")
            else:
                parts = [v for v in values if v is not None]
            init = b"".join((v & ((1 << 8 * item) - 1)).to_bytes(item, "little") for v in parts).ljust(
                size, b"\0"
            )
        return Variable(m["name"], m["space"], int(m["align"] or item), -1 if extern else size, init)

    # ---- kernels
    def kernel(self) -> None:
        line = self.here()
        head = (
            self.until("(") if "(" in self.text[self.pos : self.pos + 4000].split("{")[0] else self.until("{")
        )
        m = re.search(rf"\.entry\s+({_IDENT})", head)
        if not m:
            raise self.error("an .entry without a name")
        params: list[Param] = []
        if not head.rstrip().endswith("{") and self.text[self.pos - 1] == "(":
            offset = 0
            for text in split_commas(self.until(")")):
                p = self.parameter(" ".join(text.split()))
                p.offset = offset = (offset + p.align - 1) // p.align * p.align
                offset += p.size
                params.append(p)
        self.entry = e = Entry(m.group(1), params, line=line)
        directives = self.until("{")
        self.pos -= 1
        for d, values in re.findall(r"\.(\w+)\s*([\d,\s]*)", directives):
            numbers = tuple(int(v) for v in values.replace(",", " ").split())
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
        self.scopes, self.label_scopes, self.loc = [], [], (0, 0)
        self.body(e)
        self.module.entries[e.name] = e

    def parameter(self, s: str) -> Param:
        m = re.match(
            rf"\.param (?:\.align (\d+) )?\.(\w+) (?:\.ptr (?:\.\w+ )?(?:\.align \d+ )?)?({_IDENT})(?:\[(\d+)\])?$",
            s,
        )
        if not m:
            raise self.error(f"cannot parse the parameter {s!r}")
        item = _TYPE_SIZE[m.group(2)]
        count = int(m.group(4)) if m.group(4) else 1
        return Param(m.group(3), m.group(2), item * count, int(m.group(1) or item), is_array=bool(m.group(4)))

    def body(self, e: Entry) -> None:
        loc_re = re.compile(r"\.loc\s+(\d+)\s+(\d+)[^\n]*")
        while True:
            if not self.skip():
                raise self.error("the kernel body does not end")
            c = self.text[self.pos]
            if c == "{":
                self.open_block(e)
            elif c == "}":
                self.pos += 1
                self.scopes.pop()
                self.label_scopes.pop()
                if not self.scopes:
                    return
            elif c == ";":
                self.pos += 1
            elif m := loc_re.match(self.text, self.pos):
                self.loc = (int(m.group(1)), int(m.group(2)))
                self.pos = m.end()
            elif re.compile(r"\.file\b").match(self.text, self.pos):
                self.file(self.until("\n"))
            elif m := _LABEL.match(self.text, self.pos):
                self.pos = m.end()
                name = self.label(m.group(1))
                e.labels[name] = len(e.body)
                self.branch_list(e, name)
            else:
                line = self.here()
                self.one(e, self.statement(), line)

    def open_block(self, e: Entry) -> None:
        """Enter a block; its labels get names of their own, so that inlined asm can be repeated."""
        self.blocks += 1
        end = self.matching_brace(self.pos)
        inner = {}
        if self.scopes:
            for m in re.finditer(rf"(?:^|[;{{}}\n])\s*({_IDENT})\s*:(?!:)", self.text[self.pos : end]):
                inner[m.group(1)] = f"{m.group(1)}@{self.blocks}"
        self.label_scopes.append((self.blocks, inner))
        self.scopes.append({})
        self.pos += 1

    def label(self, name: str) -> str:
        for _, names in reversed(self.label_scopes):
            if name in names:
                return names[name]
        return name

    def branch_list(self, e: Entry, name: str) -> None:
        if m := re.compile(r"\s*\.branchtargets\s+([^;]*);").match(self.text, self.pos):
            e.branch_targets[name] = [self.label(x.strip()) for x in m.group(1).split(",")]
            self.pos = m.end()

    def one(self, e: Entry, text: str, line: int) -> None:
        s = " ".join(text.split())
        if s.startswith("."):
            if s.startswith(".reg"):
                self.registers(e, s)
            elif re.match(r"\.(shared|local|global|const)\b", s):
                v = self.variable(s)
                e.variables[v.name] = v
            elif not s.startswith((".pragma", ".loc")):
                raise PtxSyntaxError(f"PTX line {line}: directive {s!r} inside a kernel is not known")
            return
        m = re.match(rf"(?:@(!?)\s*({_IDENT})\s+)?(.*)$", s)
        if not m:
            raise PtxSyntaxError(f"PTX line {line}: cannot parse {s!r}")
        negate, guard_name, rest = m.groups()
        rest = re.sub(r"\s+(?=[.:]{1,2}[A-Za-z])", "", rest)  # inline asm may put blanks inside an opcode
        m = re.match(r"([A-Za-z_][\w]*(?:(?:\.|::)\w+)*)\s*(.*)$", rest)
        if not m:
            raise PtxSyntaxError(f"PTX line {line}: no opcode in {s!r}")
        guard = None
        if guard_name:
            r = self.register(guard_name)
            if r is None:
                raise PtxSyntaxError(f"PTX line {line}: the guard {guard_name} is not a register")
            guard = Reg(r.slot, r.type, r.name, negate == "!")
        try:
            operands = [self.operand(x) for x in split_commas(m.group(2))]
        except PtxSyntaxError as err:
            raise PtxSyntaxError(f"PTX line {line}: {err} in {s!r}") from None
        e.body.append(Statement(m.group(1), operands, guard, line, self.loc, s))

    def registers(self, e: Entry, s: str) -> None:
        m = re.match(r"\.reg (?:\.v[24] )?\.(\w+) (.*)$", s)
        if not m:
            raise self.error(f"cannot parse {s!r}")
        for name in m.group(2).split(","):
            r = re.match(rf"\s*({_IDENT})(?:<(\d+)>)?\s*$", name)
            if not r:
                raise self.error(f"cannot parse the register {name!r}")
            count = int(r.group(2)) if r.group(2) else 1
            kind = "range" if r.group(2) else "one"
            self.scopes[-1][r.group(1)] = (kind, e.registers, count, m.group(1))
            e.registers += count

    def register(self, name: str) -> Reg | None:
        stem = None
        for scope in reversed(self.scopes):
            if (hit := scope.get(name)) and hit[0] == "one":
                return Reg(hit[1], hit[3], name)
            stem = stem or re.match(r"(.*?)(\d+)$", name)
            if stem:
                # a prefix may itself end in digits: try the shortest numeric suffix that was declared
                for cut in range(len(stem.group(1)), len(name)):
                    hit = scope.get(name[:cut])
                    if hit and hit[0] == "range" and name[cut:].isdigit() and int(name[cut:]) < hit[2]:
                        return Reg(hit[1] + int(name[cut:]), hit[3], name)
        if name in SPECIALS:
            return Reg(SPECIALS[name], "b32", name)
        return None

    def operand(self, x: str) -> object:
        x = x.strip()
        if x == "_":
            return Sink()
        if x.startswith("{"):
            return Vec(tuple(self.operand(y) for y in split_commas(x[1:-1])))
        if x.startswith("["):
            parts = split_commas(x[1:-1])
            base = self.address(parts[0])
            return Addr(base.base, base.offset, tuple(self.operand(y) for y in parts[1:]))
        if "|" in x:
            a, b = x.split("|")
            return Pair(self.operand(a), self.operand(b))
        if x.startswith("!"):
            r = self.register(x[1:].strip())
            if r is None:
                raise PtxSyntaxError(f"unknown predicate {x!r}")
            return Reg(r.slot, r.type, r.name, True)
        if m := re.fullmatch(r"(-?)0[fF]([0-9a-fA-F]{8})", x):
            return Imm(int(m.group(2), 16) ^ (0x80000000 if m.group(1) else 0), True)
        if m := re.fullmatch(r"(-?)0[dD]([0-9a-fA-F]{16})", x):
            return Imm(int(m.group(2), 16) ^ ((1 << 63) if m.group(1) else 0), True)
        if re.fullmatch(r"-?\d+\.\d*([eE][-+]?\d+)?", x):
            return Imm(struct.unpack("<Q", struct.pack("<d", float(x)))[0], True)
        if (v := parse_int(x)) is not None:
            return Imm(v)
        if x in CLOCKS:
            return Clock(x)
        special = re.fullmatch(r"%\w+\.[xyz]", x)
        if special and x in SPECIALS:
            return Reg(SPECIALS[x], "b32", x)
        if (r := self.register(x)) is not None:
            return r
        if x.startswith("%"):
            raise PtxSyntaxError(f"unknown register {x!r}")
        if re.fullmatch(_IDENT, x):
            return Sym(self.label(x))
        place = self.address(x)
        if isinstance(place.base, Sym):
            return Sym(place.base.name, place.offset)
        raise PtxSyntaxError(f"cannot parse the operand {x!r}")

    def address(self, x: str) -> Addr:
        m = re.match(r"\s*(.*?)\s*(?:([+-])\s*(-?(?:0x[0-9a-fA-F]+|\d+)))?\s*$", x)
        if not m or not m.group(1):
            base = self.operand(x)
            if isinstance(base, Imm):
                return Addr(base)
            raise PtxSyntaxError(f"cannot parse the address {x!r}")
        base = self.operand(m.group(1)) if not re.fullmatch(r"-?\d+", x.strip()) else Imm(int(x))
        if not isinstance(base, Reg | Imm | Sym):
            raise PtxSyntaxError(f"cannot parse the address {x!r}")
        offset = int(m.group(3), 0) if m.group(3) else 0
        return Addr(base, -offset if m.group(2) == "-" else offset)


def parse(text: str) -> Module:
    """Parse a PTX module."""
    return _Parser(text).parse()
