"""Broken bodies: each change of a kernel's text must change what both DSLs print, and must be caught.

A mutant is caught by the plan (it does not render: a declared operation is missing), by the interpreter (it refuses the
body, deadlocks, or the result is wrong), or by the emulator, which sees what the interpreter cannot: threads of one role
that do not wait for one another. What survives all three is listed with the reason why it is no bug.
"""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import math
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sampling

from codegen.render import render
from codegen.sweep import Instance, frame
from dsl_kernels import programs, variants
from dsl_kernels.arch import ArchSpec, get_arch
from dsl_kernels.emulator import EmulatorError, interleavings
from dsl_kernels.errors import DslKernelError
from dsl_kernels.executors import Emulator, Interpreter
from dsl_kernels.problems.base import Workload
from dsl_kernels.tile import text as t
from dsl_kernels.tile.lang import Engine, Schedule, Space
from dsl_kernels.tile.program import TileProgram
from dsl_kernels.tile.uses import check_uses
from dsl_kernels.variants import Variant
from dsl_kernels.verification import trial

pytestmark = [pytest.mark.emulator, pytest.mark.compile]
DSLS = ("cutedsl", "tilelang")
INTERLEAVINGS = 6
# Of processor time: a mutant that takes longer goes round for ever, unless the text that is not broken took half as long.
SECONDS = 6.0

# Mutants of a structure that a run tries; TEST_ALL=1 tries all.
SAMPLE = 8
DOCS = Path(__file__).parents[2] / "docs" / "declaring.md"


@dataclass(frozen=True)
class Structure:
    """A schedule of each shape that a text has, and what its mutants run: workloads, with the launch dims that are not left to the rule."""

    name: str
    variant: str
    runs: tuple[tuple[Workload, Mapping[str, int]], ...]


def _workload(name: str, form: str, **params: Any) -> Workload:
    return Workload(name, "edge", form, params)


# Sizes of which no two are equal, so that a swapped argument shows.
DECODE = _workload(
    "distinct_decode",
    "decode",
    lens=[
        [5, 640, 7, 30, 9],
        [300, 1, 520, 8, 70],
        [0, 1, 2, 0, 1],
        [77, 2, 3, 4, 150],
        [1000, 64, 128, 6, 65],
        [4400, 4390, 4350, 90, 4300],
    ],
    heads=64,
    pages=120,
    spare_pages=2,
    skip_below=2,
)
# One sequence: dealt tile by tile, which the first workload is not, with three fetches of the block table a CTA.
ALONE = _workload("alone_decode", "decode", lens=[[13500, 13000, 9]], heads=64, pages=220, spare_pages=2)
PREFILL = _workload("distinct_prefill", "prefill", s=13, skv=390, heads=64, windows="ragged", skip_below=2)
# Rows that are taken whole, that fit in registers and that do not; ties, and more undecided keys than can be listed.
TIES = _workload(
    "ties_paged",
    "default",
    lens=[6101, 40, 300],
    k=70,
    scores="ties",
    starts=[3, 0, 17],
    page_size=64,
    pages=400,
)
BUCKET = _workload(
    "bucket_rows", "default", lens=[5003, 2100, 900], k=129, scores="bucket", starts=[1, 250, 6]
)
# Equal keys that are listed, and more than are ranked against each other.
TIED = _workload("tied_row", "default", lens=[2900], k=520, scores="ties")
EQUAL = _workload("equal_row", "default", lens=[4500], k=300, scores="outlier")
# A row that the registers of a cluster do not hold.
LONG = _workload(
    "long_row", "default", lens=[33001], k=260, scores="bucket", starts=[5], page_size=64, pages=600
)
# Scores close together in it: no column before the row's first, whose garbage would say otherwise.
LONG_NEAR = _workload("long_row_of_close_scores", "default", lens=[50003], k=300, scores="tight")
# Equal keys below zero, few and many, and a row taken whole whose positions count from column 0.
TIED_MANY = _workload("many_ties_below_zero", "default", lens=[1500], k=1000, scores="outlier")
TIED_LOW = _workload("tied_row_below_zero", "default", lens=[2900], k=2300, scores="ties")
# Short lists, and rounds over them that leave no key undecided.
DECIDED = _workload("decided_rows", "default", lens=[400, 370, 340, 310], k=20, scores="tight")
COLUMNS = _workload("columns_of_a_short_row", "default", lens=[40], k=70, starts=[17], absolute=1)
SELECTION = tuple(
    (workload, {}) for workload in (TIES, BUCKET, TIED, TIED_LOW, TIED_MANY, EQUAL, COLUMNS, DECIDED)
)
# With few CTAs, each takes more than one share of the work.
FEW = {"ctas": 3}
# A row of which the list that a sample gives will do, and rows that overflow it.
SAMPLED = _workload(
    "sampled_row", "default", lens=[20001, 4700], k=700, starts=[7, 2], page_size=64, pages=600
)
OVERFLOW = _workload(
    "overflowing_rows",
    "default",
    lens=[14011, 12203],
    k=1300,
    scores="levels",
    starts=[5, 41],
    page_size=64,
    pages=600,
)
# Rows whose sample is larger than all else: its list will not do. All else is more than can be listed; the ties of the sample
# are too few, or would do with what is listed beside them; a row that the registers hold is not listed at all.
MISLED = _workload("misled_rows", "default", lens=[14011, 9203], k=1300, scores="sampled_ties", starts=[5, 3])
MISLED_FEW = _workload("misled_row_of_few", "default", lens=[5003], k=130, scores="sampled_ties")
MISLED_HELD = _workload("misled_row_that_is_held", "default", lens=[3900], k=130, scores="sampled_ties")
# Ties that are looked for: over several batches, below larger keys; zeros, as what is not read would be; among columns before
# the row that hold the same score.
SHELF = _workload("ties_of_several_batches", "default", lens=[13007], k=2048, scores="shelf", starts=[9])
STEPS = _workload("ties_at_zero", "default", lens=[3400], k=2048, scores="steps", tail=1000)
AMONG = _workload(
    "equal_row_among_equals", "default", lens=[4500], k=100, scores="equal", starts=[17], garbage=False
)
LISTED = tuple(
    (workload, {}) for workload in (SAMPLED, OVERFLOW, MISLED, MISLED_FEW, MISLED_HELD, SHELF, STEPS, AMONG)
)


def _attention(
    form: str, heads: int, *splits: int, topk: int = 448
) -> tuple[tuple[Workload, Mapping[str, int]], ...]:
    """Holes leave the first tiles without a valid id, a tail the last ones; a call that is not split ends differently.

    Between pages of the first kind lie rows of none.

    Three splits have unequal shares of 16 heads to merge.
    """

    def ids(pattern: str, t: int) -> Workload:
        pages = {"page_size": 53} if pattern == "holes" else {}
        return _workload(
            f"{pattern}_{form}_h{heads}", form, t=t, heads=heads, topk=topk, n=700, sink=True, lse_scale=0.7, ids=pattern, **pages
        )  # fmt: skip

    return (
        *((ids("holes", 3), {"splits": each}) for each in splits),
        (ids("tail", 1), {"splits": splits[0]}),
    )


def _v4(heads: int, *splits: int) -> tuple[tuple[Workload, Mapping[str, int]], ...]:
    """Two scopes whose pages differ; lengths of both, of one query none of either."""
    sizes = {"heads": heads, "topk": 330, "n": 700, "sink": True, "lse_scale": 0.7, "v4_extra_topk": 250}
    return (
        *_attention("v4", heads, *splits),
        (
            _workload(
                f"lengths_v4_h{heads}", "v4", t=4, ids="holes", lengths=True, empty_lse=math.inf, page_size=53, **sizes
            ),
            {"splits": splits[0]},
        ),
    )  # fmt: skip


# Two CTAs for the pairs of tiles of three queries, in which one tile, both or none has a valid id: regardless of queries, and
# whole ones.
def _dealt(form: str, heads: int) -> tuple[tuple[Workload, Mapping[str, int]], ...]:
    islands = _workload(
        f"islands_{form}_h{heads}", form, t=3, heads=heads, topk=448, n=700, sink=True, lse_scale=0.7, ids="islands"
    )  # fmt: skip
    return tuple((islands, {"splits": splits, "ctas": 2}) for splits in (3, 1))


# Targets at and outside the times, equal times, targets in no order, rows of infinities; widths that a vector does not divide.
def _resampled(d: int, *more: Workload) -> tuple[tuple[Workload, Mapping[str, int]], ...]:
    def of(name: str, b: int, n: int, m: int, **how: Any) -> Workload:
        return _workload(f"{name}_d{d}", "default", b=b, n=n, m=m, d=d, **how)

    workloads = (
        of("distinct_sorted", 3, 1100, 150),
        of("distinct_mixed", 2, 777, 131, targets="mixed"),
        of("distinct_hostile", 2, 300, 290, targets="hostile", rows="specials"),
        of("distinct_repeated", 3, 260, 150, times="repeated", targets="hostile"),
        of("distinct_few", 2, 2, 5),
        *more,
    )
    return tuple((workload, {}) for workload in workloads)


# Targets so far apart that the times between them are not staged.
FAR = _workload("distinct_far", "default", b=2, n=12007, m=70, d=40, targets="mixed")


STRUCTURES = (
    Structure("scoring decode, Hopper", "lightning_indexer__cutedsl_sm90a__decode_h64_q8_t256_st4_c1_e0", ((DECODE, FEW), (ALONE, FEW))),
    Structure("scoring prefill, Hopper", "lightning_indexer__cutedsl_sm90a__prefill_h64_q8_t128_st4_c1_e0", ((PREFILL, {"splits": 2}),)),
    Structure("scoring decode, Blackwell", "lightning_indexer__cutedsl_sm100a__decode_h64_q8_t128_st6_c1_e0", ((DECODE, FEW), (ALONE, FEW))),
    Structure("scoring prefill, Blackwell", "lightning_indexer__cutedsl_sm100a__prefill_h64_q4_t128_st6_c1_e0", ((PREFILL, {"splits": 2}),)),
    Structure("selection, one CTA a row", "topk_selector__cutedsl_sm90a__g1_t512_r8_c1", SELECTION),
    Structure("selection, a sample of a row", "topk_selector__cutedsl_sm90a__g1_t512_r8_c1_s16", (*SELECTION, *LISTED)),
    Structure("selection, a cluster a row", "topk_selector__cutedsl_sm90a__g8_t512_r8_c1", (*SELECTION, (LONG, {}), (LONG_NEAR, {}))),
    Structure("attention bf16, Hopper", "sparse_mla__cutedsl_sm90a__h8_bf16_bt64_st2_cl2_sl2", _attention("bf16", 8, 8, 2, topk=640)),
    Structure("attention of whole rows fp8, Hopper", "sparse_mla__tilelang_sm90a__h16_fp8_bt64_st2_cl2", _attention("fp8", 16, 4, 2)),
    Structure("attention of whole rows bf16, Hopper", "sparse_mla__tilelang_sm90a__h8_bf16_bt64_st2_cl1", _attention("bf16", 8, 2, 1)),
    Structure("attention wide, Hopper", "sparse_mla__cutedsl_sm90a__h64_bf16_bt64_st2_cl1_hb64", (*_attention("bf16", 64, 2, 1), *_dealt("bf16", 64))),
    Structure("attention of DeepSeek-V4, Hopper", "sparse_mla__cutedsl_sm90a__h16_v4_bt64_st2_cl2", _v4(16, 4, 2)),
    Structure("attention of slices of DeepSeek-V4, Hopper", "sparse_mla__cutedsl_sm90a__h8_v4_bt64_st2_cl2_sl2", _v4(8, 4, 2)),
    Structure("attention exchanged of DeepSeek-V4, Hopper", "sparse_mla__cutedsl_sm90a__h128_v4_bt64_st2_cl1_hb64_ex2", (*_v4(128, 3, 1), *_dealt("v4", 128))),
    Structure("attention exchanged, Hopper", "sparse_mla__cutedsl_sm90a__h128_fp8_bt64_st2_cl1_hb64_ex2", (*_attention("fp8", 128, 2, 1), *_dealt("fp8", 128))),
    Structure("attention bf16, Blackwell", "sparse_mla__cutedsl_sm100a__h16_bf16_bt64_cl1_cp_async", _attention("bf16", 16, 2, 1)),
    Structure("attention of DeepSeek-V4, Blackwell", "sparse_mla__cutedsl_sm100a__h16_v4_bt64_cl1_cp_async", _v4(16, 3, 1)),
    Structure("resampling from global memory", "resample_trajectories__cutedsl_sm90a__global_n128_v1", _resampled(5)),
    Structure("resampling by a merge", "resample_trajectories__cutedsl_sm90a__merge_n128_v8", _resampled(40)),
    Structure("resampling of staged times", "resample_trajectories__cutedsl_sm90a__staged_n128_v8", _resampled(40)),
    Structure("resampling by a warp", "resample_trajectories__cutedsl_sm90a__warp_n128_v8", _resampled(40)),
    Structure("resampling of a window", "resample_trajectories__cutedsl_sm90a__window_n128_v8", _resampled(40, FAR)),
    Structure("attention fp8, Blackwell", "sparse_mla__cutedsl_sm100a__h16_fp8_bt64_cl1_cp_async", _attention("fp8", 16, 3, 1)),
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    name: str
    text: t.Text


class Written(TileProgram):
    """A program whose text is given."""

    given: t.Text

    def text(self, knobs: Mapping[str, Any], arch: ArchSpec) -> t.Text:
        operands = self.declared_operands(knobs)
        check_uses(self.op, knobs, self.schedule(knobs, arch), self.given, operands)
        return self.given


def written(program: TileProgram, text: t.Text) -> TileProgram:
    values = {field.name: getattr(program, field.name) for field in dataclasses.fields(program)}
    found = Written(**values)
    object.__setattr__(found, "given", text)
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
    if isinstance(s, t.PipelineOp):
        return f"{s.kind} {s.slot.pipeline.name}"
    if isinstance(s, t.Call):
        return s.leaf.name
    return type(s).__name__.lower() + (f" {s.name}" if isinstance(s, (t.Meet, t.Publish)) and s.name else "")


def changes(block: list[t.Statement], i: int, shared: set[str]) -> Iterator[tuple[str, list[t.Statement]]]:
    """The ways in which statement `i` of a block is broken: what a slip of the one who writes a body looks like."""
    s, before, after = block[i], block[:i], block[i + 1 :]
    # A bulk fill has one arrival, which a DSL makes where it announces the bytes or behind the copies.
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
    """Whether a barrier has the same shared memory on both sides, up to the next barrier."""
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
    """Whether an operation comes too late behind a statement. A slot that is let go of later than it could be is no bug, unless
    letting go waits for the role's own asynchronous reads, whose results the statement uses."""
    if op.kind in ("acquire", "wait"):
        return touches(behind, op)
    engines = {r.role: r.engine for r in op.slot.pipeline.readers}
    waits = op.kind == "release" and engines[op.slot.role] in (Engine.WGMMA, Engine.TMEM)
    return waits and isinstance(behind, t.Call)


def early(op: t.PipelineOp, before: t.Statement) -> bool:
    """Whether an operation comes too early before a statement. A slot that is taken earlier than it need be is no bug."""
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
    """What a DSL prints of it; None where it does not spell one of its leaves or products."""
    arch = get_arch(variant.arch)
    template = frame(dsl)
    try:
        return render(Instance(program, dsl, arch, dict(variant.knobs), template))
    except DslKernelError as error:
        if "leaf" in str(error) or "product" in str(error):
            return None
        raise


class TakesTooLong(Exception):
    """A mutant that goes round for ever."""


def _stop(signum: int, frame: Any) -> None:
    raise TakesTooLong


def interpreted(
    program: TileProgram, variant: Variant, structure: Structure, seconds: float = SECONDS
) -> str | None:
    """How the interpreter caught a mutant within so many seconds of processor time, or None."""
    original = programs.get
    signal.signal(signal.SIGPROF, _stop)
    # Again and again: raised inside a finaliser, an exception is lost.
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)
    try:
        programs.get = lambda op: program if op == variant.op else original(op)  # type: ignore[assignment]
        for workload, launch in structure.runs:
            example = trial.cached_example(variant.op, workload)
            result = trial.run(variant, workload, Interpreter(seed=3), example=example, launch=launch)
            if not result.comparison.ok:
                return result.comparison.failures[0]
    except (
        DslKernelError,
        RuntimeError,
        IndexError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        ZeroDivisionError,
        TakesTooLong,
    ) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        programs.get = original  # type: ignore[assignment]
    return None


def emulated(text: str, variant: Variant, structure: Structure, folder: Path) -> str | None:
    """How the compiler or the emulator caught a mutant, as the variant's DSL prints it, or None."""
    module = importlib.import_module(f"dsl_kernels.backends.{variant.backend}")
    path = folder / f"{variant.id}.py"
    path.write_text(text)
    try:
        module.compile_module(path, variant.arch, folder)
    except DslKernelError as error:
        return f"does not compile: {error}"
    ptx = (folder / "kernel.ptx").read_text()
    for interleaving, (workload, launch) in itertools.product(interleavings(INTERLEAVINGS), structure.runs):
        example = trial.cached_example(variant.op, workload)
        executor = Emulator(interleaving, edit=lambda _: ptx, strict=True)
        try:
            result = trial.run(variant, workload, executor, example=example, launch=launch)
        except EmulatorError as error:
            return str(error)
        if not result.comparison.ok:
            return result.comparison.failures[0]
    return None


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant: who caught it and how; nobody where it survives."""

    mutant: str
    by: str
    how: str


def outcomes(structure: Structure, folder: Path, most: int) -> Iterator[Outcome]:
    """The mutants of a structure, a sample of at most `most` of them.

    Raises:
        AssertionError: a mutant prints in a DSL as the original does.
    """
    variant = variants.get(structure.variant)
    program, arch = programs.get(variant.op), get_arch(variant.arch)
    before = {dsl: printed(program, variant, dsl) for dsl in DSLS}
    began = time.process_time()
    assert interpreted(program, variant, structure, seconds=20 * SECONDS) is None
    seconds = max(SECONDS, 2 * (time.process_time() - began))
    found = list(mutants(program.text(variant.knobs, arch), program.schedule(variant.knobs, arch)))
    for number in sampling.sample(range(len(found)), most, structure.name):
        mutant = found[number]
        broken = written(program, mutant.text)
        try:
            after = {dsl: printed(broken, variant, dsl) for dsl in DSLS}
        except DslKernelError as error:
            yield Outcome(mutant.name, "plan", str(error))
            continue
        for dsl in DSLS:
            assert after[dsl] != before[dsl] or before[dsl] is None, (mutant.name, dsl)
        how = interpreted(broken, variant, structure, seconds)
        if how is not None:
            yield Outcome(mutant.name, "interpreter", how)
            continue
        nth = sum(other.name == mutant.name for other in found[: number + 1])
        if (reason := explained(structure.name, mutant.name, nth)) is not None:
            yield Outcome(mutant.name, "nobody", reason)
            continue
        how = emulated(after[variant.backend] or "", variant, structure, folder)
        yield Outcome(mutant.name, "nobody" if how is None else "emulator", how or "unexplained")


@dataclass(frozen=True)
class Only:
    """A reason that holds of some mutants of a name: of which ones, counted from 1, in each structure."""

    reason: str
    places: Mapping[str, tuple[int, ...]]


ONE, CLUSTER = "selection, one CTA a row", "selection, a cluster a row"
SAMPLED_ROW = "selection, a sample of a row"
FEW_SEQUENCES = "of at most 32 sequences, as here, the lanes have been given what each has to score"
ANY_SAMPLE = "whatever the sample was like: a list that will not do sends the row through the histogram"
PART = "a part lies at row * splits + part, a product of the two"
ABOVE = "every key of that list lies above the range, and none is looked at further"
NO_PAGES = "a sampled row has no entries of the page table at hand, which any two numbers say"
FETCHED = "no bit depends on what the L2 holds"
NARROWER = "the range of what the list holds saves rounds, and no result depends on it"
OTHER_TILE = "of the other side's tile it asks only whether there is a valid id"
RESAMPLING = (
    "resampling from global memory",
    "resampling by a merge",
    "resampling of staged times",
    "resampling by a warp",
    "resampling of a window",
)
NO_RINGS = Only(
    "no pipeline has barriers, and nothing waits for their standing", dict.fromkeys(RESAMPLING, (1,))
)
# What may survive, and why the kernel is still the same one.
EXPLAINED: dict[str, str | Only] = {
    "max_pages and line of write_ids": "an entry lies at line * max_pages + page, a product of the two",
    "end and span of pick_bin": Only("the first round reads neither", {ONE: (1,), SAMPLED_ROW: (1, 3)}),
    "end and span of pick_bin_of_group": "the first round reads neither",
    "half and near of pick_bin_of_group": "both are nought in every round but the first",
    "lower and end of pick_bin_of_group": "the first round reads neither",
    "mma: one more of i": "each product of a round is guarded",
    "one more of turn": "a turn behind the last one finds no valid id, and a tile without one is skipped",
    "release scores behind load_weights": "the weights do not come from what the release waits for",
    "select: meet before clear": "what is cleared is used a round later, behind further barriers",
    "mma: low and high of vote": "it asks only whether there is a valid id in either half",
    "gather: low and high of vote": "a gather asks only whether there is a valid id in either half",
    "producer: low and high of vote": "a gather asks only whether there is a valid id in either half",
    "unpack: low and high of vote": "who unpacks asks only whether there is a valid id in either half",
    "unpack: high and cached of vote": "who unpacks asks only whether there is a valid id",
    "gather_left: low and high of vote": "a gather asks only whether there is a valid id in either half",
    "gather_right: low and high of vote": "a gather asks only whether there is a valid id in either half",
    "ids and n of fetch_half": FETCHED,
    **{
        f"{first} and {second} of fetch_v4_half": FETCHED
        for first, second in itertools.pairwise(("ids", "cached", "page_inverse", "page_shift", "page_size"))
    },
    "gather: high and cached of vote": "a gather asks only whether there is a valid id",
    "gather_left: high and cached of vote": "a gather asks only whether there is a valid id",
    "gather_right: high and cached of vote": "a gather asks only whether there is a valid id",
    "left: low and high of vote": OTHER_TILE,
    "right: low and high of vote": OTHER_TILE,
    "left: high and cached of vote": OTHER_TILE,
    "right: high and cached of vote": OTHER_TILE,
    "left: release kv_right behind rescale_rows": "P, which is let go before, has waited for the product",
    "right: release kv_left behind rescale_rows": "P, which is let go before, has waited for the product",
    "stride and start of load_sample": ANY_SAMPLE,
    "start and last of load_sample": ANY_SAMPLE,
    "last and every of load_sample": ANY_SAMPLE,
    "every and warp of load_sample": ANY_SAMPLE,
    "b and next_n of find_share": FEW_SEQUENCES,
    "next_n and skip_below of find_share": FEW_SEQUENCES,
    "warp and cta_warps of load_sample": ANY_SAMPLE,
    "column and lo of make_keys": Only(ANY_SAMPLE, {SAMPLED_ROW: (1,)}),
    "lo and hi of make_keys": Only(f"{ANY_SAMPLE}; and where no tie is found, too", {SAMPLED_ROW: (1, 2)}),
    "left: accumulate": "the first product of a query adds to zeros",
    "not (!= has_lengths 0)": "the lengths that stand for none are longer than any row of ids, and say the same",
    "release q behind share_sums": "the queries' memory goes back a little later",
    "right: release far_left behind rescale_rows": "O lies in registers: the slot goes back a little later",
    "select: not (> inside 384)": NARROWER,
    "left: row and splits of leave_part": PART,
    "right: row and splits of leave_part": PART,
    "left: row and splits of merge_parts": PART,
    "right: row and splits of merge_parts": PART,
    "start: not (== splits 1)": "whole queries or shares of them: either way each unit is dealt once",
    "select: end and span of bound_listed": Only(
        "before the rounds, no key in the range costs a round, and the state of the one before holds",
        {ONE: (1,), CLUSTER: (1,)},
    ),
    "dense and keep of place_marks": Only(
        "a number that is known beforehand says that no bitmap is dense, and either way positions ascend",
        {ONE: (1,), CLUSTER: (1,), SAMPLED_ROW: (1,)},
    ),
    "target and end of sift": Only(ABOVE, {SAMPLED_ROW: (1,)}),
    "span and inside of sift": Only(ABOVE, {SAMPLED_ROW: (1,)}),
    "inside and ranked of sift": Only(ABOVE, {SAMPLED_ROW: (1,)}),
    "cta_warps and words of sift": Only(
        "positions of a sampled row lie in one run of words", {SAMPLED_ROW: (1,)}
    ),
    "pages and first_page of write_ids": Only(NO_PAGES, {SAMPLED_ROW: (1,)}),
    "first_page and group of write_ids": Only(NO_PAGES, {SAMPLED_ROW: (1,)}),
    "start: drop barriersstand": NO_RINGS,
    "start: twice barriersstand": NO_RINGS,
    "left and targets of blend": "it takes the lesser of the two",
    "drop depend": "without it a launch waits for the whole kernel before it",
}


def explained(structure: str, mutant: str, nth: int) -> str | None:
    """Why nothing need catch the `nth` mutant of its name in a structure, or None."""
    reason = EXPLAINED.get(mutant, EXPLAINED.get(mutant.partition(": ")[2]))
    if isinstance(reason, Only):
        return reason.reason if nth in reason.places.get(structure, ()) else None
    return reason


CATCHERS = ("plan", "interpreter", "emulator", "nobody")


@pytest.mark.parametrize("structure", STRUCTURES, ids=lambda s: s.name.replace(", ", "-").replace(" ", "_"))
def test_every_broken_body_is_caught(structure: Structure, tmp_path: Path) -> None:
    found = list(outcomes(structure, tmp_path, SAMPLE))
    unexplained = [o for o in found if o.how == "unexplained"]
    assert not unexplained
    if sampling.ALL:
        counts = Counter(o.by for o in found)
        numbers = (len(found), *(counts[by] for by in CATCHERS))
        row = f"| {structure.name} | {' | '.join(map(str, numbers))} |"
        assert row in DOCS.read_text(), f"put this row into {DOCS.name}: {row}"


def mutants_of(structure: Structure) -> Iterator[Mutant]:
    variant = variants.get(structure.variant)
    program, arch = programs.get(variant.op), get_arch(variant.arch)
    return mutants(program.text(variant.knobs, arch), program.schedule(variant.knobs, arch))


def test_the_structures_have_mutants_enough() -> None:
    """A search of resampling has a few statements and no pipeline."""
    for structure in STRUCTURES:
        assert sum(1 for _ in mutants_of(structure)) >= (17 if structure.name in RESAMPLING else 40)
