"""The text of a kernel: what the bodies of its roles say when each is run once against a `Recorder`.

A body is an ordinary Python function. Knobs and sizes of the schedule are Python numbers in it, so a Python `if` or
`for` over them decides what is written; values that only the kernel knows are expressions, and control flow over them
goes through the recorder (`when`, `otherwise`, `loop`, `repeat`). What comes out is plain data: statements in the order
of execution, which every printer, the interpreter and the cost model read. None of them sees the body again.

Leaf maths stays outside the text: a `Leaf` is a name, its parameters and its meaning in torch; a DSL spells it under
the same name in `dsl_kernels/device/<dsl>/<op>.py`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin, get_type_hints

from ..errors import DeclarationError, DslKernelError, did_you_mean
from . import places
from .lang import Engine, Mma, Pipeline, Schedule, Size

if TYPE_CHECKING:
    from ..arch import ArchSpec
    from ..problems.base import OperandSpec

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


@dataclass(frozen=True, eq=False)
class Expr:
    """A number that the kernel computes: a name, or an operator over numbers and other expressions."""

    op: str
    args: tuple[Any, ...]
    dtype: str = "int32"

    def __add__(self, other: Value) -> Expr:
        return _binary("+", self, other)

    def __radd__(self, other: Value) -> Expr:
        return _binary("+", other, self)

    def __sub__(self, other: Value) -> Expr:
        return _binary("-", self, other)

    def __rsub__(self, other: Value) -> Expr:
        return _binary("-", other, self)

    def __mul__(self, other: Value) -> Expr:
        return _binary("*", self, other)

    def __rmul__(self, other: Value) -> Expr:
        return _binary("*", other, self)

    def __floordiv__(self, other: Value) -> Expr:
        return _binary("//", self, other)

    def __rfloordiv__(self, other: Value) -> Expr:
        return _binary("//", other, self)

    def __truediv__(self, other: Value) -> Expr:
        raise DeclarationError(
            "/ on a value of the kernel",
            expected="// of integers, or a function of floats in the text of a leaf",
            got=f"a quotient of {self.dtype}",
            fix="say divide(a, b) of device/torch/floats.py, or a * rcp_approx(b) of device/torch/warps.py",
        )

    __rtruediv__ = __truediv__

    def __mod__(self, other: Value) -> Expr:
        return _binary("%", self, other)

    def __and__(self, other: Value) -> Expr:
        return _binary("&", self, other)

    def __or__(self, other: Value) -> Expr:
        return _binary("|", self, other)

    def __lt__(self, other: Value) -> Expr:
        return _binary("<", self, other)

    def __le__(self, other: Value) -> Expr:
        return _binary("<=", self, other)

    def __gt__(self, other: Value) -> Expr:
        return _binary(">", self, other)

    def __ge__(self, other: Value) -> Expr:
        return _binary(">=", self, other)

    def __xor__(self, other: Value) -> Expr:
        return _binary("^", self, other)

    def __lshift__(self, other: Value) -> Expr:
        return Expr("<<", (self, other), self.dtype)

    def __rshift__(self, other: Value) -> Expr:
        return Expr(">>", (self, other), self.dtype)

    def __rlshift__(self, other: Value) -> Expr:
        return Expr("<<", (other, self), self.dtype)

    def __neg__(self) -> Expr:
        return _binary("-", 0, self)

    def __invert__(self) -> Expr:
        """The complement of every bit; of a condition its opposite."""
        return self == False if self.dtype == "bool" else Expr("~", (self,), self.dtype)  # noqa: E712

    def to(self, dtype: str) -> Expr:
        """The same bits as a 32-bit integer with or without a sign; a 64-bit one has zeros above those without."""
        return Expr("to", (self,), dtype)

    def __eq__(self, other: object) -> Expr:  # type: ignore[override]
        """The comparison, which the kernel makes; whether two expressions are one object says `is`."""
        return _comparison("==", self, other)

    def __ne__(self, other: object) -> Expr:  # type: ignore[override]
        return _comparison("!=", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise DeclarationError(
            "a condition of a body",
            expected="a Python value, known when the kernel is written",
            got=f"an expression of the kernel ({self.op})",
            fix="mark the function @recorded, whose `if` and `while` a kernel can decide",
        )

    def __index__(self) -> int:
        raise DeclarationError(
            "a number that Python counts with",
            expected="one that is known when the kernel is written",
            got=f"an expression of the kernel ({self.op})",
            fix="go through it by `for i in range(...)` in a function that is marked @recorded",
        )

    __iter__ = None


Value = int | float | bool | Expr


def _binary(op: str, a: Value, b: Value) -> Expr:
    if not isinstance(a, (int, float, Expr)) or not isinstance(b, (int, float, Expr)):
        return NotImplemented
    for operand in (a, b):
        if op in ("&", "|", "^") and isinstance(operand, bool):
            _branch(f"{op} of a condition of the kernel", operand)
    dtypes = {x.dtype for x in (a, b) if isinstance(x, Expr)}
    result = "bool" if op in COMPARISONS else "float32" if "float32" in dtypes else min(dtypes)
    return Expr(op, (a, b), result)


def _comparison(op: str, a: Expr, b: Any) -> Expr:
    if (found := _binary(op, a, b)) is NotImplemented:
        # Python would compare identities in its place: a branch would be gone.
        raise DeclarationError(
            f"{op} on a value of the kernel ({a.op})",
            expected="a number or another value of the kernel",
            got=type(b).__name__,
            fix="compare with the number that is meant; `is` tells whether two are one object",
        )
    return found


def _branch(what: str, condition: Any) -> Expr:
    """A condition that the kernel tests.

    Raises:
        DeclarationError: it is known already when the kernel is written.
    """
    if isinstance(condition, Expr):
        return condition
    raise DeclarationError(
        what,
        expected="a comparison of values of the kernel",
        got=f"{condition!r}, which Python knows when the kernel is written",
        fix="branch with a Python `if`, or compare a value of the kernel: m.dim(...), m.thread, an element of a buffer",
    )


def name(text: str, dtype: str = "int32") -> Expr:
    """A value by its name in the kernel."""
    return Expr("name", (text,), dtype)


def minimum(a: Value, b: Value) -> Any:
    return min(a, b) if _known(a, b) else Expr("min", (a, b), _dtype(a, b))


def maximum(a: Value, b: Value) -> Any:
    return max(a, b) if _known(a, b) else Expr("max", (a, b), _dtype(a, b))


def select(condition: Expr, a: Value, b: Value) -> Expr:
    """`a` where a condition holds, else `b`; both are worked out."""
    return Expr("select", (_branch("condition of select", condition), a, b), _dtype(a, b))


def _dtype(*values: Value) -> str:
    return next((value.dtype for value in values if isinstance(value, Expr)), "int32")


def ceildiv(a: Value, b: Value) -> Any:
    """a / b rounded up, both positive or zero."""
    if isinstance(a, Expr) or isinstance(b, Expr):
        return Expr("ceildiv", (a, b))
    return -(-a // b)


def _known(*values: Value) -> bool:
    return not any(isinstance(value, Expr) for value in values)


def fold(value: Value, known: Mapping[str, int]) -> Value:
    """The same value with the names in `known` replaced, and what follows from numbers worked out."""
    if not isinstance(value, Expr) or value.op in ("in_role", "word"):
        return value
    if value.op == "name":
        return known.get(value.args[0], value)
    parts = tuple(fold(arg, known) if isinstance(arg, Expr) else arg for arg in value.args)
    if value.op in OF_THREADS:
        return Expr(value.op, parts, value.dtype)
    a, b = parts
    if _known(a, b):
        result: Value = _EVALUATE[value.op](a, b)
        return result
    if value.op == "*" and (_is(a, 0) or _is(b, 0)):
        return 0
    if (value.op in ("+", "-", "^", "<<", ">>") and _is(b, 0)) or (value.op in ("*", "//") and _is(b, 1)):
        return a
    if (value.op == "+" and _is(a, 0)) or (value.op == "*" and _is(a, 1)):
        return b
    return Expr(value.op, (a, b), value.dtype)


def _is(value: Value, number: int) -> bool:
    return not isinstance(value, Expr) and value is not True and value is not False and value == number


OF_THREADS = ("~", "to", "select", "element", "group", "apply")
"""Operators that only the text of a leaf has: `tile.threads` works them out, for all threads at once."""

READ = "[]"
"""In the scope of `evaluate`: what reads a place in memory."""


def _extreme(of: Callable[[Any, Any], Any], limit: str) -> Callable[[Any, Any], Any]:
    def worked_out(a: Any, b: Any) -> Any:
        # What each warp has for itself is a tensor.
        held, other = (a, b) if hasattr(a, "clamp") else (b, a)
        return held.clamp(**{limit: other}) if hasattr(held, "clamp") else of(a, b)

    return worked_out


_EVALUATE: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "min": _extreme(min, "max"),
    "max": _extreme(max, "min"),
    "ceildiv": lambda a, b: -(-a // b),
}


def evaluate(value: Value, scope: Mapping[str, Any]) -> Any:
    """The number that an expression has where its names have the values in `scope`."""
    if not isinstance(value, Expr):
        return int(value) if isinstance(value, Size) else value
    if value.op == "name":
        return scope[value.args[0]]
    if value.op == "in_role":
        return scope["role"] == value.args[0]
    if value.op == "word":
        memory, index = value.args
        found = scope[READ](memory, evaluate(index, scope))
        return found & 0xFFFFFFFF if value.dtype == "uint32" else found
    return _EVALUATE[value.op](*(evaluate(arg, scope) for arg in value.args))


class Memory:
    """What holds numbers and is none itself: compared with a number it would differ from every one."""

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (int, float, Expr)):
            raise DeclarationError(
                f"== or != on a {type(self).__name__}", expected="a number of the kernel", got="memory that holds numbers",
                fix="compare an element: array[i] in the text of a leaf, m.word(buffer, i) in a body",
            )  # fmt: skip
        return self is other

    __hash__ = object.__hash__


@dataclass(frozen=True, eq=False)
class View(Memory):
    """Part of a buffer: the stage that use `use` of its ring has (None: it has one), and `rows` of it from `first` on.

    Of a matrix `width` columns from `column` on; None are all.
    """

    buffer: str
    pipeline: str | None
    use: Value | None
    first: Value = 0
    rows: int | None = None
    column: Value = 0
    width: int | None = None

    def part(self, first: Value, rows: int) -> View:
        """`rows` rows from `first` on."""
        return replace(self, first=first, rows=rows)

    def columns(self, first: Value, count: int) -> View:
        """`count` columns from `first` on."""
        return replace(self, column=first, width=count)


@dataclass(frozen=True, eq=False)
class Global(Memory):
    """A global-memory operand, whole; `pitch` names the dim that is the stride of its rows, for DSLs that pass addresses."""

    name: str
    pitch: str | None = None
    dtype: str = "int32"


@dataclass(frozen=True, eq=False)
class Box:
    """The box of a tensor map at coordinates, outermost first; zeros where it leaves the tensor."""

    map: str
    at: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Span:
    """`count` elements of an operand seen as rows of `pitch` elements of type `dtype`, from `column` of `row` on."""

    operand: str
    dtype: str
    row: Value
    pitch: int
    column: int
    count: int


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of a tensor map by number, which every lane has in its registers `rows`, from `column` on; zeros where there is none."""

    map: str
    rows: View
    column: Value


@dataclass(frozen=True, eq=False)
class Cluster(Memory):
    """A shared buffer as every CTA of the group holds it: leaves read and write it by rank."""

    buffer: str


@dataclass(frozen=True, eq=False)
class Sender(Memory):
    """The slot that a use of a pipeline between CTAs has in another CTA of the group, and the barrier that counts what arrives there.

    Of one between CTAs of the grid the words of the first CTA, and how many each has.
    """

    view: View
    slot: Slot


@dataclass(frozen=True, eq=False)
class Slot(Memory):
    """One use of a pipeline as a role holds it; its buffers are attributes: `slot.keys`."""

    pipeline: Pipeline
    use: Value
    role: str

    def __getattr__(self, buffer: str) -> View:
        if buffer.startswith("_") or buffer not in self.pipeline.buffers:
            raise AttributeError(f"pipeline {self.pipeline.name} has no buffer {buffer}")
        return View(buffer, self.pipeline.name, self.use)

    def view(self) -> View:
        """The buffer of a pipeline that has one."""
        (buffer,) = self.pipeline.buffers
        return View(buffer, self.pipeline.name, self.use)


class Out:
    """Marks a scalar parameter that a leaf sets."""


class InOut:
    """Marks a scalar parameter that a leaf reads and sets."""


class Stored:
    """Marks an operand in global memory that a leaf writes into."""


Sets = Annotated[Any, Out]
Changes = Annotated[Any, InOut]
Writes = Annotated[Any, Stored]


@dataclass(frozen=True)
class Leaf:
    """One piece of leaf maths: its name and parameters, and what it means in torch.

    The torch function takes every parameter that is not `Out` and returns the new values of its `Out` and `InOut`
    parameters in order. Registers and shared stages come to it as tensors, which it writes in place, and so do operands;
    those that it writes are marked `Writes`. A leaf that is declared by its `text` (`tile.leaf_text.by_text`) has neither a
    meaning in torch nor a spelling: the interpreter runs the text, and the printer prints it.
    """

    name: str
    parameters: tuple[tuple[str, type | None], ...]
    torch: Callable[..., Any]
    doc: str
    text: Callable[..., None] | None = None

    def __call__(self, m: Recorder, *arguments: Any, **named: Any) -> None:
        m.call(self, arguments, named)

    @property
    def results(self) -> tuple[int, ...]:
        """Positions of the parameters that are set."""
        return tuple(i for i, (_, mark) in enumerate(self.parameters) if mark in (Out, InOut))

    @property
    def written(self) -> tuple[int, ...]:
        """Positions of the operands that are written into."""
        return tuple(i for i, (_, mark) in enumerate(self.parameters) if mark is Stored)

    @property
    def inputs(self) -> tuple[int, ...]:
        """Positions of the parameters that are read."""
        return tuple(i for i, (_, mark) in enumerate(self.parameters) if mark is not Out)


FAILURES = (ArithmeticError, AttributeError, LookupError, NameError, NotImplementedError, TypeError)
"""What Python raises of a body or the text of a leaf that says what it cannot."""


def refusal(who: str, error: Exception) -> DeclarationError:
    """What Python has raised of a body or of the text of a leaf, with its line, as an error of the declaration."""
    made: DslKernelError
    if isinstance(error, AttributeError) and not isinstance(getattr(error, "obj", None), Expr):
        made = unknown_attribute(who, error)
    elif isinstance(error, NameError):
        made = DeclarationError(
            who, expected=f"{error.name or 'a name'} to have a value here", got=str(error),
            fix="a name that a branch or a loop of the kernel binds ends with it: declare a variable before it, `x: Int32 = 0`",
        )  # fmt: skip
    elif isinstance(error, NotImplementedError):
        made = DeclarationError(who, expected="what each thread does", got=str(error), fix="write it")
    else:
        made = DeclarationError(
            who, expected="numbers where Python counts as the text is written, values where threads do", got=str(error),
            fix="compare the line, or the call of the leaf, with what it is given",
        )  # fmt: skip
    found = places.located(made, error.__traceback__)
    found.__cause__ = error
    return found  # type: ignore[return-value]


def unknown_attribute(who: str, error: AttributeError) -> DeclarationError:
    """What a body or the text of a leaf asks of something that has no such thing: of a module, a leaf."""
    owner, asked = getattr(error, "obj", None), str(getattr(error, "name", None) or "")
    known = [text for text in dir(owner) if not text.startswith("_")]
    kind = type(owner).__name__
    if isinstance(owner, ModuleType):
        kind = f"leaf or name of {owner.__name__}"
        known = [text for text, value in vars(owner).items() if not text.startswith("_") and callable(value)]
    elif isinstance(owner, Slot):
        kind, known = f"buffer of pipeline {owner.pipeline.name}", list(owner.pipeline.buffers)
    elif isinstance(owner, SimpleNamespace):
        kind, known = "knob or constant", list(vars(owner))
    return DeclarationError(
        who, expected=f"a {kind}" if asked else "what is there", got=asked or str(error), fix=did_you_mean(asked, known)
    )  # fmt: skip


def leaf(function: Callable[..., Any]) -> Leaf:
    """Declare a leaf by its meaning in torch."""
    hints = get_type_hints(function, include_extras=True)
    parameters: list[tuple[str, type | None]] = []
    for parameter in inspect.signature(function).parameters:
        hint = hints.get(parameter)
        marks = (
            [x for x in get_args(hint)[1:] if x in (Out, InOut, Stored)]
            if get_origin(hint) is Annotated
            else []
        )
        parameters.append((parameter, marks[0] if marks else None))
    inputs = [i for i, (_, mark) in enumerate(parameters) if mark is not Out]

    def meaning(*arguments: Any) -> Any:
        full: list[Any] = [None] * len(parameters)
        for position, argument in zip(inputs, arguments, strict=True):
            full[position] = argument
        return function(*full)

    return Leaf(function.__name__, tuple(parameters), meaning, inspect.cleandoc(function.__doc__ or ""))


@dataclass(frozen=True, eq=False)
class Let:
    """A value that is computed once and keeps its name."""

    name: str
    value: Value


@dataclass(frozen=True, eq=False)
class Variable:
    """A scalar that may be assigned again."""

    name: str
    dtype: str
    initial: Value


@dataclass(frozen=True, eq=False)
class Assign:
    name: str
    value: Value
    dtype: str = "int32"


@dataclass(frozen=True, eq=False)
class Loop:
    """`index` from `begin` up to `end` by `step`. An unrolled one has numbers for all three; another has `at_once` turns behind one test."""

    index: str
    begin: Value
    end: Value
    step: int
    unrolled: bool
    body: list[Statement]
    at_once: int = 1


@dataclass(frozen=True, eq=False)
class Repeat:
    """While `condition` holds."""

    condition: Value
    body: list[Statement]


@dataclass(frozen=True, eq=False)
class If:
    condition: Value
    body: list[Statement]
    orelse: list[Statement]


@dataclass(frozen=True, eq=False)
class Region:
    """Statements that a probe counts together, under a name."""

    name: str
    body: list[Statement]


@dataclass(frozen=True, eq=False)
class Call:
    leaf: Leaf
    arguments: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class PipelineOp:
    """One operation of a pipeline: "acquire", "commit", "wait" or "release" of one use. `bytes`: what a bulk fill announces.

    `pending` groups of products, those issued last, may be in flight at a release by wgmma: none of them reads the slot.
    `at` numbers the CTA whose words are waited for, where CTAs of the grid fill the slot.
    """

    kind: str
    slot: Slot
    bytes: Value | None = None
    pending: int = 0
    at: Value | None = None


@dataclass(frozen=True, eq=False)
class Bulk:
    """A copy by the copy engine into a slot of a pipeline, which completes on the slot's full barrier.

    A `multicast` one goes to that place, and completes on that barrier, in every CTA of the cluster.
    """

    target: View
    source: Box | Span | Rows
    slot: Slot
    evict_first: bool = False
    multicast: bool = False


@dataclass(frozen=True, eq=False)
class Product:
    """acc (+)= a b by a declared tensor-core operation."""

    mma: Mma
    acc: View
    a: View
    b: View
    accumulate: Value


@dataclass(frozen=True, eq=False)
class Multiply:
    """Issue products as one group."""

    products: tuple[Product, ...]


@dataclass(frozen=True, eq=False)
class AwaitProducts:
    """Until at most `pending` groups of this role's products are in flight."""

    pending: int


@dataclass(frozen=True, eq=False)
class Comment:
    text: str


@dataclass(frozen=True, eq=False)
class BarriersStand:
    """In the kernel's start: from here on every role may use every barrier and the tensor memory."""


@dataclass(frozen=True, eq=False)
class TearDown:
    """Behind all roles: no thread touches tensor memory any more, and it goes back."""


@dataclass(frozen=True, eq=False)
class Fill:
    """Every element of a register buffer becomes `value`."""

    target: View
    value: float


@dataclass(frozen=True, eq=False)
class Meet:
    """Barrier of the threads of the roles that a named barrier is declared for; "" is all threads of the CTA.

    `replica` says which replica meets, where each meets apart.
    """

    name: str
    replica: Value = 0


@dataclass(frozen=True, eq=False)
class Publish:
    """Threads of this role have written shared buffers that its own products read next: fence, then meet."""

    buffers: tuple[str, ...]
    name: str
    replica: Value = 0


@dataclass(frozen=True, eq=False)
class Store:
    """Copies by the copy engine of what threads of this role have written to shared memory: fence, meet, one warp stores.

    The copies are one group, which reads shared memory until `AwaitStores`.
    """

    copies: tuple[tuple[Box, View], ...]
    name: str
    replica: Value = 0


@dataclass(frozen=True, eq=False)
class AwaitStores:
    """Until at most `pending` groups of this role's stores still read shared memory; then meet, if there is a barrier."""

    pending: int
    name: str | None
    replica: Value = 0


@dataclass(frozen=True, eq=False)
class ClusterArrive:
    """Every thread of every CTA of the cluster arrives. A relaxed one orders no memory."""

    relaxed: bool


@dataclass(frozen=True, eq=False)
class ClusterWait:
    """Until every thread of the cluster has arrived."""


@dataclass(frozen=True, eq=False)
class TakeTicket:
    """Count this CTA in at `counter[index]`, behind what it has written; `last` tells whether it was the last of `total`.

    The last one resets the counter. Threads of the roles of barrier `name` meet there and learn it through `buffer`: each of
    these roles says this, and the first one counts.
    """

    last: str
    buffer: str
    counter: str
    index: Value
    total: Value
    name: str


@dataclass(frozen=True, eq=False)
class CountIn:
    """Count this CTA in at `counter[index]`, behind what it has written. The roles of barrier `name` meet before the first counts."""

    counter: str
    index: Value
    name: str


@dataclass(frozen=True, eq=False)
class AwaitCount:
    """Until `total` CTAs have counted in at `counter[index]`, this one among them; what they wrote can be read then.

    Threads of the roles of barrier `name` meet there. All CTAs must run at once.
    """

    counter: str
    index: Value
    total: Value
    name: str


@dataclass(frozen=True, eq=False)
class CountOut:
    """Count this CTA out at `counter[index]`, of which it awaits nothing more: the last of `total` resets the counter."""

    counter: str
    index: Value
    total: Value
    name: str


@dataclass(frozen=True, eq=False)
class Depend:
    """From here on what the kernel before this one wrote is needed; with `launch` the one behind this may start."""

    launch: bool = True


@dataclass(frozen=True, eq=False)
class LaunchDependents:
    """The kernel behind this one may start."""


@dataclass(frozen=True, eq=False)
class TakeTurn:
    """Until it is this member's turn; `replica` says which member of the role it is."""

    name: str
    replica: Value


@dataclass(frozen=True, eq=False)
class PassTurn:
    """The next member's turn, behind what this one has done; before the first turn the last member `opens`."""

    name: str
    replica: Value
    opens: bool = False


Statement = (
    Let | Variable | Assign | Loop | Repeat | If | Region | Call | PipelineOp | Bulk | Multiply | AwaitProducts | Fill | Meet | Publish
    | ClusterArrive | ClusterWait | TakeTicket | CountIn | AwaitCount | CountOut | Depend | LaunchDependents | Comment | BarriersStand | TearDown
    | TakeTurn | PassTurn | Store | AwaitStores
)  # fmt: skip


@dataclass(frozen=True)
class Text:
    """A kernel: what every thread does first, what each role does then, and what every thread does last."""

    start: tuple[Statement, ...]
    roles: Mapping[str, tuple[Statement, ...]]
    end: tuple[Statement, ...] = ()

    @property
    def parts(self) -> dict[str, tuple[Statement, ...]]:
        """All of it by name: that of the role, "start" and "end"."""
        return {"start": self.start, **self.roles, "end": self.end}

    @property
    def leaves(self) -> frozenset[str]:
        """Names of the leaves that it calls."""
        statements = (s for part in self.parts.values() for s in walk(part))
        return frozenset(s.leaf.name for s in statements if isinstance(s, Call))


class Recorder:
    """What a body is run against: it writes down what the body says.

    Attributes:
        k, c: knobs, and constants of the schedule.
        role: whose body this is; None in the kernel's start.
        lane, thread: this thread's lane, and its number within the role (within its replica).
        warp: this thread's warp within the CTA; one text runs for all of them, so no branch may depend on it.
        replica: which of the role's replicas this is.
        given: by name, what a call of a leaf may leave out: operands, sizes and scalars of the kernel, `thread`, `lane`.
        known: what a call of a leaf by its text may leave out too: knobs, constants, buffers outside of pipelines, `warp`;
            not what the leaf sets.
    """

    def __init__(
        self,
        knobs: SimpleNamespace,
        schedule: Schedule,
        arch: ArchSpec,
        role: str | None,
        operands: Iterable[OperandSpec] = (),
    ) -> None:
        self.k, self.schedule, self.arch, self.role = knobs, schedule, arch, role
        self.c = SimpleNamespace(**schedule.constants)
        self.lane, self.thread, self.replica = name("lane"), name("worker"), name("replica")
        self.warp = name("warp")
        self.given: dict[str, Any] = {"thread": self.thread, "lane": self.lane}
        self._dtypes = {spec.name: spec.dtype for spec in operands}
        for spec in operands:
            extents = {extent for extent in (*spec.shape, *(spec.layout or ())) if isinstance(extent, str)}
            self.given |= {extent: getattr(knobs, extent, self.dim(extent)) for extent in extents}
            if spec.kind != "scalar":
                self.given[spec.name] = self.operand(spec.name)
            else:
                self.given[spec.name] = (
                    self.dim(spec.name) if spec.dtype == "int32" else self.scalar(spec.name)
                )
        staged = {name for pipe in schedule.pipelines for name in pipe.buffers}
        own = (b.name for b in schedule.buffers if b.role in (None, role))
        buffers = {text: self.buffer(text) for text in own if text not in staged}
        axes = {axis: name(axis) for axis in schedule.axes}
        self.known = {**axes, **vars(knobs), **schedule.constants, **buffers, "warp": self.warp} | self.given
        self._begin()

    def _begin(self, variables: Iterable[str] = ()) -> None:
        self.statements: list[Statement] = []
        self._blocks = [self.statements]
        # The blocks that are gone through with those around them are not among these.
        self._scopes: list[list[Statement]] = [self.statements]
        self.variables = set(variables)

    @property
    def scope(self) -> object:
        """What statements of now are under: the innermost branch or loop, or the whole text."""
        return self._scopes[-1]

    def within(self, scope: object) -> bool:
        """Whether statements of now are under a branch or loop, or are in that text."""
        return any(scope is each for each in self._scopes)

    def is_variable(self, value: Expr) -> bool:
        """Whether a name is that of a variable, which has another value later on."""
        return value.op == "name" and value.args[0] in self.variables

    @contextmanager
    def _block(self, inner: list[Statement], *, apart: bool = True) -> Iterator[None]:
        """Statements are said into `inner`, which may be gone through once, never or several times where it is `apart`."""
        self._blocks.append(inner)
        if apart:
            self._scopes.append(inner)
        yield
        self._blocks.pop()
        if apart:
            self._scopes.pop()

    def dim(self, text: str) -> Expr:
        """A runtime size or integer scalar of the call."""
        return name(text)

    def operand(self, text: str, pitch: str | None = None) -> Global:
        """A global-memory operand, for a leaf."""
        return Global(text, pitch, self._dtypes.get(text, "int32"))

    def block(self, axis: int) -> Expr:
        """This CTA's coordinate on a grid axis."""
        return name(self.schedule.axes[axis])

    def scalar(self, text: str) -> Expr:
        """A floating-point scalar operand."""
        return name(text, "float32")

    def in_role(self, role: str) -> Expr:
        """In the kernel's start: whether this thread is of `role`."""
        return Expr("in_role", (self.schedule.role(role).name,), "bool")

    def buffer(self, text: str, use: Value | None = None) -> View:
        """An unstaged buffer, or the stage that use `use` of one outside of pipelines has."""
        return View(self.schedule.buffer(text).name, None, use)

    def let(self, text: str, value: Value) -> Value:
        """Name a value."""
        if not isinstance(value, Expr):
            return value
        self._say(Let(text, value))
        return name(text, value.dtype)

    def var(self, text: str, initial: Value = 0, dtype: str = "int32") -> Expr:
        """A scalar that `set` and leaves assign."""
        if any(buffer.name == text for buffer in self.schedule.buffers):
            raise DeclarationError(
                f"variable {text} of {self.role or 'the start'}",
                expected="a name that no buffer has",
                got="the name of a buffer",
                fix="rename the variable",
            )
        self._say(Variable(text, dtype, initial))
        self.variables.add(text)
        return name(text, dtype)

    def declare(self, variable: Expr, initial: Value = 0) -> Expr:
        """The variable that `name` has named."""
        return self.var(self._variable(variable), initial, variable.dtype)

    def word(self, memory: View | Global, index: Value, dtype: str = "") -> Expr:
        """The number at a place in shared or global memory, for all threads; as a `dtype` if not of its own."""
        own = memory.dtype if isinstance(memory, Global) else self.schedule.buffer(memory.buffer).dtype
        return Expr("word", (memory, index), dtype or own)

    def set(self, variable: Expr, value: Value) -> None:
        self._say(Assign(self._variable(variable), value, variable.dtype))

    def loop(
        self, index: str, end: Value, *, begin: Value = 0, step: int = 1, unrolled: bool = False, at_once: int = 1
    ) -> Iterator[Expr]:  # fmt: skip
        """`for i in m.loop("i", count):` writes a loop; its body is recorded once."""
        inner: list[Statement] = []
        self._say(Loop(index, begin, end, step, unrolled, inner, at_once))
        with self._block(inner):
            yield name(index)

    def repeat(self, condition: Value) -> Iterator[None]:
        """`for _ in m.repeat(condition):` writes a loop that goes on while the condition holds."""
        inner: list[Statement] = []
        self._say(Repeat(_branch("condition of m.repeat", condition), inner))
        with self._block(inner):
            yield

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """`with m.when(condition):` writes a branch."""
        inner: list[Statement] = []
        self._say(If(_branch("condition of m.when", condition), inner, []))
        with self._block(inner):
            yield

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """The other side of the branch written last."""
        last = self._blocks[-1][-1] if self._blocks[-1] else None
        if not isinstance(last, If):
            raise DeclarationError(
                f"body of {self.role}",
                expected="otherwise() right behind a when()",
                got=type(last).__name__,
                fix="write the branch first",
            )
        with self._block(last.orelse):
            yield

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """`with m.region("softmax"):` has probes count what is said in it as one region of that name."""
        inner: list[Statement] = []
        self._say(Region(name, inner))
        with self._block(inner, apart=False):
            yield

    def comment(self, text: str) -> None:
        """A line for the reader of the generated kernel."""
        self._say(Comment(text))

    def barriers_stand(self) -> None:
        self._say(BarriersStand())

    def acquire(self, pipeline: str, use: Value, bytes: Value | None = None) -> Slot:
        """Producer: wait until the slot of use `use` is free. A bulk fill announces `bytes`, by default the whole slot."""
        slot = self._slot(pipeline, use)
        self._say(PipelineOp("acquire", slot, bytes))
        return slot

    def commit(self, slot: Slot) -> None:
        """Producer: the slot is filled, or will be when the copies issued into it are done."""
        self._say(PipelineOp("commit", slot))

    def wait(self, pipeline: str, use: Value, at: Value | None = None) -> Slot:
        """Reader: wait until use `use` is filled; where CTAs of the grid do, `at` is the number by which they know this one."""
        slot = self._slot(pipeline, use)
        if (at is not None) != (slot.pipeline.fill is Engine.GRID):
            raise DeclarationError(
                f"wait for {pipeline} in {self.role}",
                expected="the number of a CTA where CTAs of the grid fill the slot, and nowhere else",
                got=f"at={at}, filled by {slot.pipeline.fill.value}",
                fix="say at=... where, and only where, the pipeline is filled by Engine.GRID",
            )
        self._say(PipelineOp("wait", slot, at=at))
        return slot

    def release(self, slot: Slot, pending: int = 0) -> None:
        """Reader: done with the slot, while at most `pending` groups of products that do not read it are in flight."""
        engine = next((r.engine for r in slot.pipeline.readers if r.role == self.role), None)
        if pending and engine is not Engine.WGMMA:
            raise DeclarationError(
                f"release of {slot.pipeline.name} in {self.role}",
                expected="no pending groups: they are counted at a release by wgmma alone",
                got=f"pending={pending}, read through {engine.value if engine else 'nothing'}",
                fix="leave pending out",
            )
        self._say(PipelineOp("release", slot, pending=pending))

    def bulk(
        self,
        target: View,
        source: Box | Span | Rows,
        slot: Slot,
        *,
        evict_first: bool = False,
        multicast: bool = False,
    ) -> None:
        """Copy into a slot; with `multicast` into that of every CTA of the cluster."""
        if multicast and not (slot.pipeline.multicast and isinstance(source, Box)):
            raise DeclarationError(
                f"multicast into {slot.pipeline.name} of {self.role}",
                expected="a box of a tensor map, into a pipeline with multicast=True",
                got=f"{type(source).__name__}, multicast={slot.pipeline.multicast}",
                fix="declare the pipeline multicast: its barriers count every CTA of the cluster",
            )
        self._say(Bulk(target, source, slot, evict_first, multicast))

    def multiply(
        self,
        mma: str,
        acc: View,
        a: View,
        b: View,
        *,
        accumulate: Value = False,
        before: Multiply | None = None,
    ) -> Multiply:
        """Issue one tensor-core operation; `await_products` or a commit says when it is done.

        Args:
            before: a multiply written just before, whose group this one joins.
        """
        product = Product(self.schedule.mma(mma), acc, a, b, accumulate)
        if before is not None:
            if self._blocks[-1][-1:] != [before]:
                raise DeclarationError(
                    f"product {mma} of {self.role}", expected="the group written just before", got="another statement", fix="write the products of a group one behind the other"
                )  # fmt: skip
            self._blocks[-1].pop()
        joined = Multiply((before.products if before else ()) + (product,))
        self._say(joined)
        return joined

    def await_products(self, pending: int = 0) -> None:
        self._say(AwaitProducts(pending))

    def fill(self, target: View, value: float) -> None:
        self._say(Fill(target, value))

    def meet(self, barrier: str = "") -> None:
        """Barrier of the roles that the named barrier is declared for; of the whole CTA without a name."""
        self._say(Meet(*self._meeting(barrier)))

    def publish(self, barrier: str, *buffers: str) -> None:
        """This role's threads have written `buffers`, which its own products read behind this point."""
        self._say(
            Publish(tuple(self.schedule.buffer(text).name for text in buffers), *self._meeting(barrier))
        )

    def store(self, barrier: str, *copies: tuple[Box, View]) -> None:
        """Copy boxes that this role's threads have written in shared memory to global memory, as one group.

        Behind it comes `await_stores`, before the role ends or writes the boxes again.
        """
        self._say(Store(copies, *self._meeting(barrier)))

    def await_stores(self, pending: int = 0, barrier: str | None = None) -> None:
        """Until at most `pending` groups of stores read shared memory.

        Args:
            barrier: where the role's threads learn it, if they write what was stored again.
        """
        name, replica = self._meeting(barrier) if barrier is not None else (None, self._own())
        self._say(AwaitStores(pending, name, replica))

    def _own(self) -> Value:
        """Which replica of its role this is."""
        return self.replica if self.role and self.schedule.role(self.role).replicas > 1 else 0

    def _meeting(self, text: str) -> tuple[str, Value]:
        return self._barrier(text), self._own() if text in self.schedule.apart else 0

    def cluster_arrive(self, *, relaxed: bool = False) -> None:
        self._say(ClusterArrive(relaxed))

    def cluster_wait(self) -> None:
        self._say(ClusterWait())

    def cluster(self, buffer: str) -> Cluster:
        """A shared buffer as all CTAs of the group hold it, for a leaf."""
        return Cluster(self.schedule.buffer(buffer).name)

    def sender(self, view: View, slot: Slot) -> Sender:
        """Where a leaf sends the other CTAs' uses of a pipeline between them."""
        return Sender(view, slot)

    def take_ticket(
        self, last: Expr, buffer: str, counter: str, index: Value, total: Value, barrier: str
    ) -> None:
        """Set `last`: whether this CTA is the last of `total` to come by `counter[index]`."""
        self._say(TakeTicket(self._variable(last), buffer, counter, index, total, self._barrier(barrier)))

    def count_in(self, counter: str, index: Value, barrier: str) -> None:
        """Tell the CTAs that await `counter[index]` that what this one has written is there."""
        self._say(CountIn(counter, index, self._barrier(barrier)))

    def await_count(self, counter: str, index: Value, total: Value, barrier: str) -> None:
        """Wait until `total` CTAs have counted in at `counter[index]`, as this one has."""
        self._say(AwaitCount(counter, index, total, self._barrier(barrier)))

    def count_out(self, counter: str, index: Value, total: Value, barrier: str) -> None:
        """Say that this CTA has seen all `total` at `counter[index]`, behind `await_count`: the counter is zero again behind the last."""
        self._say(CountOut(counter, index, total, self._barrier(barrier)))

    def take_turn(self, turn: str) -> None:
        """Wait until the member before this one has passed the turn on."""
        self._say(TakeTurn(*self._member(turn)))

    def pass_turn(self, turn: str) -> None:
        """Hand over to the next member, which sees what this one has written."""
        self._say(PassTurn(*self._member(turn)))

    def _member(self, turn: str) -> tuple[str, Value]:
        members = self.schedule.turn(turn).roles
        if self.role not in members:
            raise DeclarationError(
                f"turn {turn} in {self.role or 'the start'}",
                expected=" or ".join(members),
                got=str(self.role),
                fix="name the role in the turn's declaration",
            )
        return turn, self._own()

    def depend(self, launch: bool = True) -> None:
        """What the kernel before this one wrote is needed from here on, and nothing of its is touched before.

        With `launch` the kernel behind this one may start, even while the one before this still runs; otherwise
        launch_dependents says where it may.
        """
        self._say(Depend(launch))

    def launch_dependents(self) -> None:
        """The kernel behind this one may start: it waits where it depends, in room that this one's CTAs leave."""
        self._say(LaunchDependents())

    def _barrier(self, text: str) -> str:
        if text and text not in self.schedule.named_barriers:
            raise DeclarationError(
                f"body of {self.role}",
                expected="a declared named barrier: " + ", ".join(self.schedule.named_barriers),
                got=text,
                fix="declare it in the schedule",
            )
        return text

    def call(self, called: Leaf, arguments: tuple[Any, ...], named: Mapping[str, Any] | None = None) -> None:
        """Call a leaf with an argument a parameter, or without those that are `named` or `given`."""
        parameters = [parameter for parameter, _ in called.parameters]
        known = dict(named or {})
        if known or len(arguments) != len(parameters):
            own = {parameters[position] for position in called.results}
            wide = {key: value for key, value in self.known.items() if key not in own}
            known = {**(self.given if called.text is None else wide), **known}
        rest = [parameter for parameter in parameters if parameter not in known]
        wrong = [parameter for parameter in named or () if parameter not in parameters]
        if wrong or len(arguments) != len(rest):
            raise DeclarationError(
                f"leaf {called.name} in {self.role or 'the start'}",
                expected=f"{', '.join(rest)}; the rest of {', '.join(parameters)} by name",
                got=f"no parameter {wrong[0]}" if wrong else f"{len(arguments)} arguments",
                fix="pass one argument a parameter; one called like an operand or size of the kernel may be left out",
            )
        by_order = dict(zip(rest, arguments, strict=True))
        arguments = tuple(known[p] if p in known else by_order[p] for p in parameters)
        for position in called.results:
            self._variable(arguments[position])
        self._say(Call(called, arguments))

    def slot(self, pipeline: str, use: Value) -> Slot:
        """A slot that this role holds, by the number of its use."""
        return self._slot(pipeline, use)

    def _slot(self, pipeline: str, use: Value) -> Slot:
        return Slot(self.schedule.pipeline(pipeline), use, self.role or "")

    def _variable(self, value: Any) -> str:
        if isinstance(value, Expr) and value.op == "name":
            return str(value.args[0])
        raise DeclarationError(
            f"body of {self.role}",
            expected="a variable made by m.var",
            got=str(value),
            fix="declare it with m.var(name, initial value)",
        )

    def _say(self, statement: Statement) -> None:
        # For errors that come when the text is whole.
        vars(statement)["place"] = places.current(sys._getframe(1))
        self._blocks[-1].append(statement)


def walk(statements: Any) -> Iterator[Statement]:
    """Every statement, inner ones behind the one that holds them."""
    for statement in statements:
        yield statement
        if isinstance(statement, (Loop, Repeat, Region)):
            yield from walk(statement.body)
        elif isinstance(statement, If):
            yield from walk(statement.body)
            yield from walk(statement.orelse)


_VALUES = frozenset((Expr, View, Global, Box, Span, Rows, Cluster, Sender, Slot))
_HOLDERS = _VALUES | {tuple, Product}


def values(statement: Statement) -> list[Any]:
    """Every expression, view, slot, operand and copied part in a statement; not those of the statements inside it."""
    found: list[Any] = []
    todo = [part for part in vars(statement).values() if type(part) in _HOLDERS]
    while todo:
        item = todo.pop()
        if type(item) in _VALUES:
            found.append(item)
        inner = item if type(item) is tuple else vars(item).values()
        todo += [part for part in inner if type(part) in _HOLDERS]
    return found


def names_of(found: Iterable[Any]) -> set[str]:
    """The names among values."""
    return {value.args[0] for value in found if type(value) is Expr and value.op == "name"}
