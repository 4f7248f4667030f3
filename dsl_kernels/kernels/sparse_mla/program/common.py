"""What the schedules of sparse MLA share.

The module holds sizes, the buffers of the queries, and a CTA's walk over the tiles of its row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

from ....arch import GpuSpec
from ....problems import layouts
from ....tile.channel import Channel
from ....tile.expressions import size_at
from ....tile.frontend import Boolean, Float32, Int32, Names, State, inline, named, recorded
from ....tile.lang import Buffer, Size, Space
from ....tile.text import Global, Recorder, Value, View, ceildiv, dim, maximum, minimum
from ..leaves import gather as leaf_gather
from ..leaves.gather_pages import PAGES, Pages, PlacedPages

LATENT_DIM, ROPE_DIM = Size(layouts.LATENT_DIM, "LATENT_DIM"), Size(layouts.ROPE_DIM, "ROPE_DIM")
# The running maximum rises only when a score exceeds it by this many powers of two. Most tiles then need no
# rescaling.
RESCALE_LOG2 = Size(8, "RESCALE_LOG2")


class Kernel(Names):
    """Names of sparse MLA: pipelines, operands, sizes, scalars and buffers.

    Each schedule has some of the buffers.
    """

    kv: Channel
    o: Channel
    p: Channel
    pe: Channel
    q: Channel
    raw: Channel
    s: Channel
    x: Channel
    attn_sink: Global
    ckv: Global
    extra_indices: Global
    extra_kv_pages: Global
    extra_topk_length: Global
    indices: Global
    kpe: Global
    kv_cache: Global
    kv_pages: Global
    lse: Global
    lse_partial: Global
    o_partial: Global
    out: Global
    q_nope: Global
    q_pe: Global
    q_rows: Global
    topk_length: Global
    all_resident: Int32
    cached: Int32
    extra_cached: Int32
    extra_page_inverse: Int32
    extra_page_shift: Int32
    extra_page_size: Int32
    extra_scale_bytes: Int32
    extra_scales_at: Int32
    extra_token_bytes: Int32
    extra_topk: Int32
    has_extra_lengths: Int32
    has_lengths: Int32
    heads: Int32
    n: Int32
    page_gap: Int32
    page_inverse: Int32
    page_shift: Int32
    page_size: Int32
    scale_bytes: Int32
    scales_at: Int32
    token_bytes: Int32
    splits: Int32
    t: Int32
    topk: Int32
    empty_lse: Float32
    lse_scale: Float32
    sm_scale: Float32
    acc: View
    coming: View
    held: View
    lift: View
    o_s: View
    p_s: View
    partial: View
    peak: View
    q_s: View
    qpe_s: View
    red_s: View
    rows: View
    scales: View
    scores: View
    sinks: View
    stat_s: View
    sums: View
    top: View
    unit_s: View
    units: View
    words: View
    x_s: View


def rope_dims(k: SimpleNamespace) -> Size:
    """Dims of a row that are keys but no values: 0 for DeepSeek-V4's rows and for rows without rope."""
    return ROPE_DIM if k.kv in ("bf16", "fp8") else Size(0, "ROPE")


def unpacked(k: SimpleNamespace) -> bool:
    """Whether rows are fp8 tokens that threads unpack to bf16."""
    return k.kv in ("fp8", "nope8") or two_scopes(k)


def two_scopes(k: SimpleNamespace) -> bool:
    """Whether queries attend to two paged caches in one softmax.

    DeepSeek-V4's queries do: to a window and to compressed tokens.
    """
    return k.kv in ("v4", "v41")


def head_block(k: SimpleNamespace) -> int:
    """Heads of one CTA: those of `block`, or all up to a limit.

    Tensor memory has room for 64 heads, and a warpgroup's registers have room for 32.
    """
    most = Size(32 if hasattr(k, "stages") else 64, "HEAD_BLOCK")
    return getattr(k, "block", 0) or min(k.heads, most)


def heads_on_m(k: SimpleNamespace) -> bool:
    """Whether heads are on M instead of N: in Hopper's blocks of 64."""
    return hasattr(k, "stages") and getattr(k, "block", 0) == 64


def is_lone(k: SimpleNamespace) -> bool:
    """Whether 64 heads are on M in one CTA on Blackwell."""
    return not hasattr(k, "stages") and (k.heads, k.tile, getattr(k, "block", 0)) == (64, 64, 64)


def goes_on(k: SimpleNamespace) -> bool:
    """Whether a CTA on Blackwell goes on from query to query.

    Kernels with heads on M go on. Kernels with heads on N go on if their threads gather and the number of
    heads is fixed. The exceptions are 64 and 128 heads of bf16 rows, which have kernels with heads on M too.
    """
    if hasattr(k, "stages"):
        return False
    heads = (8, 16, 32) if k.kv == "bf16" else (8, 16, 32, 64, 128)
    return is_lone(k) or k.tile == 128 or (k.gather == "cp_async" and k.heads in heads)


def lacks_registers(k: SimpleNamespace) -> bool:
    """Whether a thread that goes on has no registers for what stays the same from query to query.

    Its 32 or 64 heads are on N. The thread computes such addresses and numbers anew for each query.
    """
    return goes_on(k) and not is_lone(k) and k.tile == 64 and head_block(k) in (32, 64)


def slices_of(k: SimpleNamespace) -> int:
    """How many CTAs share out the dims of one split."""
    return getattr(k, "slices", 1)


def shares_out(k: SimpleNamespace) -> bool:
    """Whether a CTA takes a share of the tiles of all queries."""
    return heads_on_m(k) or goes_on(k)


def has_pairs(k: SimpleNamespace) -> bool:
    """Whether a unit of a CTA's share is a pair of tiles: on Hopper, of bf16 rows with heads on M."""
    return heads_on_m(k) and not unpacked(k)


def units_of(k: SimpleNamespace, tiles: int) -> int:
    """Units of a query of so many tiles."""
    return -(-tiles // 2) if has_pairs(k) else tiles


def head_blocks(k: SimpleNamespace) -> Any:
    """Blocks of heads of a query: a number, or an expression of the call's heads if the number is open."""
    if k.heads == "any":
        return ceildiv(dim("heads"), head_block(k))
    return k.heads // head_block(k)


def one_block(k: SimpleNamespace) -> bool:
    """Whether all heads of every call are one block."""
    return bool(k.heads == head_block(k))


def padded_heads(k: SimpleNamespace) -> Any:
    """Heads that all blocks of a query together have room for."""
    return head_blocks(k) * head_block(k) if k.heads == "any" else k.heads


def blocks_of(k: SimpleNamespace, dims: Mapping[str, int]) -> int:
    """How many pairs of a query and a block of heads a call has."""
    return dims["t"] * size_at(head_blocks(k), dims)


def sliced_ctas_per_sm(k: SimpleNamespace) -> int:
    """CTAs per SM of a kernel with slices: two CTAs of small tiles hide each other's exchange."""
    return 2 if k.stages == 2 and head_block(k) <= 16 else 1


def slots(k: SimpleNamespace, gpu: GpuSpec) -> int:
    """How many CTAs of a kernel run at once. CTAs of other clusters than pairs need not."""
    if slices_of(k) > 1:
        return gpu.sms * sliced_ctas_per_sm(k)
    return gpu.slots_in_clusters(2) if k.tile == 128 else gpu.sms


def merged_rows(k: SimpleNamespace) -> int:
    """Rows of a slice of O, each of 16 dims by 8 heads. CTAs send and merge whole rows."""
    return LATENT_DIM // k.slices * head_block(k) // 128


def queries(hb: int, dims: int, rope: int) -> tuple[Buffer, ...]:
    """Buffers of a block of heads of one query. `rope` is 0 if its rope dims are among the others."""
    return (
        Buffer("q_s", Space.SHARED, (hb, dims), "bfloat16", swizzle=128),
        *rope_rows("qpe_s", hb, rope),
    )


def queries_of(walk: Any) -> tuple[Global, ...]:
    """The operands of the queries: latent and rope dims apart, or all dims in one if all are values."""
    return (walk.q_nope, walk.q_pe) if rope_dims(walk.m.k) else (walk.q_rows,)


def rope_rows(name: str, rows: int, rope: int, stages: int = 1) -> tuple[Buffer, ...]:
    """The buffer of rows of rope dims; none if rows have no separate rope dims."""
    if not rope:
        return ()
    return (Buffer(name, Space.SHARED, (rows, rope), "bfloat16", stages, swizzle=min(128, 2 * rope)),)


def tiles_of(k: SimpleNamespace, dims: Mapping[str, int]) -> int:
    """Tiles of a query in all scopes. Each scope begins a tile of its own."""
    return sum(-(-dims.get(topk, 0) // k.tile) for topk in ("topk", "extra_topk"))


def gathers_alone(k: SimpleNamespace, dims: Mapping[str, int]) -> bool:
    """Whether whole bf16 rows are gathered on Hopper, and those of a query by one block of heads only."""
    alone = slices_of(k) == 1 and not unpacked(k) and blocks_of(k, dims) == dims["t"]
    return hasattr(k, "stages") and alone


class Ids(State, Kernel):
    """A lane's ids of one tile, and which ids of that tile are valid.

    Attributes:
        low, high: ids `lane` and `lane` + 32 of the tile that was read last; -1 past the last tile.
        in_low, in_high: one bit per lane: whether its id of the tile that `vote` looked at is valid.
        live: whether any id of that tile is valid.
        now_low, now_high: in a role that gathers, the cache rows of its current tile.
    """

    low: Int32
    high: Int32
    in_low: Int32
    in_high: Int32
    live: Boolean
    now_low: Value
    now_high: Value

    @recorded
    def declare(self, suffix: str = "") -> None:
        """Declare the variables. Their names in the kernel end with `suffix`."""
        self.low = named(f"low{suffix}", 0)
        self.high = named(f"high{suffix}", 0)
        self.in_low = named(f"in_low{suffix}", 0)
        self.in_high = named(f"in_high{suffix}", 0)
        self.live = named(f"live{suffix}", False)

    @recorded
    def cache_rows(self, suffix: str = "") -> tuple[Value, Value]:
        """The cache rows of the ids that were read last: variables `now_low` and `now_high` with a suffix."""
        low: Int32 = named(f"now_low{suffix}", 0)
        high: Int32 = named(f"now_high{suffix}", 0)
        leaf_gather.find_rows(
            self.m, low, high, self.low, self.high, self.cached, self.page_inverse, self.page_shift,
            self.page_gap,
        )  # fmt: skip
        return low, high

    @recorded
    def vote(self) -> None:
        """Find out which of the ids that were read last are valid."""
        leaf_gather.vote(self.m, self.in_low, self.in_high, self.live, self.low, self.high, self.cached)

    def read_ids(self, turn: Value) -> None:
        """Read the ids of the tile of a turn."""
        raise NotImplementedError

    @recorded
    def enter(self, turn: Value, *, keep_rows: bool = False) -> None:
        """Go to the tile of a turn; `live` then says whether the tile has a valid id.

        The ids of the next tile are read meanwhile.

        Args:
            keep_rows: keep this tile's rows as `now_low` and `now_high`.
        """
        self.vote()
        if keep_rows:
            self.now_low, self.now_high = self.cache_rows()
        self.read_ids(turn + 1)


class Scopes(Ids):
    """Ids of two scopes. The tiles of the second scope come after those of the first.

    Attributes:
        known: the number of tokens of the scope whose ids were read last.
        of_extra: whether that scope is the second one.
        now_extra: in a role that gathers, whether its current tile is of the second scope.
    """

    known: Int32
    of_extra: Boolean
    now_extra: Value

    @recorded
    def declare(self, suffix: str = "") -> None:
        super().declare(suffix)
        self.known = 0
        self.of_extra = False

    @recorded
    def vote(self) -> None:
        leaf_gather.vote(self.m, self.in_low, self.in_high, self.live, self.low, self.high, self.known)

    @recorded
    def cache_rows(self, suffix: str = "") -> tuple[Value, Value]:
        """The ids that were read last: variables `now_low` and `now_high` with a suffix.

        `now_extra` says whether the ids are of the second scope.
        """
        low: Int32 = named(f"now_low{suffix}", self.low)
        high: Int32 = named(f"now_high{suffix}", self.high)
        self.now_extra = named(f"now_extra{suffix}", self.of_extra)
        return low, high

    @recorded
    def read_scope(
        self, row: Value, tile: Value, extra_tile: Value, near: Value, end: Value, extra_end: Value
    ) -> None:
        """Read the ids of a tile of a query, from the tile's scope.

        Args:
            extra_tile: the tile's number in the second scope, if `tile` is not among the first `near` tiles.
            end, extra_end: how many ids of each scope count.
        """
        m, ids = self.m, (self.low, self.high)
        self.of_extra = tile >= near
        self.known = self.cached
        if self.of_extra:
            self.known = self.extra_cached
            leaf_gather.read_ids(m, *ids, self.extra_indices, row, extra_tile, extra_end)
        else:
            leaf_gather.read_ids(m, *ids, self.indices, row, tile, end)

    @recorded
    def pages_of_tile(self) -> Pages:
        """The pages of the tile's scope."""
        cached: Int32 = named("now_cached", self.cached)
        inverse: Int32 = named("now_inverse", self.page_inverse)
        shift: Int32 = named("now_shift", self.page_shift)
        size: Int32 = named("now_size", self.page_size)
        if self.now_extra:
            cached = self.extra_cached
            inverse = self.extra_page_inverse
            shift = self.extra_page_shift
            size = self.extra_page_size
        if self.m.k.kv == "v4":
            return Pages(cached, inverse, shift, size)
        token: Int32 = named("now_token", self.token_bytes)
        begin: Int32 = named("now_scales", self.scales_at)
        each: Int32 = named("now_scale", self.scale_bytes)
        if self.now_extra:
            token = self.extra_token_bytes
            begin = self.extra_scales_at
            each = self.extra_scale_bytes
        return PlacedPages(cached, inverse, shift, size, token, begin, each)


class Walk(Ids):
    """This CTA's query, heads and tiles.

    Each role reads the ids itself and walks the tiles that have a valid id.

    Attributes:
        row, head0: the query, and the first head.
        which: the slice of the dims.
        split, splits_of_row: the CTA takes tiles `split`, `split + splits_of_row`, ...
        end: how many of the query's ids count.
        turns: how many tiles the CTA takes.
        it: live tiles so far.
    """

    row: Value
    head0: Value
    which: Value
    split: Value
    splits_of_row: Value
    end: Int32
    turns: Int32
    it: Int32

    @recorded
    def read_ids(self, turn: Value) -> None:
        """Read the ids of the tile of a turn."""
        tile = inline(self.split + turn * self.splits_of_row)
        leaf_gather.read_ids(self.m, self.low, self.high, self.indices, self.row, tile, self.end)

    @recorded
    def take_all(self) -> None:
        """Let all ids of the query count."""
        self.end = self.topk
        self.turns = 0
        self.count_turns()

    @recorded
    def take_counted(self) -> None:
        """Let as many ids of the query count as the call says."""
        if self.has_lengths != 0:
            self.end = ids_that_count(self.m, self.topk_length, self.row, self.topk)
            self.count_turns()

    @recorded
    def count_turns(self) -> None:
        """Compute how many tiles this CTA takes."""
        tiles = inline(self.tiles())
        self.turns = (tiles - self.split + self.splits_of_row - 1) // self.splits_of_row

    def tiles(self) -> Value:
        """How many tiles of the query have ids that count."""
        return ceildiv(self.end, self.m.k.tile)


class TwoScopes(Scopes, Walk):
    """A walk over the tiles of the first scope, then over those of the second.

    Attributes:
        extra_end: how many of the query's ids of the second scope count.
    """

    extra_end: Int32

    @recorded
    def read_ids(self, turn: Value) -> None:
        tile = inline(self.split + turn * self.splits_of_row)
        near = inline(ceildiv(self.end, self.m.k.tile))
        self.read_scope(self.row, tile, tile - near, near, self.end, self.extra_end)

    @recorded
    def take_all(self) -> None:
        self.extra_end = self.extra_topk
        super().take_all()

    @recorded
    def take_counted(self) -> None:
        if self.has_extra_lengths != 0:
            self.extra_end = ids_that_count(self.m, self.extra_topk_length, self.row, self.extra_topk)
            self.count_turns()
        super().take_counted()

    def tiles(self) -> Value:
        return ceildiv(self.end, self.m.k.tile) + ceildiv(self.extra_end, self.m.k.tile)


def _pages(walk: Any, scope: str = "") -> Pages:
    """The pages of a scope: the kernel has their fields by name."""
    kind = PAGES[walk.m.k.kv]
    return kind(**{each.name: getattr(walk, f"{scope}{each.name}") for each in fields(kind)})


@recorded
def at_cache(walk: Any, use: Callable[..., None], *, ahead: bool = False) -> None:
    """Call `use` with the memory of a tile's tokens and what locates a token in it.

    Args:
        walk: if it has two scopes, its `now_extra` says of which one the tile is.
        ahead: use the tile whose ids were read last; the walk's `of_extra` says of which scope that tile is.
    """
    if not two_scopes(walk.m.k):
        use(walk.kv_cache, walk.n)
    elif walk.of_extra if ahead else walk.now_extra:
        use(walk.extra_kv_pages, _pages(walk, "extra_"))
    else:
        use(walk.kv_pages, _pages(walk))


@recorded
def start(m: Recorder) -> Walk:
    """Compute this CTA's place and read its first ids.

    Nothing before the ids reads what the previous kernel wrote.
    """
    walk: Walk = TwoScopes(m) if two_scopes(m.k) else Walk(m)
    blocks, slices, splits = head_blocks(m.k), slices_of(m.k), walk.splits
    walk.row = m.block(0) if one_block(m.k) else m.block(0) // blocks
    walk.head0 = 0 if one_block(m.k) else m.block(0) % blocks * m.c.head_block
    if slices > 1:
        m.comment("The CTAs of a slice group have consecutive ranks and walk the same tiles.")
    walk.which = m.block(1) % slices if slices > 1 else 0
    clustered = len(m.schedule.axes) == 3
    walk.split = m.block(2) * (m.k.cluster // slices) + m.block(1) // slices if clustered else m.block(1)
    walk.splits_of_row = splits // slices if clustered else splits
    walk.take_all()
    walk.it = 0
    walk.declare()
    # On Blackwell the wait comes before the allocation of tensor memory: a kernel that waits while it holds
    # some could keep the previous kernel from its own.
    if m.arch.tmem_columns:
        m.depend()
    m.barriers_stand()
    if slices > 1:
        m.comment("The other CTAs' barriers must be initialised before this CTA sends anything to them.")
        m.cluster_arrive(relaxed=True)
    if not m.arch.tmem_columns:
        m.depend()
    walk.take_counted()
    walk.read_ids(0)
    return walk


@recorded
def ids_that_count(m: Recorder, lengths: Global, row: Value, topk: Value) -> Value:
    """How many of a query's ids count: the call's length, between 0 and `topk`."""
    return maximum(minimum(m.word(lengths, row), topk), 0)


@recorded
def end_of_cluster(m: Recorder) -> None:
    """Arrive at the cluster's barriers: a role that does not merge must arrive too."""
    if m.k.cluster > 1:
        if slices_of(m.k) == 1:
            m.cluster_arrive()
        m.cluster_wait()


@recorded
def merge_splits(
    walk: Walk, barrier: str, merge: Callable[[Value, Value], None], query: Value | None = None
) -> None:
    """Merge the splits of a query after they have written their parts.

    The splits of a cluster meet at its barrier, and all splits of a query meet at a counter. If there is more
    than one cluster, or if the CTAs do not all run at once, no CTA waits: those that arrive last merge alone.

    Args:
        barrier: the named barrier of the threads that merge.
        merge: `merge(share, shares)` joins this CTA's share of the result.
        query: the number of the query and block of heads; by default the index on the grid's first axis.
    """
    m, cluster, splits = walk.m, walk.m.k.cluster, walk.splits
    query = inline(m.block(0) if query is None else query)
    merges: Boolean = True
    if cluster > 1:
        m.cluster_arrive()
        m.cluster_wait()
        if splits > cluster:
            counter = inline(query * cluster + m.block(1))
            m.take_ticket(merges, "last_s", "arrivals", counter, splits // cluster, barrier)
        if merges:
            merge(m.block(1), cluster)
    else:
        share: Int32 = walk.split
        shares: Int32 = splits
        together = inline(walk.all_resident != 0)
        if together:
            m.count_in("arrivals", query, barrier)
            m.await_count("arrivals", query, splits, barrier)
        else:
            m.take_ticket(merges, "last_s", "arrivals", query, splits, barrier)
            share = 0
            shares = 1
        if merges:
            merge(share, shares)
        if together:
            m.count_out("arrivals", query, splits, barrier)


def heads_of_call(m: Recorder) -> Any:
    """The heads of the call if its last block may have room for more; None if all blocks are full."""
    return Kernel(m).heads if m.k.heads == "any" else None
