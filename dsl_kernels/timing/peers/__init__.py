"""Other libraries' kernels beside ours, over the tensors of our calls; docs/peers.md says how each is obtained.

A module here is named after its operation and has `PEERS`: what each peer is called, and a function of a point, its fixture
and the calls of ours that gives a `Contender`, or None where the peer does not take the point. A peer that is not installed
raises ImportError there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..._discover import discover, module_names
from .. import bench
from ..grids import Fixture, Point

MOST_APART = 1e-2
"""How far a peer's result may lie from ours: both round, on their own ways."""


@dataclass(frozen=True)
class Contender:
    """A peer at a point: its version, the turns of its rotation, and how far its first turn lies from ours, which has run."""

    version: str
    calls: Sequence[bench.Call]
    apart: Callable[[], float]


Offer = Callable[[Point, Fixture, Sequence[Any]], Contender | None]


def offers(op: str) -> Mapping[str, Offer]:
    """The peers of an operation by name; none where none is known."""
    if op not in module_names(__path__):
        return {}
    found: Mapping[str, Offer] = discover(__name__, op, lambda: module_names(__path__), "peers", "PEERS")
    return found


def standing(
    point: Point, fixture: Fixture, ours: Sequence[Any], absent: dict[str, str], notes: list[str]
) -> Iterator[tuple[str, Contender, float]]:
    """The peers that take a point, each checked: its name, the contender, and how far it lies from ours.

    Args:
        absent: takes the reason of a peer that does not import.
        notes: takes a line for one that does not run, or is wrong.
    """
    for name, offer in offers(point.op).items():
        if name in absent:
            continue
        try:
            made = offer(point, fixture, ours)
            far = made.apart() if made else 0.0
        except ImportError as error:
            absent[name] = _line(error)
            continue
        except Exception as error:
            notes.append(f"{name}: {type(error).__name__}: {_line(error)}")
            continue
        if made is None:
            continue
        if not far <= MOST_APART:
            notes.append(f"{name}: {far:.1e} from ours, which matches the reference; not timed")
            continue
        yield name, made, far


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over that of `expected`, in float64."""
    wanted = expected.to(found.device).double()
    return float((found.double() - wanted).norm() / wanted.norm())


def version(*packages: str) -> str:
    """Version of the first of these packages that is installed; what it was built from where its maker says so."""
    return next((found for package in packages if (found := bench.version(package))), "")


def own_or_of_vllm(module: str, within: str, *packages: str) -> tuple[Any, str]:
    """A peer's module and its version: its own package where that is installed, otherwise the build that vLLM's wheel holds.

    Args:
        module: name of the peer's own module, and `packages` the names of its distribution.
        within: name of vLLM's module with the same functions.

    Raises:
        ImportError: neither imports; names both.
    """
    try:
        return importlib.import_module(module), version(*packages)
    except ImportError as error:
        try:
            return importlib.import_module(within), f"vLLM {version('vllm')}"
        except ImportError:
            raise ImportError(f"{_line(error)}, nor {within}") from error


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:120] if str(error).strip() else type(error).__name__
