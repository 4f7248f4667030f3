"""Sparse multi-head latent attention over selected tokens, with the latent row as key and as value.

l[i] = sm_scale * (q_nope . ckv[id_i] + q_pe . kpe[id_i]);  out = softmax(l) @ ckv[ids];  lse = log(sum exp
l).

An id of -1 is padding at any place. Any other id that names no token is padding too, and so are the ids past
a query's `topk_length`. A query without tokens gives out = 0 and lse = `empty_lse`. The optional sink joins
only the softmax's denominator of `out`.

Source: DeepSeek-V3.2 and flashinfer-bench's dsa_sparse_attention_h16_ckv512_kpe64_topk2048_ps64.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from ...problems.base import WIDE, PointName, Problem
from ...problems.layouts import (
    FP8_TOKEN_BYTES,
    LATENT_DIM,
    NOPE8_TOKEN_BYTES,
    ROPE_DIM,
    V4_TOKEN_BYTES,
    V41_TOKEN_BYTES,
)
from ..lightning_indexer.problem import PAGE
from .forms import FORMS, ROPELESS

ROW_BYTES = {"fp8": FP8_TOKEN_BYTES, "nope8": NOPE8_TOKEN_BYTES, "v4": V4_TOKEN_BYTES, "v41": V41_TOKEN_BYTES}
"""Bytes of a token, by the forms whose tokens are not bf16 rows."""


def moved_bytes(form: str, dims: Mapping[str, int]) -> float:
    """Bytes of a call: the selected rows once for each query, and queries and outputs once."""
    row = ROW_BYTES.get(form, 2 * width_of(form))
    queries = dims["t"] * dims["heads"] * (2.0 * width_of(form) + 2.0 * LATENT_DIM)
    return dims["t"] * attended(dims) * (row + 4.0) + queries


def width_of(form: str) -> int:
    """Dims of a query and of a key."""
    return LATENT_DIM if form in ROPELESS else LATENT_DIM + ROPE_DIM


def attended(dims: Mapping[str, int]) -> int:
    """How many ids a query has in all scopes."""
    return dims["topk"] + dims.get("extra_topk", 0)


def points(grid: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Sizes to time: queries by heads.

    "serving" adds the fp8 cache, other patterns of ids, and prompts. "wide" has more of all of these.
    """
    if grid == "contest":
        yield from (("bf16", {"t": t, "heads": 16, "pages": 8462, "ids": "tail"}) for t in (1, 2, 6, 7, 8))
        return
    if grid == "wide":
        every = (8, 16, 32, 64, 128)
        yield from (
            (f, {"t": t, "heads": h, "pages": 4096}) for f, h, t in product(("bf16", "fp8"), every, WIDE)
        )
        # Between those numbers of queries, one CTA per query leaves SMs idle.
        idle = product(("bf16", "fp8"), every, (72, 112))
        yield from ((f, {"t": t, "heads": h, "pages": 4096}) for f, h, t in idle)
        fewer = product(("bf16", "fp8"), (16, 128), (1, 16, 64), (512, 1024))
        yield from ((f, {"t": t, "heads": h, "pages": 4096, "topk": k}) for f, h, t, k in fewer)
        patterns = product((16, 128), (16, 128), ("sorted", "holes"))
        yield from (("bf16", {"t": t, "heads": h, "pages": 4096, "ids": i}) for h, t, i in patterns)
        from_first = product((("bf16", 2048), ("nope", 640)), (64, 128), (1024, 4096))
        yield from (
            (f, {"t": t, "heads": h, "pages": 80, "topk": k, "ids": "prompt"}) for (f, k), h, t in from_first
        )
        prompts = product(("bf16", "fp8"), every, (1024, 2048, 4096, 8192), (512, 2048))
        yield from ((f, {"t": t, "heads": h, "pages": p}) for f, h, t, p in prompts)
        others = product(("bf16", "fp8", "nope", "nope8"), (4, 20, 96), (1, 64, 1024))
        yield from ((f, {"t": t, "heads": h, "pages": 2048}) for f, h, t in others)
        both = {"pages": 4096, "topk": 128, "extra_topk": 512}
        of_any = product(("v4", "v41"), (4, 20, 96), (1, 64, 1024))
        yield from ((f, {"t": t, "heads": h, **both}) for f, h, t in of_any)
        yield from (("v41", {"t": t, "heads": h, **both}) for h, t in product((8, 64), (1, 16, 64, 1024)))
        return
    queries = (1, 16) if grid == "smoke" else (1, 4, 16, 64, 128)
    heads = (16, 8, 32, 64, 128) if grid == "serving" else (16,)
    yield from (("bf16", {"t": t, "heads": h, "pages": 4096}) for h, t in product(heads, queries))
    if grid == "serving":
        yield from (("fp8", {"t": t, "heads": h, "pages": 4096}) for h, t in product((16, 64, 128), queries))
        scopes = {"pages": 4096, "topk": 128, "extra_topk": 512}
        yield from (("v4", {"t": t, "heads": h, **scopes}) for h, t in product((16, 8, 32, 64, 128), queries))
        yield from (
            ("nope", {"t": t, "heads": h, "pages": 2048})
            for h, t in product((8, 16, 32, 64, 128), (16, 64, 1024))
        )
        yield from (
            ("bf16", {"t": 64, "heads": 16, "pages": p, "ids": i})
            for p, i in ((32768, "random"), (4096, "sorted"), (4096, "holes"))
        )
        yield from (
            ("bf16", {"t": t, "heads": h, "pages": 2048}) for t, h in ((1024, 16), (1024, 128), (4096, 16))
        )


PROBLEM = Problem(
    op="sparse_mla",
    doc=__doc__,
    forms=FORMS,
    bytes=moved_bytes,
    points=points,
    names=dict.fromkeys(("bf16", "nope", "fp8", "nope8"), (PointName("pages", "n", PAGE),)),
)
