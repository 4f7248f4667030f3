"""A new statement takes three edits: its class, its meaning, and its macro in a DSL."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from codegen.printer import Printer
from codegen.render import environment
from codegen.sweep import backends
from dsl_kernels.arch import ARCHS, GPUS
from dsl_kernels.clock import Kernel, rates_of
from dsl_kernels.clock.sm import Share, Sm
from dsl_kernels.errors import DeclarationError, DslKernelError
from dsl_kernels.problems.base import OperandSpec, Problem
from dsl_kernels.tile import statements
from dsl_kernels.tile import text as t
from dsl_kernels.tile.counting import counts_of
from dsl_kernels.tile.executor import Executor
from dsl_kernels.tile.expressions import Value
from dsl_kernels.tile.frontend import Int32, recorded
from dsl_kernels.tile.interpreter import Interpreter
from dsl_kernels.tile.kinds import Float32, Global, Shared, Writes
from dsl_kernels.tile.lang import PROBE, START, SUMS, Buffer, Role, Schedule, Space
from dsl_kernels.tile.leaf_text import by_text
from dsl_kernels.tile.memory import View
from dsl_kernels.tile.plan import barrier_plan
from dsl_kernels.tile.probes import probed
from dsl_kernels.tile.program import TileProgram
from dsl_kernels.tile.statements import Assigns, Counter, Meets, Statement

ARCH = ARCHS["sm_90a"]


# The first edit, in statements.py: the class.


@dataclass(frozen=True, eq=False)
class Stamp(Statement):
    """After a meeting, sets all of a shared buffer to `value`, and counts in a counter and a variable."""

    target: View
    value: Value
    counter: Counter
    times: Assigns
    name: Meets


# The second edit, in executor.py: the meaning.


def do_stamp(self: Executor, stamp: Stamp) -> Generator[Any, None, None]:
    yield from self.meet(stamp.name)
    self._view(stamp.target).fill_(self._value(stamp.value))
    counter = self._run.operands[stamp.counter]
    counter[0] += 1
    self._scope[stamp.times] = int(counter[0])


# The third edit, in a DSL's _spelling.j2: the macro.
MACRO = """
{% macro stamp(x) %}
barrier({{ x.number }}, {{ x.threads }})
{{ x.times }} = stamp({{ x.target }}, {{ x.value }}, {{ x.counter }})
{% endmacro %}
"""


@by_text
def write_out(m: t.Recorder, y: Writes[Global[Float32]], held: Shared[Float32], times: Int32) -> None:
    """Write the content of the buffer, and how often it was stamped."""
    y[m.thread] = held[m.thread % 8] + times


OPERANDS = (
    OperandSpec("seen", (1,), "int32", "workspace"),
    OperandSpec("y", (32,), "float32", "out"),
    OperandSpec("turns", (), "int32", "scalar"),
)


def schedule(*buffers: str) -> Schedule:
    return Schedule(
        roles=(Role("work", 1, doc="stamps"),),
        buffers=tuple(Buffer(name, Space.SHARED, (8,), "float32") for name in ("held_s", *buffers)),
        pipelines=(),
        mmas=(),
        grid=("1",),
        axes=("cta",),
        named_barriers={"all": ("work",)},
    )


@recorded
def work(m: t.Recorder) -> None:
    times: Int32 = 0
    for i in range(m.dim("turns")):
        m.say(Stamp(m.buffer("held_s"), i * 2, "seen", "times", "all"))
    write_out(m, m.operand("y"), m.buffer("held_s"), times)


def program(body: Callable[[t.Recorder], None] = work, declared: Schedule | None = None) -> TileProgram:
    none: Any = lambda *_: {}  # noqa: E731
    problem = Problem("toy", "", {"default": OPERANDS}, none, none)
    bodies = {START: lambda m: m.depend(), "work": body}
    return TileProgram("toy", problem, (), lambda k, arch: declared or schedule(), lambda k, arch: bodies)


@pytest.fixture
def meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Executor, "do_stamp", do_stamp, raising=False)


def spelled(text: t.Text, spelling: Any) -> list[str]:
    declared = schedule()
    printer = Printer(declared, barrier_plan(declared), spelling, lambda name: "leaves")
    return printer.lines(text.roles["work"], declared.role("work"))


def with_macro(dsl: str) -> SimpleNamespace:
    """The macros of a DSL, and the new one."""
    there = vars(environment().get_template(f"{dsl}/_spelling.j2").module)
    return SimpleNamespace(**there, stamp=environment().from_string(MACRO).module.stamp)


def test_it_is_interpreted(meaning: None) -> None:
    y, seen = torch.zeros(32), torch.zeros(1, dtype=torch.int32)
    Interpreter(0).launch(program(), {}, ARCH, {"seen": seen, "y": y, "turns": 3}, {})
    # The last of three stamps writes 4, and `times` is 3.
    assert y.tolist() == [7.0] * 32 and seen.tolist() == [3]


@pytest.mark.parametrize("dsl", backends())
def test_it_is_printed_by_its_fields(dsl: str) -> None:
    lines = spelled(program().text({}, ARCH), with_macro(dsl))
    at = next(i for i, line in enumerate(lines) if "stamp(" in line)
    assert [line.strip() for line in lines[at - 1 : at + 1]] == [
        "barrier(ALL_BARRIER, WORK_THREADS)",
        "times = stamp(held_s, i * 2, seen)",
    ]


def test_its_effects_are_what_the_checks_of_a_text_go_by() -> None:
    """Without what the class declares, the buffer, the barrier and the counter count as unused."""
    text = program().text({}, ARCH)
    (stamp,) = (s for s in t.walk(text.roles["work"]) if isinstance(s, Stamp))
    assert (stamp.touches(), stamp.meets(), stamp.reads(), stamp.writes()) == (
        {"held_s"},
        "all",
        {"seen"},
        {"seen"},
    )
    assert dict(stamp.sets()) == {"times": None} and not stamp.blocks


@recorded
def silent(m: t.Recorder) -> None:
    times: Int32 = 0
    write_out(m, m.operand("y"), m.buffer("held_s"), times)


@recorded
def undeclared_value(m: t.Recorder) -> None:
    work(m)
    m.say(Stamp(m.buffer("held_s"), t.name("nobody"), "seen", "times", "all"))


@recorded
def undeclared_variable(m: t.Recorder) -> None:
    m.say(Stamp(m.buffer("held_s"), 1, "seen", "nobody", "all"))


@recorded
def undeclared_barrier(m: t.Recorder) -> None:
    times: Int32 = 0
    m.say(Stamp(m.buffer("held_s"), 1, "seen", "times", "nobody"))
    write_out(m, m.operand("y"), m.buffer("held_s"), times)


@recorded
def undeclared_operand(m: t.Recorder) -> None:
    times: Int32 = 0
    m.say(Stamp(m.buffer("held_s"), 1, "nobody", "times", "all"))
    write_out(m, m.operand("y"), m.buffer("held_s"), times)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (silent, "named barrier all"),
        (undeclared_value, "value nobody"),
        (undeclared_variable, "a declared variable; got nobody"),
        (undeclared_barrier, "a declared named barrier: all; got nobody"),
        (undeclared_operand, "a declared operand; got nobody"),
    ],
)
def test_a_text_that_says_it_wrongly_is_refused(body: Callable[[t.Recorder], None], what: str) -> None:
    with pytest.raises(DslKernelError, match=what):
        program(body).text({}, ARCH)


def test_probes_count_it_and_the_cost_model_reads_past_it() -> None:
    text = program().text({}, ARCH)
    regions = probed(text, schedule(), SUMS).regions["work"]
    assert "stamp" in regions, regions
    counts = counts_of(program(), {PROBE.name: 0}, ARCH)({"turns": 3})
    assert (counts.loaded, counts.stored, dict(counts.flops)) == (0, 0, {})


def test_the_clock_goes_by_what_it_declares() -> None:
    """Three stamps are three meetings of the roles, whatever a stamp means."""
    gpu, text = GPUS["H100"], program().text({}, ARCH)
    counts = counts_of(program(), {PROBE.name: 0}, ARCH)({"turns": 3})

    def clocks(turns: int) -> float:
        kernel = Kernel(schedule(), text, {})
        dims = {"turns": turns}
        share = Share.of(kernel.schedule, gpu, rates_of(gpu), dims, counts, 0.0)
        return Sm(kernel, rates_of(gpu), dims, share).walk().clocks

    assert clocks(6) - clocks(3) >= 3 * rates_of(gpu).meet


def test_without_a_meaning_or_a_macro_the_error_says_where_to_write_it() -> None:
    with pytest.raises(DeclarationError, match=r"Stamp in the interpreter.*write Executor\.do_stamp"):
        operands = {"seen": torch.zeros(1, dtype=torch.int32), "y": torch.zeros(32), "turns": 3}
        Interpreter().launch(program(), {}, ARCH, operands, {})
    with pytest.raises(DslKernelError, match="a macro stamp"):
        spelled(program().text({}, ARCH), environment().get_template("cutedsl/_spelling.j2").module)


def kinds() -> list[type[Statement]]:
    classes = [kind for kind in vars(t).values() if inspect.isclass(kind)]
    return [kind for kind in classes if issubclass(kind, Statement) and kind is not Statement]


def test_every_statement_of_ours_has_a_meaning() -> None:
    """A statement that only sets names to its values, or only meets, needs no meaning of its own."""
    declared = {"let", "variable", "assign", "meet", "publish", "tear_down"}
    titles = {kind.title() for kind in kinds()}
    assert {title for title in titles if not hasattr(Executor, f"do_{title}")} == declared


def test_every_statement_of_ours_marks_what_it_names() -> None:
    """Every string field names a buffer, a barrier, an operand or a value, with a few exceptions."""
    unmarked = {
        *("Variable.dtype", "Assign.dtype", "Region.name", "PipelineOp.kind", "Comment.text"),
        *("TakeTurn.name", "PassTurn.name", "CountOut.name"),
    }
    assert unmarked == {
        f"{kind.__name__}.{field.name}"
        for kind in kinds()
        for field in dataclasses.fields(kind)
        if field.type == "str" and not any(field.name in f for f in statements._fields(kind).values())
    }
