"""Leaf maths of sparse attention for tcgen05 in CuTe DSL: tokens on M, heads on N, accumulators in tensor memory.

A key tile is 64 tokens, cut into units of 128 columns. One unit is read twice: K-major as 64 tokens by 128 columns
for S^T = K Q^T, and MN-major as 128 latent dims by 64 tokens for O^T = K^T P^T. With a 128-byte swizzle both layouts
are the same bytes: two panels of 64 rows by 64 columns.

An M=64 accumulator sits in lanes 0-15 of each warp's 32 lanes. Read as 16x256b it gives a thread the values that it
would have of a Hopper accumulator of that shape: what happens to them there happens to them here.

Exponents are base 2: logits carry log2(e).
"""

import cutlass
import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64
from cutlass.cute.nvgpu import tcgen05
from cutlass.experimental.primitives import nvvm_wrapper as primitives

from .sparse_mla import LOG2E, TILE, TOKEN_BYTES

THREADS = 128

UNIT = 128
"""Latent dims of a unit: the M of the value product."""

PANEL = 64
"""bf16 columns of one row of a 128-byte-swizzled panel."""

LANE_STRIDE = 1 << 16
"""A lane up in a tensor-memory address."""

HELD = 16
"""Columns of O^T that a thread holds at a time."""


def _matrix(pointer, first, heads, columns):
    """A tensor [columns, heads] of rows of `columns` elements, from row `first` on."""
    return cute.make_tensor(pointer + Int64(first) * columns, cute.make_layout((columns, heads)))


@cute.jit
def load_block(
    target: cute.Pointer, q: cute.Pointer, row: Int32, head0: Int32, heads: cutlass.Constexpr, block: cutlass.Constexpr,
    rows: cutlass.Constexpr, columns: cutlass.Constexpr, thread: Int32,
):  # fmt: skip
    """A block of heads of one query in swizzled panels; the rows behind them, up to `rows`, become zero."""
    pieces = cutlass.const_expr(columns // 8)
    source = cute.make_tensor(
        q + Int64(row * heads + head0) * columns, cute.make_layout((8, block * pieces), stride=(1, 8))
    )
    for i in cutlass.range_constexpr(rows * pieces // THREADS):
        item = i * THREADS + thread
        head, piece = item // pieces, item % pieces
        held = cute.make_rmem_tensor(8, cutlass.BFloat16)
        held.fill(cutlass.BFloat16(0))
        if head < block:
            cute.autovec_copy(source[None, item], held)
        at = (piece // 8 * rows + head) * PANEL + (piece % 8 ^ head % 8) * 8
        cute.autovec_copy(held, cute.make_tensor(target + cute.assume(at, divby=8), cute.make_layout(8)))


def _spread(rows, low, high, in_low, in_high, tokens):
    """rows[i] = the id of token tokens[i], which is (upper half, place); -1 where it names no row."""
    for i, (upper, place) in enumerate(tokens):
        found = cute.arch.shuffle_sync(high if upper else low, place)
        inside = ((in_high if upper else in_low) >> place) & 1
        rows[i] = Int32(cutlass.select_(inside != 0, found, Int32(-1)))


def spread_ids(rows, low, high, in_low, in_high, thread):
    """The ids of tokens 8 * r + thread / 16; -1 where one names no row."""
    _spread(rows, low, high, in_low, in_high, [(r >= 4, 8 * (r % 4) + thread // 16) for r in range(8)])


def spread_pairs(rows, low, high, in_low, in_high, thread):
    """The ids of tokens thread / 4 and 32 more; -1 where one names no row."""
    _spread(rows, low, high, in_low, in_high, [(i == 1, thread // 4) for i in range(2)])


@cute.jit
def read_rows(
    rows: cute.Tensor, indices: cute.Pointer, topk: Int32, row: Int32, turn: Int32, turns: Int32, split: Int32, splits: Int32, lane: Int32
):  # fmt: skip
    """All 64 ids of the tile at `turn` in every lane; unchanged past the last turn."""
    if turn < turns:
        first = Int64(row) * topk + (split + turn * splits) * TILE
        source = cute.make_tensor((indices + first).align(16), cute.make_layout((4, TILE // 4)))
        for quad in cutlass.range_constexpr(TILE // 4):
            cute.autovec_copy(source[None, quad], cute.local_tile(rows, (4,), (quad,)))


@cute.jit
def gather_columns(
    target: cute.Pointer, cache: cute.Pointer, stride: Int32, first: Int32, columns: cutlass.Constexpr, rows: cute.Tensor, thread: Int32
):  # fmt: skip
    """16-byte cp.async of 64 rows x 128 columns, 16 a row, or of 64 columns by the lower eight threads of every sixteen."""
    piece, lane_row = thread % 16, thread // 16
    if piece < columns // 8:
        source = cache + (first + piece * 8)
        to = target + (piece // 8 * (TILE * PANEL) + lane_row * PANEL + (piece % 8 ^ lane_row) * 8)
        for r in cutlass.range_constexpr(8):
            primitives.cp_async_shared_global(
                to + 8 * r * PANEL,
                source + Int64(cutlass.max(rows[r], 0)) * stride,
                16,
                primitives.LoadCacheModifier.CG,
                cp_size=cutlass.select_(rows[r] >= 0, Int32(16), Int32(0)),
            )


def _pieces(words):
    """A thread's quarter of two fp8 tokens: (four words, piece, token).

    Pieces 0 to 7 are 16 bytes of each 64-dim panel, 8 and 9 rope, 10 the four scales.
    """
    return cute.make_tensor(words.iterator, cute.make_layout((4, 11, 2)))


@cute.jit
def _load_pieces(words: cute.Tensor, at: cutlass.Constexpr, cache: cute.Pointer, rows: cute.Tensor, offset: Int32, pieces: cutlass.Constexpr):  # fmt: skip
    """Read `pieces` times 16 bytes, 64 apart, of this thread's two tokens; zeros for a row of -1."""
    held = _pieces(words)
    for i in cutlass.range_constexpr(2):
        if rows[i] >= 0:
            start = Int64(rows[i]) * TOKEN_BYTES + offset
            source = cute.recast_ptr(cache + cute.assume(start, divby=16), dtype=cutlass.Uint32)
            for piece in cutlass.range_constexpr(pieces):
                cute.autovec_copy(
                    cute.make_tensor(source + 16 * piece, cute.make_layout(4)), held[None, at + piece, i]
                )
        else:
            for piece in cutlass.range_constexpr(pieces):
                held[None, at + piece, i].fill(cutlass.Uint32(0))


def load_unit(words, unit, kv_cache, rows, thread):
    """Read this thread's part of a unit of two tokens."""
    _load_pieces(words, 2 * unit, kv_cache, rows, unit * UNIT + thread % 4 * 16, 2)


def load_rest(words, kv_cache, rows, thread):
    """Read this thread's rope columns of two tokens, and their scales."""
    _load_pieces(words, 8, kv_cache, rows, 528 + thread % 4 * 16, 2)
    _load_pieces(words, 10, kv_cache, rows, 512, 1)


@cute.jit
def dequantise_unit(target: cute.Pointer, words: cute.Tensor, unit: cutlass.Constexpr, thread: Int32):
    """Write this thread's part of a 128-column unit of two tokens as bf16, rounded once from e4m3 times scale."""
    quarter, held_words = thread % 4, _pieces(words)
    for i in cutlass.range_constexpr(2):
        scale = cute.recast_tensor(held_words[None, 10, i], Float32)[unit]
        for panel in cutlass.range_constexpr(2):
            values = cute.recast_tensor(held_words[None, 2 * unit + panel, i], cutlass.Float8E4M3FN)
            for half in cutlass.range_constexpr(2):
                eight = cute.local_tile(values, (8,), (half,)).load().to(Float32)
                scaled = cute.make_rmem_tensor(8, Float32)
                for pair in cutlass.range_constexpr(4):
                    at = 2 * pair
                    product = cute.arch.mul_packed_f32x2((eight[at], eight[at + 1]), (scale, scale))
                    scaled[at], scaled[at + 1] = product
                held = cute.make_rmem_tensor(8, cutlass.BFloat16)
                held.store(scaled.load().to(cutlass.BFloat16))
                _store8(target, panel * TILE + 32 * i, thread // 4, 2 * quarter + half, held)


@cute.jit
def store_rope(target: cute.Pointer, words: cute.Tensor, thread: Int32):
    """Write this thread's rope columns of two tokens."""
    held_words = _pieces(words)
    for i in cutlass.range_constexpr(2):
        for piece in cutlass.range_constexpr(2):
            held = cute.recast_tensor(held_words[None, 8 + piece, i], cutlass.BFloat16)
            _store8(target, 32 * i, thread // 4, 4 * piece + thread % 4, held)


@cute.jit
def _store8(target: cute.Tensor, first: cutlass.Constexpr, row: Int32, piece: Int32, held: cute.Tensor):  # fmt: skip
    """Eight bf16 columns of row `first + row` of swizzled panels; `first` is a multiple of eight."""
    at = row * PANEL + (piece ^ row % 8) * 8
    to = target.align(128) + cute.assume(at, divby=8) + first * PANEL
    cute.autovec_copy(held, cute.make_tensor(to, cute.make_layout(8)))


def _aligned(pointer):
    """A pointer into tensor memory at which rows of sixteen columns or more begin."""
    return cute.make_ptr(Float32, pointer.toint(), cute.AddressSpace.tmem, assumed_align=4 * HELD)


@cute.jit
def read_scores(scores: cute.Tensor, accumulators: cute.Pointer, thread: Int32):
    """This thread's scores of an accumulator of 64 lanes from tensor memory; their arrival is waited for later."""
    heads = cutlass.const_expr(cute.size(scores) * 2)
    # Lanes 0-15 of each warp hold sixteen tokens.
    lanes = cute.make_layout(((16, 4), heads), stride=((LANE_STRIDE, 32 * LANE_STRIDE), 1))
    source = cute.make_tensor(_aligned(accumulators), lanes)
    atom = cute.make_copy_atom(tcgen05.Ld16x256bOp(tcgen05.Repetition(heads // 8)), Float32)
    load = tcgen05.make_tmem_copy(atom, source).get_slice(thread)
    own = cute.make_tensor(scores.iterator, load.partition_D(source).layout.shape)
    cute.copy(load, load.partition_S(source), own)


def own_head(column, thread):
    """The head of a thread's column."""
    return column // 2 * 8 + thread % 4 * 2 + column % 2


def _by_head(red, columns):
    """What the warps share, [heads, warps]: a head's four values are read at once."""
    return cute.make_tensor(red.align(16), cute.make_layout((4 * columns, 4), stride=(4, 1)))


@cute.jit
def share_columns(red: cute.Pointer, values: cute.Tensor, thread: Int32):
    """Leave one value a column and warp for the other warps."""
    to = _by_head(red, cute.size(values))
    if thread % 32 < 4:
        for column in cutlass.range_constexpr(cute.size(values)):
            to[own_head(column, thread), thread // 32] = values[column]


def join_maxima(top, red, thread):
    """The maxima of the columns over the four warps."""
    got = _by_head(red, cute.size(top))
    for column in range(cute.size(top)):
        part = got[own_head(column, thread), None].load()
        top[column] = cute.arch.fmax(cute.arch.fmax(part[0], part[1]), cute.arch.fmax(part[2], part[3]))


def join_sums(top, red, thread):
    """The sums of the columns over the four warps."""
    got = _by_head(red, cute.size(top))
    for column in range(cute.size(top)):
        part = got[own_head(column, thread), None].load()
        top[column] = (part[0] + part[1]) + (part[2] + part[3])


def outgrown(top, peak, limit):
    """Whether the maximum of some head rose more than `limit` powers of two above its reference; alike in every warp."""
    grown = top[0] > peak[0] + float(limit)
    for column in range(1, cute.size(peak)):
        grown = grown | (top[column] > peak[column] + float(limit))
    return cute.arch.vote_any_sync(grown)


@cute.jit
def raise_reference(
    peak: cute.Tensor, top: cute.Tensor, sums: cute.Tensor, stat: cute.Pointer, thread: Int32
):
    """Move the reference up to the maximum: rescale the running sums, and leave each head's factor for O."""
    for column in cutlass.range_constexpr(cute.size(peak)):
        highest = cute.arch.fmax(top[column], peak[column])
        factor = cute.math.exp2(peak[column] - highest, fastmath=True)
        sums[column] = sums[column] * factor
        peak[column] = highest
        if thread < 4:
            (stat + own_head(column, thread)).store(factor)


def _columns(acc, column):
    layout = cute.make_layout((UNIT, HELD), stride=(LANE_STRIDE, 1))
    return cute.make_tensor(acc + cute.assume(column, divby=HELD), layout)


@cute.jit
def _load_held(held: cute.Tensor, acc: cute.Pointer, column: Int32, thread: Int32):
    """This thread's lane of some tensor-memory columns, from `column` on; not yet waited for."""
    source = _columns(acc, column)
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(HELD)), Float32)
    load = tcgen05.make_tmem_copy(atom, source).get_slice(thread)
    cute.copy(load, load.partition_S(source), cute.make_tensor(held.iterator, load.partition_D(source).shape))


@cute.jit
def _store_held(held: cute.Tensor, acc: cute.Pointer, column: Int32, thread: Int32):
    """The reverse of `_load_held`."""
    target = _columns(acc, column)
    atom = cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition(HELD)), Float32)
    store = tcgen05.make_tmem_copy(atom, target).get_slice(thread)
    source = cute.make_tensor(held.iterator, store.partition_S(target).shape)
    cute.copy(store, source, store.partition_D(target))


def _factors(stat, part):
    """The factors of the heads that a thread holds at a time."""
    return cute.make_tensor(stat.align(16) + cute.assume(part * HELD, divby=HELD), cute.make_layout(HELD))


@cute.jit
def rescale_output(
    acc: cute.Pointer, held: cute.Tensor, stat: cute.Pointer, heads: cutlass.Constexpr, thread: Int32
):
    """O^T times each head's factor, some columns of the four accumulators at a time."""
    parts = cutlass.const_expr(heads // HELD)
    for step in cutlass.range(512 // UNIT * parts, unroll=1):
        factors = _factors(stat, step % parts)
        _load_held(held, acc, step * HELD, thread)
        cute.arch.fence_view_async_tmem_load()
        for h in cutlass.range_constexpr(HELD):
            held[h] = held[h] * factors[h]
        _store_held(held, acc, step * HELD, thread)


def weigh_tokens(scores, sums, peak):
    """P = exp2(S - reference) in place of S, and the running sums of this thread's own weights."""
    for i in range(cute.size(scores)):
        column = i // 4 * 2 + i % 2
        scores[i] = cute.math.exp2(scores[i] - peak[column], fastmath=True)
        sums[column] = sums[column] + scores[i]


@cute.jit
def sink_share(lse2: Float32, sink: Float32):
    """The share of the softmax that tokens keep beside a sink logit (natural log); 1 without one, 0 if there are none."""
    share = 1.0 / (1.0 + cute.math.exp2(sink * LOG2E - lse2, fastmath=True))
    return cutlass.select_(lse2 > -Float32.inf, share, Float32(0.0))


@cute.jit
def finish_columns(
    total: cute.Tensor, peak: cute.Tensor, stat: cute.Pointer, attn_sink: cute.Pointer, lse: cute.Pointer, lse_partial: cute.Pointer,
    row: Int32, head0: Int32, heads: cutlass.Constexpr, block: cutlass.Constexpr, splits: Int32, split: Int32, alone: Boolean,
    lse_scale: Float32, thread: Int32,
):  # fmt: skip
    """From sums and reference: the factor that normalises O^T, and the lse of a lone split or of a partial."""
    if thread < 4:
        for column in cutlass.range_constexpr(cute.size(total)):
            h, weight = own_head(column, thread), total[column]
            some = weight > 0.0
            lse2 = cute.math.log2(weight, fastmath=True) + peak[column]
            lse2 = cutlass.select_(some, lse2, -Float32.inf)
            inverse = cutlass.select_(some, 1.0 / weight, Float32(0.0))
            if h < block:
                if alone:
                    (stat + h).store(inverse * sink_share(lse2, attn_sink[head0 + h]))
                    (lse + (row * heads + head0 + h)).store(lse2 * lse_scale)
                else:
                    (stat + h).store(inverse)
                    (lse_partial + ((row * splits + split) * heads + head0 + h)).store(lse2)


@cute.jit
def write_output(
    acc: cute.Pointer, held: cute.Tensor, stat: cute.Pointer, out: cute.Pointer, o_partial: cute.Pointer, row: Int32, head0: Int32,
    heads: cutlass.Constexpr, block: cutlass.Constexpr, splits: Int32, split: Int32, alone: Boolean, some: Boolean, thread: Int32,
):  # fmt: skip
    """O^T times each head's factor to the output (a lone split) or to this split's partial.

    Without `some` live tile there is no O: a lone split writes zeros, and a partial of one is never read.
    """
    result = _matrix(out, row * heads + head0, block, 512)
    partial = _matrix(o_partial, (row * splits + split) * heads + head0, block, 512)
    parts = cutlass.const_expr((block + HELD - 1) // HELD)
    for step in cutlass.range(512 // UNIT * parts, unroll=1):
        unit, part = step // parts, step % parts
        factors = _factors(stat, part)
        if some:
            _load_held(held, acc, step * HELD, thread)
            cute.arch.fence_view_async_tmem_load()
        else:
            held.fill(0.0)
        for i in cutlass.range_constexpr(min(HELD, block)):
            h, value = part * HELD + i, held[i] * factors[i]
            if alone:
                result[unit * UNIT + thread, h] = value.to(cutlass.BFloat16)
            elif some:
                partial[unit * UNIT + thread, h] = value


@cute.jit
def merge_columns(
    o_partial: cute.Pointer, lse_partial: cute.Pointer, attn_sink: cute.Pointer, out: cute.Pointer, lse: cute.Pointer, row: Int32,
    head0: Int32, heads: cutlass.Constexpr, block: cutlass.Constexpr, splits: Int32, lse_scale: Float32, first: Int32,
    columns: cutlass.Constexpr, thread: Int32, threads: cutlass.Constexpr,
):  # fmt: skip
    """The weighted sum of the splits for `columns` latent dims from `first` on, four dims of one head a thread and turn.

    Eight splits at a time are in flight, joined by an online softmax over their lse. A split of weight 0 is not looked
    at; a row without ids gives 0 and -inf.
    """
    begin = Int64(row * splits) * heads + head0
    partials = cute.make_tensor(
        o_partial + begin * 512, cute.make_layout((512, block, splits), stride=(1, 512, heads * 512))
    )
    lses = cute.make_tensor(lse_partial + begin, cute.make_layout((block, splits), stride=(1, heads)))
    result = _matrix(out, row * heads + head0, block, 512)
    quads = columns // 4
    parts = cute.make_rmem_tensor((4, 8), Float32)
    weight = cute.make_rmem_tensor(8, Float32)
    merged = cute.make_rmem_tensor(4, Float32)
    for item in cutlass.range(thread, block * quads, threads):
        h = item // quads
        d = first + item % quads * 4
        peak, total = -Float32.inf, Float32(0.0)
        merged.fill(0.0)
        for batch in cutlass.range((splits + 7) // 8):
            parts.fill(0.0)
            weight.fill(-Float32.inf)
            for i in cutlass.range_constexpr(8):
                split = batch * 8 + i
                if split < splits:
                    weight[i] = lses[h, split]
                    source = cute.local_tile(partials[None, h, split], (4,), (d // 4,))
                    cute.autovec_copy(source, parts[None, i])
            risen = peak
            for i in cutlass.range_constexpr(8):
                risen = cute.arch.fmax(risen, weight[i])
            if risen > -Float32.inf:
                factor = cute.math.exp2(peak - risen, fastmath=True)
                total = total * factor
                for v in cutlass.range_constexpr(4):
                    merged[v] = merged[v] * factor
                for i in cutlass.range_constexpr(8):
                    if weight[i] > -Float32.inf:
                        share = cute.math.exp2(weight[i] - risen, fastmath=True)
                        total = total + share
                        for v in cutlass.range_constexpr(4):
                            merged[v] = merged[v] + share * parts[v, i]
                peak = risen
        some = total > 0.0
        lse2 = cute.math.log2(total, fastmath=True) + peak
        lse2 = cutlass.select_(some, lse2, -Float32.inf)
        share = cutlass.select_(some, sink_share(lse2, attn_sink[head0 + h]) / total, Float32(0.0))
        rounded = cute.make_rmem_tensor(4, cutlass.BFloat16)
        for v in cutlass.range_constexpr(4):
            rounded[v] = (merged[v] * share).to(cutlass.BFloat16)
        cute.autovec_copy(rounded, cute.local_tile(result[None, h], (4,), (d // 4,)))
        if d == 0:
            (lse + (row * heads + head0 + h)).store(lse2 * lse_scale)
