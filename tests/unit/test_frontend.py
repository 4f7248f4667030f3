"""Bodies in plain Python: what is recorded, and what is refused at which line (docs/statements.md)."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dsl_kernels import kernels, programs
from dsl_kernels.arch import ARCHS
from dsl_kernels.errors import DeclarationError, DslKernelError
from dsl_kernels.problems.base import OperandSpec
from dsl_kernels.tile import places
from dsl_kernels.tile import text as t
from dsl_kernels.tile.frontend import (
    Boolean,
    Float32,
    Int32,
    State,
    Uint32,
    inline,
    named,
    recorded,
    rolled,
    unrolled,
)
from dsl_kernels.tile.lang import Role, Schedule
from dsl_kernels.tile.leaf_text import by_text, text_of
from dsl_kernels.tile.text import Changes, Recorder, Sets, Value

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "statements.md"
SCHEDULE = Schedule(
    roles=(Role("work", 4, doc="all of it"),), buffers=(), pipelines=(), mmas=(), grid=("rows",),
    axes=("row",)
)  # fmt: skip
OPERANDS = (OperandSpec("x", ("rows", 64), "float32"),)


def recorder() -> Recorder:
    return Recorder(SimpleNamespace(threads=128), SCHEDULE, ARCHS["sm_90a"], "work", OPERANDS)


def spelled(value: Any) -> str:
    if not isinstance(value, t.Expr):
        return str(value)
    if value.op in ("name", "word"):
        return str(value.args[0])
    return f"({value.op} {' '.join(map(spelled, value.args))})"


def lines(statements: Any, indent: str = "") -> list[str]:
    """Statements as text, one per line."""
    made: list[str] = []
    for s in statements:
        match s:
            case t.Let():
                said = f"let {s.name} = {spelled(s.value)}"
            case t.Variable():
                said = f"{s.dtype} {s.name} = {spelled(s.initial)}"
            case t.Assign():
                said = f"{s.name} = {spelled(s.value)}"
            case t.Loop():
                how = " unrolled" if s.unrolled else f" by {s.at_once}" if s.at_once > 1 else ""
                said = f"for {s.index} from {spelled(s.begin)} to {spelled(s.end)} step {s.step}{how}"
            case t.Repeat():
                said = f"while {spelled(s.condition)}"
            case t.If():
                said = f"if {spelled(s.condition)}"
            case t.Region():
                said = f"region {s.name}"
            case _:
                said = type(s).__name__
        made.append(indent + said)
        made += lines(getattr(s, "body", ()), indent + "  ")
        if getattr(s, "orelse", ()):
            made += [f"{indent}else", *lines(s.orelse, indent + "  ")]
    return made


def said(body: Callable[..., Any], *arguments: Any) -> list[str]:
    m = recorder()
    body(m, *arguments)
    return lines(m.statements)


@recorded
def branches(m: Recorder) -> None:
    found: Int32 = 0
    if m.thread == 3:
        found = 1
    elif m.thread < 2:
        found += 2
    else:
        found = 3


@recorded
def static_branches(m: Recorder) -> None:
    found: Int32 = 0
    if m.k.threads == 128:
        more = 5
    elif m.thread < 2:
        found = 1
    found = more


@recorded
def loops(m: Recorder) -> None:
    found: Int32 = 0
    for i in range(m.dim("rows")):
        found += i
    for i in range(1, m.dim("rows"), 2):
        found += i
    for number in range(2):
        found = number
    for i in rolled(4, at_once=2):
        found = i
    for i in unrolled(1, 3):
        found = i
    while (found < 3) & (m.thread > 2):
        found += 1


@recorded
def names(m: Recorder) -> None:
    twice = m.thread * 2
    again = inline(twice + 1)
    other = named("third", again * 3)
    found: Uint32 = other
    number = 7
    number += 1
    before = found
    found = before + number
    a, b = m.lane + 1, m.lane + 2
    close: Boolean = a < b
    rate: Float32 = 0.5
    close = ~close
    rate = rate * 2


@recorded
def conditions(m: Recorder) -> None:
    found: Int32 = 0
    if m.thread > 1 and m.lane < 3 and m.k.threads == 128:
        found = 1
    if m.k.threads == 64 or not m.lane < 3:
        found = 2
    if 0 < m.thread < 5:
        found = 3
    if m.k.threads == 64 and m.thread > 1:
        found = 4
    found = 5 if m.k.threads == 128 else 6


@recorded
def early(m: Recorder) -> None:
    found: Int32 = 0
    for i in range(m.dim("rows")):
        if i == 3:
            continue
        found += i
    if m.thread > 2:
        return
    if m.k.threads == 64:
        return
    found = 1


@recorded
def static_exits(m: Recorder) -> int:
    found: Int32 = 0
    for number in range(5):
        if number == 2:
            break
        found = number
    if m.k.threads == 128:
        return 3
    return 4


@recorded
def _into(m: Recorder, place: Sets, more: Changes) -> Value:
    place = m.thread
    more += 1
    return place


@recorded
def functions(m: Recorder) -> None:
    found: Int32 = 0
    more: Int32 = 0
    _into(m, found, more)

    def twice() -> None:
        nonlocal found
        own = m.lane * 2
        found = own
        if own > 3:
            found = 0

    twice()
    own: Int32 = 9
    own = 10


@recorded
def one_after_the_other(m: Recorder) -> None:
    found: Int32 = 0
    for i in range(m.dim("rows")):
        column = i * 2
        found += column
    for i in range(m.dim("rows")):
        column = i * 3
        found += column
    with m.region("sum"):
        total = found + 1
    found = total


class Range(State):
    end: Uint32
    need: Int32
    first: Value

    @recorded
    def narrow(self, by: Value) -> None:
        if by > 3:
            self.end -= by


@recorded
def state(m: Recorder) -> None:
    s = Range(m, need=m.dim("rows"), end=5)
    s.first = m.thread + 1
    s.need += 1
    s.narrow(s.first)


RECORDED: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "`if`, `elif`, `else`": (branches, [
        "int32 found = 0", "if (== worker 3)", "  found = 1", "else", "  if (< worker 2)",
        "    found = (+ found 2)",
        "  else", "    found = 3",
    ]),
    "a branch that Python decides": (static_branches, ["int32 found = 0", "found = 5"]),
    "`for ... in range(...)`, `rolled`, `unrolled`, `while`": (loops, [
        "int32 found = 0", "for i from 0 to rows step 1", "  found = (+ found i)",
        "for i from 1 to rows step 2",
        "  found = (+ found i)", "found = 0", "found = 1", "for i from 0 to 4 step 1 by 2", "  found = i",
        "for i from 1 to 3 step 1 unrolled", "  found = i", "while (& (< found 3) (> worker 2))",
        "  found = (+ found 1)",
    ]),
    "`x = ...`, `x: Int32 = ...`": (names, [
        "let twice = (* worker 2)", "let third = (* (+ twice 1) 3)", "uint32 found = third",
        "let before = found",
        "found = (+ before 8)", "bool close = (< (+ lane 1) (+ lane 2))", "float32 rate = 0.5",
        "close = (== close False)",
        "rate = (* rate 2)",
    ]),
    "`and`, `or`, `not`, `a < b < c`": (conditions, [
        "int32 found = 0", "if (& (> worker 1) (< lane 3))", "  found = 1", "if (== (< lane 3) False)",
        "  found = 2",
        "if (& (> worker 0) (< worker 5))", "  found = 3", "found = 5",
    ]),
    "`if c: return`, `if c: continue`": (early, [
        "int32 found = 0", "for i from 0 to rows step 1", "  if (== (== i 3) False)",
        "    found = (+ found i)",
        "if (== (> worker 2) False)", "  found = 1",
    ]),
    "a way out that Python decides": (static_exits, ["int32 found = 0", "found = 0", "found = 1"]),
    "a function that sets a caller's variable": (functions, [
        "int32 found = 0", "int32 more = 0", "found = worker", "more = (+ more 1)", "let own = (* lane 2)",
        "found = own",
        "if (> own 3)", "  found = 0", "int32 own = 9", "own = 10",
    ]),
    "a name of several blocks, one after the other": (one_after_the_other, [
        "int32 found = 0", "for i from 0 to rows step 1", "  let column = (* i 2)",
        "  found = (+ found column)",
        "for i from 0 to rows step 1", "  let column = (* i 3)", "  found = (+ found column)", "region sum",
        "  let total = (+ found 1)", "found = total",
    ]),
    "attributes of a `State`": (state, [
        "int32 need = rows", "uint32 end = 5", "let first = (+ worker 1)", "need = (+ need 1)",
        "if (> first 3)",
        "  end = (- end first)",
    ]),
}  # fmt: skip


@pytest.mark.parametrize("row", RECORDED)
def test_what_is_recorded(row: str) -> None:
    body, expected = RECORDED[row]
    assert said(body) == expected


# The lines that must be refused end with a comment that repeats the refused expression.


@recorded
def bound_again(m: Recorder) -> None:
    column = m.thread * 2
    for i in range(m.dim("rows")):
        column = column + i  # <- column = column + i


@recorded
def beside(m: Recorder, column: Value) -> Value:
    row = column * 3
    return row + 1


@recorded
def name_taken(m: Recorder) -> None:
    row = m.thread * 2
    found: Int32 = beside(m, m.lane)
    found = row  # <- found = row


@recorded
def total_of(m: Recorder, column: Value) -> Value:
    total: Int32 = column
    total += 1
    return total


@recorded
def variable_taken(m: Recorder) -> None:
    total: Int32 = 0
    found: Int32 = total_of(m, m.lane)
    found = total  # <- found = total


@recorded
def number_bound_again(m: Recorder) -> None:
    first = True
    for i in range(m.dim("rows")):
        m.meet()
        first = False  # <- first = False
    if first:
        m.meet()


@recorded
def read_behind(m: Recorder) -> None:
    if m.thread > 3:
        more = 3
    found: Int32 = more  # <- more
    found = 0


@recorded
def index_read_behind(m: Recorder) -> None:
    found: Int32 = 0
    for i in range(m.dim("rows")):
        found += i
    found = i  # <- i


@recorded
def leaves_a_loop(m: Recorder) -> None:
    for i in range(m.dim("rows")):  # <- range(m.dim("rows"))
        if m.k.threads == 128:
            break
        m.meet()


@recorded
def leaves_by_a_branch(m: Recorder) -> None:
    for number in range(3):
        if m.thread > number:  # <- m.thread > number
            break
        m.meet()


@recorded
def returns_from_a_branch(m: Recorder) -> int:
    if m.thread > 3:  # <- m.thread > 3
        return 4
    return 5


@recorded
def chooses(m: Recorder) -> None:
    found: Int32 = 0
    found = 3 if m.thread > 3 else 4  # <- 3 if m.thread > 3 else 4


@recorded
def joins_numbers(m: Recorder) -> None:
    if m.thread and m.lane:  # <- m.thread and m.lane
        m.meet()


@recorded
def comprehends(m: Recorder) -> None:
    _ = [i for i in range(m.dim("rows"))]  # <- range(m.dim("rows"))


@recorded
def takes_the_largest(m: Recorder) -> None:
    found: Int32 = 0
    found = max(m.thread, m.lane)  # <- max(m.thread, m.lane)


@recorded
def sets_two(m: Recorder) -> None:
    found: Int32 = 0
    found, _ = m.thread, m.lane  # <- found, _ = m.thread, m.lane
    found = 1


@recorded
def assigns_within(m: Recorder) -> None:
    if (column := m.thread) > 3:  # <- column := m.thread
        m.meet()
    m.meet(str(column))


@recorded
def has_no_value(m: Recorder) -> None:
    found: Int32  # <- found: Int32
    found = 1


@recorded
def asks_the_state_too_early(m: Recorder) -> None:
    s = Range(m)
    s.need = s.end  # <- s.end


@recorded
def another_attribute(m: Recorder) -> None:
    s = Range(m)
    s.needs = 3  # <- s.needs


@recorded
def assigns_a_value_twice(m: Recorder) -> None:
    s = Range(m, first=m.thread + 1)
    s.first = 3  # <- s.first


@recorded
def gives_a_branch_a_value_of_python(m: Recorder) -> None:
    s = Range(m)
    if m.thread < 4:
        s.first = 3  # <- s.first


@recorded
def _waits(m: Recorder) -> None:
    m.wait("ring", 0)  # <- m.wait("ring", 0)


def in_a_helper(m: Recorder) -> None:
    _waits(m)


@recorded
def names_by_a_loop_of_the_kernel(m: Recorder) -> None:
    for i in unrolled(4):
        x = named(f"x_{i}", m.thread + i)  # <- named(f"x_{i}", m.thread + i)
        m.comment(str(x))


REFUSED: dict[str, tuple[tuple[Callable[..., Any], ...], str]] = {
    "a name bound before, under a branch or in a loop":
        ((bound_again, number_bound_again), "`column: Int32|`first: Int32"),
    "a name that a branch or a loop binds, after it": ((read_behind, index_read_behind), "`x: Int32 = 0`"),
    "a name that a helper gives to something else meanwhile":
        ((name_taken, variable_taken), "`(row|total) = named"),
    "`break`, or `return` of a value, that the kernel decides": (
        (leaves_a_loop, leaves_by_a_branch, returns_from_a_branch),
        "condition of the loop or under the branch"),
    "`a if c else b`": ((chooses,), "select"),
    "`and`, `or`, `not` of numbers": ((joins_numbers,), "x != 0"),
    "a comprehension, `max`, `list`, ... over values of the kernel": ((comprehends, takes_the_largest),
        "@recorded"),
    "several targets, one of them a variable": ((sets_two,), "one variable at a time"),
    "`:=`, `match`, `try`, `yield`, `global`, `else` of a loop": ((assigns_within,), "by statements"),
    "a variable without a value": ((has_no_value,), "found: ... = 0"),
    "an attribute of a `State` that is not declared, not yet assigned, or no variable": (
        (asks_the_state_too_early, another_attribute, assigns_a_value_twice),
        "assign it before|annotate it|declare a variable"),
    "a value of Python for an attribute of a `State` in a branch or loop of the kernel": (
        (gives_a_branch_a_value_of_python,), "declare a variable"),
    "the number of a loop of the kernel in a name": ((names_by_a_loop_of_the_kernel,), "`range` of Python"),
    "what the recorder refuses": ((in_a_helper,), "."),
}  # fmt: skip


def refused(body: Callable[..., Any]) -> DslKernelError:
    """The error of a body, as `TileProgram.text` raises it."""
    try:
        body(recorder())
    except DslKernelError as error:
        return places.located(error, error.__traceback__)
    except t.FAILURES as error:
        return t.refusal("the body", error)
    raise AssertionError("it is recorded")


CASES = [(row, body) for row, (bodies, _) in REFUSED.items() for body in bodies]


@pytest.mark.parametrize(("row", "body"), CASES, ids=[body.__name__ for _, body in CASES])
def test_what_is_refused_at_its_line(row: str, body: Callable[..., Any]) -> None:
    error = refused(body)
    assert error.code in ("DECLARATION", "UNKNOWN_NAME")
    assert re.search(REFUSED[row][1], error.fix), error.fix
    source = Path(__file__).read_text().splitlines()
    refused_in: Any = _waits if body is in_a_helper else body
    first = refused_in.__wrapped__.__code__.co_firstlineno
    number = next(i for i in range(first, len(source) + 1) if "# <- " in source[i - 1])
    text = source[number - 1].partition("# <- ")[2]
    assert error.where == f"tests/unit/test_frontend.py:{number}: {text}"
    assert str(error).startswith(error.where)


def test_the_table_of_the_documents_has_these_rows() -> None:
    table = DOCS.read_text().partition("| in a function that is marked `@recorded` |")[2].partition("\n\n")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:]]
    assert rows == [*RECORDED, *REFUSED]


def test_a_text_of_a_leaf_sets_what_it_is_marked_to_set() -> None:
    @by_text
    def halve(m: Any, found: Sets, more: Changes, count: Any) -> None:
        """Half of a count."""
        found = count // 2
        if found > 3:
            more += found

    arguments = (*map(t.name, ("a", "b", "c", "worker", "warp", "lane")), 128)
    assert lines(text_of(halve, arguments).statements) == [
        "found = (// count 2)", "if (> found 3)", "  more = (+ more found)",
    ]  # fmt: skip


@dataclass(frozen=True)
class Span(t.Record):
    low: Int32
    high: Int32


def test_a_record_travels_to_a_leaf_as_one_argument() -> None:
    @by_text
    def inside(m: Any, found: Sets, span: Span, at: Any) -> None:
        """Whether a place is in a span."""
        found = (span.low <= at) & (at < span.high)

    assert [each.name for each in inside.passed] == ["found", "low", "high", "at"]
    assert [str(kind) for each in inside.passed[1:3] for kind in each.takes] == ["a value of int32"] * 2
    found, low, high, at = (t.name(each) for each in ("found", "low", "high", "at"))
    assert lines(text_of(inside, (found, low, high, at, *map(t.name, t.AMBIENT))).statements) == [
        "found = (& (<= low at) (< at high))"
    ]

    @recorded
    def body(m: Recorder) -> None:
        found: Int32 = 0
        inside(m, found, span=Span(1, 2), at=3)
        inside(m, found, Span(4, 5), 6)

    m = recorder()
    body(m)
    calls = [s.arguments[1:4] for s in m.statements if isinstance(s, t.Call)]
    assert calls == [(1, 2, 3), (4, 5, 6)]


def test_a_function_closes_over_what_is_around_it() -> None:
    factor = 3

    @recorded
    def body(m: Recorder) -> None:
        found: Int32 = 0
        found = m.thread * factor

    assert said(body)[1] == "found = (* worker 3)"
    factor = 4
    assert said(body)[1] == "found = (* worker 4)"


def test_a_recorded_function_asks_for_a_recorder() -> None:
    with pytest.raises(DeclarationError, match=r"branches: expected a recorder .* got int"):
        branches(3)  # type: ignore[arg-type]


def test_an_unmarked_function_says_what_to_mark() -> None:
    def body(m: Recorder) -> None:
        if m.thread > 3:
            m.meet()

    with pytest.raises(DeclarationError, match="mark the function @recorded"):
        body(recorder())


# Methods of the recorder that a body in plain Python does not need.
SPELT_OUT = re.compile(
    r"\b(?:m|self\.m|s\.m)\.(?:when|otherwise|set|let|var|declare|repeat|loop)\("
    r"|(?<![\w.])name\(\"|nullcontext"
)
BODIES = [
    path for part in ("program", "leaves") for op in kernels.names(part) for path in kernels.files(op, part)
]  # fmt: skip
BODIES += [ROOT / "dsl_kernels" / "device" / "text" / "rows.py"]
for part in ("program", "leaves"):
    BODIES += sorted((ROOT / "tests" / "codegen").glob(f"*/dsl_kernels/kernels/*/{part}.py"))
BODIES += [ROOT / "tests" / "numerics" / "test_vocabulary.py"]


@pytest.mark.parametrize("path", BODIES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_body_spells_the_recorder_out(path: Path) -> None:
    lines_spelt_out = [line for line in path.read_text().splitlines() if SPELT_OUT.search(line)]
    assert not lines_spelt_out


LOOKED_UP = re.compile(
    r"\.(?:operand|buffer|dim|scalar|channel)\(\"|\bm\.(?:acquire|commit|wait|release|slot)\("
)


@pytest.mark.parametrize("op", programs.names())
def test_programs_read_what_the_kernel_has_from_its_class(op: str) -> None:
    """Editors cannot find a name that is a string; only names composed in a loop may be strings."""
    lines = [line for path in kernels.files(op, "program") for line in path.read_text().splitlines()]
    assert not [line for line in lines if LOOKED_UP.search(line) and "m.schedule." not in line]


TEXTS = {
    f"{op}.{path.stem}.{name}": value
    for op in kernels.names("leaves")
    for path in kernels.files(op, "leaves")
    for name, value in vars(
        importlib.import_module(
            ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        )
    ).items()
    if isinstance(value, t.Leaf) and value.text is not None
}


@pytest.mark.parametrize("leaf", TEXTS.values(), ids=list(TEXTS))
def test_every_parameter_of_a_leaf_says_what_it_takes(leaf: t.Leaf) -> None:
    assert [parameter.name for parameter in leaf.passed if not parameter.takes] == []


@pytest.mark.parametrize("path", BODIES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_function_over_a_recorder_is_recorded(path: Path) -> None:
    """An unmarked helper would execute an annotated assignment as plain Python, and lose the variable."""
    for node in ast.parse(path.read_text()).body:
        functions = node.body if isinstance(node, ast.ClassDef) else [node]
        for function in (f for f in functions if isinstance(f, ast.FunctionDef)):
            first = function.args.args[0].arg if function.args.args else ""
            marks = {ast.unparse(mark) for mark in function.decorator_list}
            branches = any(
                isinstance(inner, (ast.If, ast.For, ast.While, ast.AnnAssign)) for inner in ast.walk(function)
            )
            if first in ("m", "s") and branches:
                assert marks & {"recorded", "by_text"}, f"{path.name}: {function.name}"
