"""Attack the ops on this machine's GPU as a careless host process would, and print a table of what held.

    python scripts/attack_gpu.py [--only REGEX] [--json FILE]

Threads that share a stream or a workspace, caches that change at the same address, misaligned operands,
process-wide defaults and modes, fake tensors, block tables of every page count. Each attack runs in a process
of its own, as a GPU fault ends its CUDA context; all of them run at once. Variants must be compiled
beforehand (`python -m dsl_kernels warmup`, or DSL_KERNELS_BUNDLE_DIR).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from dsl_kernels import dsa  # noqa: E402
from dsl_kernels.errors import DslKernelError  # noqa: E402
from dsl_kernels.ops import (  # noqa: E402
    Workspace,
    lightning_indexer,
    lightning_indexer_prefill,
    sparse_mla,
    topk_selector,
)
from dsl_kernels_lab import oracles  # noqa: E402
from dsl_kernels_lab.oracles import Workload  # noqa: E402

Row = tuple[str, int, int]
"""What was tried, how often, and how often the result was wrong."""

THREADS, STEPS = 8, 200
LIMIT_S = 100
ATTACKS: dict[str, Callable[[], Iterator[Row]]] = {}


def attack(function: Callable[[], Iterator[Row]]) -> Callable[[], Iterator[Row]]:
    ATTACKS[function.__name__] = function
    return function


def make(op: str, form: str, seed: int = 0, **params: Any) -> dict[str, Any]:
    """Inputs of a problem on the GPU."""
    generator = torch.Generator().manual_seed(seed)
    drawn = oracles.get(op).make(Workload("attack", "edge", form, params), generator)
    return {n: v.cuda() if isinstance(v, torch.Tensor) else v for n, v in drawn.items()}


def step(lens: list[int], seed: int = 0, pages: int = 256, width: int = 0) -> dict[str, Any]:
    """Arguments of a decode step: one query per sequence, 16 heads, at least `width` pages in the table."""
    lens_of = [[length] for length in lens]
    index = make("lightning_indexer", "decode", seed, lens=lens_of, heads=64, pages=pages, spare_pages=width)
    table = index["block_table"][:, :width].contiguous() if width else index["block_table"]
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).bfloat16().cuda()

    return {
        "q_index": index["q"], "k_index_cache": index["k_cache"], "weights": index["weights"],
        "seq_lens": index["seq_lens"], "block_table": table, "q_nope": normal(len(lens), 16, 512),
        "q_pe": normal(len(lens), 16, 64), "kv": normal(pages * 64, 576), "sm_scale": 0.1, "topk": 2048,
    }  # fmt: skip


def same(a: dsa.StepOutput, b: dsa.StepOutput) -> torch.Tensor:
    """Whether two steps agree bit for bit, as a tensor on the device."""
    return (a.indices == b.indices).all() & (a.out == b.out).all() & (a.lse == b.lse).all()


def refused(call: Callable[[], Any]) -> bool:
    try:
        call()
        torch.cuda.synchronize()
    except DslKernelError:
        return True
    return False


def threads_at_once(count: int, work: Callable[[int], None]) -> list[BaseException]:
    """Run work(0) to work(count - 1) in threads that start together; returns the raised exceptions."""
    raised: list[BaseException] = []
    barrier = threading.Barrier(count)

    def body(i: int) -> None:
        barrier.wait()
        try:
            work(i)
        except BaseException as error:
            raised.append(error)

    running = [threading.Thread(target=body, args=(i,)) for i in range(count)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    torch.cuda.synchronize()
    return raised


def steps_of_threads(what: str, workspace: Workspace | None, own_streams: bool) -> Iterator[Row]:
    inputs = [step([9000 + 100 * i, 3000, 100, 0], i) for i in range(THREADS)]
    wanted = [dsa.decode(**each, workspace=Workspace()) for each in inputs]
    torch.cuda.synchronize()
    wrong = torch.zeros(THREADS, dtype=torch.int32, device="cuda")
    done = [0] * THREADS

    def work(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream() if own_streams else torch.cuda.current_stream()):
            for _ in range(STEPS):
                wrong[i] += (~same(dsa.decode(**inputs[i], workspace=workspace), wanted[i])).int()
                done[i] += 1

    raised = threads_at_once(THREADS, work)
    lost = THREADS * STEPS - sum(done)
    yield (
        what + (f" ({type(raised[0]).__name__})" if raised else ""),
        THREADS * STEPS,
        int(wrong.sum()) + lost,
    )


@attack
def threads_on_one_stream() -> Iterator[Row]:
    yield from steps_of_threads("decode steps, 8 threads, one stream", None, False)


@attack
def threads_on_own_streams() -> Iterator[Row]:
    yield from steps_of_threads("decode steps, 8 threads, a stream each", None, True)


@attack
def threads_with_one_workspace() -> Iterator[Row]:
    yield from steps_of_threads("decode steps, 8 threads, one stream, one Workspace", Workspace(), False)


@attack
def streams_with_one_workspace() -> Iterator[Row]:
    yield from steps_of_threads("decode steps, 8 threads, a stream each, one Workspace", Workspace(), True)


@attack
def short_threads() -> Iterator[Row]:
    inputs = step([3000, 100])
    wanted = dsa.decode(**inputs)
    wrong, allocated = 0, []
    for _ in range(20):
        for _ in range(25):
            threads_at_once(1, lambda _: dsa.decode(**inputs))
        wrong += not bool(same(dsa.decode(**inputs), wanted))
        allocated.append(torch.cuda.memory_allocated())
    grown = sum(size > allocated[0] for size in allocated)
    yield "500 short threads leave no memory behind", 20, grown + wrong


@attack
def changed_caches() -> Iterator[Row]:
    drawn = make("sparse_mla", "bf16", t=4, heads=16, topk=512, n=4096)
    q, pe, ids = drawn["q_nope"], drawn["q_pe"], drawn["indices"]
    pool = torch.randn(4096 * 1152, device="cuda").bfloat16()
    kv, wrong, tried = torch.empty(0, dtype=torch.bfloat16, device="cuda"), 0, 0
    for rows, stride in ((4096, 576), (4096, 640), (3000, 576), (4096, 1152), (4096, 584), (1024, 576)):
        kv.set_(pool.untyped_storage(), 0, (rows, 576), (stride, 1))
        some = ids.clamp(max=rows - 1)
        out = sparse_mla(q, pe, kv, some, sm_scale=0.1)[0]
        wanted = sparse_mla(q, pe, kv.clone(), some, sm_scale=0.1)[0]
        tried, wrong = tried + 1, wrong + (not torch.equal(out, wanted))
    yield "a cache of another shape at the same address", tried, wrong
    cache = torch.randn(4096, 576, device="cuda").bfloat16().resize_(1000, 576)
    sparse_mla(q, pe, cache, ids, sm_scale=0.1)
    cache.resize_(4096, 576)
    out, wanted = (sparse_mla(q, pe, each, ids, sm_scale=0.1)[0] for each in (cache, cache.clone()))
    yield "a pool that has grown", 1, int(not torch.equal(out, wanted))


def calls() -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Every op with valid arguments, including outputs."""
    attention = make("sparse_mla", "bf16", t=2, heads=16, topk=128, n=1024, sink=True)
    tokens = make("sparse_mla", "fp8", t=2, heads=16, topk=128, n=1024, sink=True)
    for drawn in (attention, tokens):
        drawn.pop("lse_scale")
        drawn["kv"] = drawn.pop("ckv", None) if "ckv" in drawn else drawn.pop("kv_cache")
        drawn["out"], drawn["lse"] = torch.empty_like(drawn["q_nope"]), torch.empty(2, 16, device="cuda")
    select = make("topk_selector", "default", lens=[3000, 20], k=64, page_size=64, pages=64)
    select["out"] = torch.empty(2, 64, dtype=torch.int32, device="cuda")
    decode = make("lightning_indexer", "decode", lens=[[300], [0]], heads=64, pages=16)
    decode["out"] = torch.zeros(2, 1, decode["block_table"].shape[1] * 64, device="cuda")
    prefill = make("lightning_indexer", "prefill", s=5, skv=300, heads=64)
    prefill["out"] = torch.zeros(5, 300, device="cuda")
    return {
        "sparse_mla bf16": (sparse_mla, attention),
        "sparse_mla fp8": (sparse_mla, tokens),
        "topk_selector": (topk_selector, select),
        "lightning_indexer": (lightning_indexer, decode),
        "lightning_indexer_prefill": (lightning_indexer_prefill, prefill),
    }


class Calls(TorchDispatchMode):
    """A dispatch mode that passes every call on unchanged."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def outputs(result: Any) -> list[torch.Tensor]:
    return [each.clone() for each in (result if isinstance(result, tuple) else (result,))]


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def shifted(tensor: torch.Tensor, by: int) -> torch.Tensor:
    """A copy that begins `by` bytes past a multiple of 512."""
    size = tensor.numel() * tensor.element_size()
    room = torch.empty(size + 64, dtype=torch.uint8, device="cuda")
    return room[by : by + size].view(tensor.dtype).view(tensor.shape).copy_(tensor)


# Operands that kernels access one element at a time, so that any element may come first.
BY_ELEMENT = ("seq_lens", "block_table", "row_starts", "row_ends", "k_start", "k_end")


def misaligned(op: str) -> Iterator[Row]:
    call, arguments = calls()[op]
    wanted = outputs(call(**arguments))
    names = [name for name, value in arguments.items() if isinstance(value, torch.Tensor)]
    wrong = 0
    for name in names:
        by_element = name in BY_ELEMENT or (name == "out" and "sparse" not in op)
        for by in (4, 8):
            moved = {**arguments, name: shifted(arguments[name], by)}
            if by_element:
                wrong += not equal(outputs(call(**moved)), wanted)
            else:
                wrong += not refused(lambda moved=moved: call(**moved))
            # The context survived, and the same operand at an aligned address is accepted.
            good = {**arguments, name: moved[name].clone()}
            wrong += not equal(outputs(call(**good)), wanted)
    yield f"misaligned operands of {op}: refused, or right where 4 bytes do", 4 * len(names), wrong


for _op in (
    "sparse_mla bf16",
    "sparse_mla fp8",
    "topk_selector",
    "lightning_indexer",
    "lightning_indexer_prefill",
):
    ATTACKS[f"misaligned {_op}"] = lambda op=_op: misaligned(op)


@attack
def overlapping_outputs() -> Iterator[Row]:
    call, arguments = calls()["sparse_mla bf16"]
    tried = [
        lambda: call(**{**arguments, "out": arguments["q_nope"]}),
        lambda: call(**{**arguments, "out": arguments["kv"][:32].view(2, 16, 512)}),
        lambda: call(**{**arguments, "lse": arguments["out"].view(torch.float32).view(-1)[:32].view(2, 16)}),
    ]
    yield "outputs over other operands are refused", len(tried), sum(not refused(each) for each in tried)


@attack
def fake_tensors() -> Iterator[Row]:
    """In a process where the op has not run, a fake call must not spoil the real call after it."""
    from dsl_kernels import ops

    every_op, wrong = calls(), 0
    for call, arguments in every_op.values():
        given = {n: v for n, v in arguments.items() if n not in ("out", "lse")}
        scores = call in (lightning_indexer, lightning_indexer_prefill)
        for inside in (True, False):
            wanted = outputs(call(**(arguments if scores else given)))
            ops.clear()
            ops._base._constants.clear()
            mode = FakeTensorMode()
            fakes = {n: mode.from_tensor(v) if isinstance(v, torch.Tensor) else v for n, v in given.items()}
            with mode if inside else contextlib.nullcontext():
                result = call(**fakes)
            shapes = [tensor.shape for tensor in (result if isinstance(result, tuple) else (result,))]
            wrong += shapes != [tensor.shape for tensor in wanted]
            wrong += not equal(outputs(call(**(arguments if scores else given))), wanted)
            torch.cuda.synchronize()
    yield "fake tensors, then real ones", 4 * len(every_op), wrong


@attack
def inputs_without_an_element() -> Iterator[Row]:
    from tests.unit.test_ops import EMPTY, nothing, of_nothing

    wrong = 0
    for case in EMPTY.values():
        wrong += not of_nothing(nothing(*case, device="cuda")())
        torch.cuda.synchronize()
    yield "inputs without an element", len(EMPTY), wrong


@attack
def process_wide_settings() -> Iterator[Row]:
    from dsl_kernels import ops

    inputs, every_op = step([9000, 3000, 100, 0]), calls()

    def everything() -> list[torch.Tensor]:
        ops.clear()
        step_output = dsa.decode(**inputs)
        results = [step_output.indices, step_output.out, step_output.lse]
        for call, arguments in every_op.values():
            # Scores beyond a row's length are uninitialised, so the indexer writes into zeroed outputs.
            scores = call in (lightning_indexer, lightning_indexer_prefill)
            given = {n: v for n, v in arguments.items() if scores or n not in ("out", "lse")}
            results += outputs(call(**given))
        return results

    wanted = everything()
    settings: dict[str, Callable[[], Any]] = {
        "default device cuda": lambda: torch.device("cuda"),
        "default device meta": lambda: torch.device("meta"),
        "inference mode": torch.inference_mode,
        "no grad": torch.no_grad,
        "autocast": lambda: torch.autocast("cuda", dtype=torch.float16),
        "a dispatch mode": Calls,
        "a flop counter": lambda: FlopCounterMode(display=False),
        "a side stream": lambda: torch.cuda.stream(torch.cuda.Stream()),
    }
    torch.cuda.synchronize()
    for name, enter in settings.items():
        yield name, len(wanted), compared(everything, wanted, enter)
    for dtype in (torch.float64, torch.float16, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            yield f"default dtype {dtype}", len(wanted), compared(everything, wanted)
        finally:
            torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield "deterministic algorithms", len(wanted), compared(everything, wanted)
    torch.use_deterministic_algorithms(False)
    torch.set_default_device("cuda")
    yield "set_default_device(cuda)", len(wanted), compared(everything, wanted)
    torch.set_default_device(None)


def compared(
    everything: Callable[[], list[torch.Tensor]],
    wanted: list[torch.Tensor],
    enter: Callable[[], Any] | None = None,
) -> int:
    """How many results differ under a setting; all of them if a call raises."""
    try:
        if enter is None:
            results = everything()
        else:
            with enter():
                results = everything()
        torch.cuda.synchronize()
    except Exception as error:
        print(f"  {type(error).__name__}: {str(error).splitlines()[0][:160]}", file=sys.stderr)
        return len(wanted)
    return sum(not torch.equal(a, b) for a, b in zip(results, wanted, strict=True))


@attack
def block_tables() -> Iterator[Row]:
    problem = oracles.get("topk_selector")
    wrong = failed = 0
    for pages in range(1, 41):
        for k in (64, 512, 2048):
            lens = [pages * 64, pages * 64 - 1, pages * 32, 0]
            drawn = make("topk_selector", "default", pages, lens=lens, k=k, page_size=64, pages=4096, tail=1)
            drawn["block_table"] = drawn["block_table"][:, :pages].contiguous()
            drawn["logits"] = drawn["logits"][:, : pages * 64].contiguous()
            inputs = {n: v.cpu() if isinstance(v, torch.Tensor) else v for n, v in drawn.items()}
            wanted = problem.reference("default", inputs)["indices"]
            try:
                wrong += not torch.equal(topk_selector(**drawn).cpu(), wanted)
            except Exception:
                failed += 1
    yield "selection over tables of 1 to 40 pages, k 64, 512, 2048", 120, wrong + failed
    wrong = 0
    for pages in range(1, 41):
        inputs = step([pages * 64, max(1, pages * 40)], pages, width=pages)
        try:
            wrong += not step_is_right(inputs, dsa.decode(**inputs))
        except Exception:
            wrong += 1
    yield "decode steps over tables of 1 to 40 pages", 40, wrong


def step_is_right(inputs: dict[str, Any], output: dsa.StepOutput) -> bool:
    """Whether each row selects enough distinct tokens of its own pages, and attends over them correctly."""
    problem = oracles.get("sparse_mla")
    for row, length in enumerate(inputs["seq_lens"].flatten().tolist()):
        ids = output.indices[row][output.indices[row] >= 0]
        own = inputs["block_table"][row, : -(-length // 64)]
        if len(ids.unique()) != min(2048, length) or not bool(torch.isin(ids // 64, own).all()):
            return False
    values = {
        "q_nope": inputs["q_nope"], "q_pe": inputs["q_pe"], "ckv": inputs["kv"][:, :512],
        "kpe": inputs["kv"][:, 512:], "indices": output.indices, "attn_sink": torch.full((16,), -math.inf),
        "sm_scale": 0.1, "lse_scale": 1.0,
    }  # fmt: skip
    values = {n: v.cpu() if isinstance(v, torch.Tensor) else v for n, v in values.items()}
    got = {"out": output.out.cpu(), "lse": output.lse.cpu()}
    return problem.compare("bf16", values, got, problem.reference("bf16", values)).ok


def run_one(name: str) -> int:
    """Run one attack in this process, and print its rows as JSON, one per line."""
    torch.cuda.init()
    for what, tried, wrong in ATTACKS[name]():
        torch.cuda.synchronize()
        print(json.dumps([what, tried, wrong]), flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="regular expression searched in the names of the attacks")
    parser.add_argument("--json", type=Path, help="write the table to this file as well")
    parser.add_argument("--run", choices=sorted(ATTACKS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.run:
        return run_one(options.run)
    begin = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    running = {
        name: subprocess.Popen(
            [sys.executable, __file__, "--run", name], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for name in ATTACKS
        if re.search(options.only, name)
    }  # fmt: skip
    rows: list[tuple[str, str, int, int, str]] = []
    for name, process in running.items():
        try:
            out, err = process.communicate(timeout=max(1.0, LIMIT_S - (time.perf_counter() - begin)))
            end = "" if process.returncode == 0 else (err.strip().splitlines() or ["died"])[-1][:120]
        except subprocess.TimeoutExpired:
            process.kill()
            out, _ = process.communicate()
            end = f"no end within {LIMIT_S} s"
        rows += [(name, *json.loads(line), "") for line in out.splitlines() if line.startswith("[")]
        if end:
            rows.append((name, "the process ended early", 1, 1, end))
    width = max(len(row[1]) for row in rows)
    print(f"{torch.cuda.get_device_name()}, {time.perf_counter() - begin:.0f} s")
    for name, what, tried, wrong, why in rows:
        label = f"{what} [{name}]" if why else what
        print(f"{label:<{width + 2}} {wrong:>5} wrong of {tried:<5} {why}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(row[3] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
