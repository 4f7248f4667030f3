"""merge_outputs__tilelang_sm90a__w4_peers

Generated from dsl_kernels/kernels/merge_outputs and what all kernels share in dsl_kernels/device/tilelang by `make generate`:
edit those, not this file. Knobs: warps=4, parts=peers.

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
def merge_peers_head(
    out, lse, outs, lses, peer_distances, attn_sink, first, ranks, rows, heads, lse_scale, warp, lane
):
    """Merge head `first` + warp of the heads of all rows from the memory of the ranks, with the same sums.

    The loads from all ranks are in flight together.
    """
    number = first + warp
    if number < rows * heads:
        row = T.truncdiv(number, heads)
        head = number - row * heads
        distances = T.alloc_local((8,), "int64")
        scores = T.alloc_local((8,), "float32")
        words = T.alloc_local((64,), "uint32")
        for i in T.unroll(8):
            if i < ranks:
                distances[i] = peer_distances[i]
        for r in T.unroll(8):
            scores[r] = -T.infinity("float32")
            if r < ranks:
                scores[r] = lses[row, (distances[r] >> T.int64(2)) + head]
                for piece in T.unroll(2):
                    scalars.load_piece(
                        words, (r * 2 + piece) * 4, 8,
                        outs[row, head, (distances[r] >> T.int64(1)) + (piece * 32 + lane) * 8]
                    )
        peak = T.alloc_var("float32", init=-3e+38)
        for r in T.unroll(8):
            peak = T.max(peak, scores[r])
        total = T.alloc_var("float32", init=0.0)
        for r in T.unroll(8):
            total = total + warps.exp2(scores[r] - peak)
        weighed = total + warps.exp2(attn_sink[head] * 1.4426950408889634 - peak)
        factor = T.alloc_var("float32", init=T.if_then_else(weighed > 0.0, floats.divide(1.0, weighed), 0.0))
        if lane == 0:
            lse[row, head] = (peak + warps.log2(total)) * lse_scale
        sums = T.alloc_local((16,), "float32")
        for i in T.unroll(16):
            sums[i] = 0.0
        for r in T.unroll(8):
            if r < ranks:
                share = warps.exp2(scores[r] - peak) * factor
                for i in T.unroll(8):
                    sums[2 * i] = sums[2 * i] + scalars.float_of(words[r * 2 * 4 + i] << T.uint32(16)) * share
                    sums[2 * i + 1] = sums[2 * i + 1] + scalars.float_of(
                        words[r * 2 * 4 + i] & T.uint32(4294901760)
                    ) * share
        for i in T.unroll(8):
            words[i] = scalars.pair_of(sums[2 * i], sums[2 * i + 1])
        for piece in T.unroll(2):
            scalars.store_piece(words, piece * 4, 8, out[row, head, (piece * 32 + lane) * 8])


@T.macro
def merge(outs, lses, peer_distances, attn_sink, lse_scale, out, lse, rows, heads, ranks, tile, warp, lane):
    """A head of a row per warp."""
    merge_peers_head(
        out, lse, outs, lses, peer_distances, attn_sink, tile * WARPS, ranks, rows, heads, lse_scale, warp,
        lane
    )


def program():
    rows = T.dynamic("rows")
    heads = T.dynamic("heads")
    outs_stride_t = T.dynamic("outs_stride_t")
    outs_stride_h = T.dynamic("outs_stride_h")
    lses_stride_t = T.dynamic("lses_stride_t")
    ranks = T.dynamic("ranks")

    @T.prim_func
    def merge_outputs__tilelang_sm90a__w4_peers(
        outs: T.StridedTensor((rows, heads, 512), (outs_stride_t, outs_stride_h, 1), "bfloat16"),
        lses: T.StridedTensor((rows, heads), (lses_stride_t, 1), "float32"),
        peer_distances: T.Tensor((ranks,), "int64"),
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
            merge(
                outs, lses, peer_distances, attn_sink, lse_scale, out, lse, rows, heads, ranks, tile, warp,
                lane
            )

    return merge_outputs__tilelang_sm90a__w4_peers
