"""Attention beside FlashMLA's on this GPU, in turns over the same inputs; `flash_mla` has to be installed.

    python benchmarks/attention_peers.py [--point REGEX] [--rounds 3] [--out peers.jsonl]

What the registry selects for a point is compared with the reference, and FlashMLA's result with it, before either is timed.
Inputs rotate past the L2; no row of a turn is in another while the cache has enough. FlashMLA reads latent and rope dims
from one row, ours from two tensors; its scheduling of fp8 is worked out once and not timed. Both take turns, a median of
graph replays each; the median of the rounds is printed, and how far they lie apart. Calls of 300 µs and more are also timed
on end, in the order theirs, ours, ours, theirs: a short run ends before the power limit lowers the clocks, and what comes
second finds a warmer chip. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsl_kernels.errors import DslKernelError, WrongResultError
from dsl_kernels.problems.layouts import FP8_TOKEN_BYTES, LATENT_DIM
from dsl_kernels.problems.lightning_indexer import PAGE
from dsl_kernels.timing import bench, grids

SHAPES = {("bf16", 64): (64, 96, 128), ("bf16", 128): (1, 4, 16, 64, 96, 128)}
SHAPES |= {("fp8", heads): (64, 128) for heads in (64, 128)}
POINTS = [
    *(
        grids.Point("sparse_mla", form, {"t": t, "heads": heads, "pages": 4096})
        for (form, heads), ts in SHAPES.items()
        for t in ts
    ),
    *(grids.Point("sparse_mla", "bf16", {"t": 4096, "heads": 128, "pages": pages}) for pages in (512, 2048)),
]
# Both round their weights and results to bf16, on their own ways.
MOST_APART = 1e-2
SUSTAINED_US, SUSTAINED_SECONDS = 300.0, 0.6


def theirs(form: str, calls: Sequence[Any]) -> list[bench.Call]:
    """FlashMLA's calls over the tensors of ours, each giving what it writes out to."""
    import flash_mla

    rows: dict[int, torch.Tensor] = {}
    found: list[bench.Call] = []
    for call in calls:
        q_nope, q_pe, cache, ids = call.args
        given, q = call.keywords, torch.cat([q_nope, q_pe], -1)
        if form == "bf16":
            if cache.data_ptr() not in rows:
                rows[cache.data_ptr()] = torch.cat([cache, given["kpe"]], -1).flatten(0, 1).unsqueeze(1)
            kv = rows[cache.data_ptr()]
            found.append(partial(flash_mla.flash_mla_sparse_fwd, q, kv, ids.unsqueeze(1), given["sm_scale"]))
            continue
        found.append(
            partial(
                flash_mla.flash_mla_with_kvcache,
                q.unsqueeze(1),
                cache.view(-1, PAGE, 1, FP8_TOKEN_BYTES),
                None,
                None,
                LATENT_DIM,
                flash_mla.get_mla_metadata()[0],
                softmax_scale=given["sm_scale"],
                is_fp8_kvcache=True,
                indices=ids.unsqueeze(1),
            )
        )
    return found


def checked(point: grids.Point, fixture: grids.Fixture, ours: Sequence[Any], peer: bench.Call) -> float:
    """How far the results of the first turn lie apart; ours is compared with the reference first."""
    grids.check_variant(point, fixture)
    out = ours[0].keywords["out"].float()
    other = peer()[0].view(out.shape).float()
    apart = float((out - other).norm() / other.norm())
    if not apart <= MOST_APART:
        raise WrongResultError(
            f"FlashMLA at {point.name}",
            expected=f"our result within {MOST_APART}",
            got=f"{apart:.2e} apart",
            fix="see which of the two differs from the reference",
        )
    return apart


def measure(point: grids.Point, rounds: int) -> dict[str, Any]:
    fixture = grids.prepare(point)
    ours = fixture.calls(None, None)
    peer = theirs(point.form, ours)
    both = {"FlashMLA": peer, "ours": ours}
    row: dict[str, Any] = {"op": point.op, "form": point.form, "params": dict(point.params)}
    row["apart"] = checked(point, fixture, ours, peer[0])
    replays = 8 if point.params["t"] >= 1024 else bench.REPLAYS
    row["rounds"] = [
        {name: bench.graph_time(calls, replays=replays).us for name, calls in both.items()}
        for _ in range(rounds)
    ]
    row["clocks"] = bench.clocks()
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
            f"| {name} | {us[0]:.4g} | {us[1]:.4g} | {us[0] / us[1]:.3f} | {apart:.3f} | {clocks} |",
            flush=True,
        )

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
        print("| point | ours, µs | FlashMLA, µs | ours / FlashMLA | rounds apart | clocks |")
        print("|---|---|---|---|---|---|")
        for point in POINTS:
            if re.search(options.point, point.name):
                show(point, records.add(measure(point, options.rounds)))
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
