"""DeepSeek-V4's compressed rows on this GPU: the kernel, torch eager and compiled, the bytes alone.

    python benchmarks/compressed_rows.py [--rows 1,64,4096,32768] [--no-compile] [--out rows.jsonl]

Times are under a CUDA graph whose turns rotate past L2, so eager torch has no host time either. The kernel's
bytes are compared with the reference first. torch computes the same in float32: it fetches the tokens of each
window, and writes into the same cache. The floor is the bytes divided by the measured read rate of this GPU's
memory (`profile calibrate`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsl_kernels.dsa import v4
from dsl_kernels.kernels.compress_rows.problem import KINDS, WORDS
from dsl_kernels.problems.layouts import (
    E4M3_MAX,
    LATENT_DIM,
    ROPE_DIM,
    V4_FP8_DIMS,
    V4_GROUP,
)
from dsl_kernels_lab.oracles import Workload
from dsl_kernels_lab.oracles.compress_rows import ORACLE
from dsl_kernels_lab.timing import bench, measure
from dsl_kernels_lab.timing.ceilings import read_ceilings

# Points that need more bytes, of inputs and of torch's windows, are skipped: those are prompts of millions of
# tokens.
MOST = 24 << 30
OPERANDS = ("kv", "scores", "ape", "weight", "windows", "positions", "cos_sin", "row_slots")


def drawn(rows: int, kind: tuple[int, int, int, int], seed: int) -> dict[str, Any]:
    """Operands of a call whose rows all have a slot, and its cache."""
    dim, ratio, parts, page = kind
    sizes = {
        "rows": rows,
        "dim": dim,
        "ratio": ratio,
        "width": parts * dim,
        "page_size": page,
        "sequence": "inside",
    }
    generator = torch.Generator(measure.DEVICE).manual_seed(seed)
    given = ORACLE.make(Workload("rows", "real", "default", sizes), generator)
    places = torch.randperm(given["pages"] * page, generator=generator, device=measure.DEVICE)
    given["row_slots"] = places[:rows].int()
    given["cache"] = torch.zeros(
        given["pages"], page, 1, 4 * WORDS[dim], dtype=torch.uint8, device=measure.DEVICE
    )
    return given


def kernel(given: dict[str, Any]) -> None:
    v4.compress_rows(*(given[name] for name in OPERANDS), given["cache"], eps=given["eps"])


def in_torch(
    kv: torch.Tensor, scores: torch.Tensor, ape: torch.Tensor, weight: torch.Tensor, windows: torch.Tensor,
    positions: torch.Tensor, cos_sin: torch.Tensor, slots: torch.Tensor, cache: torch.Tensor, eps: float,
) -> None:  # fmt: skip
    """What the kernel computes, for windows that are complete."""
    ratio, dim = len(ape), len(weight)
    rows, span = windows.shape
    values, weights = [], []
    for part in range(span // ratio):
        tokens = windows[:, part * ratio : (part + 1) * ratio].long()
        own = slice(part * dim, (part + 1) * dim)
        values.append(kv[:, own][tokens])
        weights.append(scores[:, own][tokens] + ape[:, own])
    share = torch.softmax(torch.cat(weights, dim=1), dim=1)
    row = (share * torch.cat(values, dim=1)).sum(dim=1)
    row = row * torch.rsqrt(row.square().mean(dim=1, keepdim=True) + eps) * weight
    cos, sin = cos_sin[positions.long()].chunk(2, dim=1)
    even, odd = row[:, dim - ROPE_DIM :: 2], row[:, dim - ROPE_DIM + 1 :: 2]
    rotated = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=2).flatten(1)
    rounded = torch.cat((row[:, : dim - ROPE_DIM], rotated), dim=1).bfloat16()
    pages, page = cache.shape[:2]
    flat = cache.view(pages, -1)
    if dim == LATENT_DIM:
        groups = rounded[:, :V4_FP8_DIMS].float().view(rows, -1, V4_GROUP)
        powers = torch.ceil(torch.log2(groups.abs().amax(dim=2).clamp(min=1e-4) / E4M3_MAX))
        codes = (groups / torch.exp2(powers)[..., None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
        kept = rounded[:, V4_FP8_DIMS:].contiguous().view(torch.uint8)
        data = torch.cat((codes.view(torch.uint8).view(rows, -1), kept), dim=1)
        scales = torch.nn.functional.pad((powers + 127).to(torch.uint8), (0, 1))
    else:
        scale = rounded.float().abs().amax(dim=1).clamp(min=1e-4) / E4M3_MAX
        codes = (rounded.float() * (1.0 / scale)[:, None]).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
        data, scales = codes.view(torch.uint8), scale[:, None].view(torch.uint8)
    at, place = (slots // page).long()[:, None], (slots % page).long()[:, None]
    each, tail = data.shape[1], scales.shape[1]
    flat[at, place * each + torch.arange(each, device=flat.device)] = data
    flat[at, page * each + place * tail + torch.arange(tail, device=flat.device)] = scales


def calls_of(function: Callable[..., None], sets: list[dict[str, Any]]) -> list[bench.Call]:
    def of(given: dict[str, Any]) -> bench.Call:
        operands = [given[name] for name in (*OPERANDS, "cache", "eps")]
        return lambda: function(*operands)

    return [of(given) for given in sets]


def check(given: dict[str, Any], call: bench.Call, *, exact: bool = True) -> None:
    """Compare the bytes with the reference; with a sample of the rows if there are many.

    Args:
        exact: False allows bytes to differ, but no value by more than a step, as a compiler omits the
            rounding to bf16.

    Raises:
        RuntimeError: they differ.
    """
    given["cache"].fill_(0x55)
    call()
    some = torch.arange(0, len(given["row_slots"]), -(-len(given["row_slots"]) // 512), device=measure.DEVICE)
    few = {**given, **{name: given[name][some] for name in ("windows", "positions", "row_slots")}}
    words = given["cache"].view(given["pages"], -1).view(torch.int32)
    comparison = ORACLE.compare("default", few, {"cache": words}, ORACLE.reference("default", few))
    failures = [f for f in comparison.failures if exact or not f.startswith("bytes that differ")]
    if failures:
        raise RuntimeError("; ".join(failures))


def row_of(rows: int, kind: tuple[int, int, int, int], compiled: bool) -> dict[str, Any] | None:
    """The times of a point; None if it needs too much memory."""
    dim, ratio, parts, _ = kind
    dims = {"rows": rows, "ratio": ratio, "width": parts * dim, "dim": dim}
    size = ORACLE.bytes("default", dims)
    if 5 * size > MOST:
        return None
    sets = [drawn(rows, kind, seed) for seed in range(bench.turns(size))]
    row: dict[str, Any] = {"rows": rows, "dim": dim, "ratio": ratio, "bytes": size}
    limit = read_ceilings(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
    if limit is not None:
        row["floor_us"] = size / limit.dram_gbps / 1e3
    makers: dict[str, Callable[[], Any]] = {"eager": lambda: in_torch}
    if compiled:
        makers["compiled"] = lambda: torch.compile(in_torch, dynamic=False)
    ours = [lambda given=given: kernel(given) for given in sets]
    check(sets[0], ours[0])
    row["us"] = bench.graph_time(ours).us
    for name, make in makers.items():
        try:
            calls = calls_of(make(), sets)
            check(sets[0], calls[0], exact=name == "eager")
            row[f"{name}_us"] = bench.graph_time(calls).us
        except Exception as error:  # torch.compile may have no compiler here
            row[f"{name}_us"] = None
            print(f"{name}: {type(error).__name__}: {str(error)[:300]}", file=sys.stderr)
    return row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="1,64,4096,32768", help="rows of a call, separated by commas")
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=True, help="time torch.compile too"
    )
    parser.add_argument("--out", type=Path, help="append JSON lines here")
    options = parser.parse_args()
    bench.require_gpu()
    columns = ("dim", "ratio", "rows", "us", "floor_us", "eager_us", "compiled_us")
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for kind, rows in product(KINDS, (int(part) for part in options.rows.split(","))):
        with torch.inference_mode():
            row = row_of(rows, kind, options.compile)
        if row is None:
            continue
        cells = (row.get(name) for name in columns)
        print(
            "| " + " | ".join(f"{x:.2f}" if isinstance(x, float) else str(x) for x in cells) + " |",
            flush=True,
        )
        if options.out:
            with options.out.open("a") as file:
                file.write(json.dumps({**row, "environment": bench.environment()}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
