"""Templates to module text: one Jinja environment, and pipelines that a template can use but not misspell.

A template writes `{{ pipe.kv.wait("mma", "it") }}` where the role waits for the `it`-th use of pipeline kv; the
actions, counts and parities come from the barrier plan, their spelling from the backend's `_actions.j2`. Rendering
fails when a declared step is missing from the template or an undeclared one is used.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2

import dsl_kernels
from dsl_kernels.errors import TemplateError
from dsl_kernels.runtime.artifact import dims_of
from dsl_kernels.tile.describe import describe
from dsl_kernels.tile.lang import Buffer, Schedule, Space
from dsl_kernels.tile.plan import Action, PipelinePlan, barrier_plan
from dsl_kernels.tile.text import Box, Bulk, Expr, Slot, Span, Text, View, walk

from .printer import Printer, mma_facts, role_facts
from .sweep import TEMPLATES, Candidate

# Marks a line break inside generated text that must repeat the indentation of the line it started on.
_CONTINUE = "\n\x00"


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )


class PipelineSpelling:
    """One pipeline inside a template. `use` arguments are expressions for the running number of the use."""

    def __init__(self, plan: PipelinePlan, actions: Any, used: set[tuple[str, ...]]) -> None:
        self._plan, self._actions, self._used = plan, actions, used
        self.name, self.stages = plan.pipeline.name, plan.pipeline.stages
        self.tx_bytes = plan.full.tx_bytes

    def slot(self, use: str) -> str:
        """Index of the ring slot of a use."""
        return (
            "0"
            if self.stages == 1
            else f"({use}) % {self.stages}"
            if not use.isidentifier()
            else f"{use} % {self.stages}"
        )

    def full(self, use: str) -> str:
        """The full barrier of a use, for instructions that complete on it."""
        return self._barrier(self._plan.full.name, use)

    def empty(self, use: str) -> str:
        """The empty barrier of a use."""
        return self._barrier(f"{self.name}_empty", use)

    def _barrier(self, name: str, use: str) -> str:
        return str(self._actions.barrier(name, self.slot(use))).strip()

    def acquire(self, use: str) -> str:
        return self._spell("acquire", (), self._plan.acquire, use)

    def commit(self, use: str, tx: str | None = None) -> str:
        """Producer's hand-over; for bulk copies it announces `tx` bytes (default: the whole slot) before the copies."""
        return self._spell("commit", (), self._plan.commit, use, tx)

    def wait(self, role: str, use: str) -> str:
        return self._spell("wait", (role,), self._role(self._plan.wait, role), use)

    def release(self, role: str, use: str) -> str:
        return self._spell("release", (role,), self._role(self._plan.release, role), use)

    def _role(self, table: dict[str, tuple[Action, ...]], role: str) -> tuple[Action, ...]:
        if role not in table:
            raise TemplateError(
                f"pipeline {self.name}",
                expected=f"a reader among {', '.join(table)}",
                got=role,
                fix="correct the template or the declaration",
            )
        return table[role]

    def _spell(
        self, step: str, role: tuple[str, ...], actions: tuple[Action, ...], use: str, tx: str | None = None
    ) -> str:
        self._used.add((self.name, step, *role))
        phase = use if use.isidentifier() or use.isdigit() else f"({use})"
        turn = phase if self.stages == 1 else f"({phase} // {self.stages})"
        values = {
            "full": self.full(use), "empty": self.empty(use), "tx": tx or str(self.tx_bytes),
            "full_parity": f"{turn} & 1", "empty_parity": f"({turn} & 1) ^ 1",
        }  # fmt: skip
        if self._plan.pipeline.rounds == "once":
            values["full_parity"] = "0"
        elect = Action.ELECT in actions
        lines = []
        for action in actions:
            if action is Action.ELECT:
                continue
            macro = getattr(self._actions, action.value, None)
            if macro is None:
                raise TemplateError(
                    "_actions.j2",
                    expected=f"a macro {action.value}",
                    got="none",
                    fix=f"spell {action.value} for this backend",
                )
            lines.append(str(macro(SimpleNamespace(**values, elect=elect))).strip())
        return _CONTINUE.join(line for text in lines for line in text.split("\n") if line)


class Pipelines:
    """`pipe.<name>` inside a template."""

    def __init__(self, schedule: Schedule, actions: Any) -> None:
        self.used: set[tuple[str, ...]] = set()
        self._plans = barrier_plan(schedule).pipelines
        self._items = {name: PipelineSpelling(plan, actions, self.used) for name, plan in self._plans.items()}

    def __getattr__(self, name: str) -> PipelineSpelling:
        items = self.__dict__["_items"]
        if name not in items:
            raise TemplateError(
                f"pipe.{name}",
                expected="a declared pipeline: " + ", ".join(items),
                got=name,
                fix="correct the template or the declaration",
            )
        return items[name]

    def missing(self) -> list[str]:
        """Declared steps that the template never spelled."""
        return steps_missing(self._plans.values(), self.used)


def steps_missing(plans: Iterable[PipelinePlan], used: set[tuple[str, ...]]) -> list[str]:
    """Declared steps that nothing spelled."""
    wanted: set[tuple[str, ...]] = set()
    for plan in plans:
        name = plan.pipeline.name
        wanted.add((name, "commit"))
        if plan.empty is not None:
            wanted.add((name, "acquire"))
        for reader in plan.pipeline.readers:
            wanted.add((name, "wait", reader.role))
            if plan.empty is not None:
                wanted.add((name, "release", reader.role))
    return [" ".join(step) for step in sorted(wanted - used)]


def _roles(schedule: Schedule) -> dict[str, SimpleNamespace]:
    roles = {}
    for role in schedule.roles:
        first = schedule.first_thread(role.name)
        roles[role.name] = SimpleNamespace(
            name=role.name,
            warps=role.warps,
            threads=role.threads,
            first=first,
            end=first + role.threads,
            first_warp=first // 32,
            registers=role.registers,
        )
    return roles


def context(candidate: Candidate) -> dict[str, Any]:
    """What a template sees; all of it is read from the declaration.

    k: knobs; role: roles with their thread ranges; buf: buffers; mma: tensor-core operations; c: constants;
    pipe: pipelines; barriers: every mbarrier array; bar: named barriers with id and thread count; operands, dims, maps:
    the launch's arguments, the runtime dims that they give, the tensor maps; threads, grid, cluster, tmem_columns.
    """
    schedule = candidate.program.schedule(candidate.knobs, candidate.arch)
    actions = environment().get_template(f"{candidate.backend}/_actions.j2").module
    named = {
        name: SimpleNamespace(id=number, threads=sum(schedule.role(r).threads for r in members))
        for number, (name, members) in enumerate(schedule.named_barriers.items(), start=1)
    }
    columns = schedule.tmem_columns()
    operands = candidate.program.operands(candidate.knobs)
    return {
        "id": candidate.id,
        "arch": candidate.arch,
        "k": SimpleNamespace(**candidate.knobs),
        "c": SimpleNamespace(**schedule.constants),
        "role": SimpleNamespace(**_roles(schedule)),
        "buf": SimpleNamespace(**{b.name: b for b in schedule.buffers}),
        "mma": SimpleNamespace(**{m.name: m for m in schedule.mmas}),
        "pipe": Pipelines(schedule, actions),
        "operands": operands,
        "maps": schedule.maps,
        "dims": dims_of(operands),
        "barriers": barrier_plan(schedule).barriers,
        "bar": SimpleNamespace(**named),
        "threads": schedule.threads,
        "grid": schedule.grid,
        "cluster": schedule.cluster,
        "tmem_columns": max(32, 1 << (columns - 1).bit_length()) if columns else 0,
        "Space": Space,
        "op": candidate.program.op,
    }


DEVICE = Path(dsl_kernels.__file__).resolve().parent / "device"


@lru_cache(maxsize=64)
def leaf_modules(backend: str, op: str, tag: str) -> tuple[tuple[str, str, frozenset[str]], ...]:
    """(alias, module, functions) of the modules that spell an operation's leaves in a DSL, those of one architecture first."""
    paths = sorted((DEVICE / backend).glob(f"{op}*.py"), key=lambda path: (not path.stem.endswith(tag), path.stem))
    found = []
    for path in paths:
        if re.search(r"_sm\d+$", path.stem) and not path.stem.endswith(tag):
            continue
        tree = ast.parse(path.read_text())
        functions = frozenset(n.name for n in tree.body if isinstance(n, ast.FunctionDef))
        found.append((f"leaf{path.stem.removeprefix(op)}", path.stem, functions))
    return tuple(found)


@lru_cache(maxsize=64)
def module_names(backend: str, op: str) -> frozenset[str]:
    """What the module of an operation's leaves defines beside functions."""
    tree = ast.parse((DEVICE / backend / f"{op}.py").read_text())
    return frozenset(t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name))


def text_context(candidate: Candidate, text: Text) -> dict[str, Any]:
    """What a frame sees beside `context`: the printed text of the kernel's start and of each role, and their storage."""
    schedule = candidate.program.schedule(candidate.knobs, candidate.arch)
    plan = barrier_plan(schedule)
    spelling = environment().get_template(f"{candidate.backend}/_spelling.j2").module
    modules = leaf_modules(candidate.backend, candidate.program.op, candidate.arch.tag.removesuffix("a"))

    used = {"leaf"}

    def leaf_module(name: str) -> str:
        for alias, _, functions in modules:
            if name in functions:
                used.add(alias)
                return alias
        raise TemplateError(
            f"leaf {name} ({candidate.id})",
            expected=f"a function in dsl_kernels/device/{candidate.backend}/" + " or ".join(f"{m}.py" for _, m, _ in modules),
            got="none",
            fix="spell the leaf for this DSL",
        )

    printer = Printer(schedule, plan, spelling, leaf_module)
    start = "\n".join(printer.lines(text.start))
    roles = []
    for role in schedule.roles:
        facts = role_facts(schedule, role)
        spread = role.replicas if spelling.one_text_a_replica else 1
        for replica in range(spread):
            lines = printer.lines(text.roles[role.name], role, replica if role.replicas > 1 and spread > 1 else None)
            named = names_in_text(text.roles[role.name])
            first = facts.first + replica * facts.threads
            roles.append(
                SimpleNamespace(
                    **{**vars(facts), "first": first, "end": first + facts.threads * (role.replicas // spread)},
                    title=f"{role.name} {replica}" if spread > 1 else role.name,
                    suffix=f"_{replica}" if spread > 1 else "",
                    text="\n".join(lines),
                    worker="worker" in named,
                    replica="replica" in named and spread == 1,
                    mmas=[mma_facts(schedule, m) for m in schedule.mmas if m.role == role.name],
                    fragments=[fragment_facts(b, schedule) for b in schedule.buffers if b.role == role.name],
                )
            )
    missing = steps_missing(plan.pipelines.values(), printer.used)
    if missing:
        raise TemplateError(
            f"bodies of {candidate.program.op}", expected="every declared pipeline step", got=f"no {'; no '.join(missing)} ({candidate.id})",
            fix="take the step in a body, or remove the pipeline from the declaration",
        )  # fmt: skip
    statements = [s for part in (text.start, *text.roles.values()) for s in walk(part)]
    return {
        "start": start,
        "roles": roles,
        "shared": tuple(b for b in schedule.buffers if b.space is Space.SHARED),
        "tensor": [b for b in schedule.buffers if b.space is Space.TENSOR],
        "mmas": [mma_facts(schedule, m) for m in schedule.mmas],
        "units": sorted({m.unit for m in schedule.mmas}),
        "staged": {name for pipe in schedule.pipelines for name in pipe.buffers},
        "leaf_names": module_names(candidate.backend, candidate.program.op),
        "axes": schedule.axes,
        "ctas_per_sm": schedule.ctas_per_sm,
        "scalars": [o.name for o in candidate.program.operands(candidate.knobs) if o.kind == "scalar"],
        "launch_grid": [extent.replace("ceildiv(", "T.ceildiv(") for extent in schedule.grid],
        "leaf_modules": [(alias, name) for alias, name, _ in modules if alias in used],
        "warp": any("warp" in names_in_text(part) for part in (text.start, *text.roles.values())),
        "map_dtypes": {s.source.map: schedule.buffer(s.target.buffer).dtype for s in statements if isinstance(s, Bulk) and isinstance(s.source, Box)},
        "views": operand_views(candidate, schedule, statements),
    }  # fmt: skip


def names_in_text(statements: Any) -> set[str]:
    """The names that a text's values use."""

    def of(value: Any) -> Iterator[str]:
        if isinstance(value, Expr):
            if value.op == "name":
                yield value.args[0]
            for arg in value.args:
                yield from of(arg)
        elif isinstance(value, (tuple, list)):
            for item in value:
                yield from of(item)
        elif isinstance(value, (View, Slot, Box, Span)):
            for item in vars(value).values():
                yield from of(item)

    return {name for s in walk(statements) for item in vars(s).values() for name in of(item)}


def fragment_facts(buffer: Buffer, schedule: Schedule) -> SimpleNamespace:
    threads = schedule.role(buffer.role).warps * 32
    share = buffer.stage_elements if buffer.private else -(-buffer.stage_elements // threads)
    own = buffer.private and buffer.per_thread is not None
    return SimpleNamespace(
        name=buffer.name, shape=buffer.shape, dtype=buffer.dtype, per_thread=buffer.per_thread or share, private=buffer.private, own=own,
        accumulator=next((m.name for m in schedule.mmas if m.acc == buffer.name), None),
    )  # fmt: skip


def operand_views(candidate: Candidate, schedule: Schedule, statements: list[Any]) -> list[SimpleNamespace]:
    """Operands as the copy engine sees them: the rows of each tensor map, and the words of each span."""
    operands = {o.name: o for o in candidate.program.operands(candidate.knobs)}
    found = {}
    for s in statements:
        if not isinstance(s, Bulk):
            continue
        dtype = schedule.buffer(s.target.buffer).dtype
        if isinstance(s.source, Box):
            tensor_map = next(m for m in schedule.maps if m.name == s.source.map)
            extents = tuple(reversed(tensor_map.global_dims))
            # A vector is seen as a matrix of one row, whose stride is never used but must be a multiple of 16 bytes.
            shape, strides = (extents, None) if len(extents) > 1 else (("1", *extents), "(4, 1)")
            found[f"{tensor_map.name}_rows"] = (tensor_map.operand, shape, dtype, strides)
        else:
            operand = operands[s.source.operand]
            leading = [extent for extent in operand.shape if not extent.isdigit()]
            found[f"{operand.name}_words"] = (operand.name, (" * ".join(leading), str(s.source.pitch)), dtype, None)
    return [
        SimpleNamespace(name=name, operand=operand, shape=f"({', '.join(shape)})", dtype=dtype, strides=strides)
        for name, (operand, shape, dtype, strides) in found.items()
    ]


def render(candidate: Candidate) -> str:
    """The text of one generated module.

    Raises:
        TemplateError: an undefined name, a syntax error, or a template that departs from the declared pipelines.
    """
    name = f"{candidate.backend}/{candidate.template.name}"
    names = context(candidate)
    text = candidate.program.text(candidate.knobs, candidate.arch)
    if text is not None:
        names |= text_context(candidate, text)
    try:
        body = environment().get_template(name).render(names)
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        raise TemplateError(
            f"templates/{name}" + (f":{line}" if line else ""),
            expected="a template that renders from the declaration's context",
            got=f"{type(error).__name__}: {error.message or error} (variant {candidate.id})",
            fix="use names of codegen.render.context, or declare what is missing",
        ) from error
    missing = names["pipe"].missing() if text is None else []
    if missing:
        raise TemplateError(
            f"templates/{name}",
            expected="every declared pipeline step",
            got=f"no {'; no '.join(missing)} (variant {candidate.id})",
            fix="spell the step with {{ pipe.<name>.<step>(...) }}, or remove the pipeline from the declaration",
        )
    return header(candidate) + "\n".join(_indent(line) for line in _join(body).split("\x01"))


def _join(body: str) -> str:
    """Split into physical lines while keeping generated continuations with the line they belong to."""
    return re.sub(r"\n(?!\x00)", "\x01", body)


def _indent(line: str) -> str:
    first, *rest = line.split(_CONTINUE)
    if not rest:
        return line.rstrip()
    margin = first[: len(first) - len(first.lstrip())]
    return "\n".join([first.rstrip(), *(margin + text.rstrip() for text in rest)])


def header(candidate: Candidate) -> str:
    """The module docstring: where it comes from, its knobs, and the declared pipeline drawn as text."""
    schedule = candidate.program.schedule(candidate.knobs, candidate.arch)
    knobs = ", ".join(f"{name}={value}" for name, value in candidate.program.spelled(candidate.knobs).items())
    drawing = describe(schedule, candidate.arch).replace("\\", "\\\\")
    return (
        f'"""{candidate.id}\n\nGenerated from templates/{candidate.backend}/{candidate.template.name} by `make generate`: edit the template or the\n'
        f'declaration dsl_kernels/programs/{candidate.program.op}.py, not this file. Knobs: {knobs}.\n\n{drawing}\n"""\n'
    )
