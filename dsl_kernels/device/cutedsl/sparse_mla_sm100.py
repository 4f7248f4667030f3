"""Leaf pieces of sparse attention for tcgen05 in CuTe DSL: tokens on M, heads on N, accumulators in tensor memory.

A key tile is 64 tokens, cut into units of 128 columns. One unit is read twice: K-major as 64 tokens by 128 columns
for S^T = K Q^T, and MN-major as 128 latent dims by 64 tokens for O^T = K^T P^T. With a 128-byte swizzle both layouts
are the same bytes: two panels of 64 rows by 64 columns.

An M=64 accumulator sits in lanes 0-15 of each warp's 32 lanes. Read as 16x256b it gives thread t of warp w the tokens
16w + t/4 (+ 8) and the heads 2 * (t % 4) + {0, 1} of every group of eight. Values are kept in that order:

    value 4 * g + 2 * half + e  ->  token 16 * w + t / 4 + 8 * half,  head 8 * g + 2 * (t % 4) + e
    column 2 * g + e            ->  that head

Exponents are base 2: logits carry log2(e).
"""

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05, warp
from cutlass.experimental.primitives import nvvm_wrapper as primitives
from cutlass.utils import blackwell_helpers

LOG2E = 1.4426950408889634

TILE = 64
"""Tokens of a tile: the M of the score product."""

UNIT = 128
"""Latent dims of a unit: the M of the value product."""

PANEL = 64
"""bf16 columns of one row of a 128-byte-swizzled panel."""

PANEL_BYTES = TILE * 128

LANE_STRIDE = 1 << 16
"""A lane up in a tensor-memory address."""

HELD = 16
"""Columns of O^T that a thread holds at a time."""

TOKEN_BYTES = 656
"""An fp8 token: 512 e4m3 values, four fp32 scales, 64 bf16 rope columns."""


def _mma(m, n, a_major, b_major):
    op = tcgen05.MmaF16BF16Op(
        cutlass.BFloat16,
        cutlass.Float32,
        (m, n, 16),
        tcgen05.CtaGroup.ONE,
        tcgen05.OperandSource.SMEM,
        a_major,
        b_major,
    )
    return cute.make_tiled_mma(op)


def score_mma(heads):
    """S^T[64 tokens, heads] from K-major keys and queries."""
    return _mma(TILE, heads, OperandMajorMode.K, OperandMajorMode.K)


def value_mma(heads):
    """O^T[128 latent dims, heads] from keys and weights that both lie along their tokens."""
    return _mma(UNIT, heads, OperandMajorMode.MN, OperandMajorMode.MN)


def score_operands(mma, heads, columns, keys, queries, parts):
    """Descriptors of a ring of keys and of the queries' parts, both [_, _, k step, which]; a part is `columns` wide."""
    a = blackwell_helpers.make_smem_layout_a(mma, (TILE, heads, columns), cutlass.BFloat16, keys.shape[1])
    b = blackwell_helpers.make_smem_layout_b(mma, (TILE, heads, columns), cutlass.BFloat16, parts)
    return mma.make_fragment_A(_swizzled(keys.iterator, a)), mma.make_fragment_B(_swizzled(queries, b))


def value_operands(mma, heads, keys, weights):
    """Descriptors of the same ring read along its tokens, and of a ring of weights: both [_, _, k step, slot]."""
    a = blackwell_helpers.make_smem_layout_a(mma, (UNIT, heads, TILE), cutlass.BFloat16, keys.shape[1])
    b = blackwell_helpers.make_smem_layout_b(mma, (UNIT, heads, TILE), cutlass.BFloat16, weights.shape[1])
    return (
        mma.make_fragment_A(_swizzled(keys.iterator, a)),
        mma.make_fragment_B(_swizzled(weights.iterator, b)),
    )


def _swizzled(pointer, layout):
    return cute.make_tensor(cute.recast_ptr(pointer, layout.inner, cutlass.BFloat16), layout.outer)


def accumulator(mma, heads, m, tmem, column):
    """The accumulator [MMA, 1, 1] of shape (m, heads) that starts at a tensor-memory column."""
    fragment = mma.make_fragment_C(mma.partition_shape_C((m, heads)))
    return cute.make_tensor(tmem + cute.assume(column, divby=heads), fragment.layout)


@cute.jit
def issue(mma: cute.TiledMma, c: cute.Tensor, a: cute.Tensor, b: cute.Tensor, accumulate: cutlass.Boolean):
    """C (+)= A B over all k steps of two operands; the first step overwrites C unless `accumulate`."""
    # An atom of its own: what is set on one inside a loop would have to leave it.
    atom = cute.make_tiled_mma(mma.op)
    atom.set(tcgen05.Field.ACCUMULATE, accumulate)
    for step in cutlass.range_constexpr(cute.size(a, mode=[2])):
        cute.gemm(atom, c, a[None, None, step], b[None, None, step], c)
        atom.set(tcgen05.Field.ACCUMULATE, True)


def heads_of(pointer, first, heads, columns):
    """A tensor [columns, heads] of the rows of a head block, from row `first` on."""
    return cute.make_tensor(pointer + cutlass.Int64(first) * columns, cute.make_layout((columns, heads)))


def row_of(pointer, first, count):
    """`count` numbers from the first on."""
    return cute.make_tensor(pointer + first, cute.make_layout(count))


def partials(o_partial, lse_partial, first, heads, row_heads, splits):
    """The partials of a head block: [512, heads, splits] and [heads, splits]; a split holds `row_heads` rows."""
    start = cutlass.Int64(first)
    parts = cute.make_layout((512, heads, splits), stride=(1, 512, row_heads * 512))
    lses = cute.make_layout((heads, splits), stride=(1, row_heads))
    return cute.make_tensor(o_partial + start * 512, parts), cute.make_tensor(lse_partial + start, lses)


@cute.jit
def load_queries(queries: cute.Tensor, target: cute.Pointer, pad: cutlass.Constexpr, thread: cutlass.Int32, threads: cutlass.Constexpr):  # fmt: skip
    """Copy a head block's queries [columns, heads] into 128-byte-swizzled panels of `pad` rows; rows past them become zero."""
    pieces, heads = cute.size(queries, mode=[0]) // 8, cute.size(queries, mode=[1])
    source = cute.make_tensor(queries.iterator, cute.make_layout((8, heads * pieces), stride=(1, 8)))
    for i in cutlass.range_constexpr((pad * pieces + threads - 1) // threads):
        item = i * threads + thread
        row, piece = item // pieces, item % pieces
        held = cute.make_rmem_tensor(8, cutlass.BFloat16)
        held.fill(cutlass.BFloat16(0))
        if row < heads:
            cute.autovec_copy(source[None, item], held)
        if row < pad:
            at = (piece // 8 * pad + row) * PANEL + (piece % 8 ^ row % 8) * 8
            to = target + cute.assume(at, divby=8)
            cute.autovec_copy(held, cute.make_tensor(to, cute.make_layout(8)))


@cute.jit
def load_ids(indices: cute.Tensor, tile: cutlass.Int32, tiles: cutlass.Int32, lane: cutlass.Int32):
    """Each lane's two ids of a tile: tokens `lane` and `32 + lane`; -1 past the last tile."""
    low, high = cutlass.Int32(-1), cutlass.Int32(-1)
    if tile < tiles:
        low = indices[tile * TILE + lane]
        high = indices[tile * TILE + 32 + lane]
    return low, high


@cute.jit
def vote(low: cutlass.Int32, high: cutlass.Int32, n: cutlass.Int32):
    """Bit `lane` of a word tells that its token names a cache row. The same in every warp of the CTA."""
    return (
        cute.arch.vote_ballot_sync((low >= 0) & (low < n)),
        cute.arch.vote_ballot_sync((high >= 0) & (high < n)),
    )


@cute.jit
def spread_ids(rows: cute.Tensor, low: cutlass.Int32, high: cutlass.Int32, lows: cutlass.Int32, highs: cutlass.Int32, thread: cutlass.Int32):  # fmt: skip
    """rows[r] = the id of token 8 * r + thread / 16, or -1 where it names no cache row."""
    for r in cutlass.range_constexpr(8):
        token = 8 * (r % 4) + thread // 16
        found = cute.arch.shuffle_sync(low if r < 4 else high, token)
        valid = ((lows if r < 4 else highs) >> token) & 1
        rows[r] = cutlass.select_(valid != 0, found, cutlass.Int32(-1))


@cute.jit
def _copy16(target: cute.Pointer, cache: cute.Pointer, row: cutlass.Int32, stride: cutlass.Int32):
    """cp.async of 16 bytes at a cache row's offset of `cache`; a row of -1 reads nothing and writes zeros."""
    primitives.cp_async_shared_global(
        target,
        cache + cutlass.Int64(cutlass.max(row, 0)) * stride,
        16,
        primitives.LoadCacheModifier.CG,
        cp_size=cutlass.select_(row >= 0, cutlass.Int32(16), cutlass.Int32(0)),
    )


@cute.jit
def gather_unit(keys: cute.Tensor, cache: cute.Pointer, column: cutlass.Int32, stride: cutlass.Int32, rows: cute.Tensor, thread: cutlass.Int32):  # fmt: skip
    """16-byte cp.async of 64 rows x 128 columns by 128 threads, 16 a row; a row of -1 is filled with zeros."""
    piece, lane_row = thread % 16, thread // 16
    source = cache + (column + piece * 8)
    target = keys.iterator + (piece // 8 * (TILE * PANEL) + lane_row * PANEL + (piece % 8 ^ lane_row) * 8)
    for r in cutlass.range_constexpr(8):
        _copy16(target + 8 * r * PANEL, source, rows[r], stride)


@cute.jit
def gather_rope(keys: cute.Tensor, cache: cute.Pointer, stride: cutlass.Int32, rows: cute.Tensor, thread: cutlass.Int32):  # fmt: skip
    """As `gather_unit` for the 64 rope columns: the lower eight threads of every sixteen copy."""
    piece, lane_row = thread % 16, thread // 16
    if piece < 8:
        for r in cutlass.range_constexpr(8):
            target = keys.iterator + ((8 * r + lane_row) * PANEL + (piece ^ lane_row) * 8)
            _copy16(target, cache + piece * 8, rows[r], stride)


def row_map(cache: cute.Pointer, ids: cute.Pointer, columns: int):
    """The gather4 atom of a cache and its coordinates: boxes of four rows by one 64-column panel.

    The extents are nominal: the descriptor that a launch passes holds the real ones, and zeros come from beyond them.
    """
    nominal = 1 << 30
    box = cute.make_composed_layout(
        cute.make_swizzle(3, 4, 3), 0, cute.make_layout((4, PANEL), stride=(PANEL, 1))
    )
    return cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensor2DGather4G2SOp(),
        cute.make_tensor(cache, cute.make_layout((nominal, columns), stride=(columns, 1))),
        box,
        (4, PANEL),
        gmem_coord_tensor=cute.make_tensor(ids, cute.make_layout((nominal, columns), stride=(1, 0))),
    )


@cute.jit
def load_rows(rows: cute.Tensor, indices: cute.Tensor, tile: cutlass.Int32, tiles: cutlass.Int32):
    """rows = all 64 ids of a tile in every lane; unchanged past the last tile."""
    if tile < tiles:
        ids = cute.local_tile(indices, (TILE,), (tile,))
        for quad in cutlass.range_constexpr(TILE // 4):
            cute.autovec_copy(cute.local_tile(ids, (4,), (quad,)), cute.local_tile(rows, (4,), (quad,)))


@cute.jit
def gather4(
    atom: cute.CopyAtom, coords: cute.Tensor, keys: cute.Tensor, column: cutlass.Int32, columns: cutlass.Constexpr,
    rows: cute.Tensor, full: cute.Pointer,
):  # fmt: skip
    """TMA gather4 of 64 rows x `columns` columns, four rows by one panel an instruction; a whole warp calls it.

    An id that names no row lies outside the tensor and gives zeros. The copies complete on `full`.
    """
    width = cute.size(coords, mode=[1])
    ids = cute.make_tensor(rows.iterator, cute.make_layout((TILE, width), stride=(1, 0)))
    source = cute.zipped_divide(cute.local_tile(coords, (TILE, width), (0, 0)), (4, PANEL))
    chosen = cute.zipped_divide(ids, (4, PANEL))
    pointer = cute.recast_ptr(keys.iterator, cute.make_swizzle(3, 4, 3), cutlass.BFloat16)
    for panel in cutlass.range_constexpr(columns // PANEL):
        for quad in cutlass.range_constexpr(TILE // 4):
            target = cute.make_tensor(
                pointer + (panel * TILE + 4 * quad) * PANEL, cute.make_layout((4, PANEL), stride=(PANEL, 1))
            )
            to, data, index = cpasync.tma_partition(
                atom, 0, cute.make_layout(1), cute.group_modes(target, 0, 2), [source, chosen]
            )
            at = (quad, column // PANEL + panel)
            cute.copy(atom, [data[None, at], index[None, at]], to, tma_bar_ptr=full)


@cute.jit
def spread_pairs(rows: cute.Tensor, low: cutlass.Int32, high: cutlass.Int32, lows: cutlass.Int32, highs: cutlass.Int32, thread: cutlass.Int32):  # fmt: skip
    """rows[i] = the id of token 32 * i + thread / 4, or -1 where it names no cache row: four threads a token."""
    token = thread // 4
    for i in cutlass.range_constexpr(2):
        found = cute.arch.shuffle_sync(high if i else low, token)
        valid = ((highs if i else lows) >> token) & 1
        rows[i] = cutlass.select_(valid != 0, found, cutlass.Int32(-1))


def token_words():
    """Registers for a thread's quarter of two fp8 tokens: (four words, piece, token).

    Pieces 0 to 7 are 16 bytes of each 64-dim panel, 8 and 9 rope, 10 the four scales.
    """
    return cute.make_rmem_tensor((4, 11, 2), cutlass.Uint32)


@cute.jit
def load_pieces(words: cute.Tensor, at: cutlass.Constexpr, cache: cute.Pointer, rows: cute.Tensor, offset: cutlass.Int32, pieces: cutlass.Constexpr):  # fmt: skip
    """Read `pieces` times 16 bytes, 64 apart, of this thread's two tokens; zeros for a row of -1."""
    for i in cutlass.range_constexpr(2):
        if rows[i] >= 0:
            start = cutlass.Int64(rows[i]) * TOKEN_BYTES + offset
            source = cute.recast_ptr(cache + cute.assume(start, divby=16), dtype=cutlass.Uint32)
            for piece in cutlass.range_constexpr(pieces):
                cute.autovec_copy(
                    cute.make_tensor(source + 16 * piece, cute.make_layout(4)), words[None, at + piece, i]
                )
        else:
            for piece in cutlass.range_constexpr(pieces):
                words[None, at + piece, i].fill(cutlass.Uint32(0))


@cute.jit
def dequantise_unit(keys: cute.Tensor, words: cute.Tensor, unit: cutlass.Constexpr, thread: cutlass.Int32):
    """Write this thread's part of a 128-column unit of two tokens as bf16, rounded once from e4m3 times scale."""
    quarter = thread % 4
    for i in cutlass.range_constexpr(2):
        scale = cute.recast_tensor(words[None, 10, i], cutlass.Float32)[unit]
        for panel in cutlass.range_constexpr(2):
            values = cute.recast_tensor(words[None, 2 * unit + panel, i], cutlass.Float8E4M3FN)
            for half in cutlass.range_constexpr(2):
                eight = cute.local_tile(values, (8,), (half,)).load().to(cutlass.Float32)
                scaled = cute.make_rmem_tensor(8, cutlass.Float32)
                for pair in cutlass.range_constexpr(4):
                    at = 2 * pair
                    product = cute.arch.mul_packed_f32x2((eight[at], eight[at + 1]), (scale, scale))
                    scaled[at], scaled[at + 1] = product
                held = cute.make_rmem_tensor(8, cutlass.BFloat16)
                held.store(scaled.load().to(cutlass.BFloat16))
                _store8(keys, panel * TILE + 32 * i, thread // 4, 2 * quarter + half, held)


@cute.jit
def store_rope(keys: cute.Tensor, words: cute.Tensor, thread: cutlass.Int32):
    """Write this thread's rope columns of two tokens."""
    for i in cutlass.range_constexpr(2):
        for piece in cutlass.range_constexpr(2):
            held = cute.recast_tensor(words[None, 8 + piece, i], cutlass.BFloat16)
            _store8(keys, 32 * i, thread // 4, 4 * piece + thread % 4, held)


@cute.jit
def _store8(keys: cute.Tensor, first: cutlass.Constexpr, row: cutlass.Int32, piece: cutlass.Int32, held: cute.Tensor):  # fmt: skip
    """Eight bf16 columns of row `first + row` of swizzled panels; `first` is a multiple of eight."""
    at = row * PANEL + (piece ^ row % 8) * 8
    target = keys.iterator + cute.assume(at, divby=8) + first * PANEL
    cute.autovec_copy(held, cute.make_tensor(target, cute.make_layout(8)))


@cute.jit
def read_scores(scores: cute.Tensor, tmem: cute.Tensor, thread: cutlass.Int32):
    """Load this thread's scores of an accumulator (64, heads) from tensor memory; their arrival is waited for later."""
    repeat = tcgen05.Repetition(cute.size(scores) // 4)
    atom = cute.make_copy_atom(tcgen05.Ld16x256bOp(repeat), cutlass.Float32)
    load = tcgen05.make_tmem_copy(atom, tmem).get_slice(thread)
    source = load.partition_S(tmem)
    cute.copy(load, source, cute.make_tensor(scores.iterator, load.partition_D(tmem).layout.shape))


@cute.jit
def mask_scores(scores: cute.Tensor, peak: cute.Tensor, lows: cutlass.Int32, highs: cutlass.Int32, scale: cutlass.Float32, thread: cutlass.Int32):  # fmt: skip
    """Scale the scores to base 2, put -inf where the token is padding, and take each column's maximum over the warp's 16 tokens."""
    tokens = cutlass.select_(thread < TILE, lows, highs) >> (thread // 32 % 2 * 16 + thread % 32 // 4)
    for half in cutlass.range_constexpr(2):
        inside = (tokens >> (8 * half)) & 1
        for column in cutlass.range_constexpr(cute.size(peak)):
            at = column // 2 * 4 + half * 2 + column % 2
            scores[at] = cutlass.select_(inside != 0, scores[at] * scale, -cutlass.Float32.inf)
    for column in cutlass.range_constexpr(cute.size(peak)):
        at = column // 2 * 4 + column % 2
        highest = cute.arch.fmax(scores[at], scores[at + 2])
        for step in cutlass.range_constexpr(3):
            highest = cute.arch.fmax(highest, cute.arch.shuffle_sync_bfly(highest, 4 << step))
        peak[column] = highest


def own_head(column, thread):
    """The head of a thread's column."""
    return column // 2 * 8 + thread % 4 * 2 + column % 2


@cute.jit
def share_columns(values: cute.Tensor, red: cute.Tensor, thread: cutlass.Int32):
    """Publish one value a column and warp: red[head, warp]."""
    if thread % 32 < 4:
        for column in cutlass.range_constexpr(cute.size(values)):
            red[own_head(column, thread), thread // 32] = values[column]


@cute.jit
def join_peaks(peak: cute.Tensor, red: cute.Tensor, thread: cutlass.Int32):
    """peak = the column maximum over the four warps."""
    for column in cutlass.range_constexpr(cute.size(peak)):
        part = red[own_head(column, thread), None].load()
        peak[column] = cute.arch.fmax(cute.arch.fmax(part[0], part[1]), cute.arch.fmax(part[2], part[3]))


@cute.jit
def outgrown(peak: cute.Tensor, reference: cute.Tensor, limit: cutlass.Constexpr):
    """Whether any head of the tile rose more than `limit` powers of two above its reference; the same in every warp."""
    grown = peak[0] > reference[0] + float(limit)
    for column in cutlass.range_constexpr(1, cute.size(peak)):
        grown = grown | (peak[column] > reference[column] + float(limit))
    return cute.arch.vote_any_sync(grown)


@cute.jit
def raise_reference(peak: cute.Tensor, reference: cute.Tensor, total: cute.Tensor, stat: cute.Tensor, thread: cutlass.Int32):  # fmt: skip
    """Move the reference maximum up to the peak: rescale the running sums and publish each head's factor for O."""
    for column in cutlass.range_constexpr(cute.size(peak)):
        highest = cute.arch.fmax(peak[column], reference[column])
        factor = cute.math.exp2(reference[column] - highest, fastmath=True)
        total[column] = total[column] * factor
        reference[column] = highest
        if thread < 4:
            stat[own_head(column, thread)] = factor


@cute.jit
def load_held(held: cute.Tensor, tmem: cute.Pointer, column: cutlass.Int32, thread: cutlass.Int32):
    """held = this thread's lane of some tensor-memory columns, from `column` on; not yet waited for."""
    source = _columns(tmem, column)
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(HELD)), cutlass.Float32)
    load = tcgen05.make_tmem_copy(atom, source).get_slice(thread)
    cute.copy(load, load.partition_S(source), cute.make_tensor(held.iterator, load.partition_D(source).shape))


@cute.jit
def store_held(held: cute.Tensor, tmem: cute.Pointer, column: cutlass.Int32, thread: cutlass.Int32):
    """The reverse of `load_held`."""
    target = _columns(tmem, column)
    atom = cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition(HELD)), cutlass.Float32)
    store = tcgen05.make_tmem_copy(atom, target).get_slice(thread)
    cute.copy(
        store, cute.make_tensor(held.iterator, store.partition_S(target).shape), store.partition_D(target)
    )


def _columns(tmem, column):
    layout = cute.make_layout((UNIT, HELD), stride=(LANE_STRIDE, 1))
    return cute.make_tensor(tmem + cute.assume(column, divby=HELD), layout)


@cute.jit
def rescale_output(tmem: cute.Pointer, units: cutlass.Constexpr, stat: cute.Tensor, thread: cutlass.Int32):
    """O^T *= stat[head] in all units of 128 latent dims, whose accumulators lie side by side at `tmem`."""
    parts = cute.size(stat) // HELD
    held = cute.make_rmem_tensor(HELD, cutlass.Float32)
    for step in cutlass.range(units * parts, unroll=1):
        factors = cute.local_tile(stat, (HELD,), (step % parts,))
        load_held(held, tmem, step * HELD, thread)
        cute.arch.fence_view_async_tmem_load()
        for h in cutlass.range_constexpr(HELD):
            held[h] = held[h] * factors[h]
        store_held(held, tmem, step * HELD, thread)


@cute.jit
def write_weights(rows: cute.Tensor, scores: cute.Tensor, reference: cute.Tensor, total: cute.Tensor, thread: cutlass.Int32):  # fmt: skip
    """P = exp2(S - reference) as bf16 rows of tokens in shared memory, and the fp32 sums of this thread's own weights.

    A row holds all heads and lies along them, swizzled by its own width (at most 128 bytes): what an MN-major operand
    of the value product looks like.
    """
    heads = cute.size(scores) * 2
    lane = thread % 32
    token = thread // 32 * 16 + lane % 16
    mask = (token * heads * 2) // 128 % (heads // 8)
    atom = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), cutlass.BFloat16)
    for pair in cutlass.range_constexpr(heads // 16):
        weights = cute.make_rmem_tensor(8, cutlass.Float32)
        for i in cutlass.range_constexpr(8):
            column = 4 * pair + i // 4 * 2 + i % 2
            weight = cute.math.exp2(scores[8 * pair + i] - reference[column], fastmath=True)
            total[column] = total[column] + weight
            weights[i] = weight
        packed = cute.make_rmem_tensor(((8, 1),), cutlass.BFloat16)
        packed.store(weights.load().to(cutlass.BFloat16).reshape(((8, 1),)))
        row = rows.iterator + cute.assume(token * heads + ((pair * 2 + lane // 16) ^ mask) * 8, divby=8)
        cute.copy(atom, packed, cute.make_tensor(row, cute.make_layout(((8, 1),))))


@cute.jit
def share_sums(total: cute.Tensor, red: cute.Tensor, thread: cutlass.Int32):
    """Publish each column's sum over the 16 tokens of a warp: red[head, warp]."""
    for column in cutlass.range_constexpr(cute.size(total)):
        for step in cutlass.range_constexpr(3):
            total[column] = total[column] + cute.arch.shuffle_sync_bfly(total[column], 4 << step)
    share_columns(total, red, thread)


@cute.jit
def sink_share(lse2: cutlass.Float32, sink: cutlass.Float32):
    """The share of the softmax that tokens keep beside a sink logit (natural log); 1 without one, 0 if there are none."""
    share = 1.0 / (1.0 + cute.math.exp2(sink * LOG2E - lse2, fastmath=True))
    return cutlass.select_(lse2 > -cutlass.Float32.inf, share, cutlass.Float32(0.0))


@cute.jit
def finish_columns(
    total: cute.Tensor, red: cute.Tensor, reference: cute.Tensor, stat: cute.Tensor, lse: cute.Tensor,
    lse_partial: cute.Tensor, attn_sink: cute.Tensor, alone: cutlass.Boolean, lse_scale: cutlass.Float32,
    thread: cutlass.Int32,
):  # fmt: skip
    """From the warps' sums and the reference: the factor that normalises O^T (stat), the lse of a lone split or a partial.

    `lse`, `lse_partial` and `attn_sink` hold this CTA's heads; the heads past them are padding.
    """
    if thread < 4:
        for column in cutlass.range_constexpr(cute.size(total)):
            h = own_head(column, thread)
            part = red[h, None].load()
            weight = (part[0] + part[1]) + (part[2] + part[3])
            some = weight > 0.0
            lse2 = cute.math.log2(weight, fastmath=True) + reference[column]
            lse2 = cutlass.select_(some, lse2, -cutlass.Float32.inf)
            inverse = cutlass.select_(some, 1.0 / weight, cutlass.Float32(0.0))
            if h < cute.size(lse):
                if alone:
                    stat[h] = inverse * sink_share(lse2, attn_sink[h])
                    lse[h] = lse2 * lse_scale
                else:
                    stat[h] = inverse
                    lse_partial[h] = lse2


@cute.jit
def write_output(
    tmem: cute.Pointer, units: cutlass.Constexpr, stat: cute.Tensor, out: cute.Tensor, o_partial: cute.Tensor,
    alone: cutlass.Boolean, live: cutlass.Boolean, thread: cutlass.Int32,
):  # fmt: skip
    """O^T times stat[head] to `out` (a lone split) or to this split's partial, both [latent dims, heads].

    A lone split without a live tile writes zeros; a partial of one is never read.
    """
    parts, heads = cute.size(stat) // HELD, cute.size(out, mode=[1])
    held = cute.make_rmem_tensor(HELD, cutlass.Float32)
    for step in cutlass.range(units * parts, unroll=1):
        unit, part = step // parts, step % parts
        factors = cute.local_tile(stat, (HELD,), (part,))
        if live:
            load_held(held, tmem, step * HELD, thread)
            cute.arch.fence_view_async_tmem_load()
        else:
            held.fill(0.0)
        for i in cutlass.range_constexpr(min(HELD, heads)):
            h, value = part * HELD + i, held[i] * factors[i]
            if alone:
                out[unit * UNIT + thread, h] = value.to(cutlass.BFloat16)
            elif live:
                o_partial[unit * UNIT + thread, h] = value


@cute.jit
def meet_cluster():
    """Rendezvous of all threads of the cluster; what they wrote before is visible to all of them after it."""
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.jit
def arrive(arrivals: cute.Pointer, last: cute.Tensor, total: cutlass.Int32, thread: cutlass.Int32, barrier: cutlass.Constexpr, threads: cutlass.Constexpr):  # fmt: skip
    """Count this CTA in; True in the CTA that came last of `total`, which then sees all partials and resets the counter."""
    cute.arch.barrier(barrier_id=barrier, number_of_threads=threads)
    if thread == 0:
        cute.arch.fence_acq_rel_gpu()
        before = cute.arch.atomic_add(arrivals, cutlass.Int32(1), sem="acq_rel", scope="gpu")
        cute.arch.fence_acq_rel_gpu()
        last[0] = before
        if before == total - 1:
            arrivals.store(cutlass.Int32(0))
    cute.arch.barrier(barrier_id=barrier, number_of_threads=threads)
    return last[0] == total - 1


@cute.jit
def merge_splits(
    o_partial: cute.Tensor, lse_partial: cute.Tensor, attn_sink: cute.Tensor, out: cute.Tensor, lse: cute.Tensor,
    splits: cutlass.Int32, lse_scale: cutlass.Float32, first: cutlass.Int32, columns: cutlass.Constexpr,
    thread: cutlass.Int32, threads: cutlass.Constexpr,
):  # fmt: skip
    """The weighted sum of the splits for `columns` latent dims from `first` on, four dims of one head a thread and turn.

    `o_partial` is [dims, heads, splits], `lse_partial` [heads, splits], `out` [dims, heads]. Eight splits at a time are
    in flight, joined by an online softmax over their lse. A split of weight 0 is not looked at; a row without ids gives
    0 and -inf.
    """
    heads = cute.size(lse)
    quads = columns // 4
    parts = cute.make_rmem_tensor((4, 8), cutlass.Float32)
    weight = cute.make_rmem_tensor(8, cutlass.Float32)
    merged = cute.make_rmem_tensor(4, cutlass.Float32)
    for item in cutlass.range(thread, heads * quads, threads):
        h = item // quads
        d = first + item % quads * 4
        peak, total = -cutlass.Float32.inf, cutlass.Float32(0.0)
        merged.fill(0.0)
        for batch in cutlass.range((splits + 7) // 8):
            parts.fill(0.0)
            weight.fill(-cutlass.Float32.inf)
            for i in cutlass.range_constexpr(8):
                split = batch * 8 + i
                if split < splits:
                    weight[i] = lse_partial[h, split]
                    source = cute.local_tile(o_partial[None, h, split], (4,), (d // 4,))
                    cute.autovec_copy(source, parts[None, i])
            risen = peak
            for i in cutlass.range_constexpr(8):
                risen = cute.arch.fmax(risen, weight[i])
            if risen > -cutlass.Float32.inf:
                factor = cute.math.exp2(peak - risen, fastmath=True)
                total = total * factor
                for v in cutlass.range_constexpr(4):
                    merged[v] = merged[v] * factor
                for i in cutlass.range_constexpr(8):
                    if weight[i] > -cutlass.Float32.inf:
                        share = cute.math.exp2(weight[i] - risen, fastmath=True)
                        total = total + share
                        for v in cutlass.range_constexpr(4):
                            merged[v] = merged[v] + share * parts[v, i]
                peak = risen
        some = total > 0.0
        lse2 = cute.math.log2(total, fastmath=True) + peak
        lse2 = cutlass.select_(some, lse2, -cutlass.Float32.inf)
        share = cutlass.select_(some, sink_share(lse2, attn_sink[h]) / total, cutlass.Float32(0.0))
        result = cute.make_rmem_tensor(4, cutlass.BFloat16)
        for v in cutlass.range_constexpr(4):
            result[v] = (merged[v] * share).to(cutlass.BFloat16)
        cute.autovec_copy(result, cute.local_tile(out[None, h], (4,), (d // 4,)))
        if d == 0:
            lse[h] = lse2 * lse_scale
