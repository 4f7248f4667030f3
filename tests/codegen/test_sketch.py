"""Kernels in one file: the examples are right everywhere; a wrong sketch, or none, is an error."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from codegen.__main__ import app
from codegen.sketch import Sketch, sketches
from dsl_kernels import language, programs
from dsl_kernels.errors import DeclarationError, InvalidArgumentError, UnknownNameError
from dsl_kernels.executors import Emulator, Interpreter
from dsl_kernels.tile.lang import Space
from ptx_emulator import interleavings

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*.py"))
RING = EXAMPLES / "ring.py"


def of(path: Path) -> Sketch:
    (found,) = sketches(path)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.parametrize("seed", [None, 1, 2])
def test_the_interpreter_computes_an_example(path: Path, seed: int | None) -> None:
    result = of(path).run(Interpreter(seed=seed))
    assert result.ok, result.failures


@pytest.mark.compile
@pytest.mark.emulator
@pytest.mark.parametrize("dsl", ["cutedsl", "tilelang"])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_emulator_computes_an_example(path: Path, dsl: str) -> None:
    sketch = of(path)
    for interleaving in interleavings(6):
        result = sketch.run(Emulator(interleaving, strict=True), dsl)
        assert result.ok, (interleaving, result.failures)


def test_a_wrong_kernel_is_said_to_be_wrong() -> None:
    sketch = of(RING)
    wrong = dataclasses.replace(sketch, expected=lambda inputs: {"y": 2 * sketch.expected(inputs)["y"]})
    assert wrong.run(Interpreter()).failures == ["error of y = 0.5 exceeds 1e-06"]


def test_an_output_that_nothing_writes_is_no_number() -> None:
    values = of(RING).draw()
    assert values["y"].isnan().all() and not values["x"].isnan().any()


def test_a_schedule_that_does_not_fit_is_refused() -> None:
    sketch = of(RING)

    def declare(k, arch):
        large = language.Buffer("row_s", Space.SHARED, (1 << 16,), "float32", 3)
        return dataclasses.replace(
            sketch.declare(k, arch), buffers=(large, *sketch.declare(k, arch).buffers[1:])
        )

    with pytest.raises(DeclarationError, match="example_ring.*SMEM_OVERFLOW"):
        dataclasses.replace(sketch, declare=declare).source("cutedsl")


def test_a_sketch_has_a_name_of_its_own() -> None:
    sketch = dataclasses.replace(of(RING), name="sparse_mla")
    with pytest.raises(InvalidArgumentError, match="sparse_mla"):
        sketch.variant("cutedsl")


def test_executors_find_no_program_that_nobody_lent() -> None:
    with pytest.raises(UnknownNameError):
        programs.get("example_of_nobody")


def test_the_command_says_what_is_right_and_what_is_wrong(tmp_path: Path) -> None:
    runner = CliRunner()
    done = runner.invoke(app, ["try", str(RING)])
    assert done.exit_code == 0 and "example_ring, sm_90a, interpreter: right" in done.output
    text = RING.read_text().replace(".sum(0)", ".sum(0) * 2")
    (tmp_path / "wrong.py").write_text(text)
    done = runner.invoke(app, ["try", str(tmp_path / "wrong.py")])
    assert done.exit_code == 1 and "1 of 1 runs are wrong" in done.output
    done = runner.invoke(app, ["try", str(RING), "--on", "print", "--backend", "tilelang"])
    assert done.exit_code == 0 and "T.mbarrier_wait_parity(ring_full" in done.output


@pytest.mark.parametrize(
    ("text", "words"), [(None, "a Python file"), ("x = 1\n", "a Sketch"), ("x = (\n", "SyntaxError")]
)
def test_a_file_without_a_sketch_is_refused(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "none.py").write_text(text)
    with pytest.raises(InvalidArgumentError, match=words):
        sketches(tmp_path / "none.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_needs_one_import_for_the_language(path: Path) -> None:
    modules = re.findall(r"^from (\S+) import", path.read_text(), re.MULTILINE)
    assert set(modules) == {"__future__", "codegen.sketch", "dsl_kernels.language"}


def test_the_language_has_what_it_lists() -> None:
    assert all(hasattr(language, name) for name in language.__all__)
