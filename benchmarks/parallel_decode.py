"""Steps over a context that two GPUs share, beside one GPU, and beside other ways to share it.

    torchrun --nproc-per-node 2 benchmarks/parallel_decode.py --out parallel.json [--bundle FOLDER]
        [--limit 150]
    torchrun --nproc-per-node 2 benchmarks/parallel_decode.py --cpu   # tiny sizes, gloo and the interpreter

Microseconds of a step under CUDA-graph replay, on the slower rank: over the whole context on one GPU; shared,
through NCCL, by copies of symmetric memory, by kernels that read it; shared by gathering the logits; shared
by selecting topk / ranks on each rank, which is inexact and whose wrong rows are counted. `no link` is the
shared step without its exchanges; `kernels` is scoring, both selections and attention alone; `thresholds` is
a prompt whose exchange of entries carries a score a row and then a rank's share of the bytes. Every point is
checked first: all ranks must have the same bits, and rows whose ids differ from one GPU's are counted.
Sequences of more than 16M tokens together share pages. A model of 4 and 8 ranks follows, labelled as a model.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import dsl_kernels
from dsl_kernels import dsa, ops
from dsl_kernels.arch import GPUS
from dsl_kernels.dsa import parallel
from dsl_kernels.dsa.sharding import all_gather
from dsl_kernels.errors import DslKernelError
from dsl_kernels.kernels.lightning_indexer.problem import PAGE
from dsl_kernels_lab import steps

SEQUENCES, CONTEXTS = (1, 16, 64), (1 << 17, 1 << 19, 1 << 20)
PROMPT = (4096, 1 << 19)
POOL_TOKENS = 1 << 24
ROTATION_BYTES = 256 << 20
MOST_SETS = 8
# Between two H100s of one host: the time of a collective of up to 512 KB, and the rate at which more bytes
# take longer.
COLLECTIVE_US, COLLECTIVE_BYTES, LINK_BYTES_PER_US = 10.0, 512 << 10, 368e3

Call = Callable[[], Any]


@dataclass(frozen=True)
class Point:
    """A step of some sequences, or a prompt of some rows."""

    kind: str
    count: int
    context: int

    @property
    def name(self) -> str:
        return f"{self.kind} {self.count} x {self.context}"


class Unlinked(parallel.Sharding):
    """A sharding whose exchanges return what the last real ones left: a step without its link."""

    def gather(
        self, what: str, slot: int, given: torch.Tensor, way: str, workspace: ops.Workspace
    ) -> torch.Tensor:
        shape = (self.ranks, len(given))
        return workspace.get(f"exchanged {slot}", shape, torch.uint8, given.device, zeroed=False)


class Halved(Unlinked):
    """A sharding that exchanges a score a row, then a rank's share of the bytes of entries: what thresholds
    first would take where every rank has an equal share of the best. The entries are those of the last real
    exchange, so the rest of the step is as it was."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows

    def gather(
        self, what: str, slot: int, given: torch.Tensor, way: str, workspace: ops.Workspace
    ) -> torch.Tensor:
        if what != "entries":
            return parallel.Sharding.gather(self, what, slot, given, way, workspace)
        for size in (4 * self.rows, len(given) // self.ranks):
            received = torch.empty(self.ranks * size, dtype=torch.uint8, device=given.device)
            all_gather(received, given[:size], group=self.group)
        return super().gather(what, slot, given, way, workspace)


class Bench:
    """This rank of the run: its device, its sizes and its clock."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.cpu, self.options = options.cpu, options
        self.begun = time.monotonic()
        limit = timedelta(seconds=120)
        if self.cpu:
            dist.init_process_group("gloo", timeout=limit)
            self.device = torch.device("cpu")
            # The interpreter takes as long for an idle CTA as for its share of the work, so use few SMs.
            GPUS.update({name: gpu.with_sms(8) for name, gpu in GPUS.items()})
        else:
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
            dist.init_process_group("nccl", timeout=limit, device_id=self.device)
            self.stream = torch.cuda.Stream(self.device)
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.topk = 64 if self.cpu else 2048
        self.heads, self.index_heads = (8, 32) if self.cpu else (options.heads, 64)
        self.executor = "interpreter" if self.cpu else None
        # One workspace for all calls: a step without its link reads what an earlier exchange left there.
        self.workspace = ops.Workspace()
        self.common: dict[str, Any] = {
            "sm_scale": 0.1, "topk": self.topk, "executor": self.executor, "workspace": self.workspace,
        }  # fmt: skip
        transports = ("collectives",) if self.cpu else tuple(options.transports.split(","))
        self.shardings = {name: parallel.Sharding(transport=name) for name in transports}
        self.unlinked = Unlinked()

    def points(self) -> list[Point]:
        if self.cpu:
            return [Point("decode", 1, 300), Point("decode", 2, 500), Point("prefill", 3, 300)]
        decode = [Point("decode", count, context) for context in CONTEXTS for count in SEQUENCES]
        return [*decode, Point("prefill", *PROMPT)]

    def left(self) -> bool:
        """Whether there is time for another point, by rank 0's clock."""
        spent = torch.tensor([time.monotonic() - self.begun], dtype=torch.float64, device=self.device)
        dist.broadcast(spent, 0)
        return float(spent) < self.options.limit

    def worst(self, value: float) -> float:
        """The largest of the ranks' values."""
        largest = torch.tensor([value], dtype=torch.float64, device=self.device)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        return float(largest)

    def equal(self, tensors: list[torch.Tensor]) -> bool:
        """Whether the tensors of all ranks are equal bit for bit."""
        same = True
        for tensor in tensors:
            mine = tensor.contiguous().view(torch.uint8).flatten()
            first = mine.clone()
            dist.broadcast(first, 0)
            same = same and bool(torch.equal(mine, first))
        return self.worst(0.0 if same else 1.0) == 0.0

    def time(self, calls: list[Call], replays: int = 15) -> float:
        """Microseconds per call: the median replay of a graph of all calls, on the slower rank."""
        if self.cpu:
            begun = time.perf_counter()
            for call in calls:
                call()
            return self.worst(1e6 * (time.perf_counter() - begun) / len(calls))
        copies = max(1, 8 // len(calls))
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for call in calls:
                call()
        torch.cuda.synchronize()
        dist.barrier()
        graph = torch.cuda.CUDAGraph()
        gc.disable()
        try:
            with torch.cuda.stream(self.stream):
                # Thread-local mode, as NCCL's own thread may query its events during the capture.
                graph.capture_begin(capture_error_mode="thread_local")
                for call in calls * copies:
                    call()
                graph.capture_end()
        finally:
            gc.enable()
        samples = self.replayed(graph, replays)
        return self.worst(statistics.median(samples) / (copies * len(calls)))

    def replayed(self, graph: torch.cuda.CUDAGraph, count: int) -> list[float]:
        marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        torch.cuda.synchronize()
        dist.barrier()
        with torch.cuda.stream(self.stream):
            graph.replay()
            for begin, end in marks:
                begin.record(self.stream)
                graph.replay()
                end.record(self.stream)
        self.stream.synchronize()
        return [1e3 * begin.elapsed_time(end) for begin, end in marks]

    def time_eager(self, call: Call, rounds: int = 9) -> float:
        """Microseconds of an eager call, which must be long enough to hide its launches."""
        samples = []
        for _ in range(1 if self.cpu else rounds + 1):
            if not self.cpu:
                torch.cuda.synchronize()
            dist.barrier()
            begun = time.perf_counter()
            call()
            if not self.cpu:
                torch.cuda.synchronize()
            samples.append(1e6 * (time.perf_counter() - begun))
        return self.worst(statistics.median(samples[1:] or samples))


@dataclass(frozen=True)
class Shared:
    """A decode step over the whole context, and this rank's part of it."""

    whole: dict[str, torch.Tensor]
    part: dict[str, torch.Tensor]


def decode_sets(bench: Bench, point: Point) -> list[Shared]:
    """Steps with common caches that differ in queries and pages; enough of them to exceed L2.

    The whole caches are those of the ranks end to end, so that each rank's own cache is a slice of them.
    """
    ranks = bench.ranks
    columns = -(-point.context // (PAGE * ranks))
    touched = point.count * point.context * 132
    sets = 1 if bench.cpu else max(1, min(MOST_SETS, ROTATION_BYTES // touched))
    wanted = point.count * columns * sets
    pages = max(columns, min(wanted, POOL_TOKENS // PAGE // ranks)) + 1
    size = steps.StepSize(
        batch=point.count, context=point.context, heads=bench.heads, index_heads=bench.index_heads,
        topk=bench.topk,
        pages=pages * ranks,
    )  # fmt: skip
    drawn = steps.draw(size, device=str(bench.device), seed=1, sets=sets)
    generator = torch.Generator(bench.device).manual_seed(2)
    column = torch.arange(columns * ranks, device=bench.device)
    made = []
    for inputs in drawn:
        whole = dict(inputs.tensors)
        each = torch.rand(ranks, point.count, pages, generator=generator, device=bench.device)
        # The pages of each sequence on each rank, without repeats within a sequence.
        own = each.argsort(dim=-1)[..., :columns].to(torch.int32)
        owner = column % ranks
        table = own.permute(1, 0, 2)[:, owner, column // ranks] + owner * pages
        caches = {name: whole[name] for name in ("k_index_cache", "kv", "kpe")}
        whole |= {"block_table": table.to(torch.int32).contiguous()}
        mine = slice(bench.rank * pages, (bench.rank + 1) * pages)
        part = {**whole, "block_table": own[bench.rank].contiguous()}
        part |= {name: cache[mine] for name, cache in caches.items()}
        made.append(Shared(whole, part))
    return made


def gathered(
    bench: Bench, sharding: parallel.Sharding, part: dict[str, torch.Tensor], ends: torch.Tensor
) -> torch.Tensor:
    """Ids by gathered logits: all ranks' logits in the order of positions, then one selection."""
    lens = part["seq_lens"]
    b, width = lens.shape[0], part["block_table"].shape[1]
    options: dict[str, Any] = {"executor": bench.executor}
    logits = scored(bench, part, ends)
    every = torch.empty(bench.ranks, *logits.shape, device=bench.device, dtype=torch.float32)
    all_gather(every.view(-1), logits.view(-1), group=sharding.group)
    in_order = every.view(bench.ranks, b, width, PAGE).permute(1, 2, 0, 3).reshape(b, -1)
    positions = ops.topk_selector(in_order, lens.view(-1), bench.topk, **options)
    return sharding.tokens(positions)


def scored(bench: Bench, part: dict[str, torch.Tensor], ends: torch.Tensor) -> torch.Tensor:
    """Logits of a rank's own keys."""
    return ops.lightning_indexer(
        part["q_index"], part["k_index_cache"], part["weights"], ends.view(-1, 1), part["block_table"],
        executor=bench.executor,
    )  # fmt: skip


def selected(bench: Bench, part: dict[str, torch.Tensor], ends: torch.Tensor, count: int) -> torch.Tensor:
    """The best `count` of a rank's own tokens; with topk / ranks of them the union over ranks is inexact."""
    logits = scored(bench, part, ends)
    return ops.topk_selector(logits.view(len(ends), -1), ends, count, executor=bench.executor)


def attended(
    bench: Bench, sharding: parallel.Sharding, part: dict[str, torch.Tensor], tokens: torch.Tensor
) -> torch.Tensor:
    """Partial attention over this rank's tokens, padded to 64, exchanged and merged."""
    table = part["block_table"]
    pages = table.gather(1, tokens.clamp(min=0).long() // PAGE)
    ids = torch.where(tokens < 0, -1, pages * PAGE + tokens % PAGE)
    ids = torch.nn.functional.pad(ids, (0, -ids.shape[1] % PAGE), value=-1)
    output = parallel._attend(
        sharding,
        part["q_nope"],
        part["q_pe"],
        part["kv"],
        ids,
        ids,
        bench.workspace,
        None,
        sm_scale=0.1,
        kpe=part["kpe"],
        attn_sink=None,
        lse_base="2",
        split_heads=False,
        options={"executor": bench.executor, "workspace": bench.workspace},
    )
    return output.out


def check(bench: Bench, one: dsa.StepOutput, two: dsa.StepOutput) -> dict[str, Any]:
    """Compare a shared step with one GPU's."""
    rows = (one.indices != two.indices).any(dim=1)
    error = (two.out.double() - one.out.double()).norm() / one.out.double().norm()
    return {
        "ranks_equal": bench.equal([two.out, two.lse, two.indices]),
        "rows_with_other_ids": int(rows.sum()),
        "out_relative_difference": float(error),
        "lse_difference": float((two.lse - one.lse).abs().max()),
    }


def wrong_rows(bench: Bench, shared: Shared, one: dsa.StepOutput, tokens: torch.Tensor) -> dict[str, float]:
    """Rows and ids of the exact selection that selections on each rank alone miss."""
    pages = shared.part["k_index_cache"].shape[0]
    mine = shared.part["block_table"].gather(1, tokens.clamp(min=0).long() // PAGE)
    ids = torch.where(tokens < 0, -1, (mine + bench.rank * pages) * PAGE + tokens % PAGE).contiguous()
    every = torch.empty(bench.ranks, *ids.shape, dtype=ids.dtype, device=bench.device)
    all_gather(every.view(-1), ids.view(-1))
    union = every.permute(1, 0, 2).reshape(len(ids), -1).sort(dim=1).values
    wanted = one.indices.sort(dim=1).values.contiguous()
    at = torch.searchsorted(union, wanted).clamp(max=union.shape[1] - 1)
    missed = (union.gather(1, at) != wanted) & (wanted >= 0)
    return {"rows": int(missed.any(dim=1).sum()), "of": len(ids), "ids": float(missed.float().mean())}


def decode_point(bench: Bench, point: Point) -> dict[str, Any]:
    """Check and time one decode point."""
    sets = decode_sets(bench, point)
    common = bench.common
    lens = sets[0].part["seq_lens"].view(-1)
    # Lengths depend on the sequences only, so a model computes them once for all layers.
    lengths = {name: s.lengths(lens, bench.topk) for name, s in bench.shardings.items()}
    first = next(iter(bench.shardings))

    def shared_step(sharding: parallel.Sharding, name: str, item: Shared) -> Call:
        return lambda: parallel.decode(**item.part, sharding=sharding, lengths=lengths[name], **common)

    one = dsa.decode(**sets[0].whole, **common)
    row: dict[str, Any] = {
        "kind": "decode",
        "sequences": point.count,
        "context": point.context,
        "sets": len(sets),
    }
    row["check"] = {
        name: check(bench, one, shared_step(s, name, sets[0])()) for name, s in bench.shardings.items()
    }
    plain, ends, share = bench.shardings[first], lengths[first].ends, bench.topk // bench.ranks
    row["per_shard_wrong"] = wrong_rows(bench, sets[0], one, selected(bench, sets[0].part, ends, share))
    us: dict[str, float] = {}
    us["one"] = bench.time([lambda item=item: dsa.decode(**item.whole, **common) for item in sets])
    for name, sharding in bench.shardings.items():
        us[name] = bench.time([shared_step(sharding, name, item) for item in sets])
    us["unlinked"] = bench.time([shared_step(bench.unlinked, first, item) for item in sets])
    us["shard"] = bench.time([lambda i=i: selected(bench, i.part, ends, bench.topk) for i in sets])
    us["kernels"] = bench.time(
        [kernels(bench, i, dsa.decode(**i.whole, **common).indices, ends) for i in sets]
    )
    us["gathered"] = bench.time(
        [lambda i=i: attended(bench, plain, i.part, gathered(bench, plain, i.part, ends)) for i in sets]
    )
    us["per_shard"] = bench.time(
        [lambda i=i: attended(bench, plain, i.part, selected(bench, i.part, ends, share)) for i in sets]
    )
    row["us"] = us
    row["bytes"] = link_bytes(bench, point)
    return row


def kernels(bench: Bench, shared: Shared, ids: torch.Tensor, ends: torch.Tensor) -> Call:
    """Scoring, both selections and attention of a shared step: the step without merging and exchanges."""
    part, rows = shared.part, len(ids)
    scores = torch.randn(rows, bench.ranks * bench.topk, dtype=torch.float32, device=bench.device)
    counts = torch.full((rows,), scores.shape[1], dtype=torch.int32, device=bench.device)
    own = ids - bench.rank * part["k_index_cache"].shape[0] * PAGE

    def call() -> None:
        selected(bench, part, ends, bench.topk)
        ops.topk_selector(scores, counts, bench.topk, executor=bench.executor)
        ops.sparse_mla(
            part["q_nope"], part["q_pe"], part["kv"], own, kpe=part["kpe"], sm_scale=0.1,
            executor=bench.executor
        )  # fmt: skip

    return call


def prefill_point(bench: Bench, point: Point) -> dict[str, Any]:
    """Check and time a prompt; eagerly, as it is long enough."""
    size = steps.StepSize(
        "prefill", rows=point.count, context=point.context, heads=bench.heads, index_heads=bench.index_heads,
        topk=bench.topk,
    )  # fmt: skip
    whole = dict(steps.draw(size, device=str(bench.device), seed=3)[0].tensors)
    common = bench.common
    owner = torch.arange(point.context, device=bench.device) // PAGE % bench.ranks
    most = -(-point.context // (PAGE * bench.ranks)) * PAGE
    part = dict(whole)
    for name in ("k_index", "k_index_scales", "kv", "kpe"):
        rows = whole[name].view(point.context, -1).view(torch.uint8)
        own = torch.zeros(most, rows.shape[1], dtype=torch.uint8, device=bench.device)
        mine = rows[owner == bench.rank]
        own[: len(mine)] = mine
        part[name] = own.view(whole[name].dtype).view(most, *whole[name].shape[1:])
    row: dict[str, Any] = {"kind": "prefill", "rows": point.count, "context": point.context, "check": {}}
    one = dsa.prefill(**whole, **common)
    us = {"one": bench.time_eager(lambda: dsa.prefill(**whole, **common))}

    def shared_step(sharding: parallel.Sharding) -> Call:
        return lambda: parallel.prefill(**part, sharding=sharding, **common)

    for name, sharding in bench.shardings.items():
        row["check"][name] = check(bench, one, shared_step(sharding)())
        us[name] = bench.time_eager(shared_step(sharding))
    us["unlinked"] = bench.time_eager(shared_step(bench.unlinked))
    us["thresholds"] = bench.time_eager(shared_step(Halved(point.count)))
    row["us"] = us
    row["bytes"] = link_bytes(bench, point)
    return row


def link_bytes(bench: Bench, point: Point) -> dict[str, int]:
    """Bytes that a rank sends to each other rank in a step."""
    planes = 3 if point.kind == "decode" else 2
    return {
        "entries": 4 * planes * bench.topk * point.count,
        "partials": point.count * bench.heads * (1024 + 4),
        "gathered_logits": point.count * -(-point.context // bench.ranks) * 4,
    }


def modelled(row: dict[str, Any], ranks: int, measured: int) -> float:
    """A model, not a measurement: microseconds of a step of `ranks` ranks, from those of the `measured` ones.

    The work over a rank's own keys shrinks with the number of ranks; the rest of its work is taken as
    constant. Each of the two exchanges takes what was measured between two GPUs, and longer if it carries
    more than COLLECTIVE_BYTES.
    """
    us = row["us"]
    own = us["shard"] * measured / ranks
    rest = max(0.0, us["unlinked"] - us["shard"])
    link = 0.0
    for name in ("entries", "partials"):
        over = row["bytes"][name] * (ranks - 1) - COLLECTIVE_BYTES
        link += COLLECTIVE_US + max(0.0, over) / LINK_BYTES_PER_US
    return own + rest + link


# Other ways to take a step, with their heads in the table.
OTHERS = {
    "unlinked": "no link us",
    "kernels": "kernels us",
    "gathered": "gathered us",
    "per_shard": "per shard us",
    "thresholds": "thresholds us",
}


def cells(row: dict[str, Any], shardings: list[str]) -> list[str]:
    us = row["us"]
    best = min(us[name] for name in shardings)
    wrong = row.get("per_shard_wrong")
    times = (us.get(name) for name in ("one", *shardings, *OTHERS))
    right = all(checked["ranks_equal"] for checked in row["check"].values())
    others = max(checked["rows_with_other_ids"] for checked in row["check"].values())
    return [
        f"{row['kind']} {row.get('sequences', row.get('rows'))} x {row['context']}",
        *("-" if time is None else f"{time:.1f}" for time in times),
        f"{best / us['one']:.2f}",
        f"{best - us['unlinked']:.1f}",
        f"{(row['bytes']['entries'] + row['bytes']['partials']) / 1024:.0f}",
        f"{row['bytes']['gathered_logits'] / 1024:.0f}",
        "-" if wrong is None else f"{wrong['rows']} of {wrong['of']}",
        ("equal" if right else "UNEQUAL") + (f", {others} rows other ids" if others else ""),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cpu", action="store_true", help="tiny sizes with gloo and the interpreter")
    parser.add_argument("--limit", type=float, default=150.0, help="begin no point after this many seconds")
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--transports", default="collectives,symmetric_copy,symmetric_direct")
    parser.add_argument("--only", default="", help="points whose name contains this")
    parser.add_argument("--bundle", type=Path, help="folder of compiled variants")
    parser.add_argument("--out", type=Path, help="write the records here, as JSON")
    options = parser.parse_args()
    if options.bundle:
        dsl_kernels.use_bundle(options.bundle)
    bench = Bench(options)
    shardings = list(bench.shardings)
    rows: list[dict[str, Any]] = []

    def say(*text: object) -> None:
        if bench.rank == 0:
            print(*text, flush=True)

    card = "the interpreter" if bench.cpu else torch.cuda.get_device_name()
    say(f"{bench.ranks} x {card}, torch {torch.__version__}, heads {bench.heads}, topk {bench.topk}\n")
    names = (
        "step",
        "one us",
        *(f"{name} us" for name in shardings),
        *OTHERS.values(),
    )
    names = (*names, "of one", "link us", "link KB", "logits KB", "per shard wrong", "check")
    say("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    ok = True
    with torch.inference_mode():
        for point in bench.points():
            if options.only not in point.name:
                continue
            if not bench.left():
                say(f"| {point.name} | not begun: the limit of {options.limit:g} s has passed |")
                continue
            try:
                row = (decode_point if point.kind == "decode" else prefill_point)(bench, point)
            except torch.OutOfMemoryError as error:
                # All ranks run out of memory together, as their sizes are equal.
                say(f"| {point.name} | {str(error).splitlines()[0]} |")
                torch.cuda.empty_cache()
                continue
            rows.append(row)
            ok = ok and all(checked["ranks_equal"] for checked in row["check"].values())
            say("| " + " | ".join(cells(row, shardings)) + " |")
            if options.out and bench.rank == 0:
                options.out.write_text(
                    json.dumps({"card": card, "ranks": bench.ranks, "rows": rows}, indent=1)
                )
            gc.collect()
            if not bench.cpu:
                torch.cuda.empty_cache()
    say("\nA model from these times and the latency of an exchange between two GPUs, not measured:\n")
    say("| step | 2 ranks us | 4 ranks us | 8 ranks us |\n|---|---|---|---|")
    for row in rows:
        if row["kind"] == "decode":
            figures = " | ".join(f"{modelled(row, count, bench.ranks):.1f}" for count in (2, 4, 8))
            say(f"| {row['sequences']} x {row['context']} | {figures} |")
    used = sorted({pick.variant.id for pick in ops.selections()})
    say("\n" + "\n".join(used))
    dist.barrier()
    if not bench.cpu:
        torch.cuda.synchronize()
    dist.destroy_process_group()
    return 0 if ok else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DslKernelError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
