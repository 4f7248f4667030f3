"""Leaves for every operation in CuTe DSL, on fragments of 128 rows out of tensor memory: thread t holds row t."""

import cutlass.cute as cute
from cutlass import Float32, Int64
from cutlass.cute.nvgpu import tcgen05

from .fragment import flat

LANES = 128
LANE_STRIDE = 1 << 16
"""Address step between lanes of tensor memory."""


def _columns(tmem, count):
    return cute.make_tensor(tmem, cute.make_layout((LANES, count), stride=(LANE_STRIDE, 1)))


def read_tensor(target, source, thread):
    """A fragment, a row a thread, from tensor memory; its arrival is waited for at the release."""
    count = cute.size(target)
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(count)), Float32)
    copy = tcgen05.make_tmem_copy(atom, _columns(source, count)).get_slice(thread)
    shape = copy.partition_D(cute.make_identity_tensor((LANES, count))).shape
    cute.copy(
        copy,
        copy.partition_S(_columns(source, count)),
        cute.make_tensor(target.iterator, cute.make_layout(shape)),
    )


def write_tensor(target, source, thread):
    """A 16-bit fragment, a row a thread, into tensor memory; its arrival is waited for at the commit."""
    words = cute.recast_tensor(flat(source), Float32)
    count = cute.size(words)
    atom = cute.make_copy_atom(tcgen05.St32x32bOp(tcgen05.Repetition(count)), Float32)
    copy = tcgen05.make_tmem_copy(atom, _columns(target, count)).get_slice(thread)
    shape = copy.partition_S(cute.make_identity_tensor((LANES, count))).shape
    cute.copy(
        copy,
        cute.make_tensor(words.iterator, cute.make_layout(shape)),
        copy.partition_D(_columns(target, count)),
    )


def write_rows(out, pitch, row, column, source, thread):
    """A float32 fragment into a matrix in global memory whose rows are `pitch` elements long."""
    place = (out + (Int64(row + thread) * pitch + column)).align(16)
    cute.autovec_copy(flat(source), cute.make_tensor(place, cute.make_layout(cute.size(source))))
