"""Functions that leaf texts may call in any DSL: powers, bits, warp-wide operations, atomics, copies.

An int32 also stands for any word of 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..._torch import torch
from ...errors import ScheduleError
from ...tile.arithmetic import number, signed, unsigned
from ...tile.leaf_text import WARP, Function
from ...tile.threads import Inboxes, Place, Threads, elements


def _bits(word: Any) -> torch.Tensor:
    return torch.as_tensor(unsigned(word))[..., None] >> torch.arange(32) & 1


def _length(word: Any) -> torch.Tensor:
    """The number of the highest bit that is set, from 1; 0 for none."""
    return torch.frexp(torch.as_tensor(unsigned(word)).double())[1].long()


exp2 = Function("exp2", "float32", lambda x: torch.exp2(number(x)))
"""2 ** x, approximately."""

log2 = Function("log2", "float32", lambda x: torch.log2(number(x)))
"""log2(x), approximately; -inf for 0."""

rcp_approx = Function("rcp_approx", "float32", lambda x: 1.0 / number(x))
"""1 / x, approximately."""

popc = Function("popc", "int32", lambda word: _bits(word).sum(dim=-1))
"""The number of bits that are set."""

clz = Function("clz", "int32", lambda word: 32 - _length(word))
"""The number of zeros above the highest bit that is set."""

mul_hi = Function("mul_hi", "uint32", lambda a, b: a * b >> 32)
"""The upper half of the product of two uint32."""

pair_low = Function("pair_low", "int32", signed)
"""The lower half of an int64."""

pair_high = Function("pair_high", "int32", lambda pair: signed(pair >> 32))
"""The upper half of an int64."""

make_pair = Function("make_pair", "int64", lambda high, low: high << 32 | unsigned(low))
"""An int64 with `high` in its upper half and `low` in its lower half."""

unsigned_above = Function("unsigned_above", "bool", lambda a, b: a ^ (-1 << 63) > b ^ (-1 << 63))
"""Whether an int64 is greater than another, both read as unsigned."""


def _ballot(threads: Threads, condition: Any) -> torch.Tensor:
    lanes = threads.by_warp(condition).long() << torch.arange(WARP)
    return signed(lanes.sum(dim=1, keepdim=True).expand(-1, WARP).reshape(-1))


def _shuffle(threads: Threads, value: Any, lane: Any) -> torch.Tensor:
    from_lane = threads.spread(lane).view(-1, WARP).clamp(0, WARP - 1)
    return threads.by_warp(value).gather(1, from_lane).reshape(-1)


ballot = Function("ballot", "int32", _ballot, joint=True)
"""A mask with a bit for each lane in which a condition holds."""

any_lane = Function("any_lane", "bool", lambda threads, yes: _ballot(threads, yes) != 0, joint=True)
"""Whether a condition holds in a lane of the warp."""

shuffle = Function("shuffle", "int32", _shuffle, joint=True)
"""The value of lane `lane` of the warp."""

exchange = Function(
    "exchange",
    "float32",
    lambda t, value, bits: t.by_warp(value)[:, torch.arange(WARP) ^ bits].reshape(-1),
    joint=True,
)
"""The value of the lane whose number differs in these bits."""

scan = Function(
    "scan", "int32", lambda t, value, lanes=WARP: t.by_warp(value).cumsum(dim=1).reshape(-1), joint=True
)
"""The inclusive prefix sum over lanes; only the first `lanes` lanes, a power of two, get the right value."""

warp_sum = Function(
    "warp_sum", "int32", lambda t, value: t.by_warp(value).sum(dim=1).repeat_interleave(WARP), joint=True
)
"""The sum over the lanes of a warp."""

warp_max = Function(
    "warp_max", "int32", lambda t, value: t.by_warp(value).amax(dim=1).repeat_interleave(WARP), joint=True
)
"""The largest int32 in the lanes of a warp; none may be negative."""

warp_most = Function(
    "warp_most", "uint32", lambda t, value: t.by_warp(value).amax(dim=1).repeat_interleave(WARP), joint=True
)
"""The largest uint32 in the lanes of a warp."""


def _one_by_one(change: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """An atomic operation, by the active threads one after the other; returns the previous values."""

    def act(threads: Threads, place: Place, value: Any) -> torch.Tensor:
        before, values = torch.zeros(threads.count, dtype=torch.int64), threads.spread(value).tolist()
        places = place.of(threads.active).tolist()
        for i in torch.nonzero(threads.active).flatten().tolist():
            at = places[i]
            before[i] = place.memory[at]
            place.memory[at] = signed(torch.tensor(change(int(before[i]), values[i])))
        return before

    return act


def _add(threads: Threads, place: Place, value: Any) -> None:
    added = threads.spread(value)[threads.active].to(place.memory.dtype)
    place.memory.index_add_(0, place.of(threads.active)[threads.active], added)


atomic_add = Function("atomic_add", "int32", _add, joint=True)
"""Add to a word of shared memory, atomically."""


def _count_where(threads: Threads, place: Place, yes: Any) -> None:
    before = threads.active
    threads.active = before & threads.spread(yes)
    _add(threads, place, 1)
    threads.active = before


count_where = Function("count_where", "int32", _count_where, joint=True)
"""Add 1 to a word of shared memory, atomically, where a condition holds."""

fetch_add = Function("fetch_add", "int32", _one_by_one(lambda old, value: old + value), joint=True)
"""Add to a word of shared memory, atomically; returns the previous value."""

set_bits = Function("set_bits", "int32", _one_by_one(lambda old, bits: old | bits), joint=True)
"""Set bits of a word of shared memory, atomically."""

raise_to = Function(
    "raise_to", "int32", _one_by_one(lambda old, value: max(unsigned(old), value)), joint=True
)
"""Raise a uint32 in shared memory to at least a value, atomically (`atom.max`)."""


def _peers(threads: Threads, place: Place, rank: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """For each CTA that active threads name: those threads, and the CTA's memory."""
    ranks = threads.spread(rank)
    for peer in ranks[threads.active].unique().tolist():
        if not 0 <= peer < len(place.memory):
            raise ScheduleError(
                "a leaf",
                expected="memory of CTAs of the cluster that have begun",
                got=f"that of CTA {peer}, without a wait for the cluster",
                fix="say m.cluster_arrive() and m.cluster_wait() before a CTA touches another one's memory",
            )
        yield threads.active & (ranks == peer), place.memory[peer].view(-1)


def _store_peer(threads: Threads, place: Place, rank: Any, value: Any) -> None:
    values = threads.spread(value)
    for naming, memory in _peers(threads, place, rank):
        memory[place.index[naming]] = values[naming].to(memory.dtype)


def _load_peer_pair(threads: Threads, place: Place, rank: Any) -> torch.Tensor:
    pairs = torch.zeros(threads.count, dtype=torch.int64)
    for naming, memory in _peers(threads, place, rank):
        at = place.index[naming]
        pairs[naming] = memory[at + 1].long() << 32 | unsigned(memory[at].long())
    return pairs


store_peer = Function("store_peer", "int32", _store_peer, joint=True)
"""Store at the same address in CTA `rank` of the cluster."""

load_peer_pair = Function("load_peer_pair", "int64", _load_peer_pair, joint=True)
"""Two neighbouring int32, as an int64, from the same address in CTA `rank` of the cluster."""

sync_warp = Function("sync_warp", "int32", lambda threads: None, joint=True)
"""Make what the lanes of the warp have written to shared memory visible to all of them."""


def _load_or(threads: Threads, place: Place, wanted: Any, otherwise: int) -> torch.Tensor:
    taken = threads.active & threads.spread(wanted)
    if not bool(taken.any()):
        return torch.full_like(taken, otherwise, dtype=torch.int64)
    return torch.where(taken, place.memory[place.of(taken)].long(), otherwise)


load_or = Function("load_or", "int32", _load_or, joint=True)
"""The int32 at an address in global memory if wanted; else a Python number, without an access."""


def _words_at(threads: Threads, place: Place, wanted: Any, count: int) -> torch.Tensor:
    """`count` words from an address on, as bytes; zeros for threads that do not want them."""
    taken, size = threads.active & threads.spread(wanted), 4 * count // place.memory.element_size()
    places = place.of(taken, size)[:, None] + torch.arange(size)
    return torch.where(taken[:, None], place.memory[places].view(torch.uint8), 0)


def _put(threads: Threads, place: Place, words: torch.Tensor) -> None:
    values = words.contiguous().view(place.memory.dtype)
    places = place.of(threads.active, values.shape[1])[:, None] + torch.arange(values.shape[1])
    place.memory[places[threads.active]] = values[threads.active]


def _load_vector(
    threads: Threads, registers: torch.Tensor, first: int, count: int, place: Place, wanted: Any
) -> None:
    words = unsigned(_words_at(threads, place, wanted, count).view(torch.int32).long())
    registers[threads.active, first : first + count] = words[threads.active].to(registers.dtype)


def _copy16(threads: Threads, to: Place, source: Place, wanted: Any) -> None:
    _put(threads, to, _words_at(threads, source, wanted, 4))


def _copy8(threads: Threads, to: Place, source: Place, wanted: Any) -> None:
    _put(threads, to, _words_at(threads, source, wanted, 2))


def _copy_row16(
    threads: Threads, to: Place, rows: torch.Tensor, first: Any, row: Any, at: int, n: int
) -> None:
    chosen = threads.spread(row)
    index = chosen * rows.stride(0) + first + at
    _copy16(threads, to, Place(elements(rows), index, "of rows"), (chosen >= 0) & (chosen < n))


def _store_vector(threads: Threads, registers: torch.Tensor, first: int, place: Place) -> None:
    _put(threads, place, registers[:, first : first + 4].int())


def _store_fp8(
    threads: Threads, first: Place, second: Place, registers: torch.Tensor, at: int, scale: Any
) -> None:
    values = registers[:, at : at + 4].int().contiguous().view(torch.float8_e4m3fn).float()
    rounded = (values * threads.spread(scale).int().view(torch.float32)[:, None]).bfloat16()
    _put(threads, first, rounded[:, :8])
    _put(threads, second, rounded[:, 8:])


copy16 = Function("copy16", "int32", _copy16, joint=True)
"""Start to copy 16 bytes from global to shared memory; zeros, without a read, if not wanted."""

copy8 = Function("copy8", "int32", _copy8, joint=True)
"""As `copy16`, 8 bytes."""

copy_row16 = Function("copy_row16", "int32", _copy_row16, joint=True)
"""Start to copy 16 bytes of row `row` of a matrix, from column `first` + `at` on.

If the row is not one of the first `n`, the bytes are zeros, without a read. `at` is added last, so that the
offset in which the copies of a row differ becomes an immediate of the instruction.
"""

prefetch = Function(
    "prefetch", "int32", lambda t, place, wanted: place.of(t.active & t.spread(wanted)), joint=True
)
"""Prefetch the line of an address in global memory into the L2, if wanted."""

load_vector = Function("load_vector", "int32", _load_vector, joint=True)
"""Load one, two or four words from global memory into registers from `first` on.

If not wanted, the registers get zeros, without a read.
"""

store_vector = Function("store_vector", "int32", _store_vector, joint=True)
"""Store four registers from `first` on to shared memory."""

store_fp8 = Function("store_fp8", "int32", _store_fp8, joint=True)
"""Multiply the e4m3 values of four registers from `at` on by the float32 with the bits `scale`.

Each is rounded once to bf16; the first eight are stored at one address, the others at another one.
"""


def _store_matrices(
    threads: Threads, place: Place, registers: torch.Tensor, first: int, count: int, transposed: bool = False
) -> None:
    values = registers[:, first : first + 2 * count].view(-1, 8, 4, count, 2)
    matrices = values.permute(0, 3, 4, 2, 1) if transposed else values.permute(0, 3, 1, 2, 4)
    if transposed:
        matrices = matrices.transpose(2, 3)
    rows, taken = (
        x.view(-1, WARP)[:, : 8 * count].reshape(-1) for x in (place.of(threads.active, 8), threads.active)
    )
    values = matrices.reshape(-1, 8).to(place.memory.dtype)
    place.memory[rows[taken][:, None] + torch.arange(8)] = values[taken]


def _push(threads: Threads, place: Place, values: torch.Tensor) -> None:
    first = place.of(threads.active)[threads.active]
    for i in range(values.shape[1]):
        words = values[threads.active, i]
        if bool(place.memory.view(torch.int32)[first + i].any()):
            raise ScheduleError(
                "words for another CTA",
                expected="each to be sent once a launch",
                got="one that was not read yet",
                fix="send it once",
            )
        place.memory[first + i] = torch.where(words == 0, -0.0, words)


def _send_fours(
    threads: Threads, place: Place, inboxes: Inboxes, rank: Any, registers: torch.Tensor, step: int
) -> None:
    ranks = threads.spread(rank)
    for peer in ranks[threads.active].unique().tolist():
        naming = threads.active & (ranks == peer)
        for i in range(0, registers.shape[1], 4):
            at = place.index[naming][:, None] + (i // 4 * step + torch.arange(4))
            inboxes.put(peer, at, registers[naming, i : i + 4])


def _send_rows(
    threads: Threads, place: Place, inboxes: Inboxes, rank: Any, rows: int, panels: int, tall: int
) -> None:
    ranks, columns = threads.spread(rank)[::WARP], 128 // place.memory.element_size() * panels
    for peer, first in zip(ranks.tolist(), place.index[::WARP].tolist(), strict=True):
        at = first + (torch.arange(rows)[:, None] * inboxes.columns + torch.arange(columns))
        inboxes.put(peer, at, place.memory[at])


send_fours = Function("send_fours", "int32", _send_fours, joint=True)
"""Store registers at the same address in CTA `rank` of the cluster; the bytes count at that CTA's barrier.

Each group of four is `step` elements after the previous one.
"""

send_rows = Function("send_rows", "int32", _send_rows, joint=True)
"""Send rows to the same address in CTA `rank`, by the copy engine; the bytes count at that CTA's barrier.

`rows` rows are sent of each of `panels` panels, which are 128 bytes wide and `tall` rows high. A warp sends
once.
"""

show_copies = Function("show_copies", "int32", lambda threads: None, joint=True)
"""Make what the lanes of the warp have written to shared memory visible to the copy engine."""

push = Function("push", "float32", _push, joint=True)
"""Send two or four floats to another CTA of the grid; a zero goes as -0, as 0 means "not sent yet"."""


store_matrices = Function("store_matrices", "int32", _store_matrices, joint=True)
"""Store two or four 8 x 8 matrices, laid out as a product leaves them, rounded to a 16-bit dtype.

Each matrix takes two registers, from `first` on. Eight lanes give the addresses of a matrix's rows (or
columns, if `transposed`), the next eight lanes those of the next matrix.
"""


def _store_pair(threads: Threads, place: Place, low: Any, high: Any) -> None:
    first = place.of(threads.active)[threads.active]
    for i, value in enumerate((low, high)):
        place.memory[first + i] = threads.spread(value)[threads.active].to(place.memory.dtype)


store_pair = Function("store_pair", "float32", _store_pair, joint=True)
"""Round two floats to bf16 and store them side by side, in one word."""
