"""The examples of the documents that run the emulator, as they are printed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsl_kernels.errors import ToolchainError
from dsl_kernels.runtime import toolkit

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.emulator,
    pytest.mark.compile,
    pytest.mark.skipif(
        shutil.which("c++") is None and shutil.which("g++") is None, reason="needs a C++ compiler"
    ),
]


def blocks(page: str, language: str) -> list[str]:
    """The excerpts of a page in a language."""
    return re.findall(
        rf"^```{language}\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.DOTALL | re.MULTILINE
    )


def run(code: str, folder: Path) -> str:
    """What a program prints that runs in a folder."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_wrong_result_is_found_by_the_steps_of_the_page(tmp_path: Path) -> None:
    (code,) = blocks("errors.md", "python")
    told, *figures = run(code, tmp_path).splitlines()
    assert re.match(r"sparse_mla__\w+ .*'splits'", told)
    assert [line.split()[0] for line in figures][-2:] == ["interpreter", "emulator"]
    assert all(float(line.split()[1]) < 3e-3 for line in figures)
    wrong = code.replace("weights = (0.1", "weights = (0.2")
    assert wrong != code
    assert all(float(line.split()[1]) > 3e-3 for line in run(wrong, tmp_path).splitlines()[1:])


PACKAGE = "../distributions/ptx_emulator/README.md"


@pytest.mark.parametrize("page", ["emulator.md", "emulator_runs.md", PACKAGE])
def test_kernels_of_the_pages_compile_and_run_as_printed(page: str, tmp_path: Path) -> None:
    """Every CUDA source by the page's own nvcc command, then every program that launches one of them."""
    try:
        nvcc = toolkit.nvcc()
    except ToolchainError as error:
        pytest.skip(str(error))
    text = (ROOT / "docs" / page).read_text()
    commands = re.findall(r"`nvcc (-ptx [^`]*?(\w+)\.cu)`", text)
    sources = blocks(page, "cuda")
    assert commands and len(commands) == len(sources)
    for (command, name), source in zip(commands, sources, strict=True):
        (tmp_path / f"{name}.cu").write_text(source)
        subprocess.run([nvcc.path, *command.split()], cwd=tmp_path, check=True)
    programs = [code for code in blocks(page, "python") if ".ptx" in code]
    assert len(programs) == len(sources)
    for code in programs:
        run(code, tmp_path)


def test_the_triton_program_of_the_page_runs_as_printed(tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="triton is not installed: `pip install triton`")
    (code,) = [code for code in blocks("emulator.md", "python") if "import triton" in code]
    (tmp_path / "add_triton.py").write_text(code)
    command = [sys.executable, "-m", "dsl_kernels", "emulate", "--script", "add_triton.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "add (Triton)" in done.stdout, done.stdout + done.stderr
    (within,) = [code for code in blocks("emulator_runs.md", "python") if "add_triton" in code]
    assert "add" in run(within, tmp_path)
