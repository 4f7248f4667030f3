"""Launch every variant of this GPU once on its tiny and edge workloads; meant to run under compute-sanitizer.

    compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 python scripts/sanitize.py [FILTER]
    compute-sanitizer --tool racecheck --error-exitcode 9 python scripts/sanitize.py [FILTER]

API errors are left out because the CUDA bindings probe for driver functions that are not there. FILTER is a regular expression searched in the variant id. Results are compared with the reference too.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dsl_kernels import trial, variants  # noqa: E402
from dsl_kernels.executors import Cuda  # noqa: E402
from dsl_kernels.ops._base import device_facts  # noqa: E402


def main() -> int:
    wanted = re.compile(sys.argv[1] if len(sys.argv) > 1 else "")
    arch, gpu = device_facts(0)
    failures, launches, ran = [], 0, 0
    for variant in variants.variants(arch=arch):
        if not wanted.search(variant.id):
            continue
        ran += 1
        for workload in trial.workloads(variant, "tiny", "edge"):
            drawn = trial.cached_case(variant.op, workload)
            result = trial.run(variant, workload, Cuda(), device="cuda:0", case=drawn)
            launches += 1
            failures += [f"{variant.id} {workload.name}: {text}" for text in result.comparison.failures]
    print(f"{gpu}: {ran} variants, {launches} launches, {len(failures)} wrong results")
    print("\n".join(failures[:20]))
    return 1 if failures or not launches else 0


if __name__ == "__main__":
    sys.exit(main())
