"""Attention whose CTAs send parts to one another through the grid: co-residency, and workspaces."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dsl_kernels import ops, variants
from dsl_kernels.arch import GPUS
from dsl_kernels.errors import NoVariantError
from dsl_kernels.executors import Emulator, Interpreter
from dsl_kernels.kernels.sparse_mla.policy import launch
from dsl_kernels.kernels.sparse_mla.program import PROGRAM
from dsl_kernels.tile.expressions import size_at
from dsl_kernels.tile.lang import LaunchPlan
from dsl_kernels.tile.plan import words_of
from dsl_kernels_lab.oracles import Workload
from dsl_kernels_lab.verification import trial
from dsl_kernels_lab.verification.reach import attended_heads

VARIANTS = [v for v in variants.variants("sparse_mla", arch="sm_90a") if v.knobs.get("slices", 1) > 1]
BLACKWELL = variants.variants("sparse_mla", arch="sm_100a")
each_variant = pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.id)


@each_variant
@pytest.mark.parametrize(
    "gpu", [gpu for gpu in GPUS.values() if gpu.arch.name == "sm_90a"], ids=lambda g: g.name
)
def test_ctas_that_wait_for_each_other_all_fit(variant: variants.Variant, gpu) -> None:
    schedule = PROGRAM.schedule(variant.knobs, gpu.arch)
    words, _ = words_of(schedule, "inboxes")
    for t in (*range(1, 70), 128, 300):
        sizes = {"t": t, "topk": 2048, "heads": attended_heads(variant.knobs)}
        dims = {**sizes, **launch(SimpleNamespace(**variant.knobs), sizes, gpu).dims}
        x, y, z = (size_at(extent, dims) for extent in schedule.grid)
        if size_at(schedule.resident, dims):
            assert x * y * z <= gpu.sms * schedule.ctas_per_sm
            assert dims["inbox_words"] == x * y * z * words
        else:
            assert z == 1


WHOLE = [
    v for v in variants.variants("sparse_mla", arch="sm_90a") if (v.knobs["slices"], v.knobs["block"],
        v.knobs["cluster"]) == (1, 0, 1)
]  # fmt: skip


@pytest.mark.sample(36)
@pytest.mark.parametrize("crowd", (False, True))
@pytest.mark.parametrize(
    "executor, splits",
    (
        (Interpreter(seed=3), 3),
        (Interpreter(seed=4), 5),
        pytest.param(Emulator(strict=True), 3, marks=(pytest.mark.emulator, pytest.mark.compile)),
    ),
    ids=("three", "five", "emulated"),
)
@pytest.mark.parametrize("variant", WHOLE, ids=lambda v: v.id)
def test_splits_of_whole_rows_merge_together_or_the_last_one_alone(
    variant: variants.Variant, executor, splits: int, crowd: bool
) -> None:
    sizes = {"t": 2, "heads": attended_heads(variant.knobs), "topk": 320, "n": 700, "ids": "holes"}
    told = {"splits": splits, "all_resident": int(not crowd)}
    work = Workload("splits", "edge", variant.knobs["kv"], sizes)
    result = trial.run(variant, work, executor, launch=told)
    assert result.comparison.ok, result.comparison.failures


def test_splits_that_do_not_run_at_once_do_not_wait() -> None:
    knobs, gpu = SimpleNamespace(**WHOLE[0].knobs), GPUS["H200"]
    for t, splits, waits in ((33, 4, True), (34, 4, False), (44, 3, True), (100, 4, False)):
        sizes = {"t": t, "topk": 2048, "heads": attended_heads(WHOLE[0].knobs), "splits": splits}
        plan = launch(knobs, sizes, gpu)
        assert plan.splits == splits and plan.counters == t and plan.all_resident is waits
        resident = PROGRAM.schedule(WHOLE[0].knobs, gpu.arch).resident
        assert bool(size_at(resident, {**sizes, **plan.dims})) is waits


def test_a_variant_takes_as_many_queries_as_it_may_without_waiting() -> None:
    sizes = {"t": 4000, "topk": 2048, "heads": 16}
    knobs = next(v.knobs for v in VARIANTS if v.knobs["heads"] == 16)
    gpu = next(gpu for gpu in GPUS.values() if gpu.arch.name == "sm_90a")
    assert launch(SimpleNamespace(**knobs), sizes, gpu) == LaunchPlan(splits=2, inbox_words=1)


def _call(t: int, splits: int, executor: str, workspace: ops.Workspace) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.Generator().manual_seed(t)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=drawn).bfloat16()

    ids = torch.randint(0, 700, (t, 512), generator=drawn, dtype=torch.int32)
    variant = next(v.id for v in VARIANTS if v.knobs["heads"] == 8 and v.knobs["kv"] == "bf16")
    return ops.sparse_mla(
        normal(t, 8, 512), normal(t, 8, 64), normal(700, 512), ids, kpe=normal(700, 64), sm_scale=0.04,
        workspace=workspace,
        splits=splits, variant=variant, executor=executor,
    )  # fmt: skip


@pytest.mark.emulator
@pytest.mark.compile
@pytest.mark.parametrize("executor", ["interpreter", "emulator"])
def test_calls_of_other_shapes_leave_a_workspace_as_they_found_it(executor: str) -> None:
    workspace, results = ops.Workspace(), {}
    for t, splits in ((1, 8), (3, 4), (2, 2), (1, 16), (3, 4), (1, 8)):
        result = _call(t, splits, executor, workspace)
        before = results.setdefault((t, splits), result)
        assert all(map(torch.equal, result, before))
        (inboxes,) = (buffer for (name, _), buffer in workspace._buffers.items() if name == "inboxes")
        assert not inboxes.any()


def test_parts_that_share_out_no_rows_evenly_are_refused() -> None:
    with pytest.raises(NoVariantError, match="share out no 16 rows evenly"):
        _call(1, 6, "interpreter", ops.Workspace())


@pytest.mark.sample(12)
@pytest.mark.emulator
@pytest.mark.compile
@pytest.mark.parametrize(
    "variant", [v for v in (*VARIANTS, *BLACKWELL) if attended_heads(v.knobs) <= 20], ids=lambda v: v.id
)
def test_the_order_of_arrival_changes_no_bit(variant: variants.Variant) -> None:
    sizes = {"t": 1, "heads": attended_heads(variant.knobs), "topk": 256, "n": 700, "ids": "holes"}
    workload = Workload("parts", "edge", variant.knobs["kv"], sizes)
    first, second = (
        trial.run(variant, workload, executor, launch={"splits": 8})
        for executor in (Emulator(), Emulator(_random(5)))
    )
    assert first.comparison.ok and second.comparison.ok
    assert all(torch.equal(first.operands[name], second.operands[name]) for name in ("out", "lse"))
    seeds = [trial.run(variant, workload, Interpreter(seed), launch={"splits": 8}) for seed in (None, 4)]
    assert torch.equal(*(each.operands["out"] for each in seeds))


def _random(seed: int):
    from ptx_emulator import Interleaving

    return Interleaving.random(seed, resident=2)
