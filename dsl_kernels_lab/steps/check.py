"""The check of a DSA step: every op against its reference on the op's own inputs, and the whole chain.

Two correct kernels may select different tokens at the boundary, as their scores differ in the last bits. So
the chain is judged by the scores of the selected tokens, slot by slot within 1e-2 absolute or relative (the
rule of flashinfer-bench). Its output must only match the reference's if both selected the same tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch

from dsl_kernels import dsa
from dsl_kernels.arguments import checked
from dsl_kernels.kernels.lightning_indexer.problem import PAGE
from dsl_kernels.ops import Workspace
from dsl_kernels.problems.base import Comparison

from .. import oracles
from . import StepInputs

SLOT_TOLERANCE = 1e-2
OUT_TOLERANCE = 3e-3


@checked
def run_checked(
    inputs: StepInputs, *, sample: int = 4, **options: Any
) -> tuple[dsa.StepOutput, dict[str, Comparison]]:
    """Run a step, and compare each op and the whole chain with the references.

    Args:
        inputs: the step.
        sample: how many sequences, or rows of a prefill, to compare, spread evenly from the first to the
            last.
        options: arguments of `inputs.run`, such as `executor`; not `workspace`.

    Returns:
        The step's output, and comparisons by op name and for "chain".
    """
    workspace = Workspace()
    output = inputs.run(workspace=workspace, **options)
    return output, check(inputs, output, workspace, sample)


@checked
def check(
    inputs: StepInputs, output: dsa.StepOutput, workspace: Workspace, sample: int = 4
) -> dict[str, Comparison]:
    """Compare the output of a step with the references.

    Args:
        inputs: the step.
        output: its output.
        workspace: the workspace of its run, which still has the logits.
        sample: as in `run_checked`.

    Returns:
        Comparisons by op name and for "chain".
    """
    part = (
        _decode_part(inputs, workspace, sample)
        if inputs.kind == "decode"
        else _prefill_part(inputs, workspace, sample)
    )
    rows = part.pop("rows")
    got = {"indices": output.indices[rows], "out": output.out[rows], "lse": output.lse[rows]}
    comparisons = {
        "lightning_indexer": compare(
            "lightning_indexer", inputs.kind, part["indexer"], {"logits": part["logits"]}
        )
    }
    selector = part["selector"]
    comparisons["topk_selector"] = compare("topk_selector", "default", selector, {"indices": got["indices"]})
    attention = _attention(inputs, rows, got["indices"])
    comparisons["sparse_mla"] = compare("sparse_mla", inputs.form, attention, got)
    comparisons["chain"] = _chain(inputs, part, rows, got)
    return comparisons


def _spread(count: int, sample: int) -> torch.Tensor:
    """At most `sample` indices out of `count`, the first and the last among them."""
    at = torch.linspace(0, count - 1, min(count, max(1, sample)), dtype=torch.float32, device="cpu")
    return at.round().long().unique()


def _decode_part(inputs: StepInputs, workspace: Workspace, sample: int) -> dict[str, Any]:
    t = inputs.tensors
    device = t["seq_lens"].device
    b, next_n = t["seq_lens"].shape
    picked = _spread(b, sample).to(device)
    rows = (picked[:, None] * next_n + torch.arange(next_n, device=device)).flatten()
    width = t["block_table"].shape[1] * PAGE
    logits = workspace.get("logits", (b, next_n, width), torch.float32, device, zeroed=False)[picked]
    lens, table = t["seq_lens"][picked], t["block_table"][picked]
    cache, local = _pages_in_use(t["k_index_cache"], table, lens)
    return {
        "rows": rows,
        "logits": logits,
        "indexer": {
            "q": t["q_index"][picked],
            "k_cache": cache,
            "weights": t["weights"][picked],
            "seq_lens": lens,
            "block_table": local,
            "skip_below": inputs.topk,
        },
        "selector": {
            "logits": logits.reshape(-1, width),
            "row_starts": torch.zeros_like(lens).flatten(),
            "row_ends": lens.flatten(),
            "block_table": table,
            "next_n": next_n,
            "page_size": PAGE,
            "absolute": 0,
            "k": inputs.topk,
        },
    }


def _pages_in_use(
    cache: torch.Tensor, table: torch.Tensor, lens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The pages that the table names within the lengths, flat, and the table with their new numbers."""
    live = torch.arange(table.shape[1], device=table.device) < -(-lens.amax(dim=1, keepdim=True) // PAGE)
    pages = table[live].unique()
    local = torch.searchsorted(pages, table.clamp(min=0)).to(torch.int32)
    used = cache.view(torch.uint8).view(cache.shape[0], -1)[pages.long()]
    return (used, local) if len(pages) else (cache.view(torch.uint8).view(cache.shape[0], -1)[:1], local)


def _prefill_part(inputs: StepInputs, workspace: Workspace, sample: int) -> dict[str, Any]:
    """Rows of the last chunk, whose logits the workspace still has."""
    t = inputs.tensors
    device, keys, total = t["k_index"].device, t["k_index"].shape[0], t["q_index"].shape[0]
    # The chunks of `dsa.prefill` by its default.
    parts, lanes, shape = dsa._chunks(total, keys, None, concurrent=device.type == "cuda")
    last = parts[-1]
    picked = _spread(last.stop - last.start, sample).to(device)
    rows = picked + last.start
    chunks = workspace.get("logits", shape, torch.float32, device, zeroed=False)
    logits = chunks[(len(parts) - 1) % lanes][picked]
    starts, ends = t["k_start"][rows], t["k_end"][rows]
    return {
        "rows": rows,
        "logits": logits,
        "indexer": {
            "q": t["q_index"][rows],
            "k": t["k_index"],
            "k_scales": t["k_index_scales"],
            "weights": t["weights"][rows],
            "k_start": starts,
            "k_end": ends,
            "skip_below": inputs.topk,
        },
        "selector": {
            "logits": logits,
            "row_starts": starts,
            "row_ends": ends,
            "block_table": starts.new_zeros(1, 1),
            "next_n": 1,
            "page_size": 0,
            "absolute": 1,
            "k": inputs.topk,
        },
    }


class AttentionInputs(Protocol):
    """The part of a step's inputs that attention needs."""

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]: ...

    @property
    def sm_scale(self) -> float: ...

    @property
    def lse_base(self) -> str: ...

    def cache_rows(self) -> dict[str, torch.Tensor]: ...


def _attention(inputs: AttentionInputs, rows: torch.Tensor, indices: torch.Tensor) -> dict[str, Any]:
    """Inputs of the sparse_mla problem, with a cache of the selected tokens only."""
    t = inputs.tensors
    tokens = indices[indices >= 0].unique().long()
    local = torch.where(indices >= 0, torch.searchsorted(tokens, indices.long().clamp(min=0)), -1).to(
        torch.int32
    )
    cache = {
        name: values[tokens] if len(tokens) else values[:1] for name, values in inputs.cache_rows().items()
    }
    heads = t["q_nope"].shape[1]
    sink = t.get("attn_sink")
    if sink is None:
        sink = torch.full((heads,), float("-inf"), dtype=torch.float32, device=rows.device)
    return {
        "q_nope": t["q_nope"][rows], "q_pe": t["q_pe"][rows], **cache, "indices": local,
        "attn_sink": sink,
        "sm_scale": inputs.sm_scale, "lse_scale": 1.0 if inputs.lse_base == "2" else 0.6931471805599453,
    }  # fmt: skip


def compare(op: str, form: str, given: Mapping[str, Any], got: Mapping[str, torch.Tensor]) -> Comparison:
    """Compare outputs with the reference of an op's problem on these inputs, on any devices."""
    oracle = oracles.get(op)
    expected = oracle.reference(form, given)
    placed = {name: got[name].to(expected[name].device) for name in expected}
    here = next(iter(expected.values())).device
    moved = {
        name: value.to(here) if isinstance(value, torch.Tensor) else value for name, value in given.items()
    }
    return oracle.compare(form, moved, placed, expected)


def _chain(
    inputs: StepInputs, part: Mapping[str, Any], rows: torch.Tensor, got: Mapping[str, torch.Tensor]
) -> Comparison:
    """Judge the selection by float64 scores, and the output if both selected the same tokens."""
    result = Comparison()
    scored = oracles.get("lightning_indexer").reference(inputs.kind, {**part["indexer"], "skip_below": 0})[
        "logits"
    ]
    scored = scored.reshape(len(rows), -1)
    selector = {**part["selector"], "logits": scored.to(part["logits"].device)}
    wanted = oracles.get("topk_selector").reference("default", selector)["indices"].to(rows.device)
    wrong, differing, total = 0, 0, 0
    for row in range(len(rows)):
        mine, theirs = (ids[row][ids[row] >= 0].long() for ids in (got["indices"], wanted))
        if len(mine) != len(theirs) or len(mine.unique()) != len(mine):
            result.demand(
                f"row {int(rows[row])} selects {len(theirs)} distinct tokens",
                False,
                f"got {len(mine.unique())}",
            )
            continue
        columns = [_positions(ids, selector, row) for ids in (mine, theirs)]
        if not _inside(columns[0], selector, row):
            result.demand(
                f"row {int(rows[row])} selects its own tokens",
                False,
                "an id is outside of the row's pages or its length",
            )
            continue
        total += len(theirs)
        differing += int((~torch.isin(mine, theirs)).sum())
        scores = scored[row].to(rows.device)
        values = [scores[column].sort(descending=True).values for column in columns]
        gap = (values[0] - values[1]).abs()
        bad = ~(gap <= SLOT_TOLERANCE) & ~(gap <= SLOT_TOLERANCE * values[1].abs())
        wrong += int(bad.sum())
    result.require("slots whose score is off", float(wrong), 0.0)
    result.figures["tokens selected differently"] = differing / max(1, total)
    attention = _attention(inputs, rows, wanted.to(torch.int32))
    expected = oracles.get("sparse_mla").reference(inputs.form, attention)["out"]
    norm = expected.norm()
    error = float((got["out"].to(expected.device).double() - expected).norm() / norm) if norm > 0 else 0.0
    if differing:
        result.figures["out relative error"] = error
    else:
        result.require("out relative error", error, OUT_TOLERANCE)
    return result


def _inside(columns: torch.Tensor, selector: Mapping[str, Any], row: int) -> bool:
    first, end = int(selector["row_starts"][row]), int(selector["row_ends"][row])
    return bool(((columns >= first) & (columns < end)).all())


def _positions(ids: torch.Tensor, selector: Mapping[str, Any], row: int) -> torch.Tensor:
    """The columns of global ids in the scores; -1 for an id outside of the row's pages."""
    page = selector["page_size"]
    if page == 0:
        return ids
    length = int(selector["row_ends"][row])
    table = selector["block_table"][row // selector["next_n"]][: -(-length // page)].long()
    order = table.argsort()
    slot = torch.searchsorted(table[order], ids // page).clamp(max=len(table) - 1)
    return torch.where(table[order][slot] == ids // page, order[slot] * page + ids % page, -1)
