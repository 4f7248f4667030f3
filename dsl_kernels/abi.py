"""How a kernel is called, as its declaration states it: operands, tensor maps and the launch, as plain data.

Sizes that are only known at a call are expressions (`dsl_kernels.expr`) over the names of dims and scalars.
"""

from __future__ import annotations

from dataclasses import dataclass

from .dtypes import DTYPES


@dataclass(frozen=True)
class Operand:
    """One argument of the program, in call order.

    `shape` and `strides` are expressions, in elements; `strides` is None for a contiguous tensor. A scalar
    has an empty shape. `written` says whether the kernel writes it.
    """

    name: str
    kind: str
    dtype: str
    shape: tuple[str, ...] = ()
    strides: tuple[str, ...] | None = None
    written: bool = False

    @classmethod
    def tensor(
        cls,
        name: str,
        dtype: str,
        *shape: int | str,
        strides: tuple[int | str, ...] | None = None,
        written: bool = False,
    ) -> Operand:
        """A tensor operand; extents and strides are numbers or names of runtime dims."""
        spelled = None if strides is None else tuple(str(s) for s in strides)
        return cls(name, "tensor", dtype, tuple(str(s) for s in shape), spelled, written)

    @classmethod
    def scalar(cls, name: str, dtype: str) -> Operand:
        """A number passed by value."""
        return cls(name, "scalar", dtype)


@dataclass(frozen=True)
class TensorMap:
    """Arguments of `cuTensorMapEncodeTiled`, innermost dimension first.

    `global_dims` (elements) and `global_strides` (bytes, one fewer than the dims: the innermost is implied)
    are expressions. `dtype`, `interleave`, `swizzle`, `l2_promotion` and `oob_fill` are the driver's
    enumerator names without their prefix, such as BFLOAT16, NONE, 128B, L2_128B, NONE.
    """

    name: str
    operand: str
    dtype: str
    global_dims: tuple[str, ...]
    global_strides: tuple[str, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: str = "NONE"
    swizzle: str = "NONE"
    l2_promotion: str = "NONE"
    oob_fill: str = "NONE"

    @classmethod
    def of_matrix(
        cls, operand: str, dtype: str, rows: int | str, columns: int | str, box_rows: int
    ) -> TensorMap:
        """`<operand>_map`: swizzled boxes of `box_rows` rows by 128 bytes of a dense row-major matrix.

        `rows` and `columns` are numbers or names of sizes of the call. Elements of a box outside of the
        matrix are zero.
        """
        size = DTYPES[dtype].bytes
        return cls(
            f"{operand}_map",
            operand,
            dtype.upper(),
            (str(columns), str(rows)),
            (f"{columns} * {size}",),
            (128 // size, box_rows),
            (1, 1),
            swizzle="128B",
        )


@dataclass(frozen=True)
class Launch:
    """How the entry of a generated module is launched, as its declaration states it.

    For DSLs whose host code cannot be read back: the module contains this record, and its backend turns it
    into an `Artifact`. `grid` has expressions over dims and scalars. `block` is the number of threads. `smem`
    is the least shared memory, in bytes, that a CTA requests, even if it uses less. Where the expression
    `resident` is not zero, all CTAs run at once.
    """

    operands: tuple[Operand, ...]
    grid: tuple[str, str, str]
    block: int
    cluster: tuple[int, int, int] = (1, 1, 1)
    tensor_maps: tuple[TensorMap, ...] = ()
    smem: int = 0
    resident: str = ""

    @property
    def dims(self) -> dict[str, tuple[str, str, int]]:
        """Where to read each runtime dim at a call: (operand, "shape" or "stride", axis)."""
        return dims_of(self.operands)


def dims_of(operands: tuple[Operand, ...]) -> dict[str, tuple[str, str, int]]:
    """The names that alone are an extent or a stride of a tensor operand, and the first place of each."""
    scalars = {o.name for o in operands if o.kind == "scalar"}
    dims: dict[str, tuple[str, str, int]] = {}
    for operand in operands:
        for what, sizes in (("shape", operand.shape), ("stride", operand.strides or ())):
            for axis, size in enumerate(sizes):
                if size.isidentifier() and size not in scalars:
                    dims.setdefault(size, (operand.name, what, axis))
    return dims
