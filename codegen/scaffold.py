"""`python -m codegen new <op>`: the files of a new kernel, complete in shape and failing until they are written."""

from __future__ import annotations

import keyword
from pathlib import Path

from dsl_kernels import programs
from dsl_kernels.errors import InvalidArgumentError

from .emit import ROOT

_PROBLEM = '''"""{title}: what it computes, its reference and its workloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .base import Comparison, Operand, Problem, Workload

OPERANDS = (
    Operand("x", ("rows", "columns"), "float32"),
    Operand("y", ("rows", "columns"), "float32", "out"),
)


def make(workload: Workload, generator: torch.Generator) -> dict[str, Any]:
    """Draw random inputs."""
    return {{"x": torch.randn(workload.params["rows"], workload.params["columns"], generator=generator)}}


def reference(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The expected outputs in float64."""
    raise NotImplementedError("write the reference of {op} in dsl_kernels/problems/{op}.py")


def compare(form: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], expected: Mapping[str, Any]) -> Comparison:
    """Figures against their limits."""
    result = Comparison()
    error = (outputs["y"].double() - expected["y"]).norm() / expected["y"].norm()
    result.require("y relative error", float(error), 1e-6)
    return result


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Each operand once."""
    return 8.0 * dims["rows"] * dims["columns"]


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """Operations by the dtype of the unit that runs them."""
    return {{"float32": 1.0 * dims["rows"] * dims["columns"]}}


PROBLEM = Problem(
    op="{op}",
    doc=__doc__,
    forms={{"default": OPERANDS}},
    workloads=(Workload("tiny", "tiny", "default", {{"rows": 3, "columns": 256}}),),
    make=make,
    reference=reference,
    compare=compare,
    bytes=moved_bytes,
    flops=flops,
)
'''

_PROGRAM = '''"""{title} as a tile program."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from types import SimpleNamespace
from typing import Any

from .. import problems
from ..arch import ArchSpec
from ..tile.lang import Body, Buffer, Counts, Knob, Role, Schedule, Space, TileProgram
from ..tile.machine import Machine

KNOBS = (Knob("threads", "t", ((128,), (256,)), "threads a CTA"),)


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    return Schedule(
        roles=(Role("work", k.threads // 32),),
        buffers=(Buffer("row", Space.SHARED, (256,), "float32"),),
        pipelines=(),
        mmas=(),
        grid=("rows",),
    )


def _work(m: Machine) -> Generator[Any, None, None]:
    raise NotImplementedError("write the body of {op} in dsl_kernels/programs/{op}.py")
    yield


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    return {{"work": _work}}


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """The sizes that decide which variant is best."""
    return {{"rows": dims["rows"], "columns": dims["columns"]}}


def counts(k: SimpleNamespace, schedule: Schedule, dims: Mapping[str, int]) -> Counts:
    """A row in, a row out."""
    return Counts(loaded=4 * dims["columns"], stored=4 * dims["columns"])


PROGRAM = TileProgram(
    op="{op}", problem=problems.get("{op}"), knobs=KNOBS, declare=declare, bodies=bodies, bucket=bucket, counts=counts
)
'''

_TEMPLATE = """import tilelang.language as T

PASS_CONFIGS: dict = {{}}


def program():
    rows, columns = T.dynamic("rows"), T.dynamic("columns")

    @T.prim_func
    def {{{{ id }}}}(x: T.Tensor((rows, columns), "float32"), y: T.Tensor((rows, columns), "float32")):
        with T.Kernel(rows, threads={{{{ threads }}}}) as row:
            raise NotImplementedError("write the kernel in templates/tilelang/{op}.py.j2")

    return {{{{ id }}}}
"""

_TEST = '''"""{title}: every workload on every executor that can run here. The shared tests cover its variants too."""

from __future__ import annotations

import pytest
import torch

from dsl_kernels import problems

PROBLEM = problems.get("{op}")


@pytest.mark.parametrize("workload", PROBLEM.workloads, ids=lambda w: w.name)
def test_reference_is_written_and_finite(workload) -> None:
    inputs = PROBLEM.make(workload, torch.Generator().manual_seed(0))
    for name, value in PROBLEM.reference(workload.form, inputs).items():
        assert not value.isnan().all(), name
'''


def scaffold(op: str, root: Path = ROOT) -> list[Path]:
    """Write the four files of a new operation below `root` and return their paths.

    Raises:
        InvalidArgumentError: not a usable name, or a file is already there.
    """
    if not op.isidentifier() or keyword.iskeyword(op) or op != op.lower() or "__" in op or op.startswith("_"):
        raise InvalidArgumentError(
            "op",
            expected="a snake_case name without double underscores",
            got=repr(op),
            fix="try e.g. gqa_forward",
        )
    title = op.replace("_", " ").capitalize()
    files = {
        root / "dsl_kernels" / "problems" / f"{op}.py": _PROBLEM,
        root / "dsl_kernels" / "programs" / f"{op}.py": _PROGRAM,
        root / "templates" / "tilelang" / f"{op}.py.j2": _TEMPLATE,
        root / "tests" / "numerics" / f"test_{op}.py": _TEST,
    }
    taken = [path for path in files if path.exists()]
    if taken:
        raise InvalidArgumentError(
            "op",
            expected=f"a name beside {', '.join(programs.names())}",
            got=f"{taken[0].name} exists",
            fix="choose another name",
        )
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(op=op, title=title))
    return list(files)
