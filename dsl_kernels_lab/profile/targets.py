"""Single kernels for a profiler to look at: warmed up, then launched between profiler start and stop.

Inputs are drawn and kernels compiled before `look` starts the profiler, so neither is in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from dsl_kernels import measured, problems, programs, registry, variants
from dsl_kernels.arguments import require_known
from dsl_kernels.errors import InvalidArgumentError, ToolchainError
from dsl_kernels.variants import Variant

from .. import oracles
from ..oracles.sparse_mla import DATASET_SM_SCALE
from ..timing import grids, measure
from . import metrics
from .model import KernelReport, Workload

# The baseline's tokens, warps and stages, if nobody has timed its settings.
TRITON_SETTING = (32, 4, 3)
# torch's attention, which is no operation of this project, and the sizes to look at it with.
SDPA = "sdpa"
SDPA_SIZES = {"b": 1, "heads": 32, "n": 2048, "d": 128, "causal": 1}
# Implementations other than variants: the operations that have them, each with a form, or "" for all forms.
OTHERS = {"torch": (("topk_selector", ""), ("sparse_mla", "bf16")), "triton": (("sparse_mla", "bf16"),)}
WARM_UPS = 2


@dataclass
class Target:
    """A call to look at, the call that warms it up on other inputs, and what it has to do.

    `kernels` is how many kernels a call launches; 0 if unknown.
    """

    label: str
    call: Callable[[], Any]
    workload: Workload
    warm: Callable[[], Any]
    kernels: int = 1


def target(
    op: str, dims: Mapping[str, Any], impl: str | None = None, *, form: str | None = None, seed: int = 0
) -> Target:
    """The kernel of an op at these sizes.

    Args:
        op: an operation, or "sdpa" for torch's attention.
        impl: a variant's id, "triton" or "torch"; by default what the registry selects.

    Raises:
        UnknownNameError, InvalidArgumentError: no such op, size or implementation.
        NoVariantError: the variant is for another architecture, or refuses the sizes.
    """
    require_target(op, dims, impl, form=form)
    label = " ".join(
        [op, *(f"{k}={v}" for k, v in dims.items()), impl.split("__", 1)[-1] if impl else "selected"]
    )
    work = workload(op, dims, form=form)
    if op == SDPA:
        return _sdpa(label, work.dims, work)
    point = _point(op, dims, form, impl)
    if impl == "torch" and op == "topk_selector":
        return _torch_topk(label, point.params, seed, work)
    fixture = grids.prepare(point, seed)
    if impl == "torch":
        return _torch(label, fixture, work)
    if impl == "triton":
        return _triton(label, point, fixture, work)
    chosen, calls = registry.select(grids.call_of(point, fixture), impl), fixture.calls(impl, None)
    return Target(label, calls[-1], workload(op, dims, form=form, variant=chosen.variant.id), calls[0])


def look(targets: Iterable[Target], launches: int = 1) -> list[dict[str, Any]]:
    """Launch each target for the profiler; returns the labels and kernel counts, in order of launch."""
    runtime = torch.cuda.cudart()
    seen = []
    for item in targets:
        for _ in range(WARM_UPS):
            item.warm()
        item.call()
        torch.cuda.synchronize()
        runtime.cudaProfilerStart()
        torch.cuda.nvtx.range_push(item.label)
        for _ in range(launches):
            item.call()
        torch.cuda.synchronize()
        torch.cuda.nvtx.range_pop()
        runtime.cudaProfilerStop()
        seen.append(
            {"label": item.label, "kernels": item.kernels * launches, "workload": vars(item.workload)}
        )
    return seen


def activity(item: Target) -> list[KernelReport]:
    """The kernels that a call launches, with names and times from torch.profiler but no counters."""
    item.warm()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as traced:
        item.call()
        torch.cuda.synchronize()
    major, minor = torch.cuda.get_device_capability()
    return [
        KernelReport(
            event.name,
            "activity",
            arch=f"sm_{major}{minor}",
            device=torch.cuda.get_device_name(),
            metrics={metrics.DURATION: 1e3 * float(event.device_time_total)},
            label=item.label,
            missing=("stalls", "bytes moved", "units", "registers"),
        )
        for event in traced.events()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]


def _with(work: Workload, **changes: Any) -> Workload:
    return Workload(**{**vars(work), **changes})


def workload(op: str, dims: Mapping[str, Any], *, form: str | None = None, variant: str = "") -> Workload:
    """What an op must read at these sizes, from its arithmetic alone; needs no GPU."""
    if op == SDPA:
        sizes = _sdpa_sizes(dims)
        # Queries, keys and values, each read once.
        read = 3.0 * 2.0 * sizes["b"] * sizes["heads"] * sizes["n"] * sizes["d"]
        return Workload(op, "bf16", variant or "torch", sizes, unique_bytes=read)
    point = _point(op, dims, form, variant)
    return Workload(op, point.form, variant, point.params, **grids.reads(point, variant))


def require_target(
    op: str, dims: Mapping[str, Any], impl: str | None = None, *, form: str | None = None
) -> None:
    """Refuse what `target` could not launch on any GPU; needs no GPU.

    Raises:
        UnknownNameError: no such op, form, size or variant.
        InvalidArgumentError: an implementation that the op does not have, or a variant that refuses the
            sizes.
    """
    if op == SDPA:
        _sdpa_sizes(dims)
        if impl not in (None, "torch") or form is not None:
            got = f"--variant {impl}" if impl not in (None, "torch") else f"--form {form}"
            raise InvalidArgumentError(
                got, expected="torch's attention as it is", got=f"{op} with {got}", fix="leave it out"
            )
        return
    point = _point(op, dims, form, impl)
    if impl is None:
        return
    if impl in OTHERS:
        if not any((op, point.form) == (known, at or point.form) for known, at in OTHERS[impl]):
            places = " and ".join(f"{known} {at}".strip() for known, at in OTHERS[impl])
            raise InvalidArgumentError(
                "--variant",
                expected=f"a variant of {op}, as {impl} is looked at for {places} alone",
                got=f"{impl!r} for {op} {point.form}",
                fix="leave it out, or name a variant that `list` prints",
            )
        return
    variant = measured.added_variants().get(impl) or variants.get(impl)
    reason = f"it computes {variant.op}" if variant.op != op else _refusal(variant, point)
    if reason is not None:
        raise InvalidArgumentError(
            "--variant",
            expected=f"a variant that takes {op} {point.name}",
            got=f"{impl}: {reason}",
            fix=f"choose one of `python -m dsl_kernels explain {op}`",
        )


def _refusal(variant: Variant, point: grids.Point) -> str | None:
    """Why a variant cannot serve a point, judging by the point's own sizes alone."""
    facts = {**problems.get(point.op).dims_of(point.form, point.params), "form": point.form}
    for guard in programs.get(point.op).guards:
        try:
            reason = guard.refuse(variant.knobs, facts)
        except KeyError:
            continue
        if reason is not None:
            return reason
    return None


def _point(op: str, dims: Mapping[str, Any], form: str | None, variant: str | None) -> grids.Point:
    """The sizes asked for, completed by the op's usual ones.

    The form is the one asked for, else the variant's, else the first one that has these sizes.
    """
    require_known("op", op, [*problems.names(), SDPA], "operation to look at")
    oracle = oracles.get(op)
    if form is None and variant and "__" in variant:
        named = measured.added_variants().get(variant) or variants.get(variant)
        form = next((name for name in oracle.forms if name in named.knobs.values()), None)
    usual = grids.usual(op, form or oracle.form_of(dims))
    return grids.Point(op, usual.form, {**usual.params, **oracle.point_of(usual.form, dims)})


def _sdpa_sizes(dims: Mapping[str, Any]) -> dict[str, int]:
    for name in dims:
        require_known(f"size of {SDPA}", name, SDPA_SIZES, "size")
    return {**SDPA_SIZES, **dims}


def _triton(label: str, point: grids.Point, fixture: grids.Fixture, work: Workload) -> Target:
    module = measure.baseline_module()
    if module is None:
        raise ToolchainError(
            f"Triton's {point.op}",
            expected="a checkout with Triton",
            got="none",
            fix="look at a variant, or at torch",
        )
    setting = module.Setting(*TRITON_SETTING)
    t, heads, _ = fixture.baseline[0]["q_nope"].shape
    topk = fixture.baseline[0]["indices"].shape[1]
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    splits = max(module.split_counts(t, -(-heads // 16), topk, setting.tokens, processors))
    scratch = module.workspace(t, heads, measure.DEVICE, splits=splits)
    out = torch.empty_like(fixture.baseline[0]["q_nope"])
    lse = torch.empty(t, heads, device=measure.DEVICE)

    def call(turn: int) -> None:
        c = fixture.baseline[turn]
        module.sparse_mla(
            c["q_nope"],
            c["q_pe"],
            c["ckv"],
            c["kpe"],
            c["indices"],
            DATASET_SM_SCALE,
            out,
            lse,
            scratch,
            setting,
            splits,
        )

    return Target(label, lambda: call(-1), _with(work, variant="triton"), lambda: call(0), kernels=2)


def _torch(label: str, fixture: grids.Fixture, work: Workload) -> Target:
    """Attention in torch: gather the rows, then scaled_dot_product_attention over them."""

    def call(turn: int) -> torch.Tensor:
        c = fixture.baseline[turn]
        ids = c["indices"].long()
        keys = torch.cat([c["ckv"][ids], c["kpe"][ids]], dim=2)[:, None]
        query = torch.cat([c["q_nope"], c["q_pe"]], dim=2)[:, :, None]
        keys = keys.expand(-1, query.shape[1], -1, -1)
        return torch.nn.functional.scaled_dot_product_attention(
            query, keys, keys[..., :512], scale=DATASET_SM_SCALE
        )

    return Target(label, lambda: call(-1), _with(work, variant="torch"), lambda: call(0), kernels=0)


def _torch_topk(label: str, sizes: Mapping[str, int], seed: int, work: Workload) -> Target:
    generator = torch.Generator(measure.DEVICE).manual_seed(seed)
    shape = (sizes["rows"], sizes["len"])
    sets = [torch.randn(shape, generator=generator, device=measure.DEVICE) for _ in range(2)]
    return Target(
        label,
        lambda: sets[1].topk(sizes["k"], dim=1),
        _with(work, variant="torch"),
        lambda: sets[0].topk(sizes["k"], dim=1),
        kernels=0,
    )


def _sdpa(label: str, sizes: Mapping[str, int], work: Workload) -> Target:
    shape = (sizes["b"], sizes["heads"], sizes["n"], sizes["d"])
    q, k, v = (torch.randn(shape, device=measure.DEVICE, dtype=torch.bfloat16) for _ in range(3))

    def call() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=bool(sizes["causal"]))

    return Target(label, call, work, call)
