"""Compiled variants on disk: content-addressed, published atomically, shared by processes.

    <root>/<package version>/<arch>/<variant id>-<key>/                 an artifact and inputs.json
    <root>/<package version>/<arch>/<variant id>-<key>.failed.json      a compile that failed for good
    <root>/<a folder for each DSL>                                      the DSLs' own caches

The key covers the generated text, the device helpers it imports, the backend's own text, the flags, the
architecture and the versions of the DSL and of the vendor's compiler. A folder only appears complete: it is
built next to its final place, flushed, and renamed. The builder holds a file lock, which the operating system
releases when the process dies.

Everything that is loaded was hashed as it was read: `inputs.json` records its own hash and that of
`meta.json`, which records those of the code. A folder that other users could have written to is refused
(`runtime.storage`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dsl_kernels import __version__, backends, env, errors
from dsl_kernels.arguments import checked
from dsl_kernels.backends.base import settings
from dsl_kernels.env import cache_root
from dsl_kernels.errors import ArtifactError, CacheError, CompileError, MissingArtifactError, ToolchainError

from . import bundle, sources, storage, toolkit
from .artifact import BUILD, META, SCHEMA, Artifact, read, sha256
from .launch import LoadedKernel

log = logging.getLogger(__name__)

INPUTS = "inputs.json"
CUBIN = "kernel.cubin"
_KEY_LENGTH = 8
# Failures that say nothing about the module: the next compile of the same sources may succeed.
STALE = "COMPILE_STALE"
TRANSIENT = (toolkit.KILLED, toolkit.UNFINISHED, "COMPILE_TIMEOUT", STALE)
# DSLs compile with globals of the process, and loading a module drops helpers that others import.
_compiling = threading.Lock()


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

    `content` covers what this project controls. `digest` adds the versions of the toolchain; it is empty if
    no toolchain is installed, and then only `content` can be compared.
    """

    content: str
    digest: str
    versions: dict[str, str]
    missing: ToolchainError | None = None


def key_of(module: Module) -> Key:
    """The key of the artifact that `module` compiles to on this machine."""
    content = _content(module, sources.digest_on_disk)
    try:
        versions = backends.get(module.backend).versions() | settings(module.backend)
    except ToolchainError as error:
        return Key(content, "", {}, error)
    digest = hashlib.sha256(json.dumps([content, versions], sort_keys=True).encode())
    return Key(content, digest.hexdigest(), versions)


def _content(module: Module, digest: Callable[[Path], str]) -> str:
    """Hash of the inputs that this project controls; `digest` hashes each file."""
    if inside := bundle.holding(module.path):
        raise MissingArtifactError(
            module.id,
            expected="its generated module",
            got=f"a file in the bundle {inside}, whose Python is never run",
            fix="write the bundle with this variant, or use a library with its generated set",
        )
    backend = backends.get(module.backend)
    content = hashlib.sha256()
    try:
        for path in (module.path, *backend.sources(module.path)):
            content.update(f"{path.name}\0".encode())
            content.update(bytes.fromhex(digest(path)))
    except FileNotFoundError as error:
        raise MissingArtifactError(
            module.id,
            expected="its generated module",
            got=f"no file {error.filename}",
            fix="run `make generate`",
        ) from None
    content.update(json.dumps([SCHEMA, module.id, module.arch, backend.flags(module.arch)]).encode())
    return content.hexdigest()


@checked
def lookup(module: Module) -> Path | None:
    """The folder of the compiled variant if it is present and intact, else None. Never compiles.

    On a machine that cannot compile (no toolchain, or DSL_KERNELS_DISABLE_JIT), a build of the same content
    by another version of the toolchain is accepted.

    Raises:
        CacheError: other users may write to the cache, or no folder for it is known.
    """
    return _find(module, key_of(module))


@checked
def artifact_for(module: Module, *, build: bool = True, retry: bool = False) -> Path:
    """The folder of the compiled variant; compiles it when it is missing.

    Args:
        module: The generated module.
        build: False never compiles, as DSL_KERNELS_DISABLE_JIT does.
        retry: Compile again even if the last compile of the same content failed.

    Raises:
        MissingArtifactError: It is missing and must not be compiled.
        CompileError: The compile failed, now or earlier with the same inputs.
        ToolchainError: It is missing and no compiler is installed.
        CacheError: The cache cannot be written, others may write to it, or no folder for it is known.
    """
    key = key_of(module)
    folder = _find(module, key)
    if folder is not None:
        return folder
    if not build or env.DISABLE_JIT.get():
        raise MissingArtifactError(
            module.id,
            expected=f"a compiled artifact below {_folder(module)}",
            got=_what_is_there(module),
            fix=f"run `python -m dsl_kernels compile {module.id}` where compiling is allowed, "
            "with the same DSL_KERNELS_CACHE_DIR",
        )
    if key.missing is not None:
        raise key.missing
    return _build(module, key, retry)


def load(module: Module, *, build: bool = True) -> LoadedKernel:
    """The kernel of `module`, compiled first when it is missing (see `artifact_for`)."""
    return LoadedKernel(*fetch(artifact_for(module, build=build), CUBIN))


def fetch(folder: Path, file: str) -> tuple[Artifact, bytes]:
    """The launch description and one code file of an artifact; the bytes returned are those hashed.

    Raises:
        ArtifactError: a file is missing or altered.
    """
    inputs = _inputs(folder)
    meta, code = _content_of(folder / META), _content_of(folder / file)
    text = _unaltered(folder / META, meta, inputs["meta"]).decode()
    artifact = Artifact.from_json(text, str(folder / META))
    return artifact, _unaltered(folder / file, code, artifact.files.get(file, ""))


def _inputs(folder: Path) -> dict[str, Any]:
    """The record of what an artifact was built from.

    Raises:
        ArtifactError: the record is missing, altered, or of another version of the library.
    """
    try:
        inputs = json.loads(_content_of(folder / INPUTS))
        _unaltered(folder / INPUTS, _canonical(inputs), inputs["sha256"])
        if {"digest", "content", "meta"} <= set(inputs):
            return inputs
        got = f"one with {', '.join(sorted(inputs))}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        got = f"{type(error).__name__}: {error}"
    raise _altered(folder / INPUTS, "a record of this version", got)


def _content_of(path: Path) -> bytes:
    try:
        return storage.read_file(path)
    except FileNotFoundError:
        raise _altered(path, "a file of the artifact", "no such file") from None


def _unaltered(path: Path, content: bytes, digest: str) -> bytes:
    actual = hashlib.sha256(content).hexdigest()
    if actual != digest:
        raise _altered(path, f"SHA-256 {digest[:16] if isinstance(digest, str) else digest!r}", actual[:16])
    return content


def _canonical(inputs: Mapping[str, Any]) -> bytes:
    return json.dumps({k: v for k, v in inputs.items() if k != "sha256"}, sort_keys=True).encode()


def _altered(path: Path, expected: str, got: str) -> ArtifactError:
    fix = "delete the folder and compile the variant again"
    return ArtifactError(str(path), expected=expected, got=got, fix=fix)


def seconds_before(module: Module) -> float | None:
    """Seconds that the variant's last build took here, from whatever sources; None if it was never built."""
    records = [
        path / BUILD for path in _folder(module).glob(f"{module.id}-{'?' * _KEY_LENGTH}") if path.is_dir()
    ]
    try:
        newest = max(records, key=lambda path: path.stat().st_mtime_ns)
        return float(sum(json.loads(storage.read_file(newest).decode())["seconds"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


@dataclass(frozen=True)
class Entry:
    """One artifact in the cache, of this or another version of the package."""

    folder: Path
    version: str
    artifact: Artifact
    bytes: int


def entries() -> list[Entry]:
    """Every readable artifact below the root, for `doctor` and for pruning.

    Raises:
        CacheError: the root cannot be read, or no folder for the cache is known.
    """
    readable = []
    root = cache_root()
    try:
        metas = sorted(root.glob(f"*/*/[!.]*/{META}"))
    except OSError as error:
        raise CacheError(
            str(root),
            expected="a cache folder that can be read",
            got=error.strerror or str(error),
            fix="set DSL_KERNELS_CACHE_DIR to a folder of your own",
        ) from error
    for meta in metas:
        folder = meta.parent
        with contextlib.suppress(ArtifactError, OSError):
            size = sum(f.stat().st_size for f in folder.iterdir())
            readable.append(Entry(folder, folder.parent.parent.name, read(folder, verify=False), size))
    return readable


def _folder(module: Module) -> Path:
    return cache_root() / __version__ / module.arch


def _entry(module: Module, key: Key) -> Path:
    return _folder(module) / f"{module.id}-{key.digest[:_KEY_LENGTH]}"


def _find(module: Module, key: Key) -> Path | None:
    folder = _folder(module)
    storage.require_trusted(cache_root(), folder.parent, folder)
    if key.digest and _intact(_entry(module, key), digest=key.digest):
        return _entry(module, key)
    if key.digest and not env.DISABLE_JIT.get():
        return None
    others = sorted(folder.glob(f"{module.id}-{'?' * _KEY_LENGTH}"))
    return next((folder for folder in others if _intact(folder, content=key.content)), None)


def _intact(folder: Path, **expected: str) -> bool:
    """Whether the folder holds a complete artifact of these inputs; a damaged one is logged.

    Raises:
        CacheError: other users could have written to it.
    """
    if not folder.is_dir():
        return False
    try:
        storage.require_trusted(folder, *folder.iterdir())
        if b'"sha256"' not in _content_of(folder / INPUTS):
            log.info("%s was written by an earlier version, which recorded no hash of %s", folder, META)
            return False
        inputs = _inputs(folder)
        if any(inputs[name] != value for name, value in expected.items()):
            return False
        _unaltered(folder / META, _content_of(folder / META), inputs["meta"])
        read(folder)
    except CacheError:
        raise
    except (ArtifactError, OSError) as error:
        log.warning("ignoring the damaged artifact %s: %s", folder, error)
        return False
    return True


def _what_is_there(module: Module) -> str:
    others = list(_folder(module).glob(f"{module.id}-{'?' * _KEY_LENGTH}"))
    return f"{len(others)} build(s) of other sources or versions" if others else "none"


def _build(module: Module, key: Key, retry: bool) -> Path:
    entry = _entry(module, key)
    failure = entry.with_name(entry.name + ".failed.json")
    with storage.writable(entry.parent, toolkit.FREE_SPACE), _locked(entry):
        if _intact(entry, digest=key.digest):
            return entry
        storage.sweep(entry.parent)
        if retry:
            failure.unlink(missing_ok=True)
        elif failure.exists():
            _raise_recorded(failure, module)
        with storage.working_folder(entry.parent, entry.name) as working:
            made = working / entry.name
            made.mkdir(mode=0o755)
            with _compiling:
                try:
                    backends.get(module.backend).compile_module(module.path, module.arch, made)
                except CompileError as error:
                    if error.code not in TRANSIENT and _content(module, sources.digest) == key.content:
                        _record(failure, error)
                    raise
                except Exception as error:
                    if isinstance(error, (errors.DslKernelError, OSError)):
                        raise
                    raise unforeseen(module, error) from error
                _require_same_sources(module, key)
            record_inputs(made, module, key)
            _publish(made, entry, working)
    return entry


def unforeseen(module: Module, error: Exception) -> CompileError:
    """The error of a compile that failed outside of the DSL: nothing says that the sources are at fault."""
    return CompileError(
        module.id,
        expected=f"the backend {module.backend} to compile it",
        got=f"{type(error).__name__}: {error}",
        fix=toolkit.CHECK_MACHINE,
        code=toolkit.UNFINISHED,
    )


def _require_same_sources(module: Module, key: Key) -> None:
    """Refuse to file an artifact under sources that it was not built from."""
    if _content(module, sources.digest) == key.content:
        return
    present = {path: sources.digest_on_disk(path) for path in (module.path, *_sources(module))}
    stale = [path.name for path, digest in present.items() if sources.digest(path) != digest]
    raise CompileError(
        module.id,
        expected="sources that stay as they are from when they are loaded until they are compiled",
        got=f"{', '.join(stale) or module.path.name} changed meanwhile",
        fix="compile it again; in a process that loaded the old backend, start the process again",
        code=STALE,
    )


def _sources(module: Module) -> list[Path]:
    return backends.get(module.backend).sources(module.path)


def record_inputs(made: Path, module: Module, key: Key) -> None:
    """Write the record that makes a compiled folder a cache entry, including the hash of its `meta.json`."""
    inputs: dict[str, Any] = {
        "variant": module.id,
        "content": key.content,
        "digest": key.digest,
        "versions": key.versions,
        "meta": sha256(made / META),
    }
    inputs["sha256"] = hashlib.sha256(_canonical(inputs)).hexdigest()
    (made / INPUTS).write_text(json.dumps(inputs, indent=1, sort_keys=True) + "\n")


def _publish(made: Path, entry: Path, working: Path) -> None:
    """Make the finished folder appear under its name, complete and on disk, or not at all."""
    for path in made.iterdir():
        path.chmod(path.stat().st_mode & ~storage.OTHERS_WRITE)
        storage.flush(path)
    storage.flush(made)
    if entry.exists():
        entry.rename(working / "damaged")
    made.rename(entry)
    storage.flush(entry.parent)


def lock_path(entry: Path) -> Path:
    """The lock file of an entry, for whoever makes or removes the entry; its folder is made."""
    folder = entry.parent / ".locks"
    storage.make_folder(folder)
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


def _record(failure: Path, error: CompileError) -> None:
    fields = {name: getattr(error, name) for name in ("subject", "expected", "got", "fix", "code")}
    with contextlib.suppress(OSError):
        storage.write_atomically(failure, (json.dumps(fields, indent=1) + "\n").encode())


def _raise_recorded(failure: Path, module: Module) -> None:
    try:
        fields: dict[str, Any] = json.loads(storage.read_file(failure).decode())
        error = CompileError(
            fields["subject"],
            expected=fields["expected"],
            got=f"(an earlier compile of the same source) {fields['got']}",
            fix=f"{fields['fix']}; to try again unchanged: "
            f"`python -m dsl_kernels compile --retry {module.id}`",
            code=fields["code"],
        )
    except (OSError, ValueError, KeyError, TypeError):
        failure.unlink(missing_ok=True)
        return
    raise error
