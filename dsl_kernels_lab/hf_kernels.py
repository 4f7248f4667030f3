"""The library in the layout of Hugging Face `kernels`: only CuTe DSL, relative imports, its own op namespace.

`kernels` loads `build/torch-cuda/__init__.py` from any place, under the id in the `metadata.json` next to it,
possibly several versions in one process. The export is therefore a copy of the library without what no GPU
operation needs, and no module in it names the package (`docs/source/kernel-requirements.md` of
huggingface/kernels 8ac69fc5).
"""

from __future__ import annotations

import base64
import json
import re
import tempfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath

import dsl_kernels
from dsl_kernels import __version__, ops, variants
from dsl_kernels.errors import InvalidArgumentError
from dsl_kernels.manifest import MANIFEST, text_of

NAME, VARIANT, BACKEND = "dsl-kernels", "torch-cuda", "cutedsl"
# Major version of the exported functions; in the convention of `kernels`, 0 may still change.
VERSION = 0
ARCHS = {"sm_90a": "9.0a", "sm_100a": "10.0a"}

# Not exported: commands, tools, other libraries' interfaces.
_LEFT_OUT = (
    "__main__.py",
    "cli",
    "compat",
    "dsa",
    "emulator",
    "generated",
    "integrations",
    "prepare.py",
    "runtime/pool.py",
    "runtime/prune.py",
    "runtime/worker.py",
)
_SUFFIXES = (".py", ".json")
_PACKAGE = Path(dsl_kernels.__file__).resolve().parent
_ABSOLUTE = re.compile(rf"^(\s*)from {_PACKAGE.name}((?:\.\w+)*) import ", re.MULTILINE)

_START = '''\
"""Sparse attention for Hopper and Blackwell: scoring, selection and attention, exact and deterministic.

Kernels are CuTe DSL, which compiles each when it is first called and keeps it on disk.
"""

from __future__ import annotations

__version__ = "{version}"

from .ops import {names}

__all__ = [{quoted}]
'''
# For releases of `kernels` that look into a folder named after the kernel.
_OLDER = '''"""The kernel in the folder above, for releases of `kernels` that look here."""

import importlib.util
import sys
from pathlib import Path

_file = Path(__file__).resolve().parents[1] / "__init__.py"
_spec = importlib.util.spec_from_file_location("{id}", _file)
_kernel = sys.modules.get("{id}")
if _kernel is None:
    _kernel = sys.modules["{id}"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_kernel)
__all__ = _kernel.__all__
globals().update({{name: getattr(_kernel, name) for name in __all__}})
'''


@dataclass(frozen=True)
class Exported:
    """What was written: the folder of the build variant, the id to import it under, and its size."""

    folder: Path
    id: str
    files: int
    bytes: int


def export(folder: Path) -> Exported:
    """Write the kernel as `folder/build/torch-cuda`, which `kernels.get_local_kernel(folder)` loads.

    Raises:
        InvalidArgumentError: that folder exists.
        ArtifactError: the library has no generated modules.
        OSError: the folder cannot be written.
    """
    target = folder / "build" / VARIANT
    if target.exists():
        raise InvalidArgumentError(
            "folder",
            expected="one without this build variant",
            got=str(target),
            fix="remove it, or name another",
        )
    texts = {**_library(), **_generated(), "__init__.py": _start()}
    identity = sha256(json.dumps({name: _hash(text) for name, text in sorted(texts.items())}).encode())
    own = f"_{NAME.replace('-', '_')}_cuda_{identity.hexdigest()[:7]}"
    texts[f"{NAME.replace('-', '_')}/__init__.py"] = _OLDER.format(id=own)
    metadata = {
        "name": NAME,
        "id": own,
        "version": VERSION,
        "license": "apache-2.0",
        "python-depends": ["nvidia-cutlass-dsl"],
        "backend": {"type": "cuda", "archs": list(ARCHS.values())},
        "digest": {
            "algorithm": "sha256",
            "files": {name: _hash(text) for name, text in sorted(texts.items())},
        },
    }
    texts["metadata.json"] = json.dumps(metadata, indent=2) + "\n"
    target.parent.mkdir(parents=True, exist_ok=True)
    # The rename makes the folder appear complete or not at all.
    with tempfile.TemporaryDirectory(dir=target.parent, ignore_cleanup_errors=True) as half:
        for name, text in texts.items():
            file = Path(half, VARIANT, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        Path(half, VARIANT).rename(target)
    return Exported(target, own, len(texts), sum(len(text.encode()) for text in texts.values()))


def _library() -> dict[str, str]:
    """Texts of the exported files of the package, by their path in it."""
    texts = {}
    for file in sorted(_PACKAGE.rglob("*")):
        place = PurePosixPath(file.relative_to(_PACKAGE).as_posix())
        other_dsl = any(part.startswith("tilelang") for part in place.parts)
        left_out = other_dsl or any(place.is_relative_to(each) for each in _LEFT_OUT)
        if file.suffix in _SUFFIXES and not left_out:
            text = file.read_text()
            texts[str(place)] = _relative(text, len(place.parts)) if file.suffix == ".py" else text
    return texts


def _generated() -> dict[str, str]:
    """Texts of the generated modules and their manifest; each module is `<package>.generated.<id>`."""
    texts: dict[str, str] = {}
    records = []
    for variant in variants.variants():
        if variant.backend == BACKEND and variant.arch in ARCHS:
            text = _relative(variant.source, 2)
            record = {**variant.record(), "sha256": sha256(text.encode()).hexdigest()}
            texts[f"generated/{record['file']}"] = text
            records.append(record)
    return {
        **texts,
        f"generated/{MANIFEST}": text_of(records),
    }


def _relative(text: str, up: int) -> str:
    return _ABSOLUTE.sub(lambda match: f"{match[1]}from {'.' * up}{match[2].lstrip('.')} import ", text)


def _start() -> str:
    names = sorted(ops.__all__)
    return _START.format(
        version=__version__, names=", ".join(names), quoted=", ".join(f'"{name}"' for name in names)
    )


def _hash(text: str) -> str:
    return base64.b64encode(sha256(text.encode()).digest()).decode()
