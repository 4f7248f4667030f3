"""Workloads that make an emulated kernel iterate: rings wrap, and a CTA has several tiles and queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import dsl_kernels
from dsl_kernels.arguments import checked
from dsl_kernels.runtime import store
from dsl_kernels.variants import Variant

from ..oracles import Workload
from . import trial

if TYPE_CHECKING:
    from ptx_emulator import Coverage

# Full rounds of each ring in a workload; one more tile begins another.
ROUNDS = 2


def source_text(variant: Variant, reached: Coverage) -> Callable[[str], str | None]:
    """A function from "file:number" to that line of the module, a device helper or the DSL's output."""
    package = Path(dsl_kernels.__file__).parent
    names = reached.program.module.files.values() if reached.program else ()
    places = {Path(name).name: package.parent / name for name in names if name.startswith(package.name)}
    places[variant.path.name] = variant.path
    folder = store.lookup(variant)
    if folder is not None:
        places["kernel.cu"] = folder / "kernel.cu"  # TileLang's CUDA
    texts: dict[str, list[str]] = {}

    def line(at: str) -> str | None:
        name, _, number = at.rpartition(":")
        if name not in places or not number.isdigit():
            return None
        if name not in texts:
            texts[name] = places[name].read_text().splitlines() if places[name].is_file() else []
        return texts[name][int(number) - 1] if 0 < int(number) <= len(texts[name]) else None

    return line


@checked
def workloads(variant: Variant) -> list[tuple[Workload, dict[str, int]]]:
    """Workloads for the emulator, each with the launch dims to fix: the tiny ones, and those that iterate.

    The launch dims give a whole call to one CTA or cluster if its program lets one take tiles in turn.
    """
    pairs = _LONG.get(variant.op, _none)(SimpleNamespace(**variant.knobs))
    long = [pair for pair in pairs if _takes(variant, *pair)]
    return [*((item, {}) for item in trial.workloads(variant, "tiny")), *long]


def _takes(variant: Variant, workload: Workload, launch: Mapping[str, int]) -> bool:
    return trial.accepts(variant, workload, trial.cached_example(variant.op, workload).inputs, launch) is None


def _workload(form: str, params: dict[str, Any]) -> Workload:
    """A workload named after its parameters, because examples are cached by their workload's name."""
    sizes = "_".join(f"{key}{value}" for key, value in params.items() if isinstance(value, int | str))
    lens = params.get("lens")
    ragged = f"_{len(lens)}x{len(lens[0])}_{lens[0][0]}" if lens else ""
    return Workload(f"round_{form}_{sizes}{ragged}", "edge", form, params)


def _gqa(k: SimpleNamespace) -> Iterator[tuple[Workload, dict[str, int]]]:
    """More than one block of rows and two heads for each CTA, in a launch of one CTA or cluster."""
    from dsl_kernels.kernels.gqa_forward.program.common import query_rows

    rows = int(query_rows(k))
    for causal in (0, 1):
        sizes = {
            "b": 1,
            # Causal: three blocks, within one of which the groups end in different tiles.
            "sq": 3 * rows - 9 if causal else rows + 40,
            "skv": 3 * rows - 9 if causal else max(rows + 60, k.tile * k.stages + 7),
            "heads": 2 * k.cluster,
            "kv_heads": 2,
            "dim": k.dim,
            "causal": causal,
            # Scores that grow from tile to tile, so that the accumulated sums must be rescaled.
            **({"q_scale": 40.0} if causal else {}),
        }
        yield _workload(k.dtype, sizes), {"ctas": 1, "abreast": 1}


def attended_heads(knobs: Mapping[str, Any]) -> int:
    """Heads of a call to an attention variant; a full block and a partial one if it takes any number."""
    return int(knobs["block"] + 4 if knobs["heads"] == "any" else knobs["heads"])


def _sparse_mla(k: SimpleNamespace) -> Iterator[tuple[Workload, dict[str, int]]]:
    """Three queries, each for one CTA or cluster or split between two, with more than two rounds of tiles."""
    from dsl_kernels.kernels.sparse_mla.program.common import shares_out

    stages, shares = getattr(k, "stages", 3), max(getattr(k, "cluster", 1), getattr(k, "slices", 1))
    topk, t = k.tile * (ROUNDS * stages + 1) * shares, 3
    launch, joined = {"splits": shares}, {"splits": 2 * shares}
    walks = shares_out(k)
    if shares == 1 and not walks:
        joined["all_resident"] = 0  # the last CTA to arrive merges
    if walks:  # one CTA for all queries
        launch["ctas"] = 1
    sizes = {"t": t, "heads": attended_heads(vars(k)), "topk": topk, "n": 2 * topk}
    yield _workload(k.kv, {**sizes, "ids": "holes"}), launch
    # A row without a limit on its length, an empty row, and a shortened one.
    yield _workload(k.kv, {**sizes, "ids": "holes", "lengths": True}), joined
    yield _workload(k.kv, {**sizes, "ids": "mixed"}), launch


def _lightning_indexer(k: SimpleNamespace) -> Iterator[tuple[Workload, dict[str, int]]]:
    """Decode: 34 sequences, one of them long, for one CTA and for three. Prefill: a block's tiles for one."""
    from dsl_kernels.kernels.lightning_indexer.problem import FOUR_BITS, form_of

    tiles, form = ROUNDS * k.stages + 1, form_of(k.mode, k.kind)
    heads: dict[str, Any] = {"heads": k.heads}
    if k.kind != "plain":
        heads = {"index_heads": k.heads - 4, **({} if k.kind in FOUR_BITS else {"index_dim": 64})}
    if k.mode == "prefill":
        sizes = {"s": k.queries + 1, "skv": tiles * k.tile - 5, **heads}
        yield _workload(form, {**sizes, "windows": "ragged"}), {"splits": 1}
        yield _workload(form, sizes), {"splits": 1}
        return
    longest = tiles * k.tile - 5
    ends = [longest, *((7 + 37 * i) % 300 for i in range(33))]
    lens = [[max(end - q, 0) for q in reversed(range(k.queries))] for end in ends]
    decode = {"lens": lens, **heads, "pages": sum(-(-end // 64) for end in ends) + 4}
    for ctas in (1, 3):
        yield _workload(form, decode), {"ctas": ctas}


def _none(k: SimpleNamespace) -> Iterator[tuple[Workload, dict[str, int]]]:
    yield from ()


_LONG = {"gqa_forward": _gqa, "sparse_mla": _sparse_mla, "lightning_indexer": _lightning_indexer}
