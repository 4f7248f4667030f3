"""Checks of what a caller draws inputs with (seeds, devices, memory), and of what it records."""

from __future__ import annotations

import json
from typing import Any

from dsl_kernels.arguments import available_memory, shown
from dsl_kernels.errors import ArgumentTypeError, ExecutorUnavailableError, InvalidArgumentError

SEEDS = (-(2**63), 2**64 - 1)
"""The range of seeds that torch's generators take."""

NEVER_SCARCE = 1 << 28
"""Allocations up to this many bytes are not compared with the free memory."""


def require_device(name: str, device: Any) -> Any:
    """The `torch.device` that an argument names: the CPU, or a GPU that exists.

    Raises:
        InvalidArgumentError: neither.
        ExecutorUnavailableError: a GPU that is not there.
    """
    import torch

    try:
        place = torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        place = torch.device("meta")
    if place.type not in ("cpu", "cuda"):
        raise InvalidArgumentError(
            name, expected="'cpu', 'cuda' or 'cuda:<index>'", got=shown(device), fix="name one of these"
        )
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise ExecutorUnavailableError(
            name, expected="a GPU that torch sees", got=str(place), fix="pass device='cpu', or another index"
        )
    return place


def require_memory(subject: str, wanted: int, device: Any, fix: str) -> None:
    """Require that many free bytes on a device: a system that overcommits would kill the process later.

    Raises:
        InvalidArgumentError: fewer bytes are free.
    """
    if wanted < NEVER_SCARCE:
        return
    import torch

    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    if wanted > free:
        raise InvalidArgumentError(
            subject,
            expected=f"tensors within the {free / 2**30:.1f} GiB that are free on {device}",
            got=f"{wanted / 2**30:.1f} GiB" if wanted < 2**60 else shown(wanted),
            fix=fix,
        )


def as_json(name: str, content: Any, **options: Any) -> str:
    """Content as JSON.

    Raises:
        ArgumentTypeError: something in it that JSON cannot spell.
    """
    try:
        return json.dumps(content, **options)
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentTypeError(
            name,
            expected="what JSON can spell",
            got=str(error),
            fix="pass strings, numbers, lists and mappings",
        ) from None
