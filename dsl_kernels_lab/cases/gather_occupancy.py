"""Fetching rows at random: whether warps, bytes in flight, order or the L2 decide how fast it goes.

The kernel only fetches rows of 1152 bytes, adds up their words and stores the sum, so that its result can be
checked. It fetches in three ways: 16-byte loads into registers, 16-byte asynchronous copies, and one bulk
copy per row. Warps per SM and rows in flight per warp are set independently. This library's attention runs on
the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from dsl_kernels._discover import later
from dsl_kernels.problems.base import Comparison
from dsl_kernels.problems.layouts import LATENT_DIM, ROPE_DIM

from .. import oracles
from ..timing import bench
from . import _figures
from ._cuda import check
from ._gather import CANDIDATES, DEPTHS, ENGINES, ROW, Setting, checked, gather, settings
from .base import Case, CaseRows, Expectation, Launch, Record, read_times, rows_of, times

if TYPE_CHECKING:
    import torch

    from dsl_kernels import ops

    from ..timing import calibrate
else:
    torch = later("torch", globals())
    ops = later("dsl_kernels.ops", globals())
    calibrate = later("dsl_kernels_lab.timing.calibrate", globals())

DEVICE = "cuda"
TOPK = 2048
PAGE = 64
HEADS = 16


def select(t: int, contexts: int, length: int, order: str, generator: torch.Generator) -> torch.Tensor:
    """Rows [t, 2048] that queries select from contexts of `length` tokens with pages scattered in memory.

    Args:
        order: "random", "position" (ascending in the sequence) or "page" (ascending in memory).
    """
    device = generator.device
    pages = length // PAGE
    tables = torch.randperm(contexts * pages, generator=generator, device=device).view(contexts, pages)
    selected = torch.empty(t, TOPK, dtype=torch.int32, device=device)
    for row in range(t):
        positions = torch.randperm(length, generator=generator, device=device)[:TOPK]
        if order == "position":
            positions = positions.sort().values
        ids = tables[row % contexts][positions // PAGE] * PAGE + positions % PAGE
        selected[row] = ids.sort().values if order == "page" else ids
    return selected


def attention(
    cache: torch.Tensor, ids: torch.Tensor, seed: int = 0
) -> tuple[Callable[[], None], Callable[[], Comparison]]:
    """This library's sparse attention over the same rows: a call, and its check on four queries."""
    from ..oracles.sparse_mla import DATASET_SM_SCALE

    generator = torch.Generator(DEVICE).manual_seed(seed)
    t = ids.shape[0]

    def query(width: int) -> torch.Tensor:
        return torch.randn(t, HEADS, width, generator=generator, device=DEVICE, dtype=torch.bfloat16)

    q_nope, q_pe = query(LATENT_DIM), query(ROPE_DIM)
    out, lse = torch.empty_like(q_nope), torch.empty(t, HEADS, device=DEVICE)

    def call() -> None:
        ops.sparse_mla(q_nope, q_pe, cache, ids, sm_scale=DATASET_SM_SCALE, out=out, lse=lse)

    def check_it() -> Comparison:
        call()
        few = torch.linspace(0, t - 1, min(t, 4), device=DEVICE).long()
        inputs = {
            "q_nope": q_nope[few],
            "q_pe": q_pe[few],
            "ckv": cache[:, :LATENT_DIM],
            "kpe": cache[:, LATENT_DIM:],
            "indices": ids[few],
            "attn_sink": torch.full((HEADS,), -math.inf, device=DEVICE),
            "sm_scale": DATASET_SM_SCALE,
            "lse_scale": 1.0,
        }
        oracle = oracles.get("sparse_mla")
        expected = oracle.reference("bf16", inputs)
        return oracle.compare("bf16", inputs, {"out": out[few], "lse": lse[few]}, expected)

    return call, check_it


def draw_cache(rows: int, seed: int = 0) -> torch.Tensor:
    """Latent rows with their rope part, [rows, 576] bf16."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(rows, ROW // 2, generator=generator, device=DEVICE, dtype=torch.bfloat16)


def draw_ids(t: int, rows: int, seed: int) -> torch.Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randint(rows, (t, TOPK), generator=generator, device=DEVICE, dtype=torch.int32)


LARGE = 2 << 20
FOOTPRINTS = {"33 MB": (1, 28672), "302 MB": (64, 4096), "2416 MB": (64, 32768)}
ORDERS = ("random", "position", "page")


def measure(to: CaseRows) -> None:
    cache = draw_cache(LARGE)
    best = _sweep(to, cache)
    _against_sequential(to, cache, best)
    _against_t(to, cache)
    _orders(to, cache, best)
    _persistence(to, cache, best)


def _sweep(to: CaseRows, cache: torch.Tensor) -> Setting:
    """Warps times rows in flight for every engine, with 131072 random rows out of 2.4 GB."""
    sets = [draw_ids(64, LARGE, seed) for seed in range(2)]
    sums = torch.empty(sets[0].numel(), dtype=torch.int32, device=DEVICE)
    fastest, best = math.inf, CANDIDATES[-1]
    for setting in settings():
        row = to.row(
            f"{setting.engine} w{setting.warps} d{setting.depth}",
            partial(times, [partial(gather, setting, cache, ids, sums) for ids in sets], sums.numel() * ROW),
            partial(checked, setting, cache, sets[0], sums),
            kind="sweep",
            engine=setting.engine,
            warps=setting.warps,
            depth=setting.depth,
            in_flight=setting.in_flight,
            occupancy=setting.warps / 64,
        )
        if row.get("us", math.inf) < fastest:
            fastest, best = row["us"], setting
    return best


def _against_sequential(to: CaseRows, cache: torch.Tensor, best: Setting) -> None:
    count = 64 * TOPK
    sums = torch.empty(count, dtype=torch.int32, device=DEVICE)
    starts = (0, LARGE // 2)
    ordered = [torch.arange(s, s + count, dtype=torch.int32, device=DEVICE) for s in starts]
    drawn = [draw_ids(64, LARGE, seed) for seed in (5, 6)]
    for name, sets in (("sequential rows", ordered), ("random rows", drawn)):
        to.row(
            name,
            partial(times, [partial(gather, best, cache, ids, sums) for ids in sets], count * ROW),
            partial(checked, best, cache, sets[0], sums),
            kind="order",
            engine=best.engine,
            warps=best.warps,
            depth=best.depth,
        )
    flat = cache.view(torch.uint8).view(-1)
    half = flat.numel() // 2
    reads = [flat[start : start + (256 << 20)] for start in (0, half)]
    to.row("read 256 MB", partial(read_times, reads), kind="order", engine="bulk, 8 KB a copy")


def _against_t(to: CaseRows, cache: torch.Tensor) -> None:
    """Attention beside the fastest way to fetch its rows, by number of queries."""
    for t in (1, 4, 16, 64, 128):
        turns = bench.turns(t * TOPK * float(ROW), limit=16)
        sets = [draw_ids(t, LARGE, 100 + seed) for seed in range(turns)]
        sums = torch.empty(sets[0].numel(), dtype=torch.int32, device=DEVICE)
        moved = t * TOPK * float(ROW)

        def attainable(sets: Any = sets, sums: Any = sums, moved: float = moved) -> dict[str, Any]:
            fastest: dict[str, tuple[float, Setting]] = {}
            for setting in CANDIDATES:
                timing = bench.graph_time(
                    [partial(gather, setting, cache, ids, sums) for ids in sets], replays=10
                )
                if timing.us < fastest.get(setting.engine, (math.inf, setting))[0]:
                    fastest[setting.engine] = timing.us, setting
            us, setting = min(fastest.values(), key=lambda pair: pair[0])
            return {
                "us": us,
                "gbps": moved / us / 1e3,
                "engine": setting.engine,
                "warps": setting.warps,
                "depth": setting.depth,
                "by_engine": {engine: pair[0] for engine, pair in fastest.items()},
            }

        to.row(
            f"attainable T={t}",
            attainable,
            partial(checked, CANDIDATES[-1], cache, sets[0], sums),
            kind="attainable",
            t=t,
            turns=turns,
        )
        calls = [attention(cache, ids) for ids in sets]
        to.row(
            f"attention T={t}",
            partial(times, [call for call, _ in calls], moved),
            calls[0][1],
            kind="attention",
            t=t,
            turns=turns,
        )


def _orders(to: CaseRows, cache: torch.Tensor, best: Setting) -> None:
    """Ids in three orders from three footprints, each order timed in turns with random ids."""
    t = 64
    for footprint, (contexts, length) in FOOTPRINTS.items():
        sets = {
            order: [
                select(t, contexts, length, order, torch.Generator(DEVICE).manual_seed(seed))
                for seed in (1, 2)
            ]
            for order in ORDERS
        }
        sums = torch.empty(t * TOPK, dtype=torch.int32, device=DEVICE)
        fetch = {o: [partial(gather, best, cache, ids, sums) for ids in sets[o]] for o in ORDERS}
        attend = {o: [attention(cache, ids) for ids in sets[o]] for o in ORDERS}
        for order in ORDERS[1:]:
            to.row(
                f"gather {footprint} by {order}",
                partial(_paired, fetch["random"], fetch[order]),
                partial(checked, best, cache, sets[order][0], sums),
                kind="index_order",
                what="gather",
                footprint=footprint,
                order=order,
            )
            to.row(
                f"attention {footprint} by {order}",
                partial(_paired, [c for c, _ in attend["random"]], [c for c, _ in attend[order]]),
                attend[order][0][1],
                kind="index_order",
                what="attention",
                footprint=footprint,
                order=order,
            )


def _paired(a: Sequence[bench.Call], b: Sequence[bench.Call]) -> dict[str, Any]:
    return bench.paired(a, b).to_dict()


HOT_BYTES = 16 << 20


def _persistence(to: CaseRows, cache: torch.Tensor, best: Setting) -> None:
    """Fetch rows of a hot 16 MiB repeatedly, with 256 MiB of other reads between; persisting in L2 or not."""
    hot = HOT_BYTES // ROW
    ids = draw_ids(8, hot, 7)
    sums = torch.empty(ids.numel(), dtype=torch.int32, device=DEVICE)
    flat = cache.view(torch.uint8).view(-1)
    other = flat[flat.numel() // 2 :][: 256 << 20]
    fetch = partial(gather, best, cache, ids, sums)
    attend, attend_check = attention(cache, draw_ids(4, hot, 8))
    cases: tuple[tuple[str, Callable[[], None], Callable[[], Comparison]], ...] = (
        ("gather", fetch, partial(checked, best, cache, ids, sums)),
        ("attention T=4", attend, attend_check),
    )
    for name, call, check_it in cases:
        to.row(
            f"persisting L2, {name}",
            partial(_persisting, cache, call, partial(calibrate.read, other, calibrate.SETTINGS[0])),
            check_it,
            kind="persistence",
            what=name,
            hot_bytes=HOT_BYTES,
        )


def _persisting(cache: torch.Tensor, call: Callable[[], None], disturb: Callable[[], None]) -> dict[str, Any]:
    """Paired times of (disturb, call) without and with a persisting window over the hot rows.

    Also the time of disturb alone, which is subtracted from both.
    """
    from cuda.bindings import driver

    device = check(driver.cuCtxGetDevice(), "device")
    attribute = driver.CUdevice_attribute
    most = check(
        driver.cuDeviceGetAttribute(attribute.CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE, device), "L2"
    )
    limit = driver.CUlimit.CU_LIMIT_PERSISTING_L2_CACHE_SIZE
    check(driver.cuCtxSetLimit(limit, min(most, 2 * HOT_BYTES)), "persisting L2")
    stream = torch.cuda.Stream()

    def window(size: int) -> None:
        value = driver.CUstreamAttrValue()
        value.accessPolicyWindow.base_ptr = cache.data_ptr()
        value.accessPolicyWindow.num_bytes = size
        value.accessPolicyWindow.hitRatio = 1.0
        kind = driver.CUaccessProperty
        persisting, normal = kind.CU_ACCESS_PROPERTY_PERSISTING, kind.CU_ACCESS_PROPERTY_NORMAL
        value.accessPolicyWindow.hitProp = persisting if size else normal
        value.accessPolicyWindow.missProp = normal
        name = driver.CUstreamAttrID.CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW
        check(driver.cuStreamSetAttribute(stream.cuda_stream, name, value), "access policy window")

    def once(run: Callable[[], None] | None, count: int = 40) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(stream):
            for turn in range(count + 4):
                if turn == 4:
                    begin.record(stream)
                disturb()
                if run is not None:
                    run()
            end.record(stream)
        stream.synchronize()
        return 1e3 * begin.elapsed_time(end) / count

    plain, kept, again, alone = [], [], [], []
    try:
        for _ in range(15):
            window(0)
            check(driver.cuCtxResetPersistingL2Cache(), "reset of the L2")
            plain.append(once(call))
            alone.append(once(None))
            window(HOT_BYTES)
            kept.append(once(call))
            window(0)
            check(driver.cuCtxResetPersistingL2Cache(), "reset of the L2")
            again.append(once(call))
    finally:
        window(0)
        driver.cuCtxResetPersistingL2Cache()
        driver.cuCtxSetLimit(limit, 0)
    comparison = bench.compared(plain, kept, again)
    other = sorted(alone)[len(alone) // 2]
    return {
        **comparison.to_dict(),
        "disturb_us": other,
        "without_us": comparison.a_us - other,
        "with_us": comparison.b_us - other,
        "set_aside_bytes": min(most, 2 * HOT_BYTES),
    }


def target(setting: Setting) -> Launch:
    def prepare() -> Callable[[], None]:
        cache, ids = draw_cache(LARGE), draw_ids(64, LARGE, 0)
        sums = torch.empty(ids.numel(), dtype=torch.int32, device=DEVICE)
        return partial(gather, setting, cache, ids, sums)

    return Launch(prepare, f"gather_{setting.engine}")


def _attention_target() -> Callable[[], None]:
    return attention(draw_cache(LARGE), draw_ids(64, LARGE, 0))[0]


def figure(record: Record) -> Any:
    """Rate against resident warps and against bytes in flight; attention relative to the attainable rate."""
    drawn, (warps, flight, share) = _figures.panels(3, "Random rows of 1152 bytes", record, width=4.4)
    sweep = rows_of(record, "sweep")
    loads = [row for row in sweep if row["engine"] == "bulk"]
    _figures.lines(
        warps,
        {
            f"bulk, {depth} rows a warp": [(r["warps"], r["gbps"]) for r in loads if r["depth"] == depth]
            for depth in DEPTHS
        },
        "resident warps an SM",
        "GB/s",
        logy=False,
    )
    _figures.lines(
        flight,
        {
            engine: _upper([(r["in_flight"], r["gbps"]) for r in sweep if r["engine"] == engine])
            for engine in ENGINES
        },
        "bytes in flight an SM",
        "GB/s, best of all warps",
        logy=False,
    )
    limit = {row["t"]: row["us"] for row in rows_of(record, "attainable")}
    ours = {row["t"]: row["us"] for row in rows_of(record, "attention")}
    _figures.lines(
        share,
        {"attention": [(t, limit[t] / us) for t, us in ours.items() if t in limit]},
        "queries (T)",
        "achieved / attainable",
        logy=False,
    )
    share.set_ylim(0, 1.1)
    return drawn


def _upper(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    best: dict[float, float] = {}
    for at, value in points:
        best[at] = max(value, best.get(at, 0.0))
    return list(best.items())


OCCUPIED = "sm__warps_active.avg.pct_of_peak_sustained_active"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
CASE = Case(
    name="gather_occupancy",
    question="Is a gather of random rows slow because few warps are resident, "
    "or because few bytes are in flight?",
    source="000",
    measure=measure,
    draw=figure,
    launches={
        "loads_w8_d1": target(Setting("loads", 8, 1)),
        "loads_w32_d1": target(Setting("loads", 32, 1)),
        "bulk_w8_d8": target(Setting("bulk", 8, 8)),
        "bulk_w32_d2": target(Setting("bulk", 32, 2)),
        "attention_t64": Launch(_attention_target, "sparse_mla"),
    },
    expected=(
        Expectation("bulk_w8_d8", OCCUPIED, "<", 15.0, "the occupancy that the tool would call the limit"),
        Expectation("bulk_w8_d8", DRAM, ">=", 60.0, "and yet not far from the rate of the memory"),
        Expectation("loads_w8_d1", DRAM, "<", 60.0, "the same warps with an eighth of the bytes in flight"),
        Expectation("loads_w8_d1", "dominant_stall", "in", ("long_scoreboard",), "waits for loads"),
    ),
)
