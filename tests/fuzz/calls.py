"""Fuzzing of the public ops and the two steps: valid arguments, some of them replaced or altered.

A few calls stay valid, with random sizes. Whatever a call accepts is compared with the reference.
"""

from __future__ import annotations

import math
import random
import time
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from dsl_kernels import dsa, ops
from dsl_kernels.kernels.lightning_indexer.problem import PAGE
from dsl_kernels_lab import oracles
from dsl_kernels_lab.oracles import Workload

from . import Counts
from .values import draw, spelled

VALID = 0.02
"""The share of calls that stay valid: each costs as much as hundreds of refusals."""

LIMIT_S = 4.0
"""A refusal needs less. An answer's kernels run in the interpreter; a step may refuse after two of them."""

LN2 = math.log(2)


def fuzz_calls(count: int, seed: int) -> Counts:
    """Call ops and steps `count` times on the CPU.

    Args:
        seed: the same seed draws the same calls.
    """
    counts, generator = Counts(), random.Random(seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    # Warm up: what the first call of a process loads must not count as the call's own time.
    for target in TARGETS:
        target(**target.arguments(0))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for number in range(count):
                _one_call(counts, generator, number)
    finally:
        torch.set_num_threads(threads)
    return counts


def _one_call(counts: Counts, generator: random.Random, number: int) -> None:
    target = generator.choice(TARGETS)
    valid = generator.random() < VALID
    arguments = target.arguments(generator.randrange(8) if valid else 0)
    label = [target.name]
    if not valid:
        for name in generator.sample(sorted(arguments), generator.choice((1, 1, 1, 2, 3))):
            arguments[name], how = _bent(generator, arguments[name])
            label.append(f"{name}={how}")
    before = {name: _copy(value) for name, value in arguments.items()}
    begin = time.process_time()
    answer = counts.call(f"{number} " + " ".join(label), target, limit_s=LIMIT_S, **arguments)
    if answer is not None:
        counts.judge(f"{number} " + " ".join(label), lambda result: target.right(before, result), answer)
    elif valid:
        counts.mismatches += 1
        counts.note(
            "mismatch", " ".join(label), f"valid, and refused after {time.process_time() - begin:.1f} s"
        )


def _copy(value: Any) -> Any:
    """A copy for the judge, to which nothing was written."""
    plain = type(value) is torch.Tensor and value.layout == torch.strided and not value.is_nested
    if not plain or value.is_meta or value.numel() > 1 << 22:
        return value
    return value.detach().clone()


def _bent(generator: random.Random, value: Any) -> tuple[Any, str]:
    """A replacement for a valid value, and its name."""
    if isinstance(value, torch.Tensor) and generator.random() < 0.6:
        name, bend = generator.choice(BENDS)
        try:
            return bend(value), name
        except (RuntimeError, IndexError, TypeError):
            pass
    if generator.random() < 0.2:
        other = generator.choice(INTEGERS)
        return other, spelled(other)
    if generator.random() < 0.15:
        return None, "None"
    other = draw(generator)
    return other, spelled(other)


INTEGERS = (-1, 0, 1, 2, 3, 63, 64, 65, 128, 2048, 2049, 2**31 - 1, 2**31, 2**63, -(2**31), True, 64.0, "64")


def _room(value: torch.Tensor, by: int) -> torch.Tensor:
    """A copy that begins `by` bytes past a multiple of 64."""
    size = value.numel() * value.element_size()
    room = torch.empty(size + 128, dtype=torch.uint8)
    first = -room.data_ptr() % 64 + by
    return room[first : first + size].view(value.dtype).view(value.shape).copy_(value)


def _inside(value: torch.Tensor) -> torch.Tensor:
    """A strided view of the same numbers."""
    wide = torch.zeros(*value.shape[:-1], 2 * value.shape[-1], dtype=value.dtype)
    wide[..., : value.shape[-1]] = value
    return wide[..., : value.shape[-1]]


def _with(value: torch.Tensor, number: int) -> torch.Tensor:
    """With another integer in the middle; a float of that size would only test the range of fp32."""
    if value.dtype.is_floating_point:
        raise TypeError("not an integer tensor")
    copied = value.clone()
    copied.view(-1)[copied.numel() // 2] = number
    return copied


class Subclass(torch.Tensor):
    """A tensor of another class in plain memory."""


class Wrapper(torch.Tensor):
    """A tensor without memory of its own, of a class that runs no operation."""

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"no rule for {function}")


def _wrapped(value: torch.Tensor) -> Any:
    return torch.Tensor._make_wrapper_subclass(Wrapper, value.shape, value.stride(), dtype=value.dtype)


BENDS: tuple[tuple[str, Callable[[torch.Tensor], Any]], ...] = (
    *((f"shifted by {by} bytes", lambda v, by=by: _room(v, by)) for by in (1, 2, 4, 8, 16)),
    ("fake", lambda v: FakeTensorMode().from_tensor(v)),
    ("without memory", _wrapped),
    ("of a subclass", lambda v: v.as_subclass(Subclass)),
    ("transposed", lambda v: v.transpose(0, -1)),
    ("with a stride", _inside),
    ("every second row", lambda v: torch.cat([v, v])[::2]),
    ("flat", lambda v: v.reshape(-1)),
    ("one dimension more", lambda v: v[None]),
    ("one dimension less", lambda v: v[0]),
    ("one row more", lambda v: torch.cat([v, v[:1]])),
    ("no rows", lambda v: v[:0]),
    ("no columns", lambda v: v[..., :0]),
    ("one column less", lambda v: v[..., :-1].contiguous()),
    ("twice as wide", lambda v: torch.cat([v, v], dim=-1)),
    ("2^31 rows", lambda v: v[:1].expand(2**31, *v.shape[1:])),
    ("2^31 columns", lambda v: v[..., :1].expand(*v.shape[:-1], 2**31)),
    ("2^31 rows on meta", lambda v: torch.empty(2**31, *v.shape[1:], dtype=v.dtype, device="meta")),
    ("on meta", lambda v: v.to("meta")),
    ("float64", lambda v: v.double()),
    ("float16", lambda v: v.half()),
    ("int64", lambda v: v.long()),
    ("bool", lambda v: v.bool()),
    ("complex", lambda v: v.to(torch.complex64)),
    ("other bytes", lambda v: v.view(torch.uint8)),
    ("sparse", lambda v: v.float().to_sparse()),
    ("nested", lambda v: torch.nested.nested_tensor([v, v])),
    ("with a gradient", lambda v: v.clone().requires_grad_()),
    ("a list", lambda v: v.tolist()),
    ("numpy", lambda v: v.numpy()),
    ("its class", lambda v: type(v)),
    ("a parameter", lambda v: torch.nn.Parameter(v.clone(), requires_grad=False)),
    ("with -1", lambda v: _with(v, -1)),
    ("with a large number", lambda v: _with(v, 2**30)),
    ("with the least integer", lambda v: _with(v, -(2**31))),
    ("the same memory", lambda v: v.view(v.shape)),
    ("a copy", lambda v: v.clone()),
)


class Target:
    """A function to call, how to draw its arguments, and how to judge its answer.

    Args:
        make: seed -> valid arguments, without `executor`.
        expected: arguments -> whether an answer is right, by the reference.
    """

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        make: Callable[[int], dict[str, Any]],
        right: Callable[[Mapping[str, Any], Any], bool],
    ) -> None:
        self.name, self._function, self._make, self.right = name, function, make, right

    def __call__(self, **arguments: Any) -> Any:
        return self._function(**arguments)

    def arguments(self, seed: int) -> dict[str, Any]:
        """Fresh arguments, which a call may write to."""
        drawn = {name: _copy(value) for name, value in _drawn(self, seed).items()}
        return {**drawn, "executor": "interpreter"}


@cache
def _drawn(target: Target, seed: int) -> dict[str, Any]:
    return target._make(seed)


def _problem(op: str, form: str, seed: int, **params: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return oracles.get(op).make(Workload("fuzz", "tiny", form, params), generator)


def _agrees(op: str, form: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> bool:
    problem = oracles.get(op)
    inputs = {name: _plain(value) for name, value in inputs.items()}
    comparison = problem.compare(form, inputs, outputs, problem.reference(form, inputs))
    assert comparison.ok, "; ".join(comparison.failures)
    return True


def _plain(value: Any) -> Any:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _number(value: Any, default: int) -> int:
    return default if value is None else int(value)


def _indexer(seed: int) -> dict[str, Any]:
    lens = ([[70]], [[0, 130]], [[64], [1]], [[127, 128, 129]])[seed % 4]
    inputs = _problem("lightning_indexer", "decode", seed, lens=lens, heads=32 if seed < 4 else 64, pages=4)
    width = inputs["block_table"].shape[1] * PAGE
    return {**inputs, "out": torch.zeros(*inputs["seq_lens"].shape, width) if seed % 2 == 0 else None}


def _indexer_right(a: Mapping[str, Any], scores: torch.Tensor) -> bool:
    inputs = {**a, "k_cache": a["k_cache"].view(torch.uint8).flatten(1)}
    inputs["skip_below"] = _number(a.get("skip_below"), 0)
    return _agrees("lightning_indexer", "decode", inputs, {"logits": scores})


def _indexer_prefill(seed: int) -> dict[str, Any]:
    inputs = _problem("lightning_indexer", "prefill", seed, s=1 + seed, skv=60 + 30 * seed, heads=32)
    return {**inputs, "out": None if seed % 2 else torch.zeros(1 + seed, 60 + 30 * seed)}


def _prefill_right(a: Mapping[str, Any], scores: torch.Tensor) -> bool:
    inputs = {**a, "skip_below": _number(a.get("skip_below"), 0)}
    return _agrees("lightning_indexer", "prefill", inputs, {"logits": scores})


def _selector(seed: int) -> dict[str, Any]:
    paged = seed % 2 == 0
    drawn = _problem(
        "topk_selector", "default", seed, lens=[40, 0, 100 + seed], k=16, page_size=32 if paged else 0,
        pages=64
    )  # fmt: skip
    drawn["block_table"] = drawn["block_table"].remainder(64) if paged else None
    drawn["page_size"] = 32
    drawn["absolute"] = not paged
    return {**drawn, "out": torch.zeros(3, 16, dtype=torch.int32) if paged else None}


def _selector_right(a: Mapping[str, Any], ids: torch.Tensor) -> bool:
    inputs, table = dict(a), a["block_table"]
    inputs["row_starts"] = a["row_starts"] if a["row_starts"] is not None else torch.zeros_like(a["row_ends"])
    inputs["page_size"] = 0 if table is None else _number(a["page_size"], 64)
    inputs["absolute"] = int(bool(a["absolute"]))
    return _agrees("topk_selector", "default", inputs, {"indices": ids})


def _attention(seed: int) -> dict[str, Any]:
    form = "fp8" if seed % 3 == 2 else "bf16"
    pattern = ("random", "mixed", "holes", "tail")[seed % 4]
    drawn = _problem(
        "sparse_mla", form, seed, t=1 + seed % 3, heads=8 if seed < 4 else 16, topk=64, n=96, ids=pattern,
        sink=True
    )  # fmt: skip
    t, heads, _ = drawn["q_nope"].shape
    return {
        "q_nope": drawn["q_nope"], "q_pe": drawn["q_pe"], "kv": drawn.get("ckv", drawn.get("kv_cache")),
        "kpe":
            drawn.get("kpe"), "indices": drawn["indices"], "attn_sink": drawn["attn_sink"], "sm_scale": 0.1,
        "lse_base": "2", "splits": None, "workspace": None, "variant": None, "arch": "sm_90a",
        "out": torch.zeros(t, heads, 512, dtype=torch.bfloat16) if seed % 2 == 0 else None,
        "lse": torch.zeros(t, heads) if seed % 2 == 0 else None,
    }  # fmt: skip


def _attention_right(a: Mapping[str, Any], result: tuple[torch.Tensor, torch.Tensor]) -> bool:
    return _attends(a, a["indices"], result)


def _attends(a: Mapping[str, Any], ids: torch.Tensor, result: tuple[torch.Tensor, torch.Tensor]) -> bool:
    kv, kpe = a["kv"], a["kpe"]
    rows = kv.reshape(-1, kv.shape[-1])
    form = "bf16" if kv.dtype == torch.bfloat16 else "fp8"
    cache_of = {"kv_cache": rows.view(torch.uint8)} if form == "fp8" else {"ckv": rows[:, :512]}
    if form == "bf16":
        cache_of["kpe"] = rows[:, 512:] if kpe is None else kpe.reshape(-1, 64)
    heads = a["q_nope"].shape[1]
    sink = a["attn_sink"] if a["attn_sink"] is not None else torch.full((heads,), -math.inf)
    inputs = {
        "q_nope": a["q_nope"], "q_pe": a["q_pe"], **cache_of, "indices": ids, "attn_sink": sink,
        "sm_scale": float(a["sm_scale"]), "lse_scale": LN2 if a["lse_base"] == "e" else 1.0,
    }  # fmt: skip
    if abs(inputs["sm_scale"]) > 1:
        # The tolerances assume logits of the size that attention has.
        return True
    return _agrees("sparse_mla", form, inputs, {"out": result[0], "lse": result[1]})


def _step_rest(seed: int, rows: int, tokens: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).bfloat16()

    return {
        "q_nope": normal(rows, 8, 512), "q_pe": normal(rows, 8, 64), "kv": normal(tokens, 576), "kpe": None,
        "attn_sink": None, "sm_scale": 0.1, "lse_base": "2", "topk": 64, "output": None, "workspace": None,
        "arch": "sm_90a",
    }  # fmt: skip


def _decode(seed: int) -> dict[str, Any]:
    drawn = _problem("lightning_indexer", "decode", seed, lens=[[70 + seed]], heads=32, pages=3)
    del drawn["skip_below"]
    return {
        "q_index": drawn.pop("q"),
        "k_index_cache": drawn.pop("k_cache"),
        **drawn,
        **_step_rest(seed, 1, 3 * PAGE),
    }


def _prefill(seed: int) -> dict[str, Any]:
    drawn = _problem("lightning_indexer", "prefill", seed, s=2, skv=80 + seed, heads=32)
    del drawn["skip_below"]
    index = {"q_index": drawn.pop("q"), "k_index": drawn.pop("k"), "k_index_scales": drawn.pop("k_scales")}
    return {**index, **drawn, "rows_per_chunk": 1 + seed, **_step_rest(seed, 2, 80 + seed)}


def _step_right(a: Mapping[str, Any], output: dsa.StepOutput) -> bool:
    """Judges the attention over the selected tokens; `step_check` judges the selection elsewhere."""
    return _attends(a, output.indices, (output.out, output.lse))


TARGETS = (
    Target("lightning_indexer", ops.lightning_indexer, _indexer, _indexer_right),
    Target("lightning_indexer_prefill", ops.lightning_indexer_prefill, _indexer_prefill, _prefill_right),
    Target("topk_selector", ops.topk_selector, _selector, _selector_right),
    Target("sparse_mla", ops.sparse_mla, _attention, _attention_right),
    Target("decode", dsa.decode, _decode, _step_right),
    Target("prefill", dsa.prefill, _prefill, _step_right),
)
