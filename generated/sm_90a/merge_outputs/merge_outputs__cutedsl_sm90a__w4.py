"""merge_outputs__cutedsl_sm90a__w4

Generated from dsl_kernels/kernels/merge_outputs and what all kernels share in dsl_kernels/device/cutedsl by `make generate`:
edit those, not this file. Knobs: warps=4.

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
            "outs", "tensor", "bfloat16", ("ranks", "rows", "heads", "512"),
            strides=("outs_stride_r", "outs_stride_t", "outs_stride_h", "1")
        ),
        Operand(
            "lses", "tensor", "float32", ("ranks", "rows", "heads"),
            strides=("lses_stride_r", "lses_stride_t", "1")
        ),
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
def merge_head(
    out, lse, outs, outs_stride_0, outs_stride_1, outs_stride_2, lses, lses_stride_0, lses_stride_1,
    attn_sink, first, ranks, rows, heads, lse_scale, warp, lane
):
    """Merge head `first` + warp of all rows. Sums have the order of ranks, so all ranks round alike.

    A sink may be infinite or far above all scores. Its share then overflows to infinity, and out is 0.
    """
    number = first + warp
    if number < rows * heads:
        row = number // heads
        head = number - row * heads
        peak = Float32(-3e+38)
        for rank in cutlass.range(ranks, unroll=1):
            of_row = lses + Int64(rank) * lses_stride_0 + Int64(row) * lses_stride_1
            peak = cute.arch.fmax(peak, of_row[head])
        total = Float32(0.0)
        for rank in cutlass.range(ranks, unroll=1):
            of_rank = lses + Int64(rank) * lses_stride_0 + Int64(row) * lses_stride_1
            total = total + warps.exp2(of_rank[head] - peak)
        weighed = total + warps.exp2(attn_sink[head] * 1.4426950408889634 - peak)
        factor = Float32(cutlass.select_(weighed > 0.0, floats.divide(1.0, weighed), 0.0))
        if lane == 0:
            to_lse = lse + Int64(row) * heads
            to_lse[head] = (peak + warps.log2(total)) * lse_scale
        sums = cute.make_rmem_tensor(16, Float32)
        words = cute.make_rmem_tensor(8, cutlass.Uint32)
        for i in cutlass.range_constexpr(16):
            sums[i] = Float32(0.0)
        for r in cutlass.range(ranks, unroll=1):
            again = lses + Int64(r) * lses_stride_0 + Int64(row) * lses_stride_1
            share = warps.exp2(again[head] - peak) * factor
            part = outs + Int64(r) * outs_stride_0 + Int64(row) * outs_stride_1 + Int64(head) * outs_stride_2
            for piece in cutlass.range_constexpr(2):
                scalars.load_piece(words, piece * 4, 8, part + (piece * 32 + lane) * 8)
            for i in cutlass.range_constexpr(8):
                sums[2 * i] = sums[2 * i] + scalars.float_of(words[i] << 16) * share
                sums[2 * i + 1] = sums[2 * i + 1] + scalars.float_of(
                    words[i] & cutlass.Uint32(4294901760)
                ) * share
        to = out + Int64(row * heads + head) * 512
        for i in cutlass.range_constexpr(8):
            words[i] = scalars.pair_of(sums[2 * i], sums[2 * i + 1])
        for piece in cutlass.range_constexpr(2):
            scalars.store_piece(words, piece * 4, 8, to + (piece * 32 + lane) * 8)


@cute.jit
def merge(
    outs: cute.Pointer, lses: cute.Pointer, attn_sink: cute.Pointer, lse_scale: Float32, out: cute.Pointer,
    lse: cute.Pointer, ranks: Int32, rows: Int32, heads: Int32, outs_stride_r: Int32, outs_stride_t: Int32,
    outs_stride_h: Int32, lses_stride_r: Int32, lses_stride_t: Int32, tile: Int32, warp: Int32, lane: Int32
):
    """A head of a row per warp."""
    merge_head(
        out, lse, outs, outs_stride_r, outs_stride_t, outs_stride_h, lses, lses_stride_r, lses_stride_t,
        attn_sink, tile * WARPS, ranks, rows, heads, lse_scale, warp, lane
    )


@cute.kernel
def merge_outputs__cutedsl_sm90a__w4(
    outs: cute.Pointer, lses: cute.Pointer, attn_sink: cute.Pointer, lse_scale: Float32, out: cute.Pointer,
    lse: cute.Pointer, ranks: Int32, rows: Int32, heads: Int32, outs_stride_r: Int32, outs_stride_t: Int32,
    outs_stride_h: Int32, lses_stride_r: Int32, lses_stride_t: Int32
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
        outs, lses, attn_sink, lse_scale, out, lse, ranks, rows, heads, outs_stride_r, outs_stride_t,
        outs_stride_h, lses_stride_r, lses_stride_t, tile, warp, lane
    )


@cute.jit
def program(
    outs: cute.Pointer, lses: cute.Pointer, attn_sink: cute.Pointer, lse_scale: Float32, out: cute.Pointer,
    lse: cute.Pointer, ranks: Int32, rows: Int32, heads: Int32, outs_stride_r: Int32, outs_stride_t: Int32,
    outs_stride_h: Int32, lses_stride_r: Int32, lses_stride_t: Int32
):
    kernel = merge_outputs__cutedsl_sm90a__w4(
        outs, lses, attn_sink, lse_scale, out, lse, ranks, rows, heads, outs_stride_r, outs_stride_t,
        outs_stride_h, lses_stride_r, lses_stride_t
    )
    kernel.launch(grid=(1, 1, 1), block=(128, 1, 1), cluster=(1, 1, 1))
