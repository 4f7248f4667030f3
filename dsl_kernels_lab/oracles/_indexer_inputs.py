"""Drawn inputs of `lightning_indexer`: queries, caches in their formats, block tables and windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dsl_kernels.kernels.lightning_indexer.problem import BLOCK, FOUR_BITS, PAGE, parts_of
from dsl_kernels.problems.layouts import INDEX_DIM, pack_index_keys
from dsl_kernels.problems.mxfp4 import MXFP4_GROUP, pack_mxfp4_index_keys, quantise_mxfp4

from ..layouts import unpack_index_keys
from . import Workload


def _normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float32, device=generator.device)


def _queries(
    rows: tuple[int, ...], heads: int, generator: torch.Generator, dim: int = INDEX_DIM
) -> tuple[torch.Tensor, torch.Tensor]:
    q = _normal(generator, *rows, heads, dim).clamp(-2, 2).to(torch.float8_e4m3fn)
    return q, _normal(generator, *rows, heads)


def _lens(p: Mapping[str, Any]) -> list[list[int]]:
    """Lengths by sequence and query; one length for all where the sizes of a point are given."""
    lens: list[list[int]] = p.get("lens", [[PAGE]])
    if not {"b", "next_n", "len"} & p.keys():
        return lens
    longest = p.get("len", max(map(max, lens)))
    return [[longest] * p.get("next_n", len(lens[0]))] * p.get("b", len(lens))


def make(workload: Workload, generator: torch.Generator) -> dict[str, Any]:
    p = dict(workload.params)
    mode, kind = parts_of(workload.form)
    if kind in FOUR_BITS and mode == "decode":
        return _make_decode_of_four_bits(p, generator)
    if kind != "plain":
        p["heads"] = p["index_heads"] if "index_heads" in p else p["heads"]
    if kind == "blocks":
        return _make_blocks(p, generator)
    drawn = (_make_prefill if mode == "prefill" else _make_decode)(p, kind, generator)
    return {**drawn, **_strided(drawn, kind)} if p.get("strided") else drawn


def _make_prefill(p: Mapping[str, Any], kind: str, generator: torch.Generator) -> dict[str, Any]:
    s, skv, dim, device = p["s"], p["skv"], p.get("index_dim", INDEX_DIM), generator.device
    if kind in FOUR_BITS:
        drawn = _rows_and_keys(p, generator)
    else:
        q, weights = _queries((s,), p["heads"], generator, dim)
        cache = pack_index_keys(_normal(generator, -(-skv // PAGE), PAGE, dim))
        keys, scales = (x.reshape(-1, *x.shape[2:])[:skv] for x in unpack_index_keys(cache, dim=dim))
        drawn = {"q": q, "k": keys.contiguous(), "k_scales": scales.contiguous(), "weights": weights}
    first = skv - s + 1
    ends = torch.arange(first, first + s, dtype=torch.int32, device=device).clamp(min=0)
    starts = torch.zeros(s, dtype=torch.int32, device=device)
    if p.get("windows") == "ragged":
        share = torch.rand(s, generator=generator, dtype=torch.float32, device=device)
        starts = (share * ends).to(torch.int32)
        ends[s // 2] = starts[s // 2]
    drawn = {**drawn, "k_start": starts, "k_end": ends, "skip_below": p.get("skip_below", 0)}
    return drawn if kind == "plain" else {**drawn, "compressed": p.get("compressed", 0)}


def _make_decode(p: Mapping[str, Any], kind: str, generator: torch.Generator) -> dict[str, Any]:
    device, dim, page = generator.device, p.get("index_dim", INDEX_DIM), p.get("page_size", PAGE)
    lens = torch.tensor(_lens(p), dtype=torch.int32, device=device)
    b, next_n = lens.shape
    q, weights = _queries((b, next_n), p["heads"], generator, dim)
    pages = max(p["pages"], -(-int(lens.max()) // page))
    cache = pack_index_keys(_normal(generator, pages, page, dim)).view(pages, -1)
    table = _drawn_table(lens, page, pages, p, generator)
    drawn = {
        "q": q,
        "k_cache": cache,
        "weights": weights,
        "seq_lens": lens,
        "block_table": table,
        "skip_below": p.get("skip_below", 0),
    }
    return drawn if kind == "plain" else {**drawn, "weights": weights.flatten(0, 1), "page_size": page}


def _drawn_table(
    lens: torch.Tensor, unit: int, units: int, p: Mapping[str, Any], generator: torch.Generator
) -> torch.Tensor:
    """A table for lengths [b, next_n]: ids of `units` units in the entries that are read, others random."""
    sharing, device = p.get("sharing", 1), lens.device
    lines, width = -(-len(lens) // sharing), max(1, -(-int(lens.max()) // unit)) + p.get("spare_pages", 1)
    table = torch.randint(
        -(2**31), 2**31 - 1, (lines, width), generator=generator, dtype=torch.int64, device=device
    ).to(torch.int32)
    for line in range(lines):
        used = -(-int(lens[line * sharing : (line + 1) * sharing].max()) // unit)
        table[line, :used] = torch.randperm(units, generator=generator, device=device)[:used].to(torch.int32)
    return table


def _make_blocks(p: Mapping[str, Any], generator: torch.Generator) -> dict[str, Any]:
    """Inputs of a decode by blocks; units of the table have `block_size` tokens, or a page's."""
    device, dim, page = generator.device, p.get("index_dim", INDEX_DIM), p.get("page_size", PAGE)
    unit, sharing = p.get("block_size") or page, p.get("sharing", 1)
    lens = torch.tensor(_lens(p), dtype=torch.int32, device=device)
    b, next_n = lens.shape
    q, weights = _queries((b, next_n), p["heads"], generator, dim)
    pages = max(p["pages"], -(-int(lens.max()) // page))
    cache = pack_index_keys(_normal(generator, pages, page, dim)).view(pages, -1)
    if p.get("mx"):
        scales = cache[:, page * dim :].view(pages, page, 4)
        spread = torch.randint(117, 125, (pages, page, 1), generator=generator, device=device)
        scales.copy_(spread.to(torch.uint8).expand(-1, -1, 4))
    table = _drawn_table(lens, unit, pages * page // unit, p, generator)
    has = int(bool(p.get("maxima") or p.get("has_maxima")))
    return {
        "q": q, "k_cache": cache, "weights": weights.flatten(0, 1), "seq_lens": lens, "block_table": table,
        "skip_below": p.get("skip_below", 0), "page_size": page, "block_size": unit, "sharing": sharing,
        "mx": int(bool(p.get("mx"))), "has_maxima": has,
        "maxima_rows": b * next_n if has else 1,
        "maxima_columns": -(-table.shape[1] * unit // BLOCK) if has else 1,
    }  # fmt: skip


def _spread(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Blocks of 32 that are a power of two greater or smaller than others."""
    blocks = (*shape[:-1], shape[-1] // MXFP4_GROUP)
    powers = torch.randint(-3, 4, blocks, generator=generator, device=generator.device)
    return _normal(generator, *shape) * torch.exp2(powers.float()).repeat_interleave(MXFP4_GROUP, -1)


def _rows_and_keys(p: Mapping[str, Any], generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Queries, keys and weights of a prompt of 4 bits: blocks of 32 have scales that differ."""
    q, q_scales = quantise_mxfp4(_spread(generator, p["s"], p["index_heads"], INDEX_DIM))
    k, k_scales = quantise_mxfp4(_spread(generator, p["skv"], INDEX_DIM))
    return {
        "q": q, "q_scales": q_scales[..., 0], "k": k, "k_scales": k_scales[..., 0],
        "weights": _normal(generator, p["s"], p["index_heads"]),
    }  # fmt: skip


def _make_decode_of_four_bits(p: Mapping[str, Any], generator: torch.Generator) -> dict[str, Any]:
    """Inputs of a decode of 4 bits: quantised normal queries and keys, of scales that differ."""
    device, sharing = generator.device, p.get("sharing", 1)
    lengths = torch.tensor(_lens(p), dtype=torch.int32, device=device)
    b, next_n = lengths.shape
    q, q_scales = quantise_mxfp4(_spread(generator, b, next_n, p["index_heads"], INDEX_DIM))
    weights = _normal(generator, b, next_n, p["index_heads"])
    pages = max(p["pages"], -(-int(lengths.max()) // PAGE))
    cache = pack_mxfp4_index_keys(_spread(generator, pages, PAGE, INDEX_DIM)).view(pages, -1)
    table = _drawn_table(lengths, PAGE, pages, p, generator)
    return {
        "q": q, "q_scales": q_scales.view(b * next_n, -1), "k_cache": cache, "weights": weights,
        "seq_lens": lengths, "block_table": table, "skip_below": p.get("skip_below", 0), "sharing": sharing,
    }  # fmt: skip


# The gap between rows in bytes, by operand: the stride of rows may be any multiple of it.
_GAPS = {"q": 16, "q_scales": 16, "k": 16, "weights": 16, "k_cache": 384, "seq_lens": 4, "block_table": 12}


def _strided(drawn: Mapping[str, Any], kind: str) -> dict[str, torch.Tensor]:
    """The inputs that may be strided, with gaps of NaN and of ids that name no page.

    The first two axes of q are swapped in memory.
    """
    spread = {}
    for name, gap in {**_GAPS, **({} if kind == "plain" else {"k_cache": 48})}.items():
        if name not in drawn:
            continue
        value = drawn[name]
        shape = (value.shape[1], value.shape[0], *value.shape[2:]) if name == "q" else tuple(value.shape)
        size = (*shape[:-1], shape[-1] * value.element_size() + gap)
        filled = torch.full(size, 0x7F, dtype=torch.uint8, device=value.device)
        wide = filled.view(value.dtype)[..., : shape[-1]]
        spread[name] = wide.transpose(0, 1) if name == "q" else wide
        spread[name].copy_(value)
    return spread
