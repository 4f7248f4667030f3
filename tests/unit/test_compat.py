"""Functions of other libraries over our ops: what they serve is right, and what they do not is refused by name."""

from __future__ import annotations

import itertools
import math
import sys

import pytest
import torch

from dsl_kernels import compat, problems
from dsl_kernels.compat import flash_mla
from dsl_kernels.errors import InvalidArgumentError, UnknownNameError
from dsl_kernels.problems.layouts import pack_fp8_tokens, pack_v4_pages

B, S_Q, HEADS, TOPK, PAGE = 3, 2, 16, 130, 61


def decode() -> dict:
    """A call of `flash_mla_with_kvcache`, and the same as inputs of the problem: pages of 61 tokens, one row between them."""
    generator = torch.Generator().manual_seed(7)
    normal = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    q = normal(B, S_Q, HEADS + 1, 600).bfloat16()[:, :, :HEADS, :576]
    rows = pack_fp8_tokens(normal(4 * PAGE, 512).bfloat16(), normal(4 * PAGE, 64).bfloat16())
    cache = torch.full((4, PAGE + 1, 1, 656), 127, dtype=torch.uint8)[:, :PAGE]
    cache.copy_(rows.view(4, PAGE, 1, 656))
    ids = torch.randint(0, 4 * PAGE, (B, S_Q, TOPK), generator=generator, dtype=torch.int32)
    ids[:, :, ::7], ids[1, 0] = -1, -1
    return {
        "q": q, "k_cache": cache, "indices": ids, "attn_sink": normal(HEADS), "topk_length": torch.tensor([TOPK, 70, 0], dtype=torch.int32)
    }  # fmt: skip


def given_to_the_problem(call: dict, rows: torch.Tensor, scale: float) -> dict:
    q = call["q"].reshape(B * S_Q, HEADS, 576)
    return {
        "q_nope": q[..., :512], "q_pe": q[..., 512:], "kv_cache": rows, "indices": call["indices"].view(B * S_Q, TOPK),
        "attn_sink": call["attn_sink"], "topk_length": call["topk_length"].repeat_interleave(S_Q), "has_lengths": 1,
        "sm_scale": scale, "lse_scale": math.log(2), "empty_lse": math.inf,
    }  # fmt: skip


def test_flash_mla_decode() -> None:
    call, problem = decode(), problems.get("sparse_mla")
    metadata, none = flash_mla.get_mla_metadata()
    out, lse = flash_mla.flash_mla_with_kvcache(
        call["q"], call["k_cache"].view(torch.float8_e4m3fn), None, None, 512, metadata, none, 0.07, False, True,
        call["indices"], call["attn_sink"], topk_length=call["topk_length"], executor="interpreter",
    )  # fmt: skip
    assert out.shape == (B, S_Q, HEADS, 512) and lse.shape == (B, HEADS, S_Q)
    inputs = given_to_the_problem(call, call["k_cache"].reshape(4 * PAGE, 656), 0.07)
    outputs = {"out": out.reshape(-1, HEADS, 512), "lse": lse.transpose(1, 2).reshape(-1, HEADS)}
    result = problem.compare("fp8", inputs, outputs, problem.reference("fp8", inputs))
    assert result.ok, result.failures
    assert (lse[1, :, 0] == math.inf).all() and (lse[2] == math.inf).all() and not out[2].any()


def v4_pages(count: int, page: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache of DeepSeek-V4 and its rows by id, taken from the bytes that FlashMLA's MODEL1 says."""
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


@pytest.mark.parametrize("second", [True, False])
def test_flash_mla_decode_of_deepseek_v4(second: bool) -> None:
    generator = torch.Generator().manual_seed(5)
    (cache, rows), (extra, extra_rows) = v4_pages(3, 61, 1), v4_pages(40, 2, 2)
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
    out, lse = flash_mla.flash_mla_with_kvcache(
        q, cache, None, None, 512, flash_mla.FlashMLASchedMeta(), None, 0.05, False, True, ids, sink,
        topk_length=lengths, executor="interpreter", **(scope if second else {}),
    )  # fmt: skip
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
    call, problem = decode(), problems.get("sparse_mla")
    q, kv = (
        call["q"][:, 0],
        torch.randn(200, 2, 640, generator=torch.Generator().manual_seed(2)).bfloat16()[:, :1, :576],
    )
    ids = call["indices"][:, :1]
    out, none, lse = flash_mla.flash_mla_sparse_fwd(q, kv, ids, 0.07, executor="interpreter")
    assert none is None
    inputs = {
        "q_nope": q[..., :512], "q_pe": q[..., 512:], "ckv": kv[:, 0, :512], "kpe": kv[:, 0, 512:], "indices": ids[:, 0],
        "attn_sink": torch.full((HEADS,), -math.inf), "sm_scale": 0.07, "lse_scale": math.log(2), "empty_lse": math.inf,
    }  # fmt: skip
    result = problem.compare("bf16", inputs, {"out": out, "lse": lse}, problem.reference("bf16", inputs))
    assert result.ok, result.failures


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"indices": None}, "indices.*dense"),
        ({"causal": True}, "causal.*False"),
        ({"is_fp8_kvcache": False}, "is_fp8_kvcache.*flash_mla_sparse_fwd"),
        ({"extra_k_cache": torch.zeros(1)}, "extra_k_cache.*None beside 656"),
        ({"head_dim_v": 256}, "head_dim_v.*512"),
        ({"q": torch.zeros(B, S_Q, HEADS, 512).bfloat16()}, "q.*576.*as wide as"),
        ({"q": torch.zeros(B * S_Q, HEADS, 576).bfloat16()}, r"q: expected \[b, s_q, heads, 576\]"),
    ],
)
def test_flash_mla_refuses(change: dict, message: str) -> None:
    call = {
        **decode(), "block_table": None, "cache_seqlens": None, "head_dim_v": 512,
        "tile_scheduler_metadata": flash_mla.FlashMLASchedMeta(), "is_fp8_kvcache": True, "executor": "interpreter",
    }  # fmt: skip
    with pytest.raises(InvalidArgumentError, match=message):
        flash_mla.flash_mla_with_kvcache(**{**call, **change})


def test_patch_serves_who_imports_the_library(monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "flash_mla", raising=False)
    assert compat.patch()["flash_mla"] is sys.modules["flash_mla"]
    import flash_mla as theirs  # type: ignore[import-not-found]

    assert theirs.flash_mla_with_kvcache is flash_mla.flash_mla_with_kvcache
    monkeypatch.delitem(sys.modules, "flash_mla")
    with pytest.raises(UnknownNameError, match="flash_mla"):
        compat.patch("flashmla")
