"""Peers of resampling: torch's operators, eager and compiled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ...cases.resample import by_torch
from ..grids import Fixture, Point
from . import Contender, Offer, apart

NAMES = ("data", "src_times", "tgt_times")


def _peer(compiled: bool, point: Point, fixture: Fixture, ours: Sequence[Any]) -> Contender:
    function = torch.compile(by_torch, dynamic=False) if compiled else by_torch
    sets = [call.args[0] for call in ours]
    calls = [partial(function, *(each[name] for name in NAMES)) for each in sets]
    return Contender(torch.__version__, calls, lambda: apart(calls[0](), sets[0]["out"]))


PEERS: dict[str, Offer] = {"torch, compiled": partial(_peer, True), "torch, eager": partial(_peer, False)}
