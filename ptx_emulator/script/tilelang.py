"""TileLang's launches: its host code runs as usual and calls recording functions instead of its kernels.

TileLang compiles host code that checks arguments, makes tensor maps and calls each kernel by its name. Here
the device code becomes PTX and is not linked to the host code, so that the names resolve to functions of this
module.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import shlex
import struct
import subprocess
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..descriptors import SIZE, Descriptor
from ..errors import CompileError, LaunchError, PtxEmulatorError
from .errors import UnsupportedCall
from .hooks import Patches
from .session import Kernel, Session

_AXES = ("blockIdx.x", "blockIdx.y", "blockIdx.z", "threadIdx.x", "threadIdx.y", "threadIdx.z")
_CLUSTER = ".cluster_dim_"
_DYNAMIC = "tirx.use_dyn_shared_memory"
# Launch parameters that do not affect results here; they take no argument.
_FLAGS = frozenset(
    {
        "tirx.use_programtic_dependent_launch",
        "tirx.use_programmatic_dependent_launch",
        "tirx.use_cooperative_launch",
    }
)


def variables(session: Session) -> dict[str, str]:
    """Environment variables with which TileLang compiles afresh and prints nothing."""
    return {
        "TILELANG_DISABLE_CACHE": "1",
        "TILELANG_AUTO_TUNING_DISABLE_CACHE": "1",
        "TILELANG_PRINT_ON_COMPILATION": "0",
        "TILELANG_EXECUTION_BACKEND": "tvm_ffi",
    }


def _address(value: Any) -> int:
    if value is None:
        return 0
    return int(value.value or 0) if isinstance(value, ctypes.c_void_p) else int(value)


def _packed(value: Any, dtype: str, size: int) -> bytes:
    """A parameter's bytes; a tensor map's come from where the host code wrote them."""
    if dtype == "handle":
        address = _address(value)
        return ctypes.string_at(address, SIZE) if size == SIZE else struct.pack("<Q", address)
    if dtype.startswith("float"):
        if dtype == "bfloat16" or size not in (2, 4, 8):
            raise UnsupportedCall("a TileLang kernel", got=f"a scalar of {dtype}", fix="pass float32")
        return struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], float(value))
    if dtype == "bfloat16":
        return struct.pack("<f", float(value))[2:]
    return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _immortal(function: Callable[..., Any]) -> Any:
    """A TVM function that calls a Python one and is never destroyed.

    Host modules hold the functions that they called until the process ends, after Python has shut down.
    """
    import tvm_ffi

    made = tvm_ffi.convert(function)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(made))
    return made


class _Compiled:
    """The kernels of one compiled TileLang function, which its host code looks up by name."""

    def __init__(self, session: Session, device_mod: Any, ptx: str) -> None:
        self.launches: dict[str, Callable[..., None]] = {}
        self.error: PtxEmulatorError | None = None  # a launch's exception; TVM passes it on as another type
        self._functions: dict[str, Any] = {}
        for function in device_mod.functions.values():
            if "global_symbol" in function.attrs:
                name = str(function.attrs["global_symbol"])
                self.launches[name] = _launcher(session, Kernel(ptx, name), function)

    def register(self) -> set[str]:
        """Register the kernels as TVM functions; gives their names.

        A host module looks a kernel up once, at its first call, so that each kernel keeps one function.
        """
        import tvm_ffi

        me = weakref.ref(self)

        def forward(name: str) -> Callable[..., None]:
            def launch(*args: Any) -> None:
                compiled = me()
                if compiled is None:
                    raise UnsupportedCall(
                        f"the kernel {name}", got="a launch after the check", fix="launch it within the check"
                    )
                try:
                    compiled.launches[name](*args)
                except PtxEmulatorError as error:
                    compiled.error = error
                    raise

            return launch

        for name in self.launches:
            if name not in self._functions:
                self._functions[name] = _immortal(forward(name))
            tvm_ffi.register_global_func(name, self._functions[name], override=True)
        return set(self.launches)


def _launcher(session: Session, kernel: Kernel, function: Any) -> Callable[..., None]:
    attrs = function.attrs
    key = "tirx.kernel_launch_params" if "tirx.kernel_launch_params" in attrs else "tir.kernel_launch_params"
    tags = [str(tag) for tag in attrs[key]]
    dtypes = [str(p.dtype) for p in function.params]
    fixed = [int(n) for n in attrs["cluster_dims"]] if "cluster_dims" in attrs else None

    def launch(*args: Any) -> None:
        values, rest = args[: len(dtypes)], list(args[len(dtypes) :])
        sizes, smem, flags = dict.fromkeys(_AXES, 1), 0, []
        cluster: list[int] = []
        for tag in tags:
            if tag in _FLAGS:
                flags.append("dependent" if "dependent" in tag else "cooperative")
            elif not rest:
                raise LaunchError(f"kernel {kernel.entry}: no value for the launch parameter {tag}")
            elif tag in sizes:
                sizes[tag] = int(rest.pop(0))
            elif tag == _DYNAMIC or "dyn_shared" in tag:
                smem = int(rest.pop(0))
            elif tag.startswith("clusterIdx"):
                rest.pop(0)
            elif _CLUSTER in tag:
                cluster.append(int(rest.pop(0)))
            else:
                raise UnsupportedCall(
                    "a TileLang kernel", got=f"the launch parameter {tag}", fix="report it with the program"
                )

        def parameters(bytes_of: Sequence[int]) -> list[bytes]:
            return [_packed(v, d, n) for v, d, n in zip(values, dtypes, bytes_of, strict=True)]

        extents = list(sizes.values())
        session.launch(
            kernel, extents[:3], extents[3:], parameters, source="TileLang", cluster=cluster or fixed,
            dynamic_smem=smem, attributes=flags,
        )  # fmt: skip

    return launch


def _tensor_map(*args: Any) -> int:
    """Replaces TVM's `__tvm_tensormap_create_tiled`.

    Its arguments: map, type, rank, address, dims, strides, box, steps, interleave, swizzle, L2 promotion,
    fill.
    """
    rank = int(args[2])
    groups = [[int(v) for v in args[4 + i * rank : 4 + (i + 1) * rank]] for i in range(4)]
    interleave, swizzle, _, fill = (int(v) for v in args[4 + 4 * rank : 8 + 4 * rank])
    dims, strides, box, steps = groups
    descriptor = Descriptor(
        _address(args[3]), int(args[1]), dims, strides[1:], box, steps, swizzle, interleave, fill
    )
    descriptor.row(0, "of a TileLang kernel")
    ctypes.memmove(_address(args[0]), descriptor.encode(), SIZE)
    return 0


class _OnDevice:
    """A tensor whose DLPack reports CUDA."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._tensor.__dlpack__(**{k: v for k, v in kwargs.items() if k == "max_version"})

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


def _compile(session: Session, folder: Path, source: str, configs: dict[str, Any]) -> str:
    """The PTX of TileLang's CUDA source, compiled with the flags that the pass configs ask for."""
    from tilelang.contrib import nvcc

    flags = [f for f in nvcc.default_compile_options() if f.startswith("-I")]
    if configs.get("tl.enable_fast_math"):
        flags.append("--use_fast_math")
    extra = configs.get("tl.device_compile_flags") or []
    for item in [extra] if isinstance(extra, str) else extra:
        flags += shlex.split(str(item))
    stem = hashlib.sha256((source + str(flags)).encode()).hexdigest()[:16]
    cu, ptx = folder / f"{stem}.cu", folder / f"{stem}.ptx"
    if not ptx.exists():
        cu.write_text(source)
        wanted = (f"-arch={session.device.arch.name}", "-std=c++20", "-w", "-lineinfo", *flags)
        _run_nvcc([nvcc.get_nvcc_compiler(), "--ptx", *wanted, "-o", ptx.name, cu.name], folder)
    return ptx.read_text()


def _run_nvcc(command: Sequence[str], folder: Path) -> None:
    """Run the compiler that TileLang itself uses.

    Raises:
        CompileError: it is missing, or refuses the source.
    """
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, errors="replace", check=False
        )
        said = (done.stderr + done.stdout).strip()
        got = f"exit status {done.returncode}: {said[-1500:]}" if done.returncode else ""
    except OSError as error:
        got = str(error)
    if got:
        raise CompileError(
            command[0],
            expected="to compile TileLang's CUDA source to PTX",
            got=got,
            fix="correct the program; or install CUDA 13's nvcc and set CUDA_HOME",
        )


def _lowering(session: Session, folder: Path) -> Callable[..., Any]:
    """Replaces TileLang's lowering: device code becomes PTX and is not linked to the host code."""
    from tilelang import tvm

    engine = importlib.import_module("tilelang.engine.lower")

    def lower(func_or_mod: Any, context: Any, *, runtime_only: bool, **_: Any) -> Any:
        host_mod, device_mod, params, target, target_host = engine.lower_to_host_device_ir(
            func_or_mod, context, runtime_only=runtime_only
        )
        source = engine.device_codegen_without_compile(device_mod, context).inspect_source()
        current = tvm.transform.PassContext.current().config
        ptx = _compile(session, folder, source, {str(k): v for k, v in current.items()})
        rt_mod = engine.host_codegen(host_mod, context)
        artifact = engine.CompiledArtifact(
            host_mod, device_mod, params, source, rt_mod=rt_mod, target=target, target_host=target_host
        )
        _made[rt_mod] = _Compiled(session, device_mod, ptx)
        return artifact

    return lower


class _Kernels:
    """The kernels of each compiled function, by the handle of its host module."""

    def __init__(self) -> None:
        self._items: list[tuple[Any, _Compiled]] = []
        self.registered: set[str] = set()

    def __setitem__(self, module: Any, compiled: _Compiled) -> None:
        self._items.append((module, compiled))

    def find(self, module: Any) -> _Compiled:
        for known, compiled in self._items:
            if known.same_as(module):
                return compiled
        raise UnsupportedCall(
            "a TileLang function",
            got="one that was compiled before the check",
            fix="compile it within the check",
        )

    def register(self, compiled: _Compiled) -> None:
        self.registered |= compiled.register()

    def clear(self) -> None:
        self._items.clear()
        self.registered = set()


_made = _Kernels()


def _executable(get: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def get_executable(self: Any) -> Any:
        import torch
        import tvm_ffi

        kernels, executable = _made.find(self.rt_mod), get(self)

        def call(*args: Any) -> Any:
            _made.register(kernels)
            on_device = [
                tvm_ffi.from_dlpack(_OnDevice(a.detach())) if isinstance(a, torch.Tensor) else a for a in args
            ]
            kernels.error = None
            try:
                return executable(*on_device)
            except Exception:
                if kernels.error is not None:
                    raise kernels.error from None
                raise

        return call

    return get_executable


@contextmanager
def install(session: Session, folder: Path) -> Iterator[None]:
    """Record the launches of TileLang's compiled functions while the context is open."""
    import tvm_ffi
    from tilelang.env import env
    from tilelang.jit.adapter.tvm_ffi import TVMFFIKernelAdapter

    # Functions of the package shadow some of its modules: import the modules by name.
    tuner, engine, jit_kernel, profiler = (
        importlib.import_module(f"tilelang.{name}")
        for name in ("autotuner.tuner", "engine.lower", "jit.kernel", "profiler")
    )
    patches = Patches()
    replaced = {"__tvm_set_device": lambda *_: 0, "__tvm_tensormap_create_tiled": _tensor_map}
    old = {name: tvm_ffi.get_global_func(name, allow_missing=True) for name in replaced}
    prepare = jit_kernel.prepare_tvm_ffi_callee_allocated_outputs

    def bench(function: Callable[[], Any], *_: Any, **__: Any) -> float:
        session.note("benchmarks call once and say 1 ms")
        function()
        return 1.0

    def first(self: Any, *_: Any, **__: Any) -> Any:
        """Replaces the autotuner's run: compiles the first configuration and does not time it."""
        session.note("autotuners take their first configuration")
        configs = self.configs
        if callable(configs):
            args, kwargs = self._kernel_parameters
            configs = configs(*args, **dict(kwargs))
        config = dict(next(iter(configs), {}))
        own = {tuner._PASS_CONFIGS_KEY: config["pass_configs"]} if "pass_configs" in config else {}
        kernel = self._ensure_jit_functions()[0](
            **{k: v for k, v in config.items() if k != "pass_configs"}, **own
        )
        return tuner.AutotuneResult(
            latency=1.0,
            config=config,
            libcode=kernel.get_kernel_source(),
            func=kernel.prim_func,
            kernel=kernel,
        )

    try:
        for name, function in replaced.items():
            tvm_ffi.register_global_func(name, _immortal(function), override=True)
        patches.set(engine, "_lower_with_context_impl", _lowering(session, folder))
        patches.set(TVMFFIKernelAdapter, "_get_executable", _executable(TVMFFIKernelAdapter._get_executable))
        patches.set(
            jit_kernel,
            "prepare_tvm_ffi_callee_allocated_outputs",
            lambda func, out, **_: prepare(func, out, supports_callee_allocated_outputs=False),
        )
        patches.set(profiler, "do_bench", bench)
        patches.set(tuner.AutoTuner, "run", first)
        enabled = env.is_cache_enabled()
        env.disable_cache()
        yield
    finally:
        if enabled:
            env.enable_cache()
        patches.undo()
        for name in sorted(_made.registered):
            tvm_ffi.registry.remove_global_func(name)
        for name, previous in old.items():
            if previous is None:
                tvm_ffi.registry.remove_global_func(name)
            else:
                tvm_ffi.register_global_func(name, previous, override=True)
        _made.clear()
