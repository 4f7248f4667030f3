"""The compiled core is built once, by one process, and loaded only from files that nobody else can write."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ptx_emulator import BuildError, build
from ptx_emulator.errors import CacheError

# A compiler that copies files instead of compiling; it logs that it was called to link, and takes a while to
# do so.
STUB = """#!/bin/sh
if [ "$1" = --version ]; then echo stub; exit 0; fi
case "$*" in
*-shared*) echo called >> "{log}"; sleep {seconds};;
esac
while [ "$1" != -o ]; do shift; done
printf core > "$2"
exit {status}
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """An empty cache and a stub compiler; returns a function that writes the stub, and its log."""
    monkeypatch.setenv("DSL_KERNELS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", str(tmp_path / "cxx"))
    log = tmp_path / "log"

    def write(seconds: float = 0, status: int = 0) -> Path:
        path = tmp_path / "cxx"
        path.write_text(STUB.format(log=log, seconds=seconds, status=status))
        path.chmod(0o755)
        return log

    write()
    return write


def calls(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


def test_it_is_built_once_for_the_user_alone(stub):
    path = build.library_path()
    assert build.library_path() == path and calls(stub()) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert not path.parent.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    assert not list(path.parent.glob("tmp*"))


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_core_that_others_can_write_is_built_again(stub, mode):
    path = build.library_path()
    path.write_text("altered")
    path.chmod(mode)
    assert build.library_path() == path
    assert path.read_text() == "core" and stat.S_IMODE(path.stat().st_mode) == 0o700
    assert calls(stub()) == 2


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
@pytest.mark.parametrize("above", [0, 1], ids=["its folder", "the cache's root"])
def test_a_folder_that_others_can_write_is_refused(stub, mode, above):
    build.library_path().parents[above].chmod(mode)
    with pytest.raises(CacheError, match=r"others may write to it .*DSL_KERNELS_CACHE_DIR"):
        build.library_path()


def test_a_pipe_in_the_place_of_the_core_is_replaced(stub):
    path = build.library_path()
    path.unlink()
    os.mkfifo(path, 0o700)
    assert build.library_path().read_text() == "core" and calls(stub()) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user_is_refused(stub):
    path = build.library_path()
    os.chown(path, 4321, -1)
    build.library_path()
    assert path.stat().st_uid == 0 and calls(stub()) == 2
    os.chown(path.parent, 4321, -1)
    with pytest.raises(CacheError, match="belongs to user 4321"):
        build.library_path()


def test_a_compile_that_fails_says_what_the_compiler_said(stub):
    stub(status=3)
    with pytest.raises(BuildError, match=r"(?s)cxx failed.*Fix: .*CXX") as raised:
        build.library_path()
    assert raised.value.code == "EMULATOR_BUILD"
    stub()
    assert build.library_path().read_text() == "core"  # the failure left nothing behind


def test_a_missing_or_hanging_compiler_is_named(stub, monkeypatch):
    monkeypatch.setattr(build, "COMPILE_SECONDS", 0.2)
    stub(seconds=5)
    with pytest.raises(BuildError, match="longer than 0.2 s"):
        build.library_path()
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(BuildError, match=r"C\+\+17 compiler"):
        build.library_path()


def test_a_cache_that_cannot_be_written_is_named(stub, tmp_path):
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(BuildError, match="DSL_KERNELS_CACHE_DIR"):
        build.library_path()


def test_a_core_that_does_not_load_is_named(stub):
    build.load.cache_clear()
    try:
        with pytest.raises(BuildError, match=r"cannot be loaded.*remove"):
            build.load()
    finally:
        build.load.cache_clear()


@pytest.mark.parametrize("path", sorted(build.SOURCES.glob("*.[ch]pp")), ids=lambda path: path.name)
def test_the_core_writes_through_no_stream(path):
    """If torch loads another libstdc++, a stream would use that copy's facets and crash."""
    assert not re.findall(r"#include <(?:\w*stream|locale|regex|iomanip)>", path.read_text())


def test_processes_that_build_at_once_build_once(stub):
    log = stub(seconds=0.5)
    code = "from ptx_emulator import build; print(build.library_path().read_text())"
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    assert [process.communicate()[0].strip() for process in running] == ["core"] * 3
    assert calls(log) == 1
