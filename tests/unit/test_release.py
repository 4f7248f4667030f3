"""A release: tags, notes and workflows agree with the checkout, and compiled kernels travel in a wheel."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import test_bundle
import yaml

import dsl_kernels
from dsl_kernels.errors import BundleError
from dsl_kernels.runtime import bundle

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def script(name: str) -> ModuleType:
    """A module of scripts/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release_notes = script("release_notes")
bundle_wheel = script("bundle_wheel")


def steps() -> list[dict[str, Any]]:
    """Every step of every job of the workflows."""
    jobs = [job for path in WORKFLOWS for job in yaml.safe_load(path.read_text())["jobs"].values()]
    return [step for job in jobs for step in job["steps"]]


def test_workflows_run_what_the_checkout_has() -> None:
    ran = "\n".join(step.get("run", "") for step in steps()) + "".join(path.read_text() for path in WORKFLOWS)
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"setup", "aot", "site"} <= set(re.findall(r"\bmake ([a-z-]+)", ran)) <= targets | {"a", "the"}
    named = set(re.findall(r"scripts/\w+\.py", ran))
    assert named == {"scripts/release_notes.py", "scripts/bundle_wheel.py"}
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_workflows_take_public_actions_by_name_and_no_host() -> None:
    used = [step["uses"] for step in steps() if "uses" in step]
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@v\d+", action) for action in used)
    for path in WORKFLOWS:
        assert "://" not in path.read_text(), path.name


def test_a_release_builds_each_architecture_and_needs_all_parts() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    assert jobs["bundles"]["strategy"]["matrix"]["arch"] == ["sm_90a", "sm_100a"]
    assert set(jobs["release"]["needs"]) == {"base", "bundles", "emulator", "site"}
    assert all(jobs[part]["needs"] == "version" for part in jobs["release"]["needs"])


def test_a_release_builds_the_library_and_its_laboratory() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    ran = [step["run"] for step in jobs["base"]["steps"] if "python -m build" in step.get("run", "")]
    built = [ROOT / command.partition("--outdir dist")[2].strip() for command in ran]
    assert built == [ROOT, ROOT / "distributions" / "dsl_kernels_lab"]
    assert all((folder / "pyproject.toml").is_file() for folder in built)


def test_a_release_builds_the_emulators_wheels_by_its_own_settings() -> None:
    job = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]["emulator"]
    (built,) = (step["run"] for step in job["steps"] if "-m cibuildwheel" in step.get("run", ""))
    folder = ROOT / built.split()[3]
    settings = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["cibuildwheel"]
    assert settings["test-command"] == "python {package}/smoke.py" and (folder / "smoke.py").is_file()
    assert {each.partition("_")[0] for each in settings["build"]} == {"cp311-manylinux", "cp311-musllinux"}
    assert job["steps"][-1]["with"]["path"] == f"{built.split()[-1]}/*"


def test_the_changelog_is_cut_into_releases_with_one_line_an_entry() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    releases = release_notes.sections(text)
    assert next(iter(releases)) == "Unreleased" and len(releases) > 1
    assert len(re.findall(r"^## ", text, re.MULTILINE)) == len(releases)
    dates = [date for version, (date, _) in releases.items() if version != "Unreleased"]
    assert None not in dates and dates == sorted(dates, reverse=True)
    for _, notes in releases.values():
        for line in filter(None, notes.splitlines()):
            assert re.match(r"- |### (Added|Changed|Fixed|Removed)$|[A-Z][\w ,']+:$", line), line
            assert len(line) <= 260, line


def made(folder: Path, version: str, changelog: str) -> Path:
    (folder / "dsl_kernels").mkdir()
    (folder / "dsl_kernels" / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (folder / "CHANGELOG.md").write_text(changelog)
    return folder


def test_notes_are_the_section_of_the_tag(tmp_path: Path) -> None:
    root = made(
        tmp_path,
        "1.2.0",
        "# C\n\n## [Unreleased]\n\n- later\n\n## [1.2.0] - 2026-12-01\n\n- one\n\n"
        "## [1.1.0] - 2026-11-01\n\n- old\n",
    )
    assert release_notes.notes("v1.2.0", root) == "- one"
    with pytest.raises(ValueError, match="expected v1.2.0"):
        release_notes.notes("v1.1.0", root)


@pytest.mark.parametrize(
    "changelog", ["## [Unreleased]\n\n- one\n", "## [1.2.0]\n\n- one\n", "## [1.2.0] - 2026-12-01\n"]
)
def test_a_release_without_dated_entries_is_refused(tmp_path: Path, changelog: str) -> None:
    with pytest.raises(ValueError, match="YYYY-MM-DD"):
        release_notes.notes("v1.2.0", made(tmp_path, "1.2.0", changelog))


def test_the_version_is_read_as_it_is_imported() -> None:
    assert release_notes.version() == dsl_kernels.__version__


def test_a_bundle_travels_in_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSL_KERNELS_CACHE_DIR", str(tmp_path / "cache"))
    variant, compiled = test_bundle.make(tmp_path)
    bundle.write(tmp_path / "held", [variant], {variant.id: compiled})
    wheel = bundle_wheel.build(tmp_path / "held", tmp_path / "dist")
    assert wheel.name == f"dsl_kernels_sm90a-{dsl_kernels.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (told,) = (tmp_path / "site").glob("*.dist-info/METADATA")
    assert f"Requires-Dist: dsl-kernels=={dsl_kernels.__version__}" in told.read_text()
    code = "import dsl_kernels_sm90a; print(dsl_kernels_sm90a.PATH)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    opened = bundle.open_bundle(done.stdout.strip())
    assert opened.arch == "sm_90a" and list(opened.check([variant])) == [(variant.id, None)]


def test_no_wheel_is_made_of_what_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError):
        bundle_wheel.build(tmp_path, tmp_path / "dist")
    assert not (tmp_path / "dist").exists()
