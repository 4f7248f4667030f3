"""The generated set as the library sees it: the records of manifest.json, read without a DSL."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from . import env
from .arguments import checked, require_known
from .errors import ArtifactError
from .manifest import MANIFEST as MANIFEST
from .manifest import SCHEMA as SCHEMA
from .manifest import Variant as Variant
from .runtime import bundle
from .runtime.storage import read_record


def generated_root() -> Path:
    """The manifest's folder: DSL_KERNELS_GENERATED_DIR, the packaged set, or the checkout's generated/.

    A library without a generated set has the variants of the bundle in use.

    Raises:
        ArtifactError: none of them has a manifest.
    """
    here = Path(__file__).resolve().parent
    override = env.GENERATED_DIR.get()
    places = [override] if override is not None else [here / "generated", here.parent / "generated"]
    for place in places:
        if (place / MANIFEST).exists():
            return place
    if override is None:
        in_use = bundle.active()
        if in_use is not None:
            return in_use.manifest_folder()
    raise ArtifactError(
        "generated kernels",
        expected=f"{MANIFEST} in one of: {', '.join(str(p) for p in places)}",
        got="none",
        fix="run `make generate` (or `python -m codegen generate`), or correct DSL_KERNELS_GENERATED_DIR",
    )


@lru_cache(maxsize=8)
def _read(root: Path, stamp: int) -> tuple[Variant, ...]:
    fields = ("id", "op", "backend", "arch", "knobs", "sha256", "declared")
    return read_record(
        root / MANIFEST,
        SCHEMA,
        lambda content: tuple(
            Variant(path=root / r["file"], **{name: r[name] for name in fields}) for r in content["variants"]
        ),
        expected="a manifest of this version",
        fix="run `make generate`",
    )


_lent: dict[str, Variant] = {}


@checked
def lend(variant: Variant) -> None:
    """Let calls of this process name (`variant=`) a variant that was not generated; it serves no others."""
    _lent[variant.id] = variant


def lent(variant_id: str) -> Variant | None:
    """The variant that was lent (`lend`) under this id."""
    return _lent.get(variant_id)


def in_folder(root: Path) -> tuple[Variant, ...]:
    """The variants that the manifest of a folder lists."""
    return _read(root, (root / MANIFEST).stat().st_mtime_ns)


@checked
def variants(
    op: str | None = None, backend: str | None = None, arch: str | None = None
) -> tuple[Variant, ...]:
    """Generated variants, in the manifest's order, narrowed by any of the arguments."""
    return tuple(
        v
        for v in in_folder(generated_root())
        if op in (None, v.op) and backend in (None, v.backend) and arch in (None, v.arch)
    )


def get(variant_id: str) -> Variant:
    """The variant with this id.

    Raises:
        UnknownNameError: not in the generated set.
    """
    everything = {variant.id: variant for variant in variants()}
    require_known("variant", variant_id, everything, "generated variant")
    return everything[variant_id]


@checked
def ids(of: Sequence[Variant]) -> list[str]:
    return [variant.id for variant in of]
