"""The examples of the documents that run the emulator, as they are printed."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
