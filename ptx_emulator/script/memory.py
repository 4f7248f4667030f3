"""The device's memory while a program is checked: memory of this process, at its own addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ..raw import Region

ALIGN = 512  # the alignment that a GPU allocator guarantees


@dataclass
class _Block:
    buffer: Any
    size: int


def _aligned(size: int) -> tuple[Any, int]:
    """A buffer with room for ``size`` aligned bytes, and the address where they start."""
    buffer = ctypes.create_string_buffer(size + ALIGN)
    return buffer, -(-ctypes.addressof(buffer) // ALIGN) * ALIGN


def aligned_copy(storage: Any) -> Any:
    """A copy of a torch storage, aligned as a GPU allocator would align it."""
    import torch

    size = storage.nbytes()
    buffer, address = _aligned(size)
    ctypes.memmove(address, storage.data_ptr(), size)
    offset = address - ctypes.addressof(buffer)
    return torch.frombuffer(buffer, dtype=torch.uint8, count=size, offset=offset).untyped_storage()


class Memory:
    """Allocations of the driver's calls, and storages of torch tensors that a program put on "cuda".

    A kernel may touch nothing else: a pointer to a CPU tensor is an error, as it is on the GPU.
    """

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}
        # address of a StorageImpl -> weak reference, which keeps the address from being reused
        self._storages: dict[int, Any] = {}

    def allocate(self, size: int) -> int:
        """Memory of undefined content: filled with 0xFF bytes, which are NaN in every float format."""
        buffer, address = _aligned(size)
        ctypes.memset(address, 0xFF, size)
        self._blocks[address] = _Block(buffer, size)
        return address

    def free(self, address: int) -> bool:
        """Free an allocation; False where there is none at this address."""
        return self._blocks.pop(address, None) is not None

    def size_from(self, address: int) -> int | None:
        """Bytes from an address to the end of its allocation or storage; None outside of all."""
        for base, size in self._extents():
            if base <= address < base + size:
                return base + size - address
        return None

    def adopt(self, tensor: Any) -> None:
        """Count the storage of a torch tensor as device memory."""
        from torch.multiprocessing.reductions import StorageWeakRef

        if str(tensor.layout) != "torch.strided":
            return
        storage = tensor.untyped_storage()
        if storage._cdata not in self._storages:
            self._storages[storage._cdata] = StorageWeakRef(storage)

    def holds(self, tensor: Any) -> bool:
        """Whether a torch tensor's storage counts as device memory."""
        return (
            bool(self._storages)
            and str(tensor.layout) == "torch.strided"
            and tensor.untyped_storage()._cdata in self._storages
        )

    def _alive(self) -> Iterator[tuple[int, int, Any]]:
        import torch

        for key, reference in list(self._storages.items()):
            storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None:
                del self._storages[key]
            elif storage.nbytes():
                yield storage.data_ptr(), storage.nbytes(), storage

    def _extents(self) -> Iterator[tuple[int, int]]:
        for address, block in self._blocks.items():
            yield address, block.size
        for address, size, _ in self._alive():
            yield address, size

    def regions(self) -> list[Region]:
        """All device memory, for a launch; the regions keep the torch storages alive."""
        out = [
            Region((address, block.size), name=f"allocation at {address:#x}")
            for address, block in self._blocks.items()
            if block.size
        ]
        seen: set[int] = set()
        for address, size, storage in self._alive():
            if address not in seen:
                seen.add(address)
                out.append(_Kept((address, size), name=f"tensor at {address:#x}", storage=storage))
        return out


@dataclass(frozen=True)
class _Kept(Region):
    storage: Any = None


class Snapshot:
    """The content of regions, to restore before another interleaving."""

    def __init__(self, regions: list[Region]) -> None:
        self._saved = [
            (address, ctypes.string_at(address, size)) for address, size in (r.memory for r in regions)
        ]

    def restore(self) -> None:
        for address, data in self._saved:
            ctypes.memmove(address, data, len(data))

    def digest(self) -> int:
        """A hash of the regions' present content."""
        return hash(tuple(ctypes.string_at(address, len(data)) for address, data in self._saved))
