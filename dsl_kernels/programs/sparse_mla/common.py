"""What the schedules of sparse MLA share: sizes, memory of the queries, and a CTA's walk over the tiles of its row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace

from ...device.text import sparse_mla as said
from ...problems import layouts
from ...tile.lang import Buffer, Size, Space
from ...tile.text import Expr, Recorder, Value, name

LATENT_DIM, ROPE_DIM = Size(layouts.LATENT_DIM, "LATENT_DIM"), Size(layouts.ROPE_DIM, "ROPE_DIM")
# The running maximum is raised only when it grew by this many powers of two, so most tiles need no rescaling.
RESCALE_LOG2 = Size(8, "RESCALE_LOG2")


def head_block(k: SimpleNamespace) -> int:
    """Heads of one CTA: what its block says, or all. Tensor memory has room for 64, a warpgroup's registers for 32."""
    most = Size(32 if hasattr(k, "block") else 64, "HEAD_BLOCK")
    return getattr(k, "block", 0) or min(k.heads, most)


def blocks_of(k: SimpleNamespace, dims: Mapping[str, int]) -> int:
    """Pairs of a query and a block of heads."""
    return dims["t"] * (k.heads // head_block(k))


def sliced_ctas_per_sm(k: SimpleNamespace) -> int:
    """Two CTAs of small tiles hide each other's exchange."""
    return 2 if k.stages == 2 and head_block(k) <= 16 else 1


def merged_rows(k: SimpleNamespace) -> int:
    """Rows of 16 dims by 8 heads that a slice of O has: what CTAs send one another, and into how many shares it falls apart."""
    return LATENT_DIM // k.slices * head_block(k) // 128


def queries(hb: int, dims: int, rope: int) -> tuple[Buffer, Buffer]:
    """A block of heads of one query."""
    return (
        Buffer("q_s", Space.SHARED, (hb, dims), "bfloat16", swizzle=128),
        Buffer("qpe_s", Space.SHARED, (hb, rope), "bfloat16", swizzle=min(128, 2 * rope)),
    )


@dataclass(frozen=True)
class Walk:
    """This CTA's query, heads and tiles: every role walks the tiles that hold a valid id, on its own reading of the ids."""

    row: Value
    head0: Value
    split: Value
    splits: Value
    turns: Value

    @classmethod
    def named(cls, m: Recorder) -> Walk:
        """As the kernel's start has named them."""
        blocks = m.c.head_blocks
        row = name("row") if blocks > 1 else m.block(0)
        head0: Value = name("head0") if blocks > 1 else 0
        whole = len(m.schedule.axes) == 2
        return cls(
            row, head0, name("split"), m.dim("splits") if whole else name("splits_of_row"), name("turns")
        )


def start(m: Recorder) -> None:
    """Where this CTA is and its first ids; on Hopper before that nothing that a kernel before this one has written."""
    blocks, hb, slices = m.c.head_blocks, m.c.head_block, slices_of(m)
    if blocks > 1:
        m.let("row", m.block(0) // blocks)
        m.let("head0", m.block(0) % blocks * hb)
    splits: Value = m.dim("splits")
    if len(m.schedule.axes) == 3:
        if slices > 1:
            m.comment("The CTAs of a slice group have consecutive ranks and walk the same tiles.")
            m.let("which", m.block(1) % slices)
        m.let("split", m.block(2) * (m.k.cluster // slices) + m.block(1) // slices)
        splits = m.let("splits_of_row", m.dim("splits") // slices)
    m.let("turns", (m.dim("topk") // m.k.tile - name("split") + splits - 1) // splits)
    m.var("it")
    low, high = m.var("low"), m.var("high")
    for text in ("in_low", "in_high"):
        m.var(text)
    m.var("live", False, "bool")
    m.barriers_stand()
    if slices > 1:
        m.comment("The other CTAs' barriers must stand before anything is sent to them.")
        m.cluster_arrive(relaxed=True)
    if not m.arch.tmem_columns:
        m.depend()
    walk = Walk.named(m)
    said.read_ids(m, low, high, walk.row, 0, walk.turns, split=walk.split, splits=walk.splits)


def live_tiles(m: Recorder, walk: Walk | None = None, *, more: int = 0) -> Iterator[Expr]:
    """Turns of the walk; ids are read one turn ahead, and `in_low`, `in_high`, `live` tell which are valid."""
    walk, low, high = walk or Walk.named(m), name("low"), name("high")
    for turn in m.loop("turn", walk.turns + more):
        said.vote(m, name("in_low"), name("in_high"), name("live", "bool"), low, high)
        if str(m.role).startswith(("gather", "producer")):
            m.let("now_low", low)
            m.let("now_high", high)
        said.read_ids(m, low, high, walk.row, turn + 1, walk.turns, split=walk.split, splits=walk.splits)
        yield turn


def until_live(m: Recorder, walk: Walk, turn: Expr) -> Iterator[None]:
    """Turns up to the next tile with a valid id: `live` says whether there is one. Ids are read one turn ahead."""
    low, high, live = name("low"), name("high"), name("live", "bool")
    m.set(live, False)
    for _ in m.repeat(~live & (turn < walk.turns)):
        said.vote(m, name("in_low"), name("in_high"), live, low, high)
        yield
        m.set(turn, turn + 1)
        said.read_ids(m, low, high, walk.row, turn, walk.turns, split=walk.split, splits=walk.splits)


def end_of_cluster(m: Recorder) -> None:
    """The roles that do not merge come to the cluster's meetings all the same."""
    if m.k.cluster > 1:
        if slices_of(m) == 1:
            m.cluster_arrive()
        m.cluster_wait()


def joined_shares(m: Recorder, barrier: str) -> Iterator[tuple[Value, Value]]:
    """Behind what the splits of a query leave: the share of the result that this CTA joins, and how many shares there are.

    Splits of a cluster meet by its barrier, all of a query by a counter. Where there are more clusters, or CTAs than run at
    once (a counter more says so), nobody waits: the last to come joins alone.
    """
    splits, cluster, query = m.dim("splits"), m.k.cluster, m.block(0)
    merges = m.var("merges", True, "bool")
    if cluster > 1:
        m.cluster_arrive()
        m.cluster_wait()
        with m.when(splits > cluster):
            counter = query * cluster + m.block(1)
            m.take_ticket(merges, "last_s", "arrivals", counter, splits // cluster, barrier)
        with m.when(merges):
            yield m.block(1), cluster
        return
    share, shares = m.var("share", name("split")), m.var("shares", splits)
    together = m.let("together", m.dim("arrival_slots") == m.dim("t") * m.c.head_blocks)
    with m.when(together):
        m.count_in("arrivals", query, barrier)
        m.await_count("arrivals", query, splits, barrier)
    with m.otherwise():
        m.take_ticket(merges, "last_s", "arrivals", query, splits, barrier)
        m.set(share, 0)
        m.set(shares, 1)
    with m.when(merges):
        yield share, shares
    with m.when(together):
        m.count_out("arrivals", query, splits, barrier)


def slices_of(m: Recorder) -> int:
    """CTAs that share out the dims of one split."""
    return getattr(m.k, "slices", 1)
