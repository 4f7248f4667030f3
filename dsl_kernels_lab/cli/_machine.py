"""Where commands run kernels: the executor, its device, and what has to be compiled first."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from dsl_kernels import env, variants
from dsl_kernels.errors import ExecutorUnavailableError


def executor_of(name: str | None) -> tuple[str, str, str]:
    """The executor, its torch device, and why it was chosen.

    Raises:
        UnknownNameError: there is no executor of that name.
        ExecutorUnavailableError: it cannot run here.
    """
    import torch

    from dsl_kernels import executors

    asked = name or env.EXECUTOR.get()
    gpu = torch.cuda.is_available()
    if asked:
        executors.get(asked)
        if asked == "cuda" and not gpu:
            raise ExecutorUnavailableError(
                "executor",
                expected="a GPU for 'cuda'",
                got="none visible to torch",
                fix="drop --executor to run on the CPU, or run on a machine with a GPU",
            )
        return asked, "cuda" if asked == "cuda" else "cpu", "as asked"
    if gpu:
        return "cuda", "cuda", "a GPU is present"
    return "interpreter", "cpu", "no GPU: the tile programs run in torch on the CPU, so times say nothing"


def device_name(device: str) -> str:
    import platform

    import torch

    return torch.cuda.get_device_name() if device == "cuda" else f"CPU ({platform.machine()})"


@contextlib.contextmanager
def tile_threads(device: str) -> Iterator[None]:
    """Limit torch to one thread on the CPU: operations on tiles are too small to be worth sharing."""
    import torch

    before = torch.get_num_threads()
    if device == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def compile_missing(chosen: list[variants.Variant], executor: str, bar: Any) -> dict[str, str]:
    """Compile what neither the bundle nor the cache has, in worker processes; returns errors by variant."""
    from dsl_kernels.runtime import bundle, store
    from dsl_kernels.runtime.pool import compile_all

    missing = store.outside_bundle(chosen, bundle.CUBIN if executor == "cuda" else bundle.PTX)
    task = bar.add_task("compile", total=len(missing))
    errors = {}
    for outcome in compile_all(missing):
        if outcome.error is not None:
            errors[outcome.variant] = str(outcome.error)
        bar.update(task, advance=1, description=f"compile {outcome.variant}")
    bar.remove_task(task)
    return errors
