"""Compiled variants on disk: content-addressed, published atomically, shared by processes.

    <root>/<package version>/<arch>/<variant id>-<key>/     one artifact (see runtime.artifact) and inputs.json
    <root>/<package version>/<arch>/<variant id>-<key>.failed.json     a compile that failed for good
    <root>/tilelang, <root>/cute                            the DSLs' own caches

The key covers the generated text, the device helpers it imports, the backend's own text, the flags, the architecture
and the versions of the DSL and of the vendor's compiler. A folder appears only when it is complete: it is built
beside its place, flushed, and renamed. Whoever builds holds a file lock, which the kernel releases when the process
dies.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import dsl_kernels
from dsl_kernels import backends, env
from dsl_kernels.errors import ArtifactError, CacheError, CompileError, MissingArtifactError, ToolchainError

from . import toolkit
from .artifact import BUILD, SCHEMA, Artifact, read
from .launch import LoadedKernel

log = logging.getLogger(__name__)

INPUTS = "inputs.json"
_KEY_LENGTH = 8
_TRANSIENT = (toolkit.KILLED, "COMPILE_TIMEOUT")


class Module(Protocol):
    """What the cache needs to know of a generated module (`dsl_kernels.variants.Variant` has it)."""

    @property
    def id(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def arch(self) -> str: ...
    @property
    def path(self) -> Path: ...


@dataclass(frozen=True)
class Key:
    """What an artifact was or would be built from.

    `content` is what this project controls. `digest` adds the toolchain's versions, and is empty where no toolchain
    is installed: then only `content` can be compared.
    """

    content: str
    digest: str
    versions: dict[str, str]
    missing: ToolchainError | None = None


def cache_root() -> Path:
    """The one folder of all caches: DSL_KERNELS_CACHE_DIR, or the platform's cache folder of the user."""
    configured = env.CACHE_DIR.get()
    if configured is not None:
        return configured.absolute()
    import platformdirs

    return platformdirs.user_cache_path("dsl_kernels", appauthor=False)


def share_root_with_dsls() -> None:
    """Point the DSLs' own caches below our root, unless the user placed them; before a DSL is imported."""
    root = cache_root()
    os.environ.setdefault("TILELANG_CACHE_DIR", str(root / "tilelang"))
    os.environ.setdefault("CUTE_DSL_CACHE_DIR", str(root / "cute"))


def key_of(module: Module) -> Key:
    """The key of the artifact that `module` compiles to on this machine."""
    backend = backends.get(module.backend)
    content = hashlib.sha256()
    try:
        for path in (module.path, *backend.sources(module.path)):
            content.update(f"{path.name}\0".encode())
            content.update(hashlib.sha256(path.read_bytes()).digest())
    except FileNotFoundError as error:
        raise MissingArtifactError(
            module.id,
            expected="its generated module",
            got=f"no file {error.filename}",
            fix="run `make generate`",
        ) from None
    content.update(json.dumps([SCHEMA, module.id, module.arch, backend.flags(module.arch)]).encode())
    try:
        versions, missing = backend.versions(), None
    except ToolchainError as error:
        return Key(content.hexdigest(), "", {}, error)
    digest = hashlib.sha256(json.dumps([content.hexdigest(), versions], sort_keys=True).encode())
    return Key(content.hexdigest(), digest.hexdigest(), versions, missing)


def lookup(module: Module) -> Path | None:
    """The folder of the compiled variant, if it is there and intact. Never compiles.

    Where nothing can be compiled (no toolchain, or DSL_KERNELS_DISABLE_JIT), a build of the same content by another
    version of the toolchain is accepted.
    """
    return _find(module, key_of(module))


def artifact_for(module: Module, *, build: bool = True, retry: bool = False) -> Path:
    """The folder of the compiled variant; compiles it when it is missing.

    Args:
        module: The generated module.
        build: False never compiles, as DSL_KERNELS_DISABLE_JIT does.
        retry: Compile again although the last compile of the same content failed.

    Raises:
        MissingArtifactError: It is not there and must not be compiled.
        CompileError: The compile failed now or, with the same inputs, before.
        ToolchainError: It is not there and no compiler is installed.
        CacheError: The cache cannot be written.
    """
    key = key_of(module)
    found = _find(module, key)
    if found is not None:
        return found
    if not build or env.DISABLE_JIT.get():
        raise MissingArtifactError(
            module.id,
            expected=f"a compiled artifact below {_folder(module)}",
            got=_what_is_there(module),
            fix=f"run `python -m dsl_kernels compile {module.id}` where compiling is allowed, with the same DSL_KERNELS_CACHE_DIR",
        )
    if key.missing is not None:
        raise key.missing
    return _build(module, key, retry)


def load(module: Module, *, build: bool = True) -> LoadedKernel:
    """The kernel of `module`, compiled first when it is missing (see `artifact_for`)."""
    folder = artifact_for(module, build=build)
    return LoadedKernel(read(folder, verify=False), (folder / "kernel.cubin").read_bytes())


def seconds_before(module: Module) -> float | None:
    """How long the variant's last build took here, of whatever sources; None where there was none."""
    found = [
        path / BUILD for path in _folder(module).glob(f"{module.id}-{'?' * _KEY_LENGTH}") if path.is_dir()
    ]
    try:
        newest = max(found, key=lambda path: path.stat().st_mtime_ns)
        return float(sum(json.loads(newest.read_text())["seconds"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


@dataclass(frozen=True)
class Entry:
    """One artifact in the cache, of this or of another version of the package."""

    folder: Path
    version: str
    artifact: Artifact
    bytes: int


def entries() -> list[Entry]:
    """Everything compiled below the root that can be read, for `doctor` and for cleaning."""
    found = []
    for meta in sorted(cache_root().glob("*/*/[!.]*/meta.json")):
        folder = meta.parent
        with contextlib.suppress(ArtifactError, OSError):
            size = sum(f.stat().st_size for f in folder.iterdir())
            found.append(Entry(folder, folder.parent.parent.name, read(folder, verify=False), size))
    return found


def _folder(module: Module) -> Path:
    return cache_root() / dsl_kernels.__version__ / module.arch


def _entry(module: Module, key: Key) -> Path:
    return _folder(module) / f"{module.id}-{key.digest[:_KEY_LENGTH]}"


def _find(module: Module, key: Key) -> Path | None:
    if key.digest and _intact(_entry(module, key), digest=key.digest):
        return _entry(module, key)
    if key.digest and not env.DISABLE_JIT.get():
        return None
    others = sorted(_folder(module).glob(f"{module.id}-{'?' * _KEY_LENGTH}"))
    return next((folder for folder in others if _intact(folder, content=key.content)), None)


def _intact(folder: Path, **expected: str) -> bool:
    """Whether the folder holds a whole artifact of these inputs; a damaged one is reported once it is met."""
    if not folder.is_dir():
        return False
    try:
        inputs = json.loads((folder / INPUTS).read_text())
        if any(inputs[name] != value for name, value in expected.items()):
            return False
        read(folder)
    except (ArtifactError, OSError, ValueError, KeyError, TypeError) as error:
        log.warning("ignoring the damaged artifact %s: %s", folder, error)
        return False
    return True


def _what_is_there(module: Module) -> str:
    others = list(_folder(module).glob(f"{module.id}-{'?' * _KEY_LENGTH}"))
    return f"{len(others)} build(s) of other sources or versions" if others else "none"


def _build(module: Module, key: Key, retry: bool) -> Path:
    entry = _entry(module, key)
    failure = entry.with_name(entry.name + ".failed.json")
    with _writable(entry), _locked(entry):
        if _intact(entry, digest=key.digest):
            return entry
        _remove_leftovers(entry)
        if retry:
            failure.unlink(missing_ok=True)
        elif failure.exists():
            _raise_recorded(failure, module)
        staging = Path(tempfile.mkdtemp(prefix=f".staging-{entry.name}-", dir=entry.parent))
        try:
            _write_inputs(staging, module, key)
            backends.get(module.backend).compile_module(module.path, module.arch, staging)
            _publish(staging, entry)
        except CompileError as error:
            if error.code not in _TRANSIENT:
                _record(failure, error)
            raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return entry


def _write_inputs(staging: Path, module: Module, key: Key) -> None:
    inputs = {"variant": module.id, "content": key.content, "digest": key.digest, "versions": key.versions}
    (staging / INPUTS).write_text(json.dumps(inputs, indent=1, sort_keys=True) + "\n")


def _publish(staging: Path, entry: Path) -> None:
    """Make the finished folder appear under its name, whole and on disk, or not at all."""
    for path in (*staging.iterdir(), staging):
        _flush(path)
    if entry.exists():
        damaged = staging.with_name(staging.name.replace(".staging-", ".damaged-", 1))
        entry.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
    staging.rename(entry)
    _flush(entry.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_leftovers(entry: Path) -> None:
    """Remove what killed builders of this entry left; we hold the lock, so none of them lives."""
    for kind in ("staging", "damaged"):
        for folder in entry.parent.glob(f".{kind}-{entry.name}-*"):
            shutil.rmtree(folder, ignore_errors=True)


def lock_path(entry: Path) -> Path:
    """The file that whoever makes or removes an entry locks; its folder is made."""
    folder = entry.parent / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{entry.name}.lock"


@contextlib.contextmanager
def _locked(entry: Path) -> Iterator[None]:
    import filelock

    seconds = env.COMPILE_TIMEOUT.get()
    lock = filelock.FileLock(lock_path(entry))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        log.info("waiting for another process that compiles %s", entry.name)
        try:
            lock.acquire(timeout=seconds, poll_interval=0.1)
        except filelock.Timeout:
            raise CacheError(
                str(entry),
                expected=f"the process that compiles it to finish within {seconds} s",
                got="a lock that is still held",
                fix="end that process, or raise DSL_KERNELS_COMPILE_TIMEOUT",
            ) from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _writable(entry: Path) -> Iterator[None]:
    """Turn the operating system's refusals (read-only, full, no permission) into a `CacheError`."""
    try:
        yield
    except (CacheError, CompileError, ToolchainError):
        raise
    except OSError as error:
        raise CacheError(
            str(error.filename or entry.parent),
            expected="a cache folder that can be written",
            got=error.strerror or str(error),
            fix=toolkit.FREE_SPACE,
        ) from error


def _record(failure: Path, error: CompileError) -> None:
    fields = {name: getattr(error, name) for name in ("subject", "expected", "got", "fix", "code")}
    with contextlib.suppress(OSError):
        partial = failure.with_suffix(".partial")
        partial.write_text(json.dumps(fields, indent=1) + "\n")
        partial.replace(failure)


def _raise_recorded(failure: Path, module: Module) -> None:
    try:
        fields: dict[str, Any] = json.loads(failure.read_text())
        error = CompileError(
            fields["subject"],
            expected=fields["expected"],
            got=f"(an earlier compile of the same source) {fields['got']}",
            fix=f"{fields['fix']}; to try again unchanged: `python -m dsl_kernels compile --retry {module.id}`",
            code=fields["code"],
        )
    except (OSError, ValueError, KeyError):
        failure.unlink(missing_ok=True)
        return
    raise error
