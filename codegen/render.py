"""Templates to module text: one Jinja environment, what a template sees of a declaration, and the printed text of a kernel.

Rendering fails when no body takes a step of a declared pipeline.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jinja2

import dsl_kernels
from dsl_kernels.errors import DeclarationError, TemplateError
from dsl_kernels.runtime.artifact import dims_of
from dsl_kernels.tile.describe import describe
from dsl_kernels.tile.lang import DTYPE_BYTES, Buffer, Schedule, Space
from dsl_kernels.tile.plan import PipelinePlan, barrier_plan
from dsl_kernels.tile.text import Box, Bulk, Expr, Rows, Slot, Span, Store, Text, View, walk

from .printer import Printer, mma_facts, role_facts
from .sweep import TEMPLATES, Candidate


def wrapped(items: str, margin: int = 4) -> str:
    """A list of parameters or arguments on lines of its own, at most 110 columns wide."""
    # A name and its annotation stay together.
    held = textwrap.wrap(
        items.replace(": ", ":\0"), 110 - margin, break_long_words=False, break_on_hyphens=False
    )
    lines = [line.replace("\0", " ") for line in held]
    return "\n" + "\n".join(" " * margin + line for line in lines) + "\n" + " " * (margin - 4)


@lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    found.filters["wrapped"] = wrapped
    return found


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
    barriers: every mbarrier array; bar: named barriers with id and thread count; operands, dims, maps:
    the launch's arguments, the runtime dims that they give, the tensor maps; threads, grid, cluster, tmem_columns.
    """
    schedule = candidate.program.schedule(candidate.knobs, candidate.arch)
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
    """(alias, module, names) of the modules that spell an operation's leaves in a DSL, those of one architecture first.

    Behind them the leaves that all operations share.
    """
    paths = sorted(
        (DEVICE / backend).glob(f"{op}*.py"), key=lambda path: (not path.stem.endswith(tag), path.stem)
    )
    paths += (DEVICE / backend).glob(f"{SHARED_LEAVES}.py")
    found = []
    for path in paths:
        if re.search(r"_sm\d+$", path.stem) and not path.stem.endswith(tag):
            continue
        tree = ast.parse(path.read_text())
        names = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
        names |= {
            t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)
        }
        alias = SHARED_LEAVES if path.stem == SHARED_LEAVES else f"leaf{path.stem.removeprefix(op)}"
        found.append((alias, path.stem, frozenset(names)))
    return tuple(found)


SHARED_LEAVES = "fragment"
"""The module of a DSL whose leaves are for every operation."""


def text_context(candidate: Candidate, text: Text) -> dict[str, Any]:
    """What a frame sees beside `context`: the printed text of the kernel's start and of each role, and their storage."""
    schedule = candidate.program.schedule(candidate.knobs, candidate.arch)
    plan = barrier_plan(schedule)
    dims = dims_of(candidate.program.operands(candidate.knobs))
    if taken := sorted(dims.keys() & {buffer.name for buffer in schedule.buffers}):
        raise DeclarationError(
            f"program {candidate.program.op}, dim {taken[0]}",
            expected="a name that no buffer has",
            got="the name of a buffer",
            fix="rename one of them",
        )
    spelling: Any = environment().get_template(f"{candidate.backend}/_spelling.j2").module
    modules = leaf_modules(candidate.backend, candidate.program.op, candidate.arch.tag.removesuffix("a"))

    used = {"leaf"}

    own = tuple(module for module in modules if module[0] != SHARED_LEAVES)

    def home(name: str, among: tuple[tuple[str, str, frozenset[str]], ...] = modules) -> str | None:
        for alias, _, names in among:
            if name in names:
                used.add(alias)
                return alias
        return None

    def leaf_module(name: str) -> str:
        found = home(name)
        if found is not None:
            return found
        raise TemplateError(
            f"leaf {name} ({candidate.id})",
            expected=f"a function in dsl_kernels/device/{candidate.backend}/"
            + " or ".join(f"{m}.py" for _, m, _ in modules),
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
            lines = printer.lines(
                text.roles[role.name], role, replica if role.replicas > 1 and spread > 1 else None
            )
            named = names_in_text(text.roles[role.name])
            first = facts.first + replica * facts.threads
            roles.append(
                SimpleNamespace(
                    **{
                        **vars(facts),
                        "first": first,
                        "end": first + facts.threads * (role.replicas // spread),
                    },
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
    stores = [copy for s in statements if isinstance(s, Store) for copy in s.copies]
    return {
        "start": start,
        "roles": roles,
        "shared": tuple(b for b in schedule.buffers if b.space is Space.SHARED),
        "tensor": [b for b in schedule.buffers if b.space is Space.TENSOR],
        "mmas": [mma_facts(schedule, m) for m in schedule.mmas],
        "units": sorted({m.unit for m in schedule.mmas} | {mma_facts(schedule, m).home for m in schedule.mmas}),
        "staged": {name for pipe in schedule.pipelines for name in pipe.buffers},
        "homes": {name: home(name, own or modules) for name in ("PASS_CONFIGS", "SOURCE")},
        "spare_columns": schedule.tmem_allocation() - schedule.tmem_columns(),
        "m64": [m for m in schedule.mmas if m.unit == "tcgen05" and m.m == 64],
        "axes": schedule.axes,
        "ctas_per_sm": schedule.ctas_per_sm,
        "spends_registers": schedule.spends_registers,
        "scalars": [o.name for o in candidate.program.operands(candidate.knobs) if o.kind == "scalar"],
        "launch_grid": [extent.replace("ceildiv(", "T.ceildiv(") for extent in schedule.grid],
        "leaf_modules": [(alias, name) for alias, name, _ in modules if alias in used],
        "map_dtypes": {s.source.map: schedule.buffer(s.target.buffer).dtype for s in statements if isinstance(s, Bulk) and not isinstance(s.source, Span)}
        | {box.map: schedule.buffer(view.buffer).dtype for box, view in stores},
        "boxed": {s.source.map: "strided" for s in statements if isinstance(s, Bulk) and isinstance(s.source, Box) and len(s.source.at) > 2}
        | {box.map: "store" for box, _ in stores} | {s.source.map: "multicast" for s in statements if isinstance(s, Bulk) and s.multicast},
        "multicasts": schedule.multicasts,
        "gathered": {s.source.map for s in statements if isinstance(s, Bulk) and isinstance(s.source, Rows)},
        "warp": any("warp" in names_in_text(part) for part in (text.start, *text.roles.values())),
        "ordered": bool(schedule.turns) or schedule.multicasts,
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
        elif isinstance(value, (View, Slot, Box, Span, Rows)):
            for item in vars(value).values():
                yield from of(item)

    return {name for s in walk(statements) for item in vars(s).values() for name in of(item)}


def fragment_facts(buffer: Buffer, schedule: Schedule) -> SimpleNamespace:
    threads = schedule.role(buffer.role or "").warps * 32
    share = buffer.stage_elements if buffer.private else -(-buffer.stage_elements // threads)
    own = buffer.private and buffer.per_thread is not None
    return SimpleNamespace(
        name=buffer.name, shape=buffer.shape, dtype=buffer.dtype, per_thread=buffer.per_thread or share, private=buffer.private, own=own,
        accumulator=next((m.name for m in schedule.mmas if m.acc == buffer.name), None),
        # Of other vectors of half words a compiler keeps each element in a register of its own.
        even=1 << ((buffer.per_thread or share) - 1).bit_length() if DTYPE_BYTES[buffer.dtype] == 2 else buffer.per_thread or share,
    )  # fmt: skip


def operand_views(candidate: Candidate, schedule: Schedule, statements: list[Any]) -> list[SimpleNamespace]:
    """Operands as the copy engine sees them: the rows of each tensor map, and the words of each span."""
    operands = {o.name: o for o in candidate.program.operands(candidate.knobs)}
    found = {}
    copies = [
        (s.source, s.target) for s in statements if isinstance(s, Bulk) and not isinstance(s.source, Rows)
    ]
    copies += [copy for s in statements if isinstance(s, Store) for copy in s.copies]
    for source, view in copies:
        dtype = schedule.buffer(view.buffer).dtype
        if isinstance(source, Box):
            tensor_map = next(m for m in schedule.maps if m.name == source.map)
            extents = tuple(reversed(tensor_map.global_dims))
            # A vector is seen as a matrix of one row, whose stride is never used but must be a multiple of 16 bytes.
            shape, strides = (extents, None) if len(extents) > 1 else (("1", *extents), "(4, 1)")
            if operands[tensor_map.operand].strides is not None:
                steps = [_in_elements(s, DTYPE_BYTES[dtype]) for s in reversed(tensor_map.global_strides)]
                strides = f"({', '.join([*steps, '1'])})"
            found[f"{tensor_map.name}_rows"] = (tensor_map.operand, shape, dtype, strides)
        else:
            operand = operands[source.operand]
            leading = [extent for extent in operand.shape if not extent.isdigit()]
            found[f"{operand.name}_words"] = (
                operand.name,
                (" * ".join(leading), str(source.pitch)),
                dtype,
                None,
            )
    return [
        SimpleNamespace(
            name=name, operand=operand, shape=f"({', '.join(shape)})", dtype=dtype, strides=strides
        )
        for name, (operand, shape, dtype, strides) in found.items()
    ]


def _in_elements(stride: str, size: int) -> str:
    """A stride in bytes as one in elements of `size` bytes."""
    return stride.removesuffix(f" * {size}") if stride.endswith(f" * {size}") else f"({stride}) // {size}"


def render(candidate: Candidate) -> str:
    """The text of one generated module.

    Raises:
        TemplateError: an undefined name, a syntax error, or a declared pipeline step that no body takes.
    """
    name = f"{candidate.backend}/{candidate.template.name}"
    text = candidate.program.text(candidate.knobs, candidate.arch)
    names = context(candidate) | text_context(candidate, text)
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
    return header(candidate) + "\n".join(line.rstrip() for line in body.split("\n"))


def header(candidate: Candidate) -> str:
    """The module docstring: where it comes from, its knobs, and the declared pipeline drawn as text."""
    schedule = candidate.program.schedule(candidate.knobs, candidate.arch)
    knobs = ", ".join(f"{name}={value}" for name, value in candidate.program.spelled(candidate.knobs).items())
    op = candidate.program.op
    drawing = describe(schedule, candidate.arch).replace("\\", "\\\\")
    return (
        f'"""{candidate.id}\n\nGenerated from dsl_kernels/programs/{op}.py and the leaves in dsl_kernels/device/{candidate.backend} by `make generate`:\n'
        f'edit those, not this file. Knobs: {knobs}.\n\n{drawing}\n"""\n'
    )
