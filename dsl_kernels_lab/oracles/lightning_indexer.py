"""How scores of `lightning_indexer` are judged, as its problem declares it."""

from __future__ import annotations

from dsl_kernels.kernels.lightning_indexer.problem import PROBLEM

ORACLE = PROBLEM
