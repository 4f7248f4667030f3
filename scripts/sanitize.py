"""Launch this GPU's variants on their tiny and edge workloads and compare; meant to run under
compute-sanitizer.

    compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 \\
        python scripts/sanitize.py [FILTER]
    compute-sanitizer --tool racecheck --error-exitcode 9 \\
        python scripts/sanitize.py [FILTER] [--workloads REGEX]

API errors are off because the CUDA bindings probe for driver functions that may not exist. FILTER is a
regular expression searched in the variant id, REGEX in the workload's name. Each launch is printed when it
ends, so that an interrupted run shows how far it came.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dsl_kernels import variants  # noqa: E402
from dsl_kernels.executors import Cuda, gpu_at_hand  # noqa: E402
from dsl_kernels_lab.verification import trial  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("filter", nargs="?", default="", help="searched in the variant id")
    parser.add_argument("--workloads", default="", help="searched in the workload's name")
    options = parser.parse_args()
    gpu = gpu_at_hand(0)
    failures, launches, ran = [], 0, 0
    for variant in variants.variants(arch=gpu.arch.name):
        if not re.search(options.filter, variant.id):
            continue
        ran += 1
        for workload in trial.workloads(variant, "tiny", "edge"):
            if not re.search(options.workloads, workload.name):
                continue
            drawn = trial.cached_example(variant.op, workload)
            begin = time.perf_counter()
            result = trial.run(variant, workload, Cuda(), device="cuda:0", example=drawn)
            launches += 1
            failures += [f"{variant.id} {workload.name}: {text}" for text in result.comparison.failures]
            print(f"{variant.id} {workload.name}: {time.perf_counter() - begin:.1f} s", flush=True)
    print(f"{gpu.device}: {ran} variants, {launches} launches, {len(failures)} wrong results")
    print("\n".join(failures[:20]))
    return 1 if failures or not launches else 0


if __name__ == "__main__":
    sys.exit(main())
