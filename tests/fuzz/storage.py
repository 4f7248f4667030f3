"""Damage and kills: what the cache and bundles load afterwards, and whether the next writer recovers.

Artifacts are made by hand, so no compiler is needed. Damage is one change of one file; a kill is a SIGKILL of
a writer before one of its file-system operations. Some runs change nothing, to show that loading works.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from codegen import emit
from codegen.sweep import Filter, sweep
from dsl_kernels import backends
from dsl_kernels.runtime import bundle, cache, storage, store
from dsl_kernels.runtime.artifact import Artifact, Operand, Param, Resources
from dsl_kernels.variants import Variant

from . import Counts

NAME = "scale__tilelang_sm90a__t"
CODE = {file: f"{file} of {NAME}".encode() for file in ("kernel.cubin", "kernel.ptx")}
# File-system operations before which a kill may come; the longest writer here does fewer.
STEPS = 60
EVENTS = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.chmod", "fcntl.flock", "os.scandir")


def fuzz_cache_corruption(count: int, seed: int) -> Counts:
    """Load an artifact from the cache after one change of one of its files: it is right, or a miss."""
    counts, generator = Counts(), random.Random(seed)
    with _place() as place:
        variant = _variant(place)
        folder = cache.artifact_for(variant)
        shutil.copytree(folder, place / "whole")
        with mock.patch.dict(os.environ, DSL_KERNELS_DISABLE_JIT="1"):
            for run in range(count):
                label = _damage(folder, generator) if run % 10 else "nothing"
                counts.call(label, store.fetch, variant, bundle.CUBIN, expect=_right)
                _restore(place / "whole", folder)
    return counts


def fuzz_bundle_corruption(count: int, seed: int) -> Counts:
    """Load from a bundle after one change, of a file's bytes or of the index with its hash updated."""
    counts, generator = Counts(), random.Random(seed)
    with _place() as place:
        variant = _variant(place)
        root = place / "bundle"
        bundle.write(root, [variant], {variant.id: cache.artifact_for(variant)}, ptx=True)
        shutil.copytree(root, place / "whole")
        (place / "secret").write_bytes(CODE["kernel.cubin"])
        for run in range(count):
            damage = _damage if generator.random() < 0.7 else _forge
            label = damage(root, generator) if run % 10 else "nothing"
            counts.call(
                label, _load_from, root, variant, expect=lambda loaded: loaded is None or _right(loaded)
            )
            _restore(place / "whole", root)
    return counts


def fuzz_kills(count: int, seed: int) -> Counts:
    """Kill a writer before one of its operations, load, and write again: two calls per kill.

    What is loaded is complete or a miss, the next writer succeeds, and no temporary folder is left.
    """
    counts, generator = Counts(), random.Random(seed)
    for run in range(count):
        attack = (_kill_compile, _kill_bundle, _kill_emit)[run % 3]
        with _place() as place:
            attack(counts, place, generator.randrange(STEPS) if run else 0)
    return counts


def _kill_compile(counts: Counts, place: Path, step: int) -> None:
    variant = _variant(place)
    _killed(step, lambda: cache.artifact_for(variant))
    with mock.patch.dict(os.environ, DSL_KERNELS_DISABLE_JIT="1"):
        label = f"load after a compile was killed at {step}"
        counts.call(label, store.fetch, variant, bundle.CUBIN, expect=_right)

    def again() -> Any:
        # An edited text has another key, so this writer adds an entry, and cleans up in any case.
        variant.path.write_text(variant.path.read_text() + "# edited\n")
        return store.fetch(variant, bundle.CUBIN), cache.lookup(variant)

    def recovered(loaded: Any) -> bool:
        left = [p for p in loaded[1].parent.iterdir() if p.name.startswith(storage.WORKING)]
        return _right(loaded[0]) and not left

    counts.call(f"compile after a kill at {step}", again, expect=recovered)


def _kill_bundle(counts: Counts, place: Path, step: int) -> None:
    variant, root = _variant(place), place / "out" / "bundle"
    folders = {variant.id: cache.artifact_for(variant)}

    def write() -> bundle.Bundle:
        return bundle.write(root, [variant], folders, replace=True)

    write()
    _killed(step, write)
    # Between removing the old bundle and renaming the new one there may be none, which is a typed error.
    counts.call(f"load after a writer was killed at {step}", _load_from, root, variant, expect=_right)

    def recovered(_: bundle.Bundle) -> bool:
        return _right(_load_from(root, variant)) and [p.name for p in root.parent.iterdir()] == [root.name]

    counts.call(f"write after a kill at {step}", write, expect=recovered)


def _kill_emit(counts: Counts, place: Path, step: int) -> None:
    instances = sweep(0, Filter("topk_selector", "tilelang", "sm_90a")).kept[:3]
    root = place / "set"
    emit.emit(instances[:2], root)
    _killed(step, lambda: emit.emit(instances[1:], root))
    counts.call(
        f"manifest after emit was killed at {step}",
        lambda: json.loads((root / emit.MANIFEST).read_text())["variants"],
        expect=lambda records: len(records) == 2,
    )

    def recovered(_: emit.Emission) -> bool:
        files = {p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file()}
        return files == {*map(emit.relative_path, instances[1:]), emit.MANIFEST}

    label = f"emit after a kill at {step}"
    counts.call(label, emit.emit, instances[1:], root, expect=recovered, limit_s=10)


def _killed(step: int, write: Callable[[], Any]) -> None:
    """Run a writer in a child that dies before its `step`-th file-system operation, if it gets that far."""
    child = os.fork()
    if child == 0:
        try:
            left = [step]

            def hook(event: str, _: tuple[Any, ...]) -> None:
                if event in EVENTS:
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    left[0] -= 1

            sys.addaudithook(hook)
            write()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _damage(root: Path, generator: random.Random) -> str:
    """Change one file below `root` in one way; returns a description."""
    path = generator.choice(sorted(p for p in root.rglob("*") if p.is_file()))
    content = bytearray(path.read_bytes())
    place = generator.randrange(len(content))
    kinds = ("flip", "flip", "flip", "cut", "overwrite", "empty", "delete", "folder", "swap", "link")
    kind = generator.choice(kinds)
    match kind:
        case "flip":
            content[place] ^= 1 << generator.randrange(8)
        case "cut":
            del content[place:]
        case "overwrite":
            content[place : place + 8] = generator.randbytes(8)
        case "empty":
            content.clear()
        case "swap":
            content = bytearray(generator.choice(sorted(root.rglob("*.json"))).read_bytes())
    path.unlink()
    if kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(root / "nowhere")
    elif kind != "delete":
        path.write_bytes(content)
    return f"{kind} {path.relative_to(root)} at {place}"


def _forge(root: Path, generator: random.Random) -> str:
    """Change one value or name in a bundle's index, and update its hash."""
    content = json.loads((root / bundle.INDEX).read_text())
    del content["sha256"]
    holder: Any = content
    while True:
        key = generator.choice(sorted(holder))
        if not (isinstance(holder[key], dict) and holder[key] and generator.random() < 0.8):
            break
        holder = holder[key]
    texts = ["../../secret", "/etc/passwd", "", "a\0b", "0" * 64, "sm_100a", "\xe9", "\ud800"]
    value = generator.choice([*texts, None, True, 7, -1, 1e308, [], {}, ["x"]])
    if isinstance(value, str) and generator.random() < 0.5:
        holder[value] = holder.pop(key)
    else:
        holder[key] = value
    (root / bundle.INDEX).write_text(json.dumps({**content, "sha256": bundle._digest(content)}))
    return f"forge {key} to {value!r}"


def _restore(whole: Path, folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(whole, folder)


def _load_from(root: Path, variant: Variant) -> tuple[Artifact, bytes] | None:
    bundle._open.cache_clear()
    opened = bundle.open_bundle(root)
    opened.manifest_folder()
    return opened.fetch(variant)


def _right(loaded: tuple[Artifact, bytes]) -> bool:
    artifact, code = loaded
    return code == CODE["kernel.cubin"] and {**vars(artifact), "files": {}} == vars(_artifact())


@contextlib.contextmanager
def _place() -> Iterator[Path]:
    """A folder with its own cache, and a compiler that leaves the hand-made artifact."""

    def compile_module(self: Any, path: Path, arch: str, out_dir: Path, *, lineinfo: bool = True) -> Artifact:
        for file, content in CODE.items():
            (out_dir / file).write_bytes(content)
        (out_dir / "build.json").write_text('{"seconds": {"lower": 1.0}}\n')
        return _artifact().seal(out_dir)

    backend, logger = type(backends.get("tilelang")), logging.getLogger("dsl_kernels")
    ours = {name: "" for name in os.environ if name.startswith("DSL_KERNELS_")}
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, {**ours, "DSL_KERNELS_CACHE_DIR": str(Path(folder) / "cache")}),
        mock.patch.object(backend, "versions", lambda self: {"tilelang": "0"}),
        mock.patch.object(backend, "compile_module", compile_module),
    ):
        try:
            yield Path(folder)
        finally:
            logger.setLevel(level)


def _variant(place: Path) -> Variant:
    path = place / "generated" / "sm_90a" / "scale" / f"{NAME}.py"
    path.parent.mkdir(parents=True)
    path.write_text("# a module\n")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Variant(NAME, "scale", "tilelang", "sm_90a", {"tile": 128}, path, digest, {"threads": 128})


def _artifact() -> Artifact:
    return Artifact(
        variant=NAME, backend="tilelang", arch="sm_90a", entry=f"{NAME}_kernel",
        operands=(
            Operand.tensor("x", "bfloat16", "n", 64, strides=("x_stride", 1)),
            Operand.tensor("y", "float32", "n", 64, written=True),
            Operand.scalar("scale", "float32"),
        ),
        params=(
            Param("x", "pointer", "x"), Param("y", "pointer", "y"), Param("n", "int32", "n"),
            Param("scale", "float32", "scale"),
        ),
        dims={"n": ("x", "shape", 0), "x_stride": ("x", "stride", 0)}, grid=("(n + 127) // 128", "1", "1"),
        block=(128, 1, 1), cluster=(1, 1, 1), dynamic_smem=65536, cooperative=False,
        programmatic_launch=False,
        tensor_maps=(), resources=Resources(32, 0, 0, 0, 1, 0, 65536, 0), evidence={"FADD": 1},
        toolchain={"tilelang": "0"},
    )  # fmt: skip
