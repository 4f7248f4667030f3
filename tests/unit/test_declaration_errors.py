"""Typical first mistakes of a kernel's author are refused at their line, with what to write instead."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dsl_kernels import _discover, programs
from dsl_kernels.arch import ARCHS
from dsl_kernels.errors import DeclarationError
from dsl_kernels.problems.base import OperandSpec
from dsl_kernels.tile.channel import Channel
from dsl_kernels.tile.frontend import Float32, Int32, Names
from dsl_kernels.tile.lang import Buffer, Guard, Knob, Role, Schedule, Space, built_for
from dsl_kernels.tile.statements import Span
from dsl_kernels.tile.text import Global, Recorder, View, name

SCHEDULE = Schedule(
    roles=(Role("work", 4),), buffers=(Buffer("sums", Space.SHARED, (4,), "float32", 2),), pipelines=(),
    mmas=(),
    grid=("rows",), axes=("row",),
)  # fmt: skip
OPERANDS = (
    OperandSpec("x", ("rows", "columns"), "bfloat16"),
    OperandSpec("eps", (), "float32", "scalar"),
    OperandSpec("splits", (), "int32", "scalar"),
)


def recorder() -> Recorder:
    return Recorder(SimpleNamespace(), SCHEDULE, ARCHS["sm_90a"], "work", OPERANDS)


class Right(Names):
    x: Global
    sums: View
    rows: Int32
    splits: Int32
    eps: Float32
    ctas: Int32


class Wrong(Names):
    x: View
    sums: Global
    eps: Int32
    splits: Float32
    rows: Channel
    weight: Global


def test_names_are_annotated_by_what_they_are() -> None:
    kernel = Right(recorder())
    assert [type(kernel.x), type(kernel.sums)] == [Global, View]
    # Only the launch plan itself knows which of its names is an integer.
    assert [value.dtype for value in (kernel.rows, kernel.splits, kernel.ctas, kernel.eps)] == [
        *["int32"] * 3,
        "float32",
    ]


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("x", "`x: Global`"), ("sums", "`sums: View`"), ("eps", "`eps: Float32`"),
        ("splits", "`splits: Int32`"),
        ("rows", "`rows: Int32`"), ("weight", "known: x"),
    ],
)  # fmt: skip
def test_a_name_with_another_annotation_says_which_one_fits(name: str, fix: str) -> None:
    with pytest.raises(DeclarationError, match=f"Wrong.{name}.*{fix}"):
        getattr(Wrong(recorder()), name)


def test_memory_has_no_index_in_a_body() -> None:
    kernel = Right(recorder())
    for memory in (kernel.sums, kernel.x):
        with pytest.raises(DeclarationError, match=r"view.stage\(use\).*m.word\(memory, i\)"):
            memory[0]
        with pytest.raises(DeclarationError, match="an index of"):
            list(memory)


def test_a_row_of_an_operand_is_a_span_of_its_dtype() -> None:
    span = Right(recorder()).x.span(3, 1024)
    assert vars(span) == vars(Span("x", "bfloat16", 3, 1024, 0, 1024))
    assert Right(recorder()).x.span(3, 1024, 256).count == 768
    assert Right(recorder()).x.span(3, 1024, 256, 64).count == 64


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_are_widened_before_they_are_counted_with(dtype: str) -> None:
    """A sum of squares in bf16 is off by a percent, consistently in the interpreter and both DSLs."""
    x = name("x", dtype)
    for made in (lambda: x * x, lambda: x + 1, lambda: 2.0 - x):
        with pytest.raises(DeclarationError, match=rf"values of {dtype}.*x: Float32"):
            made()
    for wide in (x * name("scale", "float32"), x.to("float32") * x):
        assert wide.dtype == "float32"
    assert (x < 1.0).dtype == "bool"


def _unmarked(m: Recorder) -> None:
    for _ in range(m.dim("n")):
        m.barriers_stand()


def test_a_body_that_is_not_marked_is_refused_at_its_line() -> None:
    program = programs.get("resample_trajectories")
    broken = replace(program, bodies=lambda k, arch: dict.fromkeys(("start", "sample"), _unmarked))
    knobs = {knob.name: knob.values(0)[0] for knob in program.knobs}
    with pytest.raises(
        DeclarationError, match=r"test_declaration_errors.py:\d+: range\(m.dim.*marked @recorded"
    ):
        broken.text(knobs, ARCHS["sm_90a"])


def test_a_knob_named_like_an_extent_refuses_other_sizes() -> None:
    """Without the guard, a kernel built for one size would take another, and read past its rows."""
    program = programs.get("resample_trajectories")
    assert "d" in {extent for spec in program.problem.forms["default"] for extent in spec.shape}
    knobs = (*program.knobs, Knob("d", "d", ((8,), ()), "elements of a row"))
    added = replace(program, knobs=knobs, guards=()).guards
    assert [guard.name for guard in added] == ["d"]
    assert added[0].refuse({"d": 8}, {"d": 8, "n": 3}) is None
    assert added[0].refuse({"d": 8}, {"d": 6, "n": 3}) == "d = 6, built for 8"
    mine = Guard("d", lambda knobs, call: None)
    assert replace(program, knobs=knobs, guards=(mine,)).guards == (mine,)


def test_a_program_of_several_forms_refuses_those_that_a_variant_does_not_take() -> None:
    """Without the guard, a kernel would take another form's operands for its own."""
    program = replace(programs.get("merge_outputs"), guards=())
    (guard,) = program.guards
    assert guard.name == "form"
    assert guard.refuse({"parts": "peers"}, {"form": "default"}) == "form = default, built for peers"
    assert guard.refuse({"parts": "gathered"}, {"form": "default"}) is None
    assert guard.refuse({"parts": "peers"}, {}) is None
    mine = Guard("form", lambda knobs, call: None)
    assert replace(program, guards=(mine,)).guards == (mine,)
    assert replace(programs.get("window_ids"), guards=()).guards == ()


def test_a_guard_passes_over_what_a_variant_or_a_form_has_not() -> None:
    guard = built_for("kv", "form")
    assert guard.refuse({"kv": "fp8"}, {"form": "bf16"}) == "form = bf16, built for fp8"
    assert guard.refuse({}, {"form": "bf16"}) is None
    assert guard.refuse({"kv": "fp8"}, {}) is None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("from dsl_kernels.tile.kinds import Bfloat16", "got Bfloat16. Fix: did you mean BFloat16"),
        ("KNOBS = (Nob('dim', 'd', ((64,),), 'columns'),)", "got Nob. Fix: import it, or correct the name"),
        ("from dsl_kernels.tile import lang\nlang.Buffr()", "got Buffr. Fix: did you mean Buffer"),
    ],
)
def test_a_name_that_a_module_asks_for_in_vain_is_said_at_its_line(
    line: str, said: str, tmp_path, monkeypatch
) -> None:
    (tmp_path / "found_kernels").mkdir()
    (tmp_path / "found_kernels" / "rms_norm.py").write_text(line + "\nPROGRAM = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(_discover, "_ROOTS", (tmp_path / "found_kernels",))
    for module in ("found_kernels", "found_kernels.rms_norm"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(DeclarationError) as caught:
        _discover.discover("found_kernels", "rms_norm", lambda: ["rms_norm"], "tile program", "PROGRAM")
    last = line.splitlines()[-1]
    assert f"found_kernels/rms_norm.py:{len(line.splitlines())}: {last}" in str(caught.value)
    assert said in str(caught.value)


def test_a_package_that_is_missing_is_no_error_of_the_declaration(tmp_path, monkeypatch) -> None:
    (tmp_path / "lacking_kernels").mkdir()
    (tmp_path / "lacking_kernels" / "rms_norm.py").write_text("import no_such_package_at_all\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError):
        _discover.discover("lacking_kernels", "rms_norm", lambda: ["rms_norm"], "tile program", "PROGRAM")
