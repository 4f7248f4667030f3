"""The work of one warp at a call of a leaf, counted from the leaf's text along the path of its first thread.

A branch on an unknown value is taken, except for one on a vote of the warp, which guards a rare case. A leaf
that a DSL implements by itself is counted by the registers that it is passed. The counts are of machine
instructions, as both DSLs compile the text; `benchmarks/clock_rates.py` measures what they cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import Any

from ..dtypes import DTYPES
from ..tile import text as t
from ..tile.expressions import STORED, Expr
from ..tile.lang import Schedule
from ..tile.leaf_text import WARP, Array, Do, Line, Local, Put, Vector, text_of

MOST_TURNS = 1 << 16
"""The most iterations of a loop; a loop that does not end is given up after them."""


Register = tuple[str, int | None]
"""A register: its array, and its number in it (None: any of them)."""


@dataclass
class Work:
    """What one warp issues, and what it waits for meanwhile.

    Attributes:
        slots: instructions.
        dense: instructions among them on floats in registers, which issue back to back.
        alu: instructions among them on integers, comparisons, selections and conversions, which issue at half
            the rate.
        mufu: instructions of the unit for exponentials, reciprocals and conversions.
        shared: 128-byte accesses of shared memory.
        tensor: 32-bit columns between the registers of a warp and tensor memory.
        chain: clocks of latency that nothing else of the warp hides.
        fetches: how often it waits for global memory.
        lines: lines of 128 bytes of which its loads from global memory to registers read a part.
        copied: whether its loads go directly to shared memory (cp.async).
        late: whether its results are numbers that loads in flight give.
        reads: registers of the caller (named by the leaf's parameters) whose values before the call the leaf
            reads.
        comes: registers of the caller that loads from global memory still fill after the call; their next use
            waits.
    """

    slots: float = 0.0
    dense: float = 0.0
    alu: float = 0.0
    mufu: float = 0.0
    shared: float = 0.0
    tensor: float = 0.0
    chain: float = 0.0
    fetches: float = 0.0
    lines: float = 0.0
    copied: bool = False
    late: bool = False
    reads: frozenset[Register] = frozenset()
    comes: frozenset[Register] = frozenset()

    def add(self, other: Work, times: float = 1.0) -> None:
        for name in _NUMBERS:
            setattr(self, name, getattr(self, name) + times * getattr(other, name))
        self.copied, self.late = self.copied or other.copied, self.late or other.late


_NUMBERS = tuple(each.name for each in fields(Work) if each.name not in ("copied", "late", "reads", "comes"))


# Latencies in clocks that a warp's next instruction usually waits for. benchmarks/clock_rates.py measured 24
# for a shuffle, 23 to 32 for a load from shared memory, and 17 for a vote with the comparison before it; the
# latency of a contended atomic is a guess.
SHUFFLE, SHARED, VOTE, ATOMIC = 24.0, 30.0, 12.0, 60.0

# Cost of each function that the DSLs implement: (slots, MUFU instructions, shared accesses, chain).
_FUNCTIONS: dict[str, tuple[float, float, float, float]] = {
    "exp2": (1, 1, 0, 0), "log2": (1, 1, 0, 20), "rcp_approx": (1, 1, 0, 20), "sqrt": (3, 1, 0, 30),
    "rsqrt": (2, 1, 0, 20), "divide": (8, 1, 0, 40), "is_nan": (1, 0, 0, 0), "popc": (1, 1, 0, 0),
    "clz": (2, 1, 0, 10), "mul_hi": (1, 0, 0, 0), "pair_low": (0, 0, 0, 0), "pair_high": (0, 0, 0, 0),
    "make_pair": (1, 0, 0, 0), "unsigned_above": (3, 0, 0, 0), "bits_of": (0, 0, 0, 0),
    "float_of": (0, 0, 0, 0), "anew": (0, 0, 0, 0), "add_rn": (1, 0, 0, 0), "halves": (1, 0.5, 0, 0),
    "float_of_half": (1, 0, 0, 0), "pair_of": (1, 0, 0, 0), "permute_bytes": (1, 0, 0, 0),
    "funnel_left": (1, 0, 0, 0), "ballot": (2, 0, 0, VOTE), "any_lane": (1, 0, 0, VOTE),
    "shuffle": (1, 0, 1, SHUFFLE), "exchange": (1, 0, 1, SHUFFLE), "scan": (16, 0, 5, 5 * SHUFFLE),
    "warp_sum": (2, 0, 0, SHUFFLE), "warp_max": (2, 0, 0, SHUFFLE), "warp_most": (2, 0, 0, SHUFFLE),
    "sum_of_lanes": (10, 0, 5, 5 * SHUFFLE), "max_of_lanes": (10, 0, 5, 5 * SHUFFLE),
    "quad_most": (4, 0, 2, 2 * SHUFFLE), "quad_sum": (4, 0, 2, 2 * SHUFFLE), "sync_warp": (1, 0, 0, 10),
    "atomic_add": (2, 0, 2, 0), "count_where": (4, 0, 2, 0), "fetch_add": (3, 0, 2, ATOMIC),
    "set_bits": (2, 0, 2, 0), "raise_to": (2, 0, 2, 0), "store_peer": (3, 0, 1, 0),
    "load_peer_pair": (3, 0, 1, 200), "quotient": (5, 1, 0, 40), "shuffle_length": (1, 0, 1, SHUFFLE),
    "share_begin": (20, 0, 0, 0), "share_size": (18, 0, 0, 0), "store_where": (1, 0, 0, 0),
    "load_or": (3, 0, 0, 0), "prefetch": (2, 0, 0, 0), "show_copies": (7, 0, 1, 30), "push": (9, 0, 0, 0),
    "store_pair": (1, 0, 0, 0), "store_fp8": (58, 0, 8, 0), "send_fours": (6, 0, 8, 0),
    "send_rows": (16, 0, 0, 0), "copy16": (3, 0, 4, 0), "copy8": (3, 0, 2, 0), "copy_row16": (4, 0, 4, 0),
    "scale_pair": (2, 0, 0, 0), "store_terms": (15, 0, 2, 0),
}  # fmt: skip
_COPIES = frozenset({"copy16", "copy8", "copy_row16"})
_ALU = {"store_fp8": 16.0, "store_terms": 8.0, "pair_of": 1.0, "push": 4.0, "popc": 1.0, "permute_bytes": 1.0}
_DENSE = frozenset({"exp2", "scale_pair", "store_fp8", "store_terms", "float_of_half", "add_rn", "pair_of"})
# Functions that take two floats per instruction on Blackwell.
_PACKED = frozenset({"scale_pair", "row_sum"})
# Functions over registers: slots per register.
_OVER_REGISTERS = {"row_most": 1.0, "row_most_bits": 0.6, "row_sum": 1.0}
_FETCHES = frozenset({"load_vector", "load_piece", "load_below", "load_or"})


@dataclass
class _Walk:
    """A walk of a role's first thread through the text of a leaf."""

    scope: dict[str, Any]
    longest: Mapping[str, Any] = field(default_factory=dict)
    # Whether additions and multiply-adds take two floats per instruction.
    packs: bool = False
    work: Work = field(default_factory=Work)
    # Latencies by their source: independent requests to one source are waited for together.
    waits: dict[str, float] = field(default_factory=dict)
    # Whether the leaf waits for global memory: independent loads are waited for together.
    fetched: bool = False
    # The leaf's parameters; then the caller's registers that it reads, and those that loads in flight fill.
    given: frozenset[str] = frozenset()
    reads: set[Register] = field(default_factory=set)
    comes: set[Register] = field(default_factory=set)
    # The ids of expressions that were counted.
    said: set[int] = field(default_factory=set)
    # Names whose values differ between lanes.
    apart: set[str] = field(default_factory=lambda: {"thread", "lane"})

    # ------------------------------------------------------------------ numbers

    def value(self, value: Any) -> Any:
        """The number that a value has, or None where it is unknown."""
        if not isinstance(value, Expr):
            return value if isinstance(value, (int, float, bool)) else None
        if value.op == "element":
            array = value.args[0]
            whole = array.line[0] if array.line is not None else array
            return self.longest.get(whole.name)
        return known(value, self.scope, self.value)

    # ------------------------------------------------------------------ instructions

    def count(self, value: Any) -> None:
        """Count the instructions that compute an expression, each shared subexpression once."""
        if not isinstance(value, Expr) or id(value) in self.said:
            return
        self.said.add(id(value))
        if value.op == "name":
            return
        if value.op in ("element", "group"):
            self._element(value)
            return
        if value.op == "apply":
            self._apply(value)
            return
        args = value.args
        for arg in args:
            self.count(arg)
        slots = self._slots(value)
        self.work.slots += slots
        if value.dtype == "float32" or value.op == "select":
            self.work.dense += slots
        if value.dtype != "float32" or value.op in ("select", "min", "max"):
            # Compilers turn half of the integer additions and shifts into multiply-adds, which another unit
            # executes.
            whole = value.op in ("select", "min", "max") or value.dtype == "bool"
            self.work.alu += slots if whole else slots / 2

    def _slots(self, value: Expr) -> float:
        a, b = (value.args + (None, None))[:2]
        if value.op == "to":
            return 1.0 if value.dtype in STORED or value.dtype == "float32" else 0.0
        if value.op in ("//", "%"):
            number = b if isinstance(b, int) else None
            if number is not None and number & (number - 1) == 0:
                return 1.0
            return 4.0 if number is not None else 14.0
        if value.op in ("+", "-") and value.dtype == "float32":
            # A multiply-add is one instruction, and its product was counted already.
            fused = any(isinstance(arg, Expr) and arg.op == "*" for arg in (a, b))
            return 0.0 if fused else 1.0
        if value.op in ("+", "-", "*") and all(not isinstance(arg, Expr) for arg in (a, b)):
            return 0.0
        if value.op == "ceildiv":
            return 2.0
        if value.op in ("&", "|") and value.dtype == "bool":
            # A comparison instruction can combine its result with an earlier condition.
            return 0.0
        return 1.0

    def _element(self, value: Expr) -> None:
        array = value.args[0]
        if array.space == "register":
            # A group of registers is read by the function that takes it, or written.
            if value.op == "element":
                self._reads(self._registers(array, value.args[1]))
            return
        index = value.args[1:] if value.op == "element" else value.args[2:]
        for each in index:
            self.count(each)
        if value.dtype == "address":
            return
        self._access(array, 1, index, loads=True)

    def _access(self, array: Array, elements: int, index: tuple[Any, ...], *, loads: bool) -> None:
        width = elements * DTYPES[array.dtype].bytes
        self.work.slots += 1
        if array.space in ("shared", "cluster"):
            # An element that all lanes read is one access.
            self.work.shared += max(1.0, width / 4) if any(map(self._differs, index)) else 1.0
            if loads:
                self.waits["shared"] = SHARED
        elif array.space == "global":
            # 64-bit address arithmetic.
            self.work.slots += 2
            if loads:
                self.fetched = True
                self.work.lines += width / 4

    def _registers(self, array: Array, first: Any, count: int = 1) -> Iterator[Register]:
        """The caller's registers that an access touches."""
        if array.name in self.given:
            at, begin = self.value(first), self.value(array.first)
            known = isinstance(at, int) and isinstance(begin, int)
            yield from ((array.name, begin + at + i if known else None) for i in range(count if known else 1))

    def _reads(self, registers: Iterable[Register]) -> None:
        for each in registers:
            if meet(each, self.comes):
                # The leaf uses what it loaded itself: it waits.
                self.fetched = True
            else:
                self.reads.add(each)

    def _differs(self, value: Any) -> bool:
        """Whether the value differs between lanes."""
        if not isinstance(value, Expr):
            return False
        if value.op == "name":
            return value.args[0] in self.apart
        return value.op == "element" or any(map(self._differs, value.args))

    def _apply(self, value: Expr) -> None:
        function, *arguments = value.args
        for arg in arguments:
            self.count(arg)
        registers = sum(arg.size for arg in arguments if isinstance(arg, Array) and arg.space == "register")
        name = function.name
        if name in _OVER_REGISTERS:
            rows = 2 if len(arguments) > 1 else 1
            slots = _OVER_REGISTERS[name] * registers / rows * self._pack(name)
            self.work.add(Work(slots, slots, slots if name != "row_sum" else 0.0))
        elif name in ("load_columns", "store_columns"):
            self.work.slots += 2
            self.work.tensor += registers
            self.waits[name] = 60.0 if name == "load_columns" else 10.0
        elif name == "store_matrices":
            count = next((arg for arg in reversed(arguments) if isinstance(arg, int)), 4)
            self.work.slots += 3 + count
            self.work.shared += count
        elif name in ("load_vector", "store_vector", "load_piece", "store_piece", "load_below"):
            self._vector(name, arguments)
        elif name in _FUNCTIONS:
            for array, first in pairwise(arguments):
                if isinstance(array, Array) and array.space == "register":
                    self._reads(self._registers(array, first, 4))
            slots, mufu, shared, chain = _FUNCTIONS[name]
            slots *= self._pack(name)
            self.work.add(Work(slots, slots if name in _DENSE else 0.0, _ALU.get(name, 0.0), mufu, shared))
            self.waits[name] = max(self.waits.get(name, 0.0), chain)
            self.work.copied = self.work.copied or name in _COPIES
            self.work.late = self.work.late or name == "load_or"
        else:
            self.work.slots += 2 + registers

    def _pack(self, name: str) -> float:
        """Instructions of a function, relative to one float per instruction."""
        return 0.5 if self.packs and name in _PACKED else 1.0

    def _vector(self, name: str, arguments: list[Any]) -> None:
        self.work.slots += 3
        places = [arg for arg in arguments if isinstance(arg, Expr) and arg.op in ("element", "group")]
        shared = any(arg.args[0].space == "shared" for arg in places)
        held, first, *rest = arguments
        count = rest[0] if name.startswith("load") and isinstance(rest[0], int) else 4
        own = set(self._registers(held, first, count)) if isinstance(held, Array) else set()
        if name.startswith("store"):
            self._reads(own)
        if shared:
            self.work.shared += 4
            self.waits["shared"] = SHARED
        elif name in _FETCHES:
            self.comes |= own
            self.fetched = self.fetched or not own
            # Eight lanes or fewer read neighbours: rows by number.
            self.work.lines += 2.0 * count

    # ------------------------------------------------------------------ statements

    def go(self, statements: Iterable[Any]) -> None:
        for s in statements:
            _MEANING.get(type(s), _Walk._nothing)(self, s)

    def _nothing(self, s: Any) -> None:
        pass

    def _let(self, s: t.Let | t.Assign) -> None:
        if self._differs(s.value):
            self.apart.add(s.name)
        self.count(s.value)
        self.scope[s.name] = self.value(s.value)

    def _variable(self, s: t.Variable) -> None:
        if self._differs(s.initial):
            self.apart.add(s.name)
        self.count(s.initial)
        self.scope[s.name] = self.value(s.initial)

    def _put(self, s: Put) -> None:
        self.count(s.value)
        if s.array.space != "register":
            for each in s.index:
                self.count(each)
            self._access(s.array, 1, s.index, loads=False)
        elif not isinstance(s.value, Expr) or s.value.op in ("name", "element"):
            self.work.slots += 1

    def _vector_of(self, s: Vector) -> None:
        for each in s.group:
            self.count(each)
        self._access(s.array, s.registers.size, s.group, loads=not s.store)

    def _line(self, s: Line) -> None:
        for each in (*s.rows, s.first):
            self.count(each)
        self.work.slots += 2 if s.array.space == "global" else 0

    def _do(self, s: Do) -> None:
        self.count(s.value)

    def _if(self, s: t.If) -> None:
        self.count(s.condition)
        self.work.slots += 1
        holds = self.value(s.condition)
        self.go(s.body if holds is None or holds else s.orelse)

    def _loop(self, s: t.Loop) -> None:
        begin, end = self.value(s.begin), self.value(s.end)
        if begin is None or end is None:
            self.count(s.begin)
            self.count(s.end)
            self._turn(s, None)
            return
        turns = range(int(begin), int(end), s.step)
        if s.unrolled:
            for index in turns:
                self._turn(s, index)
            return
        if not turns:
            return
        # All iterations are taken to be alike.
        outer = self.work, self.waits, self.fetched
        self.work, self.waits, self.fetched = Work(), {}, False
        self._turn(s, turns[0])
        once = self._waited()
        self.work, self.waits, self.fetched = outer
        # Iterations that are unrolled together wait together.
        once.chain /= s.at_once
        once.fetches /= s.at_once
        once.slots += 3 / s.at_once
        self.work.add(once, len(turns))
        self.scope[s.index] = turns[-1]

    def _waited(self) -> Work:
        """The work so far, with its waits."""
        self.work.chain += sum(self.waits.values())
        self.work.fetches += self.fetched
        return self.work

    def _turn(self, s: t.Loop, index: int | None) -> None:
        self.scope[s.index] = index
        said = set(self.said)
        self.go(s.body)
        self.said = said

    def _repeat(self, s: t.Repeat) -> None:
        for _ in range(MOST_TURNS):
            self.count(s.condition)
            self.work.slots += 1
            known = self.value(s.condition)
            if known is not None and not known:
                return
            before = dict(self.scope)
            self.go(s.body)
            if known is None or before == self.scope:
                return


_MEANING: dict[type, Callable[[_Walk, Any], None]] = {
    t.Let: _Walk._let,
    t.Assign: _Walk._let,
    t.Variable: _Walk._variable,
    t.If: _Walk._if,
    t.Loop: _Walk._loop,
    t.Repeat: _Walk._repeat,
    Put: _Walk._put,
    Vector: _Walk._vector_of,
    Line: _Walk._line,
    Do: _Walk._do,
    Local: _Walk._nothing,
    t.Comment: _Walk._nothing,
}


def meet(register: Register, others: Iterable[Register]) -> bool:
    """Whether a register may be one of the others."""
    name, number = register
    return any(name == n and (number is None or each is None or number == each) for n, each in others)


def known(value: Expr, scope: Mapping[str, Any], inner: Callable[[Any], Any]) -> Any:
    """The number that an expression has, given its names' values in `scope`; None where it is unknown.

    `inner` evaluates subexpressions.
    """
    if value.op == "name":
        return scope.get(value.args[0])
    if value.op == "to":
        return inner(value.args[0])
    if value.op == "select":
        condition = inner(value.args[0])
        return None if condition is None else inner(value.args[1 if condition else 2])
    if (itself := t.without_anew(value)) is not value:
        return inner(itself)
    if value.op == "apply" and value.args[0].name == "any_lane":
        # A vote guards code for a rare case.
        return False
    if value.op not in t.EVALUATE:
        return None
    a, b = (inner(arg) for arg in value.args)
    if value.op == "&" and value.dtype == "bool" and (a is None) != (b is None):
        return b if a is None else a
    if a is None or b is None:
        return None
    try:
        return t.EVALUATE[value.op](a, b)
    except (ArithmeticError, TypeError, ValueError):
        return None


def work_of(
    call: t.Call, schedule: Schedule, values: Mapping[int, Any], longest: Mapping[str, Any]
) -> tuple[Work, dict[str, Any]]:
    """The work of one warp at a call of a leaf, and the values of the leaf's names after it.

    Args:
        call: The call.
        schedule: The kernel's schedule.
        values: Position of an argument -> its value, where it is known.
        longest: Parameter -> the value of that operand's elements in the longest call.
    """
    leaf = call.leaf
    if leaf.text is None:
        return _spelled(call, schedule), {}
    text = text_of(leaf, call.arguments, schedule)
    scope: dict[str, Any] = {"thread": 0, "lane": 0, "warp": 0}
    scope |= {leaf.parameters[i].name: value for i, value in values.items()}
    given = frozenset(parameter.name for parameter in leaf.parameters)
    walk = _Walk(scope, longest, packs=bool(schedule.tmem_columns()), given=given)
    walk.go(text.statements)
    work = walk._waited()
    work.reads, work.comes = frozenset(walk.reads), frozenset(walk.comes)
    return work, walk.scope


# Slots, MUFU instructions and columns of tensor memory per register, for leaves that the DSLs implement.
_LEAVES: dict[str, tuple[float, float, float]] = {
    "round_to": (0.5, 0, 0), "pack_to": (0.5, 0, 0), "read_tensor": (0.05, 0, 1),
    "write_tensor": (0.05, 0, 1), "read_accumulator": (0.1, 0, 1), "stage_rows": (0.3, 0, 0),
    "read_scores": (0.1, 0, 1), "weigh_one": (1.6, 0, 0),
}  # fmt: skip


def _spelled(call: t.Call, schedule: Schedule) -> Work:
    registers: list[int] = []
    for argument in call.arguments:
        if isinstance(argument, t.View):
            buffer = schedule.buffer(argument.buffer)
            if buffer.space.value == "register":
                share = schedule.role(buffer.role).warps * WARP if buffer.role and not buffer.private else 1
                registers.append(buffer.per_thread or buffer.stage_elements // share)
    slots, mufu, columns = _LEAVES.get(call.leaf.name, (1.0, 0, 0))
    packs = call.leaf.name in ("round_to", "pack_to")
    # With scores of several queries, weigh_one works only on those that it has weights for.
    of = min if call.leaf.name == "weigh_one" else max
    count = of((size for size in registers if size > 1), default=1)
    return Work(
        slots=4 + slots * count, dense=slots * count, alu=slots * count if packs else 0.0, mufu=mufu * count,
        tensor=columns * count, chain=30.0 if columns else 0.0,
    )  # fmt: skip
