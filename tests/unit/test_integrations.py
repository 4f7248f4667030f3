"""The engines' plugins on stubs of the engines: calls we take over are right, the engine keeps all others."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import re
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from dsl_kernels.integrations import _seams, sglang
from dsl_kernels.integrations import vllm as plugin
from dsl_kernels.problems.layouts import (
    pack_fp8_tokens,
    pack_index_keys,
    pack_v4_pages,
    pack_v41_pages,
)
from dsl_kernels_lab import oracles
from dsl_kernels_lab.layouts import unpack_v4_pages, unpack_v41_pages

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))
import engine_stubs  # noqa: E402
from engine_stubs import STATE  # noqa: E402

HEADS, TOPK, BLOCK, T = 16, 96, 64, 5


@pytest.fixture(autouse=True)
def on_the_cpu(monkeypatch) -> None:
    monkeypatch.setenv("DSL_KERNELS_EXECUTOR", "interpreter")
    _seams.hopper_or_no_gpu.cache_clear()


def config(ranks: int = 1, heads: int = HEADS, backend: str | None = plugin.BACKEND, rope: int = 64) -> Any:
    return SimpleNamespace(
        parallel_config=SimpleNamespace(decode_context_parallel_size=ranks),
        attention_config=SimpleNamespace(backend=backend and SimpleNamespace(name=backend)),
        model_config=SimpleNamespace(
            get_num_attention_heads=lambda parallel: heads,
            hf_text_config=SimpleNamespace(kv_lora_rank=512, qk_rope_head_dim=rope),
        ),
    )


@pytest.fixture
def vllm(monkeypatch) -> None:
    engine_stubs.install(monkeypatch, "vllm")
    STATE.config = config()


def attention() -> ModuleType:
    plugin.register()
    return importlib.import_module("dsl_kernels.integrations.vllm.attention")


def test_the_entry_points_are_functions() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert set(groups) == {"vllm.general_plugins", "sglang.srt.plugins"}
    for group in groups.values():
        ((name, path),) = group.items()
        module, function = path.split(":")
        assert name == "dsl_kernels" and callable(getattr(importlib.import_module(module), function))


def test_vllm_gets_a_backend_and_a_layer(vllm, caplog) -> None:
    plugin.register()
    path = STATE.backends[plugin.BACKEND]
    module, _, name = path.rpartition(".")
    backend = getattr(importlib.import_module(module), name)
    assert backend.get_name() == plugin.BACKEND and backend.is_mla() and backend.is_sparse()
    assert backend.get_supported_head_sizes() == [576, 512] and backend.supports_sink()
    assert backend.supports_compute_capability(SimpleNamespace(major=9))
    assert not backend.supports_compute_capability(SimpleNamespace(major=10))
    assert [size.base for size in backend.get_supported_kernel_block_sizes()] == [64]
    assert backend.customize_spec("spec") == ("aligned", "spec")
    builder = backend.get_builder_cls()(None, ["layer"], STATE.config, "cpu")
    assert builder.reorder_batch_threshold == 128 and backend.get_impl_cls().lse_base_on_e
    assert set(STATE.layers) == {"SparseAttnIndexer"} and not caplog.records


@pytest.mark.parametrize(
    ("given", "sink", "reason"),
    [
        (config(), True, None),
        (config(ranks=2, heads=64), False, None),
        (config(heads=12), False, None),
        (config(ranks=4, heads=64), False, "heads a rank, not 256"),
        (config(rope=0), False, None),
        (config(rope=32), False, r"not \(512, 32\)"),
        (config(ranks=2), True, "sinks"),
    ],
)
def test_vllm_is_told_what_is_not_served(vllm, given, sink, reason) -> None:
    backend = attention().DslKernelsBackend
    STATE.config = given
    reasons = backend.supports_combination(576, torch.bfloat16, "auto", 64, True, sink, True, False, None)
    assert reasons is None if reason is None else re.search(reason, reasons)


def blocks(kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache of 4 blocks with 6 rows between them, full of NaN, and its rows as ids count them."""
    generator = torch.Generator().manual_seed(1)
    apart = BLOCK + 6
    rows = torch.randn(4 * apart, 576, generator=generator).bfloat16()
    if kind == "fp8":
        rows = pack_fp8_tokens(rows[:, :512], rows[:, 512:])
    rows = rows.view(4, apart, -1)
    rows[:, BLOCK:] = 127 if kind == "fp8" else math.nan
    return rows[:, :BLOCK], rows.reshape(4 * apart, -1)


def queries(joined: bool) -> Any:
    """Queries as vLLM passes them: two tensors, the second a slice, or joined over a context's ranks."""
    generator = torch.Generator().manual_seed(2)
    nope, wide = (torch.randn(T, HEADS, n, generator=generator).bfloat16() for n in (512, 192))
    pair = nope, wide[..., 128:]
    return torch.cat(pair, dim=2) if joined else pair


def ids() -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    drawn = torch.randint(0, BLOCK, (T, TOPK), generator=generator) + (BLOCK + 6) * torch.randint(
        0, 4, (T, TOPK), generator=generator
    )
    drawn[1, 70:], drawn[3] = -1, -1
    return drawn.int()


def require_attention(kind: str, rows: torch.Tensor, sink: torch.Tensor | None, got: dict) -> None:
    nope, rope = queries(False)
    inputs = {
        "q_nope": nope, "q_pe": rope, "indices": ids(), "sm_scale": 0.06, "lse_scale": math.log(2),
        "empty_lse": -math.inf,
        "attn_sink": torch.full((HEADS,), -math.inf) if sink is None else sink,
    }  # fmt: skip
    inputs |= {"kv_cache": rows} if kind == "fp8" else {"ckv": rows[:, :512], "kpe": rows[:, 512:]}
    problem = oracles.get("sparse_mla")
    result = problem.compare(kind, inputs, got, problem.reference(kind, inputs))
    assert result.ok, result.failures


@pytest.mark.parametrize("kind", ["bf16", "fp8"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_vllm_attends(vllm, kind, ranks) -> None:
    STATE.config = config(ranks)
    sink = torch.linspace(-1, 1, HEADS) if ranks == 1 else None
    impl = attention().DslKernelsImpl(
        HEADS // ranks, 576, 0.06, 1, None, None, "auto", None, "decoder", None, sinks=sink
    )
    assert impl.supports_dense_mha_prefill == (sink is None)
    cache, rows = blocks(kind)
    counts = (ids() >= 0).sum(1).int()
    out, lse = impl._forward_mqa_kernel(
        queries(ranks > 1), cache, ids(), counts, layer=None, block_size=BLOCK, is_decode=True
    )
    assert (lse is None) == (ranks == 1)
    if lse is None:
        _, lse = importlib.import_module("dsl_kernels.ops").sparse_mla(
            *queries(False), rows, ids(), sm_scale=0.06, lse_base="e"
        )
    assert not out[3].any() and (lse[3] == -math.inf).all()
    require_attention(kind, rows, sink, {"out": out, "lse": lse})


@pytest.mark.parametrize(("kind", "ranks"), [("bf16", 1), ("bf16", 2), ("fp8", 1), ("fp8", 2)])
def test_vllm_attends_without_rope_dims(vllm, kind, ranks) -> None:
    STATE.config = config(ranks, rope=0)
    impl = attention().DslKernelsImpl(
        HEADS // ranks, 512, 0.06, 1, None, None, "auto" if kind == "bf16" else "fp8_ds_mla", None, "decoder",
        None, qk_rope_head_dim=0,
    )  # fmt: skip
    assert impl.supports_dense_mha_prefill == (kind == "bf16")
    nope = queries(False)[0]
    _, rows = blocks("bf16")
    latent, zeros = rows[:, :512].contiguous(), torch.zeros(len(rows), 64).bfloat16()
    # vLLM writes zeros into the rope dims of the 656-byte rows of such a model.
    wide = latent if kind == "bf16" else pack_fp8_tokens(latent, zeros)
    cache = wide.view(4, BLOCK + 6, -1)[:, :BLOCK]
    q = nope if ranks > 1 else (nope, nope.new_empty(T, HEADS, 0))
    out, _ = impl._forward_mqa_kernel(q, cache, ids(), None, layer=None, block_size=BLOCK, is_decode=True)
    inputs = {
        "q_rows": nope, "ckv": latent, "indices": ids(), "sm_scale": 0.06, "lse_scale": math.log(2),
        "empty_lse": -math.inf, "attn_sink": torch.full((HEADS,), -math.inf),
    }  # fmt: skip
    if kind == "fp8":
        inputs |= {"q_nope": nope, "q_pe": torch.zeros(T, HEADS, 64).bfloat16(), "kv_cache": wide}
    form = "nope" if kind == "bf16" else "fp8"
    problem = oracles.get("sparse_mla")
    wanted = problem.reference(form, inputs)
    result = problem.compare(form, inputs, {"out": out, "lse": wanted["lse"]}, wanted)
    assert result.ok, result.failures


def v4_config(backend: str | None = plugin.BACKEND, cache: str = "fp8_ds_mla", ranks: int = 1) -> Any:
    return SimpleNamespace(
        attention_config=SimpleNamespace(backend=backend and SimpleNamespace(name=backend)),
        cache_config=SimpleNamespace(cache_dtype=cache),
        parallel_config=SimpleNamespace(prefill_context_parallel_size=ranks),
    )


def v4_layer(given: Any) -> type:
    """The class that vLLM's model takes, after its entry of the registry was loaded."""
    plugin.register()
    plugin.register()
    entry = sys.modules["vllm.model_executor.models.registry"].ModelRegistry.models["DeepseekV4ForCausalLM"]
    assert entry.inspect_model_cls() == "inspected"
    for _ in range(2):
        assert entry.load_model_cls() is engine_stubs._BaseRegisteredModel
    return sys.modules["vllm.models.deepseek_v4.nvidia.model"]._select_dsv4_attn_cls(given)


def test_vllm_attends_in_deepseek_v4(vllm) -> None:
    made = v4_layer(v4_config())
    theirs = engine_stubs.DeepseekV4FlashMLAAttention
    assert made is not theirs and issubclass(made, theirs)
    assert [made.get_padded_num_q_heads(n) for n in (1, 8, 12, 32, 64, 96)] == [8, 8, 16, 32, 64, 128]
    with pytest.raises(ValueError, match="129 heads"):
        made.get_padded_num_q_heads(129)
    layer = made()
    generator = torch.Generator().manual_seed(6)
    windows, more = (torch.randn(*n, 512, generator=generator) for n in ((5, 64), (20, 2)))
    layer.window, layer.scale = pack_v4_pages(windows), 0.05
    layer.attn_sink = torch.linspace(-1, 1, 16)
    drawn = lambda most: torch.randint(0, most, (T, 1, 70), generator=generator).int()  # noqa: E731
    window = SimpleNamespace(
        decode_swa_indices=drawn(320), decode_swa_lens=torch.arange(T, dtype=torch.int32) * 14
    )
    chosen = SimpleNamespace(indices=drawn(40), lens=torch.arange(T, dtype=torch.int32).flip(0) * 10)
    q = torch.randn(T, 16, 512, generator=generator).bfloat16()
    rows, others = (unpack_v4_pages(pack_v4_pages(each)).view(-1, 512).double() for each in (windows, more))
    for alone in (True, False):
        out = torch.full((T, 16, 512), 7).bfloat16()
        layer._forward_decode(q, pack_v4_pages(more), window, chosen, alone, out)
        for t in range(T):
            keys = rows[window.decode_swa_indices[t, 0, : window.decode_swa_lens[t]].long()]
            if not alone:
                keys = torch.cat([keys, others[chosen.indices[t, 0, : chosen.lens[t]].long()]])
            if not len(keys):
                assert not out[t].any()
                continue
            scores = 0.05 * (q[t].double() @ keys.T)
            share = 1 + torch.exp(layer.attn_sink - scores.logsumexp(1))
            wanted = scores.softmax(1) @ keys / share[:, None]
            assert (out[t].double() - wanted).norm() < 3e-3 * wanted.norm()
    # A prompt drops FlashMLA's largest logits, so they are not computed.
    prefill = sys.modules["vllm.models.deepseek_v4.nvidia.flashmla"].flash_mla_sparse_fwd
    flat = torch.randn(50, 1, 512, generator=generator).bfloat16()
    assert prefill(q, flat, drawn(50), 0.05, out=torch.empty_like(q))[1] is None
    assert STATE.calls == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (v4_config(backend=None), None),
        (v4_config(backend="FLASHMLA_SPARSE"), None),
        (v4_config(cache="nvfp4_ds_mla"), "the cache is nvfp4_ds_mla"),
        (v4_config(ranks=2), "spread over ranks"),
    ],
)
def test_vllm_keeps_deepseek_v4_that_is_not_served(vllm, caplog, given, reason) -> None:
    assert v4_layer(given) is engine_stubs.DeepseekV4FlashMLAAttention
    assert [reason in r.message for r in caplog.records] == ([True] if reason else [])
    sys.modules["vllm.models.deepseek_v4.nvidia.flashmla"].flash_mla_sparse_fwd(0, 0, 0, 0)
    assert STATE.calls == ["prefill"]


def test_a_deepseek_v4_that_does_not_fit_is_left_as_it_is(vllm, monkeypatch, caplog) -> None:
    flashmla = sys.modules["vllm.models.deepseek_v4.nvidia.flashmla"]
    monkeypatch.setattr(flashmla, "DeepseekV4FlashMLAAttention", type("Other", (), {}))
    assert v4_layer(v4_config()) is engine_stubs.DeepseekV4FlashMLAAttention
    assert ["get_padded_num_q_heads" in message for message in caplog.messages] == [True]
    monkeypatch.delattr(sys.modules["vllm.models.deepseek_v4.nvidia.model"], "_select_dsv4_attn_cls")
    caplog.clear()
    module = importlib.import_module("dsl_kernels.integrations.vllm.deepseek_v4")
    module.take_over.cache_clear()
    module.take_over("vllm.models.deepseek_v4")
    assert ["_select_dsv4_attn_cls" in message for message in caplog.messages] == [True]


def test_vllm_attention_refuses_what_would_be_wrong(vllm) -> None:
    STATE.config = config(2)
    make = attention().DslKernelsImpl
    with pytest.raises(NotImplementedError, match="sinks with decode context"):
        make(8, 576, 0.06, 1, None, None, "auto", None, "decoder", None, sinks=torch.zeros(8))
    with pytest.raises(NotImplementedError, match="sliding window"):
        make(8, 576, 0.06, 1, None, 128, "auto", None, "decoder", None)


def scoring(gaps: bool = False) -> dict[str, Any]:
    """Arguments with which vLLM's op calls the scoring of a decode step."""
    generator = torch.Generator().manual_seed(4)
    keys = pack_index_keys(torch.randn(6, 64, 128, generator=generator))
    if gaps:
        wide = torch.zeros(6, 65, 1, 132, dtype=torch.uint8)
        wide[:, :64] = keys
        keys = wide[:, :64]
    q = torch.randn(2, 1, 64, 128, generator=generator).clamp(-2, 2).to(torch.float8_e4m3fn)
    return {
        "q": (q, None), "kv_cache": keys, "weights": torch.randn(2, 64, generator=generator),
        "context_lens": torch.tensor([[150], [70]]).int(),
        "block_tables": torch.tensor([[4, 0, 2], [1, 5, 3]]).int(),
        "schedule_metadata": None, "max_model_len": 192,
    }  # fmt: skip


def layer(**changes: Any) -> Any:
    plugin.register()
    made = STATE.layers["SparseAttnIndexer"]
    return made(None, 128, "ue8m0", 48, 128, 4096, 4096, None, **changes)


def test_vllm_indexer_scores_and_selects(vllm) -> None:
    assert layer().topk_backend == "dsl_kernels"
    engine = sys.modules["vllm.model_executor.layers.sparse_attn_indexer"]
    call = scoring()
    logits = engine.fp8_fp4_paged_mqa_logits(**call, indices=None)
    inputs = {
        "q": call["q"][0],
        "k_cache": call["kv_cache"].view(6, -1),
        "weights": call["weights"].view(2, 1, 64),
    }
    inputs |= {"seq_lens": call["context_lens"], "block_table": call["block_tables"], "skip_below": 0}
    problem = oracles.get("lightning_indexer")
    result = problem.compare(
        "decode", inputs, {"logits": logits.view(2, 1, -1)}, problem.reference("decode", inputs)
    )
    assert result.ok, result.failures
    buffer = torch.full((4, 64), 7, dtype=torch.int32)
    engine.get_indexer_topk("dsl_kernels")(logits, call["context_lens"], 1, buffer[:2, :48], 48, 192)
    rows = [
        torch.sort(row[:n], descending=True, stable=True).indices[:48]
        for row, n in zip(logits, (150, 70), strict=True)
    ]
    assert buffer[:2, :48].tolist() == [row.sort().values.tolist() for row in rows]
    assert (buffer[2:] == 7).all() and (buffer[:, 48:] == 7).all() and STATE.calls == []
    # Another layer's selection stays with vLLM.
    engine.get_indexer_topk("auto")()
    assert STATE.calls == ["selection auto"]


def test_vllm_selects_for_prompts_and_drafts(vllm) -> None:
    layer()
    logits = torch.randn(4, 200, generator=torch.Generator().manual_seed(5))
    out, starts, ends = (
        torch.empty(4, 48, dtype=torch.int32),
        torch.zeros(4).int(),
        torch.tensor([200, 60, 3, 0]).int(),
    )
    sys.modules["vllm._custom_ops"].top_k_per_row_prefill(logits, starts, ends, out, 4, 200, 1, 48)
    assert out[0].tolist() == logits[0].topk(48).indices.sort().values.tolist()
    assert out[2].tolist() == [0, 1, 2] + [-1] * 45 and (out[3] == -1).all()
    # Lengths of the last of two rows per sequence, and of each row.
    engine = sys.modules["vllm.model_executor.layers.sparse_attn_indexer"]
    for lengths in ([[200], [31]], [[199, 200], [30, 31]], [199, 200, 30, 31]):
        out.fill_(7)
        given = torch.tensor(lengths).int()
        engine.get_indexer_topk("dsl_kernels")(logits, given, 1 if given.dim() == 1 else 2, out, 48, 200)
        assert out[0].tolist() == logits[0, :199].topk(48).indices.sort().values.tolist()
        assert out[3].tolist() == [*range(31)] + [-1] * 17 and STATE.calls == []


def test_vllm_serves_what_ours_refuses(vllm, caplog) -> None:
    layer()
    engine = sys.modules["vllm.model_executor.layers.sparse_attn_indexer"]
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            engine.fp8_fp4_paged_mqa_logits(**{**scoring(), "q": (scoring()["q"][0], torch.zeros(1))})
        # Another layout is refused again, but logged only once.
        engine.fp8_fp4_paged_mqa_logits(**{**scoring(), "context_lens": torch.zeros(2, 1)})
    assert STATE.calls == ["scores"] * 4
    (record,) = caplog.records
    assert "scoring of a decode step" in record.message and "MXFP8" in record.message
    assert engine.fp8_fp4_paged_mqa_logits(**scoring()) is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"use_fp4_cache": True}, "fp4"),
        ({"candidate_blocks": torch.zeros(1)}, "blocks before tokens"),
        ({"config": config(2)}, "spread over ranks"),
        ({"config": config(backend="FLASHMLA_SPARSE")}, None),
        ({"config": config(backend=None)}, None),
    ],
)
def test_vllm_keeps_layers_that_are_not_served(vllm, caplog, change, reason) -> None:
    STATE.config = change.pop("config", STATE.config)
    made = layer(**change)
    assert made.topk_backend == "auto"
    assert [reason in r.message for r in caplog.records] == ([True] if reason else [])
    sys.modules["vllm.model_executor.layers.sparse_attn_indexer"].fp8_fp4_paged_mqa_logits(**scoring())
    assert STATE.calls == ["scores"]


def test_a_vllm_that_does_not_fit_is_left_as_it_is(vllm, monkeypatch, caplog) -> None:
    sparse = sys.modules["vllm.model_executor.layers.attention.sparse_mla_attention"]
    changed = type("SparseMLACommonImpl", (), {"_forward_mqa_kernel": lambda self, q, kv_cache, topk: None})
    monkeypatch.setattr(sparse, "SparseMLACommonImpl", changed)
    monkeypatch.delattr(sys.modules["vllm.model_executor.layers.sparse_attn_indexer"], "get_indexer_topk")
    plugin.register()
    assert STATE.backends == {} and STATE.layers == {}
    assert ["(q, kv_cache, topk)" in caplog.messages[0], "get_indexer_topk" in caplog.messages[1]] == [
        True,
        True,
    ]


def test_no_vllm_is_no_error(monkeypatch, caplog) -> None:
    engine_stubs.install(monkeypatch, "vllm")
    monkeypatch.setitem(sys.modules, "vllm", None)
    plugin.register()
    assert len(caplog.records) == 3 and STATE.backends == {}


def test_on_another_gpu_the_engine_serves(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (10, 0))
    taken = _seams.Taken("a function", lambda: "ours", logging.getLogger("x"))
    assert taken(lambda: "theirs") == "theirs"
    _seams.hopper_or_no_gpu.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert taken(lambda: "theirs") == "ours"
    _seams.hopper_or_no_gpu.cache_clear()


IN_VLLM = """
from dsl_kernels.integrations import vllm as plugin
plugin.register()
import torch
from vllm.model_executor.custom_op import op_registry_oot
from vllm.platforms.interface import DeviceCapability
from vllm.v1.attention.backends.registry import AttentionBackendEnum
backend = AttentionBackendEnum[plugin.BACKEND].get_class()
call = dict(
    head_size=576, dtype=torch.bfloat16, block_size=64, use_mla=True, has_sink=True, use_sparse=True,
    use_mm_prefix=False, use_per_head_quant_scales=False, attn_type="decoder", use_dcp=True,
)
hopper, blackwell = DeviceCapability(9, 0), DeviceCapability(10, 0)
for cache in ("auto", "bfloat16", "fp8_ds_mla"):
    assert backend.validate_configuration(kv_cache_dtype=cache, device_capability=hopper, **call) == []
assert backend.validate_configuration(kv_cache_dtype="auto", device_capability=blackwell, **call)
assert not backend.get_impl_cls().__abstractmethods__
assert op_registry_oot["SparseAttnIndexer"].__name__ == "DslKernelsSparseAttnIndexer"
from vllm.model_executor.models.registry import ModelRegistry
for name in ("DeepseekV4ForCausalLM", "DeepseekV41ForCausalLM"):
    assert type(ModelRegistry.models[name]).__module__ == "dsl_kernels.integrations.vllm.deepseek_v4"
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_itself_takes_the_backend_and_the_layer() -> None:
    done = subprocess.run([sys.executable, "-c", IN_VLLM], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_a_module_that_does_not_import_says_why(tmp_path, monkeypatch) -> None:
    (tmp_path / "engine_of_test").mkdir()
    (tmp_path / "engine_of_test/__init__.py").write_text("")
    (tmp_path / "engine_of_test/layers.py").write_text("import something_that_is_missing\n")
    monkeypatch.syspath_prepend(tmp_path)
    mismatch = _seams.Seam("engine_of_test.layers.Layer.forward", "").mismatch()
    assert mismatch is not None and "No module named 'something_that_is_missing'" in mismatch


@pytest.fixture
def hooks(monkeypatch) -> dict[str, Any]:
    """The hooks that the plugin registers with SGLang, by the last component of their targets."""
    engine_stubs.install(monkeypatch, "sglang")
    for name, module in engine_stubs.modules("sgl_kernel").items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setenv("SGLANG_PLUGINS", "other, dsl_kernels")
    sglang.register()
    return {target.rpartition(".")[2]: hook for target, hook in STATE.hooks.items()}


def refused(*args: Any, **kwargs: Any) -> None:
    raise AssertionError("SGLang's own function was called")


def test_sglang_attends(hooks) -> None:
    assert len(hooks) == len(sglang.HOOKS)
    backend = SimpleNamespace(dsa_kv_cache_store_fp8=True, kv_cache_dim=656)
    heads = SimpleNamespace(tp_q_head_num=HEADS, head_dim=576)
    for kind in ("bf16", "fp8"):
        _, rows = blocks(kind)
        if kind == "bf16":
            out = hooks["_forward_flashmla_sparse"](
                refused, backend, q_all=queries(True), kv_cache=rows.view(-1, 1, 576), v_head_dim=512,
                page_table_1=ids(),
                sm_scale=0.06, topk_length=torch.full((T,), TOPK).int(),
            )  # fmt: skip
        else:
            out = hooks["_forward_flashmla_kv"](
                refused, backend, q_all=queries(True), kv_cache=rows, v_head_dim=512, sm_scale=0.06,
                layer=heads,
                metadata=None, page_table_1=ids(),
            )[:, 0]  # fmt: skip
        _, lse = importlib.import_module("dsl_kernels.ops").sparse_mla(
            *queries(False), rows, ids(), sm_scale=0.06, lse_base="e"
        )
        require_attention(kind, rows, None, {"out": out, "lse": lse})
    backend.dsa_kv_cache_store_fp8 = False
    call = (queries(True), blocks("bf16")[1], 512, 0.06, heads, None, ids())
    assert hooks["_forward_flashmla_kv"](lambda *args: "theirs", backend, *call) == "theirs"


def test_sglang_says_how_many_ids_count(hooks) -> None:
    """Lengths of another number of queries are not of this call, as in SGLang's own function."""
    rows, counted = blocks("bf16")[1], torch.arange(1, T + 1).int()
    attend = importlib.import_module("dsl_kernels.ops").sparse_mla
    for lengths, read in ((counted, counted), (torch.ones(T + 1).int(), None)):
        out = hooks["_forward_flashmla_sparse"](
            refused, None, q_all=queries(True), kv_cache=rows.view(-1, 1, 576), v_head_dim=512,
            page_table_1=ids(), sm_scale=0.06, topk_length=lengths,
        )  # fmt: skip
        wanted, _ = attend(queries(True), None, rows, ids(), sm_scale=0.06, topk_length=read)
        assert torch.equal(out, wanted)


def test_sglang_attends_in_deepseek_v4(hooks) -> None:
    generator = torch.Generator().manual_seed(8)
    rows = torch.randn(6, 64, 512, generator=generator)
    q = torch.randn(T, 1, 64, 512, generator=generator).bfloat16()
    chosen = torch.randint(0, 384, (T, 1, 64), generator=generator).int()
    lengths, sink = torch.arange(T, dtype=torch.int32) * 13, torch.linspace(-1, 1, 64)
    call = {
        "q": q, "head_dim_v": 512, "block_table": None, "cache_seqlens": None, "softmax_scale": 0.05,
        "tile_scheduler_metadata": None, "is_fp8_kvcache": True, "indices": chosen, "topk_length": lengths,
        "attn_sink": sink, "extra_k_cache": None, "extra_indices_in_kvcache": None,
        "extra_topk_length": None,
    }  # fmt: skip
    decode = hooks["flash_mla_with_kvcache"]
    for pack, unpack, legacy in (
        (pack_v4_pages, unpack_v4_pages, True),
        (pack_v41_pages, unpack_v41_pages, False),
    ):
        cache = pack(rows)
        out, lse = decode(refused, k_cache=cache, use_legacy=legacy, **call)
        keys = unpack(cache).view(-1, 512)
        for t in range(T):
            own = keys[chosen[t, 0, : lengths[t]].long()].double()
            if not len(own):
                assert not out[t].any() and (lse[t] == math.inf).all()
                continue
            scores = 0.05 * (q[t, 0].double() @ own.T)
            wanted = scores.softmax(1) @ own / (1 + torch.exp(sink - scores.logsumexp(1)))[:, None]
            assert (out[t, 0].double() - wanted).norm() < 3e-3 * wanted.norm()
    # Pages of V4.1 whose scales are together, formats by name, and rows of DeepSeek-V3.2 are SGLang's.
    for changes in (
        {"k_cache": pack_v41_pages(rows, planar=True), "use_legacy": True},
        {"k_cache": pack_v4_pages(rows), "kv_format": "V4"},
        {"k_cache": torch.zeros(6, 64, 1, 656, dtype=torch.uint8)},
    ):
        assert decode(lambda **kwargs: "theirs", **{**call, **changes}) == "theirs"
    assert decode(lambda *args: "theirs", q, pack_v4_pages(rows), None, None, 512) == "theirs"
    flat = torch.randn(384, 1, 512, generator=generator).bfloat16()
    prompt = partial(
        hooks["flash_mla_sparse_fwd"], refused, q=q[:, 0], kv=flat, indices=chosen, sm_scale=0.05, d_v=512,
        attn_sink=sink, topk_length=lengths,
    )  # fmt: skip
    (out, most, lse), (_, _, natural) = prompt(), prompt(use_legacy=False)
    assert most is None and torch.allclose(natural[1:], lse[1:] * math.log(2)) and (lse[0] == math.inf).all()
    own = flat[chosen[1, 0, : lengths[1]].long(), 0].double()
    scores = 0.05 * (q[1, 0].double() @ own.T)
    wanted = scores.softmax(1) @ own / (1 + torch.exp(sink - scores.logsumexp(1)))[:, None]
    assert (out[1].double() - wanted).norm() < 3e-3 * wanted.norm()


def test_sglang_scores_and_selects(hooks) -> None:
    call = scoring()
    score = hooks["resolve_fp8_paged_mqa_logits_fn"](lambda: refused)
    logits = score(
        call["q"][0], call["kv_cache"], call["weights"], call["context_lens"], call["block_tables"], None,
        192,
        clean_logits=False,
    )  # fmt: skip
    lengths, pages = call["context_lens"].view(-1), call["block_tables"]
    metadata = SimpleNamespace(real_page_table=pages, page_size=64)
    chosen = hooks["fast_topk_v2"](refused, logits, lengths, 48)
    slots = hooks["_topk_transform_v2_paged"](refused, logits, lengths, 48, metadata)
    assert slots.tolist() == [
        [int(table[j // 64]) * 64 + j % 64 for j in row]
        for table, row in zip(pages, chosen.tolist(), strict=True)
    ]
    offsets = torch.tensor([10, 500]).int()
    ragged = hooks["_topk_transform_v2_ragged"](refused, logits, lengths, 48, offsets, None)
    assert torch.equal(ragged, chosen + offsets[:, None])
    assert hooks["fast_topk_v2"](lambda *args: "theirs", logits.double(), lengths, 48) == "theirs"
    # Queries that are not a tensor are left for DeepGEMM to refuse.
    prompt = hooks["resolve_fp8_mqa_logits_fn"](lambda: lambda *args, **kwargs: "theirs")
    assert prompt(None, (None, None), None, None, None, clean_logits=False, max_seqlen_k=64) == "theirs"


def test_sglang_is_left_alone_unless_it_names_the_plugin(monkeypatch, caplog) -> None:
    engine_stubs.install(monkeypatch, "sglang")
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    sglang.register()
    assert STATE.hooks == {}
    monkeypatch.setenv("SGLANG_PLUGINS", "dsl_kernels")
    utils = sys.modules["sglang.srt.layers.attention.dsa.utils"]
    monkeypatch.setattr(utils, "resolve_fp8_mqa_logits_fn", lambda new: None)
    monkeypatch.setitem(sys.modules, "sgl_kernel", None)
    sglang.register()
    assert len(STATE.hooks) == len(sglang.HOOKS) - 4
    assert len([m for m in caplog.messages if "leaves out a hook" in m]) == 4
    monkeypatch.delattr(sys.modules["sglang.srt.plugins.hook_registry"], "HookType")
    engine_stubs.clear()
    sglang.register()
    assert STATE.hooks == {} and "takes over nothing of this SGLang" in caplog.messages[-1]


def test_stubs_that_differ_from_an_engine_are_named(tmp_path) -> None:
    script = importlib.util.module_from_spec(
        spec := importlib.util.spec_from_file_location("stubs_script", ROOT / "scripts/engine_stubs.py")
    )
    spec.loader.exec_module(script)
    source = "def fast_topk_v2(score, lengths, topk, row_starts=None, more=1): ...\n"
    (tmp_path / "sgl_kernel").mkdir()
    (tmp_path / "sgl_kernel/top_k.py").write_text(
        source + "def fast_topk_transform_fused(score, lengths, table): ...\n"
    )
    (tmp_path / "sgl_kernel/__init__.py").write_text(
        "from sgl_kernel.top_k import fast_topk_v2\nfrom .top_k import fast_topk_transform_fused\n"
    )
    assert script.differences("sgl_kernel", tmp_path) == [
        "sgl_kernel.fast_topk_v2: takes (score, lengths, topk, row_starts, more), the stub says "
        "(score, lengths, topk, row_starts)",
        "sgl_kernel.fast_topk_transform_fused: takes (score, lengths, table), the stub says "
        "(score, lengths, page_table_size_1, cu_seqlens_q, topk, row_starts)",
        "sgl_kernel.fast_topk_transform_ragged_fused: not there",
    ]
