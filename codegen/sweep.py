"""The sweep: every combination of a program's knobs at a level, sorted into kept and refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from dsl_kernels import programs
from dsl_kernels.arch import ARCHS, ArchSpec
from dsl_kernels.errors import InvalidArgumentError, UnknownNameError, did_you_mean
from dsl_kernels.tile.lang import TileProgram

from .check import Violation, check

ROOT = Path(__file__).resolve().parent.parent
TEMPLATES = ROOT / "templates"
DEVICE = ROOT / "dsl_kernels" / "device"
FRAME = "_frame.py.j2"


@dataclass(frozen=True)
class Candidate:
    """One point of the sweep: a program, a backend, an architecture and a value for each knob."""

    program: TileProgram
    backend: str
    arch: ArchSpec
    knobs: dict[str, Any]
    template: Path

    @property
    def id(self) -> str:
        return self.program.variant_id(self.backend, self.arch, self.knobs)


@dataclass
class Sweep:
    """Kept candidates in a fixed order, and refused ones with their violations."""

    kept: list[Candidate] = field(default_factory=list)
    refused: list[tuple[Candidate, list[Violation]]] = field(default_factory=list)


@dataclass(frozen=True)
class Filter:
    """What to generate: each field narrows; `name` is a regular expression searched in the variant id."""

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
        """Raise UnknownNameError for a field that can match nothing, InvalidArgumentError for a malformed name."""
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
    """A backend exists where it has a folder of templates."""
    return sorted(
        path.name for path in TEMPLATES.iterdir() if path.is_dir() and not path.name.startswith("_")
    )


def leaf_files(backend: str, op: str) -> list[Path]:
    """The files of an operation's leaves in a DSL: `<op>.py`, and `<op>_<what>.py` unless an operation has that name."""
    names = programs.names()

    def owner(stem: str) -> str:
        return max(
            (name for name in names if stem == name or stem.startswith(f"{name}_")), key=len, default=""
        )

    return [path for path in (DEVICE / backend).glob(f"{op}*.py") if owner(path.stem) == op]


def frame(backend: str) -> Path:
    """The template around the text of a kernel in a DSL."""
    return TEMPLATES / backend / FRAME


def combinations(program: TileProgram, arch: ArchSpec, level: int, backend: str) -> Iterator[dict[str, Any]]:
    """Every assignment of the knobs that apply to `arch` and that `backend` has a use for, in declared order."""
    knobs = [knob for knob in program.knobs if not knob.archs or arch.name in knob.archs]
    for values in product(*(knob.values(level) for knob in knobs)):
        assignment = dict(zip((knob.name for knob in knobs), values, strict=True))
        if program.useful is None or program.useful(SimpleNamespace(**assignment), arch, level, backend):
            yield assignment


def sweep(level: int = 0, only: Filter = Filter()) -> Sweep:
    """All candidates at `level` that pass `only`, checked against their architectures.

    A DSL that has no leaves of an operation takes no part in it.
    """
    only.validate()
    result = Sweep()
    for op in programs.names():
        for backend in backends():
            for arch in ARCHS.values():
                if not only.accepts(op, backend, arch.name) or not leaf_files(backend, op):
                    continue
                program = programs.get(op)
                for knobs in combinations(program, arch, level, backend):
                    candidate = Candidate(program, backend, arch, knobs, frame(backend))
                    if not only.matches(candidate.id):
                        continue
                    violations = check(program, knobs, arch)
                    if violations:
                        result.refused.append((candidate, violations))
                    else:
                        result.kept.append(candidate)
    result.kept.sort(key=lambda candidate: (candidate.arch.name, candidate.id))
    return result
