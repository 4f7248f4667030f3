"""Device functions: the parser inlines every call, with registers, labels and variables of its own.

PTX ISA, call and parameter state space: arguments and results pass by value, through ``.param`` variables of
the caller or, for scalars, through registers. Recursion and calls through a register cannot be inlined and
are refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .errors import PtxSyntaxError, UnsupportedInstruction
from .ptx import Addr, Entry, Reg, Statement, Sym, Variable

if TYPE_CHECKING:
    from .parser import _Parser

#: The system function that printf calls. It prints nothing here: no check depends on what a kernel prints.
PRINTF = "vprintf"
#: The emulator's limits: nested calls, and instructions of a kernel with all its calls inlined.
MAX_DEPTH = 64
MAX_INSTRUCTIONS = 1 << 20
_IDENT = r"[A-Za-z_$%][\w$]*"
# Every repetition is bounded or ends at the next bracket, so that the search is linear in the length of the
# text.
_SIGNATURE = re.compile(
    rf"\.func\b\s*(?:\.\w+\s*){{0,4}}(?:\((?P<results>[^(){{}};]*)\)\s*)?(?P<name>{_IDENT})\s*"
    r"(?:\((?P<params>[^(){};]*)\)\s*)?(?:\.\w+(?:[ \t]*\"[^\"\n]*\")?\s*){0,8}(?P<end>[{;])"
)
_FORMAL = re.compile(
    r"\.(?P<space>param|reg) (?:\.align (?P<align>\d+) )?\.(?P<type>\w+) "
    rf"(?:\.ptr (?:\.\w+ )?(?:\.align \d+ )?)?(?P<name>{_IDENT})(?P<size>\[\d*\])?$"
)


@dataclass(frozen=True)
class Formal:
    """A parameter or result of a function."""

    name: str
    type: str
    register: bool
    declaration: str


@dataclass(frozen=True)
class Function:
    name: str
    body: int  # position of the opening brace in the text
    results: tuple[Formal, ...]
    params: tuple[Formal, ...]


def find(p: _Parser) -> dict[str, Function]:
    """The functions of a module that have a body, by name."""
    out = {}
    for m in _SIGNATURE.finditer(p.text):
        if m["end"] != "{":
            continue
        p.pos = m.start()
        out[m["name"]] = Function(m["name"], m.end() - 1, _formals(p, m["results"]), _formals(p, m["params"]))
    p.pos = 0
    return out


def _formals(p: _Parser, text: str | None) -> tuple[Formal, ...]:
    out = []
    for part in (text or "").split(","):
        s = " ".join(part.split())
        if not s:
            continue
        m = _FORMAL.match(s)
        if not m:
            raise p.error(f"cannot parse the parameter {s!r} of a function")
        align = f".align {m['align']} " if m["align"] else ""
        out.append(
            Formal(m["name"], m["type"], m["space"] == "reg", f"{align}.{m['type']} @{m['size'] or ''}")
        )
    return tuple(out)


def variable(p: _Parser, e: Entry, text: str) -> None:
    """Declare a variable of a body.

    In a block or an inlined call the variable gets a unique name; all calls of a function share its static
    variables.
    """
    v = p.variable(text.replace(".param", ".local", 1))
    if text.startswith(".param"):
        v.space = "param"
    name = v.name
    if p.calls or len(p.blocks) > 1:
        static = v.space not in ("local", "param")
        v.name = f"{name}@{p.calls[-1] if static and p.calls else p.opened}"
        p.bind(p.labels, name, v.name)
        if static and v.name in e.variables:
            return
    if v.name in e.variables:
        raise p.error(f"{name} is declared twice")
    e.variables[v.name] = v


def expand(p: _Parser, e: Entry, parts: list[str], guard: Reg | None, line: int, statement: str) -> bool:
    """Inline the called function in place of the call; False where this module has no body for it."""

    def refuse(why: str) -> UnsupportedInstruction:
        return UnsupportedInstruction(f"PTX line {line}: {statement!r}: {why}")

    results = _names(parts.pop(0)) if parts and parts[0].startswith("(") else []
    if not parts:
        raise PtxSyntaxError(f"PTX line {line}: no function in {statement!r}")
    name = parts.pop(0)
    given = _names(parts.pop(0)) if parts and parts[0].startswith("(") else []
    if name.startswith("%"):
        raise refuse("a call through a register is not supported")
    f = p.functions.get(name)
    if f is None:
        return name == PRINTF and _print(_Call(p, e, name, line, statement), results, guard)
    if name in p.calls:
        raise refuse(f"{name} calls itself, which is not supported")
    if len(p.calls) >= MAX_DEPTH:
        raise refuse(f"calls are nested more than {MAX_DEPTH} deep")
    if len(results) != len(f.results) or len(given) != len(f.params):
        raise PtxSyntaxError(
            f"PTX line {line}: {name} has {len(f.results)} results and {len(f.params)} parameters, "
            f"{statement!r} gives {len(results)} and {len(given)}"
        )
    p.opened += 1
    call = _Call(p, e, f"{name}@{p.opened}", line, statement)
    if guard:
        call.add("bra", [Sym(f"{call.name}.end")], Reg(guard.slot, guard.type, guard.name, not guard.negated))
    inside: dict[str, str] = {}
    registers: list[tuple[Formal, Any]] = []
    after: list[tuple[str, Formal, Any]] = []
    for formal, actual in zip((*f.params, *f.results), (*given, *results), strict=True):
        result = formal in f.results
        place = p.label(actual)
        operand = None if place in e.variables else p.operand(actual)
        if formal.register:
            registers.append((formal, None if result else _value(call, formal, actual, operand)))
            if result:
                after.append(("register", formal, actual))
        elif operand is None:
            inside[formal.name] = place
        else:
            variable_name = call.variable(formal)
            inside[formal.name] = variable_name
            if result:
                after.append(("memory", formal, operand))
            else:
                call.add(f"st.param.{formal.type}", [Addr(Sym(variable_name)), operand])
    bound = call.body(f, inside, registers)
    for kind, formal, target in after:
        if kind == "memory":
            call.add(f"ld.param.{formal.type}", [target, Addr(Sym(inside[formal.name]))])
        elif p.label(target) in e.variables:
            call.add(f"st.param.{formal.type}", [Addr(Sym(p.label(target))), bound[formal.name]])
        else:
            call.add(f"mov.{formal.type}", [p.operand(target), bound[formal.name]])
    e.labels[f"{call.name}.end"] = len(e.body)
    return True


def _print(call: _Call, results: list[str], guard: Reg | None) -> bool:
    """A call of printf does nothing and returns 0."""
    none = call.p.operand("0")
    for target in results:
        place = call.p.label(target)
        if place in call.e.variables:
            call.add("st.param.b32", [Addr(Sym(place)), none], guard)
        else:
            call.add("mov.b32", [call.p.operand(target), none], guard)
    return True


def _names(text: str) -> list[str]:
    return [x.strip() for x in text.strip()[1:-1].split(",") if x.strip()]


def _value(call: _Call, formal: Formal, actual: str, operand: Any) -> Any:
    """The initial value of a register parameter: an operand, or (type, address) of a variable to load."""
    return operand if operand is not None else (formal.type, Addr(Sym(call.p.label(actual))))


class _Call:
    """One call that is being inlined into the kernel's body."""

    def __init__(self, p: _Parser, e: Entry, name: str, line: int, statement: str) -> None:
        self.p, self.e, self.name, self.line, self.statement = p, e, name, line, statement

    def add(self, opcode: str, operands: list[Any], guard: Reg | None = None) -> None:
        p = self.p
        self.e.body.append(Statement(opcode, operands, guard, self.line, p.loc, self.statement, p.outer))

    def variable(self, formal: Formal) -> str:
        """Declare memory for a parameter that the caller passes in a register; gives the variable's name."""
        name = f"{self.name}.{formal.name}"
        v: Variable = self.p.variable(".local " + formal.declaration.replace("@", "x"))
        v.name, v.space = name, "param"
        self.e.variables[name] = v
        return name

    def body(
        self, f: Function, inside: dict[str, str], registers: list[tuple[Formal, Any]]
    ) -> dict[str, Reg]:
        """Parse the function's body into the caller's; gives the registers of register parameters by name."""
        p, e = self.p, self.e
        kept = (p.pos, p.loc, p.outer, p.singles, p.ranges, p.labels, p.read, p.blocks, p.block_labels)
        p.pos, p.singles, p.ranges, p.labels, p.read, p.blocks = f.body, {}, {}, dict(inside), {}, [[]]
        p.calls.append(f.name)
        p.ends.append(f"{self.name}.return")
        bound = {}
        for formal, value in registers:
            p.registers(e, f".reg .{formal.type} {formal.name}")
            r = p.register(formal.name)
            if r is None:
                raise p.error(f"cannot parse the parameter {formal.name!r} of a function")
            bound[formal.name] = r
            if isinstance(value, tuple):
                self.add(f"ld.param.{value[0]}", [r, value[1]])
            elif value is not None:
                self.add(f"mov.{formal.type}", [r, value])
        p.find_labels()
        p.body(e, depth=1)
        if len(e.body) > MAX_INSTRUCTIONS:
            raise UnsupportedInstruction(
                f"PTX line {self.line}: {self.statement!r}: with all its calls the kernel has more than "
                f"{MAX_INSTRUCTIONS} instructions"
            )
        e.labels[p.ends.pop()] = len(e.body)
        p.calls.pop()
        p.pos, p.loc, p.outer, p.singles, p.ranges, p.labels, p.read, p.blocks, p.block_labels = kept
        return bound
