"""Triton's and Gluon's launches: Triton takes a driver as a plug-in, and this one records the launches.

Triton compiles as usual, with its own assembler; a launch passes the kernel's PTX and its arguments to this
driver.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..descriptors import Descriptor
from .errors import UnsupportedCall
from .hooks import Patches
from .session import Kernel, Session

_FORMS = {
    "i1": "<B", "u1": "<B", "i8": "<b", "u8": "<B", "i16": "<h", "u16": "<H", "i32": "<i", "u32": "<I",
    "i64": "<q", "u64": "<Q", "fp32": "<f", "f32": "<f", "fp64": "<d", "fp16": "<e",
}  # fmt: skip


def variables(session: Session, folder: Path) -> dict[str, str]:
    """Environment variables that keep kernels of the check out of the user's cache."""
    return {"TRITON_CACHE_DIR": str(folder / "triton")}


def _scalar(kind: str, value: Any) -> bytes:
    if kind == "bf16":
        return struct.pack("<f", value)[2:]
    if kind not in _FORMS:
        raise UnsupportedCall(
            "a Triton kernel", got=f"an argument of type {kind}", fix="pass i64, fp32 or a pointer"
        )
    return struct.pack(_FORMS[kind], bool(value) if kind == "i1" else value)


def _pointer(value: Any) -> bytes:
    if value is None:
        return bytes(8)
    return struct.pack("<Q", value if isinstance(value, int) else value.data_ptr())


class _Utils:
    """The plug-in's functions besides launches."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.kernels: dict[int, tuple[str, Any]] = {}
        self.loading: Any = None
        self._numbers = itertools.count(1)

    def get_device_properties(self, device: int) -> dict[str, int]:
        d = self.session.device
        return {
            "max_shared_mem": d.arch.smem_per_cta, "max_num_regs": d.arch.registers_per_sm,
            "multiprocessor_count": d.sms, "warpSize": 32, "sm_clock_rate": 1_000_000,
            "mem_clock_rate": 1_000_000, "mem_bus_width": 5120,
        }  # fmt: skip

    def load_binary(
        self, name: str, binary: bytes, shared: int, device: int
    ) -> tuple[int, int, int, int, int]:
        number = next(self._numbers)
        self.kernels[number] = (self.loading.asm["ptx"], self.loading.metadata)
        return number, number, 0, 0, 1024

    def unload_module(self, module: int) -> None:
        self.kernels.pop(module, None)

    def fill_tma_descriptor_tiled(
        self, address: int, swizzle: int, size: int, kind: int, block: Sequence[int], shape: Sequence[int],
        strides: Sequence[int], padding: int,
    ) -> bytes:  # fmt: skip
        descriptor = Descriptor(
            address,
            kind,
            tuple(int(n) for n in reversed(shape)),
            tuple(int(n) * size for n in reversed(strides[:-1])),
            tuple(int(n) for n in reversed(block)),
            (),
            swizzle,
            0,
            padding,
        )
        descriptor.row(0, "of a Triton tensor descriptor")
        return descriptor.encode()

    def __getattr__(self, name: str) -> Any:
        def refused(*_: Any, **__: Any) -> Any:
            raise UnsupportedCall(
                f"Triton's driver call {name}", fix="use a launch without it, or run the program on a GPU"
            )

        return refused


def _launcher(session: Session, utils: _Utils) -> type:
    class Launcher:
        """The launches of one compiled kernel."""

        def __init__(self, src: Any, metadata: Any) -> None:
            self.signature = list(dict(src.signature).values())
            self.metadata = metadata
            self.descriptors = getattr(metadata, "tensordesc_meta", None) or []

        def __call__(self, gx: int, gy: int, gz: int, stream: int, function: int, *rest: Any) -> None:
            if function not in utils.kernels:
                raise UnsupportedCall(
                    "a Triton kernel",
                    got="one that was compiled before the check",
                    fix="compile it within the check",
                )
            ptx, metadata = utils.kernels[function]
            arguments = rest[len(rest) - len(self.signature) :]
            data: list[bytes] = []
            described = iter(self.descriptors)
            for kind, value in zip(self.signature, arguments, strict=True):
                self._append(data, kind, value, described)
            ctas = getattr(metadata, "num_ctas", 1)
            data += self._scratch(gx * gy * gz * ctas, stream)
            warps = getattr(metadata, "total_num_warps", None) or metadata.num_warps
            flags = [("launch_pdl", "dependent"), ("launch_cooperative_grid", "cooperative")]
            session.launch(
                Kernel(ptx, metadata.name), (gx * ctas, gy, gz), (32 * warps, 1, 1),
                lambda sizes: data[: len(sizes)], source="Triton",
                cluster=(ctas, 1, 1) if ctas > 1 else None, dynamic_smem=metadata.shared, stream=stream or 0,
                attributes=[name for flag, name in flags if getattr(metadata, flag, False)],
            )  # fmt: skip

        def _append(self, data: list[bytes], kind: Any, value: Any, described: Iterator[Any]) -> None:
            if isinstance(kind, tuple):
                for inner, item in zip(kind, value, strict=True):
                    self._append(data, inner, item, described)
            elif kind == "constexpr":
                return
            elif kind.startswith("tensordesc"):
                from triton.backends.nvidia.driver import make_tensordesc_arg

                meta = next(described, None)
                parts, rank = make_tensordesc_arg(value, meta, None), len(value.shape)
                if meta is None:
                    data.append(_pointer(value.base))
                    data += [struct.pack("<q", int(n)) for n in parts[1 : 1 + 2 * rank]]
                    data += [struct.pack("<B", int(n)) for n in parts[1 + 2 * rank :]]
                else:
                    data.append(parts[0])
                    data += [struct.pack("<i", int(n)) for n in parts[1 : 1 + rank]]
                    data += [struct.pack("<q", int(n)) for n in parts[1 + rank :]]
            elif kind.startswith("*"):
                data.append(_pointer(value))
            else:
                data.append(_scalar(kind, value))

        def _scratch(self, ctas: int, stream: int) -> list[bytes]:
            """The two scratch pointers at the end of every kernel's parameters."""
            pointers = []
            for size in (
                self.metadata.global_scratch_size,
                getattr(self.metadata, "profile_scratch_size", 0),
            ):
                address = session.memory.allocate(size * ctas) if size else 0
                pointers.append(struct.pack("<Q", address))
            return pointers

    return Launcher


def _driver(session: Session, utils: _Utils) -> Any:
    from triton.backends.compiler import GPUTarget
    from triton.backends.driver import DriverBase

    major, minor = session.device.capability

    class Recorder(DriverBase):
        """The plug-in."""

        def __init__(self) -> None:
            self.utils = utils
            self.launcher_cls = _launcher(session, utils)

        @classmethod
        def is_active(cls) -> bool:
            return True

        def get_device_capability(self, device: int = 0) -> tuple[int, int]:
            return major, minor

        def get_current_device(self) -> int:
            return 0

        def set_current_device(self, device: int) -> None:
            """There is only one device."""

        def get_current_stream(self, device: int = 0) -> int:
            import torch

            return torch.cuda.current_stream().cuda_stream

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", 10 * major + minor, 32)

        def get_active_torch_device(self) -> Any:
            import torch

            return torch.device("cuda", 0)

        def get_device_interface(self) -> Any:
            import torch

            return torch.cuda

        def map_python_to_cpp_type(self, kind: str) -> str:
            from triton.backends.nvidia.driver import ty_to_cpp

            return ty_to_cpp(kind)

        def get_benchmarker(self) -> Callable[..., Any]:
            return _called_once(session, [1.0, 1.0, 1.0])

        def get_empty_cache_for_benchmark(self) -> Any:
            import torch

            return torch.empty(1, dtype=torch.int32)

        def clear_cache(self, cache: Any) -> None:
            """There is no cache."""

        def assemble_tensormap_to_arg(self, maps: Any, args: Any) -> Any:
            return args

    return Recorder()


def _called_once(session: Session, answer: Any) -> Callable[..., Any]:
    def bench(function: Callable[[], Any], *_: Any, quantiles: Any = None, **__: Any) -> Any:
        session.note("benchmarks call once and say 1 ms")
        function()
        return [1.0] * len(quantiles) if quantiles else answer

    return bench


@contextmanager
def install(session: Session) -> Iterator[None]:
    """Make Triton's active driver the recording one while the context is open."""
    import triton.testing
    from triton.compiler.compiler import CompiledKernel
    from triton.runtime import driver
    from triton.runtime.autotuner import Autotuner

    patches, utils = Patches(), _Utils(session)
    before = driver._active
    load, prune = CompiledKernel._init_handles, Autotuner.prune_configs

    def init_handles(self: Any) -> Any:
        utils.loading = self
        return load(self)

    def first(self: Any, kwargs: Any) -> Any:
        session.note("autotuners take their first configuration")
        return list(prune(self, kwargs))[:1]

    try:
        patches.set(CompiledKernel, "_init_handles", init_handles)
        patches.set(Autotuner, "prune_configs", first)
        for name in ("do_bench", "do_bench_cudagraph"):
            patches.set(triton.testing, name, _called_once(session, 1.0))
        driver.set_active(_driver(session, utils))
        yield
    finally:
        patches.undo()
        driver._active = before
