"""How scores of `lightning_indexer` are judged: the reference, tolerances, workloads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from dsl_kernels.kernels.lightning_indexer.mxfp4 import KEY_BYTES, PAGE_BYTES
from dsl_kernels.kernels.lightning_indexer.problem import (
    BLOCK,
    FEW_HEADS,
    FOUR_BITS,
    PAGE,
    PROBLEM,
    SCORES,
    of_a_row,
    parts_of,
)
from dsl_kernels.problems.base import Comparison
from dsl_kernels.problems.layouts import INDEX_DIM

from ..layouts import mxfp4_of, power_of, unpack_index_keys
from . import Oracle, Workload
from ._indexer_inputs import make


def _score(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    dots = q.double() @ keys.double().T
    return (weights.double()[:, None] * dots.clamp(min=0)).sum(dim=0) * scales.double()


def reference(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Float64 logits, NaN where the kernel writes nothing."""
    mode, kind = parts_of(form)
    if kind in FOUR_BITS and mode == "decode":
        return {"logits": _logits_of_four_bits(inputs)}
    if kind == "blocks":
        logits = _logits_of_blocks(inputs)
        return {"logits": logits, **({"maxima": _maxima_of(logits)} if inputs["has_maxima"] else {})}
    return {"logits": (_prefill_logits if mode == "prefill" else _decode_logits)(inputs)}


def _prefill_logits(inputs: Mapping[str, Any]) -> torch.Tensor:
    inputs = _unscaled(inputs) if "q_scales" in inputs else inputs
    rows, columns = inputs["q"].shape[0], inputs["k"].shape[0]
    logits = torch.full((rows, columns), float("nan"), dtype=torch.float64, device=inputs["q"].device)
    for row in range(rows):
        start, end = max(0, int(inputs["k_start"][row])), min(columns, int(inputs["k_end"][row]))
        if end - start > inputs.get("skip_below", 0):
            first = 0 if inputs.get("compressed") else start
            logits[row, first : first + end - start] = _score(
                inputs["q"][row],
                inputs["weights"][row],
                inputs["k"][start:end],
                inputs["k_scales"][start:end],
            )
    return logits


def _decode_logits(inputs: Mapping[str, Any]) -> torch.Tensor:
    page, dim = inputs.get("page_size", PAGE), inputs["q"].shape[-1]
    values, scales = unpack_index_keys(inputs["k_cache"], page, dim)
    lens = inputs["seq_lens"]
    b, next_n = lens.shape
    weights = inputs["weights"].reshape(b, next_n, -1)
    shape = (b, next_n, max(1, int(lens.max())))
    logits = torch.full(shape, float("nan"), dtype=torch.float64, device=lens.device)
    for row in range(b):
        for query in range(next_n):
            length = int(lens[row, query])
            if length <= inputs.get("skip_below", 0) or length == 0:
                continue
            ids = inputs["block_table"][row, : -(-length // page)].long()
            keys, key_scales = values[ids].reshape(-1, dim)[:length], scales[ids].reshape(-1)[:length]
            logits[row, query, :length] = _score(
                inputs["q"][row, query], weights[row, query], keys, key_scales
            )
    return logits


def _logits_of_blocks(inputs: Mapping[str, Any]) -> torch.Tensor:
    """Scores of rows whose keys are in units of the cache."""
    lens, (values, scales) = inputs["seq_lens"], _keys_of(inputs)
    shape = (*lens.shape, max(1, int(lens.max())))
    logits = torch.full(shape, float("nan"), dtype=torch.float64, device=lens.device)
    for row, length in enumerate(lens.flatten().tolist()):
        if length > max(0, inputs.get("skip_below", 0)):
            places = _tokens_of(inputs, row, length)
            q = inputs["q"].flatten(0, 1)[row]
            scored = _score(q, inputs["weights"][row], values[places], scales[places])
            logits.view(-1, shape[-1])[row, :length] = scored
    return logits


def _keys_of(inputs: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """The fp8 values [tokens, dim] and the float32 scales [tokens] of a cache, token by token."""
    page, dim = inputs["page_size"], inputs["q"].shape[-1]
    values, scales = unpack_index_keys(inputs["k_cache"], page, dim)
    if inputs["mx"]:
        scales = power_of(scales.contiguous().view(torch.uint8)[..., ::4])
    return values.reshape(-1, dim), scales.reshape(-1)


def _tokens_of(inputs: Mapping[str, Any], row: int, length: int) -> torch.Tensor:
    """The places of the first `length` keys of a row among all tokens of the cache."""
    unit = inputs["block_size"]
    entries = inputs["block_table"][row // inputs["sharing"], : -(-length // unit)].long()
    places: torch.Tensor = entries[:, None] * unit + torch.arange(unit, device=entries.device)
    return places.flatten()[:length]


def _maxima_of(logits: torch.Tensor) -> torch.Tensor:
    """The greatest score of each `BLOCK` columns, NaN where no column is written."""
    rows = logits.flatten(0, -2)
    padded = torch.nn.functional.pad(rows, (0, -rows.shape[1] % BLOCK), value=torch.nan)
    written: torch.Tensor = padded.nan_to_num(nan=-math.inf).view(len(rows), -1, BLOCK).amax(dim=2)
    return torch.where(written == -math.inf, torch.nan, written)


def _unscaled(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of a prompt with the values of queries and keys, whose scales are then 1."""
    q, k = (mxfp4_of(inputs[name], inputs[f"{name}_scales"]) for name in "qk")
    return {**inputs, "q": q, "k": k, "k_scales": torch.ones_like(inputs["k_scales"])}


def _logits_of_four_bits(inputs: Mapping[str, Any]) -> torch.Tensor:
    """Float64 scores of rows, NaN where nothing is written."""
    lens, pages = inputs["seq_lens"].flatten(), inputs["k_cache"].shape[0]
    cache = inputs["k_cache"].reshape(pages, PAGE_BYTES)
    split = PAGE * KEY_BYTES
    words = cache[:, split:].contiguous().view(torch.int32).view(pages, PAGE)
    keys = mxfp4_of(cache[:, :split].reshape(pages, PAGE, KEY_BYTES), words)
    q = mxfp4_of(inputs["q"].flatten(0, 1), inputs["q_scales"])
    weights = inputs["weights"].flatten(0, 1).double()
    logits = torch.full(
        (len(lens), max(1, int(lens.max()))), torch.nan, dtype=torch.float64, device=lens.device
    )
    for row, length in enumerate(lens.tolist()):
        if length > max(0, inputs.get("skip_below", 0)):
            sequence = row // inputs["seq_lens"].shape[1]
            ids = inputs["block_table"][sequence // inputs["sharing"], : -(-length // PAGE)].long()
            dots = q[row].double() @ keys[ids].reshape(-1, INDEX_DIM)[:length].double().T
            logits[row, :length] = (weights[row][:, None] * dots.clamp(min=0)).sum(dim=0)
    return logits.view(*inputs["seq_lens"].shape, -1)


# Limits of the relative error. Rounding alone moves a score in bf16 by up to 2^-9.
LIMITS = {"float32": 1e-3, "bfloat16": 3e-3}


def compare(
    form: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], expected: Mapping[str, Any]
) -> Comparison:
    """Require a relative error <= 1e-3 over the valid columns, <= 3e-3 for scores in bf16.

    Columns outside the valid ones are ignored. Maxima equal the maxima of the scores bit by bit.
    """
    result = Comparison()
    wanted = expected["logits"]
    got = outputs["logits"][..., : wanted.shape[-1]].double()
    valid = ~wanted.isnan()
    error, norm = (got[valid] - wanted[valid]).norm(), wanted[valid].norm()
    figure = float(error / norm) if norm > 0 else float(error)
    result.require("logits relative error", figure, LIMITS[SCORES[parts_of(form)[1]]])
    if "maxima" in expected:
        own = _maxima_of(torch.where(valid, got, torch.nan))
        there = ~expected["maxima"].isnan()
        most = outputs["maxima"][:, : own.shape[1]].double()
        result.demand("maxima are the greatest scores", bool((most[there] == own[there]).all()))
    return result


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """Tensor-core and fp32 operations: 2 * heads * dim and about 3 * heads per (query, key) pair."""
    heads, key, _ = of_a_row(form, dims)
    pairs = (
        dims["s"] * (dims["skv"] - dims["s"] / 2)
        if parts_of(form)[0] == "prefill"
        else float(dims["b"] * dims["next_n"] * dims["max_len"])
    )
    if parts_of(form)[1] in FOUR_BITS:
        return {"float4_e2m1x2": 2.0 * heads * INDEX_DIM * pairs, "float32": 3.0 * heads * pairs}
    return {"float8_e4m3": 2.0 * heads * (key - 4) * pairs, "float32": 3.0 * heads * pairs}


def units(form: str, dims: Mapping[str, int]) -> tuple[str, int]:
    """The queries that a call scores."""
    return "queries", dims["s"] if parts_of(form)[0] == "prefill" else dims["b"] * dims["next_n"]


def _decode(
    name: str, tier: str, lens: list[list[int]], heads: int = 64, pages: int = 12, **extra: Any
) -> Workload:
    return Workload(name, tier, "decode", {"lens": lens, "heads": heads, "pages": pages, **extra})


def _decode_any(
    name: str, tier: str, lens: list[list[int]], heads: int, dim: int, page: int, **extra: Any
) -> Workload:
    sizes = {"lens": lens, "index_heads": heads, "index_dim": dim, "page_size": page, "pages": 24}
    return Workload(name, tier, "decode_any", {**sizes, **extra})


def _decode_blocks(
    name: str, tier: str, lens: list[int], heads: int, dim: int, page: int, **extra: Any
) -> Workload:
    sizes = {
        "lens": [[n] for n in lens],
        "index_heads": heads,
        "index_dim": dim,
        "page_size": page,
        "pages": 24,
    }
    return Workload(name, tier, "decode_blocks", {**sizes, **extra})


def _decode_mxfp4(
    name: str, tier: str, lens: list[int] | list[list[int]], heads: int = 64, **extra: Any
) -> Workload:
    by_query = [n if isinstance(n, list) else [n] for n in lens]
    return Workload(
        name, tier, "decode_mxfp4", {"lens": by_query, "index_heads": heads, "pages": 24, **extra}
    )


def _prefill_mxfp4(name: str, tier: str, s: int, skv: int, heads: int, **extra: Any) -> Workload:
    return Workload(name, tier, "prefill_mxfp4", {"s": s, "skv": skv, "index_heads": heads, **extra})


def _prefill_any(name: str, tier: str, s: int, skv: int, heads: int, dim: int, **extra: Any) -> Workload:
    sizes = {"s": s, "skv": skv, "index_heads": heads, "index_dim": dim}
    return Workload(name, tier, "prefill_any", {**sizes, **extra})


def _share_workloads(form: str, other: str) -> bool:
    """Whether a workload of `form` can also be drawn in the form `other`.

    Workloads of a plain form fit the other forms of its mode, and workloads with fp32 scores fit bf16 scores.
    """
    (mode, kind), (wanted, as_kind) = parts_of(form), parts_of(other)
    if "blocks" in (kind, as_kind) or (kind in FOUR_BITS) != (as_kind in FOUR_BITS):
        return form == other
    return mode == wanted and as_kind != "plain" and kind in ("plain", "any", "mxfp4", as_kind)


ORACLE = Oracle(
    **vars(PROBLEM),
    workloads=(
        _decode("decode_tiny", "tiny", [[100]]),
        _decode("decode_tiny_h32", "tiny", [[130]], heads=32),
        _decode("decode_ragged", "edge", [[0], [1], [63], [64], [65], [200], [319]]),
        _decode("decode_mtp3", "edge", [[98, 99, 100], [0, 0, 1], [190, 64, 7]]),
        _decode("decode_mtp8_h32", "edge", [[121, 122, 123, 124, 125, 126, 127, 128]], heads=32),
        _decode("decode_strided", "edge", [[98, 99], [0, 1], [190, 64]], strided=True),
        _decode("decode_one_strided", "edge", [[98], [0], [190]], strided=True),
        *(_decode(f"decode_tiny_h{h}", "tiny", [[130]], heads=h) for h in FEW_HEADS),
        *(
            _decode(
                f"decode_ragged_h{h}",
                "edge",
                [[98, 99, 100, 101, 102], [0, 0, 1, 0, 0], [190, 64, 7, 300, 1]],
                heads=h,
            )
            for h in FEW_HEADS
        ),
        _decode("decode_tiny_n16", "tiny", [[*range(185, 201)], [*range(16)]]),
        _decode("decode_tiny_n13_h32", "tiny", [[*range(188, 201)], [*range(13)]], heads=32),
        _decode("decode_mtp8_h16", "edge", [[121, 122, 123, 124, 125, 126, 127, 128]], heads=16),
        _decode("decode_skip", "edge", [[128], [129]], skip_below=128),
        _decode("decode_long", "real", [[4096], [2049], [2047], [0]], pages=11923),
        _decode("decode_64x4k", "real", [[4096]] * 64, pages=11923),
        Workload("prefill_tiny", "tiny", "prefill", {"s": 3, "skv": 130, "heads": 64}),
        Workload("prefill_ragged", "edge", "prefill", {"s": 9, "skv": 300, "heads": 64, "windows": "ragged"}),
        Workload(
            "prefill_strided",
            "edge",
            "prefill",
            {"s": 9, "skv": 131, "heads": 64, "windows": "ragged", "strided": True},
        ),
        Workload("prefill_h32", "edge", "prefill", {"s": 5, "skv": 129, "heads": 32}),
        *(
            Workload(f"prefill_tiny_h{h}", "tiny", "prefill", {"s": 3, "skv": 130, "heads": h})
            for h in FEW_HEADS
        ),
        *(
            Workload(
                f"prefill_ragged_h{h}",
                "edge",
                "prefill",
                {"s": 21, "skv": 300, "heads": h, "windows": "ragged"},
            )
            for h in FEW_HEADS
        ),
        _decode_any("decode_any_page16", "tiny", [[130], [0], [17]], 12, 32, 16),
        _decode_any("decode_any_page256", "tiny", [[300, 1, 257]], 64, 64, 256),
        _decode_any("decode_any_page48", "edge", [[98, 320, 15], [0, 49, 1], [190, 48, 700]], 32, 128, 48),
        _decode_any("decode_any_page128", "edge", [[129, 128, 1], [700, 64, 7]], 40, 96, 128),
        _decode_any("decode_any_n16", "edge", [[*range(185, 201)], [*range(16)]], 16, 128, 64),
        _decode_any("decode_any_strided", "edge", [[98, 99], [0, 1], [190, 64]], 64, 32, 32, strided=True),
        _decode_any("decode_any_strided_h8", "edge", [[98, 99], [0, 1], [190, 64]], 8, 64, 16, strided=True),
        _decode_any("decode_any_skip", "edge", [[128], [129]], 4, 16, 32, skip_below=128),
        _decode_blocks("decode_blocks_tiny", "tiny", [130, 0, 7], 64, 128, 64, block_size=8, maxima=1),
        _decode_blocks("decode_blocks_tiny_h32", "tiny", [200, 9], 32, 128, 64, mx=1),
        _decode_blocks(
            "decode_blocks_shared", "edge", [98, 320, 15, 64, 1], 12, 64, 24, sharing=2, mx=1, maxima=1
        ),
        _decode_blocks(
            "decode_blocks_lists", "edge", [129, 700, 3, 64], 40, 96, 128, block_size=16, mx=1, maxima=1
        ),
        _decode_blocks("decode_blocks_skip", "edge", [128, 129], 32, 32, 8, maxima=1, skip_below=128),
        _decode_mxfp4("decode_mxfp4_tiny", "tiny", [130, 0, 7]),
        _decode_mxfp4("decode_mxfp4_tiny_h32", "tiny", [200, 9], heads=32),
        _decode_mxfp4("decode_mxfp4_shared", "edge", [98, 320, 15, 64, 0, 1, 700], sharing=2),
        _decode_mxfp4("decode_mxfp4_shared_h32", "edge", [98, 320, 15, 64, 0, 1, 700], heads=32, sharing=3),
        *(
            _decode_mxfp4(f"decode_mxfp4_h{h}", "edge", [98, 0, 320, 1, 700, 64], heads=h, sharing=2)
            for h in (*FEW_HEADS, 40)
        ),
        _decode_mxfp4("decode_mxfp4_skip", "edge", [128, 129], skip_below=128),
        _decode_mxfp4("decode_mxfp4_n3", "tiny", [[98, 99, 100], [0, 0, 1], [190, 64, 7]]),
        _decode_mxfp4("decode_mxfp4_n6_h32", "tiny", [[130, 2, 129, 0, 64, 128]], heads=32),
        *(
            _decode_mxfp4(f"decode_mxfp4_n7_h{h}", "edge", [[98, 0, 1, 64, 65, 130, 2]] * 2, heads=h)
            for h in (*FEW_HEADS, 40)
        ),
        _decode_mxfp4("decode_mxfp4_n16", "edge", [[*range(185, 201)], [*range(16)]]),
        _decode_mxfp4("decode_mxfp4_n13_h32", "edge", [[*range(188, 201)], [*range(13)]], heads=32),
        _prefill_mxfp4("prefill_mxfp4_tiny", "tiny", 3, 130, 64),
        _prefill_mxfp4("prefill_mxfp4_tiny_h32", "tiny", 7, 130, 32, compressed=1, windows="ragged"),
        *(
            _prefill_mxfp4(f"prefill_mxfp4_h{h}", "edge", 13, 300, h, windows="ragged", strided=True)
            for h in (*FEW_HEADS, 40)
        ),
        _prefill_mxfp4("prefill_mxfp4_ragged", "edge", 9, 300, 64, compressed=1, windows="ragged"),
        _prefill_mxfp4("prefill_mxfp4_ragged_h32", "edge", 21, 300, 32, windows="ragged", strided=True),
        _prefill_any("prefill_any_tiny", "tiny", 3, 130, 64, 32),
        _prefill_any("prefill_any_tiny_h8", "tiny", 3, 130, 8, 64, compressed=1, windows="ragged"),
        _prefill_any("prefill_any_ragged", "edge", 21, 300, 40, 128, compressed=1, windows="ragged"),
        _prefill_any("prefill_any_ragged_h16", "edge", 21, 300, 16, 96, compressed=1, windows="ragged"),
        _prefill_any("prefill_any_strided", "edge", 9, 131, 64, 64, windows="ragged", strided=True),
        _prefill_any(
            "prefill_any_strided_h32", "edge", 9, 131, 32, 32, compressed=1, windows="ragged", strided=True
        ),
        Workload("prefill_4k", "real", "prefill", {"s": 512, "skv": 4096, "heads": 64}),
    ),
    make=make,
    reference=reference,
    compare=compare,
    flops=flops,
    units=units,
    forms_share_workloads=_share_workloads,
)
