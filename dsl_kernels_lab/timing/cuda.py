"""Launchable kernels of CUDA C++, which NVRTC compiles for the current GPU, or PTX; for torch's context."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from dsl_kernels.errors import LaunchError, ToolchainError

SHARED_LIMIT = 200 << 10


class Module:
    """The `extern "C"` kernels of a file, or those of a PTX text, on one GPU.

    Raises:
        ToolchainError: NVRTC is missing or refuses the file; the error quotes its log.
        LaunchError: the driver refuses the code.
    """

    def __init__(self, source: Path | str, defines: Mapping[str, int] | None = None, device: int = 0) -> None:
        import torch

        properties = torch.cuda.get_device_properties(device)
        self.device = device
        self.sms: int = properties.multi_processor_count
        arch = f"sm_{properties.major}{properties.minor}a"
        if isinstance(source, str):
            code, title = source.encode(), "PTX"
        else:
            code, title = cubin(source, arch, tuple(sorted((defines or {}).items()))), source.name
        self._library = check(_driver().cuLibraryLoadData(code, None, None, 0, None, None, 0), title)
        self._functions: dict[str, Any] = {}

    def function(self, name: str) -> Any:
        """The driver's handle of a kernel, which may use `SHARED_LIMIT` bytes of dynamic shared memory."""
        if name not in self._functions:
            driver = _driver()
            kernel = check(driver.cuLibraryGetKernel(self._library, name.encode()), name)
            function = check(driver.cuKernelGetFunction(kernel), name)
            limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            check(driver.cuFuncSetAttribute(function, limit, SHARED_LIMIT), f"shared memory of {name}")
            self._functions[name] = function
        return self._functions[name]

    def launch(
        self,
        name: str,
        grid: int,
        block: int,
        arguments: Sequence[Any],
        shared: int = 0,
        *,
        dependent: bool = False,
    ) -> None:
        """Launch on torch's current stream.

        Args:
            name: The kernel.
            grid: Blocks.
            block: Threads per block.
            arguments: Tensors and None (pointers), ctypes values, and ints (32 bits).
            shared: Bytes of dynamic shared memory per block.
            dependent: A programmatic dependent launch: it may begin before the previous launch ends, and the
                kernel itself waits for that.

        Raises:
            LaunchError: the driver refuses the launch.
        """
        import torch

        values = [_argument(value) for value in arguments]
        stream = torch._C._cuda_getCurrentRawStream(self.device)
        packed = (tuple(value for _, value in values), tuple(kind for kind, _ in values))
        function, shape = self.function(name), ((grid, 1, 1), (block, 1, 1))
        if dependent:
            done = _driver().cuLaunchKernelEx(_config(*shape, shared, stream), function, packed, 0)
        else:
            done = _driver().cuLaunchKernel(function, *shape[0], *shape[1], shared, stream, packed, 0)
        check(done, f"launch {name}")


def _argument(value: Any) -> tuple[Any, Any]:
    if value is None:
        return ctypes.c_void_p, 0
    if isinstance(value, int):
        return ctypes.c_int, value
    if isinstance(value, ctypes._SimpleCData):
        return type(value), value.value
    return ctypes.c_void_p, value.data_ptr()


def _config(grid: tuple[int, int, int], block: tuple[int, int, int], shared: int, stream: int) -> Any:
    """The configuration of a programmatic dependent launch."""
    driver = _driver()
    attribute, value = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    value.programmaticStreamSerializationAllowed = 1
    attribute.value = value
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = block
    config.sharedMemBytes, config.hStream = shared, stream
    config.attrs, config.numAttrs = [attribute], 1
    return config


def _driver() -> Any:
    from cuda.bindings import driver

    return driver


@lru_cache(maxsize=16)
def cubin(source: Path, arch: str, defines: tuple[tuple[str, int], ...] = ()) -> bytes:
    """Compile a file with NVRTC.

    Raises:
        ToolchainError: NVRTC is missing or refuses the file.
    """
    fix = "`pip install nvidia-cuda-nvrtc`, or install the CUDA toolkit"
    try:
        from cuda.bindings import nvrtc

        _, program = nvrtc.nvrtcCreateProgram(source.read_bytes(), source.name.encode(), 0, [], [])
    except (ImportError, RuntimeError) as error:
        raise ToolchainError("NVRTC", expected="a usable library", got=str(error), fix=fix) from None
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17"]
    options += [f"-D{name}={value}".encode() for name, value in defines]
    if nvrtc.nvrtcCompileProgram(program, len(options), options)[0]:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise ToolchainError(
            "NVRTC",
            expected=f"{source.name} to compile",
            got=log.decode(errors="replace").strip("\0 \n"),
            fix=fix,
        )
    _, size = nvrtc.nvrtcGetCUBINSize(program)
    code = b" " * size
    nvrtc.nvrtcGetCUBIN(program, code)
    return code


def check(result: tuple[Any, ...], what: str) -> Any:
    """The value that a driver call returned.

    Raises:
        LaunchError: the call failed.
    """
    if result[0]:
        raise LaunchError(
            what,
            expected="success",
            got=str(result[0]),
            fix="see the CUDA driver's error; `doctor` checks it",
        )
    return result[1] if len(result) == 2 else None
