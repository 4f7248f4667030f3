"""The text of a kernel as plain data: its statements, what each declares of itself, and what is in them."""

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
    """What a field of a statement names, as its annotation says."""

    BLOCK = "statements inside of it"
    DECLARES = "a value that exists after it, in the same block"
    INSIDE = "a value that exists in its blocks only"
    ASSIGNS = "a value that was declared before, which gets another one"
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
    """What a body says: a dataclass, whose fields are its operands and whose class says what it does beside reading them.

    A field that names something by a string is annotated by what it names (`Mark`). The checks of a text, probes, counts
    and the interpreter go by these declarations, so that a new statement is its class here, its meaning in
    `executor.py` and a macro in each `_spelling.j2`.
    """

    OF_MACHINE: ClassVar[bool] = True
    """Whether threads spend time on it; if not, probes see nothing there."""
    APART: ClassVar[bool] = True
    """Whether its blocks, if it has any, may be gone through never or several times."""
    REPEATS: ClassVar[bool] = False
    """Whether its blocks may be gone through several times."""

    @classmethod
    def title(cls) -> str:
        """Its name in words with `_` between them, as a macro that spells it is called."""
        return _words(cls.__name__)

    def marked(self, mark: Mark) -> list[Any]:
        """What its fields with a mark name."""
        found: list[Any] = []
        for title in _fields(type(self)).get(mark, ()):
            named = getattr(self, title)
            found += named if isinstance(named, tuple) else () if named is None else (named,)
        return found

    @property
    def blocks(self) -> dict[str, list[Statement]]:
        """The statements inside of it, by the name of the field that holds them."""
        return {field: getattr(self, field) for field in _fields(type(self)).get(Mark.BLOCK, ())}

    def sets(self) -> Mapping[str, Value | None]:
        """The names whose values it sets, each with the value that counts go by; None where only data decide it."""
        marks = (Mark.DECLARES, Mark.INSIDE, Mark.ASSIGNS)
        return {name: None for mark in marks for name in self.marked(mark)}

    def touches(self) -> set[str]:
        """The buffers that it touches, by name."""
        viewed = (value.buffer for value in values(self) if isinstance(value, (View, Cluster)))
        return {*viewed, *self.marked(Mark.TOUCHES)}

    def meets(self) -> str | None:
        """The named barrier at which the threads of its roles meet; "" is all threads of the CTA, None nowhere."""
        return next(iter(self.marked(Mark.MEETS)), None)

    def reads(self) -> set[str]:
        """The operands that it reads by themselves, not by tensor maps or spans."""
        return {
            *(value.name for value in values(self) if isinstance(value, Global)),
            *self.marked(Mark.COUNTER),
        }

    def writes(self) -> set[str]:
        """The operands that it writes, not by tensor maps."""
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
        """What happens once at it that a cost model counts: ("uses", a pipeline) or ("syncs", "")."""
        return None

    def region(self) -> str | None:
        """The name under which probes count it; None where they count it with what stands before."""
        return None if self.blocks or not self.OF_MACHINE else self.title().replace("_", " ")


@cache
def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


_FIELDS: dict[type, dict[Mark, tuple[str, ...]]] = {}


def _fields(kind: type) -> dict[Mark, tuple[str, ...]]:
    """The fields of a statement by their marks."""
    if kind not in _FIELDS:
        found: dict[Mark, tuple[str, ...]] = {}
        for field, hint in get_type_hints(kind, include_extras=True).items():
            for mark in _marks(hint):
                found[mark] = (*found.get(mark, ()), field)
        _FIELDS[kind] = found
    return _FIELDS[kind]


def _marks(hint: Any) -> Iterator[Mark]:
    yield from (mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Mark))
    for part in get_args(hint):
        yield from _marks(part)


@dataclass(frozen=True, eq=False)
class Let(Statement):
    """A value that is computed once and keeps its name."""

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
    """Another value of a variable."""

    OF_MACHINE = False
    name: Assigns
    value: Value
    dtype: str = "int32"

    def sets(self) -> Mapping[str, Value | None]:
        return {self.name: self.value}


@dataclass(frozen=True, eq=False)
class Loop(Statement):
    """`index` from `begin` up to `end` by `step`. An unrolled one has numbers for all three; another has `at_once` turns behind one test."""

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
    """While `condition` holds."""

    REPEATS = True
    condition: Value
    body: Block


@dataclass(frozen=True, eq=False)
class If(Statement):
    """The statements of `body` where a condition holds, those of `orelse` where not."""

    condition: Value
    body: Block
    orelse: Block


@dataclass(frozen=True, eq=False)
class Region(Statement):
    """Statements that a probe counts together, under a name."""

    APART = False
    name: str
    body: Block

    def region(self) -> str | None:
        return self.name


@dataclass(frozen=True, eq=False)
class Call(Statement):
    """A leaf, with an argument for each of its parameters."""

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
    """One operation of a pipeline: "acquire", "commit", "wait" or "release" of one use. `bytes`: what a bulk fill announces.

    "drain" waits as "acquire" does, and takes nothing: the slot of that use has been given back, and stays free.

    `pending` groups of products, those issued last, may be in flight at a release by wgmma: none of them reads the slot.
    `at` numbers the CTA whose words are waited for, where CTAs of the grid fill the slot.
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
    """A copy by the copy engine into a slot of a pipeline, which completes on the slot's full barrier.

    A `multicast` one goes to that place, and completes on that barrier, in every CTA of the cluster.
    """

    target: View
    source: Box | Span | Rows
    slot: Slot
    evict_first: bool = False
    multicast: bool = False

    def loads(self) -> tuple[tuple[Box | Span | Rows, View], ...]:
        return ((self.source, self.target),)

    def folds(self, schedule: Schedule) -> bool:
        """Whether the box has more axes than where it goes: the outer ones then become rows."""
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
    """The tensor cores copy 128 rows of shared memory into tensor memory (tcgen05.cp), in order with this role's products."""

    target: View
    source: View


@dataclass(frozen=True, eq=False)
class AwaitProducts(Statement):
    """Until at most `pending` groups of this role's products are in flight."""

    pending: int


@dataclass(frozen=True, eq=False)
class Comment(Statement):
    """A line for the reader of the generated kernel."""

    OF_MACHINE = False
    text: str


@dataclass(frozen=True, eq=False)
class BarriersStand(Statement):
    """In the kernel's start: from here on every role may use every barrier and the tensor memory."""

    OF_MACHINE = False


@dataclass(frozen=True, eq=False)
class TearDown(Statement):
    """Behind all roles: no thread touches tensor memory any more, and it goes back."""

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
    """Barrier of the threads of the roles that a named barrier is declared for; "" is all threads of the CTA.

    `replica` says which replica meets, where each meets apart.
    """

    name: Meets
    replica: Value = 0

    def region(self) -> str | None:
        return f"meet {self.name or 'all'}"


@dataclass(frozen=True, eq=False)
class Publish(Statement):
    """Threads of this role have written shared buffers that its own products read next: fence, then meet."""

    buffers: tuple[Touches, ...]
    name: Meets
    replica: Value = 0

    def region(self) -> str | None:
        return f"meet {self.name or 'all'}"


@dataclass(frozen=True, eq=False)
class Store(Statement):
    """Copies by the copy engine of what threads of this role have written to shared memory: fence, meet, one warp stores.

    The copies are one group, which reads shared memory until `AwaitStores`.
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
    """Until at most `pending` groups of this role's stores still read shared memory; then meet, if there is a barrier."""

    pending: int
    name: Meets | None
    replica: Value = 0


@dataclass(frozen=True, eq=False)
class ClusterArrive(Statement):
    """Every thread of every CTA of the cluster arrives. A relaxed one orders no memory."""

    relaxed: bool

    def counts(self) -> tuple[str, str] | None:
        return None if self.relaxed else ("syncs", "")

    def region(self) -> str | None:
        return "arrive cluster"


@dataclass(frozen=True, eq=False)
class ClusterWait(Statement):
    """Until every thread of the cluster has arrived."""

    def region(self) -> str | None:
        return "wait cluster"


@dataclass(frozen=True, eq=False)
class TakeTicket(Statement):
    """Count this CTA in at `counter[index]`, behind what it has written; `last` tells whether it was the last of `total`.

    The last one resets the counter. Threads of the roles of barrier `name` meet there and learn it through `buffer`: each of
    these roles says this, and the first one counts.
    """

    last: Assigns
    buffer: Touches
    counter: Counter
    index: Value
    total: Value
    name: Meets

    def sets(self) -> Mapping[str, Value | None]:
        return {self.last: True}


@dataclass(frozen=True, eq=False)
class CountIn(Statement):
    """Count this CTA in at `counter[index]`, behind what it has written. The roles of barrier `name` meet before the first counts."""

    counter: Counter
    index: Value
    name: Meets


@dataclass(frozen=True, eq=False)
class AwaitCount(Statement):
    """Until `total` CTAs have counted in at `counter[index]`, this one among them; what they wrote can be read then.

    Threads of the roles of barrier `name` meet there. All CTAs must run at once.
    """

    counter: Counter
    index: Value
    total: Value
    name: Meets

    def region(self) -> str | None:
        return "wait count"


@dataclass(frozen=True, eq=False)
class CountOut(Statement):
    """Count this CTA out at `counter[index]`, of which it awaits nothing more: the last of `total` resets the counter."""

    counter: Counter
    index: Value
    total: Value
    name: str


@dataclass(frozen=True, eq=False)
class Depend(Statement):
    """From here on what the kernel before this one wrote is needed; with `launch` the one behind this may start."""

    launch: bool = True


@dataclass(frozen=True, eq=False)
class LaunchDependents(Statement):
    """The kernel behind this one may start."""


@dataclass(frozen=True, eq=False)
class TakeTurn(Statement):
    """Until it is this member's turn; `replica` says which member of the role it is."""

    name: str
    replica: Value

    def region(self) -> str | None:
        return f"take {self.name}"


@dataclass(frozen=True, eq=False)
class PassTurn(Statement):
    """The next member's turn, behind what this one has done; before the first turn the last member `opens`."""

    name: str
    replica: Value
    opens: bool = False

    def region(self) -> str | None:
        return f"pass {self.name}"


@dataclass(frozen=True)
class Text:
    """A kernel: what every thread does first, what each role does then, and what every thread does last.

    What an executor works out of a text once, it keeps in `memo` under its own type.
    """

    start: tuple[Statement, ...]
    roles: Mapping[str, tuple[Statement, ...]]
    end: tuple[Statement, ...] = ()
    memo: dict[type, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def parts(self) -> dict[str, tuple[Statement, ...]]:
        """All of it by name: that of the role, "start" and "end"."""
        return {"start": self.start, **self.roles, "end": self.end}

    @property
    def leaves(self) -> frozenset[str]:
        """Names of the leaves that it calls."""
        statements = (s for part in self.parts.values() for s in walk(part))
        return frozenset(s.leaf.name for s in statements if isinstance(s, Call))


def walk(statements: Any) -> Iterator[Statement]:
    """Every statement, inner ones behind the one that holds them."""
    for statement in statements:
        yield statement
        for block in statement.blocks.values():
            yield from walk(block)


_VALUES = frozenset((Expr, View, Global, Box, Span, Rows, Cluster, Sender, Slot))
_HOLDERS = _VALUES | {tuple, Product}


def values(statement: Statement) -> list[Any]:
    """Every expression, view, slot, operand and copied part in a statement; not those of the statements inside it."""
    return contained(vars(statement).values())


def contained(parts: Iterable[Any]) -> list[Any]:
    """The same of parts of a statement."""
    found: list[Any] = []
    todo = [part for part in parts if type(part) in _HOLDERS]
    while todo:
        item = todo.pop()
        if type(item) in _VALUES:
            found.append(item)
        inner = item if type(item) is tuple else vars(item).values()
        todo += [part for part in inner if type(part) in _HOLDERS]
    return found
