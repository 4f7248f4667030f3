"""Sizes of sparse MLA that its leaves count with, on Hopper and on Blackwell; on Hopper all of them have a text."""

from __future__ import annotations

TILE, WARP = 64, 32
THREADS = 128
