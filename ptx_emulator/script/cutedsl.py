"""CuTe DSL's launches: the emulator evaluates the printed host function and never calls its machine code.

The DSL compiles as usual, without a device. Evaluating the printed host function (`hostir`) tells what a call
of the compiled function would launch: the configuration, the bytes of the parameters and the descriptors of
tensor maps. None of the DSL's libraries is replaced, and a launch calls none of them.
"""

from __future__ import annotations

import ctypes
import importlib.util
import struct
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .driver import ATTRIBUTE_NAMES, CLUSTER, encode_tiled
from .errors import UnsupportedCall
from .hooks import Patches
from .hostir import HostProgram
from .session import Kernel, Session

# cudaLaunchConfig_t: grid, block, bytes of shared memory, stream, address and number of the attributes.
_CONFIG = struct.Struct("<6IQQQI")
_ATTRIBUTE_BYTES = 72


def variables(session: Session, folder: Path) -> dict[str, str]:
    """Environment variables: the DSL keeps its PTX, compiles for the architecture and caches nothing."""
    values = {
        "ARCH": session.device.arch.name,
        "KEEP_PTX": "1",
        "LINEINFO": "1",
        "DUMP_DIR": str(folder),
        "DISABLE_FILE_CACHING": "1",
    }
    # `cute.jit(is_experimental=True)` reads the second.
    prefixes = ("CUTE_DSL", "CUTE_EXPERIMENTAL_DSL")
    return {f"{prefix}_{name}": value for prefix in prefixes for name, value in values.items()}


class _Programs:
    """The host function of each compiled function, and the calls that it may make."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._programs: weakref.WeakKeyDictionary[Any, HostProgram] = weakref.WeakKeyDictionary()
        self.calls: dict[str, Callable[..., int]] = {
            "_cudaGetDevice": self._device,
            "_cudaSetDevice": lambda p, device: 0,
            "_cudaDeviceGetAttribute": self._attribute,
            "_cuTensorMapEncodeTiled": lambda p, *arguments: encode_tiled(*arguments),
            "cuda_dialect_assert_success": self._succeeded,
            "cuda_dialect_init_library_once": lambda p, *_: 0,
            "cuda_dialect_get_error_name": lambda p, error: p.symbol_text(f"CUDA error {error}"),
            "cuda_dialect_print_on_error": lambda p, error: 0,
            "printf": self._print,
            "puts": self._print,
        }

    def _print(self, program: HostProgram, *arguments: int) -> int:
        text = [_c_string(a) for a in arguments if a > 4096]
        self.session.note("the host function printed: " + " ".join(text).strip())
        return 0

    def _succeeded(self, program: HostProgram, error: int, *_: int) -> int:
        if error:
            raise UnsupportedCall(
                "a driver's call in CuTe DSL's host function",
                got=f"CUDA error {error}",
                fix="correct its arguments",
            )
        return 0

    def _device(self, program: HostProgram, to: int) -> int:
        ctypes.c_int32.from_address(to).value = 0
        return 0

    def _attribute(self, program: HostProgram, to: int, attribute: int, device: int) -> int:
        from .driver import Driver

        ctypes.c_int32.from_address(to).value = Driver(self.session).attribute(attribute)
        return 0

    def of(self, compiled: Any) -> HostProgram:
        program = self._programs.get(compiled)
        if program is None:
            ptx = compiled.__ptx__
            if compiled.ir_module is None or not ptx:
                raise UnsupportedCall(
                    "a compiled CuTe DSL function",
                    got="one without its printed host function or PTX, as those loaded from a binary are",
                    fix="compile it within the check",
                )
            program = HostProgram(
                compiled.ir_module,
                {
                    **self.calls,
                    "_cudaLaunchKernelEx": self._launcher(ptx, _configured),
                    "_cudaLaunchKernel": self._launcher(ptx, _plain),
                },
            )
            self._programs[compiled] = program
        return program

    def _launcher(self, ptx: str, read: Callable[..., tuple[Any, ...]]) -> Callable[..., int]:
        def launch(program: HostProgram, *arguments: int) -> int:
            handle, grid, block, smem, stream, attributes, params = read(arguments)
            name = program.name_at(handle) or ""
            kernel = _entry(ptx, name)
            cluster = next((value for key, value in attributes if key == CLUSTER), None)
            names = [ATTRIBUTE_NAMES[key] for key, value in attributes if key in ATTRIBUTE_NAMES and value[0]]

            def parameters(sizes: Any) -> list[bytes]:
                pointers = (ctypes.c_uint64 * len(sizes)).from_address(params) if sizes else ()
                return [ctypes.string_at(p, n) for p, n in zip(pointers, sizes, strict=True)]

            self.session.launch(
                kernel, grid, block, parameters, source="CuTe DSL", cluster=cluster, dynamic_smem=smem,
                stream=stream, attributes=names,
            )  # fmt: skip
            return 0

        return launch

    def call(self, compiled: Any, addresses: list[Any]) -> int:
        """Do what a call of the compiled function with these arguments would do; gives its result."""
        program = self.of(compiled)
        name = compiled.function_name
        if name not in program.functions:
            raise UnsupportedCall(
                f"the host function {name}", got="no text of it", fix="report it with the program"
            )
        pointers = [int(a.value or 0) if isinstance(a, ctypes.c_void_p) else int(a) for a in addresses]
        values = [program.argument(name, i, pointers[i]) for i in range(program.arity(name))]
        result = program.run(name, values)
        return result if isinstance(result, int) else 0


def _configured(arguments: tuple[int, ...]) -> tuple[Any, ...]:
    config, handle, params = arguments
    *sizes, smem, stream, attributes, count = _CONFIG.unpack(ctypes.string_at(config, _CONFIG.size))
    named = []
    for i in range(count):
        # A launch attribute holds its number at byte 0 and its value from byte 8 on.
        key, *value = struct.unpack("<I4x3I", ctypes.string_at(attributes + i * _ATTRIBUTE_BYTES, 20))
        named.append((key, value))
    return handle, sizes[:3], sizes[3:6], smem, stream, named, params


def _plain(arguments: tuple[int, ...]) -> tuple[Any, ...]:
    handle, gx, gy, gz, bx, by, bz, params, smem, stream = arguments
    return handle, (gx, gy, gz), (bx, by, bz), smem, stream, [], params


def _entry(ptx: str, variable: str) -> Kernel:
    """The entry whose handle a module variable holds; the variable's name ends in the entry's."""
    from ..launch import _parse

    entries = _parse(ptx).entries
    names = [name for name in entries if variable.endswith("_" + name) or variable == name]
    if not names:
        raise UnsupportedCall(
            "CuTe DSL's host function",
            got=f"a launch of {variable!r}, of which the PTX has no entry ({', '.join(entries)})",
            fix="report it with the program",
        )
    return Kernel(ptx, max(names, key=len))


def _c_string(address: int) -> str:
    return ctypes.string_at(address).decode("utf-8", "replace")


class _Bound:
    """The result of `to(device)`: the function for the one device."""

    def __init__(self, compiled: Any) -> None:
        self._compiled = compiled

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiled, name)


def _called_once(session: Session) -> Callable[..., float]:
    """Replaces the DSL's benchmark: calls the function once, with its first arguments."""

    def benchmark(function: Any, *args: Any, **kwargs: Any) -> float:
        generator = kwargs.get("workspace_generator")
        arguments = generator() if generator else kwargs.get("kernel_arguments")
        session.note("benchmarks call once and say 1 us")
        function(*getattr(arguments, "args", ()), **getattr(arguments, "kwargs", {}))
        return 1.0

    return benchmark


@contextmanager
def install(session: Session) -> Iterator[None]:
    """Evaluate calls of compiled functions while the context is open."""
    from cutlass.cutlass_dsl import cutlass as dsls
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction as Compiled
    from cutlass.utils.hardware_info import HardwareInfo

    from . import cutedsl_tvm_ffi

    patches, programs = Patches(), _Programs(session)
    sms = session.device.sms
    environments = [
        getattr(dsls, name)._get_dsl().envar
        for name in ("CuTeDSL", "CuteExperimentalDSL")
        if hasattr(dsls, name)
    ]
    try:
        if importlib.util.find_spec("tvm_ffi") is not None:
            programs.calls.update(cutedsl_tvm_ffi.library_calls())
            cutedsl_tvm_ffi.install(session, patches, programs.of)
        patches.set(Compiled, "run_compiled_program", lambda self, addresses: programs.call(self, addresses))
        patches.set(Compiled, "to", lambda self, device=None: _Bound(self))
        patches.set(HardwareInfo, "get_max_active_clusters", lambda self, size, *_, **__: max(1, sms // size))
        for name in ("keep_ptx", "lineinfo", "disable_file_caching"):
            for environment in environments:
                patches.set(environment, name, True)
        yield
    finally:
        patches.undo()


@contextmanager
def install_benchmark(session: Session, module: str) -> Iterator[None]:
    """Replace the benchmark of a module of the DSL while the context is open."""
    patches = Patches()
    try:
        patches.set(sys.modules[module], "benchmark", _called_once(session))
        yield
    finally:
        patches.undo()
