"""Where a compiled variant comes from: the bundle in use, else the cache, else a compile."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dsl_kernels.arguments import checked
from dsl_kernels.errors import ArtifactError, MissingArtifactError, ToolchainError
from dsl_kernels.variants import Variant

from . import bundle
from .artifact import Artifact
from .launch import LoadedKernel


@checked
def load(variant: Variant) -> LoadedKernel:
    """The kernel of a variant, ready to launch.

    Raises:
        BundleError: the bundle in use has the variant and does not fit this library, or is damaged.
        MissingArtifactError: neither the bundle nor the cache has it, and compiling is switched off.
        CompileError, ToolchainError, CacheError: as `runtime.cache.artifact_for`.
    """
    return LoadedKernel(*fetch(variant, bundle.CUBIN))


@checked
def fetch(variant: Variant, file: str) -> tuple[Artifact, bytes]:
    """The launch description and one code file of a variant; errors as `load`."""
    held = bundle.active()
    if held is not None:
        found = held.fetch(variant, file)
        if found is not None:
            return found
    from . import cache

    try:
        return cache.fetch(_cached(variant, held), file)
    except ArtifactError:
        # Pruned by another process between the look and the read: looked for once more, and compiled if need be.
        return cache.fetch(_cached(variant, held), file)


@checked
def lookup(variant: Variant) -> Path | None:
    """The folder of a compiled variant, in the bundle in use or in the cache; None where it has to be compiled."""
    from . import cache

    held = bundle.active()
    if held is not None and not outside_bundle([variant]):
        held.fetch(variant)
        return held.root / variant.id
    return cache.lookup(variant)


def outside_bundle(chosen: Iterable[Variant], file: str = bundle.CUBIN) -> list[Variant]:
    """The variants that the bundle in use lacks: what a command that needs them all has to compile."""
    held = bundle.active()
    return [v for v in chosen if held is None or v.arch != held.arch or not held.holds(v.id, file)]


def toolchain_missing(variant: Variant) -> ToolchainError | None:
    """What compiling a variant would need and this machine lacks."""
    from . import cache

    return cache.key_of(variant).missing


def _cached(variant: Variant, held: bundle.Bundle | None) -> Path:
    from . import cache

    try:
        return cache.artifact_for(variant)
    except MissingArtifactError as error:
        if held is None:
            raise
        raise MissingArtifactError(
            error.subject,
            expected=f"it in the bundle {held.root}, or {error.expected}",
            got=f"{len(held.entries)} other variants in the bundle; {error.got}",
            fix=f"write the bundle with this variant, or {error.fix}",
        ) from None
