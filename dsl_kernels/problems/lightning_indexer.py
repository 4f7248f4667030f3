"""FP8 lightning indexer scoring: logits[r, j] = scale[j] * sum_h w[r, h] * max(0, q[r, h] . k[j]).

Decode reads the 132-byte block-planar paged cache through a block table; prefill reads flat keys with a window of
keys per row. Columns outside a row's valid range are not written.
Source: DeepSeek-V3.2 and the flashinfer-bench definition dsa_topk_indexer_fp8_h64_d128_topk2048_ps64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from .._discover import later
from ..arguments import INT32_MAX, require_dense
from ..errors import ArgumentTypeError, InvalidArgumentError
from .base import (
    ROW_GRIDS,
    WIDE_SCORES,
    Comparison,
    OperandSpec,
    PointName,
    Problem,
    Values,
    Workload,
    axis_strides,
)
from .layouts import INDEX_DIM, pack_index_keys, unpack_index_keys

if TYPE_CHECKING:
    import torch
else:
    torch = later("torch", globals())

PAGE = 64
PAGE_BYTES = PAGE * (INDEX_DIM + 4)
# Index heads of which a product has several queries.
FEW_HEADS = (8, 16, 24)


def _wrong_lengths(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    return (o["seq_lens"] < 0) | (o["seq_lens"] > min(dims["max_pages"] * PAGE, dims["stride"]))


def _wrong_pages(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    lens, table = o["seq_lens"], o["block_table"]
    scored = torch.where(lens > int(o.get("skip_below", 0)), lens, 0)
    used = -(-scored.amax(dim=1) // PAGE) if scored.numel() else scored.sum(dim=1)
    live = torch.arange(dims["max_pages"], device=table.device) < used[:, None]
    return live & ((table < 0) | (table >= dims["pages"]))


def _outside_keys(name: str) -> Callable[[Mapping[str, Any], Mapping[str, int]], torch.Tensor]:
    return lambda o, dims: (o[name] < 0) | (o[name] > dims["skv"])


_SKIP = OperandSpec(
    "skip_below",
    (),
    "int32",
    "scalar",
    doc="rows with at most this many keys are not scored",
    limits=(0, INT32_MAX),
)

DECODE = (
    OperandSpec(
        "q",
        ("b", "next_n", "heads", INDEX_DIM),
        "float8_e4m3",
        strides=axis_strides("q", "bnh"),
        doc="queries; any q scale is folded into weights",
    ),
    OperandSpec(
        "k_cache",
        ("pages", PAGE_BYTES),
        "uint8",
        row_stride="k_cache_stride",
        requires=(f"k_cache_stride % {INDEX_DIM} == 0",),
        doc="paged keys: 64 x 128 e4m3, then 64 fp32 scales",
    ),
    OperandSpec(
        "weights",
        ("b", "next_n", "heads"),
        "float32",
        strides=axis_strides("weights", "bn"),
        doc="per-head weights, may be negative",
    ),
    OperandSpec(
        "seq_lens",
        ("b", "next_n"),
        "int32",
        doc="keys visible to each query; 0 for a padded row",
        row_stride="seq_lens_stride",
        align=4,
        values=(Values("0 to min(64 * max_pages, stride)", _wrong_lengths),),
        longest="max_len",
    ),
    OperandSpec(
        "block_table",
        ("b", "max_pages"),
        "int32",
        doc="page ids; entries past ceil(len / 64) are never followed",
        row_stride="block_table_stride",
        align=4,
        values=(Values("page ids from 0 to pages - 1 in the first ceil(len / 64) entries", _wrong_pages),),
    ),
    OperandSpec(
        "logits",
        ("b", "next_n", "stride"),
        "float32",
        "out",
        doc="scores; columns at and beyond the length stay as they were",
        strides=axis_strides("logits", "bn"),
        align=4,
        argument="out",
        sizes={"stride": f"max_pages * {PAGE}"},
        of_nothing=-math.inf,
    ),
    _SKIP,
)
PREFILL = (
    OperandSpec("q", ("s", "heads", INDEX_DIM), "float8_e4m3", strides=axis_strides("q", "sh")),
    OperandSpec("k", ("skv", INDEX_DIM), "float8_e4m3", row_stride="k_stride"),
    OperandSpec("k_scales", ("skv",), "float32"),
    OperandSpec("weights", ("s", "heads"), "float32", row_stride="weights_stride"),
    OperandSpec(
        "k_start",
        ("s",),
        "int32",
        doc="first key of each row",
        align=4,
        values=(Values("0 to skv", _outside_keys("k_start"), "the nearest key"),),
    ),
    OperandSpec(
        "k_end",
        ("s",),
        "int32",
        doc="one past the last key of each row",
        align=4,
        values=(
            Values("0 to skv", _outside_keys("k_end"), "the nearest key"),
            Values("at least k_start", lambda o, dims: o["k_end"] < o["k_start"], "an empty window"),
        ),
        longest="skv",
    ),
    OperandSpec(
        "logits",
        ("s", "stride"),
        "float32",
        "out",
        doc="column j is key j; columns outside the window stay as they were",
        row_stride="logits_stride",
        align=4,
        argument="out",
        sizes={"stride": "ceildiv(skv, 4) * 4"},
        requires=("stride >= skv",),
        of_nothing=-math.inf,
    ),
    _SKIP,
)


def pages_of(k_cache: torch.Tensor) -> torch.Tensor:
    """The cache as [pages, 8448] bytes, from [pages, 64, 1, 132] or [pages, 64, 132] or already flat.

    Raises:
        ArgumentTypeError, InvalidArgumentError: another dtype or shape, or pages that lie apart by no multiple of 128 bytes.
    """
    try:
        shape = k_cache.shape
        if k_cache.element_size() == 1 and len(shape) > 1 and shape[1:].numel() == PAGE_BYTES:
            flat = k_cache if len(shape) == 2 else k_cache.view(shape[0], PAGE_BYTES)
            apart = flat.stride(0)
            if apart % INDEX_DIM == 0 or shape[0] < 2:
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
    if k_cache.element_size() == 1 and len(shape) > 1 and shape[1:].numel() == PAGE_BYTES:
        raise InvalidArgumentError(
            "k_cache",
            expected=f"pages that begin a multiple of {INDEX_DIM} bytes apart",
            got=f"pages {apart} bytes apart",
            fix=f"pad the pages of the cache to whole {INDEX_DIM} bytes",
        )
    if k_cache.element_size() != 1:
        raise ArgumentTypeError(
            "k_cache", expected="a dtype of one byte", got=str(k_cache.dtype), fix="view it as uint8"
        )
    raise InvalidArgumentError(
        "k_cache", expected=f"[pages, {PAGE}, 1, {INDEX_DIM + 4}] (pages of {PAGE} tokens)", got=str(tuple(shape)),
        fix="use the 64-token block-planar index cache",
    )  # fmt: skip


def _normal(generator: torch.Generator) -> Callable[..., torch.Tensor]:
    return partial(torch.randn, generator=generator, dtype=torch.float32, device=generator.device)


def _queries(
    rows: tuple[int, ...], heads: int, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    normal = _normal(generator)
    q = normal(*rows, heads, INDEX_DIM).clamp(-2, 2).to(torch.float8_e4m3fn)
    return q, normal(*rows, heads)


def _lens(p: Mapping[str, Any]) -> list[list[int]]:
    """Lengths by sequence and query, all alike where the sizes of a point are given."""
    held: list[list[int]] = p.get("lens", [[PAGE]])
    if not {"b", "next_n", "len"} & p.keys():
        return held
    longest = p.get("len", max(map(max, held)))
    return [[longest] * p.get("next_n", len(held[0]))] * p.get("b", len(held))


def make(workload: Workload, generator: torch.Generator) -> dict[str, Any]:
    p, device = workload.params, generator.device
    if workload.form == "prefill":
        s, skv = p["s"], p["skv"]
        q, weights = _queries((s,), p["heads"], generator)
        keys, scales = unpack_index_keys(
            pack_index_keys(_normal(generator)(-(-skv // PAGE), PAGE, INDEX_DIM))
        )
        first = skv - s + 1
        ends = torch.arange(first, first + s, dtype=torch.int32, device=device).clamp(min=0)
        starts = torch.zeros(s, dtype=torch.int32, device=device)
        if p.get("windows") == "ragged":
            share = torch.rand(s, generator=generator, dtype=torch.float32, device=device)
            starts = (share * ends).to(torch.int32)
            ends[s // 2] = starts[s // 2]
        drawn = {
            "q": q, "k": keys.reshape(-1, INDEX_DIM)[:skv].contiguous(), "k_scales": scales.reshape(-1)[:skv].contiguous(),
            "weights": weights, "k_start": starts, "k_end": ends, "skip_below": p.get("skip_below", 0),
        }  # fmt: skip
        return {**drawn, **_spread(drawn)} if p.get("strided") else drawn
    lens = torch.tensor(_lens(p), dtype=torch.int32, device=device)
    b, next_n = lens.shape
    q, weights = _queries((b, next_n), p["heads"], generator)
    pages = max(p["pages"], -(-int(lens.max()) // PAGE))
    cache = pack_index_keys(_normal(generator)(pages, PAGE, INDEX_DIM)).view(pages, -1)
    max_pages = max(1, -(-int(lens.max()) // PAGE)) + p.get("spare_pages", 1)
    table = torch.randint(
        -(2**31), 2**31 - 1, (b, max_pages), generator=generator, dtype=torch.int64, device=device
    ).to(torch.int32)
    for row in range(b):
        used = -(-int(lens[row].max()) // PAGE)
        order = torch.randperm(pages, generator=generator, device=device)[:used]
        table[row, :used] = order.to(torch.int32)
    drawn = {
        "q": q,
        "k_cache": cache,
        "weights": weights,
        "seq_lens": lens,
        "block_table": table,
        "skip_below": p.get("skip_below", 0),
    }
    return {**drawn, **_spread(drawn)} if p.get("strided") else drawn


# Bytes between rows, by operand: what their strides may be multiples of.
_GAPS = {"q": 16, "k": 16, "weights": 16, "k_cache": 384, "seq_lens": 4, "block_table": 12}


def _spread(drawn: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The inputs whose axes may lie anyhow, with gaps of NaN and of ids that name no page; queries before heads and sequences."""
    found = {}
    for name, gap in _GAPS.items():
        if name not in drawn:
            continue
        value = drawn[name]
        shape = (value.shape[1], value.shape[0], *value.shape[2:]) if name == "q" else tuple(value.shape)
        size = (*shape[:-1], shape[-1] * value.element_size() + gap)
        filled = torch.full(size, 0x7F, dtype=torch.uint8, device=value.device)
        wide = filled.view(value.dtype)[..., : shape[-1]]
        found[name] = wide.transpose(0, 1) if name == "q" else wide
        found[name].copy_(value)
    return found


def _score(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    dots = q.double() @ keys.double().T
    return (weights.double()[:, None] * dots.clamp(min=0)).sum(dim=0) * scales.double()


def reference(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Float64 logits, NaN where the kernel writes nothing."""
    skip = inputs.get("skip_below", 0)
    if form == "prefill":
        rows, columns = inputs["q"].shape[0], inputs["k"].shape[0]
        logits = torch.full((rows, columns), float("nan"), dtype=torch.float64, device=inputs["q"].device)
        for row in range(rows):
            start, end = max(0, int(inputs["k_start"][row])), min(columns, int(inputs["k_end"][row]))
            if end - start > skip:
                logits[row, start:end] = _score(
                    inputs["q"][row],
                    inputs["weights"][row],
                    inputs["k"][start:end],
                    inputs["k_scales"][start:end],
                )
        return {"logits": logits}
    values, scales = unpack_index_keys(inputs["k_cache"], PAGE)
    lens = inputs["seq_lens"]
    b, next_n = lens.shape
    shape = (b, next_n, max(1, int(lens.max())))
    logits = torch.full(shape, float("nan"), dtype=torch.float64, device=lens.device)
    for row in range(b):
        for query in range(next_n):
            length = int(lens[row, query])
            if length <= skip or length == 0:
                continue
            ids = inputs["block_table"][row, : -(-length // PAGE)].long()
            keys, key_scales = values[ids].reshape(-1, INDEX_DIM)[:length], scales[ids].reshape(-1)[:length]
            logits[row, query, :length] = _score(
                inputs["q"][row, query], inputs["weights"][row, query], keys, key_scales
            )
    return {"logits": logits}


def compare(
    form: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], expected: Mapping[str, Any]
) -> Comparison:
    """Relative error over the valid columns <= 1e-3; columns outside them are ignored."""
    result = Comparison()
    wanted = expected["logits"]
    got = outputs["logits"][..., : wanted.shape[-1]].double()
    valid = ~wanted.isnan()
    error, norm = (got[valid] - wanted[valid]).norm(), wanted[valid].norm()
    result.require("logits relative error", float(error / norm) if norm > 0 else float(error), 1e-3)
    return result


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Keys and scales once a sequence, logits once a query, queries and weights once."""
    if form == "prefill":
        rows, keys = dims["s"], dims["skv"]
        return keys * 132.0 + rows * dims["heads"] * 132.0 + rows * (keys - rows / 2) * 4.0
    length = dims["max_len"]
    rows = dims["b"] * dims["next_n"]
    return dims["b"] * length * 132.0 + rows * length * 4.0 + rows * dims["heads"] * 132.0


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """Tensor-core and fp32 operations: 2 * heads * 128 and about 3 * heads a (query, key) pair."""
    pairs = (
        dims["s"] * (dims["skv"] - dims["s"] / 2)
        if form == "prefill"
        else float(dims["b"] * dims["next_n"] * dims["max_len"])
    )
    return {"float8_e4m3": 2.0 * dims["heads"] * INDEX_DIM * pairs, "float32": 3.0 * dims["heads"] * pairs}


def points(grid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Batches over lengths; serving adds 32 heads, several queries a sequence, and prompts; wide more of all of them, and fewer heads."""
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
        return
    yield from (("decode", {"b": b, "len": n, "heads": 64}) for b, n in product(batches, lengths))
    if grid == "serving":
        yield from (("decode", {"b": 16, "len": n, "heads": 32}) for n in lengths)
        yield from (("decode", {"b": 16, "len": 32768, "heads": 64, "next_n": n}) for n in (2, 4, 3, 8))
        yield from (("prefill", {"s": 4096, "skv": n, "heads": 64}) for n in (32768, 131072))


def _decode(
    name: str, tier: str, lens: list[list[int]], heads: int = 64, pages: int = 12, **extra: Any
) -> Workload:
    return Workload(name, tier, "decode", {"lens": lens, "heads": heads, "pages": pages, **extra})


PROBLEM = Problem(
    op="lightning_indexer",
    doc=__doc__,
    forms={"decode": DECODE, "prefill": PREFILL},
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
        Workload("prefill_4k", "real", "prefill", {"s": 512, "skv": 4096, "heads": 64}),
    ),
    make=make,
    reference=reference,
    compare=compare,
    bytes=moved_bytes,
    flops=flops,
    points=points,
    names={"decode": (PointName("len", "stride"), PointName("len", "max_pages", Fraction(1, PAGE)))},
)
