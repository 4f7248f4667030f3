"""Bundles: round trip to a launch, every refusal, the look-up order, and atomic writing."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_runtime_artifact import example
from test_runtime_launch import FakeDriver, operands, use

import dsl_kernels
from dsl_kernels import backends, prepare, variants
from dsl_kernels.errors import (
    ArtifactError,
    BundleError,
    CacheError,
    InvalidArgumentError,
    MissingArtifactError,
)
from dsl_kernels.runtime import bundle, cache, pool, storage, store
from dsl_kernels.variants import Variant

ROOT = Path(__file__).resolve().parents[2]
TEXT = "from dsl_kernels.kernels.topk_selector import tilelang\n"
NAMES = ("scale__tilelang_sm90a__t", "scale__tilelang_sm90a__u")


@pytest.fixture(autouse=True)
def isolated(tmp_path, monkeypatch):
    """No bundle in use, an empty cache, and no compilation that a test does not ask for."""
    for name in [name for name in os.environ if name.startswith("DSL_KERNELS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("DSL_KERNELS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("DSL_KERNELS_DISABLE_JIT", "1")
    yield
    bundle.use(None)


def make(folder: Path, name: str = NAMES[0], arch: str = "sm_90a") -> tuple[Variant, Path]:
    """A generated module, and an artifact that stands for its compilation."""
    path = folder / "generated" / arch / "scale" / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(TEXT)
    digest = hashlib.sha256(TEXT.encode()).hexdigest()
    compiled = folder / "compiled" / name
    compiled.mkdir(parents=True)
    for file in ("kernel.cu", "kernel.ptx", "kernel.cubin"):
        (compiled / file).write_text(f"{file} of {name}")
    example(variant=name, arch=arch).seal(compiled)
    variant = Variant(name, "scale", "tilelang", arch, {"tile": 128}, path, digest, {"threads": 128})
    cache.record_inputs(compiled, variant, cache.Key("content", "digest", {}))
    return variant, compiled


@pytest.fixture
def made(tmp_path) -> dict[str, tuple[Variant, Path]]:
    return {name: make(tmp_path, name) for name in NAMES}


@pytest.fixture
def written(made, tmp_path) -> tuple[bundle.Bundle, Variant]:
    """A bundle of the first variant, and that variant."""
    variant, folder = made[NAMES[0]]
    return bundle.write(tmp_path / "bundle", [variant], {variant.id: folder}), variant


def edit(bundled: bundle.Bundle, **changes: Any) -> None:
    """Change fields of a bundle's index, and update its hash."""
    content = json.loads((bundled.root / bundle.INDEX).read_text())
    del content["sha256"]
    content.update(changes)
    (bundled.root / bundle.INDEX).write_text(json.dumps({**content, "sha256": bundle._digest(content)}))


def test_a_written_bundle_launches_through_the_driver_alone(written, monkeypatch):
    bundled, variant = written
    driver = use(monkeypatch, FakeDriver())
    monkeypatch.setenv("DSL_KERNELS_BUNDLE_DIR", str(bundled.root))
    store.load(variant).launch(operands(), {"n": 300, "x_stride": 96}, 4321)
    assert driver.code == b"kernel.cubin of " + variant.id.encode() and driver.launches[0].grid == (3, 1, 1)
    assert sorted(path.name for path in (bundled.root / variant.id).iterdir()) == [
        "kernel.cubin",
        "meta.json",
    ]
    assert not (bundled.root.parent / "cache").exists(), "the cache is not touched"


def test_the_index_says_what_the_bundle_was_built_from(written, made):
    bundled, variant = written
    entry = bundled.entries[variant.id]
    assert bundled.arch == "sm_90a" and bundled.library == dsl_kernels.__version__
    assert entry.source == variant.sha256 and entry.toolchain == {"tilelang": "0.1.15"}
    assert sorted(entry.library) == sorted(
        path.relative_to(ROOT / "dsl_kernels").as_posix()
        for path in backends.get("tilelang").sources(variant.path)
    )
    assert "kernels/topk_selector/tilelang.py" in entry.library
    assert not [name for name in (bundled.root / bundle.INDEX).read_text().split('"') if name.startswith("/")]
    assert [error for _, error in bundled.check([variant])] == [None]


def test_the_same_input_gives_the_same_bytes(written, made, tmp_path):
    bundled, variant = written
    again = bundle.write(tmp_path / "again", [variant], {variant.id: made[variant.id][1]})
    for path in sorted(bundled.root.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (again.root / path.relative_to(bundled.root)).read_bytes()


def test_everyone_may_read_a_bundle(written):
    bundled, variant = written
    for folder in (bundled.root, bundled.root / variant.id):
        assert folder.stat().st_mode & 0o055 == 0o055


def test_ptx_is_added_on_request_and_serves_the_emulator(made, tmp_path):
    variant, folder = made[NAMES[0]]
    bundle.use(bundle.write(tmp_path / "with", [variant], {variant.id: folder}, ptx=True).root)
    artifact, text = store.fetch(variant, bundle.PTX)
    assert text == (folder / "kernel.ptx").read_bytes() and artifact.variant == variant.id
    bundle.use(bundle.write(tmp_path / "without", [variant], {variant.id: folder}).root)
    with pytest.raises(MissingArtifactError):
        store.fetch(variant, bundle.PTX)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("file", ["kernel.cubin", "meta.json"])
@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda p: p.write_bytes(p.read_bytes()[:-1])])
def test_a_damaged_file_is_refused(written, file, damage):
    bundled, variant = written
    damage(bundled.root / variant.id / file)
    bundle.use(bundled.root)
    with pytest.raises(BundleError) as caught:
        store.load(variant)
    assert caught.value.code == "BUNDLE_DAMAGED" and file in caught.value.subject
    assert isinstance(caught.value, ArtifactError)
    assert [error.code for _, error in bundled.check([variant]) if error] == ["BUNDLE_DAMAGED"]


def test_a_launch_description_of_another_variant_is_refused(written, made):
    bundled, variant = written
    other = (made[NAMES[1]][1] / "meta.json").read_bytes()
    (bundled.root / variant.id / "meta.json").write_bytes(other)
    entry = bundled.entries[variant.id]
    files = {**entry.files, "meta.json": hashlib.sha256(other).hexdigest()}
    swapped = replace(bundled, entries={variant.id: replace(entry, files=files)})
    with pytest.raises(BundleError, match=f"one of {NAMES[1]}"):
        swapped.fetch(variant)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"schema": 1}', '"text"'])
def test_a_damaged_index_is_refused(written, text):
    bundled, _ = written
    (bundled.root / bundle.INDEX).write_text(text)
    with pytest.raises(BundleError) as caught:
        bundle.open_bundle(bundled.root)
    assert caught.value.code == "BUNDLE_DAMAGED"


def test_an_edited_index_is_refused(written):
    bundled, _ = written
    path = bundled.root / bundle.INDEX
    path.write_text(path.read_text().replace("sm_90a", "sm_100a", 1))
    with pytest.raises(BundleError) as caught:
        bundle.open_bundle(bundled.root)
    assert caught.value.code == "BUNDLE_DAMAGED"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"schema": 2}, "schema 2"),
        ({"library": "0.0.9"}, "0.0.9"),
    ],
)
def test_another_version_is_refused(written, changes, told, monkeypatch):
    bundled, variant = written
    edit(bundled, **changes)
    monkeypatch.setenv("DSL_KERNELS_BUNDLE_DIR", str(bundled.root))
    with pytest.raises(BundleError) as caught:
        store.load(variant)
    assert caught.value.code == "BUNDLE_VERSION" and told in caught.value.got
    assert "bundle write" in caught.value.fix


def test_another_architecture_is_refused(written):
    bundled, variant = written
    bundle.use(bundled.root)
    with pytest.raises(BundleError) as caught:
        store.load(replace(variant, id="scale__tilelang_sm100a__t", arch="sm_100a"))
    assert caught.value.code == "BUNDLE_ARCH" and "--arch sm_100a" in caught.value.fix


def test_another_generated_module_is_refused(written):
    bundled, variant = written
    bundle.use(bundled.root)
    with pytest.raises(BundleError) as caught:
        store.load(replace(variant, sha256="0" * 64))
    assert caught.value.code == "BUNDLE_SOURCE" and caught.value.subject == variant.id


@pytest.mark.parametrize(
    ("present", "told"), [(lambda name: "0" * 64, "0000"), (lambda name: "", "no such file")]
)
def test_another_device_helper_is_refused(written, monkeypatch, present, told):
    bundled, variant = written
    monkeypatch.setattr(bundle, "_library_file", present)
    with pytest.raises(BundleError) as caught:
        bundled.fetch(variant)
    assert caught.value.code == "BUNDLE_SOURCE" and told in caught.value.got


def test_a_variant_that_the_library_lacks_is_reported_by_the_check(written):
    bundled, variant = written
    ((name, error),) = bundled.check([])
    assert name == variant.id and error is not None and error.code == "BUNDLE_SOURCE"


def test_a_folder_that_is_no_bundle_is_refused(tmp_path, monkeypatch):
    for place in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(BundleError, match="a folder with bundle.json"):
            bundle.use(place)
    assert bundle.active() is None, "a refused bundle is not in use"
    monkeypatch.setenv("DSL_KERNELS_BUNDLE_DIR", str(tmp_path))
    with pytest.raises(BundleError, match="DSL_KERNELS_BUNDLE_DIR"):
        bundle.active()


def test_lookup_goes_from_the_bundle_to_the_cache_to_the_compiler(written, made, tmp_path, monkeypatch):
    bundled, variant = written
    other, compiled = made[NAMES[1]]
    asked = []

    def artifact_for(module):
        asked.append(module.id)
        return compiled

    monkeypatch.setattr(cache, "artifact_for", artifact_for)
    bundle.use(bundled.root)
    assert store.load(variant).name == variant.id and asked == []
    assert store.load(other).name == other.id and asked == [other.id]
    bundle.use(None)
    store.load(other)
    assert asked == [other.id] * 2


def test_without_a_bundled_or_cached_variant_the_error_names_both(written, made):
    bundled, _ = written
    bundle.use(bundled.root)
    with pytest.raises(MissingArtifactError) as caught:
        store.load(made[NAMES[1]][0])
    assert str(bundled.root) in caught.value.expected and "compiled artifact below" in caught.value.expected


def test_the_argument_outranks_the_environment(written, made, tmp_path, monkeypatch):
    bundled, _ = written
    other, folder = made[NAMES[1]]
    second = bundle.write(tmp_path / "second", [other], {other.id: folder})
    monkeypatch.setenv("DSL_KERNELS_BUNDLE_DIR", str(bundled.root))
    assert bundle.active().root == bundled.root
    assert dsl_kernels.use_bundle(second.root).root == bundle.active().root == second.root
    dsl_kernels.use_bundle(None)
    assert bundle.active().root == bundled.root


def test_a_bundle_written_again_is_read_again(written, made, tmp_path):
    bundled, _ = written
    bundle.use(bundled.root)
    other, folder = made[NAMES[1]]
    bundle.write(bundled.root, [other], {other.id: folder}, replace=True)
    assert set(bundle.active().entries) == {other.id}


def test_a_library_without_a_generated_set_has_the_variants_of_the_bundle(written, tmp_path, monkeypatch):
    bundled, variant = written
    monkeypatch.setattr(variants, "__file__", str(tmp_path / "installed" / "dsl_kernels" / "variants.py"))
    with pytest.raises(ArtifactError, match="generated kernels"):
        variants.variants()
    bundle.use(bundled.root)
    (listed,) = variants.variants()
    assert (listed.id, listed.op, listed.backend, listed.arch) == (variant.id, "scale", "tilelang", "sm_90a")
    assert (listed.knobs, listed.declared, listed.sha256) == (variant.knobs, variant.declared, variant.sha256)
    assert store.load(listed).name == variant.id
    with pytest.raises(ArtifactError, match="compiled code alone"):
        _ = listed.source
    flip(bundled.root / bundle.MANIFEST)
    with pytest.raises(BundleError, match=r"manifest\.json"):
        variants.variants()


def test_warmup_compiles_nothing_that_is_in_the_bundle(written, made, monkeypatch):
    bundled, variant = written
    other = made[NAMES[1]][0]
    monkeypatch.setattr(prepare, "_device", lambda device: (None, None))
    monkeypatch.setattr(variants, "variants", lambda arch: (variant, other))
    asked = []

    def compile_all(modules, jobs):
        asked.extend(module.id for module in modules)
        return [pool.Outcome(module.id, 1.0, cached=False) for module in modules]

    monkeypatch.setattr(pool, "compile_all", compile_all)
    bundle.use(bundled.root)
    warmed = {item.variant: item.cached for item in prepare.warmup(arch="sm_90a")}
    assert asked == [other.id] and warmed == {variant.id: True, other.id: False}


BLOCKED = """
import importlib.abc, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())
from dsl_kernels import variants
from dsl_kernels.runtime import store
for variant in variants.variants():
    print(store.load(variant).name)
"""


def test_loading_needs_neither_a_dsl_nor_a_compiler_nor_the_caches_packages(written):
    bundled, variant = written
    blocked = (
        "tilelang",
        "tvm",
        "cutlass",
        "jinja2",
        "codegen",
        "filelock",
        "platformdirs",
        "torch",
        "numpy",
    )
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(blocked=blocked)],
        env={
            "PYTHONPATH": str(ROOT),
            "PATH": "",
            "DSL_KERNELS_BUNDLE_DIR": str(bundled.root),
            "DSL_KERNELS_GENERATED_DIR": str(bundled.root),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [variant.id]


@pytest.mark.parametrize("from_bundle", ["library without a set", "DSL_KERNELS_GENERATED_DIR"])
def test_python_in_a_bundle_is_never_run(written, tmp_path, monkeypatch, from_bundle):
    """Write access to a bundle must not give code execution, even where compiling is allowed."""
    bundled, variant = written
    marker = tmp_path / "ran"
    for path in (
        bundled.root / "sm_90a" / "scale" / f"{variant.id}.py",
        bundled.root / variant.id / "__init__.py",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"open({str(marker)!r}, 'w')\n{TEXT}")
    monkeypatch.delenv("DSL_KERNELS_DISABLE_JIT")
    if from_bundle == "DSL_KERNELS_GENERATED_DIR":
        monkeypatch.setenv(from_bundle, str(bundled.root))
    else:
        monkeypatch.setattr(variants, "__file__", str(tmp_path / "installed" / "dsl_kernels" / "variants.py"))
    bundle.use(bundled.root)
    (listed,) = variants.variants()
    assert listed.path.is_file() and store.load(listed).name == variant.id
    with pytest.raises(MissingArtifactError, match="whose Python is never run"):
        store.fetch(listed, bundle.PTX)
    bundle.use(None)
    for ask in (cache.artifact_for, cache.lookup, cache.load):
        with pytest.raises(MissingArtifactError, match="whose Python is never run"):
            ask(listed)
    (outcome,) = pool.compile_all([listed], jobs=1)
    assert isinstance(outcome.error, MissingArtifactError) and not marker.exists()


HASH = "0" * 64


@pytest.mark.parametrize(
    "change",
    [
        {"files": {"../manifest.json": HASH}},
        {"files": {"/etc/passwd": HASH}},
        {"files": {"a/b": HASH}},
        {"files": {"": HASH}},
        {"files": {"a\0b": HASH}},
        {"files": ["manifest.json"]},
        {"arch": None, "variants": None},
        lambda v: {f"../{v}": {}},
        lambda v: {"/tmp": {}},
        lambda v: {v: {"files": {"../../secret": HASH}}},
        lambda v: {v: {"files": {"/etc/passwd": HASH}}},
        lambda v: {v: {"files": {"sub/kernel.cubin": HASH}}},
        lambda v: {v: {"files": {"evil.py": HASH}}},
        lambda v: {v: {"files": {"kernel.cubin": 7}}},
        lambda v: {v: {"files": None}},
        lambda v: {v: {"library": {"../../secret": HASH}}},
        lambda v: {v: {"library": {"/etc/passwd": HASH}}},
        lambda v: {v: {"source": None}},
        lambda v: {v: {"library": {"device/x.py": 7}}},
        lambda v: {v: {"surprise": 1}},
    ],
)
def test_an_index_is_confined_to_its_folder(written, change):
    """With a matching hash, as a forger would write it."""
    bundled, variant = written
    entry = json.loads((bundled.root / bundle.INDEX).read_text())["variants"][variant.id]
    if callable(change):
        change = {"variants": {name: {**entry, **fields} for name, fields in change(variant.id).items()}}
    edit(bundled, **change)
    with pytest.raises(BundleError) as caught:
        bundle.use(bundled.root)
    assert caught.value.code == "BUNDLE_DAMAGED" and caught.value.subject.endswith("bundle.json")


@pytest.mark.parametrize("name", ["kernel.cubin", "meta.json", "folder", "manifest.json", "bundle.json"])
def test_a_link_out_of_the_bundle_is_refused(written, tmp_path, name):
    bundled, variant = written
    path = {"folder": bundled.root / variant.id}.get(name, bundled.root / variant.id / name)
    path = path if path.exists() else bundled.root / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    os.utime(bundled.root / bundle.INDEX)
    with pytest.raises(BundleError, match="a link to") as caught:
        bundle.use(bundled.root)
        bundle.active().manifest_folder()
        store.load(variant)
    assert caught.value.code == "BUNDLE_DAMAGED"


def test_links_in_a_circle_are_refused(written):
    bundled, variant = written
    path = bundled.root / variant.id / "kernel.cubin"
    path.unlink()
    path.symlink_to("kernel.cubin")
    with pytest.raises(BundleError, match="symbolic links") as raised:
        bundled.fetch(variant)
    assert raised.value.code == "BUNDLE_DAMAGED"


def test_a_bundle_is_its_writers_alone_whatever_the_umask(made, tmp_path):
    variant, folder = made[NAMES[0]]
    umask = os.umask(0o002)
    try:
        bundled = bundle.write(tmp_path / "bundle", [variant], {variant.id: folder})
    finally:
        os.umask(umask)
    assert list(bundled.strays()) == []


@pytest.mark.parametrize("name", ["kernel.cubin", "meta.json", "manifest.json", "bundle.json"])
def test_a_pipe_in_the_place_of_a_file_is_refused(written, name):
    bundled, variant = written
    path = next(bundled.root.rglob(name))
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(BundleError, match="not a regular file") as raised:
        opened = bundle.open_bundle(bundled.root)
        opened.manifest_folder()
        opened.fetch(variant)
    assert raised.value.code == "BUNDLE_DAMAGED"


def test_the_check_names_what_is_not_listed_and_what_others_may_write_to(written):
    bundled, variant = written
    assert list(bundled.strays()) == []
    extra, pipe = bundled.root / "x.py", bundled.root / variant.id / "pipe"
    extra.write_text("")
    os.mkfifo(pipe)
    (bundled.root / variant.id).chmod(0o777)
    (bundled.root / variant.id / "kernel.cubin").chmod(0o666)
    strays = {(error.subject, error.code) for error in bundled.strays()}
    assert strays == {
        (str(extra), "BUNDLE_DAMAGED"),
        (str(pipe), "BUNDLE_DAMAGED"),
        (str(bundled.root / variant.id), "BUNDLE_UNTRUSTED"),
        (str(bundled.root / variant.id / "kernel.cubin"), "BUNDLE_UNTRUSTED"),
    }
    bundled.root.chmod(0o1777)
    assert str(bundled.root) in {error.subject for error in bundled.strays()}


def test_a_bundle_may_lie_behind_a_link(written, tmp_path):
    bundled, variant = written
    (tmp_path / "link").symlink_to(bundled.root)
    bundle.use(tmp_path / "link")
    assert store.load(variant).name == variant.id


def siblings(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("generated", "compiled"))


@pytest.mark.parametrize("file", ["kernel.cubin", "manifest.json", "bundle.json"])
@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_write_leaves_nothing(made, tmp_path, monkeypatch, file, failure):
    real = storage.write_flushed

    def failing(path, content):
        real(path, content[: len(content) // 2])
        if path.name == file:
            raise failure
        real(path, content)

    monkeypatch.setattr(storage, "write_flushed", failing)
    variant, folder = made[NAMES[0]]
    with pytest.raises(CacheError if isinstance(failure, OSError) else KeyboardInterrupt):
        bundle.write(tmp_path / "bundle", [variant], {variant.id: folder})
    assert siblings(tmp_path) == []


def test_an_interrupted_replacement_leaves_the_old_bundle(written, made, tmp_path, monkeypatch):
    bundled, variant = written
    other, folder = made[NAMES[1]]
    real = Path.rename

    def failing(path, target):
        if path.name == "made":
            raise OSError(errno.EIO, "Input/output error")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(CacheError, match="Input/output error"):
        bundle.write(bundled.root, [other], {other.id: folder}, replace=True)
    assert siblings(tmp_path) == ["bundle"]
    assert bundle.open_bundle(bundled.root).fetch(variant) is not None


def test_a_killed_writer_leaves_no_bundle_under_the_name(made, tmp_path):
    """A process that dies just before the rename leaves a complete folder, but under a temporary name."""
    variant, folder = made[NAMES[0]]
    code = (
        "import os, sys; from pathlib import Path; from dsl_kernels.runtime import bundle\n"
        "from dsl_kernels.variants import Variant\n"
        "bundle._publish = lambda *_: os._exit(9)\n"
        f"v = Variant({variant.id!r}, 'scale', 'tilelang', 'sm_90a', {{}}, Path({str(variant.path)!r}), "
        f"{variant.sha256!r})\n"
        f"bundle.write({str(tmp_path / 'bundle')!r}, [v], {{v.id: Path({str(folder)!r})}})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert done.returncode == 9 and not (tmp_path / "bundle").exists()
    assert len(siblings(tmp_path)) == 1
    bundle.write(tmp_path / "bundle", [variant], {variant.id: folder})
    assert siblings(tmp_path) == ["bundle"], "what it left is gone"


def test_only_a_bundle_is_ever_replaced(written, made, tmp_path):
    bundled, variant = written
    folders = {variant.id: made[variant.id][1]}
    with pytest.raises(InvalidArgumentError, match="--force"):
        bundle.write(bundled.root, [variant], folders)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("keep")
    (tmp_path / "file").write_text("keep")
    for place in ("mine", "file"):
        with pytest.raises(InvalidArgumentError, match="no bundle"):
            bundle.write(tmp_path / place, [variant], folders, replace=True)
    assert (tmp_path / "mine" / "notes").read_text() == (tmp_path / "file").read_text() == "keep"
    (tmp_path / "empty").mkdir()
    assert bundle.write(tmp_path / "empty", [variant], folders).holds(variant.id)


def test_what_must_not_be_bundled_is_refused(made, tmp_path):
    variant, folder = made[NAMES[0]]
    blackwell, compiled = make(tmp_path, "scale__tilelang_sm100a__t", "sm_100a")
    with pytest.raises(InvalidArgumentError, match="one architecture"):
        bundle.write(tmp_path / "b", [variant, blackwell], {variant.id: folder, blackwell.id: compiled})
    with pytest.raises(InvalidArgumentError, match="got none"):
        bundle.write(tmp_path / "b", [], {})
    with pytest.raises(BundleError, match="make generate"):
        bundle.write(tmp_path / "b", [replace(variant, sha256="0" * 64)], {variant.id: folder})
    flip(folder / "kernel.cubin")
    with pytest.raises(ArtifactError):
        bundle.write(tmp_path / "b", [variant], {variant.id: folder})
    assert not (tmp_path / "b").exists()
