"""Peers: other libraries' kernels, on the tensors of our calls; docs/peers.md says how to obtain each.

A module here has the name of its operation. Its `PEERS` maps the name of each peer to a function of a point,
its fixture and our calls. The function gives a `Contender`, or None where the peer does not take the point;
it raises ImportError where the peer is not installed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dsl_kernels._discover import discover, module_names

from .. import bench
from ..grids import Fixture, Point

MOST_APART = 1e-2
"""The largest relative difference of a peer's result from ours: the two round differently."""


@dataclass(frozen=True)
class Contender:
    """A peer at a point: its version, the turns of its rotation, and its first turn's difference from ours.

    `apart` may only be called after our first turn has run.
    """

    version: str
    calls: Sequence[bench.Call]
    apart: Callable[[], float]


Offer = Callable[[Point, Fixture, Sequence[Any]], Contender | None]


def offers(op: str) -> Mapping[str, Offer]:
    """The peers of an operation, by name."""
    if op not in module_names(__path__):
        return {}
    peers: Mapping[str, Offer] = discover(__name__, op, lambda: module_names(__path__), "peers", "PEERS")
    return peers


def standing(
    point: Point, fixture: Fixture, ours: Sequence[Any], absent: dict[str, str], notes: list[str]
) -> Iterator[tuple[str, Contender, float]]:
    """The peers that take a point and pass the check: name, contender, difference from ours.

    Args:
        point: The point.
        fixture: Its inputs.
        ours: Our calls, the first of which has run.
        absent: Receives the reason for each peer that cannot be imported.
        notes: Receives a line for each peer that does not run, or is wrong.
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
            bench.forget_error()
            continue
        if made is None:
            continue
        if not far <= MOST_APART:
            notes.append(f"{name}: {far:.1e} from ours, which matches the reference; not timed")
            continue
        yield name, made, far


def apart(result: torch.Tensor, expected: torch.Tensor) -> float:
    """The norm of the difference divided by that of `expected`, in float64."""
    wanted = expected.to(result.device).double()
    return float((result.double() - wanted).norm() / wanted.norm())


def version(*packages: str) -> str:
    """The version of the first of these packages that is installed; "" if none is."""
    return next((installed for package in packages if (installed := bench.version(package))), "")


def own_or_of_vllm(module: str, within: str, *packages: str) -> tuple[Any, str]:
    """A peer's module and its version: its own package if that is installed, else vLLM's build of it.

    Args:
        module: The peer's own module.
        within: vLLM's module with the same functions.
        packages: Possible names of the peer's distribution.

    Raises:
        ImportError: neither module can be imported; the error names both.
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
