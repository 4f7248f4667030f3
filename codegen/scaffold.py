"""`python -m codegen new <op>`: the files of a new kernel, complete in shape but failing until written."""

from __future__ import annotations

import keyword
from pathlib import Path

from dsl_kernels import programs
from dsl_kernels.errors import InvalidArgumentError

from .render import environment
from .sweep import ROOT, TEMPLATES, backends

_CASES = '''"""Cases of the leaves of {op}, each as every DSL prints it against its text as interpreted."""

from __future__ import annotations

import torch
from leaf_probes import Probe, case

from dsl_kernels.kernels.{op} import leaves as leaf

COLUMNS = 256
EACH = COLUMNS // leaf.THREADS


@case(leaf.read_row)
def read_row(p: Probe) -> None:
    p.threads = leaf.THREADS
    p.call(p.own("held", EACH), p.shared("row", (COLUMNS,), p.normal(COLUMNS), slot=True))


@case(leaf.write_row)
def write_row(p: Probe) -> None:
    p.threads = leaf.THREADS
    y, held = p.operand("y", torch.zeros(3, COLUMNS), out=True), p.normal(leaf.THREADS, EACH)
    p.call(y, p.dim("row", 1), p.own("held", EACH, held, out=False))
'''

LEAVES = "_leaves.py.j2"
"""Template of the file by which a DSL takes part in an operation; not every DSL needs one."""

_FOLDER = '''"""{title}, a kernel in a folder of its own."""
'''

_ORACLE = '''"""{title}: drawn inputs, the reference, tolerances and workloads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dsl_kernels.kernels.{op}.problem import PROBLEM
from dsl_kernels.problems.base import Comparison, Oracle, Workload


def make(workload: Workload, generator: torch.Generator) -> dict[str, Any]:
    """Draw random inputs."""
    return {{"x": torch.randn(workload.params["rows"], workload.params["columns"], generator=generator)}}


def reference(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The expected outputs in float64."""
    raise NotImplementedError("write the reference in dsl_kernels_lab/oracles/{op}.py")


def compare(
    form: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], expected: Mapping[str, Any]
) -> Comparison:
    """Figures against their limits."""
    result = Comparison()
    error = (outputs["y"].double() - expected["y"]).norm() / expected["y"].norm()
    result.require("y relative error", float(error), 1e-6)
    return result


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """Operations by the dtype of the unit that runs them."""
    return {{"float32": 1.0 * dims["rows"] * dims["columns"]}}


ORACLE = Oracle(
    **vars(PROBLEM),
    workloads=(Workload("tiny", "tiny", "default", {{"rows": 3, "columns": 256}}),),
    make=make,
    reference=reference,
    compare=compare,
    flops=flops,
)
'''

_PROBLEM = '''"""{title}: what a caller gives and gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ...problems.base import OperandSpec, Problem

OPERANDS = (
    OperandSpec("x", ("rows", "columns"), "float32"),
    OperandSpec("y", ("rows", "columns"), "float32", "out"),
)


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Each operand once."""
    return 8.0 * dims["rows"] * dims["columns"]


def points(grid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The sizes that `bench` times."""
    yield "default", {{"rows": 4096, "columns": 256}}


PROBLEM = Problem(
    op="{op}",
    doc=__doc__,
    forms={{"default": OPERANDS}},
    bytes=moved_bytes,
    points=points,
)
'''

_PROGRAM = '''"""{title} as a tile program: one warp loads rows into a ring, four warps process them."""

from __future__ import annotations

from types import SimpleNamespace

from ... import problems
from ...arch import ArchSpec
from ...problems.base import OperandSpec
from ...tile.channel import Channel
from ...tile.frontend import Int32, Names, State, recorded
from ...tile.lang import START, Body, Buffer, Engine, Knob, Pipeline, Reader, Role, Schedule, Space
from ...tile.program import TileProgram
from ...tile.text import Global, Recorder, Value, View, ceildiv, dim
from . import leaves as leaf

KNOBS = (
    Knob("columns", "n", ((256,), (512, 1024)), "elements of a row; calls of another length are refused"),
    Knob("stages", "st", ((2,), (3,)), "rows in flight"),
)


def declare(k: SimpleNamespace, arch: ArchSpec) -> Schedule:
    each = k.columns // leaf.THREADS
    return Schedule(
        roles=(Role("work", leaf.WARPS, doc="a row"), Role("load", 1, doc="rows into the ring")),
        buffers=(
            Buffer("row_s", Space.SHARED, (k.columns,), "float32", k.stages),
            Buffer.own("held", "work", each, threads=leaf.THREADS),
        ),
        pipelines=(
            Pipeline("ring", ("row_s",), "load", Engine.BULK, (Reader("work", Engine.THREADS),), k.stages),
        ),
        mmas=(),
        grid=(dim("ctas"),),
        axes=("cta",),
    )  # fmt: skip


class Kernel(Names):
    """Pipelines, operands, sizes and buffers by name."""

    ring: Channel
    x: Global
    y: Global
    rows: Int32
    ctas: Int32
    held: View


class Rows(State, Kernel):
    """The rows of this CTA: the one of its own number, and every `ctas`th row after it."""

    count: Value


@recorded
def _start(m: Recorder) -> Rows:
    """What every thread does first. The returned state is passed to every role."""
    s = Rows(m)
    s.count = ceildiv(s.rows - m.block(0), s.ctas)
    m.barriers_stand()
    return s


@recorded
def _load(m: Recorder, s: Rows) -> None:
    """Copy one row into each slot."""
    for it in range(s.count):
        slot = s.ring.producer.acquire(it)
        m.bulk(slot.row_s, s.x.span(m.block(0) + it * s.ctas, m.k.columns), slot)
        slot.commit()


@recorded
def _work(m: Recorder, s: Rows) -> None:
    """Read each row from its slot, and write its result."""
    for it in range(s.count):
        slot = s.ring.reader.wait(it)
        leaf.read_row(m, s.held, slot.row_s)
        slot.release()
        leaf.write_row(m, s.y, m.block(0) + it * s.ctas, s.held)


def bodies(k: SimpleNamespace, arch: ArchSpec) -> dict[str, Body]:
    return {{START: _start, "work": _work, "load": _load}}


PROGRAM = TileProgram(
    op="{op}",
    problem=problems.get("{op}"),
    knobs=KNOBS,
    declare=declare,
    bodies=bodies,
    scratch=(OperandSpec("ctas", (), "int32", "scalar", doc="CTAs that take rows in turn"),),
)
'''

_POLICY = '''"""How {op} is launched, and how its variants rank."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace

from ...arch import GpuSpec
from ...tile.lang import LaunchPlan, Policy


def launch(k: SimpleNamespace, dims: Mapping[str, int], gpu: GpuSpec) -> LaunchPlan:
    """Four CTAs per SM take rows in turn."""
    return LaunchPlan(ctas=max(1, min(dims["rows"], 4 * gpu.sms)))


def bucket(form: str, dims: Mapping[str, int]) -> dict[str, int]:
    """The sizes that decide which variant is best."""
    return {{"rows": dims["rows"], "columns": dims["columns"]}}


POLICY = Policy(bucket=bucket, launch=launch)
'''

_TEXT = '''"""Leaves of {op}, by their text: what one thread does with numbers, registers and memory.

Each thread of the role holds every 128th column.
"""

from __future__ import annotations

from ...tile.counting import moves
from ...tile.frontend import unrolled
from ...tile.kinds import Float32, Global, Int32, LeafRecorder, Registers, Shared, Writes
from ...tile.leaf_text import WARP, by_text

WARPS = 4
THREADS = WARP * WARPS


@by_text
def read_row(m: LeafRecorder, held: Registers[Float32], row: Shared[Float32]) -> None:
    """Read a row from shared memory."""
    for i in unrolled(held.size):
        held[i] = row[i * THREADS + m.thread]


@moves(stored=lambda held: held)
@by_text
def write_row(m: LeafRecorder, y: Writes[Global[Float32]], row: Int32, held: Registers[Float32]) -> None:
    """Write the result of a row."""
    raise NotImplementedError("write the leaves in dsl_kernels/kernels/{op}/leaves.py")
'''

_TEST = '''"""{title}: its reference on every workload. The shared tests cover its variants."""

from __future__ import annotations

import pytest
import torch

from dsl_kernels_lab import oracles

ORACLE = oracles.get("{op}")


@pytest.mark.parametrize("workload", ORACLE.workloads, ids=lambda w: w.name)
def test_reference_is_written_and_finite(workload) -> None:
    inputs = ORACLE.make(workload, torch.Generator().manual_seed(0))
    for name, value in ORACLE.reference(workload.form, inputs).items():
        assert not value.isnan().all(), name
'''


def leaves(backend: str, op: str) -> str:
    """The file of a new operation for a DSL, from the DSL's template."""
    return environment().get_template(f"{backend}/{LEAVES}").render(op=op)


def scaffold(op: str, root: Path = ROOT) -> list[Path]:
    """Write the files of a new operation below `root` and return their paths.

    Raises:
        InvalidArgumentError: the name is not usable, or a file exists already.
    """
    if not op.isidentifier() or keyword.iskeyword(op) or op != op.lower() or "__" in op or op.startswith("_"):
        raise InvalidArgumentError(
            "op",
            expected="a snake_case name without double underscores",
            got=repr(op),
            fix="try e.g. gqa_forward",
        )
    title = op.replace("_", " ").capitalize()
    folder, tests = root / "dsl_kernels" / "kernels" / op, root / "tests" / "kernels" / op
    files = {
        folder / "__init__.py": _FOLDER,
        folder / "problem.py": _PROBLEM,
        folder / "program.py": _PROGRAM,
        folder / "policy.py": _POLICY,
        folder / "leaves.py": _TEXT,
        root / "dsl_kernels_lab" / "oracles" / f"{op}.py": _ORACLE,
        tests / f"test_{op}.py": _TEST,
        tests / f"leaves_{op}.py": _CASES,
    }
    files = {path: text.format(op=op, title=title) for path, text in files.items()}
    for backend in backends():
        if not (TEMPLATES / backend / LEAVES).exists():
            continue
        files[folder / f"{backend}.py"] = leaves(backend, op)
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
        path.write_text(text)
    return list(files)
