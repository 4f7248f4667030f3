"""Claims of document 000: occupancy and random rows of a split-K sparse attention."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..base import Record
from .judging import (
    ROW,
    Figures,
    Holds,
    Records,
    claim,
    counter,
    figure_of,
    row,
    rows,
    share,
    stalls,
)

CASE = "gather_occupancy"
T64_BYTES = 64 * 2048 * ROW


@claim(
    "000",
    "gather-bytes",
    "64 queries read 151 MB of random rows, 1.75 TB/s at 86.4 µs.",
    {"queries": 64, "ids": 2048, "row_bytes": ROW, "us": 86.4, "said_tbps": 1.75},
)
def _gather_bytes(queries: int, ids: int, row_bytes: int, us: float, said_tbps: float) -> tuple[Holds, str]:
    moved = queries * ids * row_bytes
    rate = moved / us / 1e6
    words = f"{queries} x {ids} x {row_bytes} B = {moved / 1e6:.1f} MB, {rate:.2f} TB/s"
    return abs(rate - said_tbps) < 0.01, words


@claim(
    "000",
    "line-waste",
    "Every 128-byte line is loaded for one 16-byte piece, which wastes 88 %.",
    {"latent_bytes": 512 * 2, "line": 128, "said": 0.88},
)
def _line_waste(latent_bytes: int, line: int, said: float) -> tuple[Holds, str]:
    lines = -(-latent_bytes // line)
    wasted = 1 - latent_bytes / (lines * line)
    words = (
        f"a latent row is 512 x 2 B = {latent_bytes} contiguous bytes: "
        f"{lines} whole lines, {share(wasted)} wasted"
    )
    return wasted > said - 0.1, words


def _moved(records: Records) -> Figures:
    levels = (
        ("L1", "l1tex__m_xbar2l1tex_read_bytes.sum", 1),
        ("L2", "lts__t_sectors_op_read.sum", 32),
        ("DRAM", "dram__bytes_read.sum", 1),
    )
    moved = {level: counter(records, CASE, "loads_w32_d1", metric) * unit for level, metric, unit in levels}
    return {"needed": T64_BYTES, "moved": moved}


@claim("000", "forty-percent-waste", "About 40 % of the bytes of a global load are wasted.", _moved, CASE)
def _forty_percent(needed: float, moved: Mapping[str, float]) -> tuple[Holds, str]:
    waste = 1 - needed / moved["L1"]
    text = ", ".join(f"{level} {value / 1e6:.0f} MB" for level, value in moved.items())
    words = f"rows of {needed / 1e6:.0f} MB by 16-byte loads moved {text}: {share(waste)} wasted at L1"
    return waste > 0.3, words


@claim(
    "000",
    "two-warps-a-scheduler",
    "171.5 KB of shared memory allow one block an SM: 12.5 % occupancy, 2 warps a scheduler.",
    {"block_kb": 171.5, "sm_kb": 228, "reserved_kb": 1, "occupancy": 0.125, "most_warps": 64, "said": 2},
)
def _two_warps(
    block_kb: float, sm_kb: float, reserved_kb: float, occupancy: float, most_warps: int, said: int
) -> tuple[Holds, str]:
    blocks, warps = int(sm_kb // (block_kb + reserved_kb)), occupancy * most_warps
    words = (
        f"{blocks} block of {sm_kb - reserved_kb:.0f} KB; "
        f"{100 * occupancy:g} % of {most_warps} warps are {warps:.0f}, {warps / 4:.0f} a scheduler"
    )
    return blocks == 1 and warps / 4 == said, words


@claim(
    "000",
    "waves",
    "0.22 and 0.86 waves: at T=4 most SMs have nothing to do.",
    {"few": 0.22, "many": 0.86, "sms": 148},
)
def _waves(few: float, many: float, sms: int) -> tuple[Holds, str]:
    words = f"{few * sms:.0f} and {many * sms:.0f} blocks on {sms} SMs, one an SM"
    return few * sms < sms / 2 < many * sms, words


def change(name: str) -> Callable[[Records], Figures]:
    """A function that reads what one change of the arithmetic did to a split-K attention."""

    def read(records: Records) -> Figures:
        change_row = row(records, "split_k", name)
        return {name: change_row[name] for name in ("ratio", "noise")}

    return read


def _unchanged(ratio: float, noise: float) -> bool:
    return abs(ratio - 1) <= max(noise, 0.01)


def beside_noise(ratio: float, noise: float) -> str:
    return f"band {noise:.4f}: {'differs' if abs(ratio - 1) > noise else 'within noise'}"


@claim(
    "000",
    "exp2",
    "exp2 with a folded scale changes no absolute latency.",
    change("exp in place of exp2"),
    "split_k",
)
def _exp2(ratio: float, noise: float) -> tuple[Holds, str]:
    words = f"exp takes {ratio:.4f} of exp2's time, {beside_noise(ratio, noise)}"
    return _unchanged(ratio, noise), words


def _polynomial_figures(records: Records) -> Figures:
    name = "cubic polynomial in place of exp2"
    return {**change(name)(records), "failures": row(records, "split_k", name).get("failures", [])}


@claim(
    "000",
    "polynomial",
    "A cubic polynomial in place of the special-function unit changes no latency.",
    _polynomial_figures,
    "split_k",
)
def _polynomial(ratio: float, noise: float, failures: list[str]) -> tuple[Holds, str]:
    accuracy = f"fails the comparison ({failures[0]})" if failures else "passes the comparison"
    return _unchanged(ratio, noise), f"{ratio:.4f} of the time, {beside_noise(ratio, noise)}; {accuracy}"


@claim(
    "000",
    "exponentials-hidden",
    "The special-function unit is never on the critical path: without exponentials nothing is gained.",
    change("no exponential"),
    "split_k",
)
def _hidden(ratio: float, noise: float) -> tuple[Holds, str]:
    words = f"without any exponential (a wrong result) {ratio:.4f} of the time, {beside_noise(ratio, noise)}"
    return ratio > 0.98, words


@claim(
    "000",
    "kpe-gain",
    "Skipping the rope part gains only about 2 %.",
    lambda records: {
        **change("no rope part")(records),
        "rope_bytes": 128,
        "row_bytes": ROW,
    },
    "split_k",
)
def _kpe_gain(ratio: float, noise: float, rope_bytes: int, row_bytes: int) -> tuple[Holds, str]:
    words = (
        f"{share(1 - ratio)} less time, {beside_noise(ratio, noise)}; "
        f"it is {rope_bytes / row_bytes:.0%} of the bytes"
    )
    return 0.01 <= 1 - ratio <= 0.04, words


def _without_rope(_: Records) -> Figures:
    import torch

    from ... import oracles
    from ...oracles import Workload

    oracle = oracles.get("sparse_mla")
    workload = Workload("claim", "edge", "bf16", {"t": 2, "heads": 16, "topk": 2048, "n": 4096})
    inputs = oracle.make(workload, torch.Generator().manual_seed(0))
    expected = oracle.reference("bf16", inputs)
    without = oracle.reference("bf16", {**inputs, "q_pe": torch.zeros_like(inputs["q_pe"])})
    comparison = oracle.compare("bf16", inputs, without, expected)
    name = "out relative error"
    return {"error": comparison.figures[name], "limit": comparison.limits[name], "generous": 0.05}


@claim(
    "000",
    "kpe-correct",
    "Skipping the rope part technically passes correctness under generous tolerances.",
    _without_rope,
)
def _kpe_correct(error: float, limit: float, generous: float) -> tuple[Holds, str]:
    words = (
        f"relative error {error:.2f} of random data in float64; allowed are {limit} here, "
        f"and {generous} would be generous"
    )
    return error <= generous, words


def _bf16_scores_figures(records: Records) -> Figures:
    scores = next(r for r in records["split_k"]["rows"] if r["name"] == "scores accumulated in bf16")
    return {
        "refused": scores.get("error", "").startswith("CompilationError"),
        "triton": records["split_k"]["environment"]["versions"]["triton"],
    }


@claim(
    "000",
    "bf16-scores",
    "Triton refuses bf16 accumulation of bf16 products.",
    _bf16_scores_figures,
    "split_k",
)
def _bf16_scores(refused: bool, triton: str) -> tuple[Holds, str]:
    does = "refuses to compile" if refused else "compiles"
    return refused, f"Triton {triton} {does} a dot with out_dtype=bfloat16"


@claim(
    "000",
    "occupancy-symptom",
    "Low occupancy is a symptom: at the same bytes in flight more warps gain nothing.",
    lambda records: {
        "in_flight": row(records, CASE, "bulk w8 d8")["in_flight"],
        "few": figure_of(records, CASE, "bulk w8 d8", "gbps"),
        "many": figure_of(records, CASE, "bulk w32 d2", "gbps"),
        "memory": stalls(records, CASE, "bulk_w8_d8").get("long_scoreboard", 0.0),
    },
    CASE,
)
def _symptom(in_flight: int, few: float, many: float, memory: float) -> tuple[Holds, str]:
    text = (
        f"with the same {in_flight >> 10} KB in flight an SM, "
        f"8 warps reach {few:.0f} GB/s and 32 warps {many:.0f}; "
        f"the 8 wait for memory {share(memory)} of their time"
    )
    gains_nothing = few >= 0.97 * many
    # Warps that seldom wait for memory are bound by their additions, so they tell nothing about a mere copy.
    if not gains_nothing and memory < 0.5:
        return None, (
            f"{text} and else add up what arrived: 8 warps cannot add as fast, so whether more warps "
            "would gain in a copy without the sum is open"
        )
    return gains_nothing, text


@claim(
    "000",
    "more-warps",
    "More warps would not make a gather of random rows faster.",
    lambda records: {
        name: figure_of(records, CASE, setting, "gbps")
        for name, setting in (("few", "loads w8 d1"), ("many", "loads w32 d1"), ("deep", "loads w8 d4"))
    },
    CASE,
)
def _more_warps(few: float, many: float, deep: float) -> tuple[Holds, str]:
    words = (
        f"one row a warp by plain loads, its words added up: 8 warps {few:.0f} GB/s, 32 warps {many:.0f}; "
        f"8 warps with four rows each {deep:.0f}"
    )
    return many < 1.05 * few, words


@claim(
    "000",
    "random-ceiling",
    "Random rows run 5 to 20 times below the sequential rate.",
    lambda records: {
        name: figure_of(records, CASE, setting, "gbps")
        for name, setting in (
            ("random", "random rows"),
            ("ordered", "sequential rows"),
            ("read", "read 256 MB"),
        )
    },
    CASE,
)
def _random_ceiling(random: float, ordered: float, read: float) -> tuple[Holds, str]:
    words = (
        f"random {random:.0f} GB/s, the same kernel on sequential rows {ordered:.0f}, "
        f"a plain read {read:.0f}: {read / random:.2f} times"
    )
    return read / random >= 5, words


@claim(
    "000",
    "near-the-limit",
    "22 % of the sequential peak is close to what random rows allow.",
    lambda records: {
        name: figure_of(records, CASE, setting, "gbps")
        for name, setting in (
            ("ours", "attention T=64"),
            ("limit", "attainable T=64"),
            ("read", "read 256 MB"),
        )
    },
    CASE,
)
def _near_limit(ours: float, limit: float, read: float) -> tuple[Holds, str]:
    words = f"rows alone reach {share(limit / read)} of a sequential read, attention {share(ours / read)}"
    return limit / read < 0.33, words


@claim(
    "000",
    "row-buffer",
    "Random loads miss a DRAM row buffer each time, and banks over latency set their ceiling.",
    lambda records: {
        "random": figure_of(records, CASE, "random rows", "gbps"),
        "ordered": figure_of(records, CASE, "sequential rows", "gbps"),
        "row_bytes": ROW,
    },
    CASE,
)
def _row_buffer(random: float, ordered: float, row_bytes: int) -> tuple[Holds, str]:
    words = (
        f"rows of {row_bytes} bytes in random order reach {share(random / ordered)} "
        "of the same kernel's rate in order: a row is long enough that what it opens is read"
    )
    return random < 0.6 * ordered, words


@claim(
    "000",
    "no-reuse",
    "Warps with independent random ids reuse nothing from each other.",
    lambda records: {
        name: counter(records, CASE, launch, "lts__t_sector_hit_rate.pct")
        for name, launch in (("gather", "loads_w32_d1"), ("attention", "attention_t64"))
    },
    CASE,
)
def _no_reuse(gather: float, attention: float) -> tuple[Holds, str]:
    words = (
        f"{gather:.1f} % of the L2's sectors hit in the gather, {attention:.1f} % in attention of 64 queries"
    )
    return max(gather, attention) < 15, words


def _best_of_engines(records: Records) -> Figures:
    best: dict[str, float] = {}
    for one_row in rows(records, CASE, "sweep", "gbps"):
        best[one_row["engine"]] = max(best.get(one_row["engine"], 0.0), one_row["gbps"])
    return {"best": best}


@claim("000", "async-copies", "Asynchronous copies are a way to a faster gather.", _best_of_engines, CASE)
def _async(best: Mapping[str, float]) -> tuple[Holds, str]:
    text = ", ".join(f"{engine} {value:.0f} GB/s" for engine, value in best.items())
    return max(best["bulk"], best["cp_async"]) / best["loads"] > 1.03, f"best of all settings: {text}"


def orders(records: Records, order: str) -> dict[str, float]:
    """Speed-up over random ids of each kernel of the case at T=64, by footprint, with ids in this order."""
    measured = [r for r in rows(records, CASE, "index_order", "ratio") if r["order"] == order]
    if not measured:
        raise LookupError(f"no order {order}")
    return {f"{r['what']} T=64 over {r['footprint']}": 1 / r["ratio"] for r in measured}


def sorted_rows(record: Record, widths: Iterable[int]) -> dict[str, float]:
    """Speed-up of bare rows by sorted ids, by width and footprint, from the ceilings of the record's GPU."""
    from ...profile import read_ceilings

    ceilings = read_ceilings(record["environment"]["gpu"])
    gbps = {(p.row_bytes, p.footprint, p.order): p.gbps for p in (ceilings.points if ceilings else ())}
    return {
        f"bare rows of {width} B over {footprint >> 20} MiB": gbps[width, footprint, "sorted"] / random
        for (width, footprint, order), random in sorted(gbps.items())
        if order == "random" and width in widths
    }


def gains(*widths: int) -> Callable[[Records], Figures]:
    """A function that reads the speed-up by sorted ids: kernels at T=64, and bare rows of these widths."""
    return lambda records: {"gained": orders(records, "page") | sorted_rows(records[CASE], widths)}


def gains_at_least(gained: Mapping[str, float], least: float) -> tuple[Holds, str]:
    """Where sorting gains at least this much, and what it gains everywhere."""
    text = "; ".join(f"{where} {100 * (factor - 1):+.1f} %" for where, factor in gained.items())
    return {where: factor >= 1 + least for where, factor in gained.items()}, f"speed gained: {text}"


@claim("000", "sorted-ids", "Sorting the ids for locality is a path to a meaningful gain.", gains(ROW), CASE)
def _sorted_ids(gained: Mapping[str, float]) -> tuple[Holds, str]:
    return gains_at_least(gained, 0.1)
