"""The text of a kernel as plain data: the places that its statements name, the statements, and what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..errors import DeclarationError
from .expressions import Expr, Value
from .lang import Mma, Pipeline
from .leaf import Leaf


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

    def __getitem__(self, index: Any) -> Any:
        raise DeclarationError(
            f"an index of a {type(self).__name__} in a body", expected="a part by name, or a number by m.word", got="[...]",
            fix="say view.stage(use), view.part(first, rows) or view.columns(first, count); m.word(memory, i) is a number there",
        )  # fmt: skip


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

    def stage(self, use: Value) -> View:
        """The stage that use `use` has, of a buffer outside of pipelines."""
        return replace(self, use=use)

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

    def span(self, row: Value, pitch: int, column: int = 0, count: int | None = None) -> Span:
        """`count` elements from `column` of `row` on, of rows that are `pitch` elements long; by default to the end of the row."""
        return Span(self.name, self.dtype, row, pitch, column, pitch - column if count is None else count)


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

    def plain(self) -> Slot:
        """The slot as a statement keeps it, without the end of the pipeline that it came from."""
        return Slot(self.pipeline, self.use, self.role)

    def view(self) -> View:
        """The buffer of a pipeline that has one."""
        (buffer,) = self.pipeline.buffers
        return View(buffer, self.pipeline.name, self.use)


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
