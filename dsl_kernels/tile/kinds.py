"""Annotations of a leaf's parameters: what kind of memory they take, and of which dtype; `Int32` and its like take values.

`Registers[Uint32]`, `Shared[Int32]`, `Global[Float32]`: a call with another kind or dtype is refused at its line. A number of
Python stands for a value of any dtype; `int`, `float` and `bool` take nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from .frontend import Boolean, Float32, Int32, Int64, Kept, Uint32
from .leaf_text import Array, LeafRecorder
from .text import Changes, Sets, Writes

__all__ = [
    "BFloat16", "Boolean", "Changes", "Float16", "Float32", "Global", "Int32", "Int64", "LeafRecorder", "Peers", "Registers",
    "Sender", "Sets", "Shared", "Tensor", "Uint8", "Uint32", "Writes",
]  # fmt: skip

BFloat16 = Annotated[Any, Kept("bfloat16")]
Float16 = Annotated[Any, Kept("float16")]
Uint8 = Annotated[Any, Kept("uint8")]

D = TypeVar("D")


class _Memory(Array, Generic[D]):
    """Memory as a leaf has it: an `Array` where the leaf is a text, a torch.Tensor where it is a meaning in torch."""

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class Registers(_Memory[D]):
    """Registers of the threads that call the leaf."""

    KIND = "register"


class Shared(_Memory[D]):
    """Shared memory of this CTA."""

    KIND = "shared"


class Peers(_Memory[D]):
    """Shared memory of each CTA of the cluster, by its rank."""

    KIND = "peers"


class Tensor(_Memory[D]):
    """Tensor memory."""

    KIND = "tensor"


class Global(_Memory[D]):
    """An operand in global memory."""

    KIND = "global"


class Sender(_Memory[Any]):
    """A slot in other CTAs, with the barrier that counts what arrives there."""

    KIND = "sender"
