"""DeepGEMM's kernels, compiled by nvcc and launched as its host code does: same maps, block sizes and
clusters.

The variable DEEP_GEMM names a checkout of DeepGEMM, CUTLASS_EXAMPLES the folder `examples/python/CuTeDSL` of
CUTLASS's.
"""

import ctypes
import os
from pathlib import Path

import torch
from _check import close, main, program, rand
from _cuda import compiled, launch, tensor_map

SMS = 2


def instance(arch, header, kernel, *template):
    """The PTX of one instance of a kernel's template."""
    include = [
        Path(os.environ["DEEP_GEMM"]) / "deep_gemm/include",
        Path(os.environ["CUTLASS_EXAMPLES"]).parents[2] / "include",
    ]
    source = (
        f"#include <deep_gemm/impls/{header}.cuh>\nusing namespace deep_gemm;\n"
        f"static void instance() "
        f"{{ auto p = reinterpret_cast<void*>(&{kernel}<{', '.join(map(str, template))}>); }}\n"
    )
    return compiled(arch, source, include)


def matrix_map(x, box, swizzle):
    """A map of a matrix with contiguous rows; `swizzle` is the width of a box in bytes."""
    return tensor_map(x, (swizzle // x.element_size(), box[1]) if swizzle else box, swizzle)


def start(ptx, threads, smem, arguments, cluster=1):
    """Launch on all SMs: tensors and None are pointers, numbers of 32 bits."""
    parameters = [
        x if hasattr(x, "getPtr")
        else ctypes.c_uint32(x) if isinstance(x, int)
        else ctypes.c_void_p(None if x is None else x.data_ptr())
        for x in arguments
    ]  # fmt: skip
    launch(ptx, (SMS, 1, 1), threads, smem, parameters, cluster)


K_MAJOR = "cute::UMMA::Major::K"
NORMAL, MASKED, CONTIGUOUS = (f"GemmType::{x}" for x in ("Normal", "MGroupedMasked", "MGroupedContiguous"))
BF16 = "cutlass::bfloat16_t"


def hopper(m, n, k, block_m, stages, cluster=1, on_a=False, groups=1, kind=NORMAL, layout=None):
    """The bf16 GEMM for Hopper; with groups, A, B and D are stacked."""
    rows = m * groups if kind == MASKED else m
    a, b = rand(rows, k, dtype=torch.bfloat16), rand(n * groups, k, dtype=torch.bfloat16)
    d = torch.zeros(rows, n, dtype=torch.bfloat16, device="cuda")
    math = 128 if block_m <= 64 else 256
    ptx = instance(
        "sm_90a", "sm90_bf16_gemm", "sm90_bf16_gemm_impl", K_MAJOR, K_MAJOR, 0, n, k, groups, block_m, 128,
        64, 128, 128, 128,
        stages, 128, math, cluster, str(on_a).lower(), SMS, kind, "false", BF16,
    )  # fmt: skip
    maps = (
        matrix_map(a, (64, block_m), 128),
        matrix_map(b, (64, 128), 128),
        matrix_map(d, (128, block_m), 128),
    )
    smem = block_m * 128 * 2 + stages * (block_m + 128) * 64 * 2 + 512
    start(ptx, 128 + math, smem, [layout, m, n, k, *maps], cluster)
    return a.float(), b.float(), d.float()


@program
def hopper_bf16():
    a, b, d = hopper(200, 256, 320, 128, 3)
    close(d, a @ b.T, 0.01)


@program
def hopper_bf16_multicast():
    a, b, d = hopper(256, 256, 320, 128, 3, cluster=2)
    close(d, a @ b.T, 0.01)


@program
def hopper_bf16_masked_groups():
    sizes = [70, 0, 128]
    masked = torch.tensor(sizes, dtype=torch.int32, device="cuda")
    a, b, d = hopper(128, 128, 192, 64, 4, groups=3, kind=MASKED, layout=masked)
    for i, rows in enumerate(sizes):
        x = slice(128 * i, 128 * i + rows)
        if rows:
            close(d[x], a[x] @ b[128 * i : 128 * i + 128].T, 0.01)


@program
def hopper_bf16_contiguous_groups():
    groups = torch.tensor([0] * 128 + [1] * 256, dtype=torch.int32, device="cuda")
    a, b, d = hopper(384, 128, 192, 128, 3, groups=2, kind=CONTIGUOUS, layout=groups)
    close(d[:128], a[:128] @ b[:128].T, 0.01)
    close(d[128:], a[128:] @ b[128:].T, 0.01)


@program
def hopper_fp8_scaled():
    """Scales of A per 128 columns, of B per 128 x 128 block."""
    m, n, k, stages = 192, 256, 384, 3
    a, b = (rand(x, k).to(torch.float8_e4m3fn) for x in (m, n))
    sa, sb = torch.rand(k // 128, m, device="cuda") + 0.5, torch.rand(n // 128, k // 128, device="cuda") + 0.5
    d = torch.zeros(m, n, dtype=torch.bfloat16, device="cuda")
    ptx = instance(
        "sm_90a", "sm90_fp8_gemm_1d2d", "sm90_fp8_gemm_1d2d_impl", K_MAJOR, 0, n, k, 1, 64, 128, 128, 128,
        128, 128, stages, 128,
        128, 1, "false", SMS, NORMAL, BF16, "epilogue::transform::EpilogueIdentity",
    )  # fmt: skip
    maps = (
        matrix_map(a, (128, 64), 128),
        matrix_map(b, (128, 128), 128),
        matrix_map(d, (128, 64), 128),
        matrix_map(sa, (64, 1), 0),
    )
    smem = 64 * 128 * 2 + stages * ((64 + 128) * 128 + 64 * 4) + 4096
    start(ptx, 256, smem, [sb, None, m, n, k, *maps])
    wide = [s.repeat_interleave(128, 1) for s in (sa.T, sb.repeat_interleave(128, 0))]
    close(d, (a.float() * wide[0]) @ (b.float() * wide[1]).T, 0.01)


def blackwell(m, n, k, stages, cluster):
    a, b = rand(m, k, dtype=torch.bfloat16), rand(n, k, dtype=torch.bfloat16)
    d = torch.zeros(m, n, dtype=torch.bfloat16, device="cuda")
    ptx = instance(
        "sm_100a", "sm100_bf16_gemm", "sm100_bf16_gemm_impl", K_MAJOR, K_MAJOR, 0, n, k, 128, 128, 64, 1, 128,
        128, 128, stages, 128,
        128, cluster, "false", SMS, 128, "false", "false", NORMAL, "false", BF16, 100,
    )  # fmt: skip
    maps = (
        matrix_map(a, (64, 128), 128),
        matrix_map(b, (64, 128 // cluster), 128),
        matrix_map(d, (128, 128), 128),
    )
    smem = 2 * 128 * 128 + stages * (128 + 128) * 64 * 2 + 1024
    start(ptx, 256, smem, [None, m, n, k, *maps], cluster)
    close(d.float(), a.float() @ b.float().T, 0.01)


@program
def blackwell_bf16():
    blackwell(200, 256, 320, 4, 1)


@program
def blackwell_bf16_two_ctas():
    blackwell(512, 256, 320, 4, 2)


if __name__ == "__main__":
    main()
