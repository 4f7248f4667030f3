"""Broken bodies: each change of a kernel's text must change what both DSLs print, and must be caught.

A mutant is caught by the plan (it does not render: a declared step is missing), by the interpreter (it refuses the
body, deadlocks, or the result is wrong), or by the emulator, which sees what the interpreter cannot: threads of one role
that do not wait for one another. What survives all three is listed with the reason why it is no bug.
"""

from __future__ import annotations

import dataclasses
import itertools
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from codegen.render import render
from codegen.sweep import Candidate, frame
from dsl_kernels import programs, trial, variants
from dsl_kernels.arch import ArchSpec, get_arch
from dsl_kernels.emulator import EmulatorError, schedules
from dsl_kernels.errors import DslKernelError
from dsl_kernels.executors import Emulator, Interpreter
from dsl_kernels.problems.base import Workload
from dsl_kernels.tile import text as t
from dsl_kernels.tile.lang import Engine, Schedule, TileProgram
from dsl_kernels.variants import Variant

pytestmark = [pytest.mark.emulator, pytest.mark.compile]
DSLS = ("cutedsl", "tilelang")
SCHEDULES = 6
SECONDS = 5.0
FEW_SMS = 2

# Sizes of which no two are equal, so that a swapped argument shows.
DECODE = Workload(
    "distinct_decode",
    "edge",
    "decode",
    {
        "lens": [[5, 640, 7], [300, 1, 520], [0, 1, 2], [699, 64, 128], [4400, 4390, 4350]],
        "heads": 64,
        "pages": 120,
        "spare_pages": 2,
        "skip_below": 2,
    },
)
# One sequence: dealt tile by tile, which the first workload is not, with three fetches of the block table a CTA.
ALONE = Workload(
    "alone_decode", "edge", "decode", {"lens": [[12000]], "heads": 64, "pages": 190, "spare_pages": 2}
)
# A schedule of each structure, the workloads that its mutants run, and the splits where the call decides.
STRUCTURES = (
    ("lightning_indexer__cutedsl_sm90a__decode_h64_q8_t256_st4_c1_e0", (DECODE, ALONE), 0),
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    name: str
    text: t.Text


class Written(TileProgram):
    """A program whose text is given, on a GPU of `sms` SMs: with few, a CTA takes more than one share of the work."""

    given: t.Text | None = None
    sms: int | None = None

    def _gpu(self, arch: ArchSpec) -> ArchSpec:
        return dataclasses.replace(arch, sms=self.sms) if self.sms else arch

    def schedule(self, knobs: Mapping[str, Any], arch: ArchSpec) -> Schedule:
        return super().schedule(knobs, self._gpu(arch))

    def text(self, knobs: Mapping[str, Any], arch: ArchSpec) -> t.Text:
        return self.given or super().text(knobs, self._gpu(arch))


def written(program: TileProgram, sms: int | None, text: t.Text | None = None) -> TileProgram:
    values = {field.name: getattr(program, field.name) for field in dataclasses.fields(program)}
    found = Written(**values)
    object.__setattr__(found, "given", text)
    object.__setattr__(found, "sms", sms)
    return found


def blocks(
    statements: Any, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], list[t.Statement]]]:
    """Every list of statements, with the way to it."""
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
    if isinstance(s, t.Step):
        return f"{s.kind} {s.slot.pipeline.name}"
    if isinstance(s, t.Call):
        return s.leaf.name
    return type(s).__name__.lower() + (f" {s.name}" if isinstance(s, (t.Meet, t.Publish)) and s.name else "")


def changes(block: list[t.Statement], i: int) -> Iterator[tuple[str, list[t.Statement]]]:
    """The ways in which statement `i` of a block is broken: what a slip of the one who writes a body looks like."""
    s, before, after = block[i], block[:i], block[i + 1 :]
    # A bulk fill has one arrival, which a DSL makes where it announces the bytes or behind the copies.
    placed = isinstance(s, t.Step) and not (s.kind == "commit" and s.slot.pipeline.fill is Engine.BULK)
    synchronises = isinstance(s, (t.Step, t.Meet, t.Publish, t.ClusterArrive, t.ClusterWait))
    if synchronises or isinstance(s, (t.AwaitProducts, t.TakeTicket)):
        yield f"drop {label(s)}", before + after
    if placed:
        yield f"twice {label(s)}", [*before, s, s, *after]
    if placed and after and isinstance(after[0], (t.Step, t.Call, t.Bulk, t.Multiply)):
        yield f"{label(s)} behind {label(after[0])}", [*before, after[0], s, *after[1:]]
    if isinstance(s, t.Loop) and isinstance(s.end, t.Expr):
        yield f"one more of {s.index}", [*before, dataclasses.replace(s, end=s.end + 1), *after]
        yield f"one less of {s.index}", [*before, dataclasses.replace(s, end=s.end - 1), *after]
    if isinstance(s, t.If):
        negated = t.Expr("==", (s.condition, False), "bool")
        yield "the other branch", [*before, dataclasses.replace(s, condition=negated), *after]
    if isinstance(s, t.Multiply):
        flipped = tuple(dataclasses.replace(p, accumulate=not p.accumulate) for p in s.products)
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


def _thread(call: t.Call, position: int) -> bool:
    return call.leaf.parameters[position][0] in ("thread", "lane")


def mutants(text: t.Text) -> Iterator[Mutant]:
    parts: dict[str | None, tuple[t.Statement, ...]] = {None: text.start, **text.roles}
    for role, statements in parts.items():
        for path, block in blocks(statements):
            for i in range(len(block)):
                for name, changed in changes(block, i):
                    new = tuple(replaced(statements, path, changed))
                    whole = (
                        t.Text(new, text.roles)
                        if role is None
                        else t.Text(text.start, {**text.roles, role: new})
                    )
                    yield Mutant(f"{role or 'start'}: {name}", whole)


def printed(program: TileProgram, variant: Variant, dsl: str) -> str | None:
    """What a DSL prints of it; None where it does not spell one of its leaves."""
    arch = get_arch(variant.arch)
    template = frame(dsl)
    try:
        return render(Candidate(program, dsl, arch, dict(variant.knobs), template))
    except DslKernelError as error:
        if "leaf" in str(error):
            return None
        raise


class TakesTooLong(Exception):
    """A mutant that goes round for ever."""


def _stop(signum: int, frame: Any) -> None:
    raise TakesTooLong


def interpreted(
    program: TileProgram, variant: Variant, workloads: tuple[Workload, ...], launch: dict[str, int]
) -> str | None:
    """How the interpreter caught a mutant, or None."""
    original = programs.get
    signal.signal(signal.SIGALRM, _stop)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        programs.get = lambda op: program if op == variant.op else original(op)  # type: ignore[assignment]
        for workload in workloads:
            case = trial.cached_case(variant.op, workload)
            result = trial.run(variant, workload, Interpreter(seed=3), case=case, launch=launch)
            if not result.comparison.ok:
                return result.comparison.failures[0]
    except (
        DslKernelError,
        RuntimeError,
        IndexError,
        ValueError,
        TypeError,
        KeyError,
        ZeroDivisionError,
        TakesTooLong,
    ) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        programs.get = original  # type: ignore[assignment]
    return None


def emulated(
    text: str, variant: Variant, workloads: tuple[Workload, ...], launch: dict[str, int], folder: Any
) -> str | None:
    """How the compiler or the emulator caught a mutant of CuTe DSL, or None."""
    from dsl_kernels.backends import cutedsl

    path = folder / f"{variant.id}.py"
    path.write_text(text)
    try:
        cutedsl.compile_module(path, variant.arch, folder)
    except DslKernelError as error:
        return f"does not compile: {error}"
    ptx = (folder / "kernel.ptx").read_text()
    for workload, schedule in itertools.product(workloads, schedules(SCHEDULES)):
        case = trial.cached_case(variant.op, workload)
        executor = Emulator(schedule, edit=lambda _: ptx, strict=True)
        try:
            result = trial.run(variant, workload, executor, case=case, launch=launch)
        except EmulatorError as error:
            return str(error)
        if not result.comparison.ok:
            return result.comparison.failures[0]
    return None


def survey(
    name: str,
    workloads: tuple[Workload, ...],
    splits: int,
    emulate: Callable[..., str | None] | None,
    folder: Any,
) -> tuple[Counter[str], list[str]]:
    """(mutants by what caught them, those that nothing caught)."""
    variant = variants.get(name)
    program, arch = programs.get(variant.op), get_arch(variant.arch)
    before = {dsl: printed(program, variant, dsl) for dsl in DSLS}
    launch = {"splits": splits} if splits else {}
    few = written(program, FEW_SMS)
    assert interpreted(few, variant, workloads, launch) is None
    caught: Counter[str] = Counter()
    survivors = []
    for small, full in zip(
        mutants(few.text(variant.knobs, arch)), mutants(program.text(variant.knobs, arch)), strict=True
    ):
        broken = written(program, None, full.text)
        try:
            after = {dsl: printed(broken, variant, dsl) for dsl in DSLS}
        except DslKernelError:
            caught["plan"] += 1
            continue
        for dsl in DSLS:
            assert after[dsl] != before[dsl] or before[dsl] is None, (full.name, dsl)
        if interpreted(written(program, FEW_SMS, small.text), variant, workloads, launch) is not None:
            caught["interpreter"] += 1
        elif (
            emulate is not None and emulate(after["cutedsl"], variant, workloads, launch, folder) is not None
        ):
            caught["emulator"] += 1
        else:
            survivors.append(full.name)
    return caught, survivors


# What may survive, and why the kernel is still the same one.
EXPLAINED = {
    "max_pages and row of table_entries": "an entry lies at row * max_pages + page, a product of the two",
}


@pytest.mark.parametrize(
    ("name", "workloads", "splits"),
    STRUCTURES,
    ids=[name.partition("__cutedsl_")[2] for name, *_ in STRUCTURES],
)
def test_every_broken_body_is_caught(
    name: str, workloads: tuple[Workload, ...], splits: int, tmp_path: Path
) -> None:
    caught, survivors = survey(name, workloads, splits, emulated, tmp_path)
    assert caught.total() + len(survivors) >= 80, caught
    assert {survivor.partition(": ")[2] for survivor in survivors} <= EXPLAINED.keys(), (caught, survivors)
