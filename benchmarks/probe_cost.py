"""What probes cost on a GPU, whether they change a bit of the result, and where the time of each kernel goes.

    python benchmarks/probe_cost.py --precompile build/probes          # with and without probes; needs no GPU
    python benchmarks/probe_cost.py --bundle build/probes --out FOLDER # needs a GPU, but no compiler

The first command takes the variants that the registry selects for a list of calls. It writes each with probes
off, with sums, with a trace and with waits only, as a generated set with its bundle, and writes the calls.
The second times each call with and without probes in turns and compares outputs bit for bit. It writes
probe_cost.json: the ratios with their noise, the regions of each kernel, the share of the kernel's time that
they cover, and medians over the calls.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

GPU, ARCH = "NVIDIA H200", "sm_90a"
MODES = {"sums": 1, "trace": 2, "coarse": 3}
LIMITS = {"sums": 1.03, "trace": 1.10, "coarse": 1.03}
# Op, form and sizes.
CALLS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("sparse_mla", "bf16", {"t": 1, "heads": 16, "pages": 4096, "topk": 2048}),
    ("sparse_mla", "bf16", {"t": 16, "heads": 16, "pages": 4096, "topk": 2048}),
    ("sparse_mla", "bf16", {"t": 64, "heads": 16, "pages": 4096, "topk": 2048}),
    ("sparse_mla", "fp8", {"t": 64, "heads": 16, "pages": 4096, "topk": 2048}),
    ("sparse_mla", "bf16", {"t": 128, "heads": 128, "pages": 4096, "topk": 2048}),
    ("sparse_mla", "fp8", {"t": 64, "heads": 128, "pages": 4096, "topk": 2048}),
    ("lightning_indexer", "decode", {"b": 1, "len": 131072, "heads": 64, "next_n": 1}),
    ("lightning_indexer", "decode", {"b": 16, "len": 32768, "heads": 64, "next_n": 1}),
    ("lightning_indexer", "decode", {"b": 64, "len": 131072, "heads": 64, "next_n": 1}),
    ("lightning_indexer", "prefill", {"s": 4096, "skv": 32768, "heads": 64}),
    ("topk_selector", "default", {"rows": 1, "len": 131072, "k": 2048}),
    ("topk_selector", "default", {"rows": 64, "len": 131072, "k": 2048}),
    ("topk_selector", "default", {"rows": 16, "len": 4096, "k": 2048}),
    ("gqa_forward", "", {"name": "s4096_fp16_d128"}),
    ("gqa_forward", "", {"name": "s4096_causal_fp16_d128"}),
    ("resample_trajectories", "", {"name": "real_b512"}),
)


def point_of(op: str, form: str, sizes: dict[str, Any]) -> Any:
    """A point of a grid, or the real workload of that name for an operation without a grid."""
    from dsl_kernels_lab import oracles
    from dsl_kernels_lab.timing import grids

    if "name" not in sizes:
        return grids.Point(op, form, sizes)
    workload = next(w for w in oracles.get(op).workloads if w.name == sizes["name"])
    return grids.Point(op, workload.form, dict(workload.params))


def dims_of(point: Any) -> dict[str, int]:
    """The sizes by which the registry selects for a point, without a GPU."""
    from profile_session import dims_of as of_grid

    from dsl_kernels_lab.oracles import Workload
    from dsl_kernels_lab.verification import trial

    p = point.params
    if point.form == "prefill":
        return {"s": p["s"], "heads": p["heads"], "skv": p["skv"], "stride": p["skv"]}
    if point.op in ("sparse_mla", "lightning_indexer", "topk_selector"):
        return of_grid(point)
    workload = Workload(point.label, "real", point.form, point.params)
    return trial.dims_of(point.op, workload, trial.draw(point.op, workload, 0))


def precompile(folder: Path) -> None:
    """Write generated/, bundle/ and calls.json below a folder."""
    from codegen.emit import emit
    from codegen.sweep import instance_of
    from dsl_kernels import registry, variants
    from dsl_kernels.runtime import bundle
    from dsl_kernels.runtime.pool import compile_all

    calls, chosen = [], {}
    for op, form, sizes in CALLS:
        point = point_of(op, form, sizes)
        pick = registry.select(registry.Call(op, point.form, ARCH, dims_of(point), GPU))
        chosen[pick.variant.id] = pick.variant
        call = {"op": op, "form": point.form, "params": dict(point.params)}
        calls.append({**call, "variant": pick.variant.id, "launch": pick.launch})
        print(f"{op} {point.form} {point.label}: {pick.variant.id}", flush=True)
    instances = [instance_of(v, mode) for v in chosen.values() for mode in (0, *MODES.values())]
    emit(instances, folder / "generated")
    every = variants.in_folder(folder / "generated")
    folders = {}
    for outcome in compile_all(every):
        if outcome.error is not None or outcome.folder is None:
            raise SystemExit(f"{outcome.variant}: {outcome.error}")
        folders[outcome.variant] = outcome.folder
        print(f"{len(folders)} of {len(every)}: {outcome.variant} {outcome.seconds:.1f} s", flush=True)
    bundle.write(folder / "bundle", every, folders, replace=True)
    (folder / "calls.json").write_text(json.dumps(calls, indent=1) + "\n")


def outputs(point: Any, call: Any) -> list[Any]:
    """What a call writes; outputs are overwritten first, so that nothing of an earlier call is left."""
    import torch

    from dsl_kernels_lab import oracles

    def written() -> list[Any]:
        result = call()
        if result is not None:
            return [result] if isinstance(result, torch.Tensor) else list(result)
        specs = oracles.get(point.op).operands(point.form)
        return [call.args[0][spec.name] for spec in specs if spec.kind == "out"]

    for tensor in written():
        tensor.view(torch.uint8).fill_(0x55)
    copies = [tensor.contiguous().view(torch.uint8).clone() for tensor in written()]
    torch.cuda.synchronize()
    return copies


def regions_of(point: Any, probed: Any, dims: dict[str, int]) -> tuple[Any, Any]:
    """The probe layout, and the words that the last eager call's probes wrote."""
    import torch

    from dsl_kernels import programs
    from dsl_kernels.arch import get_arch
    from dsl_kernels.ops.workspace import own_workspace
    from dsl_kernels_lab.oracles import Workload
    from dsl_kernels_lab.profile import regions

    layout = programs.get(point.op).probes(probed.knobs, get_arch(ARCH))
    device = torch.device("cuda", torch.cuda.current_device())
    words = layout.dims(dims)["probe_words"]
    workspace = own_workspace(device).get("probe", (words,), torch.int32, device, False).cpu()
    workload = Workload(point.label, "real", point.form, point.params)
    return layout, regions.Run(probed, workload, dims, "cuda", layout, workspace)


def look(call: dict[str, Any]) -> dict[str, Any]:
    """Measure one call: its time with and without probes in turns, its outputs, its regions."""
    import torch

    from dsl_kernels import variants
    from dsl_kernels_lab.profile import model, regions
    from dsl_kernels_lab.timing import bench, grids

    point = grids.Point(call["op"], call["form"], call["params"])
    fixture = grids.prepare(point)
    plain = fixture.calls(call["variant"], call["launch"])
    record: dict[str, Any] = {"op": point.op, "form": point.form, **point.params, "variant": call["variant"]}
    expected = outputs(point, plain[-1])
    again = outputs(point, plain[-1])
    record["repeats"] = all(torch.equal(a, b) for a, b in zip(expected, again, strict=True))
    for name, mode in MODES.items():
        probed = variants.get(f"{call['variant']}_probe{mode}")
        calls = fixture.calls(probed.id, call["launch"])
        results = outputs(point, calls[-1])
        same = all(torch.equal(a, b) for a, b in zip(expected, results, strict=True))
        # Two calls: the probes' words are those of the last one, which runs warm.
        for _ in range(2):
            calls[-1]()
        torch.cuda.synchronize()
        _, run = regions_of(point, probed, {**fixture.dims, **call["launch"]})
        if name == "sums":
            record["regions"] = model.plain(regions.table(run))
        elif name == "trace":
            record["cycles_per_ns"] = regions.cycles_per_ns(run)
        timed = bench.paired(plain, calls)
        record |= {"us": timed.a_us, f"us_{name}": timed.b_us}
        record |= {f"ratio_{name}": timed.ratio, f"noise_{name}": timed.noise, f"same_{name}": same}
    cycles = record["us"] * 1e3 * record["cycles_per_ns"]
    record["covered"] = record["regions"]["sm"]["most"] / cycles if cycles else math.nan
    record["lost"] = max(role["lost"] for role in record["regions"]["roles"])
    return record


def session(out: Path, only: str, budget: float) -> None:
    """Measure every call; the record is rewritten after each."""
    import torch

    from dsl_kernels_lab.timing import bench

    calls = json.loads((Path(os.environ["DSL_KERNELS_BUNDLE_DIR"]).parent / "calls.json").read_text())
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    summary: dict[str, Any] = {"calls": 0, "failed": failed}
    begin = time.monotonic()
    for call in calls:
        label = f"{call['op']} {call['form']} {call['params']}"
        if only not in label or time.monotonic() - begin > budget:
            continue
        try:
            with torch.inference_mode():
                rows.append(look(call))
            row = rows[-1]
            print(
                f"{row['us']:9.2f} us  sums {row['ratio_sums'] - 1:+.1%} (noise {row['noise_sums']:.1%})  "
                f"trace {row['ratio_trace'] - 1:+.1%} (noise {row['noise_trace']:.1%})  "
                f"coarse {row['ratio_coarse'] - 1:+.1%} (noise {row['noise_coarse']:.1%})  "
                f"same {row['same_sums']} {row['same_trace']} {row['same_coarse']}  lost {row['lost']:.2%}  "
                f"covered {row['covered']:.1%}  {label}",
                flush=True,
            )
        except Exception as error:
            failed.append(f"{label}: {error!r}")
            print(failed[-1], flush=True)
        torch.cuda.empty_cache()
        summary["calls"] = len(rows)
        for name, limit in LIMITS.items():
            ratios = [row[f"ratio_{name}"] for row in rows]
            summary[name] = {
                "median": statistics.median(ratios) if ratios else None,
                "most": max(ratios, default=None),
                "limit": limit,
                "same": all(row[f"same_{name}"] for row in rows),
            }
        record = {"environment": bench.environment(), "summary": summary, "rows": rows}
        (out / "probe_cost.json").write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(summary, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precompile", type=Path, help="folder to write the generated set and its bundle to")
    parser.add_argument(
        "--bundle", type=Path, default=ROOT / "build" / "probes", help="the folder that --precompile wrote"
    )
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "profile_out")))
    parser.add_argument("--only", default="", help="calls whose label contains this text")
    parser.add_argument("--seconds", type=float, default=400.0, help="begin no call after this many seconds")
    options = parser.parse_args()
    if options.precompile:
        precompile(options.precompile.absolute())
        return
    folder = options.bundle.absolute()
    os.environ["DSL_KERNELS_GENERATED_DIR"] = str(folder / "generated")
    os.environ["DSL_KERNELS_BUNDLE_DIR"] = str(folder / "bundle")
    os.environ["DSL_KERNELS_DISABLE_JIT"] = "1"
    os.environ.setdefault("DSL_KERNELS_CACHE_DIR", "/tmp/dsl_kernels_cache")
    options.out.mkdir(parents=True, exist_ok=True)
    session(options.out.absolute(), options.only, options.seconds)


if __name__ == "__main__":
    main()
