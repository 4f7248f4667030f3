"""The sweep: every combination of a program's knobs at a level, sorted into kept and refused."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dsl_kernels import policies, programs
from dsl_kernels.arch import ARCHS, ArchSpec, get_arch
from dsl_kernels.errors import InvalidArgumentError, UnknownNameError, did_you_mean
from dsl_kernels.tile.lang import PROBE
from dsl_kernels.tile.program import TileProgram
from dsl_kernels.variants import Variant

from .check import Violation, check

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "templates"
PACKAGE = ROOT / "dsl_kernels"
DEVICE, KERNELS = PACKAGE / "device", PACKAGE / "kernels"
FRAME = "_frame.py.j2"
SHARED_LEAVES = "fragment"
"""The module of a DSL with leaves for every operation."""
PROBE_LEAVES = "probes"
"""The module of a DSL with the leaves that read the clock."""
FUNCTIONS = ("floats", "scalars", "terms", "warps")
"""The modules of a DSL with the functions that the text of any leaf may call."""
MOST_LEVELS = 9
"""A sweep level at which every knob takes all of its values."""
UNSPELLED = "UNSPELLED"
"""In a file of leaves, names the leaves that its DSL does not implement: it skips schedules that call one."""


@dataclass(frozen=True)
class Instance:
    """One point of the sweep: a program, a backend, an architecture and a value for each knob."""

    program: TileProgram
    backend: str
    arch: ArchSpec
    knobs: dict[str, Any]
    template: Path

    @property
    def id(self) -> str:
        return self.program.variant_id(self.backend, self.arch, self.knobs)

    def __reduce__(self) -> tuple[Any, ...]:
        # A program holds closures, which do not pickle: another process loads it by its operation's name.
        return _instance, (self.program.op, self.backend, self.arch.name, self.knobs, self.template)


def _instance(op: str, backend: str, arch: str, knobs: dict[str, Any], template: Path) -> Instance:
    return Instance(programs.get(op), backend, get_arch(arch), knobs, template)


@dataclass
class Sweep:
    """Kept instances in a fixed order, and refused ones with their violations."""

    kept: list[Instance] = field(default_factory=list)
    refused: list[tuple[Instance, list[Violation]]] = field(default_factory=list)


@dataclass(frozen=True)
class Filter:
    """Which instances to generate: each field narrows; `name` is a regular expression for the variant id."""

    op: str | None = None
    backend: str | None = None
    arch: str | None = None
    name: str | None = None

    def accepts(self, op: str, backend: str, arch: str) -> bool:
        return self.op in (None, op) and self.backend in (None, backend) and self.arch in (None, arch)

    def matches(self, variant: str) -> bool:
        return self.name is None or re.search(self.name, variant) is not None

    def matches_record(self, record: dict[str, Any]) -> bool:
        """Whether a record of the manifest passes."""
        return self.accepts(record["op"], record["backend"], record["arch"]) and self.matches(record["id"])

    def validate(self) -> None:
        """Raise UnknownNameError if a field matches nothing, InvalidArgumentError if `name` is malformed."""
        try:
            re.compile(self.name or "")
        except re.error as error:
            raise InvalidArgumentError(
                "--filter",
                expected="a regular expression",
                got=f"{self.name!r}: {error}",
                fix="escape what is meant literally",
            ) from None
        known = {"op": programs.names(), "backend": backends(), "arch": list(ARCHS)}
        for key, names in known.items():
            value = getattr(self, key)
            if value is not None and value not in names:
                raise UnknownNameError(
                    key, expected=f"a known {key}", got=repr(value), fix=did_you_mean(value, names)
                )


def backends() -> list[str]:
    """The DSLs: each has a folder of templates."""
    return sorted(
        path.name for path in TEMPLATES.iterdir() if path.is_dir() and not path.name.startswith("_")
    )


def leaf_files(backend: str, op: str) -> list[Path]:
    """An operation's files for a DSL: `kernels/<op>/<dsl>.py`, and `<dsl>_<tag>.py` for one architecture."""
    folder = KERNELS / op
    return sorted([*folder.glob(f"{backend}.py"), *folder.glob(f"{backend}_*.py")])


@lru_cache(maxsize=64)
def leaf_modules(
    backend: str, op: str, tag: str, probed: bool = False
) -> tuple[tuple[str, str, frozenset[str]], ...]:
    """(alias, module, names) of each module that spells an operation's leaves in a DSL, in look-up order.

    Modules of one architecture come first, then the operation's own, then those that all operations share,
    and those of probes if `probed`. `module` is the dotted path within the package.
    """
    paths = sorted(leaf_files(backend, op), key=lambda path: (not path.stem.endswith(tag), path.stem))
    paths += sorted((DEVICE / backend).glob(f"{SHARED_LEAVES}*.py"), reverse=True)
    paths += (path for name in FUNCTIONS for path in (DEVICE / backend).glob(f"{name}.py"))
    paths += (DEVICE / backend).glob(f"{PROBE_LEAVES}.py") if probed else ()
    listed = []
    for path in paths:
        if re.search(r"_sm\d+$", path.stem) and not path.stem.endswith(tag):
            continue
        tree = ast.parse(path.read_text())
        names = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}
        names |= {
            t.id for n in tree.body if isinstance(n, ast.Assign) for t in n.targets if isinstance(t, ast.Name)
        }
        # A module with `__all__` also offers what it imports.
        names |= {
            alias.name
            for n in tree.body
            if isinstance(n, ast.ImportFrom) and "__all__" in names
            for alias in n.names
        }
        own = path.parent.name == op
        alias = f"leaf{path.stem.removeprefix(backend)}" if own else path.stem
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        listed.append((alias, module, frozenset(names)))
    if any(alias.startswith(f"{SHARED_LEAVES}_") for alias, _, _ in listed):
        # That module's fragments have another layout, for which a leaf of the plain one would be wrong.
        listed = [module for module in listed if module[0] != SHARED_LEAVES]
    return tuple(listed)


def unspelled(backend: str, op: str) -> frozenset[str]:
    """Leaves of an operation that a DSL declares it does not implement."""
    trees = [ast.parse(path.read_text()) for path in leaf_files(backend, op)]
    declared = [
        node.value
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.Assign)
        and [t.id for t in node.targets if isinstance(t, ast.Name)] == [UNSPELLED]
    ]
    return frozenset(name for value in declared for name in ast.literal_eval(value))


def _can_spell(backend: str, program: TileProgram, arch: ArchSpec, knobs: Mapping[str, Any]) -> bool:
    """Whether a schedule calls no leaf that its DSL declares missing, and has no knobs that are unfit for it.

    Any other missing leaf is an error.
    """
    if any(of.items() <= knobs.items() for of in policies.get(program.op).unfit.get(backend, ())):
        return False
    lacking = unspelled(backend, program.op)
    if not lacking:
        return True
    modules = leaf_modules(backend, program.op, arch.tag.removesuffix("a"))
    lacking = lacking.difference(*(names for _, _, names in modules))
    return lacking.isdisjoint(program.text(knobs, arch).leaves)


def frame(backend: str) -> Path:
    """The template around the printed text of a kernel in a DSL."""
    return TEMPLATES / backend / FRAME


def instance_of(variant: Variant, probe: int = 0, **changed: Any) -> Instance:
    """The instance that a generated variant was rendered from, with its probe knob and others changed.

    Raises:
        UnknownNameError: no such knob on the variant's architecture.
        InvalidArgumentError: the knob does not declare this value.
    """
    program = programs.get(variant.op)
    knobs = {knob.name: variant.knobs[knob.name] for knob in program.knobs if knob.name in variant.knobs}
    for name, value in changed.items():
        if name not in knobs:
            raise UnknownNameError(
                f"knob of {variant.id}",
                expected="a knob",
                got=repr(name),
                fix=did_you_mean(name, list(knobs)),
            )
        known = next(k for k in program.knobs if k.name == name).values(MOST_LEVELS)
        if value not in known:
            raise InvalidArgumentError(
                f"knob {name}",
                expected=" or ".join(map(str, known)),
                got=repr(value),
                fix="choose one of them",
            )
        knobs[name] = value
    if probe:
        knobs[PROBE.name] = probe
    return Instance(program, variant.backend, get_arch(variant.arch), knobs, frame(variant.backend))


def combinations(program: TileProgram, arch: ArchSpec, level: int) -> Iterator[dict[str, Any]]:
    """The knob assignments for `arch` that the operation's policy finds useful, in declared order."""
    knobs = [knob for knob in program.knobs if not knob.archs or arch.name in knob.archs]
    for values in product(*(knob.values(level) for knob in knobs)):
        assignment = dict(zip((knob.name for knob in knobs), values, strict=True))
        if policies.get(program.op).useful(SimpleNamespace(**assignment), arch, level):
            yield assignment


def sweep(level: int = 0, only: Filter = Filter()) -> Sweep:
    """All instances at `level` that pass `only`, checked against their architectures.

    A DSL without leaves of an operation is skipped, as are schedules that are unfit for it or that call a
    leaf which it declares missing.
    """
    only.validate()
    result = Sweep()
    for op in programs.names():
        for backend in backends():
            for arch in ARCHS.values():
                if not only.accepts(op, backend, arch.name) or not leaf_files(backend, op):
                    continue
                program = programs.get(op)
                for knobs in combinations(program, arch, level):
                    instance = Instance(program, backend, arch, knobs, frame(backend))
                    if not only.matches(instance.id):
                        continue
                    violations = check(program, knobs, arch)
                    if violations:
                        result.refused.append((instance, violations))
                    elif _can_spell(backend, program, arch, knobs):
                        result.kept.append(instance)
    result.kept.sort(key=lambda instance: (instance.arch.name, instance.id))
    return result
