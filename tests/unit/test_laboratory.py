"""The laboratory beside the library: what the command line finds, and what it says where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import dsl_kernels
from dsl_kernels.cli import _laboratory as laboratory
from dsl_kernels.cli import app

ROOT = Path(__file__).resolve().parents[2]
# A process in which the laboratory cannot be imported.
WITHOUT = """
import sys
sys.modules["dsl_kernels_lab"] = None
sys.argv[0] = "dsl_kernels"
from dsl_kernels.cli import main
main()
"""


def without(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT, *args], cwd=ROOT, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("command", laboratory.COMMANDS)
def test_a_command_without_its_laboratory_says_what_to_install(command: str) -> None:
    done = without(command, "--help")
    assert done.returncode == 2 and f"error[TOOLCHAIN] {command}" in done.stderr
    assert f"pip install dsl-kernels-lab=={dsl_kernels.__version__}" in done.stderr
    assert "Traceback" not in done.stderr and not done.stdout


@pytest.mark.parametrize("module", ("bench", "_record"))
def test_a_module_of_commands_is_imported_alone(module: str) -> None:
    subprocess.run([sys.executable, "-c", f"import dsl_kernels_lab.cli.{module}"], cwd=ROOT, check=True)


def test_the_librarys_commands_work_without_a_laboratory(tmp_path: Path) -> None:
    listed = without("list", "--op", "window_ids", "--json")
    assert listed.returncode == 0, listed.stderr
    rows = json.loads(listed.stdout)["variants"]
    assert rows and all(row["ran"] is None and row["runs"] == [] for row in rows)
    call = ("sparse_mla", "--dim", "t=64,heads=16,topk=2048", "--gpu", "H200")
    explained = without("explain", *call)
    assert explained.returncode == 0 and "profiled:" not in explained.stdout, explained.stderr
    path = tmp_path / "line.json"
    predicted = without("predict", *call, "--timeline", str(path))
    assert predicted.returncode == 2 and "error[TOOLCHAIN] --timeline" in predicted.stderr
    assert not path.exists()
    doctor = without("doctor", "--json")
    (row,) = (row for row in json.loads(doctor.stdout)["checks"] if row["check"] == "dsl-kernels-lab")
    assert row["status"] == "note" and "bench, case, emulate" in row["found"] and "pip install" in row["fix"]


def test_every_command_of_the_laboratory_is_known_to_the_library() -> None:
    from dsl_kernels_lab import cli

    mine = {
        name
        for name, command in get_command(app).commands.items()
        for module in [getattr(command, "callback", None) or next(iter(command.commands.values())).callback]
        if module.__module__.startswith(f"{cli.__name__}.")
    }
    assert mine == set(laboratory.COMMANDS)
    for name, module in cli.OFFERED.items():
        assert laboratory.offered(name).__name__ == module
    assert laboratory.offered("nothing") is None


def test_any_distribution_adds_commands_by_an_entry_point(tmp_path: Path) -> None:
    (tmp_path / "more_commands").mkdir()
    (tmp_path / "more_commands" / "__init__.py").write_text("")
    (tmp_path / "more_commands" / "greet.py").write_text(
        "import typer\napp = typer.Typer()\n\n@app.command()\ndef greet() -> None:\n    typer.echo('hello')\n"
    )
    for name, value in (("more", "more_commands"), ("gone", "no_such_package")):
        made = tmp_path / f"{name}-1.0.dist-info"
        made.mkdir()
        (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (made / "entry_points.txt").write_text(f"[{laboratory.GROUP}]\n{name} = {value}\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def called(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *args], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )

    done = called("-m", "dsl_kernels", "greet")
    assert (done.returncode, done.stdout) == (0, "hello\n"), done.stderr
    # Beside it the laboratory is found in any case, and a package that is gone stops no command.
    assert called("-m", "dsl_kernels", "bench", "--help").returncode == 0
    assert "no_such_package cannot be imported" in called("-c", WITHOUT, "bench").stderr
