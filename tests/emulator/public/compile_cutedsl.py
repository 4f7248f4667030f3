"""Compile CUTLASS's CuTe DSL tutorials and dense GEMMs from a local checkout to PTX, without a GPU.

Run it with a Python that has nvidia-cutlass-dsl; it does not use this project. `known_good.py` runs the
result.
"""

# ruff: noqa: T201 - a command-line script prints
import argparse
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER = "examples/python/CuTeDSL/cute"
M, N, K = 512, 512, 256


def matrix(rows: int, cols: int, dtype: str = "Float16", batch: bool = False) -> object:
    """A row-major fake tensor; with `batch`, of a batch of one, for examples that need a third mode."""
    import cutlass
    from cutlass.cute.runtime import make_fake_compact_tensor

    shape, order = ((rows, cols, 1), (1, 0, 2)) if batch else ((rows, cols), (1, 0))
    return make_fake_compact_tensor(getattr(cutlass, dtype), shape, stride_order=order, assumed_align=32)


def stream() -> object:
    from cutlass.cute.runtime import make_fake_stream

    return make_fake_stream()


def tutorial(*more: object) -> Callable[[ModuleType], tuple[Any, ...]]:
    """A tutorial GEMM, with further arguments of its host function (clusters that fit on the device)."""
    return lambda m: (m.host_function, matrix(M, K), matrix(N, K), matrix(M, N), *more)


def dequantised(m: ModuleType) -> tuple[Any, ...]:
    import cutlass

    b = matrix(N, K, "Int8"), matrix(N, K)
    return m.host_function, matrix(M, K), *b, matrix(M, N), cutlass.Float32(0.5), 4, stream()


def copies(name: str, transposed: bool, *more: object) -> Callable[[ModuleType], tuple[Any, ...]]:
    def arguments(m: ModuleType) -> tuple[Any, ...]:
        dst = matrix(N, M) if transposed else matrix(M, N)
        return getattr(m, name)(), matrix(M, N), dst, *more

    return arguments


def dense(
    name: str,
    two: bool,
    tile: tuple[int, int],
    cluster: tuple[int, int],
    tma_store: bool,
    dtype: str = "Float16",
    *more: object,
):  # type: ignore[no-untyped-def]
    """A dense GEMM of the kernel folder: a class, configured, and called with tensors of a batch of one."""

    def arguments(m: ModuleType) -> tuple[Any, ...]:
        import cutlass

        gemm = getattr(m, name)(cutlass.Float32, two, tile, cluster, tma_store)
        out = "Float16" if dtype.startswith("Float8") else dtype
        return (
            gemm,
            matrix(M, K, dtype, True),
            matrix(N, K, dtype, True),
            matrix(M, N, out, True),
            *more,
            stream(),
        )

    return arguments


def hopper(  # type: ignore[no-untyped-def]
    name: str, dtype: str, tile: tuple[int, int], cluster: tuple[int, int], *more: object
):
    """A dense GEMM for Hopper; arguments after the cluster are
    further options of the class and of its call."""

    def arguments(m: ModuleType) -> tuple[Any, ...]:
        import cutlass

        options, call = (more[:2], more[2:]) if more else ((), ())
        gemm = getattr(m, name)(cutlass.Float32, tile, cluster, *options)
        out = "Float16" if dtype.startswith("Float8") else dtype
        return (
            gemm,
            matrix(M, K, dtype, True),
            matrix(N, K, dtype, True),
            matrix(M, N, out, True),
            *call,
            stream(),
        )

    return arguments


GEMMS, TMA = "blackwell/tutorial/tutorial_gemm/{}.py", "blackwell/tutorial/tutorial_tma/{}.py"
DENSE, HOPPER = "blackwell/kernel/dense_gemm/{}.py", "hopper/kernel/dense_gemm/{}.py"
PLAIN, PERSISTENT = "dense_gemm", "dense_gemm_persistent"
#: name of the PTX file -> (path in the folder, function that gives the arguments of cute.compile)
PROGRAMS: dict[str, tuple[str, Callable[[ModuleType], tuple[Any, ...]]]] = {
    "fp16_gemm_0": (GEMMS.format("fp16_gemm_0"), tutorial()),
    "fp16_gemm_1": (GEMMS.format("fp16_gemm_1"), tutorial()),
    "fp16_gemm_2": (GEMMS.format("fp16_gemm_2"), tutorial()),
    "fp16_gemm_3": (GEMMS.format("fp16_gemm_3"), tutorial(4)),
    "fp16_gemm_3_1": (GEMMS.format("fp16_gemm_3_1"), tutorial(4)),
    "fp16_gemm_4": (GEMMS.format("fp16_gemm_4"), tutorial(4, 4)),
    "fp16_gemm_5": (GEMMS.format("fp16_gemm_5"), tutorial(4)),
    "fp16_gemm_6": (GEMMS.format("fp16_gemm_6"), dequantised),
    "tma_v0": (TMA.format("tma_v0"), copies("Sm100SimpleCopyKernel", False)),
    "tma_v1": (TMA.format("tma_v1"), copies("Sm100MatrixTransposeKernelV1", True)),
    "tma_v2": (TMA.format("tma_v2"), copies("Sm100MatrixTransposeKernelV2", True, 6)),
    "dense_1cta": (DENSE.format(PLAIN), dense("DenseGemmKernel", False, (128, 128), (1, 1), True)),
    "dense_1cta_no_tma_store":
        (DENSE.format(PLAIN), dense("DenseGemmKernel", False, (64, 128), (1, 1), False)),
    "dense_2cta": (DENSE.format(PLAIN), dense("DenseGemmKernel", True, (256, 128), (2, 1), True)),
    "dense_2cta_multicast": (DENSE.format(PLAIN), dense("DenseGemmKernel", True, (256, 128), (2, 2), True)),
    "dense_2cta_tf32":
        (DENSE.format(PLAIN), dense("DenseGemmKernel", True, (128, 128), (2, 1), True, "Float32")),
    "dense_2cta_fp8":
        (DENSE.format(PLAIN), dense("DenseGemmKernel", True, (256, 128), (2, 1), True, "Float8E4M3FN")),
    "persistent_1cta":
        (DENSE.format(PERSISTENT),
         dense("PersistentDenseGemmKernel", False, (128, 128), (1, 1), True, "Float16", 6)),
    "persistent_2cta":
        (DENSE.format(PERSISTENT),
         dense("PersistentDenseGemmKernel", True, (256, 128), (2, 1), True, "Float16", 3)),
    "hopper_fp16": (HOPPER.format(PLAIN), hopper("HopperWgmmaGemmKernel", "Float16", (128, 128), (1, 1))),
    "hopper_multicast":
        (HOPPER.format(PLAIN), hopper("HopperWgmmaGemmKernel", "Float16", (128, 128), (2, 1))),
    "hopper_fp8": (HOPPER.format(PLAIN), hopper("HopperWgmmaGemmKernel", "Float8E4M3FN", (128, 128), (1, 2))),
    "hopper_persistent":
        (HOPPER.format(PERSISTENT),
         hopper("HopperWgmmaGemmPersistentKernel", "Float16", (128, 128), (2, 1), 1, True, 3)),
}  # fmt: skip


def compile_one(name: str, checkout: Path, out: Path) -> None:
    import cutlass.cute as cute

    file, arguments = PROGRAMS[name]
    path = checkout / FOLDER / file
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    arch = "sm_90a" if file.startswith("hopper") else "sm_100a"
    # Otherwise the DSL writes its dumps into the working directory.
    with tempfile.TemporaryDirectory() as dumps:
        options = f"--gpu-arch {arch} --keep-ptx --dump-dir {dumps}"
        compiled = cute.compile(*arguments(module), options=options)
        (out / f"{name}.ptx").write_text(compiled.__ptx__)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cutlass", type=Path, required=True, help="checkout of NVIDIA/cutlass")
    parser.add_argument("--out", type=Path, required=True, help="folder for the PTX")
    parser.add_argument("--only", default="", help="compile the programs whose name contains this")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    if a.one:
        compile_one(a.one, a.cutlass.resolve(), a.out.resolve())
        return 0
    failed = 0
    for name in PROGRAMS:  # one process each, as the DSL keeps state between programs
        if a.only not in name:
            continue
        done = subprocess.run(
            [sys.executable, __file__, "--cutlass", a.cutlass, "--out", a.out, "--one", name]
        )
        failed += done.returncode != 0
        print(f"{name}: {'failed' if done.returncode else 'compiled'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
