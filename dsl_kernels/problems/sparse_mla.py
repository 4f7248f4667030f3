"""Sparse multi-head latent attention over selected tokens, with the latent row as key and as value.

l[i] = sm_scale * (q_nope . ckv[id_i] + q_pe . kpe[id_i]);  out = softmax(l) @ ckv[ids];  lse = log(sum exp l).
An id of -1 anywhere is padding, and so is any other that names no token, and what lies past a query's `topk_length`. A
query without tokens gives out = 0 and lse = `empty_lse`. The optional sink joins the softmax's denominator of `out` only.
Source: DeepSeek-V3.2 and flashinfer-bench's dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

from .._discover import later
from ..arguments import INT32_MAX, require_dense
from ..errors import ArgumentTypeError, InvalidArgumentError
from .base import WIDE, Comparison, OperandSpec, PointName, Problem, Values, Workload, axis_strides
from .layouts import FP8_TOKEN_BYTES, LATENT_DIM, ROPE_DIM, pack_fp8_tokens, unpack_fp8_tokens
from .lightning_indexer import PAGE

if TYPE_CHECKING:
    import torch
else:
    torch = later("torch", globals())

_QUERIES = (
    OperandSpec("q_nope", ("t", "heads", LATENT_DIM), "bfloat16", strides=axis_strides("q_nope", "th")),
    OperandSpec("q_pe", ("t", "heads", ROPE_DIM), "bfloat16", strides=axis_strides("q_pe", "th")),
)


def _wrong_ids(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    return (o["indices"] < -1) | (o["indices"] >= o["cached"])


def _wrong_lengths(o: Mapping[str, Any], dims: Mapping[str, int]) -> torch.Tensor:
    wrong = (o["topk_length"] < 0) | (o["topk_length"] > dims["topk"])
    return wrong & bool(o["has_lengths"])


_REST = (
    OperandSpec(
        "indices",
        ("t", "topk"),
        "int32",
        row_stride="indices_stride",
        doc="global token ids; -1 anywhere is padding",
        align=4,
        values=(Values("token ids below the number of tokens, or -1", _wrong_ids, "padding"),),
    ),
    OperandSpec(
        "topk_length",
        ("t",),
        "int32",
        doc="how many ids of each query count, the first ones; read where has_lengths is 1",
        align=4,
        default=INT32_MAX,
        longest="topk",
        values=(Values("0 to topk", _wrong_lengths, "the nearest of these"),),
    ),
    OperandSpec(
        "attn_sink",
        ("heads",),
        "float32",
        doc="natural-log logit that joins the denominator of out; -inf: none",
        default=-math.inf,
    ),
    OperandSpec(
        "out",
        ("t", "heads", LATENT_DIM),
        "bfloat16",
        "out",
        strides=axis_strides("out", "th"),
        of_nothing=0,
    ),
    OperandSpec(
        "lse", ("t", "heads"), "float32", "out", row_stride="lse_stride", align=4, of_nothing="empty_lse"
    ),
    OperandSpec("sm_scale", (), "float32", "scalar", limits=(-math.inf, math.inf)),
    OperandSpec("lse_scale", (), "float32", "scalar", doc="1 gives lse in base 2, ln 2 in base e"),
    OperandSpec("empty_lse", (), "float32", "scalar", doc="lse of a query without tokens"),
    OperandSpec("has_lengths", (), "int32", "scalar", doc="1: topk_length is read"),
    OperandSpec("cached", (), "int32", "scalar", doc="tokens of the cache; ids from there on name none"),
    OperandSpec(
        "page_inverse", (), "int32", "scalar", doc="2^(30 + page_shift) / tokens of a page, rounded up"
    ),
    OperandSpec("page_shift", (), "int32", "scalar", doc="log2 of the tokens of a page, rounded up"),
    OperandSpec("page_gap", (), "int32", "scalar", doc="cache rows between two pages"),
)
FORMS = {
    "bf16": (
        *_QUERIES,
        OperandSpec(
            "ckv",
            ("n", LATENT_DIM),
            "bfloat16",
            row_stride="ckv_stride",
            doc="latent rows, and those between pages; may be a slice of 576-wide rows",
            argument="kv",
        ),
        OperandSpec("kpe", ("n", ROPE_DIM), "bfloat16", row_stride="kpe_stride", doc="rope rows"),
        *_REST,
    ),
    "fp8": (
        *_QUERIES,
        OperandSpec(
            "kv_cache",
            ("n", FP8_TOKEN_BYTES),
            "uint8",
            row_stride="kv_cache_stride",
            doc="656-byte tokens",
            argument="kv",
        ),
        *_REST,
    ),
}


def split_queries(q: torch.Tensor, _: torch.Tensor | None = None) -> tuple[str, dict[str, Any]]:
    """Queries [t, heads, 576] as their latent and their rope part, without copying.

    Raises:
        ArgumentTypeError, InvalidArgumentError: not a dense tensor, or of another width.
    """
    require_dense("q_nope", q)
    if q.dim() != 3 or q.shape[2] != LATENT_DIM + ROPE_DIM:
        raise InvalidArgumentError(
            "q_nope", expected=f"[t, heads, {LATENT_DIM + ROPE_DIM}] where q_pe is None", got=str(tuple(q.shape)),
            fix=f"pass joined queries, or [t, heads, {LATENT_DIM}] and q_pe [t, heads, {ROPE_DIM}]",
        )  # fmt: skip
    return "", {"q_nope": q[..., :LATENT_DIM], "q_pe": q[..., LATENT_DIM:]}


def split_cache(kv: torch.Tensor, kpe: torch.Tensor | None) -> tuple[str, dict[str, Any]]:
    """The form of a cache as callers have it, paged or flat, and its rows as operands of that form, without copying.

    Args:
        kv, kpe: bfloat16 [..., 512] and [..., 64], or one of bfloat16 [..., 576], or of bytes [..., 656].

    Raises:
        ArgumentTypeError, InvalidArgumentError: another dtype or width, or pages that lie at no whole number of tokens.
    """
    require_dense("kv", kv)
    if kpe is not None:
        require_dense("kpe", kpe)
    width = kv.shape[-1] if kv.dim() > 1 else 0
    if kpe is not None and (kpe.dim() < 2 or kpe.shape[-1] != ROPE_DIM):
        raise InvalidArgumentError(
            "kpe", expected=f"[..., {ROPE_DIM}]", got=str(tuple(kpe.shape)), fix="pass one rope row a token"
        )
    if kv.dtype == torch.bfloat16 and kpe is not None and width == LATENT_DIM:
        rows, pages = _rows("kv", kv, LATENT_DIM)
        rope, rope_pages = _rows("kpe", kpe, ROPE_DIM)
        if pages != rope_pages:
            raise InvalidArgumentError(
                "kpe", expected=f"pages like kv's: shape {tuple(kv.shape)}, strides {kv.stride()}",
                got=f"shape {tuple(kpe.shape)}, strides {kpe.stride()}", fix="lay both caches out alike",
            )  # fmt: skip
        return "bf16", {"ckv": rows, "kpe": rope, **pages}
    if kv.dtype == torch.bfloat16 and kpe is None and width == LATENT_DIM + ROPE_DIM:
        rows, pages = _rows("kv", kv, width)
        return "bf16", {"ckv": rows[:, :LATENT_DIM], "kpe": rows[:, LATENT_DIM:], **pages}
    if kv.element_size() == 1 and kpe is None and width == FP8_TOKEN_BYTES:
        rows, pages = _rows("kv", kv.view(torch.uint8), width)
        return "fp8", {"kv_cache": rows, **pages}
    if kv.dtype != torch.bfloat16 and kv.element_size() != 1:
        raise ArgumentTypeError(
            "kv", expected="bfloat16 rows or 656-byte tokens", got=str(kv.dtype), fix="convert the cache"
        )
    raise InvalidArgumentError(
        "kv", expected="bfloat16 [..., 512] with kpe, bfloat16 [..., 576] without, or bytes [..., 656] without",
        got=f"{kv.dtype} {tuple(kv.shape)} {'with' if kpe is not None else 'without'} kpe", fix="pass one of these caches",
    )  # fmt: skip


def _rows(name: str, cache: torch.Tensor, width: int) -> tuple[torch.Tensor, dict[str, int]]:
    """A cache [..., width] as strided rows, without copying, and which of these are tokens.

    Pages are the axis in front, and the tokens of a page the others; rows between pages belong to none.
    """
    tokens = cache.numel() // width
    try:
        flat = cache.view(-1, width)
        return flat, pages_of(tokens, 1, 0)
    except RuntimeError:
        pass
    try:
        page = cache[0].view(-1, width)
    except RuntimeError:
        page = None
    row, between = (page.stride(0) if page is not None else 0), cache.stride(0)
    if page is None or row <= 0 or between % row or between < row * len(page):
        raise InvalidArgumentError(
            name, expected="tokens of a page at one stride, and pages a whole number of these apart",
            got=f"shape {tuple(cache.shape)}, strides {cache.stride()}", fix="pass a cache [pages, tokens, ...] of such pages",
        )  # fmt: skip
    rows = (len(cache) - 1) * (between // row) + len(page)
    if tokens > MOST_PAGED:
        raise InvalidArgumentError(
            name, expected=f"at most {MOST_PAGED} tokens in pages with rows between them", got=str(tokens),
            fix="pass the part of the cache that is in use",
        )  # fmt: skip
    return cache.as_strided((rows, width), (row, 1)), pages_of(tokens, len(page), between // row - len(page))


MOST_PAGED = 1 << 30
"""Ids up to which `page_of` is exact."""


def pages_of(cached: int, page_size: int, page_gap: int) -> dict[str, int]:
    """Scalars that say where `cached` tokens lie: `page_gap` rows lie between pages of `page_size` tokens."""
    shift = (page_size - 1).bit_length()
    inverse = -(-(1 << 30 + shift) // page_size)
    return {"cached": cached, "page_inverse": inverse, "page_shift": shift, "page_gap": page_gap}


def page_of(ids: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
    """The page of each id, int64, by the multiplication of Granlund and Montgomery (PLDI 1994) that kernels divide with."""
    return ids.long() * inputs["page_inverse"] >> 30 + inputs["page_shift"]


DATASET_SM_SCALE = 192**-0.5 * (0.1 * math.log(40) + 1) ** 2


def draw_indices(pattern: str, t: int, topk: int, n: int, generator: torch.Generator) -> torch.Tensor:
    """Ids [t, topk]: random distinct, sorted, tail (half padded at the end), holes (-1 anywhere), islands (whole tiles), empty, mixed, repeats."""
    device = generator.device
    ids = torch.stack(
        [
            torch.randperm(n, generator=generator, device=device)[:topk]
            if n >= topk
            else torch.randint(n, (topk,), generator=generator, device=device)
            for _ in range(t)
        ]
    )
    ids = ids.to(torch.int32)
    if pattern == "sorted":
        return ids.sort(dim=1).values
    if pattern == "tail":
        ids[:, topk // 2 + 5 :] = -1
    elif pattern == "holes":
        ids[torch.rand(t, topk, generator=generator, dtype=torch.float32, device=device) < 0.5] = -1
        ids[:, : topk // 4] = -1
    elif pattern == "islands":
        tile = torch.arange(topk, device=device) // 64
        ids[(3 * tile + torch.arange(t, device=device)[:, None]) % 5 > 1] = -1
    elif pattern == "empty":
        ids.fill_(-1)
    elif pattern == "mixed":
        ids[0] = -1
        if t > 1:
            ids[1, 1:] = -1
        if t > 2:
            ids[2, : topk - 1] = -1
    elif pattern == "repeats":
        ids[:, 1::2] = ids[:, ::2]
    return ids


def make(workload: Workload, generator: torch.Generator) -> dict[str, Any]:
    p = workload.params
    t, heads, topk = p["t"], p["heads"], p["topk"]
    n = p["pages"] * PAGE if "pages" in p else p["n"]
    normal = partial(torch.randn, generator=generator, dtype=torch.float32, device=generator.device)
    inputs: dict[str, Any] = {
        "q_nope": normal(t, heads, LATENT_DIM).bfloat16(),
        "q_pe": normal(t, heads, ROPE_DIM).bfloat16(),
    }
    latent, rope = normal(n, LATENT_DIM).bfloat16(), normal(n, ROPE_DIM).bfloat16()
    if workload.form == "fp8":
        inputs["kv_cache"] = pack_fp8_tokens(latent, rope, raw_scales=p.get("fp8_scales") == "raw")
    elif p.get("joined"):
        # Not torch.cat, which autocast to float16 refuses for bfloat16.
        rows = latent.new_empty(n, LATENT_DIM + ROPE_DIM)
        rows[:, :LATENT_DIM], rows[:, LATENT_DIM:] = latent, rope
        inputs["ckv"], inputs["kpe"] = rows[:, :LATENT_DIM], rows[:, LATENT_DIM:]
    else:
        inputs["ckv"], inputs["kpe"] = latent, rope
    inputs["indices"] = draw_indices(p.get("ids", "random"), t, topk, n, generator)
    lengths = torch.full((t,), INT32_MAX, dtype=torch.int32, device=generator.device)
    if p.get("lengths"):
        # The first query has all of its ids, the second none.
        lengths = torch.randint(
            1, topk + 1, (t,), generator=generator, dtype=torch.int32, device=generator.device
        )
        lengths[:2] = lengths.new_tensor([topk + 9, -3][:t])
    inputs["topk_length"] = lengths
    sink = normal(heads)
    if not p.get("sink"):
        sink = sink.fill_(-math.inf)
    inputs |= {
        "attn_sink": sink,
        "sm_scale": p.get("sm_scale", DATASET_SM_SCALE),
        "lse_scale": p.get("lse_scale", 1.0),
        "empty_lse": p.get("empty_lse", -math.inf),
        "has_lengths": int(bool(p.get("lengths"))),
        **pages_of(n, 1, 0),
    }
    if "page_size" in p:
        size = p["page_size"]
        inputs |= pages_of(n, size, 3)
        rows = torch.arange(n, device=generator.device)
        rows = rows + rows // size * 3
        for name in {"ckv", "kpe", "kv_cache"} & inputs.keys():
            cache = inputs[name]
            wide = cache.new_full(
                (int(rows[-1]) + 1, cache.shape[1]), 127 if name == "kv_cache" else math.nan
            )
            wide[rows] = cache
            inputs[name] = wide
    return {**inputs, **_spread(inputs)} if p.get("strided") else inputs


def _spread(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The inputs whose axes may lie anyhow, with gaps of NaN or of ids that name no row, and heads before queries."""
    found = {}
    for name, value in inputs.items():
        if name in ("q_nope", "q_pe"):
            wide = value.new_full((value.shape[1], value.shape[0] + 1, value.shape[2] + 8), math.nan)
            found[name] = wide[:, : value.shape[0], : value.shape[2]].transpose(0, 1)
        elif name in ("indices", "kv_cache"):
            wide = value.new_full((value.shape[0], value.shape[1] + 48), 127 if name == "kv_cache" else 0)
            found[name] = wide[:, : value.shape[1]]
    for name, view in found.items():
        view.copy_(inputs[name])
    return found


def reference(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Float64 attention, one query at a time."""
    if form == "fp8":
        return _attend(*unpack_fp8_tokens(inputs["kv_cache"]), inputs)
    return _attend(inputs["ckv"], inputs["kpe"], inputs)


def _attend(latent: torch.Tensor, rope: torch.Tensor, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    t, heads, _ = inputs["q_nope"].shape
    out = torch.zeros(t, heads, LATENT_DIM, dtype=torch.float64, device=latent.device)
    lse = torch.full(
        (t, heads), inputs.get("empty_lse", -math.inf), dtype=torch.float64, device=latent.device
    )
    sink = inputs["attn_sink"].double()
    for row in range(t):
        ids = inputs["indices"][row]
        ids = ids[: max(0, int(inputs["topk_length"][row]))] if inputs.get("has_lengths") else ids
        ids = ids[(ids >= 0) & (ids < inputs.get("cached", len(latent)))].long()
        if inputs.get("page_gap"):
            ids = ids + page_of(ids, inputs) * inputs["page_gap"]
        if ids.numel() == 0:
            continue
        keys, pe = latent[ids].double(), rope[ids].double()
        logits = inputs["sm_scale"] * (
            inputs["q_nope"][row].double() @ keys.T + inputs["q_pe"][row].double() @ pe.T
        )
        total = torch.logsumexp(logits, dim=1)
        share = 1.0 / (1.0 + torch.exp(sink - total))
        out[row] = torch.softmax(logits, dim=1) @ keys * share[:, None]
        lse[row] = total / math.log(2) * inputs["lse_scale"]
    return {"out": out, "lse": lse}


OUT_LIMIT, LSE_LIMIT = 3e-3, 1e-4


def compare(
    form: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], expected: Mapping[str, Any]
) -> Comparison:
    """Relative error of out <= 3e-3, absolute error of lse <= 1e-4 in base 2, empty rows exact.

    The tensor cores take bf16. A dequantised fp8 value (4 significant bits times a scale) is exact in bf16 only if the
    scale is a power of two. For other scales the same limits hold against attention over the tokens rounded to bf16,
    and against the exact result they grow by what that rounding alone moves it, computed here from the inputs.
    """
    result = Comparison()
    rounded = _over_rounded_tokens(form, inputs)
    if rounded is None:
        _require(result, outputs, expected, OUT_LIMIT, LSE_LIMIT)
    else:
        _require(result, outputs, rounded, OUT_LIMIT, LSE_LIMIT, " over tokens in bf16")
        out, lse = _errors(rounded, expected)
        _require(result, outputs, expected, OUT_LIMIT + out, LSE_LIMIT + lse)
    empty = ~expected["lse"].isfinite()
    empty_lse = inputs.get("empty_lse", -math.inf)
    result.demand(f"empty rows have lse = {empty_lse}", bool((outputs["lse"][empty] == empty_lse).all()))
    return result


def _require(
    result: Comparison,
    outputs: Mapping[str, Any],
    wanted: Mapping[str, Any],
    out_limit: float,
    lse_limit: float,
    of: str = "",
) -> None:
    out, lse = _errors(outputs, wanted)
    result.require(f"out relative error{of}", out, out_limit)
    if bool(wanted["lse"].isfinite().any()):
        result.require(f"lse absolute error{of}", lse, lse_limit)


def _errors(outputs: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[float, float]:
    """Relative error of out over the whole tensor, and the largest absolute error of lse in rows that have tokens."""
    got, norm = outputs["out"].double(), wanted["out"].norm()
    out = float((got - wanted["out"]).norm() / norm) if norm > 0 else float(got.abs().max())
    finite = wanted["lse"].isfinite()
    lse = (outputs["lse"].double()[finite] - wanted["lse"][finite]).abs()
    return out, float(lse.max()) if lse.numel() else 0.0


def _over_rounded_tokens(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor] | None:
    """Attention over the tokens as bf16 holds them; None where all of them are exact."""
    if form != "fp8":
        return None
    mantissas = inputs["kv_cache"][:, 512:528].contiguous().view(torch.int32) & 0x7FFFFF
    if not bool(mantissas.any()):
        return None
    latent, rope = unpack_fp8_tokens(inputs["kv_cache"])
    return _attend(latent.bfloat16(), rope, inputs)


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Selected rows once a query, queries and outputs once."""
    row = FP8_TOKEN_BYTES if form == "fp8" else 2 * (LATENT_DIM + ROPE_DIM)
    queries = dims["t"] * dims["heads"] * (2.0 * (LATENT_DIM + ROPE_DIM) + 2.0 * LATENT_DIM)
    return dims["t"] * dims["topk"] * (row + 4.0) + queries


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """2 * (576 + 512) a (query, head, token) on the tensor cores."""
    return {"bfloat16": 2.0 * dims["t"] * dims["heads"] * dims["topk"] * (2 * LATENT_DIM + ROPE_DIM)}


def points(grid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Queries over heads; serving adds the fp8 cache, other patterns of ids, and prompts; wide more of all of them."""
    if grid == "contest":
        yield from (("bf16", {"t": t, "heads": 16, "pages": 8462, "ids": "tail"}) for t in (1, 2, 6, 7, 8))
        return
    if grid == "wide":
        every = (8, 16, 32, 64, 128)
        yield from (
            (f, {"t": t, "heads": h, "pages": 4096}) for f, h, t in product(("bf16", "fp8"), every, WIDE)
        )
        # Between those: a CTA a query leaves SMs idle.
        idle = product(("bf16", "fp8"), every, (72, 112))
        yield from ((f, {"t": t, "heads": h, "pages": 4096}) for f, h, t in idle)
        fewer = product(("bf16", "fp8"), (16, 128), (1, 16, 64), (512, 1024))
        yield from ((f, {"t": t, "heads": h, "pages": 4096, "topk": k}) for f, h, t, k in fewer)
        patterns = product((16, 128), (16, 128), ("sorted", "holes"))
        yield from (("bf16", {"t": t, "heads": h, "pages": 4096, "ids": i}) for h, t, i in patterns)
        prompts = product(("bf16", "fp8"), every, (1024, 2048, 4096, 8192), (512, 2048))
        yield from ((f, {"t": t, "heads": h, "pages": p}) for f, h, t, p in prompts)
        return
    queries = (1, 16) if grid == "smoke" else (1, 4, 16, 64, 128)
    heads = (16, 8, 32, 64, 128) if grid == "serving" else (16,)
    yield from (("bf16", {"t": t, "heads": h, "pages": 4096}) for h, t in product(heads, queries))
    if grid == "serving":
        yield from (("fp8", {"t": t, "heads": h, "pages": 4096}) for h, t in product((16, 64, 128), queries))
        yield from (
            ("bf16", {"t": 64, "heads": 16, "pages": p, "ids": i})
            for p, i in ((32768, "random"), (4096, "sorted"), (4096, "holes"))
        )
        yield from (
            ("bf16", {"t": t, "heads": h, "pages": 2048}) for t, h in ((1024, 16), (1024, 128), (4096, 16))
        )


def _case(name: str, tier: str, form: str = "bf16", **params: Any) -> Workload:
    return Workload(name, tier, form, {"t": 2, "heads": 16, "topk": 256, "n": 512, **params})


PROBLEM = Problem(
    op="sparse_mla",
    doc=__doc__,
    forms=FORMS,
    workloads=(
        *(_case(f"tiny_h{heads}", "tiny", heads=heads) for heads in (8, 16, 32, 64, 128)),
        _case("tiny_fp8", "tiny", "fp8"),
        *(
            _case(f"ids_{ids}", "edge", t=3, ids=ids)
            for ids in ("sorted", "tail", "holes", "empty", "mixed", "repeats")
        ),
        _case("joined_cache", "edge", joined=True, ids="holes"),
        _case("sink", "edge", sink=True, ids="mixed", t=3),
        _case("natural_log", "edge", lse_scale=math.log(2)),
        _case("topk64", "edge", topk=64, n=100),
        _case("topk_any", "edge", topk=203, t=3, ids="holes"),
        _case("lengths", "edge", t=4, lengths=True, empty_lse=math.inf),
        _case("pages", "edge", t=3, n=510, page_size=51, ids="holes"),
        _case("fp8_pages", "edge", "fp8", t=3, n=510, page_size=51, ids="holes"),
        _case("strided", "edge", t=3, topk=130, strided=True, sink=True),
        _case("fp8_strided", "edge", "fp8", t=3, topk=130, strided=True, lengths=True),
        _case("fp8_holes", "edge", "fp8", ids="holes", t=3),
        _case("fp8_raw_scales", "edge", "fp8", ids="holes", t=3, fp8_scales="raw"),
        *(
            _case(f"real_h{heads}", "real", heads=heads, t=16, topk=2048, n=131072)
            for heads in (8, 16, 32, 64, 128)
        ),
        _case("real_pages_8462", "real", t=8, topk=2048, n=8462 * 64, ids="tail"),
        _case("real_fp8", "real", "fp8", t=16, topk=2048, n=131072),
    ),
    make=make,
    reference=reference,
    compare=compare,
    bytes=moved_bytes,
    flops=flops,
    forms_share_workloads=True,
    points=points,
    names=dict.fromkeys(FORMS, (PointName("pages", "n", PAGE),)),
)
