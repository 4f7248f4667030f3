"""Bundles: compiled variants of one architecture in a folder that loads without a DSL, a compiler or a cache.

    <bundle>/
        bundle.json         what it was built from, and the SHA-256 of every other file; written last
        manifest.json       the variants' records as in generated/, for a library that comes without that set
        <variant id>/
            meta.json       the launch description (see runtime.artifact)
            kernel.cubin    what the GPU runs
            kernel.ptx      on request: what the emulator runs

A bundle belongs to one version of the library. Each variant in it belongs to one text of its generated
module, of the device helpers that the module imports and of its backend. Loading a variant compares all of
these hashes, and the bytes that are hashed are the bytes that are launched. A variant that a bundle lacks is
looked up in the cache; a variant that does not match is an error, never a silent rebuild. Only files in the
bundle's own folder are read, and no Python in it is ever run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from dsl_kernels import __version__, env, manifest
from dsl_kernels.arguments import checked, require_known
from dsl_kernels.errors import BundleError, InvalidArgumentError
from dsl_kernels.manifest import MANIFEST, Variant

from . import storage
from .artifact import CODE_FILES, META, Artifact, read, sha256

SCHEMA = 1
INDEX = "bundle.json"
CUBIN = "kernel.cubin"
PTX = "kernel.ptx"

_PACKAGE = Path(__file__).resolve().parents[1]
_REBUILD = "write the bundle again with this version of the library: `python -m dsl_kernels bundle write`"


class Module(Protocol):
    """What a bundle compares a variant by (`dsl_kernels.manifest.Variant` has it)."""

    @property
    def id(self) -> str: ...
    @property
    def arch(self) -> str: ...
    @property
    def sha256(self) -> str: ...


@dataclass(frozen=True)
class Entry:
    """One variant of a bundle.

    Attributes:
        source: SHA-256 of the generated module.
        library: SHA-256 of each file of the library whose text entered the kernel, by its path in the
            package.
        toolchain: versions of the DSL and of the compiler that built it.
        files: SHA-256 of each file in the variant's folder.
    """

    backend: str
    source: str
    library: Mapping[str, str]
    toolchain: Mapping[str, str]
    files: Mapping[str, str]


@dataclass(frozen=True)
class Bundle:
    """An opened bundle; its files are read and compared when they are needed."""

    root: Path
    arch: str
    library: str
    files: Mapping[str, str]
    entries: Mapping[str, Entry]

    def holds(self, variant_id: str, file: str = CUBIN) -> bool:
        """Whether the bundle has this file of a variant; says nothing of its state."""
        entry = self.entries.get(variant_id)
        return entry is not None and file in entry.files

    def fetch(self, module: Module, file: str = CUBIN) -> tuple[Artifact, bytes] | None:
        """The launch description and one code file of a variant; None if the bundle has no such file of it.

        Raises:
            BundleError: the bundle is for another architecture, the variant was built from sources that
                differ from the library's, or a file is damaged.
        """
        if module.arch != self.arch:
            raise BundleError(
                f"bundle {self.root}",
                expected=f"variants of {module.arch}, such as {module.id}",
                got=f"a bundle for {self.arch}",
                fix=f"use a bundle written with --arch {module.arch}",
                code="BUNDLE_ARCH",
            )
        if not self.holds(module.id, file):
            return None
        entry = self.entries[module.id]
        self._compare_sources(module, entry)
        folder = self.root / module.id
        meta = _verified(self.root, folder / META, entry.files.get(META, ""))
        artifact = Artifact.from_json(meta.decode(), str(folder / META))
        if (artifact.variant, artifact.arch, artifact.backend) != (module.id, self.arch, entry.backend):
            raise _damaged(
                folder / META, f"the launch description of {module.id}", f"one of {artifact.variant}"
            )
        return artifact, _verified(self.root, folder / file, entry.files[file])

    def manifest_folder(self) -> Path:
        """The folder of the variants' records, after checking their hash against the index."""
        _verified(self.root, self.root / MANIFEST, self.files.get(MANIFEST, ""))
        return self.root

    def check(self, modules: Sequence[Module]) -> Iterator[tuple[str, BundleError | None]]:
        """Each variant of the bundle with what is wrong with it (None if nothing), against `modules`."""
        known = {module.id: module for module in modules}
        for name, entry in self.entries.items():
            try:
                if name not in known:
                    raise _foreign(name, "a variant of this library", "none of that name")
                for file in sorted(entry.files):
                    if file != META:
                        self.fetch(known[name], file)
                yield name, None
            except BundleError as error:
                yield name, error

    def strays(self) -> Iterator[BundleError]:
        """Files that the index does not list, and places that other users may write to."""
        listed = {self.root / INDEX, *(self.root / name for name in self.files)}
        listed |= {self.root / name / file for name, entry in self.entries.items() for file in entry.files}
        known = {self.root, *listed, *(path.parent for path in listed)}
        for path in [self.root, *sorted(self.root.rglob("*"))]:
            if path not in known:
                yield _damaged(path, f"what {INDEX} lists", "something that it does not list", "delete it")
            elif reason := storage.distrust(path):
                yield BundleError(
                    str(path),
                    expected="a place that belongs to this user or root and that nobody else may write to",
                    got=reason,
                    fix=f"if you trust what lies there, `chmod -R go-w {self.root}`",
                    code="BUNDLE_UNTRUSTED",
                )

    def _compare_sources(self, module: Module, entry: Entry) -> None:
        if entry.source != module.sha256:
            raise _foreign(
                module.id,
                f"the generated module that it was built from, SHA-256 {entry.source[:16]}",
                f"{module.sha256[:16]} in this library",
            )
        for name, digest in entry.library.items():
            present = _library_file(name)
            if present != digest:
                raise _foreign(
                    module.id,
                    f"dsl_kernels/{name} as it was built with, SHA-256 {digest[:16]}",
                    f"{present[:16] or 'no such file'} in this library",
                )


_override: Path | None = None


@checked
def use(path: str | Path | None) -> Bundle | None:
    """Serve this process's launches from the bundle at `path` before the cache; None stops that.

    This overrides DSL_KERNELS_BUNDLE_DIR. Launches that were prepared earlier keep their kernels until
    `dsl_kernels.ops.clear()`.

    Raises:
        BundleError: there is no bundle, or another version of the library wrote it.
    """
    global _override
    opened = None if path is None else open_bundle(path)
    _override = None if opened is None else opened.root
    return opened


def active() -> Bundle | None:
    """The bundle that `use` or DSL_KERNELS_BUNDLE_DIR names; None if neither does.

    Raises:
        BundleError: there is none at that path, or another version of the library wrote it.
    """
    path = _override if _override is not None else env.BUNDLE_DIR.get()
    return None if path is None else open_bundle(path)


def holding(path: Path) -> Path | None:
    """The bundle that contains the file, or None."""
    return next((folder for folder in path.absolute().parents if (folder / INDEX).is_file()), None)


@checked
def open_bundle(path: str | Path) -> Bundle:
    """The bundle at `path`, after checking its index against this version of the library.

    Raises:
        BundleError: no bundle, a damaged index, another schema, or another version of the library.
    """
    root = Path(path).absolute()
    try:
        stamp = (root / INDEX).stat()
    except OSError as error:
        raise BundleError(
            str(root),
            expected=f"a bundle (a folder with {INDEX})",
            got=error.strerror or str(error),
            fix="write one with `python -m dsl_kernels bundle write`, or correct DSL_KERNELS_BUNDLE_DIR",
        ) from None
    return _open(root, stamp.st_mtime_ns, stamp.st_size)


@lru_cache(maxsize=8)
def _open(root: Path, stamp: int, size: int) -> Bundle:
    path = root / INDEX
    try:
        content = json.loads(storage.read_file(_inside(root, path)))
        digest = content.pop("sha256")
        if content.get("schema") != SCHEMA:
            raise _other_version(root, f"schema {SCHEMA}", f"schema {content.get('schema')!r}")
        if _digest(content) != digest:
            raise _damaged(path, f"SHA-256 {str(digest)[:16]} of its content", _digest(content)[:16])
        if content["library"] != __version__:
            raise _other_version(root, f"version {__version__} of dsl_kernels", content["library"])
        entries = {name: Entry(**fields) for name, fields in content["variants"].items()}
        _require_confined(path, content["files"], entries)
        return Bundle(root, str(content["arch"]), content["library"], content["files"], entries)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise _damaged(path, "the index of a bundle", f"{type(error).__name__}: {error}") from None


def _require_confined(index: Path, files: Mapping[str, str], entries: Mapping[str, Entry]) -> None:
    """Refuse an index that names files outside the bundle's folder or outside this library."""
    library = {name for entry in entries.values() for name in entry.library}
    for name in [*entries, *files, *library, *(file for entry in entries.values() for file in entry.files)]:
        parts = PurePosixPath(name).parts
        single = name in library or len(parts) == 1
        if not single or not parts or parts[0] == "/" or ".." in parts or "\0" in name:
            raise _damaged(index, "names of files in the bundle's own folder", repr(name))
    if not all(map(_is_digest, files.values())):
        raise _damaged(index, "the hash of each file", str(files))
    known = {META, *CODE_FILES}
    for name, entry in entries.items():
        hashes = [entry.source, *entry.library.values(), *entry.files.values()]
        if not set(entry.files) <= known or not all(map(_is_digest, hashes)):
            raise _damaged(index, f"the hashes of sources and of {', '.join(sorted(known))}", name)


def _is_digest(text: object) -> bool:
    return isinstance(text, str) and re.fullmatch("[0-9a-f]{64}", text) is not None


def _inside(root: Path, path: Path) -> Path:
    """`path`, which must be inside the bundle after symbolic links are followed."""
    # Unlike `resolve`, this raises nothing for links in a circle: whoever opens the path does.
    actual = Path(os.path.realpath(path))
    if not actual.is_relative_to(os.path.realpath(root)):
        raise _damaged(path, "a file in the bundle's own folder", f"a link to {actual}")
    return path


@checked
def write(
    target: str | Path,
    chosen: Sequence[Variant],
    folders: Mapping[str, Path],
    *,
    ptx: bool = False,
    replace: bool = False,
) -> Bundle:
    """Write a bundle of compiled variants; the folder appears complete, or not at all.

    Args:
        target: the folder to make.
        chosen: generated variants of one architecture.
        folders: the folder of each variant's compiled artifact, by variant id.
        ptx: include the PTX, which only the emulator needs.
        replace: replace a bundle at `target`. Anything but a bundle is never replaced.

    Raises:
        InvalidArgumentError: no variant, variants of several architectures, or a target that is taken.
        BundleError: a generated module differs from its record.
        ArtifactError: a compiled variant is damaged.
        CacheError: the folder cannot be written.
    """
    target = Path(target).absolute()
    for variant in chosen:
        require_known("folders", variant.id, folders, "compiled variant")
    archs = sorted({variant.arch for variant in chosen})
    if len(archs) != 1:
        raise InvalidArgumentError(
            "variants",
            expected="variants of one architecture",
            got=", ".join(archs) or "none",
            fix="write a bundle for each architecture, and widen filters that match nothing",
        )
    require_free(target, replace=replace)
    fix = "free space there, correct its permissions, or choose another folder"
    with storage.writable(target, fix):
        storage.make_folder(target.parent)
        with storage.working_folder(target.parent, target.name) as working:
            made = working / "made"
            made.mkdir(mode=0o755)
            files = (META, CUBIN, *((PTX,) if ptx else ()))
            entries = {
                variant.id: _copy(variant, folders[variant.id], made / variant.id, files)
                for variant in chosen
            }
            records = manifest.text_of(variant.record() for variant in chosen)
            storage.write_flushed(made / MANIFEST, records.encode())
            content = {
                "schema": SCHEMA,
                "library": __version__,
                "arch": archs[0],
                "files": {MANIFEST: sha256(made / MANIFEST)},
                "variants": {name: asdict(entry) for name, entry in sorted(entries.items())},
            }
            sealed = {**content, "sha256": _digest(content)}
            text = json.dumps(sealed, indent=1, sort_keys=True) + "\n"
            storage.write_flushed(made / INDEX, text.encode())
            _publish(made, target, working / "replaced")
        # Only now: the folder of a writer that was killed while it replaced a bundle may hold the old one.
        storage.sweep(target.parent, target.name)
    return open_bundle(target)


@checked
def require_free(target: str | Path, *, replace: bool) -> None:
    """Refuse a target that cannot take a bundle, before anything is compiled for it.

    Raises:
        InvalidArgumentError: the target holds something other than a bundle that may be replaced.
    """
    target = Path(target)
    try:
        if not target.exists():
            return
    except OSError as error:
        raise InvalidArgumentError(
            str(target), expected="a folder that can be made", got=str(error), fix="choose another folder"
        ) from None
    bundled = (target / INDEX).is_file()
    if not (bundled and replace) and (not target.is_dir() or any(target.iterdir())):
        raise InvalidArgumentError(
            str(target),
            expected="a folder that does not exist yet",
            got="a bundle" if bundled else "something that is no bundle",
            fix="pass --force to replace the bundle" if bundled else "choose another folder",
        )


def _copy(variant: Variant, source: Path, folder: Path, files: Sequence[str]) -> Entry:
    """Copy one variant's files, after comparing each with the hash that the compile recorded."""
    from dsl_kernels import backends

    text = sha256(variant.path)
    if text != variant.sha256:
        raise _foreign(
            variant.id,
            f"a generated module with the manifest's SHA-256 {variant.sha256[:16]}",
            text[:16],
            fix="run `make generate`",
        )
    artifact = read(source)
    folder.mkdir(mode=0o755)
    digests = {}
    for name in files:
        content = storage.read_file(source / name)
        storage.write_flushed(folder / name, content)
        digests[name] = hashlib.sha256(content).hexdigest()
    storage.flush(folder)
    helpers = backends.get(variant.backend).sources(variant.path)
    library = {path.relative_to(_PACKAGE).as_posix(): sha256(path) for path in helpers}
    return Entry(variant.backend, variant.sha256, library, dict(artifact.toolchain), digests)


def _publish(made: Path, target: Path, aside: Path) -> None:
    """Rename the finished folder; a crash leaves the old bundle, none or the new one, never a part."""
    storage.flush(made)
    if target.exists():
        target.rename(aside)
    try:
        made.rename(target)
    except OSError:
        if aside.exists():
            aside.rename(target)
        raise
    storage.flush(target.parent)


def _verified(root: Path, path: Path, digest: str) -> bytes:
    try:
        content = storage.read_file(_inside(root, path))
    except OSError as error:
        raise _damaged(path, "a file of the bundle", error.strerror or str(error)) from None
    actual = hashlib.sha256(content).hexdigest()
    if actual != digest:
        raise _damaged(path, f"SHA-256 {digest[:16]}", actual[:16])
    return content


@lru_cache(maxsize=256)
def _library_file(name: str) -> str:
    """SHA-256 of a file of the installed library; empty if there is no such file."""
    try:
        return sha256(_PACKAGE / name)
    except OSError:
        return ""


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _damaged(
    path: Path,
    expected: str,
    got: str,
    fix: str = "copy the bundle again from where it was written, or write it again",
) -> BundleError:
    return BundleError(str(path), expected=expected, got=got, fix=fix, code="BUNDLE_DAMAGED")


def _other_version(root: Path, expected: str, got: str) -> BundleError:
    return BundleError(f"bundle {root}", expected=expected, got=str(got), fix=_REBUILD, code="BUNDLE_VERSION")


def _foreign(variant_id: str, expected: str, got: str, fix: str = _REBUILD) -> BundleError:
    return BundleError(variant_id, expected=expected, got=got, fix=fix, code="BUNDLE_SOURCE")
