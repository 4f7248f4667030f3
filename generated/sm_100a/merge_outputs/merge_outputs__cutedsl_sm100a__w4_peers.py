"""merge_outputs__cutedsl_sm100a__w4_peers

Generated from dsl_kernels/kernels/merge_outputs and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: warps=4, parts=peers.

roles
  merge      threads 0..127  a head of a row per warp
buffers
totals: 128 threads, 0 of 232448 bytes of shared memory, grid (ceildiv(rows * heads, 4))
"""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32, Int64

from dsl_kernels.device.cutedsl import floats, scalars, warps
from dsl_kernels.runtime.artifact import Launch, Operand

WARPS = 4  # heads per CTA, one per warp


LAUNCH = Launch(
    operands=(
        Operand(
            "outs", "tensor", "bfloat16", ("rows", "heads", "512"),
            strides=("outs_stride_t", "outs_stride_h", "1")
        ),
        Operand("lses", "tensor", "float32", ("rows", "heads"), strides=("lses_stride_t", "1")),
        Operand("peer_distances", "tensor", "int64", ("ranks",)),
        Operand("attn_sink", "tensor", "float32", ("heads",)),
        Operand("lse_scale", "scalar", "float32"),
        Operand("out", "tensor", "bfloat16", ("rows", "heads", "512"), written=True),
        Operand("lse", "tensor", "float32", ("rows", "heads"), written=True),
    ),
    grid=("ceildiv(rows * heads, 4)", "1", "1"),
    block=128,
    cluster=(1, 1, 1),
)


@cute.jit
def merge_peers_head(
    out, lse, outs, outs_stride_0, outs_stride_1, lses, lses_stride_0, peer_distances, attn_sink, first,
    ranks, rows, heads, lse_scale, warp, lane
):
    """Merge head `first` + warp of the heads of all rows from the memory of the ranks, with the same sums.

    The loads from all ranks are in flight together.
    """
    number = first + warp
    if number < rows * heads:
        row = number // heads
        head = number - row * heads
        distances = cute.make_rmem_tensor(8, Int64)
        scores = cute.make_rmem_tensor(8, Float32)
        words = cute.make_rmem_tensor(64, cutlass.Uint32)
        for i in cutlass.range_constexpr(8):
            if i < ranks:
                distances[i] = peer_distances[i]
        for r in cutlass.range_constexpr(8):
            scores[r] = Float32(-Float32.inf)
            if r < ranks:
                peer_lses = lses + (distances[r] >> 2)
                of_row = peer_lses + Int64(row) * lses_stride_0
                scores[r] = of_row[head]
                peer_outs = outs + (distances[r] >> 1)
                part = peer_outs + Int64(row) * outs_stride_0 + Int64(head) * outs_stride_1
                for piece in cutlass.range_constexpr(2):
                    scalars.load_piece(words, (r * 2 + piece) * 4, 8, part + (piece * 32 + lane) * 8)
        peak = Float32(-3e+38)
        for r in cutlass.range_constexpr(8):
            peak = cute.arch.fmax(peak, scores[r])
        total = Float32(0.0)
        for r in cutlass.range_constexpr(8):
            total = total + warps.exp2(scores[r] - peak)
        weighed = total + warps.exp2(attn_sink[head] * 1.4426950408889634 - peak)
        factor = Float32(cutlass.select_(weighed > 0.0, floats.divide(1.0, weighed), 0.0))
        if lane == 0:
            to_lse = lse + Int64(row) * heads
            to_lse[head] = (peak + warps.log2(total)) * lse_scale
        sums = cute.make_rmem_tensor(16, Float32)
        for i in cutlass.range_constexpr(16):
            sums[i] = Float32(0.0)
        for r in cutlass.range_constexpr(8):
            if r < ranks:
                share = warps.exp2(scores[r] - peak) * factor
                for i in cutlass.range_constexpr(8):
                    sums[2 * i] = sums[2 * i] + scalars.float_of(words[r * 2 * 4 + i] << 16) * share
                    sums[2 * i + 1] = sums[2 * i + 1] + scalars.float_of(
                        words[r * 2 * 4 + i] & cutlass.Uint32(4294901760)
                    ) * share
        to = out + Int64(row * heads + head) * 512
        for i in cutlass.range_constexpr(8):
            words[i] = scalars.pair_of(sums[2 * i], sums[2 * i + 1])
        for piece in cutlass.range_constexpr(2):
            scalars.store_piece(words, piece * 4, 8, to + (piece * 32 + lane) * 8)


@cute.jit
def merge(
    outs: cute.Pointer, lses: cute.Pointer, peer_distances: cute.Pointer, attn_sink: cute.Pointer,
    lse_scale: Float32, out: cute.Pointer, lse: cute.Pointer, rows: Int32, heads: Int32, outs_stride_t: Int32,
    outs_stride_h: Int32, lses_stride_t: Int32, ranks: Int32, tile: Int32, warp: Int32, lane: Int32
):
    """A head of a row per warp."""
    merge_peers_head(
        out, lse, outs, outs_stride_t, outs_stride_h, lses, lses_stride_t, peer_distances, attn_sink,
        tile * WARPS, ranks, rows, heads, lse_scale, warp, lane
    )


@cute.kernel
def merge_outputs__cutedsl_sm100a__w4_peers(
    outs: cute.Pointer, lses: cute.Pointer, peer_distances: cute.Pointer, attn_sink: cute.Pointer,
    lse_scale: Float32, out: cute.Pointer, lse: cute.Pointer, rows: Int32, heads: Int32, outs_stride_t: Int32,
    outs_stride_h: Int32, lses_stride_t: Int32, ranks: Int32
):
    thread, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(thread // 32)
    lane = cute.arch.lane_idx()
    tile, _, _ = cute.arch.block_idx()
    if warp == 0:
        with cute.arch.elect_one():
            cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    cute.arch.griddepcontrol_launch_dependents()
    cute.arch.griddepcontrol_wait()
    merge(
        outs, lses, peer_distances, attn_sink, lse_scale, out, lse, rows, heads, outs_stride_t, outs_stride_h,
        lses_stride_t, ranks, tile, warp, lane
    )


@cute.jit
def program(
    outs: cute.Pointer, lses: cute.Pointer, peer_distances: cute.Pointer, attn_sink: cute.Pointer,
    lse_scale: Float32, out: cute.Pointer, lse: cute.Pointer, rows: Int32, heads: Int32, outs_stride_t: Int32,
    outs_stride_h: Int32, lses_stride_t: Int32, ranks: Int32
):
    kernel = merge_outputs__cutedsl_sm100a__w4_peers(
        outs, lses, peer_distances, attn_sink, lse_scale, out, lse, rows, heads, outs_stride_t, outs_stride_h,
        lses_stride_t, ranks
    )
    kernel.launch(grid=(1, 1, 1), block=(128, 1, 1), cluster=(1, 1, 1))
