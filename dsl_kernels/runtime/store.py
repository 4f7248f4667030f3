"""Where a compiled variant comes from: the bundle in use, otherwise the cache, otherwise a compile."""

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
        BundleError: the bundle in use has the variant but does not match this library, or is damaged.
        MissingArtifactError: neither the bundle nor the cache has it, and compiling is switched off.
        CompileError, ToolchainError, CacheError: as `runtime.cache.artifact_for`.
    """
    return LoadedKernel(*fetch(variant, bundle.CUBIN))


@checked
def fetch(variant: Variant, file: str) -> tuple[Artifact, bytes]:
    """The launch description and one code file of a variant; raises what `load` raises."""
    active = bundle.active()
    if active is not None:
        bundled = active.fetch(variant, file)
        if bundled is not None:
            return bundled
    from . import cache

    try:
        return cache.fetch(_cached(variant, active), file)
    except ArtifactError:
        # Another process pruned it between the lookup and the read: look again, and compile it if need be.
        return cache.fetch(_cached(variant, active), file)


@checked
def lookup(variant: Variant) -> Path | None:
    """The folder of a compiled variant, in the bundle in use or the cache; None if it must be compiled."""
    from . import cache

    active = bundle.active()
    if active is not None and not outside_bundle([variant]):
        active.fetch(variant)
        return active.root / variant.id
    return cache.lookup(variant)


def outside_bundle(chosen: Iterable[Variant], file: str = bundle.CUBIN) -> list[Variant]:
    """The variants that the bundle in use lacks, which a command that needs them all must compile."""
    active = bundle.active()
    return [v for v in chosen if active is None or v.arch != active.arch or not active.holds(v.id, file)]


def toolchain_missing(variant: Variant) -> ToolchainError | None:
    """What this machine lacks to compile a variant; None if nothing."""
    from . import cache

    return cache.key_of(variant).missing


def _cached(variant: Variant, active: bundle.Bundle | None) -> Path:
    from . import cache

    try:
        return cache.artifact_for(variant)
    except MissingArtifactError as error:
        if active is None:
            raise
        raise MissingArtifactError(
            error.subject,
            expected=f"it in the bundle {active.root}, or {error.expected}",
            got=f"{len(active.entries)} other variants in the bundle; {error.got}",
            fix=f"write the bundle with this variant, or {error.fix}",
        ) from None
