"""Bring the generated parts of the documents up to date: tables and excerpts between markers, pictures.

    python scripts/update_docs.py           write what changed
    python scripts/update_docs.py --check   list what is out of step, exit with 1 if anything is

The function `BLOCKS[NAME]` gives the text between `<!-- begin NAME -->` and `<!-- end NAME -->`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from itertools import pairwise, permutations, product
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "benchmarks"))
if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import case_pages  # noqa: E402
import command_pages  # noqa: E402
import count_lines  # noqa: E402
import count_mutants  # noqa: E402
import draw_pipeline  # noqa: E402
import ladder  # noqa: E402
import planted_causes  # noqa: E402
import record_builds  # noqa: E402
import sglang_record  # noqa: E402
import vllm_record  # noqa: E402
import walkthrough  # noqa: E402
from case_pages import table  # noqa: E402

from codegen.sweep import FUNCTIONS, SHARED_LEAVES, leaf_modules  # noqa: E402
from dsl_kernels import backends, env, measured, problems, programs, variants  # noqa: E402
from dsl_kernels.arch import ARCHS, GPUS, get_arch  # noqa: E402
from dsl_kernels.tile.describe import describe, in_words  # noqa: E402
from dsl_kernels.tile.leaf_text import Function  # noqa: E402
from dsl_kernels.tile.plan import barrier_plan  # noqa: E402
from dsl_kernels.variants import Variant  # noqa: E402
from dsl_kernels_lab import cases, profile  # noqa: E402
from dsl_kernels_lab.profile import recorded  # noqa: E402
from dsl_kernels_lab.timing import results  # noqa: E402
from dsl_kernels_lab.verification import runs  # noqa: E402
from ptx_emulator.script import cuda_python  # noqa: E402
from tests.fuzz.attacks import ATTACKS  # noqa: E402

DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
MARKER = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def code(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def ran(group: list[Variant], executor: str) -> str:
    """How many variants of a group have a current record of this executor, and where they ran."""
    current = [run for v in group for run in runs.of(v) if run.executor == executor and run.current]
    if not current:
        return "-"
    gpus = sorted({run.where.removeprefix("NVIDIA ") for run in current})
    places = ", ".join(gpus) if executor == "cuda" else ""
    return f"{len(current)} of {len(group)}{' on ' + places if places else ''}"


def tensor_cores(group: list[Variant]) -> str:
    """Units and operand types of the tensor-core operations that a group declares."""
    units = {
        f"{mma.unit} {mma.dtype}"
        for v in group
        for mma in programs.get(v.op).schedule(v.knobs, get_arch(v.arch)).mmas
    }
    return ", ".join(sorted(units)) or "none"


def variant_summary() -> str:
    """One row per operation, DSL and architecture: variants, the knobs that differ, and what has run them."""
    groups: dict[tuple[str, str, str], list[Variant]] = defaultdict(list)
    for v in variants.variants():
        groups[v.op, v.backend, v.arch].append(v)
    rows = []
    for (op, backend, arch), group in sorted(groups.items()):
        knobs = []
        for name in group[0].knobs:
            values = sorted({v.knobs[name] for v in group}, key=lambda value: (str(type(value)), value))
            if len(values) > 1:
                knobs.append(f"{name} {', '.join(map(str, values))}")
        done = [ran(group, executor) for executor in runs.EXECUTORS]
        rows.append((op, backend, arch, len(group), "; ".join(knobs), tensor_cores(group), *done))
    columns = (
        "op",
        "DSL",
        "arch",
        "variants",
        "knobs that differ",
        "tensor cores",
        "GPU",
        "emulator",
        "interpreter",
    )
    return table(columns, rows)


def variant_list() -> str:
    """Every variant, what its schedule declares, and what has run it."""
    rows = [
        (
            f"[`{v.id}`](../generated/{v.path.relative_to(variants.generated_root()).as_posix()})",
            v.declared["threads"], v.declared["smem_bytes"], v.declared["tmem_columns"] or "-",
            tensor_cores([v]),
            runs.summary(runs.of(v)),
        )
        for v in variants.variants()
    ]  # fmt: skip
    return table(("variant", "threads", "shared bytes", "TMEM columns", "tensor cores", "ran on"), rows)


def environment() -> str:
    variables = [value for value in vars(env).values() if isinstance(value, env.EnvVar)]
    rows = [(f"`{var.name}`", var.expected, _default(var.default), var.doc) for var in variables]
    return table(("variable", "value", "default", "meaning"), rows)


def _default(value: object) -> str:
    if isinstance(value, bool):
        return str(int(value))
    return "-" if value in (None, "", {}) else str(value)


def _source(module: str, name: str) -> str:
    """The source of a function in a module of tile programs."""
    functions = importlib.import_module(f"dsl_kernels.kernels.{module}")
    return code("python", inspect.getsource(getattr(functions, name)))


def declaration() -> str:
    return _source("gqa_forward.program.blackwell", "declare")


# The kernel that docs/new_kernel.md writes, and that a test takes through every stage.
NEWCOMER = ROOT / "tests" / "codegen" / "newcomer"


def newcomer(file: str, *names: str) -> str:
    """Functions, classes and constants of a file of the example kernel, with their decorators."""
    return code("python", walkthrough.excerpt(NEWCOMER / file, *names))


def newcomer_launch() -> str:
    """The launch plan of the second example kernel, and the bodies that take rows by it."""
    folder = ROOT / "tests" / "codegen" / "newcomer_rms_norm" / "dsl_kernels" / "kernels" / "rms_norm"
    policy, program = (folder / f"{name}.py" for name in ("policy", "program"))
    bodies = walkthrough.excerpt(program, "_start", "_load", "PROGRAM")
    return code("python", f"{walkthrough.excerpt(policy, 'launch')}\n\n\n{bodies}")


def newcomer_told() -> str:
    """The example kernel's file for TileLang."""
    return code("python", (NEWCOMER / "dsl_kernels/kernels/row_softmax/tilelang.py").read_text())


def body() -> str:
    return code("python", walkthrough.body())


def body_names() -> str:
    """The operation's definitions of names in the body that docs/bodies.md reads."""
    return code("python", walkthrough.definitions())


def body_vocabulary() -> str:
    """The names of the tile language in that body."""
    return table(("name", "from", "is"), walkthrough.vocabulary())


def leaf_by_text() -> str:
    """A leaf of selection that is declared by its text."""
    return functions((ROOT / "dsl_kernels/kernels/topk_selector/leaves/row.py").read_text(), "count_listed")


def _spells(dsl: str, module: str, title: str) -> bool:
    """Whether a DSL defines a name in a module of leaves."""
    paths = (ROOT / "dsl_kernels" / "device" / dsl).glob(f"{module}*.py")
    return any(re.search(rf"^(def {title}\(|{title} = )", path.read_text(), re.MULTILINE) for path in paths)


def leaf_functions() -> str:
    """Every function that the text of a leaf may call: its module, parameters, result dtype and docstring."""
    rows = []
    for module in (*FUNCTIONS, SHARED_LEAVES):
        values = vars(importlib.import_module(f"dsl_kernels.device.torch.{module}"))
        tree = ast.parse((ROOT / "dsl_kernels" / "device" / "torch" / f"{module}.py").read_text()).body
        for node, following in pairwise(tree):
            named = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
            title = node.targets[0].id if named else ""
            if not isinstance(function := values.get(title), Function):
                continue
            taken = list(inspect.signature(function.torch).parameters.values())[function.joint :]
            listed = ", ".join(str(p.replace(annotation=p.empty)) for p in taken)
            doc = ast.literal_eval(following.value) if isinstance(following, ast.Expr) else ""
            lacking = [dsl for dsl in backends.names() if not _spells(dsl, module, title)]
            meaning = " ".join([*doc.split(), *([f"Not in {', '.join(lacking)}."] if lacking else [])])
            rows.append((f"`{module}`", f"`{title}({listed})`", function.dtype, meaning))
    return table(("module", "function", "gives", "meaning"), rows)


def description() -> str:
    variant = walkthrough.variant()
    arch = get_arch(variant.arch)
    return code("text", describe(programs.get(variant.op).schedule(variant.knobs, arch), arch))


# Sparse attention of 16 heads on Hopper, which docs/barriers.md shows beside dense attention on Blackwell.
GATHERED = "sparse_mla__cutedsl_sm90a__h16_bf16_bt64_st3_cl2_sl2"


def barriers(variant_id: str = "") -> str:
    """The barrier plan of a variant, by default of the one that the page declares."""
    variant = variants.get(variant_id) if variant_id else walkthrough.variant()
    schedule = programs.get(variant.op).schedule(variant.knobs, get_arch(variant.arch))
    rows = []
    for name, item in barrier_plan(schedule).pipelines.items():
        pipe = item.pipeline
        waits = "; ".join(f"{r.role}: {in_words(item.wait[r.role])}" for r in pipe.readers)
        back = "; ".join(f"{r.role}: {in_words(item.release[r.role])}" for r in pipe.readers)
        if item.empty:
            empty = f"{item.empty.count}: {back}"
        elif pipe.returned_by:
            empty = f"full of {pipe.returned_by}"
        else:
            empty = "none, used once" if pipe.rounds == "once" else "none"
        full = (
            f"{item.full.count}: {in_words(item.commit)}"
            if item.full
            else f"none, words through {pipe.through}"
        )
        rows.append((name, f"{pipe.producer}, {pipe.fill.value}", pipe.stages, full, waits, empty))
    columns = (
        "pipeline", "filled by", "slots", "full: arrivals and who makes them", "reader",
        "empty: arrivals and who makes them",
    )  # fmt: skip
    return table(columns, rows)


# Lines of a printed module in their order: the function ("": the kernel), the line's begin, what it is.
DENSE_LINES = (
    ("", "cute.arch.mbarrier_init(s_0_full", "one arrival fills: the commit"),
    ("", "cute.arch.mbarrier_init(s_0_empty", "four arrivals empty: a lane of each of four warps"),
    ("mma", "cute.arch.mbarrier_wait(s_0_empty", "`acquire`"),
    ("mma", "tcgen05.commit(s_0_full)", "`commit`, after the product"),
    ("soften_0", "cute.arch.mbarrier_wait(s_0_full", "the reader's `wait`"),
    ("soften_0", 'nvvm.tcgen05_fence("after', "its fence after the wait"),
    ("soften_0", "fragment_sm100.read_tensor(scores_0", "the leaf that reads the scores"),
    (
        "soften_0", "cute.arch.fence_view_async_tmem_load()",
        "`release` begins: the loads have arrived (`wait::ld`)",
    ),
    ("soften_0", 'nvvm.tcgen05_fence("before', "the fence before the arrival"),
    ("soften_0", "cute.arch.sync_warp()", "one lane a warp: all lanes are here"),
    ("soften_0", "with cute.arch.elect_one():", "and one goes on"),
    ("soften_0", "cute.arch.mbarrier_arrive(s_0_empty)", "the arrival at the empty barrier"),
)  # fmt: skip
GATHERED_LINES = (
    ("", "cute.arch.mbarrier_init(kv_full", "an arrival of each thread of `gather` fills"),
    ("", "cute.arch.mbarrier_init(kv_empty", "an arrival of each thread of `attend` empties"),
    ("", "cute.arch.mbarrier_init(x_full", "one arrival: of the thread that announces the bytes"),
    ("gather", "cute.arch.mbarrier_wait(kv_empty", "`acquire`: opposite parity, so every slot begins empty"),
    (
        "gather", "cute.arch.cp_async_mbarrier_arrive_noinc(kv_full",
        "`commit`: the hardware arrives for this thread when its copies have come",
    ),
    ("attend", "cute.arch.mbarrier_wait(kv_full", "the reader's `wait`"),
    (
        "attend", "cute.arch.mbarrier_arrive_and_expect_tx(x_full",
        "`acquire` of x: the bytes that the other CTA sends here",
    ),
    ("attend", "send_scores(", "scores go to the other CTA, which counts their bytes at its own x_full"),
    ("attend", "cute.arch.mbarrier_wait(x_full", "`wait` for the other CTA's scores"),
    ("attend", "cute.arch.mbarrier_arrive(kv_empty", "`release`, after the products that read the slot"),
)  # fmt: skip


def printed_lines(variant_id: str, wanted: tuple[tuple[str, str, str], ...]) -> str:
    """Lines of a generated module, each found after the one before it in the same function."""
    source = variants.get(variant_id).source
    texts = {
        node.name: ast.get_source_segment(source, node).splitlines()
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef)
    }
    kernel = next(name for name, lines in texts.items() if any("mbarrier_init(" in line for line in lines))
    rows, places, shown = [], defaultdict(int), None
    for function, begin, meaning in wanted:
        lines = texts[function or kernel]
        place = next(n for n in range(places[function], len(lines)) if lines[n].strip().startswith(begin))
        places[function] = place + 1
        told = "" if function == shown else f"`{function}`" if function else "the kernel itself"
        shown = function
        rows.append((told, f"`{lines[place].strip()}`", meaning))
    return table(("function", "line", "what it is"), rows)


def functions(source: str, *names: str) -> str:
    """Functions of a generated module, with their decorators."""
    lines = source.splitlines()
    shown = []
    for name in names:
        node = next(n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == name)
        shown.append("\n".join(lines[node.decorator_list[0].lineno - 1 : node.end_lineno]))
    return code("python", "\n\n\n".join(shown))


def generated(backend: str = "tilelang") -> str:
    """The loop of the example's generated module."""
    return code("python", walkthrough.loop(backend))


def ring_declaration() -> str:
    """How sparse attention on Hopper declares its ring of rows."""
    return code(
        "python", walkthrough.excerpt(ROOT / "dsl_kernels/kernels/sparse_mla/program/on_n.py", "_ring")
    )


# The kernel that docs/two_dsls.md shows in both DSLs.
TWIN = "prefill_h64_q4_t128_st6_c1_e0"


def twin_declaration() -> str:
    return _source("lightning_indexer.program.prefill", "blackwell")


def twin_body() -> str:
    """The body of the MMA role of the twin."""
    return code(
        "python",
        walkthrough.excerpt(ROOT / "dsl_kernels/kernels/lightning_indexer/program/prefill.py", "_issue"),
    )


def twin(backend: str) -> str:
    """The first scoring role and the MMA role of the twin's generated module in one DSL."""
    return functions(variants.get(f"lightning_indexer__{backend}_sm100a__{TWIN}").source, "score_0", "mma")


def lone_schedules() -> str:
    """Schedules that only one DSL has, and the leaves that keep the other from having them."""
    rows = []
    for op, arch in sorted({(v.op, v.arch) for v in variants.variants()}):
        program, spec = programs.get(op), get_arch(arch)
        by_backend = {
            backend: {program.variant_id("", spec, v.knobs): v for v in variants.variants(op, backend, arch)}
            for backend in backends.names()
        }
        for backend, other in permutations(by_backend, 2):
            own, others = by_backend[backend], by_backend[other]
            alone = [own[name] for name in sorted(own.keys() - others.keys())]
            texts = [program.text(v.knobs, spec) for v in alone]
            called = {name for text in texts for name in text.leaves}
            spelled = {
                name for _, _, names in leaf_modules(other, op, spec.tag.removesuffix("a")) for name in names
            }
            missing = ", ".join(f"`{name}`" for name in sorted(called - spelled)) or "none"
            if alone:
                rows.append((op, arch, backend, len(alone), other, missing))
    columns = (
        "op",
        "arch",
        "DSL",
        "schedules of its own",
        "the other",
        "leaves that the other does not spell",
    )
    return table(columns, rows)


def hand_written() -> str:
    return table(count_lines.COLUMNS, count_lines.rows())


def dsl_lines() -> str:
    """For each operation and DSL: number and median length of modules, and lines written by hand."""
    written = {row[0]: dict(zip(count_lines.COLUMNS, row, strict=True)) for row in count_lines.rows()}
    rows = []
    for op in sorted({v.op for v in variants.variants()}):
        for backend in sorted({v.backend for v in variants.variants(op)}):
            made = [len(v.source.splitlines()) for v in variants.variants(op) if v.backend == backend]
            rows.append((op, backend, written[op][f"leaves in {backend}"], len(made), round(median(made))))
    return table(("op", "DSL", "leaves in the DSL", "modules", "lines of a module"), rows)


def dsl_builds() -> str:
    """Medians over the builds of each operation, architecture and DSL, and what has no present record."""
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = defaultdict(list)
    records = record_builds.builds()
    for v in variants.variants():
        if v.id in records:
            groups[v.op, v.arch, v.backend].append(records[v.id])
    rows = []
    for (op, arch, backend), group in sorted(groups.items()):
        names = ("registers", "shared", "ptx", "sass")
        medians = [round(median(item[name] for item in group)) for name in names]
        seconds = f"{median(item['seconds'] for item in group):.1f}"
        rows.append((op, arch, backend, len(group), seconds, *medians))
    columns = (
        "op", "arch", "DSL", "variants", "seconds", "registers", "shared bytes", "PTX instructions",
        "SASS instructions",
    )  # fmt: skip
    every = Counter(v.op for v in variants.variants())
    missing = Counter(v.op for v in variants.variants() if v.id not in records)
    left_out = [
        f"`{op}`" if count == every[op] else f"{count} of {every[op]} variants of `{op}`"
        for op, count in sorted(missing.items())
    ]
    told = f"\n\nLeft out, without a record of their present source: {', '.join(left_out)}."
    return table(columns, rows) + (told if left_out else "")


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def planted() -> str:
    """The planted causes: first finding, its bound, the gain without the cause, the profiler's first rule."""
    record = planted_causes.kept("planted_h200")
    reports = [profile.load(profile.KernelReport, item) for item in record["reports"]]
    rows = planted_causes.rows(reports, record["twins"], profile.read_ceilings(planted_causes.GPU))
    return table(
        ("planted", "first finding", "at most", "without the cause", "first rule of Nsight Compute"),
        (
            (f"`{cause}`", f"`{ours}`", number(bound), number(gain), rule)
            for cause, ours, bound, gain, rule in rows
        ),
    )


def turned_knobs() -> str:
    """Slow variants: the knobs that the first finding names, its bound, and the gain of turning them."""
    rows = []
    for label, report in planted_causes.looked_at().items():
        gained = planted_causes.turned(report) if "slowest" in label else None
        if report.top and gained:
            slow, fast = (name.split("__", 1)[1] for name in (report.fingerprint.workload.variant, gained[0]))
            knobs = ", ".join(f"`{name}`" for name in report.top.knobs)
            rows.append(
                (
                    label.removesuffix(" slowest"),
                    f"`{slow}`",
                    f"`{report.top.cause}`",
                    knobs,
                    f"`{fast}`",
                    number(report.top.bound),
                    number(gained[1]),
                )
            )
    return table(("kernel", "variant", "first finding", "knobs", "turned to", "at most", "measured"), rows)


def looks() -> str:
    """The profiled kernels: use of each unit, dominant stall, first finding."""
    rows = []
    for label, report in planted_causes.looked_at().items():
        f, stall = report.fingerprint, report.fingerprint.dominant_stall
        rows.append(
            (
                label,
                f"{f.us:.1f}",
                f"{f.sol['dram']:.0%}",
                f"{f.sol['l2']:.0%}",
                f"{f.pipes['tensor']:.0%}",
                f"{stall} {f.stalls[stall].share:.0%}" if stall else "-",
                f"`{report.top.cause}`" if report.top else "-",
                number(report.top.bound if report.top else None),
            )
        )
    return table(("kernel", "µs", "DRAM", "L2", "tensor", "dominant stall", "first finding", "at most"), rows)


def tuned_fingerprints() -> str:
    """Every profiled winner of the H200's tuned table: use of each unit, dominant stall, first finding."""
    rows = []
    winners = {(*measured.point_of(e), e["variant"]) for e in measured.tuned_table(planted_causes.GPU)}
    looked = [
        e for e in recorded.entries(planted_causes.GPU) if (*measured.point_of(e), e["variant"]) in winners
    ]
    for e in looked:
        sizes = " ".join(f"{name}={value}" for name, value in e["bucket"].items())
        stall = f"{e['stall']} {e['stall_share']:.0%}" if e["stall"] else "-"
        rows.append(
            (
                f"{e['op']} {e['form']}", sizes, f"`{e['variant'].split('__', 1)[1]}`", f"{e['us']:.1f}",
                f"{e['dram']:.0%}", f"{e['l2']:.0%}", f"{e['tensor']:.0%}", stall, f"`{e['cause']}`",
                number(e["bound"]),
            )
        )  # fmt: skip
    columns = (
        "op",
        "sizes",
        "variant",
        "µs",
        "DRAM",
        "L2",
        "tensor",
        "dominant stall",
        "first finding",
        "at most",
    )
    return table(columns, rows)


def recorded_calls() -> str:
    """Functions of the driver and the runtime that a checked program may call."""
    rows = [
        (name, " ".join(f"`{function}`" for function in sorted(functions)))
        for name, functions in (("driver", cuda_python.DRIVER), ("runtime", cuda_python.RUNTIME))
    ]
    return table(("module", "functions"), rows)


def ceilings() -> str:
    """The H200's gather ceilings for rows spread over 4 GiB and over 16 MiB, with the fastest method."""
    held = profile.read_ceilings(planted_causes.GPU)
    points = {(p.row_bytes, p.footprint, p.order): p for p in held.points}
    near, far = min(p.footprint for p in held.points), max(p.footprint for p in held.points)
    rows = []
    for width in sorted({p.row_bytes for p in held.points}):
        cells = [points[width, far, "random"], points[width, far, "sorted"], points[width, near, "random"]]
        rows.append((width, *(f"{p.gbps:.0f} ({p.method})" for p in cells)))
    return table(("row bytes", "random, 4 GiB", "sorted, 4 GiB", "random, 16 MiB"), rows)


def ceilings_words() -> str:
    """What sorting the rows gains, and how close random rows come to the rate of a sequential read."""
    held = profile.read_ceilings(planted_causes.GPU)
    far = max(p.footprint for p in held.points)
    gbps = {(p.row_bytes, p.order): p.gbps for p in held.points if p.footprint == far}
    gains = {width: 100 * (gbps[width, "sorted"] / gbps[width, "random"] - 1) for width, _ in sorted(gbps)}
    narrow = [gain for width, gain in gains.items() if width < 128]
    wide = max(gain for width, gain in gains.items() if width >= 128)
    random = gbps[1152, "random"]
    return (
        f"Out of 4 GiB, sorting gains {min(narrow):.0f} to {max(narrow):.0f} % for rows of 16 to 64 bytes "
        f"and at most {wide:.0f} % "
        f"from 128 bytes on; random rows of 1152 bytes arrive at {random / held.dram_gbps:.2f} of a "
        f"sequential read "
        f"({held.dram_gbps:.0f} GB/s). {_sorted_nearer(held)}"
    )


def _sorted_nearer(held: Any) -> str:
    """What sorting gains rows of 1152 bytes within footprints between the smallest and the largest."""
    gbps = {(p.footprint, p.order): p.gbps for p in held.points if p.row_bytes == 1152}
    between = sorted({footprint for footprint, _ in gbps})[1:-1]
    gains = " and ".join(
        f"{100 * (gbps[size, 'sorted'] / gbps[size, 'random'] - 1):.0f} % out of {size >> 20} MiB"
        for size in between
    )
    return f"Out of less these gain {gains}."


def example() -> str:
    """The page of the Triton attention."""
    return code("text", profile.markdown(planted_causes.looked_at()["sparse_mla t=64 heads=16 triton"]))


def gpus() -> str:
    """Limits of each architecture; rates of each GPU with their source."""
    limits = {
        "products of": lambda a: ", ".join(a.mma_units),
        "shared memory of a CTA": lambda a: f"{a.smem_per_cta >> 10} KiB",
        "registers of an SM, of a thread": lambda a: f"{a.registers_per_sm >> 10}K, {a.registers_per_thread}",
        "tensor memory": lambda a: f"{a.tmem_columns} columns of 128 lanes" if a.tmem_columns else "none",
        "CTAs of a cluster": lambda a: f"{a.max_cluster}",
    }
    rows = [f"| | {' | '.join(ARCHS)} |", "| --- |" + " --- |" * len(ARCHS)]
    rows += [f"| {what} | {' | '.join(of(a) for a in ARCHS.values())} |" for what, of in limits.items()]
    rows += [
        "",
        "| GPU | SMs | MHz | L2 | HBM | L2 rate | bf16 | fp8 | rates from |",
        "| --- |" + " --- |" * 8,
    ]
    for gpu in GPUS.values():
        rates = (gpu.tensor_tflops[name] for name in ("bfloat16", "float8_e4m3"))
        rows.append(
            f"| {gpu.name}, {gpu.arch.name} | {gpu.sms} | {gpu.clock_mhz} | {gpu.l2_bytes >> 20} MiB "
            f"| {gpu.hbm_gbps / 1e3:.2f} TB/s "
            f"| {gpu.l2_gbps / 1e3:.1f} TB/s | {' | '.join(f'{rate:.0f} TFLOP/s' for rate in rates)} "
            f"| {gpu.rates_from} |"
        )
    return "\n".join(rows)


def plan() -> str:
    """The roadmap of the Triton attention that `example` shows."""
    made = profile.roadmap(planted_causes.looked_at()["sparse_mla t=64 heads=16 triton"], ("queries", 64))
    rows = [
        "| change | alone, at best | with those above | queries a second | DRAM |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in (made.now, *made.phases):
        alone = "-" if one.alone_us is None else f"{one.alone_us:.1f} µs"
        rows.append(
            f"| {one.finding.lever or 'as it is'} | {alone} | {one.us:.1f} µs | {one.per_second / 1e6:.2f}M "
            f"| {one.dram:.0%} |"
        )
    return "\n".join(rows)


def sizes() -> str:
    """The names of sizes in commands, for each operation that has variants."""
    rows = []
    for op in sorted({v.op for v in variants.variants()}):
        problem = problems.get(op)
        for form in problem.forms:
            sizes_of_points = problem.point_sizes(form)
            also = [
                f"`{a.name}`: `{a.dim}`" + ("" if a.each == 1 else f" is {a.each} × it")
                for a in problem.names.get(form, ())
            ]
            words = [f"`{name}`" for name, value in sizes_of_points.items() if isinstance(value, str)]
            mine = [f"`{name}`" for name in problem.dims(form) if name == "stride" or "stride" not in name]
            rows.append((f"{op} {form}", " ".join(mine), ", ".join(also) or "-", " ".join(words) or "-"))
    return table(
        ("operation and form", "dims of the operands", "names of points", "how inputs are drawn"), rows
    )


def beside_peers() -> str:
    """How many sizes were timed beside which peers, and where ours is slower than the fastest."""
    beside = draw_pipeline.beside_peers()
    count = sum(map(len, beside.groups.values()))
    slower = [f"{where} ({ratio:.2f})" for ratio, where in beside.slower]
    verdict = (
        f"Slower at {len(slower)} of {count} sizes: {'; '.join(slower)}."
        if slower
        else f"Slower at none of {count} sizes."
    )
    return f"Each size beside the fastest of {', '.join(beside.peers)}: {beside.taken}. {verdict}"


# Sizes that change places with their peer from run to run, and why ours gains no more there.
CHANGE_PLACES = {
    "lightning_indexer decode b=64 len=131072 heads=64 next_n=1": (
        "scoring, 64 sequences of 131072 tokens, 64 heads", "DeepGEMM",
        "DRAM switches between reads (keys) and writes (scores): without its stores the kernel is 9 % faster "
        "([scoring](log/scoring.md))",
    ),
    "sparse_mla bf16 t=4096 heads=128 pages=512": (
        "sparse attention, bf16, prompts of 4096, 128 heads", "FlashMLA",
        "both are at the power limit ([prompts](log/prompts.md))",
    ),
    "sparse_mla nope t=64 heads=128 pages=4096": (
        "sparse attention without rope dims, 64 queries of 128 heads", "FlashMLA",
        "the clocks of the run: either kernel's rounds differ by more than the two kernels do",
    ),
    "gqa_forward bf16 b=1 sq=20000 skv=20000 heads=40 kv_heads=8 dim=128 causal=1": (
        "dense attention, bf16, causal, 1 x 20000, 40 heads on 8", "flash-attn-4",
        "those were of a variant with fewer rows a CTA, whose copies paced it ([GQA](log/gqa.md))",
    ),
    "gqa_forward bf16 b=2 sq=3000 skv=3000 heads=24 kv_heads=8 dim=128 causal=1": (
        "dense attention, bf16, causal, 2 x 3000, 24 heads on 8", "flash-attn-4",
        "those were of a variant with fewer rows a CTA, whose copies paced it ([GQA](log/gqa.md))",
    ),
    **{
        f"gqa_forward bf16 b=4 sq=4096 skv=4096 heads=64 kv_heads=8 dim=64 causal={causal}": (
            f"dense attention, bf16, {'causal' if causal else 'full'}, 4 x 4096, 64 heads of 64 elements",
            "flash-attn-4",
            "tiles of 112 keys, for 128 now ([GQA](log/gqa.md#heads-of-64-elements-2026-12-01))",
        )
        for causal in (0, 1)
    },
}  # fmt: skip


def behind(root: Path = ROOT) -> str:
    """Sizes that are or were slower than a peer: each with its ratio in the kept record, and the reason."""
    rows = []
    for path in sorted((root / results.FOLDER).glob("*.json")):
        kept = results.read(path)
        for row in kept.rows if kept is not None else ():
            name, ratio = f"{row.op} {row.point}", row.ratio
            if ratio is None or (ratio <= 1 and name not in CHANGE_PLACES):
                continue
            size, peer, why = CHANGE_PLACES.get(name, (name, row.fastest.name, "not analysed"))
            place = f"behind, {ratio:.2f}" if ratio > 1 else f"ahead, {ratio:.2f}; behind in other runs"
            rows.append((ratio, (size, peer, place, why)))
    return table(
        ("size", "peer", "in the last record: our time over the peer's", "why"),
        [cells for _, cells in sorted(rows, key=lambda one: -one[0])],
    )


def results_list() -> str:
    """Links to the pages of results."""
    links = [f"[{path.stem.removeprefix('results_')}]({path.name})" for path in results_pages()]
    return f"Results by card: {', '.join(links)}." if links else "No run of `bench --record` is kept yet."


def results_pages(root: Path = ROOT) -> dict[Path, str]:
    """The page of every file that `bench --record` wrote, by the page's path."""
    pages = {}
    for path in sorted((root / results.FOLDER).glob("*.json")):
        recorded_results = results.read(path)
        if recorded_results is not None:
            name = f"results_{results.short_name(recorded_results.gpu)}.md"
            pages[root / "docs" / name] = results.page(recorded_results)
    return pages


def mutants() -> str:
    """What caught the mutants of each structure; a star where its variant's module has changed since."""
    rows = []
    for name, record in count_mutants.load().items():
        caught = [record[catcher] for catcher in count_mutants.CATCHERS]
        rows.append((name + " *" * count_mutants.changed(record), sum(caught), *caught))
    return table(("structure", "mutants", "the plan", "the interpreter", "the emulator", "nothing"), rows)


def attack() -> str:
    """Outcomes of random input: the counts of scripts/attack.py, and those before the checks existed."""
    record = json.loads((ROOT / "docs" / "attack.json").read_text())
    rows = []
    for name, item in ATTACKS.items():
        then, now = record["before"].get(name), record["now"].get(name)
        first = f"{then['defects']} of {then['runs']}" if then else "-"
        numbers = (
            [now[key] for key in ("runs", "typed", "untyped", "slow", "mismatches")] if now else ["-"] * 5
        )
        rows.append((item.about, *numbers, first))
    columns = ("random", "runs", "refused typed", "untyped", "over their time", "wrong", "defects at first")
    return table(columns, rows)


def predicted_exchanges() -> str:
    """What the rule of `dsa.exchanges` predicts for both exchanges of a step with topk 2048 and 16 heads."""
    from dsl_kernels.dsa import exchanges

    rows = []
    for (step, count, each), ranks in product(
        (("decode", 1, 12), ("decode", 16, 12), ("decode", 64, 12), ("prompt", 4096, 8)), (2, 4, 8)
    ):
        row = [step, str(count), str(ranks)]
        for given in (count * 2048 * each, count * 16 * 1028):
            exchange = exchanges.Exchange(given, given)
            times = (exchanges.predicted(way, exchange, ranks) for way in exchanges.WAYS)
            row += [" / ".join(f"{us:.1f}" for us in times), exchanges.fastest(exchange, ranks)]
        rows.append(row)
    return table(["step", "rows", "ranks", "entries", "way", "partial outputs", "way"], rows)


BLOCKS: dict[str, Callable[[], str]] = {
    "exchanges": predicted_exchanges,
    "variant_summary": variant_summary,
    "variant_list": variant_list,
    "environment": environment,
    "declaration": declaration,
    "description": description,
    "barriers": barriers,
    "barriers_gathered": partial(barriers, GATHERED),
    "printed_dense": lambda: printed_lines(walkthrough.variant("cutedsl").id, DENSE_LINES),
    "pipeline_gathered": ring_declaration,
    "printed_gathered": partial(printed_lines, GATHERED, GATHERED_LINES),
    "body": body,
    "body_names": body_names,
    "body_vocabulary": body_vocabulary,
    "leaf_by_text": leaf_by_text,
    "leaf_functions": leaf_functions,
    "generated": generated,
    "generated_cutedsl": partial(generated, "cutedsl"),
    "newcomer_problem": partial(
        newcomer, "dsl_kernels_lab/oracles/row_softmax.py", "make", "reference", "compare"
    ),
    "newcomer_schedule": partial(newcomer, "dsl_kernels/kernels/row_softmax/program.py", "declare"),
    "newcomer_bodies": partial(
        newcomer,
        "dsl_kernels/kernels/row_softmax/program.py",
        "Kernel",
        "Rows",
        "_start",
        "_load",
        "_weigh",
        "bodies",
    ),
    "newcomer_text": partial(
        newcomer, "dsl_kernels/kernels/row_softmax/leaves.py", "exponentials", "write_row"
    ),
    "newcomer_told": newcomer_told,
    "newcomer_launch": newcomer_launch,
    "newcomer_case": partial(
        newcomer, "tests/kernels/row_softmax/leaves_row_softmax.py", "EACH", "exponentials"
    ),
    **{
        f"rung_{rung}": partial(lambda rung: code("python", ladder.excerpt(rung)), rung)
        for rung in ladder.RUNGS
    },
    "kernel": lambda: code("python", ladder.kernel()),
    "printed": lambda: code("python", ladder.printed()),
    "times": ladder.times,
    "lone_schedules": lone_schedules,
    "twin_declaration": twin_declaration,
    "twin_body": twin_body,
    "twin_tilelang": partial(twin, "tilelang"),
    "twin_cutedsl": partial(twin, "cutedsl"),
    "hand_written": hand_written,
    "dsl_lines": dsl_lines,
    "dsl_builds": dsl_builds,
    "claims": case_pages.claims,
    **{f"case_{name}": partial(case_pages.tables, name) for name in cases.names()},
    "planted": planted,
    "turned_knobs": turned_knobs,
    "looks": looks,
    "tuned_fingerprints": tuned_fingerprints,
    "recorded_calls": recorded_calls,
    "ceilings": ceilings,
    "ceilings_words": ceilings_words,
    "example": example,
    "plan": plan,
    "gpus": gpus,
    "attack": attack,
    "sglang_layer": sglang_record.layer,
    "vllm_engine": vllm_record.checked,
    "vllm_engine_timed": vllm_record.timed,
    "vllm_v4": partial(vllm_record.layer, "deepseek_v4"),
    "vllm_v41": partial(vllm_record.layer, "deepseek_v41"),
    "mutants": mutants,
    "beside_peers": beside_peers,
    "results_list": results_list,
    "behind": behind,
    "explained": command_pages.explained,
    "commands_of_the_library": partial(command_pages.page, "dsl_kernels"),
    "commands_of_the_generator": partial(command_pages.page, "codegen"),
    "sizes": sizes,
}


def updated(text: str) -> str:
    """A document with all of its blocks renewed."""
    return MARKER.sub(lambda match: f"{match[1]}{BLOCKS[match[2]]()}\n{match[3]}", text)


def outdated() -> dict[Path, str]:
    """Documents and pictures that differ from what the sources give, with their new text."""
    wanted = {
        path: updated(path.read_text()) for path in DOCUMENTS if path.exists()
    } | draw_pipeline.pictures()
    # Unlike a document with blocks, a page of results is generated whole.
    wanted |= results_pages()
    return {path: text for path, text in wanted.items() if not path.exists() or path.read_text() != text}


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    changed = outdated()
    for path, text in changed.items():
        if not arguments:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        print(f"{'out of step' if arguments else 'wrote'}: {path.relative_to(ROOT)}")
    return 1 if arguments and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
