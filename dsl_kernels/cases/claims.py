"""Claims of the founding documents about GPU kernels, each with what was found and the command that finds it.

A claim is judged by counting, which any CPU can do, or from the record of a case. What nothing here can show is
"not testable here", with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..arguments import is_path, shown
from ..errors import InvalidArgumentError, UnknownNameError, did_you_mean
from . import base, get, names
from .base import Record

HOLDS, FAILS, UNTESTED = "holds", "fails", "not testable here"
# Losses first.
VERDICTS = (FAILS, HOLDS, UNTESTED)
SOURCES = {
    "000": "a Triton split-K sparse attention on a B200 that a profiler called occupancy limited",
    "001": "cycles inside a warp-specialised grouped-query attention forward kernel on an H200",
    "002": "a sparse-attention pipeline for DeepSeek V3.2 on a B200",
    "003": "nine kernels under a timeline and a counter profiler on an L4",
    "004": "a trajectory resampling kernel on an H100 and a roadmap for it",
}
Records = Mapping[str, Record]


@dataclass(frozen=True)
class Finding:
    """A verdict and the figures that it rests on, in words."""

    verdict: str
    measured: str


@dataclass(frozen=True)
class Claim:
    """A statement of a source, and how it is judged.

    Attributes:
        name: names the claim in commands.
        source: key of SOURCES.
        case: the case whose record decides; "" for a claim that is counted, or that cannot be tested here.
        judge: records by case -> Finding; a LookupError means that the record lacks the row.
    """

    name: str
    source: str
    statement: str
    case: str
    judge: Callable[[Records], Finding]

    @property
    def command(self) -> str:
        """What measures it."""
        if self.case:
            return f"python -m dsl_kernels case run {self.case}"
        return f"python -m dsl_kernels case claims --only {self.name}"


CLAIMS: list[Claim] = []
Judge = Callable[[Records], Finding]


def claim(source: str, name: str, statement: str, case: str = "") -> Callable[[Judge], Judge]:
    """Register the decorated judge as a claim."""

    def add(judge: Judge) -> Judge:
        CLAIMS.append(Claim(name, source, statement, case, judge))
        return judge

    return add


def untested(source: str, name: str, statement: str, why: str) -> None:
    """Register a claim that nothing here can show."""
    CLAIMS.append(Claim(name, source, statement, "", lambda _: Finding(UNTESTED, why)))


def found(holds: bool, measured: str) -> Finding:
    return Finding(HOLDS if holds else FAILS, measured)


def by_name(name: str) -> Claim:
    """The claim of that name.

    Raises:
        UnknownNameError: there is none.
    """
    for one in CLAIMS:
        if one.name == name:
            return one
    known = [one.name for one in CLAIMS]
    raise UnknownNameError("claim", expected="a known claim", got=repr(name), fix=did_you_mean(name, known))


def records_in(folder: Path) -> dict[str, Record]:
    """The records of cases that a folder holds.

    Raises:
        InvalidArgumentError: a path that no file system can hold.
    """
    if not is_path(str(folder / f"{max(names(), key=len)}.json")):
        raise InvalidArgumentError(
            "records", expected="a folder", got=shown(str(folder)), fix="pass the folder of case records"
        )
    paths = {name: folder / f"{name}.json" for name in names()}
    return {name: base.read(path) for name, path in paths.items() if path.exists()}


def judged(one: Claim, records: Records) -> dict[str, Any]:
    """A claim with its finding as plain data."""
    try:
        finding = one.judge(records)
    except LookupError as error:
        finding = Finding(UNTESTED, f"no record shows it ({str(error).strip(chr(39))})")
    where = records.get(one.case, {}).get("environment", {}) if one.case else {}
    return {
        "claim": one.name,
        "source": one.source,
        "statement": one.statement,
        "verdict": finding.verdict,
        "measured": finding.measured,
        "command": one.command,
        "on": where.get("gpu", "counted") if finding.verdict != UNTESTED else "",
        "date": where.get("date", ""),
    }


def row(records: Records, case: str, name: str) -> dict[str, Any]:
    """A measured row of a record; LookupError where it is missing or failed."""
    for held in records[case]["rows"]:
        if held["name"] == name:
            if "error" in held and not ("us" in held or "a_us" in held):
                raise LookupError(f"{name}: {held['error'][:120]}")
            return dict(held)
    raise LookupError(f"no row {name} in {case}")


def rows(records: Records, case: str, kind: str, figure: str) -> list[dict[str, Any]]:
    """Rows of a kind that hold a figure; LookupError where there are none."""
    held = [r for r in base.rows_of(records[case], kind) if r.get(figure) is not None]
    if not held:
        raise LookupError(f"no {kind} rows in {case}")
    return held


def counter(records: Records, case: str, launch: str, metric: str) -> float:
    """A counter of a launch; LookupError where none was read."""
    return float(records[case]["counters"][launch]["metrics"][metric])


def share(value: float) -> str:
    return f"{100 * value:.1f} %"


# 000: occupancy and random rows

ROW = 1152
T64_BYTES = 64 * 2048 * ROW


@claim("000", "gather-bytes", "64 queries read 151 MB of random rows, 1.75 TB/s at 86.4 µs.")
def _gather_bytes(_: Records) -> Finding:
    rate = T64_BYTES / 86.4e-6 / 1e12
    return found(abs(rate - 1.75) < 0.01, f"64 x 2048 x {ROW} B = {T64_BYTES / 1e6:.1f} MB, {rate:.2f} TB/s")


@claim("000", "line-waste", "Every 128-byte line is loaded for one 16-byte piece, which wastes 88 %.")
def _line_waste(_: Records) -> Finding:
    return found(
        False, "a latent row is 512 x 2 B = 1024 contiguous bytes: 8 whole lines, none of them wasted"
    )


@claim(
    "000", "forty-percent-waste", "About 40 % of the bytes of a global load are wasted.", "gather_occupancy"
)
def _forty_percent(records: Records) -> Finding:
    moved = {
        level: counter(records, "gather_occupancy", "loads_w32_d1", metric) * unit
        for level, metric, unit in (
            ("L1", "l1tex__m_xbar2l1tex_read_bytes.sum", 1),
            ("L2", "lts__t_sectors_op_read.sum", 32),
            ("DRAM", "dram__bytes_read.sum", 1),
        )
    }
    text = ", ".join(f"{level} {value / 1e6:.0f} MB" for level, value in moved.items())
    waste = 1 - T64_BYTES / moved["L1"]
    return found(
        waste > 0.3,
        f"rows of {T64_BYTES / 1e6:.0f} MB by 16-byte loads moved {text}: {share(waste)} wasted at L1",
    )


@claim(
    "000",
    "two-warps-a-scheduler",
    "171.5 KB of shared memory allow one block an SM: 12.5 % occupancy, 2 warps a scheduler.",
)
def _two_warps(_: Records) -> Finding:
    blocks, warps = int(227 // (171.5 + 1)), 0.125 * 64
    return found(
        blocks == 1 and warps / 4 == 2,
        f"{blocks} block of 227 KB; 12.5 % of 64 warps are {warps:.0f}, {warps / 4:.0f} a scheduler",
    )


@claim("000", "waves", "0.22 and 0.86 waves: at T=4 most SMs have nothing to do.")
def _waves(_: Records) -> Finding:
    few, many = 0.22 * 148, 0.86 * 148
    return found(few < 148 / 4, f"{few:.0f} and {many:.0f} blocks on 148 SMs, one an SM")


@claim("000", "exp2", "exp2 with a folded scale changes no absolute latency.", "split_k")
def _exp2(records: Records) -> Finding:
    held = row(records, "split_k", "exp in place of exp2")
    return found(
        held["verdict"] == "within noise" or abs(held["ratio"] - 1) < 0.01,
        f"exp takes {held['ratio']:.4f} of exp2's time, band {held['noise']:.4f}: {held['verdict']}",
    )


@claim(
    "000",
    "polynomial",
    "A cubic polynomial in place of the special-function unit changes no latency.",
    "split_k",
)
def _polynomial(records: Records) -> Finding:
    held = row(records, "split_k", "cubic polynomial in place of exp2")
    accuracy = "passes the comparison" if held.get("ok") else f"fails the comparison ({held['failures'][0]})"
    return found(
        held["verdict"] == "within noise" or abs(held["ratio"] - 1) < 0.01,
        f"{held['ratio']:.4f} of the time, band {held['noise']:.4f}: {held['verdict']}; {accuracy}",
    )


@claim(
    "000",
    "exponentials-hidden",
    "The special-function unit is never on the critical path: without exponentials nothing is gained.",
    "split_k",
)
def _hidden(records: Records) -> Finding:
    held = row(records, "split_k", "no exponential")
    return found(
        held["ratio"] > 0.98,
        f"without any exponential (a wrong result) {held['ratio']:.4f} of the time, band {held['noise']:.4f}",
    )


@claim("000", "kpe-gain", "Skipping the rope part gains only about 2 %.", "split_k")
def _kpe_gain(records: Records) -> Finding:
    held = row(records, "split_k", "no rope part")
    gain = 1 - held["ratio"]
    return found(
        0.01 <= gain <= 0.04,
        f"{share(gain)} less time, band {share(held['noise'])}; it is {128 / ROW:.0%} of the bytes",
    )


@claim("000", "kpe-correct", "Skipping the rope part still passes a correctness check.")
def _kpe_correct(_: Records) -> Finding:
    import torch

    from .. import problems
    from ..problems.base import Workload

    problem = problems.get("sparse_mla")
    workload = Workload("claim", "edge", "bf16", {"t": 2, "heads": 16, "topk": 2048, "n": 4096})
    inputs = problem.make(workload, torch.Generator().manual_seed(0))
    expected = problem.reference("bf16", inputs)
    without = problem.reference("bf16", {**inputs, "q_pe": torch.zeros_like(inputs["q_pe"])})
    comparison = problem.compare("bf16", inputs, without, expected)
    error, limit = comparison.figures["out relative error"], comparison.limits["out relative error"]
    return found(comparison.ok, f"relative error {error:.2f} of random data in float64, allowed {limit}")


@claim("000", "bf16-scores", "Triton refuses bf16 accumulation of bf16 products.", "split_k")
def _bf16_scores(records: Records) -> Finding:
    held = next(r for r in records["split_k"]["rows"] if r["name"] == "scores accumulated in bf16")
    refused = held.get("error", "").startswith("CompilationError")
    triton = records["split_k"]["environment"]["versions"]["triton"]
    return found(
        refused,
        f"Triton {triton} {'refuses to compile' if refused else 'compiles'} a dot with out_dtype=bfloat16",
    )


@claim(
    "000",
    "occupancy-symptom",
    "Low occupancy is a symptom: at the same bytes in flight more warps gain nothing.",
    "gather_occupancy",
)
def _symptom(records: Records) -> Finding:
    few = row(records, "gather_occupancy", "bulk w8 d8")
    many = row(records, "gather_occupancy", "bulk w32 d2")
    counters = records["gather_occupancy"]["counters"].get("bulk_w8_d8", {}).get("metrics", {})
    memory = base.stall_shares(counters).get("long_scoreboard")
    waits = "" if memory is None else f"; the 8 wait for memory {share(memory)} of their time"
    return found(
        few["gbps"] >= 0.97 * many["gbps"],
        f"with the same {few['in_flight'] >> 10} KB in flight an SM, 8 warps reach {few['gbps']:.0f} GB/s and 32 warps {many['gbps']:.0f}{waits}",
    )


@claim("000", "more-warps", "More warps would not make a gather of random rows faster.", "gather_occupancy")
def _more_warps(records: Records) -> Finding:
    few = row(records, "gather_occupancy", "loads w8 d1")
    many = row(records, "gather_occupancy", "loads w32 d1")
    deep = row(records, "gather_occupancy", "loads w8 d4")
    return found(
        many["gbps"] < 1.05 * few["gbps"],
        f"one row a warp by plain loads: 8 warps {few['gbps']:.0f} GB/s, 32 warps {many['gbps']:.0f}; 8 warps with four rows each {deep['gbps']:.0f}",
    )


@claim(
    "000", "random-ceiling", "Random rows run 5 to 20 times below the sequential rate.", "gather_occupancy"
)
def _random_ceiling(records: Records) -> Finding:
    random, ordered = (
        row(records, "gather_occupancy", f"{name} rows")["gbps"] for name in ("random", "sequential")
    )
    read = row(records, "gather_occupancy", "read 256 MB")["gbps"]
    return found(
        read / random >= 5,
        f"random {random:.0f} GB/s, the same kernel on sequential rows {ordered:.0f}, a plain read {read:.0f}: {read / random:.2f} times",
    )


@claim(
    "000",
    "near-the-limit",
    "22 % of the sequential peak is close to what random rows allow.",
    "gather_occupancy",
)
def _near_limit(records: Records) -> Finding:
    ours = row(records, "gather_occupancy", "attention T=64")
    limit = row(records, "gather_occupancy", "attainable T=64")
    read = row(records, "gather_occupancy", "read 256 MB")["gbps"]
    return found(
        limit["gbps"] / read < 0.33,
        f"rows alone reach {share(limit['gbps'] / read)} of a sequential read, attention {share(ours['gbps'] / read)}",
    )


@claim("000", "async-copies", "Asynchronous copies are a way to a faster gather.", "gather_occupancy")
def _async(records: Records) -> Finding:
    best: dict[str, float] = {}
    for held in rows(records, "gather_occupancy", "sweep", "gbps"):
        best[held["engine"]] = max(best.get(held["engine"], 0.0), held["gbps"])
    gain = max(best["bulk"], best["cp_async"]) / best["loads"]
    text = ", ".join(f"{engine} {value:.0f} GB/s" for engine, value in best.items())
    return found(gain > 1.03, f"best of all settings: {text}")


def _orders(records: Records, order: str) -> tuple[float, str]:
    held = [r for r in rows(records, "gather_occupancy", "index_order", "ratio") if r["order"] == order]
    if not held:
        raise LookupError(f"no order {order}")
    text = "; ".join(f"{r['what']} over {r['footprint']}: {r['ratio']:.3f} ({r['verdict']})" for r in held)
    return min(r["ratio"] for r in held), text


@claim(
    "000", "sorted-ids", "Sorting the ids for locality is a path to a meaningful gain.", "gather_occupancy"
)
def _sorted_ids(records: Records) -> Finding:
    best, text = _orders(records, "page")
    return found(best < 0.9, f"time by page over time in random order: {text}")


# 001: cycles inside an attention kernel


@claim(
    "001",
    "regions-add-up",
    "The four regions of an iteration add up to 2070 cycles: 31.7, 2.9, 65.1 and 0.3 %.",
)
def _regions(_: Records) -> Finding:
    regions = (657, 59, 1347, 7)
    shares = [round(100 * r / 2070, 1) for r in regions]
    return found(
        sum(regions) == 2070 and shares == [31.7, 2.9, 65.1, 0.3], f"{sum(regions)} cycles, {shares} %"
    )


@claim("001", "product-cycles", "A 128-key product takes 450 (PV) and 222 (QK) cycles of the tensor core.")
def _product_cycles(_: Records) -> Finding:
    floor = 2 * 64 * 128 * 128 / 4096
    return found(False, f"64x128x128 at 4096 fp16 FLOP a clock and SM takes {floor:.0f} cycles at least")


@claim("001", "tensor-utilisation", "The tensor core is 65 % busy in iterations of 2070 cycles.")
def _utilisation(_: Records) -> Finding:
    busy = 4 * 512 / 2070
    return found(
        abs(busy - 0.65) < 0.02,
        f"two warp groups' two products of 512 cycles fill 2048 of 2070 cycles, {share(busy)}",
    )


@claim("001", "idle-cycles", "The tensor core idles about 726 cycles an iteration.")
def _idle(_: Records) -> Finding:
    idle = 0.35 * 2070
    return found(
        False,
        f"35 % of 2070 are {idle:.0f}, but the products alone need 2048 of the 2070 cycles: 22 are left",
    )


@claim("001", "softmax-paces", "Softmax paces the loop: 65 % of an iteration.", "gqa_regions")
def _softmax_paces(records: Records) -> Finding:
    from . import gqa_regions

    counted = gqa_regions.spent_of(records["gqa_regions"])
    alone = gqa_regions.parts(counted, "128x128")
    return found(alone["the softmax"] > alone["the products"], gqa_regions.pace(counted, "128x128"))


@claim(
    "001",
    "overlap-hides",
    "Softmax hides the second product: behind it the product is waited for in 0.3 % of an iteration.",
    "gqa_regions",
)
def _overlap_hides(records: Records) -> Finding:
    from . import gqa_regions

    counted = gqa_regions.spent_of(records["gqa_regions"])
    waits, whole = (counted["128x128"]["attend"][region] for region in ("release v", "all"))
    without = counted["128x128 no overlap"]["attend"]["all"]
    return found(
        waits / whole < 0.01,
        f"{waits:.0f} of {whole:.0f} cycles, {share(waits / whole)}; with no overlap at all {without:.0f} cycles",
    )


@claim(
    "001",
    "multicast",
    "Multicast of K and V brings long-scoreboard stalls from 3.09 to 0.19.",
    "gqa_regions",
)
def _multicast(records: Records) -> Finding:
    stall = "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio"
    alone, shared = (counter(records, "gqa_regions", launch, stall) for launch in ("square", "wide"))
    return found(
        shared < alone / 4,
        f"{alone:.2f} cycles an issue without a cluster, {shared:.2f} where two CTAs share tiles (of another size)",
    )


untested(
    "001",
    "fa3-gap",
    "6 to 16 % are left to FlashAttention 3.",
    "it is not installed where these were measured",
)

# 002: a sparse-attention pipeline


@claim(
    "002", "bins-exact", "FP8 scores take 256 values, so one histogram of 256 bins selects the exact top k."
)
def _bins(_: Records) -> Finding:
    wrong = {kind: wrong_rows(kind) for kind in ("normal", "tight", "negative")}
    text = ", ".join(f"{kind} {bad} of {total}" for kind, (bad, total) in wrong.items())
    return found(
        not any(bad for bad, _ in wrong.values()), f"rows of 32768 scores with a wrong top 2048: {text}"
    )


def wrong_rows(kind: str, count: int = 32, length: int = 32768, k: int = 2048) -> tuple[int, int]:
    """Rows whose top k differs when scores are told apart by 256 bins of FP8 (e4m3), and rows in all."""
    import torch

    from ..problems.topk_selector import draw

    scores = draw(kind, count, length, torch.Generator().manual_seed(0))
    bins = scores.to(torch.float8_e4m3fn).float()
    exact = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values
    binned = torch.sort(bins, dim=1, descending=True, stable=True).indices[:, :k].sort(dim=1).values
    return int((exact != binned).any(dim=1).sum()), count


@claim("002", "half-megabyte", "A query gathers 2048 x 128 B = 512 KB.")
def _half_megabyte(_: Records) -> Finding:
    return found(False, f"2048 x 128 B are 256 KB, and a row is {ROW} B: {2048 * ROW / 1e6:.2f} MB a query")


@claim("002", "sixty-four-ns", "Gathering for a query takes 64 ns at 8 TB/s.")
def _sixty_four(_: Records) -> Finding:
    return found(False, f"{2048 * ROW / 8e12 * 1e9:.0f} ns for {2048 * ROW / 1e6:.2f} MB")


@claim("002", "weights-64-gb", "The attention weights of one head at 128K tokens take 64 GB in fp16.")
def _weights(_: Records) -> Finding:
    return found(False, f"131072 x 131072 x 2 B = {131072**2 * 2 / 1e9:.1f} GB")


@claim("002", "sparse-16-mb", "Sparse attention needs 16 MB of weights a head at 128K tokens in bf16.")
def _sparse_weights(_: Records) -> Finding:
    return found(False, f"131072 x 2048 x 2 B = {131072 * 2048 * 2 / 1e6:.0f} MB")


@claim("002", "key-bytes", "A compressed key takes 132 bytes.")
def _key_bytes(_: Records) -> Finding:
    from ..problems.layouts import INDEX_DIM

    return found(INDEX_DIM + 4 == 132, f"{INDEX_DIM} bytes of e4m3 and a scale of 4")


@claim(
    "002",
    "radix-cost",
    "Selecting by radix costs O(L log L), so a histogram scan of O(256) replaces it.",
    "dense_sparse",
)
def _radix(records: Records) -> Finding:
    short, long = (
        row(records, "dense_sparse", f"step T=64 L={length}")["ops"]["topk_selector"]
        for length in (32768, 131072)
    )
    return found(
        long / short > 4 * math.log(131072) / math.log(32768),
        f"radix passes are O(L): at T=64 four times the scores take {long / short:.2f} times as long; a histogram must read all scores as well",
    )


@claim("002", "whole-pages", "The 2048 selected tokens are 32 whole pages of 64.")
def _whole_pages(_: Records) -> Finding:
    import torch

    generator = torch.Generator().manual_seed(0)
    draws = [torch.randperm(131072, generator=generator)[:2048] // 64 for _ in range(20)]
    touched = sum(len(pages.unique()) for pages in draws) / len(draws)
    return found(touched < 40, f"2048 tokens drawn from 131072 lie on {touched:.0f} pages")


@claim(
    "002", "page-sorted", "Sorting by page makes the gather 40 to 60 % more efficient.", "gather_occupancy"
)
def _page_sorted(records: Records) -> Finding:
    best, text = _orders(records, "page")
    return found(best <= 1 / 1.4, f"time by page over time in random order: {text}")


@claim("002", "position-order", "Ascending positions already give the locality of pages.", "gather_occupancy")
def _position_order(records: Records) -> Finding:
    best, text = _orders(records, "position")
    page, _ = _orders(records, "page")
    return found(best <= page * 1.02, f"time by position over time in random order: {text}")


@claim("002", "exp2-1.4", "exp2 makes the softmax about 1.4 times faster than exp.", "split_k")
def _exp2_gain(records: Records) -> Finding:
    held = row(records, "split_k", "exp in place of exp2")
    return found(
        held["ratio"] > 1.2,
        f"the kernel with exp takes {held['ratio']:.4f} of the time with exp2: {held['verdict']}",
    )


@claim(
    "002",
    "l2-persistence",
    "Marking hot rows as persisting keeps them in L2 and saves the trips to DRAM.",
    "gather_occupancy",
)
def _persistence(records: Records) -> Finding:
    held = rows(records, "gather_occupancy", "persistence", "without_us")
    text = "; ".join(
        f"{r['what']} of {r['hot_bytes'] >> 20} MiB after 256 MiB of other reads: {r['without_us']:.1f} µs, persisting {r['with_us']:.1f} ({r['verdict']})"
        for r in held
    )
    (gather,) = (r for r in held if r["what"] == "gather")
    warm = row(records, "gather_occupancy", "gather 33 MB by position")["a_us"]
    cold = row(records, "gather_occupancy", "attainable T=64")["us"]
    # 8 queries' rows of the 64 that those two rows fetch: out of L2, and out of DRAM.
    whole = (cold - warm) * 8 / 64
    saved = gather["without_us"] - gather["with_us"]
    return found(
        saved >= 0.5 * whole and gather["verdict"] == "differs",
        f"{text}; rows that stay in L2 would save the gather about {whole:.1f} µs",
    )


@claim("002", "fits-l2", "What a query gathers fits the L2.")
def _fits(_: Records) -> Finding:
    most = (60 << 20) // (2048 * ROW)
    return found(
        most >= 1,
        f"{2048 * ROW / 1e6:.2f} MB do; {most} distinct queries fill the 60 MiB of an H200, and 64 need {T64_BYTES / 1e6:.0f} MB",
    )


@claim("002", "step-time", "A whole step takes 5 to 15 µs at 128K tokens.", "dense_sparse")
def _step_time(records: Records) -> Finding:
    held = {t: row(records, "dense_sparse", f"step T={t} L=131072")["us"] for t in (1, 16, 64)}
    text = ", ".join(f"{us:.1f} µs at T={t}" for t, us in held.items())
    floor = 131072 * 132 / 4.667e12 * 1e6
    return found(held[1] <= 15, f"{text}; reading the keys alone takes {floor:.1f} µs a query at 4.67 TB/s")


def _dense(records: Records, t: int, length: int) -> tuple[float, float, float]:
    from .dense_sparse import dense_us, floor_us

    record = records["dense_sparse"]
    dense, floor = dense_us(record, t, length), floor_us(record, t, length)
    if dense is None or floor is None:
        raise LookupError(f"no dense attention at T={t} L={length}")
    return dense, floor, row(records, "dense_sparse", f"step T={t} L={length}")["us"]


@claim("002", "dense-time", "Dense attention takes about 300 µs at 128K tokens.", "dense_sparse")
def _dense_time(records: Records) -> Finding:
    dense, floor, _ = _dense(records, 1, 131072)
    return found(
        150 <= dense <= 600,
        f"{dense:.1f} µs for one query of 16 heads over latent rows, {floor:.1f} by the bytes alone",
    )


@claim("002", "speedup", "Sparse is 20 to 60 times faster than dense at 128K tokens.", "dense_sparse")
def _speedup(records: Records) -> Finding:
    ratios = {}
    for t in (1, 16, 64):
        dense, _, step = _dense(records, t, 131072)
        ratios[t] = dense / step
    return found(
        max(ratios.values()) >= 20, ", ".join(f"{ratio:.1f} times at T={t}" for t, ratio in ratios.items())
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

# 003: timeline and counters


def _memory(records: Records, memory: str) -> dict[str, Any]:
    return row(records, "transfers", memory)


@claim("003", "h2d-pinned", "Pinning makes copies to the GPU 2.6 times faster.", "transfers")
def _h2d(records: Records) -> Finding:
    pinned, pageable = _memory(records, "pinned"), _memory(records, "pageable")
    gain = pinned["h2d_gbps"] / pageable["h2d_gbps"]
    return found(
        2.0 <= gain <= 3.4, f"{pageable['h2d_gbps']:.1f} and {pinned['h2d_gbps']:.1f} GB/s, {gain:.1f} times"
    )


@claim("003", "d2h-pinned", "Pinning makes copies back 10 times faster.", "transfers")
def _d2h(records: Records) -> Finding:
    pinned, pageable = _memory(records, "pinned"), _memory(records, "pageable")
    fresh = _memory(records, "pageable, fresh target")
    gain, first = (pinned["d2h_gbps"] / held["d2h_gbps"] for held in (pageable, fresh))
    return found(
        7.0 <= first <= 13.0 or 7.0 <= gain <= 13.0,
        f"{gain:.1f} times ({pageable['d2h_gbps']:.1f} and {pinned['d2h_gbps']:.1f} GB/s), {first:.1f} times where the target was never touched",
    )


@claim(
    "003",
    "pageable-asymmetry",
    "Pageable copies back are 3.6 times slower than pageable copies to the GPU.",
    "transfers",
)
def _asymmetry(records: Records) -> Finding:
    pageable, fresh = _memory(records, "pageable"), _memory(records, "pageable, fresh target")
    ratio, first = (pageable["h2d_gbps"] / held["d2h_gbps"] for held in (pageable, fresh))
    return found(
        max(ratio, first) >= 2.5, f"{ratio:.1f} times; {first:.1f} times into memory that was never touched"
    )


@claim("003", "pinned-symmetry", "Pinned copies are equally fast in both directions.", "transfers")
def _symmetry(records: Records) -> Finding:
    held = _memory(records, "pinned")
    ratio = held["h2d_gbps"] / held["d2h_gbps"]
    return found(0.9 <= ratio <= 1.1, f"{held['h2d_gbps']:.1f} and {held['d2h_gbps']:.1f} GB/s")


@claim("003", "half-the-link", "Pinned copies reach half of the link's rate.", "transfers")
def _link(records: Records) -> Finding:
    held, link = _memory(records, "pinned"), row(records, "transfers", "link")
    part = held["h2d_gbps"] / link["gbps"]
    return found(
        0.4 <= part <= 0.6,
        f"{held['h2d_gbps']:.1f} of {link['gbps']:.0f} GB/s (generation {link['generation_max']}, {link['width_max']} lanes): {share(part)}",
    )


@claim("003", "kernel-unmoved", "Pinning does not change the kernel's time.", "transfers")
def _unmoved(records: Records) -> Finding:
    pinned, pageable = (row(records, "transfers", name)["kernel_us"] for name in ("pinned", "pageable"))
    if pinned is None or pageable is None:
        raise LookupError("no kernel in the activity records")
    return found(
        abs(pinned / pageable - 1) < 0.01,
        f"{pageable:.1f} and {pinned:.1f} µs, {share(abs(pinned / pageable - 1))} apart",
    )


@claim(
    "003",
    "atomics-218",
    "One atomic an element is 218 times slower than shuffles at 4M elements.",
    "reduction",
)
def _atomics(records: Records) -> Finding:
    slow, fast = (row(records, "reduction", f"{version}_4Mi")["us"] for version in ("v1", "v4"))
    return found(109 <= slow / fast <= 436, f"{slow:.0f} and {fast:.2f} µs, {slow / fast:.0f} times")


OCCUPIED = "sm__warps_active.avg.pct_of_peak_sustained_active"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"


@claim("003", "atomics-occupancy", "The atomic version is as occupied as the fast one.", "reduction")
def _atomics_occupancy(records: Records) -> Finding:
    slow, fast = (counter(records, "reduction", name, OCCUPIED) for name in ("v1_4Mi", "v4_64Mi"))
    return found(abs(slow - fast) < 10, f"{slow:.1f} and {fast:.1f} % of the warps")


@claim("003", "atomics-dram", "While atomics queue the DRAM idles, below 1 %.", "reduction")
def _atomics_dram(records: Records) -> Finding:
    value = counter(records, "reduction", "v1_4Mi", DRAM)
    return found(value < 1, f"{value:.2f} % of the DRAM's rate")


@claim(
    "003",
    "atomics-l2",
    "The L2 hit rate of the atomic version is near 89 %, and means one hot line.",
    "reduction",
)
def _atomics_l2(records: Records) -> Finding:
    value = counter(records, "reduction", "v1_4Mi", "lts__t_sector_hit_rate.pct")
    return found(value > 80, f"{value:.1f} % of the sectors hit")


@claim("003", "atomics-stall", "Atomics show as lg_throttle.", "reduction")
def _atomics_stall(records: Records) -> Finding:
    shares = base.stall_shares(records["reduction"]["counters"]["v1_4Mi"]["metrics"])
    text = ", ".join(f"{name} {share(value)}" for name, value in list(shares.items())[:3])
    return found(next(iter(shares)) == "lg_throttle", text)


@claim(
    "003",
    "shuffles-dram",
    "The shuffle version is bound by memory: 88 % of the DRAM's rate, long_scoreboard.",
    "reduction",
)
def _shuffles(records: Records) -> Finding:
    value = counter(records, "reduction", "v4_64Mi", DRAM)
    stall = base.dominant_stall(records["reduction"]["counters"]["v4_64Mi"]["metrics"])
    return found(
        value > 80 and stall == "long_scoreboard", f"{value:.1f} % at 64Mi elements, most time in {stall}"
    )


@claim("003", "sdpa-backend", "torch's attention runs FlashAttention 2, not cuDNN.", "triton_attention")
def _backend(records: Records) -> Finding:
    held = row(records, "triton_attention", "SDPA default")
    first = (held.get("kernels") or ["unknown"])[0]
    return found("flash_fwd" in first and "cudnn" not in first, f"kernel {first[:90]}")


def _best_triton(records: Records) -> dict[str, Any]:
    return min(rows(records, "triton_attention", "triton", "us"), key=lambda held: float(held["us"]))


@claim("003", "triton-share", "A Triton attention reaches 78 to 90 % of torch's.", "triton_attention")
def _triton_share(records: Records) -> Finding:
    ours, torchs = _best_triton(records), row(records, "triton_attention", "SDPA default")
    part = torchs["us"] / ours["us"]
    return found(
        0.78 <= part <= 0.9, f"{ours['us']:.1f} µs against {torchs['us']:.1f}: {share(part)} ({ours['name']})"
    )


@claim("003", "bigger-tile", "A bigger tile is not faster: 64 query rows beat 128.", "triton_attention")
def _bigger_tile(records: Records) -> Finding:
    best = {}
    for size in (64, 128):
        held = [r for r in rows(records, "triton_attention", "triton", "us") if r["rows"] == size]
        best[size] = min(held, key=lambda r: float(r["us"]))
    text = ", ".join(
        f"{size} rows {r['us']:.1f} µs ({r.get('registers')} registers)" for size, r in best.items()
    )
    return found(best[64]["us"] <= best[128]["us"], f"best of each: {text}")


@claim("003", "registers-halve-occupancy", "255 registers a thread halve the occupancy, to 8.3 %.")
def _registers(_: Records) -> Finding:
    warps = 65536 // (256 * 32)
    return found(
        False,
        f"255 registers allow {warps} of an L4's 48 warps, {share(warps / 48)}: something else, not registers, leaves 4",
    )


@claim(
    "003", "two-clocks", "78 % of the speed by time and 1.89 times the cycles describe the same two kernels."
)
def _two_clocks(_: Records) -> Finding:
    return found(False, f"1.89 times the cycles are {share(1 / 1.89)} of the speed, not 78 %")


# 004: a resampling kernel and its roadmap

RESAMPLE = {"batch": 64, "source": 4096, "target": 1024, "dim": 32}


def resample_bytes() -> dict[str, int]:
    """Bytes that the resampling must move: times in fp32, two bf16 rows read and one written a target."""
    b, s, t, d = RESAMPLE.values()
    return {"times": 4 * b * (s + t), "rows": 2 * 2 * d * b * t, "out": 2 * d * b * t}


@claim("004", "throughput", "110 µs for 64 trajectories are 583 thousand a second.")
def _throughput(_: Records) -> Finding:
    rate = 64 / 110e-6
    return found(abs(rate / 583e3 - 1) < 0.01, f"{rate / 1e3:.0f} thousand a second")


@claim("004", "gap-768", "The kernel is 768 times below what the memory allows.")
def _gap(_: Records) -> Finding:
    moved = sum(resample_bytes().values())
    least = moved / 3.35e12 * 1e6
    return found(
        False,
        f"{moved / 1e6:.1f} MB must move, {least:.1f} µs at 3.35 TB/s: at most {110 / least:.0f} times, and the data fits the L2",
    )


@claim("004", "hbm-latency", "0.13 % of the DRAM's rate shows waiting for DRAM.")
def _hbm(_: Records) -> Finding:
    read = 4.36e9 * 110e-6
    return found(
        False,
        f"4.36 GB/s over 110 µs are {read / 1e6:.2f} MB of {sum(resample_bytes().values()) / 1e6:.1f}: nearly all came from the L2",
    )


@claim("004", "overhead-2.37", "39.8 MB of sectors over 16.8 MB of data are an overhead of 2.37.")
def _overhead(_: Records) -> Finding:
    needed = resample_bytes()
    loads = needed["times"] + needed["rows"]
    return found(
        False,
        f"at most 2048 of 4096 source rows are read: loads need {loads / 1e6:.1f} MB, so the overhead is {39.8e6 / loads:.1f}",
    )


@claim("004", "shared-4-kb", "The source times fit 4 KB of shared memory.")
def _shared(_: Records) -> Finding:
    return found(False, f"4096 times of 4 bytes are {4096 * 4 >> 10} KB")


@claim("004", "one-load-a-thread", "`if (threadIdx.x < source_length)` loads all source times.")
def _one_load(_: Records) -> Finding:
    return found(False, "a block has 1024 threads at most: 1024 of 4096 times are loaded")


@claim("004", "tensor-cores", "Tensor cores make the interpolation 2 to 3 times faster.")
def _tensor_cores(_: Records) -> Finding:
    b, _s, t, d = RESAMPLE.values()
    work, moved = 3.0 * b * t * d, sum(resample_bytes().values())
    arithmetic, memory = work / 60e12 * 1e6, moved / 3.35e12 * 1e6
    return found(
        False, f"3 FLOP an element are {arithmetic:.2f} µs without tensor cores, the bytes {memory:.1f} µs"
    )


@claim("004", "phases-multiply", "The four phases make it 5 times faster: 110 to 20 µs.")
def _phases(_: Records) -> Finding:
    low, high = 1.2 * 1.15 * 1.1, 1.3 * 1.25 * 1.15
    return found(
        False,
        f"phases 1 to 3 give {low:.2f} to {high:.2f} by their own figures; the rest is the phase of the tensor cores, which cannot gain",
    )


@claim("004", "pytorch-target", "20 µs would be 5 times faster than PyTorch, which takes 0.9 of 110 µs.")
def _pytorch(_: Records) -> Finding:
    return found(abs(0.9 * 110 / 20 - 5) < 0.1, f"0.9 x 110 / 20 = {0.9 * 110 / 20:.2f}")


def _gain(records: Records, before: str, after: str, low: float, high: float) -> Finding:
    """Whether one phase's kernel is faster than the one before by a share between `low` and `high`."""
    us = {row["phase"]: row["us"] for row in base.rows_of(records["resample"], "phase")}
    gain = us[before] / us[after] - 1
    return found(low <= gain <= high, f"{us[before]:.1f} to {us[after]:.1f} µs: {gain:+.0%}")


@claim("004", "phase-shared", "Times in shared memory gain 20 to 30 %.", "resample")
def _phase_shared(records: Records) -> Finding:
    return _gain(records, "global", "shared", 0.2, 0.3)


@claim("004", "phase-vector", "Vector loads gain 15 to 25 %.", "resample")
def _phase_vector(records: Records) -> Finding:
    return _gain(records, "shared", "vector", 0.15, 0.25)


@claim("004", "phase-warp-search", "A search by whole warps gains 10 to 15 %.", "resample")
def _phase_warp(records: Records) -> Finding:
    return _gain(records, "vector", "warp", 0.1, 0.15)


def table(records: Records, only: str | None = None) -> list[dict[str, Any]]:
    """Every claim, or one, with its finding."""
    return [judged(one, records) for one in ([by_name(only)] if only else CLAIMS)]


def known_cases() -> set[str]:
    """Cases that claims rest on."""
    return {get(one.case).name for one in CLAIMS if one.case}
