"""Where the time inside a kernel goes: run a variant with probes, and read them.

Variants with probes are not part of the generated set. They are looked up in the generated folder in use,
where they may have been put beforehand; otherwise the checkout's generator renders them in its own process.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dsl_kernels import executors, programs, registry, variants
from dsl_kernels.arch import GpuSpec, get_arch
from dsl_kernels.errors import InvalidArgumentError, ToolchainError, UnknownNameError, did_you_mean
from dsl_kernels.tile.lang import COARSE, PROBE, SUMS, TRACE
from dsl_kernels.tile.probes import WAITS, Probed
from dsl_kernels.variants import Variant

from .. import oracles
from ..oracles import Workload
from ..timing.bench import checkout
from ..verification import trial
from . import readings
from .model import Regions, RegionTime, RoleTime, Ticks

CLOCKS = {
    "cuda": "cycles of an SM",
    "emulator": "ticks of the emulator, 4 an instruction of any warp of the launch: no time of a GPU",
}
WARM_UPS = 2


@dataclass(frozen=True)
class Run:
    """A launch with probes: their marks, and how to read them."""

    variant: Variant
    workload: Workload
    dims: Mapping[str, int]
    executor: str
    probes: Probed
    workspace: torch.Tensor


def probed(variant: Variant, mode: int = SUMS) -> Variant:
    """The variant with its probes on.

    Raises:
        ToolchainError: it is not in the generated set in use, and there is no generator here.
        InvalidArgumentError: the generator refused it.
    """
    return rendered(variant, **{PROBE.name: mode})


def rendered(variant: Variant, **changed: Any) -> Variant:
    """The variant with other values of its knobs, including knobs of no generated set.

    Raises:
        ToolchainError: it is not in the generated set in use, and there is no generator here.
        InvalidArgumentError: the generator refused it.
    """
    program, knobs = programs.get(variant.op), {**variant.knobs, **changed}
    wanted = program.variant_id(variant.backend, get_arch(variant.arch), knobs)
    for candidate in (variant, *variants.variants(variant.op)):
        if candidate.id == wanted:
            return candidate
    source = checkout()
    if source is None or importlib.util.find_spec("jinja2") is None:
        raise ToolchainError(
            wanted,
            expected="a variant of that name in the generated set, "
            "or a source checkout with Jinja to render it",
            got="neither",
            fix="render it in a checkout with `python -m codegen probe`, "
            "and point DSL_KERNELS_GENERATED_DIR there",
        )
    mode = knobs.pop(PROBE.name, 0)
    argv = [sys.executable, "-m", "codegen", "probe", variant.id, "--json"]
    argv += {0: ["--off"], SUMS: [], TRACE: ["--trace"], COARSE: ["--coarse"]}[mode]
    argv += [f"--knob={name}={value}" for name, value in knobs.items() if variant.knobs.get(name) != value]
    done = subprocess.run(argv, cwd=source, capture_output=True, text=True, check=False)
    try:
        folder = Path(json.loads(done.stdout)["folder"])
    except (ValueError, KeyError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise InvalidArgumentError(
            variant.id,
            expected="a variant that can be rendered with probes",
            got=last,
            fix="run `make generate`, or correct what it names",
        ) from None
    return next(candidate for candidate in variants.in_folder(folder) if candidate.id == wanted)


def workload_of(
    op: str,
    dims: Mapping[str, Any],
    *,
    variant: Variant | None = None,
    form: str | None = None,
    tier: str = "tiny",
    name: str | None = None,
) -> Workload:
    """A workload of an op, with some of its parameters replaced.

    Args:
        dims: the parameters to replace, by the workload's names or those of operands and points.
        variant: start from the first workload that it takes; otherwise from the first one of the form.
        name: the workload to start from.

    Raises:
        UnknownNameError, InvalidArgumentError: no such workload or size, or a value of another kind.
    """
    every = oracles.get(op).workloads
    if name is not None and all(w.name != name for w in every):
        names = [w.name for w in every]
        raise UnknownNameError(
            "--workload", expected=f"a workload of {op}", got=repr(name), fix=did_you_mean(name, names)
        )
    known = (w for w in every if (w.tier == tier if name is None else w.name == name))
    fitted = (trial.fitted(variant, w) if variant else w for w in known)
    # Lazily, up to the first that fits: drawing the inputs of all would take long.
    first = next((w for w in fitted if form in (None, w.form) and _fits(variant, w)), None)
    if first is None:
        raise InvalidArgumentError(
            "what to run",
            expected=f"a workload of {op}" + (f" that {variant.id} takes" if variant else ""),
            got=f"none, {name or tier}, {form or 'any form'}",
            fix="name one with --workload",
        )
    if not dims:
        return first
    # Match the workload's own parameters first, then the names that operands and points give them.
    own = {k: v for k, v in dims.items() if type(first.params.get(k)) is type(v)}
    dims = {**own, **oracles.get(op).point_of(first.form, {k: v for k, v in dims.items() if k not in own})}
    sizes = ",".join(f"{k}={value}" for k, value in dims.items())
    return replace(first, name=f"{first.name} {sizes}", params={**first.params, **dims})


def _fits(variant: Variant | None, workload: Workload) -> bool:
    return variant is None or trial.accepts(variant, workload, trial.draw(variant.op, workload, 0)) is None


def selected(
    op: str, workload: Workload, inputs: Mapping[str, Any], arch: str, gpu: GpuSpec | None = None
) -> registry.Selection:
    """What the registry selects for a workload, on a GPU or for an architecture without one."""
    dims = trial.dims_of(op, workload, inputs)
    call = (
        registry.Call.on(gpu, op, workload.form, dims)
        if gpu
        else registry.Call(op, workload.form, arch, dims)
    )
    return registry.select(call)


def run(
    variant: Variant,
    workload: Workload,
    executor: str,
    *,
    mode: int = SUMS,
    inputs: Mapping[str, Any] | None = None,
    launch: Mapping[str, int] | None = None,
    seed: int = 0,
) -> Run:
    """Launch a variant with its probes on: after warm-ups on a GPU, once in the emulator.

    Raises:
        InvalidArgumentError: an executor without a clock, or sizes that the variant refuses.
    """
    if executor not in CLOCKS:
        raise InvalidArgumentError(
            "--executor",
            expected=" or ".join(CLOCKS),
            got=repr(executor),
            fix="the interpreter has no clock: choose one of them",
        )
    drawn = inputs if inputs is not None else trial.draw(variant.op, workload, seed)
    reason = trial.accepts(variant, workload, drawn, launch)
    if reason is not None:
        raise InvalidArgumentError(
            variant.id,
            expected="sizes that it accepts",
            got=reason,
            fix="change --dim, or choose another variant",
        )
    on = probed(variant, mode)
    device = "cuda" if executor == "cuda" else "cpu"
    operands, dims = trial.allocate(on, workload, trial.to_device(drawn, device), launch)
    launcher = executors.get(executor).prepare(on)
    launcher.check(operands, dims)
    stream = torch.cuda.current_stream().cuda_stream if device == "cuda" else 0
    for _ in range(1 + (WARM_UPS if device == "cuda" else 0)):
        launcher(operands, dims, stream)
    layout = programs.get(on.op).probes(on.knobs, get_arch(on.arch))
    return Run(variant, workload, dims, executor, layout, operands["probe"].cpu())


def cycles_per_ns(launch: Run) -> float:
    """The rate of an SM's clock, from the longest-running warp, whose trace has both clocks twice."""
    times = torch.cat(
        [readings.times(launch.probes, launch.workspace, role) for role in launch.probes.regions]
    )
    ns, ticks = (readings.unsigned(times[:, 2 + i] - times[:, i]) for i in (0, 1))
    longest = int(ns.argmax())
    return float(ticks[longest]) / float(ns[longest]) if ns[longest] else 1.0


def table(launch: Run) -> Regions:
    """The times of a launch by role and region."""
    probes = launch.probes
    spent = {role: readings.read(probes, launch.workspace, role) for role in probes.regions}
    began, ended = (
        torch.cat(parts, dim=1) for parts in zip(*((s.began, s.ended) for s in spent.values()), strict=True)
    )
    sms = next(iter(spent.values())).sm
    each = [sms == sm for sm in sms.unique()]
    roles = tuple(_role(probes, role, spent) for role, spent in spent.items())
    return Regions(
        variant=launch.variant.id,
        workload=launch.workload.name,
        executor=launch.executor,
        clock=CLOCKS[launch.executor],
        dims={name: int(value) for name, value in launch.dims.items() if name != "probe_words"},
        ctas=len(began),
        cta=_spread(torch.stack([_length(*times) for times in zip(began, ended, strict=True)])),
        sm=_spread(torch.stack([_length(began[mine], ended[mine]) for mine in each])),
        roles=roles,
        pace=_pace(roles),
    )


def _role(probes: Probed, role: str, spent: Any) -> RoleTime:
    total = max(int(spent.elapsed.sum()), 1)
    rows = []
    for number, region in enumerate(probes.regions[role]):
        ticks = spent.spent[..., number]
        rows.append(
            RegionTime(region, _spread(ticks), int(ticks.sum()) / total, _other_side(probes, role, region))
        )
    lost = 1 - int(spent.spent.sum()) / total
    waits = sum(row.share for row in rows if row.region.startswith(WAITS))
    ordered = tuple(sorted(rows, key=lambda row: -row.share))
    return RoleTime(role, len(readings.warps_of(probes, role)), _spread(spent.elapsed), lost, waits, ordered)


def _length(began: torch.Tensor, ended: torch.Tensor) -> torch.Tensor:
    """Time from the first of `began` to the last of `ended`, on one clock that wraps around."""
    zero = began.flatten()[0]
    begins, ends = ((times - zero).int() for times in (began, ended))
    return (ends.max() - begins.min()).long()


def _spread(ticks: torch.Tensor) -> Ticks:
    ordered = ticks.flatten().sort().values
    count = len(ordered)
    median = (int(ordered[(count - 1) // 2]) + int(ordered[count // 2])) / 2
    return Ticks(median, int(ordered[0]), int(ordered[-1]))


def _other_side(probes: Probed, role: str, region: str) -> str:
    """The roles that a wait is for."""
    kind, _, name = region.partition(" ")
    schedule = probes.schedule
    if kind == "take" and any(turn.name == name for turn in schedule.turns):
        return ", ".join(schedule.turn(name).roles)
    if kind == "meet":
        return ", ".join(schedule.named_barriers.get(name, ()))
    pipe = next((p for p in schedule.pipelines if p.name == name), None)
    if pipe is None:
        return ""
    return (
        pipe.producer
        if kind == "wait"
        else ", ".join(r.role for r in pipe.readers)
        if kind in ("acquire", "drain")
        else ""
    )


def _pace(roles: tuple[RoleTime, ...]) -> str:
    """The role that waits least for others, and what it spends most on: it sets the pace of the kernel."""
    busiest = min(roles, key=lambda role: role.waits)
    work = next((row for row in busiest.regions if not row.region.startswith(WAITS)), busiest.regions[0])
    return (
        f"{busiest.role} waits least ({busiest.waits:.0%} of its time) "
        f"and spends most on {work.region} ({work.share:.0%})"
    )
