"""torch's "cuda" while a program is checked: CPU tensors that count as device tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from .hooks import Patches
from .memory import ALIGN, Memory, aligned_copy
from .session import Session
from .torch_streams import classes

KDL_CUDA = 2  # DLPack's device type of CUDA

# Functions whose result may share memory with a host array; on a GPU the result is a copy.
_SHARING = frozenset({"as_tensor", "asarray", "from_numpy", "frombuffer", "to", "cuda", "cpu"})


def _is_cuda(device: Any) -> bool:
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    return str(device).split(":")[0] == "cuda" if device is not None else False


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _device_capsule(capsule: Any) -> Any:
    """The same DLPack capsule, with CUDA as its device."""
    get_name, get_pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    name = get_name(capsule)
    address = get_pointer(capsule, name)
    # DLManagedTensor begins with the tensor (data, device); in DLManagedTensorVersioned 32 bytes precede it.
    at = address + (32 if b"versioned" in name else 0) + 8
    ctypes.c_int32.from_address(at).value = KDL_CUDA
    return capsule


def _mode(session: Session) -> Any:
    """The function mode that intercepts every torch call of the program."""
    import torch
    from torch.overrides import TorchFunctionMode

    memory = session.memory
    is_cuda: Any = torch.Tensor.is_cuda
    device: Any = torch.Tensor.device
    answers = {
        is_cuda.__get__: lambda: True,
        device.__get__: lambda: torch.device("cuda", 0),
        torch.Tensor.get_device: lambda: 0,
        torch.Tensor.__dlpack_device__: lambda: (KDL_CUDA, 0),
        torch.Tensor.pin_memory: None,
    }

    class CudaOnCpu(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if func in answers:
                answer = answers[func]
                if answer is None:
                    return args[0]
                return answer() if memory.holds(args[0]) else func(*args, **kwargs)
            if func is torch.device and args and type(args[0]) is int:
                return torch.device("cuda", args[0])
            if func is torch.Tensor.__dlpack__ and memory.holds(args[0]):
                version = {k: v for k, v in kwargs.items() if k == "max_version"}
                return _device_capsule(func(args[0], **version))
            return _on_cpu(session, func, args, kwargs)

    return CudaOnCpu()


def _backward(session: Session, mode: Any, patches: Patches) -> None:
    """Keep the mode on in backward passes, and count gradients that torch makes itself as device tensors."""
    import torch
    from torch.autograd.function import BackwardCFunction
    from torch.overrides import _get_current_function_mode_stack

    run: Any = torch.autograd._engine_run_backward
    apply = BackwardCFunction.apply

    def run_backward(*args: Any, **kwargs: Any) -> Any:
        if mode in _get_current_function_mode_stack():
            return run(*args, **kwargs)
        with mode:
            return run(*args, **kwargs)

    def of_function(self: Any, *args: Any) -> Any:
        saved = list(_tensors(self.saved_tensors))
        if not saved or any(session.memory.holds(t) for t in saved):
            for tensor in _tensors(args):
                session.memory.adopt(tensor)
        return apply(self, *args)

    patches.set(torch.autograd, "_engine_run_backward", run_backward)
    patches.set(BackwardCFunction, "apply", of_function)


def _on_cpu(session: Session, func: Any, args: Any, kwargs: Any) -> Any:
    """Make a torch call with the CPU instead of "cuda"; count its results as device tensors."""
    import torch

    memory = session.memory
    name = getattr(func, "__name__", "")
    wanted, args, kwargs = _asked(session, name, args, kwargs)
    sources = list(_tensors(args)) + list(_tensors(kwargs))
    result = args[0] if name == "cuda" else func(*args, **kwargs)
    on_device = wanted if wanted is not None else any(memory.holds(t) for t in sources)
    if wanted is not None and name in _SHARING and isinstance(result, torch.Tensor):
        moved = not sources or memory.holds(sources[0]) != wanted
        if moved and (not sources or result.data_ptr() == sources[0].data_ptr()):
            result = result.clone()
    if on_device:
        _align(memory, result, sources)
        for tensor in _tensors(result):
            memory.adopt(tensor)
        graph = session.capturing(0)
        if graph is not None and name != "__get__":
            graph.nodes.append(_again(func, args, kwargs, result, name))
    return result


def _align(memory: Memory, result: Any, sources: list[Any]) -> None:
    """Move new tensors to the alignment of a GPU allocator; those that share memory with an argument stay."""
    import torch

    old = {t.untyped_storage()._cdata for t in sources if t.layout is torch.strided}
    moved: dict[int, Any] = {}
    for tensor in _tensors(result):
        if tensor.layout is not torch.strided or memory.holds(tensor):
            continue
        storage = tensor.untyped_storage()
        if storage._cdata in old or not storage.data_ptr() % ALIGN:
            continue
        if storage._cdata not in moved:
            moved[storage._cdata] = aligned_copy(storage)
        with torch.no_grad():
            tensor.data = torch.empty(0, dtype=tensor.dtype).set_(
                moved[storage._cdata], tensor.storage_offset(), tensor.size(), tensor.stride()
            )


def _asked(session: Session, name: str, args: Any, kwargs: Any) -> tuple[bool | None, Any, Any]:
    """Whether a call asks for the device (None: it names none), and its arguments with the CPU instead."""
    import torch

    cpu = torch.device("cpu")
    wanted: bool | None = None
    if kwargs.get("device") is not None:
        wanted = _is_cuda(kwargs["device"])
        if wanted:
            kwargs["device"] = cpu
    kwargs.pop("pin_memory", None)
    if name in ("cuda", "cpu"):
        return name == "cuda", args, kwargs
    if name == "to":
        args = list(args)
        for i, value in enumerate(args[1:], 1):
            if isinstance(value, torch.Tensor):
                wanted = session.memory.holds(value)
            elif isinstance(value, str | torch.device) or (type(value) is int and i == 1):
                wanted = _is_cuda(value)
                args[i] = cpu if wanted else value
    return wanted, tuple(args), kwargs


def _again(func: Any, args: Any, kwargs: Any, result: Any, name: str) -> Callable[[], None]:
    """A function that repeats a torch call of a captured graph, into the tensors that the capture made."""
    made = [t for t in _tensors(result) if all(t is not a for a in _tensors(args))]

    def run() -> None:
        if name == "cuda":
            return
        for old, new in zip(made, _tensors(func(*args, **kwargs)), strict=False):
            if old.data_ptr() != new.data_ptr() and old.shape == new.shape:
                old.copy_(new)

    return run


def _properties(session: Session) -> SimpleNamespace:
    d = session.device
    major, minor = d.capability
    return SimpleNamespace(
        name=d.name, major=major, minor=minor, total_memory=d.memory_bytes, multi_processor_count=d.sms,
        L2_cache_size=d.l2_bytes, warp_size=d.warp, max_threads_per_multi_processor=2048,
        max_threads_per_block=1024, regs_per_multiprocessor=d.arch.registers_per_sm,
        shared_memory_per_block=d.static_smem, shared_memory_per_block_optin=d.arch.smem_per_cta,
        shared_memory_per_multiprocessor=d.arch.smem_per_sm, is_integrated=0, is_multi_gpu_board=0,
        gcnArchName="", uuid="", clock_rate=1_000_000, memory_clock_rate=1_000_000,
    )  # fmt: skip


class _Profile:
    """Replaces torch's profiler, which needs a driver; records nothing."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.events: Any = lambda: ()
        self.key_averages: Any = lambda *_, **__: self
        self.table: Any = lambda *_, **__: ""

    def __enter__(self) -> _Profile:
        return self

    def __exit__(self, *_: Any) -> None:
        return None

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def step(self) -> None:
        """Do nothing."""

    start = stop = step

    def export_chrome_trace(self, path: str) -> None:
        """Write no trace."""


@contextmanager
def install(session: Session) -> Iterator[None]:
    """Emulate torch's device while the context is open."""
    import torch

    patches, c = Patches(), torch.cuda
    made = classes(session)
    major, minor = session.device.capability

    generator: Any = torch.Generator

    class Generator(generator):
        def __new__(cls, device: Any = "cpu") -> Any:
            return generator.__new__(cls, "cpu")

    def answer(value: int | None) -> Callable[..., Any]:
        """A new function for each name: torch.compile keys its rules by function, and one cannot have two."""
        return lambda *_, **__: value

    def seed(number: int) -> None:
        torch.default_generator.manual_seed(number)

    replacements: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": answer(0),
        "get_device_capability": lambda *_: (major, minor),
        "get_device_properties": lambda *_: _properties(session),
        "get_device_name": lambda *_: session.device.name,
        "get_arch_list": lambda: [f"sm_{major}{minor}"],
        "is_bf16_supported": lambda *_, **__: True,
        "current_stream": lambda *_: made.current[-1],
        "default_stream": lambda *_: made.current[0],
        "stream": made.Current,
        "set_stream": lambda s: made.current.append(s),
        "is_current_stream_capturing": lambda: session.capturing(made.current[-1].cuda_stream) is not None,
        "mem_get_info": lambda *_: (session.device.memory_bytes, session.device.memory_bytes),
        "manual_seed": lambda number: seed(number),
        "manual_seed_all": lambda number: seed(number),
        "Stream": made.Stream,
        "ExternalStream": made.Stream,
        "Event": made.Event,
        "CUDAGraph": made.CUDAGraph,
        "graph": made.Capture,
        "device": made.OneDevice,
        "device_of": made.OneDevice,
    }
    without_effect = (
        "synchronize", "set_device", "empty_cache", "init", "_lazy_init", "reset_peak_memory_stats",
        "ipc_collect", "reset_max_memory_allocated", "set_per_process_memory_fraction", "_sleep",
    )  # fmt: skip
    for name in without_effect:
        replacements[name] = answer(None)
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved"):
        replacements[name] = answer(0)
    nvtx = {"range_push": answer(0), "range_pop": answer(0), "mark": answer(None)}
    mode = _mode(session)
    try:
        for name, value in replacements.items():
            patches.set(c, name, value)
        for name, value in nvtx.items():
            patches.set(c.nvtx, name, value)
        patches.set(torch, "Generator", Generator)
        patches.set(torch.profiler, "profile", _Profile)
        patches.set(torch.version, "cuda", "13.0")
        _backward(session, mode, patches)
        with mode:
            yield
    finally:
        patches.undo()
