"""Run every case on this GPU, each in its own process, within a time limit; writes records and a log.

    python benchmarks/cases_session.py OUT [--limit 440] [--only reduction,transfers]
    python benchmarks/cases_session.py OUT --precompile    # no GPU: the variants that a case alone launches

If a case fails, its error goes to `session.json` and the others go on. Counters are read after all times, by
Nsight Compute if it is installed. Claims, pages and pictures are made from the records, without a GPU.

Variants that are in no generated set (`gqa_regions`) are rendered and compiled when their case runs. Without
a compiler, write them beforehand with --precompile, and point DSL_KERNELS_GENERATED_DIR and
DSL_KERNELS_BUNDLE_DIR at OUT/generated and OUT/bundle.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsl_kernels_lab import cases
from dsl_kernels_lab.cases import base

ROOT = Path(__file__).resolve().parent.parent
# Seconds of device time that a case may take; their sum leaves room for the counters.
ORDER = {
    "reduction": 25,
    "resample": 25,
    "transfers": 30,
    "triton_attention": 45,
    "split_k": 50,
    "gqa_regions": 60,
    "gather_occupancy": 60,
    "dense_sparse": 60,
}


def measure(name: str, folder: Path, budget: int, left: float) -> dict[str, Any]:
    """Time a case, by the command that a reader would type."""
    command = [
        sys.executable, "-m", "dsl_kernels", "case", "run", name, "--full", "--no-counters", "--budget",
        str(budget),
        "--out", str(folder / f"{name}.json"),
    ]  # fmt: skip
    begin = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=min(budget + 60, left), check=False
        )
        outcome = {"status": done.returncode, "output": done.stdout[-300:], "errors": done.stderr[-1500:]}
    except subprocess.TimeoutExpired:
        outcome = {"status": None, "errors": "no end in time"}
    return {"case": name, "seconds": round(time.monotonic() - begin, 1), **outcome}


def count(name: str, folder: Path, left: float) -> dict[str, Any]:
    """Read the counters of a case into its record."""
    from dsl_kernels_lab.cases import _counters

    case, path = cases.get(name), folder / f"{name}.json"
    begin = time.monotonic()
    if not case.launches or not path.exists() or left < 15:
        return {"case": name, "counters": "not asked for", "left": round(left)}
    record = base.read(path)
    _counters.add(record, case, timeout=min(90.0, left))
    base.write(record, path)
    return {"case": name, "counters": list(record["counters"]), "seconds": round(time.monotonic() - begin, 1)}


def precompile(folder: Path) -> None:
    """Write the generated set and bundle for `gqa_regions`, which has variants of its own."""
    from codegen.emit import emit
    from codegen.sweep import instance_of
    from dsl_kernels import variants
    from dsl_kernels.runtime import bundle
    from dsl_kernels.runtime.pool import compile_all
    from dsl_kernels_lab.cases import gqa_regions

    wanted = [
        instance_of(variants.get(f"{gqa_regions.OP}__cutedsl_sm90a__{one.base}"), mode, **one.changed)
        for one, mode in gqa_regions.every()
    ]
    emit(wanted, folder / "generated")
    every = variants.in_folder(folder / "generated")
    folders = {}
    for outcome in compile_all(every):
        if outcome.error is not None or outcome.folder is None:
            raise SystemExit(f"{outcome.variant}: {outcome.error}")
        folders[outcome.variant] = outcome.folder
        print(f"{len(folders)} of {len(every)}: {outcome.variant} {outcome.seconds:.1f} s", flush=True)
    bundle.write(folder / "bundle", every, folders, replace=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, help="folder of the records")
    parser.add_argument("--limit", type=float, default=440.0, help="seconds for everything")
    parser.add_argument("--only", help="names of cases, separated by commas")
    parser.add_argument(
        "--precompile", action="store_true", help="write OUT/generated and OUT/bundle, no GPU"
    )
    options = parser.parse_args()
    if options.precompile:
        precompile(options.out.absolute())
        return 0
    end = time.monotonic() + options.limit
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = options.only.split(",") if options.only else list(ORDER)
    log: list[dict[str, Any]] = []

    def note(entry: dict[str, Any]) -> None:
        log.append(entry)
        (options.out / "session.json").write_text(json.dumps(log, indent=1) + "\n")
        print(json.dumps({**entry, "output": None}), flush=True)

    for name in chosen:
        note(measure(name, options.out, ORDER.get(name, 60), max(1.0, end - time.monotonic())))
    for name in chosen:
        note(count(name, options.out, end - time.monotonic()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
