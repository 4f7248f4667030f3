"""vLLM's attention layers of DeepSeek-V4 and V4.1 with our functions and with FlashMLA's.

They are parts of vllm_engine.py. A layer is vLLM's class with caches and metadata of a step; the model around
it does not run. A query of a decode step attends to random numbers of rows, at most 128 of the window and 512
compressed ones, and the first of several to none. A query of a prompt attends to both as vLLM gathers them.
On Hopper both models' caches have rows of 584 bytes. A layer of V4.1 looks selected rows up itself.
"""

from __future__ import annotations

import importlib
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace as Namespace
from typing import Any

import torch

DEVICE = "cuda"
DIM, WINDOW, PICKED, PAGE = 512, 128, 512, 64
ROWS = 2048
"""Compressed rows that a query of a decode step selects from."""
MODELS = {"deepseek_v4": "DeepseekV4ForCausalLM", "deepseek_v41": "DeepseekV41ForCausalLM"}
"""vLLM's package of a model -> the model's name in its registry."""
RATIOS = {"deepseek_v4": 4, "deepseek_v41": 2}
"""Tokens that a compressed row stands for in a prompt's layer."""
SCALE = DIM**-0.5
DECODE = ((1, 16), (16, 8), (64, 16), (64, 32), (64, 64), (16, 128))
PROMPT = ((1000, 16), (4096, 16), (4096, 64), (4096, 128))
"""Queries and heads of a rank."""
ROUNDS, REPLAYS = 5, 20


def attended(q: torch.Tensor, keys: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """Float64 attention [heads, 512] of one query [heads, 512] to keys [rows, 512] with sinks [heads]."""
    scores = SCALE * (q.double() @ keys.double().T)
    share = 1 / (1 + torch.exp(sink.double() - scores.logsumexp(1)))
    return scores.softmax(1) @ keys.double() * share[:, None] if len(keys) else q.double() * 0


class Step:
    """The caches and the metadata of one call of the layer; `keys(t)` are the rows of query t."""

    def __init__(self, package: str, queries: int, heads: int) -> None:
        self.package, self.ratio, self.heads = package, RATIOS[package], heads
        self.generator = torch.Generator(DEVICE).manual_seed(queries + heads)
        self.q = self.drawn(queries, heads, DIM).bfloat16()
        self.sink = self.drawn(heads)

    def drawn(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator, device=DEVICE)

    def integers(self, end: int, *shape: int) -> torch.Tensor:
        return torch.randint(end, shape, generator=self.generator, device=DEVICE, dtype=torch.int32)

    def cache(self, pages: int, page: int) -> torch.Tensor:
        """Random rows as vLLM stores them, [pages, page, bytes]."""
        from dsl_kernels.problems.layouts import pack_v4_pages

        return pack_v4_pages(self.drawn(pages, page, DIM).cpu()).to(DEVICE)[:, :, 0]

    def read(self, cache: torch.Tensor) -> torch.Tensor:
        """The rows of a cache as float, [pages * page, 512]."""
        from dsl_kernels_lab.layouts import unpack_v4_pages

        return unpack_v4_pages(cache.cpu()[:, :, None]).view(-1, DIM).to(DEVICE)

    def layer(self, cls: Any, heads: int, ratio: int) -> Any:
        """vLLM's layer without the weights around its attention."""
        layer = object.__new__(cls)
        torch.nn.Module.__init__(layer)
        sink = torch.full((heads,), -torch.inf, device=DEVICE)
        sink[: len(self.sink)] = self.sink
        layer.attn_sink = torch.nn.Parameter(sink, requires_grad=False)
        layer.compress_ratio, layer.scale, layer.window_size, layer.max_image_tokens = ratio, SCALE, WINDOW, 0
        layer.swa_cache_layer = Namespace(kv_cache=self.window)
        if self.package == "deepseek_v41":
            layer.n_local_heads, layer.padded_heads = self.heads, heads
            layer._prefill_num_heads = layer._get_prefill_num_heads()
        return layer

    def error(self, out: torch.Tensor) -> float:
        """The largest error of a row, as a part of its norm; of a row of no key, its largest value."""
        errors = []
        for t in torch.linspace(0, len(out) - 1, min(len(out), 64)).long().tolist():
            wanted = attended(self.q[t], self.keys(t), self.sink)
            errors.append((out[t].double() - wanted).norm() / (wanted.norm() or 1.0))
        return float(torch.stack(errors).max())


class Decode(Step):
    def __init__(self, package: str, queries: int, heads: int) -> None:
        super().__init__(package, queries, heads)
        self.n, self.page = queries, PAGE // (32 if package == "deepseek_v4" else self.ratio)
        pages = queries * ROWS // self.page
        self.window, self.compressed = self.cache(4 * queries, PAGE), self.cache(pages, self.page)
        self.ids = self.integers(4 * queries * PAGE, queries, 1, WINDOW)
        self.picked = self.integers(ROWS, queries, PICKED)
        self.lengths = self.integers(WINDOW + 1, queries), self.integers(PICKED + 1, queries)
        if queries > 1:
            for each in self.lengths:
                each[0] = 0
        self.picked.masked_fill_(torch.arange(PICKED, device=DEVICE) >= self.lengths[1][:, None], -1)
        order = torch.randperm(pages, generator=self.generator, device=DEVICE)
        self.table = order.int().view(queries, -1)
        found = self.table.gather(1, (self.picked.clamp(min=0) // self.page).long())
        self.more = torch.where(self.picked < 0, -1, found * self.page + self.picked % self.page)[:, None]
        self.rows = self.read(self.window), self.read(self.compressed)

    def keys(self, t: int) -> torch.Tensor:
        n, m = (each[t] for each in self.lengths)
        return torch.cat([self.rows[0][self.ids[t, 0, :n].long()], self.rows[1][self.more[t, 0, :m].long()]])

    def call(self, cls: Any, q: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        from vllm.v1.attention.ops.flashmla import get_mla_metadata

        ratio = 128 if self.package == "deepseek_v4" else self.ratio
        layer = self.layer(cls, q.shape[1], ratio)
        layer.topk_indices_buffer = self.picked
        plan = get_mla_metadata()[0]
        window = Namespace(
            num_decodes=self.n,
            num_decode_tokens=self.n,
            is_valid_token=torch.ones(self.n, dtype=torch.bool, device=DEVICE),
            token_to_req_indices=torch.arange(self.n, dtype=torch.int32, device=DEVICE),
            decode_swa_indices=self.ids,
            decode_swa_lens=self.lengths[0],
            tile_sched_swaonly=None,
            tile_sched_c1a=None,
            tile_sched_c2a=plan,
            tile_sched_c128a=plan,
        )
        picked = Namespace(
            block_size=ratio * self.page,
            block_table=self.table,
            c128a_global_decode_topk_indices=self.more,
            c128a_decode_topk_lens=self.lengths[1],
        )
        return lambda: layer._forward_decode(q, self.compressed, window, picked, False, out)


class Prompt(Step):
    """One prompt from its first token on: query t attends to tokens t - 127 to t and to picked groups."""

    def __init__(self, package: str, queries: int, heads: int) -> None:
        super().__init__(package, queries, heads)
        self.n, self.groups = queries, queries // self.ratio
        pages = -(-queries // PAGE)
        self.window, self.compressed = self.cache(pages, PAGE), self.cache(pages, PAGE // self.ratio)
        self.table = torch.randperm(pages, generator=self.generator, device=DEVICE).int()[None]
        ahead = self.drawn(queries, self.groups)
        seen = (torch.arange(queries, device=DEVICE)[:, None] + 1) // self.ratio
        ahead.masked_fill_(torch.arange(self.groups, device=DEVICE) >= seen, -torch.inf)
        self.picked = torch.full((queries, PICKED), -1, dtype=torch.int32, device=DEVICE)
        few = min(PICKED, self.groups)
        self.picked[:, :few] = ahead.topk(few).indices
        self.rows = tuple(
            self.read(cache).unflatten(0, (pages, -1))[self.table[0].long()].flatten(0, 1)
            for cache in (self.window, self.compressed)
        )

    def keys(self, t: int) -> torch.Tensor:
        picked = self.picked[t, : min(PICKED, (t + 1) // self.ratio)].long()
        return torch.cat([self.rows[0][max(0, t + 1 - WINDOW) : t + 1], self.rows[1][picked]])

    def call(self, cls: Any, q: torch.Tensor, out: torch.Tensor) -> Callable[[], None]:
        layer = self.layer(cls, q.shape[1], self.ratio)
        layer.topk_indices_buffer, layer.max_num_batched_tokens = self.picked, self.n
        ends = torch.tensor([0, self.n], dtype=torch.int32)
        length = torch.tensor([self.n], dtype=torch.int32, device=DEVICE)
        plan = [(0, 1, self.groups, self.groups + self.n)]
        window = Namespace(
            num_prefill_tokens=self.n,
            num_decodes=0,
            num_decode_tokens=0,
            prefill_seq_lens=length,
            prefill_gather_lens=length,
            query_start_loc_cpu=ends,
            query_start_loc=ends.to(DEVICE),
            get_prefill_chunk_plan=lambda **_: plan,
            block_table=self.table,
            block_size=PAGE,
            prefill_left_visible=None,
            prefill_right_visible=None,
        )
        picked = Namespace(block_table=self.table, block_size=PAGE)
        positions = torch.arange(self.n, device=DEVICE)
        return lambda: layer._forward_prefill(q, positions, self.compressed, self.window, out, picked, window)


def captured(call: Callable[[], Any]) -> Callable[[], float]:
    """The call in a CUDA graph, after a first call outside; us of a replay.

    A graph does not keep what its call reads, so what is returned keeps the call.
    """
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def replayed(_kept: Callable[[], Any] = call) -> float:
        start.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        return 1e3 * start.elapsed_time(end) / REPLAYS

    return replayed


def chosen(package: str = "deepseek_v4") -> dict[str, Any]:
    """The class of a model's layer and FlashMLA's two functions in its module, ours and vLLM's."""
    from vllm.model_executor.models.registry import ModelRegistry
    from vllm.plugins import load_general_plugins
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    flashmla, model = (
        importlib.import_module(f"vllm.models.{package}.nvidia.{name}") for name in ("flashmla", "model")
    )
    load_general_plugins()
    ModelRegistry.models[MODELS[package]].load_model_cls()
    functions = "flash_mla_with_kvcache", "flash_mla_sparse_fwd"
    theirs = {name: getattr(flashmla, name) for name in functions}
    config = Namespace(
        attention_config=Namespace(backend=AttentionBackendEnum["DSLKERNELS_MLA_SPARSE"]),
        cache_config=Namespace(cache_dtype="fp8_ds_mla"),
        parallel_config=Namespace(prefill_context_parallel_size=1),
    )
    ours = model._select_dsv4_attn_cls(config)
    return {
        "ours": (ours, {name: getattr(flashmla, name) for name in functions}),
        "theirs": (flashmla.DeepseekV4FlashMLAAttention, theirs),
    }


@torch.inference_mode()
def layer_rows(package: str, _: Path) -> Iterator[dict[str, Any]]:
    """A row for each step: errors of both against float64, and us in turns, the median of the rounds."""
    from vllm.v1.worker.workspace import init_workspace_manager

    init_workspace_manager(torch.device(DEVICE))
    flashmla = importlib.import_module(f"vllm.models.{package}.nvidia.flashmla")
    classes = chosen(package)
    for kind, sizes in ((Decode, DECODE), (Prompt, PROMPT)):
        for queries, heads in sizes:
            step = kind(package, queries, heads)
            outs, replays = {}, {}
            for who, (cls, functions) in classes.items():
                vars(flashmla).update(functions)
                padded = cls.get_padded_num_q_heads(heads)
                q = torch.zeros(queries, padded, DIM, dtype=torch.bfloat16, device=DEVICE)
                q[:, :heads] = step.q
                outs[who] = torch.full_like(q, torch.nan)
                replays[who] = captured(step.call(cls, q, outs[who]))
                outs[who].fill_(torch.nan)
            times = {who: [] for who in replays}  # type: dict[str, list[float]]
            for _round in range(ROUNDS):
                for who, replayed in replays.items():
                    times[who].append(replayed())
            yield {
                "step": kind.__name__.lower(),
                "queries": queries,
                "heads": heads,
                "error": {who: step.error(out[:, :heads]) for who, out in outs.items()},
                "us": {who: statistics.median(each) for who, each in times.items()},
            }
