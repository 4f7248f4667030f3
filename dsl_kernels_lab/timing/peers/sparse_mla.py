"""Peers of attention: FlashMLA's sparse kernels, FlashInfer's MLA with pages of one token, our Triton."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from dsl_kernels.kernels.lightning_indexer.problem import PAGE
from dsl_kernels.problems.layouts import FP8_TOKEN_BYTES, LATENT_DIM, ROPE_DIM

from .. import bench, measure
from ..grids import Fixture, Point
from . import Contender, Offer, apart, own_or_of_vllm, version

# Numbers of heads of FlashMLA's kernels on Hopper, and those that its newer bf16 kernel also supports.
PADDED_HEADS = (64, 128)
FEW_HEADS = (8, 16, 32)
# FlashInfer is timed up to this many queries: it needs a plan per turn.
MOST_PLANNED = 256
# The Triton kernel is timed up to this product of queries and heads: its settings must be tried first.
MOST_TRITON = 4096 * 16


def flash_mla_calls(form: str, calls: Sequence[Any]) -> list[bench.Call]:
    """FlashMLA's calls on the tensors of ours; each gives out first and lse last, for the padded heads.

    Queries with a number of heads that its kernel does not support are padded outside of the timed calls. Its
    scheduling is not timed either.

    Raises:
        ImportError: neither `flash_mla` nor vLLM's build of it is installed.
    """
    flash_mla, _ = _package()
    few = False
    rows: dict[int, torch.Tensor] = {}
    made: list[bench.Call] = []
    for call in calls:
        if form == "v4":
            made.append(_v4(flash_mla, call.keywords))
            continue
        q_nope, q_pe, cache, ids = call.args
        given, parts = call.keywords, [cache]
        joined = q_nope if q_pe is None else torch.cat([q_nope, q_pe], -1)
        q = joined if few else _padded(joined)
        if form in ("bf16", "nope"):
            if cache.data_ptr() not in rows:
                parts += [] if q_pe is None else [given["kpe"]]
                rows[cache.data_ptr()] = torch.cat(parts, -1).flatten(0, 1).unsqueeze(1)
            operands = rows[cache.data_ptr()], ids.unsqueeze(1), given["sm_scale"]
            if not made:
                few = joined.shape[1] in FEW_HEADS and _runs(
                    flash_mla.flash_mla_sparse_fwd, joined, *operands
                )
                q = joined if few else q
            made.append(partial(flash_mla.flash_mla_sparse_fwd, q, *operands))
            continue
        made.append(
            partial(
                flash_mla.flash_mla_with_kvcache, q.unsqueeze(1), cache.view(-1, PAGE, 1, FP8_TOKEN_BYTES),
                None, None, LATENT_DIM, flash_mla.get_mla_metadata()[0], softmax_scale=given["sm_scale"],
                is_fp8_kvcache=True, indices=ids.unsqueeze(1),
            )
        )  # fmt: skip
    return made


def _package() -> tuple[Any, str]:
    within = "vllm.third_party.flashmla.flash_mla_interface"
    return own_or_of_vllm("flash_mla", within, "flash_mla", "flash-mla")


def _runs(call: Callable[..., Any], *operands: Any) -> bool:
    """Whether a kernel takes these operands: older versions refuse small numbers of heads."""
    try:
        call(*operands)
    except (RuntimeError, ValueError):
        return False
    return True


def _padded(q: torch.Tensor) -> torch.Tensor:
    heads = next(each for each in PADDED_HEADS if each >= q.shape[1])
    return torch.nn.functional.pad(q, (0, 0, 0, heads - q.shape[1])) if heads > q.shape[1] else q


def _v4(flash_mla: Any, given: dict[str, Any]) -> bench.Call:
    return partial(
        flash_mla.flash_mla_with_kvcache,
        _padded(given["q_nope"]).unsqueeze(1),
        given["kv"],
        None,
        None,
        LATENT_DIM,
        flash_mla.get_mla_metadata()[0],
        softmax_scale=given["sm_scale"],
        is_fp8_kvcache=True,
        indices=given["indices"].unsqueeze(1),
        extra_k_cache=given["extra_kv"],
        extra_indices_in_kvcache=given["extra_indices"].unsqueeze(1),
    )


def _flash_mla(point: Point, fixture: Fixture, ours: Sequence[Any]) -> Contender | None:
    if point.form == "v41":
        # FlashMLA has kernels for DeepSeek-V4.1's tokens only on Blackwell.
        return None
    calls, out = flash_mla_calls(point.form, ours), ours[0].keywords["out"]
    t, heads, _ = out.shape
    first = partial(lambda call: call()[0].reshape(t, -1, LATENT_DIM)[:, :heads], calls[0])
    return Contender(_package()[1], calls, lambda: apart(first(), out))


def _flashinfer(point: Point, fixture: Fixture, ours: Sequence[Any]) -> Contender | None:
    t, heads = point.params["t"], point.params["heads"]
    if point.form != "bf16" or t > MOST_PLANNED:
        return None
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    space = torch.empty(128 << 20, dtype=torch.uint8, device=measure.DEVICE)
    calls = []
    for call in ours:
        q_nope, q_pe, cache, ids = call.args
        k = ids.shape[1]
        starts = torch.arange(t + 1, dtype=torch.int32, device=measure.DEVICE)
        wrapper = BatchMLAPagedAttentionWrapper(space, backend="fa3")
        wrapper.plan(
            starts, starts * k, ids.flatten(), torch.full_like(starts[1:], k), heads, LATENT_DIM, ROPE_DIM, 1,
            False, call.keywords["sm_scale"], torch.bfloat16, torch.bfloat16,
        )  # fmt: skip
        kv, kpe = cache.view(-1, 1, LATENT_DIM), call.keywords["kpe"].view(-1, 1, ROPE_DIM)
        calls.append(partial(wrapper.run, q_nope, q_pe, kv, kpe))
    return Contender(version("flashinfer-python"), calls, lambda: apart(calls[0](), ours[0].keywords["out"]))


def _triton(point: Point, fixture: Fixture, ours: Sequence[Any]) -> Contender | None:
    if not fixture.baseline or point.params["t"] * point.params["heads"] > MOST_TRITON:
        return None
    notes: list[str] = []
    turns = measure.baseline_turns(fixture.baseline, ours[0].keywords["sm_scale"], notes)
    if turns is None:
        raise RuntimeError("; ".join(notes) or "it cannot run")
    calls, out = turns

    def far() -> float:
        calls[0]()
        return apart(out, ours[0].keywords["out"])

    return Contender(version("triton"), calls, far)


PEERS: dict[str, Offer] = {
    "FlashMLA": _flash_mla,
    "FlashInfer MLA (fa3)": _flashinfer,
    "Triton split-K": _triton,
}
