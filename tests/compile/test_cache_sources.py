"""The artifact cache and the real compiler: hits, corruption, concurrency, crashes, failures, no-JIT mode."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsl_kernels import backends
from dsl_kernels.backends.base import place_cache
from dsl_kernels.errors import CacheError, CompileError, MissingArtifactError, ToolchainError
from dsl_kernels.runtime import cache, store
from dsl_kernels.runtime.artifact import read
from dsl_kernels.runtime.prune import prune

pytestmark = pytest.mark.compile

COUNTED = 'pathlib.Path(os.environ["COMPILES"]).open("a").write("x")'
BUILD = """
import sys, types, pathlib
from dsl_kernels.runtime import cache
path = pathlib.Path(sys.argv[2])
module = types.SimpleNamespace(id=sys.argv[1], backend="tilelang", arch="sm_90a", path=path)
print(cache.artifact_for(module))
"""


@pytest.fixture
def compiles(tmp_path, monkeypatch):
    """Counts the compilations of a module with the prelude COUNTED."""
    log = tmp_path / "compiles"
    monkeypatch.setenv("COMPILES", str(log))
    return lambda: len(log.read_text()) if log.exists() else 0


def build_in_child(module, env):
    command = [sys.executable, "-c", BUILD, module.id, str(module.path)]
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def hidden(folder):
    return [p.name for p in folder.glob(".*") if p.name != ".locks"]


def test_compiled_once_then_found_then_rebuilt_when_damaged(make_module, compiles, cache_dir, caplog):
    module = make_module(prelude=COUNTED)
    assert cache.lookup(module) is None
    folder = cache.artifact_for(module)
    assert (
        folder.parent.name == "sm_90a"
        and folder.name.startswith("scale__tilelang_sm90a__t-")
        and folder.is_relative_to(cache_dir)
    )
    assert cache.lookup(module) == cache.artifact_for(module) == folder and compiles() == 1
    assert [entry.folder for entry in cache.entries()] == [folder] and not hidden(folder.parent)

    cubin = folder / "kernel.cubin"
    cubin.write_bytes(cubin.read_bytes()[:-1])
    assert cache.lookup(module) is None and "damaged" in caplog.text
    assert cache.artifact_for(module) == folder and compiles() == 2
    read(folder)

    (folder / "meta.json").write_text("{")
    (folder / "inputs.json").unlink()
    assert cache.artifact_for(module) == folder and compiles() == 3 and not hidden(folder.parent)
    assert cache.load(module).artifact == read(folder)


def test_the_key_covers_source_helpers_versions_and_flags(make_module, tmp_path, monkeypatch):
    module = make_module()
    before = cache.key_of(module)
    assert cache.key_of(module) == before

    module.path.write_text(module.path.read_text() + "\n# a comment\n")
    edited = cache.key_of(module)
    assert edited.content != before.content

    helper = tmp_path / "helper.py"
    helper.write_text("A = 1\n")
    backend = backends.get("tilelang")
    monkeypatch.setattr(type(backend), "sources", lambda self, path: [helper])
    with_helper = cache.key_of(module)
    helper.write_text("A = 2\n")
    assert len({edited.content, with_helper.content, cache.key_of(module).content}) == 3

    monkeypatch.setattr(type(backend), "versions", lambda self: {"tilelang": "9.9", "nvcc": "99"})
    newer = cache.key_of(module)
    assert newer.content == cache.key_of(module).content and newer.digest != with_helper.digest

    monkeypatch.setattr(type(backend), "flags", lambda self, arch: ["-O0"])
    assert cache.key_of(module).content != newer.content


def test_processes_that_want_the_same_variant_compile_it_once(make_module, compiles, child_env):
    module = make_module(prelude=COUNTED + "\ntime.sleep(1)")
    children = [build_in_child(module, child_env) for _ in range(3)]
    outputs = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0, 0], outputs
    assert len({out for out, _ in outputs}) == 1 and compiles() == 1
    assert cache.lookup(module) is not None


def test_a_killed_compile_publishes_nothing_and_does_not_block_the_next(make_module, tmp_path, child_env):
    marker = tmp_path / "started"
    prelude = f'if os.environ.get("STALL"):\n    pathlib.Path({str(marker)!r}).touch()\n    time.sleep(120)\n'
    module = make_module(prelude=prelude)
    child = build_in_child(module, {**child_env, "STALL": "1"})
    deadline = time.monotonic() + 60
    while not marker.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(child.pid, signal.SIGKILL)
    child.communicate()
    folder = cache.cache_root()
    assert cache.lookup(module) is None and cache.entries() == []
    left = list(folder.glob("*/*/.staging-*"))
    assert len(left) == 1
    assert cache.artifact_for(module).is_dir() and not left[0].exists()


def test_a_failure_is_remembered_until_the_source_changes_or_a_retry(make_module, compiles):
    broken = "\nif os.environ.get('BROKEN'):\n    raise RuntimeError('no such tile')"
    module = make_module(prelude=COUNTED + broken)
    os.environ["BROKEN"] = "1"
    try:
        for attempt in ("got RuntimeError: no such tile", "an earlier compile .*no such tile.*--retry"):
            with pytest.raises(CompileError, match=attempt):
                cache.artifact_for(module)
        assert compiles() == 1
    finally:
        del os.environ["BROKEN"]
    assert cache.artifact_for(module, retry=True).is_dir() and compiles() == 2


CHANGING = """
import sys, types
from pathlib import Path
import dsl_kernels
from dsl_kernels.errors import CompileError
from dsl_kernels.runtime import cache
from dsl_kernels.device.torch import fragment

package, generated = Path(dsl_kernels.__file__).parent, Path(sys.argv[1])
assert package.is_relative_to(generated.parent)
def module(name):
    return types.SimpleNamespace(id=name, backend="tilelang", arch="sm_90a", path=generated / f"{name}.py")

def factor(folder):
    return [f for f in ("3.000000e+00", "5.000000e+00") if f in (folder / "kernel.cu").read_text()]

def stale(name):
    try:
        return cache.artifact_for(module(name))
    except CompileError as error:
        return error.code, error.got

leaf = package / "device" / "tilelang" / "leaf.py"
first = cache.artifact_for(module("first__tilelang_sm90a__t"))
old = leaf.stat()
leaf.write_text(leaf.read_text().replace("3.0", "5.0"))
import os; os.utime(leaf, ns=(old.st_atime_ns, old.st_mtime_ns))
second = cache.artifact_for(module("second__tilelang_sm90a__t"))
assert sys.modules["dsl_kernels.device.torch.fragment"] is fragment, "programs hold what leaves mean"
print(factor(first), factor(second), cache.lookup(module("first__tilelang_sm90a__t")))
edited = cache.artifact_for(module("edited__tilelang_sm90a__t"))
print(factor(edited), cache.lookup(module("edited__tilelang_sm90a__t")))
backend = package / "backends" / "tilelang.py"
backend.write_text(backend.read_text() + "# edited\\n")
print(stale("third__tilelang_sm90a__t"))
print(sorted(p.name.split("_")[0] for p in cache.cache_root().glob("*/sm_90a/[!.]*")))
"""


def test_an_artifact_is_filed_under_the_sources_that_were_loaded(make_module, tmp_path, child_env):
    """In one process, a helper, the module itself and the backend are edited after they were loaded."""
    root = Path(child_env["PYTHONPATH"])
    skipped = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "dsl_kernels", tmp_path / "dsl_kernels", ignore=skipped)
    leaf = tmp_path / "dsl_kernels" / "device" / "tilelang" / "leaf.py"
    leaf.write_text("FACTOR = 3.0\n")
    prelude = "from dsl_kernels.device.tilelang.leaf import FACTOR"
    for name in ("first", "second", "third", "edited"):
        module = make_module(f"{name}__tilelang_sm90a__t", prelude=prelude)
        text = module.path.read_text().replace("* scale", "* T.float32(FACTOR)")
        if name == "edited":
            text += "\npathlib.Path(__file__).open('a').write('# edited')\n"
        module.path.write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", CHANGING, str(tmp_path / "generated")],
        cwd=tmp_path, env={**child_env, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    helper, itself, backend, left = done.stdout.splitlines()
    assert helper == "['3.000000e+00'] ['5.000000e+00'] None", (
        "each under its own text, and never the old code"
    )
    assert itself == "['5.000000e+00'] None", (
        "filed under the text that was loaded, and not under the new one"
    )
    assert backend == "('COMPILE_STALE', 'tilelang.py changed meanwhile')"
    assert left == "['edited', 'first', 'second']", "no third, and no note of a failure"


def test_sources_that_change_before_they_are_loaded_are_refused(make_module, monkeypatch):
    module, backend = make_module(), backends.get("tilelang")
    real = type(backend).compile_module

    def edited_first(self, path, *args, **options):
        path.write_text(path.read_text() + "# edited\n")
        return real(self, path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(type(backend), "compile_module", edited_first)
        with pytest.raises(CompileError, match="compile it again") as caught:
            cache.artifact_for(module)
    assert caught.value.code == "COMPILE_STALE" and cache.entries() == []
    assert cache.artifact_for(module).is_dir()


@pytest.mark.parametrize(
    "fault",
    [
        "raise OSError(27, 'File too large')",
        "raise MemoryError",
        "raise RuntimeError('tvm: cannot map: Cannot allocate memory')",
        "raise RuntimeError('lowering') from OSError(28, 'No space left on device')",
    ],
)
def test_a_fault_of_the_machine_is_not_remembered(make_module, fault):
    module = make_module(prelude=f"if os.environ.get('BROKEN'):\n    {fault}")
    os.environ["BROKEN"] = "1"
    try:
        with pytest.raises(CompileError) as caught:
            cache.artifact_for(module)
    finally:
        del os.environ["BROKEN"]
    assert caught.value.code == "COMPILE_UNFINISHED" and "doctor" in caught.value.fix
    assert not list(cache.cache_root().glob("*/*/*.failed.json"))
    assert cache.artifact_for(module).is_dir()


@pytest.mark.parametrize(
    ("says", "remembered"),
    [
        ("nvcc fatal   : Could not open the configuration file nvcc.profile", False),
        ("nvcc: error while loading shared libraries: libnvvm.so: cannot open shared object file", False),
        ("kernel.cu:1:10: fatal error: cuda_runtime.h: No such file or directory", False),
        ("ptxas fatal   : Memory allocation failure", False),
        ("", False),
        ('kernel.cu(12): error: identifier \\"x\\" is undefined', True),
        ("ptxas kernel.ptx, line 4; error   : Unknown symbol", True),
        ("ptxas error   : Entry function uses too much shared data", True),
    ],
)
def test_a_broken_compiler_is_not_the_templates_fault(make_module, tmp_path, monkeypatch, says, remembered):
    fake = tmp_path / "bin" / "nvcc"
    fake.parent.mkdir()
    fake.write_text(
        '#!/bin/sh\ncase "$1" in --version) echo "release 13.0, V13.0.88";; '
        f'*) echo "{says}" >&2; exit 1;; esac\n'
    )
    fake.chmod(0o755)
    module = make_module()
    with monkeypatch.context() as patch:
        patch.setenv("CUDA_HOME", str(tmp_path))
        with pytest.raises(CompileError) as caught:
            cache.artifact_for(module)
    assert (caught.value.code == "COMPILE") is remembered
    assert bool(list(cache.cache_root().glob("*/*/*.failed.json"))) is remembered


def test_what_is_compiled_is_its_owners_alone_whatever_the_umask(make_module, cache_dir):
    umask = os.umask(0)
    try:
        folder = cache.artifact_for(make_module())
    finally:
        os.umask(umask)
    assert cache.lookup(make_module()) == folder
    assert folder.stat().st_mode & 0o777 == 0o755, "another user, or a container's, may read it"


def test_a_compiler_that_was_killed_is_not_remembered(make_module, monkeypatch):
    module, backend = make_module(), backends.get("tilelang")

    def die(self, path, arch, out_dir, *, lineinfo=True):
        raise CompileError(path.stem, expected="it", got="signal 9", fix="more memory", code="COMPILE_KILLED")

    with monkeypatch.context() as patch:
        patch.setattr(type(backend), "compile_module", die)
        with pytest.raises(CompileError):
            cache.artifact_for(module)
    assert cache.artifact_for(module).is_dir()


def test_without_jit_the_error_names_the_variant_and_the_command(make_module, monkeypatch):
    module = make_module()
    with pytest.raises(MissingArtifactError, match=rf"{module.id}.*dsl_kernels compile {module.id}"):
        cache.artifact_for(module, build=False)
    monkeypatch.setenv("DSL_KERNELS_DISABLE_JIT", "1")
    with pytest.raises(MissingArtifactError, match="got none"):
        cache.load(module)


def test_without_a_toolchain_a_build_of_the_same_content_is_used(make_module, monkeypatch):
    module, backend = make_module(), backends.get("tilelang")
    folder = cache.artifact_for(module)
    missing = ToolchainError("nvcc", expected="nvcc", got="none found", fix="install it")

    def no_versions(self):
        raise missing

    monkeypatch.setattr(type(backend), "versions", no_versions)
    assert cache.lookup(module) == folder
    module.path.write_text(module.path.read_text() + "\n# edited\n")
    assert cache.lookup(module) is None
    with pytest.raises(ToolchainError, match="nvcc"):
        cache.artifact_for(module)

    monkeypatch.setattr(type(backend), "versions", lambda self: {"tilelang": "9.9"})
    make_module()
    assert cache.lookup(module) is None, "a newer toolchain rebuilds"
    monkeypatch.setenv("DSL_KERNELS_DISABLE_JIT", "1")
    assert cache.lookup(module) == folder, "unless nothing may be built"


def test_a_cache_that_cannot_be_created(make_module, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DSL_KERNELS_CACHE_DIR", str(tmp_path / "file" / "below"))
    module = make_module()
    assert cache.lookup(module) is None
    with pytest.raises(CacheError, match="DSL_KERNELS_CACHE_DIR") as caught:
        cache.artifact_for(module)
    assert isinstance(caught.value, OSError)


def test_a_read_only_cache_still_serves_what_it_has(make_module, monkeypatch):
    module = make_module()
    folder = cache.artifact_for(module)

    def refuse(*args, **kwargs):
        raise OSError(30, "Read-only file system", str(folder))

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    assert cache.artifact_for(module) == folder
    module.path.write_text(module.path.read_text() + "\n# edited\n")
    with pytest.raises(CacheError, match="Read-only file system"):
        cache.artifact_for(module)


def test_a_full_disk_leaves_no_half_entry(make_module, child_env):
    module = make_module()
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))\n{BUILD}"
    command = [sys.executable, "-c", limited, module.id, str(module.path)]
    done = subprocess.run(command, env=child_env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and ("CacheError" in done.stderr or "CompileError" in done.stderr), (
        done.stderr[-2000:]
    )
    assert cache.lookup(module) is None and cache.entries() == []
    assert cache.artifact_for(module).is_dir()


def test_no_space_reported_by_the_compiler_is_a_cache_error(make_module, tmp_path, monkeypatch):
    fake = tmp_path / "bin" / "nvcc"
    fake.parent.mkdir()
    fake.write_text(
        '#!/bin/sh\ncase "$1" in --version) echo "release 13.0, V13.0.88";; *) echo "fatal error: No space '
        'left on device" >&2; exit 1;; esac\n'
    )
    fake.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(CacheError, match=r"No space left.*DSL_KERNELS_CACHE_DIR"):
        cache.artifact_for(make_module())


def test_a_lock_that_is_never_released(make_module, child_env, cache_dir, monkeypatch):
    module = make_module(prelude="time.sleep(30)")
    child = build_in_child(module, child_env)
    try:
        deadline = time.monotonic() + 60
        while not list(cache_dir.glob("*/*/.staging-*")) and time.monotonic() < deadline:
            time.sleep(0.02)
        monkeypatch.setenv("DSL_KERNELS_COMPILE_TIMEOUT", "1")
        with pytest.raises(CacheError, match="lock that is still held"):
            cache.artifact_for(module)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def test_a_missing_generated_module(make_module):
    module = make_module()
    module.path.unlink()
    with pytest.raises(MissingArtifactError, match="make generate"):
        cache.artifact_for(module)


def test_one_root_for_every_cache(tmp_path, monkeypatch):
    for name in ("TILELANG_CACHE_DIR", "CUTE_DSL_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    place_cache("TILELANG_CACHE_DIR", "tilelang")
    assert os.environ["TILELANG_CACHE_DIR"] == str(cache.cache_root() / "tilelang")
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", "/elsewhere")
    place_cache("CUTE_DSL_CACHE_DIR", "cute")
    assert os.environ["CUTE_DSL_CACHE_DIR"] == "/elsewhere"
    monkeypatch.delenv("DSL_KERNELS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_root() == tmp_path / "xdg" / "dsl_kernels"


def test_unreadable_entries_are_skipped_in_the_listing(make_module, cache_dir):
    folder = cache.artifact_for(make_module())
    copy = folder.with_name("other-00000000")
    shutil.copytree(folder, copy)
    (copy / "meta.json").write_text("{}")
    listed = cache.entries()
    assert [entry.folder for entry in listed] == [folder] and listed[0].bytes > 1000
    assert json.loads((folder / "inputs.json").read_text())["variant"] == "scale__tilelang_sm90a__t"


def aged(folder, days):
    then = time.time() - days * 86400
    for path in (*folder.iterdir(), folder):
        os.utime(path, (then, then))


def test_prune_goes_by_age_then_by_size_and_spares_what_is_wanted(make_module, cache_dir):
    folder = cache.artifact_for(make_module())
    copies = [folder.with_name(f"other-{i:08d}") for i in range(4)]
    for days, copy in zip((40, 20, 3, 1), copies, strict=True):
        shutil.copytree(folder, copy)
        aged(copy, days)
    aged(folder, 60)
    size = cache.entries()[0].bytes
    planned = prune(30 * 86400, wanted={folder}, dry_run=True)
    assert [p.folder for p in planned] == copies[:1] and planned[0].reason == "not used for 40.0 days"
    assert len(cache.entries()) == 5
    assert [p.folder for p in prune(30 * 86400, wanted={folder})] == copies[:1]
    removed = prune(30 * 86400, 2 * size, wanted={folder})
    assert [(p.folder, p.reason, p.kept) for p in removed] == [(c, "over the size", "") for c in copies[1:3]]
    assert {entry.folder for entry in cache.entries()} == {folder, copies[3]}
    assert not hidden(folder.parent) and prune(None) == []


def test_prune_leaves_what_is_being_compiled_or_was_just_read(make_module, cache_dir, monkeypatch):
    folder = cache.artifact_for(make_module())
    aged(folder, 60)
    with cache._locked(folder):
        assert [p.kept for p in prune(86400)] == ["being compiled"]
    from dsl_kernels.runtime import prune as module

    early = module.last_used(folder)
    os.utime(folder / "kernel.cubin")
    assert module._delete(folder, early) == "used meanwhile" and folder.is_dir()
    aged(folder, 60)
    staging = folder.with_name(f".staging-{folder.name}-abc")
    staging.mkdir()
    (staging / "kernel.cu").write_text("half")
    fresh = folder.with_name(".staging-fresh-00000000-abc")
    fresh.mkdir()
    aged(staging, 2)
    assert {p.folder for p in prune(86400)} == {folder, staging}
    assert not folder.exists() and not staging.exists() and fresh.is_dir()


def test_a_reader_whose_artifact_is_pruned_under_it_looks_again(make_module, monkeypatch):
    module, looks = make_module(), []
    folder = cache.artifact_for(module)

    def look(wanted):
        looks.append(wanted)
        if len(looks) == 1:
            compiled = artifact_for(wanted)
            aged(compiled, 60)
            assert len(prune(86400)) == 1
            return compiled
        return artifact_for(wanted)

    artifact_for = cache.artifact_for
    monkeypatch.setattr(cache, "artifact_for", look)
    artifact, code = store.fetch(module, "kernel.cubin")
    assert (
        artifact.variant == module.id and code == (folder / "kernel.cubin").read_bytes() and len(looks) == 2
    )
