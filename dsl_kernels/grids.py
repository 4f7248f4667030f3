"""Each op over a measuring grid: its points, their inputs on the GPU, their times, and the tuned table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from . import bench, ceilings, measure, ops, problems, registry, variants
from .errors import DslKernelError, UnknownNameError, did_you_mean
from .problems.lightning_indexer import PAGE
from .problems.sparse_mla import DATASET_SM_SCALE, draw_indices
from .problems.topk_selector import draw as draw_scores
from .steps import StepSize, draw

GRIDS = ("core", "serving", "contest", "smoke")
# Splits of sparse_mla that tuning tries around the launch rule's own choice.
SPLIT_FACTORS = (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Case:
    """One point of a grid: an op, a form and its sizes."""

    op: str
    form: str
    params: Mapping[str, Any]

    @property
    def label(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.params.items())


@dataclass
class Prepared:
    """A case on the GPU: `calls(variant, splits)` gives the turns of its rotation."""

    calls: Callable[[str | None, int | None], list[bench.Call]]
    dims: dict[str, int]
    bytes: float
    flops: dict[str, float]
    ceiling: measure.Ceiling | None = None
    baseline: list[dict[str, Any]] = field(default_factory=list)


def cases(op: str, grid: str) -> list[Case]:
    """The points of a grid for an op.

    Raises:
        UnknownNameError: no such grid.
    """
    if grid not in GRIDS:
        raise UnknownNameError(
            "grid", expected="a known grid", got=repr(grid), fix=did_you_mean(grid, list(GRIDS))
        )
    return [Case(op, form, params) for form, params in _points(op, grid)]


def _points(op: str, grid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    batches, lengths = {
        "core": ((1, 16, 64), (4096, 32768, 131072)),
        "serving": ((1, 4, 16, 64, 128), (4096, 32768, 131072)),
        "contest": ((1, 8, 31), (1024, 2880, 5824)),
        "smoke": ((1, 16), (4096,)),
    }[grid]
    if op == "lightning_indexer":
        yield from (("decode", {"b": b, "len": n, "heads": 64}) for b, n in product(batches, lengths))
        if grid == "serving":
            yield from (("decode", {"b": 16, "len": n, "heads": 32}) for n in lengths)
            yield from (("decode", {"b": 16, "len": 32768, "heads": 64, "next_n": n}) for n in (2, 4, 3, 8))
            yield from (("prefill", {"s": 4096, "skv": n, "heads": 64}) for n in (32768, 131072))
    elif op == "topk_selector":
        yield from (("default", {"rows": b, "len": n, "k": 2048}) for b, n in product(batches, lengths))
        if grid == "serving":
            spread = product((4, 64), (32768, 131072), ("tight", "ties"))
            yield from (("default", {"rows": b, "len": n, "k": 2048, "scores": s}) for b, n, s in spread)
            yield from (("default", {"rows": 4096, "len": n, "k": 2048}) for n in (32768, 131072))
    elif op == "sparse_mla":
        if grid == "contest":
            yield from (
                ("bf16", {"t": t, "heads": 16, "pages": 8462, "ids": "tail"}) for t in (1, 2, 6, 7, 8)
            )
            return
        queries = (1, 16) if grid == "smoke" else (1, 4, 16, 64, 128)
        heads = (16, 8, 32, 64, 128) if grid == "serving" else (16,)
        yield from (("bf16", {"t": t, "heads": h, "pages": 4096}) for h, t in product(heads, queries))
        if grid == "serving":
            yield from (
                ("fp8", {"t": t, "heads": h, "pages": 4096}) for h, t in product((16, 64, 128), queries)
            )
            yield from (
                ("bf16", {"t": 64, "heads": 16, "pages": p, "ids": i})
                for p, i in ((32768, "random"), (4096, "sorted"), (4096, "holes"))
            )
            yield from (
                ("bf16", {"t": t, "heads": h, "pages": 2048})
                for t, h in ((1024, 16), (1024, 128), (4096, 16))
            )


def prepare(case: Case, seed: int = 0) -> Prepared:
    """Draw the inputs of a case on the GPU."""
    makers = {"lightning_indexer": _indexer, "topk_selector": _selector, "sparse_mla": _attention}
    return makers[case.op](case, seed)


def _indexer(case: Case, seed: int) -> Prepared:
    p = case.params
    if case.form == "prefill":
        size = StepSize("prefill", rows=p["s"], context=p["skv"], index_heads=p["heads"])
        tensors = draw(size, device=measure.DEVICE, seed=seed)[0].tensors
        args = [
            tensors[name] for name in ("q_index", "k_index", "k_index_scales", "weights", "k_start", "k_end")
        ]
        out = torch.empty(p["s"], -(-p["skv"] // 4) * 4, dtype=torch.float32, device=measure.DEVICE)
        dims = {"s": p["s"], "heads": p["heads"], "skv": p["skv"], "stride": out.shape[1]}

        def flat(variant: str | None, splits: int | None) -> list[bench.Call]:
            return [lambda: ops.lightning_indexer_prefill(*args, out=out, variant=variant)]

        return _facts(case, flat, dims)
    next_n = p.get("next_n", 1)
    size = StepSize(batch=p["b"], context=p["len"], index_heads=p["heads"], next_n=next_n, heads=8, topk=64)
    size = measure.pool(size)
    sets = draw(
        size,
        device=measure.DEVICE,
        seed=seed,
        sets=bench.turns(p["b"] * p["len"] * 132.0),
        given=_no_attention_cache(),
    )
    outs = [measure.logits(inputs) for inputs in sets]
    names = ("q_index", "k_index_cache", "weights", "seq_lens", "block_table")
    dims = {
        "b": p["b"],
        "next_n": next_n,
        "heads": p["heads"],
        "pages": size.pages,
        "max_pages": size.pages_per_sequence,
        "stride": outs[0].shape[-1],
        "max_len": p["len"],
    }

    def paged(variant: str | None, splits: int | None) -> list[bench.Call]:
        return [
            partial(ops.lightning_indexer, *(s.tensors[name] for name in names), out=o, variant=variant)
            for s, o in zip(sets, outs, strict=True)
        ]

    pages = [{"pages": s.tensors["k_index_cache"].view(size.pages, -1)} for s in sets]
    ceiling = measure.gathers(pages, measure.live_pages(sets))
    return _facts(case, paged, dims, ceiling)


def _no_attention_cache() -> dict[str, torch.Tensor]:
    """Stands for the attention cache where only scoring is timed."""
    return {"kv": torch.empty(1, PAGE, 576, dtype=torch.bfloat16, device=measure.DEVICE)}


def _selector(case: Case, seed: int) -> Prepared:
    p = case.params
    rows, length, k = p["rows"], p["len"], p["k"]
    generator = torch.Generator().manual_seed(seed)
    sets = min(16, bench.turns(rows * length * 4.0))
    few = draw_scores(p.get("scores", "normal"), min(rows, 64), length, generator).to(measure.DEVICE)
    logits = []
    for turn in range(sets):
        picked = torch.arange(rows, device=few.device) % len(few)
        logits.append(few[picked].roll(turn * 977 + 1, dims=1).contiguous())
    ends = torch.full((rows,), length, dtype=torch.int32, device=measure.DEVICE)
    out = torch.empty(rows, k, dtype=torch.int32, device=measure.DEVICE)
    dims = {
        "rows": rows,
        "stride": length,
        "b": 1,
        "max_pages": 1,
        "k": k,
        "next_n": 1,
        "page_size": 0,
        "max_len": length,
    }

    def calls(variant: str | None, splits: int | None) -> list[bench.Call]:
        return [partial(ops.topk_selector, s, ends, k, out=out, variant=variant) for s in logits]

    return _facts(case, calls, dims, lambda setting: [partial(ceilings.read, s, setting) for s in logits])


def _attention(case: Case, seed: int) -> Prepared:
    p = case.params
    t, heads, n, topk = p["t"], p["heads"], p["pages"] * PAGE, p.get("topk", 2048)
    row = 656 if case.form == "fp8" else 1152
    sets = bench.turns(t * topk * float(row))
    size = StepSize(
        batch=t,
        context=PAGE,
        heads=heads,
        kv="fp8" if case.form == "fp8" else "bf16",
        pages=p["pages"],
        topk=64,
    )
    index_cache = torch.empty(1, PAGE, 1, 132, dtype=torch.uint8, device=measure.DEVICE)
    drawn = draw(size, device=measure.DEVICE, seed=seed, sets=sets, given={"k_index_cache": index_cache})
    ids = [_ids(p.get("ids", "random"), t, topk, n, seed + turn) for turn in range(sets)]
    lse = partial(torch.empty, t, heads, dtype=torch.float32, device=measure.DEVICE)
    outs = [(torch.empty_like(s.tensors["q_nope"]), lse()) for s in drawn]
    dims = {"t": t, "heads": heads, "n": n, "topk": topk, "ckv_stride": 512, "kpe_stride": 64}

    def calls(variant: str | None, splits: int | None) -> list[bench.Call]:
        return [
            partial(
                ops.sparse_mla,
                s.tensors["q_nope"],
                s.tensors["q_pe"],
                s.tensors["kv"],
                i,
                kpe=s.tensors.get("kpe"),
                sm_scale=DATASET_SM_SCALE,
                out=o[0],
                lse=o[1],
                variant=variant,
                splits=splits,
            )
            for s, i, o in zip(drawn, ids, outs, strict=True)
        ]

    ceiling = measure.gathers([s.cache_rows() for s in drawn], ids)
    baseline = []
    if case.form == "bf16":
        baseline = [
            {**s.cache_rows(), "q_nope": s.tensors["q_nope"], "q_pe": s.tensors["q_pe"], "indices": i}
            for s, i in zip(drawn, ids, strict=True)
        ]
    return _facts(case, calls, dims, ceiling, baseline)


def _ids(pattern: str, t: int, topk: int, n: int, seed: int) -> torch.Tensor:
    """Ids on the GPU; the plain random pattern allows the rare repeat, which costs nothing to draw."""
    if pattern == "random":
        generator = torch.Generator(measure.DEVICE).manual_seed(seed)
        return torch.randint(n, (t, topk), generator=generator, device=measure.DEVICE, dtype=torch.int32)
    return draw_indices(pattern, t, topk, n, torch.Generator().manual_seed(seed)).to(measure.DEVICE)


def _facts(
    case: Case, calls: Callable[[str | None, int | None], list[bench.Call]], dims: dict[str, int],
    ceiling: measure.Ceiling | None = None, baseline: list[dict[str, Any]] | None = None,
) -> Prepared:  # fmt: skip
    problem = problems.get(case.op)
    return Prepared(
        calls, dims, problem.bytes(case.form, dims), problem.flops(case.form, dims), ceiling, baseline or []
    )


def call_of(case: Case, prepared: Prepared) -> registry.Call:
    """The registry's view of a case on the current GPU."""
    arch, gpu = ops._base.device_facts(torch.cuda.current_device())
    dims = {name: value for name, value in prepared.dims.items() if name != "max_len"}
    return registry.Call(case.op, case.form, arch, dims, gpu)


def time_case(
    case: Case, prepared: Prepared, *, baseline: bool = True, tuned: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """One record: the variant's time, rates, and its ratio to the ceiling and to the Triton baseline.

    Args:
        tuned: entry of `tune_case` whose winner is timed; by default what the registry selects.
    """
    selection = registry.select(call_of(case, prepared), tuned["variant"] if tuned else None)
    launch = {**selection.launch, **(tuned["launch"] if tuned else {})}
    timing = bench.graph_time(
        prepared.calls(tuned["variant"] if tuned else None, launch.get("splits") if tuned else None)
    )
    record: dict[str, Any] = {
        "op": case.op,
        "form": case.form,
        **case.params,
        "variant": selection.variant.id,
        "rule": "fastest of a sweep" if tuned else selection.rule,
        "launch": launch,
        **timing.to_dict(),
        "gbps": prepared.bytes / timing.us / 1e3,
        "tflops": {unit: count / timing.us / 1e6 for unit, count in prepared.flops.items()},
        "notes": [],
    }
    if prepared.ceiling:
        record["ceiling_us"] = measure.time_ceiling(prepared.ceiling, record)
        record["ratio"] = timing.us / record["ceiling_us"] if record["ceiling_us"] else None
    if baseline and prepared.baseline:
        found = measure.time_baseline(prepared.baseline, DATASET_SM_SCALE, record["notes"])
        record["triton_us"] = found["us"] if found else None
    return record


def tune_case(case: Case, prepared: Prepared, failed: list[str] | None = None) -> dict[str, Any] | None:
    """The tuned entry of a case: every variant that accepts it, timed; None where none could be.

    Args:
        failed: gets a line for each variant that could not be loaded or launched.
    """
    call = call_of(case, prepared)
    open_variants = [v for v in variants.variants(case.op) if registry.refusal(call, v) is None]
    best: dict[str, tuple[float, dict[str, int]]] = {}
    for variant in open_variants:
        default = registry.explain(call, variant.id).selection
        splits = (default.launch if default else {}).get("splits")
        for chosen in _split_choices(case, splits, variant.knobs):
            try:
                us = bench.graph_time(prepared.calls(variant.id, chosen), replays=15).us
            except DslKernelError as error:
                if failed is not None:
                    failed.append(str(error))
                break
            launch = {} if chosen is None else {"splits": chosen}
            if variant.id not in best or us < best[variant.id][0]:
                best[variant.id] = (us, launch)
    if not best:
        return None
    winner = min(best, key=lambda name: best[name][0])
    return {
        "op": case.op,
        "form": case.form,
        "bucket": registry.bucket(call),
        "variant": winner,
        "launch": best[winner][1],
        "us": {name: round(us, 3) for name, (us, _) in sorted(best.items())},
    }


def _split_choices(case: Case, default: int | None, knobs: Mapping[str, Any]) -> list[int | None]:
    """None (the launch rule's own number) and its neighbours in whole clusters; for sparse_mla only."""
    if case.op != "sparse_mla" or default is None:
        return [None]
    cluster = knobs.get("cluster", 1)
    limit = case.params.get("topk", 2048) // 64 * knobs.get("slices", 1) // cluster
    others = {cluster * max(1, min(limit, round(default * factor / cluster))) for factor in SPLIT_FACTORS} - {
        default
    }
    return [None, *sorted(others)]


def bucket_of(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a tuned entry is looked up by."""
    return entry["op"], entry["form"], tuple(sorted(entry["bucket"].items()))


def write_tuned(
    gpu: str, entries: list[dict[str, Any]], environment: Mapping[str, Any], folder: Path | None = None
) -> Path:
    """Merge entries into the GPU's table: a new entry replaces the one of the same op, form and bucket."""
    path = (folder or registry.TUNED) / f"{registry.slug(gpu)}.json"
    held = json.loads(path.read_text())["entries"] if path.exists() else []

    merged = {bucket_of(entry): entry for entry in [*held, *entries]}
    content = {
        "schema": registry.TUNED_SCHEMA,
        "metadata": dict(environment),
        "entries": [merged[k] for k in sorted(merged)],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")
    registry.clear()
    return path
