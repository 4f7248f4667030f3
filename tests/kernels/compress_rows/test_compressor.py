"""The compressor of DeepSeek-V4: windows, halves, norm, rope, and the bytes of a row."""

from __future__ import annotations

import cmath
import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from dsl_kernels.dsa import compressor, v4
from dsl_kernels.errors import ArgumentTypeError, InvalidArgumentError
from dsl_kernels_lab.layouts import unpack_index_keys, unpack_v4_pages
from dsl_kernels_lab.timing import bench, measure


def drawn(n: int, ratio: int, parts: int, dim: int, seed: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "kv": normal(n, parts * dim), "scores": 2 * normal(n, parts * dim), "ape": normal(ratio, parts * dim),
        "weight": 1 + 0.1 * normal(dim),
    }  # fmt: skip


def one_row(given: dict[str, torch.Tensor], ratio: int, parts: int, p: int, rope_dim: int) -> list[float]:
    """The row that ends at position `p`, computed number by number as the contract says."""
    kv, scores, ape, weight = (given[name].double().tolist() for name in ("kv", "scores", "ape", "weight"))
    dim = len(weight)
    row = []
    for channel in range(dim):
        over = value = 0.0
        for j in range(parts * ratio):
            position = p - parts * ratio + 1 + j
            if position < 0:
                continue
            own = channel + (dim if parts == 2 and j >= ratio else 0)
            e = math.exp(scores[position][own] + ape[position % ratio][own])
            over += e
            value += e * kv[position][own]
        row.append(value / over)
    norm = math.sqrt(sum(x * x for x in row) / dim + 1e-6)
    row = [x / norm * w for x, w in zip(row, weight, strict=True)]
    at = p // ratio * ratio
    for pair in range(rope_dim // 2):
        where = dim - rope_dim + 2 * pair
        turned = complex(row[where], row[where + 1]) * cmath.exp(1j * at * 160000.0 ** (-2 * pair / rope_dim))
        row[where], row[where + 1] = turned.real, turned.imag
    return row


@pytest.mark.parametrize("ratio,parts", [(4, 2), (4, 1), (128, 1)])
def test_rows_are_as_the_contract_says_number_by_number(ratio: int, parts: int) -> None:
    given = drawn(2 * ratio + ratio + 3, ratio, parts, 12)
    result = v4.compress(**given, ratio=ratio, rope_dim=8)
    wanted = [one_row(given, ratio, parts, (i + 1) * ratio - 1, 8) for i in range(3)]
    assert result.first == 0 and result.rows.shape == (3, 12)
    torch.testing.assert_close(result.rows, torch.tensor(wanted, dtype=torch.float64), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("first", [4, 7, 8])
def test_a_later_call_goes_on_where_the_tokens_of_a_window_are_kept(first: int) -> None:
    given = drawn(41, 4, 2, 12)
    whole = v4.compress(**given, ratio=4, rope_dim=8)
    later = {**given, "kv": given["kv"][first:], "scores": given["scores"][first:]}
    part = v4.compress(**later, ratio=4, first=first, rope_dim=8)
    # Row i needs the tokens from 4 i - 4 on.
    assert part.first == -(-(first + 4) // 4)
    assert torch.equal(part.rows, whole.rows[part.first :])
    few = {**given, "kv": given["kv"][:3], "scores": given["scores"][:3]}
    nothing = v4.compress(**few, ratio=4, rope_dim=8)
    assert nothing.rows.shape == (0, 12)


def test_float32_is_close_to_float64() -> None:
    given = drawn(64, 4, 2, 512)
    exact, rough = (
        v4.compress(**given, ratio=4, dtype=dtype).rows for dtype in (torch.float64, torch.float32)
    )
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough.double(), exact, rtol=1e-4, atol=1e-5)


def test_rows_are_stored_where_attention_and_the_indexer_read_them() -> None:
    """Pages follow the sequence's block table; other rows keep their content."""
    table = torch.tensor([5, 0, 3], dtype=torch.int32)
    given = drawn(90 * 4, 4, 2, 512)
    result = v4.compress(**given, ratio=4)
    part = compressor.Compressed(result.rows[37:], 37)
    # 32 rows per page, with the page stride that attention requires.
    flat = torch.full((6, 33 * 576), 7, dtype=torch.uint8)
    cache = flat.as_strided((6, 32, 1, 584), (33 * 576, 584, 584, 1))
    compressor.store(part, cache, table)
    unpacked = unpack_v4_pages(cache)
    for number in (37, 63, 64, 89):
        got, wanted = unpacked[table[number // 32], number % 32], result.rows[number].float()
        assert float((got - wanted).norm() / wanted.norm()) < 0.04
        assert torch.equal(got[448:], wanted[448:].to(torch.bfloat16).float())
    assert bool((flat[5] == 7).all()) and bool((flat[0, : 5 * 576] == 7).all())
    assert bool((flat[[1, 2, 4]] == 7).all()) and bool((flat[3, 26 * 576 : 32 * 576] == 7).all())

    keys = v4.compress(**drawn(90 * 4, 4, 2, 128), ratio=4)
    index = torch.full((6, 32, 1, 132), 7, dtype=torch.uint8)
    compressor.store(keys, index, table)
    values, scales = unpack_index_keys(index, 32)
    for number in (0, 31, 32, 89):
        page, place = table[number // 32], number % 32
        got = values[page, place].float() * scales[page, place]
        assert float((got - keys.rows[number]).norm() / keys.rows[number].norm()) < 0.04


@pytest.mark.parametrize(
    "changed,names",
    [
        ({"ratio": 0}, "ratio"),
        ({"ratio": 3}, "ape"),
        ({"first": -1}, "first"),
        ({"rope_dim": 7}, "rope_dim"),
        ({"rope_dim": 14}, "rope_dim"),
        ({"kv": torch.zeros(8, 30)}, "kv"),
        ({"scores": torch.zeros(7, 24)}, "scores"),
        ({"weight": torch.zeros(0)}, "weight"),
        ({"dtype": torch.float16}, "dtype"),
        ({"eps": math.nan}, "eps"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changed: dict[str, Any], names: str) -> None:
    with pytest.raises((ArgumentTypeError, InvalidArgumentError), match=names):
        v4.compress(**{**drawn(8, 4, 2, 12), "ratio": 4, "rope_dim": 8, **changed})


def test_a_cache_that_does_not_hold_the_rows_is_refused() -> None:
    result = v4.compress(**drawn(40, 4, 2, 128), ratio=4)
    cache, table = torch.zeros(2, 8, 1, 132, dtype=torch.uint8), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(InvalidArgumentError, match="block_table"):
        compressor.store(result, cache, table)
    with pytest.raises(InvalidArgumentError, match="cache"):
        compressor.store(result, torch.zeros(2, 8, 1, 584, dtype=torch.uint8), table)
    with pytest.raises(InvalidArgumentError, match="rows"):
        compressor.store(compressor.Compressed(torch.zeros(1, 64), 0), cache, table)


def cache_of(pages: int, page: int, each: int) -> torch.Tensor:
    """Pages with gaps between them, and a pattern in every byte."""
    stride = -(-page * each // 576) * 576
    flat = torch.full((pages, stride), 0x55, dtype=torch.uint8)
    return flat.as_strided((pages, page, 1, each), (stride, each, each, 1))


def kernel_call(ratio: int, parts: int, dim: int, page: int, rows: int = 6) -> dict[str, Any]:
    """A prompt's rows as the kernel takes them, in pages of any order; the last row has no slot."""
    given = drawn(rows * ratio, ratio, parts, dim)
    number = torch.arange(rows, dtype=torch.int32)
    table = torch.randperm(rows // page + 2, generator=torch.Generator().manual_seed(5)).int()
    ends = (number[:, None] + 1) * ratio
    slots = table[number // page] * page + number % page
    slots[-1] = -2
    turns = torch.arange(rows * ratio).double()[:, None] * 160000.0 ** (-torch.arange(0, 64, 2).double() / 64)
    return {
        **given,
        "windows": (ends - parts * ratio + torch.arange(parts * ratio)).clamp(min=-1).int(),
        "positions": number * ratio, "cos_sin": torch.cat((turns.cos(), turns.sin()), dim=1).float(),
        "row_slots": slots,
        "cache": cache_of(len(table), page, {512: 584, 128: 132}[dim]), "table": table,
    }  # fmt: skip


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a"])
@pytest.mark.parametrize("ratio,parts,dim,page", [(4, 2, 512, 2), (4, 2, 128, 64), (128, 1, 512, 2)])
def test_the_kernel_writes_the_bytes_that_store_does(
    ratio: int, parts: int, dim: int, page: int, arch: str
) -> None:
    call = kernel_call(ratio, parts, dim, page)
    table, cache = call.pop("table"), call["cache"]
    # An engine's state stores scores after values.
    state = torch.cat((call["kv"], call["scores"]), dim=1)
    call["kv"], call["scores"] = state.chunk(2, dim=1)
    v4.compress_rows(**call, executor="interpreter", arch=arch)
    wanted = cache_of(len(table), page, cache.shape[-1])
    made = v4.compress(
        call["kv"], call["scores"], call["ape"], call["weight"], ratio=ratio, dtype=torch.float32
    )
    compressor.store(made._replace(rows=made.rows[:-1]), wanted, table)
    flat = [x.as_strided((len(x), x.stride(0)), (x.stride(0), 1)) for x in (cache, wanted)]
    assert torch.equal(*flat), int((flat[0] != flat[1]).sum())


BAD_CALLS: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "weight": ({"weight": torch.ones(256)}, InvalidArgumentError, r"weight.*\[512\] or \[128\]"),
    "cache": ({"cache": cache_of(5, 2, 132)}, InvalidArgumentError, r"cache.*584"),
    "words": ({"cache": torch.zeros(5, 2, 1, 584)}, ArgumentTypeError, "cache.*one byte"),
    "apart": (
        {"cache": torch.zeros(5 * 1171, dtype=torch.uint8).as_strided((5, 2, 1, 584), (1170, 584, 584, 1))},
        InvalidArgumentError, "cache.*multiples of 4 bytes.*1170",
    ),
    "span": ({"windows": torch.zeros(6, 9, dtype=torch.int32)}, InvalidArgumentError, "span"),
    "scores": ({"scores": torch.zeros(24, 512)}, InvalidArgumentError, "scores"),
    "slots": ({"row_slots": torch.zeros(5, dtype=torch.int32)}, InvalidArgumentError, "row_slots"),
    "angles": ({"cos_sin": torch.zeros(24, 32)}, InvalidArgumentError, "cos_sin.*64"),
    "eps": ({"eps": -1.0}, InvalidArgumentError, "eps"),
    "kv": ({"kv": torch.zeros(24, 1024).bfloat16()}, ArgumentTypeError, "kv"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_CALLS)
def test_the_kernel_refuses(case: str) -> None:
    change, error, message = BAD_CALLS[case]
    call = kernel_call(4, 2, 512, 2)
    call.pop("table")
    with pytest.raises(error, match=message):
        v4.compress_rows(**{**call, **change}, executor="interpreter")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("windows", 24, "below the tokens"),
        ("positions", -1, "lines of cos_sin"),
        ("row_slots", 99, "slots of the cache"),
    ],
)
def test_ids_that_name_nothing_are_found_where_values_are_checked(
    name: str, value: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DSL_KERNELS_CHECK_VALUES", "1")
    call = kernel_call(4, 2, 512, 2)
    call.pop("table")
    v4.compress_rows(**call, executor="interpreter")
    call[name][2] = value
    with pytest.raises(InvalidArgumentError, match=f"{name}.*{message}"):
        v4.compress_rows(**call, executor="interpreter")


def test_the_benchmark_compares_the_kernel_and_torch_with_the_reference(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = Path(__file__).parents[3] / "benchmarks" / "compressed_rows.py"
    spec = importlib.util.spec_from_file_location("compressed_rows", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("DSL_KERNELS_EXECUTOR", "interpreter")
    monkeypatch.setattr(measure, "DEVICE", "cpu")
    monkeypatch.setattr(bench, "require_gpu", lambda: "a GPU")
    monkeypatch.setattr(bench, "turns", lambda touched: 1)
    monkeypatch.setattr(bench, "graph_time", lambda calls: bench.Timing(3.0, 3.0, 3.0, len(calls), 1))
    out = tmp_path / "rows.jsonl"
    monkeypatch.setattr(
        sys, "argv", ["compressed_rows.py", "--rows", "1,3", "--no-compile", "--out", str(out)]
    )
    assert module.main() == 0
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 6 and table[2].startswith("| 512 | 4 | 1 | 3.00 |")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert {(row["dim"], row["ratio"]) for row in rows} == {(512, 4), (512, 128), (128, 4)}
    # The check must also catch a wrong result of torch.
    right = module.in_torch
    monkeypatch.setattr(module, "in_torch", lambda *args: right(*args[:2], -args[2], *args[3:]))
    assert module.main() == 0
    captured = capsys.readouterr()
    assert "eager: RuntimeError" in captured.err and "| 3.00 | None | None | None |" in captured.out
    monkeypatch.setattr(module, "kernel", lambda given: None)
    with pytest.raises(RuntimeError, match="a step"):
        module.main()
