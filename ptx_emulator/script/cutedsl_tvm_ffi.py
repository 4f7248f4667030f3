"""CuTe DSL's functions with TVM's FFI (`--enable-tvm-ffi`).

A compiled function becomes an FFI function whose code is a Python callback. The FFI converts the arguments to
packed values with pointers to DLPack tensors, and the callback evaluates the printed host function, which
reads these values.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

from .hooks import Patches
from .hostir import HostProgram
from .session import Session

_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p)


class _OnDevice:
    """A tensor that exports DLPack through Python, where torch's functions report CUDA as its device."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


class _Calls:
    """Replacements of compiled functions; `raised` carries exceptions, which cannot pass through C code."""

    def __init__(self, session: Session, program: Callable[[Any], HostProgram]) -> None:
        import tvm_ffi

        self.session, self.program = session, program
        self.from_dlpack = tvm_ffi.from_dlpack
        self.raised: list[BaseException] = []

    def function(self, compiled: Any) -> Any:
        """An FFI function that evaluates the host function that the DSL printed for a compiled one."""
        import tvm_ffi

        reference: Any = weakref.ref(compiled)

        def evaluated(handle: int | None, arguments: int | None, count: int, result: int | None) -> int:
            try:
                target = reference()
                status = self.program(target).run(
                    "__tvm_ffi_" + target.function_name, [handle or 0, arguments or 0, count, result or 0]
                )
                return _status(status)
            except BaseException as error:  # nothing may unwind through C
                self.raised.append(error)
                return 0

        callback = _CALL(evaluated)
        address = int(ctypes.cast(callback, ctypes.c_void_p).value or 0)
        return tvm_ffi.Function.__from_extern_c__(address, keep_alive_object=callback)

    def called(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(compiled: Any, *args: Any, **kwargs: Any) -> Any:
            given = {name: self._given(value) for name, value in kwargs.items()}
            result = original(compiled, *map(self._given, args), **given)
            if self.raised:
                raise self.raised.pop()
            return result

        return call

    def imported(self, value: Any, **options: Any) -> Any:
        """The FFI's tensor over a foreign one; a tensor of the emulated device reports CUDA."""
        import torch

        on_device = isinstance(value, torch.Tensor) and self.session.memory.holds(value)
        return self.from_dlpack(_OnDevice(value) if on_device else value, **options)

    def _given(self, value: Any) -> Any:
        """An argument in the form that the FFI takes."""
        import torch

        if isinstance(value, torch.Tensor):
            return self.imported(value)
        if isinstance(value, tuple | list):
            items = [self._given(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value


def _status(value: Any) -> int:
    return ctypes.c_int32(value if isinstance(value, int) else 0).value


def library_calls() -> dict[str, Callable[..., int]]:
    """The calls that a printed host function makes into the FFI's library, which stores error messages."""
    import torch
    from tvm_ffi.libinfo import find_libtvm_ffi

    library = ctypes.CDLL(find_libtvm_ffi())

    def raises(name: str, count: int) -> Callable[..., int]:
        function = library[name]
        function.restype = None
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32)[:count]

        def call(program: HostProgram, *arguments: int) -> int:
            function(*arguments)
            return 0

        return call

    return {
        "TVMFFIErrorSetRaisedFromCStr": raises("TVMFFIErrorSetRaisedFromCStr", 2),
        "TVMFFIErrorSetRaisedFromCStrParts": raises("TVMFFIErrorSetRaisedFromCStrParts", 3),
        "TVMFFIEnvGetStream": lambda program, kind, device: torch.cuda.current_stream().cuda_stream,
    }


def install(session: Session, patches: Patches, program: Callable[[Any], HostProgram]) -> None:
    """From now on, evaluate calls of functions that are compiled with TVM's FFI."""
    import tvm_ffi
    from cutlass.cutlass_dsl import tvm_ffi_provider as provider

    calls = _Calls(session, program)
    patches.set(tvm_ffi, "from_dlpack", calls.imported)
    patches.set(
        provider.TVMFFIJitCompiledFunctionBase,
        "_create_tvm_ffi_function",
        lambda self: calls.function(self),
    )
    for kind in (provider.TVMFFIJitCompiledFunction, provider.TVMFFIJitCompiledFunctionWithKwargs):
        patches.set(kind, "__call__", calls.called(kind.__call__))
