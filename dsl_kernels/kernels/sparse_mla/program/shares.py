"""How CTAs share out the tiles of all queries, and a CTA's walk over its share, from query to query.

Kernels with 64 heads on M use it, and those on Blackwell that go on from query to query.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....device.torch.scalars import anew
from ....tile.frontend import Boolean, Int32, Names, State, inline, named, recorded
from ....tile.text import Expr, Recorder, Value, ceildiv, minimum
from ..leaves import gather as leaf_gather
from .common import (
    Ids,
    Kernel,
    Scopes,
    head_blocks,
    ids_that_count,
    lacks_registers,
    one_block,
    two_scopes,
)


class Shares(Names):
    """The launch's scalars that say which units are whose (`dealing.share_out`)."""

    reach: Int32
    row_step: Int32
    share: Int32
    span: Int32


class Units(State, Kernel, Shares):
    """A CTA's walk over its share of the units. A unit is a tile, or a pair of tiles.

    The units of all queries are numbered consecutively, `span` for each query. Units past a query's last one
    are empty.

    Attributes:
        head0: the first of this CTA's heads.
        unit, end: this CTA has the units from `unit` up to `end`; `unit` moves on with the walk.
        done: how many queries are finished.
        it: live units so far.
        row: the current query.
        turn, turns: the next unit of the current query to read, and where this CTA's units of the query end.
        stop: the number of the query's first id that is not this CTA's or does not count.
        live: whether the unit that `vote` looked at has a valid id.
        now: in a role that gathers a side of each tile, that side's cache rows of the current unit.
    """

    head0: Value
    unit: Int32
    end: Value
    done: Int32
    it: Int32
    row: Expr
    turn: Int32
    turns: Expr
    stop: Value
    live: Boolean
    now: Int32

    def declare(self) -> None:
        """Declare the variables of the ids."""
        raise NotImplementedError

    def enter_query(self) -> Expr:
        """Find this CTA's units of the query `row`, and tell whether there is one."""
        raise NotImplementedError

    @recorded
    def stop_at(self, tiles: Value) -> None:
        """Set `stop`: the first id of the query that does not count or is past its first `tiles` tiles."""
        counted: Int32 = self.topk
        if self.has_lengths != 0:
            counted = ids_that_count(self.m, self.topk_length, self.row, self.topk)
        self.stop = minimum(tiles * _tokens(self.m), counted)

    def read_first(self) -> None:
        """Read the ids of the query's first unit."""
        raise NotImplementedError

    def read_ids(self, turn: Value) -> None:
        """Read the ids of the unit of a turn."""
        raise NotImplementedError

    def vote(self) -> None:
        """Find out which of the ids that were read last are valid."""
        raise NotImplementedError

    @recorded
    def next_live(self, ids: Value | None = None) -> None:
        """Go to the next unit with a valid id; `live` says whether there is one. Ids are read one unit ahead.

        Args:
            ids: `low` or `high`. The rows of these ids are kept in `now` as those of the unit. There are none
                past the last unit.
        """
        if ids is not None:
            self.keep(ids)
        self.live = False
        while not self.live and self.turn < self.turns:
            self.vote()
            if ids is not None:
                self.keep(ids)
            self.turn += 1
            self.read_ids(self.turn)
        if ids is not None:
            self.find_rows()

    @recorded
    def keep(self, ids: Value) -> None:
        """Keep the ids that were read last as those of the current unit."""
        self.now = ids

    @recorded
    def find_rows(self) -> None:
        """Find the cache rows of the ids in `now`."""
        leaf_gather.find_row(
            self.m, self.now, self.now, self.cached, self.page_inverse, self.page_shift, self.page_gap
        )


class Tiles(Ids, Units):
    """Units are tiles. Turns count all tiles of a query from 0, so this CTA's tiles begin at some `turn`."""

    @recorded
    def enter_query(self) -> Expr:
        self.turn = self.unit - self.row * self.span
        self.turns = minimum(self.end - self.row * self.span, units_of_query(self.m))
        return self.turn < self.turns

    @recorded
    def read_first(self) -> None:
        self.stop_at(self.turns)
        self.read_ids(self.turn)

    @recorded
    def read_ids(self, turn: Value) -> None:
        leaf_gather.read_ids(self.m, self.low, self.high, self.indices, self.row, turn, self.stop)


class OfTwoScopes(Scopes, Units):
    """Units are tiles. A query's tiles of the second scope come after those of the first.

    Attributes:
        near: the tiles of the first scope.
        extra_stop: as `stop`, for the second scope.
    """

    near: Value
    extra_stop: Value

    @recorded
    def stop_extra_at(self, tiles: Value) -> None:
        """Set `extra_stop`, if this CTA takes the query's first `tiles` tiles at most."""
        self.near = ceildiv(self.topk, self.m.k.tile)
        counted: Int32 = named("extra_counted", self.extra_topk)
        if self.has_extra_lengths != 0:
            counted = ids_that_count(self.m, self.extra_topk_length, self.row, self.extra_topk)
        self.extra_stop = minimum((tiles - self.near) * self.m.k.tile, counted)

    @recorded
    def read_tile(self, tile: Value) -> None:
        """Read the ids of a tile of the query, from the tile's scope."""
        near = inline(anew(self.near) if lacks_registers(self.m.k) else self.near)
        self.read_scope(self.row, tile, tile - near, self.near, self.stop, self.extra_stop)


class TilesOfTwoScopes(OfTwoScopes, Tiles):
    """As `Tiles`. `now_extra` says whether the rows in `now` are of the second scope."""

    now_extra: Boolean

    @recorded
    def declare(self, suffix: str = "") -> None:
        super().declare(suffix)
        self.now_extra = False

    @recorded
    def read_first(self) -> None:
        self.stop_extra_at(self.turns)
        super().read_first()

    @recorded
    def read_ids(self, turn: Value) -> None:
        self.read_tile(turn)

    @recorded
    def keep(self, ids: Value) -> None:
        super().keep(ids)
        self.now_extra = self.of_extra

    @recorded
    def find_rows(self) -> None:
        """Do nothing: leaves that read tokens of pages find their rows."""


class OwnTurns(Units):
    """Turns count this CTA's units of a query from 0.

    Attributes:
        first: the number, among all units of the query, of this CTA's first unit.
    """

    first: Value

    @recorded
    def enter_query(self) -> Expr:
        self.first = self.unit - self.row * self.span
        self.turns = minimum(self.end - self.unit, units_of_query(self.m) - self.first)
        return self.turns > 0


class TilesInTurn(Ids, OwnTurns):
    """Units are tiles."""

    @recorded
    def read_first(self) -> None:
        self.stop_at(self.first + self.turns)
        self.read_ids(0)

    @recorded
    def read_ids(self, turn: Value) -> None:
        leaf_gather.read_ids(
            self.m, self.low, self.high, self.indices, self.row, self.first + turn, self.stop
        )


class TwoScopesInTurn(OfTwoScopes, TilesInTurn):
    """As `TilesInTurn`."""

    @recorded
    def read_first(self) -> None:
        self.stop_extra_at(self.first + self.turns)
        super().read_first()

    @recorded
    def read_ids(self, turn: Value) -> None:
        self.read_tile(self.first + turn)


class Pairs(OwnTurns):
    """Units are pairs of tiles.

    Attributes:
        left, right: the ids of the first and of the second tile of a pair.
    """

    left: Ids
    right: Ids

    @recorded
    def declare(self) -> None:
        self.left, self.right = Ids(self.m), Ids(self.m)
        self.left.declare("_left")
        self.right.declare("_right")
        self.live = False

    @recorded
    def read_first(self) -> None:
        self.stop_at((self.first + self.turns) * 2)
        self.read_ids(0)

    @recorded
    def read_ids(self, turn: Value) -> None:
        for number, ids in enumerate((self.left, self.right)):
            tile = inline((self.first + turn) * 2 + number)
            leaf_gather.read_ids(self.m, ids.low, ids.high, self.indices, self.row, tile, self.stop)

    @recorded
    def vote(self) -> None:
        self.left.vote()
        self.right.vote()
        self.live = self.left.live | self.right.live


@recorded
def _walk_of(m: Recorder, of: Callable[[Recorder], Units] | None) -> Units:
    """A walk over a kernel's units, of the class `of` if the kernel has a class of its own."""
    if of is not None:
        return of(m)
    if m.c.unit == 2:
        return Pairs(m)
    if m.arch.tmem_columns:
        return TwoScopesInTurn(m) if two_scopes(m.k) else TilesInTurn(m)
    return TilesOfTwoScopes(m) if two_scopes(m.k) else Tiles(m)


@recorded
def start(m: Recorder, of: Callable[[Recorder], Units] | None = None) -> Units:
    """Compute this CTA's block of heads, while the previous kernel ends."""
    walk = _walk_of(m, of)
    walk.head0 = 0 if one_block(m.k) else place_of_cta(m)[1] * m.c.head_block
    walk.done = 0
    walk.it = 0
    walk.declare()
    # On Blackwell the wait comes before the allocation of tensor memory: a kernel that waits while it holds
    # some could keep the previous kernel from its own.
    if m.arch.tmem_columns:
        m.depend()
    m.barriers_stand()
    if not m.arch.tmem_columns:
        m.depend()
    return walk


@recorded
def _tokens(m: Recorder) -> int:
    """Tokens of a tile of one CTA. A pair of CTAs works on two such tiles at once."""
    tokens: int = m.k.tile
    return tokens // 2 if m.schedule.pairs else tokens


@recorded
def units_of_query(m: Recorder) -> Value:
    """Units of a query: tiles, or pairs of them."""
    tiles = inline(ceildiv(Kernel(m).topk, _tokens(m)))
    if two_scopes(m.k):
        if lacks_registers(m.k):
            return ceildiv(anew(Kernel(m).topk), m.k.tile) + ceildiv(anew(Kernel(m).extra_topk), m.k.tile)
        return tiles + ceildiv(Kernel(m).extra_topk, m.k.tile)
    return (tiles + 1) // 2 if m.c.unit == 2 else tiles


@recorded
def place_of_cta(m: Recorder) -> tuple[Value, Value]:
    """The number of this CTA's share, and its block of heads.

    The CTAs of a cluster have the same share and different blocks.
    """
    blocks = head_blocks(m.k)
    if m.schedule.cluster_ctas > 1:
        return m.block(0), m.block(1)
    return m.block(0) if one_block(m.k) else m.block(0) // blocks, m.block(0) % blocks


@recorded
def each_query(m: Recorder, walk: Units, at_query: Callable[[], None]) -> None:
    """Call `at_query` for each query of which this CTA has units."""
    walk.unit = place_of_cta(m)[0] * walk.share
    walk.end = place_of_cta(m)[0] * walk.share + walk.reach
    while walk.unit < walk.end:
        walk.row = walk.unit // walk.span
        some = inline(walk.enter_query())
        if walk.row < walk.t and some:
            walk.read_first()
            at_query()
            walk.done += 1
        walk.unit = next_row(walk) * walk.span


@recorded
def next_row(walk: Units) -> Value:
    """The query after the current one."""
    return walk.row + walk.row_step


@recorded
def has_next(walk: Units) -> Value:
    """Whether this CTA has units of the query after the current one."""
    return (next_row(walk) * walk.span < walk.end) & (next_row(walk) < walk.t)


@recorded
def parts_of_query(walk: Units, row: Value) -> tuple[Value, Value, Value]:
    """The number of this CTA's part of a query, how many parts it has, and the number of its counter."""
    which, block = place_of_cta(walk.m)
    from_cta = row * walk.span // walk.share
    parts = (row * walk.span + units_of_query(walk.m) - 1) // walk.share - from_cta + 1
    return which - from_cta, parts, row * head_blocks(walk.m.k) + block


@recorded
def write_part(walk: Units, write: Callable[[Any, Any, Value | None], None]) -> None:
    """Write a query's result, or this CTA's part of it, by `write(to, lses, part)`; no part is the result."""
    part, parts, counter = parts_of_query(walk, walk.row)
    if parts > 1:
        write(walk.o_partial, walk.lse_partial, anew(part) if lacks_registers(walk.m.k) else part)
        walk.m.count_in("arrivals", counter, "softmax")
    else:
        write(walk.out, walk.lse, None)


@recorded
def merge_parts(walk: Units, barrier: str, merge: Callable[[Value, Value, Value], None]) -> None:
    """Merge this CTA's share of each query of which it has a part, after it has written all of its parts.

    Args:
        barrier: the named barrier of the threads that merge.
        merge: `merge(row, part, parts)` joins the share. It takes the query, the number of this CTA's part of
            the query, and how many parts there are.
    """
    m = walk.m
    if walk.splits > 1:
        walk.unit = place_of_cta(m)[0] * walk.share
        while walk.unit < walk.end:
            row = walk.unit // walk.span
            part, parts, counter = parts_of_query(walk, row)
            if row < walk.t and walk.unit - row * walk.span < units_of_query(m) and parts > 1:
                m.await_count("arrivals", counter, parts, barrier)
                merge(row, part, parts)
                m.count_out("arrivals", counter, parts, barrier)
            walk.unit = row * walk.span + walk.span
