"""Warm-up of a server: compiles and loads what it will launch, before requests and before a graph capture."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from itertools import chain

from . import measured, programs, variants
from .arch import get_arch
from .arguments import checked, require_known, require_range
from .errors import ArtifactError, DslKernelError, InvalidArgumentError

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Warmed:
    """The result for one variant: compiled before (`cached`, or in the bundle), loaded, or why it failed."""

    variant: str
    seconds: float
    cached: bool
    loaded: bool
    error: DslKernelError | None = None


@checked
def warmup(
    op: str | Collection[str] | None = None,
    *,
    arch: str | None = None,
    device: int | None = None,
    jobs: int | None = None,
    strict: bool = True,
    progress: Progress | None = None,
) -> list[Warmed]:
    """Compile every variant that calls may select, and load them onto the GPU if there is one.

    These include the user's tuned variants. Variants of the bundle in use are not compiled.

    Args:
        op: operations to warm up; all by default.
        arch: architecture to compile for, by default that of `device`; required without a GPU.
        device: CUDA device to load onto; the current one by default.
        jobs: compile workers, as `runtime.pool.compile_all`.
        strict: raise the first failure; otherwise failures are in the result.
        progress: called as (variant, done, total) after each variant.

    Raises:
        UnknownNameError: an operation that does not exist.
        InvalidArgumentError: no GPU and no `arch`, a device that does not exist, or no workers.
        ArtifactError: no variant was generated for these operations.
        DslKernelError: a variant failed to compile or to load, with `strict`.
    """
    from .runtime import store
    from .runtime.pool import MOST_JOBS, Outcome, compile_all

    index, local = _device(device)
    target = get_arch(arch).name if arch is not None else local
    if target is None:
        raise InvalidArgumentError(
            "arch",
            expected="an architecture to compile for, where there is no GPU",
            got="none",
            fix="pass arch='sm_90a' or 'sm_100a'",
        )
    if jobs is not None:
        require_range("jobs", jobs, 1, MOST_JOBS)
    names = {op} if isinstance(op, str) else set(op) if op is not None else None
    for name in names or ():
        require_known("op", name, programs.names(), "operation")
    added = (v for v in measured.added_variants().values() if v.arch == target)
    every = [*variants.variants(arch=target), *added]
    chosen = [v for v in every if names is None or v.op in names]
    if not chosen:
        raise ArtifactError(
            "generated kernels",
            expected=f"variants of {', '.join(sorted(names or {'any op'}))} for {target}",
            got="none",
            fix="run `make generate`",
        )
    by_id = {variant.id: variant for variant in chosen}
    warmed = []
    missing = store.outside_bundle(chosen)
    ready = (Outcome(v.id, 0.0, cached=True) for v in chosen if v not in missing)
    for outcome in chain(ready, compile_all(missing, jobs=jobs)):
        error, loaded = outcome.error, False
        if error is None and index is not None and target == local:
            try:
                _load(by_id[outcome.variant], index)
                loaded = True
            except DslKernelError as refused:
                error = refused
        if error is not None and strict:
            raise error
        warmed.append(Warmed(outcome.variant, outcome.seconds, outcome.cached, loaded, error))
        if progress is not None:
            progress(outcome.variant, len(warmed), len(chosen))
    return warmed


def _device(device: int | None) -> tuple[int | None, str | None]:
    """Index and architecture of the GPU; (None, None) if there is none."""
    import torch

    if not torch.cuda.is_available():
        return None, None
    from .executors import gpu_at_hand

    index = torch.cuda.current_device() if device is None else device
    require_range("device", index, 0, torch.cuda.device_count() - 1)
    return index, gpu_at_hand(index).arch.name


def _load(variant: variants.Variant, device: int) -> None:
    """Load a variant into the cache that the ops use."""
    import torch

    from . import ops
    from .registry import Selection

    ops.preload(Selection(variant, {}, "warmup"), torch.device("cuda", device))
