"""The shares of a role's regions by NVIDIA's `run-iket`, beside those by this project's probes.

    python benchmarks/iket_shares.py --precompile build/iket            # needs CuTe DSL, but no GPU
    python benchmarks/iket_shares.py --bundle build/iket --out FOLDER   # needs a GPU and the package `iket`

The first command compiles a CuTe DSL kernel with probes twice: with sums, and with each mark replaced by a
mark of `cute.experimental.iket`. Both end the same regions at the same places. The second runs the first
build and reads its sums, runs the other under `run-iket profile`, and prints the shares side by side. A mark
of `run-iket` is the global timer at the end of a region: the region lasts from the same warp's mark before
it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

CALLS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("sparse_mla", "bf16", {"t": 16, "heads": 16, "pages": 4096, "topk": 2048}),
    ("lightning_indexer", "decode", {"b": 16, "len": 32768, "heads": 64, "next_n": 1}),
)
ARCH, GPU = "sm_90a", "NVIDIA H200"
NAME = "region"
MARKS = 2048
"""Time stamps per warp that `run-iket` makes room for."""
LIMIT = 0.03
"""The largest accepted difference of two shares."""


def precompile(folder: Path) -> None:
    """Write generated/, a bundle with our probes and one with `run-iket`'s marks below a folder."""
    from probe_cost import dims_of

    from codegen.emit import emit
    from codegen.sweep import instance_of
    from dsl_kernels import registry, variants
    from dsl_kernels.backends import cutedsl
    from dsl_kernels.runtime import bundle
    from dsl_kernels.runtime.pool import compile_all
    from dsl_kernels.tile.lang import SUMS
    from dsl_kernels_lab.timing import grids

    chosen = [
        registry.select(registry.Call(op, form, ARCH, dims_of(grids.Point(op, form, sizes)), GPU))
        for op, form, sizes in CALLS
    ]
    launches = [{"variant": pick.variant.id, "launch": dict(pick.launch)} for pick in chosen]
    emit([instance_of(pick.variant, SUMS) for pick in chosen], folder / "generated")
    (folder / "launches.json").write_text(json.dumps(launches, indent=1) + "\n")
    probed = variants.in_folder(folder / "generated")
    compiled = {done.variant: done.folder for done in compile_all(probed) if done.folder is not None}
    bundle.write(folder / "bundle", probed, compiled, replace=True)

    from cutlass.cute.experimental import iket

    from dsl_kernels.device.cutedsl import probes

    def mark_region(spent: Any, then: Any, lane: Any, region: int) -> tuple[Any, Any]:
        iket.mark(NAME, payload=int(region))
        return spent, then

    probes.mark_region = mark_region
    flags = cutedsl.CuteDslBackend.flags
    patched = lambda *args, **named: ["iket", *flags(*args, **named)]  # noqa: E731
    cutedsl.CuteDslBackend.flags = patched  # type: ignore[method-assign]
    marked = {}
    for variant in probed:
        marked[variant.id] = folder / "marked" / variant.id
        cutedsl.compile_module(variant.path, variant.arch, marked[variant.id])
    bundle.write(folder / "marked_bundle", probed, marked, replace=True)


def launch(folder: Path, number: int) -> tuple[Any, Any, Any]:
    """Run a variant with probes a few times; returns its point, the variant, and the sizes of the launch."""
    import torch

    from dsl_kernels import variants
    from dsl_kernels_lab.timing import grids

    recorded = json.loads((folder / "launches.json").read_text())[number]
    point = grids.Point(*CALLS[number])
    fixture, probed = grids.prepare(point), variants.get(f"{recorded['variant']}_probe1")
    with torch.inference_mode():
        call = fixture.calls(probed.id, recorded["launch"])[-1]
        for _ in range(3):
            call()
        torch.cuda.synchronize()
    return point, probed, {**fixture.dims, **recorded["launch"]}


def shares_by_probes(folder: Path, number: int) -> tuple[Any, dict[str, dict[str, float]]]:
    """The variant, and the shares of each role's regions."""
    from probe_cost import regions_of

    from dsl_kernels_lab.profile import regions

    point, probed, dims = launch(folder, number)
    _, run = regions_of(point, probed, dims)
    roles = regions.table(run).roles
    return probed, {role.role: {row.region: row.share for row in role.regions} for role in roles}


def shares_by_iket(variant: Any, trace: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The shares of each role's regions in the last launch of a trace."""
    from dsl_kernels import programs
    from dsl_kernels.arch import get_arch
    from dsl_kernels_lab.profile import readings

    layout = programs.get(variant.op).probes(variant.knobs, get_arch(variant.arch))
    last = [each for each in trace["launches"] if each["markers"]][-1]
    began = {each["locIdx"]: each["startTs"] for each in last["warpLifetimes"]}
    marks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for mark in last["markers"]:
        marks[mark["locIdx"]].append((mark["timestamp"], int(mark["payloadVal"])))
    spent: dict[str, dict[str, float]] = {}
    for role, names in layout.regions.items():
        mine, sums = set(readings.warps_of(layout, role)), defaultdict(float)
        for place, stamps in marks.items():
            if trace["locationTable"][place]["warpId"] not in mine:
                continue
            before = began[place]
            # Marks with equal time stamps keep the order in which they were recorded.
            for at, number in sorted(stamps, key=lambda mark: mark[0]):
                sums[names[number]] += at - before
                before = at
        total = sum(sums.values()) or 1.0
        spent[role] = {region: value / total for region, value in sums.items()}
    return spent


def session(folder: Path, out: Path) -> int:
    """Measure both ways on the GPU, and print the shares side by side."""
    failed = 0
    for number, (op, form, sizes) in enumerate(CALLS):
        variant, ours = shares_by_probes(folder, number)
        there = out / f"iket{number}"
        argv = [
            sys.executable,
            "-m",
            "iket.cli.main",
            "--output-dir",
            str(there),
            "profile",
            "--postprocess",
            "json",
        ]
        argv += ["--max-ts-cnt-per-warp", str(MARKS), "--", sys.executable, __file__]
        argv += ["--bundle", str(folder), "--launch", str(number)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        traces = sorted(there.rglob("*.trace.json"))
        if done.returncode or not traces:
            print(done.stdout[-3000:], done.stderr[-3000:], file=sys.stderr)
            failed += 1
            continue
        theirs = shares_by_iket(variant, json.loads(traces[-1].read_text()))
        record = {"variant": variant.id, "form": form, **sizes, "probes": ours, "iket": theirs}
        (out / f"iket_{op}.json").write_text(json.dumps(record, indent=1) + "\n")
        print(f"\n{variant.id} {sizes}\n\n| role | region | probes | run-iket |\n| --- | --- | --- | --- |")
        for role, regions in ours.items():
            for region, share in regions.items():
                other = theirs[role].get(region, 0.0)
                failed += abs(share - other) > LIMIT
                print(f"| {role} | {region} | {share:.1%} | {other:.1%} |")
    return 1 if failed else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--precompile", type=Path, help="folder to write the generated set and its bundles to"
    )
    parser.add_argument(
        "--bundle", type=Path, default=ROOT / "build" / "iket", help="the folder that --precompile wrote"
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "profile_out")))
    parser.add_argument(
        "--launch", type=int, help="only run the kernel of this call, with marks of `run-iket`"
    )
    options = parser.parse_args()
    if options.precompile:
        precompile(options.precompile.absolute())
        return 0
    folder = options.bundle.absolute()
    os.environ["DSL_KERNELS_GENERATED_DIR"] = str(folder / "generated")
    os.environ["DSL_KERNELS_BUNDLE_DIR"] = str(
        folder / ("bundle" if options.launch is None else "marked_bundle")
    )
    os.environ["DSL_KERNELS_DISABLE_JIT"] = "1"
    os.environ.setdefault("DSL_KERNELS_CACHE_DIR", "/tmp/dsl_kernels_cache")
    if options.launch is not None:
        launch(folder, options.launch)
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    return session(folder, options.out.absolute())


if __name__ == "__main__":
    sys.exit(main())
