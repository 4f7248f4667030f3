"""The clock's walk of a kernel beside its regions on hardware, role by role.

    python -m dsl_kernels profile regions VARIANT --form F --dim ... --executor cuda --json > a.json
    python benchmarks/clock_regions.py a.json b.json ...    # needs no GPU

Prints a Markdown table: clocks of a CTA by role, then the regions of that role whose clocks differ most. On
hardware a figure is the median of the CTAs, with the clocks of the probes, about 25 a mark.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from dsl_kernels import clock, programs, registry, variants  # noqa: E402
from dsl_kernels.arch import GPUS  # noqa: E402

SHOWN = ("t", "b", "heads", "topk", "splits", "len")
"""Sizes that a row names."""


def walked(run: dict[str, Any], gpu: str) -> dict[str, dict[str, float]]:
    """Role -> region -> clocks of the first CTA of a walk of the run's launch."""
    variant = variants.get(run["variant"])
    row, form = GPUS[gpu], programs.get(variant.op).form(variant.knobs)
    call = registry.Call(variant.op, form, row.arch.name, run["dims"], row.device)
    sm = clock.sm_of(call, variant, kept=True)
    sm.walk()
    roles: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for task in sm.tasks:
        if task.cta == 0:
            for span in task.spans:
                roles[task.name][span.region.partition(" of ")[0] or "start"] += span.end - span.begin
    return roles


def rows(run: dict[str, Any], gpu: str, most: int) -> list[str]:
    """A row for each role, and one for each of its `most` regions that differ most."""
    made, walk = [], walked(run, gpu)
    sizes = " ".join(f"{name}={run['dims'][name]}" for name in SHOWN if name in run["dims"])
    title = f"`{run['variant'].partition('__')[2]}`, {sizes}"
    for role in run["roles"]:
        name = role["role"]
        seen = {region["region"]: region["ticks"]["median"] for region in role["regions"]}
        of_walk = walk.get(name, {})
        made.append(f"| {title} | {name} | all | {sum(seen.values()):.0f} | {sum(of_walk.values()):.0f} |")
        title = ""
        apart = sorted({*seen, *of_walk}, key=lambda r: -abs(seen.get(r, 0.0) - of_walk.get(r, 0.0)))
        for region in apart[:most]:
            made.append(f"| | | {region} | {seen.get(region, 0.0):.0f} | {of_walk.get(region, 0.0):.0f} |")
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="outputs of `profile regions --json`")
    parser.add_argument("--gpu", choices=sorted(GPUS), default="H200")
    parser.add_argument("--most", type=int, default=4, help="regions of each role")
    given = parser.parse_args()
    print("| kernel | role | region | hardware, clocks | walk, clocks |")
    print("| --- | --- | --- | --- | --- |")
    for path in given.runs:
        print("\n".join(rows(json.loads(path.read_text()), given.gpu, given.most)))


if __name__ == "__main__":
    main()
