"""Where a variant runs: on a GPU, in the PTX emulator, or tile by tile in torch; one interface for all three."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from . import programs
from .arch import get_arch
from .errors import ExecutorUnavailableError, UnknownNameError, did_you_mean
from .variants import Variant

Launcher = Callable[[Mapping[str, Any], Mapping[str, int], int], None]


class Executor(Protocol):
    """Prepares a variant once; the result launches it on operands, dims and a stream."""

    name: str

    def prepare(self, variant: Variant, device: int | None = None) -> Launcher: ...


class Cuda:
    """The compiled artifact on a GPU of its architecture."""

    name = "cuda"

    def prepare(self, variant: Variant, device: int | None = None) -> Launcher:
        from .runtime import cache

        kernel = cache.load(variant)
        kernel.prepare(device or 0)
        return kernel.launch


class Interpreter:
    """The tile program on a CPU; `seed` shuffles roles and CTAs."""

    name = "interpreter"

    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed

    def prepare(self, variant: Variant, device: int | None = None) -> Launcher:
        from .tile.machine import Interpreter as Machine

        program, arch, machine = programs.get(variant.op), get_arch(variant.arch), Machine(self.seed)

        def launch(operands: Mapping[str, Any], dims: Mapping[str, int], stream: int = 0) -> None:
            machine.launch(program, variant.knobs, arch, operands, dims)

        return launch


EXECUTORS: dict[str, Callable[[], Executor]] = {"cuda": Cuda, "interpreter": Interpreter}


def get(name: str) -> Executor:
    """The executor of that name.

    Raises:
        UnknownNameError: there is no such executor.
    """
    if name not in EXECUTORS:
        raise UnknownNameError(
            "executor", expected="a known executor", got=repr(name), fix=did_you_mean(name, list(EXECUTORS))
        )
    return EXECUTORS[name]()


def for_device(device_type: str, name: str | None) -> str:
    """The executor for tensors of a device type: the one named, or cuda for CUDA tensors.

    Raises:
        ExecutorUnavailableError: CPU tensors without a named executor, or an executor that cannot take the device.
    """
    if name is None or name == "":
        if device_type == "cuda":
            return "cuda"
        raise ExecutorUnavailableError(
            "executor",
            expected="CUDA tensors, or an executor named explicitly",
            got=f"{device_type} tensors and no executor",
            fix="pass executor='interpreter' (or set DSL_KERNELS_EXECUTOR=interpreter) to run on a CPU",
        )
    if (name == "cuda") != (device_type == "cuda"):
        raise ExecutorUnavailableError(
            "executor",
            expected="CUDA tensors for 'cuda', CPU tensors for the others",
            got=f"executor {name!r} with {device_type} tensors",
            fix="move the tensors, or name another executor",
        )
    return name
