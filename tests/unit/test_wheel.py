"""The wheel: what a machine without the checkout gets, including the generated set and the device helpers."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from functools import partial
from pathlib import Path
from unittest import mock

import bundled_step
import pytest

import dsl_kernels
from dsl_kernels import ops, variants
from dsl_kernels.runtime import bundle, cache
from dsl_kernels_lab import steps

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = (
    "dsl_kernels", "dsl_kernels_lab", "ptx_emulator", "distributions", "generated", "pyproject.toml",
    "setup.py", "README.md", "LICENSE",
)  # fmt: skip
RUN = "from dsl_kernels.cli import main; main()"
PROBE = """
import json
from dsl_kernels import variants
print(json.dumps([[v.id, v.path.is_file()] for v in variants.variants()]))
"""


def wheel_of(project: Path, made: Path) -> Path:
    """The content of a wheel that is built without network."""
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
        [*command, "-w", str(made), str(project)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = made.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(made / "site")
    return made / "site"


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of the sources."""
    pytest.importorskip("setuptools")
    copied = tmp_path_factory.mktemp("source")
    ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
    for name in SHIPPED:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, copied / name, ignore=ignored)
        else:
            shutil.copy(path, copied / name)
    return copied


@pytest.fixture(scope="module")
def installed(source, tmp_path_factory) -> Path:
    """The content of the library's wheel."""
    return wheel_of(source, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def laboratory(source, tmp_path_factory) -> Path:
    """The content of the laboratory's wheel, which is built from its sdist."""
    project, made = source / "distributions" / "dsl_kernels_lab", tmp_path_factory.mktemp("laboratory")
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(made)], cwd=project, capture_output=True, check=True, text=True
    )
    (sdist,) = made.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(made, filter="data")
    return wheel_of(made / sdist.name.removesuffix(".tar.gz"), made)


def files(root: Path) -> set[str]:
    return {
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and path.suffix not in (".pyc", ".md")
    }


def test_it_has_every_file_of_the_library(installed):
    here = files(ROOT / "dsl_kernels") | {f"generated/{name}" for name in files(ROOT / "generated")}
    assert files(installed / "dsl_kernels") == here
    assert files(installed / "ptx_emulator") == files(ROOT / "ptx_emulator")


def test_the_laboratory_is_in_a_wheel_of_its_own(installed, laboratory):
    assert not list(installed.glob("dsl_kernels_lab*"))
    assert {path.name for path in laboratory.iterdir() if "dist-info" not in path.name} == {"dsl_kernels_lab"}
    assert files(laboratory / "dsl_kernels_lab") == files(ROOT / "dsl_kernels_lab")
    (told,) = laboratory.glob("*.dist-info/METADATA")
    version = dsl_kernels.__version__
    assert {f"Version: {version}", f"Requires-Dist: dsl-kernels=={version}"} <= {
        *told.read_text().splitlines()
    }


@pytest.mark.parametrize("beside", [False, True])
def test_commands_of_wheels(installed, laboratory, tmp_path, beside):
    """What `bench` says from wheels outside the checkout, with the laboratory's and without."""
    sites = [str(installed), *([str(laboratory)] if beside else [])]
    code = f"import sys; sys.meta_path = [m for m in sys.meta_path if 'Editable' not in str(m)]; {RUN}"
    done = subprocess.run(
        [sys.executable, "-c", code, "bench", "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sites)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == (0 if beside else 2), done.stderr
    assert "--regret" in done.stdout if beside else "pip install dsl-kernels-lab" in done.stderr


def test_it_finds_its_own_generated_set(installed):
    done = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=installed, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [[v.id, True] for v in variants.variants()]


def bundle_of_a_step(backend: str, arch: str, folder: Path) -> bundle.Bundle:
    """A bundle of the variants of a decode step, with their PTX; what the cache lacks is compiled."""
    mine = partial(variants.variants, backend=backend)
    with bundled_step.few_sms(), mock.patch.object(variants, "variants", mine):
        ops.clear()
        steps.draw(bundled_step.size(), seed=4)[0].run(executor="interpreter", arch=arch)
        chosen = [pick.variant for pick in steps.used()]
    ops.clear()
    return bundle.write(folder, chosen, {v.id: cache.artifact_for(v) for v in chosen}, ptx=True)


@pytest.mark.compile
@pytest.mark.emulator
@pytest.mark.parametrize(("backend", "arch"), [("tilelang", "sm_90a"), ("cutedsl", "sm_100a")])
def test_a_wheel_and_a_bundle_run_a_decode_step_where_no_dsl_is(
    installed, laboratory, tmp_path, backend, arch
):
    """As in a server's image: the library without its generated set, a bundle, and no compiler.

    The laboratory draws the step and checks it.
    """
    opened = bundle_of_a_step(backend, arch, tmp_path / "bundle")
    shutil.copytree(
        installed / "dsl_kernels",
        tmp_path / "site/dsl_kernels",
        ignore=lambda _, names: {"generated"} & {*names},
    )
    shutil.copytree(installed / "ptx_emulator", tmp_path / "site/ptx_emulator")
    built = cache.cache_root() / "emulator"
    if built.is_dir():
        shutil.copytree(built, tmp_path / "cache" / "emulator")
        (tmp_path / "cache").chmod(0o700)
    place = {
        name: value for name, value in os.environ.items() if not name.startswith(("DSL_KERNELS_", "CUDA"))
    }
    no_nvcc = [part for part in os.get_exec_path() if part and shutil.which("nvcc", path=part) is None]
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests/bundled_step.py"), arch],
        env={
            **place,
            "PATH": os.pathsep.join(no_nvcc),
            "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(laboratory)]),
            "DSL_KERNELS_BUNDLE_DIR": str(opened.root),
            "DSL_KERNELS_CACHE_DIR": str(tmp_path / "cache"),
            "DSL_KERNELS_DISABLE_JIT": "1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["library"] == str(tmp_path / "site/dsl_kernels") and report["imported"] == []
    assert not any(report["failures"].values()), report["failures"]
    assert set(report["failures"]) == {"lightning_indexer", "topk_selector", "sparse_mla", "chain"}
    assert {launch["variant"] for launch in report["launches"]} == set(opened.entries)
    for launch in report["launches"]:
        cubin = (opened.root / launch["variant"] / "kernel.cubin").read_bytes()
        assert launch["cubin"] == hashlib.sha256(cubin).hexdigest() and launch["grid"]
        assert launch["pointers"] and all(launch["pointers"].values()), launch
    assert {path.name for path in (tmp_path / "cache").iterdir()} <= {"emulator"}, "nothing was compiled"


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
        members = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert not tracked - members, sorted(tracked - members)[:20]
    made = {"PKG-INFO", "setup.cfg"}
    extra = {name for name in members - tracked if ".egg-info/" not in name} - made
    assert not extra, sorted(extra)[:20]
