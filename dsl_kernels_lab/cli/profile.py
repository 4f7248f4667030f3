"""Commands that say why a kernel is slow: the group `profile`.

Its commands: target, collect, read, roadmap, diff, data, kernels, static, regions, timeline, calibrate,
schema.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from dsl_kernels.cli import _output as out
from dsl_kernels.cli._machine import gpus
from dsl_kernels.errors import InvalidArgumentError, UnknownNameError, did_you_mean

from .. import profile
from ..profile import collect as collector
from ..profile import metrics
from . import _options as options
from . import _profiled as shared

app = typer.Typer()
profile_app = typer.Typer(
    help="Why a kernel is slow: collect counters, diagnose, compare, calibrate.", no_args_is_help=True
)
app.add_typer(profile_app, name="profile")

Op = Annotated[str, typer.Argument(help="Operation, or sdpa for torch's attention.")]
Impl = Annotated[
    str | None,
    typer.Option("--variant", help="Variant id, triton or torch; by default what the registry selects."),
]
Form = Annotated[str | None, typer.Option(help="Form of the problem (decode, bf16, fp8, default).")]
Kernel = Annotated[str | None, typer.Option(help="Regular expression searched in the kernel's name.")]
Workload = Annotated[
    str | None, typer.Option(help="Workload to begin with; by default the first one that fits.")
]
Executor = Annotated[str | None, typer.Option(help="cuda or emulator; by default cuda if there is a GPU.")]
Extract = Annotated[
    Path | None, typer.Option(help="Write what was read as JSON, which holds no code and may be kept.")
]
Markdown = Annotated[bool, typer.Option("--markdown", help="A page for each kernel, at most 60 lines.")]
Arch = Annotated[str, typer.Option(help="Architecture to select for, if there is no GPU.")]
RECORDS = {
    "report": profile.KernelReport,
    "fingerprint": profile.Fingerprint,
    "diagnosis": profile.Diagnosis,
    "diff": profile.Diff,
    "roadmap": profile.Roadmap,
    "regions": profile.Regions,
}


@profile_app.command()
def target(
    op: Op,
    dim: out.Dims = None,
    variant: Impl = None,
    form: Form = None,
    launches: Annotated[int, typer.Option(min=1, help="Launches that the profiler sees.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the random inputs.")] = 0,
    apart: Annotated[
        bool, typer.Option("--apart", help="Launch without the cooperative and programmatic attributes.")
    ] = False,
) -> None:
    """Run one kernel for a profiler to look at: inputs, warm-up, then the launches that it is to see.

    Those launches are between profiler start and stop. With --apart, which `profile collect` passes, a
    profiler can replay kernels whose CTAs wait for one another, on a GPU that does nothing else.
    """
    from dsl_kernels.runtime.launch import loaded_apart

    from ..timing.bench import require_gpu

    require_gpu()
    import torch

    from ..profile import targets

    with torch.inference_mode(), loaded_apart() if apart else nullcontext():
        launched = targets.target(op, out.dims_of(dim or []), variant, form=form, seed=seed)
        targets.look([launched], launches)
    out.say(f"launched {launched.label}", error=True, wrap=True)


@profile_app.command()
def kernels(
    op: Op, dim: out.Dims = None, variant: Impl = None, form: Form = None, as_json: out.Json = False
) -> None:
    """The kernels that one call launches, with their times from tracing; needs a GPU but no counters."""
    from ..timing.bench import require_gpu

    require_gpu()
    import torch

    from ..profile import targets

    with torch.inference_mode():
        launched = targets.target(op, out.dims_of(dim or []), variant, form=form)
        launches = targets.activity(launched)
    if as_json:
        typer.echo(profile.dump(launches), nl=False)
        return
    rows = ((item.metrics[metrics.DURATION] / 1e3, item.kernel) for item in launches)
    out.show(out.table(launched.label, ("us", "kernel"), rows, right=("us",)))
    _not_read(launches[0] if launches else None)


@profile_app.command("collect")
def collect(
    op: Annotated[str | None, typer.Argument(help="Operation, or sdpa; none with --program.")] = None,
    dim: out.Dims = None,
    variant: Impl = None,
    form: Form = None,
    program: Annotated[
        str | None, typer.Option(help="Another program to look at, from its first kernel on, in one string.")
    ] = None,
    kernel: Kernel = None,
    cache: Annotated[str, typer.Option(help="cold: flushed before every pass; warm: as it is.")] = "cold",
    full: Annotated[
        bool, typer.Option("--full", help="Every section of Nsight Compute, for its rules too.")
    ] = False,
    chip: Annotated[
        str | None, typer.Option(help="GH100 or GB100; by default this machine's, or GH100.")
    ] = None,
    folder: Annotated[Path, typer.Option("--out", help="Where the report is written.")] = Path("profiles"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the command; run nothing.")] = False,
    extract: Extract = None,
    markdown: Markdown = False,
    as_json: out.Json = False,
) -> None:
    """Collect the counters of a kernel with Nsight Compute and diagnose it.

    The report (.ncu-rep, which contains the kernel's code) and its counters (.csv) stay in the folder.
    """
    chip = chip or _chip()
    chips = list(metrics.CHIPS.values())
    for name, value, known in (("--cache", cache, list(collector.CACHES)), ("--chip", chip, chips)):
        if value not in known:
            raise InvalidArgumentError(
                name, expected=" or ".join(known), got=repr(value), fix=did_you_mean(value, known)
            )
    if (op is None) == (program is None):
        raise InvalidArgumentError(
            "what to look at",
            expected="an operation or --program",
            got="none" if op is None else "both",
            fix="for example `profile collect sparse_mla --dim t=64`",
        )
    argv, stem = _looked_at(op, dim, variant, form, program)
    report = folder / f"{stem}.ncu-rep"
    ncu = "ncu" if dry_run else str(collector.find_ncu())
    command = collector.command(
        argv,
        report,
        chip=chip,
        kernel=kernel,
        cache=cache,
        full=full,
        from_start=program is not None,
        ncu=ncu,
    )
    if dry_run:
        typer.echo(shlex.join(command))
        return
    folder.mkdir(parents=True, exist_ok=True)
    with out.error_console().status("collecting"):
        collector.run(command)
        text = collector.raw_csv(report, ncu)
    path = report.with_suffix(".csv")
    path.write_text(text)
    shared.diagnose(profile.read(path), op, dim, variant, form, extract, markdown, as_json)
    out.say(f"kept {report} and {path}", error=True)


@profile_app.command("read")
def read(
    path: Annotated[
        Path, typer.Argument(help=".ncu-rep, raw CSV, details CSV, a printed log, or extracted JSON.")
    ],
    kernel: Kernel = None,
    op: Annotated[
        str | None, typer.Option(help="What the kernel computes, which tells the bytes it uses.")
    ] = None,
    dim: out.Dims = None,
    variant: Impl = None,
    form: Form = None,
    extract: Extract = None,
    markdown: Markdown = False,
    as_json: out.Json = False,
) -> None:
    """Diagnose what a profiler wrote: causes, evidence, changes and their largest gain. Needs no GPU."""
    shared.diagnose(shared.read(path, kernel), op, dim, variant, form, extract, markdown, as_json)


@profile_app.command("roadmap")
def roadmap(
    path: Annotated[Path, typer.Argument(help="What `profile read` takes.")],
    kernel: Kernel = None,
    op: Annotated[
        str | None,
        typer.Option(help="What the kernel computes, which tells the bytes it uses and its work per second."),
    ] = None,
    dim: out.Dims = None,
    variant: Impl = None,
    form: Form = None,
    baseline: Annotated[
        float | None, typer.Option(min=0.0, help="Microseconds of what to compare the kernel with.")
    ] = None,
    as_json: out.Json = False,
) -> None:
    """What to change in which order, and the least time that each change could lead to. Needs no GPU."""
    chosen = max(shared.read(path, kernel), key=lambda one: one.metrics.get(metrics.DURATION, 0.0))
    work = shared.workload(op, dim, variant, form) if op is not None else None
    (diagnosis,) = shared.diagnosed([chosen], work)
    made = profile.roadmap(diagnosis, shared.units(diagnosis.fingerprint.workload), baseline)
    if made is None:
        raise InvalidArgumentError(
            str(path),
            expected="a launch with its time",
            got=f"none of {chosen.kernel[:60]}",
            fix="collect it",
        )
    if as_json:
        typer.echo(profile.dump(made), nl=False)
        return
    rates = (f"{made.unit} a second",) if made.unit else ()
    ratios = ("of the baseline",) if baseline else ()
    columns = ("change", "knobs", "alone us", "us", *rates, "DRAM", *ratios)
    rows = []
    for one in (made.now, *made.phases):
        rows.append(
            (
                one.finding.lever or "as it is",
                "; ".join(f"{k}: {v}" for k, v in one.finding.knobs.items()),
                one.alone_us,
                one.us,
                *((options.rate({"": one.per_second or 0.0}),) if rates else ()),
                None if one.dram is None else f"{one.dram:.0%}",
                *((one.ratio,) if ratios else ()),
            )
        )
    title = f"{made.kernel}: at best, one change after the other"
    out.show(out.table(title, columns, rows, right=columns[2:], fold=columns[:2]))
    for finding in made.limits:
        out.say(f"At a limit: {finding.headline}. {finding.lever}.")
    if made.floor_us is not None:
        out.say(f"Floor: the busiest unit alone takes {made.floor_us:.3g} of {made.us:.4g} us.", wrap=True)


@profile_app.command("data")
def data(
    path: Annotated[Path, typer.Argument(help="Ids: a safetensors file, or a NumPy .npy file.")],
    tensor: Annotated[
        str | None,
        typer.Option(help="Tensor in a safetensors file; by default its only one of integers with two axes."),
    ] = None,
    page: Annotated[int, typer.Option(min=1, help="Tokens in a page.")] = 64,
    row_bytes: Annotated[
        int,
        typer.Option(min=1, help="Bytes of a token: 1152 in bf16 with rope, 656 in fp8, 584 in DeepSeek-V4."),
    ] = 1152,
    gpu: Annotated[str, typer.Option(help="GPU whose L2 the distinct tokens are compared with.")] = "H200",
    as_json: out.Json = False,
) -> None:
    """What ids ask of memory: valid share, reuse, runs, pages, order. Counted, so no GPU is needed."""
    from dsl_kernels.arch import GPUS
    from dsl_kernels.arguments import require_known

    from ..profile import data as counted

    require_known("--gpu", gpu, GPUS, "GPU")
    ids = counted.describe_ids(counted.read_ids(path, tensor), page, row_bytes)
    if as_json:
        typer.echo(profile.dump(ids), nl=False)
        return
    l2 = GPUS[gpu].l2_bytes
    distinct = f"{ids.unique_bytes / 1e6:.1f} MB of {ids.row_bytes}-byte rows"
    served = 1 - 1 / ids.reuse if ids.reuse else 0.0
    rows = (
        ("rows x ids", f"{ids.rows} x {ids.k}", f"{ids.shortest} to {ids.longest} valid ones in a row"),
        ("valid", f"{ids.valid:.1%}", "the others are padding"),
        ("distinct tokens", f"{ids.distinct}", f"{distinct}; the L2 of an {gpu} has {l2 / 1e6:.0f}"),
        (
            "asked for",
            f"{ids.read_bytes / 1e6:.1f} MB",
            f"each token {ids.reuse:.2f} times: a perfect cache serves {served:.0%}",
        ),
        ("repeated in a row", f"{ids.repeated:.1%}", "a selection has none"),
        ("of the next row", f"{ids.shared_next:.1%}", "tokens that the next row asks for too"),
        ("ascending", f"{ids.ascending:.1%}", "neighbours in order: all in a sorted row, half at random"),
        ("run", f"{ids.run:.2f} tokens", "adjacent tokens in order"),
        (
            "pages a row",
            f"{ids.pages:.1f}",
            f"{ids.page_tokens:.1f} of {ids.page} tokens on each touched page",
        ),
    )
    columns = ("what", "figure", "which means")
    out.show(out.table(path.name, columns, rows, right=("figure",), fold=("which means",)))


@profile_app.command("diff")
def diff(
    a: Annotated[Path, typer.Argument(help="One profile.")],
    b: Annotated[Path, typer.Argument(help="The other.")],
    kernel: Annotated[
        list[str] | None, typer.Option(help="Regular expression of the kernel: one for both, or one each.")
    ] = None,
    as_json: out.Json = False,
) -> None:
    """Two kernels side by side: units, stalls, bytes, registers, waves; or two files by `regions --json`."""
    tables = [shared.regions(path) for path in (a, b)]
    if tables[0] is not None and tables[1] is not None:
        difference = profile.diff_regions(tables[0], tables[1])
    elif tables != [None, None]:
        by_region, left = (a, b) if tables[1] is None else (b, a)
        raise InvalidArgumentError(
            str(left),
            expected=f"what `profile regions --json` prints, as {by_region} is",
            got="something else" if left.exists() else "no file",
            fix="compare two files by `regions --json`, or two reports",
        )
    else:
        names = (kernel or [None])[:2]  # type: ignore[list-item]
        one, other = (
            profile.fingerprint(shared.read(path, name)[0]) for path, name in ((a, names[0]), (b, names[-1]))
        )
        difference = profile.diff(one, other)
    if as_json:
        typer.echo(profile.dump(difference), nl=False)
        return
    rows = ((row.figure, row.a, row.b, row.ratio) for row in difference.rows)
    columns = ("figure", difference.a[:40], difference.b[:40], "b / a")
    out.show(out.table("", columns, rows, right=columns[1:]))
    for note in difference.notes:
        out.say(note, "yellow", error=True)


@profile_app.command("static")
def static(
    name: Annotated[str, typer.Argument(help="Variant id.")],
    emulate: Annotated[
        bool, typer.Option("--emulate", help="Add what the emulator counts on its smallest workload.")
    ] = False,
    as_json: out.Json = False,
) -> None:
    """What a compiled variant says about itself: registers, spills, shared memory, opcodes. Needs no GPU."""
    variant = out.variant(name)
    report = collector.emulated(variant) if emulate else collector.static(variant)
    if as_json:
        typer.echo(profile.dump(report), nl=False)
        return
    out.show(out.table(report.kernel, ("figure", "value"), sorted(report.metrics.items()), right=("value",)))
    _not_read(report)


@profile_app.command("regions")
def regions(
    what: Annotated[str, typer.Argument(help="Operation, whose selected variant is run, or variant id.")],
    dim: out.Dims = None,
    form: Form = None,
    workload: Workload = None,
    executor: Executor = None,
    arch: Arch = "sm_90a",
    coarse: Annotated[
        bool,
        typer.Option(
            "--coarse", help="Mark only waits for other roles, all else as one region: half the cost."
        ),
    ] = False,
    as_json: out.Json = False,
) -> None:
    """Where the time inside a kernel goes, by role and region: waits, products, leaves.

    The variant is rendered and compiled with probes, which read the clock at the end of each region. In the
    emulator the clock counts instructions.
    """
    from dsl_kernels.tile.lang import COARSE, SUMS

    from ..profile import regions as probed

    with out.error_console().status("running"):
        mode = COARSE if coarse else SUMS
        table = probed.table(_run_with_probes(what, dim, form, workload, executor, arch, mode))
    if as_json:
        typer.echo(profile.dump(table), nl=False)
        return
    title = f"{table.variant} on {table.workload}, {table.ctas} CTAs"
    columns = ("role", "region", "for", "median", "min", "max", "share")
    rows: list[tuple[Any, ...]] = [
        ("SM", "all", "", *_ticks(table.sm), ""),
        ("CTA", "all", "", *_ticks(table.cta), ""),
    ]
    for role in table.roles:
        rows.append((f"{role.role} x{role.warps}", "all", "", *_ticks(role.ticks), f"{1 - role.lost:.1%}"))
        rows += [("", r.region, r.of, *_ticks(r.ticks), f"{r.share:.1%}") for r in role.regions]
    out.show(out.table(title, columns, rows, right=columns[3:]))
    for line in (f"In {table.clock}.", f"{table.pace}."):
        out.say(line)


@profile_app.command("timeline")
def timeline(
    what: Annotated[str, typer.Argument(help="Operation, whose selected variant is run, or variant id.")],
    path: Annotated[Path, typer.Option("--out", help="Chrome's trace as JSON, which Perfetto loads.")],
    png: Annotated[Path | None, typer.Option(help="A picture of one CTA as well.")] = None,
    dim: out.Dims = None,
    form: Form = None,
    workload: Workload = None,
    executor: Executor = None,
    arch: Arch = "sm_90a",
    ctas: Annotated[int, typer.Option(min=1, help="How many CTAs the trace shows.")] = 8,
    cta: Annotated[int, typer.Option(min=0, help="The CTA of the picture.")] = 0,
) -> None:
    """What each warp did when: the last regions of each, as a trace for Perfetto and as a picture.

    Products run concurrently with the warps. The tensor core's row is derived: each product lasts from its
    issue until a warp knows that it is done.
    """
    from dsl_kernels.tile.lang import TRACE

    from ..profile import timeline as lines

    with out.error_console().status("running"):
        trace = lines.timeline(
            _run_with_probes(what, dim, form, workload, executor, arch, TRACE), max(ctas, cta + 1)
        )
    path.write_text(json.dumps(lines.chrome(trace)))
    if png is not None:
        lines.draw(trace, png, cta)
    full = sum(row.full for row in trace.rows)
    lost = f"; the rings of {full} warps were full: marks before what they hold are lost" if full else ""
    out.say(f"wrote {path}, in {trace.clock}{lost}")


@profile_app.command()
def calibrate(
    folder: Annotated[
        Path | None, typer.Option("--out", help="Where to write; by default next to the tuned tables.")
    ] = None,
    as_json: out.Json = False,
) -> None:
    """Measure what this GPU's memory sustains and record it: the ceilings that diagnoses refer to."""
    from ..timing.bench import require_gpu

    require_gpu()
    from ..timing import calibrate
    from ..timing.ceilings import path_of

    with out.progress(as_json) as bar:
        total = len(calibrate.ROW_BYTES) * len(calibrate.FOOTPRINTS) * len(calibrate.ORDERS)
        task = bar.add_task("calibrate", total=total)
        measured = calibrate.calibrate(on_point=lambda point: bar.update(task, advance=1))
    path = path_of(measured.gpu, folder)
    path.write_text(measured.to_json())
    if as_json:
        out.print_json({"path": path, "dram_gbps": measured.dram_gbps, "l2_gbps": measured.l2_gbps})
        return
    rows = (
        (p.row_bytes, out.size_text(p.footprint), p.order, p.gbps, p.method, out.size_text(p.in_flight))
        for p in measured.points
    )
    out.show(
        out.table(
            f"{measured.gpu}: DRAM {measured.dram_gbps:.0f} GB/s, L2 {measured.l2_gbps:.0f} GB/s",
            ("row bytes", "out of", "order", "GB/s", "fastest by", "in flight an SM"),
            rows,
            right=("row bytes", "GB/s"),
        )
    )
    out.say(f"wrote {path}")


@profile_app.command("schema")
def schema(
    record: Annotated[
        str, typer.Argument(help="report, fingerprint, diagnosis, diff, roadmap or regions.")
    ] = "diagnosis",
) -> None:
    """The JSON schema of a record."""
    if record not in RECORDS:
        raise UnknownNameError(
            "record", expected="a record", got=repr(record), fix=did_you_mean(record, list(RECORDS))
        )
    out.print_json(profile.schema(RECORDS[record]))


def _run_with_probes(
    what: str,
    dim: list[str] | None,
    form: str | None,
    workload: str | None,
    executor: str | None,
    arch: str,
    mode: int,
) -> Any:
    """Run an operation's selected variant, or a given variant, with probes."""
    import torch

    from dsl_kernels.arch import get_arch
    from dsl_kernels.executors import gpu_at_hand

    from .. import oracles
    from ..profile import regions as probed
    from ..verification import trial

    executor = executor or ("cuda" if torch.cuda.is_available() else "emulator")
    tier = "real" if executor == "cuda" else "tiny"
    named = None if what in oracles.names() else out.variant(what)
    op = named.op if named else what
    chosen = probed.workload_of(
        op, out.dims_of(dim or []), variant=named, form=form, tier=tier, name=workload
    )
    inputs = trial.draw(op, chosen, 0)
    gpu = gpu_at_hand(0) if executor == "cuda" else None
    if named is not None:
        return probed.run(named, chosen, executor, mode=mode, inputs=inputs)
    choice = probed.selected(op, chosen, inputs, get_arch(arch).name, gpu)
    return probed.run(choice.variant, chosen, executor, mode=mode, inputs=inputs, launch=choice.launch)


def _ticks(ticks: profile.Ticks) -> tuple[str, ...]:
    return tuple(f"{value:.0f}" for value in (ticks.median, ticks.least, ticks.most))


def _chip() -> str:
    """The chip of this machine's first GPU, which decides the names of counters."""
    visible = gpus()
    arch = (visible[0]["arch"] or "") if visible else ""
    return metrics.CHIPS.get(arch.rstrip("a"), "GH100")


def _not_read(report: profile.KernelReport | None) -> None:
    if report is not None:
        out.say(f"not read: {', '.join(report.missing)}", error=True, wrap=True)


def _looked_at(
    op: str | None, dim: list[str] | None, variant: str | None, form: str | None, program: str | None
) -> tuple[list[str], str]:
    """The program to run under the profiler, and a name for its report."""
    if op is None:
        try:
            argv = shlex.split(program or "")
        except ValueError as error:
            raise InvalidArgumentError(
                "--program", expected="a command line", got=str(error), fix="close its quotes"
            ) from None
        return argv, re.sub(r"\W+", "_", Path(argv[0]).stem if argv else "program")
    from ..profile import targets

    dims = out.dims_of(dim or [])
    targets.require_target(op, dims, variant, form=form)
    # ncu 2025.3 fails (LaunchFailed) at the second pass over a kernel whose CTAs must be co-resident.
    argv = [sys.executable, "-m", "dsl_kernels", "profile", "target", op, "--apart"]
    argv += [part for name, value in dims.items() for part in ("--dim", f"{name}={value}")]
    argv += ["--variant", variant] if variant else []
    argv += ["--form", form] if form else []
    parts = [op, *(f"{name}{value}" for name, value in dims.items()), (variant or "").split("__", 1)[-1]]
    return argv, "_".join(part for part in parts if part)
