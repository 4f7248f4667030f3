"""Claims of document 002: a sparse-attention pipeline."""

from __future__ import annotations

import math
from collections.abc import Mapping

from .judging import (
    ROW,
    Figures,
    Holds,
    Records,
    claim,
    figure_of,
    row,
    rows,
    share,
    untested,
)
from .occupancy import CASE as GATHER
from .occupancy import beside_noise, change, gains, gains_at_least, orders

CASE = "dense_sparse"
CONTEXT, TOPK = 131072, 2048
# Queries of the steps that are compared with dense attention.
COUNTS = (1, 16, 64)


@claim(
    "002",
    "bins-exact",
    "FP8 scores take 256 values, so one histogram of 256 bins selects the exact top k.",
    lambda _: {"wrong": {kind: wrong_rows(kind) for kind in ("normal", "tight", "negative")}, "rows": 32},
)
def _bins(wrong: Mapping[str, int], rows: int) -> tuple[Holds, str]:
    text = ", ".join(f"{kind} {bad} of {rows}" for kind, bad in wrong.items())
    return not any(wrong.values()), f"rows of 32768 scores with a wrong top 2048: {text}"


def wrong_rows(kind: str, count: int = 32, length: int = 32768, k: int = TOPK) -> int:
    """Rows, of `count`, whose top k changes when scores are only told apart by 256 bins of FP8 (e4m3)."""
    import torch

    from ...oracles.topk_selector import draw

    scores = draw(kind, count, length, torch.Generator().manual_seed(0))
    bins = scores.to(torch.float8_e4m3fn).float()
    exact = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values
    binned = torch.sort(bins, dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values
    return int((exact != binned).any(dim=1).sum())


@claim(
    "002",
    "half-megabyte",
    "A query gathers 2048 x 128 B = 512 KB.",
    {"ids": TOPK, "said_bytes": 128, "said_kb": 512, "row_bytes": ROW},
)
def _half_megabyte(ids: int, said_bytes: int, said_kb: int, row_bytes: int) -> tuple[Holds, str]:
    product, needed = ids * said_bytes, ids * row_bytes
    words = (
        f"{ids} x {said_bytes} B are {product >> 10} KB, and a row is {row_bytes} B: "
        f"{needed / 1e6:.2f} MB a query"
    )
    return product == said_kb << 10 or abs(needed / (said_kb << 10) - 1) < 0.1, words


@claim(
    "002",
    "sixty-four-ns",
    "Gathering for a query takes 64 ns at 8 TB/s.",
    {"ids": TOPK, "row_bytes": ROW, "tbps": 8.0, "said_ns": 64},
)
def _sixty_four(ids: int, row_bytes: int, tbps: float, said_ns: float) -> tuple[Holds, str]:
    least = ids * row_bytes / tbps / 1e3
    return least <= 1.1 * said_ns, f"{least:.0f} ns for {ids * row_bytes / 1e6:.2f} MB"


@claim(
    "002",
    "weights-64-gb",
    "The attention weights of one head at 128K tokens take 64 GB in fp16.",
    {"queries": CONTEXT, "keys": CONTEXT, "width": 2, "said_gb": 64},
)
def _weights(queries: int, keys: int, width: int, said_gb: float) -> tuple[Holds, str]:
    gb = queries * keys * width / 1e9
    return abs(gb / said_gb - 1) < 0.1, f"{queries} x {keys} x {width} B = {gb:.1f} GB"


@claim(
    "002",
    "sparse-16-mb",
    "Sparse attention needs 16 MB of weights a head at 128K tokens in bf16.",
    {"queries": CONTEXT, "keys": TOPK, "width": 2, "said_mb": 16},
)
def _sparse_weights(queries: int, keys: int, width: int, said_mb: float) -> tuple[Holds, str]:
    mb = queries * keys * width / 1e6
    return abs(mb / said_mb - 1) < 0.1, f"{queries} x {keys} x {width} B = {mb:.0f} MB"


def _key_figures(_: Records) -> Figures:
    from dsl_kernels.problems.layouts import INDEX_DIM

    return {"elements": INDEX_DIM, "scale": 4, "said": 132}


@claim("002", "key-bytes", "A compressed key takes 132 bytes.", _key_figures)
def _key_bytes(elements: int, scale: int, said: int) -> tuple[Holds, str]:
    return elements + scale == said, f"{elements} bytes of e4m3 and a scale of {scale}"


def _selection(records: Records) -> Figures:
    return {
        "lengths": (32768, CONTEXT),
        "us": tuple(
            row(records, CASE, f"step T=64 L={length}")["ops"]["topk_selector"] for length in (32768, CONTEXT)
        ),
    }


@claim(
    "002",
    "radix-cost",
    "Selecting by radix costs O(L log L), so a histogram scan of O(256) replaces it.",
    _selection,
    CASE,
)
def _radix(lengths: tuple[int, int], us: tuple[float, float]) -> tuple[Holds, str]:
    (short, long), (before, after) = lengths, us
    words = (
        f"radix passes are O(L): at T=64 {long / short:.0f} times the scores "
        f"take {after / before:.2f} times as long; a histogram must read all scores as well"
    )
    return after / before > long / short * math.log(long) / math.log(short), words


def _pages(_: Records) -> Figures:
    import torch

    generator = torch.Generator().manual_seed(0)
    draws = [torch.randperm(CONTEXT, generator=generator)[:TOPK] // 64 for _ in range(20)]
    return {"touched": sum(len(pages.unique()) for pages in draws) / len(draws), "said": 32}


@claim("002", "whole-pages", "The 2048 selected tokens are 32 whole pages of 64.", _pages)
def _whole_pages(touched: float, said: int) -> tuple[Holds, str]:
    return touched < 1.25 * said, f"{TOPK} tokens drawn from {CONTEXT} lie on {touched:.0f} pages"


@claim(
    "002",
    "page-sorted",
    "Sorting by page makes the gather 40 to 60 % more efficient.",
    gains(128, ROW),
    GATHER,
)
def _page_sorted(gained: Mapping[str, float]) -> tuple[Holds, str]:
    return gains_at_least(gained, 0.4)


@claim(
    "002",
    "position-order",
    "Ascending positions already give the locality of pages.",
    lambda records: {"position": orders(records, "position"), "page": orders(records, "page")},
    GATHER,
)
def _position_order(position: Mapping[str, float], page: Mapping[str, float]) -> tuple[Holds, str]:
    text = "; ".join(
        f"{where} {100 * (factor - 1):+.1f} % by position, {100 * (page[where] - 1):+.1f} % by page"
        for where, factor in position.items()
    )
    holds = {where: factor >= 0.98 * page[where] for where, factor in position.items()}
    return holds, f"speed gained over random order: {text}"


@claim(
    "002",
    "exp2-1.4",
    "exp2 makes the softmax about 1.4 times faster than exp.",
    change("exp in place of exp2"),
    "split_k",
)
def _exp2_gain(ratio: float, noise: float) -> tuple[Holds, str]:
    words = f"the kernel with exp takes {ratio:.4f} of the time with exp2, {beside_noise(ratio, noise)}"
    return ratio > 1.2, words


def _persisting(records: Records) -> Figures:
    kinds = rows(records, GATHER, "persistence", "without_us")
    (gather,) = (r for r in kinds if r["what"] == "gather")
    return {
        "runs": {
            r["what"]: {"mib": r["hot_bytes"] >> 20, "normal": r["without_us"], "persisting": r["with_us"]}
            for r in kinds
        },
        "differs": gather["verdict"] == "differs",
        # Rows of 64 queries from the L2, and from DRAM.
        "warm": figure_of(records, GATHER, "gather 33 MB by position", "a_us"),
        "cold": figure_of(records, GATHER, "attainable T=64", "us"),
        "queries": 8,
    }


@claim(
    "002",
    "l2-persistence",
    "Marking hot rows as persisting keeps them in L2 and saves the trips to DRAM.",
    _persisting,
    GATHER,
)
def _persistence(
    runs: Mapping[str, Mapping[str, float]], differs: bool, warm: float, cold: float, queries: int
) -> tuple[Holds, str]:
    text = "; ".join(
        f"{what} of {run['mib']} MiB after 256 MiB of other reads: "
        f"{run['normal']:.1f} µs, persisting {run['persisting']:.1f}"
        for what, run in runs.items()
    )
    whole = (cold - warm) * queries / 64
    saved = runs["gather"]["normal"] - runs["gather"]["persisting"]
    words = f"{text}; rows that stay in L2 would save the gather about {whole:.1f} µs"
    return differs and saved >= 0.5 * whole, words


@claim(
    "002",
    "fits-l2",
    "What a query gathers fits the L2.",
    {"ids": TOPK, "row_bytes": ROW, "l2_mib": 60},
)
def _fits(ids: int, row_bytes: int, l2_mib: int) -> tuple[Holds, str]:
    each = ids * row_bytes
    most = int((l2_mib << 20) // each)
    words = (
        f"{each / 1e6:.2f} MB do; {most} distinct queries fill the {l2_mib} MiB of an H200, "
        f"and 64 need {64 * each / 1e6:.0f} MB"
    )
    return most >= 1, words


def _steps(records: Records) -> dict[int, float]:
    return {t: figure_of(records, CASE, f"step T={t} L={CONTEXT}", "us") for t in COUNTS}


def _read_gbps(records: Records) -> float:
    """Rate of the sequential read in the same run."""
    return float(rows(records, CASE, "read", "gbps")[0]["gbps"])


@claim(
    "002",
    "step-time",
    "A whole step takes 5 to 15 µs at 128K tokens.",
    lambda records: {"us": _steps(records), "gbps": _read_gbps(records), "key_bytes": 132},
    CASE,
)
def _step_time(us: Mapping[int, float], gbps: float, key_bytes: int) -> tuple[Holds, str]:
    text = ", ".join(f"{each:.1f} µs at T={t}" for t, each in us.items())
    floor = CONTEXT * key_bytes / gbps / 1e3
    words = f"{text}; reading the keys alone takes {floor:.1f} µs a query at {gbps / 1e3:.2f} TB/s"
    return us[1] <= 15, words


def _dense(records: Records) -> dict[int, float]:
    from .. import dense_sparse

    times = {t: dense_sparse.dense_us(records[CASE], t, CONTEXT) for t in COUNTS}
    known = {t: us for t, us in times.items() if us is not None}
    if known.keys() != times.keys():
        raise LookupError(f"no dense attention at T={min(times.keys() - known.keys())} L={CONTEXT}")
    return known


@claim(
    "002",
    "dense-time",
    "Dense attention takes about 300 µs at 128K tokens.",
    lambda records: {"us": _dense(records)[1], "gbps": _read_gbps(records), "row_bytes": ROW, "said": 300},
    CASE,
)
def _dense_time(us: float, gbps: float, row_bytes: int, said: float) -> tuple[Holds, str]:
    floor = CONTEXT * row_bytes / gbps / 1e3
    words = f"{us:.1f} µs for one query of 16 heads over latent rows, {floor:.1f} by the bytes alone"
    return said / 2 <= us <= 2 * said, words


@claim(
    "002",
    "speedup",
    "Sparse is 20 to 60 times faster than dense at 128K tokens.",
    lambda records: {"dense": _dense(records), "sparse": _steps(records), "said": 20},
    CASE,
)
def _speedup(dense: Mapping[int, float], sparse: Mapping[int, float], said: float) -> tuple[Holds, str]:
    ratios = {t: us / sparse[t] for t, us in dense.items()}
    words = ", ".join(f"{ratio:.1f} times at T={t}" for t, ratio in ratios.items())
    return {str(t): ratio >= said for t, ratio in ratios.items()}, words


def _by_length(records: Records) -> Figures:
    """Times of a step's parts at the most queries, for a quarter of the context and for all of it."""
    steps = {
        r["context"]: {"a step": r["us"], **r["ops"]}
        for r in rows(records, CASE, "step", "ops")
        if r["t"] == max(COUNTS)
    }
    short, long = steps[CONTEXT // 4], steps[CONTEXT]
    return {"short": short, "long": long}


@claim("002", "linear-in-k", "A step costs O(L k) in place of O(L²): k tokens a query.", _by_length, CASE)
def _linear(short: Mapping[str, float], long: Mapping[str, float]) -> tuple[Holds, str]:
    grown = {name: us / short[name] for name, us in long.items()}
    attention, scoring, step = (grown[name] for name in ("sparse_mla", "lightning_indexer", "a step"))
    part = long["lightning_indexer"] / long["a step"]
    words = (
        f"T={max(COUNTS)}: four times the tokens take {attention:.1f} times as long in attention, "
        f"{scoring:.1f} in scoring, which reads every token, and {step:.1f} in a step, "
        f"of which scoring is {share(part)}"
    )
    return {"attention": attention < 2, "a step": step < 2}, words


def _overlap(records: Records) -> Figures:
    from .. import gqa_regions

    spent = gqa_regions.spent_of(records["gqa_regions"])
    names = {"apart": "128x128 no overlap", "together": "128x128"}
    return {key: spent[name]["attend"]["all"] for key, name in names.items()}


@claim(
    "002",
    "wgmma-synchronous",
    "Hopper's wgmma is synchronous, so that a kernel can hardly overlap it with other work.",
    _overlap,
    "gqa_regions",
)
def _synchronous(apart: float, together: float) -> tuple[Holds, str]:
    words = (
        f"wgmma.mma_async returns at once and is waited for by groups: "
        f"an iteration of this project's kernel takes {apart:.0f} cycles "
        f"with the softmax after the products, {together:.0f} with it beside them"
    )
    return apart / together < 1.05, words


@claim(
    "002",
    "other-lanes-write",
    "One thread issues a product, and the other 31 of its warp do the epilogue meanwhile.",
    {"lanes_of_a_warp": 32, "issuing": 1, "lanes_of_a_read": 32},
)
def _other_lanes(lanes_of_a_warp: int, issuing: int, lanes_of_a_read: int) -> tuple[Holds, str]:
    left = lanes_of_a_warp - issuing
    words = (
        f"tcgen05.ld takes all {lanes_of_a_read} lanes of a warp at one instruction (.sync.aligned), "
        f"{left} are left"
    )
    return left >= lanes_of_a_read, words


untested(
    "002",
    "tmem-10x",
    "Tensor memory is 10 times faster than shared memory.",
    "needs a B200; none was used",
)
untested("002", "tmem-rate", "Tensor memory delivers about 100 TB/s.", "needs a B200; none was used")
untested(
    "002",
    "b200-l2",
    "The B200 has 65 MB of L2.",
    "needs a B200 to be asked; published figures say about 126 MB",
)
untested(
    "002",
    "quality",
    "2048 of 128K tokens keep the quality of full attention.",
    "a property of the trained model, not of a kernel",
)
