"""Attention beside FlashMLA's on this GPU, in turns over the same inputs; needs an installed `flash_mla`.

    python benchmarks/attention_peers.py [--point REGEX] [--rounds 3] [--out peers.jsonl]

Before a point is timed, the variant that the registry selects is compared with the reference, and FlashMLA's
result with the reference and with ours. Inputs rotate past L2; turns share no row while the cache has enough
of them. FlashMLA reads latent and rope dims from one row, ours from two tensors; FlashMLA's scheduling of fp8
is computed once and not timed. DeepSeek-V4 (form v4: 128 tokens of a window and 512 of the compressed cache
per query) has 4 to 128 heads; FlashMLA decodes 64 or 128, so its queries are padded, before the clock starts.

The two take turns, each with a median over graph replays. Printed are the median of the rounds and their
spread. The floor is the bytes of the rows that a decode call must fetch, and the time in which this GPU
fetches these rows by the fastest known method; shares are that time over a call's. Calls of at least 300 µs
are also timed in sustained runs, in the order theirs, ours, ours, theirs: a short run ends before the power
limit lowers the clocks, and the second of two runs finds a warmer chip. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsl_kernels.errors import DslKernelError, WrongResultError
from dsl_kernels.problems.layouts import LATENT_DIM
from dsl_kernels_lab.timing import bench, grids, measure
from dsl_kernels_lab.timing.peers import MOST_APART
from dsl_kernels_lab.timing.peers import apart as _apart
from dsl_kernels_lab.timing.peers.sparse_mla import flash_mla_calls

SHAPES = {("bf16", 64): (64, 96, 128), ("bf16", 128): (1, 4, 16, 64, 96, 128)}
SHAPES |= {("fp8", heads): (64, 128) for heads in (64, 128)}
SHAPES |= {("nope", heads): (64, 128, 1024) for heads in (64, 128)}
POINTS = [
    *(
        grids.Point("sparse_mla", form, {"t": t, "heads": heads, "pages": 4096})
        for (form, heads), ts in SHAPES.items()
        for t in ts
    ),
    *(grids.Point("sparse_mla", "bf16", {"t": 4096, "heads": 128, "pages": pages}) for pages in (512, 2048)),
    *(
        grids.Point(
            "sparse_mla", "v4", {"t": t, "heads": heads, "pages": 4096, "topk": 128, "extra_topk": 512}
        )
        for heads in (4, 8, 16, 20, 32, 64, 96, 128)
        for t in (1, 4, 16, 64, 128)
    ),
]
SUSTAINED_US, SUSTAINED_SECONDS = 300.0, 0.6
# From this many queries on a call is a prompt's. Its rows stay in L2, so fetching them is no floor.
PROMPT = 1024


def checked(
    point: grids.Point, fixture: grids.Fixture, ours: Sequence[Any], peer: bench.Call
) -> dict[str, float]:
    """How far FlashMLA's results of the first turn are from ours and from the reference; ours are checked
    first.

    Raises:
        WrongResultError: a difference is beyond its limit.
    """
    grids.check_variant(point, fixture)
    out, lse = (ours[0].keywords[name] for name in ("out", "lse"))
    t, heads, _ = out.shape
    results = peer()
    other = results[0].reshape(t, -1, LATENT_DIM)[:, :heads]
    # Theirs is a natural logarithm, ours is in base 2.
    other_lse = results[-1].reshape(t, -1)[:, :heads] / math.log(2)
    apart = {"out from ours": _apart(other, out), "lse from ours": _apart(other_lse, lse)}
    reference = fixture.expected(point)
    if reference is not None:
        sample, expected = reference
        for mine, value in zip(sample.outputs, (other, other_lse), strict=True):
            mine.copy_(value)
        got = sample.got()
        apart |= {f"{name} from the reference": _apart(got[name], expected[name]) for name in ("out", "lse")}
    if not all(value <= MOST_APART for value in apart.values()):
        raise WrongResultError(
            f"FlashMLA at {point.name}",
            expected=f"our result and the reference within {MOST_APART}",
            got=", ".join(f"{name} {value:.2e}" for name, value in apart.items()),
            fix="see which of the two differs from the reference",
        )
    return apart


def floor(
    point: grids.Point, fixture: grids.Fixture, known: dict[Any, dict[str, Any]]
) -> dict[str, Any] | None:
    """The bytes of the rows that a decode call fetches, and this GPU's time for them; None for a prompt."""
    dims = fixture.dims
    if dims["t"] >= PROMPT or fixture.ceiling is None:
        return None
    # All heads of a query attend to the same rows, so points that differ in heads share a floor.
    key = (point.form, *(value for name, value in point.params.items() if name != "heads"))
    if key not in known:
        rows = dims["t"] * (dims["topk"] + dims.get("extra_topk", 0))
        figures: dict[str, Any] = {"notes": []}
        known[key] = {
            "bytes": rows * grids.reads(point)["row_bytes"],
            "us": measure.time_ceiling(fixture.ceiling, figures),
            **figures,
        }
    return known[key]


def timed(point: grids.Point, rounds: int, floors: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    fixture = grids.prepare(point)
    ours = fixture.calls(None, None)
    peer = flash_mla_calls(point.form, ours)
    both = {"FlashMLA": peer, "ours": ours}
    row: dict[str, Any] = {"op": point.op, "form": point.form, "params": dict(point.params)}
    row["apart"] = checked(point, fixture, ours, peer[0])
    replays = 8 if point.params["t"] >= PROMPT else bench.REPLAYS
    row["rounds"] = [
        {name: bench.graph_time(calls, replays=replays).us for name, calls in both.items()}
        for _ in range(rounds)
    ]
    row["clocks"] = bench.clocks()
    row["floor"] = floor(point, fixture, floors)
    if row["rounds"][0]["ours"] >= SUSTAINED_US:
        order = ("FlashMLA", "ours", "ours", "FlashMLA")
        row["sustained"] = [
            {"name": name, **bench.sustained(both[name], seconds=SUSTAINED_SECONDS)} for name in order
        ]
    return row


def show(point: grids.Point, row: dict[str, Any]) -> None:
    def line(name: str, ours: Sequence[float], peer: Sequence[float], seen: Sequence[Any]) -> None:
        us = [statistics.median(times) for times in (ours, peer)]
        apart = max(max(times) / min(times) - 1 for times in (ours, peer))
        clocks = ", ".join(
            f"{at['sm_mhz']:.0f} MHz {at['watts']:.0f} W" for at in seen if at and "watts" in at
        )
        print(
            f"| {name} | {us[0]:.4g} | {us[1]:.4g} | {us[0] / us[1]:.3f} | {shares(us)} | {apart:.3f} "
            f"| {clocks} |",
            flush=True,
        )

    def shares(us: Sequence[float]) -> str:
        if not row["floor"]:
            return " | | |"
        least = row["floor"]["us"]
        cells = [f"{row['floor']['bytes'] / 1e6:.1f} MB"]
        cells += [f"{least:.4g}", *(f"{least / each:.3f}" for each in us)] if least else [" ", " ", " "]
        return " | ".join(cells)

    ours, peer = ([times[name] for times in row["rounds"]] for name in ("ours", "FlashMLA"))
    line(point.name, ours, peer, [row["clocks"]])
    if "sustained" in row:
        ours, peer = (
            [seen["us"] for seen in row["sustained"] if seen["name"] == name] for name in ("ours", "FlashMLA")
        )
        line(f"{point.name}, on end", ours, peer, row["sustained"])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--point", default="", help="regular expression searched in form and sizes")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    try:
        print(f"{bench.require_gpu()}, torch {torch.__version__}\n")
        records = bench.Records(options.out)
        floors: dict[Any, dict[str, Any]] = {}
        columns = (
            "point",
            "ours, µs",
            "FlashMLA, µs",
            "ours / FlashMLA",
            "floor",
            "floor, µs",
            "of ours",
            "of FlashMLA",
        )
        print("| " + " | ".join((*columns, "rounds apart", "clocks")) + " |")
        print("|---" * (len(columns) + 2) + "|")
        for point in POINTS:
            if re.search(options.point, point.name):
                show(point, records.add(timed(point, options.rounds, floors)))
                torch.cuda.empty_cache()
    except ImportError as error:
        print(f"{error}: install FlashMLA (https://github.com/deepseek-ai/FlashMLA)", file=sys.stderr)
        return 2
    except DslKernelError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
