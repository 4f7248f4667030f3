"""Evaluate a host function that a DSL printed in MLIR's LLVM dialect, to learn what it launches.

CuTe DSL prints the function that prepares and makes its launches: plain arithmetic that fills structures,
computes grids and writes descriptors of tensor maps. Evaluating it needs neither its machine code nor the
libraries that this code calls: the calls go to the functions that :class:`HostProgram` is given.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..errors import InternalError
from .errors import UnsupportedCall

STEPS = 5_000_000  # basic blocks per call; a host function that runs more is taken not to end
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True)
class Layout:
    """Memory layout of a type: size and alignment in bytes, and the offsets and types of its members."""

    size: int
    align: int
    kind: str  # "int", "float", "ptr", "struct", "array"
    members: tuple[tuple[int, Layout], ...] = ()  # of a struct
    element: Layout | None = None  # of an array
    count: int = 0
    bits: int = 0

    def at(self, indices: Sequence[int]) -> tuple[int, Layout]:
        """Offset and type of a member."""
        offset, here = 0, self
        for i in indices:
            if here.kind == "struct":
                step, here = here.members[i]
                offset += step
            elif here.element is not None:
                here = here.element
                offset += i * here.size
            else:
                raise InternalError(f"an index into a {here.kind}")
        return offset, here


class _Types:
    """A recursive-descent reader of LLVM-dialect types."""

    def __init__(self, text: str) -> None:
        self.text, self.i = text.replace("!llvm.", "").replace(" ", ""), 0

    def take(self, token: str) -> bool:
        if self.text.startswith(token, self.i):
            self.i += len(token)
            return True
        return False

    def read(self) -> Layout:
        if self.take("struct<"):
            if self.text[self.i] == '"':  # a named structure
                self.i = self.text.index('"', self.i + 1) + 1
                self.take(",")
            packed = self.take("packed")
            self.take("(")
            members = []
            while not self.take(")"):
                members.append(self.read())
                self.take(",")
            self.take(">")
            return _structure(members, packed)
        if self.take("array<"):
            digits = self._digits()
            self.take("x")
            element = self.read()
            self.take(">")
            return Layout(element.size * digits, element.align, "array", element=element, count=digits)
        if self.take("vector<"):
            count = self._digits()
            self.take("x")
            element = self.read()
            self.take(">")
            size = 1 << (element.size * count - 1).bit_length()
            return Layout(size, size, "array", element=element, count=count)
        if self.take("ptr"):
            if self.take("<"):
                self.i = self.text.index(">", self.i) + 1
            return Layout(8, 8, "ptr", bits=64)
        for name, bits in (("bf16", 16), ("f16", 16), ("f32", 32), ("f64", 64)):
            if self.take(name):
                return Layout(bits // 8, bits // 8, "float", bits=bits)
        if self.take("i"):
            bits = self._digits()
            size = 1 if bits <= 8 else 1 << (bits - 1).bit_length() >> 3
            return Layout(size, min(size, 16), "int", bits=bits)
        raise UnsupportedCall(
            "the DSL's host function", got=f"the type {self.text!r}", fix="report it with the program"
        )

    def _digits(self) -> int:
        start = self.i
        while self.i < len(self.text) and self.text[self.i].isdigit():
            self.i += 1
        return int(self.text[start : self.i])


def _structure(members: list[Layout], packed: bool) -> Layout:
    at, align, placed = 0, 1, []
    for m in members:
        a = 1 if packed else m.align
        at = -(-at // a) * a
        placed.append((at, m))
        at, align = at + m.size, max(align, a)
    return Layout(-(-at // align) * align, align, "struct", tuple(placed))


@lru_cache(maxsize=4096)
def layout(text: str) -> Layout:
    """The layout of the type that the text names, with the C ABI's alignment."""
    return _Types(text).read()


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) & 1 else value


def _quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _remainder(a: int, b: int) -> int:
    return a - b * _quotient(a, b)


_UNSIGNED: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "udiv": lambda a, b: a // b,
    "urem": lambda a, b: a % b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b,
    "lshr": lambda a, b: a >> b,
    "intr.umin": min,
    "intr.umax": max,
}
_SIGNED: dict[str, Callable[[int, int], int]] = {
    "sdiv": _quotient,
    "srem": _remainder,
    "ashr": lambda a, b: a >> b,
    "intr.smin": min,
    "intr.smax": max,
}
_FLOAT: dict[str, Callable[[float, float], float]] = {
    "fadd": lambda a, b: a + b,
    "fsub": lambda a, b: a - b,
    "fmul": lambda a, b: a * b,
    "fdiv": lambda a, b: a / b,
}
# By MLIR's ICmpPredicate (eq, ne, the signed comparisons, the unsigned ones): whether it is signed, and its
# function.
_COMPARE: tuple[tuple[bool, Callable[[int, int], bool]], ...] = (
    (False, lambda a, b: a == b),
    (False, lambda a, b: a != b),
    *[
        (signed, compare)
        for signed in (True, False)
        for compare in (
            lambda a, b: a < b,
            lambda a, b: a <= b,
            lambda a, b: a > b,
            lambda a, b: a >= b,
        )
    ],
)
_FLOAT_FORMS = {32: "<f", 64: "<d", 16: "<e"}


class _Step:
    """An operation, read once: MLIR's Python objects are slow, and a host function may loop over a matrix.

    ``memo`` caches what the evaluation reads from the operation's attributes.
    """

    __slots__ = ("kind", "kinds", "memo", "name", "op", "operands", "result")

    def __init__(self, op: Any) -> None:
        self.op = op
        self.name = op.name.removeprefix("llvm.")
        self.operands = [_key(v) for v in op.operands]
        self.kinds = [layout(str(v.type)) for v in op.operands]
        self.result = _key(op.results[0]) if len(op.results) else None
        self.kind = layout(str(op.results[0].type)) if len(op.results) else Layout(0, 1, "int")
        self.memo: Any = None

    def once(self, read: Callable[[Any], Any]) -> Any:
        if self.memo is None:
            self.memo = read(self.op.attributes)
        return self.memo


class _Block:
    """A basic block: its arguments, its steps, its terminator and its successors."""

    def __init__(self, block: Any) -> None:
        self.arguments = [_key(a) for a in block.arguments]
        *self.steps, self.last = (_Step(op.operation) for op in block.operations)
        self.successors = list(self.last.op.successors)


class HostProgram:
    """The functions of one printed module.

    A scalar value is an unsigned integer (a float is its bits), an aggregate its bytes. Memory is this
    process's own, so that a launch can use what the functions store.
    """

    def __init__(self, module: Any, calls: Mapping[str, Callable[..., int]]) -> None:
        self.calls = calls
        self.functions: dict[str, Any] = {}
        self._globals: dict[str, Any] = {}
        self._named: set[str] = set()  # all functions, including those that only libraries define
        self._keep: list[Any] = []
        self._blocks: dict[int, _Block] = {}
        self._module = module  # the operations belong to it
        for op in module.body.operations:
            op = op.operation
            if op.name == "llvm.func":
                self._named.add(_text(op.attributes["sym_name"]))
            if op.name == "llvm.func" and len(op.regions[0].blocks):
                self.functions[_text(op.attributes["sym_name"])] = op
            elif op.name == "llvm.mlir.global":
                self._globals[_text(op.attributes["sym_name"])] = op
        self._addresses: dict[str, int] = {}

    def symbol(self, name: str) -> int:
        """The address of a module variable or a function.

        A variable without a value holds its own address, so that it can serve as a handle.
        """
        if name in self._addresses:
            return self._addresses[name]
        if name in self._named:  # a callback, which nothing here calls
            self._addresses[name] = self.allocate(8)
            return self._addresses[name]
        op = self._globals.get(name)
        if op is None:
            raise UnsupportedCall(
                "the DSL's host function", got=f"the address of {name}", fix="report it with the program"
            )
        value = op.attributes["value"] if "value" in op.attributes else None  # noqa: SIM401 - it has no get
        size = layout(str(_type(op.attributes["global_type"]))).size
        address = self.allocate(max(size, 8))
        data = _bytes(value) if value is not None else struct.pack("<Q", address)
        ctypes.memmove(address, data, min(len(data), max(size, 8)))
        self._addresses[name] = address
        return address

    def name_at(self, address: int) -> str | None:
        """The module variable at an address."""
        return next((name for name, at in self._addresses.items() if at == address), None)

    def allocate(self, size: int) -> int:
        """Zeroed memory at a multiple of 128; it lives as long as the program."""
        buffer = ctypes.create_string_buffer(size + 128)
        self._keep.append(buffer)
        return -(-ctypes.addressof(buffer) // 128) * 128

    def argument(self, name: str, index: int, address: int) -> int | bytes:
        """The value at an address, in the type of a function's argument."""
        with self._module.context:
            block = self.functions[name].regions[0].blocks[0]
            return _load(address, layout(str(block.arguments[index].type)))

    def arity(self, name: str) -> int:
        return len(self.functions[name].regions[0].blocks[0].arguments)

    def run(self, name: str, arguments: Sequence[int | bytes]) -> int | bytes | None:
        """Call a function.

        Raises:
            UnsupportedCall: the function executes an operation or makes a call that is not supported, or does
                not end.
        """
        with self._module.context:
            return self._run(name, arguments)

    def _run(self, name: str, arguments: Sequence[int | bytes]) -> int | bytes | None:
        values: dict[int, int | bytes] = {}
        block = self._block(self.functions[name].regions[0].blocks[0])
        given: list[int | bytes] = list(arguments)
        for _ in range(STEPS):
            values.update(zip(block.arguments, given, strict=True))
            for step in block.steps:
                self._execute(step, values)
            last = block.last
            if last.name == "return":
                return values[last.operands[0]] if last.operands else None
            to, given = self._branch(last, values)
            block = self._block(block.successors[to])
        raise UnsupportedCall(
            name, got=f"{STEPS} blocks without a return", fix="make the host function smaller"
        )

    def _block(self, block: Any) -> _Block:
        key = _key(block)
        if key not in self._blocks:
            self._blocks[key] = _Block(block)
        return self._blocks[key]

    def _branch(self, last: _Step, values: dict[int, int | bytes]) -> tuple[int, list[int | bytes]]:
        operands = [values[v] for v in last.operands]
        if last.name == "br":
            return 0, operands
        if last.name == "cond_br":
            sizes = last.once(_segments)
            taken = 0 if operands[0] else 1
            start = 1 + (sizes[1] if taken else 0)
            return taken, operands[start : start + sizes[1 + taken]]
        raise UnsupportedCall(
            "the DSL's host function", got=f"it ends in {last.op.name}", fix="see what the program asks for"
        )

    def _execute(self, step: _Step, values: dict[int, int | bytes]) -> None:
        name = step.name
        operands = [values[v] for v in step.operands]
        if name == "store":
            _store(_int(operands[1]), operands[0], step.kinds[0])
            return
        if name == "intr.assume":  # a hint for the compiler
            return
        if name == "intr.trap":
            raise UnsupportedCall(
                "the DSL's host function", got="it trapped", fix="see what it printed before"
            )
        if name in ("intr.memcpy", "intr.memset"):
            to, what, size = (_int(v) for v in operands[:3])
            (ctypes.memmove if name == "intr.memcpy" else ctypes.memset)(to, what, size)
            return
        result = self._call(step, operands) if name == "call" else self._value(step, operands)
        if step.result is not None:
            values[step.result] = result

    def _call(self, step: _Step, operands: list[int | bytes]) -> Any:
        callee = step.once(lambda a: _text(a["callee"]) if "callee" in a else "")
        if not callee:
            raise UnsupportedCall(
                "the DSL's host function", got="a call by a pointer", fix="report it with the program"
            )
        if callee in self.calls:
            return self.calls[callee](self, *operands)
        if callee in self.functions:
            return self._run(callee, operands)
        raise UnsupportedCall(
            callee.lstrip("_"),
            got="a call of it in CuTe DSL's host function",
            fix="launch the kernel without it, or run the program on a GPU",
        )

    def _value(self, step: _Step, operands: list[int | bytes]) -> int | bytes:
        name, kind = step.name, step.kind
        mask = (1 << kind.bits) - 1
        if name in _UNSIGNED:
            return _UNSIGNED[name](_int(operands[0]), _int(operands[1])) & mask
        if name in _SIGNED:
            a, b = (_signed(_int(v), kind.bits) for v in operands)
            return _SIGNED[name](a, b) & mask
        if name in _FLOAT:
            form = _FLOAT_FORMS[kind.bits]
            a, b = (struct.unpack(form, _int(v).to_bytes(kind.size, "little"))[0] for v in operands)
            return int.from_bytes(struct.pack(form, _FLOAT[name](a, b)), "little")
        special = getattr(self, "_do_" + name.replace(".", "_"), None)
        if special is None:
            raise UnsupportedCall(
                "the DSL's host function",
                got=f"the operation {step.op.name}",
                fix="report it with the program",
            )
        return special(step, kind, operands)

    def _do_mlir_constant(self, op: _Step, kind: Layout, _: Any) -> int | bytes:
        data = op.once(lambda a: _bytes(a["value"]))
        if kind.kind in ("struct", "array"):
            return data.ljust(kind.size, b"\0")
        return int.from_bytes(data, "little") & ((1 << kind.bits) - 1)

    def _do_mlir_zero(self, op: _Step, kind: Layout, _: Any) -> int | bytes:
        return bytes(kind.size) if kind.kind in ("struct", "array") else 0

    _do_mlir_undef = _do_mlir_poison = _do_mlir_zero

    def _do_mlir_addressof(self, op: _Step, kind: Layout, _: Any) -> int:
        return self.symbol(op.once(lambda a: _text(a["global_name"])))

    def _do_alloca(self, op: _Step, kind: Layout, operands: list[Any]) -> int:
        return self.allocate(op.once(lambda a: layout(str(_type(a["elem_type"]))).size) * operands[0])

    def _do_getelementptr(self, op: _Step, kind: Layout, operands: list[Any]) -> int:
        element, fixed = op.once(
            lambda a: (layout(str(_type(a["elem_type"]))), [int(i) for i in a["rawConstantIndices"]])
        )
        dynamic = iter(zip(operands[1:], op.kinds[1:], strict=True))
        indices = []
        for i in fixed:
            if i == -(1 << 31):
                value, source = next(dynamic)
                i = _signed(value, source.bits)
            indices.append(i)
        inner, _ = element.at(indices[1:])
        return (operands[0] + indices[0] * element.size + inner) & _MASK64

    def _do_load(self, op: _Step, kind: Layout, operands: list[Any]) -> int | bytes:
        return _load(operands[0], kind)

    def _do_icmp(self, op: _Step, kind: Layout, operands: list[Any]) -> int:
        bits = op.kinds[0].bits
        signed, compare = _COMPARE[op.once(lambda a: _bytes(a["predicate"])[0])]
        a, b = ((_signed(v, bits) if signed else v) for v in operands)
        return int(compare(a, b))

    def _do_select(self, op: _Step, kind: Layout, operands: list[Any]) -> int | bytes:
        return operands[1] if operands[0] else operands[2]

    def _do_trunc(self, op: _Step, kind: Layout, operands: list[Any]) -> int:
        return operands[0] & ((1 << kind.bits) - 1)

    _do_zext = _do_inttoptr = _do_ptrtoint = _do_bitcast = _do_freeze = _do_addrspacecast = _do_trunc

    def _do_sext(self, op: _Step, kind: Layout, operands: list[Any]) -> int:
        return _signed(operands[0], op.kinds[0].bits) & ((1 << kind.bits) - 1)

    def _do_sitofp(self, op: _Step, kind: Layout, operands: list[Any]) -> int:
        value = _signed(operands[0], op.kinds[0].bits)
        return int.from_bytes(struct.pack(_FLOAT_FORMS[kind.bits], float(value)), "little")

    def _do_fptrunc(self, op: _Step, kind: Layout, operands: list[Any]) -> int:
        source = op.kinds[0]
        value = struct.unpack(_FLOAT_FORMS[source.bits], operands[0].to_bytes(source.size, "little"))[0]
        return int.from_bytes(struct.pack(_FLOAT_FORMS[kind.bits], value), "little")

    _do_fpext = _do_fptrunc

    def _do_extractvalue(self, op: _Step, kind: Layout, operands: list[Any]) -> int | bytes:
        offset, part = op.kinds[0].at(op.once(lambda a: [int(i) for i in a["position"]]))
        data = operands[0][offset : offset + part.size]
        return data if part.kind in ("struct", "array") else int.from_bytes(data, "little")

    def _do_insertvalue(self, op: _Step, kind: Layout, operands: list[Any]) -> bytes:
        offset, part = kind.at(op.once(lambda a: [int(i) for i in a["position"]]))
        value = operands[1]
        data = value if isinstance(value, bytes) else value.to_bytes(part.size, "little")
        return operands[0][:offset] + data + operands[0][offset + part.size :]

    def _do_intr_ctlz(self, op: _Step, kind: Layout, operands: list[Any]) -> int:
        return kind.bits - operands[0].bit_length()

    def _do_intr_cttz(self, op: _Step, kind: Layout, operands: list[Any]) -> int:
        return (operands[0] & -operands[0]).bit_length() - 1 if operands[0] else kind.bits

    def _do_intr_ctpop(self, op: _Step, kind: Layout, operands: list[Any]) -> int:
        return operands[0].bit_count()

    def _do_intr_abs(self, op: _Step, kind: Layout, operands: list[Any]) -> int:
        return abs(_signed(operands[0], kind.bits)) & ((1 << kind.bits) - 1)


def _key(value: Any) -> int:
    """A key that tells values apart. Comparing two values would not: the DSL's == builds a new operation."""
    return hash(value)


def _int(value: int | bytes) -> int:
    return int.from_bytes(value, "little") if isinstance(value, bytes) else value


def _load(address: int, kind: Layout) -> int | bytes:
    data = ctypes.string_at(address, kind.size)
    if kind.kind in ("struct", "array"):
        return data
    return int.from_bytes(data, "little") & ((1 << kind.bits) - 1)


def _store(address: int, value: int | bytes, kind: Layout) -> None:
    data = value if isinstance(value, bytes) else value.to_bytes(kind.size, "little")
    ctypes.memmove(address, data, len(data))


def _text(attribute: Any) -> str:
    return str(attribute.value)  # StringAttr or FlatSymbolRefAttr


def _type(attribute: Any) -> Any:
    return attribute.value if hasattr(attribute, "value") else attribute


def _segments(attributes: Any) -> list[int]:
    return [int(n) for n in attributes["operandSegmentSizes"]]


def _bytes(attribute: Any) -> bytes:
    """The bytes of a constant: an integer, a float, a string, or a dense array of these."""
    kind = type(attribute).__name__
    if kind == "StringAttr":
        return attribute.value_bytes
    if kind == "IntegerAttr":
        text = str(attribute.type)
        bits = 64 if text == "index" else int(text.lstrip("sui"))
        return (attribute.value & ((1 << bits) - 1)).to_bytes(-(-bits // 8), "little")
    if kind == "BoolAttr":
        return bytes([int(attribute.value)])
    if kind == "FloatAttr":
        text = str(attribute.type)
        if text == "bf16":
            return struct.pack("<f", attribute.value)[2:]
        return struct.pack({"f16": "<e", "f32": "<f", "f64": "<d"}[text], attribute.value)
    if kind.startswith("Dense"):
        element = layout(str(attribute.type.element_type))
        out = b""
        for item in attribute:
            if element.kind == "float":
                out += struct.pack(_FLOAT_FORMS[element.bits], item)
            else:
                out += (int(item) & ((1 << element.bits) - 1)).to_bytes(element.size, "little")
        return out
    raise UnsupportedCall(
        "the DSL's host function", got=f"the constant {attribute}", fix="report it with the program"
    )
