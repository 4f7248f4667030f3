"""Time a whole step under a CUDA graph, its three ops alone, the Triton baseline and the ceilings."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

import torch

from dsl_kernels import dsa, ops
from dsl_kernels.arguments import checked
from dsl_kernels.errors import DslKernelError, InvalidArgumentError
from dsl_kernels.kernels.lightning_indexer.problem import PAGE
from dsl_kernels_lab.steps import StepInputs, StepSize, draw

from ..arguments import require_device
from . import bench, calibrate

CONTEST_PAGES = 11923
DEVICE = "cuda"

# Gives the turns of a rotation that fetches a kernel's data in one way.
Ceiling = Callable[[calibrate.Setting], Sequence[bench.Call]]


@checked
def touched_bytes(size: StepSize) -> float:
    """Bytes that a decode step reads of the cache of which it reads less: a rotation must evict them."""
    row = 656 if size.kv == "fp8" else 1152
    return min(size.batch * size.context * 132.0, float(size.queries * min(size.topk, size.context) * row))


@checked
def pool(size: StepSize, sets: int = 1) -> StepSize:
    """`size` with its own cache pages for each of `sets` turns, within half of the free memory."""
    if size.kind != "decode":
        return size
    least = max(size.pages, size.batch * size.pages_per_sequence, CONTEST_PAGES)
    apart = max(least, sets * size.batch * size.pages_per_sequence)
    if apart > least and torch.cuda.is_available():
        page = size.bytes(1, cache=True, index_cache=True) / size.pool
        apart = max(least, min(apart, int(torch.cuda.mem_get_info()[0] / 2 / page)))
    return replace(size, pages=apart)


@checked
def step_sets(size: StepSize, seed: int = 0) -> list[StepInputs]:
    """Inputs of a step on the GPU, in enough sets to rotate past the L2.

    Raises:
        ExecutorUnavailableError: there is no GPU.
    """
    require_device("device", DEVICE)
    sets = bench.turns(touched_bytes(size)) if size.kind == "decode" else 1
    return draw(pool(size, sets), device=DEVICE, seed=seed, sets=sets)


@checked
def time_step(sets: list[StepInputs], *, baseline: bool = True, parts: bool = True) -> dict[str, Any]:
    """Time a step under a CUDA graph, its three ops alone, the baseline and the ceilings, in microseconds.

    `without_attention` is the step without its last op, and `marginal` is what attention adds to that. It
    adds less than its time alone, because it sets up while the previous op drains and finds its ids in the
    L2. A figure that cannot be measured is None, and `notes` says why.

    Raises:
        InvalidArgumentError: there are no inputs.
        ExecutorUnavailableError: there is no GPU.
    """
    require_device("device", DEVICE)
    if not sets:
        raise InvalidArgumentError(
            "sets", expected="inputs of a step", got="none", fix="draw them with step_sets"
        )
    workspace = ops.Workspace()
    outputs = [inputs.run(workspace=workspace) for inputs in sets]
    torch.cuda.synchronize()

    def each(make: Callable[[StepInputs, dsa.StepOutput], bench.Call]) -> list[bench.Call]:
        return [make(inputs, output) for inputs, output in zip(sets, outputs, strict=True)]

    figures: dict[str, Any] = {"turns": len(sets), "notes": []}
    whole = bench.graph_time(each(lambda i, o: lambda: i.run(workspace=workspace, output=o)))
    figures["step"] = whole.to_dict()
    if sets[0].kind != "decode" or not parts:
        return figures
    scratch = [logits(inputs) for inputs in sets]
    figures["ops"] = {
        op: bench.graph_time(calls).us for op, calls in _parts(sets, outputs, scratch, workspace).items()
    }
    figures |= _marginal(whole.us, sets, outputs, scratch, workspace)
    ids = [output.indices for output in outputs]
    caches = [inputs.cache_rows() for inputs in sets]
    pages = [
        inputs.tensors["k_index_cache"].view(torch.uint8).view(inputs.tensors["k_index_cache"].shape[0], -1)
        for inputs in sets
    ]
    tables = live_pages(sets)
    figures["ceilings"] = {
        "gather": time_ceiling(gathers(caches, ids), figures),
        "read": time_ceiling(gathers([{"pages": p} for p in pages], tables), figures),
    }
    if baseline:
        figures["baseline"] = _baseline(sets, outputs, figures)
    return figures


@checked
def time_prompt(inputs: StepInputs) -> dict[str, float]:
    """Time what `dsa.prefill` does before attention, and scoring and selection of all rows alone; in us.

    `together` is scoring and selection as the step chunks them; `apart` is the two kernels one after the
    other, timed in alternation with it. `ratio` is `together` / `apart`, and `noise` its noise. The two
    kernels alone need memory for the logits of all rows.

    Raises:
        InvalidArgumentError: the inputs are not of a prefill step.
        ExecutorUnavailableError: there is no GPU.
    """
    require_device("device", DEVICE)
    if inputs.kind != "prefill":
        raise InvalidArgumentError(
            "inputs", expected="a prefill step", got=f"a {inputs.kind} step", fix="draw one with steps.draw"
        )
    t, workspace = inputs.tensors, ops.Workspace()
    index = (t["q_index"], t["k_index"], t["k_index_scales"], t["weights"], t["k_start"], t["k_end"])
    rows, keys = t["q_index"].shape[0], t["k_index"].shape[0]
    logits = torch.empty(rows, -(-keys // 4) * 4, dtype=torch.float32, device=DEVICE)
    ids = torch.empty(rows, inputs.topk, dtype=torch.int32, device=DEVICE)
    together = partial(dsa._select, *index, ids, None, workspace, workspace)
    score = partial(ops.lightning_indexer_prefill, *index, out=logits, skip_below=inputs.topk)
    select = partial(
        ops.topk_selector, logits, t["k_end"], inputs.topk, row_starts=t["k_start"], absolute=True, out=ids
    )
    pair = bench.paired([together], [score, select], rounds=9)
    # `paired` divides by the number of calls: b_us is half of scoring and selection together.
    return {
        "scoring": bench.graph_time([score], replays=10).us,
        "selection": bench.graph_time([select], replays=10).us,
        "together": pair.a_us,
        "apart": 2 * pair.b_us,
        "ratio": 1 / (2 * pair.ratio),
        "noise": pair.noise / (2 * pair.ratio),
    }


@checked
def time_marginal(sets: list[StepInputs]) -> dict[str, float]:
    """Microseconds of a decode step, of the step without attention, and the difference.

    Raises:
        InvalidArgumentError: there are no inputs, or they are not of a decode step.
        ExecutorUnavailableError: there is no GPU.
    """
    require_device("device", DEVICE)
    if not sets:
        raise InvalidArgumentError(
            "sets", expected="inputs of a step", got="none", fix="draw them with step_sets"
        )
    scratch = [logits(inputs) for inputs in sets]
    workspace = ops.Workspace()
    outputs = [inputs.run(workspace=workspace) for inputs in sets]
    calls = [
        partial(inputs.run, workspace=workspace, output=output)
        for inputs, output in zip(sets, outputs, strict=True)
    ]
    whole = bench.graph_time(calls).us
    return {"step": whole, **_marginal(whole, sets, outputs, scratch, workspace)}


def _marginal(
    whole: float,
    sets: list[StepInputs],
    outputs: list[dsa.StepOutput],
    scratch: list[torch.Tensor],
    workspace: ops.Workspace,
) -> dict[str, float]:
    parts = _parts(sets, outputs, scratch, workspace)
    before = [
        call for turn in zip(parts["lightning_indexer"], parts["topk_selector"], strict=True) for call in turn
    ]
    without = 2 * bench.graph_time(before).us
    return {"without_attention": without, "marginal": whole - without}


def gathers(caches: Sequence[dict[str, torch.Tensor]], ids: Sequence[torch.Tensor]) -> Ceiling:
    """The ceiling that fetches the rows `ids` of each turn's cache."""
    return lambda setting: [
        partial(calibrate.gather, cache, rows, setting) for cache, rows in zip(caches, ids, strict=True)
    ]


def time_ceiling(ceiling: Ceiling, figures: dict[str, Any]) -> float | None:
    """Microseconds of a ceiling by its fastest method; on a failure None, and a note instead of an error."""
    try:
        return calibrate.fastest(ceiling)[0]
    except Exception as error:
        figures["notes"].append(f"no ceiling: {error if isinstance(error, DslKernelError) else repr(error)}")
        return None


@checked
def logits(inputs: StepInputs) -> torch.Tensor:
    """Memory on the GPU for the scores of a decode step."""
    require_device("device", DEVICE)
    _require_decode(inputs)
    b, next_n = inputs.tensors["seq_lens"].shape
    return torch.empty(
        b, next_n, inputs.tensors["block_table"].shape[1] * PAGE, dtype=torch.float32, device=DEVICE
    )


@checked
def live_pages(sets: list[StepInputs]) -> list[torch.Tensor]:
    """The page ids that each step reads; -1 in the rest of its table."""
    tables = []
    for inputs in sets:
        _require_decode(inputs)
        table, lens = inputs.tensors["block_table"], inputs.tensors["seq_lens"]
        live = torch.arange(table.shape[1], device=table.device) < -(-lens.amax(dim=1, keepdim=True) // PAGE)
        tables.append(torch.where(live, table, -1))
    return tables


def _require_decode(inputs: StepInputs) -> None:
    if inputs.kind != "decode":
        raise InvalidArgumentError(
            "inputs", expected="a decode step", got=f"a {inputs.kind} step", fix="draw one with steps.draw"
        )


def _parts(
    sets: list[StepInputs],
    outputs: list[dsa.StepOutput],
    scratch: list[torch.Tensor],
    workspace: ops.Workspace,
) -> dict[str, list[bench.Call]]:
    """The calls of each op, as the step makes them."""
    parts: dict[str, list[bench.Call]] = {"lightning_indexer": [], "topk_selector": [], "sparse_mla": []}
    for inputs, output, logits in zip(sets, outputs, scratch, strict=True):
        t, rows = inputs.tensors, inputs.tensors["seq_lens"].numel()
        score = (t["q_index"], t["k_index_cache"], t["weights"], t["seq_lens"], t["block_table"])
        attend = (t["q_nope"], t["q_pe"], t["kv"], output.indices)
        options = {
            "sm_scale": inputs.sm_scale,
            "kpe": t.get("kpe"),
            "attn_sink": t.get("attn_sink"),
            "lse_base": inputs.lse_base,
        }

        def indexer(score: Any = score, logits: Any = logits, k: int = inputs.topk) -> None:
            ops.lightning_indexer(*score, out=logits, skip_below=k, workspace=workspace)

        def selector(
            t: Any = t, logits: Any = logits, o: Any = output, k: int = inputs.topk, rows: int = rows
        ) -> None:
            ops.topk_selector(
                logits.view(rows, -1),
                t["seq_lens"].view(rows),
                k,
                block_table=t["block_table"],
                page_size=PAGE,
                next_n=t["seq_lens"].shape[1],
                out=o.indices,
                workspace=workspace,
            )

        def attention(attend: Any = attend, o: Any = output, options: Any = options) -> None:
            ops.sparse_mla(*attend, **options, out=o.out, lse=o.lse, workspace=workspace)

        for op, call in (
            ("lightning_indexer", indexer),
            ("topk_selector", selector),
            ("sparse_mla", attention),
        ):
            parts[op].append(call)
    return parts


@lru_cache(maxsize=8)
def of_benchmarks(name: str) -> ModuleType | None:
    """A module of the checkout's folder `benchmarks`; None where it does not exist."""
    root = bench.checkout()
    path = root / "benchmarks" / f"{name}.py" if root else None
    if path is None or not path.is_file():
        return None
    spec = importlib.util.spec_from_file_location(f"dsl_kernels_{name}", path)
    if spec is None or spec.loader is None:
        return None
    module = importlib.util.module_from_spec(spec)
    import sys

    # Triton and dataclasses look up a function's module by its name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def baseline_module() -> ModuleType | None:
    """benchmarks/triton_sparse_mla.py of the checkout; None where it or Triton is missing."""
    return of_benchmarks("triton_sparse_mla") if importlib.util.find_spec("triton") else None


def _baseline(
    sets: list[StepInputs], outputs: list[dsa.StepOutput], figures: dict[str, Any]
) -> dict[str, Any] | None:
    if sets[0].form != "bf16":
        figures["notes"].append("the Triton baseline reads bf16 caches only")
        return None
    given = [
        {
            **inputs.cache_rows(),
            "q_nope": inputs.tensors["q_nope"],
            "q_pe": inputs.tensors["q_pe"],
            "indices": output.indices,
        }
        for inputs, output in zip(sets, outputs, strict=True)
    ]
    return time_baseline(given, sets[0].sm_scale, figures["notes"])


# (queries, heads, topk) -> the Triton attention's best setting, found on the first inputs of these sizes.
_settings: dict[tuple[int, int, int], list[Any]] = {}


@checked
def time_baseline(given: list[dict[str, Any]], sm_scale: float, notes: list[str]) -> dict[str, Any] | None:
    """Time the project's Triton attention at its best setting; None, with a note, where it cannot run."""
    module = baseline_module()
    if module is None:
        notes.append("no Triton baseline: it needs a checkout and Triton")
        return None
    t, heads, _ = given[0]["q_nope"].shape
    topk = given[0]["indices"].shape[1]
    calls = _baseline_calls(module, given, sm_scale)

    def run(setting: Any, splits: int) -> None:
        for call in calls:
            call(setting, splits)

    def timed(call: bench.Call) -> float:
        return bench.graph_time([call], replays=10).us

    known = _settings.get((t, heads, topk))
    try:
        if known is None:
            us, *known = module.best_setting(run, timed, t, heads, topk)
            _settings[(t, heads, topk)] = known
        else:
            us = timed(partial(run, *known))
    except Exception as error:
        notes.append(f"no Triton baseline: {error!r}")
        return None
    setting, splits = known
    return {"us": us / len(given), "setting": str(setting), "splits": splits}


def _baseline_calls(module: ModuleType, given: list[dict[str, Any]], sm_scale: float) -> list[partial[None]]:
    """One function of (setting, splits) per turn; all write to the same outputs."""
    t, heads, _ = given[0]["q_nope"].shape
    out, lse = torch.empty_like(given[0]["q_nope"]), torch.empty(t, heads, dtype=torch.float32, device=DEVICE)
    scratch = module.workspace(t, heads, DEVICE, splits=max(4, min(128, 512 // t)))
    names = ("q_nope", "q_pe", "ckv", "kpe", "indices")
    return [
        partial(module.sparse_mla, *(c[name] for name in names), sm_scale, out, lse, scratch) for c in given
    ]


@checked
def baseline_turns(
    given: list[dict[str, Any]], sm_scale: float, notes: list[str]
) -> tuple[list[bench.Call], torch.Tensor] | None:
    """The project's Triton attention at its best setting: a call per turn, and its output.

    None, with a note, where it cannot run.
    """
    module = baseline_module()
    if module is None or time_baseline(given, sm_scale, notes) is None:
        return None
    t, heads, _ = given[0]["q_nope"].shape
    calls = _baseline_calls(module, given, sm_scale)
    setting = _settings[(t, heads, given[0]["indices"].shape[1])]
    return [partial(call, *setting) for call in calls], calls[0].args[6]
