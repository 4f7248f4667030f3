"""What the memory of this GPU allows: rows fetched at random by bulk copies, and a sequential read.

The kernel does nothing but copy rows into shared memory. It is compiled by NVRTC when it is first measured,
so that every run compares its kernels with the ceiling of the same card on the same day.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import torch

from .errors import LaunchError, ToolchainError

STAGES = 5
BLOCKS_PER_SM = 2
STAGE_BYTES = 18 << 10
READ_ROW = 8192

SOURCE = r"""
__device__ __forceinline__ unsigned shared_address(const void* p) {
  return (unsigned)__cvta_generic_to_shared(p);
}

// One warp a block walks its share of the rows; `group` rows share one stage of the ring and one barrier.
extern "C" __global__ void gather_rows(
    const char* first, const char* second, const int* ids, long long rows, int group,
    int first_bytes, long long first_stride, int second_bytes, long long second_stride) {
  extern __shared__ __align__(128) char ring[];
  __shared__ __align__(8) unsigned long long full[STAGES];
  const int lane = threadIdx.x;
  const int row_bytes = first_bytes + second_bytes;
  if (lane == 0)
    for (int s = 0; s < STAGES; s++)
      asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&full[s])));
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncwarp();
  auto wait = [&](long long use) {
    const unsigned barrier = shared_address(&full[use % STAGES]), phase = (use / STAGES) & 1;
    unsigned done = 0;
    while (!done)
      asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                   : "=r"(done) : "r"(barrier), "r"(phase) : "memory");
  };
  long long use = 0, drained = 0;
  for (long long at = (long long)blockIdx.x * group; at < rows; at += (long long)gridDim.x * group, use++) {
    if (use >= STAGES) wait(drained++);
    const bool mine = lane < group && at + lane < rows;
    const int id = mine ? (ids ? ids[at + lane] : (int)(at + lane)) : -1;
    const unsigned live = __popc(__ballot_sync(0xffffffffu, id >= 0));
    const unsigned barrier = shared_address(&full[use % STAGES]);
    if (lane == 0)
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
                   ::"r"(barrier), "r"(live * row_bytes) : "memory");
    __syncwarp();
    if (id >= 0) {
      const unsigned slot = shared_address(ring) + ((use % STAGES) * group + lane) * row_bytes;
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                   ::"r"(slot), "l"(first + (long long)id * first_stride), "r"(first_bytes), "r"(barrier) : "memory");
      if (second_bytes)
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                     ::"r"(slot + first_bytes), "l"(second + (long long)id * second_stride), "r"(second_bytes),
                       "r"(barrier) : "memory");
    }
  }
  while (drained < use) wait(drained++);
}
"""


def gather(cache: dict[str, torch.Tensor], ids: torch.Tensor) -> None:
    """Fetch the rows `ids` (int32, -1 skipped) of one or two caches, each [n, width] with its own stride."""
    parts = list(cache.values())
    widths = [part.shape[1] * part.element_size() for part in parts]
    strides = [part.stride(0) * part.element_size() for part in parts]
    _launch(parts[0], parts[1] if len(parts) > 1 else None, ids, ids.numel(), widths, strides)


def read(buffer: torch.Tensor) -> None:
    """Read a contiguous buffer from its start to its last whole row of 8 KB."""
    _launch(buffer, None, None, buffer.numel() * buffer.element_size() // READ_ROW, [READ_ROW], [READ_ROW])


def _launch(
    first: torch.Tensor,
    second: torch.Tensor | None,
    ids: torch.Tensor | None,
    rows: int,
    widths: list[int],
    strides: list[int],
) -> None:
    group = max(1, min(32, STAGE_BYTES // sum(widths)))
    device = first.device.index
    function, sms = _function(device)
    arguments = (
        (ctypes.c_void_p, first.data_ptr()),
        (ctypes.c_void_p, second.data_ptr() if second is not None else 0),
        (ctypes.c_void_p, ids.data_ptr() if ids is not None else 0),
        (ctypes.c_longlong, rows),
        (ctypes.c_int, group),
        (ctypes.c_int, widths[0]),
        (ctypes.c_longlong, strides[0]),
        (ctypes.c_int, widths[1] if len(widths) > 1 else 0),
        (ctypes.c_longlong, strides[1] if len(strides) > 1 else 0),
    )
    driver = _driver()
    stream = torch._C._cuda_getCurrentRawStream(device)
    blocks = max(1, min(BLOCKS_PER_SM * sms, -(-rows // group)))
    kinds, values = tuple(kind for kind, _ in arguments), tuple(value for _, value in arguments)
    shared = STAGES * group * sum(widths)
    _check(
        driver.cuLaunchKernel(function, blocks, 1, 1, 32, 1, 1, shared, stream, (values, kinds), 0),
        "launch gather_rows",
    )


def _driver() -> Any:
    from cuda.bindings import driver

    return driver


@lru_cache(maxsize=8)
def _function(device: int) -> tuple[Any, int]:
    """The kernel, loaded into the context that torch uses, and the number of SMs."""
    properties = torch.cuda.get_device_properties(device)
    driver = _driver()
    library = _check(
        driver.cuLibraryLoadData(
            _cubin(f"sm_{properties.major}{properties.minor}a"), None, None, 0, None, None, 0
        ),
        "load",
    )
    kernel = _check(driver.cuLibraryGetKernel(library, b"gather_rows"), "gather_rows")
    function = _check(driver.cuKernelGetFunction(kernel), "gather_rows")
    limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _check(driver.cuFuncSetAttribute(function, limit, STAGES * STAGE_BYTES), "shared memory of gather_rows")
    return function, properties.multi_processor_count


@lru_cache(maxsize=4)
def _cubin(arch: str) -> bytes:
    """The kernel compiled by NVRTC.

    Raises:
        ToolchainError: NVRTC is missing or refuses.
    """
    fix = "`pip install nvidia-cuda-nvrtc`, or install the CUDA toolkit"
    try:
        from cuda.bindings import nvrtc

        _, program = nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"ceilings.cu", 0, [], [])
    except (ImportError, RuntimeError) as error:
        raise ToolchainError("NVRTC", expected="a usable library", got=str(error), fix=fix) from None
    options = [f"--gpu-architecture={arch}".encode(), b"--std=c++17", f"-DSTAGES={STAGES}".encode()]
    if nvrtc.nvrtcCompileProgram(program, len(options), options)[0]:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        raise ToolchainError(
            "NVRTC",
            expected="the ceiling kernel to compile",
            got=log.decode(errors="replace").strip("\0 \n"),
            fix=fix,
        )
    _, size = nvrtc.nvrtcGetCUBINSize(program)
    cubin = b" " * size
    nvrtc.nvrtcGetCUBIN(program, cubin)
    return cubin


def _check(result: tuple[Any, ...], what: str) -> Any:
    if result[0]:
        raise LaunchError(
            what,
            expected="success",
            got=str(result[0]),
            fix="see the CUDA driver's error; `doctor` checks it",
        )
    return result[1] if len(result) == 2 else None
