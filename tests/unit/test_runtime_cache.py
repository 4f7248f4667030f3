"""What the cache loads and refuses, with a hand-made artifact; needs no compiler."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_runtime_artifact import example

from dsl_kernels import backends, variants
from dsl_kernels.backends import base
from dsl_kernels.errors import (
    ArtifactError,
    CacheError,
    CompileError,
    InvalidArgumentError,
    MissingArtifactError,
)
from dsl_kernels.runtime import cache, pool, storage, store, toolkit
from dsl_kernels.variants import Variant

ROOT = Path(__file__).resolve().parents[2]
NAME = "scale__tilelang_sm90a__t"


@pytest.fixture(autouse=True)
def cache_dir(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("DSL_KERNELS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DSL_KERNELS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def made(tmp_path) -> tuple[Variant, Path]:
    """A generated module, and an artifact that stands for its compilation."""
    path = tmp_path / "generated" / f"{NAME}.py"
    path.parent.mkdir()
    path.write_text("# a module\n")
    variant = Variant(NAME, "scale", "tilelang", "sm_90a", {}, path)
    key = cache.key_of(variant)
    folder = cache._entry(variant, key) if key.digest else cache._folder(variant) / f"{NAME}-00000000"
    storage.make_folder(folder)
    for file in ("kernel.ptx", "kernel.cubin"):
        (folder / file).write_text(file)
    example().seal(folder)
    cache.record_inputs(folder, variant, key)
    return variant, folder


def test_it_is_found_and_loaded(made):
    variant, folder = made
    assert cache.lookup(variant) == folder
    artifact, code = store.fetch(variant, "kernel.cubin")
    assert artifact == example(files=artifact.files) and code == b"kernel.cubin"


def test_no_bit_of_the_launch_description_can_flip_unseen(made):
    _, folder = made
    path, text = folder / "meta.json", (folder / "meta.json").read_bytes()
    for bit in range(8 * len(text)):
        flipped = bytearray(text)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        with pytest.raises(ArtifactError):
            cache.fetch(folder, "kernel.cubin")


@pytest.mark.parametrize("file", ["meta.json", "inputs.json", "kernel.cubin", "kernel.ptx"])
def test_whatever_is_damaged_is_a_miss_and_never_an_answer(made, file, monkeypatch):
    """Bit flips, cuts and swapped bytes of any file: either a miss, or a hit with every code file intact."""
    monkeypatch.setenv("DSL_KERNELS_DISABLE_JIT", "1")
    variant, folder = made
    path, text, generator = folder / file, (folder / file).read_bytes(), random.Random(7)
    for _ in range(200):
        damaged = bytearray(text)
        place = generator.randrange(len(text))
        kind = generator.randrange(3)
        if kind == 0:
            damaged[place] ^= 1 << generator.randrange(8)
        elif kind == 1:
            del damaged[place:]
        else:
            damaged[place : place + 4] = generator.randbytes(4)
        if bytes(damaged) == text:
            continue
        path.write_bytes(damaged)
        assert cache.lookup(variant) is None
        with pytest.raises(MissingArtifactError):
            store.fetch(variant, "kernel.cubin")
    path.write_bytes(text)
    assert cache.lookup(variant) == folder


def test_an_artifact_without_the_record_of_this_version_is_a_miss(made):
    variant, folder = made
    (folder / "inputs.json").write_text('{"content": "", "digest": "", "variant": "", "versions": {}}')
    assert cache.lookup(variant) is None


@pytest.mark.parametrize("place", ["root", "version", "arch", "entry", "kernel.cubin", "meta.json"])
@pytest.mark.parametrize("bit", [0o002, 0o020])
def test_a_cache_that_others_may_write_to_is_refused(made, cache_dir, place, bit):
    variant, folder = made
    places = {"root": cache_dir, "version": folder.parents[1], "arch": folder.parent, "entry": folder}
    path = places.get(place, folder / place)
    path.chmod(path.stat().st_mode | bit)
    for look in (cache.lookup, cache.artifact_for, cache.load):
        with pytest.raises(CacheError, match=r"others may write to it.*chmod -R go-w") as caught:
            look(variant)
        assert caught.value.code == "CACHE_UNTRUSTED" and caught.value.subject == str(path)


def test_without_a_home_the_error_says_what_to_set(made, monkeypatch, tmp_path):
    for name in ("DSL_KERNELS_CACHE_DIR", "HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: (_ for _ in ()).throw(KeyError(uid)))
    with pytest.raises(CacheError, match="set DSL_KERNELS_CACHE_DIR") as caught:
        cache.cache_root()
    assert caught.value.code == "CACHE_HOME"
    monkeypatch.setenv("DSL_KERNELS_CACHE_DIR", "~/kernels")
    with pytest.raises(InvalidArgumentError, match="DSL_KERNELS_CACHE_DIR"):
        cache.cache_root()


@pytest.fixture
def compiling(monkeypatch, tmp_path) -> Callable[..., Variant]:
    """Makes a module of some name; what its compile does is given once, and then leaves an artifact."""

    def module(name: str, does: Callable[[], None]) -> Variant:
        def compile_module(self, path, arch, out_dir, *, lineinfo=True):
            does()
            (out_dir / "kernel.cubin").write_text("code")
            return example(variant=path.stem).seal(out_dir)

        backend = type(backends.get("tilelang"))
        monkeypatch.setattr(backend, "versions", lambda self: {"tilelang": "0"})
        monkeypatch.setattr(backend, "compile_module", compile_module)
        path = tmp_path / f"{name}__tilelang_sm90a__t.py"
        path.write_text("# a module\n")
        return Variant(path.stem, name, "tilelang", "sm_90a", {}, path)

    return module


def test_one_thread_of_a_process_compiles_at_a_time(compiling):
    """Each compile waits for the other one, in vain."""
    together, alone = threading.Barrier(2), []

    def meet() -> None:
        try:
            together.wait(timeout=0.3)
        except threading.BrokenBarrierError:
            alone.append(threading.get_ident())

    modules = [compiling(name, meet) for name in ("one", "other")]
    threads = [threading.Thread(target=cache.artifact_for, args=(module,)) for module in modules]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(alone)) == 2 and all(cache.lookup(module) for module in modules)


MALFORMED = "CONFIG_MALFORMED_COMPILE_OPTIONS: '--dump-dir /a b/c'"


def refuses(error: Exception) -> None:
    with base.refused("scale", "the DSL"):
        raise error


def fails(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("fail", "remembered"),
    [
        (lambda: refuses(ValueError("no such tile")), True),
        (lambda: refuses(ValueError(MALFORMED)), False),
        (lambda: fails(AttributeError("'NoneType' object has no attribute '__ptx__'")), False),
    ],
    ids=["the module", "the temporary folder", "outside of the DSL"],
)
def test_only_what_the_sources_cause_is_remembered(compiling, cache_dir, fail, remembered):
    with pytest.raises(CompileError) as caught:
        cache.artifact_for(compiling("scale", fail))
    assert (caught.value.code == "COMPILE") is remembered
    assert bool(list(cache_dir.rglob("*.failed.json"))) is remembered
    if not remembered:
        assert caught.value.code == toolkit.UNFINISHED
        assert cache.artifact_for(compiling("scale", lambda: None)).is_dir()


def test_settings_of_cute_dsl_are_part_of_the_key_only_if_set(made, monkeypatch):
    """The key of today's libraries without any setting is that of the versions alone."""
    module = Variant(NAME, "scale", "cutedsl", "sm_90a", {}, made[0].path)
    monkeypatch.setattr(
        type(backends.get("cutedsl")), "versions", lambda self: {"nvidia-cutlass-dsl": "4.8.1"}
    )
    monkeypatch.setattr(toolkit, "version", lambda package: None)
    for name in [name for name in os.environ if name.startswith("CUTE_DSL_")]:
        monkeypatch.delenv(name)
    plain = cache.key_of(module)
    assert plain.versions == {"nvidia-cutlass-dsl": "4.8.1"}
    monkeypatch.setenv("CUTE_DSL_CACHE_DIR", "/elsewhere")
    monkeypatch.setenv("CUTE_DSL_COMPILER_OPT", "")
    assert cache.key_of(module) == plain
    digests = {plain.digest}
    for name, value in (("COMPILER_OPT", "opt-level=0"), ("COMPILER_OPT", "iket"), ("DRYRUN", "1")):
        with monkeypatch.context() as patch:
            patch.setenv(f"CUTE_DSL_{name}", value)
            digests.add(cache.key_of(module).digest)
    monkeypatch.setattr(toolkit, "version", lambda package: "4.8.1" if package.endswith("-cu13") else None)
    digests.add(cache.key_of(module).digest)
    assert len(digests) == 5 and cache.key_of(module).content == plain.content


def test_a_dsls_own_cache_is_in_a_root_that_nobody_else_may_write_to(cache_dir, monkeypatch):
    """TileLang makes its folder, and the root with it, by the umask."""
    monkeypatch.setenv("TILELANG_CACHE_DIR", "")
    monkeypatch.delenv("TILELANG_CACHE_DIR")
    umask = os.umask(0o002)
    try:
        base.place_cache("TILELANG_CACHE_DIR", "tilelang")
        Path(os.environ["TILELANG_CACHE_DIR"]).mkdir(parents=True, exist_ok=True)
    finally:
        os.umask(umask)
    storage.require_trusted(cache_dir, cache_dir / "tilelang")


def test_compile_workers_import_nothing_from_the_current_folder(tmp_path, monkeypatch):
    for name in ("selectors.py", "json.py", "dsl_kernels.py"):
        (tmp_path / name).write_text("raise SystemExit('a module of the current folder')\n")
    monkeypatch.chdir(tmp_path)
    module = Variant("scale__none_sm90a__t", "scale", "none", "sm_90a", {}, tmp_path / "absent.py")
    worker = pool._Worker(module)
    try:
        worker.give(module, retry=False)
        assert "error" in json.loads(worker.replies.readline() or worker.last_words())
    finally:
        worker.kill()


PROBE = """
import json, os, sys, traceback
commands = json.loads(sys.argv[1])
from dsl_kernels.cli import main
for arguments in commands:
    sys.argv = ["dsl_kernels", *arguments]
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc(file=sys.stdout)
        code = 70
    sys.stdout.flush(), sys.stderr.flush()
    os.write(1, f"\\n<<{code}>>\\n".encode())
"""
TILELANG = next(v.id for v in variants.variants(backend="tilelang"))
COMMANDS = (
    ("env", "--json"),
    ("list", "--op", "merge_outputs"),
    ("list", "--json", "--op", "window_ids"),
    ("show", TILELANG),
    ("explain", "sparse_mla", "--dim", "t=16,heads=16,topk=2048", "--arch", "sm_90a"),
    ("run", "decode", "--size", "tiny", "--executor", "interpreter"),
    ("cache", "ls"),
    ("cache", "prune", "--dry-run"),
    ("compile", TILELANG),
    ("doctor",),
    ("--help",),
)


def _identity(uid: int) -> dict[str, Any]:
    return {"user": uid, "group": uid, "extra_groups": []} if uid else {}


def outcomes(uid: int = 0, **settings: str) -> dict[str, tuple[int, str]]:
    """Exit status and output of each command, run with only `settings` in its environment."""
    # Without a toolkit nothing is compiled, under any user.
    path = {
        "PATH": os.path.dirname(sys.executable),
        "CUDA_HOME": "/nonexistent",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROBE, json.dumps(COMMANDS)], **_identity(uid),
        env={**path, "PYTHONPATH": str(ROOT), **settings}, cwd="/", stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    *texts, rest = re.split(r"\n<<(\d+)>>\n", done.stdout.decode(errors="replace"))
    assert done.returncode == 0 and rest == "", done.stdout.decode(errors="replace")[-3000:]
    by_command = {}
    for arguments, text, code in zip(COMMANDS, texts[::2], texts[1::2], strict=True):
        assert "Traceback" not in text and "Unraisable" not in text, (arguments, text[-3000:])
        by_command[" ".join(arguments[:2])] = int(code), text
    return by_command


def works(by_command: dict[str, tuple[int, str]], *besides: str) -> None:
    """Every command works; those in `besides` say what to set instead."""
    for name, (code, text) in by_command.items():
        if name.split()[0] == "compile":
            assert name in besides or (code in (1, 2) and "error[" in text), text
        elif name not in besides and name != "doctor":
            assert code == 0, (name, text)
        if name in besides:
            assert code in (1, 2) and "DSL_KERNELS_CACHE_DIR" in text, (name, text)


NOBODY = 54321  # has no passwd entry


@pytest.fixture
def nobody() -> int:
    """A user without a name, if this test may switch to one and that user can read Python's files."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    tried = [sys.executable, "-c", "import torch, typer, dsl_kernels.cli"]
    settings = {"PYTHONPATH": str(ROOT)}
    if subprocess.run(tried, env=settings, capture_output=True, check=False, **_identity(NOBODY)).returncode:
        pytest.skip("another user cannot read this Python")
    return NOBODY


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "HOME": "/nonexistent"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "HOME": "/nonexistent"},
    ],
    ids=["ascii", "C"],
)
def test_every_command_prints_where_only_ascii_can_be(settings, cache_dir):
    works(outcomes(**settings, DSL_KERNELS_CACHE_DIR=str(cache_dir)))


@pytest.mark.slow
def test_every_command_works_or_says_what_to_set_without_a_home_and_a_name(nobody):
    statuses = outcomes(nobody)
    works(statuses, "cache ls", "cache prune", f"compile {TILELANG}", "doctor")
    assert "error[CACHE_HOME]" in statuses["cache ls"][1]
    works(outcomes(nobody, HOME="/nonexistent"))


@pytest.mark.slow
def test_every_command_works_or_says_what_to_set_in_the_home_of_another_user(nobody, tmp_path):
    home = tmp_path / "home"
    (home / ".cache").mkdir(parents=True)
    for folder in tmp_path.parents:
        if folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)
    home.chmod(0o700)
    statuses = outcomes(nobody, HOME=str(home))
    works(statuses, *(name for name, (code, _) in statuses.items() if code == 2))
    assert statuses["run decode"][0] == statuses["env --json"][0] == 0


@pytest.mark.slow
def test_every_command_works_on_a_cache_that_cannot_be_written(cache_dir, made, nobody):
    for folder in (cache_dir, *cache_dir.parents):
        if folder.stat().st_mode & 0o055 != 0o055 and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    statuses = outcomes(nobody, DSL_KERNELS_CACHE_DIR=str(cache_dir))
    works(statuses)
    assert NAME in statuses["cache ls"][1], "what root compiled is there for everyone"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
@pytest.mark.slow
def test_a_cache_of_another_user_is_refused_with_what_to_set(cache_dir, made):
    os.chown(cache_dir, 4321, 4321)
    statuses = outcomes(DSL_KERNELS_CACHE_DIR=str(cache_dir))
    code, text = statuses[f"compile {TILELANG}"]
    assert code == 1 and "CACHE_UNTRUSTED" in text and "DSL_KERNELS_CACHE_DIR" in text
