"""Chains of known length between the marks of probes: the sums of their regions beside the known clocks.

    python benchmarks/probe_chains.py [--out FILE]

Each float32 multiply-add waits for the one before it, four clocks on sm_90. A product of 64x128x128 in
float16 occupies the tensor cores of an SM for 512 clocks, and products into one accumulator follow each other
without a gap. The marks are the device code of `dsl_kernels/device/tilelang/probes.py`; CuTe DSL's are the
same instructions. A region counts from the mark before it. `empty` lies between two adjacent marks; every
region contains that much, and those of products also the wait for the last one. Every chain runs twice, and
the second pass counts, as the first fetches the instructions.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dsl_kernels_lab.cases._cuda import Source  # noqa: E402

FMA_CLOCKS = 4
PRODUCT_CLOCKS = 2 * 64 * 128 * 128 // 4096
FMAS = (10, 64, 1024)
PRODUCTS = (1, 8, 64)
STEPS = 128 // 16
ACCUMULATORS = 64
REPEATS = 20
LIMIT = 0.02
"""The relative error that a long chain may have."""
LONG = 4000
"""Clocks from which on a chain is long: marks and the wait for the last product no longer matter."""


def leaves() -> str:
    """Device code of the probes, without TileLang."""
    tree = ast.parse((ROOT / "dsl_kernels" / "device" / "tilelang" / "probes.py").read_text())
    assigned = (n for n in tree.body if isinstance(n, ast.Assign) and isinstance(n.targets[0], ast.Name))
    return str(next(ast.literal_eval(n.value) for n in assigned if n.targets[0].id == "SOURCE"))


def regions() -> dict[str, int]:
    """Clocks of each region, in the order of their numbers; 0 where it is only marks."""
    fmas = {f"{count} multiply-adds": count * FMA_CLOCKS for count in FMAS}
    return {"empty": 0, **fmas, **{f"{count} products": count * PRODUCT_CLOCKS for count in PRODUCTS}}


def _product(count: int) -> str:
    """Products into one accumulator and the wait for them: one statement, so nothing is scheduled between."""
    registers = ", ".join(f"%{i}" for i in range(ACCUMULATORS))
    steps = "".join(
        f"wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {{{registers}}}, a{i}, b{i}, 1, 1, 1, 0, 0;\\n"
        for i in range(STEPS)
    )
    # Eight rows of eight elements are 128 contiguous bytes; the next eight rows follow, then the next eight
    # elements.
    moved = "".join(
        f"add.s64 a{i}, %{ACCUMULATORS}, {i * 2 * 64 * 16 >> 4}; "
        f"add.s64 b{i}, %{ACCUMULATORS + 1}, {i * 2 * 128 * 16 >> 4};\\n"
        for i in range(STEPS)
    )
    outputs = ", ".join(f'"+f"(acc[{i}])' for i in range(ACCUMULATORS))
    return (
        f'asm volatile("{{ .reg .pred more; .reg .b32 left; .reg .b64 a<{STEPS}>, b<{STEPS}>;\\n'
        f"{moved}mov.b32 left, {count};\\n"
        f"wgmma.fence.sync.aligned;\\nNEXT:\\n{steps}"
        "sub.s32 left, left, 1; setp.gt.s32 more, left, 0; @more bra NEXT;\\n"
        'wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0; }"\n'
        f'    : {outputs} : "l"(a), "l"(b) : "memory");'
    )


def text() -> str:
    """One warpgroup; each warp leaves its sums in `sums[32 * warp + region]` and its values in `result`."""
    numbers = iter(range(len(regions())))

    def mark() -> str:
        summed = f"probes::sum(spent, now, then, lane, {next(numbers)})"
        return f"now = probes::clock(); spent = {summed}; then = now;"

    body = [mark()]
    for count in FMAS:
        chain = 'asm volatile("fma.rn.f32 %0, %0, %1, %2;" : "+f"(x) : "f"(factor), "f"(one));'
        body.append(f"#pragma unroll\n  for (int i = 0; i < {count}; ++i) {chain}\n  {mark()}")
    body += [f"{_product(count)}\n  {mark()}" for count in PRODUCTS]
    statements = "\n  ".join(body)
    return f"""{leaves()}
__device__ unsigned long long rows_of(unsigned at, unsigned long long columns) {{
  return ((at >> 4) & 0x3FFF) | (columns >> 4) << 16 | (128ull >> 4) << 32;
}}
extern "C" __global__ __launch_bounds__(128) void chains(int* sums, float* result, float factor, float one) {{
  extern __shared__ __align__(1024) unsigned words[];
  int lane = threadIdx.x % 32, spent = 0, then = 0, now = 0;
  for (int i = threadIdx.x; i < 192 * 128 / 2; i += 128) words[i] = 0x3C003C00u;  // float16 ones
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  unsigned at = unsigned(__cvta_generic_to_shared(words));
  unsigned long long a = rows_of(at, 64 * 16), b = rows_of(at + 64 * 128 * 2, 128 * 16);
  float x = 0.0f, acc[{ACCUMULATORS}];
#pragma unroll
  for (int i = 0; i < {ACCUMULATORS}; ++i) acc[i] = 0.0f;
#pragma unroll 1
  for (int pass = 0; pass < 2; ++pass) {{
  spent = 0;
  then = probes::clock();
  {statements}
  }}
  sums[threadIdx.x] = spent;
  result[threadIdx.x] = x;
  for (int i = 0; i < {ACCUMULATORS}; ++i) result[128 * (i + 1) + threadIdx.x] = acc[i];
}}
"""


SOURCE = Source(text(), "probe_chains")
SHARED = 192 * 128 * 2
EXPECTED = (2.0 * sum(FMAS), 2.0 * 128 * sum(PRODUCTS))
"""The results of all multiply-adds, with factor 1 and addend 1, and of every element of the products."""


def judged(sums: list[int]) -> list[dict[str, Any]]:
    """Each region of a warp beside its known length; `holds`: whether it is within LIMIT, None if short."""
    rows = []
    for (name, known), got in zip(regions().items(), sums, strict=False):
        row = {"region": name, "known": known, "measured": got, "net": got - sums[0]}
        off = got / known - 1 if known else None
        holds = None if off is None or known < LONG else abs(off) <= LIMIT
        rows.append({**row, "off": off, "holds": holds})
    return rows


def main() -> int:
    import torch

    from dsl_kernels_lab.timing import bench

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the record here (JSON)")
    options = parser.parse_args()
    gpu = bench.require_gpu()
    sums = torch.zeros(128, dtype=torch.int32, device="cuda")
    result = torch.full((ACCUMULATORS + 1, 128), float("nan"), device="cuda")
    samples = []
    for _ in range(REPEATS):
        SOURCE.launch("chains", 1, 128, sums, result, 1.0, 1.0, shared=SHARED)
        samples.append(sums.cpu()[: len(regions())].tolist())
    if not (result[0].eq(EXPECTED[0]).all() and result[1:].eq(EXPECTED[1]).all()):
        print(f"wrong: {result[0, 0].item()} and {result[1, 0].item()}, not {EXPECTED}", file=sys.stderr)
        return 1
    rows = judged([int(statistics.median(each)) for each in zip(*samples, strict=True)])
    print(
        f"{gpu}\n\n| region | known clocks | measured | less `empty` | off |\n| --- | --- | --- | --- | --- |"
    )
    for row in rows:
        off = "-" if row["off"] is None else f"{row['off']:+.1%}"
        print(f"| {row['region']} | {row['known']} | {row['measured']} | {row['net']} | {off} |")
    if options.out:
        record = {"environment": bench.environment(), "rows": rows}
        options.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if all(row["holds"] is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
