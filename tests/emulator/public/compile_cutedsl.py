"""Compile CUTLASS's CuTe DSL tutorial GEMMs from a local checkout to PTX, without a GPU.

Run it with a Python that has nvidia-cutlass-dsl; it needs nothing of this project. `known_good.py` runs the result.
"""

# ruff: noqa: T201 - a command-line script prints
import argparse
import importlib.util
import subprocess
import sys
from pathlib import Path

FOLDER = "examples/python/CuTeDSL/cute/blackwell/tutorial/tutorial_gemm"
#: tutorial -> further arguments of its host function (clusters that fit on the device)
TUTORIALS = {"fp16_gemm_0": [], "fp16_gemm_1": [], "fp16_gemm_2": [], "fp16_gemm_3": [4], "fp16_gemm_3_1": [4],
             "fp16_gemm_4": [4, 4], "fp16_gemm_5": [4]}  # fmt: skip
M, N, K = 512, 512, 256


def compile_one(name: str, checkout: Path, out: Path) -> None:
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_compact_tensor

    path = checkout / FOLDER / f"{name}.py"
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def fake(rows: int, cols: int) -> object:
        return make_fake_compact_tensor(cutlass.Float16, (rows, cols), stride_order=(1, 0), assumed_align=32)

    compiled = cute.compile(
        module.host_function,
        fake(M, K),
        fake(N, K),
        fake(M, N),
        *TUTORIALS[name],
        options="--gpu-arch sm_100a --keep-ptx",
    )
    (out / f"{name}.ptx").write_text(compiled.__ptx__)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cutlass", type=Path, required=True, help="checkout of NVIDIA/cutlass")
    parser.add_argument("--out", type=Path, required=True, help="folder for the PTX")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    a = parser.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    if a.one:
        compile_one(a.one, a.cutlass, a.out)
        return 0
    failed = 0
    for name in TUTORIALS:  # a process each: the DSL keeps state between programs
        done = subprocess.run(
            [sys.executable, __file__, "--cutlass", a.cutlass, "--out", a.out, "--one", name]
        )
        failed += done.returncode != 0
        print(f"{name}: {'failed' if done.returncode else 'compiled'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
