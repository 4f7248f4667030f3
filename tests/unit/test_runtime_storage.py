"""Folders from which code is loaded: their owners, atomic writes, and leftovers of killed writers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsl_kernels import measured
from dsl_kernels.errors import ArtifactError, CacheError
from dsl_kernels.runtime import storage

ROOT = Path(__file__).resolve().parents[2]


def run(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c",
         "import os, sys; from pathlib import Path\nfrom dsl_kernels.runtime import storage\n" + code, *args],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757, 0o770, 0o1777])
def test_a_place_that_others_may_write_to_is_refused(tmp_path, mode):
    place = tmp_path / "place"
    place.mkdir()
    storage.require_trusted(place, tmp_path / "absent")
    place.chmod(mode)
    with pytest.raises(CacheError) as caught:
        storage.require_trusted(place)
    assert caught.value.code == "CACHE_UNTRUSTED" and caught.value.subject == str(place)
    assert f"mode {mode:04o}" in caught.value.got
    assert "chmod -R go-w" in caught.value.fix and "DSL_KERNELS_CACHE_DIR" in caught.value.fix
    place.chmod(mode & ~0o022)
    storage.require_trusted(place)


@pytest.mark.parametrize(("owner", "refused"), [(0, False), (4321, False), (4322, True)])
def test_a_place_of_another_user_is_refused(tmp_path, monkeypatch, owner, refused):
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    monkeypatch.setattr(Path, "stat", lambda self: SimpleNamespace(st_uid=owner, st_mode=0o40755))
    reason = storage.distrust(tmp_path)
    assert (reason == f"it belongs to user {owner}") if refused else reason is None


def test_folders_are_made_for_their_owner_alone_whatever_the_umask(tmp_path):
    held = os.umask(0)
    try:
        storage.make_folder(tmp_path / "a" / "b" / "c")
        storage.write_atomically(tmp_path / "a" / "file", b"text")
    finally:
        os.umask(held)
    storage.require_trusted(*(tmp_path / "a").rglob("*"), tmp_path / "a")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o755


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "a[1].json"
    storage.write_atomically(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(
            os, "fsync", lambda descriptor: (_ for _ in ()).throw(OSError(28, "No space left on device"))
        )
        with pytest.raises(OSError, match="No space"):
            storage.write_atomically(path, b"new")
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]
    done = run(
        "os.replace = lambda *_: os._exit(9)\nstorage.write_atomically(Path(sys.argv[1]), b'new')", str(path)
    )
    assert done.returncode == 9 and path.read_bytes() == b"old" and len(list(tmp_path.iterdir())) == 2
    storage.write_atomically(path, b"new")
    assert path.read_bytes() == b"new" and list(tmp_path.iterdir()) == [path]


def test_a_sweep_removes_what_the_dead_left_and_spares_the_living(tmp_path):
    done = run(
        "with storage.working_folder(Path(sys.argv[1]), 'x') as f: (f / 'part').touch(); os._exit(9)",
        str(tmp_path),
    )
    (left,) = tmp_path.iterdir()
    assert done.returncode == 9 and (left / "part").exists()
    with storage.working_folder(tmp_path, "x") as mine:
        storage.sweep(tmp_path, "y")
        assert left.exists() and mine.exists()
        done = run("storage.sweep(Path(sys.argv[1]))", str(tmp_path))
        assert done.returncode == 0 and list(tmp_path.iterdir()) == [mine]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("moment", ["open", "flock"])
def test_what_a_sweep_takes_before_it_is_locked_is_made_anew(moment, tmp_path, monkeypatch):
    """Two writers at once: what one has created but not yet locked looks abandoned to the other."""
    owner = {"open": os, "flock": storage.fcntl}[moment]
    plain, taken = getattr(owner, moment), []

    def swept(first, *rest):
        mine = [path for path in tmp_path.iterdir() if path.name.startswith(".")]
        if mine and not taken:
            taken.extend(mine)
            for path in mine:
                path.rmdir() if path.is_dir() else path.unlink()
        return plain(first, *rest)

    monkeypatch.setattr(owner, moment, swept)
    with storage.working_folder(tmp_path, "x") as mine:
        assert mine.is_dir() and mine not in taken and taken
    taken.clear()
    storage.write_atomically(tmp_path / "a.json", b"new")
    assert (tmp_path / "a.json").read_bytes() == b"new" and taken
    assert list(tmp_path.iterdir()) == [tmp_path / "a.json"]


def test_without_locks_age_decides(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(storage.fcntl, "flock", unsupported)
    with storage.working_folder(tmp_path, "x") as mine:
        storage.sweep(tmp_path)
        assert mine.exists()
        then = time.time() - storage.LEFTOVER_SECONDS - 60
        os.utime(mine, (then, then))
        storage.sweep(tmp_path)
        assert not mine.exists()


@pytest.fixture(params=["pipe", "device", "endless", "large", "folder"])
def no_file(request, tmp_path):
    """Special files in place of a regular one; reading them would block, never end, or exhaust the memory."""
    path = tmp_path / request.param
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "large":
        with path.open("wb") as file:
            file.truncate(storage.MAX_FILE_BYTES + 1)
    elif request.param == "folder":
        path.mkdir()
    else:
        path.symlink_to({"device": "/dev/null", "endless": "/dev/zero"}[request.param])
    return path


def test_only_regular_files_of_bounded_size_are_read(no_file, tmp_path):
    with pytest.raises(OSError, match=r"not a regular file|larger than|Is a directory"):
        storage.read_file(no_file)
    (tmp_path / "file").write_bytes(b"1234")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert storage.read_file(tmp_path / "link", limit=4) == b"1234"
    with pytest.raises(OSError, match="larger than 3"):
        storage.read_file(tmp_path / "file", limit=3)
    with pytest.raises(FileNotFoundError):
        storage.read_file(tmp_path / "absent")


def test_a_tuned_table_that_is_no_file_is_refused(no_file, monkeypatch):
    monkeypatch.setattr(measured, "TUNED", no_file.parent)
    no_file.rename(no_file.parent / "some_gpu.json")
    measured.entries_of.cache_clear()
    with pytest.raises(ArtifactError, match="a tuned table"):
        measured.tuned_table("some gpu")
