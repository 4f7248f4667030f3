"""A decode step from a bundle, in a process of its own: no DSL, generator or compiler can be used there.

    python tests/bundled_step.py sm_90a

The PTX of the bundle runs in the emulator, and the step is compared with the references. Each launch also
goes to a fake driver: the bundle's cubin is loaded, the operands are checked, and the arguments of
`cuLaunchKernelEx` are compared with the operands. The observations are printed as JSON.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.abc
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

HIDDEN = ("tilelang", "tvm", "tvm_ffi", "cutlass", "jinja2", "codegen", "triton", "setuptools")
CAPABILITIES = {"sm_90a": (9, 0), "sm_100a": (10, 0)}
SMS = 8


class Hidden(importlib.abc.MetaPathFinder):
    """Hides the DSLs and the generator from import."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        if fullname.split(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"{fullname} is hidden by this test", name=fullname)


def size() -> Any:
    """Two sequences, one of them padded, so that each operation has something to skip."""
    from dsl_kernels_lab.steps import StepSize

    return StepSize(batch=2, context=300, topk=128, heads=16, index_heads=64, ragged=True)


def few_sms() -> Any:
    """Reduce the GPUs to few SMs, as idle CTAs cost the emulator as much time as busy ones."""
    from dsl_kernels.arch import GPUS

    return mock.patch.dict(GPUS, {name: gpu.with_sms(SMS) for name, gpu in GPUS.items()})


def driver_of(arch: str) -> Any:
    """A fake driver that records each launch: the code, the grid, and eight bytes of every parameter."""
    from test_runtime_launch import FakeDriver

    from dsl_kernels.runtime import driver, launch

    class Records(FakeDriver):
        def cuKernelGetFunction(self, kernel: Any) -> Any:
            return self.ok(kernel)

        def cuLaunchKernelEx(self, config: Any, function: Any, parameters: int, extra: Any) -> Any:
            self.launches.append(((config.gridDimX, config.gridDimY, config.gridDimZ), parameters))
            return (self.result,)

    fake, api = Records(CAPABILITIES[arch]), object.__new__(driver.Driver)
    api.api, api.devices, api._contexts = fake, fake.count, {}
    launch.get_driver = lambda: api
    return fake


def watched(fake: Any, seen: list[dict[str, Any]]) -> Any:
    """The emulator's `prepare`, whose launches go to the fake driver as well."""
    from dsl_kernels import executors
    from dsl_kernels.expr import evaluate

    def prepare(self: Any, variant: Any, device: int | None = None) -> Any:
        emulate = real(self, variant, device)
        kernel = executors.Cuda().prepare(variant)
        code, artifact = fake.code, kernel.artifact

        def launch(operands: Any, dims: Any) -> None:
            kernel.check(operands, dims)
            kernel.launch(operands, dims, 0)
            grid, parameters = fake.launches[-1]
            pointers = (ctypes.c_void_p * len(artifact.params)).from_address(parameters)
            addresses = {
                param.source: ctypes.c_uint64.from_address(at).value == operands[param.source].data_ptr()
                for param, at in zip(artifact.params, pointers, strict=True)
                if param.kind == "pointer"
            }
            sizes = {**dims, **{name: operands[name] for name in artifact.scalars}}
            wanted = tuple(evaluate(text, sizes) for text in artifact.grid)
            seen.append(
                {
                    "variant": variant.id,
                    "cubin": hashlib.sha256(code).hexdigest(),
                    "grid": grid == wanted,
                    "pointers": addresses,
                }
            )
            emulate(operands, dims)

        return executors._InTorch(launch)

    real = executors.Emulator.prepare
    return prepare


def main(arch: str) -> None:
    sys.meta_path.insert(0, Hidden())
    sys.path.append(str(Path(__file__).parent / "unit"))
    import dsl_kernels
    from dsl_kernels import executors
    from dsl_kernels_lab import steps
    from dsl_kernels_lab.steps import check

    seen: list[dict[str, Any]] = []
    prepare = watched(driver_of(arch), seen)
    with few_sms(), mock.patch.object(executors.Emulator, "prepare", prepare):
        inputs = steps.draw(size(), seed=4)[0]
        _, checked = check.run_checked(inputs, executor="emulator", arch=arch)
    report = {
        "library": str(Path(dsl_kernels.__file__).parent),
        "failures": {name: comparison.failures for name, comparison in checked.items()},
        "launches": seen,
        "imported": sorted({name.split(".")[0] for name in sys.modules} & set(HIDDEN)),
    }
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
