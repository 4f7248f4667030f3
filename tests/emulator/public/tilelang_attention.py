"""Find three synchronisation defects of TileLang's sm_100 attention example in its PTX, and patch them.

The example is read from a local checkout, compiled here, executed in the emulator and thrown away.
"""

# ruff: noqa: T201 - a command-line script prints
from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from ptx_emulator import Report, TensorMap, interleavings, launch

SEQ, DIM = 512, 128
FENCED_BARRIER = (
    "tl::tcgen05_before_thread_sync(); tl::__sync_thread_partial(3, 256); tl::tcgen05_after_thread_sync();\n"
)
#: name -> (text of the generated CUDA, replacement)
PATCHES = {
    "order the store of P before the MMA that reads it": (
        "mbarrier[1].wait((k_1 & 1));",
        FENCED_BARRIER + "mbarrier[1].wait((k_1 & 1));",
    ),
    "release K after its MMA has completed": (
        "mbarrier[2].arrive();\n      mbar_s[0].wait((k_1 & 1));",
        "mbar_s[0].wait((k_1 & 1));\n      mbarrier[2].arrive();",
    ),
    "release V after its MMA has completed": (
        "mbarrier[3].arrive();\n      mbar_d[0].wait((k_1 & 1));",
        "mbar_d[0].wait((k_1 & 1));\n      mbarrier[3].arrive();",
    ),
}
DEALLOC = "tl::tmem_deallocate((&(S_tmem[0])), 128);"
#: defect -> (check, opcode of the reported instruction, opcode of the earlier access)
DEFECTS = {
    "P is read by the PV MMA before all warps stored it": ("race", "tcgen05.mma", "tcgen05.st"),
    "K or V is overwritten while an MMA still reads it": ("race", "cp.async.bulk.tensor", "tcgen05.mma"),
    "TMEM is deallocated while other warps use it": ("tmem-dealloc-in-use", "tcgen05.dealloc", "tcgen05"),
}


def generated_cuda(checkout: Path) -> str:
    """The CUDA that TileLang generates for the 'ts' variant of the example."""
    import tilelang
    from tilelang import tvm
    from tilelang.transform.pass_config import normalize_pass_configs
    from tvm.target import Target

    path = checkout / "examples/flash_attention_sm100/mha_fwd_bshd.py"
    spec = importlib.util.spec_from_file_location("mha_fwd_bshd", path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    target = Target({"kind": "cuda", "arch": "sm_100a"})
    program = module.flashattn.jit_impl if hasattr(module.flashattn, "jit_impl") else module.flashattn
    func = program.get_tir(1, 1, SEQ, DIM, True, 128, 128, "ts")
    with tvm.transform.PassContext(opt_level=3, config=normalize_pass_configs(module.PASS_CFG) or {}), target:
        return tilelang.lower(
            func, target=target, enable_host_codegen=False, enable_device_compile=False
        ).kernel_source


def to_ptx(cuda: str) -> str:
    from tilelang.contrib import nvcc

    with tempfile.TemporaryDirectory() as d:
        source, out = Path(d) / "kernel.cu", Path(d) / "kernel.ptx"
        source.write_text(cuda)
        command = [
            "nvcc",
            "--ptx",
            "-O3",
            "-lineinfo",
            "-arch=sm_100a",
            *nvcc.default_compile_options(),
            "-o",
            str(out),
            str(source),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(done.stderr)
        return out.read_text()


def patched(cuda: str) -> str:
    for why, (old, new) in PATCHES.items():
        if old not in cuda:
            sys.exit(f"the generated code no longer has the pattern of: {why}")
        cuda = cuda.replace(old, new)
    at = cuda.index(DEALLOC)
    branch = cuda.rindex("if (", 0, at)  # the branch of the warp that deallocates
    sync = "tl::tcgen05_before_thread_sync(); __syncthreads(); tl::tcgen05_after_thread_sync();\n  "
    return cuda[:branch] + sync + cuda[branch:]


def run(ptx: str, interleaving: object) -> tuple[Report, float]:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, SEQ, 1, DIM).bfloat16() for _ in range(3))
    out = torch.zeros_like(q)

    def tiled(t: torch.Tensor) -> TensorMap:
        return TensorMap(
            t, (64, 128, 1, 1), "128B", dims=(DIM, SEQ, 1, 1), strides=(2 * DIM, 2 * DIM, 2 * DIM * SEQ)
        )

    report = launch(
        ptx,
        (SEQ // 128, 1, 1),
        384,
        [tiled(k), out, tiled(q), tiled(v)],
        dynamic_smem=100352,
        interleaving=interleaving,
        check="report",
        max_findings=2000,
    )  # type: ignore[arg-type]
    scores = (q[0, :, 0].float() @ k[0, :, 0].float().T) * DIM**-0.5
    scores = scores.masked_fill(torch.triu(torch.ones(SEQ, SEQ, dtype=torch.bool), 1), float("-inf"))
    return report, (out[0, :, 0].float() - scores.softmax(-1) @ v[0, :, 0].float()).abs().max().item()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tilelang", type=Path, required=True, help="checkout of tile-ai/tilelang")
    parser.add_argument("--interleavings", type=int, default=20)
    a = parser.parse_args()
    cuda = generated_cuda(a.tilelang)
    found: dict[str, str] = {}
    ptx = to_ptx(cuda)
    for s in interleavings(a.interleavings, warps=12):
        report, error = run(ptx, s)
        for f in report.errors:
            for name, (code, here, before) in DEFECTS.items():
                if f.code == code and f.where and f.other and here in f.where.text and before in f.other.text:
                    found.setdefault(name, f"[{f.code}] {f.where}, after {f.other}")
        print(f"as published   {s}: {len(report.errors)} errors, largest difference {error:.3g}")
    for name in DEFECTS:
        print(f"{name}: {found.get(name, 'NOT FOUND')}")
    clean = True
    ptx = to_ptx(patched(cuda))
    for s in interleavings(a.interleavings, warps=12):
        report, error = run(ptx, s)
        clean &= report.ok and error < 0.01
        print(f"patched        {s}: {len(report.errors)} errors, largest difference {error:.3g}")
    return 0 if len(found) == len(DEFECTS) and clean else 1


if __name__ == "__main__":
    sys.exit(main())
