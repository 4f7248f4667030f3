"""FP8 lightning indexer scoring: logits[r, j] = scale[j] * sum_h w[r, h] * max(0, q[r, h] . k[j]).

Decode reads the paged cache, block-planar with 132 bytes per key, through a block table. Prefill reads flat
keys, with a window of keys for each row. Columns outside a row's valid range are not written. The forms "any"
take pages of a multiple of 16 tokens, keys of 16 to 128 dims and 1 to 64 heads. Their prefill can write a
row's scores from column 0 on. Their scores are fp32 or bf16. The form "decode_blocks" reads pages or lists of
blocks of 8 tokens, with scales in fp32 or UE8M0 bytes. It can write the greatest score of each 8 keys:
DeepSeek-V4.1 selects on these two levels. The forms "mxfp4" take keys and queries of 4 bits and 1 to 64
heads, with scores in fp32 or bf16.
Source: DeepSeek-V3.2 and the flashinfer-bench definition dsa_topk_indexer_fp8_h64_d128_topk2048_ps64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

from ..._torch import torch
from ...arguments import require_dense
from ...dtypes import DTYPES
from ...errors import ArgumentTypeError, InvalidArgumentError
from ...problems.base import ROW_GRIDS, WIDE_SCORES, Comparison, Oracle, PointName, Workload
from ...problems.layouts import INDEX_DIM, pack_index_keys, unpack_index_keys
from . import blocks, mxfp4
from .forms import FORMS, FOUR_BITS, GRAIN, MOST_HEADS, PAGE, PAGE_BYTES, SCORES, form_of, parts_of

__all__ = [
    "BLOCK",
    "FEW_HEADS",
    "FORMS",
    "FOUR_BITS",
    "GRAIN",
    "MOST_HEADS",
    "PAGE",
    "PAGE_BYTES",
    "PROBLEM",
    "SCORES",
    "form_of",
    "pages_of",
    "parts_of",
]

BLOCK = blocks.BLOCK
# With so few index heads, one product holds several queries.
FEW_HEADS = (8, 16, 24)


def pages_of(
    k_cache: torch.Tensor, page_size: int = PAGE, dim: int = INDEX_DIM, step: int = INDEX_DIM
) -> torch.Tensor:
    """View the cache as [pages, bytes of a page].

    Args:
        k_cache: [pages, page_size, 1, dim + 4], [pages, page_size, dim + 4] or already flat, of a dtype of
            one byte.
        page_size: tokens per page.
        dim: dims of a key.
        step: bytes of which the stride of pages has to be a multiple.

    Raises:
        ArgumentTypeError, InvalidArgumentError: another dtype or shape, or a stride that is no multiple of
            `step` bytes.
    """
    each = page_size * (dim + 4)
    try:
        shape = k_cache.shape
        if k_cache.element_size() == 1 and len(shape) > 1 and shape[1:].numel() == each:
            flat = k_cache if len(shape) == 2 else k_cache.view(shape[0], each)
            apart = flat.stride(0)
            if apart % step == 0 or shape[0] < 2:
                return flat if flat.dtype == torch.uint8 else flat.view(torch.uint8)
    except Exception:
        require_dense("k_cache", k_cache)
        raise InvalidArgumentError(
            "k_cache",
            expected="pages of contiguous bytes",
            got=f"shape {tuple(k_cache.shape)}, strides {k_cache.stride()}",
            fix="call .contiguous()",
        ) from None
    require_dense("k_cache", k_cache)
    if k_cache.element_size() == 1 and len(shape) > 1 and shape[1:].numel() == each:
        raise InvalidArgumentError(
            "k_cache",
            expected=f"a stride of pages that is a multiple of {step} bytes",
            got=f"a stride of {apart} bytes",
            fix=f"pad the pages of the cache to a multiple of {step} bytes",
        )
    if k_cache.element_size() != 1:
        raise ArgumentTypeError(
            "k_cache", expected="a dtype of one byte", got=str(k_cache.dtype), fix="view it as uint8"
        )
    raise InvalidArgumentError(
        "k_cache", expected=f"[pages, {page_size}, 1, {dim + 4}] (pages of {page_size} tokens)",
        got=str(tuple(shape)), fix="pass the block-planar index cache, and its page_size",
    )  # fmt: skip


def _normal(generator: torch.Generator) -> Callable[..., torch.Tensor]:
    return partial(torch.randn, generator=generator, dtype=torch.float32, device=generator.device)


def _queries(
    rows: tuple[int, ...], heads: int, generator: torch.Generator, dim: int = INDEX_DIM
) -> tuple[torch.Tensor, torch.Tensor]:
    normal = _normal(generator)
    q = normal(*rows, heads, dim).clamp(-2, 2).to(torch.float8_e4m3fn)
    return q, normal(*rows, heads)


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
        return mxfp4.make(p, _lens(p), generator)
    if kind != "plain":
        p["heads"] = p["index_heads"] if "index_heads" in p else p["heads"]
    if kind == "blocks":
        sizes = {"page_size": PAGE, **p, "lens": _lens(p), "index_heads": p["heads"]}
        return blocks.make(sizes, _queries, generator)
    drawn = (_make_prefill if mode == "prefill" else _make_decode)(p, kind, generator)
    return {**drawn, **_spread(drawn, kind)} if p.get("strided") else drawn


def _make_prefill(p: Mapping[str, Any], kind: str, generator: torch.Generator) -> dict[str, Any]:
    s, skv, dim, device = p["s"], p["skv"], p.get("index_dim", INDEX_DIM), generator.device
    if kind in FOUR_BITS:
        drawn = mxfp4.rows_and_keys(p, generator)
    else:
        q, weights = _queries((s,), p["heads"], generator, dim)
        cache = pack_index_keys(_normal(generator)(-(-skv // PAGE), PAGE, dim))
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
    cache = pack_index_keys(_normal(generator)(pages, page, dim)).view(pages, -1)
    table = blocks.drawn_table(lens, page, pages, p, generator)
    drawn = {
        "q": q,
        "k_cache": cache,
        "weights": weights,
        "seq_lens": lens,
        "block_table": table,
        "skip_below": p.get("skip_below", 0),
    }
    return drawn if kind == "plain" else {**drawn, "weights": weights.flatten(0, 1), "page_size": page}


# The gap between rows in bytes, by operand: the stride of rows may be any multiple of it.
_GAPS = {"q": 16, "q_scales": 16, "k": 16, "weights": 16, "k_cache": 384, "seq_lens": 4, "block_table": 12}


def _spread(drawn: Mapping[str, Any], kind: str) -> dict[str, torch.Tensor]:
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


def _score(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    dots = q.double() @ keys.double().T
    return (weights.double()[:, None] * dots.clamp(min=0)).sum(dim=0) * scales.double()


def reference(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Float64 logits, NaN where the kernel writes nothing."""
    mode, kind = parts_of(form)
    if kind in FOUR_BITS and mode == "decode":
        return {"logits": mxfp4.logits_of(inputs)}
    if kind == "blocks":
        logits = _logits_of_blocks(inputs)
        return {"logits": logits, **({"maxima": blocks.maxima_of(logits)} if inputs["has_maxima"] else {})}
    return {"logits": (_prefill_logits if mode == "prefill" else _decode_logits)(inputs)}


def _prefill_logits(inputs: Mapping[str, Any]) -> torch.Tensor:
    inputs = mxfp4.unscaled(inputs) if "q_scales" in inputs else inputs
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
    lens, (values, scales) = inputs["seq_lens"], blocks.keys_of(inputs)
    shape = (*lens.shape, max(1, int(lens.max())))
    logits = torch.full(shape, float("nan"), dtype=torch.float64, device=lens.device)
    for row, length in enumerate(lens.flatten().tolist()):
        if length > max(0, inputs.get("skip_below", 0)):
            places = blocks.tokens_of(inputs, row, length)
            q = inputs["q"].flatten(0, 1)[row]
            scored = _score(q, inputs["weights"][row], values[places], scales[places])
            logits.view(-1, shape[-1])[row, :length] = scored
    return logits


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
        own = blocks.maxima_of(torch.where(valid, got, torch.nan))
        there = ~expected["maxima"].isnan()
        most = outputs["maxima"][:, : own.shape[1]].double()
        result.demand("maxima are the greatest scores", bool((most[there] == own[there]).all()))
    return result


def _of_a_row(form: str, dims: Mapping[str, int]) -> tuple[int, float, float]:
    """Heads of a call, bytes of a key with its scale, and bytes of a score."""
    kind = parts_of(form)[1]
    key = mxfp4.TOKEN_BYTES if kind in FOUR_BITS else dims.get("index_dim", INDEX_DIM) + 4.0
    return dims["heads" if kind == "plain" else "index_heads"], key, float(DTYPES[SCORES[kind]].bytes)


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Keys and scales once per sequence, logits once per query, queries and weights once."""
    heads, key, score = _of_a_row(form, dims)
    if parts_of(form)[0] == "prefill":
        rows, keys = dims["s"], dims["skv"]
        return keys * key + rows * heads * key + rows * (keys - rows / 2) * score
    length = dims["max_len"]
    rows = dims["b"] * dims["next_n"]
    return dims["b"] * length * key + rows * length * score + rows * heads * key


def units(form: str, dims: Mapping[str, int]) -> tuple[str, int]:
    """The queries that a call scores."""
    return "queries", dims["s"] if parts_of(form)[0] == "prefill" else dims["b"] * dims["next_n"]


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """Tensor-core and fp32 operations: 2 * heads * dim and about 3 * heads per (query, key) pair."""
    heads, key, _ = _of_a_row(form, dims)
    pairs = (
        dims["s"] * (dims["skv"] - dims["s"] / 2)
        if parts_of(form)[0] == "prefill"
        else float(dims["b"] * dims["next_n"] * dims["max_len"])
    )
    if parts_of(form)[1] in FOUR_BITS:
        return {"float4_e2m1x2": 2.0 * heads * INDEX_DIM * pairs, "float32": 3.0 * heads * pairs}
    return {"float8_e4m3": 2.0 * heads * (key - 4) * pairs, "float32": 3.0 * heads * pairs}


def points(grid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Batches over lengths.

    The grid "serving" adds 32 heads, several queries per sequence, and prompts. The grid "wide" has more of
    all these, and fewer heads.
    """
    batches, lengths = ROW_GRIDS[grid]
    if grid == "wide":
        spread = [(b, n) for b, n in product(batches, lengths) if b * n <= WIDE_SCORES]
        yield from (("decode", {"b": b, "len": n, "heads": h}) for h in (64, 32) for b, n in spread)
        more = product((1, 16, 48), (32768, 131072), range(2, 9))
        yield from (("decode", {"b": b, "len": n, "heads": 64, "next_n": q}) for b, n, q in more)
        prompts = product((1024, 2048, 4096, 8192), (32768, 131072), (64, 32))
        yield from (("prefill", {"s": s, "skv": n, "heads": h}) for s, n, h in prompts)
        many = product((1, 16), (12, 16), (64, 32))
        yield from (("decode", {"b": b, "len": 32768, "heads": h, "next_n": q}) for b, q, h in many)
        few = product((1, 16, 64), (4096, 32768, 131072), FEW_HEADS)
        yield from (("decode", {"b": b, "len": n, "heads": h}) for b, n, h in few)
        more = product((1, 16), (2, 4, 8), FEW_HEADS)
        yield from (("decode", {"b": b, "len": 32768, "heads": h, "next_n": q}) for b, q, h in more)
        prompts = product((1024, 4096), (32768, 131072), FEW_HEADS)
        yield from (("prefill", {"s": s, "skv": n, "heads": h}) for s, n, h in prompts)
        yield from _points_of_any()
        return
    yield from (("decode", {"b": b, "len": n, "heads": 64}) for b, n in product(batches, lengths))
    if grid == "serving":
        yield from (("decode", {"b": 16, "len": n, "heads": 32}) for n in lengths)
        yield from (("decode", {"b": 16, "len": 32768, "heads": 64, "next_n": n}) for n in (2, 4, 3, 8))
        yield from (("prefill", {"s": 4096, "skv": n, "heads": 64}) for n in (32768, 131072))


def _points_of_any() -> Iterator[tuple[str, dict[str, Any]]]:
    """Points of the forms "any": fewer dims, and scores in bf16.

    With float32 scores, pages of 64 and 128 dims, a call is of the form "decode" or "prefill".
    """
    for kind, dims in (("any", (96, 64)), ("any_bf16", (INDEX_DIM, 64))):
        for heads, dim in product((64, 32), dims):
            step = {"b": 16, "len": 32768, "index_heads": heads, "index_dim": dim, "page_size": PAGE}
            yield form_of("decode", kind), step
        for heads, dim in product((64, 32), dims):
            yield form_of("prefill", kind), {"s": 1024, "skv": 32768, "index_heads": heads, "index_dim": dim}
    yield from _points_of_blocks()
    for b, heads in product((1, 16, 64), (64, 32)):
        yield form_of("decode", "mxfp4"), {"b": b, "len": 32768, "index_heads": heads}
    for b, next_n, heads in product((1, 16), (2, 8), (64, 32)):
        yield form_of("decode", "mxfp4"), {"b": b, "len": 32768, "index_heads": heads, "next_n": next_n}
    for s, heads in product((1024, 4096), (64, 32)):
        yield form_of("prefill", "mxfp4"), {"s": s, "skv": 32768, "index_heads": heads}
    for heads in (64, 32):
        yield form_of("decode", "mxfp4_bf16"), {"b": 16, "len": 32768, "index_heads": heads}
        yield form_of("prefill", "mxfp4_bf16"), {"s": 1024, "skv": 32768, "index_heads": heads}


def _points_of_blocks() -> Iterator[tuple[str, dict[str, Any]]]:
    """Both levels of a selection by blocks.

    The first level scores every page and writes the greatest score of each 8 keys. The second level scores
    2048 blocks of 8 keys.
    """
    for b, heads, block in product((16, 1, 64), (64, 32), (0, blocks.BLOCK)):
        length, level = (16384, {}) if block else (32768, {"has_maxima": 1})
        step = {"b": b, "len": length, "index_heads": heads, "index_dim": INDEX_DIM, "page_size": PAGE}
        yield form_of("decode", "blocks"), {**step, "block_size": block, **level}


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


PROBLEM = Oracle(
    op="lightning_indexer",
    doc=__doc__,
    forms=FORMS,
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
    bytes=moved_bytes,
    flops=flops,
    units=units,
    points=points,
    names={
        # Table entries of the form "decode_blocks" may name blocks.
        form: (
            PointName("len", "stride"),
            PointName("len", "max_pages", Fraction(1, blocks.BLOCK if form.endswith("_blocks") else PAGE)),
        )
        for form in FORMS
        if parts_of(form)[0] == "decode"
    },
    forms_share_workloads=_share_workloads,
)
