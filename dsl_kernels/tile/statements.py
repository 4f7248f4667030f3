"""The text of a kernel as plain data: the statements, and what each declares about itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Annotated, Any, ClassVar, get_args, get_type_hints

from .expressions import Expr, Value
from .lang import Mma, Schedule
from .leaf import Leaf
from .memory import Box, Cluster, Global, Rows, Sender, Slot, Span, View
from .transfers import transfer_of


class Mark(Enum):
    """What a field of a statement names; fields are annotated by it."""

    BLOCK = "the statements inside"
    DECLARES = "a value that exists from here on, in the same block"
    INSIDE = "a value that exists only in the statement's blocks"
    ASSIGNS = "a variable, declared before, that gets a new value"
    TOUCHES = "a buffer, or several, whole"
    COUNTER = "an operand that is read and written"
    MEETS = "the named barrier at which the threads of its roles meet"


Block = Annotated[list["Statement"], Mark.BLOCK]
Declares = Annotated[str, Mark.DECLARES]
Inside = Annotated[str, Mark.INSIDE]
Assigns = Annotated[str, Mark.ASSIGNS]
Touches = Annotated[str, Mark.TOUCHES]
Counter = Annotated[str, Mark.COUNTER]
Meets = Annotated[str, Mark.MEETS]


@dataclass(frozen=True, eq=False)
class Statement:
    """One step of a body: a dataclass whose fields are its operands and whose methods say what it does.

    A field that names something by a string is annotated by what it names (`Mark`). The checks of a text,
    probes, counts and the interpreter rely on these declarations only. A new statement is a class, its
    meaning in `executor.py` and a macro in each `_spelling.j2`.
    """

    OF_MACHINE: ClassVar[bool] = True
    """Whether threads spend time on it; if not, probes ignore it."""
    APART: ClassVar[bool] = True
    """Whether its blocks, if it has any, may run any number of times other than once."""
    REPEATS: ClassVar[bool] = False
    """Whether its blocks may run several times."""

    @classmethod
    def title(cls) -> str:
        """Its name in snake case, by which its macro is called."""
        return _words(cls.__name__)

    def marked(self, mark: Mark) -> list[Any]:
        """What the fields with a mark name."""
        names: list[Any] = []
        for title in _fields(type(self)).get(mark, ()):
            named = getattr(self, title)
            names += named if isinstance(named, tuple) else () if named is None else (named,)
        return names

    @property
    def blocks(self) -> dict[str, list[Statement]]:
        """The statements inside, by the name of the field that holds them."""
        return {field: getattr(self, field) for field in _fields(type(self)).get(Mark.BLOCK, ())}

    def sets(self) -> Mapping[str, Value | None]:
        """The names that it sets, each with the value that counting assumes; None: only data decide it."""
        marks = (Mark.DECLARES, Mark.INSIDE, Mark.ASSIGNS)
        return {name: None for mark in marks for name in self.marked(mark)}

    def touches(self) -> set[str]:
        """Names of the buffers that it reads or writes."""
        viewed = (value.buffer for value in values(self) if isinstance(value, (View, Cluster)))
        return {*viewed, *self.marked(Mark.TOUCHES)}

    def meets(self) -> str | None:
        """The named barrier at which threads meet; "" means all threads of the CTA, None that none meet."""
        return next(iter(self.marked(Mark.MEETS)), None)

    def reads(self) -> set[str]:
        """The operands that it reads directly, not through tensor maps or spans."""
        return {
            *(value.name for value in values(self) if isinstance(value, Global)),
            *self.marked(Mark.COUNTER),
        }

    def writes(self) -> set[str]:
        """The operands that it writes directly, not through tensor maps."""
        return set(self.marked(Mark.COUNTER))

    def issues(self) -> tuple[Product, ...]:
        """The products that it issues."""
        return ()

    def loads(self) -> tuple[tuple[Box | Span | Rows, View], ...]:
        """The copies into this CTA that it issues."""
        return ()

    def stores(self) -> tuple[tuple[Box, View], ...]:
        """The copies out of this CTA that it issues."""
        return ()

    def counts(self) -> tuple[str, str] | None:
        """The event that the cost model counts at it: ("uses", pipeline), ("syncs", ""), or none."""
        return None

    def region(self) -> str | None:
        """The name under which probes count it; None: they count it with the statement before."""
        return None if self.blocks or not self.OF_MACHINE else self.title().replace("_", " ")


@cache
def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


_FIELDS: dict[type, dict[Mark, tuple[str, ...]]] = {}


def _fields(kind: type) -> dict[Mark, tuple[str, ...]]:
    """The fields of a statement by their marks."""
    if kind not in _FIELDS:
        fields: dict[Mark, tuple[str, ...]] = {}
        for field, hint in get_type_hints(kind, include_extras=True).items():
            for mark in _marks(hint):
                fields[mark] = (*fields.get(mark, ()), field)
        _FIELDS[kind] = fields
    return _FIELDS[kind]


def _marks(hint: Any) -> Iterator[Mark]:
    yield from (mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Mark))
    for part in get_args(hint):
        yield from _marks(part)


@dataclass(frozen=True, eq=False)
class Let(Statement):
    """A named value, computed once."""

    OF_MACHINE = False
    name: Declares
    value: Value

    def sets(self) -> Mapping[str, Value | None]:
        return {self.name: self.value}


@dataclass(frozen=True, eq=False)
class Variable(Statement):
    """A scalar that may be assigned again."""

    OF_MACHINE = False
    name: Declares
    dtype: str
    initial: Value

    def sets(self) -> Mapping[str, Value | None]:
        return {self.name: self.initial}


@dataclass(frozen=True, eq=False)
class Assign(Statement):
    """A new value for a variable."""

    OF_MACHINE = False
    name: Assigns
    value: Value
    dtype: str = "int32"

    def sets(self) -> Mapping[str, Value | None]:
        return {self.name: self.value}


@dataclass(frozen=True, eq=False)
class Loop(Statement):
    """`index` goes from `begin` up to `end` by `step`.

    All three are Python numbers in an unrolled loop. Otherwise one test covers `at_once` iterations.
    """

    REPEATS = True
    index: Inside
    begin: Value
    end: Value
    step: int
    unrolled: bool
    body: Block
    at_once: int = 1

    def sets(self) -> Mapping[str, Value | None]:
        return {self.index: 0}


@dataclass(frozen=True, eq=False)
class Repeat(Statement):
    """Run the body while `condition` holds."""

    REPEATS = True
    condition: Value
    body: Block


@dataclass(frozen=True, eq=False)
class If(Statement):
    """Run `body` if a condition holds, else `orelse`."""

    condition: Value
    body: Block
    orelse: Block


@dataclass(frozen=True, eq=False)
class Region(Statement):
    """Statements that probes count together, under a name."""

    APART = False
    name: str
    body: Block

    def region(self) -> str | None:
        return self.name


@dataclass(frozen=True, eq=False)
class Call(Statement):
    """A call of a leaf, with an argument for each of its parameters."""

    leaf: Leaf
    arguments: tuple[Any, ...]

    def sets(self) -> Mapping[str, Value | None]:
        return {self.arguments[i].args[0]: None for i in self.leaf.results}

    def reads(self) -> set[str]:
        written = set(self.leaf.written)
        read = (a for i, a in enumerate(self.arguments) if i not in written or not isinstance(a, Global))
        return {value.name for value in contained(read) if isinstance(value, Global)}

    def writes(self) -> set[str]:
        into = (self.arguments[i] for i in self.leaf.written)
        return {argument.name for argument in into if isinstance(argument, Global)}

    def region(self) -> str | None:
        return self.leaf.name


@dataclass(frozen=True, eq=False)
class PipelineOp(Statement):
    """One operation on one use of a pipeline: "acquire", "commit", "wait", "release" or "drain".

    "drain" waits as "acquire" does, but takes nothing: the slot has been given back and stays free.

    Attributes:
        bytes: what a bulk fill announces.
        pending: at a release by wgmma, how many groups of products, the last ones issued, may be in flight;
            none of them reads the slot.
        at: the CTA whose words are awaited, where CTAs of the grid fill the slot.
    """

    kind: str
    slot: Slot
    bytes: Value | None = None
    pending: int = 0
    at: Value | None = None

    def meets(self) -> str | None:
        return (self.slot.pipeline.meets or None) if self.kind == "wait" else None

    def reads(self) -> set[str]:
        return super().reads() | self.writes()

    def writes(self) -> set[str]:
        return {self.slot.pipeline.through} - {""}

    def counts(self) -> tuple[str, str] | None:
        pipe = self.slot.pipeline
        return ("uses", pipe.name) if self.kind in transfer_of(pipe).USED_AT else None

    def region(self) -> str | None:
        return f"{self.kind} {self.slot.pipeline.name}"


@dataclass(frozen=True, eq=False)
class Bulk(Statement):
    """A copy by the copy engine into a slot of a pipeline; it completes on the slot's full barrier.

    A `multicast` copy writes the same place, and completes on the same barrier, in every CTA of the cluster.
    """

    target: View
    source: Box | Span | Rows
    slot: Slot
    evict_first: bool = False
    multicast: bool = False

    def loads(self) -> tuple[tuple[Box | Span | Rows, View], ...]:
        return ((self.source, self.target),)

    def folds(self, schedule: Schedule) -> bool:
        """Whether the box has more axes than its target; the outer ones then become rows."""
        if not isinstance(self.source, Box):
            return False
        box = next(m.box for m in schedule.maps if m.name == self.source.map)
        return sum(extent > 1 for extent in box) > len(schedule.buffer(self.target.buffer).shape)

    def region(self) -> str | None:
        return f"copy {self.target.buffer}"


@dataclass(frozen=True, eq=False)
class Product:
    """acc (+)= a b by a declared tensor-core operation."""

    mma: Mma
    acc: View
    a: View
    b: View
    accumulate: Value


@dataclass(frozen=True, eq=False)
class Multiply(Statement):
    """Issue products as one group."""

    products: tuple[Product, ...]

    def issues(self) -> tuple[Product, ...]:
        return self.products

    def region(self) -> str | None:
        return "multiply " + " ".join(dict.fromkeys(product.mma.name for product in self.products))


@dataclass(frozen=True, eq=False)
class CopyColumns(Statement):
    """Copy 128 rows of shared memory into tensor memory (tcgen05.cp), in order with this role's products."""

    target: View
    source: View


@dataclass(frozen=True, eq=False)
class AwaitProducts(Statement):
    """Wait until at most `pending` groups of this role's products are in flight."""

    pending: int


@dataclass(frozen=True, eq=False)
class Comment(Statement):
    """A comment in the generated kernel."""

    OF_MACHINE = False
    text: str


@dataclass(frozen=True, eq=False)
class BarriersStand(Statement):
    """Initialise the barriers and allocate tensor memory; from here on every role may use them."""

    OF_MACHINE = False


@dataclass(frozen=True, eq=False)
class TearDown(Statement):
    """After all roles: all threads meet, then tensor memory is deallocated."""

    OF_MACHINE = False

    def meets(self) -> str | None:
        return ""


@dataclass(frozen=True, eq=False)
class Fill(Statement):
    """Every element of a register buffer becomes `value`."""

    target: View
    value: float


@dataclass(frozen=True, eq=False)
class Meet(Statement):
    """The threads of the roles of a named barrier meet; "" means all threads of the CTA.

    `replica` is the one that meets, where each replica has a barrier of its own.
    """

    name: Meets
    replica: Value = 0

    def region(self) -> str | None:
        return f"meet {self.name or 'all'}"


@dataclass(frozen=True, eq=False)
class Publish(Statement):
    """Fence and meet after this role's threads have written shared buffers that its own products read."""

    buffers: tuple[Touches, ...]
    name: Meets
    replica: Value = 0

    def region(self) -> str | None:
        return f"meet {self.name or 'all'}"


@dataclass(frozen=True, eq=False)
class Store(Statement):
    """Copy what this role's threads have written to shared memory into global memory, by the copy engine.

    The threads fence and meet, then one warp issues the copies as one group. The group reads shared memory
    until `AwaitStores`.
    """

    copies: tuple[tuple[Box, View], ...]
    name: Meets
    replica: Value = 0

    def stores(self) -> tuple[tuple[Box, View], ...]:
        return self.copies

    def region(self) -> str | None:
        return f"store {' '.join(dict.fromkeys(view.buffer for _, view in self.copies))}"


@dataclass(frozen=True, eq=False)
class AwaitStores(Statement):
    """Wait until at most `pending` groups of this role's stores read shared memory; then meet at `name`."""

    pending: int
    name: Meets | None
    replica: Value = 0


@dataclass(frozen=True, eq=False)
class TakeTurn(Statement):
    """Wait for this member's turn; `replica` is its number within the role."""

    name: str
    replica: Value

    def region(self) -> str | None:
        return f"take {self.name}"


@dataclass(frozen=True, eq=False)
class PassTurn(Statement):
    """Pass the turn to the next member, which sees this one's writes; `opens`: before the first turn."""

    name: str
    replica: Value
    opens: bool = False

    def region(self) -> str | None:
        return f"pass {self.name}"


@dataclass(frozen=True)
class Text:
    """A kernel: what every thread does first, what each role does then, and what every thread does last.

    `memo` is a cache for executors: each keeps there, under its type, what it computes from the text once.
    """

    start: tuple[Statement, ...]
    roles: Mapping[str, tuple[Statement, ...]]
    end: tuple[Statement, ...] = ()
    memo: dict[type, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def parts(self) -> dict[str, tuple[Statement, ...]]:
        """All parts by name: "start", the roles, "end"."""
        return {"start": self.start, **self.roles, "end": self.end}

    @property
    def leaves(self) -> frozenset[str]:
        """Names of the leaves that the text calls."""
        statements = (s for part in self.parts.values() for s in walk(part))
        return frozenset(s.leaf.name for s in statements if isinstance(s, Call))


def walk(statements: Any) -> Iterator[Statement]:
    """Every statement, each followed by those inside it."""
    for statement in statements:
        yield statement
        for block in statement.blocks.values():
            yield from walk(block)


_VALUES = frozenset((Expr, View, Global, Box, Span, Rows, Cluster, Sender, Slot))
_HOLDERS = _VALUES | {tuple, Product}


def values(statement: Statement) -> list[Any]:
    """Every expression, view, slot, operand and copied part in a statement, but not in those inside it."""
    return contained(vars(statement).values())


def contained(parts: Iterable[Any]) -> list[Any]:
    """As `values`, of some operands of a statement."""
    collected: list[Any] = []
    todo = [part for part in parts if type(part) in _HOLDERS]
    while todo:
        item = todo.pop()
        if type(item) in _VALUES:
            collected.append(item)
        inner = item if type(item) is tuple else vars(item).values()
        todo += [part for part in inner if type(part) in _HOLDERS]
    return collected
