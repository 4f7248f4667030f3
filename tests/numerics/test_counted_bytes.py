"""The bytes that leaves of attention declare are those that their texts touch, in the interpreter."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dsl_kernels import policies, programs, variants
from dsl_kernels.arch import get_arch, gpu_row
from dsl_kernels.executors import Interpreter
from dsl_kernels.tile import executor, threads
from dsl_kernels.tile.counting import counts_of
from dsl_kernels.tile.expressions import size_at
from dsl_kernels.tile.leaf import Leaf
from dsl_kernels_lab.oracles import Workload
from dsl_kernels_lab.verification import trial

VARIANTS = {
    (v.arch, repr(sorted(v.knobs.items()))): v
    for v in variants.variants("sparse_mla")
    if v.knobs["heads"] in (16, 64) and v.knobs.get("gather") != "gather4"
}
READ = ("q_nope", "q_pe", "ckv", "kpe", "kv_cache", "q_rows", "kv_pages", "extra_kv_pages")
WRITTEN = ("out", "lse", "o_partial", "lse_partial", "inboxes")


class Touched:
    """Distinct bytes that each leaf touches in an operand per call, summed over its calls."""

    def __init__(self) -> None:
        self.operands: dict[int, str] = {}
        self.bytes: dict[tuple[str, str], int] = defaultdict(int)
        self.places: dict[tuple[str, int], list[torch.Tensor]] = {}

    def of_call(self, leaf: Leaf) -> None:
        for (name, size), addresses in self.places.items():
            self.bytes[leaf.name, name] += int(torch.cat(addresses).unique().numel()) * size
        self.places = {}

    def see(self, place: threads.Place, taken: torch.Tensor | None, count: int) -> None:
        name = self.operands.get(place.memory.untyped_storage().data_ptr(), "other")
        index = (place.memory.storage_offset() + place.index)[slice(None) if taken is None else taken]
        each = (index[:, None] + torch.arange(count)).reshape(-1)
        self.places.setdefault((name, place.memory.element_size()), []).append(each)


@pytest.fixture
def touched(monkeypatch) -> Iterator[Touched]:
    places, of, run = Touched(), threads.Place.of, threads.run

    def watched(place: threads.Place, taken: torch.Tensor | None, count: int = 1) -> torch.Tensor:
        if isinstance(place.memory, torch.Tensor):
            places.see(place, taken, count)
        return of(place, taken, count)

    def counted(leaf: Leaf, *given: Any) -> dict[str, Any]:
        results = run(leaf, *given)
        places.of_call(leaf)
        return results

    monkeypatch.setattr(threads.Place, "of", watched)
    monkeypatch.setattr(executor.threads, "run", counted)
    yield places


@pytest.mark.sample(8)
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=lambda v: v.id)
def test_leaves_move_what_they_say(variant: variants.Variant, touched: Touched) -> None:
    program, arch, k = programs.get("sparse_mla"), get_arch(variant.arch), SimpleNamespace(**variant.knobs)
    sizes = {"t": 1, "heads": k.heads, "topk": 256, "n": 700, "v4_extra_topk": 128}
    splits = k.cluster
    workload = Workload("counted", "edge", k.kv, sizes)
    example = trial.make_example("sparse_mla", workload, 3)
    operands, dims = trial.allocate(variant, workload, example.inputs, {"splits": splits})
    named = {name: value for name, value in operands.items() if isinstance(value, torch.Tensor)}
    touched.operands = {value.untyped_storage().data_ptr(): name for name, value in named.items()}
    Interpreter().prepare(variant)(operands, dims, 0)
    schedule = program.schedule(variant.knobs, arch)
    ctas = math.prod(size_at(extent, dims) for extent in schedule.grid)
    counts = counts_of(program, variant.knobs, arch)(dims)
    planned = policies.get("sparse_mla").launch(k, {**sizes, "splits": splits}, gpu_row(arch.name))
    assert planned.splits == splits
    # Prefetches into L2 do not count, as the data is read from there later.
    moved = {key: n for key, n in touched.bytes.items() if key[0] not in ("fetch_half", "fetch_v4_half")}
    read = sum(n for (_, operand), n in moved.items() if operand in READ)
    assert counts.loaded * ctas == read, dict(touched.bytes)
    if k.cluster == 1:
        weights = sum(
            n for (leaf, operand), n in touched.bytes.items() if (leaf, operand) == ("store_weights", "other")
        )
        written = sum(n for (_, operand), n in touched.bytes.items() if operand in WRITTEN)
        assert counts.stored * ctas == written + weights, dict(touched.bytes)
