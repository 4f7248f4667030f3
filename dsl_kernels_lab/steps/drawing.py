"""Random inputs of a DSA step: filled caches, and queries with their lengths, pages or windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from dsl_kernels.kernels.lightning_indexer.problem import PAGE
from dsl_kernels.problems.layouts import (
    FP8_TOKEN_BYTES,
    INDEX_DIM,
    LATENT_DIM,
    ROPE_DIM,
    pack_fp8_tokens,
    pack_index_keys,
)

from ..layouts import unpack_index_keys

if TYPE_CHECKING:
    from . import StepSize


def decode_caches(
    size: StepSize, device: torch.device, generator: torch.Generator, given: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """The caches of a decode step that `given` lacks.

    Args:
        size: the step's sizes.
        device: where to draw them.
        generator: of that device.
        given: tensors of the step by name.

    Returns:
        `k_index_cache` [pages, 64, 1, 132] bytes, and `kv`, with `kpe` for kv "bf16", [pages, 64, ...].
    """
    pages, made = size.pool, {}
    if "k_index_cache" not in given:
        made["k_index_cache"] = _index_cache(pages, device, generator)
    if "kv" not in given:
        made |= {
            name: rows.view(pages, PAGE, -1)
            for name, rows in _latent_cache(size.kv, pages * PAGE, device, generator).items()
        }
    return made


def _index_cache(pages: int, device: torch.device, generator: torch.Generator) -> torch.Tensor:
    cache = torch.empty(pages, PAGE, 1, INDEX_DIM + 4, dtype=torch.uint8, device=device)
    for first in range(0, pages, 4096):
        count = min(4096, pages - first)
        cache[first : first + count] = pack_index_keys(
            torch.randn(count, PAGE, INDEX_DIM, generator=generator, device=device, dtype=torch.float32)
        )
    return cache


def _latent_cache(
    kv: str, n: int, device: torch.device, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    def normal(count: int, width: int) -> torch.Tensor:
        return torch.randn(count, width, generator=generator, device=device, dtype=torch.bfloat16)

    if kv == "joined":
        return {"kv": normal(n, LATENT_DIM + ROPE_DIM)}
    if kv == "bf16":
        return {"kv": normal(n, LATENT_DIM), "kpe": normal(n, ROPE_DIM)}
    tokens = torch.empty(n, FP8_TOKEN_BYTES, dtype=torch.uint8, device=device)
    for first in range(0, n, 1 << 18):
        count = min(1 << 18, n - first)
        tokens[first : first + count] = pack_fp8_tokens(normal(count, LATENT_DIM), normal(count, ROPE_DIM))
    return {"kv": tokens}


def _attention_queries(
    size: StepSize, device: torch.device, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    rows, bf16 = size.queries, torch.bfloat16
    return {
        "q_nope": torch.randn(rows, size.heads, LATENT_DIM, generator=generator, device=device, dtype=bf16),
        "q_pe": torch.randn(rows, size.heads, ROPE_DIM, generator=generator, device=device, dtype=bf16),
    }


def _index_queries(
    shape: tuple[int, ...], device: torch.device, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    q = torch.randn(*shape, INDEX_DIM, generator=generator, device=device, dtype=torch.float32).clamp(-2, 2)
    return {
        "q_index": q.to(torch.float8_e4m3fn),
        "weights": torch.randn(*shape, generator=generator, device=device, dtype=torch.float32),
    }


def part_of(order: torch.Tensor, turn: int, count: int) -> torch.Tensor:
    """The `count` elements of an order for a turn, [count]; the order repeats after its end."""
    return order[(turn * count + torch.arange(count, device=order.device)) % len(order)]


def decode_queries(
    size: StepSize, device: torch.device, generator: torch.Generator, order: torch.Tensor, turn: int
) -> dict[str, torch.Tensor]:
    """Queries, weights, lengths and block table of a decode step.

    Args:
        size: the step's sizes.
        device: where to draw them.
        generator: of that device.
        order: [pages] int64, a random order of the cache's pages.
        turn: the number of the set; sets take their pages from the order in turn.

    Returns:
        The tensors by argument name of `dsa.decode`.
    """
    b, each = size.batch, size.pages_per_sequence
    if size.pool >= b * each:
        table = part_of(order, turn, b * each).view(b, each)
    else:
        rows = [torch.randperm(size.pool, generator=generator, device=device)[:each] for _ in range(b)]
        table = torch.stack(rows)
    longest = torch.full((b,), size.context, dtype=torch.int64, device=device)
    if size.ragged and b > 1:
        longest = longest >> torch.arange(b, device=device).clamp(max=31)
        longest[-1] = 0
    lens = (longest[:, None] - size.next_n + 1 + torch.arange(size.next_n, device=device)).clamp(min=0)
    lens = torch.where(longest[:, None] == 0, 0, lens)
    return {
        **_index_queries((b, size.next_n, size.index_heads), device, generator),
        **_attention_queries(size, device, generator),
        "seq_lens": lens.to(torch.int32),
        "block_table": table.to(torch.int32),
    }


def prefill_caches(
    size: StepSize, device: torch.device, generator: torch.Generator, given: Mapping[str, Any]
) -> dict[str, torch.Tensor]:
    """The caches of a prefill step that `given` lacks; arguments as in `decode_caches`.

    Returns:
        `k_index` [context, 128] float8_e4m3fn, `k_index_scales` [context] float32, and `kv`, with `kpe` for
        kv "bf16", [context, ...].
    """
    n, made = size.context, {}
    if "k_index" not in given:
        keys, scales = unpack_index_keys(_index_cache(-(-n // PAGE), device, generator))
        made["k_index"] = keys.reshape(-1, INDEX_DIM)[:n].contiguous()
        made["k_index_scales"] = scales.reshape(-1)[:n].contiguous()
    if "kv" not in given:
        made |= _latent_cache(size.kv, n, device, generator)
    return made


def prefill_queries(
    size: StepSize, device: torch.device, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    """Queries, weights and windows of a prefill step, for the last rows of the context.

    Returns:
        The tensors by argument name of `dsa.prefill`.
    """
    ends = size.context - size.rows + 1 + torch.arange(size.rows, device=device)
    return {
        **_index_queries((size.rows, size.index_heads), device, generator),
        **_attention_queries(size, device, generator),
        "k_start": torch.zeros(size.rows, dtype=torch.int32, device=device),
        "k_end": ends.to(torch.int32),
    }
