"""Copies by the copy engine into shared memory: boxes of tensor maps, gathered rows, contiguous spans."""

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64
from cutlass._mlir.dialects import cute as cute_ir
from cutlass._mlir.dialects import cute_nvgpu
from cutlass.cute.nvgpu import cpasync
from cutlass.cutlass_dsl import T, dsl_user_op

MANY = 1 << 30
"""Stands for an extent that only the runtime knows, which encodes the tensor maps."""

QUAD = 4
"""Rows of one gathering copy."""

GATHER = (
    "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes%s"
    " [{$r0}], [{$r1}, {{$r2}, {$r3}, {$r4}, {$r5}, {$r6}}], [{$r7}];"
)
"""Gathers four rows of a panel. Operands: target, tensor map, column, the numbers of the rows, barrier."""

FIRST_OF_PAIR = 0xFEFFFFFF
"""A mask: of a shared-memory address in either of two CTAs it leaves the same place in the first of them."""

EVICT_FIRST = 0x12F0000000000000
"""Cache policy of a copy: the L2 evicts its lines first."""


def box_map(pointer, dtype, box, swizzled):
    """Tensor-copy atom and coordinates for boxes of a row-major tensor with rows as long as the box's."""
    shape = (MANY, *box[1:])
    source = cute.make_tensor(cute.recast_ptr(pointer, dtype=dtype), _row_major(shape))
    return cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(), source, _box_layout(box, swizzled), box
    )


def load_box(atom, coords, at, box, to, barrier, evict_first=False, swizzled=True):
    """Copy the box at coordinates `at` (outermost first) to shared memory at `to`; `barrier` counts bytes.

    The atom elects a lane itself: a whole warp calls this. Rows of 128 bytes get the 128-byte swizzle that
    the tensor cores read; vectors and other rows stay as they are.
    """
    rank = len(at)
    swizzled = swizzled and rank > 1
    layout = _box_layout(box, swizzled)
    if swizzled:
        slot = cute.make_tensor(cute.recast_ptr(to, layout.inner), layout.outer)
    else:
        slot = cute.make_tensor(to, layout)
    source = cute.local_tile(cute.domain_offset(at, coords), box, (0,) * rank)
    slot, source = cute.group_modes(slot, 0, rank), cute.group_modes(source, 0, rank)
    slot, source = cpasync.tma_partition(atom, 0, cute.make_layout(1), slot, source)
    policy = Int64(EVICT_FIRST) if evict_first else None
    cute.copy(atom, source, slot, tma_bar_ptr=barrier, cache_policy=policy)


def row_map(pointer, dtype, columns, panel):
    """Tensor-copy atom and coordinates for gathered rows of `columns` elements.

    One copy takes four rows of a swizzled panel.
    """
    nominal = cute.make_layout((MANY, columns), stride=(columns, 1))
    numbers = cute.make_tensor(
        cute.recast_ptr(pointer, dtype=Int32), cute.make_layout((MANY, columns), stride=(1, 0))
    )
    return cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensor2DGather4G2SOp(),
        cute.make_tensor(cute.recast_ptr(pointer, dtype=dtype), nominal),
        _box_layout((QUAD, panel), True),
        (QUAD, panel),
        gmem_coord_tensor=numbers,
    )


@cute.jit
def load_rows(
    atom: cute.CopyAtom,
    rows: cute.Tensor,
    column: Int32,
    columns: cutlass.Constexpr,
    to: cute.Pointer,
    barrier: cute.Pointer,
    pair: cutlass.Constexpr = False,
):
    """Copy `columns` elements from `column` on of the rows numbered by `rows`, into swizzled 128-byte panels.

    `rows` is the same in all lanes, and one lane issues the copies. A number outside of the tensor gives
    zeros. With `pair` the bytes count at the barrier of the first of two CTAs. The atom's own copies would
    elect a lane each, which takes a warp 23 clocks a copy instead of 11, and a tile of attention has 144
    copies.
    """
    count = cutlass.const_expr(cute.size(rows))
    panel = cutlass.const_expr(128 * 8 // to.dtype.width)
    copy = cutlass.const_expr(GATHER % (".cta_group::2" if pair else ""))
    counts = barrier.toint() & FIRST_OF_PAIR if cutlass.const_expr(pair) else barrier.toint()
    with cute.arch.elect_one():
        # Fully unrolled, the copies would need more uniform registers than there are.
        for at in cutlass.range(columns // panel, unroll=1):
            for quad in cutlass.range_constexpr(count // QUAD):
                cute.arch.inline_ptx(
                    copy,
                    read_only_args=[
                        (to + at * count * panel + QUAD * quad * panel).toint(),
                        _descriptor(atom).toint(),
                        column + at * panel,
                        *(rows[QUAD * quad + i] for i in range(QUAD)),
                        counts,
                    ],
                )


@dsl_user_op
def _descriptor(atom, *, loc=None, ip=None):
    """The address of an atom's tensor map."""
    kind = cute_ir.PtrType.get(T.i8(), cute.AddressSpace.generic, 64)
    made = cute_nvgpu.atom_make_exec_tma(atom._trait.value, loc=loc, ip=ip)
    return cute_nvgpu.get_tma_desc_addr(kind, made, loc=loc, ip=ip)


def load_span(operand, dtype, row, pitch, column, count, to, barrier):
    """Copy `count` elements from `column` on of row `row`, of `pitch` elements; one lane issues it.

    Source and target are aligned to 16 bytes.
    """
    source = cute.recast_ptr(operand, dtype=dtype) + (Int64(row) * pitch + column)
    atom = cute.make_copy_atom(cpasync.CopyBulkG2SOp(), dtype, num_bits_per_copy=dtype.width * count)
    layout = cute.make_layout(count)
    cute.copy(atom, cute.make_tensor(source, layout), cute.make_tensor(to, layout), mbar_ptr=barrier)


def _box_layout(box, swizzled):
    if swizzled:
        return cute.make_composed_layout(cute.make_swizzle(3, 4, 3), 0, _row_major(box))
    return _row_major(box)


def _row_major(shape):
    return cute.make_ordered_layout(tuple(shape), order=tuple(reversed(range(len(shape)))))
