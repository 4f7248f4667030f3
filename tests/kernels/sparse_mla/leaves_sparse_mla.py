"""Cases of the leaves of sparse attention, on Hopper and on Blackwell."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from leaf_probes import Probe, case, spread, straight

from dsl_kernels.device.torch import fragment
from dsl_kernels.kernels.sparse_mla import forms as problem
from dsl_kernels.kernels.sparse_mla.leaves import gather, softmax
from dsl_kernels.kernels.sparse_mla.leaves import results as said
from dsl_kernels.tile.fragments import accumulators, own_rows, warps_and_lanes
from dsl_kernels.tile.lang import Engine, Pipeline, Reader
from dsl_kernels.tile.text import Leaf

HEADS = 16
INF = float("inf")
# Approximate instructions are off by a few units in the last place, and a sum of dozens of terms by about as
# many more.
APPROXIMATE = 4e-6


def tile_ids(p: Probe, n: int) -> torch.Tensor:
    """Ids of a tile: of rows, of no row, and past the last row."""
    ids = p.integers(0, n, 64)
    ids[::5], ids[3::17] = -1, n
    return ids


def low_high(p: Probe, ids: torch.Tensor) -> tuple[Any, Any]:
    return p.var("low", ids[:32], each="lane"), p.var("high", ids[32:], each="lane")


def _bits(p: Probe, inside: torch.Tensor) -> tuple[Any, Any]:
    return p.var("in_low", inside[:32], each="bits"), p.var("in_high", inside[32:], each="bits")


def outputs(p: Probe, heads: int) -> tuple[Any, Any]:
    """Results of two queries, before anything was written."""
    return (
        spread(p, "out", torch.full((2, heads, 512), -77.0).bfloat16(), out=True),
        spread(p, "lse", torch.full((2, heads), -77.0), out=True),
    )


def lse_scalars(p: Probe) -> tuple[Any, Any]:
    return p.scalar("lse_scale", 0.7), p.scalar("empty_lse", INF)


@case(gather.read_ids, end=(300, 350, 384, 0))
def read_ids(p: Probe, end: int) -> None:
    p.call(
        p.var("low", None, out=True, each="lane"),
        p.var("high", None, out=True, each="lane"),
        spread(p, "indices", p.integers(-1, 999, 3, 384)),
        p.dim("row", 1),
        p.dim("tile", 5),
        p.dim("end", end),
    )


def _pages(p: Probe, gap: int) -> tuple[Any, ...]:
    """30 tokens in pages of 7."""
    return tuple(p.dim(name, value) for name, value in problem.pages_of(30, 7, gap).items())


@case(gather.find_row, gap=(0, 3))
def find_row(p: Probe, gap: int) -> None:
    p.call(
        p.var("row", None, out=True, each="lane"),
        p.var("id", tile_ids(p, 30)[:32], each="lane"),
        *_pages(p, gap),
    )


@case(gather.find_rows, gap=(0, 3))
def find_rows(p: Probe, gap: int) -> None:
    rows = (p.var(name, None, out=True, each="lane") for name in ("low_row", "high_row"))
    p.call(*rows, *low_high(p, tile_ids(p, 30)), *_pages(p, gap))


@case(gather.vote, live=(True, False))
def vote(p: Probe, live: bool) -> None:
    ids = tile_ids(p, 40) if live else torch.full((64,), -1)
    p.call(
        p.var("in_low", None, out=True, each="bits"),
        p.var("in_high", None, out=True, each="bits"),
        p.var("live", None, dtype="bool", out=True),
        *low_high(p, ids),
        p.dim("cached", 40),
    )


def of_call(p: Probe, few: bool, heads: int) -> Any:
    """The heads of a call whose last block is not full; nothing if all blocks are full."""
    return p.dim("heads", heads) if few else None


@case(gather.load_queries, heads=(8, 16), columns=(32, 128), few=(False, True), rope=(False, True))
def load_queries(p: Probe, heads: int, columns: int, few: bool, rope: bool) -> None:
    p.threads = 128
    columns, rope_columns = columns if p.cute else max(columns, 64), 32 if p.cute else 64

    def target(name: str, width: int) -> Any:
        return p.shared(name, (heads, width), dtype="bfloat16", swizzle=min(128, 2 * width), out=True)

    p.call(
        target("target", columns),
        target("rope_target", rope_columns) if rope else None,
        spread(p, "q", p.normal(2, 32, 256).bfloat16()),
        spread(p, "q_rope", p.normal(2, 32, 2 * rope_columns).bfloat16()) if rope else None,
        p.dim("row", 1),
        p.dim("head0", 16),
        heads,
        p.dim("part", 1),
        columns,
        rope_columns,
        of_call(p, few, 16 + heads - 3),
    )


@case(said.load_sinks, few=(False, True))
def load_sinks(p: Probe, few: bool) -> None:
    p.threads = 128
    p.call(_sinks(p), p.operand("attn_sink", p.normal(40)), p.dim("head0", 16), of_call(p, few, 21))


@case(gather.copy_rows, columns=(32, 64, 128))
def copy_rows(p: Probe, columns: int) -> None:
    p.threads, p.lands = 128, "cp_async"
    # Fewer than 64 columns occur only if CTAs share the dims, which only CuTe DSL spells.
    columns = columns if p.cute else max(columns, 64)
    cache = p.normal(40, 264).bfloat16()[:, :256]
    p.call(
        p.shared(
            "target", (64, columns), dtype="bfloat16", swizzle=min(128, 2 * columns), out=True, slot=True
        ),
        p.operand("cache", cache, strided=True),
        128,
        columns,
        *low_high(p, tile_ids(p, 40)),
        p.dim("n", 40),
    )


def _tokens(p: Probe, n: int) -> torch.Tensor:
    """A cache of 656-byte tokens: fp8 values without NaN, scales of every kind, ordinary rope values."""
    latent = p.integers(0, 256, n, 512, dtype=torch.uint8)
    latent[latent & 0x7F == 0x7F] = 0x38
    scales = p.uniform(n, 4)
    scales[:, 0] = 0.25
    rope = p.normal(n, 64).bfloat16()
    return torch.cat([latent, scales.view(torch.uint8), rope.view(torch.uint8)], dim=1)


def own_words(p: Probe, each: int, **kind: Any) -> Any:
    return p.registers("words", (128, each), dtype="uint32", places=straight(128, each), private=True, **kind)


@case(gather.load_tokens, dims=(128, 256))
def load_tokens(p: Probe, dims: int) -> None:
    p.threads = 128
    words = own_words(p, 8 + dims * 9 // 64)
    ids = low_high(p, tile_ids(p, 40))
    p.call(words, spread(p, "kv_cache", _tokens(p, 40)), 1, dims, *ids, p.dim("n", 40))


@case(gather.renew_tokens, dims=(128, 256))
def renew_tokens(p: Probe, dims: int) -> None:
    """The words read before, and those that replace them."""
    p.threads = 128
    words = own_words(p, 8 + dims * 9 // 64)
    low, high = low_high(p, tile_ids(p, 40))
    cache, n = spread(p, "kv_cache", _tokens(p, 40)), p.dim("n", 40)
    rows = (
        p.shared(text, (64, width), dtype="bfloat16", swizzle=min(128, 2 * width), out=True, slot=True)
        for text, width in (("target", dims), ("rope", dims // 8))
    )
    p.before = calling(gather.load_tokens, (words, cache, 1, dims, low, high, n))
    p.call(words, *rows, cache, 1, dims, high, low, n)


def calling(leaf: Leaf, arguments: tuple[Any, ...]) -> Callable[[Any], None]:
    return lambda m: leaf(m, *(a(m) if callable(a) else a for a in arguments))


@case(gather.fetch_half, shares=(1, 2))
def fetch_half(p: Probe, shares: int) -> None:
    # It has no result: the emulator checks that it stays within the cache.
    p.threads, p.cluster = 128, shares
    p.var("kept", 7, out=True)
    ids = p.var("low", tile_ids(p, 40)[:32], each="lane")
    rank = p.rank if shares > 1 else 0
    p.call(spread(p, "kv_cache", _tokens(p, 40)), rank, shares, ids, p.dim("n", 40))


def halves(p: Probe, rows: int, *texts: str) -> list[Any]:
    """Latent and rope dims of that many tokens."""
    return [
        p.shared(text, (rows, width), p.normal(rows, width).bfloat16(), dtype="bfloat16", swizzle=128,
                 out=True, slot=True)
        for text, width in zip(texts, (512, 64) * 2, strict=False)
    ]  # fmt: skip


@case(gather.load_half, shares=(1, 2))
def load_half(p: Probe, shares: int) -> None:
    p.threads, p.cluster = 128, shares
    words = own_words(p, 40 // shares + 1)
    ids = p.var("ids", tile_ids(p, 40)[:32], each="lane")
    rank = p.rank if shares > 1 else 0
    p.call(words, spread(p, "kv_cache", _tokens(p, 40)), rank, shares, ids, p.dim("n", 40))


def _held(p: Probe) -> torch.Tensor:
    """What `load_half` leaves of 32 tokens, unsigned: each of four lanes has one scale."""
    thread, word = torch.arange(128).view(-1, 1), torch.arange(41)
    byte = (
        torch.where(word < 32, word // 4 * 64, 528 + (word - 32) // 4 * 64) + thread % 4 * 16 + word % 4 * 4
    )
    byte = torch.where(word < 40, byte, 512 + thread % 4 * 4)
    tokens = _tokens(p, 32).view(torch.int32)
    return tokens[thread // 4, byte // 4].long() & 0xFFFFFFFF


def neighbours(p: Probe) -> None:
    """TileLang rounds the product with a scale's second half: one value in a thousand is a neighbour."""
    p.relative = 0.0 if p.cute else 2.0**-7


def _staged(p: Probe, tokens: torch.Tensor | None = None, *, rope: bool = True) -> list[Any]:
    """Staging of half a tile of tokens: fp8 values, rope dims if any, and scales;
    inputs if `tokens` is given, else outputs."""
    buffers = (
        ("raw", (32, 128), "int32", 128),
        ("raw_pe", (32, 64), "bfloat16", 128),
        ("scales", (32, 4), "int32", 0),
    )
    parts = (None, None, None) if tokens is None else (tokens[:, :512], tokens[:, 528:], tokens[:, 512:528])
    kinds = {"int32": torch.int32, "bfloat16": torch.bfloat16}
    return [
        p.shared(
            text, shape, None if part is None else part.contiguous().view(kinds[dtype]), dtype=dtype,
            swizzle=swizzle, slot=True, out=part is None
        )
        for (text, shape, dtype, swizzle), part in zip(buffers, parts, strict=True)
        if rope or text != "raw_pe"
    ]  # fmt: skip


@case(gather.copy_nope8_tokens)
def copy_nope8_tokens(p: Probe) -> None:
    p.threads, p.lands = 128, "cp_async"
    tokens = _tokens(p, 40)[:, :528].contiguous()
    ids = p.var("ids", tile_ids(p, 40)[:32], each="lane")
    p.call(*_staged(p, rope=False), spread(p, "kv_cache", tokens), ids, p.dim("n", 40))


@case(gather.unpack_nope8_tokens, half=(0, 1))
def unpack_nope8_tokens(p: Probe, half: int) -> None:
    p.threads = 256
    neighbours(p)
    p.call(*halves(p, 64, "ckv"), *_staged(p, _tokens(p, 32), rope=False), half)


@case(gather.copy_tokens)
def copy_tokens(p: Probe) -> None:
    p.threads, p.lands = 128, "cp_async"
    ids = p.var("ids", tile_ids(p, 40)[:32], each="lane")
    p.call(*_staged(p), spread(p, "kv_cache", _tokens(p, 40)), ids, p.dim("n", 40))


@case(gather.unpack_tokens, half=(0, 1))
def unpack_tokens(p: Probe, half: int) -> None:
    p.threads = 256
    neighbours(p)
    p.call(*halves(p, 64, "ckv", "kpe"), *_staged(p, _tokens(p, 32)), half)


def ring_of_halves(
    p: Probe,
    shares: int,
    texts: tuple[str, ...],
    renew: Leaf,
    arguments: Callable[[tuple[Any, ...], Any, Any], tuple[Any, ...]],
    load: Callable[[Any, Any], Callable[[Any], None]] | None,
) -> None:
    """The second use of a ring whose content the first use has read; two CTAs write a share each, and send
    it.

    Args:
        texts: the ring's buffers.
        arguments: arguments of `renew`, by the rows and their senders, the CTA's rank and ids.
        load: reads the initial words, by rank and ids; None if they are given.
    """
    for text in texts:
        width = 512 if text == "ckv" else 64
        p.shared(text, (32, width), dtype="bfloat16", swizzle=128, out=True, slot=True, stages=2)
    reader, several = (Reader("probe", Engine.THREADS),), shares > 1
    p.pipelines = (
        Pipeline("kv", texts, "probe", Engine.THREADS, reader, 2, fill_arrive="warp", multicast=several),
    )
    rank, columns = p.rank if several else (lambda m: 0), 512 // shares
    low, high = low_high(p, tile_ids(p, 40))

    def of_use(use: int, ids: Any) -> tuple[Any, ...]:
        def rows(text: str, m: Any) -> Any:
            view = getattr(m.slot("kv", use), text)
            return view.columns(rank(m) * columns, columns) if text == "ckv" else view

        views = [partial(rows, text) for text in texts]
        senders = [lambda m, view=view: m.sender(view(m), m.slot("kv", use)) for view in views]
        return arguments((*views, *senders), rank, ids)

    def behind(m: Any, use: int) -> None:
        m.commit(m.slot("kv", use))
        m.wait("kv", use)

    def before(m: Any) -> None:
        if load is not None:
            load(rank, low)(m)
        m.acquire("kv", 0)
        calling(renew, of_use(0, high))(m)
        behind(m, 0)
        m.acquire("kv", 1)

    p.before, p.after = before, lambda m: behind(m, 1)
    p.call(*of_use(1, low))


@case(gather.renew_half, shares=(1, 2))
def renew_half(p: Probe, shares: int) -> None:
    p.threads, p.cluster = 128, shares
    words = own_words(p, 40 // shares + 1, value=_held(p) if shares == 1 else None)
    cache, n = spread(p, "kv_cache", _tokens(p, 40)), p.dim("n", 40)
    ring_of_halves(
        p, shares, ("ckv", "kpe"), gather.renew_half,
        lambda rows, rank, ids: (words, *rows, cache, rank, shares, ids, n),
        None if shares == 1 else
        lambda rank, ids: calling(gather.load_half, (words, cache, rank, shares, ids, n)),
    )  # fmt: skip


def _scores(p: Probe, heads: int = HEADS, value: Any = None, **kind: Any) -> Any:
    value = p.normal(64, heads) if value is None else value
    return p.registers("scores", (64, heads), value, places=accumulators(64, heads), **kind)


def _own_heads(heads: int = HEADS) -> torch.Tensor:
    """The head of each of a thread's columns, [128, heads / 4]."""
    c = torch.arange(heads // 4).view(1, -1)
    return c // 2 * 8 + warps_and_lanes()[1] % 4 * 2 + c % 2


def _own(p: Probe, title: str, value: Any = None, heads: int = HEADS, **kind: Any) -> Any:
    each = heads // 4
    return p.registers(title, (128, each), value, places=straight(128, each), private=True, **kind)


def _columns(p: Probe, title: str, value: torch.Tensor | None = None, **kind: Any) -> Any:
    """One value per head, replicated in all threads that have the head."""
    return _own(p, title, None if value is None else value[_own_heads()], **kind)


def _red(p: Probe, value: torch.Tensor | None, out: bool) -> Any:
    return p.shared("red", (HEADS, 4), value, out=out)


def _peers(p: Probe, pipeline: str, buffer: str, rounds: str, stages: int) -> Callable[[Any], Any]:
    """A pipeline between the CTAs of the cluster; the leaf sends its first use."""
    reader = (Reader("probe", Engine.THREADS),)
    p.pipelines = (Pipeline(pipeline, (buffer,), "probe", Engine.PEERS, reader, stages, rounds),)
    p.before = lambda m: m.commit(m.slot(pipeline, 0))
    p.after = lambda m: m.wait(pipeline, 0) and None

    def sender(m: Any) -> Any:
        slot = m.slot(pipeline, 0)
        return m.sender(slot.view(), slot)

    return sender


@case(softmax.send_scores, slices=(2, 4))
def send_scores(p: Probe, slices: int) -> None:
    p.threads, p.cluster = 128, slices
    scores = _scores(p, value=[p.normal(64, HEADS) for _ in range(slices)], out=False)
    slots = p.shared("x_s", (slices - 1, HEADS // 8, 128, 4), out=True, stages=2)
    p.call(scores, slots, _peers(p, "x", "x_s", "loop", 2), p.rank, slices)


@case(softmax.add_scores, slices=(2, 4))
def add_scores(p: Probe, slices: int) -> None:
    p.threads = 128
    shape = (slices - 1, HEADS // 8, 128, 4)
    p.call(_scores(p), p.shared("x_s", shape, p.normal(*shape)), slices)


@case(softmax.mask_scores)
def mask_scores(p: Probe) -> None:
    p.threads, p.relative = 128, APPROXIMATE
    inside = p.integers(0, 2, 64).bool()
    p.call(_scores(p), *_bits(p, inside), p.scalar("sm_scale", 0.0625 * 1.37))


@case(softmax.leave_maxima)
def leave_maxima(p: Probe) -> None:
    p.threads = 128
    p.call(_red(p, None, True), _scores(p, out=False))


@case(softmax.join_maxima)
def join_maxima(p: Probe) -> None:
    p.threads = 128
    p.call(_columns(p, "top"), _red(p, p.normal(HEADS, 4), False))


@case(softmax.join_sums)
def join_sums(p: Probe) -> None:
    p.threads = 128
    p.call(_columns(p, "top"), _red(p, p.normal(HEADS, 4), False))


def _acc(p: Probe, dims: int = 128, **kind: Any) -> Any:
    return p.registers("acc", (dims, HEADS), p.normal(dims, HEADS), places=accumulators(dims, HEADS), **kind)


def _sums(p: Probe, **kind: Any) -> Any:
    """The running sums; each thread has a partial one."""
    return _own(p, "sums", p.uniform(128, HEADS // 4), **kind)


@case(softmax.online_softmax)
def online_softmax(p: Probe) -> None:
    p.threads, p.relative, p.absolute = 128, APPROXIMATE, 1e-6
    peak = p.normal(HEADS)
    peak[::3] = -INF
    p.call(
        _scores(p), _sums(p), _acc(p), _columns(p, "peak", peak),
        _columns(p, "top", p.normal(HEADS) + 2, out=False),
    )  # fmt: skip


@case(softmax.store_weights, heads=(8, 16, 32))
def store_weights(p: Probe, heads: int) -> None:
    p.threads = 128
    shape = (64, heads) if heads > 8 else (heads, 64)
    target = p.shared("p_s", shape, dtype="bfloat16", swizzle=min(128, 2 * shape[1]), out=True)
    p.call(target, _scores(p, heads, out=False))


@case(softmax.store_weights)
def store_rows(p: Probe) -> None:
    """Heads on M."""
    p.threads = 128
    target = p.shared("p_s", (64, 32), dtype="bfloat16", swizzle=64, out=True)
    p.call(target, _wide(p, "scores", p.normal(64, 32), 32, out=False))


@case(softmax.rescale_rows, changed=(False, True))
def rescale_rows(p: Probe, changed: bool) -> None:
    p.threads = 128
    factor = torch.ones(64)
    factor[::7] = 0.25 if changed else 1.0
    p.call(_wide(p, "acc", p.normal(64, 256), 256), _of_heads(p, "factor", factor, out=False))


@case(softmax.leave_sums)
def leave_sums(p: Probe) -> None:
    p.threads, p.relative = 128, APPROXIMATE
    p.call(_red(p, None, True), _sums(p, out=False))


@case(softmax.normalise)
def normalise(p: Probe) -> None:
    p.threads, p.relative, p.absolute = 128, APPROXIMATE, 1e-6
    sums = p.uniform(HEADS)
    sums[5] = 0
    p.call(_acc(p), _columns(p, "top", sums), _columns(p, "peak", p.normal(HEADS), out=False))


def _scratch(p: Probe, out: bool, rows: int = 2, splits: int = 6, heads: int = 32) -> tuple[Any, Any]:
    values, lses = p.normal(rows, splits, heads, 512), p.normal(rows, splits, heads)
    lses[:, 1] = -INF
    return p.operand("o_partial", values, out=out), p.operand("lse_partial", lses, out=out)


def _sinks(p: Probe, value: torch.Tensor | None = None, **kind: Any) -> Any:
    """The sinks of a thread's head of every eight."""
    own = torch.arange(128).view(-1, 1) // 16 + torch.arange(0, HEADS, 8)
    each = None if value is None else value[own]
    return p.registers(
        "sinks", (128, HEADS // 8), each, places=straight(128, HEADS // 8), private=True, **kind
    )


@case(said.send_parts, heads=(8, 16, 32))
def send_parts(p: Probe, heads: int) -> None:
    """Two slices of two parts; zeros arrive as zeros, possibly negative."""
    p.threads, p.cluster, slices, dims = 128, 4, 2, 128
    values = [p.normal(dims, heads) for _ in range(4)]
    values[1][3:70, 2] = 0.0
    acc = p.registers("acc", (dims, heads), values, places=accumulators(dims, heads), out=False)
    lses = _own(p, "lses", [p.normal(heads)[_own_heads(heads)] for _ in range(4)], heads, out=False)
    rows = (dims * heads // 128, 128 + heads)
    p.shared("o_s", rows, out=True)
    p.operand("arrivals", torch.zeros(4 * rows[0] * rows[1], dtype=torch.int32), out=True)
    reader = (Reader("probe", Engine.THREADS),)
    p.pipelines = (
        Pipeline("o", ("o_s",), "probe", Engine.GRID, reader, rounds="once", through="arrivals",
                 meets="probe"),
    )  # fmt: skip
    p.after = lambda m: m.wait("o", 0, at=m.block(1)) and None

    def sender(m: Any) -> Any:
        slot = m.slot("o", 0)
        return m.sender(slot.view(), slot)

    which, part = (lambda m: m.block(1) % slices), (lambda m: m.block(1) // slices)
    p.call(acc, lses, sender, rows[0] * rows[1], which, slices, part, p.dim("parts", 2))


@case(said.keep_parts, heads=(8, 16, 32))
def keep_parts(p: Probe, heads: int) -> None:
    p.threads, dims = 128, 128
    p.call(
        p.shared("o_s", (dims * heads // 128, 128 + heads), out=True),
        p.registers("acc", (dims, heads), p.normal(dims, heads), places=accumulators(dims, heads), out=False),
        _own(p, "top", p.normal(heads)[_own_heads(heads)], heads, out=False),
    )


# One unit in the last place of bf16.
BF16 = 2.0**-7


@case(said.merge_rows, which=(0, 1), parts=(1, 4, 16), few=(False, True))
def merge_rows(p: Probe, which: int, parts: int, few: bool) -> None:
    """The second share; one part of one head is empty, and all parts of another."""
    p.threads, p.relative, p.absolute, dims = 128, BF16, 1e-6, 128
    rows = dims * HEADS // 128
    received = p.normal(rows, 128 + HEADS)
    # All rows of a part have the same lses.
    lses = p.normal(parts, 1, HEADS)
    lses[:, :, 5], lses[0, :, 2] = -INF, -INF
    received[:, 128:] = lses.expand(parts, rows // parts, HEADS).reshape(rows, HEADS)
    p.call(
        *outputs(p, 32),
        p.shared("o_s", (rows, 128 + HEADS), received),
        _sinks(p, p.normal(HEADS), out=False),
        p.dim("row", 1),
        p.dim("head0", 16),
        p.dim("part", min(1, parts - 1)),
        p.dim("parts", parts),
        p.dim("which", which),
        dims,
        HEADS,
        *lse_scalars(p),
        of_call(p, few, 27),
    )


@case(said.write_outputs, few=(False, True))
def write_outputs(p: Probe, few: bool) -> None:
    p.threads, p.relative, p.absolute = 128, BF16, 1e-6
    lses = p.normal(HEADS)
    lses[3] = -INF
    p.call(
        _acc(p, out=False),
        _columns(p, "top", lses, out=False),
        p.operand("attn_sink", p.normal(32)),
        *outputs(p, 32),
        p.dim("row", 1),
        p.dim("head0", 16),
        *lse_scalars(p),
        of_call(p, few, 27),
    )


@case(said.leave_part)
def leave_part_on_n(p: Probe) -> None:
    p.threads = 128
    acc, lses = _acc(p, 512, out=False), _columns(p, "top", p.normal(HEADS), out=False)
    _call_leave_part(p, acc, lses, 16, 32, said.ON_N)


def _call_leave_part(p: Probe, acc: Any, lses: Any, head0: int, heads: int, side: int) -> None:
    scratch = _scratch(p, True, splits=3, heads=heads)
    p.call(
        acc, lses, p.dim("row", 1), p.dim("head0", head0), side, p.dim("split", 2), *scratch,
        p.dim("splits", 3), heads,
    )  # fmt: skip


@case(
    said.merge_parts, parts=(3, 19), share=((0, 1), (1, 3), (2, 8), (1, 16)), block=(8, 16, 32),
    pieces=(1, 2, 4), few=(False, True),
)  # fmt: skip
def merge_parts_on_n(
    p: Probe, parts: int, share: tuple[int, int], block: int, pieces: int, few: bool
) -> None:
    """All of the row, and shares of it: the first share of more than there are pieces has none, and the
    second has the lse. One head has only empty parts, another has one."""
    _call_merge_parts(p, parts, share, block // 4, pieces, 16, 64, said.ON_N, few)


def _call_merge_parts(
    p: Probe, parts: int, share: tuple[int, int], columns: int, pieces: int, head0: int, heads: int,
    side: int, few: bool,
) -> None:  # fmt: skip
    p.threads, p.relative, p.absolute = 128, BF16, 1e-6
    lses = p.normal(2, parts + 1, heads)
    lses[:, 1], lses[:, :, head0 + 5] = -INF, -INF
    p.call(
        p.dim("row", 1), p.dim("head0", head0), p.dim("parts", parts), p.dim("share", share[0]),
        p.dim("shares", share[1]), columns, pieces, side,
        *outputs(p, heads),
        p.operand("o_partial", p.normal(2, parts + 1, heads, 512)), p.operand("lse_partial", lses),
        p.operand("attn_sink", p.normal(heads)), p.dim("splits", parts + 1), heads, *lse_scalars(p),
        of_call(p, few, head0 + 7),
    )  # fmt: skip


# 64 heads on M, one warpgroup per side


def _wide(p: Probe, title: str, value: torch.Tensor | None, columns: int, **kind: Any) -> Any:
    return p.registers(title, (64, columns), value, places=accumulators(64, columns), **kind)


def _of_heads(p: Probe, title: str, value: torch.Tensor | None, **kind: Any) -> Any:
    return p.registers(title, (64,), value, places=own_rows(), **kind)


def _of_thread(p: Probe, title: str, value: torch.Tensor, **kind: Any) -> Any:
    return p.registers(title, (128, 2), value, places=straight(128, 2), private=True, **kind)


@case(gather.copy_query_rows, columns=(64, 512), few=(False, True))
def copy_query_rows(p: Probe, columns: int, few: bool) -> None:
    p.threads, p.lands = 128, "cp_async"
    p.call(
        p.shared("target", (64, columns), dtype="bfloat16", swizzle=128, out=True),
        spread(p, "q", p.normal(2, 128, columns).bfloat16()),
        p.dim("row", 1),
        p.dim("head0", 64),
        columns,
        of_call(p, few, 101),
    )


@case(softmax.mask_columns, some=(True, False), columns=(32, 64))
def mask_columns(p: Probe, some: bool, columns: int) -> None:
    p.threads, p.relative = 128, APPROXIMATE
    valid = p.integers(0, 2, 64).bool() if some else torch.ones(64, dtype=torch.bool)
    low, high = p.var("in_low", valid[:32], each="bits"), p.var("in_high", valid[32:], each="bits")
    scores = _wide(p, "scores", p.normal(64, columns), columns)
    p.call(scores, low, high if columns == 64 else low, p.scalar("sm_scale", 0.0625 * 1.37))


@case(fragment.pack_to)
def pack_to(p: Probe) -> None:
    p.threads = 128
    weights = p.registers("weights", (64, 64), dtype="bfloat16", places=accumulators(64, 64))
    p.call(weights, _wide(p, "scores", p.normal(64, 64), 64, out=False))


@case(softmax.softmax_rows, tops=("high", "low", "none"))
def softmax_rows(p: Probe, tops: str) -> None:
    """No maximum rises; those of two warps rise; no earlier tile, and rows without a valid token."""
    p.threads, p.relative, p.absolute = 128, APPROXIMATE, 1e-6
    scores, peak = p.normal(64, 32), p.normal(64)
    if tops == "low":
        scores[5, 3], scores[63, 31] = 11.0, 13.0
    elif tops == "none":
        peak[:] = -INF
        scores[::2] = -INF
    p.call(
        _wide(p, "scores", scores, 32),
        _of_thread(p, "sums", p.uniform(128, 2)),
        _of_heads(p, "peak", peak),
        _of_heads(p, "factor", None),
        8,
    )


@case(softmax.share_peak)
def share_peak(p: Probe) -> None:
    p.threads = 128
    p.call(p.shared("peak_s", (64,), out=True), _of_heads(p, "peak", p.normal(64), out=False))


@case(softmax.follow_peak, risen=(True, False))
def follow_peak(p: Probe, risen: bool) -> None:
    p.threads, p.relative, p.absolute = 128, APPROXIMATE, 1e-6
    peak = p.normal(64)
    peak[::3] = -INF
    other = peak + 3 if risen else peak.clone()
    other[::6] = 1.5 if risen else -INF
    p.call(
        _of_heads(p, "peak", peak),
        _of_thread(p, "sums", p.uniform(128, 2)),
        _wide(p, "acc", p.normal(64, 256), 256),
        p.shared("peak_s", (64,), other),
    )


@case(softmax.share_sums, side=(0, 1))
def share_sums(p: Probe, side: int) -> None:
    p.threads, p.relative = 128, APPROXIMATE
    sums = _of_thread(p, "sums", p.uniform(128, 2))
    p.call(sums, p.shared("red", (2, 64), p.normal(2, 64), out=True), side)


@case(softmax.total_rows, side=(0, 1))
def total_rows(p: Probe, side: int) -> None:
    p.threads, p.relative, p.absolute = 128, APPROXIMATE, 1e-6
    sums = p.uniform(2, 64)
    sums[:, 7] = 0
    p.call(
        _of_heads(p, "sums", sums[side].clone()),
        _of_heads(p, "peak", p.normal(64), out=False),
        _of_heads(p, "factor", None),
        p.shared("red", (2, 64), sums),
        side,
    )


@case(said.leave_part, side=(0, 1))
def leave_part_on_m(p: Probe, side: int) -> None:
    p.threads = 128
    acc, lses = (
        _wide(p, "acc", p.normal(64, 256), 256, out=False),
        _of_heads(p, "lses", p.normal(64), out=False),
    )
    _call_leave_part(p, acc, lses, 64, 128, side)


@case(said.merge_parts, side=(0, 1), parts=(2, 7, 40), few=(False, True))
def merge_parts_on_m(p: Probe, side: int, parts: int, few: bool) -> None:
    """Shares of half of the dims, of an odd number of eights, and of one eight; the first stores the lse."""
    share = (0 if side == 0 and parts == 2 else 1, parts)
    _call_merge_parts(p, parts, share, 2, 4, 64, 128, side, few)


@case(said.store_result_rows, side=(0, 1), width=(32, 256), few=(False, True))
def store_result_rows(p: Probe, side: int, width: int, few: bool) -> None:
    p.threads, p.relative, p.absolute = 128, BF16, 1e-6
    lses = p.normal(64)
    lses[9] = -INF
    p.call(
        *outputs(p, 128),
        _wide(p, "acc", p.normal(64, 256), 256, out=False),
        _of_heads(p, "factor", p.uniform(64), out=False),
        _of_thread(p, "lses", lses[own_rows()], out=False),
        _of_heads(p, "sinks", p.normal(64), out=False),
        p.dim("row", 1),
        p.dim("head0", 64),
        p.shared("scratch", (64, width), dtype="bfloat16", swizzle=min(128, 2 * width)),
        width,
        *lse_scalars(p),
        side,
        of_call(p, few, 101),
    )


@case(said.load_row_sinks, few=(False, True))
def load_row_sinks(p: Probe, few: bool) -> None:
    p.threads = 128
    sinks = p.operand("attn_sink", p.normal(128))
    p.call(_of_heads(p, "sinks", None), sinks, p.dim("head0", 64), of_call(p, few, 101))
