"""The lock files: complete, hashed, consistent with pyproject.toml and each other, naming no registry."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-torch.lock", "requirements-toolkit.lock")
EXTRAS = ("tilelang", "cutedsl", "inspect", "emulator", "dev")
LABORATORY = tomllib.loads((ROOT / "distributions" / "dsl_kernels_lab" / "pyproject.toml").read_text())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def name_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", Requirement(requirement).name).lower()


def entries(lock: str) -> list[tuple[Requirement, int]]:
    """Each requirement of a lock file, with the number of its hashes."""
    text = re.sub(r"^#.*\n", "", (ROOT / lock).read_text(), flags=re.MULTILINE)
    packages = []
    for entry in re.split(r"\n(?=\S)", text.strip()):
        head, *hashes = entry.replace("\\\n", "").split("--hash=")
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest.strip()) for digest in hashes), entry
        packages.append((Requirement(head), len(hashes)))
    return packages


def versions(lock: str) -> dict[str, set[str]]:
    by_name: dict[str, set[str]] = {}
    for requirement, _ in entries(lock):
        by_name.setdefault(name_of(str(requirement)), set()).add(str(requirement.specifier))
    return by_name


@pytest.mark.parametrize("lock", LOCKS)
def test_every_line_is_pinned_and_hashed(lock):
    text = (ROOT / lock).read_text()
    assert "make lock" in text.splitlines()[1]
    assert "://" not in text and " @ " not in text and "--index" not in text
    for requirement, hashes in entries(lock):
        assert re.fullmatch(r"==[\w.]+", str(requirement.specifier)) and hashes, str(requirement)


def test_one_version_of_a_package_over_all_files():
    locked = [versions(lock) for lock in LOCKS]
    for name in set().union(*locked):
        pinned = {frozenset(lock[name]) for lock in locked if name in lock}
        assert len(pinned) == 1, (name, pinned)


def test_what_a_package_of_the_lock_needs_is_in_the_lock():
    """By the metadata of the packages installed here; torch's build for CUDA has a file of its own."""
    locked = versions("requirements.lock")
    project = PROJECT["project"]
    wanted = [*project["dependencies"], *(r for e in EXTRAS for r in project["optional-dependencies"][e])]
    wanted += LABORATORY["project"]["optional-dependencies"]["profile"]
    assert {name_of(r) for r in wanted} - {"torch"} <= set(locked)
    for name in locked:
        try:
            needs = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        for need in map(Requirement, needs):
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                assert name_of(str(need)) in {*locked, "torch"}, f"{name} needs {need}"


def test_torch_has_its_libraries_in_a_file_of_their_own():
    torch, rest = versions("requirements-torch.lock"), versions("requirements.lock")
    assert {"torch", "triton", "nvidia-cublas", "nvidia-cudnn-cu13"} <= set(torch)
    assert "torch" not in rest
    brought = {name for name in rest if name.startswith(("nvidia-", "triton"))}
    assert brought == {name for name in brought if re.search(r"cutlass-dsl|cuobjdump|nvdisasm", name)}


def test_no_extra_pins_a_version():
    """Packages installed beside an engine must be compatible with the engine's own pins."""
    for extra, requirements in PROJECT["project"]["optional-dependencies"].items():
        for requirement in map(Requirement, requirements):
            assert not any(part.operator in ("==", "===") for part in requirement.specifier), (
                extra,
                str(requirement),
            )


def test_the_toolkit_of_the_extra_admits_the_locked_one():
    group = {name_of(r): Requirement(r) for r in PROJECT["dependency-groups"]["toolkit"]}
    extra = {name_of(r): Requirement(r) for r in PROJECT["project"]["optional-dependencies"]["toolkit"]}
    assert set(extra) == set(group)
    for name, requirement in group.items():
        (pin,) = requirement.specifier
        assert extra[name].specifier.contains(pin.version), name
    locked = [str(requirement) for requirement, _ in entries("requirements-toolkit.lock")]
    assert sorted(locked) == sorted(PROJECT["dependency-groups"]["toolkit"])


@pytest.fixture
def setup(monkeypatch):
    """scripts/setup.py, the commands it gives to pip, and what pip says it would install."""
    spec = importlib.util.spec_from_file_location("setup_script", ROOT / "scripts" / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.asked, module.chosen = [], []

    def run(command, **_):
        module.asked.append(command[1:])
        report = {"install": [{"metadata": {"version": version}} for version in module.chosen]}
        return subprocess.CompletedProcess(command, 0, json.dumps(report))

    monkeypatch.setattr(module.subprocess, "run", run)
    return module


@pytest.mark.parametrize(
    ("chosen", "installed"),
    [
        (["2.13.0"], ["--no-deps", "--require-hashes", "-r", str(ROOT / "requirements-torch.lock")]),
        (["2.13.0+cpu"], ["--no-deps", "torch==2.13.0+cpu"]),
        ([], None),
    ],
)
def test_torch_is_held_to_hashes_unless_pip_prefers_another_build(setup, chosen, installed):
    setup.chosen = chosen
    setup.install_torch(["pip"])
    looked, *then = setup.asked
    assert "--dry-run" in looked and looked[-1] == "torch==2.13.0"
    assert then == ([] if installed is None else [installed])
