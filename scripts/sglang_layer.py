"""Run a layer of DeepSeek-V3.2 in SGLang's DSA backend, with our plugin and with SGLang's own kernels.

    SGLANG_PLUGINS=dsl_kernels python scripts/sglang_layer.py --out FILE

Needs SGLang 0.5.23 with its kernels, `dsl_kernels` installed beside it, and a Hopper GPU; no model is
downloaded. SGLang's classes run as in its engine: backend and metadata, pools, attention layer, indexer from
the quantised queries on, and the registry that puts our hooks in place. The model around them does not run.

A row is a decode step, or an extend step with or without a prefix. It has for each side

- us of the indexer (scores and selection) and of the layer (storing the step's rows, and attention), as CUDA
  graphs that take turns, or launch by launch where a graph cannot hold the call;
- the largest error of attention against float64 over the rows that the side selected, the largest share of
  the best scores that its selection misses, and how many checked queries have ids that are not a selection;
- which functions served it.

A side that fails has its error there, and the traceback is in the output. `same_rows` is the share of queries
for which both sides select the same ids, and `apart` how far their outputs of these are apart.

`--dry` runs small steps on the CPU, ours only, by Triton's interpreter (`TRITON_INTERPRET=1`) and our own.
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import vllm_v4
from rich.console import Console
from rich.table import Table
from sglang_step import Case, Step

SIDES = "theirs", "ours"
CACHES = {"bf16": "flashmla_sparse", "fp8": "flashmla_kv"}
PROMPTS = (((0, 4096),), 16), (((0, 4096),), 128), (((6000, 700), (3000, 1300)), 16)


def decode(batch: int, heads: int, cache: str) -> Case:
    """A decode step whose contexts lie apart, some shorter than the selection."""
    before = torch.linspace(1000, 16000, batch).long().tolist() if batch > 1 else [16000]
    return Case(tuple((n, 1) for n in before), heads, cache, CACHES[cache])


CASES = [
    decode(batch, heads, cache)
    for cache in CACHES
    for batch, heads in ((1, 16), (16, 16), (64, 16), (16, 64), (16, 128))
]
CASES += [
    Case(lengths, heads, cache, backend, "extend")
    for cache, backend in (*CACHES.items(), ("fp8", "flashmla_sparse"))
    for lengths, heads in PROMPTS
]
CASES += [replace(decode(16, 16, cache), topk_v2=False) for cache in CACHES]
SMALL = ("decode", ((20, 1), (150, 1))), ("extend", ((0, 40),)), ("extend", ((70, 3), (5, 20)))
DRY = [
    Case(lengths, 16, cache, backend, mode, topk=32)
    for cache, backend in CACHES.items()
    for mode, lengths in SMALL
]
DRY += [Case(lengths, 16, "fp8", "flashmla_sparse", mode, topk=32) for mode, lengths in SMALL[1:]]


def prepare(dry: bool) -> list[str]:
    """Load the plugin as SGLang does; returns what it hooked.

    Raises:
        RuntimeError: SGLang did not find the plugin, or was told not to use it.
    """
    if dry:
        stand_in_for_the_gpu()
    logging.getLogger("dsl_kernels").setLevel(logging.INFO)
    from sglang.srt.plugins import load_plugins
    from sglang.srt.plugins.hook_registry import HookRegistry

    load_plugins()
    if not HookRegistry._patched:
        raise RuntimeError("install dsl_kernels beside SGLang and set SGLANG_PLUGINS=dsl_kernels")
    return sorted(HookRegistry._patched)


def stand_in_for_the_gpu() -> None:
    """What SGLang asks of a GPU and of packages that only import with one, for `--dry`."""
    os.environ |= {"DSL_KERNELS_EXECUTOR": "interpreter", "TORCHDYNAMO_DISABLE": "1"}
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    sys.modules.update(__import__("engine_stubs").modules("sgl_kernel"))
    from sglang.kernels.ops.attention.dsv4 import topk
    from sglang.srt.layers.attention.dsa.dsa_indexer import Indexer
    from sglang.srt.layers.attention.dsa_backend import DeepseekSparseAttnBackend

    # Plans are for SGLang's own kernels, and 64 heads need no padding.
    topk.plan_topk_v2 = DeepseekSparseAttnBackend._compute_flashmla_metadata = lambda *_, **__: None
    Indexer._pad_heads_for_deep_gemm = lambda _, q, weights: (q.as_subclass(torch.Tensor), weights, len(q))


def without_missing(cases: list[Case]) -> list[Case]:
    """The cases without parts of SGLang that do not work here; says which and why."""
    try:
        import deep_gemm

        print("DeepGEMM for", deep_gemm.get_num_sms(), "SMs", flush=True)
    except Exception:
        traceback.print_exc()
        os.environ["SGLANG_FP8_PAGED_MQA_LOGITS_TORCH"] = "1"
    try:
        from sglang.kernels.ops.attention.dsv4.topk import plan_topk_v2

        plan_topk_v2(torch.ones(1, dtype=torch.int32, device="cuda"))
    except Exception:
        traceback.print_exc()
        return [replace(case, topk_v2=False) for case in cases]
    return cases


class Switch:
    """Turns our functions on and off behind the hooks, and counts who served each call."""

    def __init__(self) -> None:
        from dsl_kernels.integrations import _seams

        self.seams: Any = _seams
        self.calls: Counter[str] = Counter()
        call = self.seams.Taken.__call__

        def counted(taken: Any, theirs: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            asked: list[bool] = []

            def watched(*own: Any, **named: Any) -> Any:
                asked.append(True)
                return theirs(*own, **named)

            out = call(taken, watched, *args, **kwargs)
            self.calls[f"{taken.what}: {'SGLang' if asked else 'dsl_kernels'}"] += 1
            return out

        self.seams.Taken.__call__ = counted

    @contextmanager
    def to(self, side: str) -> Iterator[None]:
        self.seams.hopper_or_no_gpu = lambda: side == "ours"
        self.calls.clear()
        yield


def timer(call: Callable[[], Any]) -> tuple[str, Callable[[], float]]:
    """How us of a call are taken, and a function that takes them."""
    try:
        return "graph", vllm_v4.captured(call)
    except Exception as error:
        print("no graph:", type(error).__name__, *str(error).splitlines()[:1], flush=True)
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def launched() -> float:
        start.record()
        for _ in range(vllm_v4.REPLAYS):
            call()
        end.record()
        end.synchronize()
        return 1e3 * start.elapsed_time(end) / vllm_v4.REPLAYS

    return "launches", launched


@torch.inference_mode()
def compared(case: Case, switch: Switch, dry: bool) -> dict[str, Any]:
    """The row of a case."""
    step = Step(case, "cpu" if dry else "cuda")
    row: dict[str, Any] = {**asdict(case), "requests": len(case.lengths), "queries": len(step.request)}
    came: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    timers: dict[str, dict[str, tuple[str, Callable[[], float]]]] = {}
    for side in SIDES[dry:]:
        row[side] = {}
        try:
            with switch.to(side):
                ids = step.select()
                out = step.attend(ids)
                row[side] = {**step.check(ids, out), "served": sorted(switch.calls)}
                came[side] = ids.sort(1).values, out.double()
                if not dry:
                    timers[side] = {"indexer": timer(step.select), "layer": timer(partial(step.attend, ids))}
                    row[side]["timed"] = {part: how for part, (how, _) in timers[side].items()}
        except Exception as error:
            traceback.print_exc()
            row[side]["failed"] = f"{type(error).__name__}: {error}"[:300]
    if len(came) == len(SIDES):
        (ids, out), (others, their) = (came[side] for side in SIDES)
        same = (ids == others).all(1)
        row["same_rows"] = float(same.double().mean())
        row["apart"] = float((out - their)[same].norm() / out[same].norm()) if bool(same.any()) else None
    for part in ("indexer", "layer"):
        us: dict[str, list[float]] = {side: [] for side in timers}
        for _round in range(vllm_v4.ROUNDS):
            for side, of in timers.items():
                with switch.to(side):
                    us[side].append(of[part][1]())
        for side, each in us.items():
            row[side].setdefault("us", {})[part] = statistics.median(each)
    return row


def table(rows: list[dict[str, Any]]) -> Table:
    """A line for each case; a pair is SGLang's and ours."""
    shown = Table(box=None)
    for name in ("step", "requests", "queries", "heads", "cache, backend", "us indexer", "us layer", "error"):
        shown.add_column(name)
    for name in ("missed", "wrong", "same", "apart", "ours served", "failed"):
        shown.add_column(name)
    for row in rows:
        sides = [row.get(side, {}) for side in SIDES]
        us = [side.get("us", {}) for side in sides]
        named = [*({part: each.get(part) for part in ("indexer", "layer")} for each in us)]
        cells = [[each[part] for each in named] for part in ("indexer", "layer")]
        cells += [[side.get(key) for side in sides] for key in ("error", "missed", "wrong_rows")]
        pairs = [" / ".join("-" if v is None else f"{v:.3g}" for v in pair) for pair in cells]
        served = sides[1].get("served", [])
        shown.add_row(
            row["mode"],
            *(str(row.get(key, "-")) for key in ("requests", "queries", "heads")),
            f"{row['cache']}, {row['backend']}{'' if row['topk_v2'] else ', first top-k'}",
            *pairs,
            *("-" if row.get(key) is None else f"{row[key]:.2g}" for key in ("same_rows", "apart")),
            f"{sum(each.endswith('dsl_kernels') for each in served)} of {len(served)}",
            " ".join(n for n, of in ((*zip(SIDES, sides, strict=True), ("both", row))) if "failed" in of),
        )
    return shown


def main(
    out: Annotated[Path | None, typer.Option(help="The rows as JSON.")] = None,
    dry: Annotated[bool, typer.Option(help="Small steps on the CPU, ours only.")] = False,
    again: Annotated[bool, typer.Option(help="Go on after the rows of `out`.")] = False,
) -> None:
    """Compare both sides in each step; exits with 3 if the GPU can do no more in this process."""
    from importlib.metadata import version

    console = Console(width=200)
    hooked, switch = prepare(dry), Switch()
    console.print(*hooked, sep="\n")
    rows: list[dict[str, Any]] = json.loads(out.read_text())["rows"] if again and out is not None else []
    result = {
        "gpu": "none" if dry else torch.cuda.get_device_name(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "sglang": version("sglang"),
        "torch": torch.__version__,
        "hooked": hooked,
        "rows": rows,
    }
    for case in (DRY if dry else without_missing(CASES))[len(rows) :]:
        began = time.perf_counter()
        try:
            rows.append(compared(case, switch, dry))
        except Exception as error:
            traceback.print_exc()
            rows.append({**asdict(case), "failed": f"{type(error).__name__}: {error}"[:300]})
        print(f"{time.perf_counter() - began:.1f} s", json.dumps(rows[-1]), flush=True)
        # What came is kept: a kernel that reads elsewhere ends all that its process does on the GPU.
        if out is not None:
            out.write_text(json.dumps(result, indent=1) + "\n")
        try:
            if not dry:
                torch.cuda.synchronize()
        except RuntimeError as error:
            raise typer.Exit(3) from error
    console.print(table(rows))


if __name__ == "__main__":
    typer.run(main)
