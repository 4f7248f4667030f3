"""What the runtime costs on the host: import, selection, loading from the cache, a launch, an op call.

    python benchmarks/runtime_costs.py [--json] [--variant ID]

The launch rows need a GPU. They launch an empty kernel with as many parameters as the attention op, whose PTX
is in this file, so neither a DSL nor a compiled variant is needed, and compare with the bare driver call on
the same prepared arguments. Times are medians; `budget` is the project's own limit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dsl_kernels import variants  # noqa: E402
from dsl_kernels.arch import arch_for_capability, get_arch  # noqa: E402
from dsl_kernels.errors import DslKernelError, ExecutorUnavailableError  # noqa: E402
from dsl_kernels.runtime import cache, launch  # noqa: E402
from dsl_kernels.runtime.artifact import Artifact, Operand, Param, Resources, TensorMap  # noqa: E402
from dsl_kernels.runtime.driver import get_driver  # noqa: E402

TENSORS = (
    "q_nope",
    "q_pe",
    "ckv",
    "kpe",
    "indices",
    "attn_sink",
    "out",
    "lse",
    "o_partial",
    "lse_partial",
    "arrivals",
)
DIMS = ("t", "n", "topk", "splits")
SCALARS = ("sm_scale", "lse_scale")
# Upper limit of the host time of one launch.
LAUNCH_BUDGET_US = 8.0


def median_us(
    function: Callable[[], object], calls: int, rounds: int = 9, settle: Callable[[], object] = lambda: None
) -> float:
    """Median over rounds of the mean host time of one call; `settle` drains the device between rounds."""
    times = []
    for _ in range(rounds):
        settle()
        begin = time.perf_counter()
        for _ in range(calls):
            function()
        times.append((time.perf_counter() - begin) / calls * 1e6)
        settle()
    return statistics.median(times)


def process_ms(code: str, rounds: int = 7) -> list[float]:
    """The number that a program prints (milliseconds), in several fresh processes."""
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"]
    return [
        float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        for _ in range(rounds)
    ]


def import_rows() -> list[dict[str, Any]]:
    timed = "import time; b = time.perf_counter()\nimport dsl_kernels\nprint((time.perf_counter() - b) * 1e3)"
    packages = "'torch', 'tilelang', 'cutlass', 'cuda.bindings', 'jinja2', 'pydantic'"
    heavy = f"import dsl_kernels\nprint(sum(m in sys.modules for m in ({packages})))"
    return [
        {
            "what": "import dsl_kernels",
            "value": statistics.median(process_ms(timed)),
            "unit": "ms",
            "budget": 500.0,
        },
        {
            "what": "heavy packages imported with it",
            "value": process_ms(heavy, 1)[0],
            "unit": "",
            "budget": 0.0,
        },
    ]


def cache_rows(wanted: str | None) -> list[dict[str, Any]]:
    """Load times of compiled variants: in a fresh process, including imports, and in a warm one."""
    compiled = [v for v in variants.variants() if wanted in (None, v.id) and cache.lookup(v) is not None]
    if not compiled:
        return [
            {"what": "load from cache", "note": "no compiled variant: run `python -m dsl_kernels compile`"}
        ]
    variant = compiled[0]
    imports = "from dsl_kernels import variants\nfrom dsl_kernels.runtime import cache\n"
    clock, load = (
        "import time; b = time.perf_counter()\n",
        f"cache.load(variants.get({variant.id!r}), build=False)\n",
    )
    stop = "print((time.perf_counter() - b) * 1e3)"
    warm = [_ms(lambda v=v: cache.load(v, build=False)) for v in compiled]
    rows = [
        {
            "what": "import the cache and the launcher",
            "value": statistics.median(process_ms(clock + imports + stop)),
            "unit": "ms",
        },
        {
            "what": f"first load, {variant.id}",
            "value": statistics.median(process_ms(imports + clock + load + stop)),
            "unit": "ms",
            "budget": 100.0,
        },
        {
            "what": f"load from cache, warm process, median of {len(warm)}",
            "value": statistics.median(warm),
            "unit": "ms",
            "budget": 100.0,
        },
    ]
    try:
        get_driver()
        prepared = [kernel for kernel in map(_loaded, compiled) if _fits(kernel)]
        if prepared:
            moved = [_ms(lambda k=k: k.prepare(0)) for k in prepared]
            row = {
                "what": f"load onto the GPU (module), median of {len(moved)}",
                "value": statistics.median(moved),
                "unit": "ms",
                "budget": 100.0,
            }
            rows.append(row)
    except ExecutorUnavailableError as error:
        rows.append({"what": "load onto the GPU", "note": error.got.splitlines()[0]})
    return rows


def launch_rows() -> list[dict[str, Any]]:
    try:
        driver = get_driver()
        import torch

        arch = arch_for_capability(*torch.cuda.get_device_capability()).name
    except (DslKernelError, ImportError) as error:
        return [{"what": "launch", "note": str(error).splitlines()[0][:160]}]
    tensors = {name: torch.zeros(64, 64, dtype=torch.bfloat16, device="cuda") for name in TENSORS}
    operands, dims = {**tensors, "sm_scale": 0.1, "lse_scale": 1.0}, dict.fromkeys(DIMS, 64)
    stream = torch.cuda.current_stream().cuda_stream
    rows = []
    for maps in (0, 3):
        kernel = empty_kernel(arch, maps)
        kernel.check(operands)
        kernel.launch(operands, dims, stream)
        slot = kernel._slots.slot
        call, config, handle, parameters = (
            driver.api.cuLaunchKernelEx,
            slot.config,
            kernel._kernel,
            slot.parameters,
        )
        settle = torch.cuda.synchronize
        bare = median_us(lambda c=call, f=config, h=handle, p=parameters: c(f, h, p, 0), 500, settle=settle)
        given = median_us(lambda k=kernel: k.launch(operands, dims, stream), 500, settle=settle)
        derived = median_us(lambda k=kernel: k.launch(operands, None, stream), 500, settle=settle)
        label = f"{len(TENSORS)} tensors, {len(DIMS)} dims, {len(SCALARS)} numbers, {maps} tensor maps"
        rows += [
            {"what": f"bare cuLaunchKernelEx ({label})", "value": bare, "unit": "us"},
            {
                "what": "  launch(operands, dims)",
                "value": given,
                "unit": "us",
                "budget": LAUNCH_BUDGET_US,
                "ratio": given / bare,
            },
            {"what": "  launch(operands)", "value": derived, "unit": "us", "ratio": derived / bare},
        ]
    index = torch.cuda.current_device()
    rows += [
        {
            "what": "torch.cuda.current_stream().cuda_stream",
            "value": median_us(lambda: torch.cuda.current_stream().cuda_stream, 500),
            "unit": "us",
        },
        {
            "what": "torch._C._cuda_getCurrentRawStream(index)",
            "value": median_us(lambda: torch._C._cuda_getCurrentRawStream(index), 500),
            "unit": "us",
        },
    ]
    return rows


def _cold_calls(attention: Any) -> list[Any]:
    """A call of each operation and architecture for which a selection ranks all candidates."""
    from dataclasses import replace

    decode = {"b": 4, "next_n": 1, "heads": 64, "pages": 4096, "max_pages": 512, "stride": 32768}
    rows = {"rows": 4, "stride": 32768, "b": 4, "max_pages": 512, "k": 2048, "next_n": 1, "page_size": 64}
    calls = [
        attention,
        replace(attention, op="lightning_indexer", form="decode", dims=decode),
        replace(attention, op="topk_selector", form="default", dims=rows),
    ]
    return [replace(call, arch=arch) for call in calls for arch in ("sm_90a", "sm_100a")]


def selection_rows() -> list[dict[str, Any]]:
    """A repeated selection, selections without a cache, and rendering the committed set."""
    from codegen.render import render
    from codegen.sweep import sweep
    from dsl_kernels import registry

    dims = {"t": 4, "heads": 16, "topk": 2048, "n": 8192, "ckv_stride": 512, "kpe_stride": 64}
    call = registry.Call("sparse_mla", "bf16", "sm_90a", dims)
    kept = sweep().kept
    return [
        {
            "what": "select(call), repeated",
            "value": median_us(lambda: registry.select(call), 2000),
            "unit": "us",
            "budget": 5.0,
        },
        *(
            {
                "what": f"rank the candidates of {cold.op} on {cold.arch}, nothing cached",
                "value": median_us(lambda cold=cold: (registry.clear(), registry.select(cold)), 20),
                "unit": "us",
                "budget": 1000.0,
            }
            for cold in _cold_calls(call)
        ),
        {
            "what": f"render the committed set ({len(kept)} variants)",
            "value": _ms(lambda: [render(candidate) for candidate in kept]) / 1e3,
            "unit": "s",
            "budget": 5.0,
        },
    ]


def op_rows() -> list[dict[str, Any]]:
    """Host time of an op call, beside the driver's launch of the same kernel."""
    import torch

    if not torch.cuda.is_available():
        return [{"what": "op call", "note": "needs a GPU"}]
    from dsl_kernels import ops
    from dsl_kernels.ops import _base

    t, heads, topk, n = 4, 16, 512, 4096
    q = torch.randn(t, heads, 512, device="cuda").bfloat16()
    pe = torch.randn(t, heads, 64, device="cuda").bfloat16()
    kv = torch.randn(n, 576, device="cuda").bfloat16()
    ids = torch.randint(n, (t, topk), dtype=torch.int32, device="cuda")
    out, lse = ops.sparse_mla(q, pe, kv, ids, sm_scale=0.1)
    scores = torch.randn(t, 4096, device="cuda")
    ends = torch.full((t,), 4096, dtype=torch.int32, device="cuda")
    picked = ops.topk_selector(scores, ends, topk)
    calls = {
        "sparse_mla(..., out=, lse=)": lambda: ops.sparse_mla(q, pe, kv, ids, sm_scale=0.1, out=out, lse=lse),
        "sparse_mla(...)": lambda: ops.sparse_mla(q, pe, kv, ids, sm_scale=0.1),
        "topk_selector(..., out=)": lambda: ops.topk_selector(scores, ends, topk, out=picked),
    }
    driver = get_driver()
    kernels: list[Any] = list(_base._launchers.values())
    slot = kernels[0]._slots.slot
    bare = median_us(
        lambda: driver.api.cuLaunchKernelEx(slot.config, kernels[0]._kernel, slot.parameters, 0),
        200,
        settle=torch.cuda.synchronize,
    )
    rows = [{"what": "bare cuLaunchKernelEx of sparse_mla", "value": bare, "unit": "us"}]
    for label, call in calls.items():
        value = median_us(call, 200, settle=torch.cuda.synchronize)
        rows.append(
            {"what": f"  {label}", "value": value, "unit": "us", "budget": bare + 15, "ratio": value / bare}
        )
    return rows


def step_rows() -> list[dict[str, Any]]:
    """Host time of each launch of a decode step, on the operands that the step passes."""
    import torch

    if not torch.cuda.is_available():
        return [{"what": "launches of a decode step", "note": "needs a GPU"}]
    from dsl_kernels import ops
    from dsl_kernels_lab import steps

    launches: list[tuple[Any, ...]] = []
    real = launch.LoadedKernel.launch

    def record(kernel: launch.LoadedKernel, *arguments: Any) -> None:
        launches.append((kernel, *arguments))
        real(kernel, *arguments)

    inputs = steps.draw(steps.StepSize(batch=1, context=32768), device="cuda")[0]
    launch.LoadedKernel.launch = record
    try:
        ops.clear()
        inputs.run()
    finally:
        launch.LoadedKernel.launch = real
        ops.clear()
    rows = []
    for kernel, *arguments in launches:
        value = median_us(lambda k=kernel, a=arguments: k.launch(*a), 200, settle=torch.cuda.synchronize)
        bare = median_us(kernel._slots.slot.call, 200, settle=torch.cuda.synchronize)
        label = f"launch of {kernel.name} ({len(kernel.artifact.params)} parameters)"
        rows += [
            {"what": label, "value": value, "unit": "us", "budget": LAUNCH_BUDGET_US, "ratio": value / bare},
            {"what": "  of it the driver", "value": bare, "unit": "us"},
        ]
    return rows


def empty_kernel(arch: str, maps: int) -> launch.LoadedKernel:
    """A kernel that returns at once, with attention's parameters; the first `maps` tensors are maps."""
    mapped = TENSORS[:maps]
    params = [Param(f"{name}_desc", "tensormap", f"{name}_desc") for name in mapped]
    params += [Param(name, "pointer", name) for name in TENSORS[maps:]]
    params += [Param(name, "int32", name) for name in DIMS] + [
        Param(name, "float32", name) for name in SCALARS
    ]
    spelling = {
        "tensormap": ".align 64 .b8 p{}[128]",
        "pointer": ".u64 p{}",
        "int32": ".u32 p{}",
        "float32": ".f32 p{}",
    }
    signature = ", ".join(f".param {spelling[p.kind].format(i)}" for i, p in enumerate(params))
    ptx = f".version 8.0\n.target {arch}\n.address_size 64\n.visible .entry empty({signature}) {{ ret; }}\n\0"
    artifact = Artifact(
        variant="empty__ptx__launch_cost",
        backend="ptx",
        arch=arch,
        entry="empty",
        operands=(
            *(Operand(name, "tensor", "bfloat16", ("t", "n")) for name in TENSORS),
            *(Operand(name, "scalar", "float32") for name in SCALARS),
        ),
        params=tuple(params),
        dims={
            "t": ("q_nope", "shape", 0),
            "n": ("q_nope", "shape", 1),
            "topk": ("indices", "shape", 1),
            "splits": ("o_partial", "shape", 1),
        },
        grid=("t", "splits", "1"),
        block=(128, 1, 1),
        cluster=(1, 1, 1),
        dynamic_smem=0,
        cooperative=False,
        programmatic_launch=False,
        tensor_maps=tuple(
            TensorMap(
                f"{name}_desc", name, "BFLOAT16", ("n", "t"), ("n * 2",), (64, 64), (1, 1), swizzle="128B"
            )
            for name in mapped
        ),
        resources=Resources(0, 0, 0, 0, 0, 0, 0, 0),
        evidence={},
        toolchain={},
    )
    return launch.LoadedKernel(artifact, ptx.encode())


def _loaded(variant: variants.Variant) -> launch.LoadedKernel:
    return cache.load(variant, build=False)


def _fits(kernel: launch.LoadedKernel) -> bool:
    import torch

    return torch.cuda.get_device_capability() == get_arch(kernel.artifact.arch).compute_capability


def _ms(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON list instead of a table")
    parser.add_argument(
        "--variant", help="the variant that the load rows measure; by default any compiled one"
    )
    options = parser.parse_args()
    rows = [
        *import_rows(),
        *selection_rows(),
        *cache_rows(options.variant),
        *launch_rows(),
        *step_rows(),
        *op_rows(),
    ]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    for row in rows:
        if "note" in row:
            print(f"{row['what']:<78} {row['note']}")
            continue
        extra = f"  budget {row['budget']:.1f}" if "budget" in row else ""
        extra += f"  ratio {row['ratio']:.2f}" if "ratio" in row else ""
        print(f"{row['what']:<78} {row['value']:9.2f} {row['unit']:<3}{extra}")


if __name__ == "__main__":
    main()
