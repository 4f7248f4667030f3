"""scripts/vllm_engine.py without an engine: its float32 model, and what it says of two runs."""

from __future__ import annotations

import gc
import math
import weakref
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import vllm_engine as script
import vllm_v4

HEADS = 2


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for each in (script, vllm_v4):
        monkeypatch.setattr(each, "DEVICE", "cpu")
    monkeypatch.setattr(script, "LAYERS", 1)
    monkeypatch.setattr(script, "LENGTHS", (3, 6))


def model() -> dict[str, torch.Tensor]:
    return {name: weight.float() for name, weight in script.weights(HEADS, 1)}


def test_the_reference_attends_to_earlier_tokens_alone() -> None:
    first, second = (script.reference(model(), HEADS, [5, 9, 70, last]) for last in (11, 12))
    assert torch.equal(first[:3], second[:3]) and not torch.equal(first[3], second[3])
    assert torch.allclose(first.exp().sum(-1), torch.ones(4))
    # Positions count: the same tokens in another order give another last row.
    swapped = script.reference(model(), HEADS, [9, 5, 70, 11])
    assert not torch.allclose(first[3], swapped[3], atol=1e-3)


def test_a_rotation_keeps_the_norm_and_depends_on_distance_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, 1, script.ROPE, generator=generator).unbind()
    a, b = (script._rope(each.expand(9, -1).double()) for each in (a, b))
    assert torch.allclose(a.norm(dim=-1), a[0].norm())
    products = a @ b.T
    assert products[5, 3] == pytest.approx(products[8, 6].item()) != pytest.approx(products[8, 3].item())


def test_the_same_tokens_count_from_the_first_on() -> None:
    def decoded(*tokens: int) -> list[list[float]]:
        return [list(tokens), [-1.0 - token for token in tokens]]

    ours = [[decoded(4, 7, 8), decoded(1, 1, 1)]] * 2
    theirs = [[decoded(4, 7, 9), decoded(2, 1, 1)], [decoded(4, 7, 9), decoded(2, 1, 3)]]
    row = script.compared(HEADS, ours, theirs)
    assert (row["tokens"], row["same"], row["tokens_with_reference"]) == (6, 2, 2)
    assert row["apart"] == {"mean": 0.0, "most": 0.0}
    assert row["same_again"] == {"ours": 6, "theirs": 5}
    assert row["repeats"] == {"ours": True, "theirs": False}
    prompt = script.prompts(script.LENGTHS)[0]
    wanted = script.reference(model(), HEADS, [*prompt, 4])
    off = [abs(-5.0 - wanted[2, 4].item()), abs(-8.0 - wanted[3, 7].item())]
    assert row["error"]["ours"]["most"] == pytest.approx(max(off))
    assert row["error"]["ours"] == row["error"]["theirs"]
    assert not math.isnan(row["error"]["ours"]["mean"])


def test_an_engine_says_what_failed_and_what_the_plugin_left_to_vllm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script.subprocess, "Popen", lambda *_, **__: SimpleNamespace(wait=lambda: 0))
    engine = script.Engine(tmp_path / "model", script.OURS, "bfloat16")
    engine.log.write_text("INFO dsl_kernels scores and selects\nWARNING dsl_kernels does not serve scoring\n")
    assert engine.refused() == ["WARNING dsl_kernels does not serve scoring"]
    with pytest.raises(RuntimeError, match="model_bfloat16_DSLKERNELS_MLA_SPARSE.log:\nINFO"):
        engine.finished()
    engine.out.write_text("[1]")
    assert engine.finished() == [1]


def test_a_sink_takes_its_share_of_the_float64_attention_of_v4() -> None:
    generator = torch.Generator().manual_seed(0)
    q, keys, sink = (torch.randn(*n, generator=generator) for n in ((4, 512), (9, 512), (4,)))
    scores = torch.cat([q @ keys.T / 512**0.5, sink[:, None]], 1).double()
    wanted = scores.softmax(1)[:, :9] @ keys.double()
    torch.testing.assert_close(vllm_v4.attended(q, keys, sink), wanted, rtol=1e-6, atol=1e-6)
    assert not vllm_v4.attended(q, keys[:0], sink).any()


@pytest.mark.parametrize(("package", "groups"), (("deepseek_v4", 150), ("deepseek_v41", 300)))
def test_steps_of_v4_hold_the_rows_that_their_metadata_name(package: str, groups: int) -> None:
    prompt = vllm_v4.Prompt(package, 600, 8)
    # Token 599 sees 128 tokens and all groups; the first sees itself, in a page that the table names.
    assert len(prompt.keys(599)) == 128 + groups and len(prompt.keys(0)) == 1
    page = prompt.read(prompt.window)[prompt.table[0, 0] * vllm_v4.PAGE]
    assert torch.equal(prompt.keys(0)[0], page)
    few = 401 // prompt.ratio
    assert (prompt.picked[400, :few].sort().values == torch.arange(few)).all()
    decode = vllm_v4.Decode(package, 3, 8)
    assert not len(decode.keys(0)) and len(decode.keys(2)) == sum(each[2] for each in decode.lengths)
    # A selected position is in the page that the table of its query names, and the others are padding.
    last = int(decode.lengths[1][2]) - 1
    at = int(decode.picked[2, last])
    row = decode.table[2, at // decode.page] * decode.page + at % decode.page
    assert torch.equal(decode.keys(2)[-1], decode.rows[1][row])
    assert (decode.more[2, 0, last + 1 :] == -1).all()
    out = torch.stack([vllm_v4.attended(decode.q[t], decode.keys(t), decode.sink) for t in range(3)])
    assert decode.error(out) < 1e-12
    out[0, 0, 0] = 0.5
    assert decode.error(out) == pytest.approx(0.5)


def test_a_captured_call_keeps_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph reads its call's tensors where they were, so they must not go before the graph."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", SimpleNamespace)
    monkeypatch.setattr(torch.cuda, "graph", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: SimpleNamespace())
    read = torch.ones(3)
    gone = weakref.ref(read)
    replayed = vllm_v4.captured(partial(torch.sum, read))
    del read
    gc.collect()
    assert gone() is not None
    del replayed
    gc.collect()
    assert gone() is None
