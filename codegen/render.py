"""Templates to module text: the Jinja environment, a template's view of a declaration, the printed kernel."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Set
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import jinja2

from dsl_kernels import programs
from dsl_kernels.abi import Operand
from dsl_kernels.arch import RESERVED_SMEM, ArchSpec
from dsl_kernels.dtypes import DTYPES
from dsl_kernels.errors import DeclarationError, TemplateError
from dsl_kernels.expr import names_in
from dsl_kernels.runtime.artifact import dims_of
from dsl_kernels.tile.describe import describe
from dsl_kernels.tile.lang import PROBE, Buffer, Schedule, Space, named
from dsl_kernels.tile.plan import barrier_plan
from dsl_kernels.tile.text import (
    AskNext,
    Box,
    Bulk,
    ClusterArrive,
    ClusterWait,
    CopyColumns,
    Expr,
    Let,
    Multiply,
    Rows,
    Span,
    Store,
    Text,
    Variable,
    text_of,
    walk,
)

from .facts import held_by_threads, mma_facts, names_in_python, role_facts, sums_of
from .printer import CLONE, INDENT, Printer
from .sweep import FUNCTIONS, PROBE_LEAVES, SHARED_LEAVES, TEMPLATES, Instance, leaf_modules

WIDTH = 110
# A line is broken in the bracket that one of CLOSED ends, or else in the first bracket longer than SHORT.
CLOSED, SHORT = (")", "):", "),", "]", "],"), 24
# Marks where a frame wants the module's named sizes, which are known only once everything is printed.
SIZES = "# sizes"


def wrapped(line: str) -> list[str]:
    """A module's line as lines of at most WIDTH columns: a comment breaks at words, code inside a bracket."""
    margin = " " * (len(line) - len(line.lstrip()))
    if len(line) <= WIDTH:
        return [line]
    if line.lstrip().startswith("# "):
        text = textwrap.wrap(line.strip()[2:], WIDTH - len(margin) - 2, break_on_hyphens=False)
        return [f"{margin}# {part}" for part in text]
    if line.startswith("from ") and "(" not in line:
        # As ruff formats imports: one name per line.
        module, names = line.split(" import ")
        return [f"{module} import (", *(f"{INDENT}{name}," for name in names.split(", ")), ")"]
    groups = [(i, _split(line, i)) for i, c in enumerate(line[:WIDTH]) if c in "(["]
    closed = [(i, pieces, end) for i, (pieces, end) in groups if end is not None]
    ending = [group for group in closed if line[group[2] :] in CLOSED]
    long = [group for group in closed if group[2] - group[0] > SHORT]
    parts, _ = _split(f"({line.strip().rstrip(',')})", 0)
    # A short bracket is broken only where no comma outside of brackets could be.
    short = sorted(closed, key=lambda group: group[0] - group[2]) if len(parts) == 1 else []
    for begin, pieces, end in (ending or long or short)[:1]:
        lines = [line[: begin + 1], *_packed(pieces, margin + INDENT), margin + line[end:]]
        return [part for row in lines for part in wrapped(row)]
    if len(parts) == 1:
        return [line]
    *lines, last = _packed(parts, margin)
    return [*lines, last + "," * line.endswith(",")]


def _packed(pieces: list[str], margin: str) -> list[str]:
    """Arguments packed into lines. All lines but the last end in a comma; a tuple of one keeps its comma."""
    lines, row = [], margin
    for piece in pieces:
        if row.strip() and len(row) + len(piece) + 1 > WIDTH:
            lines.append(row.rstrip())
            row = margin
        row += piece + ", "
    return [*lines, row.rstrip(" ,") + "," * (len(pieces) == 2 and not pieces[1])]


def _split(line: str, begin: int) -> tuple[list[str], int | None]:
    """The text of the bracket at `begin`, split at its own commas, and the index where it closes."""
    pieces: list[str] = []
    depth, start, quoted = 0, begin + 1, False
    for i in range(begin, len(line)):
        c = line[i]
        if c == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
            if depth == 0:
                return [*pieces, line[start:i].strip()], i
        elif c == "," and depth == 1:
            pieces.append(line[start:i].strip())
            start = i + 1
    return pieces, None


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


def context(instance: Instance, schedule: Schedule) -> dict[str, Any]:
    """The declaration as a frame sees it.

    buf: buffers by name; barriers: every mbarrier array; operands: the launch's arguments; dims: the runtime
    sizes that operands give; maps: tensor maps; threads, grid, cluster, tmem_columns.
    """
    operands = instance.program.operands(instance.knobs)
    return {
        "id": instance.id,
        "buf": SimpleNamespace(**{b.name: b for b in schedule.buffers}),
        "operands": operands,
        "maps": schedule.maps,
        "dims": dims_of(operands),
        "barriers": barrier_plan(schedule).barriers,
        "threads": int(schedule.threads),
        "grid": tuple(map(text_of, schedule.grid)),
        "cluster": tuple(map(int, schedule.cluster)),
        "resident": text_of(schedule.resident) if schedule.may_wait else "",
        "through_grid": any(pipe.through for pipe in schedule.pipelines),
        "tmem_columns": int(schedule.tmem_allocation()),
    }


@dataclass(frozen=True)
class Parameter:
    """A name of the kernel that a role may take as a parameter.

    `kind` is "map", "coordinates", "memory" (an operand or a buffer), "value", or "variable" where it may be
    assigned; a value or variable has a dtype.
    """

    name: str
    kind: str
    dtype: str | None = None


def names_of_kernel(
    instance: Instance, schedule: Schedule, text: Text, views: list[SimpleNamespace]
) -> list[Parameter]:
    """Every name that is defined in the kernel when its roles begin, in order of definition."""
    operands = instance.program.operands(instance.knobs)
    plan = barrier_plan(schedule)
    names = [
        Parameter(m.name + end, kind)
        for m in schedule.maps
        for end, kind in (("", "map"), ("_coords", "coordinates"))
    ]
    names += [
        Parameter(o.name, "value", o.dtype) if o.kind == "scalar" else Parameter(o.name, "memory")
        for o in operands
    ]
    names += [Parameter(dim, "value", "int32") for dim in dims_of(operands)]
    memory = [*(v.name for v in views), *(b.name for b in schedule.buffers if b.space is not Space.REGISTER)]
    names += [Parameter(name, "memory") for name in (*memory, "tmem", *(b.name for b in plan.barriers))]
    names += [Parameter(axis, "value", "int32") for axis in schedule.axes]
    for s in text.start:
        if isinstance(s, Variable):
            names.append(Parameter(s.name, "variable", s.dtype))
        elif isinstance(s, Let) and isinstance(s.value, Expr):
            names.append(Parameter(s.name, "value", s.value.dtype))
    names += [Parameter(name, "value", "int32") for name in ("thread", "warp", "lane")]
    return list({p.name: p for p in names}.values())


def text_context(instance: Instance, schedule: Schedule, text: Text) -> tuple[dict[str, Any], Printer]:
    """The printed text of the kernel's start, its end and each role, and their storage, for a frame."""
    plan = barrier_plan(schedule)
    spelling: Any = environment().get_template(f"{instance.backend}/_spelling.j2").module
    tag, probed = instance.arch.tag.removesuffix("a"), bool(instance.knobs.get(PROBE.name))
    modules = leaf_modules(instance.backend, instance.program.op, tag, probed)

    used = {"leaf"}

    shared = (SHARED_LEAVES, PROBE_LEAVES, *FUNCTIONS)
    own = tuple(module for module in modules if not module[0].startswith(shared))

    def home(name: str, among: tuple[tuple[str, str, frozenset[str]], ...] = modules) -> str | None:
        for alias, _, names in among:
            if name in names:
                used.add(alias)
                return alias
        return None

    def leaf_module(name: str) -> str:
        alias = home(name)
        if alias is not None:
            return alias
        raise TemplateError(
            f"leaf {name} ({instance.id})",
            expected="a function in "
            + " or ".join(f"dsl_kernels/{m.replace('.', '/')}.py" for _, m, _ in modules),
            got="none",
            fix="spell the leaf for this DSL",
        )

    statements = [s for part in text.parts.values() for s in walk(part)]
    own_registers = getattr(spelling, "deals_tiles", False) and (
        home("OWN_REGISTERS") is not None or held_by_threads(schedule, statements, home)
    )
    printer = Printer(schedule, plan, spelling, leaf_module, home, own_registers)
    start, end = ("\n".join(printer.lines(part)) for part in (text.start, text.end))
    views = operand_views(instance, schedule, statements)
    within = names_of_kernel(instance, schedule, text, views)
    roles = []
    for role in schedule.roles:
        if role.name in {p.name for p in within}:
            raise TemplateError(
                f"role {role.name} ({instance.id})", expected="a name of its own",
                got="the name of an operand, buffer, axis or variable",
                fix="rename one of them",
            )  # fmt: skip
        facts = role_facts(schedule, role)
        lines = "\n".join(printer.lines(text.roles[role.name], role))
        mmas = [m for m in schedule.mmas if m.role == role.name]
        fragments = [fragment_facts(b, schedule) for b in schedule.buffers if b.role == role.name]
        said = names_in_python(lines)
        wanted = said | {m.b for m in mmas} | {m.a for m in mmas if m.a_space is Space.SHARED}
        wanted |= {"thread"} if "worker" in said else set()
        wanted |= {"warp"} if role.replicas > 1 and not spelling.replicas_apart else set()
        # Some DSLs call the replicas of a role one by one, others call them together.
        apart = role.replicas if spelling.replicas_apart else 1
        each = facts.threads * role.replicas // apart
        roles.append(
            SimpleNamespace(
                **vars(facts),
                purpose=role.doc[:1].upper() + role.doc[1:] + ("" if role.doc.endswith(".") else "."),
                text=lines,
                parameters=[p for p in within if p.name in wanted],
                calls=[
                    SimpleNamespace(
                        replica=i,
                        first=facts.first + i * each,
                        end=facts.first + (i + 1) * each,
                        last=role is schedule.roles[-1] and i == apart - 1,
                    )
                    for i in range(apart)
                ],
                worker="worker" in said,
                replica=role.replicas > 1,
                mmas=[mma_facts(schedule, m) for m in mmas],
                fragments=fragments,
            )
        )
    said = names_in_python(start) | names_in_python(end) | {p.name for role in roles for p in role.parameters}
    stores = [copy for s in statements if isinstance(s, Store) for copy in s.copies]
    copied = [s.source.buffer for s in statements if isinstance(s, CopyColumns)]
    # Products of e4m3 that TileLang's own cannot lay out.
    bytewise = [
        m for m in schedule.mmas
        if m.unit == "tcgen05" and m.dtype == "float8_e4m3" and m.scales is None and not m.ws
        and (m.m == 64 or "mn" in (m.a_major, m.b_major)) and sums_of(schedule, m) == "float32"
    ]  # fmt: skip
    described = [
        m
        for m in schedule.mmas
        if m.unit == "tcgen05"
        and (
            m.m == 64
            or m in bytewise
            or (m.m == 128 and m.cta_group == 2)
            or m.ws
            or m.scales
            or sums_of(schedule, m) == "float16"
        )
    ]
    units = {m.unit for m in schedule.mmas} | {mma_facts(schedule, m).home for m in schedule.mmas}
    units |= {"tcgen05_copy"} if copied else set()
    constants_in = own or tuple(m for m in modules if m[0] not in (PROBE_LEAVES, *FUNCTIONS))
    # A body may pass a product other buffers than its declaration names.
    given = {
        view.buffer
        for s in statements if isinstance(s, Multiply)
        for p in s.products if p.mma in described
        for view in (p.a, p.acc)
    }  # fmt: skip
    return {
        "sizes": SIZES,
        "functions": "\n\n\n".join(printer.functions),
        "spelled": printer.spelled,
        "shape": lambda extents: shape(printer, extents),
        "extent": lambda buffer: extent(printer, buffer),
        "start": start,
        "end": end,
        "clusters": any(isinstance(s, (ClusterArrive, ClusterWait)) for s in statements),
        "roles": roles,
        "shared": tuple(b for b in schedule.buffers if b.space is Space.SHARED and b.alias is None),
        "aliases": tuple(b for b in schedule.buffers if b.alias is not None and b.space is Space.SHARED),
        "tensor": [b for b in schedule.buffers if b.space is Space.TENSOR and b.alias is None],
        "tensor_aliases": [b for b in schedule.buffers if b.space is Space.TENSOR and b.alias is not None],
        "mmas": [mma_facts(schedule, m) for m in schedule.mmas],
        "units": sorted(units),
        "copied": copied,
        "steals": any(isinstance(s, AskNext) for s in statements),
        "staged": {name for pipe in schedule.pipelines for name in pipe.buffers},
        "homes": {name: home(name, constants_in) for name in getattr(spelling, "leaf_constants", ())},
        "own_registers": own_registers,
        "spare_columns": schedule.tmem_allocation() - schedule.tmem_columns(),
        "padded": padded(schedule),
        "described": described,
        "bytewise": bytewise,
        "flat": given | {name for m in described for name in (m.a, m.acc)},
        "axes": schedule.axes,
        "ctas_per_sm": schedule.ctas_per_sm,
        "min_ctas_per_sm": schedule.min_ctas_per_sm,
        "least_smem": least_smem(schedule, instance.arch),
        "renamed": sorted(printer.renamed & set(dims_of(instance.program.operands(instance.knobs)))),
        "scalars": [o.name for o in instance.program.operands(instance.knobs) if o.kind == "scalar"],
        "leaf_modules": sorted(
            ((alias, name) for alias, name, _ in modules if alias in used), key=lambda pair: pair[1]
        ),
        "probed": probed,
        "lane": "lane" in said,
        "warp": "warp" in said,
        "map_dtypes": {
            s.source.map: schedule.buffer(s.target.buffer).dtype
            for s in statements
            if isinstance(s, Bulk) and not isinstance(s.source, Span)
        }
        | {box.map: schedule.buffer(view.buffer).dtype for box, view in stores},
        "boxed": {name: kind for name, kind in box_kinds(statements).items() if kind != "plain"},
        "pairs": schedule.pairs,
        "multicasts": schedule.multicasts,
        "gathered": {s.source.map for s in statements if isinstance(s, Bulk) and isinstance(s.source, Rows)},
        "ordered": bool(schedule.turns) or schedule.multicasts,
        "views": views,
    }, printer


def least_smem(schedule: Schedule, arch: ArchSpec) -> int:
    """The least shared memory per CTA, in bytes, that keeps an SM from holding more CTAs than allowed.

    0 if the schedule sets no limit, or if its CTAs use that much anyway.
    """
    most = schedule.max_ctas_per_sm
    least = arch.smem_per_sm // (most + 1) - RESERVED_SMEM + 1 if most else 0
    return -(-least // 1024) * 1024 if least > schedule.smem_bytes() else 0


def shape(printer: Printer, extents: Iterable[int]) -> str:
    """A tuple of sizes."""
    parts = [printer.spelled(extent) for extent in extents]
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def box_kinds(statements: list[Any]) -> dict[str, str]:
    """How the boxes of each map are copied: plain, strided (more than two axes), multicast, pair or store.

    Raises:
        DeclarationError: boxes of one map are copied in two ways.
    """
    copies = [(box.map, "store") for s in statements if isinstance(s, Store) for box, _ in s.copies]
    for s in statements:
        if isinstance(s, Bulk) and isinstance(s.source, Box):
            plain = "strided" if len(s.source.at) > 2 else "plain"
            kind = "multicast" if s.multicast else "pair" if s.slot.pipeline.pair else plain
            copies.append((s.source.map, kind))
    kinds = dict(copies)
    for name, kind in copies:
        if kinds[name] != kind:
            raise DeclarationError(
                f"map {name}",
                expected="one way of copying its boxes",
                got=f"{kind} and {kinds[name]}",
                fix="declare a map for each",
            )
    return kinds


def padded(schedule: Schedule) -> str | None:
    """The tensor-memory buffer to which the allocation's spare columns go: a power of two with them."""
    spare = schedule.tmem_allocation() - schedule.tmem_columns()
    buffers = [b for b in schedule.buffers if b.space is Space.TENSOR and b.alias is None]
    fitting = [
        b.name for b in buffers if spare % b.columns == 0 and (b.stages * b.columns + spare).bit_count() == 1
    ]
    return fitting[-1] if spare and fitting else None


def extent(printer: Printer, buffer: Buffer) -> str:
    """Elements of a buffer, over all stages, as a product."""
    first, *others = (buffer.stages,) * (buffer.stages > 1) + buffer.shape
    parts = [printer.spelled(first, 5 if others else 0), *(printer.spelled(factor, 6) for factor in others)]
    return " * ".join(parts)


def fragment_facts(buffer: Buffer, schedule: Schedule) -> SimpleNamespace:
    threads = schedule.role(buffer.role or "").warps * 32
    share = buffer.stage_elements if buffer.private else -(-buffer.stage_elements // threads)
    per_thread = buffer.per_thread or share
    return SimpleNamespace(
        name=buffer.name,
        shape=buffer.shape,
        dtype=buffer.dtype,
        per_thread=per_thread,
        private=buffer.private,
        accumulator=next((m.name for m in schedule.mmas if m.acc == buffer.name), None),
        # Rounded up to a power of two: in other vectors of 16-bit elements, compilers keep one per register.
        even=1 << (per_thread - 1).bit_length() if DTYPES[buffer.dtype].bytes == 2 else per_thread,
    )


def operand_views(instance: Instance, schedule: Schedule, statements: list[Any]) -> list[SimpleNamespace]:
    """Views of operands for the copy engine: the rows of each tensor map, and the words of each span."""
    operands = {o.name: o for o in instance.program.operands(instance.knobs)}
    views = {}
    copies = [
        (s.source, s.target)
        for s in statements
        # Boxes that fold or go to several CTAs have a tensor map made from the operand itself.
        if isinstance(s, Bulk)
        and not isinstance(s.source, Rows)
        and not s.folds(schedule)
        and not (s.slot.pipeline.multicast or s.slot.pipeline.pair)
    ]
    copies += [copy for s in statements if isinstance(s, Store) for copy in s.copies]
    for source, view in copies:
        dtype = schedule.buffer(view.buffer).dtype
        if isinstance(source, Box):
            tensor_map = next(m for m in schedule.maps if m.name == source.map)
            extents = tuple(reversed(tensor_map.global_dims))
            # A vector becomes a matrix of one row. Its row stride is unused but must be a multiple of 16
            # bytes.
            shape, strides = (extents, None) if len(extents) > 1 else (("1", *extents), "(4, 1)")
            operand = operands[tensor_map.operand]
            if operand.strides is not None or len(extents) > 2:
                steps = [_in_elements(s, DTYPES[dtype].bytes) for s in reversed(tensor_map.global_strides)]
                strides = f"({', '.join([*steps, '1'])})"
            views[f"{tensor_map.name}_rows"] = (tensor_map.operand, shape, dtype, strides)
        else:
            operand = operands[source.operand]
            leading = [extent for extent in operand.shape if not extent.isdigit()]
            shape, strides = (" * ".join(leading), str(source.pitch)), None
            if source.strides:
                shape = (*operand.shape[: len(source.strides)], str(source.pitch))
                strides = f"({', '.join([*map(text_of, source.strides), '1'])})"
            views[f"{operand.name}_words"] = (operand.name, shape, dtype, strides)
    return [
        SimpleNamespace(
            name=name, operand=operand, shape=f"({', '.join(shape)})", dtype=dtype, strides=strides,
            wider=_seen_otherwise(operands[operand], shape),
        )
        for name, (operand, shape, dtype, strides) in views.items()
    ]  # fmt: skip


def _seen_otherwise(operand: Operand, shape: tuple[str, ...]) -> bool:
    """Whether a view has other extents than its operand, or includes the gaps between the operand's rows."""
    names = {name for extent in operand.shape for name in names_in(extent)}
    return any(
        bool(names_in(extent) & set(operand.strides or ()))
        or not names_in(extent) <= names
        or ("//" in extent and bool(names_in(extent)))
        for extent in shape
    )


def _in_elements(stride: str, size: int) -> str:
    """A stride in bytes as one in elements of `size` bytes."""
    return stride.removesuffix(f" * {size}") if stride.endswith(f" * {size}") else f"({stride}) // {size}"


def render(instance: Instance) -> str:
    """The text of one generated module.

    Raises:
        TemplateError: an undefined name or a syntax error.
        DeclarationError: the text contradicts its schedule.
    """
    name = f"{instance.backend}/{instance.template.name}"
    knobs = named(instance.knobs)
    schedule = instance.program.schedule(knobs, instance.arch)
    text = instance.program.text(knobs, instance.arch)
    of_text, printer = text_context(instance, schedule, text)
    names = context(instance, schedule) | of_text
    try:
        body = environment().get_template(name).render(names)
    except jinja2.TemplateError as error:
        line = getattr(error, "lineno", None)
        raise TemplateError(
            f"templates/{name}" + (f":{line}" if line else ""),
            expected="a template that renders from the declaration's context",
            got=f"{type(error).__name__}: {error.message or error} (variant {instance.id})",
            fix="use names of codegen.render.context, or declare what is missing",
        ) from error
    body = _with_clones(body, printer.clones())
    body = body.replace(SIZES, definitions(instance, printer.sizes, names_in_python(body)))
    lines = [part for line in needed_imports(body).split("\n") for part in wrapped(line.rstrip())]
    return header(instance, schedule) + re.sub(r"\n{4,}", "\n\n\n", "\n".join(lines)).rstrip("\n") + "\n"


def _with_clones(body: str, names: dict[str, str]) -> str:
    """The module with final names in place of its functions' placeholders; a clashing name is numbered."""
    taken: set[Any] = set()
    # Parsing a module takes longer than printing it, so parse only if a name may clash.
    if not names_in_python(body).isdisjoint(names.values()):
        taken = {
            getattr(node, "id", None) or getattr(node, "arg", None) or getattr(node, "name", None)
            for node in ast.walk(ast.parse(body))
        }
    clashing = {name for name, own in names.items() if own in taken}
    names |= {name: name.replace(CLONE, "_") for name in clashing}
    return re.sub(rf"\b\w+{CLONE}\d+\b", lambda match: names[match.group()], body)


def definitions(instance: Instance, sizes: dict[str, float], used: Set[str]) -> str:
    """The named sizes that a module uses, knobs first with what they mean."""
    knobs = {knob.name.upper(): knob.doc for knob in instance.program.knobs}
    order = [*(name for name in knobs if name in sizes), *(name for name in sizes if name not in knobs)]
    lines = []
    for name in (name for name in order if name in used):
        line = f"{name} = {sizes[name]}"
        lines.append(f"{line}  # {knobs[name]}" if name in knobs else line)
    return "\n".join(lines)


def needed_imports(body: str) -> str:
    """A module without its unused imports."""
    imports = re.compile(r"^(from \S+ import )(.+)\n", re.MULTILINE)
    used = names_in_python(imports.sub("", body))

    def kept(match: re.Match[str]) -> str:
        names = [name for name in match[2].split(", ") if name.split(" as ")[-1] in used]
        return f"{match[1]}{', '.join(names)}\n" if names else ""

    # Sort as ruff does; the order depends on which names are left.
    leaves = re.compile(r"(^from dsl_kernels\.(device|kernels)\.\w+ import .+\n)+", re.MULTILINE)
    return leaves.sub(lambda m: "".join(sorted(m[0].splitlines(keepends=True))), imports.sub(kept, body))


def header(instance: Instance, schedule: Schedule) -> str:
    """The module docstring: the module's source, its knobs, and the declared pipeline drawn as text."""
    knobs = ", ".join(f"{name}={value}" for name, value in instance.program.spelled(instance.knobs).items())
    op = instance.program.op
    drawing = describe(schedule, instance.arch).replace("\\", "\\\\")
    if op not in programs.names():
        return f'"""{instance.id}\n\nPrinted from a sketch: edit that, not this file.\n\n{drawing}\n"""\n'
    return (
        f'"""{instance.id}\n\nGenerated from dsl_kernels/kernels/{op} and what all kernels share in '
        f"dsl_kernels/device/{instance.backend} by `make generate`:\n"
        f'edit those, not this file. Knobs: {knobs}.\n\n{drawing}\n"""\n'
    )
