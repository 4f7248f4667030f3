"""The tests' launch on a GPU: what shows that hardware and emulator give the same bits for the same PTX.

`EMULATOR_TESTS_ON_HARDWARE=1 pytest tests/emulator/test_alu.py tests/emulator/test_tma.py tests/emulator/test_tensor_core.py`
runs the layout, conversion and copy probes, written for the emulator against independent references, on the GPU itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from dsl_kernels.emulator import TensorMap
from dsl_kernels.emulator.arguments import as_array
from dsl_kernels.emulator.ptx import parse

SWIZZLES = {"none": 0, "32B": 1, "64B": 2, "128B": 3, "128B_atom_32B": 4}
TYPES = {
    "u8": 0, "s8": 0, "e4m3": 0, "e5m2": 0, "u16": 1, "s16": 1, "u32": 2, "s32": 3, "u64": 4, "s64": 5,
    "f16": 6, "f32": 7, "f64": 8, "bf16": 9, "tf32": 11,
}  # fmt: skip


def _ok(result: Any) -> Any:
    error, *values = result
    if int(error) != 0:
        raise RuntimeError(f"the driver says {error}")
    return values[0] if len(values) == 1 else values


class _Device:
    def __init__(self) -> None:
        from cuda.bindings import driver

        self.driver = driver
        _ok(driver.cuInit(0))
        device = _ok(driver.cuDeviceGet(0))
        _ok(driver.cuCtxSetCurrent(_ok(driver.cuDevicePrimaryCtxRetain(device))))


_device: _Device | None = None


def launch(
    ptx: str,
    grid: Sequence[int] | int,
    block: Sequence[int] | int,
    args: Sequence[Any] = (),
    *,
    dynamic_smem: int = 0,
    cluster: object = None,
    **_: object,
) -> None:
    """Run the kernel on device 0; arrays are copied in before and out after."""
    global _device
    module = parse(ptx)
    if not module.target.startswith("sm_90") or cluster is not None:
        pytest.skip("this probe is not for one CTA of a Hopper GPU")
    _device = _device or _Device()
    d = _device.driver
    loaded = _ok(d.cuModuleLoadData(ptx.encode() + b"\0"))
    entry = next(iter(module.entries.values()))
    function = _ok(d.cuModuleGetFunction(loaded, entry.name.encode()))
    if dynamic_smem > 48 * 1024:
        attribute = d.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _ok(d.cuFuncSetAttribute(function, attribute, dynamic_smem))
    buffers: list[tuple[int, np.ndarray]] = []
    values: list[Any] = []
    kinds: list[Any] = []

    def upload(array: np.ndarray) -> int:
        pointer = int(_ok(d.cuMemAlloc(max(array.nbytes, 16))))
        _ok(d.cuMemcpyHtoD(pointer, array.ctypes.data, array.nbytes))
        buffers.append((pointer, array))
        return pointer

    for p, a in zip(entry.params, args, strict=True):
        if isinstance(a, TensorMap):
            described = as_array(a.array, p.name)
            if described is None or not isinstance(a.array, np.ndarray) or not a.array.flags.c_contiguous:
                pytest.skip("only contiguous numpy arrays are described to the driver here")
            values.append(_tensor_map(d, a, described, upload(a.array)))
            kinds.append(None)
        elif isinstance(a, np.ndarray):
            values.append(upload(a))
            kinds.append(ctypes.c_uint64)
        else:
            values.append(int(a))
            kinds.append(ctypes.c_uint64 if p.size == 8 else ctypes.c_uint32)
    try:
        shape = [(x,) if isinstance(x, int) else tuple(x) for x in (grid, block)]
        g, b = ((*x, 1, 1)[:3] for x in shape)
        _ok(d.cuLaunchKernel(function, *g, *b, dynamic_smem, 0, (tuple(values), tuple(kinds)), 0))
        _ok(d.cuCtxSynchronize())
        for pointer, array in buffers:
            _ok(d.cuMemcpyDtoH(array.ctypes.data, pointer, array.nbytes))
    finally:
        for pointer, _array in buffers:
            d.cuMemFree(pointer)
        d.cuModuleUnload(loaded)


def _tensor_map(d: Any, t: TensorMap, a: Any, pointer: int) -> Any:
    """The same map as the emulator's, encoded by the driver."""
    row = t.row(0, pointer, a, "map")
    rank = row[2]
    dims, strides, box = row[4 : 4 + rank], row[10 : 9 + rank], row[14 : 14 + rank]
    u32, u64 = d.cuuint32_t, d.cuuint64_t
    return _ok(
        d.cuTensorMapEncodeTiled(
            d.CUtensorMapDataType(TYPES[t.dtype or a.type]),
            rank,
            pointer,
            [u64(x) for x in dims],
            [u64(x) for x in strides],
            [u32(x) for x in box],
            [u32(1)] * rank,
            d.CUtensorMapInterleave(0),
            d.CUtensorMapSwizzle(SWIZZLES[t.swizzle]),
            d.CUtensorMapL2promotion(0),
            d.CUtensorMapFloatOOBfill(int(t.fill == "nan")),
        )
    )
