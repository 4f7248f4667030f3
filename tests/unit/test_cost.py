"""The cost model: its counts are the bodies'; its ranking is arithmetic, fast, and separates variants."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import math
import subprocess
import sys
import threading
import time
from collections import defaultdict
from itertools import product
from types import SimpleNamespace
from typing import Any

import kernel_folders
import pytest
import torch
from sizes_lightning_indexer import decode
from sizes_sparse_mla import mla
from sizes_topk_selector import topk
from test_registry import ARCHS, GRID

from dsl_kernels import models, policies, programs, registry, variants
from dsl_kernels.arch import get_arch
from dsl_kernels.tile import text as text_module
from dsl_kernels.tile.counting import counts_of
from dsl_kernels.tile.cta import Cta
from dsl_kernels.tile.executor import Executor
from dsl_kernels.tile.interpreter import Run
from dsl_kernels.tile.lang import Engine
from dsl_kernels_lab import oracles


@pytest.fixture(autouse=True)
def fresh():
    registry.clear()
    yield
    registry.clear()


class CountingExecutor(Executor):
    """Walks the text of one role of one CTA as if no wait blocked, counting products and uses of pipelines.

    Leaves without results are skipped, as no body depends on them.
    """

    def walk(self, text) -> None:
        for _ in self.run(text):
            pass

    def do_call(self, call):
        # Only one CTA is walked, so values that a leaf would read from its peers keep their initial state.
        asks_peers = call.leaf.text is not None and "Peers[" in str(inspect.signature(call.leaf.text))
        if call.leaf.results and not asks_peers:
            super().do_call(call)

    def do_repeat(self, statement):
        """Repeat while the condition holds; once, if it depends on data that is not computed here."""
        names = sorted(text_module.names_of(text_module.values(statement)))
        if not names:
            yield from self._execute(statement.body)
        set_inside = any(
            isinstance(s, text_module.Assign) and s.name in names for s in text_module.walk(statement.body)
        )
        while names and bool(self._value(statement.condition)):
            before = [self._scope.get(name) for name in names]
            yield from self._execute(statement.body)
            if not set_inside and [self._scope.get(name) for name in names] == before:
                return

    def _stored(self, box, view):
        return lambda: None

    def do_multiply(self, statement):
        for each in statement.products:
            self._run.flops[each.mma.dtype] += each.mma.flops

    def do_take_ticket(self, statement):
        self._scope[statement.last] = True

    def _nothing(self, statement):
        pass

    do_bulk = do_fill = do_pass_turn = _nothing

    def do_take_turn(self, statement):
        return
        yield

    def do_pipeline_op(self, op):
        if op.kind == "acquire" or (op.kind == "commit" and op.slot.pipeline.fill is Engine.PEERS):
            self._run.uses[op.slot.pipeline.name] += 1
        return
        yield


class CountingRun(Run):
    def __init__(self, *args):
        super().__init__(*args)
        self.flops: dict[str, float] = defaultdict(float)
        self.uses: dict[str, int] = defaultdict(int)

    def counts(self, place: int) -> tuple[dict[str, float], int]:
        """FLOPs by dtype of the CTA at that place, and the number of uses of its busiest pipeline."""
        cta = Cta(self.schedule, (place, *(0 for _ in self.grid[1:])))
        for role in self.schedule.roles:
            for replica in range(role.replicas):
                CountingExecutor(self, cta, role, replica).walk(self.text)
        return dict(self.flops), max(1, *self.uses.values()) if self.uses else 1


def counted(program, knobs, arch, form, dims, place=0) -> tuple[dict[str, float], int]:
    operands: dict[str, Any] = {}
    for spec in (*program.problem.operands(form), *program.own_operands(knobs)):
        if spec.kind == "scalar":
            operands[spec.name] = int(dims.get(spec.name, 0)) if spec.dtype == "int32" else 1.0
            continue
        sizes = {**spec.sizes, **dims}
        shape = [extent if isinstance(extent, int) else int(sizes[extent]) for extent in spec.shape]
        row = torch.zeros(
            shape[-1:], dtype=torch.uint8 if spec.dtype.startswith("float8") else spec.torch_dtype
        )
        if spec.name in ("seq_lens", "k_end", "row_ends"):
            row = row + dims.get("max_len", dims.get("skv", 0))
        operand = row.view(spec.torch_dtype).expand(shape)
        # Texts of leaves index int32 operands element by element; the others are never read, and may be
        # large.
        operands[spec.name] = operand.contiguous() if spec.dtype == "int32" else operand
        if spec.name == "logits":
            # Zeros that are never written take no physical memory.
            operands[spec.name] = torch.zeros(shape, dtype=spec.torch_dtype)
    return CountingRun(program, knobs, arch, operands, dims).counts(place)


# Small enough to run the bodies in full, yet with ragged last blocks and tiles, several tiles and sequences
# per CTA, one and several products.
COUNTED = {
    op: calls
    for op, module in kernel_folders.of_each("sizes").items()
    if (calls := getattr(module, "COUNTED", None))
}


def small_calls(op: str) -> list[registry.Call]:
    """The calls to count of an operation's folder; without them, the small workloads of its problem."""
    problem = oracles.get(op)
    small = [w for w in problem.workloads if w.tier in ("tiny", "edge")]
    return COUNTED.get(op) or [
        registry.Call(op, w.form, arch, problem.dims_of(w.form, w.params))
        for w, arch in product(small, ARCHS)
    ]


@pytest.mark.parametrize("op", programs.names())
def test_counts_are_what_the_bodies_do(op) -> None:
    program, policy, compared, last = programs.get(op), policies.get(op), 0, 0
    for call in small_calls(op):
        open_variants = [v for v in variants.variants(op) if registry.refusal(call, v) is None]
        for knobs in {tuple(sorted(v.knobs.items())): v.knobs for v in open_variants}.values():
            arch = get_arch(call.arch)
            dims = {**call.dims, "max_len": call.dims.get("stride", 0), "cached": call.dims.get("n", 0)}
            dims |= policy.launch(SimpleNamespace(**knobs), dims, call.row).dims
            if policy.counts is not None:
                predicted = policy.counts(SimpleNamespace(**knobs), program.schedule(knobs, arch), dims)
            else:
                predicted = counts_of(program, knobs, arch)(dims)
            predicted = dataclasses.replace(
                predicted, flops={name: n for name, n in predicted.flops.items() if n}
            )
            counts = counted(program, knobs, arch, call.form, dims, predicted.cta)
            assert (predicted.flops, predicted.uses) == counts, (knobs, call)
            last += predicted.cta > 0
            compared += 1
    assert compared > (20 if op in COUNTED else 0)
    # CTAs of GQA take items forwards and backwards in turn: the last one may have more of them.
    assert last or op != "gqa_forward"


def test_the_model_tells_the_variants_of_a_dsl_apart() -> None:
    """A tie would not make a call fail, but shows that the model ignores what the knobs change."""
    for call in GRID:
        rows = [c for c in registry.explain(call).candidates if c.refusal is None]
        best = min(c.predicted_us for c in rows)
        tied = [c.variant for c in rows if c.predicted_us - best < registry.TIES[models.COST_MODEL]]
        assert len({v.backend for v in tied}) == len(tied), (call, [v.id for v in tied])


def test_predictions_and_selections_make_no_tensor(monkeypatch) -> None:
    """Under a mode that refuses every torch call, so that no process-wide setting can have an effect."""
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Refuse(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            raise AssertionError(f"{function} was called")

    class RefuseFunctions(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            raise AssertionError(f"{function} was called")

    monkeypatch.setattr(models.log, "warning", lambda *args: pytest.fail(str(args)))
    with Refuse(), RefuseFunctions():
        for call in GRID:
            registry.select(call)


@pytest.mark.parametrize("pages", (1, 5, 9, 12, 20, 31))
def test_block_tables_of_any_width_are_ranked(pages, caplog) -> None:
    for arch, rows in product(ARCHS, (1, 64)):
        assert registry.select(topk(rows, pages * 64, arch=arch)).variant.arch == arch
        assert registry.select(decode(rows, 1, pages, arch=arch)).variant.arch == arch
    assert not caplog.records


def test_a_cost_model_that_fails_costs_a_warning_not_the_call(monkeypatch, caplog) -> None:
    broken = dataclasses.replace(policies.get("topk_selector"), counts=lambda k, schedule, dims: 1 // 0)
    monkeypatch.setattr(
        policies, "get", lambda op, get=policies.get: broken if op == "topk_selector" else get(op)
    )
    monkeypatch.setattr(models, "_warned", set())
    with caplog.at_level(logging.WARNING):
        chosen = registry.select(topk())
        again = registry.select(topk(rows=64))
    ids = [v.id for v in variants.variants("topk_selector", arch="sm_90a")]
    assert chosen.variant.id == again.variant.id == min(ids)
    assert chosen.rule == "first by name, the cost model failed"
    assert len(caplog.records) == 1 and "ZeroDivisionError" in caplog.text and "topk_selector" in caplog.text
    assert registry.select(mla()).rule.startswith("cost model")


@pytest.mark.parametrize("value", (math.nan, math.inf))
def test_a_prediction_that_is_no_number_is_none(monkeypatch, value) -> None:
    broken = dataclasses.replace(policies.get("topk_selector"), overhead=lambda k, dims, arch: value)
    monkeypatch.setattr(policies, "get", lambda op: broken)
    explanation = registry.explain(topk())
    assert explanation.selection is not None and all(c.predicted_us is None for c in explanation.candidates)


def test_a_variant_without_a_prediction_ranks_last(monkeypatch) -> None:
    best = registry.select(topk()).variant
    known = models._by_cost

    def without_best(op, arch, knobs, *rest):
        return (None, "") if dict(knobs) == best.knobs else known(op, arch, knobs, *rest)

    monkeypatch.setattr(models, "_by_cost", without_best)
    monkeypatch.setattr(registry, "_selected", {})
    explanation = registry.explain(topk())
    assert (
        explanation.selection is not None
        and explanation.selection.variant != best
        and explanation.selection.rule.startswith("cost model")
    )


def test_threads_select_alike_while_the_cache_is_cleared() -> None:
    calls = GRID[::7]
    wanted = [registry.select(call) for call in calls]
    failures: list[Any] = []
    done = threading.Event()

    def work() -> None:
        try:
            for _ in range(3):
                failures.extend(c for c, w in zip(calls, wanted, strict=True) if registry.select(c) != w)
        except BaseException as error:
            failures.append(error)

    def forget() -> None:
        while not done.is_set():
            registry.clear()
            time.sleep(0.001)

    threads = [threading.Thread(target=work) for _ in range(8)]
    clearing = threading.Thread(target=forget)
    for thread in (*threads, clearing):
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    clearing.join()
    assert not failures


def test_a_selection_that_a_clear_overtook_is_not_kept(monkeypatch) -> None:
    explain = registry.explain

    def overtaken(*args, **kwargs):
        explanation = explain(*args, **kwargs)
        registry.clear()
        return explanation

    monkeypatch.setattr(registry, "explain", overtaken)
    registry.select(topk())
    assert not registry._selected


def test_the_model_and_the_registry_import_no_torch() -> None:
    code = "import sys, dsl_kernels.registry, dsl_kernels.tile.cost; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
