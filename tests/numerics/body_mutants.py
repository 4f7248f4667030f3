"""Broken bodies: the ways in which a kernel's text is broken, and the program that runs a mutant of it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from codegen.render import render
from codegen.sweep import Instance, frame
from dsl_kernels.arch import ArchSpec, get_arch
from dsl_kernels.errors import DslKernelError
from dsl_kernels.tile import text as t
from dsl_kernels.tile.lang import Engine, Schedule, Space
from dsl_kernels.tile.program import TileProgram
from dsl_kernels.tile.uses import check_uses
from dsl_kernels.variants import Variant
from dsl_kernels_lab.oracles import Workload


@dataclass(frozen=True)
class Structure:
    """One schedule of each structure, its mutants' workloads, and launch dims that override the rule."""

    name: str
    variant: str
    runs: tuple[tuple[Workload, Mapping[str, int]], ...]


def workload(name: str, form: str, **params: Any) -> Workload:
    return Workload(name, "edge", form, params)


@dataclass(frozen=True)
class Only:
    """A reason that holds for some mutants of a name only: their numbers, from 1, in each structure."""

    reason: str
    places: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Mutant:
    name: str
    text: t.Text


class Written(TileProgram):
    """A program with a given text."""

    given: t.Text

    def text(self, knobs: Mapping[str, Any], arch: ArchSpec) -> t.Text:
        operands = self.declared_operands(knobs)
        check_uses(self.op, knobs, self.schedule(knobs, arch), self.given, operands)
        return self.given


def written(program: TileProgram, text: t.Text) -> TileProgram:
    values = {field.name: getattr(program, field.name) for field in dataclasses.fields(program)}
    mutant = Written(**values)
    object.__setattr__(mutant, "given", text)
    return mutant


def blocks(
    statements: Any, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], list[t.Statement]]]:
    """Every list of statements, with its path."""
    yield path, list(statements)
    for i, s in enumerate(statements):
        if isinstance(s, (t.Loop, t.Repeat, t.If)):
            yield from blocks(s.body, (*path, (i, "body")))
        if isinstance(s, t.If):
            yield from blocks(s.orelse, (*path, (i, "orelse")))


def replaced(statements: Any, path: tuple[Any, ...], block: list[t.Statement]) -> list[t.Statement]:
    """The statements with the block at the end of `path` replaced."""
    if not path:
        return block
    (i, name), *rest = path
    inner = replaced(getattr(statements[i], name), tuple(rest), block)
    return [*statements[:i], dataclasses.replace(statements[i], **{name: inner}), *statements[i + 1 :]]


def label(s: t.Statement) -> str:
    if isinstance(s, t.PipelineOp):
        return f"{s.kind} {s.slot.pipeline.name}"
    if isinstance(s, t.Call):
        return s.leaf.name
    return type(s).__name__.lower() + (f" {s.name}" if isinstance(s, (t.Meet, t.Publish)) and s.name else "")


def changes(block: list[t.Statement], i: int, shared: set[str]) -> Iterator[tuple[str, list[t.Statement]]]:
    """The ways in which statement `i` of a block is broken: typical slips of an author."""
    s, before, after = block[i], block[:i], block[i + 1 :]
    # A bulk fill has one arrival; a DSL makes it where it expects the bytes, or after the copies.
    placed = isinstance(s, t.PipelineOp) and not (s.kind == "commit" and s.slot.pipeline.fill is Engine.BULK)
    barrier = isinstance(s, BARRIERS)
    if (
        isinstance(
            s, (t.PipelineOp, t.AwaitProducts, t.TakeTicket, *COUNTS, t.BarriersStand, t.Depend, t.TearDown)
        )
        or barrier
    ):
        yield f"drop {label(s)}", before + after
    if isinstance(s, t.CountIn) and before:
        yield f"{label(s)} before {label(before[-1])}", [*before[:-1], s, before[-1], *after]
    if isinstance(s, t.AwaitCount) and after:
        yield f"{label(s)} behind {label(after[0])}", [*before, after[0], s, *after[1:]]
    if placed or isinstance(s, (t.ClusterArrive, t.ClusterWait, t.BarriersStand)):
        yield f"twice {label(s)}", [*before, s, s, *after]
    if after and (late(s, after[0]) if placed else barrier and ordered(before[::-1], after[:1], shared)):
        yield f"{label(s)} behind {label(after[0])}", [*before, after[0], s, *after[1:]]
    if before and (early(s, before[-1]) if placed else barrier and ordered(before[-1:], after, shared)):
        yield f"{label(s)} before {label(before[-1])}", [*before[:-1], s, before[-1], *after]
    if isinstance(s, t.PipelineOp) and s.at is not None:
        yield f"the next CTA's {label(s)}", [*before, dataclasses.replace(s, at=s.at + 1), *after]
    if isinstance(s, t.Loop) and isinstance(s.end, t.Expr):
        yield f"one more of {s.index}", [*before, dataclasses.replace(s, end=s.end + 1), *after]
        yield f"one less of {s.index}", [*before, dataclasses.replace(s, end=s.end - 1), *after]
    if isinstance(s, t.If):
        yield (
            f"not {spelled(s.condition)}",
            [*before, dataclasses.replace(s, condition=negated(s.condition)), *after],
        )
    if isinstance(s, t.Multiply):
        flipped = tuple(dataclasses.replace(p, accumulate=negated(p.accumulate)) for p in s.products)
        yield "accumulate", [*before, dataclasses.replace(s, products=flipped), *after]
    if isinstance(s, t.Call):
        numbers = [
            j for j, a in enumerate(s.arguments) if isinstance(a, (int, t.Expr)) and j not in s.leaf.results
        ]
        for a, b in itertools.pairwise(numbers):
            if repr(s.arguments[a]) != repr(s.arguments[b]) and not _thread(s, a) and not _thread(s, b):
                swapped = list(s.arguments)
                swapped[a], swapped[b] = swapped[b], swapped[a]
                names = f"{s.leaf.parameters[a][0]} and {s.leaf.parameters[b][0]}"
                yield (
                    f"{names} of {label(s)}",
                    [*before, dataclasses.replace(s, arguments=tuple(swapped)), *after],
                )


BARRIERS = (t.Meet, t.Publish, t.ClusterArrive, t.ClusterWait)
COUNTS = (t.CountIn, t.AwaitCount, t.CountOut)


def ordered(before: list[t.Statement], after: list[t.Statement], shared: set[str]) -> bool:
    """Whether the statements on both sides of a barrier, up to the next ones, use the same shared memory."""
    touched: list[set[str]] = []
    for side in (before, after):
        near = itertools.takewhile(lambda s: not isinstance(s, BARRIERS), side)
        views = [v for s in near for v in t.values(s) if isinstance(v, (t.View, t.Cluster))]
        touched.append({v.buffer for v in views} & shared)
    return bool(touched[0] & touched[1])


def touches(s: t.Statement, op: t.PipelineOp) -> bool:
    """Whether a statement is an operation of the same pipeline, or reads or writes one of its buffers."""
    views = {value.buffer for value in t.values(s) if isinstance(value, t.View)}
    if isinstance(s, t.PipelineOp):
        return s.slot.pipeline.name == op.slot.pipeline.name
    return bool(views & set(op.slot.pipeline.buffers))


def late(op: t.PipelineOp, behind: t.Statement) -> bool:
    """Whether an operation after this statement comes too late. A late release is no bug, unless the release
    waits for the role's own asynchronous reads and the statement uses their results."""
    if op.kind in ("acquire", "wait"):
        return touches(behind, op)
    engines = {r.role: r.engine for r in op.slot.pipeline.readers}
    waits = op.kind == "release" and engines[op.slot.role] in (Engine.WGMMA, Engine.TMEM)
    return waits and isinstance(behind, t.Call)


def early(op: t.PipelineOp, before: t.Statement) -> bool:
    """Whether an operation before this statement comes too early. An early acquisition is no bug."""
    return op.kind in ("commit", "release") and touches(before, op)


def spelled(value: t.Value) -> str:
    if not isinstance(value, t.Expr) or value.op in ("name", "in_role"):
        return str(value.args[0] if isinstance(value, t.Expr) else value)
    return f"({value.op} {' '.join(map(spelled, value.args))})"


def negated(value: t.Value) -> t.Value:
    return t.Expr("==", (value, False), "bool") if isinstance(value, t.Expr) else not value


def _thread(call: t.Call, position: int) -> bool:
    return call.leaf.parameters[position][0] in t.AMBIENT


def mutants(text: t.Text, schedule: Schedule) -> Iterator[Mutant]:
    shared = {b.name for b in schedule.buffers if b.space is Space.SHARED}
    for role, statements in text.parts.items():
        for path, block in blocks(statements):
            for i in range(len(block)):
                for name, changed in changes(block, i, shared):
                    new = tuple(replaced(statements, path, changed))
                    yield Mutant(f"{role}: {name}", with_part(text, role, new))


def with_part(text: t.Text, name: str, statements: tuple[t.Statement, ...]) -> t.Text:
    """The text with one of its parts replaced."""
    if name in text.roles:
        return dataclasses.replace(text, roles={**text.roles, name: statements})
    return dataclasses.replace(text, **{name: statements})


def printed(program: TileProgram, variant: Variant, dsl: str) -> str | None:
    """The module that a DSL prints for the program; None if it lacks a spelling for a leaf or a product."""
    arch = get_arch(variant.arch)
    template = frame(dsl)
    try:
        return render(Instance(program, dsl, arch, dict(variant.knobs), template))
    except DslKernelError as error:
        if "leaf" in str(error) or "product" in str(error):
            return None
        raise
