"""Torch ops on the CPU executor: results, out= forms, opcheck, torch.compile, and every kind of bad input."""

from __future__ import annotations

import contextlib
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch

from dsl_kernels import dsa, executors, problems, registry, variants
from dsl_kernels.errors import (
    ArgumentTypeError,
    DslKernelError,
    ExecutorUnavailableError,
    InvalidArgumentError,
    LaunchError,
    ResidencyError,
    UnknownNameError,
    UnsupportedArchError,
)
from dsl_kernels.kernels.sparse_mla.forms import PAGED, PAGED_BYTES, split_cache
from dsl_kernels.ops import (
    Workspace,
    _base,
    lightning_indexer,
    lightning_indexer_prefill,
    sparse_mla,
    topk_selector,
    window_ids,
)
from dsl_kernels.problems.binding import Bound
from dsl_kernels.problems.layouts import pack_v4_pages
from dsl_kernels_lab import oracles, steps
from dsl_kernels_lab.oracles.topk_selector import draw
from dsl_kernels_lab.verification import trial

CPU = {"executor": "interpreter"}


def drawn(op: str, name: str) -> tuple[dict, dict]:
    problem = oracles.get(op)
    workload = problem.workload(name)
    inputs = trial.draw(op, workload, seed=3)
    return inputs, problem.reference(workload.form, inputs)


def mla_args(inputs: dict) -> tuple:
    return inputs["q_nope"], inputs["q_pe"], inputs["ckv"], inputs["indices"]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("name", ["ids_mixed", "joined_cache", "sink", "fp8_holes"])
def test_sparse_mla(name: str, arch: str) -> None:
    inputs, expected = drawn("sparse_mla", name)
    sink = inputs["attn_sink"] if name == "sink" else None
    kpe = inputs.get("kpe")
    kv = inputs.get("ckv", inputs.get("kv_cache"))
    if name == "joined_cache":
        kv, kpe = kv.as_strided((kv.shape[0], 576), (576, 1)), None
    out, lse = sparse_mla(
        inputs["q_nope"],
        inputs["q_pe"],
        kv,
        inputs["indices"],
        sm_scale=inputs["sm_scale"],
        kpe=kpe,
        attn_sink=sink,
        arch=arch,
        **CPU,
    )
    form = "fp8" if name == "fp8_holes" else "bf16"
    result = oracles.get("sparse_mla").compare(form, inputs, {"out": out, "lse": lse}, expected)
    assert result.ok, result.failures


@pytest.mark.parametrize(
    ("name", "variant", "splits"),
    [
        ("ids_mixed", None, None),
        ("sink", "sparse_mla__tilelang_sm100a__h16_bf16_bt64_cl1_cp_async", 2),
        ("lengths", "sparse_mla__cutedsl_sm90a__h16_bf16_bt64_st2_cl2_sl2", 2),
        ("fp8_holes", None, None),
        ("v4_lengths", "sparse_mla__cutedsl_sm90a__h16_v4_bt64_st2_cl1", 1),
        ("real_h64", "sparse_mla__cutedsl_sm90a__h64_bf16_bt64_st2_cl1_hb64", 3),
        ("real_h64", "sparse_mla__cutedsl_sm100a__h64_bf16_bt64_cl1_cp_async", 3),
        ("real_h128", "sparse_mla__cutedsl_sm100a__h128_bf16_bt128_cl1_gather4", 2),
    ],
)
def test_the_largest_scores_are_true_maxima(name: str, variant: str | None, splits: int | None) -> None:
    """Whatever reference a softmax uses: along each query's ids scores rise slowly, so it lags."""
    problem = oracles.get("sparse_mla")
    workload = problem.workload(name)
    if workload.tier == "real":
        sizes = {"t": 2, "topk": 500, "n": 700}
        workload = replace(workload, name=f"maxima_{name}", params={**workload.params, **sizes})
    inputs = problem.make(workload, torch.Generator().manual_seed(4))
    queries = [inputs[n] for n in ("q_rows", "q_nope", "q_pe") if n in inputs]
    if workload.tier == "real":
        # Keys of one direction that grow from token to token, by less than eight powers of two per tile.
        steps = torch.linspace(0, 12, 700)[:, None]
        inputs["ckv"].copy_(steps / 512 / inputs["sm_scale"])
        inputs["kpe"].zero_()
        inputs["q_nope"].copy_(torch.ones_like(inputs["q_nope"]))
        inputs["indices"].copy_(inputs["indices"].sort(1).values)
    given = {n: inputs[n] for n in ("kpe", "attn_sink", "sm_scale") if n in inputs}
    for length in ("topk_length", "extra_topk_length"):
        if inputs.get(f"has_{length.replace('topk_length', 'lengths')}"):
            given[length] = inputs[length]
    if workload.form in PAGED:
        width = PAGED_BYTES[workload.form]
        kv = inputs["kv_pages"].unflatten(1, (inputs["page_size"], width))
        extra = inputs["extra_kv_pages"].unflatten(1, (inputs["extra_page_size"], width))
        given |= {"extra_kv": extra, "extra_indices": inputs["extra_indices"]}
        planar = workload.params.get("planar")
        given["row_format"] = f"{workload.form}_planar" if planar else workload.form
    else:
        kv = inputs.get("ckv", inputs.get("kv_cache"))
    t, heads = queries[0].shape[:2]
    # A softmax with all weight on the largest score: its lse is that score.
    sharp = {
        **inputs,
        "sm_scale": inputs["sm_scale"] * 2.0**40,
        "lse_scale": math.log(2),
        "empty_lse": -math.inf,
    }
    wanted = problem.reference(workload.form, sharp)["lse"] / 2.0**40
    arguments = (*queries, None)[:2], kv, inputs["indices"]
    most = torch.zeros(t, heads + 3)[:, 1 : heads + 1]
    options = {**given, "splits": splits, "variant": variant, **CPU}
    if variant is not None:
        options["arch"] = "sm_100a" if "sm100a" in variant else "sm_90a"
    out, lse = sparse_mla(*arguments[0], *arguments[1:], max_logits=most, **options)
    torch.testing.assert_close(most.double(), wanted, rtol=1e-6, atol=1e-7)
    plain = sparse_mla(*arguments[0], *arguments[1:], **options)
    assert torch.equal(out, plain[0]) and torch.equal(lse, plain[1])
    with_out = sparse_mla(
        *arguments[0], *arguments[1:], max_logits=most, out=torch.zeros_like(out), **options
    )
    assert torch.equal(with_out[0], out)


def test_the_largest_scores_of_equal_ones_and_of_none() -> None:
    """The maximum of equal scores, also of zero, is not their sum; without ids it is -inf."""
    inputs, _ = drawn("sparse_mla", "tiny_h16")
    q = torch.ones_like(inputs["q_nope"])
    q[0, 3] = 0.0
    kv = torch.full_like(inputs["ckv"], 0.125)
    ids = inputs["indices"].clone()
    ids[1] = -1
    most = torch.zeros(2, 16)
    _, lse = sparse_mla(
        q, torch.zeros_like(inputs["q_pe"]), kv, ids, kpe=inputs["kpe"], sm_scale=0.25, empty_lse=math.inf,
        max_logits=most, **CPU,
    )  # fmt: skip
    assert (most[1] == -math.inf).all() and (lse[1] == math.inf).all()
    torch.testing.assert_close(
        most[0], torch.full((16,), 16.0).index_fill(0, torch.tensor(3), 0.0), rtol=2e-7, atol=1e-16
    )


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_ids_of_a_window_lie_in_the_pages_of_the_last_tokens(arch: str) -> None:
    """Into rows of a wider buffer, from a slice of a table; lengths are clamped to the table's."""
    lens = torch.tensor([[1, 5], [0, -4], [30, 99]], dtype=torch.int32)
    table = torch.tensor([[7, 3, 5, -9], [-9, -9, -9, -9], [-9, 2, 9, 4]], dtype=torch.int32)
    wide = torch.full((6, 20), 77, dtype=torch.int32)
    result = window_ids(lens, table[:, :4], 18, page_size=8, out=wide[:, 1:19], arch=arch, **CPU)
    assert result.data_ptr() == wide[:, 1:].data_ptr() and (wide[:, [0, 19]] == 77).all()
    by_hand = [
        [56],
        [56, 57, 58, 59, 60],
        [],
        [],
        [*range(20, 24), *range(72, 80), *range(32, 38)],
        [*range(22, 24), *range(72, 80), *range(32, 40)],
    ]
    wanted = torch.tensor([ids + [-1] * (18 - len(ids)) for ids in by_hand])
    assert torch.equal(result.long(), wanted)


BAD_WINDOW = {
    "window": ({"window": 0}, InvalidArgumentError, "window.*1 to 1048576"),
    "page size": ({"page_size": 0}, InvalidArgumentError, "page_size.*1 to"),
    "page size too large":
        ({"page_size": 1 << 30}, InvalidArgumentError, "max_pages . page_size <= 2147483647"),
    "lengths dtype": ({"seq_lens": torch.zeros(2, 1)}, ArgumentTypeError, "seq_lens.*int32"),
    "lengths of rows":
        ({"seq_lens": torch.zeros(2, dtype=torch.int32)}, InvalidArgumentError, "seq_lens.*2 dimensions"),
    "sequences": ({"window_table": torch.zeros(3, 4, dtype=torch.int32)}, InvalidArgumentError,
                  "window_table.*b = 2"),
    "out": ({"out": torch.zeros(2, 5, dtype=torch.int32)}, InvalidArgumentError, "out.*window = 4"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_WINDOW)
def test_window_ids_refuses(case: str) -> None:
    change, error, message = BAD_WINDOW[case]
    args = {
        "seq_lens": torch.zeros(2, 1, dtype=torch.int32),
        "window_table": torch.zeros(2, 4, dtype=torch.int32), "window": 4, **CPU
    }  # fmt: skip
    with pytest.raises(error, match=message):
        window_ids(**{**args, **change})


@pytest.mark.parametrize(("heads", "arch"), [(8, "sm_90a"), (12, "sm_100a"), (64, "sm_90a"), (64, "sm_100a")])
def test_rows_of_528_bytes_in_place(heads: int, arch: str) -> None:
    """Paged, in a wider buffer, between NaN: 512 e4m3 values and four scales, decoded from the bytes."""
    generator = torch.Generator().manual_seed(heads)
    normal = partial(torch.randn, generator=generator)
    values = normal(5, 40, 512).clamp(-4, 4).to(torch.float8_e4m3fn)
    scales = torch.exp2(torch.randint(-3, 3, (5, 40, 4), generator=generator).float())
    wide = torch.full((5, 41, 1, 528), 0x7F, dtype=torch.uint8)
    cache = wide[:, :40]
    cache[..., 0, :512], cache[..., 0, 512:] = values.view(torch.uint8), scales.view(torch.uint8)
    keys = (values.double().view(200, 4, 128) * scales.double().view(200, 4, 1)).view(200, 512)
    q, sink = normal(3, heads, 512).bfloat16(), normal(heads)
    ids = torch.randint(-1, 200, (3, 100), generator=generator, dtype=torch.int32)
    ids[1], ids[2, 4] = -1, 200
    out, lse = sparse_mla(
        q, None, cache.view(torch.float8_e4m3fn), ids, sm_scale=0.05, attn_sink=sink, lse_base="e",
        row_format="nope8", arch=arch, **CPU,
    )  # fmt: skip
    assert not out[1].any() and (lse[1] == -math.inf).all()
    for row in (0, 2):
        taken = keys[ids[row][(ids[row] >= 0) & (ids[row] < 200)].long()]
        scores = 0.05 * (q[row].double() @ taken.T)
        total = scores.logsumexp(1)
        wanted = scores.softmax(1) @ taken / (1 + torch.exp(sink - total))[:, None]
        torch.testing.assert_close(lse[row].double(), total, rtol=1e-5, atol=1e-5)
        assert (out[row].double() - wanted).norm() < 3e-3 * wanted.norm()


@pytest.mark.parametrize("planar", [False, True], ids=["interleaved", "planar"])
@pytest.mark.parametrize(("heads", "arch"), [(8, "sm_90a"), (20, "sm_100a"), (64, "sm_90a"), (64, "sm_100a")])
def test_tokens_of_deepseek_v41_in_place(heads: int, arch: str, planar: bool) -> None:
    """Pages of a wider buffer, between NaN; the reference reads the bytes themselves."""
    generator = torch.Generator().manual_seed(heads)
    normal = partial(torch.randn, generator=generator)
    values = normal(5, 40, 512).clamp(-4, 4).to(torch.float8_e4m3fn)
    exponents = torch.randint(124, 131, (5, 40, 16), generator=generator)
    wide = torch.full((5, 41 * 528), 0x7F, dtype=torch.uint8)
    if planar:
        wide[:, : 40 * 512] = values.view(torch.uint8).flatten(1)
        wide[:, 40 * 512 : 40 * 528] = exponents.byte().flatten(1)
    else:
        tokens = torch.cat([values.view(torch.uint8), exponents.byte()], dim=2)
        wide[:, : 40 * 528] = tokens.flatten(1)
    cache = wide[:, : 40 * 528].unflatten(1, (40, 1, 528))
    factors = torch.exp2(exponents.double() - 127)
    keys = (values.double().view(200, 16, 32) * factors.view(200, 16, 1)).view(200, 512)
    q = normal(3, heads, 512).bfloat16()
    ids = torch.randint(-1, 200, (3, 100), generator=generator, dtype=torch.int32)
    ids[1], ids[2, 4] = -1, 200
    format_, other = ("v41_planar", "v41") if planar else ("v41", "v41_planar")
    call = partial(sparse_mla, q, None, cache, ids, sm_scale=0.05, arch=arch, **CPU)
    call(row_format=other)
    out, lse = call(row_format=format_)
    assert not out[1].any() and (lse[1] == -math.inf).all()
    for row in (0, 2):
        taken = keys[ids[row][(ids[row] >= 0) & (ids[row] < 200)].long()]
        scores = 0.05 * (q[row].double() @ taken.T)
        torch.testing.assert_close(lse[row].double(), scores.logsumexp(1) / math.log(2), rtol=1e-5, atol=1e-5)
        wanted = scores.softmax(1) @ taken
        assert (out[row].double() - wanted).norm() < 3e-3 * wanted.norm()


def test_paged_caches_and_bases_of_lse() -> None:
    inputs, expected = drawn("sparse_mla", "tiny_h16")
    kv, kpe = inputs["ckv"].view(8, 64, 512), inputs["kpe"].view(8, 64, 1, 64)
    q, pe, _, ids = mla_args(inputs)
    _, base2 = sparse_mla(q, pe, kv, ids, sm_scale=inputs["sm_scale"], kpe=kpe, **CPU)
    _, natural = sparse_mla(q, pe, kv, ids, sm_scale=inputs["sm_scale"], kpe=kpe, lse_base="e", **CPU)
    assert torch.allclose(base2.double(), expected["lse"], atol=1e-4)
    assert torch.allclose(natural, base2 * math.log(2), atol=1e-4)


def test_out_forms_write_into_their_tensors() -> None:
    inputs, _ = drawn("sparse_mla", "tiny_h16")
    out, lse = torch.full_like(inputs["q_nope"], math.nan), torch.full((2, 16), math.nan)
    got, got_lse = sparse_mla(
        *mla_args(inputs), sm_scale=inputs["sm_scale"], kpe=inputs["kpe"], out=out, lse=lse, **CPU
    )
    assert got is out and got_lse is lse and not out.isnan().any()
    scores = torch.randn(2, 256)
    ids = torch.full((2, 32), -7, dtype=torch.int32)
    assert topk_selector(scores, torch.tensor([256, 3], dtype=torch.int32), 32, out=ids, **CPU) is ids
    assert (ids != -7).all() and ids[1].tolist() == [0, 1, 2] + [-1] * 29


@pytest.fixture
def reached(monkeypatch) -> Iterator[dict[str, object]]:
    """The operands that the interpreter got at the last launch."""
    arguments: dict[str, object] = {}
    prepare = executors.Interpreter.prepare

    def watched(self, variant, device=None):
        prepared = prepare(self, variant, device)

        def launch(operands, dims):
            arguments.update(operands)
            prepared.launch(operands, dims)

        return replace(prepared, launch=launch)

    monkeypatch.setattr(executors.Interpreter, "prepare", watched)
    _base.clear()
    yield arguments
    _base.clear()


def test_operands_as_frameworks_hold_them_reach_the_kernel_where_they_lie(reached) -> None:
    """Joined queries, heads before queries, slices of wider buffers: in place, nothing around outputs."""
    inputs, expected = drawn("sparse_mla", "lengths")
    t, heads, topk = *inputs["q_nope"].shape[:2], inputs["indices"].shape[1]
    q = torch.cat([inputs["q_nope"], inputs["q_pe"]], dim=2).transpose(0, 1).contiguous().transpose(0, 1)
    ids = torch.zeros(t, topk + 5, dtype=torch.int32)[:, 3 : 3 + topk].copy_(inputs["indices"])
    rows = torch.cat([inputs["ckv"], inputs["kpe"]], dim=1)
    kv = torch.full((len(rows) // 32, 35, 640), math.nan).bfloat16()
    kv[:, :32, :576] = rows.view(-1, 32, 576)
    whole, lses = torch.zeros(heads, t, 640).bfloat16(), torch.zeros(t, heads + 4)
    out, lse = whole[:, :, 64:576].transpose(0, 1), lses[:, :heads]
    got, got_lse = sparse_mla(
        q, None, kv[:, :32, :576], ids, sm_scale=inputs["sm_scale"], topk_length=inputs["topk_length"],
        empty_lse=math.inf,
        out=out, lse=lse, **CPU,
    )  # fmt: skip
    places = {
        "q_nope": q,
        "q_pe": q[..., 512:],
        "ckv": kv,
        "kpe": kv[..., 512:],
        "indices": ids,
        "out": out,
        "lse": lse,
    }
    assert_lie_there(reached, places)
    assert got is out and got_lse is lse and (lse[1] == math.inf).all()
    result = oracles.get("sparse_mla").compare("bf16", inputs, {"out": out, "lse": lse}, expected)
    assert result.ok, result.failures
    assert not whole[:, :, :64].any() and not whole[:, :, 576:].any() and not lses[:, heads:].any()


def assert_lie_there(reached, places) -> None:
    assert {name: reached[name].data_ptr() for name in places} == {n: x.data_ptr() for n, x in places.items()}


def within(value: torch.Tensor, before: int = 1, after: int = 2) -> torch.Tensor:
    """The same values within rows that are longer on either side, filled with ones."""
    wide = value.new_ones(*value.shape[:-1], before + value.shape[-1] + after)
    return wide[..., before : before + value.shape[-1]].copy_(value)


@pytest.mark.parametrize("name", ["mtp3_paged", "ragged"])
def test_selection_takes_rows_within_wider_ones(name: str, reached) -> None:
    inputs, expected = drawn("topk_selector", name)
    inputs |= {key: within(inputs[key]) for key in ("logits", "block_table")}
    ids = within(torch.full((len(inputs["logits"]), inputs["k"]), 7, dtype=torch.int32), 3, 2)
    paged = {n: inputs[n] for n in ("block_table", "page_size", "next_n")} if inputs["page_size"] else {}
    result = topk_selector(inputs["logits"], inputs["row_ends"], inputs["k"], out=ids, **paged, **CPU)
    assert result is ids and torch.equal(ids, expected["indices"])
    assert (ids._base[:, :3] == 1).all() and (ids._base[:, -2:] == 1).all()
    assert_lie_there(
        reached,
        {
            "logits": inputs["logits"],
            "indices": ids,
            **({"block_table": inputs["block_table"]} if paged else {}),
        },
    )


def test_indexer_decode_and_prefill() -> None:
    for name in ("decode_mtp3", "decode_skip"):
        inputs, expected = drawn("lightning_indexer", name)
        logits = lightning_indexer(
            inputs["q"], inputs["k_cache"].view(-1, 64, 1, 132), inputs["weights"], inputs["seq_lens"],
            inputs["block_table"],
            skip_below=inputs["skip_below"], **CPU,
        )  # fmt: skip
        assert oracles.get("lightning_indexer").compare("decode", inputs, {"logits": logits}, expected).ok
    inputs, expected = drawn("lightning_indexer", "prefill_ragged")
    names = ("q", "k", "k_scales", "weights", "k_start", "k_end")
    logits = lightning_indexer_prefill(*(inputs[n] for n in names), **CPU)
    assert oracles.get("lightning_indexer").compare("prefill", inputs, {"logits": logits}, expected).ok


def step_inputs(lens: list[list[int]], heads: int = 16, pages: int = 12) -> dict:
    generator = torch.Generator().manual_seed(1)
    index = oracles.get("lightning_indexer")
    from dsl_kernels_lab.oracles import Workload

    inputs = index.make(
        Workload("w", "tiny", "decode", {"lens": lens, "heads": 64, "pages": pages}), generator
    )
    rows = len(lens) * len(lens[0])
    return {
        "q_index": inputs["q"], "k_index_cache": inputs["k_cache"].view(pages, 64, 1, 132),
        "weights": inputs["weights"],
        "seq_lens": inputs["seq_lens"], "block_table": inputs["block_table"],
        "q_nope": torch.randn(rows, heads, 512, generator=generator).bfloat16(),
        "q_pe": torch.randn(rows, heads, 64, generator=generator).bfloat16(),
        "kv": torch.randn(pages, 64, 512, generator=generator).bfloat16(),
        "kpe": torch.randn(pages, 64, 64, generator=generator).bfloat16(),
    }  # fmt: skip


def test_decode_step_chains_the_three() -> None:
    inputs = step_inputs([[300, 301], [0, 100], [64, 65]])
    step = dsa.decode(**inputs, sm_scale=0.1, topk=128, workspace=Workspace(), **CPU)
    scores = oracles.get("lightning_indexer").reference(
        "decode",
        {
            "q": inputs["q_index"], "k_cache": inputs["k_index_cache"].view(12, -1),
            "weights": inputs["weights"],
            "seq_lens": inputs["seq_lens"], "block_table": inputs["block_table"], "skip_below": 0,
        },
    )["logits"].view(6, -1)  # fmt: skip
    for row, length in enumerate(inputs["seq_lens"].view(-1).tolist()):
        ids = step.indices[row]
        assert int((ids >= 0).sum()) == min(128, length) and bool((ids[min(128, length) :] == -1).all())
        if length > 128:
            table = inputs["block_table"][row // 2].tolist()
            positions = torch.tensor([table.index(i // 64) * 64 + i % 64 for i in ids.tolist()])
            kept = scores[row, positions].sort(descending=True).values
            best = scores[row, :length].sort(descending=True).values[:128]
            assert torch.allclose(kept, best, rtol=1e-3, atol=1e-3)
    attention = oracles.get("sparse_mla").reference(
        "bf16",
        {
            "q_nope": inputs["q_nope"], "q_pe": inputs["q_pe"], "ckv": inputs["kv"].view(-1, 512),
            "kpe": inputs["kpe"].view(-1, 64),
            "indices": step.indices, "attn_sink": torch.full((16,), -math.inf), "sm_scale": 0.1,
            "lse_scale": 1.0,
        },
    )  # fmt: skip
    assert (step.out.double() - attention["out"]).norm() / attention["out"].norm() < 3e-3
    assert bool((step.lse[2] == -math.inf).all()) and bool((step.out[2] == 0).all())


def test_prefill_step_matches_decode_of_the_same_rows() -> None:
    generator = torch.Generator().manual_seed(2)
    index = oracles.get("lightning_indexer")
    from dsl_kernels_lab.oracles import Workload

    inputs = index.make(
        Workload("w", "tiny", "prefill", {"s": 5, "skv": 300, "heads": 64, "windows": "ragged"}), generator
    )
    q = torch.randn(5, 16, 512, generator=generator).bfloat16()
    pe = torch.randn(5, 16, 64, generator=generator).bfloat16()
    kv = torch.randn(300, 576, generator=generator).bfloat16()
    names = ("q", "k", "k_scales", "weights", "k_start", "k_end")
    args = [inputs[n] for n in names]
    whole = dsa.prefill(*args, q, pe, kv, sm_scale=0.1, topk=64, workspace=Workspace(), **CPU)
    pieces = dsa.prefill(
        *args, q, pe, kv, sm_scale=0.1, topk=64, rows_per_chunk=2, workspace=Workspace(), **CPU
    )
    assert torch.equal(whole.indices, pieces.indices) and torch.equal(whole.out, pieces.out)
    for row in range(5):
        start, end = int(inputs["k_start"][row]), int(inputs["k_end"][row])
        ids = whole.indices[row]
        valid = ids[ids >= 0]
        assert valid.numel() == min(64, end - start)
        assert bool(((valid >= start) & (valid < end)).all())


def test_a_prefill_takes_no_key_past_the_last() -> None:
    """129 keys have rows of 132 logits: what follows the last key is undefined, whatever a window says."""
    size = steps.StepSize("prefill", rows=5, context=129, topk=64, heads=8, index_heads=32)
    drawn = steps.draw(size)[0]
    longer = replace(drawn, tensors={**drawn.tensors, "k_end": torch.full((5,), 129 + 50, dtype=torch.int32)})
    longer.tensors["k_start"] = torch.full((5,), -3, dtype=torch.int32)
    exact = replace(longer, tensors={**longer.tensors, "k_end": torch.full((5,), 129, dtype=torch.int32)})
    scratch = Workspace()
    shape = dsa._chunks(5, 129, None, concurrent=False)[2]
    scratch.get("logits", shape, torch.float32, torch.device("cpu"), zeroed=False).fill_(math.inf)
    result = longer.run(workspace=scratch, **CPU)
    assert int(result.indices.max()) < 129
    assert torch.equal(result.indices, exact.run(workspace=Workspace(), **CPU).indices)


@pytest.mark.parametrize(
    ("rows", "keys"),
    ((4096, 32768), (4096, 131072), (4097, 32769), (1000, 1 << 20), (7, 5), (0, 5), (64, 1 << 26)),
)
@pytest.mark.parametrize("given", (None, 300))
@pytest.mark.parametrize("concurrent", (True, False))
def test_chunks_of_a_prefill_are_all_of_its_rows(
    rows: int, keys: int, given: int | None, concurrent: bool
) -> None:
    parts, lanes, (wide, most, stride) = dsa._chunks(rows, keys, given, concurrent)
    assert [row for part in parts for row in range(part.start, part.stop)] == list(range(rows))
    assert wide == lanes == (2 if concurrent and len(parts) > 1 else 1)
    assert keys <= stride < keys + 4 and all(part.stop - part.start <= most for part in parts)
    if given is None:
        # A block of rows is the least that is scored at once.
        assert lanes * most * stride * 4 <= max(dsa.LOGITS_BYTES, 2 * dsa.BLOCK * stride * 4)
        sizes = {part.stop - part.start for part in parts[:-1]}
        assert len(sizes) <= 2 and not any(size % dsa.BLOCK for size in sizes)
    else:
        assert most <= given


def test_compiles_as_one_graph() -> None:
    inputs = step_inputs([[130], [64]])
    output = dsa.decode(**inputs, sm_scale=0.1, topk=64, workspace=Workspace(), **CPU)

    def step(q, pe, kv, kpe, ids):
        out, lse = sparse_mla(q * 1.0, pe, kv, ids, sm_scale=0.1, kpe=kpe, executor="interpreter")
        return out + 0, lse

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    out, lse = compiled(inputs["q_nope"], inputs["q_pe"], inputs["kv"], inputs["kpe"], output.indices)
    assert torch.equal(out, output.out) and torch.equal(lse, output.lse)

    def select(scores, ends):
        return topk_selector(scores * 2, ends, 16, executor="interpreter") + 0

    scores, ends = torch.randn(3, 128), torch.tensor([128, 5, 0], dtype=torch.int32)
    compiled = torch.compile(select, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(scores, ends), select(scores, ends))


def test_splits_count_the_tiles_of_both_scopes() -> None:
    pages = pack_v4_pages(torch.randn(3, 64, 512, generator=torch.Generator().manual_seed(0)))
    ids = torch.arange(64, dtype=torch.int32).view(1, -1)
    call = partial(
        sparse_mla, torch.ones(1, 16, 512).bfloat16(), None, pages, ids, sm_scale=0.1, executor="interpreter",
        arch="sm_90a", variant="sparse_mla__cutedsl_sm90a__h16_v4_bt64_st2_cl1",
    )  # fmt: skip
    one, two = (call(extra_kv=pages, extra_indices=ids + 64, splits=splits)[1] for splits in (1, 2))
    torch.testing.assert_close(one, two, rtol=0, atol=1e-4)
    with pytest.raises(InvalidArgumentError, match="splits"):
        call(splits=5)


def test_zero_rows_launch_nothing() -> None:
    out = topk_selector(torch.empty(0, 128), torch.empty(0, dtype=torch.int32), 16, **CPU)
    assert out.shape == (0, 16)
    ids = torch.empty(0, 64, dtype=torch.int32)
    out, lse = sparse_mla(
        torch.empty(0, 16, 512, dtype=torch.bfloat16), torch.empty(0, 16, 64, dtype=torch.bfloat16),
        torch.zeros(4, 576, dtype=torch.bfloat16), ids, sm_scale=1.0, **CPU,
    )  # fmt: skip
    assert out.shape == (0, 16, 512) and lse.shape == (0, 16)


def test_calls_of_ever_new_sizes_do_not_add_up(monkeypatch) -> None:
    from dsl_kernels import ops, registry
    from dsl_kernels.ops import _base, workspace

    ops.clear()
    monkeypatch.setattr(_base, "PREPARED_LIMIT", 3)
    monkeypatch.setattr(workspace, "PREPARED_LIMIT", 3)
    monkeypatch.setattr(registry, "SELECTED_LIMIT", 2)
    inputs, expected = drawn("sparse_mla", "tiny_h16")
    scratch = Workspace()
    for topk in (64, 128, 192, 256, 64, 256):
        ids = inputs["indices"][:, :topk].contiguous()
        out, _ = sparse_mla(
            inputs["q_nope"], inputs["q_pe"], inputs["ckv"], ids, sm_scale=inputs["sm_scale"],
            kpe=inputs["kpe"],
            workspace=scratch, **CPU,
        )  # fmt: skip
        assert len(_base._prepared) <= 3 and len(registry._selected) <= 2 and len(scratch._views) <= 3
    assert torch.allclose(out.double(), expected["out"], atol=0.05)


def test_replaced_workspace_memory_is_kept_only_for_captures_that_saw_it(monkeypatch) -> None:
    from dsl_kernels.ops import workspace

    device = torch.device("cpu")

    def grown(scratch: Workspace, rows: int) -> int:
        scratch.get("logits", (rows, 256), torch.float32, device, zeroed=False)
        return scratch.bytes

    scratch = Workspace()
    assert [grown(scratch, rows) for rows in (1, 2, 3, 4)] == [1024, 2048, 3072, 4096]
    monkeypatch.setattr(workspace, "capturing", lambda device: True)
    assert grown(scratch, 2) == 4096
    monkeypatch.setattr(workspace, "capturing", lambda device: False)
    assert [grown(scratch, rows) for rows in (5, 3, 6)] == [4096 + 5120, 4096 + 5120, 4096 + 5120 + 6144]


def test_what_a_capture_fills_is_never_kept_for_later(monkeypatch) -> None:
    """A capture records memsets without running them: outside the graph such memory would be garbage."""
    from dsl_kernels import ops
    from dsl_kernels.ops import _base, workspace

    def capture(present: bool) -> None:
        for module in (_base, workspace):
            monkeypatch.setattr(module, "capturing", lambda device: present)

    device, scratch = torch.device("cpu"), Workspace()
    scores, ends = torch.randn(7, 128), torch.full((7,), 128, dtype=torch.int32)
    topk_selector(scores[:3], ends[:3], 16, **CPU)
    monkeypatch.setattr(_base, "_constants", {})
    ops.clear()
    topk_selector(scores[:3], ends[:3], 16, **CPU)
    kept = lambda: sum(map(len, _base._constants.values()))  # noqa: E731
    made, prepared = kept(), len(_base._prepared)
    scratch.get("arrivals", (4,), torch.int32, device, zeroed=True)
    capture(True)
    topk_selector(scores, ends, 16, **CPU)
    assert (kept(), len(_base._prepared)) == (made, prepared)
    assert scratch.get("arrivals", (2,), torch.int32, device, zeroed=True).shape == (2,)
    with pytest.raises(LaunchError, match="arrivals.*before capturing"):
        scratch.get("arrivals", (5,), torch.int32, device, zeroed=True)
    one, other = workspace.own_workspace(device), workspace.own_workspace(device)
    assert one is not other, "two captures share nothing"
    assert one.get("arrivals", (5,), torch.int32, device, zeroed=True).shape == (5,)
    capture(False)
    topk_selector(scores, ends, 16, **CPU)
    assert (kept(), len(_base._prepared)) == (made + 1, prepared + 1)
    assert workspace.own_workspace(device) is workspace.own_workspace(device)


def test_inputs_that_are_left_out_take_no_memory_of_their_own_for_each_size(monkeypatch) -> None:
    """A larger tensor takes the place of a smaller one, which stays for the graphs that read it."""
    from dsl_kernels import ops

    monkeypatch.setattr(_base, "_constants", {})
    ops.clear()
    scores, ends = torch.randn(20, 128), torch.full((20,), 128, dtype=torch.int32)
    alone = [topk_selector(scores[:rows], ends[:rows], 16, **CPU) for rows in (1, 3, *range(20, 8, -1))]
    assert all(torch.equal(each, alone[2][: len(each)]) for each in alone)
    ((key, made),) = _base._constants.items()
    assert key == (0, torch.int32, torch.device("cpu"))
    assert [each.tolist() for each in made] == [[0] * room for room in (1, 4, 32)]
    on_gpu = (0, torch.int32, torch.device("cuda", 0))
    _base._constants[on_gpu] = []
    ops.clear()
    assert list(_base._constants) == [on_gpu], "graphs may hold the addresses of a GPU's"


def test_a_variant_loaded_for_the_current_gpu_is_found_by_its_calls(monkeypatch) -> None:
    loaded = []
    cuda = SimpleNamespace(prepare=lambda variant, device: loaded.append(device))
    monkeypatch.setattr(_base, "_launchers", {})
    monkeypatch.setattr(_base, "capturing", lambda device: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(executors, "get", lambda name: cuda)
    selection = registry.Selection(variants.variants("topk_selector", arch="sm_90a")[0], {}, "for a test")
    _base.preload(selection, torch.device("cuda"))
    assert loaded == [1] and [key[-1] for key in _base._launchers] == [1]


def test_a_warning_that_is_an_error_is_raised_as_it_is(monkeypatch) -> None:
    from dsl_kernels.ops import _operands

    inputs, _ = drawn("sparse_mla", "tiny_h16")
    inputs["q_nope"].requires_grad_()
    monkeypatch.setattr(_operands, "_warned", set())
    with warnings.catch_warnings(), pytest.raises(UserWarning, match="requires a gradient"):
        warnings.simplefilter("error")
        sparse_mla(*mla_args(inputs), sm_scale=inputs["sm_scale"], kpe=inputs["kpe"], **CPU)


def test_an_operand_that_cannot_be_read_is_refused_with_the_cause(monkeypatch) -> None:
    cause = RuntimeError("no such address")

    def unreadable() -> None:
        raise cause

    monkeypatch.setattr(_base, "_environment", unreadable)
    with pytest.raises(InvalidArgumentError, match="no such address") as caught:
        _base.run("topk_selector", "default", _topk_operands(), **CPU)
    assert caught.value.__cause__ is cause


def _topk_operands() -> dict[str, Any]:
    scores, ends = torch.randn(2, 128), torch.full((2,), 128, dtype=torch.int32)
    given = {spec.name: None for spec in problems.get("topk_selector").operands("default")}
    return {**given, "logits": scores, "row_ends": ends}


def test_zeros_are_set_aside_once_by_threads_that_need_them_at_once(monkeypatch) -> None:
    from dsl_kernels.ops import workspace

    zeros, device = workspace._Zeros(), torch.device("cuda", 0)

    class Late:
        """A lock that another thread held, in which that thread did the same."""

        def __enter__(self) -> None:
            zeros._left[0] = workspace.SLAB

        def __exit__(self, *_: object) -> None: ...

    zeros._lock = Late()
    monkeypatch.setattr(workspace, "filled", lambda *_: pytest.fail("a second slab"))
    zeros.refill(device)
    assert not zeros._slabs


def test_whether_a_graph_is_captured_is_asked_of_the_devices_own_stream(monkeypatch) -> None:
    from dsl_kernels.ops import workspace

    current = [0]

    @contextlib.contextmanager
    def entered(device: torch.device) -> Iterator[None]:
        current.append(device.index)
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", entered)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: current[-1], raising=False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: current[-1] == 1)
    asked = [torch.device("cpu"), *(torch.device("cuda", index) for index in (0, 1, None))]
    assert [workspace.capturing(device) for device in asked] == [False, False, True, False]


def test_the_environment_is_looked_at_on_every_call(monkeypatch) -> None:
    from dsl_kernels import ops, variants

    scores, ends = torch.randn(2, 256), torch.tensor([256, 7], dtype=torch.int32)
    ops.clear()
    monkeypatch.setenv("DSL_KERNELS_EXECUTOR", "interpreter")
    topk_selector(scores, ends, 16)
    first = ops.selections()[-1].variant.id
    other = next(v.id for v in variants.variants("topk_selector", arch="sm_90a") if v.id != first)
    monkeypatch.setenv("DSL_KERNELS_FORCE", f"topk_selector={other}")
    topk_selector(scores, ends, 16)
    assert ops.selections()[-1].variant.id == other and ops.selections()[-1].rule == "DSL_KERNELS_FORCE"
    monkeypatch.delenv("DSL_KERNELS_FORCE")
    topk_selector(scores, ends, 16)
    assert len(ops.selections()) == 2
    monkeypatch.setenv("DSL_KERNELS_CHECK_VALUES", "1")
    with pytest.raises(InvalidArgumentError, match="row_ends"):
        topk_selector(scores, ends + 1, 16)
    monkeypatch.delenv("DSL_KERNELS_EXECUTOR")
    with pytest.raises(ExecutorUnavailableError):
        topk_selector(scores, ends, 16)


def test_a_stream_with_fewer_sms_is_given_fewer_splits(monkeypatch) -> None:
    inputs, expected = drawn("sparse_mla", "tiny_h16")
    variant, tried = "sparse_mla__cutedsl_sm90a__h16_bf16_bt64_st2_cl2_sl2", []
    attend = {"sm_scale": inputs["sm_scale"], "kpe": inputs["kpe"], "variant": variant, **CPU}
    prepare = executors.Interpreter.prepare

    def crowded(self, *of):
        launcher = prepare(self, *of)

        def launch(operands, dims, stream=0):
            tried.append(dims["splits"])
            if dims["splits"] > 2:
                raise ResidencyError("launch", expected="few CTAs", got="many", fix="pass fewer splits")
            launcher(operands, dims, stream)

        return replace(launcher, launch=launch)

    monkeypatch.setattr(executors.Interpreter, "prepare", crowded)
    _base.clear()
    try:
        out, lse = sparse_mla(*mla_args(inputs), **attend)
        assert oracles.get("sparse_mla").compare("bf16", inputs, {"out": out, "lse": lse}, expected).ok
        assert tried[0] > 2 and tried[-1] == 2
        sparse_mla(*mla_args(inputs), **attend, out=out, lse=lse)
        asked = len(tried)
        sparse_mla(*mla_args(inputs), **attend, out=out, lse=lse)
        assert tried[asked:] == [2], "what was refused is not tried again"
        with pytest.raises(ResidencyError):
            sparse_mla(*mla_args(inputs), **attend, splits=4)
    finally:
        _base.clear()


def test_splits_that_cannot_run_at_once_take_another_variant() -> None:
    dims = {"t": 16, "topk": 2048, "n": 4096, "heads": 16, "splits": 64}
    sliced = variants.get("sparse_mla__cutedsl_sm90a__h16_bf16_bt64_st2_cl2_sl2")
    call = registry.Call("sparse_mla", "bf16", "sm_90a", dims)
    assert "1024 CTAs that wait for one another, where 264 run at once" in registry.refusal(call, sliced)
    assert registry.refusal(replace(call, dims={**dims, "t": 4}), sliced) is None
    assert registry.refusal(replace(call, dims={**dims, "t": 4}, sms=78), sliced) is not None
    call = registry.Call("sparse_mla", "bf16", "sm_100a", {**dims, "splits": 16})
    dealt = variants.get("sparse_mla__cutedsl_sm100a__h16_bf16_bt64_cl1_cp_async")
    assert "256 CTAs that wait for one another, where 148 run at once" in registry.refusal(call, dealt)
    whole = variants.get("sparse_mla__cutedsl_sm100a__h16_bf16_bt64_cl1_gather4")
    assert registry.refusal(call, whole) is None, "where they cannot, the last CTA to come joins alone"


@pytest.mark.parametrize("changed", ({"splits": 16}, {"topk": 0}), ids=str)
def test_calls_that_ctas_which_go_on_refuse_take_blocks_of_any_heads(changed: dict[str, int]) -> None:
    """On Blackwell rows without rope dims have one kernel for 16 heads, whose CTAs wait for one another."""
    call = registry.Call("sparse_mla", "nope", "sm_100a", {"t": 16, "topk": 2048, "n": 4096, "heads": 16})
    blocks = variants.get("sparse_mla__cutedsl_sm100a__any_nope_bt64_cl1_hb16_cp_async")
    assert registry.refusal(call, blocks) == "heads = 16 have kernels of their own"
    assert registry.refusal(replace(call, dims={**call.dims, "splits": 9}), blocks) is not None, (
        "144 CTAs run at once"
    )
    refused = replace(call, dims={**call.dims, **changed})
    assert registry.refusal(refused, blocks) is None
    assert registry.select(refused).variant.knobs["heads"] == "any"
    hopper = variants.get("sparse_mla__cutedsl_sm90a__any_nope_bt64_st2_cl1_hb16")
    assert registry.refusal(replace(refused, arch="sm_90a"), hopper) == "heads = 16 have kernels of their own"


def test_a_cache_that_was_given_other_memory_is_looked_at_again() -> None:
    inputs, _ = drawn("sparse_mla", "tiny_h16")
    kv = torch.cat([inputs["ckv"], inputs["kpe"]], dim=1)
    attend = {"sm_scale": 0.1, **CPU}
    sparse_mla(inputs["q_nope"], inputs["q_pe"], kv, inputs["indices"], **attend)
    kv.data = kv.flip(0).contiguous()
    wanted = sparse_mla(inputs["q_nope"], inputs["q_pe"], kv.clone(), inputs["indices"], **attend)
    result = sparse_mla(inputs["q_nope"], inputs["q_pe"], kv, inputs["indices"], **attend)
    assert torch.equal(result[0], wanted[0])
    from dsl_kernels.ops import _views

    kept = _views._kept[id(kv), 0, split_cache]
    assert kept[3][1]["ckv"].data_ptr() == kv.data_ptr(), "the memory from before is let go"


@pytest.mark.parametrize("joined", [True, False])
def test_an_op_does_not_keep_the_callers_cache_alive(joined: bool) -> None:
    import gc
    import weakref

    inputs, _ = drawn("sparse_mla", "tiny_h16")
    kv = torch.cat([inputs["ckv"], inputs["kpe"]], dim=1) if joined else inputs["ckv"].clone()
    kpe = None if joined else inputs["kpe"].clone()
    for _ in range(2):
        sparse_mla(inputs["q_nope"], inputs["q_pe"], kv, inputs["indices"], sm_scale=0.1, kpe=kpe, **CPU)
    gone = weakref.ref(kv)
    del kv, kpe
    gc.collect()
    assert gone() is None


def test_workspace_grows_once_and_is_kept() -> None:
    inputs, _ = drawn("sparse_mla", "tiny_h16")
    scratch = Workspace()
    for splits in (4, 2, 1):
        sparse_mla(
            *mla_args(inputs), sm_scale=0.1, kpe=inputs["kpe"], splits=splits, workspace=scratch, **CPU
        )
        size = scratch.bytes
    sparse_mla(*mla_args(inputs), sm_scale=0.1, kpe=inputs["kpe"], splits=4, workspace=scratch, **CPU)
    assert scratch.bytes == size > 0


BAD_MLA = {
    "dtype": (lambda a: a.update(q_nope=a["q_nope"].float()), ArgumentTypeError,
              "q_nope.*bfloat16.*float32.*Fix"),
    "rank": (lambda a: a.update(q_pe=a["q_pe"][0]), InvalidArgumentError, "q_pe.*3 dimensions"),
    "heads disagree": (lambda a: a.update(q_pe=a["q_pe"][:, :8].contiguous()), InvalidArgumentError,
                       "q_pe.*heads = 16"),
    "rows disagree": (lambda a: a.update(indices=a["indices"][:1]), InvalidArgumentError, "indices.*t = 2"),
    "last axis apart": (
        lambda a: a.update(q_nope=a["q_nope"].transpose(1, 2).contiguous().transpose(1, 2)),
        InvalidArgumentError,
        "q_nope.*stride of 1 along axis 2",
    ),
    "heads apart by no 16 bytes": (
        lambda a: a.update(q_nope=a["q_nope"].new_zeros(2, 16, 515)[..., :512]), InvalidArgumentError,
        "q_nope.*16 bytes",
    ),
    "one query for all": (lambda a: a.update(q_pe=a["q_pe"][:1].expand(2, -1, -1)), InvalidArgumentError,
                          "q_pe.*positive"),
    "out over itself": (
        lambda a: a.update(out=a["q_nope"].new_zeros(4096).as_strided((2, 16, 512), (8, 16, 1))),
        InvalidArgumentError,
        "out.*do not overlap",
    ),
    "joined width": (lambda a: a.update(q_pe=None), InvalidArgumentError, "q_nope.*576"),
    "lengths dtype": (lambda a: a.update(topk_length=torch.zeros(2)), ArgumentTypeError,
                      "topk_length.*int32"),
    "empty lse": (lambda a: a.update(empty_lse=0.0), InvalidArgumentError, "empty_lse.*-inf or inf"),
    "int64 ids": (lambda a: a.update(indices=a["indices"].long()), ArgumentTypeError,
                  "indices.*int32.*int64"),
    "cache width": (lambda a: a.update(kv=a["kv"][:, :500].contiguous()), InvalidArgumentError,
                    "kv.*512.*576.*656"),
    "rope of queries alone":
        (lambda a: a.update(kpe=None), InvalidArgumentError, "q_pe.*None.*512 dims alone.*kpe"),
    "cache dtype":
        (lambda a: a.update(kv=a["kv"].float()), ArgumentTypeError, "kv.*bfloat16 rows or 656-byte"),
    "cache gaps": (
        lambda a: a.update(kv=torch.zeros(4 * 64 * 512 + 64).bfloat16().as_strided((3, 64, 512),
            (64 * 512 + 8, 512, 1))), InvalidArgumentError,
        "kv.*a whole number",
    ),
    "caches unlike": (lambda a: a.update(kv=torch.zeros(4, 70, 512).bfloat16()[:, :64]), InvalidArgumentError,
                      "kpe.*pages like kv.*lay both caches out alike"),
    "misaligned rows": (
        lambda a: a.update(kv=torch.zeros(513, 516).bfloat16()[:512, :512]), InvalidArgumentError, "16 bytes",
    ),
    "lse base": (lambda a: a.update(lse_base="10"), InvalidArgumentError, "lse_base"),
    "rows of no format":
        (lambda a: a.update(row_format="fp4"), InvalidArgumentError, "row_format.*'bf16' or 'nope'"),
    "528 bytes without a format": (
        lambda a: a.update(kv=torch.zeros(512, 528, dtype=torch.uint8), kpe=None, q_pe=None),
        InvalidArgumentError,
        "row_format.*'nope8', 'v41' or 'v41_planar'.*e4m3.*V32_NO_ROPE",
    ),
    "tokens of V4.1 in no pages": (
        lambda a: a.update(
            kv=torch.zeros(512, 528, dtype=torch.uint8), kpe=None, q_pe=None, row_format="v41"
        ),
        InvalidArgumentError,
        "kv.*pages, page_size, 528",
    ),
    "tokens of V4.1 beside rope": (
        lambda a: a.update(kv=torch.zeros(8, 64, 528, dtype=torch.uint8), row_format="v41_planar"),
        InvalidArgumentError,
        "kpe.*None.*'v41_planar'",
    ),
    "tokens of V4.1 in bf16": (
        lambda a: a.update(kv=torch.zeros(8, 64, 528).bfloat16(), kpe=None, q_pe=None, row_format="v41"),
        ArgumentTypeError,
        "kv.*528-byte tokens.*bfloat16",
    ),
    "a second cache of V4 beside V4.1": (
        lambda a: a.update(
            kv=torch.zeros(8, 64, 528, dtype=torch.uint8), kpe=None, q_pe=None, row_format="v41",
            extra_indices=a["indices"], extra_kv=torch.zeros(8, 64, 584, dtype=torch.uint8),
        ),
        InvalidArgumentError,
        "extra_kv.*528.*584",
    ),
    "528 bytes beside rope": (
        lambda a: a.update(kv=torch.zeros(512, 528, dtype=torch.uint8), kpe=None, row_format="nope8"),
        InvalidArgumentError,
        "q_pe.*None.*512",
    ),
    "rows of another format": (lambda a: a.update(row_format="fp8"), InvalidArgumentError,
                               "row_format.*'bf16', which kv is"),
    "splits": (lambda a: a.update(splits=99), InvalidArgumentError, "splits.*1 to 16"),
    "maxima over lse": (
        lambda a: a.update(dict.fromkeys(("lse", "max_logits"), torch.zeros(2, 16))), InvalidArgumentError,
        "lse.*overlap with max_logits",
    ),
    "maxima in bf16": (lambda a: a.update(max_logits=torch.zeros(2, 16).bfloat16()), ArgumentTypeError,
                       "max_logits.*float32"),
    "maxima in a list": (lambda a: a.update(max_logits=[0.0]), ArgumentTypeError, "max_logits.*list"),
    "a scale beside maxima": (
        lambda a: a.update(max_logits=torch.zeros(2, 16), sm_scale=1e12), InvalidArgumentError,
        "sm_scale.*4294967296",
    ),
    "sink shape": (lambda a: a.update(attn_sink=torch.zeros(8)), InvalidArgumentError,
                   "attn_sink.*heads = 16"),
    "no executor": (lambda a: a.update(executor=None), ExecutorUnavailableError, "interpreter"),
    "cuda on cpu": (lambda a: a.update(executor="cuda"), ExecutorUnavailableError, "CUDA tensors"),
    "unknown executor": (lambda a: a.update(executor="gpu"), UnknownNameError, "interpreter"),
    "unknown arch": (lambda a: a.update(arch="sm_80"), UnsupportedArchError, "sm_90a"),
    "unknown variant": (lambda a: a.update(variant="nope"), UnknownNameError, "nope"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_MLA)
def test_sparse_mla_refuses(case: str) -> None:
    change, error, message = BAD_MLA[case]
    inputs, _ = drawn("sparse_mla", "tiny_h16")
    args = {
        "q_nope": inputs["q_nope"], "q_pe": inputs["q_pe"], "kv": inputs["ckv"], "kpe": inputs["kpe"],
        "indices": inputs["indices"],
        "sm_scale": 0.1, **CPU,
    }  # fmt: skip
    change(args)
    with pytest.raises(error, match=message) as caught:
        sparse_mla(**args)
    assert isinstance(caught.value, DslKernelError) and caught.value.fix


def test_a_non_tensor_is_named() -> None:
    inputs, _ = drawn("sparse_mla", "tiny_h16")
    with pytest.raises(ArgumentTypeError, match="q_nope.*torch.Tensor.*list"):
        sparse_mla(
            [1], inputs["q_pe"], inputs["ckv"], inputs["indices"], sm_scale=0.1, kpe=inputs["kpe"], **CPU
        )


BEYOND = torch.zeros(2, 16, dtype=torch.int32)
BAD_TOPK = {
    "k zero": ({"k": 0}, InvalidArgumentError, "k.*1 to 4096"),
    "k large": ({"k": 4097}, InvalidArgumentError, "k.*1 to 4096"),
    "rank": ({"logits": torch.zeros(128)}, InvalidArgumentError, "logits.*2 dimensions"),
    "dtype": (
        {"logits": torch.zeros(2, 128).double()},
        ArgumentTypeError,
        "logits.*float32, torch.bfloat16, torch.float16",
    ),
    "lens dtype": ({"row_ends": torch.tensor([1, 2])}, ArgumentTypeError, "row_ends.*int32"),
    "lens shape": (
        {"row_ends": torch.zeros(3, dtype=torch.int32)},
        InvalidArgumentError,
        "row_ends.*rows = 2",
    ),
    "columns apart": (
        {"logits": torch.zeros(128, 2).T},
        InvalidArgumentError,
        "logits.*stride of 1 along axis 1",
    ),
    "one row for all": (
        {"logits": torch.zeros(1, 128).expand(2, -1)},
        InvalidArgumentError,
        "logits.*positive",
    ),
    "rows over one another": (
        {"logits": torch.zeros(256).as_strided((2, 128), (64, 1))},
        InvalidArgumentError,
        "logits.*do not overlap",
    ),
    "out": ({"out": torch.zeros(2, 8, dtype=torch.int32)}, InvalidArgumentError, "out"),
    "next_n": ({"next_n": 0}, InvalidArgumentError, "next_n"),
    "table": (
        {"block_table": torch.zeros(1, 2, dtype=torch.int32)},
        InvalidArgumentError,
        "block_table.*next_n >= rows.*rows = 2",
    ),
    "page": (
        {"block_table": torch.zeros(2, 2, dtype=torch.int32), "page_size": 0},
        InvalidArgumentError,
        "page_size",
    ),
    "absolute": ({"absolute": 2}, ArgumentTypeError, "absolute.*True or False.*2"),
    "absolute pages": (
        {"absolute": True, "block_table": torch.zeros(2, 2, dtype=torch.int32)},
        InvalidArgumentError,
        "absolute.*block table",
    ),
    "offsets pages": (
        {"offsets": torch.zeros(2, dtype=torch.int32), "block_table": torch.zeros(2, 2, dtype=torch.int32)},
        InvalidArgumentError,
        "offsets.*block table",
    ),
    "offsets rows": (
        {"offsets": torch.zeros(3, dtype=torch.int32)},
        InvalidArgumentError,
        "offsets.*offset_rows == rows",
    ),
    "sequences": (
        {"row_to_sequence": torch.zeros(2, dtype=torch.int32)},
        InvalidArgumentError,
        "row_to_sequence.*a block_table as well",
    ),
    "sequences and next_n": (
        {
            "row_to_sequence": torch.zeros(2, dtype=torch.int32),
            "block_table": torch.zeros(1, 2, dtype=torch.int32),
            "next_n": 2,
        },
        InvalidArgumentError,
        "next_n.*1 with row_to_sequence",
    ),
    "no such sequence": (
        {
            "row_to_sequence": torch.tensor([0, 1], dtype=torch.int32),
            "block_table": torch.zeros(1, 2, dtype=torch.int32),
        },
        InvalidArgumentError,
        "row_to_sequence.*rows of the block table",
    ),
    "positions": (
        {"positions": torch.zeros(2, 16, dtype=torch.int32)},
        InvalidArgumentError,
        "positions.*a block_table as well",
    ),
    "ties": ({"ties": "none"}, InvalidArgumentError, "ties.*'lower' or 'higher'"),
    "ties type": ({"ties": True}, InvalidArgumentError, "ties.*'lower' or 'higher'.*bool"),
    "sequences dtype": (
        {"row_to_sequence": torch.zeros(2), "block_table": torch.zeros(1, 2, dtype=torch.int32)},
        ArgumentTypeError,
        "row_to_sequence.*int32",
    ),
    "offsets dtype": ({"offsets": torch.zeros(2).long()}, ArgumentTypeError, "offsets.*int32"),
    "values over out": (
        {"values": BEYOND.view(torch.float32), "out": BEYOND},
        InvalidArgumentError,
        "overlap with",
    ),
    "values dtype": ({"values": torch.zeros(2, 16).half()}, ArgumentTypeError, "values.*float32"),
    "values of fp16": (
        {"logits": torch.zeros(2, 128).half(), "values": torch.zeros(2, 16)},
        ArgumentTypeError,
        "values.*float16.*float32",
    ),
    "values columns": ({"values": torch.zeros(2, 8)}, InvalidArgumentError, "values.*value_columns == k"),
}


@pytest.mark.parametrize("case", BAD_TOPK)
def test_topk_selector_refuses(case: str) -> None:
    change, error, message = BAD_TOPK[case]
    args = {
        "logits": torch.zeros(2, 128),
        "row_ends": torch.tensor([100, 3], dtype=torch.int32),
        "k": 16,
        **CPU,
        **change,
    }
    with pytest.raises(error, match=message):
        topk_selector(**args)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
@pytest.mark.parametrize("scores", ("normal", "specials", "zeros"))
def test_scores_of_16_bits_rank_as_the_same_numbers_in_fp32(dtype: torch.dtype, scores: str) -> None:
    """At any element's address, and without an fp32 copy."""
    drawn = draw(scores, 3, 1203, torch.Generator().manual_seed(3)).to(dtype)
    ends = torch.tensor([1203, 900, 70], dtype=torch.int32)
    padded = torch.full((3, 1210), math.inf, dtype=dtype)[:, 3:1206].copy_(drawn)
    wanted = topk_selector(drawn.float(), ends, 200, **CPU)
    assert torch.equal(topk_selector(padded, ends, 200, **CPU), wanted)


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_values_and_positions_beside_the_ids(dtype: torch.dtype) -> None:
    """In the order of the ids, into any rows, nothing written around them, and only on request."""
    scores = torch.randn(3, 400, generator=torch.Generator().manual_seed(6)).to(dtype)
    starts, ends = (torch.tensor(x, dtype=torch.int32) for x in ([0, 7, 3], [400, 300, 20]))
    table = torch.randperm(21, generator=torch.Generator().manual_seed(7)).int().view(3, 7)
    kept = within(torch.zeros(3, 50, dtype=dtype), 3, 2)
    where = within(torch.zeros(3, 50, dtype=torch.int32), 1, 4)
    rows = {"row_starts": starts, **CPU}
    ids = topk_selector(scores, ends, 50, block_table=table, values=kept, positions=where, **rows)
    assert torch.equal(ids, topk_selector(scores, ends, 50, block_table=table, **rows))
    assert torch.equal(where, topk_selector(scores, ends, 50, **rows))
    columns = (where + starts[:, None]).clamp(max=399).long()
    assert torch.equal(kept, torch.where(where >= 0, scores.gather(1, columns), -math.inf))
    assert (kept._base[..., :3] == 1).all() and (kept._base[..., -2:] == 1).all()
    assert (where._base[..., :1] == 1).all() and (where._base[..., -4:] == 1).all()


@pytest.mark.parametrize("kind", ("ties", "zeros", "equal", "steps"))
@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16, torch.float16))
def test_ties_go_to_the_higher_position_as_in_a_row_from_its_end(dtype: torch.dtype, kind: str) -> None:
    scores = draw(kind, 3, 300, torch.Generator().manual_seed(4)).to(dtype)
    starts, ends = (torch.tensor(x, dtype=torch.int32) for x in ([0, 7, 3], [300, 290, 20]))
    result = topk_selector(scores, ends, 100, row_starts=starts, absolute=True, ties="higher", **CPU)
    turned = topk_selector(scores.flip(1), 300 - starts, 100, row_starts=300 - ends, absolute=True, **CPU)
    taken = turned >= 0
    assert torch.equal(result >= 0, taken)
    wanted = torch.where(taken, 299 - turned, 1000).sort(dim=1).values
    assert torch.equal(torch.where(taken, result, 1000), wanted)
    assert not torch.equal(result, topk_selector(scores, ends, 100, row_starts=starts, absolute=True, **CPU))


SELECTION_OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "ties": {"ties": "higher"},
    "offsets": {"offsets": torch.zeros(2, dtype=torch.int32), "values": torch.zeros(2, 16)},
    "pages": {
        "block_table": torch.zeros(1, 2, dtype=torch.int32),
        "row_to_sequence": torch.zeros(2, dtype=torch.int32),
        "positions": torch.zeros(2, 16, dtype=torch.int32),
    },
}


@pytest.mark.parametrize("options", SELECTION_OPTIONS)
def test_an_option_of_selection_is_one_launch_and_makes_no_tensor(monkeypatch, options: str) -> None:
    launched, taken = [], []

    class Launch:
        def __call__(self, operands: dict, dims: dict, stream: int = 0) -> None:
            launched.append(operands)

        def check(self, operands: dict, dims: dict) -> None: ...

    def launcher(executor: str, selection: registry.Selection, device: torch.device) -> Launch:
        taken.append(selection.variant)
        return Launch()

    def call() -> None:
        topk_selector(scores, ends, 16, out=out, **SELECTION_OPTIONS[options], **CPU)

    scores, ends, out = torch.zeros(2, 100), torch.full((2,), 100).int(), torch.zeros(2, 16).int()
    monkeypatch.setattr(_base, "_launcher", launcher)
    # Off the GPU values are compared by torch operations; this test is not about them.
    monkeypatch.setattr(Bound, "hold", lambda *_: None)
    _base.clear()
    try:
        call()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            call()
    finally:
        _base.clear()
    assert len(launched) == 2
    assert {bool(variant.knobs["options"]) for variant in taken} == {options != "none"}
    assert not [event.name for event in profile.events() if event.name.startswith("aten::")]


@pytest.mark.parametrize("absolute", (False, True))
def test_offsets_are_added_to_positions(absolute: bool) -> None:
    starts, ends = (torch.tensor(x, dtype=torch.int32) for x in ([7, 0, 90], [100, 40, 80]))
    scores = torch.randn(3, 128, generator=torch.Generator().manual_seed(5))
    offsets = torch.tensor([1000, -5, 3], dtype=torch.int32)
    given = {"row_starts": starts, "absolute": absolute, "values": torch.zeros(3, 60), **CPU}
    plain = topk_selector(scores, ends, 60, **given)
    values = given["values"].clone()
    result = topk_selector(scores, ends, 60, offsets=offsets, **given)
    assert torch.equal(result, torch.where(plain == -1, -1, plain + offsets[:, None]))
    assert torch.equal(given["values"], values)


def test_rows_map_to_sequences_in_any_order() -> None:
    scores = torch.randn(5, 200, generator=torch.Generator().manual_seed(8))
    ends = torch.tensor([200, 150, 30, 0, 190], dtype=torch.int32)
    table = torch.randperm(12, generator=torch.Generator().manual_seed(9)).int().view(3, 4)
    sequences = torch.tensor([2, 0, 2, 1, 0], dtype=torch.int32)
    result = topk_selector(scores, ends, 40, block_table=table, row_to_sequence=sequences, **CPU)
    assert torch.equal(result, topk_selector(scores, ends, 40, block_table=table[sequences.long()], **CPU))


@pytest.mark.parametrize("k", (16, 128))
def test_absolute_positions_count_from_column_0(k: int) -> None:
    starts, ends = (torch.tensor(x, dtype=torch.int32) for x in ([7, -3, 90], [100, 40, 80]))
    scores = torch.randn(3, 128, generator=torch.Generator().manual_seed(5))
    relative = topk_selector(scores, ends, k, row_starts=starts, **CPU)
    columns = topk_selector(scores, ends, k, row_starts=starts, absolute=True, **CPU)
    assert torch.equal(columns, torch.where(relative >= 0, relative + starts.clamp(min=0)[:, None], -1))
    assert int(columns.max()) == int(relative[0].max()) + 7


@pytest.mark.parametrize("name", ["decode_strided", "decode_one_strided", "prefill_strided"])
def test_scoring_takes_operands_as_frameworks_hold_them(name: str, reached) -> None:
    """Each in place, the cache's pages with gaps, and with nothing written around the scores."""
    inputs, expected = drawn("lightning_indexer", name)
    form = name.partition("_")[0]
    rows = inputs["q"].shape[:-2]
    out = within(torch.zeros(*rows, 131 if form == "prefill" else 193), 3, 2)
    given = {n: x for n, x in inputs.items() if n != "skip_below"}
    call = lightning_indexer if form == "decode" else lightning_indexer_prefill
    taken = dict(given)
    if form == "decode":
        # vLLM's layout.
        taken["k_cache"] = given["k_cache"].unflatten(1, (64, 1, 132))
        taken["weights"] = torch.zeros(rows.numel(), 68)[:, :64].copy_(given["weights"].flatten(0, 1))
        given["weights"] = taken["weights"]
        if name == "decode_one_strided":
            taken["seq_lens"] = given["seq_lens"][:, 0]
    assert call(**taken, out=out, **CPU) is out
    result = oracles.get("lightning_indexer").compare(form, inputs, {"logits": out}, expected)
    assert result.ok, result.failures
    assert (out._base[..., :3] == 1).all() and (out._base[..., -2:] == 1).all()
    assert_lie_there(reached, {**given, "logits": out})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k_cache": torch.zeros(3, 8448 + 16, dtype=torch.uint8)[:, :8448]},
         "k_cache.*multiple of 128 bytes.*8464"),
        ({"k_cache": torch.zeros(3, 64, 133, dtype=torch.uint8)[..., :132]}, "k_cache.*contiguous"),
        ({"weights": torch.zeros(3, 64)}, r"weights.*b \* next_n.*\(3, 64\)"),
        ({"weights": torch.zeros(1, 2, 65)[:, :, :64]}, "weights.*16 bytes"),
        ({"q": torch.zeros(1, 2, 64, 136).to(torch.float8_e4m3fn)[..., :128]}, "q.*16 bytes"),
        ({"q": torch.zeros(1, 2, 128, 64).to(torch.float8_e4m3fn).transpose(2, 3)},
         "q.*stride of 1 along axis 3"),
        ({"seq_lens": torch.zeros(2, dtype=torch.int32)}, "seq_lens.*b = 1"),
        ({"out": torch.zeros(1, 1, 192).expand(1, 2, 192)}, "out.*positive"),
    ],
)  # fmt: skip
def test_indexer_refuses_strides_that_no_copy_can_have(change: dict, message: str) -> None:
    inputs, _ = drawn("lightning_indexer", "decode_tiny")
    args = {n: inputs[n] for n in ("q", "k_cache", "weights", "seq_lens", "block_table")}
    two = {n: args[n].expand(1, 2, *args[n].shape[2:]).contiguous() for n in ("q", "weights", "seq_lens")}
    with pytest.raises(InvalidArgumentError, match=message):
        lightning_indexer(**{**args, **two, **change}, **CPU)


def test_indexer_refuses() -> None:
    inputs, _ = drawn("lightning_indexer", "decode_tiny")
    args = {n: inputs[n] for n in ("q", "k_cache", "weights", "seq_lens", "block_table")}
    with pytest.raises(InvalidArgumentError, match="k_cache.*pages of 64 tokens"):
        lightning_indexer(**{**args, "k_cache": torch.zeros(3, 128, 1, 132, dtype=torch.uint8)}, **CPU)
    with pytest.raises(ArgumentTypeError, match="k_cache.*one byte"):
        lightning_indexer(**{**args, "k_cache": torch.zeros(3, 64, 1, 132)}, **CPU)
    with pytest.raises(InvalidArgumentError, match="q: expected index_heads <= 64; got index_heads = 128"):
        lightning_indexer(
            **{
                **args,
                "q": args["q"].repeat(1, 1, 2, 1),
                "weights": args["weights"].repeat(1, 1, 2),
            },
            **CPU,
        )
    prefill, _ = drawn("lightning_indexer", "prefill_tiny")
    names = ("q", "k", "k_scales", "weights", "k_start", "k_end")
    with pytest.raises(InvalidArgumentError, match="out.*stride >= skv.*skv = 130, stride = 64"):
        lightning_indexer_prefill(*(prefill[n] for n in names), out=torch.empty(3, 64), **CPU)


def test_step_refuses_a_topk_that_selection_cannot_give() -> None:
    with pytest.raises(InvalidArgumentError, match="topk.*1 to 2048"):
        dsa.decode(**step_inputs([[10]]), sm_scale=0.1, topk=2049, **CPU)


def test_value_checks_find_what_a_launch_would_read_out_of_bounds(monkeypatch) -> None:
    monkeypatch.setenv("DSL_KERNELS_CHECK_VALUES", "1")
    inputs, _ = drawn("sparse_mla", "tiny_h16")
    q, pe, kv, ids = mla_args(inputs)
    bad = ids.clone()
    bad[0, 0] = kv.shape[0]
    with pytest.raises(
        InvalidArgumentError, match="indices.*token ids below the number of tokens, or -1; got 512 at"
    ):
        sparse_mla(q, pe, kv, bad, sm_scale=0.1, kpe=inputs["kpe"], **CPU)
    with pytest.raises(InvalidArgumentError, match="row_ends"):
        topk_selector(torch.zeros(1, 128), torch.tensor([129], dtype=torch.int32), 16, **CPU)
    index, _ = drawn("lightning_indexer", "decode_tiny")
    args = {n: index[n] for n in ("q", "k_cache", "weights", "seq_lens", "block_table")}
    lightning_indexer(**args, **CPU)
    with pytest.raises(InvalidArgumentError, match="seq_lens"):
        lightning_indexer(**{**args, "seq_lens": -args["seq_lens"]}, **CPU)
    table = args["block_table"].clone()
    table[0, 0] = 12
    with pytest.raises(InvalidArgumentError, match="block_table"):
        lightning_indexer(**{**args, "block_table": table}, **CPU)


EMPTY: dict[str, tuple[str, dict[str, Any]]] = {
    "selection of no columns": ("select", {"columns": 0}),
    "selection of no columns that says it has some": ("select", {"columns": 0, "ends": 5}),
    "selection of no columns by pages": ("select", {"columns": 0, "pages": 0}),
    "decode with tables of no page": ("decode", {"width": 0}),
    "decode with a cache of no page": ("decode", {"pages": 0, "width": 2}),
    "prefill of no key": ("prefill", {"keys": 0}),
    "prefill of no key that says it has some": ("prefill", {"keys": 0, "ends": 3}),
    "attention over no token": ("attend", {"tokens": 0}),
    "attention over no id": ("attend", {"topk": 0}),
}


def nothing(kind: str, sizes: dict[str, Any], device: str = "cpu") -> Callable[..., tuple[torch.Tensor, ...]]:
    """A call of two rows in which some input has no element; its results are those of an empty selection."""

    def zeros(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.float32, device=device).to(dtype)

    i32, u8, f8, f32 = torch.int32, torch.uint8, torch.float8_e4m3fn, torch.float32
    ends, keys, tokens = sizes.get("ends", 0), sizes.get("keys", 64), sizes.get("tokens", 64)
    queries = (zeros(2, 8, 512), zeros(2, 8, 64))
    if kind == "select":
        table = {"block_table": zeros(2, sizes["pages"], dtype=i32)} if "pages" in sizes else {}
        scores, lens = zeros(2, sizes["columns"], dtype=f32), zeros(2, dtype=i32) + ends
        return lambda **where: (topk_selector(scores, lens, 64, **table, **where),)
    if kind == "attend":
        ids, rows = zeros(2, sizes.get("topk", 64), dtype=i32) - 1, (zeros(tokens, 512), zeros(tokens, 64))
        return lambda **where: sparse_mla(*queries, rows[0], ids, kpe=rows[1], sm_scale=0.1, **where)
    if kind == "decode":
        pages, width = sizes.get("pages", 2), sizes["width"]
        index = (
            zeros(2, 1, 32, 128, dtype=f8),
            zeros(pages, 64, 1, 132, dtype=u8),
            zeros(2, 1, 32, dtype=f32),
        )
        lens, cache = (zeros(2, 1, dtype=i32), zeros(2, width, dtype=i32)), zeros(pages, 64, 1, 656, dtype=u8)
        step = partial(dsa.decode, *index, *lens, *queries, cache, sm_scale=0.1, topk=64)
    else:
        index = (
            zeros(2, 32, 128, dtype=f8),
            zeros(keys, 128, dtype=f8),
            zeros(keys, dtype=f32),
            zeros(2, 32, dtype=f32),
        )
        window, cache = (zeros(2, dtype=i32), zeros(2, dtype=i32) + ends), zeros(keys, 576)
        step = partial(dsa.prefill, *index, *window, *queries, cache, sm_scale=0.1, topk=64)
    return lambda **where: (lambda output: (output.out, output.lse, output.indices))(step(**where))


def of_nothing(outputs: tuple[torch.Tensor, ...]) -> bool:
    """Whether ids are -1, outputs zero and their lse -inf."""
    wanted = {torch.int32: -1, torch.bfloat16: 0, torch.float32: -math.inf}
    return all(bool((tensor == wanted[tensor.dtype]).all()) for tensor in outputs)


@pytest.mark.parametrize("case", EMPTY)
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
def test_inputs_without_an_element_select_nothing(arch: str, case: str) -> None:
    assert of_nothing(nothing(*EMPTY[case])(executor="interpreter", arch=arch))


def test_selection_takes_the_scores_of_any_width() -> None:
    inputs = step_inputs([[130], [64]])
    out = torch.zeros(2, 1, 3 * 64 + 2)
    index = (inputs[n] for n in ("q_index", "k_index_cache", "weights", "seq_lens", "block_table"))
    scores = lightning_indexer(*index, out=out, **CPU)[:, 0]
    ids = topk_selector(scores, inputs["seq_lens"][:, 0], 100, **CPU)
    assert torch.equal(ids[0].long(), scores[0, :130].topk(100).indices.sort().values)
    assert torch.equal(ids[1, :64].long(), torch.arange(64)) and (ids[1, 64:] == -1).all()


def test_an_unknown_variant_is_named_with_those_near_it() -> None:
    known = next(v.id for v in variants.variants("topk_selector") if v.arch == "sm_90a")
    with pytest.raises(UnknownNameError, match=known):
        topk_selector(torch.zeros(1, 64), torch.tensor([64], dtype=torch.int32), 8, variant=known[:-1], **CPU)
    with pytest.raises(UnknownNameError, match="variant of sparse_mla"):
        inputs = step_inputs([[130], [64]])
        ids = torch.zeros(2, 64, dtype=torch.int32)
        sparse_mla(
            inputs["q_nope"],
            inputs["q_pe"],
            inputs["kv"],
            ids,
            kpe=inputs["kpe"],
            sm_scale=0.1,
            variant=known,
            **CPU,
        )


def test_an_operand_is_handed_on_without_detours(monkeypatch) -> None:
    """From the op to the launch, only functions of few files receive the operand, one after the other."""
    library = str(Path(_base.__file__).parents[1])
    inputs, _ = drawn("sparse_mla", "tiny_h16")
    wanted, stays, launched = inputs["q_nope"], [], []

    class Launch:
        def __call__(self, operands: dict, dims: dict, stream: int = 0) -> None:
            launched.append(operands["q_nope"] is wanted)

        def check(self, operands: dict, dims: dict) -> None: ...

    def holds(value: object, depth: int = 2) -> bool:
        """Whether a value is the tensor or contains it, directly or as a wrapped function's argument."""
        if isinstance(value, dict | tuple) and depth:
            return any(holds(v, depth - 1) for v in (value.values() if isinstance(value, dict) else value))
        return value is wanted

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        # Code that the library generates for a declaration has no file.
        if event == "call" and (file.startswith(library) or file == "<string>") and stays[-1:] != [file]:
            stays.extend([file] if any(map(holds, frame.f_locals.values())) else [])

    monkeypatch.setattr(_base, "_launcher", lambda *_: Launch())
    _base.clear()
    sys.setprofile(note)
    try:
        sparse_mla(*mla_args(inputs), kpe=inputs["kpe"], sm_scale=1.0, **CPU)
    finally:
        sys.setprofile(None)
    assert launched == [True] and stays[:2] == ["<string>", f"{library}/kernels/sparse_mla/op.py"]
    assert len(stays[1:]) <= 8, stays
