"""Where warps of dense attention are, ours and FlashAttention 3's, by samples of the program counter.

    python benchmarks/gqa_samples.py --out gqa_samples.json [--reports FOLDER] [--causal 0,1] [--dtypes fp16]

The main loop of the consumer warps is the span of instructions around the most frequent product. A sample in
the loop belongs to the region that landmarks of the SASS show:

    turn        a named barrier, at which a warpgroup waits for its turn to multiply
    tiles       an mbarrier, at which it waits for keys or values
    products    WARPGROUP.DEPBAR, at which it waits for a product
    issue       from the first HGMMA of a product to its last
    softmax     everything else: maxima, exponentials, sums, rescaling, conversion

Clocks of a region are those of one warp in one iteration: the region's samples, over the samples of all warps
in all clocks. The kernels have tiles of different widths, so `each 128 keys` scales an iteration to 64
queries and 128 keys. `products take` is how long the tensor cores need for all warpgroups of an SM. Where
the schedulers of an SM have different numbers of warps, clocks are some 3 % too high: a scheduler's
sampler sees each of its warps less often where there are more. B=4, S=4096, 64 query heads, 8 key heads, 128
dims. Needs Nsight Compute and FlashAttention 3, or vLLM's build of it. The card's clocks stay as they are.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from dsl_kernels_lab.profile import collect, metrics, readers
from dsl_kernels_lab.timing import bench
from dsl_kernels_lab.timing.peers.gqa_forward import BUILDERS

BATCH, LENGTH, HEADS, KV_HEADS, DIM = 4, 4096, 64, 8, 128
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
OURS, PEER = "ours", "FlashAttention 3"
WARM_UPS = 3
ALL_SAMPLES, EXECUTED = "# Samples", "Instructions Executed"
REGIONS = ("turn", "tiles", "products", "issue", "softmax")
# Clocks of the tensor cores for both products of 64 queries and 128 keys.
PRODUCTS = 1024
# Both kernels have a warpgroup that copies beside those that multiply.
COPYING_WARPS = 4
# Products of one group are no further apart than this many instructions.
GROUP = 24


def attend(kernel: str, dtype: str, causal: bool) -> Callable[[], Any]:
    """A call of a kernel on random inputs."""
    generator = torch.Generator("cuda").manual_seed(1)

    def drawn(heads: int) -> torch.Tensor:
        shape = BATCH, LENGTH, heads, DIM
        return torch.randn(shape, generator=generator, device="cuda", dtype=DTYPES[dtype])

    q, k, v = drawn(HEADS), drawn(KV_HEADS), drawn(KV_HEADS)
    if kernel == OURS:
        from dsl_kernels import ops

        return lambda: ops.gqa_forward(q, k, v, causal=causal)
    return BUILDERS[kernel][0](q, k, v, causal)


def run(kernel: str, dtype: str, causal: bool) -> None:
    """Run a kernel for a profiler to look at: once, after it is warm."""
    call = attend(kernel, dtype, causal)
    for _ in range(WARM_UPS):
        call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    call()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def profiled(ncu: str, report: Path, kernel: str, dtype: str, causal: bool) -> None:
    """Write the report of a kernel: counters, and samples by instruction."""
    program = [
        sys.executable, __file__, "--run", kernel, "--dtypes", dtype, "--causal", str(int(causal)),
    ]  # fmt: skip
    argv = collect.command(program, report, chip="GH100", ncu=ncu)
    at = argv.index("--metrics")
    collect.run([*argv[:at], "--section", "SourceCounters", *argv[at:]], timeout=200)


def source_csv(ncu: str, report: Path) -> str:
    """The instructions of the kernels in a report with the samples of each."""
    argv = [ncu, "--import", str(report), "--page", "source", "--csv"]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


Instruction = dict[str, str]


def instructions(text: str) -> list[Instruction]:
    """The instructions of the kernel that most samples are of."""
    kernels: list[list[Instruction]] = []
    header: list[str] = []
    for row in csv.reader(io.StringIO(text)):
        if row[:1] == ["Kernel Name"]:
            kernels.append([])
        elif row[:1] == ["Address"]:
            header = row
        elif kernels and row:
            kernels[-1].append(dict(zip(header, row, strict=False)))
    return max(kernels, key=lambda kernel: sum(samples(each) for each in kernel))


def samples(instruction: Instruction) -> int:
    return int(instruction[ALL_SAMPLES])


def opcode(instruction: Instruction) -> str:
    """The opcode after the predicate."""
    return next(word for word in instruction["Source"].split() if not word.startswith("@"))


def main_loop(kernel: Sequence[Instruction]) -> tuple[list[Instruction], int]:
    """The main loop of the consumer warps, and how many times a warp goes through it in all."""
    products = Counter(int(x[EXECUTED]) for x in kernel if opcode(x).startswith("HGMMA"))
    turns = max(products)
    at = [i for i, x in enumerate(kernel) if int(x[EXECUTED]) == turns]
    return list(kernel[at[0] : at[-1] + 1]), turns


def in_products(loop: Sequence[Instruction]) -> set[int]:
    """Numbers of the instructions from the first to the last HGMMA of each product."""
    places = [i for i, x in enumerate(loop) if opcode(x).startswith("HGMMA")]
    return {
        i for begin, end in itertools.pairwise(places) if end - begin <= GROUP for i in range(begin, end + 1)
    }


def regions(loop: Sequence[Instruction]) -> Counter[str]:
    """Samples by region."""
    found: Counter[str] = Counter()
    issuing = in_products(loop)
    for number, instruction in enumerate(loop):
        count, kind = samples(instruction), opcode(instruction)
        before = opcode(loop[number - 1]) if number else ""
        if kind.startswith("WARPGROUP.DEPBAR"):
            found["products"] += count
            continue
        if kind.startswith("SYNCS.PHASECHK") or (
            kind.startswith("BRA") and before.startswith("SYNCS.PHASECHK")
        ):
            found["tiles"] += count
            continue
        turn = int(instruction["stall_barrier"])
        tile = int(instruction["stall_long_sb"]) if kind.startswith("BRA") else 0
        found["turn"] += turn
        found["tiles"] += tile
        found["issue" if number in issuing else "softmax"] += count - turn - tile
    return found


def keys_of_tile(loop: Sequence[Instruction]) -> int:
    """Keys of an iteration: N of the product that makes scores, whose N is not the width of the values."""
    widths = {int(n) for x in loop for n in re.findall(r"HGMMA\.64x(\d+)x", x["Source"])} - {DIM}
    return widths.pop() if len(widths) == 1 else DIM


def summary(text: str, raw: str) -> dict[str, Any]:
    """What the samples and counters of a kernel say."""
    kernel = instructions(text)
    report = max(readers.reports(raw, "ncu"), key=lambda each: each.metrics[metrics.DURATION])
    counted = report.metrics
    loop, turns = main_loop(kernel)
    sms = counted["device__attribute_multiprocessor_count"]
    # A scheduler's sampler looks at one warp at a time.
    resident = counted["sm__warps_active.avg.per_cycle_active"] * sms
    per_clock = sum(map(samples, kernel)) / (resident * counted[metrics.CYCLES])
    keys, parts = keys_of_tile(loop), regions(loop)
    clocks = {name: parts[name] / per_clock / turns for name in REGIONS}
    mufu = sum(samples(x) for x in loop if opcode(x).startswith("MUFU"))
    return {
        "kernel": report.kernel,
        "us_under_profiler": counted[metrics.DURATION] / 1e3,
        "clocks": counted[metrics.CYCLES],
        "tensor_percent": counted[metrics.PIPES["tensor"]],
        "keys": keys,
        "iteration": clocks,
        "each_128_keys": {name: value * 128 / keys for name, value in clocks.items()},
        "exponentials_percent_of_loop": 100 * mufu / sum(map(samples, loop)),
        "loop_percent_of_samples": 100 * sum(map(samples, loop)) / sum(map(samples, kernel)),
        "warpgroups": int(counted["launch__thread_count"] / 32 / sms - COPYING_WARPS) // 4,
        "warps_resident": resident / sms,
        "stalls": {
            name: counted[metrics.STALL.format(name)]
            for name in (*metrics.STALLS, *metrics.CHIP_STALLS["GH100"])
            if counted.get(metrics.STALL.format(name), 0) >= 0.05
        },
    }


def times(dtype: str, causal: bool) -> dict[str, float]:
    """Microseconds of both, in turns, without a profiler: the least of three rounds."""
    calls = {kernel: attend(kernel, dtype, causal) for kernel in (OURS, PEER)}
    least: dict[str, float] = {}
    for _ in range(3):
        for kernel, call in calls.items():
            least[kernel] = min(least.get(kernel, float("inf")), bench.graph_time([call], replays=10).us)
    return least


def table(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The rows as Markdown."""
    scaled = ("an iteration", "each 128 keys", "products take", "MUFU of it")
    columns = ("dtype", "causal", "kernel", "µs", "tensor cores", "warpgroups", "keys", *REGIONS, *scaled)
    yield f"| {' | '.join(columns)} |"
    yield "|" + " --- |" * len(columns)
    for row in rows:
        parts, total = row["iteration"], sum(row["iteration"].values())
        cells = (
            row["dtype"],
            "yes" if row["causal"] else "no",
            row["name"],
            f"{row['us']:.0f}",
            f"{row['tensor_percent']:.1f} %",
            row["warpgroups"],
            row["keys"],
            *(f"{parts[name]:.0f}" for name in REGIONS),
            f"{total:.0f}",
            f"{total * 128 / row['keys']:.0f}",
            row["warpgroups"] * PRODUCTS,
            f"{row['exponentials_percent_of_loop']:.0f} %",
        )
        yield f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--run", choices=(OURS, PEER), help="run a kernel once between profiler start and stop"
    )
    parser.add_argument("--dtypes", default="fp16,bf16")
    parser.add_argument("--causal", default="0,1")
    parser.add_argument("--reports", type=Path, help="keep the tables of Nsight Compute in this folder")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    dtypes, causals = given.dtypes.split(","), [bool(int(x)) for x in given.causal.split(",")]
    if given.run:
        run(given.run, dtypes[0], causals[0])
        return
    ncu = str(collect.find_ncu())
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for dtype, causal in itertools.product(dtypes, causals):
            least = times(dtype, causal)
            for kernel in (OURS, PEER):
                report = Path(folder) / "report.ncu-rep"
                profiled(ncu, report, kernel, dtype, causal)
                text, raw = source_csv(ncu, report), collect.raw_csv(report, ncu)
                if given.reports:
                    stem = f"{kernel.replace(' ', '_')}_{dtype}_{int(causal)}"
                    given.reports.mkdir(parents=True, exist_ok=True)
                    (given.reports / f"{stem}.source.csv").write_text(text)
                    (given.reports / f"{stem}.raw.csv").write_text(raw)
                rows.append(
                    {
                        "name": kernel,
                        "dtype": dtype,
                        "causal": causal,
                        "us": least[kernel],
                        **summary(text, raw),
                    }
                )
    print("\n".join(table(rows)))
    for row in rows:
        stalls = ", ".join(
            f"{name} {value:.2f}" for name, value in sorted(row["stalls"].items(), key=lambda x: -x[1])
        )
        mask = ", causal" if row["causal"] else ""
        print(f"{row['name']}, {row['dtype']}{mask}: {row['kernel']}: stalls {stalls}")
    if given.out:
        made = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        given.out.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
