"""The wheel: what a machine without the checkout gets, generated set and device helpers included."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from dsl_kernels import variants

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("dsl_kernels", "generated", "pyproject.toml", "setup.py", "README.md", "LICENSE")
PROBE = """
import json
from dsl_kernels import variants
print(json.dumps([[v.id, v.path.is_file()] for v in variants.variants()]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """The content of a wheel that was built without network from a copy of the sources."""
    pytest.importorskip("setuptools")
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SHIPPED:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, source / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
    ]
    done = subprocess.run(
        [*command, "-w", str(made), str(source)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = made.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(made / "site")
    return made / "site"


def test_it_has_every_file_of_the_library(installed):
    def files(root: Path) -> set[str]:
        return {
            path.relative_to(root).as_posix()
            for path in root.rglob("*")
            if path.is_file() and path.suffix not in (".pyc", ".md")
        }

    here = files(ROOT / "dsl_kernels") | {f"generated/{name}" for name in files(ROOT / "generated")}
    assert files(installed / "dsl_kernels") == here


def test_it_finds_its_own_generated_set(installed):
    done = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=installed, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [[v.id, True] for v in variants.variants()]


def test_an_sdist_has_every_file_of_the_repository(tmp_path: Path) -> None:
    pytest.importorskip("setuptools")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout: git does not list its files")
    tracked = {name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()}
    for name in tracked:
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "source" / name)
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)],
        cwd=tmp_path / "source",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        found = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert not tracked - found, sorted(tracked - found)[:20]
    made = {"PKG-INFO", "setup.cfg"}
    extra = {name for name in found - tracked if ".egg-info/" not in name} - made
    assert not extra, sorted(extra)[:20]
