"""A step of SGLang's DSA backend with its own objects, and float64 beside it: a part of sglang_layer.py.

A namespace stands for the model runner and another for the model's config, as in SGLang's tests of its
backends; pools, metadata, layer, indexer and backend are SGLang's classes. Tokens are random, in pages in
random order.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace as Namespace
from typing import Any

import torch

LATENT, ROPE, PAGE, INDEX_HEADS, INDEX_DIM, ALL_HEADS = 512, 64, 64, 64, 128, 128
SCALE = (128 + ROPE) ** -0.5
CHECKED = 32
"""Queries of a step that are compared with float64."""


@dataclass(frozen=True)
class Case:
    """A step: tokens before it and of it for each request, heads of a rank, SGLang's name of the backend."""

    lengths: tuple[tuple[int, int], ...]
    heads: int
    cache: str
    backend: str
    mode: str = "decode"
    topk_v2: bool = True
    topk: int = 2048


class OnFirstCpu(torch.Tensor):
    """A tensor of the CPU whose device has an index, which SGLang's indexer asks for in an extend step."""

    device = property(lambda _: torch.device("cpu", 0))


class Step:
    """SGLang's objects of one step, with metadata, and random inputs of the indexer and the layer."""

    def __init__(self, case: Case, device: str) -> None:
        from sglang.srt.layers.attention.dsa_backend import DeepseekSparseAttnBackend
        from sglang.srt.layers.radix_attention import RadixAttention
        from sglang.srt.model_executor.forward_context import ForwardContext

        self.case, self.device = case, device
        self.generator = torch.Generator(device).manual_seed(len(case.lengths) + case.heads)
        self.total = [before + new for before, new in case.lengths]
        self.starts = [sum(self.total[:r]) for r in range(len(self.total))]
        self.request = [r for r, (_, new) in enumerate(case.lengths) for _ in range(new)]
        self.position = [p for before, new in case.lengths for p in range(before, before + new)]
        own = [self.starts[r] + p for r, p in zip(self.request, self.position, strict=True)]
        self.new = torch.tensor(own, device=device)
        self.publish()
        self.make_pools()
        self.batch = self.forward_batch()
        config = Namespace(
            hf_config=Namespace(architectures=["DeepseekV32ForCausalLM"], index_topk=case.topk),
            num_attention_heads=ALL_HEADS,
            context_len=self.context,
            kv_lora_rank=LATENT,
            qk_nope_head_dim=128,
            qk_rope_head_dim=ROPE,
        )
        runner = Namespace(
            model_config=config,
            device=device,
            page_size=PAGE,
            token_to_kv_pool=self.pool,
            req_to_token_pool=self.requests,
            hisparse_coordinator=None,
            is_draft_worker=False,
            kv_cache_dtype=self.pool.dtype,
            max_running_requests=len(self.total),
        )
        self.backend = DeepseekSparseAttnBackend(runner)
        self.forward = ForwardContext(attn_backend=self.backend)
        self.layer = RadixAttention(case.heads, LATENT + ROPE, SCALE, 1, 0, v_head_dim=LATENT)
        self.fill()
        n = len(self.request)
        self.q, self.q_rope = (self.drawn(n, case.heads, dim).bfloat16() for dim in (LATENT, ROPE))
        self.k_new, self.k_rope_new = self.k[self.new], self.k_rope[self.new]
        self.index_q = self.drawn(n, INDEX_HEADS, INDEX_DIM).to(torch.float8_e4m3fn)
        if device == "cpu" and case.mode == "extend":
            self.index_q = self.index_q.as_subclass(OnFirstCpu)
        self.weights = self.drawn(n, INDEX_HEADS, 1).abs()
        self.indexer = self.make_indexer()
        self.backend.init_forward_metadata(self.batch)

    def drawn(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator, device=self.device)

    def publish(self) -> None:
        """Configure this process as rank 0 of as many as leave it the case's heads."""
        from sglang.srt.runtime_context import SpawnRanks, publish, reset_context
        from sglang.srt.server_args import ServerArgs

        os.environ["SGLANG_OPT_USE_TOPK_V2"] = str(int(self.case.topk_v2))
        reset_context()
        arguments = ServerArgs(
            model_path="dummy",
            device=self.device,
            tp_size=ALL_HEADS // self.case.heads,
            page_size=PAGE,
            attention_backend="dsa",
            dsa_decode_backend=self.case.backend,
            dsa_prefill_backend=self.case.backend,
            dsa_topk_backend="sgl-kernel",
            mem_fraction_static=0.5,
            chunked_prefill_size=-1,
        )
        publish(arguments, role="test", ranks=SpawnRanks(world_rank=0))

    def make_pools(self) -> None:
        """Empty pools; pages lie anywhere but in the first one, which SGLang keeps for padding."""
        from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool, ReqToTokenPool

        pages = [-(-n // PAGE) for n in self.total]
        self.context = PAGE * max(pages)
        fp8 = self.case.cache == "fp8"
        self.pool = DSATokenToKVPool(
            size=PAGE * sum(pages),
            page_size=PAGE,
            kv_lora_rank=LATENT,
            dtype=torch.float8_e4m3fn if fp8 else torch.bfloat16,
            qk_rope_head_dim=ROPE,
            layer_num=1,
            device=self.device,
            index_head_dim=INDEX_DIM,
            enable_memory_saver=False,
            kv_cache_dim=656 if fp8 else LATENT + ROPE,
        )
        self.requests = ReqToTokenPool(len(pages), self.context, self.device, enable_memory_saver=False)
        page = 1 + torch.randperm(sum(pages), generator=self.generator, device=self.device).int()
        inside = torch.arange(PAGE, dtype=torch.int32, device=self.device)
        slots = []
        for r, (own, n) in enumerate(zip(page.split(pages), self.total, strict=True)):
            slots.append((own[:, None] * PAGE + inside).flatten()[:n])
            self.requests.req_to_token[r + 1, :n] = slots[-1]
        self.slots = torch.cat(slots).long()

    def forward_batch(self) -> Any:
        from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

        ints = partial(torch.tensor, device=self.device)
        batch = ForwardBatch(
            forward_mode=ForwardMode.DECODE if self.case.mode == "decode" else ForwardMode.EXTEND,
            batch_size=len(self.total),
            input_ids=torch.zeros_like(self.new),
            req_pool_indices=ints(range(1, len(self.total) + 1)),
            seq_lens=ints(self.total),
            seq_lens_cpu=torch.tensor(self.total),
            out_cache_loc=self.slots[self.new],
            seq_lens_sum=sum(self.total),
            positions=ints(self.position),
        )
        if self.case.mode == "extend":
            before, new = ([each[i] for each in self.case.lengths] for i in range(2))
            batch.extend_prefix_lens, batch.extend_prefix_lens_cpu = ints(before).int(), before
            batch.extend_seq_lens, batch.extend_seq_lens_cpu = ints(new).int(), new
            batch.extend_num_tokens = sum(new)
        return batch

    def fill(self) -> None:
        """Store rows and index keys of all tokens; the layer stores the rows of the step again."""
        n = len(self.slots)
        self.k = torch.empty(n, 1, LATENT, dtype=torch.bfloat16, device=self.device)
        self.k_rope = torch.empty(n, 1, ROPE, dtype=torch.bfloat16, device=self.device)
        self.index_k = torch.empty(n, INDEX_DIM, device=self.device)
        for part in torch.arange(n, device=self.device).split(1 << 16):
            self.k[part] = self.drawn(len(part), 1, LATENT).bfloat16()
            self.k_rope[part] = self.drawn(len(part), 1, ROPE).bfloat16()
            self.pool.set_mla_kv_buffer(self.layer, self.slots[part], self.k[part], self.k_rope[part])
            keys = self.drawn(len(part), INDEX_DIM)
            scales = keys.abs().amax(1, keepdim=True) / 448
            quantised = (keys / scales).to(torch.float8_e4m3fn)
            self.pool.set_index_k_scale_buffer(0, self.slots[part], quantised, scales)
            self.index_k[part] = quantised.float() * scales

    def make_indexer(self) -> Any:
        """SGLang's indexer without the weights around its scores and selection."""
        from sglang.srt.layers.attention.dsa.dsa_indexer import Indexer
        from sglang.srt.layers.attention.dsa.paged_mqa_logits_backend import DSAPagedMQALogitsBackend
        from sglang.srt.layers.attention.dsa.utils import resolve_num_sms

        indexer = object.__new__(Indexer)
        torch.nn.Module.__init__(indexer)
        indexer.index_topk, indexer.n_heads, indexer.head_dim = self.case.topk, INDEX_HEADS, INDEX_DIM
        indexer.num_init_tokens = indexer.num_local_tokens = 0
        indexer.logits_with_pp_recv, indexer._mqa_logits_budget_bytes = False, {}
        indexer.paged_mqa_logits_backend = DSAPagedMQALogitsBackend.DEEPGEMM
        indexer.sm_count = 132 if self.device == "cpu" else resolve_num_sms()
        return indexer

    def select(self) -> torch.Tensor:
        """What the indexer selects for each query: slots of the pool, or tokens if `ragged`."""
        from sglang.srt.model_executor.forward_context import forward_context

        with forward_context(self.forward):
            metadata = self.backend.get_indexer_metadata(0, self.batch)
            call = self.batch, 0, self.index_q, self.weights, metadata
            if self.case.mode == "decode":
                return self.indexer._get_topk_paged(*call)
            return self.indexer._get_topk_ragged(False, *call)

    def attend(self, ids: torch.Tensor) -> torch.Tensor:
        """The layer's output [queries, heads, 512]."""
        from sglang.srt.model_executor.forward_context import forward_context

        more = {"q_rope": self.q_rope, "k_rope": self.k_rope_new, "topk_indices": ids}
        with forward_context(self.forward):
            out = self.layer(self.q, self.k_new, self.k_new, self.batch, **more)
        return out.view(-1, self.case.heads, LATENT)

    @property
    def ragged(self) -> bool:
        """Whether ids count the tokens of all requests, as in SGLang's prompts over fp8 rows made bf16."""
        return self.case.mode == "extend" and self.case.cache == "fp8" and "sparse" in self.case.backend

    def rows(self, tokens: torch.Tensor) -> torch.Tensor:
        """Float64 rows [tokens, 576] as attention gets them.

        A ragged step's are its own if nothing is before it, and else those that SGLang makes bf16.
        """
        from sglang.kernels.ops.attention.dsa.dequant_k_cache import dequantize_k_cache_paged_dsa

        from dsl_kernels_lab.layouts import unpack_fp8_tokens

        stored, slots = self.pool.get_key_buffer(0), self.slots[tokens]
        if self.ragged and any(before for before, _ in self.case.lengths):
            return dequantize_k_cache_paged_dsa(stored, slots.int())[:, 0].double()
        if self.ragged:
            return torch.cat([self.k[tokens, 0], self.k_rope[tokens, 0]], 1).double()
        if self.case.cache == "bf16":
            return stored[slots, 0].double()
        rows = stored[slots, 0].view(torch.uint8)
        return torch.cat([each.double() for each in unpack_fp8_tokens(rows)], 1)

    def check(self, ids: torch.Tensor, out: torch.Tensor) -> dict[str, Any]:
        """Largest error of a query's attention, largest share of scores missed, queries with wrong ids."""
        token_of = torch.full((self.pool.size + PAGE,), -1, device=self.device)
        token_of[self.slots] = torch.arange(len(self.slots), device=self.device)
        index_q = self.index_q.as_subclass(torch.Tensor)
        errors, missed, wrong = [], [], 0
        for t in torch.linspace(0, len(out) - 1, min(len(out), CHECKED)).long().tolist():
            start, seen = self.starts[self.request[t]], self.position[t] + 1
            own = ids[t][ids[t] >= 0].long()
            own = own if self.ragged else token_of[own]
            chosen = own.unique()
            chosen = chosen[(chosen >= start) & (chosen < start + seen)]
            wrong += int(not len(chosen) == len(own) == min(self.case.topk, seen))
            keys, q = self.rows(own.clamp(min=0)), torch.cat([self.q[t], self.q_rope[t]], 1).double()
            wanted = (SCALE * (q @ keys.T)).softmax(1) @ keys[:, :LATENT]
            errors.append(float((out[t].double() - wanted).norm() / wanted.norm()))
            dots = index_q[t].double() @ self.index_k[start : start + seen].double().T
            scores = self.weights[t, :, 0].double() @ dots.relu()
            best = scores.topk(min(self.case.topk, seen)).values.sum()
            missed.append(float(1 - scores[chosen - start].sum() / best))
        return {"error": max(errors), "missed": max(missed), "wrong_rows": wrong}
