"""Other libraries' functions over our ops: served calls are right, refusals name the argument."""

from __future__ import annotations

import importlib
import inspect
import itertools
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from dsl_kernels import compat
from dsl_kernels.compat import deep_gemm, flash_mla, sgl_topk, vllm_topk
from dsl_kernels.errors import ArgumentTypeError, InvalidArgumentError, NoVariantError, UnknownNameError
from dsl_kernels.problems.layouts import pack_fp8_tokens, pack_v4_pages, pack_v41_pages
from dsl_kernels_lab import oracles
from dsl_kernels_lab.layouts import unpack_v41_pages
from dsl_kernels_lab.oracles import Workload

B, S_Q, HEADS, TOPK, PAGE = 3, 2, 16, 130, 61


def decode() -> dict:
    """A call of `flash_mla_with_kvcache`, and the problem's inputs for it: pages of 61 tokens with gaps."""
    generator = torch.Generator().manual_seed(7)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    q = normal(B, S_Q, HEADS + 1, 600).bfloat16()[:, :, :HEADS, :576]
    rows = pack_fp8_tokens(normal(4 * PAGE, 512).bfloat16(), normal(4 * PAGE, 64).bfloat16())
    cache = torch.full((4, PAGE + 1, 1, 656), 127, dtype=torch.uint8)[:, :PAGE]
    cache.copy_(rows.view(4, PAGE, 1, 656))
    ids = torch.randint(0, 4 * PAGE, (B, S_Q, TOPK), generator=generator, dtype=torch.int32)
    ids[:, :, ::7], ids[1, 0] = -1, -1
    return {
        "q": q, "k_cache": cache, "indices": ids, "attn_sink": normal(HEADS),
        "topk_length": torch.tensor([TOPK, 70, 0], dtype=torch.int32)
    }  # fmt: skip


def given_to_the_problem(call: dict, rows: torch.Tensor, scale: float) -> dict:
    q = call["q"].reshape(B * S_Q, HEADS, 576)
    return {
        "q_nope": q[..., :512], "q_pe": q[..., 512:], "kv_cache": rows,
        "indices": call["indices"].view(B * S_Q, TOPK),
        "attn_sink": call["attn_sink"], "topk_length": call["topk_length"].repeat_interleave(S_Q),
        "has_lengths": 1,
        "sm_scale": scale, "lse_scale": math.log(2), "empty_lse": math.inf,
    }  # fmt: skip


def test_flash_mla_decode() -> None:
    call, problem = decode(), oracles.get("sparse_mla")
    metadata, none = flash_mla.get_mla_metadata()
    out, lse = flash_mla.flash_mla_with_kvcache(
        call["q"], call["k_cache"].view(torch.float8_e4m3fn), None, None, 512, metadata, none, 0.07, False,
        True,
        call["indices"], call["attn_sink"], topk_length=call["topk_length"], executor="interpreter",
    )  # fmt: skip
    assert out.shape == (B, S_Q, HEADS, 512) and lse.shape == (B, HEADS, S_Q)
    inputs = given_to_the_problem(call, call["k_cache"].reshape(4 * PAGE, 656), 0.07)
    outputs = {"out": out.reshape(-1, HEADS, 512), "lse": lse.transpose(1, 2).reshape(-1, HEADS)}
    result = problem.compare("fp8", inputs, outputs, problem.reference("fp8", inputs))
    assert result.ok, result.failures
    assert (lse[1, :, 0] == math.inf).all() and (lse[2] == math.inf).all() and not out[2].any()


def v4_pages(count: int, page: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache of DeepSeek-V4 and its rows by id, taken from the bytes as FlashMLA's MODEL1 lays them out."""
    cache = pack_v4_pages(
        torch.randn(count, page, 512, generator=torch.Generator().manual_seed(seed)).bfloat16()
    )
    memory = torch.as_strided(cache, (count * cache.stride(0),), (1,))
    rows = torch.zeros(count * page, 512, dtype=torch.float64)
    for token in range(count * page):
        block = memory[token // page * cache.stride(0) :][: page * 584]
        row, scales = (
            block[token % page * 576 :][:576],
            block[page * 576 + token % page * 8 :][:7].double(),
        )
        rows[token, :448] = row[:448].view(torch.float8_e4m3fn).double() * torch.exp2(
            scales - 127
        ).repeat_interleave(64)
        rows[token, 448:] = row[448:].clone().view(torch.bfloat16).double()
    return cache, rows


def v41_pages(count: int, page: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache of DeepSeek-V4.1, the scales of each token after its values, and its rows by id."""
    cache = pack_v41_pages(torch.randn(count, page, 512, generator=torch.Generator().manual_seed(seed)))
    return cache, unpack_v41_pages(cache).view(-1, 512).double()


@pytest.mark.parametrize(
    ("packed", "second", "written"),
    [(v4_pages, True, False), (v4_pages, False, True), (v41_pages, True, True), (v41_pages, False, False)],
)
def test_flash_mla_decode_of_deepseek_v4(packed: Callable, second: bool, written: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    (cache, rows), (extra, extra_rows) = packed(3, 61, 1), packed(40, 2, 2)
    q = torch.randn(B, S_Q, 8, 640, generator=generator).bfloat16()[..., :512]
    ids = torch.randint(-1, 3 * 61, (B, S_Q, 100), generator=generator, dtype=torch.int32)
    more = torch.randint(-1, 80, (B, S_Q, 70), generator=generator, dtype=torch.int32)
    ids[0, 0, 3], more[0, 1, 5] = 3 * 61, 2**31 - 1
    lengths, extra_lengths = (torch.tensor(x, dtype=torch.int32) for x in ([90, 0, 0], [70, 66, 0]))
    sink = torch.randn(8, generator=generator)
    scope = {
        "extra_k_cache": extra,
        "extra_indices_in_kvcache": more,
        "extra_topk_length": extra_lengths,
    }
    # Memory of more heads, as an engine with padded ones has it.
    memory = torch.full((B, S_Q, 9, 512), 7).bfloat16() if written else None
    out, lse = flash_mla.flash_mla_with_kvcache(
        q, cache, None, None, 512, flash_mla.FlashMLASchedMeta(), None, 0.05, False, True, ids, sink,
        topk_length=lengths, executor="interpreter", **(scope if second else {}),
        out=None if memory is None else memory[:, :, :8],
    )  # fmt: skip
    if memory is not None:
        assert out.data_ptr() == memory.data_ptr() and (memory[:, :, 8] == 7).all()
    for i, j in itertools.product(range(B), range(S_Q)):
        taken = ids[i, j, : lengths[i]]
        keys = rows[taken[(taken >= 0) & (taken < 3 * 61)].long()]
        if second:
            taken = more[i, j, : extra_lengths[i]]
            keys = torch.cat([keys, extra_rows[taken[(taken >= 0) & (taken < 80)].long()]])
        if not len(keys):
            assert (lse[i, :, j] == math.inf).all() and not out[i, j].any()
            continue
        scores = 0.05 * (q[i, j].double() @ keys.T)
        total = scores.logsumexp(1)
        wanted = scores.softmax(1) @ keys / (1 + torch.exp(sink - total))[:, None]
        torch.testing.assert_close(lse[i, :, j].double(), total, rtol=1e-5, atol=1e-5)
        assert (out[i, j].double() - wanted).norm() < 3e-3 * wanted.norm()


def test_flash_mla_prefill() -> None:
    call, problem = decode(), oracles.get("sparse_mla")
    q, kv = (
        call["q"][:, 0],
        torch.randn(200, 2, 640, generator=torch.Generator().manual_seed(2)).bfloat16()[:, :1, :576],
    )
    ids = call["indices"][:, :1]
    out, most, lse = flash_mla.flash_mla_sparse_fwd(q, kv, ids, 0.07, executor="interpreter")
    for row, taken in enumerate(ids[:, 0]):
        keys = kv[taken[(taken >= 0) & (taken < len(kv))].long(), 0].double()
        scores = 0.07 * (q[row].double() @ keys.T)
        wanted = scores.amax(1) if len(keys) else torch.full((HEADS,), -math.inf, dtype=torch.float64)
        torch.testing.assert_close(most[row].double(), wanted, rtol=2e-6, atol=1e-6)
    assert (most[1] == -math.inf).all() and not (most == lse).any()
    again = flash_mla.flash_mla_sparse_fwd(q, kv, ids, 0.07, max_logits=False, executor="interpreter")
    assert again[1] is None and torch.equal(again[0], out) and torch.equal(again[2], lse)
    memory = torch.full((B, HEADS + 1, 512), 7).bfloat16()
    given = flash_mla.flash_mla_sparse_fwd(q, kv, ids, 0.07, out=memory[:, :HEADS], executor="interpreter")
    assert torch.equal(memory[:, :HEADS], out) and (memory[:, HEADS] == 7).all()
    assert given[0].data_ptr() == memory.data_ptr()
    inputs = {
        "q_nope": q[..., :512], "q_pe": q[..., 512:], "ckv": kv[:, 0, :512], "kpe": kv[:, 0, 512:],
        "indices": ids[:, 0],
        "attn_sink": torch.full((HEADS,), -math.inf), "sm_scale": 0.07, "lse_scale": math.log(2),
        "empty_lse": math.inf,
    }  # fmt: skip
    result = problem.compare("bf16", inputs, {"out": out, "lse": lse}, problem.reference("bf16", inputs))
    assert result.ok, result.failures
    # DeepSeek-V4's rows: all of their dims are both key and value.
    rows = {"q_rows": q[..., :512], "ckv": kv[:, 0, :512]}
    out, _, lse = flash_mla.flash_mla_sparse_fwd(
        rows["q_rows"], kv[..., :512], ids, 0.07, executor="interpreter"
    )
    result = problem.compare(
        "nope", {**inputs, **rows}, {"out": out, "lse": lse}, problem.reference("nope", {**inputs, **rows})
    )
    assert result.ok, result.failures


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": None}, "indices.*dense"),
        ({"causal": True}, "causal.*False"),
        ({"is_fp8_kvcache": False}, "is_fp8_kvcache.*flash_mla_sparse_fwd"),
        ({"extra_k_cache": torch.zeros(1)}, "extra_k_cache.*None beside 656"),
        ({"head_dim_v": 256}, "head_dim_v.*512"),
        ({"enable_batch_invariant": True}, "enable_batch_invariant.*False"),
        ({"out": torch.empty(B, S_Q, HEADS, 576).bfloat16()}, r"out.*512\)"),
        ({"out": torch.empty(S_Q, B, HEADS, 512).bfloat16().transpose(0, 1)}, "out.*mergeable"),
        ({"q": torch.zeros(B, S_Q, HEADS, 512).bfloat16()}, "q.*576.*as wide as"),
        ({"q": torch.zeros(B * S_Q, HEADS, 576).bfloat16()}, r"q: expected \[b, s_q, heads, 576\]"),
    ],
)
def test_flash_mla_refuses(change: dict, message: str) -> None:
    call = {
        **decode(), "block_table": None, "cache_seqlens": None, "head_dim_v": 512,
        "tile_scheduler_metadata": flash_mla.FlashMLASchedMeta(), "is_fp8_kvcache": True,
        "executor": "interpreter",
    }  # fmt: skip
    with pytest.raises(InvalidArgumentError, match=message):
        flash_mla.flash_mla_with_kvcache(**{**call, **change})


def scored(form: str, name: str) -> tuple[dict, dict]:
    """Inputs of a scoring workload, and the problem's reference, with NaN where there is no score."""
    problem = oracles.get("lightning_indexer")
    workload = next(w for w in problem.workloads if w.name == name)
    inputs = problem.make(workload, torch.Generator().manual_seed(3))
    return inputs, problem.reference(form, inputs)


def require_scores(form: str, inputs: dict, expected: dict, got: torch.Tensor) -> None:
    result = oracles.get("lightning_indexer").compare(form, inputs, {"logits": got}, expected)
    assert result.ok, result.failures


@pytest.mark.parametrize("clean", [False, True])
def test_deep_gemm_decode(clean: bool) -> None:
    inputs, expected = scored("decode", "decode_mtp3")
    b, next_n, heads, _ = inputs["q"].shape
    columns = 250
    metadata = deep_gemm.get_paged_mqa_logits_metadata(inputs["seq_lens"], 64, 132)
    assert metadata.shape == (133, 2) and metadata.dtype == torch.int32
    logits = deep_gemm.fp8_paged_mqa_logits(
        inputs["q"], inputs["k_cache"].view(-1, 64, 1, 132), inputs["weights"].view(b * next_n, heads),
        inputs["seq_lens"], inputs["block_table"], metadata, columns, clean, executor="interpreter",
    )  # fmt: skip
    assert logits.shape == (b * next_n, columns) and logits.stride(0) * 4 % 1024 == 0
    require_scores("decode", inputs, expected, logits.unflatten(0, (b, next_n)))
    after = torch.arange(columns) >= inputs["seq_lens"].view(-1, 1)
    assert (logits[after] == -math.inf).all() or not clean


def test_deep_gemm_decode_of_rows_of_one_sequence() -> None:
    """Several rows of a sequence as batch entries of their own, as DeepGEMM takes them with `indices`."""
    inputs, expected = scored("decode", "decode_mtp3")
    b, next_n, heads, dim = inputs["q"].shape
    logits = deep_gemm.fp8_fp4_paged_mqa_logits(
        (inputs["q"].view(b * next_n, 1, heads, dim), None), inputs["k_cache"].view(-1, 64, 1, 132),
        inputs["weights"].view(b * next_n, heads), inputs["seq_lens"].view(-1, 1),
        inputs["block_table"].repeat_interleave(next_n, 0), None, 256,
        indices=torch.arange(b, dtype=torch.int32).repeat_interleave(next_n), executor="interpreter",
    )  # fmt: skip
    require_scores("decode", inputs, expected, logits.unflatten(0, (b, next_n)))


@pytest.mark.parametrize("clean", [False, True])
def test_deep_gemm_prefill(clean: bool) -> None:
    inputs, expected = scored("prefill", "prefill_ragged")
    s, skv = inputs["q"].shape[0], inputs["k"].shape[0]
    logits = deep_gemm.fp8_mqa_logits(
        inputs["q"], (inputs["k"], inputs["k_scales"]), inputs["weights"], inputs["k_start"], inputs["k_end"],
        clean,
        executor="interpreter",
    )  # fmt: skip
    assert logits.shape == (s, skv) and logits.stride(0) * 4 % 1024 == 0
    require_scores("prefill", inputs, expected, logits)
    assert torch.equal(logits == -math.inf, expected["logits"].isnan()) or not clean


SCORES = {"any": torch.float32, "any_bf16": torch.bfloat16}
FOUR_BITS = {"mxfp4": torch.float32, "mxfp4_bf16": torch.bfloat16}


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize(
    "name", ["decode_any_page48", "decode_any_page128", "decode_any_n16", "decode_any_page16"]
)
def test_deep_gemm_decode_of_any_page_dims_and_heads(name: str, kind: str) -> None:
    inputs, expected = scored("decode_any", name)
    b, next_n, _, dim = inputs["q"].shape
    page, columns = inputs["page_size"], 720
    logits = deep_gemm.fp8_fp4_paged_mqa_logits(
        (inputs["q"], None), inputs["k_cache"].view(-1, page, 1, dim + 4), inputs["weights"],
        inputs["seq_lens"],
        inputs["block_table"], None, columns, True, SCORES[kind], executor="interpreter",
    )  # fmt: skip
    assert logits.dtype == SCORES[kind] and logits.shape == (b * next_n, columns)
    assert logits.stride(0) * logits.element_size() % 1024 == 0
    require_scores(f"decode_{kind}", inputs, expected, logits.unflatten(0, (b, next_n)))
    assert (logits[torch.arange(columns) >= inputs["seq_lens"].view(-1, 1)] == -math.inf).all()


@pytest.mark.parametrize("kind", SCORES)
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("name", ["prefill_any_ragged", "prefill_any_ragged_h16", "prefill_any_strided"])
def test_deep_gemm_prefill_of_any_dims_and_compressed(name: str, clean: bool, kind: str) -> None:
    inputs, expected = scored("prefill_any", name)
    s, skv = inputs["q"].shape[0], inputs["k"].shape[0]
    widest = int((inputs["k_end"] - inputs["k_start"]).max()) if inputs["compressed"] else 0
    logits = deep_gemm.fp8_fp4_mqa_logits(
        (inputs["q"], None), (inputs["k"], inputs["k_scales"]), inputs["weights"], inputs["k_start"],
        inputs["k_end"],
        clean, widest, SCORES[kind], executor="interpreter",
    )  # fmt: skip
    assert logits.dtype == SCORES[kind] and logits.shape == (s, widest or skv)
    # The reference has a column for every key.
    wanted = {"logits": expected["logits"][:, : widest or skv]}
    assert wanted["logits"].isfinite().sum() == expected["logits"].isfinite().sum()
    require_scores(f"prefill_{kind}", inputs, wanted, logits)
    assert torch.equal(logits == -math.inf, wanted["logits"].isnan()) or not clean


def test_deep_gemm_takes_weights_in_bf16() -> None:
    inputs, _ = scored("prefill_any", "prefill_any_tiny")
    weights = inputs["weights"].bfloat16()
    logits = deep_gemm.fp8_fp4_mqa_logits(
        (inputs["q"], None), (inputs["k"], inputs["k_scales"]), weights, inputs["k_start"], inputs["k_end"],
        logits_dtype=torch.bfloat16, executor="interpreter",
    )  # fmt: skip
    rounded = {**inputs, "weights": weights.float()}
    expected = oracles.get("lightning_indexer").reference("prefill_any", rounded)
    require_scores("prefill_any_bf16", rounded, expected, logits)


@pytest.fixture
def blackwell(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter runs Blackwell's kernels, of which alone some score numbers of 4 bits."""
    for name in ("lightning_indexer", "lightning_indexer_prefill"):
        monkeypatch.setattr(deep_gemm, name, partial(getattr(deep_gemm, name), arch="sm_100a"))


def paged_of_four_bits(heads: int) -> tuple[dict, dict]:
    """Arguments of DeepGEMM's paged scores of fp4, two rows a sequence, and the problem's inputs."""
    lens = [[98], [320], [15], [64], [0], [700]]
    sizes = {"lens": lens, "index_heads": heads, "pages": 24, "sharing": 2}
    problem = oracles.get("lightning_indexer")
    inputs = problem.make(Workload("paged", "tiny", "decode_mxfp4", sizes), torch.Generator().manual_seed(3))
    q, scales = inputs["q"].view(torch.int8), inputs["q_scales"]
    call = {
        "q": (q.view(3, 2, heads, 64), scales.view(3, 2, heads)),
        "kv_cache": inputs["k_cache"].view(-1, 64, 1, 68), "weights": inputs["weights"].view(6, heads),
        "context_lens": inputs["seq_lens"].view(3, 2), "block_table": inputs["block_table"],
        "schedule_meta": None, "max_context_len": 720,
    }  # fmt: skip
    return call, inputs


@pytest.mark.usefixtures("blackwell")
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("kind", FOUR_BITS)
@pytest.mark.parametrize("heads", [64, 32, 16, 8])
def test_deep_gemm_decode_of_four_bits(heads: int, kind: str, clean: bool) -> None:
    call, inputs = paged_of_four_bits(heads)
    logits = deep_gemm.fp8_fp4_paged_mqa_logits(
        **call, clean_logits=clean, logits_dtype=FOUR_BITS[kind], executor="interpreter"
    )
    assert logits.dtype == FOUR_BITS[kind] and logits.shape == (6, 720)
    assert logits.stride(0) * logits.element_size() % 1024 == 0
    expected = oracles.get("lightning_indexer").reference("decode_mxfp4", inputs)
    require_scores(f"decode_{kind}", inputs, expected, logits.unsqueeze(1))
    after = torch.arange(720) >= inputs["seq_lens"].view(-1, 1)
    assert (logits[after] == -math.inf).all() or not clean


@pytest.mark.usefixtures("blackwell")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": lambda q: (q[0][:, :, :0], q[1][:, :, :0])}, "q: expected .*1 to 64 heads"),
        ({"q": lambda q: (q[0][..., :32], q[1])}, r"q: expected .*64\] bytes"),
        ({"q": lambda q: (q[0], q[1][:, :1])}, "q: expected .*the heads of q"),
        ({"q": lambda q: (q[0], q[1].float())}, "q: expected .*int32"),
        ({"q": lambda q: (q[0].view(torch.float8_e4m3fn), q[1])}, "q: .*MXFP8"),
        ({"kv_cache": lambda x: x.view(-1, 32, 1, 68)}, "kv_cache: expected 64"),
        ({"kv_cache": lambda x: x.new_zeros(4, 64, 1, 132)}, "kv_cache: .*68"),
        ({"logits_dtype": lambda _: torch.float16}, "logits_dtype: .*float32"),
    ],
)
def test_deep_gemm_refuses_of_four_bits(change: dict, message: str) -> None:
    call, _ = paged_of_four_bits(64)
    weights = call["weights"]
    call |= {name: make(call.get(name)) for name, make in change.items()}
    call["weights"] = weights[:, : call["q"][0].shape[2]]
    with pytest.raises((ArgumentTypeError, InvalidArgumentError), match=message):
        deep_gemm.fp8_fp4_paged_mqa_logits(**call, executor="interpreter")


def prompt_of_four_bits(name: str) -> tuple[dict, dict, dict]:
    """Arguments of DeepGEMM's scores of a prompt in fp4, the problem's inputs and the reference."""
    inputs, expected = scored("prefill_mxfp4", name)
    call = {
        "q": (inputs["q"].view(torch.int8), inputs["q_scales"]),
        "kv": (inputs["k"].view(torch.int8), inputs["k_scales"]), "weights": inputs["weights"],
        "cu_seq_len_k_start": inputs["k_start"], "cu_seq_len_k_end": inputs["k_end"],
    }  # fmt: skip
    return call, inputs, expected


@pytest.mark.usefixtures("blackwell")
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("kind", FOUR_BITS)
@pytest.mark.parametrize("name", ["prefill_mxfp4_ragged", "prefill_mxfp4_ragged_h32"])
def test_deep_gemm_prefill_of_four_bits(name: str, kind: str, clean: bool) -> None:
    call, inputs, expected = prompt_of_four_bits(name)
    s, skv = inputs["q"].shape[0], inputs["k"].shape[0]
    widest = int((inputs["k_end"] - inputs["k_start"]).max()) if inputs["compressed"] else 0
    logits = deep_gemm.fp8_fp4_mqa_logits(
        **call, clean_logits=clean, max_seqlen_k=widest, logits_dtype=FOUR_BITS[kind], executor="interpreter"
    )
    assert logits.dtype == FOUR_BITS[kind] and logits.shape == (s, widest or skv)
    assert logits.stride(0) * logits.element_size() % 1024 == 0
    wanted = {"logits": expected["logits"][:, : widest or skv]}
    require_scores(f"prefill_{kind}", inputs, wanted, logits)
    assert torch.equal(logits == -math.inf, wanted["logits"].isnan()) or not clean


@pytest.mark.usefixtures("blackwell")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": lambda q: (q[0][:, :0], q[1][:, :0])}, "q: expected .*1 to 64 heads"),
        ({"q": lambda q: (q[0], q[1][:, :8])}, "q: "),
        ({"kv": lambda kv: (kv[0][:, :32], kv[1])}, "kv: "),
        ({"kv": lambda kv: (kv[0], kv[1].float())}, "kv: .*int32"),
        ({"kv": lambda kv: (kv[0].view(torch.float8_e4m3fn), kv[1])}, "kv: .*pairs of e2m1"),
        ({"logits_dtype": lambda _: torch.float16}, "logits_dtype: .*float32"),
    ],
)
def test_deep_gemm_refuses_of_a_prompt_of_four_bits(change: dict, message: str) -> None:
    call, _, _ = prompt_of_four_bits("prefill_mxfp4_tiny")
    call |= {name: make(call.get(name)) for name, make in change.items()}
    with pytest.raises((ArgumentTypeError, InvalidArgumentError), match=message):
        deep_gemm.fp8_fp4_mqa_logits(**call, executor="interpreter")


def test_hopper_has_no_scores_of_four_bits() -> None:
    with pytest.raises(NoVariantError, match="sm_100a"):
        deep_gemm.fp8_fp4_paged_mqa_logits(**paged_of_four_bits(64)[0], executor="interpreter")
    with pytest.raises(NoVariantError, match="sm_100a"):
        deep_gemm.fp8_fp4_mqa_logits(**prompt_of_four_bits("prefill_mxfp4_tiny")[0], executor="interpreter")


PAGED = {
    "q": (torch.zeros(1, 1, 64, 128).to(torch.float8_e4m3fn), None),
    "kv_cache": torch.zeros(2, 64, 1, 132, dtype=torch.uint8),
    "weights": torch.zeros(1, 64), "context_lens": torch.ones(1, 1, dtype=torch.int32),
    "block_table": torch.zeros(1, 1, dtype=torch.int32), "schedule_meta": None, "max_context_len": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": (PAGED["q"][0], torch.zeros(1))}, "q: .*MXFP8"),
        ({"q": PAGED["q"][0]}, r"q: .*pass \(q, None\)"),
        ({"weights": torch.zeros(2, 64)}, r"weights: .*\[1, 64\]"),
        ({"kv_cache": PAGED["kv_cache"][:, :40]}, "kv_cache: expected page_size % 16 == 0"),
        ({"kv_cache": PAGED["kv_cache"][:, :, 0]}, r"kv_cache: .*\[pages, page_size, 1, dim \+ 4\]"),
        ({"context_lens": torch.ones(1, 1)}, "context_lens: .*int32"),
        ({"logits_dtype": torch.float64}, "logits_dtype: .*float32"),
        ({"max_context_len": 0}, "max_context_len: "),
    ],
)
def test_deep_gemm_refuses(change: dict, message: str) -> None:
    with pytest.raises((ArgumentTypeError, InvalidArgumentError), match=message):
        deep_gemm.fp8_fp4_paged_mqa_logits(**{**PAGED, **change}, executor="interpreter")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_seqlen_k": -1}, "max_seqlen_k: "),
        ({"max_seqlen_k": 64}, "cu_seq_len_k_end: .*at most stride past k_start"),
        ({"cu_seq_len_k_start": torch.zeros(3)}, "cu_seq_len_k_start: .*int32"),
        ({"q": (torch.zeros(3, 1, 64, 128), None)}, "q: "),
        ({"kv": (torch.zeros(200, 128), torch.zeros(200))}, "kv: .*float8"),
    ],
)
def test_deep_gemm_refuses_of_a_prompt(change: dict, message: str) -> None:
    inputs, _ = scored("prefill", "prefill_tiny")
    call = {
        "q": (inputs["q"], None), "kv": (inputs["k"], inputs["k_scales"]), "weights": inputs["weights"],
        "cu_seq_len_k_start": inputs["k_start"], "cu_seq_len_k_end": inputs["k_end"],
    }  # fmt: skip
    with pytest.raises((ArgumentTypeError, InvalidArgumentError), match=message):
        deep_gemm.fp8_fp4_mqa_logits(**{**call, **change}, executor="interpreter")


K = 40


def rows() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scores with ties in a wider tensor, and the first column and length of each row."""
    scores = (torch.randn(6, 331, generator=torch.Generator().manual_seed(5)) * 4).round()[:, :300]
    return scores, torch.tensor([0, 3, 250, 7, 0, 9]).int(), torch.tensor([300, 290, 20, 0, 39, 41]).int()


def largest(scores: torch.Tensor, starts: torch.Tensor, lengths: torch.Tensor, k: int = K) -> list[list[int]]:
    """Ascending positions of the largest scores of each row, of equal scores the lower ones."""
    ids = []
    for row, start, n in zip(scores, starts.tolist(), lengths.tolist(), strict=True):
        best = sorted(range(n), key=lambda j: (-row[start + j].item(), j))[:k]
        ids.append(sorted(best) + [-1] * (k - len(best)))
    return ids


def test_vllm_prefill_writes_into_a_wider_buffer() -> None:
    scores, starts, lengths = rows()
    buffer = torch.full((8, K + 9), 77, dtype=torch.int32)
    vllm_topk.top_k_per_row_prefill(
        scores, starts, starts + lengths, buffer[:6, :K], 5, *scores.stride(), K, executor="interpreter"
    )
    assert buffer[:5, :K].tolist() == largest(scores, starts, lengths)[:5]
    assert (buffer[5:] == 77).all() and (buffer[:, K:] == 77).all()


@pytest.mark.parametrize("two", [False, True])
def test_vllm_decode(two: bool) -> None:
    scores, _, _ = rows()
    lengths = torch.tensor([[298, 299, 300], [0, 0, 1]]).int()
    out = torch.empty(6, K, dtype=torch.int32)
    vllm_topk.top_k_per_row_decode(
        scores, 3, lengths if two else lengths[:, -1], out, 6, *scores.stride(), K, executor="interpreter"
    )
    assert out.tolist() == largest(scores, torch.zeros(6).int(), lengths.view(-1))


def test_vllm_workspace_kernels() -> None:
    scores, _, lengths = rows()
    for function in (vllm_topk.persistent_topk, vllm_topk.cooperative_topk):
        out = torch.empty(6, K, dtype=torch.int32)
        function(scores, lengths.view(3, 2), out, None, K, 300, executor="interpreter")
        assert out.tolist() == largest(scores, torch.zeros(6).int(), lengths)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stride0": 300}, "stride0: expected 331"),
        ({"stride1": 2}, "stride1: expected 1"),
        ({"numRows": 7}, "numRows: "),
        ({"indices": torch.empty(6, K)}, "indices: .*int32"),
        ({"rowEnds": torch.zeros(6)}, "rowEnds: .*int32"),
        ({"topK": 0}, "topK: "),
    ],
)
def test_vllm_refuses(change: dict, message: str) -> None:
    scores, starts, lengths = rows()
    call = {
        "logits": scores, "rowStarts": starts, "rowEnds": lengths,
        "indices": torch.empty(6, K, dtype=torch.int32),
        "numRows": 6, "stride0": 331, "stride1": 1, "topK": K,
    }  # fmt: skip
    with pytest.raises((ArgumentTypeError, InvalidArgumentError), match=message):
        vllm_topk.top_k_per_row_prefill(**{**call, **change}, executor="interpreter")


@pytest.mark.parametrize("from_column", [False, True])
def test_sgl_topk(from_column: bool) -> None:
    scores, starts, lengths = rows()
    given = starts if from_column else None
    got = sgl_topk.fast_topk_v2(scores, lengths, K, given, executor="interpreter")
    expected = largest(scores, starts if from_column else starts * 0, lengths)
    assert got.tolist() == expected
    offsets = torch.arange(6, dtype=torch.int32) * 1000
    got = sgl_topk.fast_topk_transform_ragged_fused(
        scores, lengths, offsets, K, given, executor="interpreter"
    )
    assert got.dtype == torch.int32
    assert got.tolist() == [[j if j < 0 else j + 1000 * i for j in row] for i, row in enumerate(expected)]


@pytest.mark.parametrize("kind", ["decode", "expanded", "prompt", "windows"])
def test_sgl_page_table(kind: str) -> None:
    scores, starts, lengths = rows()
    # Sequence 1 of the prompt has no rows, and sequence 2 has four.
    sequence = [0, 0, 2, 2, 2, 2] if kind == "prompt" else [0] * 6 if kind == "expanded" else list(range(6))
    table = torch.randint(
        0, 1 << 20, (max(sequence) + 1, 300), generator=torch.Generator().manual_seed(1)
    ).int()
    bounds = [0, 2, 2, 6] if kind == "prompt" else range(7)
    got = sgl_topk.fast_topk_transform_fused(
        scores, lengths, table.expand(6, -1) if kind == "expanded" else table, torch.tensor(bounds).int(), K,
        starts if kind == "windows" else None, executor="interpreter",
    )  # fmt: skip
    expected = largest(scores, starts if kind == "windows" else starts * 0, lengths)
    assert got.dtype == torch.int32
    assert got.tolist() == [
        [j if j < 0 else int(table[s, j]) for j in row] for s, row in zip(sequence, expected, strict=True)
    ]


def test_sgl_v4() -> None:
    scores, starts, lengths = rows()
    table = torch.randperm(6 * 5, generator=torch.Generator().manual_seed(2)).view(6, 5).int()
    slots, raw = (torch.empty(6, K, dtype=torch.int32) for _ in range(2))
    sgl_topk.deepseek_v4_topk_transform_512(
        scores, lengths, table, slots, 64, raw, True, executor="interpreter"
    )
    expected = largest(scores, starts * 0, lengths)
    assert raw.tolist() == expected
    assert slots.tolist() == [
        [j if j < 0 else int(table[i, j // 64]) * 64 + j % 64 for j in row] for i, row in enumerate(expected)
    ]
    with pytest.raises(InvalidArgumentError, match="sort_output: .*raw_indices"):
        sgl_topk.deepseek_v4_topk_transform_512(scores, lengths, table, slots, 64, None, True)


def test_sgl_refuses() -> None:
    scores, _, lengths = rows()
    with pytest.raises(ArgumentTypeError, match="lengths: .*int32"):
        sgl_topk.fast_topk_v2(scores, lengths.float(), K, executor="interpreter")
    with pytest.raises(InvalidArgumentError, match="topk: "):
        sgl_topk.fast_topk_v2(scores, lengths, 1 << 20, executor="interpreter")
    with pytest.raises(InvalidArgumentError, match="score: .*stride"):
        sgl_topk.fast_topk_v2(scores[:, ::2], lengths, K, executor="interpreter")


def test_every_module_serves_each_function_of_a_library(monkeypatch) -> None:
    for library in ("flash_mla", "deep_gemm", "sgl_kernel"):
        monkeypatch.setitem(sys.modules, library, None)
        monkeypatch.delitem(sys.modules, library)
    registered = torch.ops._C.__dict__
    for name in vllm_topk.__all__:
        monkeypatch.setitem(registered, name, None)
    patched = compat.patch()
    assert set(patched) == set(compat.LIBRARIES.values())
    for name, library in compat.LIBRARIES.items():
        ours = importlib.import_module(f"dsl_kernels.compat.{name}")
        for function in ours.__all__:
            assert getattr(patched[library], function) is getattr(ours, function)
            assert inspect.getdoc(getattr(ours, function))
    assert torch.ops._C.persistent_topk is vllm_topk.persistent_topk


def test_patch_serves_who_imports_the_library(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "flash_mla", raising=False)
    assert compat.patch("flash_mla")["flash_mla"] is sys.modules["flash_mla"]
    import flash_mla as theirs  # type: ignore[import-not-found]

    assert theirs.flash_mla_with_kvcache is flash_mla.flash_mla_with_kvcache
    compat.patch("flash_mla", max_logits=False)
    assert theirs.flash_mla_with_kvcache is flash_mla.flash_mla_with_kvcache
    assert theirs.flash_mla_sparse_fwd.keywords == {"max_logits": False}
    monkeypatch.delitem(sys.modules, "flash_mla")
    with pytest.raises(UnknownNameError, match="flash_mla"):
        compat.patch("flashmla")


def test_the_page_says_of_each_module_what_its_docstring_says() -> None:
    page = (Path(__file__).parents[2] / "docs/engines.md").read_text().splitlines()
    for name in compat.LIBRARIES:
        doc = importlib.import_module(f"dsl_kernels.compat.{name}").__doc__ or ""
        rows = [line for line in doc.splitlines() if line.startswith("|")]
        assert rows and [row for row in rows if row not in page] == []
