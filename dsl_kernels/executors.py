"""Where a variant runs: on a GPU, in the PTX emulator, or in the torch interpreter; one interface for all."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch

from . import programs
from .arch import GpuSpec, arch_for_capability, get_arch, gpu_row
from .arguments import checked, require_known
from .dtypes import DTYPES
from .emulated import library_errors
from .errors import ExecutorUnavailableError
from .peers import views
from .variants import Variant


@lru_cache(maxsize=64)
def gpu_at_hand(index: int) -> GpuSpec:
    """The row of a CUDA device, by the name, capability and SMs that the driver reports.

    Raises:
        UnsupportedArchError: nothing is generated for that GPU.
    """
    device = torch.cuda.get_device_properties(index)
    arch = arch_for_capability(device.major, device.minor)
    return gpu_row(arch.name, device.name, device.multi_processor_count)


class Launcher(Protocol):
    """A variant that is ready to run: called with operands, dims and a stream."""

    def __call__(self, operands: Mapping[str, Any], dims: Mapping[str, int], stream: int = 0, /) -> None: ...

    def check(self, operands: Mapping[str, Any], dims: Mapping[str, int]) -> None:
        """Compare operands with what the variant was built for; ops ask at the first call of a shape."""


@dataclass(frozen=True)
class _InTorch:
    """A launcher that calls a function of torch; the function checks its operands itself."""

    launch: Callable[[Mapping[str, Any], Mapping[str, int]], None]

    def __call__(self, operands: Mapping[str, Any], dims: Mapping[str, int], stream: int = 0) -> None:
        # Operands that require a gradient cannot be written in place, and autocast would round the program's
        # products.
        with torch.inference_mode(), torch.autocast("cpu", enabled=False):
            self.launch(operands, dims)

    def check(self, operands: Mapping[str, Any], dims: Mapping[str, int]) -> None:
        return None


NOTHING = _InTorch(lambda operands, dims: None)
"""The launcher of a call whose results have no elements; a kernel would divide by sizes of zero."""


def fills(values: Mapping[str, float | str]) -> Launcher:
    """The launcher of a call without inputs: fills each output with a value, or with a named scalar."""

    def launch(operands: Mapping[str, Any], dims: Mapping[str, int]) -> None:
        for name, value in values.items():
            operands[name].fill_(operands[value] if isinstance(value, str) else value)

    return _InTorch(launch)


class Executor(Protocol):
    """Prepares a variant once; the result launches it on operands, dims and a stream."""

    name: str

    def prepare(self, variant: Variant, device: int | None = None) -> Launcher: ...


class Cuda:
    """The compiled artifact on a GPU of its architecture."""

    name = "cuda"

    @checked
    def prepare(self, variant: Variant, device: int | None = None) -> Launcher:
        from .runtime import store

        kernel = store.load(variant)
        program = programs.get(variant.op)
        forms = (*program.problem.forms.values(), program.own_operands(variant.knobs))
        kernel.alignment = {spec.name: spec.align for form in forms for spec in form}
        kernel.prepare(device or 0)
        return kernel


class Interpreter:
    """The tile program on a CPU; `seed` shuffles roles and CTAs."""

    name = "interpreter"

    @checked
    def __init__(self, seed: int | None = None) -> None:
        self.seed = seed

    @checked
    def prepare(self, variant: Variant, device: int | None = None) -> Launcher:
        from .tile.interpreter import Interpreter as Machine

        program, arch, machine = programs.get(variant.op), get_arch(variant.arch), Machine(self.seed)

        def launch(operands: Mapping[str, Any], dims: Mapping[str, int]) -> None:
            machine.launch(program, variant.knobs, arch, operands, dims)

        return _InTorch(launch)


class Emulator:
    """The artifact's PTX on a CPU, under an interleaving, with the emulator's checks.

    An emulator that prepares the same variant again gives the launcher that it has. `interleaving` may change
    between its launches.

    Args:
        interleaving: order of warps and asynchronous engines; lock-step by default.
        check: "raise" at the first finding, or "report" to collect them in `report`.
        edit: applied to the PTX before it runs, to see whether the checks notice a broken kernel.
        strict: also fail on missing fences that hardware may forgive, on barriers that may lap a warp or that
            a warp may reach out of order, and on races within a warp (`strict_fences`, `strict_lapping` and
            `strict_races` of the emulator).
        trace: how many of the last events the report keeps.
    """

    name = "emulator"

    def __init__(
        self,
        interleaving: Any = None,
        check: str = "raise",
        *,
        edit: Callable[[str], str] | None = None,
        strict: bool = False,
        trace: int = 0,
    ) -> None:
        self.interleaving, self.check, self.edit, self.strict = interleaving, check, edit, strict
        self.trace = trace
        self.report: Any = None
        self._prepared: tuple[Variant, Launcher] | None = None

    @checked
    def prepare(self, variant: Variant, device: int | None = None) -> Launcher:
        if self._prepared is None or self._prepared[0] is not variant:
            self._prepared = variant, self._launcher(variant)
        return self._prepared[1]

    def _launcher(self, variant: Variant) -> Launcher:
        if importlib.util.find_spec("ptx_emulator") is None:
            raise ExecutorUnavailableError(
                "executor 'emulator'",
                expected="the package ptx_emulator, which an exported copy of the library travels without",
                got="none",
                fix="install dsl_kernels or ptx-emulator, or name executor 'interpreter' or 'cuda'",
            )
        from .expr import evaluate
        from .runtime import artifact as artifacts
        from .runtime import bundle, store

        # By name: an exported copy of the library may import no package beside torch and its DSL.
        emulator = importlib.import_module("ptx_emulator")
        artifact, code = store.fetch(variant, bundle.PTX)
        ptx = code.decode()
        if self.edit is not None:
            ptx = self.edit(ptx)
        schedule = programs.get(variant.op).schedule(variant.knobs, get_arch(variant.arch))
        roles = {
            role.name: range(
                schedule.first_thread(role.name) // 32, schedule.first_thread(role.name) // 32 + role.warps
            )
            for role in schedule.roles
        }

        def tensor_map(
            spec: artifacts.TensorMap, operands: Mapping[str, Any], sizes: Mapping[str, int]
        ) -> Any:
            return emulator.TensorMap(
                operands[spec.operand],
                box=spec.box,
                swizzle={"NONE": "none"}.get(spec.swizzle, spec.swizzle),
                dims=[evaluate(text, sizes) for text in spec.global_dims],
                strides=[evaluate(text, sizes) for text in spec.global_strides],
                fill="zero" if spec.oob_fill == "NONE" else "nan",
                dtype=_element_type(spec.dtype),
            )

        shared = [spec for spec in programs.get(variant.op).declared_operands(variant.knobs) if spec.peers]

        @library_errors()
        def launch(operands: Mapping[str, Any], dims: Mapping[str, int]) -> None:
            sizes = {**dims, **{name: operands[name] for name in artifact.scalars}}
            grid = tuple(evaluate(text, sizes) for text in artifact.grid)
            if not all(grid):
                return
            maps = {spec.name: spec for spec in artifact.tensor_maps}
            args: list[Any] = []
            for param in artifact.params:
                if param.kind == "pointer":
                    args.append(operands[param.source])
                elif param.kind == "tensormap":
                    args.append(tensor_map(maps[param.source], operands, sizes))
                elif param.source in sizes:
                    args.append(sizes[param.source])
                else:
                    args.append(evaluate(param.source, sizes))
            # What other ranks hold, which the kernel reaches from this rank's operands.
            memory = [view for spec in shared for view in views(operands[spec.name], operands[spec.peers])]
            self.report = emulator.launch(
                ptx,
                grid,
                artifact.block,
                args,
                cluster=artifact.cluster,
                dynamic_smem=artifact.dynamic_smem,
                interleaving=self.interleaving,
                entry=artifact.entry,
                check=self.check,
                roles=roles,
                names=[param.name for param in artifact.params],
                registers_per_thread=artifact.resources.registers,
                strict_fences=self.strict,
                strict_lapping=self.strict,
                strict_races=self.strict,
                strict_exits=True,
                trace=self.trace,
                memory=memory,
            )

        return _InTorch(launch)


def _element_type(enumerator: str) -> str:
    """PTX's name of a tensor map's element type, from the driver's."""
    name = enumerator.lower()
    return DTYPES[name].ptx if name in DTYPES else name


EXECUTORS: dict[str, Callable[[], Executor]] = {
    "cuda": Cuda,
    "interpreter": Interpreter,
    "emulator": Emulator,
}


def get(name: str) -> Executor:
    """The executor of that name.

    Raises:
        UnknownNameError: there is no such executor.
    """
    require_known("executor", name, EXECUTORS, "executor")
    return EXECUTORS[name]()


@checked
def for_device(device_type: str, name: str | None) -> str:
    """The executor for tensors of a device type: the one named, or cuda for CUDA tensors.

    Raises:
        UnknownNameError: there is no such executor.
        ExecutorUnavailableError: CPU tensors and no named executor, or an executor for other devices.
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
    require_known("executor", name, EXECUTORS, "executor")
    if device_type != ("cuda" if name == "cuda" else "cpu"):
        raise ExecutorUnavailableError(
            "executor",
            expected="CUDA tensors for 'cuda', CPU tensors for the others",
            got=f"executor {name!r} with {device_type} tensors",
            fix="move the tensors, or name another executor",
        )
    return name
