"""The launch description of one compiled variant (`meta.json`): what an executor needs besides the code.

An artifact folder holds

    kernel.cu      the DSL's CUDA source, if the DSL emits CUDA
    kernel.ptx     what the emulator runs; kernel.cubin was assembled from exactly this text
    kernel.cubin   what the GPU runs
    meta.json      an `Artifact`, with the SHA-256 of each file above; no paths, times or hosts
    build.json     how long each step took (informative, never hashed)

A size that is only known at the call is an expression (`dsl_kernels.expr`) over the names of dims and scalar
operands.
"""

from __future__ import annotations

import hashlib
import json
import keyword
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from dsl_kernels.abi import Launch as Launch
from dsl_kernels.abi import Operand as Operand
from dsl_kernels.abi import TensorMap as TensorMap
from dsl_kernels.abi import dims_of as dims_of
from dsl_kernels.arguments import checked
from dsl_kernels.errors import ArtifactError
from dsl_kernels.expr import names_in

from .storage import read_file
from .toolkit import AssemblerReport

SCHEMA = 1
META = "meta.json"
BUILD = "build.json"
CODE_FILES = ("kernel.cu", "kernel.ptx", "kernel.cubin")

# struct codes and sizes of the parameter kinds that are passed by value.
SCALAR_FORMATS = {
    "bool": "?",
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float32": "f",
    "float64": "d",
}


@dataclass(frozen=True)
class Param:
    """One parameter of the kernel's entry, in order.

    `kind` is `pointer` (value: the operand's address), `tensormap` (128 bytes by value, named in
    `tensor_maps`) or a scalar type of `SCALAR_FORMATS`. `source` names the operand, tensor map or scalar it
    comes from, or is an expression over dims and scalars.
    """

    name: str
    kind: str
    source: str


@dataclass(frozen=True)
class Resources(AssemblerReport):
    """What one CTA or thread holds, as the assembler reports it.

    `registers`, `barriers` and `tmem_columns` are counts, the rest is bytes.
    """

    dynamic_smem: int
    tmem_columns: int


@dataclass(frozen=True)
class Artifact:
    """Everything an executor must know to launch one compiled variant.

    The driver runs all CTAs of a `cooperative` launch at once, or refuses it. If `resident` (an expression
    over dims and scalars) is given, this holds only for launches where it is not zero.
    """

    variant: str
    backend: str
    arch: str
    entry: str
    operands: tuple[Operand, ...]
    params: tuple[Param, ...]
    dims: Mapping[str, tuple[str, str, int]]
    grid: tuple[str, str, str]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    dynamic_smem: int
    cooperative: bool
    programmatic_launch: bool
    tensor_maps: tuple[TensorMap, ...]
    resources: Resources
    evidence: Mapping[str, int]
    toolchain: Mapping[str, str]
    files: Mapping[str, str] = field(default_factory=dict)
    schema: int = SCHEMA
    resident: str = ""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def op(self) -> str:
        return self.variant.split("__", 1)[0]

    @property
    def scalars(self) -> tuple[str, ...]:
        """Names of the operands that are passed as numbers."""
        return tuple(o.name for o in self.operands if o.kind == "scalar")

    def to_json(self) -> str:
        """Canonical text: the same artifact always gives the same bytes."""
        return json.dumps(asdict(self), indent=1, sort_keys=True) + "\n"

    @classmethod
    @checked
    def from_json(cls, text: str, where: str = META) -> Artifact:
        """Read `meta.json`, refusing whatever a launcher could not trust."""
        try:
            raw = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _malformed(where, "JSON", str(error)) from None
        if not isinstance(raw, dict):
            raise _malformed(where, "a JSON object", type(raw).__name__)
        if raw.get("schema") != SCHEMA:
            raise _malformed(where, f"schema {SCHEMA}", f"schema {raw.get('schema')!r}")
        try:
            nested: dict[str, Any] = {
                "operands": tuple(_build(Operand, item) for item in raw["operands"]),
                "params": tuple(_build(Param, item) for item in raw["params"]),
                "tensor_maps": tuple(_build(TensorMap, item) for item in raw["tensor_maps"]),
                "resources": _build(Resources, raw["resources"]),
                "dims": {
                    name: (source[0], source[1], int(source[2])) for name, source in raw["dims"].items()
                },
            }
            artifact: Artifact = _build(cls, raw, nested)
            return artifact
        except (KeyError, TypeError, AttributeError, IndexError, ValueError) as error:
            raise _malformed(where, "the fields of an artifact", f"{type(error).__name__}: {error}") from None

    def seal(self, folder: Path) -> Artifact:
        """Write `meta.json` into `folder`, after all other files, with the hashes of its code files."""
        files = {name: sha256(folder / name) for name in CODE_FILES if (folder / name).is_file()}
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        sealed = Artifact(**{**values, "files": files})
        (folder / META).write_text(sealed.to_json())
        return sealed


@checked
def read(folder: Path, *, verify: bool = True) -> Artifact:
    """The artifact in `folder`; `verify` compares every code file with its recorded hash."""
    try:
        text = read_file(folder / META).decode(errors="replace")
    except OSError as error:
        absent = isinstance(error, FileNotFoundError | NotADirectoryError)
        raise ArtifactError(
            str(folder),
            expected=f"a compiled variant with {META}",
            got="no such file" if absent else f"{error.filename}: {error.strerror}",
            fix="compile the variant again",
        ) from None
    artifact = Artifact.from_json(text, str(folder / META))
    for name, digest in artifact.files.items() if verify else ():
        try:
            actual = sha256(folder / name)
        except OSError as error:
            actual = "no such file" if isinstance(error, FileNotFoundError) else str(error.strerror)
        if actual != digest:
            raise ArtifactError(
                str(folder / name),
                expected=f"SHA-256 {digest[:16]}",
                got=actual[:20],
                fix="delete the folder and compile the variant again",
            )
    return artifact


def sha256(path: Path) -> str:
    """Hex digest of a file."""
    return hashlib.sha256(read_file(path)).hexdigest()


def _malformed(where: str, expected: str, got: str) -> ArtifactError:
    return ArtifactError(
        where, expected=expected, got=got, fix="delete the folder and compile the variant again"
    )


def _build(cls: type, raw: Mapping[str, Any], replaced: Mapping[str, Any] | None = None) -> Any:
    known = {f.name for f in fields(cls)}
    if unknown := sorted(set(raw) - known):
        raise ValueError(f"unknown field {unknown[0]!r} of {cls.__name__}")
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}
    return cls(**{**values, **(replaced or {})})


def _check(a: Artifact) -> None:
    """Internal consistency: every name resolves, every size is sane."""
    where = f"{META} of {a.variant}"

    def require(condition: bool, expected: str, got: object) -> None:
        if not condition:
            raise _malformed(where, expected, str(got))

    # The launcher and the expressions are written out with these names.
    for name in (*(o.name for o in a.operands), *a.dims):
        require(name.isidentifier() and not keyword.iskeyword(name), "identifiers as names", repr(name))
    tensors = {o.name for o in a.operands if o.kind == "tensor"}
    scalars = set(a.scalars)
    maps = {m.name for m in a.tensor_maps}
    values = scalars | set(a.dims)
    require(
        len(tensors) + len(scalars) == len(a.operands),
        "distinct tensor or scalar operands",
        [o.name for o in a.operands],
    )
    for name, (operand, what, axis) in a.dims.items():
        require(
            operand in tensors and what in ("shape", "stride") and axis >= 0,
            f"a source for dim {name}",
            (operand, what, axis),
        )
    for param in a.params:
        if param.kind in SCALAR_FORMATS:
            resolved = names_in(param.source) <= values
        else:
            require(param.kind in ("pointer", "tensormap"), "a known parameter kind", param.kind)
            resolved = param.source in (tensors if param.kind == "pointer" else maps)
        require(resolved, f"a source of kind {param.kind} for {param.name}", param.source)
    require(
        len(a.grid) == len(a.block) == len(a.cluster) == 3,
        "three dimensions of grid, block and cluster",
        (a.grid, a.block),
    )
    require(
        all(isinstance(n, int) and n >= 1 for n in (*a.block, *a.cluster)),
        "positive block and cluster",
        (a.block, a.cluster),
    )
    require(
        isinstance(a.dynamic_smem, int) and a.dynamic_smem >= 0,
        "dynamic shared memory in bytes",
        a.dynamic_smem,
    )
    for text in (*a.grid, *((a.resident,) if a.resident else ())):
        require(names_in(text) <= values, f"a grid over {sorted(values)}", text)
    for tmap in a.tensor_maps:
        require(tmap.operand in tensors, f"an operand for tensor map {tmap.name}", tmap.operand)
        rank = len(tmap.global_dims)
        require(
            1 <= rank <= 5
            and len(tmap.global_strides) == rank - 1
            and len(tmap.box) == len(tmap.element_strides) == rank,
            f"one to five dimensions in tensor map {tmap.name}",
            rank,
        )
        for text in (*tmap.global_dims, *tmap.global_strides):
            require(names_in(text) <= values, f"tensor map {tmap.name} over {sorted(values)}", text)
