"""How outputs of `sparse_mla` are judged: drawn inputs, the reference, tolerances, workloads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from dsl_kernels.arguments import INT32_MAX
from dsl_kernels.kernels.lightning_indexer.problem import PAGE
from dsl_kernels.kernels.sparse_mla.forms import (
    EXTRA,
    PAGED,
    ROPELESS,
    page_of,
    pages_of,
    v4_pages_of,
    v41_places_of,
)
from dsl_kernels.kernels.sparse_mla.problem import PROBLEM, attended, width_of
from dsl_kernels.problems.base import Comparison
from dsl_kernels.problems.layouts import (
    LATENT_DIM,
    ROPE_DIM,
    V4_GROUP,
    V4_ROW_BYTES,
    V4_SCALE_BYTES,
    V4_TOKEN_BYTES,
    V41_GROUP,
    V41_TOKEN_BYTES,
    pack_fp8_tokens,
    pack_nope8_tokens,
    pack_v4_pages,
    pack_v41_pages,
    v41_parts,
)

from ..layouts import unpack_fp8_tokens, unpack_nope8_tokens, unpack_v4_pages, unpack_v41_pages
from . import Oracle, Workload

DATASET_SM_SCALE = 192**-0.5 * (0.1 * math.log(40) + 1) ** 2


def draw_indices(pattern: str, t: int, topk: int, n: int, generator: torch.Generator) -> torch.Tensor:
    """Ids [t, topk] int32 of a pattern.

    Args:
        pattern: "random" (distinct if `n` >= `topk`), "sorted", "tail" (about the second half is padding),
            "holes" (the first quarter is padding, and so is half of the rest, at random), "islands" (whole
            tiles of 64 ids are valid or padding), "upper" (as "islands", and the first half of each tile is
            padding too), "empty" (all are padding), "mixed" (the first query has no id, the second only its
            first one, the third only its last one),
            "prompt" (query i has its first i + 1 ids at most, as a prompt from its first token on), "repeats"
            (each id twice) or "past" (as "holes", and padding is a number far past all tokens).
    """
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
    elif pattern in ("holes", "past"):
        padding = -1 if pattern == "holes" else 1 << 28
        ids[torch.rand(t, topk, generator=generator, dtype=torch.float32, device=device) < 0.5] = padding
        ids[:, : topk // 4] = padding
    elif pattern in ("islands", "upper"):
        tile = torch.arange(topk, device=device) // 64
        ids[(3 * tile + torch.arange(t, device=device)[:, None]) % 5 > 1] = -1
        if pattern == "upper":
            ids[:, torch.arange(topk, device=device) % 64 < 32] = -1
    elif pattern == "empty":
        ids.fill_(-1)
    elif pattern == "mixed":
        ids[0] = -1
        if t > 1:
            ids[1, 1:] = -1
        if t > 2:
            ids[2, : topk - 1] = -1
    elif pattern == "prompt":
        ids[torch.arange(topk, device=device) > torch.arange(t, device=device)[:, None]] = -1
    elif pattern == "repeats":
        ids[:, 1::2] = ids[:, ::2]
    return ids


def make(workload: Workload, generator: torch.Generator) -> dict[str, Any]:
    p = workload.params
    t, heads, topk = p["t"], p["heads"], p["topk"]
    n = p["pages"] * PAGE if "pages" in p else p["n"]
    normal = partial(torch.randn, generator=generator, dtype=torch.float32, device=generator.device)
    inputs: dict[str, Any] = {}
    if workload.form in ROPELESS:
        inputs["q_rows"] = normal(t, heads, LATENT_DIM).bfloat16()
    else:
        inputs["q_nope"] = normal(t, heads, LATENT_DIM).bfloat16()
        inputs["q_pe"] = normal(t, heads, ROPE_DIM).bfloat16()
    if workload.form not in PAGED:
        latent, rope = normal(n, LATENT_DIM).bfloat16(), normal(n, ROPE_DIM).bfloat16()
    inputs |= _draw_ids("", p, topk, n, generator)
    sink = normal(heads)
    if not p.get("sink"):
        sink = sink.fill_(-math.inf)
    inputs |= {
        "attn_sink": sink,
        "sm_scale": p.get("sm_scale", DATASET_SM_SCALE),
        "lse_scale": p.get("lse_scale", 1.0),
        "empty_lse": p.get("empty_lse", -math.inf),
    }
    if workload.form in PAGED:
        extra_n, extra_topk = p.get("v4_extra_n", 300), p.get("v4_extra_topk", 130)
        draw = _draw_v4_pages
        if workload.form == "v41":
            draw = partial(_draw_v41_pages, bool(p.get("planar")))
        inputs |= {
            **_draw_ids(EXTRA, p, extra_topk, extra_n, generator),
            **draw("", n, p.get("page_size", PAGE), inputs["indices"], generator),
        }
        inputs |= draw(EXTRA, extra_n, p.get("v4_extra_page_size", 2), inputs["extra_indices"], generator)
        return {**inputs, **_spread(inputs)} if p.get("strided") else inputs
    inputs |= pages_of(n, 1, 0)
    if workload.form == "fp8":
        inputs["kv_cache"] = pack_fp8_tokens(latent, rope, raw_scales=p.get("fp8_scales") == "raw")
    elif workload.form == "nope8":
        inputs["kv_cache"] = pack_nope8_tokens(latent, raw_scales=p.get("fp8_scales") == "raw")
    elif p.get("joined"):
        # Not torch.cat: under autocast to float16 it refuses bfloat16.
        rows = latent.new_empty(n, LATENT_DIM + ROPE_DIM)
        rows[:, :LATENT_DIM], rows[:, LATENT_DIM:] = latent, rope
        inputs["ckv"] = rows[:, :LATENT_DIM]
        if workload.form != "nope":
            inputs["kpe"] = rows[:, LATENT_DIM:]
    elif workload.form == "nope":
        inputs["ckv"] = latent
    else:
        inputs["ckv"], inputs["kpe"] = latent, rope
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


def _draw_ids(
    scope: str, p: Mapping[str, Any], topk: int, n: int, generator: torch.Generator
) -> dict[str, Any]:
    """Ids of a scope with `n` tokens, and how many of the ids count."""
    t = p["t"]
    lengths = torch.full((t,), INT32_MAX, dtype=torch.int32, device=generator.device)
    if p.get("lengths"):
        # Lengths out of range: all ids of the first query count, and no ids of the second one.
        lengths = torch.randint(
            0, topk + 1, (t,), generator=generator, dtype=torch.int32, device=generator.device
        )
        lengths[:2] = lengths.new_tensor([topk + 9, -3][:t])
    return {
        f"{scope}indices": draw_indices(p.get("ids", "random"), t, topk, n, generator),
        f"{scope}topk_length": lengths,
        f"has_{scope}lengths": int(bool(p.get("lengths"))),
    }


def _draw_v4_pages(
    scope: str, n: int, size: int, ids: torch.Tensor, generator: torch.Generator
) -> dict[str, Any]:
    """Pages of `n` tokens. Tokens that no id names are NaN, and so are bytes outside tokens."""
    count = -(-n // size)
    pages = pack_v4_pages(_draw_rows(count, size, V4_GROUP, generator))
    flat = pages.as_strided((count, pages.stride(0)), (pages.stride(0), 1))
    flat[:, size * V4_TOKEN_BYTES :] = 255
    unnamed = _unnamed(ids, n, count, size)
    for begin, each, byte in ((0, V4_ROW_BYTES, 127), (size * V4_ROW_BYTES, V4_SCALE_BYTES, 255)):
        flat[:, begin : begin + size * each].view(count, size, each)[unnamed] = byte
    return {f"{scope}kv_pages": flat[:, : size * V4_TOKEN_BYTES], **v4_pages_of(scope, n, size)}


def _draw_rows(count: int, size: int, group: int, generator: torch.Generator) -> torch.Tensor:
    """Rows [count, size, 512] float32 whose groups of dims differ by powers of two.

    A kernel that takes another group's scale then gives a wrong result.
    """
    drawn: Any = {"generator": generator, "device": generator.device}
    powers = torch.randint(-8, 2, (count, size, LATENT_DIM // group), **drawn)
    rows = torch.randn(count, size, LATENT_DIM, dtype=torch.float32, **drawn)
    return rows * torch.exp2(powers).repeat_interleave(group, 2)


def _unnamed(ids: torch.Tensor, n: int, count: int, size: int) -> torch.Tensor:
    """Which tokens [count, size] of the pages no id names, among `n` tokens."""
    named = torch.zeros(count * size, dtype=torch.bool, device=ids.device)
    named[ids[(ids >= 0) & (ids < n)].long()] = True
    return ~named.view(count, size)


def _draw_v41_pages(
    planar: bool, scope: str, n: int, size: int, ids: torch.Tensor, generator: torch.Generator
) -> dict[str, Any]:
    """Pages of `n` tokens, with gaps between them. Tokens that no id names and the gaps are NaN."""
    count, used = -(-n // size), size * V41_TOKEN_BYTES
    pages = pack_v41_pages(_draw_rows(count, size, V41_GROUP, generator), planar=planar)
    flat = torch.full((count, used + 48), 255, dtype=torch.uint8, device=generator.device)[:, :used]
    flat.copy_(pages.as_strided((count, used), (pages.stride(0), 1)))
    unnamed = _unnamed(ids, n, count, size)
    for part, byte in zip(v41_parts(flat, size, planar=planar), (127, 255), strict=True):
        part[unnamed] = byte
    places = v41_places_of(scope, size, planar=planar)
    return {f"{scope}kv_pages": flat, **v4_pages_of(scope, n, size), **places}


def _spread(inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Strided copies of the inputs that may be strided. Gaps hold NaN or id 0; heads come before queries."""
    spread = {}
    for name, value in inputs.items():
        if name in ("q_nope", "q_pe", "q_rows"):
            wide = value.new_full((value.shape[1], value.shape[0] + 1, value.shape[2] + 8), math.nan)
            spread[name] = wide[:, : value.shape[0], : value.shape[2]].transpose(0, 1)
        elif name in ("indices", "extra_indices", "kv_cache"):
            wide = value.new_full((value.shape[0], value.shape[1] + 48), 127 if name == "kv_cache" else 0)
            spread[name] = wide[:, : value.shape[1]]
    for name, view in spread.items():
        view.copy_(inputs[name])
    return spread


def reference(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Float64 attention, one query at a time."""
    if form in PAGED:
        caches = {scope: _rows_of_pages(scope, inputs) for scope in ("", EXTRA)}

        def selected(row: int) -> torch.Tensor:
            return torch.cat([rows[_ids_of(scope, row, inputs)] for scope, rows in caches.items()])

        return _attend(inputs["q_rows"], selected, inputs)
    if form == "fp8":
        return _attend_rows(*unpack_fp8_tokens(inputs["kv_cache"]), inputs)
    if form == "nope":
        return _attend_rows(inputs["ckv"], None, inputs)
    if form == "nope8":
        return _attend_rows(unpack_nope8_tokens(inputs["kv_cache"]), None, inputs)
    return _attend_rows(inputs["ckv"], inputs["kpe"], inputs)


def _rows_of_pages(scope: str, inputs: Mapping[str, Any]) -> torch.Tensor:
    """The rows [tokens, 512] of a scope's pages, in the order of their ids."""
    pages, size = inputs[f"{scope}kv_pages"], inputs[f"{scope}page_size"]
    token = inputs.get(f"{scope}token_bytes")
    if token is None:
        rows = unpack_v4_pages(pages.reshape(len(pages), size, 1, V4_TOKEN_BYTES))
    else:
        shaped = pages.reshape(len(pages), size, 1, V41_TOKEN_BYTES)
        rows = unpack_v41_pages(shaped, planar=token == LATENT_DIM)
    return rows.view(-1, LATENT_DIM)


def _ids_of(scope: str, row: int, inputs: Mapping[str, Any]) -> torch.Tensor:
    """The ids of a query that count and name a token."""
    ids = inputs[f"{scope}indices"][row]
    if inputs.get(f"has_{scope}lengths"):
        ids = ids[: max(0, int(inputs[f"{scope}topk_length"][row]))]
    known = inputs.get(f"{scope}cached", INT32_MAX)
    return ids[(ids >= 0) & (ids < known)].long()


def _attend_rows(
    latent: torch.Tensor, rope: torch.Tensor | None, inputs: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Attention over rows whose pages may have gaps; `rope` is None if rows have no separate rope dims."""

    def selected(row: int) -> torch.Tensor:
        ids = _ids_of("", row, {"cached": len(latent), **inputs})
        if inputs.get("page_gap"):
            ids = ids + page_of(ids, inputs) * inputs["page_gap"]
        rows = latent[ids].double()
        return rows if rope is None else torch.cat([rows, rope[ids].double()], dim=1)

    if rope is None:
        return _attend(inputs["q_rows"].double(), selected, inputs)
    return _attend(torch.cat([inputs["q_nope"].double(), inputs["q_pe"].double()], dim=2), selected, inputs)


def _attend(
    queries: torch.Tensor, selected: Callable[[int], torch.Tensor], inputs: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """Attention of each query over its `selected` rows. The first 512 dims of a row are its values."""
    t, heads, _ = queries.shape
    out = torch.zeros(t, heads, LATENT_DIM, dtype=torch.float64, device=queries.device)
    lse = torch.full(
        (t, heads), inputs.get("empty_lse", -math.inf), dtype=torch.float64, device=queries.device
    )
    sink = inputs["attn_sink"].double()
    for row in range(t):
        keys = selected(row).double()
        if not len(keys):
            continue
        logits = inputs["sm_scale"] * (queries[row].double() @ keys.T)
        total = torch.logsumexp(logits, dim=1)
        share = 1.0 / (1.0 + torch.exp(sink - total))
        out[row] = torch.softmax(logits, dim=1) @ keys[:, :LATENT_DIM] * share[:, None]
        lse[row] = total / math.log(2) * inputs["lse_scale"]
    return {"out": out, "lse": lse}


OUT_LIMIT, LSE_LIMIT = 3e-3, 1e-4


def compare(
    form: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], expected: Mapping[str, Any]
) -> Comparison:
    """Compare outputs with the reference.

    Limits: relative error of out 3e-3, absolute error of lse 1e-4 in base 2, and empty rows exact.

    Where tensor cores take bf16, a dequantised fp8 value (4 significant bits times a scale) is exact only if
    the scale is a power of two. With other scales the same limits hold against attention over tokens rounded
    to bf16. Against the exact result, each limit grows by the error of that rounding alone, computed here
    from the inputs. Tokens that are taken as they are stored are not rounded: outputs within the limits
    against the exact result meet the rule at once.
    """
    result = Comparison()
    rounded = _over_rounded_tokens(form, inputs)
    if rounded is None:
        _require(result, outputs, expected, OUT_LIMIT, LSE_LIMIT)
    else:
        own_out, own_lse = _errors(outputs, expected)
        if own_out > OUT_LIMIT or own_lse > LSE_LIMIT:
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
    """Relative error of out over the whole tensor, and the largest absolute error of lse.

    Rows without tokens do not count for lse.
    """
    got, norm = outputs["out"].double(), wanted["out"].norm()
    out = float((got - wanted["out"]).norm() / norm) if norm > 0 else float(got.abs().max())
    finite = wanted["lse"].isfinite()
    lse = (outputs["lse"].double()[finite] - wanted["lse"][finite]).abs()
    return out, float(lse.max()) if lse.numel() else 0.0


def _over_rounded_tokens(form: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor] | None:
    """Attention over the tokens rounded to bf16; None if all of them are exact."""
    if form not in ("fp8", "nope8"):
        return None
    mantissas = inputs["kv_cache"][:, 512:528].contiguous().view(torch.int32) & 0x7FFFFF
    if not bool(mantissas.any()):
        return None
    if form == "nope8":
        return _attend_rows(unpack_nope8_tokens(inputs["kv_cache"]).bfloat16(), None, inputs)
    latent, rope = unpack_fp8_tokens(inputs["kv_cache"])
    return _attend_rows(latent.bfloat16(), rope, inputs)


def flops(form: str, dims: Mapping[str, int]) -> dict[str, float]:
    """Operations on the tensor cores: 2 * (576 + 512) for each query, head and token.

    They are 2 * (512 + 512) if the rope dims are among the values.
    """
    each = 2.0 * (width_of(form) + LATENT_DIM)
    return {"bfloat16": each * dims["t"] * dims["heads"] * attended(dims)}


def _case(name: str, tier: str, form: str = "bf16", **params: Any) -> Workload:
    return Workload(name, tier, form, {"t": 2, "heads": 16, "topk": 256, "n": 512, **params})


WORKLOADS = (
    *(_case(f"tiny_h{heads}", "tiny", heads=heads) for heads in (4, 8, 16, 32, 40)),
    _case("tiny_fp8", "tiny", "fp8"),
    *(
        _case(f"ids_{ids}", "edge", t=3, ids=ids)
        for ids in ("sorted", "tail", "holes", "empty", "mixed", "repeats")
    ),
    _case("joined_cache", "edge", joined=True, ids="holes"),
    _case("sink", "edge", sink=True, ids="mixed", t=3),
    _case("natural_log", "edge", lse_scale=math.log(2)),
    _case("heads_one", "edge", heads=1, t=3, ids="mixed", sink=True),
    _case("heads_between", "edge", heads=100, t=3, topk=203, strided=True, sink=True, lengths=True),
    _case("topk64", "edge", topk=64, n=100),
    _case("topk_any", "edge", topk=203, t=3, ids="holes"),
    _case("lengths", "edge", t=4, lengths=True, empty_lse=math.inf),
    _case("pages", "edge", t=3, n=510, page_size=51, ids="holes"),
    _case("fp8_pages", "edge", "fp8", t=3, n=510, page_size=51, ids="holes"),
    _case("strided", "edge", t=3, topk=130, strided=True, sink=True),
    _case("fp8_strided", "edge", "fp8", t=3, topk=130, strided=True, lengths=True),
    _case("fp8_holes", "edge", "fp8", ids="holes", t=3),
    _case("tiny_nope", "tiny", "nope"),
    _case("nope_pages", "edge", "nope", t=3, n=510, page_size=51, ids="holes"),
    _case("nope_strided", "edge", "nope", t=3, topk=130, strided=True, lengths=True),
    _case("tiny_nope8", "tiny", "nope8"),
    _case("nope8_pages", "edge", "nope8", t=3, n=510, page_size=51, ids="holes", sink=True),
    _case("nope8_strided", "edge", "nope8", t=3, topk=130, strided=True, lengths=True, empty_lse=math.inf),
    _case("nope8_raw_scales", "edge", "nope8", ids="mixed", t=3, fp8_scales="raw"),
    _case("tiny_v4", "tiny", "v4"),
    _case("v4_window_alone", "edge", "v4", t=3, topk=128, v4_extra_topk=0, ids="holes", sink=True),
    _case("v4_odd_pages", "edge", "v4", t=3, page_size=53, v4_extra_page_size=69, ids="holes"),
    _case("v4_lengths", "edge", "v4", t=4, lengths=True, empty_lse=math.inf, sink=True),
    _case("v4_empty", "edge", "v4", t=3, ids="empty", lse_scale=math.log(2)),
    _case("tiny_v41", "tiny", "v41"),
    _case("v41_planar", "edge", "v41", t=3, planar=True, page_size=53, v4_extra_page_size=69, ids="holes"),
    _case("v41_odd_pages", "edge", "v41", t=3, page_size=53, v4_extra_page_size=69, ids="mixed", sink=True),
    _case("v41_window_alone", "edge", "v41", t=3, topk=128, v4_extra_topk=0, ids="holes", planar=True),
    _case("v41_lengths", "edge", "v41", t=4, lengths=True, empty_lse=math.inf),
    _case("fp8_raw_scales", "edge", "fp8", ids="holes", t=3, fp8_scales="raw"),
    *(
        _case(f"real_h{heads}", "real", heads=heads, t=16, topk=2048, n=131072)
        for heads in (4, 8, 16, 32, 64, 96, 128)
    ),
    _case("real_nope", "real", "nope", t=16, topk=2048, n=131072),
    _case("real_nope8", "real", "nope8", t=16, topk=2048, n=131072),
    _case("real_pages_8462", "real", t=8, topk=2048, n=8462 * 64, ids="tail"),
    _case("real_fp8", "real", "fp8", t=16, topk=2048, n=131072),
    *(
        _case(
            f"real_{form}",
            "real",
            form,
            t=16,
            topk=128,
            n=16384,
            v4_extra_topk=512,
            v4_extra_n=16384,
            v4_extra_page_size=64,
        )
        for form in PAGED
    ),
)
# Kernels for any number of heads take each workload of 16 heads with 20 heads: one full block and one that is
# not.
ODD_HEADS = tuple(
    replace(each, name=f"{each.name}_h20", params={**each.params, "heads": 20})
    for each in WORKLOADS
    if each.tier != "real" and each.params["heads"] == 16
)


ORACLE = Oracle(
    **vars(PROBLEM),
    workloads=(*WORKLOADS, *ODD_HEADS),
    make=make,
    reference=reference,
    compare=compare,
    flops=flops,
    units=lambda form, dims: ("queries", dims["t"]),
    forms_share_workloads=lambda form, other: True,
)
