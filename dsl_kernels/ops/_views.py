"""Views of a caller's tensors, kept while the tensors live: new ones would cost every call microseconds."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ._dispatch import Unaddressed, of_its_own

Split = tuple[str, dict[str, Any]]
_Reference = weakref.ref[torch.Tensor]
_kept: dict[tuple[int, int, Callable[..., Split]], tuple[_Reference, _Reference, tuple[Any, ...], Split]] = {}


def kept_views(
    name: str,
    split: Callable[[torch.Tensor, torch.Tensor | None], Split],
    first: torch.Tensor,
    second: torch.Tensor | None,
) -> Split:
    """The form, and the operands and scalars, that `split` makes of one or two tensors; kept for later calls.

    A tensor that got other memory, another shape or another dtype (`set_`, `resize_`, `.data =`) is split
    anew.

    Args:
        name: the caller's name of the tensors, for errors.
        split: makes the form and its operands; raises for tensors that it cannot take.
        first: a tensor.
        second: another tensor, or None.

    Raises:
        Unaddressed: a tensor has no memory of its own.
    """
    try:
        if second is None:
            key = (id(first), 0, split)
            layout: tuple[Any, ...] = (first.data_ptr(), first.shape, first.stride(), first.dtype)
        else:
            key = (id(first), id(second), split)
            layout = (
                first.data_ptr(), first.shape, first.stride(), first.dtype,
                second.data_ptr(), second.shape, second.stride(), second.dtype,
            )  # fmt: skip
    except Exception as error:
        split(first, second)
        raise Unaddressed(
            name,
            expected="a tensor in memory",
            got=str(error).partition("\n")[0],
            fix="pass plain torch tensors",
        ) from None
    entry = _kept.get(key)
    if (
        entry is not None
        and entry[0]() is first
        and (second is None or entry[1]() is second)
        and entry[2] == layout
    ):
        return entry[3]
    form, operands = split(first, second)
    views = form, {name: _unattached(x) if isinstance(x, torch.Tensor) else x for name, x in operands.items()}

    def forget(gone: _Reference) -> None:
        # Another tensor, maybe of another thread, may have the key by then.
        present = _kept.get(key)
        if present is not None and (present[0] is gone or present[1] is gone):
            _kept.pop(key, None)

    other = first if second is None else second
    _kept[key] = (weakref.ref(first, forget), weakref.ref(other, forget), layout, views)
    return views


def _unattached(rows: torch.Tensor) -> torch.Tensor:
    """The same memory, without the reference to the caller's tensor by which a view keeps it alive."""
    with of_its_own():
        alone = torch.empty(0, dtype=rows.dtype, device=rows.device)
        alone.set_(rows.untyped_storage(), rows.storage_offset(), rows.shape, rows.stride())
    # The ops ask the tensors that they get whether a gradient is wanted.
    return alone.requires_grad_(rows.requires_grad)
