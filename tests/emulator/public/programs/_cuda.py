"""CUDA C++ of other projects as their host code launches it: PTX of nvcc, tensor maps, the driver's call."""

import ctypes
import re
import tempfile
from pathlib import Path

import torch
from cuda.bindings import driver as cuda

from dsl_kernels.runtime import toolkit

TYPES = {torch.float32: 7, torch.bfloat16: 9, torch.float8_e4m3fn: 0}  # CUtensorMapDataType


def compiled(arch, source, include, *flags):
    """The PTX of a source text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cu"
        path.write_text(source)
        common = ["-std=c++20", "-lineinfo", "--expt-relaxed-constexpr", "-w", "-O3"]
        toolkit.cuda_to_ptx(
            path, path.with_suffix(".ptx"), arch, [*common, *flags, *(f"-I{p}" for p in include)]
        )
        return path.with_suffix(".ptx").read_text()


def tensor_map(x, box, swizzle, dims=None):
    """A map of a tensor, of its last dimension first.

    Args:
        x: the tensor, contiguous along its last dimension.
        box: extents of a copy, in the order of the map.
        swizzle: 0, or the width of the box's rows in bytes.
        dims: x's dimensions in the order of the map; by default from the last to the first.
    """
    order = range(x.dim())[::-1] if dims is None else dims
    mode = {0: 0, 32: 1, 64: 2, 128: 3}[swizzle]
    status, made = cuda.cuTensorMapEncodeTiled(
        cuda.CUtensorMapDataType(TYPES[x.dtype]), x.dim(), x.data_ptr(), [x.shape[i] for i in order],
        [x.stride(i) * x.element_size() for i in order][1:], list(box), [1] * x.dim(),
        cuda.CUtensorMapInterleave(0), cuda.CUtensorMapSwizzle(mode), cuda.CUtensorMapL2promotion(3),
        cuda.CUtensorMapFloatOOBfill(0),
    )  # fmt: skip
    assert status == 0, status
    return made


def launch(ptx, grid, threads, smem, parameters, cluster=1):
    """Launch the only kernel of a module; `parameters` are ctypes objects or tensor maps."""
    _, module = cuda.cuModuleLoadData(ptx.encode())
    name = re.search(r"\.entry\s+(\w+)", ptx).group(1)
    _, function = cuda.cuModuleGetFunction(module, name.encode())
    config = cuda.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = smem
    attribute = cuda.CUlaunchAttribute()
    attribute.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster, 1, 1
    config.attrs, config.numAttrs = [attribute], 1
    addresses = [int(p.getPtr()) if hasattr(p, "getPtr") else ctypes.addressof(p) for p in parameters]
    array = (ctypes.c_void_p * len(addresses))(*addresses)
    status, *_ = cuda.cuLaunchKernelEx(config, function, ctypes.addressof(array), 0)
    assert status == 0, status
