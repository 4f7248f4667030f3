"""What the body of a role is run against: a `Recorder` writes down what the body says, as statements."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from ..errors import DeclarationError, DslKernelError, did_you_mean
from . import places
from .channel import Channel
from .expressions import Expr, Value, alike, kernel_condition, name
from .lang import Schedule
from .leaf import AMBIENT, Kind, Leaf
from .memory import Box, Cluster, Global, Rows, Sender, Slot, Span, View, title_of
from .statements import (
    Assign,
    AwaitCount,
    AwaitProducts,
    AwaitStores,
    BarriersStand,
    Bulk,
    Call,
    ClusterArrive,
    ClusterWait,
    Comment,
    CopyColumns,
    CountIn,
    CountOut,
    Depend,
    Fill,
    If,
    LaunchDependents,
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
    TakeTicket,
    TakeTurn,
    Variable,
    values,
)
from .transfers import KINDS, Action, transfer_of

if TYPE_CHECKING:
    from ..arch import ArchSpec
    from ..problems.base import OperandSpec

FAILURES = (
    ArithmeticError, AttributeError, LookupError, NameError, NotImplementedError, TypeError, ValueError,
)  # fmt: skip
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
    elif annotated := [
        name for base in type(owner).__mro__ for name in vars(base).get("__annotations__", ())
    ]:
        kind, known = f"name that {type(owner).__name__} declares", annotated
    return DeclarationError(
        who, expected=f"a {kind}" if asked else "what is there", got=asked or str(error), fix=did_you_mean(asked, known)
    )  # fmt: skip


class Recorder:
    """What a body is run against: it writes down what the body says.

    Attributes:
        k, c: knobs, and constants of the schedule.
        role: whose body this is; None in the kernel's start.
        lane, thread: this thread's lane, and its number within the role (within its replica).
        warp: this thread's warp within the CTA; one text runs for all of them, so no branch may depend on it.
        replica: which of the role's replicas this is.
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
        """How many threads the role has (each of its replicas); the knob of that name, which a kernel spells, if it says so."""
        warps = self.schedule.role(self.role).warps if self.role else self.schedule.threads // 32
        knob = getattr(self.k, "threads", 0)
        return knob if knob == warps * 32 else int(warps) * 32

    def _begin(self, variables: Iterable[str] = ()) -> None:
        self.statements: list[Statement] = []
        self._blocks = [self.statements]
        # The blocks that are gone through with those around them are not among these.
        self._scopes: list[list[Statement]] = [self.statements]
        self.variables = set(variables)
        # What has names, and what had one before something else took it: the kernel has that no more.
        self.named: dict[str, tuple[Expr, Value | None]] = {}
        self._replaced: dict[int, Expr] = {}

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

    def known_as(self, text: str) -> list[str]:
        """The annotations that fit a name of the kernel in its class of names; none where it may be a size of the launch plan."""
        found = ["View"] if any(buffer.name == text for buffer in self.schedule.buffers) else []
        found += ["Channel"] if any(pipeline.name == text for pipeline in self.schedule.pipelines) else []
        for spec in self.operands:
            if spec.name == text:
                found.append("Global" if spec.shape else spec.dtype.capitalize())
            elif text in (*spec.shape, *spec.strides, spec.row_stride):
                found.append("Int32")
        return list(dict.fromkeys(found))

    def dim(self, text: str) -> Expr:
        """A runtime size or integer scalar of the call."""
        return name(text)

    def operand(self, text: str) -> Global:
        """A global-memory operand, for a leaf; its axes are as far apart as the problem says."""
        dtype = self._dtypes.get(text, "int32")
        return Global(text, self._strides.get(text, ()), dtype, self._peers.get(text, ""))

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
        return self._take_name(text, name(text, value.dtype), value)

    def _take_name(self, text: str, made: Expr, value: Value | None = None) -> Expr:
        """A value or variable has a name from now on, and what had it before is refused wherever it is used."""
        before = self.named.get(text)
        if before is not None and (value is None or not alike(before[1], value)):
            self._replaced[id(before[0])] = before[0]
        self.named[text] = made, value
        return made

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
        return self._take_name(text, name(text, dtype))

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
        self._say(Repeat(kernel_condition("condition of m.repeat", condition), inner))
        with self._block(inner):
            yield

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """`with m.when(condition):` writes a branch."""
        inner: list[Statement] = []
        self._say(If(kernel_condition("condition of m.when", condition), inner, []))
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

    def drain(self, pipeline: str, uses: Value) -> None:
        """Producer: wait, after the last of `uses` uses, until readers have given all slots back."""
        for ahead in range(self.schedule.pipeline(pipeline).stages):
            self._say(PipelineOp("drain", self._slot(pipeline, uses + ahead)))

    def commit(self, slot: Slot) -> None:
        """Producer: the slot is filled, or will be when the copies issued into it are done."""
        self._say(PipelineOp("commit", slot.plain()))

    def wait(self, pipeline: str, use: Value, at: Value | None = None) -> Slot:
        """Reader: wait until use `use` is filled; where CTAs of the grid do, `at` is the number by which they know this one."""
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
        """Reader: done with the slot, while at most `pending` groups of products that do not read it are in flight."""
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
        """Copy into a slot; with `multicast` into that of every CTA of the cluster."""
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

    def copy_columns(self, target: View, source: View) -> None:
        """Copy 128 rows of shared memory into tensor memory, in order with this role's products."""
        self._say(CopyColumns(target, source))

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
        return Sender(view, slot.plain())

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
        """Call a leaf with an argument a parameter.

        Raises:
            DeclarationError: an argument is missing, or of another kind or dtype than the parameter's annotation says.
        """
        by = self.role or "the start"
        passed = called.bound(arguments, named or {}, by)
        for parameter, argument in zip(called.passed, passed, strict=True):
            kind = self._kind(argument)
            if parameter.takes and not any(taken.accepts(kind) for taken in parameter.takes):
                raise DeclarationError(
                    f"argument {parameter.name} of leaf {called.name} in {by}", expected=" or ".join(map(str, parameter.takes)),
                    got=f"{kind}: {title_of(argument)}", fix="compare the arguments of the call with the leaf's parameters",
                )  # fmt: skip
        if called.text is not None:
            passed += tuple(getattr(self, name) for name in AMBIENT)
        for position in called.results:
            self._variable(passed[position])
        self._say(Call(called, passed))

    def _kind(self, argument: Any) -> Kind:
        """What an argument of a leaf is."""
        if isinstance(argument, Expr):
            return Kind("value", argument.dtype)
        if isinstance(argument, (View, Cluster)):
            buffer = self.schedule.buffer(argument.buffer)
            return Kind("peers" if isinstance(argument, Cluster) else str(buffer.space.value), buffer.dtype)
        if isinstance(argument, Global):
            return Kind("global", argument.dtype)
        return Kind("sender" if isinstance(argument, Sender) else "none" if argument is None else "number")

    def channel(self, pipeline: str) -> Channel:
        """A pipeline, of which this role has one end."""
        return Channel(self, self.schedule.pipeline(pipeline))

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
            expected="a variable, which a leaf or a function may set",
            got=str(value),
            fix="declare it before the call, `x: Int32 = 0`",
        )

    def say(self, statement: Statement) -> None:
        """Say a statement that has no method of its own here.

        Raises:
            DeclarationError: a barrier, a buffer, an operand or a variable that it names is not declared.
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
                        f"{type(statement).__name__} in {self.role or 'the start'}", expected=f"a declared {kind}", got=text,
                        fix=did_you_mean(text, known) if known else f"declare the {kind}",
                    )  # fmt: skip
        self._say(statement)

    def _say(self, statement: Statement) -> None:
        # For errors that come when the text is whole.
        vars(statement)["place"] = places.current(sys._getframe(1))
        if self._replaced:
            for value in values(statement):
                if id(value) in self._replaced:
                    raise DeclarationError(
                        f"value {value.args[0]}",
                        expected="a name that keeps its value while it is used",
                        got="a use after another value took the name",
                        fix=f"name one of the two otherwise, or `{value.args[0]} = named(...)` in a function that is called several times",
                    )
        self._blocks[-1].append(statement)
