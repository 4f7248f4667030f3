"""merge_outputs__tilelang_sm90a__w4

Generated from dsl_kernels/kernels/merge_outputs and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: warps=4.

roles
  merge      threads 0..127  a head of a row per warp
buffers
totals: 128 threads, 0 of 232448 bytes of shared memory, grid (ceildiv(rows * heads, 4))
"""
import tilelang.language as T

from dsl_kernels.device.tilelang import floats, scalars, warps
from dsl_kernels.kernels.merge_outputs import tilelang as leaf

PASS_CONFIGS = leaf.PASS_CONFIGS

WARPS = 4  # heads per CTA, one per warp


@T.macro
def merge_head(out, lse, outs, lses, attn_sink, first, ranks, rows, heads, lse_scale, warp, lane):
    """Merge head `first` + warp of all rows. Sums have the order of ranks, so all ranks round alike.

    A sink may be infinite or far above all scores. Its share then overflows to infinity, and out is 0.
    """
    number = first + warp
    if number < rows * heads:
        row = T.truncdiv(number, heads)
        head = number - row * heads
        peak = T.alloc_var("float32", init=-3e+38)
        for rank in T.unroll(0, ranks, 1, unroll_factor=1):
            peak = T.max(peak, lses[rank, row, head])
        total = T.alloc_var("float32", init=0.0)
        for rank in T.unroll(0, ranks, 1, unroll_factor=1):
            total = total + warps.exp2(lses[rank, row, head] - peak)
        weighed = total + warps.exp2(attn_sink[head] * 1.4426950408889634 - peak)
        factor = T.alloc_var("float32", init=T.if_then_else(weighed > 0.0, floats.divide(1.0, weighed), 0.0))
        if lane == 0:
            lse[row, head] = (peak + warps.log2(total)) * lse_scale
        sums = T.alloc_local((16,), "float32")
        words = T.alloc_local((8,), "uint32")
        for i in T.unroll(16):
            sums[i] = 0.0
        for r in T.unroll(0, ranks, 1, unroll_factor=1):
            share = warps.exp2(lses[r, row, head] - peak) * factor
            for piece in T.unroll(2):
                scalars.load_piece(words, piece * 4, 8, outs[r, row, head, (piece * 32 + lane) * 8])
            for i in T.unroll(8):
                sums[2 * i] = sums[2 * i] + scalars.float_of(words[i] << T.uint32(16)) * share
                sums[2 * i + 1] = sums[2 * i + 1] + scalars.float_of(words[i] & T.uint32(4294901760)) * share
        for i in T.unroll(8):
            words[i] = scalars.pair_of(sums[2 * i], sums[2 * i + 1])
        for piece in T.unroll(2):
            scalars.store_piece(words, piece * 4, 8, out[row, head, (piece * 32 + lane) * 8])


@T.macro
def merge(outs, lses, attn_sink, lse_scale, out, lse, ranks, rows, heads, tile, warp, lane):
    """A head of a row per warp."""
    merge_head(out, lse, outs, lses, attn_sink, tile * WARPS, ranks, rows, heads, lse_scale, warp, lane)


def program():
    ranks = T.dynamic("ranks")
    rows = T.dynamic("rows")
    heads = T.dynamic("heads")
    outs_stride_r = T.dynamic("outs_stride_r")
    outs_stride_t = T.dynamic("outs_stride_t")
    outs_stride_h = T.dynamic("outs_stride_h")
    lses_stride_r = T.dynamic("lses_stride_r")
    lses_stride_t = T.dynamic("lses_stride_t")

    @T.prim_func
    def merge_outputs__tilelang_sm90a__w4(
        outs: T.StridedTensor(
            (ranks, rows, heads, 512), (outs_stride_r, outs_stride_t, outs_stride_h, 1), "bfloat16"
        ),
        lses: T.StridedTensor((ranks, rows, heads), (lses_stride_r, lses_stride_t, 1), "float32"),
        attn_sink: T.Tensor((heads,), "float32"),
        lse_scale: T.float32,
        out: T.Tensor((rows, heads, 512), "bfloat16"),
        lse: T.Tensor((rows, heads), "float32"),
    ):
        with T.Kernel(T.ceildiv(rows * heads, 4), threads=128) as tile:
            T.import_source(warps.SOURCE + floats.SOURCE + scalars.SOURCE)

            thread = T.get_thread_binding()
            lane = thread % 32
            warp = thread // 32
            # A launch of TileLang starts when the kernel before it has ended.
            merge(outs, lses, attn_sink, lse_scale, out, lse, ranks, rows, heads, tile, warp, lane)

    return merge_outputs__tilelang_sm90a__w4
