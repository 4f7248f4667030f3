"""TileLang's functions for the FP8 lightning indexer's leaves: how CTAs share key tiles."""

import tilelang.language as T

PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_warp_specialized": True,
    # Loop unswitching moves the election of the copying lane out of a loop, and the warp shuffles of that
    # loop with it.
    "tl.disable_loop_unswitching": True,
}
# On Hopper each thread holds its own part of a register tile, as products leave it.
OWN_REGISTERS = True


def ceildiv(count, size):
    """The ceiling of count / size, both not negative. C division needs no correction of signs."""
    return T.truncdiv(count + size - 1, size)


def share_begin(total, part, parts):
    """First unit of share `part`, of `parts` shares of `total` units whose sizes differ by at most one."""
    return part * T.truncdiv(total, parts) + T.min(part, T.truncmod(total, parts))


def share_size(total, part, parts):
    """Units in share `part`."""
    return T.truncdiv(total, parts) + T.if_then_else(part < T.truncmod(total, parts), 1, 0)


def quotient(count, size):
    return T.truncdiv(count, size)


def shuffle_length(length, lane):
    return length


@T.macro
def needed(seq_lens, b, next_n, skip_below, seq):
    """The longest prefix of sequence `seq` that one of its queries has to score; 0 past the batch."""
    need = T.alloc_var("int32", init=0)
    if seq < b:
        for i in T.unroll(next_n, unroll_factor=1):
            length = seq_lens[seq, i]
            if length > skip_below:
                need = T.max(need, length)
    return need


@T.macro
def warp_prefix_sum(value, lane):
    """Inclusive prefix sum over the lanes of a warp."""
    upto = T.alloc_var("int32", init=0)
    upto = value
    for d in T.unroll(5):
        other = T.shfl_up(upto, 1 << d)
        upto = upto + T.if_then_else(lane >= (1 << d), other, 0)
    return upto


@T.macro
def find_share(
    seq: T.Ref, tile: T.Ref, need: T.Ref, turns: T.Ref, step: T.Ref, seq_lens, b, next_n, skip_below, keys,
    cta, ctas, lane
):  # fmt: skip
    """This macro has no case for one sequence, unlike the leaf's text.

    With TileLang's division that case costs more than it saves.
    """
    tiles = T.alloc_var("int32", init=0)
    total = T.alloc_var("int32", init=0)
    longest = T.alloc_var("int32", init=0)
    begin = T.alloc_var("int32", init=0)
    upto = T.alloc_var("int32", init=0)
    before = T.alloc_var("int32", init=0)
    first = T.alloc_var("int32", init=0)
    first = need
    total = ceildiv(first, keys)
    longest = total
    for c in T.serial(1, T.ceildiv(b, 32)):
        tiles = ceildiv(needed(seq_lens, b, next_n, skip_below, c * 32 + lane), keys)
        total = total + tiles
        longest = T.max(longest, tiles)
    total = T.warp_reduce_sum(total)
    longest = T.warp_reduce_max(longest)
    if (b <= ctas) & (longest <= ceildiv(total, ctas) * step):
        need = needed(seq_lens, b, next_n, skip_below, seq)
        turns = T.truncdiv(T.max(ceildiv(need, keys) - tile + step - 1, 0), step)
    else:
        begin = share_begin(total, cta, ctas)
        turns = share_size(total, cta, ctas)
        step = 1
        if turns > 0:
            for c in T.serial(T.ceildiv(b, 32)):
                if c > 0:
                    first = needed(seq_lens, b, next_n, skip_below, c * 32 + lane)
                tiles = ceildiv(first, keys)
                upto = before + warp_prefix_sum(tiles, lane)
                hit = T.ballot_sync((upto > begin) & (upto - tiles <= begin))
                if hit != T.uint64(0):
                    owner = T.Cast("int32", T.__ffs(T.Cast("int32", hit))) - 1
                    seq = c * 32 + owner
                    tile = begin - T.shfl_sync(upto - tiles, owner)
                    need = T.shfl_sync(first, owner)
                    T.loop_break()
                before = T.shfl_sync(upto, 31)


@T.macro
def place_when_even(seq: T.Ref, tile: T.Ref, step: T.Ref, b, cta, ctas):
    """In an even split a sequence has `step` CTAs, and this CTA starts at `tile` of sequence `seq`."""
    step = T.max(T.truncdiv(ctas, b), 1)
    seq = T.truncdiv(cta, step)  # noqa: F841
    tile = T.truncmod(cta, step)  # noqa: F841


@T.macro
def keys_to_score(need: T.Ref, seq_lens, b, next_n, skip_below, seq):
    """The longest prefix that a query of each lane's sequence has to score; 0 past the batch."""
    # Assigning a T.Ref parameter stores into the caller's variable.
    need = needed(seq_lens, b, next_n, skip_below, seq)  # noqa: F841


@T.macro
def next_tile(fresh: T.Ref, it, seq: T.Ref, tile: T.Ref, need: T.Ref, seq_lens, b, next_n, skip_below, keys):
    """Before the `it`-th tile of a share: past the end of `seq`, go to the next sequence with keys to score.

    `fresh` says whether the tile is the first one of its sequence in this share.
    """
    fresh = (it == 0) | (tile * keys >= need)  # noqa: F841
    while tile * keys >= need:
        seq = seq + 1
        tile = 0
        need = needed(seq_lens, b, next_n, skip_below, seq)
