"""The `Recorder`: a body runs against it once, and it records what the body says as statements."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..errors import DeclarationError, did_you_mean
from . import places
from .actions import Action
from .between_ctas import (
    AwaitCount,
    ClusterArrive,
    ClusterWait,
    CountIn,
    CountOut,
    Depend,
    LaunchDependents,
    TakeTicket,
)
from .channel import Channel
from .expressions import Expr, Value, alike, kernel_condition, name
from .lang import Schedule
from .leaf import AMBIENT, Kind, Leaf
from .memory import Box, Cluster, Global, Rows, Sender, Slot, Span, View, title_of
from .statements import (
    Assign,
    AwaitProducts,
    AwaitStores,
    BarriersStand,
    Bulk,
    Call,
    Comment,
    CopyColumns,
    Fill,
    If,
    Let,
    Loop,
    Mark,
    Meet,
    Multiply,
    PassTurn,
    PipelineOp,
    Product,
    Publish,
    Region,
    Repeat,
    Statement,
    Store,
    TakeTurn,
    Variable,
    values,
)
from .transfers import KINDS, transfer_of

if TYPE_CHECKING:
    from ..arch import ArchSpec
    from ..problems.base import OperandSpec


class Recorder:
    """Records what a body says. Its methods are what a body can say.

    Attributes:
        k, c: the knobs, and the constants of the schedule.
        role: the role whose body this is; None in the kernel's start.
        lane, thread: this thread's lane, and its number within the role (within the replica).
        warp: this thread's warp within the CTA; no branch may depend on it, as one text runs for all warps.
        replica: the number of this replica of the role.
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
        self.operands = operands = tuple(operands)
        self._dtypes = {spec.name: spec.dtype for spec in operands}
        self._strides = {spec.name: tuple(map(str, spec.layout[:-1])) for spec in operands if spec.layout}
        self._peers = {spec.name: spec.peers for spec in operands}
        self._begin()

    @property
    def threads(self) -> int:
        """Threads of the role (of each replica); the knob `threads`, which has a name, where it is equal."""
        warps = self.schedule.role(self.role).warps if self.role else self.schedule.threads // 32
        knob = getattr(self.k, "threads", 0)
        return knob if knob == warps * 32 else int(warps) * 32

    def _begin(self, variables: Iterable[str] = ()) -> None:
        self.statements: list[Statement] = []
        self._blocks = [self.statements]
        # The branches and loops around the current statement; a block that always runs exactly once is not
        # one.
        self._scopes: list[list[Statement]] = [self.statements]
        self.variables = set(variables)
        # The current value of each name, and the values that lost their name to another one: they must not be
        # used.
        self.named: dict[str, tuple[Expr, Value | None]] = {}
        self._replaced: dict[int, Expr] = {}

    @property
    def scope(self) -> object:
        """The innermost branch or loop around the current statement, or the whole text."""
        return self._scopes[-1]

    def within(self, scope: object) -> bool:
        """Whether the current statement is inside `scope`."""
        return any(scope is each for each in self._scopes)

    def is_variable(self, value: Expr) -> bool:
        """Whether a value is a variable, whose number may change."""
        return value.op == "name" and value.args[0] in self.variables

    @contextmanager
    def _block(self, inner: list[Statement], *, apart: bool = True) -> Iterator[None]:
        """Record statements into `inner`; `apart` unless the block always runs exactly once."""
        self._blocks.append(inner)
        if apart:
            self._scopes.append(inner)
        yield
        self._blocks.pop()
        if apart:
            self._scopes.pop()

    def known_as(self, text: str) -> list[str]:
        """The annotations that fit the kernel's name `text`; none if it may be a dim of the launch plan."""
        fitting = ["View"] if any(buffer.name == text for buffer in self.schedule.buffers) else []
        fitting += ["Channel"] if any(pipeline.name == text for pipeline in self.schedule.pipelines) else []
        for spec in self.operands:
            if spec.name == text:
                fitting.append("Global" if spec.shape else spec.dtype.capitalize())
            elif text in (*spec.shape, *spec.strides, spec.row_stride):
                fitting.append("Int32")
        return list(dict.fromkeys(fitting))

    def dim(self, text: str) -> Expr:
        """A runtime size or integer scalar of the call."""
        return name(text)

    def operand(self, text: str) -> Global:
        """An operand in global memory, with the strides that the problem declares."""
        dtype = self._dtypes.get(text, "int32")
        return Global(text, self._strides.get(text, ()), dtype, self._peers.get(text, ""))

    def block(self, axis: int) -> Expr:
        """This CTA's coordinate on a grid axis."""
        return name(self.schedule.axes[axis])

    def scalar(self, text: str) -> Expr:
        """A floating-point scalar operand."""
        return name(text, "float32")

    def in_role(self, role: str) -> Expr:
        """In the kernel's start: whether this thread belongs to `role`."""
        return Expr("in_role", (self.schedule.role(role).name,), "bool")

    def buffer(self, text: str, use: Value | None = None) -> View:
        """A buffer outside of pipelines: the whole of it, or the stage of use `use`."""
        return View(self.schedule.buffer(text).name, None, use)

    def let(self, text: str, value: Value) -> Value:
        """Name a value."""
        if not isinstance(value, Expr):
            return value
        self._say(Let(text, value))
        return self._take_name(text, name(text, value.dtype), value)

    def _take_name(self, text: str, made: Expr, value: Value | None = None) -> Expr:
        """Give a value or variable its name; the value that had the name before must not be used any more."""
        before = self.named.get(text)
        if before is not None and (value is None or not alike(before[1], value)):
            self._replaced[id(before[0])] = before[0]
        self.named[text] = made, value
        return made

    def var(self, text: str, initial: Value = 0, dtype: str = "int32") -> Expr:
        """A scalar variable, which `set` and leaves assign."""
        if any(buffer.name == text for buffer in self.schedule.buffers):
            raise DeclarationError(
                f"variable {text} of {self.role or 'the start'}",
                expected="a name that no buffer has",
                got="the name of a buffer",
                fix="rename the variable",
            )
        self._say(Variable(text, dtype, initial))
        self.variables.add(text)
        return self._take_name(text, name(text, dtype))

    def declare(self, variable: Expr, initial: Value = 0) -> Expr:
        """Declare the variable that an expression made by `name` names."""
        return self.var(self._variable(variable), initial, variable.dtype)

    def word(self, memory: View | Global, index: Value, dtype: str = "") -> Expr:
        """The number at an index of shared or global memory, the same for all threads, read as `dtype`."""
        own = memory.dtype if isinstance(memory, Global) else self.schedule.buffer(memory.buffer).dtype
        return Expr("word", (memory, index), dtype or own)

    def set(self, variable: Expr, value: Value) -> None:
        self._say(Assign(self._variable(variable), value, variable.dtype))

    def loop(
        self,
        index: str,
        end: Value,
        *,
        begin: Value = 0,
        step: int = 1,
        unrolled: bool = False,
        at_once: int = 1,
    ) -> Iterator[Expr]:
        """`for i in m.loop("i", count):` records a loop; its body runs once, to be recorded."""
        inner: list[Statement] = []
        self._say(Loop(index, begin, end, step, unrolled, inner, at_once))
        with self._block(inner):
            yield name(index)

    def repeat(self, condition: Value) -> Iterator[None]:
        """`for _ in m.repeat(condition):` records a loop that runs while the condition holds."""
        inner: list[Statement] = []
        self._say(Repeat(kernel_condition("condition of m.repeat", condition), inner))
        with self._block(inner):
            yield

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """`with m.when(condition):` records a branch."""
        inner: list[Statement] = []
        self._say(If(kernel_condition("condition of m.when", condition), inner, []))
        with self._block(inner):
            yield

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """The other side of the branch recorded last."""
        last = self._blocks[-1][-1] if self._blocks[-1] else None
        if not isinstance(last, If):
            raise DeclarationError(
                f"body of {self.role}",
                expected="otherwise() right after a when()",
                got=type(last).__name__,
                fix="write the branch first",
            )
        with self._block(last.orelse):
            yield

    @contextmanager
    def region(self, name: str) -> Iterator[None]:
        """`with m.region("softmax"):` makes probes count the statements inside as one region of that name."""
        inner: list[Statement] = []
        self._say(Region(name, inner))
        with self._block(inner, apart=False):
            yield

    def comment(self, text: str) -> None:
        """A comment in the generated kernel."""
        self._say(Comment(text))

    def barriers_stand(self) -> None:
        self._say(BarriersStand())

    def acquire(self, pipeline: str, use: Value, bytes: Value | None = None) -> Slot:
        """Producer: wait until the slot of use `use` is free.

        A bulk fill announces `bytes`, by default the whole slot.
        """
        slot = self._slot(pipeline, use)
        self._say(PipelineOp("acquire", slot, bytes))
        return slot

    def drain(self, pipeline: str, uses: Value) -> None:
        """Producer: wait, after the last of `uses` uses, until the readers have given back every slot."""
        for ahead in range(self.schedule.pipeline(pipeline).stages):
            self._say(PipelineOp("drain", self._slot(pipeline, uses + ahead)))

    def commit(self, slot: Slot) -> None:
        """Producer: hand over the slot; it is full, or will be once the copies issued into it have landed."""
        self._say(PipelineOp("commit", slot.plain()))

    def wait(self, pipeline: str, use: Value, at: Value | None = None) -> Slot:
        """Reader: wait until the slot of use `use` is full.

        Where CTAs of the grid fill it, `at` is this CTA's number among them.
        """
        slot = self._slot(pipeline, use)
        if (at is not None) != transfer_of(slot.pipeline).WORDS:
            raise DeclarationError(
                f"wait for {pipeline} in {self.role}",
                expected="the number of a CTA where CTAs of the grid fill the slot, and nowhere else",
                got=f"at={at}, filled by {slot.pipeline.fill.value}",
                fix="say at=... where, and only where, the pipeline is filled by Engine.GRID",
            )
        self._say(PipelineOp("wait", slot, at=at))
        return slot

    def release(self, slot: Slot, pending: int = 0) -> None:
        """Reader: give the slot back.

        At most `pending` groups of products may be in flight; none of them reads the slot.
        """
        engine = next((r.engine for r in slot.pipeline.readers if r.role == self.role), None)
        if pending and (engine is None or Action.WAIT_WGMMA not in KINDS[engine].LETS_GO):
            raise DeclarationError(
                f"release of {slot.pipeline.name} in {self.role}",
                expected="no pending groups: they are counted at a release by wgmma alone",
                got=f"pending={pending}, read through {engine.value if engine else 'nothing'}",
                fix="leave pending out",
            )
        self._say(PipelineOp("release", slot.plain(), pending=pending))

    def bulk(
        self,
        target: View,
        source: Box | Span | Rows,
        slot: Slot,
        *,
        evict_first: bool = False,
        multicast: bool = False,
    ) -> None:
        """Copy into a slot by the copy engine; with `multicast` into the slot of every CTA of the cluster."""
        if multicast and not (slot.pipeline.multicast and isinstance(source, Box)):
            raise DeclarationError(
                f"multicast into {slot.pipeline.name} of {self.role}",
                expected="a box of a tensor map, into a pipeline with multicast=True",
                got=f"{type(source).__name__}, multicast={slot.pipeline.multicast}",
                fix="declare the pipeline multicast: its barriers count every CTA of the cluster",
            )
        self._say(Bulk(target, source, slot.plain(), evict_first, multicast))

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
        """Issue one tensor-core operation; it has ended after `await_products`, or when a commit arrives.

        Args:
            before: the multiply recorded just before, whose group this one joins.
        """
        product = Product(self.schedule.mma(mma), acc, a, b, accumulate)
        if before is not None:
            if self._blocks[-1][-1:] != [before]:
                raise DeclarationError(
                    f"product {mma} of {self.role}",
                    expected="the group written just before",
                    got="another statement",
                    fix="write the products of a group one after the other",
                )
            self._blocks[-1].pop()
        joined = Multiply((before.products if before else ()) + (product,))
        self._say(joined)
        return joined

    def copy_columns(self, target: View, source: View) -> None:
        """Copy 128 rows of shared memory into tensor memory, in order with this role's products."""
        self._say(CopyColumns(target, source))

    def await_products(self, pending: int = 0) -> None:
        self._say(AwaitProducts(pending))

    def fill(self, target: View, value: float) -> None:
        self._say(Fill(target, value))

    def meet(self, barrier: str = "") -> None:
        """Meet the threads of the roles of a named barrier; without a name, of the whole CTA."""
        self._say(Meet(*self._meeting(barrier)))

    def publish(self, barrier: str, *buffers: str) -> None:
        """Make what this role's threads have written into `buffers` visible to the role's own products."""
        self._say(
            Publish(tuple(self.schedule.buffer(text).name for text in buffers), *self._meeting(barrier))
        )

    def store(self, barrier: str, *copies: tuple[Box, View]) -> None:
        """Copy to global memory, as one group, what this role's threads have written to shared memory.

        `await_stores` must follow before the role ends or writes there again.
        """
        self._say(Store(copies, *self._meeting(barrier)))

    def await_stores(self, pending: int = 0, barrier: str | None = None) -> None:
        """Wait until at most `pending` groups of stores read shared memory.

        Args:
            barrier: where the role's threads meet after the wait, needed if they write there again.
        """
        name, replica = self._meeting(barrier) if barrier is not None else (None, self._own())
        self._say(AwaitStores(pending, name, replica))

    def _own(self) -> Value:
        """The number of this replica; 0 where the role has one."""
        return self.replica if self.role and self.schedule.role(self.role).replicas > 1 else 0

    def _meeting(self, text: str) -> tuple[str, Value]:
        return self._barrier(text), self._own() if text in self.schedule.apart else 0

    def cluster_arrive(self, *, relaxed: bool = False) -> None:
        self._say(ClusterArrive(relaxed))

    def cluster_wait(self) -> None:
        self._say(ClusterWait())

    def cluster(self, buffer: str) -> Cluster:
        """A shared buffer in all CTAs of the group, for a leaf."""
        return Cluster(self.schedule.buffer(buffer).name)

    def sender(self, view: View, slot: Slot) -> Sender:
        """The same slot in the other CTAs, for a leaf that sends into it."""
        return Sender(view, slot.plain())

    def take_ticket(
        self, last: Expr, buffer: str, counter: str, index: Value, total: Value, barrier: str
    ) -> None:
        """Set `last`: whether this CTA is the last of `total` to count itself at `counter[index]`."""
        self._say(TakeTicket(self._variable(last), buffer, counter, index, total, self._barrier(barrier)))

    def count_in(self, counter: str, index: Value, barrier: str) -> None:
        """Tell the CTAs that await `counter[index]` that this CTA's writes are visible."""
        self._say(CountIn(counter, index, self._barrier(barrier)))

    def await_count(self, counter: str, index: Value, total: Value, barrier: str) -> None:
        """Wait until `total` CTAs, this one included, have counted in at `counter[index]`."""
        self._say(AwaitCount(counter, index, total, self._barrier(barrier)))

    def count_out(self, counter: str, index: Value, total: Value, barrier: str) -> None:
        """After `await_count`: this CTA is done with `counter[index]`; the last of `total` resets it."""
        self._say(CountOut(counter, index, total, self._barrier(barrier)))

    def take_turn(self, turn: str) -> None:
        """Wait until the member before this one has passed the turn on."""
        self._say(TakeTurn(*self._member(turn)))

    def pass_turn(self, turn: str) -> None:
        """Pass the turn on to the next member, which sees this one's writes."""
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
        """Wait for the preceding kernel's writes; no operand may be accessed before.

        With `launch` the following kernel may start, even while the preceding one still runs. Otherwise
        `launch_dependents` says from where on it may.
        """
        self._say(Depend(launch))

    def launch_dependents(self) -> None:
        """The following kernel may start where this one's CTAs leave room; it waits in its own `depend`."""
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
        """Call a leaf, with one argument for each parameter.

        Raises:
            DeclarationError: an argument is missing, or its kind or dtype is not the one that the parameter
                is annotated with.
        """
        by = self.role or "the start"
        passed = called.bound(arguments, named or {}, by)
        for parameter, argument in zip(called.passed, passed, strict=True):
            kind = self._kind(argument)
            if parameter.takes and not any(taken.accepts(kind) for taken in parameter.takes):
                raise DeclarationError(
                    f"argument {parameter.name} of leaf {called.name} in {by}",
                    expected=" or ".join(map(str, parameter.takes)),
                    got=f"{kind}: {title_of(argument)}",
                    fix="compare the arguments of the call with the leaf's parameters",
                )
        if called.text is not None:
            passed += tuple(getattr(self, name) for name in AMBIENT)
        for position in called.results:
            self._variable(passed[position])
        self._say(Call(called, passed))

    def _kind(self, argument: Any) -> Kind:
        """The kind of an argument of a leaf."""
        if isinstance(argument, Expr):
            return Kind("value", argument.dtype)
        if isinstance(argument, (View, Cluster)):
            buffer = self.schedule.buffer(argument.buffer)
            return Kind("peers" if isinstance(argument, Cluster) else str(buffer.space.value), buffer.dtype)
        if isinstance(argument, Global):
            return Kind("global", argument.dtype)
        return Kind("sender" if isinstance(argument, Sender) else "none" if argument is None else "number")

    def channel(self, pipeline: str) -> Channel:
        """A pipeline, with the end that this role has."""
        return Channel(self, self.schedule.pipeline(pipeline))

    def slot(self, pipeline: str, use: Value) -> Slot:
        """The slot of use `use`, which this role holds."""
        return self._slot(pipeline, use)

    def _slot(self, pipeline: str, use: Value) -> Slot:
        return Slot(self.schedule.pipeline(pipeline), use, self.role or "")

    def _variable(self, value: Any) -> str:
        if isinstance(value, Expr) and value.op == "name":
            return str(value.args[0])
        raise DeclarationError(
            f"body of {self.role}",
            expected="a variable, which a leaf or a function may set",
            got=str(value),
            fix="declare it before the call, `x: Int32 = 0`",
        )

    def say(self, statement: Statement) -> None:
        """Record a statement that has no method of its own here.

        Raises:
            DeclarationError: the statement names a barrier, buffer, operand or variable that is not declared.
        """
        for barrier in statement.marked(Mark.MEETS):
            self._barrier(barrier)
        for buffer in statement.touches():
            self.schedule.buffer(buffer)
        operands = [spec.name for spec in self.operands]
        for kind, known, named in (
            ("operand", operands, statement.marked(Mark.COUNTER)),
            ("variable", sorted(self.variables), statement.marked(Mark.ASSIGNS)),
        ):
            for text in named:
                if text not in known:
                    raise DeclarationError(
                        f"{type(statement).__name__} in {self.role or 'the start'}",
                        expected=f"a declared {kind}",
                        got=text,
                        fix=did_you_mean(text, known) if known else f"declare the {kind}",
                    )
        self._say(statement)

    def _say(self, statement: Statement) -> None:
        # For errors that are only found when the text is complete.
        vars(statement)["place"] = places.current(sys._getframe(1))
        if self._replaced:
            for value in values(statement):
                if id(value) in self._replaced:
                    raise DeclarationError(
                        f"value {value.args[0]}",
                        expected="a name that keeps its value while it is used",
                        got="a use after another value took the name",
                        fix=f"name one of the two otherwise, or `{value.args[0]} = named(...)` "
                        "in a function that is called several times",
                    )
        self._blocks[-1].append(statement)
