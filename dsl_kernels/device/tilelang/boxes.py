"""Boxes of tensor maps that `T.tma_copy` lacks: multicast to a cluster, or with more axes than the target."""

import tilelang.language as T
from tvm import tirx

# Enumerators of cuTensorMapEncodeTiled.
TYPES = {"UINT8": 0, "INT32": 3, "FLOAT16": 6, "FLOAT32": 7, "BFLOAT16": 9}
TYPE_BYTES = {"UINT8": 1, "INT32": 4, "FLOAT16": 2, "FLOAT32": 4, "BFLOAT16": 2}
SWIZZLES = {"NONE": 0, "32B": 1, "64B": 2, "128B": 3}


def box_map(operand, dtype, dims, strides, box, swizzle):
    """Tensor map of an operand, innermost dimension first; what is outside of the operand reads as zeros."""
    no_interleave, promote_l2_128b, zero_fill = 0, 2, 0
    return T.create_tma_descriptor(
        TYPES[dtype], len(dims), operand.data, *dims,
        TYPE_BYTES[dtype], *(T.cast(stride, "int64") for stride in strides), *box, *(1 for _ in box),
        no_interleave, SWIZZLES[swizzle], promote_l2_128b, zero_fill,
    )  # fmt: skip


def _copy(tensor_map, to, barrier, ctas, pair, at):
    name, mask = ("tl.tma_load_multicast", [2**ctas - 1]) if ctas > 1 else ("tl.tma_load", [])
    marks = {"annotations": {"use_2cta": 1}} if pair else {}
    return T.call_intrin(
        "handle", tirx.op.Op.get(name), tensor_map, barrier, to, *mask, *reversed(at), 0, **marks
    )


@T.macro
def load_box(tensor_map, target, slot, row, column, full, full_slot, ctas, pair, at):
    """Copy the box at coordinates `at` (outermost first) to `row` and `column` of a slot in `ctas` CTAs.

    The copy completes on full[full_slot] of each of these CTAs; with `pair`, of the first of two CTAs.
    """
    if T.shuffle_elect(32):
        _copy(tensor_map, T.access_ptr(target[slot, row, column], "w", 64), full[full_slot], ctas, pair, at)


@T.macro
def fold_box(tensor_map, dtype, target, slot, full, full_slot, at):
    """Copy the box at coordinates `at` (outermost first) to a whole slot: its outer axes become rows.

    The copy completes on full[full_slot]. This announces the bytes there and does not arrive; the caller
    arrives after the copies.
    """
    if T.shuffle_elect(32):
        T.mbarrier_expect_tx(full[full_slot], target.shape[1] * target.shape[2] * TYPE_BYTES[dtype])
        _copy(tensor_map, T.access_ptr(target[slot, 0, 0], "w", 64), full[full_slot], 1, False, at)


@T.macro
def arrive_in_cluster(empty, slot, ctas):
    """Arrive at a barrier of every CTA of the cluster."""
    for peer in T.unroll(ctas):
        T.ptx_arrive_cluster_barrier(empty[slot], peer)
