"""Leaf maths of the FP8 lightning indexer: how key tiles are dealt to CTAs."""

import tilelang.language as T

PASS_CONFIGS = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_warp_specialized": True,
    # Unswitching moves the election of the copying lane over a loop, and warp shuffles in that loop with it.
    "tl.disable_loop_unswitching": True,
}
# On Hopper threads hold tiles of registers by themselves, as products leave them.
OWN_REGISTERS = True


def ceildiv(count, size):
    """Both positive or zero; C division, which costs no sign fix-up."""
    return T.truncdiv(count + size - 1, size)


def share_begin(total, part, parts):
    """First unit of share `part` when `total` units are dealt to `parts` shares, sizes within one."""
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
    """Longest prefix of sequence `seq` that one of its queries has to score; 0 past the batch."""
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
    seq: T.Ref, tile: T.Ref, need: T.Ref, turns: T.Ref, step: T.Ref, seq_lens, b, next_n, skip_below, keys, cta, ctas, lane
):  # fmt: skip
    """Without the text's way of its own for one sequence: TileLang's division makes more of it than it spares."""
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
    """When tiles are dealt evenly, a sequence has `step` CTAs, and this one starts at `tile` of sequence `seq`."""
    step = T.max(T.truncdiv(ctas, b), 1)
    seq = T.truncdiv(cta, step)  # noqa: F841
    tile = T.truncmod(cta, step)  # noqa: F841


@T.macro
def keys_to_score(need: T.Ref, seq_lens, b, next_n, skip_below, seq):
    """Longest prefix that one query of a sequence has to score, for the sequence of each lane; 0 past the batch."""
    # Assigning a T.Ref parameter stores into the caller's variable.
    need = needed(seq_lens, b, next_n, skip_below, seq)  # noqa: F841


@T.macro
def next_tile(fresh: T.Ref, it, seq: T.Ref, tile: T.Ref, need: T.Ref, seq_lens, b, next_n, skip_below, keys):
    """Before the `it`-th tile of a share: past the end of `seq`, move on to the next sequence with keys to score.

    `fresh` tells whether this tile is the share's first one of its sequence.
    """
    fresh = (it == 0) | (tile * keys >= need)  # noqa: F841
    while tile * keys >= need:
        seq = seq + 1
        tile = 0
        need = needed(seq_lens, b, next_n, skip_below, seq)
