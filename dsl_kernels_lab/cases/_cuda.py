"""CUDA C kernels of the cases, compiled by NVRTC at their first launch and run on torch's current stream."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from dsl_kernels.errors import LaunchError, ToolchainError


class Source:
    """CUDA C text whose functions can be launched.

    Args:
        defines: preprocessor symbols, for constants that must be known at compile time.
    """

    def __init__(self, text: str, name: str, defines: Mapping[str, int] | None = None) -> None:
        self.text, self.name, self.defines = text, name, dict(defines or {})
        self._functions: dict[str, Any] = {}

    def options(self, arch: str) -> list[str]:
        """Options of NVRTC, which nvcc spells the same way."""
        symbols = [f"-D{key}={value}" for key, value in self.defines.items()]
        return [f"--gpu-architecture={arch}", "--std=c++17", *symbols]

    def launch(
        self,
        function: str,
        grid: int,
        block: int,
        *arguments: Any,
        shared: int = 0,
        stream: int | None = None,
    ) -> None:
        """Launch a function: tensors pass their address, ints are 64-bit, floats 32-bit.

        Raises:
            ToolchainError: NVRTC is missing or refuses the source.
            LaunchError: the driver refuses.
        """
        import torch
        from cuda.bindings import driver

        handle = self._functions.get(function) or self._load(function)
        kinds: list[Any] = []
        values: list[Any] = []
        for argument in arguments:
            if isinstance(argument, torch.Tensor):
                kinds.append(ctypes.c_void_p)
                values.append(argument.data_ptr())
            else:
                kinds.append(ctypes.c_float if isinstance(argument, float) else ctypes.c_longlong)
                values.append(argument)
        if stream is None:
            stream = torch._C._cuda_getCurrentRawStream(torch.cuda.current_device())
        packed = (tuple(values), tuple(kinds))
        check(
            driver.cuLaunchKernel(handle, grid, 1, 1, block, 1, 1, shared, stream, packed, 0),
            f"launch {function}",
        )

    def _load(self, function: str) -> Any:
        from cuda.bindings import driver

        kernel = check(driver.cuLibraryGetKernel(self._library, function.encode()), function)
        handle = check(driver.cuKernelGetFunction(kernel), function)
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        static = check(
            driver.cuFuncGetAttribute(
                driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, handle
            ),
            function,
        )
        check(driver.cuFuncSetAttribute(handle, limit, (227 << 10) - static), f"shared memory of {function}")
        self._functions[function] = handle
        return handle

    @cached_property
    def _library(self) -> Any:
        import torch
        from cuda.bindings import driver

        torch.cuda.current_stream()
        major, minor = torch.cuda.get_device_capability()
        cubin = self.cubin(f"sm_{major}{minor}{'a' if major >= 9 else ''}")
        return check(driver.cuLibraryLoadData(cubin, None, None, 0, None, None, 0), f"load {self.name}")

    def cubin(self, arch: str) -> bytes:
        """Machine code for an architecture.

        Raises:
            ToolchainError: NVRTC is missing or refuses the source.
        """
        fix = "`pip install nvidia-cuda-nvrtc`, or install the CUDA toolkit"
        try:
            from cuda.bindings import nvrtc

            _, program = nvrtc.nvrtcCreateProgram(self.text.encode(), f"{self.name}.cu".encode(), 0, [], [])
        except (ImportError, RuntimeError) as error:
            raise ToolchainError("NVRTC", expected="a usable library", got=str(error), fix=fix) from None
        options = [option.encode() for option in self.options(arch)]
        if nvrtc.nvrtcCompileProgram(program, len(options), options)[0]:
            _, size = nvrtc.nvrtcGetProgramLogSize(program)
            log = b" " * size
            nvrtc.nvrtcGetProgramLog(program, log)
            got = log.decode(errors="replace").strip("\0 \n")
            raise ToolchainError("NVRTC", expected=f"{self.name} to compile", got=got, fix=fix)
        _, size = nvrtc.nvrtcGetCUBINSize(program)
        cubin = b" " * size
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return cubin


def check(result: tuple[Any, ...], what: str) -> Any:
    """The value of a driver call.

    Raises:
        LaunchError: the call failed.
    """
    if result[0]:
        fix = "see the CUDA driver's error; `python -m dsl_kernels doctor` checks the machine"
        raise LaunchError(what, expected="success", got=str(result[0]), fix=fix)
    return result[1] if len(result) == 2 else None
