"""Everything about profiles that needs a GPU, in one run of at most eight minutes.

    python benchmarks/profile_session.py --out FOLDER [--bundle build/aot/sm_90a]
    python benchmarks/profile_session.py --out FOLDER --tuned               # winners of the tuned table
    python benchmarks/profile_session.py --out FOLDER --tuned --only REGEX  # winners whose label matches
    python benchmarks/profile_session.py --out FOLDER --tuned --missing     # winners without a profile
    python benchmarks/profile_session.py --extract ARCHIVE                  # make test data; needs no GPU

Writes session.log and profile_session.tar.gz: what the profiler and the driver report (doctor.json), the
card's ceilings (<gpu>_ceilings.json), the planted causes (planted_*), raw counters of a list of kernels
(kernels_<part>_<first>.csv with a .json beside it), and kernels against ceilings of the same minute
(ratios.json). A stage that fails leaves the others running. A kernel at which the profiler fails is skipped:
a new run begins with the next one. Nothing is compiled: kernels come from a bundle.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

BUDGET_S = 470.0
WORK = Path("/tmp") / "profile_session"
GPU = "NVIDIA H200"
# The list is profiled in two runs of the profiler, so that a run that is stopped loses only its own kernels.
PART = 9
TUNED_PART = 21
# What is profiled: op, sizes, form, and an implementation: a DSL's fastest or slowest, or triton or torch.
KERNELS: tuple[tuple[str, dict[str, int], str | None, str | None], ...] = (
    ("sparse_mla", {"t": 64, "heads": 16}, None, "cutedsl fastest"),
    ("sparse_mla", {"t": 64, "heads": 16}, None, "triton"),
    ("sparse_mla", {"t": 1, "heads": 16}, None, "cutedsl fastest"),
    ("topk_selector", {"rows": 64, "len": 131072}, None, "cutedsl fastest"),
    ("lightning_indexer", {"b": 16, "len": 32768}, None, "cutedsl fastest"),
    ("sdpa", {"n": 2048}, None, "torch"),
    ("sparse_mla", {"t": 64, "heads": 16}, None, "tilelang fastest"),
    ("sparse_mla", {"t": 4, "heads": 16}, None, "triton"),
    ("topk_selector", {"rows": 1, "len": 131072}, None, "cutedsl fastest"),
    ("topk_selector", {"rows": 1, "len": 131072}, None, "tilelang fastest"),
    ("lightning_indexer", {"b": 1, "len": 131072}, None, "cutedsl fastest"),
    ("lightning_indexer", {"b": 64, "len": 131072}, None, "cutedsl fastest"),
    ("sparse_mla", {"t": 16, "heads": 16}, None, "cutedsl fastest"),
    ("sparse_mla", {"t": 128, "heads": 128}, None, "cutedsl fastest"),
    ("sparse_mla", {"t": 64, "heads": 16}, "fp8", "cutedsl fastest"),
    ("sparse_mla", {"t": 1, "heads": 16}, None, "slowest"),
    ("sparse_mla", {"t": 64, "heads": 16}, None, "slowest"),
    ("topk_selector", {"rows": 1, "len": 131072}, None, "slowest"),
    ("lightning_indexer", {"b": 1, "len": 131072}, None, "slowest"),
    ("lightning_indexer", {"b": 16, "len": 32768}, None, "tilelang fastest"),
    ("topk_selector", {"rows": 16, "len": 4096}, None, "cutedsl fastest"),
    ("topk_selector", {"rows": 64, "len": 131072}, None, "torch"),
)


def implementation(wanted: str | None, op: str, form: str, bucket: dict[str, int]) -> str | None:
    """The id of the wanted variant, by measured times in this card's tuned table."""
    import torch

    from dsl_kernels import measured, variants

    if wanted in (None, "triton", "torch"):
        return wanted
    for entry in measured.tuned_table(torch.cuda.get_device_name()):
        if entry["op"] == op and entry["form"] == form and entry["bucket"] == bucket:
            times = {us: name for name, us in entry["us"].items()}
            if wanted == "slowest":
                return times[max(times)]
            backend = str(wanted).split()[0]
            mine = {us: name for us, name in times.items() if variants.get(name).backend == backend}
            return mine[min(mine)] if mine else None
    return None


def targets(seen: dict[str, Any], wanted_kernels: list[Wanted]) -> Iterator[Any]:
    """The targets one by one, so that the inputs of one are freed before those of the next are drawn."""
    import torch

    from dsl_kernels import registry
    from dsl_kernels_lab.profile import targets as made
    from dsl_kernels_lab.timing import grids

    for op, dims, form, wanted in wanted_kernels:
        try:
            impl = None
            if wanted and "__" in wanted:
                impl = wanted
            elif op != "sdpa":
                usual = grids.usual(op, form)
                point = grids.Point(op, usual.form, {**usual.params, **dims})
                call = registry.Call(op, point.form, "sm_90a", dims_of(point))
                impl = implementation(wanted, op, point.form, registry.bucket(call))
            target = made.target(op, dims, impl, form=form)
            target.label = label_of(op, dims, form, wanted)
            seen["implementations"][target.label] = impl
            yield target
            del target
        except Exception as error:
            seen["tried"] += 1
            seen["failed"].append(f"{op} {dims} {wanted}: {error!r}")
        torch.cuda.empty_cache()


Wanted = tuple[str, dict[str, int], str | None, str | None]


def label_of(op: str, dims: dict[str, int], form: str | None, wanted: str | None) -> str:
    """The name of the range in which a kernel is profiled."""
    sizes = (f"{name}={value}" for name, value in dims.items())
    return " ".join(part for part in (op, form, *sizes, wanted) if part)


def listed(part: int, only: str, missing: bool) -> list[Wanted]:
    """What one run of the profiler covers: parts 0 and 1 of the list, parts from 10 on of tuned winners."""
    if part < 10:
        return list(KERNELS[:PART] if part == 0 else KERNELS[PART:])
    winners = tuned_winners(only, missing)
    return winners[(part - 10) * TUNED_PART : (part - 9) * TUNED_PART]


def tuned_winners(only: str, missing: bool) -> list[Wanted]:
    """Op, sizes, form and variant of the entries of the tuned table whose label matches a regular expression.

    `missing` keeps only those without a recorded profile.
    """
    from dsl_kernels import measured
    from dsl_kernels_lab.profile import recorded

    winners: list[Wanted] = []
    for entry in measured.tuned_table(GPU):
        b = entry["bucket"]
        if missing and recorded.of(GPU, entry["op"], entry["form"], b, entry["variant"]) is not None:
            continue
        if entry["op"] == "topk_selector":
            dims = {"rows": b["rows"], "len": b["max_len"], "k": b["k"]}
        elif entry["form"] == "prefill":
            dims = {"s": b["s"], "skv": b["skv"], "heads": b["heads"]}
        elif entry["op"] == "lightning_indexer":
            dims = {"b": b["b"], "len": b["max_len"], "heads": b["heads"], "next_n": b["next_n"]}
        else:
            dims = dict(b)
        winners.append((entry["op"], dims, entry["form"], entry["variant"]))
    return [wanted for wanted in winners if re.search(only, label_of(*wanted))]


def dims_of(point: Any) -> dict[str, int]:
    """The sizes from which the registry computes a point's bucket."""
    p = point.params
    if point.op == "lightning_indexer":
        pages = {"max_pages": p["len"] // 64, "max_len": p["len"], "stride": p["len"]}
        return {"b": p["b"], "next_n": 1, "heads": p["heads"], **pages}
    if point.op == "topk_selector":
        sizes = {"rows": p["rows"], "stride": p["len"], "k": p["k"], "max_len": p["len"]}
        return {**sizes, "next_n": 1, "page_size": 0, "b": 1, "max_pages": 1}
    return {"t": p["t"], "heads": p["heads"], "n": p["pages"] * 64, "topk": p["topk"]}


def stage_kernels(out: Path, part: int, first: int, kernels: list[Wanted]) -> None:
    """Launch `kernels`, which are those of a part from number `first` on, under the profiler that runs this
    process.

    Progress is written before each kernel, as a profiler may end the process: `tried` includes the kernel
    begun.
    """
    from dsl_kernels_lab.profile.targets import look

    seen: dict[str, Any] = {"failed": [], "implementations": {}, "launches": [], "tried": first}

    def note() -> None:
        (out / f"kernels_{part}_{first}.json").write_text(json.dumps(seen, indent=1, default=str) + "\n")

    for target in targets(seen, kernels):
        seen["tried"] += 1
        note()
        try:
            seen["launches"] += look([target])
        except Exception as error:
            # After one CUDA error, every later call of the process fails with it.
            seen["failed"].append(f"{target.label}: {error!r}")
            break
        note()
    note()
    print(seen["failed"])


def stage_ceilings(out: Path) -> None:
    from dsl_kernels_lab.timing import calibrate
    from dsl_kernels_lab.timing.ceilings import path_of

    begin = time.perf_counter()
    ceilings = calibrate.calibrate()
    path_of(ceilings.gpu, out).write_text(ceilings.to_json())
    rates = f"dram {ceilings.dram_gbps}, l2 {ceilings.l2_gbps} GB/s"
    print(f"ceilings: {time.perf_counter() - begin:.1f} s, {rates}")
    for point in ceilings.points:
        print(point)


def stage_ratios(out: Path, seconds: float) -> None:
    """Time every op beside the fastest fetch of the same bytes in the same minute."""
    import torch

    from dsl_kernels_lab.timing import grids

    end = time.monotonic() + seconds
    attention = [
        grids.Point("sparse_mla", form, {"t": t, "heads": h, "pages": 4096})
        for t in (64, 128, 16, 1024, 4, 1, 4096)
        for form, h in (("bf16", 16), ("bf16", 8), ("fp8", 16), ("bf16", 64), ("bf16", 128))
        if t * h <= 65536
    ]
    scoring = [
        grids.Point("lightning_indexer", "decode", {"b": b, "len": n, "heads": 64})
        for b, n in ((64, 131072), (16, 32768), (1, 131072))
    ]
    points = [*attention, *scoring]
    rows = []
    for point in points:
        if time.monotonic() > end:
            break
        try:
            with torch.inference_mode():
                rows.append(grids.time_point(point, grids.prepare(point), baseline=False))
            print(
                point.op,
                point.form,
                point.label,
                rows[-1]["us"],
                rows[-1].get("ceiling_us"),
                rows[-1].get("ratio"),
                rows[-1]["notes"],
            )
        except Exception as error:
            print(point.op, point.form, point.label, repr(error))
        (out / "ratios.json").write_text(json.dumps(rows, indent=1) + "\n")
        torch.cuda.empty_cache()


def doctor(out: Path) -> None:
    from dsl_kernels_lab.profile import collect

    rows = list(collect.doctor(gpu=True))
    (out / "doctor.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "profile_out")))
    parser.add_argument("--bundle", type=Path, default=ROOT / "build" / "aot" / "sm_90a")
    parser.add_argument("--stage", choices=("ceilings", "kernels", "ratios"))
    parser.add_argument("--tuned", action="store_true", help="profile the winners of the tuned table")
    parser.add_argument(
        "--only",
        default="",
        help="with --tuned, a regular expression searched in op, form, sizes and variant",
    )
    parser.add_argument(
        "--missing", action="store_true", help="with --tuned, only winners without a recorded profile"
    )
    parser.add_argument("--extract", type=Path, help="an archive that a session wrote")
    parser.add_argument("--part", type=int, default=0, help="part of the list of kernels")
    parser.add_argument("--first", type=int, default=0, help="kernel of the part to begin with")
    parser.add_argument(
        "--seconds", type=float, default=100.0, help="time of the stage that compares with ceilings"
    )
    options = parser.parse_args()
    if options.extract:
        extract(options.extract)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    out = options.out.resolve()
    if options.stage == "ceilings":
        stage_ceilings(out)
    elif options.stage == "kernels":
        from dsl_kernels.runtime.launch import loaded_apart

        with loaded_apart():
            kernels = listed(options.part, options.only, options.missing)[options.first :]
            stage_kernels(out, options.part, options.first, kernels)
    elif options.stage == "ratios":
        stage_ratios(out, options.seconds)
    else:
        session(out, options)


class Session:
    """Runs stages in processes of their own with the time that is left, and packs the files after each."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.begin = time.monotonic()
        self.log = (out / "session.log").open("w")
        WORK.mkdir(parents=True, exist_ok=True)

    def left(self) -> float:
        return BUDGET_S - (time.monotonic() - self.begin)

    def say(self, text: str) -> None:
        line = f"[{time.monotonic() - self.begin:6.1f}] {text}"
        print(line, flush=True)
        self.log.write(line + "\n")
        self.log.flush()

    def pack(self) -> None:
        with tarfile.open(self.out / "profile_session.tar.gz", "w:gz") as packed:
            for path in sorted(WORK.iterdir()):
                packed.add(path, path.name)

    def stage(self, name: str, limit: float, argv: list[str]) -> None:
        started = time.monotonic()
        # A new session, so that a stage ends with all its children: one left under the profiler would hold
        # the GPU.
        running = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            cwd=ROOT,
        )
        try:
            text, _ = running.communicate(timeout=max(1.0, min(limit, self.left())))
            how = f"status {running.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            text, _ = running.communicate()
            how = "stopped"
        self.say(f"{name}: {how} after {time.monotonic() - started:.1f} s\n{text[-8000:]}")
        self.pack()


def session(out: Path, options: argparse.Namespace) -> None:
    """Run every stage, the most important first; for tuned winners only the ceilings and the counters."""
    from dsl_kernels_lab.profile import collect

    os.environ.setdefault("DSL_KERNELS_DISABLE_JIT", "1")
    os.environ.setdefault("DSL_KERNELS_CACHE_DIR", "/tmp/dsl_kernels_cache")
    if options.bundle.is_dir():
        os.environ.setdefault("DSL_KERNELS_BUNDLE_DIR", str(options.bundle))
    run = Session(out)
    me = [sys.executable, str(Path(__file__).resolve()), "--out", str(WORK), "--stage"]
    try:
        doctor(WORK)
        run.say("doctor done")
    except Exception:
        run.say(traceback.format_exc())
    run.stage("ceilings", 100.0, [*me, "ceilings"])
    if not options.tuned:
        planted = [sys.executable, str(ROOT / "benchmarks" / "planted_causes.py"), "--out", str(WORK)]
        run.stage("planted", 160.0, planted)
    chosen = ["--only", options.only, *(["--missing"] if options.missing else [])]
    winners = len(tuned_winners(options.only, options.missing)) if options.tuned else 0
    for part in range(10, 10 + -(-winners // TUNED_PART)) if options.tuned else (0, 1):
        first, count = 0, len(listed(part, options.only, options.missing))
        while first < count and run.left() > 15.0:
            name = f"kernels_{part}_{first}"
            try:
                ncu, report = str(collect.find_ncu()), Path("/tmp") / f"{name}.ncu-rep"
                looked = [*me, "kernels", "--part", str(part), "--first", str(first), *chosen]
                argv = collect.command(looked, report, ncu=ncu)
                run.stage(name, 140.0, argv)
                if report.exists():
                    (WORK / f"{name}.csv").write_text(collect.raw_csv(report, ncu))
                    run.pack()
            except Exception:
                run.say(traceback.format_exc())
            about = WORK / f"{name}.json"
            first = max(first + 1, json.loads(about.read_text())["tried"] if about.exists() else 0)
    if run.left() > 30.0 and not options.tuned:
        run.stage("ratios", run.left() - 5.0, [*me, "ratios", "--seconds", str(run.left() - 20.0)])
    run.say("end")


def extract(archive: Path) -> None:
    """Keep what a session read as test data and tables: no code, and only counters that fingerprints use."""
    import lzma
    import tempfile

    import planted_causes

    from dsl_kernels_lab import profile
    from dsl_kernels_lab.profile import metrics, recorded
    from dsl_kernels_lab.profile.targets import workload
    from dsl_kernels_lab.timing.ceilings import path_of

    wanted = {*metrics.requested("GH100"), metrics.SAMPLES}

    def slim(report: profile.KernelReport, **changes: Any) -> dict[str, Any]:
        kept = {name: value for name, value in report.metrics.items() if name in wanted}
        return dict(profile.plain(replace(report, metrics=kept, **changes)))

    def keep(name: str, content: Any) -> None:
        (planted_causes.KEPT / name).write_bytes(
            lzma.compress(json.dumps(content, sort_keys=True).encode(), preset=9)
        )

    with tempfile.TemporaryDirectory() as temporary, tarfile.open(archive) as packed:
        folder = Path(temporary)
        packed.extractall(folder, filter="data")
        if (folder / planted_causes.RAW).exists():
            twins = json.loads((folder / planted_causes.TWINS).read_text())
            seen = [slim(report) for report in planted_causes.reports(folder)]
            keep("planted_h200.json.xz", {"reports": seen, "twins": twins})
        elif (folder / planted_causes.TWINS).exists():
            print((folder / planted_causes.TWINS).read_text())
        calibrated = profile.read_ceilings(GPU, folder)
        if calibrated is not None:
            path_of(GPU).write_text(calibrated.to_json())
        looks = []
        for path in sorted(folder.glob("kernels_*.csv")):
            about = json.loads(path.with_suffix(".json").read_text())
            works = {item["label"]: profile.Workload(**item["workload"]) for item in about["launches"]}
            reports = profile.read(path)
            for label, work in works.items():
                # If a call has several kernels, its workload is attributed to the longest.
                mine = [report for report in reports if report.label == label]
                if not mine:
                    print(f"{label}: launched, and nothing was read")
                    continue
                longest = max(mine, key=lambda report: report.metrics[metrics.DURATION])
                # Computed anew from the sizes, so that the bytes to read are counted as this version counts
                # them.
                variant = work.variant or about["implementations"].get(label) or ""
                looks.append((longest, workload(work.op, work.dims, form=work.form, variant=variant)))
        entries = []
        for report, work in looks:
            entry = planted_causes.tuned_entry(work)
            if entry is not None and entry["variant"] == work.variant:
                diagnosis = profile.diagnose(profile.fingerprint(report, work), calibrated)
                identity = {name: entry[name] for name in ("op", "form", "bucket", "variant")}
                entries.append({**identity, **recorded.summary(diagnosis)})
        recorded.write(GPU, entries, calibrated.metadata if calibrated else {})
        listed_labels = {label_of(*wanted) for wanted in KERNELS}
        if any(report.label in listed_labels for report, _ in looks):
            seen = [{"report": slim(report), "workload": profile.plain(work)} for report, work in looks]
            keep("kernels_h200.json.xz", seen)


if __name__ == "__main__":
    main()
