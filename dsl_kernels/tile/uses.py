"""Checks of a text against its schedule: all that is declared is used, by those who may, and nothing else is.

A declaration that no body uses is a mistake: shared memory that nobody reads, a barrier where nobody meets,
an output that is never written. `check_uses` refuses it before anything is printed or run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from ..dtypes import DTYPES
from ..errors import DeclarationError, did_you_mean
from ..expr import names_in, names_in_all
from . import places
from . import text as t
from .lang import Buffer, Engine, Pipeline, Schedule, Space
from .transfers import transfer_of

if TYPE_CHECKING:
    from ..problems.base import OperandSpec

# Where a statement is: from the outermost block inwards, its number in the block and the branch that is
# taken.
Place = tuple[tuple[int, str], ...]


def check_uses(
    op: str,
    knobs: Mapping[str, Any],
    schedule: Schedule,
    text: t.Text,
    operands: Iterable[OperandSpec],
) -> None:
    """Check a text against its schedule and its operands.

    Raises:
        DeclarationError: the first fault; it names the program, what is declared, the schedule and the fix.
    """
    _Uses(op, knobs, schedule, text).check(tuple(operands))


class _Uses:
    def __init__(self, op: str, knobs: Mapping[str, Any], schedule: Schedule, text: t.Text) -> None:
        self._schedule = schedule
        self._who = f"program {op} at " + ", ".join(f"{name}={value}" for name, value in knobs.items())
        self._text = text
        self._parts: dict[str | None, tuple[t.Statement, ...]] = {None: text.start}
        self._parts.update(text.roles)
        ends = [isinstance(s, t.TearDown) for s in text.end]
        if ends != [True] * bool(schedule.tmem_columns()):
            self._fail(
                "the end", "tear_down once where there is tensor memory", f"{sum(ends)} of them",
                "leave the end to TileProgram.text",
            )  # fmt: skip
        self._statements = [(role, s) for role, part in self._parts.items() for s in t.walk(part)]
        self._values = {id(s): t.values(s) for _, s in self._statements}

    def _fail(self, what: str, expected: str, got: str, fix: str, by: t.Statement | None = None) -> NoReturn:
        """Raise the refusal, at the line of statement `by`."""
        place = vars(by).get("place") if by is not None else None
        where = places.spelled(place) if place else ""
        raise DeclarationError(f"{self._who}, {what}", expected=expected, got=got, fix=fix, where=where)

    def check(self, operands: tuple[OperandSpec, ...]) -> None:
        for role, part in self._text.roles.items():
            if not part:
                self._fail(
                    f"role {role}", "a body that says something", "an empty one",
                    "write its body, or remove the role",
                )  # fmt: skip
        self._apart(operands)
        self._visible(operands)
        self._buffers()
        self._barriers()
        self._products()
        self._columns()
        self._asked()
        for _, s in self._statements:
            for source, target in s.loads():
                self._copy(s, source, target, {spec.name: spec for spec in operands})
        for pipe in self._schedule.pipelines:
            self._pipeline_ops(pipe)
        self._operands(operands)
        self._counts()
        self._start()
        for buffer in self._schedule.buffers:
            if buffer.alias is not None:
                alias = self._alias_in_tensor if buffer.space is Space.TENSOR else self._alias
                alias(buffer, self._schedule.buffer(buffer.alias))

    def _apart(self, operands: tuple[OperandSpec, ...]) -> None:
        """No buffer has the name of an operand or of a size of one: a kernel has all of them in one scope."""
        taken = {spec.name: "an operand" for spec in operands}
        for spec in operands:
            for name in names_in_all(map(str, spec.shape)):
                taken.setdefault(name, f"a size of {spec.name}")
        for buffer in self._schedule.buffers:
            if buffer.name in taken:
                self._fail(
                    f"buffer {buffer.name}", "a name of its own", f"the name of {taken[buffer.name]}",
                    f"call it {buffer.name}_s, or whatever else it holds",
                )  # fmt: skip

    def _visible(self, operands: tuple[OperandSpec, ...]) -> None:
        """Every name belongs to the call, or was declared earlier in a block that contains its use."""
        known = {"lane", "worker", "replica", "warp", *self._schedule.axes}
        for spec in operands:
            known |= {spec.name}.union(*(names_in(str(e)) for e in (*spec.shape, *(spec.layout or ()))))
        known = self._names_of_block(self._text.start, known)
        for role in self._text.roles.values():
            self._names_of_block(role, known)

    def _names_of_block(self, block: Iterable[t.Statement], around: set[str]) -> set[str]:
        """The names that are known after a block; the block may use no other ones."""
        known = set(around)
        for s in block:
            used = t.names_of(self._values[id(s)]).union(s.marked(t.Mark.ASSIGNS))
            if missing := sorted(used - known):
                self._fail(
                    f"value {missing[0]}",
                    "a name that is declared before it is used, in the same block or one around it",
                    "none here", f"declare it before the branch or the loop, as `{missing[0]}: Int32 = 0`", s,
                )  # fmt: skip
            for inner in s.blocks.values():
                inside = self._names_of_block(inner, known.union(s.marked(t.Mark.INSIDE)))
                known = known if s.APART else inside
            known.update(s.marked(t.Mark.DECLARES))
        return known

    def _buffers(self) -> None:
        """Every buffer is used, and registers are used only by the role that holds them."""
        touched: dict[str, dict[str | None, t.Statement]] = {}
        for role, s in self._statements:
            for name in s.touches():
                touched.setdefault(name, {}).setdefault(role, s)
        for buffer in self._schedule.buffers:
            what = f"buffer {buffer.name}"
            by = touched.get(buffer.name)
            if by is None:
                self._fail(
                    what, "a body that reads or writes it", "none",
                    "touch it in a body, or remove it from the schedule",
                )  # fmt: skip
            others = [role for role in by if role != buffer.role]
            if buffer.space is Space.REGISTER and others:
                self._fail(
                    what, f"use by {buffer.role}, whose registers it is", f"use by {_names(others)}",
                    "declare a buffer for that role, or hand the values over through shared memory",
                    by[others[0]],
                )  # fmt: skip

    def _barriers(self) -> None:
        """Every role of a named barrier meets there, and no other role does."""
        for name, members in self._schedule.named_barriers.items():
            comes = {role: s for role, s in reversed(self._statements) if s.meets() == name}
            expected = f"{', '.join(members)} to meet there"
            if absent := [role for role in members if role not in comes]:
                self._fail(
                    f"named barrier {name}", expected, f"{absent[0]}, which never comes",
                    f"let {absent[0]} meet there, or take it out of the barrier",
                )  # fmt: skip
            if others := [role for role in comes if role not in members]:
                self._fail(
                    f"named barrier {name}", expected, f"{others[0] or 'the start'}, which is not declared",
                    "declare the role at the barrier", comes[others[0]],
                )  # fmt: skip

    def _products(self) -> None:
        """Every tensor-core operation is issued, and only by its role."""
        issued: dict[str, dict[str | None, t.Statement]] = {}
        for role, s in self._statements:
            for product in s.issues():
                issued.setdefault(product.mma.name, {}).setdefault(role, s)
        for mma in self._schedule.mmas:
            by = issued.get(mma.name, {})
            if by.keys() != {mma.role}:
                self._fail(
                    f"product {mma.name}", f"{mma.role} to issue it", _names(by) or "nobody",
                    "multiply by it in that role's body, or correct the declaration",
                    next((s for role, s in by.items() if role != mma.role), None),
                )  # fmt: skip

    def _asked(self) -> None:
        """ask_next needs a grid of one axis without clusters, and 16-byte slots that count bytes."""
        for _, s in self._statements:
            if not isinstance(s, t.AskNext):
                continue
            pipe, answer = s.slot.pipeline, self._schedule.buffer(s.target.buffer)
            if len(self._schedule.grid) != 1 or self._schedule.cluster_ctas != 1 or self._schedule.group:
                self._fail(
                    "ask_next", "a grid of one axis, without clusters or groups",
                    f"{self._schedule.grid}, clusters of {self._schedule.cluster_ctas}",
                    "deal out the work of one axis", s,
                )  # fmt: skip
            if pipe.fill is not Engine.BULK or answer.stage_bytes != 16 or answer.name not in pipe.buffers:
                self._fail(
                    "ask_next", "a slot of 16 bytes of a pipeline with fill=Engine.BULK",
                    f"{pipe.name} filled by {pipe.fill.value}, {answer.stage_bytes} bytes of {answer.name}",
                    "declare the pipeline so", s,
                )  # fmt: skip

    def _columns(self) -> None:
        """copy_columns copies whole buffers of the right layout, in a role that issues products."""
        for role, s in self._statements:
            if not isinstance(s, t.CopyColumns):
                continue
            source, target = (self._schedule.buffer(view.buffer) for view in (s.source, s.target))
            # Factors are bytes, or words of four.
            factors, words = target.dtype == "uint8", source.dtype == "int32"
            columns = (16,) if words else source.shape[1:]
            swizzle, rows, fits = (128, 128, DTYPES[source.dtype].bytes == 2)
            if factors:
                swizzle, rows, fits = 0, 32, source.shape == (32, 4 if words else 16)
            spaces = (source.space, source.swizzle, target.space)
            if spaces != (Space.SHARED, swizzle, Space.TENSOR) or s.source.rows not in (None, rows):
                self._fail(
                    "copy_columns", f"rows of shared memory with swizzle {swizzle}, and tensor memory",
                    f"{source.name} in {source.space.value} memory, swizzle {source.swizzle}, "
                    f"to {target.name} in {target.space.value} memory",
                    "declare the buffers so", s,
                )  # fmt: skip
            if (
                not fits
                or source.shape[0] != rows
                or target.shape != (128, *columns)
                or target.dtype != ("uint8" if factors and words else source.dtype)
                or target.unpacked
            ):
                self._fail(
                    "copy_columns", "128 rows of as many 16-bit elements, packed, or 32 rows of 16 factors",
                    f"{source.shape} {source.dtype} to {target.shape} {target.dtype}",
                    "make the buffers alike", s,
                )  # fmt: skip
            if role not in {mma.role for mma in self._schedule.mmas if mma.unit == "tcgen05"}:
                self._fail(
                    "copy_columns", "a role that issues products of tcgen05", str(role),
                    "let that role copy", s,
                )  # fmt: skip

    def _pipeline_ops(self, pipe: Pipeline) -> None:
        """Both sides perform every operation that the plan gives them, and nobody else performs any."""
        taken = {
            (s.kind, role): s
            for role, s in reversed(self._statements)
            if isinstance(s, t.PipelineOp) and s.slot.pipeline.name == pipe.name
        }
        wanted, may = transfer_of(pipe).operations()
        for kind, role in sorted(wanted - taken.keys()):
            self._fail(
                f"pipeline {pipe.name}", f"{role} to {kind} it", f"no {kind} in its body",
                "say the operation in the body, or remove the pipeline from the schedule",
            )  # fmt: skip
        for kind, other in sorted(taken.keys() - may, key=str):
            sides = [r for k, r in sorted(may) if k == kind] or ["nobody"]
            self._fail(
                f"pipeline {pipe.name}", f"{', '.join(sides)} to {kind} it", other or "the start",
                "say the operation in that role's body, or correct the declaration",
                taken[kind, other],
            )  # fmt: skip

    def _counts(self) -> None:
        """CTAs that await others all run at once, and a role that awaits a count also counts in and out."""
        kinds = (t.CountIn, t.AwaitCount, t.CountOut)
        by_role: dict[str | None, list[t.Statement]] = {}
        for role, s in self._statements:
            if isinstance(s, kinds):
                by_role.setdefault(role, []).append(s)
        if by_role and not self._schedule.may_wait:
            self._fail(
                "CTAs that await others' counts", "a grid that runs at once", "no `resident` in the schedule",
                "say in `resident` when CTAs wait for others: the launch then takes all of them, or none",
                next(iter(by_role.values()))[0],
            )  # fmt: skip
        for role, said in by_role.items():
            if missing := [kind.__name__ for kind in kinds if not any(isinstance(s, kind) for s in said)]:
                self._fail(
                    f"counts of {role}", "a CTA counted in, the others awaited, and it counted out",
                    f"no {', '.join(missing)}", "say count_in, await_count and count_out in the body",
                    said[0],
                )  # fmt: skip

    def _copy(
        self,
        s: t.Statement,
        source: t.Box | t.Span | t.Rows,
        target: t.View,
        operands: Mapping[str, OperandSpec],
    ) -> None:
        """A copy's source is declared, and the copy fills exactly the part of the slot that it names."""
        buffer = self._schedule.buffer(target.buffer)
        maps = {m.name: m for m in self._schedule.maps}
        what = f"copy into {buffer.name}"
        if not isinstance(source, t.Span):
            if source.map not in maps:
                fix = did_you_mean(source.map, [*maps]) if maps else "declare it in the schedule"
                self._fail(what, "a declared tensor map", source.map, fix, s)
            rank = len(maps[source.map].box)
            if isinstance(source, t.Box) and len(source.at) != rank:
                self._fail(
                    f"{what} by {source.map}", f"{rank} coordinates, outermost first", str(len(source.at)),
                    "name one an axis of the map", s,
                )  # fmt: skip
            return
        tensors = {name: spec for name, spec in operands.items() if spec.kind != "scalar"}
        what = f"span of {source.operand} {what}"
        if (spec := tensors.get(source.operand)) is None:
            self._fail(
                what, "a tensor of the problem", source.operand, did_you_mean(source.operand, [*tensors]), s
            )
        if source.dtype not in DTYPES:
            self._fail(what, "a dtype", source.dtype, did_you_mean(source.dtype, [*DTYPES]), s)
        if source.dtype != spec.dtype and spec.dtype != "uint8":
            self._fail(
                what, f"the operand's dtype, {spec.dtype}", source.dtype,
                "only bytes (uint8) are seen as another dtype: correct the span", s,
            )  # fmt: skip
        if source.dtype != buffer.dtype:
            self._fail(
                what, f"the buffer's dtype, {buffer.dtype}", source.dtype,
                "declare the buffer so, or correct the span", s,
            )  # fmt: skip
        inner = [extent for extent in spec.shape[1:] if isinstance(extent, int)]
        rows: set[int] = set()
        if len(inner) == len(spec.shape) - 1:
            size = DTYPES[spec.dtype].bytes
            rows = {math.prod(inner[i:]) * size // DTYPES[source.dtype].bytes for i in range(len(inner))}
        if rows and source.pitch not in rows:
            lengths = " or ".join(map(str, sorted(rows)))
            self._fail(
                what, f"rows of {lengths} elements, as the shape {spec.shape} says",
                f"a pitch of {source.pitch}", "correct the pitch", s,
            )  # fmt: skip
        end = source.column + source.count
        if not 0 <= source.column <= end <= source.pitch:
            self._fail(
                what, f"columns within a row of {source.pitch}", f"{source.column} to {end}",
                "correct column and count, or the pitch", s,
            )  # fmt: skip
        height, *others = buffer.shape
        filled = (target.rows or height) * (math.prod(others) if target.width is None else target.width)
        if source.count != filled:
            self._fail(
                what, f"{filled} elements, as many as are filled", str(source.count),
                "name a part of the slot by view.part(first, rows), or correct the count", s,
            )  # fmt: skip

    def _operands(self, operands: tuple[OperandSpec, ...]) -> None:
        """Every tensor map is used by a copy, every input read, and every output written."""
        sources = [source for _, s in self._statements for source, _ in s.loads()]
        copied = {source.map for source in sources if not isinstance(source, t.Span)}
        stored = {box.map for _, s in self._statements for box, _ in s.stores()}
        for tensor_map in self._schedule.maps:
            if tensor_map.name not in copied | stored:
                self._fail(
                    f"tensor map {tensor_map.name}", "a copy by it", "none",
                    "copy by it in a body, or remove it",
                )  # fmt: skip
        read = {m.operand for m in self._schedule.maps if m.name in copied} | {
            source.operand for source in sources if isinstance(source, t.Span)
        }
        written = {m.operand for m in self._schedule.maps if m.name in stored}
        writers: dict[str, t.Statement] = {}
        for _, s in self._statements:
            read |= s.reads()
            written |= s.writes()
            for name in s.writes():
                writers.setdefault(name, s)
        read |= set().union(*map(t.names_of, self._values.values()))
        read |= {n for e in (*self._schedule.grid, self._schedule.resident) for n in names_in(t.text_of(e))}
        for operand in operands:
            kind = {"in": "input", "out": "output"}.get(operand.kind, operand.kind)
            if operand.kind in ("out", "workspace") and operand.name not in written:
                self._fail(
                    f"{kind} {operand.name}", "a leaf that writes it", "none",
                    "store into it, and mark the leaf's parameter Writes",
                )  # fmt: skip
            if operand.kind == "in" and operand.name in written:
                self._fail(
                    f"input {operand.name}", "leaves that only read it", "one that writes it",
                    "declare it as an output", writers.get(operand.name),
                )  # fmt: skip
            # A leaf may only add to a zeroed operand, which is a write.
            if operand.kind != "out" and operand.name not in read and not operand.zeroed:
                self._fail(
                    f"{kind} {operand.name}", "a body that reads it", "none",
                    "read it in a body, or remove it from the problem",
                )  # fmt: skip

    def _start(self) -> None:
        """Barriers are initialised before their first use, and operands are accessed only after `depend`."""
        stands = sum(isinstance(s, t.BarriersStand) for _, s in self._statements)
        # The body of a lone role is executed by every thread, as the start is.
        roles = tuple(self._text.roles.values())
        top = (*self._text.start, *(roles[0] if len(roles) == 1 else ()))
        if self._schedule.pipelines and not (
            stands == 1 and any(isinstance(s, t.BarriersStand) for s in self._text.start)
        ):
            self._fail(
                "the start", "barriers_stand once, outside of branches and loops", f"{stands} of them",
                "say m.barriers_stand() in the start, before the first operation of a pipeline",
            )  # fmt: skip
        at = [i for i, s in enumerate(top) if isinstance(s, t.Depend)]
        early = [s for s in t.walk(top[: at[0]] if at else ()) if self._reads_global(s)]
        if early or len(at) > 1:
            self._fail(
                "the start", "depend once, before the first access to an operand",
                "an access before it" if early else "several",
                "move m.depend() to the front", early[0] if early else top[at[1]],
            )  # fmt: skip
        launches = sum(isinstance(s, t.LaunchDependents) for _, s in self._statements)
        waits = [s for s in top if isinstance(s, t.Depend)]
        after = top[at[0] :] if waits and not waits[0].launch else ()
        if launches and not launches == sum(isinstance(s, t.LaunchDependents) for s in after) == 1:
            self._fail(
                "the start",
                "launch_dependents once, outside of branches and loops, after depend(launch=False)",
                f"{launches} of them", "say it where this kernel has asked for what it waits for",
            )  # fmt: skip

    def _alias(self, buffer: Buffer, owner: Buffer) -> None:
        """Two buffers share storage only if one is used no more when the use of the other begins.

        The check does not know what a body means, so it is stricter than necessary: one role uses both
        buffers, all uses of one come before those of the other, no loop contains both, and the role's threads
        meet in between. The producer of the owner's slots is exempt: its reader has waited for the last slot.
        """
        fix = (
            "meet between the last use of one and the first of the other, "
            f"or give {buffer.name} storage of its own"
        )
        what = f"buffer {buffer.name} in the storage of {owner.name}"
        uses: list[tuple[str | None, Place, str]] = []
        meets: list[tuple[str | None, Place]] = []
        for role, part in self._parts.items():
            for place, s in _placed(part):
                uses += [(role, place, name) for name in s.touches() if name in (buffer.name, owner.name)]
                if (barrier := s.meets()) is not None and self._meets(role, barrier):
                    meets.append((role, place))
        ring = next((pipe for pipe in self._schedule.pipelines if owner.name in pipe.buffers), None)
        if ring and {role for role, _, name in uses if name == buffer.name} == {r.role for r in ring.readers}:
            uses = [use for use in uses if use[0] != ring.producer]
        roles = {role for role, _, _ in uses}
        if len(roles) > 1:
            self._fail(what, "one role that touches both", _names(roles), fix)
        changes = [i for i in range(1, len(uses)) if uses[i][2] != uses[i - 1][2]]
        if len(changes) != 1:
            self._fail(what, "the last use of one before the first use of the other", "uses in turn", fix)
        (_, last, _), (_, first, _) = uses[changes[0] - 1], uses[changes[0]]
        if any(self._is_loop(role, around) for role in roles for around in _shared(last, first)):
            self._fail(what, "no loop around the uses of both", "one that comes back to the first", fix)
        between = [
            place for _, place in meets
            if last < place < first and place[:-1] in (last[: len(place) - 1], first[: len(place) - 1])
        ]  # fmt: skip
        if not between:
            self._fail(what, "a barrier of the role between their uses", "none", fix)

    def _alias_in_tensor(self, buffer: Buffer, owner: Buffer) -> None:
        """Two buffers share columns only if the pipeline of each gives back the slot of the other.

        A role then fills one buffer only after all reads of the other have ended: threads commit after their
        reads, and tensor cores execute products in the order of issue. The interpreter checks that bodies
        keep this order.
        """
        one, other = (
            next((pipe for pipe in self._schedule.pipelines if b.name in pipe.buffers), None)
            for b in (buffer, owner)
        )
        if one is None or other is None or (one.returned_by, other.returned_by) != (other.name, one.name):
            pipes = (one, other)
            got = [f"{p.name} returned by {p.returned_by}" if p else "no pipeline" for p in pipes]
            self._fail(
                f"buffer {buffer.name} in the storage of {owner.name}",
                "pipelines that give each other's slots back", " and ".join(got),
                f"declare returned_by of both, or give {buffer.name} storage of its own",
            )  # fmt: skip

    def _meets(self, role: str | None, barrier: str) -> bool:
        return not barrier or role in self._schedule.named_barriers[barrier]

    def _reads_global(self, statement: t.Statement) -> bool:
        return any(isinstance(v, (t.Global, t.Box, t.Span, t.Rows)) for v in self._values[id(statement)])

    def _is_loop(self, role: str | None, place: Place) -> bool:
        innermost: Any = None
        block: Any = self._parts[role]
        for number, branch in place:
            innermost = block[number]
            block = getattr(innermost, branch)
        return innermost is not None and innermost.REPEATS


def _placed(statements: Iterable[t.Statement], around: Place = ()) -> Iterator[tuple[Place, t.Statement]]:
    for number, s in enumerate(statements):
        yield (*around, (number, "")), s
        for branch, block in s.blocks.items():
            yield from _placed(block, (*around, (number, branch)))


def _shared(a: Place, b: Place) -> Iterator[Place]:
    """The blocks that contain both places."""
    for end in range(1, min(len(a), len(b))):
        if a[:end] == b[:end]:
            yield a[:end]


def _names(roles: Iterable[str | None]) -> str:
    return ", ".join(sorted(role or "the start" for role in roles))
