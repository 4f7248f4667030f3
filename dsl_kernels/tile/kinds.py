"""Annotations of leaf parameters: `Registers[Uint32]` or `Global[Float32]` for memory, `Int32` for a value.

A call that passes another kind of memory, or another dtype, is refused at its line. A Python number may stand
for a value of any dtype; a parameter annotated `int`, `float` or `bool` takes only Python numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from .frontend import Boolean, Float32, Int32, Int64, Kept, Uint32
from .leaf_text import Array, LeafRecorder
from .text import Changes, Record, Sets, Writes

__all__ = [
    "BFloat16", "Boolean", "Changes", "Float8", "Float16", "Float32", "Global", "Int32", "Int64",
    "LeafRecorder", "Peers", "Record", "Registers", "Sender", "Sets", "Shared", "Tensor", "Uint8", "Uint32",
    "Writes",
]  # fmt: skip

BFloat16 = Annotated[Any, Kept("bfloat16")]
Float16 = Annotated[Any, Kept("float16")]
Float8 = Annotated[Any, Kept("float8_e4m3")]
Uint8 = Annotated[Any, Kept("uint8")]

D = TypeVar("D")


class _Memory(Array, Generic[D]):
    """Memory as a leaf sees it: an `Array` while a text is recorded, a torch.Tensor in a meaning in torch."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Registers(_Memory[D]):
    """Registers of the threads that call the leaf."""

    KIND = "register"


class Shared(_Memory[D]):
    """Shared memory of this CTA."""

    KIND = "shared"


class Peers(_Memory[D]):
    """Shared memory of each CTA of the cluster, indexed by rank."""

    KIND = "peers"


class Tensor(_Memory[D]):
    """Tensor memory."""

    KIND = "tensor"


class Global(_Memory[D]):
    """An operand in global memory."""

    KIND = "global"


class Sender(_Memory[Any]):
    """A slot in other CTAs, with the barrier that counts the bytes arriving there."""

    KIND = "sender"
