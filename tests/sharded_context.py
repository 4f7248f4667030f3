"""A context distributed over ranks, and one process per rank that runs steps of `dsa.parallel` over it."""

from __future__ import annotations

import datetime
import math
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dsl_kernels import dsa, ops
from dsl_kernels.arch import GPUS
from dsl_kernels.dsa import parallel
from dsl_kernels.kernels.lightning_indexer.problem import PAGE
from dsl_kernels_lab import steps

Tensors = dict[str, torch.Tensor]
TOPK = 64
CACHES = ("k_index_cache", "kv", "kpe")
ONE_GPU = "one GPU"
"""In place of a backend: every process on the first GPU, where only symmetric memory exchanges tensors."""


@dataclass(frozen=True)
class Case:
    """One step: its inputs, and what makes it hard.

    Attributes:
        lens: tokens by sequence and query of a decode step.
        windows: starts and ends of a prefill's rows.
        interleave: tokens in a rank's contiguous runs.
        split: each rank has eight heads of its own.
        spoil: changes the tensors of the whole context in place.
        options: further arguments of the step.
    """

    name: str
    lens: tuple[tuple[int, ...], ...] = ()
    windows: tuple[tuple[int, int], ...] = ()
    interleave: int = PAGE
    kv: str = "bf16"
    sink: bool = False
    split: bool = False
    spoil: Callable[[Tensors], None] = lambda tensors: None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return "decode" if self.lens else "prefill"


def _ties(tensors: Tensors) -> None:
    """Rows whose scores are all zero, of both signs, and rows of few distinct values."""
    weights = tensors["weights"].view(-1, tensors["weights"].shape[-1])
    weights[::2] = 0.0
    weights[1::2] = -1.0
    tensors["q_index"].view(torch.uint8)[..., 2:] = 0


def _specials(tensors: Tensors) -> None:
    """NaN and infinite scores, and a NaN in a cached token."""
    scales = tensors["k_index_cache"].view(-1, PAGE * 132)[:, PAGE * 128 :].view(torch.float32)
    scales[::3, 5], scales[1::3, 9], scales[::2, 11] = math.nan, math.inf, -math.inf
    tensors["weights"][0] = math.nan
    tensors["kv"].view(-1, 512)[3::397, 7] = math.nan


RAGGED = ((599, 600), (64, 65), (0, 1), (193, 257))
CASES = (
    Case("pages", RAGGED),
    Case("contiguous", RAGGED, interleave=192, kv="joined", sink=True),
    Case("runs_of_two_pages", ((0, 299), (640, 129)), interleave=128, kv="fp8", sink=True,
         options={"lse_base": "e"}),
    Case("ties", ((700, 699, 333), (128, 65, 63)), spoil=_ties),
    Case("specials", ((640, 500), (66, 10)), spoil=_specials),
    Case("split_heads", ((130, 0), (1, 260)), sink=True, split=True),
    Case("split_heads_prompt", windows=((0, 150), (20, 130)), sink=True, split=True),
    Case("padded", ((0,), (0,)), sink=True),
    Case("windows",
         windows=((0, 1), (0, 400), (399, 400), (5, 5), (60, 300), (130, 259), (0, 0), (0, 64), (9, 2))),
    Case("tokens_in_turn", windows=((0, 200), (3, 199), (77, 78), (0, 150)), interleave=1, kv="fp8",
         options={"rows_per_chunk": 3}),
    Case("contiguous_prompt", windows=((0, 260), (1, 130), (100, 260)), interleave=80, kv="joined",
         spoil=_ties, sink=True, options={"rows_per_chunk": 1}),
)  # fmt: skip


@dataclass(frozen=True)
class Context:
    """A step over a whole context, and over each rank's part of it."""

    whole: Tensors
    parts: list[Tensors]

    @property
    def kind(self) -> str:
        return "decode" if "seq_lens" in self.whole else "prefill"


def context(case: Case, ranks: int) -> Context:
    """The tensors of a case, drawn by its name and distributed over the ranks."""
    seed = sum(case.name.encode())
    drawn = _decode(case, seed, ranks) if case.lens else _prefill(case, seed, ranks)
    return drawn


def _draw(case: Case, size: steps.StepSize, seed: int) -> Tensors:
    tensors = dict(steps.draw(size, seed=seed)[0].tensors)
    if case.sink:
        generator = torch.Generator().manual_seed(seed)
        tensors["attn_sink"] = 5 * torch.randn(size.heads, generator=generator) + 20
    return tensors


def _decode(case: Case, seed: int, ranks: int) -> Context:
    """Each rank's caches have spare pages; the whole caches are the ranks' end to end."""
    lens = torch.tensor(case.lens, dtype=torch.int32)
    b, next_n = lens.shape
    longest = max(1, int(lens.max()))
    # Pages of the whole context, dealt to the ranks in turn.
    run = case.interleave // PAGE
    columns = -(-longest // (PAGE * run * ranks)) * run
    pages = b * columns + 2
    size = steps.StepSize(
        batch=b, next_n=next_n, context=longest, heads=8 * (ranks if case.split else 1), index_heads=32,
        topk=TOPK, kv=case.kv, pages=pages * ranks
    )  # fmt: skip
    whole = _draw(case, size, seed)
    case.spoil(whole)
    generator = torch.Generator().manual_seed(seed + 1)
    own = [
        torch.randperm(pages, generator=generator)[: b * columns].view(b, columns).to(torch.int32)
        for _ in range(ranks)
    ]
    column = torch.arange(columns * ranks)
    owner, local = column // run % ranks, column // (run * ranks) * run + column % run
    table = torch.stack(
        [own[int(r)][:, int(c)] + int(r) * pages for r, c in zip(owner, local, strict=True)], dim=1
    )
    whole |= {"seq_lens": lens, "block_table": table.to(torch.int32).contiguous()}
    parts = []
    for rank in range(ranks):
        part = {name: tensor for name, tensor in whole.items() if name not in CACHES}
        part |= {
            name: whole[name].unflatten(0, (ranks, -1))[rank].clone() for name in CACHES if name in whole
        }
        parts.append({**part, "block_table": own[rank]})
    return Context(whole, parts)


def _prefill(case: Case, seed: int, ranks: int) -> Context:
    """The keys of each rank's runs, padded to the same number on every rank."""
    starts, ends = (torch.tensor(bounds, dtype=torch.int32) for bounds in zip(*case.windows, strict=True))
    keys = int(ends.max())
    heads = 8 * (ranks if case.split else 1)
    size = steps.StepSize(
        "prefill", rows=len(ends), context=keys, heads=heads, index_heads=32, topk=TOPK, kv=case.kv
    )
    whole = _draw(case, size, seed) | {"k_start": starts, "k_end": ends}
    case.spoil(whole)
    owner = torch.arange(keys) // case.interleave % ranks
    most = max(int((owner == rank).sum()) for rank in range(ranks))
    caches = ("k_index", "k_index_scales", "kv", "kpe")
    parts = []
    for rank in range(ranks):
        part = {name: tensor for name, tensor in whole.items() if name not in caches}
        for name in caches:
            if name in whole:
                rows = whole[name].view(keys, -1).view(torch.uint8)
                padded = torch.zeros(most, rows.shape[1], dtype=torch.uint8)
                padded[: int((owner == rank).sum())] = rows[owner == rank]
                part[name] = padded.view(whole[name].dtype).view(most, *whole[name].shape[1:])
        parts.append(part)
    return Context(whole, parts)


def on_one(case: Case, ranks: int, device: str = "cpu") -> dsa.StepOutput:
    """The step on one GPU, or in the interpreter, over the whole context."""
    step: Any = dsa.decode if case.lens else dsa.prefill
    whole = {name: tensor.to(device) for name, tensor in context(case, ranks).whole.items()}
    executor = "interpreter" if device == "cpu" else None
    output = step(**whole, sm_scale=0.1, topk=TOPK, executor=executor, **case.options)
    return dsa.StepOutput(output.out.cpu(), output.lse.cpu(), output.indices.cpu())


def arguments(case: Case, sharding: parallel.Sharding) -> dict[str, Any]:
    """This rank's arguments of the step, on a GPU if the group's device is one."""
    part: dict[str, Any] = context(case, sharding.ranks).parts[sharding.rank]
    if case.split:
        own = slice(8 * sharding.rank, 8 * (sharding.rank + 1))
        part |= {name: part[name][:, own].contiguous() for name in ("q_nope", "q_pe")}
        part |= {"attn_sink": part["attn_sink"][own].contiguous(), "split_heads": True}
    gpu = torch.cuda.is_initialized()
    if gpu:
        part = {name: v.cuda() if isinstance(v, torch.Tensor) else v for name, v in part.items()}
    executor = None if gpu else "interpreter"
    return {**part, "sharding": sharding, "sm_scale": 0.1, "topk": TOPK, "executor": executor, **case.options}


def on_rank(case: Case, sharding: parallel.Sharding, **more: Any) -> dsa.StepOutput:
    """This rank's call of the step."""
    step: Any = parallel.decode if case.lens else parallel.prefill
    return step(**{**arguments(case, sharding), **more})


def replayed(case: Case, sharding: parallel.Sharding) -> dsa.StepOutput:
    """A decode step captured with every row padded, and replayed with the lengths of the case."""
    given = {**arguments(case, sharding), "workspace": ops.Workspace()}
    lens = given["seq_lens"].clone()
    given["seq_lens"].zero_()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        parallel.decode(**given)
    torch.cuda.synchronize()
    dist.barrier(sharding.group)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        output = parallel.decode(**given)
    given["seq_lens"].copy_(lens)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    return output


class Mapped:
    """Stands for `rendezvous` of torch's symmetric memory, with files that processes without a GPU map."""

    def __init__(self, group: dist.ProcessGroup, names: list[str], size: int) -> None:
        self.group = group
        self.each = [torch.from_file(name, shared=True, size=size, dtype=torch.uint8) for name in names]
        self.buffer_ptrs = [each.data_ptr() for each in self.each]

    def barrier(self) -> None:
        dist.barrier(self.group)
        if dist.get_rank(self.group):
            # Read late, so that anything the other rank writes too early is already there.
            time.sleep(0.5)

    def get_buffer(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return self.each[rank][: math.prod(shape)].view(dtype).view(shape)


class Symmetric(parallel.Sharding):
    """A sharding through symmetric memory, with its buffers in files, so that it needs no GPU."""

    def __init__(self, folder: str, interleave: int, transport: str = "symmetric_copy") -> None:
        super().__init__(interleave=interleave, transport=transport)
        self.folder = Path(folder) / self._prefix.replace("/", "_")

    def _rendezvous(self, slot: int, size: int, device: torch.device) -> tuple[torch.Tensor, Any]:
        names = [f"{self.folder}_{slot}_{size}_{rank}" for rank in range(self.ranks)]
        Path(names[self.rank]).write_bytes(bytes(size))
        dist.barrier(self.group)
        mapped = Mapped(self.group, names, size)
        return mapped.each[self.rank], mapped


Work = Callable[..., Any]


def _body(
    work: Work, rank: int, ranks: int, backend: str, seconds: float, folder: str, arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ["DSL_KERNELS_TUNED_DIR"] = os.devnull
    if backend == ONE_GPU:
        # Contexts of several processes take turns on it, also within a barrier.
        os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
        torch.cuda.set_device(0)
        torch.cuda.init()
        backend = "gloo"
    elif backend == "nccl":
        torch.cuda.set_device(rank)
        torch.cuda.init()
    else:
        GPUS.update({name: gpu.with_sms(8) for name, gpu in GPUS.items()})
        ops.clear()
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=seconds),
    )
    try:
        result = work(*arguments)
    except Exception:
        result = traceback.format_exc()
    torch.save(result, f"{folder}/{rank}.pt")
    # No rank may leave while another can still read from the store.
    dist.distributed_c10d._get_default_store().set(f"done/{rank}", "")
    if not isinstance(result, str):
        dist.distributed_c10d._get_default_store().wait(
            [f"done/{other}" for other in range(ranks)], datetime.timedelta(seconds=300)
        )
    dist.destroy_process_group()


def in_processes(
    ranks: int, work: Work, folder: Path, *arguments: Any, backend: str = "gloo", seconds: float = 300.0
) -> list[Any]:
    """The results of work(*arguments) on each rank of a process group, or a failed rank's traceback.

    `backend` is the name of one of torch, or `ONE_GPU`.
    """
    together = multiprocessing.get_context("forkserver")
    # Preloaded, as importing torch takes a process longer than most cases.
    together.set_forkserver_preload([__name__])
    processes = [
        together.Process(target=_body, args=(work, rank, ranks, backend, seconds, str(folder), arguments))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(600)
        if process.is_alive():
            process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(ranks)]
